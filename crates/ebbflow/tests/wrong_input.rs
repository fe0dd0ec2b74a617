//! Wrong input gives an error with the place, the key, the value and the remedy, and nothing is lost.

mod common;

use std::path::Path;

use common::{SMALL, assert_same, contents, ebbflow, fail, succeed, write};

/// Runs a configuration that must be refused with exactly this message, before anything is written.
#[track_caller]
fn refused(text: &str, changes: &[&str], expected: &str) {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", text);
    let out = place.path().join("run");
    let mut words = vec!["run", &config, "--quiet", "--out", out.to_str().unwrap()];
    words.extend(changes.iter().flat_map(|change| ["--set", change]));
    let error = fail(&words).replace(&place.path().display().to_string(), "DIR");
    assert_eq!(error.trim_end(), format!("error: {expected}"));
    assert!(!out.exists(), "a refused run leaves no folder");
}

#[test]
fn unknown_recipe() {
    refused(
        "recipe = \"fedavgg\"",
        &[],
        "DIR/a.toml:1:1: recipe = \"fedavgg\": there is no such recipe; did you mean \"fedavg\"? \
         known: full, dropout, zero-update, zero-model, stale-update, stale-model, fl-fdms, friend-oracle, fedavg, e3cs, fedprox, scaffold, scheme-a, scheme-b, scheme-c, fast-reboot, departures, fednova, mifa, fedvarp, mimic, fedstale, fedlaavg, afl-cd, afl-cs, ipw, fedau, f3ast, debias-count, focus, amplified-fedavg, amplified-scaffold, fedawe, fedpbc, fedbuff, cyclic, fast, fast-prox, fast-scaffold, fedavgm, fedadagrad, fedyogi, fedadam, fedcs, fedcs-oracle, pow-d, cpow-d, rpow-d, oort, round-robin, median, trimmed-mean, krum",
    );
}

/// The settings of a table belong to its kind, in whatever order the two are typed.
#[test]
fn a_kind_may_be_named_after_its_settings() {
    let text = format!("{SMALL}[select]\nkind = \"uniform\"\ncohort = 3\n");
    let missing = "--set select.kind=pow-d: select.cohort: missing; it has no default";
    refused(&text, &["select.kind=pow-d"], missing);
    let more = "--set select.cohort=900: larger than the fleet; give at most its 12 clients";
    refused(&text, &["select.cohort=900", "select.kind=pow-d"], more);
    refused(&text, &["select.kind=pow-d", "select.cohort=900"], more);
}

#[test]
fn misspelt_key() {
    refused(
        SMALL,
        &["local.epoch=3"],
        "--set local.epoch=3: unknown key; did you mean \"epochs\"? keys of kind \"sgd\": learning_rate, schedule, \
         step_every, step_factor, slowness, steps, epochs, batch_size, momentum, nesterov, optimiser, beta1, beta2, \
         epsilon, \
         weight_decay, max_grad_norm",
    );
    refused(
        &SMALL.replace("clients = 12", "client = 12"),
        &[],
        "DIR/a.toml:10:1: data.client = 12: unknown key; did you mean \"clients\"? keys of kind \"synthetic\": clients, alpha, beta, \
         iid, clusters, features, classes, samples, samples_min, samples_max, test_share, seed",
    );
    refused(
        &SMALL.replace("[world]", "[wrold]"),
        &[],
        "DIR/a.toml:15:2: wrold: unknown key; did you mean \"world\"? known keys: recipe, run, data, model, world, \
         evaluate, stop, clip, guard, serve, chaos, objective, select, local, substitute, aggregate, server",
    );
}

#[test]
fn misspelt_value() {
    refused(
        SMALL,
        &["select.wait=everyon"],
        "--set select.wait=everyon: unknown value; did you mean \"everyone\"? \
         known values: deadline, everyone",
    );
    refused(
        SMALL,
        &["data.kind=syntetic"],
        "--set data.kind=syntetic: there is no such kind; did you mean \"synthetic\"? \
         known: synthetic, quadratic, digits, mnist, fashion-mnist, cifar-10, emnist-letters, emnist-letters-10k, \
         shakespeare, table, npz, external",
    );
}

#[test]
fn cohort_larger_than_the_fleet() {
    refused(
        SMALL,
        &["recipe=fedavg", "select.cohort=40"],
        "--set select.cohort=40: larger than the fleet; give at most its 12 clients",
    );
}

