//! Why something could not be drawn.

use std::fmt;

use crate::svg::MAX_SIDE_PX;

/// Why something could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlotError {
    /// There is not a single value that could be shown.
    Nothing {
        /// The picture's title.
        title: String,
    },
    /// Parts of the data do not fit each other.
    Uneven {
        /// The picture's title.
        title: String,
        /// What was expected, and what was found.
        message: String,
    },
    /// The size leaves no room for the data beside title, legend and labels.
    TooSmall {
        /// The picture's title.
        title: String,
        /// Width asked for.
        width_px: u32,
        /// Height asked for.
        height_px: u32,
    },
    /// No picture has such a size.
    Size {
        /// Width asked for.
        width_px: u64,
        /// Height asked for.
        height_px: u64,
    },
    /// The picture could not be turned into pixels.
    Pixels {
        /// What the renderer said.
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
            PlotError::Nothing { title } => write!(f, "picture \"{title}\": there is no value to show"),
            PlotError::Uneven { title, message } => write!(f, "picture \"{title}\": {message}"),
            PlotError::TooSmall { title, width_px, height_px } => write!(
                f,
                "picture \"{title}\": {width_px} x {height_px} pixels leave no room for the data: \
                 ask for more, or shorten names"
            ),
            PlotError::Size { width_px, height_px } => write!(
                f,
                "a picture of {width_px} x {height_px} pixels: each side has between 1 and {MAX_SIDE_PX}"
            ),
            PlotError::Pixels { message } => write!(f, "turning a picture into pixels: {message}"),
        }
    }
}

impl std::error::Error for PlotError {}
