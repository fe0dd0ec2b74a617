//! CIFAR-10, from the official binary batches or from the same batches as lossless WebP sheets.
//!
//! A binary batch is 10,000 records of a label byte, 1024 bytes of red, 1024 of green and 1024 of blue. A
//! sheet is one picture of 100 rows of 100 images. One IDX file holds the labels of all sheets of a part.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread;

use image_webp::{DecodingError, WebPDecoder};

use super::content::Content;
use super::idx::idx_labels;
use super::{Images, Part, ReadError, check_labels, idx_file};

const SIDE: usize = 32;
const CHANNELS: usize = 3;
const SAMPLE: usize = SIDE * SIDE * CHANNELS;
const N_CLASSES: usize = 10;

/// Images in a row of a sheet, and rows of images.
const IMAGES_PER_SIDE: usize = 100;

/// Folders within the data folder that may hold batches; the second is what the official archive unpacks to.
const FOLDERS: [&str; 2] = ["cifar10", "cifar-10-batches-bin"];

/// The batches of both parts.
const TRAIN: [&str; 5] = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"];
const TEST: [&str; 1] = ["test_batch"];

/// CIFAR-10, from `cifar10` or `cifar-10-batches-bin` within the data folder; binary batches before sheets.
/// Where one of them is complete, incomplete others are ignored.
pub fn cifar10(data: &Path, part: Part) -> Result<Images, ReadError> {
    let (batches, labels): (&[&str], &str) = match part {
        Part::Train => (&TRAIN, "train-labels-idx1-ubyte"),
        Part::Test => (&TEST, "test-labels-idx1-ubyte"),
    };
    let places: Vec<_> =
        FOLDERS.iter().flat_map(|folder| ["bin", "webp"].map(|ending| (data.join(folder), ending))).collect();
    let file = |(folder, ending): &(PathBuf, &str), batch: &str| folder.join(format!("{batch}.{ending}"));
    let is_whole =
        |place: &&(PathBuf, &str)| TRAIN.iter().chain(&TEST).all(|batch| file(place, batch).is_file());
    let has_some = |place: &&(PathBuf, &str)| batches.iter().any(|batch| file(place, batch).is_file());
    let Some(place) = places.iter().find(is_whole).or_else(|| places.iter().find(has_some)) else {
        let names = vec![format!("{}.bin", batches[0]), format!("{}.webp", batches[0])];
        return Err(ReadError::Missing { folder: data.join(FOLDERS[0]), names });
    };
    let files: Vec<_> = batches.iter().map(|batch| file(place, batch)).collect();
    match place {
        (_, "bin") => from_batches(&files, IMAGES_PER_SIDE * IMAGES_PER_SIDE),
        (folder, _) => from_sheets(&files, &idx_file(folder, labels)?, IMAGES_PER_SIDE),
    }
}

fn from_batches(files: &[PathBuf], n_images: usize) -> Result<Images, ReadError> {
    let mut all = images(Vec::new(), Vec::new());
    for file in files {
        add_batch(&mut all, file, &whole_batch(file, n_images)?)?;
    }
    Ok(all)
}

/// Parses whole records.
pub(super) fn add_batch(to: &mut Images, file: &Path, batch: &[u8]) -> Result<(), ReadError> {
    let start = to.labels.len();
    to.pixels.reserve_exact(batch.len());
    for record in batch.chunks_exact(1 + SAMPLE) {
        to.labels.push(record[0]);
        let (red, rest) = record[1..].split_at(SIDE * SIDE);
        let (green, blue) = rest.split_at(SIDE * SIDE);
        to.pixels.extend(red.iter().zip(green).zip(blue).flat_map(|((&r, &g), &b)| [r, g, b]));
    }
    check_labels(file, &to.labels[start..], N_CLASSES)
}

