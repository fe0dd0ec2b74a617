//! With what weight does each contribution count?

pub mod fedau;
pub mod fednova;
pub mod mean;
pub mod schemes;
pub mod share;
