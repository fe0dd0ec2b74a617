//! A fleet over a network: a server that survives restarts, and the clients that join it.
//!
//! The run is a function of what its fleet returns. The server therefore journals each update before it uses
//! it, and replays the journal after a restart. Small messages travel over one long-lived stream per client.
//! Vectors travel on streams of their own, addressed by the digest of their content.

// The allocator with which tests count memory needs unsafe code, because its trait does.
#![cfg_attr(not(test), forbid(unsafe_code))]

pub mod client;
mod convert;
mod coordinator;
mod digest;
mod exclusive_streams;
mod fleet;
mod journal;
mod listener;
mod members;
mod metrics;
pub mod pack;
mod recovery;
mod rollback;
mod server;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod tls;
pub mod tokens;
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated from proto/ebbflow.proto by scripts/proto"
)]
mod wire;

pub use coordinator::{AfterDeadline, Capabilities, Rules};
pub use digest::Digest;
pub use fleet::{ClientEvaluator, NetFleet};
pub use recovery::first_entry_of_saved;
pub use rollback::JournalRollback;
pub use server::{
    Counts, JournalReplay, REVOKED_FILE, RunningServer, STORE_FILE, ServeError, ServerOptions, server_id,
};
pub use store::{Store, StoreError};
pub use tls::TlsFiles;
pub use tokens::KEY_FILE;

/// The version of the protocol that this crate speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// Bytes of a model in one message of a download.
const DOWNLOAD_CHUNK_BYTES: usize = 64 * 1024;

/// Bytes of an update in one message of an upload. They are few, because a transfer counts as stalled if no
/// message arrives for a while, and links may be slow.
const UPLOAD_CHUNK_BYTES: usize = 16 * 1024;

/// A model of one tensor.
#[cfg(test)]
fn one_tensor_layout(numbers: usize) -> ebb_round::Layout {
    let tensor = ebb_round::Tensor { name: "w".to_owned(), shape: vec![numbers], is_trained: true };
    ebb_round::Layout::new(vec![tensor])
}

#[test]
fn the_generated_code_is_that_of_the_proto_file() {
    let digest = tokens::hex(Digest::of(include_bytes!("../proto/ebbflow.proto")).bytes());
    let fresh = include_str!("wire.rs").contains(&digest);
    assert!(fresh, "generate it again: cargo run --manifest-path scripts/proto/Cargo.toml");
}
