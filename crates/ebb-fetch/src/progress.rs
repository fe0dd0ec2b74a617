//! What a caller hears while data comes in.

/// Told how fetching goes. What `begins` always `ends`, whether or not it went well.
pub trait Progress {
    /// Something begins that moves so many bytes, if that is known.
    fn start(&mut self, what: &str, total: Option<u64>);
    /// This many more bytes of it are there.
    fn advance(&mut self, n_bytes: u64);
    /// It is over.
    fn finish(&mut self);
    /// A line worth reading: what was found, which source failed and why.
    fn message(&mut self, line: &str);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&mut self, _what: &str, _total: Option<u64>) {}
    fn advance(&mut self, _n_bytes: u64) {}
    fn finish(&mut self) {}
    fn message(&mut self, _line: &str) {}
}
