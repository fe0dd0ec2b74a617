//! Clients taken together by their true chance to answer, which only an oracle knows.

use ebb_record::stats;

use super::Played;

/// Where clients have more different chances than this, they are shown by quarters.
const MOST_CLASSES: usize = 8;

/// Clients taken together by their true chance to answer. Only an oracle knows it.
pub(super) enum Classes {
    /// Nobody knows.
    All,
    /// One class a chance, ascending.
    Chances(Vec<f64>),
    /// As many clients in each, by their chances.
    Quarters,
}

impl Classes {
    pub(super) fn of(members: &[&Played]) -> Classes {
        if members.iter().any(|one| one.oracle_chances.len() < one.n_clients) {
            return Classes::All;
        }
        let mut chances: Vec<f64> = Vec::new();
        for &chance in members.iter().flat_map(|one| &one.oracle_chances) {
            if !chances.contains(&chance) {
                chances.push(chance);
            }
            if chances.len() > MOST_CLASSES {
                return Classes::Quarters;
            }
        }
        chances.sort_by(f64::total_cmp);
        Classes::Chances(chances)
    }

    /// Their names, as short as a heading.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Classes::All => vec!["all".to_owned()],
            Classes::Chances(chances) => chances.iter().map(f64::to_string).collect(),
            Classes::Quarters => ["lowest", "lower", "higher", "highest"].map(str::to_owned).to_vec(),
        }
    }

    /// What is said before the names.
    pub(super) fn about(&self) -> &'static str {
        match self {
            Classes::All => "of",
            Classes::Chances(_) => "by true chance (oracle):",
            Classes::Quarters => "by quarters of the true chance (oracle):",
        }
    }

    /// How often the clients of each class were asked.
    pub(super) fn split(&self, one: &Played) -> Vec<Vec<f64>> {
        let mut classes = vec![Vec::new(); self.names().len()];
        let of = |client: usize| f64::from(one.selections.get(client).copied().unwrap_or(0));
        match self {
            Classes::All => classes[0] = (0..one.n_clients).map(of).collect(),
            Classes::Chances(chances) => {
                for client in 0..one.n_clients {
                    let class = chances.iter().position(|chance| *chance == one.oracle_chances[client]);
                    classes[class.expect("all chances are among them")].push(of(client));
                }
            }
            Classes::Quarters => {
                let mut order: Vec<_> = (0..one.n_clients).collect();
                order.sort_by(|&a, &b| one.oracle_chances[a].total_cmp(&one.oracle_chances[b]));
                let placed = order.iter().enumerate();
                placed.for_each(|(at, &client)| classes[at * 4 / one.n_clients].push(of(client)));
            }
        }
        classes
    }

    /// The mean of each class; NaN for one without clients.
    pub(super) fn means(&self, one: &Played) -> Vec<f64> {
        self.split(one).iter().map(|class| stats::mean(class).unwrap_or(f64::NAN)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ebb_record::Selection;

    use super::*;

    fn played(chances: &[f64], selections: &[u32]) -> Played {
        Played {
            scheme: "s".to_owned(),
            values: Vec::new(),
            seed: 1,
            n_rounds: 10,
            n_clients: 4,
            selection: Selection::default(),
            selections: selections.to_vec(),
            ratios: BTreeMap::new(),
            oracle_chances: chances.to_vec(),
            probed: false,
        }
    }

    #[test]
    fn classes_are_the_chances_that_there_are() {
        let one = played(&[0.9, 0.1, 0.9, 0.1], &[5, 1, 7]);
        let classes = Classes::of(&[&one]);
        assert_eq!(classes.names(), ["0.1", "0.9"]);
        // Nobody asked the last client, which is beyond the list.
        assert_eq!(classes.split(&one), [vec![1.0, 0.0], vec![5.0, 7.0]]);
        assert_eq!(classes.means(&one), [0.5, 6.0]);
        let unknown = played(&[], &[5, 1, 7]);
        assert_eq!(Classes::of(&[&one, &unknown]).means(&unknown), [3.25]);
    }

    #[test]
    fn many_chances_make_quarters() {
        let seeds: Vec<_> = (0..3_u8)
            .map(|seed| {
                played(&[0.4, 0.3, 0.2, 0.1].map(|chance| chance + 0.01 * f64::from(seed)), &[4, 3, 2, 1])
            })
            .collect();
        let classes = Classes::of(&seeds.iter().collect::<Vec<_>>());
        assert_eq!(classes.names(), ["lowest", "lower", "higher", "highest"]);
        assert_eq!(classes.means(&seeds[2]), [1.0, 2.0, 3.0, 4.0]);
    }
}
