//! Numbers that JSON may not represent: written as `null`, read as NaN.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer};

/// A number, or `null` for one that JSON cannot represent.
pub(crate) fn number<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    Ok(Option::deserialize(from)?.unwrap_or_else(|| T::from(f32::NAN)))
}

/// As [`number`], for an optional key.
pub(crate) fn some_number<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    number(from).map(Some)
}

/// As [`number`], for a list of numbers.
pub(crate) fn numbers<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    let numbers = Vec::<Option<T>>::deserialize(from)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or_else(|| T::from(f32::NAN))).collect())
}

/// As [`number`], for a map of numbers.
pub(crate) fn named_numbers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let numbers = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(numbers.into_iter().map(|(name, number)| (name, number.unwrap_or(f64::NAN))).collect())
}

/// As [`numbers`], for an optional key.
pub(crate) fn some_numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<f32>>, D::Error> {
    numbers(from).map(Some)
}
