//! Clients grouped by their true probability to respond, which only an oracle knows.

use ebb_record::stats;

use super::PlayedCell;

/// With more distinct probabilities than this, clients are grouped into quarters.
const MOST_CLASSES: usize = 8;

/// Clients grouped by their true probability to respond, which only an oracle knows.
pub(super) enum Classes {
    /// Nobody knows the probabilities.
    All,
    /// One class a probability, ascending.
    Probabilities(Vec<f64>),
    /// Four classes of equal size, ordered by probability.
    Quarters,
}

impl Classes {
    pub(super) fn of(members: &[&PlayedCell]) -> Classes {
        if members.iter().any(|cell| cell.oracle_probabilities.len() < cell.n_clients) {
            return Classes::All;
        }
        let mut probabilities: Vec<f64> = Vec::new();
        for &probability in members.iter().flat_map(|cell| &cell.oracle_probabilities) {
            if !probabilities.contains(&probability) {
                probabilities.push(probability);
            }
            if probabilities.len() > MOST_CLASSES {
                return Classes::Quarters;
            }
        }
        probabilities.sort_by(f64::total_cmp);
        Classes::Probabilities(probabilities)
    }

    /// The names of the classes, short enough for a heading.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Classes::All => vec!["all".to_owned()],
            Classes::Probabilities(probabilities) => probabilities.iter().map(f64::to_string).collect(),
            Classes::Quarters => ["lowest", "lower", "higher", "highest"].map(str::to_owned).to_vec(),
        }
    }

    /// The words that introduce the names.
    pub(super) fn about(&self) -> &'static str {
        match self {
            Classes::All => "of",
            Classes::Probabilities(_) => "by true probability (oracle):",
            Classes::Quarters => "by quarters of the true probability (oracle):",
        }
    }

    /// The selection counts of the clients of each class.
    pub(super) fn split(&self, cell: &PlayedCell) -> Vec<Vec<f64>> {
        let mut classes = vec![Vec::new(); self.names().len()];
        let of = |client: usize| f64::from(cell.selections.get(client).copied().unwrap_or(0));
        match self {
            Classes::All => classes[0] = (0..cell.n_clients).map(of).collect(),
            Classes::Probabilities(probabilities) => {
                for client in 0..cell.n_clients {
                    let class = probabilities
                        .iter()
                        .position(|probability| *probability == cell.oracle_probabilities[client]);
                    classes[class.expect("all probabilities are among them")].push(of(client));
                }
            }
            Classes::Quarters => {
                let mut order: Vec<_> = (0..cell.n_clients).collect();
                order.sort_by(|&a, &b| cell.oracle_probabilities[a].total_cmp(&cell.oracle_probabilities[b]));
                let sorted_clients = order.iter().enumerate();
                sorted_clients.for_each(|(at, &client)| classes[at * 4 / cell.n_clients].push(of(client)));
            }
        }
        classes
    }

    /// The mean of each class; NaN for an empty one.
    pub(super) fn means(&self, cell: &PlayedCell) -> Vec<f64> {
        self.split(cell).iter().map(|class| stats::mean(class).unwrap_or(f64::NAN)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ebb_record::Selection;

    use super::*;

    fn played_cell(probabilities: &[f64], selections: &[u32]) -> PlayedCell {
        PlayedCell {
            scheme: "s".to_owned(),
            values: Vec::new(),
            seed: 1,
            n_rounds: 10,
            n_clients: 4,
            selection: Selection::default(),
            selections: selections.to_vec(),
            success_ratios: BTreeMap::new(),
            oracle_probabilities: probabilities.to_vec(),
            probed: false,
        }
    }

    #[test]
    fn classes_are_the_probabilities_that_occur() {
        let cell = played_cell(&[0.9, 0.1, 0.9, 0.1], &[5, 1, 7]);
        let classes = Classes::of(&[&cell]);
        assert_eq!(classes.names(), ["0.1", "0.9"]);
        // The counts end before the last client, which was never selected.
        assert_eq!(classes.split(&cell), [vec![1.0, 0.0], vec![5.0, 7.0]]);
        assert_eq!(classes.means(&cell), [0.5, 6.0]);
        let unknown = played_cell(&[], &[5, 1, 7]);
        assert_eq!(Classes::of(&[&cell, &unknown]).means(&unknown), [3.25]);
    }

    #[test]
    fn many_probabilities_make_quarters() {
        let seeds: Vec<_> = (0..3_u8)
            .map(|seed| {
                played_cell(
                    &[0.4, 0.3, 0.2, 0.1].map(|probability| probability + 0.01 * f64::from(seed)),
                    &[4, 3, 2, 1],
                )
            })
            .collect();
        let classes = Classes::of(&seeds.iter().collect::<Vec<_>>());
        assert_eq!(classes.names(), ["lowest", "lower", "higher", "highest"]);
        assert_eq!(classes.means(&seeds[2]), [1.0, 2.0, 3.0, 4.0]);
    }
}
