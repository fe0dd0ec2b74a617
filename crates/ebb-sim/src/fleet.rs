//! Plays a world: takes the roll, trains whoever is there, and lets answers arrive when they would.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::roles::Probes;
use ebb_round::{
    Amount, Assignment, Bits, Census, ClientId, Cost, Fleet, FleetError, Imputed, Job, Loader, LocalRule,
    MAX_STALENESS_ROUNDS, ProbeResult, ResponseInfo, RoundNo, Saver, State, StateError, Stream, Update,
    UpdateSink, Wait, Work, vectors,
};
use ebb_train::Task;
use ebb_train::backend::{Backend, TrainingJob};

use crate::memory::Memories;
use crate::replay::{Answered, Replay, Told};
use crate::script::Reply;
use crate::speed::{fits, is_by};
use crate::world::{AfterDeadline, WhenWaitedFor, World};

/// Simulated clients.
pub struct SimFleet {
    world: World,
    task: Arc<dyn Task>,
    rule: Arc<dyn LocalRule>,
    backend: Box<dyn Backend>,
    seed: u64,
    number: RoundNo,
    /// Virtual time: when the round began, and now.
    began_s: f64,
    now_s: f64,
    up: Bits,
    busy: Bits,
    memories: Memories,
    under_way: Vec<UnderWay>,
    /// In a replay, who is at a job that it had in the record too and did not answer on time: it is busy as long as it was then.
    following: BTreeSet<ClientId>,
    account: ResponseInfo,
}

/// An answer that will arrive in a later round.
struct UnderWay {
    arrives: Arrives,
    client: ClientId,
    update: Update,
}

impl UnderWay {
    /// Whether anybody remembers having asked for it.
    fn is_remembered(&self, number: RoundNo) -> bool {
        self.update.base_round.saturating_add(MAX_STALENESS_ROUNDS) >= number
    }
}

/// When an answer arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arrives {
    /// In this round, as a script has it.
    In(RoundNo),
    /// In the round that is open at this time.
    At(f64),
    /// So long after the beginning of the first round in which its client is up.
    WhenUp(f64),
}

/// What will come of an order.
struct Fate {
    steps: NonZeroU32,
    finish_s: f64,
    reply: Reply,
    /// When it arrives, unless in this round.
    late: Option<Arrives>,
}

impl SimFleet {
    /// The clients of a task in a world.
    pub fn new(
        world: World,
        task: Arc<dyn Task>,
        rule: Arc<dyn LocalRule>,
        backend: Box<dyn Backend>,
        seed: u64,
    ) -> Self {
        SimFleet {
            world,
            task,
            rule,
            backend,
            seed,
            number: 0,
            began_s: 0.0,
            now_s: 0.0,
            up: Bits::default(),
            busy: Bits::default(),
            memories: Memories::default(),
            under_way: Vec::new(),
            following: BTreeSet::new(),
            account: ResponseInfo::default(),
        }
    }

    /// The world that is played.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What comes of asking a client; `None`: silence.
    fn fate(&self, order: &Assignment, wait: Wait) -> Option<Fate> {
        let client = order.client;
        if let Some(replay) = &self.world.replay {
            return self.replayed(replay, order, wait);
        }
        let up = self.up.get(client.idx());
        let when_up = !up && self.will_come_when_up(wait);
        if self.busy.get(client.idx()) || !self.reached(client, wait) && !when_up {
            return None;
        }
        let scripted = self.world.script.as_ref().and_then(|script| script.reply(self.number, client));
        let reply = scripted.unwrap_or_else(|| Reply::whole(client));
        let work = self.world.work.returned(self.number, client, self.planned(order))?;
        let asked = work.steps(self.task.samples(client));
        let planned = reply.steps().map_or(asked, |steps| steps.min(asked));
        let speed = &self.world.speed;
        // An answer is as large as what was sent.
        let upload_s = self.world.link.upload_s(self.number, client, order.job.global.bytes());
        let window_s = self.window_s(wait);
        let took_s = |steps: NonZeroU32| speed.train_s(client, steps.get()) + upload_s;
        let (steps, finish_s) = match self.world.after_deadline {
            AfterDeadline::Cut => {
                let steps = speed.steps_within(client, planned, upload_s, window_s)?;
                (steps, took_s(steps).min(window_s))
            }
            // What fits ends no later than the round, whatever the last digit of a sum says.
            AfterDeadline::Late if fits(took_s(planned), window_s) => {
                (planned, took_s(planned).min(window_s))
            }
            AfterDeadline::Late => (planned, took_s(planned)),
        };
        let late = if when_up {
            Some(Arrives::WhenUp(finish_s))
        } else if reply.late() > 0 {
            Some(Arrives::In(self.number.saturating_add(reply.late())))
        } else {
            (finish_s > window_s).then_some(Arrives::At(self.now_s + finish_s))
        };
        let finish_s = if up { finish_s } else { self.world.patience_s };
        Some(Fate { steps, finish_s, late, reply })
    }

