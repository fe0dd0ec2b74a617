//! Convolutions over images stored row by row, pixel by pixel, channel by channel (HWC), without im2col.
//!
//! For one row of the filter, the `kernel * n_in` inputs under it are contiguous, so a convolution is a
//! product with overlapping rows. In the forward pass, inputs are broadcast and output channels are the
//! lanes. The backward pass works through lists of active outputs: those that ReLU did not set to zero. Of a
//! pooling window only the largest output passes a gradient. What is skipped would have added exact zeros.

use super::{KernelPath, PAD, SLACK, Simd, by_path, padded};

/// The sizes of a convolution, with its input already padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Input height and width, padding included.
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) n_in: usize,
    pub(crate) n_out: usize,
    /// Height and width of the filter.
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    /// Height and width of the pooling window; 1 without pooling.
    pub(crate) pool_size: usize,
    /// Whether ReLU follows.
    pub(crate) relu: bool,
}

/// Marks an output that ReLU made inactive.
const INACTIVE: i32 = -1;

impl Shape {
    /// Height and width before pooling.
    pub(crate) fn conv_size(&self) -> (usize, usize) {
        ((self.height - self.kernel) / self.stride + 1, (self.width - self.kernel) / self.stride + 1)
    }

    /// Output height and width.
    pub(crate) fn out_size(&self) -> (usize, usize) {
        let (height, width) = self.conv_size();
        (height / self.pool_size, width / self.pool_size)
    }

    /// Output floats per sample.
    pub(crate) fn out_len(&self) -> usize {
        let (height, width) = self.out_size();
        height * width * self.n_out
    }

    /// Input floats per sample.
    pub(crate) fn in_len(&self) -> usize {
        self.height * self.width * self.n_in
    }

    /// Floats under one row of the filter.
    pub(crate) fn row_len(&self) -> usize {
        self.kernel * self.n_in
    }

    /// Floats of one row of the filter as stored.
    pub(crate) fn padded_row_len(&self) -> usize {
        padded(self.row_len())
    }

    /// Floats of all filters as stored: `[out][filter row][column * n_in + in, padded]`.
    pub(crate) fn weights_len(&self) -> usize {
        self.n_out * self.kernel * self.padded_row_len()
    }

    /// Floats of the copy for the forward pass: `[filter row][column * n_in + in][out, padded]`.
    pub(crate) fn forward_len(&self) -> usize {
        self.kernel * self.row_len() * padded(self.n_out)
    }

    /// Floats of the convolved rows before pooling.
    pub(crate) fn rows_len(&self) -> usize {
        self.pool_size * self.conv_size().1 * padded(self.n_out)
    }

    /// The position of the weight from `input` under (`row`, `column`) of the filter to `output`.
    pub(crate) fn weight_index(&self, output: usize, row: usize, column: usize, input: usize) -> usize {
        (output * self.kernel + row) * self.padded_row_len() + column * self.n_in + input
    }
}

/// Writes the forward pass's copy of the weights.
pub(crate) fn transpose_weights(shape: &Shape, weights: &[f32], transposed: &mut [f32]) {
    let (row, row_pad, out_pad) = (shape.row_len(), shape.padded_row_len(), padded(shape.n_out));
    for filter_row in 0..shape.kernel {
        for block in (0..row).step_by(PAD) {
            for output in 0..shape.n_out {
                let from = &weights[(output * shape.kernel + filter_row) * row_pad..][..row_pad];
                for at in block..(block + PAD).min(row) {
                    transposed[(filter_row * row + at) * out_pad + output] = from[at];
                }
            }
        }
    }
}

