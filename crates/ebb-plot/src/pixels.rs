//! PNG files: with few colours, indexed ones, which are much smaller.

use std::collections::HashMap;

use png::{BitDepth, ColorType, Compression, Encoder, Filter};
use resvg::tiny_skia::Pixmap;

use crate::error::PlotError;
use crate::theme::Colour;

/// The most colours that an indexed PNG can have.
const MAX_COLOURS: usize = 256;

/// The plot as a PNG. Its background is opaque, so that no alpha channel is needed.
pub(crate) fn png(pixmap: &Pixmap) -> Result<Vec<u8>, PlotError> {
    let colours: Vec<[u8; 3]> =
        pixmap.pixels().iter().map(|pixel| [pixel.red(), pixel.green(), pixel.blue()]).collect();
    let size = (pixmap.width(), pixmap.height());
    match indexed(&colours) {
        Some((palette, numbers)) => write(size, Some((palette, &[])), &numbers),
        None => write(size, None, colours.as_flattened()),
    }
}

/// An indexed PNG of `n_columns` by `n_rows` pixels. Each pixel has the number of its colour, from 1; 0 is
/// transparent.
pub(crate) fn indexed_png(
    (n_columns, n_rows): (usize, usize),
    ground: Colour,
    colours: &[Colour],
    numbers: &[u8],
) -> Result<Vec<u8>, PlotError> {
    let all = std::iter::once(&ground).chain(colours);
    let palette: Vec<_> = all.flat_map(|colour| [colour.red, colour.green, colour.blue]).collect();
    write((n_columns as u32, n_rows as u32), Some((palette, &[0])), numbers)
}

/// The colours in order of appearance, and the index of each pixel's; `None` if there are too many.
fn indexed(colours: &[[u8; 3]]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut palette = Vec::new();
    let mut places: HashMap<[u8; 3], u8> = HashMap::new();
    let mut indices = Vec::with_capacity(colours.len());
    for colour in colours {
        let next = places.len();
        let place = match places.get(colour) {
            Some(&place) => place,
            None if next == MAX_COLOURS => return None,
            None => {
                places.insert(*colour, next as u8);
                palette.extend(colour);
                next as u8
            }
        };
        indices.push(place);
    }
    Some((palette, indices))
}

/// The palette, and the opacity of its first colours if they are not opaque.
type Palette<'a> = (Vec<u8>, &'a [u8]);

fn write(
    (width, height): (u32, u32),
    palette: Option<Palette<'_>>,
    data: &[u8],
) -> Result<Vec<u8>, PlotError> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, width, height);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_compression(Compression::Balanced);
    match palette {
        Some((palette, seen)) => {
            encoder.set_color(ColorType::Indexed);
            encoder.set_palette(palette);
            if !seen.is_empty() {
                encoder.set_trns(seen.to_vec());
            }
            // Filters help with amounts, but indices of colours are none.
            encoder.set_filter(Filter::NoFilter);
        }
        None => encoder.set_color(ColorType::Rgb),
    }
    let mut writer = encoder.write_header().map_err(PlotError::pixels)?;
    writer.write_image_data(data).map_err(PlotError::pixels)?;
    writer.finish().map_err(PlotError::pixels)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use resvg::tiny_skia::{Color, Paint, Rect, Transform};

    use super::*;

    fn test_pixmap(n_colours: u32) -> Pixmap {
        let mut pixmap = Pixmap::new(n_colours, 2).unwrap();
        pixmap.fill(Color::WHITE);
        for at in 0..n_colours {
            let mut paint = Paint::default();
            paint.set_color_rgba8((at / 16) as u8, (at % 16) as u8, 7, 255);
            let one = Rect::from_xywh(at as f32, 0.0, 1.0, 1.0).unwrap();
            pixmap.fill_rect(one, &paint, Transform::identity(), None);
        }
        pixmap
    }

    #[test]
    fn pixels_read_back_with_few_colours_and_with_many() {
        // White is one more colour.
        for (n_colours, kind) in [(3, ColorType::Indexed), (255, ColorType::Indexed), (256, ColorType::Rgb)] {
            let pixmap = test_pixmap(n_colours);
            let bytes = png(&pixmap).unwrap();
            assert!(Pixmap::decode_png(&bytes).unwrap() == pixmap, "{n_colours}");
            let reader = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
            assert_eq!(reader.info().color_type, kind, "{n_colours}");
        }
    }
}
