//! A slow network in f64, written from the definitions alone, as a reference for the kernels.

use ebb_round::Stream;

use super::spec::{Input, Layer, Spec};
use super::{Net, Workspace, named};
use crate::kernels::KernelPath;

/// Activations as samples by channels by rows by columns.
struct Activations4d {
    n: usize,
    c: usize,
    h: usize,
    w: usize,
    values: Vec<f64>,
}

impl Activations4d {
    fn zeros(n: usize, c: usize, h: usize, w: usize) -> Activations4d {
        Activations4d { n, c, h, w, values: vec![0.0; n * c * h * w] }
    }

    fn at(&self, n: usize, c: usize, y: usize, x: usize) -> f64 {
        self.values[((n * self.c + c) * self.h + y) * self.w + x]
    }

    fn at_mut(&mut self, n: usize, c: usize, y: usize, x: usize) -> &mut f64 {
        &mut self.values[((n * self.c + c) * self.h + y) * self.w + x]
    }

    /// A tensor of another shape, each element computed from its position.
    fn map(
        n: usize,
        c: usize,
        h: usize,
        w: usize,
        f: impl Fn(usize, usize, usize, usize) -> f64,
    ) -> Activations4d {
        let mut out = Activations4d::zeros(n, c, h, w);
        for sample in 0..n {
            for channel in 0..c {
                for y in 0..h {
                    for x in 0..w {
                        *out.at_mut(sample, channel, y, x) = f(sample, channel, y, x);
                    }
                }
            }
        }
        out
    }
}

