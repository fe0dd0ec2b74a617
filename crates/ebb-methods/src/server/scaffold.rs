//! Adds the aggregate, times a server learning rate, and sends the mean of the clients' control variates.
//!
//! SCAFFOLD (Karimireddy et al. 2020), the server's half; `local/scaffold.rs` is the other.
//! `c = c + sum of p_i (c_i+ - c_i)` over the clients that returned updates, with `p_i` the client's share of
//! the objective: `1 / N` in the paper, where all clients count equally. The population is assumed fixed: a
//! departed client's contribution to `c` stays, and newcomers' variates are not yet in it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ebb_round::{
    Contribution, Loader, Parcel, Retention, Round, Saver, ServerRule, State, StateError, vectors,
};
use ebb_settings::{Entry, Positive};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::{moved_model, one};
use crate::local::scaffold::CONTROL;

/// The registry entry.
pub const ENTRY: Entry<dyn ServerRule> = Entry {
    name: "scaffold",
    about: "as plain, and sends the mean of the control variates of local.kind scaffold",
    example: "learning_rate = 1.0
clock = \"run\"               # or shift: the learning-rate schedule restarts whenever the objective changes",
    build: |settings| Ok(Box::new(settings.parse::<Scaffold>()?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scaffold {
    #[serde(default = "one")]
    learning_rate: Positive,
    #[serde(default)]
    clock: Clock,
    #[serde(skip)]
    model: Arc<Parcel>,
    /// In f64: rounded every round, it would drift from the clients' mean.
    #[serde(skip)]
    control: Vec<f64>,
}

impl ServerRule for Scaffold {
    fn schedule_position(&self, round: &Round<'_>) -> u32 {
        self.clock.schedule_position(round)
    }

    fn retention(&self) -> Retention {
        Retention::KeepAll
    }

    fn parcel(&self, round: &Round<'_>) -> Arc<Parcel> {
        with_control(round, &self.control)
    }

    fn update_model(&mut self, round: &Round<'_>, contributions: &[Contribution], aggregate: &[f32]) {
        self.model = Arc::new(Parcel::of(moved_model(round, self.learning_rate, aggregate)));
        add_changes(&mut self.control, round, contributions);
    }

    fn model(&self) -> &Arc<Parcel> {
        &self.model
    }

    fn start_from(&mut self, model: Vec<f32>) {
        self.control = vec![0.0; model.len()];
        self.model = Arc::new(Parcel::of(model));
    }
}

/// The model, with the mean control variate as a side vector.
pub(super) fn with_control(round: &Round<'_>, control: &[f64]) -> Arc<Parcel> {
    let control = control.iter().map(|&value| value as f32).collect();
    let side = BTreeMap::from([(Cow::Borrowed(CONTROL), control)]);
    Arc::new(Parcel { model: round.global.model.clone(), side_vectors: side })
}

/// Adds the changes of the clients' control variates to the mean over all clients.
pub(super) fn add_changes(control: &mut [f64], round: &Round<'_>, contributions: &[Contribution]) {
    // A stand-in counts for a client whose own variate did not change.
    let own = contributions.iter().filter(|one| one.is_own());
    let changes: Vec<_> = own
        // The mean is over all clients of the objective, though only some returned updates.
        .filter_map(|one| {
            Some((one.update.delta.side_vectors.get(CONTROL)?.as_slice(), round.share(one.client)))
        })
        .collect();
    vectors::add_weighted(control, &changes, round.threads);
}

impl State for Scaffold {
    fn save(&self, to: &mut Saver) {
        to.f32s("model", &self.model.model);
        to.f64s("control", &self.control);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.start_from(from.f32s("model")?);
        self.control = from.f64s("control")?;
        if self.control.len() != self.model.model.len() {
            return Err(from.error("control", "its length differs from the model's"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::ClientId;

    use super::*;
    use crate::testing::{World, contribution};

    /// A change of the client's variate by this amount.
    fn change(client: usize, by: f32) -> Contribution {
        let mut one = contribution(client, 0.0);
        Arc::make_mut(&mut one.update).delta.side_vectors.insert(Cow::Borrowed(CONTROL), vec![by]);
        one
    }

    fn sent(server: &Scaffold, world: &World) -> f32 {
        server.parcel(&world.round(0)).side_vectors[CONTROL][0]
    }

    fn new() -> Scaffold {
        let mut server =
            Scaffold { learning_rate: one(), clock: Clock::Run, model: Arc::default(), control: Vec::new() };
        server.start_from(vec![0.0]);
        server
    }

    fn check(contributions: &[Contribution], expected: f32) {
        let (mut server, world) = (new(), World::of(4));
        server.update_model(&world.round(0), contributions, &[0.0]);
        assert_eq!(sent(&server, &world), expected);
    }

    #[test]
    fn the_control_variate_is_the_mean_over_all_enrolled_clients() {
        check(&[], 0.0);
        check(&[change(0, 2.0)], 0.5);
        check(&[change(0, 2.0), change(3, 4.0)], 1.5);
    }

    #[test]
    fn stand_ins_and_updates_without_a_variate_do_not_change_the_mean() {
        check(&[contribution(0, 2.0)], 0.0);
        check(&[change(0, 2.0), Contribution { age: 1, ..change(1, 4.0) }], 0.5);
        check(&[change(0, 2.0), Contribution { source: Some(ClientId::new(0)), ..change(1, 4.0) }], 0.5);
    }

    #[test]
    fn the_model_moves_by_the_aggregate_and_is_sent_with_the_control_variate() {
        let (mut server, world) = (new(), World::of(4));
        server.learning_rate = Positive::new(0.5).unwrap();
        server.update_model(&world.round(0), &[], &[3.0]);
        assert_eq!(server.model().as_ref(), &Parcel::of(vec![1.5]));
        assert_eq!(server.parcel(&world.round(0)).bytes(), 8);
    }

    #[test]
    fn the_saved_state_loads_again() {
        let (mut server, world) = (new(), World::of(3));
        server.update_model(&world.round(0), &[change(0, 1.0)], &[3.0]);
        let save = |server: &Scaffold| {
            let mut saver = Saver::new();
            server.save(&mut saver);
            saver.finish()
        };
        let (saved, mut again) = (save(&server), new());
        again.load(&mut Loader::new(&saved)).unwrap();
        assert!(save(&again) == saved && again.control == [1.0 / 3.0]);
        again.control.push(0.0);
        let error = new().load(&mut Loader::new(&save(&again))).unwrap_err().to_string();
        assert!(error.contains("control: its length differs"), "{error}");
    }
}
