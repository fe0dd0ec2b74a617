use std::fs;

use tar::{EntryType, Header};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::samples::{gzip, tar_of};

type Unpack = fn(&Path, &[&str], &mut FileHandler<'_>) -> Result<(), SourceError>;

/// The extracted files in order, or why extraction failed.
fn unpacked(unpack: Unpack, archive: &[u8], wanted: &[&str]) -> Result<Vec<(String, String)>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    fs::write(&path, archive).unwrap();
    let mut taken = Vec::new();
    let done = unpack(&path, wanted, &mut |name, content| {
        let mut text = String::new();
        content.read_to_string(&mut text).map_err(damaged)?;
        taken.push((name.to_owned(), text));
        Ok(())
    });
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing but the archive is there");
    match done {
        Ok(()) => Ok(taken),
        Err(SourceError::Failed(reason)) => Err(reason),
        Err(other) => panic!("{other:?}"),
    }
}

fn check(unpack: Unpack, archive: &[u8], wanted: &[&str], expected: Result<&[(&str, &str)], &str>) {
    let expected = expected.map(|files| {
        files.iter().map(|(name, text)| (String::from(*name), String::from(*text))).collect::<Vec<_>>()
    });
    assert_eq!(unpacked(unpack, archive, wanted), expected.map_err(str::to_owned));
}

/// Two wanted files among hostile entries.
fn hostile_tar() -> Vec<u8> {
    use EntryType::{Regular, Symlink};
    tar_of(&[
        ("../../etc/passwd", Regular, b"out"),
        ("/etc/passwd", Regular, b"out"),
        ("./data/one", Symlink, b""),
        ("./data/one", Regular, b"first"),
        ("data/../data/two", Regular, b"wrong"),
        ("data/two", Regular, b"second"),
    ])
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    lzma_rs::xz_compress(&mut Cursor::new(bytes), &mut packed).unwrap();
    packed
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// An `ar` archive as Debian writes it; its first members have odd lengths.
fn deb(data_name: &str, data: &[u8]) -> Vec<u8> {
    let mut package = b"!<arch>\n".to_vec();
    for (name, content) in [("debian-binary", &b"2.0"[..]), ("control.tar.xz", b"12345"), (data_name, data)] {
        writeln!(package, "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, 0, "100644", content.len())
            .unwrap();
        package.extend_from_slice(content);
        package.resize(package.len().next_multiple_of(2), b'\n');
    }
    package
}

fn zip(files: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in files {
        writer.start_file(*name, SimpleFileOptions::default()).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

const WANTED: [&str; 2] = ["data/two", "data/one"];
const TAKEN: [(&str, &str); 2] = [("data/one", "first"), ("data/two", "second")];

#[test]
fn only_wanted_files_are_taken_out_of_a_tgz() {
    let tgz = gzip(&hostile_tar());
    check(extract_tgz, &tgz, &WANTED, Ok(&TAKEN));
    check(extract_tgz, &tgz, &["data/two"], Ok(&TAKEN[1..]));
    check(extract_tgz, &tgz, &["data/two", "data/three"], Err("the archive lacks data/three"));
}

#[test]
fn a_deb_may_be_compressed_in_any_supported_way() {
    let tar = hostile_tar();
    check(extract_deb, &deb("data.tar", &tar), &WANTED, Ok(&TAKEN));
    check(extract_deb, &deb("data.tar.gz", &gzip(&tar)), &WANTED, Ok(&TAKEN));
    check(extract_deb, &deb("data.tar.xz", &xz(&tar)), &WANTED, Ok(&TAKEN));
    check(extract_deb, &deb("data.tar.zst/", &zstd(&tar)), &WANTED, Ok(&TAKEN));
    let message = "the archive is damaged: the compression of data.tar.lzma is not supported";
    check(extract_deb, &deb("data.tar.lzma", &tar), &WANTED, Err(message));
    check(extract_deb, b"PK, no package", &WANTED, Err("the archive is damaged: not a Debian package"));
}

#[test]
fn only_wanted_files_are_taken_out_of_a_zip() {
    let zip = zip(&[("../../etc/passwd", "out"), ("data/one", "first"), ("data/two", "second")]);
    check(extract_zip, &zip, &["data/one", "data/two"], Ok(&TAKEN));
    let error = unpacked(extract_zip, &zip, &["data/three"]).unwrap_err();
    assert!(error.starts_with("data/three: "), "{error}");
}

#[test]
fn an_archive_that_unpacks_to_too_much_is_refused() {
    // An endless file before the wanted one.
    let mut endless = Header::new_ustar();
    endless.set_size(1 << 40);
    endless.set_cksum();
    let tar = endless.as_bytes().chain(io::repeat(0));
    let tar = LimitedReader { from: tar, n_read: 0, limit: 100_000 };
    let Err(SourceError::Failed(reason)) = extract_limited_tar(tar, &WANTED, &mut |name, _| panic!("{name}"))
    else {
        panic!("it was unpacked")
    };
    assert_eq!(reason, "the archive is damaged: it unpacks to more than 100000 bytes");
}

#[test]
fn names_outside_of_headers_are_not_read() {
    let long = ("././@LongLink", EntryType::GNULongName, &b"data/one\0"[..]);
    let tar = tar_of(&[long, ("data/o", EntryType::Regular, b"first")]);
    check(extract_tgz, &gzip(&tar), &["data/one"], Err("the archive lacks data/one"));
    check(extract_tgz, &gzip(&tar), &["data/o"], Ok(&[("data/o", "first")]));
}

/// Tries the archive cut off at many lengths, up to the end of the last wanted file.
fn check_truncated(unpack: Unpack, archive: &[u8], step: usize, n_last: usize) {
    for n_left in (0..archive.len() - n_last).step_by(step) {
        assert!(unpacked(unpack, &archive[..n_left], &WANTED).is_err(), "{n_left} of {}", archive.len());
    }
}

#[test]
fn an_archive_truncated_anywhere_is_refused() {
    let tar = hostile_tar();
    // A tar ends with two empty blocks, and the last file is padded to a block.
    let filling = 2 * 512 + 512 - "second".len();
    check_truncated(extract_tgz, &gzip(&tar), 3, 40);
    check_truncated(extract_deb, &deb("data.tar", &tar), 61, filling);
    check_truncated(extract_deb, &deb("data.tar.gz", &gzip(&tar)), 3, 40);
    check_truncated(extract_deb, &deb("data.tar.xz", &xz(&tar)), 61, 4);
    check_truncated(extract_deb, &deb("data.tar.zst", &zstd(&tar)), 3, 8);
    check_truncated(extract_zip, &zip(&TAKEN), 3, 1);
}

#[test]
fn no_damaged_byte_makes_an_unpacker_panic() {
    let tar = hostile_tar();
    let archives: [(Unpack, Vec<u8>); 5] = [
        (extract_tgz, gzip(&tar)),
        (extract_deb, deb("data.tar.gz", &gzip(&tar))),
        (extract_deb, deb("data.tar.xz", &xz(&tar))),
        (extract_deb, deb("data.tar.zst", &zstd(&tar))),
        (extract_zip, zip(&TAKEN)),
    ];
    for (unpack, archive) in archives {
        // Stored content makes a long archive, so only about 100 of its bytes are tried.
        for byte_idx in (0..archive.len()).step_by(1 + archive.len() / 100) {
            let mut flipped = archive.clone();
            flipped[byte_idx] ^= 1 << (byte_idx % 8);
            let _ = unpacked(unpack, &flipped, &WANTED);
        }
    }
}