/// The mean loss of a batch whose samples are stored pixel by pixel.
fn loss(spec: &Spec, parameters: &[f64], samples: &[f32], labels: &[u32]) -> f64 {
    let (h, w, c) = match spec.input {
        Input::Image { height, width, channels } => (height, width, channels),
        Input::Flat(count) => (1, 1, count),
        Input::Sequence { steps, .. } => (steps, 1, 1),
    };
    let len = h * w * c;
    let mut t = Activations4d::map(labels.len(), c, h, w, |n, c_at, y, x| {
        f64::from(samples[n * len + (y * w + x) * c + c_at])
    });
    let mut rest = parameters;
    let mut take = |count: usize| {
        let (head, tail) = rest.split_at(count);
        rest = tail;
        head.to_vec()
    };
    // Whether rows are steps in time, which are flattened one after another.
    let mut by_step = false;
    for layer in &spec.layers {
        match layer {
            Layer::Embedding { .. } | Layer::Lstm { .. } => by_step = true,
            Layer::Conv { .. } => by_step = false,
            _ => {}
        }
        t = match *layer {
            Layer::Embedding { width } => {
                let Input::Sequence { symbols, .. } = spec.input else { panic!("no symbols") };
                let vectors = take(symbols * width);
                Activations4d::map(t.n, width, t.h, 1, |n, c, y, _| {
                    vectors[t.at(n, 0, y, 0) as usize * width + c]
                })
            }
            Layer::Lstm { units, layers } => {
                for _ in 0..layers {
                    let n_in = t.c * t.w;
                    let (of_input, of_output) = (take(4 * units * n_in), take(4 * units * units));
                    let biases = (take(4 * units), take(4 * units));
                    let mut out = Activations4d::zeros(t.n, units, t.h, 1);
                    for n in 0..t.n {
                        let (mut h, mut c) = (vec![0.0; units], vec![0.0; units]);
                        for y in 0..t.h {
                            let sum = |row: usize| {
                                let inputs: f64 = (0..n_in)
                                    .map(|i| of_input[row * n_in + i] * t.at(n, i % t.c, y, i / t.c))
                                    .sum();
                                let outputs: f64 =
                                    (0..units).map(|i| of_output[row * units + i] * h[i]).sum();
                                inputs + outputs + biases.0[row] + biases.1[row]
                            };
                            let sums: Vec<f64> = (0..4 * units).map(sum).collect();
                            let gate =
                                |gate: usize, unit: usize| 1.0 / (1.0 + (-sums[gate * units + unit]).exp());
                            for unit in 0..units {
                                let candidate = sums[2 * units + unit].tanh();
                                c[unit] = gate(1, unit) * c[unit] + gate(0, unit) * candidate;
                                h[unit] = gate(3, unit) * c[unit].tanh();
                                *out.at_mut(n, unit, y, 0) = h[unit];
                            }
                        }
                    }
                    t = out;
                }
                t
            }
            Layer::LastStep => Activations4d::map(t.n, t.c, 1, t.w, |n, c, _, x| t.at(n, c, t.h - 1, x)),
            Layer::CrossEntropy | Layer::SquaredError => t,
            Layer::Conv { channels, kernel, stride, padding } => {
                let (weights, bias) = (take(channels * t.c * kernel * kernel), take(channels));
                let out = |side: usize| (side + 2 * padding - kernel) / stride + 1;
                Activations4d::map(t.n, channels, out(t.h), out(t.w), |n, o, y, x| {
                    let mut sum = bias[o];
                    for i in 0..t.c {
                        for ky in 0..kernel {
                            for kx in 0..kernel {
                                let (py, px) = (y * stride + ky, x * stride + kx);
                                let is_within = py >= padding
                                    && px >= padding
                                    && py - padding < t.h
                                    && px - padding < t.w;
                                if is_within {
                                    sum += weights[((o * t.c + i) * kernel + ky) * kernel + kx]
                                        * t.at(n, i, py - padding, px - padding);
                                }
                            }
                        }
                    }
                    sum
                })
            }
            Layer::MaxPool { size } => Activations4d::map(t.n, t.c, t.h / size, t.w / size, |n, c, y, x| {
                let places = (0..size * size)
                    .map(|place| t.at(n, c, y * size + place / size, x * size + place % size));
                places.fold(f64::NEG_INFINITY, f64::max)
            }),
            Layer::AvgPool { size } => Activations4d::map(t.n, t.c, t.h / size, t.w / size, |n, c, y, x| {
                let places = (0..size * size)
                    .map(|place| t.at(n, c, y * size + place / size, x * size + place % size));
                places.sum::<f64>() / (size * size) as f64
            }),
            Layer::Relu => Activations4d::map(t.n, t.c, t.h, t.w, |n, c, y, x| t.at(n, c, y, x).max(0.0)),
            Layer::Tanh => Activations4d::map(t.n, t.c, t.h, t.w, |n, c, y, x| t.at(n, c, y, x).tanh()),
            Layer::Dense { units } => {
                let n_in = t.c * t.h * t.w;
                let (weights, bias) = (take(units * n_in), take(units));
                let flat = |n: usize, at: usize| {
                    if by_step { t.at(n, at % t.c, at / t.c, 0) } else { t.values[n * n_in + at] }
                };
                let out = Activations4d::map(t.n, units, 1, 1, |n, o, _, _| {
                    bias[o] + (0..n_in).map(|at| flat(n, at) * weights[o * n_in + at]).sum::<f64>()
                });
                by_step = false;
                out
            }
            // Gradient checks leave out dropout, which has tests of its own.
            Layer::Dropout { .. } | Layer::ChannelDropout { .. } => t,
            Layer::BatchNorm => {
                let (scale, shift) = (take(t.c), take(t.c));
                take(2 * t.c);
                let count = (t.n * t.h * t.w) as f64;
                let over = |term: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
                    let sum = |c: usize| {
                        let places = (0..t.n)
                            .flat_map(|n| (0..t.h).flat_map(move |y| (0..t.w).map(move |x| (n, y, x))));
                        places.map(|(n, y, x)| term(c, t.at(n, c, y, x))).sum::<f64>() / count
                    };
                    (0..t.c).map(sum).collect()
                };
                let means = over(&|_, value| value);
                let variances = over(&|c, value| (value - means[c]).powi(2));
                Activations4d::map(t.n, t.c, t.h, t.w, |n, c, y, x| {
                    (t.at(n, c, y, x) - means[c]) / (variances[c] + 1e-5).sqrt() * scale[c] + shift[c]
                })
            }
        };
    }
    let mut sum = 0.0;
    for (n, &label) in labels.iter().enumerate() {
        let scores = &t.values[n * t.c..(n + 1) * t.c];
        if spec.layers.last() == Some(&Layer::SquaredError) {
            let errors = scores.iter().enumerate().map(|(at, score)| {
                let target = f64::from(u8::from(at == label as usize));
                (score - target) * (score - target)
            });
            sum += errors.sum::<f64>() / scores.len() as f64;
            continue;
        }
        let total: f64 = scores.iter().map(|score| score.exp()).sum();
        sum += total.ln() - scores[label as usize];
    }
    sum / labels.len() as f64
}

