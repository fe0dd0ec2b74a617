//! Queries that clients answer with a few numbers: the loss at a model, or its score on held-out data.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use ebb_round::{ClientId, Job, Parcel, ProbeResult, RoundNo};

use super::{Coordinator, Effect, PackedModel, ServerMessage};
use crate::{convert, wire};

/// A query.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Query<'q> {
    /// The loss at the job's model over N samples or all, and how long the job would take.
    Probe(&'q Job, Option<NonZeroU32>),
    /// The score of a round's model on the client's held-out data.
    Evaluate(RoundNo, &'q Parcel),
}

/// The replies of clients.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueryResults {
    pub(crate) probed: BTreeMap<ClientId, ProbeResult>,
    pub(crate) evaluated: BTreeMap<ClientId, (f64, f64, Option<f64>)>,
    /// Payload that was downloaded for it.
    pub(crate) bytes_down: u64,
}

/// The open query.
#[derive(Debug)]
pub(super) struct OpenQuery {
    round: RoundNo,
    is_evaluation: bool,
    message: ServerMessage,
    /// The clients that it is for.
    recipients: BTreeSet<ClientId>,
    /// The clients that received it and did not reply.
    awaiting: BTreeSet<ClientId>,
    /// The largest number of samples that a client's evaluation counts for.
    max_samples: u32,
    results: QueryResults,
}

impl Coordinator {
    /// Sends a query to those clients that are connected, free and capable. The others receive it when they
    /// connect.
    pub(crate) fn begin_query(
        &mut self,
        clients: &[ClientId],
        query: Query<'_>,
        packed_model: &PackedModel,
        now_s: f64,
    ) {
        let (round, evaluates) = match query {
            Query::Probe(job, _) => (job.round, false),
            Query::Evaluate(round, _) => (round, true),
        };
        let global = Some(self.publish_model(round, packed_model));
        let message = match query {
            Query::Probe(job, samples) => {
                let (samples, work) = (samples.map(NonZeroU32::get), Some(convert::to_wire_work(job.work)));
                ServerMessage::Probe(wire::Probe { round, global, samples, work })
            }
            Query::Evaluate(..) => ServerMessage::Evaluate(wire::Evaluate { round, global }),
        };
        let (recipients, awaiting) = (clients.iter().copied().collect(), BTreeSet::new());
        self.last_query = Some((round, evaluates, now_s + self.rules.deadline_s));
        let (most_samples, results) = (self.max_credited_samples(), QueryResults::default());
        self.query = Some(OpenQuery {
            round,
            is_evaluation: evaluates,
            message,
            recipients,
            awaiting,
            max_samples: most_samples,
            results,
        });
        clients.iter().for_each(|&client| self.send_query(client));
    }

    /// Sends the query to a client that connected, if it is for that client.
    pub(super) fn send_query(&mut self, client: ClientId) {
        let Some(query) = &mut self.query else { return };
        let Some(connection) = self.by_client.get(&client) else { return };
        let session = &self.sessions[connection];
        let is_capable =
            if query.is_evaluation { session.capabilities.evaluate } else { session.capabilities.probe };
        // A query would slow down a client that trains.
        let free = session.ready && !self.in_flight.contains_key(&client);
        if is_capable && free && query.recipients.contains(&client) && !query.has_replied(client) {
            query.awaiting.insert(client);
            self.effects.push(Effect::Send(*connection, query.message.clone()));
        }
    }

    /// Whether every client that received the query replied or disconnected. For a while after a restart,
    /// clients that were connected before it are waited for.
    pub(crate) fn is_query_answered(&self, now_s: f64) -> bool {
        let Some(query) = &self.query else { return true };
        let is_there = |client: &ClientId| self.is_ready(*client);
        // As long as there is no reply at all, unresponsive clients are waited for, too.
        let unresponsive =
            |client: &ClientId| self.unresponsive.contains(client) && !query.results.is_empty();
        let awaiting = query.awaiting.iter().all(|client| !is_there(client) || unresponsive(client));
        let expected =
            || query.recipients.iter().any(|&client| !is_there(&client) && !query.has_replied(client));
        awaiting && (now_s >= self.reconnect_until_s || !expected())
    }

