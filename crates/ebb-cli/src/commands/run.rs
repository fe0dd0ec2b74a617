//! `ebbflow run`: one configuration, one record.

use std::path::{Path, PathBuf};

use ebb_methods::Registry;
use ebb_record::{RunWriter, Summary};

use crate::CliError;
use crate::args::{How, Run};
use crate::assemble::{Assembled, put_seed, read_settings};
use crate::drive::{Ended, drive};
use crate::output::{bold, bytes, duration, figure, say};
use crate::progress::{Progress, interruption};

pub(crate) fn run(registry: &Registry, args: &Run) -> Result<(), CliError> {
    let (mut tree, base) = read_settings(&args.file, &args.changes.set)?;
    if tree.has("grid") {
        let file = args.file.display();
        return Err(tree
            .error("grid", format!("this is a grid; run it with: ebbflow compare {file}"))
            .into());
    }
    put_seed(&mut tree, args.seed);
    let mut assembled = Assembled::new(registry, tree, &base, args.how.threads())?;
    let folder = args.out.clone().unwrap_or_else(|| free_folder(&args.file));
    let writer = create(&assembled, &folder)?;
    finish(&mut assembled, writer, &args.how)
}

/// Makes the folder of a new run.
pub(crate) fn create(run: &Assembled, folder: &Path) -> Result<RunWriter, CliError> {
    Ok(RunWriter::create(
        folder,
        &run.header(),
        &run.resolved,
        run.start_model().map(|model| (run.layout(), model)),
    )?)
}

/// Runs what is left and says how it ended.
pub(crate) fn finish(run: &mut Assembled, writer: RunWriter, how: &How) -> Result<(), CliError> {
    let folder = writer.folder().to_owned();
    let stop = interruption();
    let mut progress = Progress::new(how, run.engine.next(), run.run.rounds.get());
    let ended = drive(run, writer, &stop, &mut progress)?;
    drop(progress);
    match ended {
        Ended::Interrupted => {
            Err(CliError::Interrupted { resume: format!("ebbflow resume {}", folder.display()) })
        }
        Ended::Finished(summary) if how.json => {
            let line = serde_json::json!({ "folder": folder, "summary": summary.as_ref() });
            say(&line.to_string())
        }
        Ended::Finished(summary) => say_summary(&summary, &folder),
    }
}

fn say_summary(summary: &Summary, folder: &Path) -> Result<(), CliError> {
    let why = match summary.ending.as_str() {
        "rounds" => "all rounds done",
        "accuracy" => "target accuracy reached",
        "virtual-hours" => "virtual time spent",
        "bytes" => "bytes spent",
        other => other,
    };
    say(&bold(&format!("{} rounds ({why})", summary.rounds)))?;
    if summary.final_accuracy.is_some() {
        say(&format!(
            "accuracy      {} at the end, {} at best (round {})",
            figure(summary.final_accuracy),
            figure(summary.best_accuracy),
            summary.best_round.map_or("-".to_owned(), |round| round.to_string()),
        ))?;
    }
    say(&format!("loss          {}", figure(summary.final_loss)))?;
    let answers = &summary.answers;
    say(&format!(
        "answers       {} whole, {} partial, {} late; {} silent, {} refused; {} clients never heard",
        answers.whole, answers.partial, answers.late, answers.absent, answers.refused, summary.never_heard
    ))?;
    say(&format!("virtual time  {}", duration(summary.virtual_s)))?;
    say(&format!(
        "payload       {} down, {} up",
        bytes(summary.bytes_down as f64),
        bytes(summary.bytes_up as f64)
    ))?;
    say(&format!("record        {}", folder.display()))
}

/// The first folder below `runs/` that is not taken.
fn free_folder(file: &Path) -> PathBuf {
    let is_record = file.is_dir() || file.file_name().is_some_and(|name| name == "settings.toml");
    let named = if file.is_dir() || !is_record { Some(file) } else { file.parent() };
    let stem =
        named.and_then(Path::file_stem).map_or("run".to_owned(), |stem| stem.to_string_lossy().into_owned());
    let taken = |folder: &PathBuf| folder.exists();
    let first = Path::new("runs").join(&stem);
    if !taken(&first) {
        return first;
    }
    let numbered = |number: u32| Path::new("runs").join(format!("{stem}-{number}"));
    (2..).map(numbered).find(|folder| !taken(folder)).expect("some number is free")
}
