//! The model, a straight line, and a client that trains it.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use ebbflow::net::Capabilities;
use ebbflow::net::client::{JobControl, JoinOptions, JoinOutcome, RunDescription, StopSignal, Trainer, join};
use ebbflow::train::Tally;
use ebbflow::train::backend::TrainedUpdate;
use ebbflow::{ClientId, Job, Layout, Parcel, Tensor, Update};
use tokio::sync::watch;

/// The model `y = slope * x + offset`: one tensor of two parameters.
pub(crate) fn layout() -> Layout {
    Layout::new(vec![Tensor { name: "line".to_owned(), shape: vec![2], is_trained: true }])
}

/// The readings of one client: pairs of x and y.
struct Line {
    readings: Vec<(f32, f32)>,
    held_out: Vec<(f32, f32)>,
}

impl Line {
    /// Made-up readings; a device would take them from its sensors. All clients' readings lie on `y = 2x -
    /// 1`, at different x.
    fn at(client: ClientId) -> Line {
        let from = 0.5 * client.idx() as f32 - 1.0;
        let pairs = (0..25).map(|idx| from + 0.05 * idx as f32).map(|x| (x, 2.0 * x - 1.0));
        let (readings, held_out) = pairs.enumerate().partition::<Vec<_>, _>(|(idx, _)| idx % 5 != 0);
        let only = |pairs: Vec<(usize, (f32, f32))>| pairs.into_iter().map(|(_, pair)| pair).collect();
        Line { readings: only(readings), held_out: only(held_out) }
    }
}

/// The distance of the line from a reading.
fn error(model: &[f32], (x, y): (f32, f32)) -> f32 {
    model[0] * x + model[1] - y
}

/// The loss: half the mean squared error.
fn loss(model: &[f32], pairs: &[(f32, f32)]) -> f32 {
    pairs.iter().map(|&pair| error(model, pair).powi(2) / 2.0).sum::<f32>() / pairs.len() as f32
}

impl Trainer for Line {
    fn samples(&self) -> u32 {
        self.readings.len() as u32
    }

    /// A run whose recipe needs more capabilities is refused when the client joins.
    fn capabilities(&self) -> Capabilities {
        Capabilities { partial: true, probe: true, evaluate: true, ..Capabilities::default() }
    }

    fn train(
        &mut self,
        job: &Job,
        _memory: &Arc<Parcel>,
        at_work: &JobControl,
    ) -> Result<Option<TrainedUpdate>, String> {
        let start = &job.global.model;
        let (mut model, mut losses) = (start.clone(), Vec::new());
        let steps_asked = job.work.steps(self.samples());
        let learning_rate = job.learning_rate / self.readings.len() as f32;
        for steps in 1..=steps_asked.get() {
            // The deadline has come: the work done so far is sent.
            if at_work.is_stopped() {
                break;
            }
            losses.push(loss(&model, &self.readings));
            let errors = self.readings.iter().map(|&(x, y)| (x, error(&model, (x, y))));
            let (slope_grad, offset_grad) = errors.fold((0.0, 0.0), |(a, b), (x, e)| (a + e * x, b + e));
            model[0] -= learning_rate * slope_grad;
            model[1] -= learning_rate * offset_grad;
            at_work.report_steps(steps);
        }
        let Some(steps) = NonZeroU32::new(losses.len() as u32) else { return Ok(None) };
        let delta = model.iter().zip(start).map(|(new, old)| new - old).collect();
        let update = Update {
            delta: Parcel::of(delta),
            base_round: job.round,
            learning_rate: job.learning_rate,
            steps,
            steps_requested: steps_asked,
            samples: self.samples(),
            loss: losses.iter().sum::<f32>() / losses.len() as f32,
            loss_fall: losses[0] - losses[losses.len() - 1],
            accuracy: None,
        };
        Ok(Some(TrainedUpdate { update, memory: None }))
    }

    fn loss(&mut self, job: &Job, _samples: Option<NonZeroU32>) -> Result<f32, String> {
        Ok(loss(&job.global.model, &self.readings))
    }

    fn evaluate(&mut self, model: &[f32]) -> Result<Tally, String> {
        let weight = self.held_out.len() as f64;
        Ok(Tally { n_samples: weight, loss: weight * f64::from(loss(model, &self.held_out)), hits: None })
    }
}

/// Joins a server and stays until the run is over.
pub(crate) fn join_and_stay(url: &str, state_dir: &Path, token: &str) -> Result<JoinOutcome, String> {
    let make = Box::new(|invitation: &RunDescription| {
        if invitation.layout != layout() {
            return Err("the server's model is no line; write it by: own_client model FILE".to_owned());
        }
        Ok(Box::new(Line::at(invitation.client)) as Box<dyn Trainer>)
    });
    let joining = JoinOptions {
        url: url.to_owned(),
        token: Some(token.to_owned()),
        state_dir: Some(state_dir.to_owned()),
        ..JoinOptions::default()
    };
    // The sender of this channel can make the client stop, or leave for good.
    let (_end, until) = watch::channel(StopSignal::Continue);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(join(joining, make, until)).map_err(|error| error.to_string())
}