/// Convolution, bias, max-pooling and ReLU, fused, for `n_samples`. `rows` is scratch of `rows_len`; `argmax`
/// receives the position in the pooling window that each output came from.
pub(crate) fn forward(
    path: KernelPath,
    shape: &Shape,
    n_samples: usize,
    input: &[f32],
    transposed: &[f32],
    bias: &[f32],
    rows: &mut [f32],
    output: &mut [f32],
    argmax: &mut [i32],
) {
    assert!(input.len() >= n_samples * shape.in_len() + SLACK, "input");
    assert!(transposed.len() >= shape.forward_len() + SLACK && bias.len() >= padded(shape.n_out), "weights");
    assert!(rows.len() >= shape.rows_len() + SLACK, "rows");
    let out = n_samples * shape.out_len() + SLACK;
    assert!(output.len() >= out && argmax.len() >= out, "output");
    assert!(shape.pool_size * shape.pool_size <= MAX_PLACES, "pool");
    let tiles = TileWidths::of(shape.conv_size().1, path);
    for sample in 0..n_samples {
        let to = sample * shape.out_len();
        // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
        unsafe {
            forward_raw(
                path,
                shape,
                &tiles,
                input.as_ptr().add(sample * shape.in_len()),
                transposed.as_ptr(),
                bias.as_ptr(),
                rows.as_mut_ptr(),
                output.as_mut_ptr().add(to),
                argmax.as_mut_ptr().add(to),
            );
        }
    }
}

/// Adds the gradient of the weights over the active outputs in `lists` to `gradient`. Its padding receives
/// arbitrary values.
pub(crate) fn weight_gradient(
    path: KernelPath,
    shape: &Shape,
    input: &[f32],
    lists: &ActiveLists,
    gradient: &mut [f32],
) {
    assert!(input.len() >= lists.n_samples * shape.in_len() + SLACK, "input");
    assert!(gradient.len() >= shape.weights_len() && lists.shape == Some(*shape), "gradient");
    // SAFETY: the sizes were checked; the lists point into the samples they were collected from.
    unsafe { weight_gradient_raw(path, shape, input.as_ptr(), lists, gradient.as_mut_ptr()) }
}

/// Adds the gradient of the inputs of `n_samples` to `input_gradient`.
pub(crate) fn input_gradient(
    path: KernelPath,
    shape: &Shape,
    n_samples: usize,
    output_grads: &[f32],
    argmax: &[i32],
    weights: &[f32],
    input_gradient: &mut [f32],
) {
    assert!(
        output_grads.len() >= n_samples * shape.out_len() && argmax.len() >= n_samples * shape.out_len(),
        "output_grads"
    );
    assert!(
        weights.len() >= shape.weights_len() && shape.pool_size * shape.pool_size <= MAX_PLACES,
        "weights"
    );
    assert!(input_gradient.len() >= n_samples * shape.in_len() + SLACK, "gradient");
    assert!(
        argmax[..n_samples * shape.out_len()]
            .iter()
            .all(|&window_place| window_place < (shape.pool_size * shape.pool_size) as i32),
        "argmax"
    );
    for sample in 0..n_samples {
        let from = sample * shape.out_len();
        // SAFETY: the sizes and places were checked, and a path is only chosen where its unit exists.
        unsafe {
            input_gradient_raw(
                path,
                shape,
                output_grads.as_ptr().add(from),
                argmax.as_ptr().add(from),
                weights.as_ptr(),
                input_gradient.as_mut_ptr().add(sample * shape.in_len()),
            );
        }
    }
}

by_path! {
    fn forward_raw(
        shape: &Shape, tiles: &TileWidths, input: *const f32, transposed: *const f32, bias: *const f32, rows: *mut f32,
        output: *mut f32, argmax: *mut i32,
    ) = forward_on;
}

by_path! {
    fn weight_gradient_raw(shape: &Shape, input: *const f32, lists: &ActiveLists, gradient: *mut f32) =
        weight_gradient_on;
}

by_path! {
    fn input_gradient_raw(
        shape: &Shape, output_grads: *const f32, argmax: *const i32, weights: *const f32, input_gradient: *mut f32,
    ) = input_gradient_on;
}

/// The active outputs of some samples by channel: where the patch of each begins in the input, and its
/// gradient.
#[derive(Debug, Default)]
pub(crate) struct ActiveLists {
    input_offsets: Vec<u32>,
    output_grads: Vec<f32>,
    counts: Vec<usize>,
    capacity: usize,
    n_samples: usize,
    /// The shape that they were collected for.
    shape: Option<Shape>,
}

