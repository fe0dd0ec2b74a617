//! The results of simulated selection, as a table and as plots.

use std::path::{Path, PathBuf};

use ebb_plot::{BoxSeries, Boxes, Lines, PlotError, Series, Size, Svg, Theme};
use ebb_record::stats;

use super::classes::Classes;
use super::{SchemeComparison, reported_rounds};
use crate::CliError;
use crate::output::{count, write_file, write_plot};

/// Writes the table and the plots; returns their paths.
pub(super) fn write(
    studies: &[SchemeComparison<'_>],
    varied: &[String],
    folder: &Path,
    theme: Theme,
) -> Result<Vec<(&'static str, PathBuf)>, CliError> {
    let table = folder.join("selection.csv");
    let mut files = vec![("table", table.clone())];
    for (at, study) in studies.iter().enumerate() {
        let number = if studies.len() == 1 { String::new() } else { format!("-{}", at + 1) };
        for (name, svg) in [("selections", study.boxes(theme)), ("success-ratio", study.curves(theme))] {
            let written = write_plot(folder, &format!("{name}{number}"), &svg?)?;
            files.extend(written.map(|file| ("plot", file)));
        }
    }
    // Last, so that its existence shows that everything is written.
    write_file(&table, &csv(studies, varied))?;
    Ok(files)
}

/// One row for each scheme and seed.
fn csv(studies: &[SchemeComparison<'_>], varied: &[String]) -> Vec<u8> {
    let mut names: Vec<String> = Vec::new();
    for name in studies.iter().flat_map(|study| study.classes.names()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut headings = vec!["method".to_owned()];
    headings.extend(varied.iter().cloned());
    headings.extend(METRIC_COLUMNS.map(str::to_owned));
    headings.extend(names.iter().map(|name| format!("selections_oracle_{name}")));
    writer.write_record(&headings).expect("memory takes it");
    for study in studies {
        let own_names = study.classes.names();
        for one in study.schemes.iter().flat_map(|(_, own)| own) {
            let tally = &one.selection;
            let number = |number: Option<f64>| {
                number.filter(|number| number.is_finite()).map_or(String::new(), |number| number.to_string())
            };
            let whole = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
            let [hundred, quarter, half, _] =
                reported_rounds(one.n_rounds).map(|round| number(one.success_ratios.get(&round).copied()));
            let mut record = vec![one.scheme.clone()];
            record.extend(one.values.iter().cloned());
            record.extend([
                one.seed.to_string(),
                one.n_rounds.to_string(),
                one.n_clients.to_string(),
                tally.asked.to_string(),
                tally.cep.to_string(),
                number(tally.success_ratio),
                hundred,
                quarter,
                half,
                number(tally.jain),
                whole(tally.overflow_rounds),
                whole(tally.overflow_most),
                number(tally.oracle_regret),
                number(tally.regret_bound),
                number(tally.regret_bound_least),
            ]);
            let means = study.classes.means(one);
            record.extend(names.iter().map(|name| {
                let at = own_names.iter().position(|own| own == name);
                number(at.map(|at| means[at]))
            }));
            writer.write_record(&record).expect("memory takes it");
        }
    }
    writer.into_inner().expect("memory takes it")
}

/// The columns of metrics, in order.
const METRIC_COLUMNS: [&str; 15] = [
    "seed",
    "rounds",
    "clients",
    "asked",
    "cep",
    "success_ratio",
    "success_ratio_at_100",
    "success_ratio_at_quarter",
    "success_ratio_at_half",
    "jain",
    "overflow_rounds",
    "overflow_most",
    "oracle_regret",
    "regret_bound",
    "regret_bound_least",
];

impl SchemeComparison<'_> {
    /// The selection counts of clients, by scheme and class, over all seeds.
    fn boxes(&self, theme: Theme) -> Result<Svg, PlotError> {
        let names = self.classes.names();
        let mut series: Vec<_> =
            names.iter().map(|name| BoxSeries { name: self.legend(name), values: Vec::new() }).collect();
        for (_, own) in &self.schemes {
            series.iter_mut().for_each(|series| series.values.push(Vec::new()));
            for one in own {
                let classes = self.classes.split(one);
                for (series, class) in series.iter_mut().zip(classes) {
                    series.values.last_mut().expect("it was just put there").extend(class);
                }
            }
        }
        let by_probability = match self.classes {
            Classes::All => "",
            Classes::Probabilities(_) | Classes::Quarters => ", by true probability to respond (oracle)",
        };
        let boxes = Boxes {
            title: self.titled(&format!(
                "Selections of each client{by_probability}; {}",
                count(self.n_seeds() as u64, "seed")
            )),
            x_label: String::new(),
            y_label: "rounds in which it is selected".to_owned(),
            groups: self.schemes.iter().map(|(name, _)| (*name).to_owned()).collect(),
            series,
        };
        let n_boxes = boxes.groups.len() * boxes.series.len();
        boxes.draw(theme, Size { width_px: (300 + 26 * n_boxes as u32).clamp(720, 1600), height_px: 440 })
    }

    /// The mean success ratio over seeds, round by round.
    fn curves(&self, theme: Theme) -> Result<Svg, PlotError> {
        let series = self.schemes.iter().map(|(name, own)| {
            let rounds: Vec<_> = own[0].success_ratios.keys().copied().collect();
            let at = |round: &u32| {
                own.iter().filter_map(|one| one.success_ratios.get(round).copied()).collect::<Vec<_>>()
            };
            let point = |round: &u32| (f64::from(*round), stats::mean(&at(round)).unwrap_or(f64::NAN));
            let bound = |round: &u32| {
                let ratios = at(round);
                let (_, mean) = point(round);
                let std = stats::standard_deviation(&ratios).unwrap_or(f64::NAN);
                (mean - std, mean + std)
            };
            Series {
                name: (*name).to_owned(),
                points: rounds.iter().map(point).collect(),
                band: (own.len() > 1).then(|| rounds.iter().map(bound).collect()),
            }
        });
        let n_seeds = self.n_seeds();
        let of_seeds = if n_seeds > 1 { format!(", mean over {n_seeds} seeds ± sd") } else { String::new() };
        let lines = Lines {
            title: self.titled(&format!("Success ratio so far{of_seeds}")),
            x_label: "round".to_owned(),
            y_label: "success ratio".to_owned(),
            series: series.collect(),
        };
        lines.draw(theme, Size { width_px: 860, height_px: 460 })
    }

    fn titled(&self, title: &str) -> String {
        if self.name.is_empty() { title.to_owned() } else { format!("{title}; {}", self.name) }
    }

    fn n_seeds(&self) -> usize {
        self.schemes.iter().map(|(_, own)| own.len()).max().unwrap_or(0)
    }

    fn legend(&self, class: &str) -> String {
        match self.classes {
            Classes::All => String::new(),
            Classes::Probabilities(_) => format!("probability {class}"),
            Classes::Quarters => format!("{class} quarter"),
        }
    }
}
