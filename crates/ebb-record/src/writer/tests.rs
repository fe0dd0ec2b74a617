//! Runs that are killed, damaged and resumed.

use ebb_round::Tensor;

use std::io::Write;

use super::*;
use crate::old_names::tests::to_version_1;
use crate::row::tests::{row, row_with_every_renamed_key};
use crate::similarity::tests::similarity_matrix;
use crate::{LOCK, Rollback, SERVER_STORE, SIMILARITIES};

fn header() -> Header {
    Header { program: "ebbflow 0.1.0".into(), seed: 7, kernels: "portable".into(), recipe: None, n_params: 2 }
}

fn layout() -> Layout {
    Layout::new(vec![Tensor { name: "weight".into(), shape: vec![2], is_trained: true }])
}

fn create(folder: &Path) -> RunWriter {
    RunWriter::create(folder, &header(), "seed = 7\n", None).unwrap()
}

/// Appends rounds and their wall times.
fn append_rounds(writer: &mut RunWriter, rounds: std::ops::Range<u32>) {
    for number in rounds {
        writer.append(&row(number, 1.0 / f64::from(number + 3), Some(0.5))).unwrap();
        writer.add_wall_time(number, 0.25).unwrap();
    }
}

fn finish(writer: RunWriter) {
    writer.finish("rounds", &layout(), &[1.0, 2.0], None, None).unwrap();
}

/// The path of the checkpoint after this many rounds.
fn checkpoint(folder: &Path, after: u32) -> PathBuf {
    checkpoint::path(folder, after)
}

fn flip(path: &Path, at: usize, bit: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).unwrap();
}

fn rounds(folder: &Path) -> Vec<u32> {
    RunFolder::open(folder).unwrap().rows().unwrap().iter().map(|row| row.round).collect()
}

/// Every file, except those that may differ between equal runs.
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
    append_rounds(&mut writer, 1..3);
    writer.checkpoint(b"state").unwrap();
    let run = RunFolder::open(&folder).unwrap();
    assert_eq!((run.header(), run.settings()), (&header(), "seed = 7\n"));
    assert_eq!(run.summary().unwrap(), None);
    let summary = writer.finish("rounds", &layout(), &[1.0, 2.0], Some(0.5), None).unwrap();
    assert_eq!((summary.rounds, summary.rounds_to_target), (3, Some(2)));
    assert_eq!(run.summary().unwrap(), Some(summary));
    assert_eq!(run.wall_times().unwrap().len(), 2);
    let names: Vec<_> = contents(&folder).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [LOCK, MODEL, CSV_TABLE, ROUNDS, RUN, SETTINGS, SUMMARY]);
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
        "{\n  \"format\": \"ebbflow-run\",\n  \"version\": 2,\n  \"program\": \"ebbflow 0.1.0\",\n",
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
    append_rounds(&mut writer, 0..4);
    writer.checkpoint(b"after 4").unwrap();
    append_rounds(&mut writer, 4..9);
    finish(writer);
    let bytes = fs::read(straight.join(ROUNDS)).unwrap();
    let after_4: usize = bytes.split_inclusive(|&byte| byte == b'\n').take(4).map(<[u8]>::len).sum();

    // Killed at any byte after the checkpoint, also in the middle of a line.
    for cut in (after_4..=bytes.len()).step_by(61) {
        let folder = place.path().join(format!("cut-{cut}"));
        let mut writer = create(&folder);
        append_rounds(&mut writer, 0..4);
        writer.checkpoint(b"after 4").unwrap();
        drop(writer);
        fs::write(folder.join(ROUNDS), &bytes[..cut]).unwrap();
        fs::write(disk::temp_name(&checkpoint(&folder, 7)), b"half a checkp").unwrap();
        let mut torn_wall = File::options().append(true).open(folder.join(WALL)).unwrap();
        torn_wall.write_all(b"{\"round\":4,\"wall_s\":9.0}\n{\"rou").unwrap();
        let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
        assert_eq!(state.as_deref(), Some(&b"after 4"[..]));
        // Nothing is removed before its round was repeated.
        assert!(fs::read(folder.join(ROUNDS)).unwrap() == bytes[..cut]);
        append_rounds(&mut writer, 4..9);
        assert_eq!(writer.take_warnings(), [""; 0]);
        finish(writer);
        assert!(contents(&folder) == contents(&straight), "cut at {cut}");
        let walls = RunFolder::open(&folder).unwrap().wall_times().unwrap();
        let wall_s = |round| if round == 4 { 9.0 } else { 0.25 };
        assert_eq!(walls, (0..9).map(|round| WallTime { round, wall_s: wall_s(round) }).collect::<Vec<_>>());
    }
}

