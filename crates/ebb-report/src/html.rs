//! An HTML page that holds all it shows: it opens from disk and loads nothing.

use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ebb_plot::{BarSeries, BoxSeries, Colour, PlotError, Raster, RasterRow, Series, Size, Svg, Theme};
use serde_json::{Value, json};

use crate::Section;
use crate::plots::{Plot, PlotKind, rounded};

const CSS: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Larger drawings are shown as PNG.
const MAX_SVG_BYTES: usize = 60_000;

/// A raster of more cells is an image inside a drawing.
const MAX_DRAWN_CELLS: usize = 900;

/// The number of series whose colours follow the page's theme.
const N_SERIES: usize = 30;

/// A text with the special characters of HTML escaped.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A page that is being written.
pub(crate) struct Page {
    body: String,
    n_tabs: usize,
    n_figures: usize,
}

impl Page {
    pub(crate) fn new(title: &str, about: &str) -> Page {
        let (title, about) = (escaped(title), escaped(about));
        let theme = "<button id=\"theme\" type=\"button\">light / dark</button>";
        let body = format!("<header>{theme}<h1>{title}</h1><p class=\"soft\">{about}</p></header>\n");
        Page { body, n_tabs: 0, n_figures: 0 }
    }

    /// Links to the sections.
    pub(crate) fn contents(&mut self, sections: &[(String, String)]) {
        let link = |(id, title): &(String, String)| format!("<a href=\"#{id}\">{}</a>", escaped(title));
        let links: Vec<_> = sections.iter().map(link).collect();
        let _ = writeln!(self.body, "<nav aria-label=\"sections\">{}</nav>\n<main>", links.join(" "));
    }

    pub(crate) fn section(&mut self, id: &str, title: &str) {
        let _ = writeln!(self.body, "<h2 id=\"{id}\">{}</h2>", escaped(title));
    }

    pub(crate) fn subsection(&mut self, title: &str) {
        let _ = writeln!(self.body, "<h3>{}</h3>", escaped(title));
    }

    pub(crate) fn sentences(&mut self, sentences: &[String]) {
        let items: String = sentences.iter().map(|text| format!("<li>{}</li>", escaped(text))).collect();
        let _ = writeln!(self.body, "<ul>{items}</ul>");
    }

    pub(crate) fn note(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"soft\">{}</p>", escaped(text));
    }

    /// A table; its first row is the heading. Screen readers announce the title.
    pub(crate) fn table(&mut self, title: &str, rows: &[Vec<String>]) {
        self.table_of("table", title, rows);
    }

    fn table_of(&mut self, class: &str, title: &str, rows: &[Vec<String>]) {
        let Some((heading, rows)) = rows.split_first() else { return };
        let cells = |row: &[String], tag: &str| -> String {
            row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
        };
        let heading = cells(heading, "th");
        let rows: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", cells(row, "td"))).collect();
        let title = escaped(title);
        let _ = writeln!(
            self.body,
            "<div class=\"{class}\" role=\"region\" aria-label=\"{title}\" tabindex=\"0\"><table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table></div>"
        );
    }

    /// The sentences, tables, note and images of a section.
    pub(crate) fn section_body(&mut self, section: &Section) {
        if !section.sentences.is_empty() {
            self.sentences(&section.sentences);
        }
        let class = if section.prose { "table prose" } else { "table" };
        for (title, rows) in &section.tables {
            if !title.is_empty() {
                self.subsection(title);
            }
            self.table_of(class, if title.is_empty() { &section.title } else { title }, rows);
        }
        if !section.note.is_empty() {
            self.note(&section.note);
        }
        for (caption, svg) in &section.images {
            let _ =
                writeln!(self.body, "<figure><h3>{}</h3>{}</figure>", escaped(caption), themed(svg, caption));
        }
    }

    /// A long text that is collapsed at first.
    pub(crate) fn collapsible(&mut self, title: &str, text: &str) {
        let (title, text) = (escaped(title), escaped(text));
        let _ = writeln!(self.body, "<details><summary>{title}</summary><pre>{text}</pre></details>");
    }

    pub(crate) fn plot(&mut self, plot: &Plot) -> Result<(), PlotError> {
        let figure = self.figure(plot)?;
        self.body.push_str(&figure);
        Ok(())
    }

    /// Plots as tabs, of which one is shown at a time.
    pub(crate) fn tabs(&mut self, plots: &[(&str, Plot)]) -> Result<(), PlotError> {
        let group = self.n_tabs;
        self.n_tabs += 1;
        let id = |at: usize| format!("tab{group}-{at}");
        let shown = |at: usize| format!("#{0}:checked ~ #panel-{0} {{ display: block }}", id(at));
        let rules: Vec<_> = (0..plots.len()).map(shown).collect();
        let _ = write!(self.body, "<div class=\"tabs\"><style>{}</style>", rules.join(" "));
        for (at, (label, _)) in plots.iter().enumerate() {
            let checked = if at == 0 { " checked" } else { "" };
            let (id, label) = (id(at), escaped(label));
            let input = format!("<input type=\"radio\" name=\"tabs{group}\" id=\"{id}\"{checked}>");
            let _ = write!(self.body, "{input}<label for=\"{id}\">{label}</label> ");
        }
        for (at, (_, plot)) in plots.iter().enumerate() {
            let figure = self.figure(plot)?;
            let _ = write!(self.body, "<div class=\"panel\" id=\"panel-{}\">{figure}</div>", id(at));
        }
        self.body.push_str("</div>\n");
        Ok(())
    }

    pub(crate) fn finish(self, title: &str) -> String {
        let css = CSS.replace("LIGHT", &variables(Theme::Light)).replace("DARK", &variables(Theme::Dark));
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <link rel=\"icon\" href=\"data:,\"><title>{}</title><style>{css}</style></head><body>\n{}</main>\n\
             <script>{SCRIPT}</script></body></html>\n",
            escaped(title),
            self.body
        )
    }

    fn figure(&mut self, plot: &Plot) -> Result<String, PlotError> {
        let id = format!("data-{}", self.n_figures);
        self.n_figures += 1;
        let mut shown = String::new();
        let mut sizes = Vec::new();
        for (class, size) in [("wide", plot.wide()), ("narrow", plot.narrow())] {
            let (drawing, light) = drawing(plot, class, size)?;
            shown.push_str(&drawing);
            sizes.push(json!({ "class": class, "width": size.width_px, "area": area_of(&light) }));
        }
        let mut data = script_data(plot);
        data["sizes"] = Value::from(sizes);
        data["file"] = Value::from(format!("{}.csv", plot.name));
        // A `<` could end the script element, even within a string.
        let data = data.to_string().replace('<', "\\u003c");
        let (title, caption) = (escaped(&plot.title), escaped(&plot.caption));
        Ok(format!(
            "<figure data-plot=\"{id}\"><h4>{title}</h4>{shown}<figcaption><span>{caption}</span> \
             <a class=\"csv\" href=\"#\">data as CSV</a></figcaption>\
             <script type=\"application/json\" id=\"{id}\">{data}</script></figure>\n"
        ))
    }
}

