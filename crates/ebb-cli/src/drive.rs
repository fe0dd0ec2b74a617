//! Runs the rounds of a run: writes rows and checkpoints, and decides when it stops.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ebb_record::{RecordError, Row, RunWriter, SpillFile, Summary};
use ebb_round::{Fleet, RoundNo, vectors};

use crate::CliError;
use crate::assemble::Assembled;
use crate::output::print_message;

/// Models with at most this many parameters are printed and recorded after every round.
const SHOWN_PARAMS: usize = 16;

/// Above this many possible pairs of clients, the similarity matrix is recorded only at the end.
const MAX_RECORDED_PAIRS: usize = 2_000_000;

/// The ending of a run whose model is not finite.
const DIVERGED: &str = "diverged";

/// The ending of a run with too many void rounds in a row.
const VOID: &str = "void";

/// A run stops after this many rounds in a row without a finite update: no client can train from that model.
const MOST_NOT_FINITE: u32 = 5;

/// How a call of [`drive`] ended.
#[derive(Debug)]
pub enum Ended {
    /// The run is finished.
    Finished(Box<Summary>),
    /// The run was interrupted after a round, and a checkpoint was written.
    Interrupted,
    /// The run stopped by itself before its end.
    Stopped(StopReason),
}

/// Why a run stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model is not finite. The last checkpoint is older.
    Diverged {
        /// The first round after which the model was not finite.
        round: RoundNo,
    },
    /// For several rounds, all that came back were numbers that are not finite. The last checkpoint is older.
    NothingFinite {
        /// The number of such rounds in a row.
        rounds: u32,
        /// The last such round.
        last: RoundNo,
        /// Whether the run has a guard; then its model did not change.
        guarded: bool,
    },
    /// Too many rounds in a row were void. The checkpoint holds the model of before them.
    Void {
        /// The number of void rounds in a row.
        rounds: u32,
        /// The last void round.
        last: RoundNo,
    },
}

/// What to do with a run that diverged or had too many void rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Stop the run without finishing it.
    Stop,
    /// Finish the run with that as its result, as in a grid.
    Finish,
}

/// Observes a run while it is driven.
pub trait RunObserver {
    /// A round was recorded, as this line of JSON.
    fn round(&mut self, row: &Row, line: &str) -> Result<(), CliError>;

    /// Reports a problem that does not stop the run.
    fn warn(&mut self, message: &str) {
        print_message(&format!("warning: {message}"));
    }
}

