//! Plays a trace to a run: which of its clients is which of the run's, and which of its seconds is now.

use ebb_round::{Bits, ClientId, RoundNo, Stream, stateless};
use ebb_settings::{Entry, NonNegative, Positive, Settings, SettingsError};
use ebb_train::read::find_file;
use serde::{Deserialize, Serialize};

use super::{DAY_S, HUNDRED_YEARS_S, Numbering, Reading, Trace};
use crate::availability::Availability;

/// The registry's line.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "trace",
    about: "clients are up when a recording says: phones of FLASH, or a CSV or Parquet file of client, from, to",
    example: "file = \"traces/flash-ready-1000.csv.gz\"   # within the data folder, or a path
round_s = 600.0                 # from the beginning of a round to that of the next
# time_scale = 1.0              # seconds of the recording in a second of the run
# start_s = 0.0                 # the second of the recording at which the run begins; its first without it
# clients = \"by-number\"         # client 7 of the file is client 7 of the run; or in-order, as they first occur
# beyond_clients = \"repeat\"     # clients that the recording does not have: repeat, down or error
# beyond_end = \"repeat\"         # before its beginning and after its end: repeat or down
# repair = false                # drop or join intervals that are wrong instead of refusing the file
# check_units = true            # refuse files in which some times seem to be milliseconds",
    build: |settings| Ok(Box::new(Recorded::build(settings)?)),
};

/// How a trace is played.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Seconds of the trace that pass in a second of the run.
    pub time_scale: f64,
    /// The second of the trace at which the run begins; without it, when its first client began to be watched.
    pub start_s: Option<f64>,
    /// What clients do that the trace does not have.
    pub beyond_clients: Beyond,
    /// What clients do when the trace does not say.
    pub beyond_end: After,
}

impl Default for Rules {
    fn default() -> Self {
        let (beyond_clients, beyond_end) = (Beyond::default(), After::default());
        Rules { time_scale: 1.0, start_s: None, beyond_clients, beyond_end }
    }
}

/// What clients do that the trace does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Beyond {
    /// The trace's clients play more than one part each, in turns. In all but its first part a client is ahead of its
    /// trace by a number of days drawn from the seed, so that nights stay nights, and goes on from its first day after
    /// its last; it is ahead by any time, where it was watched for less than two days. A client that the trace misses
    /// is missed in all of its parts.
    #[default]
    Repeat,
    /// They are never up.
    Down,
    /// There must be none.
    Error,
}

/// What clients do before they began and after they ceased to be watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum After {
    /// The same over and over, each as long as it was watched.
    #[default]
    Repeat,
    /// They are not up.
    Down,
}

/// A trace as a run sees it. Times are seconds since the run began.
#[derive(Clone, Debug)]
pub struct Playback {
    trace: Trace,
    /// At a client's number: by how much it is shifted.
    shifts: Stream,
    start_s: f64,
    time_scale: f64,
    beyond_clients: Beyond,
    beyond_end: After,
}

impl Playback {
    /// Plays a trace; shifts are drawn from the seed.
    ///
    /// # Panics
    /// When the scale is not a finite number above 0.
    pub fn new(trace: Trace, rules: Rules, seed: u64) -> Playback {
        let Rules { time_scale, start_s, beyond_clients, beyond_end } = rules;
        assert!(time_scale > 0.0 && time_scale.is_finite(), "a scale is a finite number above 0");
        let start_s = start_s.unwrap_or_else(|| trace.begins_s());
        let shifts = Stream::of_run(seed, "trace shift");
        Playback { trace, shifts, start_s, time_scale, beyond_clients, beyond_end }
    }

    /// The trace.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Whether a client is up at a time of the run.
    pub fn up_at(&self, client: ClientId, time_s: f64) -> bool {
        let Some(part) = self.part(client) else { return false };
        self.place(&part, self.now_s(time_s))
            .is_some_and(|place_s| self.trace.up_at(part.client_idx, place_s))
    }

