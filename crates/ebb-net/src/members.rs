//! The members of the fleet: numbers that are given once, digests of secrets, and revocations.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ebb_round::{ClientId, Loader, Saver, StateError};

use crate::tokens::{Terms, constant_time_eq, secret_digest};

/// A client that enrolled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) client: ClientId,
    /// The digest of its secret.
    pub(crate) secret_digest: [u8; 32],
    /// How many samples it last reported. `None` until it was connected once.
    pub(crate) samples: Option<u32>,
    /// Whether it left for good and has not returned.
    pub(crate) has_left: bool,
    /// Whether it is revoked.
    pub(crate) is_revoked: bool,
    /// The digest of the key in its certificate, which it must keep showing. `None` until it showed one.
    pub(crate) certificate_key: Option<[u8; 32]>,
}

impl Member {
    /// Whether it is in the run.
    pub(crate) fn is_enrolled(&self) -> bool {
        self.samples.is_some() && !self.has_left && !self.is_revoked
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut to = Saver::new();
        to.u64("client", u64::from(self.client.number()));
        to.bytes("secret", &self.secret_digest);
        to.u64("known", u64::from(self.samples.is_some()));
        to.u64("samples", u64::from(self.samples.unwrap_or(0)));
        to.u64("left", u64::from(self.has_left));
        to.u64("revoked", u64::from(self.is_revoked));
        // Members of earlier versions, and of servers that require no certificates, have none.
        if let Some(certificate) = &self.certificate_key {
            to.bytes("certificate", certificate);
        }
        to.finish()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Member, StateError> {
        let mut from = Loader::new(bytes);
        let client = ClientId::new(from.u32("client")? as usize);
        let secret = from.bytes("secret")?.try_into().map_err(|_| from.error("secret", "not 32 bytes"))?;
        let known = from.u64("known")? == 1;
        let samples = Some(from.u32("samples")?).filter(|_| known);
        let (left, revoked) = (from.u64("left")? == 1, from.u64("revoked")? == 1);
        let certificate = match from.at_end() {
            true => None,
            false => Some(from.bytes("certificate")?),
        };
        let certificate = certificate.map(<[u8; 32]>::try_from).transpose();
        let certificate = certificate.map_err(|_| from.error("certificate", "not 32 bytes"))?;
        Ok(Member {
            client,
            secret_digest: secret,
            samples,
            has_left: left,
            is_revoked: revoked,
            certificate_key: certificate,
        })
    }
}

/// Why a client cannot enrol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnrolError {
    /// The token has expired.
    Expired,
    /// As many clients as the token allows have enrolled with it.
    UsedUp,
    /// The token does not let clients choose their numbers.
    NumberNotAllowed,
    /// Another client has the number.
    NumberTaken,
    /// The number is too large, or all numbers are given.
    Full,
}

/// All clients that ever enrolled.
#[derive(Debug, Default)]
pub(crate) struct Members {
    by_number: BTreeMap<u32, Member>,
    by_secret: HashMap<[u8; 32], u32>,
    token_uses: HashMap<[u8; 8], u32>,
    max_clients: u32,
    /// All numbers below this are given.
    next_free: u32,
    /// Numbers that were revoked before any client had them.
    barred: BTreeSet<u32>,
}

/// The least length of a secret in bytes.
pub(crate) const MIN_SECRET_BYTES: usize = 16;

impl Members {
    pub(crate) fn new(members: Vec<Member>, token_uses: Vec<([u8; 8], u32)>, most: u32) -> Members {
        let by_secret = members.iter().map(|member| (member.secret_digest, member.client.number())).collect();
        let of = members.into_iter().map(|member| (member.client.number(), member)).collect();
        Members {
            by_number: of,
            by_secret,
            token_uses: token_uses.into_iter().collect(),
            max_clients: most,
            next_free: 0,
            barred: BTreeSet::new(),
        }
    }

    /// Enrols a client. Returns the member and how often the token was used by now. A known secret is the
    /// same client: it costs no use and changes nothing, so there is no count.
    pub(crate) fn enrol(
        &mut self,
        terms: &Terms,
        now_s: u64,
        secret: &[u8],
        number: Option<u32>,
    ) -> Result<(Member, Option<u32>), EnrolError> {
        let secret = secret_digest(secret);
        let uses = self.token_uses.get(&terms.id).copied().unwrap_or(0);
        if let Some(known) = self.by_secret.get(&secret) {
            return Ok((self.by_number[known].clone(), None));
        }
        if now_s > terms.expires_unix_s {
            return Err(EnrolError::Expired);
        }
        if uses >= terms.max_uses {
            return Err(EnrolError::UsedUp);
        }
        let number = match number {
            Some(_) if !terms.allows_chosen_number => return Err(EnrolError::NumberNotAllowed),
            Some(number) if self.is_number_used(number) => return Err(EnrolError::NumberTaken),
            Some(number) => number,
            None => {
                // Numbers are never given back, so the search continues where it ended.
                while self.is_number_used(self.next_free) {
                    self.next_free += 1;
                }
                self.next_free
            }
        };
        if number >= self.max_clients {
            return Err(EnrolError::Full);
        }
        let client = ClientId::new(number as usize);
        let member = Member {
            client,
            secret_digest: secret,
            samples: None,
            has_left: false,
            is_revoked: false,
            certificate_key: None,
        };
        self.by_secret.insert(secret, number);
        self.by_number.insert(number, member.clone());
        self.token_uses.insert(terms.id, uses + 1);
        Ok((member, Some(uses + 1)))
    }

