//! Authentication: which clients are accepted, and which refusals are final.

use super::*;

#[test]
fn unknown_clients_are_refused_until_the_right_server_is_back_and_the_revoked_for_good() {
    let mut fixture = TestCoordinator::with_clients(rules(), 2);
    fixture.hello(5, wire::Hello { secret: secret(7), ..hello(0) });
    fixture.hello(6, hello(3));
    fixture.hello(7, wire::Hello { server: Bytes::from_static(&[0; 16]), ..hello(0) });
    assert_eq!(fixture.refusals(), [("unknown", false); 3]);
    assert_eq!(fixture.closed, [5, 6, 7]);
    fixture.assert_refusals("unknown", 3);
    fixture.coordinator.revoke([client_id(1)]);
    fixture.settle();
    assert!(matches!(fixture.sent.last(), Some((1, ServerMessage::Refused(refused))) if refused.r#final));
    fixture.hello(8, hello(1));
    assert_eq!(fixture.refusals().last(), Some(&("revoked", true)));
    fixture.assert_refusals("revoked", 1);
}

#[test]
fn other_versions_are_refused_with_a_remedy() {
    let mut fixture = TestCoordinator::with_clients(rules(), 1);
    fixture.coordinator.disconnected(0);
    fixture.hello(1, wire::Hello { oldest: PROTOCOL_VERSION + 1, newest: PROTOCOL_VERSION + 2, ..hello(0) });
    assert_eq!(fixture.refusals(), [("version", false)]);
    assert!(
        matches!(&fixture.sent[0].1, ServerMessage::Refused(refused) if refused.message.contains("install the same release"))
    );
    fixture.hello(2, wire::Hello { oldest: 0, newest: PROTOCOL_VERSION + 1, ..hello(0) });
    assert!(
        matches!(&fixture.sent.last().unwrap().1, ServerMessage::Welcome(welcome) if welcome.version == PROTOCOL_VERSION)
    );
}

const ONE: [u8; 32] = [1; 32];
const OTHER: [u8; 32] = [2; 32];

/// The reason of the refusal, if a client that shows a certificate with this key is refused.
fn try_connect(
    fixture: &mut TestCoordinator,
    connection: ConnectionId,
    client: u32,
    certificate_key: Option<[u8; 32]>,
) -> Option<String> {
    fixture.sent.clear();
    let is_in = fixture.coordinator.hello_with_certificate(
        connection,
        &hello(client),
        certificate_key,
        fixture.now_s,
    );
    fixture.settle();
    let refused = fixture.refusals().last().map(|(reason, last)| {
        assert!(!last, "the client may show another certificate");
        (*reason).to_owned()
    });
    assert_eq!(is_in, refused.is_none());
    if is_in {
        fixture.coordinator.disconnected(connection);
    }
    refused
}

/// The certificates of members as they are written, in order.
fn written_certificates(fixture: &TestCoordinator) -> Vec<Option<[u8; 32]>> {
    let member = |write: &Write| match write {
        Write::Member(member) => Some(member.certificate_key),
        _ => None,
    };
    fixture.writes.iter().filter_map(member).collect()
}

#[test]
fn a_client_is_accepted_only_with_the_certificate_key_that_it_enrolled_with() {
    let mut fixture = TestCoordinator::new(rules());
    let token =
        key().token(&Terms { id: [0; 8], expires_unix_s: 1000, max_uses: 100, allows_chosen_number: true });
    let request = wire::EnrolRequest { token, secret: secret(0), number: Some(0) };
    let (_, writes) = fixture.coordinator.enrol_with_certificate(&request, &key(), 500, Some(ONE)).unwrap();
    fixture.writes.extend(writes);
    assert_eq!(written_certificates(&fixture), [Some(ONE)]);
    assert_eq!(try_connect(&mut fixture, 1, 0, Some(OTHER)).as_deref(), Some("certificate"));
    fixture.assert_refusals("certificate", 1);
    // Enrolling again with the same secret does not bind the client to another certificate.
    let (_, writes) = fixture.coordinator.enrol_with_certificate(&request, &key(), 500, Some(OTHER)).unwrap();
    assert!(writes.is_empty());
    assert_eq!(try_connect(&mut fixture, 2, 0, Some(OTHER)).as_deref(), Some("certificate"));
    assert_eq!(try_connect(&mut fixture, 3, 0, Some(ONE)), None);
    // A server that requires no certificates checks the secret alone.
    assert_eq!(try_connect(&mut fixture, 4, 0, None), None);
    assert_eq!(written_certificates(&fixture), [Some(ONE)], "nothing else was written");
}

#[test]
fn a_client_that_enrolled_without_a_certificate_is_bound_to_the_first_that_it_shows() {
    let mut fixture = TestCoordinator::new(rules());
    fixture.enrol(0);
    assert_eq!(try_connect(&mut fixture, 1, 0, None), None);
    assert_eq!(try_connect(&mut fixture, 2, 0, Some(ONE)), None);
    assert_eq!(written_certificates(&fixture), [None, Some(ONE)]);
    assert_eq!(try_connect(&mut fixture, 3, 0, Some(OTHER)).as_deref(), Some("certificate"));
    assert_eq!(written_certificates(&fixture), [None, Some(ONE)]);
}
