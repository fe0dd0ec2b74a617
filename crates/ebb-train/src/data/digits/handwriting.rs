//! Draws a digit by hand: with random errors, so that no two images are the same.

use ebb_round::Stream;

use super::canvas::{Canvas, PenPoint, Point, SIDE};
use super::glyphs::{GLYPHS, Glyph, Mark};

/// Straight segments that approximate one curve.
const SEGMENTS: usize = 5;
/// Standard deviation of a mark's error, in heights of the digit, and the share of it that the next mark
/// inherits.
const MARK_ERROR_STD: f64 = 0.03;
const MARK_ERROR_CORRELATION: f64 = 0.5;
/// Standard deviation of the additional error of a curve's handles.
const HANDLE_ERROR_STD: f64 = 0.018;
/// The free margin around a digit, in pixels.
const MARGIN: f64 = 1.0;

/// Writes a digit somewhere on a canvas of its own.
pub(super) fn write(digit: usize, stream: &mut Stream) -> Canvas {
    let glyph = draw_glyph(GLYPHS[digit], stream);
    let style = WritingStyle::draw(stream);
    let mut strokes: Vec<Vec<Point>> = Vec::new();
    for marks in glyph.strokes {
        strokes.push(style.transform(&path(marks, stream)));
    }
    fit_to_canvas(&mut strokes, style.radius, stream);
    let mut canvas = Canvas::blank();
    for stroke in &strokes {
        style.draw_stroke(stroke, stream, &mut canvas);
    }
    canvas.blur(style.blur);
    canvas
}

/// Draws a glyph with probability proportional to its weight.
fn draw_glyph<'w>(glyphs: &'w [Glyph], stream: &mut Stream) -> &'w Glyph {
    let total = glyphs.iter().map(|way| way.weight).sum();
    let mut drawn = stream.below(total);
    let chosen = glyphs.iter().find(|way| match drawn.checked_sub(way.weight) {
        Some(rest) => {
            drawn = rest;
            false
        }
        None => true,
    });
    chosen.expect("the number drawn is below the sum of the weights")
}

/// The properties that all strokes of one image share.
struct WritingStyle {
    /// The linear map from glyph coordinates to pixels: rows of a matrix.
    shape: [Point; 2],
    /// Slow waves that bend the digit: amplitude, frequency along the digit and phase, for both directions.
    waves: [[f64; 3]; 2],
    radius: f64,
    blur: f64,
}

impl WritingStyle {
    fn draw(stream: &mut Stream) -> WritingStyle {
        let height = 18.5 + jitter(stream, 1.9);
        let width = height * (1.0 + jitter(stream, 0.17));
        let slant = 0.12 + jitter(stream, 0.22);
        let turn = jitter(stream, 0.10);
        let (sin, cos) = (libm::sin(turn), libm::cos(turn));
        // The glyph is first slanted to the right, then rotated.
        let shape =
            [[width * cos, height * (-slant * cos - sin)], [width * sin, height * (-slant * sin + cos)]];
        let mut wave = || [jitter(stream, 0.035), 2.5 + 3.5 * stream.uniform(), 6.3 * stream.uniform()];
        let waves = [wave(), wave()];
        WritingStyle {
            shape,
            waves,
            radius: 0.75 + 0.75 * stream.uniform(),
            blur: 0.04 + 0.10 * stream.uniform(),
        }
    }

    /// Maps a stroke from glyph coordinates to pixels, on or off the canvas.
    fn transform(&self, stroke: &[Point]) -> Vec<Point> {
        let bend = |[far, fast, from]: [f64; 3], along: f64| far * libm::sin(fast * along + from);
        let laid = |&[x, y]: &Point| {
            let (x, y) = (x + bend(self.waves[0], y), y + bend(self.waves[1], x));
            self.shape.map(|row| row[0] * x + row[1] * y)
        };
        stroke.iter().map(laid).collect()
    }

    /// Draws a stroke with varying pressure.
    fn draw_stroke(&self, stroke: &[Point], stream: &mut Stream, canvas: &mut Canvas) {
        let (start, end) = (1.0 + jitter(stream, 0.14), 1.0 + jitter(stream, 0.14));
        let last = (stroke.len() - 1) as f64;
        let touch = |idx: usize| {
            let share = idx as f64 / last;
            PenPoint { at: stroke[idx], radius: self.radius * (start + share * (end - start)) }
        };
        for idx in 1..stroke.len() {
            canvas.line(touch(idx - 1), touch(idx));
        }
    }
}

/// A normal number with this standard deviation, truncated at 2.5 standard deviations.
fn jitter(stream: &mut Stream, std: f64) -> f64 {
    stream.normal().clamp(-2.5, 2.5) * std
}

/// The line through the marks, each of them missed by a little.
fn path(marks: &[Mark], stream: &mut Stream) -> Vec<Point> {
    let mut points = Vec::with_capacity(1 + SEGMENTS * marks.len());
    let mut run: Vec<Point> = Vec::with_capacity(marks.len());
    let mut missed = [0.0; 2];
    for (idx, mark) in marks.iter().enumerate() {
        let (Mark::On(x, y) | Mark::Corner(x, y)) = *mark;
        missed = missed.map(|by| MARK_ERROR_CORRELATION * by + jitter(stream, MARK_ERROR_STD));
        run.push([x + missed[0], y + missed[1]]);
        if matches!(mark, Mark::Corner(..)) || idx + 1 == marks.len() {
            smooth(&run, stream, &mut points);
            run.drain(..run.len() - 1);
        }
    }
    points
}

