//! Compiles a network: checks that its layers fit, fuses them, and lays out its parameters.

use std::fmt;

use ebb_round::{Layout, Stream, Tensor};

use super::spec::{Input, Layer, Spec};
use super::{lstm, norm};
use crate::kernels::{KernelPath, conv, dense, padded};

/// A compiled network, ready to be computed.
#[derive(Debug)]
pub struct Net {
    pub(super) ops: Vec<Op>,
    /// The shapes between operations: the input of each, and the output of the last.
    pub(super) activation_shapes: Vec<ActivationShape>,
    pub(super) path: KernelPath,
    layout: Layout,
    /// For each parameter in the outer order, its position in the packed vector.
    packed_positions: Vec<u32>,
    /// Pairs of outer and packed positions, in packed order. Copying then walks along few streams of memory,
    /// where the outer order would stride through a whole matrix for each unit.
    packing: Vec<(u32, u32)>,
    pub(super) packed_len: usize,
    /// The packed ranges that gradients change.
    pub(super) trained: Vec<std::ops::Range<usize>>,
    n_classes: usize,
    pub(super) loss: Loss,
    input: Input,
}

/// The shape of the activations between two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActivationShape {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    /// Floats from one sample to the next.
    pub(super) stride: usize,
    /// Rows are steps in time, not of an image: PyTorch then flattens step by step, not channel by channel.
    pub(super) by_step: bool,
}

impl ActivationShape {
    pub(super) fn len(&self) -> usize {
        self.height * self.width * self.channels
    }

    fn image(height: usize, width: usize, channels: usize) -> ActivationShape {
        ActivationShape { height, width, channels, stride: height * width * channels, by_step: false }
    }

    fn sequence(steps: usize, channels: usize) -> ActivationShape {
        ActivationShape { by_step: true, ..ActivationShape::image(steps, 1, channels) }
    }
}

/// One kernel call forward, and its counterpart backward.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Conv { shape: conv::Shape, padding: usize, weights: usize, bias: usize },
    Dense { n_in: usize, out_pad: usize, relu: bool, weights: usize, bias: usize },
    MaxPool { size: usize },
    AvgPool { size: usize },
    Relu,
    Tanh,
    Dropout { probability: f32 },
    ChannelDropout { probability: f32 },
    BatchNorm(norm::Shape),
    Embedding { symbols: usize, width: usize, weights: usize },
    Lstm(lstm::Shape),
    LastStep,
}

/// The loss function of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    CrossEntropy,
    SquaredError,
}

/// Why a network cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetError {
    /// The layer, counted from 0.
    pub layer: usize,
    /// Its name.
    pub name: &'static str,
    /// Why the layer does not fit.
    pub message: String,
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} ({}): {}", self.layer, self.name, self.message)
    }
}

impl std::error::Error for NetError {}

