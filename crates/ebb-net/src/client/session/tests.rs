//! One client, whenever it is killed and whatever became of its answer.

use std::num::NonZeroU32;
use std::path::Path;

use ebb_round::{Amount, ClientId, Job, RoundNo, Stream, Update, Work};
use ebb_train::backend::TrainedUpdate;

use super::*;
use crate::Capabilities;
use crate::client::{JobControl, Trainer};

/// A model of one number, by which every update would move by a tenth: no half is that.
struct TenthTrainer;

impl Trainer for TenthTrainer {
    fn samples(&self) -> u32 {
        1
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn train(&mut self, job: &Job, _: &Arc<Parcel>, _: &JobControl) -> Result<Option<TrainedUpdate>, String> {
        let update = Update {
            delta: Parcel::of(vec![0.1]),
            base_round: job.round,
            learning_rate: job.learning_rate,
            steps: NonZeroU32::MIN,
            steps_requested: NonZeroU32::MIN,
            samples: 1,
            loss: 1.0,
            loss_fall: 0.0,
            accuracy: None,
        };
        Ok(Some(TrainedUpdate { update, memory: None }))
    }
}

/// What happens to a round's answer, and when the client is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UpdateFate {
    Journaled,
    Refused,
    KilledAtWork,
    KilledBeforeItWasSent,
    KilledBeforeSettled,
    KilledOnceSettled,
    KilledAndRefused,
    /// It comes back when the server has forgotten what became of it.
    KilledForLong,
    KilledForLongAndRefused,
}

const FATES: [UpdateFate; 9] = [
    UpdateFate::Journaled,
    UpdateFate::Refused,
    UpdateFate::KilledAtWork,
    UpdateFate::KilledBeforeItWasSent,
    UpdateFate::KilledBeforeSettled,
    UpdateFate::KilledOnceSettled,
    UpdateFate::KilledAndRefused,
    UpdateFate::KilledForLong,
    UpdateFate::KilledForLongAndRefused,
];

fn start_client(folder: &Path, packing: Packing) -> Client {
    let home = StateDir::open(Some(folder.to_owned())).unwrap();
    let mut member = Client::new(JoinOptions::default(), home, Box::new(|_| Err(String::new())));
    let (samples, abilities) = (1, Capabilities::default());
    let invitation = RunDescription {
        client: ClientId::new(0),
        settings: String::new(),
        seed: 0,
        layout: crate::one_tensor_layout(1),
    };
    let trainer: Box<dyn Trainer> = Box::new(TenthTrainer);
    let trainer = Arc::new(Mutex::new(trainer));
    member.prepared =
        Some(Prepared { run: invitation, trainer, interrupter: None, samples, capabilities: abilities });
    member.model = Some((Digest::of(b""), Arc::new(Parcel::of(vec![0.0]))));
    member.packing = packing;
    member
}

fn job(round: RoundNo, heard: Option<RoundNo>) -> ServerRequest {
    let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch_size: None };
    let ticket = Bytes::copy_from_slice(&round.to_le_bytes());
    let model = checks::ModelRef { digest: Digest::of(b""), bytes: 0 };
    ServerRequest::Job(checks::JobRequest {
        round,
        ticket,
        model,
        learning_rate: 1.0,
        work,
        acknowledged: heard,
    })
}

/// What is sent for the job of a round.
async fn train_and_pack(member: &mut Client, round: RoundNo, heard: Option<RoundNo>) -> Option<f32> {
    let (to, _from) = mpsc::channel(16);
    member.start_job(job(round, heard));
    member.transfer_done(TransferResult::Downloaded, &to).await.unwrap();
    let work = work_result(&mut member.job).await;
    assert!(member.work_done(work, &to).await.unwrap().is_none());
    pending_value(member, round)
}

/// What it would send for a round, if it has an answer to it.
fn pending_value(member: &Client, round: RoundNo) -> Option<f32> {
    let errand = member.job.as_ref().filter(|errand| errand.request.round() == round)?;
    let Stage::Submitting(answering) = &errand.stage else { return None };
    assert_eq!(errand.in_hand().unwrap().ticket, answering.message.ticket);
    let (parcel, _) =
        pack::unpack(&answering.packed, pack::VectorBounds { vector_len: 1, side_vectors: 0 }).unwrap();
    Some(parcel.model[0])
}

fn settle(member: &mut Client, round: RoundNo, refused: &str) {
    member.settled(&wire::Settled { round, refused: refused.to_owned() }).unwrap();
}

/// Plays a round for every fate: what was taken is a tenth for each, but for one rounding.
fn check(fates: &[UpdateFate]) {
    let folder = tempfile::tempdir().unwrap();
    let half = Packing { element_type: ElementType::F16, zstd: false };
    let again = || start_client(folder.path(), half);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut member = again();
        let (mut sum, mut count, mut heard) = (0.0, 0, None);
        for (round, &fate) in (0..).zip(fates) {
            let mut sent = train_and_pack(&mut member, round, heard).await.unwrap();
            match fate {
                UpdateFate::KilledAtWork => {
                    // As if it had not come to an answer: then nothing of this round is on the disk.
                    member.state_dir.pending_update = None;
                    member.state_dir.pending_residue = None;
                    member.state_dir.save_memory().unwrap();
                    drop(member);
                    member = again();
                    sent = train_and_pack(&mut member, round, heard).await.unwrap();
                }
                UpdateFate::Journaled | UpdateFate::Refused | UpdateFate::KilledOnceSettled => {}
                _ => {
                    drop(member);
                    member = again();
                    assert_eq!(pending_value(&member, round), Some(sent), "it is sent again as it was");
                }
            }
            let taken = !matches!(
                fate,
                UpdateFate::Refused | UpdateFate::KilledAndRefused | UpdateFate::KilledForLongAndRefused
            );
            if taken {
                (sum, count, heard) = (sum + f64::from(sent), count + 1, Some(round));
            }
            let forgotten = matches!(fate, UpdateFate::KilledForLong | UpdateFate::KilledForLongAndRefused);
            settle(&mut member, round, if forgotten || !taken { "other-round" } else { "" });
            if fate == UpdateFate::KilledOnceSettled {
                drop(member);
                member = again();
            }
            assert!(member.job.is_none());
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
async fn a_full_disk_may_have_space_later() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let mut member = start_client(&home, Packing { element_type: ElementType::F16, zstd: false });
    // What cannot be written there is as with a disk that is full.
    std::fs::remove_dir_all(&home).unwrap();
    let (to, _from) = mpsc::channel(16);
    member.start_job(job(0, None));
    member.transfer_done(TransferResult::Downloaded, &to).await.unwrap();
    let work = work_result(&mut member.job).await;
    let visit = member.work_done(work, &to).await.unwrap();
    assert!(matches!(visit, Some(SessionEnd::Fatal(JoinError::Unavailable(_)))));
}

#[test]
fn an_update_that_is_not_rounded_makes_up_for_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut member = start_client(folder.path(), Packing { element_type: ElementType::F16, zstd: false });
        let first = train_and_pack(&mut member, 0, None).await.unwrap();
        settle(&mut member, 0, "");
        member.packing = Packing::default();
        let second = train_and_pack(&mut member, 1, Some(0)).await.unwrap();
        assert!((f64::from(first) + f64::from(second) - 0.2).abs() < 1e-7);
        settle(&mut member, 1, "");
        assert_eq!(train_and_pack(&mut member, 2, Some(1)).await, Some(0.1));
    });
}
