//! One training step: forward, loss, backward, and the update of the weights.

use std::ops::Range;

use ebb_round::{Adam, StepRule, Stream};

use super::compile::{ActivationShape, Loss, Net, Op};
use super::{lstm, norm};
use crate::Tally;
use crate::kernels::{SLACK, activations, buffer, conv, dense, loss, padded};

/// Whether a network is trained or evaluated: dropout and batch norm differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training.
    Train,
    /// Evaluation.
    Eval,
}

/// All memory that one thread needs to compute a network on batches of up to a certain size.
pub struct Workspace {
    capacity: usize,
    /// Parameters in packed order.
    weights: Vec<f32>,
    velocity: Vec<f32>,
    /// The centre of the proximal term and the correction of the gradient, in packed order.
    start: Vec<f32>,
    correction: Vec<f32>,
    rule: Rule,
    /// Adam's mean of squared gradients, and the number of its steps.
    squared_gradients: Vec<f32>,
    n_adam_steps: i32,
    gradient: Vec<f32>,
    /// The input of each operation, and the output of the last.
    activations: Vec<Vec<f32>>,
    /// The gradient of the loss with respect to each of them.
    activation_grads: Vec<Vec<f32>>,
    scratch: Vec<Scratch>,
    labels: Vec<u32>,
    /// Regression targets of the batch, if it has no classes.
    targets: Vec<f32>,
    /// Whether the forward pass's copies of the weights are out of date.
    stale: bool,
}

/// The rule of every step until another is set.
#[derive(Clone, Copy, Debug)]
struct Rule {
    coefficients: dense::StepCoefficients,
    /// The rule has a proximal term or a correction: their buffers are filled.
    is_general: bool,
    adam: Option<Adam>,
    max_grad_norm: Option<f32>,
}

/// What an operation keeps from forward to backward.
enum Scratch {
    Conv(Box<ConvScratch>),
    MaxPool { argmax: Vec<u32> },
    Mask(Vec<f32>),
    Norm(Box<norm::Scratch>),
    Embedding { gradient: Vec<f32> },
    Lstm(Box<lstm::Scratch>),
    Nothing,
}

struct ConvScratch {
    padded_input: Vec<f32>,
    padded_input_grads: Vec<f32>,
    transposed: Vec<f32>,
    rows: Vec<f32>,
    argmax: Vec<i32>,
    gradient: Vec<f32>,
    bias_gradient: Vec<f32>,
    active_lists: conv::ActiveLists,
}

/// Active outputs that are listed at a time: the lists then stay in the second-level cache.
const MAX_LISTED_OUTPUTS: usize = 1 << 15;