/// The largest absolute difference of two elements; NaN is infinitely far.
fn largest_distance(ones: &[f32], others: &[f32]) -> f32 {
    assert_eq!(ones.len(), others.len());
    let distance = |(one, other): (&f32, &f32)| (one - other).abs();
    let distances = ones.iter().zip(others).map(distance);
    distances.map(|far| if far.is_nan() { f32::INFINITY } else { far }).fold(0.0, f32::max)
}

fn without_dropout(spec: &Spec) -> Spec {
    let kept = |layer: &&Layer| !matches!(layer, Layer::Dropout { .. } | Layer::ChannelDropout { .. });
    Spec { input: spec.input, layers: spec.layers.iter().filter(kept).copied().collect() }
}

/// A random batch: samples and labels.
fn batch(spec: &Spec, n_classes: usize, n_rows: usize, stream: &mut Stream) -> (Vec<f32>, Vec<u32>) {
    let number = |stream: &mut Stream| match spec.input {
        Input::Sequence { symbols, .. } => stream.below(symbols) as f32,
        _ => stream.normal() as f32,
    };
    let samples = (0..n_rows * spec.input.len()).map(|_| number(stream)).collect();
    let labels = (0..n_rows).map(|_| stream.below(n_classes) as u32).collect();
    (samples, labels)
}

fn gradient(net: &Net, parameters: &[f32], samples: &[f32], labels: &[u32]) -> (f64, Vec<f32>) {
    let mut workspace = Workspace::new(net, labels.len());
    workspace.load(net, parameters);
    let (to, own_labels) = workspace.batch();
    to[..samples.len()].copy_from_slice(samples);
    own_labels.extend(labels);
    let (tally, gradient) = workspace.gradient(net, &mut Stream::of_run(1, "dropout"));
    (tally.loss / tally.n_samples, gradient)
}

/// Checks loss and gradient of a network against the reference, on every path, at some of its parameters.
fn check(label: &str, spec: &Spec, n_rows: usize, seed: u64) {
    check_some(label, spec, n_rows, seed, 6);
}

fn check_some(label: &str, spec: &Spec, n_rows: usize, seed: u64, n_probes: usize) {
    let spec = without_dropout(spec);
    let net = Net::new(&spec, KernelPath::Portable).unwrap_or_else(|error| panic!("{label}: {error}"));
    let mut stream = Stream::of_run(seed, label);
    let (samples, labels) = batch(&spec, net.n_classes(), n_rows, &mut stream);
    let parameters = net.initial(seed);
    let wide: Vec<f64> = parameters.iter().copied().map(f64::from).collect();
    let expected_loss = loss(&spec, &wide, &samples, &labels);
    let (own_loss, own) = gradient(&net, &parameters, &samples, &labels);
    assert!(
        (own_loss - expected_loss).abs() < 1e-5 * (1.0 + expected_loss),
        "{label}: {own_loss} {expected_loss}"
    );
    let largest = own.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    for (tensor, range) in net.layout().tensors().filter(|(tensor, _)| tensor.is_trained) {
        for _ in 0..n_probes {
            let at = range.start + stream.below(range.len());
            let nudged = |by: f64| {
                let mut wide = wide.clone();
                wide[at] += by;
                loss(&spec, &wide, &samples, &labels)
            };
            // The step is so small that a maximum or a ReLU hardly ever switches in between.
            let numeric = (nudged(1e-7) - nudged(-1e-7)) / 2e-7;
            let error = (numeric - f64::from(own[at])).abs();
            assert!(
                error < 2e-4 * f64::from(largest) + 1e-6,
                "{label}, {}, {at}: {numeric}, not {}",
                tensor.name,
                own[at]
            );
        }
    }
    for path in KernelPath::available() {
        let fast = Net::new(&spec, path).unwrap();
        let (fast_loss, fast) = gradient(&fast, &parameters, &samples, &labels);
        assert!((fast_loss - own_loss).abs() < 1e-5, "{label} on {}: {fast_loss} {own_loss}", path.name());
        let far = largest_distance(&fast, &own);
        assert!(far <= 1e-5 * largest, "{label} on {}: {far} apart, largest {largest}", path.name());
    }
}

