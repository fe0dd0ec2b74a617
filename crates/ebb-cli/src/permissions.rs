//! Files of servers and clients are readable by their owner only.

use std::path::Path;

/// Restricts files that this process makes to its user (and root).
pub(crate) fn restrict_umask() {
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Warns of a folder that other users can read, with the command that closes it.
pub(crate) fn permission_warning(folder: &Path) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(folder).ok()?.permissions().mode() & 0o777;
        (mode & 0o077 != 0).then(|| {
            format!(
                "{0}: other users of this machine can read and lock this folder (mode {mode:o}); close it with: chmod -R go-rwx {0}",
                folder.display()
            )
        })
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}

/// The owner of a folder, if it is another user than that of this process.
pub(crate) fn foreign_owner(folder: &Path) -> Option<u32> {
    #[cfg(unix)]
    {
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(folder).ok()?);
        (owner != rustix::process::geteuid().as_raw()).then_some(owner)
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}
