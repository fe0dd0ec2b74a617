//! The same number of clients is down in every round, drawn at random. Optionally one client of each cluster
//! stays up.
//!
//! Wang and Xu, "Friends to Help: Saving Federated Learning from Client Dropout" (2022).

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;

use ebb_round::{Bits, ClientId, RoundNo, Stream, stateless};
use ebb_settings::{BuildContext, Entry, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::Availability;
use super::compositions::{MAX_TABLE_LEN, draw_composition};
use super::draws::{below, fill_bits};

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Availability> = Entry {
    name: "dropout",
    about: "an exact share of the clients is down in every round; with clusters, one of each stays up (FL-FDMS)",
    example: "ratio = 0.5                # share of the clients that are down, to the nearest whole number
# clusters = 5             # equal blocks of neighbouring ids; at least one client of each is up
# clusters = [4, 4, 12]    # or: the number of clients of each
# clusters = \"data\"        # or: the clusters of the data, if it has any
# evenly_over = \"clients\"  # with clusters: draws one client of each, then any; or \"counts\" as in the
#                          # paper's code: every composition of the number up has the same probability
full_first_round = false   # whether all clients are up in round 0",
    build: |settings| Ok(Box::new(Dropout::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    ratio: Probability,
    clusters: Option<Clusters>,
    evenly_over: Option<EvenlyOver>,
    #[serde(default)]
    full_first_round: bool,
}

/// How clients are assigned to clusters.
#[derive(Clone, Debug)]
enum Clusters {
    Blocks(NonZeroU32),
    Sizes(Vec<NonZeroU32>),
    Data,
}

/// What is drawn uniformly when each cluster keeps one client up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum EvenlyOver {
    /// Draws one client of each cluster uniformly, then the rest uniformly from all others.
    #[default]
    Clients,
    /// Draws the number of clients that are up in each cluster uniformly, then the clients.
    Counts,
}

#[derive(Debug)]
struct Dropout {
    seed: u64,
    ratio: f64,
    evenly_over: EvenlyOver,
    full_first_round: bool,
    /// The cluster of each client; `None` if clusters do not matter.
    clusters: Option<Vec<u32>>,
    n_clusters: usize,
    /// Whether the clusters are those of the data.
    clusters_from_data: bool,
    errors: ClusterErrors,
}

/// The errors that are reported if the clusters do not fit the data.
#[derive(Debug)]
struct ClusterErrors {
    no_clusters: SettingsError,
    too_few_up: SettingsError,
    too_many_ways: SettingsError,
}

impl Dropout {
    fn build(settings: &Settings<'_>) -> Result<Dropout, SettingsError> {
        let table = settings.parse::<Table>()?;
        let BuildContext { seed, n_clients, .. } = settings.context();
        let mut dropout = Dropout {
            seed,
            ratio: table.ratio.get(),
            evenly_over: table.evenly_over.unwrap_or_default(),
            full_first_round: table.full_first_round,
            clusters: None,
            n_clusters: 0,
            clusters_from_data: false,
            errors: ClusterErrors {
                no_clusters: settings.error(
                    "clusters",
                    "the data has no clusters; give the number of clusters, or a list of their sizes",
                ),
                too_few_up: settings.error("ratio", ""),
                too_many_ways: settings.error("evenly_over", ""),
            },
        };
        match table.clusters {
            None if table.evenly_over.is_some() => {
                return Err(
                    settings.error("evenly_over", "it needs clusters; give clusters, or leave it out")
                );
            }
            None => return Ok(dropout),
            Some(Clusters::Blocks(count)) if count.get() as usize > n_clients => {
                let message = format!("there are more clusters than clients; give at most {n_clients}");
                return Err(settings.error("clusters", message));
            }
            Some(Clusters::Blocks(count)) => {
                let block = |idx: usize| (idx as u64 * u64::from(count.get()) / n_clients as u64) as u32;
                dropout.set_clusters((0..n_clients).map(block).collect());
            }
            Some(Clusters::Sizes(sizes)) => {
                let held: u64 = sizes.iter().map(|size| u64::from(size.get())).sum();
                if held != n_clients as u64 {
                    let message = format!("they hold {held} clients, but the data has {n_clients}");
                    return Err(settings.error("clusters", message));
                }
                let cluster =
                    |(at, size): (usize, &NonZeroU32)| std::iter::repeat_n(at as u32, size.get() as usize);
                dropout.set_clusters(sizes.iter().enumerate().flat_map(cluster).collect());
            }
            Some(Clusters::Data) => {
                dropout.clusters_from_data = true;
                return Ok(dropout);
            }
        }
        dropout.check(n_clients, dropout.n_clusters)?;
        Ok(dropout)
    }

    fn set_clusters(&mut self, clusters: Vec<u32>) {
        self.n_clusters = clusters.iter().max().map_or(0, |&last| last as usize + 1);
        self.clusters = Some(clusters);
    }

    fn check(&self, n_clients: usize, n_clusters: usize) -> Result<(), SettingsError> {
        let n_up = self.n_up(n_clients);
        let wrong = |error: &SettingsError, message| Err(SettingsError { message, ..error.clone() });
        if n_up < n_clusters {
            let max_ratio = (n_clients - n_clusters) as f64 / n_clients as f64;
            let message = format!(
                "{n_up} of {n_clients} clients stay up, fewer than the {n_clusters} clusters; give at most {max_ratio}"
            );
            return wrong(&self.errors.too_few_up, message);
        }
        if self.evenly_over == EvenlyOver::Counts && n_up * n_clusters > MAX_TABLE_LEN {
            let message = format!(
                "{n_up} clients up times {n_clusters} clusters is more than {MAX_TABLE_LEN}; \
                 give \"clients\""
            );
            return wrong(&self.errors.too_many_ways, message);
        }
        Ok(())
    }

    fn n_up(&self, n_enrolled: usize) -> usize {
        n_enrolled - (self.ratio * n_enrolled as f64).round() as usize
    }

    /// The number of enrolled clients in each cluster.
    fn sizes(&self, clusters: &[u32], enrolled: &Bits) -> Vec<usize> {
        let mut sizes = vec![0; self.n_clusters];
        enrolled.iter().filter_map(|idx| clusters.get(idx)).for_each(|&cluster| sizes[cluster as usize] += 1);
        sizes
    }
}

/// Draws one client of each cluster that has enrolled clients.
fn draw_one_per_cluster(clusters: &[u32], sizes: &[usize], enrolled: &Bits, stream: &mut Stream) -> Bits {
    // For each cluster: how many members come before the one that stays up; negative once it has come.
    let draw = |&size: &usize| if size > 0 { stream.below(size) as i64 } else { -1 };
    let mut n_before: Vec<_> = sizes.iter().map(draw).collect();
    let mut drawn = Bits::new(enrolled.len());
    for idx in enrolled.iter() {
        let Some(&cluster) = clusters.get(idx) else { continue };
        if n_before[cluster as usize] == 0 {
            drawn.set(idx, true);
        }
        n_before[cluster as usize] -= 1;
    }
    drawn
}

/// Draws a given number of clients from each group. In order, each is up with probability (still wanted) /
/// (still to come).
fn draw_by_group(
    wanted: &mut [usize],
    to_come: &mut [usize],
    stream: &Stream,
    up: &mut Bits,
    mut group: impl FnMut(usize) -> Group,
) {
    fill_bits(stream, up, |idx, draw| match group(idx) {
        Group::Up => true,
        Group::Down => false,
        Group::Of(at) => {
            let on = below(draw, to_come[at] as u64) < wanted[at] as u64;
            to_come[at] -= 1;
            wanted[at] -= usize::from(on);
            on
        }
    });
}

/// What is decided about a client before the draw.
enum Group {
    Up,
    Down,
    Of(usize),
}

impl Availability for Dropout {
    fn prepare(&mut self, task: &dyn Task) -> Result<(), SettingsError> {
        if !self.clusters_from_data {
            return Ok(());
        }
        let clusters = (0..task.n_clients()).map(|idx| task.oracle_cluster(ClientId::new(idx)));
        let clusters = clusters.collect::<Option<Vec<_>>>().ok_or_else(|| self.errors.no_clusters.clone())?;
        let present: BTreeSet<_> = clusters.iter().collect();
        self.check(clusters.len(), present.len())?;
        self.set_clusters(clusters);
        Ok(())
    }

    fn mark_up(&mut self, number: RoundNo, enrolled: &Bits, up: &mut Bits) {
        if number == 0 && self.full_first_round {
            up.fill_words(|_| u64::MAX);
            return;
        }
        let n_enrolled = enrolled.count();
        let n_up = self.n_up(n_enrolled);
        let stream = Stream::of_round(self.seed, "up", number);
        let mut first = Stream::of_round(self.seed, "clusters", number);
        let here = |idx, group| if enrolled.get(idx) { group } else { Group::Down };
        match (&self.clusters, self.evenly_over) {
            (None, _) => {
                draw_by_group(&mut [n_up], &mut [n_enrolled], &stream, up, |idx| here(idx, Group::Of(0)));
            }
            (Some(clusters), EvenlyOver::Clients) => {
                let drawn =
                    draw_one_per_cluster(clusters, &self.sizes(clusters, enrolled), enrolled, &mut first);
                let n_drawn = drawn.count();
                let (mut wanted, mut to_come) = ([n_up.saturating_sub(n_drawn)], [n_enrolled - n_drawn]);
                draw_by_group(&mut wanted, &mut to_come, &stream, up, |idx| {
                    here(idx, if drawn.get(idx) { Group::Up } else { Group::Of(0) })
                });
            }
            (Some(clusters), EvenlyOver::Counts) => {
                let mut sizes = self.sizes(clusters, enrolled);
                let mut counts = draw_composition(&sizes, n_up, &mut first);
                draw_by_group(&mut counts, &mut sizes, &stream, up, |idx| match clusters.get(idx) {
                    Some(&cluster) => here(idx, Group::Of(cluster as usize)),
                    None => Group::Down,
                });
            }
        }
    }
}

stateless!(Dropout);

impl Serialize for Clusters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Clusters::Blocks(count) => count.serialize(serializer),
            Clusters::Sizes(sizes) => sizes.serialize(serializer),
            Clusters::Data => "data".serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Clusters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "the number of clusters, a list of their sizes, or \"data\"";
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Clusters;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Clusters, E> {
                let count = u32::try_from(number).ok().and_then(NonZeroU32::new);
                count.map(Clusters::Blocks).ok_or_else(|| E::custom("give at least 1 cluster"))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Clusters, E> {
                (text == "data")
                    .then_some(Clusters::Data)
                    .ok_or_else(|| E::custom(format!("expected {EXPECTED}")))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Clusters, A::Error> {
                let mut sizes = Vec::new();
                while let Some(size) = list.next_element()? {
                    sizes.push(size);
                }
                Ok(Clusters::Sizes(sizes))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use ebb_round::Bits;

    use crate::availability::tests::{build, check_refused, everybody, up_by_round, up_shares};

    #[test]
    fn the_ratio_of_clients_is_down_and_one_of_each_cluster_is_up() {
        let ratios = [(0.3, 14), (0.5, 10), (0.7, 6), (0.75, 5)];
        for ((ratio, n_up), over) in
            ratios.into_iter().flat_map(|ratio| ["clients", "counts"].map(|over| (ratio, over)))
        {
            let text =
                format!("ratio = {ratio}\nclusters = 5\nevenly_over = \"{over}\"\nfull_first_round = true");
            for (number, up) in up_by_round("dropout", &text, 20, 500).into_iter().enumerate() {
                assert_eq!(up.count(), if number == 0 { 20 } else { n_up }, "{ratio}, round {number}");
                let present = |cluster: usize| (4 * cluster..4 * cluster + 4).any(|idx| up.get(idx));
                assert!((0..5).all(present), "{ratio}, round {number}: {up:?}");
            }
        }
    }

    #[test]
    fn every_client_and_every_pair_is_up_equally_often() {
        let n_rounds = 20_000;
        let error = |probability: f64| (probability * (1.0 - probability) / f64::from(n_rounds)).sqrt();
        let by_counts = "ratio = 0.5\nclusters = 5\nevenly_over = \"counts\"";
        for text in ["ratio = 0.5", "ratio = 0.5\nclusters = 5", by_counts] {
            for share in up_shares("dropout", text, 20, n_rounds) {
                assert!((share - 0.5).abs() < 5.0 * error(0.5), "{text}: {share}");
            }
        }
        // 10 * 9 / (20 * 19) is not a quarter, because the number of clients up is exact.
        let probability = 90.0 / 380.0;
        let played = up_by_round("dropout", "ratio = 0.5", 20, n_rounds);
        for (one, two) in [(0, 1), (3, 17), (18, 19)] {
            let both = played.iter().filter(|up| up.get(one) && up.get(two)).count() as f64;
            let share = both / f64::from(n_rounds);
            assert!(
                (share - probability).abs() < 5.0 * error(probability),
                "{one} and {two}: {share} for {probability}"
            );
        }
    }

    #[test]
    fn clusters_have_as_many_clients_up_as_the_distribution_says() {
        let n_rounds = 5000;
        // "clients": one plus a hypergeometric number, 5 of 15 clients of which 3 are in the cluster.
        // "counts": of the 101 compositions of 10 into five numbers from 1 to 4, those in which one cluster
        // has that number.
        for (over, ways, all) in
            [("clients", [792.0, 1485.0, 660.0, 66.0], 3003.0), ("counts", [40.0, 31.0, 20.0, 10.0], 101.0)]
        {
            let text = format!("ratio = 0.5\nclusters = 5\nevenly_over = \"{over}\"");
            let mut found = [0.0; 4];
            for up in up_by_round("dropout", &text, 20, n_rounds) {
                let count = (8..12).filter(|&idx| up.get(idx)).count();
                found[count - 1] += 1.0 / f64::from(n_rounds);
            }
            for (found, ways) in found.into_iter().zip(ways) {
                let probability: f64 = ways / all;
                let error = (probability * (1.0 - probability) / f64::from(n_rounds)).sqrt();
                assert!((found - probability).abs() < 5.0 * error, "{over}: {found} for {probability}");
            }
        }
    }

    #[test]
    fn clusters_are_blocks_a_list_or_those_of_the_data() {
        // Two of five clients are up, one of each cluster, so the only client of the last cluster is.
        for up in up_by_round("dropout", "ratio = 0.6\nclusters = [4, 1]", 5, 50) {
            assert!(up.get(4) && up.count() == 2);
        }
        // With three blocks for 10 clients, the last block is clients 7 to 9.
        for up in up_by_round("dropout", "ratio = 0.7\nclusters = 3", 10, 50) {
            assert!((7..10).filter(|&idx| up.get(idx)).count() == 1 && up.count() == 3);
        }
        // In the data of these tests client `idx` is in cluster `idx % 4`.
        for up in up_by_round("dropout", "ratio = 0.6\nclusters = \"data\"", 10, 50) {
            assert!((0..4).all(|cluster| up.iter().any(|idx| idx % 4 == cluster)) && up.count() == 4);
        }
    }

    #[test]
    fn clusters_that_all_clients_left_need_no_client() {
        let mut world = build("dropout", "ratio = 0.75\nclusters = 5", 20).unwrap();
        let mut enrolled = everybody(20);
        let mut up = Bits::new(20);
        (0..17).for_each(|idx| enrolled.set(idx, false));
        for number in 0..50 {
            world.mark_up(number, &enrolled, &mut up);
            up.intersect(&enrolled);
            // A quarter of three clients is less than one, but one client of the cluster stays up.
            assert_eq!(up.count(), 1);
        }
    }

    #[test]
    fn too_many_compositions_are_refused() {
        let text = "ratio = 0.5\nclusters = 100\nevenly_over = \"counts\"";
        assert!(build("dropout", text, 2000).is_ok());
        let Err(error) = build("dropout", text, 4000) else { panic!("the table was not refused") };
        assert_eq!(
            error.to_string(),
            "a.toml:5:1: world.availability.evenly_over = \"counts\": 2000 clients up times 100 clusters is \
             more than 100000; give \"clients\""
        );
    }

    #[test]
    fn impossible_settings_are_reported_with_the_remedy() {
        check_refused(
            "dropout",
            &[
                ("", "ratio: missing; it has no default"),
                ("ratio = 1.5", "ratio = 1.5: 1.5 is out of range; give a probability from 0 to 1"),
                (
                    "ratio = 0.8\nclusters = 5",
                    "ratio = 0.8: 2 of 10 clients stay up, fewer than the 5 clusters; give at most 0.5",
                ),
                (
                    "ratio = 0.8\nclusters = \"data\"",
                    "ratio = 0.8: 2 of 10 clients stay up, fewer than the 4 clusters; give at most 0.6",
                ),
                (
                    "ratio = 0.1\nclusters = 11",
                    "clusters = 11: there are more clusters than clients; give at most 10",
                ),
                (
                    "ratio = 0.1\nevenly_over = \"counts\"",
                    "evenly_over = \"counts\": it needs clusters; give clusters, or leave it out",
                ),
                ("ratio = 0.1\nclusters = 0", "clusters = 0: give at least 1 cluster"),
                (
                    "ratio = 0.1\nclusters = [4, 4]",
                    "clusters = [4, 4]: they hold 8 clients, but the data has 10",
                ),
                (
                    "ratio = 0.1\nclusters = \"all\"",
                    "clusters = \"all\": expected the number of clusters, a list of their sizes, or \"data\"",
                ),
            ],
        );
    }
}
