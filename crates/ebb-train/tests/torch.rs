//! Our networks compared with PyTorch: `scripts/torch_dumps.py` wrote the files in `torch`.

use ebb_round::{Adam, StepRule, Stream};
use ebb_train::KernelPath;
use ebb_train::net::{Input, Layer, Net, Spec, Workspace, named};

const N_ROWS: usize = 8;
const SHOWN: usize = 64;

/// Numbers in [-1, 1) from their position and the number of their stream; the script has the same formula.
fn numbers(stream: u64, count: usize) -> Vec<f32> {
    const M: u64 = 1 << 32;
    let number = |at: u64| {
        let mixed = ((at + 1_000_003 * stream) * 2_654_435_761) % M;
        let mixed = (mixed ^ (mixed >> 15)) * 2_246_822_519 % M;
        let mixed = mixed ^ (mixed >> 13);
        (mixed as f64 / 2_147_483_648.0 - 1.0) as f32
    };
    (0..count as u64).map(number).collect()
}

fn start(net: &Net) -> Vec<f32> {
    let mut weights = vec![0.0; net.layout().len()];
    let mut bound = 0.0;
    for (stream, (tensor, range)) in net.layout().tensors().enumerate() {
        let values = &mut weights[range];
        let part = tensor.name.rsplit('.').next().unwrap();
        if tensor.shape.len() > 1 {
            bound = (tensor.shape[1..].iter().product::<usize>() as f64).powf(-0.5) as f32;
        }
        match part {
            "weight" if tensor.shape.len() == 1 => {
                values.fill(1.0);
                bound = 0.0;
            }
            "running_var" => values.fill(1.0),
            "running_mean" => values.fill(0.0),
            _ => {
                let drawn = numbers(stream as u64, values.len());
                values.iter_mut().zip(drawn).for_each(|(value, number)| *value = bound * number);
            }
        }
    }
    weights
}

/// Trains a network; returns its first loss and its parameters.
fn train(net: &Net, n_classes: usize, n_steps: usize, rule: &StepRule<'_>) -> (f64, Vec<f32>) {
    let start = start(net);
    let mut samples = numbers(999, N_ROWS * net.input_len());
    if let Input::Sequence { symbols, .. } = net.input() {
        let symbol = |number: f32| ((number + 1.0) * (symbols / 2) as f32).floor();
        samples.iter_mut().for_each(|number| *number = symbol(*number));
    }
    let mut workspace = Workspace::new(net, N_ROWS);
    workspace.load(net, &start);
    workspace.set_step_rule(net, rule, &start);
    let mut first = None;
    for _ in 0..n_steps {
        let (to, labels) = workspace.batch();
        to[..samples.len()].copy_from_slice(&samples);
        labels.extend((0..N_ROWS).map(|row| (row * 7 % n_classes) as u32));
        let tally = workspace.step(net, &mut Stream::of_run(1, "dropout"));
        first.get_or_insert(tally.loss / tally.n_samples);
    }
    let moved = workspace.minus(net, &start);
    (first.unwrap(), start.iter().zip(moved).map(|(start, moved)| start + moved).collect())
}

/// The largest difference from PyTorch's parameters.
fn distance(net: &Net, weights: &[f32], expected: &serde_json::Value) -> f64 {
    let mut worst = 0.0_f64;
    for (index, (tensor, range)) in net.layout().tensors().enumerate() {
        let step = (range.len() / SHOWN).max(1);
        let own: Vec<_> = weights[range].iter().step_by(step).take(SHOWN).collect();
        let theirs = expected[index].as_array().unwrap();
        assert_eq!(own.len(), theirs.len(), "{}", tensor.name);
        for (own, theirs) in own.iter().zip(theirs) {
            let far = (f64::from(**own) - theirs.as_f64().unwrap()).abs();
            worst = worst.max(if far.is_nan() { f64::INFINITY } else { far });
        }
    }
    worst
}

fn check(name: &str, input: Input, n_classes: usize) {
    check_spec(name, &named(name, input, n_classes).unwrap(), n_classes);
}

