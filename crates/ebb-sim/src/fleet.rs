//! Plays a world: reports who is up, trains the selected clients, and delivers updates when they would
//! arrive.

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

use crate::memory::ClientMemories;
use crate::replay::{OnTimeUpdate, RecordedOutcome, Replay};
use crate::script::ScriptedUpdate;
use crate::speed::{fits_window, is_within};
use crate::world::{AfterDeadline, WhenWaitedFor, World};

/// Simulated clients.
pub struct SimFleet {
    world: World,
    task: Arc<dyn Task>,
    rule: Arc<dyn LocalRule>,
    backend: Box<dyn Backend>,
    seed: u64,
    round: RoundNo,
    /// Virtual time in seconds: when the round began, and now.
    round_start_s: f64,
    now_s: f64,
    up: Bits,
    busy: Bits,
    memories: ClientMemories,
    in_flight: Vec<InFlight>,
    /// Clients of a replay whose recorded update was late or lost. They stay busy for as long as in the
    /// record.
    busy_as_recorded: BTreeSet<ClientId>,
    response_info: ResponseInfo,
}

/// An update that will arrive in a later round.
struct InFlight {
    arrival: Arrival,
    client: ClientId,
    update: Update,
}

impl InFlight {
    /// Whether the update is young enough to be accepted in this round.
    fn is_within_max_staleness(&self, number: RoundNo) -> bool {
        self.update.base_round.saturating_add(MAX_STALENESS_ROUNDS) >= number
    }
}

/// When an update arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arrival {
    /// In this round, by a script.
    InRound(RoundNo),
    /// In the round that is open at this virtual time, in seconds.
    AtTime(f64),
    /// This many seconds after the start of the first round in which its client is up.
    OnceUp(f64),
}

