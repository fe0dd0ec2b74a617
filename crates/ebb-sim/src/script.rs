//! A world that is written down round by round: which clients return what, after how many steps.

use std::num::NonZeroU32;

use ebb_round::inbox::MAX_STALENESS_ROUNDS;
use ebb_round::{Bits, ClientId, RoundNo, Update, stateless};
use ebb_settings::{Settings, SettingsError};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::availability::Availability;

/// One client's update in a scripted round: `3`, or `{ client = 3, steps = 1, late = 2, sends = "nan" }`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScriptedUpdate {
    client: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<NonZeroU32>,
    late: u32,
    sends: Sends,
}

/// What a client sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sends {
    /// Its update.
    #[default]
    Update,
    /// Its update with the last number replaced by NaN.
    Nan,
    /// Its update with the last number replaced by infinity.
    Infinity,
    /// Its update without the last number.
    Short,
}

impl ScriptedUpdate {
    /// A whole, valid update that arrives in time.
    pub(crate) fn whole(client: ClientId) -> ScriptedUpdate {
        ScriptedUpdate { client: client.number(), steps: None, late: 0, sends: Sends::Update }
    }

    /// The number of steps that the client does, if fewer than the job asks for.
    pub(crate) fn steps(&self) -> Option<NonZeroU32> {
        self.steps
    }

    /// The number of rounds by which the update is late.
    pub(crate) fn rounds_late(&self) -> u32 {
        self.late
    }

    /// Corrupts the update as the script says.
    pub(crate) fn corrupt(&self, update: &mut Update) {
        let model = &mut update.delta.model;
        match (self.sends, model.last_mut()) {
            (Sends::Nan, Some(last)) => *last = f32::NAN,
            (Sends::Infinity, Some(last)) => *last = f32::INFINITY,
            (Sends::Short, Some(_)) => {
                model.pop();
            }
            _ => {}
        }
    }
}

impl<'de> Deserialize<'de> for ScriptedUpdate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            client: u32,
            steps: Option<NonZeroU32>,
            #[serde(default)]
            late: u32,
            #[serde(default)]
            sends: Sends,
        }
        struct NumberOrTable;
        impl<'de> Visitor<'de> for NumberOrTable {
            type Value = ScriptedUpdate;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a client id, or a table such as { client = 3, steps = 1 }")
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<ScriptedUpdate, E> {
                let client =
                    u32::try_from(number).map_err(|_| E::custom("a client id from 0 on is needed"))?;
                Ok(ScriptedUpdate { client, steps: None, late: 0, sends: Sends::Update })
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ScriptedUpdate, A::Error> {
                let Table { client, steps, late, sends } =
                    Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ScriptedUpdate { client, steps, late, sends })
            }
        }
        deserializer.deserialize_any(NumberOrTable)
    }
}

/// What happens after the last scripted round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AfterScript {
    /// All clients return updates.
    #[default]
    Everyone,
    /// No client does.
    Nobody,
    /// The script starts again.
    Repeat,
}

/// The whole script.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    rounds: Vec<Vec<ScriptedUpdate>>,
    after_end: AfterScript,
}

impl Script {
    pub(crate) fn new(
        rounds: Vec<Vec<ScriptedUpdate>>,
        after_end: AfterScript,
        settings: &Settings<'_>,
    ) -> Result<Script, SettingsError> {
        let n_clients = settings.context().n_clients;
        for (number, updates) in rounds.iter().enumerate() {
            for (at, update) in updates.iter().enumerate() {
                let wrong =
                    |message: String| Err(settings.error(&format!("script[{number}][{at}]"), message));
                if update.client as usize >= n_clients {
                    let last = n_clients.saturating_sub(1);
                    return wrong(format!("there is no client {}; they are 0 to {last}", update.client));
                }
                if update.late > MAX_STALENESS_ROUNDS {
                    return wrong(format!("an update can be at most {MAX_STALENESS_ROUNDS} rounds late"));
                }
                if updates[..at].iter().any(|other| other.client == update.client) {
                    return wrong(format!("client {} is listed twice in round {number}", update.client));
                }
            }
        }
        Ok(Script { rounds, after_end })
    }

    /// What a client returns in a round; `None`: nothing.
    pub(crate) fn response(&self, number: RoundNo, client: ClientId) -> Option<ScriptedUpdate> {
        match self.round(number) {
            Some(updates) => updates.iter().find(|update| update.client == client.number()).cloned(),
            None => (self.after_end == AfterScript::Everyone).then(|| ScriptedUpdate::whole(client)),
        }
    }

    fn round(&self, number: RoundNo) -> Option<&[ScriptedUpdate]> {
        let number = number as usize;
        let number = match self.after_end {
            AfterScript::Repeat if !self.rounds.is_empty() => number % self.rounds.len(),
            _ => number,
        };
        self.rounds.get(number).map(Vec::as_slice)
    }
}

impl Availability for Script {
    fn mark_up(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        match self.round(number) {
            None if self.after_end == AfterScript::Everyone => up.fill_words(|_| u64::MAX),
            None => up.clear(),
            Some(updates) => {
                up.clear();
                // A client that has not joined yet has no bit and is not up.
                let known = updates.iter().map(|update| update.client as usize).filter(|&idx| idx < up.len());
                known.collect::<Vec<_>>().into_iter().for_each(|idx| up.set(idx, true));
            }
        }
    }
}

stateless!(Script);
