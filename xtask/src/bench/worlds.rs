//! Worlds: the cost of computing availability for a thousand to a million clients.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use ebb_settings::{BuildContext, Tree};
use ebb_sim::{RollCalls, World};
use serde_json::{Value, json};

use ebb_train::StubTask;

use super::machine::memory_bytes;
use super::{AimCheck, Spread, grouped};

/// Arguments of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Timed rounds of each size
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

/// The most milliseconds a round, with a million clients.
const MAX_MS: f64 = 30.0;

/// The most bytes a client.
const MAX_BYTES: f64 = 64.0;

const SIZES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// Every parametric kind, as in its paper.
const WORLDS: [(&str, &str); 17] = [
    ("always", "[world.availability]\nkind = \"always\""),
    ("bernoulli", "[world.availability]\nkind = \"bernoulli\"\nprobability = 0.5"),
    ("dropout", "[world.availability]\nkind = \"dropout\"\nratio = 0.5"),
    (
        "dropout, 100 clusters",
        "[world.availability]\nkind = \"dropout\"\nratio = 0.5\nclusters = 100\nfull_first_round = true",
    ),
    ("index, beta", "[world.availability]\nkind = \"index\"\ndistribution = \"beta\""),
    ("index, gamma", "[world.availability]\nkind = \"index\"\ndistribution = \"gamma\""),
    ("index, weibull", "[world.availability]\nkind = \"index\"\ndistribution = \"weibull\""),
    ("markov", "[world.availability]\nkind = \"markov\"\nprobability = 0.5"),
    ("cyclic", "[world.availability]\nkind = \"cyclic\"\nprobability = 0.5"),
    ("periodic", "[world.availability]\nkind = \"periodic\""),
    ("non-stationary", "[world.availability]\nkind = \"non-stationary\"\nprobability = 0.5"),
    ("tau-max", "[world.availability]\nkind = \"tau-max\""),
    ("min-separation", "[world.availability]\nkind = \"min-separation\"\nrounds = 10\nprobability = 0.5"),
    ("labels", "[world.availability]\nkind = \"labels\""),
    ("adversarial", "[world.availability]\nkind = \"adversarial\""),
    (
        "index, beta, three tenths",
        "[world.availability]\nkind = \"index\"\ndistribution = \"beta\"\nshare = 0.3",
    ),
    ("churn", "[world.churn]\narrivals = 100.0\nlifetime = 100.0"),
];

/// The measurements of one world.
#[derive(Debug)]
pub(super) struct WorldCost {
    name: &'static str,
    /// Milliseconds a round, for each size.
    round_ms: Vec<Spread>,
    /// Memory of the world and the census, at the largest size.
    bytes_per_client: Option<f64>,
}

pub(super) fn measure(args: &Args) -> Result<Vec<WorldCost>, Box<dyn Error>> {
    WORLDS.iter().map(|(name, text)| world_cost(name, text, args.rounds.into())).collect()
}

fn world_cost(name: &'static str, text: &str, n_rounds: usize) -> Result<WorldCost, Box<dyn Error>> {
    let (mut round_ms, mut bytes_per_client) = (Vec::new(), None);
    for n_clients in SIZES {
        let task = Arc::new(StubTask::sized(n_clients, 1));
        let context = BuildContext { seed: 1, n_clients, n_rounds: n_rounds as u32 };
        let tree = Tree::parse(text, "bench")?;
        let before = memory_bytes("VmRSS");
        let world = World::build(&tree.table("world", context), task.as_ref())?;
        let mut player = RollCalls::new(world, task);
        // All clients enrol in the first round, which is not timed.
        black_box(player.next_round());
        let mut took = Vec::with_capacity(n_rounds);
        for _ in 0..n_rounds {
            let began = Instant::now();
            black_box(player.next_round());
            took.push(1e3 * began.elapsed().as_secs_f64());
        }
        round_ms.push(Spread::of(took));
        bytes_per_client =
            before.zip(memory_bytes("VmRSS")).map(|(before, after)| (after - before) / n_clients as f64);
    }
    Ok(WorldCost { name, round_ms, bytes_per_client })
}

impl WorldCost {
    pub(super) fn print(&self) {
        let last = self.round_ms.last().expect("some sizes");
        println!("{}", self.name);
        for (size, round_ms) in SIZES.iter().zip(&self.round_ms) {
            println!("  {:>9} clients, ms a round {round_ms}", grouped(*size));
        }
        // At least 1 if the bound is kept.
        let verdict = AimCheck::Enabled.verdict(MAX_MS / last.median, 1.0);
        println!("  of the {MAX_MS} ms allowed, {:.2} used: {verdict}", last.median / MAX_MS);
        if let Some(bytes) = self.bytes_per_client {
            let within = if bytes <= MAX_BYTES { "within" } else { "above" };
            println!("  {bytes:.1} bytes a client, census included: {within} {MAX_BYTES}");
        }
    }

    pub(super) fn json(&self) -> Value {
        let round_ms: Vec<_> = self.round_ms.iter().map(Spread::json).collect();
        json!({ "name": self.name, "clients": SIZES, "round_ms": round_ms, "bytes_per_client": self.bytes_per_client })
    }
}
