//! Checks the glossary: one word for one thing. Lists the words that `docs/glossary.md` rejects, with their
//! replacements.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error;
use std::path::Path;

use super::scan::{Passage, Place, passages};
use super::sources;

/// Replaces each of the `rejected` words by `instead`.
struct Pair {
    /// In lower case; the words of a longer term are separated by blanks.
    rejected: &'static [&'static str],
    instead: &'static str,
    places: &'static [Place],
    /// Whether only a name of this single word is meant: `rate`, but not `failure_rate`.
    alone: bool,
    /// Longer terms that are fine although they contain a rejected one; `#` is any number.
    but_not: &'static [&'static str],
}

const fn pair(places: &'static [Place], rejected: &'static [&'static str], instead: &'static str) -> Pair {
    Pair { rejected, instead, places, alone: false, but_not: &[] }
}

const fn anywhere(rejected: &'static [&'static str], instead: &'static str) -> Pair {
    pair(&[Place::Identifier, Place::Type, Place::Key, Place::Prose], rejected, instead)
}

const fn names(rejected: &'static [&'static str], instead: &'static str) -> Pair {
    pair(&[Place::Identifier, Place::Type, Place::Key], rejected, instead)
}

const fn types(rejected: &'static [&'static str], instead: &'static str) -> Pair {
    pair(&[Place::Type], rejected, instead).alone()
}

const fn keys(rejected: &'static [&'static str], instead: &'static str) -> Pair {
    pair(&[Place::Key], rejected, instead).alone()
}

const fn prose(rejected: &'static [&'static str], instead: &'static str) -> Pair {
    pair(&[Place::Prose], rejected, instead)
}

impl Pair {
    const fn alone(self) -> Pair {
        Pair { alone: true, ..self }
    }

    const fn but_not(self, but_not: &'static [&'static str]) -> Pair {
        Pair { but_not, ..self }
    }
}

const PAIRS: &[Pair] = &[
    // Methods and models.
    anywhere(&["chance", "chances"], "probability").but_not(&["by chance"]),
    anywhere(&["law", "laws"], "distribution").but_not(&["power law", "law of large numbers"]),
    anywhere(
        &["judge", "judges", "judged", "judging", "judgings", "judgement", "judgements"],
        "evaluate, evaluation; decision (about a client); verdict (on a claim)",
    ),
    anywhere(&["figure", "figures"], "metric; figure is one of a paper").but_not(&[
        "figure #",
        "figures #",
        "tables and figures",
        "figures of papers",
    ]),
    anywhere(&["likeness", "acquaintance", "acquaintances", "alike"], "similarity, similar"),
    anywhere(&["slope", "slopes"], "gradient; activation_grads"),
    names(&["aim", "aims"], "target"),
    names(&["deviation", "deviations"], "std").but_not(&["standard deviation"]),
    names(&["note", "notes"], "metric"),
    names(&["piece", "pieces"], "tensor (of a model), chunk (of a transfer), batch (of test data)"),
    names(&["skill", "skills", "ability", "abilities"], "capabilities; step_features"),
    names(&["facts"], "context"),
    names(&["fate", "fates"], "planned outcome; state"),
    names(&["trainee", "trainees"], "training job"),
    names(&["untrained"], "selection_only"),
    anywhere(&["particulars"], "method card"),
    anywhere(&["urn", "urns"], "weight tree"),
    anywhere(&["shelf", "shelves"], "spill store"),
    prose(&["foretell", "foretells", "foretold"], "predict"),
    keys(&["rate"], "learning_rate"),
    keys(&["batch"], "batch_size"),
    keys(&["mu"], "proximal_mu"),
    types(&["order"], "Assignment"),
    types(&["pick"], "Selected"),
    types(&["answer"], "ClientUpdate"),
    types(&["returns"], "Responses"),
    types(&["spent"], "Cost"),
    types(&["account"], "ResponseInfo"),
    types(&["measured"], "ProbeResult"),
    types(&["allowed"], "NormBound"),
    types(&["needs"], "RequiredCapabilities"),
    types(&["sink"], "UpdateSink"),
    types(&["trained"], "TrainedUpdate"),
    types(&["done"], "LocalResult"),
    // Server, clients and network.
    anywhere(&["desk", "desks"], "coordinator"),
    names(&["course", "courses"], "recovery"),
    anywhere(&["errand", "errands"], "job"),
    anywhere(&["survey", "surveys", "surveyed"], "query"),
    anywhere(&["stranger", "strangers"], "unauthenticated connection"),
    anywhere(&["lobby"], "unauthenticated connections"),
    names(&["door", "inside"], "words of connections: accepted, authenticated"),
    names(&["pace"], "clock"),
    names(&["outlet", "outlets"], "outbound"),
    names(&["hang", "hangs", "hung"], "close (a connection); unresponsive (a client)"),
    anywhere(&["mute", "mutes"], "unresponsive"),
    names(&["hear", "hears", "heard"], "acknowledge, acknowledged").but_not(&["never heard"]),
    names(&["stated"], "reported"),
    types(&["told", "said", "say"], "what the message is: Reply, Request, Event"),
    types(&["came", "arrived", "unread"], "ReceivedUpdate, UndecodedUpdate"),
    names(&["invited"], "client_settings"),
    anywhere(&["swarm", "swarms"], "chaos trial"),
    anywhere(&["under way", "owed"], "in flight"),
    prose(&["in hand"], "in flight"),
    prose(&["comes back by itself", "come back by itself"], "retries with back-off"),
    prose(&["gone on with", "go on with"], "resumed, resume"),
    // Sentences.
    prose(&["so many"], "N, the number of, at most N").but_not(&["so many that"]),
    prose(&["whoever", "whomever"], "clients that, any client that"),
    prose(&["to be had"], "available; it exposes"),
    prose(&["whom to ask"], "client selection"),
];