/// Reads a file that must hold exactly `n_images` records.
fn whole_batch(file: &Path, n_images: usize) -> Result<Vec<u8>, ReadError> {
    let n_found = fs::metadata(file).map_err(|source| ReadError::io(file, source))?.len();
    check_batch_length(file, n_found, n_images)?;
    fs::read(file).map_err(|source| ReadError::io(file, source))
}

pub(super) fn check_batch_length(file: &Path, n_found: u64, n_images: usize) -> Result<(), ReadError> {
    let n_expected = n_images as u128 * (1 + SAMPLE) as u128;
    if u128::from(n_found) != n_expected {
        let expected = format!("{n_expected} bytes ({n_images} images)");
        return Err(ReadError::damaged(file, expected, n_found.to_string()));
    }
    Ok(())
}

/// Decoding a sheet takes 70 MB in addition to the result.
const SHEETS_AT_A_TIME: usize = 2;

fn from_sheets(files: &[PathBuf], label_file: &Path, across: usize) -> Result<Images, ReadError> {
    let n_images = files.len() * across * across;
    let labels = idx_labels(Content::open(label_file)?, N_CLASSES)?;
    if labels.len() != n_images {
        let (images, labels, n_labels) = (files[0].clone(), label_file.to_owned(), labels.len());
        return Err(ReadError::Unpaired { images, n_images, labels, n_labels });
    }
    let mut pixels = vec![0; n_images * SAMPLE];
    let mut work: Vec<_> = files.iter().zip(pixels.chunks_exact_mut(across * across * SAMPLE)).collect();
    for together in work.chunks_mut(SHEETS_AT_A_TIME) {
        thread::scope(|scope| {
            let decoding: Vec<_> = together
                .iter_mut()
                .map(|(file, place)| {
                    scope.spawn(|| decode_file(file, across).map(|sheet| cut_sheet(&sheet, across, place)))
                })
                .collect();
            decoding
                .into_iter()
                .try_for_each(|sheet| sheet.join().expect("the decoder refuses, it does not panic"))
        })?;
    }
    Ok(images(pixels, labels))
}

fn decode_file(file: &Path, across: usize) -> Result<Vec<u8>, ReadError> {
    let opened = File::open(file).map_err(|source| ReadError::io(file, source))?;
    decode(file, BufReader::with_capacity(1 << 16, opened), across)
}

/// The pixels of a sheet, row by row.
pub(super) fn decode(
    file: &Path,
    mut content: impl BufRead + Seek,
    across: usize,
) -> Result<Vec<u8>, ReadError> {
    let side = across * SIDE;
    let expected = || format!("a lossless WebP picture of {side} x {side} without transparency");
    let refuse = |found: String| ReadError::damaged(file, expected(), found);
    let undecodable = |error| match error {
        DecodingError::IoError(source) if source.raw_os_error().is_some() => ReadError::io(file, source),
        error => refuse(format!("a picture that cannot be decoded ({error})")),
    };

    check_length(file, &mut content)?;
    let mut decoder = WebPDecoder::new(content).map_err(undecodable)?;
    let (width, height) = decoder.dimensions();
    if (width as usize, height as usize) != (side, side) {
        return Err(refuse(format!("{width} x {height}")));
    }
    if decoder.is_lossy() || decoder.is_animated() || decoder.has_alpha() {
        return Err(refuse("another kind of WebP".to_owned()));
    }
    let mut sheet = vec![0; side * side * CHANNELS];
    decoder.read_image(&mut sheet).map_err(undecodable)?;
    Ok(sheet)
}

/// Checks that the file is as long as its header declares: the decoder may not notice that the last few bytes
/// are missing.
fn check_length(file: &Path, content: &mut (impl Read + Seek)) -> Result<(), ReadError> {
    let mut header = Vec::new();
    let n_found = content
        .by_ref()
        .take(8)
        .read_to_end(&mut header)
        .and_then(|_| content.seek(SeekFrom::End(0)))
        .and_then(|n_found| content.rewind().map(|()| n_found))
        .map_err(|source| ReadError::io(file, source))?;
    let &[b'R', b'I', b'F', b'F', a, b, c, d] = &header[..] else {
        return Err(ReadError::damaged(file, "a WebP file", "something else"));
    };
    let n_expected = u64::from(u32::from_le_bytes([a, b, c, d])) + 8;
    if n_found != n_expected {
        return Err(ReadError::damaged(file, format!("{n_expected} bytes"), n_found.to_string()));
    }
    Ok(())
}

