//! SYNTHETIC(alpha, beta): clients whose features and labelling differ, by degrees that two parameters set.
//!
//! Li et al., "Federated Optimization in Heterogeneous Networks" (2020), as in its code: alpha and beta are
//! standard deviations, and even (0, 0) gives every client a labelling of its own. The IID variant has one
//! labelling and one distribution of features for all; `clusters` lets groups of clients share a labelling.

use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_round::{ClientId, Stream};
use ebb_settings::{Entry, NonNegative, Probability, Settings, SettingsError};
use serde::{Deserialize, Serialize};

use super::{LabelledTask, Partition, Samples};
use crate::Task;
use crate::net::{self, Input, Net};
use crate::split::sizes;

/// The registry entry.
pub const ENTRY: Entry<dyn Task> = Entry {
    name: "synthetic",
    about: "SYNTHETIC(alpha, beta) for logistic regression: 60 features, 10 classes, sizes by a power law",
    example: "clients = 30
alpha = 1.0                # how much labellings differ
beta = 1.0                 # how much features differ
iid = false                # one labelling and one distribution of features for all
# clusters = 5             # clients of a cluster share one labelling
features = 60
classes = 10
samples_min = 50           # plus a log-normal number of samples
# samples_max = 500
# samples = 100            # the same for all, instead; or a [data.sizes] table
test_share = 0.1
# seed = 1                 # fixes the data when the run's seed varies",
    build: |settings| {
        let synthetic = settings.parse_without::<SyntheticTable>(&["kind", "sizes"])?;
        if synthetic.iid && synthetic.clusters.is_some() {
            return Err(
                settings.error("clusters", "iid = true has one labelling for all; leave out one of them")
            );
        }
        if synthetic.clusters.is_some_and(|clusters| clusters > synthetic.clients) {
            return Err(settings.error("clusters", format!("more than the {} clients", synthetic.clients)));
        }
        if synthetic.samples_max.is_some_and(|max| max < synthetic.min_samples()) {
            let min_samples = synthetic.min_samples();
            return Err(settings.error("samples_max", format!("below samples_min = {min_samples}")));
        }
        if synthetic.test_share.get() == 1.0 {
            return Err(settings.error("test_share", "leaves nothing to train on; give a share below 1"));
        }
        let gigabytes = synthetic.expected_bytes() / 1e9;
        if gigabytes > MAX_GIGABYTES {
            let message = format!("about {gigabytes:.0} GB of data; keep it under {MAX_GIGABYTES} GB");
            return Err(settings.error("clients", message));
        }
        let (width, n_classes) = (synthetic.features.get() as usize, synthetic.classes.get() as usize);
        let sizes = synthetic.drawn_sizes(settings)?;
        let net = net::build(&settings.at_path("model"), Input::Flat(width), n_classes, "logistic")?;
        let data_seed = synthetic.seed.unwrap_or(settings.context().seed);
        let data = synthetic.generate(data_seed, net, settings.context().seed, sizes.as_deref());
        if !data.has_test_data() {
            return Err(
                settings.error("test_share", "leaves no test data; give a larger share or more samples")
            );
        }
        Ok(Box::new(data))
    },
};

/// More than this is probably a typing error.
const MAX_GIGABYTES: f64 = 64.0;

/// Settings of the generator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SyntheticTable {
    #[serde(default = "thirty")]
    clients: NonZeroU32,
    #[serde(default = "zero")]
    alpha: NonNegative,
    #[serde(default = "zero")]
    beta: NonNegative,
    #[serde(default)]
    iid: bool,
    clusters: Option<NonZeroU32>,
    #[serde(default = "sixty")]
    features: NonZeroU32,
    #[serde(default = "ten")]
    classes: NonZeroU32,
    /// The same number for every client, instead of the power law.
    samples: Option<NonZeroU32>,
    samples_min: Option<NonZeroU32>,
    samples_max: Option<NonZeroU32>,
    #[serde(default = "tenth")]
    test_share: Probability,
    /// Fixes the data when the run's seed varies.
    seed: Option<u64>,
}

fn some(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("a number above 0")
}
fn thirty() -> NonZeroU32 {
    some(30)
}
fn sixty() -> NonZeroU32 {
    some(60)
}
fn ten() -> NonZeroU32 {
    some(10)
}
fn fifty() -> NonZeroU32 {
    some(50)
}
fn zero() -> NonNegative {
    NonNegative::new(0.0).expect("0 is not negative")
}
fn tenth() -> Probability {
    Probability::new(0.1).expect("a tenth is a probability")
}

