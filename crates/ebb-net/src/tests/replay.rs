//! A script of returned updates, played by a simulated fleet and by a networked one that is killed in
//! between: the records are the same.

mod queries;
mod torn_journal;

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
use crate::coordinator::{AfterDeadline, Capabilities, ConnectionId, Coordinator, Rules};
use crate::digest::Digest;
use crate::fleet::{ClientEvaluator, NetFleet};
use crate::journal::Entry;
use crate::members::Members;
use crate::pack::{Packing, pack, unpack};
use crate::recovery::Recovery;
use crate::shared::{Clock, Outbound, Shared};
use crate::store::Store;
use crate::tokens::{Key, Terms};
use crate::wire::from_client::Message as ClientMessage;
use crate::wire::from_server::Message as ServerMessage;
use crate::{PROTOCOL_VERSION, convert, wire};

const N_CLIENTS: usize = 3;
const DEADLINE_S: f64 = 10.0;

/// What an available client does in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ScriptedAct {
    Whole,
    Steps(u32),
    Late(u32),
    Nan,
    Short,
}

use ScriptedAct::{Late, Nan, Short, Steps, Whole};

const SCRIPT: &[&[(usize, ScriptedAct)]] = &[
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
    let act = |&(client, act): &(usize, ScriptedAct)| match act {
        Whole => format!("{client}"),
        Steps(steps) => format!("{{ client = {client}, steps = {steps} }}"),
        Late(late) => format!("{{ client = {client}, late = {late} }}"),
        Nan => format!("{{ client = {client}, sends = \"nan\" }}"),
        Short => format!("{{ client = {client}, sends = \"short\" }}"),
    };
    let round =
        |acts: &&[(usize, ScriptedAct)]| format!("[{}]", acts.iter().map(act).collect::<Vec<_>>().join(", "));
    SCRIPT.iter().map(round).collect::<Vec<_>>().join(", ")
}

/// A run of a recipe on three quadratic objectives.
fn settings(recipe: &str) -> Tree {
    // Some recipes select a cohort, some select all clients.
    let select = match recipe {
        "scaffold" => "cohort = 3",
        "e3cs" => "cohort = 2",
        "fast" => "cohort = 2\nprobability = 0.5",
        // A server does not probe clients that are away. A simulation waits for them.
        "pow-d" => "cohort = 2\ncandidates = 3\namong = \"up\"",
        _ => "",
    };
    let text = format!(
        "recipe = \"{recipe}\"\n[data]\nkind = \"quadratic\"\ncentres = [[0.0, 1.0], [3.0, -1.0], [6.0, 2.0]]\nstart = [10.0, 0.0]\n\
         [world]\nscript = [{}]\nstep_s = 0.0\nupload_s = 0.0\ndeadline_s = {DEADLINE_S:?}\n\
         patience_s = 100.0\nwhen_waited_for = \"never\"\n[select]\n{select}\n[local]\nlearning_rate = 0.1\nsteps = 3\n",
        script()
    );
    Registry::standard().with_recipe(Tree::parse(&text, "played").unwrap()).unwrap()
}

struct TestRun {
    engine: Engine,
    task: Arc<dyn Task>,
    rule: Arc<dyn LocalRule>,
    evaluator: TaskEvaluator,
    /// The evaluator on clients, if the run evaluates there.
    client_evaluator: Option<ClientEvaluator>,
}

fn assemble(tree: &Tree) -> TestRun {
    let mut context = BuildContext { seed: 1, n_rounds: SCRIPT.len() as u32, ..BuildContext::default() };
    let task = data::build(&tree.table("data", context)).unwrap();
    context.n_clients = task.n_clients();
    let mut roles = Registry::standard().build(tree, context).unwrap();
    roles.server.start_from(task.initial());
    let rule = Arc::clone(&roles.local);
    let evaluation = Evaluation::build(&tree.table("evaluate", context), task.as_ref()).unwrap();
    let context = RunContext {
        seed: 1,
        deadline_s: DEADLINE_S,
        threads: 1,
        trained_ranges: task.layout().trained_ranges(),
        ..RunContext::default()
    };
    let evaluator = TaskEvaluator::new(Arc::clone(&task), evaluation, SCRIPT.len() as u32, NonZeroUsize::MIN);
    TestRun { engine: Engine::new(roles, context), task, rule, evaluator, client_evaluator: None }
}

