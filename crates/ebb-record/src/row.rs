//! One round as a line of `rounds.jsonl`: participation, outcomes and scores.

use std::collections::BTreeMap;

use ebb_round::{Census, ClientDecision, ClientId, Metrics, OracleError, Outcome, Refusal, Score, StandIn};

use crate::clients::{Bitset, MANY_CLIENTS, busy, id_ranges, list_or_bits, members, n_members, to_u32, up};
use crate::nan_as_null::{named_numbers, number, numbers, some_number, some_numbers};
use crate::old_names::metrics_by_current_name;

/// One round of the record.
///
/// Clients are given by number. A set of clients is a list under its own name. In large fleets it is a bitset
/// in base64, under that name with `_bits` added. The methods read both forms. Unknown values are omitted. A
/// number that JSON cannot represent is written as `null` and read as NaN.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Row {
    /// The number of the round, from 0.
    pub round: u32,
    /// The number of enrolled clients.
    pub n_enrolled: u32,
    /// Clients that arrived, as ranges of first and last number.
    pub joined: Vec<[u32; 2]>,
    /// Clients that departed, as ranges of first and last number.
    pub left: Vec<[u32; 2]>,
    /// The number of clients that are up.
    pub n_up: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    up: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    up_bits: Option<Bitset>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    busy: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    busy_bits: Option<Bitset>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_bits: Option<Bitset>,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_bits: Option<Bitset>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial_bits: Option<Bitset>,
    #[serde(skip_serializing_if = "Option::is_none")]
    absent: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    absent_bits: Option<Bitset>,
    /// Inclusion probability of the selected clients, if it is known and equal for all.
    #[serde(
        default,
        alias = "chance",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_number"
    )]
    pub inclusion_probability: Option<f64>,
    #[serde(alias = "chances", skip_serializing_if = "Option::is_none")]
    inclusion_probabilities: Option<Vec<Option<f64>>>,
    /// Whether the inclusion probabilities are approximate.
    #[serde(default, alias = "chances_approximate", skip_serializing_if = "std::ops::Not::not")]
    pub probabilities_approximate: bool,
    /// Local steps done by each client of `partial`, ascending by client.
    pub partial_steps: Vec<u32>,
    /// Response times in seconds of `whole` and `partial` together, ascending by client. NaN where unknown.
    /// Empty if all are unknown, and in fleets of more than 4096 clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub took_s: Vec<f64>,
    /// In a replay, the rule that imputed outcomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imputed_by: Option<String>,
    /// Selected clients with an imputed outcome.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imputed: Vec<u32>,
    /// Clients whose update to an earlier round arrived in this one.
    pub late: Vec<u32>,
    /// The round of each late update.
    pub late_base: Vec<u32>,
    /// Clients whose update was refused.
    pub refused: Vec<u32>,
    /// The reason of each refusal.
    pub refused_why: Vec<String>,
    /// The number of stand-ins for clients without an update on time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_stand_ins: u32,
    /// Absent clients with a stand-in from a single client. The lists up to `friend_last_met` have the same
    /// order. They are empty in fleets of more than 4096 clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_in_for: Vec<u32>,
    /// The client that computed each stand-in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_in_by: Vec<u32>,
    /// The staleness of each stand-in in rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_in_age: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    stand_in_part: Vec<f64>,
    /// The similarity of the two clients. Empty unless every stand-in was chosen by similarity.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub friend_similarity: Vec<f64>,
    /// The number of rounds in which both clients responded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub friend_met: Vec<u32>,
    /// The last round in which both responded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub friend_last_met: Vec<u32>,
    /// Absent clients with a stand-in that no single client computed: the mean of the updates, or a model of
    /// zeros.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_in_by_none: Vec<u32>,
    /// Decisions of the objective about single clients.
    #[serde(default, alias = "judged", skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<RecordedDecision>,
    /// Metrics of the substitution, the selector and the aggregator by name, and the oracle scores on sets of
    /// clients.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "metrics_by_current_name"
    )]
    pub notes: BTreeMap<String, f64>,
    /// The learning rate of local training.
    #[serde(alias = "rate", deserialize_with = "number")]
    pub learning_rate: f32,
    /// Mean training loss of the clients that responded in time.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub train_loss: Option<f32>,
    /// Mean training accuracy of those clients that reported one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub train_accuracy: Option<f32>,
    /// The norm of the aggregate.
    #[serde(deserialize_with = "number")]
    pub step_norm: f64,
    /// The reason of a void round, in which the model stays as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<String>,
    /// Loss on the test data.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub loss: Option<f64>,
    /// Accuracy on the test data.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub accuracy: Option<f64>,
    /// Mean over clients of the score on their own test data. Oracle, like the next three.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_client_mean: Option<f64>,
    /// Mean of that score over the tenth of the clients with the worst scores.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_client_worst_tenth: Option<f64>,
    /// Standard deviation of that score over clients.
    #[serde(
        default,
        alias = "oracle_client_deviation",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_number"
    )]
    pub oracle_client_std: Option<f64>,
    /// Deciles of that score, from the worst-served to the best-served client.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub oracle_client_deciles: Vec<f64>,
    /// Clients that were up and would not have responded in time if selected. `None` if unknown, and in
    /// fleets of more than 4096 clients. Oracle.
    #[serde(default, alias = "oracle_silent", skip_serializing_if = "Option::is_none")]
    pub oracle_absent_if_selected: Option<Vec<u32>>,
    /// Stand-ins from the absent client's true cluster. Oracle, like all keys up to `oracle_psi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oracle_hits: Option<u32>,
    /// Stand-ins from a single client whose cluster is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oracle_hits_of: Option<u32>,
    /// Squared error of the aggregate, compared with that of all clients.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_error2: Option<f64>,
    /// Largest squared difference between the updates of two clients.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_sigma_p2: Option<f64>,
    /// Largest squared difference between two clients of one true cluster.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_sigma_f2: Option<f64>,
    /// Upper bound of the error if only updates of this round stand in: `oracle_sigma_p2` times the square of
    /// the absent share.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_bound_p2: Option<f64>,
    /// Upper bound of the error if, in addition, every absent client has a stand-in of its cluster: the same
    /// product with `oracle_sigma_f2`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_bound_f2: Option<f64>,
    /// Mean of `oracle_error2` over the rounds so far.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_psi: Option<f64>,
    /// Test samples of each class, if evaluated by class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_samples: Vec<u32>,
    /// Accuracy on each class. NaN for a class without samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub class_accuracy: Vec<f64>,
    /// Each evaluated k of the top-k accuracy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_k: Vec<u32>,
    /// Fraction of samples whose label has one of the k highest scores, for each k.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub top_k_accuracy: Vec<f64>,
    /// Duration of the round in seconds: virtual time in simulation.
    #[serde(deserialize_with = "number")]
    pub elapsed_s: f64,
    /// Duration of all rounds so far in seconds.
    #[serde(deserialize_with = "number")]
    pub virtual_s: f64,
    /// Payload in bytes sent to clients in this round.
    pub bytes_down: u64,
    /// Payload in bytes received from clients in this round.
    pub bytes_up: u64,
    /// Payload in bytes of all rounds so far, in both directions.
    pub bytes_total: u64,
    /// The model after the round, if it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_numbers")]
    pub model: Option<Vec<f32>>,
}

