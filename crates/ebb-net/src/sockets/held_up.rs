//! Clients that hang or are cut off: what becomes of the run, and of their answers.

use super::*;

/// Ends all waiting of a server's fleet, should that last for ever.
fn guard(house: &House) -> std::sync::mpsc::Sender<()> {
    let (done, waits) = std::sync::mpsc::channel();
    let stop = house.served.stopper();
    std::thread::spawn(move || {
        let lasts = Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if waits.recv_timeout(Duration::from_secs(60)) == lasts {
            stop();
        }
    });
    done
}

#[test]
fn rounds_begin_though_a_client_hangs_at_its_job() {
    let mut house = House::new(Rules { least_up: 2, deadline_s: 0.2, ..rules() }, None);
    let _client = house.join(0);
    let _hangs = house.stranger(1);
    let _guarded = guard(&house);
    for number in 0..4 {
        house.round(number, 1);
    }
}

#[test]
fn whoever_is_shut_out_while_a_model_is_judged_is_so_at_once() {
    let mut house = House::new(Rules { deadline_s: 60.0, ..rules() }, None);
    let _judge = house.stranger(1);
    house.fleet.roll_call(0, &mut house.census).unwrap();
    let mut judging = house.served.judge(NonZeroU32::MIN, 1);
    std::fs::write(house.folder.path().join(crate::server::REVOKED), "1\n").unwrap();
    let score = judging.judge(0, &Parcel::of(vec![0.0; N_PARAMS]), &house.census).unwrap();
    assert_eq!(score, None);
    assert_eq!(house.served.counts().members, 0, "it was not the deadline that ended the waiting");
}

#[test]
fn a_second_server_says_what_is_in_its_way() {
    let house = House::new(rules(), None);
    let start = |folder: &std::path::Path| {
        let (listen, folder) = (([127, 0, 0, 1], house.served.address().port()).into(), folder.to_owned());
        let place = Place { folder, listen, tls: None, metrics: None, keep_updates: true };
        Served::start(place, rules()).err().expect("something is in its way").to_string()
    };
    let same_folder = start(house.folder.path());
    assert!(same_folder.contains("another ebbflow uses this folder; stop it first"), "{same_folder}");
    let elsewhere = tempfile::tempdir().unwrap();
    let same_address = start(elsewhere.path());
    assert!(same_address.contains("give another address"), "{same_address}");
    std::fs::write(elsewhere.path().join(KEY), "short").unwrap();
    let key = start(elsewhere.path());
    assert!(key.contains("put back the one that was there"), "{key}");
}
