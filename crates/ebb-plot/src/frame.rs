//! The frame around the data: title, legend, axes and labels.

use std::ops::Range;

use plotters::coord::CoordTranslate;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::style::text_anchor::{HPos, VPos};

use crate::axis::{self, thinned, ticks};
use crate::canvas::{Canvas, Point, TEXT_PX, TITLE_PX, anchor, px_to_units, to_point, upward};
use crate::error::PlotError;
use crate::svg::Area;
use crate::theme::Colour;

const MARGIN: f64 = 14.0;
/// Space right of the data for half of the last tick's label.
const RIGHT_MARGIN: f64 = 26.0;
const TITLE_LINE: f64 = 22.0;
const LEGEND_LINE: f64 = 19.0;
const MAX_LEGEND_LINES: usize = 4;
const SWATCH: f64 = 24.0;
const BOX: f64 = 12.0;
const AXIS_TITLE: f64 = 22.0;
const TICK: f64 = 5.0;
/// Height of a line of a label.
const NAME_LINE: f64 = 15.0;
/// The greatest width of a label at an axis, as a share of the plot's width.
const MAX_NAME: f64 = 0.28;
const MAX_UPWARD_NAME_PX: f64 = 110.0;
const MIN_WIDTH: f64 = 60.0;
const MIN_HEIGHT: f64 = 40.0;

pub(crate) struct Frame<'p> {
    pub(crate) title: &'p str,
    pub(crate) x_label: &'p str,
    pub(crate) y_label: &'p str,
    pub(crate) legend: Vec<LegendEntry<'p>>,
    pub(crate) bottom: Axis<'p>,
    pub(crate) left: Axis<'p>,
    /// Space kept free right of the data.
    pub(crate) right_px: f64,
}

/// One entry of the legend.
pub(crate) struct LegendEntry<'p> {
    pub(crate) name: &'p str,
    pub(crate) colour: Colour,
    pub(crate) swatch: Swatch,
}

#[derive(Clone, Copy)]
pub(crate) enum Swatch {
    Line(Option<Marker>),
    Box,
}

pub(crate) enum Axis<'p> {
    /// A range of values.
    Values(Range<f64>),
    /// A range of whole numbers.
    Integers(Range<f64>),
    /// Labels at places of a range.
    Names { names: Vec<&'p str>, centres: Vec<f64>, range: Range<f64> },
}

/// The plotting area with its two axes.
pub(crate) struct Plane {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
    coordinates: Cartesian2d<RangedCoordf64, RangedCoordf64>,
}

impl Plane {
    /// The place of a value, in pixels.
    pub(crate) fn at(&self, x: f64, y: f64) -> Point {
        to_point(self.coordinates.translate(&(x, y)))
    }
}

impl<'p> Axis<'p> {
    /// A range whose ticks are whole numbers if all values are.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>, range: Range<f64>) -> Self {
        // Only a narrow range would have ticks between whole numbers.
        let whole = range.end - range.start < 20.0 && values.into_iter().all(|value| value.fract() == 0.0);
        if whole { Axis::Integers(range) } else { Axis::Values(range) }
    }

    /// Labels in a row: the i-th covers i to i + 1.
    pub(crate) fn names(names: impl IntoIterator<Item = &'p String>) -> Self {
        let names: Vec<_> = names.into_iter().map(String::as_str).collect();
        let centres = (0..names.len()).map(|idx| idx as f64 + 0.5).collect();
        let range = 0.0..names.len() as f64;
        Axis::Names { names, centres, range }
    }

    fn range(&self) -> &Range<f64> {
        match self {
            Axis::Values(range) | Axis::Integers(range) | Axis::Names { range, .. } => range,
        }
    }

    fn ticks(&self, at_most: usize) -> Vec<(f64, String)> {
        match self {
            Axis::Values(range) => ticks(range, at_most),
            Axis::Integers(range) => {
                let whole = |(value, _): &(f64, String)| (value - value.round()).abs() < 1e-6;
                let ticks = ticks(range, at_most).into_iter().filter(whole);
                ticks.map(|(value, _)| (value, format!("{value:.0}"))).collect()
            }
            Axis::Names { names, centres, .. } => {
                centres.iter().copied().zip(names.iter().map(|&name| name.to_owned())).collect()
            }
        }
    }
}

/// The labels below the plotting area.
struct BottomTicks {
    ticks: Vec<(f64, String)>,
    upward: bool,
    height: f64,
}

