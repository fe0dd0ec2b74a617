//! `ebbflow world`: plays a world without training, and shows availability.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ebb_plot::{BarSeries, Bars, Lines, PlotError, Raster, RasterRow, Series, Size, Svg, Theme};
use ebb_round::Census;
use ebb_settings::{BuildContext, Tree};
use ebb_sim::trace::{HUNDRED_YEARS_S, Recorder};
use ebb_sim::{MembershipRecorder, Participation, RollCalls, World};
use serde_json::json;

use crate::CliError;
use crate::args::WorldArgs;
use crate::assemble::{check_rounds, planned_seed_and_rounds, read_for_inspection, scheduled_rounds};
use crate::output::{
    TextTable, bold, count, default_output_folder, print_files, print_line, print_message, write_file,
    write_plot,
};

/// Tables on the terminal end after this many clients; the file has all.
const MOST_ROWS: usize = 30;

/// At most this many clients are drawn, evenly spaced.
const MOST_DRAWN: usize = 400;

/// The result of playing a world.
struct PlayedWorld {
    seed: u64,
    n_clients: usize,
    n_rounds: u32,
    participation: Participation,
    /// The number and the states, round by round, of each client in the plot.
    shown_clients: Vec<(usize, Vec<Option<u8>>)>,
    recorder: Recorder,
    stays: MembershipRecorder,
    /// Remarks on the world.
    remarks: Vec<String>,
}

/// The files from which a world can play this one back.
struct Exported {
    trace: PathBuf,
    /// `None` if everyone is enrolled from the start.
    members: Option<PathBuf>,
}

pub(crate) fn run(args: &WorldArgs) -> Result<(), CliError> {
    let tree =
        read_for_inspection(&args.file, &args.changes.set, args.data_folder.data.as_deref(), args.seed)?;
    if !(args.round_s > 0.0 && args.round_s.is_finite()) {
        return Err(CliError::Usage(format!("--round-s {}: give a number above 0", args.round_s)));
    }
    if let Some(file) = &args.export {
        check_ending(file)?;
    }
    let played = PlayedWorld::new(&tree, args)?;
    let exported = args.export.as_ref().map(|file| played.export(file, args.round_s)).transpose()?;
    if args.view.json {
        return print_line(&played.json().to_string());
    }
    played.remarks.iter().for_each(|line| print_message(&format!("world: {line}")));
    let folder = args.out.clone().unwrap_or_else(|| default_output_folder("world", &args.file));
    // Files first, because the output may be closed early.
    let files = played.write(&folder, args.view.colours.theme())?;
    played.print()?;
    print_line("")?;
    print_files(&files)?;
    exported.map_or(Ok(()), |exported| exported.print(args.round_s))
}

/// Refuses a name whose extension promises another format.
fn check_ending(file: &Path) -> Result<(), CliError> {
    if file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv")) {
        return Ok(());
    }
    let file = file.display();
    let message = format!("--export {file}: traces are written as CSV; give a name that ends in .csv");
    Err(CliError::Usage(message))
}

/// The file of members that belongs to a trace.
fn members_file(trace: &Path) -> PathBuf {
    let stem = trace.file_stem().map_or("trace".into(), |stem| stem.to_string_lossy());
    trace.with_file_name(format!("{stem}-members.csv"))
}

/// The path as a configuration names it: absolute, so that it is right from any folder.
fn toml_path(file: &Path) -> Result<String, CliError> {
    let whole = std::path::absolute(file).map_err(|error| CliError::file("finding", file, error))?;
    Ok(toml::Value::from(whole.display().to_string()).to_string())
}

impl Exported {
    /// Prints the paths of the files, and the settings that play them back.
    fn print(&self, round_s: f64) -> Result<(), CliError> {
        print_line(&format!("{:<7}  {}", "trace", self.trace.display()))?;
        if let Some(members) = &self.members {
            print_line(&format!("{:<7}  {}", "members", members.display()))?;
        }
        print_line("\nto play it back, write in [world]:")?;
        if let Some(members) = &self.members {
            print_line(&format!("members = {}", toml_path(members)?))?;
        }
        let trace = toml_path(&self.trace)?;
        print_line(&format!("availability = {{ kind = \"trace\", file = {trace}, round_s = {round_s:?} }}"))
    }
}