/// Samples in the order in which they are drawn, client by client.
#[derive(Default)]
struct SyntheticPart {
    rows: Vec<f32>,
    labels: Vec<u32>,
    by_client: Vec<Vec<u32>>,
}

impl SyntheticPart {
    /// Adds the next client's samples.
    fn add_client<'r>(&mut self, rows: impl Iterator<Item = (&'r [f32], u32)>) {
        let start = self.labels.len() as u32;
        for (row, label) in rows {
            self.rows.extend_from_slice(row);
            self.labels.push(label);
        }
        self.by_client.push((start..self.labels.len() as u32).collect());
    }

    fn into_partition(self, width: usize) -> Partition {
        Partition {
            samples: Arc::new(Samples::from_floats(self.rows, self.labels, width)),
            by_client: self.by_client,
        }
    }
}

/// How features become a label: the class with the highest linear score.
struct Labelling {
    matrix: Vec<f64>,
    bias: Vec<f64>,
}

impl SyntheticTable {
    /// The sizes that `[data.sizes]` describes, client by client.
    fn drawn_sizes(&self, settings: &Settings<'_>) -> Result<Option<Vec<usize>>, SettingsError> {
        if !settings.inner("sizes").is_written() {
            return Ok(None);
        }
        if let Some(key) = ["samples_min", "samples_max"].into_iter().find(|key| settings.has(key)) {
            return Err(settings.error(key, "data.sizes sets the sizes; leave out one of them"));
        }
        let n_clients = self.clients.get() as usize;
        let seed = self.seed.unwrap_or(settings.context().seed);
        let sizes = sizes::build(settings, self.samples, n_clients, &mut Stream::of_run(seed, "sizes"))?;
        let message = "it needs a size; give data.samples, or another kind";
        sizes.list(n_clients).map(Some).ok_or_else(|| settings.inner("sizes").error("kind", message))
    }

    fn generate(&self, seed: u64, net: Net, net_seed: u64, sizes: Option<&[usize]>) -> LabelledTask {
        let width = self.features.get() as usize;
        let n_clients = self.clients.get() as usize;
        let clusters: Option<Vec<u32>> = self.clusters.map(|clusters| {
            (0..n_clients).map(|idx| (idx * clusters.get() as usize / n_clients) as u32).collect()
        });
        let stds: Vec<f64> = (1..=width).map(|j| libm::pow(j as f64, -0.6)).collect();
        let (mut train, mut test) = (SyntheticPart::default(), SyntheticPart::default());
        let mut row = vec![0.0_f32; width];
        for idx in 0..n_clients {
            let client = ClientId::new(idx);
            // Clients of a cluster draw their labelling from the cluster's stream, the others from their own.
            let group = clusters.as_ref().map_or(client, |clusters| ClientId::new(clusters[idx] as usize));
            let labelling = self.draw_labelling(seed, group);
            let means = self.feature_means(seed, client);
            let mut stream = Stream::of_client(seed, "synthetic samples", client);
            let n_samples = sizes.map_or_else(|| self.n_samples(&mut stream), |sizes| sizes[idx]);
            let mut rows = Vec::with_capacity(n_samples * width);
            let mut labels = Vec::with_capacity(n_samples);
            for _ in 0..n_samples {
                for ((value, mean), std) in row.iter_mut().zip(&means).zip(&stds) {
                    *value = (mean + std * stream.normal()) as f32;
                }
                labels.push(labelling.label(&row));
                rows.extend_from_slice(&row);
            }
            let mut order: Vec<usize> = (0..n_samples).collect();
            stream.shuffle(&mut order);
            let n_train = (n_samples as f64 * (1.0 - self.test_share.get())) as usize;
            let (for_training, for_test) = order.split_at(n_train.max(1));
            let pick = |at: &usize| (&rows[at * width..(at + 1) * width], labels[*at]);
            train.add_client(for_training.iter().map(pick));
            test.add_client(for_test.iter().map(pick));
        }
        LabelledTask::new(net, net_seed, train.into_partition(width), test.into_partition(width), clusters)
    }

    /// Expected memory of the samples and of one labelling per client.
    fn expected_bytes(&self) -> f64 {
        // The mean of LogNormal(4, 2) is `e^6`.
        let drawn = f64::from(self.min_samples().get()) + 403.0;
        let most = self.samples_max.map_or(f64::INFINITY, |most| f64::from(most.get()));
        let per_client = self.samples.map_or(drawn.min(most), |samples| f64::from(samples.get()));
        let width = f64::from(self.features.get());
        let labelling = 8.0 * width * f64::from(self.classes.get());
        f64::from(self.clients.get()) * per_client * 4.0 * (width + 1.0) + labelling
    }

