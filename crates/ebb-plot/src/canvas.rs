//! The canvas of all plots: plotters' SVG backend, in tenths of a pixel.
//!
//! The backend has integer coordinates, in which a curve would have steps. A unit is therefore a tenth of a
//! pixel; the view box of the file scales it back.

use std::cell::Cell;
use std::sync::Once;

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Polygon, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontDesc, FontFamily, FontStyle, FontTransform, RGBAColor, ShapeStyle, register_font};

use crate::error::PlotError;
use crate::svg::{Area, FAMILY, Size, Svg, font};
use crate::theme::{Colour, Theme};

/// Units in a pixel.
const UNITS: f64 = 10.0;
/// The backend divides font sizes by this.
const FONT_UNITS: f64 = UNITS * 1.24;
const STRING: &str = "a string takes all that is written to it";

/// A place, in pixels from the left and from the top.
pub(crate) type Point = (f64, f64);

pub(crate) const TITLE_PX: f64 = 16.0;
pub(crate) const TEXT_PX: f64 = 12.0;

/// How a text is aligned to its place.
#[derive(Clone, Copy)]
pub(crate) struct Anchor {
    pub(crate) across: HPos,
    pub(crate) along: VPos,
    /// Reads upwards.
    pub(crate) upward: bool,
}

pub(crate) const fn anchor(across: HPos, along: VPos) -> Anchor {
    Anchor { across, along, upward: false }
}

pub(crate) const fn upward(across: HPos, along: VPos) -> Anchor {
    Anchor { across, along, upward: true }
}

pub(crate) struct Canvas<'s> {
    area: DrawingArea<SVGBackend<'s>, Shift>,
    pub(crate) theme: Theme,
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// The plotting area, once the frame is drawn.
    pub(crate) data: Cell<Option<Area>>,
}

/// Draws a plot of this size on the theme's background.
pub(crate) fn draw_svg(
    title: &str,
    theme: Theme,
    size: Size,
    draw: impl FnOnce(&Canvas<'_>) -> Result<(), PlotError>,
) -> Result<Svg, PlotError> {
    let size = size.times(1)?;
    measure_with_own_font();
    let units = (size.width_px * UNITS as u32, size.height_px * UNITS as u32);
    let mut drawn = String::new();
    let data;
    {
        let area = SVGBackend::with_string(&mut drawn, units).into_drawing_area();
        let (width, height) = (f64::from(size.width_px), f64::from(size.height_px));
        let canvas = Canvas { area, theme, width, height, data: Cell::new(None) };
        canvas.rect((0.0, 0.0), (canvas.width, canvas.height), theme.background());
        draw(&canvas)?;
        canvas.area.present().expect(STRING);
        data = canvas.data.get();
    }
    let (_, content) = drawn.split_once('\n').expect("the backend's first line opens the file");
    let text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" \
         stroke-linejoin=\"round\" role=\"img\" aria-label=\"{}\">\n{content}",
        size.width_px,
        size.height_px,
        units.0,
        units.1,
        escaped(title),
    );
    Ok(Svg { text, size, area: data })
}

impl Canvas<'_> {
    pub(crate) fn rect(&self, one: Point, other: Point, colour: Colour) {
        self.translucent_rect(one, other, colour, 1.0);
    }

    /// A translucent rectangle.
    pub(crate) fn translucent_rect(&self, one: Point, other: Point, colour: Colour, opacity: f64) {
        let corners = [to_units(one), to_units(other)];
        if corners[0].0 != corners[1].0 && corners[0].1 != corners[1].1 {
            self.area.draw(&Rectangle::new(corners, filled(colour, opacity))).expect(STRING);
        }
    }

    pub(crate) fn line(&self, points: &[Point], colour: Colour, width_px: f64) {
        let mut points: Vec<_> = points.iter().copied().map(to_units).collect();
        points.dedup();
        let style = ShapeStyle { stroke_width: (width_px * UNITS).round() as u32, ..filled(colour, 1.0) };
        self.area.draw(&PathElement::new(points, style)).expect(STRING);
    }

    pub(crate) fn polygon(&self, points: &[Point], colour: Colour, opacity: f64) {
        let points: Vec<_> = points.iter().copied().map(to_units).collect();
        self.area.draw(&Polygon::new(points, filled(colour, opacity))).expect(STRING);
    }

    pub(crate) fn circle(&self, centre: Point, radius_px: f64, colour: Colour) {
        let radius = (radius_px * UNITS).round() as i32;
        self.area.draw(&Circle::new(to_units(centre), radius, filled(colour, 1.0))).expect(STRING);
    }

    pub(crate) fn text(&self, text: &str, at: Point, size_px: f64, colour: Colour, anchor: Anchor) {
        let turn = if anchor.upward { FontTransform::Rotate270 } else { FontTransform::None };
        let style = font_of(size_px)
            .transform(turn)
            .color(&rgba(colour, 1.0))
            .pos(Pos::new(anchor.across, anchor.along));
        self.area.draw(&Text::new(printable(text), to_units(at), style)).expect(STRING);
    }

    /// The width of a text in pixels, rather over- than underestimated.
    pub(crate) fn width_of(&self, text: &str, size_px: f64) -> f64 {
        let (width, _) = font_of(size_px).box_size(&printable(text)).expect("the font is registered");
        f64::from(width) / UNITS
    }

    pub(crate) fn widest<'t>(&self, texts: impl IntoIterator<Item = &'t str>) -> f64 {
        texts.into_iter().map(|text| self.width_of(text, TEXT_PX)).fold(0.0, f64::max)
    }

    /// The text, shortened at its end to fit.
    pub(crate) fn fit(&self, text: &str, size_px: f64, width_px: f64) -> String {
        if self.width_of(text, size_px) <= width_px {
            return text.to_owned();
        }
        let mut letters: Vec<char> = text.chars().collect();
        loop {
            letters.pop();
            let short = letters.iter().collect::<String>().trim_end().to_owned() + "…";
            if letters.is_empty() || self.width_of(&short, size_px) <= width_px {
                return short;
            }
        }
    }
}

