//! An unauthenticated peer enrols with forged tokens.

use crate::attacked_server::{AttackedServer, MOST_GROWTH, Plan, n_lost};
use crate::peer::{Peer, bytes};

/// The number of concurrent enrolments that the server allows.
const AT_ONCE: usize = 8;
const TIMES: usize = 500;

/// This many refusals of a kind are logged, and then only one in this many.
const MOST_LINES: usize = 1000;

#[test]
fn a_flood_of_bad_tokens_takes_little_memory_few_lines_and_no_round() {
    let mut house = AttackedServer::start(&Plan { serve: "min_up = 2", ..Plan::default() });
    house.join(2);
    house.wait_for_rounds(20);
    let before = house.rows().len();
    let enrol = [bytes(1, &[b'e'; 8000]), bytes(2, &[7; 32])].concat();
    let growth = house.growth(|house| {
        let mut peer = Peer::connect(house.address).unwrap();
        let mut n_requests = 0;
        while n_requests < TIMES * AT_ONCE {
            let streams: Result<Vec<_>, _> = (0..AT_ONCE).map(|_| peer.call_unary("Enrol", &enrol)).collect();
            let replies = streams.and_then(|streams| {
                streams.into_iter().try_for_each(|stream| peer.wait_until_stream_ended(stream))
            });
            match replies {
                Ok(()) => n_requests += AT_ONCE,
                // The server limits the life of an unauthenticated connection.
                Err(_) => peer = Peer::connect(house.address).unwrap(),
            }
        }
    });
    assert!(growth < MOST_GROWTH, "{growth} bytes");
    assert!(house.refused("token") >= (TIMES * AT_ONCE) as u64);
    let lines = house.log_lines().iter().filter(|line| line.contains("refused")).count();
    assert!((1..=MOST_LINES + TIMES).contains(&lines), "{lines} lines");
    house.wait_for_rounds(20);
    assert_eq!(n_lost(&house.rows()[before..], &[0, 1]), 0);
}
