//! What clients state of themselves, as far as the server believes it.

use ebb_round::ClientId;

use super::Coordinator;

impl Coordinator {
    /// No client counts for more samples than this: so many times what clients usually have.
    pub(super) fn max_credited_samples(&self) -> u32 {
        let Some(times) = self.rules.max_samples_times_median else { return u32::MAX };
        let members = self.members.iter().filter(|member| member.is_enrolled());
        let mut samples: Vec<_> = members.filter_map(|member| member.samples).collect();
        samples.sort_unstable();
        // Of two in the middle the smaller: one of two clients does not say what is usual.
        let Some(usual) = samples.len().checked_sub(1).map(|last| samples[last / 2]) else { return u32::MAX };
        // A cast of a float ends at the largest number.
        (times * f64::from(usual)).ceil() as u32
    }

    /// Says whose samples count for fewer than stated.
    pub(super) fn warn_of_capped_samples(&self, came: &[(ClientId, u32)]) {
        for &(client, believed) in came {
            let stated = self.members.get(client).and_then(|member| member.samples).unwrap_or(believed);
            if stated > believed {
                tracing::warn!(
                    client = client.number(),
                    stated,
                    believed,
                    "it states many times the usual samples and counts for fewer (serve.max_samples_times)"
                );
            }
        }
    }
}
