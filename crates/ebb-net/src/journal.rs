//! What a fleet returned, in order. Given the journal, a run is determined to the bit.

use std::num::NonZeroU32;

use ebb_round::{ClientId, Cost, Loader, Parcel, ProbeResult, RoundNo, Saver, StateError, Update};

use crate::digest::Digest;

/// An event of the journal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
    /// The roll call of a round.
    RollCall(RollCall),
    /// The results of a probe.
    Probed { round: RoundNo, probes: Vec<(ClientId, ProbeResult)>, cost: Cost },
    /// The jobs of a round were handed out.
    Opened { round: RoundNo },
    /// The update of a client. Its vectors are stored next to the entry.
    Update(UpdateRecord),
    /// A round was closed with these updates, by their entries, in the order in which they are aggregated.
    Closed { round: RoundNo, update_entries: Vec<u64>, cost: Cost },
    /// Clients evaluated the model of a round.
    Evaluated { round: RoundNo, samples: f64, loss: f64, hits: Option<f64> },
    /// How much of the open round's time has passed.
    TimePassed { round: RoundNo, elapsed_s: f64 },
}

/// The state of the fleet at the beginning of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RollCall {
    pub(crate) round: RoundNo,
    /// Clients that joined, or that hold another number of samples now.
    pub(crate) joined: Vec<(ClientId, u32)>,
    pub(crate) left: Vec<ClientId>,
    pub(crate) up: Vec<ClientId>,
    pub(crate) busy: Vec<ClientId>,
}

/// An update without its vectors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UpdateRecord {
    pub(crate) client: ClientId,
    pub(crate) base: RoundNo,
    pub(crate) learning_rate: f32,
    pub(crate) steps: NonZeroU32,
    pub(crate) steps_asked: NonZeroU32,
    pub(crate) samples: u32,
    pub(crate) loss: f32,
    pub(crate) loss_fall: f32,
    pub(crate) accuracy: Option<f32>,
    /// Seconds since its round was opened. `None` if the round was closed by then.
    pub(crate) response_time_s: Option<f64>,
    /// The bytes of its vectors on the wire.
    pub(crate) payload: u64,
    /// The digest of its vectors as they were received. Entries of earlier versions have none.
    pub(crate) digest: Option<Digest>,
}

impl UpdateRecord {
    pub(crate) fn to_update(&self, delta: Parcel) -> Update {
        let &UpdateRecord {
            base, learning_rate, steps, steps_asked, samples, loss, loss_fall, accuracy, ..
        } = self;
        Update {
            delta,
            base_round: base,
            learning_rate,
            steps,
            steps_requested: steps_asked,
            samples,
            loss,
            loss_fall,
            accuracy,
        }
    }
}