    /// What the record says of asking a client, or what is guessed.
    fn replayed(&self, replay: &Replay, order: &Assignment, wait: Wait) -> Option<Fate> {
        let client = order.client;
        let asked = order.job.work.steps(self.task.samples(client));
        let reply = Reply::whole(client);
        match replay.outcome(self.number, client, self.busy.get(client.idx())).0 {
            Told::Silent => None,
            Told::Late(number) => {
                let finish_s = self.window_s(wait);
                Some(Fate { steps: asked, finish_s, reply, late: Some(Arrives::In(number)) })
            }
            Told::Answered(Answered { steps, took_s }) => {
                let steps = steps.map_or(asked, |steps| steps.min(asked));
                Some(Fate { steps, finish_s: took_s, reply, late: None })
            }
        }
    }

    /// Notes who goes on as in the record after being asked, and whose outcome is a guess.
    fn follow(&mut self, orders: &[Assignment]) {
        let Some(replay) = &self.world.replay else { return };
        let mut imputed = Imputed { rule: replay.rule(), clients: Vec::new() };
        for client in orders.iter().map(|order| order.client) {
            let busy = self.busy.get(client.idx());
            let (told, guessed) = replay.outcome(self.number, client, busy);
            if guessed {
                imputed.clients.push(client);
            }
            // Whoever is busy goes on with what it has in hand.
            if !busy && !guessed && !matches!(told, Told::Answered(_)) {
                self.following.insert(client);
            } else if !busy {
                self.following.remove(&client);
            }
        }
        self.account.imputed = Some(imputed);
    }

    /// The work of an order, in the unit that the world's law of work counts in.
    fn planned(&self, order: &Assignment) -> Work {
        let work = order.job.work;
        let steps = || Amount::Steps(work.steps(self.task.samples(order.client)));
        Work { amount: if self.world.work.counts_steps() { steps() } else { work.amount }, ..work }
    }

    /// Whether clients that are down answer when they are next up.
    fn will_come_when_up(&self, wait: Wait) -> bool {
        wait.is_patient() && self.world.when_waited_for == WhenWaitedFor::NextUp
    }

    /// Whether a client gets the job in this round.
    fn reached(&self, client: ClientId, wait: Wait) -> bool {
        let comes = wait.is_patient() && self.world.when_waited_for == WhenWaitedFor::Always;
        let comes = comes && !self.world.is_away(self.number, client);
        !self.busy.get(client.idx()) && (self.up.get(client.idx()) || comes)
    }

    /// How long a round may be held open.
    fn window_s(&self, wait: Wait) -> f64 {
        if wait.is_patient() { self.world.patience_s } else { self.world.deadline_s }
    }

    /// How long the round is open; answers that would come after that are marked late.
    fn close(&self, orders: &[Assignment], fates: &mut [Option<Fate>], wait: Wait) -> f64 {
        let recorded_s = self.world.replay.as_ref().and_then(|replay| replay.elapsed_s(self.number, orders));
        if let Some(recorded_s) = recorded_s {
            return (recorded_s - (self.now_s - self.began_s)).max(0.0);
        }
        let on_time = |fate: &&Fate| fate.late.is_none();
        let times: Vec<_> = fates.iter().flatten().filter(on_time).map(|fate| fate.finish_s).collect();
        // Whoever comes when it is up again is not waited for, nor whoever is busy and was sent nothing.
        let waited_for = |order: &&Assignment| {
            let idx = order.client.idx();
            !self.busy.get(idx) && (self.up.get(idx) || !self.will_come_when_up(wait))
        };
        let n_waited_for = orders.iter().filter(waited_for).count();
        let slowest_s = times.iter().copied().max_by(f64::total_cmp).unwrap_or(0.0);
        if let Some(wanted) = wait.quorum().filter(|wanted| (1..=times.len()).contains(wanted)) {
            return self.close_after(wanted, orders, fates);
        }
        // Where nobody was there to be asked, the server waits until the deadline; without one, for what is under way.
        let all_answered = n_waited_for > 0 && times.len() == n_waited_for;
        let window_s = if n_waited_for == 0 { self.world.deadline_s } else { self.window_s(wait) };
        match (all_answered, window_s.is_infinite()) {
            // Who was on time in a record may have taken longer than the deadline: a server grants some grace.
            (false, false) => window_s.max(slowest_s),
            (false, true) if times.is_empty() => self.next_arrival_s(),
            _ => slowest_s,
        }
    }

