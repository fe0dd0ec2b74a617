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
    /// The address that the server listens on.
    #[serde(default = "loopback")]
    pub(crate) listen: SocketAddr,
    /// The population size that methods assume; by default the number of clients of the data's split.
    pub(crate) clients: Option<NonZeroU32>,
    /// The duration of a round.
    #[serde(default = "a_minute")]
    pub(crate) deadline_s: Positive,
    /// How long a round waits for required clients or for a quorum; by default an hour, or the deadline if
    /// longer.
    pub(crate) patience_s: Option<Positive>,
    /// How long after the deadline partial work still counts as on time.
    #[serde(default = "two_seconds")]
    grace_s: NonNegative,
    /// What happens to work that is not done by the deadline.
    #[serde(default)]
    after_deadline: LateWork,
    /// A round with fewer updates stays open beyond its deadline.
    #[serde(default)]
    quorum: usize,
    /// A round begins once this many clients are up and not busy.
    #[serde(default = "one")]
    min_up: NonZeroUsize,
    #[serde(default = "five_seconds")]
    heartbeat_s: Positive,
    /// The required server id, as a server prints it when it starts; any by default.
    id: Option<String>,
    /// How many clients can enrol.
    #[serde(default = "many")]
    max_clients: NonZeroU32,
    /// The largest number of samples that a client may report; any by default.
    max_samples: Option<NonZeroU32>,
    /// A client counts for at most this many times the median of the reported samples.
    max_samples_times: Option<Positive>,
    /// Reported numbers of samples are not bounded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unbounded_samples: bool,
    /// The memory for updates in bytes: in flight, not yet read, not yet written, and kept for the open
    /// round.
    #[serde(default = "half_a_gigabyte")]
    memory_bytes: u64,
    /// Whether the journal keeps every update, so that the model can be recomputed.
    #[serde(default)]
    pub(crate) keep_updates: bool,
    /// The evaluator of the model.
    #[serde(default)]
    pub(crate) evaluated_by: EvaluatedBy,
    /// The packing of models on their way to clients.
    #[serde(default)]
    down: PackingTable,
    /// The packing of updates on their way to the server.
    #[serde(default)]
    up: PackingTable,
    /// The server's certificate.
    tls: Option<TlsTable>,
    /// Whether the traffic may be unencrypted.
    #[serde(default)]
    plain: bool,
    /// The address that serves metrics to Prometheus.
    pub(crate) metrics: Option<SocketAddr>,
    /// A file with the token that a scrape must show. Metrics reveal which clients are connected, and when.
    metrics_token: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LateWork {
    #[default]
    Cut,
    Late,
}

/// The evaluator of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EvaluatedBy {
    /// The server, on its test data.
    #[default]
    Server,
    /// The clients, on data they hold out for that.
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
    /// The authority that must have signed the clients' certificates.
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

/// The shortest token for metrics, in characters.
const MIN_TOKEN_CHARS: usize = 16;

impl ServeTable {
    pub(crate) fn read(settings: &Settings<'_>, task: &dyn Task) -> Result<ServeTable, SettingsError> {
        let table: ServeTable = settings.parse()?;
        if table.patience_s.is_some_and(|patience| patience.get() < table.deadline_s.get()) {
            return Err(settings.error("patience_s", "shorter than deadline_s; give at least deadline_s"));
        }
        if table.unbounded_samples && (table.max_samples.is_some() || table.max_samples_times.is_some()) {
            let message = "unbounded_samples = true excludes max_samples and max_samples_times; leave out either it or both of them";
            return Err(settings.error("unbounded_samples", message));
        }
        let is_id =
            |id: &String| id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if table.id.as_ref().is_some_and(|id| !is_id(id)) {
            let message = "not a server id, which has 32 of the digits 0 to 9 and a to f; copy it from what the \
                           server prints when it starts";
            return Err(settings.error("id", message));
        }
        if table.tls.is_none() && !table.plain && !table.listen.ip().is_loopback() {
            let message = "without TLS anyone on the path could read and change the traffic. Give [serve.tls] \
                           certificate and key (ebbflow certs makes them), or set plain = true if a proxy or VPN \
                           protects it";
            return Err(settings.error("listen", message));
        }
        if table.tls.is_some() && table.plain {
            return Err(settings.error("plain", "plain = true excludes [serve.tls]; leave out one of them"));
        }
        if let Some(metrics) = table.metrics
            && !metrics.ip().is_loopback()
            && table.metrics_token.is_none()
        {
            let message = "anyone who reaches this address could read the metrics; give a loopback address \
                           (127.0.0.1:PORT), or set metrics_token = FILE, a file with the token that a scrape must \
                           show";
            return Err(settings.error("metrics", message));
        }
        if let Some(clients) = table.clients
            && clients > table.max_clients
        {
            return Err(settings.error("clients", "more than max_clients; raise max_clients"));
        }
        if table.evaluated_by == EvaluatedBy::Server && task.n_test_batches() == 0 {
            let message =
                "the server has no test data of this kind to evaluate on; set evaluated_by = \"clients\"";
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
            // No recipe requires partial work: those that weigh it (the schemes, `fednova`) take whole work
            // as well. Evaluation is optional too, because a client without it can still train.
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

    /// Whether the traffic is unencrypted.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// The token that a scrape must show, read from a file relative to `folder`.
    pub(crate) fn metrics_token(&self, folder: &Path) -> Result<Option<String>, CliError> {
        let Some(file) = &self.metrics_token else { return Ok(None) };
        let file = folder.join(file);
        let text = std::fs::read_to_string(&file).map_err(|error| CliError::file("reading", &file, error))?;
        let token = text.trim();
        if token.len() < MIN_TOKEN_CHARS {
            return Err(CliError::Usage(format!(
                "{}: a token of {} characters can be guessed (serve.metrics_token); use at least {MIN_TOKEN_CHARS} characters",
                file.display(),
                token.len()
            )));
        }
        Ok(Some(token.to_owned()))
    }

    /// The TLS files, relative to `folder`, after a check that they can be read.
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

    /// Checks that a folder belongs to the required server. Another server, or an empty folder of an
    /// unmounted disk, would refuse all of its clients.
    pub(crate) fn check_id(&self, folder: &Path) -> Result<(), CliError> {
        let Some(wanted) = &self.id else { return Ok(()) };
        let found = ebb_net::server_id(folder).map_err(|error| CliError::Unavailable(error.to_string()))?;
        if found.as_ref() == Some(wanted) {
            return Ok(());
        }
        let folder = folder.display();
        Err(match found {
            Some(found) => CliError::Usage(format!(
                "{folder}: the folder belongs to server {found}, but serve.id = \"{wanted}\". Give the other \
                 server's folder by --out, or, to let clients enrol with this one, set serve.id = \"{found}\""
            )),
            // The disk may be mounted the next time.
            None => CliError::Unavailable(format!(
                "{folder}: no server has used this folder, but serve.id = \"{wanted}\". Give that server's folder \
                 by --out (is its disk mounted?), or, to begin with new clients, leave serve.id out"
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
