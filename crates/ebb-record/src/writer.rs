//! Writes a run folder such that the run can go on whenever the process dies.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ebb_round::{Acquaintance, Layout, Weights};

use crate::checkpoint::{self, Stand};
use crate::disk;
use crate::error::{Doing, RecordError};
use crate::reader::{Header, HeaderFile, Rows, Wall, read_walls};
use crate::summary::{ClientWeights, Summary, Tally};
use crate::{
    CHECKPOINT, MODEL, REPLAYED, ROUNDS, RUN, Row, SETTINGS, START_MODEL, SUMMARY, TABLE, WALL, friends,
    note_names, write_csv, write_model,
};

/// A run that is being written. Only one can exist for a folder, across all processes.
///
/// After an error a run goes on by [`RunWriter::reopen`], once this writer is dropped.
#[derive(Debug)]
pub struct RunWriter {
    folder: PathBuf,
    rows: File,
    wall: File,
    stand: Stand,
    _lock: File,
}

impl RunWriter {
    /// Starts a record. Its folder must not exist; it appears at once with all it needs, the model that the
    /// run starts from among it, if that came from elsewhere.
    pub fn create(
        folder: &Path,
        header: &Header,
        settings: &str,
        start: Option<(&Layout, &[f32])>,
    ) -> Result<Self, RecordError> {
        RunWriter::create_replay(folder, header, settings, start, None)
    }

    /// The same for a run that replays another, whose rounds it then carries with it.
    pub fn create_replay(
        folder: &Path,
        header: &Header,
        settings: &str,
        start: Option<(&Layout, &[f32])>,
        replayed: Option<&[u8]>,
    ) -> Result<Self, RecordError> {
        let exists = || RecordError::Exists { folder: folder.to_owned() };
        if folder.symlink_metadata().is_ok() {
            return Err(exists());
        }
        let parent = disk::parent(folder);
        fs::create_dir_all(parent).doing("creating", parent)?;
        let building = parent.join(name_while_building(folder)?);
        // Held to the end: whoever was about to lock what is removed here finds it locked.
        let _stale = remove_stale(&building, folder)?;
        fs::create_dir(&building).doing("creating", &building)?;
        let lock = disk::lock(&building, folder)?;
        let lock = fill(&building, header, settings, start, replayed)
            .and_then(|()| put_in_place(&building, folder, lock))
            .inspect_err(|_| {
                // What is reported is why the creation failed; a leftover goes with the next attempt.
                let _ = fs::remove_dir_all(&building);
            })?;
        RunWriter::open(folder, Stand::default(), lock)
    }

    /// Takes up an unfinished run where its checkpoint stood, or at its start, and returns the
    /// checkpoint's state. Rows and friends beyond it are cut off, for their rounds will be run again. A run whose settings
    /// changed since it began is refused.
    pub fn reopen(folder: &Path) -> Result<(Self, Option<Vec<u8>>), RecordError> {
        let header = HeaderFile::read(folder)?;
        // Taken before the look at the summary, which another writer may just be writing.
        let lock = disk::lock(folder, folder);
        let summary = folder.join(SUMMARY);
        if summary.try_exists().doing("looking for", &summary)? {
            // Left over if the process died right after the summary.
            let _ = fs::remove_file(folder.join(CHECKPOINT));
            return Err(RecordError::Finished { folder: folder.to_owned() });
        }
        let lock = lock?;
        check_settings(folder, &header)?;
        let path = folder.join(CHECKPOINT);
        let (stand, state) = match checkpoint::read(&path).map_err(|error| error.or_begin_again(folder))? {
            Some((stand, state)) => (stand, Some(state)),
            None => (Stand::default(), None),
        };
        cut_rows(&folder.join(ROUNDS), stand.rows_len).map_err(|error| error.or_begin_again(folder))?;
        cut_walls(&folder.join(WALL), stand.next_round)?;
        friends::cut(folder, stand.next_round)?;
        // Left over if the process died while it wrote a checkpoint; nothing depends on it.
        let _ = fs::remove_file(disk::name_of_new(&path));
        Ok((RunWriter::open(folder, stand, lock)?, state))
    }

