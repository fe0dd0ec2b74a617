//! The fairness quota: the least inclusion probability of every client, from round to round.

use ebb_round::RoundNo;
use ebb_settings::{Settings, SettingsError};
use serde::{Deserialize, Serialize};

/// The quota as a fraction of an even share: 0 is none, 1 leaves nothing to learn.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number from 0 to 1, \"inc\", { linear = [0.0, 1.0] } or rounds with their quotas: [[1, 0.0], [50, 1.0]]"
)]
pub enum Quota {
    /// The same in all rounds.
    Constant(f64),
    /// A schedule that is known by name.
    Named(Name),
    /// From one value to another, linearly over the rounds.
    Linear {
        /// The values in the first round and in the last.
        linear: (f64, f64),
    },
    /// From each of these rounds on, counted from 1.
    Table(Vec<(RoundNo, f64)>),
}

/// A schedule that is known by name.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// 0 in the first quarter of the rounds, 1 afterwards.
    Inc,
}

impl Default for Quota {
    fn default() -> Self {
        Quota::Constant(0.5)
    }
}

impl Quota {
    /// Checks its range, and that the number of rounds is known if it depends on that.
    pub(super) fn check(&self, settings: &Settings<'_>) -> Result<(), SettingsError> {
        let in_range = |part: f64| (0.0..=1.0).contains(&part);
        let parts: Vec<_> = match self {
            Quota::Constant(part) => vec![*part],
            Quota::Named(Name::Inc) => Vec::new(),
            Quota::Linear { linear: (first, last) } => vec![*first, *last],
            Quota::Table(table) => table.iter().map(|(_, part)| *part).collect(),
        };
        if let Some(part) = parts.into_iter().find(|&part| !in_range(part)) {
            let message = format!(
                "{part} is out of range; give a fraction of an even share (cohort over clients), from 0 (none) to 1 (all of it)"
            );
            return Err(settings.error("quota", message));
        }
        if let Quota::Table(table) = self {
            let ascends = table.windows(2).all(|pair| pair[0].0 < pair[1].0);
            if table.first().is_none_or(|(round, _)| *round != 1) || !ascends {
                let message = "give ascending rounds from 1, each with its quota: [[1, 0.0], [100, 0.5]]";
                return Err(settings.error("quota", message));
            }
        }
        let by_horizon = matches!(self, Quota::Named(_) | Quota::Linear { .. });
        if by_horizon && settings.context().n_rounds == 0 {
            return Err(settings.error(
                "quota",
                "it depends on the number of rounds, which is unknown here; give a constant",
            ));
        }
        Ok(())
    }

    /// The quota of a round, in a run of this number of rounds.
    pub(super) fn part(&self, number: RoundNo, n_rounds: u32) -> f64 {
        match self {
            Quota::Constant(part) => *part,
            Quota::Named(Name::Inc) => {
                if u64::from(number + 1) * 4 <= u64::from(n_rounds) {
                    0.0
                } else {
                    1.0
                }
            }
            Quota::Linear { linear: (first, last) } => {
                let way = f64::from(number.min(n_rounds.saturating_sub(1))) / f64::from(n_rounds.max(2) - 1);
                first + (last - first) * way
            }
            Quota::Table(table) => {
                table.iter().take_while(|(from, _)| *from <= number + 1).last().map_or(0.0, |(_, part)| *part)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_have_the_quotas_of_the_paper() {
        let parts = |quota: &Quota, rounds: &[u32]| {
            rounds.iter().map(|&round| quota.part(round - 1, 400)).collect::<Vec<_>>()
        };
        assert_eq!(parts(&Quota::Constant(0.3), &[1, 400]), [0.3, 0.3]);
        assert_eq!(parts(&Quota::Named(Name::Inc), &[1, 100, 101, 400]), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(parts(&Quota::Linear { linear: (0.2, 1.0) }, &[1, 400]), [0.2, 1.0]);
        let table = Quota::Table(vec![(1, 0.0), (10, 0.5), (20, 0.25)]);
        assert_eq!(parts(&table, &[1, 9, 10, 19, 20, 400]), [0.0, 0.0, 0.5, 0.5, 0.25, 0.25]);
    }
}
