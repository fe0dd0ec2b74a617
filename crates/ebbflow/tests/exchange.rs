//! Models exchanged with PyTorch: `scripts/torch_models.py` wrote the files in `torch/`.

mod common;

use std::path::{Path, PathBuf};

use common::{contents, succeed, write};
use ebbflow::record::{read_model, write_model};
use ebbflow::train::net::{Input, Layer, Net, Spec, Workspace};
use ebbflow::{StepRule, Stream};
use serde_json::Value;

const N_ROWS: usize = 6;
const N_CLASSES: usize = 5;

fn torch(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch").join(file)
}

/// The networks of the script.
fn spec(name: &str) -> Spec {
    let dense = |units| Layer::Dense { units };
    let (input, layers) = match name {
        "mlp" => (Input::Flat(12), vec![dense(9), Layer::Relu]),
        "chars" => (
            Input::Sequence { steps: 6, symbols: 11 },
            vec![Layer::Embedding { width: 3 }, Layer::Lstm { units: 4, layers: 2 }, Layer::LastStep],
        ),
        _ => (
            Input::Image { height: 9, width: 8, channels: 2 },
            vec![
                Layer::Conv { channels: 4, kernel: 3, stride: 1, padding: 1 },
                Layer::BatchNorm,
                Layer::Relu,
                Layer::MaxPool { size: 2 },
                Layer::Conv { channels: 5, kernel: 2, stride: 2, padding: 0 },
                Layer::Tanh,
                dense(7),
                Layer::BatchNorm,
                Layer::Relu,
            ],
        ),
    };
    Spec { input, layers: layers.into_iter().chain([dense(N_CLASSES)]).collect() }
}

/// Numbers in [-1, 1), computed from their position and stream by the same formula as in the script.
fn pseudo_random(stream: u64, count: usize) -> Vec<f32> {
    const M: u64 = 1 << 32;
    let number = |at: u64| {
        let mixed = ((at + 1_000_003 * stream) * 2_654_435_761) % M;
        let mixed = (mixed ^ (mixed >> 15)) * 2_246_822_519 % M;
        let mixed = mixed ^ (mixed >> 13);
        (mixed as f64 / 2_147_483_648.0 - 1.0) as f32
    };
    (0..count as u64).map(number).collect()
}

/// A workspace with a model and the script's samples.
fn loaded(net: &Net, model: &[f32]) -> Workspace {
    let mut workspace = Workspace::new(net, N_ROWS);
    workspace.load(net, model);
    let mut samples = pseudo_random(7, N_ROWS * net.input_len());
    if let Input::Sequence { symbols, .. } = net.input() {
        let symbol = |number: f32| ((f64::from(number) + 1.0) / 2.0 * symbols as f64).floor();
        samples.iter_mut().for_each(|number| *number = symbol(*number).min((symbols - 1) as f64) as f32);
    }
    let (to, labels) = workspace.batch();
    to[..samples.len()].copy_from_slice(&samples);
    labels.extend((0..N_ROWS).map(|row| (row * 3 % N_CLASSES) as u32));
    workspace
}

/// The loss and the scores of the script's samples.
fn loss_and_scores(net: &Net, model: &[f32]) -> (f64, Vec<f32>) {
    let mut workspace = loaded(net, model);
    let tally = workspace.evaluate(net);
    (tally.loss / tally.n_samples, workspace.scores(net).flat_map(|(scores, _)| scores.to_vec()).collect())
}

/// The header of a safetensors file, and the bytes of each tensor by name.
fn tensors(file: &Path) -> (Value, std::collections::BTreeMap<String, Vec<u8>>) {
    let bytes = std::fs::read(file).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let data = |tensor: &Value| {
        let offset = |at: usize| start + tensor["data_offsets"][at].as_u64().unwrap() as usize;
        bytes[offset(0)..offset(1)].to_vec()
    };
    let data =
        header.as_object().unwrap().iter().map(|(name, tensor)| (name.clone(), data(tensor))).collect();
    (header, data)
}

