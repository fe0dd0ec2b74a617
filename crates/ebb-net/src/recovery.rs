//! How the run went so far: the journal, played again after a restart, and written from where it ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ebb_round::{FleetError, Loader, Parcel, RoundNo, Saver, StateError};

use crate::digest::Digest;
use crate::journal::{Entry, UpdateRecord};
use crate::pack;
use crate::shared::Shared;
use crate::store::{Prune, catching_panics};

/// What is called once the journal was played to its end: clients can come.
pub(crate) type OnLive = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// The journal of a run, as fleet and evaluator share it.
#[derive(Clone)]
pub(crate) struct Recovery {
    pub(crate) shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
    /// Whether nothing of it is ever thrown away.
    keep_all: bool,
}

#[derive(Default)]
struct State {
    /// Entries that were written before the restart and not played yet.
    unreplayed: VecDeque<(u64, Entry)>,
    /// Answers among those that were played, not passed on yet.
    replayed_updates: BTreeMap<u64, UpdateRecord>,
    /// How long the round that is open was open, as far as is known.
    open_round_s: Option<f64>,
    /// The number of the entry after the end of the last round. All answers before it are known to the desk: the disk reports
    /// in the order of entries.
    round_start_entry: u64,
    /// What the state needs that was saved last: from which entry on, and which before it.
    unconfirmed_checkpoint: Option<(u64, Vec<u64>)>,
    /// What the last checkpoint needs that is safely on the disk.
    confirmed_checkpoint: Option<(u64, Vec<u64>)>,
    /// What neither that one nor the one before needs, until it is thrown away.
    prunable: Option<Prune>,
    /// What is wrong with the entries that are to be played, if they do not follow on another.
    gap: Option<String>,
    /// After how many rounds the record ends beside the journal.
    recorded_rounds: RoundNo,
    on_live: Option<OnLive>,
}

impl Recovery {
    /// Of a run that begins, or goes on from its journal alone.
    pub(crate) fn new(shared: Arc<Shared>, keep: bool, live: OnLive) -> Result<Recovery, FleetError> {
        let state = State { on_live: Some(live), ..State::default() };
        let course = Recovery { shared, state: Arc::new(Mutex::new(state)), keep_all: keep };
        course.rewind(0, &[])?;
        Ok(course)
    }

    /// Will play the journal from an entry on, and some before it.
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
                "the checkpoint goes on from entry {from}, and the journal ends before entry {next}: they are not of one time; put back \
                 both from one copy of the folder"
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
                        "the journal begins with entry {seq}, for older ones are thrown away once two checkpoints follow, and no \
                         checkpoint of the folder can be used, as was said. If rounds.jsonl is what is damaged, put back a copy of that \
                         one, whose first rows suffice; else put back a whole copy of the folder, or begin another run with another --out"
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
                Some(Entry::Update(answer)) => {
                    recalled.insert(seq, answer);
                }
                // Further back than the journal reaches, where a rollback led: that answer is one that never
                // came.
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

    /// The record beside the journal ends after so many rounds: the journal is to make them all again before
    /// anybody is asked.
    pub(crate) fn expect_recorded(&self, recorded: RoundNo) {
        self.lock().recorded_rounds = recorded;
    }

