//! Draws one of each kind of plot, light and dark, into a folder: `cargo run -p ebb-plot --example gallery --
//! FOLDER`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::path::Path;

use ebb_plot::{
    BarSeries, Bars, BoxSeries, Boxes, Channels, ContactSheet, HeatMap, Lines, Mosaic, PlotError, Raster,
    RasterRow, Series, SheetRow, Size, Svg, Theme,
};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "gallery".into());
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    for (theme, ground) in [(Theme::Light, "light"), (Theme::Dark, "dark")] {
        let save = |name: &str, svg: Result<Svg, PlotError>| -> Result<(), Box<dyn Error>> {
            let svg = svg?;
            fs::write(folder.join(format!("{name}-{ground}.svg")), svg.as_str())?;
            fs::write(folder.join(format!("{name}-{ground}.png")), svg.png(2)?)?;
            Ok(())
        };
        let size = Size::default();
        save("lines", lines().draw(theme, size))?;
        save("bars", bars().draw(theme, size))?;
        save("boxes", boxes().draw(theme, size))?;
        save("raster", raster().draw(theme, size))?;
        save("heat", heat().draw(theme, size))?;
        save("heat-large", heat_large().draw(theme, size))?;
        save("mosaic", mosaic(20, 10).draw(theme, size))?;
        save("mosaic-large", mosaic(200, 26).draw(theme, Size { width_px: 1000, height_px: 500 }))?;
        fs::write(folder.join(format!("sheet-{ground}.png")), sheet().png(theme)?)?;
    }
    Ok(())
}

/// Pseudo-random numbers from 0 to 1 that are the same on every machine.
fn noise(seed: usize) -> f64 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ (mixed >> 32)) >> 11) as f64 / (1_u64 << 53) as f64
}

fn lines() -> Lines {
    let methods = ["fedavg", "fedprox", "scaffold", "stale", "mifa", "fl-fdms", "fedau", "fedawe"];
    let series = methods.iter().enumerate().map(|(idx, name)| {
        let value = |round: usize| {
            let reached = 0.93 - 0.035 * idx as f64;
            reached * (1.0 - (-(round as f64) / (12.0 + 3.0 * idx as f64)).exp())
                + 0.02 * (noise(1000 * idx + round) - 0.5)
        };
        // One line has a gap, like a run whose evaluations were lost.
        let shown =
            |round: usize| if idx == 2 && (40..50).contains(&round) { f64::NAN } else { value(round) };
        let points: Vec<_> = (0..=120).map(|round| (round as f64, shown(round))).collect();
        let band = (idx < 2).then(|| points.iter().map(|&(_, y)| (y - 0.03, y + 0.03)).collect());
        Series { name: (*name).into(), points, band }
    });
    Lines {
        title: "Test accuracy with half of the clients absent".into(),
        x_label: "round".into(),
        y_label: "test accuracy".into(),
        series: series.collect(),
    }
}

fn bars() -> Bars {
    let worlds = ["always up", "Bernoulli 0.5", "Markov, slow", "cyclic by day and night", "recorded traces"];
    let series = ["fedavg", "fl-fdms", "mifa"].iter().enumerate().map(|(idx, name)| {
        let values: Vec<_> = (0..worlds.len()).map(|at| 0.9 - 0.1 * at as f64 + 0.05 * idx as f64).collect();
        let spread = values.iter().map(|value| (value - 0.03, value + 0.03)).collect();
        BarSeries { name: (*name).into(), values, spread: Some(spread) }
    });
    Bars {
        title: "Final accuracy, mean of five seeds and 95 % interval".into(),
        x_label: "world".into(),
        y_label: "test accuracy".into(),
        groups: worlds.map(String::from).to_vec(),
        series: series.collect(),
        by_group: false,
    }
}

fn boxes() -> Boxes {
    let values = |idx: usize| (0..60).map(move |at| 2.0 + idx as f64 + 8.0 * noise(100 * idx + at).powi(4));
    Boxes {
        title: "Response time".into(),
        x_label: String::new(),
        y_label: "seconds".into(),
        groups: (0..12).map(|idx| format!("speed class {idx}")).collect(),
        series: vec![BoxSeries {
            name: String::new(),
            values: (0..12).map(|idx| values(idx).collect()).collect(),
        }],
    }
}