impl Net {
    /// Compiles a network for a kernel path.
    ///
    /// # Panics
    ///
    /// When this machine lacks the path's vector unit.
    pub fn new(spec: &Spec, path: KernelPath) -> Result<Net, NetError> {
        assert!(KernelPath::available().contains(&path), "there is no {} here", path.name());
        let symbols = if let Input::Sequence { symbols, .. } = spec.input { symbols } else { 0 };
        let mut builder = Builder { symbols, ..Builder::default() };
        let (layers, loss) = match spec.layers.split_last() {
            Some((Layer::CrossEntropy, layers)) => (layers, Loss::CrossEntropy),
            Some((Layer::SquaredError, layers)) => (layers, Loss::SquaredError),
            _ => (spec.layers.as_slice(), Loss::CrossEntropy),
        };
        let mut flow = match spec.input {
            Input::Image { height, width, channels } => ActivationShape::image(height, width, channels),
            Input::Flat(count) => ActivationShape::image(1, 1, count),
            Input::Sequence { steps, .. } => ActivationShape::sequence(steps, 1),
        };
        if flow.len() == 0 {
            return Err(NetError { layer: 0, name: "input", message: "a sample has no features".to_owned() });
        }
        let mut shapes = vec![flow];
        let mut ops = Vec::new();
        let mut at = 0;
        while at < layers.len() {
            let taken = builder.add(layers, at, flow, &mut ops, &mut shapes)?;
            flow = *shapes.last().expect("there is always an input");
            at += taken;
        }
        let last = layers.len().saturating_sub(1);
        let Some(Layer::Dense { units: n_classes }) = layers.last().copied() else {
            let name = layers.last().map_or("nothing", Layer::name);
            let message = "a network ends in a dense layer with one unit per class".to_owned();
            return Err(NetError { layer: last, name, message });
        };
        let Builder { tensors, packed_positions, packed_len, trained, .. } = builder;
        if packed_len > u32::MAX as usize {
            let message = "the network has more parameters than 32 bits can count".to_owned();
            return Err(NetError { layer: last, name: "dense", message });
        }
        let (layout, input) = (Layout::new(tensors), spec.input);
        let mut packing: Vec<(u32, u32)> = (0..).zip(packed_positions.iter().copied()).collect();
        packing.sort_unstable_by_key(|&(_, packed_at)| packed_at);
        Ok(Net {
            ops,
            activation_shapes: shapes,
            path,
            layout,
            packed_positions,
            packing,
            packed_len,
            trained,
            n_classes,
            loss,
            input,
        })
    }

    /// The tensors of the outer parameter vector.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The number of classes that it scores.
    pub fn n_classes(&self) -> usize {
        self.n_classes
    }

    /// Whether its outputs can be compared with regression targets, not only with classes.
    pub fn is_regression(&self) -> bool {
        self.loss == Loss::SquaredError
    }

    /// The input that it takes.
    pub fn input(&self) -> Input {
        self.input
    }

    /// Floats in one sample.
    pub fn input_len(&self) -> usize {
        self.activation_shapes[0].len()
    }

    /// The kernel path that it was compiled for.
    pub fn path(&self) -> KernelPath {
        self.path
    }

    /// Copies outer parameters to their packed positions.
    pub(super) fn pack(&self, outer: &[f32], inner: &mut [f32]) {
        for &(outer_at, packed_at) in &self.packing {
            inner[packed_at as usize] = outer[outer_at as usize];
        }
    }

    /// Packed parameters minus `outer`, in the outer order.
    pub(super) fn minus_outer(&self, inner: &[f32], outer: &[f32]) -> Vec<f32> {
        let mut moved = vec![0.0; outer.len()];
        for &(outer_at, packed_at) in &self.packing {
            moved[outer_at as usize] = inner[packed_at as usize] - outer[outer_at as usize];
        }
        moved
    }

    /// The packed ranges that are carried along but not trained.
    pub(super) fn buffer_ranges(&self) -> Vec<std::ops::Range<usize>> {
        let channels = |at: usize| self.activation_shapes[at].channels;
        let norms = self.ops.iter().enumerate().filter_map(|(at, op)| match op {
            Op::BatchNorm(norm) => Some([norm.mean, norm.variance].map(|first| first..first + channels(at))),
            _ => None,
        });
        norms.flatten().collect()
    }

    /// For each parameter in the outer order, its position in the packed vector.
    pub(super) fn packed_positions(&self) -> &[u32] {
        &self.packed_positions
    }

