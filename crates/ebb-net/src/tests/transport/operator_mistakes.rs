//! An operator's slips: what a client hears then, and that it comes back by itself once the right server is
//! there.

use super::*;

#[test]
fn clients_come_back_to_a_server_that_is_started_again() {
    let mut house = TestServer::new(Rules { min_available: 2, ..rules() }, None);
    let _clients: Vec<_> = (0..2).map(|number| house.join(number)).collect();
    assert_eq!(house.round(0, 2).len(), 2);
    let elsewhere = tempfile::tempdir().unwrap();
    let folder = std::mem::replace(&mut house.folder, elsewhere);
    let (mut house, _) = house.restart(folder, Rules { min_available: 2, ..rules() });
    // The journal is played first, then it goes on.
    assert_eq!(house.round(0, 2), [(0, 0, 0.0), (1, 0, 1.0)]);
    assert_eq!(house.round(1, 2), [(0, 1, 0.0), (1, 1, 1.0)]);
}

#[test]
fn clients_of_a_server_that_was_started_on_an_empty_folder_come_back_to_the_right_one_by_themselves() {
    let rules = || Rules { min_available: 3, ..rules() };
    let mut house = TestServer::new(rules(), None);
    let clients: Vec<_> = (0..3).map(|number| house.join_as(house.options(number))).collect();
    assert_eq!(house.round(0, 3).len(), 3);
    let (house, right) = house.restart(tempfile::tempdir().unwrap(), rules());
    house.server.go_live().unwrap();
    // Each of them heard it, more than once.
    house.wait_until(|_| house.n_refused("unknown") >= 9);
    assert_eq!(house.server.counts().members, 0);
    assert!(clients.iter().all(|(_, client)| !client.is_finished()));
    let (mut house, _) = house.restart(right, rules());
    assert_eq!(house.round(0, 3).len(), 3);
    assert_eq!(house.round(1, 3), [(0, 1, 0.0), (1, 1, 1.0), (2, 1, 2.0)]);
    assert!(clients.iter().all(|(_, client)| !client.is_finished()));
}

#[test]
fn a_client_of_another_server_goes_on_asking() {
    let (one, other) = (TestServer::new(rules(), None), TestServer::new(rules(), None));
    let home = Some(one.folder.path().join("client"));
    let (end, task) = one.join_as(JoinOptions { state_dir: home.clone(), ..one.options(0) });
    one.wait_until(|counts| counts.connected == 1);
    end.send_replace(StopSignal::Stop);
    assert_eq!(one.client_runtime.block_on(task).unwrap(), Ok(JoinOutcome::Stopped));
    let (end, task) = other.join_as(JoinOptions { state_dir: home, ..other.options(0) });
    other.wait_until(|_| other.n_refused("unknown") >= 2);
    end.send_replace(StopSignal::Stop);
    assert_eq!(other.client_runtime.block_on(task).unwrap(), Ok(JoinOutcome::Stopped));
}
