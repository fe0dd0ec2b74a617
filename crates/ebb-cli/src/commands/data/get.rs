//! `ebbflow data get`: fetches sets into the data folder.

use std::io::IsTerminal;

use ebb_fetch::{Progress, WrongFiles};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{data_folder_or_error, known_set};
use crate::CliError;
use crate::args::DataGet;
use crate::output::{format_bytes, print_line, print_message};

pub(crate) fn run(args: &DataGet) -> Result<(), CliError> {
    let folder = data_folder_or_error(args.data_folder.data.as_deref())?;
    let sets = args.names.iter().map(|name| known_set(name)).collect::<Result<Vec<_>, _>>()?;
    let wrong_files = if args.force { WrongFiles::Replace } else { WrongFiles::Refuse };
    let mut reporter = ProgressReporter::new(args.quiet);
    let mut failures = Vec::new();
    for set in sets {
        let got = match ebb_fetch::get(set, &folder, wrong_files, &mut reporter) {
            Ok(got) => got,
            // An error of one set does not keep the others from being fetched.
            Err(error) => {
                failures.push(error.to_string());
                continue;
            }
        };
        let done = if got.fetched.is_empty() { "already complete" } else { "fetched and verified" };
        let (place, size) = (got.status.folder.display(), format_bytes(got.status.n_bytes as f64));
        print_line(&format!("{}  {done}: {place}, {size}", set.name))?;
    }
    if failures.is_empty() { Ok(()) } else { Err(CliError::Fetch(failures.join("\n"))) }
}

/// Progress as a bar on a terminal, as plain lines elsewhere, or not at all.
struct ProgressReporter {
    quiet: bool,
    shows_bars: bool,
    bar: Option<ProgressBar>,
}

impl ProgressReporter {
    fn new(quiet: bool) -> Self {
        ProgressReporter { quiet, shows_bars: !quiet && std::io::stderr().is_terminal(), bar: None }
    }
}

impl Progress for ProgressReporter {
    fn start(&mut self, what: &str, total: Option<u64>) {
        if !self.shows_bars {
            return;
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
        let template = match total {
            Some(_) => "{msg} {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left",
            None => "{msg} {spinner} {bytes} {elapsed}",
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is well formed"));
        bar.set_message(what.to_owned());
        // A fetched package may make no progress for a while; the ticking shows that it lives.
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        self.bar = Some(bar);
    }

    fn advance(&mut self, n_bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(n_bytes);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn message(&mut self, line: &str) {
        if !self.quiet {
            print_message(line);
        }
    }
}
