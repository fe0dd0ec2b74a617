//! `ebbflow serve`: one configuration, real clients, one record. The same command resumes it after a crash.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ebb_methods::Registry;
use ebb_net::{NetFleet, Rules, RunningServer, STORE_FILE, ServerOptions};
use ebb_record::{RecordError, RunWriter};
use ebb_round::FleetError;

use crate::args::Serve;
use crate::assemble::{Assembled, read_settings};
use crate::client_settings;
use crate::commands::run::print_end;
use crate::drive::{Ended, OnFailure, drive};
use crate::evaluator::RunEvaluator;
use crate::guard_settings::Protection;
use crate::output::{log_to_stderr, print_message, this_command};
use crate::permissions::{permission_warning, restrict_umask};
use crate::progress::{Progress, on_interrupt};
use crate::selection_key::{SelectionKey, SelectionSource};
use crate::serve_settings::{EvaluatedBy, ServeTable};
use crate::{CliError, PROGRAM};

/// The longest pause between connection attempts of a client.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(45);

pub(crate) fn run(registry: &Registry, args: &Serve) -> Result<(), CliError> {
    log_to_stderr(&args.logs)?;
    restrict_umask();
    let (tree, base) =
        read_settings(&args.file, &args.changes.set, args.options.data_folder.data.as_deref())?;
    if tree.has("grid") {
        return Err(tree.error("grid", "a server trains one model, not a grid; leave out [grid]").into());
    }
    let folder = args.out.clone().unwrap_or_else(|| default_folder(&args.file));
    let protection = protection(&folder);
    let (mut run, table) = Assembled::for_network(registry, tree, &base, args.options.threads(), protection)?;
    let tls = table.tls(&base)?;
    let metrics_token = table.metrics_token(&base)?;
    // Checked before anything is written into a folder of another server.
    table.check_id(&folder)?;
    permission_warning(&folder).iter().for_each(|warning| tracing::warn!("{warning}"));
    let opened = match open_run(&run, &folder) {
        Err(CliError::Record(RecordError::Finished { .. })) => None,
        opened => Some(opened?),
    };
    if run.run_table.draws_by == Some(SelectionSource::Key) {
        // The store comes right after the key, so a server killed in between has drawn nothing yet.
        let is_new = !folder.join(STORE_FILE).exists();
        run.set_selection_key(SelectionKey::open(&folder, is_new)?);
    }
    let descriptors = raise_file_limit();
    let place = ServerOptions {
        folder: folder.clone(),
        listen: table.listen,
        tls,
        metrics_listen: table.metrics,
        metrics_token,
        keep_updates: table.keep_updates,
        max_open_files: descriptors,
    };
    let (served, fleet) = RunningServer::start(place, rules(&run, &table))
        .map_err(|error| CliError::Unavailable(error.to_string()))?;
    let Some((writer, state)) = opened else {
        // The server was killed after the end of the run, perhaps before all clients knew of it.
        let (folder, url) = (folder.display(), url(&served, &table));
        print_message(&format!(
            "{folder}: the run is finished, which clients learn at {url}; for another run, give --out"
        ));
        served.end_run_within(MAX_RETRY_INTERVAL);
        return Ok(());
    };
    served.expect_recorded(writer.n_recorded_rounds()?);
    let is_resumed = state.is_some();
    let mut run = run.with_fleet(fleet);
    if table.evaluated_by == EvaluatedBy::Clients {
        run.evaluator =
            RunEvaluator::Clients(served.client_evaluator(run.evaluator.every(), run.run_table.rounds.get()));
    }
    if let Some(state) = state {
        run.load(&state).map_err(|source| CliError::State { folder: folder.clone(), source })?;
    }
    tracing::info!(id = served.server_id(), address = %served.address(), "this server");
    if served.max_connections() < table.most_clients() {
        tracing::warn!(
            most_connections = served.max_connections(),
            most_clients = table.most_clients(),
            "this process may open few files; raise that limit (ulimit -n, or LimitNOFILE= of its unit), or lower serve.max_clients"
        );
    }
    if !args.options.json && !args.options.quiet {
        print_address(&served, &table, &folder, is_resumed, &run);
    }
    on_interrupt(Box::new(served.stopper()));
    let mut progress = Progress::new(&args.options, run.engine.next(), run.run_table.rounds.get());
    progress.log_warnings();
    // The journal is always complete, so an interrupt needs nothing finished first.
    let ended = drive(&mut run, writer, &AtomicBool::new(false), OnFailure::Stop, &mut progress);
    drop(progress);
    match ended {
        Err(CliError::Fleet(FleetError::Stopped { .. })) => {
            Err(CliError::Interrupted { resume: this_command() })
        }
        Err(error) => Err(error),
        Ok(Ended::Stopped(why)) => {
            served.disconnect_clients("the run stopped, and may resume later");
            Err(CliError::Stopped { folder, why, resume: this_command() })
        }
        Ok(ended) => {
            served.end_run();
            print_end(ended, &folder, &args.options)
        }
    }
}

