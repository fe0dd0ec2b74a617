//! Who joins and who leaves, by a schedule.

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
}

/// All arrivals and departures of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Membership {
    arrivals: Vec<Event>,
    departures: Vec<Event>,
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
        Ok(Membership { arrivals, departures })
    }

    /// Takes in and lets go whoever the schedule says. A client is in from the start unless the first thing
    /// the schedule says of it is that it arrives.
    pub(crate) fn apply(&self, number: RoundNo, task: &dyn Task, census: &mut Census) {
        if number == 0 {
            for client in (0..task.n_clients()).map(ClientId::new).filter(|&client| self.from_start(client)) {
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

    fn from_start(&self, client: ClientId) -> bool {
        let first = |events: &[Event]| {
            let of_client = events.iter().filter(|event| event.clients.contains(&client.number()));
            of_client.map(|event| event.round).min()
        };
        match (first(&self.arrivals), first(&self.departures)) {
            (None, _) => true,
            (Some(arrival), departure) => departure.is_some_and(|departure| departure <= arrival),
        }
    }
}

fn clients(events: &[Event], number: RoundNo) -> impl Iterator<Item = ClientId> + '_ {
    events
        .iter()
        .filter(move |event| event.round == number)
        .flat_map(|event| &event.clients)
        .map(|&client| ClientId::new(client as usize))
}
