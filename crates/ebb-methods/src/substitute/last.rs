//! An absent client's last update, or its last model, stands in for it.
//!
//! "Stale" of FL-FDMS (Wang and Xu): the text repeats the last update, the authors' program the last model,
//! which pulls the global model back to its earlier state. With server learning rate 1 and a constant local
//! learning rate the first is MIFA without waiting.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebb_round::{
    ClientId, Contribution, Loader, Parcel, Responses, Retention, Round, Saver, State, StateError,
    Substitution, Update, vectors,
};
use ebb_settings::Entry;
use serde::{Deserialize, Serialize};

use super::Cover;

/// The registry entry for updates.
pub const UPDATE: Entry<dyn Substitution> = Entry {
    name: "last-update",
    about: "the client's own last update, however old; a client without one counts as the aggregator treats absent clients",
    example: "cover = \"objective\"         # or asked",
    build: |settings| {
        Ok(Box::new(Last { settings: settings.parse()?, kind: Kind::Update, of: BTreeMap::new() }))
    },
};

/// The registry entry for models.
pub const MODEL: Entry<dyn Substitution> = Entry {
    name: "last-model",
    about: "the client's own last model, however old; a client without one counts as the aggregator treats absent clients",
    example: "cover = \"objective\"         # or asked",
    build: |settings| {
        Ok(Box::new(Last { settings: settings.parse()?, kind: Kind::Model, of: BTreeMap::new() }))
    },
};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    cover: Cover,
}

/// What stands in for an absent client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Update,
    Model,
}

#[derive(Debug)]
struct Last {
    settings: Settings,
    kind: Kind,
    of: BTreeMap<ClientId, Arc<Update>>,
}

impl Substitution for Last {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn stand_ins(&mut self, round: &Round<'_>, responses: &Responses) -> Vec<Contribution> {
        let enrolled = round.census.enrolled();
        self.of.retain(|client, _| enrolled.get(client.idx()));
        if self.kind == Kind::Update {
            // A late update is newer than the one stored before its round. Of a late model only the
            // difference arrives.
            for client_update in
                responses.late.iter().filter(|client_update| enrolled.get(client_update.client.idx()))
            {
                if self
                    .of
                    .get(&client_update.client)
                    .is_none_or(|kept| kept.base_round < client_update.update.base_round)
                {
                    self.of.insert(client_update.client, without_side(&client_update.update));
                }
            }
        }
        let absent = self.settings.cover.missing(round, responses);
        let stand_ins =
            absent.into_iter().filter_map(|client| Some(self.stand_in(round, client, self.of.get(&client)?)));
        let stand_ins = stand_ins.collect();
        for client_update in &responses.fresh {
            let kept = match self.kind {
                Kind::Update => without_side(&client_update.update),
                Kind::Model => {
                    let model =
                        vectors::add_scaled(&round.global.model, 1.0, &client_update.update.delta.model);
                    Arc::new(with_model(&client_update.update, model))
                }
            };
            self.of.insert(client_update.client, kept);
        }
        stand_ins
    }
}

impl Last {
    fn stand_in(&self, round: &Round<'_>, client: ClientId, kept: &Arc<Update>) -> Contribution {
        let update = match self.kind {
            Kind::Update => Arc::clone(kept),
            Kind::Model => {
                let delta = vectors::add_scaled(&kept.delta.model, -1.0, &round.global.model);
                Arc::new(with_model(kept, delta))
            }
        };
        let age = round.number - kept.base_round;
        Contribution {
            client,
            source: Some(client),
            age,
            inclusion_probability: None,
            fraction: 1.0,
            similarity: None,
            update,
        }
    }
}

/// The update without side vectors, which are not used later.
fn without_side(update: &Arc<Update>) -> Arc<Update> {
    if update.delta.side_vectors.is_empty() {
        return Arc::clone(update);
    }
    Arc::new(with_model(update, update.delta.model.clone()))
}

/// The update with another vector.
fn with_model(update: &Update, model: Vec<f32>) -> Update {
    Update { delta: Parcel::of(model), ..*update }
}

impl State for Last {
    fn save(&self, to: &mut Saver) {
        to.u64("clients", self.of.len() as u64);
        for (client, update) in &self.of {
            to.u64("client", u64::from(client.number()));
            update.save("update", to);
        }
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.of.clear();
        for _ in 0..from.u64("clients")? {
            let client = ClientId::new(from.u32("client")? as usize);
            self.of.insert(client, Arc::new(Update::load("update", from)?));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, client_update, responses};

    fn new(what: Kind) -> Last {
        Last { settings: Settings { cover: Cover::Objective }, kind: what, of: BTreeMap::new() }
    }

    /// Plays rounds of updates (client, value) on a model that stays 0; returns the last round's stand-ins.
    fn play(last: &mut Last, world: &World, rounds: &[&[(usize, f32)]]) -> Vec<(usize, u32, f32)> {
        let mut stand_ins = Vec::new();
        for (number, client_updates) in (0..).zip(rounds) {
            stand_ins = last.stand_ins(&world.round(number), &responses(world, number, client_updates));
        }
        stand_ins.iter().map(|one| (one.client.idx(), one.age, one.update.delta.model[0])).collect()
    }

    #[test]
    fn absent_clients_repeat_their_last_update() {
        let world = World::of(3);
        let rounds: [&[(usize, f32)]; 4] = [&[(0, 1.0), (1, 2.0)], &[(1, 3.0)], &[], &[(0, 5.0)]];
        let found = play(&mut new(Kind::Update), &world, &rounds);
        assert_eq!(found, [(1, 2, 3.0)], "client 2 never returned an update");
        assert_eq!(play(&mut new(Kind::Update), &world, &rounds[..3]), [(0, 2, 1.0), (1, 1, 3.0)]);
    }

    #[test]
    fn a_repeated_model_is_the_difference_to_it() {
        let mut world = World::of(2);
        let mut last = new(Kind::Model);
        last.stand_ins(&world.round(0), &responses(&world, 0, &[(0, 1.0), (1, -4.0)]));
        world.set_model(&[10.0]);
        let found = last.stand_ins(&world.round(1), &responses(&world, 1, &[(0, 1.0)]));
        assert_eq!((found[0].client.idx(), found[0].update.delta.model[0]), (1, -14.0));
    }

    #[test]
    fn a_late_update_is_used_from_the_round_of_its_arrival() {
        let world = World::of(2);
        let mut last = new(Kind::Update);
        play(&mut last, &world, &[&[(0, 1.0), (1, 2.0)], &[(0, 1.0)]]);
        let mut late = responses(&world, 2, &[(0, 1.0)]);
        late.late.push(client_update(1, 1, 7.0));
        let found = last.stand_ins(&world.round(2), &late);
        assert_eq!((found[0].age, found[0].update.delta.model[0]), (1, 7.0));
        // A late update that is older than the stored one is ignored.
        last.stand_ins(&world.round(3), &responses(&world, 3, &[(1, 9.0)]));
        let mut late = responses(&world, 4, &[(0, 1.0)]);
        late.late.push(client_update(1, 2, 7.0));
        assert_eq!(last.stand_ins(&world.round(4), &late)[0].update.delta.model[0], 9.0);
    }

    #[test]
    fn departed_clients_are_dropped() {
        let mut world = World::of(2);
        let mut last = new(Kind::Update);
        play(&mut last, &world, &[&[(0, 1.0), (1, 2.0)]]);
        world.leave(1);
        assert!(last.stand_ins(&world.round(1), &responses(&world, 1, &[(0, 1.0)])).is_empty());
        assert_eq!(last.of.len(), 1);
    }
}