impl Workspace {
    /// A workspace for batches of up to `capacity` samples.
    pub fn new(net: &Net, capacity: usize) -> Self {
        let flows = |stride: &dyn Fn(&ActivationShape) -> usize| {
            net.activation_shapes.iter().map(|flow| buffer(capacity * stride(flow))).collect()
        };
        let scratch = net
            .ops
            .iter()
            .zip(&net.activation_shapes)
            .map(|(op, flow)| match op {
                Op::Conv { shape, padding, .. } => {
                    let padded_len = if *padding > 0 { capacity * shape.in_len() } else { 0 };
                    Scratch::Conv(Box::new(ConvScratch {
                        padded_input: buffer(padded_len),
                        padded_input_grads: buffer(padded_len),
                        transposed: buffer(shape.forward_len()),
                        rows: buffer(shape.rows_len()),
                        argmax: vec![0; capacity * shape.out_len() + SLACK],
                        gradient: buffer(shape.weights_len()),
                        bias_gradient: buffer(padded(shape.n_out)),
                        active_lists: conv::ActiveLists::default(),
                    }))
                }
                Op::MaxPool { .. } => Scratch::MaxPool { argmax: vec![0; capacity * flow.len()] },
                Op::Dropout { .. } | Op::ChannelDropout { .. } => {
                    Scratch::Mask(vec![0.0; capacity * flow.len()])
                }
                Op::BatchNorm(_) => Scratch::Norm(Box::new(norm::Scratch::new(flow, capacity))),
                Op::Embedding { symbols, width, .. } => {
                    Scratch::Embedding { gradient: vec![0.0; padded(symbols * width)] }
                }
                Op::Lstm(shape) => Scratch::Lstm(Box::new(lstm::Scratch::new(shape, capacity))),
                _ => Scratch::Nothing,
            })
            .collect();
        Workspace {
            capacity,
            weights: buffer(net.packed_len),
            velocity: Vec::new(),
            start: Vec::new(),
            correction: Vec::new(),
            rule: Rule {
                coefficients: dense::StepCoefficients {
                    learning_rate: 0.0,
                    momentum: 0.0,
                    nesterov: false,
                    weight_decay: 0.0,
                    proximal: 0.0,
                },
                is_general: false,
                adam: None,
                max_grad_norm: None,
            },
            squared_gradients: Vec::new(),
            n_adam_steps: 0,
            gradient: Vec::new(),
            activations: flows(&|flow| flow.stride),
            activation_grads: flows(&|flow| flow.stride),
            scratch,
            labels: Vec::with_capacity(capacity),
            targets: Vec::new(),
            stale: true,
        }
    }

    /// The most samples that a batch may have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Starts from these parameters, without any state of earlier steps.
    pub fn load(&mut self, net: &Net, outer: &[f32]) {
        // Padding is cleared too: a client that diverged may have left NaN there.
        self.weights.fill(0.0);
        net.pack(outer, &mut self.weights);
        self.velocity.fill(0.0);
        self.squared_gradients.fill(0.0);
        self.n_adam_steps = 0;
        self.stale = true;
    }

    /// The parameters minus those in `outer`.
    pub fn minus(&self, net: &Net, outer: &[f32]) -> Vec<f32> {
        net.minus_outer(&self.weights, outer)
    }

    /// The buffers for the next batch: a slice for the samples and a list for their labels.
    pub fn batch(&mut self) -> (&mut [f32], &mut Vec<u32>) {
        self.labels.clear();
        self.targets.clear();
        (&mut self.activations[0], &mut self.labels)
    }

    /// The buffer for the batch's regression targets, one row per sample. Each sample needs a label
    /// nevertheless.
    pub fn targets(&mut self) -> &mut Vec<f32> {
        &mut self.targets
    }

    /// Sets the rule of the following steps; `start`, the centre of the proximal term, and the correction are
    /// in the outer order.
    pub fn set_step_rule(&mut self, net: &Net, rule: &StepRule<'_>, start: &[f32]) {
        let &StepRule {
            learning_rate,
            momentum,
            nesterov,
            adam,
            weight_decay,
            proximal,
            correction,
            max_grad_norm,
        } = rule;
        let is_general = weight_decay != 0.0 || proximal != 0.0 || correction.is_some() || nesterov;
        let coefficients =
            dense::StepCoefficients { learning_rate, momentum, nesterov, weight_decay, proximal };
        self.rule = Rule { coefficients, is_general, adam, max_grad_norm };
        let allocate = |is_needed: bool, target: &mut Vec<f32>| {
            if is_needed && target.is_empty() {
                *target = buffer(net.packed_len);
            }
        };
        let needs_gradient = max_grad_norm.is_some() || adam.is_some();
        allocate(momentum != 0.0 || adam.is_some() || is_general, &mut self.velocity);
        allocate(adam.is_some(), &mut self.squared_gradients);
        allocate(needs_gradient, &mut self.gradient);
        allocate(is_general || needs_gradient, &mut self.start);
        allocate(is_general || needs_gradient, &mut self.correction);
        if is_general || needs_gradient {
            net.pack(start, &mut self.start);
            match correction {
                Some(correction) => net.pack(correction, &mut self.correction),
                None => self.correction.fill(0.0),
            }
        }
    }

