//! Fetching as a caller sees it, from servers on this machine.

mod get;
#[path = "../../src/samples.rs"]
mod samples;
mod server;
mod sheets;
mod test_data_set;