/// Runs all remaining rounds.
pub fn drive<F: Fleet>(
    run: &mut Assembled<F>,
    mut writer: RunWriter,
    stop: &AtomicBool,
    on_failure: OnFailure,
    observer: &mut dyn RunObserver,
) -> Result<Ended, CliError> {
    let folder = writer.folder().to_owned();
    let broken = |error: RecordError| CliError::RecordFailed {
        folder: folder.clone(),
        source: Box::new(CliError::Record(error)),
    };
    run.engine.set_spill_store(Box::new(SpillFile::new(&folder)));
    writer.set_keep_every(run.run_table.keep_every());
    let mut ending = "rounds";
    let mut not_finite_rounds = 0;
    // Whether a due checkpoint could not be written, or was postponed because the model is of no use.
    let (mut checkpoint_failed, mut checkpoint_deferred) = (false, false);
    while run.engine.next() < run.run_table.rounds.get() {
        let began = Instant::now();
        let (row, reached) = play_round(run)?;
        let line = writer.append(&row).map_err(broken)?;
        writer.take_warnings().iter().for_each(|warning| observer.warn(warning));
        writer.add_wall_time(row.round, began.elapsed().as_secs_f64()).map_err(broken)?;
        let observed = observer.round(&row, &line);
        if reached == Some(DIVERGED) && on_failure == OnFailure::Stop {
            return Ok(Ended::Stopped(StopReason::Diverged { round: row.round }));
        }
        // A run that resumes after it stopped may have as many void rounds again.
        let void_rounds = run.engine.void_rounds();
        let is_many = |most: NonZeroU32| void_rounds > 0 && void_rounds.is_multiple_of(most.get());
        let too_many_void = row.void.is_some() && run.max_void.is_some_and(is_many);
        if too_many_void && on_failure == OnFailure::Finish {
            ending = VOID;
            break;
        }
        if too_many_void {
            writer.checkpoint(&run.save()).map_err(broken)?;
            return Ok(Ended::Stopped(StopReason::Void { rounds: void_rounds, last: row.round }));
        }
        not_finite_rounds = if row.has_no_finite_update() { not_finite_rounds + 1 } else { 0 };
        if not_finite_rounds == MOST_NOT_FINITE && on_failure == OnFailure::Stop {
            let guarded = run.max_void.is_some();
            if guarded {
                // The model did not change, so the run can resume from here with other clients.
                writer.checkpoint(&run.save()).map_err(broken)?;
            }
            return Ok(Ended::Stopped(StopReason::NothingFinite {
                rounds: not_finite_rounds,
                last: row.round,
                guarded,
            }));
        }
        let last = reached.is_some() || run.engine.next() == run.run_table.rounds.get();
        let interrupted = stop.load(Ordering::Relaxed) || observed.is_err();
        let due = run.engine.next().is_multiple_of(run.run_table.checkpoint_every.get());
        // Not for a mere interruption: a finished run must not show it.
        if !last && due && n_possible_pairs(run) <= MAX_RECORDED_PAIRS {
            // An error here is no loss: the writer tries again before the checkpoint, and reports why it
            // fails.
            let _ = record_similarity(run, &mut writer);
        }
        // A model from which no client can train is not worth a checkpoint.
        let is_finite = not_finite_rounds == 0;
        checkpoint_deferred |= due && !is_finite;
        if !last && is_finite && (interrupted || due || checkpoint_failed || checkpoint_deferred) {
            checkpoint_deferred = false;
            // The model is finite here, because a diverged run has returned above.
            let kept = writer.checkpoint(&run.save());
            match &kept {
                Ok(()) => {
                    run.fleet.on_state_saved();
                    if std::mem::take(&mut checkpoint_failed) {
                        observer.warn(&format!("the checkpoint after {} rounds was written at last", run.engine.next()));
                    }
                }
                Err(error) if !std::mem::replace(&mut checkpoint_failed, true) && !interrupted => observer.warn(&format!(
                    "{error}; the last checkpoint is intact, the run continues, and writing is retried after every round"
                )),
                Err(_) => {}
            }
            if interrupted {
                kept.map_err(broken)?;
            }
        }
        if !last && interrupted {
            observed?;
            return Ok(Ended::Interrupted);
        }
        if let Some(reached) = reached {
            ending = reached;
            break;
        }
    }
    record_similarity(run, &mut writer).map_err(broken)?;
    let target = run.stop.accuracy.map(ebb_settings::Probability::get);
    let model = &run.engine.model().model;
    let summary =
        writer.finish(ending, run.layout(), model, target, run.engine.client_influence()).map_err(broken)?;
    Ok(Ended::Finished(Box::new(summary)))
}

/// Plays the next round; returns its row, and the ending if the run ends with it.
pub(crate) fn play_round<F: Fleet>(run: &mut Assembled<F>) -> Result<(Row, Option<&'static str>), CliError> {
    let mut outcome = run.engine.round(&mut run.fleet, &mut run.evaluator)?;
    run.evaluator.check()?;
    let reached = reason_to_end(run, &outcome);
    let (model, census, shares) = (run.engine.model(), run.engine.census(), run.engine.shares());
    if reached.is_some() && outcome.score.is_none() {
        // The last round is always evaluated.
        outcome.score = run.evaluator.evaluate_now(outcome.number, model, census, shares)?;
    }
    let shown = (model.model.len() <= SHOWN_PARAMS).then_some(model.model.as_slice());
    Ok((Row::new(census, &outcome, shown), reached))
}

