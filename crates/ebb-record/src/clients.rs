//! Sets of clients in a row: a list, ranges or, in large fleets, a bitset.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ebb_round::{Bits, Census, ClientId};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// Above this many enrolled clients, sets may be written as bitsets, and stand-ins are only counted.
pub(crate) const MANY_CLIENTS: usize = 4096;

/// A set is written as a bitset if it has more than 1/32 of the clients ever enrolled.
const MIN_DENSITY_INVERSE: usize = 32;

/// A bitset: bit `i`, counted from the lowest bit of the first byte, is client `i`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bitset(Vec<u8>);

impl Bitset {
    fn of(bits: &Bits) -> Self {
        Bitset(bits.words().iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    fn count(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    fn members(&self) -> Vec<u32> {
        let mut members = Vec::with_capacity(self.count());
        for (at, &byte) in self.0.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            members.extend((0..8).filter(|bit| byte >> bit & 1 == 1).map(|bit| to_u32(at * 8 + bit)));
        }
        members
    }
}

impl Serialize for Bitset {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bitset {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Bitset;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bits in base64")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bitset, E> {
                BASE64.decode(text).map(Bitset).map_err(E::custom)
            }
        }
        from.deserialize_str(Text)
    }
}

/// A set of clients as a list or as a bitset.
pub(crate) type ListOrBits = (Option<Vec<u32>>, Option<Bitset>);

/// The clients that are up.
pub(crate) fn up(census: &Census) -> ListOrBits {
    if is_written_as_bits(census.up().count(), census.len()) {
        (None, Some(Bitset::of(census.up())))
    } else {
        (Some(census.up().iter().map(to_u32).collect()), None)
    }
}

/// The busy clients. Both forms are `None` if there are none.
pub(crate) fn busy(census: &Census) -> ListOrBits {
    if census.busy().count() == 0 {
        (None, None)
    } else if is_written_as_bits(census.busy().count(), census.len()) {
        (None, Some(Bitset::of(census.busy())))
    } else {
        (Some(census.busy().iter().map(to_u32).collect()), None)
    }
}

/// A set of clients in a fleet of `n_clients`.
pub(crate) fn list_or_bits(
    clients: &mut dyn ExactSizeIterator<Item = ClientId>,
    n_clients: usize,
) -> ListOrBits {
    if is_written_as_bits(clients.len(), n_clients) {
        let mut bits = Bits::new(n_clients);
        clients.for_each(|client| bits.set(client.idx(), true));
        (None, Some(Bitset::of(&bits)))
    } else {
        (Some(clients.map(ClientId::number).collect()), None)
    }
}

fn is_written_as_bits(n_members: usize, n_clients: usize) -> bool {
    n_clients > MANY_CLIENTS && n_members > n_clients / MIN_DENSITY_INVERSE
}

/// The clients of a set, ascending.
pub(crate) fn members(list: &Option<Vec<u32>>, bits: &Option<Bitset>) -> Vec<u32> {
    list.clone().or_else(|| bits.as_ref().map(Bitset::members)).unwrap_or_default()
}

/// The number of clients in a set.
pub(crate) fn n_members(list: &Option<Vec<u32>>, bits: &Option<Bitset>) -> usize {
    list.as_ref().map(Vec::len).or_else(|| bits.as_ref().map(Bitset::count)).unwrap_or_default()
}

/// Ascending clients as ranges of first and last number.
pub(crate) fn id_ranges(clients: &[ClientId]) -> Vec<[u32; 2]> {
    clients
        .chunk_by(|one, next| one.number() + 1 == next.number())
        .map(|range| [range[0].number(), range[range.len() - 1].number()])
        .collect()
}

/// A number of clients, or the number of a client, as the record has it.
pub(crate) fn to_u32(clients: usize) -> u32 {
    u32::try_from(clients).expect("fewer than 2^32 clients")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_bit_of_the_first_byte_is_client_0() {
        let mut bits = Bits::new(70);
        [0, 9, 69].iter().for_each(|&idx| bits.set(idx, true));
        let set = Bitset::of(&bits);
        assert_eq!(set.0[..2], [1, 2]);
        assert_eq!((set.0.len(), set.members()), (16, vec![0, 9, 69]));
    }
}
