//! Mosaic plots: the labels that each client holds.

use crate::canvas::{Canvas, TEXT_PX, anchor, draw_svg};
use crate::error::PlotError;
use crate::frame::{Axis, Frame, LegendEntry, Plane, Swatch};
use crate::svg::{Size, Svg};
use crate::theme::Theme;

use plotters::style::text_anchor::{HPos, VPos};

/// A column for each client, as wide as its share of all samples, divided by its labels' shares.
///
/// The area of a tile is thus proportional to its count. Labels have the same order in each column, from
/// below, and are named in their tiles where they fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mosaic {
    /// The title above the plot.
    pub title: String,
    /// The label of the x-axis.
    pub x_label: String,
    /// The label of the y-axis.
    pub y_label: String,
    /// The names of the clients, from left to right.
    pub clients: Vec<String>,
    /// The names of the labels, from below.
    pub labels: Vec<String>,
    /// For each client, its number of samples of each label.
    pub counts: Vec<Vec<u64>>,
}

impl Mosaic {
    /// Draws the mosaic.
    ///
    /// # Errors
    /// If no client has samples, the counts do not fit their names, or the size leaves no space.
    pub fn draw(&self, theme: Theme, size: Size) -> Result<Svg, PlotError> {
        self.check()?;
        let sizes: Vec<f64> =
            self.counts.iter().map(|counts| counts.iter().map(|&count| count as f64).sum()).collect();
        let total: f64 = sizes.iter().sum();
        if total <= 0.0 {
            return Err(PlotError::nothing(&self.title));
        }
        let mut edges = vec![0.0];
        edges.extend(sizes.iter().scan(0.0, |sum, size| {
            *sum += size / total;
            Some(*sum)
        }));
        let keys = self.labels.iter().enumerate().map(|(idx, name)| LegendEntry {
            name,
            colour: theme.series(idx),
            swatch: Swatch::Box,
        });
        let frame = Frame {
            title: &self.title,
            x_label: &self.x_label,
            y_label: &self.y_label,
            legend: keys.collect(),
            bottom: Axis::Names {
                names: self.clients.iter().map(String::as_str).collect(),
                centres: edges.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect(),
                range: 0.0..1.0,
            },
            left: Axis::Values(0.0..1.0),
            right_px: 0.0,
        };
        draw_svg(&self.title, theme, size, |canvas| {
            let plane = frame.draw(canvas)?;
            for (counts, (edges, size)) in self.counts.iter().zip(edges.windows(2).zip(&sizes)) {
                if *size > 0.0 {
                    self.draw_column(canvas, &plane, (edges[0], edges[1]), counts, *size);
                }
            }
            Ok(())
        })
    }

    fn check(&self) -> Result<(), PlotError> {
        let uneven = |message: String| Err(PlotError::uneven(&self.title, message));
        if self.counts.len() != self.clients.len() {
            return uneven(format!(
                "counts of {} clients for {} names",
                self.counts.len(),
                self.clients.len()
            ));
        }
        let n_labels = self.labels.len();
        match self.counts.iter().zip(&self.clients).find(|(counts, _)| counts.len() != n_labels) {
            Some((counts, name)) => {
                uneven(format!("client \"{name}\" has {} counts for {n_labels} labels", counts.len()))
            }
            None => Ok(()),
        }
    }

