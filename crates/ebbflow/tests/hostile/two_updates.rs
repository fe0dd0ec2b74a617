//! A client reports more samples than all others, and sends updates as large as numbers can be.

use serde_json::Value;

use crate::attacked_server::{AttackedServer, Plan, SYNTHETIC, clients};
use crate::member::{Member, packed};

const ROUNDS: u32 = 60;
/// This many honest clients join first, with numbers below this.
const HONEST: u64 = 4;
const N_PARAMS: usize = 610;
/// The numbers of samples that it reports; the next smaller one if the server refuses.
const MOST_SAMPLES: [u64; 3] = [u32::MAX as u64, 10_000, 100];

/// Runs to the end with four honest clients; returns the rows, and the final accuracy.
fn run(liar: bool) -> (Vec<Value>, f64) {
    let serve = if liar { "min_up = 5\ndeadline_s = 3.0" } else { "min_up = 4\ndeadline_s = 3.0" };
    let mut house = AttackedServer::start(&Plan { rounds: ROUNDS, run: SYNTHETIC, serve, ..Plan::default() });
    house.join(4);
    if liar {
        house.wait_until_connected(4);
        send_twice(&house);
    }
    let status = house.wait_for_end();
    assert!(status.success(), "{status}: {:#?}", house.log_lines());
    let rows = house.rows();
    let accuracy =
        rows.iter().rev().find_map(|row| row["accuracy"].as_f64()).expect("the last round is evaluated");
    (rows, accuracy)
}

/// Sends two updates, with as many samples as the server accepts.
fn send_twice(house: &AttackedServer) {
    let (address, token) = (house.address, house.token().to_owned());
    std::thread::spawn(move || {
        let mut lies = 0;
        for samples in MOST_SAMPLES {
            let mut member = Member::join(address, &token, samples);
            // A server that refuses this many samples closes the connection.
            while let Ok(job) = member.job() {
                if lies < 2 {
                    lies += 1;
                    let _ = member.send_update(&job, &packed(&[3e38; N_PARAMS], &[]), samples);
                } else {
                    let _ = member.send_failure(job.round, "no time");
                }
            }
        }
    });
}

#[test]
fn two_updates_of_one_client_neither_end_a_run_nor_spoil_it() {
    let (_, without) = run(false);
    let (rows, with) = run(true);
    assert_eq!(rows.len(), ROUNDS as usize);
    let lied = |row: &&Value| {
        ["whole", "refused"].iter().any(|key| clients(row, key).iter().any(|client| *client >= HONEST))
    };
    assert_eq!(rows.iter().filter(lied).count(), 2);
    let void = rows.iter().filter(|row| !row["void"].is_null()).count();
    assert!(void <= 2, "{void} rounds are void");
    assert!((with - without).abs() <= 0.01, "{with} instead of {without}");
}
