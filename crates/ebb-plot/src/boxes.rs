//! Box plots: the distribution of values in several groups.

use crate::axis::{is_shown, span, with_padding};
use crate::canvas::{Canvas, draw_svg};
use crate::error::PlotError;
use crate::frame::{Axis, Frame, LegendEntry, Plane, Swatch};
use crate::svg::{Size, Svg};
use crate::theme::{Colour, Theme};

/// A box for each group and series, with the quartiles, the median, and whiskers up to 1.5 times the box's
/// height. Values beyond the whiskers are dots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Boxes {
    /// The title above the plot.
    pub title: String,
    /// The label of the x-axis.
    pub x_label: String,
    /// The label of the y-axis.
    pub y_label: String,
    /// The names of the groups, from left to right.
    pub groups: Vec<String>,
    /// The series: each has one box in every group. A single series has a colour for each group.
    pub series: Vec<BoxSeries>,
}

/// One box in every group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BoxSeries {
    /// Its name in the legend.
    pub name: String,
    /// The values in each group, in any order. NaN is ignored; a group without values has no box.
    pub values: Vec<Vec<f64>>,
}

/// The part of a group's width that its boxes fill.
const FILLED: f64 = 0.8;

/// A lower box shows little more than its median.
const FLAT_PX: f64 = 5.0;

/// Half of the greatest width of a box.
const MAX_HALF_WIDTH_PX: f64 = 34.0;

impl Boxes {
    /// Draws the boxes.
    ///
    /// # Errors
    /// If no value can be shown, a series lacks values for a group, or the size leaves no space.
    pub fn draw(&self, theme: Theme, size: Size) -> Result<Svg, PlotError> {
        self.check()?;
        let values = || self.series.iter().flat_map(|series| series.values.iter().flatten().copied());
        let along = span(values()).ok_or_else(|| PlotError::nothing(&self.title))?;
        let keys = self.series.iter().enumerate().map(|(idx, series)| LegendEntry {
            name: &series.name,
            colour: theme.series(idx),
            swatch: Swatch::Box,
        });
        let frame = Frame {
            title: &self.title,
            x_label: &self.x_label,
            y_label: &self.y_label,
            legend: keys.collect(),
            bottom: Axis::names(&self.groups),
            left: Axis::of(values().filter(|value| is_shown(*value)), with_padding(along, 0.06)),
            right_px: 0.0,
        };
        let n_series = self.series.len();
        draw_svg(&self.title, theme, size, |canvas| {
            let plane = frame.draw(canvas)?;
            let width = FILLED / n_series as f64;
            // Boxes are separated; a box that is alone in its group has space on both sides.
            let filled = if n_series == 1 { 0.75 } else { 0.8 };
            for (idx, series) in self.series.iter().enumerate() {
                for (group, values) in series.values.iter().enumerate() {
                    let Some(spread) = BoxSummary::of(values) else { continue };
                    let middle = group as f64 + (1.0 - FILLED) / 2.0 + (idx as f64 + 0.5) * width;
                    let colour = theme.series(if n_series == 1 { group } else { idx });
                    spread.draw(canvas, &plane, (middle, filled * width / 2.0), colour);
                }
            }
            Ok(())
        })
    }

    fn check(&self) -> Result<(), PlotError> {
        let n_groups = self.groups.len();
        match self.series.iter().find(|series| series.values.len() != n_groups) {
            None => Ok(()),
            Some(series) => {
                let (name, n_found) = (&series.name, series.values.len());
                let message = format!("boxes \"{name}\": values for {n_found} groups of {n_groups}");
                Err(PlotError::uneven(&self.title, message))
            }
        }
    }
}

#[derive(Debug, PartialEq)]
struct BoxSummary {
    low: f64,
    first_quarter: f64,
    median: f64,
    third_quarter: f64,
    high: f64,
    beyond: Vec<f64>,
}

impl BoxSummary {
    fn of(values: &[f64]) -> Option<Self> {
        let mut values: Vec<_> = values.iter().copied().filter(|&value| is_shown(value)).collect();
        values.sort_by(f64::total_cmp);
        if values.is_empty() {
            return None;
        }
        let [first_quarter, median, third_quarter] = [0.25, 0.5, 0.75].map(|share| quantile(&values, share));
        let reach = 1.5 * (third_quarter - first_quarter);
        let near = first_quarter - reach..=third_quarter + reach;
        let (within, mut beyond): (Vec<_>, Vec<_>) =
            values.into_iter().partition(|value| near.contains(value));
        // Dots at the same place are drawn once.
        beyond.dedup();
        let low = within.first().copied().unwrap_or(first_quarter).min(first_quarter);
        let high = within.last().copied().unwrap_or(third_quarter).max(third_quarter);
        Some(BoxSummary { low, first_quarter, median, third_quarter, high, beyond })
    }

