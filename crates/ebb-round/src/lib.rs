//! One federated round: its vocabulary, its six roles, and the engine that calls them in order.
//!
//! Every method for unreliable clients answers one of six questions of a round; [`roles`] has a trait for
//! each. The [`Engine`] calls the roles and knows no method by name. Availability, speed and losses of
//! clients belong to the world, which the engine sees through [`Fleet`].
//!
//! This crate does no I/O and reads no clock.

pub mod bits;
pub mod census;
pub mod client_influence;
pub mod clip;
pub mod engine;
pub mod fleet;
pub mod gram;
pub mod guard;
pub mod inbox;
pub mod oracle;
pub mod parcel;
mod reported;
pub mod rng;
pub mod roles;
pub mod shares;
pub mod sketch;
pub mod spill;
pub mod state;
pub mod vectors;

pub use bits::Bits;
pub use census::{Census, ClientId, RoundNo};
pub use client_influence::ClientInfluence;
pub use engine::{Engine, Outcome, RequiredCapabilities, Roles, RunContext, StandIn};
pub use fleet::{
    Assignment, ClassScore, Cost, Evaluator, Fleet, FleetError, Imputed, ProbeResult, ResponseInfo, Score,
    SetScore, Spread, UpdateSink,
};
pub use guard::Void;
pub use inbox::{MAX_STALENESS_ROUNDS, Refusal, RefusedUpdate};
pub use oracle::OracleError;
pub use parcel::{Amount, Job, Layout, Parcel, SideName, Tensor, Update, Work};
pub use rng::Stream;
pub use roles::{
    Adam, Aggregate, Aggregator, ClientDecision, ClientUpdate, Cohort, Contribution, LocalRule, LocalRun,
    Metrics, Objective, OwnStart, Probes, Report, Responses, Retention, Round, Selected, Selector,
    ServerRule, Similarity, SimilarityMatrix, StepFeature, StepRule, Substitution, Wait,
};
pub use shares::Shares;
pub use spill::SpillStore;
pub use state::{Loader, Saver, State, StateError};
