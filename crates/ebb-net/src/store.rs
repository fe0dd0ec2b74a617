//! The persistent state of a server in one file: members, uses of tokens, and the journal.
//!
//! One thread writes. Writes that arrive while a transaction is on its way to disk share the next one, so
//! that a thousand updates do not cost a thousand waits for the disk. Old entries are pruned in batches, so
//! that no write waits long for that either.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use crate::members::Member;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const MEMBERS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("members");
const TOKENS: TableDefinition<'_, &[u8], u32> = TableDefinition::new("tokens");
const JOURNAL: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("journal");
const VECTORS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("vectors");

/// The key of the fingerprint of the server's own key.
const KEY_FINGERPRINT: &str = "known_key";

/// Keys of values about the whole store, present after a rollback.
const INCARNATION: &str = "incarnation";
const ROLLBACK_ENTRY: &str = "went_back_to";
const UNFINISHED_ROLLBACK_ROUND: &str = "going_back_to";

/// The version of the file's content.
const STORE_VERSION: u32 = 1;

/// The most bytes of vectors written in one transaction.
const MAX_TRANSACTION_BYTES: usize = 64 << 20;

/// The most entries, and about the most bytes, pruned in one transaction.
const MAX_PRUNED_ENTRIES: usize = 256;
const MAX_PRUNED_BYTES: usize = 16 << 20;

/// Files up to this size in bytes are checked as a whole before they are used. In larger ones, where that
/// would take long, entries and vectors are checked one by one.
const MAX_CHECKED_BYTES: u64 = 1 << 30;

/// The most bytes of the file cached in memory: what is written is rarely read again.
const CACHE_BYTES: usize = 64 << 20;

/// Why the store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// What the server was doing.
    pub doing: &'static str,
    /// What went wrong.
    pub message: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} the server's store: {}", self.doing, self.message)
    }
}

impl std::error::Error for StoreError {}

trait StoreContext<T> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError>;
}

impl<T, E: Into<redb::Error>> StoreContext<T> for Result<T, E> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError> {
        self.map_err(|error| match error.into() {
            redb::Error::DatabaseAlreadyOpen => {
                let message = "another ebbflow process uses this folder; stop it first";
                StoreError { doing, message: message.to_owned() }
            }
            error @ (redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_)) => {
                StoreError { doing, message: damaged_message(&error.to_string()) }
            }
            redb::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                StoreError { doing, message: damaged_message("it does not begin like a store") }
            }
            other => StoreError { doing, message: other.to_string() },
        })
    }
}

/// The message about a damaged file.
fn damaged_message(what: &str) -> String {
    format!(
        "the file is damaged ({what}); put back a whole copy of the folder, or start a new run with another \
         --out"
    )
}

/// Does something with the file. Reading a damaged one may panic, which is reported as an error like any
/// other.
pub(crate) fn catching_panics<T>(
    doing: &'static str,
    act: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CATCHING_PANICS.get() {
                loud(panic);
            }
        }));
    });
    let before = CATCHING_PANICS.replace(true);
    let done = catch_unwind(AssertUnwindSafe(act));
    CATCHING_PANICS.set(before);
    done.unwrap_or_else(|_| {
        Err(StoreError { doing, message: damaged_message("its content contradicts itself") })
    })
}

thread_local! {
    /// Whether this thread works on a file that may be damaged.
    static CATCHING_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Something to write.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    /// A new or changed member.
    Member(Member),
    /// How many clients enrolled with this token.
    TokenUses([u8; 8], u32),
    /// The next entry of the journal, with its vectors.
    JournalEntry { seq: u64, head: Vec<u8>, vectors: Option<Bytes> },
}

/// Which entries are no longer needed: those below a number, except for some in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Prune {
    pub(crate) below: u64,
    pub(crate) except: Vec<u64>,
}

/// The file.
#[derive(Debug)]
pub struct Store {
    database: Database,
    /// `None` if it is in memory only.
    file: Option<PathBuf>,
    /// In tests: the server is killed just before this entry is on disk.
    #[cfg(test)]
    pub(crate) killed_before: std::sync::atomic::AtomicU64,
}

