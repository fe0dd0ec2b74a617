//! Activation functions: exponential, logistic function, hyperbolic tangent.

use super::{KernelPath, PAD, Simd, by_path};

/// `y = tanh(x)`, element by element; lengths are multiples of 16.
pub(crate) fn tanh(path: KernelPath, x: &[f32], y: &mut [f32]) {
    assert!(x.len() == y.len() && x.len().is_multiple_of(PAD), "lengths");
    // SAFETY: the sizes were checked, and a path is only chosen where its unit exists.
    unsafe { tanh_raw(path, x.as_ptr(), y.as_mut_ptr(), x.len()) }
}

by_path! {
    fn tanh_raw(x: *const f32, y: *mut f32, len: usize) = tanh_on;
}

#[inline(always)]
unsafe fn tanh_on<S: Simd>(x: *const f32, y: *mut f32, len: usize) {
    for at in (0..len).step_by(S::LANES) {
        // SAFETY: the caller promises `len` floats, a multiple of the vector's.
        unsafe { S::store(y.add(at), tanh_of::<S>(S::load(x.add(at)))) }
    }
}

/// `e^x` with a relative error below 2e-7, for `x <= 0`; NaN stays NaN. Adding `1.5 * 2^23` rounds to an
/// integer, which then stands in the lowest bits. `ln 2` is subtracted in two parts, of which the first is
/// exact in few bits.
#[inline(always)]
pub(super) unsafe fn exp_of<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller promises that the unit exists.
    unsafe {
        let round = S::splat(12_582_912.0);
        let x = S::max(S::splat(-87.0), x);
        let shifted = S::mul_add(x, S::splat(std::f32::consts::LOG2_E), round);
        let n = S::add(shifted, S::splat(-12_582_912.0));
        let r = S::mul_add(n, S::splat(-0.693_359_4), x);
        let r = S::mul_add(n, S::splat(2.121_944_4e-4), r);
        let p = S::splat(1.987_569_1e-4);
        let p = S::mul_add(p, r, S::splat(1.398_199_9e-3));
        let p = S::mul_add(p, r, S::splat(8.333_452e-3));
        let p = S::mul_add(p, r, S::splat(4.166_579_6e-2));
        let p = S::mul_add(p, r, S::splat(1.666_666_5e-1));
        let p = S::mul_add(p, r, S::splat(0.5));
        let squared = S::mul_add(r, r, S::splat(0.0));
        let p = S::mul_add(p, squared, S::add(r, S::splat(1.0)));
        S::scale_by_power_of_two(p, shifted)
    }
}

/// `1 / (1 + e^-x)`, computed from the exponential of `-|x|`, which cannot overflow.
#[inline(always)]
pub(super) unsafe fn logistic_of<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller promises that the unit exists.
    unsafe {
        let one = S::splat(1.0);
        let negated = S::mul(x, S::splat(-1.0));
        let power = exp_of::<S>(S::select_greater(x, negated, negated, x));
        let share = S::div(one, S::add(one, power));
        S::select_greater(x, S::splat(0.0), share, S::mul(power, share))
    }
}

