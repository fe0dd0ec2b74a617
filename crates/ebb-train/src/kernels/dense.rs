//! Dense layers: rows of inputs times a matrix stored in panels of columns.
//!
//! The matrix has `n_in` rows and `out_pad` columns, a multiple of 16. It is stored panel by panel: 64
//! columns (the last panel may be narrower), with the rows of a panel one after another.

use std::marker::PhantomData;

use super::{KernelPath, PAD, SLACK, Simd, by_path};

/// Columns of a panel.
const PANEL: usize = 64;

/// The position of the entry at row `i`, column `o`.
pub(crate) fn weight_index(n_in: usize, out_pad: usize, i: usize, o: usize) -> usize {
    let start = o / PANEL * PANEL;
    let width = (out_pad - start).min(PANEL);
    start * n_in + i * width + (o - start)
}

/// A dense layer's sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) n_rows: usize,
    pub(crate) n_in: usize,
    /// Floats from one row of inputs to the next.
    pub(crate) in_stride: usize,
    pub(crate) out_pad: usize,
    /// Floats from one row of outputs to the next.
    pub(crate) out_stride: usize,
}

impl Sizes {
    /// The sizes of a layer whose rows of outputs are contiguous.
    pub(crate) fn contiguous(n_rows: usize, n_in: usize, in_stride: usize, out_pad: usize) -> Sizes {
        Sizes { n_rows, n_in, in_stride, out_pad, out_stride: out_pad }
    }

    fn check(&self, inputs: usize, weights: usize, bias: usize, outputs: usize) {
        assert!(inputs >= self.n_rows * self.in_stride + SLACK && self.in_stride >= self.n_in, "inputs");
        assert!(self.out_pad.is_multiple_of(PAD), "padding");
        assert!(weights >= self.n_in * self.out_pad && bias >= self.out_pad, "weights");
        assert!(outputs >= self.n_rows * self.out_stride && self.out_stride >= self.out_pad, "outputs");
    }
}

/// `y = x * w + bias`, followed by ReLU if `relu`.
pub(crate) fn forward(
    path: KernelPath,
    sizes: &Sizes,
    x: &[f32],
    w: &[f32],
    bias: &[f32],
    y: &mut [f32],
    relu: bool,
) {
    sizes.check(x.len(), w.len(), bias.len(), y.len());
    let Sizes { n_rows, n_in, in_stride, out_pad, out_stride } = *sizes;
    // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
    unsafe {
        forward_raw(
            path,
            x.as_ptr(),
            in_stride,
            n_rows,
            n_in,
            out_pad,
            w.as_ptr(),
            bias.as_ptr(),
            y.as_mut_ptr(),
            out_stride,
            relu,
        );
    }
}

/// `dx = dy * w^T`.
pub(crate) fn input_gradient(path: KernelPath, sizes: &Sizes, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    sizes.check(dx.len(), w.len(), sizes.out_pad, dy.len());
    let Sizes { n_rows, n_in, in_stride, out_pad, out_stride } = *sizes;
    // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
    unsafe {
        input_gradient_raw(
            path,
            dy.as_ptr(),
            out_stride,
            n_rows,
            n_in,
            out_pad,
            w.as_ptr(),
            dx.as_mut_ptr(),
            in_stride,
        );
    }
}

/// `dw = x^T * dy`, handed to the sink; the layer begins at `weights` and `bias` in the sink's buffers.
pub(crate) fn weight_gradient(
    path: KernelPath,
    sizes: &Sizes,
    x: &[f32],
    dy: &[f32],
    sink: &GradientSink<'_>,
    weights: usize,
    bias: usize,
) {
    let left = |start: usize| sink.len.saturating_sub(start);
    sizes.check(x.len(), left(weights), left(bias), dy.len());
    let Sizes { n_rows, n_in, in_stride, out_pad, out_stride } = *sizes;
    // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
    unsafe {
        weight_gradient_raw(
            path,
            x.as_ptr(),
            in_stride,
            n_rows,
            n_in,
            out_pad,
            dy.as_ptr(),
            out_stride,
            sink,
            weights,
            bias,
        );
    }
}

