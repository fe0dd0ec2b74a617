//! What the clients train: data sets, models, the local run, evaluation.
//!
//! A [`Task`] is a model together with the data every client holds. A [`backend::Backend`] trains many
//! clients of a task at once; it is all that a fleet sees of training.

pub mod backend;
pub mod data;
pub mod evaluate;
pub mod model;
pub mod run;
mod task;

pub use evaluate::{Evaluation, TaskEvaluator};
pub use task::{Done, Tally, Task, Trainee};

/// The arithmetic that trained the models, as records name it. Results may differ between paths.
pub const KERNELS: &str = "portable";