    /// Writes who is up at a time of the run.
    pub fn write(&self, time_s: f64, up: &mut Bits) {
        let len = up.len();
        up.fill_words(|at| {
            let clients = (at * 64..len.min(at * 64 + 64)).map(ClientId::new);
            clients
                .fold(0, |word, client| word | u64::from(self.up_at(client, time_s)) << (client.idx() % 64))
        });
    }

    /// When a client is next up: `time_s` itself if it is up then; `None`: never again.
    pub fn next_up(&self, client: ClientId, time_s: f64) -> Option<f64> {
        let part = self.part(client)?;
        let now_s = match self.beyond_end {
            After::Repeat => self.now_s(time_s),
            After::Down => self.now_s(time_s).max(part.from_s),
        };
        let place_s = self.place(&part, now_s)?;
        let next = |place_s| self.trace.next_up(part.client_idx, place_s);
        let wait_s = match next(place_s) {
            Some(at_s) => at_s - place_s,
            // Not before what was watched ends; then from its beginning.
            None => part.to_s - place_s + (next(part.from_s)? - part.from_s),
        };
        if self.beyond_end == After::Down && now_s + wait_s >= part.to_s {
            return None;
        }
        let passes_s = now_s + wait_s - self.now_s(time_s);
        Some(self.at_or_just_after(client, time_s + passes_s / self.time_scale))
    }

    /// Where the sum of times was rounded to just before the client is up, the next number at which it is.
    fn at_or_just_after(&self, client: ClientId, time_s: f64) -> f64 {
        let mut step_s = f64::EPSILON * time_s.abs().max(self.now_s(time_s).abs() / self.time_scale);
        let mut tried_s = time_s;
        for _ in 0..8 {
            if self.up_at(client, tried_s) {
                return tried_s;
            }
            tried_s = time_s + step_s;
            step_s *= 2.0;
        }
        time_s
    }

    fn now_s(&self, time_s: f64) -> f64 {
        self.start_s + time_s * self.time_scale
    }

    /// Who plays a client.
    fn part(&self, client: ClientId) -> Option<Part> {
        let n_clients = self.trace.n_clients();
        let client_idx = match self.beyond_clients {
            Beyond::Repeat => client.idx() % n_clients,
            Beyond::Down | Beyond::Error => client.idx(),
        };
        if client_idx >= n_clients {
            return None;
        }
        let (from_s, to_s) = self.trace.seen(client_idx);
        let length_s = to_s - from_s;
        let ahead_s = if client.idx() < n_clients {
            0.0
        } else {
            let draw = self.shifts.pair(client.idx() as u64 / 2)[client.idx() % 2];
            let unit = (draw >> 11) as f64 / (1_u64 << 53) as f64;
            let n_days = libm::floor(length_s / DAY_S);
            if n_days < 2.0 { unit * length_s } else { libm::floor(unit * n_days) * DAY_S }
        };
        Some(Part { client_idx, from_s, to_s, ahead_s })
    }

    /// The second of the trace that is played; `None`: it has none to play.
    fn place(&self, part: &Part, now_s: f64) -> Option<f64> {
        let inside = (part.from_s..part.to_s).contains(&now_s);
        if inside && part.ahead_s == 0.0 {
            return Some(now_s);
        }
        let played = inside || self.beyond_end == After::Repeat;
        let turned = |from_s: f64| from_s + (now_s - from_s + part.ahead_s).rem_euclid(part.to_s - from_s);
        played.then(|| turned(part.from_s))
    }
}

/// A client of the trace that plays a client of the run.
struct Part {
    client_idx: usize,
    from_s: f64,
    to_s: f64,
    ahead_s: f64,
}

