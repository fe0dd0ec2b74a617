//! Models and updates as safetensors files.

use std::path::Path;

use ebb_round::{Layout, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Running statistics of batch norms: averaged over clients, not trained.
const BUFFER_NAMES: [&str; 2] = ["running_mean", "running_var"];

/// The layout of a model in a file, and its parameters.
pub fn read_layout(file: &Path) -> Result<(Layout, Vec<f32>), String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
    let mut found = tensors.tensors();
    // Tensors keep the order of their data in the file, which is the order of the model that was saved.
    found.sort_by_key(|(_, tensor)| tensor.data().as_ptr() as usize);
    let (mut layout_tensors, mut model) = (Vec::new(), Vec::new());
    for (name, tensor) in found {
        model.extend(floats(&name, &tensor)?);
        let trained = !BUFFER_NAMES.iter().any(|buffer_name| name.ends_with(buffer_name));
        layout_tensors.push(Tensor { name, shape: tensor.shape().to_vec(), is_trained: trained });
    }
    if layout_tensors.is_empty() {
        return Err("it holds no tensor; save the model's tensors in it".to_owned());
    }
    Ok((Layout::new(layout_tensors), model))
}

/// Reads a vector with the model's layout. Tensors may lie in any order, and values may be NaN.
pub fn read_vector(file: &Path, layout: &Layout) -> Result<Vec<f32>, String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
    let mut vector = Vec::with_capacity(layout.len());
    for (entry, _) in layout.tensors() {
        let tensor =
            tensors.tensor(&entry.name).map_err(|_| format!("tensor \"{}\" is missing", entry.name))?;
        if tensor.shape() != entry.shape {
            let (name, found, expected) = (&entry.name, tensor.shape(), &entry.shape);
            return Err(format!("tensor \"{name}\" has shape {found:?}, expected {expected:?}"));
        }
        vector.extend(floats(&entry.name, &tensor)?);
    }
    Ok(vector)
}

/// Writes a vector with the model's layout.
///
/// # Panics
///
/// When its length is not that of the layout.
pub fn write_vector(file: &Path, layout: &Layout, vector: &[f32]) -> Result<(), String> {
    assert_eq!(vector.len(), layout.len(), "a vector has the length of its layout");
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensors = layout.tensors().map(|(entry, range)| {
        let data = &bytes[4 * range.start..4 * range.end];
        let tensor = TensorView::new(Dtype::F32, entry.shape.clone(), data);
        (entry.name.clone(), tensor.expect("a tensor has as many parameters as its shape says"))
    });
    let bytes = safetensors::serialize(tensors, None).map_err(|error| error.to_string())?;
    std::fs::write(file, bytes).map_err(|error| error.to_string())
}

fn floats(name: &str, tensor: &TensorView<'_>) -> Result<Vec<f32>, String> {
    match tensor.dtype() {
        Dtype::F32 => {
            Ok(tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        }
        other => {
            Err(format!("tensor \"{name}\" has type {other}, expected F32; convert it, or leave it out"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_read_back_as_written_with_its_tensors() {
        let tensor = |name: &str, shape: &[usize], trained| Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            is_trained: trained,
        };
        let layout =
            Layout::new(vec![tensor("b.weight", &[2, 2], true), tensor("a.running_mean", &[1], false)]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.safetensors");
        let model = [1.0, 2.0, f32::NAN, 4.0, 5.0];
        write_vector(&file, &layout, &model).unwrap();
        let back = read_vector(&file, &layout).unwrap();
        assert_eq!(back.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), model.map(f32::to_bits));
        let (found, _) = read_layout(&file).unwrap();
        assert_eq!(found.len(), 5);
        let trained: Vec<_> =
            found.tensors().map(|(tensor, _)| (tensor.name.clone(), tensor.is_trained)).collect();
        assert!(
            trained.contains(&("a.running_mean".to_owned(), false))
                && trained.contains(&("b.weight".to_owned(), true))
        );
    }

    #[test]
    fn an_error_names_the_wrong_shape() {
        let layout = |shape: &[usize]| {
            Layout::new(vec![Tensor { name: "w".to_owned(), shape: shape.to_vec(), is_trained: true }])
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.safetensors");
        write_vector(&file, &layout(&[2]), &[1.0, 2.0]).unwrap();
        let error = read_vector(&file, &layout(&[3])).unwrap_err();
        assert_eq!(error, "tensor \"w\" has shape [2], expected [3]");
    }
}
