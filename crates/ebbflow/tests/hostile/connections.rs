//! Unauthenticated peers open as many connections as they can, and send nothing.

use std::net::{SocketAddr, TcpStream};

use crate::attacked_server::{AttackedServer, Plan, n_lost};

const IDLE: usize = 2000;
const ROUNDS: u32 = 50;

#[test]
fn two_thousand_idle_connections_leave_an_honest_run_its_descriptors() {
    // This process holds all of these connections.
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let serve = "min_up = 2\ndeadline_s = 20.0";
    let mut house =
        AttackedServer::start(&Plan { rounds: ROUNDS, serve, files: Some(256), ..Plan::default() });
    let before = idle(house.address, IDLE / 2);
    house.join(2);
    let after = idle(house.address, IDLE / 2);
    assert_eq!(before.len() + after.len(), IDLE);
    let status = house.wait_for_end();
    assert!(status.success(), "{status}");
    let rows = house.rows();
    assert_eq!((rows.len(), n_lost(&rows, &[0, 1])), (ROUNDS as usize, 0));
}

fn idle(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map_while(|_| TcpStream::connect(address).ok()).collect()
}
