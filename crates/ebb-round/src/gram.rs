//! Inner products of many vectors with each other, at the speed of a matrix product.
//!
//! Coordinates are taken in chunks. Within a chunk sixteen lanes add fused products in f32, lane by lane; the
//! lanes and then the chunks are added in f64, in a fixed order. Every path does just this, so the bits
//! depend neither on the machine nor on the number of threads nor on the other requested pairs.
#![allow(unsafe_code, reason = "calls of functions compiled for a vector unit that was found at run time")]

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Bits;

/// Coordinates in a chunk. A chunk is long enough to be copied fast and to make the sums of its lanes cheap.
/// Blocks of chunks stay in the second-level cache.
const CHUNK: usize = 3072;

/// Additions that run in parallel lanes.
const LANES: usize = 16;

/// Rows and columns of a tile of pairs whose sums are held in registers.
const TILE: (usize, usize) = (4, 6);

/// The largest number of vectors in a single block, and in one of several blocks, two of which are in use at
/// a time.
const BLOCK: (usize, usize) = (120, 84);

/// Coordinates that one thread takes at a time, if there are few vectors.
const PART_LEN: usize = 1 << 16;

/// The largest number of inner products that are kept once for each part.
const MAX_PARTIAL_PRODUCTS: usize = 1 << 25;

/// One chunk of one vector, padded with zeros; no load of sixteen lanes touches two cache lines. The rest of
/// the row is never read. It keeps rows from lying a power of two apart, where they would evict each other
/// from the first-level cache.
#[derive(Clone)]
#[repr(align(64))]
struct Row([f32; CHUNK + LANES]);

impl Row {
    fn chunk(&self) -> &[f32; CHUNK] {
        self.0.first_chunk().expect("a row is longer than a chunk")
    }
}

/// The inner products of vectors with each other and with themselves.
#[derive(Clone, Debug)]
pub struct Gram {
    n: usize,
    block: usize,
    /// For each block of vectors, its products with all vectors up to its last.
    blocks: Vec<Vec<f64>>,
    /// The divisor of each vector, a power of two; empty if none was divided.
    scales: Vec<f64>,
    /// The largest distance from 1 that rounding can give the cosine of parallel vectors.
    parallel_tolerance: f64,
}

impl Gram {
    /// The inner product of two vectors; 0 for a pair that was not requested.
    ///
    /// # Panics
    ///
    /// If an index is not below the number of vectors.
    pub fn product(&self, one: usize, other: usize) -> f64 {
        let (row, col) = (one.max(other), one.min(other));
        assert!(row < self.n, "vector {row} of {}", self.n);
        let at = row / self.block;
        let product = self.blocks[at][row % self.block * width(at, self.block) + col];
        if self.scales.is_empty() { product } else { product * self.scales[row] * self.scales[col] }
    }

    /// The cosine of the angle between two vectors; 0 if one of them is zero. It is exactly 1 or -1 where
    /// rounding cannot tell the vectors from parallel ones. Parallel vectors of any length thus have equal
    /// cosines to the last bit.
    pub fn cosine(&self, one: usize, other: usize) -> f64 {
        let cosine = cosine(self.product(one, other), self.product(one, one), self.product(other, other));
        if 1.0 - cosine.abs() <= self.parallel_tolerance { cosine.signum() } else { cosine }
    }

    /// The square of the distance between two vectors.
    pub fn distance2(&self, one: usize, other: usize) -> f64 {
        distance2(self.product(one, other), self.product(one, one), self.product(other, other))
    }
}

/// The cosine of the angle between two vectors, from their product and the squares of their norms; 0 if one
/// is zero.
pub fn cosine(product: f64, one2: f64, other2: f64) -> f64 {
    let norms = one2.sqrt() * other2.sqrt();
    if norms > 0.0 { (product / norms).clamp(-1.0, 1.0) } else { 0.0 }
}

/// The square of the distance between two vectors, from their product and the squares of their norms.
pub fn distance2(product: f64, one2: f64, other2: f64) -> f64 {
    let square = one2 + other2 - 2.0 * product;
    // `max` would turn a distance that is NaN into 0.
    if square < 0.0 { 0.0 } else { square }
}

/// Which pairs to compute; every vector's product with itself always is.
#[derive(Clone, Copy, Debug)]
pub enum Pairs<'a> {
    /// All pairs.
    All,
    /// For each vector, the requested ones among the vectors before it.
    Listed(&'a [Bits]),
}

