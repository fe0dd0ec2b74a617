//! An unauthenticated peer opens streams and resets each at once.

use crate::attacked_server::{AttackedServer, MOST_GROWTH, Plan, n_lost};
use crate::peer::{CANCEL, END_HEADERS, HEADERS, Peer, RST_STREAM, call, frame};

#[test]
fn a_flood_of_resets_takes_little_memory_and_no_round() {
    let mut house = AttackedServer::start(&Plan { serve: "min_up = 2", ..Plan::default() });
    house.join(2);
    house.wait_for_rounds(20);
    let before = house.rows().len();
    let growth = house.growth(|house| {
        for _ in 0..5 {
            let mut peer = Peer::connect(house.address).unwrap();
            let attend = call("Attend");
            for _ in 0..20 {
                let mut frames = Vec::new();
                for _ in 0..1000 {
                    let stream = peer.stream();
                    frames.extend(frame(HEADERS, END_HEADERS, stream, &attend));
                    frames.extend(frame(RST_STREAM, 0, stream, &CANCEL));
                }
                if peer.write(&frames).is_err() {
                    break;
                }
            }
        }
        house.wait_for_rounds(20);
    });
    assert!(growth < MOST_GROWTH, "{growth} bytes");
    assert_eq!(n_lost(&house.rows()[before..], &[0, 1]), 0);
}
