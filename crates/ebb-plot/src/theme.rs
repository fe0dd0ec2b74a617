//! Colours of the light and of the dark theme, which do not rely on telling red from green.

/// A colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// Red.
    pub red: u8,
    /// Green.
    pub green: u8,
    /// Blue.
    pub blue: u8,
}

/// The background on which a plot is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Theme {
    /// Dark on white.
    #[default]
    Light,
    /// Light on near black.
    Dark,
}

impl Theme {
    /// The colour of the background.
    pub fn background(self) -> Colour {
        self.for_theme(0xFFFFFF, 0x15191F)
    }

    /// The colour of titles and of all that must be seen first.
    pub fn ink(self) -> Colour {
        self.for_theme(0x1F2328, 0xE6EAEE)
    }

    /// The colour of labels and axes.
    pub fn soft_ink(self) -> Colour {
        self.for_theme(0x4B545E, 0xAAB3BD)
    }

    /// The colour of grid lines, and of cells without a value.
    pub fn grid(self) -> Colour {
        self.for_theme(0xE2E5E9, 0x2F363E)
    }

    /// The colour of the series with this index.
    ///
    /// The first [`Theme::N_COLOURS`] are distinct for colour-blind readers. Later ones repeat them paler,
    /// then deeper, and need another distinction.
    pub fn series(self, idx: usize) -> Colour {
        let base = colour(self.palette()[idx % Theme::N_COLOURS]);
        match (idx / Theme::N_COLOURS) % 3 {
            0 => base,
            1 => base.mix(self.background(), 0.5),
            _ => base.mix(self.ink(), 0.45),
        }
    }

    /// How many series have a distinct colour.
    pub const N_COLOURS: usize = 10;

    /// Colours of Okabe and Ito, "Color Universal Design" (2008), as far as they contrast with the
    /// background. The others were searched for, so that all ten stay distinct. The first four serve both
    /// themes.
    fn palette(self) -> [u32; Theme::N_COLOURS] {
        match self {
            Theme::Light => [
                0x0072B2, 0xD55E00, 0x009E73, 0xCC79A7, 0xF82860, 0x5500CC, 0x333333, 0x7F2704, 0xF840E8,
                0x280850,
            ],
            Theme::Dark => [
                0x0072B2, 0xD55E00, 0x009E73, 0xCC79A7, 0xE69F00, 0x56B4E9, 0xF2F2F2, 0xF0E442, 0xF80058,
                0x7848F8,
            ],
        }
    }

    fn for_theme(self, light: u32, dark: u32) -> Colour {
        match self {
            Theme::Light => colour(light),
            Theme::Dark => colour(dark),
        }
    }
}

impl Colour {
    /// The colour of a share from 0 to 1: viridis, which only gets lighter.
    pub(crate) fn of_share(share: f64) -> Colour {
        let place = share.clamp(0.0, 1.0) * (VIRIDIS.len() - 1) as f64;
        let below = (place as usize).min(VIRIDIS.len() - 2);
        colour(VIRIDIS[below]).mix(colour(VIRIDIS[below + 1]), place - below as f64)
    }

    /// This colour mixed with a share of another.
    pub(crate) fn mix(self, other: Colour, share: f64) -> Colour {
        let mixed =
            |one: u8, two: u8| (f64::from(one) * (1.0 - share) + f64::from(two) * share).round() as u8;
        Colour {
            red: mixed(self.red, other.red),
            green: mixed(self.green, other.green),
            blue: mixed(self.blue, other.blue),
        }
    }

    /// Black or white, whichever contrasts with this colour.
    pub(crate) fn readable(self) -> Colour {
        let luminance = self.luminance();
        // At this luminance black and white have the same contrast.
        if luminance > 0.179 { colour(0x111111) } else { colour(0xFFFFFF) }
    }

    /// The relative luminance, from 0 to 1.
    fn luminance(self) -> f64 {
        self.linear().iter().zip([0.2126, 0.7152, 0.0722]).map(|(light, weight)| light * weight).sum()
    }

    /// Linear red, green and blue.
    fn linear(self) -> [f64; 3] {
        [self.red, self.green, self.blue].map(|part| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        })
    }
}