/// A slice of active outputs: where the patch of each begins, and its gradient.
#[derive(Clone, Copy)]
struct ActiveList<'l> {
    input_offsets: &'l [u32],
    output_grads: &'l [f32],
}

/// Up to 16 positions of a sample, and up to 16 channels of them.
pub(super) struct ActiveBlock {
    pub(super) output_grads: *const f32,
    pub(super) argmax: *const i32,
    /// Elements from one position to the next.
    pub(super) place_stride: usize,
    pub(super) n_places: usize,
    /// Where the pooling window of each position begins in a sample, and where the sample begins.
    pub(super) corners: [u32; PAD],
    pub(super) sample: u32,
    /// The offset of each position within a pooling window.
    pub(super) offsets: [u32; PAD],
    pub(super) input_offsets: *mut u32,
    pub(super) listed_grads: *mut f32,
    /// Capacity of a channel's list.
    pub(super) capacity: usize,
}

impl ActiveLists {
    /// Collects the active outputs of `n_samples`, and adds their gradients to `bias_gradient`.
    pub(crate) fn collect(
        &mut self,
        path: KernelPath,
        shape: &Shape,
        n_samples: usize,
        output_grads: &[f32],
        argmax: &[i32],
        bias_gradient: &mut [f32],
    ) {
        let (height, width) = shape.out_size();
        let n_out = shape.n_out;
        let len = n_samples * shape.out_len() + SLACK;
        assert!(output_grads.len() >= len && argmax.len() >= len, "output_grads");
        assert!(shape.pool_size * shape.pool_size <= PAD, "pool");
        self.n_samples = n_samples;
        self.shape = Some(*shape);
        self.capacity = n_samples * height * width + PAD;
        if self.input_offsets.len() < self.capacity * n_out {
            self.input_offsets.resize(self.capacity * n_out, 0);
            self.output_grads.resize(self.capacity * n_out, 0.0);
        }
        self.counts.clear();
        self.counts.resize(n_out, 0);
        let step = shape.stride * shape.n_in;
        let row_step = shape.stride * shape.width * shape.n_in;
        let mut offsets = [0; PAD];
        for (place, offset) in offsets.iter_mut().enumerate().take(shape.pool_size * shape.pool_size) {
            *offset = ((place / shape.pool_size) * row_step + (place % shape.pool_size) * step) as u32;
        }
        let n_places = height * width;
        for first in (0..n_places).step_by(PAD) {
            let corners = std::array::from_fn(|n| {
                let (y, x) = ((first + n) / width, (first + n) % width);
                (y * shape.pool_size * row_step + x * shape.pool_size * step) as u32
            });
            for sample in 0..n_samples {
                let at = (sample * n_places + first) * n_out;
                for channel in (0..n_out).step_by(PAD) {
                    let list = channel * self.capacity;
                    let block = ActiveBlock {
                        output_grads: output_grads[at + channel..].as_ptr(),
                        argmax: argmax[at + channel..].as_ptr(),
                        place_stride: n_out,
                        n_places: (n_places - first).min(PAD),
                        corners,
                        sample: (sample * shape.in_len()) as u32,
                        offsets,
                        input_offsets: self.input_offsets[list..].as_mut_ptr(),
                        listed_grads: self.output_grads[list..].as_mut_ptr(),
                        capacity: self.capacity,
                    };
                    let counts = &mut self.counts[channel..n_out.min(channel + PAD)];
                    // SAFETY: buffers have slack after them, and lists have capacity for all outputs and one
                    // vector more.
                    unsafe { list_active(path, &block, counts) };
                }
            }
        }
        for (channel, gradient) in bias_gradient.iter_mut().enumerate().take(n_out) {
            let (whole, rest) = self.channel(channel).output_grads.as_chunks::<16>();
            // Sixteen independent sums, because each addition waits for the one before.
            let mut sums = [0.0_f32; 16];
            for lane_grads in whole {
                for (sum, grad) in sums.iter_mut().zip(lane_grads) {
                    *sum += grad;
                }
            }
            *gradient += sums.iter().sum::<f32>() + rest.iter().sum::<f32>();
        }
    }

