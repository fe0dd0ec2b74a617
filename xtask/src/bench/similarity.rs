//! Similarity: the cost of comparing the updates of all pairs of clients.
#![allow(unsafe_code, reason = "a call of a function compiled for a vector unit that was found at run time")]

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use ebb_methods::Registry;
use ebb_round::gram::{Pairs, gram};
use ebb_round::{Census, ClientId, ClientUpdate, Parcel, Responses, Round, RoundNo, Shares, Stream};
use ebb_settings::{BuildContext, Tree};
use serde_json::{Value, json};

use super::machine::memory_bytes;
use super::null_update::update;
use super::train::peak;
use super::{AimCheck, Spread, grouped};

/// Arguments of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Timed repeats of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Use small sizes, which only show that the benchmark runs
    #[arg(long)]
    quick: bool,
}

/// The promised share of a matrix product's speed, and the promised speedup over one pair at a time.
const AIMS: (f64, f64) = (0.5, 8.0);

/// The measurements.
#[derive(Debug)]
pub(super) struct Measurements {
    aim_check: AimCheck,
    products: Vec<Products>,
    rounds: Vec<Rounds>,
}

/// The inner products of all pairs of updates.
#[derive(Debug)]
struct Products {
    n_clients: usize,
    n_params: usize,
    took_s: Spread,
    /// GFLOP/s, absolute and as a share of a matrix product's.
    of_gemm: Spread,
    /// The speedup over one pair at a time.
    over_pairs: Option<Spread>,
}

/// Rounds with the whole substitution.
#[derive(Debug)]
struct Rounds {
    name: String,
    n_clients: usize,
    round_ms: Spread,
    pairs_scored: f64,
    /// The peak memory of the process.
    bytes: Option<f64>,
}

pub(super) fn measure(args: &Args, threads: NonZeroUsize) -> Result<Measurements, Box<dyn Error>> {
    let repeats = usize::from(args.repeats);
    let aim_check = if args.quick { AimCheck::Disabled } else { AimCheck::Enabled };
    let shrink = |size: usize, quick: usize| if args.quick { quick } else { size };
    let products = vec![
        products(shrink(100, 20), shrink(1_000_000, 10_000), true, repeats, threads),
        products(shrink(1000, 50), shrink(100_000, 5_000), false, repeats, threads),
    ];
    let mut rounds = Vec::new();
    for n_clients in [100, 1000, 10_000].map(|size| shrink(size, size / 50 + 50)) {
        for (name, settings) in [("every pair", ""), ("races", "races = { factor = 0.125, beta = 1.0 }")] {
            rounds.push(clustered(name, settings, n_clients, shrink(4096, 256), 0.5, repeats, threads)?);
        }
    }
    let n_clients = shrink(10_000, 100);
    let settings = "sketch = { buckets = 4096 }";
    rounds.push(clustered(
        "sketch of 4,096",
        settings,
        n_clients,
        shrink(62_006, 5000),
        1.0,
        repeats,
        threads,
    )?);
    Ok(Measurements { aim_check, products, rounds })
}

fn products(
    n_clients: usize,
    n_params: usize,
    by_pair: bool,
    repeats: usize,
    threads: NonZeroUsize,
) -> Products {
    let updates: Vec<_> = (0..n_clients).map(|client| noise(n_params, client)).collect();
    let rows: Vec<_> = updates.iter().map(Vec::as_slice).collect();
    let all = 0..n_params;
    let flops = (n_clients * (n_clients + 1)) as f64 * n_params as f64;
    let (mut took_s, mut of_gemm, mut over_pairs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repeats {
        let gemm = peak::measure(threads).median;
        let began = Instant::now();
        black_box(gram(&rows, std::slice::from_ref(&all), Pairs::All, threads.get()));
        let took = began.elapsed().as_secs_f64();
        took_s.push(took);
        of_gemm.push(flops / took / 1e9 / gemm);
        if by_pair {
            let began = Instant::now();
            black_box(pair_by_pair(&rows, threads.get()));
            over_pairs.push(began.elapsed().as_secs_f64() / took);
        }
    }
    Products {
        n_clients,
        n_params,
        took_s: Spread::of(took_s),
        of_gemm: Spread::of(of_gemm),
        over_pairs: by_pair.then(|| Spread::of(over_pairs)),
    }
}

/// A vector around zero that differs from client to client.
fn noise(len: usize, client: usize) -> Vec<f32> {
    let mut stream = Stream::of_client(1, "noise", ClientId::new(client));
    (0..len).map(|_| stream.next_u32() as f32 / 2.0_f32.powi(31) - 1.0).collect()
}

/// The inner products of all pairs, one pair at a time, in vectorised loops on several threads.
fn pair_by_pair(rows: &[&[f32]], threads: usize) -> f64 {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    let mine = (0..rows.len()).filter(|row| row % threads == worker);
                    mine.flat_map(|row| (0..row).map(move |col| dot(rows[row], rows[col]))).sum::<f64>()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("sums do not panic")).sum()
    })
}

fn dot(one: &[f32], other: &[f32]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the unit, as asked in the line above.
        return unsafe { dot_avx2(one, other) };
    }
    dot_plain(one, other)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dot_avx2(one: &[f32], other: &[f32]) -> f64 {
    dot_plain(one, other)
}

/// Sixty-four independent sums hide the latency of an addition.
#[inline(always)]
fn dot_plain(one: &[f32], other: &[f32]) -> f64 {
    const LANES: usize = 64;
    let mut lanes = [0.0_f32; LANES];
    let (one, one_rest) = one.as_chunks::<LANES>();
    let (other, other_rest) = other.as_chunks::<LANES>();
    for (one, other) in one.iter().zip(other) {
        for lane in 0..LANES {
            lanes[lane] += one[lane] * other[lane];
        }
    }
    let rest: f32 = one_rest.iter().zip(other_rest).map(|(one, other)| one * other).sum();
    lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>() + f64::from(rest)
}

