//! Parcels as bytes: a short head, then all elements in a row, as they are, as halves or compressed.
//!
//! The format: `EBB1`, the element type, whether the rest is compressed, the number of side vectors, the name
//! and length of each, then the elements, little-endian. Parcels may come from an unauthenticated or
//! malicious sender. Every length is therefore checked against its bound before memory is allocated.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;

use bytes::Bytes;
use ebb_round::Parcel;
use half::f16;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

const MAGIC: &[u8; 4] = b"EBB1";

/// The largest head in bytes.
const MAX_HEAD_BYTES: usize = 4096;

/// The smallest window that Zstandard may ask for: our own compressor declares it for the smallest parcel.
const MIN_WINDOW_BYTES: u64 = 128 * 1024;

/// How an element is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ElementType {
    /// Four bytes, exact.
    #[default]
    F32,
    /// Two bytes, rounded to three digits.
    F16,
}

impl ElementType {
    fn bytes(self) -> usize {
        match self {
            ElementType::F32 => 4,
            ElementType::F16 => 2,
        }
    }
}

/// How parcels are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// How elements are encoded.
    pub element_type: ElementType,
    /// Whether the elements are compressed by Zstandard.
    pub zstd: bool,
}

/// A packed parcel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// All bytes.
    pub bytes: Bytes,
    /// The bytes of the elements alone, which records count as payload.
    pub payload_bytes: u64,
}

/// The bounds of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorBounds {
    /// The number of elements of each vector.
    pub vector_len: usize,
    /// The largest number of side vectors.
    pub side_vectors: usize,
}

impl VectorBounds {
    /// The largest size of a packed parcel within these bounds.
    pub fn max_packed_bytes(self) -> u64 {
        // Zstandard adds a few bytes per block to what it cannot compress.
        let elements = 4 * self.vector_len as u64 * (1 + self.side_vectors as u64);
        elements + elements / 1000 + 2 * MAX_HEAD_BYTES as u64
    }
}

/// Why bytes cannot be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnpackError {
    /// The head is not that of a parcel, or names an unknown encoding.
    Head,
    /// They hold more than the bounds allow.
    TooLarge,
    /// They end too early, or continue after the end.
    Length,
    /// The compressed part is not valid Zstandard.
    Compressed,
}

impl fmt::Display for UnpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnpackError::Head => "its head is not that of a packed model",
            UnpackError::TooLarge => "it holds more vectors or longer ones than the model has",
            UnpackError::Length => "its length does not match its head",
            UnpackError::Compressed => "its compressed part cannot be decompressed",
        })
    }
}

/// Packs a parcel.
///
/// # Panics
/// When there are more than 255 side vectors, or a name has more than 255 bytes.
pub fn pack(parcel: &Parcel, packing: Packing) -> Packed {
    let n_side_vectors = u8::try_from(parcel.side_vectors.len()).expect("methods send a few side vectors");
    let mut bytes = MAGIC.to_vec();
    bytes.extend([packing.element_type as u8, u8::from(packing.zstd), n_side_vectors]);
    let vectors = std::iter::once(("", &parcel.model))
        .chain(parcel.side_vectors.iter().map(|(name, values)| (name.as_ref(), values)));
    for (name, values) in vectors.clone() {
        bytes.push(u8::try_from(name.len()).expect("names are short"));
        bytes.extend(name.as_bytes());
        bytes.extend((values.len() as u64).to_le_bytes());
    }
    let head = bytes.len();
    if packing.zstd {
        let mut elements = Vec::new();
        vectors.for_each(|(_, values)| write_vector(values, packing.element_type, &mut elements));
        bytes.extend(compress_to_vec(elements.as_slice(), CompressionLevel::Fastest));
    } else {
        vectors.for_each(|(_, values)| write_vector(values, packing.element_type, &mut bytes));
    }
    Packed { payload_bytes: (bytes.len() - head) as u64, bytes: bytes.into() }
}