impl Store {
    /// Opens the file or creates it. Only one process can have it open.
    pub fn open(file: &Path) -> Result<Store, StoreError> {
        let open = |file: &Path| {
            catching_panics("opening", || {
                Database::builder().set_cache_size(CACHE_BYTES).create(file).doing("opening")
            })
        };
        if !file.exists() {
            // A process that is killed here must not leave a file that cannot be opened, so the file gets its
            // name when it is complete.
            let unfinished = file.with_extension("unfinished");
            let failed = |error: std::io::Error| StoreError { doing: "making", message: error.to_string() };
            match std::fs::remove_file(&unfinished) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
            drop(Store::initialize(open(&unfinished)?, Some(&unfinished))?);
            std::fs::rename(&unfinished, file).map_err(failed)?;
            crate::tokens::sync_folder_of(file).map_err(failed)?;
        }
        let database = check_integrity(open(file)?, file)?;
        catching_panics("opening", || Store::initialize(database, Some(file)))
    }

    /// The size of the file in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.as_ref().and_then(|file| std::fs::metadata(file).ok()).map_or(0, |found| found.len())
    }

    /// A store in memory.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Store {
        let backend = redb::backends::InMemoryBackend::new();
        Store::initialize(Database::builder().create_with_backend(backend).unwrap(), None).unwrap()
    }

    fn initialize(database: Database, file: Option<&Path>) -> Result<Store, StoreError> {
        let begin = database.begin_write().doing("opening")?;
        {
            let mut meta = begin.open_table(META).doing("opening")?;
            let found = meta.get("version").doing("reading")?.map(|value| value.value().to_vec());
            match found {
                None => {
                    meta.insert("version", STORE_VERSION.to_le_bytes().as_slice()).doing("writing")?;
                    let id: [u8; 16] = crate::tokens::random_bytes();
                    meta.insert("server", id.as_slice()).doing("writing")?;
                }
                Some(found) if found == STORE_VERSION.to_le_bytes() => {}
                Some(_) => {
                    let message = "another version of this program wrote it; use that version".to_owned();
                    return Err(StoreError { doing: "opening", message });
                }
            }
            begin.open_table(MEMBERS).doing("opening")?;
            begin.open_table(TOKENS).doing("opening")?;
            begin.open_table(JOURNAL).doing("opening")?;
            begin.open_table(VECTORS).doing("opening")?;
        }
        begin.commit().doing("opening")?;
        Ok(Store {
            database,
            file: file.map(Path::to_owned),
            #[cfg(test)]
            killed_before: u64::MAX.into(),
        })
    }

    /// The identity of this server.
    pub(crate) fn server_id(&self) -> Result<[u8; 16], StoreError> {
        let read = self.database.begin_read().doing("reading")?;
        let meta = read.open_table(META).doing("reading")?;
        let found = meta.get("server").doing("reading")?;
        found
            .and_then(|id| id.value().try_into().ok())
            .ok_or(StoreError { doing: "reading", message: "it has no server identity".to_owned() })
    }

    /// All members, ascending by number.
    pub(crate) fn members(&self) -> Result<Vec<Member>, StoreError> {
        let read = self.database.begin_read().doing("reading")?;
        let table = read.open_table(MEMBERS).doing("reading")?;
        let mut members = Vec::new();
        for row in table.iter().doing("reading")? {
            let (_, bytes) = row.doing("reading")?;
            let member = Member::from_bytes(bytes.value())
                .map_err(|error| StoreError { doing: "reading", message: error.to_string() })?;
            members.push(member);
        }
        Ok(members)
    }

    /// How many clients enrolled with each token.
    pub(crate) fn token_uses(&self) -> Result<Vec<([u8; 8], u32)>, StoreError> {
        let read = self.database.begin_read().doing("reading")?;
        let table = read.open_table(TOKENS).doing("reading")?;
        let mut uses = Vec::new();
        for row in table.iter().doing("reading")? {
            let (id, count) = row.doing("reading")?;
            uses.extend(id.value().try_into().ok().map(|id| (id, count.value())));
        }
        Ok(uses)
    }

    /// The number of the next journal entry: the one after the last, and never a number used before a
    /// rollback.
    pub(crate) fn next_entry(&self) -> Result<u64, StoreError> {
        let min_entry = self.rollback_entry()?;
        let read = self.database.begin_read().doing("reading")?;
        let table = read.open_table(JOURNAL).doing("reading")?;
        Ok(table.last().doing("reading")?.map_or(0, |(seq, _)| seq.value() + 1).max(min_entry))
    }

    /// A value about the whole store.
    fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let read = self.database.begin_read().doing("reading")?;
        let meta = read.open_table(META).doing("reading")?;
        Ok(meta.get(key).doing("reading")?.map(|value| value.value().to_vec()))
    }

    /// The fingerprint of the server's key.
    pub(crate) fn key_fingerprint(&self) -> Result<Option<u64>, StoreError> {
        Ok(self.meta(KEY_FINGERPRINT)?.and_then(|found| found.try_into().ok()).map(u64::from_le_bytes))
    }

    /// Sets the fingerprint of the server's key.
    pub(crate) fn set_key_fingerprint(&self, number: u64) -> Result<(), StoreError> {
        let mut begin = self.database.begin_write().doing("writing")?;
        begin.set_quick_repair(true);
        let number = number.to_le_bytes();
        begin
            .open_table(META)
            .doing("writing")?
            .insert(KEY_FINGERPRINT, number.as_slice())
            .doing("writing")?;
        begin.commit().doing("writing")
    }

    /// The incarnation of the server, which every rollback changes. All zeros before the first one.
    pub fn incarnation(&self) -> Result<[u8; 16], StoreError> {
        Ok(self.meta(INCARNATION)?.and_then(|found| found.try_into().ok()).unwrap_or_default())
    }

    /// The entry from which on the last rollback removed everything.
    pub(crate) fn rollback_entry(&self) -> Result<u64, StoreError> {
        Ok(self.meta(ROLLBACK_ENTRY)?.and_then(|found| found.try_into().ok()).map_or(0, u64::from_le_bytes))
    }

    /// The round of a rollback that was begun and not finished.
    pub(crate) fn unfinished_rollback_round(&self) -> Result<Option<u32>, StoreError> {
        Ok(self
            .meta(UNFINISHED_ROLLBACK_ROUND)?
            .and_then(|found| found.try_into().ok())
            .map(u32::from_le_bytes))
    }

    /// Removes the journal from an entry on, and begins another incarnation of the server. Until
    /// [`Store::finish_rollback`] the store knows that the rest of the folder may not be back yet.
    pub(crate) fn begin_rollback(&self, entry: u64, round: u32) -> Result<(), StoreError> {
        let mut begin = self.database.begin_write().doing("writing")?;
        begin.set_quick_repair(true);
        {
            let mut meta = begin.open_table(META).doing("writing")?;
            let incarnation: [u8; 16] = crate::tokens::random_bytes();
            meta.insert(INCARNATION, incarnation.as_slice()).doing("writing")?;
            meta.insert(ROLLBACK_ENTRY, entry.to_le_bytes().as_slice()).doing("writing")?;
            meta.insert(UNFINISHED_ROLLBACK_ROUND, round.to_le_bytes().as_slice()).doing("writing")?;
            let mut journal = begin.open_table(JOURNAL).doing("writing")?;
            journal.retain_in(entry.., |_, _| false).doing("writing")?;
            let mut vectors = begin.open_table(VECTORS).doing("writing")?;
            vectors.retain_in(entry.., |_, _| false).doing("writing")?;
        }
        begin.commit().doing("writing")
    }

    /// Notes that the rest of the folder is back.
    pub(crate) fn finish_rollback(&self) -> Result<(), StoreError> {
        let mut begin = self.database.begin_write().doing("writing")?;
        begin.set_quick_repair(true);
        begin.open_table(META).doing("writing")?.remove(UNFINISHED_ROLLBACK_ROUND).doing("writing")?;
        begin.commit().doing("writing")
    }

    /// The entries of the journal from a number on, without their vectors.
    pub(crate) fn entries(&self, from: u64) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let read = self.database.begin_read().doing("reading")?;
        let table = read.open_table(JOURNAL).doing("reading")?;
        let mut entries = Vec::new();
        for row in table.range(from..).doing("reading")? {
            let (seq, head) = row.doing("reading")?;
            entries.push((seq.value(), head.value().to_vec()));
        }
        Ok(entries)
    }

    /// An entry of the journal, without its vectors.
    pub(crate) fn entry(&self, seq: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let read = self.database.begin_read().doing("reading")?;
        let table = read.open_table(JOURNAL).doing("reading")?;
        Ok(table.get(seq).doing("reading")?.map(|head| head.value().to_vec()))
    }

    /// The vectors of an entry.
    pub(crate) fn vectors(&self, seq: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let read = self.database.begin_read().doing("reading")?;
        let table = read.open_table(VECTORS).doing("reading")?;
        Ok(table.get(seq).doing("reading")?.map(|bytes| bytes.value().to_vec()))
    }

    #[cfg(test)]
    fn is_killed_by(&self, writes: &[Write]) -> bool {
        let before = self.killed_before.load(std::sync::atomic::Ordering::Relaxed);
        writes.iter().any(|write| matches!(write, Write::JournalEntry { seq, .. } if *seq >= before))
    }

    /// Whether the test kills the server here.
    #[cfg(test)]
    pub(crate) fn is_killed(&self) -> bool {
        self.killed_before.load(std::sync::atomic::Ordering::Relaxed) < u64::MAX
    }

    /// Writes everything or nothing, and prunes a batch. On return both are on disk. Returns whether nothing
    /// is left to prune.
    fn commit(&self, writes: &[Write], prune: Option<&Prune>) -> Result<bool, StoreError> {
        let mut begin = self.database.begin_write().doing("writing")?;
        // Opening the file after a kill then need not read all of it.
        begin.set_quick_repair(true);
        for write in writes {
            match write {
                Write::Member(member) => {
                    let mut table = begin.open_table(MEMBERS).doing("writing")?;
                    table.insert(member.client.number(), member.to_bytes().as_slice()).doing("writing")?;
                }
                Write::TokenUses(id, count) => {
                    let mut table = begin.open_table(TOKENS).doing("writing")?;
                    table.insert(id.as_slice(), count).doing("writing")?;
                }
                Write::JournalEntry { seq, head, vectors } => {
                    let mut table = begin.open_table(JOURNAL).doing("writing")?;
                    table.insert(seq, head.as_slice()).doing("writing")?;
                    if let Some(vectors) = vectors {
                        let mut table = begin.open_table(VECTORS).doing("writing")?;
                        table.insert(seq, vectors.as_ref()).doing("writing")?;
                    }
                }
            }
        }
        let all_gone = prune.map_or(Ok(true), |prune| prune_batch(&begin, prune))?;
        begin.commit().doing("writing")?;
        Ok(all_gone)
    }
}

