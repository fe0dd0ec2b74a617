//! Other systems on the same work: installs them, runs the programs in `scripts/peers` and reads their
//! output.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::Spread;
use crate::workspace;

/// The program for each peer.
const PROGRAMS: [(&str, &str); 4] = [
    ("PyTorch", "torch_peer.py"),
    ("JAX", "jax_peer.py"),
    ("pfl-research", "pfl_peer.py"),
    ("Flower", "flower_peer.py"),
];

/// A program that is silent for longer is stopped.
const SILENCE: Duration = Duration::from_secs(900);

/// A virtual environment with the peers in it.
pub(super) struct Peers {
    python: PathBuf,
}

/// What a peer reached with its fastest variant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PeerResult {
    pub(super) peer: String,
    pub(super) variant: String,
    pub(super) per_second: Spread,
    pub(super) repeats: usize,
    /// The training losses of the first rounds.
    pub(super) losses: Vec<f64>,
}

/// The result of one peer: the trials of its variants, and what it reached or why it failed.
pub(super) struct Outcome {
    pub(super) peer: &'static str,
    pub(super) tried: Vec<String>,
    pub(super) reached: Result<PeerResult, String>,
}

impl Peers {
    /// Creates the environment if there is none, and installs what is missing. A peer that cannot be
    /// installed is named, and the others are measured without it.
    pub(super) fn install(folder: Option<&Path>) -> Result<Peers, String> {
        let folder = folder.map_or_else(|| workspace().join("target/peers"), Path::to_owned);
        let python = folder.join("bin/python");
        if !python.exists() {
            println!("creating a virtual environment for the peers");
            finished(Command::new("python3").args(["-m", "venv"]).arg(&folder))
                .map_err(|error| format!("the virtual environment cannot be created: {error}"))?;
        }
        let peers = Peers { python };
        let list = workspace().join("scripts/peers/requirements.txt");
        let wanted =
            std::fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
        let stamp = folder.join("installed.txt");
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(peers);
        }
        println!("installing the peers");
        let mut whole = true;
        if peers.pip(&["-r".as_ref(), list.as_os_str()]).is_err() {
            // One by one, at the same versions; constraints must not have extras.
            let list = folder.join("constraints.txt");
            std::fs::write(&list, without_extras(&wanted))
                .map_err(|error| format!("{}: {error}", list.display()))?;
            for one in wanted.lines().filter(|line| !line.starts_with('#')) {
                if let Err(error) = peers.pip(&[one.as_ref(), "-c".as_ref(), list.as_os_str()]) {
                    println!("  {one} could not be installed: {error}");
                    whole = false;
                }
            }
        }
        if whole {
            std::fs::write(&stamp, &wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
        }
        Ok(peers)
    }

    fn pip(&self, arguments: &[&std::ffi::OsStr]) -> Result<(), String> {
        finished(Command::new(&self.python).args(["-m", "pip", "install", "--quiet"]).args(arguments))
    }

    /// Runs every peer on the work in a folder.
    pub(super) fn run(&self, work: &Path, repeats: usize, threads: usize) -> Vec<Outcome> {
        let run = |&(peer, program): &(&'static str, &str)| self.one(peer, program, work, repeats, threads);
        PROGRAMS.iter().map(run).collect()
    }

    /// Runs one program on the work in a folder.
    pub(super) fn one(
        &self,
        peer: &'static str,
        program: &str,
        work: &Path,
        repeats: usize,
        threads: usize,
    ) -> Outcome {
        let mut command = Command::new(&self.python);
        command.arg(workspace().join("scripts/peers").join(program)).arg(work);
        command.args(["--repeats", &repeats.to_string(), "--threads", &threads.to_string()]);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let (lines, ended) = run_and_read(&mut command);
        let (tried, reached) = parse_lines(&lines);
        let reached = match (reached, ended) {
            (Some(reached), _) => Ok(reached),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err("it ended without a result".to_owned()),
        };
        Outcome { peer, tried, reached }
    }
}

impl PeerResult {
    pub(super) fn json(&self) -> Value {
        let PeerResult { peer, variant, per_second, repeats, losses } = self;
        json!({
            "peer": peer,
            "variant": variant,
            "per_second": per_second.json(),
            "repeats": repeats,
            "losses": losses,
        })
    }
}

/// Requirements without their extras in brackets.
fn without_extras(requirements: &str) -> String {
    let line = |line: &str| match (line.find('['), line.find(']')) {
        (Some(from), Some(to)) if from < to => format!("{}{}\n", &line[..from], &line[to + 1..]),
        _ => format!("{line}\n"),
    };
    requirements.lines().map(line).collect()
}

/// The fastest peer of those that have a result.
pub(super) fn fastest(outcomes: &[Outcome]) -> Option<&PeerResult> {
    let reached = outcomes.iter().filter_map(|outcome| outcome.reached.as_ref().ok());
    reached.max_by(|one, two| one.per_second.median.total_cmp(&two.per_second.median))
}

/// Parses a peer's output: the trial of each variant, and the result of the fastest. Other lines are ignored,
/// because libraries print their own.
fn parse_lines(lines: &[String]) -> (Vec<String>, Option<PeerResult>) {
    let (mut tried, mut reached) = (Vec::new(), None);
    for line in lines {
        let Ok(parsed) = serde_json::from_str::<Value>(line) else { continue };
        let (Some(peer), Some(variant)) = (parsed["peer"].as_str(), parsed["variant"].as_str()) else {
            continue;
        };
        let numbers = |key: &str| -> Vec<f64> {
            parsed[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let values = numbers("per_second");
        if let Some(error) = parsed["error"].as_str() {
            tried.push(format!("{variant}: {error}"));
        } else if let Some(trial) = parsed["trial"].as_f64() {
            tried.push(format!("{variant}: {}", super::three_digits(trial)));
        } else if !values.is_empty() {
            let (peer, variant) = (peer.to_owned(), variant.to_owned());
            let repeats = values.len();
            let per_second = Spread::of(values);
            reached = Some(PeerResult { peer, variant, per_second, repeats, losses: numbers("losses") });
        }
    }
    (tried, reached)
}

/// The lines that a program prints, and how it ended. A program that is silent for too long is stopped.
fn run_and_read(command: &mut Command) -> (Vec<String>, Result<(), String>) {
    let mut lines = Vec::new();
    let mut child = match in_own_group(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return (lines, Err(error.to_string())),
    };
    let (sender, receiver) = channel();
    let output = BufReader::new(child.stdout.take().expect("it was piped"));
    // The receiver is gone once the program was stopped.
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut errors = child.stderr.take().expect("it was piped");
    let complaints = std::thread::spawn(move || {
        let mut printed = Vec::new();
        let _ = errors.read_to_end(&mut printed);
        String::from_utf8_lossy(&printed).into_owned()
    });
    loop {
        match receiver.recv_timeout(SILENCE) {
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                stop(&mut child);
                let waited = SILENCE.as_secs();
                return (lines, Err(format!("it printed nothing for {waited} s and was stopped")));
            }
        }
    }
    let stderr_text = complaints.join().unwrap_or_default();
    let ended = match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(error_line(&stderr_text, &status.to_string())),
        Err(error) => Err(error.to_string()),
    };
    (lines, ended)
}

/// Starts the program in a process group, so that its own children can be stopped too.
fn in_own_group(command: &mut Command) -> &mut Command {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    command
}

fn stop(child: &mut Child) {
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
    let _ = child.kill();
    let _ = child.wait();
}

fn finished(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| {
        format!("{} could not be started: {error}", command.get_program().to_string_lossy())
    })?;
    let stderr_text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(error_line(&stderr_text, &output.status.to_string())) }
}

