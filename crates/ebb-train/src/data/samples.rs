//! Labelled samples, loaded once and shared by all clients as lists of indices.

use crate::kernels::{Path, bytes};

/// Labelled samples.
#[derive(Debug)]
pub struct Samples {
    inputs: Inputs,
    labels: Vec<u32>,
    /// Where samples have values instead of labels: one row of them a sample.
    aims: Vec<f32>,
    width: usize,
}

#[derive(Debug)]
enum Inputs {
    /// Row after row.
    Floats(Vec<f32>),
    /// Pixels stay bytes in memory; each channel has a scale and an offset.
    Bytes { pixels: Vec<u8>, meaning: Meaning },
}

/// Pixels scaled together: as many times the channels, so that the compiler makes vectors of them.
const PIXELS: usize = 16;

/// What bytes mean: `byte * scale + offset`, for each channel of some pixels.
#[derive(Debug)]
struct Meaning {
    scales: Vec<f32>,
    offsets: Vec<f32>,
}

impl Meaning {
    fn new(channels: &[(f32, f32)]) -> Meaning {
        let n_pixels = if channels.len() == 1 { 1 } else { PIXELS };
        let repeated = |part: fn(&(f32, f32)) -> f32| {
            channels.iter().cycle().take(n_pixels * channels.len()).map(part).collect()
        };
        Meaning { scales: repeated(|one| one.0), offsets: repeated(|one| one.1) }
    }

    fn write(&self, path: Path, bytes: &[u8], to: &mut [f32]) {
        bytes::scale(path, bytes, &self.scales, &self.offsets, to);
    }
}

impl Samples {
    /// Rows of `width` numbers.
    ///
    /// # Panics
    /// When there are not as many rows as labels.
    pub fn from_floats(rows: Vec<f32>, labels: Vec<u32>, width: usize) -> Self {
        assert_eq!(rows.len(), labels.len() * width, "one row a label");
        Samples { inputs: Inputs::Floats(rows), labels, aims: Vec::new(), width }
    }

    /// Rows of `width` numbers with values to be met instead of labels, as many for each row.
    ///
    /// # Panics
    /// When there are not as many values for each row.
    pub fn from_values(rows: Vec<f32>, values: Vec<f32>, width: usize) -> Self {
        let count = rows.len() / width.max(1);
        assert!(rows.len() == count * width && count > 0, "rows");
        assert!(!values.is_empty() && values.len().is_multiple_of(count), "values");
        Samples { inputs: Inputs::Floats(rows), labels: vec![0; count], aims: values, width }
    }

    /// Sequences of `width` symbols.
    ///
    /// # Panics
    /// When there are not as many sequences as labels.
    pub fn from_symbols(symbols: Vec<u8>, labels: Vec<u32>, width: usize) -> Self {
        assert_eq!(symbols.len(), labels.len() * width, "one sequence a label");
        let meaning = Meaning::new(&[(1.0, 0.0)]);
        Samples { inputs: Inputs::Bytes { pixels: symbols, meaning }, labels, aims: Vec::new(), width }
    }

    /// Images of bytes, channels interleaved; a byte b of a channel means `(b / 255 - mean) / deviation`.
    ///
    /// # Panics
    /// When there are not as many images as labels.
    pub fn from_bytes(pixels: Vec<u8>, labels: Vec<u32>, width: usize, scaling: &[(f32, f32)]) -> Self {
        assert_eq!(pixels.len(), labels.len() * width, "one image a label");
        assert!(!scaling.is_empty() && width.is_multiple_of(scaling.len()), "one scaling a channel");
        let line = |&(mean, deviation): &(f32, f32)| (1.0 / (255.0 * deviation), -mean / deviation);
        let meaning = Meaning::new(&scaling.iter().map(line).collect::<Vec<_>>());
        Samples { inputs: Inputs::Bytes { pixels, meaning }, labels, aims: Vec::new(), width }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The label of one.
    pub fn label(&self, idx: u32) -> u32 {
        self.labels[idx as usize]
    }

    /// The largest label.
    pub fn max_label(&self) -> Option<u32> {
        self.labels.iter().max().copied()
    }

    /// The largest number among the inputs, if there is any.
    pub fn max_input(&self) -> Option<f32> {
        match &self.inputs {
            Inputs::Floats(rows) => rows.iter().copied().reduce(f32::max),
            Inputs::Bytes { pixels, meaning } => {
                let period = meaning.scales.len();
                let value = |(at, &byte): (usize, &u8)| {
                    f32::from(byte) * meaning.scales[at % period] + meaning.offsets[at % period]
                };
                pixels.iter().enumerate().map(value).reduce(f32::max)
            }
        }
    }

    /// How many values each sample should meet; none where it has a label.
    pub fn n_aims(&self) -> usize {
        self.aims.len() / self.len().max(1)
    }

    /// Adds the values that samples should meet, where there are any.
    pub fn fill_aims(&self, idxs: impl Iterator<Item = u32>, to: &mut Vec<f32>) {
        let n_aims = self.n_aims();
        if n_aims > 0 {
            idxs.for_each(|idx| to.extend_from_slice(&self.aims[idx as usize * n_aims..][..n_aims]));
        }
    }

    /// Numbers a sample.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes samples one after another, and adds their labels: the same bits on every path.
    ///
    /// # Panics
    /// When there is no room for them.
    pub fn fill(
        &self,
        path: Path,
        idxs: impl ExactSizeIterator<Item = u32>,
        to: &mut [f32],
        labels: &mut Vec<u32>,
    ) {
        assert!(idxs.len() * self.width <= to.len(), "more samples than fit");
        for (idx, to) in idxs.zip(to.chunks_exact_mut(self.width)) {
            labels.push(self.labels[idx as usize]);
            let range = idx as usize * self.width..(idx as usize + 1) * self.width;
            match &self.inputs {
                Inputs::Floats(rows) => to.copy_from_slice(&rows[range]),
                Inputs::Bytes { pixels, meaning } => meaning.write(path, &pixels[range], to),
            }
        }
    }

    /// One sample as numbers.
    pub fn row(&self, idx: u32) -> Vec<f32> {
        let mut row = vec![0.0; self.width];
        self.fill(Path::Portable, std::iter::once(idx), &mut row, &mut Vec::new());
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_numbers_channel_by_channel() {
        let samples = Samples::from_bytes(vec![0, 255, 51, 102], vec![1, 0], 2, &[(0.0, 1.0), (0.5, 0.5)]);
        let near = |row: Vec<f32>, expected: [f32; 2]| {
            row.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 1e-6)
        };
        assert!(near(samples.row(0), [0.0, 1.0]) && near(samples.row(1), [0.2, -0.2]));
        assert_eq!((samples.label(0), samples.len()), (1, 2));
        // Longer than what is scaled together, and not a multiple of it.
        let bytes: Vec<u8> = (0..3 * 37).collect();
        let samples = Samples::from_bytes(bytes, vec![0], 3 * 37, &[(0.1, 0.5), (0.2, 0.25), (0.3, 2.0)]);
        for (at, value) in samples.row(0).into_iter().enumerate() {
            let (mean, deviation) = [(0.1, 0.5), (0.2, 0.25), (0.3, 2.0)][at % 3];
            assert!((value - (at as f32 / 255.0 - mean) / deviation).abs() < 1e-6);
        }
        let symbols = Samples::from_symbols(vec![3, 79, 0, 255], vec![5, 6], 2);
        assert_eq!((symbols.row(0), symbols.max_input()), (vec![3.0, 79.0], Some(255.0)));
    }
}
