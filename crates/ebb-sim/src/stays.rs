//! Turns who was in into a file that `members` reads.

use ebb_round::{Census, ClientId, RoundNo};

/// Writes down who is in from which round to which.
#[derive(Clone, Debug, Default)]
pub struct Stays {
    /// Since when each client has been in, if it is.
    since: Vec<Option<RoundNo>>,
    /// Client, joined, left.
    over: Vec<(usize, RoundNo, RoundNo)>,
}

impl Stays {
    /// Notes who is in from a round on. Rounds ascend.
    pub fn note(&mut self, number: RoundNo, census: &Census) {
        self.since.resize(self.since.len().max(census.len()), None);
        for (client_idx, since) in self.since.iter_mut().enumerate() {
            let is_in = census.enrolled().get(client_idx);
            let now = census.joined(ClientId::new(client_idx)).filter(|_| is_in);
            // Who left and came back in one round ends a stay and begins another.
            if now != *since {
                self.over.extend(since.map(|joined| (client_idx, joined, number)));
                *since = now;
            }
        }
    }

    /// Whether nobody was ever in.
    pub fn is_empty(&self) -> bool {
        self.over.is_empty() && self.since.iter().all(Option::is_none)
    }

    /// Whether all of so many clients were in from the first round to the last.
    pub fn are_whole(&self, n_clients: usize) -> bool {
        self.over.is_empty()
            && self.since.len() == n_clients
            && self.since.iter().all(|&since| since == Some(0))
    }

    /// The file; whoever is in stays.
    pub fn csv(&self) -> String {
        let over = self.over.iter().map(|&(client_idx, joined, left)| (client_idx, joined, Some(left)));
        let since = self.since.iter().enumerate();
        let still = since.filter_map(|(client_idx, &since)| Some((client_idx, since?, None)));
        let mut stays: Vec<_> = over.chain(still).collect();
        stays.sort_unstable();
        let mut text = "client,joined,left\n".to_owned();
        for (client_idx, joined, left) in stays {
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
    fn rounds_become_stays() {
        let [first, second, third] = [0, 1, 2].map(ClientId::new);
        let (mut stays, mut census) = (Stays::default(), Census::new());
        assert!(stays.is_empty() && !stays.are_whole(2));
        census.enrol(first, 1, 0);
        census.enrol(second, 1, 0);
        stays.note(0, &census);
        assert!(stays.are_whole(2) && !stays.are_whole(3) && !stays.is_empty());
        census.leave(first, 3);
        stays.note(3, &census);
        census.enrol(first, 1, 5);
        census.enrol(third, 1, 5);
        stays.note(5, &census);
        // Out and in again in one round.
        census.leave(second, 6);
        census.enrol(second, 1, 6);
        stays.note(6, &census);
        assert_eq!(stays.csv(), "client,joined,left\n0,0,3\n0,5,\n1,0,6\n1,6,\n2,5,\n");
        assert!(!stays.are_whole(3));
    }
}
