//! One client, from visit to visit: what it was about when the connection broke, it goes on with at the next.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use ebb_round::{ClientId, Parcel};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use super::endpoint::{brief, distrust};
use super::errand::{self, Answering, Came, Errand, SharedTrainer, Stage, Wanted};
use super::home::Home;
use super::{
    AtWork, Interrupter, Invitation, JoinError, Joining, Left, Make, SHORTEST, Trainer, Until, jittered,
};
use crate::digest::Digest;
use crate::pack::{self, Bounds, Number, Packing};
use crate::server::{MOST_MESSAGE, MOST_SAID};
use crate::wire::fleet_client::FleetClient;
use crate::wire::from_client::Message as Say;
use crate::wire::from_server::Message as Said;
use crate::{PART, VERSION, convert, wire};

/// How a visit to the server ended.
pub(super) enum Visit {
    Ended(Left),
    Hopeless(JoinError),
    /// The connection broke; it may have been one on which the client was let in.
    Lost {
        why: String,
        was_in: bool,
    },
}

/// What the server may send at most beside a model.
const MOST_SIDES: usize = 8;

/// So many messages may wait to be sent.
const MOST_UNSENT: usize = 16;

/// How long the server may take to say the first word.
const WELCOME: Duration = Duration::from_secs(20);

/// How long a trainer may go on when its time is over, before it is interrupted; longer, if it was at it for longer.
const STUCK: Duration = Duration::from_secs(300);

/// The longest wait before asking again for room: the server keeps a client's place in the queue for longer.
const LONGEST_FOR_ROOM: Duration = Duration::from_secs(1);

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
    model: Option<(Bytes, Arc<Parcel>)>,
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
type Server = FleetClient<Channel>;
type Moving = Pin<Box<dyn Future<Output = Result<Moved, Status>> + Send>>;

