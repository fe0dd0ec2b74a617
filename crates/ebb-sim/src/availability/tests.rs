//! What every kind of availability must keep, and what tests of single kinds have in common.

use std::num::NonZeroU32;

use ebb_round::{Bits, ClientId, Job, Layout, Loader, RoundNo, Saver};
use ebb_settings::{BuildContext, Entry, SettingsError, Tree};
use ebb_train::{LocalTrainer, Tally, Task};

use super::{ALL, Availability};

/// Ten classes: client `idx` holds label `idx % 10`, and from 10 on as often the next; its cluster is `idx % 4`.
struct StubTask {
    n_clients: usize,
    labelled: bool,
    layout: Layout,
}

impl Task for StubTask {
    fn n_clients(&self) -> usize {
        self.n_clients
    }
    fn samples(&self, _client: ClientId) -> u32 {
        10
    }
    fn oracle_cluster(&self, client: ClientId) -> Option<u32> {
        self.labelled.then_some(client.number() % 4)
    }
    fn class_counts(&self, client: ClientId) -> Option<Vec<u32>> {
        let mut counts = vec![0; 10];
        counts[client.idx() % 10] += 5;
        counts[(client.idx() + client.idx().min(10) / 10) % 10] += 5;
        self.labelled.then_some(counts)
    }
    fn layout(&self) -> &Layout {
        &self.layout
    }
    fn initial(&self) -> Vec<f32> {
        Vec::new()
    }
    fn begin<'t>(&'t self, _: ClientId, _: &'t Job, _: u64, _: NonZeroU32) -> Box<dyn LocalTrainer + 't> {
        unreachable!("nobody trains here")
    }
    fn loss(&self, _client: ClientId, _model: &[f32]) -> f32 {
        0.0
    }
    fn has_accuracy(&self) -> bool {
        false
    }
    fn n_test_batches(&self) -> usize {
        0
    }
    fn evaluate_batch(&self, _piece: usize, _model: &[f32]) -> Tally {
        Tally::default()
    }
    fn evaluate_client(&self, _client: ClientId, _model: &[f32]) -> Option<Tally> {
        None
    }
}

fn build_with(
    kind: &str,
    text: &str,
    n_clients: usize,
    seed: u64,
    labelled: bool,
) -> Result<Box<dyn Availability>, SettingsError> {
    let tree = Tree::parse(&format!("[world.availability]\nkind = \"{kind}\"\n{text}"), "a.toml")?;
    build_from(&tree, kind, n_clients, seed, labelled)
}

fn build_from(
    tree: &Tree,
    kind: &str,
    n_clients: usize,
    seed: u64,
    labelled: bool,
) -> Result<Box<dyn Availability>, SettingsError> {
    let settings = tree.table("world.availability", BuildContext { seed, n_clients, n_rounds: 0 });
    let entry = ALL.iter().find(|entry| entry.name == kind).expect("a kind of the registry");
    settings.resolve_kind(kind);
    let mut world = (entry.build)(&settings)?;
    world.prepare(&StubTask { n_clients, labelled, layout: Layout::new(Vec::new()) })?;
    Ok(world)
}

/// A world that has met its data.
pub(super) fn build(
    kind: &str,
    text: &str,
    n_clients: usize,
) -> Result<Box<dyn Availability>, SettingsError> {
    build_with(kind, text, n_clients, 4, true)
}

/// Everybody.
pub(super) fn everybody(n_clients: usize) -> Bits {
    let mut all = Bits::new(n_clients);
    all.fill_words(|_| u64::MAX);
    all
}

/// Who is up in each round, everybody being enrolled.
pub(super) fn up_by_round(kind: &str, text: &str, n_clients: usize, n_rounds: u32) -> Vec<Bits> {
    let mut world = build(kind, text, n_clients).unwrap();
    let mut up = Bits::new(n_clients);
    let round = |number| {
        world.mark_up(number, &everybody(n_clients), &mut up);
        up.clone()
    };
    (0..n_rounds).map(round).collect()
}

/// In what share of the rounds each client is up.
pub(super) fn up_shares(kind: &str, text: &str, n_clients: usize, n_rounds: u32) -> Vec<f64> {
    let mut counts = vec![0; n_clients];
    for up in up_by_round(kind, text, n_clients, n_rounds) {
        up.iter().for_each(|idx| counts[idx] += 1);
    }
    counts.into_iter().map(|count| f64::from(count) / f64::from(n_rounds)).collect()
}

/// What is said of wrong settings for ten clients, after the place.
pub(super) fn check_refused(kind: &str, cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        let Err(error) = build(kind, text, 10) else { panic!("{kind} takes {text}") };
        assert!(error.origin.is_some(), "{error}");
        let error = SettingsError { origin: None, ..error }.to_string();
        assert_eq!(error, format!("world.availability.{expected}"), "{text}");
    }
}