#[test]
fn models_of_pytorch_give_its_scores_here() {
    for (name, files) in [
        ("mlp", &["mlp", "mlp-float16", "mlp-bfloat16", "mlp-float64", "mlp-mixed"][..]),
        ("norm", &["norm"]),
        ("chars", &["chars"]),
    ] {
        let expected: Value =
            serde_json::from_slice(&std::fs::read(torch(&format!("{name}.json"))).unwrap()).unwrap();
        for path in ebbflow::train::KernelPath::available() {
            let net = Net::new(&spec(name), path).unwrap();
            for file in files {
                let model = read_model(&torch(&format!("{file}.safetensors")), net.layout()).unwrap();
                let (loss, scores) = loss_and_scores(&net, &model);
                let expected = &expected[file];
                let theirs = expected["scores"].as_array().unwrap();
                assert_eq!(scores.len(), theirs.len());
                for (own, theirs) in scores.iter().zip(theirs) {
                    let apart = f64::from(*own) - theirs.as_f64().unwrap();
                    assert!(apart.abs() < 1e-6, "{file} on {}: {own}, not {theirs}", path.name());
                }
                let apart = loss - expected["loss"].as_f64().unwrap();
                assert!(apart.abs() < 1e-6, "{file} on {}: a loss {apart} apart", path.name());
            }
        }
    }
}

#[test]
fn models_of_pytorch_are_written_as_pytorch_wrote_them() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["mlp", "norm", "chars"] {
        let net = Net::new(&spec(name), ebbflow::train::KernelPath::Portable).unwrap();
        let theirs = torch(&format!("{name}.safetensors"));
        let own = folder.path().join(name);
        write_model(&own, net.layout(), &read_model(&theirs, net.layout()).unwrap()).unwrap();
        let ((own_header, own), (header, theirs)) = (tensors(&own), tensors(&theirs));
        assert_eq!(own_header, header, "names, shapes, types and places");
        for (tensor, bytes) in &theirs {
            // PyTorch counted seven batches; this program does not count them.
            if tensor.ends_with("num_batches_tracked") {
                assert_eq!(
                    (own[tensor].as_slice(), bytes.as_slice()),
                    (&[0; 8][..], &7_i64.to_le_bytes()[..])
                );
            } else {
                assert_eq!(&own[tensor], bytes, "{tensor}");
            }
        }
    }
}

/// Writes models trained here, with their scores, into a folder for `torch_models.py check`.
#[test]
fn models_trained_here_have_what_pytorch_looks_for() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exchange");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["mlp", "norm", "chars"] {
        let net = Net::new(&spec(name), ebbflow::train::KernelPath::Portable).unwrap();
        let start = net.initial(3);
        let rule = StepRule { learning_rate: 0.3, ..StepRule::default() };
        let mut model = start.clone();
        for _ in 0..20 {
            let mut workspace = loaded(&net, &model);
            workspace.set_step_rule(&net, &rule, &start);
            workspace.step(&net, &mut Stream::of_run(1, "dropout"));
            let moved = workspace.minus(&net, &model);
            model.iter_mut().zip(moved).for_each(|(value, moved)| *value += moved);
        }
        assert!(loss_and_scores(&net, &model).0 < loss_and_scores(&net, &start).0 - 0.01, "{name} learns");
        let (loss, scores) = loss_and_scores(&net, &model);
        let file = folder.join(format!("{name}.safetensors"));
        write_model(&file, net.layout(), &model).unwrap();
        let scores = serde_json::json!({ "loss": loss, "scores": scores });
        std::fs::write(file.with_extension("json"), scores.to_string()).unwrap();
        assert_eq!(tensors(&file).0, tensors(&torch(&format!("{name}.safetensors"))).0);
    }
}

#[test]
fn a_run_starts_from_a_model_of_pytorch() {
    let place = tempfile::tempdir().unwrap();
    std::fs::copy(torch("mlp.safetensors"), place.path().join("start.st")).unwrap();
    let text = r#"
recipe = "full"
[run]
rounds = 1
start_from = "start.st"
[data]
kind = "synthetic"
clients = 2
features = 12
classes = 5
[model]
kind = "layers"
layers = [{ kind = "dense", units = 9 }, { kind = "relu" }]
[local]
learning_rate = 1e-30
steps = 1
"#;
    let config = write(place.path(), "a.toml", text);
    let out = place.path().join("run");
    succeed(&["run", &config, "--quiet", "--out", out.to_str().unwrap()]);
    let theirs = std::fs::read(torch("mlp.safetensors")).unwrap();
    let record = contents(&out);
    assert_eq!(record["start.safetensors"], theirs);
    assert_eq!(record["model.safetensors"], theirs, "so small a rate moves nothing");
}