    /// Takes so many answers, the first that come, and marks all others late; of those that come at the same moment a draw says who was first.
    fn close_after(&self, wanted: usize, orders: &[Assignment], fates: &mut [Option<Fate>]) -> f64 {
        let draw =
            |client| Stream::of_client_round(self.seed, "who was first", self.number, client).uniform();
        let mut coming: Vec<_> = orders
            .iter()
            .zip(fates)
            .filter_map(|(order, fate)| {
                Some((order.client, fate.as_mut().filter(|fate| fate.late.is_none())?))
            })
            .map(|(client, fate)| (draw(client), fate))
            .collect();
        coming.sort_by(|(draw, one), (other_draw, other)| {
            one.finish_s.total_cmp(&other.finish_s).then(draw.total_cmp(other_draw))
        });
        let closes_s = coming.get(wanted - 1).map_or(0.0, |(_, last)| last.finish_s);
        for (_, fate) in coming.into_iter().skip(wanted) {
            fate.late = Some(Arrives::At(self.now_s + fate.finish_s));
        }
        closes_s
    }

    /// How long it is until the next answer that is under way arrives; 0 if there is none.
    fn next_arrival_s(&self) -> f64 {
        let times_s = self.under_way.iter().filter_map(|one| match one.arrives {
            Arrives::At(time_s) => Some(time_s - self.now_s),
            Arrives::In(_) | Arrives::WhenUp(_) => None,
        });
        times_s.min_by(f64::total_cmp).map_or(0.0, |time_s| time_s.max(0.0))
    }

    /// Lets those that are up again begin the work they were given while they were down.
    fn begin_when_up(&mut self) {
        for one in &mut self.under_way {
            if let Arrives::WhenUp(takes_s) = one.arrives
                && self.up.get(one.client.idx())
            {
                one.arrives = Arrives::At(self.now_s + takes_s);
                self.world.availability.took_part(self.number, one.client);
            }
        }
    }

    /// Whether the client of an answer under way has still to do with it.
    fn is_busy(&self, one: &UnderWay) -> bool {
        match one.arrives {
            // What a script lets arrive in a round does so before the round's orders.
            Arrives::In(round) => round > self.number,
            Arrives::At(time_s) => !has_come(time_s, self.now_s),
            Arrives::WhenUp(_) => true,
        }
    }

    /// Whether an answer arrives in this round, which closes at this time.
    fn is_due(&self, one: &UnderWay, closes_s: f64) -> bool {
        match one.arrives {
            Arrives::In(round) => round <= self.number,
            Arrives::At(time_s) => has_come(time_s, closes_s),
            Arrives::WhenUp(_) => false,
        }
    }

    /// Passes on what was sent in earlier rounds and arrives in this one, which closes at this time.
    fn deliver_late(&mut self, closes_s: f64, sink: &mut dyn UpdateSink) -> Result<u64, FleetError> {
        let (mut due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.under_way).into_iter().partition(|one| self.is_due(one, closes_s));
        self.under_way = later;
        due.retain(|one| one.is_remembered(self.number));
        due.sort_by_key(|one| (one.client, one.update.base_round));
        let mut bytes_up = 0;
        for one in due {
            bytes_up += one.update.delta.bytes();
            sink.offer(one.client, one.update)?;
        }
        Ok(bytes_up)
    }
}

/// Whether the clock has reached the moment of an answer: it took a length and a sum for each of the rounds
/// in which the answer can be under way, the first among them.
fn has_come(time_s: f64, clock_s: f64) -> bool {
    is_by(time_s, clock_s, 2 * (MAX_STALENESS_ROUNDS + 1))
}

/// Nobody asks in fleets larger than this who would have answered, nor how long each took.
const MOST_FORETOLD: usize = 4096;

impl Fleet for SimFleet {
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError> {
        self.number = number;
        self.world.take_roll(number, self.task.as_ref(), census);
        self.began_s = self.now_s;
        self.up = census.up().clone();
        // Whoever leaves takes its work along, and nobody begins what nobody remembers.
        let (number, enrolled) = (self.number, census.enrolled());
        self.under_way.retain(|one| {
            let begun = !matches!(one.arrives, Arrives::WhenUp(_));
            enrolled.get(one.client.idx()) && (begun || one.is_remembered(number))
        });
        self.begin_when_up();
        if let Some(replay) = &self.world.replay {
            let enrolled = census.enrolled();
            self.following.retain(|client| enrolled.get(client.idx()) && replay.was_busy(number, *client));
        }
        census.set_busy(|busy| {
            self.following.iter().for_each(|client| busy.set(client.idx(), true));
            for one in self.under_way.iter().filter(|one| self.is_busy(one)) {
                busy.set(one.client.idx(), true);
            }
        });
        self.busy = census.busy().clone();
        Ok(())
    }

