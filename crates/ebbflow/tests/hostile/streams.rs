//! An unauthenticated peer opens streams without end over one connection.

use crate::attacked_server::{AttackedServer, MOST_GROWTH, Plan, n_lost};
use crate::peer::{END_HEADERS, HEADERS, Peer, call, frame};

const STREAMS: u32 = 60_000;

#[test]
fn sixty_thousand_streams_over_one_connection_take_little_memory_and_no_round() {
    let mut house = AttackedServer::start(&Plan { serve: "min_up = 2", ..Plan::default() });
    house.join(2);
    house.wait_for_rounds(20);
    let before = house.rows().len();
    let growth = house.growth(|house| {
        let mut peer = Peer::connect(house.address).unwrap();
        let attend = call("Attend");
        for _ in 0..STREAMS / 1000 {
            let heads: Vec<u8> =
                (0..1000).flat_map(|_| frame(HEADERS, END_HEADERS, peer.stream(), &attend)).collect();
            if peer.write(&heads).is_err() {
                break;
            }
        }
        peer.wait_until_closed();
        house.wait_for_rounds(20);
    });
    assert!(growth < MOST_GROWTH, "{growth} bytes");
    assert_eq!(n_lost(&house.rows()[before..], &[0, 1]), 0);
}
