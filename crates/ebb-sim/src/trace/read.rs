//! Reads a trace from a table, and checks it.

use std::cmp::Ordering;
use std::path::Path;

use ebb_train::read::{Column, ColumnRole, ReadError, RowLocation, Table, TableForm, table, table_names};

use super::spans::Spans;
use super::{DAY_S, Repairs, RowError, Trace, TraceError};

/// How a trace is read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Whether wrong intervals are dropped or joined, instead of refusing the file.
    pub repair: bool,
    /// Whether files are refused in which some times seem to be in milliseconds.
    ///
    /// Clients count as mixed if their middle times fall into two groups with a factor of ten between them.
    /// In addition, the medians of both times and lengths must differ between the groups by a factor of 200
    /// to 5,000.
    ///
    /// Intervals count as mixed if some begin more than 20 times as late as half, or a quarter, of all
    /// intervals end. These must also be more than 20 times as long. By medians, the two factors must have a
    /// product of at least 200 * 200. Late alone or long alone does not show another unit. Intervals are not
    /// checked if the file gives observation periods, because intervals outside them are refused.
    pub check_units: bool,
    /// How clients of the file map to clients of the trace.
    pub numbering: Numbering,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { repair: false, check_units: true, numbering: Numbering::default() }
    }
}

/// How clients of a file map to clients of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbering {
    /// In the order in which they first occur.
    #[default]
    InOrder,
    /// Client 7 of the file is client 7 of the trace. Numbers outside 0 to `n_clients` are refused.
    ByNumber {
        /// The most clients that there can be.
        n_clients: usize,
    },
    /// By number if the file is not one of FLASH and all of its clients are whole numbers, else in order.
    ByNumberIfWhole {
        /// The most clients that there can be.
        n_clients: usize,
    },
}

impl Trace {
    /// Reads a trace in one of the forms that [this module](super) describes.
    pub fn read(file: &Path, options: &ReadOptions) -> Result<Trace, TraceError> {
        let format = TraceFormat::detect(file)?;
        let rows = Rows::read(file, format)?;
        let mut repairs = Repairs::default();
        let clients = number_clients(&rows, options.numbering, &mut repairs)?;
        let observed = observed_spans(&rows, &clients)?;
        let mut row_intervals = valid_intervals(&rows, &clients, observed.as_ref(), options, &mut repairs)?;
        row_intervals.sort_by(|one, other| {
            one.client_idx
                .cmp(&other.client_idx)
                .then(one.from_s.total_cmp(&other.from_s))
                .then(one.row.cmp(&other.row))
        });
        // Clients with the same observation period have one clock.
        let one_clock =
            observed.as_ref().is_some_and(|observed| observed.windows(2).all(|pair| pair[0] == pair[1]));
        if options.check_units && !format.is_flash() && !one_clock {
            check_clients_units(&rows, &row_intervals)?;
            if observed.is_none() {
                check_rows_units(&rows, &row_intervals)?;
            }
        }
        // Only now, because intervals that overlap because of a wrong unit must not be joined.
        let row_intervals = separate_overlaps(&rows, row_intervals, options, &mut repairs)?;
        let observed = match observed {
            Some(observed) => observed,
            None => vec![
                default_observed_span(&row_intervals)
                    .ok_or_else(|| TraceError::NoIntervals { file: file.to_owned() })?;
                clients.n_clients
            ],
        };
        let mut starts = vec![0; clients.n_clients + 1];
        row_intervals.iter().for_each(|one| starts[one.client_idx + 1] += 1);
        for client_idx in 0..clients.n_clients {
            starts[client_idx + 1] += starts[client_idx];
        }
        let intervals = Spans::new(row_intervals.iter().map(|one| [one.from_s, one.to_s]).collect());
        let (by_number, missing) = (clients.by_number, clients.missing());
        Ok(Trace {
            starts,
            intervals,
            observed: Spans::new(observed),
            repairs,
            is_by_number: by_number,
            missing,
        })
    }
}

/// FLASH's charging times end within the third day, except for one interval on the sixth.
const FLASH_CHARGING_ENDS_S: f64 = 3.0 * DAY_S;

/// The latest time that a recording may have, in seconds.
pub const HUNDRED_YEARS_S: f64 = 100.0 * 365.25 * DAY_S;

/// The format of a file, known by the names of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceFormat {
    Own,
    OwnObserved,
    FlashReady,
    FlashCharging,
}

