//! Models as safetensors files, as PyTorch reads and writes them: one tensor of 32-bit floats per tensor of
//! the layout.
//!
//! PyTorch's batch norms also count batches. Nothing here depends on that count. It is ignored when a model
//! is read, and written as 0, so that PyTorch finds all tensors.

use std::fs;
use std::path::Path;

use ebb_round::Layout;
use safetensors::{Dtype, SafeTensorError, SafeTensors, tensor::TensorView};

use crate::disk;
use crate::error::{IoContext, RecordError};

/// Writes a model. Equal models give equal bytes.
///
/// # Panics
/// If the model and its layout differ in length.
pub fn write_model(path: &Path, layout: &Layout, model: &[f32]) -> Result<(), RecordError> {
    assert_eq!(model.len(), layout.len(), "a model has the length of its layout");
    let bytes: Vec<u8> = model.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensors = layout.tensors().map(|(layout_tensor, range)| {
        let data = &bytes[4 * range.start..4 * range.end];
        let tensor = TensorView::new(Dtype::F32, layout_tensor.shape.clone(), data);
        (layout_tensor.name.clone(), tensor.expect("a tensor has as many numbers as its shape states"))
    });
    let zero = 0_i64.to_le_bytes();
    let count = || TensorView::new(Dtype::I64, Vec::new(), &zero).expect("one number of eight bytes");
    let counts = batch_counts(layout).map(|name| (name, count()));
    let file = safetensors::serialize(tensors.chain(counts), None)
        .map_err(|error| model_error(path, error.to_string()))?;
    disk::replace_with(path, &file)
}

/// Reads a model with exactly the tensors of the layout, by name and shape. Their order is free. They may
/// have any common float type, and only finite numbers.
pub fn read_model(path: &Path, layout: &Layout) -> Result<Vec<f32>, RecordError> {
    let bytes = fs::read(path).doing("reading", path)?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| model_error(path, explain_unreadable(&bytes, &error)))?;
    let mut model = Vec::with_capacity(layout.len());
    for (layout_tensor, _) in layout.tensors() {
        let (name, expected) = (&layout_tensor.name, &layout_tensor.shape);
        let Ok(tensor) = file.tensor(name) else {
            let mut found: Vec<_> = file.iter().collect();
            found.sort_by_key(|(name, _)| *name);
            let found = list_tensors(found.iter().map(|(name, tensor)| (*name, tensor.shape())));
            let remedy = "rename the tensors, or change the model";
            let message =
                format!("tensor \"{name}\" of shape {expected:?} is missing, found {found}; {remedy}");
            return Err(model_error(path, message));
        };
        if tensor.shape() != expected {
            let found = tensor.shape();
            let remedy = "give the file of a model like this one, or change the model";
            let message = format!("tensor \"{name}\" has shape {found:?}, expected {expected:?}; {remedy}");
            return Err(model_error(path, message));
        }
        let Some(numbers) = to_f32(&tensor) else {
            let (found, remedy) = (tensor.dtype(), "convert it, in PyTorch with model.float()");
            let message =
                format!("tensor \"{name}\" holds {found}, expected F32, F16, BF16 or F64; {remedy}");
            return Err(model_error(path, message));
        };
        if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
            let (found, place) = (numbers[at], index_of(expected, at));
            let remedy = "give a model from before it diverged";
            let message =
                format!("tensor \"{name}\" holds {found} at {place:?}, expected finite numbers; {remedy}");
            return Err(model_error(path, message));
        }
        model.extend(numbers);
    }
    // A file with more tensors is of another model, and part of it is no valid start.
    let known = |name: &str| {
        layout.tensors().any(|(layout_tensor, _)| layout_tensor.name == name)
            || batch_counts(layout).any(|count| count == name)
    };
    let mut tensors = file.tensors();
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    match tensors.iter().find(|(name, _)| !known(name)) {
        Some((name, tensor)) => {
            let expected = list_tensors(
                layout
                    .tensors()
                    .map(|(layout_tensor, _)| (layout_tensor.name.as_str(), layout_tensor.shape.as_slice())),
            );
            let (found, remedy) = (tensor.shape(), "leave it out, or change the model");
            let message = format!(
                "tensor \"{name}\" of shape {found:?} does not belong to the model, expected {expected}; {remedy}"
            );
            Err(model_error(path, message))
        }
        None => Ok(model),
    }
}

/// The names of the batch counts of PyTorch, which it keeps in addition to the statistics of batch norms.
fn batch_counts(layout: &Layout) -> impl Iterator<Item = String> {
    layout.tensors().filter(|(tensor, _)| !tensor.is_trained).filter_map(|(tensor, _)| {
        tensor.name.strip_suffix("running_var").map(|norm| format!("{norm}num_batches_tracked"))
    })
}

