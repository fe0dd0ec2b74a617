//! `ebbflow selection`: plays selection against a world without training anything, and compares who is asked how often.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ebb_methods::Registry;
use ebb_plot::{BoxSeries, Boxes, Lines, PlotError, Series, Size, Svg, Theme};
use ebb_record::{Selection, stats};
use serde_json::json;

use crate::CliError;
use crate::args::{How, SelectionArgs};
use crate::assemble::read_settings;
use crate::commands::compare::bar;
use crate::grid::{Cell, Grid, side_by_side};
use crate::output::{
    Columns, bold, count, folder_for, note, say, say_files, theme, write_file, write_picture,
};
use crate::progress::interruption;
use crate::untrained::Untrained;

/// Curves are drawn through about so many points.
const N_POINTS: u32 = 500;

/// Where clients have more different chances than this, they are shown by quarters.
const MOST_CLASSES: usize = 8;

/// What came of one cell of the grid.
struct Played {
    scheme: String,
    values: Vec<String>,
    seed: u32,
    n_rounds: u32,
    n_clients: usize,
    selection: Selection,
    /// How often each client was asked.
    selections: Vec<u32>,
    /// The success ratio so far, after so many rounds; NaN where nobody was asked yet.
    ratios: BTreeMap<u32, f64>,
    oracle_chances: Vec<f64>,
    probed: bool,
}

/// All schemes under the same settings, by seeds.
struct Study<'p> {
    /// What these settings are, where they vary.
    name: String,
    schemes: Vec<(&'p str, Vec<&'p Played>)>,
    classes: Classes,
}

pub(crate) fn run(registry: &Registry, args: &SelectionArgs) -> Result<(), CliError> {
    let (tree, base) = read_settings(&args.file, &args.changes.set, args.how.place.data.as_deref())?;
    let folder = args.out.clone().unwrap_or_else(|| folder_for("selection", &args.file));
    let grid = Grid::or_single(&tree, &base, &folder)?;
    let notes = check(registry, &grid)?;
    if !args.how.quiet && !args.how.json {
        notes.iter().for_each(|line| note(line));
    }
    let played = play(registry, &grid, &args.how)?;
    let studies = studies(&played, &grid.varied);
    // Files first: whoever reads the output may stop reading.
    let wanted = args.out.is_some() || !args.how.json;
    let files = if wanted { write(&studies, &grid.varied, &folder, theme(args.dark))? } else { Vec::new() };
    if args.how.json {
        return studies.iter().try_for_each(Study::print_json);
    }
    for study in &studies {
        study.print()?;
        say("")?;
    }
    note_probes(&played, args.how.quiet);
    say_files(&files)
}

/// Checks that every cell can be played before the first is, and gives what there is to say of their worlds.
fn check(registry: &Registry, grid: &Grid) -> Result<Vec<String>, CliError> {
    let (mut seen, mut notes) = (Vec::new(), Vec::new());
    for cell in &grid.cells {
        // Seeds change nothing about what is valid.
        if !seen.contains(&(&cell.method, &cell.values)) {
            let run = Untrained::new(registry, &cell.tree)?;
            for line in run.notes().iter().map(|line| format!("world: {line}")) {
                if !notes.contains(&line) {
                    notes.push(line);
                }
            }
            seen.push((&cell.method, &cell.values));
        }
    }
    Ok(notes)
}