/// A decision about one client.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RecordedDecision {
    /// The number of the client.
    pub client: u32,
    /// `kept` or `excluded` for a departure; `boosted` or `plain` for an arrival.
    #[serde(alias = "verdict")]
    pub decision: String,
    /// The metrics on which the decision is based, by name.
    #[serde(alias = "figures", deserialize_with = "named_numbers")]
    pub metrics: BTreeMap<String, f64>,
}

impl RecordedDecision {
    fn of(decision: &ClientDecision) -> RecordedDecision {
        RecordedDecision {
            client: decision.client.number(),
            decision: decision.decision.to_owned(),
            metrics: by_owned_name(&decision.metrics),
        }
    }
}

fn by_owned_name(metrics: &Metrics) -> BTreeMap<String, f64> {
    metrics.iter().map(|(name, metric)| ((*name).to_owned(), *metric)).collect()
}

/// Metrics of the roles, and scores on sets of clients.
fn metrics_of(metrics: &Metrics, score: Option<&Score>) -> BTreeMap<String, f64> {
    let mut all = by_owned_name(metrics);
    for (name, score) in score.map_or(&[][..], |score| &score.oracle_sets) {
        all.insert(format!("oracle_set_loss_{name}"), score.loss);
        all.extend(score.accuracy.map(|accuracy| (format!("oracle_set_accuracy_{name}"), accuracy)));
    }
    all
}

