//! Hoeffding races: pairs of clients that lag far enough behind are not compared any more.
//!
//! FL-FDMS (Wang and Xu, journal version, Theorem 2). With probability `1 - p` no friend is ever dropped.

use ebb_round::{Bits, Loader, RoundNo, Saver, State, StateError};
use ebb_settings::{NonNegative, Positive, Probability};
use serde::{Deserialize, Serialize};

use super::pair_statistics::PairStatistics;

/// The `races` table.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    #[serde(default)]
    theta: ThresholdForm,
    #[serde(default = "one")]
    factor: Positive,
    #[serde(default = "one_percent")]
    p: Positive,
    /// The probability that two clients share a round; estimated if it is not given.
    beta: Option<Probability>,
    #[serde(default = "small")]
    delta_f: NonNegative,
    #[serde(default = "three")]
    b_max: Positive,
}

/// The formula of the threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ThresholdForm {
    /// Theorem 2; the factor multiplies the whole threshold.
    #[default]
    Paper,
    /// The authors' program: smaller by a factor of `sqrt(2)`, and `delta_f` is not multiplied by the factor.
    OfficialCode,
}

fn one() -> Positive {
    Positive::new(1.0).expect("1 is above 0")
}

fn one_percent() -> Positive {
    Positive::new(0.01).expect("0.01 is above 0")
}

fn small() -> NonNegative {
    NonNegative::new(0.01).expect("0.01 is above 0")
}

fn three() -> Positive {
    Positive::new(3.0).expect("3 is above 0")
}

impl Settings {
    /// The threshold after this number of shared rounds.
    fn theta(&self, n_clients: usize, n_rounds: u32, meetings: f64) -> f64 {
        let cases = 2.0 * (n_clients as f64).powi(2) * f64::from(n_rounds) * self.b_max.get();
        let numerator = 2.0 * libm::log(cases) - 2.0 * libm::log(self.p.get());
        let root = |denominator: f64| (numerator.max(0.0) / denominator).sqrt();
        let factor = self.factor.get();
        match self.theta {
            ThresholdForm::Paper => factor * (root(meetings) + self.delta_f.get()),
            ThresholdForm::OfficialCode => factor * root(2.0 * meetings) + self.delta_f.get(),
        }
    }

    /// Whether the settings exclude that two clients ever share a round.
    pub(super) fn excludes_meetings(&self) -> bool {
        self.beta.is_some_and(|beta| beta.get() <= 0.0)
    }

    /// The probability that a friend is dropped.
    pub(super) fn p(&self) -> f64 {
        self.p.get()
    }
}

/// The races of a run.
#[derive(Clone, Debug)]
pub(super) struct Races {
    settings: Settings,
    n_clients: usize,
    n_rounds: u32,
    /// For each slot, the slots that may still be its friend.
    candidates: Vec<Bits>,
    /// The number of pairs that shared a round, and of all pairs, summed over rounds.
    meetings: (f64, f64),
    theta: f64,
}

impl Races {
    pub(super) fn new(settings: Settings, n_clients: usize, n_rounds: u32) -> Races {
        Races {
            settings,
            n_clients,
            n_rounds,
            candidates: Vec::new(),
            meetings: (0.0, 0.0),
            theta: f64::INFINITY,
        }
    }

    /// A new slot may be every slot's friend, and every slot its friend.
    pub(super) fn admit(&mut self, slot: usize, known: &PairStatistics) {
        let n_slots = known.n_slots();
        self.candidates.resize(n_slots, Bits::default());
        self.candidates.iter_mut().for_each(|bits| bits.grow(n_slots));
        self.candidates[slot].clear();
        for other in known.taken().filter(|&other| other != slot) {
            self.candidates[other].set(slot, true);
            self.candidates[slot].set(other, true);
        }
    }

    /// Removes free slots. A slot without candidates left starts again with all.
    pub(super) fn remove(&mut self, gone: &[usize], known: &PairStatistics) {
        for &slot in gone {
            self.candidates[slot].clear();
            self.candidates.iter_mut().for_each(|bits| bits.set(slot, false));
        }
        if !gone.is_empty() {
            for slot in known.taken() {
                if self.candidates[slot].count() == 0 {
                    known
                        .taken()
                        .filter(|&other| other != slot)
                        .for_each(|other| self.candidates[slot].set(other, true));
                }
            }
        }
    }

    /// The slots that may still be the friend of another.
    pub(super) fn candidates(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        self.candidates[of].iter()
    }