    /// Whether a number cannot be given any more.
    fn is_number_used(&self, number: u32) -> bool {
        self.by_number.contains_key(&number) || self.barred.contains(&number)
    }

    /// Bars a number from being given. Returns whether that is new and no client has it.
    pub(crate) fn bar(&mut self, client: ClientId) -> bool {
        !self.by_number.contains_key(&client.number()) && self.barred.insert(client.number())
    }

    /// The member of this number, if the secret is right.
    pub(crate) fn authenticated(&self, number: u32, secret: &[u8]) -> Option<&Member> {
        self.by_number
            .get(&number)
            .filter(|member| constant_time_eq(&member.secret_digest, &secret_digest(secret)))
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&Member> {
        self.by_number.get(&client.number())
    }

    /// Changes a member. Returns it if that made a difference.
    pub(crate) fn change(&mut self, client: ClientId, change: impl FnOnce(&mut Member)) -> Option<Member> {
        let member = self.by_number.get_mut(&client.number())?;
        let before = member.clone();
        change(member);
        (*member != before).then(|| member.clone())
    }

    /// All members, ascending by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.by_number.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { id: [1; 8], expires_unix_s: 100, max_uses: 2, allows_chosen_number: true };

    fn enrol(members: &mut Members, secret: u8, number: Option<u32>) -> Result<u32, EnrolError> {
        members.enrol(&TERMS, 50, &[secret; 32], number).map(|(member, _)| member.client.number())
    }

    fn none(most: u32) -> Members {
        Members::new(Vec::new(), Vec::new(), most)
    }

    #[test]
    fn a_number_that_was_revoked_before_it_was_used_is_never_given() {
        let mut members = none(10);
        assert!(members.bar(ClientId::new(0)) && !members.bar(ClientId::new(0)));
        assert_eq!(enrol(&mut members, 1, Some(0)), Err(EnrolError::NumberTaken));
        assert_eq!(enrol(&mut members, 1, None), Ok(1));
        assert!(!members.bar(ClientId::new(1)), "a client has it");
    }

    #[test]
    fn the_same_secret_is_the_same_client_and_costs_no_use() {
        let mut members = none(10);
        assert_eq!(enrol(&mut members, 1, None), Ok(0));
        assert_eq!(enrol(&mut members, 1, None), Ok(0));
        assert_eq!(enrol(&mut members, 2, None), Ok(1));
        assert_eq!(enrol(&mut members, 3, None), Err(EnrolError::UsedUp));
        assert_eq!(enrol(&mut members, 2, None), Ok(1));
    }

    #[test]
    fn numbers_can_be_chosen_where_the_token_allows_it() {
        let mut members = none(10);
        assert_eq!(enrol(&mut members, 1, Some(10)), Err(EnrolError::Full));
        assert_eq!(enrol(&mut members, 1, Some(7)), Ok(7));
        assert_eq!(enrol(&mut members, 2, Some(7)), Err(EnrolError::NumberTaken));
        assert_eq!(enrol(&mut members, 2, None), Ok(0), "the first free number");
        let plain = Terms { id: [2; 8], allows_chosen_number: false, ..TERMS };
        assert_eq!(members.enrol(&plain, 50, &[3; 32], Some(1)).unwrap_err(), EnrolError::NumberNotAllowed);
        assert_eq!(members.enrol(&plain, 101, &[3; 32], None).unwrap_err(), EnrolError::Expired);
    }

    #[test]
    fn a_wrong_secret_does_not_authenticate() {
        let mut members = none(10);
        enrol(&mut members, 1, None).unwrap();
        assert!(members.authenticated(0, &[1; 32]).is_some());
        assert!(members.authenticated(0, &[2; 32]).is_none());
        assert!(members.authenticated(1, &[1; 32]).is_none());
    }

    #[test]
    fn members_round_trip() {
        let mut members = none(10);
        enrol(&mut members, 1, Some(3)).unwrap();
        let client = ClientId::new(3);
        assert_eq!(members.change(client, |_| {}), None);
        let changed = members.change(client, |member| member.samples = Some(40)).unwrap();
        assert_eq!(Member::from_bytes(&changed.to_bytes()).unwrap(), changed);
        assert!(changed.is_enrolled());
        let bound = Member { certificate_key: Some([7; 32]), ..changed.clone() };
        assert_eq!(Member::from_bytes(&bound.to_bytes()).unwrap(), bound);
        assert!(
            bound.to_bytes().starts_with(&changed.to_bytes()),
            "a member of an earlier version is read unchanged"
        );
        let again = Members::new(vec![changed], vec![([1; 8], 2)], 10);
        assert!(again.authenticated(3, &[1; 32]).is_some());
        assert_eq!(again.token_uses[&[1; 8]], 2);
    }
}
