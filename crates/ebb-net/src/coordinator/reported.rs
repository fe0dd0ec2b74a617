//! What clients report about themselves, and how far the server trusts it.

use ebb_round::ClientId;

use super::Coordinator;

impl Coordinator {
    /// The most samples that a client is credited with: a multiple of the median that members report.
    pub(super) fn max_credited_samples(&self) -> u32 {
        let Some(times) = self.rules.max_samples_times_median else { return u32::MAX };
        let members = self.members.iter().filter(|member| member.is_enrolled());
        let mut samples: Vec<_> = members.filter_map(|member| member.samples).collect();
        samples.sort_unstable();
        // Of two middle ones the smaller counts, so that one of two clients cannot set the median.
        let Some(median) = samples.len().checked_sub(1).map(|last| samples[last / 2]) else {
            return u32::MAX;
        };
        // Casting a float to an integer saturates.
        (times * f64::from(median)).ceil() as u32
    }

    /// Warns of clients that are credited with fewer samples than they report.
    pub(super) fn warn_of_capped_samples(&self, joined: &[(ClientId, u32)]) {
        for &(client, credited) in joined {
            let reported = self.members.get(client).and_then(|member| member.samples).unwrap_or(credited);
            if reported > credited {
                tracing::warn!(
                    client = client.number(),
                    reported,
                    credited,
                    "it reports many times the median of samples and is credited with fewer \
                     (serve.max_samples_times)"
                );
            }
        }
    }
}