/// Checks in small files whether every page matches the checksum in its parent.
fn check_integrity(database: Database, file: &Path) -> Result<Database, StoreError> {
    if std::fs::metadata(file).is_ok_and(|found| found.len() > MAX_CHECKED_BYTES) {
        return Ok(database);
    }
    // After a panic inside, closing the database would panic again.
    let mut held = ManuallyDrop::new(database);
    let whole = catching_panics("checking", || held.check_integrity().doing("checking"))?;
    if !whole {
        tracing::info!(file = %file.display(), "repaired unused pages of the store");
    }
    Ok(ManuallyDrop::into_inner(held))
}

/// Prunes a batch of entries. Returns whether nothing is left.
fn prune_batch(begin: &WriteTransaction, prune: &Prune) -> Result<bool, StoreError> {
    let mut journal = begin.open_table(JOURNAL).doing("writing")?;
    let mut vectors = begin.open_table(VECTORS).doing("writing")?;
    let mut gone = Vec::new();
    for row in journal.range(..prune.below).doing("reading")? {
        let seq = row.doing("reading")?.0.value();
        if prune.except.binary_search(&seq).is_err() {
            gone.push(seq);
        }
        if gone.len() > MAX_PRUNED_ENTRIES {
            break;
        }
    }
    let mut bytes = 0;
    for (at, &seq) in gone.iter().enumerate() {
        if at == MAX_PRUNED_ENTRIES || bytes >= MAX_PRUNED_BYTES {
            return Ok(false);
        }
        journal.remove(seq).doing("writing")?;
        bytes += vectors.remove(seq).doing("writing")?.map_or(0, |removed| removed.value().len());
    }
    Ok(true)
}