#[test]
fn an_oracle_of_unknown_probabilities() {
    let check = |settings: &[&str], key: &str| {
        let outage = "world.outages=[{ from = 1, until = 3, clients = [0] }]";
        let message = "true probabilities are unknown in this world; use [world.availability] kind = \"bernoulli\" \
                       or [world.work] kind = \"failure\" without outages, or another method";
        refused(SMALL, &[settings, &[outage]].concat(), &format!("{key}: {message}"));
    };
    check(
        &["recipe=fedcs-oracle", "select.cohort=4"],
        "recipe \"fedcs-oracle\": select.kind = \"fedcs-oracle\"",
    );
    check(
        &["recipe=ipw", "select.cohort=4", "aggregate.probabilities=oracle"],
        "--set aggregate.probabilities=oracle",
    );
}

#[test]
fn methods_that_would_count_a_client_twice() {
    refused(
        SMALL,
        &["recipe=fedau", "substitute.kind=friend"],
        "--set substitute.kind=friend: does not work with aggregate.kind = \"fedau\": it \
         compensates for absent clients itself; leave [substitute] out",
    );
    refused(
        SMALL,
        &["recipe=mifa", "substitute.kind=late"],
        "--set substitute.kind=late: aggregate.kind = \"mifa\" uses this round's updates only; leave \
         [substitute] out",
    );
    refused(
        SMALL,
        &["recipe=fedawe", "aggregate.kind=mifa"],
        "--set aggregate.kind=mifa: would have no effect: server.kind = \"fedawe\" combines the updates \
         itself; leave [aggregate] out",
    );
    refused(
        &SMALL.replace("momentum = 0.5\n", "").replace("kind = \"sgd\"\n", ""),
        &["recipe=focus", "local.optimiser=adam"],
        "--set local.optimiser=adam: gradients are computed from the model's movement, which momentum and \
         Adam amplify; leave it out",
    );
    refused(
        &SMALL.replace("momentum = 0.5\n", "").replace("kind = \"sgd\"\n", ""),
        &["recipe=focus", "local.max_grad_norm=1.0"],
        "--set local.max_grad_norm=1.0: gradients are computed from the model's movement, which clipping \
         shortens; leave it out",
    );
}

#[test]
fn snapshots_requested_in_two_ways() {
    refused(
        SMALL,
        &["recipe=fast", "select.cohort=4", "select.probability=0.5", "select.every=3"],
        "--set select.every=3: give every or probability, not both",
    );
    refused(
        SMALL,
        &["recipe=fast", "select.cohort=4", "select.around.kind=evryone"],
        "--set select.around.kind=evryone: there is no such kind; did you mean \
         \"everyone\"? known: everyone, uniform, e3cs, fedcs, fedcs-oracle, pow-d, cpow-d, rpow-d, oort, round-robin, \
         oldest-first, f3ast, cyclic, fast",
    );
}

#[test]
fn probability_above_one() {
    refused(
        &SMALL.replace("probability = 0.6", "probability = 1.2"),
        &[],
        "DIR/a.toml:22:1: world.availability.probability = 1.2: 1.2 is out of range; give a probability from 0 to 1",
    );
}

#[test]
fn negative_learning_rate() {
    refused(
        SMALL,
        &["local.learning_rate=-0.1"],
        "--set local.learning_rate=-0.1: -0.1 is out of range; give a number above 0",
    );
    refused(
        SMALL,
        &["server.learning_rate=-1"],
        "--set server.learning_rate=-1: -1 is out of range; give a number above 0",
    );
}

#[test]
fn zero_clients_and_zero_rounds() {
    refused(SMALL, &["data.clients=0"], "--set data.clients=0: expected a whole number from 1 to 4294967295");
    refused(SMALL, &["run.rounds=0"], "--set run.rounds=0: expected a whole number from 1 to 4294967295");
    refused(
        &SMALL
            .replace("clients = 12\nalpha = 1.0\nbeta = 1.0\nsamples_max = 80", "centres = []")
            .replace("synthetic", "quadratic"),
        &[],
        "DIR/a.toml:10:1: data.centres = []: give at least one client with at least one number",
    );
}

#[test]
fn missing_and_broken_files() {
    let error = fail(&["run", "no/such/file.toml"]);
    assert_eq!(error.trim_end(), "error: reading no/such/file.toml: No such file or directory (os error 2)");
    refused("[run]\nrounds = = 3", &[], "DIR/a.toml:2:10: not valid TOML: extra `=`, expected nothing");
    refused("", &[], "DIR/a.toml:1:1: run.rounds: missing; it has no default");
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().to_str().unwrap();
    for words in [["run", folder], ["resume", folder], ["show", folder]] {
        let error = fail(&words);
        assert!(error.contains("not a run folder: it has no run.json"), "{error}");
    }
}

