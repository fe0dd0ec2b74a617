//! Files in Debian packages. Nothing gets installed: the package is downloaded and opened here.

use super::program::{Download, PATIENCE};
use super::unpack;
use crate::Progress;
use crate::archive::from_deb;
use crate::deliver::Delivery;
use crate::error::Trouble;
use crate::known::Member;

pub(super) fn files(
    package: &str,
    files: &'static [Member],
    delivery: &mut Delivery,
    progress: &mut dyn Progress,
) -> Result<(), Trouble> {
    let scratch = delivery.scratch()?;
    // Without a network it should say so soon.
    let options = ["-o", "Acquire::http::Timeout=10", "-o", "Acquire::Retries=0"];
    let arguments = [&options[..], &["download", package]].concat();
    let download =
        Download { package, program: "apt-get", arguments: &arguments, ending: "deb", patience: PATIENCE };
    let deb = download.run(scratch.path(), progress)?;
    unpack(files, delivery, progress, |wanted, take| from_deb(&deb, wanted, take))
}