impl Row {
    /// The row of a finished round.
    pub fn new(census: &Census, outcome: &Outcome, model: Option<&[f32]>) -> Self {
        let returns = &outcome.responses;
        let n_clients = census.len();
        let (whole, partial): (Vec<_>, Vec<_>) =
            returns.fresh.iter().partition(|update| update.update.is_whole());
        let (up, up_bits) = up(census);
        let (busy, busy_bits) = busy(census);
        let set = |clients: &mut dyn ExactSizeIterator<Item = ClientId>| list_or_bits(clients, n_clients);
        let (selected, selected_bits) =
            set(&mut outcome.cohort.selected.iter().map(|selected| selected.client));
        let (whole, whole_bits) = set(&mut whole.iter().map(|update| update.client));
        let partial_steps = partial.iter().map(|update| update.update.steps.get()).collect();
        let (partial, partial_bits) = set(&mut partial.iter().map(|update| update.client));
        let (absent, absent_bits) = set(&mut returns.absent.iter().copied());
        let (probability, probabilities) = common_or_each(
            outcome.cohort.selected.iter().map(|selected| selected.inclusion_probability).collect(),
        );
        let score = outcome.score.as_ref();
        let oracle = score.and_then(|score| score.oracle_clients);
        let classes = score.map_or(&[][..], |score| &score.classes);
        let top_k = score.map_or(&[][..], |score| &score.top_k);
        let total_cost = outcome.total_cost;
        let stand_ins = StandIns::of(&outcome.stand_ins, n_clients);
        let oracle_error = outcome.oracle_error;
        let imputed = outcome.response_info.imputed.as_ref();
        let absent_if_selected = outcome.oracle_silent.as_ref().filter(|_| n_clients <= MANY_CLIENTS);
        let bound = |oracle_error: OracleError, apart2: f64| {
            oracle_error.absent_share * oracle_error.absent_share * apart2
        };
        Row {
            round: outcome.number,
            n_enrolled: to_u32(census.n_enrolled()),
            joined: id_ranges(&outcome.joined),
            left: id_ranges(&outcome.left),
            n_up: to_u32(census.up().count()),
            up,
            up_bits,
            busy,
            busy_bits,
            asked: selected,
            asked_bits: selected_bits,
            whole,
            whole_bits,
            partial,
            partial_bits,
            absent,
            absent_bits,
            inclusion_probability: probability,
            inclusion_probabilities: probabilities,
            probabilities_approximate: outcome.cohort.is_approximate,
            partial_steps,
            took_s: response_times_s(outcome, n_clients),
            imputed_by: imputed.map(|imputed| imputed.rule.to_owned()),
            imputed: imputed.map_or_else(Vec::new, |imputed| client_numbers(&imputed.clients)),
            late: returns.late.iter().map(|update| update.client.number()).collect(),
            late_base: returns.late.iter().map(|update| update.update.base_round).collect(),
            refused: returns.refused.iter().map(|refused| refused.client.number()).collect(),
            refused_why: returns.refused.iter().map(|refused| refused.reason.name().to_owned()).collect(),
            n_stand_ins: to_u32(outcome.stand_ins.len()),
            stand_in_for: stand_ins.for_client,
            stand_in_by: stand_ins.by_client,
            stand_in_age: stand_ins.age,
            stand_in_part: stand_ins.fraction,
            friend_similarity: stand_ins.similarity,
            friend_met: stand_ins.n_shared_rounds,
            friend_last_met: stand_ins.last_shared_round,
            stand_in_by_none: stand_ins.by_none,
            decisions: outcome.decisions.iter().map(RecordedDecision::of).collect(),
            notes: metrics_of(&outcome.metrics, score),
            learning_rate: outcome.learning_rate,
            train_loss: mean(returns.fresh.iter().map(|update| update.update.loss)),
            train_accuracy: mean(returns.fresh.iter().filter_map(|update| update.update.accuracy)),
            step_norm: outcome.step_norm,
            void: outcome.void.map(|why| why.name().to_owned()),
            loss: score.map(|score| score.loss),
            accuracy: score.and_then(|score| score.accuracy),
            oracle_client_mean: oracle.map(|spread| spread.mean),
            oracle_client_worst_tenth: oracle.map(|spread| spread.worst_tenth),
            oracle_client_std: oracle.map(|spread| spread.std),
            oracle_client_deciles: oracle.map_or_else(Vec::new, |spread| spread.deciles.to_vec()),
            oracle_hits: outcome.oracle_hits.map(|(hits, _)| hits),
            oracle_hits_of: outcome.oracle_hits.map(|(_, known)| known),
            oracle_absent_if_selected: absent_if_selected
                .map(|clients| clients.iter().map(|one| one.number()).collect()),
            oracle_error2: oracle_error.map(|oracle_error| oracle_error.error2),
            oracle_sigma_p2: oracle_error.map(|oracle_error| oracle_error.max_distance2),
            oracle_sigma_f2: oracle_error.and_then(|oracle_error| oracle_error.max_distance_in_cluster2),
            oracle_bound_p2: oracle_error.map(|oracle_error| bound(oracle_error, oracle_error.max_distance2)),
            oracle_bound_f2: oracle_error
                .and_then(|oracle_error| Some(bound(oracle_error, oracle_error.max_distance_in_cluster2?))),
            oracle_psi: oracle_error.map(|oracle_error| oracle_error.psi),
            class_samples: classes.iter().map(|class| class.samples).collect(),
            class_accuracy: classes
                .iter()
                .map(|class| f64::from(class.n_correct) / f64::from(class.samples))
                .collect(),
            top_k: top_k.iter().map(|(k, _)| *k).collect(),
            top_k_accuracy: top_k.iter().map(|(_, accuracy)| *accuracy).collect(),
            elapsed_s: outcome.cost.elapsed_s,
            virtual_s: total_cost.elapsed_s,
            bytes_down: outcome.cost.bytes_down,
            bytes_up: outcome.cost.bytes_up,
            bytes_total: total_cost.bytes_down + total_cost.bytes_up,
            model: model.map(<[f32]>::to_vec),
        }
    }

