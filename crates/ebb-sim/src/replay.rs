//! What was recorded of a run, played again: who was there when, and what came of asking those that were asked then. What would have come
//! of asking others nobody saw; it is guessed by a rule that has a name.

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
    /// The folder of a run, or a file of its rounds, relative to the file in which this is written.
    record: String,
    #[serde(default)]
    impute: Impute,
    /// The checksum of the rounds, if it matters that they are still the same.
    crc32: Option<String>,
}

/// What is taken to come of asking a client that was up and was not asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Impute {
    /// It answers as often as it did when it was asked, and its answers are like those.
    #[default]
    OwnRate,
    /// It answers, with all of the work.
    Answers,
    /// It stays silent.
    Silent,
}

impl Impute {
    fn name(self) -> &'static str {
        match self {
            Impute::OwnRate => "own-rate",
            Impute::Answers => "answers",
            Impute::Silent => "silent",
        }
    }
}

/// A run that is replayed.
#[derive(Debug)]
pub(crate) struct Replay {
    rounds: Vec<Played>,
    impute: Impute,
    seed: u64,
    /// What is known of each client, and of all together.
    clients: Vec<History>,
    fleet: History,
    bytes: Vec<u8>,
    notes: Vec<String>,
}

/// What is known of a round.
#[derive(Debug)]
struct Played {
    up: Bits,
    busy: Bits,
    /// Of everybody who was asked, unless it is a guess itself.
    told: BTreeMap<ClientId, Told>,
    n_asked: usize,
    elapsed_s: f64,
}

/// What comes of asking a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Told {
    /// It answers on time.
    Answered(Answered),
    /// Its answer arrives in a later round.
    Late(RoundNo),
    /// Nothing that could be used.
    Silent,
}

/// An answer on time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answered {
    /// Steps, if not all that were asked for.
    pub(crate) steps: Option<NonZeroU32>,
    pub(crate) took_s: f64,
}

/// What came of asking a client that was up and free.
#[derive(Clone, Debug, Default)]
struct History {
    n_asked: u32,
    answers: Vec<Answered>,
}

/// A client's own rate counts as if it had been asked so many times more, with the outcomes of the whole fleet.
const LIKE_THE_FLEET: f64 = 1.0;

impl Replay {
    /// Reads what `[world.replay]` names, for a run of so many clients.
    pub(crate) fn read(world: &Settings<'_>) -> Result<(Replay, Membership), SettingsError> {
        let settings = world.inner("replay");
        let table: Table = settings.parse()?;
        let path = find(&settings, &table.record);
        let remedy = "give the folder of a run, or a file of its rounds";
        let recorded = RecordedRounds::read(&path)
            .map_err(|error| settings.error("record", format!("{error}; {remedy}")))?;
        let found = recorded.checksum();
        if table.crc32.as_ref().is_some_and(|wanted| *wanted != found) {
            let message = format!(
                "the rounds in {} have {found}, so they are not those that this was written for; restore them, or leave this out",
                path.display()
            );
            return Err(settings.error("crc32", message));
        }
        let n_clients = settings.context().n_clients;
        check(&recorded.rows, n_clients)
            .map_err(|message| settings.error("record", format!("{}: {message}", path.display())))?;
        // The record of the replay carries its own copy, so that it can be repeated from itself alone.
        settings.resolve("record", REPLAYED);
        settings.resolve("crc32", found);
        let data = settings.at_path("data").text("kind").map(str::to_owned);
        let membership = membership(&recorded.rows, n_clients);
        let mut replay = Replay::new(recorded, table.impute, settings.context().seed, n_clients);
        if table.impute == Impute::OwnRate && replay.fleet.n_asked == 0 {
            let message = "nobody in this record was asked while it was up, so nobody has a rate; take \"answers\" or \"silent\"";
            return Err(settings.error("impute", message));
        }
        let n_rounds = replay.rounds.len();
        replay.notes = vec![format!(
            "replays the participation of {n_rounds} recorded rounds; outcomes of clients that were up and not asked are guesses \
                 (impute = \"{}\"), clients that were down are taken to be silent",
            table.impute.name()
        )];
        let proxy = |kind| {
            format!("proxy data: [data] kind = \"{kind}\" stands in for what the recorded clients held")
        };
        replay.notes.extend(data.map(proxy));
        Ok((replay, membership))
    }

