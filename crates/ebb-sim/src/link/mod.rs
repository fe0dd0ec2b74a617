//! How long an answer is under way: one file each.

pub mod constant;
pub mod log_normal;
pub mod measured;

use ebb_round::{ClientId, RoundNo};
use ebb_settings::Entry;

/// Clients' links; a function of (seed, round, client), whoever else sends.
pub trait Link: Send {
    /// Seconds that a client needs to send so many bytes.
    fn upload_s(&self, number: RoundNo, client: ClientId, n_bytes: u64) -> f64;
}

/// Everything that `[world.link]` can name.
pub const ALL: &[Entry<dyn Link>] =
    &[constant::ENTRY, log_normal::ENTRY, measured::FLASH, measured::MOBIPERF];

/// Seconds for so many bytes at a speed in bits a second.
fn transfer_s(n_bytes: u64, bits_per_s: f64) -> f64 {
    8.0 * n_bytes as f64 / bits_per_s
}