impl Frame<'_> {
    /// Draws the frame and returns the plotting area.
    pub(crate) fn draw(&self, canvas: &Canvas<'_>) -> Result<Plane, PlotError> {
        let mut top = self.draw_title(canvas, MARGIN);
        top = self.draw_legend(canvas, top) + 12.0;

        let besides = self.left_ticks(canvas, canvas.height - top - 2.0 * AXIS_TITLE - MARGIN);
        let name_width = canvas.widest(besides.iter().map(|(_, name)| name.as_str()));
        let left = MARGIN + axis_title(self.y_label) + name_width + TICK + 4.0;
        let right = canvas.width - RIGHT_MARGIN - self.right_px;
        let bottom_ticks = self.bottom_ticks(canvas, right - left);
        let bottom = canvas.height - MARGIN - axis_title(self.x_label) - bottom_ticks.height - TICK;
        if right - left < MIN_WIDTH || bottom - top < MIN_HEIGHT {
            return Err(PlotError::TooSmall {
                title: self.title.to_owned(),
                width_px: canvas.width as u32,
                height_px: canvas.height as u32,
            });
        }
        let plane = self.plane(left.round(), top.round(), right.round(), bottom.round());
        let (across, along) = (self.bottom.range(), self.left.range());
        let down = match self.left {
            Axis::Names { .. } => (along.start, along.end),
            _ => (along.end, along.start),
        };
        canvas.data.set(Some(Area {
            left_px: plane.left,
            top_px: plane.top,
            right_px: plane.right,
            bottom_px: plane.bottom,
            across: (across.start, across.end),
            down,
        }));
        self.draw_left(canvas, &plane, &besides);
        self.draw_bottom(canvas, &plane, &bottom_ticks);
        self.draw_axis_titles(canvas, &plane);
        Ok(plane)
    }

    fn plane(&self, left: f64, top: f64, right: f64, bottom: f64) -> Plane {
        let across = px_to_units(left)..px_to_units(right);
        // Values grow upwards; labels are listed from above.
        let along = match self.left {
            Axis::Names { .. } => px_to_units(top)..px_to_units(bottom),
            _ => px_to_units(bottom)..px_to_units(top),
        };
        let coordinates =
            Cartesian2d::new(self.bottom.range().clone(), self.left.range().clone(), (across, along));
        Plane { left, top, right, bottom, coordinates }
    }

    fn draw_title(&self, canvas: &Canvas<'_>, mut top: f64) -> f64 {
        for line in title_lines(canvas, self.title) {
            canvas.text(&line, (MARGIN, top), TITLE_PX, canvas.theme.ink(), anchor(HPos::Left, VPos::Top));
            top += TITLE_LINE;
        }
        top
    }

    fn draw_legend(&self, canvas: &Canvas<'_>, top: f64) -> f64 {
        let keys: Vec<_> = self.legend.iter().filter(|key| !key.name.is_empty()).collect();
        if keys.is_empty() {
            return top;
        }
        let width = canvas.width - 2.0 * MARGIN;
        let (mut across, mut line) = (0.0, 0);
        for (at, key) in keys.iter().enumerate() {
            let name = canvas.fit(key.name, TEXT_PX, width * 0.6);
            let taken = key.swatch.width() + 6.0 + canvas.width_of(&name, TEXT_PX) + 14.0;
            let more = format!("and {} more", keys.len() - at);
            // The last line needs space to name how many entries are left out.
            let is_last = at + 1 == keys.len();
            let kept =
                if line + 1 == MAX_LEGEND_LINES && !is_last { canvas.width_of(&more, TEXT_PX) } else { 0.0 };
            if across + taken + kept > width && across > 0.0 {
                if line + 1 == MAX_LEGEND_LINES {
                    let at = (MARGIN + across, top + (line as f64 + 0.5) * LEGEND_LINE);
                    canvas.text(
                        &more,
                        at,
                        TEXT_PX,
                        canvas.theme.soft_ink(),
                        anchor(HPos::Left, VPos::Center),
                    );
                    break;
                }
                (across, line) = (0.0, line + 1);
            }
            let middle = top + (line as f64 + 0.5) * LEGEND_LINE;
            key.draw(canvas, (MARGIN + across, middle), &name);
            across += taken;
        }
        top + (line + 1) as f64 * LEGEND_LINE
    }

    fn left_ticks(&self, canvas: &Canvas<'_>, height: f64) -> Vec<(f64, String)> {
        let ticks = self.left.ticks((height / 45.0).clamp(2.0, 9.0) as usize);
        match self.left {
            Axis::Names { .. } => {
                let step = thinned(ticks.len(), height / (TEXT_PX + 3.0));
                let kept = ticks.into_iter().step_by(step);
                kept.map(|(at, name)| (at, canvas.fit(&name, TEXT_PX, canvas.width * MAX_NAME))).collect()
            }
            _ => ticks,
        }
    }

    fn bottom_ticks(&self, canvas: &Canvas<'_>, width: f64) -> BottomTicks {
        let flat = |ticks| BottomTicks { ticks, upward: false, height: TEXT_PX + 5.0 };
        let widest = |ticks: &[(f64, String)]| canvas.widest(ticks.iter().map(|(_, name)| name.as_str()));
        let Axis::Names { centres, range, .. } = &self.bottom else {
            let mut sets = (2..=12).rev().map(|at_most| self.bottom.ticks(at_most));
            let fits = |ticks: &Vec<_>| (widest(ticks) + 16.0) * ticks.len() as f64 <= width;
            return flat(sets.find(fits).unwrap_or_else(|| self.bottom.ticks(1)));
        };
        let ticks = self.bottom.ticks(usize::MAX);
        if ticks.is_empty() || ticks.iter().all(|(_, name)| name.is_empty()) {
            return BottomTicks { ticks: Vec::new(), upward: false, height: 0.0 };
        }
        let px = |at: f64| (at - range.start) / (range.end - range.start) * width;
        let least = centres.windows(2).map(|pair| px(pair[1]) - px(pair[0])).fold(width, f64::min);
        let name_width = widest(&ticks);
        if name_width + 8.0 <= least {
            return flat(ticks);
        }
        let broken: Vec<_> = ticks.iter().map(|(at, name)| (*at, in_two_lines(name))).collect();
        if canvas.widest(broken.iter().flat_map(|(_, name)| name.lines())) + 8.0 <= least {
            return BottomTicks { ticks: broken, upward: false, height: NAME_LINE + TEXT_PX + 5.0 };
        }
        if least >= TEXT_PX + 3.0 {
            let fitted = ticks
                .into_iter()
                .map(|(at, name)| (at, canvas.fit(&name, TEXT_PX, MAX_UPWARD_NAME_PX)))
                .collect::<Vec<_>>();
            let height = widest(&fitted) + 3.0;
            return BottomTicks { ticks: fitted, upward: true, height };
        }
        // Where labels would overlap, every n-th is kept; at uneven places, those that have space.
        let step = thinned(ticks.len(), width / (name_width + 10.0));
        let mut taken_to = f64::NEG_INFINITY;
        let apart = |(at, name): &(f64, String)| {
            let half = canvas.width_of(name, TEXT_PX) / 2.0 + 3.0;
            let free = px(*at) - half >= taken_to;
            if free {
                taken_to = px(*at) + half;
            }
            free
        };
        flat(ticks.into_iter().step_by(step).filter(apart).collect())
    }

    fn draw_left(&self, canvas: &Canvas<'_>, plane: &Plane, ticks: &[(f64, String)]) {
        let theme = canvas.theme;
        for (value, name) in ticks {
            let (_, y) = plane.at(self.bottom.range().start, *value);
            if !matches!(self.left, Axis::Names { .. }) {
                canvas.line(&[(plane.left, y), (plane.right, y)], theme.grid(), 1.0);
            }
            let at = (plane.left - TICK - 2.0, y);
            canvas.text(name, at, TEXT_PX, theme.soft_ink(), anchor(HPos::Right, VPos::Center));
        }
    }

    fn draw_bottom(&self, canvas: &Canvas<'_>, plane: &Plane, bottom_ticks: &BottomTicks) {
        let theme = canvas.theme;
        canvas.line(&[(plane.left, plane.bottom), (plane.right, plane.bottom)], theme.soft_ink(), 1.0);
        let way = if bottom_ticks.upward {
            upward(HPos::Right, VPos::Center)
        } else {
            anchor(HPos::Center, VPos::Top)
        };
        for (value, name) in &bottom_ticks.ticks {
            let (x, _) = plane.at(*value, self.left.range().start);
            canvas.line(&[(x, plane.bottom), (x, plane.bottom + TICK - 1.0)], theme.soft_ink(), 1.0);
            let y = plane.bottom + TICK + if bottom_ticks.upward { 1.0 } else { 3.0 };
            for (at, line) in name.lines().enumerate() {
                canvas.text(line, (x, y + NAME_LINE * at as f64), TEXT_PX, theme.soft_ink(), way);
            }
        }
    }

    fn draw_axis_titles(&self, canvas: &Canvas<'_>, plane: &Plane) {
        let ink = canvas.theme.ink();
        if !self.x_label.is_empty() {
            let name = canvas.fit(self.x_label, TEXT_PX, plane.right - plane.left);
            let at = ((plane.left + plane.right) / 2.0, canvas.height - MARGIN - TEXT_PX);
            canvas.text(&name, at, TEXT_PX, ink, anchor(HPos::Center, VPos::Top));
        }
        if !self.y_label.is_empty() {
            let name = canvas.fit(self.y_label, TEXT_PX, plane.bottom - plane.top);
            let at = (MARGIN + TEXT_PX / 2.0, (plane.top + plane.bottom) / 2.0);
            canvas.text(&name, at, TEXT_PX, ink, upward(HPos::Center, VPos::Center));
        }
    }
}

