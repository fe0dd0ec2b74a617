//! The state of a server: successive checkpoints, a journal and rows that match, and private files.

mod common;
mod served;

use std::fs;
use std::path::{Path, PathBuf};

use common::{checkpoints, fail, rows, run, succeed};
use served::{Fleet, Server, text};

fn checkpoint(out: &Path, after: u32) -> PathBuf {
    out.join(format!("checkpoint-{after:06}.ebb"))
}

/// Damages a file in its middle.
fn damage(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(file, bytes).unwrap();
}

/// The recorded lines of a run's finished rounds.
fn lines(out: &Path) -> Vec<String> {
    let text = fs::read_to_string(out.join("rounds.jsonl")).unwrap();
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
}

#[test]
fn a_served_run_resumes_from_its_older_checkpoint_and_rolls_back_on_request() {
    let place = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(place.path(), "");
    fleet.play(9);
    let out = fleet.out.clone();
    let before = lines(&out);
    let there = checkpoints(&out);
    let [older, newer] = there.as_slice().try_into().expect("the last two checkpoints");
    assert_eq!(newer, older + 2);

    // It resumes only with `ebbflow serve`.
    let message = fail(&["resume", text(&out)]);
    assert!(
        message.contains("the command that began it") && message.contains("ebbflow serve FILE --out "),
        "{message}"
    );
    assert_eq!((lines(&out), checkpoints(&out)), (before.clone(), there.clone()));

    // The newest checkpoint is damaged: the older one and the journal give the same rounds again.
    damage(&checkpoint(&out, newer));
    let log = fleet.play(before.len() - older as usize + 1);
    let warning = format!("resuming from {}", checkpoint(&out, older).display());
    assert!(log.contains("checkpoint-") && log.contains(&warning), "{log}");
    let now = lines(&out);
    assert!(now.len() > before.len() && now[..before.len()] == before);

    // A rollback keeps the later rows in another file, and clients get new jobs.
    let [older, newer] = checkpoints(&out).as_slice().try_into().expect("the last two checkpoints");
    let none = fail(&["rollback", text(&out), "--to", "1"]);
    assert!(none.contains(&format!("there are some after {older}, {newer} rounds")), "{none}");
    let before = lines(&out);
    let message = succeed(&["rollback", text(&out), "--to", &(newer - 1).to_string()]);
    assert!(message.contains(&format!("rolled back to round {older}")), "{message}");
    assert_eq!(lines(&out), before[..older as usize]);
    let kept = fs::read_to_string(out.join(format!("rounds.jsonl.cut-at-{older:06}"))).unwrap();
    assert!(kept.starts_with(&before[older as usize..].concat()));
    fleet.play(5);
    let after = lines(&out);
    assert!(after.len() >= older as usize + 5 && after[..older as usize] == before[..older as usize]);
    let numbers: Vec<_> = rows(&out).iter().map(|row| row["round"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{numbers:?}");

    // So does a server that is rolled back to its start, and again to a kept checkpoint.
    succeed(&["rollback", text(&out), "--to", "0"]);
    assert_eq!(lines(&out), [""; 0]);
    fleet.play(3);
    assert!(lines(&out).len() >= 3);
}

#[test]
fn a_server_without_a_checkpoint_resumes_from_its_journal_as_far_as_that_reaches() {
    let place = tempfile::tempdir().unwrap();
    for (name, serve, goes_on) in [("all", "keep_updates = true", true), ("two", "", false)] {
        let place = place.path().join(name);
        fs::create_dir(&place).unwrap();
        let mut fleet = Fleet::new(&place, serve);
        fleet.play(9);
        let out = &fleet.out;
        let before = lines(out);
        checkpoints(out).into_iter().for_each(|after| damage(&checkpoint(out, after)));
        match Server::start(&fleet.file, out) {
            Ok(server) => {
                assert!(server.kill().contains("resuming from the start"), "{name}");
                assert!(goes_on, "{name}");
            }
            Err((code, said)) => {
                assert!(!goes_on && code == Some(1), "{name}: {said}");
                assert!(said.contains("the journal begins with entry"), "{said}");
                assert!(
                    said.contains("put back a whole copy of the folder") && !said.contains("ebbflow run")
                );
            }
        }
        // Nothing was cut, whether it fits or not.
        assert_eq!(lines(out), before, "{name}");
    }
}

#[test]
fn a_server_whose_checkpoints_cannot_be_written_continues_and_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(place.path(), "");
    fleet.play(7);
    let out = fleet.out.clone();
    let newest = *checkpoints(&out).last().unwrap();
    // Folders with the names of the new files block them.
    let in_the_way = |after: u32| out.join(format!("checkpoint-{after:06}.ebb.new"));
    let blocked = newest + 1..newest + 1000;
    blocked.clone().for_each(|after| fs::create_dir(in_the_way(after)).unwrap());
    let log = fleet.play(30);
    assert!(log.contains("the run continues, and writing is retried after every round"), "{log}");
    assert_eq!(checkpoints(&out).last(), Some(&newest), "{log}");
    let before = lines(&out);
    assert!(before.len() > newest as usize + 25);
    blocked.for_each(|after| fs::remove_dir(in_the_way(after)).unwrap());
    // The journal still reaches back to the last existing checkpoint, however many later ones failed.
    fleet.play(before.len() - newest as usize + 3);
    assert_eq!(lines(&out)[..before.len()], before);
    assert!(*checkpoints(&out).last().unwrap() > newest);
}

#[test]
fn a_journal_of_another_time_changes_nothing_and_the_run_can_go_back_to_it() {
    let place = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(place.path(), "keep_updates = true");
    fleet.play(5);
    let (out, copy) = (fleet.out.clone(), place.path().join("server.redb"));
    fs::copy(out.join("server.redb"), &copy).unwrap();
    let n_then = lines(&out).len() as u32;
    fleet.play(7);
    let before = lines(&out);
    fs::copy(&copy, out.join("server.redb")).unwrap();
    // The checkpoints are from rounds that this journal does not have.
    let (code, message) = Server::start(&fleet.file, &out).map(Server::kill).unwrap_err();
    assert_eq!(code, Some(1), "{message}");
    assert!(
        message.contains("they are of different times") && message.contains("ebbflow rollback"),
        "{message}"
    );
    assert_eq!(lines(&out), before);
    // Nor are the rows.
    checkpoints(&out).into_iter().for_each(|after| fs::remove_file(checkpoint(&out, after)).unwrap());
    let (code, message) = Server::start(&fleet.file, &out).map(Server::kill).unwrap_err();
    assert_eq!(code, Some(1), "{message}");
    assert!(
        message.contains(&format!("has {} rounds, and the journal ends in round", before.len())),
        "{message}"
    );
    assert!(message.contains("ebbflow rollback FOLDER --to "), "{message}");
    assert_eq!(lines(&out), before);
    assert!(n_then < before.len() as u32);
}

#[test]
fn a_damaged_checkpoint_of_a_simulation_is_passed_over_and_the_end_is_the_same() {
    let place = tempfile::tempdir().unwrap();
    // More than a pipe holds, so that it cannot end before it is interrupted.
    let longer = ["--set", "run.rounds=400"];
    let straight = common::record(place.path(), "straight", common::SMALL, &longer);
    let config = place.path().join("straight.toml");
    let out = place.path().join("damaged");
    // Interrupted after some rounds, because the reader of its output is gone.
    let mut child = common::ebbflow()
        .args(["run", text(&config), "--json", "--out", text(&out)])
        .args(longer)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut printed = std::io::BufReader::new(child.stdout.take().unwrap());
    for _ in 0..10 {
        std::io::BufRead::read_line(&mut printed, &mut String::new()).unwrap();
    }
    drop(printed);
    child.wait().unwrap();
    let newest = *checkpoints(&out).last().expect("it was interrupted after a checkpoint");
    damage(&checkpoint(&out, newest));
    let output = run(&["resume", text(&out), "--quiet"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && message.contains("warning: "), "{message}");
    assert!(message.contains(&format!("checkpoint-{newest:06}.ebb: damaged")), "{message}");
    common::assert_same(&straight, &out);
}

#[cfg(unix)]
#[test]
fn files_of_a_server_and_its_clients_are_readable_and_lockable_by_their_user_only() {
    use std::os::unix::fs::PermissionsExt;

    fn modes(folder: &Path) -> Vec<(PathBuf, u32)> {
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let below = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let below = below
            .flat_map(|path| if path.is_dir() { modes(&path) } else { vec![(path.clone(), mode(&path))] });
        std::iter::once((folder.to_owned(), mode(folder))).chain(below).collect()
    }

    let place = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(place.path(), "");
    let log = fleet.play(5);
    assert!(!log.contains("other users"), "{log}");
    succeed(&["revoke", text(&fleet.out), "--tokens", "7"]);
    for folder in [fleet.out.clone(), place.path().join("home-0")] {
        for (path, mode) in modes(&folder) {
            // The list of revoked clients is no secret, and is written by the user who revokes them.
            let secret = !path.ends_with("revoked.txt");
            let wanted = if path.is_dir() { 0o700 } else { 0o600 };
            assert!(mode == wanted || !secret, "{}: {mode:o}", path.display());
        }
    }
    assert!(modes(&fleet.out).len() > 10);
    let token = place.path().join("token");
    fs::write(&token, "an old one that all could read").unwrap();
    assert_eq!(succeed(&["token", text(&fleet.out), "--file", text(&token)]), "");
    assert_eq!(modes(place.path()).into_iter().find(|(path, _)| *path == token).unwrap().1, 0o600);
    assert!(fs::read_to_string(&token).unwrap().starts_with("ebb-"));
    // A folder of an earlier version gets a warning.
    fs::set_permissions(&fleet.out, fs::Permissions::from_mode(0o755)).unwrap();
    let log = fleet.play(0);
    assert!(
        log.contains("other users of this machine can read and lock this folder (mode 755")
            && log.contains("chmod -R go-rwx")
    );
    // Simulations are no secret: they follow the user's own umask.
    let run = common::record(place.path(), "simulated", common::SMALL, &[]);
    let own = place.path().join("own");
    fs::create_dir(&own).unwrap();
    assert_eq!(modes(&run)[0].1, modes(&own)[0].1);
}
