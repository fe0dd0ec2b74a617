//! Plays a trace to a run: maps the run's clients and times to those of the trace.

use ebb_round::{Bits, ClientId, RoundNo, Stream, stateless};
use ebb_settings::{Entry, NonNegative, Positive, Settings, SettingsError};
use ebb_train::read::find_file;
use serde::{Deserialize, Serialize};

use super::{DAY_S, HUNDRED_YEARS_S, Numbering, ReadOptions, Trace};
use crate::availability::Availability;

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "trace",
    about: "clients are up as in a recording: phones of FLASH, or a CSV or Parquet file with columns client, from, to",
    example: "file = \"traces/flash-ready-1000.csv.gz\"   # in the data folder, or a path
round_s = 600.0                 # from the start of a round to that of the next
# time_scale = 1.0              # seconds of the recording per second of the run
# start_s = 0.0                 # the second of the recording at which the run begins; its first if left out
# clients = \"by-number\"         # client 7 of the file is client 7 of the run; or in-order of occurrence
# beyond_clients = \"repeat\"     # clients that the recording does not have: repeat, down or error
# beyond_end = \"repeat\"         # before its start and after its end: repeat or down
# repair = false                # drop or join wrong intervals instead of refusing the file
# check_units = true            # refuse files in which some times seem to be milliseconds",
    build: |settings| Ok(Box::new(TraceAvailability::build(settings)?)),
};

/// How a trace is played.
#[derive(Clone, Copy, Debug)]
pub struct PlaybackOptions {
    /// Seconds of the trace per second of the run.
    pub time_scale: f64,
    /// The second of the trace at which the run begins; `None`: the start of the earliest observation period.
    pub start_s: Option<f64>,
    /// What clients do that the trace does not have.
    pub beyond_clients: BeyondClients,
    /// What clients do outside their observation period.
    pub beyond_end: BeyondEnd,
}

impl Default for PlaybackOptions {
    fn default() -> Self {
        let (beyond_clients, beyond_end) = (BeyondClients::default(), BeyondEnd::default());
        PlaybackOptions { time_scale: 1.0, start_s: None, beyond_clients, beyond_end }
    }
}

/// What clients do that the trace does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BeyondClients {
    /// Each client of the trace plays several clients of the run. In all but the first of them it is shifted
    /// forward by a number of days drawn from the seed, so that nights stay nights. After its last day it
    /// continues with its first. If it was observed for less than two days, the shift is any time. A client
    /// that the trace misses is missing in all of these.
    #[default]
    Repeat,
    /// They are never up.
    Down,
    /// The run must not have more clients than the trace.
    Error,
}

/// What clients do before and after their observation period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BeyondEnd {
    /// Their observation period repeats.
    #[default]
    Repeat,
    /// They are not up.
    Down,
}

/// A trace as a run sees it. Times are seconds since the run began.
#[derive(Clone, Debug)]
pub struct Playback {
    trace: Trace,
    /// The shift of each client, at the position of its number.
    shifts: Stream,
    start_s: f64,
    time_scale: f64,
    beyond_clients: BeyondClients,
    beyond_end: BeyondEnd,
}

impl Playback {
    /// Plays a trace; shifts are drawn from the seed.
    ///
    /// # Panics
    /// When the scale is not a finite number above 0.
    pub fn new(trace: Trace, options: PlaybackOptions, seed: u64) -> Playback {
        let PlaybackOptions { time_scale, start_s, beyond_clients, beyond_end } = options;
        assert!(time_scale > 0.0 && time_scale.is_finite(), "a scale is a finite number above 0");
        let start_s = start_s.unwrap_or_else(|| trace.starts_s());
        let shifts = Stream::of_run(seed, "trace shift");
        Playback { trace, shifts, start_s, time_scale, beyond_clients, beyond_end }
    }

    /// The trace.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Whether a client is up at a time of the run.
    pub fn is_up_at(&self, client: ClientId, time_s: f64) -> bool {
        let Some(trace_client) = self.trace_client(client) else { return false };
        self.trace_time_s(&trace_client, self.scaled_time_s(time_s))
            .is_some_and(|trace_s| self.trace.is_up_at(trace_client.client_idx, trace_s))
    }