    fn channel(&self, channel: usize) -> ActiveList<'_> {
        let range = channel * self.capacity..channel * self.capacity + self.counts[channel];
        ActiveList {
            input_offsets: &self.input_offsets[range.clone()],
            output_grads: &self.output_grads[range],
        }
    }
}

/// Appends the active outputs of a block to the lists of its channels.
unsafe fn list_active(path: KernelPath, block: &ActiveBlock, counts: &mut [usize]) {
    // SAFETY: as promised by the caller.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if path == KernelPath::Avx512 {
            return super::avx512::list_active(block, counts);
        }
        let _ = path;
        for place in 0..block.n_places {
            let at = place * block.place_stride;
            for (channel, count) in counts.iter_mut().enumerate() {
                let argmax = *block.argmax.add(at + channel);
                let is_active = argmax >= 0;
                // Each output is written but counted only if it is active: no branch can be mispredicted.
                let to = channel * block.capacity + *count;
                *block.input_offsets.add(to) =
                    block.sample + block.corners[place] + block.offsets[argmax as usize % PAD];
                *block.listed_grads.add(to) = *block.output_grads.add(at + channel);
                *count += usize::from(is_active);
            }
        }
    }
}

#[inline(always)]
unsafe fn forward_on<S: Simd>(
    shape: &Shape,
    tiles: &TileWidths,
    input: *const f32,
    transposed: *const f32,
    bias: *const f32,
    rows: *mut f32,
    output: *mut f32,
    argmax: *mut i32,
) {
    let out_pad = padded(shape.n_out);
    let (out_height, out_width) = shape.out_size();
    // SAFETY: the loops stay within the sizes of the shape.
    unsafe {
        for y in 0..out_height {
            for row in 0..shape.pool_size {
                let from = input.add((y * shape.pool_size + row) * shape.stride * shape.width * shape.n_in);
                let to = rows.add(row * shape.conv_size().1 * out_pad);
                convolve_row::<S>(shape, tiles, from, transposed, bias, to);
            }
            let at = y * out_width * shape.n_out;
            pool_row::<S>(shape, rows, output.add(at), argmax.add(at));
        }
    }
}

/// One row of outputs for all channels.
#[inline(always)]
unsafe fn convolve_row<S: Simd>(
    shape: &Shape,
    tiles: &TileWidths,
    input: *const f32,
    transposed: *const f32,
    bias: *const f32,
    to: *mut f32,
) {
    // Vectors beyond the last channel would be wasted, and so would half of one.
    let rest = shape.n_out % S::LANES;
    let tail = S::HAS_NARROW && rest > 0 && rest <= S::LANES / 2;
    let n_needed = if tail { shape.n_out / S::LANES } else { shape.n_out.div_ceil(S::LANES) };
    let mut vector = 0;
    // SAFETY: the loops stay within the sizes of the shape.
    unsafe {
        loop {
            let left = n_needed - vector;
            let tile = Tile {
                shape,
                input,
                w: transposed.add(vector * S::LANES),
                bias: bias.add(vector * S::LANES),
                to: to.add(vector * S::LANES),
                out_pad: padded(shape.n_out),
            };
            if S::HAS_NARROW && tail && left < 4 {
                match left {
                    0 => tile.along::<S, 0, true>(tiles.0[0]),
                    1 => tile.along::<S, 1, true>(tiles.0[1]),
                    2 => tile.along::<S, 2, true>(tiles.0[2]),
                    _ => tile.along::<S, 3, true>(tiles.0[3]),
                };
                return;
            }
            vector += if S::HAS_32_REGISTERS {
                match left {
                    0 => return,
                    1 => tile.along::<S, 1, false>(tiles.0[0]),
                    2 => tile.along::<S, 2, false>(tiles.0[1]),
                    3 => tile.along::<S, 3, false>(tiles.0[2]),
                    _ => tile.along::<S, 4, false>(tiles.0[3]),
                }
            } else {
                match left {
                    0 => return,
                    1 => tile.along::<S, 1, false>(tiles.0[0]),
                    _ => tile.along::<S, 2, false>(tiles.0[1]),
                }
            };
        }
    }
}