/// Cuts a sheet into its images, row by row.
fn cut_sheet(sheet: &[u8], across: usize, images: &mut [u8]) {
    const ROW: usize = SIDE * CHANNELS;
    for (image_idx, image) in images.chunks_exact_mut(SAMPLE).enumerate() {
        let (top, left) = (image_idx / across * SIDE, image_idx % across * ROW);
        for (y, row) in image.chunks_exact_mut(ROW).enumerate() {
            row.copy_from_slice(&sheet[(top + y) * across * ROW + left..][..ROW]);
        }
    }
}

pub(super) fn images(pixels: Vec<u8>, labels: Vec<u8>) -> Images {
    Images { pixels, labels, height: SIDE, width: SIDE, channels: CHANNELS, n_classes: N_CLASSES }
}

#[cfg(test)]
mod tests {
    use image_webp::{ColorType, WebPEncoder};

    use super::*;

    /// Four images in two rows of two; every byte differs from its neighbours.
    const N_IMAGES: usize = 4;

    /// The byte of an image by image, row, column and channel.
    fn byte(image_idx: usize, y: usize, x: usize, channel: usize) -> u8 {
        (image_idx * 59 + y * 31 + x * 7 + channel * 101) as u8
    }

    fn batch(labels: [u8; N_IMAGES]) -> Vec<u8> {
        let mut file = Vec::new();
        for (image_idx, label) in labels.into_iter().enumerate() {
            file.push(label);
            for channel in 0..CHANNELS {
                for y in 0..SIDE {
                    file.extend((0..SIDE).map(|x| byte(image_idx, y, x, channel)));
                }
            }
        }
        file
    }

