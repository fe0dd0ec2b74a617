//! Reports: the time that one over many runs takes, compared with only reading the records, and its size.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use ebb_record::RunFolder;
use serde_json::{Value, json};

use super::{AimCheck, Spread};
use crate::results::program;

/// Arguments of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Timed repeats
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Use small sizes, which only show that the benchmark runs
    #[arg(long)]
    quick: bool,
}

/// The measurements.
#[derive(Debug)]
pub(super) struct Measurements {
    aim_check: AimCheck,
    n_methods: usize,
    n_rounds: usize,
    n_clients: usize,
    took_s: Spread,
    /// The time as a multiple of reading every row once, on one thread.
    over_reading: Spread,
    megabytes: f64,
}

/// The most seconds and megabytes of a report.
const AIMS: (f64, f64) = (10.0, 5.0);

pub(super) fn measure(args: &Args) -> Result<Measurements, Box<dyn Error>> {
    let (n_methods, n_rounds, n_clients) = if args.quick { (3, 20, 30) } else { (20, 1000, 1000) };
    let place = tempfile::tempdir()?;
    let (file, out) = (place.path().join("grid.toml"), place.path().join("out"));
    std::fs::write(&file, grid(n_methods, n_rounds, n_clients))?;
    run(program().arg("compare").arg(&file).args(["--quiet", "--out"]).arg(&out))?;
    let (mut took_s, mut over_reading) = (Vec::new(), Vec::new());
    for _ in 0..args.repeats {
        let began = Instant::now();
        read_all(&out.join("cells"))?;
        let reading = began.elapsed().as_secs_f64();
        let began = Instant::now();
        run(program().arg("report").arg(&out))?;
        took_s.push(began.elapsed().as_secs_f64());
        over_reading.push(began.elapsed().as_secs_f64() / reading);
    }
    let megabytes = std::fs::metadata(out.join("report/report.html"))?.len() as f64 / 1e6;
    Ok(Measurements {
        aim_check: if args.quick { AimCheck::Disabled } else { AimCheck::Enabled },
        n_methods,
        n_rounds,
        n_clients,
        took_s: Spread::of(took_s),
        over_reading: Spread::of(over_reading),
        megabytes,
    })
}

/// Methods that select differently, so that no two plots are the same.
fn grid(n_methods: usize, n_rounds: usize, n_clients: usize) -> String {
    let mut text = format!(
        "[run]\nrounds = {n_rounds}\ncheckpoint_every = {n_rounds}\n\
         [data]\nkind = \"synthetic\"\nclients = {n_clients}\nsamples_min = 10\n\
         [world.availability]\nkind = \"bernoulli\"\nprobability = 0.5\n\
         [local]\nlearning_rate = 0.01\nsteps = 1\nbatch_size = 1\n[evaluate]\nevery = 10\n[grid]\nseeds = [1]\n"
    );
    for method in 1..=n_methods {
        let cohort = method * n_clients / n_methods / 2;
        let _ = writeln!(
            text,
            "[[grid.method]]\nname = \"{method}\"\nrecipe = \"fedavg\"\nselect = {{ cohort = {} }}",
            cohort.max(1)
        );
    }
    text
}

fn run(command: &mut std::process::Command) -> Result<(), Box<dyn Error>> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

fn read_all(cells: &Path) -> Result<(), Box<dyn Error>> {
    for cell in std::fs::read_dir(cells)? {
        for row in RunFolder::open(&cell?.path())?.iter_rows()? {
            std::hint::black_box(row?);
        }
    }
    Ok(())
}

impl Measurements {
    pub(super) fn print(&self) {
        let Measurements { n_methods, n_rounds, n_clients, took_s, over_reading, megabytes, aim_check } =
            self;
        println!(
            "a report on {n_methods} runs of {n_rounds} rounds and {n_clients} clients, program start included"
        );
        let seconds = aim_check.verdict(AIMS.0 / took_s.median, 1.0);
        println!("  {took_s} s; {AIMS} s over it: {seconds}", AIMS = AIMS.0);
        println!("  {over_reading} times as long as reading every row once");
        println!(
            "  {megabytes:.2} MB; {} MB over it: {}",
            AIMS.1,
            aim_check.verdict(AIMS.1 / megabytes, 1.0)
        );
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "runs": self.n_methods, "rounds": self.n_rounds, "clients": self.n_clients,
            "took_s": self.took_s.median, "over_reading": self.over_reading.median, "megabytes": self.megabytes,
        })
    }
}
