//! The `[guard]` table: when a round is void, and when void rounds stop a run.

use std::num::NonZeroU32;

use ebb_round::guard::GuardLimits;
use ebb_settings::{BuildContext, Origin, Positive, Probability, Tree};
use serde::{Deserialize, Serialize};

use crate::CliError;

/// The `[guard]` table. A served run has one unless it has `off = true`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct GuardTable {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    off: bool,
    times: Option<Positive>,
    accuracy_drop: Option<Probability>,
    max_void: Option<NonZeroU32>,
    reported_quantile: Option<Probability>,
}

/// The table as the user writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// No round is ever void.
    #[serde(default)]
    off: bool,
    /// A step longer than this many times the median of recent steps voids the round.
    times: Option<Positive>,
    /// Losing this share of the last accuracy voids the round.
    accuracy_drop: Option<Probability>,
    /// The run stops after this many void rounds in a row.
    max_void: Option<NonZeroU32>,
    /// Reported losses above this quantile of the round's losses count as it, and so do times below its
    /// counterpart.
    reported_quantile: Option<Probability>,
}

impl TryFrom<Written> for GuardTable {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<GuardTable, &'static str> {
        let Written { off, times, accuracy_drop, max_void, reported_quantile } = written;
        if off {
            let others =
                [times.is_some(), accuracy_drop.is_some(), max_void.is_some(), reported_quantile.is_some()];
            if others.contains(&true) {
                return Err("off = true excludes the other keys; leave out either off or these keys");
            }
            return Ok(GuardTable { off, times, accuracy_drop, max_void, reported_quantile });
        }
        Ok(GuardTable {
            off,
            times: times.or(Positive::new(TIMES)),
            accuracy_drop: accuracy_drop.or(Probability::new(ACCURACY_DROP)),
            max_void: max_void.or(NonZeroU32::new(MAX_VOID)),
            reported_quantile: reported_quantile.or(Probability::new(REPORTED_QUANTILE)),
        })
    }
}

/// How many times as long as usual a step or an update of a served run may be.
const TIMES: f64 = 10.0;

/// The share of the last accuracy that a round may lose.
const ACCURACY_DROP: f64 = 0.75;

/// A run stops after this many void rounds in a row.
const MAX_VOID: u32 = 5;

/// Losses above this quantile of a round's losses count as it, and so do times below its counterpart.
const REPORTED_QUANTILE: f64 = 0.75;

/// A client counts for at most this many times the median number of samples. Honest fleets are skewed: the
/// largest of a hundred SYNTHETIC clients has about eighty times the median.
const MAX_SAMPLES_TIMES: f64 = 100.0;

/// When a round is void, after how many void rounds the run stops, and how far reported values are trusted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GuardSettings {
    pub(crate) limits: Option<GuardLimits>,
    pub(crate) max_void: Option<NonZeroU32>,
    pub(crate) reported_quantile: Option<f64>,
}

impl GuardSettings {
    /// Reads the table; without one, nothing is guarded.
    pub(crate) fn read(tree: &Tree, context: BuildContext) -> Result<GuardSettings, CliError> {
        if !tree.has("guard") {
            return Ok(GuardSettings::default());
        }
        let table: GuardTable = tree.table("guard", context).parse()?;
        let limits = GuardLimits {
            median_multiple: table.times.map(Positive::get),
            accuracy_drop: table.accuracy_drop.map(Probability::get),
        };
        let reported_quantile = table.reported_quantile.map(Probability::get);
        Ok(GuardSettings {
            limits: (!table.off).then_some(limits),
            max_void: table.max_void,
            reported_quantile,
        })
    }
}

/// Whether defaults that protect a served run are added to its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Add them where the settings give nothing else.
    ByDefault,
    /// Leave the settings as they are, because the run began with them.
    AsWritten,
}

/// Adds the defaults that protect a served run: a guard, bounds on update norms and reported samples, and
/// cohorts that nobody can predict.
pub(crate) fn protect(tree: &mut Tree) {
    let by_default = || Origin::Flag("the defaults of a served run".to_owned());
    if !["max_samples", "max_samples_times", "unbounded_samples"]
        .iter()
        .any(|key| tree.has(&format!("serve.{key}")))
    {
        tree.set_value("serve.max_samples_times", MAX_SAMPLES_TIMES, by_default());
    }
    if !tree.has("run.draws_by") {
        tree.set_value("run.draws_by", "key", by_default());
    }
    if !tree.has("guard") {
        tree.set_value("guard.times", TIMES, by_default());
    }
    if !tree.has("clip") {
        tree.set_value("clip.times", TIMES, by_default());
    }
}
