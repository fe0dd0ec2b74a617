//! `ebbflow similarity`: the client-similarity matrix of a run, as a table and a plot.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ebb_plot::{HeatMap, PlotError, Size, Svg, Theme};
use ebb_record::{RunFolder, SimilarityPair};
use ebb_report::similarity::matrix;
use ebb_round::ClientId;
use ebb_settings::BuildContext;
use serde::Serialize;

use crate::CliError;
use crate::args::SimilarityArgs;
use crate::assemble::{planned_seed_and_rounds, read_for_inspection};
use crate::output::{
    TextTable, bold, count, default_output_folder, print_files, print_line, resume_command, write_plot,
};

/// With more clients than this, the table shows only the first ones.
const MAX_TABLE_CLIENTS: usize = 2000;

/// How many clients the table of a large fleet shows.
const SHOWN_CLIENTS: usize = 50;

/// How many friends of each client are shown.
const SHOWN_FRIENDS: usize = 3;

pub(crate) fn run(args: &SimilarityArgs) -> Result<(), CliError> {
    let run = RunFolder::open(&args.run)?;
    let round = chosen_round(&run, args)?;
    let friends = run.similarities(round)?;
    let (clusters, notes) = match true_clusters(&args.run, args.data_folder.data.as_deref()) {
        Ok(clusters) => (clusters, Vec::new()),
        Err(error) => (Vec::new(), vec![format!("the true clusters are unknown here: {error}")]),
    };
    let view = SimilarityView::new(round, friends, &clusters, notes);
    if args.view.json {
        return print_line(&serde_json::to_string(&view).expect("numbers and text make JSON"));
    }
    let folder = args.out.clone().unwrap_or_else(|| default_output_folder("friends", &args.run));
    // Files first, because the output may be closed early.
    let files = view.write(&folder, args.view.colours.theme())?;
    print_line(&bold(&args.run.display().to_string()))?;
    view.print()?;
    print_line("")?;
    print_files(&files)
}

/// The share of clients whose similarity separates their true cluster from all others, and the gap between
/// mean similarities within and between clusters. `None` without comparisons or true clusters.
pub(crate) fn cluster_separation(folder: &Path, data: Option<&Path>) -> Result<Option<(f64, f64)>, CliError> {
    let run = RunFolder::open(folder)?;
    let Some(&last) = run.similarity_rounds()?.last() else { return Ok(None) };
    let view = SimilarityView::new(last, run.similarities(last)?, &true_clusters(folder, data)?, Vec::new());
    let found = view.oracle.and_then(|oracle| {
        let share = oracle.told_apart as f64 / oracle.told_apart_of as f64;
        Some((share, oracle.mean_inside? - oracle.mean_between?))
    });
    Ok(found)
}

/// The round whose matrix is shown, if the run recorded any.
fn chosen_round(run: &RunFolder, args: &SimilarityArgs) -> Result<u32, CliError> {
    let (rounds, name) = (run.similarity_rounds()?, args.run.display());
    let Some(&last) = rounds.last() else {
        let how = "recipe = \"fl-fdms\", or substitute.kind = \"friend\"";
        let why = if run.summary()?.is_some() {
            format!(
                "this run has no similarity matrix, because its substitution does not compare clients; use {how}"
            )
        } else {
            let resume = resume_command(&args.run);
            format!(
                "no similarity matrix is recorded yet; {how} records it with checkpoints and at the end. Resume with: {resume}"
            )
        };
        return Err(CliError::Usage(format!("{name}: {why}")));
    };
    match args.round {
        None => Ok(last),
        Some(round) if rounds.contains(&round) => Ok(round),
        Some(round) => {
            let known: Vec<_> = rounds.iter().map(u32::to_string).collect();
            Err(CliError::Usage(format!(
                "--round {round}: {name} has similarity matrices after these rounds: {}; give one of them, or leave out --round",
                known.join(", ")
            )))
        }
    }
}