/// `tanh x`: a polynomial near 0, where a quotient of exponentials would cancel.
#[inline(always)]
pub(super) unsafe fn tanh_of<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller promises that the unit exists.
    unsafe {
        let (zero, one) = (S::splat(0.0), S::splat(1.0));
        let negated = S::mul(x, S::splat(-1.0));
        let size = S::select_greater(x, zero, x, negated);
        let power = exp_of::<S>(S::mul(size, S::splat(-2.0)));
        // `1 - 2 power / (1 + power)`
        let far = S::div(S::mul(power, S::splat(-2.0)), S::add(one, power));
        let far = S::add(one, far);
        let far = S::select_greater(x, zero, far, S::mul(far, S::splat(-1.0)));
        let z = S::mul(x, x);
        let p = S::splat(-5.704_988_7e-3);
        let p = S::mul_add(p, z, S::splat(2.063_909e-2));
        let p = S::mul_add(p, z, S::splat(-5.373_971_6e-2));
        let p = S::mul_add(p, z, S::splat(1.333_144_2e-1));
        let p = S::mul_add(p, z, S::splat(-3.333_328e-1));
        let near = S::mul_add(S::mul(p, z), x, x);
        S::select_greater(S::splat(0.625), size, near, far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! pointwise {
        ($name:ident, $generic:ident, $curve:ident) => {
            by_path! {
                fn $name(values: &mut [f32]) = $generic;
            }

            #[inline(always)]
            unsafe fn $generic<S: Simd>(values: &mut [f32]) {
                for at in (0..values.len()).step_by(S::LANES) {
                    let value = &mut values[at..at + S::LANES];
                    // SAFETY: the slice has as many floats as a vector.
                    unsafe { S::store(value.as_mut_ptr(), $curve::<S>(S::load(value.as_ptr()))) }
                }
            }
        };
    }
    pointwise!(exp_raw, exp_on, exp_of);
    pointwise!(logistic_raw, logistic_on, logistic_of);
    pointwise!(tangent_raw, tangent_on, tanh_of);

    /// The largest relative error over inputs.
    fn largest_relative_error(
        raw: unsafe fn(KernelPath, &mut [f32]),
        path: KernelPath,
        inputs: &[f32],
        exact: impl Fn(f64) -> f64,
    ) -> f64 {
        let mut values = inputs.to_vec();
        values.resize(inputs.len().next_multiple_of(PAD), 0.0);
        // SAFETY: the path is available.
        unsafe { raw(path, &mut values) };
        let errors = values.iter().zip(inputs).map(|(&value, &input)| {
            let exact = exact(f64::from(input));
            (f64::from(value) - exact).abs() / exact.abs().max(1e-38)
        });
        errors.map(|error| if error.is_nan() { f64::INFINITY } else { error }).fold(0.0, f64::max)
    }

    #[test]
    fn activations_are_exact_to_the_last_bits() {
        let below: Vec<f32> = (0..8700).map(|step| -0.01 * step as f32).collect();
        let both: Vec<f32> = (-17_000..17_000).map(|step| 0.005 * step as f32 + 0.0001).collect();
        let tiny: Vec<f32> = (1..100).map(|step| 1e-6 * step as f32).collect();
        for path in KernelPath::available() {
            let name = path.name();
            let exp = largest_relative_error(exp_raw, path, &below, f64::exp);
            assert!(exp < 2e-7, "exp on {name}: {exp}");
            let logistic = largest_relative_error(logistic_raw, path, &both, |x| 1.0 / (1.0 + (-x).exp()));
            assert!(logistic < 4e-7, "logistic on {name}: {logistic}");
            for inputs in [&both, &tiny] {
                let tangent = largest_relative_error(tangent_raw, path, inputs, f64::tanh);
                assert!(tangent < 4e-7, "tanh on {name}: {tangent}");
            }
        }
    }

    #[test]
    fn nan_stays_nan_and_the_limits_are_reached() {
        for path in KernelPath::available() {
            for raw in [exp_raw, logistic_raw, tangent_raw] {
                let mut values = vec![f32::NAN; PAD];
                // SAFETY: the path is available.
                unsafe { raw(path, &mut values) };
                assert!(values.iter().all(|value| value.is_nan()), "{}", path.name());
            }
            for (raw, low, high) in
                [(logistic_raw as unsafe fn(KernelPath, &mut [f32]), 0.0, 1.0), (tangent_raw, -1.0, 1.0)]
            {
                let mut values = vec![f32::INFINITY; PAD];
                values[0] = f32::NEG_INFINITY;
                // SAFETY: the path is available.
                unsafe { raw(path, &mut values) };
                assert!((values[0] - low).abs() < 1e-30 && values[1] == high, "{}: {values:?}", path.name());
            }
        }
    }
}
