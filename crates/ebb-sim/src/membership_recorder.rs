//! Writes a file that `world.members` reads: who was enrolled in which rounds.

use ebb_round::{Census, ClientId, RoundNo};

/// Records from which round to which each client is enrolled.
#[derive(Clone, Debug, Default)]
pub struct MembershipRecorder {
    /// The round since which each client is enrolled; `None` if it is not.
    joined_at: Vec<Option<RoundNo>>,
    /// Client, round of arrival, round of departure.
    finished: Vec<(usize, RoundNo, RoundNo)>,
}

impl MembershipRecorder {
    /// Records who is enrolled from a round on. Rounds must ascend.
    pub fn record(&mut self, number: RoundNo, census: &Census) {
        self.joined_at.resize(self.joined_at.len().max(census.len()), None);
        for (client_idx, since) in self.joined_at.iter_mut().enumerate() {
            let is_in = census.enrolled().get(client_idx);
            let now = census.joined(ClientId::new(client_idx)).filter(|_| is_in);
            // A client that leaves and comes back in one round ends one span and begins another.
            if now != *since {
                self.finished.extend(since.map(|joined| (client_idx, joined, number)));
                *since = now;
            }
        }
    }

    /// Whether no client was ever enrolled.
    pub fn is_empty(&self) -> bool {
        self.finished.is_empty() && self.joined_at.iter().all(Option::is_none)
    }

    /// Whether all `n_clients` clients were enrolled from the first round to the last.
    pub fn is_static(&self, n_clients: usize) -> bool {
        self.finished.is_empty()
            && self.joined_at.len() == n_clients
            && self.joined_at.iter().all(|&since| since == Some(0))
    }

    /// The file as CSV. Clients that are enrolled now have no `left`.
    pub fn to_csv(&self) -> String {
        let finished =
            self.finished.iter().map(|&(client_idx, joined, left)| (client_idx, joined, Some(left)));
        let since = self.joined_at.iter().enumerate();
        let ongoing = since.filter_map(|(client_idx, &since)| Some((client_idx, since?, None)));
        let mut spans: Vec<_> = finished.chain(ongoing).collect();
        spans.sort_unstable();
        let mut text = "client,joined,left\n".to_owned();
        for (client_idx, joined, left) in spans {
            let left = left.map_or(String::new(), |left| left.to_string());
            text += &format!("{client_idx},{joined},{left}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_spans_of_membership() {
        let [first, second, third] = [0, 1, 2].map(ClientId::new);
        let (mut spans, mut census) = (MembershipRecorder::default(), Census::new());
        assert!(spans.is_empty() && !spans.is_static(2));
        census.enrol(first, 1, 0);
        census.enrol(second, 1, 0);
        spans.record(0, &census);
        assert!(spans.is_static(2) && !spans.is_static(3) && !spans.is_empty());
        census.leave(first, 3);
        spans.record(3, &census);
        census.enrol(first, 1, 5);
        census.enrol(third, 1, 5);
        spans.record(5, &census);
        // The client leaves and comes back in one round.
        census.leave(second, 6);
        census.enrol(second, 1, 6);
        spans.record(6, &census);
        assert_eq!(spans.to_csv(), "client,joined,left\n0,0,3\n0,5,\n1,0,6\n1,6,\n2,5,\n");
        assert!(!spans.is_static(3));
    }
}
