//! A stranger opens streams and resets each at once.

use crate::house::{House, MOST_GROWTH, Plan, lost};
use crate::peer::{CANCEL, END_HEADERS, HEADERS, Peer, RST_STREAM, call, frame};

#[test]
fn a_flood_of_resets_takes_little_memory_and_no_round() {
    let mut house = House::start(&Plan { serve: "least_up = 2", ..Plan::default() });
    house.join(2);
    house.play(20);
    let before = house.rows().len();
    let growth = house.growth(|house| {
        for _ in 0..5 {
            let mut peer = Peer::connect(house.address).unwrap();
            let attend = call("Attend");
            for _ in 0..20 {
                let mut said = Vec::new();
                for _ in 0..1000 {
                    let stream = peer.stream();
                    said.extend(frame(HEADERS, END_HEADERS, stream, &attend));
                    said.extend(frame(RST_STREAM, 0, stream, &CANCEL));
                }
                if peer.say(&said).is_err() {
                    break;
                }
            }
        }
        house.play(20);
    });
    assert!(growth < MOST_GROWTH, "{growth} bytes");
    assert_eq!(lost(&house.rows()[before..], &[0, 1]), 0);
}
