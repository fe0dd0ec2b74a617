//! Where a role puts what does not fit in memory. A round touches no file: whoever drives it lends the shelf.

use std::fmt;

/// Bytes outside memory: a file, as a rule. What lies there is gone when the process ends; state is saved elsewhere.
pub trait SpillStore: fmt::Debug + Send {
    /// Puts bytes at a place, over what was there. False: they were not taken, and stay with the caller.
    fn put(&mut self, at: u64, bytes: &[u8]) -> bool;
    /// Reads what was put at a place.
    ///
    /// # Panics
    /// When what was taken cannot be read again. The last checkpoint is not touched by it.
    fn get(&self, at: u64, bytes: &mut [u8]);
}
