//! Replays the participation that another run recorded: who was up, and what selected clients returned.
//! Outcomes that nobody observed are imputed by a named rule.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ebb_record::{REPLAYED, RecordedRounds, Row};
use ebb_round::{Assignment, Bits, ClientId, RoundNo, Stream, stateless};
use ebb_settings::{Origin, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use crate::availability::Availability;
use crate::membership::{Event, Membership};

/// The `[world.replay]` table.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// The folder of a run or a file of its rounds, relative to the file of the settings.
    record: String,
    #[serde(default)]
    impute: ImputationRule,
    /// The expected checksum of the rounds; without it any rounds are accepted.
    crc32: Option<String>,
}

/// The imputed outcome of a client that was up and was not selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ImputationRule {
    /// It responds as often as in the record, with outcomes drawn from its own.
    #[default]
    OwnRate,
    /// It returns all of the work.
    Answers,
    /// It returns nothing.
    Silent,
}

impl ImputationRule {
    fn name(self) -> &'static str {
        match self {
            ImputationRule::OwnRate => "own-rate",
            ImputationRule::Answers => "answers",
            ImputationRule::Silent => "silent",
        }
    }
}

/// A recorded run.
#[derive(Debug)]
pub(crate) struct Replay {
    rounds: Vec<RecordedRound>,
    imputation: ImputationRule,
    seed: u64,
    /// The recorded responses of each client.
    client_histories: Vec<RecordedResponses>,
    fleet_history: RecordedResponses,
    bytes: Vec<u8>,
    remarks: Vec<String>,
}

/// What the record holds for one round.
#[derive(Debug)]
struct RecordedRound {
    up: Bits,
    busy: Bits,
    /// The outcome of every selected client, except imputed ones.
    outcomes: BTreeMap<ClientId, RecordedOutcome>,
    n_selected: usize,
    elapsed_s: f64,
}

/// The outcome of selecting a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RecordedOutcome {
    /// Its update arrives on time.
    OnTime(OnTimeUpdate),
    /// Its update arrives in this later round.
    Late(RoundNo),
    /// It returns nothing usable.
    Silent,
}

/// An update that arrives on time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OnTimeUpdate {
    /// The number of steps, if fewer than the job asked for.
    pub(crate) steps: Option<NonZeroU32>,
    pub(crate) took_s: f64,
}

/// The recorded outcomes of a client that was selected while it was up and free.
#[derive(Clone, Debug, Default)]
struct RecordedResponses {
    n_selected: u32,
    on_time_updates: Vec<OnTimeUpdate>,
}

/// The number of observations at the fleet's response rate that are added to a client's own.
const FLEET_PSEUDO_OBSERVATIONS: f64 = 1.0;

impl Replay {
    /// Reads the record that `[world.replay]` names, for the clients of the data.
    pub(crate) fn read(world: &Settings<'_>) -> Result<(Replay, Membership), SettingsError> {
        let settings = world.inner("replay");
        let table: Table = settings.parse()?;
        let path = record_path(&settings, &table.record);
        let remedy = "give the folder of a run, or a file of its rounds";
        let recorded = RecordedRounds::read(&path)
            .map_err(|error| settings.error("record", format!("{error}; {remedy}")))?;
        let found = recorded.checksum();
        if table.crc32.as_ref().is_some_and(|wanted| *wanted != found) {
            let message = format!(
                "the rounds in {} have {found}, so they are not the expected ones; restore them, or leave out crc32",
                path.display()
            );
            return Err(settings.error("crc32", message));
        }
        let n_clients = settings.context().n_clients;
        check_rows(&recorded.rows, n_clients)
            .map_err(|message| settings.error("record", format!("{}: {message}", path.display())))?;
        // The record of the replay holds its own copy of the rounds, so that the copy alone can repeat it.
        settings.resolve("record", REPLAYED);
        settings.resolve("crc32", found);
        let data = settings.at_path("data").text("kind").map(str::to_owned);
        let membership = membership(&recorded.rows, n_clients);
        let mut replay = Replay::new(recorded, table.impute, settings.context().seed, n_clients);
        if table.impute == ImputationRule::OwnRate && replay.fleet_history.n_selected == 0 {
            let message = "no client in this record was selected while it was up, so response rates are unknown; use \"answers\" or \"silent\"";
            return Err(settings.error("impute", message));
        }
        let n_rounds = replay.rounds.len();
        replay.remarks = vec![format!(
            "replays the participation of {n_rounds} recorded rounds; clients that were up and not selected are imputed \
                 (impute = \"{}\"), clients that were down stay silent",
            table.impute.name()
        )];
        let proxy = |kind| {
            format!("proxy data: [data] kind = \"{kind}\" stands in for what the recorded clients held")
        };
        replay.remarks.extend(data.map(proxy));
        Ok((replay, membership))
    }