fn raster() -> Raster {
    let rows = (0..60).map(|client| RasterRow {
        name: format!("client {client}"),
        cells: (0..300)
            .map(|round| match noise(7919 * client + round / (1 + client / 6)) {
                uniform if uniform < 0.55 => Some(0),
                uniform if uniform < 0.65 => Some(1),
                _ => None,
            })
            .collect(),
    });
    Raster {
        title: "Who answered".into(),
        x_label: "round".into(),
        y_label: String::new(),
        first_column: 1,
        column_width: 1,
        states: vec!["in time".into(), "late".into()],
        rows: rows.collect(),
    }
}

fn heat() -> HeatMap {
    let names: Vec<_> = (0..10).map(|at| at.to_string()).collect();
    let value = |row: usize, column: usize| match (row, column) {
        (3, 7) => f64::NAN,
        (row, column) if row == column => 0.8 + 0.2 * noise(row),
        (row, column) => 0.08 * noise(31 * row + column),
    };
    HeatMap {
        title: "Confusion of digits".into(),
        x_label: "predicted".into(),
        y_label: "true".into(),
        value_label: "share".into(),
        rows: names.clone(),
        columns: names,
        values: (0..10).map(|row| (0..10).map(|column| value(row, column)).collect()).collect(),
        ..HeatMap::default()
    }
}

fn heat_large() -> HeatMap {
    let names: Vec<_> = (0..150).map(|at| format!("client {at}")).collect();
    let value = |row: usize, column: usize| {
        if row / 30 == column / 30 {
            0.6 + 0.4 * noise(151 * row + column)
        } else {
            0.4 * noise(151 * row + column)
        }
    };
    HeatMap {
        title: "Client similarity".into(),
        x_label: String::new(),
        y_label: String::new(),
        value_label: "cosine of updates".into(),
        values: (0..150).map(|row| (0..150).map(|column| value(row, column)).collect()).collect(),
        rows: names.clone(),
        columns: names,
        gap_label: "never met".into(),
        blank_diagonal: true,
        hide_names: false,
        breaks: (30..150).step_by(30).collect(),
    }
}

fn mosaic(n_clients: usize, n_labels: usize) -> Mosaic {
    let count = |client: usize, label: usize| {
        let size = 100.0 + 900.0 * noise(client).powi(3);
        let share = if (client + label).is_multiple_of(n_labels / 3) {
            1.0
        } else {
            0.2 * noise(17 * client + label)
        };
        (size * share) as u64
    };
    Mosaic {
        title: format!("Labels of {n_clients} clients"),
        x_label: "client, as wide as its share of the samples".into(),
        y_label: "share of the client's samples".into(),
        clients: (0..n_clients).map(|at| at.to_string()).collect(),
        labels: (0..n_labels).map(|at| if n_labels > 10 { letter(at) } else { at.to_string() }).collect(),
        counts: (0..n_clients)
            .map(|client| (0..n_labels).map(|label| count(client, label)).collect())
            .collect(),
    }
}

fn letter(at: usize) -> String {
    char::from(b'a' + at as u8).to_string()
}

fn sheet() -> ContactSheet {
    let image = |seed: usize| -> Vec<u8> {
        let (x, y) = (14.0 + 6.0 * (noise(seed) - 0.5), 14.0 + 6.0 * (noise(seed + 1) - 0.5));
        let radius = 5.0 + 6.0 * noise(seed + 2);
        let pixel = |at: usize| {
            let distance = ((at % 28) as f64 - x).hypot((at / 28) as f64 - y);
            (255.0 * (1.0 - (distance - radius).abs() / 2.0).clamp(0.0, 1.0)) as u8
        };
        (0..28 * 28).map(pixel).collect()
    };
    let rows = (0..5).map(|row| SheetRow {
        name: format!("{row} \u{b7} ring"),
        images: (0..12).map(|column| image(100 * row + 3 * column)).collect(),
    });
    ContactSheet {
        title: "Rings".into(),
        width_px: 28,
        height_px: 28,
        channels: Channels::Grey,
        zoom: 2,
        rows: rows.collect(),
    }
}
