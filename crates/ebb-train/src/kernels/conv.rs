//! Convolutions over images stored row by row, pixel by pixel, channel by channel (HWC), without im2col.
//!
//! For one row of the filter the `side * n_in` inputs under it lie next to each other, so a convolution is a
//! product with overlapping rows. Forward, inputs are broadcast and output channels are the lanes. Backward
//! works through lists of the outputs whose gradient is not zero: after max-pooling at most one in four has
//! one, and ReLU kills more. What is skipped is exactly zero.

use super::{PAD, Path, SLACK, Simd, by_path, padded};

/// The sizes of a convolution, its input already padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Input height and width, padding included.
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) n_in: usize,
    pub(crate) n_out: usize,
    /// Height and width of the filter.
    pub(crate) side: usize,
    pub(crate) stride: usize,
    /// Height and width of the pooling window; 1 if there is none.
    pub(crate) pool: usize,
    /// Whether nothing below zero comes out.
    pub(crate) relu: bool,
}

/// Marks an output that ReLU killed.
const DEAD: i32 = -1;

impl Shape {
    /// Height and width before pooling.
    pub(crate) fn convolved(&self) -> (usize, usize) {
        ((self.height - self.side) / self.stride + 1, (self.width - self.side) / self.stride + 1)
    }

    /// Height and width that come out.
    pub(crate) fn out(&self) -> (usize, usize) {
        let (height, width) = self.convolved();
        (height / self.pool, width / self.pool)
    }

    /// Floats a sample that come out.
    pub(crate) fn out_len(&self) -> usize {
        let (height, width) = self.out();
        height * width * self.n_out
    }

    /// Floats a sample that go in.
    pub(crate) fn in_len(&self) -> usize {
        self.height * self.width * self.n_in
    }

    /// Floats under one row of the filter.
    pub(crate) fn row(&self) -> usize {
        self.side * self.n_in
    }

    /// Floats of one row of the filter as stored.
    pub(crate) fn row_pad(&self) -> usize {
        padded(self.row())
    }

    /// Floats of all filters as stored: `[out][filter row][column * n_in + in, padded]`.
    pub(crate) fn weights_len(&self) -> usize {
        self.n_out * self.side * self.row_pad()
    }

    /// Floats of the copy for the forward pass: `[filter row][column * n_in + in][out, padded]`.
    pub(crate) fn forward_len(&self) -> usize {
        self.side * self.row() * padded(self.n_out)
    }

    /// Floats of the rows that are convolved before they are pooled.
    pub(crate) fn rows_len(&self) -> usize {
        self.pool * self.convolved().1 * padded(self.n_out)
    }

    /// Where the weight stands that joins `input` under (`row`, `column`) of the filter to `output`.
    pub(crate) fn at(&self, output: usize, row: usize, column: usize, input: usize) -> usize {
        (output * self.side + row) * self.row_pad() + column * self.n_in + input
    }
}

/// Writes the forward pass's copy of the weights.
pub(crate) fn turn(shape: &Shape, weights: &[f32], turned: &mut [f32]) {
    let (row, row_pad, out_pad) = (shape.row(), shape.row_pad(), padded(shape.n_out));
    for filter_row in 0..shape.side {
        for block in (0..row).step_by(PAD) {
            for output in 0..shape.n_out {
                let from = &weights[(output * shape.side + filter_row) * row_pad..][..row_pad];
                for at in block..(block + PAD).min(row) {
                    turned[(filter_row * row + at) * out_pad + output] = from[at];
                }
            }
        }
    }
}