const IMAGE: Input = Input::Image { height: 12, width: 12, channels: 2 };

fn conv(channels: usize, kernel: usize, stride: usize, padding: usize) -> Layer {
    Layer::Conv { channels, kernel, stride, padding }
}

#[test]
fn dense_layers() {
    for (n_in, units, n_rows) in
        [(1, 1, 1), (3, 2, 2), (60, 10, 20), (17, 65, 7), (33, 130, 5), (5, 16, 9), (200, 48, 13)]
    {
        let layers = vec![Layer::Dense { units }, Layer::Relu, Layer::Dense { units: 3 }];
        check("dense", &Spec { input: Input::Flat(n_in), layers }, n_rows, 1);
    }
}

#[test]
fn convolutions_of_all_kinds() {
    for kernel in [1, 2, 3, 4, 5, 7] {
        for (stride, padding) in [(1, 0), (2, 0), (1, 1), (2, 2)] {
            for channels in [1, 10, 20] {
                let layers = vec![
                    conv(channels, kernel, stride, padding),
                    Layer::Relu,
                    conv(3, 2, 1, 0),
                    Layer::Dense { units: 4 },
                ];
                check(
                    &format!("conv {kernel} {stride} {padding} {channels}"),
                    &Spec { input: IMAGE, layers },
                    3,
                    2,
                );
            }
        }
    }
}

#[test]
fn convolutions_with_everything_fused() {
    let pool = Layer::MaxPool { size: 2 };
    for after in [
        vec![pool, Layer::Relu],
        vec![Layer::Relu, pool],
        vec![pool],
        vec![Layer::Relu],
        vec![Layer::MaxPool { size: 3 }, Layer::Relu],
    ] {
        for channels in [3, 16, 33, 64] {
            let mut layers = vec![conv(channels, 3, 1, 1)];
            layers.extend(after.clone());
            layers.extend([conv(5, 3, 1, 0), Layer::Relu, Layer::Dense { units: 3 }]);
            check(&format!("fused {channels} {after:?}"), &Spec { input: IMAGE, layers }, 2, 3);
        }
    }
}

#[test]
fn layers_on_their_own() {
    for layer in
        [Layer::Tanh, Layer::Relu, Layer::AvgPool { size: 2 }, Layer::MaxPool { size: 5 }, Layer::BatchNorm]
    {
        let layers = vec![
            conv(4, 3, 1, 0),
            Layer::Tanh,
            layer,
            Layer::Dense { units: 6 },
            layer,
            Layer::Dense { units: 3 },
        ];
        let layers = if matches!(layer, Layer::AvgPool { .. } | Layer::MaxPool { .. }) {
            vec![conv(4, 3, 1, 0), Layer::Tanh, layer, Layer::Dense { units: 3 }]
        } else {
            layers
        };
        check(&format!("alone {layer:?}"), &Spec { input: IMAGE, layers }, 4, 4);
    }
}

#[test]
fn sequences() {
    let symbols = Input::Sequence { steps: 5, symbols: 7 };
    let embedding = Layer::Embedding { width: 3 };
    for (units, layers, n_rows) in [(1, 1, 1), (4, 1, 3), (16, 2, 2), (17, 3, 5), (33, 1, 130)] {
        let lstm = Layer::Lstm { units, layers };
        for (after, layers) in [
            ("last step", vec![embedding, lstm, Layer::LastStep, Layer::Dense { units: 4 }]),
            ("all steps", vec![embedding, lstm, Layer::Dense { units: 4 }]),
            (
                "tanh between",
                vec![embedding, Layer::Tanh, lstm, Layer::Tanh, Layer::LastStep, Layer::Dense { units: 2 }],
            ),
        ] {
            check_some(&format!("lstm {units}, {after}"), &Spec { input: symbols, layers }, n_rows, 6, 3);
        }
        // Rows of an image are steps in time, and the gradient of its pixels is not needed.
        let layers = vec![lstm, Layer::LastStep, Layer::Dense { units: 4 }];
        check_some("lstm over an image", &Spec { input: IMAGE, layers }, n_rows.min(9), 7, 3);
    }
    let layers = vec![embedding, Layer::Relu, Layer::Dense { units: 4 }];
    check("embedding", &Spec { input: symbols, layers }, 6, 8);
}

