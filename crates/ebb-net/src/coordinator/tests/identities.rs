//! Who is let in as whom, and what is final.

use super::*;

#[test]
fn unknown_clients_are_refused_until_the_right_server_is_back_and_the_revoked_for_good() {
    let mut office = TestCoordinator::with_clients(rules(), 2);
    office.hello(5, wire::Hello { secret: secret(7), ..hello(0) });
    office.hello(6, hello(3));
    office.hello(7, wire::Hello { server: Bytes::from_static(&[0; 16]), ..hello(0) });
    assert_eq!(office.refusals(), [("unknown", false); 3]);
    assert_eq!(office.closed, [5, 6, 7]);
    office.assert_refusals("unknown", 3);
    office.coordinator.revoke([client_id(1)]);
    office.settle();
    assert!(matches!(office.sent.last(), Some((1, ServerMessage::Refused(refused))) if refused.r#final));
    office.hello(8, hello(1));
    assert_eq!(office.refusals().last(), Some(&("revoked", true)));
    office.assert_refusals("revoked", 1);
}

#[test]
fn other_versions_are_refused_with_what_to_do() {
    let mut office = TestCoordinator::with_clients(rules(), 1);
    office.coordinator.disconnected(0);
    office.hello(1, wire::Hello { oldest: PROTOCOL_VERSION + 1, newest: PROTOCOL_VERSION + 2, ..hello(0) });
    assert_eq!(office.refusals(), [("version", false)]);
    assert!(
        matches!(&office.sent[0].1, ServerMessage::Refused(refused) if refused.message.contains("install the same release"))
    );
    office.hello(2, wire::Hello { oldest: 0, newest: PROTOCOL_VERSION + 1, ..hello(0) });
    assert!(
        matches!(&office.sent.last().unwrap().1, ServerMessage::Welcome(welcome) if welcome.version == PROTOCOL_VERSION)
    );
}

const ONE: [u8; 32] = [1; 32];
const OTHER: [u8; 32] = [2; 32];

/// The reason of the last refusal, if a client that shows a certificate with this key is not let in.
fn try_connect(
    office: &mut TestCoordinator,
    line: ConnectionId,
    client: u32,
    shown: Option<[u8; 32]>,
) -> Option<String> {
    office.sent.clear();
    let is_in = office.coordinator.hello_with_certificate(line, &hello(client), shown, office.now_s);
    office.settle();
    let refused = office.refusals().last().map(|(reason, last)| {
        assert!(!last, "another certificate may be given");
        (*reason).to_owned()
    });
    assert_eq!(is_in, refused.is_none());
    if is_in {
        office.coordinator.disconnected(line);
    }
    refused
}

/// The certificates of members as they are written down, in order.
fn written_certificates(office: &TestCoordinator) -> Vec<Option<[u8; 32]>> {
    let member = |write: &Write| match write {
        Write::Member(member) => Some(member.certificate_key),
        _ => None,
    };
    office.writes.iter().filter_map(member).collect()
}

#[test]
fn a_client_comes_in_with_the_key_that_it_enrolled_with_and_no_other() {
    let mut office = TestCoordinator::new(rules());
    let token =
        key().token(&Terms { id: [0; 8], expires_unix_s: 1000, max_uses: 100, allows_chosen_number: true });
    let request = wire::EnrolRequest { token, secret: secret(0), number: Some(0) };
    let (_, writes) = office.coordinator.enrol_with_certificate(&request, &key(), 500, Some(ONE)).unwrap();
    office.writes.extend(writes);
    assert_eq!(written_certificates(&office), [Some(ONE)]);
    assert_eq!(try_connect(&mut office, 1, 0, Some(OTHER)).as_deref(), Some("certificate"));
    office.assert_refusals("certificate", 1);
    // Nor does enrolling once more with the same secret bind it anew.
    let (_, writes) = office.coordinator.enrol_with_certificate(&request, &key(), 500, Some(OTHER)).unwrap();
    assert!(writes.is_empty());
    assert_eq!(try_connect(&mut office, 2, 0, Some(OTHER)).as_deref(), Some("certificate"));
    assert_eq!(try_connect(&mut office, 3, 0, Some(ONE)), None);
    // A server that asks for none believes the secret alone.
    assert_eq!(try_connect(&mut office, 4, 0, None), None);
    assert_eq!(written_certificates(&office), [Some(ONE)], "nothing else was to be written down");
}

#[test]
fn one_that_enrolled_without_a_certificate_is_bound_to_the_first_that_it_shows() {
    let mut office = TestCoordinator::new(rules());
    office.enrol(0);
    assert_eq!(try_connect(&mut office, 1, 0, None), None);
    assert_eq!(try_connect(&mut office, 2, 0, Some(ONE)), None);
    assert_eq!(written_certificates(&office), [None, Some(ONE)]);
    assert_eq!(try_connect(&mut office, 3, 0, Some(OTHER)).as_deref(), Some("certificate"));
    assert_eq!(written_certificates(&office), [None, Some(ONE)]);
}
