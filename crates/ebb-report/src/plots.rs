//! The plots of a report, each with its data.

use ebb_plot::{
    BarSeries, Bars, BoxSeries, Boxes, HeatMap, Lines, PlotError, Raster, RasterRow, Series, Size, Svg, Theme,
};

use crate::compare::{ComparedMetric, Curve, Method};
use crate::load::{Evaluation, Run, STATES, file_name};
use crate::similarity::matrix;

/// More points than this cannot be told apart on a page.
const MAX_POINTS: usize = 300;

/// With more clients than this, the similarity plot shows means over blocks.
const MAX_SIMILARITY_ROWS: usize = 100;

/// A plot and its data.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The name of its files, without ending.
    pub name: String,
    /// The heading above the plot.
    pub title: String,
    /// The remark below the plot.
    pub caption: String,
    /// The kind of plot, with what it draws.
    pub kind: PlotKind,
    /// The data as a table; the first row is the heading.
    pub table: Vec<Vec<String>>,
    /// Whether the page's script can derive the table from the drawing's data.
    pub has_all_points: bool,
}

/// The kinds of plots.
#[derive(Clone, Debug)]
pub enum PlotKind {
    /// Lines with bands.
    Lines(Lines),
    /// Bars.
    Bars(Bars),
    /// Boxes.
    Boxes(Boxes),
    /// The states of clients by round; then clients and rounds a cell, and clients and rounds in all.
    Raster(Raster, [(usize, usize); 2]),
    /// The similarity of clients.
    Heat(HeatMap),
}

impl Plot {
    /// Draws the plot.
    pub fn draw(&self, theme: Theme, size: Size) -> Result<Svg, PlotError> {
        match &self.kind {
            PlotKind::Lines(lines) => lines.draw(theme, size),
            PlotKind::Bars(bars) => bars.draw(theme, size),
            PlotKind::Boxes(boxes) => boxes.draw(theme, size),
            PlotKind::Raster(raster, _) => raster.draw(theme, size),
            PlotKind::Heat(map) => map.draw(theme, size),
        }
    }

    /// A copy with its title in the drawing, for files of their own.
    pub fn with_title(&self) -> Plot {
        let mut own = self.clone();
        let title = match &mut own.kind {
            PlotKind::Lines(lines) => &mut lines.title,
            PlotKind::Bars(bars) => &mut bars.title,
            PlotKind::Boxes(boxes) => &mut boxes.title,
            PlotKind::Raster(raster, _) => &mut raster.title,
            PlotKind::Heat(map) => &mut map.title,
        };
        title.clone_from(&self.title);
        own
    }

    /// The size on a wide page.
    pub fn wide(&self) -> Size {
        match &self.kind {
            PlotKind::Heat(_) => Size { width_px: 760, height_px: 680 },
            _ => Size { width_px: 900, height_px: 440 },
        }
    }

    /// The size on a phone.
    pub fn narrow(&self) -> Size {
        Size { width_px: 420, height_px: 400 }
    }

    /// The data as CSV.
    pub fn csv(&self) -> String {
        let quoted = |cell: &String| match cell.contains([',', '"', '\n']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.clone(),
        };
        let line = |row: &Vec<String>| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
        self.table.iter().map(line).collect()
    }
}

/// A value rounded to six significant digits.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 5 - value.abs().log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 12) as usize).parse().unwrap_or(value)
}

fn heading<const N: usize>(names: [&str; N]) -> Vec<Vec<String>> {
    vec![names.map(str::to_owned).to_vec()]
}

/// The x-axis of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XAxis {
    /// Rounds.
    Rounds,
    /// Virtual hours.
    Hours,
    /// Megabytes uploaded and downloaded.
    Megabytes,
}

impl XAxis {
    /// All axes, in the order of the page's tabs.
    pub const ALL: [XAxis; 3] = [XAxis::Rounds, XAxis::Hours, XAxis::Megabytes];