    /// Writes which clients are up at a time of the run.
    pub fn mark_up(&self, time_s: f64, up: &mut Bits) {
        let len = up.len();
        up.fill_words(|at| {
            let clients = (at * 64..len.min(at * 64 + 64)).map(ClientId::new);
            clients.fold(0, |word, client| {
                word | u64::from(self.is_up_at(client, time_s)) << (client.idx() % 64)
            })
        });
    }

    /// When a client is next up: `time_s` itself if it is up then; `None`: never again.
    pub fn next_up(&self, client: ClientId, time_s: f64) -> Option<f64> {
        let trace_client = self.trace_client(client)?;
        let now_s = match self.beyond_end {
            BeyondEnd::Repeat => self.scaled_time_s(time_s),
            BeyondEnd::Down => self.scaled_time_s(time_s).max(trace_client.from_s),
        };
        let trace_s = self.trace_time_s(&trace_client, now_s)?;
        let next = |trace_s| self.trace.next_up(trace_client.client_idx, trace_s);
        let wait_s = match next(trace_s) {
            Some(at_s) => at_s - trace_s,
            // Not before the observation period ends, then as from its start.
            None => trace_client.to_s - trace_s + (next(trace_client.from_s)? - trace_client.from_s),
        };
        if self.beyond_end == BeyondEnd::Down && now_s + wait_s >= trace_client.to_s {
            return None;
        }
        let passes_s = now_s + wait_s - self.scaled_time_s(time_s);
        Some(self.at_or_just_after(client, time_s + passes_s / self.time_scale))
    }

    /// The next number at which the client is up, where rounding put the sum of times just before it.
    fn at_or_just_after(&self, client: ClientId, time_s: f64) -> f64 {
        let mut step_s = f64::EPSILON * time_s.abs().max(self.scaled_time_s(time_s).abs() / self.time_scale);
        let mut tried_s = time_s;
        for _ in 0..8 {
            if self.is_up_at(client, tried_s) {
                return tried_s;
            }
            tried_s = time_s + step_s;
            step_s *= 2.0;
        }
        time_s
    }

    fn scaled_time_s(&self, time_s: f64) -> f64 {
        self.start_s + time_s * self.time_scale
    }

    /// The client of the trace that plays a client of the run.
    fn trace_client(&self, client: ClientId) -> Option<TraceClient> {
        let n_clients = self.trace.n_clients();
        let client_idx = match self.beyond_clients {
            BeyondClients::Repeat => client.idx() % n_clients,
            BeyondClients::Down | BeyondClients::Error => client.idx(),
        };
        if client_idx >= n_clients {
            return None;
        }
        let (from_s, to_s) = self.trace.observed(client_idx);
        let length_s = to_s - from_s;
        let shift_s = if client.idx() < n_clients {
            0.0
        } else {
            let draw = self.shifts.pair(client.idx() as u64 / 2)[client.idx() % 2];
            let unit = (draw >> 11) as f64 / (1_u64 << 53) as f64;
            let n_days = libm::floor(length_s / DAY_S);
            if n_days < 2.0 { unit * length_s } else { libm::floor(unit * n_days) * DAY_S }
        };
        Some(TraceClient { client_idx, from_s, to_s, shift_s })
    }

    /// The second of the trace that is played; `None`: the client has none to play.
    fn trace_time_s(&self, trace_client: &TraceClient, now_s: f64) -> Option<f64> {
        let is_observed = (trace_client.from_s..trace_client.to_s).contains(&now_s);
        if is_observed && trace_client.shift_s == 0.0 {
            return Some(now_s);
        }
        let is_played = is_observed || self.beyond_end == BeyondEnd::Repeat;
        let wrapped = |from_s: f64| {
            from_s + (now_s - from_s + trace_client.shift_s).rem_euclid(trace_client.to_s - from_s)
        };
        is_played.then(|| wrapped(trace_client.from_s))
    }
}

/// A client of the trace that plays a client of the run.
struct TraceClient {
    client_idx: usize,
    from_s: f64,
    to_s: f64,
    shift_s: f64,
}

