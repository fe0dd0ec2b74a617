//! Rasters: the state of each row over time, for example of each client in each round.

use std::ops::Range;

use crate::canvas::{Canvas, draw_svg};
use crate::cells::Cells;
use crate::error::PlotError;
use crate::frame::{Axis, Frame, LegendEntry, Plane, Swatch};
use crate::pixels;
use crate::svg::{Size, Svg};
use crate::theme::Theme;

/// Rows of cells, each in one of a few states.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Raster {
    /// The title above the plot.
    pub title: String,
    /// The label of the x-axis.
    pub x_label: String,
    /// The label of the y-axis.
    pub y_label: String,
    /// The number of the first column.
    pub first_column: u64,
    /// How many numbers a column covers; 0 and 1 both mean one.
    pub column_width: u64,
    /// The names of the states.
    pub states: Vec<String>,
    /// The rows, from above.
    pub rows: Vec<RasterRow>,
}

/// One row of a [`Raster`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RasterRow {
    /// The name at the y-axis.
    pub name: String,
    /// The state in each column, as an index into the states; `None` stays empty. With more cells than
    /// pixels, neighbours share one that shows their most frequent state.
    pub cells: Vec<Option<u8>>,
}

impl Raster {
    /// Draws the raster.
    ///
    /// # Errors
    /// If there is no cell, rows differ in length, a state has no name, or the size leaves no space.
    pub fn draw(&self, theme: Theme, size: Size) -> Result<Svg, PlotError> {
        self.draw_with(theme, size, |canvas, plane, n_columns| self.draw_cells(canvas, plane, n_columns))
    }

    /// Draws the frame without the cells, for callers that put [`Raster::pixels`] at [`Svg::area`].
    ///
    /// # Errors
    /// As [`Raster::draw`].
    pub fn frame(&self, theme: Theme, size: Size) -> Result<Svg, PlotError> {
        self.draw_with(theme, size, |_, _, _| {})
    }

    /// The cells as a PNG of one pixel each; empty cells are transparent.
    ///
    /// # Errors
    /// If there is no cell, rows differ in length, or a state has no name.
    pub fn pixels(&self, theme: Theme) -> Result<Vec<u8>, PlotError> {
        let n_columns = self.check()?;
        let colours: Vec<_> = (0..self.states.len()).map(|state| theme.series(state)).collect();
        let cells = self.rows.iter().flat_map(|row| &row.cells);
        // Colour 0 is transparent: the empty state.
        let numbers: Vec<_> = cells.map(|cell| cell.map_or(0, |state| state + 1)).collect();
        pixels::indexed_png((n_columns, self.rows.len()), theme.background(), &colours, &numbers)
    }