impl Swatch {
    fn width(self) -> f64 {
        match self {
            Swatch::Line(_) => SWATCH,
            Swatch::Box => BOX,
        }
    }
}

impl LegendEntry<'_> {
    fn draw(&self, canvas: &Canvas<'_>, (left, middle): Point, name: &str) {
        match self.swatch {
            Swatch::Line(marker) => {
                canvas.line(&[(left, middle), (left + SWATCH, middle)], self.colour, 2.0);
                if let Some(marker) = marker {
                    marker.draw(canvas, (left + SWATCH / 2.0, middle), self.colour);
                }
            }
            Swatch::Box => {
                let half = BOX / 2.0;
                canvas.rect((left, middle - half), (left + BOX, middle + half), self.colour);
            }
        }
        let at = (left + self.swatch.width() + 6.0, middle);
        canvas.text(name, at, TEXT_PX, canvas.theme.ink(), anchor(HPos::Left, VPos::Center));
    }
}

/// Markers that distinguish lines without colour.
#[derive(Clone, Copy)]
pub(crate) struct Marker(pub(crate) usize);

impl Marker {
    pub(crate) fn draw(self, canvas: &Canvas<'_>, (x, y): Point, colour: Colour) {
        let outline: &[Point] = match self.0 % 6 {
            0 => return canvas.circle((x, y), 4.0, colour),
            1 => &[(-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)],
            2 => &[(0.0, -5.0), (4.6, 3.5), (-4.6, 3.5)],
            3 => &[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)],
            4 => &[(0.0, 5.0), (4.6, -3.5), (-4.6, -3.5)],
            _ => &[
                (-1.4, -5.0),
                (1.4, -5.0),
                (1.4, -1.4),
                (5.0, -1.4),
                (5.0, 1.4),
                (1.4, 1.4),
                (1.4, 5.0),
                (-1.4, 5.0),
                (-1.4, 1.4),
                (-5.0, 1.4),
                (-5.0, -1.4),
                (-1.4, -1.4),
            ],
        };
        let places: Vec<_> = outline.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
        canvas.polygon(&places, colour, 1.0);
    }
}