impl Pairs<'_> {
    /// Whether a pair is requested, given the later vector first.
    fn contains(&self, row: usize, col: usize) -> bool {
        match self {
            Pairs::All => true,
            Pairs::Listed(before) => col == row || before[row].get(col),
        }
    }

    /// The pairs of a tile to compute; `None` if there are none.
    fn tile_at(&self, first_row: usize, first_col: usize, n: usize) -> Option<Tile> {
        // Most tiles lie wholly below the diagonal.
        if matches!(self, Pairs::All) && first_row + TILE.0 <= n && first_col + TILE.1 <= first_row {
            return Some(Tile::Whole([[true; TILE.1]; TILE.0]));
        }
        let mut mask = [[false; TILE.1]; TILE.0];
        let (mut some, mut whole) = (false, true);
        for (row, mask) in (first_row..).zip(&mut mask) {
            for (col, is_wanted) in (first_col..).zip(mask) {
                // Pairs beyond the last vector and above the diagonal are computed anyway.
                if row < n && col <= row {
                    *is_wanted = self.contains(row, col);
                    some |= *is_wanted;
                    whole &= *is_wanted;
                }
            }
        }
        let tile = if whole { Tile::Whole(mask) } else { Tile::Masked(mask) };
        some.then_some(tile)
    }
}

/// The pairs of a tile to compute.
enum Tile {
    /// Every pair that exists.
    Whole([[bool; TILE.1]; TILE.0]),
    /// Only these pairs.
    Masked([[bool; TILE.1]; TILE.0]),
}

/// The inner products of the vectors over the coordinates in `ranges`, only for the requested pairs.
///
/// # Panics
///
/// If a range reaches beyond a vector, or `pairs` does not have a set for each vector.
pub fn gram(vectors: &[&[f32]], ranges: &[Range<usize>], pairs: Pairs<'_>, threads: usize) -> Gram {
    let plain = product(vectors, ranges, pairs, threads);
    if (0..vectors.len()).all(|row| SAFE_NORMS2.contains(&plain.product(row, row))) {
        return plain;
    }
    // Some values are so large or so small that their squares leave the range of f32.
    let scales: Vec<_> = vectors.iter().map(|vector| scale(vector, ranges)).collect();
    let scaled: Vec<Vec<f32>> = vectors
        .iter()
        .zip(&scales)
        .map(|(vector, scale)| vector.iter().map(|&value| (f64::from(value) / scale) as f32).collect())
        .collect();
    let rows: Vec<_> = scaled.iter().map(Vec::as_slice).collect();
    Gram { scales, ..product(&rows, ranges, pairs, threads) }
}

/// Squared norms that f32 can compute without overflow or underflow.
const SAFE_NORMS2: std::ops::RangeInclusive<f64> = 1e-20..=1e30;

/// The power of two just below a vector's largest absolute value; 1 if all are zero or one is not finite.
fn scale(vector: &[f32], ranges: &[Range<usize>]) -> f64 {
    let values = ranges.iter().flat_map(|range| &vector[range.clone()]);
    let largest = values.fold(0.0_f32, |largest, value| largest.max(value.abs()));
    if largest > 0.0 && largest.is_finite() {
        libm::exp2(libm::floor(libm::log2(f64::from(largest))))
    } else {
        1.0
    }
}

