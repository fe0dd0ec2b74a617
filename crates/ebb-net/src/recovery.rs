//! Replays the journal after a restart, then appends to it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ebb_round::{FleetError, Loader, Parcel, RoundNo, Saver, StateError};

use crate::digest::Digest;
use crate::journal::{Entry, UpdateRecord};
use crate::pack;
use crate::shared::Shared;
use crate::store::{Prune, catching_panics};

/// Called once the journal was replayed, so that clients can connect.
pub(crate) type OnLive = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// The journal of a run, shared by fleet and evaluator.
#[derive(Clone)]
pub(crate) struct Recovery {
    pub(crate) shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
    /// Whether nothing of it is ever pruned.
    keep_all: bool,
}

#[derive(Default)]
struct State {
    /// Entries from before the restart that are not yet replayed.
    unreplayed: VecDeque<(u64, Entry)>,
    /// Replayed updates that were not yet passed to the engine.
    replayed_updates: BTreeMap<u64, UpdateRecord>,
    /// How long the open round was open before the restart, as far as the journal knows.
    open_round_s: Option<f64>,
    /// The entry after the end of the last round. All updates before it are known to the coordinator, because
    /// the disk reports in the order of entries.
    round_start_entry: u64,
    /// What the latest saved state needs: the entries from a number on, and some before it.
    unconfirmed_checkpoint: Option<(u64, Vec<u64>)>,
    /// What the latest checkpoint needs that is safely on disk.
    confirmed_checkpoint: Option<(u64, Vec<u64>)>,
    /// What neither this checkpoint nor the one before it needs, until it is pruned.
    prunable: Option<Prune>,
    /// Why the entries cannot be replayed, if some are missing.
    gap: Option<String>,
    /// How many rounds the record has.
    recorded_rounds: RoundNo,
    on_live: Option<OnLive>,
}

impl Recovery {
    /// The recovery of a run that begins, or that resumes from its journal alone.
    pub(crate) fn new(shared: Arc<Shared>, keep: bool, live: OnLive) -> Result<Recovery, FleetError> {
        let state = State { on_live: Some(live), ..State::default() };
        let recovery = Recovery { shared, state: Arc::new(Mutex::new(state)), keep_all: keep };
        recovery.rewind(0, &[])?;
        Ok(recovery)
    }

    /// Replays the journal from an entry on, and some entries before it.
    fn rewind(&self, from: u64, before: &[u64]) -> Result<(), FleetError> {
        let store = &self.shared.store;
        let failed =
            |message: String| FleetError::Failed { operation: "reading the journal".to_owned(), message };
        let read = |seq: u64, bytes: &[u8]| {
            Entry::read(bytes).map_err(|error| {
                failed(format!("entry {seq} is damaged ({error}); put back a whole copy of the folder"))
            })
        };
        let next = self.shared.writer.next_entry();
        if from > next {
            return Err(failed(format!(
                "the checkpoint continues from entry {from}, but the journal ends before entry {next}, so \
                 they are of different times; put back both from one copy of the folder"
            )));
        }
        let (mut past, mut gap) = (VecDeque::new(), None);
        for (seq, bytes) in
            catching_panics("reading", || store.entries(from)).map_err(|error| failed(error.to_string()))?
        {
            let wanted = from + past.len() as u64;
            if seq != wanted && gap.is_none() {
                gap = Some(match (past.is_empty(), from) {
                    (true, 0) => format!(
                        "the journal begins with entry {seq}: older ones are pruned after two checkpoints. \
                         No checkpoint of the folder can be used (see above). If rounds.jsonl is damaged, \
                         put back a copy of that file; its first rows suffice. Otherwise put back a whole \
                         copy of the folder, or start a new run with another --out"
                    ),
                    _ => format!("entry {wanted} is missing; put back a whole copy of the folder"),
                });
            }
            past.push_back((seq, read(seq, &bytes)?));
        }
        let mut recalled = BTreeMap::new();
        for &seq in before {
            let bytes =
                catching_panics("reading", || store.entry(seq)).map_err(|error| failed(error.to_string()))?;
            match bytes.as_deref().map(|bytes| read(seq, bytes)).transpose()? {
                Some(Entry::Update(record)) => {
                    recalled.insert(seq, record);
                }
                // The rollback went beyond the journal's beginning, so that update was never received.
                None if store.rollback_entry().map_err(|error| failed(error.to_string()))? == from => {}
                _ => return Err(failed(missing_entry(seq))),
            }
        }
        let mut state = self.lock();
        state.unreplayed = past;
        state.gap = gap;
        state.replayed_updates = recalled;
        state.round_start_entry = from;
        state.open_round_s = None;
        Ok(())
    }

