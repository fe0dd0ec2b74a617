//! Arrays `x` and `y` from a NumPy archive, as `np.savez` and `np.savez_compressed` write it.
//!
//! An archive is a ZIP file with a member `NAME.npy` for each array. A member holds a magic, the length of
//! its header, the header as text of a Python dictionary, then the values, last dimension fastest. All
//! numbers are little-endian.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use super::ReadError;
use super::table::short;
use super::zip::{Archive, u16_at, u32_at};

/// Samples and their labels or regression targets, equally many of both.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrays {
    /// The samples, along the first of 2 to 4 dimensions.
    pub x: Array,
    /// Labels or regression targets, in 1 or 2 dimensions.
    pub y: Array,
}

/// An array of numbers.
#[derive(Clone, PartialEq)]
pub struct Array {
    /// The length in each dimension; never 0.
    pub shape: Vec<usize>,
    /// The values, last dimension fastest.
    pub values: Values,
}

/// The values of an array.
#[derive(Clone, PartialEq)]
pub enum Values {
    /// `uint8`.
    Bytes(Vec<u8>),
    /// `float32`.
    Floats(Vec<f32>),
    /// `int32` or `int64`.
    Integers(Vec<i64>),
}

impl fmt::Debug for Array {
    /// The shape only: there may be a hundred million values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.values {
            Values::Bytes(_) => "bytes",
            Values::Floats(_) => "floats",
            Values::Integers(_) => "integers",
        };
        write!(f, "{} {kind}", shape_text(&self.shape))
    }
}

/// Reads the arrays `x` and `y` of a file.
pub fn npz(file: &Path) -> Result<Arrays, ReadError> {
    let opened = File::open(file).map_err(|source| ReadError::io(file, source))?;
    arrays(file, opened)
}

/// Reads the arrays from the content of a file.
pub(super) fn arrays(file: &Path, content: impl Read + Seek) -> Result<Arrays, ReadError> {
    let mut archive = Archive::open(file, content)?;
    let mut read = |name: &str| array(file, name, archive.content(&format!("{name}.npy"))?);
    let (x, y) = (read("x")?, read("y")?);
    let unfit = |expected: &str, found: &Array| {
        Err(ReadError::unfit(file, expected, shape_text(&found.shape), "save arrays of other shapes"))
    };
    if !(2..=4).contains(&x.shape.len()) {
        return unfit("`x` in 2 to 4 dimensions, of which the first counts the samples", &x);
    }
    if !(1..=2).contains(&y.shape.len()) {
        return unfit("`y` in 1 or 2 dimensions, of which the first counts the samples", &y);
    }
    if x.shape[0] != y.shape[0] {
        return unfit(&format!("`y` for the {} samples of `x`", x.shape[0]), &y);
    }
    Ok(Arrays { x, y })
}

pub(super) const SAVE_AGAIN: &str = "save it again with np.savez(file, x=..., y=...)";

/// Parses an array in the format of `np.save`.
fn array(path: &Path, name: &str, mut content: Vec<u8>) -> Result<Array, ReadError> {
    let unfit = |expected: String, found: String| ReadError::unfit(path, expected, found, SAVE_AGAIN);
    let Header { n_bytes: n_header, kind, shape } =
        Header::read(name, &content).map_err(|(expected, found)| unfit(expected, found))?;
    let n_each = match kind.as_str() {
        "|u1" => 1,
        "<f4" | "<i4" => 4,
        "<i8" => 8,
        other => {
            let expected = format!("`{name}` of uint8, float32, int32 or int64");
            let remedy = "convert it with astype, and save it again";
            return Err(ReadError::unfit(path, expected, short(other), remedy));
        }
    };
    let n_declared = shape.iter().map(|&size| size as u128).fold(n_each, u128::saturating_mul);
    content.drain(..n_header);
    if n_declared == 0 || n_declared != content.len() as u128 {
        let expected =
            format!("{n_declared} bytes of values in `{name}` ({}), and at least one", shape_text(&shape));
        return Err(unfit(expected, content.len().to_string()));
    }
    let values = match kind.as_str() {
        "|u1" => Values::Bytes(content),
        "<f4" => Values::Floats(each(&content, f32::from_le_bytes)),
        "<i4" => Values::Integers(each(&content, |bytes| i64::from(i32::from_le_bytes(bytes)))),
        _ => Values::Integers(each(&content, i64::from_le_bytes)),
    };
    if let Values::Floats(floats) = &values
        && let Some(at) = floats.iter().position(|value| !value.is_finite())
    {
        return Err(unfit(format!("finite numbers in `{name}`"), format!("{} at place {at}", floats[at])));
    }
    Ok(Array { shape, values })
}