/// Convolves, adds the bias, pools and cuts `n_samples`. `rows` is scratch of `rows_len`; `chosen` tells for
/// each output which place of the pooling window it came from.
pub(crate) fn forward(
    path: Path,
    shape: &Shape,
    n_samples: usize,
    input: &[f32],
    turned: &[f32],
    bias: &[f32],
    rows: &mut [f32],
    output: &mut [f32],
    chosen: &mut [i32],
) {
    assert!(input.len() >= n_samples * shape.in_len() + SLACK, "input");
    assert!(turned.len() >= shape.forward_len() + SLACK && bias.len() >= padded(shape.n_out), "weights");
    assert!(rows.len() >= shape.rows_len() + SLACK, "rows");
    let out = n_samples * shape.out_len() + SLACK;
    assert!(output.len() >= out && chosen.len() >= out, "output");
    assert!(shape.pool * shape.pool <= MOST_PLACES, "pool");
    let tiles = Tiles::of(shape.convolved().1, path);
    for sample in 0..n_samples {
        let to = sample * shape.out_len();
        // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
        unsafe {
            forward_raw(
                path,
                shape,
                &tiles,
                input.as_ptr().add(sample * shape.in_len()),
                turned.as_ptr(),
                bias.as_ptr(),
                rows.as_mut_ptr(),
                output.as_mut_ptr().add(to),
                chosen.as_mut_ptr().add(to),
            );
        }
    }
}

/// Adds the gradient of the weights over the live outputs in `lists` to `gradient`. Its padding fills with
/// whatever lies beside the patches.
pub(crate) fn weight_gradient(path: Path, shape: &Shape, input: &[f32], lists: &Lists, gradient: &mut [f32]) {
    assert!(input.len() >= lists.n_samples * shape.in_len() + SLACK, "input");
    assert!(gradient.len() >= shape.weights_len() && lists.shape == Some(*shape), "gradient");
    // SAFETY: the sizes were checked; the lists point into the samples they were collected from.
    unsafe { weight_gradient_raw(path, shape, input.as_ptr(), lists, gradient.as_mut_ptr()) }
}

/// Adds the gradient of the inputs of `n_samples` to `input_gradient`.
pub(crate) fn input_gradient(
    path: Path,
    shape: &Shape,
    n_samples: usize,
    slopes: &[f32],
    chosen: &[i32],
    weights: &[f32],
    input_gradient: &mut [f32],
) {
    assert!(
        slopes.len() >= n_samples * shape.out_len() && chosen.len() >= n_samples * shape.out_len(),
        "slopes"
    );
    assert!(weights.len() >= shape.weights_len() && shape.pool * shape.pool <= MOST_PLACES, "weights");
    assert!(input_gradient.len() >= n_samples * shape.in_len() + SLACK, "gradient");
    assert!(
        chosen[..n_samples * shape.out_len()].iter().all(|&place| place < (shape.pool * shape.pool) as i32),
        "chosen"
    );
    for sample in 0..n_samples {
        let from = sample * shape.out_len();
        // SAFETY: the sizes and places were checked, and a path is only chosen where its unit exists.
        unsafe {
            input_gradient_raw(
                path,
                shape,
                slopes.as_ptr().add(from),
                chosen.as_ptr().add(from),
                weights.as_ptr(),
                input_gradient.as_mut_ptr().add(sample * shape.in_len()),
            );
        }
    }
}

by_path! {
    fn forward_raw(
        shape: &Shape, tiles: &Tiles, input: *const f32, turned: *const f32, bias: *const f32, rows: *mut f32,
        output: *mut f32, chosen: *mut i32,
    ) = forward_on;
}

by_path! {
    fn weight_gradient_raw(shape: &Shape, input: *const f32, lists: &Lists, gradient: *mut f32) =
        weight_gradient_on;
}

by_path! {
    fn input_gradient_raw(
        shape: &Shape, slopes: *const f32, chosen: *const i32, weights: *const f32, input_gradient: *mut f32,
    ) = input_gradient_on;
}

/// The live outputs of some samples, channel by channel.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    entries: Vec<Entry>,
    counts: Vec<usize>,
    capacity: usize,
    n_samples: usize,
    /// What they were collected for.
    shape: Option<Shape>,
}

/// One live output: where its patch begins in the input, and its gradient.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    from: u32,
    slope: f32,
}

