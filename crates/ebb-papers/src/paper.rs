//! What a paper published, item by item, and by which figures of ours each claim is judged: `experiments/papers/*.toml`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// One paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// How it is called here: `fdms`.
    #[serde(skip)]
    pub name: String,
    /// What it is about.
    pub title: String,
    /// Where it was published.
    pub reference: String,
    /// The tables of figures of ours.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
    /// Its tables and figures.
    #[serde(rename = "item")]
    pub items: Vec<Item>,
}

/// How much of the authors' protocol is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Minutes, on data that need no download.
    Small,
    /// The authors' protocol, as far as it is known and time allows.
    Paper,
}

/// A table of figures of ours, in a CSV.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// How it is called in its paper's file.
    pub name: String,
    /// At which scale.
    pub scale: Scale,
    /// How it comes about.
    pub kind: SourceKind,
    /// The grid or configuration, below `experiments/`.
    pub file: Option<String>,
    /// The source whose records it is made from.
    pub of: Option<String>,
    /// How long it takes on two cores.
    #[serde(default)]
    pub seconds: f64,
    /// The data sets it needs.
    #[serde(default)]
    pub needs: Vec<String>,
    /// What is to be said with every verdict from it.
    pub note: Option<String>,
}

/// How a source comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// A grid is run.
    Grid,
    /// Selection is played, without training.
    Selection,
    /// How well likeness tells true clusters apart, from the friends in the records of another source.
    Likeness,
    /// When the loss of those that stay is lower without whoever left, from the records of another source.
    Crossings,
}

/// A table or a figure of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Its names; the first is shown.
    pub ids: Vec<String>,
    /// What it is about.
    pub title: String,
    /// What it shows.
    pub shows: String,
    /// What cannot be repeated of it, or differs.
    pub note: Option<String>,
    /// The paper's numbers.
    pub published: Option<Published>,
    /// Ours.
    #[serde(default, rename = "table")]
    pub tables: Vec<ResultTable>,
    /// What the paper says that it shows.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

/// The paper's numbers, as it has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The headings after the first.
    pub columns: Vec<String>,
    /// A name, then its numbers.
    pub rows: Vec<Vec<String>>,
}

/// A table of ours.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultTable {
    /// At which scale.
    pub scale: Scale,
    /// What it is about, where an item has several.
    pub title: Option<String>,
    /// The source of its figures.
    pub source: String,
    /// The values of keys that vary.
    #[serde(default, rename = "where")]
    pub at: BTreeMap<String, String>,
    /// Columns of the source, and their headings.
    pub columns: Vec<(String, String)>,
    /// The methods; empty for all.
    #[serde(default)]
    pub methods: Vec<String>,
    /// What figures are multiplied by.
    #[serde(default = "one")]
    pub factor: f64,
    /// How many digits stand behind the point.
    #[serde(default = "three")]
    pub digits: usize,
}

/// What the paper says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// In a sentence.
    pub words: String,
    /// How it is judged at small scale, if it is.
    pub small: Option<ClaimTest>,
    /// How it is judged at the paper's scale, if it is.
    pub paper: Option<ClaimTest>,
}

/// A sum of figures less another, held against a bound.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimTest {
    /// The source of figures that do not name another.
    pub source: String,
    /// The column of figures that do not name another.
    pub column: Option<String>,
    /// The values of keys that vary, for figures that do not name others.
    #[serde(default, rename = "where")]
    pub at: BTreeMap<String, String>,
    /// What is added.
    pub plus: Vec<Term>,
    /// What is taken away.
    #[serde(default)]
    pub minus: Vec<Term>,
    /// The claim is that the difference is above this.
    pub above: Option<f64>,
    /// The claim is that the difference is below this.
    pub below: Option<f64>,
    /// The claim is that there is no difference, to the bit.
    #[serde(default)]
    pub equal: bool,
    /// What differences are multiplied by.
    #[serde(default = "one")]
    pub factor: f64,
    /// What they are counted in.
    #[serde(default)]
    pub unit: String,
    /// What counts where a figure was never reached.
    pub never: Option<f64>,
    /// What is to be said with the verdict.
    pub note: Option<String>,
}

/// A figure of a method, by seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "WrittenTerm")]
pub struct Term {
    /// The method.
    pub method: String,
    /// Its source, if another.
    pub source: Option<String>,
    /// Its column, if another.
    pub column: Option<String>,
    /// The values of keys that vary, if others.
    pub at: Option<BTreeMap<String, String>>,
}

/// A term as it is written: a method's name alone, where the rest is the claim's.
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
    /// Reads a paper's file, and checks that it fits together.
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

    /// The sources that an item is judged by at a scale, those that others are made from first.
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
                return Err(format!("source \"{}\" needs a file, or what it is made from", source.name));
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
                        return Err(format!("{first}: there is no source \"{name}\" at scale {scale}"));
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
    /// Where its figures lie that come with the program, below `experiments/`.
    pub fn results_file(&self, paper: &str) -> String {
        match &self.file {
            Some(file) => file.replace(".toml", ".csv"),
            None => format!("papers/made/{paper}-{}.csv", self.name),
        }
    }
}

impl Item {
    /// The name it is shown with.
    pub fn id(&self) -> &str {
        self.ids.first().map_or("", String::as_str)
    }

    /// Whether anything of it is run at a scale.
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
    /// How it is judged at a scale.
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
            return Err("a claim is above something, below something, or equal".to_owned());
        }
        let named = |term: &Term| term.column.is_some() || self.column.is_some();
        if self.plus.is_empty() || !self.plus.iter().chain(&self.minus).all(named) {
            return Err("a claim needs figures to add, and a column for each".to_owned());
        }
        Ok(())
    }
}