    /// Takes one step on the batch by the current rule.
    pub fn step(&mut self, net: &Net, stream: &mut Stream) -> Tally {
        let tally = self.forward(net, Mode::Train, stream);
        if self.rule.max_grad_norm.is_none() && self.rule.adam.is_none() {
            self.backward(net, GradientUse::Apply);
        } else {
            self.backward(net, GradientUse::Keep);
            self.update_weights(net);
        }
        self.stale = true;
        tally
    }

    /// The gradient of the batch's mean loss, in the outer order. Dropout is on, as in a step.
    pub fn gradient(&mut self, net: &Net, stream: &mut Stream) -> (Tally, Vec<f32>) {
        // Only steps update running statistics; computing a gradient must not change them.
        let buffers = net.buffer_ranges();
        let saved_buffers: Vec<_> =
            buffers.iter().map(|range| self.weights[range.clone()].to_vec()).collect();
        let tally = self.forward(net, Mode::Train, stream);
        for (range, saved) in buffers.into_iter().zip(saved_buffers) {
            self.weights[range].copy_from_slice(&saved);
        }
        self.backward(net, GradientUse::Keep);
        let trained = |place: u32| net.trained.iter().any(|range| range.contains(&(place as usize)));
        let at = |&place: &u32| if trained(place) { self.gradient[place as usize] } else { 0.0 };
        (tally, net.packed_positions().iter().map(at).collect())
    }

    /// Losses and hits of the batch.
    pub fn evaluate(&mut self, net: &Net) -> Tally {
        self.forward(net, Mode::Eval, &mut Stream::of_run(0, "never drawn"))
    }

