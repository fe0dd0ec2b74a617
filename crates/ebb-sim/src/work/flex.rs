//! Each client follows one of eight traces of how much of the planned work phones get done.
//!
//! Ruan et al., "Towards Flexible Device Participation in Federated Learning" (FLEX), Table 2. It gives mean and
//! standard deviation of the percentage done, and that only the last three traces have rounds without any. The
//! traces themselves were not published. Here a client does round(E * x / 100) of E, at least 1 and at most E, with
//! a normal x; on the last three traces it is idle with half the chance that mean and deviation allow at most.
//! Clipping and rounding change both moments, so the normal law is solved for each E such that they hold after it.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Mutex, PoisonError};

use ebb_round::{ClientId, RoundNo, Stream};
use ebb_settings::{Entry, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::{Done, WorkLaw};

/// The registry's line.
pub const ENTRY: Entry<dyn WorkLaw> = Entry {
    name: "flex",
    about: "each client does the part that its trace says, one of FLEX's eight; on three of them it can be idle",
    example: "first = 5                  # of T0, T30, T50, T70, T90, Thi, Tmi, Tlo; all, if it is not given
# traces = [\"T0\", \"T90\"]   # or these
of = \"work\"                # or steps: the part is taken of the steps, though the job counts passes",
    build: |settings| Ok(Box::new(Flex::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    traces: Option<Vec<Trace>>,
    /// So many of all, instead.
    first: Option<NonZeroUsize>,
    #[serde(default)]
    of: Unit,
}

/// What a part is taken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Unit {
    /// Steps or passes, whichever the job counts.
    #[default]
    Work,
    /// Steps.
    Steps,
}

fn all() -> Vec<Trace> {
    use Trace::{T0, T30, T50, T70, T90, Thi, Tlo, Tmi};
    vec![T0, T30, T50, T70, T90, Thi, Tmi, Tlo]
}

/// A trace of Table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Trace {
    T0,
    T30,
    T50,
    T70,
    T90,
    Thi,
    Tmi,
    Tlo,
}

impl Trace {
    /// Mean and standard deviation of the percentage done.
    fn published(self) -> (f64, f64) {
        match self {
            Trace::T0 => (100.0, 0.0),
            Trace::T30 => (75.3, 14.8),
            Trace::T50 => (67.2, 11.3),
            Trace::T70 => (57.2, 11.7),
            Trace::T90 => (56.3, 14.8),
            Trace::Thi => (82.5, 23.3),
            Trace::Tmi => (74.1, 22.3),
            Trace::Tlo => (51.2, 18.3),
        }
    }

    /// The chance of a round without work.
    fn idle(self) -> f64 {
        match self {
            Trace::Thi | Trace::Tmi | Trace::Tlo => {
                let (mean, deviation) = self.published();
                let most = deviation * deviation / (deviation * deviation + mean * mean);
                most / 2.0
            }
            _ => 0.0,
        }
    }
}

struct Flex {
    seed: u64,
    traces: Vec<Trace>,
    of: Unit,
    /// The laws that were solved so far, by trace and planned work; each is the same whenever it is solved.
    solved: Mutex<BTreeMap<(Trace, u32), Law>>,
}

impl Flex {
    fn build(settings: &Settings<'_>) -> Result<Flex, SettingsError> {
        let Table { traces, first, of } = settings.parse()?;
        let traces = match (traces, first) {
            (Some(_), Some(_)) => {
                return Err(settings.error("first", "traces are listed; leave out one of them"));
            }
            (Some(traces), None) => traces,
            (None, first) => {
                let mut traces = all();
                let first = first.map_or(traces.len(), NonZeroUsize::get);
                if first > traces.len() {
                    return Err(settings
                        .error("first", format!("there are {} traces; give at most that", traces.len())));
                }
                traces.truncate(first);
                settings.resolve("first", i64::try_from(first).expect("no more than eight"));
                traces
            }
        };
        if traces.is_empty() {
            return Err(settings.error("traces", "name at least one trace"));
        }
        Ok(Flex { seed: settings.context().seed, traces, of, solved: Mutex::default() })
    }

    fn trace(&self, client: ClientId) -> Trace {
        self.traces[Stream::of_client(self.seed, "flex trace", client).below(self.traces.len())]
    }

    fn law(&self, trace: Trace, planned: u32) -> Law {
        let mut solved = self.solved.lock().unwrap_or_else(PoisonError::into_inner);
        *solved.entry((trace, planned)).or_insert_with(|| Law::solve(trace, planned))
    }
}

impl WorkLaw for Flex {
    fn counts_steps(&self) -> bool {
        self.of == Unit::Steps
    }

    fn done(&self, number: RoundNo, client: ClientId, planned: NonZeroU32) -> Done {
        let trace = self.trace(client);
        if trace == Trace::T0 {
            return Done::Part(planned);
        }
        let law = self.law(trace, planned.get());
        let mut stream = Stream::of_client_round(self.seed, "flex", number, client);
        if stream.bernoulli(law.idle) {
            return Done::Nothing;
        }
        let part = law.centre + law.width * stream.normal();
        let done = libm::round(part * f64::from(planned.get())).clamp(1.0, f64::from(planned.get()));
        Done::Part(NonZeroU32::new(done as u32).expect("at least 1"))
    }
}

/// Idle with a chance; else a normal part of the work, clipped and rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Law {
    idle: f64,
    centre: f64,
    width: f64,
}