    fn new(recorded: RecordedRounds, imputation: ImputationRule, seed: u64, n_clients: usize) -> Replay {
        let mut rounds: Vec<_> =
            recorded.rows.iter().map(|row| RecordedRound::from_row(row, n_clients)).collect();
        for (row, number) in recorded.rows.iter().zip(0..) {
            for (&client, &base) in row.late.iter().zip(&row.late_base) {
                let outcomes = rounds.get_mut(base as usize).map(|round| &mut round.outcomes);
                // An update whose job was imputed is imputed, too.
                if let Some(outcome) =
                    outcomes.and_then(|outcomes| outcomes.get_mut(&ClientId::new(client as usize)))
                {
                    *outcome = RecordedOutcome::Late(number);
                }
            }
        }
        let (mut clients, mut fleet) =
            (vec![RecordedResponses::default(); n_clients], RecordedResponses::default());
        for round in &rounds {
            let is_free = |client: ClientId| round.up.get(client.idx()) && !round.busy.get(client.idx());
            for (&client, outcome) in round.outcomes.iter().filter(|(client, _)| is_free(**client)) {
                for history in [&mut clients[client.idx()], &mut fleet] {
                    history.n_selected += 1;
                    if let RecordedOutcome::OnTime(update) = outcome {
                        history.on_time_updates.push(*update);
                    }
                }
            }
        }
        Replay {
            rounds,
            imputation,
            seed,
            client_histories: clients,
            fleet_history: fleet,
            bytes: recorded.bytes,
            remarks: Vec::new(),
        }
    }

    /// The outcome of selecting a client that is busy or not, and whether it is imputed.
    pub(crate) fn outcome(
        &self,
        number: RoundNo,
        client: ClientId,
        is_busy: bool,
    ) -> (RecordedOutcome, bool) {
        let idx = client.idx();
        let Some(round) = self.rounds.get(number as usize) else { return (RecordedOutcome::Silent, false) };
        let recorded = round.outcomes.get(&client).copied();
        match (recorded, is_busy, round.busy.get(idx)) {
            // The client is busy for another round of the replay itself.
            (_, true, false) | (None, true, true) => (RecordedOutcome::Silent, false),
            // The recorded client was busy and was sent nothing, which says nothing about a free one.
            (Some(RecordedOutcome::Silent), false, true) => self.unselected_outcome(number, client),
            (Some(recorded), ..) => (recorded, false),
            (None, false, _) => self.unselected_outcome(number, client),
        }
    }

    /// The outcome of a client that was not selected in the record.
    fn unselected_outcome(&self, number: RoundNo, client: ClientId) -> (RecordedOutcome, bool) {
        let up = self.rounds[number as usize].up.get(client.idx());
        if up { (self.impute(number, client), true) } else { (RecordedOutcome::Silent, false) }
    }

    fn impute(&self, number: RoundNo, client: ClientId) -> RecordedOutcome {
        let mut stream = Stream::of_client_round(self.seed, "impute", number, client);
        let responds = match self.imputation {
            ImputationRule::OwnRate => stream.bernoulli(self.response_rate(client)),
            ImputationRule::Answers => true,
            ImputationRule::Silent => false,
        };
        if !responds {
            return RecordedOutcome::Silent;
        }
        let own = &self.client_histories[client.idx()].on_time_updates;
        let pool = if own.is_empty() { &self.fleet_history.on_time_updates } else { own };
        // If no client ever responded, an update takes as long as the round was open.
        let whole = OnTimeUpdate { steps: None, took_s: self.rounds[number as usize].elapsed_s };
        let sampled = if pool.is_empty() { whole } else { pool[stream.below(pool.len())] };
        match self.imputation {
            ImputationRule::OwnRate => RecordedOutcome::OnTime(sampled),
            ImputationRule::Answers | ImputationRule::Silent => {
                RecordedOutcome::OnTime(OnTimeUpdate { steps: None, ..sampled })
            }
        }
    }

