//! Heat maps: the value of each row and column as a colour.

use std::ops::Range;

use plotters::style::text_anchor::{HPos, VPos};

use crate::axis::{exact, format_in_range, is_shown, span};
use crate::canvas::{Canvas, TEXT_PX, anchor, draw_svg, upward};
use crate::cells::Cells;
use crate::error::PlotError;
use crate::frame::{Axis, Frame, LegendEntry, Plane, Swatch, value_axis};
use crate::svg::{Size, Svg};
use crate::theme::{Colour, Theme};

/// Larger files would be slow to open.
const MAX_CELLS: usize = 256;

/// A matrix of values as colours, from dark to light, with a scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    /// The title above the plot.
    pub title: String,
    /// The label of the x-axis.
    pub x_label: String,
    /// The label of the y-axis.
    pub y_label: String,
    /// The label of the colour scale.
    pub value_label: String,
    /// The names of the rows, from above.
    pub rows: Vec<String>,
    /// The names of the columns, from left to right.
    pub columns: Vec<String>,
    /// For each row, the value in each column; NaN stays empty. With more rows or columns than pixels, or
    /// than 256, neighbours are averaged.
    pub values: Vec<Vec<f64>>,
    /// The meaning of an empty cell in the legend; empty if it needs none.
    pub gap_label: String,
    /// Whether rows and columns are the same items, so that the diagonal stays blank.
    pub blank_diagonal: bool,
    /// Whether to hide the names, because they are too many or in no useful order.
    pub hide_names: bool,
    /// The rows and columns before which a line is drawn.
    pub breaks: Vec<usize>,
}

impl HeatMap {
    /// Draws the heat map.
    ///
    /// # Errors
    /// If no value can be shown, the matrix does not fit its names, or the size leaves no space.
    pub fn draw(&self, theme: Theme, size: Size) -> Result<Svg, PlotError> {
        self.check()?;
        let values = span(self.values.iter().flatten().copied());
        let range = exact(values.ok_or_else(|| PlotError::nothing(&self.title))?);
        let nameless = |names: &[String]| vec![String::new(); names.len()];
        let (columns, rows) = match self.hide_names {
            true => (nameless(&self.columns), nameless(&self.rows)),
            false => (self.columns.clone(), self.rows.clone()),
        };
        draw_svg(&self.title, theme, size, |canvas| {
            let scale = Scale::new(canvas, range, &self.value_label);
            let frame = Frame {
                title: &self.title,
                x_label: &self.x_label,
                y_label: &self.y_label,
                legend: self.gap_legend(theme).into_iter().collect(),
                bottom: Axis::names(&columns),
                left: Axis::names(&rows),
                right_px: scale.width,
            };
            let plane = frame.draw(canvas)?;
            self.draw_cells(canvas, &plane, &scale);
            self.draw_breaks(canvas, &plane);
            scale.draw(canvas, &plane);
            Ok(())
        })
    }