by_path! {
    fn forward_raw(
        x: *const f32, x_stride: usize, n_rows: usize, n_in: usize, out_pad: usize,
        w: *const f32, bias: *const f32, y: *mut f32, out_stride: usize, relu: bool,
    ) = forward_on;
}

by_path! {
    fn input_gradient_raw(
        dy: *const f32, out_stride: usize, n_rows: usize, n_in: usize, out_pad: usize, w: *const f32, dx: *mut f32,
        dx_stride: usize,
    ) = input_gradient_on;
}

by_path! {
    fn weight_gradient_raw(
        x: *const f32, x_stride: usize, n_rows: usize, n_in: usize, out_pad: usize, dy: *const f32,
        out_stride: usize, sink: &GradientSink<'_>, offset: usize, bias_offset: usize,
    ) = weight_gradient_on;
}

/// Where a computed gradient goes: into a buffer, or into a step.
#[derive(Debug)]
pub(crate) struct GradientSink<'b> {
    kind: SinkKind,
    /// The length of its buffers.
    len: usize,
    _buffers: PhantomData<&'b mut [f32]>,
}

#[derive(Clone, Copy, Debug)]
enum SinkKind {
    Store {
        gradient: *mut f32,
    },
    Add {
        gradient: *mut f32,
    },
    Step {
        weights: *mut f32,
        learning_rate: f32,
    },
    Momentum {
        weights: *mut f32,
        velocity: *mut f32,
        learning_rate: f32,
        momentum: f32,
    },
    General {
        weights: *mut f32,
        velocity: *mut f32,
        start: *const f32,
        correction: *const f32,
        coefficients: StepCoefficients,
    },
}

/// The coefficients of a step with momentum and with gradient corrections that are linear in the weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepCoefficients {
    pub(crate) learning_rate: f32,
    pub(crate) momentum: f32,
    /// Nesterov momentum.
    pub(crate) nesterov: bool,
    /// Coefficient of L2 regularisation.
    pub(crate) weight_decay: f32,
    /// Coefficient of the proximal term towards the initial parameters.
    pub(crate) proximal: f32,
}

impl<'b> GradientSink<'b> {
    /// Stores the gradient.
    pub(crate) fn store(gradient: &'b mut [f32]) -> Self {
        GradientSink {
            kind: SinkKind::Store { gradient: gradient.as_mut_ptr() },
            len: gradient.len(),
            _buffers: PhantomData,
        }
    }

    /// Adds the gradient to the buffer.
    pub(crate) fn add(gradient: &'b mut [f32]) -> Self {
        let len = gradient.len();
        GradientSink { kind: SinkKind::Add { gradient: gradient.as_mut_ptr() }, len, _buffers: PhantomData }
    }

    /// Takes a plain step at once: the gradient is never stored.
    pub(crate) fn step(weights: &'b mut [f32], learning_rate: f32) -> Self {
        let len = weights.len();
        GradientSink {
            kind: SinkKind::Step { weights: weights.as_mut_ptr(), learning_rate },
            len,
            _buffers: PhantomData,
        }
    }

    /// Takes a step with momentum at once.
    pub(crate) fn momentum(
        weights: &'b mut [f32],
        velocity: &'b mut [f32],
        learning_rate: f32,
        momentum: f32,
    ) -> Self {
        let len = weights.len().min(velocity.len());
        let (weights, velocity) = (weights.as_mut_ptr(), velocity.as_mut_ptr());
        GradientSink {
            kind: SinkKind::Momentum { weights, velocity, learning_rate, momentum },
            len,
            _buffers: PhantomData,
        }
    }

