//! Unauthenticated peers begin messages on every stream that they may open, and do not finish them.

use crate::attacked_server::{AttackedServer, MOST_GROWTH, Plan, n_lost};
use crate::peer::{DATA, Peer, frame};

const CONNECTIONS: usize = 60;
const STREAMS: usize = 16;

/// Nearly the largest message that the server accepts.
const LENGTH: u32 = 65_000;

#[test]
fn messages_that_are_not_finished_take_little_memory_and_no_round() {
    let mut house = AttackedServer::start(&Plan { serve: "min_up = 2", ..Plan::default() });
    house.join(2);
    house.wait_for_rounds(20);
    let before = house.rows().len();
    let mut begun = vec![0];
    begun.extend(LENGTH.to_be_bytes());
    begun.resize(LENGTH as usize, 7);
    let growth = house.growth(|house| {
        let mut peers = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut peer = Peer::connect(house.address).unwrap();
            peer.wait_until_settings().unwrap();
            for _ in 0..STREAMS {
                let Ok(stream) = peer.open("Enrol") else { break };
                let parts = begun.chunks(16_000).map(|part| frame(DATA, 0, stream, part));
                if parts.into_iter().try_for_each(|part| peer.write(&part)).is_err() {
                    break;
                }
            }
            peers.push(peer);
        }
        house.wait_for_rounds(20);
    });
    assert!(growth < MOST_GROWTH, "{growth} bytes");
    assert_eq!(n_lost(&house.rows()[before..], &[0, 1]), 0);
}
