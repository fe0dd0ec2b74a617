//! Servers and clients keep what they write to themselves.

use std::path::Path;

/// From now on nobody but this user, and root, can read or lock what the process makes.
pub(crate) fn restrict_umask() {
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// What is wrong with a folder that others than its owner can look into, and what to type.
pub(crate) fn permission_warning(folder: &Path) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(folder).ok()?.permissions().mode() & 0o777;
        (mode & 0o077 != 0).then(|| {
            format!(
                "{0}: other users of this machine can look into it (mode {mode:o}), and keep it locked; chmod -R go-rwx {0}",
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

/// Whether a folder belongs to somebody else than whoever runs this, and so would what is made in it; and to
/// whom.
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
