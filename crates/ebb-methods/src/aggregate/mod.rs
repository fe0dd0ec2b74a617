//! With what weight does each contribution count?

pub mod fedau;
pub mod fednova;
pub mod fedvarp;
pub mod mean;
pub mod mifa;
pub mod mimic;
mod remembered;
pub mod schemes;
pub mod share;
