//! A client with a model of its own, in Rust: a straight line through what it has read. In this folder:
//!
//! ```sh
//! cargo run --example own_client -- model line.safetensors     # the model to begin with
//! ebbflow serve run.toml --out fleet
//! ebbflow token fleet --uses 3
//! cargo run --example own_client -- join http://127.0.0.1:7700 client-1 TOKEN
//! ```
//!
//! The server begins when three clients are there; its record and model are then in `fleet`.

#![forbid(unsafe_code)]

mod line;

use std::path::Path;
use std::process::ExitCode;

use ebbflow::exec::write_vector;
use ebbflow::net::client::JoinOutcome;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["model", file] => write_vector(Path::new(file), &line::layout(), &[0.0, 0.0]),
        ["join", url, home, token] => {
            line::join_and_stay(url, Path::new(home), token).map(|left| match left {
                JoinOutcome::RunOver(why) => eprintln!("done: {why}"),
                JoinOutcome::Stopped => eprintln!("stopped"),
            })
        }
        _ => Err("own_client model FILE, or own_client join URL HOME TOKEN".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
