//! Invariants of methods: permuting clients changes nothing, empty rounds move nothing, and one method is
//! another's special case.

use std::num::NonZeroUsize;
use std::path::Path;

use ebbflow::cli::assemble::Assembled;
use ebbflow::{Registry, Stream, Tree};

/// The one-parameter model after each round of a run.
fn models(settings: &str) -> Vec<f64> {
    let tree = Tree::parse(settings, "invariants").unwrap();
    let mut run = Assembled::new(&Registry::standard(), tree, Path::new(""), NonZeroUsize::MIN).unwrap();
    (0..run.run_table.rounds.get())
        .map(|_| {
            run.engine.round(&mut run.fleet, &mut run.evaluator).unwrap();
            f64::from(run.engine.model().model[0])
        })
        .collect()
}

/// The methods that move the model without any response, because they remember updates.
const REMEMBERS: [&str; 4] = ["mifa", "fedlaavg", "afl-cs", "stale-update"];

/// Four clients with these centres and sample counts, in a scripted world that lists who responds in each
/// round.
fn world(clients: [(f64, u32); 4], script: &[Vec<usize>]) -> String {
    format!(
        "[run]\nrounds = {}\n[data]\nkind = \"quadratic\"\ncentres = {:?}\nsamples = {:?}\nstart = [10.0]\n[world]\nscript = {script:?}\n",
        script.len(),
        clients.map(|(centre, _)| [centre]),
        clients.map(|(_, samples)| samples)
    )
}

const LOCAL: &str = "[local]\nkind = \"sgd\"\nlearning_rate = 0.1\nsteps = 2\n";
const CLIENTS: [(f64, u32); 4] = [(0.0, 1), (3.0, 2), (6.0, 3), (-4.0, 4)];

/// Everyone in the first round, then clients at random.
fn coins(seed: u64, rounds: u32) -> Vec<Vec<usize>> {
    let mut stream = Stream::of_run(seed, "coins");
    let comes = |number| -> Vec<usize> { (0..4).filter(|_| number == 0 || stream.bernoulli(0.5)).collect() };
    (0..rounds).map(comes).collect()
}

/// Every recipe with full selection at learning rate 0.1, except oracles and recipes that wait for everyone.
fn recipes() -> Vec<(&'static str, String)> {
    let all = Registry::standard().recipes;
    let all = all.iter().filter(|recipe| !recipe.settings.contains("oracle") && recipe.name != "full");
    let settings = |name| {
        format!(
            "recipe = \"{name}\"\nselect.kind = \"everyone\"\nlocal.learning_rate = 0.1\nlocal.steps = 2\n"
        )
    };
    all.map(|recipe| (recipe.name, settings(recipe.name))).collect()
}

#[track_caller]
fn check_same(what: &str, one: &[f64], other: &[f64]) {
    let same = one.iter().zip(other).all(|(one, other)| (one - other).abs() < 2e-5);
    assert!(same && one.len() == other.len(), "{what}: {one:?} is not {other:?}");
}

#[test]
fn client_ids_do_not_matter() {
    let script = coins(1, 12);
    // Client i is now numbered `place[i]`.
    let place = [2, 0, 3, 1];
    let mut clients = CLIENTS;
    (0..4).for_each(|client| clients[place[client]] = CLIENTS[client]);
    let renamed: Vec<_> =
        script.iter().map(|round| round.iter().map(|&client| place[client]).collect()).collect();
    for (name, recipe) in recipes() {
        // Ties between friends go to the lower id, and a buffer fills by id.
        if ["fl-fdms", "fedbuff"].contains(&name) {
            continue;
        }
        let play = |world: String| models(&format!("{recipe}{world}"));
        check_same(name, &play(world(CLIENTS, &script)), &play(world(clients, &renamed)));
    }
}