/// The keys of `[world.availability]` for a trace.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    file: String,
    round_s: Positive,
    #[serde(default = "one")]
    time_scale: Positive,
    start_s: Option<NonNegative>,
    /// Without it, clients keep their numbers if the file is not one of FLASH and all of its clients are
    /// whole numbers.
    clients: Option<ClientNumbering>,
    #[serde(default)]
    beyond_clients: BeyondClients,
    #[serde(default)]
    beyond_end: BeyondEnd,
    #[serde(default)]
    repair: bool,
    #[serde(default = "yes")]
    check_units: bool,
}

/// How clients of the recording map to clients of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ClientNumbering {
    ByNumber,
    InOrder,
}

fn one() -> Positive {
    Positive::new(1.0).expect("above 0")
}
fn yes() -> bool {
    true
}

/// A trace, read at the beginning of every round.
struct TraceAvailability {
    playback: Playback,
    round_s: f64,
    remarks: Vec<String>,
}

impl TraceAvailability {
    fn build(settings: &Settings<'_>) -> Result<TraceAvailability, SettingsError> {
        let table: Table = settings.parse()?;
        let file = find_file(settings, "file", &table.file)?;
        check_times(settings, &table)?;
        let n_clients = settings.context().n_clients;
        let numbering = match table.clients {
            None => Numbering::ByNumberIfWhole { n_clients },
            Some(ClientNumbering::ByNumber) => Numbering::ByNumber { n_clients },
            Some(ClientNumbering::InOrder) => Numbering::InOrder,
        };
        let read_options = ReadOptions { repair: table.repair, check_units: table.check_units, numbering };
        let trace =
            Trace::read(&file, &read_options).map_err(|error| settings.error("file", error.to_string()))?;
        settings.resolve("clients", if trace.is_by_number() { "by-number" } else { "in-order" });
        if table.beyond_clients == BeyondClients::Error {
            check_clients(settings, &trace)?;
        }
        let remarks = remarks(&trace, &table.file, n_clients);
        let options = PlaybackOptions {
            time_scale: table.time_scale.get(),
            start_s: table.start_s.map(NonNegative::get),
            beyond_clients: table.beyond_clients,
            beyond_end: table.beyond_end,
        };
        let playback = Playback::new(trace, options, settings.context().seed);
        Ok(TraceAvailability { playback, round_s: table.round_s.get(), remarks })
    }
}

/// Thirty thousand years; beyond it a float no longer resolves a millisecond.
const MAX_RUN_S: f64 = 1e12;

/// Refuses settings under which times of the run would lose their precision.
fn check_times(settings: &Settings<'_>, table: &Table) -> Result<(), SettingsError> {
    if table.start_s.is_some_and(|start_s| start_s.get() > HUNDRED_YEARS_S) {
        return Err(settings.error(
            "start_s",
            "it is beyond a hundred years, where no recording reaches; give an earlier time",
        ));
    }
    let run_s = f64::from(settings.context().n_rounds.max(1)) * table.round_s.get();
    for (key, end_s) in [("round_s", run_s), ("time_scale", run_s * table.time_scale.get())] {
        if end_s > MAX_RUN_S {
            let message = format!("the run would last {end_s:e} s, more than {MAX_RUN_S:e}");
            return Err(settings.error(key, message + "; give a smaller value, or fewer rounds"));
        }
    }
    Ok(())
}

/// Refuses a recording that lacks clients of the run.
fn check_clients(settings: &Settings<'_>, trace: &Trace) -> Result<(), SettingsError> {
    let (n_known, n_clients) = (trace.n_clients(), settings.context().n_clients);
    if n_clients > n_known {
        let message = format!("the recording has {n_known} clients, but the data has {n_clients}");
        return Err(
            settings.error("beyond_clients", message + "; give \"repeat\" or \"down\", or use fewer clients")
        );
    }
    if let Some((first, others)) = trace.missing().split_first() {
        let others = match others.len() {
            0 => String::new(),
            1 => format!(", nor 1 other below {}", n_known - 1),
            n_others => format!(", nor {n_others} others below {}", n_known - 1),
        };
        let message = format!("the recording has no client {first}{others}");
        let remedy = "; give \"repeat\" or \"down\", then they are never up";
        return Err(settings.error("beyond_clients", message + remedy));
    }
    Ok(())
}