    /// The legend entry for empty cells, if there are any.
    fn gap_legend(&self, theme: Theme) -> Option<LegendEntry<'_>> {
        let mut cells = self.values.iter().enumerate().flat_map(|(row, values)| {
            values.iter().enumerate().filter(move |(column, _)| !self.is_blank(row, *column))
        });
        let any = cells.any(|(_, value)| !is_shown(*value));
        any.then(|| LegendEntry { name: &self.gap_label, colour: theme.grid(), swatch: Swatch::Box })
    }

    fn is_blank(&self, row: usize, column: usize) -> bool {
        self.blank_diagonal && row == column
    }

    fn check(&self) -> Result<(), PlotError> {
        let uneven = |message: String| Err(PlotError::uneven(&self.title, message));
        if self.values.len() != self.rows.len() {
            return uneven(format!("{} rows of values for {} names", self.values.len(), self.rows.len()));
        }
        let n_columns = self.columns.len();
        match self.values.iter().zip(&self.rows).find(|(row, _)| row.len() != n_columns) {
            Some((row, name)) => {
                uneven(format!("row \"{name}\" has {} values for {n_columns} columns", row.len()))
            }
            None => Ok(()),
        }
    }

    fn draw_cells(&self, canvas: &Canvas<'_>, plane: &Plane, scale: &Scale<'_>) {
        let across = Cells::across(plane, self.columns.len()).at_most(MAX_CELLS);
        let along = Cells::along(plane, self.rows.len()).at_most(MAX_CELLS);
        // Cells differ by at most a pixel, so their mean size decides whether all of them show their value.
        let height = (plane.bottom - plane.top) / along.n_cells() as f64;
        let width = (plane.right - plane.left) / across.n_cells() as f64;
        for row in 0..along.n_cells() {
            let (top, bottom) = (along.edge(row), along.edge(row + 1));
            for column in 0..across.n_cells() {
                let (left, right) = (across.edge(column), across.edge(column + 1));
                let (rows, columns) = (along.values(row), across.values(column));
                if rows.len() == 1 && columns.len() == 1 && self.is_blank(rows.start, columns.start) {
                    continue;
                }
                let value = self.mean(rows, columns);
                let colour = value.map_or(canvas.theme.grid(), |value| scale.colour(value));
                canvas.rect((left, top), (right, bottom), colour);
                let name = value.map(|value| format_in_range(value, &scale.range)).unwrap_or_default();
                if height >= TEXT_PX + 4.0 && width >= canvas.width_of(&name, TEXT_PX) + 4.0 {
                    let middle = ((left + right) / 2.0, (top + bottom) / 2.0);
                    canvas.text(
                        &name,
                        middle,
                        TEXT_PX,
                        colour.readable(),
                        anchor(HPos::Center, VPos::Center),
                    );
                }
            }
        }
    }

    fn draw_breaks(&self, canvas: &Canvas<'_>, plane: &Plane) {
        // Lines that are too close would hide the cells between them.
        if self.breaks.len() as f64 * 8.0 > (plane.right - plane.left).min(plane.bottom - plane.top) {
            return;
        }
        let ink = canvas.theme.background();
        let within = |at: f64, n_names: usize| (at > 0.0 && at < n_names as f64).then(|| at / n_names as f64);
        for at in self.breaks.iter().map(|&at| at as f64) {
            if let Some(share) = within(at, self.columns.len()) {
                let x = (plane.left + (plane.right - plane.left) * share).round();
                canvas.line(&[(x, plane.top), (x, plane.bottom)], ink, 2.0);
            }
            if let Some(share) = within(at, self.rows.len()) {
                let y = (plane.top + (plane.bottom - plane.top) * share).round();
                canvas.line(&[(plane.left, y), (plane.right, y)], ink, 2.0);
            }
        }
    }

    fn mean(&self, rows: Range<usize>, columns: Range<usize>) -> Option<f64> {
        let cells = rows.flat_map(|row| columns.clone().map(move |column| (row, column)));
        let values = cells.filter(|&(row, column)| !self.is_blank(row, column));
        let (sum, n_values) = values
            .map(|(row, column)| self.values[row][column])
            .filter(|value| is_shown(*value))
            .fold((0.0, 0_usize), |(sum, n_values), value| (sum + value, n_values + 1));
        (n_values > 0).then(|| sum / n_values as f64)
    }
}

const BAR_PX: f64 = 14.0;
const BEFORE_BAR_PX: f64 = 12.0;

/// The colour scale and its range.
struct Scale<'p> {
    range: Range<f64>,
    ticks: Vec<(f64, String)>,
    label: &'p str,
    /// The width that the scale needs right of the data.
    width: f64,
}

impl<'p> Scale<'p> {
    fn new(canvas: &Canvas<'_>, range: Range<f64>, label: &'p str) -> Self {
        let (ticks, names) = value_axis(canvas, &range);
        let title = if label.is_empty() { 0.0 } else { TEXT_PX + 8.0 };
        Scale { range, ticks, label, width: BEFORE_BAR_PX + BAR_PX + 6.0 + names + title - 10.0 }
    }

    fn share(&self, value: f64) -> f64 {
        (value - self.range.start) / (self.range.end - self.range.start)
    }

    fn colour(&self, value: f64) -> Colour {
        Colour::of_share(self.share(value))
    }

