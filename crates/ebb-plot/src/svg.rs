//! A finished plot as SVG, and its rendering as PNG.

use std::sync::{Arc, OnceLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use crate::error::PlotError;
use crate::pixels;

/// The greatest width and height of a plot.
pub(crate) const MAX_SIDE_PX: u32 = 16_384;

/// The font of all plots, and its substitutes where an SVG is shown without it. The widest comes first, so
/// that no label grows beyond its place.
pub(crate) const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

/// The bytes of the font, which is part of the program.
pub(crate) fn font() -> &'static [u8] {
    dejavu::sans::regular()
}

/// The size of a plot, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Width.
    pub width_px: u32,
    /// Height.
    pub height_px: u32,
}

impl Default for Size {
    fn default() -> Self {
        Size { width_px: 720, height_px: 440 }
    }
}

impl Size {
    /// This size times `scale`, unless that is zero or too large.
    pub(crate) fn times(self, scale: u32) -> Result<Size, PlotError> {
        let [width_px, height_px] =
            [self.width_px, self.height_px].map(|side| u64::from(side) * u64::from(scale));
        let allowed = 1..=u64::from(MAX_SIDE_PX);
        if allowed.contains(&width_px) && allowed.contains(&height_px) {
            Ok(Size { width_px: self.width_px * scale, height_px: self.height_px * scale })
        } else {
            Err(PlotError::Size { width_px, height_px })
        }
    }
}

/// The plotting area, for programs that follow a pointer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// The left edge, in pixels from the left.
    pub left_px: f64,
    /// The upper edge, in pixels from the top.
    pub top_px: f64,
    /// The right edge, in pixels from the left.
    pub right_px: f64,
    /// The lower edge, in pixels from the top.
    pub bottom_px: f64,
    /// The values at the left and at the right edge; of labels, the i-th covers i to i + 1.
    pub across: (f64, f64),
    /// The values at the upper and at the lower edge.
    pub down: (f64, f64),
}

/// A plot as SVG.
#[derive(Clone, Debug, PartialEq)]
pub struct Svg {
    pub(crate) text: String,
    pub(crate) size: Size,
    pub(crate) area: Option<Area>,
}

impl Svg {
    /// The text of the SVG file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The plotting area; `None` if the drawing has no axes.
    pub fn area(&self) -> Option<Area> {
        self.area
    }

    /// The size of the unscaled plot.
    pub fn size(&self) -> Size {
        self.size
    }

    /// A PNG file, `scale` times as large.
    ///
    /// # Errors
    /// If `scale` is zero or the PNG would be too large.
    pub fn png(&self, scale: u32) -> Result<Vec<u8>, PlotError> {
        pixels::png(&self.pixels(scale)?)
    }

    pub(crate) fn pixels(&self, scale: u32) -> Result<Pixmap, PlotError> {
        let size = self.size.times(scale)?;
        let options = Options { fontdb: fonts(), ..Options::default() };
        let tree = Tree::from_str(&self.text, &options).map_err(PlotError::pixels)?;
        let mut pixmap = Pixmap::new(size.width_px, size.height_px).expect("the size has just been checked");
        resvg::render(&tree, Transform::from_scale(scale as f32, scale as f32), &mut pixmap.as_mut());
        Ok(pixmap)
    }
}

/// Only the font of the program, so that plots do not depend on the machine.
fn fonts() -> Arc<fontdb::Database> {
    static FONTS: OnceLock<Arc<fontdb::Database>> = OnceLock::new();
    let load = || {
        let mut fonts = fontdb::Database::new();
        fonts.load_font_data(font().to_vec());
        Arc::new(fonts)
    };
    FONTS.get_or_init(load).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_sizes_are_refused() {
        let size = Size { width_px: 100, height_px: 50 };
        assert_eq!(size.times(3), Ok(Size { width_px: 300, height_px: 150 }));
        assert_eq!(size.times(0), Err(PlotError::Size { width_px: 0, height_px: 0 }));
        assert_eq!(
            size.times(u32::MAX),
            Err(PlotError::Size { width_px: 100 * u64::from(u32::MAX), height_px: 50 * u64::from(u32::MAX) })
        );
        assert!(Size { width_px: MAX_SIDE_PX, height_px: 1 }.times(1).is_ok());
        assert!(Size { width_px: MAX_SIDE_PX + 1, height_px: 1 }.times(1).is_err());
    }

    #[test]
    fn the_font_of_the_program_is_the_one_that_is_named() {
        let fonts = fonts();
        let names: Vec<_> =
            fonts.faces().flat_map(|face| face.families.iter().map(|family| &family.0)).collect();
        assert_eq!(names, [FAMILY.split(',').next().unwrap()]);
    }
}