    fn probe(
        &mut self,
        clients: &[ClientId],
        samples: Option<NonZeroU32>,
        job: &Job,
    ) -> Result<(Probes, Cost), FleetError> {
        let mut probes = Probes::new();
        let mut spent = Cost::default();
        let deadline_s = self.world.deadline_s;
        let free = |client: &&ClientId| self.up.get(client.idx()) && !self.busy.get(client.idx());
        let n_probed = clients.len();
        let clients: Vec<_> = clients.iter().filter(free).copied().collect();
        // Nobody knows that a client is silent until the deadline has passed.
        if clients.len() < n_probed && deadline_s.is_finite() {
            spent.elapsed_s = deadline_s;
        }
        let SimFleet { task, seed, number, .. } = self;
        let losses = self.backend.map_clients(clients.len(), &|at| match samples {
            None => task.loss(clients[at], &job.global.model),
            Some(samples) => {
                let mut stream = Stream::of_client_round(*seed, "probe", *number, clients[at]);
                task.batch_loss(clients[at], &job.global.model, samples, &mut stream)
            }
        });
        for (client, loss) in clients.into_iter().zip(losses) {
            let steps = job.work.steps(self.task.samples(client)).get();
            let train_s = match &self.world.replay {
                Some(replay) => replay.usual_s(client),
                None => self.world.speed.train_s(client, steps),
            };
            let measured = ProbeResult {
                loss,
                train_s,
                upload_s: self.world.link.upload_s(self.number, client, job.global.bytes()),
            };
            // The model goes down, a number comes back, and that takes as long as sending an answer; the slowest counts,
            // but nobody is waited for beyond the deadline.
            spent.bytes_down += job.global.bytes();
            spent.elapsed_s = spent.elapsed_s.max(measured.upload_s.min(deadline_s));
            if measured.upload_s <= deadline_s {
                spent.bytes_up += 4;
                probes.insert(client, measured);
            }
        }
        self.now_s += spent.elapsed_s;
        Ok((probes, spent))
    }

    fn train(
        &mut self,
        orders: &[Assignment],
        wait: Wait,
        sink: &mut dyn UpdateSink,
    ) -> Result<Cost, FleetError> {
        let mut fates: Vec<_> = orders.iter().map(|order| self.fate(order, wait)).collect();
        let mut elapsed_s = self.close(orders, &mut fates, wait);
        let few = self.up.len() <= MOST_FORETOLD;
        let on_time = orders.iter().zip(&fates).filter(|_| few).filter_map(|(order, fate)| {
            fate.as_ref().filter(|fate| fate.late.is_none()).map(|fate| (order.client, fate.finish_s))
        });
        self.account = ResponseInfo { response_times_s: on_time.collect(), imputed: None };
        self.follow(orders);
        if let Some(round_s) = self.world.availability.round_s() {
            // The next round begins when the recording has it begin.
            elapsed_s = elapsed_s.max(round_s - (self.now_s - self.began_s));
        }
        let closes_s = self.now_s + elapsed_s;
        let mut spent = Cost { elapsed_s, bytes_up: self.deliver_late(closes_s, sink)?, ..Cost::default() };

        let mut assignments = Vec::new();
        let mut promised = Vec::new();
        for (order, fate) in orders.iter().zip(fates) {
            if self.reached(order.client, wait) || fate.is_some() {
                spent.bytes_down += order.job.global.bytes();
            }
            let Some(fate) = fate else {
                // It did the work, and it was lost.
                let lost = self.world.work.loses(self.number, order.client, self.planned(order));
                if lost && self.reached(order.client, wait) {
                    self.world.availability.took_part(self.number, order.client);
                }
                continue;
            };
            let memory = self.memories.recall(order.client, self.number, order.acknowledged);
            let job = Arc::clone(&order.job);
            assignments.push(TrainingJob { client: order.client, job, memory, limit: fate.steps });
            promised.push(fate);
        }
        let SimFleet { world, backend, task, rule, memories, under_way, number, seed, .. } = self;
        backend.train(task.as_ref(), rule.as_ref(), *seed, &assignments, &mut |at, trained| {
            let (client, fate) = (assignments[at].client, &promised[at]);
            let Some(mut trained) = trained else { return Ok(()) };
            if !matches!(fate.late, Some(Arrives::WhenUp(_))) {
                world.availability.took_part(*number, client);
            }
            if let Some(memory) = trained.memory {
                memories.note(client, *number, memory);
            }
            fate.reply.garble(&mut trained.update);
            if let Some(arrives) = fate.late {
                under_way.push(UnderWay { arrives, client, update: trained.update });
                return Ok(());
            }
            spent.bytes_up += trained.update.delta.bytes();
            sink.offer(client, trained.update)
        })?;
        if let Some(message) = self.task.take_failure() {
            return Err(FleetError::Failed { operation: format!("training round {}", self.number), message });
        }
        self.now_s = closes_s;
        Ok(spent)
    }