    fn webp(width: usize, height: usize, color: ColorType) -> Vec<u8> {
        let (mut file, mut pixels) = (Vec::new(), Vec::new());
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let image_idx = y / SIDE * 2 + x / SIDE;
            pixels.extend((0..CHANNELS).map(|channel| byte(image_idx, y % SIDE, x % SIDE, channel)));
            if color == ColorType::Rgba8 {
                pixels.push(7);
            }
        }
        WebPEncoder::new(&mut file).encode(&pixels, width as u32, height as u32, color).unwrap();
        file
    }

    fn sheet() -> Vec<u8> {
        webp(2 * SIDE, 2 * SIDE, ColorType::Rgb8)
    }

    fn labels(labels: &[u8]) -> Vec<u8> {
        [&[0, 0, 8, 1, 0, 0, 0, labels.len() as u8], labels].concat()
    }

    fn read_batch(content: &[u8]) -> Result<Images, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("batch.bin");
        fs::write(&file, content).unwrap();
        from_batches(&[file.clone(), file], N_IMAGES).map_err(|error| message_of(&error, folder.path()))
    }

    fn read_sheet(content: &[u8], labels: &[u8]) -> Result<Images, String> {
        let folder = tempfile::tempdir().unwrap();
        let (sheet_file, label_file) = (folder.path().join("sheet.webp"), folder.path().join("labels"));
        fs::write(&sheet_file, content).unwrap();
        fs::write(&label_file, labels).unwrap();
        from_sheets(&[sheet_file.clone(), sheet_file], &label_file, 2)
            .map_err(|error| message_of(&error, folder.path()))
    }

    fn message_of(error: &ReadError, folder: &Path) -> String {
        error.to_string().replace(folder.to_str().unwrap(), "at")
    }

    fn check_images(images: &Images) {
        assert_eq!(format!("{images:?}"), "8 images of 32 x 32 x 3 in 10 classes");
        assert_eq!(images.labels, [3, 0, 9, 1, 3, 0, 9, 1]);
        for sample_idx in 0..images.n_samples() {
            for (pixel_idx, pixel) in images.sample(sample_idx).chunks_exact(CHANNELS).enumerate() {
                let expected = |channel| byte(sample_idx % 4, pixel_idx / SIDE, pixel_idx % SIDE, channel);
                assert_eq!(pixel, [expected(0), expected(1), expected(2)], "{sample_idx} {pixel_idx}");
            }
        }
    }

    fn check_batch(content: &[u8], message: &str) {
        assert_eq!(read_batch(content).unwrap_err(), format!("at/batch.bin: {message}"));
    }

    fn check_sheet(content: &[u8], message: &str) {
        let error = read_sheet(content, &labels(&[3, 0, 9, 1, 3, 0, 9, 1])).unwrap_err();
        assert!(error.starts_with(&format!("at/sheet.webp: {message}")), "{error}");
    }

    #[test]
    fn batches_and_sheets_give_the_same_images() {
        check_images(&read_batch(&batch([3, 0, 9, 1])).unwrap());
        check_images(&read_sheet(&sheet(), &labels(&[3, 0, 9, 1, 3, 0, 9, 1])).unwrap());
    }

    #[test]
    fn a_batch_must_have_its_length() {
        let expected = "expected 12292 bytes (4 images)";
        let whole = batch([3, 0, 9, 1]);
        check_batch(&whole[1..], &format!("{expected}, found 12291; fetch the file again"));
        check_batch(&whole[1 + SAMPLE..], &format!("{expected}, found 9219; fetch the file again"));
        check_batch(&[&whole[..], &[0]].concat(), &format!("{expected}, found 12293; fetch the file again"));
        check_batch(&[], &format!("{expected}, found 0; fetch the file again"));
    }

    #[test]
    fn labels_must_be_classes() {
        let message = "label of sample 2: expected below 10, found 10; \
                       fetch the file again";
        check_batch(&batch([3, 0, 10, 1]), message);
        let error = read_sheet(&sheet(), &labels(&[3, 0, 10, 1, 3, 0, 9, 1])).unwrap_err();
        assert_eq!(error, format!("at/labels: {message}"));
    }

    #[test]
    fn every_image_of_the_sheets_has_one_label() {
        let error = read_sheet(&sheet(), &labels(&[3, 0, 9, 1])).unwrap_err();
        let message = "at/labels: expected 8 labels, one for each image of at/sheet.webp, found 4; \
                       take both files from the same set and part";
        assert_eq!(error, message);
    }

    #[test]
    fn a_sheet_must_be_whole() {
        let whole = sheet();
        for n_left in 8..whole.len() {
            check_sheet(&whole[..n_left], &format!("expected {} bytes, found {n_left}; ", whole.len()));
        }
        check_sheet(&[&whole[..], &[0]].concat(), &format!("expected {} bytes, found ", whole.len()));
        check_sheet(&[], "expected a WebP file, found something else; ");
        check_sheet(&labels(&[1]), "expected a WebP file, found something else; ");
    }

    #[test]
    fn a_sheet_must_be_of_the_right_kind() {
        let expected = "expected a lossless WebP picture of 64 x 64 without transparency, found";
        check_sheet(&webp(64, 32, ColorType::Rgb8), &format!("{expected} 64 x 32; "));
        check_sheet(&webp(64, 64, ColorType::Rgba8), &format!("{expected} another kind of WebP; "));
        let mut unknown = sheet();
        unknown[8..12].copy_from_slice(b"WAVE");
        check_sheet(&unknown, &format!("{expected} a picture that cannot be decoded ("));
    }

    #[test]
    fn no_damaged_byte_makes_the_decoder_panic() {
        let whole = sheet();
        for byte_idx in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte_idx] ^= 1 << (byte_idx % 8);
            let _ = read_sheet(&flipped, &labels(&[3, 0, 9, 1, 3, 0, 9, 1]));
        }
    }
}
