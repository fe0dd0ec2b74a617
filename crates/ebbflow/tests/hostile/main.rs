//! Hostile peers, written with bare sockets, against the program as it ships. Measured are the server's
//! memory and the honest clients' updates.
#![cfg(target_os = "linux")]

mod attacked_server;
mod member;
mod peer;
#[path = "../served/mod.rs"]
mod served;

mod connections;
mod enrolments;
mod fetches;
mod forged_lines;
mod headers;
mod heartbeats;
mod losses;
mod resets;
mod scrapes;
mod side_vectors;
mod streams;
mod two_updates;
mod unfinished;
mod uploads;
