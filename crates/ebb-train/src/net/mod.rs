//! Networks as data: a list of layers, compiled into a list of kernel calls.
//!
//! A [`Spec`] says what a network is, a [`HttpClient`] how it is computed: layers fused where a kernel does several at
//! once, parameters in the order the kernels want them. Outside, parameters are one flat vector in PyTorch's
//! order; a table says where each stands inside. A [`Workspace`] holds all that a thread needs, so that a
//! step allocates nothing.

mod compile;
mod lstm;
mod named;
mod norm;
#[cfg(test)]
mod reference_tests;
mod settings;
mod spec;
mod step;

pub use compile::{Net, NetError};
pub use named::{NAMES, named};
pub use settings::build;
pub use spec::{Input, Layer, Spec};
pub use step::{Mode, Workspace};
