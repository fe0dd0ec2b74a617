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
    pub(crate) log_std: f64,
}

/// Whether a time that was computed is no later than a limit. Every number that is read and every operation
/// is off by up to half a unit in the last place; so many of them in all do not make late what is on time.
pub(crate) fn is_within(time_s: f64, limit_s: f64, roundings: u32) -> bool {
    time_s <= limit_s * (1.0 + 0.5 * f64::EPSILON * f64::from(roundings))
}

/// Whether what a client does and sends is done by the end of the round's window: three settings, a product
/// and a sum.
pub(crate) fn fits_window(total_s: f64, window_s: f64) -> bool {
    is_within(total_s, window_s, 5)
}

impl Speed {
    /// Seconds that so many steps take this client.
    pub(crate) fn train_s(&self, client: ClientId, steps: u32) -> f64 {
        f64::from(steps) * self.client_step_s(client)
    }

    /// How many of the steps can be done and sent within the window; `None`: not one.
    pub(crate) fn steps_within(
        &self,
        client: ClientId,
        steps: NonZeroU32,
        upload_s: f64,
        window_s: f64,
    ) -> Option<NonZeroU32> {
        let fit = |steps: u32| fits_window(self.train_s(client, steps) + upload_s, window_s);
        if fit(steps.get()) {
            return Some(steps);
        }
        let possible = ((window_s - upload_s) / self.client_step_s(client)).max(0.0);
        let possible = possible.min(f64::from(steps.get() - 1)) as u32;
        // The quotient falls short of a whole number where its rounding does.
        NonZeroU32::new(possible + u32::from(fit(possible + 1)))
    }

    fn client_step_s(&self, client: ClientId) -> f64 {
        if self.log_std == 0.0 {
            return self.step_s;
        }
        let slowness = Stream::of_client(self.seed, "speed", client).normal();
        self.step_s * libm::exp(self.log_std * slowness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    #[test]
    fn work_is_cut_to_what_can_be_done_in_time() {
        let speed = Speed { seed: 1, step_s: 2.0, log_std: 0.0 };
        let check = |requested, upload_s, window_s, expected| {
            let found = speed.steps_within(ClientId::new(0), steps(requested), upload_s, window_s);
            assert_eq!(found.map_or(0, NonZeroU32::get), expected, "{requested} steps in {window_s} s");
        };
        check(10, 0.0, 20.0, 10);
        check(10, 0.0, 19.9, 9);
        check(10, 0.0, 1.9, 0);
        check(10, 4.0, 0.5, 0);
        check(10, 1.0, f64::INFINITY, 10);
    }

    /// Deadlines are what somebody would write: the decimal number for so many steps and the time to send.
    #[test]
    fn work_that_just_fits_is_whole_and_one_step_more_is_not() {
        for (step_ms, upload_ms) in [(100, 1000), (100, 0), (70, 100), (130, 300), (1, 7)] {
            let of_ms = |ms: u32| format!("{}.{:03}", ms / 1000, ms % 1000).parse::<f64>().unwrap();
            let speed = Speed { seed: 1, step_s: of_ms(step_ms), log_std: 0.0 };
            for count in 1..5000 {
                let window_s = of_ms(count * step_ms + upload_ms);
                let within = |requested| {
                    speed.steps_within(ClientId::new(0), steps(requested), of_ms(upload_ms), window_s)
                };
                assert_eq!(within(count), Some(steps(count)), "{step_ms} ms, sending {upload_ms} ms");
                assert_eq!(within(count + 1), Some(steps(count)), "{step_ms} ms, sending {upload_ms} ms");
            }
        }
    }
}