    /// Where the run is written.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a round, and returns its line.
    pub fn append(&mut self, row: &Row) -> Result<String, RecordError> {
        let mut line = serde_json::to_string(row).expect("lists, texts and numbers always make JSON");
        line.push('\n');
        if let Err(error) = self.rows.write_all(line.as_bytes()) {
            // Half a line in the middle would be in the way; where it cannot be cut, reopening cuts it.
            let _ = self.rows.set_len(self.stand.rows_len);
            return Err(error).doing("writing", &self.folder.join(ROUNDS));
        }
        self.stand = Stand { rows_len: self.stand.rows_len + line.len() as u64, next_round: row.round + 1 };
        line.pop();
        Ok(line)
    }

    /// Notes what a round took on the clock.
    pub fn wall(&mut self, round: u32, wall_s: f64) -> Result<(), RecordError> {
        let mut line = serde_json::to_vec(&Wall { round, wall_s }).expect("numbers always make JSON");
        line.push(b'\n');
        self.wall.write_all(&line).doing("writing", &self.folder.join(WALL))
    }

    /// Writes who is how alike after the rounds so far.
    ///
    /// It belongs before the checkpoint of the same round: a run that dies in between writes it once more, and never lacks it.
    pub fn friends(&mut self, all: &Acquaintance) -> Result<(), RecordError> {
        friends::write(&self.folder, self.stand.next_round, all)
    }

    /// Makes all rows so far safe, and keeps the state to go on from after them.
    pub fn checkpoint(&mut self, state: &[u8]) -> Result<(), RecordError> {
        self.rows.sync_all().doing("writing", &self.folder.join(ROUNDS))?;
        checkpoint::write(&self.folder.join(CHECKPOINT), self.stand, state)
    }

    /// Ends the run: writes the table, the final model and, last, the summary.
    ///
    /// # Panics
    /// When the model has another length than its layout.
    pub fn finish(
        self,
        ending: &str,
        layout: &Layout,
        model: &[f32],
        target_accuracy: Option<f64>,
        weights: Option<&Weights>,
    ) -> Result<Summary, RecordError> {
        let rounds = self.folder.join(ROUNDS);
        self.rows.sync_all().doing("writing", &rounds)?;
        self.wall.sync_all().doing("writing", &self.folder.join(WALL))?;
        write_model(&self.folder.join(MODEL), layout, model)?;
        let mut tally = Tally::new(target_accuracy);
        let rows = Rows::open(&rounds)?.inspect(|row| row.iter().for_each(|row| tally.add(row)));
        let notes = note_names(rows)?;
        write_csv(Rows::open(&rounds)?, &notes, &self.folder.join(TABLE))?;
        let summary = Summary { weights: weights.map(ClientWeights::from), ..tally.summary(ending) };
        disk::replace_with(&self.folder.join(SUMMARY), &summary.to_json())?;
        // There is nothing left to go on with; if it cannot be removed it does no harm.
        let _ = fs::remove_file(self.folder.join(CHECKPOINT));
        Ok(summary)
    }

    fn open(folder: &Path, stand: Stand, lock: File) -> Result<Self, RecordError> {
        let open = |name| {
            let path = folder.join(name);
            File::options().append(true).create(true).open(&path).doing("opening", &path)
        };
        let (rows, wall) = (open(ROUNDS)?, open(WALL)?);
        Ok(RunWriter { folder: folder.to_owned(), rows, wall, stand, _lock: lock })
    }
}

/// A hidden neighbour of the folder, so that it can be renamed.
fn name_while_building(folder: &Path) -> Result<OsString, RecordError> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the path does not end in a name");
    let mut name = OsString::from(".");
    name.push(folder.file_name().ok_or_else(no_name).doing("creating", folder)?);
    name.push(".new");
    Ok(name)
}

/// Removes what a creation left behind that died half-way; one that is under way is left alone.
fn remove_stale(building: &Path, folder: &Path) -> Result<Option<File>, RecordError> {
    if building.symlink_metadata().is_err() {
        return Ok(None);
    }
    let lock = disk::lock(building, folder)?;
    fs::remove_dir_all(building).doing("removing", building)?;
    Ok(Some(lock))
}

