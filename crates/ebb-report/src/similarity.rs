//! The similarity of clients, as a heat map.

use std::collections::{BTreeMap, BTreeSet};

use ebb_plot::HeatMap;
use ebb_record::SimilarityPair;

use crate::linkage::{Distances, leaf_order};

/// With more clients than this, the heat map shows this many, evenly chosen.
const MAX_CLIENTS: usize = 2000;

/// With at most this many clients, the heat map shows their numbers.
const MAX_NAMED_CLIENTS: usize = 60;

/// The similarity of all clients that met another: by true cluster where an oracle knows it, else with
/// similar ones next to each other. `None` if no clients met.
pub fn matrix(round: u32, pairs: &[SimilarityPair], cluster: impl Fn(u32) -> Option<u32>) -> Option<HeatMap> {
    let clients: BTreeSet<u32> = pairs.iter().flat_map(|pair| [pair.client, pair.other]).collect();
    let clients: Vec<u32> = clients.into_iter().collect();
    if clients.is_empty() {
        return None;
    }
    let n_drawn = clients.len().min(MAX_CLIENTS);
    let mut drawn: Vec<u32> = (0..n_drawn).map(|at| clients[at * clients.len() / n_drawn]).collect();
    let oracle = drawn.iter().any(|&client| cluster(client).is_some());
    if oracle {
        drawn.sort_by_key(|&client| (cluster(client), client));
    } else {
        drawn = similar_together(&drawn, pairs);
    }
    let mut values = vec![vec![f64::NAN; drawn.len()]; drawn.len()];
    for (one, other, similarity) in indexed_pairs(&drawn, pairs) {
        values[one][other] = similarity;
        values[other][one] = similarity;
    }
    let names: Vec<_> = drawn.iter().map(u32::to_string).collect();
    let in_different_clusters = |two: &[u32]| cluster(two[0]) != cluster(two[1]);
    let breaks =
        drawn.windows(2).enumerate().filter(|(_, two)| in_different_clusters(two)).map(|(at, _)| at + 1);
    let order = if oracle { "by true cluster (oracle)" } else { "similar ones side by side" };
    let some = match drawn.len() < clients.len() {
        true => format!(", {} of {}", drawn.len(), clients.len()),
        false => String::new(),
    };
    let rounds = if round == 1 { "1 round".to_owned() } else { format!("{round} rounds") };
    Some(HeatMap {
        title: format!("Client similarity after {rounds}"),
        x_label: format!("client{some}, {order}"),
        y_label: "client".to_owned(),
        value_label: "similarity".to_owned(),
        rows: names.clone(),
        columns: names,
        values,
        gap_label: "never met".to_owned(),
        blank_diagonal: true,
        hide_names: drawn.len() > MAX_NAMED_CLIENTS,
        breaks: breaks.collect(),
    })
}

/// The pairs among these clients, by their places.
fn indexed_pairs<'p>(
    clients: &[u32],
    pairs: &'p [SimilarityPair],
) -> impl Iterator<Item = (usize, usize, f64)> + use<'p> {
    let place: BTreeMap<u32, usize> = clients.iter().enumerate().map(|(at, one)| (*one, at)).collect();
    pairs
        .iter()
        .filter_map(move |pair| Some((*place.get(&pair.client)?, *place.get(&pair.other)?, pair.similarity)))
}

fn similar_together(clients: &[u32], pairs: &[SimilarityPair]) -> Vec<u32> {
    // Clients that never met are taken to be as far apart as the most dissimilar pair.
    let largest_distance = pairs.iter().map(|pair| 1.0 - pair.similarity).fold(0.0, f64::max);
    let mut distances = Distances::new(clients.len(), largest_distance);
    for (one, other, similarity) in indexed_pairs(clients, pairs) {
        distances.set(one, other, 1.0 - similarity);
    }
    leaf_order(distances).into_iter().map(|at| clients[at]).collect()
}