fn each<const N: usize, T>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&bytes| number(bytes)).collect()
}

/// The header of an array, before the values.
struct Header {
    n_bytes: usize,
    kind: String,
    shape: Vec<usize>,
}

impl Header {
    /// Parses the header of an array; an error says what was expected and what was found.
    fn read(name: &str, content: &[u8]) -> Result<Header, (String, String)> {
        let n_bytes = match content.get(..10) {
            Some(start) if start.starts_with(b"\x93NUMPY\x01") => 10 + usize::from(u16_at(start, 8)),
            Some(start) if start.starts_with(b"\x93NUMPY") && content.len() >= 12 => {
                12_usize.saturating_add(u32_at(content, 8) as usize)
            }
            _ => return Err((format!("an array in member {name}.npy"), "something else".to_owned())),
        };
        let Some(text) = content.get(10..n_bytes) else {
            return Err((format!("a header of {n_bytes} bytes of `{name}`"), content.len().to_string()));
        };
        let text = String::from_utf8_lossy(text);
        let quoted = header_field(&text, "descr").and_then(|rest| rest.strip_prefix('\''));
        let kind = quoted.and_then(|rest| rest.split_once('\'')).map(|(kind, _)| kind.to_owned());
        let in_order = header_field(&text, "fortran_order").is_some_and(|rest| rest.starts_with("False"));
        match (kind, shape(&text)) {
            (Some(kind), Some(shape)) if in_order => Ok(Header { n_bytes, kind, shape }),
            _ => Err((format!("`{name}` of numbers of one kind, in C order"), short(text.trim()))),
        }
    }
}

/// The text after a key of a Python dictionary.
fn header_field<'h>(header: &'h str, key: &str) -> Option<&'h str> {
    let (_, rest) = header.split_once(&format!("'{key}':"))?;
    Some(rest.trim_start())
}

/// The most dimensions that NumPy can write.
const MAX_DIMENSIONS: usize = 64;

fn shape(header: &str) -> Option<Vec<usize>> {
    let (sizes_text, _) = header_field(header, "shape")?.strip_prefix('(')?.split_once(')')?;
    let sizes = sizes_text.split(',').map(str::trim).filter(|size| !size.is_empty());
    sizes
        .map(|size| size.parse().ok())
        .collect::<Option<Vec<_>>>()
        .filter(|sizes| sizes.len() <= MAX_DIMENSIONS)
}