    /// Initial parameters as PyTorch draws them: uniform within `1 / sqrt(n_in)` of a unit, an embedding from
    /// the normal distribution.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut stream = Stream::of_run(seed, "initial weights");
        let mut weights = vec![0.0; self.layout.len()];
        let mut bound = 0.0;
        for (tensor, range) in self.layout.tensors() {
            let values = &mut weights[range];
            let mut uniform = |bound: f64| {
                values.iter_mut().for_each(|value| *value = (bound * (2.0 * stream.uniform() - 1.0)) as f32);
            };
            match tensor.name.rsplit('.').next() {
                Some("weight") if tensor.name.starts_with("embedding") => {
                    values.iter_mut().for_each(|value| *value = stream.normal() as f32);
                }
                Some("weight") if tensor.shape.len() > 1 => {
                    let fan_in: usize = tensor.shape[1..].iter().product();
                    bound = 1.0 / (fan_in as f64).sqrt();
                    uniform(bound);
                }
                // A batch norm begins as the identity.
                Some("weight" | "running_var") => {
                    values.fill(1.0);
                    bound = 0.0;
                }
                Some("bias") => uniform(bound),
                // All parameters of an LSTM are uniform within `1 / sqrt(units)`.
                Some(_) if tensor.name.starts_with("lstm") => {
                    uniform(1.0 / (tensor.shape[0] as f64 / 4.0).sqrt());
                }
                _ => {}
            }
        }
        weights
    }
}

/// The most channels, units or weights of a layer: products of them must stay far from overflowing.
const MAX_UNITS: usize = 1 << 20;
const MAX_WEIGHTS: usize = 1 << 28;

/// The most LSTMs that a layer may stack.
const MAX_STACKED_LSTMS: usize = 64;

#[derive(Default)]
struct Builder {
    tensors: Vec<Tensor>,
    packed_positions: Vec<u32>,
    packed_len: usize,
    trained: Vec<std::ops::Range<usize>>,
    n_convs: usize,
    n_denses: usize,
    n_norms: usize,
    n_embeddings: usize,
    n_lstms: usize,
    /// Number of different symbols in the input, if it is a sequence.
    symbols: usize,
}

