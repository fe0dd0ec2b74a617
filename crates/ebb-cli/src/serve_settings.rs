//! The `[serve]` table: how a server deals with its clients.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use ebb_net::pack::{ElementType, Packing};
use ebb_net::{AfterDeadline, Capabilities, Rules, TlsFiles};
use ebb_round::{Layout, RequiredCapabilities, SideName};
use ebb_settings::{NonNegative, Positive, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

use crate::CliError;

/// The `[serve]` table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServeTable {
    /// Where the server listens.
    #[serde(default = "loopback")]
    pub(crate) listen: SocketAddr,
    /// How many clients methods should reckon with; as many as the data is split among, without.
    pub(crate) clients: Option<NonZeroU32>,
    /// When a round closes.
    #[serde(default = "a_minute")]
    pub(crate) deadline_s: Positive,
    /// How long a round is held open for clients that are waited for, or for a quorum; an hour, or the deadline if longer.
    pub(crate) patience_s: Option<Positive>,
    /// How long after the deadline half-done work still counts as on time.
    #[serde(default = "two_seconds")]
    grace_s: NonNegative,
    /// What becomes of work that is not done by the deadline.
    #[serde(default)]
    after_deadline: LateWork,
    /// A round with fewer answers is held open beyond its deadline.
    #[serde(default)]
    quorum: usize,
    /// A round begins once so many clients can take a job.
    #[serde(default = "one")]
    min_up: NonZeroUsize,
    #[serde(default = "five_seconds")]
    heartbeat_s: Positive,
    /// The server that this must be, as it says when it starts; any, without.
    id: Option<String>,
    /// How many clients can enrol.
    #[serde(default = "many")]
    max_clients: NonZeroU32,
    /// How many samples a client may say that it has; any number, without.
    max_samples: Option<NonZeroU32>,
    /// A client counts for at most so many times the median of the samples that the clients state.
    max_samples_times: Option<Positive>,
    /// Clients are believed any number of samples.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unbounded_samples: bool,
    /// Answers take so many bytes of memory: on their way, not read, not written, and kept for the open
    /// round.
    #[serde(default = "half_a_gigabyte")]
    memory_bytes: u64,
    /// Whether the journal keeps every update, so that the model can be recomputed.
    #[serde(default)]
    pub(crate) keep_updates: bool,
    /// Who judges the model.
    #[serde(default)]
    pub(crate) evaluated_by: EvaluatedBy,
    /// How models travel.
    #[serde(default)]
    down: PackingTable,
    /// How updates travel.
    #[serde(default)]
    up: PackingTable,
    /// The server's certificate.
    tls: Option<TlsTable>,
    /// Whether it may be read by everybody on the way.
    #[serde(default)]
    plain: bool,
    /// Where figures for Prometheus are to be had.
    pub(crate) metrics: Option<SocketAddr>,
    /// A file with what those must show who want them: beyond this machine they tell who is there and when.
    metrics_token: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LateWork {
    #[default]
    Cut,
    Late,
}

/// Who judges the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EvaluatedBy {
    /// The server, on test data it has.
    #[default]
    Server,
    /// The clients, on data they keep for that.
    Clients,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PackingTable {
    #[serde(default)]
    number: NumberFormat,
    #[serde(default)]
    zstd: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum NumberFormat {
    #[default]
    F32,
    F16,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsTable {
    certificate: PathBuf,
    key: PathBuf,
    /// Clients must show a certificate that is signed by this one.
    clients: Option<PathBuf>,
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7700))
}
fn a_minute() -> Positive {
    Positive::new(60.0).expect("positive")
}
fn five_seconds() -> Positive {
    Positive::new(5.0).expect("positive")
}
fn two_seconds() -> NonNegative {
    NonNegative::new(2.0).expect("not negative")
}
fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}
fn half_a_gigabyte() -> u64 {
    1 << 29
}
fn many() -> NonZeroU32 {
    NonZeroU32::new(100_000).expect("not zero")
}

/// The token for metrics has at least so many characters.
const MIN_TOKEN_CHARS: usize = 16;

