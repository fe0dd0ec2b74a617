//! One round as a line of `rounds.jsonl`: who was there, who answered, what came of it.

use std::collections::BTreeMap;

use ebb_round::{Census, ClientId, Judgement, Notes, OracleError, Outcome, Score, StandIn};

use crate::clients::{Bitset, MANY_CLIENTS, count, either_form, members, n_members, stretches, up};
use crate::numbers::{named_numbers, number, numbers, some_number, some_numbers};

/// One round, as it stands in the record.
///
/// Clients go by their number. A set of clients is a list under its own name or, in large runs, bits in
/// base64 under that name with `_bits` added; the methods read both. What was not measured is left out. A
/// number that JSON cannot hold is written `null` and read as NaN.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Row {
    /// Which round.
    pub round: u32,
    /// How many clients are in the run.
    pub n_enrolled: u32,
    /// Who came into the run, as first and last client of each stretch.
    pub joined: Vec<[u32; 2]>,
    /// Who went, in the same way.
    pub left: Vec<[u32; 2]>,
    /// How many clients could be reached.
    pub n_up: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    up: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    up_bits: Option<Bitset>,
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
    /// The chance with which each was to be asked, if it is known and the same for all.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub chance: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chances: Option<Vec<Option<f64>>>,
    /// Whether those chances are only near the true ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chances_approximate: bool,
    /// How many steps each client did that answered in part, ascending by client.
    pub partial_steps: Vec<u32>,
    /// Whose answer to an earlier round came now.
    pub late: Vec<u32>,
    /// The rounds that those answers belong to.
    pub late_base: Vec<u32>,
    /// Whose answer could not be used.
    pub refused: Vec<u32>,
    /// Why, for each of them.
    pub refused_why: Vec<String>,
    /// How many updates stood in for somebody who did not answer on time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_stand_ins: u32,
    /// For whom the update of one client stood in; the lists up to `friend_last_met` go with it. None of them is kept where
    /// many clients ever enrolled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_in_for: Vec<u32>,
    /// Whose update that was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_in_by: Vec<u32>,
    /// How many rounds old it was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_in_age: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    stand_in_part: Vec<f64>,
    /// How alike the two are; empty unless that is why every one of them stood in.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub friend_similarity: Vec<f64>,
    /// In how many rounds the two had both answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub friend_met: Vec<u32>,
    /// The last of those rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub friend_last_met: Vec<u32>,
    /// For whom something stood in that no single client computed: the mean of the answers, or a model of zeros.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_in_by_none: Vec<u32>,
    /// What the objective decided about single clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<Judged>,
    /// Figures of the substitution and of the selector, by name, and the scores on sets of clients, which only an oracle knows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "named_numbers")]
    pub notes: BTreeMap<String, f64>,
    /// The local rate.
    #[serde(deserialize_with = "number")]
    pub rate: f32,
    /// Mean training loss of the clients that answered in time.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub train_loss: Option<f32>,
    /// Mean training accuracy of those among them that have one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub train_accuracy: Option<f32>,
    /// The norm of the aggregate.
    #[serde(deserialize_with = "number")]
    pub step_norm: f64,
    /// Loss on the test data.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub loss: Option<f64>,
    /// Accuracy on the test data.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub accuracy: Option<f64>,
    /// The score on each client's own test data: its mean. An oracle, as are the next two.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_client_mean: Option<f64>,
    /// Its mean over the tenth of the clients that are served worst.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_client_worst_tenth: Option<f64>,
    /// Its standard deviation over clients.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_client_deviation: Option<f64>,
    /// The score from the client that is served worst to the one that is served best, in steps of a tenth of them. An oracle.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub oracle_client_deciles: Vec<f64>,
    /// Who of those that were up would not have been heard in time if it had been asked; left out where nobody can say, and
    /// where many clients ever enrolled. An oracle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oracle_silent: Option<Vec<u32>>,
    /// How many stand-ins came from the client's true cluster. An oracle, as are all up to `oracle_psi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oracle_hits: Option<u32>,
    /// Of how many whose clusters are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oracle_hits_of: Option<u32>,
    /// The square of what the aggregate is off from what everybody would have made of it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_error2: Option<f64>,
    /// The square of the largest difference between two clients' updates.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_sigma_p2: Option<f64>,
    /// The same between two clients of one true cluster.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_sigma_f2: Option<f64>,
    /// What the error cannot exceed where only answers of this round stand in: `oracle_sigma_p2` times the square of the
    /// absent share.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_bound_p2: Option<f64>,
    /// What it cannot exceed if besides everybody absent has one of its cluster: the same with `oracle_sigma_f2`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_bound_f2: Option<f64>,
    /// The mean of `oracle_error2` over the rounds so far.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub oracle_psi: Option<f64>,
    /// How many test samples each class has, if the model was judged class by class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_samples: Vec<u32>,
    /// The accuracy on each class; NaN for one without samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub class_accuracy: Vec<f64>,
    /// The k for which it was counted how often the label has one of the k highest scores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_k: Vec<u32>,
    /// How often it has, for each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "numbers")]
    pub top_k_accuracy: Vec<f64>,
    /// Seconds that the round took: virtual in simulation.
    #[serde(deserialize_with = "number")]
    pub elapsed_s: f64,
    /// Seconds that all rounds took so far.
    #[serde(deserialize_with = "number")]
    pub virtual_s: f64,
    /// Payload sent to clients in this round.
    pub bytes_down: u64,
    /// Payload received from clients in this round.
    pub bytes_up: u64,
    /// Payload of all rounds so far, both ways.
    pub bytes_total: u64,
    /// The model after the round, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_numbers")]
    pub model: Option<Vec<f32>>,
}

