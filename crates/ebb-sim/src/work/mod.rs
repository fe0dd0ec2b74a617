//! How much of its planned work a selected client completes: one file per kind.

pub mod complete;
pub mod failure;
pub mod flex;
pub mod stragglers;

use std::num::NonZeroU32;

use ebb_round::{Amount, ClientId, RoundNo, Work};
use ebb_settings::Entry;

/// The completion of planned work; a function of (seed, round, client), whatever other clients are selected.
pub trait CompletionModel: Send {
    /// The completion of `planned` steps or passes over the client's data, as the job counts them.
    fn completion(&self, number: RoundNo, client: ClientId, planned: NonZeroU32) -> Completion;

    /// Whether `planned` counts steps even if the job counts passes.
    fn counts_steps(&self) -> bool {
        false
    }

    /// The probability that anything comes back from a client, if it is constant. Only an oracle knows it.
    fn oracle_success_probability(&self, _client: ClientId) -> Option<f64> {
        None
    }

    /// Whether a client does a job's work and its update is lost.
    fn is_lost(&self, number: RoundNo, client: ClientId, work: Work) -> bool {
        let (Amount::Steps(planned) | Amount::Epochs(planned)) = work.amount;
        self.completion(number, client, planned) == Completion::Lost
    }

    /// The part of a job's work that comes back; `None` if nothing does.
    fn returned_work(&self, number: RoundNo, client: ClientId, work: Work) -> Option<Work> {
        let (Amount::Steps(planned) | Amount::Epochs(planned)) = work.amount;
        let Completion::Part(n_done) = self.completion(number, client, planned) else { return None };
        let n_done = n_done.min(planned);
        let amount = match work.amount {
            Amount::Steps(_) => Amount::Steps(n_done),
            Amount::Epochs(_) => Amount::Epochs(n_done),
        };
        Some(Work { amount, ..work })
    }
}

/// The completion of planned work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// This much of it, which is sent.
    Part(NonZeroU32),
    /// All of it, but the update never arrives.
    Lost,
    /// Not one step.
    Nothing,
}

/// Every kind that `[world.work]` can name.
pub const ALL: &[Entry<dyn CompletionModel>] =
    &[complete::ENTRY, failure::ENTRY, flex::ENTRY, stragglers::ENTRY];

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree, find};

    use super::*;

    /// The completion model that `[world.work]` describes, for 100 clients.
    pub(super) fn build(text: &str, seed: u64) -> Result<Box<dyn CompletionModel>, String> {
        let tree = Tree::parse(&format!("[world.work]\n{text}"), "a.toml").unwrap();
        let context = BuildContext { seed, n_clients: 100, n_rounds: 0 };
        let settings = tree.table("world.work", context);
        let entry = find(ALL, &settings, None).map_err(|error| error.to_string())?;
        (entry.build)(&settings).map_err(|error| error.to_string())
    }

    /// The completed part of `planned` as a number, by round and client, for 100 clients.
    pub(super) fn play(
        model: &dyn CompletionModel,
        n_rounds: RoundNo,
        planned: u32,
    ) -> Vec<Vec<Option<u32>>> {
        let planned = NonZeroU32::new(planned).unwrap();
        let n_done = |number, client| match model.completion(number, ClientId::new(client), planned) {
            Completion::Part(n_done) => Some(n_done.get()),
            Completion::Lost => None,
            Completion::Nothing => Some(0),
        };
        (0..n_rounds).map(|number| (0..100).map(|client| n_done(number, client)).collect()).collect()
    }

    #[test]
    fn every_example_can_be_built_and_plays_the_same_twice() {
        for entry in ALL {
            let text = format!("kind = \"{}\"\n{}", entry.name, entry.example);
            let played = |seed| play(build(&text, seed).unwrap().as_ref(), 30, 10);
            assert_eq!(played(1), played(1), "{}", entry.name);
            assert_eq!(played(1) == played(2), entry.name == "complete", "{}", entry.name);
            let backwards = build(&text, 1).unwrap();
            for (number, row) in played(1).iter().enumerate().rev() {
                assert_eq!(&play_round(backwards.as_ref(), number as RoundNo), row, "{}", entry.name);
            }
        }
    }

    fn play_round(model: &dyn CompletionModel, number: RoundNo) -> Vec<Option<u32>> {
        play(model, number + 1, 10).pop().unwrap()
    }

    #[test]
    fn work_comes_back_in_the_unit_it_was_requested_in() {
        struct Half;
        impl CompletionModel for Half {
            fn completion(&self, _: RoundNo, client: ClientId, planned: NonZeroU32) -> Completion {
                match client.number() {
                    0 => NonZeroU32::new(planned.get() / 2).map_or(Completion::Nothing, Completion::Part),
                    _ => Completion::Lost,
                }
            }
        }
        let number = |n| NonZeroU32::new(n).unwrap();
        let batch = Some(number(20));
        let check = |amount, client, steps: Option<u32>| {
            let returned = Half.returned_work(0, ClientId::new(client), Work { amount, batch_size: batch });
            assert_eq!(returned.map(|work| work.steps(100).get()), steps, "{amount:?}");
        };
        check(Amount::Steps(number(10)), 0, Some(5));
        check(Amount::Epochs(number(10)), 0, Some(25));
        check(Amount::Epochs(number(1)), 0, None);
        check(Amount::Steps(number(10)), 1, None);
    }
}
