//! `ebbflow data split`: how data is split among clients, as a table and a plot.

use std::path::{Path, PathBuf};

use ebb_plot::{HeatMap, Mosaic, PlotError, Size, Svg, Theme};
use ebb_round::ClientId;
use ebb_settings::{BuildContext, Tree};
use ebb_train::split::{LabelSkew, class_distribution, total_variation};
use ebb_train::{Task, data};
use serde::Serialize;

use crate::CliError;
use crate::args::DataSplit;
use crate::assemble::{planned_seed_and_rounds, read_for_inspection};
use crate::output::{
    TextTable, bold, count, default_output_folder, print_files, print_line, write_file, write_plot,
};

/// Tables on the terminal end after this many clients; the file has all.
const MOST_ROWS: usize = 30;

/// With more classes than this, classes have no columns and colours of their own.
const MOST_COLUMNS: usize = Theme::N_COLOURS;

/// The split: the samples of each client.
#[derive(Debug, Serialize)]
struct Holdings {
    kind: String,
    seed: u64,
    classes: Vec<String>,
    clients: Vec<Client>,
    /// The label skew: the mean share of its samples that a client would have to exchange to match the whole.
    label_skew: Option<f64>,
    label_skew_by_chance: Option<f64>,
    label_skew_at_most: Option<f64>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Client {
    client: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<u32>,
    samples: u32,
    held_out: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_skew: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    by_class: Vec<u32>,
}

/// A column's name, and its cell for a client.
type Column<'h> = (String, Box<dyn Fn(&Client) -> String + 'h>);

pub(crate) fn run(args: &DataSplit) -> Result<(), CliError> {
    let tree =
        read_for_inspection(&args.file, &args.changes.set, args.data_folder.data.as_deref(), args.seed)?;
    let holdings = Holdings::of(&tree)?;
    if args.view.json {
        return print_line(&serde_json::to_string(&holdings).expect("counts and names are text"));
    }
    let folder = args.out.clone().unwrap_or_else(|| default_output_folder("split", &args.file));
    // Files first, because the output may be closed early.
    let files = holdings.write(&folder, args.view.colours.theme())?;
    holdings.print()?;
    print_line("")?;
    print_files(&files)?;
    if holdings.classes.is_empty() { print_line("no plot: these samples have no classes") } else { Ok(()) }
}

impl Holdings {
    fn of(tree: &Tree) -> Result<Holdings, CliError> {
        let seed = u64::from(planned_seed_and_rounds(tree)?.0);
        let settings = tree.table("data", BuildContext { seed, ..BuildContext::default() });
        let task = crate::tasks::build(&settings)?;
        let kind = settings.kind()?.unwrap_or_default();
        let counts: Option<Vec<_>> = clients(task.as_ref()).map(|client| task.class_counts(client)).collect();
        let skew = counts.as_deref().and_then(LabelSkew::of);
        let overall_distribution = counts.as_deref().map(class_distribution);
        let classes = match task.n_classes().filter(|_| counts.is_some()) {
            None => Vec::new(),
            Some(n_classes) => data::class_names(&kind, n_classes),
        };
        let client = |id: ClientId| {
            let by_class = task.class_counts(id).unwrap_or_default();
            Client {
                client: id.number(),
                cluster: task.oracle_cluster(id),
                samples: task.samples(id),
                held_out: task.held_out(id),
                label_skew: overall_distribution.as_ref().map(|overall| total_variation(&by_class, overall)),
                by_class,
            }
        };
        Ok(Holdings {
            clients: clients(task.as_ref()).map(client).collect(),
            label_skew: skew.map(|skew| skew.mean_distance),
            label_skew_by_chance: skew.map(|skew| skew.expected_iid),
            label_skew_at_most: skew.map(|skew| skew.maximum),
            notes: task.remarks().to_vec(),
            kind,
            seed,
            classes,
        })
    }

    /// Writes the table and, if there are classes, the plots; returns their paths.
    fn write(&self, folder: &Path, theme: Theme) -> Result<Vec<(&'static str, PathBuf)>, CliError> {
        let table = folder.join("clients.csv");
        write_file(&table, &self.csv())?;
        let mut files = vec![("table", table)];
        if !self.classes.is_empty() {
            let written = write_plot(folder, "split", &self.draw(theme)?)?;
            files.extend(written.map(|file| ("plot", file)));
        }
        Ok(files)
    }

    fn print(&self) -> Result<(), CliError> {
        let mut sizes: Vec<_> = self.clients.iter().map(|client| client.samples).collect();
        sizes.sort_unstable();
        let total: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
        let held_out: u64 = self.clients.iter().map(|client| u64::from(client.held_out)).sum();
        let spread = match (sizes.first(), sizes.last()) {
            (Some(least), Some(most)) if least < most => {
                format!("{least} to {most} each, median {}", sizes[sizes.len() / 2])
            }
            (Some(each), _) => format!("{each} each"),
            _ => "none".to_owned(),
        };
        print_line(&bold(&format!(
            "{}, seed {}: {}",
            self.kind,
            self.seed,
            count(sizes.len() as u64, "client")
        )))?;
        print_line(&format!("training     {}: {spread}", count(total, "sample")))?;
        if held_out > 0 {
            print_line(&format!("held out     {}", count(held_out, "sample")))?;
        }
        if let (Some(skew), Some(skew_by_chance), Some(most)) =
            (self.label_skew, self.label_skew_by_chance, self.label_skew_at_most)
        {
            let scale = format!(
                "0 if all clients have the same mix; {skew_by_chance:.3} by chance alone; {most:.3} with one class a client"
            );
            print_line(&format!("label skew   {skew:.3}  ({scale})"))?;
        }
        for note in &self.notes {
            print_line(&format!("note         {note}"))?;
        }
        print_line("")?;
        self.print_table()
    }

