//! Converts wire types to those of the round and back. Only the client's checks of its server's messages know
//! both, too.

use std::num::NonZeroU32;

use ebb_round::{Amount, Layout, Tensor, Work};

use crate::coordinator::Capabilities;
use crate::pack::{ElementType, Packing};
use crate::wire;

/// The largest number of parameters of a model, which take 64 GiB.
const MAX_PARAMS: u64 = 1 << 34;

pub(crate) fn from_wire_capabilities(message: &wire::Abilities) -> Capabilities {
    let &wire::Abilities { partial, sides, own_start, probe, evaluate } = message;
    Capabilities { partial, side_vectors: sides, own_start, probe, evaluate }
}

pub(crate) fn to_wire_capabilities(capabilities: Capabilities) -> wire::Abilities {
    let Capabilities { partial, side_vectors: sides, own_start, probe, evaluate } = capabilities;
    wire::Abilities { partial, sides, own_start, probe, evaluate }
}

pub(crate) fn to_wire_packing(packing: Packing) -> wire::Packing {
    let number = match packing.element_type {
        ElementType::F32 => wire::Number::F32,
        ElementType::F16 => wire::Number::F16,
    };
    wire::Packing { number: number.into(), zstd: packing.zstd }
}

/// `None` if there is no such element type.
pub(crate) fn from_wire_packing(message: wire::Packing) -> Option<Packing> {
    let number = match wire::Number::try_from(message.number).ok()? {
        wire::Number::F32 => ElementType::F32,
        wire::Number::F16 => ElementType::F16,
    };
    Some(Packing { element_type: number, zstd: message.zstd })
}

pub(crate) fn to_wire_layout(layout: &Layout) -> Vec<wire::Tensor> {
    let side = |&side: &usize| u32::try_from(side).expect("no side of a tensor is longer than 2^32");
    let to_wire = |tensor: &Tensor| wire::Tensor {
        name: tensor.name.clone(),
        shape: tensor.shape.iter().map(side).collect(),
        trained: tensor.is_trained,
    };
    layout.tensors().map(|(tensor, _)| to_wire(tensor)).collect()
}

/// `None` if no model can be that large.
pub(crate) fn from_wire_layout(message: &[wire::Tensor]) -> Option<Layout> {
    let mut most = MAX_PARAMS;
    for tensor in message {
        let n_elements = tensor.shape.iter().try_fold(1u64, |all, &side| all.checked_mul(u64::from(side)))?;
        most = most.checked_sub(n_elements)?;
    }
    let tensor = |tensor: &wire::Tensor| Tensor {
        name: tensor.name.clone(),
        shape: tensor.shape.iter().map(|&side| side as usize).collect(),
        is_trained: tensor.trained,
    };
    Some(Layout::new(message.iter().map(tensor).collect()))
}

pub(crate) fn to_wire_work(work: Work) -> wire::Work {
    let amount = match work.amount {
        Amount::Steps(steps) => wire::work::Amount::Steps(steps.get()),
        Amount::Epochs(epochs) => wire::work::Amount::Epochs(epochs.get()),
    };
    wire::Work { amount: Some(amount), batch: work.batch_size.map(NonZeroU32::get) }
}

/// `None` if there is no work, or the batch size is 0.
pub(crate) fn from_wire_work(message: &wire::Work) -> Option<Work> {
    let amount = match message.amount? {
        wire::work::Amount::Steps(steps) => Amount::Steps(NonZeroU32::new(steps)?),
        wire::work::Amount::Epochs(epochs) => Amount::Epochs(NonZeroU32::new(epochs)?),
    };
    let batch = message.batch.map_or(Some(None), |batch| NonZeroU32::new(batch).map(Some))?;
    Some(Work { amount, batch_size: batch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_round_trip() {
        let tensor = |name: &str, shape: &[usize], trained| Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            is_trained: trained,
        };
        let of = Layout::new(vec![
            tensor("conv.weight", &[4, 1, 3, 3], true),
            tensor("bn.running_mean", &[4], false),
            tensor("scale", &[], true),
        ]);
        assert_eq!(from_wire_layout(&to_wire_layout(&of)), Some(of));
    }

    #[test]
    fn a_layout_that_exceeds_all_memory_is_refused() {
        let tensor =
            |shape: &[u32]| wire::Tensor { name: "w".to_owned(), shape: shape.to_vec(), trained: true };
        assert!(from_wire_layout(&[tensor(&[1 << 17, 1 << 17])]).is_some());
        assert_eq!(from_wire_layout(&[tensor(&[1 << 17, 1 << 17]), tensor(&[1])]), None);
        assert_eq!(from_wire_layout(&[tensor(&[u32::MAX, u32::MAX, u32::MAX])]), None);
    }
}
