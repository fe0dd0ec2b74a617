//! Plays a world without training: who is enrolled, who is up, and metrics of both.

use std::sync::Arc;

use ebb_round::{Census, ClientId, RoundNo};
use ebb_train::Task;

use crate::World;

/// The roll calls of a world, round by round. No client is selected, so worlds that depend on selection are
/// played as if no client ever took part.
pub struct RollCalls {
    world: World,
    task: Arc<dyn Task>,
    census: Census,
    next_number: RoundNo,
}

impl RollCalls {
    /// Starts before the first round.
    pub fn new(world: World, task: Arc<dyn Task>) -> RollCalls {
        RollCalls { world, task, census: Census::new(), next_number: 0 }
    }

    /// Plays the next round and returns who is enrolled and who is up.
    pub fn next_round(&mut self) -> &Census {
        self.world.roll_call(self.next_number, self.task.as_ref(), &mut self.census);
        self.next_number += 1;
        &self.census
    }
}

/// The participation of all clients, counted round by round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Participation {
    clients: Vec<ClientParticipation>,
    /// The number of clients that were up in each round.
    n_up: Vec<u32>,
}

/// The participation of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientParticipation {
    /// The number of rounds in which it was enrolled.
    pub rounds_enrolled: u32,
    /// The number of those rounds in which it was up.
    pub rounds_up: u32,
    /// How many times it came up.
    pub n_spells: u32,
    /// How many times it went down, or was down from the start.
    pub n_gaps: u32,
    /// The most consecutive rounds in which it was enrolled and down.
    pub longest_gap: u32,
    /// The number of pairs of consecutive rounds in which it was enrolled, and of those in which it was up in
    /// both.
    n_pairs: u32,
    n_pairs_up: u32,
    /// Its state in the last round.
    last_state: ClientState,
    current_gap: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ClientState {
    #[default]
    NotEnrolled,
    Down,
    Up,
}

impl ClientParticipation {
    fn record(&mut self, enrolled: bool, up: bool) {
        let now = match (enrolled, up) {
            (false, _) => ClientState::NotEnrolled,
            (true, false) => ClientState::Down,
            (true, true) => ClientState::Up,
        };
        if now != ClientState::NotEnrolled {
            self.rounds_enrolled += 1;
            self.rounds_up += u32::from(up);
            self.n_pairs += u32::from(self.last_state != ClientState::NotEnrolled);
            self.n_pairs_up += u32::from(self.last_state == ClientState::Up && up);
            self.n_spells += u32::from(up && self.last_state != ClientState::Up);
            self.n_gaps += u32::from(!up && self.last_state != ClientState::Down);
        }
        self.current_gap = if now == ClientState::Down { self.current_gap + 1 } else { 0 };
        self.longest_gap = self.longest_gap.max(self.current_gap);
        self.last_state = now;
    }

    /// The share of its enrolled rounds in which it was up.
    pub fn share(&self) -> f64 {
        f64::from(self.rounds_up) / f64::from(self.rounds_enrolled.max(1))
    }

    /// The sums for the lag-1 autocorrelation: of products of consecutive differences from the mean, and of
    /// their squares.
    fn lag_1_sums(&self) -> (f64, f64) {
        let (share, pairs) = (self.share(), f64::from(self.n_pairs));
        (f64::from(self.n_pairs_up) - pairs * share * share, pairs * share * (1.0 - share))
    }
}

impl Participation {
    /// The participation of this many clients, before the first round.
    pub fn with_clients(n_clients: usize) -> Participation {
        Participation { clients: vec![ClientParticipation::default(); n_clients], n_up: Vec::new() }
    }

    /// Counts a round.
    pub fn record(&mut self, census: &Census) {
        self.clients.resize(self.clients.len().max(census.len()), ClientParticipation::default());
        let (enrolled, up) = (census.enrolled(), census.up());
        for (idx, client) in self.clients.iter_mut().enumerate() {
            let known = idx < census.len();
            client.record(known && enrolled.get(idx), known && up.get(idx));
        }
        self.n_up.push(up.count() as u32);
    }

    /// The participation of every client.
    pub fn clients(&self) -> impl ExactSizeIterator<Item = (ClientId, &ClientParticipation)> {
        self.clients.iter().enumerate().map(|(idx, client)| (ClientId::new(idx), client))
    }

    /// The number of clients that were up, by round.
    pub fn n_up(&self) -> &[u32] {
        &self.n_up
    }

    /// The share of all enrolled rounds of all clients in which the client was up.
    pub fn share(&self) -> f64 {
        let sum = |of: fn(&ClientParticipation) -> u32| {
            self.clients.iter().map(|client| f64::from(of(client))).sum::<f64>()
        };
        sum(|client| client.rounds_up) / sum(|client| client.rounds_enrolled).max(1.0)
    }

    /// The effective number of clients, `(sum r_i)^2 / sum r_i^2` where client i was up in `r_i` rounds. All
    /// rounds count, also those in which a client was not enrolled.
    pub fn effective_clients(&self) -> f64 {
        let rounds = self.clients.iter().map(|client| f64::from(client.rounds_up));
        let (sum, squares) = rounds.fold((0.0, 0.0), |(sum, squares), up| (sum + up, squares + up * up));
        if squares > 0.0 { sum * sum / squares } else { 0.0 }
    }

    /// The share of rounds in which no client was up.
    pub fn empty_round_share(&self) -> f64 {
        self.n_up.iter().filter(|&&count| count == 0).count() as f64 / self.n_up.len().max(1) as f64
    }