    /// The position of a slot in an order in which possible friends are adjacent.
    pub(super) fn order(&self, slot: usize) -> usize {
        self.candidates[slot].iter().next().map_or(slot, |first| first.min(slot))
    }

    /// Drops candidates that lag too far behind.
    pub(super) fn run(
        &mut self,
        known: &PairStatistics,
        number: RoundNo,
        n_active: usize,
        n_enrolled: usize,
    ) {
        let pairs = |n: usize| n as f64 * (n as f64 - 1.0);
        self.meetings.0 += pairs(n_active);
        self.meetings.1 += pairs(n_enrolled);
        let beta = self.beta();
        if beta <= 0.0 {
            return;
        }
        let (settings, n_clients, n_rounds) = (self.settings, self.n_clients, self.n_rounds);
        let theta = |meetings: f64| settings.theta(n_clients, n_rounds, meetings);
        self.theta = theta(beta * f64::from(number + 1));
        // Similarities are from 0 to 1, so no candidate can lag by more.
        if self.theta > 1.0 {
            return;
        }
        for of in known.taken() {
            for (slot, lag, met) in lags(known, of, &self.candidates[of]) {
                // The later slot of a pair determines how many rounds they can have shared. An estimated
                // `beta` is a mean over all pairs, so pairs with fewer shared rounds are compared by their
                // own number.
                let t = number + 1 - known.since(of).max(known.since(slot));
                let expected = beta * f64::from(t);
                let given = settings.beta.is_some();
                let theta = theta(if given { expected } else { expected.min(f64::from(met)) });
                let too_far = match settings.theta {
                    ThresholdForm::Paper => lag >= theta,
                    ThresholdForm::OfficialCode => lag > theta,
                };
                // The best candidate stays whatever the threshold.
                if too_far && lag > 0.0 {
                    self.candidates[of].set(slot, false);
                }
            }
        }
    }

    /// The probability that two clients share a round.
    pub(super) fn beta(&self) -> f64 {
        let (together, all) = self.meetings;
        let estimated = if all > 0.0 { together / all } else { 0.0 };
        self.settings.beta.map_or(estimated, Probability::get)
    }

    /// The threshold for clients of the first round.
    pub(super) fn theta(&self) -> f64 {
        self.theta
    }

    /// The mean number of candidates of a client.
    pub(super) fn mean_candidates(&self, known: &PairStatistics) -> f64 {
        let (mut total, mut n) = (0, 0);
        for slot in known.taken() {
            total += self.candidates[slot].count();
            n += 1;
        }
        total as f64 / f64::from(n.max(1))
    }
}

/// For each compared candidate of a slot, its lag behind the best one and the number of shared rounds.
fn lags(known: &PairStatistics, of: usize, candidates: &Bits) -> Vec<(usize, f64, u32)> {
    let met: Vec<_> =
        candidates.iter().filter_map(|slot| Some((slot, known.similarity(of, slot)?))).collect();
    let best = met.iter().map(|(_, similarity)| similarity.mean).fold(f64::NEG_INFINITY, f64::max);
    met.into_iter()
        .map(|(slot, similarity)| (slot, best - similarity.mean, similarity.n_shared_rounds))
        .collect()
}

