//! A task whose model and data live in worker processes.

use std::cell::RefCell;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebb_round::{ClientId, Job, Layout, LocalRun, StepFeature, StepRule, Stream};
use ebb_settings::{Entry, Positive, Settings, SettingsError};
use ebb_train::{LocalResult, LocalTrainer, Tally, Task};
use serde::{Deserialize, Serialize};

use crate::protocol::{Reply, Request, StepSettings};
use crate::vectors::{read_layout, read_vector, write_vector};
use crate::worker::{WorkerLease, WorkerPool};

/// The registry entry of kind `external`.
pub const ENTRY: Entry<dyn Task> = Entry {
    name: "external",
    about: "a model and data of your own program, in any language: workers that speak the JSON-lines protocol",
    example: "clients = 10\nsamples = 600\nmodel = \"/models/start.safetensors\"\nlabels = true\ntests = true\nheld_out = 0\n\
              trainer = { command = [\"python3\", \"worker.py\"], workers = 1, timeout_s = 3600 }",
    build: |settings| Ok(Box::new(ExternalTask::build(settings)?)),
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExternalTable {
    clients: NonZeroU32,
    /// Training samples of each client; without it the workers report them.
    samples: Option<Samples>,
    /// The safetensors file of the initial model; it also defines the layout.
    model: String,
    /// Whether samples have labels, so that accuracy is defined.
    labels: Option<bool>,
    /// Whether workers can evaluate models on pooled test data.
    #[serde(default)]
    tests: bool,
    /// How many samples each client holds out to evaluate models.
    held_out: Option<u32>,
    /// The workers that train. A server whose clients bring their own needs none.
    trainer: Option<TrainerTable>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Samples {
    Each(u32),
    Of(Vec<u32>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrainerTable {
    command: Vec<String>,
    #[serde(default = "one")]
    workers: NonZeroUsize,
    /// A worker that does not reply within this many seconds is unresponsive and is ended.
    #[serde(default = "an_hour")]
    timeout_s: Positive,
}

/// Default limit for a worker's reply; no step and no reading of data takes this long.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);

fn an_hour() -> Positive {
    Positive::new(DEFAULT_TIMEOUT.as_secs_f64()).expect("positive")
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

/// A task whose model and data live in worker processes.
pub struct ExternalTask {
    /// The number of samples that each client trains on and holds out.
    sample_counts: Vec<SampleCounts>,
    layout: Layout,
    initial: Vec<f32>,
    has_labels: bool,
    /// What the workers reported that they support; `None`: everything.
    capabilities: Option<Vec<String>>,
    has_test_data: bool,
    pool: WorkerPool,
    /// The folder in which vectors are exchanged as files.
    folder: tempfile::TempDir,
    next_file: AtomicU64,
}

/// The number of samples that one client trains on and holds out.
#[derive(Clone, Copy, Debug)]
struct SampleCounts {
    samples: u32,
    held_out: u32,
}

/// What a worker reports about a client's data and its own capabilities.
struct ClientDescription {
    sample_counts: SampleCounts,
    has_labels: bool,
    capabilities: Option<Vec<String>>,
}

fn describe(pool: &WorkerPool, client: u32) -> Result<ClientDescription, String> {
    let reply = pool.lease()?.request(&Request::Describe { client })?;
    let samples = reply.samples.filter(|samples| (1.0..=f64::from(u32::MAX)).contains(samples));
    let samples = samples.ok_or(
        "the worker did not report its number of samples; its reply to describe must hold samples, 1 or more",
    )?;
    let sample_counts = SampleCounts { samples: samples as u32, held_out: reply.held_out.unwrap_or(0) };
    Ok(ClientDescription {
        sample_counts,
        has_labels: reply.labels.unwrap_or(false),
        capabilities: reply.can,
    })
}

impl ExternalTask {
    /// The task of one client, with the data that its worker has.
    pub fn for_client(
        client: ClientId,
        layout: Layout,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<ExternalTask, String> {
        let pool = WorkerPool::new(command, 1, timeout);
        let ClientDescription { sample_counts, has_labels, capabilities } = describe(&pool, client.number())?;
        let folder = tempfile::tempdir()
            .map_err(|error| format!("the folder for vectors cannot be created: {error}"))?;
        Ok(ExternalTask {
            // The counts of the other clients are never read.
            sample_counts: vec![sample_counts; client.idx() + 1],
            layout,
            initial: Vec::new(),
            has_labels,
            capabilities,
            has_test_data: false,
            pool,
            folder,
            next_file: AtomicU64::new(0),
        })
    }

    fn build(settings: &Settings<'_>) -> Result<ExternalTask, SettingsError> {
        let table: ExternalTable = settings.parse()?;
        let n_clients = table.clients.get() as usize;
        let has_trainer = table.trainer.is_some();
        let pool = match table.trainer {
            Some(TrainerTable { command, .. }) if command.is_empty() => {
                return Err(
                    settings.error("trainer.command", "it is empty; give a program and its arguments")
                );
            }
            Some(TrainerTable { command, workers, timeout_s }) => {
                let timeout = Duration::try_from_secs_f64(timeout_s.get())
                    .map_err(|_| settings.error("trainer.timeout_s", "it is too long; give less"))?;
                WorkerPool::new(command, workers.get(), timeout)
            }
            None if table.tests => {
                let message = "test data needs a worker that evaluates on it; give trainer = { command = [...] }, or leave out tests";
                return Err(settings.error("tests", message));
            }
            None => WorkerPool::new(Vec::new(), 1, DEFAULT_TIMEOUT),
        };
        let mut has_labels = table.labels.unwrap_or(false);
        let mut capabilities = None;
        let held_out = table.held_out.unwrap_or(0);
        let of_all = |samples: Vec<u32>| {
            samples.into_iter().map(|samples| SampleCounts { samples, held_out }).collect()
        };
        let sample_counts = match table.samples {
            Some(Samples::Each(each)) => of_all(vec![each; n_clients]),
            Some(Samples::Of(list)) if list.len() == n_clients => of_all(list),
            Some(Samples::Of(list)) => {
                let message = format!("expected one number, or {n_clients} numbers; found {}", list.len());
                return Err(settings.error("samples", message));
            }
            // The clients of a server report their own counts.
            None if !has_trainer => of_all(vec![1; n_clients]),
            None => {
                let mut all_counts = Vec::with_capacity(n_clients);
                for client in 0..table.clients.get() {
                    let description =
                        describe(&pool, client).map_err(|error| settings.error("trainer", error))?;
                    has_labels = table.labels.unwrap_or(description.has_labels);
                    capabilities = description.capabilities;
                    all_counts.push(SampleCounts {
                        held_out: table.held_out.unwrap_or(description.sample_counts.held_out),
                        ..description.sample_counts
                    });
                }
                all_counts
            }
        };
        let (layout, initial) = read_layout(PathBuf::from(&table.model).as_path()).map_err(|error| {
            settings.error("model", format!("{error}; give a safetensors file of 32-bit floats"))
        })?;
        let folder = tempfile::tempdir().map_err(|error| {
            settings.error("trainer", format!("the folder for vectors cannot be created: {error}"))
        })?;
        Ok(ExternalTask {
            sample_counts,
            layout,
            initial,
            has_labels,
            capabilities,
            has_test_data: table.tests,
            pool,
            folder,
            next_file: AtomicU64::new(0),
        })
    }

    /// A file name that no other request uses; the file is deleted when the handle is dropped.
    fn temp_file(&self) -> TempFile {
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        TempFile(self.folder.path().join(format!("{number}.safetensors")))
    }

    fn write_temp(&self, vector: &[f32]) -> Result<TempFile, String> {
        let file = self.temp_file();
        write_vector(&file.0, &self.layout, vector)?;
        Ok(file)
    }

    /// Sends any worker a request about a model. A failure is kept for `take_failure`.
    fn request_with_model(
        &self,
        model: &[f32],
        make_request: impl FnOnce(PathBuf) -> Request,
    ) -> Option<Reply> {
        let reply =
            self.write_temp(model).and_then(|file| self.pool.lease()?.request(&make_request(file.0.clone())));
        reply.map_err(|error| self.pool.record_failure(error)).ok()
    }

    fn evaluate(&self, client: Option<ClientId>, model: &[f32]) -> Tally {
        let client = client.map(ClientId::number);
        let reply =
            self.request_with_model(model, |model| Request::Evaluate { client, model }).unwrap_or_default();
        Tally {
            n_samples: reply.samples.unwrap_or(0.0),
            loss: reply.loss.unwrap_or(f64::NAN),
            hits: reply.hits.filter(|_| self.has_labels),
        }
    }
}

/// A file that is deleted when this is dropped.
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        // The folder is deleted with the task.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Task for ExternalTask {
    fn n_clients(&self) -> usize {
        self.sample_counts.len()
    }

    fn samples(&self, client: ClientId) -> u32 {
        self.sample_counts[client.idx()].samples
    }

    fn held_out(&self, client: ClientId) -> u32 {
        self.sample_counts[client.idx()].held_out
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
    ) -> Box<dyn LocalTrainer + 't> {
        let steps_asked = job.work.steps(self.samples(client));
        let started = self.write_temp(&job.global.model).and_then(|model| {
            let mut worker = self.pool.lease()?;
            let batch = job.work.batch_size.map(NonZeroU32::get);
            let (client, steps) = (client.number(), limit.get());
            worker.request(&Request::Begin {
                client,
                round: job.round,
                seed,
                model: model.0.clone(),
                batch,
                steps,
            })?;
            Ok(worker)
        });
        let worker = RefCell::new(started.map_err(|error| self.pool.record_failure(error)).ok());
        Box::new(WorkerRun { task: self, worker, steps_asked, limit: limit.get(), done: 0 })
    }

    fn loss(&self, client: ClientId, model: &[f32]) -> f32 {
        let make_request = |model| Request::Loss { client: client.number(), model, samples: None };
        self.request_with_model(model, make_request)
            .and_then(|reply| reply.loss)
            .map_or(f32::NAN, |loss| loss as f32)
    }

    fn batch_loss(&self, client: ClientId, model: &[f32], samples: NonZeroU32, _stream: &mut Stream) -> f32 {
        let make_request =
            |model| Request::Loss { client: client.number(), model, samples: Some(samples.get()) };
        self.request_with_model(model, make_request)
            .and_then(|reply| reply.loss)
            .map_or(f32::NAN, |loss| loss as f32)
    }

    fn has_accuracy(&self) -> bool {
        self.has_labels
    }

    fn n_test_batches(&self) -> usize {
        usize::from(self.has_test_data)
    }

    fn evaluate_batch(&self, _batch: usize, model: &[f32]) -> Tally {
        self.evaluate(None, model)
    }

    fn evaluate_client(&self, client: ClientId, model: &[f32]) -> Option<Tally> {
        (self.held_out(client) > 0).then(|| self.evaluate(Some(client), model))
    }

    fn take_failure(&self) -> Option<String> {
        self.pool.take_failure()
    }

    fn is_external(&self) -> bool {
        true
    }

    fn supports(&self, feature: StepFeature) -> bool {
        self.capabilities.as_ref().is_none_or(|names| names.iter().any(|name| name == feature.name()))
    }

    fn interrupt(&self) {
        self.pool.interrupt();
    }
}

/// One client's local run in a worker.
struct WorkerRun<'t> {
    task: &'t ExternalTask,
    /// `None` once the worker failed.
    worker: RefCell<Option<WorkerLease<'t>>>,
    steps_asked: NonZeroU32,
    limit: u32,
    done: u32,
}

impl WorkerRun<'_> {
    /// Sends a request to the worker. After a failure the run does no more steps.
    fn request(&self, request: &Request) -> Option<Reply> {
        let mut worker = self.worker.borrow_mut();
        match worker.as_mut()?.request(request) {
            Ok(reply) => Some(reply),
            Err(error) => {
                self.task.pool.record_failure(error);
                *worker = None;
                None
            }
        }
    }

    /// Requests a vector that the worker writes into a file.
    fn request_vector(&self, make_request: impl FnOnce(PathBuf) -> Request) -> Option<(Vec<f32>, Reply)> {
        let file = self.task.temp_file();
        let reply = self.request(&make_request(file.0.clone()))?;
        let vector = read_vector(&file.0, &self.task.layout);
        let failed = |error| {
            self.task
                .pool
                .record_failure(format!("the vector that the worker wrote cannot be read: {error}"));
        };
        Some((vector.map_err(failed).ok()?, reply))
    }

    fn zeros(&self) -> Vec<f32> {
        vec![0.0; self.task.layout.len()]
    }
}

impl LocalRun for WorkerRun<'_> {
    fn steps_requested(&self) -> u32 {
        self.steps_asked.get()
    }

    fn steps(&mut self, count: u32, rule: &StepRule<'_>) -> u32 {
        let count = count.min(self.limit - self.done);
        if count == 0 {
            return 0;
        }
        let correction = match rule.correction.map(|push| self.task.write_temp(push)).transpose() {
            Ok(correction_file) => correction_file,
            Err(error) => {
                self.task.pool.record_failure(error);
                return 0;
            }
        };
        let rule = StepSettings::of(rule, correction.as_ref().map(|file| file.0.clone()));
        let done = self
            .request(&Request::Steps { count, rule })
            .and_then(|reply| reply.steps)
            .unwrap_or(0)
            .min(count);
        self.done += done;
        done
    }

    fn full_gradient(&mut self) -> Vec<f32> {
        self.request_vector(|file| Request::Gradient { file })
            .map_or_else(|| self.zeros(), |(gradient, _)| gradient)
    }

    fn delta(&self) -> Vec<f32> {
        self.request_vector(|file| Request::Update { file }).map_or_else(|| self.zeros(), |(moved, _)| moved)
    }
}

impl LocalTrainer for WorkerRun<'_> {
    fn result_so_far(&self) -> Option<LocalResult> {
        let steps = NonZeroU32::new(self.done)?;
        let (delta, reply) = self.request_vector(|file| Request::Update { file })?;
        Some(LocalResult {
            delta,
            steps,
            loss: reply.loss.unwrap_or(0.0) as f32,
            loss_fall: reply.loss_fall.unwrap_or(0.0) as f32,
            accuracy: reply.accuracy.filter(|_| self.task.has_labels).map(|accuracy| accuracy as f32),
        })
    }
}