    /// The label of the axis.
    pub fn label(self) -> &'static str {
        match self {
            XAxis::Rounds => "round",
            XAxis::Hours => "virtual hours",
            XAxis::Megabytes => "MB up and down",
        }
    }

    /// The name in tabs and file names.
    pub fn name(self) -> &'static str {
        match self {
            XAxis::Rounds => "rounds",
            XAxis::Hours => "time",
            XAxis::Megabytes => "bytes",
        }
    }

    fn position(self, evaluation: &Evaluation) -> f64 {
        match self {
            XAxis::Rounds => f64::from(evaluation.round),
            XAxis::Hours => evaluation.hours,
            XAxis::Megabytes => evaluation.megabytes,
        }
    }
}

/// The accuracy or loss of all methods; `None` if it was never measured.
pub fn curves(methods: &[Method<'_>], across: XAxis, what: &'static str) -> Option<Plot> {
    let percent = what == "accuracy";
    let value = |evaluation: &Evaluation| match percent {
        true => evaluation.accuracy.map(|share| 100.0 * share),
        false => evaluation.loss,
    };
    let label = if percent { "accuracy %" } else { "loss" };
    // Intervals are cut to the possible range: accuracy from 0 to 100, loss from 0.
    let most = if percent { 100.0 } else { f64::INFINITY };
    let curves = methods.iter().map(|method| {
        let mut curve = method.curve(value, |evaluation| across.position(evaluation));
        curve.band.iter_mut().for_each(|(low, high)| (*low, *high) = (low.max(0.0), high.min(most)));
        (method.name, curve)
    });
    let curves: Vec<_> = curves.filter(|(_, curve)| !curve.points.is_empty()).collect();
    if curves.is_empty() {
        return None;
    }
    let mut table = heading(["method", across.label(), label, "low", "high"]);
    for (name, curve) in &curves {
        for (at, (x, y)) in curve.points.iter().enumerate() {
            let (low, high) = curve
                .band
                .get(at)
                .map_or((String::new(), String::new()), |(low, high)| (low.to_string(), high.to_string()));
            table.push(vec![(*name).to_owned(), x.to_string(), y.to_string(), low, high]);
        }
    }
    let several = methods.iter().any(|method| method.runs.len() > 1);
    let most = curves.iter().map(|(_, curve)| curve.points.len()).max().unwrap_or(0);
    let series = curves.iter().map(|(name, curve)| {
        let Curve { points, band } = curve.thinned(MAX_POINTS);
        Series { name: (*name).to_owned(), points, band: (!band.is_empty()).then_some(band) }
    });
    let means = several.then_some(
        "Means over seeds, as far as all runs of a method go; bands are 95 % intervals of the mean.",
    );
    let thinned = (most > MAX_POINTS).then(|| {
        format!("{MAX_POINTS} of up to {most} points are drawn and listed here; the records have all.")
    });
    let caption: Vec<_> = means.map(str::to_owned).into_iter().chain(thinned).collect();
    Some(Plot {
        name: format!("{what}-by-{}", across.name()),
        title: format!("Test {what} by {}", across.name()),
        caption: caption.join(" "),
        kind: PlotKind::Lines(Lines {
            title: String::new(),
            x_label: across.label().to_owned(),
            y_label: format!("test {label}"),
            series: series.collect(),
        }),
        table,
        has_all_points: true,
    })
}

/// The final accuracy or loss of each method, as bars with intervals.
pub fn finals(methods: &[Method<'_>]) -> Option<Plot> {
    let goal = ComparedMetric::of(methods);
    let found: Vec<_> = methods
        .iter()
        .filter_map(|method| Some((method.name, method.estimate(|run| goal.value(run))?)))
        .filter(|(_, one)| one.mean.is_finite())
        .collect();
    if found.len() < 2 {
        return None;
    }
    let ends = |one: &ebb_record::stats::Estimate| one.interval().unwrap_or((one.mean, one.mean));
    let mut table = heading(["method", "seeds", goal.name(), "low", "high"]);
    for (name, one) in &found {
        let (low, high) = ends(one);
        let values = [one.mean, low, high].map(|value| value.to_string());
        let cells = [(*name).to_owned(), one.n_values.to_string()];
        table.push(cells.into_iter().chain(values).collect());
    }
    Some(Plot {
        name: "final".to_owned(),
        title: format!("At the end: {}", goal.name()),
        caption: "Means over seeds, with 95 % intervals of the mean where there are several.".to_owned(),
        kind: PlotKind::Bars(Bars {
            title: String::new(),
            x_label: String::new(),
            y_label: format!("test {}", goal.name()),
            groups: found.iter().map(|(name, _)| (*name).to_owned()).collect(),
            series: vec![BarSeries {
                name: String::new(),
                values: found.iter().map(|(_, one)| one.mean).collect(),
                spread: Some(found.iter().map(|(_, one)| ends(one)).collect()),
            }],
            by_group: true,
        }),
        table,
        has_all_points: false,
    })
}

/// How often each client was selected and responded, as two boxes for each method.
pub fn selections(methods: &[Method<'_>]) -> Option<Plot> {
    let first: Vec<_> = methods.iter().filter_map(|method| method.runs.first().copied()).collect();
    if first.iter().all(|run| run.selections.is_empty()) {
        return None;
    }
    let mut table = heading(["method", "client", "selected", "responded"]);
    for run in &first {
        for (client, (selected, responded)) in run.selections.iter().zip(&run.responses).enumerate() {
            let counts = [client, *selected as usize, *responded as usize].map(|count| count.to_string());
            table.push(std::iter::once(run.source.method.clone()).chain(counts).collect());
        }
    }
    let spread = |of: fn(&Run) -> &Vec<u32>| -> Vec<Vec<f64>> {
        first.iter().map(|run| of(run).iter().map(|&count| f64::from(count)).collect()).collect()
    };
    Some(Plot {
        name: "selections".to_owned(),
        title: "How often clients were selected, and responded".to_owned(),
        caption: "Distribution over clients, in the first seed of each method; the data list every client."
            .to_owned(),
        kind: PlotKind::Boxes(Boxes {
            title: String::new(),
            x_label: String::new(),
            y_label: "rounds".to_owned(),
            groups: methods.iter().map(|method| method.name.to_owned()).collect(),
            series: vec![
                BoxSeries { name: "asked".to_owned(), values: spread(|run| &run.selections) },
                BoxSeries { name: "answered".to_owned(), values: spread(|run| &run.responses) },
            ],
        }),
        table,
        has_all_points: false,
    })
}

/// The aggregation weight of each client over its due, in descending order.
pub fn weights(methods: &[Method<'_>]) -> Option<Plot> {
    let mut table = heading(["method", "client", "given", "due", "given over due"]);
    let mut series = Vec::new();
    for run in methods.iter().filter_map(|method| method.runs.first()) {
        let Some(weights) = &run.summary.weights else { continue };
        let over = weights.ratio_to_due();
        for (client, ((given, due), over)) in weights.given.iter().zip(&weights.due).zip(&over).enumerate() {
            let values = [given, due, over].map(|value| rounded(*value).to_string());
            let cells = [run.source.method.clone(), client.to_string()];
            table.push(cells.into_iter().chain(values).collect());
        }
        // The ratio is undefined for clients outside the objective.
        let mut over: Vec<_> = over.into_iter().filter(|over| over.is_finite()).collect();
        over.sort_by(|one, other| other.total_cmp(one));
        let points: Vec<_> = over.into_iter().enumerate().map(|(at, over)| (at as f64, over)).collect();
        if !points.is_empty() {
            let Curve { points, .. } = Curve { points, band: Vec::new() }.thinned(MAX_POINTS);
            series.push(Series { name: run.source.method.clone(), points, band: None });
        }
    }
    if series.is_empty() {
        return None;
    }
    Some(Plot {
        name: "weights".to_owned(),
        title: "Aggregation weight of each client, given over due".to_owned(),
        caption: "First seed of each method. 1: as much as the objective intends; 0: none. Clients are in \
                  descending order. Methods that do not report weights are left out."
            .to_owned(),
        kind: PlotKind::Lines(Lines {
            title: String::new(),
            x_label: "clients, most first".to_owned(),
            y_label: "weight given over due".to_owned(),
            series,
        }),
        table,
        has_all_points: false,
    })
}

/// The deciles of the clients' accuracy or loss on their own test data, worst first.
pub fn per_client(methods: &[Method<'_>]) -> Option<Plot> {
    let goal = ComparedMetric::of(methods);
    let (what, scale) = match goal {
        ComparedMetric::Accuracy => ("accuracy", 100.0),
        ComparedMetric::Loss => ("loss", 1.0),
    };
    let mut table = heading(["method", "percent of clients", what]);
    let mut series = Vec::new();
    for method in methods {
        let decile =
            |tenth: usize| method.estimate(|run| run.summary.oracle_client_deciles.get(tenth).copied());
        let points = (0..=10).filter_map(|tenth| Some((10.0 * tenth as f64, scale * decile(tenth)?.mean)));
        let points: Vec<_> = points.filter(|(_, value)| value.is_finite()).collect();
        for (at, value) in &points {
            table.push(vec![method.name.to_owned(), at.to_string(), value.to_string()]);
        }
        if !points.is_empty() {
            series.push(Series { name: method.name.to_owned(), points, band: None });
        }
    }
    if series.is_empty() {
        return None;
    }
    let better = if goal == ComparedMetric::Accuracy { "at most" } else { "at least" };
    Some(Plot {
        name: "per-client".to_owned(),
        title: format!("At the clients: {} (oracle)", goal.name()),
        caption: format!(
            "Each client's own test data; means over seeds. x percent of the clients have {better} the {what} y."
        ),
        kind: PlotKind::Lines(Lines {
            title: String::new(),
            x_label: "percent of clients, worst served first".to_owned(),
            y_label: goal.name().to_owned(),
            series,
        }),
        table,
        has_all_points: false,
    })
}

/// The share of snapshot rounds, for methods that have them.
pub fn snapshots(methods: &[Method<'_>]) -> Option<Plot> {
    let mut table = heading(["method", "round", "share of snapshots so far", "probability of the next"]);
    let mut series = Vec::new();
    for run in methods.iter().filter_map(|method| method.runs.first()).filter(|run| !run.snapshots.is_empty())
    {
        let name = &run.source.method;
        for (round, share, next) in &run.snapshots {
            let next = next.map_or_else(String::new, |next| next.to_string());
            table.push(vec![name.clone(), round.to_string(), share.to_string(), next]);
        }
        let shares: Vec<_> = run.snapshots.iter().map(|one| (f64::from(one.0), one.1)).collect();
        let probabilities: Vec<_> =
            run.snapshots.iter().filter_map(|one| Some((f64::from(one.0), one.2?))).collect();
        for (what, points) in [("share so far", shares), ("probability of the next", probabilities)] {
            if !points.is_empty() {
                let Curve { points, .. } = Curve { points, band: Vec::new() }.thinned(MAX_POINTS);
                series.push(Series { name: format!("{name}: {what}"), points, band: None });
            }
        }
    }
    if series.is_empty() {
        return None;
    }
    Some(Plot {
        name: "snapshots".to_owned(),
        title: "Snapshot rounds".to_owned(),
        caption: "First seed of each method.".to_owned(),
        kind: PlotKind::Lines(Lines {
            title: String::new(),
            x_label: "round".to_owned(),
            y_label: "share of rounds".to_owned(),
            series,
        }),
        table,
        has_all_points: false,
    })
}

/// The similarity of clients in the first run of a method that compares clients.
pub fn similarity(method: &Method<'_>) -> Option<Plot> {
    let run = method.runs.first()?;
    let (round, pairs) = run.similarities.as_ref()?;
    let pairs: Vec<_> = pairs.iter().filter(|pair| pair.similarity.is_finite()).copied().collect();
    let map = matrix(*round, &pairs, |_| None)?;
    let many = map.rows.len() > MAX_SIMILARITY_ROWS;
    let map = HeatMap { title: String::new(), ..if many { coarsened(&map) } else { map } };
    let mut table = heading(["one", "other", "similarity"]);
    for (one, values) in map.values.iter().enumerate() {
        for (other, value) in values.iter().enumerate().skip(one + usize::from(!many)) {
            if value.is_finite() {
                let names = [one, other].map(|at| map.rows[at].clone());
                table.push(names.into_iter().chain([rounded(*value).to_string()]).collect());
            }
        }
    }
    let each = if many {
        " Means over neighbouring clients, because there are too many to show. The run's folder friends/ has every pair."
    } else {
        ""
    };
    Some(Plot {
        name: format!("friends-{}", file_name(method.name)),
        title: format!("Client similarity: {}", method.name),
        caption: format!("Seed {}, after {round} rounds.{each}", run.header.seed),
        kind: PlotKind::Heat(map),
        table,
        has_all_points: false,
    })
}

/// A heat map of means over neighbours, with fewer rows and columns. Their names are the first and the last
/// place.
fn coarsened(map: &HeatMap) -> HeatMap {
    let n = map.rows.len();
    let bounds = |at: usize| at * n / MAX_SIMILARITY_ROWS..(at + 1) * n / MAX_SIMILARITY_ROWS;
    let mean = |rows: usize, columns: usize| {
        let cells = map.values[bounds(rows)].iter().flat_map(|row| &row[bounds(columns)]);
        let known: Vec<_> = cells.copied().filter(|value| value.is_finite()).collect();
        ebb_record::stats::mean(&known).unwrap_or(f64::NAN)
    };
    let name = |at: usize| format!("places {} to {}", bounds(at).start, bounds(at).end - 1);
    let values = (0..MAX_SIMILARITY_ROWS)
        .map(|rows| (0..MAX_SIMILARITY_ROWS).map(|columns| mean(rows, columns)).collect());
    let names: Vec<_> = (0..MAX_SIMILARITY_ROWS).map(name).collect();
    HeatMap {
        rows: names.clone(),
        columns: names,
        values: values.collect(),
        blank_diagonal: false,
        breaks: Vec::new(),
        ..map.clone()
    }
}

/// The states of clients by round in the first run of each method; methods with equal states share a plot.
pub fn participation(methods: &[Method<'_>]) -> Vec<Plot> {
    let mut groups: Vec<(&Run, Vec<&str>)> = Vec::new();
    for run in methods.iter().filter_map(|method| method.runs.first().copied()) {
        let same = |(first, _): &&mut (&Run, Vec<&str>)| {
            (&first.presence, first.header.seed) == (&run.presence, run.header.seed)
        };
        match groups.iter_mut().find(same) {
            Some((_, names)) => names.push(&run.source.method),
            None => groups.push((run, vec![&run.source.method])),
        }
    }
    groups.into_iter().filter_map(|(run, names)| participation_plot(run, &names.join(", "))).collect()
}

fn participation_plot(run: &Run, names: &str) -> Option<Plot> {
    let presence = &run.presence;
    let cells = presence.cells();
    if cells.first().is_none_or(Vec::is_empty) {
        return None;
    }
    let (clients, rounds) = (presence.clients_per_cell, presence.rounds_per_cell);
    let name_of = |row: usize| (row * clients).to_string();
    let first_of = |column: usize| (presence.first_round as usize + column * rounds).to_string();
    let corner = "first client \\ first round".to_owned();
    let mut table =
        vec![std::iter::once(corner).chain((0..cells[0].len()).map(first_of)).collect::<Vec<_>>()];
    for (row, states) in cells.iter().enumerate() {
        let word = |state: &Option<u8>| state.map_or("", |state| STATES[usize::from(state)]).to_owned();
        table.push(std::iter::once(name_of(row)).chain(states.iter().map(word)).collect());
    }
    let each = match (clients, rounds) {
        (1, 1) => String::new(),
        _ => {
            let many =
                |n: usize, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
            format!(" A cell is what {} mostly were in {}.", many(clients, "client"), many(rounds, "round"))
        }
    };
    let rows = cells.into_iter().enumerate().map(|(row, cells)| RasterRow { name: name_of(row), cells });
    let raster = Raster {
        title: String::new(),
        x_label: "round".to_owned(),
        y_label: "client".to_owned(),
        first_column: u64::from(presence.first_round),
        column_width: rounds as u64,
        states: STATES.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    };
    Some(Plot {
        name: format!("participation-{}", file_name(&run.source.method)),
        title: format!("Participation: {names}"),
        caption: format!("Seed {}.{each}", run.header.seed),
        kind: PlotKind::Raster(raster, [(clients, rounds), presence.n_clients_and_rounds]),
        table,
        has_all_points: true,
    })
}
