//! One client, from visit to visit: what it was about when the connection broke, it goes on with at the next.

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

/// How a visit to the server ended.
pub(super) enum SessionEnd {
    Finished(JoinOutcome),
    Fatal(JoinError),
    /// The connection broke; it may have been one on which the client was let in.
    Lost {
        why: String,
        was_authenticated: bool,
    },
    /// The server does not want the client, or says what cannot be: the right one at the same address will.
    Rejected {
        why: String,
    },
}

/// So many messages may wait to be sent.
const OUTBOUND_QUEUE: usize = 16;

/// How long the server may take to say the first word.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to listen for what a server said last.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// One client.
pub(super) struct Client {
    options: JoinOptions,
    state_dir: StateDir,
    make_trainer: Arc<Mutex<MakeTrainer>>,
    /// A trainer that is being made, and for whom: that may take longer than a connection lasts.
    pending_trainer: Option<(RunDescription, TrainerTask)>,
    prepared: Option<Prepared>,
    job: Option<ActiveJob>,
    /// Grows with every errand.
    n_jobs: u64,
    /// The last model that was fetched, by its digest.
    model: Option<(Digest, Arc<Parcel>)>,
    session: Bytes,
    packing: Packing,
    /// How long a step and sending an update took, as far as is known.
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
    pub(super) fn new(joining: JoinOptions, home: StateDir, make: MakeTrainer) -> Client {
        let errand = home.pending_update.clone().map(|(answer, packed)| ActiveJob::resubmit(answer, packed));
        Client {
            options: joining,
            state_dir: home,
            make_trainer: Arc::new(Mutex::new(make)),
            pending_trainer: None,
            prepared: None,
            job: errand,
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
        let mut was_in = false;
        match self.try_run_session(endpoint, until, &mut was_in).await {
            Ok(visit) => visit,
            // Whoever was let in before may be behind a network that answers for others, or at a server that
            // was started with the wrong certificate, and will not always be.
            Err(status) => match certificate_problem(&status, &self.options)
                .filter(|_| self.state_dir.identity.is_none())
            {
                Some(message) => SessionEnd::Fatal(JoinError::Unusable(message)),
                None => SessionEnd::Lost {
                    why: connection_problem(&status, &self.options),
                    was_authenticated: was_in,
                },
            },
        }
    }

    async fn try_run_session(
        &mut self,
        endpoint: &Endpoint,
        until: &mut watch::Receiver<StopSignal>,
        was_in: &mut bool,
    ) -> Result<SessionEnd, Status> {
        let channel = endpoint.connect().await.map_err(|error| Status::from_error(Box::new(error)))?;
        let mut server = ServerClient::new(channel)
            .max_decoding_message_size(MAX_SERVER_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_CLIENT_MESSAGE_BYTES);
        let (client, of) = match self.ensure_enrolled(&mut server).await? {
            Ok(enrolled) => enrolled,
            Err(visit) => return Ok(visit),
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
        let first = first.await.map_err(|_| Status::deadline_exceeded("the server said nothing"))??;
        let welcome = match first.and_then(|first| first.message) {
            Some(ServerMessage::Welcome(welcome)) => welcome,
            Some(ServerMessage::Refused(refused)) => return Ok(rejected(&refused)),
            Some(ServerMessage::Bye(bye)) if bye.r#final => return Ok(run_over(&bye)),
            _ => return Err(Status::unavailable("the server hung up")),
        };
        let welcome = match checks::welcome(client, welcome) {
            Ok(welcome) => welcome,
            Err(unsound) => return Ok(SessionEnd::Rejected { why: unsound.to_string() }),
        };
        // Before data is read for it.
        if let Err(declined) = self.check_memory(welcome.run.layout.len(), 0, 0, 0) {
            return Ok(SessionEnd::Rejected { why: declined.to_string() });
        }
        *was_in = true;
        self.session = welcome.session.clone();
        self.packing = welcome.packing;
        match self.prepare_and_serve(server, &to, &mut from, &welcome, until).await {
            // Where nothing can be sent any more, the server may have said why, and it was not read yet.
            Err(status) => last_message(&mut from).await.ok_or(status),
            visit => visit,
        }
    }

    /// Prepares, says what it can, and stays.
    async fn prepare_and_serve(
        &mut self,
        server: ServerClient,
        to: &mpsc::Sender<wire::FromClient>,
        from: &mut Streaming<wire::FromServer>,
        welcome: &Welcome,
        until: &mut watch::Receiver<StopSignal>,
    ) -> Result<SessionEnd, Status> {
        let prepared = {
            // Data may be read first, and a worker started: it says meanwhile that it is there.
            let beat = welcome.heartbeat;
            let mut beats = tokio::time::interval_at(tokio::time::Instant::now() + beat, beat);
            let mut preparing = std::pin::pin!(self.prepare(&welcome.run));
            loop {
                tokio::select! {
                    prepared = &mut preparing => break prepared,
                    _ = beats.tick() => send_message(to, ClientMessage::Heartbeat(wire::Heartbeat { steps: 0 })).await?,
                    told = stop_requested(until) => return send_leave(told, to, from).await,
                }
            }
        };
        let (samples, abilities) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Ok(SessionEnd::Fatal(error)),
        };
        let in_hand = self.job.as_ref().and_then(ActiveJob::in_hand);
        let abilities = Some(convert::to_wire_capabilities(abilities));
        send_message(to, ClientMessage::Ready(wire::Ready { samples, abilities, in_hand })).await?;
        tracing::info!(client = welcome.run.client.number(), samples, "connected");
        self.serve(server, to, from, welcome.heartbeat, until).await
    }

    /// The client's number and its server's; it enrols if it has none.
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
            // Whoever gave the token is at hand.
            Err(status) if status.code() == Code::PermissionDenied => {
                let (reason, message) = ("token".to_owned(), sanitized(status.message()));
                Ok(Err(SessionEnd::Fatal(JoinError::Refused { reason, message })))
            }
            Err(status) => Err(status),
        }
    }

    /// Makes the trainer, once.
    async fn prepare(
        &mut self,
        invitation: &RunDescription,
    ) -> Result<(u32, crate::Capabilities), JoinError> {
        if self.prepared.as_ref().is_none_or(|last| last.run != *invitation) {
            if self.pending_trainer.as_ref().is_none_or(|(of, _)| of != invitation) {
                tracing::info!(client = invitation.client.number(), "making ready");
                let (make, of) = (Arc::clone(&self.make_trainer), invitation.clone());
                let making = tokio::task::spawn_blocking(move || {
                    let mut make = make.lock().unwrap_or_else(PoisonError::into_inner);
                    make(&of)
                });
                self.pending_trainer = Some((invitation.clone(), making));
            }
            let (_, making) = self.pending_trainer.as_mut().expect("it is being made");
            let made = making.await.map_err(|error| JoinError::Trainer(error.to_string()));
            self.pending_trainer = None;
            // It may quote the server's settings.
            let trainer = made?.map_err(|error| JoinError::Trainer(sanitized(&error)))?;
            let (samples, abilities) = (trainer.samples(), trainer.capabilities());
            let interrupter = trainer.interrupter();
            let trainer = Arc::new(Mutex::new(trainer));
            let invitation = invitation.clone();
            self.prepared =
                Some(Prepared { run: invitation, trainer, interrupter, samples, capabilities: abilities });
        }
        let prepared = self.prepared.as_ref().expect("it was just made");
        Ok((prepared.samples, prepared.capabilities))
    }

    /// Does what the server says, until one of them goes.
    async fn serve(
        &mut self,
        server: ServerClient,
        to: &mpsc::Sender<wire::FromClient>,
        from: &mut Streaming<wire::FromServer>,
        beat: Duration,
        until: &mut watch::Receiver<StopSignal>,
    ) -> Result<SessionEnd, Status> {
        let mut beats = tokio::time::interval(beat);
        let mut heard = Instant::now();
        let mut moving = self.transfer(&server);
        loop {
            tokio::select! {
                said = from.message() => {
                    heard = Instant::now();
                    let Some(said) = said? else { return Err(Status::unavailable("the server hung up")) };
                    let Some(said) = said.message else { continue };
                    let before = self.n_jobs;
                    if let Some(visit) = self.receive(said, to).await? {
                        return Ok(visit);
                    }
                    if self.n_jobs != before {
                        moving = self.transfer(&server);
                    }
                }
                moved = transfer_result(&mut moving) => {
                    match moved {
                        // Asking again would not help.
                        Err(status) if status.code() == Code::InvalidArgument => {
                            tracing::warn!(why = sanitized(status.message()), "the server does not take a transfer");
                            self.decline_job(to, DeclineReason::NotAccepted).await?;
                        }
                        moved => self.transfer_done(moved?, to).await?,
                    }
                    moving = self.transfer(&server);
                }
                came = work_result(&mut self.job) => {
                    if let Some(visit) = self.work_done(came, to).await? {
                        return Ok(visit);
                    }
                    moving = self.transfer(&server);
                }
                _ = beats.tick() => {
                    // A transfer may hold up what the server says; if the connection is dead, it fails by itself.
                    if moving.is_none() && heard.elapsed() > 3 * beat {
                        return Err(Status::unavailable("the server was not heard for too long"));
                    }
                    let steps = self.job.as_ref().map_or(0, ActiveJob::steps);
                    send_message(to, ClientMessage::Heartbeat(wire::Heartbeat { steps })).await?;
                }
                told = stop_requested(until) => return send_leave(told, to, from).await,
            }
        }
    }

    /// Something the server said.
    async fn receive(
        &mut self,
        said: ServerMessage,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<Option<SessionEnd>, Status> {
        match said {
            ServerMessage::Job(job) => {
                let checked = checks::job(&job, self.layout()).map(ServerRequest::Job);
                self.accept_request(job.round, checked, to).await?;
            }
            ServerMessage::Probe(probe) => {
                let checked = checks::probe(&probe, self.layout()).map(ServerRequest::Probe);
                self.accept_request(probe.round, checked, to).await?;
            }
            ServerMessage::Evaluate(judge) => {
                let checked = checks::evaluate(&judge, self.layout()).map(ServerRequest::Evaluate);
                self.accept_request(judge.round, checked, to).await?;
            }
            ServerMessage::Stop(stop) => {
                let is_it = |errand: &&ActiveJob| errand.request.is_job_of(stop.round);
                match self.job.as_ref().filter(is_it).filter(|_| !stop.finish).map(|errand| &errand.stage) {
                    Some(Stage::Running(at_work, _)) => self.stop_job(at_work),
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

    /// What the model consists of.
    fn layout(&self) -> &ebb_round::Layout {
        &self.prepared().run.layout
    }

    fn prepared(&self) -> &Prepared {
        self.prepared.as_ref().expect("it was made before the client was ready")
    }

    /// Whether what a job needs is within the limits.
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

    /// The server wants something of a round: it is taken up, or declined.
    async fn accept_request(
        &mut self,
        round: RoundNo,
        checked: Result<ServerRequest, InvalidMessage>,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<(), Status> {
        let wanted = checked.map_err(DeclineReason::InvalidMessage).and_then(|wanted| {
            let fetched_bytes = wanted.model_ref().map_or(0, |model| model.bytes);
            let steps = wanted.steps(self.prepared().samples);
            self.check_memory(self.layout().len(), 0, fetched_bytes, steps).map(|()| wanted)
        });
        match wanted {
            Ok(wanted) => self.start_job(wanted),
            Err(why) => decline(to, round, &why).await?,
        }
        Ok(())
    }

    /// A new errand; one that is under way is dropped, for the server knows what it does.
    fn start_job(&mut self, wanted: ServerRequest) {
        let same =
            |errand: &ActiveJob| wanted.ticket().is_some() && errand.request.ticket() == wanted.ticket();
        if self.job.as_ref().is_some_and(same) {
            return;
        }
        if let Some(ActiveJob { stage: Stage::Running(at_work, _), .. }) = &self.job {
            self.stop_job(at_work);
        }
        tracing::debug!(round = wanted.round(), "asked");
        self.job = Some(ActiveJob::new(wanted));
        self.n_jobs += 1;
    }

    /// Its time is over.
    fn stop_job(&self, at_work: &Arc<JobControl>) {
        let interrupter = self.prepared.as_ref().and_then(|prepared| prepared.interrupter.as_ref());
        job::request_stop(at_work, interrupter, INTERRUPT_AFTER.max(at_work.elapsed()));
    }

    fn settled(&mut self, settled: &wire::Settled) -> Result<(), JoinError> {
        let is_it = |errand: &ActiveJob| errand.request.is_job_of(settled.round);
        if !settled.refused.is_empty() {
            let reason = sanitized(&settled.refused);
            tracing::warn!(round = settled.round, reason, "the answer was not taken");
        }
        if let Some(ActiveJob { stage: Stage::Running(at_work, _), .. }) =
            self.job.take_if(|errand| is_it(errand))
        {
            self.stop_job(&at_work);
        }
        self.state_dir.settle(settled.round, settled.refused.is_empty())
    }

    /// The transfer that the errand waits for, if it does.
    fn transfer(&self, server: &ServerClient) -> Option<Transfer> {
        let errand = self.job.as_ref()?;
        match &errand.stage {
            Stage::Fetching(have) => {
                let model = errand.request.model_ref()?.clone();
                if self.model.as_ref().is_some_and(|(digest, _)| *digest == model.digest) {
                    return Some(Box::pin(std::future::ready(Ok(TransferResult::Downloaded))));
                }
                Some(Box::pin(download(server.clone(), self.session.clone(), model, Arc::clone(have))))
            }
            Stage::Submitting(answering) => {
                if answering.sent_in.as_ref() == Some(&self.session) {
                    return None;
                }
                let content = answering.message.delta.clone()?;
                Some(Box::pin(upload(
                    server.clone(),
                    self.session.clone(),
                    content,
                    answering.packed.clone(),
                )))
            }
            Stage::Running(..) => None,
        }
    }

    /// A transfer ended.
    async fn transfer_done(
        &mut self,
        moved: TransferResult,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<(), Status> {
        let Some(errand) = self.job.as_mut() else { return Ok(()) };
        match (moved, &mut errand.stage) {
            (TransferResult::Downloaded, Stage::Fetching(have)) => {
                let bytes = std::mem::take(&mut *have.lock().unwrap_or_else(PoisonError::into_inner));
                match self.take_model(&bytes) {
                    Ok(global) => self.begin_work(global),
                    Err(declined) => self.decline_job(to, declined).await?,
                }
                Ok(())
            }
            (TransferResult::ModelGone, Stage::Fetching(_)) => {
                self.decline_job(to, DeclineReason::ModelGone).await
            }
            (TransferResult::Uploaded(took_s), Stage::Submitting(answering)) => {
                self.upload_s = took_s;
                answering.sent_in = Some(self.session.clone());
                send_message(to, ClientMessage::Answer(answering.message.clone())).await
            }
            // Of an errand that was dropped.
            _ => Ok(()),
        }
    }

    /// The model of the errand: the one that is there, or what was just fetched.
    fn take_model(&mut self, bytes: &[u8]) -> Result<Arc<Parcel>, DeclineReason> {
        let wanted = &self.job.as_ref().expect("it is for one").request;
        let model = wanted.model_ref().expect("only those that have one are fetched for");
        if let Some((_, there)) = self.model.as_ref().filter(|(digest, _)| *digest == model.digest) {
            return Ok(Arc::clone(there));
        }
        // What is compressed may come to more than its length told.
        let (layout, steps) = (self.layout(), wanted.steps(self.prepared().samples));
        self.check_memory(layout.len(), checks::n_side_vectors(bytes), model.bytes, steps)?;
        let parcel = checks::unpack_model(model, bytes, layout).map_err(DeclineReason::InvalidMessage)?;
        let parcel = Arc::new(parcel);
        self.model = Some((model.digest, Arc::clone(&parcel)));
        Ok(parcel)
    }

    /// The errand's model is there: its work begins.
    fn begin_work(&mut self, global: Arc<Parcel>) {
        let errand = self.job.as_mut().expect("its model was fetched");
        let heard = match &errand.request {
            ServerRequest::Job(job) => job.acknowledged,
            ServerRequest::Probe(_) | ServerRequest::Evaluate(_) | ServerRequest::Resubmit(..) => None,
        };
        let memory = self.state_dir.memory.commit_until(errand.request.round(), heard);
        if matches!(errand.request, ServerRequest::Job(_)) {
            self.state_dir.acknowledge(heard);
        }
        let Prepared { trainer, interrupter, .. } =
            self.prepared.as_ref().expect("it was made before the client was ready");
        errand.begin((trainer, interrupter.as_ref()), global, memory, self.options.limits.job_time);
    }

    async fn decline_job(
        &mut self,
        to: &mpsc::Sender<wire::FromClient>,
        why: DeclineReason,
    ) -> Result<(), Status> {
        match self.job.take() {
            Some(errand) => decline(to, errand.request.round(), &why).await,
            None => Ok(()),
        }
    }

    /// The work is done.
    async fn work_done(
        &mut self,
        came: Result<JobResult, String>,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<Option<SessionEnd>, Status> {
        let Some(errand) = self.job.as_mut() else { return Ok(None) };
        let round = errand.request.round();
        match came {
            Err(why) => self.decline_job(to, DeclineReason::Trainer(why)).await?,
            Ok(JobResult::Trained(None)) => {
                let overran = matches!(&errand.stage, Stage::Running(at_work, _) if at_work.has_timed_out());
                self.decline_job(to, if overran { DeclineReason::TimeLimit } else { DeclineReason::NoStep })
                    .await?;
            }
            Ok(JobResult::Trained(Some((trained, step_s)))) => {
                let Some(ticket) = errand.request.ticket().cloned() else { return Ok(None) };
                let update = trained.update;
                let delta = with_residue(update.delta, &self.state_dir.residue);
                let packed = pack::pack(&delta, self.packing);
                let digest = Bytes::copy_from_slice(Digest::of(&packed.bytes).bytes());
                let answer = wire::Answer {
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
                // What was rounded once is made up for, also by an update that is not.
                let rounds = self.packing.element_type == ElementType::F16
                    || self.state_dir.residue != Parcel::default();
                if rounds {
                    let residue = match self.packing.element_type {
                        ElementType::F16 => pack::rounding_residue(&delta, self.packing),
                        ElementType::F32 => Parcel::default(),
                    };
                    self.state_dir.pending_residue = Some((round, residue));
                    self.state_dir.pending_update = Some((answer.clone(), packed.bytes.clone()));
                }
                let remembers = trained.memory.is_some();
                if let Some(memory) = trained.memory {
                    self.state_dir.memory.stage(round, memory);
                }
                // On the disk before it is sent: whoever is heard must remember.
                if (remembers || rounds)
                    && let Err(error) = self.state_dir.save_memory()
                {
                    return Ok(Some(SessionEnd::Fatal(error)));
                }
                errand.stage = Stage::Submitting(Box::new(PendingUpdate {
                    message: answer,
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

/// Reasons for which a server may send a client home for good: what is not so at another start of the right
/// server. Nobody but the client's own server knows that it is shut out, and what a client cannot do for a
/// run it will not be able to do later.
const FINAL_REASONS: [&str; 2] = ["revoked", "unable"];

/// What a server says that is not the client's, is of another release, or was given the wrong certificates:
/// asking again soon is of no use, but the right one may be started at the same address any time.
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

/// The server says that the run is over, or that the client is out of it.
fn run_over(bye: &wire::Bye) -> SessionEnd {
    SessionEnd::Finished(JoinOutcome::RunOver(sanitized(&bye.reason)))
}

/// Says that the client does not do what it was asked, and keeps why.
async fn decline(
    to: &mpsc::Sender<wire::FromClient>,
    round: RoundNo,
    why: &DeclineReason,
) -> Result<(), Status> {
    // As a value, for what a trainer says may have lines of its own.
    tracing::warn!(round, why = why.to_string(), "gave up a job");
    send_message(to, ClientMessage::Failed(wire::Failed { round, message: why.category() })).await
}

/// What a server said before it hung up, if it did.
async fn last_message(from: &mut Streaming<wire::FromServer>) -> Option<SessionEnd> {
    let word = async {
        while let Ok(Some(said)) = from.message().await {
            match said.message {
                Some(ServerMessage::Bye(bye)) if bye.r#final => return Some(run_over(&bye)),
                Some(ServerMessage::Refused(refused)) => return Some(rejected(&refused)),
                _ => {}
            }
        }
        None
    };
    // What came is there; more is not waited for.
    tokio::time::timeout(LAST_MESSAGE_TIMEOUT, word).await.ok().flatten()
}

/// What is sent, with what rounding took from what was sent before.
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

async fn send_message(to: &mpsc::Sender<wire::FromClient>, say: ClientMessage) -> Result<(), Status> {
    let message = wire::FromClient { message: Some(say) };
    to.send(message).await.map_err(|_| Status::unavailable("the connection is closed"))
}

/// The end of the work; never, if there is none.
async fn work_result(errand: &mut Option<ActiveJob>) -> Result<JobResult, String> {
    match errand {
        Some(ActiveJob { stage: Stage::Running(_, from), .. }) => {
            from.await.unwrap_or_else(|_| Err("the trainer panicked".to_owned()))
        }
        _ => std::future::pending().await,
    }
}

/// What it was told, once it was told to end; never, if nobody can.
async fn stop_requested(until: &mut watch::Receiver<StopSignal>) -> StopSignal {
    let told = until.wait_for(|until| *until != StopSignal::Continue).await.map(|until| *until);
    match told {
        Ok(until) => until,
        Err(_) => std::future::pending().await,
    }
}

/// Says that it goes.
async fn send_leave(
    told: StopSignal,
    to: &mpsc::Sender<wire::FromClient>,
    from: &mut Streaming<wire::FromServer>,
) -> Result<SessionEnd, Status> {
    send_message(to, ClientMessage::Leave(wire::Leave { for_good: told == StopSignal::Leave })).await?;
    // Until the server hangs up, so that it has heard.
    let hung_up = async { while let Ok(Some(_)) = from.message().await {} };
    let _ = tokio::time::timeout(Duration::from_secs(2), hung_up).await;
    Ok(SessionEnd::Finished(JoinOutcome::Stopped))
}

#[cfg(test)]
mod tests;