fn to_units((x, y): Point) -> (i32, i32) {
    ((x * UNITS).round() as i32, (y * UNITS).round() as i32)
}

pub(crate) fn to_point((x, y): (i32, i32)) -> Point {
    (f64::from(x) / UNITS, f64::from(y) / UNITS)
}

pub(crate) fn px_to_units(px: f64) -> i32 {
    (px * UNITS).round() as i32
}

fn font_of(size_px: f64) -> FontDesc<'static> {
    FontDesc::new(FontFamily::Name(FAMILY), size_px * FONT_UNITS, FontStyle::Normal)
}

fn rgba(colour: Colour, opacity: f64) -> RGBAColor {
    RGBAColor(colour.red, colour.green, colour.blue, opacity)
}

fn filled(colour: Colour, opacity: f64) -> ShapeStyle {
    ShapeStyle { color: rgba(colour, opacity), filled: true, stroke_width: 0 }
}

/// The text without line ends and characters that XML forbids.
fn printable(text: &str) -> String {
    let allowed = |letter: char| !letter.is_control() && letter != '\u{FFFE}' && letter != '\u{FFFF}';
    text.chars().map(|letter| if allowed(letter) { letter } else { ' ' }).collect()
}

fn escaped(text: &str) -> String {
    printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

fn measure_with_own_font() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        assert!(register_font(FAMILY, FontStyle::Normal, font()).is_ok(), "the font is a font");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(draw: impl FnOnce(&Canvas<'_>)) -> String {
        let size = Size { width_px: 100, height_px: 50 };
        let svg = draw_svg("a < b & \"c\"", Theme::Light, size, |canvas| {
            draw(canvas);
            Ok(())
        });
        svg.unwrap().text
    }

    const INK: Colour = Colour { red: 1, green: 2, blue: 3 };

    #[test]
    fn a_pixel_is_ten_units() {
        let text = drawn(|canvas| canvas.line(&[(1.0, 2.0), (3.04, 4.06)], INK, 1.5));
        assert!(text.contains("width=\"100\" height=\"50\" viewBox=\"0 0 1000 500\""), "{text}");
        assert!(text.contains("stroke=\"#010203\" stroke-width=\"15\" points=\"10,20 30,41 \""), "{text}");
    }

    #[test]
    fn texts_cannot_break_the_file() {
        let text = drawn(|canvas| {
            canvas.text("<x> & \0\n", (1.0, 1.0), TEXT_PX, INK, anchor(HPos::Left, VPos::Top));
        });
        assert!(text.contains("aria-label=\"a &lt; b &amp; &quot;c&quot;\""), "{text}");
        assert!(text.contains("&lt;x&gt; &amp;   \n"), "{text}");
        let svg = Svg { text, size: Size { width_px: 100, height_px: 50 }, area: None };
        assert!(svg.png(1).is_ok());
    }

    #[test]
    fn a_long_text_is_cut_to_its_width() {
        drawn(|canvas| {
            assert_eq!(canvas.fit("short", TEXT_PX, 100.0), "short");
            let cut = canvas.fit("a text that is much too long", TEXT_PX, 60.0);
            assert!(cut.ends_with('…') && cut.starts_with("a te"), "{cut}");
            assert!(canvas.width_of(&cut, TEXT_PX) <= 60.0);
            assert_eq!(canvas.fit("narrow", TEXT_PX, 0.0), "…");
        });
    }
}