    fn draw(&self, canvas: &Canvas<'_>, plane: &Plane) {
        let (left, right) = (plane.right + BEFORE_BAR_PX, plane.right + BEFORE_BAR_PX + BAR_PX);
        let steps = Cells::along(plane, 128);
        for step in 0..steps.n_cells() {
            let share = 1.0 - (step as f64 + 0.5) / steps.n_cells() as f64;
            // Each step overlaps the one above, so that no background shows between them.
            canvas.rect((left, steps.edge(step)), (right, plane.bottom), Colour::of_share(share));
        }
        let theme = canvas.theme;
        for (value, name) in &self.ticks {
            let y = plane.bottom - (plane.bottom - plane.top) * self.share(*value);
            canvas.line(&[(right, y), (right + 3.0, y)], theme.soft_ink(), 1.0);
            canvas.text(name, (right + 6.0, y), TEXT_PX, theme.soft_ink(), anchor(HPos::Left, VPos::Center));
        }
        if !self.label.is_empty() {
            let name = canvas.fit(self.label, TEXT_PX, plane.bottom - plane.top);
            let at = (canvas.width - 14.0, (plane.top + plane.bottom) / 2.0);
            canvas.text(&name, at, TEXT_PX, theme.ink(), upward(HPos::Center, VPos::Center));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(values: &[&[f64]]) -> HeatMap {
        HeatMap {
            title: "Similarity".into(),
            rows: (0..values.len()).map(|at| format!("r{at}")).collect(),
            columns: (0..values[0].len()).map(|at| format!("c{at}")).collect(),
            values: values.iter().map(|row| row.to_vec()).collect(),
            ..HeatMap::default()
        }
    }

    #[test]
    fn a_cell_has_the_colour_of_its_value() {
        let svg = map(&[&[0.0, 1.0], &[f64::NAN, 0.5]]).draw(Theme::Light, Size::default()).unwrap();
        let large = |colour: &str| {
            let rows = svg.as_str().lines().filter(|row| row.starts_with("<rect") && row.contains(colour));
            rows.filter(|row| !row.contains("width=\"140\"")).count()
        };
        assert_eq!(["#440154", "#FDE725", "#21918C", "#E2E5E9"].map(large), [1; 4]);
        let pixmap = svg.pixels(1).unwrap();
        let at = |x, y| {
            let pixel = pixmap.pixel(x, y).unwrap();
            (pixel.red(), pixel.green(), pixel.blue())
        };
        assert_eq!(
            (at(100, 100), at(500, 60), at(500, 350)),
            ((0x44, 1, 0x54), (0xFD, 0xE7, 0x25), (0x21, 0x91, 0x8C))
        );
        assert!(!svg.as_str().contains("NaN"));
    }

    #[test]
    fn names_can_be_hidden() {
        let named = map(&[&[1.0, 2.0], &[3.0, 4.0]]);
        let has =
            |map: &HeatMap| map.draw(Theme::Light, Size::default()).unwrap().as_str().contains("\nr1\n");
        assert!(has(&named) && !has(&HeatMap { hide_names: true, ..named }));
    }

    #[test]
    fn the_diagonal_is_blank_and_gaps_are_named() {
        let nan = f64::NAN;
        let values: [&[f64]; 3] = [&[nan, 1.0, 0.0], &[1.0, nan, nan], &[0.0, nan, nan]];
        let map = HeatMap {
            gap_label: "never met".into(),
            blank_diagonal: true,
            breaks: vec![0, 2, 3],
            ..map(&values)
        };
        let svg = map.draw(Theme::Light, Size::default()).unwrap();
        let n = |text: &str| svg.as_str().matches(text).count();
        // Two cells and the box of the legend.
        assert_eq!((n("fill=\"#E2E5E9\""), n("\nnever met\n")), (3, 1));
        assert_eq!(n("stroke=\"#FFFFFF\""), 2, "one line across and one along");
        // Without gaps the legend is empty.
        let full = HeatMap { values: vec![vec![nan, 1.0], vec![2.0, nan]], breaks: vec![], ..map.clone() };
        let full = HeatMap { rows: map.rows[..2].to_vec(), columns: map.columns[..2].to_vec(), ..full };
        assert!(!full.draw(Theme::Light, Size::default()).unwrap().as_str().contains("never met"));
        let open = HeatMap { blank_diagonal: false, ..full };
        assert!(open.draw(Theme::Light, Size::default()).unwrap().as_str().contains("never met"));
    }

    #[test]
    fn more_values_than_pixels_are_averaged() {
        let row: Vec<_> = (0..5000).map(|at| f64::from(at % 2)).collect();
        let map = map(&[&row, &row]);
        assert_eq!(map.mean(0..2, 0..4), Some(0.5));
        let svg = map.draw(Theme::Light, Size::default()).unwrap();
        assert!(svg.as_str().matches("<rect").count() < 2 * MAX_CELLS + 200);
    }

    #[test]
    fn unusable_data_are_errors_and_not_panics() {
        let draw = |map: &HeatMap| map.draw(Theme::Dark, Size::default()).map(|_| ());
        assert_eq!(draw(&HeatMap::default()), Err(PlotError::nothing("")));
        assert_eq!(draw(&map(&[&[f64::NAN]])), Err(PlotError::nothing("Similarity")));
        let message = "row \"r1\" has 1 values for 2 columns";
        assert_eq!(draw(&map(&[&[1.0, 2.0], &[1.0]])), Err(PlotError::uneven("Similarity", message)));
        let rows = HeatMap { rows: vec![], ..map(&[&[1.0]]) };
        assert_eq!(draw(&rows), Err(PlotError::uneven("Similarity", "1 rows of values for 0 names")));
        assert_eq!(draw(&map(&[&[3.0]])), Ok(()));
    }
}
