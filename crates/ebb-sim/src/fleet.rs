//! Plays a world: takes the roll, trains whoever is there, and lets answers arrive when they would.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::roles::Probes;
use ebb_round::{
    Bits, Census, ClientId, Fleet, FleetError, Job, Loader, LocalRule, Measured, Order, RoundNo, Saver, Sink,
    Spent, State, StateError, Update, Wait, vectors,
};
use ebb_train::Task;
use ebb_train::backend::{Assignment, Backend};

use crate::memory::Memories;
use crate::script::Reply;
use crate::world::{AfterDeadline, WhenWaitedFor, World};

/// Simulated clients.
pub struct SimFleet {
    world: World,
    task: Arc<dyn Task>,
    rule: Arc<dyn LocalRule>,
    backend: Box<dyn Backend>,
    seed: u64,
    number: RoundNo,
    up: Bits,
    busy: Bits,
    memories: Memories,
    under_way: Vec<UnderWay>,
}

/// An answer that will arrive in a later round.
struct UnderWay {
    /// `None`: when the client is next up.
    arrives: Option<RoundNo>,
    client: ClientId,
    update: Update,
}

/// What will come of an order.
struct Fate {
    steps: NonZeroU32,
    finish_s: f64,
    reply: Reply,
    late: u32,
    /// Whether it is late until the client is up again.
    when_up: bool,
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
            up: Bits::default(),
            busy: Bits::default(),
            memories: Memories::default(),
            under_way: Vec::new(),
        }
    }

    /// The world that is played.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What comes of asking a client; `None`: silence.
    fn fate(&self, order: &Order, wait: Wait) -> Option<Fate> {
        let client = order.client;
        let up = self.up.get(client.idx());
        let when_up = !up && self.will_come_when_up(wait);
        if self.busy.get(client.idx()) || !self.reached(client, wait) && !when_up {
            return None;
        }
        let scripted = self.world.script.as_ref().and_then(|script| script.reply(self.number, client));
        let reply = scripted.unwrap_or_else(|| Reply::whole(client));
        let work = self.world.work.returned(self.number, client, order.job.work)?;
        let asked = work.steps(self.task.samples(client));
        let planned = reply.steps().map_or(asked, |steps| steps.min(asked));
        let speed = &self.world.speed;
        // An answer is as large as what was sent.
        let upload_s = self.world.link.upload_s(self.number, client, order.job.global.bytes());
        let window_s = self.window_s(wait);
        let took_s = |steps: NonZeroU32| speed.train_s(client, steps.get()) + upload_s;
        let (steps, finish_s, late) = match self.world.after_deadline {
            // What was cut to fit does fit, whatever the last digit of a sum says.
            AfterDeadline::Cut => {
                let steps = speed.steps_within(client, planned, window_s - upload_s)?;
                (steps, took_s(steps).min(window_s), 0)
            }
            AfterDeadline::Late => (planned, took_s(planned), rounds_late(took_s(planned), window_s)?),
        };
        let late = reply.late().max(late);
        let finish_s = if up { finish_s } else { self.world.patience_s };
        Some(Fate { steps, finish_s, late, reply, when_up })
    }

    /// Whether clients that are down answer when they are next up.
    fn will_come_when_up(&self, wait: Wait) -> bool {
        wait == Wait::Everyone && self.world.when_waited_for == WhenWaitedFor::NextUp
    }

    /// Whether a client gets the job in this round.
    fn reached(&self, client: ClientId, wait: Wait) -> bool {
        let comes = wait == Wait::Everyone && self.world.when_waited_for == WhenWaitedFor::Always;
        !self.busy.get(client.idx()) && (self.up.get(client.idx()) || comes)
    }

    /// How long a round may be held open.
    fn window_s(&self, wait: Wait) -> f64 {
        match wait {
            Wait::Deadline | Wait::Answers(_) => self.world.deadline_s,
            Wait::Everyone => self.world.patience_s,
        }
    }

    /// When the round closes; answers that would come after are marked late by a round.
    fn close(&self, orders: &[Order], fates: &mut [Option<Fate>], wait: Wait) -> f64 {
        let on_time = |fate: &&Fate| fate.late == 0 && !fate.when_up;
        let mut times: Vec<_> = fates.iter().flatten().filter(on_time).map(|fate| fate.finish_s).collect();
        // Whoever comes when it is up again is not waited for, nor whoever is busy and was sent nothing.
        let waited_for = |order: &&Order| {
            let idx = order.client.idx();
            !self.busy.get(idx) && (self.up.get(idx) || !self.will_come_when_up(wait))
        };
        let n_waited_for = orders.iter().filter(waited_for).count();
        times.sort_by(f64::total_cmp);
        let slowest_s = times.last().copied().unwrap_or(0.0);
        if let Wait::Answers(wanted) = wait
            && let Some(&closes_s) = times.get(wanted.saturating_sub(1))
        {
            for fate in fates.iter_mut().flatten().filter(|fate| fate.finish_s > closes_s) {
                fate.late = fate.late.max(1);
            }
            return closes_s;
        }
        // Where nobody was there to be asked, the server waits for somebody until the deadline.
        let all_answered = n_waited_for > 0 && times.len() == n_waited_for;
        let window_s = if n_waited_for == 0 { self.world.deadline_s } else { self.window_s(wait) };
        if all_answered || window_s.is_infinite() { slowest_s } else { window_s }
    }

    /// Whether an answer arrives in this round.
    fn is_due(&self, one: &UnderWay) -> bool {
        match one.arrives {
            Some(round) => round <= self.number,
            None => self.up.get(one.client.idx()),
        }
    }

    /// Whether anybody remembers having asked for an answer.
    fn is_remembered(&self, one: &UnderWay) -> bool {
        one.update.base.saturating_add(MOST_LATE) >= self.number
    }

    /// Passes on what was sent in earlier rounds and arrives in this one.
    fn deliver_late(&mut self, sink: &mut dyn Sink) -> Result<u64, FleetError> {
        let (mut due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.under_way).into_iter().partition(|one| self.is_due(one));
        self.under_way = later.into_iter().filter(|one| self.is_remembered(one)).collect();
        due.sort_by_key(|one| (one.client, one.update.base));
        let mut bytes_up = 0;
        for one in due {
            if one.arrives.is_none() {
                self.world.availability.took_part(self.number, one.client);
            }
            bytes_up += one.update.delta.bytes();
            sink.offer(one.client, one.update)?;
        }
        Ok(bytes_up)
    }
}

