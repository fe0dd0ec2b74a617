//! From a set of samples to a task: split among clients as `[data.split]` and `[data.sizes]` say.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::Stream;
use ebb_settings::{Settings, SettingsError};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{LabelledTask, Partition, Samples};
use crate::net::{self, Input};
use crate::split;

/// A table within `[data]` that the split parses; other parsers allow and ignore it.
pub(super) type ReadBySplit = Option<IgnoredAny>;

/// The keys of `[data]` that control how samples are split.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartitionSettings {
    pub(super) clients: NonZeroU32,
    pub(super) samples: Option<NonZeroU32>,
    pub(super) test_samples: Option<NonZeroU32>,
    pub(super) test_on: TestOn,
    pub(super) seed: Option<u64>,
}

/// The pooled test data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TestOn {
    /// The test set as published.
    #[default]
    TestSet,
    /// The samples that the clients hold out.
    HeldOut,
}

impl TestOn {
    pub(super) fn is_default(&self) -> bool {
        *self == TestOn::default()
    }
}

/// Samples to split, and the model to train on them.
pub(super) struct TrainAndTest {
    pub(super) train: Arc<Samples>,
    pub(super) test: Arc<Samples>,
    pub(super) n_classes: usize,
    pub(super) input: Input,
    pub(super) default_model: &'static str,
}

impl PartitionSettings {
    /// The task of training on these samples.
    pub(super) fn build_task(
        &self,
        settings: &Settings<'_>,
        pools: TrainAndTest,
    ) -> Result<LabelledTask, SettingsError> {
        let pooled = self.test_on == TestOn::HeldOut;
        if pooled && self.test_samples.is_some() {
            let message = "models are evaluated on the clients' held-out samples; leave out this or test_on";
            return Err(settings.error("test_samples", message));
        }
        let TrainAndTest { train, test, n_classes, input, default_model } = pools;
        let context = settings.context();
        let (seed, n_clients) = (self.seed.unwrap_or(context.seed), self.clients.get() as usize);
        let labels: Vec<u32> = (0..train.len() as u32).map(|sample| train.label(sample)).collect();
        let split = split::split_samples(settings, self.samples, &labels, n_classes, n_clients, seed)?;
        let holds_out = split.held_out.iter().any(|list| !list.is_empty());
        if pooled && !holds_out {
            return Err(settings.error("test_on", "no client holds out samples; set data.split.held_out"));
        }
        let net = net::build(&settings.at_path("model"), input, n_classes, default_model)?;
        let (test_samples, indices) = if pooled {
            (Arc::clone(&train), split.held_out.concat())
        } else {
            let indices = self.draw_test_samples(settings, test.len(), seed)?;
            (test, indices)
        };
        let own = if holds_out {
            Partition { samples: Arc::clone(&train), by_client: split.held_out }
        } else {
            Partition { samples: Arc::clone(&test_samples), by_client: Vec::new() }
        };
        let train = Partition { samples: train, by_client: split.train };
        let task = LabelledTask::new(net, context.seed, train, own, split.clusters);
        Ok(task.with_test_set(test_samples, indices).with_remarks(split.remarks))
    }

    /// A random subset of the test samples, for some sets are sorted.
    fn draw_test_samples(
        &self,
        settings: &Settings<'_>,
        n_available: usize,
        seed: u64,
    ) -> Result<Vec<u32>, SettingsError> {
        let n_requested = self.test_samples.map_or(n_available, |count| count.get() as usize);
        if n_requested > n_available {
            return Err(settings.error("test_samples", format!("there are {n_available}; give at most that")));
        }
        let drawn = Stream::of_run(seed, "test samples").distinct(n_available, n_requested);
        Ok(drawn.into_iter().map(|sample| sample as u32).collect())
    }
}