/// In two dimensions no two pairs of clients have the same similarity, so that there are no ties.
#[test]
fn client_ids_do_not_matter_to_friends() {
    let play = |centres: &str, script: &str| {
        models(&format!(
            "recipe = \"fl-fdms\"\n{LOCAL}[run]\nrounds = 8\n\
             [data]\nkind = \"quadratic\"\ncentres = {centres}\nstart = [10.0, -7.0]\n\
             [world]\nscript = {script}\nafter_script = \"repeat\"\n"
        ))
    };
    let found = play(
        "[[0.0, 1.0], [3.0, 8.0], [6.0, 2.0], [-4.0, 3.0]]",
        "[[0, 1, 2, 3], [0, 1], [2, 3], [1, 2], [0]]",
    );
    let renamed = play(
        "[[3.0, 8.0], [-4.0, 3.0], [0.0, 1.0], [6.0, 2.0]]",
        "[[0, 1, 2, 3], [2, 0], [3, 1], [0, 3], [2]]",
    );
    check_same("fl-fdms", &found, &renamed);
}

/// The model's move over a period is amplified, also after an empty last round: from 10 to 8.67, and half of
/// that again.
#[test]
fn a_period_that_ends_without_updates_is_amplified_all_the_same() {
    for recipe in ["amplified-fedavg", "amplified-scaffold"] {
        let text = format!(
            "recipe = \"{recipe}\"\nserver.every = 2\nserver.factor = 1.5\nselect.kind = \"everyone\"\n\
             local.learning_rate = 0.1\nlocal.steps = 2\n[run]\nrounds = 2\n\
             [data]\nkind = \"quadratic\"\ncentres = [[0.0], [3.0], [6.0]]\nstart = [10.0]\n\
             [world]\nscript = [[0, 1, 2], []]\n"
        );
        check_same(recipe, &models(&text), &[8.67, 8.005]);
    }
}

#[test]
fn a_round_without_updates_moves_nothing_but_what_is_remembered() {
    let script = [vec![0, 1, 2, 3], vec![], vec![0, 2], vec![]];
    for (name, recipe) in recipes() {
        let found = models(&format!("{recipe}{}", world(CLIENTS, &script)));
        let moved = [found[1] - found[0], found[3] - found[2]].map(f64::abs);
        let remembers = REMEMBERS.contains(&name);
        let as_it_should = if remembers { moved[0] > 1e-3 } else { moved[0].max(moved[1]) < 1e-5 };
        assert!(as_it_should, "{name}: {found:?}");
    }
    for (recipe, key) in [("mifa", "aggregate"), ("afl-cs", "aggregate")] {
        let text = format!(
            "recipe = \"{recipe}\"\n{}{LOCAL}[{key}]\nempty_rounds = \"stay\"",
            world(CLIENTS, &script)
        );
        let found = models(&text);
        assert!(found[1] == found[0] && found[3] == found[2], "{recipe}: {found:?}");
    }
}

#[test]
fn among_identical_clients_it_does_not_matter_who_participates() {
    let script = [vec![0, 1, 2, 3], vec![1], vec![0, 3], vec![0, 1, 2, 3]];
    let clients = [(2.0, 1), (2.0, 2), (2.0, 3), (2.0, 4)];
    for recipe in [
        "dropout",
        "fl-fdms",
        "fednova",
        "afl-cd",
        "mimic",
        "fedvarp",
        "fedavg",
        "fast",
        "median",
        "trimmed-mean",
        "krum",
    ] {
        let select = match recipe {
            "fedavg" => "cohort = 2",
            "fast" => "cohort = 2\nprobability = 0.5",
            _ => "kind = \"everyone\"",
        };
        let some =
            models(&format!("recipe = \"{recipe}\"\n{}{LOCAL}[select]\n{select}", world(clients, &script)));
        let full =
            models(&format!("recipe = \"full\"\n{}{LOCAL}", world(clients, &vec![vec![0, 1, 2, 3]; 4])));
        // What was remembered in the first round is everyone's last update only once.
        let rounds = if recipe == "fedvarp" { 2 } else { 4 };
        check_same(recipe, &some[..rounds], &full[..rounds]);
    }
}

#[test]
fn mimic_is_full_participation_where_curvature_is_common() {
    for seed in 1..6 {
        // Empty rounds are left out: they leave the model unchanged, while full participation moves it.
        let script: Vec<_> = coins(seed, 30).into_iter().filter(|round| !round.is_empty()).collect();
        let everybody = vec![vec![0, 1, 2, 3]; script.len()];
        let mimic = models(&format!("recipe = \"mimic\"\n{}{LOCAL}", world(CLIENTS, &script)));
        let full = models(&format!("recipe = \"full\"\n{}{LOCAL}", world(CLIENTS, &everybody)));
        check_same("mimic", &mimic, &full);
    }
}

