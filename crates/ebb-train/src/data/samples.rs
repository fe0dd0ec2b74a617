//! Labelled samples, loaded once and shared by all clients as lists of indices.

use std::sync::Arc;

use crate::kernels::{KernelPath, bytes};

/// Labelled samples.
#[derive(Debug)]
pub struct Samples {
    inputs: Inputs,
    /// One per sample; empty where the inputs are a text, which holds the labels itself.
    labels: Vec<u32>,
    /// Regression targets instead of labels: one row per sample.
    targets: Vec<f32>,
    width: usize,
}

#[derive(Debug)]
enum Inputs {
    /// Rows of floats, one after another.
    Floats(Vec<f32>),
    /// Pixels stay bytes in memory; each channel has a scale and an offset.
    Bytes { pixels: Vec<u8>, scaling: Scaling },
    /// Sequences that share a text, and where in it each of them begins.
    Text { symbols: Arc<[u8]>, starts: Vec<u32>, scaling: Scaling },
}

/// Pixels scaled together: a multiple of the channels, so that the compiler vectorises the loop.
const PIXELS_PER_PERIOD: usize = 16;

/// How bytes become floats: `byte * scale + offset`, for each channel of some pixels.
#[derive(Debug)]
struct Scaling {
    scales: Vec<f32>,
    offsets: Vec<f32>,
}

impl Scaling {
    fn new(channels: &[(f32, f32)]) -> Scaling {
        let n_pixels = if channels.len() == 1 { 1 } else { PIXELS_PER_PERIOD };
        let repeated = |part: fn(&(f32, f32)) -> f32| {
            channels.iter().cycle().take(n_pixels * channels.len()).map(part).collect()
        };
        Scaling { scales: repeated(|one| one.0), offsets: repeated(|one| one.1) }
    }

    fn apply(&self, path: KernelPath, bytes: &[u8], to: &mut [f32]) {
        bytes::scale(path, bytes, &self.scales, &self.offsets, to);
    }
}

impl Samples {
    /// Samples from rows of `width` numbers.
    ///
    /// # Panics
    ///
    /// When the numbers of rows and labels differ.
    pub fn from_floats(rows: Vec<f32>, labels: Vec<u32>, width: usize) -> Self {
        assert_eq!(rows.len(), labels.len() * width, "one row a label");
        Samples { inputs: Inputs::Floats(rows), labels, targets: Vec::new(), width }
    }

    /// Samples from rows of `width` numbers with regression targets instead of labels, equally many per row.
    ///
    /// # Panics
    ///
    /// When the rows have different numbers of targets.
    pub fn from_targets(rows: Vec<f32>, targets: Vec<f32>, width: usize) -> Self {
        let count = rows.len() / width.max(1);
        assert!(rows.len() == count * width && count > 0, "rows");
        assert!(!targets.is_empty() && targets.len().is_multiple_of(count), "values");
        Samples { inputs: Inputs::Floats(rows), labels: vec![0; count], targets, width }
    }

    /// Samples from sequences of `width` symbols.
    ///
    /// # Panics
    ///
    /// When the numbers of sequences and labels differ.
    pub fn from_symbols(symbols: Vec<u8>, labels: Vec<u32>, width: usize) -> Self {
        assert_eq!(symbols.len(), labels.len() * width, "one sequence a label");
        let scaling = Scaling::new(&[(1.0, 0.0)]);
        Samples { inputs: Inputs::Bytes { pixels: symbols, scaling }, labels, targets: Vec::new(), width }
    }

    /// Samples from sequences of `width` symbols that share a text; the next symbol is the label.
    ///
    /// # Panics
    ///
    /// When a sequence, or the symbol after it, is beyond the end of the text.
    pub fn from_text(symbols: Arc<[u8]>, starts: Vec<u32>, width: usize) -> Self {
        let within = |&start: &u32| start as usize + width < symbols.len();
        assert!(starts.iter().all(within), "a sequence is beyond the text");
        let inputs = Inputs::Text { symbols, starts, scaling: Scaling::new(&[(1.0, 0.0)]) };
        Samples { inputs, labels: Vec::new(), targets: Vec::new(), width }
    }

