//! The probability of a client's participation: as selected, as given, or estimated from its past.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Contribution, Loader, Metrics, Round, RoundNo, Saver, State, StateError};
use ebb_settings::{Probability, Settings, SettingsError};
use serde::{Deserialize, Serialize};

/// The source of the probabilities, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ProbabilitySource {
    /// The selector's inclusion probabilities; a selected client may still be absent.
    #[default]
    Picks,
    /// The selector's times the true availability probability, which only a simulation knows.
    Oracle,
    /// A list, one probability a client.
    Given,
    /// One over the mean number of rounds between updates (FedAU).
    Intervals,
    /// The fraction of rounds with an update.
    Counts,
}

/// Participation probabilities, and the statistics that estimate them.
#[derive(Debug)]
pub(super) struct ParticipationProbabilities {
    source: ProbabilitySource,
    given: Vec<f64>,
    cut_off: Option<NonZeroU32>,
    histories: Vec<ResponseHistory>,
    /// Updates of this round whose client's probability is unknown.
    n_unknown: u32,
    number: RoundNo,
}

impl ParticipationProbabilities {
    /// From a source without settings, except for the longest interval.
    pub(super) fn of(source: ProbabilitySource, cut_off: Option<NonZeroU32>) -> ParticipationProbabilities {
        ParticipationProbabilities {
            source,
            given: Vec::new(),
            cut_off,
            histories: Vec::new(),
            n_unknown: 0,
            number: 0,
        }
    }

    /// From the table of a method with the keys `probabilities` and `given`.
    pub(super) fn from_settings(
        settings: &Settings<'_>,
        source: ProbabilitySource,
        given: Option<Vec<Probability>>,
    ) -> Result<ParticipationProbabilities, SettingsError> {
        match (source, &given) {
            (ProbabilitySource::Given, None) => {
                return Err(
                    settings.error("given", "missing; give one probability a client, as in [0.5, 0.9]")
                );
            }
            (ProbabilitySource::Given, Some(list)) => {
                let n_clients = settings.context().n_clients;
                if list.len() != n_clients {
                    let message =
                        format!("{} probabilities for {n_clients} clients; give one a client", list.len());
                    return Err(settings.error("given", message));
                }
                if let Some(at) = list.iter().position(|probability| probability.get() <= 0.0) {
                    let message =
                        "a client that never participates cannot be weighted; give a probability above 0";
                    return Err(settings.error(&format!("given[{at}]"), message));
                }
            }
            (_, Some(_)) => {
                return Err(settings.error("given", "only applies with probabilities = \"given\""));
            }
            (_, None) => {}
        }
        let given = given.unwrap_or_default().into_iter().map(Probability::get).collect();
        Ok(ParticipationProbabilities { given, ..ParticipationProbabilities::of(source, None) })
    }

    /// Whether it needs true availability probabilities.
    pub(super) fn needs_oracle(&self) -> bool {
        self.source == ProbabilitySource::Oracle
    }

    /// The participation probability of a client that returned an update, 1 if unknown. The update is
    /// counted.
    pub(super) fn of_update(&mut self, round: &Round<'_>, one: &Contribution) -> f64 {
        self.begin(round);
        let cut_off = self.cut_off;
        let probability = match self.source {
            ProbabilitySource::Picks => one.inclusion_probability,
            ProbabilitySource::Oracle => round
                .oracle_probability(one.client)
                .map(|probability| probability * one.inclusion_probability.unwrap_or(1.0)),
            ProbabilitySource::Given => self.given.get(one.client.idx()).copied(),
            ProbabilitySource::Intervals => {
                Some(1.0 / self.history(round, one.client).interval(round, cut_off))
            }
            ProbabilitySource::Counts => Some(self.history(round, one.client).share(round)),
        };
        let probability = probability.filter(|probability| *probability > 0.0);
        self.n_unknown += u32::from(probability.is_none());
        probability.unwrap_or(1.0)
    }

    /// Resets the round's counters; may be called several times, before any update is counted.
    pub(super) fn begin(&mut self, round: &Round<'_>) {
        if self.number != round.number {
            (self.number, self.n_unknown) = (round.number, 0);
        }
    }

    /// The number of updates with unknown probabilities, if any, for the record.
    pub(super) fn metrics(&self) -> Metrics {
        let learns = matches!(self.source, ProbabilitySource::Intervals | ProbabilitySource::Counts);
        if learns {
            Metrics::new()
        } else {
            Metrics::from([("probabilities_unknown", f64::from(self.n_unknown))])
        }
    }

    fn history(&mut self, round: &Round<'_>, client: ClientId) -> &mut ResponseHistory {
        self.histories.resize(self.histories.len().max(round.census.len()), ResponseHistory::default());
        let past = &mut self.histories[client.idx()];
        // Counting starts when the client joins.
        past.since = past.since.max(round.census.joined(client).unwrap_or(0));
        past
    }
}

/// The past participation of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ResponseHistory {
    /// The number of completed intervals, and their total number of rounds.
    count: u32,
    rounds: u64,
    /// The first round of the current interval.
    since: RoundNo,
}

impl ResponseHistory {
    /// The mean interval before this update, 1 if none was completed; then completes the current one.
    fn interval(&mut self, round: &Round<'_>, cut_off: Option<NonZeroU32>) -> f64 {
        if let Some(cut_off) = cut_off {
            let ended = round.number.saturating_sub(self.since) / cut_off;
            self.end(ended, u64::from(ended) * u64::from(cut_off.get()));
        }
        let mean = if self.count == 0 { 1.0 } else { self.rounds as f64 / f64::from(self.count) };
        self.end(1, u64::from(round.number.saturating_sub(self.since)) + 1);
        mean
    }

    /// The fraction of rounds with an update so far, including this one.
    fn share(&mut self, round: &Round<'_>) -> f64 {
        self.end(1, u64::from(round.number.saturating_sub(self.since)) + 1);
        f64::from(self.count) / self.rounds as f64
    }

    fn end(&mut self, count: u32, rounds: u64) {
        self.count += count;
        self.rounds += rounds;
        self.since += rounds as u32;
    }
}

impl State for ParticipationProbabilities {
    fn save(&self, to: &mut Saver) {
        to.u64("unknown", u64::from(self.n_unknown));
        to.u64("number", u64::from(self.number));
        to.u32s("count", &self.histories.iter().map(|one| one.count).collect::<Vec<_>>());
        to.u64s("rounds", &self.histories.iter().map(|one| one.rounds).collect::<Vec<_>>());
        to.u32s("since", &self.histories.iter().map(|one| one.since).collect::<Vec<_>>());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.n_unknown = from.u32("unknown")?;
        self.number = from.u32("number")?;
        let (count, rounds, since) = (from.u32s("count")?, from.u64s("rounds")?, from.u32s("since")?);
        if rounds.len() != count.len() || since.len() != count.len() {
            return Err(from.error("count", "its lists differ in length"));
        }
        let all = count.into_iter().zip(rounds).zip(since);
        self.histories =
            all.map(|((count, rounds), since)| ResponseHistory { count, rounds, since }).collect();
        Ok(())
    }
}
