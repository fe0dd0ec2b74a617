//! Shakespeare by role, as LEAF cuts it: 80 characters, and the next one.
//!
//! It is read in two forms: one JSON object per line for each role, with all it says as `text`; or the one
//! object that LEAF's own steps write, in which `x` holds every sequence and `y` the next character. Either
//! way the text is kept once, for consecutive sequences share 79 characters. Caldas et al., "LEAF: A
//! Benchmark for Federated Settings" (2018).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::content::{Content, unreadable};
use super::{ReadError, first_of};

const STEPS: usize = Roles::STEPS;

const SYMBOLS: &[u8; 80] = Roles::SYMBOLS;

/// The texts of all roles.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Roles {
    /// Every character as its index in [`Roles::SYMBOLS`].
    pub text: Vec<u8>,
    /// The roles.
    pub roles: Vec<Role>,
}

/// One role.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// Where in the text its sequences begin, in their order. The character to predict follows each sequence
    /// in the text.
    pub starts: Vec<u32>,
}

impl Roles {
    /// Characters of a sequence.
    pub const STEPS: usize = 80;

    /// The characters that can occur, in LEAF's order.
    pub const SYMBOLS: &[u8; 80] =
        b"\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}";

    /// The number of sequences.
    pub fn n_samples(&self) -> usize {
        self.roles.iter().map(|role| role.starts.len()).sum()
    }
}

impl fmt::Debug for Roles {
    /// The size only: there may be millions of characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sequences of {} roles", self.n_samples(), self.roles.len())
    }
}

/// Shakespeare, from `leaf-roles.jsonl` or LEAF's `all_data.json` in `shakespeare` within the data folder,
/// compressed or not. Roles with too little text for one sequence are left out.
pub fn shakespeare(data: &Path) -> Result<Roles, ReadError> {
    const NAMES: [&str; 4] = ["leaf-roles.jsonl.gz", "leaf-roles.jsonl", "all_data.json.gz", "all_data.json"];
    let file = first_of(&data.join("shakespeare"), &NAMES)?;
    let lines = file.file_name().is_some_and(|name| NAMES[..2].iter().any(|&line_name| name == line_name));
    let content = Content::open(&file)?;
    if lines { read_lines(content) } else { read_leaf(content) }
}

fn not_empty(file: &Path, roles: Roles) -> Result<Roles, ReadError> {
    if roles.roles.is_empty() {
        let expected = format!("a role with more than {STEPS} characters of text");
        return Err(ReadError::damaged(file, expected, "none"));
    }
    Ok(roles)
}

/// One line of the first form.
#[derive(Deserialize)]
struct RoleLine {
    user: String,
    text: String,
}

/// Reads the first form.
pub(super) fn read_lines(content: Content<'_>) -> Result<Roles, ReadError> {
    let file = content.path;
    let mut content = BufReader::with_capacity(1 << 16, content);
    let (mut all, mut names) = (Roles::default(), BTreeSet::new());
    let mut line = Vec::new();
    for line_number in 1_u64.. {
        line.clear();
        content.get_mut().begin_row();
        if content.read_until(b'\n', &mut line).map_err(|error| unreadable(file, error))? == 0 {
            break;
        }
        let refuse = |expected: &str, found: String| {
            ReadError::damaged(file, format!("{expected} in line {line_number}"), found)
        };
        let RoleLine { user, text } = serde_json::from_slice(&line)
            .map_err(|error| refuse("an object with `user` and `text`", error.to_string()))?;
        if !names.insert(user.clone()) {
            return Err(refuse("another role", format!("\"{user}\" again")));
        }
        let start = all.text.len();
        for c in text.chars() {
            all.text.push(symbol(c).map_err(|found| refuse("one of LEAF's 80 characters", found))?);
        }
        let n_sequences = (all.text.len() - start).saturating_sub(STEPS);
        if n_sequences == 0 {
            all.text.truncate(start);
        } else {
            let starts = (start..start + n_sequences).map(position).collect();
            all.roles.push(Role { name: user, starts });
        }
    }
    not_empty(file, all)
}

/// The second form; its `user_data` holds everything but the order of the roles.
#[derive(Deserialize)]
struct Leaf {
    users: Vec<String>,
    num_samples: Vec<u64>,
    user_data: BTreeMap<String, LeafUser>,
}