    /// Samples from images of bytes, channels interleaved; a byte b of a channel means `(b / 255 - mean) /
    /// std`.
    ///
    /// # Panics
    ///
    /// When the numbers of images and labels differ.
    pub fn from_bytes(pixels: Vec<u8>, labels: Vec<u32>, width: usize, scaling: &[(f32, f32)]) -> Self {
        assert_eq!(pixels.len(), labels.len() * width, "one image a label");
        assert!(!scaling.is_empty() && width.is_multiple_of(scaling.len()), "one scaling a channel");
        let line = |&(mean, std): &(f32, f32)| (1.0 / (255.0 * std), -mean / std);
        let scaling = Scaling::new(&scaling.iter().map(line).collect::<Vec<_>>());
        Samples { inputs: Inputs::Bytes { pixels, scaling }, labels, targets: Vec::new(), width }
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        match &self.inputs {
            Inputs::Text { starts, .. } => starts.len(),
            _ => self.labels.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The label of a sample.
    pub fn label(&self, idx: u32) -> u32 {
        match &self.inputs {
            Inputs::Text { symbols, starts, .. } => {
                u32::from(symbols[starts[idx as usize] as usize + self.width])
            }
            _ => self.labels[idx as usize],
        }
    }

    /// The largest label.
    pub fn max_label(&self) -> Option<u32> {
        (0..self.len() as u32).map(|idx| self.label(idx)).max()
    }

    /// The largest number among the inputs, if there is any.
    pub fn max_input(&self) -> Option<f32> {
        match &self.inputs {
            Inputs::Floats(rows) => rows.iter().copied().reduce(f32::max),
            Inputs::Bytes { pixels, scaling } => {
                let period = scaling.scales.len();
                let value = |(at, &byte): (usize, &u8)| {
                    f32::from(byte) * scaling.scales[at % period] + scaling.offsets[at % period]
                };
                pixels.iter().enumerate().map(value).reduce(f32::max)
            }
            // All of the text, the last labels included: they are symbols like the others.
            Inputs::Text { symbols, .. } => symbols.iter().max().map(|&symbol| f32::from(symbol)),
        }
    }

    /// The number of regression targets per sample; 0 if samples have labels.
    pub fn n_targets(&self) -> usize {
        self.targets.len() / self.len().max(1)
    }

    /// Appends the regression targets of samples, where there are any.
    pub fn fill_targets(&self, idxs: impl Iterator<Item = u32>, to: &mut Vec<f32>) {
        let n_targets = self.n_targets();
        if n_targets > 0 {
            idxs.for_each(|idx| to.extend_from_slice(&self.targets[idx as usize * n_targets..][..n_targets]));
        }
    }

    /// The number of inputs per sample.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes samples one after another, and appends their labels: the same bits on every path.
    ///
    /// # Panics
    ///
    /// When the buffer is too short.
    pub fn fill(
        &self,
        path: KernelPath,
        idxs: impl ExactSizeIterator<Item = u32>,
        to: &mut [f32],
        labels: &mut Vec<u32>,
    ) {
        assert!(idxs.len() * self.width <= to.len(), "more samples than fit");
        for (idx, to) in idxs.zip(to.chunks_exact_mut(self.width)) {
            labels.push(self.label(idx));
            let (at, width) = (idx as usize, self.width);
            match &self.inputs {
                Inputs::Floats(rows) => to.copy_from_slice(&rows[at * width..][..width]),
                Inputs::Bytes { pixels, scaling } => {
                    scaling.apply(path, &pixels[at * width..][..width], to);
                }
                Inputs::Text { symbols, starts, scaling } => {
                    scaling.apply(path, &symbols[starts[at] as usize..][..width], to);
                }
            }
        }
    }

    /// One sample as floats.
    pub fn row(&self, idx: u32) -> Vec<f32> {
        let mut row = vec![0.0; self.width];
        self.fill(KernelPath::Portable, std::iter::once(idx), &mut row, &mut Vec::new());
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
        // The row is longer than what is scaled together, and not a multiple of it.
        let bytes: Vec<u8> = (0..3 * 37).collect();
        let samples = Samples::from_bytes(bytes, vec![0], 3 * 37, &[(0.1, 0.5), (0.2, 0.25), (0.3, 2.0)]);
        for (at, value) in samples.row(0).into_iter().enumerate() {
            let (mean, std) = [(0.1, 0.5), (0.2, 0.25), (0.3, 2.0)][at % 3];
            assert!((value - (at as f32 / 255.0 - mean) / std).abs() < 1e-6);
        }
        let symbols = Samples::from_symbols(vec![3, 79, 0, 255], vec![5, 6], 2);
        assert_eq!((symbols.row(0), symbols.max_input()), (vec![3.0, 79.0], Some(255.0)));
    }

    #[test]
    fn sequences_share_a_text() {
        let text: Arc<[u8]> = vec![3, 79, 0, 5, 9].into();
        let samples = Samples::from_text(text.clone(), vec![2, 0, 1], 2);
        assert_eq!((samples.len(), samples.is_empty(), samples.n_targets()), (3, false, 0));
        assert_eq!((samples.max_label(), samples.max_input()), (Some(9), Some(79.0)));
        let (mut rows, mut labels) = (vec![0.0; 6], Vec::new());
        samples.fill(KernelPath::Portable, [0, 1, 2].into_iter(), &mut rows, &mut labels);
        assert_eq!((rows, labels), (vec![0.0, 5.0, 3.0, 79.0, 79.0, 0.0], vec![9, 0, 5]));
        assert_eq!((samples.row(1), samples.label(1)), (vec![3.0, 79.0], 0));
        assert!(Samples::from_text(text, Vec::new(), 2).is_empty());
    }

    #[test]
    #[should_panic(expected = "a sequence is beyond the text")]
    fn a_sequence_needs_a_symbol_behind_it() {
        Samples::from_text(vec![1, 2, 3].into(), vec![0, 1], 2);
    }
}
