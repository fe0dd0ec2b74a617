//! What the clients train: data sets, models, the local run, evaluation.
//!
//! A [`Task`] is a model together with the data every client holds. A [`backend::Backend`] trains many
//! clients of a task at once; it is all that a fleet sees of training.

pub mod backend;
mod client_sets;
pub mod data;
pub mod evaluate;
mod kernels;
mod losses;
mod memory;
pub mod mini_batch;
pub mod net;
pub mod read;
pub mod split;
mod stub;
mod task;

pub use evaluate::{Evaluation, TaskEvaluator};
pub use kernels::KernelPath;
pub use memory::Memory;
pub use stub::{NoEvaluation, StubTask};
pub use task::{LocalResult, LocalTrainer, Tally, Task};

/// The arithmetic that trains the models, as records name it. Results may differ between paths.
///
/// # Panics
/// When `EBBFLOW_KERNELS` names a path that is not to be had here; building a task says so first.
pub fn kernels() -> &'static str {
    KernelPath::chosen().expect("a task was built with it").name()
}
