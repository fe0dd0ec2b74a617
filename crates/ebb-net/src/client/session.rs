//! One client from session to session: a job that a lost connection interrupts is resumed in the next
//! session.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ebb_round::{Parcel, RoundNo};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};

use super::checks::{self, InvalidMessage, Welcome, sanitized};
use super::endpoint::{certificate_problem, connection_problem};
use super::job::{
    self, ActiveJob, DeclineReason, INTERRUPT_AFTER, JobResult, PendingUpdate, ServerRequest, SharedTrainer,
    Stage,
};
use super::limits::ClientLimits;
use super::state_dir::StateDir;
use super::transfer::{ServerClient, Transfer, TransferResult, download, transfer_result, upload};
use super::{
    Interrupter, JobControl, JoinError, JoinOptions, JoinOutcome, MakeTrainer, RunDescription, StopSignal,
    Trainer,
};
use crate::digest::Digest;
use crate::pack::{self, ElementType, Packing};
use crate::server::{MAX_CLIENT_MESSAGE_BYTES, MAX_SERVER_MESSAGE_BYTES};
use crate::wire::from_client::Message as ClientMessage;
use crate::wire::from_server::Message as ServerMessage;
use crate::{PROTOCOL_VERSION, convert, wire};

/// How a session with the server ended.
pub(super) enum SessionEnd {
    Finished(JoinOutcome),
    Fatal(JoinError),
    /// The connection was lost, before or after the client was authenticated.
    Lost {
        why: String,
        was_authenticated: bool,
    },
    /// The server refused the client or sent something invalid. The right server may yet start at this
    /// address.
    Rejected {
        why: String,
    },
}

/// How many messages may wait to be sent.
const OUTBOUND_QUEUE: usize = 16;

/// How long the server may take for its first message.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait for the last message of a server.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// A client.
pub(super) struct Client {
    options: JoinOptions,
    state_dir: StateDir,
    make_trainer: Arc<Mutex<MakeTrainer>>,
    /// A trainer that is being made, and for which run. That may take longer than a connection lasts.
    pending_trainer: Option<(RunDescription, TrainerTask)>,
    prepared: Option<Prepared>,
    job: Option<ActiveJob>,
    /// Changes whenever a message replaces or drops the job, so that its transfer is replaced too.
    n_jobs: u64,
    /// The last model that was downloaded, with its digest.
    model: Option<(Digest, Arc<Parcel>)>,
    session: Bytes,
    packing: Packing,
    /// How long a step and an upload took, as far as is known, in seconds.
    step_s: f64,
    upload_s: f64,
}

/// What was made for a server.
struct Prepared {
    run: RunDescription,
    trainer: SharedTrainer,
    interrupter: Option<Interrupter>,
    samples: u32,
    capabilities: crate::Capabilities,
}