impl Entry {
    /// The entry with a checksum before it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let body = self.body();
        let mut to = Saver::new();
        to.u64(CHECKSUM_LABEL, checksum(&body));
        [to.finish(), body].concat()
    }

    fn body(&self) -> Vec<u8> {
        let mut to = Saver::new();
        match self {
            Entry::RollCall(roll_call) => {
                to.bytes("kind", b"roll");
                to.u64("round", u64::from(roll_call.round));
                save_clients(&mut to, "came", roll_call.joined.iter().map(|(client, _)| client));
                to.u32s("samples", &roll_call.joined.iter().map(|(_, samples)| *samples).collect::<Vec<_>>());
                save_clients(&mut to, "left", &roll_call.left);
                save_clients(&mut to, "up", &roll_call.up);
                save_clients(&mut to, "busy", &roll_call.busy);
            }
            Entry::Probed { round, probes, cost } => {
                to.bytes("kind", b"probed");
                to.u64("round", u64::from(*round));
                save_clients(&mut to, "clients", probes.iter().map(|(client, _)| client));
                let of = |field: fn(&ProbeResult) -> f64| -> Vec<f64> {
                    probes.iter().map(|(_, probe_result)| field(probe_result)).collect()
                };
                to.f32s(
                    "loss",
                    &probes.iter().map(|(_, probe_result)| probe_result.loss).collect::<Vec<_>>(),
                );
                to.f64s("train_s", &of(|probe_result| probe_result.train_s));
                to.f64s("upload_s", &of(|probe_result| probe_result.upload_s));
                save_cost(&mut to, *cost);
            }
            Entry::Opened { round } => {
                to.bytes("kind", b"opened");
                to.u64("round", u64::from(*round));
            }
            Entry::Update(record) => {
                to.bytes("kind", b"answered");
                to.u64("client", u64::from(record.client.number()));
                to.u64("base", u64::from(record.base));
                to.u64("steps", u64::from(record.steps.get()));
                to.u64("steps_asked", u64::from(record.steps_asked.get()));
                to.u64("samples", u64::from(record.samples));
                let accuracy = record.accuracy.unwrap_or(0.0);
                to.f32s("figures", &[record.learning_rate, record.loss, record.loss_fall, accuracy]);
                to.u64("has_accuracy", u64::from(record.accuracy.is_some()));
                to.f64s("took_s", record.response_time_s.as_slice());
                to.u64("payload", record.payload);
                to.bytes("digest", record.digest.as_ref().map_or(&[][..], |digest| digest.bytes()));
            }
            Entry::Closed { round, update_entries: took, cost } => {
                to.bytes("kind", b"closed");
                to.u64("round", u64::from(*round));
                to.u64s("took", took);
                save_cost(&mut to, *cost);
            }
            Entry::Evaluated { round, samples, loss, hits } => {
                to.bytes("kind", b"judged");
                to.u64("round", u64::from(*round));
                to.f64s("sums", &[*samples, *loss]);
                to.f64s("hits", hits.as_slice());
            }
            Entry::TimePassed { round, elapsed_s } => {
                to.bytes("kind", b"passed");
                to.u64("round", u64::from(*round));
                to.f64("elapsed_s", *elapsed_s);
            }
        }
        to.finish()
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Entry, StateError> {
        let mut from = Loader::new(bytes);
        // Entries of earlier versions have no checksum.
        let has_checksum = match from.u64(CHECKSUM_LABEL) {
            Err(_) => {
                from = Loader::new(bytes);
                false
            }
            Ok(wanted) if bytes.get(CHECKSUM_BYTES..).is_some_and(|body| checksum(body) == wanted) => true,
            Ok(_) => return Err(from.error(CHECKSUM_LABEL, "does not match the entry")),
        };
        let from = &mut from;
        let entry = match from.bytes("kind")? {
            b"roll" => {
                let round = from.u32("round")?;
                let joined = load_clients(from, "came")?;
                let samples = from.u32s("samples")?;
                if joined.len() != samples.len() {
                    return Err(from.error("samples", "one number for each joined client expected"));
                }
                Entry::RollCall(RollCall {
                    round,
                    joined: joined.into_iter().zip(samples).collect(),
                    left: load_clients(from, "left")?,
                    up: load_clients(from, "up")?,
                    busy: load_clients(from, "busy")?,
                })
            }
            b"probed" => {
                let round = from.u32("round")?;
                let clients = load_clients(from, "clients")?;
                let loss = from.f32s("loss")?;
                let (train_s, upload_s) = (from.f64s("train_s")?, from.f64s("upload_s")?);
                if [loss.len(), train_s.len(), upload_s.len()] != [clients.len(); 3] {
                    return Err(from.error("loss", "one value for each client expected"));
                }
                let probe_result =
                    |at| ProbeResult { loss: loss[at], train_s: train_s[at], upload_s: upload_s[at] };
                let probes =
                    clients.into_iter().enumerate().map(|(at, client)| (client, probe_result(at))).collect();
                Entry::Probed { round, probes, cost: load_cost(from)? }
            }
            b"opened" => Entry::Opened { round: from.u32("round")? },
            b"answered" => {
                let client = ClientId::new(from.u32("client")? as usize);
                let base = from.u32("base")?;
                let mut steps = |field| {
                    let steps = from.u32(field)?;
                    NonZeroU32::new(steps).ok_or_else(|| from.error(field, "must not be 0"))
                };
                let (steps, steps_asked) = (steps("steps")?, steps("steps_asked")?);
                let samples = from.u32("samples")?;
                let values = from.f32s("figures")?;
                let &[learning_rate, loss, loss_fall, accuracy] = values.as_slice() else {
                    return Err(from.error("figures", "four values expected"));
                };
                let accuracy = (from.u64("has_accuracy")? == 1).then_some(accuracy);
                let took_s = from.f64s("took_s")?.first().copied();
                let payload = from.u64("payload")?;
                let digest = if has_checksum { Digest::from_slice(from.bytes("digest")?) } else { None };
                Entry::Update(UpdateRecord {
                    client,
                    base,
                    learning_rate,
                    steps,
                    steps_asked,
                    samples,
                    loss,
                    loss_fall,
                    accuracy,
                    response_time_s: took_s,
                    payload,
                    digest,
                })
            }
            b"closed" => Entry::Closed {
                round: from.u32("round")?,
                update_entries: from.u64s("took")?,
                cost: load_cost(from)?,
            },
            b"judged" => {
                let round = from.u32("round")?;
                let sums = from.f64s("sums")?;
                let &[samples, loss] = sums.as_slice() else {
                    return Err(from.error("sums", "two values expected"));
                };
                Entry::Evaluated { round, samples, loss, hits: from.f64s("hits")?.first().copied() }
            }
            b"passed" => Entry::TimePassed { round: from.u32("round")?, elapsed_s: from.f64("elapsed_s")? },
            _ => return Err(from.error("kind", "is not a known kind of entry")),
        };
        if from.at_end() { Ok(entry) } else { Err(from.error("kind", "the entry has bytes after its end")) }
    }
}