/// Every kind with every law, shape and source of chances.
const WORLDS: &[(&str, &str)] = &[
    ("always", ""),
    ("bernoulli", "probability = 0.4"),
    ("bernoulli", "classes = [{ share = 0.5, probability = 0.1 }, { share = 0.5, probability = 0.9 }]"),
    ("dropout", "ratio = 0.5"),
    ("dropout", "ratio = 0.4\nclusters = 1\nfull_first_round = true"),
    ("dropout", "ratio = 0.4\nclusters = 1\nevenly_over = \"counts\""),
    ("dropout", "ratio = 0.0\nclusters = \"data\""),
    ("index", "distribution = \"beta\"\nshare = 0.3"),
    ("index", "distribution = \"beta\"\na = 20.0\nb = 1.0"),
    ("index", "distribution = \"gamma\""),
    ("index", "distribution = \"gamma\"\nshape = 5.0\nscale = 0.05"),
    ("index", "distribution = \"weibull\""),
    ("index", "distribution = \"weibull\"\nshape = 20.0"),
    ("markov", "probability = 0.3"),
    ("markov", "down_to_up = 0.2\nup_to_down = 0.3"),
    ("markov", "by_labels = { distribution = \"dirichlet\", mean = 0.3 }"),
    ("cyclic", "cycle = 7\nprobability = 0.4"),
    ("cyclic", "cycle = 7\nby_labels = { distribution = \"smallest\" }"),
    ("periodic", "groups = 1\nrounds = 3"),
    ("non-stationary", "probability = 0.5"),
    ("non-stationary", "shape = \"staircase\"\nby_labels = { distribution = \"uniform\" }"),
    ("non-stationary", "shape = \"interleaved\"\nprobability = 0.5"),
    ("tau-max", ""),
    ("tau-max", "tau = 5\nbegin = \"apart\""),
    ("min-separation", "rounds = 2"),
    ("min-separation", "rounds = 2\nprobability = 0.5"),
    ("labels", "mean = 0.3"),
    ("labels", "distribution = \"uniform\""),
    ("adversarial", ""),
];

/// Plays a round in which a third of those that are up are asked.
fn play(world: &mut dyn Availability, number: RoundNo, enrolled: &Bits) -> Vec<usize> {
    let mut up = Bits::new(enrolled.len());
    world.mark_up(number, enrolled, &mut up);
    up.intersect(enrolled);
    let selected = up.iter().filter(|idx| (idx + number as usize).is_multiple_of(3));
    selected.for_each(|idx| world.took_part(number, ClientId::new(idx)));
    up.iter().collect()
}

/// All kinds but the one that needs a file, which has tests of its own.
fn synthetic_kinds() -> impl Iterator<Item = &'static Entry<dyn Availability>> {
    ALL.iter().filter(|entry| entry.name != "trace")
}

#[test]
fn every_kind_has_an_example_that_builds_and_is_tried_below() {
    for entry in synthetic_kinds() {
        let built = build(entry.name, entry.example, 100);
        assert!(built.is_ok() && !entry.about.is_empty(), "{}: {:?}", entry.name, built.err());
        assert!(WORLDS.iter().any(|(kind, _)| *kind == entry.name), "{}", entry.name);
    }
}

#[test]
fn the_other_choices_of_an_example_build_too() {
    for entry in synthetic_kinds() {
        // A line that begins with `# key = ` takes the place of that key, and a `law` or `shape` of all that follow it.
        let lines: Vec<_> = entry.example.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(other) = line.strip_prefix("# ") else { continue };
            let key = other.split(' ').next().unwrap();
            let exclusive: &[&str] = match key {
                "distribution" | "shape" if other.contains('"') => {
                    let own: Vec<_> = lines[at + 1..]
                        .iter()
                        .map_while(|line| line.strip_prefix("# "))
                        .take_while(|line| !line.starts_with(key))
                        .collect();
                    let probability = if entry.name == "non-stationary" { "probability = 0.5" } else { "" };
                    let text = format!("{other}\n{probability}\n{}", own.join("\n"));
                    assert!(build(entry.name, &text, 100).is_ok(), "{}: {text}", entry.name);
                    continue;
                }
                "classes" | "by_labels" | "up_to_down" => &["probability", "classes"],
                "clusters" | "offset" => &[],
                // Belongs to the law or shape before it.
                _ => continue,
            };
            let rest = lines.iter().filter(|line| !exclusive.iter().any(|key| line.starts_with(key)));
            let rest: Vec<_> = rest.copied().collect();
            let text = format!("{}\n{other}", rest.join("\n")).replace(
                "[{ clients = 25, probability = 0.1 }, {",
                "[{ clients = 25, probability = 0.2 }, {",
            );
            let n_clients = if other.contains("[4, 4, 12]") { 20 } else { 100 };
            let built = build(entry.name, &text, n_clients);
            assert!(built.is_ok(), "{}: {text}: {:?}", entry.name, built.err());
        }
    }
}

