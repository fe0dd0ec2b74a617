//! `ebbflow join`: a client that trains a built-in model or its own worker, on its own data or on a slice of
//! a split.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebb_exec::{DEFAULT_TIMEOUT, ExternalTask};
use ebb_methods::Registry;
use ebb_net::client::{
    self, ClientLimits, JoinError, JoinOptions, JoinOutcome, RunDescription, StopSignal, TaskTrainer, Trainer,
};
use ebb_round::ClientId;
use ebb_settings::{BuildContext, SettingsError, Tree};
use tokio::sync::watch;

use crate::CliError;
use crate::args::Join;
use crate::assemble::missing_features;
use crate::client_settings;
use crate::error::EXIT_PERMANENT;
use crate::output::{log_to_stderr, print_message};
use crate::permissions::restrict_umask;
use crate::progress::on_interrupt;

pub(crate) fn run(registry: &Registry, args: &Join) -> Result<(), CliError> {
    log_to_stderr(&args.logs)?;
    restrict_umask();
    let read =
        |file: &Path| std::fs::read_to_string(file).map_err(|error| CliError::file("reading", file, error));
    let identity = match (&args.cert, &args.key) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        _ => None,
    };
    let joining = JoinOptions {
        url: args.url.clone(),
        token: args.token.clone(),
        client_number: args.number,
        state_dir: Some(args.home.clone()),
        ca: args.ca.as_deref().map(read).transpose()?,
        server_name: args.server_name.clone(),
        identity,
        allow_plaintext: args.plain,
        limits: ClientLimits { memory_bytes: args.most_memory, job_time: args.most_job },
    };
    let (registry, set, exec) = (registry.clone(), args.set.clone(), args.exec.clone());
    let (slice, place) = (args.slice, args.data_folder.data.clone());
    let timeout = args.worker_timeout.unwrap_or(DEFAULT_TIMEOUT);
    // Whether retrying cannot cure the trainer's error.
    let is_permanent = Arc::new(AtomicBool::new(false));
    let permanent = Arc::clone(&is_permanent);
    let make = Box::new(move |invitation: &RunDescription| {
        let made = match &exec {
            Some(command) => worker_trainer(&registry, invitation, command, timeout, slice),
            None => builtin_trainer(&registry, invitation, &set, place.as_deref(), slice),
        };
        made.map_err(|error| {
            permanent.store(error.code() == EXIT_PERMANENT, Ordering::Relaxed);
            error.to_string()
        })
    });
    let (to, until) = watch::channel(StopSignal::Continue);
    let last = if args.leave_for_good { StopSignal::Leave } else { StopSignal::Stop };
    on_interrupt(Box::new(move || {
        to.send_replace(last);
    }));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::file("using", &args.home, error))?;
    let left = runtime.block_on(client::join(joining, make, until));
    // A trainer that is still busy is not waited for.
    runtime.shutdown_background();
    match left.map_err(|error| join_error(&error, is_permanent.load(Ordering::Relaxed)))? {
        JoinOutcome::RunOver(why) => print_message(&format!("done: {why}")),
        JoinOutcome::Stopped => print_message("stopped; the same command joins the run again"),
    }
    Ok(())
}

/// Why a client ends by itself, and whether a restart could help.
fn join_error(error: &JoinError, is_permanent: bool) -> CliError {
    let message = error.to_string();
    match error {
        JoinError::Unavailable(_) => CliError::Unavailable(message),
        JoinError::Trainer(_) if !is_permanent => CliError::Unavailable(message),
        JoinError::Unusable(_) | JoinError::Refused { .. } | JoinError::Trainer(_) => {
            CliError::Usage(message)
        }
    }
}

/// The server's settings, filtered.
fn settings_from_server(invitation: &RunDescription) -> Result<Tree, CliError> {
    // Client selection is the server's concern, but roles are built together, so any selector will do.
    let mut tree = Tree::from_recipe("join", "[select]\nkind = \"everyone\"");
    tree.overlay(client_settings::accepted_settings(&invitation.settings)?);
    Ok(tree)
}

/// A trainer that follows the server's local rule with the user's worker, which has the model and the data.
fn worker_trainer(
    registry: &Registry,
    invitation: &RunDescription,
    command: &[String],
    timeout: Duration,
    slice: Option<u32>,
) -> Result<Box<dyn Trainer>, CliError> {
    let slice = slice.map_or(invitation.client, |slice| ClientId::new(slice as usize));
    let task = ExternalTask::for_client(slice, invitation.layout.clone(), command.to_vec(), timeout)
        .map_err(CliError::Unavailable)?;
    let context =
        BuildContext { seed: invitation.seed, n_clients: slice.idx() + 1, ..BuildContext::default() };
    let roles = registry.build(&settings_from_server(invitation)?, context)?;
    if let Some(lack) = missing_features(&task, &roles.local.step_features()) {
        return Err(CliError::Usage(lack));
    }
    Ok(Box::new(TaskTrainer::new(Arc::new(task), Arc::clone(&roles.local), slice, invitation.seed)))
}

