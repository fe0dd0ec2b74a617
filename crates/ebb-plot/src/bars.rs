//! Bar charts: groups of bars.

use crate::axis::{exact, is_shown, span};
use crate::canvas::{Canvas, draw_svg};
use crate::error::PlotError;
use crate::frame::{Axis, Frame, LegendEntry, Plane, Swatch};
use crate::svg::{Size, Svg};
use crate::theme::{Colour, Theme};

/// Groups of bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// The title above the plot.
    pub title: String,
    /// The label of the x-axis.
    pub x_label: String,
    /// The label of the y-axis.
    pub y_label: String,
    /// The names of the groups, from left to right.
    pub groups: Vec<String>,
    /// The series: each has one bar in every group.
    pub series: Vec<BarSeries>,
    /// Whether each group has its own colour, rather than each series.
    pub by_group: bool,
}

/// One bar in every group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarSeries {
    /// Its name in the legend.
    pub name: String,
    /// The value in each group; NaN has no bar.
    pub values: Vec<f64>,
    /// For each group, the ends of the interval around its value.
    pub spread: Option<Vec<(f64, f64)>>,
}

impl Bars {
    /// Draws the bars, from zero.
    ///
    /// # Errors
    /// If no value can be shown, a series lacks a value for a group, or the size leaves no space.
    pub fn draw(&self, theme: Theme, size: Size) -> Result<Svg, PlotError> {
        self.check()?;
        let values = self.series.iter().flat_map(|series| series.values.iter().copied());
        let values = span(values).ok_or_else(|| PlotError::nothing(&self.title))?;
        let spreads = self.series.iter().flat_map(|series| series.spread.iter().flatten());
        let ends = spreads.flat_map(|&(low, high)| [low, high]);
        let (low, high) = span([values.0, values.1, 0.0].into_iter().chain(ends)).expect("zero is a value");
        let range = exact((low, high));
        let air = (range.end - range.start) * 0.05;
        let from = if low < 0.0 { range.start - air } else { 0.0 };
        let to = if high > 0.0 { range.end + air } else { 0.0 };
        // A plot of zeros still needs a range.
        let range = if from < to { from..to } else { 0.0..1.0 };

        let keys = self.series.iter().enumerate().filter(|_| !self.by_group).map(|(idx, series)| {
            LegendEntry { name: &series.name, colour: theme.series(idx), swatch: Swatch::Box }
        });
        let frame = Frame {
            title: &self.title,
            x_label: &self.x_label,
            y_label: &self.y_label,
            legend: keys.collect(),
            bottom: Axis::names(&self.groups),
            left: Axis::Values(range),
            right_px: 0.0,
        };
        draw_svg(&self.title, theme, size, |canvas| {
            let plane = frame.draw(canvas)?;
            for (idx, series) in self.series.iter().enumerate() {
                let colour = |group: usize| theme.series(if self.by_group { group } else { idx });
                series.draw(canvas, &plane, colour, (idx, self.series.len()));
            }
            if low < 0.0 {
                let (_, zero) = plane.at(0.0, 0.0);
                canvas.line(&[(plane.left, zero), (plane.right, zero)], theme.soft_ink(), 1.0);
            }
            Ok(())
        })
    }

    fn check(&self) -> Result<(), PlotError> {
        let n_groups = self.groups.len();
        for series in &self.series {
            let lengths = [Some(series.values.len()), series.spread.as_ref().map(Vec::len)];
            if let Some(length) = lengths.into_iter().flatten().find(|&length| length != n_groups) {
                let message = format!("bars \"{}\": {length} values for {n_groups} groups", series.name);
                return Err(PlotError::uneven(&self.title, message));
            }
        }
        Ok(())
    }
}

/// The part of a group's width that its bars fill.
const FILLED: f64 = 0.76;

impl BarSeries {
    fn draw(
        &self,
        canvas: &Canvas<'_>,
        plane: &Plane,
        colour: impl Fn(usize) -> Colour,
        (idx, n_series): (usize, usize),
    ) {
        let width = FILLED / n_series as f64;
        for (group, &value) in self.values.iter().enumerate().filter(|(_, value)| is_shown(**value)) {
            let from = group as f64 + (1.0 - FILLED) / 2.0 + idx as f64 * width;
            let (one, other) = (plane.at(from, 0.0), plane.at(from + width, value));
            // Bars of one group are separated if they are wide enough.
            let gap = if n_series > 1 && other.0 - one.0 > 6.0 { 1.0 } else { 0.0 };
            canvas.rect(one, (other.0 - gap, other.1), colour(group));
            let spread = self.spread.as_ref().map(|spread| spread[group]);
            if let Some((low, high)) = spread.filter(|&(low, high)| is_shown(low) && is_shown(high)) {
                let middle = (one.0 + other.0 - gap) / 2.0;
                let (_, low) = plane.at(0.0, low);
                let (_, high) = plane.at(0.0, high);
                whisker(canvas, middle, (low, high), (other.0 - one.0).min(10.0) / 2.0);
            }
        }
    }
}

