//! What does a client do with the job?

pub mod fedprox;
pub mod plan;
pub(crate) mod reach;
pub mod scaffold;
pub mod sgd;
