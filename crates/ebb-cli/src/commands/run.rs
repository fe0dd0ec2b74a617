//! `ebbflow run`: one configuration, one record.

use std::path::Path;

use ebb_methods::Registry;
use ebb_record::{RecordError, ReplaySummary, RunWriter, Summary};

use crate::CliError;
use crate::args::{Run, RunOptions};
use crate::assemble::{Assembled, override_seed, read_settings};
use crate::drive::{Ended, OnFailure, drive};
use crate::output::{
    bold, count, ending_text, format_absence_cost, format_bytes, format_duration, format_metric,
    format_percent, print_line, print_message, resume_command,
};
use crate::progress::{Progress, interrupt_flag};

pub(crate) fn run(registry: &Registry, args: &Run) -> Result<(), CliError> {
    let (mut tree, base) =
        read_settings(&args.file, &args.changes.set, args.options.data_folder.data.as_deref())?;
    if tree.has("grid") {
        let file = args.file.display();
        return Err(tree
            .error("grid", format!("this is a grid; run it with: ebbflow compare {file}"))
            .into());
    }
    override_seed(&mut tree, args.seed);
    let mut assembled = Assembled::new(registry, tree, &base, args.options.threads())?;
    let writer = match &args.out {
        Some(folder) => create(&assembled, folder)?,
        None => create_in_new_folder(&assembled, &args.file)?,
    };
    finish(&mut assembled, writer, &args.options)
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
    if let Some(key) = run.selection_key() {
        key.copy_to(folder)?;
    }
    Ok(writer)
}

/// Runs the remaining rounds and prints how the run ended.
pub(crate) fn finish(run: &mut Assembled, writer: RunWriter, how: &RunOptions) -> Result<(), CliError> {
    let folder = writer.folder().to_owned();
    if !how.json && !how.quiet {
        run.task.remarks().iter().for_each(|line| print_message(&format!("data: {line}")));
        run.fleet.world().remarks().iter().for_each(|line| print_message(&format!("world: {line}")));
        run.warnings.iter().for_each(|line| print_message(line));
    }
    let stop = interrupt_flag();
    let mut progress = Progress::new(how, run.engine.next(), run.run_table.rounds.get());
    let ended = drive(run, writer, &stop, OnFailure::Stop, &mut progress);
    drop(progress);
    if matches!(ended, Err(CliError::OutputClosed)) {
        print_message(&format!(
            "the output was closed; everything is saved. Resume with: {}",
            resume_command(&folder)
        ));
    }
    print_end(ended?, &folder, how)
}

/// Prints how a run ended.
pub(crate) fn print_end(ended: Ended, folder: &Path, how: &RunOptions) -> Result<(), CliError> {
    match ended {
        Ended::Interrupted => Err(CliError::Interrupted { resume: resume_command(folder) }),
        Ended::Stopped(why) => {
            Err(CliError::Stopped { folder: folder.to_owned(), why, resume: resume_command(folder) })
        }
        Ended::Finished(summary) if how.json => {
            let line =
                serde_json::json!({ "folder": folder.display().to_string(), "summary": summary.as_ref() });
            print_line(&line.to_string())
        }
        Ended::Finished(summary) => print_summary(&summary, folder),
    }
}

fn print_summary(summary: &Summary, folder: &Path) -> Result<(), CliError> {
    print_line(&bold(&rounds_done(summary)))?;
    for (name, mut text) in summary_lines(summary) {
        if name == "diverged" {
            text.push_str(": lower local.learning_rate, or set local.max_grad_norm");
        }
        print_line(&format!("{name:<14}{text}"))?;
    }
    print_line(&format!("record        {}", folder.display()))
}

/// The number of rounds, and why there are no more.
pub(crate) fn rounds_done(summary: &Summary) -> String {
    format!("{} ({})", count(summary.rounds, "round"), ending_text(&summary.ending))
}

/// The lines of a summary, each with its name.
pub(crate) fn summary_lines(summary: &Summary) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut add = |name: &str, text: String| all.push((name.to_owned(), text));
    if summary.final_accuracy.is_some() {
        add(
            "accuracy",
            format!(
                "{} at the end, {} at best (round {})",
                format_metric(summary.final_accuracy),
                format_metric(summary.best_accuracy),
                summary.best_round.map_or("-".to_owned(), |round| round.to_string()),
            ),
        );
    }
    for (k, &accuracy) in summary.top_k.iter().zip(&summary.top_k_accuracy) {
        add(&format!("top {k}"), format_metric(Some(accuracy)));
    }
    add("loss", format_metric(summary.final_loss));
    let responses = &summary.answers;
    add(
        "updates",
        format!(
            "{} whole, {} partial, {} late; {} absent, {} refused; no update from {}",
            responses.whole,
            responses.partial,
            responses.late,
            responses.absent,
            responses.refused,
            count(summary.never_responded, "client")
        ),
    );
    if let Some(replay) = &summary.replay {
        add("imputed", imputed_text(replay));
    }
    if summary.stand_ins > 0 {
        let share = summary.oracle_hit_share;
        let hits =
            share.map(|share| format!("; oracle: {} of the client's true cluster", format_percent(share)));
        add("stand-ins", format!("{}{}", summary.stand_ins, hits.unwrap_or_default()));
    }
    if let Some(psi) = summary.oracle_psi {
        add("oracle", format_absence_cost(psi));
    }
    if let Some(diverged) = &summary.diverged {
        let diverged_updates = count(diverged.answers, "update");
        let (client, round) = (diverged.client, diverged.round);
        add("diverged", format!("{diverged_updates}, the first of client {client} in round {round}"));
    }
    add("virtual time", format_duration(summary.virtual_s));
    add(
        "payload",
        format!(
            "{} down, {} up",
            format_bytes(summary.bytes_down as f64),
            format_bytes(summary.bytes_up as f64)
        ),
    );
    all
}

/// Which part of a replay is imputed.
pub(crate) fn imputed_text(replay: &ReplaySummary) -> String {
    let ReplaySummary { imputed_by, asked: selected, imputed, imputed_share, asked_down: selected_down } =
        replay;
    let share = format_percent(*imputed_share);
    format!(
        "{share} of the selections: {imputed} of {selected}, imputed by {imputed_by}; {selected_down} selected while down"
    )
}

/// Makes the first free folder below `runs/` that is named after the configuration.
pub(crate) fn create_in_new_folder(run: &Assembled, file: &Path) -> Result<RunWriter, CliError> {
    let record = if file.is_dir() { Some(file) } else { file.parent() };
    let repeats = file.is_dir() || file.file_name().is_some_and(|name| name == "settings.toml");
    let name = if repeats { record.and_then(Path::file_name) } else { file.file_stem() };
    let name = name.map_or("run".to_owned(), |name| name.to_string_lossy().into_owned());
    for number in 1_u32.. {
        let name = if number == 1 { name.clone() } else { format!("{name}-{number}") };
        match create(run, &Path::new("runs").join(name)) {
            // The name is taken, perhaps since a moment ago by another process.
            Err(CliError::Record(RecordError::Exists { .. } | RecordError::Locked { .. })) => {}
            created => return created,
        }
    }
    unreachable!("some number is free")
}
