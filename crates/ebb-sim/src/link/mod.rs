//! How long an upload takes: one file per kind.

pub mod constant;
pub mod log_normal;
pub mod measured;

use ebb_round::{ClientId, RoundNo};
use ebb_settings::Entry;

/// The clients' links; a function of (seed, round, client), whatever other clients send.
pub trait Link: Send {
    /// The seconds that a client needs to send this many bytes.
    fn upload_s(&self, number: RoundNo, client: ClientId, n_bytes: u64) -> f64;
}

/// Every kind that `[world.link]` can name.
pub const ALL: &[Entry<dyn Link>] =
    &[constant::ENTRY, log_normal::ENTRY, measured::FLASH, measured::MOBIPERF];

/// The seconds for this many bytes at a speed in bits per second.
fn transfer_s(n_bytes: u64, bits_per_s: f64) -> f64 {
    8.0 * n_bytes as f64 / bits_per_s
}
