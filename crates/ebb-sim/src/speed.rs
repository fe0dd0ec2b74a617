//! How long a client computes, so what is done by the deadline.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Stream};

/// Speeds of all clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    pub(crate) seed: u64,
    /// Seconds a step at a client of ordinary speed.
    pub(crate) step_s: f64,
    /// Standard deviation of the logarithm of how much slower than ordinary a client is.
    pub(crate) spread: f64,
}

impl Speed {
    /// Seconds that so many steps take this client.
    pub(crate) fn train_s(&self, client: ClientId, steps: u32) -> f64 {
        f64::from(steps) * self.client_step_s(client)
    }

    /// How many of the steps can be done within the time; `None`: not one.
    pub(crate) fn steps_within(
        &self,
        client: ClientId,
        steps: NonZeroU32,
        left_s: f64,
    ) -> Option<NonZeroU32> {
        if self.train_s(client, steps.get()) <= left_s {
            return Some(steps);
        }
        let possible = (left_s / self.client_step_s(client)).max(0.0).min(f64::from(steps.get()));
        NonZeroU32::new(possible as u32)
    }

    fn client_step_s(&self, client: ClientId) -> f64 {
        if self.spread == 0.0 {
            return self.step_s;
        }
        let slowness = Stream::of_client(self.seed, "speed", client).normal();
        self.step_s * libm::exp(self.spread * slowness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_cut_to_what_can_be_done_in_time() {
        let speed = Speed { seed: 1, step_s: 2.0, spread: 0.0 };
        let check = |steps, window_s, expected| {
            let found = speed.steps_within(ClientId::new(0), NonZeroU32::new(steps).unwrap(), window_s);
            assert_eq!(found.map_or(0, NonZeroU32::get), expected, "{steps} steps in {window_s} s");
        };
        check(10, 20.0, 10);
        check(10, 19.9, 9);
        check(10, 1.9, 0);
        check(10, -4.0, 0);
        check(10, f64::INFINITY, 10);
    }
}
