//! Tables for papers and pages: Markdown and LaTeX.

use crate::output::TextTable;

/// A title, which may be empty, and the table below it.
pub(crate) type TitledTable = (String, TextTable);

/// The tables as Markdown, one after the other.
pub(crate) fn markdown(tables: &[TitledTable]) -> String {
    let one = |(title, table): &TitledTable| {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut lines =
            table.rows().iter().map(|row| line(row.iter().map(|cell| escape_markdown(cell)).collect()));
        let head = lines.next().unwrap_or_default();
        let alignments =
            alignments(table).into_iter().map(|left| if left { ":---" } else { "---:" }.to_owned());
        let below: String = lines.collect();
        let title =
            if title.is_empty() { String::new() } else { format!("**{}**\n\n", escape_markdown(title)) };
        format!("{title}{head}{}{below}", line(alignments.collect()))
    };
    tables.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// The tables as LaTeX, one after the other, each a `tabular` that can stand alone or in a float. The
/// document needs only the package `booktabs`.
pub(crate) fn latex(tables: &[TitledTable]) -> String {
    let one = |(title, table): &TitledTable| {
        let line = |row: &Vec<String>| {
            format!("{} \\\\\n", row.iter().map(|cell| escape_latex(cell)).collect::<Vec<_>>().join(" & "))
        };
        let mut lines = table.rows().iter().map(line);
        let head = lines.next().unwrap_or_default();
        let alignments: String =
            alignments(table).into_iter().map(|left| if left { 'l' } else { 'r' }).collect();
        let below: String = lines.collect();
        let title = escape_latex(title);
        let title = if title.is_empty() {
            title
        } else {
            format!("\\noindent\\textbf{{{title}}}\\par\\smallskip\n\\noindent\n")
        };
        format!(
            "{title}\\begin{{tabular}}{{{alignments}}}\n\\toprule\n{head}\\midrule\n{below}\\bottomrule\n\\end{{tabular}}\n"
        )
    };
    let all: Vec<_> = tables.iter().map(one).collect();
    format!("% \\usepackage{{booktabs}}\n{}", all.join("\\par\\medskip\n"))
}

/// Whether each column holds words.
fn alignments(table: &TextTable) -> Vec<bool> {
    let n_columns = table.rows().iter().map(Vec::len).max().unwrap_or(0);
    (0..n_columns).map(|column| column < table.n_word_columns()).collect()
}

/// Escapes text for Markdown, on one line.
fn escape_markdown(text: &str) -> String {
    let mut plain = String::new();
    for character in text.chars() {
        if r"\`*_[]<>|~&$".contains(character) {
            plain.push('\\');
        }
        plain.push(if character.is_control() { ' ' } else { character });
    }
    plain
}

/// Escapes text for LaTeX, on one line.
fn escape_latex(text: &str) -> String {
    let mut plain = String::new();
    let mut before = ' ';
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let digit_next = characters.peek().is_some_and(char::is_ascii_digit);
        match character {
            '\\' => plain.push_str("\\textbackslash{}"),
            '~' => plain.push_str("\\textasciitilde{}"),
            '^' => plain.push_str("\\textasciicircum{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => plain.extend(['\\', character]),
            '<' | '>' | '|' => plain.extend(['$', character, '$']),
            '±' => plain.push_str("$\\pm$"),
            '-' if before == ' ' && digit_next => plain.push_str("$-$"),
            // At the start of a line, LaTeX would take these for an argument of the line before.
            '[' | '*' => plain.extend(['{', character, '}']),
            // Two in a row would become a ligature.
            '-' | '\'' | '`' if before == character => plain.extend(['{', '}', character]),
            '"' => plain.push_str("\\char34{}"),
            _ => plain.push(if character.is_control() { ' ' } else { character }),
        }
        before = character;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(1, ["method", "accuracy %, ± sd"]);
        table.row(["fast_prox", "81.25 ± 0.500"]);
        table.row(["a|b & c", "-0.300 ± 0.100 (tied)"]);
        table
    }

    #[test]
    fn markdown_by_hand() {
        let expected = "| method | accuracy %, ± sd |\n| :--- | ---: |\n| fast\\_prox | 81.25 ± 0.500 |\n\
                        | a\\|b \\& c | -0.300 ± 0.100 (tied) |\n";
        assert_eq!(markdown(&[(String::new(), table())]), expected);
        let titled = |title: &str| (title.to_owned(), table());
        let two = format!("**x.y = 0.5**\n\n{expected}\n**x.y = 1**\n\n{expected}");
        assert_eq!(markdown(&[titled("x.y = 0.5"), titled("x.y = 1")]), two);
    }

    #[test]
    fn latex_by_hand() {
        let expected = "\\begin{tabular}{lr}\n\\toprule\nmethod & accuracy \\%, $\\pm$ sd \\\\\n\\midrule\n\
                        fast\\_prox & 81.25 $\\pm$ 0.500 \\\\\n\
                        a$|$b \\& c & $-$0.300 $\\pm$ 0.100 (tied) \\\\\n\\bottomrule\n\\end{tabular}\n";
        let package = "% \\usepackage{booktabs}\n";
        assert_eq!(latex(&[(String::new(), table())]), format!("{package}{expected}"));
        let titled = |title: &str| (title.to_owned(), table());
        let head = |title: &str| format!("\\noindent\\textbf{{{title}}}\\par\\smallskip\n\\noindent\n");
        let two = format!(
            "{package}{}{expected}\\par\\medskip\n{}{expected}",
            head("x\\_y = 1"),
            head("x\\_y = 2")
        );
        assert_eq!(latex(&[titled("x_y = 1"), titled("x_y = 2")]), two);
    }

    #[test]
    fn what_latex_would_take_for_its_own_is_set_as_it_is() {
        let check = |text: &str, expected: &str| assert_eq!(escape_latex(text), expected);
        check("50 % & #1 of $x_2$", "50 \\% \\& \\#1 of \\$x\\_2\\$");
        check("{a}^~\\b", "\\{a\\}\\textasciicircum{}\\textasciitilde{}\\textbackslash{}b");
        check("[x]*", "{[}x]{*}");
        check("a<b|c>d", "a$<$b$|$c$>$d");
        check("fl-fdms a--b -1 x-1 - -", "fl-fdms a-{}-b $-$1 x-1 - -");
        check("say \"no\"\nnow", "say \\char34{}no\\char34{} now");
    }

    #[test]
    fn what_markdown_would_take_for_its_own_is_shown_as_it_is() {
        assert_eq!(
            escape_markdown("*a* _b_ `c` [d](e) <f> \\ ~g~\nh"),
            "\\*a\\* \\_b\\_ \\`c\\` \\[d\\](e) \\<f\\> \\\\ \\~g\\~ h"
        );
    }
}