#[test]
fn a_resumed_run_of_version_1_keeps_its_rows_and_is_read_whole() {
    let place = tempfile::tempdir().unwrap();
    for (name, is_served) in [("simulated", false), ("served", true)] {
        let folder = place.path().join(name);
        drop(create(&folder));
        let run_json = fs::read_to_string(folder.join(RUN)).unwrap();
        fs::write(folder.join(RUN), run_json.replace("\"version\": 2", "\"version\": 1")).unwrap();
        if is_served {
            fs::write(folder.join(SERVER_STORE), "").unwrap();
        }
        let rows = (0..5).map(row_with_every_renamed_key).collect::<Vec<_>>();
        let lines = rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect::<Vec<_>>();
        let old_lines = lines.iter().map(|line| to_version_1(line)).collect::<Vec<_>>();
        // Version 1 recorded two rounds, wrote a checkpoint, recorded two more, and was killed in the fifth.
        let before = old_lines[..2].concat();
        fs::write(folder.join(ROUNDS), &before).unwrap();
        let position = RowsPosition {
            rows_len: before.len() as u64,
            rows_checksum: Some(crc32fast::hash(before.as_bytes())),
            next_round: 2,
        };
        checkpoint::write(&folder, position, b"after 2").unwrap();
        fs::write(folder.join(ROUNDS), old_lines[..4].concat() + &old_lines[4][..40]).unwrap();
        let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
        assert_eq!(state.as_deref(), Some(&b"after 2"[..]));
        rows[2..3].iter().for_each(|row| drop(writer.append(row).unwrap()));
        writer.checkpoint(b"after 3").unwrap();
        drop(writer);
        let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
        assert_eq!(state.as_deref(), Some(&b"after 3"[..]));
        rows[3..].iter().for_each(|row| drop(writer.append(row).unwrap()));
        assert_eq!(writer.take_warnings(), [""; 0], "{name}");
        let summary = writer.finish("rounds", &layout(), &[1.0, 2.0], None, None).unwrap();
        let found = fs::read_to_string(folder.join(ROUNDS)).unwrap();
        assert_eq!(found, old_lines[..4].concat() + &lines[4], "{name}");
        let run = RunFolder::open(&folder).unwrap();
        assert_eq!((run.rows().unwrap(), run.summary().unwrap()), (rows, Some(summary)));
        let table = fs::read_to_string(folder.join(CSV_TABLE)).unwrap();
        let head = table.lines().next().unwrap();
        assert!(head.ends_with(",note_memory_spilled_bytes,note_probabilities_unknown,note_theta"), "{head}");
        assert_eq!(table.lines().count(), 6);
    }
}