impl Lists {
    /// Collects the live outputs of `n_samples`, and adds their gradients to `bias_gradient`.
    pub(crate) fn collect(
        &mut self,
        shape: &Shape,
        n_samples: usize,
        slopes: &[f32],
        chosen: &[i32],
        bias_gradient: &mut [f32],
    ) {
        let (height, width) = shape.out();
        let n_out = shape.n_out;
        self.n_samples = n_samples;
        self.shape = Some(*shape);
        self.capacity = n_samples * height * width + 1;
        self.entries.resize(self.capacity * n_out, Entry::default());
        self.counts.clear();
        self.counts.resize(n_out, 0);
        let step = shape.stride * shape.n_in;
        let row_step = shape.stride * shape.width * shape.n_in;
        // The offset of each place of the pooling window; the last is where the dead point.
        let mut places: Vec<u32> = (0..shape.pool * shape.pool)
            .map(|place| ((place / shape.pool) * row_step + (place % shape.pool) * step) as u32)
            .collect();
        places.push(0);
        let mut at = 0;
        for sample in 0..n_samples {
            for y in 0..height {
                for x in 0..width {
                    let corner = sample * shape.in_len() + y * shape.pool * row_step + x * shape.pool * step;
                    let slopes = &slopes[at..at + n_out];
                    let chosen = &chosen[at..at + n_out];
                    let lists = self.entries.chunks_exact_mut(self.capacity).zip(&mut self.counts);
                    for (((list, count), &slope), &place) in lists.zip(slopes).zip(chosen) {
                        let alive = place >= 0;
                        let offset = places[if alive { place as usize } else { places.len() - 1 }];
                        // Written always, counted only if alive: no branch to mispredict.
                        list[*count] = Entry { from: corner as u32 + offset, slope };
                        *count += usize::from(alive);
                    }
                    at += n_out;
                }
            }
        }
        for (channel, gradient) in bias_gradient.iter_mut().enumerate().take(n_out) {
            let (whole, rest) = self.of(channel).as_chunks::<8>();
            // Eight sums side by side, for each addition waits for the one before.
            let mut sums = [0.0_f32; 8];
            for entries in whole {
                for (sum, entry) in sums.iter_mut().zip(entries) {
                    *sum += entry.slope;
                }
            }
            *gradient += sums.iter().sum::<f32>() + rest.iter().map(|entry| entry.slope).sum::<f32>();
        }
    }

    fn of(&self, channel: usize) -> &[Entry] {
        &self.entries[channel * self.capacity..][..self.counts[channel]]
    }
}

#[inline(always)]
unsafe fn forward_on<S: Simd>(
    shape: &Shape,
    tiles: &Tiles,
    input: *const f32,
    turned: *const f32,
    bias: *const f32,
    rows: *mut f32,
    output: *mut f32,
    chosen: *mut i32,
) {
    let out_pad = padded(shape.n_out);
    let (out_height, out_width) = shape.out();
    // SAFETY: the loops stay within the sizes of the shape.
    unsafe {
        for y in 0..out_height {
            for row in 0..shape.pool {
                let from = input.add((y * shape.pool + row) * shape.stride * shape.width * shape.n_in);
                let to = rows.add(row * shape.convolved().1 * out_pad);
                convolve_row::<S>(shape, tiles, from, turned, bias, to);
            }
            let at = y * out_width * shape.n_out;
            pool_row::<S>(shape, rows, output.add(at), chosen.add(at));
        }
    }
}

