//! EMNIST Letters: handwritten A to Z, without regard to case, as IDX files.
//!
//! The published images have rows and columns swapped, and labels start at 1. Here images are upright, and
//! labels start at 0. Cohen et al., "EMNIST: an extension of MNIST to handwritten letters" (2017).

use std::path::Path;

use super::content::Content;
use super::idx::idx_bytes;
use super::{Images, Part, ReadError, idx_file};

const SIDE: usize = 28;
const N_CLASSES: usize = 26;

/// Training images of the published set.
const N_PUBLISHED: usize = 124_800;

/// The images of the small part, and how many of them are held out.
const N_SMALL: usize = 10_000;
const N_HELD_OUT: usize = 1_000;

/// EMNIST Letters, from its four IDX files in `emnist` within the data folder, compressed or not.
pub fn emnist_letters(data: &Path, part: Part) -> Result<Images, ReadError> {
    let prefix = match part {
        Part::Train => "emnist-letters-train",
        Part::Test => "emnist-letters-test",
    };
    let folder = data.join("emnist");
    let image_file = idx_file(&folder, &format!("{prefix}-images-idx3-ubyte"))?;
    let label_file = idx_file(&folder, &format!("{prefix}-labels-idx1-ubyte"))?;
    letters(Content::open(&image_file)?, Content::open(&label_file)?, 0)
}

/// The first 10,000 training images of EMNIST Letters, for users without the full set. Their file is
/// `emnist-letters-train-first10000-images-idx3-ubyte`, next to the file of all training labels. The last
/// 1,000 are the test part, so an accuracy on them is no result on EMNIST.
pub fn emnist_letters_10k(data: &Path, part: Part) -> Result<Images, ReadError> {
    let folder = data.join("emnist");
    let image_file = idx_file(&folder, "emnist-letters-train-first10000-images-idx3-ubyte")?;
    let label_file = idx_file(&folder, "emnist-letters-train-labels-idx1-ubyte")?;
    let mut images =
        letters(Content::open(&image_file)?, Content::open(&label_file)?, N_PUBLISHED - N_SMALL)?;
    if images.n_samples() != N_SMALL {
        let found = images.n_samples().to_string();
        return Err(ReadError::damaged(&image_file, format!("{N_SMALL} images"), found));
    }
    let n_train = N_SMALL - N_HELD_OUT;
    match part {
        Part::Train => {
            images.pixels.truncate(n_train * SIDE * SIDE);
            images.labels.truncate(n_train);
        }
        Part::Test => {
            images.pixels.drain(..n_train * SIDE * SIDE);
            images.labels.drain(..n_train);
        }
    }
    Ok(images)
}

/// Upright letters, with labels from 0; `n_left_over` labels belong to images that are not in the file.
pub(super) fn letters(
    images: Content<'_>,
    labels: Content<'_>,
    n_left_over: usize,
) -> Result<Images, ReadError> {
    let (image_file, label_file) = (images.path, labels.path);
    let ([n_images, height, width], mut pixels) = idx_bytes(images)?;
    if (height, width) != (SIDE, SIDE) {
        let found = format!("{height} x {width}");
        return Err(ReadError::damaged(image_file, format!("images of {SIDE} x {SIDE}"), found));
    }
    let ([n_labels], mut labels) = idx_bytes(labels)?;
    if n_labels != n_images + n_left_over {
        let (images, labels) = (image_file.to_owned(), label_file.to_owned());
        return Err(match n_left_over {
            0 => ReadError::Unpaired { images, n_images, labels, n_labels },
            _ => {
                let images = images.display();
                let expected =
                    format!("{n_images} labels for the images of {images} and {n_left_over} others");
                ReadError::damaged(&labels, expected, n_labels.to_string())
            }
        });
    }
    if let Some(idx) = labels.iter().position(|&label| !(1..=N_CLASSES).contains(&usize::from(label))) {
        let expected = format!("1 to {N_CLASSES} as label of sample {idx}");
        return Err(ReadError::damaged(label_file, expected, labels[idx].to_string()));
    }
    labels.truncate(n_images);
    labels.iter_mut().for_each(|label| *label -= 1);
    pixels.chunks_exact_mut(SIDE * SIDE).for_each(transpose);
    Ok(Images { pixels, labels, height, width, channels: 1, n_classes: N_CLASSES })
}