/// Called once something was written, or could not be written.
pub(crate) type OnWritten = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The thread that writes, and the numbers of entries.
pub(crate) struct Writer {
    queue: Mutex<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Queue {
    /// `None` once it is closed.
    sender: Option<Sender<WriterTask>>,
    next_entry: u64,
}

/// A task for the thread.
enum WriterTask {
    Writes(Vec<Write>, OnWritten),
    Prune(Prune, OnWritten),
}

impl WriterTask {
    fn into_callback(self) -> OnWritten {
        match self {
            WriterTask::Writes(_, then) | WriterTask::Prune(_, then) => then,
        }
    }
}

impl Writer {
    /// Begins to write, entries from this number on.
    pub(crate) fn start(store: Arc<Store>, next: u64) -> Writer {
        let (to, from) = channel();
        let thread = std::thread::spawn(move || write_all(&store, &from));
        Writer {
            queue: Mutex::new(Queue { sender: Some(to), next_entry: next }),
            thread: Mutex::new(Some(thread)),
        }
    }

    /// Hands over something to write.
    pub(crate) fn write(&self, writes: Vec<Write>, then: OnWritten) {
        self.lock().send(WriterTask::Writes(writes, then));
    }

    /// Hands over entries to prune in the background.
    pub(crate) fn prune(&self, prune: Prune, then: OnWritten) {
        self.lock().send(WriterTask::Prune(prune, then));
    }