    /// Tells how many rounds the record has. The journal must replay all of them before clients are asked.
    pub(crate) fn expect_recorded(&self, recorded: RoundNo) {
        self.lock().recorded_rounds = recorded;
    }

    /// Reads the next entry that is not an update, with `wanted`, for a round. `None` once the journal was
    /// replayed.
    pub(crate) fn replay_next<T>(
        &self,
        round: RoundNo,
        doing: &str,
        wanted: impl FnOnce(Entry) -> Option<T>,
    ) -> Result<Option<T>, FleetError> {
        let mut state = self.lock();
        if let Some(gap) = &state.gap {
            return Err(FleetError::Failed { operation: doing.to_owned(), message: gap.clone() });
        }
        while let Some((seq, entry)) = state.unreplayed.pop_front() {
            match entry {
                Entry::Update(record) => {
                    state.replayed_updates.insert(seq, record);
                }
                Entry::Opened { .. } => state.open_round_s = Some(0.0),
                Entry::TimePassed { elapsed_s, .. } => state.open_round_s = Some(elapsed_s),
                other => {
                    let description = describe_entry(&other);
                    if ends_round(&other) {
                        state.round_start_entry = seq + 1;
                        state.open_round_s = None;
                    }
                    return wanted(other).map(Some).ok_or_else(|| FleetError::Failed {
                        operation: doing.to_owned(),
                        message: format!(
                            "the journal diverges from the run at entry {seq} ({description}). Record, \
                             settings and program must be those of the run that wrote it: restore them, or \
                             start a new run with another --out"
                        ),
                    });
                }
            }
        }
        let recorded = state.recorded_rounds;
        drop(state);
        if round < recorded {
            return Err(FleetError::Failed {
                operation: doing.to_owned(),
                message: format!(
                    "the record (rounds.jsonl) has {recorded} rounds, and the journal ends in round {round}: \
                     they are of different times. Nothing was changed, and no client was asked. Put back \
                     both from one copy of the folder, or roll back to the round where the journal ends \
                     with: ebbflow rollback FOLDER --to {round}"
                ),
            });
        }
        self.go_live()?;
        Ok(None)
    }

    /// The update of a replayed entry.
    pub(crate) fn replayed_update(&self, seq: u64) -> Result<(UpdateRecord, Parcel), FleetError> {
        let failed = || FleetError::Failed {
            operation: "reading the journal".to_owned(),
            message: missing_entry(seq),
        };
        let record = self.lock().replayed_updates.remove(&seq).ok_or_else(failed)?;
        let delta = self.read_delta(seq, &record)?;
        Ok((record, delta))
    }

    /// The vectors of an entry.
    pub(crate) fn read_delta(&self, seq: u64, record: &UpdateRecord) -> Result<Parcel, FleetError> {
        let failed = |message: String| FleetError::Failed {
            operation: format!("reading entry {seq} of the journal"),
            message,
        };
        let read = catching_panics("reading", || self.shared.store.vectors(seq));
        let packed =
            read.map_err(|error| failed(error.to_string()))?.ok_or_else(|| failed(missing_entry(seq)))?;
        check_digest(&packed, record).map_err(failed)?;
        let bounds = self.shared.inspect(|coordinator| coordinator.rules().bounds()).0;
        pack::unpack(&packed, bounds).map(|(parcel, _)| parcel).map_err(|error| failed(error.to_string()))
    }

    /// Begins live operation once the journal was replayed.
    pub(crate) fn go_live(&self) -> Result<(), FleetError> {
        let (live, recalled) = {
            let mut state = self.lock();
            (state.on_live.take(), std::mem::take(&mut state.replayed_updates))
        };
        for (seq, record) in recalled {
            let delta = self.read_delta(seq, &record)?;
            self.shared.with_coordinator(|coordinator, _| coordinator.restore_update(seq, record, delta));
        }
        let Some(live) = live else { return Ok(()) };
        if self.shared.writer.next_entry() > 0 {
            self.shared.with_coordinator(|coordinator, now_s| coordinator.expect_reconnects(now_s));
        }
        live().map_err(|message| FleetError::Failed { operation: "starting to listen".to_owned(), message })
    }

    /// How long the round that is about to open was open before the restart, if it was.
    pub(crate) fn take_open_round_s(&self) -> Option<f64> {
        self.lock().open_round_s.take()
    }

    /// Appends an entry. On return it is on disk.
    pub(crate) fn append(&self, entry: &Entry) -> Result<(), FleetError> {
        let seq = self.shared.writer.append_and_wait(entry.bytes()).map_err(|error| FleetError::Failed {
            operation: "writing the journal".to_owned(),
            message: error.to_string(),
        })?;
        if ends_round(entry) {
            self.lock().round_start_entry = seq + 1;
        }
        Ok(())
    }