/// Swaps rows and columns.
fn transpose(image: &mut [u8]) {
    for y in 0..SIDE {
        for x in 0..y {
            image.swap(y * SIDE + x, x * SIDE + y);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::idx::tests::idx;
    use super::*;

    /// Two images: a line along the first stored row, and a different pixel at each position.
    fn images() -> Vec<u8> {
        let line = (0..SIDE * SIDE).map(|at| if at < SIDE { 255 } else { 0 });
        let places = (0..SIDE * SIDE).map(|at| (at % 251) as u8);
        idx(&[2, 28, 28], &line.chain(places).collect::<Vec<_>>())
    }

    fn labels(labels: &[u8]) -> Vec<u8> {
        idx(&[labels.len() as u32], labels)
    }

    /// The test part of these two files, or the error.
    fn read(images: &[u8], labels: &[u8]) -> Result<Images, String> {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("emnist");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("emnist-letters-test-images-idx3-ubyte"), images).unwrap();
        fs::write(folder.join("emnist-letters-test-labels-idx1-ubyte"), labels).unwrap();
        emnist_letters(data.path(), Part::Test).map_err(|error| {
            let prefix = folder.join("emnist-letters-test-");
            error.to_string().replace(prefix.to_str().unwrap(), "")
        })
    }

    #[track_caller]
    fn check(images: &[u8], labels: &[u8], message: &str) {
        assert_eq!(read(images, labels).unwrap_err(), message);
    }

    #[test]
    fn images_are_put_upright_and_labels_start_at_0() {
        let read = read(&images(), &labels(&[1, 26])).unwrap();
        assert_eq!(format!("{read:?}"), "2 images of 28 x 28 x 1 in 26 classes");
        assert_eq!(read.labels, [0, 25]);
        for (at, &pixel) in read.sample(0).iter().enumerate() {
            assert_eq!(pixel, if at % SIDE == 0 { 255 } else { 0 }, "the line goes down the first column");
        }
        for (at, &pixel) in read.sample(1).iter().enumerate() {
            assert_eq!(usize::from(pixel), (at % SIDE * SIDE + at / SIDE) % 251);
        }
    }

    #[test]
    fn files_that_are_no_set_of_letters_are_refused() {
        let again = "fetch the file again";
        let expected = "images-idx3-ubyte: expected images of 28 x 28, found 14 x 56";
        check(&idx(&[2, 14, 56], &[0; 2 * 784]), &labels(&[1, 2]), &format!("{expected}; {again}"));
        for label in [0, 27] {
            let expected = "labels-idx1-ubyte: expected 1 to 26 as label of sample 1, found";
            check(&images(), &labels(&[1, label]), &format!("{expected} {label}; {again}"));
        }
        let expected = "labels-idx1-ubyte: expected 2 labels, one for each image of images-idx3-ubyte, found";
        let remedy = "take both files from the same set and part";
        check(&images(), &labels(&[1, 2, 3]), &format!("{expected} 3; {remedy}"));
        let expected = "images-idx3-ubyte: expected 1568 bytes of values (2 x 28 x 28), found 1567";
        check(&images()[..16 + 1567], &labels(&[1, 2]), &format!("{expected}; {again}"));
        let expected = "labels-idx1-ubyte: expected an IDX file of bytes in 1 dimensions, starting 00 00 08 01, \
                        found 00 00 08 03";
        check(&images(), &images(), &format!("{expected}; {again}"));
    }

    #[test]
    fn the_small_part_holds_out_its_last_images() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("emnist");
        fs::create_dir(&folder).unwrap();
        let error_text = || {
            let error = emnist_letters_10k(data.path(), Part::Train).unwrap_err().to_string();
            error.replace(folder.to_str().unwrap(), "at")
        };
        let images = |n_images: usize| {
            let pixels: Vec<_> = (0..n_images).flat_map(|idx| [(idx / 1000) as u8; SIDE * SIDE]).collect();
            idx(&[n_images as u32, 28, 28], &pixels)
        };
        let labels: Vec<_> = (0..N_PUBLISHED).map(|idx| (idx / 1000 % 26 + 1) as u8).collect();
        let image_file = folder.join("emnist-letters-train-first10000-images-idx3-ubyte");
        let label_file = folder.join("emnist-letters-train-labels-idx1-ubyte");
        assert!(
            error_text().starts_with("at: expected emnist-letters-train-first10000-images-idx3-ubyte.gz or ")
        );
        fs::write(&image_file, images(N_SMALL)).unwrap();
        fs::write(&label_file, self::labels(&labels)).unwrap();
        let train = emnist_letters_10k(data.path(), Part::Train).unwrap();
        let test = emnist_letters_10k(data.path(), Part::Test).unwrap();
        assert_eq!((train.n_samples(), test.n_samples()), (9_000, 1_000));
        assert_eq!((train.pixels.len(), test.pixels.len()), (9_000 * 784, 1_000 * 784));
        assert_eq!((train.labels[0], train.labels[8_999]), (0, 8));
        assert!(test.labels.iter().chain(&test.pixels).all(|&value| value == 9));

        fs::write(&label_file, self::labels(&labels[..N_SMALL])).unwrap();
        let expected = "at/emnist-letters-train-labels-idx1-ubyte: expected 10000 labels for the images of \
                        at/emnist-letters-train-first10000-images-idx3-ubyte and 114800 others, found 10000";
        assert_eq!(error_text(), format!("{expected}; fetch the file again"));
        fs::write(&image_file, images(N_SMALL - 1)).unwrap();
        fs::write(&label_file, self::labels(&labels[..N_PUBLISHED - 1])).unwrap();
        let expected =
            "at/emnist-letters-train-first10000-images-idx3-ubyte: expected 10000 images, found 9999";
        assert_eq!(error_text(), format!("{expected}; fetch the file again"));
    }
}
