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
    Column {
        /// Which file.
        file: PathBuf,
        /// The column.
        missing: &'static str,
        /// Those that are there.
        found: Vec<String>,
    },
    /// No row has an interval.
    NeverUp {
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
        wrong: Wrong,
    },
}

/// What is wrong with a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrong {
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
    Backwards {
        /// Its beginning.
        from_s: f64,
        /// Its end.
        to_s: f64,
    },
    /// It ends when it starts.
    NoLength {
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
    Outside {
        /// The interval.
        interval_s: (f64, f64),
        /// When the client was watched.
        seen_s: (f64, f64),
    },
    /// The client was watched for no time at all.
    NotWatched {
        /// When it should have been watched.
        seen_s: (f64, f64),
    },
    /// Another row says otherwise about when the client was watched.
    OtherwiseWatched {
        /// What this row says.
        seen_s: (f64, f64),
        /// What the other says.
        other_s: (f64, f64),
        /// Where the other stands.
        other: RowLocation,
    },
    /// A time beyond a hundred years.
    TooLate {
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
    MixedRows {
        /// How many intervals are far beyond the others, and how many others there are.
        n_intervals: (usize, usize),
        /// How many times as late they begin.
        later: f64,
        /// How many times as long they are.
        longer: f64,
    },
    /// The client is no whole number, but should be.
    NoWholeNumber,
    /// The client's number is none of the run's.
    Unknown {
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
            TraceError::Column { file, missing, found } => {
                let (file, found) = (file.display(), found.join(", "));
                write!(f, "{file}: expected a column \"{missing}\", found {found}; ")?;
                write!(f, "give a table with the columns client, from, to")
            }
            TraceError::NeverUp { file } => {
                write!(f, "{}: expected at least one interval, found none; ", file.display())?;
                write!(f, "give one, or the columns seen_from, seen_to, which say how long the trace is")
            }
            TraceError::Row { file, place, client, wrong } => {
                write!(f, "{}: {place}: client \"{client}\": {wrong}", file.display())
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

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DROP: &str = "correct it, or drop such intervals with repair = true";
        match self {
            Wrong::NoName => write!(f, "expected a number or a name, found nothing; fill it in"),
            Wrong::NotANumber { column, found } => {
                write!(f, "{column}: expected seconds as a number, found \"{found}\"; correct it")
            }
            Wrong::BeforeZero { from_s } => write!(f, "begins at {from_s} s, before 0; {DROP}"),
            Wrong::Backwards { from_s, to_s } => {
                write!(f, "ends at {to_s} s, before it starts at {from_s} s; {DROP}")
            }
            Wrong::NoLength { at_s } => write!(f, "starts and ends at {at_s} s; {DROP}"),
            Wrong::Overlap { from_s, before_to_s, before } => {
                write!(f, "starts at {from_s} s, before the one in {before} ends at {before_to_s} s; ")?;
                write!(f, "correct it, or join such intervals with repair = true")
            }
            Wrong::Outside { interval_s: (from_s, to_s), seen_s: (seen_from_s, seen_to_s) } => {
                write!(
                    f,
                    "up from {from_s} s to {to_s} s, but watched from {seen_from_s} s to {seen_to_s} s; "
                )?;
                write!(f, "{DROP}")
            }
            Wrong::NotWatched { seen_s: (from_s, to_s) } => {
                write!(
                    f,
                    "watched from {from_s} s to {to_s} s; give a beginning from 0 on and an end after it"
                )
            }
            Wrong::OtherwiseWatched { seen_s, other_s, other } => {
                write!(f, "watched from {} s to {} s, ", seen_s.0, seen_s.1)?;
                write!(
                    f,
                    "but from {} s to {} s in {other}; give the same in all rows of a client",
                    other_s.0, other_s.1
                )
            }
            Wrong::TooLate { time_s } => {
                write!(f, "{time_s} s are more than a hundred years; give seconds, not milliseconds")
            }
            Wrong::MixedUnits { n_clients: (larger, smaller), ratio } => {
                let all = larger + smaller;
                write!(f, "its times seem to be in another unit: {larger} of {all} clients, ")?;
                write!(f, "this one among them, have times about {ratio:.0} times as large as the others; ")?;
                write!(f, "give seconds throughout, or check_units = false if they are")
            }
            Wrong::MixedRows { n_intervals: (far, others), later, longer } => {
                let all = far + others;
                write!(f, "its times seem to be in another unit: {far} of {all} intervals, ")?;
                write!(
                    f,
                    "this one among them, are about {later:.0} times as late and {longer:.0} times as long "
                )?;
                write!(f, "as the others; give seconds throughout, or check_units = false if they are")
            }
            Wrong::NoWholeNumber => {
                write!(f, "expected a whole number, as clients = \"by-number\" says; ")?;
                write!(f, "correct it, or give clients = \"in-order\"")
            }
            Wrong::Unknown { n_known } => {
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