/// Plays all cells, several at once.
fn play(registry: &Registry, grid: &Grid, how: &How) -> Result<Vec<Played>, CliError> {
    let todo: Vec<_> = (0..grid.cells.len()).collect();
    let shown = !how.quiet && !how.json;
    let bar = (shown && std::io::stderr().is_terminal()).then(|| bar(todo.len()));
    let lines = shown && bar.is_none();
    let stop = interruption();
    let mut played: Vec<Option<Played>> = todo.iter().map(|_| None).collect();
    let mut n_done = 0;
    side_by_side(
        &todo,
        how.threads(),
        &stop,
        |at, _threads| play_cell(registry, &grid.cells[at], &stop),
        |at, one: Played| {
            n_done += 1;
            let label = format!("{}  seed {}", one.scheme, one.seed);
            let tenth = |done: usize| done * 10 / todo.len();
            match &bar {
                Some(bar) => {
                    bar.set_message(label);
                    bar.set_position(n_done as u64);
                }
                None if lines && tenth(n_done) > tenth(n_done - 1) => {
                    note(&format!("run {n_done}/{}  {label}", todo.len()));
                }
                None => {}
            }
            played[at] = Some(one);
            Ok(())
        },
    )?;
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    if stop.load(Ordering::Relaxed) {
        return Err(CliError::Abandoned);
    }
    Ok(played.into_iter().flatten().collect())
}

/// Plays one cell; `None` if it was stopped.
fn play_cell(registry: &Registry, cell: &Cell, stop: &AtomicBool) -> Result<Option<Played>, CliError> {
    let mut run = Untrained::new(registry, &cell.tree)?;
    let looked_at = looked_at(run.n_rounds);
    let mut ratios = BTreeMap::new();
    let tally = run.play(stop, |n_done, tally| {
        if looked_at.binary_search(&n_done).is_ok() {
            ratios.insert(n_done, tally.cep() as f64 / tally.asked() as f64);
        }
    })?;
    Ok(tally.map(|tally| Played {
        scheme: cell.method.clone(),
        values: cell.values.clone(),
        seed: cell.seed,
        n_rounds: run.n_rounds,
        n_clients: run.n_clients,
        selection: tally.selection(),
        selections: tally.selections().to_vec(),
        ratios,
        oracle_chances: run.oracle_chances.clone(),
        probed: run.probed(),
    }))
}

/// After how many rounds the table looks: 100, a quarter, half, all.
fn marks(n_rounds: u32) -> [u32; 4] {
    [100, n_rounds.div_ceil(4), n_rounds.div_ceil(2), n_rounds]
}

/// After how many rounds the success ratio is kept, ascending.
fn looked_at(n_rounds: u32) -> Vec<u32> {
    let evenly =
        (1..=N_POINTS).map(|at| (u64::from(at) * u64::from(n_rounds)).div_ceil(u64::from(N_POINTS)) as u32);
    let mut all: Vec<_> = evenly.chain(marks(n_rounds)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What was played, taken apart by the settings that vary, then by scheme.
fn studies<'p>(played: &'p [Played], varied: &[String]) -> Vec<Study<'p>> {
    let mut studies: Vec<(&Vec<String>, Vec<&Played>)> = Vec::new();
    for one in played {
        match studies.iter_mut().find(|(values, _)| **values == one.values) {
            Some((_, members)) => members.push(one),
            None => studies.push((&one.values, vec![one])),
        }
    }
    let study = |(values, members): (&Vec<String>, Vec<&'p Played>)| {
        let pairs = varied.iter().zip(values).map(|(key, value)| format!("{key} = {value}"));
        let mut schemes: Vec<(&str, Vec<&Played>)> = Vec::new();
        for &one in &members {
            match schemes.iter_mut().find(|(name, _)| *name == one.scheme) {
                Some((_, own)) => own.push(one),
                None => schemes.push((&one.scheme, vec![one])),
            }
        }
        Study { name: pairs.collect::<Vec<_>>().join(", "), classes: Classes::of(&members), schemes }
    };
    studies.into_iter().map(study).collect()
}

/// Clients taken together by their true chance to be up. Only an oracle knows it.
enum Classes {
    /// Nobody knows.
    All,
    /// One class a chance, ascending.
    Chances(Vec<f64>),
    /// As many clients in each, by their chances.
    Quarters,
}

