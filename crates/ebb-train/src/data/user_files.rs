//! Helpers for the user's own samples: holding out a share where there is no test file, and regression
//! targets.

use ebb_round::Stream;
use ebb_settings::{Settings, SettingsError, Share};

use crate::net::{self, Input};
use crate::split::share_of;

/// The model if there is no `[model]` table.
pub(super) const DEFAULT_MODEL: &str = "logistic";

/// More classes than this are a mistake: such labels are probably not classes.
pub(super) const MAX_CLASSES: usize = 1 << 16;

/// The training and held-out indices, neither of them empty; the share is a fifth by default.
pub(super) fn hold_out(
    settings: &Settings<'_>,
    n_samples: usize,
    share: Option<Share>,
    seed: u64,
) -> Result<(Vec<u32>, Vec<u32>), SettingsError> {
    let fifth = Share::new(0.2).expect("a fifth leaves a rest");
    let (train, test) = draw_hold_out(n_samples, share.unwrap_or(fifth), seed);
    if train.is_empty() || test.is_empty() {
        let message = format!("leaves {} samples to train on and {} to evaluate on", train.len(), test.len());
        return Err(settings.error("test_share", message + "; give another share, or more samples"));
    }
    Ok((train, test))
}

/// Checks that a test file and a held-out share are not both given.
pub(super) fn check_test_source(
    settings: &Settings<'_>,
    file: Option<&String>,
    share: Option<Share>,
) -> Result<(), SettingsError> {
    match (file, share) {
        (Some(_), Some(_)) => {
            Err(settings.error("test_share", "test_file is given too; leave out one of them"))
        }
        _ => Ok(()),
    }
}

/// Checks that the network of `[model]` fits this number of regression targets.
pub(super) fn check_regression_model(
    settings: &Settings<'_>,
    input: Input,
    n_targets: usize,
) -> Result<(), SettingsError> {
    let model = settings.at_path("model");
    let net = net::build(&model, input, n_targets, DEFAULT_MODEL)?;
    if !net.is_regression() {
        let message = "regression targets need squared error; write loss = \"squared-error\"";
        return Err(model.error("loss", message));
    }
    if net.n_classes() != n_targets {
        return Err(model.error("outputs", format!("expected one for each of the {n_targets} targets")));
    }
    Ok(())
}

/// Draws a share of all at random. Both parts keep their order.
fn draw_hold_out(n_samples: usize, share: Share, seed: u64) -> (Vec<u32>, Vec<u32>) {
    let n_test = share_of(share, n_samples);
    let mut drawn = Stream::of_run(seed, "hold out").distinct(n_samples, n_test).into_iter().peekable();
    (0..n_samples as u32).partition(|&idx| drawn.next_if_eq(&(idx as usize)).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_held_out_and_nothing_is_lost() {
        let drawn = |n_samples, share, seed| draw_hold_out(n_samples, Share::new(share).unwrap(), seed);
        let (train, test) = drawn(103, 0.2, 1);
        assert_eq!((train.len(), test.len()), (82, 21));
        let mut all = [train.as_slice(), &test].concat();
        assert!(train.is_sorted() && test.is_sorted() && test != (82..103).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..103).collect::<Vec<_>>());
        assert_eq!(drawn(103, 0.2, 1), (train, test));
        assert_eq!(drawn(3, 0.0, 1), (vec![0, 1, 2], vec![]));
        // As the share is written, though 100 x 0.29 is less than 29 in binary.
        assert_eq!(drawn(100, 0.29, 1).1.len(), 29);
    }
}
