//! Plays a world without training anything: who is in, who is up, and figures of it.

use std::sync::Arc;

use ebb_round::{Census, ClientId, RoundNo};
use ebb_train::Task;

use crate::World;

/// The roll of a world, round by round. Nobody is asked for anything, so worlds that depend on who was asked are played
/// as if nobody was.
pub struct Roll {
    world: World,
    task: Arc<dyn Task>,
    census: Census,
    next: RoundNo,
}

impl Roll {
    /// Before the first round.
    pub fn new(world: World, task: Arc<dyn Task>) -> Roll {
        Roll { world, task, census: Census::new(), next: 0 }
    }

    /// Plays the next round: who is in and who is up.
    pub fn play(&mut self) -> &Census {
        self.world.take_roll(self.next, self.task.as_ref(), &mut self.census);
        self.next += 1;
        &self.census
    }
}

/// How clients took part, counted round by round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Participation {
    clients: Vec<Taking>,
    /// How many were up in each round.
    up: Vec<u32>,
}

/// How one client took part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taking {
    /// Rounds in which it was enrolled.
    pub enrolled: u32,
    /// Of these, rounds in which it was up.
    pub up: u32,
    /// How many times it came up.
    pub spells: u32,
    /// How many times it went down, or was down from the start.
    pub gaps: u32,
    /// The most rounds in a row in which it was enrolled and down.
    pub longest_gap: u32,
    /// Rounds with another before it in which it was enrolled too, and those where it was up in both.
    pairs: u32,
    pairs_up: u32,
    /// Of the last round.
    was: Was,
    gap: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Was {
    #[default]
    Out,
    Down,
    Up,
}

impl Taking {
    fn note(&mut self, enrolled: bool, up: bool) {
        let now = match (enrolled, up) {
            (false, _) => Was::Out,
            (true, false) => Was::Down,
            (true, true) => Was::Up,
        };
        if now != Was::Out {
            self.enrolled += 1;
            self.up += u32::from(up);
            self.pairs += u32::from(self.was != Was::Out);
            self.pairs_up += u32::from(self.was == Was::Up && up);
            self.spells += u32::from(up && self.was != Was::Up);
            self.gaps += u32::from(!up && self.was != Was::Down);
        }
        self.gap = if now == Was::Down { self.gap + 1 } else { 0 };
        self.longest_gap = self.longest_gap.max(self.gap);
        self.was = now;
    }

    /// The share of its rounds in which it was up.
    pub fn share(&self) -> f64 {
        f64::from(self.up) / f64::from(self.enrolled.max(1))
    }

    /// What its state says of its next one: products of deviations in a row, and squares of deviations.
    fn memory(&self) -> (f64, f64) {
        let (share, pairs) = (self.share(), f64::from(self.pairs));
        (f64::from(self.pairs_up) - pairs * share * share, pairs * share * (1.0 - share))
    }
}

impl Participation {
    /// Of so many clients, before the first round.
    pub fn of(n_clients: usize) -> Participation {
        Participation { clients: vec![Taking::default(); n_clients], up: Vec::new() }
    }

    /// Counts a round.
    pub fn note(&mut self, census: &Census) {
        self.clients.resize(self.clients.len().max(census.len()), Taking::default());
        let (enrolled, up) = (census.enrolled(), census.up());
        for (idx, client) in self.clients.iter_mut().enumerate() {
            let known = idx < census.len();
            client.note(known && enrolled.get(idx), known && up.get(idx));
        }
        self.up.push(up.count() as u32);
    }

    /// Client by client.
    pub fn clients(&self) -> impl ExactSizeIterator<Item = (ClientId, &Taking)> {
        self.clients.iter().enumerate().map(|(idx, client)| (ClientId::new(idx), client))
    }

    /// How many were up, round by round.
    pub fn up(&self) -> &[u32] {
        &self.up
    }

    /// The share of all rounds of all clients in which they were up, of those in which they were in.
    pub fn share(&self) -> f64 {
        let sum =
            |of: fn(&Taking) -> u32| self.clients.iter().map(|client| f64::from(of(client))).sum::<f64>();
        sum(|client| client.up) / sum(|client| client.enrolled).max(1.0)
    }

    /// As many clients, always up alike, would be as uneven: the squared sum of rounds up over the sum of squares. All
    /// rounds count, also those in which a client was not in.
    pub fn effective_clients(&self) -> f64 {
        let rounds = self.clients.iter().map(|client| f64::from(client.up));
        let (sum, squares) = rounds.fold((0.0, 0.0), |(sum, squares), up| (sum + up, squares + up * up));
        if squares > 0.0 { sum * sum / squares } else { 0.0 }
    }

