//! The command line's arguments, with their help texts.

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
    /// Resume an interrupted run
    Resume(Resume),
    /// Roll a run back to an earlier checkpoint, simulated or served
    Rollback(RollbackArgs),
    /// Show a run or a grid: tables and a plot
    Show(Show),
    /// Write a report on runs and grids: one self-contained HTML file, and its plots
    Report(Report),
    /// Reproduce tables and figures of papers; without arguments, list them
    Reproduce(Reproduce),
    /// Show the client-similarity matrix of a run (recipes that compare clients, such as fl-fdms)
    #[command(alias = "friends")]
    Similarity(SimilarityArgs),
    /// Export a run or a grid: CSV, Parquet, JSON, TensorBoard, Markdown, LaTeX
    Export(Export),
    /// List the recipes, methods, data sets and worlds
    List(List),
    /// Describe a recipe, method, data set or world, with its settings
    Describe(Describe),
    /// Simulate availability only (no training): which clients are up in which round
    World(WorldArgs),
    /// Simulate client selection only (no training): selection counts, success ratio, fairness
    Selection(SelectionArgs),
    /// List, fetch, inspect and split data sets
    #[command(subcommand)]
    Data(Data),
    /// Serve a run to real clients over a network; the same command resumes it after a crash
    Serve(Serve),
    /// Join a server as a client and train for it
    Join(Join),
    /// Make an enrolment token for a server's clients
    Token(Token),
    /// Revoke clients of a server for good, or its enrolment tokens
    Revoke(Revoke),
    /// Recompute a server's run from the updates in its journal, and compare
    Recompute(Recompute),
    /// Replay the recorded participation of a run with another recipe, in simulation
    Replay(Replay),
    /// Chaos-test a server and its clients locally: kills, pauses, network cuts, slow links
    #[command(alias = "swarm")]
    Chaos(ChaosArgs),
    /// Run the reference worker of the JSON-lines protocol (for testing your own)
    Worker(Worker),
    /// Make a private certificate authority and a server certificate, to try out TLS
    Certs(Certs),
    /// Print a shell's completion script
    Completions {
        /// The shell
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
    /// Random seed; the same as --set run.seed=N
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
    /// Run folder (record, members, journal); an existing one is resumed [default: runs/NAME-OF-FILE]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) logs: LogOptions,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Join {
    /// URL of the server: https://host:port, or http://host:port on this machine
    pub(crate) url: String,
    /// State directory of the client: its identity and what it remembers between rounds
    #[arg(long, value_name = "FOLDER")]
    pub(crate) home: PathBuf,
    /// Enrolment token, needed the first time; the server's owner makes it with: ebbflow token
    #[arg(long, env = "EBBFLOW_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Client number to enrol with, if the token allows it [default: the server assigns one]
    #[arg(long, value_name = "N")]
    pub(crate) number: Option<u32>,
    /// Train on this client's samples of the server's split, for trials [default: those of its own number]
    #[arg(long, value_name = "N")]
    pub(crate) slice: Option<u32>,
    /// Train on your own data: change the server's [data] settings, for example --set data.file=mine.csv
    #[arg(long = "set", value_name = "PATH.KEY=VALUE")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Certificate of the private authority that signed the server's certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Allow http:// beyond this machine; anyone on the path can then read the client's secret and updates
    #[arg(long, conflicts_with_all = ["ca", "server_name", "cert"])]
    pub(crate) plain: bool,
    /// Name in the server's certificate, if it differs from the URL's host
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// Client certificate for mutual TLS (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Train with your own worker program, in any language: its command, to the end of the line; see
    /// examples/torch
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true, conflicts_with = "set")]
    pub(crate) exec: Option<Vec<String>>,
    /// Stop a worker that has not replied for this long, and restart it for the next job [default: 3600]
    #[arg(long, value_name = "SECONDS", requires = "exec", value_parser = seconds)]
    pub(crate) worker_timeout: Option<Duration>,
    /// Decline jobs that need more memory. The estimate is 8 times the model and its side vectors, plus the
    /// download, plus 8 bytes a step
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = bytes)]
    pub(crate) most_memory: u64,
    /// Stop a job after this long and upload the partial update [default: no limit beyond the server's]
    #[arg(long = "most-job-s", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) most_job: Option<Duration>,
    /// Leave the run for good when stopped by Ctrl-C
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
    /// Hours until the token expires
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) hours: u32,
    /// Let clients choose their numbers with --number, for trials
    #[arg(long)]
    pub(crate) numbers: bool,
    /// Write the token into this file, readable only by you, instead of printing it
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Revoke {
    /// Folder of the server's run
    pub(crate) folder: PathBuf,
    /// Numbers of the clients to revoke
    #[arg(required_unless_present = "tokens")]
    pub(crate) clients: Vec<u32>,
    /// Revoke all tokens made so far; clients that enrolled with them stay
    #[arg(long)]
    pub(crate) tokens: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Recompute {
    /// Run folder of a server whose run has ended
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Replay {
    /// Folder of the recorded run, finished or not
    pub(crate) record: PathBuf,
    /// Recipe to replay with [default: the run's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) recipe: Option<String>,
    /// How to impute clients that the recipe selects but the recorded run did not
    #[arg(long, value_enum, value_name = "RULE", default_value_t = ImputeArg::OwnRate)]
    pub(crate) impute: ImputeArg,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    /// Random seed of everything but the recorded participation [default: the run's own]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
    #[command(flatten)]
    pub(crate) options: RunOptions,
    /// Folder for the record; must not exist [default: a new one below runs/]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

/// How to impute the response of a selected client that the recorded run did not select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImputeArg {
    /// It responds with its own empirical response rate
    OwnRate,
    /// It responds with all of the work
    Answers,
    /// It does not respond
    Silent,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ChaosArgs {
    /// Configuration (TOML) of a server, with a [chaos] table
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Folder for the server's run, the clients and their logs; must not exist [default:
    /// runs/NAME-OF-FILE-swarm]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Worker {
    /// Configuration (TOML) whose [data] and [model] the worker trains
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Write the initial model into this file (safetensors), and exit
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
    /// Host names and addresses by which clients reach the server
    #[arg(long = "name", value_name = "NAME", default_values_t = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()])]
    pub(crate) names: Vec<String>,
    /// Also make certificates for N clients, for mutual TLS
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) clients: u32,
    /// Folder for the authority and its key [default: FOLDER-authority]
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CertsCommand {
    /// Renew certificates before they expire, with the same authority and keys
    Renew(Renew),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Renew {
    /// Folder that ebbflow certs made
    pub(crate) folder: PathBuf,
    /// Folder of the authority and its key [default: FOLDER-authority]
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: Option<PathBuf>,
    /// New host names and addresses of the server [default: those of its certificate]
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Also make the missing certificates of clients 0 to N-1
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) clients: u32,
}

/// What is logged to standard error.
#[derive(Debug, ClapArgs)]
pub(crate) struct LogOptions {
    /// Log level: error, warn, info, debug or trace, or a filter by module
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
    /// Folder for the records; runs that are finished there are not repeated [default: runs/NAME-OF-FILE]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Run at most this many cells of the grid now; repeat the command for the rest
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
    /// Run folder, which no running process may use
    pub(crate) run: PathBuf,
    /// Roll back to the latest checkpoint at or before this round; 0 is the start
    #[arg(long, value_name = "ROUND")]
    pub(crate) to: u32,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Show {
    /// Folder of a run or of a grid
    pub(crate) run: PathBuf,
    /// Horizontal axis of the plot [default: rounds]
    #[arg(long, value_enum)]
    pub(crate) against: Option<PlotAxis>,
    /// Also draw the plot of a run into this file; its extension selects the format: .svg or .png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// The horizontal axis of a run's plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotAxis {
    /// Rounds
    Rounds,
    /// Virtual hours
    Hours,
    /// Bytes transferred, up and down
    Bytes,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Report {
    /// Folders of runs and of grids
    #[arg(required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Folder for the page and the plots [default: report, in the first of these folders]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Target accuracy, from 0 to 1, for rounds-to-accuracy [default: the highest that all runs reach]
    #[arg(long, value_name = "ACCURACY", value_parser = share)]
    pub(crate) target: Option<f64>,
    /// Title of the report [default: the name of the folder]
    #[arg(long)]
    pub(crate) title: Option<String>,
    #[command(flatten)]
    pub(crate) colours: ThemeOption,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Reproduce {
    /// Papers or their items, for example fdms or e3cs/table-2 [default: all]
    pub(crate) items: Vec<String>,
    /// How much of the authors' protocol to keep [default: small]
    #[arg(long)]
    pub(crate) scale: Option<ScaleArg>,
    /// Folder for runs and reports; runs that are finished there are not repeated [default: runs/reproduce]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Run nothing; give the verdicts on the results shipped with the program
    #[arg(long)]
    pub(crate) shipped: bool,
    /// Also write a summary page with one line an item (Markdown)
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// Also write the full pages of the studies, from the shipped results, into this folder (Markdown)
    #[arg(long, value_name = "FOLDER")]
    pub(crate) pages: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) options: RunOptions,
}

/// How much of the authors' protocol is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ScaleArg {
    /// Minutes of computing, on data that needs no download
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
    /// Show the matrix after this many rounds [default: the latest recorded]
    #[arg(long, value_name = "N")]
    pub(crate) round: Option<u32>,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Folder for the plot [default: runs/friends-NAME]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) view: ViewOptions,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Export {
    /// Folder of a run or of a grid
    pub(crate) run: PathBuf,
    /// File to write; its extension selects the format: .csv, .parquet, .json, .jsonl, .md or .tex. With --as
    /// tensorboard, a folder
    #[arg(long, value_name = "PLACE")]
    pub(crate) to: PathBuf,
    /// Format to write, whatever the extension
    #[arg(long = "as", value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
}

/// The formats of `ebbflow export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A run's scalars, one line a round; a grid's metrics, one line a run
    Csv,
    /// All columns of a run's rounds
    Parquet,
    /// The whole run: header, settings, summary and rounds
    Json,
    /// All columns of a run's rounds, one JSON object a line
    Jsonl,
    /// A run's scalars as an event file; of a grid, one subfolder a run
    Tensorboard,
    /// Tables as they are shown
    Markdown,
    /// Tables as they are shown, for the LaTeX package booktabs
    Latex,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct List {
    /// Show only one list: recipes, objective, select, local, substitute, aggregate, server, arrivals,
    /// departures, data, splits, sizes, models, worlds
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
    /// Folder for the table and the plots [default: runs/world-NAME]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Also write availability as a trace (CSV) that a world can play back, and next to it who was enrolled
    #[arg(long, value_name = "FILE")]
    pub(crate) export: Option<PathBuf>,
    /// Seconds a round in the exported trace
    #[arg(long, value_name = "S", default_value_t = 600.0)]
    pub(crate) round_s: f64,
    #[command(flatten)]
    pub(crate) view: ViewOptions,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SelectionArgs {
    /// Configuration or grid (TOML), or a run folder; [run], [world], [select] and data.clients are used
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) changes: SettingChanges,
    #[command(flatten)]
    pub(crate) options: RunOptions,
    /// Folder for the table and the plots [default: runs/selection-NAME; with --json, none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) colours: ThemeOption,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// List the known data sets: whether they are here, their size and licence
    List(DataList),
    /// Fetch data sets into the data folder and verify their checksums; valid files are kept
    Get(DataGet),
    /// Show a data set: counts, classes, and a sheet of its images
    Show(DataShow),
    /// Show how a configuration splits data among clients: a table and a plot
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
    /// Names of the data sets
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// Replace files whose checksums differ from the known ones
    #[arg(long)]
    pub(crate) force: bool,
    /// Print no progress
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DataShow {
    /// Name of the data set, as in data.kind
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) data_folder: DataFolderOption,
    /// File for the sheet of images (PNG) [default: runs/data-NAME.png]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON instead of tables, and draw no plots
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
    /// Folder for the table and the plot [default: runs/split-NAME]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) view: ViewOptions,
}

/// Tables and plots, or JSON.
#[derive(Debug, ClapArgs)]
pub(crate) struct ViewOptions {
    #[command(flatten)]
    pub(crate) colours: ThemeOption,
    /// Print JSON instead of tables, and draw no plots
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ThemeOption {
    /// Draw plots with light lines on a dark background
    #[arg(long)]
    pub(crate) dark: bool,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DataFolderOption {
    /// Folder of the data sets [default: EBBFLOW_DATA, or else ebbflow in your cache folder]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SettingChanges {
    /// Change a setting, for example --set local.learning_rate=0.1; may be repeated
    #[arg(long = "set", value_name = "PATH.KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct RunOptions {
    /// Threads to train on; results do not depend on the number [default: all cores]
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

/// A time in seconds, more than 0.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|time| !time.is_zero()).ok_or_else(|| "give seconds, more than 0".to_owned())
}

/// A size in bytes, or with a unit: KiB, MiB, GiB or TiB.
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