#[test]
fn numbers_beyond_reason() {
    refused(
        SMALL,
        &["run.seed=4294967296"],
        "--set run.seed=4294967296: expected a whole number from 0 to 4294967295",
    );
    refused(
        SMALL,
        &["world.step_s=1e12"],
        "--set world.step_s=1e12: it is more than 1000000000 seconds; give less",
    );
    refused(
        SMALL,
        &["world.speed_spread=1e5"],
        "--set world.speed_spread=1e5: it is too large; give at most 10",
    );
    refused(
        SMALL,
        &["data.samples=4294967295"],
        "DIR/a.toml:10:1: data.clients = 12: about 12576 GB of data; keep it under 64 GB",
    );
    refused(
        SMALL,
        &["data.test_share=0"],
        "--set data.test_share=0: leaves no test data; give a larger share or more samples",
    );
}

#[test]
fn values_of_the_wrong_kind() {
    refused(
        SMALL,
        &["world.departures=[1]"],
        "--set world.departures=[1]: world.departures[0] = 1: expected a table in braces",
    );
    refused(SMALL, &["world.departures=1"], "--set world.departures=1: expected a list in brackets");
    refused(
        SMALL,
        &["agregate.kind=mean"],
        "--set agregate.kind=mean: agregate: unknown key; did you mean \"aggregate\"? known keys: recipe, run, data, \
         model, world, evaluate, stop, clip, guard, serve, chaos, objective, select, local, substitute, aggregate, server",
    );
    refused(
        "recipe = \"fast\"\n[run]\nrounds = 2\n[data]\nkind = \"quadratic\"\ncentres = [[0.0], [1.0]]\n[local]\nlearning_rate = 0.1\nsteps = 1\n",
        &["select.cohort=1"],
        "recipe \"fast\": select.kind = \"fast\": snapshots by training accuracy need labels, and this data has \
         none, so no round would be a snapshot; give probability = Q or every = N",
    );
    refused(
        SMALL,
        &["clip={}"],
        "--set clip={}: clip: no bound is given; set norm = LENGTH, or times = N for N times the usual length",
    );
    refused(
        SMALL,
        &[
            "clip.norm=1",
            "local.kind=scaffold",
            "local.learning_rate=0.1",
            "local.steps=1",
            "server.kind=scaffold",
        ],
        "--set clip.norm=1: clients also send side vectors (running statistics or control variates), which would \
         have no bound; set times = N, or side_vectors = LENGTH as well",
    );
    refused(SMALL, &["clip.norm=0"], "--set clip.norm=0: 0 is out of range; give a number above 0");
    refused(
        SMALL,
        &["select.cohort=3"],
        "--set select.cohort=3: unknown key; keys of kind \"everyone\": wait; leave it out with recipe \"dropout\", \
         or, in a grid, set it for the methods that take one: [[grid.method]] select = { cohort = N }",
    );
    refused(
        SMALL,
        &["local.learning_rate=0.1\nfoo = 3"],
        "--set local.learning_rate=0.1\nfoo = 3: the value is not valid TOML; quote text as 'path.key=\"text\"'",
    );
}

#[test]
fn a_target_that_can_never_be_reached() {
    let text = "recipe = \"dropout\"\n[run]\nrounds = 2\n[data]\nkind = \"quadratic\"\ncentres = [[0.0]]\n[local]\nlearning_rate = 0.1\nsteps = 1";
    refused(
        text,
        &["stop.accuracy=0.5"],
        "--set stop.accuracy=0.5: this data has no labels, so there is no accuracy to reach; leave out stop.accuracy",
    );
    refused(
        text,
        &["data.start=[nan]"],
        "--set data.start=[nan]: expected 1 finite numbers, as the centres have",
    );
}

#[test]
fn more_metrics_than_the_data_allows() {
    refused(
        SMALL,
        &["evaluate.top_k=[1, 11]"],
        "--set evaluate.top_k=[1, 11]: evaluate.top_k[1] = 11: more than the 10 classes; give at most 10",
    );
    refused(
        SMALL,
        &["evaluate.top_k=[0]"],
        "--set evaluate.top_k=[0]: evaluate.top_k[0] = 0: expected a whole number from 1 to 4294967295",
    );
    refused(SMALL, &["evaluate.top_k=5"], "--set evaluate.top_k=5: expected a list in brackets");
    let text = "recipe = \"dropout\"\n[run]\nrounds = 2\n[data]\nkind = \"quadratic\"\ncentres = [[0.0]]\n\
                [local]\nlearning_rate = 0.1\nsteps = 1\n[evaluate]\n";
    refused(
        &format!("{text}per_class = true"),
        &[],
        "DIR/a.toml:11:1: evaluate.per_class = true: this data has no classes; leave this out",
    );
    refused(
        &format!("{text}top_k = [1]"),
        &[],
        "DIR/a.toml:11:1: evaluate.top_k = [1]: this data has no classes; leave this out",
    );
}