    fn draw(&self, canvas: &Canvas<'_>, plane: &Plane, (middle, half): (f64, f64), colour: Colour) {
        let height = |value| plane.at(middle, value).1;
        let (centre, _) = plane.at(middle, self.median);
        let (edge, _) = plane.at(middle - half, self.median);
        let half = (centre - edge).min(MAX_HALF_WIDTH_PX);
        let (left, right) = (centre - half, centre + half);
        let (bottom, top) = (height(self.first_quarter), height(self.third_quarter));

        canvas.line(&[(centre, bottom), (centre, height(self.low))], colour, 1.5);
        canvas.line(&[(centre, top), (centre, height(self.high))], colour, 1.5);
        for end in [self.low, self.high] {
            canvas.line(
                &[(centre - half / 2.0, height(end)), (centre + half / 2.0, height(end))],
                colour,
                1.5,
            );
        }
        canvas.translucent_rect((left, top), (right, bottom), colour, 0.3);
        canvas.line(&[(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], colour, 1.5);
        let median = height(self.median);
        // In a flat box, a line of ink would hide the colour.
        let ink = if bottom - top < FLAT_PX { colour } else { canvas.theme.ink() };
        canvas.line(&[(left, median), (right, median)], ink, 2.0);
        for value in &self.beyond {
            canvas.circle((centre, height(*value)), 2.5, colour);
        }
    }
}

/// The quantile of sorted values at a share from 0 to 1, interpolated linearly.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    let part = place - below as f64;
    sorted[below] * (1.0 - part) + sorted[above] * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_by_hand() {
        let found = BoxSummary::of(&[9.0, 1.0, 2.0, f64::NAN, 3.0, 4.0]).unwrap();
        let expected = BoxSummary {
            low: 1.0,
            first_quarter: 2.0,
            median: 3.0,
            third_quarter: 4.0,
            high: 4.0,
            beyond: vec![9.0],
        };
        assert_eq!(found, expected);
        let many = [[1.0; 20].as_slice(), &[7.0, 9.0, 7.0]].concat();
        assert_eq!(BoxSummary::of(&many).unwrap().beyond, [7.0, 9.0]);
        assert_eq!(BoxSummary::of(&[f64::NAN]), None);
        assert_eq!(quantile(&[1.0, 2.0], 0.5), 1.5);
        assert_eq!(quantile(&[7.0], 0.75), 7.0);
    }

    #[test]
    fn a_box_has_its_parts() {
        let values = vec![vec![1.0, 2.0, 3.0, 4.0, 9.0], vec![f64::NAN], vec![5.0, 6.0, 7.0, 8.0]];
        let boxes = Boxes {
            title: "Delay".into(),
            groups: ["fast", "silent", "slow"].map(str::to_owned).to_vec(),
            series: vec![BoxSeries { name: String::new(), values }],
            ..Boxes::default()
        };
        let svg = boxes.draw(Theme::Light, Size::default()).unwrap();
        let text = svg.as_str();
        assert_eq!(text.matches("opacity=\"0.3\"").count(), 2);
        assert_eq!(text.matches("<circle").count(), 1);
        assert_eq!(text.matches("stroke=\"#1F2328\" stroke-width=\"20\"").count(), 2);
        for name in ["\nfast\n", "\nsilent\n", "\nslow\n", "\nDelay\n"] {
            assert!(text.contains(name), "{name}");
        }
        assert!(!text.contains("NaN"));
    }

    #[test]
    fn series_stand_side_by_side_and_have_a_legend() {
        let of = |name: &str, at: f64| BoxSeries {
            name: name.into(),
            values: vec![vec![at, at + 1.0], vec![at, at + 2.0], vec![]],
        };
        let boxes = Boxes {
            groups: ["a", "b", "c"].map(str::to_owned).to_vec(),
            series: vec![of("few", 1.0), of("many", 5.0)],
            ..Boxes::default()
        };
        let svg = boxes.draw(Theme::Light, Size::default()).unwrap();
        assert_eq!(svg.as_str().matches("opacity=\"0.3\"").count(), 4);
        for (word, colour) in [("\nfew\n", "#0072B2"), ("\nmany\n", "#D55E00")] {
            assert!(svg.as_str().contains(word) && svg.as_str().contains(colour), "{word}");
        }
        // Flat boxes are filled with colour.
        let flat = BoxSeries { name: "flat".into(), values: vec![vec![3.0], vec![3.0, 3.0], vec![4.0]] };
        let flat = Boxes { series: vec![flat], ..boxes.clone() }.draw(Theme::Light, Size::default()).unwrap();
        assert!(!flat.as_str().contains("stroke=\"#1F2328\" stroke-width=\"20\""));
        let uneven = Boxes { groups: vec!["a".into()], ..boxes };
        let message = "boxes \"few\": values for 3 groups of 1";
        assert_eq!(uneven.draw(Theme::Light, Size::default()), Err(PlotError::uneven("", message)));
    }

    #[test]
    fn unusable_data_are_errors_and_not_panics() {
        let draw = |values: &[f64]| {
            let series = vec![BoxSeries { name: "s".into(), values: vec![values.to_vec()] }];
            Boxes { groups: vec!["g".into()], series, ..Boxes::default() }
                .draw(Theme::Dark, Size::default())
                .map(|_| ())
        };
        assert_eq!(draw(&[]), Err(PlotError::nothing("")));
        assert_eq!(draw(&[f64::INFINITY]), Err(PlotError::nothing("")));
        assert_eq!(draw(&[0.0]), Ok(()));
        assert_eq!(draw(&[-9e99, 9e99, 0.0]), Ok(()));
    }
}
