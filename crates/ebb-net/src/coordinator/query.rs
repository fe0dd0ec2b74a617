//! Questions that are answered by a few numbers: the loss at a model, and how good it is on held-out data.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use ebb_round::{ClientId, Job, Parcel, ProbeResult, RoundNo};

use super::{Coordinator, Effect, PackedModel, ServerMessage};
use crate::{convert, wire};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Query<'q> {
    /// The loss at the job's model over so many samples, or all, and how long the job would take.
    Probe(&'q Job, Option<NonZeroU32>),
    /// How good the model of a round is on data that is kept for that.
    Evaluate(RoundNo, &'q Parcel),
}

/// What clients said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueryResults {
    pub(crate) probed: BTreeMap<ClientId, ProbeResult>,
    pub(crate) evaluated: BTreeMap<ClientId, (f64, f64, Option<f64>)>,
    /// Payload that was fetched for it.
    pub(crate) bytes_down: u64,
}

/// A question that is open.
#[derive(Debug)]
pub(super) struct OpenQuery {
    round: RoundNo,
    is_evaluation: bool,
    message: ServerMessage,
    /// Whom it is for.
    recipients: BTreeSet<ClientId>,
    /// Who has it and has not said anything.
    awaiting: BTreeSet<ClientId>,
    /// What a client says of a model counts for no more samples than this.
    max_samples: u32,
    results: QueryResults,
}

impl Coordinator {
    /// Asks these clients: those that are connected, have nothing else to do and can say; the others when they come.
    pub(crate) fn begin_query(
        &mut self,
        clients: &[ClientId],
        question: Query<'_>,
        offer: &PackedModel,
        now_s: f64,
    ) {
        let (round, evaluates) = match question {
            Query::Probe(job, _) => (job.round, false),
            Query::Evaluate(round, _) => (round, true),
        };
        let global = Some(self.publish_model(round, offer));
        let say = match question {
            Query::Probe(job, samples) => {
                let (samples, work) = (samples.map(NonZeroU32::get), Some(convert::to_wire_work(job.work)));
                ServerMessage::Probe(wire::Probe { round, global, samples, work })
            }
            Query::Evaluate(..) => ServerMessage::Evaluate(wire::Evaluate { round, global }),
        };
        let (wanted, asked) = (clients.iter().copied().collect(), BTreeSet::new());
        self.last_query = Some((round, evaluates, now_s + self.rules.deadline_s));
        let (most_samples, found) = (self.max_credited_samples(), QueryResults::default());
        self.query = Some(OpenQuery {
            round,
            is_evaluation: evaluates,
            message: say,
            recipients: wanted,
            awaiting: asked,
            max_samples: most_samples,
            results: found,
        });
        clients.iter().for_each(|&client| self.send_query(client));
    }

    /// Asks a client that has come, if there is a question for it.
    pub(super) fn send_query(&mut self, client: ClientId) {
        let Some(survey) = &mut self.query else { return };
        let Some(line) = self.by_client.get(&client) else { return };
        let session = &self.sessions[line];
        let can =
            if survey.is_evaluation { session.capabilities.evaluate } else { session.capabilities.probe };
        // Whoever trains would be slowed by a question.
        let free = session.ready && !self.in_flight.contains_key(&client);
        if can && free && survey.recipients.contains(&client) && !survey.has_replied(client) {
            survey.awaiting.insert(client);
            self.effects.push(Effect::Send(*line, survey.message.clone()));
        }
    }

    /// Whether everybody who was asked has said something or is gone; for a while after a restart, those that were there before
    /// are waited for.
    pub(crate) fn is_query_answered(&self, now_s: f64) -> bool {
        let Some(survey) = &self.query else { return true };
        let is_there = |client: &ClientId| self.is_ready(*client);
        // Where nobody else has anything to say, those that let the last question pass are hoped for.
        let mute = |client: &ClientId| self.unresponsive.contains(client) && !survey.results.is_empty();
        let asked = survey.awaiting.iter().all(|client| !is_there(client) || mute(client));
        let expected =
            || survey.recipients.iter().any(|&client| !is_there(&client) && !survey.has_replied(client));
        asked && (now_s >= self.reconnect_until_s || !expected())
    }

