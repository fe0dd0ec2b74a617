//! Rows and columns of cells on whole pixels, so that no background shows between them.

use crate::frame::Plane;

/// The least width and height of a cell; neighbours share one if they would be smaller.
const MIN_CELL_PX: f64 = 2.0;

/// Equal cells between two pixels.
pub(crate) struct Cells {
    from: f64,
    to: f64,
    n_values: usize,
    n_cells: usize,
}

impl Cells {
    pub(crate) fn across(plane: &Plane, n_values: usize) -> Self {
        Cells::new(plane.left, plane.right, n_values)
    }

    pub(crate) fn along(plane: &Plane, n_values: usize) -> Self {
        Cells::new(plane.top, plane.bottom, n_values)
    }

    fn new(from: f64, to: f64, n_values: usize) -> Self {
        let max_cells = ((to - from) / MIN_CELL_PX) as usize;
        Cells { from, to, n_values, n_cells: n_values.min(max_cells.max(1)) }
    }

    /// The same range with at most this many cells.
    pub(crate) fn at_most(self, n_cells: usize) -> Self {
        Cells { n_cells: self.n_cells.min(n_cells), ..self }
    }

    pub(crate) fn n_cells(&self) -> usize {
        self.n_cells
    }

    /// The pixel at which the cell begins and the one before it ends.
    pub(crate) fn edge(&self, cell: usize) -> f64 {
        (self.from + (self.to - self.from) * cell as f64 / self.n_cells as f64).round()
    }

    /// The values that share the cell.
    pub(crate) fn values(&self, cell: usize) -> std::ops::Range<usize> {
        cell * self.n_values / self.n_cells..(cell + 1) * self.n_values / self.n_cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_one_cell_and_every_cell_a_pixel() {
        for (n_values, n_cells) in [(1, 1), (7, 7), (50, 50), (51, 50), (1000, 50)] {
            let cells = Cells::new(10.0, 110.0, n_values);
            assert_eq!(cells.n_cells(), n_cells);
            let values: Vec<_> = (0..n_cells).flat_map(|cell| cells.values(cell)).collect();
            assert_eq!(values, (0..n_values).collect::<Vec<_>>());
            assert_eq!((cells.edge(0), cells.edge(n_cells)), (10.0, 110.0));
            assert!((0..n_cells).all(|cell| cells.edge(cell + 1) - cells.edge(cell) >= 1.0));
            let fewer = cells.at_most(7);
            assert_eq!((fewer.n_cells(), fewer.edge(fewer.n_cells())), (n_cells.min(7), 110.0));
            assert_eq!((0..fewer.n_cells()).map(|cell| fewer.values(cell).len()).sum::<usize>(), n_values);
        }
    }
}