    /// Saves what a checkpoint needs.
    pub(crate) fn save(&self, to: &mut Saver) {
        let mut state = self.lock();
        let waiting = self.shared.inspect(|coordinator| coordinator.pending_entries()).0;
        let before: Vec<u64> = waiting
            .into_iter()
            .chain(state.replayed_updates.keys().copied())
            .filter(|&seq| seq < state.round_start_entry)
            .collect();
        to.u64(ENTRY_LABEL, state.round_start_entry);
        to.u64s("before", &before);
        state.unconfirmed_checkpoint = Some((state.round_start_entry, before));
    }

    /// The last saved checkpoint is safely on disk: entries that only the checkpoint before the last needed
    /// can be pruned.
    pub(crate) fn checkpoint_persisted(&self) {
        let mut state = self.lock();
        let Some(saved) = state.unconfirmed_checkpoint.take() else { return };
        let last = state.confirmed_checkpoint.replace(saved);
        if let Some((below, but)) = last.filter(|_| !self.keep_all) {
            state.prunable = Some(Prune { below, except: but });
        }
    }

    /// Prunes entries that are no longer needed. Not between rounds, where clients would wait for it.
    pub(crate) fn prune(&self) {
        let prunable = self.lock().prunable.take();
        prunable.into_iter().for_each(|prunable| self.shared.prune(prunable));
    }

    pub(crate) fn load(&self, from: &mut Loader<'_>) -> Result<(), StateError> {
        let (entry, before) = (from.u64(ENTRY_LABEL)?, from.u64s("before")?);
        self.rewind(entry, &before).map_err(|error| from.error(ENTRY_LABEL, error.to_string()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The field of a saved fleet with the first entry to replay.
const ENTRY_LABEL: &str = "entry";

/// The first entry that a saved fleet replays, which is its first field.
pub fn first_entry_of_saved(from: &mut Loader<'_>) -> Result<u64, StateError> {
    from.u64(ENTRY_LABEL)
}

/// Checks whether vectors are still those that were received with an update.
fn check_digest(packed: &[u8], record: &UpdateRecord) -> Result<(), String> {
    let &UpdateRecord { client, base, digest, .. } = record;
    // Entries of earlier versions have no digest.
    if digest.is_none_or(|wanted| Digest::of(packed) == wanted) {
        return Ok(());
    }
    Err(format!(
        "the vectors that client {} sent for round {base} have changed since: the file or its disk is \
         damaged; put back a whole copy of the folder, or repeat that round with: ebbflow rollback FOLDER \
         --to {base}",
        client.number()
    ))
}

/// The error of a missing update, with a remedy.
fn missing_entry(seq: u64) -> String {
    format!(
        "the update of entry {seq} is missing: journal and record are of different times; put back both from \
         one copy of the folder, or start a new run with another --out"
    )
}

/// Describes an entry in a few words.
fn describe_entry(entry: &Entry) -> String {
    let (what, round) = match entry {
        Entry::RollCall(roll_call) => ("the roll call", roll_call.round),
        Entry::Probed { round, .. } => ("the probe", *round),
        Entry::Opened { round } => ("the opening", *round),
        Entry::Update(record) => ("an update", record.base),
        Entry::Closed { round, .. } => ("the closing", *round),
        Entry::Evaluated { round, .. } => ("the evaluation", *round),
        Entry::TimePassed { round, .. } => ("the elapsed time", *round),
    };
    format!("{what} of round {round}")
}

/// Whether a checkpoint may follow this entry.
fn ends_round(entry: &Entry) -> bool {
    matches!(entry, Entry::Closed { .. } | Entry::Evaluated { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_that_do_not_match_their_digest_are_named_with_a_remedy() {
        let entries = crate::journal::tests::all_kinds();
        let records = entries.iter().filter_map(|entry| match entry {
            Entry::Update(record) => Some(record),
            _ => None,
        });
        let [with, without] = records.collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((check_digest(b"vectors", with), check_digest(b"vectorz", without)), (Ok(()), Ok(())));
        let error = check_digest(b"vectorz", with).unwrap_err();
        assert!(
            error.contains("client 4 sent for round 9") && error.ends_with("ebbflow rollback FOLDER --to 9")
        );
    }

    #[test]
    fn entries_are_named_in_a_few_words() {
        let entries = crate::journal::tests::all_kinds();
        assert!(entries.iter().all(|entry| describe_entry(entry).len() < 40));
        assert_eq!(describe_entry(&entries[0]), "the roll call of round 3");
    }
}
