//! The `[chaos]` table: which faults hit which process, and when.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use ebb_round::{ClientId, Stream};
use ebb_settings::{BuildContext, NonNegative, Positive, Probability, Tree};
use serde::{Deserialize, Serialize};

use super::proxy::LinkLimits;
use crate::CliError;

/// The `[chaos]` table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChaosTable {
    /// The number of clients.
    pub(super) clients: NonZeroU32,
    #[serde(default = "one")]
    seed: u32,
    /// The probability that a client is killed in a round.
    #[serde(default = "never")]
    kill: Probability,
    /// The probability that a client is paused in a round.
    #[serde(default = "never")]
    pause: Probability,
    /// The probability that a client loses its connection in a round.
    #[serde(default = "never")]
    cut: Probability,
    /// The probability that a cut is silent: packets are lost, and neither side sees its connection close.
    #[serde(default = "never")]
    cut_silently: Probability,
    /// Clients with probabilities of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    class: Vec<FaultClass>,
    /// When the fault happens, in seconds after the start of the round: a range.
    #[serde(default = "at_once")]
    strike_s: [NonNegative; 2],
    /// How long the fault lasts, in seconds: a range.
    #[serde(default = "a_while")]
    away_s: [NonNegative; 2],
    /// How often the server is killed, at random times.
    #[serde(default)]
    server_kills: u32,
    /// How long the server stays down, in seconds: a range.
    #[serde(default = "a_moment")]
    down_s: [NonNegative; 2],
    /// The delay of the connection in seconds, in each direction.
    #[serde(default = "zero")]
    delay_s: NonNegative,
    /// The bandwidth of the connection in bytes a second, in each direction.
    bytes_per_s: Option<Positive>,
    /// The authority that signed the server's certificate, if [serve.tls] is given.
    pub(super) ca: Option<PathBuf>,
}

/// Some clients, with the probabilities of each; a missing probability is 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultClass {
    clients: Vec<u32>,
    #[serde(default = "never")]
    kill: Probability,
    #[serde(default = "never")]
    pause: Probability,
    #[serde(default = "never")]
    cut: Probability,
}

fn one() -> u32 {
    1
}
fn never() -> Probability {
    Probability::new(0.0).expect("a probability")
}
fn zero() -> NonNegative {
    NonNegative::new(0.0).expect("not negative")
}
fn at_once() -> [NonNegative; 2] {
    [zero(), zero()]
}
fn a_while() -> [NonNegative; 2] {
    [0.2, 2.0].map(|value| NonNegative::new(value).expect("not negative"))
}
fn a_moment() -> [NonNegative; 2] {
    [0.0, 0.5].map(|value| NonNegative::new(value).expect("not negative"))
}

/// A fault of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Kill,
    Pause,
    Cut,
    Silence,
}

impl ChaosTable {
    pub(super) fn read(tree: &Tree) -> Result<ChaosTable, CliError> {
        let settings = tree.table("chaos", BuildContext::default());
        let table: ChaosTable = settings.parse()?;
        let mut probabilities = vec![("kill".to_owned(), [table.kill, table.pause, table.cut])];
        for (at, class) in table.class.iter().enumerate() {
            probabilities.push((format!("class[{at}].kill"), [class.kill, class.pause, class.cut]));
            let wrong =
                |message: String| Err(settings.error(&format!("class[{at}].clients"), message).into());
            if let Some(client) = class.clients.iter().find(|&&client| client >= table.clients.get()) {
                let last = table.clients.get() - 1;
                return wrong(format!("no client {client}; give numbers from 0 to {last}"));
            }
            let earlier = table.class[..at].iter().flat_map(|class| &class.clients);
            let mut seen: BTreeSet<u32> = earlier.copied().collect();
            if let Some(client) = class.clients.iter().find(|&&client| !seen.insert(client)) {
                return wrong(format!("client {client} is listed twice; list it once"));
            }
        }
        for (key, probabilities) in probabilities {
            if probabilities.iter().map(|probability| probability.get()).sum::<f64>() > 1.0 {
                return Err(settings
                    .error(&key, "the probabilities of kill, pause and cut add up to more than 1; lower them")
                    .into());
            }
        }
        let times = [("strike_s", table.strike_s), ("away_s", table.away_s), ("down_s", table.down_s)];
        for (key, [from, to]) in times {
            if from.get() > to.get() {
                return Err(settings
                    .error(key, "not a range; give the shortest time first, then the longest")
                    .into());
            }
        }
        Ok(table)
    }

    /// The fault of a client in a round: its kind, its start after that of the round, and its duration.
    pub(super) fn fault(&self, round: u32, client: u32) -> Option<(Fault, f64, f64)> {
        let mut stream =
            Stream::of_client_round(u64::from(self.seed), "swarm", round, ClientId::new(client as usize));
        let at = stream.uniform();
        let class = self.class.iter().find(|class| class.clients.contains(&client));
        let [kill, pause, cut] =
            class.map_or([self.kill, self.pause, self.cut], |class| [class.kill, class.pause, class.cut]);
        let probabilities = [(kill, Fault::Kill), (pause, Fault::Pause), (cut, Fault::Cut)];
        let mut sum = 0.0;
        let fault = probabilities.into_iter().find_map(|(probability, blow)| {
            sum += probability.get();
            (at < sum).then_some(blow)
        })?;
        let away_s = interpolate(self.away_s, stream.uniform());
        let strike_s = interpolate(self.strike_s, stream.uniform());
        let silent = fault == Fault::Cut && stream.uniform() < self.cut_silently.get();
        Some((if silent { Fault::Silence } else { fault }, strike_s, away_s))
    }