/// What `[world.availability]` can say of a trace.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    file: String,
    round_s: Positive,
    #[serde(default = "one")]
    time_scale: Positive,
    start_s: Option<NonNegative>,
    /// Without it, by number where all clients of one's own file are whole numbers.
    clients: Option<Which>,
    #[serde(default)]
    beyond_clients: Beyond,
    #[serde(default)]
    beyond_end: After,
    #[serde(default)]
    repair: bool,
    #[serde(default = "yes")]
    check_units: bool,
}

/// Which client of the recording is which of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Which {
    ByNumber,
    InOrder,
}

fn one() -> Positive {
    Positive::new(1.0).expect("above 0")
}
fn yes() -> bool {
    true
}

/// A trace, asked at the beginning of every round.
struct Recorded {
    playback: Playback,
    round_s: f64,
    notes: Vec<String>,
}

impl Recorded {
    fn build(settings: &Settings<'_>) -> Result<Recorded, SettingsError> {
        let table: Table = settings.parse()?;
        let file = find_file(settings, "file", &table.file)?;
        check_times(settings, &table)?;
        let n_clients = settings.context().n_clients;
        let numbering = match table.clients {
            None => Numbering::ByNumberIfWhole { n_clients },
            Some(Which::ByNumber) => Numbering::ByNumber { n_clients },
            Some(Which::InOrder) => Numbering::InOrder,
        };
        let reading = Reading { repair: table.repair, check_units: table.check_units, numbering };
        let trace =
            Trace::read(&file, &reading).map_err(|error| settings.error("file", error.to_string()))?;
        settings.resolve("clients", if trace.by_number() { "by-number" } else { "in-order" });
        if table.beyond_clients == Beyond::Error {
            check_clients(settings, &trace)?;
        }
        let notes = notes(&trace, &table.file, n_clients);
        let rules = Rules {
            time_scale: table.time_scale.get(),
            start_s: table.start_s.map(NonNegative::get),
            beyond_clients: table.beyond_clients,
            beyond_end: table.beyond_end,
        };
        let playback = Playback::new(trace, rules, settings.context().seed);
        Ok(Recorded { playback, round_s: table.round_s.get(), notes })
    }
}

/// Thirty thousand years; beyond it times would lose their thousandths of a second.
const MOST_S: f64 = 1e12;

/// Refuses settings with which the run would leave the times that can be told apart.
fn check_times(settings: &Settings<'_>, table: &Table) -> Result<(), SettingsError> {
    if table.start_s.is_some_and(|start_s| start_s.get() > HUNDRED_YEARS_S) {
        return Err(settings.error("start_s", "more than a hundred years, which no recording has; give less"));
    }
    let run_s = f64::from(settings.context().n_rounds.max(1)) * table.round_s.get();
    for (key, end_s) in [("round_s", run_s), ("time_scale", run_s * table.time_scale.get())] {
        if end_s > MOST_S {
            let message = format!("the run would end after {end_s:e} s, more than {MOST_S:e}");
            return Err(settings.error(key, message + "; give less, or fewer rounds"));
        }
    }
    Ok(())
}

/// Refuses a recording that does not have all clients of the run.
fn check_clients(settings: &Settings<'_>, trace: &Trace) -> Result<(), SettingsError> {
    let (n_known, n_clients) = (trace.n_clients(), settings.context().n_clients);
    if n_clients > n_known {
        let message = format!("the recording has {n_known} clients, but the data has {n_clients}");
        return Err(settings.error("beyond_clients", message + "; give \"repeat\" or \"down\", or fewer"));
    }
    if let Some((first, others)) = trace.missing().split_first() {
        let others = match others.len() {
            0 => String::new(),
            1 => format!(", nor 1 other below {}", n_known - 1),
            n_others => format!(", nor {n_others} others below {}", n_known - 1),
        };
        let message = format!("the recording has no client {first}{others}");
        let remedy = "; give \"repeat\" or \"down\", by which they are never up";
        return Err(settings.error("beyond_clients", message + remedy));
    }
    Ok(())
}