    /// The scores and the label of each sample of the last evaluated batch.
    pub fn scores<'w>(&'w self, net: &Net) -> impl Iterator<Item = (&'w [f32], u32)> + use<'w> {
        let (stride, n_classes) =
            (net.activation_shapes.last().expect("a network has layers").stride, net.n_classes());
        let rows = self.activations.last().expect("as above").chunks_exact(stride);
        rows.map(move |row| &row[..n_classes]).zip(self.labels.iter().copied())
    }

    fn forward(&mut self, net: &Net, mode: Mode, stream: &mut Stream) -> Tally {
        let n_rows = self.labels.len();
        assert!(
            n_rows > 0 && n_rows <= self.capacity,
            "a batch of {n_rows} in a workspace for {}",
            self.capacity
        );
        for (at, op) in net.ops.iter().enumerate() {
            let (before, after) = self.activations.split_at_mut(at + 1);
            let (input, output) = (&before[at], &mut after[0]);
            let (from, to) = (net.activation_shapes[at], net.activation_shapes[at + 1]);
            match (op, &mut self.scratch[at]) {
                (Op::Conv { shape, padding, weights, bias }, Scratch::Conv(scratch)) => {
                    let scratch = scratch.as_mut();
                    if self.stale {
                        conv::transpose_weights(shape, &self.weights[*weights..], &mut scratch.transposed);
                    }
                    let input = if *padding > 0 {
                        pad(n_rows, &from, *padding, input, &mut scratch.padded_input);
                        &scratch.padded_input
                    } else {
                        input
                    };
                    let bias = &self.weights[*bias..];
                    let (rows, argmax) = (&mut scratch.rows, &mut scratch.argmax);
                    conv::forward(
                        net.path,
                        shape,
                        n_rows,
                        input,
                        &scratch.transposed,
                        bias,
                        rows,
                        output,
                        argmax,
                    );
                }
                (Op::Dense { n_in, out_pad, relu, weights, bias }, _) => {
                    let sizes = dense::Sizes::contiguous(n_rows, *n_in, from.stride, *out_pad);
                    let (weights, bias) = (&self.weights[*weights..], &self.weights[*bias..]);
                    dense::forward(net.path, &sizes, input, weights, bias, output, *relu);
                }
                (Op::MaxPool { size }, Scratch::MaxPool { argmax }) => {
                    max_pool(n_rows, &from, &to, *size, input, output, argmax);
                }
                (Op::AvgPool { size }, _) => avg_pool(n_rows, &from, &to, *size, input, output),
                (Op::Relu, _) => {
                    map_activations(
                        n_rows,
                        &from,
                        input,
                        output,
                        |value| if value > 0.0 { value } else { 0.0 },
                    );
                }
                (Op::Tanh, _) => {
                    let len = padded(n_rows * from.stride);
                    activations::tanh(net.path, &input[..len], &mut output[..len]);
                }
                (Op::Dropout { probability }, Scratch::Mask(mask)) if mode == Mode::Train => {
                    let mask = &mut mask[..n_rows * from.len()];
                    draw_mask(mask, *probability, stream);
                    apply_mask(n_rows, &from, mask, input, output);
                }
                (Op::ChannelDropout { probability }, Scratch::Mask(mask)) if mode == Mode::Train => {
                    for sample in mask.chunks_mut(from.len()).take(n_rows) {
                        let (first, rest) = sample.split_at_mut(from.channels);
                        draw_mask(first, *probability, stream);
                        rest.chunks_mut(from.channels).for_each(|pixel| pixel.copy_from_slice(first));
                    }
                    apply_mask(n_rows, &from, &mask[..n_rows * from.len()], input, output);
                }
                (Op::Dropout { .. } | Op::ChannelDropout { .. }, _) => {
                    map_activations(n_rows, &from, input, output, |value| value);
                }
                (Op::BatchNorm(shape), Scratch::Norm(scratch)) => match mode {
                    Mode::Train => {
                        scratch.forward_train(shape, n_rows, &from, &mut self.weights, input, output);
                    }
                    Mode::Eval => scratch.forward_eval(shape, n_rows, &from, &self.weights, input, output),
                },
                (Op::Embedding { symbols, width, weights }, _) => {
                    for row in 0..n_rows {
                        let symbols_in = &input[row * from.stride..][..from.len()];
                        let given = &mut output[row * to.stride..][..to.len()];
                        for (symbol, vector) in symbols_in.iter().zip(given.chunks_exact_mut(*width)) {
                            let symbol = *symbol as usize;
                            assert!(symbol < *symbols, "symbol {symbol} of {symbols}");
                            vector.copy_from_slice(&self.weights[weights + symbol * width..][..*width]);
                        }
                    }
                }
                (Op::Lstm(shape), Scratch::Lstm(scratch)) => {
                    scratch.forward(net.path, shape, n_rows, &self.weights, (&from, input), (&to, output));
                }
                (Op::LastStep, _) => {
                    for row in 0..n_rows {
                        let last = &input[row * from.stride + from.len() - to.len()..][..to.len()];
                        output[row * to.stride..][..to.len()].copy_from_slice(last);
                    }
                }
                _ => unreachable!("every operation has its own scratch"),
            }
        }
        self.stale = false;
        let last = net.activation_shapes.last().expect("a network has layers");
        let (scores, output_grads) = (self.activations.last(), self.activation_grads.last_mut());
        let (scores, output_grads) = (scores.expect("as above"), output_grads.expect("as above"));
        let scores = &scores[..n_rows * last.stride];
        output_grads[..scores.len()].copy_from_slice(scores);
        let n_classes = net.n_classes();
        match net.loss {
            Loss::CrossEntropy => {
                let mut tally = [0.0; 2];
                loss::softmax(net.path, output_grads, n_classes, last.stride, &self.labels, &mut tally);
                Tally { n_samples: n_rows as f64, loss: tally[0], hits: Some(tally[1]) }
            }
            Loss::SquaredError => {
                let rows = output_grads.chunks_exact_mut(last.stride).take(n_rows);
                let targets = if self.targets.is_empty() {
                    loss::Targets::Classes(&self.labels)
                } else {
                    loss::Targets::Values(&self.targets)
                };
                let (loss, hits) = loss::squared(rows, n_classes, targets);
                Tally { n_samples: n_rows as f64, loss, hits }
            }
        }
    }

    /// Backpropagates from the gradients of the scores to the weights, which are stepped at once or whose
    /// gradient is stored.
    fn backward(&mut self, net: &Net, gradient_use: GradientUse) {
        let n_rows = self.labels.len();
        let Rule { coefficients, is_general, .. } = self.rule;
        if gradient_use == GradientUse::Keep && self.gradient.is_empty() {
            self.gradient = buffer(net.packed_len);
        }
        for (at, op) in net.ops.iter().enumerate().rev() {
            let (before, after) = self.activation_grads.split_at_mut(at + 1);
            let (input_grads, output_grads) = (&mut before[at], &mut after[0]);
            let (from, to) = (net.activation_shapes[at], net.activation_shapes[at + 1]);
            let (input, output) = (&self.activations[at], &self.activations[at + 1]);
            // The gradient of the samples themselves is never needed.
            let needs_input_grads = at > 0;
            macro_rules! sink {
                () => {
                    match gradient_use {
                        GradientUse::Keep => dense::GradientSink::store(&mut self.gradient),
                        GradientUse::Apply if is_general => dense::GradientSink::general(
                            &mut self.weights,
                            &mut self.velocity,
                            &self.start,
                            &self.correction,
                            coefficients,
                        ),
                        GradientUse::Apply if coefficients.momentum == 0.0 => {
                            dense::GradientSink::step(&mut self.weights, coefficients.learning_rate)
                        }
                        GradientUse::Apply => dense::GradientSink::momentum(
                            &mut self.weights,
                            &mut self.velocity,
                            coefficients.learning_rate,
                            coefficients.momentum,
                        ),
                    }
                };
            }
            match (op, &mut self.scratch[at]) {
                (Op::Conv { shape, padding, weights, bias }, Scratch::Conv(scratch)) => {
                    let scratch = scratch.as_mut();
                    let input = if *padding > 0 { &scratch.padded_input } else { input };
                    let filters = &self.weights[*weights..][..shape.weights_len()];
                    scratch.gradient.fill(0.0);
                    scratch.bias_gradient.fill(0.0);
                    // Positions in the input are 32-bit numbers.
                    let at_a_time =
                        (MAX_LISTED_OUTPUTS / shape.out_len()).min(u32::MAX as usize / shape.in_len()).max(1);
                    for first in (0..n_rows).step_by(at_a_time) {
                        let count = at_a_time.min(n_rows - first);
                        let out = first * shape.out_len();
                        let lists = &mut scratch.active_lists;
                        lists.collect(
                            net.path,
                            shape,
                            count,
                            &output_grads[out..],
                            &scratch.argmax[out..],
                            &mut scratch.bias_gradient,
                        );
                        let input = &input[first * shape.in_len()..];
                        conv::weight_gradient(net.path, shape, input, lists, &mut scratch.gradient);
                    }
                    for row in
                        scratch.gradient.chunks_mut(shape.padded_row_len()).take(shape.n_out * shape.kernel)
                    {
                        row[shape.row_len()..].fill(0.0);
                    }
                    if needs_input_grads && *padding > 0 {
                        scratch.padded_input_grads[..n_rows * shape.in_len() + SLACK].fill(0.0);
                        let to = &mut scratch.padded_input_grads;
                        conv::input_gradient(
                            net.path,
                            shape,
                            n_rows,
                            output_grads,
                            &scratch.argmax,
                            filters,
                            to,
                        );
                        unpad(n_rows, &from, *padding, to, input_grads);
                    } else if needs_input_grads {
                        input_grads[..n_rows * from.stride + SLACK].fill(0.0);
                        conv::input_gradient(
                            net.path,
                            shape,
                            n_rows,
                            output_grads,
                            &scratch.argmax,
                            filters,
                            input_grads,
                        );
                    }
                    let sink = sink!();
                    sink.apply_all(net.path, &scratch.gradient[..shape.weights_len()], *weights);
                    sink.apply_all(net.path, &scratch.bias_gradient[..padded(shape.n_out)], *bias);
                }
                (Op::Dense { n_in, out_pad, relu, weights, bias }, _) => {
                    let sizes = dense::Sizes::contiguous(n_rows, *n_in, from.stride, *out_pad);
                    if *relu {
                        loss::relu_backward(net.path, &mut output_grads[..n_rows * out_pad], output);
                    }
                    if needs_input_grads {
                        dense::input_gradient(
                            net.path,
                            &sizes,
                            output_grads,
                            &self.weights[*weights..],
                            input_grads,
                        );
                    }
                    dense::weight_gradient(net.path, &sizes, input, output_grads, &sink!(), *weights, *bias);
                }
                (Op::MaxPool { .. }, Scratch::MaxPool { argmax }) => {
                    input_grads.fill(0.0);
                    for row in 0..n_rows {
                        for at in 0..to.len() {
                            input_grads[row * from.stride + argmax[row * to.len() + at] as usize] +=
                                output_grads[row * to.stride + at];
                        }
                    }
                }
                (Op::AvgPool { size }, _) => {
                    avg_pool_backward(n_rows, &from, &to, *size, output_grads, input_grads);
                }
                (Op::Relu, _) => {
                    copy_activations(n_rows, &from, output_grads, input_grads);
                    loss::relu_backward(net.path, &mut input_grads[..n_rows * from.stride], output);
                }
                (Op::Tanh, _) => {
                    for row in 0..n_rows {
                        for at in 0..from.len() {
                            let value = output[row * to.stride + at];
                            input_grads[row * from.stride + at] =
                                output_grads[row * to.stride + at] * (1.0 - value * value);
                        }
                    }
                }
                (Op::Dropout { .. } | Op::ChannelDropout { .. }, Scratch::Mask(mask)) => {
                    apply_mask(n_rows, &from, &mask[..n_rows * from.len()], output_grads, input_grads);
                }
                (Op::BatchNorm(shape), Scratch::Norm(scratch)) => {
                    scratch.backward(shape, n_rows, &from, &self.weights, output_grads, input_grads);
                    let sink = sink!();
                    sink.apply_all(net.path, &scratch.scales, shape.scale);
                    sink.apply_all(net.path, &scratch.shifts, shape.shift);
                }
                (Op::Embedding { width, weights, .. }, Scratch::Embedding { gradient }) => {
                    gradient.fill(0.0);
                    for row in 0..n_rows {
                        let symbols_in = &input[row * from.stride..][..from.len()];
                        let given = &output_grads[row * to.stride..][..to.len()];
                        for (symbol, vector) in symbols_in.iter().zip(given.chunks_exact(*width)) {
                            let sum = &mut gradient[*symbol as usize * width..][..*width];
                            sum.iter_mut().zip(vector).for_each(|(sum, grad)| *sum += grad);
                        }
                    }
                    sink!().apply_all(net.path, gradient, *weights);
                }
                (Op::Lstm(shape), Scratch::Lstm(scratch)) => {
                    let input_grads = needs_input_grads.then_some(input_grads.as_mut_slice());
                    scratch.backward(
                        net.path,
                        shape,
                        n_rows,
                        &self.weights,
                        (&from, input_grads),
                        (&to, output_grads),
                    );
                    let (gradient, bias) = scratch.gradient.split_at(shape.weights_len());
                    let sink = sink!();
                    sink.apply_all(net.path, gradient, shape.weights);
                    for at in shape.biases {
                        sink.apply_all(net.path, &bias[..shape.out_pad()], at);
                    }
                }
                (Op::LastStep, _) => {
                    input_grads.fill(0.0);
                    for row in 0..n_rows {
                        input_grads[row * from.stride + from.len() - to.len()..][..to.len()]
                            .copy_from_slice(&output_grads[row * to.stride..][..to.len()]);
                    }
                }
                _ => unreachable!("every operation has its own scratch"),
            }
        }
    }

    /// A step from the stored gradient, for rules that need all of it first or keep more state than velocity.
    fn update_weights(&mut self, net: &Net) {
        let Workspace {
            weights,
            velocity,
            squared_gradients: squares,
            n_adam_steps: n_steps,
            gradient,
            start,
            correction,
            rule,
            ..
        } = self;
        let Rule { coefficients, adam, max_grad_norm, .. } = *rule;
        let mut squared = 0.0;
        for range in &net.trained {
            for at in range.clone() {
                gradient[at] += coefficients.proximal * (weights[at] - start[at]) + correction[at];
                squared += f64::from(gradient[at]) * f64::from(gradient[at]);
            }
        }
        let scale = max_grad_norm
            .map_or(1.0, |max_norm| (f64::from(max_norm) / (squared.sqrt() + 1e-6)).min(1.0) as f32);
        *n_steps += 1;
        let bias_corrections =
            adam.map(|adam| (1.0 - adam.beta1.powi(*n_steps), 1.0 - adam.beta2.powi(*n_steps)));
        for range in &net.trained {
            for at in range.clone() {
                let grad = scale * gradient[at] + coefficients.weight_decay * weights[at];
                let moved = if let (Some(adam), Some((first, second))) = (adam, bias_corrections) {
                    velocity[at] = adam.beta1 * velocity[at] + (1.0 - adam.beta1) * grad;
                    squares[at] = adam.beta2 * squares[at] + (1.0 - adam.beta2) * grad * grad;
                    (velocity[at] / first) / ((squares[at] / second).sqrt() + adam.epsilon)
                } else if coefficients.momentum != 0.0 {
                    velocity[at] = coefficients.momentum * velocity[at] + grad;
                    if coefficients.nesterov {
                        grad + coefficients.momentum * velocity[at]
                    } else {
                        velocity[at]
                    }
                } else {
                    grad
                };
                weights[at] -= coefficients.learning_rate * moved;
            }
        }
    }
}