impl Builder {
    /// Adds the operations of the layer at `at` and of those that fuse with it; returns the number of these
    /// layers.
    fn add(
        &mut self,
        layers: &[Layer],
        at: usize,
        flow: ActivationShape,
        ops: &mut Vec<Op>,
        shapes: &mut Vec<ActivationShape>,
    ) -> Result<usize, NetError> {
        let layer = &layers[at];
        let wrong = |message: String| Err(NetError { layer: at, name: layer.name(), message });
        let image = format!("{} x {} x {}", flow.height, flow.width, flow.channels);
        let mut push_op = |op: Op, flow: ActivationShape| {
            ops.push(op);
            shapes.push(flow);
        };
        match *layer {
            Layer::Conv { channels, kernel, stride, padding } => {
                if channels == 0 || kernel == 0 || stride == 0 {
                    return wrong("channels, kernel and stride must be at least 1".to_owned());
                }
                let longest = flow.height.max(flow.width);
                if channels > MAX_UNITS || padding > longest {
                    return wrong(format!(
                        "give at most {MAX_UNITS} channels, and no more padding than image"
                    ));
                }
                if stride > longest {
                    return wrong(format!("a stride of {stride} exceeds an image of {image}"));
                }
                if flow.stride != flow.len() {
                    return wrong(
                        "a convolution needs an image; put it before the first dense layer".to_owned(),
                    );
                }
                let (height, width) = (flow.height + 2 * padding, flow.width + 2 * padding);
                if kernel > height || kernel > width {
                    return wrong(format!("a kernel of {kernel} does not fit an image of {image}"));
                }
                let fused = Fused::after(&layers[at + 1..]);
                let shape = conv::Shape {
                    height,
                    width,
                    n_in: flow.channels,
                    n_out: channels,
                    kernel,
                    stride,
                    pool_size: fused.pool,
                    relu: fused.relu,
                };
                let (out_height, out_width) = shape.out_size();
                if out_height == 0 || out_width == 0 {
                    return wrong(format!(
                        "nothing is left of an image of {image} after pooling by {}",
                        fused.pool
                    ));
                }
                if shape.weights_len() > MAX_WEIGHTS || shape.in_len() > MAX_WEIGHTS {
                    return wrong(format!(
                        "{channels} channels from an image of {image} are too large; give fewer"
                    ));
                }
                let (weights, bias) = self.conv(&shape);
                let out = ActivationShape::image(out_height, out_width, channels);
                push_op(Op::Conv { shape, padding, weights, bias }, out);
                if let Some(probability) = fused.channel_dropout {
                    push_op(Op::ChannelDropout { probability }, out);
                }
                Ok(1 + fused.n_layers)
            }
            Layer::Dense { units } => {
                if units == 0 {
                    return wrong("units must be at least 1".to_owned());
                }
                if units > MAX_UNITS || flow.len().saturating_mul(padded(units)) > MAX_WEIGHTS {
                    return wrong(format!(
                        "{units} units from {} inputs are too large; give fewer",
                        flow.len()
                    ));
                }
                let relu = matches!(layers.get(at + 1), Some(Layer::Relu));
                let (weights, bias) = self.dense(flow, units);
                let out_pad = padded(units);
                let out = ActivationShape { stride: out_pad, ..ActivationShape::image(1, 1, units) };
                push_op(Op::Dense { n_in: flow.len(), out_pad, relu, weights, bias }, out);
                Ok(if relu { 2 } else { 1 })
            }
            Layer::MaxPool { size } | Layer::AvgPool { size } => {
                if size == 0 || size > flow.height || size > flow.width {
                    return wrong(format!("a window of {size} does not fit an image of {image}"));
                }
                let out = ActivationShape::image(flow.height / size, flow.width / size, flow.channels);
                let max = matches!(layer, Layer::MaxPool { .. });
                push_op(if max { Op::MaxPool { size } } else { Op::AvgPool { size } }, out);
                Ok(1)
            }
            Layer::Relu => {
                push_op(Op::Relu, flow);
                Ok(1)
            }
            Layer::Tanh => {
                push_op(Op::Tanh, flow);
                Ok(1)
            }
            Layer::Dropout { probability } | Layer::ChannelDropout { probability } => {
                if !(0.0..1.0).contains(&probability) {
                    return wrong(format!("a probability of {probability}; give one from 0 to below 1"));
                }
                let whole = matches!(layer, Layer::ChannelDropout { .. });
                push_op(
                    if whole { Op::ChannelDropout { probability } } else { Op::Dropout { probability } },
                    flow,
                );
                Ok(1)
            }
            Layer::BatchNorm => {
                push_op(Op::BatchNorm(self.norm(flow.channels)), flow);
                Ok(1)
            }
            Layer::Embedding { width } => {
                if at > 0 || self.symbols == 0 {
                    return wrong("an embedding comes first, and takes a sequence of symbols".to_owned());
                }
                if width == 0 || width > MAX_UNITS || self.symbols.saturating_mul(width) > MAX_WEIGHTS {
                    return wrong(format!(
                        "a width of {width} for {} symbols; give at least 1, and a smaller table",
                        self.symbols
                    ));
                }
                let weights = self.embedding(width);
                let op = Op::Embedding { symbols: self.symbols, width, weights };
                push_op(op, ActivationShape::sequence(flow.height, width));
                Ok(1)
            }
            Layer::Lstm { units, layers: n_layers } => {
                if units == 0 || n_layers == 0 {
                    return wrong("units and layers must be at least 1".to_owned());
                }
                if n_layers > MAX_STACKED_LSTMS {
                    return wrong(format!("{n_layers} layers; give at most {MAX_STACKED_LSTMS}"));
                }
                if flow.stride != flow.len() {
                    return wrong(
                        "an LSTM needs steps in time; put it before the first dense layer".to_owned(),
                    );
                }
                self.n_lstms += 1;
                let last = matches!(layers.get(at + 1), Some(Layer::LastStep));
                let mut n_in = flow.width * flow.channels;
                for layer in 0..n_layers {
                    let inputs = n_in.saturating_add(units);
                    if units > MAX_UNITS || inputs.saturating_mul(4 * padded(units)) > MAX_WEIGHTS {
                        return wrong(format!("{units} units from {n_in} inputs are too large; give fewer"));
                    }
                    let last = last && layer + 1 == n_layers;
                    let shape = self.lstm(n_in, units, layer, flow.height, last);
                    push_op(
                        Op::Lstm(shape),
                        ActivationShape::sequence(if last { 1 } else { flow.height }, units),
                    );
                    n_in = units;
                }
                Ok(if last { 2 } else { 1 })
            }
            Layer::LastStep => {
                if flow.stride != flow.len() {
                    return wrong(
                        "a dense layer leaves no steps in time; put last-step before it".to_owned(),
                    );
                }
                push_op(Op::LastStep, ActivationShape::image(1, flow.width, flow.channels));
                Ok(1)
            }
            Layer::CrossEntropy | Layer::SquaredError => {
                wrong("a loss may occur once only, as the last layer".to_owned())
            }
        }
    }

