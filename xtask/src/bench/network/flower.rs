//! Flower's own deployment on the same work, by `scripts/peers/flower_net.py`.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::bench::Spread;
use crate::workspace;

/// What Flower reached with this many clients.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Flower {
    pub(super) peer: String,
    pub(super) n_clients: usize,
    /// `None` if no round was completed.
    pub(super) round_s: Option<Spread>,
}

/// A line of the script's output.
#[derive(Deserialize)]
struct Line {
    peer: String,
    clients: usize,
    round_s: Vec<f64>,
}

/// Runs the script, which prints its own errors. A number of clients that it cannot handle has no result.
pub(super) fn run(
    python: &Path,
    n_clients: &[u32],
    rounds: u32,
    n_params: usize,
) -> Result<Vec<Flower>, Box<dyn Error>> {
    let mut command = Command::new(python);
    command.arg(workspace().join("scripts/peers/flower_net.py")).arg("--clients");
    command.args(n_clients.iter().map(u32::to_string));
    command.args(["--rounds", &rounds.to_string(), "--parameters", &n_params.to_string()]);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{}: {error}", python.display()))?;
    parse_lines(&String::from_utf8_lossy(&output.stdout))
}

fn parse_lines(output: &str) -> Result<Vec<Flower>, Box<dyn Error>> {
    let read = |line: &str| -> Result<Flower, Box<dyn Error>> {
        let Line { peer, clients, round_s } = serde_json::from_str(line)?;
        let round_s = (!round_s.is_empty()).then(|| Spread::of(round_s));
        Ok(Flower { peer, n_clients: clients, round_s })
    };
    output.lines().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_script_is_parsed() {
        let output = "{\"peer\": \"Flower 1\", \"clients\": 2, \"rounds\": 3, \"round_s\": [6.0, 7.0, 6.5], \"median_s\": 6.5}\n\
                    {\"peer\": \"Flower 1\", \"clients\": 50, \"rounds\": 0, \"round_s\": [], \"median_s\": null}\n";
        let found = parse_lines(output).unwrap();
        assert_eq!(found[0].round_s, Some(Spread { median: 6.5, low: 6.0, high: 7.0 }));
        assert_eq!((found[1].n_clients, found[1].round_s), (50, None));
        assert!(parse_lines("no result").is_err());
    }
}