type TrainerTask = tokio::task::JoinHandle<Result<Box<dyn Trainer>, String>>;
impl Client {
    pub(super) fn new(options: JoinOptions, state_dir: StateDir, make: MakeTrainer) -> Client {
        let active_job =
            state_dir.pending_update.clone().map(|(message, packed)| ActiveJob::resubmit(message, packed));
        Client {
            options,
            state_dir,
            make_trainer: Arc::new(Mutex::new(make)),
            pending_trainer: None,
            prepared: None,
            job: active_job,
            n_jobs: 0,
            model: None,
            session: Bytes::new(),
            packing: Packing::default(),
            step_s: 0.0,
            upload_s: 0.0,
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.options.url
    }

    /// Connects, and stays as long as the connection lasts.
    pub(super) async fn run_session(
        &mut self,
        endpoint: &Endpoint,
        until: &mut watch::Receiver<StopSignal>,
    ) -> SessionEnd {
        let mut was_authenticated = false;
        match self.try_run_session(endpoint, until, &mut was_authenticated).await {
            Ok(end) => end,
            // A client that was authenticated before may be behind a network that intercepts connections, or
            // its server may run with a wrong certificate. Both can be temporary.
            Err(status) => match certificate_problem(&status, &self.options)
                .filter(|_| self.state_dir.identity.is_none())
            {
                Some(message) => SessionEnd::Fatal(JoinError::Unusable(message)),
                None => {
                    SessionEnd::Lost { why: connection_problem(&status, &self.options), was_authenticated }
                }
            },
        }
    }

    async fn try_run_session(
        &mut self,
        endpoint: &Endpoint,
        until: &mut watch::Receiver<StopSignal>,
        was_authenticated: &mut bool,
    ) -> Result<SessionEnd, Status> {
        let channel = endpoint.connect().await.map_err(|error| Status::from_error(Box::new(error)))?;
        let mut server = ServerClient::new(channel)
            .max_decoding_message_size(MAX_SERVER_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_CLIENT_MESSAGE_BYTES);
        let (client, of) = match self.ensure_enrolled(&mut server).await? {
            Ok(enrolled) => enrolled,
            Err(end) => return Ok(end),
        };
        let (to, stream) = mpsc::channel(OUTBOUND_QUEUE);
        let hello = wire::Hello {
            oldest: PROTOCOL_VERSION,
            newest: PROTOCOL_VERSION,
            client,
            secret: Bytes::copy_from_slice(&self.state_dir.secret),
            server: of.into(),
            session: self.session.clone(),
            software: concat!("ebbflow ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        send_message(&to, ClientMessage::Hello(hello)).await?;
        let mut from = server.attend(ReceiverStream::new(stream)).await?.into_inner();
        let first = tokio::time::timeout(WELCOME_TIMEOUT, from.message());
        let first = first.await.map_err(|_| Status::deadline_exceeded("the server sent no message"))??;
        let welcome = match first.and_then(|first| first.message) {
            Some(ServerMessage::Welcome(welcome)) => welcome,
            Some(ServerMessage::Refused(refused)) => return Ok(rejected(&refused)),
            Some(ServerMessage::Bye(bye)) if bye.r#final => return Ok(run_over(&bye)),
            _ => return Err(Status::unavailable("the server closed the connection")),
        };
        let welcome = match checks::welcome(client, welcome) {
            Ok(welcome) => welcome,
            Err(unsound) => return Ok(SessionEnd::Rejected { why: unsound.to_string() }),
        };
        // Checked before data is read for the run.
        if let Err(reason) = self.check_memory(welcome.run.layout.len(), 0, 0, 0) {
            return Ok(SessionEnd::Rejected { why: reason.to_string() });
        }
        *was_authenticated = true;
        self.session = welcome.session.clone();
        self.packing = welcome.packing;
        match self.prepare_and_serve(server, &to, &mut from, &welcome, until).await {
            // If sending fails, an unread message of the server may say why.
            Err(status) => last_message(&mut from).await.ok_or(status),
            end => end,
        }
    }

    /// Makes the trainer, reports its capabilities, and serves jobs.
    async fn prepare_and_serve(
        &mut self,
        server: ServerClient,
        to: &mpsc::Sender<wire::FromClient>,
        from: &mut Streaming<wire::FromServer>,
        welcome: &Welcome,
        until: &mut watch::Receiver<StopSignal>,
    ) -> Result<SessionEnd, Status> {
        let prepared = {
            // Reading data or starting a worker may take long. Heartbeats show that the client is alive.
            let heartbeat = welcome.heartbeat;
            let mut heartbeats = tokio::time::interval_at(tokio::time::Instant::now() + heartbeat, heartbeat);
            let mut preparing = std::pin::pin!(self.prepare(&welcome.run));
            loop {
                tokio::select! {
                    prepared = &mut preparing => break prepared,
                    _ = heartbeats.tick() => {
                        send_message(to, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 })).await?;
                    }
                    signal = stop_requested(until) => return send_leave(signal, to, from).await,
                }
            }
        };
        let (samples, capabilities) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Ok(SessionEnd::Fatal(error)),
        };
        let job_in_flight = self.job.as_ref().and_then(ActiveJob::in_hand);
        let capabilities = Some(convert::to_wire_capabilities(capabilities));
        send_message(
            to,
            ClientMessage::Ready(wire::Ready { samples, abilities: capabilities, in_hand: job_in_flight }),
        )
        .await?;
        tracing::info!(client = welcome.run.client.number(), samples, "connected");
        self.serve(server, to, from, welcome.heartbeat, until).await
    }