    fn embedding(&mut self, width: usize) -> usize {
        self.n_embeddings += 1;
        let len = self.symbols * width;
        let weights = self.reserve(len, true);
        self.add_tensor(format!("embedding{}.weight", self.n_embeddings), &[self.symbols, width], true);
        self.packed_positions.extend((weights..weights + len).map(|place| place as u32));
        weights
    }

    /// One LSTM of a stack. In outer order, the weights of inputs and outputs are two matrices with gates
    /// below each other. Packed, they are one matrix, inputs first, with gates side by side.
    fn lstm(&mut self, n_in: usize, units: usize, layer: usize, steps: usize, last: bool) -> lstm::Shape {
        let rows = n_in + units;
        let weights = self.reserve(4 * rows * padded(units), true);
        let biases = [(); 2].map(|()| self.reserve(4 * padded(units), true));
        let shape = lstm::Shape { n_in, units, steps, last, weights, biases };
        let name = format!("lstm{}", self.n_lstms);
        for (part, first, count) in [("ih", 0, n_in), ("hh", n_in, units)] {
            self.add_tensor(format!("{name}.weight_{part}_l{layer}"), &[4 * units, count], true);
            for unit in 0..4 * units {
                let place = |row| {
                    (weights + dense::weight_index(rows, shape.out_pad(), row, shape.column(unit))) as u32
                };
                self.packed_positions.extend((first..first + count).map(place));
            }
        }
        for (part, bias) in [("ih", biases[0]), ("hh", biases[1])] {
            self.add_tensor(format!("{name}.bias_{part}_l{layer}"), &[4 * units], true);
            self.packed_positions.extend((0..4 * units).map(|unit| (bias + shape.column(unit)) as u32));
        }
        shape
    }

    fn conv(&mut self, shape: &conv::Shape) -> (usize, usize) {
        self.n_convs += 1;
        let (weights, bias) =
            (self.reserve(shape.weights_len(), true), self.reserve(padded(shape.n_out), true));
        let name = format!("conv{}", self.n_convs);
        self.add_tensor(
            format!("{name}.weight"),
            &[shape.n_out, shape.n_in, shape.kernel, shape.kernel],
            true,
        );
        for output in 0..shape.n_out {
            for input in 0..shape.n_in {
                for row in 0..shape.kernel {
                    for column in 0..shape.kernel {
                        self.packed_positions
                            .push((weights + shape.weight_index(output, row, column, input)) as u32);
                    }
                }
            }
        }
        self.add_tensor(format!("{name}.bias"), &[shape.n_out], true);
        self.packed_positions.extend((0..shape.n_out).map(|output| (bias + output) as u32));
        (weights, bias)
    }