    fn new(recorded: RecordedRounds, impute: Impute, seed: u64, n_clients: usize) -> Replay {
        let mut rounds: Vec<_> = recorded.rows.iter().map(|row| Played::of(row, n_clients)).collect();
        for (row, number) in recorded.rows.iter().zip(0..) {
            for (&client, &base) in row.late.iter().zip(&row.late_base) {
                let told = rounds.get_mut(base as usize).map(|round| &mut round.told);
                // Where the answer to an earlier round was a guess, so is this.
                if let Some(told) = told.and_then(|told| told.get_mut(&ClientId::new(client as usize))) {
                    *told = Told::Late(number);
                }
            }
        }
        let (mut clients, mut fleet) = (vec![History::default(); n_clients], History::default());
        for round in &rounds {
            let free = |client: ClientId| round.up.get(client.idx()) && !round.busy.get(client.idx());
            for (&client, told) in round.told.iter().filter(|(client, _)| free(**client)) {
                for history in [&mut clients[client.idx()], &mut fleet] {
                    history.n_asked += 1;
                    if let Told::Answered(answer) = told {
                        history.answers.push(*answer);
                    }
                }
            }
        }
        Replay { rounds, impute, seed, clients, fleet, bytes: recorded.bytes, notes: Vec::new() }
    }

    /// What comes of asking a client that is busy or not, and whether that is a guess.
    pub(crate) fn outcome(&self, number: RoundNo, client: ClientId, busy: bool) -> (Told, bool) {
        let idx = client.idx();
        let Some(round) = self.rounds.get(number as usize) else { return (Told::Silent, false) };
        let told = round.told.get(&client).copied();
        match (told, busy, round.busy.get(idx)) {
            // At work for another round by the replay's own course.
            (_, true, false) | (None, true, true) => (Told::Silent, false),
            // That it was sent nothing says nothing of a client that is free.
            (Some(Told::Silent), false, true) => self.unknown(number, client),
            (Some(told), ..) => (told, false),
            (None, false, _) => self.unknown(number, client),
        }
    }

    /// What comes of asking a client that was not asked.
    fn unknown(&self, number: RoundNo, client: ClientId) -> (Told, bool) {
        let up = self.rounds[number as usize].up.get(client.idx());
        if up { (self.guess(number, client), true) } else { (Told::Silent, false) }
    }

    fn guess(&self, number: RoundNo, client: ClientId) -> Told {
        let mut stream = Stream::of_client_round(self.seed, "impute", number, client);
        let answers = match self.impute {
            Impute::OwnRate => stream.bernoulli(self.rate(client)),
            Impute::Answers => true,
            Impute::Silent => false,
        };
        if !answers {
            return Told::Silent;
        }
        let own = &self.clients[client.idx()].answers;
        let among = if own.is_empty() { &self.fleet.answers } else { own };
        // Where nobody ever answered it takes as long as the round was open.
        let whole = Answered { steps: None, took_s: self.rounds[number as usize].elapsed_s };
        let like = if among.is_empty() { whole } else { among[stream.below(among.len())] };
        match self.impute {
            Impute::OwnRate => Told::Answered(like),
            Impute::Answers | Impute::Silent => Told::Answered(Answered { steps: None, ..like }),
        }
    }

    /// How often a client that is up and free answers on time, as far as the record knows.
    fn rate(&self, client: ClientId) -> f64 {
        let share = |history: &History| history.answers.len() as f64 / f64::from(history.n_asked);
        let own = &self.clients[client.idx()];
        let n_answered = own.answers.len() as f64 + LIKE_THE_FLEET * share(&self.fleet);
        n_answered / (f64::from(own.n_asked) + LIKE_THE_FLEET)
    }

    /// How long a client takes, as far as the record knows.
    pub(crate) fn usual_s(&self, client: ClientId) -> f64 {
        let own = &self.clients[client.idx()].answers;
        let among = if own.is_empty() { &self.fleet.answers } else { own };
        let sum_s: f64 = among.iter().map(|answer| answer.took_s).sum();
        if among.is_empty() { 0.0 } else { sum_s / among.len() as f64 }
    }

