//! The ways in which people write a digit: the ideal path of the pen, before errors are added.
//!
//! A stroke passes through its marks, with coordinates from 0 to about 1, left to right and top to bottom.
//! Only the shape counts, for size and position are chosen later. Between corners a stroke is smooth.

use Mark::{Corner, On};

/// A point that the pen passes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    /// Passed smoothly.
    On(f64, f64),
    /// Passed with a sharp turn.
    Corner(f64, f64),
}

/// One way to write a digit.
#[derive(Debug)]
pub(super) struct Glyph {
    /// How common it is, relative to the digit's other glyphs.
    pub(super) weight: usize,
    /// The marks between putting the pen down and lifting it.
    pub(super) strokes: &'static [&'static [Mark]],
}

/// The glyphs of each digit.
pub(super) const GLYPHS: [&[Glyph]; 10] = [ZERO, ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT, NINE];

const fn glyph(weight: usize, strokes: &'static [&'static [Mark]]) -> Glyph {
    Glyph { weight, strokes }
}

const ZERO: &[Glyph] = &[
    // Round.
    glyph(
        4,
        &[&[
            On(0.40, 0.02),
            On(0.14, 0.16),
            On(0.03, 0.50),
            On(0.13, 0.84),
            On(0.36, 0.98),
            On(0.60, 0.84),
            On(0.69, 0.50),
            On(0.60, 0.15),
            On(0.38, 0.03),
        ]],
    ),
    // Narrow, and closed from the right with a little too much.
    glyph(
        3,
        &[&[
            On(0.46, 0.08),
            On(0.22, 0.12),
            On(0.11, 0.48),
            On(0.17, 0.86),
            On(0.36, 0.98),
            On(0.54, 0.80),
            On(0.58, 0.42),
            On(0.48, 0.09),
            On(0.28, 0.04),
            On(0.18, 0.14),
        ]],
    ),
    // Left open at the top.
    glyph(
        2,
        &[&[
            On(0.34, 0.04),
            On(0.09, 0.26),
            On(0.05, 0.62),
            On(0.24, 0.96),
            On(0.52, 0.93),
            On(0.67, 0.60),
            On(0.62, 0.22),
            On(0.44, 0.00),
        ]],
    ),
];

const ONE: &[Glyph] = &[
    // A bare stroke.
    glyph(4, &[&[On(0.40, 0.00), On(0.38, 1.00)]]),
    // With a flag.
    glyph(4, &[&[On(0.14, 0.26), Corner(0.42, 0.00), On(0.40, 1.00)]]),
    // With a flag and a foot.
    glyph(3, &[&[On(0.16, 0.22), Corner(0.40, 0.00), On(0.39, 0.97)], &[On(0.10, 0.98), On(0.68, 0.97)]]),
];

const TWO: &[Glyph] = &[
    // With a sharp turn at the base.
    glyph(
        4,
        &[&[
            On(0.07, 0.24),
            On(0.20, 0.05),
            On(0.45, 0.02),
            On(0.61, 0.20),
            On(0.52, 0.46),
            On(0.30, 0.71),
            Corner(0.04, 0.97),
            On(0.68, 0.96),
        ]],
    ),
    // With a loop at the base.
    glyph(
        4,
        &[&[
            On(0.08, 0.20),
            On(0.26, 0.02),
            On(0.52, 0.06),
            On(0.60, 0.28),
            On(0.46, 0.58),
            On(0.25, 0.86),
            On(0.07, 0.95),
            On(0.04, 0.84),
            On(0.17, 0.79),
            On(0.36, 0.90),
            On(0.54, 0.97),
            On(0.74, 0.88),
        ]],
    ),
    // Flat, like a Z with a round shoulder.
    glyph(2, &[&[On(0.06, 0.10), On(0.34, 0.02), On(0.60, 0.14), Corner(0.06, 0.95), On(0.66, 0.97)]]),
];

