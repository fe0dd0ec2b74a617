//! The AVX2 path: eight floats at once, with fused multiply-add.
#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

// SAFETY, for all blocks here: the trait's caller promises that the unit exists and that pointers are valid.
impl Simd for Avx2 {
    const LANES: usize = 8;
    const HAS_32_REGISTERS: bool = false;
    type Narrow = Avx2;
    const HAS_NARROW: bool = false;
    type V = __m256;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m256) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn select_greater(a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) }
    }

    #[inline(always)]
    unsafe fn greater_mask(a: __m256, b: __m256) -> u32 {
        // SAFETY: see above.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) as u32 }
    }

    #[inline(always)]
    unsafe fn horizontal_max(vector: __m256) -> f32 {
        let mut lanes = [0.0_f32; 8];
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), vector) }
        let mut largest = lanes[0];
        for lane in lanes {
            largest = if lane > largest { lane } else { largest };
        }
        largest
    }

    #[inline(always)]
    unsafe fn horizontal_sum(vector: __m256) -> f32 {
        // SAFETY: see above.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn scale_by_power_of_two(value: __m256, shifted: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
            let power = _mm256_add_epi32(exponent, _mm256_set1_epi32(127 << 23));
            _mm256_mul_ps(value, _mm256_castsi256_ps(power))
        }
    }

    #[inline(always)]
    unsafe fn horizontal_sums(v: &[__m256]) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let (a, b) = (_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
            let (c, d) = (_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
            // Each half now holds the half-sums of four vectors.
            let (low, high) = (_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let crossed = _mm256_permute2f128_ps::<0x21>(low, high);
            _mm256_add_ps(_mm256_blend_ps::<0xF0>(low, high), crossed)
        }
    }
}
