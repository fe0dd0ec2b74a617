//! What the clients train: data sets, models, the local run, evaluation.
//!
//! A [`Task`] is a model together with the data of every client. A [`backend::Backend`] trains many clients
//! of a task at once; a fleet sees nothing else of training.

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

/// The name of the arithmetic that trains the models, as records show it. Results may differ between paths.
///
/// # Panics
///
/// When `EBBFLOW_KERNELS` names a path that this machine lacks; building a task reports that first.
pub fn kernels() -> &'static str {
    KernelPath::chosen().expect("a task was built with it").name()
}