/// Some channels of one row of outputs.
#[derive(Clone, Copy)]
struct Tile<'s> {
    shape: &'s Shape,
    input: *const f32,
    w: *const f32,
    bias: *const f32,
    to: *mut f32,
    out_pad: usize,
}

impl Tile<'_> {
    /// Convolves `Z` vectors of channels, and half of one if `T`, along the row, `places` positions at a
    /// time; returns `Z`.
    #[inline(always)]
    unsafe fn along<S: Simd, const Z: usize, const T: bool>(self, places: usize) -> usize {
        let width = self.shape.conv_size().1;
        // SAFETY: the last tile is moved back so that it ends with the row.
        unsafe {
            for tile in 0..width.div_ceil(places) {
                let x = (tile * places).min(width - places);
                match places {
                    16 => self.tile::<S, Z, 16, T>(x),
                    14 => self.tile::<S, Z, 14, T>(x),
                    13 => self.tile::<S, Z, 13, T>(x),
                    12 => self.tile::<S, Z, 12, T>(x),
                    10 => self.tile::<S, Z, 10, T>(x),
                    8 => self.tile::<S, Z, 8, T>(x),
                    7 => self.tile::<S, Z, 7, T>(x),
                    6 => self.tile::<S, Z, 6, T>(x),
                    5 => self.tile::<S, Z, 5, T>(x),
                    4 => self.tile::<S, Z, 4, T>(x),
                    3 => self.tile::<S, Z, 3, T>(x),
                    2 => self.tile::<S, Z, 2, T>(x),
                    _ => self.tile::<S, Z, 1, T>(x),
                }
            }
        }
        Z
    }

    #[inline(always)]
    unsafe fn tile<S: Simd, const Z: usize, const X: usize, const T: bool>(self, x: usize) {
        let shape = self.shape;
        let step = shape.stride * shape.n_in;
        // SAFETY: the loops stay within the sizes of the shape.
        unsafe {
            let mut sums = [[S::splat(0.0); Z]; X];
            for z in 0..Z {
                let bias = S::load(self.bias.add(z * S::LANES));
                for place in 0..X {
                    sums[place][z] = bias;
                }
            }
            let mut ends = [S::Narrow::splat(0.0); X];
            if T {
                ends = [S::Narrow::load(self.bias.add(Z * S::LANES)); X];
            }
            let mut w = self.w;
            for filter_row in 0..shape.kernel {
                let from = self.input.add(filter_row * shape.width * shape.n_in + x * step);
                // One pointer serves four positions, of which three are one, two and three steps further: few
                // registers, and addresses without arithmetic.
                let mut fourth = [from; MAX_PLACES / 4];
                for group in 0..X.div_ceil(4) {
                    fourth[group] = from.add(4 * group * step);
                }
                for _ in 0..shape.row_len() {
                    let mut columns = [S::splat(0.0); Z];
                    for z in 0..Z {
                        columns[z] = S::load(w.add(z * S::LANES));
                    }
                    let mut end = S::Narrow::splat(0.0);
                    if T {
                        end = S::Narrow::load(w.add(Z * S::LANES));
                    }
                    for place in 0..X {
                        let near = fourth[place / 4];
                        let value = match place % 4 {
                            0 => *near,
                            1 => *near.add(step),
                            2 => *near.add(2 * step),
                            _ => *near.add(3 * step),
                        };
                        for z in 0..Z {
                            sums[place][z] = S::mul_add(S::splat(value), columns[z], sums[place][z]);
                        }
                        if T {
                            ends[place] = S::Narrow::mul_add(S::Narrow::splat(value), end, ends[place]);
                        }
                    }
                    for group in 0..X.div_ceil(4) {
                        fourth[group] = fourth[group].wrapping_add(1);
                    }
                    // The last one may point beyond the buffer; it is never dereferenced.
                    w = w.wrapping_add(self.out_pad);
                }
            }
            for place in 0..X {
                for z in 0..Z {
                    S::store(self.to.add((x + place) * self.out_pad + z * S::LANES), sums[place][z]);
                }
                if T {
                    S::Narrow::store(self.to.add((x + place) * self.out_pad + Z * S::LANES), ends[place]);
                }
            }
        }
    }
}

