//! Reads a trace from a table, and checks it.

use std::cmp::Ordering;
use std::path::Path;

use ebb_train::read::{Column, ColumnRole, ReadError, RowLocation, Table, TableForm, table, table_names};

use super::spans::Spans;
use super::{DAY_S, Repairs, Trace, TraceError, Wrong};

/// How a trace is to be read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Whether to drop or join intervals that are wrong, instead of refusing the file.
    pub repair: bool,
    /// Whether to refuse files in which some times seem to be in milliseconds.
    ///
    /// Some clients, if ordered by their middle times they fall into two groups with a factor of ten between them, and
    /// both the times and the lengths of intervals are between 200 and 5,000 times as large in one as in the other,
    /// comparing medians.
    ///
    /// Some intervals, if they begin more than 20 times as late as half of all, or a quarter of all, end, are more than
    /// 20 times as long as the others, and both factors together are at least 200 x 200, comparing medians. Late alone
    /// or long alone is no other unit. This is not asked where the file says when clients were watched: there, whatever
    /// lies outside is refused.
    pub check_units: bool,
    /// Which client of the file is which of the trace.
    pub numbering: Numbering,
}

impl Default for Reading {
    fn default() -> Self {
        Reading { repair: false, check_units: true, numbering: Numbering::default() }
    }
}

/// Which client of a file is which of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbering {
    /// In the order in which they first occur.
    #[default]
    InOrder,
    /// Client 7 of the file is client 7 of the trace. Others than these, from 0 on, are refused.
    ByNumber {
        /// How many there can be.
        n_clients: usize,
    },
    /// By number if the file is no one of FLASH and all of its clients are whole numbers; else in order.
    ByNumberIfWhole {
        /// How many there can be.
        n_clients: usize,
    },
}

impl Trace {
    /// Reads a trace of one of the forms that [this module](super) describes.
    pub fn read(file: &Path, reading: &Reading) -> Result<Trace, TraceError> {
        let form = Form::of(file)?;
        let rows = Rows::read(file, form)?;
        let mut repairs = Repairs::default();
        let clients = number_clients(&rows, reading.numbering, &mut repairs)?;
        let seen = watched(&rows, &clients)?;
        let mut kept = check(&rows, &clients, seen.as_ref(), reading, &mut repairs)?;
        kept.sort_by(|one, other| {
            one.client_idx
                .cmp(&other.client_idx)
                .then(one.from_s.total_cmp(&other.from_s))
                .then(one.row.cmp(&other.row))
        });
        // Clients that were watched over one span of time have one clock.
        let one_clock = seen.as_ref().is_some_and(|seen| seen.windows(2).all(|pair| pair[0] == pair[1]));
        if reading.check_units && !form.known() && !one_clock {
            check_clients_units(&rows, &kept)?;
            if seen.is_none() {
                check_rows_units(&rows, &kept)?;
            }
        }
        // Not before: what overlaps because of its unit is not to be joined.
        let kept = apart(&rows, kept, reading, &mut repairs)?;
        let seen = match seen {
            Some(seen) => seen,
            None => vec![
                span(&kept).ok_or_else(|| TraceError::NeverUp { file: file.to_owned() })?;
                clients.n_clients
            ],
        };
        let mut starts = vec![0; clients.n_clients + 1];
        kept.iter().for_each(|one| starts[one.client_idx + 1] += 1);
        for client_idx in 0..clients.n_clients {
            starts[client_idx + 1] += starts[client_idx];
        }
        let intervals = Spans::new(kept.iter().map(|one| [one.from_s, one.to_s]).collect());
        let (by_number, missing) = (clients.by_number, clients.missing());
        Ok(Trace { starts, intervals, seen: Spans::new(seen), repairs, by_number, missing })
    }
}

/// FLASH's charging times end within the third day, but for one interval on the sixth.
const FLASH_CHARGING_ENDS_S: f64 = 3.0 * DAY_S;