impl TraceFormat {
    fn detect(file: &Path) -> Result<TraceFormat, TraceError> {
        let names = match table_names(file, TableForm::default()) {
            Ok(names) => names,
            Err(error) => return Err(to_trace_error(file, error)),
        };
        let has = |name: &str| names.iter().any(|known| known == name);
        let has_observation = has("seen_from") || has("seen_to") || has("trace_start") || has("trace_end");
        let form = match (has("device") && has("ready_start"), has_observation) {
            (false, false) => TraceFormat::Own,
            (false, true) => TraceFormat::OwnObserved,
            (true, true) => TraceFormat::FlashReady,
            (true, false) => TraceFormat::FlashCharging,
        };
        match form.columns().into_iter().flatten().find(|name| !has(name)) {
            Some(missing) => Err(TraceError::MissingColumn { file: file.to_owned(), missing, found: names }),
            None => Ok(form),
        }
    }

    /// The names of the columns: client, start, end, start and end of the observation period.
    fn columns(self) -> [Option<&'static str>; 5] {
        match self {
            TraceFormat::Own => [Some("client"), Some("from"), Some("to"), None, None],
            TraceFormat::OwnObserved => ["client", "from", "to", "seen_from", "seen_to"].map(Some),
            TraceFormat::FlashReady => {
                ["device", "ready_start", "ready_end", "trace_start", "trace_end"].map(Some)
            }
            TraceFormat::FlashCharging => {
                [Some("device"), Some("ready_start"), Some("ready_end"), None, None]
            }
        }
    }

    /// Whether it is a file of FLASH, whose faults are known.
    fn is_flash(self) -> bool {
        matches!(self, TraceFormat::FlashReady | TraceFormat::FlashCharging)
    }
}

/// The rows of a file as they are.
struct Rows<'f> {
    file: &'f Path,
    format: TraceFormat,
    n_rows: usize,
    /// For each row, the index of its client among the names.
    places: Vec<u32>,
    names: Vec<String>,
    /// The columns that exist of start, end, start and end of the observation period.
    times: Vec<Times>,
}

/// The values of a column of times.
enum Times {
    Numbers(Vec<f64>),
    Texts { places: Vec<u32>, texts: Vec<String>, values: Vec<Option<f64>> },
}

