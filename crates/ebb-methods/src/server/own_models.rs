//! The models that clients keep while they are away: each the one it was given when it was last heard.
//!
//! The server knows them, for it made them, and sends a client its own when it asks again. Clients heard in one round have the same, so there are at most
//! as many as clients, and as rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{ClientId, Loader, Parcel, Round, RoundNo, Saver, State, StateError};

#[derive(Debug, Default)]
pub(super) struct OwnModels {
    /// The model of the run's beginning.
    first: Arc<Parcel>,
    /// Models by the round at whose end they were made, as long as somebody keeps them.
    made: BTreeMap<RoundNo, Arc<Parcel>>,
    heard: BTreeMap<ClientId, RoundNo>,
}

impl OwnModels {
    pub(super) fn start_from(&mut self, model: &Arc<Parcel>) {
        *self = OwnModels { first: Arc::clone(model), ..OwnModels::default() };
    }

    /// A client's own model, and how many rounds it is away, this one counted. A newcomer is given the model as it is.
    pub(super) fn of(&self, round: &Round<'_>, client: ClientId) -> (Arc<Parcel>, NonZeroU32) {
        let away =
            |since: RoundNo| NonZeroU32::new(round.number.saturating_sub(since)).unwrap_or(NonZeroU32::MIN);
        match self.heard.get(&client) {
            // Whoever left and came back is a newcomer.
            Some(heard) if round.census.joined(client).is_none_or(|joined| joined <= *heard) => {
                (Arc::clone(&self.made[heard]), away(*heard))
            }
            Some(_) => (Arc::clone(&round.global), NonZeroU32::MIN),
            None if round.census.joined(client) == Some(0) => {
                (Arc::clone(&self.first), NonZeroU32::MIN.saturating_add(round.number))
            }
            None => (Arc::clone(&round.global), NonZeroU32::MIN),
        }
    }

    /// Gives the model of this round's end to those that were heard.
    pub(super) fn give(
        &mut self,
        round: &Round<'_>,
        heard: impl IntoIterator<Item = ClientId>,
        model: &Arc<Parcel>,
    ) {
        self.heard.extend(heard.into_iter().map(|client| (client, round.number)));
        self.heard.retain(|client, _| round.census.enrolled().get(client.idx()));
        self.made.insert(round.number, Arc::clone(model));
        let kept: BTreeSet<_> = self.heard.values().collect();
        self.made.retain(|number, _| kept.contains(number));
    }
}

impl State for OwnModels {
    fn save(&self, to: &mut Saver) {
        to.f32s("first", &self.first.model);
        to.u64("made", self.made.len() as u64);
        for (number, model) in &self.made {
            to.u64("number", u64::from(*number));
            to.f32s("model", &model.model);
        }
        to.u32s("clients", &self.heard.keys().map(|client| client.number()).collect::<Vec<_>>());
        to.u32s("heard", &self.heard.values().copied().collect::<Vec<_>>());
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(&Arc::new(Parcel::of(from.f32s("first")?)));
        for _ in 0..from.u64("made")? {
            let number = from.u32("number")?;
            self.made.insert(number, Arc::new(Parcel::of(from.f32s("model")?)));
        }
        let clients = from.u32s("clients")?;
        let heard = from.u32s("heard")?;
        let known = heard.iter().all(|number| self.made.contains_key(number));
        let fits = self.made.values().all(|model| model.model.len() == self.first.model.len());
        if clients.len() != heard.len() || !known || !fits {
            return Err(from.error("heard", "does not fit the models"));
        }
        let client = |number: u32| ClientId::new(number as usize);
        self.heard = clients.into_iter().map(client).zip(heard).collect();
        Ok(())
    }
}
