//! CIFAR-10's batches, rebuilt from pictures with the same pixels.
//!
//! A batch holds for each image the label, then the red, green and blue planes. In a PNG each row of pixels
//! is one image. A WebP sheet consists of tiles of 32 x 32 pixels.

use std::io::{BufRead, Cursor, Seek};

use image_webp::WebPDecoder;
use png::{BitDepth, ColorType, Decoder};

const SIDE: usize = 32;
const CHANNELS: usize = 3;

/// The batch of a PNG with one image per row; `labels` has one label per row.
pub(crate) fn batch_from_rows(picture: &[u8], labels: &[u8]) -> Result<Vec<u8>, String> {
    let undecodable = |error| format!("a picture that cannot be decoded ({error})");
    let mut reader = Decoder::new(Cursor::new(picture)).read_info().map_err(undecodable)?;
    let info = reader.info();
    if (info.color_type, info.bit_depth, info.interlaced) != (ColorType::Rgb, BitDepth::Eight, false) {
        return Err("a picture that is not plain 8-bit RGB".to_owned());
    }
    if info.width as usize != SIDE * SIDE {
        return Err(format!("a picture whose rows have {} pixels, not {}", info.width, SIDE * SIDE));
    }
    check_count(info.height as usize, labels)?;
    let mut batch = Vec::with_capacity(labels.len() * (1 + SIDE * SIDE * CHANNELS));
    for &label in labels {
        let row = reader.next_row().map_err(undecodable)?.ok_or("a picture that ends early")?;
        batch.push(label);
        push_planes(row.data(), &mut batch);
    }
    Ok(batch)
}

/// The batch of a lossless WebP sheet of tiles; `labels` has one label per tile.
pub(crate) fn batch_from_tiles(picture: impl BufRead + Seek, labels: &[u8]) -> Result<Vec<u8>, String> {
    let undecodable = |error| format!("a picture that cannot be decoded ({error})");
    let mut decoder = WebPDecoder::new(picture).map_err(undecodable)?;
    let (width, height) = decoder.dimensions();
    let (n_columns, n_rows) = (width as usize / SIDE, height as usize / SIDE);
    if (n_columns * SIDE, n_rows * SIDE) != (width as usize, height as usize) || decoder.has_alpha() {
        return Err(format!("a picture of {width} x {height} that is not made of {SIDE} x {SIDE} RGB tiles"));
    }
    check_count(n_columns * n_rows, labels)?;
    let mut sheet = vec![0; n_columns * n_rows * SIDE * SIDE * CHANNELS];
    decoder.read_image(&mut sheet).map_err(undecodable)?;
    let mut batch = Vec::with_capacity(labels.len() + sheet.len());
    let mut tile = Vec::with_capacity(SIDE * SIDE * CHANNELS);
    for (tile_idx, &label) in labels.iter().enumerate() {
        tile.clear();
        for y in 0..SIDE {
            let row_idx = (tile_idx / n_columns * SIDE + y) * n_columns + tile_idx % n_columns;
            tile.extend_from_slice(&sheet[row_idx * SIDE * CHANNELS..][..SIDE * CHANNELS]);
        }
        batch.push(label);
        push_planes(&tile, &mut batch);
    }
    Ok(batch)
}

/// The labels of a decompressed IDX file.
pub(crate) fn parse_idx_labels(content: &[u8]) -> Result<&[u8], String> {
    match content {
        [0, 0, 8, 1, a, b, c, d, labels @ ..]
            if u32::from_be_bytes([*a, *b, *c, *d]) as usize == labels.len() =>
        {
            Ok(labels)
        }
        _ => Err("a file that is not a complete IDX file of labels".to_owned()),
    }
}

/// The labels of a picture: `count` of them, from `first` on.
pub(crate) fn labels_of_part(labels: &[u8], first: usize, count: usize) -> Result<&[u8], String> {
    first
        .checked_add(count)
        .and_then(|end| labels.get(first..end))
        .ok_or_else(|| format!("{} labels, but {count} from label {first} on are needed", labels.len()))
}

/// The number of images in a batch of this many bytes.
pub(crate) fn n_images(n_bytes: u64) -> usize {
    n_bytes as usize / (1 + SIDE * SIDE * CHANNELS)
}

fn check_count(n_images: usize, labels: &[u8]) -> Result<(), String> {
    match labels.len() {
        n_labels if n_labels == n_images => Ok(()),
        n_labels => Err(format!("a picture of {n_images} images for {n_labels} labels")),
    }
}

/// Splits pixels into the red, green and blue planes.
fn push_planes(pixels: &[u8], batch: &mut Vec<u8>) {
    for channel in 0..CHANNELS {
        batch.extend(pixels.iter().skip(channel).step_by(CHANNELS));
    }
}