    /// Clients that are up, ascending.
    pub fn up(&self) -> Vec<u32> {
        members(&self.up, &self.up_bits)
    }

    /// Clients that were busy with an earlier round when this one began, up or not, ascending.
    pub fn busy(&self) -> Vec<u32> {
        members(&self.busy, &self.busy_bits)
    }

    /// Selected clients, ascending.
    pub fn selected(&self) -> Vec<u32> {
        members(&self.asked, &self.asked_bits)
    }

    /// Selected clients that returned all of the work in time, ascending.
    pub fn whole(&self) -> Vec<u32> {
        members(&self.whole, &self.whole_bits)
    }

    /// Selected clients that returned part of the work in time, ascending.
    pub fn partial(&self) -> Vec<u32> {
        members(&self.partial, &self.partial_bits)
    }

    /// Selected clients without a usable update in time, ascending.
    pub fn absent(&self) -> Vec<u32> {
        members(&self.absent, &self.absent_bits)
    }

    /// The number of selected clients.
    pub fn n_selected(&self) -> usize {
        n_members(&self.asked, &self.asked_bits)
    }

    /// Whether updates arrived, and none of them had finite numbers.
    pub fn has_no_finite_update(&self) -> bool {
        let not_finite = [Refusal::NotFinite, Refusal::Diverged].map(Refusal::name);
        let used = self.n_whole() + self.n_partial() + self.late.len();
        used == 0 && self.refused_why.iter().any(|why| not_finite.contains(&why.as_str()))
    }

    /// The number of clients that returned all of the work in time.
    pub fn n_whole(&self) -> usize {
        n_members(&self.whole, &self.whole_bits)
    }

    /// The number of clients that returned part of the work in time.
    pub fn n_partial(&self) -> usize {
        n_members(&self.partial, &self.partial_bits)
    }

    /// The number of selected clients without a usable update in time.
    pub fn n_absent(&self) -> usize {
        n_members(&self.absent, &self.absent_bits)
    }

    /// The inclusion probability of each selected client, where known.
    pub fn inclusion_probabilities(&self) -> Vec<Option<f64>> {
        match &self.inclusion_probabilities {
            Some(probabilities) => probabilities.clone(),
            None => vec![self.inclusion_probability; self.n_selected()],
        }
    }

    /// The fraction of the absent client's weight of each entry of `stand_in_for`. It is 1 for a single
    /// stand-in.
    pub fn stand_in_fractions(&self) -> Vec<f64> {
        if self.stand_in_part.is_empty() {
            vec![1.0; self.stand_in_for.len()]
        } else {
            self.stand_in_part.clone()
        }
    }

