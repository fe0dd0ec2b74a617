//! `ebbflow revoke`: revokes clients, which a running server notices within a second, and tokens.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use ebb_net::tokens::{Key, give_to_owner_of_folder};
use ebb_net::{KEY_FILE, REVOKED_FILE};
use ebb_record::RunFolder;

use crate::CliError;
use crate::args::Revoke;
use crate::output::print_message;
use crate::permissions::restrict_umask;

pub(crate) fn run(args: &Revoke) -> Result<(), CliError> {
    if !args.folder.join(KEY_FILE).exists() {
        let folder = args.folder.display();
        return Err(CliError::Usage(format!(
            "{folder}: not the folder of a server's run; give the --out folder of ebbflow serve"
        )));
    }
    restrict_umask();
    // Tokens first, because a revoked client could enrol anew with one.
    if args.tokens {
        Key::void_tokens(&args.folder)
            .map_err(|error| CliError::file("writing a key in", &args.folder, error))?;
        print_message("all tokens made before are revoked; clients that enrolled stay");
    }
    if !args.clients.is_empty() {
        append_revoked(args)?;
        for client in never_enrolled(args) {
            print_message(&format!(
                "client {client}: no recorded round has a client of this number; if none enrolled since, the number stays unused"
            ));
        }
        print_message("revoked; the server notices within a second, or when it is started");
    }
    Ok(())
}

/// The clients that never enrolled, as far as the record tells.
fn never_enrolled(args: &Revoke) -> Vec<u32> {
    let rows = RunFolder::open(&args.folder).and_then(|run| run.rows());
    let Ok(rows) = rows else { return Vec::new() };
    let joined: Vec<_> = rows.iter().flat_map(|row| row.joined.iter().copied()).collect();
    let was_in = |client: u32| joined.iter().any(|&[first, last]| (first..=last).contains(&client));
    args.clients.iter().copied().filter(|&client| !was_in(client)).collect()
}

/// Opens a file for appending, without following links. Otherwise a link could point root at a file outside
/// the folder.
fn open_without_links(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    }
    let to = options.open(file)?;
    let found = to.metadata()?;
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(&found) != 1 {
        return Err(io::Error::other("the file has a second hard link; remove it and make a new one"));
    }
    match found.is_file() {
        true => Ok(to),
        false => Err(io::Error::other("not a regular file; remove it")),
    }
}

fn append_revoked(args: &Revoke) -> Result<(), CliError> {
    let file = args.folder.join(REVOKED_FILE);
    let lines: String = args.clients.iter().map(|client| format!("{client}\n")).collect();
    let write = || {
        let mut to = open_without_links(&file)?;
        give_to_owner_of_folder(&to, &file)?;
        to.write_all(lines.as_bytes())?;
        to.sync_all()
    };
    write().map_err(|error| CliError::file("writing", &file, error))
}