/// What a transfer brought.
enum Moved {
    /// The model is there.
    Down,
    /// There is no such model any more.
    Gone,
    /// The update is at the server, after so many seconds.
    Up(f64),
}

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
            // Whoever was let in before may be behind a network that answers for others, and will not always be.
            Err(status) => match distrust(&status, &self.joining).filter(|_| self.session.is_empty()) {
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
        let mut server = FleetClient::new(channel)
            .max_decoding_message_size(MOST_SAID)
            .max_encoding_message_size(MOST_MESSAGE);
        let (client, of) = match self.enrolled(&mut server).await? {
            Ok(enrolled) => enrolled,
            Err(error) => return Ok(Visit::Hopeless(error)),
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
            Some(Said::Refused(refused)) => return Ok(turned_away(refused)),
            Some(Said::Bye(bye)) if bye.r#final => return Ok(Visit::Ended(Left::Over(bye.reason))),
            _ => return Err(Status::unavailable("the server hung up")),
        };
        *was_in = true;
        self.session = welcome.session.clone();
        self.packing = convert::read_packing(welcome.packing.as_ref());
        match self.come_in(client, server, &to, &mut from, &welcome, until).await {
            // Where nothing can be sent any more, the server may have said why, and it was not read yet.
            Err(status) => last_word(&mut from).await.ok_or(status),
            visit => visit,
        }
    }

    /// Prepares, says what it can, and stays.
    async fn come_in(
        &mut self,
        client: u32,
        server: Server,
        to: &mpsc::Sender<wire::FromClient>,
        from: &mut Streaming<wire::FromServer>,
        welcome: &wire::Welcome,
        until: &mut watch::Receiver<Until>,
    ) -> Result<Visit, Status> {
        let prepared = {
            // Data may be read first, and a worker started: it says meanwhile that it is there.
            let beat = beat(welcome);
            let mut beats = tokio::time::interval_at(tokio::time::Instant::now() + beat, beat);
            let mut preparing = std::pin::pin!(self.prepare(client, welcome));
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
        tracing::info!(client, samples, "connected");
        self.stay(server, to, from, welcome, until).await
    }

    /// The client's number and its server's; it enrols if it has none.
    async fn enrolled(&mut self, server: &mut Server) -> Result<Result<(u32, Vec<u8>), JoinError>, Status> {
        if let Some(enrolled) = &self.home.enrolled {
            return Ok(Ok(enrolled.clone()));
        }
        let token = self.joining.token.clone().unwrap_or_default();
        let secret = Bytes::copy_from_slice(&self.home.secret);
        let request = wire::EnrolRequest { token, secret, number: self.joining.number };
        match server.enrol(request).await {
            Ok(enrolled) => {
                let wire::Enrolled { client, server } = enrolled.into_inner();
                let enrolled = (client, server.to_vec());
                self.home.enrolled = Some(enrolled.clone());
                Ok(self.home.keep_identity().map(|()| enrolled))
            }
            Err(status) if status.code() == Code::PermissionDenied => {
                let message = status.message().to_owned();
                Ok(Err(JoinError::Refused { reason: "token".to_owned(), message }))
            }
            Err(status) => Err(status),
        }
    }

    /// Makes the trainer, once.
    async fn prepare(
        &mut self,
        client: u32,
        welcome: &wire::Welcome,
    ) -> Result<(u32, crate::Abilities), JoinError> {
        let senseless =
            || JoinError::Unusable("the server's model would be larger than any memory".to_owned());
        let invitation = Invitation {
            client: ClientId::new(client as usize),
            settings: welcome.settings.clone(),
            seed: welcome.seed,
            layout: convert::layout(&welcome.layout).ok_or_else(senseless)?,
        };
        if self.trainer.as_ref().is_none_or(|last| last.invitation != invitation) {
            if self.making.as_ref().is_none_or(|(of, _)| *of != invitation) {
                tracing::info!(client, "making ready");
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
            let trainer = made?.map_err(JoinError::Trainer)?;
            let (samples, abilities) = (trainer.samples(), trainer.abilities());
            let interrupter = trainer.interrupter();
            let trainer = Arc::new(Mutex::new(trainer));
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
        welcome: &wire::Welcome,
        until: &mut watch::Receiver<Until>,
    ) -> Result<Visit, Status> {
        let beat = beat(welcome);
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
                    if let Some(visit) = self.heard(said, to).await {
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
                            self.give_up(to, status.message()).await?;
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
    async fn heard(&mut self, said: Said, to: &mpsc::Sender<wire::FromClient>) -> Option<Visit> {
        match said {
            Said::Job(job) => self.take_up(Wanted::Job(job)),
            Said::Probe(probe) => self.take_up(Wanted::Probe(probe)),
            Said::Evaluate(evaluate) => self.take_up(Wanted::Evaluate(evaluate)),
            Said::Stop(stop) => {
                let is_it =
                    |errand: &&Errand| matches!(&errand.wanted, Wanted::Job(job) if job.round == stop.round);
                match self.errand.as_ref().filter(is_it).filter(|_| !stop.finish).map(|errand| &errand.stage)
                {
                    Some(Stage::AtWork(at_work, _)) => self.stop(at_work),
                    Some(Stage::Fetching(_)) => {
                        self.n_errands += 1;
                        if let Err(status) =
                            self.give_up(to, "the time was over before it had the model").await
                        {
                            return Some(Visit::Lost { why: brief(&status, &self.joining), was_in: true });
                        }
                    }
                    Some(Stage::Answering(_)) | None => {}
                }
            }
            Said::Settled(settled) => return self.settled(&settled).err().map(Visit::Hopeless),
            Said::Refused(refused) => return Some(turned_away(refused)),
            Said::Bye(bye) if bye.r#final => return Some(Visit::Ended(Left::Over(bye.reason))),
            Said::Bye(bye) => return Some(Visit::Lost { why: bye.reason, was_in: true }),
            Said::Welcome(_) | Said::Beat(_) => {}
        }
        None
    }

    /// A new errand; one that is under way is dropped, for the server knows what it does.
    fn take_up(&mut self, wanted: Wanted) {
        let same = |errand: &Errand| matches!((&errand.wanted, &wanted), (Wanted::Job(one), Wanted::Job(other)) if one.ticket == other.ticket);
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
        let is_it =
            |errand: &Errand| matches!(&errand.wanted, Wanted::Job(job) if job.round == settled.round);
        if !settled.refused.is_empty() {
            tracing::warn!(round = settled.round, reason = settled.refused, "the answer was not taken");
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
                let content = errand.wanted.content()?.clone();
                if self.model.as_ref().is_some_and(|(digest, _)| *digest == content.digest) {
                    return Some(Box::pin(std::future::ready(Ok(Moved::Down))));
                }
                Some(Box::pin(fetch(server.clone(), self.session.clone(), content, Arc::clone(have))))
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
                let Some(content) = errand.wanted.content() else { return Ok(()) };
                let prepared = self.trainer.as_ref().expect("it was made before the client was ready");
                let bytes = std::mem::take(&mut *have.lock().unwrap_or_else(PoisonError::into_inner));
                if self.model.as_ref().is_none_or(|(digest, _)| *digest != content.digest) {
                    let Some(parcel) = read_model(content, &bytes, prepared.invitation.layout.len()) else {
                        return self.give_up(to, "its model came damaged").await;
                    };
                    self.model = Some((content.digest.clone(), Arc::new(parcel)));
                }
                let global = Arc::clone(&self.model.as_ref().expect("it is there").1);
                let heard = match &errand.wanted {
                    Wanted::Job(job) => job.heard,
                    Wanted::Probe(_) | Wanted::Evaluate(_) => None,
                };
                let memory = self.home.memory.recall(errand.wanted.round(), heard);
                if matches!(errand.wanted, Wanted::Job(_)) {
                    self.home.heard(heard);
                }
                errand.begin(&prepared.trainer, global, memory);
                Ok(())
            }
            (Moved::Gone, Stage::Fetching(_)) => {
                self.give_up(to, "its model is not to be had any more").await
            }
            (Moved::Up(took_s), Stage::Answering(answering)) => {
                self.upload_s = took_s;
                answering.sent_in = Some(self.session.clone());
                say(to, Say::Answer(answering.answer.clone())).await
            }
            // Of an errand that was dropped.
            _ => Ok(()),
        }
    }

    async fn give_up(&mut self, to: &mpsc::Sender<wire::FromClient>, why: &str) -> Result<(), Status> {
        if let Some(errand) = self.errand.take() {
            let round = errand.wanted.round();
            tracing::warn!(round, why, "gave up a job");
            say(to, Say::Failed(wire::Failed { round, message: why.to_owned() })).await?;
        }
        Ok(())
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
            Err(why) => self.give_up(to, &why).await?,
            Ok(Came::Trained(None)) => self.give_up(to, "not one step was done").await?,
            Ok(Came::Trained(Some((trained, step_s)))) => {
                let Wanted::Job(job) = &errand.wanted else { return Ok(None) };
                let update = trained.update;
                let delta = with_residue(update.delta, &self.home.residue);
                let packed = pack::pack(&delta, self.packing);
                let digest = Bytes::copy_from_slice(Digest::of(&packed.bytes).bytes());
                let answer = wire::Answer {
                    round,
                    ticket: job.ticket.clone(),
                    delta: Some(wire::Content { digest, bytes: packed.bytes.len() as u64 }),
                    steps: update.steps.get(),
                    steps_asked: update.steps_asked.get(),
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
                    self.home.memory.note(round, memory);
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
                let (samples, loss, hits) = (tally.weight, tally.loss, tally.hits);
                say(to, Say::Evaluated(wire::Evaluated { round, samples, loss, hits })).await?;
            }
        }
        Ok(None)
    }
}

fn turned_away(refused: wire::Refused) -> Visit {
    let wire::Refused { reason, message, r#final: last } = refused;
    match last {
        true => Visit::Hopeless(JoinError::Refused { reason, message }),
        false => Visit::Lost { why: format!("the server refused ({reason}): {message}"), was_in: false },
    }
}

/// What a server said before it hung up, if it did.
async fn last_word(from: &mut Streaming<wire::FromServer>) -> Option<Visit> {
    let word = async {
        while let Ok(Some(said)) = from.message().await {
            match said.message {
                Some(Said::Bye(bye)) if bye.r#final => return Some(Visit::Ended(Left::Over(bye.reason))),
                Some(Said::Refused(refused)) => return Some(turned_away(refused)),
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
    for (name, values) in &mut delta.side {
        if let Some(residue) = residue.side.get(name) {
            add(values, residue);
        }
    }
    delta
}

async fn say(to: &mpsc::Sender<wire::FromClient>, say: Say) -> Result<(), Status> {
    let message = wire::FromClient { message: Some(say) };
    to.send(message).await.map_err(|_| Status::unavailable("the connection is closed"))
}

/// The end of a transfer; never, if there is none.
async fn arrived(moving: &mut Option<Moving>) -> Result<Moved, Status> {
    match moving {
        Some(moving) => moving.await,
        None => std::future::pending().await,
    }
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

/// The model that a content is, if it is.
fn read_model(content: &wire::Content, bytes: &[u8], numbers: usize) -> Option<Parcel> {
    if Digest::read(&content.digest)? != Digest::of(bytes) {
        return None;
    }
    pack::unpack(bytes, Bounds { numbers, sides: MOST_SIDES }).ok().map(|(parcel, _)| parcel)
}

/// Gets a model, from where it broke off.
async fn fetch(
    mut server: Server,
    session: Bytes,
    content: wire::Content,
    have: Arc<Mutex<BytesMut>>,
) -> Result<Moved, Status> {
    let lock = || have.lock().unwrap_or_else(PoisonError::into_inner);
    let request = wire::FetchRequest { session, digest: content.digest, offset: lock().len() as u64 };
    let mut chunks = match server.fetch(request).await {
        Err(status) if status.code() == Code::NotFound => return Ok(Moved::Gone),
        chunks => chunks?.into_inner(),
    };
    while let Some(chunk) = chunks.message().await? {
        let mut have = lock();
        if (have.len() + chunk.bytes.len()) as u64 > content.bytes {
            have.clear();
            return Err(Status::data_loss("the server sends more than it said"));
        }
        have.extend_from_slice(&chunk.bytes);
    }
    if (lock().len() as u64) < content.bytes {
        return Err(Status::aborted("the model did not come to its end"));
    }
    Ok(Moved::Down)
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

/// How often the server wants to hear of it.
fn beat(welcome: &wire::Welcome) -> Duration {
    Duration::from_secs_f64(welcome.heartbeat_s.clamp(0.01, 3600.0))
}

/// Sends an update, from where it broke off; while the server has no room for it, after a pause that grows.
async fn send(
    server: Server,
    session: Bytes,
    content: wire::Content,
    packed: Bytes,
) -> Result<Moved, Status> {
    let mut pause = SHORTEST;
    loop {
        match try_send(server.clone(), session.clone(), content.clone(), packed.clone()).await {
            Err(status) if status.code() == Code::ResourceExhausted => {
                tracing::debug!(why = status.message(), again_within_s = pause.as_secs_f64(), "not sent yet");
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(LONGEST_FOR_ROOM);
            }
            sent => return sent,
        }
    }
}

async fn try_send(
    mut server: Server,
    session: Bytes,
    content: wire::Content,
    packed: Bytes,
) -> Result<Moved, Status> {
    let (digest, bytes) = (content.digest.clone(), content.bytes);
    let held = wire::HeldRequest { session: session.clone(), digest, bytes };
    let offset = server.held(held).await?.into_inner().bytes;
    // Without the time that it waited: methods go by how long sending takes.
    let began = Instant::now();
    let from = usize::try_from(offset).ok().filter(|&from| from <= packed.len());
    let from = from.ok_or_else(|| Status::data_loss("the server holds more than there is"))?;
    if from < packed.len() {
        let header = wire::Header { session, content: Some(content), offset };
        let header = wire::Part { part: Some(wire::part::Part::Header(header)) };
        let chunks = (from..packed.len()).step_by(PART).map(move |at| {
            let bytes = packed.slice(at..(at + PART).min(packed.len()));
            wire::Part { part: Some(wire::part::Part::Bytes(bytes)) }
        });
        server.send(tokio_stream::iter(std::iter::once(header).chain(chunks))).await?;
    }
    Ok(Moved::Up(began.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::path::Path;

    use ebb_round::{Job, RoundNo, Stream, Update};
    use ebb_train::backend::Trained;

    use super::*;
    use crate::Abilities;
    use crate::client::{AtWork, Trainer};

    /// A model of one number, by which every update would move by a tenth: no half is that.
    struct Tenth;

    impl Trainer for Tenth {
        fn samples(&self) -> u32 {
            1
        }

        fn abilities(&self) -> Abilities {
            Abilities::default()
        }

        fn train(&mut self, job: &Job, _: &Arc<Parcel>, _: &AtWork) -> Result<Option<Trained>, String> {
            let update = Update {
                delta: Parcel::of(vec![0.1]),
                base: job.round,
                rate: job.rate,
                steps: NonZeroU32::MIN,
                steps_asked: NonZeroU32::MIN,
                samples: 1,
                loss: 1.0,
                loss_fall: 0.0,
                accuracy: None,
            };
            Ok(Some(Trained { update, memory: None }))
        }
    }

    /// What happens to a round's answer, and when the client is killed.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fate {
        Taken,
        Refused,
        KilledAtWork,
        KilledBeforeItWasSent,
        KilledBeforeItWasTold,
        KilledOnceItWasTold,
        KilledAndRefused,
        /// It comes back when the server has forgotten what became of it.
        KilledForLong,
        KilledForLongAndRefused,
    }

    const FATES: [Fate; 9] = [
        Fate::Taken,
        Fate::Refused,
        Fate::KilledAtWork,
        Fate::KilledBeforeItWasSent,
        Fate::KilledBeforeItWasTold,
        Fate::KilledOnceItWasTold,
        Fate::KilledAndRefused,
        Fate::KilledForLong,
        Fate::KilledForLongAndRefused,
    ];

    fn start(folder: &Path, packing: Packing) -> Member {
        let home = Home::open(Some(folder.to_owned())).unwrap();
        let mut member = Member::new(Joining::default(), home, Box::new(|_| Err(String::new())));
        let (samples, abilities) = (1, Abilities::default());
        let invitation =
            Invitation { client: ClientId::new(0), settings: String::new(), seed: 0, layout: crate::flat(1) };
        let trainer: Box<dyn Trainer> = Box::new(Tenth);
        let trainer = Arc::new(Mutex::new(trainer));
        member.trainer = Some(Prepared { invitation, trainer, interrupter: None, samples, abilities });
        member.model = Some((Bytes::new(), Arc::new(Parcel::of(vec![0.0]))));
        member.packing = packing;
        member
    }

    fn job(round: RoundNo, heard: Option<RoundNo>) -> wire::Job {
        let work = wire::Work { amount: Some(wire::work::Amount::Steps(1)), batch: None };
        let ticket = Bytes::copy_from_slice(&round.to_le_bytes());
        let global = Some(wire::Content::default());
        wire::Job { round, ticket, global, rate: 1.0, work: Some(work), heard, window_s: None }
    }

    /// What is sent for the job of a round.
    async fn trains(member: &mut Member, round: RoundNo, heard: Option<RoundNo>) -> Option<f32> {
        let (to, _from) = mpsc::channel(16);
        member.take_up(Wanted::Job(job(round, heard)));
        member.moved(Moved::Down, &to).await.unwrap();
        let work = came(&mut member.errand).await;
        assert!(member.came(work, &to).await.unwrap().is_none());
        in_hand(member, round)
    }

    /// What it would send for a round, if it has an answer to it.
    fn in_hand(member: &Member, round: RoundNo) -> Option<f32> {
        let errand = member.errand.as_ref().filter(|errand| errand.wanted.round() == round)?;
        let Stage::Answering(answering) = &errand.stage else { return None };
        assert_eq!(errand.in_hand().unwrap().ticket, answering.answer.ticket);
        let (parcel, _) = pack::unpack(&answering.packed, Bounds { numbers: 1, sides: 0 }).unwrap();
        Some(parcel.model[0])
    }

    fn told(member: &mut Member, round: RoundNo, refused: &str) {
        member.settled(&wire::Settled { round, refused: refused.to_owned() }).unwrap();
    }

    /// Plays a round for every fate: what was taken is a tenth for each, but for one rounding.
    fn check(fates: &[Fate]) {
        let folder = tempfile::tempdir().unwrap();
        let half = Packing { number: Number::F16, zstd: false };
        let again = || start(folder.path(), half);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut member = again();
            let (mut sum, mut count, mut heard) = (0.0, 0, None);
            for (round, &fate) in (0..).zip(fates) {
                let mut sent = trains(&mut member, round, heard).await.unwrap();
                match fate {
                    Fate::KilledAtWork => {
                        // As if it had not come to an answer: then nothing of this round is on the disk.
                        member.home.answer = None;
                        member.home.next_residue = None;
                        member.home.keep_memory().unwrap();
                        drop(member);
                        member = again();
                        sent = trains(&mut member, round, heard).await.unwrap();
                    }
                    Fate::Taken | Fate::Refused | Fate::KilledOnceItWasTold => {}
                    _ => {
                        drop(member);
                        member = again();
                        assert_eq!(in_hand(&member, round), Some(sent), "it is sent again as it was");
                    }
                }
                let taken =
                    !matches!(fate, Fate::Refused | Fate::KilledAndRefused | Fate::KilledForLongAndRefused);
                if taken {
                    (sum, count, heard) = (sum + f64::from(sent), count + 1, Some(round));
                }
                let forgotten = matches!(fate, Fate::KilledForLong | Fate::KilledForLongAndRefused);
                told(&mut member, round, if forgotten || !taken { "other-round" } else { "" });
                if fate == Fate::KilledOnceItWasTold {
                    drop(member);
                    member = again();
                }
                assert!(member.errand.is_none());
                let wanted = 0.1 * f64::from(count);
                assert!(
                    (sum - wanted).abs() < 1e-4,
                    "{sum} instead of {wanted} after {:?}",
                    &fates[..=round as usize]
                );
            }
        });
    }

    #[test]
    fn what_rounding_takes_is_made_up_for_once_whenever_the_client_is_killed() {
        for fate in FATES {
            check(&[fate; 30]);
        }
        let mut stream = Stream::of_run(7, "kills");
        let fates: Vec<_> = (0..100).map(|_| FATES[stream.below(FATES.len())]).collect();
        check(&fates);
    }

    #[tokio::test]
    async fn a_full_disk_may_have_room_later() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        let mut member = start(&home, Packing { number: Number::F16, zstd: false });
        // What cannot be written there is as with a disk that is full.
        std::fs::remove_dir_all(&home).unwrap();
        let (to, _from) = mpsc::channel(16);
        member.take_up(Wanted::Job(job(0, None)));
        member.moved(Moved::Down, &to).await.unwrap();
        let work = came(&mut member.errand).await;
        let visit = member.came(work, &to).await.unwrap();
        assert!(matches!(visit, Some(Visit::Hopeless(JoinError::Unavailable(_)))));
    }

    #[test]
    fn an_update_that_is_not_rounded_makes_up_for_it_once() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut member = start(folder.path(), Packing { number: Number::F16, zstd: false });
            let first = trains(&mut member, 0, None).await.unwrap();
            told(&mut member, 0, "");
            member.packing = Packing::default();
            let second = trains(&mut member, 1, Some(0)).await.unwrap();
            assert!((f64::from(first) + f64::from(second) - 0.2).abs() < 1e-7);
            told(&mut member, 1, "");
            assert_eq!(trains(&mut member, 2, Some(1)).await, Some(0.1));
        });
    }
}
