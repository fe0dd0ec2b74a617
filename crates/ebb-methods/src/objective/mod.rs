//! Whose loss do we minimise, and how much does each client count?

pub mod enrolled;
