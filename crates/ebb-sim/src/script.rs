//! A world written down round by round: who answers what, with how many steps.

use std::num::NonZeroU32;

use ebb_round::inbox::MAX_STALENESS_ROUNDS;
use ebb_round::{Bits, ClientId, RoundNo, Update, stateless};
use ebb_settings::{Settings, SettingsError};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::availability::Availability;

/// One client's answer in a scripted round: `3`, or `{ client = 3, steps = 1, late = 2, sends = "nan" }`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reply {
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
    /// An update with a number that is none.
    Nan,
    /// An update with an infinite number.
    Infinity,
    /// An update with its last number missing.
    Short,
}

impl Reply {
    /// A whole, honest answer in time.
    pub(crate) fn whole(client: ClientId) -> Reply {
        Reply { client: client.number(), steps: None, late: 0, sends: Sends::Update }
    }

    /// How many steps the client does, if fewer than asked.
    pub(crate) fn steps(&self) -> Option<NonZeroU32> {
        self.steps
    }

    /// How many rounds later the answer arrives.
    pub(crate) fn late(&self) -> u32 {
        self.late
    }

    /// Does to the update what the script says.
    pub(crate) fn garble(&self, update: &mut Update) {
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

impl<'de> Deserialize<'de> for Reply {
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
            type Value = Reply;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a client's number, or a table such as { client = 3, steps = 1 }")
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Reply, E> {
                let client =
                    u32::try_from(number).map_err(|_| E::custom("a client's number is not negative"))?;
                Ok(Reply { client, steps: None, late: 0, sends: Sends::Update })
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Reply, A::Error> {
                let Table { client, steps, late, sends } =
                    Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Reply { client, steps, late, sends })
            }
        }
        deserializer.deserialize_any(NumberOrTable)
    }
}

/// What happens after the last scripted round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum After {
    /// Everybody answers.
    #[default]
    Everyone,
    /// Nobody does.
    Nobody,
    /// The script begins again.
    Repeat,
}

/// The whole script.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    rounds: Vec<Vec<Reply>>,
    after: After,
}

impl Script {
    pub(crate) fn new(
        rounds: Vec<Vec<Reply>>,
        after: After,
        settings: &Settings<'_>,
    ) -> Result<Script, SettingsError> {
        let n_clients = settings.context().n_clients;
        for (number, replies) in rounds.iter().enumerate() {
            for (at, reply) in replies.iter().enumerate() {
                let wrong =
                    |message: String| Err(settings.error(&format!("script[{number}][{at}]"), message));
                if reply.client as usize >= n_clients {
                    let last = n_clients.saturating_sub(1);
                    return wrong(format!("there is no client {}; they are 0 to {last}", reply.client));
                }
                if reply.late > MAX_STALENESS_ROUNDS {
                    return wrong(format!("an answer can be at most {MAX_STALENESS_ROUNDS} rounds late"));
                }
                if replies[..at].iter().any(|earlier| earlier.client == reply.client) {
                    return wrong(format!("client {} answers twice in round {number}", reply.client));
                }
            }
        }
        Ok(Script { rounds, after })
    }

    /// What a client answers in a round; `None`: nothing.
    pub(crate) fn reply(&self, number: RoundNo, client: ClientId) -> Option<Reply> {
        match self.round(number) {
            Some(replies) => replies.iter().find(|reply| reply.client == client.number()).cloned(),
            None => (self.after == After::Everyone).then(|| Reply::whole(client)),
        }
    }

    fn round(&self, number: RoundNo) -> Option<&[Reply]> {
        let number = number as usize;
        let number = match self.after {
            After::Repeat if !self.rounds.is_empty() => number % self.rounds.len(),
            _ => number,
        };
        self.rounds.get(number).map(Vec::as_slice)
    }
}

impl Availability for Script {
    fn write(&mut self, number: RoundNo, _enrolled: &Bits, up: &mut Bits) {
        match self.round(number) {
            None if self.after == After::Everyone => up.fill_words(|_| u64::MAX),
            None => up.clear(),
            Some(replies) => {
                up.clear();
                // A client that has not joined yet has no bit and is not up.
                let known = replies.iter().map(|reply| reply.client as usize).filter(|&idx| idx < up.len());
                known.collect::<Vec<_>>().into_iter().for_each(|idx| up.set(idx, true));
            }
        }
    }
}

stateless!(Script);
