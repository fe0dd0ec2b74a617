//! `ebbflow revoke`: shuts clients out; a server that runs notices within a second.

use std::fs::OpenOptions;
use std::io::Write;

use ebb_net::{KEY, REVOKED};

use crate::CliError;
use crate::args::Revoke;
use crate::output::note;

pub(crate) fn run(args: &Revoke) -> Result<(), CliError> {
    if !args.folder.join(KEY).exists() {
        let folder = args.folder.display();
        return Err(CliError::Usage(format!("{folder}: not the folder of a server's run")));
    }
    let file = args.folder.join(REVOKED);
    let lines: String = args.clients.iter().map(|client| format!("{client}\n")).collect();
    let write = || {
        let mut to = OpenOptions::new().append(true).create(true).open(&file)?;
        to.write_all(lines.as_bytes())?;
        to.sync_all()
    };
    write().map_err(|error| CliError::file("writing", &file, error))?;
    note("shut out; the server notices within a second, or when it is started");
    Ok(())
}
