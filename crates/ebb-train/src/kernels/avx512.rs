//! The AVX-512 path: sixteen floats at once.
#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY, for all blocks here: the trait's caller promises that the unit exists and that pointers are valid.
impl Simd for Avx512 {
    const LANES: usize = 16;
    const HAS_32_REGISTERS: bool = true;
    type Narrow = super::avx2::Avx2;
    const HAS_NARROW: bool = true;
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
    unsafe fn select_greater(a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), no, yes) }
    }

    #[inline(always)]
    unsafe fn greater_mask(a: __m512, b: __m512) -> u32 {
        // SAFETY: see above.
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)) }
    }

    #[inline(always)]
    unsafe fn horizontal_max(vector: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(vector) }
    }

    #[inline(always)]
    unsafe fn horizontal_sum(vector: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_ps(vector) }
    }

    #[inline(always)]
    unsafe fn scale_by_power_of_two(value: __m512, shifted: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            let power = _mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23));
            _mm512_mul_ps(value, _mm512_castsi512_ps(power))
        }
    }

    #[inline(always)]
    unsafe fn horizontal_sums(v: &[__m512]) -> __m512 {
        // SAFETY: see above.
        unsafe {
            // Two vectors are interleaved and added, then four, then the quarters are brought together.
            // Closures are avoided: they would be compiled without the unit.
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

/// Appends the active outputs of a block to the lists of its channels; whole vectors are written there.
///
/// # Safety
///
/// The unit exists; rows are valid for 16 numbers, lists for 16 beyond their counts.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
pub(super) unsafe fn list_active(block: &super::conv::ActiveBlock, counts: &mut [usize]) {
    // SAFETY: as promised by the caller.
    unsafe {
        let (mut grads, mut argmax) =
            ([_mm512_setzero_ps(); 16], [_mm512_castsi512_ps(_mm512_set1_epi32(-1)); 16]);
        for place in 0..block.n_places {
            grads[place] = _mm512_loadu_ps(block.output_grads.add(place * block.place_stride));
            argmax[place] = _mm512_loadu_ps(block.argmax.add(place * block.place_stride).cast());
        }
        let (grads, argmax) = (transposed(grads), transposed(argmax));
        let corners = _mm512_loadu_si512(block.corners.as_ptr().cast());
        let corners = _mm512_add_epi32(corners, _mm512_set1_epi32(block.sample as i32));
        let offsets = _mm512_loadu_si512(block.offsets.as_ptr().cast());
        for (channel, count) in counts.iter_mut().enumerate() {
            let window_places = _mm512_castps_si512(argmax[channel]);
            let is_active = _mm512_cmpge_epi32_mask(window_places, _mm512_setzero_si512());
            let from = _mm512_add_epi32(corners, _mm512_permutexvar_epi32(window_places, offsets));
            let at = channel * block.capacity + *count;
            // The vector is packed in a register and stored whole: packing into memory takes many times as
            // long.
            _mm512_storeu_si512(
                block.input_offsets.add(at).cast(),
                _mm512_maskz_compress_epi32(is_active, from),
            );
            _mm512_storeu_ps(block.listed_grads.add(at), _mm512_maskz_compress_ps(is_active, grads[channel]));
            *count += is_active.count_ones() as usize;
        }
    }
}

/// The transposed 16 x 16 matrix.
#[inline(always)]
unsafe fn transposed(rows: [__m512; 16]) -> [__m512; 16] {
    // SAFETY: the caller promises that the unit exists.
    unsafe {
        let mut r = rows;
        let mut t = rows;
        for at in (0..16).step_by(2) {
            t[at] = _mm512_unpacklo_ps(r[at], r[at + 1]);
            t[at + 1] = _mm512_unpackhi_ps(r[at], r[at + 1]);
        }
        for at in (0..16).step_by(4) {
            for n in 0..2 {
                let (a, b) = (_mm512_castps_pd(t[at + n]), _mm512_castps_pd(t[at + n + 2]));
                r[at + 2 * n] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                r[at + 2 * n + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
        for at in (0..16).step_by(8) {
            for n in 0..4 {
                t[at + n] = _mm512_shuffle_f32x4::<0x88>(r[at + n], r[at + n + 4]);
                t[at + n + 4] = _mm512_shuffle_f32x4::<0xDD>(r[at + n], r[at + n + 4]);
            }
        }
        for n in 0..8 {
            r[n] = _mm512_shuffle_f32x4::<0x88>(t[n], t[n + 8]);
            r[n + 8] = _mm512_shuffle_f32x4::<0xDD>(t[n], t[n + 8]);
        }
        r
    }
}
