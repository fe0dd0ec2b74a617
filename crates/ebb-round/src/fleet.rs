//! The world as the engine sees it: who is up, who answers what. Simulated, or over a network.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::roles::{Probes, Wait};
use crate::state::State;
use crate::{Census, ClientId, Job, Parcel, RoundNo, Shares, Update};

/// The clients, wherever they are.
pub trait Fleet: State {
    /// Says who joined, who left, who can be reached in this round and who is busy: whose answer to an earlier round will
    /// not arrive in this one either.
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError>;

    /// Asks clients for their loss at the job's model, over so many of their samples or over all, and how long they would
    /// take. The silent are missing.
    fn probe(
        &mut self,
        clients: &[ClientId],
        samples: Option<NonZeroU32>,
        job: &Job,
    ) -> Result<(Probes, Cost), FleetError>;

    /// The state that was saved last is safely on the disk: what only older ones need is not needed any more.
    fn on_state_saved(&mut self) {}

    /// Hands out the orders, which ascend by client, and passes every answer to the sink: first those to
    /// earlier rounds, then those to this one, ascending by client. What arrives early waits in the fleet. An order to a
    /// busy client is not sent: a client has one job at a time.
    fn train(
        &mut self,
        assignments: &[Assignment],
        wait: Wait,
        sink: &mut dyn UpdateSink,
    ) -> Result<Cost, FleetError>;

    /// What clients would return if they did all that the orders ask: an oracle, which only a simulation can be. It
    /// changes nothing. Clients of which nothing can be said are missing.
    fn oracle_updates(
        &mut self,
        _assignments: &[Assignment],
    ) -> Result<Vec<(ClientId, Arc<Update>)>, FleetError> {
        Ok(Vec::new())
    }

    /// Who of those that are up would not be heard in time if it were asked for this job: an oracle, which only a simulation
    /// can be. `None` where nobody can say.
    fn oracle_silent(&self, _job: &Arc<Job>, _wait: Wait) -> Option<Vec<ClientId>> {
        None
    }

    /// What the fleet knows of the answers of the round that was just trained, beside what is in them.
    fn response_info(&self) -> ResponseInfo {
        ResponseInfo::default()
    }
}

/// What a fleet knows of a round's answers, beside what is in them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseInfo {
    /// How long clients took to answer, in seconds from when the round was opened, ascending by client. Those of whom nobody knows are
    /// missing.
    pub response_times_s: Vec<(ClientId, f64)>,
    /// Whose outcome is a guess, where a fleet plays what was recorded of another run.
    pub imputed: Option<Imputed>,
}

/// Outcomes that nobody saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imputed {
    /// The rule by which they were guessed.
    pub rule: &'static str,
    /// Whose, ascending by client.
    pub clients: Vec<ClientId>,
}

/// What one client is asked to do.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// Who.
    pub client: ClientId,
    /// What.
    pub job: Arc<Job>,
    /// The latest round the client answered on time; it then commits what it remembers of it.
    pub acknowledged: Option<RoundNo>,
}

/// Where a fleet puts answers.
pub trait UpdateSink {
    /// Takes one answer. One that cannot be used is counted as refused, which is no error.
    fn offer(&mut self, client: ClientId, update: Update) -> Result<(), FleetError>;
}

/// What an exchange with the clients took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds: virtual in simulation, real over a network.
    pub elapsed_s: f64,
    /// Payload sent to clients.
    pub bytes_down: u64,
    /// Payload received from clients.
    pub bytes_up: u64,
}

impl std::ops::Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost {
            elapsed_s: self.elapsed_s + other.elapsed_s,
            bytes_down: self.bytes_down + other.bytes_down,
            bytes_up: self.bytes_up + other.bytes_up,
        }
    }
}

/// What a probe of one client brings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeResult {
    /// Loss of the model on the client's data, or on as many samples of it as were asked for.
    pub loss: f32,
    /// How long the client would train, in seconds.
    pub train_s: f64,
    /// How long it would send its answer, in seconds.
    pub upload_s: f64,
}

/// Judges the model after a round.
pub trait Evaluator {
    /// The score, in rounds that call for one, with who is in the run and who counts how much.
    fn evaluate(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
        shares: &Shares,
    ) -> Option<Score>;
}

/// How good a model is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Mean loss over the test data.
    pub loss: f64,
    /// Share of the test data that is labelled right, where there are labels.
    pub accuracy: Option<f64>,
    /// The same at each client's own test data. An oracle: no server could ask those that are down.
    pub oracle_clients: Option<Spread>,
    /// The same on the own test data of sets of clients, by name. An oracle, too.
    pub oracle_sets: Vec<(String, SetScore)>,
    /// The same class by class; empty unless it was asked for.
    pub classes: Vec<ClassScore>,
    /// For each k that was asked for, the share whose label has one of the k highest scores.
    pub top_k: Vec<(u32, f64)>,
}

/// How good a model is on the own test data of some clients together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SetScore {
    /// Mean loss.
    pub loss: f64,
    /// Share that is labelled right, where there are labels.
    pub accuracy: Option<f64>,
}

/// How much of the test data of one class is labelled right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassScore {
    /// Samples of the class.
    pub samples: u32,
    /// Those among them that are labelled right.
    pub n_correct: u32,
}

/// A figure taken at every client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Its mean over clients.
    pub mean: f64,
    /// Its mean over the tenth of the clients that are served worst.
    pub worst_tenth: f64,
    /// Its standard deviation over clients.
    pub std: f64,
    /// From the client that is served worst to the one that is served best, in steps of a tenth of them.
    pub deciles: [f64; 11],
}

/// Why a fleet could not go on with a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetError {
    /// Answers must come in the order of clients, for sums run in that order.
    OutOfOrder {
        /// The client whose answer came too late.
        client: ClientId,
        /// The client that was heard before it.
        after: ClientId,
    },
    /// Something the fleet depends on failed.
    Failed {
        /// What was being done, and to whom.
        operation: String,
        /// What went wrong.
        message: String,
    },
    /// The fleet was told to stop. This is no failure: the run can resume.
    Stopped {
        /// The operation that the stop interrupted.
        operation: String,
    },
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FleetError::OutOfOrder { client, after } => write!(
                f,
                "the fleet passed on client {}'s answer after client {}'s",
                client.number(),
                after.number()
            ),
            FleetError::Failed { operation: doing, message } => write!(f, "{doing}: {message}"),
            FleetError::Stopped { operation } => write!(f, "{operation}: it was told to stop"),
        }
    }
}

impl std::error::Error for FleetError {}
