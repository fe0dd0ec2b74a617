//! With what weight does each contribution count?

pub mod afl;
mod chances;
pub mod fedbuff;
pub mod fednova;
pub mod fedstale;
pub mod fedvarp;
pub mod inverse;
pub mod mean;
pub mod mifa;
pub mod mimic;
mod remembered;
pub mod schemes;
pub mod share;
