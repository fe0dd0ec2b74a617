//! Questions that are answered by a few numbers: the loss at a model, and how good it is on held-out data.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use ebb_round::{ClientId, Job, Parcel, ProbeResult, RoundNo};

use super::{Desk, Effect, Offer, Say};
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
    pub(crate) measured: BTreeMap<ClientId, ProbeResult>,
    pub(crate) evaluated: BTreeMap<ClientId, (f64, f64, Option<f64>)>,
    /// Payload that was fetched for it.
    pub(crate) bytes_down: u64,
}

/// A question that is open.
#[derive(Debug)]
pub(super) struct Survey {
    round: RoundNo,
    evaluates: bool,
    say: Say,
    /// Whom it is for.
    wanted: BTreeSet<ClientId>,
    /// Who has it and has not said anything.
    asked: BTreeSet<ClientId>,
    /// What a client says of a model counts for no more samples than this.
    most_samples: u32,
    found: Found,
}

impl Desk {
    /// Asks these clients: those that are connected, have nothing else to do and can say; the others when they come.
    pub(crate) fn ask(&mut self, clients: &[ClientId], question: Question<'_>, offer: &Offer, now_s: f64) {
        let (round, evaluates) = match question {
            Question::Probe(job, _) => (job.round, false),
            Question::Evaluate(round, _) => (round, true),
        };
        let global = Some(self.put_up(round, offer));
        let say = match question {
            Question::Probe(job, samples) => {
                let (samples, work) = (samples.map(NonZeroU32::get), Some(convert::say_work(job.work)));
                Say::Probe(wire::Probe { round, global, samples, work })
            }
            Question::Evaluate(..) => Say::Evaluate(wire::Evaluate { round, global }),
        };
        let (wanted, asked) = (clients.iter().copied().collect(), BTreeSet::new());
        self.last_question = Some((round, evaluates, now_s + self.rules.deadline_s));
        let (most_samples, found) = (self.most_believed(), Found::default());
        self.survey = Some(Survey { round, evaluates, say, wanted, asked, most_samples, found });
        clients.iter().for_each(|&client| self.ask_again(client));
    }

    /// Asks a client that has come, if there is a question for it.
    pub(super) fn ask_again(&mut self, client: ClientId) {
        let Some(survey) = &mut self.survey else { return };
        let Some(line) = self.by_client.get(&client) else { return };
        let session = &self.sessions[line];
        let can = if survey.evaluates { session.abilities.evaluate } else { session.abilities.probe };
        // Whoever trains would be slowed by a question.
        let free = session.ready && !self.hands.contains_key(&client);
        if can && free && survey.wanted.contains(&client) && !survey.has_said(client) {
            survey.asked.insert(client);
            self.effects.push(Effect::Say(*line, survey.say.clone()));
        }
    }

    /// Whether everybody who was asked has said something or is gone; for a while after a restart, those that were there before
    /// are waited for.
    pub(crate) fn all_said(&self, now_s: f64) -> bool {
        let Some(survey) = &self.survey else { return true };
        let is_there = |client: &ClientId| self.is_ready(*client);
        // Where nobody else has anything to say, those that let the last question pass are hoped for.
        let mute = |client: &ClientId| self.mute.contains(client) && !survey.found.is_empty();
        let asked = survey.asked.iter().all(|client| !is_there(client) || mute(client));
        let expected = || survey.wanted.iter().any(|&client| !is_there(&client) && !survey.has_said(client));
        asked && (now_s >= self.back_by_s || !expected())
    }

    /// Ends the question. Who let it pass is asked again, but not waited for until it answers one in time.
    pub(crate) fn found(&mut self) -> Found {
        let survey = self.survey.take();
        let asked = survey.iter().flat_map(|survey| &survey.asked).copied();
        let mute: Vec<_> = asked.filter(|client| self.is_ready(*client)).collect();
        self.mute.extend(mute);
        let found = survey.map(|survey| survey.found).unwrap_or_default();
        Found { bytes_down: std::mem::take(&mut self.fetched), ..found }
    }