    /// The mean length of a spell up and of a spell down, in rounds; `None` if there was none. A spell that
    /// the last round cuts off counts as it is.
    pub fn mean_spells(&self) -> (Option<f64>, Option<f64>) {
        let sum = |of: fn(&ClientParticipation) -> u32| {
            self.clients.iter().map(|client| f64::from(of(client))).sum::<f64>()
        };
        let mean = |rounds: f64, spells: f64| (spells > 0.0).then(|| rounds / spells);
        let (up, enrolled) = (sum(|client| client.rounds_up), sum(|client| client.rounds_enrolled));
        (mean(up, sum(|client| client.n_spells)), mean(enrolled - up, sum(|client| client.n_gaps)))
    }

    /// The correlation of a client's state with its state one round before, around its own mean, over all
    /// clients. `None` if no state ever changes.
    pub fn lag_1_autocorrelation(&self) -> Option<f64> {
        let sums = self.clients.iter().map(ClientParticipation::lag_1_sums);
        let (products, squares) = sums.fold((0.0, 0.0), |sums, own| (sums.0 + own.0, sums.1 + own.1));
        (squares > 0.0).then(|| products / squares)
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::{Bits, Stream};

    use super::*;

    /// The participation in rounds written as rows of `#` (up), `.` (down) and blanks (not enrolled).
    fn participation(rounds: &[&str]) -> Participation {
        let mut participation = Participation::default();
        let mut census = Census::new();
        for (number, row) in rounds.iter().enumerate() {
            let number = number as RoundNo;
            for (idx, state) in row.bytes().enumerate() {
                let client = ClientId::new(idx);
                let is_in = census.len() > idx && census.enrolled().get(idx);
                match (state, is_in) {
                    (b' ', true) => census.leave(client, number),
                    (b' ', false) | (_, true) => {}
                    (_, false) => census.enrol(client, 1, number),
                }
            }
            census.set_up(|_, up: &mut Bits| {
                row.bytes().enumerate().for_each(|(idx, state)| {
                    if idx < up.len() {
                        up.set(idx, state == b'#');
                    }
                });
            });
            participation.record(&census);
        }
        participation
    }

    #[test]
    fn metrics_match_values_computed_by_hand() {
        let participation = participation(&["##.", "#..", "##.", "#..", "#.."]);
        let clients: Vec<_> = participation.clients().map(|(_, client)| *client).collect();
        assert_eq!((clients[0].rounds_up, clients[1].rounds_up, clients[2].rounds_up), (5, 2, 0));
        assert_eq!((clients[1].n_spells, clients[1].n_gaps, clients[1].longest_gap), (2, 2, 2));
        assert_eq!(participation.n_up(), [2, 1, 2, 1, 1]);
        assert!(
            (participation.share() - 7.0 / 15.0).abs() < 1e-12 && participation.empty_round_share() == 0.0
        );
        // The shares are 1, 0.4 and 0.
        assert!((participation.effective_clients() - 1.4 * 1.4 / 1.16).abs() < 1e-12);
        assert_eq!(participation.mean_spells(), (Some(7.0 / 3.0), Some(8.0 / 3.0)));
        // Of the second client's four pairs none is up twice: (0 - 4 * 0.16) / (4 * 0.4 * 0.6).
        assert!((participation.lag_1_autocorrelation().unwrap() + 0.64 / 0.96).abs() < 1e-12);
    }

    #[test]
    fn clients_that_are_not_enrolled_do_not_count() {
        let participation = participation(&["# ", "#.", "  ", " #", ".#"]);
        let clients: Vec<_> = participation.clients().map(|(_, client)| *client).collect();
        assert_eq!((clients[0].rounds_enrolled, clients[0].rounds_up, clients[0].longest_gap), (3, 2, 1));
        assert_eq!((clients[1].rounds_enrolled, clients[1].rounds_up, clients[1].n_gaps), (3, 2, 1));
        assert_eq!(participation.empty_round_share(), 0.2);
        assert_eq!(self::participation(&[]).effective_clients(), 0.0);
        assert_eq!(self::participation(&["##", "##"]).lag_1_autocorrelation(), None);
    }

    #[test]
    fn independent_rounds_have_no_autocorrelation() {
        let mut stream = Stream::of_run(1, "t");
        let rows: Vec<String> = (0..2000)
            .map(|_| (0..20).map(|_| if stream.bernoulli(0.3) { '#' } else { '.' }).collect())
            .collect();
        let participation = participation(&rows.iter().map(String::as_str).collect::<Vec<_>>());
        // With 40,000 pairs the standard error is 0.005.
        assert!(
            participation.lag_1_autocorrelation().unwrap().abs() < 0.02
                && (participation.share() - 0.3).abs() < 0.01
        );
        assert!((participation.effective_clients() - 20.0).abs() < 0.1);
    }

    #[test]
    fn all_clients_and_all_rounds_count() {
        // A client that was enrolled for one round counts for one, and one that never joined for none.
        let mut expected = Participation::with_clients(3);
        assert_eq!((expected.clients().len(), expected.effective_clients()), (3, 0.0));
        let mut census = Census::new();
        for number in 0..10 {
            census.enrol(ClientId::new(0), 1, 0);
            match number {
                4 => census.enrol(ClientId::new(1), 1, 4),
                5 => census.leave(ClientId::new(1), 5),
                _ => {}
            }
            census.set_up(|enrolled, up| (0..enrolled.len()).for_each(|idx| up.set(idx, true)));
            expected.record(&census);
        }
        assert_eq!(expected.clients().len(), 3);
        assert!((expected.effective_clients() - 121.0 / 101.0).abs() < 1e-12);
        assert_eq!(expected.share(), 1.0);
    }
}
