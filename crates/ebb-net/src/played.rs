//! A script of who answers what, played by a simulated fleet and by this one, with kills in between: the records are the same.

mod cuts;
mod questions;

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ebb_methods::Registry;
use ebb_record::Row;
use ebb_round::{
    ClientId, Engine, Evaluator, Fleet, FleetError, Job, Loader, LocalRule, Parcel, RoundNo, RunContext,
    Saver, SideName, State,
};
use ebb_settings::{BuildContext, Origin, Tree};
use ebb_sim::{SimFleet, World};
use ebb_train::backend::{Threads, TrainingJob, train_while};
use ebb_train::{Evaluation, Memory, Task, TaskEvaluator, data};

use crate::client::checks;
use crate::course::Course;
use crate::desk::{Abilities, AfterDeadline, Desk, Line, Rules};
use crate::digest::Digest;
use crate::fleet::{ClientJudge, NetFleet};
use crate::journal::Entry;
use crate::members::Members;
use crate::pack::{Packing, pack, unpack};
use crate::shared::{Outlet, Pace, STOPPED, Shared};
use crate::store::Store;
use crate::tokens::{Key, Terms};
use crate::wire::from_client::Message as Said;
use crate::wire::from_server::Message as Say;
use crate::{VERSION, convert, wire};

const N_CLIENTS: usize = 3;
const DEADLINE_S: f64 = 10.0;

/// What a client does in a round in which it is up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Whole,
    Steps(u32),
    Late(u32),
    Nan,
    Short,
}

use Act::{Late, Nan, Short, Steps, Whole};

const SCRIPT: &[&[(usize, Act)]] = &[
    &[(0, Whole), (1, Whole), (2, Whole)],
    &[(0, Whole), (1, Steps(1))],
    &[(0, Whole), (2, Late(1))],
    &[(0, Nan), (1, Whole), (2, Whole)],
    &[(1, Late(2)), (2, Short)],
    &[(0, Whole), (2, Steps(2))],
    &[(0, Whole), (1, Whole), (2, Whole)],
    &[(1, Whole)],
    &[(0, Late(1)), (1, Late(1)), (2, Late(1))],
    &[(0, Whole), (1, Whole), (2, Whole)],
];

fn script() -> String {
    let act = |&(client, act): &(usize, Act)| match act {
        Whole => format!("{client}"),
        Steps(steps) => format!("{{ client = {client}, steps = {steps} }}"),
        Late(late) => format!("{{ client = {client}, late = {late} }}"),
        Nan => format!("{{ client = {client}, sends = \"nan\" }}"),
        Short => format!("{{ client = {client}, sends = \"short\" }}"),
    };
    let round = |acts: &&[(usize, Act)]| format!("[{}]", acts.iter().map(act).collect::<Vec<_>>().join(", "));
    SCRIPT.iter().map(round).collect::<Vec<_>>().join(", ")
}

/// A run of a recipe on three quadratics.
fn settings(recipe: &str) -> Tree {
    // Some recipes ask so many, some ask everybody.
    let select = match recipe {
        "scaffold" => "cohort = 3",
        "e3cs" => "cohort = 2",
        "fast" => "cohort = 2\nchance = 0.5",
        // Whoever is away is not probed by a server, and in simulation is waited for.
        "pow-d" => "cohort = 2\ncandidates = 3\namong = \"up\"",
        _ => "",
    };
    let text = format!(
        "recipe = \"{recipe}\"\n[data]\nkind = \"quadratic\"\ncentres = [[0.0, 1.0], [3.0, -1.0], [6.0, 2.0]]\nstart = [10.0, 0.0]\n\
         [world]\nscript = [{}]\nstep_s = 0.0\nupload_s = 0.0\ndeadline_s = {DEADLINE_S:?}\n\
         patience_s = 100.0\nwhen_waited_for = \"never\"\n[select]\n{select}\n[local]\nrate = 0.1\nsteps = 3\n",
        script()
    );
    Registry::standard().with_recipe(Tree::parse(&text, "played").unwrap()).unwrap()
}