/// A network of random layers and sizes.
fn random_spec(stream: &mut Stream) -> Spec {
    let dense = |stream: &mut Stream, layers: &mut Vec<Layer>| {
        for _ in 0..stream.below(3) {
            layers.push(Layer::Dense { units: 1 + stream.below(70) });
            layers.push([Layer::Relu, Layer::Tanh][stream.below(2)]);
        }
        layers.push(Layer::Dense { units: 1 + stream.below(40) });
        layers.extend([None, Some(Layer::SquaredError)][stream.below(2)]);
    };
    let mut layers = Vec::new();
    let input = match stream.below(4) {
        0 => Input::Flat(1 + stream.below(150)),
        1 => {
            layers.push(Layer::Embedding { width: 1 + stream.below(20) });
            layers.push(Layer::Lstm { units: 1 + stream.below(40), layers: 1 + stream.below(2) });
            layers.extend([None, Some(Layer::LastStep)][stream.below(2)]);
            Input::Sequence { steps: 1 + stream.below(6), symbols: 1 + stream.below(30) }
        }
        _ => {
            let (mut height, mut width) = (4 + stream.below(14), 4 + stream.below(14));
            let input = Input::Image { height, width, channels: 1 + stream.below(5) };
            for _ in 0..1 + stream.below(3) {
                let (padding, stride) = (stream.below(3), 1 + stream.below(2.min(height).min(width)));
                let kernel = 1 + stream.below(6.min(height + 2 * padding).min(width + 2 * padding));
                layers.push(conv(1 + stream.below(40), kernel, stride, padding));
                height = (height + 2 * padding - kernel) / stride + 1;
                width = (width + 2 * padding - kernel) / stride + 1;
                let size = 1 + stream.below(3.min(height).min(width));
                let after = [
                    vec![Layer::Relu, Layer::MaxPool { size }],
                    vec![Layer::MaxPool { size }, Layer::Relu],
                    vec![Layer::AvgPool { size }, Layer::Tanh],
                    vec![Layer::BatchNorm, Layer::Relu, Layer::MaxPool { size }],
                ];
                layers.extend(after[stream.below(4)].clone());
                (height, width) = (height / size, width / size);
            }
            input
        }
    };
    dense(stream, &mut layers);
    Spec { input, layers }
}

#[test]
fn networks_of_random_shapes() {
    let mut stream = Stream::of_run(2026, "shapes");
    for number in 0..100 {
        let spec = random_spec(&mut stream);
        // A batch norm over two or three values has almost no gradient, only rounding.
        let fewest = if spec.layers.contains(&Layer::BatchNorm) { 8 } else { 1 };
        let n_rows = fewest + stream.below(12);
        check_some(&format!("{number}: {n_rows} x {spec:?}"), &spec, n_rows, number, 1);
    }
}

#[test]
fn squared_error() {
    for (units, n_rows) in [(1, 1), (3, 4), (17, 5)] {
        let layers =
            vec![Layer::Dense { units: 9 }, Layer::Tanh, Layer::Dense { units }, Layer::SquaredError];
        check("squared error", &Spec { input: Input::Flat(11), layers }, n_rows, 9);
    }
}

#[test]
fn every_named_network() {
    let small = Input::Image { height: 28, width: 28, channels: 1 };
    let cifar = Input::Image { height: 32, width: 32, channels: 3 };
    for (name, _) in super::NAMES {
        let input = match *name {
            "char-lstm" => Input::Sequence { steps: 6, symbols: 80 },
            name if name.contains("cifar") || name == "lenet" => cifar,
            _ => small,
        };
        let spec = named(name, input, 10).unwrap();
        // One parameter of each tensor is checked, for the reference is slow.
        check_some(name, &spec, 2, 5, 1);
    }
}

