//! Selects the available clients with the lowest selection rate for their share.
//!
//! F3AST (Ribero, Vikalo and de Veciana 2022): the selection rate `r_i` becomes `(1 - b) r_i + b` if the
//! client is selected and `(1 - b) r_i` if not. Clients with the largest `p_i / r_i` are selected, `p` being
//! shares. The `r_i` serve as inclusion probabilities, which they approximate in the long run:
//! `aggregate.kind = "ipw"` divides by them.

use std::num::NonZeroUsize;

use ebb_round::{
    ClientId, Cohort, Loader, Probes, Round, Saver, Selected, Selector, State, StateError, Wait,
};
use ebb_settings::{Entry, Share};
use serde::{Deserialize, Serialize};

use super::{Among, check_cohort, first_in};

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "f3ast",
    about: "the clients with the lowest selection rate for their share; the rate serves as inclusion probability",
    example: "cohort = 10                # required
pace = 0.001               # b: weight of the last round in the selection rate
among = \"up\"               # or enrolled",
    build: |settings| {
        let table: Table = settings.parse()?;
        check_cohort(settings, table.cohort)?;
        if table.pace.get() <= 0.0 {
            return Err(settings.error("pace", "selection rates would never change; give a number above 0"));
        }
        Ok(Box::new(F3ast { table, selection_rates: Vec::new() }))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    cohort: NonZeroUsize,
    #[serde(default = "thousandth")]
    pace: Share,
    #[serde(default)]
    among: Among,
}

fn thousandth() -> Share {
    Share::new(0.001).expect("a thousandth leaves a rest")
}

#[derive(Debug)]
struct F3ast {
    table: Table,
    /// The selection rate of each client; NaN before it is first seen.
    selection_rates: Vec<f64>,
}

impl Selector for F3ast {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let enrolled = round.census.enrolled();
        let at_first = self.table.cohort.get().min(enrolled.count()) as f64 / enrolled.count().max(1) as f64;
        self.selection_rates.resize(self.selection_rates.len().max(round.census.len()), f64::NAN);
        for idx in enrolled.iter().filter(|&idx| self.selection_rates[idx].is_nan()).collect::<Vec<_>>() {
            self.selection_rates[idx] = at_first;
        }
        let priority = |client: ClientId| round.share(client) / self.selection_rates[client.idx()];
        let among = self.table.among.of(round.census).iter().map(ClientId::new).collect();
        let selected = first_in(among, self.table.cohort.get(), |&one: &ClientId, &other| {
            priority(other).total_cmp(&priority(one)).then(one.cmp(&other))
        });
        let pace = self.table.pace.get();
        enrolled.iter().for_each(|idx| self.selection_rates[idx] *= 1.0 - pace);
        selected.iter().for_each(|client| self.selection_rates[client.idx()] += pace);
        let select_one = |client: ClientId| Selected {
            client,
            inclusion_probability: Some(self.selection_rates[client.idx()].min(1.0)),
        };
        Cohort {
            selected: selected.into_iter().map(select_one).collect(),
            wait: Wait::Deadline,
            is_approximate: true,
        }
    }
}

impl State for F3ast {
    fn save(&self, to: &mut Saver) {
        to.f64s("often", &self.selection_rates);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.selection_rates = from.f64s("often")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, reloaded, selected_indices, selector};

    #[test]
    fn clients_with_the_lowest_selection_rate_for_their_share_come_first() {
        let world = World::with_samples(&[1, 1, 2, 4]);
        let text = "cohort = 2\npace = 0.5";
        let mut f3ast = selector(ENTRY, text, 4).unwrap();
        let mut play = |number| {
            let cohort = f3ast.select(&world.round(number), &Probes::new());
            let probability = |pick: &Selected| (pick.client.idx(), pick.inclusion_probability.unwrap());
            let mut probabilities: Vec<_> = cohort.selected.iter().map(probability).collect();
            probabilities.sort_by_key(|(idx, _)| *idx);
            probabilities
        };
        // All at 1/2: shares decide. Then 3/4 and 1/4: .33, .33, .33 and .67, where the lower number comes
        // first.
        assert_eq!(play(0), [(2, 0.75), (3, 0.75)]);
        assert_eq!(play(1), [(0, 0.625), (3, 0.875)]);
    }

    #[test]
    fn all_clients_are_selected_if_all_are_needed_and_the_state_is_saved() {
        let world = World::of(4);
        let mut all = selector(ENTRY, "cohort = 4", 4).unwrap();
        for number in 0..50 {
            let selected = all.select(&world.round(number), &Probes::new()).selected;
            assert!(
                selected.len() == 4
                    && selected.iter().all(|pick| (pick.inclusion_probability.unwrap() - 1.0).abs() < 1e-12)
            );
        }
        let text = "cohort = 2\npace = 0.1";
        let mut some = selector(ENTRY, text, 4).unwrap();
        some.select(&world.round(0), &Probes::new());
        let mut again = reloaded(some.as_ref(), ENTRY, text, 4);
        for number in 1..9 {
            let round = world.round(number);
            assert_eq!(some.select(&round, &Probes::new()), again.select(&round, &Probes::new()));
        }
    }

    #[test]
    fn it_selects_among_clients_that_are_up_and_newcomers_start_like_all_others() {
        let mut world = World::of(4).with_up(&[1, 3]);
        let mut f3ast = selector(ENTRY, "cohort = 2\npace = 0.5", 5).unwrap();
        assert_eq!(selected_indices(&f3ast.select(&world.round(0), &Probes::new())), [1, 3]);
        world.join(4, 1);
        let world = world.with_up(&[1, 3, 4]);
        let cohort = f3ast.select(&world.round(1), &Probes::new());
        assert_eq!(selected_indices(&cohort), [1, 4], "2 of 5 for the newcomer, 3 of 4 for the others");
        assert!(selector(ENTRY, "cohort = 2\npace = 0.0", 4).err().unwrap().contains("above 0"));
    }
}