    /// Ends the question. Who let it pass is asked again, but not waited for until it answers one in time.
    pub(crate) fn end_query(&mut self) -> QueryResults {
        let survey = self.query.take();
        let asked = survey.iter().flat_map(|survey| &survey.awaiting).copied();
        let mute: Vec<_> = asked.filter(|client| self.is_ready(*client)).collect();
        self.unresponsive.extend(mute);
        let found = survey.map(|survey| survey.results).unwrap_or_default();
        QueryResults { bytes_down: std::mem::take(&mut self.fetched_bytes), ..found }
    }

    /// Whether a client is connected and can take jobs.
    fn is_ready(&self, client: ClientId) -> bool {
        self.by_client.get(&client).is_some_and(|line| self.sessions[line].ready)
    }

    /// A client answered a question, be it that nobody waited for it any more: if it was within the deadline, the next time they do.
    fn note_timely_reply(&mut self, client: ClientId, round: RoundNo, evaluates: bool, now_s: f64) {
        let in_time = |&(of, what, until_s): &(RoundNo, bool, f64)| {
            (of, what) == (round, evaluates) && now_s <= until_s
        };
        if self.last_query.as_ref().is_some_and(in_time) {
            self.unresponsive.remove(&client);
        }
    }

    pub(super) fn receive_probe_result(&mut self, client: ClientId, said: &wire::Measured, now_s: f64) {
        self.note_timely_reply(client, said.round, false, now_s);
        let sensible = [said.train_s, said.upload_s].iter().all(|value| value.is_finite() && *value >= 0.0);
        let measured = ProbeResult { loss: said.loss, train_s: said.train_s, upload_s: said.upload_s };
        match self.query.as_mut().filter(|one| one.is_awaiting(client, said.round, false)) {
            Some(survey) if sensible && said.loss.is_finite() => {
                survey.awaiting.remove(&client);
                survey.results.probed.insert(client, measured);
                self.has_changed = true;
            }
            Some(survey) => {
                survey.fail(client, said.round);
                self.has_changed = true;
                self.refuse("not-finite", Some(client), "what it measured is no number");
            }
            // Too late: nobody waits for it any more.
            None => {}
        }
    }

    pub(super) fn receive_evaluation(&mut self, client: ClientId, said: &wire::Evaluated, now_s: f64) {
        let wire::Evaluated { round, samples, loss, hits } = *said;
        self.note_timely_reply(client, round, true, now_s);
        let sensible = |value: f64| value.is_finite() && value >= 0.0;
        // Nobody has more of a say than by what it said that it trains on, nor a mean loss that is no number: sums stay numbers too.
        let stated = self.members.get(client).and_then(|member| member.samples).unwrap_or(0);
        let bound = self.query.as_ref().map_or(u32::MAX, |survey| survey.max_samples);
        let most = f64::from(stated.min(bound));
        let part = if samples > most { most / samples } else { 1.0 };
        let all_sensible = sensible(samples)
            && loss.abs() <= samples * f64::from(f32::MAX)
            && hits.is_none_or(|hits| sensible(hits) && hits <= samples);
        match self.query.as_mut().filter(|one| one.is_awaiting(client, round, true)) {
            Some(survey) if all_sensible => {
                survey.awaiting.remove(&client);
                survey
                    .results
                    .evaluated
                    .insert(client, (samples * part, loss * part, hits.map(|hits| hits * part)));
                self.has_changed = true;
            }
            Some(survey) => {
                survey.fail(client, round);
                self.has_changed = true;
                self.refuse("not-finite", Some(client), "what it judged makes no sense");
            }
            None => {}
        }
    }
}

impl QueryResults {
    fn is_empty(&self) -> bool {
        self.probed.is_empty() && self.evaluated.is_empty()
    }
}

impl OpenQuery {
    fn is_awaiting(&self, client: ClientId, round: RoundNo, evaluates: bool) -> bool {
        self.round == round && self.is_evaluation == evaluates && self.awaiting.contains(&client)
    }

    fn has_replied(&self, client: ClientId) -> bool {
        self.results.probed.contains_key(&client) || self.results.evaluated.contains_key(&client)
    }

    /// A client has lost the question.
    pub(super) fn resend_later(&mut self, client: ClientId) {
        self.awaiting.remove(&client);
    }

    /// A client cannot say; returns whether it was asked.
    pub(super) fn fail(&mut self, client: ClientId, round: RoundNo) -> bool {
        let was_asked = self.round == round && self.awaiting.remove(&client);
        if was_asked {
            self.recipients.remove(&client);
        }
        was_asked
    }
}
