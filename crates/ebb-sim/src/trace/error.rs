//! Why a trace cannot be used: which file, which line, what is wrong and what would be right.

use std::fmt;
use std::path::PathBuf;

use ebb_train::read::{ReadError, RowLocation};

/// A trace that cannot be used.
#[derive(Debug)]
pub enum TraceError {
    /// It cannot be read as a table.
    Read(ReadError),
    /// It has no rows.
    Empty {
        /// Which file.
        file: PathBuf,
    },
    /// A column is not there.
    MissingColumn {
        /// Which file.
        file: PathBuf,
        /// The column.
        missing: &'static str,
        /// Those that are there.
        found: Vec<String>,
    },
    /// No row has an interval.
    NoIntervals {
        /// Which file.
        file: PathBuf,
    },
    /// A row is wrong.
    Row {
        /// Which file.
        file: PathBuf,
        /// Where in it.
        place: RowLocation,
        /// The client, as the file calls it.
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
    /// A value is no number.
    NotANumber {
        /// In which column.
        column: &'static str,
        /// What stands there.
        found: String,
    },
    /// It begins before 0.
    BeforeZero {
        /// When.
        from_s: f64,
    },
    /// It ends before it starts.
    EndsBeforeStart {
        /// Its beginning.
        from_s: f64,
        /// Its end.
        to_s: f64,
    },
    /// It ends when it starts.
    EmptyInterval {
        /// When.
        at_s: f64,
    },
    /// It overlaps another interval of the client.
    Overlap {
        /// Its beginning.
        from_s: f64,
        /// The end of the one before.
        before_to_s: f64,
        /// Where the one before stands.
        before: RowLocation,
    },
    /// It reaches out of the time in which the client was watched.
    OutsideObservation {
        /// The interval.
        interval_s: (f64, f64),
        /// When the client was watched.
        observed_s: (f64, f64),
    },
    /// The client was watched for no time at all.
    EmptyObservation {
        /// When it should have been watched.
        observed_s: (f64, f64),
    },
    /// Another row says otherwise about when the client was watched.
    InconsistentObservation {
        /// What this row says.
        observed_s: (f64, f64),
        /// What the other says.
        other_s: (f64, f64),
        /// Where the other stands.
        other: RowLocation,
    },
    /// A time beyond a hundred years.
    TimeTooLarge {
        /// The time.
        time_s: f64,
    },
    /// Some clients' times seem to be in another unit.
    MixedUnits {
        /// How many clients are in the group with the larger times, and how many in the other.
        n_clients: (usize, usize),
        /// How many times as large the larger are.
        ratio: f64,
    },
    /// Some intervals' times seem to be in another unit.
    MixedUnitsOfRows {
        /// How many intervals are far beyond the others, and how many others there are.
        n_intervals: (usize, usize),
        /// How many times as late they begin.
        later: f64,
        /// How many times as long they are.
        longer: f64,
    },
    /// The client is no whole number, but should be.
    NotAWholeNumber,
    /// The client's number is none of the run's.
    UnknownClient {
        /// How many clients the run has.
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
                write!(f, "give one, or the columns seen_from, seen_to, which say how long the trace is")
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
        const DROP_REMEDY: &str = "correct it, or drop such intervals with repair = true";
        match self {
            RowError::NoName => write!(f, "expected a number or a name, found nothing; fill it in"),
            RowError::NotANumber { column, found } => {
                write!(f, "{column}: expected seconds as a number, found \"{found}\"; correct it")
            }
            RowError::BeforeZero { from_s } => write!(f, "begins at {from_s} s, before 0; {DROP_REMEDY}"),
            RowError::EndsBeforeStart { from_s, to_s } => {
                write!(f, "ends at {to_s} s, before it starts at {from_s} s; {DROP_REMEDY}")
            }
            RowError::EmptyInterval { at_s } => write!(f, "starts and ends at {at_s} s; {DROP_REMEDY}"),
            RowError::Overlap { from_s, before_to_s, before } => {
                write!(f, "starts at {from_s} s, before the one in {before} ends at {before_to_s} s; ")?;
                write!(f, "correct it, or join such intervals with repair = true")
            }
            RowError::OutsideObservation {
                interval_s: (from_s, to_s),
                observed_s: (seen_from_s, seen_to_s),
            } => {
                write!(
                    f,
                    "up from {from_s} s to {to_s} s, but watched from {seen_from_s} s to {seen_to_s} s; "
                )?;
                write!(f, "{DROP_REMEDY}")
            }
            RowError::EmptyObservation { observed_s: (from_s, to_s) } => {
                write!(
                    f,
                    "watched from {from_s} s to {to_s} s; give a beginning from 0 on and an end after it"
                )
            }
            RowError::InconsistentObservation { observed_s: seen_s, other_s, other } => {
                write!(f, "watched from {} s to {} s, ", seen_s.0, seen_s.1)?;
                write!(
                    f,
                    "but from {} s to {} s in {other}; give the same in all rows of a client",
                    other_s.0, other_s.1
                )
            }
            RowError::TimeTooLarge { time_s } => {
                write!(f, "{time_s} s are more than a hundred years; give seconds, not milliseconds")
            }
            RowError::MixedUnits { n_clients: (larger, smaller), ratio } => {
                let all = larger + smaller;
                write!(f, "its times seem to be in another unit: {larger} of {all} clients, ")?;
                write!(f, "this one among them, have times about {ratio:.0} times as large as the others; ")?;
                write!(f, "give seconds throughout, or check_units = false if they are")
            }
            RowError::MixedUnitsOfRows { n_intervals: (far, others), later, longer } => {
                let all = far + others;
                write!(f, "its times seem to be in another unit: {far} of {all} intervals, ")?;
                write!(
                    f,
                    "this one among them, are about {later:.0} times as late and {longer:.0} times as long "
                )?;
                write!(f, "as the others; give seconds throughout, or check_units = false if they are")
            }
            RowError::NotAWholeNumber => {
                write!(f, "expected a whole number, as clients = \"by-number\" says; ")?;
                write!(f, "correct it, or give clients = \"in-order\"")
            }
            RowError::UnknownClient { n_known } => {
                let last = n_known.saturating_sub(1);
                write!(
                    f,
                    "is none of the {n_known} clients of the run, 0 to {last}; correct it, leave it out, "
                )?;
                write!(f, "or number clients as they occur with clients = \"in-order\"")
            }
        }
    }
}