#[test]
fn similarities_of_a_run_that_was_killed_are_those_of_one_that_was_not() {
    let place = tempfile::tempdir().unwrap();
    let straight = place.path().join("straight");
    let add_similarities =
        |writer: &mut RunWriter, n_clients| writer.add_similarities(&similarity_matrix(n_clients)).unwrap();
    let mut writer = create(&straight);
    append_rounds(&mut writer, 0..4);
    add_similarities(&mut writer, 4);
    writer.checkpoint(b"after 4").unwrap();
    append_rounds(&mut writer, 4..6);
    add_similarities(&mut writer, 6);
    finish(writer);

    let folder = place.path().join("killed");
    let mut writer = create(&folder);
    append_rounds(&mut writer, 0..4);
    add_similarities(&mut writer, 4);
    writer.checkpoint(b"after 4").unwrap();
    append_rounds(&mut writer, 4..5);
    // A similarity file that the resumed run does not write.
    add_similarities(&mut writer, 5);
    drop(writer);
    fs::write(folder.join(SIMILARITIES).join("round-000006.parquet.new"), b"half").unwrap();
    let (mut writer, _) = RunWriter::reopen(&folder).unwrap();
    assert_eq!(RunFolder::open(&folder).unwrap().similarity_rounds().unwrap(), [4, 5]);
    append_rounds(&mut writer, 4..6);
    add_similarities(&mut writer, 6);
    finish(writer);
    assert!(contents(&folder) == contents(&straight));
    let run = RunFolder::open(&folder).unwrap();
    assert_eq!((run.similarity_rounds().unwrap(), run.similarities(6).unwrap().len()), (vec![4, 6], 11));
}

#[test]
fn without_a_checkpoint_a_run_starts_over() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    append_rounds(&mut create(&folder), 0..3);
    let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!((state, writer.next_round(), writer.n_recorded_rounds().unwrap()), (None, 0, 3));
    append_rounds(&mut writer, 0..4);
    assert_eq!(rounds(&folder), [0, 1, 2, 3]);
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
fn existing_files_are_left_alone() {
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
fn the_remedy_depends_on_the_content_of_the_folder() {
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
fn a_run_does_not_resume_with_other_settings() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let mut writer = create(&folder);
    append_rounds(&mut writer, 0..2);
    writer.checkpoint(b"after 2").unwrap();
    append_rounds(&mut writer, 2..3);
    drop(writer);
    fs::write(folder.join(SETTINGS), "seed = 8\n").unwrap();
    let before = contents(&folder);
    let error = RunWriter::reopen(&folder).unwrap_err().to_string();
    let expected =
        "settings.toml: damaged: it or its checksum in run.json changed since the run began; put back both";
    assert!(error.contains(expected), "{error}");
    assert!(error.ends_with(&format!("with `ebbflow run {}`", folder.display())), "{error}");
    assert!(contents(&folder) == before);

    // A run.json written by hand has no checksum, and nothing is compared.
    let text = fs::read_to_string(folder.join(RUN)).unwrap();
    let (text, _) = text.split_once(",\n  \"settings\"").unwrap();
    fs::write(folder.join(RUN), format!("{text}}}")).unwrap();
    RunWriter::reopen(&folder).unwrap();
}

#[test]
fn a_finished_run_is_reported_before_anything_else() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    finish(create(&folder));
    let _lock = disk::lock(&folder, &folder).unwrap();
    fs::write(folder.join(SETTINGS), "seed = 8\n").unwrap();
    fs::write(checkpoint(&folder, 3), "rubbish").unwrap();
    let error = RunWriter::reopen(&folder).unwrap_err();
    assert!(matches!(error, RecordError::Finished { .. }), "{error}");
    assert!(!checkpoint(&folder, 3).exists());
}

#[test]
fn a_creation_that_died_is_removed_and_one_in_progress_is_not() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let building = place.path().join(".run.new");
    fs::create_dir(&building).unwrap();
    fs::write(building.join(RUN), "half").unwrap();
    let held_lock = disk::lock(&building, &folder).unwrap();
    let error = RunWriter::create(&folder, &header(), "", None).unwrap_err();
    assert!(matches!(error, RecordError::Locked { .. }), "{error}");
    assert!(building.exists() && !folder.exists());
    drop(held_lock);
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
    append_rounds(&mut writer, 0..2);
    writer.checkpoint(b"a state").unwrap();
    append_rounds(&mut writer, 2..3);
    drop(writer);
    let path = checkpoint(&folder, 2);
    let whole = fs::read(&path).unwrap();
    for at in [0, 9, 14, 21, 30, 34, 40, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        fs::write(&path, &bytes).unwrap();
        let before = contents(&folder);
        let error = RunWriter::reopen(&folder).unwrap_err().to_string();
        assert!(error.contains("checkpoint-000002.ebb: damaged: "), "byte {at}: {error}");
        let remedy = format!("start the run again from its record with `ebbflow run {}`", folder.display());
        assert!(error.ends_with(&remedy), "byte {at}: {error}");
        assert!(contents(&folder) == before, "byte {at}");
    }
    fs::write(&path, &whole).unwrap();
    RunWriter::reopen(&folder).unwrap();
}

