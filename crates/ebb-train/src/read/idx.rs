//! Images and labels in IDX, the format of MNIST: a header of sizes, then the bytes.
//!
//! All numbers are big-endian: two zero bytes, the type (08 for unsigned bytes), the number of dimensions, 32
//! bits per dimension, then the values, last dimension fastest.

use std::path::Path;

use super::content::{Content, MAX_BYTES};
use super::{Images, ReadError, check_labels};

/// Reads grey images and their labels from two IDX files, each plain or compressed by gzip.
pub fn idx_images(images: &Path, labels: &Path, n_classes: usize) -> Result<Images, ReadError> {
    let ([n_images, height, width], pixels) = idx_bytes(Content::open(images)?)?;
    let label_values = idx_labels(Content::open(labels)?, n_classes)?;
    if label_values.len() != n_images {
        return Err(ReadError::Unpaired {
            images: images.to_owned(),
            n_images,
            labels: labels.to_owned(),
            n_labels: label_values.len(),
        });
    }
    Ok(Images { pixels, labels: label_values, height, width, channels: 1, n_classes })
}

/// Reads labels below `n_classes`.
pub(super) fn idx_labels(content: Content<'_>, n_classes: usize) -> Result<Vec<u8>, ReadError> {
    let file = content.path;
    let ([_], labels) = idx_bytes(content)?;
    check_labels(file, &labels, n_classes)?;
    Ok(labels)
}

