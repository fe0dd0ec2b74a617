//! Numbers that JSON may not be able to hold: written `null`, read as NaN.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer};

/// A number, or `null` for one that JSON cannot hold.
pub(crate) fn number<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    Ok(Option::deserialize(from)?.unwrap_or_else(|| T::from(f32::NAN)))
}

/// As [`number`], for one that may be left out.
pub(crate) fn some_number<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    number(from).map(Some)
}

/// As [`number`], for a list of them.
pub(crate) fn numbers<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    let numbers = Vec::<Option<T>>::deserialize(from)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or_else(|| T::from(f32::NAN))).collect())
}

/// As [`number`], for numbers by name.
pub(crate) fn named_numbers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let numbers = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(numbers.into_iter().map(|(name, number)| (name, number.unwrap_or(f64::NAN))).collect())
}

/// As [`numbers`], for a list that may be left out.
pub(crate) fn some_numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<f32>>, D::Error> {
    numbers(from).map(Some)
}