/// The numbers of a tensor as 32-bit floats. `None` if they are not floats.
fn to_f32(tensor: &TensorView<'_>) -> Option<Vec<f32>> {
    let data = tensor.data();
    Some(match tensor.dtype() {
        Dtype::F32 => data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Dtype::F64 => data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect(),
        Dtype::F16 => data.as_chunks().0.iter().map(|bytes| f16_to_f32(u16::from_le_bytes(*bytes))).collect(),
        Dtype::BF16 => {
            let number = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            data.as_chunks().0.iter().map(number).collect()
        }
        _ => return None,
    })
}

/// Converts a 16-bit float: sign, 5 bits of exponent, 10 of fraction.
fn f16_to_f32(bits: u16) -> f32 {
    let (exponent, fraction) = (u32::from(bits >> 10) & 0x1f, u32::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction as f32 / f32::from_bits((127 + 24) << 23),
        31 => f32::from_bits(0x7f80_0000 | fraction << 13),
        _ => f32::from_bits((exponent + 112) << 23 | fraction << 13),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// Why these bytes are not a safetensors file, and the remedy.
fn explain_unreadable(bytes: &[u8], error: &SafeTensorError) -> String {
    let whole = match (error, bytes.get(8)) {
        (SafeTensorError::MetadataIncompleteBuffer, _) => declared_len(bytes).map(|len| len.to_string()),
        (SafeTensorError::InvalidHeaderLength, Some(b'{')) => {
            header_len(bytes).map(|len| format!("more than {len}"))
        }
        _ => None,
    };
    if let Some(whole) = whole {
        return format!("damaged: expected {whole} bytes, found {}; copy the file again", bytes.len());
    }
    // `torch.save` writes a zip archive.
    let is = if bytes.starts_with(b"PK\x03\x04") { " but one of torch.save" } else { "" };
    format!(
        "not a safetensors file{is} ({error}); \
         write one in PyTorch with safetensors.torch.save_file(model.state_dict(), path)"
    )
}

/// The length of the header as the header states it, with its own length field.
fn header_len(bytes: &[u8]) -> Option<usize> {
    let len = u64::from_le_bytes(*bytes.first_chunk()?);
    usize::try_from(len).ok()?.checked_add(8)
}

/// The length of the file as the header states it.
fn declared_len(bytes: &[u8]) -> Option<usize> {
    let start = header_len(bytes)?;
    let header: serde_json::Value = serde_json::from_slice(bytes.get(8..start)?).ok()?;
    let ends = header.as_object()?.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    start.checked_add(usize::try_from(ends.max().unwrap_or(0)).ok()?)
}

/// The index of the element at this offset in a tensor of this shape.
fn index_of(shape: &[usize], mut offset: usize) -> Vec<usize> {
    let mut position = vec![0; shape.len()];
    for (place, &len) in position.iter_mut().zip(shape).rev() {
        *place = offset % len;
        offset /= len;
    }
    position
}

/// A list of tensors with names and shapes, truncated if it is long.
fn list_tensors<'l>(tensors: impl Iterator<Item = (&'l str, &'l [usize])>) -> String {
    const SHOWN: usize = 12;
    let mut all: Vec<_> = tensors.map(|(name, shape)| format!("\"{name}\" {shape:?}")).collect();
    if all.is_empty() {
        return "none".to_owned();
    }
    let more = all.len().saturating_sub(SHOWN);
    all.truncate(SHOWN);
    let shown = all.join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

fn model_error(path: &Path, message: String) -> RecordError {
    RecordError::Model { file: path.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use ebb_round::Tensor;

    use super::*;

    fn layout(tensors: &[(&str, &[usize])]) -> Layout {
        let tensor = |&(name, shape): &(&str, &[usize])| Tensor {
            name: name.into(),
            shape: shape.into(),
            is_trained: true,
        };
        Layout::new(tensors.iter().map(tensor).collect())
    }

    fn net() -> Layout {
        layout(&[("out.weight", &[2, 3]), ("out.bias", &[2]), ("scale", &[])])
    }

    const MODEL: [f32; 9] = [1.0, -2.5, 0.1, f32::MIN_POSITIVE, 0.0, -0.0, f32::MAX, 1e-45, 9.0];

    /// Writes [`MODEL`] as `net()`, and compares the error of reading it as another model.
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
            "tensor \"out.weight\" has shape [2, 3], expected [3, 2]; \
             give the file of a model like this one, or change the model",
        );
        check(
            &layout(&[("in.weight", &[4])]),
            "tensor \"in.weight\" of shape [4] is missing, found \"out.bias\" [2], \"out.weight\" [2, 3], \
             \"scale\" []; rename the tensors, or change the model",
        );
        check(
            &layout(&[("out.weight", &[2, 3]), ("out.bias", &[2])]),
            "tensor \"scale\" of shape [] does not belong to the model, expected \"out.weight\" [2, 3], \
             \"out.bias\" [2]; leave it out, or change the model",
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
            assert_eq!(
                error,
                format!(
                    "{}: tensor {expected}, expected finite numbers; give a model from before it diverged",
                    path.display()
                )
            );
        };
        refused(5, f32::NAN, "\"out.weight\" holds NaN at [1, 2]");
        refused(7, f32::NEG_INFINITY, "\"out.bias\" holds -inf at [1]");
        refused(8, f32::INFINITY, "\"scale\" holds inf at []");
    }

    /// A safetensors file of these tensors.
    fn file(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
        let tensors = tensors.iter().map(|(name, dtype, shape, data)| {
            (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap())
        });
        safetensors::serialize(tensors, None).unwrap()
    }

    /// Reads these bytes as the model "w" of two parameters.
    fn read(bytes: &[u8]) -> Result<Vec<f32>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        fs::write(&path, bytes).unwrap();
        let without_path =
            |error: RecordError| error.to_string().replace(&format!("{}: ", path.display()), "");
        read_model(&path, &layout(&[("w", &[2])])).map_err(without_path)
    }

    #[test]
    fn other_floats_are_converted_and_other_types_refused() {
        let (one, two) = (0.1_f64.to_le_bytes(), (-1e-300_f64).to_le_bytes());
        let read_as = |dtype, data: &[u8]| read(&file(&[("w", dtype, &[2], data)]));
        assert_eq!(read_as(Dtype::F64, &[one, two].concat()), Ok(vec![0.1, -0.0]));
        assert_eq!(read_as(Dtype::F16, &[0x00, 0x3c, 0x01, 0x80]), Ok(vec![1.0, -(2.0_f32.powi(-24))]));
        assert_eq!(read_as(Dtype::F16, &[0xff, 0x7b, 0x55, 0x35]), Ok(vec![65504.0, 0.333_251_95]));
        assert_eq!(read_as(Dtype::BF16, &[0x80, 0xbf, 0x49, 0x40]), Ok(vec![-1.0, 3.140_625]));
        let infinite = read_as(Dtype::F16, &[0x00, 0x7c, 0x00, 0x7e]).unwrap_err();
        assert!(infinite.starts_with("tensor \"w\" holds inf at [0], expected finite numbers"), "{infinite}");
        assert_eq!(
            read_as(Dtype::I32, &[0; 8]).unwrap_err(),
            "tensor \"w\" holds I32, expected F32, F16, BF16 or F64; convert it, in PyTorch with model.float()"
        );
    }

    #[test]
    fn damaged_and_other_files_are_told_apart() {
        let bytes = file(&[("w", Dtype::F32, &[2], &[0; 8])]);
        let len = bytes.len();
        assert_eq!(read(&bytes), Ok(vec![0.0; 2]));
        let damaged = |bytes: &[u8], expected: &str| {
            let message =
                format!("damaged: expected {expected} bytes, found {}; copy the file again", bytes.len());
            assert_eq!(read(bytes).unwrap_err(), message);
        };
        damaged(&bytes[..len - 1], &len.to_string());
        damaged(&[&bytes[..], b"more"].concat(), &len.to_string());
        damaged(&bytes[..20], &format!("more than {}", len - 8));
        let other = |bytes: &[u8], expected: &str| {
            let error = read(bytes).unwrap_err();
            assert!(error.starts_with(expected) && error.contains("safetensors.torch.save_file"), "{error}");
        };
        other(b"", "not a safetensors file (");
        other(b"a text of more than eight bytes", "not a safetensors file (");
        other(b"PK\x03\x04\x00\x00\x08\x08\x00\x00", "not a safetensors file but one of torch.save (");
        // Every truncation is refused.
        (0..len).for_each(|end| assert!(read(&bytes[..end]).is_err(), "{end} of {len} bytes"));
    }

    #[test]
    fn a_batch_norm_counts_no_batches_here_but_its_count_travels_along() {
        let tensor = |name: &str, trained| Tensor { name: name.into(), shape: vec![1], is_trained: trained };
        let norm = Layout::new(vec![tensor("bn1.weight", true), tensor("bn1.running_var", false)]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        write_model(&path, &norm, &[2.0, 3.0]).unwrap();
        let bytes = fs::read(&path).unwrap();
        let written = SafeTensors::deserialize(&bytes).unwrap();
        let count = written.tensor("bn1.num_batches_tracked").unwrap();
        assert_eq!((count.dtype(), count.shape(), count.data()), (Dtype::I64, &[][..], &[0; 8][..]));
        assert_eq!(read_model(&path, &norm).unwrap(), [2.0, 3.0]);
        // Files without the count are read too, but a count without a batch norm is refused.
        let without = file(&[
            ("bn1.running_var", Dtype::F32, &[1], &3_f32.to_le_bytes()),
            ("bn1.weight", Dtype::F32, &[1], &2_f32.to_le_bytes()),
        ]);
        fs::write(&path, without).unwrap();
        assert_eq!(read_model(&path, &norm).unwrap(), [2.0, 3.0]);
        let stray =
            file(&[("w", Dtype::F32, &[2], &[0; 8]), ("bn1.num_batches_tracked", Dtype::I64, &[], &[0; 8])]);
        let error = read(&stray).unwrap_err();
        assert!(
            error.starts_with("tensor \"bn1.num_batches_tracked\" of shape [] does not belong"),
            "{error}"
        );
    }
}
