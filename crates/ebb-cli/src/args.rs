//! What can be typed.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use ebb_plot::Theme;

/// Federated learning for fleets whose clients ebb and flow.
#[derive(Debug, Parser)]
#[command(name = "ebbflow", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare methods under dropout on built-in data
    Demo(Demo),
    /// Run one configuration
    Run(Run),
    /// Run a grid: recipes x settings x seeds, on the same worlds
    Compare(Compare),
    /// Go on with a run that was interrupted
    Resume(Resume),
    /// Put a run, simulated or served, back to an earlier checkpoint
    Rollback(RollbackArgs),
    /// Show a run or a grid: tables and a plot
    Show(Show),
    /// Write a report on runs and grids: one HTML file that opens anywhere, and its plots
    Report(Report),
    /// Repeat tables and figures of papers; alone, list them
    Reproduce(Reproduce),
    /// Show the client-similarity matrix of a run (recipes that compare clients, such as fl-fdms)
    #[command(alias = "friends")]
    Similarity(SimilarityArgs),
    /// Write a run or a grid for other tools: CSV, Parquet, JSON, TensorBoard, Markdown, LaTeX
    Export(Export),
    /// List the recipes, methods, data and worlds there are
    List(List),
    /// Say what a recipe or method does, and its settings
    Describe(Describe),
    /// Play a world without training anything: who is up when
    World(WorldArgs),
    /// Play selection against a world without training anything: who is asked how often, how many answer
    Selection(SelectionArgs),
    /// Data sets: what there is, get them, look at them, see who holds what
    #[command(subcommand)]
    Data(Data),
    /// Train with real clients that join over a network; the same command goes on after a crash
    Serve(Serve),
    /// Join a server and train for it
    Join(Join),
    /// Make a token with which clients enrol at a server
    Token(Token),
    /// Shut clients out of a server for good, or take back the tokens it gave out
    Revoke(Revoke),
    /// Make a server's run once more from the updates it kept, and compare
    Recompute(Recompute),
    /// Play the participation of a run, served or simulated, against another recipe, in simulation
    Replay(Replay),
    /// Chaos-test a server and its clients locally: kills, pauses, network cuts, slow links
    #[command(alias = "swarm")]
    Chaos(ChaosArgs),
    /// Be a worker that trains by lines of JSON: the pattern for programs of your own
    Worker(Worker),
    /// Make a private certificate authority and a server's certificate, to try out TLS
    Certs(Certs),
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Demo {
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    #[command(flatten)]
    pub(crate) options: RunOptions,
    /// Folder for the records [default: runs/demo]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Run {
    /// Configuration (TOML), or the folder of a run to repeat
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    /// Seed of everything random; the same as --set run.seed=N
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
    #[command(flatten)]
    pub(crate) options: RunOptions,
    /// Folder for the record; must not exist [default: a new one below runs/]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Serve {
    /// Configuration (TOML): that of a run, with a [serve] table
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    #[command(flatten)]
    pub(crate) options: RunOptions,
    /// Folder of the run, its members and its journal; one that is there is gone on with [default: runs/NAME-OF-FILE]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) logs: LogOptions,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Join {
    /// Where the server is: https://host:port, or http://host:port on this machine
    pub(crate) url: String,
    /// Folder in which the client keeps who it is and what it remembers
    #[arg(long, value_name = "FOLDER")]
    pub(crate) home: PathBuf,
    /// What to enrol with, the first time; made at the server by: ebbflow token
    #[arg(long, env = "EBBFLOW_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Be the client of this number, where the token allows it; else the server gives numbers
    #[arg(long, value_name = "N")]
    pub(crate) number: Option<u32>,
    /// Train on the samples of this client of the server's split, for trials [default: that of its number]
    #[arg(long, value_name = "N")]
    pub(crate) slice: Option<u32>,
    /// Train on own data: change settings of [data] that the server gave, for example --set data.file=mine.csv
    #[arg(long = "set", value_name = "PATH.KEY=VALUE")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// The certificate that the server's is signed by, where it is a private one (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Use http:// beyond this machine, though everybody on the way can then read who the client is and what it sends
    #[arg(long, conflicts_with_all = ["ca", "server_name", "cert"])]
    pub(crate) plain: bool,
    /// The name in the server's certificate, if it is not that of the URL
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// A certificate of the client's own, where the server asks for one (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Train with a program of your own, in any language: its command, to the end of the line; see examples/torch
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true, conflicts_with = "set")]
    pub(crate) exec: Option<Vec<String>>,
    /// End that program, and start it anew for the next job, when it has not replied for so long [default: 3600]
    #[arg(long, value_name = "SECONDS", requires = "exec", value_parser = seconds)]
    pub(crate) worker_timeout: Option<Duration>,
    /// Decline jobs that need more memory by an estimate: 8 times the model and the vectors beside it, what
    /// is fetched, 8 bytes a step
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = bytes)]
    pub(crate) most_memory: u64,
    /// Stop a job that takes longer, and send what was done by then [default: as long as the server lets it]
    #[arg(long = "most-job-s", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) most_job: Option<Duration>,
    /// Take part until stopped by Ctrl-C, and then leave the run for good
    #[arg(long)]
    pub(crate) leave_for_good: bool,
    #[command(flatten)]
    pub(crate) logs: LogOptions,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Token {
    /// Folder of the server's run
    pub(crate) folder: PathBuf,
    /// How many clients may enrol with it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) uses: u32,
    /// For how many hours it is good
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) hours: u32,
    /// Let clients choose their numbers by --number, for trials
    #[arg(long)]
    pub(crate) numbers: bool,
    /// Write it into this file, which only you can read, instead of to the output
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Revoke {
    /// Folder of the server's run
    pub(crate) folder: PathBuf,
    /// Numbers of clients
    #[arg(required_unless_present = "tokens")]
    pub(crate) clients: Vec<u32>,
    /// Take back all tokens that were made so far; clients that enrolled with them stay
    #[arg(long)]
    pub(crate) tokens: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Recompute {
    /// Folder of a server's run that has ended
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Replay {
    /// Folder of the run whose participation is played, finished or not
    pub(crate) record: PathBuf,
    /// Recipe to play against it [default: that of the run]
    #[arg(long, value_name = "NAME")]
    pub(crate) recipe: Option<String>,
    /// What comes of asking clients that were up and were not asked then
    #[arg(long, value_enum, value_name = "RULE", default_value_t = ImputeArg::OwnRate)]
    pub(crate) impute: ImputeArg,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    /// Seed of everything random but who was there [default: that of the run]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
    #[command(flatten)]
    pub(crate) options: RunOptions,
    /// Folder for the record; must not exist [default: a new one below runs/]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

/// What is taken to come of asking a client that was up and was not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImputeArg {
    /// It answers as often as it did when it was asked
    OwnRate,
    /// It answers, with all of the work
    Answers,
    /// It stays silent
    Silent,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ChaosArgs {
    /// Configuration (TOML): that of a server, with a [swarm] table
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Folder for the server's run, the clients and their logs; must not exist [default: runs/NAME-OF-FILE-swarm]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Worker {
    /// Configuration (TOML) whose [data] and [model] it trains
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Write the model before the first round into this file (safetensors), and end
    #[arg(long, value_name = "FILE")]
    pub(crate) write_model: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Certs {
    #[command(subcommand)]
    pub(crate) command: Option<CertsCommand>,
    /// Folder for the certificates and keys of the server and its clients
    #[arg(required = true)]
    pub(crate) folder: Option<PathBuf>,
    /// Names and addresses by which clients know the server
    #[arg(long = "name", value_name = "NAME", default_values_t = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()])]
    pub(crate) names: Vec<String>,
    /// Also make certificates for so many clients, for mutual TLS
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) clients: u32,
    /// Folder for the authority and its key [default: FOLDER-authority]
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CertsCommand {
    /// Make new certificates of the same authority with the same keys, before those that are there expire
    Renew(Renew),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Renew {
    /// Folder that ebbflow certs made
    pub(crate) folder: PathBuf,
    /// Folder of the authority and its key [default: FOLDER-authority]
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: Option<PathBuf>,
    /// Other names and addresses by which clients know the server [default: those that it has]
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Make certificates for those of so many clients that have none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) clients: u32,
}

/// What is logged, on the standard error.
#[derive(Debug, ClapArgs)]
pub(crate) struct LogOptions {
    /// What to log: error, warn, info, debug, trace, or by module
    #[arg(long, value_name = "LEVEL", env = "EBBFLOW_LOG", default_value = "info")]
    pub(crate) log: String,
    /// Log one JSON object a line
    #[arg(long)]
    pub(crate) log_json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Compare {
    /// Grid (TOML): a configuration with a [grid] table
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    #[command(flatten)]
    pub(crate) options: RunOptions,
    /// Folder for the records; what is finished there is not run again [default: runs/NAME-OF-FILE]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Run at most this many cells now; the rest another time
    #[arg(long, value_name = "N")]
    pub(crate) at_most: Option<usize>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Resume {
    /// Folder of the run
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) options: RunOptions,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RollbackArgs {
    /// Folder of the run, which no process may have
    pub(crate) run: PathBuf,
    /// Go back to the latest checkpoint after at most so many rounds; 0 is the start
    #[arg(long, value_name = "ROUND")]
    pub(crate) to: u32,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Show {
    /// Folder of a run or of a grid
    pub(crate) run: PathBuf,
    /// What the plot of a run goes along [default: rounds]
    #[arg(long, value_enum)]
    pub(crate) against: Option<PlotAxis>,
    /// Also draw the plot of a run into this file; its ending says the format: .svg or .png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a run is plotted against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotAxis {
    /// Rounds
    Rounds,
    /// Virtual hours
    Hours,
    /// Bytes that travelled, up and down
    Bytes,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Report {
    /// Folders of runs and of grids
    #[arg(required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Folder for the page and the plots [default: report in the folder that is named first]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// The accuracy, from 0 to 1, to which rounds are counted [default: the highest that all reach]
    #[arg(long, value_name = "ACCURACY", value_parser = share)]
    pub(crate) target: Option<f64>,
    /// What stands above it [default: the name of the folder]
    #[arg(long)]
    pub(crate) title: Option<String>,
    #[command(flatten)]
    pub(crate) colours: ThemeOption,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Reproduce {
    /// Papers, or their items: fdms, e3cs/table-2 [default: all]
    pub(crate) items: Vec<String>,
    /// How much of the authors' protocol to keep [default: small]
    #[arg(long)]
    pub(crate) scale: Option<ScaleArg>,
    /// Folder for runs and reports; what is finished there is not run again [default: runs/reproduce]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Run nothing: judge by the figures that come with the program
    #[arg(long)]
    pub(crate) shipped: bool,
    /// Also write a page with a line for each item (Markdown)
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// Also write the studies in full, from the figures that come with the program, into this folder (Markdown)
    #[arg(long, value_name = "FOLDER")]
    pub(crate) pages: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) options: RunOptions,
}

/// How much of the authors' protocol is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ScaleArg {
    /// Minutes, on data that need no download
    Small,
    /// The authors' protocol, as far as it is known and time allows
    Paper,
}

/// A number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "give a number from 0 to 1".to_owned())
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SimilarityArgs {
    /// Folder of the run
    pub(crate) run: PathBuf,
    /// After how many rounds [default: the most that were written]
    #[arg(long, value_name = "N")]
    pub(crate) round: Option<u32>,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Folder for the picture [default: runs/friends-NAME]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) view: ViewOptions,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Export {
    /// Folder of a run or of a grid
    pub(crate) run: PathBuf,
    /// File to write; its ending says the format: .csv, .parquet, .json, .jsonl, .md or .tex. With --as tensorboard, a folder
    #[arg(long, value_name = "PLACE")]
    pub(crate) to: PathBuf,
    /// What to write, whatever the ending
    #[arg(long = "as", value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
}

/// What other tools read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A run's scalars, one line a round; a grid's figures, one line a run
    Csv,
    /// All that a run's rounds hold
    Parquet,
    /// All of a run: what it is, its settings, its summary and its rounds
    Json,
    /// All that a run's rounds hold, one JSON object a line
    Jsonl,
    /// A run's scalars as an event file; of a grid, one subfolder a run
    Tensorboard,
    /// Tables as they are shown
    Markdown,
    /// Tables as they are shown, for the package booktabs
    Latex,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct List {
    /// Only these: recipes, objective, select, local, substitute, aggregate, server, arrivals, departures, data, splits, sizes, models, worlds
    pub(crate) what: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Describe {
    /// Name of a recipe, a method, a data set or a world
    pub(crate) name: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WorldArgs {
    /// Configuration or grid (TOML), or the folder of a run
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    /// Rounds to play [default: run.rounds, or 200]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<NonZeroU32>,
    /// Seed of the world; the same as --set run.seed=N
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Folder for the table and the pictures [default: runs/world-NAME]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Also write who was up when, as a trace (CSV) that can be played again, and beside it who was in
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,
    /// Seconds from round to round in the exported trace
    #[arg(long, value_name = "S", default_value_t = 600.0)]
    pub(crate) round_s: f64,
    #[command(flatten)]
    pub(crate) view: ViewOptions,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SelectionArgs {
    /// Configuration or grid (TOML), or the folder of a run: its [run], [world], [select] and data.clients count
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    #[command(flatten)]
    pub(crate) options: RunOptions,
    /// Folder for the table and the pictures [default: runs/selection-NAME; with --json, none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) colours: ThemeOption,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// List the sets that are known: where they were found, their size, their licence
    List(DataList),
    /// Fetch a set into the data folder, checking every byte; what is there and right stays
    Get(DataGet),
    /// Look at a data set: counts, classes, and a sheet of its images
    Show(DataShow),
    /// Show who holds what in a configuration: a table and a picture
    Split(DataSplit),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DataList {
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DataGet {
    /// Names of the sets
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Replace files that are there and are not the known ones
    #[arg(long)]
    pub(crate) force: bool,
    /// Print no progress
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DataShow {
    /// Name of the set, as in data.kind
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// File for the sheet of images (PNG) [default: runs/data-NAME.png]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON instead of tables, and draw nothing
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DataSplit {
    /// Configuration or grid (TOML), or the folder of a run
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    /// Seed of the split; the same as --set run.seed=N
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Folder for the table and the picture [default: runs/split-NAME]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) view: ViewOptions,
}

/// Tables and pictures, or JSON.
#[derive(Debug, ClapArgs)]
pub(crate) struct ViewOptions {
    #[command(flatten)]
    pub(crate) colours: ThemeOption,
    /// Print JSON instead of tables, and draw nothing
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ThemeOption {
    /// Light on dark
    #[arg(long)]
    pub(crate) dark: bool,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DataFolderOption {
    /// Folder of the data sets [default: what EBBFLOW_DATA names, or ebbflow in your cache folder]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SettingChanges {
    /// Change one setting, for example --set local.rate=0.1; may be given again
    #[arg(long = "set", value_name = "PATH.KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct RunOptions {
    /// Threads to train on; no result depends on it [default: all cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Print one JSON object a line instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no progress
    #[arg(long)]
    pub(crate) quiet: bool,
}

impl RunOptions {
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.threads.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }
}

/// A time that is not nothing.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|time| !time.is_zero()).ok_or_else(|| "give seconds, more than 0".to_owned())
}

/// A size: bytes, or so many KiB, MiB, GiB, TiB.
fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (count, unit) = text.split_at(text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.trim() {
        "" | "B" => Some(0),
        "KiB" => Some(10),
        "MiB" => Some(20),
        "GiB" => Some(30),
        "TiB" => Some(40),
        _ => None,
    };
    let bytes = shift.and_then(|shift| count.parse::<u64>().ok()?.checked_mul(1 << shift));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "give bytes, or a size such as 512MiB or 4GiB".to_owned())
}

impl ThemeOption {
    pub(crate) fn theme(&self) -> Theme {
        if self.dark { Theme::Dark } else { Theme::Light }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        let all = [("1", 1), ("4096 B", 4096), ("512MiB", 512 << 20), ("4 GiB", 4 << 30), ("1TiB", 1 << 40)];
        for (text, expected) in all {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "-1", "1GB", "GiB", "1.5GiB", "18446744073709551616", "99999999TiB", "é"] {
            assert!(bytes(text).unwrap_err().contains("512MiB"), "{text}");
        }
    }
}