impl PlayedWorld {
    fn new(tree: &Tree, args: &WorldArgs) -> Result<PlayedWorld, CliError> {
        let (seed, planned_rounds) = planned_seed_and_rounds(tree)?;
        let n_rounds = args.rounds.or(planned_rounds).map_or(200, NonZeroU32::get);
        let mut context = BuildContext { seed: u64::from(seed), n_rounds, ..BuildContext::default() };
        let task = crate::tasks::build(&tree.table("data", context))?;
        context.n_clients = task.n_clients();
        // A world is the same however many of its rounds are played.
        context.n_rounds = planned_rounds
            .map_or(0, |planned_rounds| scheduled_rounds(tree, n_rounds.max(planned_rounds.get())));
        let world = World::build(&tree.table("world", context), task.as_ref())?;
        check_rounds(tree, &world, n_rounds)?;
        let remarks = world.remarks().to_vec();
        let mut player = RollCalls::new(world, Arc::clone(&task));
        let (mut participation, mut recorder) =
            (Participation::with_clients(task.n_clients()), Recorder::default());
        let mut stays = MembershipRecorder::default();
        let n_drawn = task.n_clients().min(MOST_DRAWN);
        let mut shown_clients: Vec<_> = (0..n_drawn)
            .map(|at| (at * task.n_clients() / n_drawn, Vec::with_capacity(n_rounds as usize)))
            .collect();
        for number in 0..n_rounds {
            let census = player.next_round();
            participation.record(census);
            stays.record(number, census);
            let mut up = census.up().clone();
            up.grow(task.n_clients());
            recorder.record(f64::from(number) * args.round_s, &up);
            shown_clients.iter_mut().for_each(|(client, states)| states.push(raster_state(census, *client)));
        }
        let (seed, n_clients) = (u64::from(seed), task.n_clients());
        Ok(PlayedWorld { seed, n_clients, n_rounds, participation, shown_clients, recorder, stays, remarks })
    }

    /// Writes availability as a trace with rounds of this length, and who was enrolled next to it.
    fn export(&self, file: &Path, round_s: f64) -> Result<Exported, CliError> {
        if self.stays.is_empty() {
            let message = "no client is ever enrolled, so there is nothing to play back; play more rounds with --rounds";
            return Err(CliError::Usage(format!("--export {}: {message}", file.display())));
        }
        let ends_s = f64::from(self.n_rounds) * round_s;
        if ends_s > HUNDRED_YEARS_S {
            let rounds = count(u64::from(self.n_rounds), "round");
            let message =
                format!("--round-s {round_s:e}: {rounds} would take more than a hundred years; give less");
            return Err(CliError::Usage(message));
        }
        let trace = self.recorder.clone().finish(ends_s);
        let trace = trace.ok_or_else(|| CliError::Usage("the world has no client to export".to_owned()))?;
        let mut text = Vec::new();
        trace.write_csv(&mut text).expect("memory takes it");
        write_file(file, &text)?;
        let members = (!self.stays.is_static(self.n_clients)).then(|| members_file(file));
        if let Some(members) = &members {
            write_file(members, self.stays.to_csv().as_bytes())?;
        }
        Ok(Exported { trace: file.to_owned(), members })
    }

    fn json(&self) -> serde_json::Value {
        let all = &self.participation;
        let (up, down) = all.mean_spells();
        let clients: Vec<_> = all
            .clients()
            .map(|(client, own)| {
                json!({
                    "client": client.number(), "enrolled": own.rounds_enrolled, "up": own.rounds_up, "spells": own.n_spells,
                    "longest_gap": own.longest_gap,
                })
            })
            .collect();
        json!({
            "seed": self.seed, "rounds": self.n_rounds, "share_up": all.share(),
            "effective_clients": all.effective_clients(), "empty_rounds": all.empty_round_share(),
            "rounds_up": up, "rounds_down": down, "lag_1": all.lag_1_autocorrelation(), "up_by_round": all.n_up(), "clients": clients,
        })
    }

    fn print(&self) -> Result<(), CliError> {
        let all = &self.participation;
        let (n_clients, rounds) = (all.clients().len() as u64, count(u64::from(self.n_rounds), "round"));
        print_line(&bold(&format!("seed {}: {}, {rounds}", self.seed, count(n_clients, "client"))))?;
        let mean = all.n_up().iter().map(|&count| f64::from(count)).sum::<f64>() / all.n_up().len() as f64;
        let (least, most) = (all.n_up().iter().min().unwrap_or(&0), all.n_up().iter().max().unwrap_or(&0));
        print_line(&format!(
            "up           {:.1} % of the time: {mean:.1} clients a round, {least} to {most}",
            100.0 * all.share()
        ))?;
        print_line(&format!("none up      in {:.1} % of the rounds", 100.0 * all.empty_round_share()))?;
        print_line(&format!("effective    {:.1} of {n_clients} clients", all.effective_clients()))?;
        let spell =
            |rounds: Option<f64>| rounds.map_or("-".to_owned(), |rounds| format!("{rounds:.2} rounds"));
        let (up, down) = all.mean_spells();
        print_line(&format!("spells       up for {}, down for {}, on average", spell(up), spell(down)))?;
        let lag_1 = all.lag_1_autocorrelation().map_or("-".to_owned(), |lag_1| format!("{lag_1:.3}"));
        print_line(&format!(
            "lag-1        {lag_1}  (correlation of a client's state with that of the round before)"
        ))?;
        print_line("")?;
        let mut table = TextTable::new(1, ["client", "up %", "rounds up", "of", "spells", "longest silence"]);
        for (client, own) in all.clients().take(MOST_ROWS) {
            table.row([
                client.number().to_string(),
                format!("{:.1}", 100.0 * own.share()),
                own.rounds_up.to_string(),
                own.rounds_enrolled.to_string(),
                own.n_spells.to_string(),
                own.longest_gap.to_string(),
            ]);
        }
        table.print()?;
        match (n_clients as usize).saturating_sub(MOST_ROWS) {
            0 => Ok(()),
            more => print_line(&format!("... and {}", count(more as u64, "more client"))),
        }
    }