/// Trains on one batch from the seed's initial parameters; returns the change of the parameters.
fn train_from_start(
    net: &Net,
    workspace: &mut Workspace,
    seed: u64,
    learning_rate: f32,
    count: usize,
) -> Vec<f32> {
    workspace.load(net, &net.initial(seed));
    continue_training(net, workspace, seed, learning_rate, count)
}

/// Trains on from the workspace's parameters; returns the change since the seed's initial ones.
fn continue_training(
    net: &Net,
    workspace: &mut Workspace,
    seed: u64,
    learning_rate: f32,
    count: usize,
) -> Vec<f32> {
    let start = net.initial(seed);
    let spec = Spec { input: net.input(), layers: Vec::new() };
    let (samples, labels) = batch(&spec, net.n_classes(), 4, &mut Stream::of_run(seed, "steps"));
    let rule = ebb_round::StepRule { learning_rate, momentum: 0.5, ..Default::default() };
    workspace.set_step_rule(net, &rule, &start);
    for _ in 0..count {
        let (to, own_labels) = workspace.batch();
        to[..samples.len()].copy_from_slice(&samples);
        own_labels.extend(&labels);
        workspace.step(net, &mut Stream::of_run(1, "dropout"));
    }
    workspace.minus(net, &start)
}

/// A small network of every kind.
fn specs_of_all_kinds() -> Vec<(&'static str, Spec)> {
    let image = Input::Image { height: 12, width: 12, channels: 1 };
    let symbols = Input::Sequence { steps: 4, symbols: 80 };
    let layers = vec![Layer::Lstm { units: 5, layers: 2 }, Layer::BatchNorm, Layer::Dense { units: 10 }];
    vec![
        ("dense", named("mlp", Input::Flat(30), 10).unwrap()),
        ("convolutions", named("mcmahan-cnn", image, 10).unwrap()),
        ("batch norm", named("fmnist-cnn", image, 10).unwrap()),
        ("symbols", named("char-lstm", symbols, 10).unwrap()),
        ("rows", Spec { input: image, layers }),
    ]
}

#[test]
fn a_client_that_diverged_does_not_affect_the_next() {
    for (name, spec) in specs_of_all_kinds() {
        for path in KernelPath::available() {
            let net = Net::new(&spec, path).unwrap();
            let mut used = Workspace::new(&net, 4);
            // All state becomes NaN.
            used.load(&net, &vec![f32::NAN; net.layout().len()]);
            let lost = continue_training(&net, &mut used, 1, 0.1, 2);
            assert!(lost.iter().all(|value| value.is_nan()), "{name}: it did diverge");
            let (after, fresh) = (
                train_from_start(&net, &mut used, 2, 0.1, 3),
                train_from_start(&net, &mut Workspace::new(&net, 4), 2, 0.1, 3),
            );
            assert!(
                after == fresh && after.iter().all(|value| value.is_finite()),
                "{name} on {}",
                path.name()
            );
        }
    }
}

#[test]
fn a_batch_does_not_affect_a_smaller_one() {
    for (name, spec) in specs_of_all_kinds() {
        let spec = without_dropout(&spec);
        for path in KernelPath::available() {
            let net = Net::new(&spec, path).unwrap();
            let start = net.initial(3);
            let (samples, labels) = batch(&spec, 10, 7, &mut Stream::of_run(3, name));
            let few = (&samples[..2 * net.input_len()], &labels[..2]);
            let mut used = Workspace::new(&net, 7);
            used.load(&net, &start);
            for (samples, labels) in [(samples.as_slice(), labels.as_slice()), few] {
                let (to, own) = used.batch();
                to[..samples.len()].copy_from_slice(samples);
                own.extend(labels);
                let (tally, found) = used.gradient(&net, &mut Stream::of_run(1, "dropout"));
                let fresh = gradient(&net, &start, samples, labels);
                assert!((tally.loss / tally.n_samples, found) == fresh, "{name} on {}", path.name());
            }
        }
    }
}

