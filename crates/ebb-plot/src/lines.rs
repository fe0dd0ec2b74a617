//! Line charts with bands: metrics over rounds.

use crate::axis::{exact, is_shown, span, with_padding};
use crate::canvas::{Canvas, draw_svg};
use crate::error::PlotError;
use crate::frame::{Axis, Frame, LegendEntry, Marker, Plane, Swatch};
use crate::svg::{Size, Svg};
use crate::theme::{Colour, Theme};

/// Several lines with common axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// The title above the plot.
    pub title: String,
    /// The label of the x-axis.
    pub x_label: String,
    /// The label of the y-axis.
    pub y_label: String,
    /// The lines; each has its own colour and markers.
    pub series: Vec<Series>,
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// The points, from left to right; a point that is not finite is a gap.
    pub points: Vec<(f64, f64)>,
    /// For each point, the ends of the interval around its value.
    pub band: Option<Vec<(f64, f64)>>,
}

impl Lines {
    /// Draws the lines.
    ///
    /// # Errors
    /// If no point can be shown, a band and its line differ in length, or the size leaves no space.
    pub fn draw(&self, theme: Theme, size: Size) -> Result<Svg, PlotError> {
        self.check()?;
        let points = || self.series.iter().flat_map(|series| &series.points).copied();
        let points = || points().filter(|&(x, y)| is_shown(x) && is_shown(y));
        let bands =
            self.series.iter().flat_map(|series| series.bounds()).flat_map(|(_, low, high)| [low, high]);
        let across = span(points().map(|(x, _)| x)).ok_or_else(|| PlotError::nothing(&self.title))?;
        let along = span(points().map(|(_, y)| y).chain(bands)).expect("a point has both");

        let keys = self.series.iter().enumerate().map(|(idx, series)| LegendEntry {
            name: &series.name,
            colour: theme.series(idx),
            swatch: Swatch::Line(self.marker(idx)),
        });
        let frame = Frame {
            title: &self.title,
            x_label: &self.x_label,
            y_label: &self.y_label,
            legend: keys.collect(),
            bottom: Axis::of(points().map(|(x, _)| x), exact(across)),
            left: Axis::Values(with_padding(along, 0.05)),
            right_px: 0.0,
        };
        draw_svg(&self.title, theme, size, |canvas| {
            let plane = frame.draw(canvas)?;
            // Bands lie below all lines.
            for (idx, series) in self.series.iter().enumerate() {
                series.draw_band(canvas, &plane, theme.series(idx));
            }
            for (idx, series) in self.series.iter().enumerate() {
                series.draw_line(canvas, &plane, theme.series(idx));
                if let Some(marker) = self.marker(idx) {
                    let shift = idx as f64 / self.series.len() as f64;
                    series.draw_markers(canvas, &plane, theme.series(idx), marker, shift);
                }
            }
            Ok(())
        })
    }

    fn check(&self) -> Result<(), PlotError> {
        for series in &self.series {
            let (n_points, name) = (series.points.len(), &series.name);
            if let Some(band) = series.band.as_ref().filter(|band| band.len() != n_points) {
                let message =
                    format!("line \"{name}\" has {n_points} points, and its band has {} values", band.len());
                return Err(PlotError::uneven(&self.title, message));
            }
        }
        Ok(())
    }

    /// A line alone needs no markers.
    fn marker(&self, idx: usize) -> Option<Marker> {
        (self.series.len() > 1).then_some(Marker(idx))
    }
}

/// About this many markers stand on a line without gaps.
const N_MARKERS: usize = 7;

impl Series {
    /// The points of the band that can be shown: x, low, high.
    fn bounds(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let band = self.band.iter().flatten();
        self.points.iter().zip(band).map(|(&(x, _), &(low, high))| (x, low, high)).filter(in_band)
    }

