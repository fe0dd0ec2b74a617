//! An unauthenticated peer sends headers without end.

use crate::attacked_server::{AttackedServer, MOST_GROWTH, Plan, n_lost};
use crate::peer::{CONTINUATION, HEADERS, Peer, call, frame, header};

#[test]
fn headers_that_do_not_end_take_little_memory_and_no_round() {
    let mut house = AttackedServer::start(&Plan { serve: "min_up = 2", ..Plan::default() });
    house.join(2);
    house.wait_for_rounds(20);
    let before = house.rows().len();
    let more: Vec<u8> = (0..60).flat_map(|at| header(&format!("x-{at}"), &"y".repeat(120))).collect();
    let growth = house.growth(|house| {
        for _ in 0..10 {
            let mut peer = Peer::connect(house.address).unwrap();
            let stream = peer.stream();
            let mut sent = peer.write(&frame(HEADERS, 0, stream, &call("Attend")));
            // Eighty megabytes, if the server accepts them.
            for _ in 0..10_000 {
                if sent.is_err() {
                    break;
                }
                sent = peer.write(&frame(CONTINUATION, 0, stream, &more));
            }
            assert!(sent.is_err(), "all of it is taken");
            peer.wait_until_closed();
        }
        house.wait_for_rounds(5);
    });
    assert!(growth < MOST_GROWTH, "{growth} bytes");
    assert_eq!(n_lost(&house.rows()[before..], &[0, 1]), 0);
}
