//! An LSTM over a batch of sequences: one matrix product a step in time, forward and backward.

use super::compile::ActivationShape;
use crate::kernels::{KernelPath, PAD, buffer, dense, lstm, padded};

/// The sizes of one LSTM of a stack, and the positions of its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) n_in: usize,
    pub(super) units: usize,
    pub(super) steps: usize,
    /// Whether only the last step's output is passed on.
    pub(super) last: bool,
    pub(super) weights: usize,
    pub(super) biases: [usize; 2],
}

impl Shape {
    /// Columns of the weights: four gates, padded.
    pub(super) fn out_pad(&self) -> usize {
        4 * padded(self.units)
    }

    /// The padded column of a unit of a gate; in the outer order gates follow each other without padding.
    pub(super) fn column(&self, unit: usize) -> usize {
        unit / self.units * padded(self.units) + unit % self.units
    }

    /// Rows of the weights: a step's inputs, then the outputs of the step before.
    pub(super) fn rows(&self) -> usize {
        self.n_in + self.units
    }

    /// Floats from one row of gates to the next. Gates are read column by column: with a power of two, the
    /// rows would evict each other from the first-level cache.
    fn gates_stride(&self) -> usize {
        self.out_pad() + PAD
    }

    pub(super) fn weights_len(&self) -> usize {
        self.rows() * self.out_pad()
    }
}

/// Rows of the weight gradient that are summed at once. With fewer, the matrix would be loaded and stored
/// more often than computed on.
const ROWS_PER_CHUNK: usize = 256;

/// What an LSTM keeps from forward to backward, step by step in time, and its scratch buffers.
pub(super) struct Scratch {
    /// The input of each step, followed by the outputs of the step before.
    step_inputs: Vec<f32>,
    /// Gates; in the backward pass the gradients of their pre-activations.
    gates: Vec<f32>,
    /// Cells before the first step, and after each.
    cells: Vec<f32>,
    /// The outputs of one step.
    outputs: Vec<f32>,
    bias: Vec<f32>,
    /// The transposed weights.
    transposed: Vec<f32>,
    zero_bias: Vec<f32>,
    input_grads: Vec<f32>,
    output_grads: Vec<f32>,
    cell_grads: Vec<f32>,
    /// Gradient of the weights, followed by that of the bias.
    pub(super) gradient: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(shape: &Shape, capacity: usize) -> Scratch {
        let (input_width, width) = (padded(shape.rows()), padded(shape.units));
        Scratch {
            step_inputs: buffer(shape.steps * capacity * input_width),
            gates: buffer(shape.steps * capacity * shape.gates_stride()),
            cells: buffer((shape.steps + 1) * capacity * width),
            outputs: buffer(capacity * width),
            bias: buffer(shape.out_pad()),
            transposed: buffer(shape.out_pad() * input_width),
            zero_bias: buffer(input_width),
            input_grads: buffer(capacity * input_width),
            output_grads: buffer(capacity * width),
            cell_grads: buffer(capacity * width),
            gradient: buffer(shape.weights_len() + shape.out_pad()),
        }
    }

    pub(super) fn forward(
        &mut self,
        path: KernelPath,
        shape: &Shape,
        n_rows: usize,
        weights: &[f32],
        (from, input): (&ActivationShape, &[f32]),
        (to, output): (&ActivationShape, &mut [f32]),
    ) {
        let (n_in, units, width) = (shape.n_in, shape.units, padded(shape.units));
        let (stride, gates_stride, cells_len) = (padded(shape.rows()), shape.gates_stride(), n_rows * width);
        let gates_len = n_rows * gates_stride;
        for at in 0..shape.out_pad() {
            self.bias[at] = weights[shape.biases[0] + at] + weights[shape.biases[1] + at];
        }
        self.cells[..cells_len].fill(0.0);
        let sizes = dense::Sizes {
            n_rows,
            n_in: shape.rows(),
            in_stride: stride,
            out_pad: shape.out_pad(),
            out_stride: gates_stride,
        };
        for step in 0..shape.steps {
            let step_inputs = &mut self.step_inputs[step * n_rows * stride..];
            for row in 0..n_rows {
                let of_row = &mut step_inputs[row * stride..][..stride];
                of_row[..n_in].copy_from_slice(&input[row * from.stride + step * n_in..][..n_in]);
                let before = &self.outputs[row * width..][..units];
                let before_to = &mut of_row[n_in..n_in + units];
                if step == 0 { before_to.fill(0.0) } else { before_to.copy_from_slice(before) }
            }
            let gates = &mut self.gates[step * gates_len..][..gates_len];
            dense::forward(path, &sizes, step_inputs, &weights[shape.weights..], &self.bias, gates, false);
            let (before, cells) = self.cells[step * cells_len..].split_at_mut(cells_len);
            lstm::forward(path, width, gates_stride, gates, before, cells, &mut self.outputs);
            if !shape.last || step + 1 == shape.steps {
                let at = if shape.last { 0 } else { step * units };
                for row in 0..n_rows {
                    output[row * to.stride + at..][..units]
                        .copy_from_slice(&self.outputs[row * width..][..units]);
                }
            }
        }
    }