    fn dense(&mut self, flow: ActivationShape, units: usize) -> (usize, usize) {
        self.n_denses += 1;
        let (n_in, out_pad) = (flow.len(), padded(units));
        let (weights, bias) = (self.reserve(n_in * out_pad, true), self.reserve(out_pad, true));
        let name = format!("fc{}", self.n_denses);
        self.add_tensor(format!("{name}.weight"), &[units, n_in], true);
        let pixels = flow.height * flow.width;
        for output in 0..units {
            for outer in 0..n_in {
                // The outer order flattens an image channel by channel, the packed one pixel by pixel.
                let (channel, pixel) = (outer / pixels, outer % pixels);
                let inner = if flow.by_step { outer } else { pixel * flow.channels + channel };
                self.packed_positions
                    .push((weights + dense::weight_index(n_in, out_pad, inner, output)) as u32);
            }
        }
        self.add_tensor(format!("{name}.bias"), &[units], true);
        self.packed_positions.extend((0..units).map(|output| (bias + output) as u32));
        (weights, bias)
    }

    fn norm(&mut self, channels: usize) -> norm::Shape {
        self.n_norms += 1;
        let mut part = |name: &str, trained: bool| {
            let at = self.reserve(padded(channels), trained);
            self.add_tensor(format!("bn{}.{name}", self.n_norms), &[channels], trained);
            self.packed_positions.extend((0..channels).map(|channel| (at + channel) as u32));
            at
        };
        norm::Shape {
            scale: part("weight", true),
            shift: part("bias", true),
            mean: part("running_mean", false),
            variance: part("running_var", false),
        }
    }

    fn add_tensor(&mut self, name: String, shape: &[usize], trained: bool) {
        self.tensors.push(Tensor { name, shape: shape.to_vec(), is_trained: trained });
    }

    fn reserve(&mut self, len: usize, trained: bool) -> usize {
        let start = self.packed_len;
        self.packed_len += padded(len);
        if trained {
            self.trained.push(start..self.packed_len);
        }
        start
    }
}

/// The layers that a convolution kernel computes along with the convolution.
struct Fused {
    pool: usize,
    relu: bool,
    channel_dropout: Option<f32>,
    n_layers: usize,
}