/// The most informative line: the last that names an error, else the last.
fn error_line(stderr_text: &str, otherwise: &str) -> String {
    let lines = || stderr_text.lines().map(str::trim).filter(|line| !line.is_empty());
    let named = lines().rfind(|line| line.contains("Error: ") || line.starts_with("ERROR: "));
    named.or_else(|| lines().next_back()).unwrap_or(otherwise).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(all: &[&str]) -> Vec<String> {
        all.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn the_output_of_a_peer_is_parsed() {
        let stderr_text = lines(&[
            "a library greets",
            r#"{"note": "JSON, but no result"}"#,
            r#"{"peer": "JAX", "variant": "vmap", "trial": 2.0}"#,
            r#"{"peer": "JAX", "variant": "loop", "error": "ValueError: no"}"#,
            r#"{"peer": "JAX", "variant": "vmap", "per_second": [2.0, 1.0, 3.0], "losses": [2.3, 2.0]}"#,
        ]);
        let per_second = Spread { median: 2.0, low: 1.0, high: 3.0 };
        let (peer, variant) = ("JAX".to_owned(), "vmap".to_owned());
        let reached = PeerResult { peer, variant, per_second, repeats: 3, losses: vec![2.3, 2.0] };
        let (tried, found) = parse_lines(&stderr_text);
        assert_eq!(tried, ["vmap: 2.00", "loop: ValueError: no"]);
        assert_eq!(found, Some(reached));
        assert_eq!(parse_lines(&stderr_text[..4]).1, None);
        assert_eq!(parse_lines(&lines(&[r#"{"peer": "JAX", "variant": "x", "per_second": []}"#])).1, None);
    }

    #[test]
    fn the_fastest_is_the_one_with_the_highest_median() {
        let outcome = |peer, median| {
            let per_second = Spread { median, low: 0.0, high: 9.0 };
            let (variant, losses) = (String::new(), Vec::new());
            let reached = PeerResult { peer: String::from(peer), variant, per_second, repeats: 5, losses };
            Outcome { peer, tried: Vec::new(), reached: Ok(reached) }
        };
        let failed = Outcome { peer: "none", tried: Vec::new(), reached: Err("not here".to_owned()) };
        let all = [outcome("slow", 1.0), failed, outcome("fast", 2.0)];
        assert_eq!(fastest(&all).unwrap().peer, "fast");
        assert!(fastest(&all[1..2]).is_none());
    }

    #[test]
    fn constraints_have_no_extras() {
        assert_eq!(without_extras("a[b,c]==1.0\nd==2\n"), "a==1.0\nd==2\n");
    }

    #[test]
    fn the_line_that_names_the_error_is_kept() {
        let check =
            |stderr_text: &str, kept: &str| assert_eq!(error_line(stderr_text, "exit status: 1"), kept);
        check("", "exit status: 1");
        check("warning\n  ImportError: no module\nsee above\n", "ImportError: no module");
        check("something\nlast\n\n", "last");
    }

    #[cfg(unix)]
    #[test]
    fn a_programs_output_and_its_failure_are_kept() {
        let (lines, ended) =
            run_and_read(Command::new("sh").args(["-c", "echo one; echo two; echo broken >&2; exit 3"]));
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(ended, Err("broken".to_owned()));
        assert!(run_and_read(&mut Command::new("no-such-program-here")).1.is_err());
    }
}
