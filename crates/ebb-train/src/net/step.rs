//! One step of training: forward, loss, backward, and the weights move.

use std::ops::Range;

use ebb_round::{Adam, StepRule, Stream};

use super::compile::{Flow, Loss, Net, Op};
use super::{lstm, norm};
use crate::Tally;
use crate::kernels::{SLACK, buffer, conv, curves, dense, loss, padded};

/// Whether a network learns or is judged: dropout and batch norm differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It learns.
    Train,
    /// It is judged.
    Judge,
}

/// Everything that one thread needs to compute a network on batches of up to a certain size.
pub struct Workspace {
    capacity: usize,
    /// Parameters in their inner places.
    weights: Vec<f32>,
    velocity: Vec<f32>,
    /// Where the weights are pulled to, and what is added to their gradient, in inner places.
    start: Vec<f32>,
    push: Vec<f32>,
    rule: Rule,
    /// The squares that Adam remembers, and how many steps it has taken.
    squares: Vec<f32>,
    n_steps: i32,
    gradient: Vec<f32>,
    /// What goes into each operation, and what comes out of the last.
    values: Vec<Vec<f32>>,
    /// The gradient of the loss in each of them.
    slopes: Vec<Vec<f32>>,
    scratch: Vec<Scratch>,
    labels: Vec<u32>,
    /// Values that the batch's outputs should have, where they are not classes.
    aims: Vec<f32>,
    /// Whether the copies that forward passes use are older than the weights.
    stale: bool,
}

/// What every step does until another is followed.
#[derive(Clone, Copy, Debug)]
struct Rule {
    step: dense::Corrections,
    /// The gradient is changed by more than a factor: start and push are in place.
    corrected: bool,
    adam: Option<Adam>,
    clip: Option<f32>,
}

/// What an operation keeps from forward to backward.
enum Scratch {
    Conv(Box<ConvScratch>),
    MaxPool { chosen: Vec<u32> },
    Mask(Vec<f32>),
    Norm(Box<norm::Scratch>),
    Embedding { gradient: Vec<f32> },
    Lstm(Box<lstm::Scratch>),
    Nothing,
}

struct ConvScratch {
    padded_input: Vec<f32>,
    padded_slopes: Vec<f32>,
    turned: Vec<f32>,
    rows: Vec<f32>,
    chosen: Vec<i32>,
    gradient: Vec<f32>,
    bias_gradient: Vec<f32>,
    lists: conv::Lists,
}

/// Live outputs listed at a time: the lists then stay in the second-level cache.
const LISTED: usize = 1 << 15;

