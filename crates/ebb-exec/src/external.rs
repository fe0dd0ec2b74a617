//! A task whose model and data only a worker knows.

use std::cell::RefCell;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebb_round::{ClientId, Job, Layout, LocalRun, StepFeature, StepRule, Stream};
use ebb_settings::{Entry, Positive, Settings, SettingsError};
use ebb_train::{Done, Tally, Task, Trainee};
use serde::{Deserialize, Serialize};

use crate::protocol::{Ask, Reply, Rule};
use crate::vectors::{read_layout, read_vector, write_vector};
use crate::worker::{Hired, Pool};

/// Its line in the registry.
pub const ENTRY: Entry<dyn Task> = Entry {
    name: "external",
    about: "a model and data that a program of your own has, in any language: workers that train by lines of JSON",
    example: "clients = 10\nsamples = 600\nmodel = \"/models/start.safetensors\"\nlabels = true\ntests = true\nheld_out = 0\n\
              trainer = { command = [\"python3\", \"worker.py\"], workers = 1, timeout_s = 3600 }",
    build: |settings| Ok(Box::new(External::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    clients: NonZeroU32,
    /// How many samples each holds; what the workers say, without.
    samples: Option<Samples>,
    /// The model to start from: its tensors are the model.
    model: String,
    /// Whether samples have labels that can be right or wrong.
    labels: Option<bool>,
    /// Whether workers can judge models on test data of all.
    #[serde(default)]
    tests: bool,
    /// How many samples each client keeps to judge models.
    held_out: Option<u32>,
    /// What trains; a server whose clients bring their own needs none.
    trainer: Option<Trainer>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Samples {
    Each(u32),
    Of(Vec<u32>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trainer {
    command: Vec<String>,
    #[serde(default = "one")]
    workers: NonZeroUsize,
    /// A worker that has not replied for so long hangs.
    #[serde(default = "an_hour")]
    timeout_s: Positive,
}

/// How long a worker may take for a reply, unless it is said otherwise: no step takes that long, nor does reading data.
pub const TIMEOUT: Duration = Duration::from_secs(3600);

fn an_hour() -> Positive {
    Positive::new(TIMEOUT.as_secs_f64()).expect("positive")
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

/// A task whose model and data only a worker knows.
pub struct External {
    /// What each client has.
    held: Vec<Held>,
    layout: Layout,
    initial: Vec<f32>,
    labels: bool,
    /// What the workers say that they can; nothing: everything.
    can: Option<Vec<String>>,
    tests: bool,
    pool: Pool,
    /// Where vectors are handed over.
    folder: tempfile::TempDir,
    files: AtomicU64,
}

/// What a client has.
#[derive(Clone, Copy, Debug)]
struct Held {
    samples: u32,
    held_out: u32,
}

/// What a worker says of a client and of itself.
struct Described {
    held: Held,
    labels: bool,
    can: Option<Vec<String>>,
}

fn described(pool: &Pool, client: u32) -> Result<Described, String> {
    let reply = pool.take()?.ask(&Ask::Describe { client })?;
    let samples = reply.samples.filter(|samples| (1.0..=f64::from(u32::MAX)).contains(samples));
    let samples = samples.ok_or("the worker does not say how many samples it has; a worker that is asked to describe answers with samples, 1 or more")?;
    let held = Held { samples: samples as u32, held_out: reply.held_out.unwrap_or(0) };
    Ok(Described { held, labels: reply.labels.unwrap_or(false), can: reply.can })
}

impl External {
    /// The task of one client, with the data that its worker has.
    pub fn of_one(
        client: ClientId,
        layout: Layout,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<External, String> {
        let pool = Pool::new(command, 1, timeout);
        let Described { held, labels, can } = described(&pool, client.number())?;
        let folder =
            tempfile::tempdir().map_err(|error| format!("no folder to hand over vectors: {error}"))?;
        Ok(External {
            // Nobody asks about the others.
            held: vec![held; client.idx() + 1],
            layout,
            initial: Vec::new(),
            labels,
            can,
            tests: false,
            pool,
            folder,
            files: AtomicU64::new(0),
        })
    }

    fn build(settings: &Settings<'_>) -> Result<External, SettingsError> {
        let table: Table = settings.parse()?;
        let n_clients = table.clients.get() as usize;
        let has_trainer = table.trainer.is_some();
        let pool = match table.trainer {
            Some(Trainer { command, .. }) if command.is_empty() => {
                return Err(settings.error("trainer.command", "empty; give a program and its arguments"));
            }
            Some(Trainer { command, workers, timeout_s }) => {
                let timeout = Duration::try_from_secs_f64(timeout_s.get())
                    .map_err(|_| settings.error("trainer.timeout_s", "longer than any time; give less"))?;
                Pool::new(command, workers.get(), timeout)
            }
            None if table.tests => {
                let message = "somebody must judge on test data; give trainer = { command = [...] }, or leave out tests";
                return Err(settings.error("tests", message));
            }
            None => Pool::new(Vec::new(), 1, TIMEOUT),
        };
        let mut labels = table.labels.unwrap_or(false);
        let mut can = None;
        let held_out = table.held_out.unwrap_or(0);
        let of_all =
            |samples: Vec<u32>| samples.into_iter().map(|samples| Held { samples, held_out }).collect();
        let held = match table.samples {
            Some(Samples::Each(each)) => of_all(vec![each; n_clients]),
            Some(Samples::Of(list)) if list.len() == n_clients => of_all(list),
            Some(Samples::Of(list)) => {
                let message = format!("expected one number, or {n_clients} numbers, found {}", list.len());
                return Err(settings.error("samples", message));
            }
            // A server's clients say what they have.
            None if !has_trainer => of_all(vec![1; n_clients]),
            None => {
                let mut held = Vec::with_capacity(n_clients);
                for client in 0..table.clients.get() {
                    let one = described(&pool, client).map_err(|error| settings.error("trainer", error))?;
                    labels = table.labels.unwrap_or(one.labels);
                    can = one.can;
                    held.push(Held { held_out: table.held_out.unwrap_or(one.held.held_out), ..one.held });
                }
                held
            }
        };
        let (layout, initial) = read_layout(PathBuf::from(&table.model).as_path()).map_err(|error| {
            settings.error("model", format!("{error}; give a safetensors file of 32-bit floats"))
        })?;
        let folder = tempfile::tempdir()
            .map_err(|error| settings.error("trainer", format!("no folder to hand over vectors: {error}")))?;
        Ok(External {
            held,
            layout,
            initial,
            labels,
            can,
            tests: table.tests,
            pool,
            folder,
            files: AtomicU64::new(0),
        })
    }

    /// A file that is nobody else's, and goes when it is dropped.
    fn file(&self) -> Scrap {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        Scrap(self.folder.path().join(format!("{number}.safetensors")))
    }

    fn write(&self, vector: &[f32]) -> Result<Scrap, String> {
        let file = self.file();
        write_vector(&file.0, &self.layout, vector)?;
        Ok(file)
    }

    /// Asks any worker about a model; what fails is noted.
    fn ask_about(&self, model: &[f32], ask: impl FnOnce(PathBuf) -> Ask) -> Option<Reply> {
        let asked = self.write(model).and_then(|file| self.pool.take()?.ask(&ask(file.0.clone())));
        asked.map_err(|error| self.pool.fail(error)).ok()
    }

    fn judged(&self, client: Option<ClientId>, model: &[f32]) -> Tally {
        let client = client.map(ClientId::number);
        let reply = self.ask_about(model, |model| Ask::Evaluate { client, model }).unwrap_or_default();
        Tally {
            weight: reply.samples.unwrap_or(0.0),
            loss: reply.loss.unwrap_or(f64::NAN),
            hits: reply.hits.filter(|_| self.labels),
        }
    }
}

/// A file that goes when it is dropped.
struct Scrap(PathBuf);

impl Drop for Scrap {
    fn drop(&mut self) {
        // The folder goes with the task.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Task for External {
    fn n_clients(&self) -> usize {
        self.held.len()
    }

    fn samples(&self, client: ClientId) -> u32 {
        self.held[client.idx()].samples
    }

    fn held_out(&self, client: ClientId) -> u32 {
        self.held[client.idx()].held_out
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self) -> Vec<f32> {
        self.initial.clone()
    }

    fn begin<'t>(
        &'t self,
        client: ClientId,
        job: &'t Job,
        seed: u64,
        limit: NonZeroU32,
    ) -> Box<dyn Trainee + 't> {
        let asked = job.work.steps(self.samples(client));
        let begun = self.write(&job.global.model).and_then(|model| {
            let mut worker = self.pool.take()?;
            let batch = job.work.batch.map(NonZeroU32::get);
            let (client, steps) = (client.number(), limit.get());
            worker.ask(&Ask::Begin {
                client,
                round: job.round,
                seed,
                model: model.0.clone(),
                batch,
                steps,
            })?;
            Ok(worker)
        });
        let worker = RefCell::new(begun.map_err(|error| self.pool.fail(error)).ok());
        Box::new(AtWork { task: self, worker, asked, limit: limit.get(), done: 0 })
    }

    fn loss(&self, client: ClientId, model: &[f32]) -> f32 {
        let ask = |model| Ask::Loss { client: client.number(), model, samples: None };
        self.ask_about(model, ask).and_then(|reply| reply.loss).map_or(f32::NAN, |loss| loss as f32)
    }

    fn batch_loss(&self, client: ClientId, model: &[f32], samples: NonZeroU32, _stream: &mut Stream) -> f32 {
        let ask = |model| Ask::Loss { client: client.number(), model, samples: Some(samples.get()) };
        self.ask_about(model, ask).and_then(|reply| reply.loss).map_or(f32::NAN, |loss| loss as f32)
    }

    fn has_accuracy(&self) -> bool {
        self.labels
    }

    fn n_test_pieces(&self) -> usize {
        usize::from(self.tests)
    }

    fn test_piece(&self, _piece: usize, model: &[f32]) -> Tally {
        self.judged(None, model)
    }

    fn test_client(&self, client: ClientId, model: &[f32]) -> Option<Tally> {
        (self.held_out(client) > 0).then(|| self.judged(Some(client), model))
    }

    fn failed(&self) -> Option<String> {
        self.pool.failed()
    }

    fn is_outside(&self) -> bool {
        true
    }

    fn can(&self, skill: StepFeature) -> bool {
        self.can.as_ref().is_none_or(|can| can.iter().any(|name| name == skill.name()))
    }

    fn interrupt(&self) {
        self.pool.interrupt();
    }
}

/// A client at work in a worker.
struct AtWork<'t> {
    task: &'t External,
    /// `None` once it failed.
    worker: RefCell<Option<Hired<'t>>>,
    asked: NonZeroU32,
    limit: u32,
    done: u32,
}

impl AtWork<'_> {
    /// Asks the worker; what fails is noted, and the client is as good as gone.
    fn ask(&self, ask: &Ask) -> Option<Reply> {
        let mut worker = self.worker.borrow_mut();
        match worker.as_mut()?.ask(ask) {
            Ok(reply) => Some(reply),
            Err(error) => {
                self.task.pool.fail(error);
                *worker = None;
                None
            }
        }
    }

    /// A vector that the worker writes.
    fn vector(&self, ask: impl FnOnce(PathBuf) -> Ask) -> Option<(Vec<f32>, Reply)> {
        let file = self.task.file();
        let reply = self.ask(&ask(file.0.clone()))?;
        let vector = read_vector(&file.0, &self.task.layout);
        let failed = |error| self.task.pool.fail(format!("what the worker wrote cannot be read: {error}"));
        Some((vector.map_err(failed).ok()?, reply))
    }

    fn nothing(&self) -> Vec<f32> {
        vec![0.0; self.task.layout.len()]
    }
}

impl LocalRun for AtWork<'_> {
    fn steps_requested(&self) -> u32 {
        self.asked.get()
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        let count = count.min(self.limit - self.done);
        if count == 0 {
            return 0;
        }
        let push = match rule.correction.map(|push| self.task.write(push)).transpose() {
            Ok(push) => push,
            Err(error) => {
                self.task.pool.fail(error);
                return 0;
            }
        };
        let rule = Rule::of(rule, push.as_ref().map(|push| push.0.clone()));
        let done =
            self.ask(&Ask::Steps { count, rule }).and_then(|reply| reply.steps).unwrap_or(0).min(count);
        self.done += done;
        done
    }

    fn full_gradient(&mut self) -> Vec<f32> {
        self.vector(|file| Ask::Gradient { file }).map_or_else(|| self.nothing(), |(gradient, _)| gradient)
    }

    fn delta(&self) -> Vec<f32> {
        self.vector(|file| Ask::Update { file }).map_or_else(|| self.nothing(), |(moved, _)| moved)
    }
}

impl Trainee for AtWork<'_> {
    fn so_far(&self) -> Option<Done> {
        let steps = NonZeroU32::new(self.done)?;
        let (delta, reply) = self.vector(|file| Ask::Update { file })?;
        Some(Done {
            delta,
            steps,
            loss: reply.loss.unwrap_or(0.0) as f32,
            loss_fall: reply.loss_fall.unwrap_or(0.0) as f32,
            accuracy: reply.accuracy.filter(|_| self.task.labels).map(|accuracy| accuracy as f32),
        })
    }
}