#[test]
fn layers_that_do_not_fit() {
    let layers = |layers: &str| format!("{SMALL}[model]\nkind = \"layers\"\nlayers = [{layers}]");
    let check = |list: &str, expected: &str| refused(&layers(list), &[], &format!("DIR/a.toml:{expected}"));
    check("{ kind = \"dense\", units = 0 }", "35:11: model.layers[0]: units must be at least 1");
    check(
        "{ kind = \"relu\" }, { kind = \"conv\", channels = 0, kernel = 1 }",
        "35:30: model.layers[1]: channels, kernel and stride must be at least 1",
    );
    check(
        "{ kind = \"tanh\" }, { kind = \"conv\", channels = 4, kernel = 3 }",
        "35:30: model.layers[1]: a kernel of 3 does not fit an image of 1 x 1 x 60",
    );
    let place = tempfile::tempdir().unwrap();
    let error = fail(&["run", &write(place.path(), "a.toml", &layers("{ kind = \"dens\", units = 5 }"))]);
    let unknown =
        "a.toml:35:13: model.layers[0].kind = \"dens\": there is no such layer; did you mean \"dense\"?";
    assert!(error.contains(unknown) && error.contains("known: conv, "), "{error}");
    refused(
        SMALL,
        &["local.batch_size=0"],
        "--set local.batch_size=0: expected a whole number from 1 to 4294967295",
    );
    refused(
        SMALL,
        &["model.outputs=9"],
        "--set model.outputs=9: fewer than the 10 classes; give at least 10",
    );
}

#[test]
fn labels_beyond_the_classes() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("mnist");
    std::fs::create_dir(&folder).unwrap();
    for (part, label) in [("train", 3), ("t10k", 10)] {
        let sizes = [[0, 0, 0, 2], [0, 0, 0, 28], [0, 0, 0, 28]];
        let images = [&[0, 0, 8, 3][..], &sizes.concat(), &[5; 2 * 784]].concat();
        std::fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        let labels = [&[0, 0, 8, 1][..], &sizes[0], &[9, label]].concat();
        std::fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
    let text = "recipe = \"full\"\n[run]\nrounds = 1\n[data]\nkind = \"mnist\"\nclients = 2\n\
                [local]\nlearning_rate = 0.1\nsteps = 1";
    let config = write(place.path(), "a.toml", text);
    let out = place.path().join("run");
    let words = ["run", &config, "--quiet", "--out", out.to_str().unwrap()];
    let output = ebbflow().args(words).env("EBBFLOW_DATA", place.path()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap().replace(&place.path().display().to_string(), "DIR");
    assert_eq!(
        error.trim_end(),
        "error: DIR/a.toml:5:1: data.kind = \"mnist\": DIR/mnist/t10k-labels-idx1-ubyte: label of sample 1: \
         expected below 10, found 10; fetch the file again with: ebbflow data get mnist --force"
    );
    assert!(!out.exists());
}

#[test]
fn unknown_settings() {
    refused(
        SMALL,
        &["local.learning_rate"],
        "--set local.learning_rate: write it as path.key=value, for example --set local.learning_rate=0.1",
    );
    refused(SMALL, &["local=3"], "--set local=3: expected a table; write [local]");
}

#[test]
fn scripts_that_cannot_be_played() {
    let base = "[run]\nrounds = 2\n[data]\nkind = \"quadratic\"\ncentres = [[0.0], [1.0]]\n\
                [select]\nkind = \"everyone\"\n[local]\nlearning_rate = 0.1\nsteps = 1\n[world]\n";
    refused(
        &format!("{base}script = [[0, 2]]"),
        &[],
        "DIR/a.toml:12:15: world.script[0][1] = 2: there is no client 2; they are 0 to 1",
    );
    refused(
        &format!("{base}script = [[0, {{ client = 0, steps = 1 }}]]"),
        &[],
        "DIR/a.toml:12:15: world.script[0][1]: client 0 is listed twice in round 0",
    );
    refused(
        &format!("{base}script = [[{{ client = 0, late = 33 }}]]"),
        &[],
        "DIR/a.toml:12:12: world.script[0][0]: an update can be at most 32 rounds late",
    );
    refused(
        &format!("{base}script = [[{{ client = 0, step = 1 }}]]"),
        &[],
        "DIR/a.toml:12:26: world.script[0][0].step = 1: unknown key; did you mean \"steps\"? \
         known keys: client, steps, late, sends",
    );
}

#[test]
fn a_run_folder_that_exists_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", SMALL);
    let out = place.path().join("run");
    let out = out.to_str().unwrap();
    succeed(&["run", &config, "--quiet", "--out", out]);
    let before = contents(Path::new(out));
    let error = fail(&["run", &config, "--quiet", "--seed", "9", "--out", out]);
    assert!(error.contains("run holds a finished run: choose another `--out`"), "{error}");
    assert_eq!(contents(Path::new(out)), before);
    let error = fail(&["resume", "--quiet", out]);
    assert!(error.contains("the run is finished, there is nothing to resume"), "{error}");
}

