//! Runs the readers of files and messages on many more damaged inputs than a test has time for.

use std::error::Error;

use clap::ValueEnum;

use crate::cargo;

/// Arguments of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Damaged inputs for each of the readers: fifteen of files, ten of network messages
    #[arg(long, default_value_t = 1_000_000)]
    inputs: u32,
    /// Only the readers of files, or of network messages
    #[arg(long, value_enum)]
    of: Option<Readers>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Readers {
    Files,
    Net,
}

impl Readers {
    /// The tests whose number of inputs is set by a variable.
    fn test(self) -> &'static [&'static str] {
        match self {
            // The readers of data sets, and those of recordings for worlds.
            Readers::Files => &["-p", "ebb-train", "-p", "ebb-sim", "--test", "fuzz"],
            Readers::Net => &["-p", "ebb-net", "--lib", "fuzz"],
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    for of in Readers::value_variants().iter().filter(|&&of| args.of.is_none_or(|wanted| wanted == of)) {
        let mut test = cargo();
        test.args(["test", "--release", "--locked"]).args(of.test()).args(["--", "--nocapture"]);
        if !test.env("EBBFLOW_FUZZ", args.inputs.to_string()).status()?.success() {
            return Err("not all readers ran, or one failed; see above".into());
        }
    }
    Ok(())
}
