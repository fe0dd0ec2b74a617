//! Splits sources, settings and pages into words, each with its line and the kind of place it stands in.

use std::path::Path;

/// What a passage is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Any other name in code: of a variable, a function, a field, a module, a constant.
    Identifier,
    /// A name in code that begins with a capital and goes on in lower case: of a type or a variant.
    Type,
    /// A key of a settings file, or what is written like one in a string or on a page.
    Key,
    /// Comments, strings and pages.
    Prose,
}

/// Words that follow each other with nothing but blanks, hyphens or underscores between them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passage {
    pub(super) place: Place,
    pub(super) words: Vec<Word>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// From 1.
    pub(super) line: usize,
    /// In lower case.
    pub(super) text: String,
}

/// The passages of a file; none where its ending is not known.
pub(super) fn passages(path: &Path, text: &str) -> Vec<Passage> {
    let mut scanner = Scanner::new(text);
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("rs" | "proto") => scanner.code(),
        Some("toml") => scanner.settings(),
        Some("md") => scanner.page(),
        _ => {}
    }
    scanner.found
}

/// The words of a name: `InFlight`, `in_flight` and `IN_FLIGHT` are two.
pub(super) fn words_of(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, &letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| letters[at]);
        let is_next_low = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        let begins = before.is_some_and(|before| {
            before.is_numeric() != letter.is_numeric()
                || letter.is_uppercase() && (before.is_lowercase() || before.is_uppercase() && is_next_low)
        });
        if begins || letter == '_' {
            words.push(String::new());
        }
        if letter != '_' {
            words.last_mut().expect("there is always one").extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

struct Scanner {
    letters: Vec<char>,
    at: usize,
    line: usize,
    found: Vec<Passage>,
    /// The prose that goes on, maybe in the comment of the next line.
    prose: Vec<Word>,
}

impl Scanner {
    fn new(text: &str) -> Scanner {
        Scanner { letters: text.chars().collect(), at: 0, line: 1, found: Vec::new(), prose: Vec::new() }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.letters.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(letter == '\n');
        Some(letter)
    }

    fn skip(&mut self, many: usize) {
        for _ in 0..many {
            self.next();
        }
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(ahead, letter)| self.peek(ahead) == Some(letter))
    }

    /// What stands before `end`, which is passed too, and the line on which it began.
    fn until(&mut self, end: &str) -> (String, usize) {
        let (line, mut text) = (self.line, String::new());
        while self.peek(0).is_some() && !self.starts_with(end) {
            text.extend(self.next());
        }
        self.skip(end.chars().count());
        (text, line)
    }

    fn rest_of_line(&mut self) -> (String, usize) {
        self.until("\n")
    }

    /// A name that begins here.
    fn name(&mut self) -> String {
        let mut name = String::new();
        while self.peek(0).is_some_and(is_name_part) {
            name.extend(self.next());
        }
        name
    }

    /// Rust, or what looks like it.
    fn code(&mut self) {
        while let Some(letter) = self.peek(0) {
            if self.starts_with("//") {
                let (text, line) = self.rest_of_line();
                self.comment(text.trim_start_matches(['/', '!']), line);
                continue;
            }
            if letter.is_whitespace() {
                self.next();
                continue;
            }
            self.end_prose();
            if self.starts_with("/*") {
                let (text, line) = self.block_comment();
                self.comment(&text, line);
                self.end_prose();
            } else if letter == '"' {
                self.next();
                self.quoted();
            } else if let Some(hashes) = self.raw_string() {
                let (text, line) = self.until(&format!("\"{}", "#".repeat(hashes)));
                self.string(&text, line);
            } else if letter == '\'' {
                self.letter_or_lifetime();
            } else if letter.is_numeric() {
                self.name();
            } else if is_name_part(letter) {
                let (line, name) = (self.line, self.name());
                // The mark of a string of bytes or of a raw name is no name.
                let marks = matches!(self.peek(0), Some('"' | '\'' | '#'));
                if !(marks && ["b", "c", "r"].contains(&name.as_str())) {
                    self.identifier(&name, line);
                }
            } else {
                self.next();
            }
        }
        self.end_prose();
    }

    /// Passes the opening of a raw string, if one stands here, and says how many hashes end it.
    fn raw_string(&mut self) -> Option<usize> {
        let marks = ["r", "br", "cr"].into_iter().find(|marks| {
            let after = self.peek(marks.len());
            self.starts_with(marks) && matches!(after, Some('"' | '#'))
        })?;
        let hashes = (0..).take_while(|ahead| self.peek(marks.len() + ahead) == Some('#')).count();
        if self.peek(marks.len() + hashes) != Some('"') {
            return None;
        }
        self.skip(marks.len() + hashes + 1);
        Some(hashes)
    }

    fn block_comment(&mut self) -> (String, usize) {
        let (line, mut text, mut depth) = (self.line, String::new(), 0);
        while self.peek(0).is_some() {
            let step = i32::from(self.starts_with("/*")) - i32::from(self.starts_with("*/"));
            depth += step;
            if step == 0 {
                text.extend(self.next());
                continue;
            }
            self.skip(2);
            if depth == 0 {
                break;
            }
        }
        (text, line)
    }

    /// `'x'` and `'\n'` are passed; of `'name` only the quote.
    fn letter_or_lifetime(&mut self) {
        self.next();
        if self.peek(0) == Some('\\') {
            self.skip(2);
            self.until("'");
        } else if self.peek(1) == Some('\'') {
            self.skip(2);
        }
    }

    /// The rest of a string in double quotes, whose escapes become blanks.
    fn quoted(&mut self) {
        let (line, mut text) = (self.line, String::new());
        while let Some(letter) = self.next() {
            match letter {
                '"' => break,
                '\\' => {
                    let escaped = self.next();
                    text.push(if escaped == Some('\n') { '\n' } else { ' ' });
                }
                _ => text.push(letter),
            }
        }
        self.string(&text, line);
    }

    fn settings(&mut self) {
        while let Some(letter) = self.peek(0) {
            if letter == '#' {
                let (text, line) = self.rest_of_line();
                self.comment(text.trim_start_matches('#'), line);
                continue;
            }
            if letter.is_whitespace() {
                self.next();
                continue;
            }
            self.end_prose();
            if let Some(end) = ["\"\"\"", "'''", "'"].into_iter().find(|end| self.starts_with(end)) {
                self.skip(end.len());
                let (text, line) = self.until(end);
                self.string(&text, line);
            } else if letter == '"' {
                self.next();
                self.quoted();
            } else if is_name_part(letter) {
                let (line, name) = (self.line, self.name());
                self.found(Place::Key, words_at(&name, line));
            } else {
                self.next();
            }
        }
        self.end_prose();
    }

    /// Markdown.
    fn page(&mut self) {
        let mut fence = None;
        while self.peek(0).is_some() {
            let (text, line) = self.rest_of_line();
            let trimmed = text.trim_start();
            let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
            if mark.is_some() && (fence.is_none() || fence == mark) {
                self.end_prose();
                fence = if fence.is_none() { mark } else { None };
            } else if fence.is_some() {
                self.string(&text, line);
            } else {
                let begins = ["#", "- ", "* ", "|", ">"].iter().any(|mark| trimmed.starts_with(mark));
                if begins || trimmed.is_empty() {
                    self.end_prose();
                }
                self.comment(&text, line);
                if trimmed.starts_with('#') {
                    self.end_prose();
                }
            }
        }
        self.end_prose();
    }

    fn identifier(&mut self, name: &str, line: usize) {
        let is_type = name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
        self.found(if is_type { Place::Type } else { Place::Identifier }, words_at(name, line));
    }

    /// Prose that may go on in the next comment; what stands between backticks is code.
    fn comment(&mut self, text: &str, line: usize) {
        if text.trim().is_empty() {
            self.end_prose();
        }
        let (mut line, mut is_code) = (line, false);
        let parts = text.split('`');
        let last = text.matches('`').count();
        for (number, part) in parts.enumerate() {
            // A backtick that nothing closes on its line is a letter as any other.
            if is_code && number < last {
                self.end_prose();
                self.code_span(part, line);
            } else {
                self.prose(part, line);
            }
            line += part.matches('\n').count();
            is_code = !is_code;
        }
    }

    fn code_span(&mut self, text: &str, line: usize) {
        let names = names(text);
        for (name, _) in &names {
            self.identifier(name, line);
        }
        match names.as_slice() {
            [(name, _)] => self.found(Place::Key, words_at(name, line)),
            _ => self.keys(text, line),
        }
    }

    fn string(&mut self, text: &str, line: usize) {
        self.prose(text, line);
        self.end_prose();
        self.keys(text, line);
    }

    /// Words that are written like keys: the last of `local.rate`, and `rate = 0.1`.
    fn keys(&mut self, text: &str, line: usize) {
        for (name, at) in names(text) {
            let (before, after) = (&text[..at], text[at + name.len()..].trim_start_matches(' '));
            let mut back = before.chars().rev();
            let ends_path = back.next() == Some('.')
                && back.next().is_some_and(|letter| is_name_part(letter) || letter == ']')
                && !after.starts_with('.');
            let is_set = after.starts_with('=') && !after.starts_with("==");
            if ends_path || is_set {
                self.found(Place::Key, words_at(name, line + before.matches('\n').count()));
            }
        }
    }

    fn prose(&mut self, text: &str, mut line: usize) {
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            if ["http://", "https://"].iter().any(|start| rest.starts_with(start)) {
                rest =
                    rest.trim_start_matches(|letter: char| !letter.is_whitespace() && !")>".contains(letter));
                self.end_prose();
                continue;
            }
            if is_name_part(letter) {
                let end = rest.find(|letter| !is_name_part(letter)).unwrap_or(rest.len());
                self.prose.extend(words_at(&rest[..end], line));
                rest = &rest[end..];
                continue;
            }
            if !letter.is_whitespace() && !"-'*".contains(letter) {
                self.end_prose();
            }
            line += usize::from(letter == '\n');
            rest = &rest[letter.len_utf8()..];
        }
    }

    fn end_prose(&mut self) {
        let words = std::mem::take(&mut self.prose);
        self.found(Place::Prose, words);
    }

    fn found(&mut self, place: Place, words: Vec<Word>) {
        if !words.is_empty() {
            self.found.push(Passage { place, words });
        }
    }
}