#[test]
fn a_record_of_a_newer_version_is_not_guessed_at() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", SMALL);
    let out = place.path().join("run");
    succeed(&["run", &config, "--quiet", "--out", out.to_str().unwrap()]);
    let header = std::fs::read_to_string(out.join("run.json")).unwrap();
    std::fs::write(out.join("run.json"), header.replace("\"version\": 2", "\"version\": 99")).unwrap();
    for command in ["show", "resume", "run"] {
        let error = fail(&[command, out.to_str().unwrap()]);
        assert!(error.contains("version 99") && error.contains("update ebbflow"), "{error}");
    }
}

/// A limit on file size stands in for a full disk: writing fails in the middle of the run.
#[cfg(unix)]
#[test]
fn a_full_disk_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", SMALL);
    let (whole, cut) = (place.path().join("whole"), place.path().join("cut"));
    succeed(&["run", &config, "--quiet", "--out", whole.to_str().unwrap()]);
    let size = std::fs::metadata(whole.join("rounds.jsonl")).unwrap().len();
    let blocks = size / 512 / 2;
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let program = ebbflow().get_program().to_owned();
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .arg(program)
        .args(["run", &config, "--quiet", "--out", cut.to_str().unwrap()])
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(error.contains("writing ") && error.contains("rounds.jsonl: File too large"), "{error}");
    assert!(error.contains("everything up to its last checkpoint is safe"), "{error}");
    assert!(error.contains(&format!("ebbflow resume {}", cut.display())), "{error}");
    let shown = succeed(&["show", cut.to_str().unwrap()]);
    assert!(shown.contains("unfinished: "), "{shown}");
    succeed(&["resume", "--quiet", cut.to_str().unwrap()]);
    assert_same(&whole, &cut);
}

#[test]
fn a_client_that_returns_nonsense_counts_as_absent() {
    let place = tempfile::tempdir().unwrap();
    let base = "recipe = \"dropout\"\n[run]\nrounds = 3\n[data]\nkind = \"quadratic\"\ncentres = [[0.0, 1.0], [3.0, 2.0]]\n\
                start = [10.0, 10.0]\n[local]\nlearning_rate = 0.1\nsteps = 2\n[world]\n";
    let run = |name: &str, script: &str| {
        let config = write(place.path(), &format!("{name}.toml"), &format!("{base}script = {script}"));
        let out = place.path().join(name);
        let output = succeed(&["run", &config, "--json", "--out", out.to_str().unwrap()]);
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<serde_json::Value>>()
    };
    let silent = run("silent", "[[0, 1], [0], [0, 1]]");
    for (sends, why) in [("nan", "not-finite"), ("infinity", "not-finite"), ("short", "wrong-length")] {
        let script = format!("[[0, 1], [0, {{ client = 1, sends = \"{sends}\" }}], [0, 1]]");
        let rows = run(sends, &script);
        for round in 0..3 {
            assert_eq!(rows[round]["model"], silent[round]["model"], "{sends}, round {round}");
        }
        assert_eq!(rows[1]["refused"], serde_json::json!([1]));
        assert_eq!(rows[1]["refused_why"], serde_json::json!([why]));
        assert_eq!(rows[1]["absent"], serde_json::json!([1]), "the refused count as silent");
        assert_eq!(rows[3]["summary"]["answers"]["refused"], 1);
    }
}