const VIRIDIS: [u32; 9] =
    [0x440154, 0x472D7B, 0x3B528B, 0x2C728E, 0x21918C, 0x28AE80, 0x5EC962, 0xADDC30, 0xFDE725];

fn colour(hex: u32) -> Colour {
    let [_, red, green, blue] = hex.to_be_bytes();
    Colour { red, green, blue }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Matrix = [[f64; 3]; 3];

    /// Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision
    /// deficiency" (2009), full severity.
    const DEUTERANOPIA: Matrix =
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]];
    const PROTANOPIA: Matrix =
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]];
    const NONE: Matrix = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];

    fn times(matrix: &Matrix, light: [f64; 3]) -> [f64; 3] {
        [0, 1, 2].map(|row| (0..3).map(|at| matrix[row][at] * light[at]).sum::<f64>().clamp(0.0, 1.0))
    }

    /// CIE L*a*b*, white D65.
    fn lab(light: [f64; 3]) -> [f64; 3] {
        let to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]];
        let xyz = [0, 1, 2].map(|row| (0..3).map(|at| to_xyz[row][at] * light[at]).sum::<f64>());
        let [x, y, z] = [xyz[0] / 0.9505, xyz[1], xyz[2] / 1.089]
            .map(|part: f64| if part > 0.008856 { part.cbrt() } else { 7.787 * part + 16.0 / 116.0 });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn distance(one: Colour, two: Colour, eye: &Matrix) -> f64 {
        let [one, two] = [one, two].map(|colour| lab(times(eye, colour.linear())));
        one.iter().zip(two).map(|(one, two)| (one - two).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn every_pair_of_colours_stays_apart_for_every_eye() {
        for theme in [Theme::Light, Theme::Dark] {
            for eye in [&NONE, &DEUTERANOPIA, &PROTANOPIA] {
                for one in 0..Theme::N_COLOURS {
                    for two in 0..one {
                        let apart = distance(theme.series(one), theme.series(two), eye);
                        assert!(apart > 12.0, "{theme:?}: {one} and {two} are {apart} apart");
                    }
                    let apart = distance(theme.series(one), theme.background(), eye);
                    assert!(apart > 25.0, "{theme:?}: {one} is {apart} from the ground");
                }
            }
        }
    }

    #[test]
    fn every_colour_stands_out_from_its_ground_as_graphics_should() {
        let contrast = |one: Colour, two: Colour| {
            let (one, two) = (one.luminance(), two.luminance());
            (one.max(two) + 0.05) / (one.min(two) + 0.05)
        };
        for theme in [Theme::Light, Theme::Dark] {
            for idx in 0..Theme::N_COLOURS {
                let found = contrast(theme.series(idx), theme.background());
                assert!(found >= 3.0, "{theme:?}: {idx} has a contrast of {found}");
            }
        }
        assert!(contrast(colour(0xF0E442), colour(0xFFFFFF)) < 3.0);
        assert!((0..4).all(|idx| Theme::Light.series(idx) == Theme::Dark.series(idx)));
    }

    #[test]
    fn indistinguishable_red_and_green_would_be_noticed() {
        let (red, green) = (colour(0xA05A20), colour(0x6B7A20));
        assert!(distance(red, green, &DEUTERANOPIA) < 12.0 && distance(red, green, &NONE) > 25.0);
    }

    #[test]
    fn shares_get_lighter_all_the_way() {
        let lightness: Vec<_> =
            (0..=20).map(|at| lab(Colour::of_share(f64::from(at) / 20.0).linear())[0]).collect();
        assert!(lightness.windows(2).all(|pair| pair[0] < pair[1]), "{lightness:?}");
        assert_eq!(Colour::of_share(-1.0), colour(0x440154));
        assert_eq!(Colour::of_share(2.0), colour(0xFDE725));
    }

    #[test]
    fn words_are_readable_on_any_colour() {
        assert_eq!(colour(0xF0E442).readable(), colour(0x111111));
        assert_eq!(colour(0x0072B2).readable(), colour(0xFFFFFF));
    }

    #[test]
    fn later_series_are_no_copies() {
        let all: Vec<_> = (0..3 * Theme::N_COLOURS).map(|idx| Theme::Light.series(idx)).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
    }
}
