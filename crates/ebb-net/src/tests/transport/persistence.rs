//! What a server keeps in its folder, and what happens if it cannot be written or was changed.

use std::fs;

use super::*;
use crate::{JournalReplay, JournalRollback};

#[test]
fn the_server_stops_if_a_member_cannot_be_written() {
    let fixture = TestServer::new(rules(), None);
    fixture.server.shared().writer.close();
    let entering = RawClient::connect(fixture.url(), fixture.token.clone(), 0);
    let refused = fixture.client_runtime.block_on(entering).map(drop).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Internal, "{refused}");
    // Otherwise a client that enrols again would be told that it is a member, and be none after a restart.
    let stopped = fixture.server.shared().check().unwrap_err().to_string();
    assert!(stopped.contains("writing the server's store"), "{stopped}");
}

#[test]
fn no_server_starts_before_a_rollback_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // A rollback of nothing creates no file.
    assert!(JournalRollback::begin(folder, 0, 4).is_err() && fs::read_dir(folder).unwrap().count() == 0);
    let open = || JournalReplay::open(folder, rules()).map(drop).map_err(|error| error.to_string());
    open().unwrap();
    drop(JournalRollback::begin(folder, 0, 4).unwrap());
    let error = open().unwrap_err();
    assert!(error.ends_with(&format!("ebbflow rollback {} --to 4", folder.display())), "{error}");
    JournalRollback::begin(folder, 0, 4).unwrap().finish().unwrap();
    open().unwrap();
}

#[test]
fn a_changed_key_is_refused_and_a_lost_one_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let open = || JournalReplay::open(folder, rules()).map(drop).map_err(|error| error.to_string());
    open().unwrap();
    let (file, whole) = (folder.join(KEY_FILE), fs::read(folder.join(KEY_FILE)).unwrap());
    let mut damaged = whole.clone();
    damaged[17] ^= 2;
    fs::write(&file, damaged).unwrap();
    let error = open().unwrap_err();
    assert!(error.contains("server.key") && error.contains("put back the former key"), "{error}");
    fs::write(&file, whole).unwrap();
    open().unwrap();
    fs::remove_file(&file).unwrap();
    open().unwrap();
    open().unwrap();
}
