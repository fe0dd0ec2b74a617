//! A client with one sample reports a huge loss, where the clients with the largest losses are selected.

use crate::attacked_server::{AttackedServer, Plan, clients};
use crate::member::Member;

const ROUNDS: u32 = 40;

const POWER_OF_CHOICE: &str = "recipe = \"pow-d\"\n[data]\nkind = \"synthetic\"\nclients = 5\nsamples_max = 100\n\
                               [local]\nlearning_rate = 0.05\nepochs = 1\nbatch_size = 10\n[select]\ncohort = 1\ncandidates = 5\n";

/// Joins with one sample and reports the largest possible loss to every probe; it returns no updates.
pub(crate) fn report_huge_losses(house: &AttackedServer) -> u64 {
    let mut member = Member::join(house.address, house.token(), 1);
    let client = member.client;
    std::thread::spawn(move || {
        while let Ok(request) = member.job_or_probe() {
            let sent = match request {
                Err(round) => member.send_loss(round, 3e38),
                Ok(job) => member.send_failure(job.round, "no time"),
            };
            if sent.is_err() {
                return;
            }
        }
    });
    client
}

/// Of five losses the two largest count as equal, so that the hostile client ties with one other and a draw
/// decides.
#[test]
fn an_outlying_loss_does_not_have_its_client_selected_in_every_round() {
    let serve = "min_up = 5\ndeadline_s = 1.0";
    let mut house =
        AttackedServer::start(&Plan { rounds: ROUNDS, run: POWER_OF_CHOICE, serve, ..Plan::default() });
    let liar = report_huge_losses(&house);
    house.join(4);
    assert!(house.wait_for_end().success());
    let rows = house.rows();
    let n_selected = rows.iter().filter(|row| clients(row, "asked").contains(&liar)).count();
    assert!((5..36).contains(&n_selected), "in {n_selected} of {ROUNDS} rounds");
}
