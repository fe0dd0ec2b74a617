//! Who stands in for those that returned nothing?

pub mod nobody;
