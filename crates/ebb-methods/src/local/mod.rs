//! What does a client do with the job?

pub mod amplified_scaffold;
pub mod fedprox;
pub mod focus;
pub mod plan;
pub(crate) mod reach;
pub mod scaffold;
pub mod sgd;
