//! Recorded traces: the intervals during which each client was up.
//!
//! A trace is a Parquet file or a CSV file, plain or compressed by gzip, with one interval per row:
//!
//! | column | meaning |
//! |---|---|
//! | `client` | a number or a name; [`Numbering`] maps it to a client of the run |
//! | `from`, `to` | seconds; up from `from` until just before `to`; both empty: the client exists |
//! | `seen_from`, `seen_to` | optional: the client's observation period in seconds, in all its rows |
//!
//! Without the last two columns, all clients share one observation period. It starts at the midnight (a
//! multiple of 86,400 s) before the first interval of the file. It ends with the last interval, or at the
//! midnight after it if the period exceeds a day. Rows may be in any order. Other columns are ignored.
//!
//! A file is refused with the line of a wrong interval. An interval is wrong if it begins before 0, ends
//! before it starts, has no length, exceeds its client's observation period, or overlaps another of its
//! client. With `repair`, intervals of the first four kinds are dropped and overlapping ones are joined. A
//! time beyond a hundred years is refused. So are files in which some times seem to be in milliseconds: see
//! [`ReadOptions::check_units`].
//!
//! The files of FLASH are read, too (Yang et al., "Characterizing Impacts of Heterogeneity in Federated
//! Learning upon Large-Scale Smartphone Data"). Their columns are `device`, `ready_start` and `ready_end`;
//! the file of ready devices also has `trace_start` and `trace_end`. FLASH files are always repaired. Devices
//! with empty fields had no usable trace and are left out. Devices of which only charging times are known
//! count as observed for three days.

mod error;
mod playback;
mod read;
mod recorder;
mod spans;

use std::fmt;
use std::io;
use std::ops::Range;

pub use ebb_train::read::RowLocation;
pub use error::{RowError, TraceError};
pub use playback::{BeyondClients, BeyondEnd, ENTRY, Playback, PlaybackOptions};
pub use read::{HUNDRED_YEARS_S, Numbering, ReadOptions};
pub use recorder::Recorder;

use spans::Spans;

/// The seconds of a day.
const DAY_S: f64 = 86_400.0;

/// The intervals during which each client was up.
#[derive(Clone, PartialEq)]
pub struct Trace {
    /// The index of each client's first interval, then the number of all intervals.
    starts: Vec<usize>,
    /// The intervals, by client and ascending. They are disjoint and none is empty.
    intervals: Spans,
    /// The observation period of each client. None is empty, and the client's intervals lie within it.
    observed: Spans,
    repairs: Repairs,
    /// Whether clients keep the numbers that the file gives them.
    is_by_number: bool,
    /// Numbers below the largest that the file does not name, ascending.
    missing: Vec<usize>,
}

/// How many intervals were read, and how many of them were changed or dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// The number of intervals in the file.
    pub n_read: usize,
    /// The number dropped because they begin before 0.
    pub before_zero: usize,
    /// The number dropped because they end before they start.
    pub ends_before_start: usize,
    /// The number dropped because they have no length.
    pub empty_intervals: usize,
    /// The number dropped because they exceed their client's observation period.
    pub outside_observation: usize,
    /// The number joined to an overlapping interval of the same client.
    pub joined: usize,
    /// The number of FLASH devices left out because they have no usable trace.
    pub clients_left_out: usize,
}

impl Trace {
    /// The number of clients, whether or not they are ever up.
    pub fn n_clients(&self) -> usize {
        self.starts.len() - 1
    }

    /// The number of intervals.
    pub fn n_intervals(&self) -> usize {
        self.intervals.len()
    }

    /// What was repaired when the trace was read.
    pub fn repairs(&self) -> Repairs {
        self.repairs
    }

    /// Whether clients keep the numbers that the file gives them, instead of those of their order.
    pub fn is_by_number(&self) -> bool {
        self.is_by_number
    }

    /// Numbers below the largest that the file does not name, ascending. These clients are never up.
    pub fn missing(&self) -> &[usize] {
        &self.missing
    }

    /// A client's observation period: start and end in seconds.
    pub fn observed(&self, client_idx: usize) -> (f64, f64) {
        self.observed.get(client_idx)
    }

    /// The start of the earliest observation period in seconds.
    pub fn starts_s(&self) -> f64 {
        (0..self.n_clients()).map(|client_idx| self.observed(client_idx).0).fold(f64::INFINITY, f64::min)
    }

    /// The end of the latest observation period in seconds.
    pub fn ends_s(&self) -> f64 {
        (0..self.n_clients()).map(|client_idx| self.observed(client_idx).1).fold(f64::NEG_INFINITY, f64::max)
    }

