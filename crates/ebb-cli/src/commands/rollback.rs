//! `ebbflow rollback`: a run, simulated or served, goes back to an earlier checkpoint.

use ebb_net::JournalRollback;
use ebb_record::{Rollback, is_served};

use crate::CliError;
use crate::args::RollbackArgs;
use crate::assemble::journal_entry;
use crate::output::{count, print_line, print_note, resume_command, this_command};
use crate::permissions::{foreign_owner, restrict_umask};

pub(crate) fn run(args: &RollbackArgs) -> Result<(), CliError> {
    let folder = &args.run;
    // What is made in it must be readable for whoever goes on.
    if let Some(owner) = foreign_owner(folder) {
        return Err(CliError::Usage(format!(
            "{}: it belongs to the user with the number {owner}; run this as that user: sudo -u '#{owner}' {}",
            folder.display(),
            this_command()
        )));
    }
    if is_served(folder) {
        restrict_umask();
    }
    let back = Rollback::find(folder, args.to)?;
    back.warnings().iter().for_each(|warning| print_note(&format!("warning: {warning}")));
    let (round, lost) = (back.next_round(), back.n_lost_rounds()?);
    let served = is_served(folder);
    let unusable = |error: ebb_net::ServeError| CliError::Unavailable(error.to_string());
    let journal = if served {
        let state = |source| CliError::State { folder: folder.clone(), source };
        let entry = back.state().map_or(Ok(0), journal_entry).map_err(state)?;
        // First, for a server does not start until the folder is back as well.
        Some(JournalRollback::begin(folder, entry, round).map_err(unusable)?)
    } else {
        None
    };
    let kept = back.finish()?;
    if let Some(journal) = journal {
        journal.finish().map_err(unusable)?;
    }
    print_line(&format!(
        "{}: back after round {round}; {} will be played anew",
        folder.display(),
        count(u64::from(lost), "round")
    ))?;
    if let Some(kept) = kept {
        print_line(&format!("what was recorded after it is kept in {}", kept.display()))?;
    }
    if served {
        print_line(
            "clients are asked anew, and what they were asked since then is void; ebbflow revoke shuts out who is to blame",
        )?;
    }
    print_line(&format!("go on with: {}", resume_command(folder)))
}
