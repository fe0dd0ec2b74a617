//! One client, killed at any time, with any outcome of its update.

use std::num::NonZeroU32;
use std::path::Path;

use ebb_round::{Amount, ClientId, Job, RoundNo, Stream, Update, Work};
use ebb_train::backend::TrainedUpdate;

use super::*;
use crate::Capabilities;
use crate::client::{JobControl, Trainer};

/// A model of one parameter, which every update moves by a tenth. No half represents a tenth.
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

/// The outcome of a round's update, and when the client is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PlannedOutcome {
    Journaled,
    Refused,
    KilledAtWork,
    KilledBeforeItWasSent,
    KilledBeforeSettled,
    KilledOnceSettled,
    KilledAndRefused,
    /// It returns when the server has forgotten the outcome.
    KilledForLong,
    KilledForLongAndRefused,
}

const OUTCOMES: [PlannedOutcome; 9] = [
    PlannedOutcome::Journaled,
    PlannedOutcome::Refused,
    PlannedOutcome::KilledAtWork,
    PlannedOutcome::KilledBeforeItWasSent,
    PlannedOutcome::KilledBeforeSettled,
    PlannedOutcome::KilledOnceSettled,
    PlannedOutcome::KilledAndRefused,
    PlannedOutcome::KilledForLong,
    PlannedOutcome::KilledForLongAndRefused,
];

fn start_client(folder: &Path, packing: Packing) -> Client {
    let state_dir = StateDir::open(Some(folder.to_owned())).unwrap();
    let mut member = Client::new(JoinOptions::default(), state_dir, Box::new(|_| Err(String::new())));
    let (samples, capabilities) = (1, Capabilities::default());
    let run = RunDescription {
        client: ClientId::new(0),
        settings: String::new(),
        seed: 0,
        layout: crate::one_tensor_layout(1),
    };
    let trainer: Box<dyn Trainer> = Box::new(TenthTrainer);
    let trainer = Arc::new(Mutex::new(trainer));
    member.prepared = Some(Prepared { run, trainer, interrupter: None, samples, capabilities });
    member.model = Some((Digest::of(b""), Arc::new(Parcel::of(vec![0.0]))));
    member.packing = packing;
    member
}

fn job(round: RoundNo, acknowledged: Option<RoundNo>) -> ServerRequest {
    let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch_size: None };
    let ticket = Bytes::copy_from_slice(&round.to_le_bytes());
    let model = checks::ModelRef { digest: Digest::of(b""), bytes: 0 };
    ServerRequest::Job(checks::JobRequest { round, ticket, model, learning_rate: 1.0, work, acknowledged })
}

/// The value that is sent for the job of a round.
async fn train_and_pack(member: &mut Client, round: RoundNo, acknowledged: Option<RoundNo>) -> Option<f32> {
    let (to, _from) = mpsc::channel(16);
    member.start_job(job(round, acknowledged));
    member.transfer_done(TransferResult::Downloaded, &to).await.unwrap();
    let work = work_result(&mut member.job).await;
    assert!(member.work_done(work, &to).await.unwrap().is_none());
    pending_value(member, round)
}

/// The value that it would send for a round, if it has an update for it.
fn pending_value(member: &Client, round: RoundNo) -> Option<f32> {
    let active_job = member.job.as_ref().filter(|job| job.request.round() == round)?;
    let Stage::Submitting(pending_update) = &active_job.stage else { return None };
    assert_eq!(active_job.in_hand().unwrap().ticket, pending_update.message.ticket);
    let (parcel, _) =
        pack::unpack(&pending_update.packed, pack::VectorBounds { vector_len: 1, side_vectors: 0 }).unwrap();
    Some(parcel.model[0])
}

fn settle(member: &mut Client, round: RoundNo, refused: &str) {
    member.settled(&wire::Settled { round, refused: refused.to_owned() }).unwrap();
}

/// Plays a round for every outcome: the sum of accepted updates is a tenth each, except for one rounding.
fn check(outcomes: &[PlannedOutcome]) {
    let folder = tempfile::tempdir().unwrap();
    let half = Packing { element_type: ElementType::F16, zstd: false };
    let again = || start_client(folder.path(), half);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut member = again();
        let (mut sum, mut count, mut acknowledged) = (0.0, 0, None);
        for (round, &outcome) in (0..).zip(outcomes) {
            let mut sent = train_and_pack(&mut member, round, acknowledged).await.unwrap();
            match outcome {
                PlannedOutcome::KilledAtWork => {
                    // As if the job had not finished: nothing of this round is on disk then.
                    member.state_dir.pending_update = None;
                    member.state_dir.pending_residue = None;
                    member.state_dir.save_memory().unwrap();
                    drop(member);
                    member = again();
                    sent = train_and_pack(&mut member, round, acknowledged).await.unwrap();
                }
                PlannedOutcome::Journaled | PlannedOutcome::Refused | PlannedOutcome::KilledOnceSettled => {}
                _ => {
                    drop(member);
                    member = again();
                    assert_eq!(pending_value(&member, round), Some(sent), "it is sent again unchanged");
                }
            }
            let taken = !matches!(
                outcome,
                PlannedOutcome::Refused
                    | PlannedOutcome::KilledAndRefused
                    | PlannedOutcome::KilledForLongAndRefused
            );
            if taken {
                (sum, count, acknowledged) = (sum + f64::from(sent), count + 1, Some(round));
            }
            let forgotten =
                matches!(outcome, PlannedOutcome::KilledForLong | PlannedOutcome::KilledForLongAndRefused);
            settle(&mut member, round, if forgotten || !taken { "other-round" } else { "" });
            if outcome == PlannedOutcome::KilledOnceSettled {
                drop(member);
                member = again();
            }
            assert!(member.job.is_none());
            let wanted = 0.1 * f64::from(count);
            assert!(
                (sum - wanted).abs() < 1e-4,
                "{sum} instead of {wanted} after {:?}",
                &outcomes[..=round as usize]
            );
        }
    });
}

#[test]
fn the_rounding_residue_is_sent_once_whenever_the_client_is_killed() {
    for outcome in OUTCOMES {
        check(&[outcome; 30]);
    }
    let mut stream = Stream::of_run(7, "kills");
    let outcomes: Vec<_> = (0..100).map(|_| OUTCOMES[stream.below(OUTCOMES.len())]).collect();
    check(&outcomes);
}

#[tokio::test]
async fn a_full_disk_may_have_space_later() {
    let folder = tempfile::tempdir().unwrap();
    let state_dir = folder.path().join("home");
    let mut member = start_client(&state_dir, Packing { element_type: ElementType::F16, zstd: false });
    // Writing fails there, as on a full disk.
    std::fs::remove_dir_all(&state_dir).unwrap();
    let (to, _from) = mpsc::channel(16);
    member.start_job(job(0, None));
    member.transfer_done(TransferResult::Downloaded, &to).await.unwrap();
    let work = work_result(&mut member.job).await;
    let end = member.work_done(work, &to).await.unwrap();
    assert!(matches!(end, Some(SessionEnd::Fatal(JoinError::Unavailable(_)))));
}

#[test]
fn an_update_that_is_not_rounded_carries_the_residue_once() {
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