/// What of the recording is not played as it was recorded.
fn notes(trace: &Trace, file: &str, n_clients: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if trace.repairs().any() {
        notes.push(format!("{file}: {}", trace.repairs()));
    }
    let missing = match trace.missing() {
        [] => None,
        [one] => Some(format!("client {one} does not occur and is never up")),
        [one, other] => Some(format!("clients {one} and {other} do not occur and are never up")),
        [first, others @ ..] => {
            let (n_others, last) = (others.len(), trace.n_clients() - 1);
            Some(format!("client {first} and {n_others} others below {last} do not occur and are never up"))
        }
    };
    notes.extend(missing.map(|missing| format!("{file}: {missing}")));
    let n_known = trace.n_clients();
    if n_known > n_clients {
        let message =
            format!("of {n_known} clients the first {n_clients} play, in the order in which they occur");
        notes.push(format!("{file}: {message}"));
    }
    notes
}

impl Availability for Recorded {
    fn round_s(&self) -> Option<f64> {
        Some(self.round_s)
    }

    fn write(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        self.playback.write(f64::from(number) * self.round_s, up);
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

stateless!(Recorded);

#[cfg(test)]
mod tests {
    use super::super::tests::by_hand;
    use super::*;

    fn rules(start_s: f64, time_scale: f64, beyond_clients: Beyond, beyond_end: After) -> Rules {
        Rules { time_scale, start_s: Some(start_s), beyond_clients, beyond_end }
    }

    /// Up from 2 to 5 and from 8 to 9 of 10 seconds.
    fn small(rules: Rules) -> Playback {
        Playback::new(by_hand(&[&[(2.0, 5.0), (8.0, 9.0)]], 10.0), rules, 1)
    }

    #[track_caller]
    fn check(playback: &Playback, client: usize, time_s: f64, next: Option<f64>) {
        let client = ClientId::new(client);
        assert_eq!(playback.next_up(client, time_s), next, "{client:?} at {time_s}");
        assert_eq!(playback.up_at(client, time_s), next == Some(time_s), "{client:?} at {time_s}");
    }

    #[test]
    fn a_trace_begins_again_where_it_ends() {
        let playback = small(rules(0.0, 1.0, Beyond::Repeat, After::Repeat));
        for lap_s in [0.0, 10.0, 1000.0] {
            check(&playback, 0, lap_s, Some(lap_s + 2.0));
            check(&playback, 0, lap_s + 2.0, Some(lap_s + 2.0));
            check(&playback, 0, lap_s + 4.5, Some(lap_s + 4.5));
            check(&playback, 0, lap_s + 5.0, Some(lap_s + 8.0));
            check(&playback, 0, lap_s + 9.0, Some(lap_s + 12.0));
        }
    }

    #[test]
    fn or_there_is_nothing_more() {
        let playback = small(rules(0.0, 1.0, Beyond::Repeat, After::Down));
        check(&playback, 0, 1.0, Some(2.0));
        check(&playback, 0, 8.5, Some(8.5));
        check(&playback, 0, 9.0, None);
        check(&playback, 0, 12.0, None);
    }

    #[test]
    fn a_run_can_begin_later_and_run_faster() {
        // Trace time is 4 + 2 t.
        let playback = small(rules(4.0, 2.0, Beyond::Repeat, After::Repeat));
        check(&playback, 0, 0.0, Some(0.0));
        check(&playback, 0, 0.49, Some(0.49));
        check(&playback, 0, 0.5, Some(2.0));
        check(&playback, 0, 2.5, Some(4.0));
        check(&playback, 0, 4.0, Some(4.0));
        let late = small(rules(4.0, 2.0, Beyond::Repeat, After::Down));
        check(&late, 0, 2.25, Some(2.25));
        check(&late, 0, 2.5, None);
    }

    #[test]
    fn before_the_first_is_watched_nobody_is_up_or_what_follows_is_repeated() {
        let trace = || {
            let mut trace = by_hand(&[&[(30.0, 32.0)], &[(12.0, 13.0)]], 40.0);
            trace.seen = super::super::Spans::new(vec![[30.0, 40.0], [10.0, 20.0]]);
            trace
        };
        let of = |beyond_end| Playback::new(trace(), Rules { beyond_end, ..Rules::default() }, 1);
        // The run begins at 10, when the first was watched.
        check(&of(After::Repeat), 0, 0.0, Some(0.0));
        check(&of(After::Repeat), 0, 2.0, Some(10.0));
        check(&of(After::Repeat), 1, 3.0, Some(12.0));
        check(&of(After::Down), 0, 0.0, Some(20.0));
        check(&of(After::Down), 0, 22.0, None);
        check(&of(After::Down), 1, 0.0, Some(2.0));
    }

    #[test]
    fn clients_beyond_the_trace_are_down_or_play_it_shifted() {
        for beyond in [Beyond::Down, Beyond::Error] {
            check(&small(rules(0.0, 1.0, beyond, After::Repeat)), 1, 3.0, None);
        }
        for after in [After::Repeat, After::Down] {
            let playback = small(rules(0.0, 1.0, Beyond::Repeat, after));
            let mut shifts = Vec::new();
            for client in (1..50).map(ClientId::new) {
                let ahead_s = playback.part(client).unwrap().ahead_s;
                shifts.push(ahead_s);
                let expected = |time_s: f64| {
                    let place_s = (time_s + ahead_s).rem_euclid(10.0);
                    (2.0..5.0).contains(&place_s) || (8.0..9.0).contains(&place_s)
                };
                let times = || (0..1000).map(|at| f64::from(at) * 0.01);
                let n_up = times().filter(|&time_s| playback.up_at(client, time_s)).count();
                assert!((399..=401).contains(&n_up), "the share is kept: {n_up}");
                assert!(times().all(|time_s| playback.up_at(client, time_s) == expected(time_s)));
                assert_eq!(playback.up_at(client, 14.0), after == After::Repeat && expected(14.0));
            }
            shifts.sort_by(f64::total_cmp);
            assert!(shifts.windows(2).all(|pair| pair[0] < pair[1]) && shifts[0] < 1.0 && shifts[48] > 9.0);
        }
    }

    #[test]
    fn long_traces_are_shifted_by_whole_days() {
        let trace = by_hand(&[&[(3600.0, 7200.0), (90_000.0, 90_060.0)]], 5.5 * DAY_S);
        let playback = Playback::new(trace, Rules::default(), 7);
        let mut days: Vec<_> =
            (1..100).map(|client| playback.part(ClientId::new(client)).unwrap().ahead_s / DAY_S).collect();
        days.sort_by(f64::total_cmp);
        days.dedup();
        assert_eq!(days, [0.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn whoever_is_next_up_is_up_then() {
        let clients: &[&[(f64, f64)]] = &[&[(0.1, 0.3), (0.7, 0.9)], &[(1e-3, 2e-3)], &[]];
        for after in [After::Repeat, After::Down] {
            let playback = Playback::new(by_hand(clients, 1.1), rules(0.3, 0.7, Beyond::Repeat, after), 3);
            for client in (0..9).map(ClientId::new) {
                for time_s in (0..500).map(|at| f64::from(at) * 0.037) {
                    let Some(next_s) = playback.next_up(client, time_s) else {
                        assert!(after == After::Down || client.idx() % 3 == 2);
                        continue;
                    };
                    assert!(playback.up_at(client, next_s), "{client:?} from {time_s} at {next_s}");
                    assert!(next_s >= time_s);
                    // And not before.
                    for part in 0..20 {
                        let before_s = time_s + (next_s - time_s) * f64::from(part) / 20.0;
                        assert!(before_s >= next_s || !playback.up_at(client, before_s));
                    }
                }
            }
        }
    }
}