    /// The client's number and its server's identity. Enrols if it has none.
    async fn ensure_enrolled(
        &mut self,
        server: &mut ServerClient,
    ) -> Result<Result<(u32, Vec<u8>), SessionEnd>, Status> {
        if let Some(enrolled) = &self.state_dir.identity {
            return Ok(Ok(enrolled.clone()));
        }
        let token = self.options.token.clone().unwrap_or_default();
        let secret = Bytes::copy_from_slice(&self.state_dir.secret);
        let request = wire::EnrolRequest { token, secret, number: self.options.client_number };
        match server.enrol(request).await {
            Ok(enrolled) => {
                let enrolled = match checks::enrolled(enrolled.into_inner()) {
                    Ok(enrolled) => enrolled,
                    Err(unsound) => return Ok(Err(SessionEnd::Rejected { why: unsound.to_string() })),
                };
                self.state_dir.identity = Some(enrolled.clone());
                Ok(self.state_dir.save_identity().map(|()| enrolled).map_err(SessionEnd::Fatal))
            }
            // The operator that gave the token can be asked for another.
            Err(status) if status.code() == Code::PermissionDenied => {
                let (reason, message) = ("token".to_owned(), sanitized(status.message()));
                Ok(Err(SessionEnd::Fatal(JoinError::Refused { reason, message })))
            }
            Err(status) => Err(status),
        }
    }

    /// Makes the trainer, once.
    async fn prepare(&mut self, run: &RunDescription) -> Result<(u32, crate::Capabilities), JoinError> {
        if self.prepared.as_ref().is_none_or(|last| last.run != *run) {
            if self.pending_trainer.as_ref().is_none_or(|(of, _)| of != run) {
                tracing::info!(client = run.client.number(), "making ready");
                let (make, of) = (Arc::clone(&self.make_trainer), run.clone());
                let trainer_task = tokio::task::spawn_blocking(move || {
                    let mut make = make.lock().unwrap_or_else(PoisonError::into_inner);
                    make(&of)
                });
                self.pending_trainer = Some((run.clone(), trainer_task));
            }
            let (_, trainer_task) = self.pending_trainer.as_mut().expect("its making was started above");
            let made = trainer_task.await.map_err(|error| JoinError::Trainer(error.to_string()));
            self.pending_trainer = None;
            // The error may quote the server's settings.
            let trainer = made?.map_err(|error| JoinError::Trainer(sanitized(&error)))?;
            let (samples, capabilities) = (trainer.samples(), trainer.capabilities());
            let interrupter = trainer.interrupter();
            let trainer = Arc::new(Mutex::new(trainer));
            let run = run.clone();
            self.prepared = Some(Prepared { run, trainer, interrupter, samples, capabilities });
        }
        let prepared = self.prepared.as_ref().expect("it was just made");
        Ok((prepared.samples, prepared.capabilities))
    }

    /// Handles the server's messages until one side ends the session.
    async fn serve(
        &mut self,
        server: ServerClient,
        to: &mpsc::Sender<wire::FromClient>,
        from: &mut Streaming<wire::FromServer>,
        heartbeat: Duration,
        until: &mut watch::Receiver<StopSignal>,
    ) -> Result<SessionEnd, Status> {
        let mut heartbeats = tokio::time::interval(heartbeat);
        let mut last_received = Instant::now();
        let mut transfer = self.transfer(&server);
        loop {
            tokio::select! {
                message = from.message() => {
                    last_received = Instant::now();
                    let Some(message) = message? else {
                        return Err(Status::unavailable("the server closed the connection"));
                    };
                    let Some(message) = message.message else { continue };
                    let before = self.n_jobs;
                    if let Some(end) = self.receive(message, to).await? {
                        return Ok(end);
                    }
                    if self.n_jobs != before {
                        transfer = self.transfer(&server);
                    }
                }
                result = transfer_result(&mut transfer) => {
                    match result {
                        // A retry would not help.
                        Err(status) if status.code() == Code::InvalidArgument => {
                            tracing::warn!(
                                why = sanitized(status.message()),
                                "the server does not accept a transfer"
                            );
                            self.decline_job(to, DeclineReason::NotAccepted).await?;
                        }
                        result => self.transfer_done(result?, to).await?,
                    }
                    transfer = self.transfer(&server);
                }
                result = work_result(&mut self.job) => {
                    if let Some(end) = self.work_done(result, to).await? {
                        return Ok(end);
                    }
                    transfer = self.transfer(&server);
                }
                _ = heartbeats.tick() => {
                    // A transfer may delay the server's messages. If the connection is dead, the transfer
                    // fails by itself.
                    if transfer.is_none() && last_received.elapsed() > 3 * heartbeat {
                        return Err(Status::unavailable("the server sent nothing for too long"));
                    }
                    let steps = self.job.as_ref().map_or(0, ActiveJob::steps);
                    send_message(to, ClientMessage::Heartbeat(wire::Heartbeat { steps })).await?;
                }
                signal = stop_requested(until) => return send_leave(signal, to, from).await,
            }
        }
    }