impl Classes {
    fn of(members: &[&Played]) -> Classes {
        if members.iter().any(|one| one.oracle_chances.len() < one.n_clients) {
            return Classes::All;
        }
        let mut chances: Vec<f64> = Vec::new();
        for &chance in members.iter().flat_map(|one| &one.oracle_chances) {
            if !chances.contains(&chance) {
                chances.push(chance);
            }
            if chances.len() > MOST_CLASSES {
                return Classes::Quarters;
            }
        }
        chances.sort_by(f64::total_cmp);
        Classes::Chances(chances)
    }

    /// Their names, as short as a heading.
    fn names(&self) -> Vec<String> {
        match self {
            Classes::All => vec!["all".to_owned()],
            Classes::Chances(chances) => chances.iter().map(f64::to_string).collect(),
            Classes::Quarters => ["lowest", "lower", "higher", "highest"].map(str::to_owned).to_vec(),
        }
    }

    /// What is said before the names.
    fn about(&self) -> &'static str {
        match self {
            Classes::All => "of",
            Classes::Chances(_) => "by true chance (oracle):",
            Classes::Quarters => "by quarters of the true chance (oracle):",
        }
    }

    /// How often the clients of each class were asked.
    fn split(&self, one: &Played) -> Vec<Vec<f64>> {
        let mut classes = vec![Vec::new(); self.names().len()];
        let of = |client: usize| f64::from(one.selections.get(client).copied().unwrap_or(0));
        match self {
            Classes::All => classes[0] = (0..one.n_clients).map(of).collect(),
            Classes::Chances(chances) => {
                for client in 0..one.n_clients {
                    let class = chances.iter().position(|chance| *chance == one.oracle_chances[client]);
                    classes[class.expect("all chances are among them")].push(of(client));
                }
            }
            Classes::Quarters => {
                let mut order: Vec<_> = (0..one.n_clients).collect();
                order.sort_by(|&a, &b| one.oracle_chances[a].total_cmp(&one.oracle_chances[b]));
                let placed = order.iter().enumerate();
                placed.for_each(|(at, &client)| classes[at * 4 / one.n_clients].push(of(client)));
            }
        }
        classes
    }

    /// The mean of each class; NaN for one without clients.
    fn means(&self, one: &Played) -> Vec<f64> {
        self.split(one).iter().map(|class| stats::mean(class).unwrap_or(f64::NAN)).collect()
    }
}

