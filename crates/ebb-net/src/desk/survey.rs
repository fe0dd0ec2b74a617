//! Questions that are answered by a few numbers: the loss at a model, and how good it is on held-out data.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use ebb_round::{ClientId, Job, Measured, Parcel, RoundNo};

use super::{Desk, Effect, Say};
use crate::{convert, wire};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Question<'q> {
    /// The loss at the job's model over so many samples, or all, and how long the job would take.
    Probe(&'q Job, Option<NonZeroU32>),
    /// How good the model of a round is on data that is kept for that.
    Evaluate(RoundNo, &'q Parcel),
}

/// What clients said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    pub(crate) measured: BTreeMap<ClientId, Measured>,
    pub(crate) evaluated: BTreeMap<ClientId, (f64, f64, Option<f64>)>,
    /// Payload that was fetched for it.
    pub(crate) bytes_down: u64,
}

/// A question that is open.
#[derive(Debug)]
pub(super) struct Survey {
    round: RoundNo,
    evaluates: bool,
    asked: BTreeSet<ClientId>,
    found: Found,
}

impl Desk {
    /// Asks those of these clients that are connected, have nothing else to do and can say.
    pub(crate) fn ask(&mut self, clients: &[ClientId], question: Question<'_>) {
        let (round, evaluates, parcel) = match question {
            Question::Probe(job, _) => (job.round, false, job.global.as_ref()),
            Question::Evaluate(round, parcel) => (round, true, parcel),
        };
        let global = Some(self.offer(round, parcel));
        let mut asked = BTreeSet::new();
        for &client in clients {
            let Some(line) = self.by_client.get(&client) else { continue };
            let session = &self.sessions[line];
            let can = if evaluates { session.abilities.evaluate } else { session.abilities.probe };
            // Whoever trains says so when it is asked to train, and would be slowed by a question.
            if !session.ready || session.in_hand.is_some() || !can {
                continue;
            }
            let say = match question {
                Question::Probe(job, samples) => {
                    let (amount, batch) = convert::probe_work(job.work);
                    let samples = samples.map(NonZeroU32::get);
                    Say::Probe(wire::Probe {
                        round,
                        global: global.clone(),
                        samples,
                        batch,
                        amount: Some(amount),
                    })
                }
                Question::Evaluate(..) => Say::Evaluate(wire::Evaluate { round, global: global.clone() }),
            };
            self.effects.push(Effect::Say(*line, say));
            asked.insert(client);
        }
        self.survey = Some(Survey { round, evaluates, asked, found: Found::default() });
    }

    /// Whether everybody who was asked has said something or is gone.
    pub(crate) fn all_said(&self) -> bool {
        let Some(survey) = &self.survey else { return true };
        let said = |client: &ClientId| {
            let Found { measured, evaluated, .. } = &survey.found;
            measured.contains_key(client) || evaluated.contains_key(client)
        };
        survey.asked.iter().all(|client| said(client) || !self.by_client.contains_key(client))
    }

    /// Ends the question.
    pub(crate) fn found(&mut self) -> Found {
        let found = self.survey.take().map(|survey| survey.found).unwrap_or_default();
        Found { bytes_down: std::mem::take(&mut self.fetched), ..found }
    }

    pub(super) fn measured(&mut self, client: ClientId, said: &wire::Measured) {
        let sensible = [said.train_s, said.upload_s].iter().all(|value| value.is_finite() && *value >= 0.0);
        let measured = Measured { loss: said.loss, train_s: said.train_s, upload_s: said.upload_s };
        match self.survey.as_mut().filter(|one| one.asked(client, said.round, false)) {
            Some(survey) if sensible && said.loss.is_finite() => {
                survey.found.measured.insert(client, measured);
            }
            Some(survey) => {
                survey.asked.remove(&client);
                self.refuse("not-finite", Some(client), "what it measured is no number");
            }
            // Too late: nobody waits for it any more.
            None => {}
        }
    }

    pub(super) fn evaluated(&mut self, client: ClientId, said: &wire::Evaluated) {
        let wire::Evaluated { round, samples, loss, hits } = *said;
        let sensible = |value: f64| value.is_finite() && value >= 0.0;
        let all_sensible = sensible(samples)
            && loss.is_finite()
            && hits.is_none_or(|hits| sensible(hits) && hits <= samples);
        match self.survey.as_mut().filter(|one| one.asked(client, round, true)) {
            Some(survey) if all_sensible => {
                survey.found.evaluated.insert(client, (samples, loss, hits));
            }
            Some(survey) => {
                survey.asked.remove(&client);
                self.refuse("not-finite", Some(client), "what it judged makes no sense");
            }
            None => {}
        }
    }
}

impl Survey {
    fn asked(&self, client: ClientId, round: RoundNo, evaluates: bool) -> bool {
        self.round == round && self.evaluates == evaluates && self.asked.contains(&client)
    }
}
