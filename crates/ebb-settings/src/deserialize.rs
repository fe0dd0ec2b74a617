//! Deserialises a value into a type; an error names the key and the reason.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use toml::Value;

use crate::nearest;

/// Deserialises `table` into a `T`.
pub(crate) fn from_table<T: DeserializeOwned>(table: toml::Table) -> Result<T, DeserializeError> {
    T::deserialize(ValueDeserializer(Value::Table(table)))
}

/// Why a value was rejected, and the keys that lead to it, innermost first.
#[derive(Debug)]
pub(crate) struct DeserializeError {
    pub(crate) path: Vec<String>,
    pub(crate) message: String,
}

impl DeserializeError {
    fn new(message: String) -> Self {
        DeserializeError { path: Vec::new(), message }
    }

    fn at_key(mut self, key: &str) -> Self {
        self.path.push(key.to_owned());
        self
    }
}

impl fmt::Display for DeserializeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DeserializeError {}

impl de::Error for DeserializeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        DeserializeError::new(message.to_string())
    }

    fn invalid_type(_found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        DeserializeError::new(format!("expected {}", describe_type(expected)))
    }

    fn invalid_value(_found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        DeserializeError::new(format!("expected {}", describe_type(expected)))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let known = if expected.is_empty() { "none".to_owned() } else { expected.join(", ") };
        DeserializeError::new(format!("unknown key; {}known keys: {known}", did_you_mean(field, expected)))
            .at_key(field)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        DeserializeError::new(format!(
            "unknown value; {}known values: {}",
            did_you_mean(variant, expected),
            expected.join(", ")
        ))
    }

    fn missing_field(field: &'static str) -> Self {
        DeserializeError::new("missing; it has no default".to_owned()).at_key(field)
    }

    fn duplicate_field(field: &'static str) -> Self {
        DeserializeError::new("given twice".to_owned()).at_key(field)
    }
}

fn did_you_mean(word: &str, known: &[&str]) -> String {
    nearest(word, known.iter().copied())
        .map_or(String::new(), |nearest_word| format!("did you mean \"{nearest_word}\"? "))
}

/// Describes the types of serde's messages in plain words.
fn describe_type(expected: &dyn Expected) -> String {
    let expected = expected.to_string();
    match expected.as_str() {
        "f32" | "f64" => "a number".to_owned(),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u8" | "u16" | "u64" | "usize" => "a whole number that is not negative".to_owned(),
        "i32" | "i64" => "a whole number".to_owned(),
        "a nonzero u32" => format!("a whole number from 1 to {}", u32::MAX),
        other if other.starts_with("a nonzero ") => "a whole number of at least 1".to_owned(),
        "a sequence" => "a list in brackets".to_owned(),
        "a map" => "a table".to_owned(),
        "a string" => "text in quotes".to_owned(),
        "a boolean" => "true or false".to_owned(),
        other if other.starts_with("struct ") => "a table in braces".to_owned(),
        other => other.to_owned(),
    }
}

struct ValueDeserializer(Value);

impl<'de> Deserializer<'de> for ValueDeserializer {
    type Error = DeserializeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match self.0 {
            Value::String(text) => visitor.visit_string(text),
            Value::Integer(number) => visitor.visit_i64(number),
            Value::Float(number) => visitor.visit_f64(number),
            Value::Boolean(boolean) => visitor.visit_bool(boolean),
            Value::Datetime(time) => visitor.visit_string(time.to_string()),
            Value::Array(values) => visitor.visit_seq(ArrayAccess { rest: values.into_iter(), next_idx: 0 }),
            Value::Table(table) => visitor.visit_map(TableAccess { rest: table.into_iter(), pending: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        match self.0 {
            Value::String(text) => visitor.visit_enum(text.into_deserializer()),
            Value::Table(table) => visitor.visit_enum(MapAccessDeserializer::new(TableAccess {
                rest: table.into_iter(),
                pending: None,
            })),
            _ => Err(DeserializeError::new("expected a word in quotes".to_owned())),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct TableAccess {
    rest: toml::map::IntoIter<String, Value>,
    pending: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for TableAccess {
    type Error = DeserializeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DeserializeError> {
        self.pending = self.rest.next();
        match &self.pending {
            Some((key, _)) => seed.deserialize(key.as_str().into_deserializer()).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, DeserializeError> {
        let (key, value) = self.pending.take().expect("serde asks for a value only after its key");
        seed.deserialize(ValueDeserializer(value)).map_err(|error| error.at_key(&key))
    }
}

struct ArrayAccess {
    rest: std::vec::IntoIter<Value>,
    next_idx: usize,
}

impl<'de> SeqAccess<'de> for ArrayAccess {
    type Error = DeserializeError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DeserializeError> {
        let Some(value) = self.rest.next() else { return Ok(None) };
        let idx = self.next_idx;
        self.next_idx += 1;
        seed.deserialize(ValueDeserializer(value))
            .map(Some)
            .map_err(|error| error.at_key(&format!("[{idx}]")))
    }
}
