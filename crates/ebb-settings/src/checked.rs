//! Numbers that are checked when they are read.

use serde::{Deserialize, Serialize};

macro_rules! checked {
    ($(#[$doc:meta])* $name:ident, $holds:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// The number, if it is in range.
            pub fn new(value: f64) -> Option<Self> {
                let holds: fn(f64) -> bool = $holds;
                holds(value).then_some(Self(value))
            }

            /// The number.
            pub fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = String;
            fn try_from(value: f64) -> Result<Self, String> {
                Self::new(value).ok_or_else(|| format!("{value} is out of range; give {}", $rule))
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> f64 {
                value.0
            }
        }
    };
}

checked!(
    /// A probability, from 0 to 1.
    Probability,
    |value| (0.0..=1.0).contains(&value),
    "a probability from 0 to 1"
);
checked!(
    /// A finite number above zero.
    Positive,
    |value| value > 0.0 && value.is_finite(),
    "a number above 0"
);
checked!(
    /// A finite number of at least zero.
    NonNegative,
    |value| value >= 0.0 && value.is_finite(),
    "0 or a number above it"
);
checked!(
    /// A share of a whole of which something is left: from 0 to below 1.
    Share,
    |value| (0.0..1.0).contains(&value),
    "a share from 0 to below 1"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(
            Probability::new(1.2).is_none()
                && Probability::new(-0.1).is_none()
                && Probability::new(f64::NAN).is_none()
        );
        assert!(Probability::new(0.0).is_some() && Probability::new(1.0).is_some());
        assert!(Positive::new(0.0).is_none() && Positive::new(f64::INFINITY).is_none());
        assert!(NonNegative::new(0.0).is_some() && NonNegative::new(-1e-9).is_none());
        assert!(Share::new(0.0).is_some() && Share::new(1.0).is_none() && Share::new(-0.1).is_none());
    }
}