/// How many positions along a row are convolved at a time, for one to four vectors of channels.
#[derive(Clone, Copy, Debug)]
struct TileWidths([usize; 4]);

impl TileWidths {
    fn of(width: usize, path: KernelPath) -> TileWidths {
        // Sums for all positions, the channels' weights and one input must fit the registers.
        let most = if path == KernelPath::Avx512 { [16, 12, 8, 6] } else { [12, 6, 4, 3] };
        TileWidths(most.map(|most| best_tile(width, most)))
    }
}

/// The tile width that covers a row with the least duplicate work; of equally good ones the larger.
fn best_tile(width: usize, most: usize) -> usize {
    let sizes = [16, 14, 13, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1];
    let fitting = sizes.into_iter().filter(|&size| size <= most && size <= width);
    fitting.min_by_key(|&size| (width.div_ceil(size) * size, 16 - size)).unwrap_or(1)
}

/// Max-pooling and ReLU of `pool_size` convolved rows into one row of outputs. Whole vectors are written: the
/// excess is overwritten later, or lies in the slack.
#[inline(always)]
unsafe fn pool_row<S: Simd>(shape: &Shape, rows: *const f32, output: *mut f32, argmax: *mut i32) {
    let out_pad = padded(shape.n_out);
    let n_places = shape.pool_size * shape.pool_size;
    let mut places = [0; MAX_PLACES];
    for (at, place) in places.iter_mut().enumerate().take(n_places) {
        *place = (at / shape.pool_size * shape.conv_size().1 + at % shape.pool_size) * out_pad;
    }
    // Positions travel as the bits of floats, which are only moved and never computed with.
    let bits = |place: i32| f32::from_bits(place as u32);
    // SAFETY: the loops stay within the sizes of the shape and the slack.
    unsafe {
        let (zero, inactive) = (S::splat(0.0), S::splat(bits(INACTIVE)));
        for x in 0..shape.out_size().1 {
            for vector in 0..shape.n_out.div_ceil(S::LANES) {
                let from = rows.add(x * shape.pool_size * out_pad + vector * S::LANES);
                let mut best = S::load(from);
                let mut place_of = S::splat(bits(0));
                for place in 1..n_places {
                    let value = S::load(from.add(places[place]));
                    place_of = S::select_greater(value, best, S::splat(bits(place as i32)), place_of);
                    best = S::max(value, best);
                }
                if shape.relu {
                    place_of = S::select_greater(best, zero, place_of, inactive);
                    best = S::max(zero, best);
                }
                let to = x * shape.n_out + vector * S::LANES;
                S::store(output.add(to), best);
                S::store(argmax.add(to).cast(), place_of);
            }
        }
    }
}

#[inline(always)]
unsafe fn weight_gradient_on<S: Simd>(
    shape: &Shape,
    input: *const f32,
    lists: &ActiveLists,
    gradient: *mut f32,
) {
    // SAFETY: as promised by the caller; where a unit exists, its narrow one does.
    unsafe {
        if S::HAS_NARROW && shape.row_len() <= S::LANES / 2 {
            weight_gradient_by::<S::Narrow>(shape, input, lists, gradient);
        } else {
            weight_gradient_by::<S>(shape, input, lists, gradient);
        }
    }
}

#[inline(always)]
unsafe fn weight_gradient_by<S: Simd>(
    shape: &Shape,
    input: *const f32,
    lists: &ActiveLists,
    gradient: *mut f32,
) {
    let row_step = shape.width * shape.n_in;
    // Some vectors of a row may hold only padding.
    let n_vectors = shape.row_len().div_ceil(S::LANES);
    for channel in 0..shape.n_out {
        let active = lists.channel(channel);
        let blocks = TileSums { row_step, row_pad: shape.padded_row_len() };
        // SAFETY: patches lie within the input, and reading a whole vector past one stays within the slack.
        unsafe {
            let to = gradient.add(channel * shape.kernel * shape.padded_row_len());
            let mut block = TileShape::first::<S>(shape.kernel, n_vectors);
            while let Some(TileShape { rows, vectors, row, vector }) = block {
                let offset = row * row_step + vector * S::LANES;
                let to = to.add(row * shape.padded_row_len() + vector * S::LANES);
                blocks.gather::<S>(rows, vectors, active, input.add(offset), to);
                block = TileShape { rows, vectors, row, vector }.next::<S>(shape.kernel, n_vectors);
            }
        }
    }
}

