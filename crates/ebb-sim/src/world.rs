//! The `[world]` table: availability, speeds, deadline, membership, or a script, or the record of a run.

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

/// What a `[world]` table can hold beside its availability: a name, what it is for, and an example.
pub const COMPONENTS: [(&str, &str, &str); 7] = [
    (
        "script",
        "a table of who answers what in which round, with how many steps: for pencil and paper",
        "script = [\n  [0, 1, 2],\n  [0, { client = 1, steps = 1 }],\n  [{ client = 2, late = 1 }, { client = 1, sends = \"nan\" }],\n]\nafter_script = \"everyone\"",
    ),
    (
        "speed",
        "virtual time: how long clients compute and upload, when rounds close, what waiting costs",
        "deadline_s = 60.0\nstep_s = 0.1\nupload_s = 1.0\nspeed_spread = 0.5\npatience_s = 3600.0\nwhen_waited_for = \"always\"\nafter_deadline = \"cut\"",
    ),
    (
        "membership",
        "who arrives and who leaves, by a schedule",
        "arrivals = [{ round = 10, clients = [3, 4] }, { round = 30, clients = [5, 6, 7], every = 5 }]\ndepartures = [{ round = 20, clients = [0] }]",
    ),
    (
        "members",
        "who was in from which round to which, as recorded in a file",
        "members = \"/data/members.csv\"   # columns client, joined, left; the last empty for those that stay",
    ),
    (
        "churn",
        "random arrivals and departures: a Poisson number of newcomers a round, geometric lifetimes",
        "[world.churn]\nfrom_start = 0.5\narrivals = 0.5\nlifetime = 100.0",
    ),
    (
        "outages",
        "clients that are away from a round until another, whatever their availability says",
        "outages = [{ from = 20, until = 80, clients = [0, 1, 2, 3] }]",
    ),
    (
        "replay",
        "the participation of another run, served or simulated, from its record; what it cannot know is a guess",
        "deadline_s = 60.0\n[world.replay]\nrecord = \"/runs/served\"   # its folder, or a file of its rounds\nimpute = \"own-rate\"       # or answers, silent",
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

/// Thirty years; beyond it virtual time would lose its seconds.
pub(crate) const MAX_TIME_S: f64 = 1e9;

/// One client in a thousand is then e^31 times slower than ordinary.
const MAX_LOG_STD: f64 = 10.0;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// When a round closes; without it, when all that can answer have.
    deadline_s: Option<Positive>,
    /// How long a round is held open for clients that are waited for; an hour, or the deadline if longer.
    patience_s: Option<Positive>,
    #[serde(default)]
    when_waited_for: WhenWaitedFor,
    #[serde(default)]
    after_deadline: AfterDeadline,
    #[serde(default = "a_tenth")]
    step_s: NonNegative,
    /// The same as a constant link.
    upload_s: Option<NonNegative>,
    #[serde(default = "zero")]
    speed_spread: NonNegative,
    #[serde(default)]
    arrivals: Vec<Event>,
    #[serde(default)]
    departures: Vec<Event>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outages: Vec<Outage>,
    /// A file of who was in from when until when, instead.
    members: Option<String>,
    script: Option<Vec<Vec<ScriptedUpdate>>>,
    after_script: Option<AfterScript>,
}

/// The same where a record says who was there and what came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayTable {
    /// How long a round with silent clients takes, and what methods are told.
    deadline_s: Option<Positive>,
    /// The same where clients are waited for.
    patience_s: Option<Positive>,
}

/// What clients do that are down but waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WhenWaitedFor {
    /// They come, and the round takes all the run's patience.
    #[default]
    Always,
    /// They do the work when they are next up; no round waits for them.
    NextUp,
    /// They do not come.
    Never,
}

/// What becomes of work that cannot be sent by the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AfterDeadline {
    /// The client stops in time to send what it has.
    #[default]
    Cut,
    /// It does all of it, and the answer arrives in a later round.
    Late,
}

