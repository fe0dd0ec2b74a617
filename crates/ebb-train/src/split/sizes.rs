//! How many samples each client gets: the same, by a law, or as given.

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{Entry, NonNegative, Positive, Settings, SettingsError, find};
use serde::{Deserialize, Serialize};

/// How many samples each client gets, hold-outs included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// The same for all, as many as can be had.
    Maximal,
    /// So many for each.
    Same(usize),
    /// What the user wrote, client by client.
    Given(Vec<usize>),
    /// What a law drew, client by client; less where there is not enough.
    Drawn(Vec<usize>),
}

impl Sizes {
    /// Client by client, where the numbers do not depend on the data.
    pub(crate) fn list(&self, n_clients: usize) -> Option<Vec<usize>> {
        match self {
            Sizes::Maximal => None,
            Sizes::Same(size) => Some(vec![*size; n_clients]),
            Sizes::Given(list) | Sizes::Drawn(list) => Some(list.clone()),
        }
    }
}

/// A law of sizes.
pub trait SizeDistribution {
    /// The sizes of so many clients.
    fn sizes(&self, n_clients: usize, stream: &mut Stream) -> Sizes;
}

/// Everything that `[data.sizes]` can name.
pub const ALL: &[Entry<dyn SizeDistribution>] = &[EQUAL, PARETO, LOG_NORMAL, GIVEN];

const EQUAL: Entry<dyn SizeDistribution> = Entry {
    name: "equal",
    about: "the same for all: data.samples, or as many as can be had",
    example: "",
    build: |settings| Ok(Box::new(settings.parse::<Equal>()?)),
};

const PARETO: Entry<dyn SizeDistribution> = Entry {
    name: "pareto",
    about: "a Pareto law between two bounds: many small clients and a few large ones",
    example: "index = 0.5                # of the tail: the smaller, the heavier
min_samples = 50
max_samples = 2000",
    build: |settings| {
        let pareto = settings.parse::<Pareto>()?;
        if pareto.max_samples < pareto.min_samples {
            return Err(settings.error(
                "max_samples",
                format!("below min_samples = {}; give at least that", pareto.min_samples),
            ));
        }
        if !(MIN_INDEX..=MAX_INDEX).contains(&pareto.index.get()) {
            let message = format!("give at least {MIN_INDEX} and at most {MAX_INDEX}");
            return Err(settings.error("index", message));
        }
        Ok(Box::new(pareto))
    },
};

const LOG_NORMAL: Entry<dyn SizeDistribution> = Entry {
    name: "log-normal",
    about: "so many samples and a log-normal number beside them",
    example: "log_mean = 4.0             # of the logarithm
log_std = 2.0        # of the logarithm
min_samples = 50
max_samples = 2000",
    build: |settings| {
        let distribution = settings.parse::<LogNormal>()?;
        if distribution.max_samples < distribution.min_samples {
            return Err(settings.error(
                "max_samples",
                format!("below min_samples = {}; give at least that", distribution.min_samples),
            ));
        }
        Ok(Box::new(distribution))
    },
};

const GIVEN: Entry<dyn SizeDistribution> = Entry {
    name: "given",
    about: "as listed, client by client",
    example: "samples = [100, 200, 300]  # as many numbers as clients",
    build: |settings| Ok(Box::new(settings.parse::<Given>()?)),
};

/// Below it the arithmetic is not exact enough.
const MIN_INDEX: f64 = 1e-6;

