//! Contact sheets: many small images in named rows.

use plotters::style::text_anchor::{HPos, VPos};

use crate::canvas::{Canvas, TEXT_PX, TITLE_PX, anchor, draw_svg};
use crate::error::PlotError;
use crate::pixels;
use crate::svg::Size;
use crate::theme::Theme;

/// Images of one size in rows; each pixel becomes a square of `zoom` pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContactSheet {
    /// The title above the sheet.
    pub title: String,
    /// The width of an image.
    pub width_px: u32,
    /// The height of an image.
    pub height_px: u32,
    /// The channels of a pixel.
    pub channels: Channels,
    /// The side of the square that shows one pixel of an image.
    pub zoom: u32,
    /// The rows, from above.
    pub rows: Vec<SheetRow>,
}

/// The channels of a pixel, one byte each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// One channel, from black to white.
    Grey,
    /// Red, green and blue.
    Rgb,
}

/// One row of a [`ContactSheet`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SheetRow {
    /// The name left of the images.
    pub name: String,
    /// The images: pixels row by row, from above.
    pub images: Vec<Vec<u8>>,
}

const MARGIN: u32 = 12;
const GAP: u32 = 3;
const TITLE_LINE: u32 = 26;

impl ContactSheet {
    /// Draws the sheet as a PNG file.
    ///
    /// # Errors
    /// If there is no image, an image has a wrong number of bytes, or the sheet would be too large.
    pub fn png(&self, theme: Theme) -> Result<Vec<u8>, PlotError> {
        self.check()?;
        let n_columns = self.rows.iter().map(|row| row.images.len()).max().unwrap_or(0);
        if n_columns == 0 || self.width_px == 0 || self.height_px == 0 || self.zoom == 0 {
            return Err(PlotError::nothing(&self.title));
        }
        let mut layout = SheetLayout::default();
        // Texts are measured on a canvas of any size, then drawn on one that fits them.
        draw_svg(&self.title, theme, Size { width_px: 1, height_px: 1 }, |canvas| {
            layout = self.layout(canvas, n_columns);
            Ok(())
        })?;
        let words = draw_svg(&self.title, theme, layout.sheet, |canvas| {
            self.draw_labels(canvas, &layout);
            Ok(())
        })?;
        let mut pixmap = words.pixels(1)?;
        self.draw_images(pixmap.data_mut(), &layout);
        pixels::png(&pixmap)
    }

    fn check(&self) -> Result<(), PlotError> {
        let n_channels: u64 = match self.channels {
            Channels::Grey => 1,
            Channels::Rgb => 3,
        };
        let expected = u64::from(self.width_px) * u64::from(self.height_px);
        for row in &self.rows {
            let wrong = |image: &&Vec<u8>| Some(image.len() as u64) != expected.checked_mul(n_channels);
            if let Some(image) = row.images.iter().find(wrong) {
                let message = format!(
                    "an image of row \"{}\" has {} bytes, which are not {} x {} pixels of {n_channels}",
                    row.name,
                    image.len(),
                    self.width_px,
                    self.height_px
                );
                return Err(PlotError::uneven(&self.title, message));
            }
        }
        Ok(())
    }

    fn layout(&self, canvas: &Canvas<'_>, n_columns: usize) -> SheetLayout {
        let names = canvas.widest(self.rows.iter().map(|row| row.name.as_str())).ceil() as u32;
        let left = MARGIN + if names > 0 { names + 8 } else { 0 };
        let top = MARGIN + if self.title.is_empty() { 0 } else { TITLE_LINE };
        let across = self.width_px.saturating_mul(self.zoom).saturating_add(GAP);
        // A row is at least as high as its name.
        let along = self.height_px.saturating_mul(self.zoom).saturating_add(GAP).max(TEXT_PX as u32 + GAP);
        let length = |step: u32, count: usize| step.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        let title = canvas.width_of(&self.title, TITLE_PX).ceil() as u32;
        let images = left.saturating_add(length(across, n_columns));
        let sheet = Size {
            width_px: images.max(MARGIN + title).saturating_add(MARGIN),
            height_px: top.saturating_add(length(along, self.rows.len())).saturating_add(MARGIN),
        };
        SheetLayout { left, top, across, along, sheet }
    }

    fn draw_labels(&self, canvas: &Canvas<'_>, layout: &SheetLayout) {
        if !self.title.is_empty() {
            let title = (f64::from(MARGIN), f64::from(MARGIN));
            canvas.text(&self.title, title, TITLE_PX, canvas.theme.ink(), anchor(HPos::Left, VPos::Top));
        }
        for (at, row) in self.rows.iter().enumerate() {
            let middle =
                f64::from(layout.top) + f64::from(layout.along) * (at as f64 + 0.5) - f64::from(GAP) / 2.0;
            let at = (f64::from(layout.left) - 8.0, middle);
            canvas.text(&row.name, at, TEXT_PX, canvas.theme.soft_ink(), anchor(HPos::Right, VPos::Center));
        }
    }

