//! Out-of-memory storage lent to a role by the driver, so that the round itself does no I/O.

use std::fmt;

/// Bytes outside memory, usually a file. They are lost when the process ends; state is saved elsewhere.
pub trait SpillStore: fmt::Debug + Send {
    /// Writes bytes at an offset, over what was there. False: they were not written, and stay with the
    /// caller.
    fn put(&mut self, at: u64, bytes: &[u8]) -> bool;
    /// Reads what was written at an offset.
    ///
    /// # Panics
    ///
    /// If written bytes cannot be read again. The last checkpoint is not affected.
    fn get(&self, at: u64, bytes: &mut [u8]);
}