/// A place in which some words are allowed.
struct Exception {
    /// The beginning of the path, from the root of the workspace.
    below: &'static str,
    /// The first words of pairs; empty for all.
    words: &'static [&'static str],
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[
    Exception { below: "xtask/src/shape/words.rs", words: &[], reason: "names what it rejects" },
    Exception { below: "docs/results/", words: &[], reason: "pages of studies as they were written" },
    Exception { below: "CHANGELOG.md", words: &[], reason: "history, in the words of its time" },
    Exception {
        below: "crates/ebb-sim/src/fleet.rs",
        words: &["under way"],
        reason: "a label of saved state",
    },
    Exception {
        below: "crates/ebb-cli/src/args.rs",
        words: &["swarm"],
        reason: "the command's old name and the default folder",
    },
    Exception {
        below: "crates/ebb-cli/src/commands/chaos/",
        words: &["swarm"],
        reason: "labels of random streams, so that the same seed gives the same faults as before",
    },
    Exception {
        below: "crates/ebbflow/examples/own_client/",
        words: &["slope"],
        reason: "the slope of a straight line",
    },
    Exception {
        below: "experiments/papers/",
        words: &["figure"],
        reason: "what papers published, by their figures",
    },
    Exception {
        below: "crates/ebb-record/src/old_names.rs",
        words: &[],
        reason: "names of version 1 of the record, which is still read",
    },
    Exception {
        below: "crates/ebb-record/src/row.rs",
        words: &["chance", "judge", "figure"],
        reason: "aliases for keys of version 1 of the record",
    },
    Exception { below: "crates/ebb-record/", words: &["note"], reason: "the key `notes` of a row" },
    Exception {
        below: "crates/ebb-papers/",
        words: &["figure", "note"],
        reason: "the figures of papers, and remarks on claims",
    },
    Exception {
        below: "crates/ebb-papers/src/",
        words: &["likeness", "law"],
        reason: "files of results keep their names",
    },
    Exception { below: "crates/ebb-report/src/html.rs", words: &["figure"], reason: "the element of a page" },
    Exception { below: "crates/ebb-report/", words: &["note"], reason: "remarks below tables" },
    Exception { below: "xtask/src/results/", words: &["note"], reason: "remarks on recipes" },
    Exception { below: "xtask/src/bench/", words: &["aim"], reason: "the speed that a benchmark aims at" },
    Exception {
        below: "crates/ebb-settings/src/renamed_keys.rs",
        words: &[],
        reason: "lists the old names of keys",
    },
    Exception {
        below: "crates/ebb-train/src/data/digits/mod.rs",
        words: &["judge"],
        reason: "the label of a random stream",
    },
    Exception {
        below: "xtask/src/bench/train.rs",
        words: &["chance"],
        reason: "a key that the programs of peers read",
    },
];

/// The words of the literature whose use is counted.
const OURS: &[&[&str]] = &[
    &["learning rate", "learning rates"],
    &["probability", "probabilities"],
    &["distribution", "distributions"],
    &["pseudo gradient", "pseudo gradients"],
    &["in flight"],
    &["retry", "retries"],
    &["straggler", "stragglers"],
    &["staleness"],
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The beginning of the paths to check, from the root of the workspace [default: all]
    #[arg(value_name = "PATH")]
    below: Option<String>,
}