/// A user of the second form.
#[derive(Deserialize)]
struct LeafUser {
    x: Sequences,
    y: Vec<Symbol>,
}

/// Reads the second form.
pub(super) fn read_leaf(content: Content<'_>) -> Result<Roles, ReadError> {
    let file = content.path;
    let content = BufReader::with_capacity(1 << 16, content);
    let Leaf { users, num_samples, mut user_data } = parse(file, content)?;
    if users.len() != num_samples.len() || users.len() != user_data.len() {
        let expected = format!("{} users in `num_samples` and `user_data` as in `users`", users.len());
        let found = format!("{} and {}", num_samples.len(), user_data.len());
        return Err(ReadError::damaged(file, expected, found));
    }
    let mut all = Roles::default();
    for (name, n_samples) in users.into_iter().zip(num_samples) {
        let Some(user) = user_data.remove(&name) else {
            return Err(ReadError::damaged(file, format!("\"{name}\" once in `user_data`"), "nothing left"));
        };
        let (n_x, n_y) = (user.x.starts.len(), user.y.len());
        if n_x as u64 != n_samples || n_y as u64 != n_samples {
            let expected =
                format!("{n_samples} sequences of \"{name}\" in `x` and as many characters in `y`");
            return Err(ReadError::damaged(file, expected, format!("{n_x} and {n_y}")));
        }
        if n_x > 0 {
            let starts = user.write(&mut all.text);
            all.roles.push(Role { name, starts });
        }
    }
    not_empty(file, all)
}

fn parse(file: &Path, content: impl Read) -> Result<Leaf, ReadError> {
    serde_json::from_reader(content).map_err(|error| {
        if error.is_io() {
            unreadable(file, io::Error::from(error))
        } else {
            let expected = "LEAF's JSON object of `users`, `num_samples` and `user_data`";
            ReadError::damaged(file, expected, error.to_string())
        }
    })
}

impl LeafUser {
    /// Appends the text, and returns where in it the sequences begin.
    fn write(&self, text: &mut Vec<u8>) -> Vec<u32> {
        let mut starts: Vec<u32> = Vec::with_capacity(self.y.len());
        for (idx, (&at, &Symbol(next))) in self.x.starts.iter().zip(&self.y).enumerate() {
            let sequence = &self.x.text[at..at + STEPS];
            let is_continued =
                idx > 0 && at == self.x.starts[idx - 1] + 1 && sequence[STEPS - 1] == self.y[idx - 1].0;
            if is_continued {
                starts.push(starts[idx - 1] + 1);
            } else {
                starts.push(position(text.len()));
                text.extend_from_slice(sequence);
            }
            text.push(next);
        }
        starts
    }
}

/// A position in the text as 32 bits.
fn position(at: usize) -> u32 {
    u32::try_from(at).expect("the text is no longer than its file, of which at most 4 GiB are read")
}

/// A character as its index among the symbols.
#[derive(Clone, Copy)]
struct Symbol(u8);

/// Sequences of symbols. A sequence that continues the last one, shifted by one character, adds one character
/// only.
#[derive(Default)]
struct Sequences {
    text: Vec<u8>,
    starts: Vec<usize>,
}

impl Sequences {
    fn add(&mut self, sequence: &[u8; STEPS]) {
        match self.starts.last() {
            Some(&last) if self.text[last + 1..] == sequence[..STEPS - 1] => {
                self.starts.push(last + 1);
                self.text.push(sequence[STEPS - 1]);
            }
            _ => {
                self.starts.push(self.text.len());
                self.text.extend_from_slice(sequence);
            }
        }
    }
}

/// The index of every ASCII character among the symbols, or [`NONE`].
const SYMBOL_OF_CHAR: [u8; 128] = {
    let mut places = [NONE; 128];
    let mut at = 0;
    while at < SYMBOLS.len() {
        places[SYMBOLS[at] as usize] = at as u8;
        at += 1;
    }
    places
};
const NONE: u8 = u8::MAX;

fn symbol(c: char) -> Result<u8, String> {
    match SYMBOL_OF_CHAR.get(c as usize) {
        Some(&place) if place != NONE => Ok(place),
        _ => Err(format!("{c:?}")),
    }
}

impl<'de> Deserialize<'de> for Symbol {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let [place] = from.deserialize_str(Exactly::<1>)?;
        Ok(Symbol(place))
    }
}