    /// Hands over the next entry of the journal, and returns its number. Entries are written in the order of
    /// their numbers.
    pub(crate) fn append(
        &self,
        head: Vec<u8>,
        vectors: Option<Bytes>,
        then: impl FnOnce(u64, Result<(), StoreError>) + Send + 'static,
    ) -> u64 {
        let mut queue = self.lock();
        let seq = queue.next_entry;
        queue.next_entry += 1;
        let writes = vec![Write::JournalEntry { seq, head, vectors }];
        queue.send(WriterTask::Writes(writes, Box::new(move |result| then(seq, result))));
        seq
    }

    /// Appends an entry and waits until it is on disk.
    pub(crate) fn append_and_wait(&self, head: Vec<u8>) -> Result<u64, StoreError> {
        let (to, from) = channel();
        let seq = self.append(head, None, move |_, result| {
            // The receiver waits below.
            let _ = to.send(result);
        });
        from.recv().unwrap_or_else(|_| Err(closed_error()))?;
        Ok(seq)
    }

    /// The number of the next entry.
    pub(crate) fn next_entry(&self) -> u64 {
        self.lock().next_entry
    }

    /// Waits until everything that was handed over is on disk.
    #[cfg(test)]
    pub(crate) fn drain(&self) {
        let (to, from) = channel();
        self.write(Vec::new(), Box::new(move |result| to.send(result).expect("the receiver waits")));
        let _ = from.recv();
    }

    /// Writes what was handed over, and nothing after it.
    pub(crate) fn close(&self) {
        self.lock().sender = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread itself may drop the last reference.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue {
    fn send(&self, handed: WriterTask) {
        let refused = match &self.sender {
            None => Some(handed),
            Some(to) => to.send(handed).err().map(|back| back.0),
        };
        // Called without the lock, because the callback may need what its caller holds.
        if let Some(handed) = refused {
            std::thread::spawn(move || handed.into_callback()(Err(closed_error())));
        }
    }
}

fn closed_error() -> StoreError {
    StoreError { doing: "writing", message: "the store is closed".to_owned() }
}

/// Writes until the channel is closed and everything is written.
fn write_all(store: &Store, from: &Receiver<WriterTask>) {
    let mut prunes: VecDeque<(Prune, OnWritten)> = VecDeque::new();
    loop {
        let (mut writes, mut thens, mut size) = (Vec::new(), Vec::new(), 0);
        // The thread only waits when there is nothing to prune.
        let mut next = if prunes.is_empty() { from.recv().ok() } else { from.try_recv().ok() };
        while let Some(handed) = next {
            match handed {
                WriterTask::Writes(more, then) => {
                    size += more.iter().map(vector_bytes).sum::<usize>();
                    writes.extend(more);
                    thens.push(then);
                }
                WriterTask::Prune(prune, then) => prunes.push_back((prune, then)),
            }
            next = if size < MAX_TRANSACTION_BYTES { from.try_recv().ok() } else { None };
        }
        if thens.is_empty() && prunes.is_empty() {
            return;
        }
        #[cfg(test)]
        if store.is_killed_by(&writes) {
            // After a failure nothing of this transaction and nothing later is written.
            return;
        }
        let result = match (writes.is_empty(), prunes.front()) {
            // A client that enrols again is only told what is already written.
            (true, None) => Ok(true),
            (_, prune) => catching_panics("writing", || store.commit(&writes, prune.map(|(prune, _)| prune))),
        };
        drop(writes);
        if result != Ok(false)
            && let Some((_, then)) = prunes.pop_front()
        {
            then(result.clone().map(|_| ()));
        }
        let result = result.map(|_| ());
        thens.into_iter().for_each(|then| then(result.clone()));
    }
}

fn vector_bytes(write: &Write) -> usize {
    match write {
        Write::JournalEntry { vectors, .. } => vectors.as_ref().map_or(0, Bytes::len),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&folder.path().join("store.redb")).unwrap());
        (folder, store)
    }