    fn draw_labelling(&self, seed: u64, group: ClientId) -> Labelling {
        let (mut stream, centre) = if self.iid {
            (Stream::of_run(seed, "synthetic labelling"), 0.0)
        } else {
            let mut stream = Stream::of_client(seed, "synthetic labelling", group);
            let centre = self.alpha.get() * stream.normal();
            (stream, centre)
        };
        let n_classes = self.classes.get() as usize;
        let n_weights = n_classes * self.features.get() as usize;
        let mut draw = |count: usize| (0..count).map(|_| centre + stream.normal()).collect::<Vec<_>>();
        Labelling { matrix: draw(n_weights), bias: draw(n_classes) }
    }

    fn feature_means(&self, seed: u64, client: ClientId) -> Vec<f64> {
        let width = self.features.get() as usize;
        if self.iid {
            return vec![0.0; width];
        }
        let mut stream = Stream::of_client(seed, "synthetic features", client);
        let centre = self.beta.get() * stream.normal();
        (0..width).map(|_| centre + stream.normal()).collect()
    }

    fn min_samples(&self) -> NonZeroU32 {
        self.samples_min.unwrap_or(fifty())
    }

    fn n_samples(&self, stream: &mut Stream) -> usize {
        if let Some(samples) = self.samples {
            return samples.get() as usize;
        }
        let log_normal = libm::exp(4.0 + 2.0 * stream.normal());
        let drawn = log_normal.floor().min(f64::from(u32::MAX / 2)) as u32 + self.min_samples().get();
        drawn.min(self.samples_max.map_or(u32::MAX, NonZeroU32::get)) as usize
    }
}

