//! A model of zeros stands in for every absent client and pulls the global model to zero, as in a benchmark
//! of FL-FDMS's authors. For an *update* of zero, use the aggregator `share` and no substitution.

use std::sync::Arc;

use ebb_round::{Contribution, Responses, Retention, Round, Substitution, stateless};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::{Cover, mean_stand_in, synthetic_update};

/// The registry entry.
pub const ENTRY: Entry<dyn Substitution> = Entry {
    name: "zero-model",
    about: "a model of zeros, which pulls the global model towards zero",
    example: "cover = \"objective\"         # or asked",
    build: |settings| Ok(Box::new(settings.parse::<ZeroModel>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ZeroModel {
    #[serde(default)]
    cover: Cover,
}

impl Substitution for ZeroModel {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn stand_ins(&mut self, round: &Round<'_>, responses: &Responses) -> Vec<Contribution> {
        // A round without updates is skipped, because it would set the model to zero.
        let Some(first) = responses.fresh.first() else { return Vec::new() };
        let back = round.global.model.iter().map(|&value| -value).collect();
        let update = Arc::new(synthetic_update(back, &first.update));
        self.cover
            .missing(round, responses)
            .into_iter()
            .map(|client| mean_stand_in(client, &update))
            .collect()
    }
}

stateless!(ZeroModel);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, responses};

    #[test]
    fn absent_clients_pull_the_model_to_zero() {
        let mut world = World::of(3);
        world.set_model(&[4.0]);
        let mut zero = ZeroModel { cover: Cover::Objective };
        let found = zero.stand_ins(&world.round(0), &responses(&world, 0, &[(1, 1.0)]));
        let found: Vec<_> = found.iter().map(|one| (one.client.idx(), one.update.delta.model[0])).collect();
        assert_eq!(found, [(0, -4.0), (2, -4.0)]);
        // A stand-in counts as whole work, even if the only update is partial.
        let mut half = responses(&world, 0, &[(1, 1.0)]);
        Arc::make_mut(&mut half.fresh[0].update).steps_requested = std::num::NonZeroU32::new(10).unwrap();
        let found = zero.stand_ins(&world.round(0), &half);
        assert!(found.iter().all(|one| one.update.is_whole()) && !half.fresh[0].update.is_whole());
        assert!(zero.stand_ins(&world.round(1), &responses(&world, 1, &[])).is_empty());
    }
}