fn product(vectors: &[&[f32]], ranges: &[Range<usize>], pairs: Pairs<'_>, threads: usize) -> Gram {
    if let Pairs::Listed(before) = pairs {
        assert_eq!(before.len(), vectors.len(), "each vector has its set");
    }
    let n = vectors.len();
    let chunks = chunks(ranges);
    let n_blocks = if n <= BLOCK.0 { 1 } else { n.div_ceil(BLOCK.1) };
    let block = n.div_ceil(n_blocks).next_multiple_of(TILE.0 * TILE.1 / 2).max(1);
    let len = chunks.len() * CHUNK;
    let n_parts = (len / PART_LEN).min(MAX_PARTIAL_PRODUCTS / (n * n).max(1)).clamp(1, 64);
    let per_part = chunks.len().div_ceil(n_parts).max(1);
    // The last blocks have the most pairs. They come first, so that no thread is left with one at the end.
    let items: Vec<_> = (0..n_parts).flat_map(|part| (0..n_blocks).rev().map(move |at| (part, at))).collect();
    let done: Vec<_> = items.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut scratch = Scratch::new(block);
        while let Some(&(part, at)) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mine =
                &chunks[(part * per_part).min(chunks.len())..((part + 1) * per_part).min(chunks.len())];
            let products = block_row(vectors, mine, pairs, at, block, &mut scratch);
            let slot = part * n_blocks + (n_blocks - 1 - at);
            *done[slot].lock().expect("nobody panics while it is held") = Some(products);
        }
    };
    let threads = threads.min(items.len()).max(1);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_iter().map(|slot| {
        slot.into_inner().expect("nobody panics while it is held").expect("every item was worked on")
    });
    let mut blocks: Vec<Vec<f64>> = done.by_ref().take(n_blocks).collect();
    for (at, part) in done.enumerate() {
        blocks[at % n_blocks].iter_mut().zip(part).for_each(|(sum, more)| *sum += more);
    }
    blocks.reverse();
    // A lane rounds once for each product it adds: by at most half an `EPSILON` of the pair's product, and of
    // the two squares together.
    let rounded = chunks.iter().map(|chunk| padded_len(chunk) / LANES).max().unwrap_or(0);
    Gram {
        n,
        block,
        blocks,
        scales: Vec::new(),
        parallel_tolerance: rounded as f64 * f64::from(f32::EPSILON),
    }
}

/// The stretches of each chunk of the coordinates in `ranges`.
fn chunks(ranges: &[Range<usize>]) -> Vec<Vec<Range<usize>>> {
    let mut chunks: Vec<Vec<Range<usize>>> = Vec::new();
    let mut space_left = 0;
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            if space_left == 0 {
                chunks.push(Vec::new());
                space_left = CHUNK;
            }
            let end = range.end.min(start + space_left);
            chunks.last_mut().expect("one was pushed").push(start..end);
            space_left -= end - start;
            start = end;
        }
    }
    chunks
}

/// The number of columns of a block row.
fn width(at: usize, block: usize) -> usize {
    (at + 1) * block
}

/// Where a thread copies the chunks that it works on.
struct Scratch {
    rows: Vec<Row>,
    cols: Vec<Row>,
}

impl Scratch {
    fn new(block: usize) -> Scratch {
        let zeros = vec![Row([0.0; CHUNK + LANES]); block];
        Scratch { rows: zeros.clone(), cols: zeros }
    }
}

/// The products of a block of vectors with all up to its last, over some chunks.
fn block_row(
    vectors: &[&[f32]],
    chunks: &[Vec<Range<usize>>],
    pairs: Pairs<'_>,
    at: usize,
    block: usize,
    scratch: &mut Scratch,
) -> Vec<f64> {
    let width = width(at, block);
    let mut products = vec![0.0; block * width];
    let first_row = at * block;
    // For each block of columns, the tiles with requested pairs.
    let tiles_by_block: Vec<Vec<_>> = (0..=at)
        .map(|col_block| {
            // Columns stay while rows pass by, because a tile has fewer rows.
            let corners = (0..block)
                .step_by(TILE.1)
                .flat_map(|col| (0..block).step_by(TILE.0).map(move |row| (row, col)));
            let tile = |(row, col)| {
                let tile = pairs.tile_at(first_row + row, col_block * block + col, vectors.len())?;
                Some((row, col, tile))
            };
            corners.filter_map(tile).collect()
        })
        .collect();
    for (idx, chunk) in chunks.iter().enumerate() {
        pack(vectors, first_row, chunk, &mut scratch.rows);
        let mut steps = tiles_by_block.iter().enumerate().filter(|(_, tiles)| !tiles.is_empty()).peekable();
        while let Some((col_block, tiles)) = steps.next() {
            let first_col = col_block * block;
            let cols = if col_block == at {
                &scratch.rows
            } else {
                pack(vectors, first_col, chunk, &mut scratch.cols);
                &scratch.cols
            };
            // The next chunks are fetched from memory while products are formed.
            let mut prefetch = match (steps.peek(), chunks.get(idx + 1)) {
                (Some((next, _)), _) if *next != at => {
                    Prefetch::new(vectors, next * block, block, chunk, tiles.len())
                }
                (_, Some(next)) => Prefetch::new(vectors, first_row, block, next, tiles.len()),
                _ => Prefetch::new(&[], 0, 0, &[], 1),
            };
            let len = padded_len(chunk);
            let mut add =
                |row: usize, col: usize, product: f64| products[row * width + first_col + col] += product;
            for (row, col, tile) in tiles {
                prefetch.fetch();
                add_tile((&scratch.rows, *row), (cols, *col), tile, len, &mut add);
            }
        }
    }
    products
}

