//! A batch that is stored as a WebP sheet and an IDX file of labels counts as the batch if it makes the same
//! bytes.

use std::fs;
use std::path::Path;

use ebb_fetch::{
    DataFile, DataLocation, DataSet, DataSource, FetchError, FileLayout, ImageSheet, NoProgress,
    PinnedDigest, SourceFile, WrongFiles, check, get, status,
};
use ebb_settings::DataFolder;
use image_webp::{ColorType, WebPEncoder};

use crate::samples::sha256;

const SIDE: usize = 32;

/// The last two labels belong to two tiles side by side.
const LABELS: [u8; 3] = [5, 1, 2];

#[test]
fn a_right_sheet_counts_and_nothing_is_fetched() {
    let (data, data_set) = (tempfile::tempdir().unwrap(), data_set());
    put(data.path(), &LABELS, 9);
    assert_eq!(status(&data_set, data.path()).present.len(), 2);
    check(&data_set, data.path(), &mut NoProgress).unwrap();
    let folder = DataFolder { path: data.path().to_owned(), named_by: "--data" };
    assert_eq!(get(&data_set, &folder, WrongFiles::Refuse, &mut NoProgress).unwrap().fetched, [""; 0]);
}

#[test]
fn a_wrong_pixel_or_label_is_found() {
    let check = |labels: &[u8], pixel, file: &str, message: &str| {
        let data = tempfile::tempdir().unwrap();
        put(data.path(), labels, pixel);
        let error = check(&data_set(), data.path(), &mut NoProgress).unwrap_err();
        let FetchError::WrongFile { file: found, .. } = &error else { panic!("{error}") };
        assert_eq!(*found, data.path().join("set").join(file));
        assert!(error.to_string().contains(message), "{error}");
    };
    let expected = format!("expected the images of batch.bin (sha256 {}", sha256(&batch(&LABELS[1..], 9)));
    check(&LABELS, 8, "batch.webp", &expected);
    check(&LABELS, 8, "batch.webp", &format!("found sha256 {};", sha256(&batch(&LABELS[1..], 8))));
    check(&[5, 1, 3], 9, "batch.webp", &format!("found sha256 {};", sha256(&batch(&[1, 3], 9))));
    check(&[5, 1], 9, "labels", "found 2 labels, but 2 from label 1 on are needed;");
}

fn data_set() -> DataSet {
    let batch = batch(&LABELS[1..], 9);
    let file = DataFile {
        name: "batch.bin",
        n_bytes: batch.len() as u64,
        digest: PinnedDigest::Plain(sha256(&batch).leak()),
    };
    DataSet {
        name: "made-up",
        title: "",
        licence: "",
        files: vec![file].leak(),
        locations: &[
            DataLocation { folder: "set", layout: FileLayout::PlainFiles },
            DataLocation {
                folder: "set",
                layout: FileLayout::Sheets(&[ImageSheet {
                    picture: "batch.webp",
                    labels: "labels",
                    first_label: 1,
                    file: "batch.bin",
                }]),
            },
        ],
        sources: &[DataSource::Urls {
            base: "http://127.0.0.1:9/",
            files: &[SourceFile { path: "batch.bin", file: "batch.bin" }],
        }],
        by_hand: "",
    }
}

/// Two black images; the last pixel of the second has this red.
fn batch(labels: &[u8], pixel: u8) -> Vec<u8> {
    let mut batch = vec![0; 2 * (1 + 3 * SIDE * SIDE)];
    batch[0] = labels[0];
    let second = batch.len() / 2;
    batch[second] = labels[1];
    batch[second + SIDE * SIDE] = pixel;
    batch
}

fn put(data: &Path, labels: &[u8], pixel: u8) {
    let mut pixels = vec![0; 2 * SIDE * SIDE * 3];
    let last = pixels.len() - 3;
    pixels[last] = pixel;
    let mut sheet = Vec::new();
    WebPEncoder::new(&mut sheet).encode(&pixels, 2 * SIDE as u32, SIDE as u32, ColorType::Rgb8).unwrap();
    let folder = data.join("set");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("batch.webp"), sheet).unwrap();
    fs::write(folder.join("labels"), [&[0, 0, 8, 1, 0, 0, 0, labels.len() as u8], labels].concat()).unwrap();
}