/// Plays the next round, and returns its record row without what only a simulation can know.
fn round(run: &mut TestRun, fleet: &mut dyn Fleet) -> Result<String, FleetError> {
    let evaluator: &mut dyn Evaluator = match &mut run.client_evaluator {
        Some(evaluator) => evaluator,
        None => &mut run.evaluator,
    };
    let mut outcome = run.engine.round(fleet, evaluator)?;
    run.client_evaluator.as_mut().and_then(ClientEvaluator::take_error).map_or(Ok(()), Err)?;
    outcome.oracle_silent = None;
    let row = Row::new(run.engine.census(), &outcome, Some(&run.engine.model().model));
    Ok(serde_json::to_string(&row).unwrap())
}

fn simulated(recipe: &str) -> Vec<String> {
    simulated_in(&settings(recipe))
}

fn simulated_in(tree: &Tree) -> Vec<String> {
    let mut run = assemble(tree);
    let context = BuildContext { seed: 1, n_clients: N_CLIENTS, ..BuildContext::default() };
    let world = World::build(&tree.table("world", context), run.task.as_ref()).unwrap();
    let threads = Box::new(Threads::new(NonZeroUsize::MIN));
    let mut fleet = SimFleet::new(world, Arc::clone(&run.task), Arc::clone(&run.rule), threads, 1);
    (0..SCRIPT.len()).map(|_| round(&mut run, &mut fleet).unwrap()).collect()
}

/// A scripted client, with the state of a client process.
struct ScriptedClient {
    client: usize,
    connection: Option<ConnectionId>,
    inbox: Arc<Mutex<Vec<ServerMessage>>>,
    session: Bytes,
    memory: Memory,
    /// The job in flight with its update, and the round in which the update arrives.
    pending_update: Option<(RoundNo, wire::Answer, Bytes)>,
}

struct ToScriptedClient {
    inbox: Arc<Mutex<Vec<ServerMessage>>>,
    client: ClientId,
    store: Arc<Store>,
}

impl Outbound for ToScriptedClient {
    fn send(&self, message: ServerMessage) -> bool {
        if let ServerMessage::Settled(settled) = &message
            && settled.refused.is_empty()
        {
            let is_it = |entry: &Entry| matches!(entry, Entry::Update(one) if (one.client, one.base) == (self.client, settled.round));
            assert!(entries(&self.store).iter().any(is_it), "acknowledged before it is on disk: {settled:?}");
        }
        self.inbox.lock().unwrap().push(message);
        true
    }
}

/// The journal as it is on disk.
fn entries(store: &Store) -> Vec<Entry> {
    store.entries(0).unwrap().iter().map(|(_, bytes)| Entry::read(bytes).unwrap()).collect()
}

/// The clients and their clock. Time passes only when nothing is left to do.
struct ScriptedClients {
    state: Mutex<ScriptState>,
    task: Arc<dyn Task>,
    rule: Arc<dyn LocalRule>,
    /// Whether the clients evaluate the model after every round.
    evaluates: bool,
    key: [u8; 32],
}

struct ScriptState {
    now_s: f64,
    clients: Vec<ScriptedClient>,
    /// How many messages are delivered before the server is killed.
    messages_left: usize,
}

/// The clock of the fleet, which moves the scripted clients.
struct ScriptedClock(Arc<ScriptedClients>);

impl Clock for ScriptedClock {
    fn now_s(&self) -> f64 {
        self.0.state.lock().unwrap().now_s
    }

    fn unix_s(&self) -> u64 {
        0
    }

    fn wait(&self, shared: &Shared, seen: u64, until_s: f64) {
        if shared.inspect(|_| ()).1 != seen {
            return;
        }
        if self.0.deliver_one(shared) {
            return;
        }
        // Writes in flight finish before time passes.
        shared.writer.drain();
        if shared.inspect(|_| ()).1 == seen {
            self.0.state.lock().unwrap().now_s = until_s;
        }
    }