/// Unpacks a parcel. Also returns how many bytes its elements took.
pub fn unpack(bytes: &[u8], bounds: VectorBounds) -> Result<(Parcel, u64), UnpackError> {
    let mut rest = bytes;
    if take(&mut rest, 4)? != MAGIC {
        return Err(UnpackError::Head);
    }
    let &[element_type, zstd, n_side_vectors] = take(&mut rest, 3)? else { unreachable!("three were taken") };
    let element_type = match element_type {
        0 => ElementType::F32,
        1 => ElementType::F16,
        _ => return Err(UnpackError::Head),
    };
    if usize::from(n_side_vectors) > bounds.side_vectors {
        return Err(UnpackError::TooLarge);
    }
    let mut names = Vec::new();
    for _ in 0..=n_side_vectors {
        let length = usize::from(take(&mut rest, 1)?[0]);
        let name = std::str::from_utf8(take(&mut rest, length)?).map_err(|_| UnpackError::Head)?;
        let len = u64::from_le_bytes(take(&mut rest, 8)?.try_into().expect("eight were taken"));
        let len =
            usize::try_from(len).ok().filter(|&len| len <= bounds.vector_len).ok_or(UnpackError::TooLarge)?;
        names.push((name, len));
    }
    let payload = rest.len() as u64;
    let elements = names.iter().try_fold(0_usize, |sum, (_, len)| sum.checked_add(*len));
    let wanted = elements
        .and_then(|elements| elements.checked_mul(element_type.bytes()))
        .ok_or(UnpackError::TooLarge)?;
    let plain = match zstd {
        0 => Cow::Borrowed(rest),
        1 => Cow::Owned(decompress(rest, wanted)?),
        _ => return Err(UnpackError::Head),
    };
    if plain.len() != wanted {
        return Err(UnpackError::Length);
    }
    let mut plain = plain.as_ref();
    let mut parcel = Parcel::default();
    for (at, (name, len)) in names.into_iter().enumerate() {
        let values = read_vector(take(&mut plain, len * element_type.bytes())?, element_type);
        if at == 0 {
            if !name.is_empty() {
                return Err(UnpackError::Head);
            }
            parcel.model = values;
        } else if parcel.side_vectors.insert(Cow::Owned(name.to_owned()), values).is_some() {
            return Err(UnpackError::Head);
        }
    }
    Ok((parcel, payload))
}

/// The number of side vectors, as the head states it.
pub(crate) fn n_side_vectors(bytes: &[u8]) -> Option<usize> {
    // The magic bytes, the element type and the compression come before it.
    bytes.get(MAGIC.len() + 2).copied().map(usize::from)
}

/// What packing loses. It is added to the next parcel, so that nothing is lost in the long run.
pub fn rounding_residue(parcel: &Parcel, packing: Packing) -> Parcel {
    let residue = |values: &Vec<f32>| match packing.element_type {
        ElementType::F32 => vec![0.0; values.len()],
        ElementType::F16 => values.iter().map(|&value| rounding_error(value)).collect(),
    };
    Parcel {
        model: residue(&parcel.model),
        side_vectors: parcel
            .side_vectors
            .iter()
            .map(|(name, values)| (name.clone(), residue(values)))
            .collect(),
    }
}

fn rounding_error(value: f32) -> f32 {
    let residue = value - to_f16(value).to_f32();
    // Values that no half is near have no residue.
    if residue.is_finite() { residue } else { 0.0 }
}

/// The nearest half. Values beyond the largest become the largest, because an infinity would spoil the whole
/// update.
fn to_f16(value: f32) -> f16 {
    if value.is_finite() {
        f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
    } else {
        f16::from_f32(value)
    }
}

fn write_vector(values: &[f32], element_type: ElementType, to: &mut Vec<u8>) {
    match element_type {
        ElementType::F32 => write_each(values, f32::to_le_bytes, to),
        ElementType::F16 => write_each(values, |value| to_f16(value).to_le_bytes(), to),
    }
}

/// Writes into one block of memory. Growing by each element takes several times as long.
fn write_each<const N: usize>(values: &[f32], write: impl Fn(f32) -> [u8; N], to: &mut Vec<u8>) {
    let from = to.len();
    to.resize(from + N * values.len(), 0);
    for (place, &value) in to[from..].as_chunks_mut().0.iter_mut().zip(values) {
        *place = write(value);
    }
}

fn read_vector(bytes: &[u8], element_type: ElementType) -> Vec<f32> {
    match element_type {
        ElementType::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        ElementType::F16 => {
            bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()).collect()
        }
    }
}

/// Decompresses to exactly this many bytes. Nothing beyond them is decompressed.
fn decompress(bytes: &[u8], wanted: usize) -> Result<Vec<u8>, UnpackError> {
    // The decoder keeps its whole window in memory. A few kilobytes could otherwise demand as much memory as
    // the sender states.
    let window = (wanted as u64).saturating_mul(2).max(MIN_WINDOW_BYTES);
    let unreadable = |_| UnpackError::Compressed;
    let mut decoder = StreamingDecoder::new_with_max_window_size(bytes, window).map_err(unreadable)?;
    let mut plain = Vec::new();
    let most = (wanted as u64).saturating_add(1);
    decoder.by_ref().take(most).read_to_end(&mut plain).map_err(|_| UnpackError::Compressed)?;
    if decoder.get_ref().is_empty() { Ok(plain) } else { Err(UnpackError::Length) }
}