/// The sizes and the values of a file with `N` dimensions, none of them zero.
pub(super) fn idx_bytes<const N: usize>(
    mut content: Content<'_>,
) -> Result<([usize; N], Vec<u8>), ReadError> {
    let path = content.path;
    let magic = content.next_bytes(4)?;
    let expected_magic = [0, 0, 8, N as u8];
    if magic != expected_magic {
        let expected = format!("an IDX file of bytes in {N} dimensions, starting {}", hex(&expected_magic));
        let found = if magic.is_empty() { "nothing".to_owned() } else { hex(&magic) };
        return Err(ReadError::damaged(path, expected, found));
    }
    let header = content.next_bytes(4 * N)?;
    if header.len() < 4 * N {
        let found = format!("{} bytes", 4 + header.len());
        return Err(ReadError::damaged(path, format!("an IDX header of {} bytes", 4 + 4 * N), found));
    }
    let mut sizes = [0; N];
    for (size, bytes) in sizes.iter_mut().zip(header.as_chunks().0) {
        *size = u32::from_be_bytes(*bytes);
    }
    let shape = sizes.map(|size| size.to_string()).join(" x ");

    let n_declared: u128 = sizes.iter().map(|&size| u128::from(size)).product();
    if n_declared == 0 {
        return Err(ReadError::damaged(path, "at least one value", format!("sizes {shape}")));
    }
    if n_declared > u128::from(MAX_BYTES) || usize::try_from(n_declared).is_err() {
        return Err(ReadError::TooLarge { file: path.to_owned(), n_bytes: n_declared });
    }
    let n_declared = n_declared as usize;
    let expected = || format!("{n_declared} bytes of values ({shape})");
    if n_declared as u64 > content.max_bytes() {
        return Err(ReadError::damaged(path, expected(), content.size()));
    }

    let values = content.next_bytes(n_declared)?;
    if values.len() < n_declared {
        return Err(ReadError::damaged(path, expected(), format!("{}", values.len())));
    }
    // Reading to the end also makes gzip compare its checksum.
    if !content.next_bytes(1)?.is_empty() {
        return Err(ReadError::damaged(path, expected(), "more"));
    }
    Ok((sizes.map(|size| size as usize), values))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::super::content::tests::gzip;
    use super::*;

    const PIXELS: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

    /// The result of reading these two files, as text; two images of 2 x 3 with labels 0 and 4 if both are
    /// intact.
    fn outcome(images: &[u8], labels: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let (image_file, label_file) = (folder.path().join("images"), folder.path().join("labels"));
        fs::write(&image_file, images).unwrap();
        fs::write(&label_file, labels).unwrap();
        match idx_images(&image_file, &label_file, 5) {
            Ok(images) => format!("{images:?}: {:?} {:?}", images.labels, images.pixels),
            Err(error) => error.to_string().replace(folder.path().to_str().unwrap(), "at"),
        }
    }

    fn check_fine(images: &[u8], labels: &[u8]) {
        let fine = "2 images of 2 x 3 x 1 in 5 classes: [0, 4] [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]";
        assert_eq!(outcome(images, labels), fine);
    }

    fn check_images(images: &[u8], message: &str) {
        assert_eq!(outcome(images, &labels(&[0, 4])), format!("at/images: {message}"));
    }

    fn check_labels(labels: &[u8], message: &str) {
        assert_eq!(outcome(&images(), labels), format!("at/labels: {message}"));
    }

    pub(in super::super) fn idx(sizes: &[u32], values: &[u8]) -> Vec<u8> {
        let mut file = vec![0, 0, 8, sizes.len() as u8];
        file.extend(sizes.iter().flat_map(|size| size.to_be_bytes()));
        file.extend(values);
        file
    }

    fn images() -> Vec<u8> {
        idx(&[2, 2, 3], &PIXELS)
    }

    fn labels(labels: &[u8]) -> Vec<u8> {
        idx(&[labels.len() as u32], labels)
    }

    #[test]
    fn plain_and_compressed_files_mix() {
        check_fine(&images(), &labels(&[0, 4]));
        check_fine(&gzip(&images()), &labels(&[0, 4]));
        check_fine(&images(), &gzip(&labels(&[0, 4])));
    }

    #[test]
    fn a_gzip_file_may_have_members() {
        let whole = images();
        let (first, second) = whole.split_at(20);
        check_fine(&[gzip(first), gzip(second)].concat(), &labels(&[0, 4]));
    }

    #[test]
    fn sizes_must_fit_the_file() {
        let again = "fetch the file again";
        let message = format!("expected 12 bytes of values (2 x 2 x 3), found 11; {again}");
        check_images(&idx(&[2, 2, 3], &PIXELS[1..]), &message);
        check_images(&gzip(&idx(&[2, 2, 3], &PIXELS[1..])), &message);
        let message = format!("expected 6 bytes of values (1 x 2 x 3), found more; {again}");
        check_images(&idx(&[1, 2, 3], &PIXELS), &message);
        check_images(&gzip(&idx(&[1, 2, 3], &PIXELS)), &message);
        let message = format!("expected at least one value, found sizes 0 x 2 x 3; {again}");
        check_images(&idx(&[0, 2, 3], &[]), &message);
        check_labels(&labels(&[]), &format!("expected at least one value, found sizes 0; {again}"));
    }

    #[test]
    fn memory_is_taken_only_for_what_the_file_can_hold() {
        let message = "expected 4294967296 bytes of values (65536 x 256 x 256), found a file of 28 bytes; \
                       fetch the file again";
        check_images(&idx(&[1 << 16, 256, 256], &PIXELS), message);
        let compressed = gzip(&idx(&[1 << 16, 256, 256], &PIXELS));
        check_images(&compressed, &message.replace("28", &compressed.len().to_string()));
        let message = "declares 79228162458924105385300197375 bytes, expected at most 4294967296; \
                       fetch the file again, or split it";
        check_images(&idx(&[u32::MAX; 3], &PIXELS), message);
        check_images(
            &idx(&[(1 << 16) + 1, 256, 256], &PIXELS),
            &message.replace("79228162458924105385300197375", "4295032832"),
        );
    }

    #[test]
    fn magic_must_be_that_of_bytes_in_n_dimensions() {
        let expected = |n| format!("expected an IDX file of bytes in {n} dimensions, starting 00 00 08 0{n}");
        let check_magic = |file: &[u8], found: &str| {
            check_images(file, &format!("{}, found {found}; fetch the file again", expected(3)));
        };
        check_magic(&labels(&[0, 4]), "00 00 08 01");
        check_magic(b"<html>", "3c 68 74 6d");
        check_magic(&[0, 0, 0x0d, 3], "00 00 0d 03");
        check_magic(&[0, 0], "00 00");
        check_magic(&[], "nothing");
        check_magic(&gzip(&[]), "nothing");
        check_labels(&images(), &format!("{}, found 00 00 08 03; fetch the file again", expected(1)));
        check_images(
            &images()[..9],
            "expected an IDX header of 16 bytes, found 9 bytes; fetch the file again",
        );
    }

    #[test]
    fn gzip_must_be_whole() {
        let whole = gzip(&images());
        for n_left in 2..whole.len() {
            let message = "expected a whole gzip file, found one that breaks off; fetch the file again";
            check_images(&whole[..n_left], message);
        }
        let mut flipped = whole.clone();
        flipped[whole.len() - 8] ^= 1;
        let message = "expected an intact gzip file, found corrupt gzip stream does not have a matching checksum; \
                       fetch the file again";
        check_images(&flipped, message);
    }

    #[test]
    fn labels_must_be_classes() {
        let remedy = "fetch the file again";
        check_labels(&labels(&[0, 5]), &format!("label of sample 1: expected below 5, found 5; {remedy}"));
    }

    #[test]
    fn every_image_has_one_label() {
        let message = |found| {
            format!(
                "expected 2 labels, one for each image of at/images, found {found}; \
                 take both files from the same set and part"
            )
        };
        check_labels(&labels(&[0]), &message(1));
        check_labels(&labels(&[0, 4, 0]), &message(3));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = idx_images(Path::new("no/images"), Path::new("no/labels"), 5).unwrap_err();
        assert!(error.to_string().starts_with("no/images: cannot be read: "), "{error}");
    }
}
