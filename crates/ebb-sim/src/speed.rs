//! How long a client trains, and so how much it completes by the deadline.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Stream};

/// The training speeds of all clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    pub(crate) seed: u64,
    /// Seconds per step of a client of median speed.
    pub(crate) step_s: f64,
    /// The standard deviation of the logarithm of a client's slowdown.
    pub(crate) log_std: f64,
}

/// Whether a computed time is no later than a limit. Every read number and every operation has an error of up
/// to half a unit in the last place. That many roundings must not make work late that is on time.
pub(crate) fn is_within(time_s: f64, limit_s: f64, roundings: u32) -> bool {
    time_s <= limit_s * (1.0 + 0.5 * f64::EPSILON * f64::from(roundings))
}

/// Whether training and uploading end within the round's window. The time has five roundings: three settings,
/// a product and a sum.
pub(crate) fn fits_window(total_s: f64, window_s: f64) -> bool {
    is_within(total_s, window_s, 5)
}

impl Speed {
    /// The seconds that this client needs for this many steps.
    pub(crate) fn train_s(&self, client: ClientId, steps: u32) -> f64 {
        f64::from(steps) * self.client_step_s(client)
    }

    /// The number of steps that can be done and uploaded within the window; `None`: not even one.
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
        // The quotient may fall just short of a whole number by rounding.
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

    /// Deadlines that a user would write: the decimal number for this many steps and the upload.
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