    fn draw_band(&self, canvas: &Canvas<'_>, plane: &Plane, colour: Colour) {
        let Some(band) = &self.band else { return };
        let all: Vec<_> =
            self.points.iter().zip(band).map(|(&(x, _), &(low, high))| (x, low, high)).collect();
        for run in all.split(|bounds| !in_band(bounds)).filter(|run| run.len() > 1) {
            let lower = run.iter().map(|&(x, low, _)| plane.at(x, low));
            let upper = run.iter().rev().map(|&(x, _, high)| plane.at(x, high));
            canvas.polygon(&lower.chain(upper).collect::<Vec<_>>(), colour, 0.18);
        }
    }

    fn draw_line(&self, canvas: &Canvas<'_>, plane: &Plane, colour: Colour) {
        for run in self.points.split(|&(x, y)| !is_shown(x) || !is_shown(y)) {
            let places: Vec<_> = run.iter().map(|&(x, y)| plane.at(x, y)).collect();
            match places.as_slice() {
                [] => {}
                // A point between two gaps has no line.
                [alone] => canvas.circle(*alone, 2.5, colour),
                places => canvas.line(places, colour, 2.0),
            }
        }
    }

    /// Markers stand evenly along the points, at different places for each line, so that lines that coincide
    /// still show theirs.
    fn draw_markers(&self, canvas: &Canvas<'_>, plane: &Plane, colour: Colour, marker: Marker, shift: f64) {
        let step = self.points.len().div_ceil(N_MARKERS).max(1);
        let first = (shift * step as f64) as usize;
        for &(x, y) in self.points.iter().skip(first).step_by(step) {
            if is_shown(x) && is_shown(y) {
                marker.draw(canvas, plane.at(x, y), colour);
            }
        }
    }
}

