//! Checks that comments keep to the width of the code, and pages to 120 columns.

use super::{assert_none, read, sources};
use crate::workspace;

const PAGE_WIDTH: usize = 120;

/// The beginnings of paths that are not wrapped yet, each with its greatest number of long lines. Numbers may
/// only fall; an entry goes when it reaches 0.
const NOT_YET: &[(&str, usize)] = &[
    ("ARCHITECTURE.md", 15),
    ("CHANGELOG.md", 53),
    ("README.md", 12),
    ("crates/ebb-cli/", 46),
    ("crates/ebb-fetch/", 24),
    ("crates/ebb-net/", 4),
    ("crates/ebb-papers/", 13),
    ("crates/ebb-plot/", 12),
    ("crates/ebb-report/", 14),
    ("crates/ebb-sim/", 88),
    ("crates/ebbflow/", 25),
    ("docs/benchmarks.md", 56),
    ("docs/configuration.md", 209),
    ("docs/decisions/", 161),
    ("docs/deploy.md", 32),
    ("docs/record.md", 37),
    ("docs/results/", 3),
    ("docs/threat-model.md", 65),
    ("examples/torch/README.md", 7),
];

#[test]
fn comments_and_pages_keep_to_their_widths() {
    let files = sources("");
    let comment_width = comment_width(&read(&workspace().join("rustfmt.toml")));
    let mut complaints: Vec<_> =
        files.iter().flat_map(|(name, text)| too_long(name, text, comment_width)).collect();
    for (below, at_most) in NOT_YET {
        let many = complaints.iter().filter(|complaint| complaint.starts_with(below)).count();
        if many > *at_most {
            complaints.push(format!("{many} lines of {below} are too long; at most {at_most} may still be"));
        } else {
            complaints.retain(|complaint| !complaint.starts_with(below));
        }
    }
    assert_none(&complaints);
}

/// The width to which the formatter keeps code.
fn comment_width(text: &str) -> usize {
    let table: toml::Table = text.parse().expect("rustfmt.toml is TOML");
    let width = table.get("max_width").and_then(toml::Value::as_integer);
    width.and_then(|width| usize::try_from(width).ok()).expect("rustfmt.toml has max_width")
}

/// The lines of a file that are too long and can be broken.
fn too_long(name: &str, text: &str, comment_width: usize) -> Vec<String> {
    let (width, lines): (_, Vec<_>) = match name.rsplit_once('.') {
        Some((_, "rs")) => (comment_width, comments(text)),
        Some((_, "md")) => (PAGE_WIDTH, page_lines(text)),
        _ => return Vec::new(),
    };
    let lines = lines.into_iter().map(|(at, line)| (at, line, line.chars().count()));
    let lines = lines.filter(|(_, line, columns)| *columns > width && is_breakable(line));
    lines
        .map(|(at, _, columns)| format!("{name}:{at} has {columns} columns; at most {width} are allowed"))
        .collect()
}

/// Comment lines with their numbers.
fn comments(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    lines.filter(|(_, line)| line.trim_start().starts_with("//")).collect()
}

/// Lines of prose: no headings, no table rows, nothing in a fence.
fn page_lines(text: &str) -> Vec<(usize, &str)> {
    let mut fence = None;
    let mut kept = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        if mark.is_some() && (fence.is_none() || fence == mark) {
            fence = if fence.is_none() { mark } else { None };
        } else if fence.is_none() && !trimmed.starts_with(['#', '|']) {
            kept.push((at + 1, line));
        }
    }
    kept
}

/// Whether the line can be broken: a blank after its mark and outside of a link.
fn is_breakable(line: &str) -> bool {
    let marks = |letter: char| letter.is_whitespace() || "/!->*".contains(letter);
    let mut without_links = line.trim_start_matches(marks).trim_end().to_owned();
    // The innermost link first, because a link may contain an image.
    while let Some((from, to)) = link(&without_links) {
        without_links.replace_range(from..to, "x");
    }
    without_links.contains(' ')
}

/// The range of a link without another one in it: `[text](target)`, or `[text]: target`.
fn link(text: &str) -> Option<(usize, usize)> {
    let middle = text.find("](").or_else(|| text.find("]: "))?;
    let from = text[..middle].rfind('[')?;
    let is_definition = !text[middle..].starts_with("](");
    let end = if is_definition { text.len() } else { middle + text[middle..].find(')')? + 1 };
    Some((from, end))
}

mod made_up {
    use super::*;

    fn check(name: &str, text: &str, expected: &[&str]) {
        assert_eq!(too_long(name, text, 110), expected, "{text}");
    }

    /// A line of this many columns, in words of four letters.
    fn wide(columns: usize) -> String {
        "word ".repeat(columns / 5) + &"x".repeat(columns % 5)
    }

    #[test]
    fn the_width_of_comments_is_that_of_the_formatter() {
        assert_eq!(comment_width("max_width = 99\n"), 99);
    }

    #[test]
    fn a_comment_beyond_the_width_is_named() {
        let complaint = "a.rs:2 has 111 columns; at most 110 are allowed";
        check("a.rs", &format!("fn f() {{}}\n    /// {}", wide(103)), &[complaint]);
        check("a.rs", &format!("//! {}", wide(107)), &["a.rs:1 has 111 columns; at most 110 are allowed"]);
        check("a.rs", &format!("// {}\nlet x = \"{}\";", wide(107).replace('w', "ü"), wide(200)), &[]);
        check("a.rs", &format!("// https://x.org/{}", "x".repeat(200)), &[]);
    }

    #[test]
    fn a_line_of_a_page_beyond_the_width_is_named() {
        check("a.md", &format!("x\n{}", wide(121)), &["a.md:2 has 121 columns; at most 120 are allowed"]);
        check(
            "a.md",
            &format!("- [a b](c) {}", wide(120)),
            &["a.md:1 has 131 columns; at most 120 are allowed"],
        );
        check("a.md", &wide(119), &[]);
        let long = wide(200);
        let text = format!(
            "# {long}\n| {long} |\n```\n{long}\n```\n- [{long}](target)\n[![{long}](a)](b)\n[a b]: {long}"
        );
        check("a.md", &text, &[]);
    }
}