fn fill(
    building: &Path,
    header: &Header,
    settings: &str,
    start: Option<(&Layout, &[f32])>,
    replayed: Option<&[u8]>,
) -> Result<(), RecordError> {
    if let Some((layout, model)) = start {
        write_model(&building.join(START_MODEL), layout, model)?;
    }
    if let Some(rounds) = replayed {
        disk::write_synced(&building.join(REPLAYED), rounds)?;
    }
    disk::write_synced(&building.join(RUN), &header.to_json(settings.as_bytes()))?;
    disk::write_synced(&building.join(SETTINGS), settings.as_bytes())?;
    disk::write_synced(&building.join(ROUNDS), b"")?;
    disk::sync_folder(building)
}

fn put_in_place(building: &Path, folder: &Path, lock: File) -> Result<File, RecordError> {
    let rename = || match fs::rename(building, folder) {
        Err(error) if is_taken(&error) => Err(RecordError::Exists { folder: folder.to_owned() }),
        renamed => renamed.doing("creating", folder),
    };
    // There a folder cannot be renamed while a file in it is open.
    let lock = if cfg!(windows) {
        drop(lock);
        rename()?;
        disk::lock(folder, folder)?
    } else {
        rename()?;
        lock
    };
    disk::sync_folder(disk::parent(folder))?;
    Ok(lock)
}

fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
}

/// Refuses settings that are not those of the rounds so far.
fn check_settings(folder: &Path, header: &HeaderFile) -> Result<(), RecordError> {
    let path = folder.join(SETTINGS);
    if header.began_with(&fs::read(&path).doing("reading", &path)?) {
        return Ok(());
    }
    let remedy = format!("put it back, or begin anew with: ebbflow run {}", folder.display());
    Err(RecordError::damaged(&path, format!("it changed since the run began; {remedy}")))
}

/// Cuts the rows back to a length at which one of them ended.
fn cut_rows(path: &Path, rows_len: u64) -> Result<(), RecordError> {
    let mut file = File::options().read(true).write(true).open(path).doing("opening", path)?;
    let found = file.metadata().doing("reading", path)?.len();
    if found < rows_len {
        let message = format!("it has {found} bytes, and the checkpoint counts on {rows_len}");
        return Err(RecordError::damaged(path, message));
    }
    if rows_len > 0 {
        let mut end = [0];
        file.seek(SeekFrom::Start(rows_len - 1)).doing("reading", path)?;
        file.read_exact(&mut end).doing("reading", path)?;
        if end != *b"\n" {
            let message = format!("no row ends at byte {rows_len}, where the checkpoint counts on it");
            return Err(RecordError::damaged(path, message));
        }
    }
    file.set_len(rows_len).and_then(|()| file.sync_all()).doing("cutting", path)
}

/// Cuts off the times of rounds that will be run again, and a line that was cut short.
fn cut_walls(path: &Path, next_round: u32) -> Result<(), RecordError> {
    let walls = read_walls(path)?;
    let kept = walls.iter().take_while(|(wall, _)| wall.round < next_round).last();
    let file = File::options().write(true).create(true).truncate(false).open(path).doing("opening", path)?;
    file.set_len(kept.map_or(0, |(_, end)| *end)).doing("cutting", path)
}

#[cfg(test)]
mod tests {
    use ebb_round::Piece;

    use super::*;
    use crate::friends::tests::acquaintance;
    use crate::row::tests::row;
    use crate::{FRIENDS, LOCK, RunFolder};

    fn header() -> Header {
        Header {
            program: "ebbflow 0.1.0".into(),
            seed: 7,
            kernels: "portable".into(),
            recipe: None,
            n_params: 2,
        }
    }

    fn layout() -> Layout {
        Layout::new(vec![Piece { name: "weight".into(), shape: vec![2], trained: true }])
    }

    fn create(folder: &Path) -> RunWriter {
        RunWriter::create(folder, &header(), "seed = 7\n", None).unwrap()
    }

    /// Appends the rounds of the range and the time they took.
    fn go_on(writer: &mut RunWriter, rounds: std::ops::Range<u32>) {
        for number in rounds {
            writer.append(&row(number, 1.0 / f64::from(number + 3), Some(0.5))).unwrap();
            writer.wall(number, 0.25).unwrap();
        }
    }

