//! What selection came to, as a table and as pictures.

use std::path::{Path, PathBuf};

use ebb_plot::{BoxSeries, Boxes, Lines, PlotError, Series, Size, Svg, Theme};
use ebb_record::stats;

use super::classes::Classes;
use super::{Study, marks};
use crate::CliError;
use crate::output::{count, write_file, write_picture};

/// Writes the table and the pictures; says what is where.
pub(super) fn write(
    studies: &[Study<'_>],
    varied: &[String],
    folder: &Path,
    theme: Theme,
) -> Result<Vec<(&'static str, PathBuf)>, CliError> {
    let table = folder.join("selection.csv");
    let mut files = vec![("table", table.clone())];
    for (at, study) in studies.iter().enumerate() {
        let number = if studies.len() == 1 { String::new() } else { format!("-{}", at + 1) };
        for (name, svg) in [("selections", study.boxes(theme)), ("success-ratio", study.curves(theme))] {
            let written = write_picture(folder, &format!("{name}{number}"), &svg?)?;
            files.extend(written.map(|file| ("picture", file)));
        }
    }
    // Last: that it is there means that all is.
    write_file(&table, &csv(studies, varied))?;
    Ok(files)
}

/// A row for each scheme and seed.
fn csv(studies: &[Study<'_>], varied: &[String]) -> Vec<u8> {
    let mut names: Vec<String> = Vec::new();
    for name in studies.iter().flat_map(|study| study.classes.names()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut headings = vec!["method".to_owned()];
    headings.extend(varied.iter().cloned());
    headings.extend(FIGURES.map(str::to_owned));
    headings.extend(names.iter().map(|name| format!("selections_oracle_{name}")));
    writer.write_record(&headings).expect("memory takes it");
    for study in studies {
        let own_names = study.classes.names();
        for one in study.schemes.iter().flat_map(|(_, own)| own) {
            let found = &one.selection;
            let number = |number: Option<f64>| {
                number.filter(|number| number.is_finite()).map_or(String::new(), |number| number.to_string())
            };
            let whole = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
            let [hundred, quarter, half, _] =
                marks(one.n_rounds).map(|round| number(one.ratios.get(&round).copied()));
            let mut record = vec![one.scheme.clone()];
            record.extend(one.values.iter().cloned());
            record.extend([
                one.seed.to_string(),
                one.n_rounds.to_string(),
                one.n_clients.to_string(),
                found.asked.to_string(),
                found.cep.to_string(),
                number(found.success_ratio),
                hundred,
                quarter,
                half,
                number(found.jain),
                whole(found.overflow_rounds),
                whole(found.overflow_most),
                number(found.oracle_regret),
                number(found.regret_bound),
                number(found.regret_bound_least),
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

/// The columns of figures, in order.
const FIGURES: [&str; 15] = [
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

impl Study<'_> {
    /// How often each client was asked, by scheme and class, over all seeds.
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
        let by_chance = match self.classes {
            Classes::All => "",
            Classes::Chances(_) | Classes::Quarters => ", by true chance to answer (oracle)",
        };
        let boxes = Boxes {
            title: self.titled(&format!(
                "How often clients are asked{by_chance}; {}",
                count(self.n_seeds() as u64, "seed")
            )),
            x_label: String::new(),
            y_label: "rounds in which it is asked".to_owned(),
            groups: self.schemes.iter().map(|(name, _)| (*name).to_owned()).collect(),
            series,
        };
        let n_boxes = boxes.groups.len() * boxes.series.len();
        boxes.draw(theme, Size { width_px: (300 + 26 * n_boxes as u32).clamp(720, 1600), height_px: 440 })
    }

    /// The success ratio so far, round by round, in the mean over seeds.
    fn curves(&self, theme: Theme) -> Result<Svg, PlotError> {
        let series = self.schemes.iter().map(|(name, own)| {
            let rounds: Vec<_> = own[0].ratios.keys().copied().collect();
            let at =
                |round: &u32| own.iter().filter_map(|one| one.ratios.get(round).copied()).collect::<Vec<_>>();
            let point = |round: &u32| (f64::from(*round), stats::mean(&at(round)).unwrap_or(f64::NAN));
            let bound = |round: &u32| {
                let ratios = at(round);
                let (_, mean) = point(round);
                let deviation = stats::standard_deviation(&ratios).unwrap_or(f64::NAN);
                (mean - deviation, mean + deviation)
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
            title: self.titled(&format!("Share of the asked that answered so far{of_seeds}")),
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
            Classes::Chances(_) => format!("chance {class}"),
            Classes::Quarters => format!("{class} quarter"),
        }
    }
}
