//! How does the model move, and what is sent next?

pub mod plain;
pub mod scaffold;
