//! The `[world]` table: availability, speeds, deadline and membership; or a script; or the record of a run.

use std::sync::Arc;

use ebb_round::{Census, ClientId, RoundNo};
use ebb_settings::{NonNegative, Positive, Settings, SettingsError, build};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

use crate::availability::{self, Availability};
use crate::churn::Churn;
use crate::link::constant::Constant;
use crate::link::{self, Link};
use crate::membership::{Event, Membership};
use crate::membership_file;
use crate::outage::{self, Outage};
use crate::replay::{RecordedAvailability, Replay};
use crate::script::{AfterScript, Script, ScriptedUpdate};
use crate::speed::Speed;
use crate::work::complete::Complete;
use crate::work::{self, CompletionModel};

/// The parts of a `[world]` table besides availability: name, purpose and example.
pub const COMPONENTS: [(&str, &str, &str); 7] = [
    (
        "script",
        "a table of updates by round, with the number of steps: for results that are checked by hand",
        "script = [\n  [0, 1, 2],\n  [0, { client = 1, steps = 1 }],\n  [{ client = 2, late = 1 }, { client = 1, sends = \"nan\" }],\n]\nafter_script = \"everyone\"",
    ),
    (
        "speed",
        "virtual time: how long clients train and upload, when rounds close, how long they wait",
        "deadline_s = 60.0\nstep_s = 0.1\nupload_s = 1.0\nspeed_spread = 0.5\npatience_s = 3600.0\nwhen_waited_for = \"always\"\nafter_deadline = \"cut\"",
    ),
    (
        "membership",
        "arrivals and departures by a schedule",
        "arrivals = [{ round = 10, clients = [3, 4] }, { round = 30, clients = [5, 6, 7], every = 5 }]\ndepartures = [{ round = 20, clients = [0] }]",
    ),
    (
        "members",
        "recorded membership: from which round to which each client was enrolled, from a file",
        "members = \"/data/members.csv\"   # columns client, joined, left; left is empty for clients that stay",
    ),
    (
        "churn",
        "random arrivals and departures: a Poisson number of arrivals per round, geometric lifetimes",
        "[world.churn]\nfrom_start = 0.5\narrivals = 0.5\nlifetime = 100.0",
    ),
    (
        "outages",
        "clients that are away from one round until another, whatever their availability",
        "outages = [{ from = 20, until = 80, clients = [0, 1, 2, 3] }]",
    ),
    (
        "replay",
        "the recorded participation of another run, served or simulated; unobserved outcomes are imputed",
        "deadline_s = 60.0\n[world.replay]\nrecord = \"/runs/served\"   # the run's folder, or a file of its rounds\nimpute = \"own-rate\"       # or answers, silent",
    ),
];

/// Everything about the clients that no method decides.
pub struct World {
    pub(crate) availability: Box<dyn Availability>,
    pub(crate) script: Option<Script>,
    pub(crate) replay: Option<Arc<Replay>>,
    pub(crate) membership: Membership,
    pub(crate) churn: Option<Churn>,
    pub(crate) outages: Vec<Outage>,
    pub(crate) work: Box<dyn CompletionModel>,
    pub(crate) link: Box<dyn Link>,
    pub(crate) speed: Speed,
    pub(crate) deadline_s: f64,
    pub(crate) patience_s: f64,
    pub(crate) when_waited_for: WhenWaitedFor,
    pub(crate) after_deadline: AfterDeadline,
}

const HOUR_S: f64 = 3600.0;

/// Thirty years in seconds; beyond it virtual time would lose precision.
pub(crate) const MAX_TIME_S: f64 = 1e9;

/// The largest standard deviation of log speed. One client in a thousand is then e^31 times as slow as the
/// median.
const MAX_LOG_STD: f64 = 10.0;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// When a round closes, in seconds. Without it, a round closes when no more updates can arrive.
    deadline_s: Option<Positive>,
    /// How long a round waits for clients, in seconds; by default an hour, or the deadline if that is longer.
    patience_s: Option<Positive>,
    #[serde(default)]
    when_waited_for: WhenWaitedFor,
    #[serde(default)]
    after_deadline: AfterDeadline,
    #[serde(default = "a_tenth")]
    step_s: NonNegative,
    /// The time of a constant link in seconds.
    upload_s: Option<NonNegative>,
    #[serde(default = "zero")]
    speed_spread: NonNegative,
    #[serde(default)]
    arrivals: Vec<Event>,
    #[serde(default)]
    departures: Vec<Event>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outages: Vec<Outage>,
    /// A file of recorded membership, instead of events.
    members: Option<String>,
    script: Option<Vec<Vec<ScriptedUpdate>>>,
    after_script: Option<AfterScript>,
}