/// One row of outputs for all channels.
#[inline(always)]
unsafe fn convolve_row<S: Simd>(
    shape: &Shape,
    tiles: &Tiles,
    input: *const f32,
    turned: *const f32,
    bias: *const f32,
    to: *mut f32,
) {
    let n_vectors = padded(shape.n_out) / S::LANES;
    // Vectors beyond the channels that count would be wasted.
    let n_needed = shape.n_out.div_ceil(S::LANES);
    let mut vector = 0;
    // SAFETY: the loops stay within the sizes of the shape.
    unsafe {
        while vector < n_needed {
            let left = n_needed - vector;
            let tile = Tile {
                shape,
                input,
                w: turned.add(vector * S::LANES),
                bias: bias.add(vector * S::LANES),
                to: to.add(vector * S::LANES),
                out_pad: n_vectors * S::LANES,
            };
            vector += if S::MANY {
                match left {
                    1 => tile.along::<S, 1>(tiles.0[0]),
                    2 => tile.along::<S, 2>(tiles.0[1]),
                    3 => tile.along::<S, 3>(tiles.0[2]),
                    _ => tile.along::<S, 4>(tiles.0[3]),
                }
            } else {
                match left {
                    1 => tile.along::<S, 1>(tiles.0[0]),
                    _ => tile.along::<S, 2>(tiles.0[1]),
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
    /// `Z` vectors of channels along the row, so many places at a time; returns `Z`.
    #[inline(always)]
    unsafe fn along<S: Simd, const Z: usize>(self, places: usize) -> usize {
        let width = self.shape.convolved().1;
        // SAFETY: the last tile is moved back so that it ends with the row.
        unsafe {
            for tile in 0..width.div_ceil(places) {
                let x = (tile * places).min(width - places);
                match places {
                    16 => self.tile::<S, Z, 16>(x),
                    14 => self.tile::<S, Z, 14>(x),
                    13 => self.tile::<S, Z, 13>(x),
                    12 => self.tile::<S, Z, 12>(x),
                    10 => self.tile::<S, Z, 10>(x),
                    8 => self.tile::<S, Z, 8>(x),
                    7 => self.tile::<S, Z, 7>(x),
                    6 => self.tile::<S, Z, 6>(x),
                    5 => self.tile::<S, Z, 5>(x),
                    4 => self.tile::<S, Z, 4>(x),
                    3 => self.tile::<S, Z, 3>(x),
                    2 => self.tile::<S, Z, 2>(x),
                    _ => self.tile::<S, Z, 1>(x),
                }
            }
        }
        Z
    }

    #[inline(always)]
    unsafe fn tile<S: Simd, const Z: usize, const X: usize>(self, x: usize) {
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
            let mut w = self.w;
            for filter_row in 0..shape.side {
                let from = self.input.add(filter_row * shape.width * shape.n_in + x * step);
                // Every fourth place has a pointer, the three after it are one, two and three steps further:
                // few registers, and addresses that need no arithmetic.
                let mut fourth = [from; MOST_PLACES / 4];
                for group in 0..X.div_ceil(4) {
                    fourth[group] = from.add(4 * group * step);
                }
                for _ in 0..shape.row() {
                    let mut columns = [S::splat(0.0); Z];
                    for z in 0..Z {
                        columns[z] = S::load(w.add(z * S::LANES));
                    }
                    for place in 0..X {
                        let near = fourth[place / 4];
                        let value = S::splat(match place % 4 {
                            0 => *near,
                            1 => *near.add(step),
                            2 => *near.add(2 * step),
                            _ => *near.add(3 * step),
                        });
                        for z in 0..Z {
                            sums[place][z] = S::mul_add(value, columns[z], sums[place][z]);
                        }
                    }
                    for group in 0..X.div_ceil(4) {
                        fourth[group] = fourth[group].wrapping_add(1);
                    }
                    // The last one may point beyond the buffer; it is not followed.
                    w = w.wrapping_add(self.out_pad);
                }
            }
            for place in 0..X {
                for z in 0..Z {
                    S::store(self.to.add((x + place) * self.out_pad + z * S::LANES), sums[place][z]);
                }
            }
        }
    }
}

/// How many places along a row are convolved at a time, for one to four vectors of channels.
#[derive(Clone, Copy, Debug)]
struct Tiles([usize; 4]);

impl Tiles {
    fn of(width: usize, path: Path) -> Tiles {
        // Sums for all places, the channels' weights and one input must fit the registers.
        let most = if path == Path::Avx512 { [16, 12, 8, 6] } else { [12, 6, 4, 3] };
        Tiles(most.map(|most| best_tile(width, most)))
    }
}

/// The tile that covers a row with the least work done twice; the larger of two that are as good.
fn best_tile(width: usize, most: usize) -> usize {
    let sizes = [16, 14, 13, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1];
    let fitting = sizes.into_iter().filter(|&size| size <= most && size <= width);
    fitting.min_by_key(|&size| (width.div_ceil(size) * size, 16 - size)).unwrap_or(1)
}

/// Pools and cuts `pool` convolved rows into one row of outputs. Whole vectors are written: what they spill
/// over is written again after, or is slack.
#[inline(always)]
unsafe fn pool_row<S: Simd>(shape: &Shape, rows: *const f32, output: *mut f32, chosen: *mut i32) {
    let out_pad = padded(shape.n_out);
    let n_places = shape.pool * shape.pool;
    let mut places = [0; MOST_PLACES];
    for (at, place) in places.iter_mut().enumerate().take(n_places) {
        *place = (at / shape.pool * shape.convolved().1 + at % shape.pool) * out_pad;
    }
    // Places travel as the bits of floats, which are only moved and never computed with.
    let bits = |place: i32| f32::from_bits(place as u32);
    // SAFETY: the loops stay within the sizes of the shape and the slack.
    unsafe {
        let (zero, dead) = (S::splat(0.0), S::splat(bits(DEAD)));
        for x in 0..shape.out().1 {
            for vector in 0..shape.n_out.div_ceil(S::LANES) {
                let from = rows.add(x * shape.pool * out_pad + vector * S::LANES);
                let mut best = S::load(from);
                let mut place_of = S::splat(bits(0));
                for place in 1..n_places {
                    let value = S::load(from.add(places[place]));
                    place_of = S::where_greater(value, best, S::splat(bits(place as i32)), place_of);
                    best = S::max(value, best);
                }
                if shape.relu {
                    place_of = S::where_greater(best, zero, place_of, dead);
                    best = S::max(zero, best);
                }
                let to = x * shape.n_out + vector * S::LANES;
                S::store(output.add(to), best);
                S::store(chosen.add(to).cast(), place_of);
            }
        }
    }
}

#[inline(always)]
unsafe fn weight_gradient_on<S: Simd>(shape: &Shape, input: *const f32, lists: &Lists, gradient: *mut f32) {
    let row_step = shape.width * shape.n_in;
    // Some vectors of a row may hold nothing but padding.
    let n_vectors = shape.row().div_ceil(S::LANES);
    for channel in 0..shape.n_out {
        let entries = lists.of(channel);
        let blocks = Blocks { row_step, row_pad: shape.row_pad() };
        // SAFETY: patches lie within the input, and reading a whole vector past one stays within the slack.
        unsafe {
            let to = gradient.add(channel * shape.side * shape.row_pad());
            let mut block = Block::first::<S>(shape.side, n_vectors);
            while let Some(Block { rows, vectors, row, vector }) = block {
                let offset = row * row_step + vector * S::LANES;
                let to = to.add(row * shape.row_pad() + vector * S::LANES);
                blocks.gather::<S>(rows, vectors, entries, input.add(offset), to);
                block = Block { rows, vectors, row, vector }.next::<S>(shape.side, n_vectors);
            }
        }
    }
}

#[inline(always)]
unsafe fn input_gradient_on<S: Simd>(
    shape: &Shape,
    slopes: *const f32,
    chosen: *const i32,
    weights: *const f32,
    input_gradient: *mut f32,
) {
    let row_step = shape.width * shape.n_in;
    let n_vectors = shape.row().div_ceil(S::LANES);
    let (height, width) = shape.out();
    let n_places = shape.pool * shape.pool;
    let filter = shape.side * shape.row_pad();
    let blocks = Blocks { row_step, row_pad: shape.row_pad() };
    // Room for every channel in every place; the list of the dead is never read.
    let mut lists = [[Entry::default(); MOST_CHANNELS]; MOST_PLACES + 1];
    // SAFETY: the loops stay within the sizes of the shape, and whole vectors past a patch within the slack:
    // what is added there is the zero of the padding.
    unsafe {
        for y in 0..height {
            for x in 0..width {
                for first in (0..shape.n_out).step_by(MOST_CHANNELS) {
                    let at = (y * width + x) * shape.n_out + first;
                    let mut counts = [0_usize; MOST_PLACES + 1];
                    for channel in 0..(shape.n_out - first).min(MOST_CHANNELS) {
                        let place = *chosen.add(at + channel);
                        let list = if place >= 0 { place as usize } else { MOST_PLACES };
                        let from = ((first + channel) * filter) as u32;
                        lists[list][counts[list]] = Entry { from, slope: *slopes.add(at + channel) };
                        counts[list] += 1;
                    }
                    for place in 0..n_places {
                        let entries = &lists[place][..counts[place]];
                        if entries.is_empty() {
                            continue;
                        }
                        let top = (y * shape.pool + place / shape.pool) * shape.stride;
                        let left = (x * shape.pool + place % shape.pool) * shape.stride;
                        let to = input_gradient.add(top * row_step + left * shape.n_in);
                        let mut block = Block::first::<S>(shape.side, n_vectors);
                        while let Some(Block { rows, vectors, row, vector }) = block {
                            let weights = weights.add(row * shape.row_pad() + vector * S::LANES);
                            let to = to.add(row * row_step + vector * S::LANES);
                            blocks.scatter::<S>(rows, vectors, entries, weights, to);
                            block = Block { rows, vectors, row, vector }.next::<S>(shape.side, n_vectors);
                        }
                    }
                }
            }
        }
    }
}

/// Channels whose live outputs are listed together.
const MOST_CHANNELS: usize = 64;

/// Places of the largest pooling window whose gradients are listed, and of the longest tile along a row.
const MOST_PLACES: usize = 16;

/// A part of a filter whose sums fit the registers: so many rows by so many vectors from a place on.
///
/// Walked by hand and not by closures, which would be compiled without the vector unit.
#[derive(Clone, Copy)]
struct Block {
    rows: usize,
    vectors: usize,
    row: usize,
    vector: usize,
}

impl Block {
    /// The first block of a filter of `side` rows by `n_vectors`: all of it, if it fits.
    #[inline(always)]
    fn first<S: Simd>(side: usize, n_vectors: usize) -> Option<Block> {
        if side * n_vectors <= Block::most::<S>() && (side == 5 || side == 3) {
            return Some(Block { rows: side, vectors: n_vectors, row: 0, vector: 0 });
        }
        Some(Block { rows: 1, vectors: Block::along::<S>(n_vectors), row: 0, vector: 0 })
    }

    /// The block after this one.
    #[inline(always)]
    fn next<S: Simd>(self, side: usize, n_vectors: usize) -> Option<Block> {
        let (mut row, mut vector) = (self.row, self.vector + self.vectors);
        if vector == n_vectors {
            (row, vector) = (row + self.rows, 0);
        }
        (row < side).then(|| Block { rows: 1, vectors: Block::along::<S>(n_vectors - vector), row, vector })
    }

    #[inline(always)]
    fn most<S: Simd>() -> usize {
        if S::MANY { 20 } else { 10 }
    }

    /// The largest size of a block that fits what is left of a row.
    #[inline(always)]
    fn along<S: Simd>(left: usize) -> usize {
        match left.min(Block::most::<S>()) {
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
struct Blocks {
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

impl Blocks {
    /// `to += sum of slope * patch`.
    #[inline(always)]
    unsafe fn gather<S: Simd>(
        self,
        rows: usize,
        vectors: usize,
        entries: &[Entry],
        input: *const f32,
        to: *mut f32,
    ) {
        macro_rules! call {
            ($rows:literal, $vectors:literal) => {
                // SAFETY: as promised by the caller.
                unsafe { self.sum::<S, $rows, $vectors>(entries, input, self.row_step, to, self.row_pad) }
            };
        }
        sized!(rows, vectors, call);
    }

    /// `to += sum of slope * filter`.
    #[inline(always)]
    unsafe fn scatter<S: Simd>(
        self,
        rows: usize,
        vectors: usize,
        entries: &[Entry],
        weights: *const f32,
        to: *mut f32,
    ) {
        macro_rules! call {
            ($rows:literal, $vectors:literal) => {
                // SAFETY: as promised by the caller.
                unsafe { self.sum::<S, $rows, $vectors>(entries, weights, self.row_pad, to, self.row_step) }
            };
        }
        sized!(rows, vectors, call);
    }

    #[inline(always)]
    unsafe fn sum<S: Simd, const R: usize, const V: usize>(
        self,
        entries: &[Entry],
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
            for entry in entries {
                let slope = S::splat(entry.slope);
                let from = from.add(entry.from as usize);
                for r in 0..R {
                    for v in 0..V {
                        let value = S::load(from.add(r * from_step + v * S::LANES));
                        sums[r][v] = S::mul_add(value, slope, sums[r][v]);
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
