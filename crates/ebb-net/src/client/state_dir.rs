//! The state directory of a client: its identity and its memory.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ebb_round::{Loader, Parcel, RoundNo, Saver, State, StateError};
use ebb_train::Memory;
use prost::Message;

use super::JoinError;
use crate::tokens::{random_bytes, sync_folder_of, write_private};
use crate::wire;

const IDENTITY_FILE: &str = "identity.ebb";
const MEMORY_FILE: &str = "memory.ebb";
const LOCK_FILE: &str = "lock";

/// A client's state directory and its content.
pub(super) struct StateDir {
    folder: Option<PathBuf>,
    pub(super) secret: [u8; 32],
    /// Its number, and the identity of the server that assigned it.
    pub(super) identity: Option<(u32, Vec<u8>)>,
    pub(super) memory: Memory,
    /// What rounding removed from the updates sent so far.
    pub(super) residue: Parcel,
    /// The residue that becomes valid once the pending update of this round is accepted.
    pub(super) pending_residue: Option<(RoundNo, Parcel)>,
    /// That update and its vectors, until it is settled. After a kill it is sent again to learn its outcome.
    /// Not kept without rounding, because nothing then depends on it.
    pub(super) pending_update: Option<(wire::Answer, Bytes)>,
    /// Held as long as the folder is in use.
    #[allow(dead_code, reason = "its end is what counts")]
    lock: Option<std::fs::File>,
}

impl StateDir {
    /// Reads a state directory or creates it.
    pub(super) fn open(folder: Option<PathBuf>) -> Result<StateDir, JoinError> {
        let mut state_dir = StateDir {
            folder,
            secret: random_bytes(),
            identity: None,
            memory: Memory::default(),
            residue: Parcel::default(),
            pending_residue: None,
            pending_update: None,
            lock: None,
        };
        let Some(folder) = state_dir.folder.clone() else { return Ok(state_dir) };
        let unusable = |message: String| JoinError::Unusable(format!("{}: {message}", folder.display()));
        let unavailable =
            |error: std::io::Error| JoinError::Unavailable(format!("{}: {error}", folder.display()));
        let made = create_private(&folder).map_err(unavailable)?;
        if is_accessible_to_others(&folder) {
            tracing::warn!(
                home = %folder.display(),
                "others on this machine can read the state directory of this client; chmod 700 prevents that"
            );
        }
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let lock = options.open(folder.join(LOCK_FILE)).map_err(unavailable)?;
        lock.try_lock()
            .map_err(|_| unusable("another client uses this state directory; give another one".to_owned()))?;
        state_dir.lock = Some(lock);
        match read_if_exists(&folder.join(IDENTITY_FILE))? {
            // Saved before it is first sent, so that a client whose connection breaks while it enrols is not
            // enrolled twice.
            None => state_dir.save_identity()?,
            Some(bytes) => {
                state_dir
                    .load_identity(&bytes)
                    .map_err(|error| unusable(format!("{IDENTITY_FILE}: {error}")))?;
            }
        }
        if let Some(bytes) = read_if_exists(&folder.join(MEMORY_FILE))? {
            state_dir.load_memory(&bytes).map_err(|error| unusable(format!("{MEMORY_FILE}: {error}")))?;
        }
        // A client that lost its identity in a loss of power would be another one. Synced after the content,
        // because most file systems then have written these names, too.
        made.iter().try_for_each(|folder| sync_folder_of(folder)).map_err(unavailable)?;
        Ok(state_dir)
    }

    /// Saves the identity.
    pub(super) fn save_identity(&self) -> Result<(), JoinError> {
        let mut to = Saver::new();
        to.bytes("secret", &self.secret);
        to.u64("enrolled", u64::from(self.identity.is_some()));
        let (number, server) = self.identity.clone().unwrap_or_default();
        to.u64("number", u64::from(number));
        to.bytes("server", &server);
        self.write(IDENTITY_FILE, &to.finish())
    }

