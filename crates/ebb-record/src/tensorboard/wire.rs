//! The bytes of an event file: Protocol Buffers messages in frames with checksums.

use std::io::{self, Write};

use crc::{CRC_32_ISCSI, Crc};

/// A message, built field by field.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Adds an unsigned integer.
    pub(super) fn whole(mut self, field: u8, number: u64) -> Self {
        self.key(field, 0);
        self.varint(number);
        self
    }

    /// Adds a number in double precision.
    pub(super) fn double(mut self, field: u8, number: f64) -> Self {
        self.key(field, 1);
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds a number in single precision.
    pub(super) fn single(mut self, field: u8, number: f32) -> Self {
        self.key(field, 5);
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds a text.
    pub(super) fn text(self, field: u8, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    /// Adds a message within this one.
    pub(super) fn message(self, field: u8, message: &Message) -> Self {
        self.bytes(field, &message.0)
    }

    /// Writes the message in a frame: length, checksum of the length, message, checksum of the message.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let length = (self.0.len() as u64).to_le_bytes();
        to.write_all(&length)?;
        to.write_all(&masked_crc(&length).to_le_bytes())?;
        to.write_all(&self.0)?;
        to.write_all(&masked_crc(&self.0).to_le_bytes())
    }

    fn bytes(mut self, field: u8, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn key(&mut self, field: u8, kind: u8) {
        self.varint(u64::from(field) << 3 | u64::from(kind));
    }

    /// Seven bits per byte, the lowest first. The eighth bit marks that more follow.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// The CRC-32C, rotated and offset. A plain CRC of data that contains its own CRC would be weak.
pub(super) fn masked_crc(bytes: &[u8]) -> u32 {
    CRC32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(CRC32C.checksum(b"123456789"), 0xe306_9283);
        // From RFC 3720, B.4: 32 bytes of zeros, and those from 0 to 31.
        assert_eq!(CRC32C.checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(CRC32C.checksum(&std::array::from_fn::<u8, 32, _>(|at| at as u8)), 0x46dd_794e);
    }

    #[test]
    fn the_mask_by_hand() {
        // 0xe3069283 rotated right by 15 bits is 0x2507c60d.
        assert_eq!(masked_crc(b"123456789"), 0x2507_c60d + 0xa282_ead8);
        // The sum may overflow. The checksum of nothing is 0, that of zeros 0x8a9136aa.
        assert_eq!(masked_crc(b""), 0xa282_ead8);
        assert_eq!(masked_crc(&[0; 32]), 0x6d55_1522_u32.wrapping_add(0xa282_ead8));
    }

    #[test]
    fn fields_by_hand() {
        let check = |message: Message, expected: &[u8]| assert_eq!(message.0, expected);
        let new = Message::default;
        check(new().whole(2, 0), &[0x10, 0]);
        check(new().whole(2, 127), &[0x10, 0x7f]);
        check(new().whole(2, 128), &[0x10, 0x80, 0x01]);
        check(new().whole(2, 300), &[0x10, 0xac, 0x02]);
        check(new().whole(2, u64::MAX), &[0x10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        check(new().double(1, 1.0), &[0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        check(new().single(2, 1.0), &[0x15, 0, 0, 0x80, 0x3f]);
        check(new().text(3, "ab").message(5, &new().whole(1, 1)), &[0x1a, 2, b'a', b'b', 0x2a, 2, 8, 1]);
    }

    #[test]
    fn a_frame_by_hand() {
        let mut bytes = Vec::new();
        Message(b"123456789".to_vec()).write(&mut bytes).unwrap();
        assert_eq!(bytes[..8], [9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..12], masked_crc(&bytes[..8]).to_le_bytes());
        assert_eq!(bytes[12..21], *b"123456789");
        assert_eq!(bytes[21..], 0xc78a_b0e5_u32.to_le_bytes());
    }
}