/// What was decided about one client.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Judged {
    /// Who.
    pub client: u32,
    /// `kept` in the objective or `excluded` from it when it left; `boosted` or `plain` when it is new.
    pub verdict: String,
    /// What that was decided by.
    #[serde(deserialize_with = "named_numbers")]
    pub figures: BTreeMap<String, f64>,
}

impl Judged {
    fn of(judgement: &Judgement) -> Judged {
        Judged {
            client: judgement.client.number(),
            verdict: judgement.verdict.to_owned(),
            figures: named(&judgement.figures),
        }
    }
}

fn named(notes: &Notes) -> BTreeMap<String, f64> {
    notes.iter().map(|(name, figure)| ((*name).to_owned(), *figure)).collect()
}

/// The figures of the roles, and the scores on sets of clients.
fn notes(notes: &Notes, score: Option<&Score>) -> BTreeMap<String, f64> {
    let mut all = named(notes);
    for (name, score) in score.map_or(&[][..], |score| &score.oracle_sets) {
        all.insert(format!("oracle_set_loss_{name}"), score.loss);
        all.extend(score.accuracy.map(|accuracy| (format!("oracle_set_accuracy_{name}"), accuracy)));
    }
    all
}

impl Row {
    /// The row of a round that just ended.
    pub fn new(census: &Census, outcome: &Outcome, model: Option<&[f32]>) -> Self {
        let returns = &outcome.returns;
        let n_clients = census.len();
        let (whole, partial): (Vec<_>, Vec<_>) =
            returns.fresh.iter().partition(|answer| answer.update.whole());
        let (up, up_bits) = up(census);
        let set = |clients: &mut dyn ExactSizeIterator<Item = ClientId>| either_form(clients, n_clients);
        let (asked, asked_bits) = set(&mut outcome.cohort.picks.iter().map(|pick| pick.client));
        let (whole, whole_bits) = set(&mut whole.iter().map(|answer| answer.client));
        let partial_steps = partial.iter().map(|answer| answer.update.steps.get()).collect();
        let (partial, partial_bits) = set(&mut partial.iter().map(|answer| answer.client));
        let (absent, absent_bits) = set(&mut returns.absent.iter().copied());
        let (chance, chances) = chances(outcome.cohort.picks.iter().map(|pick| pick.chance).collect());
        let score = outcome.score.as_ref();
        let oracle = score.and_then(|score| score.oracle_clients);
        let classes = score.map_or(&[][..], |score| &score.classes);
        let top_k = score.map_or(&[][..], |score| &score.top_k);
        let so_far = outcome.spent_so_far;
        let stand_ins = StandIns::of(&outcome.stand_ins, n_clients);
        let cost = outcome.oracle;
        let oracle_silent = outcome.oracle_silent.as_ref().filter(|_| n_clients <= MANY_CLIENTS);
        let bound = |cost: OracleError, apart2: f64| cost.absent_share * cost.absent_share * apart2;
        Row {
            round: outcome.number,
            n_enrolled: count(census.n_enrolled()),
            joined: stretches(&outcome.joined),
            left: stretches(&outcome.left),
            n_up: count(census.up().count()),
            up,
            up_bits,
            asked,
            asked_bits,
            whole,
            whole_bits,
            partial,
            partial_bits,
            absent,
            absent_bits,
            chance,
            chances,
            chances_approximate: outcome.cohort.approximate,
            partial_steps,
            late: returns.late.iter().map(|answer| answer.client.number()).collect(),
            late_base: returns.late.iter().map(|answer| answer.update.base).collect(),
            refused: returns.refused.iter().map(|refused| refused.client.number()).collect(),
            refused_why: returns.refused.iter().map(|refused| refused.why.name().to_owned()).collect(),
            n_stand_ins: count(outcome.stand_ins.len()),
            stand_in_for: stand_ins.whom,
            stand_in_by: stand_ins.by,
            stand_in_age: stand_ins.age,
            stand_in_part: stand_ins.part,
            friend_similarity: stand_ins.similarity,
            friend_met: stand_ins.met,
            friend_last_met: stand_ins.last_met,
            stand_in_by_none: stand_ins.by_none,
            judged: outcome.judged.iter().map(Judged::of).collect(),
            notes: notes(&outcome.notes, score),
            rate: outcome.rate,
            train_loss: mean(returns.fresh.iter().map(|answer| answer.update.loss)),
            train_accuracy: mean(returns.fresh.iter().filter_map(|answer| answer.update.accuracy)),
            step_norm: outcome.step_norm,
            loss: score.map(|score| score.loss),
            accuracy: score.and_then(|score| score.accuracy),
            oracle_client_mean: oracle.map(|spread| spread.mean),
            oracle_client_worst_tenth: oracle.map(|spread| spread.worst_tenth),
            oracle_client_deviation: oracle.map(|spread| spread.deviation),
            oracle_client_deciles: oracle.map_or_else(Vec::new, |spread| spread.deciles.to_vec()),
            oracle_hits: outcome.oracle_hits.map(|(hits, _)| hits),
            oracle_hits_of: outcome.oracle_hits.map(|(_, known)| known),
            oracle_silent: oracle_silent.map(|silent| silent.iter().map(|one| one.number()).collect()),
            oracle_error2: cost.map(|cost| cost.error2),
            oracle_sigma_p2: cost.map(|cost| cost.apart2),
            oracle_sigma_f2: cost.and_then(|cost| cost.apart_in_cluster2),
            oracle_bound_p2: cost.map(|cost| bound(cost, cost.apart2)),
            oracle_bound_f2: cost.and_then(|cost| Some(bound(cost, cost.apart_in_cluster2?))),
            oracle_psi: cost.map(|cost| cost.psi),
            class_samples: classes.iter().map(|class| class.samples).collect(),
            class_accuracy: classes
                .iter()
                .map(|class| f64::from(class.hits) / f64::from(class.samples))
                .collect(),
            top_k: top_k.iter().map(|(k, _)| *k).collect(),
            top_k_accuracy: top_k.iter().map(|(_, accuracy)| *accuracy).collect(),
            elapsed_s: outcome.spent.elapsed_s,
            virtual_s: so_far.elapsed_s,
            bytes_down: outcome.spent.bytes_down,
            bytes_up: outcome.spent.bytes_up,
            bytes_total: so_far.bytes_down + so_far.bytes_up,
            model: model.map(<[f32]>::to_vec),
        }
    }