struct Run {
    engine: Engine,
    task: Arc<dyn Task>,
    rule: Arc<dyn LocalRule>,
    evaluator: TaskEvaluator,
    /// Who judges instead, if somebody does.
    judge: Option<ClientJudge>,
}

fn assemble(tree: &Tree) -> Run {
    let mut facts = BuildContext { seed: 1, n_rounds: SCRIPT.len() as u32, ..BuildContext::default() };
    let task = data::build(&tree.table("data", facts)).unwrap();
    facts.n_clients = task.n_clients();
    let mut roles = Registry::standard().build(tree, facts).unwrap();
    roles.server.start_from(task.initial());
    let rule = Arc::clone(&roles.local);
    let evaluation = Evaluation::build(&tree.table("evaluate", facts), task.as_ref()).unwrap();
    let facts = RunContext {
        seed: 1,
        deadline_s: DEADLINE_S,
        threads: 1,
        trained_ranges: task.layout().trained_ranges(),
        ..RunContext::default()
    };
    let evaluator = TaskEvaluator::new(Arc::clone(&task), evaluation, SCRIPT.len() as u32, NonZeroUsize::MIN);
    Run { engine: Engine::new(roles, facts), task, rule, evaluator, judge: None }
}

/// Plays the next round, and returns its line of the record, without what only a simulation can know.
fn round(run: &mut Run, fleet: &mut dyn Fleet) -> Result<String, FleetError> {
    let evaluator: &mut dyn Evaluator = match &mut run.judge {
        Some(judge) => judge,
        None => &mut run.evaluator,
    };
    let mut outcome = run.engine.round(fleet, evaluator)?;
    run.judge.as_mut().and_then(ClientJudge::failed).map_or(Ok(()), Err)?;
    outcome.oracle_silent = None;
    let row = Row::new(run.engine.census(), &outcome, Some(&run.engine.model().model));
    Ok(serde_json::to_string(&row).unwrap())
}

fn simulated(recipe: &str) -> Vec<String> {
    simulated_in(&settings(recipe))
}

fn simulated_in(tree: &Tree) -> Vec<String> {
    let mut run = assemble(tree);
    let facts = BuildContext { seed: 1, n_clients: N_CLIENTS, ..BuildContext::default() };
    let world = World::build(&tree.table("world", facts), run.task.as_ref()).unwrap();
    let threads = Box::new(Threads::new(NonZeroUsize::MIN));
    let mut fleet = SimFleet::new(world, Arc::clone(&run.task), Arc::clone(&run.rule), threads, 1);
    (0..SCRIPT.len()).map(|_| round(&mut run, &mut fleet).unwrap()).collect()
}

/// A client of the script: it holds what a client process holds.
struct Actor {
    client: usize,
    line: Option<Line>,
    inbox: Arc<Mutex<Vec<Say>>>,
    session: Bytes,
    memory: Memory,
    /// The job in hand and the answer to it, and the round in which that arrives.
    answer: Option<(RoundNo, wire::Answer, Bytes)>,
}

struct ToActor {
    inbox: Arc<Mutex<Vec<Say>>>,
    client: ClientId,
    store: Arc<Store>,
}

impl Outlet for ToActor {
    fn say(&self, say: Say) -> bool {
        if let Say::Settled(settled) = &say
            && settled.refused.is_empty()
        {
            let is_it = |entry: &Entry| matches!(entry, Entry::Answered(one) if (one.client, one.base) == (self.client, settled.round));
            assert!(entries(&self.store).iter().any(is_it), "heard of before it is on the disk: {settled:?}");
        }
        self.inbox.lock().unwrap().push(say);
        true
    }
}

/// The journal as it is on the disk.
fn entries(store: &Store) -> Vec<Entry> {
    store.entries(0).unwrap().iter().map(|(_, bytes)| Entry::read(bytes).unwrap()).collect()
}

