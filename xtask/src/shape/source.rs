//! The compiled part of a source file: no comments, no test modules.

/// The text without comment lines and without items below `#[cfg(test)]`.
pub(super) fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        if line.trim() != "#[cfg(test)]" {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let item = lines.by_ref().find(|line| !line.trim_start().starts_with("#["));
        if item.is_some_and(|item| item.trim_end().ends_with('{')) {
            // The formatter indents the end of an item like its beginning.
            let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
            let closed = lines.by_ref().any(|line| line.trim_end_matches(';') == end);
            assert!(closed, "an item for tests does not end: {item:?}");
        }
    }
    kept
}

/// The modules that a file declares for tests only, and whose text is in other files.
pub(super) fn test_modules(text: &str) -> Vec<String> {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]").map(|pair| pair[1]);
    let name = |item: &str| Some(item.strip_suffix(';')?.rsplit_once("mod ")?.1.to_owned());
    declared.filter_map(name).collect()
}

#[test]
fn only_what_is_compiled_into_the_crate_is_kept() {
    let text = "//! About println!\nuse a;\n#[cfg(test)]\nmod testing;\nfn f() {}\n#[cfg(test)]\n\
                pub(crate) mod tests {\n    fn g() {\n    }\n}\nfn h() {}\n    // note\n\
                #[cfg(test)]\nuse a::{\n    b,\n};\nfn i() {}\n";
    assert_eq!(without_tests(text), "use a;\nfn f() {}\nfn h() {}\nfn i() {}\n");
    assert_eq!(test_modules(text), ["testing"]);
}