    /// Takes a step with corrections at once: `start` is the centre of the proximal term, `correction` is
    /// added to the gradient.
    pub(crate) fn general(
        weights: &'b mut [f32],
        velocity: &'b mut [f32],
        start: &'b [f32],
        correction: &'b [f32],
        coefficients: StepCoefficients,
    ) -> Self {
        let len = [weights.len(), velocity.len(), start.len(), correction.len()]
            .into_iter()
            .fold(usize::MAX, usize::min);
        let (weights, velocity) = (weights.as_mut_ptr(), velocity.as_mut_ptr());
        let end = SinkKind::General {
            weights,
            velocity,
            start: start.as_ptr(),
            correction: correction.as_ptr(),
            coefficients,
        };
        GradientSink { kind: end, len, _buffers: PhantomData }
    }

    /// Hands over a gradient that was stored elsewhere; its length is a multiple of 16.
    pub(crate) fn apply_all(&self, path: KernelPath, gradient: &[f32], at: usize) {
        assert!(gradient.len().is_multiple_of(PAD) && at + gradient.len() <= self.len, "gradient");
        // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
        unsafe { apply_all_raw(path, gradient.as_ptr(), gradient.len(), self, at) }
    }
}

/// One operation on a gradient. Kernels are compiled for the most frequent ones: on a small batch, a choice
/// for every vector would cost as much as the arithmetic.
trait SinkOperation: Copy {
    /// Takes a vector of the gradient that belongs at `at`.
    ///
    /// # Safety
    ///
    /// The unit exists, and all buffers hold a vector at `at`.
    unsafe fn apply<S: Simd>(self, at: usize, gradient: S::V);
}

#[derive(Clone, Copy)]
struct Store(*mut f32);

impl SinkOperation for Store {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, at: usize, gradient: S::V) {
        // SAFETY: as promised by the caller.
        unsafe { S::store(self.0.add(at), gradient) }
    }
}

#[derive(Clone, Copy)]
struct Step {
    weights: *mut f32,
    learning_rate: f32,
}

impl SinkOperation for Step {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, at: usize, gradient: S::V) {
        // SAFETY: as promised by the caller.
        unsafe {
            let weights = self.weights.add(at);
            S::store(weights, S::mul_add(S::splat(-self.learning_rate), gradient, S::load(weights)));
        }
    }
}

#[derive(Clone, Copy)]
struct Momentum {
    weights: *mut f32,
    velocity: *mut f32,
    learning_rate: f32,
    momentum: f32,
}

impl SinkOperation for Momentum {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, at: usize, gradient: S::V) {
        // SAFETY: as promised by the caller.
        unsafe {
            let (weights, velocity) = (self.weights.add(at), self.velocity.add(at));
            let moved = S::mul_add(S::splat(self.momentum), S::load(velocity), gradient);
            S::store(velocity, moved);
            S::store(weights, S::mul_add(S::splat(-self.learning_rate), moved, S::load(weights)));
        }
    }
}

/// Dispatches to any of the operations.
impl SinkOperation for SinkKind {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, at: usize, gradient: S::V) {
        // SAFETY: as promised by the caller.
        unsafe {
            match self {
                SinkKind::Store { gradient: to } => Store(to).apply::<S>(at, gradient),
                SinkKind::Step { weights, learning_rate } => {
                    Step { weights, learning_rate }.apply::<S>(at, gradient);
                }
                SinkKind::Momentum { weights, velocity, learning_rate, momentum } => {
                    Momentum { weights, velocity, learning_rate, momentum }.apply::<S>(at, gradient);
                }
                SinkKind::Add { gradient: to } => {
                    let to = to.add(at);
                    S::store(to, S::add(S::load(to), gradient));
                }
                SinkKind::General { weights, velocity, start, correction, coefficients } => {
                    let (weights, velocity) = (weights.add(at), velocity.add(at));
                    let weight = S::load(weights);
                    let away = S::mul_add(S::splat(-1.0), S::load(start.add(at)), weight);
                    let corrected = S::add(gradient, S::load(correction.add(at)));
                    let corrected = S::mul_add(S::splat(coefficients.proximal), away, corrected);
                    let corrected = S::mul_add(S::splat(coefficients.weight_decay), weight, corrected);
                    let moved = S::mul_add(S::splat(coefficients.momentum), S::load(velocity), corrected);
                    S::store(velocity, moved);
                    let step = if coefficients.nesterov {
                        S::mul_add(S::splat(coefficients.momentum), moved, corrected)
                    } else {
                        moved
                    };
                    S::store(weights, S::mul_add(S::splat(-coefficients.learning_rate), step, weight));
                }
            }
        }
    }
}