impl<'f> Rows<'f> {
    fn read(file: &'f Path, format: TraceFormat) -> Result<Rows<'f>, TraceError> {
        let columns = format.columns();
        let read = |times: ColumnRole| {
            table(file, TableForm::default(), |name| {
                let at = columns.iter().position(|&column| column == Some(name))?;
                Some(if at == 0 { ColumnRole::Category } else { times })
            })
        };
        // Numbers take a tenth of the memory of texts. Only texts can be empty, and show where they are
        // wrong.
        let Table { n_rows, columns: mut read } = read(ColumnRole::Number)
            .or_else(|_| read(ColumnRole::Category))
            .map_err(|error| to_trace_error(file, error))?;
        let mut take = |name: &str| {
            let at =
                read.iter().position(|(known, _)| known == name).expect("every column that was asked for");
            read.swap_remove(at).1
        };
        let Some(Column::Categories { codes: places, names }) = columns[0].map(&mut take) else {
            unreachable!("clients were read as categories");
        };
        let times = columns[1..].iter().flatten().map(|name| Times::new(take(name))).collect();
        Ok(Rows { file, format, n_rows, places, names, times })
    }

    fn name(&self, row: usize) -> &str {
        &self.names[self.places[row] as usize]
    }

    /// The number in one of the columns of times; `None` if the cell is empty.
    fn time_at(&self, row: usize, column_idx: usize) -> Result<Option<f64>, TraceError> {
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

    /// The values of two columns; both hold a number, or neither.
    fn time_pair(&self, row: usize, column_idx: usize) -> Result<Option<(f64, f64)>, TraceError> {
        match (self.time_at(row, column_idx)?, self.time_at(row, column_idx + 1)?) {
            (Some(from), Some(to)) => Ok(Some((from, to))),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(self.not_a_number(row, column_idx, "")),
            (Some(_), None) => Err(self.not_a_number(row, column_idx + 1, "")),
        }
    }

    fn has_observed(&self) -> bool {
        self.times.len() > 2
    }

    /// Whether the device of this row has no usable trace.
    fn is_unusable(&self, row: usize) -> Result<bool, TraceError> {
        Ok(self.format.is_flash() && self.time_pair(row, 0)?.is_none())
    }

    fn not_a_number(&self, row: usize, column_idx: usize, found: &str) -> TraceError {
        let column = self.format.columns()[1 + column_idx].expect("a column that was read");
        self.row_error(row, RowError::NotANumber { column, found: shortened(found) })
    }

    fn row_error(&self, row: usize, error: RowError) -> TraceError {
        let (place, client) = (self.place(row), shortened(self.name(row)));
        TraceError::Row { file: self.file.to_owned(), place, client, error }
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

/// The client of each name.
struct Clients {
    /// The client of each name; `None` if it is left out.
    of_name: Vec<Option<usize>>,
    n_clients: usize,
    by_number: bool,
}

impl Clients {
    /// Clients that have a number and do not occur, ascending.
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
    let usable = usable_names(rows)?;
    let max_clients = match numbering {
        Numbering::InOrder => None,
        Numbering::ByNumber { n_clients } => Some(n_clients),
        Numbering::ByNumberIfWhole { n_clients } => {
            let whole = || rows.names.iter().all(|name| whole_number(name).is_some());
            (!rows.format.is_flash() && whole()).then_some(n_clients)
        }
    };
    let of_name = match max_clients {
        Some(max_clients) => numbers_by_name(rows, &usable, max_clients)?,
        None => numbers_in_order(&usable),
    };
    repairs.clients_left_out = of_name.iter().filter(|number| number.is_none()).count();
    let Some(&last) = of_name.iter().flatten().max() else {
        return Err(TraceError::NoIntervals { file: rows.file.to_owned() });
    };
    Ok(Clients { of_name, n_clients: last + 1, by_number: max_clients.is_some() })
}

/// For each name, whether any of its rows can be used.
fn usable_names(rows: &Rows<'_>) -> Result<Vec<bool>, TraceError> {
    let mut usable = vec![false; rows.names.len()];
    for row in 0..rows.n_rows {
        if rows.name(row).is_empty() {
            return Err(rows.row_error(row, RowError::NoName));
        }
        let place = rows.places[row] as usize;
        usable[place] = usable[place] || !rows.is_unusable(row)?;
    }
    Ok(usable)
}

/// Names are in the order in which they first occur.
fn numbers_in_order(usable: &[bool]) -> Vec<Option<usize>> {
    let mut next = 0..;
    usable.iter().map(|&usable| if usable { next.next() } else { None }).collect()
}

fn numbers_by_name(
    rows: &Rows<'_>,
    usable: &[bool],
    max_clients: usize,
) -> Result<Vec<Option<usize>>, TraceError> {
    let mut of_name = vec![None; rows.names.len()];
    for row in 0..rows.n_rows {
        let place = rows.places[row] as usize;
        if !usable[place] || of_name[place].is_some() {
            continue;
        }
        let Some(number) = whole_number(rows.name(row)) else {
            return Err(rows.row_error(row, RowError::NotAWholeNumber));
        };
        let known = usize::try_from(number).ok().filter(|&number| number < max_clients);
        of_name[place] =
            Some(known.ok_or_else(|| rows.row_error(row, RowError::UnknownClient { n_known: max_clients }))?);
    }
    Ok(of_name)
}

/// The whole number that a name stands for; 7.0 is one, too, because tables of fractions write 7 like this.
fn whole_number(name: &str) -> Option<i128> {
    let (whole, fraction) = name.trim().split_once('.').unwrap_or((name.trim(), "0"));
    let written =
        !whole.starts_with('+') && !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0');
    whole.parse().ok().filter(|_| written)
}

/// The observation period of each client, if it is known before the intervals are.
fn observed_spans(rows: &Rows<'_>, clients: &Clients) -> Result<Option<Vec<[f64; 2]>>, TraceError> {
    if rows.format == TraceFormat::FlashCharging {
        return Ok(Some(vec![[0.0, FLASH_CHARGING_ENDS_S]; clients.n_clients]));
    }
    if !rows.has_observed() {
        return Ok(None);
    }
    let mut observed_by_client: Vec<Option<(usize, [f64; 2])>> = vec![None; clients.n_clients];
    for row in 0..rows.n_rows {
        let Some(client_idx) = clients.of_name[rows.places[row] as usize] else { continue };
        if rows.is_unusable(row)? {
            continue;
        }
        let Some((from_s, to_s)) = rows.time_pair(row, 2)? else { return Err(rows.not_a_number(row, 2, "")) };
        check_time(rows, row, to_s)?;
        if from_s < 0.0 || from_s >= to_s {
            return Err(rows.row_error(row, RowError::EmptyObservation { observed_s: (from_s, to_s) }));
        }
        match observed_by_client[client_idx] {
            None => observed_by_client[client_idx] = Some((row, [from_s, to_s])),
            Some((_, observed)) if observed == [from_s, to_s] => {}
            Some((other, [other_from_s, other_to_s])) => {
                let error = RowError::InconsistentObservation {
                    observed_s: (from_s, to_s),
                    other_s: (other_from_s, other_to_s),
                    other: rows.place(other),
                };
                return Err(rows.row_error(row, error));
            }
        }
    }
    // A client that does not occur was observed from the first start to the last end of all observation
    // periods.
    let observed = || observed_by_client.iter().flatten().map(|&(_, observed)| observed);
    if observed().next().is_none() {
        return Err(TraceError::NoIntervals { file: rows.file.to_owned() });
    }
    let begin = observed().map(|[from, _]| from).fold(f64::INFINITY, f64::min);
    let end = observed().map(|[_, to]| to).fold(f64::NEG_INFINITY, f64::max);
    Ok(Some(
        observed_by_client.iter().map(|observed| observed.map_or([begin, end], |(_, span)| span)).collect(),
    ))
}

/// An interval that is kept, and its row.
#[derive(Clone, Copy, Debug)]
struct RowInterval {
    client_idx: usize,
    row: usize,
    from_s: f64,
    to_s: f64,
}

/// The intervals that are valid on their own.
fn valid_intervals(
    rows: &Rows<'_>,
    clients: &Clients,
    observed: Option<&Vec<[f64; 2]>>,
    options: &ReadOptions,
    repairs: &mut Repairs,
) -> Result<Vec<RowInterval>, TraceError> {
    let repair = options.repair || rows.format.is_flash();
    let mut row_intervals = Vec::new();
    for row in 0..rows.n_rows {
        let Some((from_s, to_s)) = rows.time_pair(row, 0)? else { continue };
        let Some(client_idx) = clients.of_name[rows.places[row] as usize] else { continue };
        repairs.n_read += 1;
        check_time(rows, row, from_s.max(to_s))?;
        let [seen_from_s, seen_to_s] = observed.map_or([0.0, f64::INFINITY], |observed| observed[client_idx]);
        let (error, count) = if from_s < 0.0 {
            (RowError::BeforeZero { from_s }, &mut repairs.before_zero)
        } else if to_s < from_s {
            (RowError::EndsBeforeStart { from_s, to_s }, &mut repairs.ends_before_start)
        } else if to_s == from_s {
            (RowError::EmptyInterval { at_s: from_s }, &mut repairs.empty_intervals)
        } else if from_s < seen_from_s || to_s > seen_to_s {
            let error = RowError::OutsideObservation {
                interval_s: (from_s, to_s),
                observed_s: (seen_from_s, seen_to_s),
            };
            (error, &mut repairs.outside_observation)
        } else {
            row_intervals.push(RowInterval { client_idx, row, from_s, to_s });
            continue;
        };
        if !repair {
            return Err(rows.row_error(row, error));
        }
        *count += 1;
    }
    Ok(row_intervals)
}

fn check_time(rows: &Rows<'_>, row: usize, time_s: f64) -> Result<(), TraceError> {
    if time_s > HUNDRED_YEARS_S {
        return Err(rows.row_error(row, RowError::TimeTooLarge { time_s }));
    }
    Ok(())
}

/// Joins or refuses overlapping intervals; `row_intervals` is ordered by client and start.
fn separate_overlaps(
    rows: &Rows<'_>,
    row_intervals: Vec<RowInterval>,
    options: &ReadOptions,
    repairs: &mut Repairs,
) -> Result<Vec<RowInterval>, TraceError> {
    let repair = options.repair || rows.format.is_flash();
    let mut separate: Vec<RowInterval> = Vec::with_capacity(row_intervals.len());
    for interval in row_intervals {
        match separate.last_mut() {
            Some(before) if before.client_idx == interval.client_idx && interval.from_s < before.to_s => {
                if !repair {
                    let (from_s, before_to_s, before) =
                        (interval.from_s, before.to_s, rows.place(before.row));
                    return Err(
                        rows.row_error(interval.row, RowError::Overlap { from_s, before_to_s, before })
                    );
                }
                before.to_s = before.to_s.max(interval.to_s);
                repairs.joined += 1;
            }
            _ => separate.push(interval),
        }
    }
    Ok(separate)
}

/// From the midnight before the first interval to the end of the last. If that is more than a day, it ends at
/// the midnight after, so that nights stay nights when the trace repeats.
fn default_observed_span(row_intervals: &[RowInterval]) -> Option<[f64; 2]> {
    let first = row_intervals.iter().map(|one| one.from_s).min_by(f64::total_cmp)?;
    let last = row_intervals.iter().map(|one| one.to_s).max_by(f64::total_cmp)?;
    let midnight = libm::floor(first / DAY_S) * DAY_S;
    let n_days = (last - midnight) / DAY_S;
    Some([midnight, if n_days > 1.0 { midnight + libm::ceil(n_days) * DAY_S } else { last }])
}

const MIN_GAP_RATIO: f64 = 10.0;
const MILLISECOND_RATIOS: std::ops::RangeInclusive<f64> = 200.0..=5000.0;

/// Refuses a file in which some clients seem to have another unit than the others.
fn check_clients_units(rows: &Rows<'_>, row_intervals: &[RowInterval]) -> Result<(), TraceError> {
    // The middle time and middle length of each client that is ever up.
    let mut middles: Vec<(f64, f64, usize)> = row_intervals
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
    if gap(cut) < MIN_GAP_RATIO
        || !MILLISECOND_RATIOS.contains(&times)
        || !MILLISECOND_RATIOS.contains(&lengths)
    {
        return Ok(());
    }
    let row = larger.iter().map(|one| one.2).min().expect("both groups hold clients");
    Err(rows.row_error(row, RowError::MixedUnits { n_clients: (larger.len(), smaller.len()), ratio: times }))
}

/// The least factor by which intervals in another unit are later, and longer.
const MIN_RATIO: f64 = 20.0;
/// The least product of both factors; for milliseconds it is about a million.
const MIN_RATIO_PRODUCT: f64 = 200.0 * 200.0;
/// The least number of intervals from which a usual one can be told.
const MIN_USUAL_INTERVALS: usize = 10;

/// Refuses a file in which some intervals seem to have another unit than the others.
fn check_rows_units(rows: &Rows<'_>, row_intervals: &[RowInterval]) -> Result<(), TraceError> {
    // The quarter covers files in which more than half of the intervals are in milliseconds.
    for part in [2, 4] {
        let Some(end_s) = lower_quantile(row_intervals.iter().map(|one| one.to_s), part) else { continue };
        let (far, usual): (Vec<&RowInterval>, Vec<&RowInterval>) =
            row_intervals.iter().partition(|one| one.from_s > MIN_RATIO * end_s);
        if usual.len() < MIN_USUAL_INTERVALS || far.is_empty() {
            continue;
        }
        let length = |group: &[&RowInterval]| median(group.iter().map(|one| one.to_s - one.from_s));
        let later = median(far.iter().map(|one| one.from_s)) / end_s;
        let longer = length(&far) / length(&usual);
        if longer >= MIN_RATIO && later * longer >= MIN_RATIO_PRODUCT {
            let row = far.iter().map(|one| one.row).min().expect("some are far");
            let n_intervals = (far.len(), usual.len());
            return Err(rows.row_error(row, RowError::MixedUnitsOfRows { n_intervals, later, longer }));
        }
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    lower_quantile(values, 2).expect("there are values")
}

/// The quantile at 1 / `denominator`; `None` if there are no values.
fn lower_quantile(values: impl Iterator<Item = f64>, denominator: usize) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    let at = values.len() / denominator;
    let compare = |one: &f64, other: &f64| one.partial_cmp(other).unwrap_or(Ordering::Equal);
    (at < values.len()).then(|| *values.select_nth_unstable_by(at, compare).1)
}

/// An error with the remedies for traces, because those for tables of data do not apply.
fn to_trace_error(file: &Path, error: ReadError) -> TraceError {
    match error {
        ReadError::Unfit { found, .. } if found == "none" => TraceError::Empty { file: file.to_owned() },
        ReadError::Unfit { file, expected, found, .. } => {
            TraceError::Read(ReadError::Unfit { file, expected, found, remedy: "correct the file" })
        }
        error => TraceError::Read(error),
    }
}

/// The text, shortened if it is long.
fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    let cut = text.chars().nth(MAX_CHARS).is_some();
    text.chars().take(MAX_CHARS).chain(cut.then_some("...").into_iter().flat_map(str::chars)).collect()
}