#[test]
fn rows_that_do_not_reach_the_checkpoint_are_damage() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let mut writer = create(&folder);
    append_rounds(&mut writer, 0..2);
    writer.checkpoint(b"").unwrap();
    drop(writer);
    let bytes = fs::read(folder.join(ROUNDS)).unwrap();
    let check = |content: &[u8], expected: &str| {
        fs::write(folder.join(ROUNDS), content).unwrap();
        let error = RunWriter::reopen(&folder).unwrap_err().to_string();
        assert!(error.contains("rounds.jsonl: damaged") && error.contains(expected), "{error}");
        assert_eq!(fs::read(folder.join(ROUNDS)).unwrap(), content);
    };
    check(&bytes[..bytes.len() - 1], "the checkpoint expects");
    check(b"", "it has 0 bytes");
    check(&[&bytes[..], &bytes[..]].concat()[1..], "no row ends at byte");
    // A single bit would be corrected.
    let mut flipped = bytes.clone();
    (flipped[9], flipped[60]) = (flipped[9] ^ 1, flipped[60] ^ 2);
    check(&flipped, "the checksum of the first 2 rows does not match");
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
fn a_full_disk_is_named_and_the_run_resumes_from_its_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let mut writer = create(&folder);
    append_rounds(&mut writer, 0..2);
    writer.checkpoint(b"after 2").unwrap();
    append_rounds(&mut writer, 2..3);
    writer.rows.swap_file(File::options().append(true).open("/dev/full").unwrap());
    let error = writer.append(&row(3, 1.0, None)).unwrap_err().to_string();
    let path = folder.join(ROUNDS);
    assert_eq!(error, format!("writing {}: No space left on device (os error 28)", path.display()));
    drop(writer);
    // The bytes that a disk takes which fills up in the middle of the line.
    File::options().append(true).open(&path).unwrap().write_all(b"{\"round\":3,\"n_en").unwrap();
    assert_eq!(rounds(&folder), [0, 1, 2]);
    let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!((state.as_deref(), writer.next_round()), (Some(&b"after 2"[..]), 2));
    append_rounds(&mut writer, 2..4);
    assert_eq!(rounds(&folder), [0, 1, 2, 3]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_at_a_checkpoint_leaves_the_last_one() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let mut writer = create(&folder);
    append_rounds(&mut writer, 0..1);
    writer.checkpoint(b"after 1").unwrap();
    append_rounds(&mut writer, 1..2);
    let path = checkpoint(&folder, 2);
    std::os::unix::fs::symlink("/dev/full", disk::temp_name(&path)).unwrap();
    let error = writer.checkpoint(&[0; 100_000]).unwrap_err().to_string();
    assert_eq!(error, format!("writing {}: No space left on device (os error 28)", path.display()));
    drop(writer);
    let (writer, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!((state.as_deref(), writer.next_round()), (Some(&b"after 1"[..]), 1));
    assert_eq!(rounds(&folder), [0, 1]);
}

#[test]
fn what_could_not_be_written_at_a_checkpoint_is_written_at_the_next_try() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let mut writer = create(&folder);
    append_rounds(&mut writer, 0..2);
    writer.checkpoint(b"after 2").unwrap();
    append_rounds(&mut writer, 2..4);
    // A folder is in the place of the new files.
    let in_the_way = disk::temp_name(&checkpoint(&folder, 4));
    fs::create_dir(&in_the_way).unwrap();
    fs::create_dir(folder.join(SIMILARITIES)).unwrap();
    let friends_in_the_way = folder.join(SIMILARITIES).join("round-000004.parquet.new");
    fs::create_dir(&friends_in_the_way).unwrap();
    writer.add_similarities(&similarity_matrix(4)).unwrap_err();
    writer.checkpoint(b"after 4").unwrap_err();
    append_rounds(&mut writer, 4..5);
    fs::remove_dir(in_the_way).unwrap();
    // No checkpoint is written without the similarities that belong before it.
    let error = writer.checkpoint(b"after 5").unwrap_err().to_string();
    assert!(error.contains("round-000004.parquet"), "{error}");
    fs::remove_dir(friends_in_the_way).unwrap();
    writer.checkpoint(b"after 5").unwrap();
    assert_eq!(RunFolder::open(&folder).unwrap().similarity_rounds().unwrap(), [4]);
    drop(writer);
    let (_, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!(state.as_deref(), Some(&b"after 5"[..]));
}

/// A run of six rounds with checkpoints after 2 and 4.
fn with_two_checkpoints(folder: &Path) -> Vec<u8> {
    let mut writer = create(folder);
    for (rounds, state) in [(0..2, b"after 2"), (2..4, b"after 4")] {
        append_rounds(&mut writer, rounds);
        writer.checkpoint(state).unwrap();
    }
    append_rounds(&mut writer, 4..6);
    fs::read(folder.join(ROUNDS)).unwrap()
}

#[test]
fn a_damaged_checkpoint_is_skipped_for_the_older_one_with_a_warning() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let bytes = with_two_checkpoints(&folder);
    flip(&checkpoint(&folder, 4), 44, 3);
    let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!((state.as_deref(), writer.next_round()), (Some(&b"after 2"[..]), 2));
    let [warning] = writer.take_warnings().try_into().unwrap();
    let (newer, older) = (checkpoint(&folder, 4), checkpoint(&folder, 2));
    let expected = format!(
        "{}: damaged: its checksum does not match; resuming from {}",
        newer.display(),
        older.display()
    );
    assert_eq!(warning, expected);
    assert_eq!(fs::read(folder.join(ROUNDS)).unwrap(), bytes);
    // The damaged checkpoint is not counted, and is replaced when its round is reached.
    append_rounds(&mut writer, 2..3);
    writer.checkpoint(b"after 3").unwrap();
    assert!(older.exists());
    append_rounds(&mut writer, 3..4);
    writer.checkpoint(b"after 4").unwrap();
    assert!(!older.exists());
    append_rounds(&mut writer, 4..6);
    assert_eq!(fs::read(folder.join(ROUNDS)).unwrap(), bytes);
    drop(writer);
    let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!((state.as_deref(), writer.take_warnings().len()), (Some(&b"after 4"[..]), 0));
}