/// The field of the checksum.
const CHECKSUM_LABEL: &str = "sum";
const CHECKSUM_BYTES: usize = 1 + 1 + CHECKSUM_LABEL.len() + 8;

/// The checksum of an entry: the first bytes of its digest.
fn checksum(body: &[u8]) -> u64 {
    u64::from_le_bytes(Digest::of(body).bytes()[..8].try_into().expect("a digest has 32 bytes"))
}

fn save_clients<'c>(to: &mut Saver, name: &str, clients: impl IntoIterator<Item = &'c ClientId>) {
    to.u32s(name, &clients.into_iter().map(|client| client.number()).collect::<Vec<_>>());
}

fn load_clients(from: &mut Loader<'_>, name: &str) -> Result<Vec<ClientId>, StateError> {
    Ok(from.u32s(name)?.into_iter().map(|number| ClientId::new(number as usize)).collect())
}

fn save_cost(to: &mut Saver, cost: Cost) {
    to.f64("elapsed_s", cost.elapsed_s);
    to.u64("bytes_down", cost.bytes_down);
    to.u64("bytes_up", cost.bytes_up);
}

fn load_cost(from: &mut Loader<'_>) -> Result<Cost, StateError> {
    Ok(Cost {
        elapsed_s: from.f64("elapsed_s")?,
        bytes_down: from.u64("bytes_down")?,
        bytes_up: from.u64("bytes_up")?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An entry of every kind.
    pub(crate) fn all_kinds() -> Vec<Entry> {
        let client = ClientId::new;
        let cost = Cost { elapsed_s: 1.25, bytes_down: 7, bytes_up: 8 };
        let probe_result = ProbeResult { loss: 0.5, train_s: 2.0, upload_s: 0.25 };
        let steps = NonZeroU32::new(3).unwrap();
        let record = UpdateRecord {
            client: client(4),
            base: 9,
            learning_rate: 0.1,
            steps,
            steps_asked: steps,
            samples: 20,
            loss: f32::NAN,
            loss_fall: -1.0,
            accuracy: Some(0.5),
            response_time_s: Some(0.25),
            payload: 12,
            digest: Some(Digest::of(b"vectors")),
        };
        vec![
            Entry::RollCall(RollCall {
                round: 3,
                joined: vec![(client(1), 10), (client(5), 0)],
                left: vec![client(0)],
                up: vec![client(1)],
                busy: vec![],
            }),
            Entry::Probed { round: 3, probes: vec![(client(1), probe_result)], cost },
            Entry::Opened { round: 3 },
            Entry::Update(UpdateRecord { loss: 0.25, ..record.clone() }),
            Entry::Update(UpdateRecord {
                loss: 0.25,
                accuracy: None,
                response_time_s: None,
                digest: None,
                ..record
            }),
            Entry::Closed { round: 3, update_entries: vec![5, 2], cost },
            Entry::Evaluated { round: 3, samples: 100.0, loss: 2.5, hits: Some(40.0) },
            Entry::Evaluated { round: 3, samples: 100.0, loss: 2.5, hits: None },
            Entry::TimePassed { round: 3, elapsed_s: 0.5 },
        ]
    }

    /// The same as earlier versions wrote them: without checksums, and updates without digests.
    pub(crate) fn all_without_checksums() -> Vec<Vec<u8>> {
        let digest = {
            let mut to = Saver::new();
            to.bytes("digest", &[]);
            to.finish()
        };
        let without_checksum = |entry: &Entry| {
            let Entry::Update(record) = entry else { return entry.body() };
            let mut bytes = Entry::Update(UpdateRecord { digest: None, ..record.clone() }).body();
            bytes.truncate(bytes.len() - digest.len());
            bytes
        };
        all_kinds().iter().map(without_checksum).collect()
    }

    #[test]
    fn entries_of_earlier_versions_are_read() {
        for (entry, bytes) in all_kinds().into_iter().zip(all_without_checksums()) {
            let wanted = match entry {
                Entry::Update(record) => Entry::Update(UpdateRecord { digest: None, ..record }),
                other => other,
            };
            assert_eq!(Entry::read(&bytes), Ok(wanted));
        }
    }

    #[test]
    fn every_flipped_bit_is_an_error() {
        for entry in all_kinds() {
            let whole = entry.bytes();
            for at in 0..whole.len() {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << (at % 8);
                assert!(Entry::read(&bytes).is_err(), "{entry:?}, byte {at}");
            }
        }
    }

    #[test]
    fn entries_round_trip() {
        for entry in all_kinds() {
            assert_eq!(Entry::read(&entry.bytes()), Ok(entry));
        }
    }

    #[test]
    fn every_cut_is_an_error_and_not_a_panic() {
        for entry in all_kinds() {
            let bytes = entry.bytes();
            for cut in 0..bytes.len() {
                assert!(Entry::read(&bytes[..cut]).is_err(), "{entry:?} cut at {cut}");
            }
            assert!(Entry::read(&[bytes.as_slice(), &[0]].concat()).is_err());
        }
    }
}
