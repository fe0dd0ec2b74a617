//! What does a client do with the job?

pub mod fedprox;
pub mod plan;
pub mod scaffold;
pub mod sgd;
