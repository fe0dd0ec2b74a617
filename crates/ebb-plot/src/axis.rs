//! Ranges of values, with the places and the labels of their ticks.

use std::ops::Range;

use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;

/// Whether a value can be shown; others are gaps.
pub(crate) fn is_shown(value: f64) -> bool {
    // A larger value could overflow in a difference or a square.
    value.abs() < 1e100
}

/// The lowest and the highest value that can be shown; `None` without any.
pub(crate) fn span(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let shown = values.into_iter().filter(|&value| is_shown(value));
    shown.fold(None, |span, value| match span {
        None => Some((value, value)),
        Some((low, high)) => Some((low.min(value), high.max(value))),
    })
}

/// The span with padding at both ends, but not across zero.
pub(crate) fn with_padding((low, high): (f64, f64), share: f64) -> Range<f64> {
    let (low, high) = widened(low, high);
    let air = (high - low) * share;
    let (from, to) = (low - air, high + air);
    let from = if low >= 0.0 { from.max(0.0) } else { from };
    let to = if high <= 0.0 { to.min(0.0) } else { to };
    from..to
}

/// The span without padding; widened if it is empty.
pub(crate) fn exact((low, high): (f64, f64)) -> Range<f64> {
    let (low, high) = widened(low, high);
    low..high
}

/// A range around values that are almost equal.
fn widened(low: f64, high: f64) -> (f64, f64) {
    let magnitude = low.abs().max(high.abs());
    let least = (magnitude * 1e-9).max(1e-12);
    if high - low >= least {
        return (low, high);
    }
    let half = if magnitude < 1e-9 { 0.5 } else { magnitude * 0.1 };
    (low - half, high + half)
}

/// At most `at_most` round values within the range, and their labels.
pub(crate) fn ticks(range: &Range<f64>, at_most: usize) -> Vec<(f64, String)> {
    let width = range.end - range.start;
    let slack = width * 1e-9;
    let in_range = |value: &f64| *value >= range.start - slack && *value <= range.end + slack;
    let values: Vec<f64> =
        RangedCoordf64::from(range.clone()).key_points(at_most).into_iter().filter(in_range).collect();
    let steps = values.windows(2).map(|pair| pair[1] - pair[0]);
    let step = steps.fold(f64::INFINITY, f64::min).min(width);
    let largest = values.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    values.into_iter().map(|value| (value, tick_name(value, step, largest))).collect()
}

/// A value with the digits that distinguish it from its neighbours a step away, in the notation of the
/// largest.
fn tick_name(value: f64, step: f64, largest: f64) -> String {
    if value.abs() < step * 1e-6 {
        return "0".into();
    }
    let step_digit = first_digit_place(step);
    if largest >= 1e6 || step_digit < -5 {
        let digits = (first_digit_place(value.abs()) - step_digit).clamp(0, 6) as usize;
        return format!("{value:.digits$e}");
    }
    let digits = (-step_digit).max(0) as usize;
    format!("{value:.digits$}")
}

/// A value rounded to two digits of the range's width.
pub(crate) fn format_in_range(value: f64, range: &Range<f64>) -> String {
    let step = 10.0_f64.powi(first_digit_place((range.end - range.start) / 5.0) - 1);
    let largest = range.start.abs().max(range.end.abs());
    if value.abs() < step / 2.0 { "0".into() } else { tick_name(value, step, largest) }
}

/// The decimal place of the first digit: 0 for 1 to 9, -1 for tenths.
fn first_digit_place(value: f64) -> i32 {
    // A step of 0.001 may be computed as slightly less.
    (value.log10() + 1e-9).floor() as i32
}

/// The stride at which the names that are kept have enough space.
pub(crate) fn thinned(n_names: usize, fits: f64) -> usize {
    let mut steps = (0..).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_usize.pow(power)));
    let wanted = (n_names as f64 / fits.max(1.0)).ceil() as usize;
    steps.find(|&step| step >= wanted).expect("steps grow without end")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(range: Range<f64>, at_most: usize, expected: &[&str]) {
        let names: Vec<_> = ticks(&range, at_most).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn ticks_are_round_and_named_the_same_way() {
        check(0.0..1.0, 6, &["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        check(0.0..100.0, 6, &["0", "20", "40", "60", "80", "100"]);
        check(-3.0..3.0, 4, &["-2", "0", "2"]);
        check(0.90..0.94, 6, &["0.90", "0.91", "0.92", "0.93", "0.94"]);
        check(0.0..4e6, 5, &["0", "1e6", "2e6", "3e6", "4e6"]);
    }

    #[test]
    fn names_have_enough_digits_and_no_more() {
        assert_eq!(tick_name(0.30000000000000004, 0.1, 1.0), "0.3");
        assert_eq!(tick_name(-1e-20, 0.1, 1.0), "0");
        assert_eq!(tick_name(1_500_000.0, 500_000.0, 2e6), "1.5e6");
        assert_eq!(tick_name(500_000.0, 500_000.0, 2e6), "5e5");
        assert_eq!(tick_name(0.000002, 0.000001, 0.00001), "2e-6");
    }

    #[test]
    fn values_are_named_as_finely_as_their_range() {
        let check = |value, range, expected| assert_eq!(format_in_range(value, &range), expected);
        check(0.958, 0.0..1.0, "0.96");
        check(0.9, 0.0..1.0, "0.90");
        check(1.29e-5, 0.0..1.0, "0");
        check(-0.004, -1.0..1.0, "0");
        check(42.4, 0.0..100.0, "42");
        check(2.5e6, 0.0..4e6, "2.50e6");
    }

    #[test]
    fn a_range_has_width_whatever_the_values() {
        for (low, high) in
            [(0.0, 0.0), (1.0, 1.0), (-5.0, -5.0), (1.0, 1.0 + 1e-15), (1e99, 1e99), (-9e99, 9e99)]
        {
            for range in [with_padding((low, high), 0.05), exact((low, high))] {
                assert!(range.start <= low && high <= range.end && range.start < range.end, "{range:?}");
                assert!(!ticks(&range, 6).is_empty(), "{range:?}");
            }
        }
        assert_eq!(with_padding((0.0, 1.0), 0.05), 0.0..1.05);
        assert_eq!(with_padding((-1.0, 0.0), 0.05), -1.05..0.0);
    }

    #[test]
    fn values_that_are_not_finite_do_not_count_for_the_span() {
        assert_eq!(span([f64::NAN, 2.0, f64::INFINITY, -1.0, 1e101]), Some((-1.0, 2.0)));
        assert_eq!(span([f64::NAN]), None);
    }

    #[test]
    fn names_thin_out_in_round_steps() {
        assert_eq!(thinned(10, 10.0), 1);
        assert_eq!(thinned(10, 9.0), 2);
        assert_eq!(thinned(100, 30.0), 5);
        assert_eq!(thinned(1000, 17.0), 100);
        assert_eq!(thinned(7, 0.0), 10);
    }
}
