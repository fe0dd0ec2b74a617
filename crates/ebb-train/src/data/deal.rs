//! Samples of the user's own, from files: dealt out evenly at random, some held out where there is no file to judge
//! on, with labels or with values to be met.

use std::num::NonZeroU32;

use ebb_round::Stream;
use ebb_settings::{Chance, Settings, SettingsError};

use crate::net::{self, Input, Net};

/// The list of each client: `samples`, or as many as there are for all.
pub(super) fn evenly(
    settings: &Settings<'_>,
    n_samples: usize,
    clients: NonZeroU32,
    samples: Option<NonZeroU32>,
    seed: u64,
) -> Result<Vec<Vec<u32>>, SettingsError> {
    let n_clients = clients.get() as usize;
    let per_client = samples.map_or(n_samples / n_clients, |samples| samples.get() as usize);
    if per_client == 0 || per_client * n_clients > n_samples {
        let message = format!("{n_clients} x {per_client} samples, but there are {n_samples}");
        return Err(settings.error(if samples.is_some() { "samples" } else { "clients" }, message));
    }
    let mut order: Vec<u32> = (0..n_samples as u32).collect();
    Stream::of_run(seed, "deal").shuffle(&mut order);
    Ok(order.chunks_exact(per_client).take(n_clients).map(<[u32]>::to_vec).collect())
}

/// What is trained on and what is held out, neither of them nothing: this share of all, a fifth without one.
pub(super) fn hold_out(
    settings: &Settings<'_>,
    n_samples: usize,
    share: Option<Chance>,
    seed: u64,
) -> Result<(Vec<u32>, Vec<u32>), SettingsError> {
    let (train, test) = drawn(n_samples, share.map_or(0.2, Chance::get), seed);
    if train.is_empty() || test.is_empty() {
        let message = format!("leaves {} samples to train on and {} to judge on", train.len(), test.len());
        return Err(settings.error("test_share", message + "; give another share, or more samples"));
    }
    Ok((train, test))
}

/// A file to judge on and a share to hold out exclude each other.
pub(super) fn one_test(
    settings: &Settings<'_>,
    file: Option<&String>,
    share: Option<Chance>,
) -> Result<(), SettingsError> {
    match (file, share) {
        (Some(_), Some(_)) => Err(settings.error("test_share", "test_file is given; leave out one of them")),
        _ => Ok(()),
    }
}

/// The network that `[model]` describes, for samples with so many values to be met.
pub(super) fn meeting(settings: &Settings<'_>, input: Input, n_values: usize) -> Result<Net, SettingsError> {
    let model = settings.elsewhere("model");
    let net = net::build(&model, input, n_values, "logistic")?;
    if !net.meets_values() {
        let message = "values are met by squared error; write loss = \"squared-error\"";
        return Err(model.error("loss", message));
    }
    if net.n_classes() != n_values {
        return Err(model.error("outputs", format!("expected one for each of the {n_values} values")));
    }
    Ok(net)
}

/// Draws a share of all at random. Both parts keep their order.
fn drawn(n_samples: usize, share: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    let n_test = (n_samples as f64 * share) as usize;
    let mut drawn = Stream::of_run(seed, "hold out").distinct(n_samples, n_test).into_iter().peekable();
    (0..n_samples as u32).partition(|&idx| drawn.next_if_eq(&(idx as usize)).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_held_out_and_nothing_is_lost() {
        let (train, test) = drawn(103, 0.2, 1);
        assert_eq!((train.len(), test.len()), (83, 20));
        let mut all = [train.as_slice(), &test].concat();
        assert!(train.is_sorted() && test.is_sorted() && test != (83..103).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..103).collect::<Vec<_>>());
        assert_eq!(drawn(103, 0.2, 1), (train, test));
        assert_eq!(drawn(3, 0.0, 1), (vec![0, 1, 2], vec![]));
    }
}
