//! `ebbflow token`: what clients enrol with.

use std::time::{SystemTime, UNIX_EPOCH};

use ebb_net::KEY;
use ebb_net::tokens::{Key, Terms, keep_private, unguessable};

use crate::CliError;
use crate::args::Token;
use crate::output::print_line;

pub(crate) fn run(args: &Token) -> Result<(), CliError> {
    // What a key of its own would make no server takes.
    if !args.folder.join(KEY).exists() {
        let folder = args.folder.display();
        return Err(CliError::Usage(format!(
            "{folder}: not the folder of a server's run; start the server first, and give the folder that ebbflow serve says"
        )));
    }
    let key = Key::of_tokens(&args.folder)
        .map_err(|error| CliError::file("opening the key in", &args.folder, error))?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let terms = Terms {
        id: unguessable(),
        until_s: now_s + 3600 * u64::from(args.hours),
        uses: args.uses,
        numbers: args.numbers,
    };
    let token = key.token(&terms);
    match &args.file {
        Some(file) => keep_private(file, format!("{token}\n").as_bytes())
            .map_err(|error| CliError::file("writing", file, error)),
        None => print_line(&token),
    }
}