    /// Writes the table and the plots; returns their paths.
    fn write(&self, folder: &Path, theme: Theme) -> Result<Vec<(&'static str, PathBuf)>, CliError> {
        let table = folder.join("clients.csv");
        write_file(&table, &self.csv())?;
        let mut files = vec![("table", table)];
        let plots =
            [("raster", self.raster(theme)), ("rounds", self.rounds(theme)), ("shares", self.shares(theme))];
        for (name, svg) in plots {
            let written = write_plot(folder, name, &svg?)?;
            files.extend(written.map(|file| ("plot", file)));
        }
        Ok(files)
    }

    fn csv(&self) -> Vec<u8> {
        let mut text = "client,enrolled,up,share,spells,longest_gap\n".to_owned();
        for (client, own) in self.participation.clients() {
            let (number, share) = (client.number(), own.share());
            text += &format!(
                "{number},{},{},{share},{},{}\n",
                own.rounds_enrolled, own.rounds_up, own.n_spells, own.longest_gap
            );
        }
        text.into_bytes()
    }

    /// Draws clients by rounds.
    fn raster(&self, theme: Theme) -> Result<Svg, PlotError> {
        let row = |(client, cells): &(usize, Vec<Option<u8>>)| RasterRow {
            name: client.to_string(),
            cells: cells.clone(),
        };
        let anybody_out = self.shown_clients.iter().flat_map(|(_, cells)| cells).any(|cell| *cell == Some(1));
        let states = ["up", "not enrolled"].into_iter().take(1 + usize::from(anybody_out));
        let states = states.map(str::to_owned).collect();
        let raster = Raster {
            title: "Who is up".to_owned(),
            x_label: "round".to_owned(),
            y_label: "client".to_owned(),
            first_column: 0,
            column_width: 1,
            states,
            rows: self.shown_clients.iter().map(row).collect(),
        };
        let height_px = (160 + 12 * self.shown_clients.len() as u32).clamp(280, 900);
        raster.draw(theme, Size { width_px: 960, height_px })
    }

    /// Draws how many clients are up, round by round.
    fn rounds(&self, theme: Theme) -> Result<Svg, PlotError> {
        let counts = self.participation.n_up().iter().enumerate();
        let points = counts.map(|(number, &count)| (number as f64, f64::from(count)));
        let lines = Lines {
            title: "Clients that are up".to_owned(),
            x_label: "round".to_owned(),
            y_label: "clients".to_owned(),
            series: vec![Series { name: String::new(), points: points.collect(), band: None }],
        };
        lines.draw(theme, Size { width_px: 960, height_px: 320 })
    }

    /// Draws how often each client was up.
    fn shares(&self, theme: Theme) -> Result<Svg, PlotError> {
        let own: Vec<_> = self.participation.clients().collect();
        // A client that never joined has no values.
        let shown =
            self.shown_clients.iter().map(|(client, _)| own.get(*client).map_or(0.0, |(_, own)| own.share()));
        let bars = Bars {
            title: "How often each client is up".to_owned(),
            x_label: "client".to_owned(),
            y_label: "share of its rounds".to_owned(),
            groups: self.shown_clients.iter().map(|(client, _)| client.to_string()).collect(),
            series: vec![BarSeries { name: String::new(), values: shown.collect(), spread: None }],
            by_group: false,
        };
        bars.draw(theme, Size { width_px: 960, height_px: 320 })
    }
}

/// The state of a client in the plot: up, not enrolled, or down, which is left empty.
fn raster_state(census: &Census, client: usize) -> Option<u8> {
    let is_in = client < census.len() && census.enrolled().get(client);
    match (is_in, is_in && census.up().get(client)) {
        (true, true) => Some(0),
        (true, false) => None,
        (false, _) => Some(1),
    }
}
