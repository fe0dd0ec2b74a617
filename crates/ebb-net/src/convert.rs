//! Wire types to the round's vocabulary and back; only a client's checks of what its server says know both,
//! too.

use std::num::NonZeroU32;

use ebb_round::{Amount, Layout, Tensor, Work};

use crate::coordinator::Capabilities;
use crate::pack::{ElementType, Packing};
use crate::wire;

/// No model has more numbers than this: that many are 64 GiB.
const MAX_PARAMS: u64 = 1 << 34;

pub(crate) fn from_wire_capabilities(said: &wire::Abilities) -> Capabilities {
    let &wire::Abilities { partial, sides, own_start, probe, evaluate } = said;
    Capabilities { partial, side_vectors: sides, own_start, probe, evaluate }
}

pub(crate) fn to_wire_capabilities(abilities: Capabilities) -> wire::Abilities {
    let Capabilities { partial, side_vectors: sides, own_start, probe, evaluate } = abilities;
    wire::Abilities { partial, sides, own_start, probe, evaluate }
}

pub(crate) fn to_wire_packing(packing: Packing) -> wire::Packing {
    let number = match packing.element_type {
        ElementType::F32 => wire::Number::F32,
        ElementType::F16 => wire::Number::F16,
    };
    wire::Packing { number: number.into(), zstd: packing.zstd }
}

/// `None` if there is no such number.
pub(crate) fn from_wire_packing(said: wire::Packing) -> Option<Packing> {
    let number = match wire::Number::try_from(said.number).ok()? {
        wire::Number::F32 => ElementType::F32,
        wire::Number::F16 => ElementType::F16,
    };
    Some(Packing { element_type: number, zstd: said.zstd })
}

pub(crate) fn to_wire_layout(layout: &Layout) -> Vec<wire::Tensor> {
    let side = |&side: &usize| u32::try_from(side).expect("no side of a tensor is longer than 2^32");
    let tensor = |piece: &Tensor| wire::Tensor {
        name: piece.name.clone(),
        shape: piece.shape.iter().map(side).collect(),
        trained: piece.is_trained,
    };
    layout.tensors().map(|(piece, _)| tensor(piece)).collect()
}

/// `None` if no model can be as large as that.
pub(crate) fn from_wire_layout(said: &[wire::Tensor]) -> Option<Layout> {
    let mut most = MAX_PARAMS;
    for tensor in said {
        let numbers = tensor.shape.iter().try_fold(1u64, |all, &side| all.checked_mul(u64::from(side)))?;
        most = most.checked_sub(numbers)?;
    }
    let piece = |tensor: &wire::Tensor| Tensor {
        name: tensor.name.clone(),
        shape: tensor.shape.iter().map(|&side| side as usize).collect(),
        is_trained: tensor.trained,
    };
    Some(Layout::new(said.iter().map(piece).collect()))
}

pub(crate) fn to_wire_work(work: Work) -> wire::Work {
    let amount = match work.amount {
        Amount::Steps(steps) => wire::work::Amount::Steps(steps.get()),
        Amount::Epochs(epochs) => wire::work::Amount::Epochs(epochs.get()),
    };
    wire::Work { amount: Some(amount), batch: work.batch_size.map(NonZeroU32::get) }
}

/// `None` if it makes no sense: no work, or a batch of nothing.
pub(crate) fn from_wire_work(said: &wire::Work) -> Option<Work> {
    let amount = match said.amount? {
        wire::work::Amount::Steps(steps) => Amount::Steps(NonZeroU32::new(steps)?),
        wire::work::Amount::Epochs(epochs) => Amount::Epochs(NonZeroU32::new(epochs)?),
    };
    let batch = said.batch.map_or(Some(None), |batch| NonZeroU32::new(batch).map(Some))?;
    Some(Work { amount, batch_size: batch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_comes_back_as_it_was() {
        let piece = |name: &str, shape: &[usize], trained| Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            is_trained: trained,
        };
        let of = Layout::new(vec![
            piece("conv.weight", &[4, 1, 3, 3], true),
            piece("bn.running_mean", &[4], false),
            piece("scale", &[], true),
        ]);
        assert_eq!(from_wire_layout(&to_wire_layout(&of)), Some(of));
    }

    #[test]
    fn a_layout_beyond_all_memory_is_none() {
        let tensor =
            |shape: &[u32]| wire::Tensor { name: "w".to_owned(), shape: shape.to_vec(), trained: true };
        assert!(from_wire_layout(&[tensor(&[1 << 17, 1 << 17])]).is_some());
        assert_eq!(from_wire_layout(&[tensor(&[1 << 17, 1 << 17]), tensor(&[1])]), None);
        assert_eq!(from_wire_layout(&[tensor(&[u32::MAX, u32::MAX, u32::MAX])]), None);
    }
}