    fn oracle_updates(&mut self, orders: &[Assignment]) -> Result<Vec<(ClientId, Arc<Update>)>, FleetError> {
        let assignments: Vec<_> = orders
            .iter()
            .map(|order| TrainingJob {
                client: order.client,
                job: Arc::clone(&order.job),
                memory: self.memories.recall(order.client, self.number, order.acknowledged),
                limit: order.job.work.steps(self.task.samples(order.client)),
            })
            .collect();
        let mut updates = Vec::new();
        let SimFleet { task, rule, backend, seed, .. } = self;
        backend.train(task.as_ref(), rule.as_ref(), *seed, &assignments, &mut |at, trained| {
            let usable = trained.filter(|trained| vectors::all_finite(&trained.update.delta.model));
            updates.extend(usable.map(|trained| (assignments[at].client, Arc::new(trained.update))));
            Ok(())
        })?;
        Ok(updates)
    }

    fn oracle_silent(&self, job: &Arc<Job>, wait: Wait) -> Option<Vec<ClientId>> {
        let others_come = wait.is_patient() && self.world.when_waited_for != WhenWaitedFor::Never;
        // A guess is no oracle.
        if others_come || self.up.len() > MOST_FORETOLD || self.world.replay.is_some() {
            return None;
        }
        let silent = |client: &ClientId| {
            let order = Assignment { client: *client, job: Arc::clone(job), acknowledged: None };
            self.fate(&order, wait).is_none_or(|fate| fate.late.is_some())
        };
        Some(self.up.iter().map(ClientId::new).filter(silent).collect())
    }

    fn response_info(&self) -> ResponseInfo {
        self.account.clone()
    }
}

impl State for SimFleet {
    fn save(&self, to: &mut Saver) {
        to.section("availability", |to| self.world.availability.save(to));
        to.section("memories", |to| self.memories.save(to));
        to.f64("now_s", self.now_s);
        to.u64("under_way", self.under_way.len() as u64);
        for one in &self.under_way {
            one.arrives.save(to);
            to.u64("client", u64::from(one.client.number()));
            one.update.save("update", to);
        }
        if self.world.replay.is_some() {
            to.u32s("following", &self.following.iter().map(|client| client.number()).collect::<Vec<_>>());
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        from.section("availability", |from| self.world.availability.load(from))?;
        from.section("memories", |from| self.memories.load(from))?;
        self.now_s = from.f64("now_s")?;
        self.under_way.clear();
        for _ in 0..from.u64("under_way")? {
            let arrives = Arrives::load(from)?;
            let client = ClientId::new(from.u32("client")? as usize);
            self.under_way.push(UnderWay { arrives, client, update: Update::load("update", from)? });
        }
        if self.world.replay.is_some() {
            let following = from.u32s("following")?;
            self.following = following.into_iter().map(|client| ClientId::new(client as usize)).collect();
        }
        Ok(())
    }
}

impl Arrives {
    fn save(self, to: &mut Saver) {
        let (kind, round, time_s) = match self {
            Arrives::In(round) => (0, round, 0.0),
            Arrives::At(time_s) => (1, 0, time_s),
            Arrives::WhenUp(takes_s) => (2, 0, takes_s),
        };
        to.u64("arrives", kind);
        to.u64("round", u64::from(round));
        to.f64("time_s", time_s);
    }

    fn load(from: &mut Loader<'_>) -> Result<Arrives, StateError> {
        let (kind, round, time_s) = (from.u64("arrives")?, from.u32("round")?, from.f64("time_s")?);
        match kind {
            0 => Ok(Arrives::In(round)),
            1 => Ok(Arrives::At(time_s)),
            2 => Ok(Arrives::WhenUp(time_s)),
            _ => Err(from.error("arrives", "is none of the ways to arrive")),
        }
    }
}