impl State for Races {
    fn save(&self, to: &mut Saver) {
        to.u64("slots", self.candidates.len() as u64);
        for bits in &self.candidates {
            to.u64s("candidates", bits.words());
        }
        to.f64s("meetings", &[self.meetings.0, self.meetings.1]);
        to.f64("theta", self.theta);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        let n_slots = from.u64("slots")? as usize;
        self.candidates.clear();
        for _ in 0..n_slots {
            self.candidates.push(Bits::from_words(from.u64s("candidates")?, n_slots));
        }
        let meetings = from.f64s("meetings")?;
        let [together, all] = meetings[..] else { return Err(from.error("meetings", "must be two numbers")) };
        self.meetings = (together, all);
        self.theta = from.f64("theta")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::ClientId;

    use super::*;

    fn settings(theta: ThresholdForm, factor: f64) -> Settings {
        let beta = Probability::new(0.5);
        Settings {
            theta,
            factor: Positive::new(factor).unwrap(),
            p: one_percent(),
            beta,
            delta_f: small(),
            b_max: three(),
        }
    }

    #[test]
    fn thresholds_are_those_of_the_table() {
        for (t, expected) in [
            (1, [8.6362, 4.3181, 6.1097, 3.0598]),
            (10, [2.7379, 1.3689, 1.9389, 0.9744]),
            (50, [1.2299, 0.6150, 0.8726, 0.4413]),
            (100, [0.8726, 0.4363, 0.6200, 0.3150]),
            (250, [0.5556, 0.2778, 0.3958, 0.2029]),
            (500, [0.3958, 0.1979, 0.2828, 0.1464]),
        ] {
            let forms = [
                (ThresholdForm::Paper, 1.0),
                (ThresholdForm::Paper, 0.5),
                (ThresholdForm::OfficialCode, 1.0),
                (ThresholdForm::OfficialCode, 0.5),
            ];
            for ((form, factor), expected) in forms.into_iter().zip(expected) {
                let found = settings(form, factor).theta(20, 500, 0.5 * f64::from(t));
                assert!(
                    (found - expected).abs() < 5.1e-5,
                    "{form:?} {factor} at {t}: {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn nothing_can_be_dropped_while_the_threshold_is_above_one() {
        for (form, factor, last) in [
            (ThresholdForm::Paper, 1.0, 75),
            (ThresholdForm::OfficialCode, 1.0, 37),
            (ThresholdForm::OfficialCode, 0.5, 9),
            (ThresholdForm::Paper, 0.5, 18),
        ] {
            let theta = |t: u32| settings(form, factor).theta(20, 500, 0.5 * f64::from(t));
            assert!(theta(last) > 1.0 && theta(last + 1) <= 1.0, "{form:?} {factor}");
        }
    }

    /// Clients of which only the first two are similar; all shared every round up to `n_rounds`.
    fn raced(n_rounds: u32) -> (Races, PairStatistics) {
        let mut known = PairStatistics::default();
        let mut races = Races::new(settings(ThresholdForm::Paper, 0.5), 4, n_rounds);
        for idx in 0..4 {
            let (slot, _) = known.admit(ClientId::new(idx), 0);
            races.admit(slot, &known);
        }
        for number in 0..n_rounds {
            for high in 1..4 {
                for low in 0..high {
                    known.record(low, high, if high == 1 { 0.95 } else { 0.1 }, number, None);
                }
            }
            races.run(&known, number, 4, 4);
        }
        (races, known)
    }

    /// Whether a slot may still be the friend of another.
    fn may_be(races: &Races, of: usize, slot: usize) -> bool {
        races.candidates(of).any(|candidate| candidate == slot)
    }

    #[test]
    fn lagging_candidates_are_dropped_and_the_best_never_is() {
        let (races, known) = raced(60);
        assert!(may_be(&races, 0, 1) && may_be(&races, 1, 0));
        assert!(!may_be(&races, 0, 2) && !may_be(&races, 0, 3) && !may_be(&races, 1, 2));
        // To client 2 all are equally dissimilar: none lags.
        assert_eq!(races.candidates(2).count(), 3);
        assert_eq!(races.mean_candidates(&known), 8.0 / 4.0);
    }

    #[test]
    fn a_threshold_of_zero_leaves_the_best() {
        let (_, known) = raced(3);
        let nothing = Settings {
            b_max: Positive::new(1e-9).unwrap(),
            delta_f: NonNegative::new(0.0).unwrap(),
            ..settings(ThresholdForm::Paper, 1.0)
        };
        assert_eq!(nothing.theta(4, 3, 1.5), 0.0);
        let mut races = Races::new(nothing, 4, 3);
        known.taken().for_each(|slot| races.admit(slot, &known));
        races.run(&known, 2, 4, 4);
        assert_eq!(races.candidates(0).collect::<Vec<_>>(), [1]);
        assert!(known.taken().all(|slot| races.candidates(slot).count() > 0));
    }

    #[test]
    fn a_client_that_loses_its_last_candidate_starts_again_with_all() {
        let (mut races, mut known) = raced(60);
        let gone = known.keep_only(|client| client.idx() != 1);
        races.remove(&gone, &known);
        assert_eq!(races.candidates(0).collect::<Vec<_>>(), [2, 3]);
        let (slot, _) = known.admit(ClientId::new(9), 60);
        races.admit(slot, &known);
        assert!(
            may_be(&races, slot, 3) && may_be(&races, 3, slot),
            "a newcomer may be every client's friend"
        );
    }

    #[test]
    fn the_probability_of_shared_rounds_is_estimated_from_updates() {
        let mut races = Races::new(Settings { beta: None, ..settings(ThresholdForm::Paper, 1.0) }, 20, 500);
        let known = PairStatistics::default();
        (0..10).for_each(|number| races.run(&known, number, 10, 20));
        assert!((races.beta() - 90.0 / 380.0).abs() < 1e-12);
    }
}
