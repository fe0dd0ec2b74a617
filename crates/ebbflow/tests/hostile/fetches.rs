//! A client fetches the model again and again, and reads none of it.

use crate::attacked_server::{AttackedServer, MOST_GROWTH, Plan};
use crate::peer::{DATA, END_HEADERS, END_STREAM, HEADERS, Peer, call, frame, message};

/// A model of 800 KB.
const LARGE: &str = "recipe = \"dropout\"\n[data]\nkind = \"quadratic\"\nclients = 3\ndimension = 200000\n\
                     [local]\nlearning_rate = 0.05\nsteps = 1\n[evaluate]\nevery = 1000\n";

const FETCHES: usize = 5000;
const CONNECTIONS: usize = 100;

#[test]
fn five_thousand_unread_fetches_take_little_memory_and_no_round() {
    // The round stays open because it waits for the fetching client.
    let serve = "min_up = 3\ndeadline_s = 600.0";
    let mut house = AttackedServer::start(&Plan { run: LARGE, serve, ..Plan::default() });
    let mut member = house.member();
    house.join(2);
    let job = member.job().unwrap();
    assert!(job.model_bytes > 800_000, "{} bytes", job.model_bytes);
    house.wait_until("the honest answered", |house| house.metric("ebbflow_round_answered") == 2);
    let fetch = message(&member.fetch(&job));
    let growth = house.growth(|house| {
        // Over one connection, and over many.
        let mut one = Peer::with_window(house.address, 0).unwrap();
        fetch_often(&mut one, &fetch, FETCHES);
        one.wait_until_closed();
        let mut many = Vec::new();
        for _ in 0..CONNECTIONS {
            let Ok(mut peer) = Peer::with_window(house.address, 0) else { continue };
            fetch_often(&mut peer, &fetch, FETCHES / CONNECTIONS);
            many.push(peer);
        }
        // The server has handled all fetches once it answers the same client.
        let mut last = Peer::connect(house.address).unwrap();
        let held = last.call_unary("Held", &member.fetch(&job)).unwrap();
        assert!(last.receive(held).unwrap().is_some());
    });
    assert!(growth < MOST_GROWTH, "{growth} bytes");
    // The honest clients continue once the hostile one gives up its job.
    member.send_failure(job.round, "no time").unwrap();
    let rows = house.wait_for_rounds(1);
    assert_eq!(crate::attacked_server::n_lost(&rows, &honest(member.client)), 0);
}

fn fetch_often(peer: &mut Peer, fetch: &[u8], count: usize) {
    let head = call("Fetch");
    for _ in 0..count {
        let stream = peer.stream();
        let sent =
            [frame(HEADERS, END_HEADERS, stream, &head), frame(DATA, END_STREAM, stream, fetch)].concat();
        if peer.write(&sent).is_err() {
            return;
        }
    }
}

/// The other two of three clients.
fn honest(hostile: u64) -> Vec<u64> {
    (0..3).filter(|client| *client != hostile).collect()
}