impl ServeTable {
    pub(crate) fn read(settings: &Settings<'_>, task: &dyn Task) -> Result<ServeTable, SettingsError> {
        let table: ServeTable = settings.parse()?;
        if table.patience_s.is_some_and(|patience| patience.get() < table.deadline_s.get()) {
            return Err(settings.error("patience_s", "shorter than deadline_s; give at least as much"));
        }
        if table.unbounded_samples && (table.max_samples.is_some() || table.max_samples_times.is_some()) {
            let message = "unbounded_samples = true leaves nothing to max_samples and max_samples_times; leave out them or it";
            return Err(settings.error("unbounded_samples", message));
        }
        let is_id =
            |id: &String| id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if table.id.as_ref().is_some_and(|id| !is_id(id)) {
            let message = "not what a server says when it starts (server ...): 32 of the digits 0 to 9 and a to f; copy it from there";
            return Err(settings.error("id", message));
        }
        if table.tls.is_none() && !table.plain && !table.listen.ip().is_loopback() {
            let message = "everybody on the way could read and change what is sent; give [serve.tls] certificate and key (ebbflow certs \
                           makes them), or write plain = true if something else protects it";
            return Err(settings.error("listen", message));
        }
        if table.tls.is_some() && table.plain {
            return Err(settings.error("plain", "[serve.tls] is given; leave out one of them"));
        }
        if let Some(metrics) = table.metrics
            && !metrics.ip().is_loopback()
            && table.metrics_token.is_none()
        {
            let message = "everybody who reaches this address could read them; give an address of this machine (127.0.0.1:PORT), or write \
                           metrics_token = FILE, a file with the token that a scrape must show";
            return Err(settings.error("metrics", message));
        }
        if let Some(clients) = table.clients
            && clients > table.max_clients
        {
            return Err(settings.error("clients", "more than max_clients; raise that"));
        }
        if table.evaluated_by == EvaluatedBy::Server && task.n_test_batches() == 0 {
            let message = "this data has nothing to judge on at the server; write evaluated_by = \"clients\"";
            return Err(settings.error("evaluated_by", message));
        }
        Ok(table)
    }

    /// How the server deals with its clients.
    pub(crate) fn rules(
        &self,
        required: RequiredCapabilities,
        side_vectors: Vec<SideName>,
        layout: Layout,
        settings: String,
        seed: u64,
    ) -> Rules {
        let deadline_s = self.deadline_s.get();
        Rules {
            deadline_s,
            patience_s: self.patience_s.map_or_else(|| deadline_s.max(3600.0), Positive::get),
            grace_s: self.grace_s.get(),
            after_deadline: match self.after_deadline {
                LateWork::Cut => AfterDeadline::Cut,
                LateWork::Late => AfterDeadline::Late,
            },
            quorum: self.quorum,
            min_available: self.min_up.get(),
            heartbeat_s: self.heartbeat_s.get(),
            max_clients: self.max_clients.get(),
            max_samples: self.max_samples.map_or(u32::MAX, NonZeroU32::get),
            max_samples_times_median: self.max_samples_times.map(Positive::get),
            update_memory_bytes: self.memory_bytes,
            // No recipe needs half-done work: those that weigh it (the schemes, `fednova`) take whole work as well. Nor must all
            // judge, for one that cannot may train.
            required_capabilities: Capabilities {
                side_vectors: required.memory,
                own_start: required.own_start,
                probe: required.probe,
                ..Capabilities::default()
            },
            optional_capabilities: Capabilities {
                partial: self.after_deadline == LateWork::Cut,
                evaluate: self.evaluated_by == EvaluatedBy::Clients,
                ..Capabilities::default()
            },
            layout,
            side_names: side_vectors.into(),
            download_packing: self.down.packing(),
            upload_packing: self.up.packing(),
            settings,
            seed,
        }
    }

    /// How many clients can enrol.
    pub(crate) fn most_clients(&self) -> usize {
        self.max_clients.get() as usize
    }

