//! Errors of drawing.

use std::fmt;

use crate::svg::MAX_SIDE_PX;

/// Why a plot could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlotError {
    /// The data have no value that can be shown.
    Nothing {
        /// The plot's title.
        title: String,
    },
    /// Parts of the data do not fit each other.
    Uneven {
        /// The plot's title.
        title: String,
        /// What was expected, and what was found.
        message: String,
    },
    /// The size leaves no space for the data beyond title, legend and labels.
    TooSmall {
        /// The plot's title.
        title: String,
        /// The width that was requested.
        width_px: u32,
        /// The height that was requested.
        height_px: u32,
    },
    /// The size is zero or too large.
    Size {
        /// The width that was requested.
        width_px: u64,
        /// The height that was requested.
        height_px: u64,
    },
    /// The plot could not be rendered as pixels.
    Pixels {
        /// The renderer's message.
        message: String,
    },
}

impl PlotError {
    pub(crate) fn nothing(title: &str) -> Self {
        PlotError::Nothing { title: title.to_owned() }
    }

    pub(crate) fn uneven(title: &str, message: impl Into<String>) -> Self {
        PlotError::Uneven { title: title.to_owned(), message: message.into() }
    }

    pub(crate) fn pixels(message: impl fmt::Display) -> Self {
        PlotError::Pixels { message: message.to_string() }
    }
}

impl fmt::Display for PlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlotError::Nothing { title } => write!(f, "plot \"{title}\": there is no value to show"),
            PlotError::Uneven { title, message } => write!(f, "plot \"{title}\": {message}"),
            PlotError::TooSmall { title, width_px, height_px } => write!(
                f,
                "plot \"{title}\": {width_px} x {height_px} pixels leave no space for the data; \
                 use a larger size or shorter names"
            ),
            PlotError::Size { width_px, height_px } => write!(
                f,
                "a plot of {width_px} x {height_px} pixels is not possible; use 1 to {MAX_SIDE_PX} for each side"
            ),
            PlotError::Pixels { message } => write!(f, "the plot could not be rendered as pixels: {message}"),
        }
    }
}

impl std::error::Error for PlotError {}
