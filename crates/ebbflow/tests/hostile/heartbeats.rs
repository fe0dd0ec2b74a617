//! A client sends heartbeats without end, and reads nothing.

use crate::attacked_server::{AttackedServer, MOST_GROWTH, Plan, n_lost};
use crate::member::HEARTBEAT;
use crate::peer::number;

const BEATS: u32 = 200_000;

#[test]
fn a_flood_of_heartbeats_takes_little_memory_and_no_round() {
    // It takes a job and disconnects: only that round waits for it.
    let mut house = AttackedServer::start(&Plan { serve: "min_up = 2\ndeadline_s = 2.0", ..Plan::default() });
    house.join(2);
    house.wait_for_rounds(20);
    let mut member = house.member();
    member.job().unwrap();
    let before = house.rows().len();
    let growth = house.growth(|house| {
        for steps in 0..BEATS {
            if member.send(HEARTBEAT, &number(1, u64::from(steps))).is_err() {
                break;
            }
        }
        house.wait_for_rounds(20);
    });
    assert!(growth < MOST_GROWTH, "{growth} bytes");
    drop(member);
    assert_eq!(n_lost(&house.rows()[before..], &[0, 1]), 0);
}
