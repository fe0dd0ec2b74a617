//! Digests by which content is addressed.

use std::fmt;

use ring::digest::{SHA256, digest};

/// The SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// The digest in these bytes, if their number is right.
    pub fn from_slice(bytes: &[u8]) -> Option<Digest> {
        bytes.try_into().ok().map(Digest)
    }

    /// The bytes of the digest.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
