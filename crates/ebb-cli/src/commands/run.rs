//! `ebbflow run`: one configuration, one record.

use std::path::Path;

use ebb_methods::Registry;
use ebb_record::{RecordError, ReplaySummary, RunWriter, Summary};

use crate::CliError;
use crate::args::{How, Run};
use crate::assemble::{Assembled, put_seed, read_settings};
use crate::drive::{Ended, OnFailure, drive};
use crate::output::{bold, bytes, cost, count, duration, ending, figure, note, percent, resume_command, say};
use crate::progress::{Progress, interruption};

pub(crate) fn run(registry: &Registry, args: &Run) -> Result<(), CliError> {
    let (mut tree, base) = read_settings(&args.file, &args.changes.set, args.how.place.data.as_deref())?;
    if tree.has("grid") {
        let file = args.file.display();
        return Err(tree
            .error("grid", format!("this is a grid; run it with: ebbflow compare {file}"))
            .into());
    }
    put_seed(&mut tree, args.seed);
    let mut assembled = Assembled::new(registry, tree, &base, args.how.threads())?;
    let writer = match &args.out {
        Some(folder) => create(&assembled, folder)?,
        None => create_anywhere(&assembled, &args.file)?,
    };
    finish(&mut assembled, writer, &args.how)
}

/// Makes the folder of a new run.
pub(crate) fn create(run: &Assembled, folder: &Path) -> Result<RunWriter, CliError> {
    let writer = RunWriter::create_replay(
        folder,
        &run.header(),
        &run.resolved,
        run.start_model().map(|model| (run.layout(), model)),
        run.fleet.world().replayed_rounds(),
    )?;
    if let Some(key) = run.draw_key() {
        key.copy_to(folder)?;
    }
    Ok(writer)
}

/// Runs what is left and says how it ended.
pub(crate) fn finish(run: &mut Assembled, writer: RunWriter, how: &How) -> Result<(), CliError> {
    let folder = writer.folder().to_owned();
    if !how.json && !how.quiet {
        run.task.remarks().iter().for_each(|line| note(&format!("data: {line}")));
        run.fleet.world().remarks().iter().for_each(|line| note(&format!("world: {line}")));
        run.notes.iter().for_each(|line| note(line));
    }
    let stop = interruption();
    let mut progress = Progress::new(how, run.engine.next(), run.run.rounds.get());
    let ended = drive(run, writer, &stop, OnFailure::Stop, &mut progress);
    drop(progress);
    if matches!(ended, Err(CliError::OutputClosed)) {
        note(&format!("the output was closed; everything is saved. Go on with: {}", resume_command(&folder)));
    }
    say_ended(ended?, &folder, how)
}

/// Says how a run ended.
pub(crate) fn say_ended(ended: Ended, folder: &Path, how: &How) -> Result<(), CliError> {
    match ended {
        Ended::Interrupted => Err(CliError::Interrupted { resume: resume_command(folder) }),
        Ended::Stopped(why) => {
            Err(CliError::Stopped { folder: folder.to_owned(), why, resume: resume_command(folder) })
        }
        Ended::Finished(summary) if how.json => {
            let line =
                serde_json::json!({ "folder": folder.display().to_string(), "summary": summary.as_ref() });
            say(&line.to_string())
        }
        Ended::Finished(summary) => say_summary(&summary, folder),
    }
}

fn say_summary(summary: &Summary, folder: &Path) -> Result<(), CliError> {
    say(&bold(&rounds_done(summary)))?;
    for (name, mut figures) in figures(summary) {
        if name == "diverged" {
            figures.push_str(": lower local.rate, or set local.clip_norm");
        }
        say(&format!("{name:<14}{figures}"))?;
    }
    say(&format!("record        {}", folder.display()))
}

/// How many rounds there were, and why no more.
pub(crate) fn rounds_done(summary: &Summary) -> String {
    format!("{} ({})", count(summary.rounds, "round"), ending(&summary.ending))
}

/// What a run came to, each with its name.
pub(crate) fn figures(summary: &Summary) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut add = |name: &str, figures: String| all.push((name.to_owned(), figures));
    if summary.final_accuracy.is_some() {
        add(
            "accuracy",
            format!(
                "{} at the end, {} at best (round {})",
                figure(summary.final_accuracy),
                figure(summary.best_accuracy),
                summary.best_round.map_or("-".to_owned(), |round| round.to_string()),
            ),
        );
    }
    for (k, &accuracy) in summary.top_k.iter().zip(&summary.top_k_accuracy) {
        add(&format!("top {k}"), figure(Some(accuracy)));
    }
    add("loss", figure(summary.final_loss));
    let answers = &summary.answers;
    add(
        "answers",
        format!(
            "{} whole, {} partial, {} late; {} silent, {} refused; {} never heard",
            answers.whole,
            answers.partial,
            answers.late,
            answers.absent,
            answers.refused,
            count(summary.never_heard, "client")
        ),
    );
    if let Some(replay) = &summary.replay {
        add("imputed", imputed(replay));
    }
    if summary.stand_ins > 0 {
        let share = summary.oracle_hit_share;
        let hits = share.map(|share| format!("; oracle: {} of the client's true cluster", percent(share)));
        add("stand-ins", format!("{}{}", summary.stand_ins, hits.unwrap_or_default()));
    }
    if let Some(psi) = summary.oracle_psi {
        add("oracle", cost(psi));
    }
    if let Some(diverged) = &summary.diverged {
        let answers = count(diverged.answers, "answer");
        let (client, round) = (diverged.client, diverged.round);
        add("diverged", format!("{answers}, the first of client {client} in round {round}"));
    }
    add("virtual time", duration(summary.virtual_s));
    add(
        "payload",
        format!("{} down, {} up", bytes(summary.bytes_down as f64), bytes(summary.bytes_up as f64)),
    );
    all
}

/// How much of a replay is a guess.
pub(crate) fn imputed(replay: &ReplaySummary) -> String {
    let ReplaySummary { imputed_by, asked, imputed, imputed_share, asked_down } = replay;
    let share = percent(*imputed_share);
    format!(
        "{share} of what was asked: {imputed} of {asked}, guessed by {imputed_by}; {asked_down} asked while down"
    )
}

/// Makes the first folder below `runs/` that is not taken, named after the configuration.
pub(crate) fn create_anywhere(run: &Assembled, file: &Path) -> Result<RunWriter, CliError> {
    let record = if file.is_dir() { Some(file) } else { file.parent() };
    let repeats = file.is_dir() || file.file_name().is_some_and(|name| name == "settings.toml");
    let name = if repeats { record.and_then(Path::file_name) } else { file.file_stem() };
    let name = name.map_or("run".to_owned(), |name| name.to_string_lossy().into_owned());
    for number in 1_u32.. {
        let name = if number == 1 { name.clone() } else { format!("{name}-{number}") };
        match create(run, &Path::new("runs").join(name)) {
            // Taken, perhaps only just now by another process.
            Err(CliError::Record(RecordError::Exists { .. } | RecordError::Locked { .. })) => {}
            made => return made,
        }
    }
    unreachable!("some number is free")
}
