//! A client writes what looks like lines of the log.

use crate::house::{House, Plan};
use crate::member::Member;

const FORGED: &str =
    "no memory\n2026-11-19T04:00:00.000000Z  INFO revoked client=0\r\n\u{1b}[2J{\"message\":\"revoked\"}";

/// What the server logs of a client that calls itself so, and fails with the same words.
fn logged(json: bool) -> Vec<String> {
    let mut house = House::start(&Plan { serve: "deadline_s = 0.5", json, ..Plan::default() });
    let mut member = Member::join_as(house.address, house.token(), 50, FORGED);
    let job = member.job().unwrap();
    member.failed(job.round, FORGED).unwrap();
    house.until("it is logged", |house| house.said().iter().any(|line| line.contains("failed")));
    house.said()
}

#[test]
fn what_a_client_writes_stays_within_its_line() {
    let said = logged(false);
    assert!(!said.iter().any(|line| line.starts_with("2026-11-19T04:00:00")), "{said:#?}");
    assert!(!said.iter().any(|line| line.contains('\u{1b}')), "{said:#?}");
    let of =
        |word: &str| said.iter().filter(|line| line.contains(word) && line.contains("no memory")).count();
    assert_eq!((of("connected"), of("failed")), (1, 1), "{said:#?}");
}

#[test]
fn no_line_of_json_has_two_messages() {
    let said = logged(true);
    let lines: Vec<_> = said.iter().filter(|line| line.starts_with('{')).collect();
    assert!(lines.iter().any(|line| line.contains("no memory")), "{said:#?}");
    for line in lines {
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(read["message"] != "revoked", "{line}");
        // What is within a string has its quotes escaped.
        assert_eq!(line.matches("\"message\":").count(), 1, "{line}");
    }
}
