//! What a server keeps in its folder, and what becomes of it where that cannot be kept or is not what it was.

use std::fs;

use super::*;
use crate::{JournalReplay, JournalRollback};

#[test]
fn where_a_member_cannot_be_written_down_the_server_stops() {
    let house = TestServer::new(rules(), None);
    house.server.shared().writer.close();
    let entering = RawClient::connect(house.url(), house.token.clone(), 0);
    let refused = house.client_runtime.block_on(entering).map(drop).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Internal, "{refused}");
    // Else it would be told that it is a member when it asks again, and be none after a restart.
    let stopped = house.server.shared().check().unwrap_err().to_string();
    assert!(stopped.contains("writing the server's store"), "{stopped}");
}

#[test]
fn no_server_starts_before_a_rollback_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Nothing is made by going back where there is nothing.
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
fn a_key_that_is_not_the_one_of_before_is_refused_and_one_that_is_lost_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let open = || JournalReplay::open(folder, rules()).map(drop).map_err(|error| error.to_string());
    open().unwrap();
    let (file, whole) = (folder.join(KEY_FILE), fs::read(folder.join(KEY_FILE)).unwrap());
    let mut damaged = whole.clone();
    damaged[17] ^= 2;
    fs::write(&file, damaged).unwrap();
    let error = open().unwrap_err();
    assert!(error.contains("server.key") && error.contains("put back the one that was there"), "{error}");
    fs::write(&file, whole).unwrap();
    open().unwrap();
    fs::remove_file(&file).unwrap();
    open().unwrap();
    open().unwrap();
}