    /// How often a client that is up and free responds on time, by the record.
    fn response_rate(&self, client: ClientId) -> f64 {
        let share = |history: &RecordedResponses| {
            history.on_time_updates.len() as f64 / f64::from(history.n_selected)
        };
        let own = &self.client_histories[client.idx()];
        let n_on_time =
            own.on_time_updates.len() as f64 + FLEET_PSEUDO_OBSERVATIONS * share(&self.fleet_history);
        n_on_time / (f64::from(own.n_selected) + FLEET_PSEUDO_OBSERVATIONS)
    }

    /// The client's mean response time in seconds, by the record.
    pub(crate) fn mean_response_time_s(&self, client: ClientId) -> f64 {
        let own = &self.client_histories[client.idx()].on_time_updates;
        let pool = if own.is_empty() { &self.fleet_history.on_time_updates } else { own };
        let sum_s: f64 = pool.iter().map(|update| update.took_s).sum();
        if pool.is_empty() { 0.0 } else { sum_s / pool.len() as f64 }
    }

    /// Whether a client was busy when a round began.
    pub(crate) fn was_busy(&self, number: RoundNo, client: ClientId) -> bool {
        self.rounds.get(number as usize).is_some_and(|round| round.busy.get(client.idx()))
    }

    /// The recorded length of a round, if the same clients were selected in it.
    pub(crate) fn elapsed_s(&self, number: RoundNo, assignments: &[Assignment]) -> Option<f64> {
        let round = self.rounds.get(number as usize)?;
        let same_number = assignments.len() == round.n_selected && assignments.len() == round.outcomes.len();
        (same_number && assignments.iter().all(|assignment| round.outcomes.contains_key(&assignment.client)))
            .then_some(round.elapsed_s)
    }

    /// The rule for outcomes that nobody observed.
    pub(crate) fn imputation_rule(&self) -> &'static str {
        self.imputation.name()
    }

    /// The number of recorded rounds.
    pub(crate) fn n_rounds(&self) -> u32 {
        self.rounds.len() as u32
    }

    /// The rounds, byte by byte as they were read.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl RecordedRound {
    fn from_row(row: &Row, n_clients: usize) -> RecordedRound {
        let bits = |clients: Vec<u32>| {
            let mut bits = Bits::new(n_clients);
            clients.into_iter().for_each(|client| bits.set(client as usize, true));
            bits
        };
        let elapsed_s = if row.elapsed_s.is_finite() { row.elapsed_s } else { 0.0 };
        let id = |client: u32| ClientId::new(client as usize);
        let selected = row.selected();
        let n_selected = selected.len();
        let mut outcomes: BTreeMap<_, _> =
            selected.into_iter().map(|client| (id(client), RecordedOutcome::Silent)).collect();
        let steps: BTreeMap<_, _> = row.partial().into_iter().zip(&row.partial_steps).collect();
        for (client, took_s) in row.on_time() {
            let steps = steps.get(&client).and_then(|&&steps| NonZeroU32::new(steps));
            let update = OnTimeUpdate { steps, took_s: took_s.unwrap_or(elapsed_s) };
            outcomes.insert(id(client), RecordedOutcome::OnTime(update));
        }
        // Outcomes that an earlier replay imputed stay unknown.
        row.imputed.iter().for_each(|&client| {
            outcomes.remove(&id(client));
        });
        RecordedRound { up: bits(row.up()), busy: bits(row.busy()), outcomes, n_selected, elapsed_s }
    }
}

