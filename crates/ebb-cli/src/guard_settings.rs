//! The `[guard]` table: when a round is void, and when a run stops for it.

use std::num::NonZeroU32;

use ebb_round::guard::GuardLimits;
use ebb_settings::{BuildContext, Origin, Positive, Probability, Tree};
use serde::{Deserialize, Serialize};

use crate::CliError;

/// The `[guard]` table. A served run has one unless it says `off = true`.
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

/// The same as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// No round is ever void.
    #[serde(default)]
    off: bool,
    /// A step so many times longer than the median of the last steps voids the round.
    times: Option<Positive>,
    /// The loss of so much of the last accuracy voids the round.
    accuracy_drop: Option<Probability>,
    /// After so many void rounds in a row the run stops.
    max_void: Option<NonZeroU32>,
    /// Selectors take no stated loss for larger, and no stated time for shorter, than this quantile of the
    /// round's own.
    reported_quantile: Option<Probability>,
}

impl TryFrom<Written> for GuardTable {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<GuardTable, &'static str> {
        let Written { off, times, accuracy_drop, max_void: most_void, reported_quantile: stated_quantile } =
            written;
        if off {
            let others =
                [times.is_some(), accuracy_drop.is_some(), most_void.is_some(), stated_quantile.is_some()];
            if others.contains(&true) {
                return Err("off = true leaves nothing to the other keys; leave out them or it");
            }
            return Ok(GuardTable {
                off,
                times,
                accuracy_drop,
                max_void: most_void,
                reported_quantile: stated_quantile,
            });
        }
        Ok(GuardTable {
            off,
            times: times.or(Positive::new(TIMES)),
            accuracy_drop: accuracy_drop.or(Probability::new(ACCURACY_DROP)),
            max_void: most_void.or(NonZeroU32::new(MOST_VOID)),
            reported_quantile: stated_quantile.or(Probability::new(REPORTED_QUANTILE)),
        })
    }
}

/// How much longer than usual a step or an update of a served run may be.
const TIMES: f64 = 10.0;

/// What part of the last accuracy a round may lose.
const ACCURACY_DROP: f64 = 0.75;

/// So many void rounds in a row stop a run.
const MOST_VOID: u32 = 5;

/// Losses above this quantile of a round's losses count as it, and so do times below its counterpart.
const REPORTED_QUANTILE: f64 = 0.75;

/// A client counts for at most so many times the samples that clients usually have. Honest fleets are skewed:
/// of a hundred clients of SYNTHETIC the largest has some eighty times the median.
const MAX_SAMPLES_TIMES: f64 = 100.0;

/// When a round is void, after how many in a row the run stops, and what clients are believed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GuardSettings {
    pub(crate) limits: Option<GuardLimits>,
    pub(crate) most_void: Option<NonZeroU32>,
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
            most_void: table.max_void,
            reported_quantile,
        })
    }
}

/// Whether the settings of a served run are completed by what protects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Where they say nothing else.
    ByDefault,
    /// They stay as they are: the run was begun with them.
    AsWritten,
}

/// What protects a served run unless its settings say otherwise: a guard, bounds on the length of updates and
/// on stated samples, and cohorts that nobody can compute ahead.
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
