//! The metrics of a run as an event file of TensorBoard.

mod wire;

use std::path::Path;

use crate::error::{IoContext, RecordError};
use crate::metrics::METRICS;
use crate::{Row, RunFolder, disk};
use wire::Message;

/// The name of the event file. It is constant, so that equal runs write equal folders. TensorBoard only needs
/// `tfevents` in it.
pub const EVENTS: &str = "events.out.tfevents.0.ebbflow";

/// Writes an event file into a folder: the settings as a text, then the metrics of every round.
///
/// The step is the round. The time is the virtual time at its end, so that the relative axis of TensorBoard
/// shows virtual time. Numbers are rounded to single precision, also if they are not finite.
pub fn write_tensorboard(run: &RunFolder, folder: &Path) -> Result<(), RecordError> {
    write(run.settings(), run.iter_rows()?, &folder.join(EVENTS))
}

fn write(
    settings: &str,
    rows: impl IntoIterator<Item = Result<Row, RecordError>>,
    to: &Path,
) -> Result<(), RecordError> {
    disk::replace(to, |file| {
        let mut put = |event: Message| event.write(file).doing("writing", to);
        put(event_at(0.0, 0).text(event::FILE_VERSION, "brain.Event:2"))?;
        put(event_at(0.0, 0).message(event::SUMMARY, &text("settings", &markdown_code(settings))))?;
        let mut now_s = 0.0;
        for row in rows {
            let row = row?;
            // With a time that is not finite, TensorBoard would have no axis.
            now_s = if row.virtual_s.is_finite() { row.virtual_s } else { now_s };
            put(event_at(now_s, row.round).message(event::SUMMARY, &scalars(&row)))?;
        }
        Ok(())
    })
}

/// The field numbers of an event.
mod event {
    pub(super) const WALL_TIME: u8 = 1;
    pub(super) const STEP: u8 = 2;
    pub(super) const FILE_VERSION: u8 = 3;
    pub(super) const SUMMARY: u8 = 5;
}

/// The field numbers of a summary and of its parts.
mod summary {
    pub(super) const VALUE: u8 = 1;
    pub(super) const TAG: u8 = 1;
    pub(super) const SIMPLE_VALUE: u8 = 2;
    pub(super) const TENSOR: u8 = 8;
    pub(super) const METADATA: u8 = 9;
    pub(super) const PLUGIN: u8 = 1;
    pub(super) const PLUGIN_NAME: u8 = 1;
}

/// The field numbers of a tensor, and the type of one that holds texts.
mod tensor {
    pub(super) const TYPE: u8 = 1;
    pub(super) const TEXT: u8 = 8;
    pub(super) const OF_TEXTS: u64 = 7;
}

/// An event with this time and round.
fn event_at(now_s: f64, round: u32) -> Message {
    Message::default().double(event::WALL_TIME, now_s).whole(event::STEP, u64::from(round))
}

/// The values of a round under their tags.
fn scalars(row: &Row) -> Message {
    let metrics = METRICS.iter().filter(|metric| !metric.tag.is_empty());
    let metrics = metrics.filter_map(|metric| Some((metric.tag.to_owned(), metric.value.to_f32(row)?)));
    let role_metrics = row.notes.iter().map(|(name, &number)| (format!("notes/{name}"), number as f32));
    metrics.chain(role_metrics).fold(Message::default(), |all, (tag, number)| {
        let value = Message::default().text(summary::TAG, &tag).single(summary::SIMPLE_VALUE, number);
        all.message(summary::VALUE, &value)
    })
}

/// A text under a tag.
fn text(tag: &str, text: &str) -> Message {
    let plugin = Message::default().text(summary::PLUGIN_NAME, "text");
    let metadata = Message::default().message(summary::PLUGIN, &plugin);
    let tensor = Message::default().whole(tensor::TYPE, tensor::OF_TEXTS).text(tensor::TEXT, text);
    let value = Message::default()
        .text(summary::TAG, tag)
        .message(summary::TENSOR, &tensor)
        .message(summary::METADATA, &metadata);
    Message::default().message(summary::VALUE, &value)
}

