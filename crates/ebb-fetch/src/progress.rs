//! Progress reports to the caller of a fetch.

/// Receives the progress of a fetch. Every `start` is followed by a `finish`, also after a failure.
pub trait Progress {
    /// An operation starts that moves `total` bytes, if the number is known.
    fn start(&mut self, what: &str, total: Option<u64>);
    /// This many more bytes have moved.
    fn advance(&mut self, n_bytes: u64);
    /// The operation is over.
    fn finish(&mut self);
    /// A line for the user, for example which source failed and why.
    fn message(&mut self, line: &str);
}

/// Ignores all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&mut self, _what: &str, _total: Option<u64>) {}
    fn advance(&mut self, _n_bytes: u64) {}
    fn finish(&mut self) {}
    fn message(&mut self, _line: &str) {}
}