/// Prints the places of rejected words, by word, and the counts of the words of the literature.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let files = sources(args.below.as_deref().unwrap_or_default());
    let findings = findings(&files, EXCEPTIONS);
    let mut by_pair = BTreeMap::<usize, Vec<&Finding>>::new();
    for finding in &findings {
        by_pair.entry(finding.pair).or_default().push(finding);
    }
    let mut by_pair: Vec<_> = by_pair.into_iter().collect();
    by_pair.sort_by_key(|(_, found)| std::cmp::Reverse(found.len()));
    for (pair, found) in &by_pair {
        let pair = &PAIRS[*pair];
        println!("{}: {} times; use {}", pair.rejected[0], found.len(), pair.instead);
        found.iter().for_each(|finding| println!("  {finding}"));
    }
    println!("\nRejected words:");
    by_pair.iter().for_each(|(pair, found)| println!("{:8}  {}", found.len(), PAIRS[*pair].rejected[0]));
    println!("\nWords of the literature:");
    let is_free =
        |name: &str| EXCEPTIONS.iter().any(|one| one.words.is_empty() && name.starts_with(one.below));
    let counted = files.iter().filter(|(name, _)| !is_free(name));
    let passages: Vec<_> = counted.flat_map(|(name, text)| passages(Path::new(name), text)).collect();
    for terms in OURS {
        let terms: Vec<_> = terms.iter().map(|term| split(term)).collect();
        println!("{:8}  {}", occurrences(&passages, &terms), terms[0].join(" "));
    }
    if args.below.is_none() {
        needless(&files).iter().for_each(|complaint| println!("\n{complaint}"));
    }
    match findings.len() {
        0 => Ok(()),
        many => Err(format!("{many} rejected words: docs/glossary.md says what to use").into()),
    }
}

/// A rejected word at a place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    pair: usize,
    file: String,
    line: usize,
    term: &'static str,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{}:{}: \"{}\": use {}", self.file, self.line, self.term, PAIRS[self.pair].instead)
    }
}

/// Every rejected word that no exception covers, once a line.
fn findings(files: &[(String, String)], exceptions: &[Exception]) -> BTreeSet<Finding> {
    let rejected = rejected();
    let mut findings = BTreeSet::new();
    for (file, text) in files {
        for passage in passages(Path::new(file), text) {
            findings.extend(in_passage(&passage, &rejected).map(|(pair, term, line)| Finding {
                pair,
                file: file.clone(),
                line,
                term,
            }));
        }
    }
    findings.retain(|finding| !exceptions.iter().any(|exception| exception.covers(finding)));
    findings
}

impl Exception {
    fn covers(&self, finding: &Finding) -> bool {
        let word = PAIRS[finding.pair].rejected[0];
        finding.file.starts_with(self.below) && (self.words.is_empty() || self.words.contains(&word))
    }
}

/// The exceptions that cover nothing.
fn needless(files: &[(String, String)]) -> Vec<String> {
    let all = findings(files, &[]);
    let needless = EXCEPTIONS.iter().filter(|exception| !all.iter().any(|finding| exception.covers(finding)));
    needless.map(|one| format!("the exception for {} is not needed ({})", one.below, one.reason)).collect()
}

/// A term to look for: the number of its pair, the text, and its words.
type Term = (usize, &'static str, Vec<&'static str>);

/// Every rejected term, by its first word.
fn rejected() -> HashMap<&'static str, Vec<Term>> {
    let mut rejected = HashMap::<_, Vec<Term>>::new();
    for (number, pair) in PAIRS.iter().enumerate() {
        for &term in pair.rejected {
            let words = split(term);
            rejected.entry(words[0]).or_default().push((number, term, words));
        }
    }
    rejected
}

/// The rejected terms in a passage, with their pairs and lines.
fn in_passage(
    passage: &Passage,
    rejected: &HashMap<&'static str, Vec<Term>>,
) -> impl Iterator<Item = (usize, &'static str, usize)> {
    passage.words.iter().enumerate().flat_map(move |(at, word)| {
        let terms = rejected.get(word.text.as_str()).map(Vec::as_slice).unwrap_or_default();
        terms.iter().filter_map(move |(number, term, words)| {
            let pair = &PAIRS[*number];
            let is_meant = pair.places.contains(&passage.place)
                && stands_at(passage, at, words)
                && (!pair.alone || words.len() == passage.words.len())
                && !pair.but_not.iter().any(|fine| is_within(passage, at, &split(fine)));
            is_meant.then_some((*number, *term, word.line))
        })
    })
}