#[cfg(test)]
mod tests {
    use image_webp::WebPEncoder;

    use super::*;

    /// The bytes of four images, each different from its neighbours.
    fn byte(image_idx: usize, pixel_idx: usize, channel: usize) -> u8 {
        (image_idx * 59 + pixel_idx * 7 + channel * 101) as u8
    }

    fn expected(labels: &[u8]) -> Vec<u8> {
        let mut batch = Vec::new();
        for (image_idx, &label) in labels.iter().enumerate() {
            batch.push(label);
            for channel in 0..CHANNELS {
                batch.extend((0..SIDE * SIDE).map(|pixel_idx| byte(image_idx, pixel_idx, channel)));
            }
        }
        batch
    }

    fn rows(n_rows: usize) -> Vec<u8> {
        let mut pixels = Vec::new();
        for image_idx in 0..n_rows {
            for pixel_idx in 0..SIDE * SIDE {
                pixels.extend((0..CHANNELS).map(|channel| byte(image_idx, pixel_idx, channel)));
            }
        }
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, (SIDE * SIDE) as u32, n_rows as u32);
        encoder.set_color(ColorType::Rgb);
        encoder.set_depth(BitDepth::Eight);
        encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
        file
    }

    /// Two rows of two tiles.
    fn tiles() -> Vec<u8> {
        let mut pixels = Vec::new();
        for (y, x) in (0..2 * SIDE).flat_map(|y| (0..2 * SIDE).map(move |x| (y, x))) {
            let (image_idx, pixel_idx) = (y / SIDE * 2 + x / SIDE, y % SIDE * SIDE + x % SIDE);
            pixels.extend((0..CHANNELS).map(|channel| byte(image_idx, pixel_idx, channel)));
        }
        let mut file = Vec::new();
        let side = 2 * SIDE as u32;
        WebPEncoder::new(&mut file).encode(&pixels, side, side, image_webp::ColorType::Rgb8).unwrap();
        file
    }

    #[test]
    fn rows_and_tiles_give_the_same_batch() {
        let labels = [3, 0, 9, 1];
        let expected = expected(&labels);
        assert_eq!(n_images(expected.len() as u64), 4);
        assert!(batch_from_rows(&rows(4), &labels).unwrap() == expected);
        assert!(batch_from_tiles(Cursor::new(tiles()), &labels).unwrap() == expected);
    }

    #[test]
    fn every_image_needs_one_label() {
        let message = "a picture of 4 images for 3 labels";
        assert_eq!(batch_from_rows(&rows(4), &[0; 3]).unwrap_err(), message);
        assert_eq!(batch_from_tiles(Cursor::new(tiles()), &[0; 3]).unwrap_err(), message);
        assert_eq!(labels_of_part(&[5, 6, 7], 1, 2).unwrap(), [6, 7]);
        assert_eq!(
            labels_of_part(&[5, 6, 7], 2, 2).unwrap_err(),
            "3 labels, but 2 from label 2 on are needed"
        );
        assert!(labels_of_part(&[5], usize::MAX, 2).is_err());
    }

    #[test]
    fn a_picture_of_another_width_is_refused() {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 1 << 20, 1);
        encoder.set_color(ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&vec![0; 3 << 20]).unwrap();
        let message = "a picture whose rows have 1048576 pixels, not 1024";
        assert_eq!(batch_from_rows(&file, &[0]).unwrap_err(), message);
    }

    #[test]
    fn labels_must_be_whole() {
        assert_eq!(parse_idx_labels(&[0, 0, 8, 1, 0, 0, 0, 2, 7, 8]).unwrap(), [7, 8]);
        for broken in [&[0, 0, 8, 1, 0, 0, 0, 2, 7][..], &[0, 0, 8, 3, 0, 0, 0, 1, 7], &[]] {
            assert!(parse_idx_labels(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn a_truncated_picture_never_makes_another_batch() {
        let (rows, tiles, labels) = (rows(4), tiles(), [3, 0, 9, 1]);
        let whole = expected(&labels);
        let check =
            |made: Result<Vec<u8>, String>| assert!(made.is_err() || made.is_ok_and(|made| made == whole));
        // The last bytes of a picture hold checksums and end marks, so all pixels may be complete without
        // them.
        (0..rows.len()).for_each(|n_left| check(batch_from_rows(&rows[..n_left], &labels)));
        (0..tiles.len()).for_each(|n_left| check(batch_from_tiles(Cursor::new(&tiles[..n_left]), &labels)));
        assert!(
            batch_from_rows(&rows[..60], &labels).is_err()
                && batch_from_tiles(Cursor::new(&tiles[..60]), &labels).is_err()
        );
    }
}
