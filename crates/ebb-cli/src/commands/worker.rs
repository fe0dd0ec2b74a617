//! `ebbflow worker`: a worker of the JSON-lines protocol; a program in any language can do the same.

use std::io::{BufRead, StdinLock, Write};
use std::num::NonZeroU32;
use std::sync::Arc;

use ebb_exec::protocol::{Reply, Request, StepSettings};
use ebb_exec::{read_vector, write_vector};
use ebb_round::{Adam, Amount, ClientId, Job, LocalRun, Parcel, StepFeature, StepRule, Work};
use ebb_settings::BuildContext;
use ebb_train::{LocalTrainer, Task};

use crate::CliError;
use crate::args::Worker;
use crate::assemble::{planned_seed_and_rounds, read_settings};

pub(crate) fn run(args: &Worker) -> Result<(), CliError> {
    let (tree, _) = read_settings(&args.file, &[], args.data_folder.data.as_deref())?;
    let context =
        BuildContext { seed: u64::from(planned_seed_and_rounds(&tree)?.0), ..BuildContext::default() };
    let task = crate::tasks::build(&tree.table("data", context))?;
    if let Some(file) = &args.write_model {
        return write_vector(file, task.layout(), &task.initial()).map_err(CliError::Usage);
    }
    let mut lines = std::io::stdin().lock();
    let mut next = read_request(&mut lines)?;
    while let Some(request) = next {
        next = match request {
            Request::Begin { .. } => handle_run(task.as_ref(), request, &mut lines)?,
            ask => {
                write_reply(&reply_outside_run(task.as_ref(), &ask).unwrap_or_else(error_reply))?;
                read_request(&mut lines)?
            }
        };
    }
    Ok(())
}

/// Handles one run; returns the first request after it.
fn handle_run(
    task: &dyn Task,
    begin: Request,
    lines: &mut StdinLock<'_>,
) -> Result<Option<Request>, CliError> {
    let Request::Begin { client, round, seed, model, batch, steps } = begin else {
        unreachable!("only a beginning begins")
    };
    let limit = NonZeroU32::new(steps).unwrap_or(NonZeroU32::MIN);
    let work = Work { amount: Amount::Steps(limit), batch_size: batch.and_then(NonZeroU32::new) };
    let global = match read_vector(&model, task.layout()) {
        Ok(global) => Arc::new(Parcel::of(global)),
        Err(error) => {
            write_reply(&error_reply(error))?;
            return read_request(lines);
        }
    };
    if client as usize >= task.n_clients() {
        write_reply(&error_reply(format!("there is no client {client}")))?;
        return read_request(lines);
    }
    let job = Job { round, global, learning_rate: 0.0, work };
    let mut run = task.begin(ClientId::new(client as usize), &job, seed, limit);
    write_reply(&Reply::default())?;
    while let Some(request) = read_request(lines)? {
        let reply = match &request {
            Request::Steps { count, rule } => train_steps(task, run.as_mut(), *count, rule),
            Request::Update { file } => update(task, run.as_ref(), file),
            Request::Gradient { file } => {
                write_vector(file, task.layout(), &run.full_gradient()).map(|()| Reply::default())
            }
            Request::Describe { .. }
            | Request::Begin { .. }
            | Request::Loss { .. }
            | Request::Evaluate { .. } => {
                return Ok(Some(request));
            }
        };
        write_reply(&reply.unwrap_or_else(error_reply))?;
    }
    Ok(None)
}

fn train_steps(
    task: &dyn Task,
    run: &mut dyn LocalRun,
    count: u32,
    rule: &StepSettings,
) -> Result<Reply, String> {
    let correction = rule.push.as_ref().map(|file| read_vector(file, task.layout())).transpose()?;
    let adam = rule.adam.map(|[beta1, beta2, epsilon]| Adam { beta1, beta2, epsilon });
    let &StepSettings {
        rate: learning_rate,
        momentum,
        nesterov,
        weight_decay,
        pull: proximal,
        clip: max_grad_norm,
        ..
    } = rule;
    let rule = StepRule {
        learning_rate,
        momentum,
        nesterov,
        adam,
        weight_decay,
        proximal,
        correction: correction.as_deref(),
        max_grad_norm,
    };
    Ok(Reply { steps: Some(run.steps(count, &rule)), ..Reply::default() })
}

fn update(task: &dyn Task, run: &dyn LocalTrainer, file: &std::path::Path) -> Result<Reply, String> {
    write_vector(file, task.layout(), &run.delta())?;
    let result = run.result_so_far();
    Ok(Reply {
        steps: Some(result.as_ref().map_or(0, |done| done.steps.get())),
        loss: result.as_ref().map(|done| f64::from(done.loss)),
        loss_fall: result.as_ref().map(|done| f64::from(done.loss_fall)),
        accuracy: result.and_then(|done| done.accuracy).map(f64::from),
        ..Reply::default()
    })
}

/// Replies to a request outside of a run.
fn reply_outside_run(task: &dyn Task, request: &Request) -> Result<Reply, String> {
    let client_of = |client: u32| match client as usize {
        idx if idx < task.n_clients() => Ok(ClientId::new(idx)),
        _ => Err(format!("there is no client {client}")),
    };
    match request {
        Request::Describe { client } => {
            let client = client_of(*client)?;
            Ok(Reply {
                samples: Some(f64::from(task.samples(client))),
                held_out: Some(task.held_out(client)),
                labels: Some(task.has_accuracy()),
                can: Some(StepFeature::ALL.map(|feature| feature.name().to_owned()).to_vec()),
                ..Reply::default()
            })
        }
        Request::Loss { client, model, .. } => {
            let model = read_vector(model, task.layout())?;
            Ok(Reply { loss: Some(f64::from(task.loss(client_of(*client)?, &model))), ..Reply::default() })
        }
        Request::Evaluate { client, model } => {
            let model = read_vector(model, task.layout())?;
            let tally = match client {
                Some(client) => {
                    task.evaluate_client(client_of(*client)?, &model).ok_or("this client keeps no samples")?
                }
                None => (0..task.n_test_batches())
                    .map(|batch| task.evaluate_batch(batch, &model))
                    .fold(ebb_train::Tally::default(), |sum, tally| sum + tally),
            };
            let (samples, loss) = (Some(tally.n_samples), Some(tally.loss));
            Ok(Reply { samples, loss, hits: tally.hits, ..Reply::default() })
        }
        _ => Err("no run was begun".to_owned()),
    }
}

fn error_reply(error: String) -> Reply {
    Reply { error: Some(error), ..Reply::default() }
}

/// The next request; `None` at the end of the input.
fn read_request(lines: &mut StdinLock<'_>) -> Result<Option<Request>, CliError> {
    let mut line = String::new();
    let failed = |error| CliError::file("reading", std::path::Path::new("standard input"), error);
    if lines.read_line(&mut line).map_err(failed)? == 0 {
        return Ok(None);
    }
    let request = serde_json::from_str(&line);
    request.map(Some).map_err(|error| {
        CliError::Usage(format!("a line that is no question ({error}): {}", line.trim_end()))
    })
}

fn write_reply(reply: &Reply) -> Result<(), CliError> {
    let mut line = serde_json::to_vec(reply).expect("texts and numbers always make JSON");
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    // The other side has closed the pipe, so nothing is left to do.
    out.write_all(&line).and_then(|()| out.flush()).map_err(|_| CliError::OutputClosed)
}
