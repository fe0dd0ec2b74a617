//! The metrics of a round: one number each, with its column and its tag in TensorBoard.

use crate::Row;

/// A metric of a row.
pub(crate) struct Metric {
    /// Its column in CSV and Parquet.
    pub(crate) name: &'static str,
    /// Its tag in TensorBoard: group, slash, name. Empty for the round, which is the step.
    pub(crate) tag: &'static str,
    /// How to read its value.
    pub(crate) value: MetricValue,
}

/// How to read a value of a row, by its type.
pub(crate) enum MetricValue {
    Count(fn(&Row) -> u64),
    OptionalCount(fn(&Row) -> Option<u32>),
    Single(fn(&Row) -> Option<f32>),
    Double(fn(&Row) -> Option<f64>),
}

impl MetricValue {
    /// The shortest text that parses as the same number.
    pub(crate) fn cell(&self, row: &Row) -> String {
        match self {
            MetricValue::Count(of) => of(row).to_string(),
            MetricValue::OptionalCount(of) => optional_cell(of(row)),
            MetricValue::Single(of) => optional_cell(of(row)),
            MetricValue::Double(of) => optional_cell(of(row)),
        }
    }

    /// The value rounded to single precision, if it is known.
    pub(crate) fn to_f32(&self, row: &Row) -> Option<f32> {
        match self {
            MetricValue::Count(of) => Some(of(row) as f32),
            MetricValue::OptionalCount(of) => of(row).map(|count| count as f32),
            MetricValue::Single(of) => of(row),
            MetricValue::Double(of) => of(row).map(|number| number as f32),
        }
    }
}

/// The text of a value, or nothing.
pub(crate) fn optional_cell<T: std::fmt::Debug>(value: Option<T>) -> String {
    value.map(|value| format!("{value:?}")).unwrap_or_default()
}

/// All metrics, in the order of the columns.
pub(crate) const METRICS: [Metric; 33] = [
    metric("round", "", MetricValue::Count(|row| u64::from(row.round))),
    metric("n_enrolled", "clients/enrolled", MetricValue::Count(|row| u64::from(row.n_enrolled))),
    metric("n_up", "clients/up", MetricValue::Count(|row| u64::from(row.n_up))),
    metric("n_asked", "clients/asked", MetricValue::Count(|row| row.n_selected() as u64)),
    metric("n_whole", "clients/whole", MetricValue::Count(|row| row.n_whole() as u64)),
    metric("n_partial", "clients/partial", MetricValue::Count(|row| row.n_partial() as u64)),
    metric("n_late", "clients/late", MetricValue::Count(|row| row.late.len() as u64)),
    metric("n_absent", "clients/absent", MetricValue::Count(|row| row.n_absent() as u64)),
    metric("n_refused", "clients/refused", MetricValue::Count(|row| row.refused.len() as u64)),
    metric("n_stand_ins", "clients/stand_ins", MetricValue::Count(|row| u64::from(row.n_stand_ins))),
    metric(
        "inclusion_probability",
        "clients/inclusion_probability",
        MetricValue::Double(|row| row.inclusion_probability),
    ),
    metric("learning_rate", "train/learning_rate", MetricValue::Single(|row| Some(row.learning_rate))),
    metric("train_loss", "train/loss", MetricValue::Single(|row| row.train_loss)),
    metric("train_accuracy", "train/accuracy", MetricValue::Single(|row| row.train_accuracy)),
    metric("step_norm", "train/step_norm", MetricValue::Double(|row| Some(row.step_norm))),
    metric("loss", "test/loss", MetricValue::Double(|row| row.loss)),
    metric("accuracy", "test/accuracy", MetricValue::Double(|row| row.accuracy)),
    metric("oracle_client_mean", "oracle/client_mean", MetricValue::Double(|row| row.oracle_client_mean)),
    metric(
        "oracle_client_worst_tenth",
        "oracle/client_worst_tenth",
        MetricValue::Double(|row| row.oracle_client_worst_tenth),
    ),
    metric("oracle_client_std", "oracle/client_std", MetricValue::Double(|row| row.oracle_client_std)),
    metric("oracle_hits", "oracle/hits", MetricValue::OptionalCount(|row| row.oracle_hits)),
    metric("oracle_hits_of", "oracle/hits_of", MetricValue::OptionalCount(|row| row.oracle_hits_of)),
    metric("oracle_error2", "oracle/error2", MetricValue::Double(|row| row.oracle_error2)),
    metric("oracle_sigma_p2", "oracle/sigma_p2", MetricValue::Double(|row| row.oracle_sigma_p2)),
    metric("oracle_sigma_f2", "oracle/sigma_f2", MetricValue::Double(|row| row.oracle_sigma_f2)),
    metric("oracle_bound_p2", "oracle/bound_p2", MetricValue::Double(|row| row.oracle_bound_p2)),
    metric("oracle_bound_f2", "oracle/bound_f2", MetricValue::Double(|row| row.oracle_bound_f2)),
    metric("oracle_psi", "oracle/psi", MetricValue::Double(|row| row.oracle_psi)),
    metric("elapsed_s", "spent/elapsed_s", MetricValue::Double(|row| Some(row.elapsed_s))),
    metric("virtual_s", "spent/virtual_s", MetricValue::Double(|row| Some(row.virtual_s))),
    metric("bytes_down", "spent/bytes_down", MetricValue::Count(|row| row.bytes_down)),
    metric("bytes_up", "spent/bytes_up", MetricValue::Count(|row| row.bytes_up)),
    metric("bytes_total", "spent/bytes_total", MetricValue::Count(|row| row.bytes_total)),
];

const fn metric(name: &'static str, tag: &'static str, value: MetricValue) -> Metric {
    Metric { name, tag, value }
}