#[inline(always)]
unsafe fn input_gradient_on<S: Simd>(
    shape: &Shape,
    output_grads: *const f32,
    argmax: *const i32,
    weights: *const f32,
    input_gradient: *mut f32,
) {
    let row_step = shape.width * shape.n_in;
    let n_vectors = shape.row_len().div_ceil(S::LANES);
    let (height, width) = shape.out_size();
    let n_places = shape.pool_size * shape.pool_size;
    let filter = shape.kernel * shape.padded_row_len();
    let blocks = TileSums { row_step, row_pad: shape.padded_row_len() };
    // Capacity for every channel in every position; the list of inactive outputs is never read.
    let mut weight_offsets = [[0_u32; MAX_CHANNELS]; MAX_PLACES + 1];
    let mut grads = [[0.0_f32; MAX_CHANNELS]; MAX_PLACES + 1];
    // SAFETY: the loops stay within the sizes of the shape. Whole vectors past a patch stay within the slack,
    // where only the zeros of the padding are added.
    unsafe {
        for y in 0..height {
            for x in 0..width {
                for first in (0..shape.n_out).step_by(MAX_CHANNELS) {
                    let at = (y * width + x) * shape.n_out + first;
                    let mut counts = [0_usize; MAX_PLACES + 1];
                    for channel in 0..(shape.n_out - first).min(MAX_CHANNELS) {
                        let place = *argmax.add(at + channel);
                        let list = if place >= 0 { place as usize } else { MAX_PLACES };
                        weight_offsets[list][counts[list]] = ((first + channel) * filter) as u32;
                        grads[list][counts[list]] = *output_grads.add(at + channel);
                        counts[list] += 1;
                    }
                    for place in 0..n_places {
                        let count = counts[place];
                        if count == 0 {
                            continue;
                        }
                        let active = ActiveList {
                            input_offsets: &weight_offsets[place][..count],
                            output_grads: &grads[place][..count],
                        };
                        let top = (y * shape.pool_size + place / shape.pool_size) * shape.stride;
                        let left = (x * shape.pool_size + place % shape.pool_size) * shape.stride;
                        let to = input_gradient.add(top * row_step + left * shape.n_in);
                        let mut block = TileShape::first::<S>(shape.kernel, n_vectors);
                        while let Some(TileShape { rows, vectors, row, vector }) = block {
                            let weights = weights.add(row * shape.padded_row_len() + vector * S::LANES);
                            let to = to.add(row * row_step + vector * S::LANES);
                            blocks.scatter::<S>(rows, vectors, active, weights, to);
                            block =
                                TileShape { rows, vectors, row, vector }.next::<S>(shape.kernel, n_vectors);
                        }
                    }
                }
            }
        }
    }
}

/// Channels whose active outputs are listed together.
const MAX_CHANNELS: usize = 64;

/// Positions of the largest pooling window whose gradients are listed, and of the longest tile along a row.
const MAX_PLACES: usize = 16;

/// A part of a filter whose sums fit the registers: some rows by some vectors from a position on.
///
/// It is walked by hand and not by closures, which would be compiled without the vector unit.
#[derive(Clone, Copy)]
struct TileShape {
    rows: usize,
    vectors: usize,
    row: usize,
    vector: usize,
}

impl TileShape {
    /// The first block of a filter of `side` rows by `n_vectors`: the whole filter, if it fits.
    #[inline(always)]
    fn first<S: Simd>(side: usize, n_vectors: usize) -> Option<TileShape> {
        if side * n_vectors <= TileShape::max_vectors::<S>() && (side == 5 || side == 3) {
            return Some(TileShape { rows: side, vectors: n_vectors, row: 0, vector: 0 });
        }
        Some(TileShape { rows: 1, vectors: TileShape::vectors_for::<S>(n_vectors), row: 0, vector: 0 })
    }

