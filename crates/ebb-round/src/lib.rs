//! One federated round: its vocabulary, the six roles that answer its questions, and the engine that asks.
//!
//! Every method for unreliable clients answers one of six questions that each round asks in the same
//! order; [`roles`] has a trait for each. The [`Engine`] asks them and knows no method by name. Who is up,
//! how fast clients are and what gets lost is the world; the engine sees it through [`Fleet`].
//!
//! This crate does no I/O and reads no clock.

pub mod bits;
pub mod census;
pub mod clip;
pub mod engine;
pub mod fleet;
pub mod gram;
pub mod guard;
pub mod inbox;
pub mod oracle;
pub mod parcel;
pub mod rng;
pub mod roles;
pub mod shares;
pub mod shelf;
pub mod sketch;
pub mod state;
mod stated;
pub mod vectors;
pub mod weights;

pub use bits::Bits;
pub use census::{Census, ClientId, RoundNo};
pub use engine::{Engine, Needs, Outcome, Roles, RunFacts, StandIn};
pub use fleet::{
    Account, ClassScore, Evaluator, Fleet, FleetError, Imputed, Measured, Order, Score, SetScore, Sink,
    Spent, Spread,
};
pub use guard::Void;
pub use inbox::{LATE_ROUNDS, Refusal, Refused};
pub use oracle::OracleError;
pub use parcel::{Amount, Job, Layout, Parcel, Piece, SideName, Update, Work};
pub use rng::Stream;
pub use roles::{
    Acquaintance, Adam, Aggregate, Aggregator, Answer, Cohort, Contribution, Hold, Judgement, Likeness,
    LocalRule, LocalRun, Notes, Objective, OwnStart, Pick, Probes, Report, Returns, Round, Selector,
    ServerRule, Skill, StepRule, Substitution, Wait,
};
pub use shares::Shares;
pub use shelf::Shelf;
pub use state::{Loader, Saver, State, StateError};
pub use weights::Weights;
