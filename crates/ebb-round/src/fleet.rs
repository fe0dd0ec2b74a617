//! The clients as the engine sees them, simulated or over a network: availability, updates, cost.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::roles::{Probes, Wait};
use crate::state::State;
use crate::{Census, ClientId, Job, Parcel, RoundNo, Shares, Update};

/// All clients of a run, simulated or over a network.
pub trait Fleet: State {
    /// Writes who joined, left, is up and is busy into the census. A client is busy if its update for an
    /// earlier round will not arrive in this round either.
    fn roll_call(&mut self, number: RoundNo, census: &mut Census) -> Result<(), FleetError>;

    /// Requests the loss of the job's model, over this number of samples or over all of them, and the
    /// expected duration. Clients that do not respond are missing.
    fn probe(
        &mut self,
        clients: &[ClientId],
        samples: Option<NonZeroU32>,
        job: &Job,
    ) -> Result<(Probes, Cost), FleetError>;

    /// Reports that the last saved state is safely on disk; data that only older states need can be deleted.
    fn on_state_saved(&mut self) {}

    /// Sends the assignments, which ascend by client, and passes every update to the sink. Updates for
    /// earlier rounds come first, then those for this one, each ascending by client. Early ones wait in the
    /// fleet. A busy client is sent nothing, because a client has one job at a time.
    fn train(
        &mut self,
        assignments: &[Assignment],
        wait: Wait,
        sink: &mut dyn UpdateSink,
    ) -> Result<Cost, FleetError>;

    /// The updates that clients would return for all the work of their assignments: an oracle, which only a
    /// simulation has. It changes no state. Clients whose update is unknown are missing.
    fn oracle_updates(
        &mut self,
        _assignments: &[Assignment],
    ) -> Result<Vec<(ClientId, Arc<Update>)>, FleetError> {
        Ok(Vec::new())
    }

    /// The clients that are up but would not return this job in time: an oracle, which only a simulation has.
    /// `None` where this is unknown.
    fn oracle_silent(&self, _job: &Arc<Job>, _wait: Wait) -> Option<Vec<ClientId>> {
        None
    }

    /// What the fleet knows of the last round's updates in addition to their content.
    fn response_info(&self) -> ResponseInfo {
        ResponseInfo::default()
    }
}

/// What a fleet knows of a round's updates in addition to their content.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseInfo {
    /// The response times in seconds from the start of the round, ascending by client; unknown ones are
    /// missing.
    pub response_times_s: Vec<(ClientId, f64)>,
    /// Imputed outcomes, where a fleet replays the record of another run.
    pub imputed: Option<Imputed>,
}

/// Outcomes that were imputed because none was observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imputed {
    /// The name of the imputation rule.
    pub rule: &'static str,
    /// The clients whose outcome is imputed, ascending.
    pub clients: Vec<ClientId>,
}

/// A job for one client.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The client that gets the job.
    pub client: ClientId,
    /// The job itself.
    pub job: Arc<Job>,
    /// The latest round whose update arrived on time; the client then commits its state of that round.
    pub acknowledged: Option<RoundNo>,
}

/// Where a fleet delivers updates.
pub trait UpdateSink {
    /// Takes one update. One that cannot be used is recorded as refused, which is not an error.
    fn offer(&mut self, client: ClientId, update: Update) -> Result<(), FleetError>;
}

/// The time and traffic of an exchange with clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Duration in seconds: virtual in simulation, real over a network.
    pub elapsed_s: f64,
    /// Payload sent to clients, in bytes.
    pub bytes_down: u64,
    /// Payload received from clients, in bytes.
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

/// A client's response to a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeResult {
    /// Loss of the model on the client's data, or on the requested number of its samples.
    pub loss: f32,
    /// Expected training time in seconds.
    pub train_s: f64,
    /// Expected upload time in seconds.
    pub upload_s: f64,
}

/// Evaluates the model after a round.
pub trait Evaluator {
    /// The score, in rounds that are evaluated, given the census and the shares.
    fn evaluate(
        &mut self,
        number: RoundNo,
        model: &Parcel,
        census: &Census,
        shares: &Shares,
    ) -> Option<Score>;
}

/// The score of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Mean loss over the test data.
    pub loss: f64,
    /// Accuracy on the test data, where it has labels.
    pub accuracy: Option<f64>,
    /// The distribution of the score over clients, each on its own test data. An oracle: no server can
    /// evaluate at clients that are down.
    pub oracle_clients: Option<Spread>,
    /// The scores on the test data of named sets of clients, also an oracle.
    pub oracle_sets: Vec<(String, SetScore)>,
    /// The accuracy by class; empty unless it was requested.
    pub classes: Vec<ClassScore>,
    /// For each requested k, the fraction of samples whose label is among the k highest scores.
    pub top_k: Vec<(u32, f64)>,
}

/// The score of a model on the test data of a set of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SetScore {
    /// Mean loss.
    pub loss: f64,
    /// Accuracy, where there are labels.
    pub accuracy: Option<f64>,
}

/// The accuracy of one class, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassScore {
    /// Test samples of the class.
    pub samples: u32,
    /// Correctly classified samples among them.
    pub n_correct: u32,
}

/// The distribution of a metric over clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The mean over clients.
    pub mean: f64,
    /// The mean over the tenth of the clients with the worst values.
    pub worst_tenth: f64,
    /// The standard deviation over clients.
    pub std: f64,
    /// The deciles, from the client with the worst value to the one with the best.
    pub deciles: [f64; 11],
}

/// Why a fleet could not continue a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetError {
    /// Updates arrived out of client order, which sums depend on.
    OutOfOrder {
        /// The client whose update came too late.
        client: ClientId,
        /// The client whose update came before it.
        after: ClientId,
    },
    /// Something that the fleet depends on failed.
    Failed {
        /// The operation that failed, and its object.
        operation: String,
        /// The cause.
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
                "the fleet delivered the update of client {} after that of client {}",
                client.number(),
                after.number()
            ),
            FleetError::Failed { operation: doing, message } => write!(f, "{doing}: {message}"),
            FleetError::Stopped { operation } => write!(f, "{operation}: it was told to stop"),
        }
    }
}

impl std::error::Error for FleetError {}