/// A file or folder may become readable once a disk is mounted, so that error is temporary. An error in
/// settings is not.
fn data_error(tree: &Tree, error: SettingsError) -> CliError {
    let files = ["data.file", "data.test_file"].contains(&error.key.as_str());
    let folder = error.key == "data.kind"
        && tree
            .text("data.kind")
            .is_some_and(|kind| crate::tasks::all().iter().any(|entry| entry.name == kind));
    if files || folder { CliError::Unavailable(error.to_string()) } else { error.into() }
}

/// Checks that the client named what a server cannot name.
fn check_local_data(tree: &Tree, set: &[String]) -> Result<(), CliError> {
    let message = match tree.text("data.kind") {
        Some("external") if !tree.has("data.trainer") => {
            "this run needs a worker program, which a server cannot name; give yours with --exec COMMAND"
        }
        Some("table" | "npz") if !tree.has("data.file") => {
            "the server names no file in this client's data folder; give yours with --set data.file=/path/to/file"
        }
        // Columns scaled and numbered by these rows alone would differ from the server's.
        Some("table") if !tree.has("data.encoding") && set.iter().any(|set| set.starts_with("data.file")) => {
            "the server sends no data.encoding, so your own rows would be encoded differently from the server's; \
             use a server of this version"
        }
        _ => return Ok(()),
    };
    Err(CliError::Usage(message.to_owned()))
}

/// A trainer that follows the server's settings with the data of this machine.
fn builtin_trainer(
    registry: &Registry,
    invitation: &RunDescription,
    set: &[String],
    place: Option<&Path>,
    slice: Option<u32>,
) -> Result<Box<dyn Trainer>, CliError> {
    let mut tree = settings_from_server(invitation)?;
    tree.set_data_folder(place);
    tree.set_all_from_flags(set)?;
    check_local_data(&tree, set)?;
    let mut context = BuildContext { seed: invitation.seed, ..BuildContext::default() };
    let task = crate::tasks::build(&tree.table("data", context)).map_err(|error| data_error(&tree, error))?;
    context.n_clients = task.n_clients();
    let (ours, theirs) = (task.layout(), &invitation.layout);
    if ours != theirs {
        return Err(CliError::Usage(format!(
            "the model built from this data has {} parameters, the server's has {}{}; the data must have the same features and classes",
            ours.len(),
            theirs.len(),
            if ours.len() == theirs.len() { " in other tensors" } else { "" }
        )));
    }
    // Data that is not split is all the client's own, whatever its number.
    let own = if task.n_clients() == 1 { ClientId::new(0) } else { invitation.client };
    let slice = slice.map_or(own, |slice| ClientId::new(slice as usize));
    if slice.idx() >= task.n_clients() {
        return Err(CliError::Usage(format!(
            "client {} would train on the samples of client {}, but the data is split among {}. Give --slice N with \
             N from 0 to {}, or your own data with --set data.file=FILE and --set data.clients=1",
            invitation.client.number(),
            slice.number(),
            task.n_clients(),
            task.n_clients() - 1
        )));
    }
    let roles = registry.build(&tree, context)?;
    Ok(Box::new(TaskTrainer::new(task, Arc::clone(&roles.local), slice, invitation.seed)))
}

#[cfg(test)]
mod tests {
    use ebb_round::Layout;

    use super::*;

    /// The error of a client that cannot train on these settings.
    fn refused(settings: &str, set: &[&str]) -> String {
        let invitation = RunDescription {
            client: ClientId::new(0),
            settings: settings.to_owned(),
            seed: 1,
            layout: Layout::new(Vec::new()),
        };
        let set: Vec<_> = set.iter().map(|&set| set.to_owned()).collect();
        builtin_trainer(&Registry::standard(), &invitation, &set, None, None)
            .map(drop)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn no_server_starts_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("touched");
        let model = folder.path().join("model.safetensors");
        let hostile = format!(
            "[local]\nlearning_rate = 0.1\nsteps = 1\n[data]\nkind = \"external\"\nclients = 1\nmodel = {model:?}\n\
             trainer = {{ command = [\"touch\", {file:?}] }}\n"
        );
        for set in [&[][..], &["data.clients=1"], &["data.samples=3"]] {
            let error = refused(&hostile, set);
            assert!(error.contains("--exec COMMAND"), "{error}");
        }
        assert!(!file.exists(), "a server's command was run");
    }

    #[test]
    fn no_server_names_a_file_outside_the_data_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("private.csv");
        std::fs::write(&file, "size,kind\n1,a\n2,b\n").unwrap();
        let hostile = format!(
            "[local]\nlearning_rate = 0.1\nsteps = 1\n[data]\nkind = \"table\"\nclients = 1\nlabel = \"kind\"\nfile = {file:?}\n"
        );
        let error = refused(&hostile, &[]);
        assert!(error.contains("--set data.file="), "{error}");
        let error = refused(&hostile, &[&format!("data.file={}", file.display())]);
        assert!(error.contains("data.encoding"), "{error}");
    }
}
