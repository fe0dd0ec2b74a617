//! Why a trace cannot be used: the file, the line, what is wrong and what would be right.

use std::fmt;
use std::path::PathBuf;

use ebb_train::read::{ReadError, RowLocation};

/// Why a trace cannot be used.
#[derive(Debug)]
pub enum TraceError {
    /// The file cannot be read as a table.
    Read(ReadError),
    /// The file has no rows.
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A column is missing.
    MissingColumn {
        /// The file.
        file: PathBuf,
        /// The missing column.
        missing: &'static str,
        /// The columns that the file has.
        found: Vec<String>,
    },
    /// No row has an interval.
    NoIntervals {
        /// The file.
        file: PathBuf,
    },
    /// A row is wrong.
    Row {
        /// The file.
        file: PathBuf,
        /// The row's place in the file.
        place: RowLocation,
        /// The client, as the file names it.
        client: String,
        /// What is wrong with the row.
        error: RowError,
    },
}

/// What is wrong with a row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowError {
    /// The client has no name.
    NoName,
    /// A value is not a number.
    NotANumber {
        /// The column of the value.
        column: &'static str,
        /// The value as written.
        found: String,
    },
    /// The interval begins before 0.
    BeforeZero {
        /// The start of the interval in seconds.
        from_s: f64,
    },
    /// The interval ends before it starts.
    EndsBeforeStart {
        /// The start of the interval in seconds.
        from_s: f64,
        /// The end of the interval in seconds.
        to_s: f64,
    },
    /// The interval ends when it starts.
    EmptyInterval {
        /// The start and end of the interval in seconds.
        at_s: f64,
    },
    /// The interval overlaps another interval of the client.
    Overlap {
        /// The start of the interval in seconds.
        from_s: f64,
        /// The end of the earlier interval in seconds.
        before_to_s: f64,
        /// The place of the earlier interval.
        before: RowLocation,
    },
    /// The interval is not within the client's observation period.
    OutsideObservation {
        /// The start and end of the interval in seconds.
        interval_s: (f64, f64),
        /// The start and end of the observation period in seconds.
        observed_s: (f64, f64),
    },
    /// The client's observation period has no length.
    EmptyObservation {
        /// The start and end of the observation period in seconds.
        observed_s: (f64, f64),
    },
    /// Another row gives the client another observation period.
    InconsistentObservation {
        /// The observation period in this row, in seconds.
        observed_s: (f64, f64),
        /// The observation period in the other row, in seconds.
        other_s: (f64, f64),
        /// The place of the other row.
        other: RowLocation,
    },
    /// A time is beyond a hundred years.
    TimeTooLarge {
        /// The time in seconds.
        time_s: f64,
    },
    /// The times of some clients seem to be in another unit.
    MixedUnits {
        /// The number of clients with the larger times, and the number of all others.
        n_clients: (usize, usize),
        /// How many times as large the larger times are.
        ratio: f64,
    },
    /// The times of some intervals seem to be in another unit.
    MixedUnitsOfRows {
        /// The number of intervals far beyond the others, and the number of all others.
        n_intervals: (usize, usize),
        /// How many times as late they begin.
        later: f64,
        /// How many times as long they are.
        longer: f64,
    },
    /// The client should be a whole number and is not.
    NotAWholeNumber,
    /// The run has no client of this number.
    UnknownClient {
        /// The number of clients in the run.
        n_known: usize,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Read(error) => error.fmt(f),
            TraceError::Empty { file } => {
                write!(
                    f,
                    "{}: expected at least one row below the columns' names, found none; ",
                    file.display()
                )?;
                write!(f, "give a table with the columns client, from, to")
            }
            TraceError::MissingColumn { file, missing, found } => {
                let (file, found) = (file.display(), found.join(", "));
                write!(f, "{file}: expected a column \"{missing}\", found {found}; ")?;
                write!(f, "give a table with the columns client, from, to")
            }
            TraceError::NoIntervals { file } => {
                write!(f, "{}: expected at least one interval, found none; ", file.display())?;
                write!(f, "add one, or the columns seen_from and seen_to, which give the trace its length")
            }
            TraceError::Row { file, place, client, error } => {
                write!(f, "{}: {place}: client \"{client}\": {error}", file.display())
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TraceError::Read(error) => error.source(),
            _ => None,
        }
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DROP_REMEDY: &str = "correct it, or drop wrong intervals with repair = true";
        match self {
            RowError::NoName => write!(f, "expected a number or a name, found nothing; fill it in"),
            RowError::NotANumber { column, found } => {
                write!(f, "{column}: expected seconds as a number, found \"{found}\"; correct it")
            }
            RowError::BeforeZero { from_s } => write!(f, "it begins at {from_s} s, before 0; {DROP_REMEDY}"),
            RowError::EndsBeforeStart { from_s, to_s } => {
                write!(f, "it ends at {to_s} s, before it starts at {from_s} s; {DROP_REMEDY}")
            }
            RowError::EmptyInterval { at_s } => write!(f, "it starts and ends at {at_s} s; {DROP_REMEDY}"),
            RowError::Overlap { from_s, before_to_s, before } => {
                write!(f, "it starts at {from_s} s, before the one in {before} ends at {before_to_s} s; ")?;
                write!(f, "correct it, or join overlapping intervals with repair = true")
            }
            RowError::OutsideObservation {
                interval_s: (from_s, to_s),
                observed_s: (seen_from_s, seen_to_s),
            } => {
                write!(
                    f,
                    "it is up from {from_s} s to {to_s} s, but observed from {seen_from_s} s to {seen_to_s} s; "
                )?;
                write!(f, "{DROP_REMEDY}")
            }
            RowError::EmptyObservation { observed_s: (from_s, to_s) } => {
                write!(
                    f,
                    "it is observed from {from_s} s to {to_s} s; give a start of at least 0 and a later end"
                )
            }
            RowError::InconsistentObservation { observed_s: seen_s, other_s, other } => {
                write!(f, "it is observed from {} s to {} s, ", seen_s.0, seen_s.1)?;
                write!(
                    f,
                    "but from {} s to {} s in {other}; give the same period in all rows of a client",
                    other_s.0, other_s.1
                )
            }
            RowError::TimeTooLarge { time_s } => {
                write!(f, "{time_s} s is more than a hundred years; give seconds, not milliseconds")
            }
            RowError::MixedUnits { n_clients: (larger, smaller), ratio } => {
                let all = larger + smaller;
                write!(f, "its times seem to be in another unit: {larger} of {all} clients, ")?;
                write!(
                    f,
                    "this one among them, have times about {ratio:.0} times as large as those of the others; "
                )?;
                write!(f, "give seconds throughout, or set check_units = false if they are right")
            }
            RowError::MixedUnitsOfRows { n_intervals: (far, others), later, longer } => {
                let all = far + others;
                write!(f, "its times seem to be in another unit: {far} of {all} intervals, ")?;
                write!(
                    f,
                    "this one among them, are about {later:.0} times as late and {longer:.0} times as long "
                )?;
                write!(
                    f,
                    "as the others; give seconds throughout, or set check_units = false if they are right"
                )
            }
            RowError::NotAWholeNumber => {
                write!(f, "expected a whole number, because clients = \"by-number\"; ")?;
                write!(f, "correct it, or set clients = \"in-order\"")
            }
            RowError::UnknownClient { n_known } => {
                let last = n_known.saturating_sub(1);
                write!(
                    f,
                    "it is not among the {n_known} clients of the run, 0 to {last}; correct it, leave it out, "
                )?;
                write!(f, "or number clients by occurrence with clients = \"in-order\"")
            }
        }
    }
}