/// The outcome of an assignment, known before any training.
struct PlannedOutcome {
    steps: NonZeroU32,
    finish_s: f64,
    response: ScriptedUpdate,
    /// When the update arrives, if not in this round.
    late_arrival: Option<Arrival>,
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
            round: 0,
            round_start_s: 0.0,
            now_s: 0.0,
            up: Bits::default(),
            busy: Bits::default(),
            memories: ClientMemories::default(),
            in_flight: Vec::new(),
            busy_as_recorded: BTreeSet::new(),
            response_info: ResponseInfo::default(),
        }
    }

    /// The world that is played.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Plans the outcome of an assignment; `None`: no update.
    fn planned_outcome(&self, assignment: &Assignment, wait: Wait) -> Option<PlannedOutcome> {
        let client = assignment.client;
        if let Some(replay) = &self.world.replay {
            return self.replayed_outcome(replay, assignment, wait);
        }
        let up = self.up.get(client.idx());
        let once_up = !up && self.responds_once_up(wait);
        if self.busy.get(client.idx()) || !self.receives_job(client, wait) && !once_up {
            return None;
        }
        let scripted = self.world.script.as_ref().and_then(|script| script.response(self.round, client));
        let reply = scripted.unwrap_or_else(|| ScriptedUpdate::whole(client));
        let work = self.world.work.returned_work(self.round, client, self.planned_work(assignment))?;
        let requested = work.steps(self.task.samples(client));
        let planned = reply.steps().map_or(requested, |steps| steps.min(requested));
        let speed = &self.world.speed;
        // The update is as large as what was sent to the client.
        let upload_s = self.world.link.upload_s(self.round, client, assignment.job.global.bytes());
        let window_s = self.window_s(wait);
        let total_s = |steps: NonZeroU32| speed.train_s(client, steps.get()) + upload_s;
        let (steps, finish_s) = match self.world.after_deadline {
            AfterDeadline::Cut => {
                let steps = speed.steps_within(client, planned, upload_s, window_s)?;
                (steps, total_s(steps).min(window_s))
            }
            // Work that fits ends within the window, whatever the rounding of the sums.
            AfterDeadline::Late if fits_window(total_s(planned), window_s) => {
                (planned, total_s(planned).min(window_s))
            }
            AfterDeadline::Late => (planned, total_s(planned)),
        };
        let late_arrival = if once_up {
            Some(Arrival::OnceUp(finish_s))
        } else if reply.rounds_late() > 0 {
            Some(Arrival::InRound(self.round.saturating_add(reply.rounds_late())))
        } else {
            (finish_s > window_s).then_some(Arrival::AtTime(self.now_s + finish_s))
        };
        let finish_s = if up { finish_s } else { self.world.patience_s };
        Some(PlannedOutcome { steps, finish_s, late_arrival, response: reply })
    }

    /// What the record holds for this assignment, or what is imputed.
    fn replayed_outcome(
        &self,
        replay: &Replay,
        assignment: &Assignment,
        wait: Wait,
    ) -> Option<PlannedOutcome> {
        let client = assignment.client;
        let requested = assignment.job.work.steps(self.task.samples(client));
        let response = ScriptedUpdate::whole(client);
        match replay.outcome(self.round, client, self.busy.get(client.idx())).0 {
            RecordedOutcome::Silent => None,
            RecordedOutcome::Late(number) => {
                let finish_s = self.window_s(wait);
                Some(PlannedOutcome {
                    steps: requested,
                    finish_s,
                    response,
                    late_arrival: Some(Arrival::InRound(number)),
                })
            }
            RecordedOutcome::OnTime(OnTimeUpdate { steps, took_s }) => {
                let steps = steps.map_or(requested, |steps| steps.min(requested));
                Some(PlannedOutcome { steps, finish_s: took_s, response, late_arrival: None })
            }
        }
    }

    /// Tracks the clients that stay busy as recorded, and those whose outcome is imputed.
    fn track_replayed(&mut self, assignments: &[Assignment]) {
        let Some(replay) = &self.world.replay else { return };
        let mut imputed = Imputed { rule: replay.imputation_rule(), clients: Vec::new() };
        for client in assignments.iter().map(|assignment| assignment.client) {
            let busy = self.busy.get(client.idx());
            let (outcome, is_imputed) = replay.outcome(self.round, client, busy);
            if is_imputed {
                imputed.clients.push(client);
            }
            // A busy client continues its earlier job.
            if !busy && !is_imputed && !matches!(outcome, RecordedOutcome::OnTime(_)) {
                self.busy_as_recorded.insert(client);
            } else if !busy {
                self.busy_as_recorded.remove(&client);
            }
        }
        self.response_info.imputed = Some(imputed);
    }

    /// The work of an assignment, in the unit that the world's completion model counts.
    fn planned_work(&self, assignment: &Assignment) -> Work {
        let work = assignment.job.work;
        let steps = || Amount::Steps(work.steps(self.task.samples(assignment.client)));
        Work { amount: if self.world.work.counts_steps() { steps() } else { work.amount }, ..work }
    }

    /// Whether clients that are down train when they are next up.
    fn responds_once_up(&self, wait: Wait) -> bool {
        wait.is_patient() && self.world.when_waited_for == WhenWaitedFor::NextUp
    }

    /// Whether a client receives its job in this round.
    fn receives_job(&self, client: ClientId, wait: Wait) -> bool {
        let comes_online = wait.is_patient() && self.world.when_waited_for == WhenWaitedFor::Always;
        let comes_online = comes_online && !self.world.is_away(self.round, client);
        !self.busy.get(client.idx()) && (self.up.get(client.idx()) || comes_online)
    }

    /// How long a round may stay open, in seconds.
    fn window_s(&self, wait: Wait) -> f64 {
        if wait.is_patient() { self.world.patience_s } else { self.world.deadline_s }
    }

    /// Decides when the round closes. Updates that would arrive after that are marked late.
    fn close_round(
        &self,
        assignments: &[Assignment],
        outcomes: &mut [Option<PlannedOutcome>],
        wait: Wait,
    ) -> f64 {
        let recorded_s =
            self.world.replay.as_ref().and_then(|replay| replay.elapsed_s(self.round, assignments));
        if let Some(recorded_s) = recorded_s {
            return (recorded_s - (self.now_s - self.round_start_s)).max(0.0);
        }
        let on_time = |outcome: &&PlannedOutcome| outcome.late_arrival.is_none();
        let times: Vec<_> =
            outcomes.iter().flatten().filter(on_time).map(|outcome| outcome.finish_s).collect();
        // No round waits for a client that trains when it is next up, nor for a busy one that was sent
        // nothing.
        let waited_for = |assignment: &&Assignment| {
            let idx = assignment.client.idx();
            !self.busy.get(idx) && (self.up.get(idx) || !self.responds_once_up(wait))
        };
        let n_waited_for = assignments.iter().filter(waited_for).count();
        let slowest_s = times.iter().copied().max_by(f64::total_cmp).unwrap_or(0.0);
        if let Some(quorum) = wait.quorum().filter(|quorum| (1..=times.len()).contains(quorum)) {
            return self.close_after_first(quorum, assignments, outcomes);
        }
        // With no client to wait for, the server waits until the deadline, or without one for the next update
        // in flight.
        let all_on_time = n_waited_for > 0 && times.len() == n_waited_for;
        let window_s = if n_waited_for == 0 { self.world.deadline_s } else { self.window_s(wait) };
        match (all_on_time, window_s.is_infinite()) {
            // A client that was on time in the record may exceed the deadline, because a server grants grace.
            (false, false) => window_s.max(slowest_s),
            (false, true) if times.is_empty() => self.next_arrival_s(),
            _ => slowest_s,
        }
    }

    /// Accepts the first `quorum` updates and marks all others late. A draw decides between updates of the
    /// same moment.
    fn close_after_first(
        &self,
        quorum: usize,
        assignments: &[Assignment],
        outcomes: &mut [Option<PlannedOutcome>],
    ) -> f64 {
        let draw = |client| Stream::of_client_round(self.seed, "who was first", self.round, client).uniform();
        let mut on_time: Vec<_> = assignments
            .iter()
            .zip(outcomes)
            .filter_map(|(assignment, outcome)| {
                Some((assignment.client, outcome.as_mut().filter(|outcome| outcome.late_arrival.is_none())?))
            })
            .map(|(client, outcome)| (draw(client), outcome))
            .collect();
        on_time.sort_by(|(draw, one), (other_draw, other)| {
            one.finish_s.total_cmp(&other.finish_s).then(draw.total_cmp(other_draw))
        });
        let closes_s = on_time.get(quorum - 1).map_or(0.0, |(_, last)| last.finish_s);
        for (_, outcome) in on_time.into_iter().skip(quorum) {
            outcome.late_arrival = Some(Arrival::AtTime(self.now_s + outcome.finish_s));
        }
        closes_s
    }

    /// Seconds until the next update in flight arrives; 0 if there is none.
    fn next_arrival_s(&self) -> f64 {
        let times_s = self.in_flight.iter().filter_map(|one| match one.arrival {
            Arrival::AtTime(time_s) => Some(time_s - self.now_s),
            Arrival::InRound(_) | Arrival::OnceUp(_) => None,
        });
        times_s.min_by(f64::total_cmp).map_or(0.0, |time_s| time_s.max(0.0))
    }

    /// Starts the work of clients that were down when they got it and are up again.
    fn start_once_up(&mut self) {
        for one in &mut self.in_flight {
            if let Arrival::OnceUp(takes_s) = one.arrival
                && self.up.get(one.client.idx())
            {
                one.arrival = Arrival::AtTime(self.now_s + takes_s);
                self.world.availability.took_part(self.round, one.client);
            }
        }
    }

    /// Whether the client of an update in flight is still busy with it.
    fn is_busy(&self, one: &InFlight) -> bool {
        match one.arrival {
            // An update that a script lets arrive in a round does so before the round's jobs.
            Arrival::InRound(round) => round > self.round,
            Arrival::AtTime(time_s) => !has_arrived(time_s, self.now_s),
            Arrival::OnceUp(_) => true,
        }
    }

    /// Whether an update arrives in this round, which closes at this time.
    fn is_due(&self, one: &InFlight, closes_s: f64) -> bool {
        match one.arrival {
            Arrival::InRound(round) => round <= self.round,
            Arrival::AtTime(time_s) => has_arrived(time_s, closes_s),
            Arrival::OnceUp(_) => false,
        }
    }

    /// Passes on updates of earlier rounds that arrive in this one, which closes at this time.
    fn deliver_late(&mut self, closes_s: f64, sink: &mut dyn UpdateSink) -> Result<u64, FleetError> {
        let (mut arriving, still_in_flight): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.in_flight).into_iter().partition(|one| self.is_due(one, closes_s));
        self.in_flight = still_in_flight;
        arriving.retain(|one| one.is_within_max_staleness(self.round));
        arriving.sort_by_key(|one| (one.client, one.update.base_round));
        let mut bytes_up = 0;
        for one in arriving {
            bytes_up += one.update.delta.bytes();
            sink.offer(one.client, one.update)?;
        }
        Ok(bytes_up)
    }
}