    /// The next entry that is no answer, as `wanted` reads it for a round; `None` once the journal was played
    /// to its end.
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
                Entry::Update(answer) => {
                    state.replayed_updates.insert(seq, answer);
                }
                Entry::Opened { .. } => state.open_round_s = Some(0.0),
                Entry::TimePassed { elapsed_s, .. } => state.open_round_s = Some(elapsed_s),
                other => {
                    let said = describe_entry(&other);
                    if ends_round(&other) {
                        state.round_start_entry = seq + 1;
                        state.open_round_s = None;
                    }
                    return wanted(other).map(Some).ok_or_else(|| FleetError::Failed {
                        operation: doing.to_owned(),
                        message: format!(
                            "the journal does not go on as the run does: entry {seq} is {said}. Is the record beside it of another run, or were the settings or the program others? Go on with those that it was begun with, or begin another run with another --out"
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
                    "the record (rounds.jsonl) has {recorded} rounds, and the journal ends in round {round}: they are not of one time. \
                     Nothing was changed, and no client was asked. Put back both from one copy of the folder, or go back to where the \
                     journal ends with: ebbflow rollback FOLDER --to {round}"
                ),
            });
        }
        self.go_live()?;
        Ok(None)
    }

    /// The answer of an entry that was played.
    pub(crate) fn replayed_update(&self, seq: u64) -> Result<(UpdateRecord, Parcel), FleetError> {
        let failed = || FleetError::Failed {
            operation: "reading the journal".to_owned(),
            message: missing_entry(seq),
        };
        let answer = self.lock().replayed_updates.remove(&seq).ok_or_else(failed)?;
        let delta = self.read_delta(seq, &answer)?;
        Ok((answer, delta))
    }

    /// The vectors of an entry.
    pub(crate) fn read_delta(&self, seq: u64, answer: &UpdateRecord) -> Result<Parcel, FleetError> {
        let failed = |message: String| FleetError::Failed {
            operation: format!("reading entry {seq} of the journal"),
            message,
        };
        let read = catching_panics("reading", || self.shared.store.vectors(seq));
        let packed =
            read.map_err(|error| failed(error.to_string()))?.ok_or_else(|| failed(missing_entry(seq)))?;
        check_digest(&packed, answer).map_err(failed)?;
        let bounds = self.shared.inspect(|desk| desk.rules().bounds()).0;
        pack::unpack(&packed, bounds).map(|(parcel, _)| parcel).map_err(|error| failed(error.to_string()))
    }

    /// From now on things happen.
    pub(crate) fn go_live(&self) -> Result<(), FleetError> {
        let (live, recalled) = {
            let mut state = self.lock();
            (state.on_live.take(), std::mem::take(&mut state.replayed_updates))
        };
        for (seq, answer) in recalled {
            let delta = self.read_delta(seq, &answer)?;
            self.shared.with_coordinator(|desk, _| desk.restore_update(seq, answer, delta));
        }
        let Some(live) = live else { return Ok(()) };
        if self.shared.writer.next_entry() > 0 {
            self.shared.with_coordinator(|desk, now_s| desk.expect_reconnects(now_s));
        }
        live().map_err(|message| FleetError::Failed { operation: "beginning to listen".to_owned(), message })
    }

    /// How long the round that is to be opened was open before, if it was.
    pub(crate) fn take_open_round_s(&self) -> Option<f64> {
        self.lock().open_round_s.take()
    }

    /// Writes the next entry; on return it is on the disk.
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

    /// What a checkpoint needs to know.
    pub(crate) fn save(&self, to: &mut Saver) {
        let mut state = self.lock();
        let waiting = self.shared.inspect(|desk| desk.pending_entries()).0;
        let before: Vec<u64> = waiting
            .into_iter()
            .chain(state.replayed_updates.keys().copied())
            .filter(|&seq| seq < state.round_start_entry)
            .collect();
        to.u64(ENTRY_LABEL, state.round_start_entry);
        to.u64s("before", &before);
        state.unconfirmed_checkpoint = Some((state.round_start_entry, before));
    }

    /// The checkpoint that was saved last is safely on the disk: what only the one before the last needed can
    /// be thrown away.
    pub(crate) fn checkpoint_persisted(&self) {
        let mut state = self.lock();
        let Some(saved) = state.unconfirmed_checkpoint.take() else { return };
        let last = state.confirmed_checkpoint.replace(saved);
        if let Some((below, but)) = last.filter(|_| !self.keep_all) {
            state.prunable = Some(Prune { below, except: but });
        }
    }

    /// Throws away what is not needed any more. Not between rounds, where clients would wait for it.
    pub(crate) fn prune(&self) {
        let rubbish = self.lock().prunable.take();
        rubbish.into_iter().for_each(|rubbish| self.shared.prune(rubbish));
    }

    pub(crate) fn load(&self, from: &mut Loader<'_>) -> Result<(), StateError> {
        let (entry, before) = (from.u64(ENTRY_LABEL)?, from.u64s("before")?);
        self.rewind(entry, &before).map_err(|error| from.error(ENTRY_LABEL, error.to_string()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The field of a saved fleet that says from which entry on it plays the journal.
const ENTRY_LABEL: &str = "entry";

/// The entry from which on a saved fleet plays the journal: its first field.
pub fn first_entry_of_saved(from: &mut Loader<'_>) -> Result<u64, StateError> {
    from.u64(ENTRY_LABEL)
}

/// Whether vectors are still those that came with an answer.
fn check_digest(packed: &[u8], answer: &UpdateRecord) -> Result<(), String> {
    let &UpdateRecord { client, base, digest, .. } = answer;
    // Entries of earlier versions of this program do not say.
    if digest.is_none_or(|wanted| Digest::of(packed) == wanted) {
        return Ok(());
    }
    Err(format!(
        "the vectors that client {} sent for round {base} are not those that came: the file or its disk is damaged; put back a whole \
         copy of the folder, or ask that round anew with: ebbflow rollback FOLDER --to {base}",
        client.number()
    ))
}

/// What to do where an answer should be and is not.
fn missing_entry(seq: u64) -> String {
    format!(
        "the answer of entry {seq} is missing: journal and record are not of one time; put back both from one copy of the folder, or begin another run with another --out"
    )
}

/// What an entry is, in a few words: some name every client.
fn describe_entry(entry: &Entry) -> String {
    let (what, round) = match entry {
        Entry::RollCall(roll) => ("the roll", roll.round),
        Entry::Probed { round, .. } => ("what was probed", *round),
        Entry::Opened { round } => ("the beginning", *round),
        Entry::Update(answer) => ("an answer", answer.base),
        Entry::Closed { round, .. } => ("the end", *round),
        Entry::Evaluated { round, .. } => ("the judging", *round),
        Entry::TimePassed { round, .. } => ("the time", *round),
    };
    format!("{what} of round {round}")
}

/// Whether a checkpoint may stand after this entry.
fn ends_round(entry: &Entry) -> bool {
    matches!(entry, Entry::Closed { .. } | Entry::Evaluated { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_that_do_not_match_their_digest_are_named_with_a_remedy() {
        let entries = crate::journal::tests::all_kinds();
        let answers = entries.iter().filter_map(|entry| match entry {
            Entry::Update(answer) => Some(answer),
            _ => None,
        });
        let [with, without] = answers.collect::<Vec<_>>().try_into().unwrap();
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
        assert_eq!(describe_entry(&entries[0]), "the roll of round 3");
    }
}