/// How many pairs of clients could have met.
fn n_possible_pairs<F>(run: &Assembled<F>) -> usize {
    let n_clients = run.engine.census().n_enrolled();
    n_clients * n_clients.saturating_sub(1) / 2
}

/// Records the similarity matrix, if the substitution estimates one.
fn record_similarity<F>(run: &Assembled<F>, writer: &mut RunWriter) -> Result<(), RecordError> {
    match run.engine.similarity_matrix() {
        Some(all) => writer.add_similarities(&all),
        None => Ok(()),
    }
}

/// Why the run ends here, if it does.
fn reason_to_end<F>(run: &Assembled<F>, outcome: &ebb_round::Outcome) -> Option<&'static str> {
    if !vectors::all_finite(&run.engine.model().model) {
        return Some(DIVERGED);
    }
    let stop = &run.stop;
    let cost = outcome.total_cost;
    let accuracy = outcome.score.as_ref().and_then(|score| score.accuracy);
    if stop.accuracy.is_some_and(|target| accuracy.is_some_and(|accuracy| accuracy >= target.get())) {
        Some("accuracy")
    } else if stop.virtual_hours.is_some_and(|hours| cost.elapsed_s >= 3600.0 * hours.get()) {
        Some("virtual-hours")
    } else if stop.bytes.is_some_and(|bytes| cost.bytes_down + cost.bytes_up >= bytes) {
        Some("bytes")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::num::NonZeroUsize;
    use std::path::{Path, PathBuf};

    use ebb_methods::Registry;

    use super::*;
    use crate::assemble::read_settings;
    use crate::commands::run::create;

    const SETTINGS: &str = "recipe = \"dropout\"\n[run]\nrounds = 9\ncheckpoint_every = 2\nkeep_checkpoints = 2\n[data]\n\
                            kind = \"quadratic\"\ncentres = [[1.0], [3.0]]\n[local]\nlearning_rate = 0.1\nsteps = 1\n";

    /// A run in a folder of this name, and its writer.
    fn make(place: &Path, name: &str, settings: &str) -> (Assembled, RunWriter) {
        let file = place.join("run.toml");
        fs::write(&file, settings).unwrap();
        let (tree, base) = read_settings(&file, &[], None).unwrap();
        let run = Assembled::new(&Registry::standard(), tree, &base, NonZeroUsize::MIN).unwrap();
        let writer = create(&run, &place.join(name)).unwrap();
        (run, writer)
    }

    /// The file names in a folder, without the one that holds times.
    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| name(entry.unwrap())).collect();
        names.retain(|name| name != "wall.jsonl");
        names.sort();
        names
    }

    /// Notes which checkpoints exist when a round is recorded, and collects the warnings.
    struct Onlooker {
        folder: PathBuf,
        checkpoints: Vec<Vec<u32>>,
        warnings: Vec<String>,
    }

    impl RunObserver for Onlooker {
        fn round(&mut self, _: &Row, _: &str) -> Result<(), CliError> {
            let number = |name: String| name.strip_prefix("checkpoint-")?.strip_suffix(".ebb")?.parse().ok();
            self.checkpoints.push(names(&self.folder).into_iter().filter_map(number).collect());
            Ok(())
        }

        fn warn(&mut self, message: &str) {
            self.warnings.push(message.to_owned());
        }
    }

    fn drive_to_end(
        place: &Path,
        name: &str,
        obstacles: &[&str],
        stop: bool,
    ) -> (Result<Ended, CliError>, Onlooker) {
        let (mut run, writer) = make(place, name, SETTINGS);
        let folder = place.join(name);
        obstacles.iter().for_each(|name| fs::create_dir(folder.join(name)).unwrap());
        let mut onlooker = Onlooker { folder, checkpoints: Vec::new(), warnings: Vec::new() };
        let ended = drive(&mut run, writer, &AtomicBool::new(stop), OnFailure::Stop, &mut onlooker);
        (ended, onlooker)
    }

    #[test]
    fn a_checkpoint_that_cannot_be_written_is_retried_and_the_run_continues() {
        let place = tempfile::tempdir().unwrap();
        let (ended, undisturbed) = drive_to_end(place.path(), "undisturbed", &[], false);
        assert!(matches!(ended, Ok(Ended::Finished(_))), "{ended:?}");
        // Of rounds 2, 4, 6 and 8 the last two are kept, and every second one for good: 4 and 8.
        let expected: [&[u32]; 9] = [&[], &[], &[2], &[2], &[2, 4], &[2, 4], &[4, 6], &[4, 6], &[4, 6, 8]];
        assert_eq!(undisturbed.checkpoints, expected);
        assert_eq!(undisturbed.warnings, [""; 0]);

        let obstacles = ["checkpoint-000004.ebb.new", "checkpoint-000005.ebb.new"];
        let (ended, disturbed) = drive_to_end(place.path(), "disturbed", &obstacles, false);
        assert!(matches!(ended, Ok(Ended::Finished(_))), "{ended:?}");
        let expected: [&[u32]; 9] = [&[], &[], &[2], &[2], &[2], &[2], &[2, 6], &[2, 6], &[6, 8]];
        assert_eq!(disturbed.checkpoints, expected);
        let [failed, recovered] = disturbed.warnings.try_into().unwrap();
        assert!(
            failed.contains("checkpoint-000004.ebb: ") && failed.contains("the run continues"),
            "{failed}"
        );
        assert!(recovered.contains("after 6 rounds was written at last"), "{recovered}");
        let folder = place.path().join("disturbed");
        obstacles.iter().for_each(|name| fs::remove_dir(folder.join(name)).unwrap());
        assert_eq!(names(&folder), names(&place.path().join("undisturbed")));
        for name in names(&folder) {
            let of = |run: &str| fs::read(place.path().join(run).join(&name)).unwrap();
            assert!(of("disturbed") == of("undisturbed"), "{name}");
        }
    }

    #[test]
    fn a_run_that_diverges_keeps_the_checkpoints_of_before() {
        let place = tempfile::tempdir().unwrap();
        // The model grows by 1e20 a round, to 1.5e19 after two. A loss beyond that would be refused before
        // the model is infinite.
        let settings = SETTINGS
            .replace("checkpoint_every = 2", "checkpoint_every = 1")
            .replace("centres = [[1.0], [3.0]]", "centres = [[0.0], [0.0]]\nstart = [1.5e-21]")
            .replace("learning_rate = 0.1", "learning_rate = 0.5")
            + "[server]\nkind = \"fedavgm\"\nlearning_rate = 2e20\nmomentum = 0.0\n";
        let (mut run, writer) = make(place.path(), "run", &settings);
        let folder = place.path().join("run");
        let mut onlooker = Onlooker { folder: folder.clone(), checkpoints: Vec::new(), warnings: Vec::new() };
        let ended = drive(&mut run, writer, &AtomicBool::new(false), OnFailure::Stop, &mut onlooker).unwrap();
        let Ended::Stopped(StopReason::Diverged { round }) = ended else { panic!("{ended:?}") };
        let last = onlooker.checkpoints.pop().unwrap();
        assert_eq!((round, last.as_slice()), (2, &[1, 2][..]));
        let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
        assert_eq!((Some(&writer.next_round()), writer.take_warnings().len()), (last.last(), 0));
        run.load(&state.unwrap()).unwrap();
        assert!(vectors::all_finite(&run.engine.model().model));
    }

    #[test]
    fn a_run_that_is_to_stop_and_cannot_be_saved_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let (ended, _) = drive_to_end(place.path(), "run", &["checkpoint-000001.ebb.new"], true);
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("checkpoint-000001.ebb: ") && error.contains("the run stopped"), "{error}");
        let (ended, _) = drive_to_end(place.path(), "again", &[], true);
        assert!(matches!(ended, Ok(Ended::Interrupted)), "{ended:?}");
    }
}
