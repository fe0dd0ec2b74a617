//! Measures what is promised of speed: one file a benchmark, and what they have in common.

mod data;
mod friends;
mod machine;
mod network;
mod null;
mod report;
mod rounds;
mod selection;
mod settings;
mod sum;
mod train;
mod worlds;

use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;

use serde_json::{Value, json};

use machine::Machine;

/// What to measure, and how to say it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Small sizes: shows that the benchmarks still run, says nothing of speed
    #[arg(long)]
    quick: bool,
    /// Also print the figures as one JSON object, in the last line
    #[arg(long)]
    json: bool,
}

/// A part of the benchmarks; without one, the round.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Local training on the papers' networks
    Train(train::Args),
    /// Loading CIFAR-10, and making batches of it
    Data(data::Args),
    /// Saying who is up, of a thousand clients to a million
    Worlds(worlds::Args),
    /// Finding out which clients are alike
    Friends(friends::Args),
    /// Choosing whom to ask by E3CS, of a thousand clients to ten million
    Selection(selection::Args),
    /// Reading a list of up to a million values
    Settings(settings::Args),
    /// Writing a report on many runs
    Report(report::Args),
    /// Thousands of clients at one server, and rounds beside Flower's
    Network(network::Args),
    #[command(hide = true)]
    NetworkPart(network::PartArgs),
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if let Some(What::NetworkPart(part)) = &args.what {
        return network::run_part(part);
    }
    let machine = Machine::look();
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    println!("{machine}");
    println!("median (lowest to highest) of repeats, {threads} threads\n");
    if let Some(What::Train(asked)) = &args.what {
        let figures = train::measure(asked, threads)?;
        if args.json {
            let figures: Vec<_> = figures.iter().map(train::Figures::json).collect();
            println!("{}", json!({ "machine": machine.json(), "threads": threads, "train": figures }));
        }
        return Ok(());
    }
    if let Some(What::Data(asked)) = &args.what {
        let figures = data::measure(asked)?;
        figures.print();
        if args.json {
            println!("{}", json!({ "machine": machine.json(), "data": figures.json() }));
        }
        return Ok(());
    }
    if let Some(What::Worlds(asked)) = &args.what {
        let figures = worlds::measure(asked)?;
        figures.iter().for_each(worlds::Figures::print);
        if args.json {
            let figures: Vec<_> = figures.iter().map(worlds::Figures::json).collect();
            println!("{}", json!({ "machine": machine.json(), "worlds": figures }));
        }
        return Ok(());
    }
    if let Some(What::Friends(asked)) = &args.what {
        let figures = friends::measure(asked, threads)?;
        figures.print();
        if args.json {
            println!(
                "{}",
                json!({ "machine": machine.json(), "threads": threads, "friends": figures.json() })
            );
        }
        return Ok(());
    }
    if let Some(What::Selection(asked)) = &args.what {
        let figures = selection::measure(asked)?;
        figures.print();
        if args.json {
            println!("{}", json!({ "machine": machine.json(), "selection": figures.json() }));
        }
        return Ok(());
    }
    if let Some(What::Settings(asked)) = &args.what {
        let figures = settings::measure(asked)?;
        figures.print();
        if args.json {
            println!("{}", json!({ "machine": machine.json(), "settings": figures.json() }));
        }
        return Ok(());
    }
    if let Some(What::Report(asked)) = &args.what {
        let figures = report::measure(asked)?;
        figures.print();
        if args.json {
            println!(
                "{}",
                json!({ "machine": machine.json(), "threads": threads, "report": figures.json() })
            );
        }
        return Ok(());
    }
    if let Some(What::Network(asked)) = &args.what {
        let figures = network::measure(asked)?;
        figures.print();
        if args.json {
            println!("{}", json!({ "machine": machine.json(), "network": figures.json() }));
        }
        return Ok(());
    }
    let judge = if args.quick { Judge::Never } else { Judge::ByAim };

    let plan = if args.quick { rounds::QUICK } else { rounds::FULL };
    let rounds = rounds::measure(&plan, threads)?;
    rounds.print(judge);
    let plan = if args.quick { sum::QUICK } else { sum::FULL };
    let sum = sum::measure(&plan, threads);
    sum.print(judge);

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

/// Whether figures are held against what is promised.
#[derive(Clone, Copy, Debug)]
enum Judge {
    ByAim,
    /// Small sizes promise nothing.
    Never,
}

impl Judge {
    /// What to say of a figure that should be at least `aim`.
    fn verdict(self, figure: f64, aim: f64) -> String {
        match self {
            Judge::Never => "not judged: small sizes".to_owned(),
            Judge::ByAim if figure >= aim => format!("meets the aim of at least {aim}"),
            Judge::ByAim => format!("below the aim of at least {aim}"),
        }
    }
}

/// A figure over repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    /// # Panics
    /// When nothing was measured.
    fn of(figures: impl IntoIterator<Item = f64>) -> Spread {
        let mut sorted: Vec<_> = figures.into_iter().collect();
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

/// A count with a comma between thousands.
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
        let check = |figures: &[f64], median, low, high| {
            assert_eq!(Spread::of(figures.iter().copied()), Spread { median, low, high });
        };
        check(&[3.0], 3.0, 3.0, 3.0);
        check(&[5.0, 1.0, 2.0], 2.0, 1.0, 5.0);
        check(&[4.0, 1.0, 2.0, 8.0], 3.0, 1.0, 8.0);
    }

    #[test]
    fn a_figure_is_held_against_its_aim() {
        assert_eq!(Judge::ByAim.verdict(20.0, 20.0), "meets the aim of at least 20");
        assert_eq!(Judge::ByAim.verdict(0.59, 0.6), "below the aim of at least 0.6");
        assert_eq!(Judge::Never.verdict(0.1, 20.0), "not judged: small sizes");
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
