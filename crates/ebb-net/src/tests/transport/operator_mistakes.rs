//! Mistakes of an operator: what clients log then, and that they reconnect once the right server runs.

use super::*;

#[test]
fn clients_reconnect_to_a_restarted_server() {
    let mut fixture = TestServer::new(Rules { min_available: 2, ..rules() }, None);
    let _clients: Vec<_> = (0..2).map(|number| fixture.join(number)).collect();
    assert_eq!(fixture.round(0, 2).len(), 2);
    let elsewhere = tempfile::tempdir().unwrap();
    let folder = std::mem::replace(&mut fixture.folder, elsewhere);
    let (mut fixture, _) = fixture.restart(folder, Rules { min_available: 2, ..rules() });
    // The journal is replayed first, then the run continues.
    assert_eq!(fixture.round(0, 2), [(0, 0, 0.0), (1, 0, 1.0)]);
    assert_eq!(fixture.round(1, 2), [(0, 1, 0.0), (1, 1, 1.0)]);
}

#[test]
fn clients_of_a_server_that_was_started_on_an_empty_folder_reconnect_to_the_right_one() {
    let rules = || Rules { min_available: 3, ..rules() };
    let mut fixture = TestServer::new(rules(), None);
    let clients: Vec<_> = (0..3).map(|number| fixture.join_as(fixture.options(number))).collect();
    assert_eq!(fixture.round(0, 3).len(), 3);
    let (fixture, right) = fixture.restart(tempfile::tempdir().unwrap(), rules());
    fixture.server.go_live().unwrap();
    // Each of them was refused more than once.
    fixture.wait_until(|_| fixture.n_refused("unknown") >= 9);
    assert_eq!(fixture.server.counts().members, 0);
    assert!(clients.iter().all(|(_, client)| !client.is_finished()));
    let (mut fixture, _) = fixture.restart(right, rules());
    assert_eq!(fixture.round(0, 3).len(), 3);
    assert_eq!(fixture.round(1, 3), [(0, 1, 0.0), (1, 1, 1.0), (2, 1, 2.0)]);
    assert!(clients.iter().all(|(_, client)| !client.is_finished()));
}

#[test]
fn a_client_of_another_server_keeps_retrying() {
    let (one, other) = (TestServer::new(rules(), None), TestServer::new(rules(), None));
    let state_dir = Some(one.folder.path().join("client"));
    let (end, task) = one.join_as(JoinOptions { state_dir: state_dir.clone(), ..one.options(0) });
    one.wait_until(|counts| counts.connected == 1);
    end.send_replace(StopSignal::Stop);
    assert_eq!(one.client_runtime.block_on(task).unwrap(), Ok(JoinOutcome::Stopped));
    let (end, task) = other.join_as(JoinOptions { state_dir, ..other.options(0) });
    other.wait_until(|_| other.n_refused("unknown") >= 2);
    end.send_replace(StopSignal::Stop);
    assert_eq!(other.client_runtime.block_on(task).unwrap(), Ok(JoinOutcome::Stopped));
}