/// The colours of a theme as variables of the page.
fn variables(theme: Theme) -> String {
    let named = colours(theme).into_iter().zip(colour_names());
    named.map(|(colour, name)| format!("--{name}: {};", hex(colour))).collect()
}

fn colour_names() -> Vec<String> {
    let fixed = ["ground", "ink", "soft", "grid"].map(str::to_owned);
    fixed.into_iter().chain((0..N_SERIES).map(|idx| format!("p{idx}"))).collect()
}

fn colours(theme: Theme) -> Vec<Colour> {
    let fixed = [theme.background(), theme.ink(), theme.soft_ink(), theme.grid()];
    fixed.into_iter().chain((0..N_SERIES).map(|idx| theme.series(idx))).collect()
}

fn hex(colour: Colour) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.red, colour.green, colour.blue)
}

/// The plot as HTML, and its SVG in the light theme.
fn drawing(plot: &Plot, class: &str, size: Size) -> Result<(String, Svg), PlotError> {
    if let PlotKind::Raster(raster, _) = &plot.kind {
        let n_cells = raster.rows.len() * raster.rows.first().map_or(0, |row| row.cells.len());
        if n_cells > MAX_DRAWN_CELLS {
            let (drawing, frame) = with_pixels(raster, &plot.title, size)?;
            return Ok((format!("<div class=\"{class}\">{drawing}</div>"), frame));
        }
    }
    let light = plot.draw(Theme::Light, size)?;
    if light.as_str().len() <= MAX_SVG_BYTES {
        return Ok((format!("<div class=\"{class}\">{}</div>", themed(light.as_str(), &plot.title)), light));
    }
    let image = |svg: &Svg, theme: &str| -> Result<String, PlotError> {
        let (pixels, alt) = (STANDARD.encode(svg.png(2)?), escaped(&plot.title));
        Ok(format!("<img class=\"{theme}\" alt=\"{alt}\" src=\"data:image/png;base64,{pixels}\">"))
    };
    let dark = plot.draw(Theme::Dark, size)?;
    let both = image(&light, "light")? + &image(&dark, "dark")?;
    Ok((format!("<div class=\"{class}\">{both}</div>"), light))
}

/// A raster as an image of one pixel a cell, within a drawing of the frame around it. The colours of states
/// are the same in both themes, so that one image serves both.
fn with_pixels(raster: &Raster, title: &str, size: Size) -> Result<(String, Svg), PlotError> {
    let frame = raster.frame(Theme::Light, size)?;
    let drawing = themed(frame.as_str(), title);
    let Some(area) = frame.area() else { return Ok((drawing, frame)) };
    // The drawing is measured in the units of its view box.
    let units = units_in_a_pixel(frame.as_str(), size);
    let [left, top, right, bottom] =
        [area.left_px, area.top_px, area.right_px, area.bottom_px].map(|edge| units * edge);
    let image = format!(
        "<image x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" \
         style=\"image-rendering: pixelated\" href=\"data:image/png;base64,{}\"/></svg>",
        right - left,
        bottom - top,
        STANDARD.encode(raster.pixels(Theme::Light)?)
    );
    Ok((drawing.replacen("</svg>", &image, 1), frame))
}

