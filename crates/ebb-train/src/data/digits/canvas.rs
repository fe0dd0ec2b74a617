//! A round pen on paper of 28 x 28: how much ink each pixel gets.

/// Rows and columns of an image.
pub(super) const SIDE: usize = 28;

/// A point on the paper, in pixels from the top left corner: right, then down.
pub(super) type Point = [f64; 2];

/// A position of the pen, and the radius of its ink there.
#[derive(Clone, Copy, Debug)]
pub(super) struct PenPoint {
    pub(super) at: Point,
    pub(super) radius: f64,
}

/// The covered share of each pixel, row after row, from 0 to 1.
pub(super) struct Canvas {
    ink: [f64; SIDE * SIDE],
}

impl Canvas {
    /// An empty canvas.
    pub(super) fn blank() -> Canvas {
        Canvas { ink: [0.0; SIDE * SIDE] }
    }

    /// The covered share of each pixel.
    pub(super) fn ink(&self) -> &[f64] {
        &self.ink
    }

    /// Draws a straight line. Overlapping ink is no darker.
    pub(super) fn line(&mut self, from: PenPoint, to: PenPoint) {
        let reach = from.radius.max(to.radius) + 1.0;
        for row in pixel_range(from.at[1].min(to.at[1]) - reach, from.at[1].max(to.at[1]) + reach) {
            for column in pixel_range(from.at[0].min(to.at[0]) - reach, from.at[0].max(to.at[0]) + reach) {
                let ink = &mut self.ink[row * SIDE + column];
                *ink = ink.max(coverage([column as f64 + 0.5, row as f64 + 0.5], from, to));
            }
        }
    }

    /// Spreads this share of every pixel's ink to each neighbour, first along rows, then along columns.
    pub(super) fn blur(&mut self, share: f64) {
        for start in 0..SIDE {
            self.blur_line(start * SIDE, 1, share);
        }
        for start in 0..SIDE {
            self.blur_line(start, SIDE, share);
        }
    }

    fn blur_line(&mut self, start: usize, stride: usize, share: f64) {
        let mut before = 0.0;
        for idx in 0..SIDE {
            let at = start + idx * stride;
            let after = if idx + 1 < SIDE { self.ink[at + stride] } else { 0.0 };
            let here = self.ink[at];
            self.ink[at] = here * (1.0 - 2.0 * share) + (before + after) * share;
            before = here;
        }
    }
}

/// The pixels that an interval of a row or column touches, as far as they are on the paper.
fn pixel_range(from: f64, to: f64) -> std::ops::Range<usize> {
    // A cast stops at 0 where the interval begins beyond the edge.
    from as usize..(to as usize + 1).min(SIDE)
}

/// How much of the pixel around `centre` a line covers: the edge of the ink is one pixel wide.
fn coverage(centre: Point, from: PenPoint, to: PenPoint) -> f64 {
    let [along, down] = [to.at[0] - from.at[0], to.at[1] - from.at[1]];
    let [right, below] = [centre[0] - from.at[0], centre[1] - from.at[1]];
    let square = along * along + down * down;
    let share = if square > 0.0 { ((right * along + below * down) / square).clamp(0.0, 1.0) } else { 0.0 };
    let (off_x, off_y) = (right - share * along, below - share * down);
    let radius = from.radius + share * (to.radius - from.radius);
    (radius + 0.5 - (off_x * off_x + off_y * off_y).sqrt()).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pen_point(x: f64, y: f64, radius: f64) -> PenPoint {
        PenPoint { at: [x, y], radius }
    }

    #[test]
    fn a_line_covers_what_is_within_its_radius() {
        let mut canvas = Canvas::blank();
        canvas.line(pen_point(3.5, 5.5, 1.0), pen_point(9.5, 5.5, 1.0));
        let at = |column: usize, row: usize| canvas.ink()[row * SIDE + column];
        // In the middle, on the edge, outside of it; and before the start.
        assert_eq!([at(6, 5), at(6, 4), at(6, 6), at(6, 3)], [1.0, 0.5, 0.5, 0.0]);
        assert_eq!([at(3, 5), at(2, 5), at(1, 5)], [1.0, 0.5, 0.0]);
        assert_eq!(canvas.ink().iter().filter(|&&ink| ink > 0.0).count(), 7 + 2 * 7 + 2 + 4);
    }

    #[test]
    fn a_pen_that_presses_harder_leaves_more() {
        let mut canvas = Canvas::blank();
        canvas.line(pen_point(10.5, 2.5, 0.5), pen_point(10.5, 12.5, 2.5));
        let at = |column: usize, row: usize| canvas.ink()[row * SIDE + column];
        assert_eq!([at(10, 7), at(11, 7), at(12, 7)], [1.0, 1.0, 0.0]);
    }

    #[test]
    fn beyond_the_edge_nothing_is_drawn() {
        let mut canvas = Canvas::blank();
        canvas.line(pen_point(-5.0, -5.0, 1.0), pen_point(-3.0, -9.0, 1.0));
        canvas.line(pen_point(40.0, 3.0, 1.0), pen_point(40.0, 60.0, 1.0));
        assert!(canvas.ink().iter().all(|&ink| ink == 0.0));
        canvas.line(pen_point(-4.0, 14.0, 1.0), pen_point(40.0, 14.0, 1.0));
        assert_eq!(canvas.ink().iter().sum::<f64>(), 2.0 * SIDE as f64);
    }

    #[test]
    fn a_dot_is_round() {
        let mut canvas = Canvas::blank();
        canvas.line(pen_point(8.0, 8.0, 1.5), pen_point(8.0, 8.0, 1.5));
        let at = |column: usize, row: usize| canvas.ink()[row * SIDE + column];
        assert!(at(7, 7) == 1.0 && at(6, 7) == at(9, 8) && at(6, 7) == at(7, 6) && at(6, 6) < at(6, 7));
    }

    #[test]
    fn blur_spreads_ink_and_loses_none() {
        let mut canvas = Canvas::blank();
        canvas.ink[3 * SIDE + 4] = 1.0;
        canvas.blur(0.25);
        let around = |row: usize| [3, 4, 5].map(|column| canvas.ink()[row * SIDE + column]);
        assert_eq!([around(2), around(3)], [[0.0625, 0.125, 0.0625], [0.125, 0.25, 0.125]]);
        assert_eq!(canvas.ink().iter().sum::<f64>(), 1.0);
    }
}