/// The clients and their clock. Time passes only when nothing is left to be done.
struct Theatre {
    stage: Mutex<Stage>,
    task: Arc<dyn Task>,
    rule: Arc<dyn LocalRule>,
    /// Whether the clients judge the model after every round.
    judged: bool,
    key: [u8; 32],
}

struct Stage {
    now_s: f64,
    actors: Vec<Actor>,
    /// After so many messages the server is killed.
    left: usize,
}

/// The theatre as the fleet sees it.
struct Play(Arc<Theatre>);

impl Pace for Play {
    fn now_s(&self) -> f64 {
        self.0.stage.lock().unwrap().now_s
    }

    fn unix_s(&self) -> u64 {
        0
    }

    fn wait(&self, shared: &Shared, seen: u64, until_s: f64) {
        if shared.look(|_| ()).1 != seen {
            return;
        }
        if self.0.act(shared) {
            return;
        }
        // What is on its way to the disk arrives before time passes.
        shared.writer.drain();
        if shared.look(|_| ()).1 == seen {
            self.0.stage.lock().unwrap().now_s = until_s;
        }
    }

    fn aside(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

impl Theatre {
    /// One client hears one thing and does what follows; whether there was one.
    fn act(&self, shared: &Shared) -> bool {
        let heard = {
            let mut stage = self.stage.lock().unwrap();
            let heard = stage.actors.iter().find_map(|actor| {
                let mut inbox = actor.inbox.lock().unwrap();
                if inbox.is_empty() { None } else { Some((actor.client, inbox.remove(0))) }
            });
            if heard.is_some() {
                if stage.left == 0 {
                    drop(stage);
                    shared.stop();
                    return true;
                }
                stage.left -= 1;
            }
            heard
        };
        let Some((client, said)) = heard else { return false };
        match said {
            Say::Welcome(welcome) => self.with(client, |actor| actor.session = welcome.session),
            Say::Job(job) => self.train(shared, client, &job),
            Say::Probe(probe) => self.probe(shared, client, &probe),
            Say::Evaluate(evaluate) => self.evaluate(shared, client, &evaluate),
            Say::Settled(settled) => {
                self.with(client, |actor| {
                    actor.answer.take_if(|(_, answer, _)| answer.round == settled.round)
                });
            }
            _ => {}
        }
        true
    }

    fn with<T>(&self, client: usize, act: impl FnOnce(&mut Actor) -> T) -> T {
        act(&mut self.stage.lock().unwrap().actors[client])
    }

    fn fetch(&self, shared: &Shared, client: usize, content: Option<&wire::Content>) -> Arc<Parcel> {
        let content = content.unwrap();
        let session = self.with(client, |actor| actor.session.clone());
        let bytes = shared.at_desk(|desk, now_s| {
            let fetching = desk.begin_fetch(&session, &content.digest, now_s).unwrap();
            desk.next_piece(&fetching, 0, now_s).unwrap()
        });
        let bounds = shared.look(|desk| desk.rules().bounds()).0;
        Arc::new(unpack(&bytes, bounds).unwrap().0)
    }

    fn say(&self, shared: &Shared, client: usize, said: Said) {
        if let Some(line) = self.with(client, |actor| actor.line) {
            shared.at_desk(|desk, now_s| desk.said(line, said, now_s));
        }
    }

    fn probe(&self, shared: &Shared, client: usize, said: &wire::Probe) {
        let model = self.fetch(shared, client, said.global.as_ref());
        let loss = self.task.loss(ClientId::new(client), &model.model);
        let measured = wire::Measured { round: said.round, loss, train_s: 0.0, upload_s: 0.0 };
        self.say(shared, client, Said::Measured(measured));
    }

    /// A client judges a model on what it trains on.
    fn evaluate(&self, shared: &Shared, client: usize, said: &wire::Evaluate) {
        let model = self.fetch(shared, client, said.global.as_ref());
        let samples = f64::from(self.task.samples(ClientId::new(client)));
        let loss = samples * f64::from(self.task.loss(ClientId::new(client), &model.model));
        let evaluated = wire::Evaluated { round: said.round, samples, loss, hits: Some(samples / 4.0) };
        self.say(shared, client, Said::Evaluated(evaluated));
    }

    fn train(&self, shared: &Shared, client: usize, said: &wire::Job) {
        let global = self.fetch(shared, client, said.global.as_ref());
        let checks::Job { round, rate, work, .. } = checks::job(said, self.task.layout()).unwrap();
        let job = Arc::new(Job { round, global, learning_rate: rate, work });
        let acts = SCRIPT[said.round as usize];
        let act = acts.iter().find(|(one, _)| *one == client).map_or(Whole, |(_, act)| *act);
        let asked = job.work.steps(self.task.samples(ClientId::new(client)));
        let limit = match act {
            Steps(steps) => NonZeroU32::new(steps).unwrap(),
            _ => asked,
        };
        let memory = self.with(client, |actor| actor.memory.commit_until(said.round, said.heard));
        let assignment =
            TrainingJob { client: ClientId::new(client), job: Arc::<Job>::clone(&job), memory, limit };
        let trained = train_while(self.task.as_ref(), self.rule.as_ref(), 1, &assignment, &|_| true).unwrap();
        if let Some(memory) = trained.memory {
            self.with(client, |actor| actor.memory.stage(said.round, memory));
        }
        let mut update = trained.update;
        match act {
            Nan => *update.delta.model.last_mut().unwrap() = f32::NAN,
            Short => drop(update.delta.model.pop()),
            Whole | Steps(_) | Late(_) => {}
        }
        let packed = pack(&update.delta, Packing::default()).bytes;
        let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
        let answer = wire::Answer {
            round: said.round,
            ticket: said.ticket.clone(),
            delta: Some(wire::Content { digest, bytes: packed.len() as u64 }),
            steps: update.steps.get(),
            steps_asked: update.steps_requested.get(),
            samples: update.samples,
            loss: update.loss,
            loss_fall: update.loss_fall,
            accuracy: update.accuracy,
        };
        let arrives = match act {
            Late(late) => said.round + late,
            _ => said.round,
        };
        self.with(client, |actor| actor.answer = Some((arrives, answer, packed)));
        if arrives == said.round {
            self.send(shared, client);
        }
    }

    fn send(&self, shared: &Shared, client: usize) {
        let (line, session, held) =
            self.with(client, |actor| (actor.line, actor.session.clone(), actor.answer.clone()));
        let (Some(line), Some((_, answer, packed))) = (line, held) else { return };
        let header = wire::Header { session, content: answer.delta.clone(), offset: 0 };
        shared.at_desk(|desk, now_s| {
            // Where the answer was taken already, nobody wants its vectors.
            if let Ok(sender) = desk.begin_upload(&header, now_s) {
                desk.add_upload(sender, &packed, now_s).unwrap();
            }
            desk.said(line, Said::Answer(answer), now_s);
        });
    }

    /// Lets a client come, with what it has in hand.
    fn connect(&self, shared: &Shared, client: usize) {
        let inbox = Arc::new(Mutex::new(Vec::new()));
        let to = ToActor {
            inbox: Arc::clone(&inbox),
            client: ClientId::new(client),
            store: Arc::clone(&shared.store),
        };
        let line = shared.connect(Box::new(to));
        let in_hand = self.with(client, |actor| {
            actor.line = Some(line);
            actor.inbox = inbox;
            let in_hand =
                |answer: &wire::Answer| wire::InHand { round: answer.round, ticket: answer.ticket.clone() };
            actor.answer.as_ref().map(|(_, answer, _)| in_hand(answer))
        });
        let server = shared.store.server().unwrap();
        let hello = wire::Hello {
            oldest: VERSION,
            newest: VERSION,
            client: client as u32,
            secret: Bytes::from(vec![client as u8; 32]),
            server: Bytes::copy_from_slice(&server),
            session: Bytes::new(),
            software: String::new(),
        };
        shared.at_desk(|desk, now_s| desk.hello(line, &hello, now_s));
        // The welcome comes first, and with it the session.
        let welcome = self.with(client, |actor| actor.inbox.lock().unwrap().remove(0));
        let Say::Welcome(welcome) = welcome else { panic!("client {client} was not let in: {welcome:?}") };
        self.with(client, |actor| actor.session = welcome.session);
        let able = Abilities { partial: true, sides: true, own_start: true, probe: true, evaluate: true };
        let samples = self.task.samples(ClientId::new(client));
        let ready = wire::Ready { samples, abilities: Some(convert::say_abilities(able)), in_hand };
        shared.at_desk(|desk, now_s| desk.said(line, Said::Ready(ready), now_s));
    }

    fn disconnect(&self, shared: &Shared, client: usize) {
        if let Some(line) = self.with(client, |actor| actor.line.take()) {
            shared.disconnect(line);
        }
    }

    /// Before a round: those that are up come, the others go, and late answers arrive.
    fn set_up(&self, shared: &Shared, number: RoundNo) {
        let is_up = |client: usize| SCRIPT[number as usize].iter().any(|(one, _)| *one == client);
        for client in 0..N_CLIENTS {
            // In the first round everybody comes once, as in simulation, where all are enrolled from the start.
            let connected = self.with(client, |actor| actor.line.is_some());
            let due = self
                .with(client, |actor| actor.answer.as_ref().is_some_and(|(arrives, ..)| *arrives <= number));
            if !connected && (is_up(client) || due || number == 0) {
                self.connect(shared, client);
            }
            if due {
                self.send(shared, client);
            }
            if !is_up(client) {
                self.disconnect(shared, client);
            }
        }
        // What arrived before the round is on the disk before it.
        shared.writer.drain();
    }
}

fn rules(task: &dyn Task, sides: &[SideName]) -> Rules {
    Rules {
        deadline_s: DEADLINE_S,
        patience_s: 100.0,
        grace_s: 0.0,
        after_deadline: AfterDeadline::Cut,
        quorum: 0,
        least_up: 0,
        heartbeat_s: 1e6,
        most_clients: 100,
        most_samples: 1000,
        most_samples_times: None,
        memory_bytes: 1 << 20,
        needs: Abilities::default(),
        uses: Abilities::default(),
        layout: task.layout().clone(),
        sides: sides.into(),
        down: Packing::default(),
        up: Packing::default(),
        settings: String::new(),
        seed: 1,
    }
}

/// One life of the server: from its start until it is killed, or to the end.
fn live(
    recipe: &str,
    store: &Arc<Store>,
    theatre: &Arc<Theatre>,
    checkpoint: &mut Option<(Vec<u8>, usize)>,
    rows: &mut Vec<String>,
    every: usize,
) -> bool {
    let mut run = assemble(&settings(recipe));
    let store = Arc::clone(store);
    let members = Members::new(store.members().unwrap(), store.token_uses().unwrap(), 100);
    let desk = Desk::new(
        rules(run.task.as_ref(), &run.engine.side_vectors()),
        Key::new(&theatre.key),
        store.server().unwrap(),
        members,
    );
    let next = store.next_entry().unwrap();
    let shared = Shared::new(desk, store, next, Box::new(Play(Arc::clone(theatre))));
    let terms = Terms { id: [0; 8], until_s: 1, uses: 100, numbers: true };
    let key = Key::new(&theatre.key);
    let token = key.token(&terms);
    for client in 0..N_CLIENTS {
        let secret = Bytes::from(vec![client as u8; 32]);
        let request = wire::EnrolRequest { token: token.clone(), secret, number: Some(client as u32) };
        let (_, writes) = shared.at_desk(|desk, _| desk.enrol(&request, &key, 0)).unwrap();
        shared.write(writes);
        theatre.with(client, |actor| actor.line = None);
    }
    // Clients come once the journal was played; which round is open then, the script must know.
    let open = Arc::new(Mutex::new(None::<RoundNo>));
    let came = {
        let (theatre, shared, open) = (Arc::clone(theatre), Arc::downgrade(&shared), Arc::clone(&open));
        Box::new(move || {
            let shared = shared.upgrade().unwrap();
            theatre.set_up(&shared, open.lock().unwrap().expect("a round is about to be played"));
            Ok(())
        })
    };
    let course = Course::new(Arc::clone(&shared), true, came).unwrap();
    let rounds = SCRIPT.len() as u32;
    run.judge = theatre.judged.then(|| ClientJudge::new(course.clone(), None, NonZeroU32::MIN, rounds));
    let mut fleet = NetFleet::new(course, None);
    rows.truncate(0);
    if let Some((state, done)) = checkpoint {
        let mut loader = Loader::new(state);
        run.engine.load(&mut loader).unwrap();
        fleet.load(&mut loader).unwrap();
        rows.extend(vec![String::new(); *done]);
    }
    while rows.len() < SCRIPT.len() {
        let number = rows.len() as RoundNo;
        let first = open.lock().unwrap().replace(number).is_none();
        if !first {
            // Where clients are there already, they come and go with the script.
            let live = shared.look(|desk| desk.counts().0).0 > 0 || number > 0;
            if live && theatre.is_played() {
                theatre.set_up(&shared, number);
            }
        }
        match round(&mut run, &mut fleet) {
            Ok(row) => rows.push(row),
            Err(FleetError::Failed { message, .. }) if message == STOPPED => {
                shared.writer.close();
                return false;
            }
            // A server whose disk is gone is as good as killed: nothing that it says is believed.
            Err(_) if shared.store.is_killed() => return false,
            Err(error) => panic!("{error}"),
        }
        if rows.len().is_multiple_of(every) {
            let mut saver = Saver::new();
            run.engine.save(&mut saver);
            fleet.save(&mut saver);
            *checkpoint = Some((saver.finish(), rows.len()));
        }
    }
    shared.writer.close();
    true
}

impl Theatre {
    fn new(tree: &Tree, judged: bool) -> Arc<Theatre> {
        let run = assemble(tree);
        let actor = |client| Actor {
            client,
            line: None,
            inbox: Arc::default(),
            session: Bytes::new(),
            memory: Memory::default(),
            answer: None,
        };
        let stage = Stage { now_s: 0.0, actors: (0..N_CLIENTS).map(actor).collect(), left: usize::MAX };
        Arc::new(Theatre { stage: Mutex::new(stage), task: run.task, rule: run.rule, judged, key: [3; 32] })
    }

    /// Whether anybody ever came in this life of the server.
    fn is_played(&self) -> bool {
        self.stage.lock().unwrap().actors.iter().any(|actor| actor.line.is_some())
    }
}

/// When a server is killed.
#[derive(Clone, Copy, Debug)]
enum Kill {
    /// After clients heard so many messages.
    After(usize),
    /// Just before this entry is on the disk: whatever transaction it is part of is lost with it, and so is all that the server was
    /// about to say.
    Before(u64),
}

/// The rows of a run whose server is killed again and again, and its journal.
fn killed(recipe: &str, judged: bool, kills: &[Kill], every: usize) -> (Vec<String>, Vec<Entry>) {
    let store = Arc::new(Store::in_memory());
    let theatre = Theatre::new(&settings(recipe), judged);
    let (mut checkpoint, mut rows) = (None, Vec::new());
    let mut all = BTreeMap::new();
    for &kill in kills.iter().chain([&Kill::Before(u64::MAX)]) {
        let (left, before) = match kill {
            Kill::After(left) => (left, u64::MAX),
            Kill::Before(entry) => (usize::MAX, entry),
        };
        theatre.stage.lock().unwrap().left = left;
        store.killed_before.store(before, Ordering::Relaxed);
        let ended = live(recipe, &store, &theatre, &mut checkpoint, &mut rows, every);
        for (number, row) in rows.iter().enumerate().filter(|(_, row)| !row.is_empty()) {
            let known = all.entry(number).or_insert_with(|| row.clone());
            assert_eq!(known, row, "round {number} went otherwise after a restart");
        }
        if ended {
            break;
        }
    }
    (all.into_values().collect(), entries(&store))
}

/// The rows of a run whose server is killed after each of so many messages.
fn networked(recipe: &str, kills: &[usize], every: usize) -> Vec<String> {
    let kills: Vec<_> = kills.iter().copied().map(Kill::After).collect();
    killed(recipe, false, &kills, every).0
}

/// A line without the bytes that travelled down, and without how long answers took: what was fetched in a round in which the server is
/// killed is not counted, and nobody knows when an answer would have come that waited for the server.
fn without_bytes_down(line: &str) -> serde_json::Value {
    let mut row: serde_json::Value = serde_json::from_str(line).unwrap();
    let fields = row.as_object_mut().unwrap();
    assert!(fields.remove("bytes_down").is_some() && fields.remove("bytes_total").is_some());
    fields.remove("took_s");
    row
}

#[track_caller]
fn check(recipe: &str, kills: &[usize], every: usize) {
    let (simulated, networked) = (simulated(recipe), networked(recipe, kills, every));
    for (number, (simulated, networked)) in simulated.iter().zip(&networked).enumerate() {
        let what = format!("{recipe}, killed after {kills:?}: round {number}");
        if kills.is_empty() {
            assert_eq!(networked, simulated, "{what}");
        } else {
            assert_eq!(without_bytes_down(networked), without_bytes_down(simulated), "{what}");
        }
    }
    assert_eq!(networked.len(), simulated.len());
}

#[test]
fn a_script_gives_the_same_record_in_simulation_and_over_a_network() {
    for recipe in RECIPES {
        check(recipe, &[], 3);
    }
    // Snapshots are among them, and rounds in between.
    let snapshots = simulated("fast").iter().filter(|row| row.contains(r#""fast_snapshot":1.0"#)).count();
    assert_eq!(snapshots, 3);
}

/// Those whose selection goes by who answered, or waits for some, or asks for losses first, among them.
const RECIPES: [&str; 11] = [
    "full",
    "dropout",
    "stale-update",
    "fl-fdms",
    "scheme-c",
    "scaffold",
    "mifa",
    "fedawe",
    "e3cs",
    "fast",
    "pow-d",
];

#[test]
fn a_server_that_is_killed_at_any_message_goes_on_as_if_it_had_not_been() {
    for left in 0..90 {
        check("fl-fdms", &[left], 3);
    }
}

#[test]
fn a_server_that_is_killed_again_and_again_comes_to_the_same_end() {
    for recipe in ["scaffold", "mifa", "scheme-c"] {
        for every in [1, 4, 100] {
            check(recipe, &[5, 0, 7, 3, 11, 1, 2, 20], every);
        }
    }
}

/// What a row says of who took part, and of what came of it.
const REPLAYED: [&str; 18] = [
    "n_enrolled",
    "joined",
    "left",
    "up",
    "busy",
    "asked",
    "chance",
    "whole",
    "partial",
    "partial_steps",
    "took_s",
    "absent",
    "late",
    "late_base",
    "step_norm",
    "loss",
    "elapsed_s",
    "model",
];

#[test]
fn the_record_of_a_server_is_its_own_replay() {
    let folder = tempfile::tempdir().unwrap();
    for recipe in RECIPES {
        let served = networked(recipe, &[], 3);
        let file = folder.path().join(format!("{recipe}.jsonl"));
        std::fs::write(&file, served.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        let mut tree = settings(recipe);
        tree.remove("world");
        let flag = || Origin::Flag("here".to_owned());
        tree.set_value("world.deadline_s", DEADLINE_S, flag());
        tree.set_value("world.patience_s", 100.0, flag());
        tree.set_value("world.replay.record", file.display().to_string(), flag());
        for (line, again) in served.iter().zip(simulated_in(&tree)) {
            let read = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
            let (row, again) = (read(line), read(&again));
            for key in REPLAYED {
                assert_eq!(again.get(key), row.get(key), "{recipe}: {key} of round {}", row["round"]);
            }
            assert_eq!((again.get("imputed"), &again["imputed_by"]), (None, &"own-rate".into()));
        }
    }
}