#[test]
fn a_seed_is_a_world() {
    for &(kind, text) in WORLDS {
        let world = |seed| {
            let mut world = build_with(kind, text, 200, seed, true).unwrap();
            (0..30).map(|number| play(world.as_mut(), number, &everybody(200))).collect::<Vec<_>>()
        };
        assert_eq!(world(1), world(1), "{kind}: {text}");
        let drawn = !matches!((kind, text), ("always" | "periodic", _) | ("min-separation", "rounds = 2"))
            && !text.starts_with("ratio = 0.0");
        assert_eq!(world(1) != world(2), drawn, "{kind}: {text}");
    }
}

#[test]
fn the_settings_as_resolved_give_the_same_world() {
    for &(kind, text) in WORLDS {
        let tree =
            Tree::parse(&format!("[world.availability]\nkind = \"{kind}\"\n{text}"), "a.toml").unwrap();
        let mut world = build_from(&tree, kind, 100, 4, true).unwrap();
        let resolved = Tree::parse(&tree.resolved(), "resolved.toml").unwrap();
        let mut again = build_from(&resolved, kind, 100, 4, true).unwrap();
        assert_eq!(resolved.resolved(), tree.resolved(), "{kind}: {text}");
        for number in 0..20 {
            let (one, two) = (
                play(world.as_mut(), number, &everybody(100)),
                play(again.as_mut(), number, &everybody(100)),
            );
            assert_eq!(one, two, "{kind}: {text}");
        }
    }
}

#[test]
fn a_world_saved_after_any_round_goes_on_as_if_nothing_had_been() {
    for &(kind, text) in WORLDS {
        let mut world = build(kind, text, 70).unwrap();
        let n_rounds = 12;
        let mut saved = Vec::new();
        let mut played = Vec::new();
        for number in 0..n_rounds {
            let mut state = Saver::new();
            world.save(&mut state);
            saved.push(state.finish());
            played.push(play(world.as_mut(), number, &everybody(70)));
        }
        for (from, bytes) in saved.iter().enumerate() {
            let mut again = build(kind, text, 70).unwrap();
            let mut loader = Loader::new(bytes);
            again.load(&mut loader).unwrap();
            assert!(loader.at_end());
            for number in from as u32..n_rounds {
                let up = play(again.as_mut(), number, &everybody(70));
                assert_eq!(
                    up, played[number as usize],
                    "{kind}: {text}: saved before {from}, round {number}"
                );
            }
            let cut = &bytes[..bytes.len().saturating_sub(1)];
            assert!(bytes.is_empty() || build(kind, text, 70).unwrap().load(&mut Loader::new(cut)).is_err());
        }
    }
}

#[test]
fn newcomers_departures_one_client_and_nobody_are_fine() {
    for &(kind, text) in WORLDS {
        let mut world = build(kind, text, 200).unwrap();
        let mut whole = build(kind, text, 200).unwrap();
        for (number, len) in [0, 0, 1, 1, 63, 64, 65, 150, 200, 200].into_iter().enumerate() {
            let mut enrolled = everybody(len);
            // Some have left, and come back.
            (0..len).filter(|idx| idx % 5 == number % 7).for_each(|idx| enrolled.set(idx, false));
            let mut up = Bits::new(len);
            world.mark_up(number as u32, &enrolled, &mut up);
            up.intersect(&enrolled);
            let mut all_up = Bits::new(200);
            whole.mark_up(number as u32, &everybody(200), &mut all_up);
            // An exact number depends on how many there are; nothing else depends on who else is enrolled.
            if !matches!(kind, "dropout" | "index") {
                all_up.grow(200);
                let mut expected = enrolled.clone();
                expected.intersect(&all_up);
                assert_eq!(up, expected, "{kind}: {text}: round {number}");
            }
        }
        for n_clients in [1, 2] {
            let Ok(mut alone) = build(kind, text, n_clients) else { panic!("{kind}: {text}") };
            for number in 0..30 {
                play(alone.as_mut(), number, &everybody(n_clients));
            }
        }
    }
}

#[test]
fn data_without_classes_or_clusters_is_refused_where_they_matter() {
    for (kind, text, expected) in [
        (
            "labels",
            "",
            "a.toml:2:1: world.availability.kind = \"labels\": the data has no classes; \
             give data with classes, or another kind of availability",
        ),
        (
            "adversarial",
            "",
            "a.toml:2:1: world.availability.kind = \"adversarial\": the data has no classes; \
             give data with classes, or another kind of availability",
        ),
        (
            "cyclic",
            "by_labels = { distribution = \"uniform\" }",
            "a.toml:3:1: world.availability.by_labels: the data has no classes; \
             give data with classes, or another kind of availability",
        ),
        (
            "dropout",
            "ratio = 0.5\nclusters = \"data\"",
            "a.toml:4:1: world.availability.clusters = \"data\": the data has no clusters; \
             give their number, or a list of their sizes",
        ),
    ] {
        let Err(error) = build_with(kind, text, 10, 4, false) else { panic!("{kind} takes any data") };
        assert_eq!(error.to_string(), expected);
    }
}
