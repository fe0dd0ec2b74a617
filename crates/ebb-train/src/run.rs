//! One client's local run over mini-batches of its own samples.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Job, LocalRun, StepRule, Stream};

use crate::model::{Model, Samples};
use crate::task::{Done, Trainee};

/// A client training a model on its samples.
pub struct MiniBatches<'t> {
    model: &'t dyn Model,
    samples: Samples<'t>,
    start: &'t [f32],
    weights: Vec<f32>,
    velocity: Vec<f32>,
    gradient: Vec<f32>,
    order: Vec<u32>,
    stream: Stream,
    at: usize,
    batch: usize,
    asked: NonZeroU32,
    limit: u32,
    done: u32,
    loss: f64,
    accuracy: f64,
}

impl<'t> MiniBatches<'t> {
    /// Begins from the job's model. Batches are drawn without replacement, in an order of each pass's own.
    pub fn new(
        model: &'t dyn Model,
        samples: Samples<'t>,
        client: ClientId,
        job: &'t Job,
        seed: u64,
        limit: NonZeroU32,
    ) -> Self {
        let n_samples = u32::try_from(samples.len()).expect("fewer than 2^32 samples");
        let start = job.global.model.as_slice();
        MiniBatches {
            model,
            samples,
            start,
            weights: start.to_vec(),
            velocity: Vec::new(),
            gradient: vec![0.0; start.len()],
            order: (0..n_samples).collect(),
            stream: Stream::of_both(seed, "batches", job.round, client),
            at: samples.len(),
            batch: job.work.batch.map_or(samples.len(), |batch| batch.get() as usize),
            asked: job.work.steps(n_samples),
            limit: limit.get(),
            done: 0,
            loss: 0.0,
            accuracy: 0.0,
        }
    }

    fn step(&mut self, rule: &StepRule<'_>) {
        if self.at >= self.order.len() {
            self.stream.shuffle(&mut self.order);
            self.at = 0;
        }
        let end = (self.at + self.batch).min(self.order.len());
        self.gradient.fill(0.0);
        let idxs = &self.order[self.at..end];
        let tally = self.model.add_gradient(&self.weights, &self.samples, idxs, &mut self.gradient);
        self.at = end;
        self.done += 1;
        self.loss += tally.loss / tally.weight;
        self.accuracy += tally.hits.unwrap_or(0.0) / tally.weight;
        let per_sample = 1.0 / tally.weight as f32;
        self.gradient.iter_mut().for_each(|slope| *slope *= per_sample);
        self.correct(rule);
        self.move_weights(rule);
    }

    /// Adds what the rule adds to the gradient.
    fn correct(&mut self, rule: &StepRule<'_>) {
        if rule.weight_decay != 0.0 {
            for (slope, weight) in self.gradient.iter_mut().zip(&self.weights) {
                *slope += rule.weight_decay * weight;
            }
        }
        if rule.pull != 0.0 {
            for ((slope, weight), start) in self.gradient.iter_mut().zip(&self.weights).zip(self.start) {
                *slope += rule.pull * (weight - start);
            }
        }
        if let Some(push) = rule.push {
            for (slope, push) in self.gradient.iter_mut().zip(push) {
                *slope += push;
            }
        }
    }

    fn move_weights(&mut self, rule: &StepRule<'_>) {
        let direction = if rule.momentum == 0.0 {
            &self.gradient
        } else {
            self.velocity.resize(self.weights.len(), 0.0);
            for (velocity, slope) in self.velocity.iter_mut().zip(&self.gradient) {
                *velocity = rule.momentum * *velocity + slope;
            }
            &self.velocity
        };
        for (weight, slope) in self.weights.iter_mut().zip(direction) {
            *weight -= rule.rate * slope;
        }
    }
}

impl LocalRun for MiniBatches<'_> {
    fn steps_asked(&self) -> u32 {
        self.asked.get()
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        if self.samples.is_empty() {
            return 0;
        }
        let count = count.min(self.limit - self.done);
        (0..count).for_each(|_| self.step(rule));
        count
    }

    fn gradient(&mut self) -> Vec<f32> {
        let mut gradient = vec![0.0; self.weights.len()];
        let all: Vec<u32> = (0..self.order.len() as u32).collect();
        let tally = self.model.add_gradient(&self.weights, &self.samples, &all, &mut gradient);
        let per_sample = 1.0 / tally.weight.max(1.0) as f32;
        gradient.iter_mut().for_each(|slope| *slope *= per_sample);
        gradient
    }
}

impl Trainee for MiniBatches<'_> {
    fn finish(self: Box<Self>) -> Option<Done> {
        let steps = NonZeroU32::new(self.done)?;
        let delta = self.weights.iter().zip(self.start).map(|(new, old)| new - old).collect();
        let per_step = 1.0 / f64::from(self.done);
        let (loss, accuracy) = ((self.loss * per_step) as f32, (self.accuracy * per_step) as f32);
        Some(Done { delta, steps, loss, accuracy: Some(accuracy) })
    }
}
