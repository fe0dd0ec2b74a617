//! How does the model move, and what is sent next?

mod clock;
pub mod plain;
pub mod scaffold;
