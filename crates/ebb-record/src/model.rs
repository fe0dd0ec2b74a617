//! Models as safetensors files: one tensor for each piece of the layout, in 32-bit floats.

use std::fs;
use std::path::Path;

use ebb_round::Layout;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::disk;
use crate::error::{Doing, RecordError};

/// Writes a model; the same model always gives the same bytes.
///
/// # Panics
/// When the model has another length than its layout.
pub fn write_model(path: &Path, layout: &Layout, model: &[f32]) -> Result<(), RecordError> {
    assert_eq!(model.len(), layout.len(), "a model has the length of its layout");
    let bytes: Vec<u8> = model.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensors = layout.pieces().map(|(piece, range)| {
        let data = &bytes[4 * range.start..4 * range.end];
        let tensor = TensorView::new(Dtype::F32, piece.shape.clone(), data);
        (piece.name.as_str(), tensor.expect("a piece has as many numbers as its shape says"))
    });
    let file = safetensors::serialize(tensors, None).map_err(|error| misfit(path, error.to_string()))?;
    disk::replace_with(path, &file)
}

/// Reads a model that must have exactly the tensors of the layout, by name, shape and type, and in them only
/// finite numbers.
pub fn read_model(path: &Path, layout: &Layout) -> Result<Vec<f32>, RecordError> {
    let bytes = fs::read(path).doing("reading", path)?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| misfit(path, format!("not a safetensors file: {error}")))?;
    let mut model = Vec::with_capacity(layout.len());
    for (piece, _) in layout.pieces() {
        let (name, expected) = (&piece.name, &piece.shape);
        let Ok(tensor) = file.tensor(name) else {
            return Err(misfit(path, format!("tensor \"{name}\" of shape {expected:?} is missing")));
        };
        if tensor.shape() != expected {
            let found = tensor.shape();
            let message = format!("tensor \"{name}\" has shape {found:?}, expected {expected:?}");
            return Err(misfit(path, message));
        }
        if tensor.dtype() != Dtype::F32 {
            return Err(misfit(path, format!("tensor \"{name}\" holds {}, expected F32", tensor.dtype())));
        }
        let number = |chunk: &[u8]| f32::from_le_bytes(chunk.try_into().expect("chunks are exact"));
        let before = model.len();
        model.extend(tensor.data().chunks_exact(4).map(number));
        let numbers = &model[before..];
        if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
            let (found, place) = (numbers[at], position(expected, at));
            let message = format!("tensor \"{name}\" holds {found} at {place:?}, expected finite numbers");
            return Err(misfit(path, message));
        }
    }
    // A model with more to it is another model, so half of it is no start.
    let mut names = file.names();
    names.sort_unstable();
    match names.iter().find(|name| layout.pieces().all(|(piece, _)| piece.name != **name)) {
        Some(name) => Err(misfit(
            path,
            format!("tensor \"{name}\" does not belong to the model, expected {}", list(layout)),
        )),
        None => Ok(model),
    }
}

/// Where in a tensor of this shape its `at`-th number stands.
fn position(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut position = vec![0; shape.len()];
    for (place, &len) in position.iter_mut().zip(shape).rev() {
        *place = at % len;
        at /= len;
    }
    position
}

fn list(layout: &Layout) -> String {
    layout.pieces().map(|(piece, _)| format!("\"{}\"", piece.name)).collect::<Vec<_>>().join(", ")
}

fn misfit(path: &Path, message: String) -> RecordError {
    RecordError::Model { file: path.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use ebb_round::Piece;

    use super::*;

    fn layout(pieces: &[(&str, &[usize])]) -> Layout {
        let piece = |&(name, shape): &(&str, &[usize])| Piece {
            name: name.into(),
            shape: shape.into(),
            trained: true,
        };
        Layout::new(pieces.iter().map(piece).collect())
    }

    fn net() -> Layout {
        layout(&[("out.weight", &[2, 3]), ("out.bias", &[2]), ("scale", &[])])
    }

    const MODEL: [f32; 9] = [1.0, -2.5, 0.1, f32::MIN_POSITIVE, 0.0, -0.0, f32::MAX, 1e-45, 9.0];

    /// Writes [`MODEL`] as `net()` and says why it cannot be read as another model.
    fn check(read_as: &Layout, expected: &str) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        write_model(&path, &net(), &MODEL).unwrap();
        let error = read_model(&path, read_as).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {expected}", path.display()));
    }

    #[test]
    fn a_model_comes_back_to_the_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        write_model(&path, &net(), &MODEL).unwrap();
        let bits = |model: &[f32]| model.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read_model(&path, &net()).unwrap()), bits(&MODEL));
    }

    #[test]
    fn the_same_model_gives_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = |name: &str| {
            let path = folder.path().join(name);
            write_model(&path, &net(), &MODEL).unwrap();
            fs::read(path).unwrap()
        };
        let first = bytes("0");
        (1..10).for_each(|again| assert!(bytes(&again.to_string()) == first));
        let head = concat!(
            r#"{"out.bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"#,
            r#""out.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},"#,
            r#""scale":{"dtype":"F32","shape":[],"data_offsets":[32,36]}}"#
        );
        assert_eq!(&first[8..8 + head.len()], head.as_bytes());
    }

    #[test]
    fn a_misfit_names_the_tensor_and_both_shapes() {
        check(
            &layout(&[("out.weight", &[3, 2]), ("out.bias", &[2]), ("scale", &[])]),
            "tensor \"out.weight\" has shape [2, 3], expected [3, 2]",
        );
        check(&layout(&[("in.weight", &[4])]), "tensor \"in.weight\" of shape [4] is missing");
        check(
            &layout(&[("out.weight", &[2, 3]), ("out.bias", &[2])]),
            "tensor \"scale\" does not belong to the model, expected \"out.weight\", \"out.bias\"",
        );
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused_by_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let refused = |at: usize, value: f32, expected: &str| {
            let mut model = MODEL;
            model[at] = value;
            write_model(&path, &net(), &model).unwrap();
            let error = read_model(&path, &net()).unwrap_err().to_string();
            assert_eq!(error, format!("{}: tensor {expected}, expected finite numbers", path.display()));
        };
        refused(5, f32::NAN, "\"out.weight\" holds NaN at [1, 2]");
        refused(7, f32::NEG_INFINITY, "\"out.bias\" holds -inf at [1]");
        refused(8, f32::INFINITY, "\"scale\" holds inf at []");
    }

    #[test]
    fn another_type_and_another_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let refused = |bytes: &[u8], expected: &str| {
            fs::write(&path, bytes).unwrap();
            let error = read_model(&path, &layout(&[("w", &[2])])).unwrap_err().to_string();
            assert!(error.contains("a.safetensors: ") && error.contains(expected), "{error}");
        };
        let half = TensorView::new(Dtype::F16, vec![2], &[0; 4]).unwrap();
        let bytes = safetensors::serialize([("w", half)], None).unwrap();
        refused(&bytes, "tensor \"w\" holds F16, expected F32");
        refused(&bytes[..bytes.len() - 1], "not a safetensors file");
        refused(b"text", "not a safetensors file");
    }
}