/// Remarks on what is not played as it was recorded.
fn remarks(trace: &Trace, file: &str, n_clients: usize) -> Vec<String> {
    let mut remarks = Vec::new();
    if trace.repairs().is_any() {
        remarks.push(format!("{file}: {}", trace.repairs()));
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
    remarks.extend(missing.map(|missing| format!("{file}: {missing}")));
    let n_known = trace.n_clients();
    if n_known > n_clients {
        let message =
            format!("the first {n_clients} of {n_known} clients are used, in the order in which they occur");
        remarks.push(format!("{file}: {message}"));
    }
    remarks
}

impl Availability for TraceAvailability {
    fn round_s(&self) -> Option<f64> {
        Some(self.round_s)
    }

    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        self.playback.mark_up(f64::from(number) * self.round_s, up);
    }

    fn remarks(&self) -> &[String] {
        &self.remarks
    }
}

stateless!(TraceAvailability);

#[cfg(test)]
mod tests {
    use super::super::tests::by_hand;
    use super::*;

    fn options(
        start_s: f64,
        time_scale: f64,
        beyond_clients: BeyondClients,
        beyond_end: BeyondEnd,
    ) -> PlaybackOptions {
        PlaybackOptions { time_scale, start_s: Some(start_s), beyond_clients, beyond_end }
    }

    /// Up from 2 to 5 and from 8 to 9 of 10 seconds.
    fn small(options: PlaybackOptions) -> Playback {
        Playback::new(by_hand(&[&[(2.0, 5.0), (8.0, 9.0)]], 10.0), options, 1)
    }

    #[track_caller]
    fn check(playback: &Playback, client: usize, time_s: f64, next: Option<f64>) {
        let client = ClientId::new(client);
        assert_eq!(playback.next_up(client, time_s), next, "{client:?} at {time_s}");
        assert_eq!(playback.is_up_at(client, time_s), next == Some(time_s), "{client:?} at {time_s}");
    }

    #[test]
    fn a_trace_repeats_after_its_end() {
        let playback = small(options(0.0, 1.0, BeyondClients::Repeat, BeyondEnd::Repeat));
        for lap_s in [0.0, 10.0, 1000.0] {
            check(&playback, 0, lap_s, Some(lap_s + 2.0));
            check(&playback, 0, lap_s + 2.0, Some(lap_s + 2.0));
            check(&playback, 0, lap_s + 4.5, Some(lap_s + 4.5));
            check(&playback, 0, lap_s + 5.0, Some(lap_s + 8.0));
            check(&playback, 0, lap_s + 9.0, Some(lap_s + 12.0));
        }
    }

    #[test]
    fn a_trace_that_is_not_repeated_leaves_clients_down() {
        let playback = small(options(0.0, 1.0, BeyondClients::Repeat, BeyondEnd::Down));
        check(&playback, 0, 1.0, Some(2.0));
        check(&playback, 0, 8.5, Some(8.5));
        check(&playback, 0, 9.0, None);
        check(&playback, 0, 12.0, None);
    }

    #[test]
    fn a_run_can_start_later_in_the_trace_and_play_it_faster() {
        // Trace time is 4 + 2 t.
        let playback = small(options(4.0, 2.0, BeyondClients::Repeat, BeyondEnd::Repeat));
        check(&playback, 0, 0.0, Some(0.0));
        check(&playback, 0, 0.49, Some(0.49));
        check(&playback, 0, 0.5, Some(2.0));
        check(&playback, 0, 2.5, Some(4.0));
        check(&playback, 0, 4.0, Some(4.0));
        let late = small(options(4.0, 2.0, BeyondClients::Repeat, BeyondEnd::Down));
        check(&late, 0, 2.25, Some(2.25));
        check(&late, 0, 2.5, None);
    }

