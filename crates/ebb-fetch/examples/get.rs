//! Gets sets into a folder and prints what it hears: `cargo run -p ebb-fetch --example get -- FOLDER SET...`

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use ebb_fetch::{Progress, WrongFiles, found, get, set, sets};
use ebb_settings::DataFolder;

/// Prints what begins, and how much of it came in how long.
struct Printed {
    begun: Instant,
    n_bytes: u64,
}

impl Progress for Printed {
    fn begins(&mut self, what: &str, total: Option<u64>) {
        println!("  {what}{}", total.map_or_else(String::new, |total| format!(" ({total} bytes)")));
        *self = Printed { begun: Instant::now(), n_bytes: 0 };
    }

    fn moved(&mut self, n_bytes: u64) {
        self.n_bytes += n_bytes;
    }

    fn ends(&mut self) {
        println!("  ... {} bytes in {:.1} s", self.n_bytes, self.begun.elapsed().as_secs_f64());
    }

    fn says(&mut self, line: &str) {
        println!("  {line}");
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (folder, names) = arguments.split_first().ok_or("usage: get FOLDER SET...")?;
    let folder = DataFolder { path: folder.into(), named_by: "the example" };

    let mut progress = Printed { begun: Instant::now(), n_bytes: 0 };
    for name in names {
        let known = set(name).ok_or_else(|| format!("{name}: not known"))?;
        let begun = Instant::now();
        println!("{name}:");
        let fetched = get(known, &folder, WrongFiles::Refuse, &mut progress)?.fetched;
        println!("  {} files fetched in {:.1} s", fetched.len(), begun.elapsed().as_secs_f64());
    }
    for known in sets() {
        let found = found(known, &folder.path);
        let state = match (found.complete(), found.there.len()) {
            (true, _) => "complete".to_owned(),
            (false, 0) => "not there".to_owned(),
            (false, _) => format!("{} missing", found.missing.join(", ")),
        };
        println!("{:20} {:>11} bytes  {state}", known.name, found.n_bytes);
    }
    Ok(())
}