fn in_band(&(x, low, high): &(f64, f64, f64)) -> bool {
    is_shown(x) && is_shown(low) && is_shown(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: f64 = f64::NAN;

    fn lines(values: &[&[f64]]) -> Lines {
        let series = values.iter().enumerate().map(|(idx, values)| Series {
            name: format!("line {idx}"),
            points: values.iter().enumerate().map(|(at, &y)| (at as f64, y)).collect(),
            band: None,
        });
        Lines {
            title: "Loss".into(),
            x_label: "round".into(),
            y_label: "loss".into(),
            series: series.collect(),
        }
    }

    fn drawn(lines: &Lines) -> String {
        let svg = lines.draw(Theme::Light, Size::default()).unwrap();
        assert!(!svg.as_str().contains("NaN") && !svg.as_str().contains("inf"), "{}", svg.as_str());
        svg.text
    }

    /// The polylines of the first line, without its swatch in the legend.
    fn runs(text: &str) -> Vec<Vec<(i32, i32)>> {
        let of_line = |row: &&str| row.starts_with("<polyline") && row.contains("stroke=\"#0072B2\"");
        let points = |row: &str| {
            let (_, points) = row.split_once("points=\"").unwrap();
            let (points, _) = points.split_once('"').unwrap();
            let point = |pair: &str| {
                let (x, y) = pair.split_once(',').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            };
            points.split_whitespace().map(point).collect()
        };
        text.lines().filter(of_line).skip(1).map(points).collect()
    }

    #[test]
    fn points_on_a_line_stay_on_a_line() {
        let found = runs(&drawn(&lines(&[&[1.0, 2.0, 3.0, 4.0]])));
        let [run] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(run.len(), 4);
        let (dx, dy) = (run[1].0 - run[0].0, run[1].1 - run[0].1);
        assert!(dx > 1000 && dy < -500, "{run:?}");
        for (at, point) in run.iter().enumerate() {
            let at = at as i32;
            assert!((point.0 - run[0].0 - at * dx).abs() <= 3 && (point.1 - run[0].1 - at * dy).abs() <= 3);
        }
    }

    #[test]
    fn values_that_are_not_finite_are_gaps() {
        let text = drawn(&lines(&[&[1.0, 2.0, GAP, 4.0, f64::INFINITY, 3.0, 2.0, 1.0]]));
        let lengths: Vec<_> = runs(&text).iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 3]);
        assert_eq!(text.matches("<circle").count(), 1);
    }

    #[test]
    fn lines_differ_by_their_markers_too() {
        let flat: Vec<_> = vec![1.0; 70];
        let text = drawn(&lines(&[&flat, &flat, &flat]));
        // Seven markers on the line and one in the legend; circles are not polygons.
        assert_eq!(text.matches("<circle").count(), 8);
        assert_eq!(text.matches("<polygon").count(), 16);
        for colour in ["#0072B2", "#D55E00", "#009E73"] {
            assert!(text.contains(colour), "{colour}");
        }
        assert!(!drawn(&lines(&[&flat])).contains("<circle"));
    }

    #[test]
    fn a_band_lies_around_its_line_and_widens_the_range() {
        let mut lines = lines(&[&[1.0, 1.0, 1.0]]);
        lines.series[0].band = Some(vec![(0.5, 1.5), (0.0, 2.0), (0.9, 1.1)]);
        let text = drawn(&lines);
        assert_eq!(text.matches("<polygon opacity=\"0.18\"").count(), 1);
        assert!(text.contains("\n2.0\n") && text.contains("\n0\n"), "{text}");
        lines.series[0].band = Some(vec![(0.5, 1.5), (GAP, 2.0), (0.9, 1.1)]);
        assert_eq!(drawn(&lines).matches("<polygon").count(), 0);
    }

    #[test]
    fn unusable_data_are_errors_and_not_panics() {
        let draw = |lines: &Lines| lines.draw(Theme::Dark, Size::default()).map(|_| ());
        let nothing = Err(PlotError::nothing("Loss"));
        assert_eq!(draw(&lines(&[])), nothing);
        assert_eq!(draw(&lines(&[&[], &[]])), nothing);
        assert_eq!(draw(&lines(&[&[GAP, f64::NEG_INFINITY]])), nothing);
        let mut uneven = lines(&[&[1.0, 2.0]]);
        uneven.series[0].band = Some(vec![(0.0, 1.0)]);
        let message = "line \"line 0\" has 2 points, and its band has 1 values";
        assert_eq!(draw(&uneven), Err(PlotError::uneven("Loss", message)));
        for values in [&[0.0][..], &[1e300, 1.0], &[-9e99, 9e99], &[1.0, 1.0 + 1e-15], &[1e-300, 0.0]] {
            drawn(&lines(&[values]));
        }
    }

    #[test]
    fn the_same_data_give_the_same_bytes_and_the_ground_matters() {
        let lines = lines(&[&[1.0, 2.0], &[2.0, 1.0]]);
        let draw = |theme| lines.draw(theme, Size::default()).unwrap();
        assert_eq!(draw(Theme::Light), draw(Theme::Light));
        assert_eq!(draw(Theme::Light).png(1), draw(Theme::Light).png(1));
        let corner = |theme| {
            let pixmap = draw(theme).pixels(1).unwrap();
            let pixel = pixmap.pixel(1, 1).unwrap();
            Colour { red: pixel.red(), green: pixel.green(), blue: pixel.blue() }
        };
        for theme in [Theme::Light, Theme::Dark] {
            assert_eq!(corner(theme), theme.background());
        }
        assert_ne!(corner(Theme::Light), corner(Theme::Dark));
    }

    #[test]
    fn words_become_pixels_without_a_font_of_the_system() {
        let dark = |title: &str| {
            let lines = Lines { title: title.into(), ..lines(&[&[1.0, 2.0]]) };
            let pixmap = lines.draw(Theme::Light, Size::default()).unwrap().pixels(1).unwrap();
            assert_eq!((pixmap.width(), pixmap.height()), (720, 440));
            let title = pixmap.pixels().iter().take(720 * 34);
            title.filter(|pixel| pixel.red() < 100).count()
        };
        assert!(dark("Accuracy of the model") > 200, "{}", dark("Accuracy of the model"));
        assert!(dark("Accuracy of the model") > dark("Ac") + 100);
    }
}