/// No recording is later, in seconds.
pub const HUNDRED_YEARS_S: f64 = 100.0 * 365.25 * DAY_S;

/// How a file names its columns, and so what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Own,
    OwnWatched,
    FlashReady,
    FlashCharging,
}

impl Form {
    fn of(file: &Path) -> Result<Form, TraceError> {
        let names = match table_names(file, TableForm::default()) {
            Ok(names) => names,
            Err(error) => return Err(unreadable(file, error)),
        };
        let has = |name: &str| names.iter().any(|known| known == name);
        let watched = has("seen_from") || has("seen_to") || has("trace_start") || has("trace_end");
        let form = match (has("device") && has("ready_start"), watched) {
            (false, false) => Form::Own,
            (false, true) => Form::OwnWatched,
            (true, true) => Form::FlashReady,
            (true, false) => Form::FlashCharging,
        };
        match form.columns().into_iter().flatten().find(|name| !has(name)) {
            Some(missing) => Err(TraceError::Column { file: file.to_owned(), missing, found: names }),
            None => Ok(form),
        }
    }

    /// The names of client, from, to, watched from, watched to.
    fn columns(self) -> [Option<&'static str>; 5] {
        match self {
            Form::Own => [Some("client"), Some("from"), Some("to"), None, None],
            Form::OwnWatched => ["client", "from", "to", "seen_from", "seen_to"].map(Some),
            Form::FlashReady => ["device", "ready_start", "ready_end", "trace_start", "trace_end"].map(Some),
            Form::FlashCharging => [Some("device"), Some("ready_start"), Some("ready_end"), None, None],
        }
    }

    /// Whether it is one of FLASH's, of which it is known what is wrong with them.
    fn known(self) -> bool {
        matches!(self, Form::FlashReady | Form::FlashCharging)
    }
}

/// A file's rows as they are.
struct Rows<'f> {
    file: &'f Path,
    form: Form,
    n_rows: usize,
    /// For each row the place of its client among the names.
    places: Vec<u32>,
    names: Vec<String>,
    /// From, to, watched from, watched to, as far as there are such columns.
    times: Vec<Times>,
}

/// The values of a column of times.
enum Times {
    Numbers(Vec<f64>),
    Texts { places: Vec<u32>, texts: Vec<String>, values: Vec<Option<f64>> },
}

