//! Idle connections at the address of the metrics.

use std::io::{ErrorKind, Read};

use crate::attacked_server::{AttackedServer, Plan};

/// The number of connections that are served at once.
const IDLE: usize = 64;

/// A machine that stalls for seconds makes an attempt inconclusive, so there are several.
const ATTEMPTS: usize = 5;

#[test]
fn idle_connections_delay_no_scrape() {
    let house = AttackedServer::start(&Plan::default());
    let responded_first = |_: &usize| {
        let mut idle: Vec<_> = (0..IDLE).map(|_| house.idle_scrape()).collect();
        for _ in 0..3 {
            assert!(house.scrape().expect("it is answered").contains("ebbflow_clients_members 0"));
        }
        // The youngest connection is still open, so no scrape had to wait until the idle ones timed out.
        let youngest = idle.last_mut().unwrap();
        youngest.set_nonblocking(true).unwrap();
        youngest.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!((0..ATTEMPTS).any(|attempt| responded_first(&attempt)), "each scrape waits for the idle");
}

#[test]
fn metrics_need_the_token() {
    let token = "0123456789abcdef";
    let house = AttackedServer::start(&Plan {
        serve: "metrics_token = \"scrapes\"",
        token: Some(token),
        ..Plan::default()
    });
    assert_eq!(house.scrape(), None);
    assert_eq!(house.scrape_with("authorization: Bearer 0123456789abcdee\r\n"), None);
    let shown = house.scrape_with(&format!("authorization: Bearer {token}\r\n")).expect("it is answered");
    assert!(shown.contains("ebbflow_clients_members 0"), "{shown}");
}