/// Beyond so many steps rounding changes nothing that could be noticed.
const MOST_SOLVED: u32 = 200;

/// Halvings of an interval: after so many it is 10^-15 of what it was.
const HALVINGS: u32 = 50;

impl Law {
    /// The law whose moments are the published ones, or as near to them as so few steps allow, the mean first.
    fn solve(trace: Trace, planned: u32) -> Law {
        let planned = f64::from(planned.min(MOST_SOLVED));
        let idle = trace.idle();
        let (mean, deviation) = trace.published();
        let (mean, deviation) = (mean / 100.0 * planned, deviation / 100.0 * planned);
        // Moments of the rounds that are not idle.
        let active_mean = mean / (1.0 - idle);
        let active_square = (deviation * deviation + mean * mean) / (1.0 - idle);
        let active_variance = active_square - active_mean * active_mean;

        let centre_for = |width: f64| {
            let reach = 50.0 * width;
            halve(1.0 - reach, planned + reach, |centre| moments(centre, width, planned).0 < active_mean)
        };
        // The wider the law, the larger the deviation; in logarithms, for it may be a thousandth or a thousand.
        let logarithm = halve(libm::log(1e-3), libm::log(100.0 * planned), |logarithm| {
            let width = libm::exp(logarithm);
            moments(centre_for(width), width, planned).1 < active_variance
        });
        let width = libm::exp(logarithm);
        Law { idle, centre: centre_for(width) / planned, width: width / planned }
    }
}

