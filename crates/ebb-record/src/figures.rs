//! The figures of a round: one number each, under one name in tables and another, with its group, in TensorBoard.

use crate::Row;

/// A figure, and where it is found.
pub(crate) struct Figure {
    /// Its column.
    pub(crate) name: &'static str,
    /// Its tag in TensorBoard: a group, a slash, a name. The round has none, for it is the step.
    pub(crate) tag: &'static str,
    /// Its value.
    pub(crate) of: Scalar,
}

/// Where a value is found.
pub(crate) enum Scalar {
    Count(fn(&Row) -> u64),
    SomeCount(fn(&Row) -> Option<u32>),
    Single(fn(&Row) -> Option<f32>),
    Double(fn(&Row) -> Option<f64>),
}

impl Scalar {
    /// The shortest text that reads as the same number.
    pub(crate) fn cell(&self, row: &Row) -> String {
        match self {
            Scalar::Count(of) => of(row).to_string(),
            Scalar::SomeCount(of) => cell(of(row)),
            Scalar::Single(of) => cell(of(row)),
            Scalar::Double(of) => cell(of(row)),
        }
    }

    /// The number nearest to it among those of single precision, if it was measured.
    pub(crate) fn single(&self, row: &Row) -> Option<f32> {
        match self {
            Scalar::Count(of) => Some(of(row) as f32),
            Scalar::SomeCount(of) => of(row).map(|count| count as f32),
            Scalar::Single(of) => of(row),
            Scalar::Double(of) => of(row).map(|number| number as f32),
        }
    }
}

/// A value as it reads, or nothing.
pub(crate) fn cell<T: std::fmt::Debug>(value: Option<T>) -> String {
    value.map(|value| format!("{value:?}")).unwrap_or_default()
}

/// All of them, in the order of the columns.
pub(crate) const FIGURES: [Figure; 33] = [
    figure("round", "", Scalar::Count(|row| u64::from(row.round))),
    figure("n_enrolled", "clients/enrolled", Scalar::Count(|row| u64::from(row.n_enrolled))),
    figure("n_up", "clients/up", Scalar::Count(|row| u64::from(row.n_up))),
    figure("n_asked", "clients/asked", Scalar::Count(|row| row.n_asked() as u64)),
    figure("n_whole", "clients/whole", Scalar::Count(|row| row.n_whole() as u64)),
    figure("n_partial", "clients/partial", Scalar::Count(|row| row.n_partial() as u64)),
    figure("n_late", "clients/late", Scalar::Count(|row| row.late.len() as u64)),
    figure("n_absent", "clients/absent", Scalar::Count(|row| row.n_absent() as u64)),
    figure("n_refused", "clients/refused", Scalar::Count(|row| row.refused.len() as u64)),
    figure("n_stand_ins", "clients/stand_ins", Scalar::Count(|row| u64::from(row.n_stand_ins))),
    figure("chance", "clients/chance", Scalar::Double(|row| row.chance)),
    figure("rate", "train/rate", Scalar::Single(|row| Some(row.rate))),
    figure("train_loss", "train/loss", Scalar::Single(|row| row.train_loss)),
    figure("train_accuracy", "train/accuracy", Scalar::Single(|row| row.train_accuracy)),
    figure("step_norm", "train/step_norm", Scalar::Double(|row| Some(row.step_norm))),
    figure("loss", "test/loss", Scalar::Double(|row| row.loss)),
    figure("accuracy", "test/accuracy", Scalar::Double(|row| row.accuracy)),
    figure("oracle_client_mean", "oracle/client_mean", Scalar::Double(|row| row.oracle_client_mean)),
    figure(
        "oracle_client_worst_tenth",
        "oracle/client_worst_tenth",
        Scalar::Double(|row| row.oracle_client_worst_tenth),
    ),
    figure(
        "oracle_client_deviation",
        "oracle/client_deviation",
        Scalar::Double(|row| row.oracle_client_deviation),
    ),
    figure("oracle_hits", "oracle/hits", Scalar::SomeCount(|row| row.oracle_hits)),
    figure("oracle_hits_of", "oracle/hits_of", Scalar::SomeCount(|row| row.oracle_hits_of)),
    figure("oracle_error2", "oracle/error2", Scalar::Double(|row| row.oracle_error2)),
    figure("oracle_sigma_p2", "oracle/sigma_p2", Scalar::Double(|row| row.oracle_sigma_p2)),
    figure("oracle_sigma_f2", "oracle/sigma_f2", Scalar::Double(|row| row.oracle_sigma_f2)),
    figure("oracle_bound_p2", "oracle/bound_p2", Scalar::Double(|row| row.oracle_bound_p2)),
    figure("oracle_bound_f2", "oracle/bound_f2", Scalar::Double(|row| row.oracle_bound_f2)),
    figure("oracle_psi", "oracle/psi", Scalar::Double(|row| row.oracle_psi)),
    figure("elapsed_s", "spent/elapsed_s", Scalar::Double(|row| Some(row.elapsed_s))),
    figure("virtual_s", "spent/virtual_s", Scalar::Double(|row| Some(row.virtual_s))),
    figure("bytes_down", "spent/bytes_down", Scalar::Count(|row| row.bytes_down)),
    figure("bytes_up", "spent/bytes_up", Scalar::Count(|row| row.bytes_up)),
    figure("bytes_total", "spent/bytes_total", Scalar::Count(|row| row.bytes_total)),
];

const fn figure(name: &'static str, tag: &'static str, of: Scalar) -> Figure {
    Figure { name, tag, of }
}