/// What happens to a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GradientUse {
    /// It is stored.
    Keep,
    /// The step is taken at once.
    Apply,
}

fn pad(n_rows: usize, from: &ActivationShape, padding: usize, input: &[f32], to: &mut [f32]) {
    for (padded_row, plain) in image_rows(n_rows, from, padding) {
        to[padded_row].copy_from_slice(&input[plain]);
    }
}

fn unpad(n_rows: usize, to: &ActivationShape, padding: usize, from: &[f32], into: &mut [f32]) {
    for (padded_row, plain) in image_rows(n_rows, to, padding) {
        into[plain].copy_from_slice(&from[padded_row]);
    }
}

/// The position of each row of pixels of each sample, with zero padding around the images and without.
fn image_rows(
    n_rows: usize,
    flow: &ActivationShape,
    padding: usize,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let flow = *flow;
    let width = (flow.width + 2 * padding) * flow.channels;
    let sample = (flow.height + 2 * padding) * width;
    let row_len = flow.width * flow.channels;
    (0..n_rows).flat_map(move |row| {
        (0..flow.height).map(move |y| {
            let padded_at = row * sample + (y + padding) * width + padding * flow.channels;
            let plain = row * flow.stride + y * row_len;
            (padded_at..padded_at + row_len, plain..plain + row_len)
        })
    })
}