    /// The next block.
    #[inline(always)]
    fn next<S: Simd>(self, side: usize, n_vectors: usize) -> Option<TileShape> {
        let (mut row, mut vector) = (self.row, self.vector + self.vectors);
        if vector == n_vectors {
            (row, vector) = (row + self.rows, 0);
        }
        (row < side).then(|| TileShape {
            rows: 1,
            vectors: TileShape::vectors_for::<S>(n_vectors - vector),
            row,
            vector,
        })
    }

    #[inline(always)]
    fn max_vectors<S: Simd>() -> usize {
        if S::HAS_32_REGISTERS { 20 } else { 10 }
    }

    /// The largest block width that fits the rest of a row.
    #[inline(always)]
    fn vectors_for<S: Simd>(left: usize) -> usize {
        match left.min(TileShape::max_vectors::<S>()) {
            20.. => 20,
            10.. => 10,
            8.. => 8,
            size @ 1..=6 => size,
            _ => 6,
        }
    }
}

/// Sums over lists, for blocks of a filter.
#[derive(Clone, Copy)]
struct TileSums {
    row_step: usize,
    row_pad: usize,
}

macro_rules! sized {
    ($rows:expr, $vectors:expr, $call:ident) => {
        match ($rows, $vectors) {
            (5, 1) => $call!(5, 1),
            (5, 2) => $call!(5, 2),
            (5, 3) => $call!(5, 3),
            (5, 4) => $call!(5, 4),
            (3, 1) => $call!(3, 1),
            (3, 2) => $call!(3, 2),
            (3, 3) => $call!(3, 3),
            (3, 4) => $call!(3, 4),
            (3, 5) => $call!(3, 5),
            (3, 6) => $call!(3, 6),
            (1, 20) => $call!(1, 20),
            (1, 10) => $call!(1, 10),
            (1, 8) => $call!(1, 8),
            (1, 6) => $call!(1, 6),
            (1, 5) => $call!(1, 5),
            (1, 4) => $call!(1, 4),
            (1, 3) => $call!(1, 3),
            (1, 2) => $call!(1, 2),
            (1, 1) => $call!(1, 1),
            (rows, vectors) => unreachable!("no block of {rows} x {vectors}"),
        }
    };
}

impl TileSums {
    /// `to += sum of gradient * patch`.
    #[inline(always)]
    unsafe fn gather<S: Simd>(
        self,
        rows: usize,
        vectors: usize,
        active: ActiveList<'_>,
        input: *const f32,
        to: *mut f32,
    ) {
        macro_rules! call {
            ($rows:literal, $vectors:literal) => {
                // SAFETY: as promised by the caller.
                unsafe { self.sum::<S, $rows, $vectors>(active, input, self.row_step, to, self.row_pad) }
            };
        }
        sized!(rows, vectors, call);
    }

    /// `to += sum of gradient * filter`.
    #[inline(always)]
    unsafe fn scatter<S: Simd>(
        self,
        rows: usize,
        vectors: usize,
        active: ActiveList<'_>,
        weights: *const f32,
        to: *mut f32,
    ) {
        macro_rules! call {
            ($rows:literal, $vectors:literal) => {
                // SAFETY: as promised by the caller.
                unsafe { self.sum::<S, $rows, $vectors>(active, weights, self.row_pad, to, self.row_step) }
            };
        }
        sized!(rows, vectors, call);
    }

    #[inline(always)]
    unsafe fn sum<S: Simd, const R: usize, const V: usize>(
        self,
        active: ActiveList<'_>,
        from: *const f32,
        from_step: usize,
        to: *mut f32,
        to_step: usize,
    ) {
        // SAFETY: as promised by the caller.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = S::load(to.add(r * to_step + v * S::LANES));
                }
            }
            for (&place, &grad) in active.input_offsets.iter().zip(active.output_grads) {
                let grad = S::splat(grad);
                let from = from.add(place as usize);
                for r in 0..R {
                    for v in 0..V {
                        let value = S::load(from.add(r * from_step + v * S::LANES));
                        sums[r][v] = S::mul_add(value, grad, sums[r][v]);
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    S::store(to.add(r * to_step + v * S::LANES), sums[r][v]);
                }
            }
        }
    }
}
