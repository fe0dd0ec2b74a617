//! `ebbflow token`: makes an enrolment token for clients.

use std::time::{SystemTime, UNIX_EPOCH};

use ebb_net::KEY_FILE;
use ebb_net::tokens::{Key, Terms, random_bytes, write_private};

use crate::CliError;
use crate::args::Token;
use crate::output::print_line;

pub(crate) fn run(args: &Token) -> Result<(), CliError> {
    // A key made here would sign tokens that no server accepts.
    if !args.folder.join(KEY_FILE).exists() {
        let folder = args.folder.display();
        return Err(CliError::Usage(format!(
            "{folder}: not the folder of a server's run; start the server first, and give the folder that ebbflow serve prints"
        )));
    }
    let key = Key::open_token_key(&args.folder)
        .map_err(|error| CliError::file("opening the key in", &args.folder, error))?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let terms = Terms {
        id: random_bytes(),
        expires_unix_s: now_s + 3600 * u64::from(args.hours),
        max_uses: args.uses,
        allows_chosen_number: args.numbers,
    };
    let token = key.token(&terms);
    match &args.file {
        Some(file) => write_private(file, format!("{token}\n").as_bytes())
            .map_err(|error| CliError::file("writing", file, error)),
        None => print_line(&token),
    }
}