/// The cache lines that are copied next, fetched a few at a time.
struct Prefetch<'a> {
    vectors: &'a [&'a [f32]],
    stretches: &'a [Range<usize>],
    vector: usize,
    stretch: usize,
    /// The coordinate of the next line within its stretch.
    coordinate: usize,
    per_fetch: usize,
}

impl<'a> Prefetch<'a> {
    /// Fetches the chunks of a block of vectors in this number of steps.
    fn new(
        vectors: &'a [&'a [f32]],
        first: usize,
        block: usize,
        stretches: &'a [Range<usize>],
        n_fetches: usize,
    ) -> Prefetch<'a> {
        let vectors = &vectors[first.min(vectors.len())..(first + block).min(vectors.len())];
        let n_lines: usize = stretches.iter().map(|stretch| stretch.len().div_ceil(LANES)).sum();
        let per_fetch = (n_lines * vectors.len()).div_ceil(n_fetches.max(1));
        Prefetch { vectors, stretches, vector: 0, stretch: 0, coordinate: 0, per_fetch }
    }

    fn fetch(&mut self) {
        let mut left = self.per_fetch;
        while left > 0
            && let Some(vector) = self.vectors.get(self.vector)
        {
            let Some(stretch) = self.stretches.get(self.stretch) else {
                (self.vector, self.stretch) = (self.vector + 1, 0);
                continue;
            };
            let from = &vector[stretch.clone()];
            let lines = from.len().saturating_sub(self.coordinate).div_ceil(LANES).min(left);
            for line in 0..lines {
                fetch_line(&from[self.coordinate + line * LANES]);
            }
            self.coordinate += lines * LANES;
            left -= lines;
            if self.coordinate >= from.len() {
                (self.stretch, self.coordinate) = (self.stretch + 1, 0);
            }
        }
    }
}

/// Prefetches a cache line without waiting for it.
#[inline(always)]
fn fetch_line(at: &f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the address is that of a live value; the instruction, which every x86-64 processor has, changes
    // nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(at).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The padded length of a chunk.
fn padded_len(chunk: &[Range<usize>]) -> usize {
    chunk.iter().map(Range::len).sum::<usize>().next_multiple_of(LANES)
}

/// Copies a chunk of a block of vectors, padded with zeros to whole steps; missing vectors become zeros.
fn pack(vectors: &[&[f32]], first: usize, chunk: &[Range<usize>], to: &mut [Row]) {
    let len = padded_len(chunk);
    for (row, Row(to)) in to.iter_mut().enumerate() {
        let mut filled = 0;
        if let Some(vector) = vectors.get(first + row) {
            for stretch in chunk {
                let from = &vector[stretch.clone()];
                to[filled..filled + from.len()].copy_from_slice(from);
                filled += from.len();
            }
        }
        to[filled..len].fill(0.0);
    }
}

/// Adds the requested products of a tile, over the first `len` of the chunk.
fn add_tile(
    (rows, first_row): (&[Row], usize),
    (cols, first_col): (&[Row], usize),
    wanted: &Tile,
    len: usize,
    add: &mut impl FnMut(usize, usize, f64),
) {
    let (row, col) = (|row: usize| &rows[row], |col: usize| &cols[col]);
    match wanted {
        Tile::Whole(mask) => {
            let products = tile::<{ TILE.0 }, { TILE.1 }>(
                std::array::from_fn(|at| row(first_row + at)),
                std::array::from_fn(|at| col(first_col + at)),
                len,
            );
            for ((row, products), mask) in (first_row..).zip(products).zip(mask) {
                for ((col, product), is_wanted) in (first_col..).zip(products).zip(mask) {
                    if *is_wanted {
                        add(row, col, product);
                    }
                }
            }
        }
        // Three by three, because fewer would leave the unit waiting for each sum.
        Tile::Masked(mask) => {
            for (at, mask) in (first_row..).zip(mask) {
                let wanted: Vec<_> = (first_col..)
                    .zip(mask)
                    .filter(|(_, is_wanted)| **is_wanted)
                    .map(|(col, _)| col)
                    .collect();
                let (threes, ones) = wanted.as_chunks::<3>();
                for three in threes {
                    let [products] = tile([row(at)], three.map(col), len);
                    three.iter().zip(products).for_each(|(&other, product)| add(at, other, product));
                }
                for &other in ones {
                    let [[product]] = tile([row(at)], [col(other)], len);
                    add(at, other, product);
                }
            }
        }
    }
}

/// The products of a few rows with a few columns.
#[cfg(target_arch = "x86_64")]
fn tile<const R: usize, const C: usize>(rows: [&Row; R], cols: [&Row; C], len: usize) -> [[f64; C]; R] {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the unit, as checked in the line above.
        unsafe { x86::tile_avx512(rows, cols, len) }
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both units, as checked in the line above.
        unsafe { x86::tile_avx2(rows, cols, len) }
    } else {
        tile_plain(rows, cols, len)
    }
}