#[test]
fn a_run_of_an_earlier_version_resumes_from_its_only_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let mut writer = create(&folder);
    append_rounds(&mut writer, 0..2);
    let position = writer.rows.position();
    drop(writer);
    checkpoint::tests::write_version_1(&folder, position, b"after 2");
    let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!((state.as_deref(), writer.next_round()), (Some(&b"after 2"[..]), 2));
    for round in 2..4 {
        assert!(folder.join("checkpoint.ebb").exists());
        append_rounds(&mut writer, round..round + 1);
        writer.checkpoint(b"later").unwrap();
    }
    assert!(!folder.join("checkpoint.ebb").exists());
}

#[test]
fn a_flipped_bit_in_the_rows_is_detected_by_their_checksum_and_corrected() {
    let place = tempfile::tempdir().unwrap();
    let straight = place.path().join("straight");
    let bytes = with_two_checkpoints(&straight);
    let folder = place.path().join("flipped");
    with_two_checkpoints(&folder);
    let newest = bytes.split_inclusive(|&byte| byte == b'\n').take(4).map(<[u8]>::len).sum();
    for at in (0..newest).step_by(97).chain([newest - 1]) {
        flip(&folder.join(ROUNDS), at, 3);
        let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
        assert_eq!(state.as_deref(), Some(&b"after 4"[..]));
        let [warning] = writer.take_warnings().try_into().unwrap();
        assert!(warning.contains(&format!("bit 3 of byte {at}, in the row of round ")), "{warning}");
        assert!(fs::read(folder.join(ROUNDS)).unwrap() == bytes, "byte {at}");
    }
}