/// The height of an axis' title.
fn axis_title(label: &str) -> f64 {
    if label.is_empty() { 0.0 } else { AXIS_TITLE }
}

/// Breaks a long title between words; there are at most two lines.
fn title_lines(canvas: &Canvas<'_>, title: &str) -> Vec<String> {
    let width = canvas.width - 2.0 * MARGIN;
    let fits = |text: &str| canvas.width_of(text, TITLE_PX) <= width;
    if title.is_empty() {
        return Vec::new();
    }
    if fits(title) {
        return vec![title.to_owned()];
    }
    let mut breaks = title.char_indices().filter(|(_, letter)| *letter == ' ').map(|(at, _)| at);
    let first = breaks.rfind(|&at| fits(&title[..at]));
    match first {
        None => vec![canvas.fit(title, TITLE_PX, width)],
        Some(at) => vec![title[..at].to_owned(), canvas.fit(title[at..].trim_start(), TITLE_PX, width)],
    }
}

/// Breaks the label at the space nearest to its middle.
fn in_two_lines(name: &str) -> String {
    let spaces = name.match_indices(' ').map(|(at, _)| at);
    match spaces.min_by_key(|at| (2 * at).abs_diff(name.len())) {
        Some(at) => format!("{}\n{}", &name[..at], &name[at + 1..]),
        None => name.to_owned(),
    }
}