fn map_activations(
    n_rows: usize,
    flow: &ActivationShape,
    input: &[f32],
    output: &mut [f32],
    compute: impl Fn(f32) -> f32,
) {
    for row in 0..n_rows {
        let range = row * flow.stride..row * flow.stride + flow.len();
        for (output, &input) in output[range.clone()].iter_mut().zip(&input[range]) {
            *output = compute(input);
        }
    }
}

fn copy_activations(n_rows: usize, flow: &ActivationShape, from: &[f32], into: &mut [f32]) {
    map_activations(n_rows, flow, from, into, |value| value);
}

/// Factors of a dropout: 0 with this probability, else `1 / (1 - p)`. The probability is rounded to a
/// multiple of `2^-32`.
fn draw_mask(mask: &mut [f32], probability: f32, stream: &mut Stream) {
    let (bound, keep) = ((f64::from(probability) * 4_294_967_296.0) as u64, 1.0 / (1.0 - probability));
    for mask in mask {
        *mask = if u64::from(stream.next_u32()) < bound { 0.0 } else { keep };
    }
}

fn apply_mask(n_rows: usize, flow: &ActivationShape, mask: &[f32], input: &[f32], output: &mut [f32]) {
    for row in 0..n_rows {
        let range = row * flow.stride..row * flow.stride + flow.len();
        let mask = &mask[row * flow.len()..][..flow.len()];
        for ((output, &input), &mask) in output[range.clone()].iter_mut().zip(&input[range]).zip(mask) {
            *output = input * mask;
        }
    }
}