    /// Whether a client was busy when a round began.
    pub(crate) fn was_busy(&self, number: RoundNo, client: ClientId) -> bool {
        self.rounds.get(number as usize).is_some_and(|round| round.busy.get(client.idx()))
    }

    /// How long a round took in which just these were asked, if that is so.
    pub(crate) fn elapsed_s(&self, number: RoundNo, orders: &[Assignment]) -> Option<f64> {
        let round = self.rounds.get(number as usize)?;
        let same = orders.len() == round.n_asked && orders.len() == round.told.len();
        (same && orders.iter().all(|order| round.told.contains_key(&order.client))).then_some(round.elapsed_s)
    }

    /// The rule for what nobody saw.
    pub(crate) fn rule(&self) -> &'static str {
        self.impute.name()
    }

    /// How many rounds were recorded.
    pub(crate) fn n_rounds(&self) -> u32 {
        self.rounds.len() as u32
    }

    /// The rounds as they were read.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Played {
    fn of(row: &Row, n_clients: usize) -> Played {
        let bits = |clients: Vec<u32>| {
            let mut bits = Bits::new(n_clients);
            clients.into_iter().for_each(|client| bits.set(client as usize, true));
            bits
        };
        let elapsed_s = if row.elapsed_s.is_finite() { row.elapsed_s } else { 0.0 };
        let id = |client: u32| ClientId::new(client as usize);
        let asked = row.selected();
        let n_asked = asked.len();
        let mut told: BTreeMap<_, _> = asked.into_iter().map(|client| (id(client), Told::Silent)).collect();
        let steps: BTreeMap<_, _> = row.partial().into_iter().zip(&row.partial_steps).collect();
        for (client, took_s) in row.on_time() {
            let steps = steps.get(&client).and_then(|&&steps| NonZeroU32::new(steps));
            let answer = Answered { steps, took_s: took_s.unwrap_or(elapsed_s) };
            told.insert(id(client), Told::Answered(answer));
        }
        // Guesses of an earlier replay are not known any better now.
        row.imputed.iter().for_each(|&client| {
            told.remove(&id(client));
        });
        Played { up: bits(row.up()), busy: bits(row.busy()), told, n_asked, elapsed_s }
    }
}

/// Where a record is: relative to the file in which that is written, and to the current folder where it is typed.
fn find(settings: &Settings<'_>, record: &str) -> PathBuf {
    match settings.error("record", "").origin {
        Some(Origin::File { file, .. }) => {
            Path::new(&file).parent().map_or_else(PathBuf::new, Path::to_path_buf).join(record)
        }
        _ => PathBuf::from(record),
    }
}

/// Whether a run of so many clients can be told by these rows.
fn check(rows: &[Row], n_clients: usize) -> Result<(), String> {
    if rows.is_empty() {
        return Err("no round is recorded yet; give a run that has some".to_owned());
    }
    if let Some((at, row)) = rows.iter().enumerate().find(|(at, row)| row.round as usize != *at) {
        return Err(format!("line {} is round {}, not {at}; restore the file", at + 1, row.round));
    }
    let highest = |row: &Row| {
        let lists = [row.up(), row.busy(), row.selected(), row.whole(), row.partial(), row.late.clone()];
        let joined = row.joined.iter().flatten().copied();
        lists.concat().into_iter().chain(joined).max()
    };
    match rows.iter().filter_map(highest).max() {
        Some(client) if client as usize >= n_clients => Err(format!(
            "it has a client {client}, for which [data] has nothing: its clients are 0 to {}; split the data among {} or more",
            n_clients.saturating_sub(1),
            client + 1
        )),
        _ => Ok(()),
    }
}

/// Who came and went when.
fn membership(rows: &[Row], n_clients: usize) -> Membership {
    let events = |of: fn(&Row) -> &Vec<[u32; 2]>| {
        let each = |row: &Row| {
            let (number, stretches) = (row.round, of(row).clone());
            let clients = stretches.into_iter().flat_map(|[first, last]| first..=last);
            clients.map(move |client| Event::one(number, client)).collect::<Vec<_>>()
        };
        rows.iter().flat_map(each).collect()
    };
    Membership::recorded(events(|row| &row.joined), events(|row| &row.left), n_clients)
}

/// Who was up, by the record.
pub(crate) struct WasUp(pub(crate) Arc<Replay>);