impl<'f> Rows<'f> {
    fn read(file: &'f Path, form: Form) -> Result<Rows<'f>, TraceError> {
        let columns = form.columns();
        let read = |times: ColumnRole| {
            table(file, TableForm::default(), |name| {
                let at = columns.iter().position(|&column| column == Some(name))?;
                Some(if at == 0 { ColumnRole::Category } else { times })
            })
        };
        // Numbers take a tenth of the memory of texts. But texts may be empty, and can be told where they are wrong.
        let Table { n_rows, columns: mut read } = read(ColumnRole::Number)
            .or_else(|_| read(ColumnRole::Category))
            .map_err(|error| unreadable(file, error))?;
        let mut take = |name: &str| {
            let at =
                read.iter().position(|(known, _)| known == name).expect("every column that was asked for");
            read.swap_remove(at).1
        };
        let Some(Column::Categories { codes: places, names }) = columns[0].map(&mut take) else {
            unreachable!("clients were read as categories");
        };
        let times = columns[1..].iter().flatten().map(|name| Times::new(take(name))).collect();
        Ok(Rows { file, form, n_rows, places, names, times })
    }

    fn name(&self, row: usize) -> &str {
        &self.names[self.places[row] as usize]
    }

    /// The number in one of the columns of times; `None`: it is empty.
    fn time(&self, row: usize, column_idx: usize) -> Result<Option<f64>, TraceError> {
        match &self.times[column_idx] {
            Times::Numbers(numbers) => Ok(Some(numbers[row])),
            Times::Texts { places, texts, values } => {
                let place = places[row] as usize;
                match (values[place], texts[place].as_str()) {
                    (Some(value), _) => Ok(Some(value)),
                    (None, "") => Ok(None),
                    (None, text) => Err(self.not_a_number(row, column_idx, text)),
                }
            }
        }
    }

    /// Two columns that both hold a number, or neither.
    fn pair(&self, row: usize, column_idx: usize) -> Result<Option<(f64, f64)>, TraceError> {
        match (self.time(row, column_idx)?, self.time(row, column_idx + 1)?) {
            (Some(from), Some(to)) => Ok(Some((from, to))),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(self.not_a_number(row, column_idx, "")),
            (Some(_), None) => Err(self.not_a_number(row, column_idx + 1, "")),
        }
    }

    fn has_watched(&self) -> bool {
        self.times.len() > 2
    }

    /// Whether nothing is known of the device of this row.
    fn unusable(&self, row: usize) -> Result<bool, TraceError> {
        Ok(self.form.known() && self.pair(row, 0)?.is_none())
    }

    fn not_a_number(&self, row: usize, column_idx: usize, found: &str) -> TraceError {
        let column = self.form.columns()[1 + column_idx].expect("a column that was read");
        self.wrong(row, Wrong::NotANumber { column, found: short(found) })
    }

    fn wrong(&self, row: usize, wrong: Wrong) -> TraceError {
        let (place, client) = (self.place(row), short(self.name(row)));
        TraceError::Row { file: self.file.to_owned(), place, client, wrong }
    }

    fn place(&self, row: usize) -> RowLocation {
        RowLocation::of(self.file, TableForm::default(), row)
    }
}

impl Times {
    fn new(column: Column) -> Times {
        match column {
            Column::Numbers(numbers) => Times::Numbers(numbers),
            Column::Categories { codes: places, names: texts } => {
                let finite = |text: &String| text.parse().ok().filter(|value: &f64| value.is_finite());
                let values = texts.iter().map(finite).collect();
                Times::Texts { places, texts, values }
            }
        }
    }
}

/// Which client each name is.
struct Clients {
    /// For each name its number; `None`: left out.
    of_name: Vec<Option<usize>>,
    n_clients: usize,
    by_number: bool,
}

impl Clients {
    /// Those that have a number, but do not occur.
    fn missing(&self) -> Vec<usize> {
        let mut occurs = vec![false; self.n_clients];
        self.of_name.iter().flatten().for_each(|&client_idx| occurs[client_idx] = true);
        (0..self.n_clients).filter(|&client_idx| !occurs[client_idx]).collect()
    }
}

fn number_clients(
    rows: &Rows<'_>,
    numbering: Numbering,
    repairs: &mut Repairs,
) -> Result<Clients, TraceError> {
    let usable = usable(rows)?;
    let n_most = match numbering {
        Numbering::InOrder => None,
        Numbering::ByNumber { n_clients } => Some(n_clients),
        Numbering::ByNumberIfWhole { n_clients } => {
            let whole = || rows.names.iter().all(|name| whole_number(name).is_some());
            (!rows.form.known() && whole()).then_some(n_clients)
        }
    };
    let of_name = match n_most {
        Some(n_most) => by_number(rows, &usable, n_most)?,
        None => in_order(&usable),
    };
    repairs.clients_left_out = of_name.iter().filter(|number| number.is_none()).count();
    let Some(&last) = of_name.iter().flatten().max() else {
        return Err(TraceError::NeverUp { file: rows.file.to_owned() });
    };
    Ok(Clients { of_name, n_clients: last + 1, by_number: n_most.is_some() })
}

/// For each name, whether any of its rows can be used.
fn usable(rows: &Rows<'_>) -> Result<Vec<bool>, TraceError> {
    let mut usable = vec![false; rows.names.len()];
    for row in 0..rows.n_rows {
        if rows.name(row).is_empty() {
            return Err(rows.wrong(row, Wrong::NoName));
        }
        let place = rows.places[row] as usize;
        usable[place] = usable[place] || !rows.unusable(row)?;
    }
    Ok(usable)
}

/// Names stand in the order in which they first occur.
fn in_order(usable: &[bool]) -> Vec<Option<usize>> {
    let mut next = 0..;
    usable.iter().map(|&usable| if usable { next.next() } else { None }).collect()
}

fn by_number(rows: &Rows<'_>, usable: &[bool], n_most: usize) -> Result<Vec<Option<usize>>, TraceError> {
    let mut of_name = vec![None; rows.names.len()];
    for row in 0..rows.n_rows {
        let place = rows.places[row] as usize;
        if !usable[place] || of_name[place].is_some() {
            continue;
        }
        let Some(number) = whole_number(rows.name(row)) else {
            return Err(rows.wrong(row, Wrong::NoWholeNumber));
        };
        let known = usize::try_from(number).ok().filter(|&number| number < n_most);
        of_name[place] = Some(known.ok_or_else(|| rows.wrong(row, Wrong::Unknown { n_known: n_most }))?);
    }
    Ok(of_name)
}

/// The number that a name is; 7.0 is one too, as tables of fractions write 7.
fn whole_number(name: &str) -> Option<i128> {
    let (whole, fraction) = name.trim().split_once('.').unwrap_or((name.trim(), "0"));
    let written =
        !whole.starts_with('+') && !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0');
    whole.parse().ok().filter(|_| written)
}

/// When each client was watched, if that is known before its intervals are.
fn watched(rows: &Rows<'_>, clients: &Clients) -> Result<Option<Vec<[f64; 2]>>, TraceError> {
    if rows.form == Form::FlashCharging {
        return Ok(Some(vec![[0.0, FLASH_CHARGING_ENDS_S]; clients.n_clients]));
    }
    if !rows.has_watched() {
        return Ok(None);
    }
    let mut found: Vec<Option<(usize, [f64; 2])>> = vec![None; clients.n_clients];
    for row in 0..rows.n_rows {
        let Some(client_idx) = clients.of_name[rows.places[row] as usize] else { continue };
        if rows.unusable(row)? {
            continue;
        }
        let Some((from_s, to_s)) = rows.pair(row, 2)? else { return Err(rows.not_a_number(row, 2, "")) };
        check_size(rows, row, to_s)?;
        if from_s < 0.0 || from_s >= to_s {
            return Err(rows.wrong(row, Wrong::NotWatched { seen_s: (from_s, to_s) }));
        }
        match found[client_idx] {
            None => found[client_idx] = Some((row, [from_s, to_s])),
            Some((_, seen)) if seen == [from_s, to_s] => {}
            Some((other, [other_from_s, other_to_s])) => {
                let wrong = Wrong::OtherwiseWatched {
                    seen_s: (from_s, to_s),
                    other_s: (other_from_s, other_to_s),
                    other: rows.place(other),
                };
                return Err(rows.wrong(row, wrong));
            }
        }
    }
    // A client that is known but does not occur was watched as long as anybody.
    let seen = || found.iter().flatten().map(|&(_, seen)| seen);
    if seen().next().is_none() {
        return Err(TraceError::NeverUp { file: rows.file.to_owned() });
    }
    let begin = seen().map(|[from, _]| from).fold(f64::INFINITY, f64::min);
    let end = seen().map(|[_, to]| to).fold(f64::NEG_INFINITY, f64::max);
    Ok(Some(found.iter().map(|found| found.map_or([begin, end], |(_, seen)| seen)).collect()))
}

/// An interval that is kept, and where it stands.
#[derive(Clone, Copy, Debug)]
struct Kept {
    client_idx: usize,
    row: usize,
    from_s: f64,
    to_s: f64,
}

/// The intervals that are right on their own.
fn check(
    rows: &Rows<'_>,
    clients: &Clients,
    seen: Option<&Vec<[f64; 2]>>,
    reading: &Reading,
    repairs: &mut Repairs,
) -> Result<Vec<Kept>, TraceError> {
    let repair = reading.repair || rows.form.known();
    let mut kept = Vec::new();
    for row in 0..rows.n_rows {
        let Some((from_s, to_s)) = rows.pair(row, 0)? else { continue };
        let Some(client_idx) = clients.of_name[rows.places[row] as usize] else { continue };
        repairs.n_read += 1;
        check_size(rows, row, from_s.max(to_s))?;
        let [seen_from_s, seen_to_s] = seen.map_or([0.0, f64::INFINITY], |seen| seen[client_idx]);
        let (wrong, count) = if from_s < 0.0 {
            (Wrong::BeforeZero { from_s }, &mut repairs.before_zero)
        } else if to_s < from_s {
            (Wrong::Backwards { from_s, to_s }, &mut repairs.backwards)
        } else if to_s == from_s {
            (Wrong::NoLength { at_s: from_s }, &mut repairs.no_length)
        } else if from_s < seen_from_s || to_s > seen_to_s {
            let wrong = Wrong::Outside { interval_s: (from_s, to_s), seen_s: (seen_from_s, seen_to_s) };
            (wrong, &mut repairs.outside)
        } else {
            kept.push(Kept { client_idx, row, from_s, to_s });
            continue;
        };
        if !repair {
            return Err(rows.wrong(row, wrong));
        }
        *count += 1;
    }
    Ok(kept)
}

fn check_size(rows: &Rows<'_>, row: usize, time_s: f64) -> Result<(), TraceError> {
    if time_s > HUNDRED_YEARS_S {
        return Err(rows.wrong(row, Wrong::TooLate { time_s }));
    }
    Ok(())
}

/// Joins or refuses what overlaps; `kept` is in the order of clients and beginnings.
fn apart(
    rows: &Rows<'_>,
    kept: Vec<Kept>,
    reading: &Reading,
    repairs: &mut Repairs,
) -> Result<Vec<Kept>, TraceError> {
    let repair = reading.repair || rows.form.known();
    let mut apart: Vec<Kept> = Vec::with_capacity(kept.len());
    for one in kept {
        match apart.last_mut() {
            Some(before) if before.client_idx == one.client_idx && one.from_s < before.to_s => {
                if !repair {
                    let (from_s, before_to_s, before) = (one.from_s, before.to_s, rows.place(before.row));
                    return Err(rows.wrong(one.row, Wrong::Overlap { from_s, before_to_s, before }));
                }
                before.to_s = before.to_s.max(one.to_s);
                repairs.joined += 1;
            }
            _ => apart.push(one),
        }
    }
    Ok(apart)
}

/// From the midnight before the first interval to the end of the last; where that is more than a day, to the midnight
/// after it, so that nights stay nights when it is repeated.
fn span(kept: &[Kept]) -> Option<[f64; 2]> {
    let first = kept.iter().map(|one| one.from_s).min_by(f64::total_cmp)?;
    let last = kept.iter().map(|one| one.to_s).max_by(f64::total_cmp)?;
    let midnight = libm::floor(first / DAY_S) * DAY_S;
    let n_days = (last - midnight) / DAY_S;
    Some([midnight, if n_days > 1.0 { midnight + libm::ceil(n_days) * DAY_S } else { last }])
}

const LEAST_GAP: f64 = 10.0;
const MILLISECONDS: std::ops::RangeInclusive<f64> = 200.0..=5000.0;

/// Refuses a file in which some clients seem to be in another unit than the others.
fn check_clients_units(rows: &Rows<'_>, kept: &[Kept]) -> Result<(), TraceError> {
    // Middle time and middle length of each client that is ever up.
    let mut middles: Vec<(f64, f64, usize)> = kept
        .chunk_by(|one, other| one.client_idx == other.client_idx)
        .map(|intervals| {
            let length = median(intervals.iter().map(|one| one.to_s - one.from_s));
            (intervals[intervals.len() / 2].to_s, length, intervals[0].row)
        })
        .collect();
    middles.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.2.cmp(&other.2)));
    let gap = |at: usize| middles[at].0 / middles[at - 1].0;
    let Some(cut) = (1..middles.len()).max_by(|&one, &other| gap(one).total_cmp(&gap(other))) else {
        return Ok(());
    };
    let (smaller, larger) = middles.split_at(cut);
    let times = median(larger.iter().map(|one| one.0)) / median(smaller.iter().map(|one| one.0));
    let lengths = median(larger.iter().map(|one| one.1)) / median(smaller.iter().map(|one| one.1));
    if gap(cut) < LEAST_GAP || !MILLISECONDS.contains(&times) || !MILLISECONDS.contains(&lengths) {
        return Ok(());
    }
    let row = larger.iter().map(|one| one.2).min().expect("both groups hold clients");
    Err(rows.wrong(row, Wrong::MixedUnits { n_clients: (larger.len(), smaller.len()), ratio: times }))
}

