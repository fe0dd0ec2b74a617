//! The readers of files, on many more damaged ones than a test has time for.

use std::error::Error;

use crate::cargo;

/// How much to try.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Damaged files for each of the fifteen readers
    #[arg(long, default_value_t = 1_000_000)]
    inputs: u32,
}

/// The readers of data sets, and those of recordings of the world.
const TEST: &[&str] =
    &["test", "--release", "-p", "ebb-train", "-p", "ebb-sim", "--test", "damaged", "--", "--nocapture"];

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let done = cargo().args(TEST).env("EBBFLOW_FUZZ", args.inputs.to_string()).status()?;
    if done.success() {
        Ok(())
    } else {
        Err("the readers were not all tried, or one did harm: see above".into())
    }
}