    /// Leaves the gradient of the parameters in its own buffer, and writes that of the inputs to
    /// `input_grads` if given.
    pub(super) fn backward(
        &mut self,
        path: KernelPath,
        shape: &Shape,
        n_rows: usize,
        weights: &[f32],
        (from, mut input_grads): (&ActivationShape, Option<&mut [f32]>),
        (to, activation_grads): (&ActivationShape, &[f32]),
    ) {
        let (n_in, units, width) = (shape.n_in, shape.units, padded(shape.units));
        let (stride, gates_stride, cells_len) = (padded(shape.rows()), shape.gates_stride(), n_rows * width);
        let gates_len = n_rows * gates_stride;
        self.transpose_weights(shape, &weights[shape.weights..]);
        self.cell_grads[..cells_len].fill(0.0);
        self.output_grads[..cells_len].fill(0.0);
        for step in (0..shape.steps).rev() {
            if !shape.last || step + 1 == shape.steps {
                let at = if shape.last { 0 } else { step * units };
                for row in 0..n_rows {
                    let own = &mut self.output_grads[row * width..][..units];
                    let given = &activation_grads[row * to.stride + at..][..units];
                    own.iter_mut().zip(given).for_each(|(own, given)| *own += given);
                }
            }
            let gates = &mut self.gates[step * gates_len..][..gates_len];
            let (before, cells) = self.cells[step * cells_len..].split_at(cells_len);
            lstm::backward(
                path,
                width,
                gates_stride,
                gates,
                before,
                cells,
                &self.output_grads,
                &mut self.cell_grads,
            );
            if step == 0 && input_grads.is_none() {
                break;
            }
            let sizes = dense::Sizes {
                n_rows,
                n_in: 4 * width,
                in_stride: gates_stride,
                out_pad: stride,
                out_stride: stride,
            };
            let gates = &self.gates[step * gates_len..];
            dense::forward(
                path,
                &sizes,
                gates,
                &self.transposed,
                &self.zero_bias,
                &mut self.input_grads,
                false,
            );
            for row in 0..n_rows {
                let of_row = &self.input_grads[row * stride..][..stride];
                self.output_grads[row * width..][..units].copy_from_slice(&of_row[n_in..n_in + units]);
                if let Some(input_grads) = input_grads.as_deref_mut() {
                    input_grads[row * from.stride + step * n_in..][..n_in].copy_from_slice(&of_row[..n_in]);
                }
            }
        }
        let all = shape.steps * n_rows;
        for first in (0..all).step_by(ROWS_PER_CHUNK) {
            let sizes = dense::Sizes {
                n_rows: ROWS_PER_CHUNK.min(all - first),
                n_in: shape.rows(),
                in_stride: stride,
                out_pad: shape.out_pad(),
                out_stride: gates_stride,
            };
            let (step_inputs, gates) =
                (&self.step_inputs[first * stride..], &self.gates[first * gates_stride..]);
            let gradient = &mut self.gradient;
            let sink = if first == 0 {
                dense::GradientSink::store(gradient)
            } else {
                dense::GradientSink::add(gradient)
            };
            dense::weight_gradient(path, &sizes, step_inputs, gates, &sink, 0, shape.weights_len());
        }
    }

    /// Transposes the weights, so that the backward pass is the same product as the forward pass.
    fn transpose_weights(&mut self, shape: &Shape, weights: &[f32]) {
        let (rows, out_pad) = (shape.rows(), shape.out_pad());
        for column in 0..out_pad {
            for row in 0..rows {
                self.transposed[dense::weight_index(out_pad, padded(rows), column, row)] =
                    weights[dense::weight_index(rows, out_pad, row, column)];
            }
        }
    }
}
