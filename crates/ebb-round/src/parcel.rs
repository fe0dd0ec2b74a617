//! What is sent: a model with named side vectors, jobs and updates.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use crate::RoundNo;
use crate::state::{Loader, Saver, StateError};

/// The name of a side vector.
pub type SideName = Cow<'static, str>;

/// A flat vector of the model's size, with the side vectors of the method.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parcel {
    /// The model, or a difference of two models.
    pub model: Vec<f32>,
    /// Control variates and the like, each of the model's length.
    pub side_vectors: BTreeMap<SideName, Vec<f32>>,
}

impl Parcel {
    /// A parcel without side vectors.
    pub fn of(model: Vec<f32>) -> Self {
        Parcel { model, side_vectors: BTreeMap::new() }
    }

    /// Its uncompressed size on the wire, in bytes.
    pub fn bytes(&self) -> u64 {
        let n_parameters = self.model.len() + self.side_vectors.values().map(Vec::len).sum::<usize>();
        4 * n_parameters as u64
    }

    /// Writes it as a section of saved state.
    pub fn save(&self, name: &str, to: &mut Saver) {
        to.section(name, |to| {
            to.f32s("model", &self.model);
            to.u64("side_vectors", self.side_vectors.len() as u64);
            for (side, values) in &self.side_vectors {
                to.bytes("side", side.as_bytes());
                to.f32s("values", values);
            }
        });
    }

    /// Reads back what [`Parcel::save`] wrote.
    pub fn load(name: &str, from: &mut Loader<'_>) -> Result<Parcel, StateError> {
        from.section(name, |from| {
            let mut parcel = Parcel::of(from.f32s("model")?);
            for _ in 0..from.u64("side_vectors")? {
                let side = from.text("side")?.to_owned();
                parcel.side_vectors.insert(Cow::Owned(side), from.f32s("values")?);
            }
            Ok(parcel)
        })
    }
}

/// The named tensors of a flat model vector, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<Tensor>,
    len: usize,
}

/// One tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, as in PyTorch.
    pub name: String,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
    /// Whether gradients move it; running statistics are only averaged.
    pub is_trained: bool,
}

impl Layout {
    /// A layout of these tensors, one after another.
    pub fn new(tensors: Vec<Tensor>) -> Self {
        let len = tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
        Layout { tensors, len }
    }

    /// The number of parameters of the model.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the model has no parameters.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The stretches of the flat vector that gradients move.
    pub fn trained_ranges(&self) -> Vec<Range<usize>> {
        let mut stretches: Vec<Range<usize>> = Vec::new();
        for (_, range) in self.tensors().filter(|(tensor, _)| tensor.is_trained) {
            match stretches.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => stretches.push(range),
            }
        }
        stretches
    }

    /// Each tensor with its range in the flat vector.
    pub fn tensors(&self) -> impl Iterator<Item = (&Tensor, Range<usize>)> {
        let mut start = 0;
        self.tensors.iter().map(move |tensor| {
            let range = start..start + tensor.shape.iter().product::<usize>();
            start = range.end;
            (tensor, range)
        })
    }
}

/// The amount of local work that a job requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Steps or passes over the client's data.
    pub amount: Amount,
    /// Samples a step; `None`: all samples of the client.
    pub batch_size: Option<NonZeroU32>,
}

/// The amount of local work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number of mini-batches.
    Steps(NonZeroU32),
    /// A number of passes over the client's data.
    Epochs(NonZeroU32),
}

impl Work {
    /// This multiple of the work.
    #[must_use]
    pub fn times(self, times: NonZeroU32) -> Work {
        let amount = match self.amount {
            Amount::Steps(steps) => Amount::Steps(steps.saturating_mul(times)),
            Amount::Epochs(epochs) => Amount::Epochs(epochs.saturating_mul(times)),
        };
        Work { amount, ..self }
    }

    /// The work in steps, for a client with this number of samples.
    pub fn steps(&self, samples: u32) -> NonZeroU32 {
        match self.amount {
            Amount::Steps(steps) => steps,
            Amount::Epochs(epochs) => {
                let batch = self.batch_size.map_or(samples.max(1), NonZeroU32::get);
                let steps = samples.max(1).div_ceil(batch).saturating_mul(epochs.get());
                NonZeroU32::new(steps).expect("at least one sample, so at least one step")
            }
        }
    }
}