/// The true cluster of each client, from the data that the run's settings name; empty if the data has no
/// clusters.
fn true_clusters(run: &Path, place: Option<&Path>) -> Result<Vec<u32>, CliError> {
    let tree = read_for_inspection(run, &[], place, None)?;
    let seed = u64::from(planned_seed_and_rounds(&tree)?.0);
    let task = crate::tasks::build(&tree.table("data", BuildContext { seed, ..BuildContext::default() }))?;
    Ok((0..task.n_clients()).map_while(|idx| task.oracle_cluster(ClientId::new(idx))).collect())
}

/// The similarity matrix, and the oracle's metrics about it.
#[derive(Debug, Serialize)]
struct SimilarityView {
    /// The number of rounds done.
    round: u32,
    n_clients: usize,
    pairs_met: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    oracle: Option<Oracle>,
    clients: Vec<Client>,
    notes: Vec<String>,
    #[serde(skip)]
    pairs: Vec<SimilarityPair>,
}

#[derive(Debug, Serialize)]
struct Client {
    client: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    oracle_cluster: Option<u32>,
    /// The most similar first.
    friends: Vec<Friend>,
    /// Whether the best friend is in the same cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    oracle_same: Option<bool>,
}

#[derive(Clone, Debug, Serialize)]
struct Friend {
    client: u32,
    similarity: f64,
    met: u32,
    last_met: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    oracle_cluster: Option<u32>,
}

/// How well similarity separates the true clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Oracle {
    /// The mean over pairs within one cluster.
    mean_inside: Option<f64>,
    /// The mean over pairs of two clusters.
    mean_between: Option<f64>,
    /// The number of clients that are more similar to all of their cluster than to anyone else.
    told_apart: usize,
    /// The number of clients that were compared both within and beyond their cluster.
    told_apart_of: usize,
}

impl SimilarityView {
    fn new(round: u32, mut pairs: Vec<SimilarityPair>, clusters: &[u32], notes: Vec<String>) -> Self {
        let pairs_met = pairs.len();
        // Pairs whose updates diverged count as never compared.
        pairs.retain(|pair| pair.similarity.is_finite());
        let cluster = |client: u32| clusters.get(client as usize).copied();
        let mut friends: BTreeMap<u32, Vec<Friend>> = BTreeMap::new();
        for pair in &pairs {
            for (one, other) in [(pair.client, pair.other), (pair.other, pair.client)] {
                let SimilarityPair { similarity, n_shared_rounds: met, last_shared_round: last_met, .. } =
                    *pair;
                let friend =
                    Friend { client: other, similarity, met, last_met, oracle_cluster: cluster(other) };
                friends.entry(one).or_default().push(friend);
            }
        }
        let oracle = (!clusters.is_empty()).then(|| Oracle::of(&friends, cluster));
        let clients = friends.into_iter().map(|(client, mut friends)| {
            friends.sort_by(|one, other| {
                other.similarity.total_cmp(&one.similarity).then(one.client.cmp(&other.client))
            });
            friends.truncate(SHOWN_FRIENDS);
            let oracle_cluster = cluster(client);
            let oracle_same = oracle_cluster.and_then(|own| Some(friends.first()?.oracle_cluster? == own));
            Client { client, oracle_cluster, friends, oracle_same }
        });
        let clients: Vec<_> = clients.collect();
        SimilarityView { round, n_clients: clients.len(), pairs_met, oracle, clients, notes, pairs }
    }

    fn print(&self) -> Result<(), CliError> {
        let n_clients = self.clients.len();
        let possible = n_clients * n_clients.saturating_sub(1) / 2;
        let rounds = count(u64::from(self.round), "round");
        let clients = count(n_clients as u64, "client");
        print_line(&format!(
            "after {rounds}: {clients} were compared with another, {} of {possible} pairs compared",
            self.pairs_met
        ))?;
        if let Some(oracle) = self.oracle {
            oracle.print()?;
        }
        self.notes.iter().try_for_each(|note| print_line(&format!("note: {note}")))?;
        if n_clients == 0 {
            return print_line("no clients were compared: no round had two updates");
        }
        print_line("")?;
        self.print_table()
    }