fn stands_at(passage: &Passage, at: usize, words: &[&str]) -> bool {
    let there = passage.words[at..].iter().map(|word| word.text.as_str());
    let is_one =
        |(there, word): (&str, &&str)| there == *word || *word == "#" && there.chars().all(char::is_numeric);
    passage.words.len() >= at + words.len() && there.zip(words).all(is_one)
}

/// Whether the word at this place is part of a longer term.
fn is_within(passage: &Passage, at: usize, words: &[&str]) -> bool {
    (at.saturating_sub(words.len() - 1)..=at).any(|from| stands_at(passage, from, words))
}

fn occurrences(passages: &[Passage], terms: &[Vec<&str>]) -> usize {
    let at_word = |passage: &Passage, at| terms.iter().any(|term| stands_at(passage, at, term));
    let in_one = |passage: &Passage| (0..passage.words.len()).filter(|at| at_word(passage, *at)).count();
    passages.iter().map(in_one).sum()
}

fn split(term: &'static str) -> Vec<&'static str> {
    term.split(' ').collect()
}

#[cfg(test)]
mod tests {
    use super::super::assert_none;
    use super::*;

    /// How many findings are left from before the glossary. The number is only lowered.
    const NOT_YET: usize = 501;

    #[test]
    fn no_rejected_word_comes_back() {
        let files = sources("");
        let complaints = findings(&files, EXCEPTIONS);
        let shown: Vec<_> = complaints.iter().map(Finding::to_string).collect();
        assert_eq!(shown.len(), NOT_YET, "see `cargo xtask words`; after fewer findings lower NOT_YET");
        assert_none(&needless(&files));
    }

    fn check(file: &str, text: &str, expected: &[&str]) {
        let found = findings(&[(file.to_owned(), text.to_owned())], EXCEPTIONS);
        let mut found: Vec<_> = found
            .iter()
            .map(|finding| format!("{}:{} {}", finding.file, finding.line, finding.term))
            .collect();
        found.sort();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_rejected_word_is_found_in_names_comments_strings_keys_and_pages() {
        check(
            "a.rs",
            "struct DeskState;\nlet desk_rounds = DESKS;",
            &["a.rs:1 desk", "a.rs:2 desk", "a.rs:2 desks"],
        );
        check("a.rs", "/// The job is under\n/// way.\nfn f() {}", &["a.rs:1 under way"]);
        check("a.rs", "f(\"{x} of\\nso many\")", &["a.rs:1 so many"]);
        check("a.rs", "f(r#\"[local]\nrate = 1\"#)", &["a.rs:2 rate"]);
        check("a.rs", "// See `local.rate` and `Told`.", &["a.rs:1 rate", "a.rs:1 told"]);
        check("a.toml", "[local]\nrate = 0.1 # the law\n", &["a.toml:2 law", "a.toml:2 rate"]);
        check(
            "a.md",
            "# The desk\n\nso\nmany | `rate` |\n",
            &["a.md:1 desk", "a.md:3 so many", "a.md:4 rate"],
        );
        check(
            "a.proto",
            "message Answer { repeated Piece piece = 1; }",
            &["a.proto:1 answer", "a.proto:1 piece"],
        );
    }

    #[test]
    fn what_only_looks_like_a_rejected_word_passes() {
        check("a.rs", "struct Desktop;\nlet lawful = outlaw_s;", &[]);
        check("a.rs", "// Of course, they told the failure rate, so. Many of figures 3 and 4.", &[]);
        check("a.rs", "let rate = failure_rate; fn told() {} f(\"rate: {rate}\")", &[]);
        check("a.toml", "failure_rate = 0.1\nkind = \"rate\"\n", &[]);
        check("a.rs", "const TOLD: f64 = 1.0; f(\"package/batch.png\")", &[]);
        check("a.md", "the rate of failures, so many that https://x.org/desk does", &[]);
        check("a.sh", "desk", &[]);
    }

    #[test]
    fn an_exception_covers_its_files_and_words_only() {
        check("crates/ebb-papers/a.rs", "// a figure of chance", &["crates/ebb-papers/a.rs:1 chance"]);
        check("docs/results/a.md", "a figure of chance", &[]);
    }

    #[test]
    fn the_words_of_the_literature_are_counted() {
        let passages =
            passages(Path::new("a.rs"), "// A pseudo-gradient.\nlet pseudo_gradients = PseudoGradient;");
        assert_eq!(occurrences(&passages, &[split("pseudo gradient")]), 2);
        assert_eq!(occurrences(&passages, &OURS[3].iter().map(|term| split(term)).collect::<Vec<_>>()), 3);
    }
}