impl Fused {
    /// Max-pooling, ReLU and channel dropout commute: each selects, zeroes or scales by a factor that is not
    /// negative.
    fn after(layers: &[Layer]) -> Fused {
        let mut fused = Fused { pool: 1, relu: false, channel_dropout: None, n_layers: 0 };
        for layer in layers {
            match *layer {
                Layer::MaxPool { size } if fused.pool == 1 && (2..=4).contains(&size) => fused.pool = size,
                Layer::Relu if !fused.relu => fused.relu = true,
                Layer::ChannelDropout { probability }
                    if fused.channel_dropout.is_none() && (0.0..1.0).contains(&probability) =>
                {
                    fused.channel_dropout = Some(probability);
                }
                _ => break,
            }
            fused.n_layers += 1;
        }
        fused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::named;

    fn parameters(name: &str, input: Input, n_classes: usize) -> usize {
        let net = Net::new(&named(name, input, n_classes).unwrap(), KernelPath::Portable).unwrap();
        let mut places: Vec<_> = net.packed_positions().to_vec();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0] != pair[1]), "no two parameters share a place");
        let trained = net.layout().tensors().filter(|(tensor, _)| tensor.is_trained);
        trained.map(|(_, range)| range.len()).sum()
    }

    #[test]
    fn the_papers_networks_have_the_papers_parameter_counts() {
        let mnist = Input::Image { height: 28, width: 28, channels: 1 };
        let cifar = Input::Image { height: 32, width: 32, channels: 3 };
        assert_eq!(parameters("logistic", Input::Flat(60), 10), 610);
        assert_eq!(parameters("mlp", mnist, 10), 199_210);
        assert_eq!(parameters("mnist-cnn", mnist, 10), 21_840);
        assert_eq!(parameters("mnist-cnn-dropout", mnist, 10), 21_840);
        assert_eq!(parameters("lenet", cifar, 10), 62_006);
        assert_eq!(parameters("e3cs-emnist-cnn", mnist, 26), 543_468);
        assert_eq!(parameters("e3cs-cifar-cnn", cifar, 10), 797_962);
        assert_eq!(parameters("mcmahan-cnn", mnist, 10), 1_663_370);
        assert_eq!(parameters("fast-fashion-cnn", mnist, 62), 1_206_590);
        assert_eq!(parameters("fast-cifar-cnn", cifar, 10), 541_094);
        // Parameters: conv 416 + 12,832, batch norm 32 + 64, dense 15,690.
        assert_eq!(parameters("fmnist-cnn", mnist, 10), 29_034);
        assert_eq!(parameters("char-lstm", Input::Sequence { steps: 80, symbols: 80 }, 80), 819_920);
    }

    #[test]
    fn layers_that_do_not_fit_are_named() {
        let image = Input::Image { height: 8, width: 8, channels: 1 };
        let conv = |channels, kernel| Layer::Conv { channels, kernel, stride: 1, padding: 0 };
        for (layers, expected) in [
            (vec![conv(4, 9)], "layer 0 (conv): a kernel of 9 does not fit an image of 8 x 8 x 1"),
            (vec![conv(0, 3)], "layer 0 (conv): channels, kernel and stride must be at least 1"),
            (
                vec![conv(4, 8), Layer::MaxPool { size: 2 }],
                "layer 0 (conv): nothing is left of an image of 8 x 8 x 1 after pooling by 2",
            ),
            (
                vec![Layer::Tanh, Layer::MaxPool { size: 9 }],
                "layer 1 (max-pool): a window of 9 does not fit an image of 8 x 8 x 1",
            ),
            (
                vec![Layer::Dropout { probability: 1.0 }],
                "layer 0 (dropout): a probability of 1; give one from 0 to below 1",
            ),
            (vec![Layer::Dense { units: 0 }], "layer 0 (dense): units must be at least 1"),
            (
                vec![Layer::Dense { units: 1 << 60 }],
                "layer 0 (dense): 1152921504606846976 units from 64 inputs are too large; give fewer",
            ),
            (
                vec![Layer::Conv { channels: 4, kernel: 3, stride: 1, padding: usize::MAX / 2 }],
                "layer 0 (conv): give at most 1048576 channels, and no more padding than image",
            ),
            (
                vec![Layer::Conv { channels: 4, kernel: 3, stride: 1 << 54, padding: 1 }],
                "layer 0 (conv): a stride of 18014398509481984 exceeds an image of 8 x 8 x 1",
            ),
            (
                vec![Layer::Dense { units: 10 }, Layer::Tanh, conv(4, 1)],
                "layer 2 (conv): a convolution needs an image; put it before the first dense layer",
            ),
            (
                vec![Layer::Embedding { width: 8 }],
                "layer 0 (embedding): an embedding comes first, and takes a sequence of symbols",
            ),
            (
                vec![Layer::Lstm { units: 0, layers: 1 }],
                "layer 0 (lstm): units and layers must be at least 1",
            ),
            (
                vec![Layer::Lstm { units: 1, layers: 1_000_000_000 }],
                "layer 0 (lstm): 1000000000 layers; give at most 64",
            ),
            (
                vec![Layer::Dense { units: 10 }, Layer::Lstm { units: 4, layers: 1 }],
                "layer 1 (lstm): an LSTM needs steps in time; put it before the first dense layer",
            ),
            (
                vec![Layer::SquaredError, Layer::Dense { units: 10 }],
                "layer 0 (squared-error): a loss may occur once only, as the last layer",
            ),
            (vec![conv(4, 3)], "layer 0 (conv): a network ends in a dense layer with one unit per class"),
        ] {
            assert_eq!(
                Net::new(&Spec { input: image, layers }, KernelPath::Portable).unwrap_err().to_string(),
                expected
            );
        }
    }
}
