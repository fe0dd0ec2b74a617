//! A stranger sends headers that do not end.

use crate::house::{House, MOST_GROWTH, Plan, lost};
use crate::peer::{CONTINUATION, HEADERS, Peer, call, frame, header};

#[test]
fn headers_that_do_not_end_take_little_memory_and_no_round() {
    let mut house = House::start(&Plan { serve: "least_up = 2", ..Plan::default() });
    house.join(2);
    house.play(20);
    let before = house.rows().len();
    let more: Vec<u8> = (0..60).flat_map(|at| header(&format!("x-{at}"), &"y".repeat(120))).collect();
    let growth = house.growth(|house| {
        for _ in 0..10 {
            let mut peer = Peer::connect(house.address).unwrap();
            let stream = peer.stream();
            let mut said = peer.say(&frame(HEADERS, 0, stream, &call("Attend")));
            // Eighty megabytes, if they are taken.
            for _ in 0..10_000 {
                if said.is_err() {
                    break;
                }
                said = peer.say(&frame(CONTINUATION, 0, stream, &more));
            }
            assert!(said.is_err(), "all of it is taken");
            peer.until_hung_up();
        }
        house.play(5);
    });
    assert!(growth < MOST_GROWTH, "{growth} bytes");
    assert_eq!(lost(&house.rows()[before..], &[0, 1]), 0);
}
