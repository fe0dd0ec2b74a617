//! One client, from visit to visit: what it was about when the connection broke, it goes on with at the next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ebb_round::{Parcel, RoundNo};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};

use super::checks::{self, Unsound, Welcome, plain};
use super::endpoint::{brief, distrust};
use super::errand::{self, Answering, Came, Declined, Errand, STUCK, SharedTrainer, Stage, Wanted};
use super::home::Home;
use super::limits::Limits;
use super::transfer::{Moved, Moving, Server, arrived, fetch, send};
use super::{AtWork, Interrupter, Invitation, JoinError, Joining, Left, Make, Trainer, Until};
use crate::digest::Digest;
use crate::pack::{self, Number, Packing};
use crate::server::{MOST_MESSAGE, MOST_SAID};
use crate::wire::from_client::Message as Say;
use crate::wire::from_server::Message as Said;
use crate::{VERSION, convert, wire};

/// How a visit to the server ended.
pub(super) enum Visit {
    Ended(Left),
    Hopeless(JoinError),
    /// The connection broke; it may have been one on which the client was let in.
    Lost {
        why: String,
        was_in: bool,
    },
    /// The server does not want the client, or says what cannot be: the right one at the same address will.
    TurnedAway {
        why: String,
    },
}

/// So many messages may wait to be sent.
const MOST_UNSENT: usize = 16;

/// How long the server may take to say the first word.
const WELCOME: Duration = Duration::from_secs(20);

/// How long to listen for what a server said last.
const LAST_WORD: Duration = Duration::from_secs(1);

/// One client.
pub(super) struct Member {
    joining: Joining,
    home: Home,
    make: Arc<Mutex<Make>>,
    /// A trainer that is being made, and for whom: that may take longer than a connection lasts.
    making: Option<(Invitation, Making)>,
    trainer: Option<Prepared>,
    errand: Option<Errand>,
    /// Grows with every errand.
    n_errands: u64,
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
    invitation: Invitation,
    trainer: SharedTrainer,
    interrupter: Option<Interrupter>,
    samples: u32,
    abilities: crate::Abilities,
}