    /// Whether everybody on the way can read what is sent.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// What those must show who want the metrics, from a file relative to a folder.
    pub(crate) fn metrics_token(&self, folder: &Path) -> Result<Option<String>, CliError> {
        let Some(file) = &self.metrics_token else { return Ok(None) };
        let file = folder.join(file);
        let text = std::fs::read_to_string(&file).map_err(|error| CliError::file("reading", &file, error))?;
        let token = text.trim();
        if token.len() < MIN_TOKEN_CHARS {
            return Err(CliError::Usage(format!(
                "{}: a token of {} characters can be guessed (serve.metrics_token); give at least {MIN_TOKEN_CHARS}",
                file.display(),
                token.len()
            )));
        }
        Ok(Some(token.to_owned()))
    }

    /// The certificate: files relative to a folder, which can be read.
    pub(crate) fn tls(&self, folder: &Path) -> Result<Option<TlsFiles>, CliError> {
        let Some(TlsTable { certificate, key, clients }) = &self.tls else { return Ok(None) };
        let open_file = |file: &PathBuf| {
            let file = folder.join(file);
            std::fs::File::open(&file).map_err(|error| CliError::file("reading", &file, error))?;
            Ok::<_, CliError>(file)
        };
        let clients = clients.as_ref().map(open_file).transpose()?;
        Ok(Some(TlsFiles { certificate: open_file(certificate)?, key: open_file(key)?, client_ca: clients }))
    }

    /// Whether a folder is that of the server that this must be. A server on another, or on an empty one
    /// where a disk is not mounted, would be taken for the one that its clients belong to, and refuse them
    /// all.
    pub(crate) fn check_id(&self, folder: &Path) -> Result<(), CliError> {
        let Some(wanted) = &self.id else { return Ok(()) };
        let found = ebb_net::server_id(folder).map_err(|error| CliError::Unavailable(error.to_string()))?;
        if found.as_ref() == Some(wanted) {
            return Ok(());
        }
        let folder = folder.display();
        Err(match found {
            Some(found) => CliError::Usage(format!(
                "{folder}: the folder of server {found}, but serve.id = \"{wanted}\"; give the folder of that one by --out, or, if clients \
                 are to enrol anew with this one, write serve.id = \"{found}\""
            )),
            // Its disk may be there the next time.
            None => CliError::Unavailable(format!(
                "{folder}: no server has been here, but serve.id = \"{wanted}\"; give the folder of that one by --out (is its disk \
                 mounted?), or, to begin with new clients, leave serve.id out"
            )),
        })
    }
}

impl PackingTable {
    fn packing(self) -> Packing {
        let number = match self.number {
            NumberFormat::F32 => ElementType::F32,
            NumberFormat::F16 => ElementType::F16,
        };
        Packing { element_type: number, zstd: self.zstd }
    }
}

#[cfg(test)]
mod tests {
    use ebb_net::{STORE_FILE, Store, server_id};

    use super::*;

    #[test]
    fn a_server_that_must_be_another_is_not_started_and_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let (right, wrong, empty) =
            (folder.path().join("right"), folder.path().join("wrong"), folder.path().join("empty"));
        for folder in [&right, &wrong] {
            std::fs::create_dir(folder).unwrap();
            drop(Store::open(&folder.join(STORE_FILE)).unwrap());
        }
        let [id, other] = [&right, &wrong].map(|folder| server_id(folder).unwrap().unwrap());
        let table: ServeTable = toml::from_str(&format!("id = \"{id}\"")).unwrap();
        let checked =
            |folder: &Path| table.check_id(folder).map_err(|error| (error.code(), error.to_string()));
        assert_eq!(checked(&right), Ok(()));
        let (code, message) = checked(&wrong).unwrap_err();
        assert!(code == 2 && message.contains(&format!("serve.id = \"{other}\"")), "{message}");
        let (code, message) = checked(&empty).unwrap_err();
        assert!(
            code == 1 && message.contains("leave serve.id out") && message.contains("--out"),
            "{message}"
        );
        assert!(!empty.exists());
        let any: ServeTable = toml::from_str("").unwrap();
        assert!([&right, &wrong, &empty].iter().all(|folder| any.check_id(folder).is_ok()));
    }
}