const THREE: &[Glyph] = &[
    // Two bows.
    glyph(
        5,
        &[&[
            On(0.08, 0.14),
            On(0.30, 0.01),
            On(0.55, 0.12),
            On(0.50, 0.36),
            Corner(0.26, 0.46),
            On(0.54, 0.54),
            On(0.64, 0.76),
            On(0.40, 0.98),
            On(0.05, 0.88),
        ]],
    ),
    // A flat top.
    glyph(
        2,
        &[&[
            On(0.08, 0.03),
            Corner(0.58, 0.04),
            Corner(0.28, 0.40),
            On(0.56, 0.50),
            On(0.63, 0.76),
            On(0.40, 0.98),
            On(0.05, 0.90),
        ]],
    ),
    // A small loop in the middle.
    glyph(
        3,
        &[&[
            On(0.10, 0.10),
            On(0.34, 0.01),
            On(0.55, 0.15),
            On(0.44, 0.38),
            On(0.24, 0.50),
            On(0.20, 0.42),
            On(0.34, 0.43),
            On(0.58, 0.58),
            On(0.58, 0.84),
            On(0.32, 1.00),
            On(0.04, 0.90),
        ]],
    ),
];

const FOUR: &[Glyph] = &[
    // Open, with corners.
    glyph(
        4,
        &[
            &[On(0.16, 0.02), On(0.12, 0.30), Corner(0.06, 0.56), On(0.72, 0.53)],
            &[On(0.54, 0.18), On(0.48, 1.00)],
        ],
    ),
    // Open and round, in one go.
    glyph(
        3,
        &[
            &[On(0.10, 0.04), On(0.07, 0.34), On(0.20, 0.52), On(0.42, 0.46), On(0.58, 0.30)],
            &[On(0.62, 0.02), On(0.57, 0.48), On(0.53, 1.00)],
        ],
    ),
    // Closed.
    glyph(3, &[&[On(0.72, 0.68), Corner(0.02, 0.66), Corner(0.50, 0.00), On(0.48, 1.00)]]),
];

const FIVE: &[Glyph] = &[
    // In one go, from the right.
    glyph(
        4,
        &[&[
            On(0.62, 0.02),
            Corner(0.17, 0.04),
            Corner(0.11, 0.44),
            On(0.36, 0.37),
            On(0.62, 0.56),
            On(0.56, 0.86),
            On(0.30, 0.99),
            On(0.04, 0.90),
        ]],
    ),
    // The top bar last, and not quite met.
    glyph(
        4,
        &[
            &[
                On(0.18, 0.06),
                Corner(0.13, 0.46),
                On(0.38, 0.40),
                On(0.60, 0.58),
                On(0.54, 0.86),
                On(0.28, 1.00),
                On(0.03, 0.92),
            ],
            &[On(0.18, 0.05), On(0.68, 0.01)],
        ],
    ),
    // Without corners, like an S.
    glyph(
        2,
        &[&[
            On(0.60, 0.05),
            On(0.36, 0.02),
            On(0.17, 0.16),
            On(0.18, 0.40),
            On(0.42, 0.48),
            On(0.60, 0.66),
            On(0.50, 0.92),
            On(0.26, 0.99),
            On(0.04, 0.88),
        ]],
    ),
];

const SIX: &[Glyph] = &[
    // A bowed stem.
    glyph(
        5,
        &[&[
            On(0.54, 0.02),
            On(0.28, 0.18),
            On(0.09, 0.48),
            On(0.08, 0.80),
            On(0.30, 0.99),
            On(0.56, 0.86),
            On(0.56, 0.62),
            On(0.34, 0.52),
            On(0.10, 0.68),
        ]],
    ),
    // A straight stem and a small bowl.
    glyph(
        3,
        &[&[
            On(0.38, 0.00),
            On(0.22, 0.32),
            On(0.10, 0.66),
            On(0.16, 0.93),
            On(0.40, 0.97),
            On(0.54, 0.80),
            On(0.42, 0.64),
            On(0.22, 0.68),
            On(0.12, 0.80),
        ]],
    ),
    // Curled in, not closed.
    glyph(
        2,
        &[&[
            On(0.58, 0.10),
            On(0.38, 0.02),
            On(0.14, 0.26),
            On(0.05, 0.62),
            On(0.18, 0.94),
            On(0.46, 0.96),
            On(0.60, 0.74),
            On(0.44, 0.56),
            On(0.22, 0.66),
        ]],
    ),
];