impl Labelling {
    fn label(&self, row: &[f32]) -> u32 {
        let score = |class: usize| {
            let weights = &self.matrix[class * row.len()..(class + 1) * row.len()];
            self.bias[class]
                + weights.iter().zip(row).map(|(weight, value)| weight * f64::from(*value)).sum::<f64>()
        };
        let mut best = (0, score(0));
        for class in 1..self.bias.len() {
            let found = score(class);
            if found > best.1 {
                best = (class, found);
            }
        }
        best.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;
    use crate::KernelPath;
    use crate::net::named;

    /// The data of a seed, with any network.
    fn generate(synthetic: &SyntheticTable, seed: u64) -> LabelledTask {
        let spec = named("logistic", Input::Flat(synthetic.features.get() as usize), 10).unwrap();
        synthetic.generate(seed, Net::new(&spec, KernelPath::Portable).unwrap(), seed, None)
    }

    fn synthetic(text: &str) -> SyntheticTable {
        let tree = Tree::parse(&format!("[data]\n{text}"), "a.toml").unwrap();
        tree.table("data", BuildContext::default()).parse().unwrap()
    }

    /// Mean over the client's own features, feature by feature.
    fn feature_mean(data: &LabelledTask, client: usize, feature: usize) -> f64 {
        let train = data.train();
        let held = &train.by_client[client];
        held.iter().map(|&idx| f64::from(train.samples.row(idx)[feature])).sum::<f64>() / held.len() as f64
    }

    #[test]
    fn sizes_follow_the_papers_distribution_and_a_tenth_is_held_out() {
        let data = generate(&synthetic("clients = 2000\nfeatures = 1\nclasses = 2\nsamples_max = 4000"), 3);
        let sizes: Vec<_> = (0..2000)
            .map(|idx| (data.train().by_client[idx].len(), data.test().by_client[idx].len()))
            .collect();
        for &(train, test) in &sizes {
            assert!(train + test >= 50 && train == ((train + test) as f64 * 0.9) as usize);
        }
        // The median of floor(LogNormal(4, 2)) + 50 is 50 + e^4 = 104.6; its standard error here is 3.1.
        let mut totals: Vec<_> = sizes.iter().map(|(train, test)| train + test).collect();
        totals.sort_unstable();
        assert!((totals[1000] as f64 - 104.6).abs() < 5.0 * 3.1, "{}", totals[1000]);
    }

    #[test]
    fn sizes_may_follow_a_table_of_their_own() {
        let build = |text: &str| {
            let tree = Tree::parse(&format!("[data]\nkind = \"synthetic\"\nfeatures = 2\n{text}"), "a.toml")
                .unwrap();
            let task =
                (ENTRY.build)(&tree.table("data", BuildContext { seed: 3, ..BuildContext::default() }));
            task.map_err(|error| error.to_string())
        };
        // The resolved settings build the same data again.
        let text = "[data]\nkind = \"synthetic\"\nclients = 3\n[data.sizes]\nkind = \"pareto\"";
        let tree = Tree::parse(text, "a.toml").unwrap();
        let context = BuildContext { seed: 3, ..BuildContext::default() };
        let first = (ENTRY.build)(&tree.table("data", context)).unwrap();
        let again = Tree::parse(&tree.resolved(), "settings.toml").unwrap();
        let again = (ENTRY.build)(&again.table("data", context)).map_err(|error| error.to_string()).unwrap();
        for client in (0..3).map(ClientId::new) {
            assert_eq!(again.samples(client), first.samples(client));
        }
        let task = build("clients = 3\n[data.sizes]\nkind = \"given\"\nsamples = [10, 20, 100]").unwrap();
        assert_eq!([0, 1, 2].map(|idx| task.samples(ClientId::new(idx))), [9, 18, 90]);
        let task = build("clients = 400\n[data.sizes]\nkind = \"pareto\"\nleast = 50\nmost = 300").unwrap();
        let sizes: Vec<_> = (0..400).map(|idx| task.samples(ClientId::new(idx))).collect();
        assert!(sizes.iter().all(|size| (45..=270).contains(size)));
        // The geometric mean of the bounds, sqrt(50 * 300), with nine tenths trained on; the standard
        // deviation of one size is about 64.
        let mean = sizes.iter().map(|&size| f64::from(size)).sum::<f64>() / 400.0;
        assert!((mean - 0.9 * 122.5).abs() < 5.0 * 64.0 / 20.0, "{mean}");
        for (text, expected) in [
            (
                "samples_min = 3\n[data.sizes]\nkind = \"pareto\"",
                "a.toml:4:1: data.samples_min = 3: data.sizes sets the sizes",
            ),
            ("[data.sizes]\nkind = \"equal\"", "a.toml:5:1: data.sizes.kind = \"equal\": it needs a size"),
        ] {
            let error = build(text).err().unwrap();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn features_spread_as_in_the_paper() {
        let data = generate(&synthetic("clients = 1\nsamples = 40000"), 5);
        let samples = &data.train().samples;
        for feature in [0, 9, 59] {
            let mean = feature_mean(&data, 0, feature);
            let variance = (0..samples.len())
                .map(|idx| (f64::from(samples.row(idx as u32)[feature]) - mean).powi(2))
                .sum::<f64>()
                / samples.len() as f64;
            let expected = ((feature + 1) as f64).powf(-1.2);
            assert!(
                (variance / expected - 1.0).abs() < 5.0 * (2.0 / 36_000.0_f64).sqrt(),
                "{feature}: {variance}"
            );
        }
    }

    #[test]
    fn iid_clients_share_one_distribution_and_others_do_not() {
        let spread = |text: &str| {
            let data = generate(&synthetic(text), 1);
            let means: Vec<_> = (0..20).map(|client| feature_mean(&data, client, 0)).collect();
            let centre = means.iter().sum::<f64>() / 20.0;
            (means.iter().map(|mean| (mean - centre).powi(2)).sum::<f64>() / 20.0).sqrt()
        };
        assert!(spread("clients = 20\nsamples = 1000\niid = true") < 0.1);
        assert!(spread("clients = 20\nsamples = 1000") > 0.5);
    }

    #[test]
    fn clients_of_a_cluster_share_a_labelling() {
        let same = |clusters: &str, one: usize, two: usize| {
            let synthetic = synthetic(&format!("clients = 20\nsamples = 50\n{clusters}"));
            let data = generate(&synthetic, 1);
            let group = |idx| data.oracle_cluster(ClientId::new(idx)).map_or(idx, |cluster| cluster as usize);
            let labelling = |idx| synthetic.draw_labelling(1, ClientId::new(group(idx))).matrix;
            labelling(one) == labelling(two)
        };
        assert!(same("clusters = 5", 0, 3) && !same("clusters = 5", 3, 4));
        assert!(!same("", 0, 3));
    }

    #[test]
    fn the_same_seed_gives_the_same_data_and_another_does_not() {
        let first = |seed| {
            let data = generate(&synthetic("clients = 3\nalpha = 1.0\nbeta = 1.0"), seed);
            data.train().samples.row(data.train().by_client[2][0])
        };
        assert!(first(1) == first(1) && first(1) != first(2));
    }
}