/// The same keys for a replay, where a record determines participation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayTable {
    /// How long a round with silent clients takes; methods know it, too.
    deadline_s: Option<Positive>,
    /// How long a round takes that waits for clients, in seconds.
    patience_s: Option<Positive>,
}

/// What clients do that are down while a round waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WhenWaitedFor {
    /// They come up, and the round lasts `patience_s`.
    #[default]
    Always,
    /// They work when they are next up, and no round waits for them.
    NextUp,
    /// They do not come up.
    Never,
}

/// What becomes of work that cannot be uploaded by the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AfterDeadline {
    /// The client stops in time to upload the part that it has done.
    #[default]
    Cut,
    /// The client does all of it, and the update arrives in a later round.
    Late,
}

fn a_tenth() -> NonNegative {
    NonNegative::new(0.1).expect("not negative")
}
fn zero() -> NonNegative {
    NonNegative::new(0.0).expect("not negative")
}

/// The patience in seconds: as given, else an hour or the deadline, whichever is longer.
fn patience_s(
    settings: &Settings<'_>,
    deadline_s: Option<Positive>,
    patience_s: Option<Positive>,
) -> Result<f64, SettingsError> {
    for (key, value_s) in [("deadline_s", deadline_s), ("patience_s", patience_s)] {
        value_s.map_or(Ok(()), |value_s| check_duration(settings, key, value_s.get()))?;
    }
    match (deadline_s.map(Positive::get), patience_s.map(Positive::get)) {
        (Some(deadline_s), Some(patience_s)) if patience_s < deadline_s => {
            Err(settings.error("patience_s", "it is shorter than deadline_s; give at least deadline_s"))
        }
        (_, Some(patience_s)) => Ok(patience_s),
        (deadline_s, None) => Ok(deadline_s.map_or(HOUR_S, |deadline_s| deadline_s.max(HOUR_S))),
    }
}

/// Checks a duration in seconds that this key gives.
pub(crate) fn check_duration(settings: &Settings<'_>, key: &str, value_s: f64) -> Result<(), SettingsError> {
    if value_s > MAX_TIME_S {
        return Err(settings.error(key, format!("it is more than {MAX_TIME_S} seconds; give less")));
    }
    Ok(())
}

impl World {
    /// Reads the `[world]` table, for the clients of this data.
    pub fn build(settings: &Settings<'_>, task: &dyn Task) -> Result<World, SettingsError> {
        if settings.inner("replay").is_written() {
            return World::from_record(settings);
        }
        let table: Table = settings.parse_without(&["availability", "work", "churn", "link"])?;
        let subtable = settings.inner("availability");
        let script = match &table.script {
            None => {
                if table.after_script.is_some() {
                    return Err(
                        settings.error("after_script", "it needs a script; give script, or leave it out")
                    );
                }
                None
            }
            Some(_) if subtable.is_written() => {
                return Err(
                    settings.error("script", "a script determines who is up; leave out [world.availability]")
                );
            }
            Some(rounds) => {
                Some(Script::new(rounds.clone(), table.after_script.unwrap_or_default(), settings)?)
            }
        };
        let mut availability: Box<dyn Availability> = match &script {
            Some(script) => Box::new(script.clone()),
            None => build(availability::ALL, &subtable, Some("always"))?,
        };
        availability.prepare(task)?;
        let churn = Churn::build(&settings.inner("churn"))?;
        let is_scheduled = !(table.arrivals.is_empty() && table.departures.is_empty());
        if churn.is_some() && is_scheduled {
            return Err(settings
                .error("churn", "it excludes scheduled arrivals and departures; leave out one of the two"));
        }
        if churn.is_some() && table.members.is_some() {
            return Err(settings.error("members", "it excludes [world.churn]; leave out one of the two"));
        }
        if is_scheduled && table.members.is_some() {
            return Err(settings.error(
                "members",
                "it excludes scheduled arrivals and departures; leave out one of the two",
            ));
        }
        outage::check(&table.outages, settings)?;
        let work = build(work::ALL, &settings.inner("work"), Some("complete"))?;
        let subtable = settings.inner("link");
        let link: Box<dyn Link> = match table.upload_s {
            Some(_) if subtable.is_written() => {
                let message =
                    "it excludes [world.link], which also sets upload times; leave out one of the two";
                return Err(settings.error("upload_s", message));
            }
            Some(upload_s) => Box::new(Constant::new(settings, upload_s)?),
            None if subtable.is_written() => build(link::ALL, &subtable, Some("constant"))?,
            None => {
                settings.resolve("upload_s", 1.0);
                Box::new(Constant { upload_s: 1.0 })
            }
        };
        check_duration(settings, "step_s", table.step_s.get())?;
        if table.speed_spread.get() > MAX_LOG_STD {
            return Err(
                settings.error("speed_spread", format!("it is too large; give at most {MAX_LOG_STD}"))
            );
        }
        let deadline_s = table.deadline_s.map_or(f64::INFINITY, Positive::get);
        // The upload time of an empty update, the shortest there is.
        let upload_s = link.upload_s(0, ClientId::new(0), 0);
        if deadline_s.is_finite() && deadline_s <= upload_s {
            return Err(settings.error(
                "deadline_s",
                format!("no update could arrive: uploading alone takes {upload_s} s; give a longer deadline, or a faster link"),
            ));
        }
        let patience_s = patience_s(settings, table.deadline_s, table.patience_s)?;
        if let Some(round_s) = availability.round_s()
            && deadline_s.is_finite()
            && deadline_s > round_s
        {
            let message = format!(
                "it is longer than the {round_s} seconds from round to round; give less, or a longer round_s"
            );
            return Err(settings.error("deadline_s", message));
        }
        Ok(World {
            availability,
            script,
            replay: None,
            membership: match &table.members {
                Some(file) => membership_file::read(settings, "members", file)?,
                None => Membership::new(table.arrivals, table.departures, settings)?,
            },
            churn,
            outages: table.outages,
            work,
            link,
            speed: Speed {
                seed: settings.context().seed,
                step_s: table.step_s.get(),
                log_std: table.speed_spread.get(),
            },
            deadline_s,
            patience_s,
            when_waited_for: table.when_waited_for,
            after_deadline: table.after_deadline,
        })
    }

