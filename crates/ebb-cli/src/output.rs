//! Text to standard output: lines, and tables with aligned columns.

use std::io::{ErrorKind, Write};

use crate::CliError;

/// Prints a line.
pub(crate) fn say(line: &str) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CliError::OutputClosed,
        _ => CliError::File { doing: "writing", path: "standard output".into(), source: error },
    })
}

/// Text that stands out on a terminal.
pub(crate) fn bold(text: &str) -> String {
    format!("\u{1b}[1m{text}\u{1b}[0m")
}

/// A table: the first column to the left, the others to the right.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    rows: Vec<Vec<String>>,
    left: usize,
}

impl Columns {
    /// With these headings; the first `left` columns hold words.
    pub(crate) fn new<S: Into<String>>(left: usize, headings: impl IntoIterator<Item = S>) -> Self {
        Columns { rows: vec![headings.into_iter().map(Into::into).collect()], left }
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
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
                if column < self.left { format!("{cell}{gap}") } else { format!("{gap}{cell}") }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            let line = line.trim_end();
            say(&if at == 0 { bold(line) } else { line.to_owned() })?;
        }
        Ok(())
    }
}

/// A count of bytes as people say it.
pub(crate) fn bytes(count: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Seconds as people say them.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A figure that may be missing.
pub(crate) fn figure(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.4}"))
}