by_path! {
    fn apply_all_raw(gradient: *const f32, len: usize, sink: &GradientSink<'_>, at: usize) = apply_all_on;
}

#[inline(always)]
unsafe fn apply_all_on<S: Simd>(gradient: *const f32, len: usize, sink: &GradientSink<'_>, at: usize) {
    for from in (0..len).step_by(S::LANES) {
        // SAFETY: the length is a multiple of the vector's, and the sink's buffers hold it at `at`.
        unsafe { sink.kind.apply::<S>(at + from, S::load(gradient.add(from))) }
    }
}

#[inline(always)]
unsafe fn forward_on<S: Simd>(
    x: *const f32,
    x_stride: usize,
    n_rows: usize,
    n_in: usize,
    out_pad: usize,
    w: *const f32,
    bias: *const f32,
    y: *mut f32,
    out_stride: usize,
    relu: bool,
) {
    // SAFETY: the loops stay within the sizes that the caller promises.
    unsafe {
        let mut o = 0;
        while o < out_pad {
            let start = o / PANEL * PANEL;
            let width = (out_pad - start).min(PANEL);
            let left = (start + width - o) / S::LANES;
            let panel = w.add(start * n_in + (o - start));
            let tile = ForwardTile {
                x,
                x_stride,
                n_rows,
                n_in,
                w: panel,
                width,
                bias: bias.add(o),
                y: y.add(o),
                out_stride,
                relu,
            };
            let taken = if S::HAS_32_REGISTERS {
                match left {
                    4.. => tile.rows::<S, 4, 6>(),
                    3 => tile.rows::<S, 3, 6>(),
                    2 => tile.rows::<S, 2, 8>(),
                    _ => tile.rows::<S, 1, 8>(),
                }
            } else {
                match left {
                    2.. => tile.rows::<S, 2, 6>(),
                    _ => tile.rows::<S, 1, 6>(),
                }
            };
            o += taken * S::LANES;
        }
    }
}

/// Some columns of a forward pass.
#[derive(Clone, Copy)]
struct ForwardTile {
    x: *const f32,
    x_stride: usize,
    n_rows: usize,
    n_in: usize,
    w: *const f32,
    width: usize,
    bias: *const f32,
    y: *mut f32,
    out_stride: usize,
    relu: bool,
}

impl ForwardTile {
    /// Computes `Z` vectors of columns for all rows, `R` rows at a time; returns `Z`.
    #[inline(always)]
    unsafe fn rows<S: Simd, const Z: usize, const R: usize>(self) -> usize {
        let mut row = 0;
        // SAFETY: the loops stay within the sizes that the caller promises.
        unsafe {
            while row + R <= self.n_rows {
                self.tile::<S, Z, R>(row);
                row += R;
            }
            while row + 4 <= self.n_rows {
                self.tile::<S, Z, 4>(row);
                row += 4;
            }
            match self.n_rows - row {
                3 => self.tile::<S, Z, 3>(row),
                2 => self.tile::<S, Z, 2>(row),
                1 => self.tile::<S, Z, 1>(row),
                _ => {}
            }
        }
        Z
    }

    #[inline(always)]
    unsafe fn tile<S: Simd, const Z: usize, const R: usize>(self, row: usize) {
        // SAFETY: the loops stay within the sizes that the caller promises.
        unsafe {
            let mut sums = [[S::splat(0.0); Z]; R];
            for z in 0..Z {
                let bias = S::load(self.bias.add(z * S::LANES));
                for r in 0..R {
                    sums[r][z] = bias;
                }
            }
            let mut w = self.w;
            let mut x = [self.x; R];
            for r in 0..R {
                x[r] = self.x.add((row + r) * self.x_stride);
            }
            for i in 0..self.n_in {
                let mut columns = [S::splat(0.0); Z];
                for z in 0..Z {
                    columns[z] = S::load(w.add(z * S::LANES));
                }
                for r in 0..R {
                    let value = S::splat(*x[r].add(i));
                    for z in 0..Z {
                        sums[r][z] = S::mul_add(value, columns[z], sums[r][z]);
                    }
                }
                // The last one may point beyond the buffer; it is never dereferenced.
                w = w.wrapping_add(self.width);
            }
            for r in 0..R {
                for z in 0..Z {
                    let value = if self.relu { S::max(S::splat(0.0), sums[r][z]) } else { sums[r][z] };
                    S::store(self.y.add((row + r) * self.out_stride + z * S::LANES), value);
                }
            }
        }
    }
}

/// Inputs handled together: each vector of `dy` then serves four of them.
const INPUTS: usize = 4;

#[inline(always)]
unsafe fn input_gradient_on<S: Simd>(
    dy: *const f32,
    out_stride: usize,
    n_rows: usize,
    n_in: usize,
    out_pad: usize,
    w: *const f32,
    dx: *mut f32,
    dx_stride: usize,
) {
    // Rows and inputs together fill one vector of sums: 4 x 4 with 16 lanes, 2 x 4 with 8.
    let rows_at_once = S::LANES / INPUTS;
    // SAFETY: indices beyond the end are clamped to the last row or input, and not stored.
    unsafe {
        for i in (0..n_in).step_by(INPUTS) {
            let inputs: [usize; INPUTS] = std::array::from_fn(|n| (i + n).min(n_in - 1));
            for row in (0..n_rows).step_by(rows_at_once) {
                let mut sums = [S::splat(0.0); PAD];
                let mut o = 0;
                while o < out_pad {
                    let width = (out_pad - o).min(PANEL);
                    let panel = w.add(o * n_in);
                    for z in (0..width).step_by(S::LANES) {
                        let mut columns = [S::splat(0.0); INPUTS];
                        for n in 0..INPUTS {
                            columns[n] = S::load(panel.add(inputs[n] * width + z));
                        }
                        for m in 0..rows_at_once {
                            let at = (row + m).min(n_rows - 1);
                            let output_grad = S::load(dy.add(at * out_stride + o + z));
                            for n in 0..INPUTS {
                                sums[m * INPUTS + n] =
                                    S::mul_add(output_grad, columns[n], sums[m * INPUTS + n]);
                            }
                        }
                    }
                    o += width;
                }
                let mut out = [0.0_f32; PAD];
                S::store(out.as_mut_ptr(), S::horizontal_sums(&sums[..S::LANES]));
                for m in 0..rows_at_once.min(n_rows - row) {
                    let to = dx.add((row + m) * dx_stride + i);
                    for n in 0..INPUTS.min(n_in - i) {
                        *to.add(n) = out[m * INPUTS + n];
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn weight_gradient_on<S: Simd>(
    x: *const f32,
    x_stride: usize,
    n_rows: usize,
    n_in: usize,
    out_pad: usize,
    dy: *const f32,
    out_stride: usize,
    sink: &GradientSink<'_>,
    offset: usize,
    bias_offset: usize,
) {
    macro_rules! to {
        ($end:expr) => {
            // SAFETY: as promised by the caller.
            unsafe {
                weight_gradient_to::<S, _>(
                    x,
                    x_stride,
                    n_rows,
                    n_in,
                    out_pad,
                    dy,
                    out_stride,
                    $end,
                    offset,
                    bias_offset,
                )
            }
        };
    }
    match sink.kind {
        SinkKind::Store { gradient } => to!(Store(gradient)),
        SinkKind::Step { weights, learning_rate } => to!(Step { weights, learning_rate }),
        SinkKind::Momentum { weights, velocity, learning_rate, momentum } => {
            to!(Momentum { weights, velocity, learning_rate, momentum });
        }
        end => to!(end),
    }
}

#[inline(always)]
unsafe fn weight_gradient_to<S: Simd, E: SinkOperation>(
    x: *const f32,
    x_stride: usize,
    n_rows: usize,
    n_in: usize,
    out_pad: usize,
    dy: *const f32,
    out_stride: usize,
    end: E,
    offset: usize,
    bias_offset: usize,
) {
    // SAFETY: the loops stay within the sizes that the caller promises.
    unsafe {
        let mut o = 0;
        while o < out_pad {
            let start = o / PANEL * PANEL;
            let width = (out_pad - start).min(PANEL);
            let left = (start + width - o) / S::LANES;
            let to = offset + start * n_in + (o - start);
            let tile =
                WeightGradientTile { x, x_stride, n_rows, n_in, dy: dy.add(o), out_stride, width, to, end };
            let taken = if S::HAS_32_REGISTERS {
                match left {
                    4.. => tile.inputs::<S, 4, 6>(),
                    3 => tile.inputs::<S, 3, 6>(),
                    2 => tile.inputs::<S, 2, 8>(),
                    _ => tile.inputs::<S, 1, 8>(),
                }
            } else {
                match left {
                    2.. => tile.inputs::<S, 2, 6>(),
                    _ => tile.inputs::<S, 1, 6>(),
                }
            };
            o += taken * S::LANES;
        }
        for o in (0..out_pad).step_by(S::LANES) {
            let mut sum = S::splat(0.0);
            for row in 0..n_rows {
                sum = S::add(sum, S::load(dy.add(row * out_stride + o)));
            }
            end.apply::<S>(bias_offset + o, sum);
        }
    }
}

/// Some columns of a weight gradient.
#[derive(Clone, Copy)]
struct WeightGradientTile<E> {
    x: *const f32,
    x_stride: usize,
    n_rows: usize,
    n_in: usize,
    dy: *const f32,
    out_stride: usize,
    width: usize,
    to: usize,
    end: E,
}

impl<E: SinkOperation> WeightGradientTile<E> {
    /// Computes `Z` vectors of columns for all inputs, `I` inputs at a time; returns `Z`.
    #[inline(always)]
    unsafe fn inputs<S: Simd, const Z: usize, const I: usize>(self) -> usize {
        let mut input = 0;
        // SAFETY: the loops stay within the sizes that the caller promises.
        unsafe {
            while input + I <= self.n_in {
                self.tile::<S, Z, I>(input);
                input += I;
            }
            while input + 4 <= self.n_in {
                self.tile::<S, Z, 4>(input);
                input += 4;
            }
            match self.n_in - input {
                3 => self.tile::<S, Z, 3>(input),
                2 => self.tile::<S, Z, 2>(input),
                1 => self.tile::<S, Z, 1>(input),
                _ => {}
            }
        }
        Z
    }

    #[inline(always)]
    unsafe fn tile<S: Simd, const Z: usize, const I: usize>(self, input: usize) {
        // SAFETY: the loops stay within the sizes that the caller promises.
        unsafe {
            let mut sums = [[S::splat(0.0); Z]; I];
            let (mut x, mut dy) = (self.x.add(input), self.dy);
            for _ in 0..self.n_rows {
                let mut output_grads = [S::splat(0.0); Z];
                for z in 0..Z {
                    output_grads[z] = S::load(dy.add(z * S::LANES));
                }
                for i in 0..I {
                    let value = S::splat(*x.add(i));
                    for z in 0..Z {
                        sums[i][z] = S::mul_add(value, output_grads[z], sums[i][z]);
                    }
                }
                // The last ones may point beyond the buffers; they are never dereferenced.
                x = x.wrapping_add(self.x_stride);
                dy = dy.wrapping_add(self.out_stride);
            }
            for i in 0..I {
                for z in 0..Z {
                    self.end.apply::<S>(self.to + (input + i) * self.width + z * S::LANES, sums[i][z]);
                }
            }
        }
    }
}