fn a_tenth() -> NonNegative {
    NonNegative::new(0.1).expect("not negative")
}
fn zero() -> NonNegative {
    NonNegative::new(0.0).expect("not negative")
}

/// How long clients are waited for: what is said, else an hour, or the deadline if that is longer.
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
            Err(settings.error("patience_s", "shorter than deadline_s; give at least as much"))
        }
        (_, Some(patience_s)) => Ok(patience_s),
        (deadline_s, None) => Ok(deadline_s.map_or(HOUR_S, |deadline_s| deadline_s.max(HOUR_S))),
    }
}

/// Whether so many seconds, which stand under this key, can be.
pub(crate) fn check_duration(settings: &Settings<'_>, key: &str, value_s: f64) -> Result<(), SettingsError> {
    if value_s > MAX_TIME_S {
        return Err(settings.error(key, format!("more than {MAX_TIME_S} seconds; give less")));
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
                    return Err(settings.error("after_script", "there is no script that it could come after"));
                }
                None
            }
            Some(_) if subtable.is_written() => {
                return Err(
                    settings.error("script", "a script says who is up; leave out [world.availability]")
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
            return Err(
                settings.error("churn", "arrivals and departures are scheduled; leave out one of them")
            );
        }
        if churn.is_some() && table.members.is_some() {
            return Err(settings.error("members", "[world.churn] says who is in; leave out one of them"));
        }
        if is_scheduled && table.members.is_some() {
            return Err(
                settings.error("members", "arrivals and departures are scheduled; leave out one of them")
            );
        }
        outage::check(&table.outages, settings)?;
        let work = build(work::ALL, &settings.inner("work"), Some("complete"))?;
        let subtable = settings.inner("link");
        let link: Box<dyn Link> = match table.upload_s {
            Some(_) if subtable.is_written() => {
                let message = "[world.link] says how long sending takes; leave out one of them";
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
            return Err(settings.error("speed_spread", format!("give at most {MAX_LOG_STD}")));
        }
        let deadline_s = table.deadline_s.map_or(f64::INFINITY, Positive::get);
        // What even an empty answer takes.
        let upload_s = link.upload_s(0, ClientId::new(0), 0);
        if deadline_s.is_finite() && deadline_s <= upload_s {
            return Err(settings.error(
                "deadline_s",
                format!("nobody could answer: sending alone takes upload_s = {upload_s}; give more, or a faster link"),
            ));
        }
        let patience_s = patience_s(settings, table.deadline_s, table.patience_s)?;
        if let Some(round_s) = availability.round_s()
            && deadline_s.is_finite()
            && deadline_s > round_s
        {
            let message = format!(
                "longer than the {round_s} seconds from round to round; give less, or a longer round_s"
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

    /// The world that a record tells of.
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

    /// The rounds of the run that is replayed, one JSON object a line, if this is a replay.
    pub fn replayed_rounds(&self) -> Option<&[u8]> {
        self.replay.as_ref().map(|replay| replay.bytes())
    }

    /// How many rounds can be played; `None` where that is up to the run.
    pub fn n_rounds(&self) -> Option<u32> {
        self.replay.as_ref().map(|replay| replay.n_rounds())
    }

    /// Takes the roll of a round: who joined, who left, who is up.
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

    /// Whether an outage keeps a client from coming, even if it is waited for.
    pub(crate) fn is_away(&self, number: RoundNo, client: ClientId) -> bool {
        outage::is_away(&self.outages, number, client)
    }

    /// The true chance of each of so many clients to be there when it is asked; empty where there is none that is always the
    /// same. Only an oracle knows.
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

    /// What the user should know of it, a line each: say, what of a recording was not taken as it is.
    pub fn remarks(&self) -> &[String] {
        self.availability.remarks()
    }

    /// When a round closes, in seconds; infinite if there is no deadline.
    pub fn deadline_s(&self) -> f64 {
        self.deadline_s
    }
}