/// In how many rounds from now, each as long as the window, an answer arrives; `None`: too late for anybody to use it.
fn rounds_late(finish_s: f64, window_s: f64) -> Option<u32> {
    let late = if finish_s <= window_s { 0.0 } else { (finish_s / window_s).ceil() - 1.0 };
    (late <= f64::from(MOST_LATE)).then_some(late as u32)
}

/// The engine forgets what it asked for after as many rounds.
const MOST_LATE: u32 = 32;

impl Fleet for SimFleet {
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError> {
        self.number = number;
        self.world.take_roll(number, self.task.as_ref(), census);
        self.up = census.up().clone();
        // What arrives in this round does so before the round's orders, so it leaves its client free.
        census.set_busy(|busy| {
            for one in self.under_way.iter().filter(|one| !self.is_due(one) && self.is_remembered(one)) {
                busy.set(one.client.idx(), true);
            }
        });
        self.busy = census.busy().clone();
        Ok(())
    }

    fn measure(&mut self, clients: &[ClientId], job: &Job) -> Result<(Probes, Spent), FleetError> {
        let mut probes = Probes::new();
        let mut spent = Spent::default();
        let deadline_s = self.world.deadline_s;
        let free = |client: &&ClientId| self.up.get(client.idx()) && !self.busy.get(client.idx());
        for &client in clients.iter().filter(free) {
            let steps = job.work.steps(self.task.samples(client)).get();
            let measured = Measured {
                loss: self.task.loss(client, &job.global.model),
                train_s: self.world.speed.train_s(client, steps),
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
        Ok((probes, spent))
    }

    fn train(&mut self, orders: &[Order], wait: Wait, sink: &mut dyn Sink) -> Result<Spent, FleetError> {
        let mut spent = Spent { bytes_up: self.deliver_late(sink)?, ..Spent::default() };
        let mut fates: Vec<_> = orders.iter().map(|order| self.fate(order, wait)).collect();
        spent.elapsed_s = self.close(orders, &mut fates, wait);

        let mut assignments = Vec::new();
        let mut promised = Vec::new();
        for (order, fate) in orders.iter().zip(fates) {
            if self.reached(order.client, wait) || fate.is_some() {
                spent.bytes_down += order.job.global.bytes();
            }
            let Some(fate) = fate else {
                // It did the work, and it was lost.
                let lost = self.world.work.loses(self.number, order.client, order.job.work);
                if lost && self.reached(order.client, wait) {
                    self.world.availability.took_part(self.number, order.client);
                }
                continue;
            };
            let memory = self.memories.recall(order.client, order.heard);
            let job = Arc::clone(&order.job);
            assignments.push(Assignment { client: order.client, job, memory, limit: fate.steps });
            promised.push(fate);
        }
        let SimFleet { world, backend, task, rule, memories, under_way, number, seed, .. } = self;
        backend.train(task.as_ref(), rule.as_ref(), *seed, &assignments, &mut |at, trained| {
            let (client, fate) = (assignments[at].client, &promised[at]);
            let Some(mut trained) = trained else { return Ok(()) };
            if !fate.when_up {
                world.availability.took_part(*number, client);
            }
            if let Some(memory) = trained.memory {
                memories.note(client, *number, memory);
            }
            fate.reply.garble(&mut trained.update);
            if fate.late > 0 || fate.when_up {
                let arrives = (!fate.when_up).then_some(number.saturating_add(fate.late));
                under_way.push(UnderWay { arrives, client, update: trained.update });
                return Ok(());
            }
            spent.bytes_up += trained.update.delta.bytes();
            sink.offer(client, trained.update)
        })?;
        Ok(spent)
    }

    fn oracle(&mut self, orders: &[Order]) -> Result<Vec<(ClientId, Arc<Update>)>, FleetError> {
        let assignments: Vec<_> = orders
            .iter()
            .map(|order| Assignment {
                client: order.client,
                job: Arc::clone(&order.job),
                memory: self.memories.recall(order.client, order.heard),
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
}

/// What a saved answer has in place of a round, if it arrives when its client is next up.
const WHEN_UP: RoundNo = RoundNo::MAX;

impl State for SimFleet {
    fn save(&self, to: &mut Saver) {
        to.section("availability", |to| self.world.availability.save(to));
        to.section("memories", |to| self.memories.save(to));
        to.u64("under_way", self.under_way.len() as u64);
        for one in &self.under_way {
            to.u64("arrives", u64::from(one.arrives.unwrap_or(WHEN_UP)));
            to.u64("client", u64::from(one.client.number()));
            one.update.save("update", to);
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        from.section("availability", |from| self.world.availability.load(from))?;
        from.section("memories", |from| self.memories.load(from))?;
        self.under_way.clear();
        for _ in 0..from.u64("under_way")? {
            let arrives = Some(from.u32("arrives")?).filter(|&round| round != WHEN_UP);
            let client = ClientId::new(from.u32("client")? as usize);
            self.under_way.push(UnderWay { arrives, client, update: Update::load("update", from)? });
        }
        Ok(())
    }
}
