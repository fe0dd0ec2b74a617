//! Measures the speed that is promised: a file for each benchmark, and what they share.

mod data;
mod machine;
mod network;
mod null_update;
mod report;
mod rounds;
mod selection;
mod settings;
mod similarity;
mod sum;
mod train;
mod worlds;

use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;

use serde_json::{Value, json};

use machine::Machine;

/// Arguments of all benchmarks.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Use small sizes, which only show that the benchmarks run
    #[arg(long)]
    quick: bool,
    /// Also print the measurements as one JSON object, in the last line
    #[arg(long)]
    json: bool,
}

/// A benchmark; by default the one of rounds.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Local training on the networks of papers
    Train(train::Args),
    /// Loading CIFAR-10 and making batches of it
    Data(data::Args),
    /// Computing availability for a thousand to a million clients
    Worlds(worlds::Args),
    /// Comparing the updates of clients
    #[command(alias = "friends")]
    Similarity(similarity::Args),
    /// Client selection by E3CS for a thousand to ten million clients
    Selection(selection::Args),
    /// Reading a list of up to a million values
    Settings(settings::Args),
    /// Writing a report on many runs
    Report(report::Args),
    /// Thousands of clients at one server, and rounds compared with Flower's
    Network(network::Args),
    #[command(hide = true)]
    NetworkPart(network::PartArgs),
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if let Some(What::NetworkPart(part)) = &args.what {
        return network::run_part(part);
    }
    let machine = Machine::detect();
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    println!("{machine}");
    println!("median (lowest to highest) of repeats, {threads} threads\n");
    if let Some(What::Train(options)) = &args.what {
        let measurements = train::measure(options, threads)?;
        if args.json {
            let all_json: Vec<_> = measurements.iter().map(train::Measurements::json).collect();
            println!("{}", json!({ "machine": machine.json(), "threads": threads, "train": all_json }));
        }
        return Ok(());
    }
    if let Some(What::Data(options)) = &args.what {
        let measurements = data::measure(options)?;
        measurements.print();
        if args.json {
            println!("{}", json!({ "machine": machine.json(), "data": measurements.json() }));
        }
        return Ok(());
    }
    if let Some(What::Worlds(options)) = &args.what {
        let measurements = worlds::measure(options)?;
        measurements.iter().for_each(worlds::WorldCost::print);
        if args.json {
            let all_json: Vec<_> = measurements.iter().map(worlds::WorldCost::json).collect();
            println!("{}", json!({ "machine": machine.json(), "worlds": all_json }));
        }
        return Ok(());
    }
    if let Some(What::Similarity(options)) = &args.what {
        let measurements = similarity::measure(options, threads)?;
        measurements.print();
        if args.json {
            println!(
                "{}",
                json!({ "machine": machine.json(), "threads": threads, "friends": measurements.json() })
            );
        }
        return Ok(());
    }
    if let Some(What::Selection(options)) = &args.what {
        let measurements = selection::measure(options)?;
        measurements.print();
        if args.json {
            println!("{}", json!({ "machine": machine.json(), "selection": measurements.json() }));
        }
        return Ok(());
    }
    if let Some(What::Settings(options)) = &args.what {
        let measurements = settings::measure(options)?;
        measurements.print();
        if args.json {
            println!("{}", json!({ "machine": machine.json(), "settings": measurements.json() }));
        }
        return Ok(());
    }
    if let Some(What::Report(options)) = &args.what {
        let measurements = report::measure(options)?;
        measurements.print();
        if args.json {
            println!(
                "{}",
                json!({ "machine": machine.json(), "threads": threads, "report": measurements.json() })
            );
        }
        return Ok(());
    }
    if let Some(What::Network(options)) = &args.what {
        let measurements = network::measure(options)?;
        measurements.print();
        if args.json {
            println!("{}", json!({ "machine": machine.json(), "network": measurements.json() }));
        }
        return Ok(());
    }
    let aim_check = if args.quick { AimCheck::Disabled } else { AimCheck::Enabled };

    let plan = if args.quick { rounds::QUICK } else { rounds::FULL };
    let rounds = rounds::measure(&plan, threads)?;
    rounds.print(aim_check);
    let plan = if args.quick { sum::QUICK } else { sum::FULL };
    let sum = sum::measure(&plan, threads);
    sum.print(aim_check);

    if args.json {
        let all = json!({
            "machine": machine.json(),
            "threads": threads,
            "quick": args.quick,
            "rounds": rounds.json(),
            "sum": sum.json(),
        });
        println!("{all}");
    }
    Ok(())
}

/// Whether measurements are compared with the promised ones.
#[derive(Clone, Copy, Debug)]
enum AimCheck {
    Enabled,
    /// Small sizes are not compared.
    Disabled,
}

impl AimCheck {
    /// The verdict on a measurement that should be at least `aim`.
    fn verdict(self, value: f64, aim: f64) -> String {
        match self {
            AimCheck::Disabled => "not compared: small sizes".to_owned(),
            AimCheck::Enabled if value >= aim => format!("meets the aim of at least {aim}"),
            AimCheck::Enabled => format!("below the aim of at least {aim}"),
        }
    }
}

/// A measurement over repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    /// # Panics
    /// If nothing was measured.
    fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut sorted: Vec<_> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1).expect("every benchmark repeats at least once");
        let median = 0.5 * (sorted[last / 2] + sorted[last.div_ceil(2)]);
        Spread { median, low: sorted[0], high: sorted[last] }
    }

    fn json(&self) -> Value {
        json!({ "median": self.median, "low": self.low, "high": self.high })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { median, low, high } = self;
        write!(f, "{median:.2} ({low:.2} to {high:.2})")
    }
}

/// A count with commas between thousands.
fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        let check = |values: &[f64], median, low, high| {
            assert_eq!(Spread::of(values.iter().copied()), Spread { median, low, high });
        };
        check(&[3.0], 3.0, 3.0, 3.0);
        check(&[5.0, 1.0, 2.0], 2.0, 1.0, 5.0);
        check(&[4.0, 1.0, 2.0, 8.0], 3.0, 1.0, 8.0);
    }

    #[test]
    fn a_measurement_is_compared_with_its_aim() {
        assert_eq!(AimCheck::Enabled.verdict(20.0, 20.0), "meets the aim of at least 20");
        assert_eq!(AimCheck::Enabled.verdict(0.59, 0.6), "below the aim of at least 0.6");
        assert_eq!(AimCheck::Disabled.verdict(0.1, 20.0), "not compared: small sizes");
    }

    #[test]
    fn thousands_are_kept_apart() {
        let check = |count, text: &str| assert_eq!(grouped(count), text);
        check(7, "7");
        check(999, "999");
        check(1000, "1,000");
        check(1_000_000, "1,000,000");
    }
}