fn units_in_a_pixel(svg: &str, size: Size) -> f64 {
    let width =
        svg.split_once("viewBox=\"0 0 ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok());
    width.map_or(1.0, |width| width / f64::from(size.width_px))
}

/// A drawing whose colours follow the page's theme, with a label for screen readers.
fn themed(svg: &str, title: &str) -> String {
    let named = format!("aria-label=\"{}\"", escaped(title));
    // SVG elements of a page need no namespace. Text on a cell is white in both themes, for the cell is dark.
    let mut text = svg
        .replace(" xmlns=\"http://www.w3.org/2000/svg\"", "")
        .replacen("aria-label=\"\"", &named, 1)
        .replace("fill=\"#FFFFFF\">", "fill=\"white\">");
    for (colour, name) in colours(Theme::Light).into_iter().zip(colour_names()) {
        text = text.replace(&format!("\"{}\"", hex(colour)), &format!("\"var(--{name})\""));
    }
    text
}

/// The plotting area: its edges in pixels, and the values at them.
fn area_of(svg: &Svg) -> Value {
    svg.area().map_or(Value::Null, |area| {
        json!({
            "left": area.left_px, "top": area.top_px, "right": area.right_px, "bottom": area.bottom_px,
            "across": [area.across.0, area.across.1], "down": [area.down.0, area.down.1],
        })
    })
}

/// The data from which the page's script writes tooltips and CSV files. A CSV text is included only where the
/// script cannot derive it.
fn script_data(plot: &Plot) -> Value {
    match &plot.kind {
        PlotKind::Lines(lines) => {
            let series = lines.series.iter().map(|series| {
                let points: Vec<_> = (0..series.points.len()).map(|at| point_data(series, at)).collect();
                json!({ "name": series.name, "points": points })
            });
            let mut all =
                json!({ "kind": "lines", "x": lines.x_label, "series": series.collect::<Vec<_>>() });
            if plot.has_all_points {
                all["heading"] = Value::from(plot.table[0].clone());
            } else {
                all["csv"] = Value::from(plot.csv());
            }
            all
        }
        PlotKind::Bars(bars) => {
            let of =
                |group: usize| bars.series.iter().map(|series| bar_text(series, group)).collect::<Vec<_>>();
            let words: Vec<_> = (0..bars.groups.len()).map(of).collect();
            json!({ "kind": "groups", "groups": bars.groups, "words": words, "csv": plot.csv() })
        }
        PlotKind::Boxes(boxes) => {
            let of =
                |group: usize| boxes.series.iter().map(|series| box_text(series, group)).collect::<Vec<_>>();
            let words: Vec<_> = (0..boxes.groups.len()).map(of).collect();
            json!({ "kind": "groups", "groups": boxes.groups, "words": words, "csv": plot.csv() })
        }
        PlotKind::Raster(raster, [each, of]) => {
            let row = |row: &RasterRow| -> String {
                row.cells.iter().map(|cell| cell.map_or('.', |state| char::from(b'0' + state))).collect()
            };
            let cells: Vec<_> = raster.rows.iter().map(row).collect();
            let first = raster.first_column;
            let states = &raster.states;
            json!({ "kind": "cells", "states": states, "each": each, "of": of, "first": first, "cells": cells })
        }
        PlotKind::Heat(map) => {
            let row = |row: &Vec<f64>| row.iter().map(|value| finite(*value)).collect::<Vec<_>>();
            let values: Vec<_> = map.values.iter().map(row).collect();
            json!({ "kind": "heat", "rows": map.rows, "values": values, "csv": plot.csv() })
        }
    }
}

fn point_data(series: &Series, at: usize) -> Value {
    let (x, y) = series.points[at];
    match series.band.as_ref().and_then(|band| band.get(at)) {
        Some((low, high)) => json!([rounded(x), rounded(y), rounded(*low), rounded(*high)]),
        None => json!([rounded(x), rounded(y)]),
    }
}

fn bar_text(series: &BarSeries, group: usize) -> String {
    let value = series.values.get(group).copied().unwrap_or(f64::NAN);
    let spread = series.spread.as_ref().and_then(|spread| spread.get(group));
    let spread = spread.map_or(String::new(), |(low, high)| format!(" ({low:.4} to {high:.4})"));
    format!("{} {value:.4}{spread}", series.name).trim().to_owned()
}

fn box_text(series: &BoxSeries, group: usize) -> String {
    let mut values = series.values.get(group).cloned().unwrap_or_default();
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (values.first(), values.last()) else {
        return format!("{}: none", series.name);
    };
    let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
    format!("{}: median {median}, {least} to {most}", series.name)
}

fn finite(value: f64) -> Value {
    if value.is_finite() { Value::from(rounded(value)) } else { Value::Null }
}