type Making = tokio::task::JoinHandle<Result<Box<dyn Trainer>, String>>;
impl Member {
    pub(super) fn new(joining: Joining, home: Home, make: Make) -> Member {
        let errand = home.answer.clone().map(|(answer, packed)| Errand::answered(answer, packed));
        Member {
            joining,
            home,
            make: Arc::new(Mutex::new(make)),
            making: None,
            trainer: None,
            errand,
            n_errands: 0,
            model: None,
            session: Bytes::new(),
            packing: Packing::default(),
            step_s: 0.0,
            upload_s: 0.0,
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.joining.url
    }

    /// Connects, and stays as long as the connection lasts.
    pub(super) async fn visit(&mut self, endpoint: &Endpoint, until: &mut watch::Receiver<Until>) -> Visit {
        let mut was_in = false;
        match self.try_visit(endpoint, until, &mut was_in).await {
            Ok(visit) => visit,
            // Whoever was let in before may be behind a network that answers for others, or at a server that
            // was started with the wrong certificate, and will not always be.
            Err(status) => match distrust(&status, &self.joining).filter(|_| self.home.enrolled.is_none()) {
                Some(message) => Visit::Hopeless(JoinError::Unusable(message)),
                None => Visit::Lost { why: brief(&status, &self.joining), was_in },
            },
        }
    }

    async fn try_visit(
        &mut self,
        endpoint: &Endpoint,
        until: &mut watch::Receiver<Until>,
        was_in: &mut bool,
    ) -> Result<Visit, Status> {
        let channel = endpoint.connect().await.map_err(|error| Status::from_error(Box::new(error)))?;
        let mut server =
            Server::new(channel).max_decoding_message_size(MOST_SAID).max_encoding_message_size(MOST_MESSAGE);
        let (client, of) = match self.enrolled(&mut server).await? {
            Ok(enrolled) => enrolled,
            Err(visit) => return Ok(visit),
        };
        let (to, stream) = mpsc::channel(MOST_UNSENT);
        let hello = wire::Hello {
            oldest: VERSION,
            newest: VERSION,
            client,
            secret: Bytes::copy_from_slice(&self.home.secret),
            server: of.into(),
            session: self.session.clone(),
            software: concat!("ebbflow ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        say(&to, Say::Hello(hello)).await?;
        let mut from = server.attend(ReceiverStream::new(stream)).await?.into_inner();
        let first = tokio::time::timeout(WELCOME, from.message());
        let first = first.await.map_err(|_| Status::deadline_exceeded("the server said nothing"))??;
        let welcome = match first.and_then(|first| first.message) {
            Some(Said::Welcome(welcome)) => welcome,
            Some(Said::Refused(refused)) => return Ok(turned_away(&refused)),
            Some(Said::Bye(bye)) if bye.r#final => return Ok(over(&bye)),
            _ => return Err(Status::unavailable("the server hung up")),
        };
        let welcome = match checks::welcome(client, welcome) {
            Ok(welcome) => welcome,
            Err(unsound) => return Ok(Visit::TurnedAway { why: unsound.to_string() }),
        };
        // Before data is read for it.
        if let Err(declined) = self.fits(welcome.invitation.layout.len(), 0, 0, 0) {
            return Ok(Visit::TurnedAway { why: declined.to_string() });
        }
        *was_in = true;
        self.session = welcome.session.clone();
        self.packing = welcome.packing;
        match self.come_in(server, &to, &mut from, &welcome, until).await {
            // Where nothing can be sent any more, the server may have said why, and it was not read yet.
            Err(status) => last_word(&mut from).await.ok_or(status),
            visit => visit,
        }
    }

    /// Prepares, says what it can, and stays.
    async fn come_in(
        &mut self,
        server: Server,
        to: &mpsc::Sender<wire::FromClient>,
        from: &mut Streaming<wire::FromServer>,
        welcome: &Welcome,
        until: &mut watch::Receiver<Until>,
    ) -> Result<Visit, Status> {
        let prepared = {
            // Data may be read first, and a worker started: it says meanwhile that it is there.
            let beat = welcome.beat;
            let mut beats = tokio::time::interval_at(tokio::time::Instant::now() + beat, beat);
            let mut preparing = std::pin::pin!(self.prepare(&welcome.invitation));
            loop {
                tokio::select! {
                    prepared = &mut preparing => break prepared,
                    _ = beats.tick() => say(to, Say::Heartbeat(wire::Heartbeat { steps: 0 })).await?,
                    told = ends(until) => return leave(told, to, from).await,
                }
            }
        };
        let (samples, abilities) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Ok(Visit::Hopeless(error)),
        };
        let in_hand = self.errand.as_ref().and_then(Errand::in_hand);
        let abilities = Some(convert::say_abilities(abilities));
        say(to, Say::Ready(wire::Ready { samples, abilities, in_hand })).await?;
        tracing::info!(client = welcome.invitation.client.number(), samples, "connected");
        self.stay(server, to, from, welcome.beat, until).await
    }

    /// The client's number and its server's; it enrols if it has none.
    async fn enrolled(&mut self, server: &mut Server) -> Result<Result<(u32, Vec<u8>), Visit>, Status> {
        if let Some(enrolled) = &self.home.enrolled {
            return Ok(Ok(enrolled.clone()));
        }
        let token = self.joining.token.clone().unwrap_or_default();
        let secret = Bytes::copy_from_slice(&self.home.secret);
        let request = wire::EnrolRequest { token, secret, number: self.joining.number };
        match server.enrol(request).await {
            Ok(enrolled) => {
                let enrolled = match checks::enrolled(enrolled.into_inner()) {
                    Ok(enrolled) => enrolled,
                    Err(unsound) => return Ok(Err(Visit::TurnedAway { why: unsound.to_string() })),
                };
                self.home.enrolled = Some(enrolled.clone());
                Ok(self.home.keep_identity().map(|()| enrolled).map_err(Visit::Hopeless))
            }
            // Whoever gave the token is at hand.
            Err(status) if status.code() == Code::PermissionDenied => {
                let (reason, message) = ("token".to_owned(), plain(status.message()));
                Ok(Err(Visit::Hopeless(JoinError::Refused { reason, message })))
            }
            Err(status) => Err(status),
        }
    }

    /// Makes the trainer, once.
    async fn prepare(&mut self, invitation: &Invitation) -> Result<(u32, crate::Abilities), JoinError> {
        if self.trainer.as_ref().is_none_or(|last| last.invitation != *invitation) {
            if self.making.as_ref().is_none_or(|(of, _)| of != invitation) {
                tracing::info!(client = invitation.client.number(), "making ready");
                let (make, of) = (Arc::clone(&self.make), invitation.clone());
                let making = tokio::task::spawn_blocking(move || {
                    let mut make = make.lock().unwrap_or_else(PoisonError::into_inner);
                    make(&of)
                });
                self.making = Some((invitation.clone(), making));
            }
            let (_, making) = self.making.as_mut().expect("it is being made");
            let made = making.await.map_err(|error| JoinError::Trainer(error.to_string()));
            self.making = None;
            // It may quote the server's settings.
            let trainer = made?.map_err(|error| JoinError::Trainer(plain(&error)))?;
            let (samples, abilities) = (trainer.samples(), trainer.abilities());
            let interrupter = trainer.interrupter();
            let trainer = Arc::new(Mutex::new(trainer));
            let invitation = invitation.clone();
            self.trainer = Some(Prepared { invitation, trainer, interrupter, samples, abilities });
        }
        let prepared = self.trainer.as_ref().expect("it was just made");
        Ok((prepared.samples, prepared.abilities))
    }

    /// Does what the server says, until one of them goes.
    async fn stay(
        &mut self,
        server: Server,
        to: &mpsc::Sender<wire::FromClient>,
        from: &mut Streaming<wire::FromServer>,
        beat: Duration,
        until: &mut watch::Receiver<Until>,
    ) -> Result<Visit, Status> {
        let mut beats = tokio::time::interval(beat);
        let mut heard = Instant::now();
        let mut moving = self.transfer(&server);
        loop {
            tokio::select! {
                said = from.message() => {
                    heard = Instant::now();
                    let Some(said) = said? else { return Err(Status::unavailable("the server hung up")) };
                    let Some(said) = said.message else { continue };
                    let before = self.n_errands;
                    if let Some(visit) = self.heard(said, to).await? {
                        return Ok(visit);
                    }
                    if self.n_errands != before {
                        moving = self.transfer(&server);
                    }
                }
                moved = arrived(&mut moving) => {
                    match moved {
                        // Asking again would not help.
                        Err(status) if status.code() == Code::InvalidArgument => {
                            tracing::warn!(why = plain(status.message()), "the server does not take a transfer");
                            self.give_up(to, Declined::Untakable).await?;
                        }
                        moved => self.moved(moved?, to).await?,
                    }
                    moving = self.transfer(&server);
                }
                came = came(&mut self.errand) => {
                    if let Some(visit) = self.came(came, to).await? {
                        return Ok(visit);
                    }
                    moving = self.transfer(&server);
                }
                _ = beats.tick() => {
                    // A transfer may hold up what the server says; if the connection is dead, it fails by itself.
                    if moving.is_none() && heard.elapsed() > 3 * beat {
                        return Err(Status::unavailable("the server was not heard for too long"));
                    }
                    let steps = self.errand.as_ref().map_or(0, Errand::steps);
                    say(to, Say::Heartbeat(wire::Heartbeat { steps })).await?;
                }
                told = ends(until) => return leave(told, to, from).await,
            }
        }
    }

    /// Something the server said.
    async fn heard(
        &mut self,
        said: Said,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<Option<Visit>, Status> {
        match said {
            Said::Job(job) => {
                let checked = checks::job(&job, self.layout()).map(Wanted::Job);
                self.asked(job.round, checked, to).await?;
            }
            Said::Probe(probe) => {
                let checked = checks::probe(&probe, self.layout()).map(Wanted::Probe);
                self.asked(probe.round, checked, to).await?;
            }
            Said::Evaluate(judge) => {
                let checked = checks::evaluate(&judge, self.layout()).map(Wanted::Evaluate);
                self.asked(judge.round, checked, to).await?;
            }
            Said::Stop(stop) => {
                let is_it = |errand: &&Errand| errand.wanted.is_job_of(stop.round);
                match self.errand.as_ref().filter(is_it).filter(|_| !stop.finish).map(|errand| &errand.stage)
                {
                    Some(Stage::AtWork(at_work, _)) => self.stop(at_work),
                    Some(Stage::Fetching(_)) => {
                        self.n_errands += 1;
                        self.give_up(to, Declined::Stopped).await?;
                    }
                    Some(Stage::Answering(_)) | None => {}
                }
            }
            Said::Settled(settled) => return Ok(self.settled(&settled).err().map(Visit::Hopeless)),
            Said::Refused(refused) => return Ok(Some(turned_away(&refused))),
            Said::Bye(bye) if bye.r#final => return Ok(Some(over(&bye))),
            Said::Bye(bye) => return Ok(Some(Visit::Lost { why: plain(&bye.reason), was_in: true })),
            Said::Welcome(_) | Said::Beat(_) => {}
        }
        Ok(None)
    }

    /// What the model consists of.
    fn layout(&self) -> &ebb_round::Layout {
        &self.prepared().invitation.layout
    }

    fn prepared(&self) -> &Prepared {
        self.trainer.as_ref().expect("it was made before the client was ready")
    }

    /// Whether what a job needs is within the limits.
    fn fits(&self, numbers: usize, sides: usize, fetched_bytes: u64, steps: u32) -> Result<(), Declined> {
        let needed_bytes = Limits::needed_bytes(numbers, sides, fetched_bytes, steps);
        let most_bytes = self.joining.limits.memory_bytes;
        if needed_bytes <= most_bytes { Ok(()) } else { Err(Declined::Memory { needed_bytes, most_bytes }) }
    }

    /// The server wants something of a round: it is taken up, or declined.
    async fn asked(
        &mut self,
        round: RoundNo,
        checked: Result<Wanted, Unsound>,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<(), Status> {
        let wanted = checked.map_err(Declined::Unsound).and_then(|wanted| {
            let fetched_bytes = wanted.model().map_or(0, |model| model.bytes);
            let steps = wanted.steps(self.prepared().samples);
            self.fits(self.layout().len(), 0, fetched_bytes, steps).map(|()| wanted)
        });
        match wanted {
            Ok(wanted) => self.take_up(wanted),
            Err(why) => decline(to, round, &why).await?,
        }
        Ok(())
    }

    /// A new errand; one that is under way is dropped, for the server knows what it does.
    fn take_up(&mut self, wanted: Wanted) {
        let same = |errand: &Errand| wanted.ticket().is_some() && errand.wanted.ticket() == wanted.ticket();
        if self.errand.as_ref().is_some_and(same) {
            return;
        }
        if let Some(Errand { stage: Stage::AtWork(at_work, _), .. }) = &self.errand {
            self.stop(at_work);
        }
        tracing::debug!(round = wanted.round(), "asked");
        self.errand = Some(Errand::new(wanted));
        self.n_errands += 1;
    }

    /// Its time is over.
    fn stop(&self, at_work: &Arc<AtWork>) {
        let interrupter = self.trainer.as_ref().and_then(|prepared| prepared.interrupter.as_ref());
        errand::stop(at_work, interrupter, STUCK.max(at_work.lasted()));
    }

    fn settled(&mut self, settled: &wire::Settled) -> Result<(), JoinError> {
        let is_it = |errand: &Errand| errand.wanted.is_job_of(settled.round);
        if !settled.refused.is_empty() {
            let reason = plain(&settled.refused);
            tracing::warn!(round = settled.round, reason, "the answer was not taken");
        }
        if let Some(Errand { stage: Stage::AtWork(at_work, _), .. }) =
            self.errand.take_if(|errand| is_it(errand))
        {
            self.stop(&at_work);
        }
        self.home.settled(settled.round, settled.refused.is_empty())
    }

    /// The transfer that the errand waits for, if it does.
    fn transfer(&self, server: &Server) -> Option<Moving> {
        let errand = self.errand.as_ref()?;
        match &errand.stage {
            Stage::Fetching(have) => {
                let model = errand.wanted.model()?.clone();
                if self.model.as_ref().is_some_and(|(digest, _)| *digest == model.digest) {
                    return Some(Box::pin(std::future::ready(Ok(Moved::Down))));
                }
                Some(Box::pin(fetch(server.clone(), self.session.clone(), model, Arc::clone(have))))
            }
            Stage::Answering(answering) => {
                if answering.sent_in.as_ref() == Some(&self.session) {
                    return None;
                }
                let content = answering.answer.delta.clone()?;
                Some(Box::pin(send(server.clone(), self.session.clone(), content, answering.packed.clone())))
            }
            Stage::AtWork(..) => None,
        }
    }

    /// A transfer ended.
    async fn moved(&mut self, moved: Moved, to: &mpsc::Sender<wire::FromClient>) -> Result<(), Status> {
        let Some(errand) = self.errand.as_mut() else { return Ok(()) };
        match (moved, &mut errand.stage) {
            (Moved::Down, Stage::Fetching(have)) => {
                let bytes = std::mem::take(&mut *have.lock().unwrap_or_else(PoisonError::into_inner));
                match self.fetched(&bytes) {
                    Ok(global) => self.begin(global),
                    Err(declined) => self.give_up(to, declined).await?,
                }
                Ok(())
            }
            (Moved::Gone, Stage::Fetching(_)) => self.give_up(to, Declined::Gone).await,
            (Moved::Up(took_s), Stage::Answering(answering)) => {
                self.upload_s = took_s;
                answering.sent_in = Some(self.session.clone());
                say(to, Say::Answer(answering.answer.clone())).await
            }
            // Of an errand that was dropped.
            _ => Ok(()),
        }
    }

    /// The model of the errand: the one that is there, or what was just fetched.
    fn fetched(&mut self, bytes: &[u8]) -> Result<Arc<Parcel>, Declined> {
        let wanted = &self.errand.as_ref().expect("it is for one").wanted;
        let model = wanted.model().expect("only those that have one are fetched for");
        if let Some((_, there)) = self.model.as_ref().filter(|(digest, _)| *digest == model.digest) {
            return Ok(Arc::clone(there));
        }
        // What is compressed may come to more than its length told.
        let (layout, steps) = (self.layout(), wanted.steps(self.prepared().samples));
        self.fits(layout.len(), checks::sides(bytes), model.bytes, steps)?;
        let parcel = checks::fetched(model, bytes, layout).map_err(Declined::Unsound)?;
        let parcel = Arc::new(parcel);
        self.model = Some((model.digest, Arc::clone(&parcel)));
        Ok(parcel)
    }

    /// The errand's model is there: its work begins.
    fn begin(&mut self, global: Arc<Parcel>) {
        let errand = self.errand.as_mut().expect("its model was fetched");
        let heard = match &errand.wanted {
            Wanted::Job(job) => job.heard,
            Wanted::Probe(_) | Wanted::Evaluate(_) | Wanted::Settling(..) => None,
        };
        let memory = self.home.memory.commit_until(errand.wanted.round(), heard);
        if matches!(errand.wanted, Wanted::Job(_)) {
            self.home.heard(heard);
        }
        let Prepared { trainer, interrupter, .. } =
            self.trainer.as_ref().expect("it was made before the client was ready");
        errand.begin((trainer, interrupter.as_ref()), global, memory, self.joining.limits.job);
    }

    async fn give_up(&mut self, to: &mpsc::Sender<wire::FromClient>, why: Declined) -> Result<(), Status> {
        match self.errand.take() {
            Some(errand) => decline(to, errand.wanted.round(), &why).await,
            None => Ok(()),
        }
    }

    /// The work is done.
    async fn came(
        &mut self,
        came: Result<Came, String>,
        to: &mpsc::Sender<wire::FromClient>,
    ) -> Result<Option<Visit>, Status> {
        let Some(errand) = self.errand.as_mut() else { return Ok(None) };
        let round = errand.wanted.round();
        match came {
            Err(why) => self.give_up(to, Declined::Trainer(why)).await?,
            Ok(Came::Trained(None)) => {
                let overran = matches!(&errand.stage, Stage::AtWork(at_work, _) if at_work.has_overrun());
                self.give_up(to, if overran { Declined::Time } else { Declined::NoStep }).await?;
            }
            Ok(Came::Trained(Some((trained, step_s)))) => {
                let Some(ticket) = errand.wanted.ticket().cloned() else { return Ok(None) };
                let update = trained.update;
                let delta = with_residue(update.delta, &self.home.residue);
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
                let rounds = self.packing.number == Number::F16 || self.home.residue != Parcel::default();
                if rounds {
                    let residue = match self.packing.number {
                        Number::F16 => pack::lost(&delta, self.packing),
                        Number::F32 => Parcel::default(),
                    };
                    self.home.next_residue = Some((round, residue));
                    self.home.answer = Some((answer.clone(), packed.bytes.clone()));
                }
                let remembers = trained.memory.is_some();
                if let Some(memory) = trained.memory {
                    self.home.memory.stage(round, memory);
                }
                // On the disk before it is sent: whoever is heard must remember.
                if (remembers || rounds)
                    && let Err(error) = self.home.keep_memory()
                {
                    return Ok(Some(Visit::Hopeless(error)));
                }
                errand.stage =
                    Stage::Answering(Box::new(Answering { answer, packed: packed.bytes, sent_in: None }));
                self.step_s = step_s;
            }
            Ok(Came::Loss(loss, steps)) => {
                let (train_s, upload_s) = (self.step_s * f64::from(steps), self.upload_s);
                self.errand = None;
                say(to, Say::Measured(wire::Measured { round, loss, train_s, upload_s })).await?;
            }
            Ok(Came::Judged(tally)) => {
                self.errand = None;
                let (samples, loss, hits) = (tally.n_samples, tally.loss, tally.hits);
                say(to, Say::Evaluated(wire::Evaluated { round, samples, loss, hits })).await?;
            }
        }
        Ok(None)
    }
}

/// Reasons for which a server may send a client home for good: what is not so at another start of the right
/// server. Nobody but the client's own server knows that it is shut out, and what a client cannot do for a
/// run it will not be able to do later.
const FOR_GOOD: [&str; 2] = ["revoked", "unable"];

/// What a server says that is not the client's, is of another release, or was given the wrong certificates:
/// asking again soon is of no use, but the right one may be started at the same address any time.
const MENDED_THERE: [&str; 3] = ["unknown", "version", "certificate"];

/// A server of another release may call final what is not.
fn turned_away(refused: &wire::Refused) -> Visit {
    let checks::Refused { reason, message, last } = checks::refused(refused);
    if last && FOR_GOOD.contains(&reason.as_str()) {
        return Visit::Hopeless(JoinError::Refused { reason, message });
    }
    let mended_there = last || MENDED_THERE.contains(&reason.as_str());
    let why = format!("the server refused ({reason}): {message}");
    if mended_there { Visit::TurnedAway { why } } else { Visit::Lost { why, was_in: false } }
}

/// The server says that the run is over, or that the client is out of it.
fn over(bye: &wire::Bye) -> Visit {
    Visit::Ended(Left::Over(plain(&bye.reason)))
}

/// Says that the client does not do what it was asked, and keeps why.
async fn decline(to: &mpsc::Sender<wire::FromClient>, round: RoundNo, why: &Declined) -> Result<(), Status> {
    // As a value, for what a trainer says may have lines of its own.
    tracing::warn!(round, why = why.to_string(), "gave up a job");
    say(to, Say::Failed(wire::Failed { round, message: why.class() })).await
}

/// What a server said before it hung up, if it did.
async fn last_word(from: &mut Streaming<wire::FromServer>) -> Option<Visit> {
    let word = async {
        while let Ok(Some(said)) = from.message().await {
            match said.message {
                Some(Said::Bye(bye)) if bye.r#final => return Some(over(&bye)),
                Some(Said::Refused(refused)) => return Some(turned_away(&refused)),
                _ => {}
            }
        }
        None
    };
    // What came is there; more is not waited for.
    tokio::time::timeout(LAST_WORD, word).await.ok().flatten()
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

async fn say(to: &mpsc::Sender<wire::FromClient>, say: Say) -> Result<(), Status> {
    let message = wire::FromClient { message: Some(say) };
    to.send(message).await.map_err(|_| Status::unavailable("the connection is closed"))
}

/// The end of the work; never, if there is none.
async fn came(errand: &mut Option<Errand>) -> Result<Came, String> {
    match errand {
        Some(Errand { stage: Stage::AtWork(_, from), .. }) => {
            from.await.unwrap_or_else(|_| Err("the trainer panicked".to_owned()))
        }
        _ => std::future::pending().await,
    }
}

/// What it was told, once it was told to end; never, if nobody can.
async fn ends(until: &mut watch::Receiver<Until>) -> Until {
    let told = until.wait_for(|until| *until != Until::Over).await.map(|until| *until);
    match told {
        Ok(until) => until,
        Err(_) => std::future::pending().await,
    }
}

/// Says that it goes.
async fn leave(
    told: Until,
    to: &mpsc::Sender<wire::FromClient>,
    from: &mut Streaming<wire::FromServer>,
) -> Result<Visit, Status> {
    say(to, Say::Leave(wire::Leave { for_good: told == Until::Leaves })).await?;
    // Until the server hangs up, so that it has heard.
    let hung_up = async { while let Ok(Some(_)) = from.message().await {} };
    let _ = tokio::time::timeout(Duration::from_secs(2), hung_up).await;
    Ok(Visit::Ended(Left::Stopped))
}

#[cfg(test)]
mod tests;