    /// Clients that responded in time, ascending, with their response times in seconds where known.
    pub fn on_time(&self) -> Vec<(u32, Option<f64>)> {
        let mut clients = [self.whole(), self.partial()].concat();
        clients.sort_unstable();
        let response_time_s = |at: usize| self.took_s.get(at).copied().filter(|took_s| took_s.is_finite());
        clients.into_iter().enumerate().map(|(at, client)| (client, response_time_s(at))).collect()
    }

    /// The same row with every set of clients as a list, in fleets of any size.
    pub(crate) fn with_lists(mut self) -> Row {
        if let Some(bits) = self.busy_bits.take() {
            self.busy = Some(members(&None, &Some(bits)));
        }
        for (list, bits) in [
            (&mut self.up, &mut self.up_bits),
            (&mut self.asked, &mut self.asked_bits),
            (&mut self.whole, &mut self.whole_bits),
            (&mut self.partial, &mut self.partial_bits),
            (&mut self.absent, &mut self.absent_bits),
        ] {
            *list = Some(members(list, &bits.take()));
        }
        self
    }

    /// Whether the model was evaluated after this round. The loss may be NaN.
    pub fn is_evaluated(&self) -> bool {
        self.loss.is_some()
    }

    /// Reads a line. The error distinguishes a truncated line from a row of another form.
    pub(crate) fn parse(line: &[u8]) -> Result<Row, LineError> {
        let row: Row = serde_json::from_slice(line).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => LineError::NotARow(error.to_string()),
            _ => LineError::NotJson(error.to_string()),
        })?;
        row.check().map_err(LineError::NotARow)?;
        Ok(row)
    }

    /// Checks that lists of one entry per client have equal lengths.
    fn check(&self) -> Result<(), String> {
        let forms = [
            ("up", self.up.is_some(), self.up_bits.is_some()),
            ("asked", self.asked.is_some(), self.asked_bits.is_some()),
            ("whole", self.whole.is_some(), self.whole_bits.is_some()),
            ("partial", self.partial.is_some(), self.partial_bits.is_some()),
            ("absent", self.absent.is_some(), self.absent_bits.is_some()),
        ];
        if let Some((name, ..)) = forms.iter().find(|(_, list, bits)| list == bits) {
            return Err(format!("needs either `{name}` or `{name}_bits`"));
        }
        if self.busy.is_some() && self.busy_bits.is_some() {
            return Err("needs either `busy` or `busy_bits`".to_owned());
        }
        let n_probabilities = self.inclusion_probabilities.as_ref().map_or(self.n_selected(), Vec::len);
        let lengths = [
            ("up", n_members(&self.up, &self.up_bits), "n_up", self.n_up as usize),
            ("asked", self.n_selected(), "inclusion_probabilities", n_probabilities),
            ("partial", self.n_partial(), "partial_steps", self.partial_steps.len()),
            ("late", self.late.len(), "late_base", self.late_base.len()),
            ("refused", self.refused.len(), "refused_why", self.refused_why.len()),
            ("stand_in_for", self.stand_in_for.len(), "stand_in_by", self.stand_in_by.len()),
            ("stand_in_for", self.stand_in_for.len(), "stand_in_age", self.stand_in_age.len()),
        ];
        if let Some((name, one, other_name, other)) = lengths.iter().find(|(_, one, _, other)| one != other) {
            return Err(format!("`{name}` holds {one} clients, but `{other_name}` is for {other}"));
        }
        let n_on_time = self.n_whole() + self.n_partial();
        if !self.took_s.is_empty() && self.took_s.len() != n_on_time {
            let n_times = self.took_s.len();
            return Err(format!(
                "`whole` and `partial` hold {n_on_time} clients, but `took_s` is for {n_times}"
            ));
        }
        if !self.imputed.is_empty() && self.imputed_by.is_none() {
            return Err("`imputed` needs `imputed_by`".to_owned());
        }
        let lengths = [
            ("class_samples", self.class_samples.len(), "class_accuracy", self.class_accuracy.len()),
            ("top_k", self.top_k.len(), "top_k_accuracy", self.top_k_accuracy.len()),
        ];
        match lengths.iter().find(|(_, one, _, other)| one != other) {
            Some((name, one, other_name, other)) => {
                Err(format!("`{name}` holds {one} numbers, but `{other_name}` {other}"))
            }
            None => self.check_stand_ins(),
        }
    }

    /// Checks the optional lists of stand-ins, and their total.
    fn check_stand_ins(&self) -> Result<(), String> {
        let n_single = self.stand_in_for.len();
        let lists = [
            ("stand_in_part", self.stand_in_part.len()),
            ("friend_similarity", self.friend_similarity.len()),
            ("friend_met", self.friend_met.len()),
            ("friend_last_met", self.friend_last_met.len()),
        ];
        if let Some((name, n_found)) = lists.iter().find(|(_, found)| *found != 0 && *found != n_single) {
            return Err(format!("`stand_in_for` holds {n_single} clients, but `{name}` is for {n_found}"));
        }
        let n_listed = n_single + self.stand_in_by_none.len();
        if n_listed != 0 && n_listed != self.n_stand_ins as usize {
            let lists = "`stand_in_for` and `stand_in_by_none`";
            return Err(format!(
                "{lists} hold {n_listed} clients, but `n_stand_ins` is {}",
                self.n_stand_ins
            ));
        }
        match (self.oracle_hits, self.oracle_hits_of) {
            (Some(_), None) => Err("`oracle_hits` needs `oracle_hits_of`".to_owned()),
            (None, Some(_)) => Err("`oracle_hits_of` needs `oracle_hits`".to_owned()),
            (Some(hits), Some(of)) if hits > of => {
                Err(format!("`oracle_hits` is {hits}, more than `oracle_hits_of`, which is {of}"))
            }
            _ => Ok(()),
        }
    }
}