impl Availability for WasUp {
    fn write(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        up.clear();
        if let Some(round) = self.0.rounds.get(number as usize) {
            let known = round.up.iter().filter(|&idx| idx < up.len());
            known.collect::<Vec<_>>().into_iter().for_each(|idx| up.set(idx, true));
        }
    }

    fn notes(&self) -> &[String] {
        &self.0.notes
    }
}

stateless!(WasUp);

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
             \"refused_why\":[],\"rate\":0.1,\"step_norm\":1.0,\"elapsed_s\":9.0,\"virtual_s\":9.0,\"bytes_down\":0,\"bytes_up\":0,\
             \"bytes_total\":0}}\n"
        )
    }

    /// What is read of such rounds under a seed, in a run of so many clients.
    fn read(rounds: &[&str], settings: &str, seed: u64, n_clients: usize) -> Result<Replay, String> {
        let folder = tempfile::tempdir().unwrap();
        let lines: String = rounds.iter().zip(0..).map(|(lists, round)| line(round, lists)).collect();
        std::fs::write(folder.path().join("a.jsonl"), lines).unwrap();
        // The path is relative to the file of the settings.
        let file = folder.path().join("world.toml").display().to_string();
        let text = format!("[world.replay]\nrecord = \"a.jsonl\"\n{settings}");
        let tree = Tree::parse(&text, &file).unwrap();
        let facts = BuildContext { seed, n_clients, n_rounds: 0 };
        let told = |error: SettingsError| error.to_string().replace(folder.path().to_str().unwrap(), "at");
        Replay::read(&tree.table("world", facts)).map(|(replay, _)| replay).map_err(told)
    }

    fn replay(rounds: &[&str], settings: &str) -> Replay {
        read(rounds, settings, 1, 4).unwrap()
    }

    fn client(idx: usize) -> ClientId {
        ClientId::new(idx)
    }

    fn answered(steps: u32, took_s: f64) -> Told {
        Told::Answered(Answered { steps: NonZeroU32::new(steps), took_s })
    }

    #[test]
    fn what_was_recorded_is_known_and_the_rest_is_not() {
        let rounds = [
            "up=0,1,2 asked=0,1,3 whole=0 partial=1 partial_steps=4 absent=3 took_s=1.5,2.5",
            "up=0,1,2,3 busy=3 asked=2,3 absent=2,3",
            "up=0,1,2,3 late=2 late_base=1 asked=0 whole=0",
        ];
        let replay = replay(&rounds, "impute = \"silent\"");
        let check = |number, idx, busy, told, imputed| {
            assert_eq!(replay.outcome(number, client(idx), busy), (told, imputed), "{idx} in {number}");
        };
        check(0, 0, false, answered(0, 1.5), false);
        check(0, 1, false, answered(4, 2.5), false);
        check(0, 2, false, Told::Silent, true);
        // Down, and asked all the same.
        check(0, 3, false, Told::Silent, false);
        // Down, and not asked: taken to be silent, which is no guess of the rule's.
        let down = super::tests::replay(&["up=0 asked=0 whole=0"], "impute = \"answers\"");
        assert_eq!(down.outcome(0, client(1), false), (Told::Silent, false));
        check(1, 2, false, Told::Late(2), false);
        // It was busy then and was sent nothing. Now it may be free, or busy as it was then, or by another job.
        check(1, 3, false, Told::Silent, true);
        check(1, 3, true, Told::Silent, false);
        check(1, 2, true, Told::Silent, false);
        // Nobody knows when it answered, but it was before the round was over.
        check(2, 0, false, answered(0, 9.0), false);
        // There was no such round.
        check(3, 0, false, Told::Silent, false);
    }

    #[test]
    fn guesses_of_an_earlier_replay_are_not_known() {
        let known = "up=0,1 asked=0,1 whole=0,1 took_s=1,2";
        let replay = replay(&[known], "impute = \"silent\"");
        assert_eq!(replay.outcome(0, client(1), false), (answered(0, 2.0), false));
        let line =
            line(0, known).replace("\"refused\"", "\"imputed_by\":\"answers\",\"imputed\":[1],\"refused\"");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.jsonl"), line).unwrap();
        let recorded = RecordedRounds::read(&folder.path().join("a.jsonl")).unwrap();
        let replay = Replay::new(recorded, Impute::Silent, 1, 4);
        assert_eq!(replay.outcome(0, client(1), false), (Told::Silent, true));
        assert_eq!(replay.outcome(0, client(0), false), (answered(0, 1.0), false));
    }

    #[test]
    fn a_client_has_its_own_rate_and_a_little_of_the_fleets() {
        let rounds = ["up=0,1,2,3 asked=0,1 whole=0 absent=1", "up=0,1,2,3 asked=0,1 whole=0 absent=1"];
        let replay = replay(&rounds, "");
        let rates: Vec<_> = (0..4).map(|idx| replay.rate(client(idx))).collect();
        // 2 of 2, 0 of 2, and 2 of 4 of all, which counts once.
        assert_eq!(rates, [2.5 / 3.0, 0.5 / 3.0, 0.5, 0.5]);
        // Who was down, or busy, says nothing of those that are up and free.
        let rounds = ["up=1,2,3 busy=1 asked=0,1,2 whole=2 absent=0,1"];
        let replay = super::tests::replay(&rounds, "");
        assert_eq!(replay.rate(client(2)), 1.0);
        assert_eq!((replay.rate(client(0)), replay.rate(client(1))), (1.0, 1.0));
    }

    #[test]
    fn guesses_come_as_often_as_the_rate_and_are_like_the_clients_own() {
        let first = ["up=0,1,2,3 asked=0,1 whole=0 partial=1 partial_steps=3 took_s=1,2"; 3];
        let second = ["up=0,1,2,3 asked=0,1 whole=0 absent=1 took_s=1"; 1];
        let third = ["up=0,1,2,3 asked=2 absent=2"; 2000];
        let rounds = [&first[..], &second, &third].concat();
        let play = |seed, impute: &str| {
            let replay = read(&rounds, &format!("impute = \"{impute}\""), seed, 4).unwrap();
            let outcome = |number| {
                let (told, imputed) = replay.outcome(number, client(1), false);
                assert!(imputed);
                told
            };
            (4..2004).map(outcome).collect::<Vec<_>>()
        };
        let own = play(1, "own-rate");
        assert!(own.iter().all(|told| *told == Told::Silent || *told == answered(3, 2.0)));
        let n_answered = own.iter().filter(|told| **told != Told::Silent).count() as f64;
        // 3 of 4, and 7 of 2008 of all, which counts once: 0.6 within three deviations of 2000 draws.
        let rate = (3.0 + 7.0 / 2008.0) / 5.0;
        assert!((n_answered / 2000.0 - rate).abs() < 3.0 * (rate * (1.0 - rate) / 2000.0_f64).sqrt());
        assert!(own == play(1, "own-rate") && own != play(2, "own-rate"));
        assert!(play(1, "answers").iter().all(|told| *told == answered(0, 2.0)));
        assert!(play(1, "silent").iter().all(|told| *told == Told::Silent));
    }

    #[test]
    fn a_record_that_cannot_be_played_is_named_with_the_remedy() {
        let check = |rounds: &[&str], settings: &str, n_clients, expected: &str| {
            assert_eq!(read(rounds, settings, 1, n_clients).unwrap_err(), expected);
        };
        check(
            &["up=0,3 asked=0 whole=0"],
            "",
            3,
            "at/world.toml:2:1: world.replay.record = \"a.jsonl\": at/a.jsonl: it has a client 3, for which [data] has nothing: its \
             clients are 0 to 2; split the data among 4 or more",
        );
        check(
            &[],
            "",
            4,
            "at/world.toml:2:1: world.replay.record = \"a.jsonl\": at/a.jsonl: no round is recorded yet; give a run that has some",
        );
        check(
            &["up=0,1 asked=2 absent=2"],
            "impute = \"own-rate\"",
            4,
            "at/world.toml:3:1: world.replay.impute = \"own-rate\": nobody in this record was asked while it was up, so nobody has a \
             rate; take \"answers\" or \"silent\"",
        );
        let error = read(&["up=0 asked=0 whole=0"], "crc32 = \"00000000\"", 1, 4).unwrap_err();
        assert!(error.starts_with(
            "at/world.toml:3:1: world.replay.crc32 = \"00000000\": the rounds in at/a.jsonl have "
        ));
        assert!(error.ends_with("; restore them, or leave this out"), "{error}");
    }
}
