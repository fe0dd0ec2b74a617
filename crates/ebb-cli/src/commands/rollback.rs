//! `ebbflow rollback`: rolls a simulated or served run back to an earlier checkpoint.

use ebb_net::JournalRollback;
use ebb_record::{Rollback, is_served};

use crate::CliError;
use crate::args::RollbackArgs;
use crate::assemble::journal_entry;
use crate::output::{count, print_line, print_message, resume_command, this_command};
use crate::permissions::{foreign_owner, restrict_umask};

pub(crate) fn run(args: &RollbackArgs) -> Result<(), CliError> {
    let folder = &args.run;
    // New files must be readable for the user who resumes the run.
    if let Some(owner) = foreign_owner(folder) {
        return Err(CliError::Usage(format!(
            "{}: the folder belongs to user id {owner}; run this command as that user: sudo -u '#{owner}' {}",
            folder.display(),
            this_command()
        )));
    }
    if is_served(folder) {
        restrict_umask();
    }
    let back = Rollback::find(folder, args.to)?;
    back.warnings().iter().for_each(|warning| print_message(&format!("warning: {warning}")));
    let (round, lost) = (back.next_round(), back.n_lost_rounds()?);
    let served = is_served(folder);
    let unusable = |error: ebb_net::ServeError| CliError::Unavailable(error.to_string());
    let journal = if served {
        let state = |source| CliError::State { folder: folder.clone(), source };
        let entry = back.state().map_or(Ok(0), journal_entry).map_err(state)?;
        // The journal first, because a server does not start until the folder is rolled back as well.
        Some(JournalRollback::begin(folder, entry, round).map_err(unusable)?)
    } else {
        None
    };
    let kept = back.finish()?;
    if let Some(journal) = journal {
        journal.finish().map_err(unusable)?;
    }
    print_line(&format!(
        "{}: rolled back to round {round}; {} will be played again",
        folder.display(),
        count(u64::from(lost), "round")
    ))?;
    if let Some(kept) = kept {
        print_line(&format!("the rows after it are kept in {}", kept.display()))?;
    }
    if served {
        print_line(
            "clients get new jobs, and updates of later rounds are void; ebbflow revoke shuts out a hostile client",
        )?;
    }
    print_line(&format!("resume with: {}", resume_command(folder)))
}
