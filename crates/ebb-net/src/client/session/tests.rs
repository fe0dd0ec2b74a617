//! One client, whenever it is killed and whatever became of its answer.

use std::num::NonZeroU32;
use std::path::Path;

use ebb_round::{Amount, ClientId, Job, RoundNo, Stream, Update, Work};
use ebb_train::backend::TrainedUpdate;

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

    fn train(&mut self, job: &Job, _: &Arc<Parcel>, _: &AtWork) -> Result<Option<TrainedUpdate>, String> {
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
    member.model = Some((Digest::of(b""), Arc::new(Parcel::of(vec![0.0]))));
    member.packing = packing;
    member
}

fn job(round: RoundNo, heard: Option<RoundNo>) -> Wanted {
    let work = Work { amount: Amount::Steps(NonZeroU32::MIN), batch: None };
    let ticket = Bytes::copy_from_slice(&round.to_le_bytes());
    let model = checks::Model { digest: Digest::of(b""), bytes: 0 };
    Wanted::Job(checks::Job { round, ticket, model, rate: 1.0, work, heard })
}

/// What is sent for the job of a round.
async fn trains(member: &mut Member, round: RoundNo, heard: Option<RoundNo>) -> Option<f32> {
    let (to, _from) = mpsc::channel(16);
    member.take_up(job(round, heard));
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
    let (parcel, _) = pack::unpack(&answering.packed, pack::Bounds { numbers: 1, sides: 0 }).unwrap();
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
    member.take_up(job(0, None));
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
