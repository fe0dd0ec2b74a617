//! Wire types to the round's vocabulary and back; nothing else knows both.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{Amount, Job, Parcel, Work};

use crate::desk::Abilities;
use crate::pack::{Number, Packing};
use crate::wire;

pub(crate) fn abilities(said: &wire::Abilities) -> Abilities {
    let &wire::Abilities { partial, sides, own_start, probe, evaluate } = said;
    Abilities { partial, sides, own_start, probe, evaluate }
}

pub(crate) fn say_abilities(abilities: Abilities) -> wire::Abilities {
    let Abilities { partial, sides, own_start, probe, evaluate } = abilities;
    wire::Abilities { partial, sides, own_start, probe, evaluate }
}

pub(crate) fn packing(packing: Packing) -> wire::Packing {
    let number = match packing.number {
        Number::F32 => wire::Number::F32,
        Number::F16 => wire::Number::F16,
    };
    wire::Packing { number: number.into(), zstd: packing.zstd }
}

pub(crate) fn read_packing(said: Option<&wire::Packing>) -> Packing {
    let number = match said.map(wire::Packing::number) {
        Some(wire::Number::F16) => Number::F16,
        _ => Number::F32,
    };
    Packing { number, zstd: said.is_some_and(|said| said.zstd) }
}

pub(crate) fn say_work(work: Work) -> wire::Work {
    let amount = match work.amount {
        Amount::Steps(steps) => wire::work::Amount::Steps(steps.get()),
        Amount::Epochs(epochs) => wire::work::Amount::Epochs(epochs.get()),
    };
    wire::Work { amount: Some(amount), batch: work.batch.map(NonZeroU32::get) }
}

/// `None` if it makes no sense: no work, or a batch of nothing.
fn work(said: &wire::Work) -> Option<Work> {
    let amount = match said.amount? {
        wire::work::Amount::Steps(steps) => Amount::Steps(NonZeroU32::new(steps)?),
        wire::work::Amount::Epochs(epochs) => Amount::Epochs(NonZeroU32::new(epochs)?),
    };
    let batch = said.batch.map_or(Some(None), |batch| NonZeroU32::new(batch).map(Some))?;
    Some(Work { amount, batch })
}

/// The job, with its model; `None` if it makes no sense.
pub(crate) fn job(said: &wire::Job, global: Arc<Parcel>) -> Option<Job> {
    Some(Job { round: said.round, global, rate: said.rate, work: work(said.work.as_ref()?)? })
}

/// The job that a probe asks about.
pub(crate) fn probed(said: &wire::Probe, global: Arc<Parcel>) -> Option<Job> {
    Some(Job { round: said.round, global, rate: 0.0, work: work(said.work.as_ref()?)? })
}