#[test]
fn damaged_rows_are_detected_and_written_again_from_the_older_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let straight = place.path().join("straight");
    let bytes = with_two_checkpoints(&straight);
    let ends: Vec<_> = (0..bytes.len()).filter(|&at| bytes[at] == b'\n').collect();
    // Two bytes of round 3 and its end, between the checkpoints; a digit and a brace of round 5, after both.
    let damages = [
        (vec![ends[2] + 1, ends[2] + 2], 3),
        (vec![ends[3] - 1, ends[3]], 3),
        (vec![ends[4] + 60], 5),
        (vec![ends[4] + 1], 5),
    ];
    for (which, (damaged, round)) in damages.into_iter().enumerate() {
        let folder = place.path().join(format!("damaged-{which}"));
        with_two_checkpoints(&folder);
        // Clear damage is handled equally in served and simulated runs.
        fs::write(folder.join(SERVER_STORE), "").unwrap();
        damaged.iter().for_each(|&at| flip(&folder.join(ROUNDS), at, 2));
        let before = fs::read(folder.join(ROUNDS)).unwrap();
        let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
        let from = if round == 3 { 2 } else { 4 };
        assert_eq!(writer.next_round(), from, "{which}");
        assert_eq!(state, Some(format!("after {from}").into_bytes()));
        assert_eq!(writer.take_warnings().len(), usize::from(round == 3), "{which}");
        append_rounds(&mut writer, from..6);
        let [warning] = writer.take_warnings().try_into().unwrap();
        let kept = folder.join(format!("rounds.jsonl.cut-at-{round:06}"));
        assert!(warning.contains(&format!("the recorded row of round {round} differs")), "{warning}");
        assert!(warning.ends_with(&kept.display().to_string()), "{warning}");
        assert!(before.ends_with(&fs::read(&kept).unwrap()), "{which}");
        assert_eq!(fs::read(folder.join(ROUNDS)).unwrap(), bytes, "{which}");
    }
}

#[test]
fn dying_between_the_copy_of_damaged_rows_and_their_cut_leaves_one_copy() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let bytes = with_two_checkpoints(&folder);
    let beyond = bytes.split_inclusive(|&byte| byte == b'\n').take(4).map(<[u8]>::len).sum();
    flip(&folder.join(ROUNDS), beyond + 9, 0);
    let damaged = fs::read(folder.join(ROUNDS)).unwrap();
    // A copy of another time remains, and the same rows are not copied again.
    let [own, kept] =
        ["rounds.jsonl.cut-at-000004", "rounds.jsonl.cut-at-000004-2"].map(|name| folder.join(name));
    fs::write(&own, "of another time").unwrap();
    fs::write(&kept, &damaged[beyond..]).unwrap();
    let (mut writer, _) = RunWriter::reopen(&folder).unwrap();
    append_rounds(&mut writer, 4..6);
    assert!(writer.take_warnings()[0].ends_with(&kept.display().to_string()));
    assert_eq!(fs::read(folder.join(ROUNDS)).unwrap(), bytes);
    assert_eq!(fs::read(&kept).unwrap(), damaged[beyond..]);
    let copies = contents(&folder).into_iter().filter(|(name, _)| name.to_string_lossy().contains("cut-at"));
    assert_eq!(copies.count(), 2);
}

#[test]
fn a_served_run_whose_journal_is_of_another_time_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let bytes = with_two_checkpoints(&folder);
    fs::write(folder.join(SERVER_STORE), "").unwrap();
    let (mut writer, _) = RunWriter::reopen(&folder).unwrap();
    assert_eq!((writer.next_round(), writer.n_recorded_rounds().unwrap()), (4, 6));
    let error = writer.append(&row(4, 0.123, Some(0.25))).unwrap_err().to_string();
    assert!(error.contains("the recorded round 4 differs from that of the journal"), "{error}");
    assert!(error.ends_with(&format!("ebbflow rollback {} --to 4", folder.display())), "{error}");
    drop(writer);
    assert_eq!(fs::read(folder.join(ROUNDS)).unwrap(), bytes);
    // A simulation repeats its rows. The old ones are kept in any case.
    fs::remove_file(folder.join(SERVER_STORE)).unwrap();
    let (mut writer, _) = RunWriter::reopen(&folder).unwrap();
    writer.append(&row(4, 0.123, Some(0.25))).unwrap();
    assert_eq!(rounds(&folder), [0, 1, 2, 3, 4]);
    assert!(bytes.ends_with(&fs::read(folder.join("rounds.jsonl.cut-at-000004")).unwrap()));
}