    fn draw_column(
        &self,
        canvas: &Canvas<'_>,
        plane: &Plane,
        (from, to): (f64, f64),
        counts: &[u64],
        size: f64,
    ) {
        let (left, right) = (plane.at(from, 0.0).0, plane.at(to, 0.0).0);
        // Wide columns are separated by whole pixels; narrow ones would vanish in the gaps.
        let (left, right) =
            if right - left >= 4.0 { (left.round(), right.round() - 1.0) } else { (left, right) };
        let mut below = 0.0;
        for (idx, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (_, bottom) = plane.at(0.0, below / size);
            below += count as f64;
            let (_, top) = plane.at(0.0, below / size);
            let colour = canvas.theme.series(idx);
            // Each tile reaches to the top and the next one covers it, so that no background shows between
            // them.
            canvas.rect((left, bottom), (right, plane.top), colour);
            let name = &self.labels[idx];
            if bottom - top >= TEXT_PX + 1.0 && right - left >= canvas.width_of(name, TEXT_PX) + 2.0 {
                let middle = ((left + right) / 2.0, (top + bottom) / 2.0);
                canvas.text(name, middle, TEXT_PX, colour.readable(), anchor(HPos::Center, VPos::Center));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mosaic(counts: &[&[u64]]) -> Mosaic {
        Mosaic {
            title: "Who holds what".into(),
            x_label: "client".into(),
            y_label: "share".into(),
            clients: (0..counts.len()).map(|at| format!("c{at}")).collect(),
            labels: (0..counts[0].len()).map(|at| format!("label {at}")).collect(),
            counts: counts.iter().map(|row| row.to_vec()).collect(),
        }
    }

    /// Width and height of the tiles in this colour, without the swatch in the legend.
    fn tiles(svg: &Svg, colour: &str) -> Vec<(i32, i32)> {
        let rows = svg.as_str().lines().filter(|row| row.starts_with("<rect") && row.contains(colour));
        let side = |row: &str, key: &str| {
            let (_, after) = row.split_once(&format!(" {key}=\"")).unwrap();
            after.split_once('"').unwrap().0.parse().unwrap()
        };
        rows.skip(1).map(|row| (side(row, "width"), side(row, "height"))).collect()
    }

    #[test]
    fn tiles_are_as_large_as_counts() {
        let svg = mosaic(&[&[30, 10], &[0, 80], &[0, 0]]).draw(Theme::Light, Size::default()).unwrap();
        let (first, second) = (tiles(&svg, "#0072B2"), tiles(&svg, "#D55E00"));
        assert_eq!((first.len(), second.len()), (1, 2));
        // The first client has a third of the samples, three quarters of them with the first label.
        assert!((2 * (first[0].0 + 10) - second[1].0 - 10).abs() <= 20, "{first:?} {second:?}");
        assert_eq!(first[0].1, second[1].1);
        assert!((4 * second[0].1 - first[0].1).abs() <= 20, "{first:?} {second:?}");
        assert_eq!(svg.as_str().matches("\nlabel 1\n").count(), 3);
    }

    #[test]
    fn many_clients_keep_few_names() {
        let rows: Vec<Vec<u64>> =
            (0..1000).map(|client| (0..10).map(|label| (client + label) % 7).collect()).collect();
        let rows: Vec<_> = rows.iter().map(Vec::as_slice).collect();
        let svg = mosaic(&rows).draw(Theme::Dark, Size::default()).unwrap();
        assert!(svg.as_str().matches("<text").count() < 60);
    }

    #[test]
    fn unusable_data_are_errors_and_not_panics() {
        let draw = |mosaic: &Mosaic| mosaic.draw(Theme::Dark, Size::default()).map(|_| ());
        assert_eq!(draw(&Mosaic::default()), Err(PlotError::nothing("")));
        assert_eq!(draw(&mosaic(&[&[0, 0]])), Err(PlotError::nothing("Who holds what")));
        let message = "client \"c1\" has 1 counts for 2 labels";
        assert_eq!(draw(&mosaic(&[&[1, 2], &[1]])), Err(PlotError::uneven("Who holds what", message)));
        let unnamed = Mosaic { clients: vec![], ..mosaic(&[&[1]]) };
        let message = "counts of 1 clients for 0 names";
        assert_eq!(draw(&unnamed), Err(PlotError::uneven("Who holds what", message)));
        assert_eq!(draw(&mosaic(&[&[u64::MAX, u64::MAX]])), Ok(()));
    }
}
