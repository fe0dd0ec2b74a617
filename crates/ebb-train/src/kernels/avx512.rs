//! Sixteen floats at once.
#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY, for all blocks here: the trait's caller promises that the unit exists and that pointers are valid.
impl Simd for Avx512 {
    const LANES: usize = 16;
    const MANY: bool = true;
    type V = __m512;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sums(v: &[__m512]) -> __m512 {
        // SAFETY: see above.
        unsafe {
            // Two vectors interleaved and added, then four, then the quarters brought together.
            let two =
                |a: __m512, b: __m512| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let four = |at: usize| {
                let (ab, cd) = (two(v[at], v[at + 1]), two(v[at + 2], v[at + 3]));
                _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xEE>(ab, cd))
            };
            let eight = |a: __m512, b: __m512| {
                _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b))
            };
            let (low, high) = (eight(four(0), four(4)), eight(four(8), four(12)));
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(low, high), _mm512_shuffle_f32x4::<0xDD>(low, high))
        }
    }
}