fn is_name_part(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Every name in a text, with the byte at which it begins.
fn names(text: &str) -> Vec<(&str, usize)> {
    let parts = text.split(|letter| !is_name_part(letter)).filter(|part| !part.is_empty());
    parts.map(|part| (part, part.as_ptr().addr() - text.as_ptr().addr())).collect()
}

fn words_at(name: &str, line: usize) -> Vec<Word> {
    words_of(name).into_iter().map(|text| Word { line, text }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, text: &str, expected: &[(Place, usize, &str)]) {
        let found = passages(Path::new(file), text);
        let found: Vec<_> = found
            .iter()
            .map(|passage| {
                let words: Vec<_> = passage.words.iter().map(|word| word.text.as_str()).collect();
                (passage.place, passage.words[0].line, words.join(" "))
            })
            .collect();
        let found: Vec<_> =
            found.iter().map(|(place, line, words)| (*place, *line, words.as_str())).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_name_is_split_at_underscores_and_capitals() {
        let check = |name: &str, expected: &[&str]| assert_eq!(words_of(name), expected, "{name}");
        check("desk_rounds", &["desk", "rounds"]);
        check("DeskState", &["desk", "state"]);
        check("__HTTPDesk2", &["http", "desk", "2"]);
        check("desktop", &["desktop"]);
    }

    #[test]
    fn code_is_split_into_names_strings_and_comments() {
        use Place::{Identifier, Key, Prose, Type};
        check(
            "a.rs",
            "let x_y = 0x1F_u8 + Ab * CD;",
            &[(Identifier, 1, "let"), (Identifier, 1, "x y"), (Type, 1, "ab"), (Identifier, 1, "cd")],
        );
        check(
            "a.rs",
            "// one\n// two `local.c` three.\n\nfn",
            &[
                (Prose, 1, "one two"),
                (Identifier, 2, "local"),
                (Identifier, 2, "c"),
                (Key, 2, "c"),
                (Prose, 2, "three"),
                (Identifier, 4, "fn"),
            ],
        );
        check(
            "a.rs",
            "\"say \\\"x\\\" \\\n  y\\nz = 1\"",
            &[(Prose, 1, "say x y z"), (Prose, 2, "1"), (Key, 2, "z")],
        );
        check(
            "a.rs",
            "br##\"in \"# out\"## 'a' '\\'' 'b",
            &[(Prose, 1, "in"), (Prose, 1, "out"), (Identifier, 1, "b")],
        );
        check(
            "a.rs",
            "/* one /* two */\nthree */ r#if",
            &[(Prose, 1, "one two three"), (Identifier, 2, "if")],
        );
    }

    #[test]
    fn settings_are_split_into_keys_strings_and_comments() {
        use Place::{Key, Prose};
        check(
            "a.toml",
            "# who\n[a.b] # x\nc_d = \"e f\"\n\"g.h\" = 'i'",
            &[
                (Prose, 1, "who"),
                (Key, 2, "a"),
                (Key, 2, "b"),
                (Prose, 2, "x"),
                (Key, 3, "c d"),
                (Prose, 3, "e f"),
                (Prose, 4, "g"),
                (Prose, 4, "h"),
                (Key, 4, "h"),
                (Prose, 4, "i"),
            ],
        );
    }

    #[test]
    fn a_page_is_split_at_headings_cells_and_fences_and_links_out_are_passed() {
        use Place::{Identifier, Key, Prose};
        check(
            "a.md",
            "# One\ntwo\nthree (https://x.org/four)\n\n| `five` | six |\n```\nseven = 8\n```\n",
            &[
                (Prose, 1, "one"),
                (Prose, 2, "two three"),
                (Identifier, 5, "five"),
                (Key, 5, "five"),
                (Prose, 5, "six"),
                (Prose, 7, "seven"),
                (Prose, 7, "8"),
                (Key, 7, "seven"),
            ],
        );
    }
}