/// What the selected clients of a round are asked to do.
#[derive(Clone, Debug)]
pub struct Job {
    /// The round it belongs to.
    pub round: RoundNo,
    /// The model to start from, and side vectors.
    pub global: Arc<Parcel>,
    /// The learning rate.
    pub learning_rate: f32,
    /// The requested work.
    pub work: Work,
}

/// The result of a client's local training.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The change of the model and of side vectors; empty once the update was folded into the round's sum.
    pub delta: Parcel,
    /// The round of its job.
    pub base_round: RoundNo,
    /// The learning rate of its job.
    pub learning_rate: f32,
    /// Completed steps.
    pub steps: NonZeroU32,
    /// Requested steps.
    pub steps_requested: NonZeroU32,
    /// Number of samples the client trained on.
    pub samples: u32,
    /// Mean training loss over its steps.
    pub loss: f32,
    /// The fall of its training loss: the mean over the first tenth of its steps minus that over the last
    /// tenth.
    pub loss_fall: f32,
    /// Mean training accuracy over its steps, where there are labels.
    pub accuracy: Option<f32>,
}

impl Update {
    /// Whether all of the work was done.
    pub fn is_whole(&self) -> bool {
        self.steps >= self.steps_requested
    }

    /// The completed fraction of the work.
    pub fn completed_fraction(&self) -> f64 {
        f64::from(self.steps.get()) / f64::from(self.steps_requested.get())
    }

    /// Writes it as a section of saved state.
    pub fn save(&self, name: &str, to: &mut Saver) {
        to.section(name, |to| {
            self.delta.save("delta", to);
            to.u64("base", u64::from(self.base_round));
            to.f64("rate", f64::from(self.learning_rate));
            to.u64("steps", u64::from(self.steps.get()));
            to.u64("steps_asked", u64::from(self.steps_requested.get()));
            to.u64("samples", u64::from(self.samples));
            to.f64("loss", f64::from(self.loss));
            to.f64("loss_fall", f64::from(self.loss_fall));
            to.f64("accuracy", self.accuracy.map_or(f64::NAN, f64::from));
        });
    }

    /// Reads back what [`Update::save`] wrote.
    pub fn load(name: &str, from: &mut Loader<'_>) -> Result<Update, StateError> {
        from.section(name, |from| {
            let delta = Parcel::load("delta", from)?;
            let base = from.u32("base")?;
            let learning_rate = from.f64("rate")? as f32;
            let mut steps = |field| {
                let steps = from.u32(field)?;
                NonZeroU32::new(steps).ok_or_else(|| from.error(field, "must not be 0"))
            };
            let (steps, steps_requested) = (steps("steps")?, steps("steps_asked")?);
            let samples = from.u32("samples")?;
            let loss = from.f64("loss")? as f32;
            let loss_fall = from.f64("loss_fall")? as f32;
            let accuracy = Some(from.f64("accuracy")? as f32).filter(|accuracy| !accuracy.is_nan());
            Ok(Update {
                delta,
                base_round: base,
                learning_rate,
                steps,
                steps_requested,
                samples,
                loss,
                loss_fall,
                accuracy,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_become_steps_with_a_last_short_batch() {
        let some = |n| NonZeroU32::new(n).unwrap();
        let work = Work { amount: Amount::Epochs(some(3)), batch_size: Some(some(20)) };
        assert_eq!(work.steps(45).get(), 9);
        assert_eq!(work.steps(0).get(), 3);
        assert_eq!(Work { batch_size: None, ..work }.steps(45).get(), 3);
        assert_eq!(Work { amount: Amount::Steps(some(7)), ..work }.steps(45).get(), 7);
    }

    #[test]
    fn a_layout_lays_its_tensors_one_after_another() {
        let tensor =
            |name: &str, shape: &[usize]| Tensor { name: name.into(), shape: shape.into(), is_trained: true };
        let layout = Layout::new(vec![tensor("weight", &[10, 60]), tensor("bias", &[10])]);
        assert_eq!(layout.len(), 610);
        assert_eq!(layout.tensors().map(|(_, range)| range).collect::<Vec<_>>(), [0..600, 600..610]);
        let carried = |name: &str| Tensor { is_trained: false, ..tensor(name, &[3]) };
        let tensors =
            vec![carried("a"), tensor("b", &[2]), tensor("c", &[4]), carried("d"), tensor("e", &[1])];
        assert_eq!(Layout::new(tensors).trained_ranges(), [3..9, 12..13]);
    }
}