    /// The clients that could be reached, ascending.
    pub fn up(&self) -> Vec<u32> {
        members(&self.up, &self.up_bits)
    }

    /// The clients that were asked, ascending.
    pub fn asked(&self) -> Vec<u32> {
        members(&self.asked, &self.asked_bits)
    }

    /// The clients that answered in time and did all the work, ascending.
    pub fn whole(&self) -> Vec<u32> {
        members(&self.whole, &self.whole_bits)
    }

    /// The clients that answered in time and did part of the work, ascending.
    pub fn partial(&self) -> Vec<u32> {
        members(&self.partial, &self.partial_bits)
    }

    /// The clients that were asked and did not answer in time, ascending.
    pub fn absent(&self) -> Vec<u32> {
        members(&self.absent, &self.absent_bits)
    }

    /// How many were asked.
    pub fn n_asked(&self) -> usize {
        n_members(&self.asked, &self.asked_bits)
    }

    /// How many did all the work in time.
    pub fn n_whole(&self) -> usize {
        n_members(&self.whole, &self.whole_bits)
    }

    /// How many did part of the work in time.
    pub fn n_partial(&self) -> usize {
        n_members(&self.partial, &self.partial_bits)
    }

    /// How many did not answer in time.
    pub fn n_absent(&self) -> usize {
        n_members(&self.absent, &self.absent_bits)
    }

    /// The chance with which each of the asked clients was to be asked, where that is known.
    pub fn chances(&self) -> Vec<Option<f64>> {
        match &self.chances {
            Some(chances) => chances.clone(),
            None => vec![self.chance; self.n_asked()],
        }
    }