/// How many times as late and as long intervals in another unit are at least.
const LEAST_TIMES: f64 = 20.0;
/// What both come to together; milliseconds come to about a million.
const LEAST_PRODUCT: f64 = 200.0 * 200.0;
/// Of fewer intervals nobody can tell what is usual.
const LEAST_USUAL: usize = 10;

/// Refuses a file in which some intervals seem to be in another unit than the others.
fn check_rows_units(rows: &Rows<'_>, kept: &[Kept]) -> Result<(), TraceError> {
    // A quarter tells where more than half are in milliseconds.
    for part in [2, 4] {
        let Some(end_s) = smallest_part(kept.iter().map(|one| one.to_s), part) else { continue };
        let (far, usual): (Vec<&Kept>, Vec<&Kept>) =
            kept.iter().partition(|one| one.from_s > LEAST_TIMES * end_s);
        if usual.len() < LEAST_USUAL || far.is_empty() {
            continue;
        }
        let length = |group: &[&Kept]| median(group.iter().map(|one| one.to_s - one.from_s));
        let later = median(far.iter().map(|one| one.from_s)) / end_s;
        let longer = length(&far) / length(&usual);
        if longer >= LEAST_TIMES && later * longer >= LEAST_PRODUCT {
            let row = far.iter().map(|one| one.row).min().expect("some are far");
            let n_intervals = (far.len(), usual.len());
            return Err(rows.wrong(row, Wrong::MixedRows { n_intervals, later, longer }));
        }
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    smallest_part(values, 2).expect("there are values")
}

/// The value that one in `part` are smaller than; `None`: there are no values.
fn smallest_part(values: impl Iterator<Item = f64>, part: usize) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    let at = values.len() / part;
    let compare = |one: &f64, other: &f64| one.partial_cmp(other).unwrap_or(Ordering::Equal);
    (at < values.len()).then(|| *values.select_nth_unstable_by(at, compare).1)
}

/// A file that has no rows is told as such; remedies for tables of other kinds do not help.
fn unreadable(file: &Path, error: ReadError) -> TraceError {
    match error {
        ReadError::Unfit { found, .. } if found == "none" => TraceError::Empty { file: file.to_owned() },
        ReadError::Unfit { file, expected, found, .. } => {
            TraceError::Read(ReadError::Unfit { file, expected, found, remedy: "correct the file" })
        }
        error => TraceError::Read(error),
    }
}

/// Cut where it is long.
fn short(text: &str) -> String {
    const MOST: usize = 40;
    let cut = text.chars().nth(MOST).is_some();
    text.chars().take(MOST).chain(cut.then_some("...").into_iter().flat_map(str::chars)).collect()
}