    /// Whether a client is connected and can take jobs.
    fn is_ready(&self, client: ClientId) -> bool {
        self.by_client.get(&client).is_some_and(|line| self.sessions[line].ready)
    }

    /// A client answered a question, be it that nobody waited for it any more: if it was within the deadline, the next time they do.
    fn spoke(&mut self, client: ClientId, round: RoundNo, evaluates: bool, now_s: f64) {
        let in_time = |&(of, what, until_s): &(RoundNo, bool, f64)| {
            (of, what) == (round, evaluates) && now_s <= until_s
        };
        if self.last_question.as_ref().is_some_and(in_time) {
            self.mute.remove(&client);
        }
    }

    pub(super) fn measured(&mut self, client: ClientId, said: &wire::Measured, now_s: f64) {
        self.spoke(client, said.round, false, now_s);
        let sensible = [said.train_s, said.upload_s].iter().all(|value| value.is_finite() && *value >= 0.0);
        let measured = ProbeResult { loss: said.loss, train_s: said.train_s, upload_s: said.upload_s };
        match self.survey.as_mut().filter(|one| one.asked(client, said.round, false)) {
            Some(survey) if sensible && said.loss.is_finite() => {
                survey.asked.remove(&client);
                survey.found.measured.insert(client, measured);
                self.stirred = true;
            }
            Some(survey) => {
                survey.fail(client, said.round);
                self.stirred = true;
                self.refuse("not-finite", Some(client), "what it measured is no number");
            }
            // Too late: nobody waits for it any more.
            None => {}
        }
    }

    pub(super) fn evaluated(&mut self, client: ClientId, said: &wire::Evaluated, now_s: f64) {
        let wire::Evaluated { round, samples, loss, hits } = *said;
        self.spoke(client, round, true, now_s);
        let sensible = |value: f64| value.is_finite() && value >= 0.0;
        // Nobody has more of a say than by what it said that it trains on, nor a mean loss that is no number: sums stay numbers too.
        let stated = self.members.get(client).and_then(|member| member.samples).unwrap_or(0);
        let bound = self.survey.as_ref().map_or(u32::MAX, |survey| survey.most_samples);
        let most = f64::from(stated.min(bound));
        let part = if samples > most { most / samples } else { 1.0 };
        let all_sensible = sensible(samples)
            && loss.abs() <= samples * f64::from(f32::MAX)
            && hits.is_none_or(|hits| sensible(hits) && hits <= samples);
        match self.survey.as_mut().filter(|one| one.asked(client, round, true)) {
            Some(survey) if all_sensible => {
                survey.asked.remove(&client);
                survey
                    .found
                    .evaluated
                    .insert(client, (samples * part, loss * part, hits.map(|hits| hits * part)));
                self.stirred = true;
            }
            Some(survey) => {
                survey.fail(client, round);
                self.stirred = true;
                self.refuse("not-finite", Some(client), "what it judged makes no sense");
            }
            None => {}
        }
    }
}

impl Found {
    fn is_empty(&self) -> bool {
        self.measured.is_empty() && self.evaluated.is_empty()
    }
}

impl Survey {
    fn asked(&self, client: ClientId, round: RoundNo, evaluates: bool) -> bool {
        self.round == round && self.evaluates == evaluates && self.asked.contains(&client)
    }

    fn has_said(&self, client: ClientId) -> bool {
        self.found.measured.contains_key(&client) || self.found.evaluated.contains_key(&client)
    }

    /// A client has lost the question.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.asked.remove(&client);
    }

    /// A client cannot say; returns whether it was asked.
    pub(super) fn fail(&mut self, client: ClientId, round: RoundNo) -> bool {
        let was_asked = self.round == round && self.asked.remove(&client);
        if was_asked {
            self.wanted.remove(&client);
        }
        was_asked
    }
}