const SEVEN: &[Glyph] = &[
    // Plain.
    glyph(4, &[&[On(0.05, 0.05), Corner(0.64, 0.03), On(0.42, 0.46), On(0.26, 1.00)]]),
    // With a bar.
    glyph(
        3,
        &[
            &[On(0.05, 0.05), Corner(0.66, 0.03), On(0.42, 0.48), On(0.26, 1.00)],
            &[On(0.18, 0.50), On(0.62, 0.47)],
        ],
    ),
    // With a hook, and a round turn.
    glyph(
        3,
        &[&[
            On(0.04, 0.22),
            Corner(0.07, 0.05),
            On(0.40, 0.05),
            On(0.62, 0.10),
            On(0.46, 0.46),
            On(0.34, 1.00),
        ]],
    ),
];

const EIGHT: &[Glyph] = &[
    // In one go, from the top right and crossing itself.
    glyph(
        5,
        &[&[
            On(0.56, 0.12),
            On(0.34, 0.01),
            On(0.12, 0.16),
            On(0.22, 0.38),
            On(0.46, 0.54),
            On(0.60, 0.78),
            On(0.36, 0.99),
            On(0.09, 0.80),
            On(0.24, 0.56),
            On(0.46, 0.40),
            On(0.59, 0.16),
        ]],
    ),
    // Two rings.
    glyph(
        2,
        &[
            &[
                On(0.36, 0.01),
                On(0.16, 0.12),
                On(0.18, 0.36),
                On(0.36, 0.45),
                On(0.53, 0.34),
                On(0.54, 0.11),
                On(0.35, 0.01),
            ],
            &[
                On(0.35, 0.46),
                On(0.10, 0.60),
                On(0.10, 0.86),
                On(0.34, 0.99),
                On(0.60, 0.86),
                On(0.59, 0.60),
                On(0.36, 0.46),
            ],
        ],
    ),
    // From the middle, as a slanted S closed by a stroke upwards.
    glyph(
        3,
        &[&[
            On(0.62, 0.04),
            On(0.36, 0.04),
            On(0.13, 0.20),
            On(0.30, 0.44),
            On(0.56, 0.68),
            On(0.46, 0.95),
            On(0.18, 0.95),
            On(0.12, 0.72),
            On(0.34, 0.46),
            On(0.66, 0.06),
        ]],
    ),
];

const NINE: &[Glyph] = &[
    // A straight tail.
    glyph(
        4,
        &[&[
            On(0.58, 0.12),
            On(0.34, 0.00),
            On(0.08, 0.18),
            On(0.14, 0.44),
            On(0.40, 0.44),
            Corner(0.60, 0.10),
            On(0.58, 0.52),
            On(0.54, 1.00),
        ]],
    ),
    // A bowed tail that ends to the left.
    glyph(
        4,
        &[&[
            On(0.60, 0.16),
            On(0.38, 0.01),
            On(0.11, 0.14),
            On(0.12, 0.42),
            On(0.38, 0.48),
            On(0.60, 0.24),
            On(0.62, 0.50),
            On(0.50, 0.86),
            On(0.28, 1.00),
            On(0.08, 0.92),
        ]],
    ),
    // A small ring, and a tail that leans.
    glyph(
        3,
        &[&[
            On(0.58, 0.06),
            On(0.30, 0.02),
            On(0.16, 0.22),
            On(0.26, 0.38),
            On(0.50, 0.28),
            On(0.60, 0.05),
            On(0.54, 0.40),
            On(0.34, 1.00),
        ]],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strokes_can_be_drawn() {
        for glyph in GLYPHS.into_iter().flatten() {
            assert!(glyph.weight > 0 && !glyph.strokes.is_empty());
            for stroke in glyph.strokes {
                assert!(stroke.len() >= 2 && matches!(stroke[0], On(..)), "{stroke:?}");
                let within =
                    |&(On(x, y) | Corner(x, y)): &Mark| (0.0..=0.8).contains(&x) && (0.0..=1.0).contains(&y);
                assert!(stroke.iter().all(within), "{stroke:?}");
            }
        }
    }
}