impl Study<'_> {
    fn print(&self) -> Result<(), CliError> {
        let all: Vec<_> = self.schemes.iter().flat_map(|(_, own)| own).collect();
        if !self.name.is_empty() {
            say(&bold(&self.name))?;
        }
        let (n_clients, n_rounds) = (all[0].n_clients as u64, u64::from(all[0].n_rounds));
        say(&format!(
            "{}, {}; success ratio after so many rounds, CEP, Jain's index of fairness",
            count(n_clients, "client"),
            count(n_rounds, "round")
        ))?;
        let mut rounds: Vec<_> = all.iter().flat_map(|one| marks(one.n_rounds)).collect();
        rounds.retain(|round| all.iter().any(|one| *round <= one.n_rounds));
        rounds.sort_unstable();
        rounds.dedup();
        let headings = ["scheme", "seeds"].map(str::to_owned).into_iter();
        let headings = headings.chain(rounds.iter().map(|round| format!("@{round}")));
        let headings = headings.chain(["CEP ± sd", "Jain"].map(str::to_owned));
        let mut table = Columns::new(1, headings);
        for (scheme, own) in &self.schemes {
            let mut cells = vec![(*scheme).to_owned(), own.len().to_string()];
            for round in &rounds {
                cells.push(mean_of(own, 3, |one| one.ratios.get(round).copied()));
            }
            let ceps: Vec<_> = own.iter().map(|one| one.selection.cep as f64).collect();
            let spread =
                stats::deviation(&ceps).map_or(String::new(), |deviation| format!(" ± {deviation:.0}"));
            cells.push(format!("{}{spread}", mean_of(own, 0, |one| Some(one.selection.cep as f64))));
            cells.push(mean_of(own, 3, |one| one.selection.jain));
            table.row(cells);
        }
        table.print()?;
        say("")?;
        self.print_closer()
    }

    /// Who was asked how often, and what an oracle knows.
    fn print_closer(&self) -> Result<(), CliError> {
        let has = |of: fn(&Selection) -> bool| {
            self.schemes.iter().flat_map(|(_, own)| own).any(|one| of(&one.selection))
        };
        let overflow = has(|selection| selection.overflow_rounds.is_some());
        let regret = has(|selection| selection.oracle_regret.is_some());
        let bounds = has(|selection| selection.regret_bound.is_some());
        say(&format!("selections per client, {} {}", self.classes.about(), self.classes.names().join(", ")))?;
        if overflow {
            say("overflow: rounds in which somebody is asked for certain, and the most of any one client")?;
        }
        if regret {
            say("regret: by how much CEP the best fixed allocation in hindsight is ahead (oracle)")?;
        }
        if bounds {
            say("bound: what theorem 1 of E3CS bounds the regret by, at this rate and at the best")?;
        }
        let mut headings = vec!["scheme".to_owned()];
        headings.extend(self.classes.names());
        headings.extend(["overflow", "most"].into_iter().filter(|_| overflow).map(str::to_owned));
        headings.extend(regret.then(|| "regret".to_owned()));
        headings.extend(["bound", "best bound"].into_iter().filter(|_| bounds).map(str::to_owned));
        let mut table = Columns::new(1, headings);
        for (scheme, own) in &self.schemes {
            let mut cells = vec![(*scheme).to_owned()];
            let means: Vec<_> = own.iter().map(|one| self.classes.means(one)).collect();
            for class in 0..self.classes.names().len() {
                let of_class: Vec<_> = means.iter().map(|means| means[class]).collect();
                cells.push(stats::mean(&of_class).map_or("-".to_owned(), |mean| format!("{mean:.1}")));
            }
            if overflow {
                cells.push(mean_of(own, 1, |one| one.selection.overflow_rounds.map(|rounds| rounds as f64)));
                let most = own.iter().filter_map(|one| one.selection.overflow_most).max();
                cells.push(most.map_or("-".to_owned(), |most| most.to_string()));
            }
            if regret {
                cells.push(mean_of(own, 0, |one| one.selection.oracle_regret));
            }
            if bounds {
                cells.push(mean_of(own, 0, |one| one.selection.regret_bound));
                cells.push(mean_of(own, 0, |one| one.selection.regret_bound_least));
            }
            table.row(cells);
        }
        table.print()
    }

    /// One object a cell.
    fn print_json(&self) -> Result<(), CliError> {
        for one in self.schemes.iter().flat_map(|(_, own)| own) {
            let ratio = |round: &u32| json!({ "rounds": round, "success_ratio": one.ratios.get(round) });
            let marks = marks(one.n_rounds);
            let ratios: Vec<_> = marks.iter().filter(|round| **round <= one.n_rounds).map(ratio).collect();
            let classes = self.classes.split(one);
            let classes = self.classes.names().into_iter().zip(classes).map(|(name, class)| {
                json!({ "name": name, "clients": class.len(), "mean_selections": stats::mean(&class) })
            });
            let line = json!({
                "method": one.scheme, "values": one.values, "seed": one.seed, "rounds": one.n_rounds,
                "clients": one.n_clients, "selection": one.selection, "success_ratio_after": ratios,
                "oracle_classes": classes.collect::<Vec<_>>(), "probed": one.probed,
            });
            say(&line.to_string())?;
        }
        Ok(())
    }

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
            Classes::Chances(_) | Classes::Quarters => ", by true chance to be up (oracle)",
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
                let deviation = stats::deviation(&ratios).unwrap_or(f64::NAN);
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

