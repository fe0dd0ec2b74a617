//! Each client follows one of eight traces of the part of the planned work that phones complete.
//!
//! Ruan et al., "Towards Flexible Device Participation in Federated Learning" (FLEX), Table 2. The table
//! gives mean and standard deviation of the percentage done. Only the last three traces have rounds without
//! any work. The traces themselves were not published.
//!
//! Here a client does `round(E * x / 100)` of `E`, clipped to `[1, E]`, with a normal `x`. On the last three
//! traces it is idle with half the largest probability that mean and standard deviation allow. Clipping and
//! rounding change both moments, so the normal distribution is solved for each `E` such that the moments hold
//! afterwards.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Mutex, PoisonError};

use ebb_round::{ClientId, RoundNo, Stream};
use ebb_settings::{Entry, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::{Completion, CompletionModel};

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn CompletionModel> = Entry {
    name: "flex",
    about: "each client does the part of its work that its trace sets, one of FLEX's eight; on three it can be idle",
    example:
        "first = 5                  # the first 5 of T0, T30, T50, T70, T90, Thi, Tmi, Tlo; all if left out
# traces = [\"T0\", \"T90\"]   # or: these traces
of = \"work\"                # or \"steps\": the part is taken of the steps, even if the job counts passes",
    build: |settings| Ok(Box::new(Flex::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    traces: Option<Vec<FlexTrace>>,
    /// The number of traces to use from the list of all, instead of `traces`.
    first: Option<NonZeroUsize>,
    #[serde(default)]
    of: Unit,
}

/// What the part is taken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Unit {
    /// Steps or passes, as the job counts them.
    #[default]
    Work,
    /// Steps.
    Steps,
}

fn all_traces() -> Vec<FlexTrace> {
    use FlexTrace::{T0, T30, T50, T70, T90, Thi, Tlo, Tmi};
    vec![T0, T30, T50, T70, T90, Thi, Tmi, Tlo]
}

/// A trace of Table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum FlexTrace {
    T0,
    T30,
    T50,
    T70,
    T90,
    Thi,
    Tmi,
    Tlo,
}

impl FlexTrace {
    /// The mean and standard deviation of the percentage done.
    fn published_moments(self) -> (f64, f64) {
        match self {
            FlexTrace::T0 => (100.0, 0.0),
            FlexTrace::T30 => (75.3, 14.8),
            FlexTrace::T50 => (67.2, 11.3),
            FlexTrace::T70 => (57.2, 11.7),
            FlexTrace::T90 => (56.3, 14.8),
            FlexTrace::Thi => (82.5, 23.3),
            FlexTrace::Tmi => (74.1, 22.3),
            FlexTrace::Tlo => (51.2, 18.3),
        }
    }

    /// The probability of a round without work.
    fn idle_probability(self) -> f64 {
        match self {
            FlexTrace::Thi | FlexTrace::Tmi | FlexTrace::Tlo => {
                let (mean, std) = self.published_moments();
                let max_probability = std * std / (std * std + mean * mean);
                max_probability / 2.0
            }
            _ => 0.0,
        }
    }
}

struct Flex {
    seed: u64,
    traces: Vec<FlexTrace>,
    of: Unit,
    /// The distributions solved so far, by trace and planned work. Solving again gives the same result.
    solved: Mutex<BTreeMap<(FlexTrace, u32), ClippedNormal>>,
}

impl Flex {
    fn build(settings: &Settings<'_>) -> Result<Flex, SettingsError> {
        let Table { traces, first, of } = settings.parse()?;
        let traces = match (traces, first) {
            (Some(_), Some(_)) => {
                return Err(settings.error("first", "it excludes traces; leave out one of the two"));
            }
            (Some(traces), None) => traces,
            (None, first) => {
                let mut traces = all_traces();
                let first = first.map_or(traces.len(), NonZeroUsize::get);
                if first > traces.len() {
                    return Err(settings.error(
                        "first",
                        format!("there are {} traces; give at most that number", traces.len()),
                    ));
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

    fn trace(&self, client: ClientId) -> FlexTrace {
        self.traces[Stream::of_client(self.seed, "flex trace", client).below(self.traces.len())]
    }

    fn clipped_normal(&self, trace: FlexTrace, planned: u32) -> ClippedNormal {
        let mut solved = self.solved.lock().unwrap_or_else(PoisonError::into_inner);
        *solved.entry((trace, planned)).or_insert_with(|| ClippedNormal::solve(trace, planned))
    }
}

impl CompletionModel for Flex {
    fn counts_steps(&self) -> bool {
        self.of == Unit::Steps
    }

    fn completion(&self, number: RoundNo, client: ClientId, planned: NonZeroU32) -> Completion {
        let trace = self.trace(client);
        if trace == FlexTrace::T0 {
            return Completion::Part(planned);
        }
        let distribution = self.clipped_normal(trace, planned.get());
        let mut stream = Stream::of_client_round(self.seed, "flex", number, client);
        if stream.bernoulli(distribution.idle_probability) {
            return Completion::Nothing;
        }
        let fraction = distribution.normal_mean + distribution.normal_std * stream.normal();
        let done = libm::round(fraction * f64::from(planned.get())).clamp(1.0, f64::from(planned.get()));
        Completion::Part(NonZeroU32::new(done as u32).expect("at least 1"))
    }
}

/// A normal part of the work, clipped and rounded, or idle with a probability.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ClippedNormal {
    idle_probability: f64,
    normal_mean: f64,
    normal_std: f64,
}

/// The largest number of steps for which the distribution is solved; beyond it rounding has no visible
/// effect.
const MAX_SOLVED_STEPS: u32 = 200;

/// The halvings of a bisection, after which an interval has 10^-15 of its length.
const BISECTIONS: u32 = 50;

impl ClippedNormal {
    /// The distribution with the published moments, or the nearest that this number of steps allows, the mean
    /// first.
    fn solve(trace: FlexTrace, planned: u32) -> ClippedNormal {
        let planned = f64::from(planned.min(MAX_SOLVED_STEPS));
        let idle_probability = trace.idle_probability();
        let (mean, std) = trace.published_moments();
        let (mean, std) = (mean / 100.0 * planned, std / 100.0 * planned);
        // The moments of the rounds that are not idle.
        let active_mean = mean / (1.0 - idle_probability);
        let active_square = (std * std + mean * mean) / (1.0 - idle_probability);
        let active_variance = active_square - active_mean * active_mean;

        let normal_mean_for = |normal_std: f64| {
            let reach = 50.0 * normal_std;
            bisect(1.0 - reach, planned + reach, |normal_mean| {
                moments(normal_mean, normal_std, planned).0 < active_mean
            })
        };
        // A wider distribution has a larger standard deviation. The search is in logarithms, because it may
        // be a thousandth or a thousand.
        let logarithm = bisect(libm::log(1e-3), libm::log(100.0 * planned), |logarithm| {
            let normal_std = libm::exp(logarithm);
            moments(normal_mean_for(normal_std), normal_std, planned).1 < active_variance
        });
        let normal_std = libm::exp(logarithm);
        ClippedNormal {
            idle_probability,
            normal_mean: normal_mean_for(normal_std) / planned,
            normal_std: normal_std / planned,
        }
    }
}

/// The point up to which a monotone predicate holds.
fn bisect(mut low: f64, mut high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// The mean and variance of a normal number, rounded and clipped to 1 to `planned`.
fn moments(normal_mean: f64, normal_std: f64, planned: f64) -> (f64, f64) {
    let (mut mean, mut square) = (1.0, 1.0);
    for k in 2..=planned as u32 {
        let k = f64::from(k);
        let at_least_k = 0.5 * libm::erfc((k - 0.5 - normal_mean) / (normal_std * std::f64::consts::SQRT_2));
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
    fn the_solved_distributions_have_the_published_moments() {
        for trace in all_traces().into_iter().filter(|&trace| trace != FlexTrace::T0) {
            for planned in [10, 20, 100, 200] {
                let distribution = ClippedNormal::solve(trace, planned);
                let planned = f64::from(planned);
                let (mean, variance) =
                    moments(distribution.normal_mean * planned, distribution.normal_std * planned, planned);
                let active = 1.0 - distribution.idle_probability;
                let (mean, square) = (active * mean, active * (variance + mean * mean));
                let found = [mean, libm::sqrt(square - mean * mean)].map(|value| value / planned * 100.0);
                let (mean, std) = trace.published_moments();
                let is_near = (found[0] - mean).abs() < 1e-6 && (found[1] - std).abs() < 1e-6;
                assert!(is_near, "{trace:?} of {planned}: {found:?} instead of {mean}, {std}");
            }
        }
    }

    /// Plays one trace and compares it with Table 2, within four standard errors.
    fn check(trace: FlexTrace, planned: u32) {
        let text = format!("kind = \"flex\"\ntraces = [\"{trace:?}\"]");
        let model = build(&text, 11).unwrap();
        let percent: Vec<f64> = play(model.as_ref(), 400, planned)
            .into_iter()
            .flatten()
            .map(|done| f64::from(done.expect("idle, but never lost")) / f64::from(planned) * 100.0)
            .collect();
        let n = percent.len() as f64;
        let mean = percent.iter().sum::<f64>() / n;
        let central = |power| percent.iter().map(|value| libm::pow(value - mean, power)).sum::<f64>() / n;
        let (variance, fourth) = (central(2.0), central(4.0));
        let std = variance.sqrt();

        let published = trace.published_moments();
        let mean_error = (variance / n).sqrt();
        assert!((mean - published.0).abs() <= 4.0 * mean_error, "{trace:?} of {planned}: mean {mean}");
        let error =
            if variance > 0.0 { ((fourth - variance * variance) / (4.0 * n * variance)).sqrt() } else { 0.0 };
        let off = (std - published.1).abs();
        assert!(off <= 4.0 * error, "{trace:?} of {planned}: standard deviation {std}");

        let idle = percent.iter().filter(|&&value| value == 0.0).count() as f64 / n;
        let max_probability = published.1.powi(2) / (published.1.powi(2) + published.0.powi(2));
        let expected = if trace >= FlexTrace::Thi { max_probability / 2.0 } else { 0.0 };
        let error = (expected * (1.0 - expected) / n).sqrt();
        assert!((idle - expected).abs() <= 4.0 * error, "{trace:?} of {planned}: idle {idle}");
    }

    #[test]
    fn traces_have_the_moments_of_table_2() {
        for trace in all_traces() {
            check(trace, 10);
            check(trace, 100);
        }
    }

    #[test]
    fn small_jobs_have_the_nearest_possible_moments() {
        for planned in 1..6 {
            for trace in all_traces() {
                let text = format!("kind = \"flex\"\ntraces = [\"{trace:?}\"]");
                let model = build(&text, 2).unwrap();
                let done: Vec<_> =
                    play(model.as_ref(), 100, planned).into_iter().flatten().flatten().collect();
                assert!(done.iter().all(|&done| done <= planned), "{trace:?} of {planned}");
                assert!(
                    trace >= FlexTrace::Thi || done.iter().all(|&done| done > 0),
                    "{trace:?} of {planned}"
                );
                let mean = f64::from(done.iter().sum::<u32>()) / 10_000.0 / f64::from(planned);
                let expected = trace.published_moments().0 / 100.0;
                // Four standard errors, for clients that differ by at most half of the work.
                assert!(planned == 1 || (mean - expected).abs() < 0.02, "{trace:?} of {planned}: {mean}");
            }
        }
    }

    #[test]
    fn clients_are_spread_over_the_traces_and_keep_theirs() {
        let tree = ebb_settings::Tree::parse("[world.work]\n", "a.toml").unwrap();
        let context = ebb_settings::BuildContext { seed: 4, ..Default::default() };
        let flex = Flex::build(&tree.table("world.work", context)).unwrap();
        let mut counts = BTreeMap::<FlexTrace, i32>::new();
        for client in (0..8000).map(ClientId::new) {
            *counts.entry(flex.trace(client)).or_default() += 1;
        }
        // 1000 are expected, with standard deviation 30.
        assert_eq!(counts.len(), 8);
        assert!(counts.values().all(|&count| (count - 1000).abs() < 120), "{counts:?}");
    }

    #[test]
    fn the_first_n_traces_can_be_chosen() {
        let two = build("kind = \"flex\"\nfirst = 2", 3).unwrap();
        let named = build("kind = \"flex\"\ntraces = [\"T0\", \"T30\"]", 3).unwrap();
        assert_eq!(play(two.as_ref(), 20, 10), play(named.as_ref(), 20, 10));
        let all = build("kind = \"flex\"\nfirst = 8", 3).unwrap();
        assert_eq!(play(all.as_ref(), 20, 10), play(build("kind = \"flex\"", 3).unwrap().as_ref(), 20, 10));
        let refused = |text: &str| build(&format!("kind = \"flex\"\n{text}"), 3).err().unwrap();
        assert!(refused("first = 9").ends_with("first = 9: there are 8 traces; give at most that number"));
        assert!(
            refused("first = 2\ntraces = [\"T0\"]").ends_with("it excludes traces; leave out one of the two")
        );
    }

    #[test]
    fn wrong_traces_are_reported_with_the_remedy() {
        let error = build("kind = \"flex\"\ntraces = []", 1).err().unwrap();
        assert_eq!(error, "a.toml:3:1: world.work.traces = []: name at least one trace");
        let error = build("kind = \"flex\"\ntraces = [\"T31\"]", 1).err().unwrap();
        assert!(error.contains("T30") && error.contains("Tlo"), "{error}");
    }
}
