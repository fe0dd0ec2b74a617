//! Selection: the cost of a round of E3CS for a thousand to ten million clients, by the weight tree and
//! directly.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use ebb_methods::Registry;
use ebb_methods::select::e3cs::direct::allocate;
use ebb_round::{
    Bits, Census, ClientId, ClientUpdate, Cohort, Loader, Parcel, Probes, Report, Responses, Round, RoundNo,
    Saver, Selector, Shares, Stream, Update,
};
use ebb_settings::{BuildContext, Tree};
use serde_json::{Value, json};

use super::machine::memory_bytes;
use super::null_update::update;
use super::{AimCheck, Spread, grouped};

/// Arguments of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Timed rounds of each size by the weight tree
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Timed rounds of each size directly
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    direct: u16,
    /// Use small sizes, which only show that the benchmark runs
    #[arg(long)]
    quick: bool,
}

/// The most milliseconds a round, and bytes a client, at the largest size.
const AIMS: (f64, f64) = (5.0, 32.0);

const SIZES: [usize; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const COHORTS: [usize; 2] = [20, 1_000];

/// The measurements.
#[derive(Debug)]
pub(super) struct Measurements {
    aim_check: AimCheck,
    rows: Vec<Row>,
}

/// The measurements of one size.
#[derive(Debug)]
struct Row {
    n_clients: usize,
    cohort: usize,
    /// How many clients have far larger weights than the others from the start.
    n_heavy: usize,
    tree_ms: Spread,
    direct_ms: Spread,
    bytes_per_client: Option<f64>,
}

pub(super) fn measure(args: &Args) -> Result<Measurements, Box<dyn Error>> {
    let aim_check = if args.quick { AimCheck::Disabled } else { AimCheck::Enabled };
    let sizes = if args.quick { &SIZES[..2] } else { &SIZES[..] };
    let mut rows = Vec::new();
    for cohort in COHORTS {
        for &n_clients in sizes.iter().filter(|&&size| size > cohort) {
            rows.push(row(n_clients, cohort, 0, args)?);
        }
    }
    // As late in a run without a quota, half of the cohort is selected with certainty.
    let largest = *sizes.last().expect("some sizes");
    rows.push(row(largest, COHORTS[1], COHORTS[1] / 2, args)?);
    Ok(Measurements { aim_check, rows })
}

fn row(n_clients: usize, cohort: usize, n_heavy: usize, args: &Args) -> Result<Row, Box<dyn Error>> {
    const WARM_UP: u32 = 30;
    let mut census = Census::new();
    (0..n_clients).for_each(|idx| census.enrol(ClientId::new(idx), 1, 0));
    let shares = Shares::default();
    let before = memory_bytes("VmRSS");
    let quota = if n_heavy > 0 { 0.0 } else { 0.5 };
    let mut selector = built(n_clients, cohort, quota)?;
    if n_heavy > 0 {
        selector.load(&mut Loader::new(&saved_weights(n_clients, n_heavy)))?;
    }
    let model = Arc::new(Parcel::of(vec![0.0]));
    let round = |number: RoundNo| Round {
        number,
        seed: 1,
        deadline_s: f64::INFINITY,
        threads: 1,
        learning_rate: 0.1,
        global: Arc::clone(&model),
        trained_ranges: &[],
        census: &census,
        shares: &shares,
        oracle_clusters: &[],
        oracle_probabilities: &[],
    };
    let update = Arc::new(update(vec![0.0]));
    let mut luck = Stream::of_run(1, "luck");
    let (mut took_ms, mut n_responded) = (Vec::new(), Vec::new());
    for number in 0..WARM_UP + u32::from(args.rounds) {
        let round = round(number);
        let began = Instant::now();
        let mut cohort = black_box(selector.select(&round, &Probes::new()));
        let mut elapsed = began.elapsed();
        let returns = responses(&mut cohort, &update, &mut luck);
        let began = Instant::now();
        selector.observe(&round, &Report { cohort: &cohort, responses: &returns, max_loss: f32::INFINITY });
        elapsed += began.elapsed();
        if number >= WARM_UP {
            took_ms.push(1e3 * elapsed.as_secs_f64());
        }
        n_responded.extend(returns.fresh.iter().map(|answer| answer.client));
    }
    let used = before.zip(memory_bytes("VmRSS")).map(|(before, after)| (after - before) / n_clients as f64);
    // In small fleets it is lost in the noise of the process's memory.
    let bytes_per_client = used.filter(|_| n_clients >= 1_000_000);
    // The direct form starts from the weights that the same responses made.
    let mut weights = vec![0.0; n_clients];
    weights[..n_heavy].fill(HEAVY);
    for client in n_responded {
        weights[client.idx()] += 0.1;
    }
    let direct_ms = (0..args.direct).map(|_| {
        let began = Instant::now();
        black_box(select_directly(cohort, quota, &mut weights, &mut luck));
        1e3 * began.elapsed().as_secs_f64()
    });
    let direct_ms = Spread::of(direct_ms.collect::<Vec<_>>());
    Ok(Row { n_clients, cohort, n_heavy, tree_ms: Spread::of(took_ms), direct_ms, bytes_per_client })
}

/// A log-weight next to which all others vanish.
const HEAVY: f64 = 60.0;

/// The state of a selector late in a run: some clients outweigh all others.
fn saved_weights(n_clients: usize, n_heavy: usize) -> Vec<u8> {
    let mut logs = vec![0.0; n_clients];
    logs[..n_heavy].fill(HEAVY);
    let mut all = Bits::new(n_clients);
    all.fill_words(|_| u64::MAX);
    let mut to = Saver::new();
    to.f64s("logs", &logs);
    to.f64("reference", 0.0);
    to.u64s("members", all.words());
    to.u64s("known", all.words());
    to.u32s("overflow", &[]);
    to.u32s("overflow_clients", &[]);
    to.u32s("overflow_rounds", &[]);
    to.finish()
}

fn built(n_clients: usize, cohort: usize, quota: f64) -> Result<Box<dyn Selector>, Box<dyn Error>> {
    let text = format!(
        "[select]\nkind = \"e3cs\"\ncohort = {cohort}\nquota = {quota:?}\n[local]\nlearning_rate = 0.1\nsteps = 1"
    );
    let context = BuildContext { seed: 1, n_clients, n_rounds: 1000 };
    Ok(Registry::standard().build(&Tree::parse(&text, "bench")?, context)?.selector)
}

/// Clients of four classes respond in a tenth, three, six and nine tenths of the rounds.
fn is_up(client: ClientId, luck: &mut Stream) -> bool {
    luck.bernoulli([0.1, 0.3, 0.6, 0.9][client.idx() % 4])
}

fn responses(cohort: &mut Cohort, update: &Arc<Update>, luck: &mut Stream) -> Responses {
    cohort.selected.sort_by_key(|selected| selected.client);
    let up = cohort.selected.iter().filter(|selected| is_up(selected.client, luck));
    let updates = up.map(|selected| ClientUpdate {
        client: selected.client,
        inclusion_probability: selected.inclusion_probability,
        update: Arc::clone(update),
    });
    Responses { fresh: updates.collect(), ..Responses::default() }
}

/// A round as in the paper: sorts all clients, computes probabilities and draws.
fn select_directly(cohort: usize, part: f64, logs: &mut [f64], luck: &mut Stream) -> usize {
    let n_clients = logs.len() as f64;
    let quota = part * cohort as f64 / n_clients;
    let allocation = allocate(cohort, quota, logs);
    let mut keys: Vec<_> = allocation
        .probabilities
        .iter()
        .enumerate()
        .map(|(idx, probability)| (libm::log(1.0 - luck.uniform()) / probability, idx))
        .collect();
    keys.select_nth_unstable_by(cohort - 1, |one, two| two.0.total_cmp(&one.0));
    let left = cohort as f64 - n_clients * quota;
    let mut n_responded = 0;
    for &(_, idx) in &keys[..cohort] {
        if is_up(ClientId::new(idx), luck) && allocation.overflow.binary_search(&idx).is_err() {
            logs[idx] += left * 0.5 / (n_clients * allocation.probabilities[idx]);
            n_responded += 1;
        }
    }
    n_responded
}

impl Measurements {
    pub(super) fn print(&self) {
        println!(
            "a round of E3CS (selection and weight update), with a quota of .5 of an even share, or none and some in overflow"
        );
        for row in &self.rows {
            let ratio = row.direct_ms.median / row.tree_ms.median;
            let bytes =
                row.bytes_per_client.map_or(String::new(), |bytes| format!(", {bytes:.1} bytes a client"));
            println!(
                "  {:>10} clients, {:>5} selected, {:>3} in overflow: ms {} by the tree, {} directly: {ratio:.1} times as fast{bytes}",
                grouped(row.n_clients),
                grouped(row.cohort),
                row.n_heavy,
                row.tree_ms,
                row.direct_ms,
            );
        }
        for last in self.rows.iter().rev().take(2).filter(|_| matches!(self.aim_check, AimCheck::Enabled)) {
            let verdict = self.aim_check.verdict(AIMS.0 / last.tree_ms.median, 1.0);
            println!("  of the {} ms allowed, {:.2} used: {verdict}", AIMS.0, last.tree_ms.median / AIMS.0);
            if let Some(bytes) = last.bytes_per_client {
                let within = if bytes <= AIMS.1 { "within" } else { "above" };
                println!("  {bytes:.1} bytes a client: {within} {}", AIMS.1);
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "clients": row.n_clients,
                "cohort": row.cohort,
                "overflow": row.n_heavy,
                "tree_ms": row.tree_ms.json(),
                "direct_ms": row.direct_ms.json(),
                "bytes_per_client": row.bytes_per_client,
            })
        });
        rows.collect()
    }
}