impl<'de> Deserialize<'de> for Sequences {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Sequences;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of sequences")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sequences, A::Error> {
                struct One([u8; STEPS]);
                impl<'de> Deserialize<'de> for One {
                    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                        from.deserialize_str(Exactly).map(One)
                    }
                }
                let mut sequences = Sequences::default();
                while let Some(One(sequence)) = list.next_element()? {
                    sequences.add(&sequence);
                }
                Ok(sequences)
            }
        }
        from.deserialize_seq(Each)
    }
}

/// Parses text of exactly `N` characters, all of them symbols.
struct Exactly<const N: usize>;

impl<const N: usize> Visitor<'_> for Exactly<N> {
    type Value = [u8; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text of {N} of LEAF's 80 characters")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<[u8; N], E> {
        let n_found = text.chars().count();
        if n_found != N {
            return Err(E::custom(format!("text of {n_found} instead of {N} characters")));
        }
        let mut places = [0; N];
        for (place, c) in places.iter_mut().zip(text.chars()) {
            *place =
                symbol(c).map_err(|found| E::custom(format!("{found}, none of LEAF's 80 characters")))?;
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::super::content::tests::gzip;
    use super::*;

    const LINES: &str = "leaf-roles.jsonl";
    const LEAF: &str = "all_data.json";

    /// The roles read from a file of this name and content, or the error.
    fn read(name: &str, content: &[u8]) -> Result<Roles, String> {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("shakespeare");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(name), content).unwrap();
        shakespeare(data.path())
            .map_err(|error| error.to_string().replace(folder.join(name).to_str().unwrap(), "at"))
    }

    #[track_caller]
    fn check(name: &str, content: &[u8], message: &str) {
        assert_eq!(read(name, content).unwrap_err(), format!("at: {message}; fetch the file again"));
    }

    /// Text of `length` characters, starting at position `first` of the alphabet.
    fn speech(first: usize, length: usize) -> String {
        (first..first + length).map(|at| char::from(b'a' + (at % 26) as u8)).collect()
    }

    fn line(user: &str, text: &str) -> String {
        json!({ "user": user, "play": "A Play", "text": text }).to_string() + "\n"
    }

    /// A user's sequences and next characters, as LEAF cuts them.
    fn leaf_samples(text: &str) -> Value {
        let n_samples = text.len().saturating_sub(STEPS);
        let x: Vec<_> = (0..n_samples).map(|at| &text[at..at + STEPS]).collect();
        let y: Vec<_> = (0..n_samples).map(|at| &text[at + STEPS..=at + STEPS]).collect();
        json!({ "x": x, "y": y, "raw": text })
    }

    fn leaf(users: &[(&str, Value)]) -> Value {
        let names: Vec<_> = users.iter().map(|(name, _)| name).collect();
        let counts: Vec<_> = users.iter().map(|(_, held)| held["y"].as_array().unwrap().len()).collect();
        let held: serde_json::Map<_, _> =
            users.iter().map(|(name, held)| ((*name).to_owned(), held.clone())).collect();
        json!({ "users": names, "num_samples": counts, "hierarchies": ["A Play"], "user_data": held })
    }

    /// A sequence and its next character as text.
    fn sample_text(roles: &Roles, role_idx: usize, sample_idx: usize) -> (String, char) {
        let start = roles.roles[role_idx].starts[sample_idx] as usize;
        let character = |&place: &u8| char::from(SYMBOLS[usize::from(place)]);
        let sequence = roles.text[start..start + STEPS].iter().map(character).collect();
        (sequence, character(&roles.text[start + STEPS]))
    }

    #[test]
    fn symbols_are_those_of_leaf() {
        assert_eq!((symbol('\n'), symbol(' '), symbol('A'), symbol('}')), (Ok(0), Ok(1), Ok(25), Ok(79)));
        for c in ['#', '{', '\r', 'é', '\u{1F600}'] {
            assert_eq!(symbol(c), Err(format!("{c:?}")));
        }
        assert!(SYMBOLS.iter().enumerate().all(|(at, &byte)| symbol(char::from(byte)) == Ok(at as u8)));
    }

    #[test]
    fn both_forms_give_the_same_sequences_and_hold_the_text_once() {
        let (first, second, short) = (speech(0, 85), speech(7, 81), speech(0, 80));
        let lines = line("PUCK", &first) + &line("SHORT", &short) + &line("Bottom \"B\"", &second);
        let roles = read(LINES, lines.as_bytes()).unwrap();
        assert_eq!(format!("{roles:?}"), "6 sequences of 2 roles");
        assert_eq!(roles.text.len(), 85 + 81);
        assert_eq!((roles.roles[0].name.as_str(), roles.roles[1].name.as_str()), ("PUCK", "Bottom \"B\""));
        for (role_idx, text) in [first.as_str(), &second].into_iter().enumerate() {
            for at in 0..roles.roles[role_idx].starts.len() {
                let next = char::from(text.as_bytes()[at + STEPS]);
                assert_eq!(sample_text(&roles, role_idx, at), (text[at..at + STEPS].to_owned(), next));
            }
        }
        let users = [
            ("PUCK", leaf_samples(&first)),
            ("SHORT", leaf_samples(&short)),
            ("Bottom \"B\"", leaf_samples(&second)),
        ];
        let leaf_json = leaf(&users).to_string();
        assert_eq!(read(LEAF, leaf_json.as_bytes()).unwrap(), roles);
        assert_eq!(read("all_data.json.gz", &gzip(leaf_json.as_bytes())).unwrap(), roles);
        assert_eq!(read("leaf-roles.jsonl.gz", &gzip(lines.as_bytes())).unwrap(), roles);
    }

    #[test]
    fn sequences_that_do_not_follow_one_another_are_kept_apart() {
        let (one, two) = (speech(0, 80), speech(1, 80));
        // The first sequence is not continued by the second; the third continues the second; the fourth
        // continues none.
        let held = json!({ "x": [one, two, speech(2, 80), one], "y": ["?", speech(81, 1), "!", "."] });
        let roles = read(LEAF, leaf(&[("A", held)]).to_string().as_bytes()).unwrap();
        assert_eq!(roles.roles[0].starts, [0, 81, 82, 81 + 82]);
        assert_eq!(sample_text(&roles, 0, 0), (one.clone(), '?'));
        assert_eq!(sample_text(&roles, 0, 1), (two, char::from(speech(81, 1).as_bytes()[0])));
        assert_eq!(sample_text(&roles, 0, 2), (speech(2, 80), '!'));
        assert_eq!(sample_text(&roles, 0, 3), (one, '.'));
    }

    #[test]
    fn lines_that_are_no_roles_are_refused() {
        let fine = line("A", &speech(0, 90));
        let whole = format!("{fine}{fine}").replacen("\"A\"", "\"B\"", 1);
        assert!(read(LINES, whole.as_bytes()).is_ok());
        check(
            LINES,
            format!("{fine}{fine}").as_bytes(),
            "expected another role in line 2, found \"A\" again",
        );
        let expected = "expected an object with `user` and `text` in line 2, found";
        let broken = format!("{fine}{{\"user\": \"B\", \"text\": \"abc");
        let message = format!("{expected} EOF while parsing a string at line 1 column 26");
        check(LINES, broken.as_bytes(), &message);
        let message = format!("{expected} missing field `text` at line 1 column 13");
        check(LINES, format!("{fine}{{\"user\": \"B\"}}").as_bytes(), &message);
        let error = read(LINES, b"\x00\x01\x02").unwrap_err();
        assert!(
            error.starts_with("at: expected an object with `user` and `text` in line 1, found "),
            "{error}"
        );
        let message = "expected one of LEAF's 80 characters in line 1, found '#'";
        check(LINES, line("A", &speech(0, 90).replace('c', "#")).as_bytes(), message);
        let none = "expected a role with more than 80 characters of text, found none";
        check(LINES, b"", none);
        check(LINES, line("A", "too short").as_bytes(), none);
    }

    #[test]
    fn objects_that_are_not_leafs_are_refused() {
        let expected = "expected LEAF's JSON object of `users`, `num_samples` and `user_data`, found";
        let whole = leaf(&[("A", leaf_samples(&speech(0, 90)))]);
        let text = whole.to_string();
        for n_left in 0..text.len() {
            let error = read(LEAF, &text.as_bytes()[..n_left]).unwrap_err();
            assert!(error.starts_with(&format!("at: {expected} EOF while parsing ")), "{error}");
        }
        let changed = |pointer: &str, value: Value| {
            let mut changed = whole.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            changed.to_string()
        };
        let check_start = |content: String, start: &str| {
            let error = read(LEAF, content.as_bytes()).unwrap_err();
            assert!(error.starts_with(&format!("at: {start}")), "{error}");
        };
        check_start("[]".to_owned(), &format!("{expected} "));
        check_start("{}".to_owned(), &format!("{expected} missing field `users`"));
        check_start(text.clone() + "x", &format!("{expected} trailing characters at line 1 column"));
        let short = changed("/user_data/A/x/3", json!(speech(3, 79)));
        check_start(short, &format!("{expected} text of 79 instead of 80 characters at line 1 column"));
        let long = changed("/user_data/A/y/3", json!("ab"));
        check_start(long, &format!("{expected} text of 2 instead of 1 characters at line 1 column"));
        let strange = changed("/user_data/A/y/3", json!("é"));
        check_start(strange, &format!("{expected} 'é', none of LEAF's 80 characters at line 1 column"));
        let number = changed("/user_data/A/y/3", json!(3));
        check_start(number, &format!("{expected} invalid type: integer `3`, expected text of 1 of LEAF's"));

        let counts = "expected 1 users in `num_samples` and `user_data` as in `users`, found";
        check(LEAF, changed("/num_samples", json!([10, 1])).as_bytes(), &format!("{counts} 2 and 1"));
        check(LEAF, changed("/user_data", json!({})).as_bytes(), &format!("{counts} 1 and 0"));
        let message = "expected \"B\" once in `user_data`, found nothing left";
        check(LEAF, changed("/users", json!(["B"])).as_bytes(), message);
        let samples =
            |n| format!("expected {n} sequences of \"A\" in `x` and as many characters in `y`, found");
        check(LEAF, changed("/num_samples", json!([9])).as_bytes(), &format!("{} 10 and 10", samples(9)));
        let fewer = changed("/user_data/A/y", json!(["a", "b"]));
        check(LEAF, fewer.as_bytes(), &format!("{} 10 and 2", samples(10)));
        check(
            LEAF,
            leaf(&[]).to_string().as_bytes(),
            "expected a role with more than 80 characters of text, found none",
        );
    }

    #[test]
    fn compressed_files_must_be_whole() {
        let message = "expected a whole gzip file, found one that breaks off";
        for (name, content) in [
            ("leaf-roles.jsonl.gz", line("A", &speech(0, 90))),
            ("all_data.json.gz", leaf(&[("A", leaf_samples(&speech(0, 90)))]).to_string()),
        ] {
            let whole = gzip(content.as_bytes());
            for n_left in 2..whole.len() {
                check(name, &whole[..n_left], message);
            }
            let mut flipped = whole.clone();
            flipped[whole.len() - 8] ^= 1;
            let error = read(name, &flipped).unwrap_err();
            assert!(error.starts_with("at: expected an intact gzip file, found "), "{error}");
            // The content exceeds by a megabyte what the compressed size allows.
            let bomb = gzip(&[vec![b' '; 4 << 20], content.into_bytes()].concat());
            let error = read(name, &bomb).unwrap_err();
            let most = 200 * bomb.len() + (1 << 20);
            assert!(error.starts_with(&format!("at: expected at most {most} bytes of text in ")), "{error}");
        }
    }

    #[test]
    fn lines_grow_only_so_far() {
        let content = vec![b' '; (64 << 20) + (1 << 17)];
        let error = read(LINES, &content).unwrap_err();
        assert!(error.starts_with("at: expected at most 67108864 bytes in a row, found more; "), "{error}");
    }

    #[test]
    fn lines_go_before_leafs_object() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("shakespeare");
        fs::create_dir(&folder).unwrap();
        let error = shakespeare(data.path()).unwrap_err().to_string();
        let names = "leaf-roles.jsonl.gz or leaf-roles.jsonl or all_data.json.gz or all_data.json";
        let message = format!(
            "expected {names}, found neither; see: ebbflow data list, or put the published file there"
        );
        assert_eq!(error, format!("{}: {message}", folder.display()));
        fs::write(folder.join(LEAF), "broken").unwrap();
        fs::write(folder.join(LINES), line("A", &speech(0, 90))).unwrap();
        assert_eq!(shakespeare(data.path()).unwrap().n_samples(), 10);
    }
}