/// The path of a record. It is relative to the file that names it, or to the current folder if it was typed.
fn record_path(settings: &Settings<'_>, record: &str) -> PathBuf {
    match settings.error("record", "").origin {
        Some(Origin::File { file, .. }) => {
            Path::new(&file).parent().map_or_else(PathBuf::new, Path::to_path_buf).join(record)
        }
        _ => PathBuf::from(record),
    }
}

/// Checks that these rows can be replayed with this many clients.
fn check_rows(rows: &[Row], n_clients: usize) -> Result<(), String> {
    if rows.is_empty() {
        return Err("no round is recorded yet; give a run with recorded rounds".to_owned());
    }
    if let Some((at, row)) = rows.iter().enumerate().find(|(at, row)| row.round as usize != *at) {
        return Err(format!("line {} holds round {}, not {at}; restore the file", at + 1, row.round));
    }
    let highest = |row: &Row| {
        let lists = [row.up(), row.busy(), row.selected(), row.whole(), row.partial(), row.late.clone()];
        let joined = row.joined.iter().flatten().copied();
        lists.concat().into_iter().chain(joined).max()
    };
    match rows.iter().filter_map(highest).max() {
        Some(client) if client as usize >= n_clients => Err(format!(
            "the record has a client {client}, but [data] has only clients 0 to {}; split the data among {} or more",
            n_clients.saturating_sub(1),
            client + 1
        )),
        _ => Ok(()),
    }
}

/// The recorded arrivals and departures.
fn membership(rows: &[Row], n_clients: usize) -> Membership {
    let events = |of: fn(&Row) -> &Vec<[u32; 2]>| {
        let each = |row: &Row| {
            let (number, id_ranges) = (row.round, of(row).clone());
            let clients = id_ranges.into_iter().flat_map(|[first, last]| first..=last);
            clients.map(move |client| Event::single(number, client)).collect::<Vec<_>>()
        };
        rows.iter().flat_map(each).collect()
    };
    Membership::from_record(events(|row| &row.joined), events(|row| &row.left), n_clients)
}

/// Availability as recorded.
pub(crate) struct RecordedAvailability(pub(crate) Arc<Replay>);

impl Availability for RecordedAvailability {
    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        up.clear();
        if let Some(round) = self.0.rounds.get(number as usize) {
            let known = round.up.iter().filter(|&idx| idx < up.len());
            known.collect::<Vec<_>>().into_iter().for_each(|idx| up.set(idx, true));
        }
    }

    fn remarks(&self) -> &[String] {
        &self.0.remarks
    }
}

