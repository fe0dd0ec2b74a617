//! Records a run as a trace that plays it again.

use ebb_round::Bits;

use super::spans::Spans;
use super::{Repairs, Trace};

/// Records from when on which clients are up.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    starts_s: Option<f64>,
    /// The time since which each client is up; `None` if it is down.
    up_since_s: Vec<Option<f64>>,
    /// Client, start, end.
    finished: Vec<(usize, [f64; 2])>,
}

impl Recorder {
    /// Records which clients are up from a time on. Times must ascend.
    pub fn record(&mut self, time_s: f64, up: &Bits) {
        self.starts_s.get_or_insert(time_s);
        self.up_since_s.resize(self.up_since_s.len().max(up.len()), None);
        for (client_idx, up_since_s) in self.up_since_s.iter_mut().enumerate() {
            match (up.get(client_idx), *up_since_s) {
                (true, None) => *up_since_s = Some(time_s),
                (false, Some(from_s)) => {
                    self.finished.push((client_idx, [from_s, time_s]));
                    *up_since_s = None;
                }
                _ => {}
            }
        }
    }

    /// The trace. Clients that are up stay up until `ends_s`. `None` if there are no clients or no time
    /// passed.
    pub fn finish(mut self, ends_s: f64) -> Option<Trace> {
        let starts_s = self.starts_s.filter(|&starts_s| starts_s < ends_s && !self.up_since_s.is_empty())?;
        for (client_idx, up_since_s) in self.up_since_s.iter().enumerate() {
            self.finished.extend(up_since_s.map(|from_s| (client_idx, [from_s, ends_s])));
        }
        self.finished.sort_by(|one, other| one.0.cmp(&other.0).then(one.1[0].total_cmp(&other.1[0])));
        let n_clients = self.up_since_s.len();
        let starts = (0..=n_clients)
            .map(|client_idx| self.finished.partition_point(|one| one.0 < client_idx))
            .collect();
        Some(Trace {
            starts,
            repairs: Repairs { n_read: self.finished.len(), ..Repairs::default() },
            intervals: Spans::new(self.finished.into_iter().map(|(_, span)| span).collect()),
            observed: Spans::new(vec![[starts_s, ends_s]; n_clients]),
            is_by_number: false,
            missing: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_intervals() {
        let mut recorder = Recorder::default();
        for (number, up) in [0b001, 0b011, 0b000, 0b010, 0b010].into_iter().enumerate() {
            recorder.record(number as f64 * 60.0, &Bits::from_words(vec![up], 3));
        }
        let trace = recorder.finish(300.0).unwrap();
        let check = |client_idx, expected: &[(f64, f64)]| {
            assert_eq!(trace.intervals(client_idx).collect::<Vec<_>>(), expected);
            assert_eq!(trace.observed(client_idx), (0.0, 300.0));
        };
        check(0, &[(0.0, 120.0)]);
        check(1, &[(60.0, 120.0), (180.0, 300.0)]);
        check(2, &[]);
        let mut text = Vec::new();
        trace.write_csv(&mut text).unwrap();
        let expected =
            "client,seen_from,seen_to,from,to\n0,0,300,0,120\n1,0,300,60,120\n1,0,300,180,300\n2,0,300,,\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn a_recorder_without_clients_or_time_makes_no_trace() {
        assert!(Recorder::default().finish(1.0).is_none());
        let mut recorder = Recorder::default();
        recorder.record(1.0, &Bits::new(3));
        assert!(recorder.clone().finish(1.0).is_none());
        assert_eq!(recorder.finish(2.0).unwrap().n_clients(), 3);
    }
}
