//! A server as a process.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ebbflow");

/// A process that does not outlive its test.
pub(crate) struct Ends(pub(crate) Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, where it is, and what it says after that.
pub(crate) fn serve(file: &Path, out: &Path) -> (Ends, String, std::thread::JoinHandle<String>) {
    let mut server = Command::new(PROGRAM)
        .args(["serve", text(file), "--out", text(out)])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let url = said.find_map(|line| {
        let from = line.find("http://").or_else(|| line.find("https://"))?;
        Some(line[from..].split([',', ' ', ';']).next().unwrap().to_owned())
    });
    let url = url.expect("the server says where it is");
    (Ends(server), url, std::thread::spawn(move || said.collect::<Vec<_>>().join("\n")))
}

/// What clients enrol with at a server of this folder.
pub(crate) fn token(out: &Path, arguments: &[&str]) -> String {
    let token = Command::new(PROGRAM).args(["token", text(out)]).args(arguments).output().unwrap();
    String::from_utf8(token.stdout).unwrap().trim().to_owned()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
