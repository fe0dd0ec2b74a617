//! `ebbflow resume`: resumes an interrupted run.

use std::path::Path;

use ebb_methods::Registry;
use ebb_record::{RunFolder, RunWriter};

use crate::args::Resume;
use crate::assemble::{Assembled, read_settings};
use crate::commands::run::finish;
use crate::output::{print_message, resume_command};
use crate::{CliError, PROGRAM};

pub(crate) fn run(registry: &Registry, args: &Resume) -> Result<(), CliError> {
    let (mut assembled, writer) =
        reopen(registry, &args.run, args.options.data_folder.data.as_deref(), args.options.threads())?;
    if !args.options.json && !args.options.quiet {
        let (done, all) = (assembled.engine.next(), assembled.run_table.rounds);
        print_message(&format!("resuming after round {done} of {all}"));
    }
    finish(&mut assembled, writer, &args.options)
}

/// Opens an unfinished run at its last checkpoint.
pub(crate) fn reopen(
    registry: &Registry,
    folder: &Path,
    data: Option<&Path>,
    threads: std::num::NonZeroUsize,
) -> Result<(Assembled, RunWriter), CliError> {
    if ebb_record::is_served(folder) {
        return Err(CliError::Usage(format!(
            "{}: this is a server's run; resume it with the command that began it: {}",
            folder.display(),
            resume_command(folder)
        )));
    }
    let record = RunFolder::open(folder)?;
    let (tree, base) = read_settings(folder, &[], data)?;
    let mut assembled = Assembled::new(registry, tree, &base, threads)?;
    let (found, ours) = (record.header(), assembled.header());
    let finished = record.summary()?.is_some();
    if !finished && (found.program.as_str(), found.kernels.as_str()) != (PROGRAM, ours.kernels.as_str()) {
        return Err(CliError::Usage(format!(
            "{}: begun by {} with {} kernels, but this is {PROGRAM} with {} kernels, whose results may differ. \
             Resume with that program, or repeat the run with: ebbflow run {}",
            folder.display(),
            found.program,
            found.kernels,
            ours.kernels,
            folder.display()
        )));
    }
    let (mut writer, state) = RunWriter::reopen(folder)?;
    writer.take_warnings().iter().for_each(|warning| print_message(&format!("warning: {warning}")));
    if let Some(state) = state {
        assembled.load(&state).map_err(|source| CliError::State { folder: folder.to_owned(), source })?;
    }
    Ok((assembled, writer))
}
