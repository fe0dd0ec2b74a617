//! What clients state of themselves, as far as the server believes it.

use ebb_round::ClientId;

use super::Desk;

impl Desk {
    /// No client counts for more samples than this: so many times what clients usually have.
    pub(super) fn most_believed(&self) -> u32 {
        let Some(times) = self.rules.most_samples_times else { return u32::MAX };
        let members = self.members.iter().filter(|member| member.is_in());
        let mut samples: Vec<_> = members.filter_map(|member| member.samples).collect();
        samples.sort_unstable();
        // Of two in the middle the smaller: one of two clients does not say what is usual.
        let Some(usual) = samples.len().checked_sub(1).map(|last| samples[last / 2]) else { return u32::MAX };
        // A cast of a float ends at the largest number.
        (times * f64::from(usual)).ceil() as u32
    }

    /// Says whose samples count for fewer than stated.
    pub(super) fn warn_of_disbelief(&self, came: &[(ClientId, u32)]) {
        for &(client, believed) in came {
            let stated = self.members.get(client).and_then(|member| member.samples).unwrap_or(believed);
            if stated > believed {
                tracing::warn!(
                    client = client.number(),
                    stated,
                    believed,
                    "it states many times the usual samples and counts for fewer (serve.most_samples_times)"
                );
            }
        }
    }
}
