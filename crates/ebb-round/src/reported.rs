//! Bounds what clients report: losses from above and times from below, by a quantile of the round's values.
//!
//! Selectors depend on reported losses and times, which nobody can verify. A client that reports a huge loss
//! ties with the others above the quantile. It is then not selected first in every round.

use crate::fleet::ProbeResult;
use crate::roles::{Probes, Responses};

/// Bounds the losses and times of a round's probes by this quantile of them.
pub(crate) fn bound_probes(probes: &mut Probes, quantile: f64) {
    let values = |of: fn(&ProbeResult) -> f64| probes.values().map(of).collect::<Vec<_>>();
    let max_loss = quantile_of(values(|probe| f64::from(probe.loss)), quantile);
    let min_train_s = upper_quantile_of(values(|probe| probe.train_s), quantile);
    let min_upload_s = upper_quantile_of(values(|probe| probe.upload_s), quantile);
    for probe in probes.values_mut() {
        // The values were converted from single precision, so nothing is lost.
        probe.loss = f64::from(probe.loss).min(max_loss.unwrap_or(f64::INFINITY)) as f32;
        probe.train_s = probe.train_s.max(min_train_s.unwrap_or(0.0));
        probe.upload_s = probe.upload_s.max(min_upload_s.unwrap_or(0.0));
    }
}

/// The largest loss that counts for selection, from the updates of a round.
pub(crate) fn max_loss(responses: &Responses, quantile: Option<f64>) -> f32 {
    let losses = |quantile| {
        let losses = responses.fresh.iter().map(|client_update| f64::from(client_update.update.loss));
        quantile_of(losses.collect(), quantile)
    };
    quantile.and_then(losses).map_or(f32::INFINITY, |loss| loss as f32)
}

/// The empirical quantile, which is one of the values; between two, the lower one.
fn quantile_of(mut values: Vec<f64>, quantile: f64) -> Option<f64> {
    values.retain(|value| !value.is_nan());
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    values.get((quantile * last as f64) as usize).copied()
}

/// The same counted from the largest value; between two, the higher one.
fn upper_quantile_of(values: Vec<f64>, quantile: f64) -> Option<f64> {
    quantile_of(values.into_iter().map(|value| -value).collect(), quantile).map(|value| -value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientId;

    fn probes(reported: &[(f32, f64, f64)]) -> Probes {
        let one = |(idx, &(loss, train_s, upload_s)): (usize, &(f32, f64, f64))| {
            (ClientId::new(idx), ProbeResult { loss, train_s, upload_s })
        };
        reported.iter().enumerate().map(one).collect()
    }

    #[test]
    fn a_client_that_reports_a_huge_loss_or_no_time_ties_with_others() {
        let mut reported =
            probes(&[(3e38, 0.0, 0.0), (0.5, 2.0, 1.0), (0.9, 3.0, 1.5), (0.7, 4.0, 1.1), (0.8, 5.0, 1.2)]);
        bound_probes(&mut reported, 0.75);
        let expected = [(0.9, 2.0, 1.0), (0.5, 2.0, 1.0), (0.9, 3.0, 1.5), (0.7, 4.0, 1.1), (0.8, 5.0, 1.2)];
        assert_eq!(reported, probes(&expected));
    }

    #[test]
    fn of_two_the_larger_loss_counts_as_the_smaller_and_the_shorter_time_as_the_longer() {
        let mut reported = probes(&[(3e38, 0.0, 0.0), (0.5, 1.0, 1.0)]);
        bound_probes(&mut reported, 0.75);
        assert_eq!(reported, probes(&[(0.5, 1.0, 1.0), (0.5, 1.0, 1.0)]));
    }

    #[test]
    fn nothing_reported_is_nothing_bounded() {
        let mut none = Probes::new();
        bound_probes(&mut none, 0.75);
        assert!(none.is_empty());
        assert_eq!(max_loss(&Responses::default(), Some(0.75)), f32::INFINITY);
    }
}
