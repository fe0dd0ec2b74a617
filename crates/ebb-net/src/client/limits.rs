//! What a client gives at most, whatever its server asks.

use std::time::Duration;

/// What a client gives at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Bytes that a job may need, as [`GuardLimits::needed_bytes`] estimates it.
    pub memory_bytes: u64,
    /// How long a job may take; without, as long as the server lets it.
    pub job_time: Option<Duration>,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits { memory_bytes: DEFAULT_MEMORY_BYTES, job_time: None }
    }
}

/// Room for a model of 134 million numbers.
pub const DEFAULT_MEMORY_BYTES: u64 = 4 << 30;

/// So many vectors of the model's length are held at once for the model, and as many for each vector beside
/// it: as it came, the client's copy, its gradient, two moments, the update, what rounding took from it, and
/// what is remembered.
const VECTOR_COPIES: u64 = 8;

/// The loss of every step is kept until the job is done.
const STEP_BYTES: u64 = 8;

impl ClientLimits {
    /// What a job needs, by an estimate: what is fetched, eight times the model and the vectors beside it,
    /// and eight bytes a step. The client's data and the inner layers of its network are not in it.
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
