//! Drives a run from round to round: records, checkpoints, and stops when it should.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ebb_record::{Row, RunWriter, Summary};

use crate::CliError;
use crate::assemble::Assembled;

/// Models up to this size are printed and recorded after every round.
const SHOWN_PARAMS: usize = 16;

/// How a run ended, for now.
#[derive(Debug)]
pub enum Ended {
    /// It is finished.
    Finished(Box<Summary>),
    /// It was interrupted after a round, and a checkpoint was written.
    Interrupted,
}

/// Somebody who looks on.
pub trait Watch {
    /// A round was recorded, as this line of JSON.
    fn round(&mut self, row: &Row, line: &str) -> Result<(), CliError>;
}

/// Runs all rounds that are left.
pub fn drive(
    run: &mut Assembled,
    mut writer: RunWriter,
    stop: &AtomicBool,
    watch: &mut dyn Watch,
) -> Result<Ended, CliError> {
    let folder = writer.folder().to_owned();
    let broken = |error: ebb_record::RecordError| CliError::Broken {
        folder: folder.clone(),
        source: Box::new(CliError::Record(error)),
    };
    let mut ending = "rounds";
    while run.engine.next() < run.run.rounds.get() {
        let began = Instant::now();
        let outcome = run.engine.round(&mut run.fleet, &mut run.evaluator)?;
        let model = run.engine.model().model.as_slice();
        let row = Row::new(run.engine.census(), &outcome, (model.len() <= SHOWN_PARAMS).then_some(model));
        let line = writer.append(&row).map_err(broken)?;
        writer.wall(outcome.number, began.elapsed().as_secs_f64()).map_err(broken)?;
        watch.round(&row, &line)?;
        if let Some(reached) = reached(run, &outcome) {
            ending = reached;
            break;
        }
        let interrupted = stop.load(Ordering::Relaxed);
        let last = run.engine.next() == run.run.rounds.get();
        if !last && (interrupted || run.engine.next().is_multiple_of(run.run.checkpoint_every.get())) {
            writer.checkpoint(&run.save()).map_err(broken)?;
        }
        if !last && interrupted {
            return Ok(Ended::Interrupted);
        }
    }
    let target = run.stop.accuracy.map(ebb_settings::Chance::get);
    let model = &run.engine.model().model;
    let summary = writer.finish(ending, run.layout(), model, target).map_err(broken)?;
    Ok(Ended::Finished(Box::new(summary)))
}

/// Which of the stop conditions is met.
fn reached(run: &Assembled, outcome: &ebb_round::Outcome) -> Option<&'static str> {
    let stop = &run.stop;
    let spent = outcome.spent_so_far;
    let accuracy = outcome.score.and_then(|score| score.accuracy);
    if stop.accuracy.is_some_and(|target| accuracy.is_some_and(|accuracy| accuracy >= target.get())) {
        Some("accuracy")
    } else if stop.virtual_hours.is_some_and(|hours| spent.elapsed_s >= 3600.0 * hours.get()) {
        Some("virtual-hours")
    } else if stop.bytes.is_some_and(|bytes| spent.bytes_down + spent.bytes_up >= bytes) {
        Some("bytes")
    } else {
        None
    }
}