    /// The rounds after which the server is killed.
    pub(super) fn server_kills(&self, n_rounds: u32) -> Vec<u32> {
        let mut stream = Stream::of_run(u64::from(self.seed), "swarm server");
        // Not after the last round, when the server is about to end.
        let rounds = n_rounds.saturating_sub(1).max(1) as usize;
        (0..self.server_kills).map(|_| stream.below(rounds) as u32).collect()
    }

    /// The time of the kill, as a share of the following round.
    pub(super) fn kill_moment(&self, round: u32) -> f64 {
        Stream::of_round(u64::from(self.seed), "swarm when", round).uniform()
    }

    /// The same for a kill that was deferred because the server was down, by the number of its next start.
    pub(super) fn deferred_kill_moment(&self, life: u32) -> f64 {
        Stream::of_round(u64::from(self.seed), "swarm again", life).uniform()
    }

    /// How often the server is killed in all.
    pub(super) fn n_server_kills(&self) -> u32 {
        self.server_kills
    }

    /// How long the server stays down, in seconds.
    pub(super) fn down_s(&self, life: u32) -> f64 {
        interpolate(self.down_s, Stream::of_round(u64::from(self.seed), "swarm down", life).uniform())
    }

    pub(super) fn link_limits(&self) -> LinkLimits {
        let delay = Duration::from_secs_f64(self.delay_s.get());
        LinkLimits { delay, bytes_per_s: self.bytes_per_s.map(Positive::get) }
    }
}

fn interpolate([from, to]: [NonNegative; 2], part: f64) -> f64 {
    from.get() + part * (to.get() - from.get())
}

/// Pauses or resumes a process; returns whether that worked.
#[cfg(unix)]
pub(super) fn pause(child: &Child, stop: bool) -> bool {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = if stop { Signal::STOP } else { Signal::CONT };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

#[cfg(not(unix))]
pub(super) fn pause(_child: &Child, _stop: bool) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Result<ChaosTable, CliError> {
        ChaosTable::read(&Tree::parse(&format!("[chaos]\nclients = 20\n{text}"), "swarm.toml").unwrap())
    }

    #[test]
    fn faults_come_as_often_as_they_should_and_are_repeatable() {
        let table = table("kill = 0.15\ncut = 0.15").unwrap();
        let faults: Vec<_> = (0..200)
            .flat_map(|round| (0..20).map(move |client| (round, client)))
            .filter_map(|(round, client)| table.fault(round, client))
            .collect();
        let killed = faults.iter().filter(|(fault, ..)| *fault == Fault::Kill).count();
        assert!((540..660).contains(&killed), "{killed} of 600");
        assert!((1100..1300).contains(&faults.len()), "{}", faults.len());
        assert!(faults.iter().all(|(_, _, away_s)| (0.2..2.0).contains(away_s)));
        assert_eq!(table.fault(3, 7), table.fault(3, 7));
    }

    #[test]
    fn a_share_of_the_cuts_is_silent_and_all_else_stays() {
        let faults = |text: &str| {
            let table = table(text).unwrap();
            (0..100)
                .flat_map(|round| (0..20).filter_map(|c| table.fault(round, c)).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        let (loud, both) =
            (faults("kill = 0.2\ncut = 0.3"), faults("kill = 0.2\ncut = 0.3\ncut_silently = 0.5"));
        let silent = both.iter().filter(|(fault, ..)| *fault == Fault::Silence).count();
        assert!((240..360).contains(&silent), "{silent} of 600");
        let as_cut = |&(fault, strike_s, away_s): &(Fault, f64, f64)| {
            (if fault == Fault::Silence { Fault::Cut } else { fault }, strike_s, away_s)
        };
        assert_eq!(both.iter().map(as_cut).collect::<Vec<_>>(), loud);
    }

    #[test]
    fn classes_have_probabilities_of_their_own() {
        let settings = "kill = 0.5\nstrike_s = [0.1, 0.3]\n[[chaos.class]]\nclients = [0, 1]\ncut = 1.0\n\
                       [[chaos.class]]\nclients = [2]\n";
        let plan = table(settings).unwrap();
        let faults = |client| (0..200).filter_map(|round| plan.fault(round, client)).collect::<Vec<_>>();
        assert!(faults(0).len() == 200 && faults(1).iter().all(|(fault, ..)| *fault == Fault::Cut));
        assert!(faults(2).is_empty());
        assert!((70..130).contains(&faults(3).len()), "{}", faults(3).len());
        assert!(faults(3).iter().all(|(_, strike_s, _)| (0.1..0.3).contains(strike_s)));
        for (text, key) in [
            ("[[chaos.class]]\nclients = [20]", "chaos.class[0].clients"),
            ("[[chaos.class]]\nclients = [1]\n[[chaos.class]]\nclients = [2, 1]", "chaos.class[1].clients"),
            ("[[chaos.class]]\nclients = [1]\nkill = 0.7\ncut = 0.4", "chaos.class[0].kill"),
        ] {
            let error = table(text).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn the_server_is_killed_as_often_as_it_should_be() {
        let kills = table("server_kills = 20").unwrap().server_kills(200);
        assert_eq!(kills.len(), 20);
        assert!(kills.iter().all(|&round| round < 199));
    }

    #[test]
    fn probabilities_beyond_one_and_reversed_times_are_named() {
        for (text, key) in [("kill = 0.6\ncut = 0.6", "chaos.kill"), ("away_s = [2.0, 1.0]", "chaos.away_s")]
        {
            let error = table(text).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