    /// The share of rounds in which nobody was up.
    pub fn empty_rounds(&self) -> f64 {
        self.up.iter().filter(|&&count| count == 0).count() as f64 / self.up.len().max(1) as f64
    }

    /// The mean length of a spell of being up and of one of being down, in rounds; a spell that the last round cuts off
    /// counts as it stands. `None` where there was none.
    pub fn spells(&self) -> (Option<f64>, Option<f64>) {
        let sum =
            |of: fn(&Taking) -> u32| self.clients.iter().map(|client| f64::from(of(client))).sum::<f64>();
        let mean = |rounds: f64, spells: f64| (spells > 0.0).then(|| rounds / spells);
        let (up, enrolled) = (sum(|client| client.up), sum(|client| client.enrolled));
        (mean(up, sum(|client| client.spells)), mean(enrolled - up, sum(|client| client.gaps)))
    }

    /// The correlation of a client's state with its state a round before, about its own share, over all clients; `None`
    /// where no state ever changes.
    pub fn lag_1(&self) -> Option<f64> {
        let sums = self.clients.iter().map(Taking::memory);
        let (products, squares) = sums.fold((0.0, 0.0), |sums, own| (sums.0 + own.0, sums.1 + own.1));
        (squares > 0.0).then(|| products / squares)
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::{Bits, Stream};

    use super::*;

    /// The figures of rounds written as rows of `#` (up), `.` (down) and blanks (not enrolled).
    fn counted(rounds: &[&str]) -> Participation {
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
            participation.note(&census);
        }
        participation
    }

    #[test]
    fn figures_by_hand() {
        let counted = counted(&["##.", "#..", "##.", "#..", "#.."]);
        let clients: Vec<_> = counted.clients().map(|(_, client)| *client).collect();
        assert_eq!((clients[0].up, clients[1].up, clients[2].up), (5, 2, 0));
        assert_eq!((clients[1].spells, clients[1].gaps, clients[1].longest_gap), (2, 2, 2));
        assert_eq!(counted.up(), [2, 1, 2, 1, 1]);
        assert!((counted.share() - 7.0 / 15.0).abs() < 1e-12 && counted.empty_rounds() == 0.0);
        // Shares 1, 0.4 and 0.
        assert!((counted.effective_clients() - 1.4 * 1.4 / 1.16).abs() < 1e-12);
        assert_eq!(counted.spells(), (Some(7.0 / 3.0), Some(8.0 / 3.0)));
        // Of the four pairs of the second client none is up twice: (0 - 4 x 0.16) / (4 x 0.4 x 0.6).
        assert!((counted.lag_1().unwrap() + 0.64 / 0.96).abs() < 1e-12);
    }

    #[test]
    fn who_is_not_enrolled_does_not_count() {
        let counted = counted(&["# ", "#.", "  ", " #", ".#"]);
        let clients: Vec<_> = counted.clients().map(|(_, client)| *client).collect();
        assert_eq!((clients[0].enrolled, clients[0].up, clients[0].longest_gap), (3, 2, 1));
        assert_eq!((clients[1].enrolled, clients[1].up, clients[1].gaps), (3, 2, 1));
        assert_eq!(counted.empty_rounds(), 0.2);
        assert_eq!(self::counted(&[]).effective_clients(), 0.0);
        assert_eq!(self::counted(&["##", "##"]).lag_1(), None);
    }

    #[test]
    fn independent_rounds_have_no_memory() {
        let mut stream = Stream::of_run(1, "t");
        let rows: Vec<String> = (0..2000)
            .map(|_| (0..20).map(|_| if stream.bernoulli(0.3) { '#' } else { '.' }).collect())
            .collect();
        let counted = counted(&rows.iter().map(String::as_str).collect::<Vec<_>>());
        // 40,000 pairs: the standard error is 0.005.
        assert!(counted.lag_1().unwrap().abs() < 0.02 && (counted.share() - 0.3).abs() < 0.01);
        assert!((counted.effective_clients() - 20.0).abs() < 0.1);
    }

    #[test]
    fn all_clients_and_all_rounds_count() {
        // Somebody in for one round counts for one round, and who never joins for none.
        let mut expected = Participation::of(3);
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
            expected.note(&census);
        }
        assert_eq!(expected.clients().len(), 3);
        assert!((expected.effective_clients() - 121.0 / 101.0).abs() < 1e-12);
        assert_eq!(expected.share(), 1.0);
    }
}