#[test]
fn a_client_that_diverges_is_named_and_counts_as_absent() {
    let place = tempfile::tempdir().unwrap();
    let base = "recipe = \"dropout\"\n[run]\nrounds = 3\n[data]\nkind = \"quadratic\"\ncentres = [[0.0], [3.0], [9.0]]\n\
                start = [10.0]\n[local]\nlearning_rate = 0.1\nsteps = 20\n[world]\nscript = ";
    let run = |name: &str, script: &str, curvature: &str| {
        let config = write(place.path(), &format!("{name}.toml"), &format!("{base}{script}"));
        let out = place.path().join(name);
        let curvatures = format!("data.curvatures=[[1.0], [{curvature}], [1.0]]");
        let text =
            succeed(&["run", &config, "--quiet", "--set", &curvatures, "--out", out.to_str().unwrap()]);
        let rows = String::from_utf8(contents(&out)["rounds.jsonl"].clone()).unwrap();
        let rows: Vec<serde_json::Value> =
            rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (rows, text, out)
    };
    let (silent, ..) = run("silent", "[[0], [0, 2], [0, 2]]", "1.0");
    // Twenty steps on so steep a gradient overflow 32 bits.
    let (rows, text, out) = run("steep", "[[0, 1], [0, 1, 2], [0, 2]]", "1e9");
    for round in 0..3 {
        assert_eq!(rows[round]["model"], silent[round]["model"], "round {round}");
    }
    for (round, row) in rows[..2].iter().enumerate() {
        assert_eq!((&row["round"], &row["refused"]), (&round.into(), &serde_json::json!([1])));
        assert_eq!(row["refused_why"], serde_json::json!(["diverged"]));
    }
    let advice =
        "2 updates, the first of client 1 in round 0: lower local.learning_rate, or set local.max_grad_norm";
    assert!(text.contains(&format!("diverged      {advice}")), "{text}");
    let shown = succeed(&["show", out.to_str().unwrap()]);
    assert!(shown.contains("refused updates: 2 diverged (the first of client 1 in round 0)"), "{shown}");
}

#[test]
fn a_network_that_diverges_everywhere_leaves_the_model_as_it_was() {
    let place = tempfile::tempdir().unwrap();
    for model in ["logistic", "mlp"] {
        let config = write(place.path(), "a.toml", SMALL);
        let out = place.path().join(model);
        let kind = format!("model.kind={model}");
        let words = ["--set", "local.learning_rate=1e38", "--set", "run.rounds=4", "--set", &kind];
        let run = ["run", &config, "--json", "--out", out.to_str().unwrap()];
        let output = succeed(&[&run[..], &words[..]].concat());
        let lines: Vec<serde_json::Value> =
            output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (rows, summary) = (&lines[..4], &lines[4]["summary"]);
        for row in rows {
            assert_eq!(row["step_norm"], 0.0, "{model}");
            assert!(row["loss"].is_number() && row["loss"] == rows[0]["loss"], "{model}");
            let why = row["refused_why"].as_array().unwrap();
            assert!(why.iter().all(|why| why == "diverged" || why == "not-finite"), "{model}: {why:?}");
            assert_eq!(row["refused"], row["up"], "{model}: all that were there");
        }
        let first = rows.iter().find(|row| row["refused_why"].to_string().contains("diverged")).unwrap();
        assert_eq!(summary["diverged"]["round"], first["round"], "{model}");
        assert_eq!(summary["ending"], "rounds");
    }
}

#[test]
fn a_second_process_on_a_run_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", SMALL);
    let out = place.path().join("run");
    let out_text = out.to_str().unwrap();
    succeed(&["run", &config, "--quiet", "--out", out_text]);
    // An unfinished run whose lock another process holds.
    std::fs::remove_file(out.join("summary.json")).unwrap();
    let lock = std::fs::File::open(out.join("lock")).unwrap();
    lock.lock().unwrap();
    let error = fail(&["resume", "--quiet", out_text]);
    assert!(error.contains("another process is writing this run"), "{error}");
    drop(lock);
    succeed(&["resume", "--quiet", out_text]);
}

#[test]
fn models_that_do_not_fit_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", SMALL);
    let out = place.path().join("run");
    succeed(&["run", &config, "--quiet", "--out", out.to_str().unwrap()]);
    let model = out.join("model.safetensors");
    let start = format!("run.start_from=\"{}\"", model.display());
    let other = place.path().join("other");
    let words = [
        "run",
        &config,
        "--quiet",
        "--set",
        "data.features=30",
        "--set",
        &start,
        "--out",
        other.to_str().unwrap(),
    ];
    let error = fail(&words);
    let misfit = "model.safetensors: tensor \"fc1.weight\" has shape [10, 60], expected [10, 30]; \
                  give the file of a model like this one, or change the model";
    assert!(error.contains("--set run.start_from=") && error.trim_end().ends_with(misfit), "{error}");
    let mlp = ["run", &config, "--quiet", "--set", "model.kind=mlp", "--set", &start];
    let error = fail(&mlp);
    let misfit = "tensor \"fc1.weight\" has shape [10, 60], expected [200, 60]";
    assert!(error.contains(misfit), "{error}");
    let bytes = std::fs::read(&model).unwrap();
    std::fs::write(&model, &bytes[..1000]).unwrap();
    let error = fail(&words);
    let damaged = format!("damaged: expected {} bytes, found 1000; copy the file again", bytes.len());
    assert!(error.contains(&damaged), "{error}");
    let words = [
        "run",
        &config,
        "--quiet",
        "--set",
        "run.start_from=\"gone.safetensors\"",
        "--out",
        other.to_str().unwrap(),
    ];
    let error = fail(&words);
    assert!(error.contains("gone.safetensors: No such file"), "{error}");
}

