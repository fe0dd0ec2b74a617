//! With what weight does each contribution count?

pub mod mean;
pub mod share;
