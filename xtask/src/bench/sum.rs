//! The speed of summing updates, compared with reading the same bytes.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Instant;

use ebb_round::vectors::add_weighted;
use serde_json::{Value, json};

use super::{AimCheck, Spread, grouped};

/// The promised ratio of the speed of the sum to that of the read.
const AIM: f64 = 0.60;

/// Arguments of the benchmark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    n_updates: usize,
    n_params: usize,
    repeats: usize,
}

pub(super) const FULL: Plan = Plan { n_updates: 100, n_params: 1_000_000, repeats: 11 };
pub(super) const QUICK: Plan = Plan { n_updates: 10, n_params: 100_000, repeats: 3 };

/// The measurements.
#[derive(Debug)]
pub(super) struct Measurements {
    plan: Plan,
    sum_gb_per_s: Spread,
    read_gb_per_s: Spread,
    ratio: Spread,
}

pub(super) fn measure(plan: &Plan, threads: NonZeroUsize) -> Measurements {
    let values = |update: usize| (0..plan.n_params).map(move |at| ((at + update) % 1000) as f32 - 500.0);
    let updates: Vec<Vec<f32>> = (0..plan.n_updates).map(|update| values(update).collect()).collect();
    let vectors: Vec<_> = updates.iter().map(Vec::as_slice).collect();
    let weight = 1.0 / plan.n_updates as f64;
    let terms: Vec<_> = vectors.iter().map(|&vector| (vector, weight)).collect();
    let mut sum = vec![0.0; plan.n_params];
    let gigabytes = (4 * plan.n_updates * plan.n_params) as f64 / 1e9;

    let mut speeds = Vec::new();
    // The first turn is not timed, because it faults in the pages of the sum.
    for _ in 0..=plan.repeats {
        let read_s = seconds(|| {
            black_box(read(&vectors, threads.get()));
        });
        let sum_s = seconds(|| {
            add_weighted(&mut sum, black_box(&terms), threads.get());
            black_box(&mut sum);
        });
        speeds.push((gigabytes / sum_s, gigabytes / read_s));
    }
    let speeds = &speeds[1..];
    Measurements {
        plan: *plan,
        sum_gb_per_s: Spread::of(speeds.iter().map(|(sum, _)| *sum)),
        read_gb_per_s: Spread::of(speeds.iter().map(|(_, read)| *read)),
        ratio: Spread::of(speeds.iter().map(|(sum, read)| sum / read)),
    }
}

impl Measurements {
    pub(super) fn print(&self, aim_check: AimCheck) {
        let Plan { n_updates, n_params, .. } = self.plan;
        println!("sum: {n_updates} updates of {} parameters", grouped(n_params));
        println!("  weighted sum, GB/s {}", self.sum_gb_per_s);
        println!("  plain read, GB/s   {}", self.read_gb_per_s);
        println!("  sum over read      {}: {}", self.ratio, aim_check.verdict(self.ratio.median, AIM));
        println!();
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "updates": self.plan.n_updates,
            "params": self.plan.n_params,
            "sum_gb_per_s": self.sum_gb_per_s.json(),
            "read_gb_per_s": self.read_gb_per_s.json(),
            "ratio": self.ratio.json(),
            "aim_ratio": AIM,
        })
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

/// The sum of the bits of all parameters: reads every byte once, and does little else.
fn read(vectors: &[&[f32]], threads: usize) -> u32 {
    let per_thread = vectors.first().map_or(1, |vector| vector.len().div_ceil(threads).max(1));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let part = |vector: &&[f32]| {
                        let begin = (thread * per_thread).min(vector.len());
                        let end = (begin + per_thread).min(vector.len());
                        read_part(&vector[begin..end])
                    };
                    vectors.iter().map(part).fold(0, u32::wrapping_add)
                })
            })
            .collect();
        let sums = readers.into_iter().map(|reader| reader.join().expect("reading does not panic"));
        sums.fold(0, u32::wrapping_add)
    })
}

/// Separate stretches are read in turn, because a single one does not saturate the memory.
const STREAMS: usize = 4;

/// Independent sums in a stretch: eight vector registers in all, so that no addition waits for another.
const LANES: usize = 8;

fn read_part(part: &[f32]) -> u32 {
    let per_stream = part.len() / (STREAMS * LANES) * LANES;
    let (streams, rest) = part.split_at(STREAMS * per_stream);
    let streams: [&[f32]; STREAMS] = std::array::from_fn(|at| &streams[at * per_stream..][..per_stream]);
    let mut sums = [[0_u32; LANES]; STREAMS];
    for at in (0..per_stream).step_by(LANES) {
        for (sums, stream) in sums.iter_mut().zip(&streams) {
            for (sum, value) in sums.iter_mut().zip(&stream[at..at + LANES]) {
                *sum = sum.wrapping_add(value.to_bits());
            }
        }
    }
    let rest = rest.iter().map(|value| value.to_bits());
    sums.into_iter().flatten().chain(rest).fold(0, u32::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_once_whatever_the_threads() {
        for len in [0, 1, 31, 32, 33, 1000] {
            let vectors: Vec<Vec<f32>> = (0..3).map(|_| (0..len).map(|at| at as f32).collect()).collect();
            let slices: Vec<_> = vectors.iter().map(Vec::as_slice).collect();
            let all = vectors.iter().flatten().fold(0, |sum: u32, value| sum.wrapping_add(value.to_bits()));
            for threads in [1, 2, 3, 7] {
                assert_eq!(read(&slices, threads), all, "{len} numbers, {threads} threads");
            }
        }
    }
}