#[test]
fn commands_name_the_command_that_was_meant() {
    let place = tempfile::tempdir().unwrap();
    let grid = write(place.path(), "g.toml", "[grid]\nseeds = [1]\nrecipes = [\"full\"]");
    let error = fail(&["run", &grid]);
    assert!(error.contains("this is a grid; run it with: ebbflow compare"), "{error}");
    let config = write(place.path(), "a.toml", SMALL);
    let error = fail(&["compare", &config]);
    assert!(error.contains("grid: missing; a grid has a [grid] table"), "{error}");
    let error = fail(&["list", "recipe"]);
    assert!(error.contains("did you mean \"recipes\"?"), "{error}");
    let error = fail(&["describe", "unifrm"]);
    assert!(error.contains("did you mean \"uniform\"?"), "{error}");
    let error = fail(&["export", place.path().to_str().unwrap(), "--to", "x.csv"]);
    assert!(error.contains("not a run folder"), "{error}");
}

/// A secret that everyone can read is none.
#[test]
fn a_client_sends_its_secret_in_plain_text_only_with_a_flag() {
    let place = tempfile::tempdir().unwrap();
    let state_dir = place.path().join("home").display().to_string();
    let error = fail(&["join", "http://server.example:7700", "--home", &state_dir, "--token", "ebb-00"]);
    assert_eq!(
        error.trim_end(),
        "error: http://server.example:7700: every party on the path could read this client's secret and its updates; use https://, or give \
         --plain if something else protects the connection"
    );
    assert!(!Path::new(&state_dir).exists(), "nothing was begun");
}

#[test]
fn revoking_nothing_and_nowhere() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().display().to_string();
    let error = fail(&["revoke", &folder, "--tokens"]);
    assert_eq!(
        error.trim_end(),
        format!("error: {folder}: not the folder of a server's run; give the --out folder of ebbflow serve")
    );
    assert!(fail(&["revoke", &folder]).contains("<CLIENTS>"));
    let error = fail(&["token", &folder]);
    assert_eq!(
        error.trim_end(),
        format!(
            "error: {folder}: not the folder of a server's run; start the server first, and give the folder that ebbflow serve prints"
        )
    );
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "no key is made that no server has");
}