stateless!(RecordedAvailability);

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;

    /// A line of `rounds.jsonl` with these participants.
    fn line(round: u32, lists: &str) -> String {
        let mut row: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for name in ["up", "asked", "whole", "partial", "partial_steps", "absent", "late", "late_base"] {
            row.insert(name.to_owned(), Vec::new());
        }
        for list in lists.split_whitespace() {
            let (name, clients) = list.split_once('=').unwrap();
            let numbers = clients.split(',').map(|number| number.parse().unwrap());
            row.insert(name.to_owned(), numbers.collect());
        }
        let whole =
            |number: &f64| if number.fract() == 0.0 { format!("{number:.0}") } else { number.to_string() };
        let list = |(name, numbers): (&String, &Vec<f64>)| {
            format!("\"{name}\":[{}]", numbers.iter().map(whole).collect::<Vec<_>>().join(","))
        };
        let (n_up, lists) = (row["up"].len(), row.iter().map(list).collect::<Vec<_>>().join(","));
        let joined = if round == 0 { "[[0,3]]" } else { "[]" };
        format!(
            "{{\"round\":{round},\"n_enrolled\":4,\"joined\":{joined},\"left\":[],\"n_up\":{n_up},{lists},\"refused\":[],\
             \"refused_why\":[],\"learning_rate\":0.1,\"step_norm\":1.0,\"elapsed_s\":9.0,\"virtual_s\":9.0,\"bytes_down\":0,\"bytes_up\":0,\
             \"bytes_total\":0}}\n"
        )
    }

    /// Reads such rounds under a seed, in a run of this many clients.
    fn read(rounds: &[&str], settings: &str, seed: u64, n_clients: usize) -> Result<Replay, String> {
        let folder = tempfile::tempdir().unwrap();
        let lines: String = rounds.iter().zip(0..).map(|(lists, round)| line(round, lists)).collect();
        std::fs::write(folder.path().join("a.jsonl"), lines).unwrap();
        // The path is relative to the file of the settings.
        let file = folder.path().join("world.toml").display().to_string();
        let text = format!("[world.replay]\nrecord = \"a.jsonl\"\n{settings}");
        let tree = Tree::parse(&text, &file).unwrap();
        let context = BuildContext { seed, n_clients, n_rounds: 0 };
        let without_folder =
            |error: SettingsError| error.to_string().replace(folder.path().to_str().unwrap(), "at");
        Replay::read(&tree.table("world", context)).map(|(replay, _)| replay).map_err(without_folder)
    }

    fn replay(rounds: &[&str], settings: &str) -> Replay {
        read(rounds, settings, 1, 4).unwrap()
    }

    fn client(idx: usize) -> ClientId {
        ClientId::new(idx)
    }

    fn on_time(steps: u32, took_s: f64) -> RecordedOutcome {
        RecordedOutcome::OnTime(OnTimeUpdate { steps: NonZeroU32::new(steps), took_s })
    }

    #[test]
    fn recorded_outcomes_are_known_and_all_others_are_imputed() {
        let rounds = [
            "up=0,1,2 asked=0,1,3 whole=0 partial=1 partial_steps=4 absent=3 took_s=1.5,2.5",
            "up=0,1,2,3 busy=3 asked=2,3 absent=2,3",
            "up=0,1,2,3 late=2 late_base=1 asked=0 whole=0",
        ];
        let replay = replay(&rounds, "impute = \"silent\"");
        let check = |number, idx, busy, outcome, imputed| {
            assert_eq!(replay.outcome(number, client(idx), busy), (outcome, imputed), "{idx} in {number}");
        };
        check(0, 0, false, on_time(0, 1.5), false);
        check(0, 1, false, on_time(4, 2.5), false);
        check(0, 2, false, RecordedOutcome::Silent, true);
        // The client was down and selected all the same.
        check(0, 3, false, RecordedOutcome::Silent, false);
        // The client was down and not selected. It is silent, which the rule does not impute.
        let down = super::tests::replay(&["up=0 asked=0 whole=0"], "impute = \"answers\"");
        assert_eq!(down.outcome(0, client(1), false), (RecordedOutcome::Silent, false));
        check(1, 2, false, RecordedOutcome::Late(2), false);
        // The client was busy then and was sent nothing. Now it may be free, busy as recorded, or busy with
        // another job.
        check(1, 3, false, RecordedOutcome::Silent, true);
        check(1, 3, true, RecordedOutcome::Silent, false);
        check(1, 2, true, RecordedOutcome::Silent, false);
        // Its response time is unknown, but not longer than the round.
        check(2, 0, false, on_time(0, 9.0), false);
        // The record has no such round.
        check(3, 0, false, RecordedOutcome::Silent, false);
    }

    #[test]
    fn imputed_outcomes_of_an_earlier_replay_are_not_known() {
        let known = "up=0,1 asked=0,1 whole=0,1 took_s=1,2";
        let replay = replay(&[known], "impute = \"silent\"");
        assert_eq!(replay.outcome(0, client(1), false), (on_time(0, 2.0), false));
        let line =
            line(0, known).replace("\"refused\"", "\"imputed_by\":\"answers\",\"imputed\":[1],\"refused\"");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.jsonl"), line).unwrap();
        let recorded = RecordedRounds::read(&folder.path().join("a.jsonl")).unwrap();
        let replay = Replay::new(recorded, ImputationRule::Silent, 1, 4);
        assert_eq!(replay.outcome(0, client(1), false), (RecordedOutcome::Silent, true));
        assert_eq!(replay.outcome(0, client(0), false), (on_time(0, 1.0), false));
    }

    #[test]
    fn a_response_rate_is_the_clients_own_shrunk_towards_the_fleets() {
        let rounds = ["up=0,1,2,3 asked=0,1 whole=0 absent=1", "up=0,1,2,3 asked=0,1 whole=0 absent=1"];
        let replay = replay(&rounds, "");
        let rates: Vec<_> = (0..4).map(|idx| replay.response_rate(client(idx))).collect();
        // 2 of 2 and 0 of 2, and one observation at the fleet's 2 of 4.
        assert_eq!(rates, [2.5 / 3.0, 0.5 / 3.0, 0.5, 0.5]);
        // A client that was down or busy says nothing about clients that are up and free.
        let rounds = ["up=1,2,3 busy=1 asked=0,1,2 whole=2 absent=0,1"];
        let replay = super::tests::replay(&rounds, "");
        assert_eq!(replay.response_rate(client(2)), 1.0);
        assert_eq!((replay.response_rate(client(0)), replay.response_rate(client(1))), (1.0, 1.0));
    }

    #[test]
    fn imputed_updates_come_as_often_as_the_response_rate_and_are_like_the_clients_own() {
        let first = ["up=0,1,2,3 asked=0,1 whole=0 partial=1 partial_steps=3 took_s=1,2"; 3];
        let second = ["up=0,1,2,3 asked=0,1 whole=0 absent=1 took_s=1"; 1];
        let third = ["up=0,1,2,3 asked=2 absent=2"; 2000];
        let rounds = [&first[..], &second, &third].concat();
        let play = |seed, impute: &str| {
            let replay = read(&rounds, &format!("impute = \"{impute}\""), seed, 4).unwrap();
            let outcome = |number| {
                let (outcome, imputed) = replay.outcome(number, client(1), false);
                assert!(imputed);
                outcome
            };
            (4..2004).map(outcome).collect::<Vec<_>>()
        };
        let own = play(1, "own-rate");
        assert!(own.iter().all(|outcome| *outcome == RecordedOutcome::Silent || *outcome == on_time(3, 2.0)));
        let n_on_time = own.iter().filter(|outcome| **outcome != RecordedOutcome::Silent).count() as f64;
        // 3 of 4, and one observation at the fleet's 7 of 2008: 0.6 within three standard deviations of 2000
        // draws.
        let rate = (3.0 + 7.0 / 2008.0) / 5.0;
        assert!((n_on_time / 2000.0 - rate).abs() < 3.0 * (rate * (1.0 - rate) / 2000.0_f64).sqrt());
        assert!(own == play(1, "own-rate") && own != play(2, "own-rate"));
        assert!(play(1, "answers").iter().all(|outcome| *outcome == on_time(0, 2.0)));
        assert!(play(1, "silent").iter().all(|outcome| *outcome == RecordedOutcome::Silent));
    }

    #[test]
    fn an_unusable_record_is_reported_with_the_remedy() {
        let check = |rounds: &[&str], settings: &str, n_clients, expected: &str| {
            assert_eq!(read(rounds, settings, 1, n_clients).unwrap_err(), expected);
        };
        check(
            &["up=0,3 asked=0 whole=0"],
            "",
            3,
            "at/world.toml:2:1: world.replay.record = \"a.jsonl\": at/a.jsonl: the record has a client 3, but [data] has only \
             clients 0 to 2; split the data among 4 or more",
        );
        check(
            &[],
            "",
            4,
            "at/world.toml:2:1: world.replay.record = \"a.jsonl\": at/a.jsonl: no round is recorded yet; give a run with recorded rounds",
        );
        check(
            &["up=0,1 asked=2 absent=2"],
            "impute = \"own-rate\"",
            4,
            "at/world.toml:3:1: world.replay.impute = \"own-rate\": no client in this record was selected while it was up, so \
             response rates are unknown; use \"answers\" or \"silent\"",
        );
        let error = read(&["up=0 asked=0 whole=0"], "crc32 = \"00000000\"", 1, 4).unwrap_err();
        assert!(error.starts_with(
            "at/world.toml:3:1: world.replay.crc32 = \"00000000\": the rounds in at/a.jsonl have "
        ));
        assert!(error.ends_with("; restore them, or leave out crc32"), "{error}");
    }
}