    /// The world of a replay.
    fn from_record(settings: &Settings<'_>) -> Result<World, SettingsError> {
        let table: ReplayTable = settings.parse_without(&["replay"])?;
        let patience_s = patience_s(settings, table.deadline_s, table.patience_s)?;
        let (replay, membership) = Replay::read(settings)?;
        let replay = Arc::new(replay);
        Ok(World {
            availability: Box::new(RecordedAvailability(Arc::clone(&replay))),
            script: None,
            replay: Some(replay),
            membership,
            churn: None,
            outages: Vec::new(),
            work: Box::new(Complete {}),
            link: Box::new(Constant { upload_s: 0.0 }),
            speed: Speed { seed: settings.context().seed, step_s: 0.0, log_std: 0.0 },
            deadline_s: table.deadline_s.map_or(f64::INFINITY, Positive::get),
            patience_s,
            when_waited_for: WhenWaitedFor::Never,
            after_deadline: AfterDeadline::Cut,
        })
    }

    /// The rounds of the run that is replayed, one JSON object per line; `None` if this is no replay.
    pub fn replayed_rounds(&self) -> Option<&[u8]> {
        self.replay.as_ref().map(|replay| replay.bytes())
    }

    /// The number of rounds that can be played; `None` if the run determines it.
    pub fn n_rounds(&self) -> Option<u32> {
        self.replay.as_ref().map(|replay| replay.n_rounds())
    }

    /// Calls the roll of a round: who joined, who left, who is up.
    pub(crate) fn roll_call(&mut self, number: RoundNo, task: &dyn Task, census: &mut Census) {
        match &self.churn {
            None => self.membership.apply(number, task, census),
            Some(churn) => churn.apply(number, task, census),
        }
        census.set_up(|enrolled, up| {
            self.availability.mark_up(number, enrolled, up);
            outage::apply(&self.outages, number, up);
        });
    }

    /// Whether an outage keeps a client from coming up, even if a round waits for it.
    pub(crate) fn is_away(&self, number: RoundNo, client: ClientId) -> bool {
        outage::is_away(&self.outages, number, client)
    }

    /// The true probability that each of `n_clients` clients is up and its update arrives. Empty if it is not
    /// constant. Only an oracle knows it.
    pub fn oracle_probabilities(&self, n_clients: usize) -> Vec<f64> {
        let probability = |idx| {
            let client = ClientId::new(idx);
            Some(
                self.availability.oracle_probability(client)?
                    * self.work.oracle_success_probability(client)?,
            )
        };
        let is_everybody = self.churn.is_none() && self.membership.is_static();
        let is_constant =
            self.outages.is_empty() && (is_everybody || !self.availability.depends_on_enrolled());
        if is_constant { (0..n_clients).map_while(probability).collect() } else { Vec::new() }
    }

    /// Remarks for the user, one line each, for example what was repaired in a recording.
    pub fn remarks(&self) -> &[String] {
        self.availability.remarks()
    }

    /// When a round closes, in seconds; infinite without a deadline.
    pub fn deadline_s(&self) -> f64 {
        self.deadline_s
    }
}