#[test]
fn revoking_a_number_that_no_client_had_is_done_and_reported() {
    let place = tempfile::tempdir().unwrap();
    let run = common::record(place.path(), "run", SMALL, &[]);
    std::fs::write(run.join("server.key"), [7; 32]).unwrap();
    let run = run.display().to_string();
    let output = common::run(&["revoke", &run, "3", "999"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{message}");
    assert!(message.contains("client 999: no recorded round has a client of this number"), "{message}");
    assert!(!message.contains("client 3:"), "{message}");
    assert_eq!(std::fs::read_to_string(place.path().join("run/revoked.txt")).unwrap(), "3\n999\n");
}

#[test]
fn metrics_beyond_this_machine_take_a_token_that_is_hard_to_guess() {
    let place = tempfile::tempdir().unwrap();
    let run = "recipe = \"dropout\"\n[run]\nrounds = 1\n[data]\nkind = \"synthetic\"\n[local]\nlearning_rate = 0.05\nsteps = 1\n";
    let out = place.path().join("served").display().to_string();
    let refused = |serve: &str| {
        let text = format!("{run}[serve]\nlisten = \"127.0.0.1:0\"\nmetrics = \"0.0.0.0:0\"\n{serve}");
        let file = write(place.path(), "fleet.toml", &text);
        fail(&["serve", &file, "--out", &out])
    };
    let message = refused("");
    assert!(message.contains("anyone who reaches this address could read the metrics"), "{message}");
    write(place.path(), "scrapes", "short\n");
    let message = refused("metrics_token = \"scrapes\"");
    assert!(
        message.contains("a token of 5 characters can be guessed (serve.metrics_token); use at least 16"),
        "{message}"
    );
    let message = refused("metrics_token = \"nowhere\"");
    assert!(message.contains("nowhere"), "{message}");
}

#[test]
fn the_run_of_a_server_resumes_with_the_command_that_began_it() {
    let place = tempfile::tempdir().unwrap();
    write(place.path(), "server.redb", "");
    let message = fail(&["resume", place.path().to_str().unwrap()]);
    assert!(
        message.contains("resume it with the command that began it: ebbflow serve FILE --out"),
        "{message}"
    );
}

#[test]
fn certificates_come_with_the_settings_that_use_them() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("certs").display().to_string();
    let message = succeed(&["certs", &folder, "--clients", "1"]);
    for part in [
        format!("certificate = \"{folder}/server.pem\""),
        format!("clients = \"{folder}/ca.pem\""),
        "--ca ca.pem --cert client-N.pem --key client-N.key".to_owned(),
    ] {
        assert!(message.contains(&part), "{message}");
    }
    // A configuration may lie anywhere.
    let output = ebbflow().current_dir(place.path()).args(["certs", "other"]).output().unwrap();
    let message = String::from_utf8(output.stdout).unwrap();
    let whole = place.path().canonicalize().unwrap().join("other");
    assert!(message.contains(&format!("certificate = \"{}/server.pem\"", whole.display())), "{message}");
    assert!(!message.contains("--cert"), "{message}");
}

#[test]
fn what_cannot_be_right_ends_with_2_and_what_failed_with_1() {
    let place = tempfile::tempdir().unwrap();
    let config = write(place.path(), "a.toml", SMALL);
    let nowhere = place.path().join("nowhere").display().to_string();
    let code = |words: &[&str]| common::run(words).status.code();
    assert_eq!(code(&["run", &nowhere]), Some(2));
    assert_eq!(code(&["show", &nowhere]), Some(2));
    assert_eq!(code(&["resume", &nowhere]), Some(2));
    assert_eq!(code(&["run", &config, "--set", "local.rat=1"]), Some(2));
    assert_eq!(code(&["run", &config, "--sed", "1"]), Some(2));
    // A folder cannot be made below a file.
    let below = place.path().join("a.toml/run").display().to_string();
    assert_eq!(code(&["run", &config, "--quiet", "--out", &below]), Some(1));
}

#[test]
fn settings_without_effect_are_reported_when_a_run_starts() {
    let place = tempfile::tempdir().unwrap();
    let message_of = |change: &[&str]| {
        let config = write(place.path(), "a.toml", SMALL);
        let out = place.path().join(change.concat().replace('=', "-"));
        let mut words = vec!["run", &config, "--out", out.to_str().unwrap(), "--set", "run.rounds=2"];
        words.extend(change.iter().flat_map(|change| ["--set", change]));
        let output = common::run(&words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    let never = "server.every = 3: the run ends after 2 rounds, before its first period";
    assert!(message_of(&["server.kind=amplified", "server.every=3"]).contains(never));
    assert!(!message_of(&["server.kind=amplified", "server.every=2"]).contains("server.every"));
    let late = "substitute.kind = \"late\": no update is ever late in this world";
    assert!(message_of(&["recipe=fedbuff"]).contains(late));
    assert!(!message_of(&["recipe=fedbuff", "world.after_deadline=late"]).contains(late));
}

#[test]
fn a_grid_is_refused_before_its_first_run_where_a_column_or_a_cohort_is_wrong() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("grid").display().to_string();
    let text = format!("{SMALL}[grid]\nseeds = [1]\nrecipes = [\"fedavg\", \"dropout\"]\n");
    let config = write(place.path(), "g.toml", &text);
    let refused = |change: &str| {
        let output = common::run(&["compare", &config, "--out", &out, "--set", change]);
        assert_eq!(output.status.code(), Some(2));
        assert!(!Path::new(&out).exists());
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refused("grid.extra_columns=[\"accurcy@1\"]");
    assert!(
        error.contains("rounds.csv has no such column; did you mean \"accuracy\"? known: round, "),
        "{error}"
    );
    let error = refused("select.cohort=3");
    assert!(
        error.contains("leave it out with recipe \"dropout\", or, in a grid, set it for the methods"),
        "{error}"
    );
}

#[test]
fn a_truncated_finished_record_is_shown_with_a_warning() {
    let place = tempfile::tempdir().unwrap();
    let run = common::record(place.path(), "run", SMALL, &[]);
    let rows = std::fs::read_to_string(run.join("rounds.jsonl")).unwrap();
    let n_rounds = rows.lines().count();
    let show = || String::from_utf8(common::run(&["show", run.to_str().unwrap()]).stderr).unwrap();
    assert_eq!(show(), "");
    std::fs::write(run.join("rounds.jsonl"), rows.split_inclusive('\n').take(2).collect::<String>()).unwrap();
    let message = show();
    assert!(message.contains(&format!("rounds.jsonl: holds 2 of {n_rounds} rounds")), "{message}");
}