/// A vertical line with ends, between two heights.
fn whisker(canvas: &Canvas<'_>, middle: f64, (low, high): (f64, f64), half: f64) {
    let ink = canvas.theme.ink();
    canvas.line(&[(middle, low), (middle, high)], ink, 1.3);
    for end in [low, high] {
        canvas.line(&[(middle - half, end), (middle + half, end)], ink, 1.3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(series: &[&[f64]]) -> Bars {
        Bars {
            title: "Accuracy".into(),
            y_label: "accuracy".into(),
            groups: (0..series[0].len()).map(|at| format!("g{at}")).collect(),
            series: series
                .iter()
                .enumerate()
                .map(|(idx, values)| BarSeries {
                    name: format!("s{idx}"),
                    values: values.to_vec(),
                    spread: None,
                })
                .collect(),
            ..Bars::default()
        }
    }

    /// Left, top, width and height of the rectangles in this colour, without the swatch in the legend.
    fn rects(text: &str, colour: &str) -> Vec<[i32; 4]> {
        let of_colour = |row: &&str| row.starts_with("<rect") && row.contains(colour);
        let number = |row: &str, key: &str| {
            let (_, after) = row.split_once(&format!(" {key}=\"")).unwrap();
            after.split_once('"').unwrap().0.parse().unwrap()
        };
        let sides = |row: &str| ["x", "y", "width", "height"].map(|key| number(row, key));
        text.lines().filter(of_colour).skip(1).map(sides).collect()
    }

    #[test]
    fn a_bar_is_as_high_as_its_value() {
        let svg = bars(&[&[1.0, 2.0, 4.0]]).draw(Theme::Light, Size::default()).unwrap();
        let found = rects(svg.as_str(), "#0072B2");
        let heights: Vec<_> = found.iter().map(|rect| rect[3]).collect();
        assert_eq!(found.len(), 3);
        assert!(
            (heights[1] - 2 * heights[0]).abs() <= 3 && (heights[2] - 4 * heights[0]).abs() <= 5,
            "{heights:?}"
        );
        let feet: Vec<_> = found.iter().map(|rect| rect[1] + rect[3]).collect();
        assert!(feet.iter().all(|foot| *foot == feet[0]), "{feet:?}");
    }

    #[test]
    fn the_pixels_of_a_bar_have_its_colour() {
        for theme in [Theme::Light, Theme::Dark] {
            let svg = bars(&[&[1.0, 2.0], &[2.0, 1.0]]).draw(theme, Size::default()).unwrap();
            let png = svg.png(2).unwrap();
            let pixmap = resvg::tiny_skia::Pixmap::decode_png(&png).unwrap();
            assert_eq!((pixmap.width(), pixmap.height()), (1440, 880));
            for (idx, colour) in ["#0072B2", "#D55E00"].iter().enumerate() {
                for [left, top, width, height] in rects(svg.as_str(), colour) {
                    let at = |from: i32, length: i32| ((from + length / 2) / 5) as u32;
                    let pixel = pixmap.pixel(at(left, width), at(top, height)).unwrap();
                    let found = Colour { red: pixel.red(), green: pixel.green(), blue: pixel.blue() };
                    assert_eq!(found, theme.series(idx));
                }
            }
        }
    }

    #[test]
    fn groups_can_have_colours_of_their_own() {
        let mut alone = bars(&[&[1.0, 2.0]]);
        let boxes = |bars: &Bars, colour: &str| {
            let svg = bars.draw(Theme::Light, Size::default()).unwrap();
            svg.as_str().lines().filter(|row| row.starts_with("<rect") && row.contains(colour)).count()
        };
        // Two bars and the box of the legend.
        assert_eq!((boxes(&alone, "#0072B2"), boxes(&alone, "#D55E00")), (3, 0));
        alone.by_group = true;
        assert_eq!((boxes(&alone, "#0072B2"), boxes(&alone, "#D55E00")), (1, 1));
    }

    #[test]
    fn negative_bars_go_down_and_gaps_stay_empty() {
        let svg = bars(&[&[-1.0, f64::NAN, 1.0]]).draw(Theme::Light, Size::default()).unwrap();
        let found = rects(svg.as_str(), "#0072B2");
        assert_eq!(found.len(), 2);
        let (goes_down, stands) = (found[0], found[1]);
        assert!((goes_down[1] - stands[1] - stands[3]).abs() <= 1, "{found:?}");
        assert!(!svg.as_str().contains("NaN"));
    }

    #[test]
    fn a_spread_is_three_lines() {
        let mut bars = bars(&[&[1.0, 2.0]]);
        let count = |bars: &Bars| {
            let svg = bars.draw(Theme::Light, Size::default()).unwrap();
            svg.as_str().matches("stroke=\"#1F2328\"").count()
        };
        assert_eq!(count(&bars), 0);
        bars.series[0].spread = Some(vec![(0.5, 1.5), (f64::NAN, 2.5)]);
        assert_eq!(count(&bars), 3);
    }

    #[test]
    fn unusable_data_are_errors_and_not_panics() {
        let draw = |bars: &Bars| bars.draw(Theme::Light, Size::default()).map(|_| ());
        assert_eq!(draw(&Bars::default()), Err(PlotError::nothing("")));
        assert_eq!(draw(&bars(&[&[f64::NAN]])), Err(PlotError::nothing("Accuracy")));
        let message = "bars \"s1\": 2 values for 1 groups";
        assert_eq!(draw(&bars(&[&[1.0], &[1.0, 2.0]])), Err(PlotError::uneven("Accuracy", message)));
        assert_eq!(draw(&bars(&[&[0.0, 0.0]])), Ok(()));
        assert_eq!(draw(&bars(&[&[-5.0]])), Ok(()));
    }
}
