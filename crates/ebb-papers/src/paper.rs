//! Published items of a paper, and the tests that decide each claim: `experiments/papers/*.toml`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// A paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// The short name, such as `fdms`.
    #[serde(skip)]
    pub name: String,
    /// The title.
    pub title: String,
    /// The reference.
    pub reference: String,
    /// The tables of our own results.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
    /// The tables and figures of the paper.
    #[serde(rename = "item")]
    pub items: Vec<Item>,
}

/// How closely the authors' protocol is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Runs of minutes, on data that need no download.
    Small,
    /// The authors' protocol, as far as it is known and was affordable.
    Paper,
}

/// A table of our own results, in a CSV file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The name by which claims refer to it.
    pub name: String,
    /// The scale of the runs.
    pub scale: Scale,
    /// How the table is made.
    pub kind: SourceKind,
    /// The path of the grid or configuration below `experiments/`.
    pub file: Option<String>,
    /// The source whose records the table is computed from.
    pub of: Option<String>,
    /// The time that the runs take on two cores, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// The data sets that the runs need.
    #[serde(default)]
    pub needs: Vec<String>,
    /// A remark added to every verdict from this source.
    pub note: Option<String>,
}

/// How a source is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// By running a grid.
    Grid,
    /// By simulating client selection, without training.
    Selection,
    /// How well the similarity of clients separates true clusters, from the records of another source.
    Likeness,
    /// The round from which excluding a leaver lowers the loss of those that stay, from the records of
    /// another source.
    Crossings,
}

/// A table or a figure of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// The names of the item; the first is shown.
    pub ids: Vec<String>,
    /// The title.
    pub title: String,
    /// What the item shows.
    pub shows: String,
    /// What cannot be reproduced, or differs.
    pub note: Option<String>,
    /// The paper's numbers.
    pub published: Option<Published>,
    /// Our tables.
    #[serde(default, rename = "table")]
    pub tables: Vec<ResultTable>,
    /// The paper's claims about the item.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

/// The paper's numbers, as printed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The headings of all columns but the first.
    pub columns: Vec<String>,
    /// A name, then its numbers.
    pub rows: Vec<Vec<String>>,
}

/// A table of our own results.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultTable {
    /// The scale of the runs.
    pub scale: Scale,
    /// The title, where an item has several tables.
    pub title: Option<String>,
    /// The source of the values.
    pub source: String,
    /// The values of the varied keys.
    #[serde(default, rename = "where")]
    pub at: BTreeMap<String, String>,
    /// Columns of the source, with their headings.
    pub columns: Vec<(String, String)>,
    /// The methods; empty for all.
    #[serde(default)]
    pub methods: Vec<String>,
    /// The factor that values are multiplied by.
    #[serde(default = "one")]
    pub factor: f64,
    /// The number of decimals.
    #[serde(default = "three")]
    pub digits: usize,
}

/// A claim of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim in a sentence.
    pub words: String,
    /// The test at small scale, if there is one.
    pub small: Option<ClaimTest>,
    /// The test at the paper's scale, if there is one.
    pub paper: Option<ClaimTest>,
}

/// A difference of two sums of metrics, compared with a bound.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimTest {
    /// The source of terms that do not name another.
    pub source: String,
    /// The column of terms that do not name another.
    pub column: Option<String>,
    /// The values of the varied keys, for terms that do not name others.
    #[serde(default, rename = "where")]
    pub at: BTreeMap<String, String>,
    /// The terms that are added.
    pub plus: Vec<Term>,
    /// The terms that are subtracted.
    #[serde(default)]
    pub minus: Vec<Term>,
    /// The claim is that the difference is greater than this.
    pub above: Option<f64>,
    /// The claim is that the difference is less than this.
    pub below: Option<f64>,
    /// The claim is that all values are equal, bit by bit.
    #[serde(default)]
    pub equal: bool,
    /// The factor that differences are multiplied by.
    #[serde(default = "one")]
    pub factor: f64,
    /// The unit of differences.
    #[serde(default)]
    pub unit: String,
    /// The value of a run that never reached the level.
    pub never: Option<f64>,
    /// A remark added to the verdict.
    pub note: Option<String>,
}

/// A metric of a method, by seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "WrittenTerm")]
pub struct Term {
    /// The method.
    pub method: String,
    /// The source, if another than the claim's.
    pub source: Option<String>,
    /// The column, if another than the claim's.
    pub column: Option<String>,
    /// The values of the varied keys, if others than the claim's.
    pub at: Option<BTreeMap<String, String>>,
}

/// A term as written: only a method's name if the rest is as in the claim.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenTerm {
    Method(String),
    Whole {
        method: String,
        source: Option<String>,
        column: Option<String>,
        #[serde(rename = "where")]
        at: Option<BTreeMap<String, String>>,
    },
}

