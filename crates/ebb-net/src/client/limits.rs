//! The most memory and time that a client gives, whatever its server asks for.

use std::time::Duration;

/// The most that a client gives to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Bytes that a job may need, as [`ClientLimits::needed_bytes`] estimates them.
    pub memory_bytes: u64,
    /// How long a job may take. Without, as long as the server allows.
    pub job_time: Option<Duration>,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits { memory_bytes: DEFAULT_MEMORY_BYTES, job_time: None }
    }
}

/// Enough for a model of 134 million parameters.
pub const DEFAULT_MEMORY_BYTES: u64 = 4 << 30;

/// Copies held at once of the model and of each side vector: packed, unpacked, gradient, two moments, update,
/// rounding residue and client memory.
const VECTOR_COPIES: u64 = 8;

/// Bytes per step: the loss of every step is kept until the job is done.
const STEP_BYTES: u64 = 8;

impl ClientLimits {
    /// Estimates the memory of a job: the download, eight times the model with its side vectors, and eight
    /// bytes a step. The client's data and the activations of its network are not included.
    pub fn needed_bytes(numbers: usize, sides: usize, fetched_bytes: u64, steps: u32) -> u64 {
        let vectors = (1 + sides as u64).saturating_mul(VECTOR_COPIES);
        let vectors = (4 * numbers as u64).saturating_mul(vectors);
        vectors.saturating_add(fetched_bytes).saturating_add(STEP_BYTES * u64::from(steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_needs_eight_times_its_vectors_and_eight_bytes_a_step() {
        assert_eq!(ClientLimits::needed_bytes(610, 0, 2456, 100), 8 * 2440 + 2456 + 800);
        assert_eq!(ClientLimits::needed_bytes(610, 2, 0, 0), 3 * 8 * 2440);
        assert_eq!(ClientLimits::needed_bytes(1 << 60, 255, u64::MAX, u32::MAX), u64::MAX);
    }
}