    fn draw_with(
        &self,
        theme: Theme,
        size: Size,
        draw_cells: impl FnOnce(&Canvas<'_>, &Plane, usize),
    ) -> Result<Svg, PlotError> {
        let n_columns = self.check()?;
        let keys = self.states.iter().enumerate().map(|(idx, name)| LegendEntry {
            name,
            colour: theme.series(idx),
            swatch: Swatch::Box,
        });
        let first = self.first_column as f64 - 0.5;
        let frame = Frame {
            title: &self.title,
            x_label: &self.x_label,
            y_label: &self.y_label,
            legend: keys.collect(),
            bottom: Axis::Integers(first..first + n_columns as f64 * self.column_width.max(1) as f64),
            left: Axis::names(self.rows.iter().map(|row| &row.name)),
            right_px: 0.0,
        };
        draw_svg(&self.title, theme, size, |canvas| {
            let plane = frame.draw(canvas)?;
            draw_cells(canvas, &plane, n_columns);
            Ok(())
        })
    }

    /// The number of columns, which is the same in all rows.
    fn check(&self) -> Result<usize, PlotError> {
        let n_columns = self.rows.first().map_or(0, |row| row.cells.len());
        if n_columns == 0 {
            return Err(PlotError::nothing(&self.title));
        }
        for RasterRow { name, cells } in &self.rows {
            if cells.len() != n_columns {
                let message = format!("row \"{name}\" has {} cells, the first {n_columns}", cells.len());
                return Err(PlotError::uneven(&self.title, message));
            }
            if let Some(state) =
                cells.iter().flatten().find(|state| usize::from(**state) >= self.states.len())
            {
                let message = format!("row \"{name}\": state {state} has no name");
                return Err(PlotError::uneven(&self.title, message));
            }
        }
        Ok(n_columns)
    }

    fn draw_cells(&self, canvas: &Canvas<'_>, plane: &Plane, n_columns: usize) {
        let across = Cells::across(plane, n_columns);
        let along = Cells::along(plane, self.rows.len());
        let n_rows = along.n_cells();
        for row in 0..n_rows {
            let (top, bottom) = (along.edge(row), along.edge(row + 1));
            let gap = if bottom - top >= 5.0 { 1.0 } else { 0.0 };
            let states: Vec<_> = (0..across.n_cells())
                .map(|cell| self.majority(along.values(row), across.values(cell)))
                .collect();
            let mut from = 0;
            for run in states.chunk_by(|one, next| one == next) {
                let to = from + run.len();
                if let Some(state) = run[0] {
                    let colour = canvas.theme.series(state);
                    canvas.rect((across.edge(from), top), (across.edge(to), bottom - gap), colour);
                }
                from = to;
            }
        }
    }

    /// The most frequent state; ties go to the one with the lowest index, and `None` loses every tie.
    fn majority(&self, rows: Range<usize>, columns: Range<usize>) -> Option<usize> {
        let mut counts = vec![0_usize; self.states.len() + 1];
        for row in &self.rows[rows] {
            for cell in &row.cells[columns.clone()] {
                counts[cell.map_or(self.states.len(), usize::from)] += 1;
            }
        }
        let most = counts.iter().copied().max().expect("there is a count for nothing");
        counts.iter().position(|&count| count == most).filter(|&state| state < self.states.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raster(rows: &[&str]) -> Raster {
        let state = |letter| match letter {
            'u' => Some(0),
            'l' => Some(1),
            _ => None,
        };
        Raster {
            title: "Availability".into(),
            x_label: "round".into(),
            first_column: 1,
            states: vec!["up".into(), "late".into()],
            rows: rows
                .iter()
                .enumerate()
                .map(|(at, row)| RasterRow {
                    name: format!("client {at}"),
                    cells: row.chars().map(state).collect(),
                })
                .collect(),
            ..Raster::default()
        }
    }

    fn widths(svg: &Svg, colour: &str) -> Vec<i32> {
        let rows = svg.as_str().lines().filter(|row| row.starts_with("<rect") && row.contains(colour));
        let width =
            |row: &str| row.split_once(" width=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap();
        // The first rectangle is the swatch in the legend.
        rows.skip(1).map(width).collect()
    }

    #[test]
    fn a_column_can_stand_for_several_numbers() {
        let wide = Raster { column_width: 100, ..raster(&["uuul"]) };
        let svg = wide.draw(Theme::Light, Size::default()).unwrap();
        assert!(svg.as_str().contains("\n300\n"), "{}", svg.as_str());
        assert_eq!(svg.area().unwrap().across, (0.5, 400.5));
    }

    #[test]
    fn cells_and_frame_can_be_drawn_separately() {
        let whole = raster(&["uul.", "...."]);
        let frame = whole.frame(Theme::Light, Size::default()).unwrap();
        let drawn = whole.draw(Theme::Light, Size::default()).unwrap();
        assert_eq!(frame.area(), drawn.area());
        assert!(frame.as_str().contains("\nclient 1\n") && widths(&frame, "#0072B2").is_empty());
        let pixels = resvg::tiny_skia::Pixmap::decode_png(&whole.pixels(Theme::Light).unwrap()).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (4, 2));
        let seen: Vec<_> = pixels.pixels().iter().map(|one| (one.red(), one.blue(), one.alpha())).collect();
        assert_eq!(seen[..3], [(0, 0xB2, 255), (0, 0xB2, 255), (0xD5, 0, 255)]);
        assert!(seen[3..].iter().all(|one| one.2 == 0));
    }

    #[test]
    fn neighbours_in_one_state_are_one_rectangle() {
        let svg = raster(&["uuuu.ull", "........"]).draw(Theme::Light, Size::default()).unwrap();
        let (up, late) = (widths(&svg, "#0072B2"), widths(&svg, "#D55E00"));
        assert_eq!((up.len(), late.len()), (2, 1));
        assert!((up[0] - 4 * up[1]).abs() <= 50 && (late[0] - 2 * up[1]).abs() <= 30, "{up:?} {late:?}");
        for word in ["\nup\n", "\nlate\n", "\nclient 1\n", "\nround\n", "\n8\n"] {
            assert!(svg.as_str().contains(word), "{word}");
        }
        assert!(!svg.as_str().contains("\n1.5\n"));
    }

    #[test]
    fn crowded_cells_show_the_majority() {
        let raster = raster(&["uul.", "lll."]);
        assert_eq!(raster.majority(0..1, 0..3), Some(0));
        assert_eq!(raster.majority(0..2, 0..3), Some(1));
        assert_eq!(raster.majority(0..2, 3..4), None);
        assert_eq!(raster.majority(0..1, 2..4), Some(1));
    }

    #[test]
    fn a_large_raster_stays_a_small_file() {
        let row = "uul.".repeat(1000);
        let rows = vec![row.as_str(); 400];
        let svg = raster(&rows).draw(Theme::Light, Size::default()).unwrap();
        assert!(svg.as_str().len() < 5_000_000, "{}", svg.as_str().len());
        assert!(svg.as_str().matches("<text").count() < 60);
    }

    #[test]
    fn unusable_data_are_errors_and_not_panics() {
        let draw = |raster: &Raster| raster.draw(Theme::Dark, Size::default()).map(|_| ());
        assert_eq!(draw(&Raster::default()), Err(PlotError::nothing("")));
        assert_eq!(draw(&raster(&[""])), Err(PlotError::nothing("Availability")));
        let message = "row \"client 1\" has 1 cells, the first 2";
        assert_eq!(draw(&raster(&["uu", "u"])), Err(PlotError::uneven("Availability", message)));
        let unnamed = Raster { states: vec!["up".into()], ..raster(&["ul"]) };
        let message = "row \"client 0\": state 1 has no name";
        assert_eq!(draw(&unnamed), Err(PlotError::uneven("Availability", message)));
        assert_eq!(draw(&raster(&["."])), Ok(()));
    }
}
