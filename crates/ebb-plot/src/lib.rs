//! Plots as SVG and PNG, with one look.
//!
//! A plot is plain data ([`Lines`], [`Bars`], [`Boxes`], [`Raster`], [`HeatMap`], [`Mosaic`]). `draw` makes
//! an [`Svg`] of it in a [`Theme`] and a [`Size`], and [`Svg::png`] renders that. [`ContactSheet`] shows
//! images and knows only pixels.
//!
//! - The same data give the same bytes. The font is part of the program; no system font is used.
//! - Colour is never the only distinction: markers, places or words distinguish too. The colours stay
//!   distinct for readers with red-green colour blindness.
//! - A value that is not finite is a gap. Data with nothing to show are an error, never a panic.
//!
//! ```
//! use ebb_plot::{Lines, Series, Size, Theme};
//!
//! let lines = Lines {
//!     title: "Accuracy".into(),
//!     x_label: "round".into(),
//!     y_label: "accuracy".into(),
//!     series: vec![Series { name: "fedavg".into(), points: vec![(1.0, 0.4), (2.0, 0.6)], band: None }],
//! };
//! let svg = lines.draw(Theme::Light, Size::default())?;
//! assert!(svg.as_str().contains("fedavg"));
//! let _png: Vec<u8> = svg.png(2)?;
//! # Ok::<(), ebb_plot::PlotError>(())
//! ```

#![forbid(unsafe_code)]

mod axis;
mod bars;
mod boxes;
mod canvas;
mod cells;
mod error;
mod frame;
mod heat;
mod lines;
mod mosaic;
mod pixels;
mod raster;
mod sheet;
mod svg;
mod theme;

pub use bars::{BarSeries, Bars};
pub use boxes::{BoxSeries, Boxes};
pub use error::PlotError;
pub use heat::HeatMap;
pub use lines::{Lines, Series};
pub use mosaic::Mosaic;
pub use raster::{Raster, RasterRow};
pub use sheet::{Channels, ContactSheet, SheetRow};
pub use svg::{Area, Size, Svg};
pub use theme::{Colour, Theme};
