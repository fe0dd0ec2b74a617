//! Arrivals and departures by a schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use ebb_round::{Census, ClientId, RoundNo};
use ebb_settings::{BuildContext, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

/// Some clients that arrive or leave at the start of a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    round: RoundNo,
    clients: Vec<u32>,
    /// The number of rounds between one client and the next. Without it, all arrive or leave at once.
    every: Option<NonZeroU32>,
}

impl Event {
    /// One client that arrives or leaves at the start of a round.
    pub(crate) fn single(round: RoundNo, client: u32) -> Event {
        Event { round, clients: vec![client], every: None }
    }

    /// Each client, with the round in which it arrives or leaves.
    fn per_client(&self) -> impl Iterator<Item = (u32, RoundNo)> + '_ {
        let rounds_apart = self.every.map_or(0, NonZeroU32::get);
        let round = move |at: usize| self.round.saturating_add(rounds_apart.saturating_mul(at as u32));
        self.clients.iter().enumerate().map(move |(at, &client)| (client, round(at)))
    }

    /// Checks this event alone; `at` is its position in its list.
    fn check(&self, change: Change, at: usize, settings: &Settings<'_>) -> Result<(), SettingsError> {
        let BuildContext { n_clients, n_rounds, .. } = settings.context();
        let (setting_key, verb) = (change.setting_key(), change.verb());
        let wrong = |message: String| Err(settings.error(&format!("{setting_key}[{at}].clients"), message));
        if self.clients.is_empty() {
            return wrong("it names no client; name clients, or leave it out".to_owned());
        }
        if let Some(client) = self.clients.iter().find(|&&client| client as usize >= n_clients) {
            let last = n_clients.saturating_sub(1);
            return wrong(format!("there is no client {client}; they are 0 to {last}"));
        }
        let mut seen = BTreeSet::new();
        if let Some(client) = self.clients.iter().find(|&&client| !seen.insert(client)) {
            return wrong(format!("it names client {client} twice; name it once"));
        }
        // The number of rounds may be unknown, which is 0 here.
        let Some(last) = n_rounds.checked_sub(1) else { return Ok(()) };
        self.per_client().find(|&(_, round)| round > last).map_or(Ok(()), |(client, round)| {
            let message = format!("client {client} {verb} in round {round}, but the last is round {last}");
            let remedy = "so it never happens; give an earlier round, or a larger run.rounds";
            Err(settings.error(&format!("{setting_key}[{at}].round"), format!("{message}, {remedy}")))
        })
    }
}

/// Whether a client arrives or leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Arrival,
    Departure,
}

impl Change {
    /// The setting that lists such events.
    fn setting_key(self) -> &'static str {
        match self {
            Change::Arrival => "arrivals",
            Change::Departure => "departures",
        }
    }

    fn verb(self) -> &'static str {
        match self {
            Change::Arrival => "arrives",
            Change::Departure => "leaves",
        }
    }
}

/// All arrivals and departures of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Membership {
    arrivals: Vec<Event>,
    departures: Vec<Event>,
    /// Clients that are not enrolled from the start, because their first event is an arrival.
    newcomers: BTreeSet<u32>,
}

impl Membership {
    pub(crate) fn new(
        arrivals: Vec<Event>,
        departures: Vec<Event>,
        settings: &Settings<'_>,
    ) -> Result<Membership, SettingsError> {
        for (change, events) in [(Change::Arrival, &arrivals), (Change::Departure, &departures)] {
            for (at, event) in events.iter().enumerate() {
                event.check(change, at, settings)?;
            }
        }
        check_alternation(&arrivals, &departures, settings)?;
        let newcomers = newcomers(&arrivals, &departures);
        Ok(Membership { arrivals, departures, newcomers })
    }

    /// The membership that a record holds: a client is enrolled only while the record says so.
    pub(crate) fn from_record(arrivals: Vec<Event>, departures: Vec<Event>, n_clients: usize) -> Membership {
        Membership { arrivals, departures, newcomers: (0..n_clients as u32).collect() }
    }

    /// Whether all clients are enrolled from beginning to end.
    pub(crate) fn is_static(&self) -> bool {
        self.arrivals.is_empty() && self.departures.is_empty() && self.newcomers.is_empty()
    }

    /// Applies the events of a round.
    pub(crate) fn apply(&self, number: RoundNo, task: &dyn Task, census: &mut Census) {
        if number == 0 {
            let all = (0..task.n_clients()).map(ClientId::new);
            for client in all.filter(|client| !self.newcomers.contains(&client.number())) {
                census.enrol(client, task.samples(client), 0);
            }
        }
        for client in clients(&self.departures, number) {
            census.leave(client, number);
        }
        for client in clients(&self.arrivals, number) {
            census.enrol(client, task.samples(client), number);
        }
    }
}

/// Checks that every client arrives and leaves in turns, and not both in one round.
fn check_alternation(
    arrivals: &[Event],
    departures: &[Event],
    settings: &Settings<'_>,
) -> Result<(), SettingsError> {
    let mut changes = Vec::new();
    for (change, events) in [(Change::Arrival, arrivals), (Change::Departure, departures)] {
        for (at, event) in events.iter().enumerate() {
            changes.extend(event.per_client().map(|(client, round)| (client, round, change, at)));
        }
    }
    changes.sort_unstable();
    for pair in changes.windows(2) {
        let [(before, since, from, by), (client, round, change, at)] = *pair else { continue };
        if before != client || from != change && since != round {
            continue;
        }
        let (by, verb) = (format!("{}[{by}]", from.setting_key()), change.verb());
        let reason = match change {
            _ if from != change => {
                format!("in which it {} by {by}; move one of the two to another round", from.verb())
            }
            Change::Arrival => {
                format!(
                    "but it already arrived in round {since} by {by}; let it leave in between, or drop one of the two"
                )
            }
            Change::Departure => {
                format!(
                    "but it already left in round {since} by {by}; let it arrive in between, or drop one of the two"
                )
            }
        };
        let message = format!("client {client} {verb} in round {round}, {reason}");
        return Err(settings.error(&format!("{}[{at}].clients", change.setting_key()), message));
    }
    Ok(())
}

