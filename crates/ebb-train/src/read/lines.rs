//! Passes text on line by line, so that a row of values is known by the line it begins in.
//!
//! A line ends with `\n`, `\r\n` or `\r`. A reader of a row never receives more than the line in which the
//! row ends.

use std::io::{self, BufRead, BufReader, Chain, Read};

use super::ReadError;
use super::content::Content;

/// A line end follows the content: in a file that breaks off within quotes, it is part of the last value.
type EndedContent<'p> = Chain<Content<'p>, &'static [u8]>;

pub(super) struct Lines<'p> {
    text: BufReader<EndedContent<'p>>,
    comment: Option<u8>,
    in_comment: bool,
    /// The last byte passed on, and the line that it is in, from 1.
    last: u8,
    line: u64,
    row_line: Option<u64>,
}

impl<'p> Lines<'p> {
    /// The lines of this content; lines that begin with `comment` belong to no row.
    pub(super) fn new(content: Content<'p>, comment: Option<u8>) -> Result<Self, ReadError> {
        let text = BufReader::new(content.without_mark()?.chain(b"\n".as_slice()));
        Ok(Lines { text, comment, in_comment: false, last: b'\n', line: 0, row_line: None })
    }

    /// Starts a row, which may follow empty lines and comments.
    pub(super) fn begin_row(&mut self) {
        self.text.get_mut().get_mut().0.begin_row();
        self.row_line = None;
    }

    /// The line in which the row begins.
    pub(super) fn row_line(&self) -> u64 {
        self.row_line.unwrap_or(self.line)
    }

    /// Updates the line number for a part of a line that is passed on.
    fn track_line(&mut self, first: u8, last: u8) {
        if self.last == b'\n' || self.last == b'\r' && first != b'\n' {
            self.line += 1;
        }
        if self.row_line.is_none() && !self.in_comment && !ends_line(first) {
            self.in_comment = self.comment == Some(first);
            self.row_line = (!self.in_comment).then_some(self.line);
        }
        self.in_comment &= last != b'\n';
        self.last = last;
    }
}

impl Read for Lines<'_> {
    /// Passes on one line at most.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let text = self.text.fill_buf()?;
        let text = &text[..text.len().min(to.len())];
        let end = text.iter().position(|&byte| ends_line(byte)).map_or(text.len(), |at| at + 1);
        let text = &text[..end];
        to[..end].copy_from_slice(text);
        if let (Some(&first), Some(&last)) = (text.first(), text.last()) {
            self.text.consume(end);
            self.track_line(first, last);
        }
        Ok(end)
    }
}

fn ends_line(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}
