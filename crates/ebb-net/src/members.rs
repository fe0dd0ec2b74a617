//! Who belongs to the fleet: numbers given once, secrets kept as digests, and who may not come any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ebb_round::{ClientId, Loader, Saver, StateError};

use crate::tokens::{Terms, kept, same};

/// One client that enrolled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) client: ClientId,
    /// The digest of its secret.
    pub(crate) secret: [u8; 32],
    /// How many samples it holds, as it last said; none until it was there once.
    pub(crate) samples: Option<u32>,
    /// It said that it leaves for good, and did not come back.
    pub(crate) left: bool,
    /// It may not come any more.
    pub(crate) revoked: bool,
    /// The digest of the key in its certificate: with another it does not come in. None until it showed one.
    pub(crate) certificate: Option<[u8; 32]>,
}

impl Member {
    /// Whether it counts as one of the run.
    pub(crate) fn is_in(&self) -> bool {
        self.samples.is_some() && !self.left && !self.revoked
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut to = Saver::new();
        to.u64("client", u64::from(self.client.number()));
        to.bytes("secret", &self.secret);
        to.u64("known", u64::from(self.samples.is_some()));
        to.u64("samples", u64::from(self.samples.unwrap_or(0)));
        to.u64("left", u64::from(self.left));
        to.u64("revoked", u64::from(self.revoked));
        // Members of earlier versions, and of servers that ask for no certificates, have none.
        if let Some(certificate) = &self.certificate {
            to.bytes("certificate", certificate);
        }
        to.finish()
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Member, StateError> {
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
        Ok(Member { client, secret, samples, left, revoked, certificate })
    }
}

/// Why a client cannot become a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotEnrolled {
    /// The token's time is over.
    Expired,
    /// As many clients as it allows have enrolled with it.
    UsedUp,
    /// It does not let clients choose their numbers.
    NoNumbers,
    /// Another client has the number.
    NumberTaken,
    /// The number is beyond those there are, or all are given.
    Full,
}

/// Everybody who ever enrolled.
#[derive(Debug, Default)]
pub(crate) struct Members {
    of: BTreeMap<u32, Member>,
    by_secret: HashMap<[u8; 32], u32>,
    token_uses: HashMap<[u8; 8], u32>,
    most: u32,
    /// All numbers below are given.
    free: u32,
    /// Numbers that nobody may have, though nobody has.
    barred: BTreeSet<u32>,
}

/// A secret has at least so many bytes.
pub(crate) const LEAST_SECRET: usize = 16;

impl Members {
    pub(crate) fn new(members: Vec<Member>, token_uses: Vec<([u8; 8], u32)>, most: u32) -> Members {
        let by_secret = members.iter().map(|member| (member.secret, member.client.number())).collect();
        let of = members.into_iter().map(|member| (member.client.number(), member)).collect();
        Members {
            of,
            by_secret,
            token_uses: token_uses.into_iter().collect(),
            most,
            free: 0,
            barred: BTreeSet::new(),
        }
    }

    /// Makes a client a member: returns it, and how often the token has been used now. The same secret is the same client,
    /// costs no use and changes nothing: then there is no such number.
    pub(crate) fn enrol(
        &mut self,
        terms: &Terms,
        now_s: u64,
        secret: &[u8],
        number: Option<u32>,
    ) -> Result<(Member, Option<u32>), NotEnrolled> {
        let secret = kept(secret);
        let uses = self.token_uses.get(&terms.id).copied().unwrap_or(0);
        if let Some(known) = self.by_secret.get(&secret) {
            return Ok((self.of[known].clone(), None));
        }
        if now_s > terms.until_s {
            return Err(NotEnrolled::Expired);
        }
        if uses >= terms.uses {
            return Err(NotEnrolled::UsedUp);
        }
        let number = match number {
            Some(_) if !terms.numbers => return Err(NotEnrolled::NoNumbers),
            Some(number) if self.is_given(number) => return Err(NotEnrolled::NumberTaken),
            Some(number) => number,
            None => {
                // Numbers are never given back, so the search goes on where it ended.
                while self.is_given(self.free) {
                    self.free += 1;
                }
                self.free
            }
        };
        if number >= self.most {
            return Err(NotEnrolled::Full);
        }
        let client = ClientId::new(number as usize);
        let member = Member { client, secret, samples: None, left: false, revoked: false, certificate: None };
        self.by_secret.insert(secret, number);
        self.of.insert(number, member.clone());
        self.token_uses.insert(terms.id, uses + 1);
        Ok((member, Some(uses + 1)))
    }