fn check_spec(name: &str, spec: &Spec, n_classes: usize) {
    let file = format!("{}/tests/torch/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let expected: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let kept = |layer: &Layer| !matches!(layer, Layer::Dropout { .. } | Layer::ChannelDropout { .. });
    let spec = Spec { input: spec.input, layers: spec.layers.iter().copied().filter(kept).collect() };
    for path in KernelPath::available() {
        let net = Net::new(&spec, path).unwrap();
        let (loss, one) = train(&net, n_classes, 1, &StepRule { learning_rate: 0.1, ..StepRule::default() });
        let expected_loss = expected["loss"].as_f64().unwrap();
        assert!(
            (loss - expected_loss).abs() < 2e-6,
            "{name} on {}: loss {loss}, not {expected_loss}",
            path.name()
        );
        let far = distance(&net, &one, &expected["one_step"]);
        let (_, fifty) = train(
            &net,
            n_classes,
            50,
            &StepRule { learning_rate: 0.01, momentum: 0.9, ..StepRule::default() },
        );
        let farther = distance(&net, &fifty, &expected["fifty_steps"]);
        println!("{name} on {}: {far:.1e} after one step, {farther:.1e} after fifty", path.name());
        assert!(far < 1e-6, "{name} on {}: {far} apart after one step", path.name());
        // Rounding that differs in the last bit can switch a maximum or a ReLU; from there on two runs
        // diverge slowly.
        assert!(farther < 1e-3, "{name} on {}: {farther} apart after fifty steps", path.name());
    }
}

const MNIST: Input = Input::Image { height: 28, width: 28, channels: 1 };
const CIFAR: Input = Input::Image { height: 32, width: 32, channels: 3 };

#[test]
fn optimisers_step_like_pytorch() {
    let file = format!("{}/tests/torch/mnist-cnn.json", env!("CARGO_MANIFEST_DIR"));
    let expected: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let nesterov = StepRule {
        learning_rate: 0.05,
        momentum: 0.9,
        nesterov: true,
        weight_decay: 0.01,
        ..StepRule::default()
    };
    let adam = Some(Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 });
    let adam = StepRule { learning_rate: 0.001, adam, weight_decay: 0.01, ..StepRule::default() };
    let clipped = StepRule { learning_rate: 0.5, max_grad_norm: Some(0.1), ..StepRule::default() };
    for path in KernelPath::available() {
        let net = Net::new(&named("mnist-cnn", MNIST, 10).unwrap(), path).unwrap();
        for (name, rule, bound) in
            [("nesterov", nesterov, 1e-6), ("adam", adam, 1e-5), ("clipped", clipped, 1e-6)]
        {
            let (_, weights) = train(&net, 10, 5, &rule);
            let far = distance(&net, &weights, &expected[name]);
            assert!(far < bound, "{name} on {}: {far}", path.name());
        }
    }
}

#[test]
fn small_networks_train_like_pytorch() {
    check("logistic", Input::Flat(60), 10);
    check("mlp", MNIST, 10);
    check("mnist-cnn", MNIST, 10);
    check("lenet", CIFAR, 10);
    check("fmnist-cnn", MNIST, 10);
}

#[test]
fn sequences_train_like_pytorch() {
    check("char-lstm", Input::Sequence { steps: 20, symbols: 80 }, 80);
    // Rows of an image, and the outputs of all of them.
    let layers = vec![Layer::Lstm { units: 12, layers: 1 }, Layer::Dense { units: 10 }];
    check_spec("rows-lstm", &Spec { input: MNIST, layers }, 10);
    let input = Input::Sequence { steps: 20, symbols: 80 };
    let layers =
        vec![Layer::Embedding { width: 6 }, Layer::Tanh, Layer::Dense { units: 10 }, Layer::SquaredError];
    check_spec("symbols-squared", &Spec { input, layers }, 10);
}

#[test]
fn large_networks_train_like_pytorch() {
    check("e3cs-emnist-cnn", MNIST, 26);
    check("e3cs-cifar-cnn", CIFAR, 10);
    check("mcmahan-cnn", MNIST, 10);
    check("fast-fashion-cnn", MNIST, 62);
    check("fast-cifar-cnn", CIFAR, 10);
}
