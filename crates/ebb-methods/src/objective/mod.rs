//! Whose loss do we minimise, and how much does each client count?

pub mod arrivals;
pub mod departures;
pub mod enrolled;
mod gradients;
