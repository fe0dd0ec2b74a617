//! Content by the digest of its bytes.

use std::fmt;

use ebb_round::Parcel;
use ring::digest::{Context, SHA256, digest};

/// The SHA-256 of a content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Of the numbers of a model and of what travels beside it, however they are packed.
    pub(crate) fn of_parcel(parcel: &Parcel) -> Digest {
        let mut context = Context::new(&SHA256);
        let sides = parcel.side.iter().map(|(name, values)| (name.as_ref(), values));
        for (name, values) in std::iter::once(("", &parcel.model)).chain(sides) {
            context.update(&(name.len() as u64).to_le_bytes());
            context.update(name.as_bytes());
            context.update(&(values.len() as u64).to_le_bytes());
            for block in values.chunks(1024) {
                let bytes: Vec<u8> = block.iter().flat_map(|value| value.to_le_bytes()).collect();
                context.update(&bytes);
            }
        }
        Digest(context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// As it came over the wire, if it has the right length.
    pub fn read(bytes: &[u8]) -> Option<Digest> {
        bytes.try_into().ok().map(Digest)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