    fn finish(writer: RunWriter) {
        writer.finish("rounds", &layout(), &[1.0, 2.0], None, None).unwrap();
    }

    fn rounds(folder: &Path) -> Vec<u32> {
        RunFolder::open(folder).unwrap().rows().unwrap().iter().map(|row| row.round).collect()
    }

    /// Every file but those that may differ between equal runs.
    fn contents(folder: &Path) -> Vec<(OsString, Vec<u8>)> {
        let entries = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let (below, files): (Vec<_>, Vec<_>) = entries(folder).partition(|entry| entry.path().is_dir());
        let mut files: Vec<_> = files
            .into_iter()
            .chain(below.iter().flat_map(|entry| entries(&entry.path())))
            .filter(|entry| entry.file_name() != WALL)
            .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    }

    #[test]
    fn a_run_from_creation_to_summary() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("deep/er/run");
        let mut writer = create(&folder);
        let line = writer.append(&row(0, 0.5, None)).unwrap();
        assert!(line.starts_with("{\"round\":0,") && line.ends_with('}'));
        assert_eq!(fs::read_to_string(folder.join(ROUNDS)).unwrap(), line + "\n");
        go_on(&mut writer, 1..3);
        writer.checkpoint(b"state").unwrap();
        let run = RunFolder::open(&folder).unwrap();
        assert_eq!((run.header(), run.settings()), (&header(), "seed = 7\n"));
        assert_eq!(run.summary().unwrap(), None);
        let summary = writer.finish("rounds", &layout(), &[1.0, 2.0], Some(0.5), None).unwrap();
        assert_eq!((summary.rounds, summary.rounds_to_target), (3, Some(2)));
        assert_eq!(run.summary().unwrap(), Some(summary));
        assert_eq!(run.walls().unwrap().len(), 2);
        let names: Vec<_> = contents(&folder).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [LOCK, MODEL, TABLE, ROUNDS, RUN, SETTINGS, SUMMARY]);
        assert_eq!(fs::read_dir(folder.parent().unwrap()).unwrap().count(), 1);
        let error = RunWriter::reopen(&folder).unwrap_err().to_string();
        assert!(error.contains("the run is finished"), "{error}");
    }

    #[test]
    fn run_json_by_hand() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let header = Header { recipe: Some("fedavg".into()), ..header() };
        RunWriter::create(&folder, &header, "123456789", None).unwrap();
        let expected = concat!(
            "{\n  \"format\": \"ebbflow-run\",\n  \"version\": 1,\n  \"program\": \"ebbflow 0.1.0\",\n",
            "  \"seed\": 7,\n  \"kernels\": \"portable\",\n  \"recipe\": \"fedavg\",\n  \"n_params\": 2,\n",
            "  \"settings\": \"cbf43926\"\n}\n"
        );
        assert_eq!(fs::read_to_string(folder.join(RUN)).unwrap(), expected);
    }

    #[test]
    fn a_run_that_was_killed_and_resumed_has_the_same_bytes() {
        let place = tempfile::tempdir().unwrap();
        let straight = place.path().join("straight");
        let mut writer = create(&straight);
        go_on(&mut writer, 0..4);
        writer.checkpoint(b"after 4").unwrap();
        go_on(&mut writer, 4..9);
        finish(writer);
        let bytes = fs::read(straight.join(ROUNDS)).unwrap();
        let after_4: usize = bytes.split_inclusive(|&byte| byte == b'\n').take(4).map(<[u8]>::len).sum();

        // Killed at any byte after the checkpoint, also in the middle of a line.
        for cut in (after_4..=bytes.len()).step_by(61) {
            let folder = place.path().join(format!("cut-{cut}"));
            let mut writer = create(&folder);
            go_on(&mut writer, 0..4);
            writer.checkpoint(b"after 4").unwrap();
            drop(writer);
            fs::write(folder.join(ROUNDS), &bytes[..cut]).unwrap();
            fs::write(disk::name_of_new(&folder.join(CHECKPOINT)), b"half a checkp").unwrap();
            let mut torn_wall = File::options().append(true).open(folder.join(WALL)).unwrap();
            torn_wall.write_all(b"{\"round\":4,\"wall_s\":9.0}\n{\"rou").unwrap();
            let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
            assert_eq!(state.as_deref(), Some(&b"after 4"[..]));
            assert_eq!(rounds(&folder), [0, 1, 2, 3]);
            go_on(&mut writer, 4..9);
            finish(writer);
            assert!(contents(&folder) == contents(&straight), "cut at {cut}");
            let walls = RunFolder::open(&folder).unwrap().walls().unwrap();
            assert_eq!(walls, (0..9).map(|round| Wall { round, wall_s: 0.25 }).collect::<Vec<_>>());
        }
    }

    #[test]
    fn friends_of_a_run_that_was_killed_are_those_of_one_that_was_not() {
        let place = tempfile::tempdir().unwrap();
        let straight = place.path().join("straight");
        let befriend = |writer: &mut RunWriter, n_clients| writer.friends(&acquaintance(n_clients)).unwrap();
        let mut writer = create(&straight);
        go_on(&mut writer, 0..4);
        befriend(&mut writer, 4);
        writer.checkpoint(b"after 4").unwrap();
        go_on(&mut writer, 4..6);
        befriend(&mut writer, 6);
        finish(writer);

        let folder = place.path().join("killed");
        let mut writer = create(&folder);
        go_on(&mut writer, 0..4);
        befriend(&mut writer, 4);
        writer.checkpoint(b"after 4").unwrap();
        go_on(&mut writer, 4..5);
        // Another end than the one that comes of it in the end.
        befriend(&mut writer, 5);
        drop(writer);
        fs::write(folder.join(FRIENDS).join("round-000006.parquet.new"), b"half").unwrap();
        let (mut writer, _) = RunWriter::reopen(&folder).unwrap();
        assert_eq!(RunFolder::open(&folder).unwrap().friends_rounds().unwrap(), [4]);
        go_on(&mut writer, 4..6);
        befriend(&mut writer, 6);
        finish(writer);
        assert!(contents(&folder) == contents(&straight));
        let run = RunFolder::open(&folder).unwrap();
        assert_eq!((run.friends_rounds().unwrap(), run.friends(6).unwrap().len()), (vec![4, 6], 11));
    }

    #[test]
    fn without_a_checkpoint_a_run_starts_over() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        go_on(&mut create(&folder), 0..3);
        let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
        assert_eq!((state, rounds(&folder)), (None, vec![]));
        go_on(&mut writer, 0..1);
        assert_eq!(rounds(&folder), [0]);
    }

    #[test]
    fn one_writer_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let writer = create(&folder);
        let error = RunWriter::reopen(&folder).unwrap_err().to_string();
        assert!(error.contains("another process is writing this run"), "{error}");
        drop(writer);
        let (writer, _) = RunWriter::reopen(&folder).unwrap();
        assert!(RunWriter::reopen(&folder).is_err());
        drop(writer);
        assert!(RunWriter::reopen(&folder).is_ok());
        assert!(folder.join(LOCK).exists());
    }

    #[test]
    fn whatever_stands_there_already_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        drop(create(&folder));
        let error = RunWriter::create(&folder, &header(), "", None).unwrap_err().to_string();
        let resume = format!("`ebbflow resume {}`", folder.display());
        assert!(error.contains("choose another `--out`") && error.contains(&resume), "{error}");
        let file = place.path().join("file");
        fs::write(&file, "text").unwrap();
        assert!(matches!(RunWriter::create(&file, &header(), "", None), Err(RecordError::Exists { .. })));
        assert_eq!(fs::read(&file).unwrap(), b"text");
    }

    #[test]
    fn what_to_do_about_what_stands_there_depends_on_what_it_is() {
        let place = tempfile::tempdir().unwrap();
        let check = |name: &str, expected: &str| {
            let path = place.path().join(name);
            let error = RunWriter::create(&path, &header(), "", None).unwrap_err().to_string();
            assert_eq!(error, expected.replace("PATH", path.to_str().unwrap()));
        };
        fs::write(place.path().join("file"), "text").unwrap();
        fs::create_dir(place.path().join("folder")).unwrap();
        drop(create(&place.path().join("unfinished")));
        finish(create(&place.path().join("finished")));
        check("file", "PATH exists already and is no run: choose another `--out`");
        check("folder", "PATH exists already and is no run: choose another `--out`");
        check("finished", "PATH holds a finished run: choose another `--out`");
        check(
            "unfinished",
            "PATH exists already: choose another `--out`, or `ebbflow resume PATH` if that run is unfinished",
        );
    }

    #[test]
    fn a_run_does_not_go_on_with_other_settings() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let mut writer = create(&folder);
        go_on(&mut writer, 0..2);
        writer.checkpoint(b"after 2").unwrap();
        go_on(&mut writer, 2..3);
        drop(writer);
        fs::write(folder.join(SETTINGS), "seed = 8\n").unwrap();
        let before = contents(&folder);
        let error = RunWriter::reopen(&folder).unwrap_err().to_string();
        let expected = "settings.toml: damaged: it changed since the run began; put it back, or begin anew";
        assert!(error.contains(expected), "{error}");
        assert!(error.ends_with(&format!("with: ebbflow run {}", folder.display())), "{error}");
        assert!(contents(&folder) == before);

        // Without the checksum, as in a run.json made by hand, there is nothing to compare with.
        let text = fs::read_to_string(folder.join(RUN)).unwrap();
        let (text, _) = text.split_once(",\n  \"settings\"").unwrap();
        fs::write(folder.join(RUN), format!("{text}}}")).unwrap();
        RunWriter::reopen(&folder).unwrap();
    }

    #[test]
    fn that_a_run_is_finished_is_said_before_all_else() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        finish(create(&folder));
        let _lock = disk::lock(&folder, &folder).unwrap();
        fs::write(folder.join(SETTINGS), "seed = 8\n").unwrap();
        fs::write(folder.join(CHECKPOINT), "rubbish").unwrap();
        let error = RunWriter::reopen(&folder).unwrap_err();
        assert!(matches!(error, RecordError::Finished { .. }), "{error}");
    }

    #[test]
    fn a_creation_that_died_is_swept_up_and_one_under_way_is_not() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let building = place.path().join(".run.new");
        fs::create_dir(&building).unwrap();
        fs::write(building.join(RUN), "half").unwrap();
        let under_way = disk::lock(&building, &folder).unwrap();
        let error = RunWriter::create(&folder, &header(), "", None).unwrap_err();
        assert!(matches!(error, RecordError::Locked { .. }), "{error}");
        assert!(building.exists() && !folder.exists());
        drop(under_way);
        drop(create(&folder));
        assert!(!building.exists());
        assert_eq!(rounds(&folder), [0; 0]);
    }

    #[test]
    fn many_creations_at_once_make_one_run() {
        let place = tempfile::tempdir().unwrap();
        for attempt in 0..20 {
            let folder = place.path().join(format!("run-{attempt}"));
            let made: Vec<_> = std::thread::scope(|scope| {
                let one = |at: u32| {
                    let folder = &folder;
                    scope.spawn(move || RunWriter::create(folder, &header(), &format!("by = {at}\n"), None))
                };
                let threads: Vec<_> = (0..4).map(one).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let winners: Vec<_> = (0..4).filter(|&at| made[at].is_ok()).collect();
            assert!(winners.len() <= 1, "{winners:?}");
            if let [winner] = winners[..] {
                let run = RunFolder::open(&folder).unwrap();
                assert_eq!(run.settings(), format!("by = {winner}\n"));
                assert_eq!(run.rows().unwrap().len(), 0);
            }
        }
    }

    #[test]
    fn a_damaged_checkpoint_is_an_error_that_touches_nothing() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let mut writer = create(&folder);
        go_on(&mut writer, 0..2);
        writer.checkpoint(b"a state").unwrap();
        go_on(&mut writer, 2..3);
        drop(writer);
        let whole = fs::read(folder.join(CHECKPOINT)).unwrap();
        for at in [0, 9, 14, 21, 30, 34, 40, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            fs::write(folder.join(CHECKPOINT), &bytes).unwrap();
            let before = contents(&folder);
            let error = RunWriter::reopen(&folder).unwrap_err().to_string();
            assert!(error.contains(CHECKPOINT), "byte {at}: {error}");
            // The version is at 8: a newer one is not damage.
            let remedy =
                format!("begin the run again from its record with `ebbflow run {}`", folder.display());
            assert!(error.ends_with(&remedy) || at == 9, "byte {at}: {error}");
            assert!(contents(&folder) == before, "byte {at}");
        }
        fs::write(folder.join(CHECKPOINT), &whole).unwrap();
        RunWriter::reopen(&folder).unwrap();
    }

    #[test]
    fn rows_that_do_not_reach_the_checkpoint_are_damage() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let mut writer = create(&folder);
        go_on(&mut writer, 0..2);
        writer.checkpoint(b"").unwrap();
        drop(writer);
        let bytes = fs::read(folder.join(ROUNDS)).unwrap();
        let check = |content: &[u8], expected: &str| {
            fs::write(folder.join(ROUNDS), content).unwrap();
            let error = RunWriter::reopen(&folder).unwrap_err().to_string();
            assert!(error.contains("rounds.jsonl: damaged") && error.contains(expected), "{error}");
            assert_eq!(fs::read(folder.join(ROUNDS)).unwrap(), content);
        };
        check(&bytes[..bytes.len() - 1], "the checkpoint counts on");
        check(b"", "it has 0 bytes");
        check(&[&bytes[..], &bytes[..]].concat()[1..], "no row ends at byte");
    }

    #[test]
    fn a_newer_run_or_no_run_is_not_reopened() {
        let place = tempfile::tempdir().unwrap();
        let error = RunWriter::reopen(place.path()).unwrap_err().to_string();
        assert!(error.contains("not a run folder"), "{error}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        fs::write(place.path().join(RUN), r#"{"format":"ebbflow-run","version":9}"#).unwrap();
        let error = RunWriter::reopen(place.path()).unwrap_err().to_string();
        assert!(error.contains("version 9") && error.contains("update ebbflow"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named_and_the_run_goes_on_from_its_checkpoint() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let mut writer = create(&folder);
        go_on(&mut writer, 0..2);
        writer.checkpoint(b"after 2").unwrap();
        go_on(&mut writer, 2..3);
        writer.rows = File::options().append(true).open("/dev/full").unwrap();
        let error = writer.append(&row(3, 1.0, None)).unwrap_err().to_string();
        let path = folder.join(ROUNDS);
        assert_eq!(error, format!("writing {}: No space left on device (os error 28)", path.display()));
        drop(writer);
        // What a disk that filled up in the middle of the line would have taken.
        File::options().append(true).open(&path).unwrap().write_all(b"{\"round\":3,\"n_en").unwrap();
        assert_eq!(rounds(&folder), [0, 1, 2]);
        let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
        assert_eq!((state.as_deref(), rounds(&folder)), (Some(&b"after 2"[..]), vec![0, 1]));
        go_on(&mut writer, 2..4);
        assert_eq!(rounds(&folder), [0, 1, 2, 3]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_disk_that_is_full_at_a_checkpoint_leaves_the_last_one() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let mut writer = create(&folder);
        go_on(&mut writer, 0..1);
        writer.checkpoint(b"after 1").unwrap();
        go_on(&mut writer, 1..2);
        let path = folder.join(CHECKPOINT);
        std::os::unix::fs::symlink("/dev/full", disk::name_of_new(&path)).unwrap();
        let error = writer.checkpoint(&[0; 100_000]).unwrap_err().to_string();
        assert_eq!(error, format!("writing {}: No space left on device (os error 28)", path.display()));
        drop(writer);
        let (_writer, state) = RunWriter::reopen(&folder).unwrap();
        assert_eq!((state.as_deref(), rounds(&folder)), (Some(&b"after 1"[..]), vec![0]));
    }

    #[test]
    fn dying_while_finishing_leaves_a_run_to_resume() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let mut writer = create(&folder);
        go_on(&mut writer, 0..2);
        writer.checkpoint(b"after 2").unwrap();
        let checkpoint = fs::read(folder.join(CHECKPOINT)).unwrap();
        finish(writer);
        let whole = contents(&folder);
        fs::remove_file(folder.join(SUMMARY)).unwrap();
        fs::write(folder.join(CHECKPOINT), checkpoint).unwrap();
        fs::write(folder.join(TABLE), "half a ta").unwrap();
        let (writer, _) = RunWriter::reopen(&folder).unwrap();
        finish(writer);
        assert!(contents(&folder) == whole);
    }
}