    fn print_table(&self) -> Result<(), CliError> {
        let columns = self.columns();
        let mut table = TextTable::new(1, columns.iter().map(|(name, _)| name.clone()));
        for client in self.clients.iter().take(MOST_ROWS) {
            table.row(columns.iter().map(|(_, cell)| cell(client)));
        }
        table.print()?;
        match self.clients.len().saturating_sub(MOST_ROWS) {
            0 => Ok(()),
            more => print_line(&format!("... and {}", count(more as u64, "more client"))),
        }
    }

    /// The columns of the table on the terminal.
    fn columns(&self) -> Vec<Column<'_>> {
        let mut columns: Vec<Column<'_>> =
            vec![("client".to_owned(), Box::new(|client| client.client.to_string()))];
        if self.clients.iter().any(|client| client.cluster.is_some()) {
            let cluster =
                |client: &Client| client.cluster.map_or("-".to_owned(), |number| number.to_string());
            columns.push(("cluster".to_owned(), Box::new(cluster)));
        }
        columns.push(("samples".to_owned(), Box::new(|client| client.samples.to_string())));
        if self.clients.iter().any(|client| client.held_out > 0) {
            columns.push(("held out".to_owned(), Box::new(|client| client.held_out.to_string())));
        }
        if self.classes.is_empty() {
            return columns;
        }
        let skew = |client: &Client| client.label_skew.map_or("-".to_owned(), |skew| format!("{skew:.3}"));
        columns.push(("skew".to_owned(), Box::new(skew)));
        if self.classes.len() <= MOST_COLUMNS {
            for (class, name) in self.classes.iter().enumerate() {
                let cell = move |client: &Client| match client.by_class[class] {
                    0 => "·".to_owned(),
                    held => held.to_string(),
                };
                columns.push((name.clone(), Box::new(cell)));
            }
        } else {
            columns.push(("classes".to_owned(), Box::new(|client| held_classes(client).to_string())));
            columns.push(("most of".to_owned(), Box::new(|client| self.largest_classes(client))));
        }
        columns
    }

    /// The largest classes of a client.
    fn largest_classes(&self, client: &Client) -> String {
        let mut order: Vec<_> = (0..self.classes.len()).filter(|&class| client.by_class[class] > 0).collect();
        order.sort_by_key(|&class| std::cmp::Reverse(client.by_class[class]));
        let share = |&class: &usize| {
            let share = 100.0 * f64::from(client.by_class[class]) / f64::from(client.samples);
            format!("{} {share:.0} %", self.classes[class])
        };
        order.iter().take(3).map(share).collect::<Vec<_>>().join(", ")
    }

    fn csv(&self) -> Vec<u8> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let fixed = ["client", "cluster", "samples", "held_out", "label_skew"].map(str::to_owned);
        let rows = self.clients.iter().map(|client| {
            let cells = [
                client.client.to_string(),
                client.cluster.map_or(String::new(), |cluster| cluster.to_string()),
                client.samples.to_string(),
                client.held_out.to_string(),
                client.label_skew.map_or(String::new(), |skew| skew.to_string()),
            ];
            cells.into_iter().chain(client.by_class.iter().map(u32::to_string)).collect::<Vec<_>>()
        });
        let heading = fixed.into_iter().chain(self.classes.iter().cloned()).collect();
        for row in std::iter::once(heading).chain(rows) {
            writer.write_record(row).expect("rows are as long as their heading, and memory takes them");
        }
        writer.into_inner().expect("memory takes it")
    }

    /// A mosaic, or a heat map if there are more classes than colours.
    fn draw(&self, theme: Theme) -> Result<Svg, PlotError> {
        let title = format!("{}: samples of each client", self.kind);
        let clients: Vec<_> = self.clients.iter().map(|client| client.client.to_string()).collect();
        let size = Size { width_px: 960, height_px: 480 };
        if self.classes.len() <= MOST_COLUMNS {
            let counts = self
                .clients
                .iter()
                .map(|client| client.by_class.iter().map(|&count| u64::from(count)).collect());
            let mosaic = Mosaic {
                title,
                x_label: "client, as wide as its share of all samples".to_owned(),
                y_label: "share of its samples".to_owned(),
                clients,
                labels: self.classes.clone(),
                counts: counts.collect(),
            };
            return mosaic.draw(theme, size);
        }
        let share = |class: usize| {
            self.clients
                .iter()
                .map(move |client| f64::from(client.by_class[class]) / f64::from(client.samples))
        };
        let map = HeatMap {
            title,
            x_label: "client".to_owned(),
            y_label: "class".to_owned(),
            value_label: "share of its samples".to_owned(),
            rows: self.classes.clone(),
            columns: clients,
            values: (0..self.classes.len()).map(|class| share(class).collect()).collect(),
            ..HeatMap::default()
        };
        map.draw(theme, Size { height_px: 200 + 14 * self.classes.len() as u32, ..size })
    }
}

fn clients(task: &dyn Task) -> impl Iterator<Item = ClientId> + use<> {
    (0..task.n_clients()).map(ClientId::new)
}

fn held_classes(client: &Client) -> usize {
    client.by_class.iter().filter(|&&count| count > 0).count()
}
