//! A client reserves memory for uploads that it does not finish.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::attacked_server::{AttackedServer, Plan, n_lost};
use crate::member::Member;
use crate::peer::{Gone, bytes};

/// A model of 40 KB.
const MIDDLING: &str = "recipe = \"dropout\"\n[data]\nkind = \"quadratic\"\nclients = 3\ndimension = 10000\n\
                        [local]\nlearning_rate = 0.05\nsteps = 1\n[evaluate]\nevery = 1000\n";
const UPDATE: u64 = 40_016;

/// Reserves memory for one update again and again: by sending nothing, and in every other turn by a byte now
/// and then.
fn hold_reservations(mut member: Member, turns: &AtomicU32, over: &AtomicBool) {
    let mut digest = [0_u8; 32];
    let mut turn = || -> Result<(), Gone> {
        digest[0] = digest[0].wrapping_add(1);
        let held = [bytes(1, &member.session), bytes(2, &digest), crate::peer::number(3, UPDATE)].concat();
        let call = member.peer.call_unary("Held", &held)?;
        if member.peer.receive(call)?.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(20));
            return Ok(());
        }
        let stream = member.begin_upload(digest, UPDATE)?;
        turns.fetch_add(1, Ordering::Relaxed);
        // Longer than a round lasts.
        for _ in 0..120 {
            if digest[0] % 2 == 0 {
                member.peer.send(stream, &bytes(2, &[0]), false)?;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            if over.load(Ordering::Relaxed) {
                return Err(Gone);
            }
        }
        member.peer.reset(stream)
    };
    while turn().is_ok() {}
}

#[test]
fn unfinished_uploads_do_not_hold_memory_that_others_need() {
    // One update at a time; an upload that stalls while others wait is dropped after a second.
    let serve = "min_up = 2\ndeadline_s = 4.0\ngrace_s = 0.0\nmemory_bytes = 50000";
    let mut house = AttackedServer::start(&Plan { run: MIDDLING, serve, ..Plan::default() });
    let mut hostile = house.member();
    let client = hostile.client;
    house.join(2);
    hostile.job().unwrap();
    let honest: Vec<u64> = (0..3).filter(|other| *other != client).collect();
    let (turns, over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| hold_reservations(hostile, &turns, &over));
        house.wait_for_rounds(1);
        // From here on the round waits for the honest client only, because the other is still busy with an
        // old job.
        let before = house.rows().len();
        house.wait_until("it held the room again and again", |_| turns.load(Ordering::Relaxed) >= 3);
        house.wait_for_rounds(1);
        let rows = house.rows().split_off(before);
        over.store(true, Ordering::Relaxed);
        assert_eq!(n_lost(&rows, &honest), 0);
    });
    assert!(house.refused("no-room") > 0, "nobody had to wait");
    let peak = house.metric("ebbflow_memory_peak_bytes");
    assert!(peak <= 50_000, "{peak} bytes");
}
