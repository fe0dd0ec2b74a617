//! Text on standard output: lines, and tables with aligned columns.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

use ebb_plot::Svg;

use crate::CliError;
use crate::args::LogOptions;

/// Prints a line.
pub(crate) fn print_line(line: &str) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CliError::OutputClosed,
        _ => CliError::File { doing: "writing", path: "standard output".into(), source: error },
    })
}

/// Prints a line on standard error. A closed standard error is no reason to stop.
pub(crate) fn print_message(line: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// Starts logging on standard error.
pub(crate) fn log_to_stderr(logs: &LogOptions) -> Result<(), CliError> {
    let filter = EnvFilter::try_new(&logs.log).map_err(|error| {
        let level = &logs.log;
        CliError::Usage(format!("--log {level}: {error}; give error, warn, info, debug or trace"))
    })?;
    let to_stderr = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // A program that embeds this one may have a logger already.
    let _ = match logs.log_json {
        true => to_stderr.json().flatten_event(true).try_init(),
        false => to_stderr.with_ansi(ansi).with_target(false).try_init(),
    };
    Ok(())
}

/// Writes a file, and makes the folder that it goes into.
pub(crate) fn write_file(file: &Path, bytes: &[u8]) -> Result<(), CliError> {
    make_folder_of(file)?;
    std::fs::write(file, bytes).map_err(|error| CliError::file("writing", file, error))
}

/// Makes the folder that a file goes into.
pub(crate) fn make_folder_of(file: &Path) -> Result<(), CliError> {
    file.parent().map_or(Ok(()), |folder| {
        std::fs::create_dir_all(folder).map_err(|error| CliError::file("making", folder, error))
    })
}

/// Writes a plot as SVG and as PNG, and returns both paths.
pub(crate) fn write_plot(folder: &Path, name: &str, svg: &Svg) -> Result<[PathBuf; 2], CliError> {
    let files = ["svg", "png"].map(|ending| folder.join(format!("{name}.{ending}")));
    let png = svg.png(2)?;
    write_file(&files[0], svg.as_str().as_bytes())?;
    write_file(&files[1], &png)?;
    Ok(files)
}

/// The default folder below `runs` for a command's output, named after the command and its input.
pub(crate) fn default_output_folder(command: &str, file: &Path) -> PathBuf {
    let named = if file.is_dir() { file.file_name() } else { file.file_stem() };
    let named = named.map_or(String::new(), |name| format!("-{}", name.to_string_lossy()));
    Path::new("runs").join(format!("{command}{named}"))
}

/// Prints the paths of the files that were written.
pub(crate) fn print_files(files: &[(&str, PathBuf)]) -> Result<(), CliError> {
    files.iter().try_for_each(|(what, file)| print_line(&format!("{what:<7}  {}", file.display())))
}

/// A number with its noun, in the plural where needed.
pub(crate) fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Quotes words so that they can be typed in a shell.
pub(crate) fn shell_command<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    let quoted = words.into_iter().map(|word| {
        let word = word.as_ref();
        let plain = !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "-_./=:,@+".contains(c));
        if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// The command line of this process, quoted to be typed again.
pub(crate) fn this_command() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    shell_command(std::iter::once("ebbflow".to_owned()).chain(words))
}

/// The command that resumes a run. A server is resumed with its original settings file, because paths in it
/// are relative to that file.
pub(crate) fn resume_command(folder: &Path) -> String {
    let folder_name = folder.display().to_string();
    match ebb_record::is_served(folder) {
        true => shell_command(["ebbflow", "serve", "FILE", "--out", &folder_name]),
        false => shell_command(["ebbflow", "resume", &folder_name]),
    }
}

/// Explains why a run ended.
pub(crate) fn ending_text(name: &str) -> &str {
    match name {
        "rounds" => "all rounds done",
        "accuracy" => "target accuracy reached",
        "virtual-hours" => "virtual time limit reached",
        "bytes" => "bytes spent",
        "diverged" => "diverged: the model is not finite",
        "void" => "too many rounds in a row were void",
        other => other,
    }
}

/// Bold text on a terminal.
pub(crate) fn bold(text: &str) -> String {
    format!("\u{1b}[1m{text}\u{1b}[0m")
}

/// A table: the first columns hold words and are aligned left, the others right.
#[derive(Debug, Default)]
pub(crate) struct TextTable {
    rows: Vec<Vec<String>>,
    n_word_columns: usize,
}

impl TextTable {
    /// A table with these headings; the first `left` columns hold words.
    pub(crate) fn new<S: Into<String>>(left: usize, headings: impl IntoIterator<Item = S>) -> Self {
        TextTable { rows: vec![headings.into_iter().map(Into::into).collect()], n_word_columns: left }
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The headings, then the rows.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// How many columns hold words; they come first.
    pub(crate) fn n_word_columns(&self) -> usize {
        self.n_word_columns
    }

    pub(crate) fn print(&self) -> Result<(), CliError> {
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let n_columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<_> = (0..n_columns).map(width).collect();
        for (at, row) in self.rows.iter().enumerate() {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let gap = " ".repeat(widths[column] - cell.chars().count());
                if column < self.n_word_columns { format!("{cell}{gap}") } else { format!("{gap}{cell}") }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            let line = line.trim_end();
            print_line(&if at == 0 { bold(line) } else { line.to_owned() })?;
        }
        Ok(())
    }
}

/// A number of bytes with a unit.
pub(crate) fn format_bytes(count: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Seconds with a fitting unit.
pub(crate) fn format_duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A metric that may be missing.
pub(crate) fn format_metric(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() < 1e6 => format!("{value:.4}"),
        Some(value) => format!("{value:.3e}"),
    }
}

/// A share in percent.
pub(crate) fn format_percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The aggregation error caused by missing clients, as an oracle measures it.
pub(crate) fn format_absence_cost(psi: f64) -> String {
    format!("psi {psi:.3e}, the mean squared aggregation error caused by absent clients")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(shell_command(["ebbflow", "--set", "a.b=0.1"]), "ebbflow --set a.b=0.1");
        assert_eq!(shell_command(["a b", "it's", ""]), r"'a b' 'it'\''s' ''");
    }

    #[test]
    fn metrics_are_short() {
        assert_eq!(format_metric(Some(0.5)), "0.5000");
        assert_eq!(format_metric(Some(1e300)), "1.000e300");
        assert_eq!((count(1, "round"), count(2, "round")), ("1 round".to_owned(), "2 rounds".to_owned()));
        assert_eq!(
            (format_bytes(999.0), format_bytes(1500.0), format_bytes(2e12)),
            ("999 B".into(), "1.5 kB".into(), "2.0 TB".into())
        );
    }
}
