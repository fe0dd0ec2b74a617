//! Networks as data: a list of layers, compiled into a list of kernel calls.
//!
//! A [`Spec`] describes a network. A [`Net`] is the compiled form: fused layers, and parameters in the order
//! that kernels want. The outer parameters are one flat vector in PyTorch's order; a table gives the packed
//! position of each. A [`Workspace`] holds all memory that a thread needs, so that a step allocates nothing.

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
