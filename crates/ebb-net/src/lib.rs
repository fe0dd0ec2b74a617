//! A fleet over a network: a server that survives, and the clients that join it.
//!
//! The run is a function of what its fleet returns, so the server writes down just that before it acts upon it, and plays it
//! again after a restart. Small messages go over one long-lived stream a client; vectors travel beside it, by the digest of
//! their content.

// The allocator with which tests count memory is unsafe by its trait.
#![cfg_attr(not(test), forbid(unsafe_code))]

mod accept;
pub mod client;
mod convert;
mod course;
#[cfg(test)]
mod damaged;
mod desk;
mod digest;
mod fleet;
mod journal;
mod members;
mod metrics;
pub mod pack;
#[cfg(test)]
mod played;
mod rollback;
mod secure;
mod server;
mod shared;
#[cfg(test)]
mod sockets;
mod store;
pub mod tokens;
mod turns;
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated from proto/ebbflow.proto by scripts/proto"
)]
mod wire;

pub use course::entry_of_saved;
pub use desk::{Abilities, AfterDeadline, Rules};
pub use digest::Digest;
pub use fleet::{ClientJudge, NetFleet};
pub use rollback::JournalBack;
pub use secure::Tls;
pub use server::{Counts, Place, REVOKED, Recalled, STORE, ServeError, Served, server_id};
pub use shared::STOPPED;
pub use store::{Store, StoreError};
pub use tokens::KEY;

/// The version of the protocol that this crate speaks.
pub const VERSION: u32 = 1;

/// Vectors travel in pieces of so many bytes.
const CHUNK: usize = 64 * 1024;

/// How much of an update travels in one message. A transfer stands still if not even one came for a while, so that slow links need
/// small ones.
const PART: usize = 16 * 1024;

/// A model of one tensor.
#[cfg(test)]
fn flat(numbers: usize) -> ebb_round::Layout {
    let piece = ebb_round::Tensor { name: "w".to_owned(), shape: vec![numbers], is_trained: true };
    ebb_round::Layout::new(vec![piece])
}

#[test]
fn the_generated_code_is_that_of_the_proto_file() {
    let digest = tokens::hex(Digest::of(include_bytes!("../proto/ebbflow.proto")).bytes());
    let fresh = include_str!("wire.rs").contains(&digest);
    assert!(fresh, "make it anew: cargo run --manifest-path scripts/proto/Cargo.toml");
}
