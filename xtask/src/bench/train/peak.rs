//! The speed of matrix products on this machine, as the peak of which training reaches a share.
#![allow(unsafe_code, reason = "the reference multiplies through pointers")]

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crate::bench::Spread;

/// Rows and columns: small enough for the second-level cache, large enough to make packing worthwhile.
const SIDES: [usize; 3] = [256, 384, 512];
const REPEATS: usize = 5;

/// GFLOP/s that all threads reach together with the `gemm` crate, each on its own matrices, at the fastest
/// size.
pub(in crate::bench) fn measure(threads: NonZeroUsize) -> Spread {
    let at = |&side: &usize| Spread::of((0..REPEATS).map(|_| together(side, threads)));
    let by_median = |one: &Spread, two: &Spread| one.median.total_cmp(&two.median);
    SIDES.iter().map(at).max_by(by_median).expect("there are sides")
}

fn together(side: usize, threads: NonZeroUsize) -> f64 {
    let work = || {
        let (left, right) = (vec![0.5_f32; side * side], vec![0.25_f32; side * side]);
        let mut product = vec![0.0_f32; side * side];
        multiply(&left, &right, &mut product, side);
        let began = Instant::now();
        let mut count = 0_u32;
        while began.elapsed() < Duration::from_millis(100) {
            multiply(&left, &right, &mut product, side);
            count += 1;
        }
        2.0 * (side as f64).powi(3) * f64::from(count) / began.elapsed().as_secs_f64() / 1e9
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.get()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("multiplying does not panic")).sum()
    })
}

/// Square matrices in row-major order.
fn multiply(left: &[f32], right: &[f32], product: &mut [f32], side: usize) {
    assert!([left.len(), right.len(), product.len()] == [side * side; 3], "square matrices");
    let (row, column) = (side as isize, 1);
    // SAFETY: with these strides only the first side * side floats of each are accessed, and all three have
    // that many.
    unsafe {
        gemm::gemm(
            side,
            side,
            side,
            product.as_mut_ptr(),
            column,
            row,
            false,
            left.as_ptr(),
            column,
            row,
            right.as_ptr(),
            column,
            row,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[test]
fn the_reference_multiplies() {
    let mut product = vec![0.0; 4];
    multiply(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0], &mut product, 2);
    assert_eq!(product, [19.0, 22.0, 43.0, 50.0]);
}
