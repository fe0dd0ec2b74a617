//! State that survives a restart: written field by field under a name, read back in the same order.
//!
//! The format is a flat list of fields: a tag for the type, the name, the length, the bytes, little-endian. A
//! reader that meets an unexpected name or type reports it and guesses nothing.

use std::fmt;

/// The state of a role, a fleet or a client. It has no default, so that state cannot be forgotten.
pub trait State {
    /// Writes everything that later rounds depend on.
    fn save(&self, to: &mut Saver);
    /// Reads it back into a value built from the same settings.
    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError>;
}

/// Declares that a type keeps no state between rounds.
#[macro_export]
macro_rules! stateless {
    ($type:ty) => {
        impl $crate::State for $type {
            fn save(&self, _to: &mut $crate::Saver) {}
            fn load(&mut self, _from: &mut $crate::Loader<'_>) -> Result<(), $crate::StateError> {
                Ok(())
            }
        }
    };
}

/// Saved state that does not fit what is being loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateError {
    /// The field, with the sections that lead to it.
    pub field: String,
    /// What is wrong with the field.
    pub message: String,
}

impl StateError {
    /// An error about `field`.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        StateError { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "saved state, field {}: {}", self.field, self.message)
    }
}

impl std::error::Error for StateError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Tag {
    Open = 1,
    Close = 2,
    U64 = 3,
    F64 = 4,
    Bytes = 5,
    U32s = 6,
    U64s = 7,
    F32s = 8,
    F64s = 9,
}

/// Collects fields into bytes.
#[derive(Debug, Default)]
pub struct Saver {
    bytes: Vec<u8>,
}