#[test]
fn mifa_at_a_constant_learning_rate_repeats_the_last_update() {
    let script = coins(3, 30);
    let play = |recipe: &str| models(&format!("recipe = \"{recipe}\"\n{}{LOCAL}", world(CLIENTS, &script)));
    check_same("mifa", &play("mifa"), &play("stale-update"));
    let by_step = models(&format!("recipe = \"afl-cs\"\n{}{LOCAL}", world(CLIENTS, &script)));
    check_same("afl-cs", &by_step, &play("mifa"));
}

#[test]
fn focus_with_one_step_is_mifa_at_a_multiple_of_the_learning_rate() {
    for seed in 1..4 {
        let script: Vec<_> = coins(seed, 40);
        let play = |recipe: &str, learning_rate: f64, empty: &str| {
            models(&format!(
                "recipe = \"{recipe}\"\n{}[local]\nlearning_rate = {learning_rate}\nsteps = 1\n[{empty}]\nempty_rounds = \"step\"",
                world(CLIENTS, &script)
            ))
        };
        check_same("focus", &play("focus", 0.02, "server"), &play("mifa", 0.08, "aggregate"));
    }
}

#[test]
fn fast_is_uniform_with_snapshots_only_and_the_other_without() {
    let up =
        "[world]\navailability = { kind = \"bernoulli\", probability = 0.6 }\nwhen_waited_for = \"never\"\n";
    let all = format!(
        "[run]\nrounds = 40\n[data]\nkind = \"quadratic\"\nclients = 12\ndimension = 1\nspread = 3.0\nnoise = 0.1\n{up}{LOCAL}"
    );
    let fast = |probability: f64, around: &str| {
        models(&format!(
            "recipe = \"fast\"\n{all}[select]\ncohort = 5\nprobability = {probability}\naround = {around}"
        ))
    };
    let uniform = "{ kind = \"uniform\", cohort = 3 }";
    let plain = |select: &str| models(&format!("recipe = \"fedavg\"\n{all}[select]\n{select}"));
    let snapshots = fast(1.0, uniform);
    assert_eq!(snapshots, plain("cohort = 5\namong = \"enrolled\""));
    assert_eq!(fast(0.0, uniform), plain("cohort = 3"));
    let everyone = models(&format!("recipe = \"dropout\"\n{all}"));
    assert_eq!(fast(0.0, "{ kind = \"everyone\" }"), everyone);
    assert!(fast(0.5, uniform) != snapshots && fast(0.5, uniform) != plain("cohort = 3"));
}

/// With a snapshot of everyone in each round, FAST equals the recipe that it wraps.
#[test]
fn fast_leaves_the_local_rule_as_it_is() {
    let all = "local.learning_rate = 0.1\nlocal.steps = 3\n[run]\nrounds = 6\n\
               [data]\nkind = \"quadratic\"\nclients = 5\ndimension = 1\nspread = 3.0\n";
    let play = |text: &str| models(&format!("{text}{all}"));
    let fast = |name: &str, local: &str| {
        play(&format!("recipe = \"{name}\"\nselect.cohort = 5\nselect.probability = 1.0\n{local}"))
    };
    for (name, plain, local) in [
        ("fast-prox", "fedprox", "local.proximal_mu = 2.0\n"),
        ("fast-scaffold", "scaffold", ""),
        ("fast", "fedavg", ""),
    ] {
        let plain = play(&format!("recipe = \"{plain}\"\nselect.cohort = 5\n{local}"));
        assert_eq!(fast(name, local), plain, "{name}");
    }
    assert!(fast("fast-prox", "local.proximal_mu = 2.0\n") != fast("fast", ""));
}