    /// What part of the client's say each of `stand_in_for` had: 1, unless several stood in for it.
    pub fn stand_in_parts(&self) -> Vec<f64> {
        if self.stand_in_part.is_empty() {
            vec![1.0; self.stand_in_for.len()]
        } else {
            self.stand_in_part.clone()
        }
    }

    /// The same row with every set of clients as a list, however large.
    pub(crate) fn with_lists(mut self) -> Row {
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

    /// Whether the model was judged after this round, though its loss may be no number.
    pub fn evaluated(&self) -> bool {
        self.loss.is_some()
    }

    /// Reads a line; says whether a line that cannot be read may just be cut short.
    pub(crate) fn parse(line: &[u8]) -> Result<Row, BadLine> {
        let row: Row = serde_json::from_slice(line).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => BadLine::NoRow(error.to_string()),
            _ => BadLine::NoJson(error.to_string()),
        })?;
        row.check().map_err(BadLine::NoRow)?;
        Ok(row)
    }

    /// Whether lists that belong together have one length.
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
        let n_chances = self.chances.as_ref().map_or(self.n_asked(), Vec::len);
        let lengths = [
            ("up", n_members(&self.up, &self.up_bits), "n_up", self.n_up as usize),
            ("asked", self.n_asked(), "chances", n_chances),
            ("partial", self.n_partial(), "partial_steps", self.partial_steps.len()),
            ("late", self.late.len(), "late_base", self.late_base.len()),
            ("refused", self.refused.len(), "refused_why", self.refused_why.len()),
            ("stand_in_for", self.stand_in_for.len(), "stand_in_by", self.stand_in_by.len()),
            ("stand_in_for", self.stand_in_for.len(), "stand_in_age", self.stand_in_age.len()),
        ];
        if let Some((name, one, beside, other)) = lengths.iter().find(|(_, one, _, other)| one != other) {
            return Err(format!("`{name}` holds {one} clients, but `{beside}` is for {other}"));
        }
        let lengths = [
            ("class_samples", self.class_samples.len(), "class_accuracy", self.class_accuracy.len()),
            ("top_k", self.top_k.len(), "top_k_accuracy", self.top_k_accuracy.len()),
        ];
        match lengths.iter().find(|(_, one, _, other)| one != other) {
            Some((name, one, beside, other)) => {
                Err(format!("`{name}` holds {one} numbers, but `{beside}` {other}"))
            }
            None => self.check_stand_ins(),
        }
    }

    /// The lists that are left out where they say nothing, and the count of all.
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

/// Who stood in for whom, list by list.
#[derive(Default)]
struct StandIns {
    whom: Vec<u32>,
    by: Vec<u32>,
    age: Vec<u32>,
    part: Vec<f64>,
    similarity: Vec<f64>,
    met: Vec<u32>,
    last_met: Vec<u32>,
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
            lists.whom.push(one.client.number());
            lists.by.push(source.number());
            lists.age.push(one.age);
            lists.part.push(one.part);
            if let Some(likeness) = one.likeness {
                lists.similarity.push(likeness.similarity);
                lists.met.push(likeness.met);
                lists.last_met.push(likeness.last_met);
            }
        }
        if lists.part.iter().all(|part| *part == 1.0) {
            lists.part.clear();
        }
        if lists.met.len() != lists.whom.len() {
            (lists.similarity, lists.met, lists.last_met) = Default::default();
        }
        lists
    }
}

/// Why a line is no row.
#[derive(Debug)]
pub(crate) enum BadLine {
    /// It may have been cut short while it was written.
    NoJson(String),
    /// It was written whole, but not by this format.
    NoRow(String),
}

