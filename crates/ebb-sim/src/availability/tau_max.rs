//! Each client is up every so many rounds, and nobody is silent for longer than a bound.
//!
//! Sun et al., "MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central Updates" (2023).

use std::num::NonZeroU32;

use ebb_round::{Bits, RoundNo, Stream, stateless};
use ebb_settings::{BuildContext, Entry, NonNegative, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::Availability;

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "tau-max",
    about: "each client is up every so many rounds of its own, tau at most (MimiC)",
    example: "tau = 10                   # rounds; nobody is up more seldom
std = 3.0            # a client's number of rounds is |normal| with this deviation, rounded; 0 counts as 1
begin = \"together\"         # everybody is up in round 0; or \"apart\": each begins at a round of its own",
    build: |settings| Ok(Box::new(TauMax::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "ten")]
    tau: NonZeroU32,
    #[serde(default = "three")]
    std: NonNegative,
    #[serde(default)]
    begin: Begin,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Begin {
    #[default]
    Together,
    Apart,
}

fn ten() -> NonZeroU32 {
    NonZeroU32::new(10).expect("10 is not 0")
}
fn three() -> NonNegative {
    NonNegative::new(3.0).expect("not negative")
}

#[derive(Debug)]
struct TauMax {
    /// Each client is up every so many rounds, from such a round on.
    periods_and_phases: Vec<(u32, u32)>,
}

impl TauMax {
    fn build(settings: &Settings<'_>) -> Result<TauMax, SettingsError> {
        let table: Table = settings.parse()?;
        let BuildContext { seed, n_clients, .. } = settings.context();
        let tau = f64::from(table.tau.get());
        let (mut periods, mut phases) = (Stream::of_run(seed, "period"), Stream::of_run(seed, "phase"));
        let clients = (0..n_clients).map(|_| {
            let period = (periods.normal().abs() * table.std.get()).round().clamp(1.0, tau) as u32;
            let phase = phases.below(period as usize) as u32;
            (period, if table.begin == Begin::Apart { phase } else { 0 })
        });
        Ok(TauMax { periods_and_phases: clients.collect() })
    }
}

impl Availability for TauMax {
    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        let is_up = |&(every, first): &(u32, u32)| number % every == first;
        up.fill_words(|at| {
            let here = self.periods_and_phases.get(at * 64..).unwrap_or(&[]);
            here.iter()
                .take(64)
                .enumerate()
                .fold(0, |word, (bit, client)| word | u64::from(is_up(client)) << bit)
        });
    }
}

stateless!(TauMax);

#[cfg(test)]
mod tests {
    use crate::availability::tests::{check_refused, up_by_round};

    /// In which rounds each client is up.
    fn calendar(text: &str, n_clients: usize) -> Vec<Vec<usize>> {
        let mut calendar = vec![Vec::new(); n_clients];
        for (number, up) in up_by_round("tau-max", text, n_clients, 60).iter().enumerate() {
            up.iter().for_each(|idx| calendar[idx].push(number));
        }
        calendar
    }

    #[test]
    fn nobody_is_silent_for_longer_than_tau() {
        for begin in ["together", "apart"] {
            for days in calendar(&format!("tau = 6\nbegin = \"{begin}\""), 2000) {
                let every = days[1] - days[0];
                assert!((1..=6).contains(&every) && days[0] < every, "{days:?}");
                assert!(days.windows(2).all(|pair| pair[1] - pair[0] == every), "{days:?}");
                assert!(begin == "apart" || days[0] == 0);
            }
        }
    }

    #[test]
    fn numbers_of_rounds_have_the_published_distribution() {
        let n = 50_000;
        let calendar = calendar("tau = 8\nstd = 3.0", n);
        // P(|z| < 0.5), P(0.5 < |z| < 5/6), P(|z| > 2.5) of a standard normal z.
        for (every, probability) in [(1, 0.382_925), (2, 0.212_415), (8, 0.012_419)] {
            let count = calendar.iter().filter(|days| days[1] - days[0] == every).count();
            let (share, error) =
                (count as f64 / n as f64, (probability * (1.0 - probability) / n as f64).sqrt());
            assert!((share - probability).abs() < 5.0 * error, "every {every}: {share} for {probability}");
        }
    }

    #[test]
    fn wrong_bounds_are_reported_with_the_remedy() {
        check_refused(
            "tau-max",
            &[
                ("tau = 0", "tau = 0: expected a whole number from 1 to 4294967295"),
                ("std = -1.0", "std = -1.0: -1 is out of range; give 0 or a number above it"),
                (
                    "begin = \"apar\"",
                    "begin = \"apar\": unknown value; did you mean \"apart\"? known values: together, apart",
                ),
            ],
        );
    }
}