/// The ticks of a colour scale right of the data, and the width of their labels.
pub(crate) fn value_axis(canvas: &Canvas<'_>, range: &Range<f64>) -> (Vec<(f64, String)>, f64) {
    let ticks = axis::ticks(range, 6);
    let width = canvas.widest(ticks.iter().map(|(_, name)| name.as_str()));
    (ticks, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_no_ticks_between_them() {
        let names = |values: &[f64], range: Range<f64>| {
            Axis::of(values.iter().copied(), range)
                .ticks(6)
                .into_iter()
                .map(|(_, name)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&[0.0, 2.0], 0.0..2.0), ["0", "1", "2"]);
        assert_eq!(names(&[0.0, 0.5, 2.0], 0.0..2.0), ["0", "0.5", "1.0", "1.5", "2.0"]);
        assert_eq!(names(&[0.0, 4e6], 0.0..4e6), ["0", "1e6", "2e6", "3e6", "4e6"]);
    }
    use crate::canvas::draw_svg;
    use crate::svg::{Size, Svg};
    use crate::theme::Theme;

    fn frame<'p>(title: &'p str, bottom: Axis<'p>, keys: Vec<LegendEntry<'p>>) -> Frame<'p> {
        Frame {
            title,
            x_label: "across",
            y_label: "along",
            legend: keys,
            bottom,
            left: Axis::Values(0.0..1.0),
            right_px: 0.0,
        }
    }

    fn draw(frame: &Frame<'_>, size: Size) -> Result<(Svg, Vec<Point>), PlotError> {
        let mut corners = Vec::new();
        let svg = draw_svg(frame.title, Theme::Light, size, |canvas| {
            let plane = frame.draw(canvas)?;
            let (x, y) = (frame.bottom.range(), frame.left.range());
            corners = vec![plane.at(x.start, y.start), plane.at(x.end, y.end)];
            assert_eq!(corners, [(plane.left, plane.bottom), (plane.right, plane.top)]);
            Ok(())
        })?;
        Ok((svg, corners))
    }

    fn n_texts(svg: &Svg) -> usize {
        svg.as_str().matches("<text").count()
    }

    #[test]
    fn the_ends_of_the_ranges_are_the_corners_of_the_plane() {
        let (svg, corners) = draw(&frame("t", Axis::Values(0.0..5.0), vec![]), Size::default()).unwrap();
        assert!(corners[0].0 < corners[1].0 && corners[0].1 > corners[1].1);
        for text in ["\nt\n", "\nacross\n", "\nalong\n", "\n0.5\n"] {
            assert!(svg.as_str().contains(text), "{text}");
        }
    }

    #[test]
    fn few_names_are_horizontal_more_are_vertical_and_many_thin_out() {
        let names = |n: usize| (0..n).map(|at| format!("client {at}")).collect::<Vec<_>>();
        let texts = |n: usize| {
            let names = names(n);
            let (svg, _) = draw(&frame("", Axis::names(&names), vec![]), Size::default()).unwrap();
            // One rotated text is the axis' title.
            (n_texts(&svg), svg.as_str().matches("rotate(270").count() - 1)
        };
        let others = texts(1).0 - 1;
        assert_eq!(texts(5), (others + 5, 0));
        assert_eq!(texts(12), (others + 2 * 12, 0));
        assert_eq!(texts(30), (others + 30, 30));
        let (all, rotated) = texts(400);
        assert_eq!(rotated, 0);
        assert!((others + 4..others + 16).contains(&all), "{all}");
    }

    #[test]
    fn a_name_breaks_near_its_middle() {
        assert_eq!(in_two_lines("cyclic by day and night"), "cyclic by day\nand night");
        assert_eq!(in_two_lines("fedavg"), "fedavg");
    }

    #[test]
    fn a_legend_wraps_and_counts_what_it_leaves_out() {
        let colour = Theme::Light.series(0);
        let names: Vec<_> = (0..200).map(|at| format!("method number {at}")).collect();
        let keys = names.iter().map(|name| LegendEntry { name, colour, swatch: Swatch::Box }).collect();
        let (svg, corners) = draw(&frame("", Axis::Values(0.0..1.0), keys), Size::default()).unwrap();
        assert!(svg.as_str().contains(" more\n"));
        assert!(svg.as_str().contains("method number 3") && !svg.as_str().contains("method number 199"));
        assert!(corners[1].1 < 120.0, "{corners:?}");
    }

    #[test]
    fn a_long_title_takes_two_lines() {
        let title = "many words ".repeat(20);
        let (svg, _) = draw(&frame(&title, Axis::Values(0.0..1.0), vec![]), Size::default()).unwrap();
        assert_eq!(svg.as_str().matches("\nmany words").count(), 2);
        assert!(svg.as_str().contains("…\n"));
    }

    #[test]
    fn a_plot_that_is_too_small_is_refused() {
        let found = draw(&frame("t", Axis::Values(0.0..1.0), vec![]), Size { width_px: 90, height_px: 400 });
        assert_eq!(
            found.map(|_| ()),
            Err(PlotError::TooSmall { title: "t".into(), width_px: 90, height_px: 400 })
        );
    }
}
