//! What does a client do with the job?

pub mod plan;
pub mod sgd;