/// The products of a few rows with a few columns.
#[cfg(not(target_arch = "x86_64"))]
fn tile<const R: usize, const C: usize>(rows: [&Row; R], cols: [&Row; C], len: usize) -> [[f64; C]; R] {
    tile_plain(rows, cols, len)
}

#[inline(always)]
fn tile_plain<const R: usize, const C: usize>(rows: [&Row; R], cols: [&Row; C], len: usize) -> [[f64; C]; R] {
    rows.map(|row| cols.map(|col| lanes_plain(row, col, len)))
}

fn lanes_plain(row: &Row, col: &Row, len: usize) -> f64 {
    let (row, col) = (&row.chunk()[..len], &col.chunk()[..len]);
    let mut lanes = [0.0_f32; LANES];
    for (row, col) in row.as_chunks::<LANES>().0.iter().zip(col.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            lanes[lane] = row[lane].mul_add(col[lane], lanes[lane]);
        }
    }
    lane_sum(lanes)
}

/// The sum of the lanes, by halving.
#[inline(always)]
fn lane_sum(lanes: [f32; LANES]) -> f64 {
    let lane = |at: usize| f64::from(lanes[at]) + f64::from(lanes[at + 8]);
    let four = |at: usize| lane(at) + lane(at + 4);
    (four(0) + four(2)) + (four(1) + four(3))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, __m512, _mm_add_pd, _mm_add_sd, _mm_cvtsd_f64, _mm_unpackhi_pd, _mm256_add_pd,
        _mm256_castpd_ps, _mm256_castpd256_pd128, _mm256_castps256_ps128, _mm256_cvtps_pd,
        _mm256_extractf128_pd, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps,
        _mm512_castps_pd, _mm512_castps512_ps256, _mm512_extractf64x4_pd, _mm512_fmadd_ps, _mm512_loadu_ps,
        _mm512_setzero_ps,
    };

    use super::{CHUNK, LANES, Row};

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) fn tile_avx512<const R: usize, const C: usize>(
        rows: [&Row; R],
        cols: [&Row; C],
        len: usize,
    ) -> [[f64; C]; R] {
        assert!(len <= CHUNK && len.is_multiple_of(LANES), "whole steps within the chunk");
        let mut sums = [[_mm512_setzero_ps(); C]; R];
        for at in (0..len).step_by(LANES) {
            // SAFETY: sixteen values from `at` on are within the chunk.
            let load = |row: &Row| -> __m512 { unsafe { _mm512_loadu_ps(row.chunk().as_ptr().add(at)) } };
            let left: [__m512; R] = std::array::from_fn(|row| load(rows[row]));
            for col in 0..C {
                let right = load(cols[col]);
                for row in 0..R {
                    sums[row][col] = _mm512_fmadd_ps(left[row], right, sums[row][col]);
                }
            }
        }
        let mut products = [[0.0; C]; R];
        for row in 0..R {
            for col in 0..C {
                let lanes = sums[row][col];
                let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes)));
                products[row][col] = lane_sum(_mm512_castps512_ps256(lanes), high);
            }
        }
        products
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn tile_avx2<const R: usize, const C: usize>(
        rows: [&Row; R],
        cols: [&Row; C],
        len: usize,
    ) -> [[f64; C]; R] {
        assert!(len <= CHUNK && len.is_multiple_of(LANES), "whole steps within the chunk");
        let mut sums = [[(_mm256_setzero_ps(), _mm256_setzero_ps()); C]; R];
        // Two rows by three columns at a time, because there are only sixteen registers.
        for first_row in (0..R).step_by(2) {
            for first_col in (0..C).step_by(3) {
                let (last_row, last_col) = (R.min(first_row + 2), C.min(first_col + 3));
                for at in (0..len).step_by(LANES) {
                    let load = |row: &Row, by: usize| -> __m256 {
                        // SAFETY: sixteen values from `at` on are within the chunk.
                        unsafe { _mm256_loadu_ps(row.chunk().as_ptr().add(at + by)) }
                    };
                    for row in first_row..last_row {
                        let left = (load(rows[row], 0), load(rows[row], 8));
                        for col in first_col..last_col {
                            let sum = &mut sums[row][col];
                            sum.0 = _mm256_fmadd_ps(left.0, load(cols[col], 0), sum.0);
                            sum.1 = _mm256_fmadd_ps(left.1, load(cols[col], 8), sum.1);
                        }
                    }
                }
            }
        }
        let mut products = [[0.0; C]; R];
        for row in 0..R {
            for col in 0..C {
                products[row][col] = lane_sum(sums[row][col].0, sums[row][col].1);
            }
        }
        products
    }

    /// The sum of the lanes, by halving in the same order as in the plain path.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn lane_sum(low: __m256, high: __m256) -> f64 {
        let first = _mm256_add_pd(
            _mm256_cvtps_pd(_mm256_castps256_ps128(low)),
            _mm256_cvtps_pd(_mm256_castps256_ps128(high)),
        );
        let second = _mm256_add_pd(
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(low)),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(high)),
        );
        let four = _mm256_add_pd(first, second);
        let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
        _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;

    fn random(n: usize, len: usize, seed: u64) -> Vec<Vec<f32>> {
        let mut stream = Stream::of_run(seed, "gram");
        (0..n).map(|_| (0..len).map(|_| stream.normal() as f32).collect()).collect()
    }

    fn slices(vectors: &[Vec<f32>]) -> Vec<&[f32]> {
        vectors.iter().map(Vec::as_slice).collect()
    }

    fn exact(one: &[f32], other: &[f32], ranges: &[Range<usize>]) -> f64 {
        let product = |at: usize| f64::from(one[at]) * f64::from(other[at]);
        ranges.iter().cloned().flatten().map(product).sum()
    }

    #[test]
    fn products_are_those_of_f64_and_threads_do_not_change_the_bits() {
        for (n, len) in
            [(1, 5), (2, 511), (7, 513), (13, 1025), (60, 3000), (125, 700), (250, 64), (9, 140_000)]
        {
            let vectors = random(n, len, 1);
            let rows = slices(&vectors);
            let ranges = [0..len / 3, len / 2..len];
            let one = gram(&rows, &ranges, Pairs::All, 1);
            let three = gram(&rows, &ranges, Pairs::All, 3);
            let bound = 1e-6 * (len as f64).sqrt().max(1.0) * 10.0;
            for row in 0..n {
                for col in 0..=row {
                    let expected = exact(rows[row], rows[col], &ranges);
                    let found = one.product(row, col);
                    assert!(
                        (found - expected).abs() < bound,
                        "{n} x {len}, {row} {col}: {found}, not {expected}"
                    );
                    assert_eq!(
                        found.to_bits(),
                        three.product(col, row).to_bits(),
                        "{n} x {len}, {row} {col}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_path_gives_the_same_bits() {
        let rows: Vec<_> =
            random(10, CHUNK + LANES, 2).into_iter().map(|row| Row(row.try_into().expect("a row"))).collect();
        let row = |at: usize| &rows[at];
        let (left, right) =
            ([row(0), row(1), row(2), row(3)], [row(4), row(5), row(6), row(7), row(8), row(9)]);
        let plain = tile_plain(left, right, CHUNK);
        assert_eq!(
            tile(left, right, CHUNK).map(|row| row.map(f64::to_bits)),
            plain.map(|row| row.map(f64::to_bits))
        );
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has both units, as checked in the line above.
            assert_eq!(unsafe { x86::tile_avx2(left, right, CHUNK) }, plain);
        }
    }

    #[test]
    fn only_wanted_pairs_are_computed_and_their_bits_do_not_depend_on_the_others() {
        let (n, len) = (130, 1000);
        let vectors = random(n, len, 3);
        let rows = slices(&vectors);
        let whole = 0..len;
        let all = gram(&rows, std::slice::from_ref(&whole), Pairs::All, 2);
        let mut stream = Stream::of_run(4, "wanted");
        let wanted: Vec<Bits> = (0..n)
            .map(|row| {
                let mut bits = Bits::default();
                bits.grow(n);
                (0..row).filter(|_| stream.uniform() < 0.3).for_each(|col| bits.set(col, true));
                bits
            })
            .collect();
        let some = gram(&rows, std::slice::from_ref(&whole), Pairs::Listed(&wanted), 2);
        for (row, wanted) in wanted.iter().enumerate() {
            for col in 0..=row {
                let expected = if row == col || wanted.get(col) { all.product(row, col) } else { 0.0 };
                assert_eq!(some.product(row, col).to_bits(), expected.to_bits(), "{row} {col}");
            }
        }
    }

    #[test]
    fn huge_and_tiny_vectors_are_compared_like_others() {
        let vectors = random(3, 3000, 5);
        let cosines = |factors: [f32; 3]| {
            let scaled: Vec<Vec<f32>> = vectors
                .iter()
                .zip(factors)
                .map(|(vector, by)| vector.iter().map(|value| value * by).collect())
                .collect();
            let whole = 0..3000;
            let found = gram(&slices(&scaled), std::slice::from_ref(&whole), Pairs::All, 1);
            assert!(found.distance2(0, 1).is_finite() && found.distance2(0, 1) > 0.0, "{factors:?}");
            [found.cosine(0, 1), found.cosine(0, 2), found.cosine(1, 2)]
        };
        let plain = cosines([1.0, 1.0, 1.0]);
        for factors in [[1e37, 1.0, 1e37], [1e-30, 1.0, 1e-30], [1e37, 1e-30, 1.0]] {
            let found = cosines(factors);
            assert!(
                found.iter().zip(plain).all(|(one, other)| (one - other).abs() < 1e-6),
                "{factors:?}: {found:?}"
            );
        }
    }

    #[test]
    fn parallel_vectors_have_a_cosine_of_exactly_one_and_no_others() {
        for len in [1, 2, 17, CHUNK, 10_000] {
            let one = random(1, len, 7).remove(0);
            let factors = [1.0, 0.1, 1.0 / 3.0, 7.77, 1e-12, 1e17, -0.3, -2.1e9];
            let times = |factor: &f32| one.iter().map(|value| value * factor).collect::<Vec<_>>();
            let vectors: Vec<_> = factors.iter().map(times).collect();
            let found = gram(&slices(&vectors), std::slice::from_ref(&(0..len)), Pairs::All, 1);
            for (row, factor) in factors.iter().enumerate() {
                for (col, other) in factors.iter().enumerate().take(row) {
                    let expected = f64::from(factor.signum() * other.signum());
                    assert_eq!(found.cosine(row, col), expected, "{factor} and {other} times {len} numbers");
                }
            }
        }
        // A hundredth of a right angle, in the plane and in many dimensions.
        for len in [2, 10_000] {
            let vectors: Vec<Vec<f32>> =
                vec![vec![1.0; len], (0..len).map(|at| [1.01, 0.99][at % 2]).collect()];
            let found = gram(&slices(&vectors), std::slice::from_ref(&(0..len)), Pairs::All, 1);
            let expected = 1.0 / (1.0 + 1e-4_f64).sqrt();
            assert!(
                (found.cosine(0, 1) - expected).abs() < 1e-5 && found.cosine(0, 1) < 1.0,
                "{len} numbers"
            );
        }
    }

    #[test]
    fn cosines_and_distances_by_hand() {
        let vectors = [vec![3.0, 4.0, 100.0], vec![4.0, 3.0, -100.0], vec![0.0, 0.0, 1.0]];
        let ranges = std::slice::from_ref(&(0..2));
        let found = gram(&slices(&vectors), ranges, Pairs::All, 1);
        assert_eq!(found.cosine(0, 1), 24.0 / 25.0);
        assert_eq!(found.distance2(0, 1), 2.0);
        assert_eq!(found.cosine(0, 2), 0.0, "a zero vector has no direction");
        assert_eq!(gram(&[], ranges, Pairs::All, 2).n, 0);
    }
}