    fn load_identity(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let mut from = Loader::new(bytes);
        self.secret = from.bytes("secret")?.try_into().map_err(|_| from.error("secret", "not 32 bytes"))?;
        let enrolled = from.u64("enrolled")? == 1;
        let (number, server) = (from.u32("number")?, from.bytes("server")?.to_vec());
        self.identity = enrolled.then_some((number, server));
        Ok(())
    }

    /// Saves the memory.
    pub(super) fn save_memory(&self) -> Result<(), JoinError> {
        let mut to = Saver::new();
        self.memory.save(&mut to);
        self.residue.save("residue", &mut to);
        let (round, next) = self.pending_residue.clone().unwrap_or_default();
        to.u64("is_next", u64::from(self.pending_residue.is_some()));
        to.u64("round", u64::from(round));
        next.save("next_residue", &mut to);
        if let Some((message, packed)) = &self.pending_update {
            to.bytes("answer", &message.encode_to_vec());
            to.bytes("packed", packed);
        }
        self.write(MEMORY_FILE, &to.finish())
    }

    fn load_memory(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let mut from = Loader::new(bytes);
        self.memory.load(&mut from)?;
        self.residue = Parcel::load("residue", &mut from)?;
        let is_next = from.u64("is_next")? == 1;
        let next = (from.u32("round")?, Parcel::load("next_residue", &mut from)?);
        self.pending_residue = is_next.then_some(next);
        if !from.at_end() {
            let message = wire::Answer::decode(from.bytes("answer")?)
                .map_err(|error| from.error("answer", error.to_string()))?;
            self.pending_update = Some((message, Bytes::copy_from_slice(from.bytes("packed")?)));
        }
        match from.at_end() {
            true => Ok(()),
            false => Err(from.error("packed", "bytes follow it")),
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), JoinError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let file = folder.join(name);
        write_private(&file, bytes)
            .map_err(|error| JoinError::Unavailable(format!("{}: {error}", file.display())))
    }

    /// Applies the outcome of an update. If it was accepted, the next update makes up for its rounding.
    pub(super) fn settle(&mut self, round: RoundNo, taken: bool) -> Result<(), JoinError> {
        let message = self.pending_update.take_if(|(answer, _)| answer.round == round);
        let next = self.pending_residue.take_if(|(of, _)| taken && *of == round);
        let changed = message.is_some() || next.is_some();
        if let Some((_, residue)) = next {
            self.residue = residue;
        }
        if changed { self.save_memory() } else { Ok(()) }
    }

    /// Applies what a new job says: the latest round whose update was acknowledged. An older one that the
    /// server forgot was acknowledged then, or counts as never received.
    pub(super) fn acknowledge(&mut self, acknowledged: Option<RoundNo>) {
        if let Some((round, residue)) = self.pending_residue.take()
            && acknowledged == Some(round)
        {
            self.residue = residue;
        }
    }
}

/// Creates a folder that only its owner may enter, and its missing parents. Returns the folders to sync.
fn create_private(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let missing = missing_folders(folder);
    for folder in &missing {
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        match builder.create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(missing)
}

/// The missing folders on the path to this one, from the top.
fn missing_folders(folder: &Path) -> Vec<PathBuf> {
    let there = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
    let mut missing: Vec<_> = folder.ancestors().take_while(there).map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// Whether others than its owner can read an existing folder.
fn is_accessible_to_others(folder: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        false
    }
}

fn read_if_exists(file: &std::path::Path) -> Result<Option<Vec<u8>>, JoinError> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(JoinError::Unavailable(format!("{}: {error}", file.display()))),
    }
}

