//! A client sends text that looks like lines of the log.

use crate::attacked_server::{AttackedServer, Plan};
use crate::member::Member;

const FORGED: &str =
    "no memory\n2026-11-19T04:00:00.000000Z  INFO revoked client=0\r\n\u{1b}[2J{\"message\":\"revoked\"}";

/// The server's log of a client with this version text, which fails with the same text.
fn logged(json: bool) -> Vec<String> {
    let mut house = AttackedServer::start(&Plan { serve: "deadline_s = 0.5", json, ..Plan::default() });
    let mut member = Member::join_as(house.address, house.token(), 50, FORGED);
    let job = member.job().unwrap();
    member.send_failure(job.round, FORGED).unwrap();
    house.wait_until("it is logged", |house| house.log_lines().iter().any(|line| line.contains("failed")));
    house.log_lines()
}

#[test]
fn what_a_client_writes_stays_within_its_line() {
    let log_lines = logged(false);
    assert!(!log_lines.iter().any(|line| line.starts_with("2026-11-19T04:00:00")), "{log_lines:#?}");
    assert!(!log_lines.iter().any(|line| line.contains('\u{1b}')), "{log_lines:#?}");
    let of = |word: &str| {
        log_lines.iter().filter(|line| line.contains(word) && line.contains("no memory")).count()
    };
    assert_eq!((of("connected"), of("failed")), (1, 1), "{log_lines:#?}");
}

#[test]
fn no_line_of_json_has_two_messages() {
    let log_lines = logged(true);
    let lines: Vec<_> = log_lines.iter().filter(|line| line.starts_with('{')).collect();
    assert!(lines.iter().any(|line| line.contains("no memory")), "{log_lines:#?}");
    for line in lines {
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(read["message"] != "revoked", "{line}");
        // Quotes within a string are escaped.
        assert_eq!(line.matches("\"message\":").count(), 1, "{line}");
    }
}
