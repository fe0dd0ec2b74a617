//! The arithmetic of training: kernels written once over a vector unit, compiled for each.
//!
//! A kernel is generic over [`Simd`]; [`KernelPath`] selects the unit. The portable path runs everywhere and
//! is the reference for the others. All buffers have [`SLACK`] floats after their end, and channels are
//! padded to [`PAD`], so that whole vectors may be read and written.
#![allow(unsafe_code, reason = "raw vectors and pointers, behind functions that check their slices")]
#![allow(clippy::needless_range_loop, reason = "tiles are indexed as the arithmetic is")]
#![allow(clippy::too_many_arguments, reason = "a kernel takes its buffers and sizes one by one")]

pub(crate) mod activations;
mod avx2;
mod avx512;
pub(crate) mod bytes;
pub(crate) mod conv;
pub(crate) mod dense;
pub(crate) mod loss;
pub(crate) mod lstm;
mod portable;

use std::sync::OnceLock;

/// Channels and columns are padded to a multiple of this, on every path.
pub(crate) const PAD: usize = 16;

/// Floats that every buffer has beyond its end.
pub(crate) const SLACK: usize = 64;

/// `count` rounded up to whole vectors.
pub(crate) fn padded(count: usize) -> usize {
    count.next_multiple_of(PAD)
}

/// A buffer of zeros with slack.
pub(crate) fn buffer(len: usize) -> Vec<f32> {
    vec![0.0; len + SLACK]
}

/// A vector unit that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPath {
    /// 16 floats at once.
    Avx512,
    /// 8 floats at once, with fused multiply-add.
    Avx2,
    /// Plain code, as the compiler vectorises it.
    Portable,
}

impl KernelPath {
    /// Its name in records and in `EBBFLOW_KERNELS`.
    pub fn name(self) -> &'static str {
        match self {
            KernelPath::Avx512 => "avx512",
            KernelPath::Avx2 => "avx2",
            KernelPath::Portable => "portable",
        }
    }

    /// Every path that this machine can run, the fastest first.
    pub fn available() -> Vec<KernelPath> {
        [KernelPath::Avx512, KernelPath::Avx2, KernelPath::Portable]
            .into_iter()
            .filter(|path| path.runs_here())
            .collect()
    }

    /// The path to use: the fastest, or the one that `EBBFLOW_KERNELS` names. The variable is read once.
    pub fn chosen() -> Result<KernelPath, String> {
        static CHOSEN: OnceLock<Result<KernelPath, String>> = OnceLock::new();
        CHOSEN.get_or_init(|| choose(std::env::var("EBBFLOW_KERNELS").ok().as_deref())).clone()
    }

    #[cfg(target_arch = "x86_64")]
    fn runs_here(self) -> bool {
        match self {
            KernelPath::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
                    && KernelPath::Avx2.runs_here()
            }
            KernelPath::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            KernelPath::Portable => true,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn runs_here(self) -> bool {
        self == KernelPath::Portable
    }
}

fn choose(requested: Option<&str>) -> Result<KernelPath, String> {
    let available = KernelPath::available();
    let Some(requested) = requested.filter(|requested| !requested.is_empty()) else {
        return Ok(available[0]);
    };
    let names: Vec<_> = available.iter().map(|path| path.name()).collect();
    available.iter().copied().find(|path| path.name() == requested).ok_or_else(|| {
        format!(
            "EBBFLOW_KERNELS={requested}: this machine does not have it; give one of: {}",
            names.join(", ")
        )
    })
}

/// A vector unit.
///
/// # Safety
/// The functions may only be called where the unit exists; pointers must be valid for `LANES` floats.
pub(crate) trait Simd: Copy {
    /// Floats in a vector.
    const LANES: usize;
    /// Whether there are 32 registers instead of 16.
    const HAS_32_REGISTERS: bool;
    /// A unit of half the lanes that takes half the time, or this one if there is none.
    type Narrow: Simd;
    /// Whether there is a narrower one.
    const HAS_NARROW: bool;
    /// A vector.
    type V: Copy;
    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, value: Self::V);
    /// `a * b + c`.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// The larger, and `b` where either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Lane by lane, `yes` where `a > b` and `no` elsewhere.
    unsafe fn select_greater(a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// One bit per lane, the first lowest: whether `a > b`.
    unsafe fn greater_mask(a: Self::V, b: Self::V) -> u32;
    /// The largest lane.
    unsafe fn horizontal_max(vector: Self::V) -> f32;
    /// The sum of all lanes.
    unsafe fn horizontal_sum(vector: Self::V) -> f32;
    /// `value * 2^n`, with `n` in the lowest bits of `shifted`.
    unsafe fn scale_by_power_of_two(value: Self::V, shifted: Self::V) -> Self::V;
    /// The sums of `LANES` vectors, one per lane.
    unsafe fn horizontal_sums(vectors: &[Self::V]) -> Self::V;
}

/// Makes a kernel that is generic over [`Simd`] callable by [`KernelPath`].
macro_rules! by_path {
    ($(#[$doc:meta])* $visibility:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $generic:path;) => {
        $(#[$doc])*
        $visibility unsafe fn $name(path: $crate::kernels::KernelPath, $($arg: $type),*) {
            use $generic as generic;
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
                unsafe fn avx512($($arg: $type),*) {
                    // SAFETY: as promised by the caller.
                    unsafe { generic::<$crate::kernels::avx512::Avx512>($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma")]
                unsafe fn avx2($($arg: $type),*) {
                    // SAFETY: as promised by the caller.
                    unsafe { generic::<$crate::kernels::avx2::Avx2>($($arg),*) }
                }
                match path {
                    $crate::kernels::KernelPath::Avx512 => {
                        // SAFETY: a path is only ever chosen where its unit exists.
                        return unsafe { avx512($($arg),*) };
                    }
                    $crate::kernels::KernelPath::Avx2 => {
                        // SAFETY: a path is only ever chosen where its unit exists.
                        return unsafe { avx2($($arg),*) };
                    }
                    $crate::kernels::KernelPath::Portable => {}
                }
            }
            let _ = path;
            // SAFETY: as promised by the caller.
            unsafe { generic::<$crate::kernels::portable::Portable>($($arg),*) }
        }
    };
}
pub(crate) use by_path;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_be_forced_and_an_unknown_one_is_refused() {
        assert_eq!(choose(Some("portable")), Ok(KernelPath::Portable));
        assert_eq!(choose(None), Ok(KernelPath::available()[0]));
        assert!(choose(Some("sse9")).unwrap_err().contains("this machine does not have it; give one of:"));
    }

    /// `cargo xtask valgrind` asks for AVX2, so that a missing path cannot go unnoticed there.
    #[test]
    fn the_requested_path_is_available() {
        assert!(KernelPath::available().contains(&KernelPath::chosen().unwrap()));
        assert_eq!(KernelPath::available().last(), Some(&KernelPath::Portable));
    }
}
