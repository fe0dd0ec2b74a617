//! Who is up when: one file each.

pub mod always;
pub mod bernoulli;

use ebb_round::{Bits, RoundNo, State};
use ebb_settings::Entry;

/// Who can be reached in a round.
pub trait Availability: State + Send {
    /// Writes who is up. Bits of clients that are not enrolled do not matter.
    fn write(&mut self, number: RoundNo, enrolled: &Bits, up: &mut Bits);
}

/// Everything that `[world.availability]` can name.
pub const ALL: &[Entry<dyn Availability>] = &[always::ENTRY, bernoulli::ENTRY];
