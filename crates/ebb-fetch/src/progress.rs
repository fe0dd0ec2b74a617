//! What a caller hears while data comes in.

/// Told how fetching goes. What `begins` always `ends`, whether or not it went well.
pub trait Progress {
    /// Something begins that moves so many bytes, if that is known.
    fn begins(&mut self, what: &str, total: Option<u64>);
    /// This many more bytes of it are there.
    fn moved(&mut self, n_bytes: u64);
    /// It is over.
    fn ends(&mut self);
    /// A line worth reading: what was found, which source failed and why.
    fn says(&mut self, line: &str);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begins(&mut self, _what: &str, _total: Option<u64>) {}
    fn moved(&mut self, _n_bytes: u64) {}
    fn ends(&mut self) {}
    fn says(&mut self, _line: &str) {}
}