fn shape_text(shape: &[usize]) -> String {
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::write::DeflateEncoder;
    use flate2::{Compression, Crc};

    use super::*;

    /// An array in the format of `np.save`.
    pub(crate) fn npy(kind: &str, shape: &str, values: &[u8]) -> Vec<u8> {
        let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
        header.push_str(&" ".repeat(63 - (10 + header.len()) % 64));
        header.push('\n');
        let length = (header.len() as u16).to_le_bytes();
        [&b"\x93NUMPY\x01\x00"[..], &length, header.as_bytes(), values].concat()
    }

    /// An archive in the format of `np.savez`, or of `np.savez_compressed`.
    pub(crate) fn zip(members: &[(&str, Vec<u8>)], deflated: bool) -> Vec<u8> {
        let (mut file, mut directory) = (Vec::new(), Vec::new());
        for (name, content) in members {
            let mut crc = Crc::new();
            crc.update(content);
            let stored = if deflated {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            } else {
                content.clone()
            };
            let start = (file.len() as u32).to_le_bytes();
            let mut shared = vec![20, 0, 0, 0, if deflated { 8 } else { 0 }, 0, 0, 0, 0x21, 0];
            shared.extend(crc.sum().to_le_bytes());
            shared.extend((stored.len() as u32).to_le_bytes());
            shared.extend((content.len() as u32).to_le_bytes());
            shared.extend((name.len() as u16).to_le_bytes());
            // NumPy uses 64-bit sizes, which stand in 20 bytes of the member's own header only.
            file.extend([&b"PK\x03\x04"[..], &shared, &[20, 0], name.as_bytes(), &[0; 20], &stored].concat());
            directory
                .extend([&b"PK\x01\x02\x14\x03"[..], &shared, &[0; 12], &start, name.as_bytes()].concat());
        }
        let (count, start) = ((members.len() as u16).to_le_bytes(), (file.len() as u32).to_le_bytes());
        let n_listed = (directory.len() as u32).to_le_bytes();
        file.extend(directory);
        file.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &n_listed, &start, &[0, 0]].concat());
        file
    }

    fn labels(labels: &[i64]) -> Vec<u8> {
        let values: Vec<_> = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
        npy("<i8", &format!("{},", labels.len()), &values)
    }

    fn fine(deflated: bool) -> Vec<u8> {
        let x = npy("|u1", "2, 3", &[1, 2, 3, 4, 5, 6]);
        zip(&[("x.npy", x), ("y.npy", labels(&[7, -1]))], deflated)
    }

    fn read(content: &[u8]) -> Result<Arrays, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.npz");
        fs::write(&file, content).unwrap();
        npz(&file).map_err(|error| error.to_string().replace(file.to_str().unwrap(), "at"))
    }

    #[track_caller]
    fn check(content: &[u8], message: &str) {
        assert_eq!(read(content).unwrap_err(), format!("at: {message}; {SAVE_AGAIN}"));
    }

    #[test]
    fn stored_and_deflated_arrays_are_the_same() {
        for deflated in [false, true] {
            let arrays = read(&fine(deflated)).unwrap();
            assert_eq!(format!("{arrays:?}"), "Arrays { x: 2 x 3 bytes, y: 2 integers }");
            assert!(arrays.x.values == Values::Bytes(vec![1, 2, 3, 4, 5, 6]));
            assert!(arrays.y.values == Values::Integers(vec![7, -1]));
        }
        let floats: Vec<_> = [1.5_f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let integers: Vec<_> = [3_i32, -4].iter().flat_map(|value| value.to_le_bytes()).collect();
        let content =
            zip(&[("y.npy", npy("<i4", "2,", &integers)), ("x.npy", npy("<f4", "2, 1", &floats))], true);
        let arrays = read(&content).unwrap();
        assert!(arrays.x.values == Values::Floats(vec![1.5, -2.0]));
        assert!(arrays.y.values == Values::Integers(vec![3, -4]));
    }

    #[test]
    fn numpys_own_archives_are_read() {
        let stored = read(include_bytes!("../../tests/foreign/stored.npz")).unwrap();
        assert_eq!(format!("{stored:?}"), "Arrays { x: 2 x 3 x 4 bytes, y: 2 integers }");
        assert!(stored.x.values == Values::Bytes((0..24).map(|at| at * 10).collect()));
        assert!(stored.y.values == Values::Integers(vec![3, -1]));
        let deflated = read(include_bytes!("../../tests/foreign/deflated.npz")).unwrap();
        let floats = (0..24).map(|at| f32::from(at as u8 * 10)).collect();
        assert!(deflated.x.values == Values::Floats(floats) && deflated.y == stored.y);
    }

    #[test]
    fn an_archive_must_be_whole() {
        for deflated in [false, true] {
            let whole = fine(deflated);
            for n_left in 0..whole.len() {
                let error = read(&whole[..n_left]).unwrap_err();
                let expected =
                    "at: expected a whole ZIP file, as np.savez writes it, found no directory at its end";
                assert_eq!(error, format!("{expected}; {SAVE_AGAIN}"));
            }
            // No flipped bit causes a panic, and none in the values goes unnoticed.
            for at in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << (at % 8);
                if let Ok(arrays) = read(&flipped) {
                    assert!(arrays == read(&whole).unwrap(), "byte {at}");
                }
            }
        }
        let error = read(b"\x93NUMPY\x01\x00 something else").unwrap_err();
        assert!(error.contains("found no directory at its end"), "{error}");
    }

    #[test]
    fn sizes_must_agree() {
        let y = || ("y.npy", labels(&[7, -1]));
        let short = zip(&[("x.npy", npy("|u1", "2, 3", &[1, 2, 3, 4, 5])), y()], false);
        check(&short, "expected 6 bytes of values in `x` (2 x 3), and at least one, found 5");
        let empty = zip(&[("x.npy", npy("|u1", "0, 3", &[])), y()], false);
        check(&empty, "expected 0 bytes of values in `x` (0 x 3), and at least one, found 0");
        let huge = npy("<i8", "4000000000, 4000000000, 4000000000, 4000000000, 4000000000", &[0; 8]);
        let error = read(&zip(&[("x.npy", huge), y()], false)).unwrap_err();
        assert!(error.contains(" bytes of values in `x` (4000000000 x "), "{error}");

        let other = "save arrays of other shapes";
        let three = zip(&[("x.npy", npy("|u1", "3, 2", &[0; 6])), y()], false);
        assert_eq!(
            read(&three).unwrap_err(),
            format!("at: expected `y` for the 3 samples of `x`, found 2; {other}")
        );
        let flat = zip(&[("x.npy", npy("|u1", "2,", &[0; 2])), y()], false);
        let expected =
            "at: expected `x` in 2 to 4 dimensions, of which the first counts the samples, found 2";
        assert_eq!(read(&flat).unwrap_err(), format!("{expected}; {other}"));

        // A member that declares more than its bytes can hold.
        let mut declares = fine(true);
        let at = declares.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
        declares[at + 24..at + 28].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = read(&declares).unwrap_err();
        assert!(error.starts_with("at: expected 4294967295 bytes in member x.npy, found "), "{error}");
    }

    #[test]
    fn arrays_of_another_kind_are_refused() {
        let y = || ("y.npy", labels(&[7, -1]));
        let doubles = zip(&[("x.npy", npy("<f8", "2, 1", &[0; 16])), y()], false);
        let expected = "at: expected `x` of uint8, float32, int32 or int64, found \"<f8\"";
        let remedy = "convert it with astype, and save it again";
        assert_eq!(read(&doubles).unwrap_err(), format!("{expected}; {remedy}"));
        let nan = zip(&[("x.npy", npy("<f4", "2, 1", &[0, 0, 0, 0, 0, 0, 0xc0, 0x7f])), y()], false);
        check(&nan, "expected finite numbers in `x`, found NaN at place 1");
        let fortran = npy("|u1", "2, 1", &[0; 2]);
        let fortran = String::from_utf8_lossy(&fortran).replace("False", "True ");
        let fortran = [&b"\x93NUMPY"[..], &fortran.as_bytes()["\u{fffd}NUMPY".len()..]].concat();
        let error = read(&zip(&[("x.npy", fortran), y()], false)).unwrap_err();
        assert!(
            error.starts_with("at: expected `x` of numbers of one kind, in C order, found \"{'descr'"),
            "{error}"
        );
        check(
            &zip(&[("x.npy", b"text".to_vec()), y()], false),
            "expected an array in member x.npy, found something else",
        );
        check(&zip(&[y()], false), "expected a member x.npy, found \"y.npy\"");
        check(&zip(&[], false), "expected a member x.npy, found nothing");
    }
}