fn max_pool(
    n_rows: usize,
    from: &ActivationShape,
    to: &ActivationShape,
    size: usize,
    input: &[f32],
    output: &mut [f32],
    argmax: &mut [u32],
) {
    for row in 0..n_rows {
        for y in 0..to.height {
            for x in 0..to.width {
                for channel in 0..to.channels {
                    let mut best = (f32::NEG_INFINITY, 0);
                    for place in 0..size * size {
                        let (py, px) = (y * size + place / size, x * size + place % size);
                        let at = (py * from.width + px) * from.channels + channel;
                        let value = input[row * from.stride + at];
                        if value > best.0 || place == 0 {
                            best = (value, at);
                        }
                    }
                    let at = (y * to.width + x) * to.channels + channel;
                    output[row * to.stride + at] = best.0;
                    argmax[row * to.len() + at] = best.1 as u32;
                }
            }
        }
    }
}

fn avg_pool(
    n_rows: usize,
    from: &ActivationShape,
    to: &ActivationShape,
    size: usize,
    input: &[f32],
    output: &mut [f32],
) {
    let share = 1.0 / (size * size) as f32;
    for_each_window(n_rows, from, to, size, |output_at, inputs| {
        output[output_at] = share * inputs.map(|at| input[at]).sum::<f32>();
    });
}

fn avg_pool_backward(
    n_rows: usize,
    from: &ActivationShape,
    to: &ActivationShape,
    size: usize,
    output_grads: &[f32],
    input_grads: &mut [f32],
) {
    let share = 1.0 / (size * size) as f32;
    input_grads.fill(0.0);
    for_each_window(n_rows, from, to, size, |output_at, inputs| {
        inputs.for_each(|at| input_grads[at] = share * output_grads[output_at]);
    });
}

/// Visits every window: the position of its output, and the positions of its inputs.
fn for_each_window(
    n_rows: usize,
    from: &ActivationShape,
    to: &ActivationShape,
    size: usize,
    mut visit: impl FnMut(usize, &mut dyn Iterator<Item = usize>),
) {
    for row in 0..n_rows {
        for at in 0..to.len() {
            let (pixel, channel) = (at / to.channels, at % to.channels);
            let (y, x) = (pixel / to.width, pixel % to.width);
            let mut inputs = (0..size * size).map(|place| {
                let (py, px) = (y * size + place / size, x * size + place % size);
                row * from.stride + (py * from.width + px) * from.channels + channel
            });
            visit(row * to.stride + at, &mut inputs);
        }
    }
}
