//! Settings: the cost of reading a long list, and of building a run whose resolved settings are written
//! again.

use std::error::Error;
use std::fmt::Write;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use ebb_cli::assemble::Assembled;
use ebb_methods::Registry;
use ebb_settings::Tree;
use serde_json::{Value, json};

use super::{AimCheck, Spread, grouped};

/// Arguments of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Timed repeats of each size
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Use small sizes, which only show that the benchmark runs
    #[arg(long)]
    quick: bool,
}

/// The most seconds that reading the longest list may take.
const MAX_READ_S: f64 = 2.0;

/// The most that a value of the longest list may cost, relative to one of the shortest.
const MAX_GROWTH: f64 = 1.5;

const SIZES: [usize; 3] = [250_000, 500_000, 1_000_000];
const QUICK: [usize; 3] = [250, 500, 1000];

/// The measurements.
#[derive(Debug)]
pub(super) struct Measurements {
    aim_check: AimCheck,
    rows: Vec<Row>,
}

/// The measurements of one size.
#[derive(Debug)]
struct Row {
    n_values: usize,
    /// Seconds from the text to parsed settings with their positions.
    read_s: Spread,
    /// Seconds from parsed settings to a built run: methods, data, and the resolved settings for the record.
    made_s: Spread,
}

pub(super) fn measure(args: &Args) -> Result<Measurements, Box<dyn Error>> {
    let (sizes, aim_check) =
        if args.quick { (QUICK, AimCheck::Disabled) } else { (SIZES, AimCheck::Enabled) };
    let rows = sizes.into_iter().map(|n_values| row(n_values, args.repeats));
    Ok(Measurements { aim_check, rows: rows.collect::<Result<_, _>>()? })
}

fn row(n_values: usize, repeats: u16) -> Result<Row, Box<dyn Error>> {
    let text = run_with_probabilities(n_values);
    let registry = Registry::standard();
    let (mut read_s, mut made_s) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let began = Instant::now();
        let tree = black_box(Tree::parse(&text, "bench.toml")?);
        read_s.push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        let run = Assembled::new(&registry, tree, Path::new(""), NonZeroUsize::MIN)?;
        made_s.push(began.elapsed().as_secs_f64());
        if run.resolved.len() < 4 * n_values {
            return Err("the resolved settings do not hold the list".into());
        }
    }
    Ok(Row { n_values, read_s: Spread::of(read_s), made_s: Spread::of(made_s) })
}

/// A run of IPW with the probabilities of all clients in one line.
fn run_with_probabilities(n_values: usize) -> String {
    let mut text = format!(
        "recipe = \"ipw\"\n[run]\nrounds = 1\n[data]\nkind = \"quadratic\"\nclients = {n_values}\ndimension = 1\n\
         [select]\ncohort = 10\n[local]\nlearning_rate = 0.1\nsteps = 1\n[aggregate]\nprobabilities = \"given\"\ngiven = ["
    );
    for at in 0..n_values {
        write!(text, "{:.3}, ", 0.5 + (at % 500) as f64 / 1000.0).expect("text takes more text");
    }
    text.push_str("]\n");
    text
}

impl Measurements {
    pub(super) fn print(&self) {
        println!("a list with a probability for each client: reading it, and building a run");
        for Row { n_values, read_s, made_s } in &self.rows {
            println!("  {:>9} values: s {read_s} to read, {made_s} to build", grouped(*n_values));
        }
        let longest = self.rows.last().expect("some sizes").read_s.median;
        println!(
            "  of the {MAX_READ_S} s allowed, {:.2} used: {}",
            longest / MAX_READ_S,
            self.aim_check.verdict(MAX_READ_S / longest, 1.0)
        );
        for (what, growth) in
            [("read", self.growth(|row| row.read_s)), ("make", self.growth(|row| row.made_s))]
        {
            let verdict = self.aim_check.verdict(MAX_GROWTH / growth, 1.0);
            println!(
                "  a value of the longest list takes {growth:.2} times as long to {what} as one of the shortest: {verdict}"
            );
        }
    }

    /// The time for a value of the longest list over that of the shortest.
    fn growth(&self, of: impl Fn(&Row) -> Spread) -> f64 {
        let per_value = |row: &Row| of(row).median / row.n_values as f64;
        let (first, last) = (self.rows.first().expect("some sizes"), self.rows.last().expect("some sizes"));
        per_value(last) / per_value(first)
    }

    pub(super) fn json(&self) -> Value {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| json!({ "values": row.n_values, "read_s": row.read_s.json(), "made_s": row.made_s.json() }))
            .collect();
        json!({
            "rows": rows,
            "read_growth": self.growth(|row| row.read_s),
            "made_growth": self.growth(|row| row.made_s),
            "aim_s": MAX_READ_S,
            "aim_growth": MAX_GROWTH,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_sizes_run_and_growth_is_per_value() {
        let measurements = measure(&Args { repeats: 1, quick: true }).unwrap();
        assert_eq!(measurements.rows.iter().map(|row| row.n_values).collect::<Vec<_>>(), QUICK);
        let row =
            |n_values, read_s: f64| Row { n_values, read_s: Spread::of([read_s]), made_s: Spread::of([1.0]) };
        let measurements = Measurements {
            aim_check: AimCheck::Disabled,
            rows: vec![row(10, 1.0), row(20, 3.0), row(40, 16.0)],
        };
        assert_eq!(
            (measurements.growth(|row| row.read_s), measurements.growth(|row| row.made_s)),
            (4.0, 0.25)
        );
    }
}