/// Beyond it all clients have the least size.
const MAX_INDEX: f64 = 100.0;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Equal {}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pareto {
    #[serde(default = "half")]
    index: Positive,
    #[serde(default = "fifty")]
    min_samples: NonZeroU32,
    #[serde(default = "two_thousand")]
    max_samples: NonZeroU32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogNormal {
    #[serde(default = "four")]
    log_mean: NonNegative,
    #[serde(default = "two")]
    log_std: NonNegative,
    #[serde(default = "fifty")]
    min_samples: NonZeroU32,
    #[serde(default = "two_thousand")]
    max_samples: NonZeroU32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    samples: Vec<NonZeroU32>,
}

fn half() -> Positive {
    Positive::new(0.5).expect("a half is above 0")
}
fn four() -> NonNegative {
    NonNegative::new(4.0).expect("4 is not negative")
}
fn two() -> NonNegative {
    NonNegative::new(2.0).expect("2 is not negative")
}
fn fifty() -> NonZeroU32 {
    NonZeroU32::new(50).expect("50 is not 0")
}
fn two_thousand() -> NonZeroU32 {
    NonZeroU32::new(2000).expect("2000 is not 0")
}

impl SizeDistribution for Equal {
    fn sizes(&self, _n_clients: usize, _stream: &mut Stream) -> Sizes {
        Sizes::Maximal
    }
}

impl SizeDistribution for Pareto {
    /// By inversion: 1 - F(x) = ((least / x)^index - r) / (1 - r) with r = (least / most)^index.
    fn sizes(&self, n_clients: usize, stream: &mut Stream) -> Sizes {
        let (least, most) = (f64::from(self.min_samples.get()), f64::from(self.max_samples.get()));
        let index = self.index.get();
        let beyond = libm::pow(least / most, index);
        let draw = |_| {
            let size = least * libm::pow(1.0 - stream.uniform() * (1.0 - beyond), -1.0 / index);
            // Rounding may lead past the bounds.
            size.floor().clamp(least, most) as usize
        };
        Sizes::Drawn((0..n_clients).map(draw).collect())
    }
}

impl SizeDistribution for LogNormal {
    fn sizes(&self, n_clients: usize, stream: &mut Stream) -> Sizes {
        let (least, most) = (f64::from(self.min_samples.get()), f64::from(self.max_samples.get()));
        let draw = |_| {
            let log_normal = libm::exp(self.log_mean.get() + self.log_std.get() * stream.normal());
            (least + log_normal.floor()).min(most) as usize
        };
        Sizes::Drawn((0..n_clients).map(draw).collect())
    }
}

impl SizeDistribution for Given {
    fn sizes(&self, _n_clients: usize, _stream: &mut Stream) -> Sizes {
        Sizes::Given(self.samples.iter().map(|size| size.get() as usize).collect())
    }
}

/// The sizes that `sizes` within `data` stands for, or `samples`, which is what `data` says of them itself.
pub(crate) fn build(
    data: &Settings<'_>,
    samples: Option<NonZeroU32>,
    n_clients: usize,
    stream: &mut Stream,
) -> Result<Sizes, SettingsError> {
    let own = data.inner("sizes");
    let entry = find(ALL, &own, Some(EQUAL.name))?;
    own.resolve_kind(entry.name);
    let sizes = (entry.build)(&own)?.sizes(n_clients, stream);
    match (sizes, samples) {
        (Sizes::Maximal, Some(samples)) => Ok(Sizes::Same(samples.get() as usize)),
        (_, Some(_)) => {
            let message = format!("data.sizes says \"{}\"; leave out one of them", entry.name);
            Err(data.error("samples", message))
        }
        (Sizes::Given(list), None) if list.len() != n_clients => {
            let message = format!("{} numbers for {n_clients} clients; give one for each", list.len());
            Err(own.error("samples", message))
        }
        (sizes, None) => Ok(sizes),
    }
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;

    fn read(text: &str, samples: Option<u32>, n_clients: usize) -> Result<Sizes, String> {
        let tree = Tree::parse(&format!("[data.sizes]\n{text}"), "a.toml").unwrap();
        let data = tree.table("data", BuildContext::default());
        let samples = samples.map(|samples| NonZeroU32::new(samples).unwrap());
        build(&data, samples, n_clients, &mut Stream::of_run(3, "sizes")).map_err(|error| error.to_string())
    }

    fn drawn(text: &str) -> Vec<usize> {
        let Sizes::Drawn(mut sizes) = read(text, None, 20_000).unwrap() else { panic!("not drawn: {text}") };
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn pareto_sizes_stay_within_bounds_and_have_the_right_quantiles() {
        let sizes = drawn("kind = \"pareto\"");
        assert!(sizes[0] == 50 && sizes[19_999] <= 2000 && sizes[19_999] > 1900);
        // (50 / x)^0.5 = 1 - q (1 - 40^-0.5); five standard errors of a quantile, roughly.
        for (q, x) in [(0.25, 80.2), (0.5, 149.1), (0.75, 368.0)] {
            let found = sizes[(q * 20_000.0) as usize] as f64;
            assert!((found / x - 1.0).abs() < 0.06, "{q}: {found} for {x}");
        }
        // The mean is 7.0711 / 0.8419 * (44.721 - 7.0711) = 316.2, half a sample less for rounding down.
        let mean = sizes.iter().sum::<usize>() as f64 / 20_000.0;
        assert!((mean - 315.7).abs() < 5.0 * 420.0 / 20_000_f64.sqrt(), "{mean}");
        let tail = drawn("kind = \"pareto\"\nindex = 100.0");
        assert!(tail[19_000] <= 52, "{}", tail[19_000]);
    }

    #[test]
    fn log_normal_sizes_have_the_papers_median() {
        let sizes = drawn("kind = \"log-normal\"");
        // 50 + e^4, as for SYNTHETIC; standard error 0.97.
        assert!((sizes[10_000] as f64 - 104.1).abs() < 5.0 * 0.97, "{}", sizes[10_000]);
        assert!(sizes[0] >= 50 && sizes[19_999] == 2000);
    }

    #[test]
    fn sizes_can_be_given_or_left_to_the_data() {
        assert_eq!(read("", None, 3), Ok(Sizes::Maximal));
        assert_eq!(read("kind = \"equal\"", Some(7), 3), Ok(Sizes::Same(7)));
        let given = "kind = \"given\"\nsamples = [3, 1, 2]";
        assert_eq!(read(given, None, 3), Ok(Sizes::Given(vec![3, 1, 2])));
    }

    #[test]
    fn wrong_sizes_are_answered_with_the_remedy() {
        for (text, samples, expected) in [
            (
                "kind = \"given\"\nsamples = [3, 1]",
                None,
                "a.toml:3:1: data.sizes.samples = [3, 1]: 2 numbers for 3 clients; give one for each",
            ),
            (
                "kind = \"given\"\nsamples = [3, 0, 1]",
                None,
                "a.toml:3:15: data.sizes.samples[1] = 0: expected a whole number from 1 to 4294967295",
            ),
            (
                "kind = \"pareto\"\nmax_samples = 10",
                None,
                "a.toml:3:1: data.sizes.max_samples = 10: below min_samples = 50; give at least that",
            ),
            (
                "kind = \"log-normal\"\nmin_samples = 3000",
                None,
                "a.toml:1:7: data.sizes.max_samples: below min_samples = 3000; give at least that",
            ),
            (
                "kind = \"pareto\"\nindex = 0",
                None,
                "data.sizes.index = 0: 0 is out of range; give a number above 0",
            ),
            ("kind = \"pareto\"", Some(5), "data.samples: data.sizes says \"pareto\"; leave out one of them"),
            ("kind = \"paretto\"", None, "there is no such kind; did you mean \"pareto\"?"),
        ] {
            let error = read(text, samples, 3).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