/// The text as a code block, which Markdown shows unchanged.
fn markdown_code(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::wire::masked_crc;
    use super::*;
    use crate::row::tests::{row, row_with_friends};

    /// A field of a message: its number, and its bytes. Integers are extended to eight bytes.
    type Field = (u64, Vec<u8>);

    /// A time, a step, and tags with values.
    type Event = (f64, u64, Vec<(String, f32)>);

    /// The messages of a file. Their frames must be valid to the last byte.
    fn messages(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(8);
            let length = u64::from_le_bytes(head.try_into().unwrap()) as usize;
            assert_eq!(rest[..4], masked_crc(head).to_le_bytes());
            let (data, rest) = rest[4..].split_at(length);
            assert_eq!(rest[..4], masked_crc(data).to_le_bytes());
            found.push(data);
            bytes = &rest[4..];
        }
        found
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let end = bytes.iter().position(|byte| byte < &0x80).unwrap();
        let (own, rest) = bytes.split_at(end + 1);
        *bytes = rest;
        own.iter().rev().fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7f))
    }

    fn fields(mut bytes: &[u8]) -> Vec<Field> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let length = match key & 7 {
                0 => {
                    found.push((key >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                2 => varint(&mut bytes) as usize,
                5 => 4,
                other => panic!("kind {other}"),
            };
            let (own, rest) = bytes.split_at(length);
            found.push((key >> 3, own.to_vec()));
            bytes = rest;
        }
        found
    }

    /// The only field of this number.
    fn only(bytes: &[u8], number: u64) -> Vec<u8> {
        let all: Vec<_> = fields(bytes).into_iter().filter(|(own, _)| *own == number).collect();
        assert_eq!(all.len(), 1, "field {number}");
        all.into_iter().next().unwrap().1
    }

    fn double(bytes: Vec<u8>) -> f64 {
        f64::from_le_bytes(bytes.try_into().unwrap())
    }

    fn whole(bytes: Vec<u8>) -> u64 {
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    fn words(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    /// The events of these rows, after those of the version and the settings.
    fn written(rows: &[Row]) -> Vec<Event> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVENTS);
        write("a = 1\n\n[b]\n", rows.iter().cloned().map(Ok), &path).unwrap();
        let bytes = fs::read(&path).unwrap();
        let all = messages(&bytes);
        assert_eq!((words(only(all[0], 3)), double(only(all[0], 1))), ("brain.Event:2".to_owned(), 0.0));

        let settings = only(&only(all[1], 5), 1);
        assert_eq!(words(only(&settings, 1)), "settings");
        assert_eq!(words(only(&only(&only(&settings, 9), 1), 1)), "text");
        let tensor = only(&settings, 8);
        assert_eq!(
            (whole(only(&tensor, 1)), words(only(&tensor, 8))),
            (7, "    a = 1\n    \n    [b]\n".into())
        );

        let value = |(_, value): Field| {
            let number = f32::from_le_bytes(only(&value, 2).try_into().unwrap());
            (words(only(&value, 1)), number)
        };
        let event = |event: &&[u8]| {
            let values = fields(&only(event, 5)).into_iter().map(value).collect();
            (double(only(event, 1)), whole(only(event, 2)), values)
        };
        all[2..].iter().map(event).collect()
    }

    #[test]
    fn a_round_by_hand() {
        let found = written(&[row(300, 2.0, Some(0.25))]);
        let expected = [
            ("clients/enrolled", 4.0),
            ("clients/up", 2.0),
            ("clients/asked", 3.0),
            ("clients/whole", 1.0),
            ("clients/partial", 1.0),
            ("clients/late", 0.0),
            ("clients/absent", 1.0),
            ("clients/refused", 0.0),
            ("clients/stand_ins", 0.0),
            ("clients/inclusion_probability", 0.75),
            ("train/learning_rate", 0.1),
            ("train/loss", 0.375),
            ("train/accuracy", 0.1875),
            ("train/step_norm", 2.5),
            ("test/loss", 2.0),
            ("test/accuracy", 0.25),
            ("spent/elapsed_s", 1.5),
            ("spent/virtual_s", 451.5),
            ("spent/bytes_down", 30.0),
            ("spent/bytes_up", 20.0),
            ("spent/bytes_total", 15050.0),
        ];
        let expected = expected.map(|(tag, number)| (tag.to_owned(), number)).to_vec();
        assert_eq!(found, [(451.5, 300, expected)]);
    }

    #[test]
    fn role_metrics_and_oracles_have_groups_of_their_own() {
        let found = written(&[row_with_friends(0)]);
        let of = |group: &str| -> Vec<_> {
            let in_group = found[0].2.iter().filter(|(tag, _)| tag.starts_with(group));
            in_group.map(|(tag, number)| (tag[group.len()..].to_owned(), *number)).collect()
        };
        let pairs = |all: &[(&str, f32)]| -> Vec<_> {
            all.iter().map(|(tag, number)| ((*tag).to_owned(), *number)).collect()
        };
        assert_eq!(of("notes/"), pairs(&[("by_friend", 2.0), ("theta", f32::INFINITY)]));
        let oracle = [
            ("hits", 2.0),
            ("hits_of", 3.0),
            ("error2", 0.75),
            ("sigma_p2", 8.0),
            ("sigma_f2", 4.0),
            ("bound_p2", 2.0),
            ("bound_f2", 1.0),
            ("psi", 0.625),
        ];
        assert_eq!(of("oracle/"), pairs(&oracle));
    }

    #[test]
    fn numbers_that_are_not_finite_stand_and_times_do_not() {
        let mut rows = [row(0, f64::NAN, None), row(1, 1e300, None), row(2, 1.0, None)];
        rows[1].virtual_s = f64::NAN;
        let found = written(&rows);
        let loss = |at: usize| found[at].2.iter().find(|(tag, _)| tag == "test/loss").unwrap().1;
        assert!(loss(0).is_nan());
        assert_eq!((loss(1), loss(2)), (f32::INFINITY, 1.0));
        let times: Vec<_> = found.iter().map(|(now_s, step, _)| (*now_s, *step)).collect();
        assert_eq!(times, [(1.5, 0), (1.5, 1), (4.5, 2)]);
    }

    #[test]
    fn every_metric_has_a_tag_of_its_own_but_the_round() {
        let tags: std::collections::BTreeSet<_> = METRICS.iter().map(|metric| metric.tag).collect();
        assert_eq!(tags.len(), METRICS.len());
        let without: Vec<_> = METRICS.iter().filter(|metric| !metric.tag.contains('/')).collect();
        assert_eq!((without.len(), without[0].name), (1, "round"));
    }
}
