//! The context of a measurement: processor, cores, compiler and date.

use std::fmt;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::workspace;

/// The machine of the benchmarks, and the date.
#[derive(Debug)]
pub(super) struct Machine {
    cpu: String,
    n_cores: usize,
    rustc: String,
    date: String,
}

impl Machine {
    pub(super) fn detect() -> Machine {
        let unknown = || "unknown".to_owned();
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Machine {
            cpu: model_name(&cpus).unwrap_or_else(unknown),
            n_cores: std::thread::available_parallelism().map_or(1, usize::from),
            rustc: rustc_version().unwrap_or_else(unknown),
            date: date(since),
        }
    }

    pub(super) fn json(&self) -> Value {
        let Machine { cpu, n_cores, rustc, date } = self;
        json!({ "cpu": cpu, "cores": n_cores, "rustc": rustc, "date": date })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, n_cores, rustc, date } = self;
        write!(f, "processor {cpu}, {n_cores} cores; {rustc}; {date}")
    }
}

/// A value from this process's memory statistics, such as `VmRSS` or `VmHWM`, if the system reports it.
pub(super) fn memory_bytes(field: &str) -> Option<f64> {
    memory_in("/proc/self/status", field)
}

/// As [`memory_bytes`], for another process.
pub(super) fn memory_bytes_of(process: u32, field: &str) -> Option<f64> {
    memory_in(&format!("/proc/{process}/status"), field)
}

fn memory_in(file: &str, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(file).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024.0)
}

fn model_name(cpus: &str) -> Option<String> {
    let line = cpus.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn rustc_version() -> Option<String> {
    let output = Command::new("rustc").arg("--version").current_dir(workspace()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The date in UTC (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(seconds: u64) -> String {
    // Years begin in March here, so that a leap day comes last.
    let day = seconds / 86_400 + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + next_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_a_day() {
        let check = |seconds, day: &str| assert_eq!(date(seconds), day);
        check(0, "1970-01-01");
        check(951_782_399, "2000-02-28");
        check(951_782_400, "2000-02-29");
        check(951_868_800, "2000-03-01");
        check(1_767_225_599, "2025-12-31");
        check(1_767_225_600, "2026-01-01");
    }

    #[test]
    fn the_first_processor_names_them_all() {
        let cpus = "processor\t: 0\nmodel name\t: A Processor: fast\nmodel name\t: Another\n";
        assert_eq!(model_name(cpus).as_deref(), Some("A Processor: fast"));
        assert_eq!(model_name("nothing here"), None);
    }
}