/// FAST with every other role's methods: no round loses an update, and half of the rounds are snapshots.
#[test]
fn fast_goes_with_all_other_methods() {
    let fast = "recipe = \"fast\"\n[run]\nrounds = 30\n\
                [data]\nkind = \"quadratic\"\nclients = 12\ndimension = 2\nspread = 3.0\nclusters = 3\n\
                [world]\navailability = { kind = \"bernoulli\", probability = 0.4 }\n\
                [local]\nlearning_rate = 0.1\nsteps = 2\n[select]\ncohort = 5\nprobability = 0.5\n";
    let registry = Registry::standard();
    let mut settings = vec![
        ("fast-prox".to_owned(), "recipe = \"fast-prox\"".to_owned()),
        ("fast-scaffold".to_owned(), "recipe = \"fast-scaffold\"".to_owned()),
        ("e3cs".to_owned(), "select.around = { kind = \"e3cs\", cohort = 4 }".to_owned()),
        ("pow-d".to_owned(), "select.around = { kind = \"pow-d\", cohort = 4, candidates = 6 }".to_owned()),
        ("fast".to_owned(), "select.around = { kind = \"fast\", cohort = 2, probability = 0.5 }".to_owned()),
        ("over".to_owned(), "select.over = 1.3".to_owned()),
    ];
    let mut n_methods = 0;
    for method in registry.methods() {
        if ["local", "substitute", "aggregate", "server"].contains(&method.role) {
            let text = format!("[{}]\nkind = \"{}\"\n{}", method.role, method.name, method.example);
            settings.push((format!("{} {}", method.role, method.name), text));
            n_methods += 1;
        }
    }
    assert!(n_methods > 35, "{n_methods}");
    for (with, text) in settings {
        let mut tree = Tree::parse(fast, "a").unwrap();
        if with.starts_with("local ") {
            tree.remove("local");
        }
        tree.overlay(Tree::parse(&text, "b").unwrap());
        let mut run = Assembled::new(&registry, tree, Path::new(""), NonZeroUsize::MIN)
            .unwrap_or_else(|error| panic!("{with}: {error}"));
        let mut snapshots = 0.0;
        for _ in 0..30 {
            let outcome = run.engine.round(&mut run.fleet, &mut run.evaluator).unwrap();
            snapshots += outcome.metrics["fast_snapshot"];
            assert!(outcome.metrics["fast_snapshot"] == 0.0 || outcome.responses.fresh.len() == 5, "{with}");
        }
        // The expected count is 15 with standard deviation 2.7; all use the same random stream.
        assert!((5.0..25.0).contains(&snapshots), "{with}: {snapshots}");
        assert!(run.engine.model().model.iter().all(|value| value.abs() < 20.0), "{with}");
    }
}

/// A network with batch norm; seven of its clients respond only once.
const NORMED: &str = r#"
[run]
rounds = 30
[data]
kind = "synthetic"
clients = 10
samples = 60
[model]
kind = "layers"
layers = [{ kind = "dense", units = 8 }, { kind = "batch-norm" }, { kind = "relu" }, { kind = "dense", units = 10 }]
[world]
script = SCRIPT
[local]
learning_rate = 0.05
steps = 5
batch_size = 10
"#;

/// Remembered variances that are divided by probabilities, or amplified like directions, fall below zero.
#[test]
fn running_statistics_stay_what_they_are() {
    for recipe in Registry::standard().recipes {
        let named = Tree::from_recipe(recipe.name, recipe.settings);
        let select = match named.text("select.kind") {
            Some("everyone") => "",
            // These need what this world or this task does not have.
            Some("fedcs-oracle" | "fedcs" | "pow-d" | "cpow-d") => continue,
            _ => "[select]\ncohort = 10",
        };
        if recipe.settings.contains("friend-oracle") {
            continue;
        }
        let mut script = vec![(0..10).collect::<Vec<_>>()];
        script.resize(30, vec![0, 1, 2]);
        let normed = NORMED.replace("SCRIPT", &format!("{script:?}"));
        let text = format!("recipe = \"{}\"\n{normed}\n{select}", recipe.name);
        let tree = Tree::parse(&text, "a").unwrap();
        let mut run = Assembled::new(&Registry::standard(), tree, Path::new(""), NonZeroUsize::MIN).unwrap();
        for number in 0..30 {
            run.engine.round(&mut run.fleet, &mut run.evaluator).unwrap();
            for (tensor, range) in
                run.layout().tensors().filter(|(tensor, _)| tensor.name.ends_with("running_var"))
            {
                let variances = &run.engine.model().model[range];
                assert!(
                    variances.iter().all(|value| *value > 0.0),
                    "{}, round {number}, {}: {variances:?}",
                    recipe.name,
                    tensor.name
                );
            }
        }
    }
}