/// Complete files of a client: its identity, and its memory with an update that was not settled.
#[cfg(test)]
pub(crate) fn valid_files() -> [Vec<u8>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let mut state_dir = StateDir::open(Some(folder.path().to_owned())).unwrap();
    state_dir.secret = [7; 32];
    state_dir.identity = Some((7, vec![1; 16]));
    state_dir.save_identity().unwrap();
    state_dir.memory.stage(3, Parcel::of(vec![1.0, 2.0]));
    state_dir.residue = Parcel::of(vec![0.5, 0.25]);
    state_dir.pending_residue = Some((4, Parcel::of(vec![0.125, 0.0])));
    let message = wire::Answer { round: 4, ticket: vec![5; 16].into(), steps: 2, ..wire::Answer::default() };
    state_dir.pending_update = Some((message, Bytes::from_static(b"vectors")));
    state_dir.save_memory().unwrap();
    [IDENTITY_FILE, MEMORY_FILE].map(|name| std::fs::read(folder.path().join(name)).unwrap())
}

/// Whether a file can be read, as an identity or as a memory.
#[cfg(test)]
pub(crate) fn is_readable_file(is_identity: bool, bytes: &[u8]) -> bool {
    let mut state_dir = StateDir::open(None).unwrap();
    if is_identity { state_dir.load_identity(bytes).is_ok() } else { state_dir.load_memory(bytes).is_ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_client_has_the_same_identity_and_memory() {
        let folder = tempfile::tempdir().unwrap();
        let open = || StateDir::open(Some(folder.path().join("client"))).unwrap();
        let first = open();
        let secret = first.secret;
        drop(first);
        let mut state_dir = open();
        assert_eq!(state_dir.secret, secret);
        state_dir.identity = Some((7, vec![1; 16]));
        state_dir.save_identity().unwrap();
        state_dir.memory.stage(3, Parcel::of(vec![1.0]));
        state_dir.pending_residue = Some((3, Parcel::of(vec![0.5])));
        state_dir.settle(2, true).unwrap();
        assert_eq!(state_dir.residue, Parcel::default());
        state_dir.settle(3, true).unwrap();
        drop(state_dir);
        let mut again = open();
        assert_eq!(
            (again.identity.clone(), again.residue.clone()),
            (Some((7, vec![1; 16])), Parcel::of(vec![0.5]))
        );
        assert_eq!(again.memory.commit_until(4, Some(3)).model, [1.0]);
    }

    #[cfg(unix)]
    #[test]
    fn only_its_owner_can_read_the_state_directory_of_a_client() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("deep").join("er").join("home");
        let mut state_dir = StateDir::open(Some(deep.clone())).unwrap();
        state_dir.identity = Some((7, vec![1; 16]));
        state_dir.save_identity().unwrap();
        state_dir.save_memory().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(missing_folders(&deep), [] as [PathBuf; 0]);
        for folder in deep.ancestors().take(3) {
            assert_eq!(mode(folder), 0o700, "{}", folder.display());
        }
        for file in [LOCK_FILE, IDENTITY_FILE, MEMORY_FILE] {
            assert_eq!(mode(&deep.join(file)), 0o600, "{file}");
        }
        assert!(!is_accessible_to_others(&deep));
        std::fs::set_permissions(&deep, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(is_accessible_to_others(&deep));
    }

    #[test]
    fn every_missing_folder_is_created_and_its_name_synced() {
        let folder = tempfile::tempdir().unwrap();
        let path_names = ["one", "two", "three"];
        let deep: PathBuf = path_names.iter().fold(folder.path().to_owned(), |path, name| path.join(name));
        let names = |path: &Path| -> Vec<_> {
            missing_folders(path).iter().map(|one| one.file_name().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&deep), path_names);
        std::fs::create_dir(folder.path().join("one")).unwrap();
        assert_eq!(names(&deep), path_names[1..]);
        assert_eq!(missing_folders(Path::new("")), [] as [PathBuf; 0]);
        assert_eq!(missing_folders(Path::new("no/such")), [Path::new("no"), Path::new("no/such")]);
    }

    #[test]
    fn a_damaged_identity_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(IDENTITY_FILE), "no").unwrap();
        let error = StateDir::open(Some(folder.path().to_owned())).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("identity.ebb: saved state"), "{error}");
    }
}