/// Where a claim that holds up to some number ceases to hold.
fn halve(mut low: f64, mut high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Mean and variance of a normal number, rounded and clipped to 1 to `planned`.
fn moments(centre: f64, width: f64, planned: f64) -> (f64, f64) {
    let (mut mean, mut square) = (1.0, 1.0);
    for k in 2..=planned as u32 {
        let k = f64::from(k);
        let at_least_k = 0.5 * libm::erfc((k - 0.5 - centre) / (width * std::f64::consts::SQRT_2));
        mean += at_least_k;
        square += (2.0 * k - 1.0) * at_least_k;
    }
    (mean, square - mean * mean)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{build, play};
    use super::*;

    #[test]
    fn the_solved_laws_have_the_published_moments() {
        for trace in all().into_iter().filter(|&trace| trace != Trace::T0) {
            for planned in [10, 20, 100, 200] {
                let law = Law::solve(trace, planned);
                let planned = f64::from(planned);
                let (mean, variance) = moments(law.centre * planned, law.width * planned, planned);
                let active = 1.0 - law.idle;
                let (mean, square) = (active * mean, active * (variance + mean * mean));
                let found = [mean, libm::sqrt(square - mean * mean)].map(|value| value / planned * 100.0);
                let (mean, deviation) = trace.published();
                let near = (found[0] - mean).abs() < 1e-6 && (found[1] - deviation).abs() < 1e-6;
                assert!(near, "{trace:?} of {planned}: {found:?} instead of {mean}, {deviation}");
            }
        }
    }

    /// Plays one trace and compares with Table 2, within four standard errors.
    fn check(trace: Trace, planned: u32) {
        let text = format!("kind = \"flex\"\ntraces = [\"{trace:?}\"]");
        let law = build(&text, 11).unwrap();
        let percent: Vec<f64> = play(law.as_ref(), 400, planned)
            .into_iter()
            .flatten()
            .map(|done| f64::from(done.expect("idle, but never lost")) / f64::from(planned) * 100.0)
            .collect();
        let n = percent.len() as f64;
        let mean = percent.iter().sum::<f64>() / n;
        let central = |power| percent.iter().map(|value| libm::pow(value - mean, power)).sum::<f64>() / n;
        let (variance, fourth) = (central(2.0), central(4.0));
        let deviation = variance.sqrt();

        let published = trace.published();
        let mean_error = (variance / n).sqrt();
        assert!((mean - published.0).abs() <= 4.0 * mean_error, "{trace:?} of {planned}: mean {mean}");
        let error =
            if variance > 0.0 { ((fourth - variance * variance) / (4.0 * n * variance)).sqrt() } else { 0.0 };
        let off = (deviation - published.1).abs();
        assert!(off <= 4.0 * error, "{trace:?} of {planned}: standard deviation {deviation}");

        let idle = percent.iter().filter(|&&value| value == 0.0).count() as f64 / n;
        let most = published.1.powi(2) / (published.1.powi(2) + published.0.powi(2));
        let expected = if trace >= Trace::Thi { most / 2.0 } else { 0.0 };
        let error = (expected * (1.0 - expected) / n).sqrt();
        assert!((idle - expected).abs() <= 4.0 * error, "{trace:?} of {planned}: idle {idle}");
    }

    #[test]
    fn traces_have_the_means_and_deviations_of_table_2() {
        for trace in all() {
            check(trace, 10);
            check(trace, 100);
        }
    }

    #[test]
    fn little_work_is_cut_as_well_as_it_can_be() {
        for planned in 1..6 {
            for trace in all() {
                let text = format!("kind = \"flex\"\ntraces = [\"{trace:?}\"]");
                let law = build(&text, 2).unwrap();
                let done: Vec<_> = play(law.as_ref(), 100, planned).into_iter().flatten().flatten().collect();
                assert!(done.iter().all(|&done| done <= planned), "{trace:?} of {planned}");
                assert!(trace >= Trace::Thi || done.iter().all(|&done| done > 0), "{trace:?} of {planned}");
                let mean = f64::from(done.iter().sum::<u32>()) / 10_000.0 / f64::from(planned);
                let expected = trace.published().0 / 100.0;
                // Four standard errors of what is at most half of all the work apart.
                assert!(planned == 1 || (mean - expected).abs() < 0.02, "{trace:?} of {planned}: {mean}");
            }
        }
    }

    #[test]
    fn clients_are_spread_over_the_traces_and_keep_theirs() {
        let tree = ebb_settings::Tree::parse("[world.work]\n", "a.toml").unwrap();
        let facts = ebb_settings::BuildContext { seed: 4, ..Default::default() };
        let flex = Flex::build(&tree.table("world.work", facts)).unwrap();
        let mut counts = BTreeMap::<Trace, i32>::new();
        for client in (0..8000).map(ClientId::new) {
            *counts.entry(flex.trace(client)).or_default() += 1;
        }
        // 1000 expected, standard deviation 30.
        assert_eq!(counts.len(), 8);
        assert!(counts.values().all(|&count| (count - 1000).abs() < 120), "{counts:?}");
    }

    #[test]
    fn so_many_of_all_are_the_first() {
        let two = build("kind = \"flex\"\nfirst = 2", 3).unwrap();
        let named = build("kind = \"flex\"\ntraces = [\"T0\", \"T30\"]", 3).unwrap();
        assert_eq!(play(two.as_ref(), 20, 10), play(named.as_ref(), 20, 10));
        let all = build("kind = \"flex\"\nfirst = 8", 3).unwrap();
        assert_eq!(play(all.as_ref(), 20, 10), play(build("kind = \"flex\"", 3).unwrap().as_ref(), 20, 10));
        let refused = |text: &str| build(&format!("kind = \"flex\"\n{text}"), 3).err().unwrap();
        assert!(refused("first = 9").ends_with("first = 9: there are 8 traces; give at most that"));
        assert!(
            refused("first = 2\ntraces = [\"T0\"]").ends_with("traces are listed; leave out one of them")
        );
    }

    #[test]
    fn wrong_traces_are_answered_with_the_remedy() {
        let error = build("kind = \"flex\"\ntraces = []", 1).err().unwrap();
        assert_eq!(error, "a.toml:3:1: world.work.traces = []: name at least one trace");
        let error = build("kind = \"flex\"\ntraces = [\"T31\"]", 1).err().unwrap();
        assert!(error.contains("T30") && error.contains("Tlo"), "{error}");
    }
}