#[test]
fn computing_a_gradient_changes_no_weight() {
    let net = Net::new(
        &named("fmnist-cnn", Input::Image { height: 8, width: 8, channels: 1 }, 3).unwrap(),
        KernelPath::Portable,
    )
    .unwrap();
    let start = net.initial(1);
    let mut workspace = Workspace::new(&net, 4);
    workspace.load(&net, &start);
    let (to, labels) = workspace.batch();
    to[..4 * 64].fill(0.5);
    labels.extend([0, 1, 2, 0]);
    workspace.gradient(&net, &mut Stream::of_run(1, "dropout"));
    assert!(workspace.minus(&net, &start).iter().all(|&moved| moved == 0.0));
}

#[test]
fn steps_follow_the_gradients() {
    let layers = vec![
        conv(10, 5, 1, 0),
        Layer::MaxPool { size: 2 },
        Layer::Relu,
        conv(17, 3, 1, 1),
        Layer::Relu,
        Layer::Dense { units: 33 },
        Layer::Relu,
        Layer::Dense { units: 5 },
    ];
    let spec = Spec { input: IMAGE, layers };
    let (samples, labels) = batch(&spec, 5, 5, &mut Stream::of_run(6, "steps"));
    for path in KernelPath::available() {
        let net = Net::new(&spec, path).unwrap();
        let start = net.initial(6);
        let correction: Vec<f32> = (0..start.len()).map(|at| 0.01 * (at % 7) as f32 - 0.03).collect();
        let plain = ebb_round::StepRule { learning_rate: 0.1, ..Default::default() };
        let momentum = ebb_round::StepRule { momentum: 0.5, ..plain };
        let pulled = ebb_round::StepRule { proximal: 0.3, ..plain };
        let decayed = ebb_round::StepRule { weight_decay: 0.2, ..momentum };
        let pushed = ebb_round::StepRule { correction: Some(&correction), ..plain };
        let all =
            ebb_round::StepRule { proximal: 0.3, correction: Some(&correction), nesterov: true, ..decayed };
        for rule in [plain, momentum, pulled, decayed, pushed, all] {
            // The capacity exceeds the batch.
            let mut workspace = Workspace::new(&net, 7);
            workspace.load(&net, &start);
            workspace.set_step_rule(&net, &rule, &start);
            let (mut weights, mut velocity) = (start.clone(), vec![0.0; start.len()]);
            for _ in 0..3 {
                let (_, gradients) = gradient(&net, &weights, &samples, &labels);
                for at in 0..start.len() {
                    let correction_at = rule.correction.map_or(0.0, |correction| correction[at]);
                    let corrected = gradients[at]
                        + correction_at
                        + rule.proximal * (weights[at] - start[at])
                        + rule.weight_decay * weights[at];
                    velocity[at] = rule.momentum * velocity[at] + corrected;
                    let ahead =
                        if rule.nesterov { corrected + rule.momentum * velocity[at] } else { velocity[at] };
                    weights[at] -= rule.learning_rate * ahead;
                }
                let (to, own_labels) = workspace.batch();
                to[..samples.len()].copy_from_slice(&samples);
                own_labels.extend(&labels);
                workspace.step(&net, &mut Stream::of_run(1, "dropout"));
            }
            let off = largest_distance(&workspace.minus(&net, &weights), &vec![0.0; weights.len()]);
            assert!(off < 1e-6, "{}, {rule:?}: {off} off", path.name());
        }
    }
}

/// Without kinks, rounding errors stay small: fifty steps with momentum end at the same point on every path.
/// With ReLU and maxima, which a last bit can switch, the paths diverge.
#[test]
fn smooth_networks_do_not_drift_between_paths() {
    let input = Input::Image { height: 32, width: 32, channels: 3 };
    let mut spec = named("e3cs-cifar-cnn", input, 10).unwrap();
    for layer in &mut spec.layers {
        *layer = match *layer {
            Layer::Relu => Layer::Tanh,
            Layer::MaxPool { size } => Layer::AvgPool { size },
            other => other,
        };
    }
    let train = |path| {
        let net = Net::new(&spec, path).unwrap();
        train_from_start(&net, &mut Workspace::new(&net, 4), 3, 0.01, 50)
    };
    let portable = train(KernelPath::Portable);
    assert!(portable.iter().any(|&moved| moved.abs() > 1e-3), "it did learn");
    for path in KernelPath::available() {
        let far = largest_distance(&train(path), &portable);
        assert!(far < 1e-6, "{}: {far} apart", path.name());
    }
}