/// The one chance that all have, or each one's own; neither if none is known.
fn chances(all: Vec<Option<f64>>) -> (Option<f64>, Option<Vec<Option<f64>>>) {
    match all.first() {
        Some(&first) if all.iter().any(|&chance| chance != first) => (None, Some(all)),
        first => (first.copied().flatten(), None),
    }
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
pub(crate) mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use ebb_round::{
        Answer, ClassScore, Cohort, Likeness, Parcel, Pick, Refusal, Refused, Returns, SetScore, Spent,
        Spread, Update, Wait,
    };

    use super::*;

    /// A census of `n_clients`, of which those in `up` can be reached.
    pub(crate) fn census(n_clients: usize, up: &[usize]) -> Census {
        let mut census = Census::new();
        (0..n_clients).for_each(|idx| census.enrol(ClientId::new(idx), 10, 0));
        census.set_up(|_, bits| up.iter().for_each(|&idx| bits.set(idx, true)));
        census
    }

    /// An answer of a client that did so many of ten steps.
    pub(crate) fn answer(client: usize, base: u32, steps: u32, loss: f32) -> Answer {
        let update = Update {
            delta: Parcel::default(),
            base,
            rate: 0.1,
            steps: NonZeroU32::new(steps).unwrap(),
            steps_asked: NonZeroU32::new(10).unwrap(),
            samples: 10,
            loss,
            loss_fall: 0.0,
            accuracy: Some(loss / 2.0),
        };
        Answer { client: ClientId::new(client), chance: None, update: Arc::new(update) }
    }

    /// A round in which clients 1, 2 and 3 were asked: 1 did all, 2 did part, 3 was silent.
    pub(crate) fn outcome(number: u32) -> Outcome {
        let picks = [1, 2, 3].map(|idx| Pick { client: ClientId::new(idx), chance: Some(0.75) });
        let so_far = f64::from(number + 1);
        Outcome {
            number,
            joined: if number == 0 { (0..4).map(ClientId::new).collect() } else { Vec::new() },
            left: Vec::new(),
            rate: 0.1,
            cohort: Cohort { picks: picks.to_vec(), wait: Wait::Deadline, approximate: false },
            returns: Returns {
                fresh: vec![answer(1, number, 10, 0.5), answer(2, number, 4, 0.25)],
                late: Vec::new(),
                absent: vec![ClientId::new(3)],
                refused: Vec::new(),
                elapsed_s: 1.5,
            },
            stand_ins: Vec::new(),
            oracle_hits: None,
            oracle_silent: None,
            judged: Vec::new(),
            oracle: None,
            notes: Notes::new(),
            step_norm: 2.5,
            score: None,
            spent: Spent { elapsed_s: 1.5, bytes_down: 30, bytes_up: 20 },
            spent_so_far: Spent {
                elapsed_s: 1.5 * so_far,
                bytes_down: 30 * u64::from(number + 1),
                bytes_up: 20 * u64::from(number + 1),
            },
        }
    }

    /// A row of [`outcome`], judged.
    pub(crate) fn row(number: u32, loss: f64, accuracy: Option<f64>) -> Row {
        let mut outcome = outcome(number);
        outcome.score = Some(Score { loss, accuracy, ..Score::default() });
        outcome.oracle_silent = Some(Vec::new());
        Row::new(&census(4, &[1, 2]), &outcome, None)
    }

    /// One update that stood in for a client.
    fn stand_in(
        client: usize,
        source: Option<usize>,
        age: u32,
        part: f64,
        similarity: Option<f64>,
    ) -> StandIn {
        let likeness = similarity.map(|similarity| Likeness { similarity, met: 7, last_met: 4 });
        StandIn { client: ClientId::new(client), source: source.map(ClientId::new), age, part, likeness }
    }

    /// A round in which friends stood in for two clients and the mean for one, and an oracle looked on.
    pub(crate) fn befriended(number: u32) -> Row {
        let mut outcome = outcome(number);
        outcome.stand_ins = vec![
            stand_in(0, Some(1), 0, 0.75, Some(0.5)),
            stand_in(0, Some(2), 0, 0.25, Some(0.125)),
            stand_in(2, None, 0, 1.0, None),
            stand_in(3, Some(1), 0, 1.0, Some(0.25)),
        ];
        outcome.notes = Notes::from([("by_friend", 2.0), ("theta", f64::INFINITY)]);
        outcome.oracle_hits = Some((2, 3));
        outcome.oracle = Some(OracleError {
            error2: 0.75,
            absent_share: 0.5,
            apart2: 8.0,
            apart_in_cluster2: Some(4.0),
            psi: 0.625,
        });
        Row::new(&census(4, &[1, 2]), &outcome, None)
    }

    /// A round of 5000 clients of which every third is up and answers, half of them in part.
    pub(crate) fn many(number: u32) -> Row {
        let n_clients = 5000;
        let every_third: Vec<_> = (0..n_clients).step_by(3).collect();
        let mut outcome = outcome(number);
        outcome.cohort = Cohort::by_deadline(every_third.iter().copied().map(ClientId::new));
        outcome.returns.fresh = every_third
            .iter()
            .map(|&idx| answer(idx, number, if idx % 2 == 0 { 10 } else { 3 }, 1.0))
            .collect();
        outcome.returns.absent = vec![ClientId::new(4999)];
        Row::new(&census(n_clients, &every_third), &outcome, None)
    }

    fn line(row: &Row) -> String {
        serde_json::to_string(row).unwrap()
    }

    fn back(row: &Row) -> Row {
        Row::parse(line(row).as_bytes()).unwrap()
    }

    #[test]
    fn a_row_by_hand() {
        let row = Row::new(&census(4, &[1, 2]), &outcome(0), Some(&[0.1, -2.0]));
        let text = concat!(
            r#"{"round":0,"n_enrolled":4,"joined":[[0,3]],"left":[],"n_up":2,"up":[1,2],"asked":[1,2,3],"#,
            r#""whole":[1],"partial":[2],"absent":[3],"chance":0.75,"partial_steps":[4],"late":[],"#,
            r#""late_base":[],"refused":[],"refused_why":[],"rate":0.1,"train_loss":0.375,"#,
            r#""train_accuracy":0.1875,"step_norm":2.5,"elapsed_s":1.5,"virtual_s":1.5,"bytes_down":30,"#,
            r#""bytes_up":20,"bytes_total":50,"model":[0.1,-2.0]}"#
        );
        assert_eq!(line(&row), text);
        assert_eq!(back(&row), row);
    }

    #[test]
    fn everything_measured_comes_back() {
        let mut outcome = outcome(5);
        outcome.joined = [0, 1, 2, 7, 9, 10].map(ClientId::new).to_vec();
        outcome.left = vec![ClientId::new(4)];
        outcome.cohort.picks[1].chance = None;
        outcome.cohort.picks[2].chance = Some(1.0 / 3.0);
        outcome.returns.late = vec![answer(9, 2, 10, 1.0), answer(0, 4, 10, 1.0)];
        outcome.returns.refused = vec![Refused { client: ClientId::new(3), why: Refusal::NotFinite }];
        let oracle_clients =
            Some(Spread { mean: 0.1, worst_tenth: 0.05, deviation: 0.7, deciles: [0.5; 11] });
        let class = |samples, hits| ClassScore { samples, hits };
        outcome.score = Some(Score {
            loss: 0.1 + 0.2,
            accuracy: Some(2.0 / 3.0),
            oracle_clients,
            oracle_sets: vec![
                ("all".to_owned(), SetScore { loss: 0.5, accuracy: Some(0.25) }),
                ("old".to_owned(), SetScore { loss: 0.75, accuracy: None }),
            ],
            classes: vec![class(2, 1), class(4, 3)],
            top_k: vec![(2, 1.0)],
        });
        outcome.oracle_silent = Some(vec![ClientId::new(2)]);
        let figures = Notes::from([("gamma_l", 0.5), ("rounds_needed", f64::INFINITY)]);
        outcome.judged = vec![Judgement { client: ClientId::new(4), verdict: "kept", figures }];
        let row = Row::new(&census(12, &[]), &outcome, None);
        let mut again = back(&row);
        let judged =
            r#""judged":[{"client":4,"verdict":"kept","figures":{"gamma_l":0.5,"rounds_needed":null}}],"#;
        assert!(line(&row).contains(judged), "{}", line(&row));
        assert!(again.judged[0].figures["rounds_needed"].is_nan());
        again.judged[0].figures.insert("rounds_needed".into(), f64::INFINITY);
        assert_eq!(again, row);
        let sets =
            [("oracle_set_accuracy_all", 0.25), ("oracle_set_loss_all", 0.5), ("oracle_set_loss_old", 0.75)];
        assert_eq!(again.notes, sets.map(|(name, figure)| (name.to_owned(), figure)).into());
        assert_eq!(again.oracle_silent, Some(vec![2]));
        assert_eq!(again.joined, [[0, 2], [7, 7], [9, 10]]);
        assert_eq!(again.chances(), [Some(0.75), None, Some(1.0 / 3.0)]);
        assert_eq!((again.late, again.late_base), (vec![9, 0], vec![2, 4]));
        assert_eq!((again.refused, again.refused_why), (vec![3], vec!["not-finite".to_owned()]));
        assert_eq!(again.loss, Some(0.1 + 0.2));
        assert_eq!(again.oracle_client_worst_tenth, Some(0.05));
        assert_eq!(again.oracle_client_deciles, [0.5; 11]);
        assert_eq!((again.class_samples, again.class_accuracy), (vec![2, 4], vec![0.5, 0.75]));
        assert_eq!((again.top_k, again.top_k_accuracy), (vec![2], vec![1.0]));
    }

    #[test]
    fn who_stood_in_for_whom_by_hand() {
        let row = befriended(0);
        let text = line(&row);
        let expected = concat!(
            r#""refused_why":[],"n_stand_ins":4,"stand_in_for":[0,0,3],"stand_in_by":[1,2,1],"#,
            r#""stand_in_age":[0,0,0],"stand_in_part":[0.75,0.25,1.0],"friend_similarity":[0.5,0.125,0.25],"#,
            r#""friend_met":[7,7,7],"friend_last_met":[4,4,4],"stand_in_by_none":[2],"#,
            r#""notes":{"by_friend":2.0,"theta":null},"rate""#
        );
        assert!(text.contains(expected), "{text}");
        let expected = concat!(
            r#""oracle_hits":2,"oracle_hits_of":3,"oracle_error2":0.75,"oracle_sigma_p2":8.0,"#,
            r#""oracle_sigma_f2":4.0,"oracle_bound_p2":2.0,"oracle_bound_f2":1.0,"oracle_psi":0.625,"#
        );
        assert!(text.contains(expected), "{text}");
        let mut again = back(&row);
        assert!(again.notes["theta"].is_nan());
        again.notes.insert("theta".into(), f64::INFINITY);
        assert_eq!(again, row);
        assert_eq!(again.stand_in_parts(), [0.75, 0.25, 1.0]);
    }

    #[test]
    fn lists_of_stand_ins_that_say_nothing_are_left_out() {
        let mut outcome = outcome(5);
        // Its own update of two rounds ago for client 3, and for client 0 a friend's.
        outcome.stand_ins = vec![stand_in(0, Some(1), 0, 1.0, Some(0.5)), stand_in(3, Some(3), 2, 1.0, None)];
        outcome.oracle = Some(OracleError {
            error2: 0.0,
            absent_share: 0.5,
            apart2: 8.0,
            apart_in_cluster2: None,
            psi: 0.0,
        });
        let row = Row::new(&census(4, &[1, 2]), &outcome, None);
        let text = line(&row);
        let absent =
            ["stand_in_part", "friend_", "stand_in_by_none", "notes", "sigma_f2", "bound_f2", "hits"];
        for key in absent {
            assert!(!text.contains(key), "{key}: {text}");
        }
        assert!(text.contains(r#""stand_in_by":[1,3],"stand_in_age":[0,2],"rate""#), "{text}");
        let again = back(&row);
        assert_eq!((again.stand_in_parts(), &again), (vec![1.0, 1.0], &row));
    }

    #[test]
    fn in_large_fleets_stand_ins_are_counted_only() {
        let mut outcome = outcome(0);
        outcome.stand_ins = vec![stand_in(0, Some(1), 0, 0.5, Some(0.5)), stand_in(2, None, 0, 1.0, None)];
        for (n_clients, listed) in [(MANY_CLIENTS, true), (MANY_CLIENTS + 1, false)] {
            let row = Row::new(&census(n_clients, &[]), &outcome, None);
            assert_eq!(line(&row).contains("stand_in_"), listed, "{n_clients}");
            assert_eq!((back(&row).n_stand_ins, back(&row)), (2, row));
        }
    }

    #[test]
    fn large_sets_are_written_as_bits_and_small_ones_as_lists() {
        let row = many(1);
        let text = line(&row);
        for key in ["up_bits", "asked_bits", "whole_bits", "partial_bits", "absent", "chance"] {
            assert!(text.contains(&format!("\"{key}\":")), "{key}");
        }
        assert!(!text.contains("\"absent_bits\":") && !text.contains("\"asked\":"));
        let again = back(&row);
        assert_eq!(again, row);
        let every_third: Vec<_> = (0..5000).step_by(3).collect();
        let (whole, partial): (Vec<_>, Vec<_>) = every_third.iter().partition(|&&idx| idx % 2 == 0);
        assert_eq!((again.up(), again.asked()), (every_third.clone(), every_third));
        assert_eq!((again.n_whole(), again.n_partial()), (whole.len(), partial.len()));
        assert_eq!((again.whole(), again.partial(), again.absent()), (whole, partial, vec![4999]));
    }

    #[test]
    fn one_client_in_32_is_a_list_and_one_more_is_bits() {
        let check = |n_clients: usize, n_up: usize, bits: bool| {
            let up: Vec<_> = (0..n_up).collect();
            let row = Row::new(&census(n_clients, &up), &outcome(0), None);
            assert_eq!(row.up_bits.is_some(), bits, "{n_up} of {n_clients}");
            assert_eq!(back(&row).up().len(), n_up);
        };
        check(4096, 4096, false);
        check(6400, 200, false);
        check(6400, 201, true);
        check(6401, 6401, true);
    }

    #[test]
    fn a_number_that_json_cannot_hold_is_null_and_not_missing() {
        let row = row(0, f64::INFINITY, None);
        assert!(line(&row).contains(r#""loss":null"#));
        let again = back(&row);
        assert!(again.loss.unwrap().is_nan() && again.evaluated());
        assert_eq!(again.accuracy, None);
        let mut unjudged = row;
        unjudged.loss = None;
        unjudged.model = Some(vec![1.0, f32::NAN]);
        assert!(!back(&unjudged).evaluated());
        assert!(back(&unjudged).model.unwrap()[1].is_nan());
    }

    #[test]
    fn a_class_without_samples_has_an_accuracy_of_null() {
        let mut outcome = outcome(0);
        let classes = vec![ClassScore { samples: 8, hits: 1 }, ClassScore::default()];
        outcome.score = Some(Score { loss: 1.0, classes, ..Score::default() });
        let row = Row::new(&census(4, &[]), &outcome, None);
        assert!(line(&row).contains(r#""class_samples":[8,0],"class_accuracy":[0.125,null],"elapsed_s""#));
        let again = back(&row);
        assert!(again.class_accuracy[0] == 0.125 && again.class_accuracy[1].is_nan());
    }

    #[test]
    fn nobody_asked_means_no_chance_and_no_training_loss() {
        let mut outcome = outcome(0);
        outcome.cohort.picks.clear();
        outcome.returns = Returns::default();
        let again = back(&Row::new(&census(4, &[]), &outcome, None));
        assert_eq!((again.chance, again.train_loss, again.train_accuracy), (None, None, None));
        assert_eq!((again.chances(), again.n_asked()), (vec![], 0));
    }

    #[test]
    fn lists_that_belong_together_must_have_one_length() {
        let check = |from: &str, to: &str, expected: &str| {
            let text = line(&Row { loss: Some(1.0), ..befriended(0) });
            assert!(text.contains(from), "{text}");
            match Row::parse(text.replace(from, to).as_bytes()) {
                Err(BadLine::NoRow(message)) => assert!(message.contains(expected), "{message}"),
                other => panic!("{other:?}"),
            }
        };
        check(r#""partial_steps":[4]"#, r#""partial_steps":[]"#, "`partial` holds 1 clients");
        check(r#""chance":0.75"#, r#""chances":[0.1,0.2]"#, "`asked` holds 3 clients");
        check(r#""asked":[1,2,3],"#, "", "either `asked` or `asked_bits`");
        check(r#""up":[1,2]"#, r#""up_bits":"!""#, "Invalid");
        check(r#""n_up":2"#, r#""n_up":3"#, "`up` holds 2 clients");
        check(r#""round":0,"#, "", "round");
        check(
            r#""round":0,"#,
            r#""round":0,"top_k":[5],"#,
            "`top_k` holds 1 numbers, but `top_k_accuracy` 0",
        );
        check(r#""stand_in_by":[1,2,1]"#, r#""stand_in_by":[1,2]"#, "but `stand_in_by` is for 2");
        check(r#""stand_in_age":[0,0,0],"#, "", "but `stand_in_age` is for 0");
        check(r#""stand_in_part":[0.75,"#, r#""stand_in_part":["#, "but `stand_in_part` is for 2");
        check(r#""friend_similarity":[0.5,"#, r#""friend_similarity":["#, "but `friend_similarity` is for 2");
        check(r#""friend_met":[7,"#, r#""friend_met":["#, "but `friend_met` is for 2");
        check(r#""friend_last_met":[4,"#, r#""friend_last_met":["#, "but `friend_last_met` is for 2");
        check(r#""stand_in_by_none":[2],"#, "", "hold 3 clients, but `n_stand_ins` is 4");
        check(r#""n_stand_ins":4,"#, "", "hold 4 clients, but `n_stand_ins` is 0");
        check(r#""oracle_hits_of":3,"#, "", "`oracle_hits` needs `oracle_hits_of`");
        check(r#""oracle_hits":2,"#, "", "`oracle_hits_of` needs `oracle_hits`");
        check(r#""oracle_hits":2,"#, r#""oracle_hits":4,"#, "`oracle_hits` is 4, more than");
    }

    #[test]
    fn a_row_for_a_million_clients_is_short_and_quick() {
        let n_clients = 1_000_000;
        let up: Vec<_> = (0..n_clients).filter(|idx| idx % 7 != 0).collect();
        let census = census(n_clients, &up);
        let mut outcome = outcome(0);
        outcome.joined = (0..n_clients).map(ClientId::new).collect();
        outcome.cohort = Cohort::by_deadline((0..1000).map(|idx| ClientId::new(idx * 997)));
        let began = std::time::Instant::now();
        let text = line(&Row::new(&census, &outcome, None));
        let took_s = began.elapsed().as_secs_f64();
        assert!(text.len() < 200_000, "{} bytes", text.len());
        // Takes a millisecond; the bound only catches work that grows faster than the number of clients.
        assert!(took_s < 0.5, "{took_s} s");
    }
}
