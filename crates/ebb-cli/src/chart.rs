//! A plot for the terminal, drawn with Braille dots.

/// One curve of `(x, y)` points.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) points: Vec<(f64, f64)>,
}

const WIDTH: usize = 72;
const HEIGHT: usize = 14;

/// Draws a curve with its range on both axes.
pub(crate) fn draw(title: &str, x_name: &str, curve: &Curve) -> Option<String> {
    let finite: Vec<_> = curve.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let range = |values: &dyn Fn(&(f64, f64)) -> f64| {
        let all = finite.iter().map(|point| values(point));
        (all.clone().fold(f64::INFINITY, f64::min), all.fold(f64::NEG_INFINITY, f64::max))
    };
    if finite.len() < 2 {
        return None;
    }
    let ((x_low, x_high), (y_low, y_high)) = (range(&|point| point.0), range(&|point| point.1));
    let scale = |value: f64, low: f64, high: f64, steps: usize| {
        let share = if high > low { (value - low) / (high - low) } else { 0.5 };
        (share * (steps - 1) as f64).round() as usize
    };
    let mut dots = vec![[0_u8; WIDTH]; HEIGHT];
    let mut last: Option<(usize, usize)> = None;
    for (x, y) in &finite {
        let column = scale(*x, x_low, x_high, WIDTH * 2);
        let row = HEIGHT * 4 - 1 - scale(*y, y_low, y_high, HEIGHT * 4);
        let (from_column, from_row) = last.unwrap_or((column, row));
        let n_dots = column.abs_diff(from_column).max(row.abs_diff(from_row)).max(1);
        for step in 0..=n_dots {
            let between = |from: usize, to: usize| {
                (from as f64 + (to as f64 - from as f64) * step as f64 / n_dots as f64).round() as usize
            };
            set(&mut dots, between(from_column, column), between(from_row, row));
        }
        last = Some((column, row));
    }
    let mut text = format!("{title}\n");
    for (at, row) in dots.iter().enumerate() {
        let label = match at {
            0 => format!("{y_high:.4}"),
            _ if at == HEIGHT - 1 => format!("{y_low:.4}"),
            _ => String::new(),
        };
        let line: String = row.iter().map(|&pattern| braille(pattern)).collect();
        text.push_str(&format!("{label:>10} |{}\n", line.trim_end_matches('\u{2800}')));
    }
    let (left, right) = (format!("{x_low}"), format!("{x_high}"));
    let gap = WIDTH.saturating_sub(left.len() + right.len() + x_name.len());
    text.push_str(&format!("{:>10} +{}\n", "", "-".repeat(WIDTH)));
    let (before, after) = (" ".repeat(gap / 2), " ".repeat(gap - gap / 2));
    text.push_str(&format!("{:>10}  {left}{before}{x_name}{after}{right}", ""));
    Some(text)
}

fn set(dots: &mut [[u8; WIDTH]], column: usize, row: usize) {
    const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
    dots[row / 4][column / 2] |= BITS[row % 4][column % 2];
}

fn braille(pattern: u8) -> char {
    char::from_u32(0x2800 + u32::from(pattern)).expect("Braille patterns are characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rising_line_goes_from_the_lower_left_to_the_upper_right() {
        let curve = Curve { points: vec![(0.0, 0.25), (9.0, 0.75)] };
        let text = draw("accuracy", "round", &curve).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "accuracy");
        assert!(lines[1].starts_with("    0.7500 |") && lines[HEIGHT].starts_with("    0.2500 |"));
        let column = |line: &str| line.chars().skip(12).position(|c| c != '\u{2800}').unwrap();
        assert_eq!(column(lines[HEIGHT]), 0);
        assert!(column(lines[1]) > WIDTH - 8);
    }

    #[test]
    fn nothing_is_drawn_from_less_than_two_points() {
        assert!(draw("", "", &Curve { points: vec![(0.0, 1.0)] }).is_none());
        assert!(draw("", "", &Curve { points: vec![(0.0, f64::NAN), (1.0, 2.0)] }).is_none());
    }

    #[test]
    fn a_level_line_is_drawn_in_the_middle() {
        assert!(draw("", "", &Curve { points: vec![(0.0, 1.0), (1.0, 1.0)] }).is_some());
    }
}