    fn print_table(&self) -> Result<(), CliError> {
        let mut headings =
            vec!["client", "best friend: similarity (times compared, last round)", "second", "third"];
        if self.oracle.is_some() {
            headings.extend(["oracle cluster", "oracle friends'", "oracle same"]);
        }
        let shown = if self.clients.len() > MAX_TABLE_CLIENTS { SHOWN_CLIENTS } else { self.clients.len() };
        let mut table = TextTable::new(headings.len(), headings);
        for client in &self.clients[..shown] {
            table.row(client.cells(self.oracle.is_some()));
        }
        table.print()?;
        match self.clients.len() - shown {
            0 => Ok(()),
            more => {
                print_line(&format!("... and {}; --json has them all", count(more as u64, "more client")))
            }
        }
    }

    /// Draws the matrix, if there is one; returns the paths of the files.
    fn write(&self, folder: &Path, theme: Theme) -> Result<Vec<(&'static str, PathBuf)>, CliError> {
        let clusters: BTreeMap<u32, Option<u32>> =
            self.clients.iter().map(|one| (one.client, one.oracle_cluster)).collect();
        let cluster = |client: u32| clusters.get(&client).copied().flatten();
        let Some(map) = matrix(self.round, &self.pairs, cluster) else { return Ok(Vec::new()) };
        let name = format!("round-{:06}", self.round);
        let files = write_plot(folder, &name, &draw(&map, theme)?)?;
        Ok(files.map(|file| ("plot", file)).to_vec())
    }
}

fn draw(map: &HeatMap, theme: Theme) -> Result<Svg, PlotError> {
    let side_px = (36 * map.rows.len() as u32).clamp(320, 900);
    map.draw(theme, Size { width_px: side_px + 150, height_px: side_px + 130 })
}

impl Client {
    fn cells(&self, with_oracle: bool) -> Vec<String> {
        let friend = |at: usize| match self.friends.get(at) {
            None => "-".to_owned(),
            Some(friend) => {
                let Friend { client, similarity, met, last_met, .. } = friend;
                format!("{client}: {similarity:.4} ({met}, {last_met})")
            }
        };
        let mut cells = vec![self.client.to_string()];
        cells.extend((0..SHOWN_FRIENDS).map(friend));
        if with_oracle {
            let cluster =
                |cluster: Option<u32>| cluster.map_or("-".to_owned(), |cluster| cluster.to_string());
            let theirs: Vec<_> = self.friends.iter().map(|friend| cluster(friend.oracle_cluster)).collect();
            let same = self.oracle_same.map_or("-", |same| if same { "yes" } else { "no" });
            cells.extend([cluster(self.oracle_cluster), theirs.join(" "), same.to_owned()]);
        }
        cells
    }
}

impl Oracle {
    fn of(friends: &BTreeMap<u32, Vec<Friend>>, cluster: impl Fn(u32) -> Option<u32>) -> Self {
        let mut oracle = Oracle::default();
        let (mut within, mut between) = (Mean::default(), Mean::default());
        for (&client, friends) in friends {
            let Some(own) = cluster(client) else { continue };
            let (mut least_within, mut most_outside) = (f64::INFINITY, f64::NEG_INFINITY);
            for friend in friends {
                match friend.oracle_cluster {
                    Some(cluster) if cluster == own => {
                        within.add(friend.similarity);
                        least_within = least_within.min(friend.similarity);
                    }
                    Some(_) => {
                        between.add(friend.similarity);
                        most_outside = most_outside.max(friend.similarity);
                    }
                    None => {}
                }
            }
            if least_within.is_finite() && most_outside.is_finite() {
                oracle.told_apart_of += 1;
                oracle.told_apart += usize::from(least_within > most_outside);
            }
        }
        Oracle { mean_inside: within.get(), mean_between: between.get(), ..oracle }
    }

    fn print(&self) -> Result<(), CliError> {
        let mean = |mean: Option<f64>| mean.map_or("-".to_owned(), |mean| format!("{mean:.4}"));
        print_line(&format!(
            "oracle: mean similarity {} within true clusters, {} between them; for {} of {} the least similar \
             client within is more similar than any outside",
            mean(self.mean_inside),
            mean(self.mean_between),
            self.told_apart,
            count(self.told_apart_of as u64, "client"),
        ))
    }
}

/// A running mean. Each pair is seen from both its ends, which changes no mean.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    n: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.n += 1;
    }

    fn get(self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / self.n as f64)
    }
}