/// The rules by which the server of a run deals with its clients.
pub(crate) fn rules<F>(run: &Assembled<F>, table: &ServeTable) -> Rules {
    let settings = client_settings::settings_for_clients(&run.resolved);
    let (required, side_vectors) = (run.engine.required_capabilities(), run.engine.side_vectors());
    table.rules(required, side_vectors, run.layout().clone(), settings, u64::from(run.run_table.seed))
}

/// Raises the limit of open files, because every client needs one and shells set a low limit. Returns the new
/// limit.
fn raise_file_limit() -> Option<u64> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // If this fails, the limit stays as it was.
        let _ = setrlimit(Resource::Nofile, limit);
        getrlimit(Resource::Nofile).current
    }
    #[cfg(not(unix))]
    None
}

/// A run that began without protection resumes without it.
fn protection(folder: &Path) -> Protection {
    let begun_settings = std::fs::read_to_string(folder.join("settings.toml")).ok();
    match begun_settings.and_then(|text| text.parse::<toml::Table>().ok()) {
        Some(settings) if !settings.contains_key("guard") => Protection::AsWritten,
        _ => Protection::ByDefault,
    }
}

/// The default folder of a server.
fn default_folder(file: &Path) -> PathBuf {
    let name = file.file_stem().map_or_else(|| "serve".into(), std::ffi::OsStr::to_os_string);
    Path::new("runs").join(name)
}

/// Makes the folder of a new run, or resumes the existing one if it is the same run.
fn open_run(run: &Assembled<()>, folder: &Path) -> Result<(RunWriter, Option<Vec<u8>>), CliError> {
    if !folder.exists() {
        let start = run.start_model().map(|model| (run.layout(), model));
        return Ok((RunWriter::create(folder, &run.header(), &run.resolved, start)?, None));
    }
    let record = ebb_record::RunFolder::open(folder)?;
    record.check_settings()?;
    let settings = folder.join("settings.toml");
    let there =
        std::fs::read_to_string(&settings).map_err(|error| CliError::file("reading", &settings, error))?;
    if fixed_settings(&there) != fixed_settings(&run.resolved) {
        return Err(CliError::Usage(format!(
            "{}: the folder holds a run with other settings. Give another folder by --out, or resume with the \
             settings in {}, of which only {} of [serve] may change",
            folder.display(),
            settings.display(),
            CHANGEABLE_KEYS.join(", ")
        )));
    }
    let (found, ours) = (record.header(), run.header());
    if (found.program.as_str(), found.kernels.as_str()) != (PROGRAM, ours.kernels.as_str()) {
        return Err(CliError::Usage(format!(
            "{}: begun by {} with {} kernels, but this is {PROGRAM} with {} kernels, whose results may differ. \
             Resume with that program; if run.json is damaged, restore it from a copy of the folder",
            folder.display(),
            found.program,
            found.kernels,
            ours.kernels
        )));
    }
    let (mut writer, state) = RunWriter::reopen(folder)?;
    writer.take_warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok((writer, state))
}

/// Settings that may change when a server resumes: identity, addresses, encryption and capacity do not affect
/// the run.
const CHANGEABLE_KEYS: [&str; 8] =
    ["id", "listen", "metrics", "metrics_token", "tls", "plain", "max_clients", "memory_bytes"];

/// Settings without those that may change.
fn fixed_settings(resolved: &str) -> Option<toml::Table> {
    let mut root: toml::Table = resolved.parse().ok()?;
    if let Some(serve) = root.get_mut("serve").and_then(toml::Value::as_table_mut) {
        serve.retain(|key, _| !CHANGEABLE_KEYS.contains(&key));
    }
    Some(root)
}

fn url(served: &RunningServer, table: &ServeTable) -> String {
    let scheme = if table.is_plain() { "http" } else { "https" };
    format!("{scheme}://{}", served.address())
}

fn print_address(
    served: &RunningServer,
    table: &ServeTable,
    folder: &Path,
    is_resumed: bool,
    run: &Assembled<NetFleet>,
) {
    let folder = folder.display();
    if is_resumed || run.engine.next() > 0 {
        print_message(&format!("resuming after round {} of {}", run.engine.next(), run.run_table.rounds));
    }
    print_message(&format!("serving at {}, record in {folder}", url(served, table)));
    print_message(&format!(
        "this is server {}; set serve.id = \"{}\" so that no other server is started in its place",
        served.server_id(),
        served.server_id()
    ));
    print_message(&format!("clients enrol with a token: ebbflow token {folder}"));
    run.warnings.iter().for_each(|line| print_message(line));
}