/// Adds the cubic curves through some points, straight at both ends (Catmull-Rom, in Bézier form).
fn smooth(run: &[Point], stream: &mut Stream, points: &mut Vec<Point>) {
    let mut handle = |idx: usize| -> Point {
        let here = run[idx];
        let mirrored = |other: Point| [0, 1].map(|axis| 2.0 * here[axis] - other[axis]);
        let ahead = run.get(idx + 1).copied().unwrap_or_else(|| mirrored(run[idx - 1]));
        let behind = if idx > 0 { run[idx - 1] } else { mirrored(ahead) };
        [0, 1].map(|axis| (ahead[axis] - behind[axis]) / 6.0 + jitter(stream, HANDLE_ERROR_STD))
    };
    let mut leaving = handle(0);
    for (idx, ends) in run.windows(2).enumerate() {
        let (from, to) = (ends[0], ends[1]);
        let arriving = handle(idx + 1);
        let curve = [from, plus(from, leaving, 1.0), plus(to, arriving, -1.0), to];
        let first = usize::from(!points.is_empty());
        points.extend((first..=SEGMENTS).map(|segment| on_curve(curve, segment as f64 / SEGMENTS as f64)));
        // The pen leaves in the direction in which it arrived, so it makes no corner.
        leaving = arriving;
    }
}

fn plus(point: Point, handle: Point, times: f64) -> Point {
    [0, 1].map(|axis| point[axis] + times * handle[axis])
}

/// The point of a cubic curve at this share of the way.
fn on_curve(curve: [Point; 4], share: f64) -> Point {
    let rest = 1.0 - share;
    let weights =
        [rest * rest * rest, 3.0 * rest * rest * share, 3.0 * rest * share * share, share * share * share];
    let one =
        |axis: usize| -> f64 { curve.iter().zip(weights).map(|(point, weight)| weight * point[axis]).sum() };
    [one(0), one(1)]
}

/// Moves the strokes near the middle of the paper, and shrinks them if they do not fit.
fn fit_to_canvas(strokes: &mut [Vec<Point>], radius: f64, stream: &mut Stream) {
    let available = SIDE as f64 - 2.0 * (MARGIN + radius);
    let bounds = [0, 1].map(|axis| bounds(strokes, axis));
    let largest = bounds.iter().map(|[low, high]| high - low).fold(0.0, f64::max);
    let scale = (available / largest).min(1.0);
    for axis in 0..2 {
        let [low, high] = bounds[axis];
        // Rounding must not make the slack negative.
        let slack = ((available - scale * (high - low)) / 2.0).max(0.0);
        let shift = jitter(stream, 1.4).clamp(-slack, slack);
        let (middle, to) = ((low + high) / 2.0, SIDE as f64 / 2.0 + shift);
        for point in strokes.iter_mut().flatten() {
            point[axis] = to + scale * (point[axis] - middle);
        }
    }
}

/// The lowest and the highest coordinate of the strokes.
fn bounds(strokes: &[Vec<Point>], axis: usize) -> [f64; 2] {
    let reach = |[low, high]: [f64; 2], point: &Point| [low.min(point[axis]), high.max(point[axis])];
    strokes.iter().flatten().fold([f64::INFINITY, f64::NEG_INFINITY], reach)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_glyphs_come_more_often() {
        let mut stream = Stream::of_run(1, "t");
        let mut counts = [0; 3];
        for _ in 0..10_000 {
            let glyph = draw_glyph(GLYPHS[7], &mut stream);
            let idx = GLYPHS[7].iter().position(|other| std::ptr::eq(glyph, other)).unwrap();
            counts[idx] += 1;
        }
        // The standard deviation is at most 50.
        let near = |(count, weight): (i32, usize)| (count - 1000 * weight as i32).abs() < 5 * 50;
        assert!(counts.into_iter().zip([4, 3, 3]).all(near), "{counts:?}");
    }

    #[test]
    fn a_path_begins_and_ends_near_its_marks_and_has_no_gaps() {
        let mut stream = Stream::of_run(1, "t");
        for stroke in GLYPHS.into_iter().flatten().flat_map(|way| way.strokes) {
            let path = path(stroke, &mut stream);
            assert_eq!(path.len(), 1 + SEGMENTS * (stroke.len() - 1));
            let near = |mark: Mark, [x, y]: Point| {
                let (Mark::On(to_x, to_y) | Mark::Corner(to_x, to_y)) = mark;
                (x - to_x).abs().max((y - to_y).abs()) < 2.5 * MARK_ERROR_STD / (1.0 - MARK_ERROR_CORRELATION)
            };
            for (idx, &mark) in stroke.iter().enumerate() {
                assert!(near(mark, path[idx * SEGMENTS]), "{stroke:?}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_shrunk_and_what_does_is_moved() {
        let mut stream = Stream::of_run(1, "t");
        let mut placed = |to: Point| {
            let mut strokes = vec![vec![[0.0; 2], to]];
            fit_to_canvas(&mut strokes, 2.0, &mut stream);
            strokes.remove(0)
        };
        // 28 pixels, minus the margin of 1 and the pen's 2 on either side.
        let large = placed([44.0, 22.0]);
        let near = |one: f64, two: f64| (one - two).abs() < 1e-9;
        assert!(near(large[0][0], 3.0) && near(large[1][0], 25.0) && near(large[1][1] - large[0][1], 11.0));
        for _ in 0..100 {
            let [from, to] = placed([20.0, 10.0])[..] else { panic!("two points") };
            assert!(near(to[0] - from[0], 20.0) && near(to[1] - from[1], 10.0));
            assert!(from[0] > 3.0 - 1e-9 && to[0] < 25.0 + 1e-9 && (from[1] - 9.0).abs() <= 2.5 * 1.4);
        }
    }
}