    #[test]
    fn before_its_observation_a_client_is_down_or_repeats_the_trace() {
        let trace = || {
            let mut trace = by_hand(&[&[(30.0, 32.0)], &[(12.0, 13.0)]], 40.0);
            trace.observed = super::super::Spans::new(vec![[30.0, 40.0], [10.0, 20.0]]);
            trace
        };
        let of = |beyond_end| {
            Playback::new(trace(), PlaybackOptions { beyond_end, ..PlaybackOptions::default() }, 1)
        };
        // The run begins at 10, the start of the earliest observation period.
        check(&of(BeyondEnd::Repeat), 0, 0.0, Some(0.0));
        check(&of(BeyondEnd::Repeat), 0, 2.0, Some(10.0));
        check(&of(BeyondEnd::Repeat), 1, 3.0, Some(12.0));
        check(&of(BeyondEnd::Down), 0, 0.0, Some(20.0));
        check(&of(BeyondEnd::Down), 0, 22.0, None);
        check(&of(BeyondEnd::Down), 1, 0.0, Some(2.0));
    }

    #[test]
    fn clients_beyond_the_trace_are_down_or_play_it_shifted() {
        for beyond in [BeyondClients::Down, BeyondClients::Error] {
            check(&small(options(0.0, 1.0, beyond, BeyondEnd::Repeat)), 1, 3.0, None);
        }
        for after in [BeyondEnd::Repeat, BeyondEnd::Down] {
            let playback = small(options(0.0, 1.0, BeyondClients::Repeat, after));
            let mut shifts = Vec::new();
            for client in (1..50).map(ClientId::new) {
                let shift_s = playback.trace_client(client).unwrap().shift_s;
                shifts.push(shift_s);
                let expected = |time_s: f64| {
                    let trace_s = (time_s + shift_s).rem_euclid(10.0);
                    (2.0..5.0).contains(&trace_s) || (8.0..9.0).contains(&trace_s)
                };
                let times = || (0..1000).map(|at| f64::from(at) * 0.01);
                let n_up = times().filter(|&time_s| playback.is_up_at(client, time_s)).count();
                assert!((399..=401).contains(&n_up), "the share is kept: {n_up}");
                assert!(times().all(|time_s| playback.is_up_at(client, time_s) == expected(time_s)));
                assert_eq!(playback.is_up_at(client, 14.0), after == BeyondEnd::Repeat && expected(14.0));
            }
            shifts.sort_by(f64::total_cmp);
            assert!(shifts.windows(2).all(|pair| pair[0] < pair[1]) && shifts[0] < 1.0 && shifts[48] > 9.0);
        }
    }

    #[test]
    fn long_traces_are_shifted_by_whole_days() {
        let trace = by_hand(&[&[(3600.0, 7200.0), (90_000.0, 90_060.0)]], 5.5 * DAY_S);
        let playback = Playback::new(trace, PlaybackOptions::default(), 7);
        let mut days: Vec<_> = (1..100)
            .map(|client| playback.trace_client(ClientId::new(client)).unwrap().shift_s / DAY_S)
            .collect();
        days.sort_by(f64::total_cmp);
        days.dedup();
        assert_eq!(days, [0.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn a_client_is_up_when_it_is_next_up() {
        let clients: &[&[(f64, f64)]] = &[&[(0.1, 0.3), (0.7, 0.9)], &[(1e-3, 2e-3)], &[]];
        for after in [BeyondEnd::Repeat, BeyondEnd::Down] {
            let playback =
                Playback::new(by_hand(clients, 1.1), options(0.3, 0.7, BeyondClients::Repeat, after), 3);
            for client in (0..9).map(ClientId::new) {
                for time_s in (0..500).map(|at| f64::from(at) * 0.037) {
                    let Some(next_s) = playback.next_up(client, time_s) else {
                        assert!(after == BeyondEnd::Down || client.idx() % 3 == 2);
                        continue;
                    };
                    assert!(playback.is_up_at(client, next_s), "{client:?} from {time_s} at {next_s}");
                    assert!(next_s >= time_s);
                    // The client is not up before.
                    for part in 0..20 {
                        let before_s = time_s + (next_s - time_s) * f64::from(part) / 20.0;
                        assert!(before_s >= next_s || !playback.is_up_at(client, before_s));
                    }
                }
            }
        }
    }
}