impl Workspace {
    /// For batches of up to `capacity` samples.
    pub fn new(net: &Net, capacity: usize) -> Self {
        let flows = |stride: &dyn Fn(&Flow) -> usize| {
            net.shapes.iter().map(|flow| buffer(capacity * stride(flow))).collect()
        };
        let scratch = net
            .ops
            .iter()
            .zip(&net.shapes)
            .map(|(op, flow)| match op {
                Op::Conv { shape, padding, .. } => {
                    let padded_len = if *padding > 0 { capacity * shape.in_len() } else { 0 };
                    Scratch::Conv(Box::new(ConvScratch {
                        padded_input: buffer(padded_len),
                        padded_slopes: buffer(padded_len),
                        turned: buffer(shape.forward_len()),
                        rows: buffer(shape.rows_len()),
                        chosen: vec![0; capacity * shape.out_len() + SLACK],
                        gradient: buffer(shape.weights_len()),
                        bias_gradient: buffer(padded(shape.n_out)),
                        lists: conv::Lists::default(),
                    }))
                }
                Op::MaxPool { .. } => Scratch::MaxPool { chosen: vec![0; capacity * flow.len()] },
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
            push: Vec::new(),
            rule: Rule {
                step: dense::Corrections { rate: 0.0, momentum: 0.0, nesterov: false, decay: 0.0, pull: 0.0 },
                corrected: false,
                adam: None,
                clip: None,
            },
            squares: Vec::new(),
            n_steps: 0,
            gradient: Vec::new(),
            values: flows(&|flow| flow.stride),
            slopes: flows(&|flow| flow.stride),
            scratch,
            labels: Vec::with_capacity(capacity),
            aims: Vec::new(),
            stale: true,
        }
    }

    /// How many samples a batch may have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Starts from these parameters, with nothing remembered of earlier steps.
    pub fn load(&mut self, net: &Net, outer: &[f32]) {
        // All of it, the padding too: a client that diverged may have left anything there.
        self.weights.fill(0.0);
        net.pack(outer, &mut self.weights);
        self.velocity.fill(0.0);
        self.squares.fill(0.0);
        self.n_steps = 0;
        self.stale = true;
    }

    /// The parameters minus those in `outer`.
    pub fn minus(&self, net: &Net, outer: &[f32]) -> Vec<f32> {
        net.minus(&self.weights, outer)
    }

    /// Where the next batch goes: a slice for the samples and a list for their labels.
    pub fn batch(&mut self) -> (&mut [f32], &mut Vec<u32>) {
        self.labels.clear();
        self.aims.clear();
        (&mut self.values[0], &mut self.labels)
    }

    /// Where the values go that the outputs of the batch should have, one list a sample, if they are not classes.
    /// There must be a label for each all the same.
    pub fn aims(&mut self) -> &mut Vec<f32> {
        &mut self.aims
    }

    /// From now on steps are taken by this rule; `start`, where it pulls to, and its push are in the outer order.
    pub fn follow(&mut self, net: &Net, rule: &StepRule<'_>, start: &[f32]) {
        let &StepRule {
            learning_rate: rate,
            momentum,
            nesterov,
            adam,
            weight_decay: decay,
            proximal: pull,
            correction: push,
            max_grad_norm: clip,
        } = rule;
        let corrected = decay != 0.0 || pull != 0.0 || push.is_some() || nesterov;
        let step = dense::Corrections { rate, momentum, nesterov, decay, pull };
        self.rule = Rule { step, corrected, adam, clip };
        let room = |wanted: bool, room: &mut Vec<f32>| {
            if wanted && room.is_empty() {
                *room = buffer(net.packed_len);
            }
        };
        let apart = clip.is_some() || adam.is_some();
        room(momentum != 0.0 || adam.is_some() || corrected, &mut self.velocity);
        room(adam.is_some(), &mut self.squares);
        room(apart, &mut self.gradient);
        room(corrected || apart, &mut self.start);
        room(corrected || apart, &mut self.push);
        if corrected || apart {
            net.pack(start, &mut self.start);
            match push {
                Some(push) => net.pack(push, &mut self.push),
                None => self.push.fill(0.0),
            }
        }
    }

    /// Takes one step on the batch, by the rule that is followed.
    pub fn step(&mut self, net: &Net, stream: &mut Stream) -> Tally {
        let tally = self.forward(net, Mode::Train, stream);
        if self.rule.clip.is_none() && self.rule.adam.is_none() {
            self.backward(net, Then::Step);
        } else {
            self.backward(net, Then::Store);
            self.update(net);
        }
        self.stale = true;
        tally
    }

    /// The gradient of the batch's mean loss, in the outer order. Dropout is on, as in a step.
    pub fn gradient(&mut self, net: &Net, stream: &mut Stream) -> (Tally, Vec<f32>) {
        // Running statistics are for steps; looking at a gradient must not move them.
        let buffers = net.buffers();
        let kept: Vec<_> = buffers.iter().map(|range| self.weights[range.clone()].to_vec()).collect();
        let tally = self.forward(net, Mode::Train, stream);
        for (range, kept) in buffers.into_iter().zip(kept) {
            self.weights[range].copy_from_slice(&kept);
        }
        self.backward(net, Then::Store);
        let trained = |place: u32| net.trained.iter().any(|range| range.contains(&(place as usize)));
        let at = |&place: &u32| if trained(place) { self.gradient[place as usize] } else { 0.0 };
        (tally, net.places().iter().map(at).collect())
    }

    /// Losses and hits of the batch.
    pub fn judge(&mut self, net: &Net) -> Tally {
        self.forward(net, Mode::Judge, &mut Stream::of_run(0, "never drawn"))
    }

    /// Each sample of the batch that was judged last: one score a class, and its label.
    pub fn scores<'w>(&'w self, net: &Net) -> impl Iterator<Item = (&'w [f32], u32)> + use<'w> {
        let (stride, n_classes) = (net.shapes.last().expect("a network has layers").stride, net.n_classes());
        let rows = self.values.last().expect("as above").chunks_exact(stride);
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
            let (before, after) = self.values.split_at_mut(at + 1);
            let (input, output) = (&before[at], &mut after[0]);
            let (from, to) = (net.shapes[at], net.shapes[at + 1]);
            match (op, &mut self.scratch[at]) {
                (Op::Conv { shape, padding, weights, bias }, Scratch::Conv(scratch)) => {
                    let scratch = scratch.as_mut();
                    if self.stale {
                        conv::turn(shape, &self.weights[*weights..], &mut scratch.turned);
                    }
                    let input = if *padding > 0 {
                        pad(n_rows, &from, *padding, input, &mut scratch.padded_input);
                        &scratch.padded_input
                    } else {
                        input
                    };
                    let bias = &self.weights[*bias..];
                    let (rows, chosen) = (&mut scratch.rows, &mut scratch.chosen);
                    conv::forward(
                        net.path,
                        shape,
                        n_rows,
                        input,
                        &scratch.turned,
                        bias,
                        rows,
                        output,
                        chosen,
                    );
                }
                (Op::Dense { n_in, out_pad, relu, weights, bias }, _) => {
                    let sizes = dense::Sizes::close(n_rows, *n_in, from.stride, *out_pad);
                    let (weights, bias) = (&self.weights[*weights..], &self.weights[*bias..]);
                    dense::forward(net.path, &sizes, input, weights, bias, output, *relu);
                }
                (Op::MaxPool { size }, Scratch::MaxPool { chosen }) => {
                    max_pool(n_rows, &from, &to, *size, input, output, chosen);
                }
                (Op::AvgPool { size }, _) => avg_pool(n_rows, &from, &to, *size, input, output),
                (Op::Relu, _) => {
                    each(n_rows, &from, input, output, |value| if value > 0.0 { value } else { 0.0 });
                }
                (Op::Tanh, _) => {
                    let len = padded(n_rows * from.stride);
                    curves::tanh(net.path, &input[..len], &mut output[..len]);
                }
                (Op::Dropout { chance }, Scratch::Mask(mask)) if mode == Mode::Train => {
                    let mask = &mut mask[..n_rows * from.len()];
                    drop_some(mask, *chance, stream);
                    masked(n_rows, &from, mask, input, output);
                }
                (Op::ChannelDropout { chance }, Scratch::Mask(mask)) if mode == Mode::Train => {
                    for sample in mask.chunks_mut(from.len()).take(n_rows) {
                        let (first, rest) = sample.split_at_mut(from.channels);
                        drop_some(first, *chance, stream);
                        rest.chunks_mut(from.channels).for_each(|pixel| pixel.copy_from_slice(first));
                    }
                    masked(n_rows, &from, &mask[..n_rows * from.len()], input, output);
                }
                (Op::Dropout { .. } | Op::ChannelDropout { .. }, _) => {
                    each(n_rows, &from, input, output, |value| value);
                }
                (Op::BatchNorm(shape), Scratch::Norm(scratch)) => match mode {
                    Mode::Train => scratch.learn(shape, n_rows, &from, &mut self.weights, input, output),
                    Mode::Judge => scratch.judge(shape, n_rows, &from, &self.weights, input, output),
                },
                (Op::Embedding { symbols, width, weights }, _) => {
                    for row in 0..n_rows {
                        let taken = &input[row * from.stride..][..from.len()];
                        let given = &mut output[row * to.stride..][..to.len()];
                        for (symbol, vector) in taken.iter().zip(given.chunks_exact_mut(*width)) {
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
        let last = net.shapes.last().expect("a network has layers");
        let (scores, slopes) = (self.values.last(), self.slopes.last_mut());
        let (scores, slopes) = (scores.expect("as above"), slopes.expect("as above"));
        let scores = &scores[..n_rows * last.stride];
        slopes[..scores.len()].copy_from_slice(scores);
        let n_classes = net.n_classes();
        match net.loss {
            Loss::CrossEntropy => {
                let mut tally = [0.0; 2];
                loss::softmax(net.path, slopes, n_classes, last.stride, &self.labels, &mut tally);
                Tally { weight: n_rows as f64, loss: tally[0], hits: Some(tally[1]) }
            }
            Loss::SquaredError => {
                let rows = slopes.chunks_exact_mut(last.stride).take(n_rows);
                let aims = if self.aims.is_empty() {
                    loss::Aims::Classes(&self.labels)
                } else {
                    loss::Aims::Values(&self.aims)
                };
                let (loss, hits) = loss::squared(rows, n_classes, aims);
                Tally { weight: n_rows as f64, loss, hits }
            }
        }
    }

    /// From the slopes of the scores back to the weights: they move at once, or their gradient is stored.
    fn backward(&mut self, net: &Net, then: Then) {
        let n_rows = self.labels.len();
        let Rule { step, corrected, .. } = self.rule;
        if then == Then::Store && self.gradient.is_empty() {
            self.gradient = buffer(net.packed_len);
        }
        for (at, op) in net.ops.iter().enumerate().rev() {
            let (before, after) = self.slopes.split_at_mut(at + 1);
            let (into, slopes) = (&mut before[at], &mut after[0]);
            let (from, to) = (net.shapes[at], net.shapes[at + 1]);
            let (input, output) = (&self.values[at], &self.values[at + 1]);
            // Nobody asks for the slopes of the samples themselves.
            let wanted = at > 0;
            macro_rules! sink {
                () => {
                    match then {
                        Then::Store => dense::Sink::store(&mut self.gradient),
                        Then::Step if corrected => dense::Sink::corrected(
                            &mut self.weights,
                            &mut self.velocity,
                            &self.start,
                            &self.push,
                            step,
                        ),
                        Then::Step if step.momentum == 0.0 => dense::Sink::step(&mut self.weights, step.rate),
                        Then::Step => dense::Sink::momentum(
                            &mut self.weights,
                            &mut self.velocity,
                            step.rate,
                            step.momentum,
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
                    // Places in the input are counted in 32 bits.
                    let at_a_time = (LISTED / shape.out_len()).min(u32::MAX as usize / shape.in_len()).max(1);
                    for first in (0..n_rows).step_by(at_a_time) {
                        let count = at_a_time.min(n_rows - first);
                        let out = first * shape.out_len();
                        let lists = &mut scratch.lists;
                        lists.collect(
                            net.path,
                            shape,
                            count,
                            &slopes[out..],
                            &scratch.chosen[out..],
                            &mut scratch.bias_gradient,
                        );
                        let input = &input[first * shape.in_len()..];
                        conv::weight_gradient(net.path, shape, input, lists, &mut scratch.gradient);
                    }
                    for row in scratch.gradient.chunks_mut(shape.row_pad()).take(shape.n_out * shape.side) {
                        row[shape.row()..].fill(0.0);
                    }
                    if wanted && *padding > 0 {
                        scratch.padded_slopes[..n_rows * shape.in_len() + SLACK].fill(0.0);
                        let to = &mut scratch.padded_slopes;
                        conv::input_gradient(net.path, shape, n_rows, slopes, &scratch.chosen, filters, to);
                        unpad(n_rows, &from, *padding, to, into);
                    } else if wanted {
                        into[..n_rows * from.stride + SLACK].fill(0.0);
                        conv::input_gradient(net.path, shape, n_rows, slopes, &scratch.chosen, filters, into);
                    }
                    let sink = sink!();
                    sink.take(net.path, &scratch.gradient[..shape.weights_len()], *weights);
                    sink.take(net.path, &scratch.bias_gradient[..padded(shape.n_out)], *bias);
                }
                (Op::Dense { n_in, out_pad, relu, weights, bias }, _) => {
                    let sizes = dense::Sizes::close(n_rows, *n_in, from.stride, *out_pad);
                    if *relu {
                        loss::only_alive(net.path, &mut slopes[..n_rows * out_pad], output);
                    }
                    if wanted {
                        dense::input_gradient(net.path, &sizes, slopes, &self.weights[*weights..], into);
                    }
                    dense::weight_gradient(net.path, &sizes, input, slopes, &sink!(), *weights, *bias);
                }
                (Op::MaxPool { .. }, Scratch::MaxPool { chosen }) => {
                    into.fill(0.0);
                    for row in 0..n_rows {
                        for at in 0..to.len() {
                            into[row * from.stride + chosen[row * to.len() + at] as usize] +=
                                slopes[row * to.stride + at];
                        }
                    }
                }
                (Op::AvgPool { size }, _) => spread(n_rows, &from, &to, *size, slopes, into),
                (Op::Relu, _) => {
                    copy(n_rows, &from, slopes, into);
                    loss::only_alive(net.path, &mut into[..n_rows * from.stride], output);
                }
                (Op::Tanh, _) => {
                    for row in 0..n_rows {
                        for at in 0..from.len() {
                            let value = output[row * to.stride + at];
                            into[row * from.stride + at] =
                                slopes[row * to.stride + at] * (1.0 - value * value);
                        }
                    }
                }
                (Op::Dropout { .. } | Op::ChannelDropout { .. }, Scratch::Mask(mask)) => {
                    masked(n_rows, &from, &mask[..n_rows * from.len()], slopes, into);
                }
                (Op::BatchNorm(shape), Scratch::Norm(scratch)) => {
                    scratch.backward(shape, n_rows, &from, &self.weights, slopes, into);
                    let sink = sink!();
                    sink.take(net.path, &scratch.scales, shape.scale);
                    sink.take(net.path, &scratch.shifts, shape.shift);
                }
                (Op::Embedding { width, weights, .. }, Scratch::Embedding { gradient }) => {
                    gradient.fill(0.0);
                    for row in 0..n_rows {
                        let taken = &input[row * from.stride..][..from.len()];
                        let given = &slopes[row * to.stride..][..to.len()];
                        for (symbol, vector) in taken.iter().zip(given.chunks_exact(*width)) {
                            let sum = &mut gradient[*symbol as usize * width..][..*width];
                            sum.iter_mut().zip(vector).for_each(|(sum, slope)| *sum += slope);
                        }
                    }
                    sink!().take(net.path, gradient, *weights);
                }
                (Op::Lstm(shape), Scratch::Lstm(scratch)) => {
                    let into = wanted.then_some(into.as_mut_slice());
                    scratch.backward(net.path, shape, n_rows, &self.weights, (&from, into), (&to, slopes));
                    let (gradient, bias) = scratch.gradient.split_at(shape.weights_len());
                    let sink = sink!();
                    sink.take(net.path, gradient, shape.weights);
                    for at in shape.biases {
                        sink.take(net.path, &bias[..shape.out_pad()], at);
                    }
                }
                (Op::LastStep, _) => {
                    into.fill(0.0);
                    for row in 0..n_rows {
                        into[row * from.stride + from.len() - to.len()..][..to.len()]
                            .copy_from_slice(&slopes[row * to.stride..][..to.len()]);
                    }
                }
                _ => unreachable!("every operation has its own scratch"),
            }
        }
    }

    /// A step from the stored gradient, for rules that must see all of it first, or remember more than velocity.
    fn update(&mut self, net: &Net) {
        let Workspace { weights, velocity, squares, n_steps, gradient, start, push, rule, .. } = self;
        let Rule { step, adam, clip, .. } = *rule;
        let mut squared = 0.0;
        for range in &net.trained {
            for at in range.clone() {
                gradient[at] += step.pull * (weights[at] - start[at]) + push[at];
                squared += f64::from(gradient[at]) * f64::from(gradient[at]);
            }
        }
        let scale = clip.map_or(1.0, |clip| (f64::from(clip) / (squared.sqrt() + 1e-6)).min(1.0) as f32);
        *n_steps += 1;
        let kept = adam.map(|adam| (1.0 - adam.beta1.powi(*n_steps), 1.0 - adam.beta2.powi(*n_steps)));
        for range in &net.trained {
            for at in range.clone() {
                let slope = scale * gradient[at] + step.decay * weights[at];
                let moved = if let (Some(adam), Some((first, second))) = (adam, kept) {
                    velocity[at] = adam.beta1 * velocity[at] + (1.0 - adam.beta1) * slope;
                    squares[at] = adam.beta2 * squares[at] + (1.0 - adam.beta2) * slope * slope;
                    (velocity[at] / first) / ((squares[at] / second).sqrt() + adam.epsilon)
                } else if step.momentum != 0.0 {
                    velocity[at] = step.momentum * velocity[at] + slope;
                    if step.nesterov { slope + step.momentum * velocity[at] } else { velocity[at] }
                } else {
                    slope
                };
                weights[at] -= step.rate * moved;
            }
        }
    }
}

/// What becomes of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It is stored.
    Store,
    /// The step that is followed is taken at once.
    Step,
}

fn pad(n_rows: usize, from: &Flow, padding: usize, input: &[f32], to: &mut [f32]) {
    for (inside, plain) in image_rows(n_rows, from, padding) {
        to[inside].copy_from_slice(&input[plain]);
    }
}

fn unpad(n_rows: usize, to: &Flow, padding: usize, from: &[f32], into: &mut [f32]) {
    for (inside, plain) in image_rows(n_rows, to, padding) {
        into[plain].copy_from_slice(&from[inside]);
    }
}

/// Where each row of pixels of each sample stands with zeros around the images, and without.
fn image_rows(
    n_rows: usize,
    flow: &Flow,
    padding: usize,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let flow = *flow;
    let width = (flow.width + 2 * padding) * flow.channels;
    let sample = (flow.height + 2 * padding) * width;
    let row_len = flow.width * flow.channels;
    (0..n_rows).flat_map(move |row| {
        (0..flow.height).map(move |y| {
            let inside = row * sample + (y + padding) * width + padding * flow.channels;
            let plain = row * flow.stride + y * row_len;
            (inside..inside + row_len, plain..plain + row_len)
        })
    })
}

fn each(n_rows: usize, flow: &Flow, input: &[f32], output: &mut [f32], compute: impl Fn(f32) -> f32) {
    for row in 0..n_rows {
        let range = row * flow.stride..row * flow.stride + flow.len();
        for (output, &input) in output[range.clone()].iter_mut().zip(&input[range]) {
            *output = compute(input);
        }
    }
}

fn copy(n_rows: usize, flow: &Flow, from: &[f32], into: &mut [f32]) {
    each(n_rows, flow, from, into, |value| value);
}

/// Factors of a dropout: 0 with this chance, and else what makes up for it. The chance is rounded to a multiple
/// of 2^-32.
fn drop_some(mask: &mut [f32], chance: f32, stream: &mut Stream) {
    let (bound, keep) = ((f64::from(chance) * 4_294_967_296.0) as u64, 1.0 / (1.0 - chance));
    for mask in mask {
        *mask = if u64::from(stream.next_u32()) < bound { 0.0 } else { keep };
    }
}

fn masked(n_rows: usize, flow: &Flow, mask: &[f32], input: &[f32], output: &mut [f32]) {
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
    from: &Flow,
    to: &Flow,
    size: usize,
    input: &[f32],
    output: &mut [f32],
    chosen: &mut [u32],
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
                    chosen[row * to.len() + at] = best.1 as u32;
                }
            }
        }
    }
}

fn avg_pool(n_rows: usize, from: &Flow, to: &Flow, size: usize, input: &[f32], output: &mut [f32]) {
    let share = 1.0 / (size * size) as f32;
    windows(n_rows, from, to, size, |outside, inside| {
        output[outside] = share * inside.map(|at| input[at]).sum::<f32>();
    });
}

fn spread(n_rows: usize, from: &Flow, to: &Flow, size: usize, slopes: &[f32], into: &mut [f32]) {
    let share = 1.0 / (size * size) as f32;
    into.fill(0.0);
    windows(n_rows, from, to, size, |outside, inside| {
        inside.for_each(|at| into[at] = share * slopes[outside]);
    });
}

/// Visits every window: the place of its output, and the places of its inputs.
fn windows(
    n_rows: usize,
    from: &Flow,
    to: &Flow,
    size: usize,
    mut visit: impl FnMut(usize, &mut dyn Iterator<Item = usize>),
) {
    for row in 0..n_rows {
        for at in 0..to.len() {
            let (pixel, channel) = (at / to.channels, at % to.channels);
            let (y, x) = (pixel / to.width, pixel % to.width);
            let mut inside = (0..size * size).map(|place| {
                let (py, px) = (y * size + place / size, x * size + place % size);
                row * from.stride + (py * from.width + px) * from.channels + channel
            });
            visit(row * to.stride + at, &mut inside);
        }
    }
}
