//! Whom do we ask, and how long do we wait?

pub mod everyone;
pub mod uniform;
