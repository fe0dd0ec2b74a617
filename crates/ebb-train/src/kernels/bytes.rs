//! Scales bytes to floats: the same bits on every path, for no multiply-add is fused.

use super::{KernelPath, Simd, by_path};

/// `byte * scale + offset`; scales and offsets repeat with the period of their length.
pub(crate) fn scale(path: KernelPath, bytes: &[u8], scales: &[f32], offsets: &[f32], to: &mut [f32]) {
    assert!(bytes.len() == to.len() && scales.len() == offsets.len() && !scales.is_empty(), "lengths");
    // SAFETY: a path is only chosen where its unit exists.
    unsafe { scale_raw(path, bytes, scales, offsets, to) }
}

by_path! {
    fn scale_raw(bytes: &[u8], scales: &[f32], offsets: &[f32], to: &mut [f32]) = scale_on;
}

/// Plain loops, which the compiler vectorises for the unit that it compiles for.
#[inline(always)]
unsafe fn scale_on<S: Simd>(bytes: &[u8], scales: &[f32], offsets: &[f32], to: &mut [f32]) {
    if let ([scale], [offset]) = (scales, offsets) {
        for at in 0..bytes.len() {
            to[at] = f32::from(bytes[at]) * scale + offset;
        }
        return;
    }
    if let (Ok(scales), Ok(offsets)) = (<&[f32; COLOUR_PERIOD]>::try_from(scales), offsets.try_into()) {
        return scale_colours(bytes, scales, offsets, to);
    }
    for (bytes, to) in bytes.chunks(scales.len()).zip(to.chunks_mut(scales.len())) {
        for at in 0..bytes.len() {
            to[at] = f32::from(bytes[at]) * scales[at] + offsets[at];
        }
    }
}

/// Sixteen pixels of three channels: scales and offsets stay in registers.
const COLOUR_PERIOD: usize = 48;

#[inline(always)]
fn scale_colours(
    bytes: &[u8],
    scales: &[f32; COLOUR_PERIOD],
    offsets: &[f32; COLOUR_PERIOD],
    to: &mut [f32],
) {
    let (whole, rest) = bytes.as_chunks::<COLOUR_PERIOD>();
    let (to_whole, to_rest) = to.as_chunks_mut::<COLOUR_PERIOD>();
    for (bytes, to) in whole.iter().zip(to_whole) {
        for at in 0..COLOUR_PERIOD {
            to[at] = f32::from(bytes[at]) * scales[at] + offsets[at];
        }
    }
    for at in 0..rest.len() {
        to_rest[at] = f32::from(rest[at]) * scales[at] + offsets[at];
    }
}
