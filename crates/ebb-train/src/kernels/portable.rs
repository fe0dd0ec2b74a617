//! The path that runs everywhere: eight floats in an array.

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 8;

impl Simd for Portable {
    const LANES: usize = LANES;
    const HAS_32_REGISTERS: bool = false;
    type Narrow = Portable;
    const HAS_NARROW: bool = false;
    type V = [f32; LANES];

    #[inline(always)]
    unsafe fn splat(value: f32) -> [f32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; LANES] {
        // SAFETY: the caller promises LANES floats; an array of floats has their alignment.
        unsafe { from.cast::<[f32; LANES]>().read() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: [f32; LANES]) {
        // SAFETY: as for `load`.
        unsafe { to.cast::<[f32; LANES]>().write(value) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }

    #[inline(always)]
    unsafe fn add(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    unsafe fn mul(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    unsafe fn div(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|lane| a[lane] / b[lane])
    }

    #[inline(always)]
    unsafe fn max(a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    unsafe fn select_greater(
        a: [f32; LANES],
        b: [f32; LANES],
        yes: [f32; LANES],
        no: [f32; LANES],
    ) -> [f32; LANES] {
        std::array::from_fn(|lane| if a[lane] > b[lane] { yes[lane] } else { no[lane] })
    }

    #[inline(always)]
    unsafe fn greater_mask(a: [f32; LANES], b: [f32; LANES]) -> u32 {
        (0..LANES).fold(0, |bits, lane| bits | u32::from(a[lane] > b[lane]) << lane)
    }

    #[inline(always)]
    unsafe fn horizontal_max(vector: [f32; LANES]) -> f32 {
        vector.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }

    #[inline(always)]
    unsafe fn horizontal_sum(vector: [f32; LANES]) -> f32 {
        vector.iter().sum()
    }

    #[inline(always)]
    unsafe fn scale_by_power_of_two(value: [f32; LANES], shifted: [f32; LANES]) -> [f32; LANES] {
        std::array::from_fn(|lane| {
            value[lane] * f32::from_bits((shifted[lane].to_bits() << 23).wrapping_add(127 << 23))
        })
    }

    #[inline(always)]
    unsafe fn horizontal_sums(vectors: &[[f32; LANES]]) -> [f32; LANES] {
        std::array::from_fn(|lane| vectors[lane].iter().sum())
    }
}