    fn run_aside(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

impl ScriptedClients {
    /// Delivers one message and lets the client react. Returns whether there was one.
    fn deliver_one(&self, shared: &Shared) -> bool {
        let delivered = {
            let mut state = self.state.lock().unwrap();
            let delivered = state.clients.iter().find_map(|scripted| {
                let mut inbox = scripted.inbox.lock().unwrap();
                if inbox.is_empty() { None } else { Some((scripted.client, inbox.remove(0))) }
            });
            if delivered.is_some() {
                if state.messages_left == 0 {
                    drop(state);
                    shared.stop();
                    return true;
                }
                state.messages_left -= 1;
            }
            delivered
        };
        let Some((client, message)) = delivered else { return false };
        match message {
            ServerMessage::Welcome(welcome) => {
                self.with_client(client, |scripted| scripted.session = welcome.session);
            }
            ServerMessage::Job(job) => self.train(shared, client, &job),
            ServerMessage::Probe(probe) => self.probe(shared, client, &probe),
            ServerMessage::Evaluate(evaluate) => self.evaluate(shared, client, &evaluate),
            ServerMessage::Settled(settled) => {
                self.with_client(client, |scripted| {
                    scripted
                        .pending_update
                        .take_if(|(_, update_message, _)| update_message.round == settled.round)
                });
            }
            _ => {}
        }
        true
    }

    fn with_client<T>(&self, client: usize, act: impl FnOnce(&mut ScriptedClient) -> T) -> T {
        act(&mut self.state.lock().unwrap().clients[client])
    }

    fn fetch(&self, shared: &Shared, client: usize, content: Option<&wire::Content>) -> Arc<Parcel> {
        let content = content.unwrap();
        let session = self.with_client(client, |scripted| scripted.session.clone());
        let bytes = shared.with_coordinator(|coordinator, now_s| {
            let download = coordinator.begin_download(&session, &content.digest, now_s).unwrap();
            coordinator.next_chunk(&download, 0, now_s).unwrap()
        });
        let bounds = shared.inspect(|coordinator| coordinator.rules().bounds()).0;
        Arc::new(unpack(&bytes, bounds).unwrap().0)
    }

    fn send_message(&self, shared: &Shared, client: usize, message: ClientMessage) {
        if let Some(connection) = self.with_client(client, |scripted| scripted.connection) {
            shared.with_coordinator(|coordinator, now_s| coordinator.receive(connection, message, now_s));
        }
    }

    fn probe(&self, shared: &Shared, client: usize, message: &wire::Probe) {
        let model = self.fetch(shared, client, message.global.as_ref());
        let loss = self.task.loss(ClientId::new(client), &model.model);
        let probed = wire::Measured { round: message.round, loss, train_s: 0.0, upload_s: 0.0 };
        self.send_message(shared, client, ClientMessage::Measured(probed));
    }

    /// A client evaluates a model on its training data.
    fn evaluate(&self, shared: &Shared, client: usize, message: &wire::Evaluate) {
        let model = self.fetch(shared, client, message.global.as_ref());
        let samples = f64::from(self.task.samples(ClientId::new(client)));
        let loss = samples * f64::from(self.task.loss(ClientId::new(client), &model.model));
        let evaluated = wire::Evaluated { round: message.round, samples, loss, hits: Some(samples / 4.0) };
        self.send_message(shared, client, ClientMessage::Evaluated(evaluated));
    }

    fn train(&self, shared: &Shared, client: usize, message: &wire::Job) {
        let global = self.fetch(shared, client, message.global.as_ref());
        let checks::JobRequest { round, learning_rate, work, .. } =
            checks::job(message, self.task.layout()).unwrap();
        let job = Arc::new(Job { round, global, learning_rate, work });
        let acts = SCRIPT[message.round as usize];
        let act = acts.iter().find(|(one, _)| *one == client).map_or(Whole, |(_, act)| *act);
        let assigned_steps = job.work.steps(self.task.samples(ClientId::new(client)));
        let limit = match act {
            Steps(steps) => NonZeroU32::new(steps).unwrap(),
            _ => assigned_steps,
        };
        let memory =
            self.with_client(client, |scripted| scripted.memory.commit_until(message.round, message.heard));
        let assignment =
            TrainingJob { client: ClientId::new(client), job: Arc::<Job>::clone(&job), memory, limit };
        let trained = train_while(self.task.as_ref(), self.rule.as_ref(), 1, &assignment, &|_| true).unwrap();
        if let Some(memory) = trained.memory {
            self.with_client(client, |scripted| scripted.memory.stage(message.round, memory));
        }
        let mut update = trained.update;
        match act {
            Nan => *update.delta.model.last_mut().unwrap() = f32::NAN,
            Short => drop(update.delta.model.pop()),
            Whole | Steps(_) | Late(_) => {}
        }
        let packed = pack(&update.delta, Packing::default()).bytes;
        let digest = Bytes::copy_from_slice(Digest::of(&packed).bytes());
        let update_message = wire::Answer {
            round: message.round,
            ticket: message.ticket.clone(),
            delta: Some(wire::Content { digest, bytes: packed.len() as u64 }),
            steps: update.steps.get(),
            steps_asked: update.steps_requested.get(),
            samples: update.samples,
            loss: update.loss,
            loss_fall: update.loss_fall,
            accuracy: update.accuracy,
        };
        let arrives = match act {
            Late(late) => message.round + late,
            _ => message.round,
        };
        self.with_client(client, |scripted| {
            scripted.pending_update = Some((arrives, update_message, packed));
        });
        if arrives == message.round {
            self.send_update(shared, client);
        }
    }

    fn send_update(&self, shared: &Shared, client: usize) {
        let (connection, session, held) = self.with_client(client, |scripted| {
            (scripted.connection, scripted.session.clone(), scripted.pending_update.clone())
        });
        let (Some(connection), Some((_, update_message, packed))) = (connection, held) else { return };
        let header = wire::Header { session, content: update_message.delta.clone(), offset: 0 };
        shared.with_coordinator(|coordinator, now_s| {
            // Once an update was accepted, its vectors are not uploaded again.
            if let Ok(sender) = coordinator.begin_upload(&header, now_s) {
                coordinator.add_upload(sender, &packed, now_s).unwrap();
            }
            coordinator.receive(connection, ClientMessage::Answer(update_message), now_s);
        });
    }

    /// Connects a client, with its job in flight.
    fn connect(&self, shared: &Shared, client: usize) {
        let inbox = Arc::new(Mutex::new(Vec::new()));
        let to = ToScriptedClient {
            inbox: Arc::clone(&inbox),
            client: ClientId::new(client),
            store: Arc::clone(&shared.store),
        };
        let connection = shared.connect(Box::new(to));
        let job_in_flight = self.with_client(client, |scripted| {
            scripted.connection = Some(connection);
            scripted.inbox = inbox;
            let job_in_flight = |update_message: &wire::Answer| wire::InHand {
                round: update_message.round,
                ticket: update_message.ticket.clone(),
            };
            scripted.pending_update.as_ref().map(|(_, update_message, _)| job_in_flight(update_message))
        });
        let server = shared.store.server_id().unwrap();
        let hello = wire::Hello {
            oldest: PROTOCOL_VERSION,
            newest: PROTOCOL_VERSION,
            client: client as u32,
            secret: Bytes::from(vec![client as u8; 32]),
            server: Bytes::copy_from_slice(&server),
            session: Bytes::new(),
            software: String::new(),
        };
        shared.with_coordinator(|coordinator, now_s| coordinator.hello(connection, &hello, now_s));
        // The welcome comes first. It contains the session key.
        let welcome = self.with_client(client, |scripted| scripted.inbox.lock().unwrap().remove(0));
        let ServerMessage::Welcome(welcome) = welcome else {
            panic!("client {client} was not accepted: {welcome:?}")
        };
        self.with_client(client, |scripted| scripted.session = welcome.session);
        let capabilities =
            Capabilities { partial: true, side_vectors: true, own_start: true, probe: true, evaluate: true };
        let samples = self.task.samples(ClientId::new(client));
        let ready = wire::Ready {
            samples,
            abilities: Some(convert::to_wire_capabilities(capabilities)),
            in_hand: job_in_flight,
        };
        shared.with_coordinator(|coordinator, now_s| {
            coordinator.receive(connection, ClientMessage::Ready(ready), now_s);
        });
    }

    fn disconnect(&self, shared: &Shared, client: usize) {
        if let Some(connection) = self.with_client(client, |scripted| scripted.connection.take()) {
            shared.disconnect(connection);
        }
    }

    /// Before a round, available clients connect, the others disconnect, and late updates arrive.
    fn connect_scripted(&self, shared: &Shared, number: RoundNo) {
        let is_up = |client: usize| SCRIPT[number as usize].iter().any(|(one, _)| *one == client);
        for client in 0..N_CLIENTS {
            // In the first round all clients connect once, because in simulation all are enrolled from the
            // start.
            let connected = self.with_client(client, |scripted| scripted.connection.is_some());
            let due = self.with_client(client, |scripted| {
                scripted.pending_update.as_ref().is_some_and(|(arrives, ..)| *arrives <= number)
            });
            if !connected && (is_up(client) || due || number == 0) {
                self.connect(shared, client);
            }
            if due {
                self.send_update(shared, client);
            }
            if !is_up(client) {
                self.disconnect(shared, client);
            }
        }
        // Updates that arrive before the round are on disk before it.
        shared.writer.drain();
    }
}

fn rules(task: &dyn Task, side_names: &[SideName]) -> Rules {
    Rules {
        deadline_s: DEADLINE_S,
        patience_s: 100.0,
        grace_s: 0.0,
        after_deadline: AfterDeadline::Cut,
        quorum: 0,
        min_available: 0,
        heartbeat_s: 1e6,
        max_clients: 100,
        max_samples: 1000,
        max_samples_times_median: None,
        update_memory_bytes: 1 << 20,
        required_capabilities: Capabilities::default(),
        optional_capabilities: Capabilities::default(),
        layout: task.layout().clone(),
        side_names: side_names.into(),
        download_packing: Packing::default(),
        upload_packing: Packing::default(),
        settings: String::new(),
        seed: 1,
    }
}

/// One lifetime of the server: from its start until it is killed, or to the end of the run.
fn run_server(
    recipe: &str,
    store: &Arc<Store>,
    clients: &Arc<ScriptedClients>,
    checkpoint: &mut Option<(Vec<u8>, usize)>,
    rows: &mut Vec<String>,
    every: usize,
) -> bool {
    let mut run = assemble(&settings(recipe));
    let store = Arc::clone(store);
    let members = Members::new(store.members().unwrap(), store.token_uses().unwrap(), 100);
    let coordinator = Coordinator::new(
        rules(run.task.as_ref(), &run.engine.side_vectors()),
        Key::new(&clients.key),
        store.server_id().unwrap(),
        members,
    );
    let next = store.next_entry().unwrap();
    let shared = Shared::new(coordinator, store, next, Box::new(ScriptedClock(Arc::clone(clients))));
    let terms = Terms { id: [0; 8], expires_unix_s: 1, max_uses: 100, allows_chosen_number: true };
    let key = Key::new(&clients.key);
    let token = key.token(&terms);
    for client in 0..N_CLIENTS {
        let secret = Bytes::from(vec![client as u8; 32]);
        let request = wire::EnrolRequest { token: token.clone(), secret, number: Some(client as u32) };
        let (_, writes) =
            shared.with_coordinator(|coordinator, _| coordinator.enrol(&request, &key, 0)).unwrap();
        shared.write(writes);
        clients.with_client(client, |scripted| scripted.connection = None);
    }
    // Clients connect once the journal was replayed. The script must know which round is open then.
    let open = Arc::new(Mutex::new(None::<RoundNo>));
    let on_live = {
        let (clients, shared, open) = (Arc::clone(clients), Arc::downgrade(&shared), Arc::clone(&open));
        Box::new(move || {
            let shared = shared.upgrade().unwrap();
            clients.connect_scripted(&shared, open.lock().unwrap().expect("a round is about to be played"));
            Ok(())
        })
    };
    let recovery = Recovery::new(Arc::clone(&shared), true, on_live).unwrap();
    let rounds = SCRIPT.len() as u32;
    run.client_evaluator =
        clients.evaluates.then(|| ClientEvaluator::new(recovery.clone(), None, NonZeroU32::MIN, rounds));
    let mut fleet = NetFleet::new(recovery, None);
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
            // Connected clients follow the script.
            let live = shared.inspect(|coordinator| coordinator.counts().0).0 > 0 || number > 0;
            if live && clients.has_connected() {
                clients.connect_scripted(&shared, number);
            }
        }
        match round(&mut run, &mut fleet) {
            Ok(row) => rows.push(row),
            Err(FleetError::Stopped { .. }) => {
                shared.writer.close();
                return false;
            }
            // A server without its disk counts as killed: nothing that it sends is used.
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

impl ScriptedClients {
    fn new(tree: &Tree, evaluates: bool) -> Arc<ScriptedClients> {
        let run = assemble(tree);
        let scripted = |client| ScriptedClient {
            client,
            connection: None,
            inbox: Arc::default(),
            session: Bytes::new(),
            memory: Memory::default(),
            pending_update: None,
        };
        let state = ScriptState {
            now_s: 0.0,
            clients: (0..N_CLIENTS).map(scripted).collect(),
            messages_left: usize::MAX,
        };
        Arc::new(ScriptedClients {
            state: Mutex::new(state),
            task: run.task,
            rule: run.rule,
            evaluates,
            key: [3; 32],
        })
    }

    /// Whether any client connected in this lifetime of the server.
    fn has_connected(&self) -> bool {
        self.state.lock().unwrap().clients.iter().any(|scripted| scripted.connection.is_some())
    }
}

/// When a server is killed.
#[derive(Clone, Copy, Debug)]
enum Kill {
    /// After this many messages were delivered to clients.
    After(usize),
    /// Just before this entry is on disk. The transaction that contains it is lost, and so are all messages
    /// that depend on it.
    Before(u64),
}

/// The record rows of a run whose server is killed again and again, and its journal.
fn run_with_kills(recipe: &str, evaluates: bool, kills: &[Kill], every: usize) -> (Vec<String>, Vec<Entry>) {
    let store = Arc::new(Store::in_memory());
    let clients = ScriptedClients::new(&settings(recipe), evaluates);
    let (mut checkpoint, mut rows) = (None, Vec::new());
    let mut all = BTreeMap::new();
    for &kill in kills.iter().chain([&Kill::Before(u64::MAX)]) {
        let (left, before) = match kill {
            Kill::After(left) => (left, u64::MAX),
            Kill::Before(entry) => (usize::MAX, entry),
        };
        clients.state.lock().unwrap().messages_left = left;
        store.killed_before.store(before, Ordering::Relaxed);
        let ended = run_server(recipe, &store, &clients, &mut checkpoint, &mut rows, every);
        for (number, row) in rows.iter().enumerate().filter(|(_, row)| !row.is_empty()) {
            let known = all.entry(number).or_insert_with(|| row.clone());
            assert_eq!(known, row, "round {number} differs after a restart");
        }
        if ended {
            break;
        }
    }
    (all.into_values().collect(), entries(&store))
}

/// The record rows of a run whose server is killed after each of these numbers of messages.
fn networked(recipe: &str, kills: &[usize], every: usize) -> Vec<String> {
    let kills: Vec<_> = kills.iter().copied().map(Kill::After).collect();
    run_with_kills(recipe, false, &kills, every).0
}

/// A record row without bytes sent down and response times. Downloads of a round in which the server is
/// killed are not counted, and nobody knows when an update would have arrived that waited for the server.
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
    // Some of the rounds take a snapshot, and some do not.
    let snapshots = simulated("fast").iter().filter(|row| row.contains(r#""fast_snapshot":1.0"#)).count();
    assert_eq!(snapshots, 3);
}

/// Recipes whose selection depends on who responded, that wait for clients, or that probe losses first, are
/// among them.
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
fn a_server_that_is_killed_at_any_message_resumes_without_a_trace() {
    for left in 0..90 {
        check("fl-fdms", &[left], 3);
    }
}

#[test]
fn a_server_that_is_killed_again_and_again_reaches_the_same_result() {
    for recipe in ["scaffold", "mifa", "scheme-c"] {
        for every in [1, 4, 100] {
            check(recipe, &[5, 0, 7, 3, 11, 1, 2, 20], every);
        }
    }
}

/// The columns of a row that state who took part, and the results.
const REPLAYED: [&str; 18] = [
    "n_enrolled",
    "joined",
    "left",
    "up",
    "busy",
    "asked",
    "inclusion_probability",
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