    /// Draws an image onto the RGBA pixels of the sheet.
    fn draw_images(&self, pixels: &mut [u8], layout: &SheetLayout) {
        let sheet_width = layout.sheet.width_px as usize;
        let (width, zoom) = (self.width_px as usize, self.zoom as usize);
        for (row_idx, row) in self.rows.iter().enumerate() {
            for (column_idx, image) in row.images.iter().enumerate() {
                let top = layout.top as usize + row_idx * layout.along as usize;
                let left = layout.left as usize + column_idx * layout.across as usize;
                for y in 0..self.height_px as usize * zoom {
                    for x in 0..width * zoom {
                        let from = (y / zoom) * width + x / zoom;
                        let to = 4 * ((top + y) * sheet_width + left + x);
                        pixels[to..to + 4].copy_from_slice(&self.pixel(image, from));
                    }
                }
            }
        }
    }

    fn pixel(&self, image: &[u8], at: usize) -> [u8; 4] {
        match self.channels {
            Channels::Grey => [image[at], image[at], image[at], 255],
            Channels::Rgb => [image[3 * at], image[3 * at + 1], image[3 * at + 2], 255],
        }
    }
}

/// The place of the first image, and the distance from one to the next.
struct SheetLayout {
    left: u32,
    top: u32,
    across: u32,
    along: u32,
    sheet: Size,
}

impl Default for SheetLayout {
    fn default() -> Self {
        SheetLayout { left: 0, top: 0, across: 0, along: 0, sheet: Size { width_px: 0, height_px: 0 } }
    }
}

#[cfg(test)]
mod tests {
    use resvg::tiny_skia::Pixmap;

    use super::*;

    fn sheet(channels: Channels, images: &[&[u8]]) -> ContactSheet {
        let images = images.iter().map(|image| image.to_vec()).collect();
        let rows = vec![SheetRow::default(), SheetRow { name: "shirt".into(), images }];
        ContactSheet { title: "Data".into(), width_px: 2, height_px: 1, channels, zoom: 10, rows }
    }

    #[test]
    fn every_pixel_is_a_square_of_its_colour() {
        let check = |channels, images: &[&[u8]], expected: &[(u8, u8, u8)]| {
            let png = sheet(channels, images).png(Theme::Light).unwrap();
            let pixmap = Pixmap::decode_png(&png).unwrap();
            let count = |colour: &(u8, u8, u8)| {
                let same = |pixel: &&resvg::tiny_skia::PremultipliedColorU8| {
                    (pixel.red(), pixel.green(), pixel.blue()) == *colour
                };
                pixmap.pixels().iter().filter(same).count()
            };
            expected.iter().for_each(|colour| assert_eq!(count(colour), 100, "{colour:?}"));
        };
        check(Channels::Grey, &[&[7, 100], &[9, 60]], &[(7, 7, 7), (100, 100, 100), (9, 9, 9), (60, 60, 60)]);
        check(Channels::Rgb, &[&[255, 0, 1, 2, 0, 255]], &[(255, 0, 1), (2, 0, 255)]);
    }

    #[test]
    fn names_and_title_are_written() {
        let dark = |sheet: &ContactSheet| {
            let pixmap = Pixmap::decode_png(&sheet.png(Theme::Light).unwrap()).unwrap();
            pixmap.pixels().iter().filter(|pixel| pixel.red() < 200).count()
        };
        let plain = ContactSheet { title: String::new(), ..sheet(Channels::Grey, &[&[255, 255]]) };
        let titled = ContactSheet { title: "Data".into(), ..plain.clone() };
        let mut unnamed = plain.clone();
        unnamed.rows[1].name.clear();
        assert_eq!(dark(&unnamed), 0);
        assert!(dark(&plain) > 20 && dark(&titled) > dark(&plain) + 20);
    }

    #[test]
    fn unusable_data_are_errors_and_not_panics() {
        let png = |sheet: &ContactSheet| sheet.png(Theme::Dark).map(|_| ());
        let good = sheet(Channels::Grey, &[&[1, 2]]);
        assert_eq!(png(&good), Ok(()));
        assert_eq!(png(&sheet(Channels::Grey, &[])), Err(PlotError::nothing("Data")));
        assert_eq!(png(&ContactSheet { zoom: 0, ..good.clone() }), Err(PlotError::nothing("Data")));
        let message = "an image of row \"shirt\" has 2 bytes, which are not 2 x 1 pixels of 3";
        assert_eq!(png(&sheet(Channels::Rgb, &[&[1, 2]])), Err(PlotError::uneven("Data", message)));
        let found = png(&ContactSheet { zoom: u32::MAX, ..good.clone() });
        assert!(matches!(found, Err(PlotError::Size { .. })), "{found:?}");
    }
}