/// Rounds in which a share of the clients of fifty clusters responds, after some in which all do.
fn clustered(
    name: &str,
    settings: &str,
    n_clients: usize,
    n_params: usize,
    share: f64,
    repeats: usize,
    threads: NonZeroUsize,
) -> Result<Rounds, Box<dyn Error>> {
    const CLUSTERS: usize = 50;
    const WARM_UP: u32 = 12;
    let tree = Tree::parse(
        &format!(
            "[substitute]\nkind = \"friend\"\n{settings}\n[local]\nlearning_rate = 0.1\nsteps = 1\n[select]\nkind = \"everyone\""
        ),
        "bench",
    )?;
    let context = BuildContext { seed: 1, n_clients, n_rounds: 100 };
    let mut friend = Registry::standard().build(&tree, context)?.substitution;
    let mut census = Census::new();
    (0..n_clients).for_each(|idx| census.enrol(ClientId::new(idx), 1, 0));
    let shares = Shares::in_proportion(0, &census, |_| 1.0);
    let centres: Vec<_> = (0..CLUSTERS).map(|cluster| noise(n_params, n_clients + cluster)).collect();
    let updates: Vec<_> = (0..n_clients)
        .map(|client| {
            let own = noise(n_params, client).into_iter();
            let delta =
                own.zip(&centres[client % CLUSTERS]).map(|(own, centre)| 0.3 * own + centre).collect();
            Arc::new(update(delta))
        })
        .collect();
    let n_active = (share * n_clients as f64) as usize;
    let trained = 0..n_params;
    let mut play = |number: RoundNo, n_active: usize| {
        let mut stream = Stream::of_round(1, "answers", number);
        let mut active = stream.distinct(n_clients, n_active);
        active.sort_unstable();
        let mut is_active = vec![false; n_clients];
        active.iter().for_each(|&idx| is_active[idx] = true);
        let answer = |&idx: &usize| ClientUpdate {
            client: ClientId::new(idx),
            inclusion_probability: None,
            update: Arc::clone(&updates[idx]),
        };
        let absent = (0..n_clients).filter(|&idx| !is_active[idx]).map(ClientId::new).collect();
        let returns =
            Responses { fresh: active.iter().map(answer).collect(), absent, ..Responses::default() };
        let round = Round {
            number,
            seed: 1,
            deadline_s: f64::INFINITY,
            threads: threads.get(),
            learning_rate: 0.1,
            global: Arc::new(Parcel::of(vec![0.0; n_params])),
            trained_ranges: std::slice::from_ref(&trained),
            census: &census,
            shares: &shares,
            oracle_clusters: &[],
            oracle_probabilities: &[],
        };
        let began = Instant::now();
        black_box(friend.stand_ins(&round, &returns));
        (began.elapsed().as_secs_f64(), friend.metrics()["pairs_scored"])
    };
    let warm_up = if settings.contains("races") { WARM_UP } else { 1 };
    for number in 0..warm_up {
        play(number, n_clients);
    }
    let timed: Vec<_> = (0..).take(repeats).map(|at| play(warm_up + at, n_active)).collect();
    Ok(Rounds {
        name: format!("{name}, {} of them respond, {} parameters", grouped(n_active), grouped(n_params)),
        n_clients,
        round_ms: Spread::of(timed.iter().map(|(took, _)| 1e3 * took)),
        pairs_scored: timed.last().map_or(0.0, |(_, pairs)| *pairs),
        bytes: memory_bytes("VmHWM"),
    })
}

impl Measurements {
    pub(super) fn print(&self) {
        for one in &self.products {
            println!(
                "all pairs of {} updates of {} parameters",
                grouped(one.n_clients),
                grouped(one.n_params)
            );
            println!("  seconds {}", one.took_s);
            println!(
                "  share of a matrix product's speed {}: {}",
                one.of_gemm,
                self.aim_check.verdict(one.of_gemm.median, AIMS.0)
            );
            if let Some(over) = &one.over_pairs {
                println!(
                    "  speedup over one pair at a time {over}: {}",
                    self.aim_check.verdict(over.median, AIMS.1)
                );
            }
        }
        println!("a round of the substitution, clients in fifty clusters");
        for one in &self.rounds {
            let bytes = one
                .bytes
                .map_or(String::new(), |bytes| format!(", peak memory {:.2} GB so far", bytes / 1e9));
            println!(
                "  {:>6} clients, {}: ms {}, {} pairs{bytes}",
                grouped(one.n_clients),
                one.name,
                one.round_ms,
                one.pairs_scored
            );
        }
    }

    pub(super) fn json(&self) -> Value {
        let products: Vec<_> = self
            .products
            .iter()
            .map(|one| {
                json!({
                    "clients": one.n_clients, "params": one.n_params, "seconds": one.took_s.json(),
                    "of_gemm": one.of_gemm.json(), "over_pairs": one.over_pairs.as_ref().map(Spread::json),
                })
            })
            .collect();
        let rounds: Vec<_> = self
            .rounds
            .iter()
            .map(|one| {
                json!({
                    "name": one.name, "clients": one.n_clients, "ms": one.round_ms.json(),
                    "pairs_scored": one.pairs_scored, "peak_bytes": one.bytes,
                })
            })
            .collect();
        json!({ "products": products, "rounds": rounds })
    }
}