    /// Handles a message of the server.
    async fn receive(
        &mut self,
        message: ServerMessage,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<Option<SessionEnd>, Status> {
        match message {
            ServerMessage::Job(job) => {
                let checked = checks::job(&job, self.layout()).map(ServerRequest::Job);
                self.accept_request(job.round, checked, to).await?;
            }
            ServerMessage::Probe(probe) => {
                let checked = checks::probe(&probe, self.layout()).map(ServerRequest::Probe);
                self.accept_request(probe.round, checked, to).await?;
            }
            ServerMessage::Evaluate(evaluate) => {
                let checked = checks::evaluate(&evaluate, self.layout()).map(ServerRequest::Evaluate);
                self.accept_request(evaluate.round, checked, to).await?;
            }
            ServerMessage::Stop(stop) => {
                let is_it = |active_job: &&ActiveJob| active_job.request.is_job_of(stop.round);
                match self
                    .job
                    .as_ref()
                    .filter(is_it)
                    .filter(|_| !stop.finish)
                    .map(|active_job| &active_job.stage)
                {
                    Some(Stage::Running(control, _)) => self.stop_job(control),
                    Some(Stage::Fetching(_)) => {
                        self.n_jobs += 1;
                        self.decline_job(to, DeclineReason::Stopped).await?;
                    }
                    Some(Stage::Submitting(_)) | None => {}
                }
            }
            ServerMessage::Settled(settled) => {
                return Ok(self.settled(&settled).err().map(SessionEnd::Fatal));
            }
            ServerMessage::Refused(refused) => return Ok(Some(rejected(&refused))),
            ServerMessage::Bye(bye) if bye.r#final => return Ok(Some(run_over(&bye))),
            ServerMessage::Bye(bye) => {
                return Ok(Some(SessionEnd::Lost { why: sanitized(&bye.reason), was_authenticated: true }));
            }
            ServerMessage::Welcome(_) | ServerMessage::Beat(_) => {}
        }
        Ok(None)
    }

    /// The layout of the model.
    fn layout(&self) -> &ebb_round::Layout {
        &self.prepared().run.layout
    }

    fn prepared(&self) -> &Prepared {
        self.prepared.as_ref().expect("it was made before the client was ready")
    }

    /// Whether the memory that a job needs is within the limits.
    fn check_memory(
        &self,
        numbers: usize,
        sides: usize,
        fetched_bytes: u64,
        steps: u32,
    ) -> Result<(), DeclineReason> {
        let needed_bytes = ClientLimits::needed_bytes(numbers, sides, fetched_bytes, steps);
        let most_bytes = self.options.limits.memory_bytes;
        if needed_bytes <= most_bytes {
            Ok(())
        } else {
            Err(DeclineReason::MemoryLimit { needed_bytes, most_bytes })
        }
    }

    /// Accepts or declines a request of the server.
    async fn accept_request(
        &mut self,
        round: RoundNo,
        checked: Result<ServerRequest, InvalidMessage>,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<(), Status> {
        let request = checked.map_err(DeclineReason::InvalidMessage).and_then(|wanted| {
            let fetched_bytes = wanted.model_ref().map_or(0, |model| model.bytes);
            let steps = wanted.steps(self.prepared().samples);
            self.check_memory(self.layout().len(), 0, fetched_bytes, steps).map(|()| wanted)
        });
        match request {
            Ok(request) => self.start_job(request),
            Err(why) => decline(to, round, &why).await?,
        }
        Ok(())
    }

    /// Begins a new job. One in flight is dropped, because the server knows what it does.
    fn start_job(&mut self, request: ServerRequest) {
        let same = |active_job: &ActiveJob| {
            request.ticket().is_some() && active_job.request.ticket() == request.ticket()
        };
        if self.job.as_ref().is_some_and(same) {
            return;
        }
        if let Some(ActiveJob { stage: Stage::Running(control, _), .. }) = &self.job {
            self.stop_job(control);
        }
        tracing::debug!(round = request.round(), "asked");
        self.job = Some(ActiveJob::new(request));
        self.n_jobs += 1;
    }

    /// Stops the job, because its time is over.
    fn stop_job(&self, control: &Arc<JobControl>) {
        let interrupter = self.prepared.as_ref().and_then(|prepared| prepared.interrupter.as_ref());
        job::request_stop(control, interrupter, INTERRUPT_AFTER.max(control.elapsed()));
    }

    fn settled(&mut self, settled: &wire::Settled) -> Result<(), JoinError> {
        let is_it = |active_job: &ActiveJob| active_job.request.is_job_of(settled.round);
        if !settled.refused.is_empty() {
            let reason = sanitized(&settled.refused);
            tracing::warn!(round = settled.round, reason, "the update was not accepted");
        }
        if let Some(ActiveJob { stage: Stage::Running(control, _), .. }) =
            self.job.take_if(|active_job| is_it(active_job))
        {
            self.stop_job(&control);
        }
        self.state_dir.settle(settled.round, settled.refused.is_empty())
    }

    /// The transfer that the job waits for, if it does.
    fn transfer(&self, server: &ServerClient) -> Option<Transfer> {
        let active_job = self.job.as_ref()?;
        match &active_job.stage {
            Stage::Fetching(have) => {
                let model = active_job.request.model_ref()?.clone();
                if self.model.as_ref().is_some_and(|(digest, _)| *digest == model.digest) {
                    return Some(Box::pin(std::future::ready(Ok(TransferResult::Downloaded))));
                }
                Some(Box::pin(download(server.clone(), self.session.clone(), model, Arc::clone(have))))
            }
            Stage::Submitting(pending_update) => {
                if pending_update.sent_in.as_ref() == Some(&self.session) {
                    return None;
                }
                let content = pending_update.message.delta.clone()?;
                Some(Box::pin(upload(
                    server.clone(),
                    self.session.clone(),
                    content,
                    pending_update.packed.clone(),
                )))
            }
            Stage::Running(..) => None,
        }
    }

    /// A transfer ended.
    async fn transfer_done(
        &mut self,
        result: TransferResult,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<(), Status> {
        let Some(active_job) = self.job.as_mut() else { return Ok(()) };
        match (result, &mut active_job.stage) {
            (TransferResult::Downloaded, Stage::Fetching(have)) => {
                let bytes = std::mem::take(&mut *have.lock().unwrap_or_else(PoisonError::into_inner));
                match self.take_model(&bytes) {
                    Ok(global) => self.begin_work(global),
                    Err(reason) => self.decline_job(to, reason).await?,
                }
                Ok(())
            }
            (TransferResult::ModelGone, Stage::Fetching(_)) => {
                self.decline_job(to, DeclineReason::ModelGone).await
            }
            (TransferResult::Uploaded(took_s), Stage::Submitting(pending_update)) => {
                self.upload_s = took_s;
                pending_update.sent_in = Some(self.session.clone());
                send_message(to, ClientMessage::Answer(pending_update.message.clone())).await
            }
            // Of a job that was dropped.
            _ => Ok(()),
        }
    }

    /// The model of the job: the cached one, or what was just downloaded.
    fn take_model(&mut self, bytes: &[u8]) -> Result<Arc<Parcel>, DeclineReason> {
        let request = &self.job.as_ref().expect("a transfer belongs to a job").request;
        let model = request.model_ref().expect("only requests with a model download one");
        if let Some((_, there)) = self.model.as_ref().filter(|(digest, _)| *digest == model.digest) {
            return Ok(Arc::clone(there));
        }
        // Compressed vectors may be larger than their size on the wire.
        let (layout, steps) = (self.layout(), request.steps(self.prepared().samples));
        self.check_memory(layout.len(), checks::n_side_vectors(bytes), model.bytes, steps)?;
        let parcel = checks::unpack_model(model, bytes, layout).map_err(DeclineReason::InvalidMessage)?;
        let parcel = Arc::new(parcel);
        self.model = Some((model.digest, Arc::clone(&parcel)));
        Ok(parcel)
    }

    /// The job's model is there: its work begins.
    fn begin_work(&mut self, global: Arc<Parcel>) {
        let active_job = self.job.as_mut().expect("its model was fetched");
        let acknowledged = match &active_job.request {
            ServerRequest::Job(job) => job.acknowledged,
            ServerRequest::Probe(_) | ServerRequest::Evaluate(_) | ServerRequest::Resubmit(..) => None,
        };
        let memory = self.state_dir.memory.commit_until(active_job.request.round(), acknowledged);
        if matches!(active_job.request, ServerRequest::Job(_)) {
            self.state_dir.acknowledge(acknowledged);
        }
        let Prepared { trainer, interrupter, .. } =
            self.prepared.as_ref().expect("it was made before the client was ready");
        active_job.begin((trainer, interrupter.as_ref()), global, memory, self.options.limits.job_time);
    }

    async fn decline_job(
        &mut self,
        to: &mpsc::Sender<wire::FromClient>,
        why: DeclineReason,
    ) -> Result<(), Status> {
        match self.job.take() {
            Some(active_job) => decline(to, active_job.request.round(), &why).await,
            None => Ok(()),
        }
    }

    /// The work is done.
    async fn work_done(
        &mut self,
        result: Result<JobResult, String>,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<Option<SessionEnd>, Status> {
        let Some(active_job) = self.job.as_mut() else { return Ok(None) };
        let round = active_job.request.round();
        match result {
            Err(why) => self.decline_job(to, DeclineReason::Trainer(why)).await?,
            Ok(JobResult::Update(None)) => {
                let timed_out =
                    matches!(&active_job.stage, Stage::Running(control, _) if control.has_timed_out());
                self.decline_job(
                    to,
                    if timed_out { DeclineReason::TimeLimit } else { DeclineReason::NoStep },
                )
                .await?;
            }
            Ok(JobResult::Update(Some((trained, step_s)))) => {
                let Some(ticket) = active_job.request.ticket().cloned() else { return Ok(None) };
                let update = trained.update;
                let delta = with_residue(update.delta, &self.state_dir.residue);
                let packed = pack::pack(&delta, self.packing);
                let digest = Bytes::copy_from_slice(Digest::of(&packed.bytes).bytes());
                let message = wire::Answer {
                    round,
                    ticket,
                    delta: Some(wire::Content { digest, bytes: packed.bytes.len() as u64 }),
                    steps: update.steps.get(),
                    steps_asked: update.steps_requested.get(),
                    samples: update.samples,
                    loss: update.loss,
                    loss_fall: update.loss_fall,
                    accuracy: update.accuracy,
                };
                // Once an update was rounded, later ones carry its residue, rounded or not.
                let has_residue = self.packing.element_type == ElementType::F16
                    || self.state_dir.residue != Parcel::default();
                if has_residue {
                    let residue = match self.packing.element_type {
                        ElementType::F16 => pack::rounding_residue(&delta, self.packing),
                        ElementType::F32 => Parcel::default(),
                    };
                    self.state_dir.pending_residue = Some((round, residue));
                    self.state_dir.pending_update = Some((message.clone(), packed.bytes.clone()));
                }
                let remembers = trained.memory.is_some();
                if let Some(memory) = trained.memory {
                    self.state_dir.memory.stage(round, memory);
                }
                // Saved before it is sent: a client whose update is acknowledged must remember it.
                if (remembers || has_residue)
                    && let Err(error) = self.state_dir.save_memory()
                {
                    return Ok(Some(SessionEnd::Fatal(error)));
                }
                active_job.stage = Stage::Submitting(Box::new(PendingUpdate {
                    message,
                    packed: packed.bytes,
                    sent_in: None,
                }));
                self.step_s = step_s;
            }
            Ok(JobResult::Loss(loss, steps)) => {
                let (train_s, upload_s) = (self.step_s * f64::from(steps), self.upload_s);
                self.job = None;
                send_message(to, ClientMessage::Measured(wire::Measured { round, loss, train_s, upload_s }))
                    .await?;
            }
            Ok(JobResult::Evaluated(tally)) => {
                self.job = None;
                let (samples, loss, hits) = (tally.n_samples, tally.loss, tally.hits);
                send_message(to, ClientMessage::Evaluated(wire::Evaluated { round, samples, loss, hits }))
                    .await?;
            }
        }
        Ok(None)
    }
}

/// Reasons for which a server may refuse a client for good, because a restart of the right server would not
/// change them. Only the client's own server knows that it is revoked, and missing capabilities do not appear
/// later.
const FINAL_REASONS: [&str; 2] = ["revoked", "unable"];

/// Reasons of a server that is not the client's, of another release, or with wrong certificates. A quick
/// retry is useless, but the right server may start at the same address any time.
const SERVER_SIDE_REASONS: [&str; 3] = ["unknown", "version", "certificate"];

/// A server of another release may call final what is not.
fn rejected(refused: &wire::Refused) -> SessionEnd {
    let checks::Refused { reason, message, is_final: last } = checks::refused(refused);
    if last && FINAL_REASONS.contains(&reason.as_str()) {
        return SessionEnd::Fatal(JoinError::Refused { reason, message });
    }
    let mended_there = last || SERVER_SIDE_REASONS.contains(&reason.as_str());
    let why = format!("the server refused ({reason}): {message}");
    if mended_there {
        SessionEnd::Rejected { why }
    } else {
        SessionEnd::Lost { why, was_authenticated: false }
    }
}

/// The server ended the run, or the client's part in it.
fn run_over(bye: &wire::Bye) -> SessionEnd {
    SessionEnd::Finished(JoinOutcome::RunOver(sanitized(&bye.reason)))
}

/// Declines a request, and logs why.
async fn decline(
    to: &mpsc::Sender<wire::FromClient>,
    round: RoundNo,
    why: &DeclineReason,
) -> Result<(), Status> {
    // The text is a field, because a trainer's message may have several lines.
    tracing::warn!(round, why = why.to_string(), "gave up a job");
    send_message(to, ClientMessage::Failed(wire::Failed { round, message: why.category() })).await
}

/// The last message of a server before it closed the connection, if it sent one.
async fn last_message(from: &mut Streaming<wire::FromServer>) -> Option<SessionEnd> {
    let message = async {
        while let Ok(Some(message)) = from.message().await {
            match message.message {
                Some(ServerMessage::Bye(bye)) if bye.r#final => return Some(run_over(&bye)),
                Some(ServerMessage::Refused(refused)) => return Some(rejected(&refused)),
                _ => {}
            }
        }
        None
    };
    // Reads what has arrived, and does not wait for more.
    tokio::time::timeout(LAST_MESSAGE_TIMEOUT, message).await.ok().flatten()
}

/// An update plus the rounding residue of earlier ones.
fn with_residue(mut delta: Parcel, residue: &Parcel) -> Parcel {
    let add = |values: &mut Vec<f32>, residue: &Vec<f32>| {
        values.iter_mut().zip(residue).for_each(|(value, residue)| *value += residue);
    };
    add(&mut delta.model, &residue.model);
    for (name, values) in &mut delta.side_vectors {
        if let Some(residue) = residue.side_vectors.get(name) {
            add(values, residue);
        }
    }
    delta
}

async fn send_message(to: &mpsc::Sender<wire::FromClient>, payload: ClientMessage) -> Result<(), Status> {
    let message = wire::FromClient { message: Some(payload) };
    to.send(message).await.map_err(|_| Status::unavailable("the connection is closed"))
}

/// Waits for the result of the work, or for ever if there is none.
async fn work_result(active_job: &mut Option<ActiveJob>) -> Result<JobResult, String> {
    match active_job {
        Some(ActiveJob { stage: Stage::Running(_, from), .. }) => {
            from.await.unwrap_or_else(|_| Err("the trainer panicked".to_owned()))
        }
        _ => std::future::pending().await,
    }
}

/// Waits for the signal to end, or for ever if none can come.
async fn stop_requested(until: &mut watch::Receiver<StopSignal>) -> StopSignal {
    let signal = until.wait_for(|until| *until != StopSignal::Continue).await.map(|until| *until);
    match signal {
        Ok(until) => until,
        Err(_) => std::future::pending().await,
    }
}

/// Tells the server that the client leaves.
async fn send_leave(
    signal: StopSignal,
    to: &mpsc::Sender<wire::FromClient>,
    from: &mut Streaming<wire::FromServer>,
) -> Result<SessionEnd, Status> {
    send_message(to, ClientMessage::Leave(wire::Leave { for_good: signal == StopSignal::Leave })).await?;
    // Waits until the server closes the connection, which shows that it received the message.
    let closed = async { while let Ok(Some(_)) = from.message().await {} };
    let _ = tokio::time::timeout(Duration::from_secs(2), closed).await;
    Ok(SessionEnd::Finished(JoinOutcome::Stopped))
}

#[cfg(test)]
mod tests;