/// Whether the clock has reached the time of an update. Both are sums over the rounds that an update can be
/// in flight, so their roundings are allowed for.
fn has_arrived(time_s: f64, clock_s: f64) -> bool {
    is_within(time_s, clock_s, 2 * (MAX_STALENESS_ROUNDS + 1))
}

/// The largest fleet for which the oracle reports absent clients and response times.
const MAX_CLIENTS_FORESEEN: usize = 4096;

impl Fleet for SimFleet {
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError> {
        self.round = number;
        self.world.roll_call(number, self.task.as_ref(), census);
        self.round_start_s = self.now_s;
        self.up = census.up().clone();
        // A client that leaves takes its work along. Work that would exceed the maximum staleness is not
        // started.
        let (number, enrolled) = (self.round, census.enrolled());
        self.in_flight.retain(|one| {
            let begun = !matches!(one.arrival, Arrival::OnceUp(_));
            enrolled.get(one.client.idx()) && (begun || one.is_within_max_staleness(number))
        });
        self.start_once_up();
        if let Some(replay) = &self.world.replay {
            let enrolled = census.enrolled();
            self.busy_as_recorded
                .retain(|client| enrolled.get(client.idx()) && replay.was_busy(number, *client));
        }
        census.set_busy(|busy| {
            self.busy_as_recorded.iter().for_each(|client| busy.set(client.idx(), true));
            for one in self.in_flight.iter().filter(|one| self.is_busy(one)) {
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
        let mut cost = Cost::default();
        let deadline_s = self.world.deadline_s;
        let is_free = |client: &&ClientId| self.up.get(client.idx()) && !self.busy.get(client.idx());
        let n_probed = clients.len();
        let clients: Vec<_> = clients.iter().filter(is_free).copied().collect();
        // The server learns that a client is silent only when the deadline has passed.
        if clients.len() < n_probed && deadline_s.is_finite() {
            cost.elapsed_s = deadline_s;
        }
        let SimFleet { task, seed, round: number, .. } = self;
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
                Some(replay) => replay.mean_response_time_s(client),
                None => self.world.speed.train_s(client, steps),
            };
            let result = ProbeResult {
                loss,
                train_s,
                upload_s: self.world.link.upload_s(self.round, client, job.global.bytes()),
            };
            // The model goes down and a number comes back, which takes as long as an update. The slowest
            // client counts, but no longer than the deadline.
            cost.bytes_down += job.global.bytes();
            cost.elapsed_s = cost.elapsed_s.max(result.upload_s.min(deadline_s));
            if result.upload_s <= deadline_s {
                cost.bytes_up += 4;
                probes.insert(client, result);
            }
        }
        self.now_s += cost.elapsed_s;
        Ok((probes, cost))
    }

    fn train(
        &mut self,
        assignments: &[Assignment],
        wait: Wait,
        sink: &mut dyn UpdateSink,
    ) -> Result<Cost, FleetError> {
        let mut outcomes: Vec<_> =
            assignments.iter().map(|assignment| self.planned_outcome(assignment, wait)).collect();
        let mut elapsed_s = self.close_round(assignments, &mut outcomes, wait);
        let is_small = self.up.len() <= MAX_CLIENTS_FORESEEN;
        let on_time =
            assignments.iter().zip(&outcomes).filter(|_| is_small).filter_map(|(assignment, outcome)| {
                outcome
                    .as_ref()
                    .filter(|outcome| outcome.late_arrival.is_none())
                    .map(|outcome| (assignment.client, outcome.finish_s))
            });
        self.response_info = ResponseInfo { response_times_s: on_time.collect(), imputed: None };
        self.track_replayed(assignments);
        if let Some(round_s) = self.world.availability.round_s() {
            // A recording determines when the next round begins.
            elapsed_s = elapsed_s.max(round_s - (self.now_s - self.round_start_s));
        }
        let closes_s = self.now_s + elapsed_s;
        let mut cost = Cost { elapsed_s, bytes_up: self.deliver_late(closes_s, sink)?, ..Cost::default() };

        let mut training_jobs = Vec::new();
        let mut outcomes_by_job = Vec::new();
        for (assignment, outcome) in assignments.iter().zip(outcomes) {
            if self.receives_job(assignment.client, wait) || outcome.is_some() {
                cost.bytes_down += assignment.job.global.bytes();
            }
            let Some(outcome) = outcome else {
                // The client did the work, and the update was lost.
                let is_lost =
                    self.world.work.is_lost(self.round, assignment.client, self.planned_work(assignment));
                if is_lost && self.receives_job(assignment.client, wait) {
                    self.world.availability.took_part(self.round, assignment.client);
                }
                continue;
            };
            let memory = self.memories.commit_until(assignment.client, self.round, assignment.acknowledged);
            let job = Arc::clone(&assignment.job);
            training_jobs.push(TrainingJob { client: assignment.client, job, memory, limit: outcome.steps });
            outcomes_by_job.push(outcome);
        }
        let SimFleet { world, backend, task, rule, memories, in_flight, round: number, seed, .. } = self;
        backend.train(task.as_ref(), rule.as_ref(), *seed, &training_jobs, &mut |at, trained| {
            let (client, outcome) = (training_jobs[at].client, &outcomes_by_job[at]);
            let Some(mut trained) = trained else { return Ok(()) };
            if !matches!(outcome.late_arrival, Some(Arrival::OnceUp(_))) {
                world.availability.took_part(*number, client);
            }
            if let Some(memory) = trained.memory {
                memories.stage(client, *number, memory);
            }
            outcome.response.corrupt(&mut trained.update);
            if let Some(arrives) = outcome.late_arrival {
                in_flight.push(InFlight { arrival: arrives, client, update: trained.update });
                return Ok(());
            }
            cost.bytes_up += trained.update.delta.bytes();
            sink.offer(client, trained.update)
        })?;
        if let Some(message) = self.task.take_failure() {
            return Err(FleetError::Failed { operation: format!("training round {}", self.round), message });
        }
        self.now_s = closes_s;
        Ok(cost)
    }

    fn oracle_updates(
        &mut self,
        assignments: &[Assignment],
    ) -> Result<Vec<(ClientId, Arc<Update>)>, FleetError> {
        let training_jobs: Vec<_> = assignments
            .iter()
            .map(|assignment| TrainingJob {
                client: assignment.client,
                job: Arc::clone(&assignment.job),
                memory: self.memories.commit_until(assignment.client, self.round, assignment.acknowledged),
                limit: assignment.job.work.steps(self.task.samples(assignment.client)),
            })
            .collect();
        let mut updates = Vec::new();
        let SimFleet { task, rule, backend, seed, .. } = self;
        backend.train(task.as_ref(), rule.as_ref(), *seed, &training_jobs, &mut |at, trained| {
            let usable = trained.filter(|trained| vectors::all_finite(&trained.update.delta.model));
            updates.extend(usable.map(|trained| (training_jobs[at].client, Arc::new(trained.update))));
            Ok(())
        })?;
        Ok(updates)
    }

    fn oracle_silent(&self, job: &Arc<Job>, wait: Wait) -> Option<Vec<ClientId>> {
        let absent_come_online = wait.is_patient() && self.world.when_waited_for != WhenWaitedFor::Never;
        // An imputed outcome is not oracle knowledge.
        if absent_come_online || self.up.len() > MAX_CLIENTS_FORESEEN || self.world.replay.is_some() {
            return None;
        }
        let is_silent = |client: &ClientId| {
            let assignment = Assignment { client: *client, job: Arc::clone(job), acknowledged: None };
            self.planned_outcome(&assignment, wait).is_none_or(|outcome| outcome.late_arrival.is_some())
        };
        Some(self.up.iter().map(ClientId::new).filter(is_silent).collect())
    }

    fn response_info(&self) -> ResponseInfo {
        self.response_info.clone()
    }
}

impl State for SimFleet {
    fn save(&self, to: &mut Saver) {
        to.section("availability", |to| self.world.availability.save(to));
        to.section("memories", |to| self.memories.save(to));
        to.f64("now_s", self.now_s);
        to.u64("under_way", self.in_flight.len() as u64);
        for one in &self.in_flight {
            one.arrival.save(to);
            to.u64("client", u64::from(one.client.number()));
            one.update.save("update", to);
        }
        if self.world.replay.is_some() {
            to.u32s(
                "following",
                &self.busy_as_recorded.iter().map(|client| client.number()).collect::<Vec<_>>(),
            );
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        from.section("availability", |from| self.world.availability.load(from))?;
        from.section("memories", |from| self.memories.load(from))?;
        self.now_s = from.f64("now_s")?;
        self.in_flight.clear();
        for _ in 0..from.u64("under_way")? {
            let arrives = Arrival::load(from)?;
            let client = ClientId::new(from.u32("client")? as usize);
            self.in_flight.push(InFlight { arrival: arrives, client, update: Update::load("update", from)? });
        }
        if self.world.replay.is_some() {
            let following = from.u32s("following")?;
            self.busy_as_recorded =
                following.into_iter().map(|client| ClientId::new(client as usize)).collect();
        }
        Ok(())
    }
}

impl Arrival {
    fn save(self, to: &mut Saver) {
        let (kind, round, time_s) = match self {
            Arrival::InRound(round) => (0, round, 0.0),
            Arrival::AtTime(time_s) => (1, 0, time_s),
            Arrival::OnceUp(takes_s) => (2, 0, takes_s),
        };
        to.u64("arrives", kind);
        to.u64("round", u64::from(round));
        to.f64("time_s", time_s);
    }

    fn load(from: &mut Loader<'_>) -> Result<Arrival, StateError> {
        let (kind, round, time_s) = (from.u64("arrives")?, from.u32("round")?, from.f64("time_s")?);
        match kind {
            0 => Ok(Arrival::InRound(round)),
            1 => Ok(Arrival::AtTime(time_s)),
            2 => Ok(Arrival::OnceUp(time_s)),
            _ => Err(from.error("arrives", "has an unknown value")),
        }
    }
}