    /// Ends the query. Clients that did not reply become unresponsive: they receive later queries, but are
    /// not waited for until they reply in time.
    pub(crate) fn end_query(&mut self) -> QueryResults {
        let query = self.query.take();
        let awaiting = query.iter().flat_map(|query| &query.awaiting).copied();
        let unresponsive: Vec<_> = awaiting.filter(|client| self.is_ready(*client)).collect();
        self.unresponsive.extend(unresponsive);
        let results = query.map(|query| query.results).unwrap_or_default();
        QueryResults { bytes_down: std::mem::take(&mut self.fetched_bytes), ..results }
    }

    /// Whether a client is connected and can take jobs.
    fn is_ready(&self, client: ClientId) -> bool {
        self.by_client.get(&client).is_some_and(|connection| self.sessions[connection].ready)
    }

    /// A client replied, perhaps after the query ended. If that was within the deadline, it is no longer
    /// unresponsive.
    fn mark_timely_reply(&mut self, client: ClientId, round: RoundNo, evaluates: bool, now_s: f64) {
        let in_time = |&(of, what, until_s): &(RoundNo, bool, f64)| {
            (of, what) == (round, evaluates) && now_s <= until_s
        };
        if self.last_query.as_ref().is_some_and(in_time) {
            self.unresponsive.remove(&client);
        }
    }

    pub(super) fn receive_probe_result(&mut self, client: ClientId, message: &wire::Measured, now_s: f64) {
        self.mark_timely_reply(client, message.round, false, now_s);
        let sensible =
            [message.train_s, message.upload_s].iter().all(|value| value.is_finite() && *value >= 0.0);
        let probed = ProbeResult { loss: message.loss, train_s: message.train_s, upload_s: message.upload_s };
        match self.query.as_mut().filter(|one| one.is_awaiting(client, message.round, false)) {
            Some(query) if sensible && message.loss.is_finite() => {
                query.awaiting.remove(&client);
                query.results.probed.insert(client, probed);
                self.has_changed = true;
            }
            Some(query) => {
                query.fail(client, message.round);
                self.has_changed = true;
                self.refuse("not-finite", Some(client), "its probe result is not a finite number");
            }
            // The query has ended.
            None => {}
        }
    }

    pub(super) fn receive_evaluation(&mut self, client: ClientId, message: &wire::Evaluated, now_s: f64) {
        let wire::Evaluated { round, samples, loss, hits } = *message;
        self.mark_timely_reply(client, round, true, now_s);
        let sensible = |value: f64| value.is_finite() && value >= 0.0;
        // A client's evaluation counts for no more samples than it reported. Its loss is bounded, so that
        // sums stay finite.
        let reported = self.members.get(client).and_then(|member| member.samples).unwrap_or(0);
        let bound = self.query.as_ref().map_or(u32::MAX, |query| query.max_samples);
        let most = f64::from(reported.min(bound));
        let scale = if samples > most { most / samples } else { 1.0 };
        let all_sensible = sensible(samples)
            && loss.abs() <= samples * f64::from(f32::MAX)
            && hits.is_none_or(|hits| sensible(hits) && hits <= samples);
        match self.query.as_mut().filter(|one| one.is_awaiting(client, round, true)) {
            Some(query) if all_sensible => {
                query.awaiting.remove(&client);
                query
                    .results
                    .evaluated
                    .insert(client, (samples * scale, loss * scale, hits.map(|hits| hits * scale)));
                self.has_changed = true;
            }
            Some(query) => {
                query.fail(client, round);
                self.has_changed = true;
                self.refuse("not-finite", Some(client), "its evaluation is out of range");
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

    /// A client lost the query.
    pub(super) fn resend_later(&mut self, client: ClientId) {
        self.awaiting.remove(&client);
    }

    /// A client cannot reply. Returns whether it was asked.
    pub(super) fn fail(&mut self, client: ClientId, round: RoundNo) -> bool {
        let was_asked = self.round == round && self.awaiting.remove(&client);
        if was_asked {
            self.recipients.remove(&client);
        }
        was_asked
    }
}