fn take<'b>(rest: &mut &'b [u8], count: usize) -> Result<&'b [u8], UnpackError> {
    let (head, tail) = rest.split_at_checked(count).ok_or(UnpackError::Length)?;
    *rest = tail;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: VectorBounds = VectorBounds { vector_len: 8, side_vectors: 2 };

    fn parcel() -> Parcel {
        let mut parcel = Parcel::of(vec![1.5, -2.25, 1e-3, 0.1]);
        parcel.side_vectors.insert("control".into(), vec![0.0, 65504.0, -1.0, 3.25]);
        parcel
    }

    fn all() -> [Packing; 4] {
        let packing = |element_type, zstd| Packing { element_type, zstd };
        [
            packing(ElementType::F32, false),
            packing(ElementType::F32, true),
            packing(ElementType::F16, false),
            packing(ElementType::F16, true),
        ]
    }

    #[test]
    fn packing_round_trips() {
        for packing in all() {
            let packed = pack(&parcel(), packing);
            let (back, payload) = unpack(&packed.bytes, BOUNDS).unwrap();
            assert_eq!(payload, packed.payload_bytes);
            match packing.element_type {
                ElementType::F32 => assert_eq!(back, parcel()),
                ElementType::F16 => {
                    assert_eq!(back.model[..2], [1.5, -2.25]);
                    assert_eq!(back.model[3], 0.099_975_586);
                    assert_eq!(back.side_vectors, parcel().side_vectors);
                }
            }
        }
        let plain = pack(&parcel(), Packing::default());
        assert_eq!(plain.payload_bytes, parcel().bytes(), "records count the same as in simulation");
    }

    #[test]
    fn nothing_is_lost_in_the_long_run() {
        let packing = Packing { element_type: ElementType::F16, zstd: false };
        let (mut sent, mut residue) = (0.0_f64, 0.0_f32);
        for _ in 0..1000 {
            let with_rest = Parcel::of(vec![0.1 + residue]);
            let (got, _) = unpack(&pack(&with_rest, packing).bytes, BOUNDS).unwrap();
            sent += f64::from(got.model[0]);
            residue = rounding_residue(&with_rest, packing).model[0];
        }
        assert!((sent - 100.0).abs() < 1e-3, "{sent}; without the residue, 99.976");
    }

    #[test]
    fn numbers_beyond_a_half_do_not_become_infinite() {
        let packing = Packing { element_type: ElementType::F16, zstd: false };
        let huge = Parcel::of(vec![1e9, -1e9]);
        let (got, _) = unpack(&pack(&huge, packing).bytes, BOUNDS).unwrap();
        assert_eq!(got.model, [65504.0, -65504.0]);
        assert_eq!(rounding_residue(&huge, packing).model, [1e9 - 65504.0, 65504.0 - 1e9]);
        let odd = Parcel::of(vec![f32::NAN]);
        assert!(unpack(&pack(&odd, packing).bytes, BOUNDS).unwrap().0.model[0].is_nan());
        assert_eq!(rounding_residue(&odd, packing).model, [0.0]);
    }

    #[test]
    fn every_cut_and_every_addition_is_refused() {
        for packing in all() {
            let bytes = pack(&parcel(), packing).bytes;
            for cut in 0..bytes.len() {
                assert!(unpack(&bytes[..cut], BOUNDS).is_err(), "{packing:?} cut at {cut}");
            }
            let more = [&bytes[..], &[0]].concat();
            assert_eq!(unpack(&more, BOUNDS).unwrap_err(), UnpackError::Length);
        }
    }

    #[test]
    fn more_than_is_allowed_is_refused_before_memory_is_allocated() {
        let bytes = pack(&parcel(), Packing::default()).bytes;
        let check = |elements, n_side_vectors| {
            unpack(&bytes, VectorBounds { vector_len: elements, side_vectors: n_side_vectors }).unwrap_err()
        };
        assert_eq!(check(3, 2), UnpackError::TooLarge);
        assert_eq!(check(8, 0), UnpackError::TooLarge);
        let bomb = compress_to_vec(vec![0_u8; 10_000_000].as_slice(), CompressionLevel::Fastest);
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0, 1, 0, 0]);
        bytes.extend(4_u64.to_le_bytes());
        bytes.extend(bomb);
        assert_eq!(unpack(&bytes, BOUNDS).unwrap_err(), UnpackError::Length);
    }

    #[test]
    fn no_sender_makes_the_decoder_allocate_a_window_of_any_size() {
        let whole = pack(&parcel(), Packing { element_type: ElementType::F32, zstd: true }).bytes.to_vec();
        let frame = whole.windows(4).position(|bytes| bytes == [0x28, 0xb5, 0x2f, 0xfd]).unwrap();
        // Two to the power of ten plus the upper five bits.
        for (log, taken) in [(17, true), (18, false), (27, false), (40, false)] {
            let mut bytes = whole.clone();
            bytes[frame + 5] = (log - 10) << 3;
            assert_eq!(unpack(&bytes, BOUNDS).is_ok(), taken, "a window of 2^{log}");
        }
    }

    #[test]
    fn bounds_say_how_large_a_packed_parcel_can_be() {
        for packing in all() {
            let parcel =
                Parcel::of((0..5000_u32).map(|at| f32::from_bits(at.wrapping_mul(2_654_435_761))).collect());
            let packed = pack(&parcel, packing);
            assert!(
                packed.bytes.len() as u64
                    <= VectorBounds { vector_len: 5000, side_vectors: 0 }.max_packed_bytes(),
                "{packing:?}"
            );
        }
    }
}