/// The mean over seeds of a figure that all must have.
fn mean_of(own: &[&Played], digits: usize, figure: impl Fn(&Played) -> Option<f64>) -> String {
    let figures: Option<Vec<_>> =
        own.iter().map(|one| figure(one).filter(|figure| figure.is_finite())).collect();
    figures
        .and_then(|figures| stats::mean(&figures))
        .map_or("-".to_owned(), |mean| format!("{mean:.digits$}"))
}

/// Writes the table and the pictures; says what is where.
fn write(
    studies: &[Study<'_>],
    varied: &[String],
    folder: &Path,
    theme: Theme,
) -> Result<Vec<(&'static str, PathBuf)>, CliError> {
    let table = folder.join("selection.csv");
    write_file(&table, &csv(studies, varied))?;
    let mut files = vec![("table", table)];
    for (at, study) in studies.iter().enumerate() {
        let number = if studies.len() == 1 { String::new() } else { format!("-{}", at + 1) };
        for (name, svg) in [("selections", study.boxes(theme)), ("success-ratio", study.curves(theme))] {
            let written = write_picture(folder, &format!("{name}{number}"), &svg?)?;
            files.extend(written.map(|file| ("picture", file)));
        }
    }
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

/// Warns of schemes that go by what clients say of themselves, which is nothing here.
fn note_probes(played: &[Played], quiet: bool) {
    let probing: BTreeSet<_> =
        played.iter().filter(|one| one.probed).map(|one| one.scheme.as_str()).collect();
    if !quiet && !probing.is_empty() {
        let schemes = probing.into_iter().collect::<Vec<_>>().join(", ");
        note(&format!(
            "{schemes}: asked clients for losses and speeds before it chose; without data all losses are equal, and all work is one step"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(chances: &[f64], selections: &[u32]) -> Played {
        Played {
            scheme: "s".to_owned(),
            values: Vec::new(),
            seed: 1,
            n_rounds: 10,
            n_clients: 4,
            selection: Selection::default(),
            selections: selections.to_vec(),
            ratios: BTreeMap::new(),
            oracle_chances: chances.to_vec(),
            probed: false,
        }
    }

    #[test]
    fn classes_are_the_chances_that_there_are() {
        let one = played(&[0.9, 0.1, 0.9, 0.1], &[5, 1, 7]);
        let classes = Classes::of(&[&one]);
        assert_eq!(classes.names(), ["0.1", "0.9"]);
        // Nobody asked the last client, which is beyond the list.
        assert_eq!(classes.split(&one), [vec![1.0, 0.0], vec![5.0, 7.0]]);
        assert_eq!(classes.means(&one), [0.5, 6.0]);
        let unknown = played(&[], &[5, 1, 7]);
        assert_eq!(Classes::of(&[&one, &unknown]).means(&unknown), [3.25]);
    }

    #[test]
    fn many_chances_make_quarters() {
        let seeds: Vec<_> = (0..3_u8)
            .map(|seed| {
                played(&[0.4, 0.3, 0.2, 0.1].map(|chance| chance + 0.01 * f64::from(seed)), &[4, 3, 2, 1])
            })
            .collect();
        let classes = Classes::of(&seeds.iter().collect::<Vec<_>>());
        assert_eq!(classes.names(), ["lowest", "lower", "higher", "highest"]);
        assert_eq!(classes.means(&seeds[2]), [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn rounds_that_are_looked_at() {
        assert_eq!(marks(2500), [100, 625, 1250, 2500]);
        assert_eq!(looked_at(3), [1, 2, 3, 100]);
        let many = looked_at(2500);
        assert!(many.contains(&100) && many.contains(&625) && *many.last().unwrap() == 2500);
        assert_eq!(looked_at(u32::MAX).last(), Some(&u32::MAX));
    }
}