impl From<WrittenTerm> for Term {
    fn from(written: WrittenTerm) -> Self {
        match written {
            WrittenTerm::Method(method) => Term { method, source: None, column: None, at: None },
            WrittenTerm::Whole { method, source, column, at } => Term { method, source, column, at },
        }
    }
}

fn one() -> f64 {
    1.0
}

fn three() -> usize {
    3
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scale::Small => "small",
            Scale::Paper => "paper",
        })
    }
}

impl Paper {
    /// Reads a paper's file and checks that its parts fit together.
    pub fn parse(name: &str, text: &str) -> Result<Paper, String> {
        let mut paper: Paper = toml::from_str(text).map_err(|error| error.to_string())?;
        paper.name = name.to_owned();
        paper.check().map_err(|message| format!("{name}: {message}"))?;
        Ok(paper)
    }

    /// A source by its name.
    pub fn source(&self, name: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.name == name)
    }

    /// An item by any of its names.
    pub fn item(&self, id: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.ids.iter().any(|own| own == id))
    }

    /// The sources of an item's tables and claims at a scale; sources come before those computed from them.
    pub fn sources_of(&self, item: &Item, scale: Scale) -> Vec<&Source> {
        let mut found: Vec<&Source> = Vec::new();
        for name in item.source_names(scale) {
            let source = self.source(&name).filter(|source| source.scale == scale);
            let before = source.and_then(|source| self.source(source.of.as_deref()?));
            for one in before.into_iter().chain(source) {
                if !found.iter().any(|known| known.name == one.name) {
                    found.push(one);
                }
            }
        }
        found
    }

    fn check(&self) -> Result<(), String> {
        for (at, source) in self.sources.iter().enumerate() {
            if self.sources[..at].iter().any(|other| other.name == source.name) {
                return Err(format!("two sources are named \"{}\"", source.name));
            }
            let derived = matches!(source.kind, SourceKind::Likeness | SourceKind::Crossings);
            let known = source.of.as_ref().is_some_and(|of| self.source(of).is_some());
            if derived != known || derived == source.file.is_some() {
                let needed = "`file`, or `of` with the source that it is computed from";
                return Err(format!("source \"{}\" needs {needed}", source.name));
            }
        }
        for (at, item) in self.items.iter().enumerate() {
            let Some(first) = item.ids.first() else { return Err("an item has no id".to_owned()) };
            if self.items[..at].iter().any(|other| other.ids.iter().any(|id| item.ids.contains(id))) {
                return Err(format!("two items are named \"{first}\""));
            }
            for scale in [Scale::Small, Scale::Paper] {
                for name in item.source_names(scale) {
                    if self.source(&name).is_none_or(|source| source.scale != scale) {
                        return Err(format!(
                            "{first}: there is no source \"{name}\" at scale {scale}; add one, or name another"
                        ));
                    }
                }
                for test in item.claims.iter().filter_map(|claim| claim.at(scale)) {
                    test.check().map_err(|message| format!("{first}: {message}"))?;
                }
            }
        }
        Ok(())
    }
}

impl Source {
    /// The path below `experiments/` of the shipped results.
    pub fn results_file(&self, paper: &str) -> String {
        match &self.file {
            Some(file) => file.replace(".toml", ".csv"),
            None => format!("papers/made/{paper}-{}.csv", self.name),
        }
    }
}

impl Item {
    /// The name that is shown.
    pub fn id(&self) -> &str {
        self.ids.first().map_or("", String::as_str)
    }

    /// Whether the item has tables or claims at a scale.
    pub fn has(&self, scale: Scale) -> bool {
        !self.source_names(scale).is_empty()
    }

    fn source_names(&self, scale: Scale) -> Vec<String> {
        let tables = self.tables.iter().filter(|table| table.scale == scale);
        let tests = self.claims.iter().filter_map(|claim| claim.at(scale));
        let of_test = |test: &ClaimTest| -> Vec<String> {
            let own = test.plus.iter().chain(&test.minus).filter_map(|term| term.source.clone());
            std::iter::once(test.source.clone()).chain(own).collect()
        };
        tables.map(|table| table.source.clone()).chain(tests.flat_map(of_test)).collect()
    }
}

impl Claim {
    /// The test at a scale.
    pub fn at(&self, scale: Scale) -> Option<&ClaimTest> {
        match scale {
            Scale::Small => self.small.as_ref(),
            Scale::Paper => self.paper.as_ref(),
        }
    }
}

impl ClaimTest {
    fn check(&self) -> Result<(), String> {
        let bounds = usize::from(self.above.is_some()) + usize::from(self.below.is_some());
        if bounds + usize::from(self.equal) != 1 {
            return Err("a claim needs exactly one of `above`, `below` and `equal`".to_owned());
        }
        let named = |term: &Term| term.column.is_some() || self.column.is_some();
        if self.plus.is_empty() || !self.plus.iter().chain(&self.minus).all(named) {
            return Err("a claim needs terms in `plus`, and a column for each".to_owned());
        }
        Ok(())
    }
}
