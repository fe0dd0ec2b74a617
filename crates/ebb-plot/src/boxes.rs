//! Boxes: how values of several groups are spread.

use crate::axis::{shown, span, with_air};
use crate::canvas::{Canvas, picture};
use crate::error::PlotError;
use crate::frame::{Axis, Frame, Plane};
use crate::svg::{Size, Svg};
use crate::theme::{Colour, Theme};

/// A box for each group: the middle half of its values, their median, and whiskers to the farthest value within
/// one and a half times the box's height; what lies beyond is a dot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Boxes {
    /// What the picture shows.
    pub title: String,
    /// What the groups are.
    pub x_label: String,
    /// What the values are.
    pub y_label: String,
    /// The groups, from left to right.
    pub groups: Vec<Group>,
}

/// Values that share a box.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its values, in any order; what is not a number is left out.
    pub values: Vec<f64>,
}

impl Boxes {
    /// Draws them.
    ///
    /// # Errors
    /// When no value can be shown, or there is no room.
    pub fn draw(&self, theme: Theme, size: Size) -> Result<Svg, PlotError> {
        let values = self.groups.iter().flat_map(|group| group.values.iter().copied());
        let along = span(values).ok_or_else(|| PlotError::nothing(&self.title))?;
        let frame = Frame {
            title: &self.title,
            x_label: &self.x_label,
            y_label: &self.y_label,
            keys: Vec::new(),
            bottom: Axis::names(self.groups.iter().map(|group| &group.name)),
            left: Axis::Numbers(with_air(along, 0.06)),
            right_px: 0.0,
        };
        picture(&self.title, theme, size, |canvas| {
            let plane = frame.draw(canvas)?;
            for (idx, group) in self.groups.iter().enumerate() {
                if let Some(spread) = Spread::of(&group.values) {
                    spread.draw(canvas, &plane, idx as f64 + 0.5, theme.series(idx));
                }
            }
            Ok(())
        })
    }
}

#[derive(Debug, PartialEq)]
struct Spread {
    low: f64,
    first_quarter: f64,
    median: f64,
    third_quarter: f64,
    high: f64,
    beyond: Vec<f64>,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Self> {
        let mut values: Vec<_> = values.iter().copied().filter(|&value| shown(value)).collect();
        values.sort_by(f64::total_cmp);
        if values.is_empty() {
            return None;
        }
        let [first_quarter, median, third_quarter] = [0.25, 0.5, 0.75].map(|share| quantile(&values, share));
        let reach = 1.5 * (third_quarter - first_quarter);
        let near = first_quarter - reach..=third_quarter + reach;
        let (within, beyond): (Vec<_>, Vec<_>) = values.into_iter().partition(|value| near.contains(value));
        let low = within.first().copied().unwrap_or(first_quarter).min(first_quarter);
        let high = within.last().copied().unwrap_or(third_quarter).max(third_quarter);
        Some(Spread { low, first_quarter, median, third_quarter, high, beyond })
    }

    fn draw(&self, canvas: &Canvas<'_>, plane: &Plane, middle: f64, colour: Colour) {
        let height = |value| plane.at(middle, value).1;
        let (centre, _) = plane.at(middle, self.median);
        let (edge, _) = plane.at(middle - 0.3, self.median);
        let half = (centre - edge).min(34.0);
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
        canvas.glass((left, top), (right, bottom), colour, 0.3);
        canvas.line(&[(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], colour, 1.5);
        let median = height(self.median);
        canvas.line(&[(left, median), (right, median)], canvas.theme.ink(), 2.0);
        for value in &self.beyond {
            canvas.circle((centre, height(*value)), 2.5, colour);
        }
    }
}

/// The value below which a share of the sorted values lies; between two of them, as far as the share is.
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
        let found = Spread::of(&[9.0, 1.0, 2.0, f64::NAN, 3.0, 4.0]).unwrap();
        let expected = Spread {
            low: 1.0,
            first_quarter: 2.0,
            median: 3.0,
            third_quarter: 4.0,
            high: 4.0,
            beyond: vec![9.0],
        };
        assert_eq!(found, expected);
        assert_eq!(Spread::of(&[f64::NAN]), None);
        assert_eq!(quantile(&[1.0, 2.0], 0.5), 1.5);
        assert_eq!(quantile(&[7.0], 0.75), 7.0);
    }

    #[test]
    fn a_box_has_its_parts() {
        let group = |name: &str, values: &[f64]| Group { name: name.into(), values: values.to_vec() };
        let boxes = Boxes {
            title: "Delay".into(),
            groups: vec![
                group("fast", &[1.0, 2.0, 3.0, 4.0, 9.0]),
                group("silent", &[f64::NAN]),
                group("slow", &[5.0, 6.0, 7.0, 8.0]),
            ],
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
    fn errors_and_no_panics() {
        let draw = |values: &[f64]| {
            let groups = vec![Group { name: "g".into(), values: values.to_vec() }];
            Boxes { groups, ..Boxes::default() }.draw(Theme::Dark, Size::default()).map(|_| ())
        };
        assert_eq!(draw(&[]), Err(PlotError::nothing("")));
        assert_eq!(draw(&[f64::INFINITY]), Err(PlotError::nothing("")));
        assert_eq!(draw(&[0.0]), Ok(()));
        assert_eq!(draw(&[-9e99, 9e99, 0.0]), Ok(()));
    }
}