fn newcomers(arrivals: &[Event], departures: &[Event]) -> BTreeSet<u32> {
    let firsts = |events: &[Event]| {
        let mut first: BTreeMap<u32, RoundNo> = BTreeMap::new();
        for (client, at) in events.iter().flat_map(Event::per_client) {
            let round = first.entry(client).or_insert(at);
            *round = at.min(*round);
        }
        first
    };
    let (arrivals, departures) = (firsts(arrivals), firsts(departures));
    let leaves_before =
        |client: &u32, round: RoundNo| departures.get(client).is_some_and(|&left| left <= round);
    arrivals
        .iter()
        .filter(|(client, round)| !leaves_before(client, **round))
        .map(|(&client, _)| client)
        .collect()
}

fn clients(events: &[Event], number: RoundNo) -> impl Iterator<Item = ClientId> + '_ {
    let now = events.iter().flat_map(Event::per_client).filter(move |(_, round)| *round == number);
    now.map(|(client, _)| ClientId::new(client as usize))
}

#[cfg(test)]
mod tests {
    use ebb_settings::Tree;

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Schedule {
        #[serde(default)]
        arrivals: Vec<Event>,
        #[serde(default)]
        departures: Vec<Event>,
    }

    /// The error of a schedule for 5 clients, if it is refused.
    fn outcome(text: &str, n_rounds: u32) -> Result<(), String> {
        let tree = Tree::parse(&format!("[world]\n{text}"), "a.toml").unwrap();
        let settings = tree.table("world", BuildContext { seed: 1, n_clients: 5, n_rounds });
        let Schedule { arrivals, departures } = settings.parse().unwrap();
        Membership::new(arrivals, departures, &settings).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn possible_schedules_are_accepted() {
        for text in [
            "",
            "arrivals = [{ round = 0, clients = [1] }, { round = 9, clients = [2, 3] }]",
            "departures = [{ round = 2, clients = [1] }]\narrivals = [{ round = 3, clients = [1] }]",
            "arrivals = [{ round = 6, clients = [1] }, { round = 2, clients = [1, 2] }]\n\
             departures = [{ round = 8, clients = [1] }, { round = 4, clients = [2, 1], every = 1 }]",
        ] {
            assert_eq!(outcome(text, 10), Ok(()), "{text}");
        }
        assert_eq!(outcome("arrivals = [{ round = 10, clients = [1] }]", 0), Ok(()));
    }

    #[test]
    fn impossible_schedules_are_refused() {
        let check = |text: &str, expected: &str| {
            let error = outcome(text, 10).unwrap_err();
            assert!(error.ends_with(&format!(": world.{expected}")), "{text}: {error}");
        };
        check(
            "arrivals = [{ round = 1, clients = [5] }]",
            "arrivals[0].clients = [5]: there is no client 5; they are 0 to 4",
        );
        check(
            "departures = [{ round = 1, clients = [] }]",
            "departures[0].clients = []: it names no client; name clients, or leave it out",
        );
        check(
            "arrivals = [{ round = 1, clients = [0] }, { round = 2, clients = [3, 1, 3] }]",
            "arrivals[1].clients = [3, 1, 3]: it names client 3 twice; name it once",
        );
        check(
            "arrivals = [{ round = 1, clients = [3] }, { round = 4, clients = [2, 3] }]",
            "arrivals[1].clients = [2, 3]: client 3 arrives in round 4, but it already arrived in round 1 by \
             arrivals[0]; let it leave in between, or drop one of the two",
        );
        // The order of the list does not matter.
        check(
            "arrivals = [{ round = 4, clients = [2, 3] }, { round = 1, clients = [3] }]",
            "arrivals[0].clients = [2, 3]: client 3 arrives in round 4, but it already arrived in round 1 by \
             arrivals[1]; let it leave in between, or drop one of the two",
        );
        check(
            "departures = [{ round = 1, clients = [3] }, { round = 4, clients = [3] }]",
            "departures[1].clients = [3]: client 3 leaves in round 4, but it already left in round 1 by \
             departures[0]; let it arrive in between, or drop one of the two",
        );
        check(
            "departures = [{ round = 4, clients = [3] }]\narrivals = [{ round = 2, clients = [1, 2, 3], every = 1 }]",
            "departures[0].clients = [3]: client 3 leaves in round 4, in which it arrives by arrivals[0]; \
             move one of the two to another round",
        );
        let remedy = "so it never happens; give an earlier round, or a larger run.rounds";
        check(
            "arrivals = [{ round = 10, clients = [3] }]",
            &format!(
                "arrivals[0].round = 10: client 3 arrives in round 10, but the last is round 9, {remedy}"
            ),
        );
        check(
            "departures = [{ round = 6, clients = [1, 2, 3], every = 2 }]",
            &format!(
                "departures[0].round = 6: client 3 leaves in round 10, but the last is round 9, {remedy}"
            ),
        );
    }
}
