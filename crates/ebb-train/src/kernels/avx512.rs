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
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn where_greater(a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), no, yes) }
    }

    #[inline(always)]
    unsafe fn greater(a: __m512, b: __m512) -> u32 {
        // SAFETY: see above.
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)) }
    }

    #[inline(always)]
    unsafe fn largest(vector: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(vector) }
    }

    #[inline(always)]
    unsafe fn total(vector: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_ps(vector) }
    }

    #[inline(always)]
    unsafe fn times_power(value: __m512, shifted: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            let power = _mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23));
            _mm512_mul_ps(value, _mm512_castsi512_ps(power))
        }
    }

    #[inline(always)]
    unsafe fn sums(v: &[__m512]) -> __m512 {
        // SAFETY: see above.
        unsafe {
            // Two vectors interleaved and added, then four, then the quarters brought together. No closures: they
            // would be compiled without the unit.
            let mut fours = [_mm512_setzero_ps(); 4];
            for at in 0..4 {
                let (a, b, c, d) = (v[4 * at], v[4 * at + 1], v[4 * at + 2], v[4 * at + 3]);
                let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                fours[at] =
                    _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xEE>(ab, cd));
            }
            let [a, b, c, d] = fours;
            let low = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
            let high = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(low, high), _mm512_shuffle_f32x4::<0xDD>(low, high))
        }
    }
}