    /// A client's intervals, ascending.
    pub fn intervals(&self, client_idx: usize) -> impl ExactSizeIterator<Item = (f64, f64)> + '_ {
        self.range(client_idx).map(|at| self.intervals.get(at))
    }

    /// Whether a client is up at a time of the trace.
    pub fn is_up_at(&self, client_idx: usize, time_s: f64) -> bool {
        self.next_up(client_idx, time_s) == Some(time_s)
    }

    /// When a client is next up: `time_s` itself if it is up then; `None` if it is not up again before the
    /// trace ends.
    pub fn next_up(&self, client_idx: usize, time_s: f64) -> Option<f64> {
        let range = self.range(client_idx);
        let at = self.intervals.first_to_end_after(range.clone(), time_s);
        range.contains(&at).then(|| self.intervals.get(at).0.max(time_s))
    }

    /// For each client, the share of its observation period during which it was up.
    pub fn up_shares(&self) -> Vec<f64> {
        let share = |client_idx| {
            let up_s: f64 = self.intervals(client_idx).map(|(from, to)| to - from).sum();
            let (from, to) = self.observed(client_idx);
            up_s / (to - from)
        };
        (0..self.n_clients()).map(share).collect()
    }

    /// Writes the trace as CSV that reads back as the same trace.
    pub fn write_csv(&self, to: &mut dyn io::Write) -> io::Result<()> {
        writeln!(to, "client,seen_from,seen_to,from,to")?;
        for client_idx in 0..self.n_clients() {
            let (seen_from, seen_to) = self.observed(client_idx);
            if self.range(client_idx).is_empty() {
                writeln!(to, "{client_idx},{seen_from},{seen_to},,")?;
            }
            for (from, until) in self.intervals(client_idx) {
                writeln!(to, "{client_idx},{seen_from},{seen_to},{from},{until}")?;
            }
        }
        Ok(())
    }

    fn range(&self, client_idx: usize) -> Range<usize> {
        self.starts[client_idx]..self.starts[client_idx + 1]
    }
}

impl Repairs {
    /// Whether anything was changed or dropped.
    pub fn is_any(&self) -> bool {
        *self != Repairs { n_read: self.n_read, ..Repairs::default() }
    }
}

impl fmt::Debug for Trace {
    /// Only the size, because there may be millions of intervals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} intervals of {} clients", self.n_intervals(), self.n_clients())
    }
}

impl fmt::Display for Repairs {
    /// One line for the user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} intervals read", self.n_read)?;
        for (count, what) in [
            (self.before_zero, "dropped because they begin before 0"),
            (self.ends_before_start, "dropped because they end before they start"),
            (self.empty_intervals, "dropped because they have no length"),
            (self.outside_observation, "dropped because they exceed the observation period"),
            (self.joined, "joined because they overlap"),
            (self.clients_left_out, "clients left out because they have no usable trace"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace of these intervals; all clients are observed from 0 to `ends_s`.
    pub(super) fn by_hand(clients: &[&[(f64, f64)]], ends_s: f64) -> Trace {
        let mut starts = vec![0];
        let mut intervals = Vec::new();
        for client in clients {
            intervals.extend(client.iter().map(|&(from, to)| [from, to]));
            starts.push(intervals.len());
        }
        let seen = Spans::new(vec![[0.0, ends_s]; clients.len()]);
        let (intervals, repairs) = (Spans::new(intervals), Repairs::default());
        Trace { starts, intervals, observed: seen, repairs, is_by_number: false, missing: Vec::new() }
    }

    #[test]
    fn an_interval_holds_its_beginning_but_not_its_end() {
        for unit in [1.0, 0.25] {
            let trace =
                by_hand(&[&[(2.0 * unit, 5.0 * unit), (5.0 * unit, 6.0 * unit)], &[], &[(0.0, unit)]], 10.0);
            let check = |client, time: f64, next: Option<f64>| {
                let (time, next) = (time * unit, next.map(|next| next * unit));
                assert_eq!(trace.next_up(client, time), next, "{client} at {time}");
                assert_eq!(trace.is_up_at(client, time), next == Some(time), "{client} at {time}");
            };
            check(0, 0.0, Some(2.0));
            check(0, 1.999, Some(2.0));
            check(0, 2.0, Some(2.0));
            check(0, 4.999, Some(4.999));
            check(0, 5.0, Some(5.0));
            check(0, 6.0, None);
            check(1, 0.0, None);
            check(2, 0.0, Some(0.0));
            check(2, 1.0, None);
            check(2, -1.0, Some(0.0));
        }
    }

    #[test]
    fn shares_are_of_the_observation_period() {
        let trace = by_hand(&[&[(2.0, 5.0), (6.0, 7.0)], &[], &[(0.0, 10.0)]], 10.0);
        assert_eq!(trace.up_shares(), [0.4, 0.0, 1.0]);
        assert_eq!(format!("{trace:?}"), "3 intervals of 3 clients");
    }
}
