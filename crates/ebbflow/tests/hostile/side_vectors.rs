//! A client sends side vectors that were not requested, to count twice in the usual norm.

use crate::attacked_server::{AttackedServer, Plan};
use crate::member::packed;

const CLIPPED: &str = "recipe = \"dropout\"\n[data]\nkind = \"quadratic\"\nclients = 3\ndimension = 100\n\
                       [local]\nlearning_rate = 0.05\nsteps = 1\n[clip]\ntimes = 1.0\n";

#[test]
fn vectors_without_a_name_or_that_no_recipe_declares_are_refused() {
    let mut house = AttackedServer::start(&Plan { run: CLIPPED, serve: "min_up = 3", ..Plan::default() });
    let mut member = house.member();
    house.join(2);
    let (long, short) = ([100.0; 100], [1.0; 100]);
    let tries: [&[(&str, &[f32])]; 3] =
        [&[("", &short)], &[("/statistics", &short)], &[("one", &short), ("two", &short)]];
    // Enough rounds for the honest norms to define what is usual.
    for (count, sides) in (1..=12).zip(tries.iter().cycle()) {
        let job = member.job().unwrap();
        let settled = member.send_update(&job, &packed(&long, sides), 50).unwrap();
        assert_eq!(settled, "malformed", "{sides:?}");
        assert_eq!(house.refused("malformed"), count);
    }
    // Without them, it counts as one of three, and its update is shortened.
    let job = member.job().unwrap();
    assert_eq!(member.send_update(&job, &packed(&long, &[]), 50).unwrap(), "");
    house.wait_until("it is recorded", |house| house.rows().len() as u64 > job.round);
    let row = &house.rows()[job.round as usize];
    assert!(row["notes"]["clipped"].as_f64() >= Some(1.0), "{row}");
    let [bound, norm] = [row["notes"]["clip_bound"].as_f64().unwrap(), 1000.0];
    assert!(bound < norm / 10.0, "{row}");
}