#[test]
fn a_served_run_without_a_usable_checkpoint_resumes_from_its_start_and_never_as_a_simulation() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let bytes = with_two_checkpoints(&folder);
    fs::write(folder.join(SERVER_STORE), "").unwrap();
    flip(&checkpoint(&folder, 2), 44, 0);
    flip(&checkpoint(&folder, 4), 44, 0);
    let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!((state, writer.next_round(), writer.n_recorded_rounds().unwrap()), (None, 0, 6));
    let warnings = writer.take_warnings();
    assert!(
        warnings.len() == 2 && warnings.iter().all(|warning| warning.ends_with("resuming from the start"))
    );
    assert_eq!(fs::read(folder.join(ROUNDS)).unwrap(), bytes);
    drop(writer);
    fs::write(folder.join(SETTINGS), "seed = 8\n").unwrap();
    let error = RunWriter::reopen(&folder).unwrap_err().to_string();
    assert!(
        !error.contains("ebbflow run") && error.contains("put back a whole copy of the folder"),
        "{error}"
    );
}

#[test]
fn a_run_returns_to_a_checkpoint_and_keeps_a_copy_of_later_rows() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let bytes = with_two_checkpoints(&folder);
    let error = Rollback::find(&folder, 1).unwrap_err().to_string();
    assert!(
        error.contains(
            "there is no usable checkpoint of round 1 or earlier; there are some after 2, 4 rounds"
        ),
        "{error}"
    );
    let back = Rollback::find(&folder, 3).unwrap();
    assert_eq!(
        (back.next_round(), back.n_lost_rounds().unwrap(), back.state()),
        (2, 4, Some(&b"after 2"[..]))
    );
    assert!(matches!(RunWriter::reopen(&folder), Err(RecordError::Locked { .. })));
    let kept = back.finish().unwrap().unwrap();
    assert_eq!(kept, folder.join("rounds.jsonl.cut-at-000002"));
    assert!(bytes.ends_with(&fs::read(kept).unwrap()));
    assert_eq!(rounds(&folder), [0, 1]);
    assert_eq!(RunFolder::open(&folder).unwrap().wall_times().unwrap().len(), 2);
    assert!(checkpoint(&folder, 2).exists() && !checkpoint(&folder, 4).exists());
    let (mut writer, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!(state.as_deref(), Some(&b"after 2"[..]));
    append_rounds(&mut writer, 2..6);
    assert_eq!(fs::read(folder.join(ROUNDS)).unwrap(), bytes);
    drop(writer);
    let back = Rollback::find(&folder, 0).unwrap();
    assert_eq!((back.next_round(), back.state()), (0, None));
    back.finish().unwrap();
    assert_eq!(rounds(&folder), [0; 0]);
    let (_, state) = RunWriter::reopen(&folder).unwrap();
    assert_eq!(state, None);
}

#[test]
fn dying_while_finishing_leaves_a_run_to_resume() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("run");
    let mut writer = create(&folder);
    append_rounds(&mut writer, 0..2);
    writer.checkpoint(b"after 2").unwrap();
    let path = checkpoint(&folder, 2);
    let state = fs::read(&path).unwrap();
    finish(writer);
    let whole = contents(&folder);
    fs::remove_file(folder.join(SUMMARY)).unwrap();
    fs::write(path, state).unwrap();
    fs::write(folder.join(CSV_TABLE), "half a ta").unwrap();
    let (writer, _) = RunWriter::reopen(&folder).unwrap();
    finish(writer);
    assert!(contents(&folder) == whole);
}
