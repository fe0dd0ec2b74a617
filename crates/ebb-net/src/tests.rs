//! Tests of the whole crate: a server and its clients, played message by message, over sockets, and on
//! damaged input.

mod fuzz;
mod replay;
mod transport;

pub(crate) use fuzz::damage;