/// Stand-ins of a round, one list per column.
#[derive(Default)]
struct StandIns {
    for_client: Vec<u32>,
    by_client: Vec<u32>,
    age: Vec<u32>,
    fraction: Vec<f64>,
    similarity: Vec<f64>,
    n_shared_rounds: Vec<u32>,
    last_shared_round: Vec<u32>,
    by_none: Vec<u32>,
}

impl StandIns {
    fn of(all: &[StandIn], n_clients: usize) -> Self {
        let mut lists = StandIns::default();
        if n_clients > MANY_CLIENTS {
            return lists;
        }
        for one in all {
            let Some(source) = one.source else {
                lists.by_none.push(one.client.number());
                continue;
            };
            lists.for_client.push(one.client.number());
            lists.by_client.push(source.number());
            lists.age.push(one.age);
            lists.fraction.push(one.fraction);
            if let Some(similarity) = one.similarity {
                lists.similarity.push(similarity.mean);
                lists.n_shared_rounds.push(similarity.n_shared_rounds);
                lists.last_shared_round.push(similarity.last_shared_round);
            }
        }
        if lists.fraction.iter().all(|part| *part == 1.0) {
            lists.fraction.clear();
        }
        if lists.n_shared_rounds.len() != lists.for_client.len() {
            (lists.similarity, lists.n_shared_rounds, lists.last_shared_round) = Default::default();
        }
        lists
    }
}

/// Why a line cannot be read as a row.
#[derive(Debug)]
pub(crate) enum LineError {
    /// The line may be truncated.
    NotJson(String),
    /// The line is complete JSON, but not a row.
    NotARow(String),
}

/// The common inclusion probability, or a list of them. Both are `None` if none is known.
fn common_or_each(all: Vec<Option<f64>>) -> (Option<f64>, Option<Vec<Option<f64>>>) {
    match all.first() {
        Some(&first) if all.iter().any(|&probability| probability != first) => (None, Some(all)),
        first => (first.copied().flatten(), None),
    }
}

/// Response times in seconds of the clients that responded in time. NaN where unknown; empty if all are
/// unknown.
fn response_times_s(outcome: &Outcome, n_clients: usize) -> Vec<f64> {
    let fresh = &outcome.responses.fresh;
    if n_clients > MANY_CLIENTS {
        return Vec::new();
    }
    let times = &outcome.response_info.response_times_s;
    let of = |client: ClientId| {
        let at = times.binary_search_by_key(&client, |(one, _)| *one);
        at.map_or(f64::NAN, |at| times[at].1)
    };
    let times_s: Vec<_> = fresh.iter().map(|update| of(update.client)).collect();
    if times_s.iter().all(|took_s| took_s.is_nan()) { Vec::new() } else { times_s }
}

fn client_numbers(clients: &[ClientId]) -> Vec<u32> {
    clients.iter().map(|client| client.number()).collect()
}

fn mean(values: impl Iterator<Item = f32>) -> Option<f32> {
    let (sum, n_values) = values.fold((0.0, 0_u32), |(sum, n), value| (sum + f64::from(value), n + 1));
    (n_values > 0).then(|| (sum / f64::from(n_values)) as f32)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[cfg(test)]
pub(crate) mod tests;
