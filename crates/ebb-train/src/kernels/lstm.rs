//! The element-wise part of an LSTM between its matrix products: gates, cells and outputs of one step in
//! time.
//!
//! A row of gates has four blocks of `width` floats, a multiple of 16: input gate, forget gate, candidate,
//! output gate; rows are `stride` apart.

use super::activations::{logistic_of, tanh_of};
use super::{KernelPath, PAD, Simd, by_path};

/// Turns pre-activations into gates, in place, and computes cells and outputs from the cells before.
pub(crate) fn forward(
    path: KernelPath,
    width: usize,
    stride: usize,
    gates: &mut [f32],
    before: &[f32],
    cells: &mut [f32],
    outputs: &mut [f32],
) {
    let n_rows = check(width, stride, gates.len(), &[before.len(), cells.len(), outputs.len()]);
    let (cells, outputs) = (cells.as_mut_ptr(), outputs.as_mut_ptr());
    // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
    unsafe { forward_raw(path, width, stride, n_rows, gates.as_mut_ptr(), before.as_ptr(), cells, outputs) }
}

/// Backpropagates through gates and cells. The gradients of pre-activations replace the gates, and those of
/// the cells before replace those of the cells.
pub(crate) fn backward(
    path: KernelPath,
    width: usize,
    stride: usize,
    gates: &mut [f32],
    before: &[f32],
    cells: &[f32],
    output_grads: &[f32],
    cell_grads: &mut [f32],
) {
    let lens = [before.len(), cells.len(), output_grads.len(), cell_grads.len()];
    let n_rows = check(width, stride, gates.len(), &lens);
    let (before, cells, outputs) = (before.as_ptr(), cells.as_ptr(), output_grads.as_ptr());
    // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
    unsafe {
        backward_raw(
            path,
            width,
            stride,
            n_rows,
            gates.as_mut_ptr(),
            before,
            cells,
            outputs,
            cell_grads.as_mut_ptr(),
        );
    }
}

/// The number of rows, after checking that all buffers hold them.
fn check(width: usize, stride: usize, gates: usize, others: &[usize]) -> usize {
    assert!(width > 0 && width.is_multiple_of(PAD) && stride >= 4 * width, "width");
    assert!(gates.is_multiple_of(stride), "gates");
    let n_rows = gates / stride;
    assert!(others.iter().all(|&len| len >= n_rows * width), "cells");
    n_rows
}

by_path! {
    fn forward_raw(
        width: usize, stride: usize, n_rows: usize, gates: *mut f32, before: *const f32, cells: *mut f32, outputs: *mut f32,
    ) = forward_on;
}

by_path! {
    fn backward_raw(
        width: usize, stride: usize, n_rows: usize, gates: *mut f32, before: *const f32, cells: *const f32,
        output_grads: *const f32, cell_grads: *mut f32,
    ) = backward_on;
}

#[inline(always)]
unsafe fn forward_on<S: Simd>(
    width: usize,
    stride: usize,
    n_rows: usize,
    gates: *mut f32,
    before: *const f32,
    cells: *mut f32,
    outputs: *mut f32,
) {
    for row in 0..n_rows {
        for at in (0..width).step_by(S::LANES) {
            // SAFETY: the caller promises as many rows, and widths are whole vectors.
            unsafe {
                let gate = gates.add(row * stride + at);
                let one = row * width + at;
                let input = logistic_of::<S>(S::load(gate));
                let forget = logistic_of::<S>(S::load(gate.add(width)));
                let candidate = tanh_of::<S>(S::load(gate.add(2 * width)));
                let output = logistic_of::<S>(S::load(gate.add(3 * width)));
                let cell = S::mul_add(forget, S::load(before.add(one)), S::mul(input, candidate));
                S::store(gate, input);
                S::store(gate.add(width), forget);
                S::store(gate.add(2 * width), candidate);
                S::store(gate.add(3 * width), output);
                S::store(cells.add(one), cell);
                S::store(outputs.add(one), S::mul(output, tanh_of::<S>(cell)));
            }
        }
    }
}

#[inline(always)]
unsafe fn backward_on<S: Simd>(
    width: usize,
    stride: usize,
    n_rows: usize,
    gates: *mut f32,
    before: *const f32,
    cells: *const f32,
    output_grads: *const f32,
    cell_grads: *mut f32,
) {
    for row in 0..n_rows {
        for at in (0..width).step_by(S::LANES) {
            // SAFETY: the caller promises as many rows, and widths are whole vectors.
            unsafe {
                let (one, minus) = (S::splat(1.0), S::splat(-1.0));
                let gate = gates.add(row * stride + at);
                let place = row * width + at;
                let input = S::load(gate);
                let forget = S::load(gate.add(width));
                let candidate = S::load(gate.add(2 * width));
                let output = S::load(gate.add(3 * width));
                let bent = tanh_of::<S>(S::load(cells.add(place)));
                let output_grad = S::load(output_grads.add(place));
                // Through the output: `o (1 - tanh^2 c)`.
                let through = S::mul(output, S::mul_add(S::mul(bent, minus), bent, one));
                let cell = S::mul_add(output_grad, through, S::load(cell_grads.add(place)));
                // The derivative of the logistic function is `s (1 - s) = s - s^2`, that of tanh `1 - t^2`.
                let of_input = S::mul_add(S::mul(input, minus), input, input);
                let of_forget = S::mul_add(S::mul(forget, minus), forget, forget);
                let of_candidate = S::mul_add(S::mul(candidate, minus), candidate, one);
                let of_output = S::mul_add(S::mul(output, minus), output, output);
                S::store(gate, S::mul(S::mul(cell, candidate), of_input));
                let forgotten = S::mul(cell, S::load(before.add(place)));
                S::store(gate.add(width), S::mul(forgotten, of_forget));
                S::store(gate.add(2 * width), S::mul(S::mul(cell, input), of_candidate));
                S::store(gate.add(3 * width), S::mul(S::mul(output_grad, bent), of_output));
                S::store(cell_grads.add(place), S::mul(cell, forget));
            }
        }
    }
}