macro_rules! numbers {
    ($save:ident, $tag:ident, $type:ty, $width:literal) => {
        /// Saves a list of numbers.
        pub fn $save(&mut self, name: &str, values: &[$type]) {
            self.head(Tag::$tag, name);
            self.bytes.extend((values.len() as u64).to_le_bytes());
            self.bytes.reserve(values.len() * $width);
            for value in values {
                self.bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
    };
}

impl Saver {
    /// A saver without fields.
    pub fn new() -> Self {
        Saver::default()
    }

    /// Saves a group of fields under a name of its own.
    pub fn section(&mut self, name: &str, write: impl FnOnce(&mut Saver)) {
        self.head(Tag::Open, name);
        write(self);
        self.head(Tag::Close, name);
    }

    /// Saves an integer.
    pub fn u64(&mut self, name: &str, value: u64) {
        self.head(Tag::U64, name);
        self.bytes.extend(value.to_le_bytes());
    }

    /// Saves a number, to the bit.
    pub fn f64(&mut self, name: &str, value: f64) {
        self.head(Tag::F64, name);
        self.bytes.extend(value.to_le_bytes());
    }

    /// Saves bytes or text.
    pub fn bytes(&mut self, name: &str, value: &[u8]) {
        self.head(Tag::Bytes, name);
        self.bytes.extend((value.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(value);
    }

    numbers!(u32s, U32s, u32, 4);
    numbers!(u64s, U64s, u64, 8);
    numbers!(f32s, F32s, f32, 4);
    numbers!(f64s, F64s, f64, 8);

    /// All saved fields, as bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn head(&mut self, tag: Tag, name: &str) {
        let length = u8::try_from(name.len()).expect("field names are short");
        self.bytes.push(tag as u8);
        self.bytes.push(length);
        self.bytes.extend_from_slice(name.as_bytes());
    }
}

/// Reads fields back in the order they were saved.
#[derive(Debug)]
pub struct Loader<'b> {
    rest: &'b [u8],
    sections: Vec<String>,
}

macro_rules! read_numbers {
    ($load:ident, $tag:ident, $type:ty, $width:literal) => {
        /// Reads a list of numbers.
        pub fn $load(&mut self, name: &str) -> Result<Vec<$type>, StateError> {
            self.head(Tag::$tag, name)?;
            let len = self.length(name, $width)?;
            let bytes = self.take(name, len * $width)?;
            let exact = |chunk: &[u8]| <$type>::from_le_bytes(chunk.try_into().expect("chunks are exact"));
            Ok(bytes.chunks_exact($width).map(exact).collect())
        }
    };
}

impl<'b> Loader<'b> {
    /// A loader of what a [`Saver`] finished.
    pub fn new(bytes: &'b [u8]) -> Self {
        Loader { rest: bytes, sections: Vec::new() }
    }

    /// Reads a group of fields under a name of its own; all of them must be read.
    pub fn section<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Self) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        self.head(Tag::Open, name)?;
        self.sections.push(name.to_owned());
        let value = read(self)?;
        self.head(Tag::Close, name)?;
        self.sections.pop();
        Ok(value)
    }

    /// Skips the rest of the section being read, or of everything.
    pub fn skip_rest(&mut self) -> Result<(), StateError> {
        let mut depth = 0_usize;
        while !self.rest.is_empty() && (depth > 0 || self.rest[0] != Tag::Close as u8) {
            let tag = self.take("", 1)?[0];
            let length = self.take("", 1)?[0] as usize;
            let name = String::from_utf8_lossy(self.take("", length)?).into_owned();
            let width = match tag {
                tag if tag == Tag::Open as u8 => {
                    depth += 1;
                    continue;
                }
                tag if tag == Tag::Close as u8 => {
                    depth -= 1;
                    continue;
                }
                tag if tag == Tag::U64 as u8 || tag == Tag::F64 as u8 => {
                    self.take(&name, 8)?;
                    continue;
                }
                tag if tag == Tag::Bytes as u8 => 1,
                tag if tag == Tag::U32s as u8 || tag == Tag::F32s as u8 => 4,
                tag if tag == Tag::U64s as u8 || tag == Tag::F64s as u8 => 8,
                tag => return Err(self.error(&name, format!("has the unknown type {tag}"))),
            };
            let len = self.length(&name, width)?;
            self.take(&name, len * width)?;
        }
        Ok(())
    }

    /// Reads an integer.
    pub fn u64(&mut self, name: &str) -> Result<u64, StateError> {
        self.head(Tag::U64, name)?;
        let bytes = self.take(name, 8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken")))
    }

    /// Reads an integer below 2^32.
    pub fn u32(&mut self, name: &str) -> Result<u32, StateError> {
        let value = self.u64(name)?;
        u32::try_from(value).map_err(|_| self.error(name, format!("{value} is too large")))
    }

    /// Reads a number, to the bit.
    pub fn f64(&mut self, name: &str) -> Result<f64, StateError> {
        self.head(Tag::F64, name)?;
        let bytes = self.take(name, 8)?;
        Ok(f64::from_le_bytes(bytes.try_into().expect("eight bytes were taken")))
    }

    /// Reads bytes or text.
    pub fn bytes(&mut self, name: &str) -> Result<&'b [u8], StateError> {
        self.head(Tag::Bytes, name)?;
        let len = self.length(name, 1)?;
        self.take(name, len)
    }

    /// Reads text.
    pub fn text(&mut self, name: &str) -> Result<&'b str, StateError> {
        let bytes = self.bytes(name)?;
        std::str::from_utf8(bytes).map_err(|_| self.error(name, "not text"))
    }

    read_numbers!(u32s, U32s, u32, 4);
    read_numbers!(u64s, U64s, u64, 8);
    read_numbers!(f32s, F32s, f32, 4);
    read_numbers!(f64s, F64s, f64, 8);

    /// Whether all fields were read.
    pub fn at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// An error about a field of the section being read.
    pub fn error(&self, name: &str, message: impl Into<String>) -> StateError {
        let mut field = self.sections.join(".");
        if !field.is_empty() {
            field.push('.');
        }
        StateError::new(field + name, message)
    }

    fn head(&mut self, tag: Tag, name: &str) -> Result<(), StateError> {
        let found_tag = self.take(name, 1)?[0];
        let length = self.take(name, 1)?[0] as usize;
        let found = self.take(name, length)?;
        if found_tag != tag as u8 || found != name.as_bytes() {
            let found = String::from_utf8_lossy(found).into_owned();
            return Err(self
                .error(name, format!("expected {tag:?} here, found field \"{found}\" of type {found_tag}")));
        }
        Ok(())
    }

    fn length(&mut self, name: &str, width: usize) -> Result<usize, StateError> {
        let bytes = self.take(name, 8)?;
        let len = u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken"));
        usize::try_from(len)
            .ok()
            .filter(|len| len.checked_mul(width).is_some_and(|size| size <= self.rest.len()))
            .ok_or_else(|| self.error(name, format!("claims {len} values, more than there are")))
    }

    fn take(&mut self, name: &str, len: usize) -> Result<&'b [u8], StateError> {
        if len > self.rest.len() {
            return Err(self.error(name, "ends too early"));
        }
        let (head, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Vec<u8> {
        let mut saver = Saver::new();
        saver.u64("round", 7);
        saver.section("server", |to| {
            to.f32s("model", &[1.5, -2.0]);
            to.f64("rate", 0.1);
        });
        saver.bytes("name", b"x");
        saver.finish()
    }

    #[test]
    fn fields_come_back_in_order() {
        let bytes = saved();
        let mut loader = Loader::new(&bytes);
        assert_eq!(loader.u64("round").unwrap(), 7);
        let model = loader
            .section("server", |from| {
                let model = from.f32s("model")?;
                assert_eq!(from.f64("rate")?, 0.1);
                Ok(model)
            })
            .unwrap();
        assert_eq!(model, [1.5, -2.0]);
        assert_eq!(loader.text("name").unwrap(), "x");
        assert!(loader.at_end());
    }

    #[test]
    fn an_unexpected_field_is_named() {
        let bytes = saved();
        let mut loader = Loader::new(&bytes);
        loader.u64("round").unwrap();
        let error = loader.section("server", |from| from.f64s("model")).unwrap_err();
        assert_eq!(error.field, "server.model");
        assert!(error.message.contains("expected F64s"), "{error}");
    }

    #[test]
    fn a_skipped_section_is_skipped_whole() {
        let mut saver = Saver::new();
        saver.section("engine", |to| {
            to.u64("round", 7);
            to.section("server", |to| to.f32s("model", &[1.5]));
            to.bytes("name", b"x");
            to.f64s("sums", &[0.5, 0.25]);
        });
        saver.section("fleet", |to| {
            to.u64("entry", 9);
            to.u64s("before", &[1, 2]);
        });
        let bytes = saver.finish();
        let mut loader = Loader::new(&bytes);
        loader.section("engine", Loader::skip_rest).unwrap();
        let entry = loader.section("fleet", |from| {
            let entry = from.u64("entry")?;
            from.skip_rest().map(|()| entry)
        });
        assert_eq!((entry, loader.at_end()), (Ok(9), true));
        for cut in 0..bytes.len() {
            let mut loader = Loader::new(&bytes[..cut]);
            let engine = loader.section("engine", Loader::skip_rest);
            assert!(
                engine.and_then(|()| loader.section("fleet", Loader::skip_rest)).is_err(),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn every_cut_of_the_bytes_is_an_error_and_not_a_panic() {
        let bytes = saved();
        for cut in 0..bytes.len() {
            let mut loader = Loader::new(&bytes[..cut]);
            let all = loader.u64("round").and_then(|_| {
                loader.section("server", |from| from.f32s("model").and_then(|_| from.f64("rate")))
            });
            assert!(all.and_then(|_| loader.bytes("name").map(<[u8]>::len)).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_length_beyond_the_file_is_refused_before_memory_is_taken() {
        let mut bytes = vec![Tag::F32s as u8, 1, b'x'];
        bytes.extend(u64::MAX.to_le_bytes());
        assert!(Loader::new(&bytes).f32s("x").is_err());
    }
}