    #[test]
    fn an_unfinished_store_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        // As a server leaves it that is killed while it creates the file.
        std::fs::write(folder.path().join("store.unfinished"), [0; 4096]).unwrap();
        let store = Store::open(&folder.path().join("store.redb")).unwrap();
        let id = store.server_id().unwrap();
        drop(store);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(Store::open(&folder.path().join("store.redb")).unwrap().server_id().unwrap(), id);
    }

    #[test]
    fn entries_are_read_in_order_with_their_vectors() {
        let (folder, store) = store();
        let id = store.server_id().unwrap();
        let writer = Writer::start(Arc::clone(&store), 0);
        let (to, from) = channel();
        for at in 0..50_u8 {
            let to = to.clone();
            let vectors = (at % 2 == 0).then(|| Bytes::from(vec![at; 10]));
            writer.append(vec![at], vectors, move |seq, result| to.send((seq, result)).unwrap());
        }
        assert_eq!(writer.append_and_wait(vec![50]).unwrap(), 50);
        assert_eq!(from.try_iter().map(|(seq, _)| seq).collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
        drop((writer, store));
        let store = Store::open(&folder.path().join("store.redb")).unwrap();
        assert_eq!(store.server_id().unwrap(), id);
        let entries = store.entries(48).unwrap();
        assert_eq!(entries, [(48, vec![48]), (49, vec![49]), (50, vec![50])]);
        assert_eq!(store.vectors(48).unwrap(), Some(vec![48; 10]));
        assert_eq!(store.vectors(49).unwrap(), None);
    }

    #[test]
    fn pruning_keeps_what_is_still_needed() {
        let (_folder, store) = store();
        let writer = Writer::start(Arc::clone(&store), 0);
        for at in 0..10_u8 {
            writer.append(vec![at], Some(Bytes::from(vec![at])), |_, result| result.unwrap());
        }
        writer.prune(Prune { below: 7, except: vec![2, 5] }, Box::new(|result| result.unwrap()));
        writer.close();
        let left: Vec<_> = store.entries(0).unwrap().into_iter().map(|(seq, _)| seq).collect();
        assert_eq!(left, [2, 5, 7, 8, 9]);
        assert_eq!(store.vectors(3).unwrap(), None);
        assert_eq!(store.vectors(5).unwrap(), Some(vec![5]));
    }

    #[test]
    fn pruning_happens_in_batches_between_which_others_write() {
        let (_folder, store) = store();
        let n_entries = 3 * MAX_PRUNED_ENTRIES as u64;
        let entry = |seq| Write::JournalEntry { seq, head: vec![1], vectors: Some(Bytes::from(vec![2; 10])) };
        store.commit(&(0..n_entries).map(entry).collect::<Vec<_>>(), None).unwrap();
        let prune = Prune { below: n_entries - 1, except: vec![0] };
        assert_eq!(store.commit(&[entry(n_entries)], Some(&prune)), Ok(false));
        assert_eq!(store.entries(0).unwrap().len(), 2 * MAX_PRUNED_ENTRIES + 1);
        assert_eq!(store.commit(&[], Some(&prune)), Ok(false));
        assert_eq!(store.commit(&[], Some(&prune)), Ok(true));
        let left: Vec<_> = store.entries(0).unwrap().into_iter().map(|(seq, _)| seq).collect();
        assert_eq!(left, [0, n_entries - 1, n_entries]);
        assert_eq!(store.vectors(1).unwrap(), None);
        // Large entries count by their size.
        let large = |seq| Write::JournalEntry {
            seq,
            head: vec![1],
            vectors: Some(Bytes::from(vec![2; MAX_PRUNED_BYTES])),
        };
        store.commit(&[large(n_entries + 1), large(n_entries + 2)], None).unwrap();
        let prune = Prune { below: u64::MAX, except: vec![0, n_entries - 1, n_entries] };
        assert_eq!(store.commit(&[], Some(&prune)), Ok(false));
        assert_eq!(store.commit(&[], Some(&prune)), Ok(true));
        assert_eq!(store.entries(0).unwrap().len(), 3);
    }

    #[test]
    fn writing_to_a_closed_store_is_an_error() {
        let (_folder, store) = store();
        let writer = Writer::start(store, 0);
        writer.close();
        assert_eq!(writer.append_and_wait(vec![1]), Err(closed_error()));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_an_error_that_says_so_or_does_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.redb");
        let store = Store::open(&file).unwrap();
        let entry =
            |seq| Write::JournalEntry { seq, head: vec![1; 50], vectors: Some(Bytes::from(vec![2; 3000])) };
        for seq in 0..40 {
            store.commit(&[entry(seq)], None).unwrap();
        }
        let wanted = (store.server_id(), store.entries(0), store.vectors(17));
        drop(store);
        let whole = std::fs::read(&file).unwrap();
        let mut stream = ebb_round::Stream::of_round(2026, "flipped", 0);
        let (mut refused, mut as_before) = (0, 0);
        for number in 0..n_flips() {
            let place = folder.path().join(format!("{number}.redb"));
            let mut bytes = whole.clone();
            // Nothing can be damaged where nothing is written.
            let at = loop {
                let at = stream.below(bytes.len());
                if bytes[at - at % 64..].iter().take(64).any(|&byte| byte != 0) {
                    break at;
                }
            };
            bytes[at] ^= 1 << stream.below(8);
            std::fs::write(&place, bytes).unwrap();
            match Store::open(&place) {
                Err(error) => {
                    assert!(error.message.contains("put back a whole copy"), "byte {at}: {error}");
                    refused += 1;
                }
                Ok(store) => {
                    assert!((store.server_id(), store.entries(0), store.vectors(17)) == wanted, "byte {at}");
                    as_before += 1;
                }
            }
            std::fs::remove_file(place).unwrap();
        }
        assert!(refused > 0 && as_before > 0, "{refused} refused, {as_before} as before");
    }

    /// The number of flipped bits, or what `EBBFLOW_FLIPS` says.
    fn n_flips() -> u32 {
        std::env::var("EBBFLOW_FLIPS").map_or(60, |text| text.parse().expect("EBBFLOW_FLIPS is a number"))
    }

    #[test]
    fn a_rollback_removes_later_entries_and_begins_another_incarnation() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.redb");
        let store = Store::open(&file).unwrap();
        let entry = |seq| Write::JournalEntry { seq, head: vec![1], vectors: Some(Bytes::from(vec![2; 10])) };
        store.commit(&(0..10).map(entry).collect::<Vec<_>>(), None).unwrap();
        assert_eq!((store.incarnation(), store.unfinished_rollback_round()), (Ok([0; 16]), Ok(None)));
        store.begin_rollback(6, 3).unwrap();
        drop(store);
        let store = Store::open(&file).unwrap();
        let first = store.incarnation().unwrap();
        assert_ne!(first, [0; 16]);
        assert_eq!((store.entries(0).unwrap().len(), store.vectors(6)), (6, Ok(None)));
        assert_eq!((store.unfinished_rollback_round(), store.next_entry()), (Ok(Some(3)), Ok(6)));
        store.finish_rollback().unwrap();
        // The rollback goes beyond the journal's beginning. Numbers are still not given twice.
        store.commit(&[], Some(&Prune { below: 6, except: vec![] })).unwrap();
        store.begin_rollback(4, 2).unwrap();
        store.finish_rollback().unwrap();
        assert_ne!(store.incarnation().unwrap(), first);
        assert_eq!(
            (store.unfinished_rollback_round(), store.next_entry(), store.rollback_entry()),
            (Ok(None), Ok(4), Ok(4))
        );
    }

    #[test]
    fn only_one_process_can_open_the_store() {
        let (folder, _store) = store();
        let error = Store::open(&folder.path().join("store.redb")).unwrap_err();
        assert_eq!(error.doing, "opening");
        assert!(error.message.contains("stop it first"), "{error}");
    }
}