    /// Whether a number cannot be given any more.
    fn is_given(&self, number: u32) -> bool {
        self.of.contains_key(&number) || self.barred.contains(&number)
    }

    /// Nobody will get this number; returns whether that is new, and nobody has it.
    pub(crate) fn bar(&mut self, client: ClientId) -> bool {
        !self.of.contains_key(&client.number()) && self.barred.insert(client.number())
    }

    /// The member of this number, if it knows the secret.
    pub(crate) fn proven(&self, number: u32, secret: &[u8]) -> Option<&Member> {
        self.of.get(&number).filter(|member| same(&member.secret, &kept(secret)))
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&Member> {
        self.of.get(&client.number())
    }

    /// Changes what is known of a member; returns it if that made a difference.
    pub(crate) fn change(&mut self, client: ClientId, change: impl FnOnce(&mut Member)) -> Option<Member> {
        let member = self.of.get_mut(&client.number())?;
        let before = member.clone();
        change(member);
        (*member != before).then(|| member.clone())
    }

    /// All of them, ascending by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.of.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { id: [1; 8], until_s: 100, uses: 2, numbers: true };

    fn enrol(members: &mut Members, secret: u8, number: Option<u32>) -> Result<u32, NotEnrolled> {
        members.enrol(&TERMS, 50, &[secret; 32], number).map(|(member, _)| member.client.number())
    }

    fn none(most: u32) -> Members {
        Members::new(Vec::new(), Vec::new(), most)
    }

    #[test]
    fn nobody_gets_a_number_that_was_shut_out_before_anybody_had_it() {
        let mut members = none(10);
        assert!(members.bar(ClientId::new(0)) && !members.bar(ClientId::new(0)));
        assert_eq!(enrol(&mut members, 1, Some(0)), Err(NotEnrolled::NumberTaken));
        assert_eq!(enrol(&mut members, 1, None), Ok(1));
        assert!(!members.bar(ClientId::new(1)), "somebody has it");
    }

    #[test]
    fn the_same_secret_is_the_same_client_and_costs_no_use() {
        let mut members = none(10);
        assert_eq!(enrol(&mut members, 1, None), Ok(0));
        assert_eq!(enrol(&mut members, 1, None), Ok(0));
        assert_eq!(enrol(&mut members, 2, None), Ok(1));
        assert_eq!(enrol(&mut members, 3, None), Err(NotEnrolled::UsedUp));
        assert_eq!(enrol(&mut members, 2, None), Ok(1));
    }

    #[test]
    fn numbers_can_be_chosen_where_the_token_allows_it() {
        let mut members = none(10);
        assert_eq!(enrol(&mut members, 1, Some(10)), Err(NotEnrolled::Full));
        assert_eq!(enrol(&mut members, 1, Some(7)), Ok(7));
        assert_eq!(enrol(&mut members, 2, Some(7)), Err(NotEnrolled::NumberTaken));
        assert_eq!(enrol(&mut members, 2, None), Ok(0), "the first that is free");
        let plain = Terms { id: [2; 8], numbers: false, ..TERMS };
        assert_eq!(members.enrol(&plain, 50, &[3; 32], Some(1)).unwrap_err(), NotEnrolled::NoNumbers);
        assert_eq!(members.enrol(&plain, 101, &[3; 32], None).unwrap_err(), NotEnrolled::Expired);
    }

    #[test]
    fn whoever_does_not_know_the_secret_is_nobody() {
        let mut members = none(10);
        enrol(&mut members, 1, None).unwrap();
        assert!(members.proven(0, &[1; 32]).is_some());
        assert!(members.proven(0, &[2; 32]).is_none());
        assert!(members.proven(1, &[1; 32]).is_none());
    }

    #[test]
    fn what_is_kept_of_a_member_comes_back() {
        let mut members = none(10);
        enrol(&mut members, 1, Some(3)).unwrap();
        let client = ClientId::new(3);
        assert_eq!(members.change(client, |_| {}), None);
        let changed = members.change(client, |member| member.samples = Some(40)).unwrap();
        assert_eq!(Member::read(&changed.bytes()).unwrap(), changed);
        assert!(changed.is_in());
        let bound = Member { certificate: Some([7; 32]), ..changed.clone() };
        assert_eq!(Member::read(&bound.bytes()).unwrap(), bound);
        assert!(bound.bytes().starts_with(&changed.bytes()), "one of an earlier version is read as it was");
        let again = Members::new(vec![changed], vec![([1; 8], 2)], 10);
        assert!(again.proven(3, &[1; 32]).is_some());
        assert_eq!(again.token_uses[&[1; 8]], 2);
    }
}
