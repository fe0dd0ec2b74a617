//! Who joins and who leaves, by a schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use ebb_round::{Census, ClientId, RoundNo};
use ebb_settings::{Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

/// Some clients, at the beginning of a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    round: RoundNo,
    clients: Vec<u32>,
    /// One after another, so many rounds apart; without it, all at once.
    every: Option<NonZeroU32>,
}

impl Event {
    /// One client, at the beginning of a round.
    pub(crate) fn one(round: RoundNo, client: u32) -> Event {
        Event { round, clients: vec![client], every: None }
    }

    /// Who, and in which round.
    fn each(&self) -> impl Iterator<Item = (u32, RoundNo)> + '_ {
        let apart = self.every.map_or(0, NonZeroU32::get);
        let round = move |at: usize| self.round.saturating_add(apart.saturating_mul(at as u32));
        self.clients.iter().enumerate().map(move |(at, &client)| (client, round(at)))
    }
}

/// All arrivals and departures of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Membership {
    arrivals: Vec<Event>,
    departures: Vec<Event>,
    /// Clients that are not in from the start: the first thing the schedule says of them is that they arrive.
    newcomers: BTreeSet<u32>,
}

impl Membership {
    pub(crate) fn new(
        arrivals: Vec<Event>,
        departures: Vec<Event>,
        settings: &Settings<'_>,
    ) -> Result<Membership, SettingsError> {
        let n_clients = settings.facts().n_clients;
        for (key, events) in [("arrivals", &arrivals), ("departures", &departures)] {
            for (at, event) in events.iter().enumerate() {
                if let Some(client) = event.clients.iter().find(|&&client| client as usize >= n_clients) {
                    let last = n_clients.saturating_sub(1);
                    return Err(settings.error(
                        &format!("{key}[{at}].clients"),
                        format!("there is no client {client}; they are 0 to {last}"),
                    ));
                }
            }
        }
        let newcomers = newcomers(&arrivals, &departures);
        Ok(Membership { arrivals, departures, newcomers })
    }

    /// What was recorded of all clients: nobody is in unless a record says so.
    pub(crate) fn recorded(arrivals: Vec<Event>, departures: Vec<Event>, n_clients: usize) -> Membership {
        Membership { arrivals, departures, newcomers: (0..n_clients as u32).collect() }
    }

    /// Takes in and lets go whoever the schedule says.
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

fn newcomers(arrivals: &[Event], departures: &[Event]) -> BTreeSet<u32> {
    let firsts = |events: &[Event]| {
        let mut first: BTreeMap<u32, RoundNo> = BTreeMap::new();
        for (client, at) in events.iter().flat_map(Event::each) {
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
    let now = events.iter().flat_map(Event::each).filter(move |(_, round)| *round == number);
    now.map(|(client, _)| ClientId::new(client as usize))
}
