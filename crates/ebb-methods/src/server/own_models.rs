//! The models that clients keep while absent: each has the one it received after its last update.
//!
//! The server made these models, so it knows them, and sends each client its own with the next job. Clients
//! with updates in the same round share a model, so there are at most as many as clients, and as rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{ClientId, Loader, Parcel, Round, RoundNo, Saver, State, StateError};

#[derive(Debug, Default)]
pub(super) struct OwnModels {
    /// The current model.
    model: Arc<Parcel>,
    /// The initial model of the run.
    first: Arc<Parcel>,
    /// Models by the round in which they were made, as long as a client keeps them.
    by_round: BTreeMap<RoundNo, Arc<Parcel>>,
    last_given: BTreeMap<ClientId, RoundNo>,
}

impl OwnModels {
    pub(super) fn start_from(&mut self, model: Vec<f32>) {
        let model = Arc::new(Parcel::of(model));
        *self = OwnModels { first: Arc::clone(&model), model, ..OwnModels::default() };
    }

    /// The current model.
    pub(super) fn model(&self) -> &Arc<Parcel> {
        &self.model
    }

    /// A client's own model, and the rounds since its last update, including this one. A newcomer gets the
    /// current model.
    pub(super) fn of(&self, round: &Round<'_>, client: ClientId) -> (Arc<Parcel>, NonZeroU32) {
        let away =
            |since: RoundNo| NonZeroU32::new(round.number.saturating_sub(since)).unwrap_or(NonZeroU32::MIN);
        match self.last_given.get(&client) {
            // A client that left and returned is a newcomer.
            Some(given_in) if round.census.joined(client).is_none_or(|joined| joined <= *given_in) => {
                (Arc::clone(&self.by_round[given_in]), away(*given_in))
            }
            Some(_) => (Arc::clone(&round.global), NonZeroU32::MIN),
            None if round.census.joined(client) == Some(0) => {
                (Arc::clone(&self.first), NonZeroU32::MIN.saturating_add(round.number))
            }
            None => (Arc::clone(&round.global), NonZeroU32::MIN),
        }
    }

    /// Sets the current model, and gives it to the clients that returned updates.
    pub(super) fn give(
        &mut self,
        round: &Round<'_>,
        clients: impl IntoIterator<Item = ClientId>,
        model: Vec<f32>,
    ) {
        self.model = Arc::new(Parcel::of(model));
        self.last_given.extend(clients.into_iter().map(|client| (client, round.number)));
        self.last_given.retain(|client, _| round.census.enrolled().get(client.idx()));
        self.by_round.insert(round.number, Arc::clone(&self.model));
        let kept: BTreeSet<_> = self.last_given.values().collect();
        self.by_round.retain(|number, _| kept.contains(number));
    }
}

impl State for OwnModels {
    fn save(&self, to: &mut Saver) {
        to.f32s("first", &self.first.model);
        to.f32s("now", &self.model.model);
        to.u64("made", self.by_round.len() as u64);
        for (number, model) in &self.by_round {
            to.u64("number", u64::from(*number));
            to.f32s("model", &model.model);
        }
        to.u32s("clients", &self.last_given.keys().map(|client| client.number()).collect::<Vec<_>>());
        to.u32s("heard", &self.last_given.values().copied().collect::<Vec<_>>());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(from.f32s("first")?);
        self.model = Arc::new(Parcel::of(from.f32s("now")?));
        for _ in 0..from.u64("made")? {
            let number = from.u32("number")?;
            self.by_round.insert(number, Arc::new(Parcel::of(from.f32s("model")?)));
        }
        let clients = from.u32s("clients")?;
        let heard = from.u32s("heard")?;
        let known = heard.iter().all(|number| self.by_round.contains_key(number));
        let fits = self
            .by_round
            .values()
            .chain([&self.model])
            .all(|model| model.model.len() == self.first.model.len());
        if clients.len() != heard.len() || !known || !fits {
            return Err(from.error("heard", "names a round without a stored model"));
        }
        let client = |number: u32| ClientId::new(number as usize);
        self.last_given = clients.into_iter().map(client).zip(heard).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    #[track_caller]
    fn check(own: &OwnModels, world: &World, number: RoundNo, client: usize, expected: (f32, u32)) {
        let (found, missed) = own.of(&world.round(number), ClientId::new(client));
        assert_eq!((found.model[0], missed.get()), expected);
    }

    #[test]
    fn clients_keep_the_model_they_received_and_newcomers_get_the_current_one() {
        let mut world = World::of(3);
        let mut own = OwnModels::default();
        own.start_from(vec![10.0]);
        check(&own, &world, 0, 1, (10.0, 1));
        own.give(&world.round(0), [0, 1].map(ClientId::new), vec![9.0]);
        own.give(&world.round(2), [ClientId::new(1)], vec![8.0]);
        check(&own, &world, 3, 0, (9.0, 3));
        check(&own, &world, 3, 1, (8.0, 1));
        check(&own, &world, 3, 2, (10.0, 4));
        world.set_model(&[7.0]);
        world.join(3, 3);
        check(&own, &world, 4, 3, (7.0, 1));
        // A client that leaves and returns is a newcomer, even without any update in between.
        world.leave(0);
        world.join(0, 5);
        check(&own, &world, 6, 0, (7.0, 1));
    }

    #[test]
    fn models_that_no_client_keeps_are_dropped_and_all_others_saved() {
        let world = World::of(2);
        let mut own = OwnModels::default();
        own.start_from(vec![10.0]);
        for number in 0..5 {
            own.give(&world.round(number), [ClientId::new(number as usize % 2)], vec![number as f32]);
        }
        assert_eq!(own.by_round.keys().copied().collect::<Vec<_>>(), [3, 4]);
        let mut saver = Saver::new();
        own.save(&mut saver);
        let saved = saver.finish();
        let mut again = OwnModels::default();
        let mut loader = Loader::new(&saved);
        again.load(&mut loader).unwrap();
        assert!(loader.at_end());
        check(&again, &world, 9, 1, (3.0, 6));
    }
}
