//! The progress of a run: a bar on a terminal, plain lines elsewhere, JSON on request.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ebb_record::Row;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::CliError;
use crate::args::RunOptions;
use crate::drive::RunObserver;
use crate::output::{format_duration, format_metric, print_line, print_message};

/// Shows the progress of one run.
pub(crate) struct Progress {
    style: Style,
    n_rounds: u32,
    first: u32,
    began: Instant,
    accuracy: Option<f64>,
    loss: Option<f64>,
    /// Whether warnings are logged instead of printed.
    logs_warnings: bool,
}

enum Style {
    Json,
    Bar(ProgressBar),
    /// A line after every tenth of the rounds.
    Lines,
    Nothing,
}

impl Progress {
    /// The progress of a run that has done `first` of its rounds.
    pub(crate) fn new(how: &RunOptions, first: u32, n_rounds: u32) -> Self {
        let style = if how.json {
            Style::Json
        } else if how.quiet {
            Style::Nothing
        } else if std::io::stderr().is_terminal() {
            Style::Bar(bar(u64::from(first), u64::from(n_rounds)))
        } else {
            Style::Lines
        };
        Progress {
            style,
            n_rounds,
            first,
            began: Instant::now(),
            accuracy: None,
            loss: None,
            logs_warnings: false,
        }
    }

    /// Sends warnings to the log, as a server does.
    pub(crate) fn log_warnings(&mut self) {
        self.logs_warnings = true;
    }

    /// The current accuracy or loss, the speed of rounds, and the remaining time.
    fn status_text(&self, done: u32) -> String {
        let rounds_per_s = f64::from(done - self.first) / self.began.elapsed().as_secs_f64().max(1e-9);
        let left = format_duration(f64::from(self.n_rounds - done) / rounds_per_s);
        let speed = format!("{rounds_per_s:.1} rounds/s  {left} left");
        match (self.accuracy, self.loss) {
            (Some(accuracy), _) => format!("accuracy {accuracy:.4}  {speed}"),
            (None, Some(loss)) => format!("loss {}  {speed}", format_metric(Some(loss))),
            (None, None) => speed,
        }
    }
}

impl RunObserver for Progress {
    fn round(&mut self, row: &Row, line: &str) -> Result<(), CliError> {
        self.accuracy = row.accuracy.or(self.accuracy);
        self.loss = row.loss.or(self.loss);
        let done = row.round + 1;
        match &self.style {
            Style::Nothing => {}
            Style::Json => print_line(line)?,
            Style::Bar(bar) => {
                bar.set_message(self.status_text(done));
                bar.set_position(u64::from(done));
            }
            Style::Lines => {
                let tenth = |round: u32| u64::from(round) * 10 / u64::from(self.n_rounds);
                if tenth(done) > tenth(done - 1) {
                    print_message(&format!("round {done}/{}  {}", self.n_rounds, self.status_text(done)));
                }
            }
        }
        Ok(())
    }

    fn warn(&mut self, message: &str) {
        let line = format!("warning: {message}");
        match &self.style {
            _ if self.logs_warnings => tracing::warn!("{message}"),
            Style::Bar(bar) => bar.suspend(|| print_message(&line)),
            _ => print_message(&line),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Style::Bar(bar) = &self.style {
            bar.finish_and_clear();
        }
    }
}

fn bar(first: u64, n_rounds: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(n_rounds), ProgressDrawTarget::stderr_with_hz(10));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = if plain { "" } else { ".cyan" };
    let template = format!("round {{pos}}/{{len}} {{bar:30{colour}}} {{msg}}");
    bar.set_style(ProgressStyle::with_template(&template).expect("the template is well formed"));
    bar.set_position(first);
    bar
}

/// Calls `act` once, on Ctrl-C or SIGTERM. The second signal ends the program at once.
pub(crate) fn on_interrupt(act: Box<dyn Fn() + Send>) {
    let is_repeated = AtomicBool::new(false);
    // Without a handler, Ctrl-C ends the program at once, and the run resumes from its journal.
    let _ = ctrlc::set_handler(move || {
        if is_repeated.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        act();
    });
}

/// A flag that Ctrl-C raises. The second Ctrl-C ends the program at once.
pub(crate) fn interrupt_flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    // Without a handler, Ctrl-C ends the program at once, and the run resumes from its last checkpoint.
    let _ = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        print_message("finishing the round; press Ctrl-C again to stop at once");
    });
    stop
}
