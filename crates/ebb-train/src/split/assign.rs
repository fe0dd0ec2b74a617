//! Helpers of several splits: samples by class, proportional cuts, held-out samples, topping up small
//! clients.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ebb_round::Stream;
use ebb_settings::Share;

use super::{Sizes, SplitError, SplitInput};

/// The samples of every class, in order.
pub(super) fn by_class(input: &SplitInput<'_>) -> Vec<Vec<u32>> {
    let mut classes = vec![Vec::new(); input.n_classes];
    for (sample, &class) in input.labels.iter().enumerate() {
        classes[class as usize].push(sample as u32);
    }
    classes
}

/// The classes that have samples.
pub(super) fn present_classes(classes: &[Vec<u32>]) -> Vec<usize> {
    (0..classes.len()).filter(|&class| !classes[class].is_empty()).collect()
}

/// Scales numbers down in proportion until they fit into what is available; each stays at least 1. `None` if
/// there is not even 1 for each.
pub(super) fn scale_down(requested: &[usize], n_available: usize) -> Option<Vec<usize>> {
    let sum: usize = requested.iter().sum();
    if sum <= n_available {
        return Some(requested.to_vec());
    }
    let rest = n_available.checked_sub(requested.len())?;
    let beyond_one = (sum - requested.len()) as u128;
    let less = |&size: &usize| 1 + ((size - 1) as u128 * rest as u128 / beyond_one) as usize;
    Some(requested.iter().map(less).collect())
}

/// What happens when the clients of a class request more samples than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShortagePolicy {
    /// The split is refused, unless the numbers were drawn from a distribution.
    Refuse,
    /// Each client gets fewer.
    Share,
}

/// Gives every client equal numbers from each of its classes, no sample twice, and reports shortages.
pub(super) fn from_classes(
    input: &SplitInput<'_>,
    classes_of: &[Vec<usize>],
    shortage: ShortagePolicy,
    stream: &mut Stream,
) -> Result<(Vec<Vec<u32>>, Vec<String>), SplitError> {
    let mut decks = by_class(input);
    decks.iter_mut().for_each(|deck| stream.shuffle(deck));
    let mut n_users = vec![0; input.n_classes];
    classes_of.iter().flatten().for_each(|&class| n_users[class] += 1);
    let sizes = match input.sizes.list(input.n_clients) {
        Some(sizes) => sizes,
        None if shortage == ShortagePolicy::Share => {
            vec![input.labels.len() / input.n_clients; input.n_clients]
        }
        None => {
            let used = (0..input.n_classes).filter(|&class| n_users[class] > 0);
            let each = used.map(|class| decks[class].len() / n_users[class]).min().unwrap_or(0);
            classes_of.iter().map(|classes| each * classes.len()).collect()
        }
    };
    let mut requests: Vec<Vec<(usize, usize)>> = vec![Vec::new(); input.n_classes];
    for (client, (classes, size)) in classes_of.iter().zip(&sizes).enumerate() {
        for (at, &class) in classes.iter().enumerate() {
            requests[class].push((client, size / classes.len() + usize::from(at < size % classes.len())));
        }
    }
    let refuse = shortage == ShortagePolicy::Refuse && !matches!(input.sizes, Sizes::Drawn(_));
    let (mut lists, mut remarks) = (vec![Vec::new(); input.n_clients], Vec::new());
    for (class, (deck, class_requests)) in decks.iter().zip(&requests).enumerate() {
        // A client with fewer samples than classes goes without some of them.
        let class_requests: Vec<_> = class_requests.iter().filter(|(_, size)| *size > 0).collect();
        let n_requested: usize = class_requests.iter().map(|(_, size)| size).sum();
        let n_available = deck.len();
        if n_requested > n_available && refuse {
            return Err(SplitError::Sizes(format!(
                "class {class} has {n_available} samples, but {} clients ask for {n_requested} of them; give fewer",
                class_requests.len()
            )));
        }
        let counts: Vec<_> = class_requests.iter().map(|(_, size)| *size).collect();
        let Some(counts) = scale_down(&counts, n_available) else {
            return Err(SplitError::Clients(format!(
                "class {class} has {n_available} samples for {} clients; give fewer clients",
                class_requests.len()
            )));
        };
        if n_requested > n_available {
            let n_clients = class_requests.len();
            remarks.push(format!(
                "class {class} has {n_available} of the {n_requested} samples that {n_clients} clients ask for: each gets less"
            ));
        }
        let mut rest = deck.as_slice();
        for ((client, _), count) in class_requests.into_iter().zip(counts) {
            let (own, others) = rest.split_at(count);
            lists[*client].extend_from_slice(own);
            rest = others;
        }
    }
    if lists.iter().any(Vec::is_empty) {
        let message = "the classes have too few samples for their clients; give fewer clients";
        return Err(SplitError::Clients(message.to_owned()));
    }
    Ok((lists, remarks))
}

/// The number of samples in a share of `size`; at least one sample is left.
pub(crate) fn share_of(share: Share, size: usize) -> usize {
    ((share.get() * size as f64).round() as usize).min(size.saturating_sub(1))
}

/// Holds out a random share of every client's samples; returns what is left and what was held out.
pub(super) fn hold_out(
    mut lists: Vec<Vec<u32>>,
    share: Share,
    stream: &mut Stream,
) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let taken = lists.iter_mut().map(|list| {
        if share.get() > 0.0 {
            stream.shuffle(list);
        }
        list.split_off(list.len() - share_of(share, list.len()))
    });
    let taken = taken.collect();
    (lists, taken)
}

/// Cuts a list in proportion to `shares`, one part after another. Where all shares are zero, nobody gets
/// anything.
pub(super) fn cut_by_shares(list: &[u32], shares: &[f64], mut give: impl FnMut(usize, &[u32])) {
    let total: f64 = shares.iter().sum();
    if total <= 0.0 {
        return;
    }
    let (mut begun, mut so_far) = (0, 0.0);
    for (client, share) in shares.iter().enumerate() {
        so_far += share;
        let end = (list.len() as f64 * (so_far / total)).round() as usize;
        give(client, &list[begun..end]);
        begun = end;
    }
}

/// How many samples the clients with fewer than `least` lack in total.
pub(super) fn n_lacking(lists: &[Vec<u32>], least: usize) -> usize {
    lists.iter().map(|list| least.saturating_sub(list.len())).sum()
}

/// Moves samples from the largest clients to those with fewer than `least`, and reports how many.
///
/// # Panics
///
/// When there are fewer than `least` for each client.
pub(super) fn top_up(lists: &mut [Vec<u32>], least: usize, stream: &mut Stream) -> Option<String> {
    let n_lacked = n_lacking(lists, least);
    let small: Vec<_> = (0..lists.len()).filter(|&client| lists[client].len() < least).collect();
    // Of equally large clients the first gives.
    let mut givers: BinaryHeap<_> = (0..lists.len())
        .filter(|&client| lists[client].len() > least)
        .map(|client| (lists[client].len(), Reverse(client)))
        .collect();
    for &client in &small {
        while lists[client].len() < least {
            let (size, Reverse(largest)) = givers.pop().expect("there is enough for each");
            let sample = lists[largest].swap_remove(stream.below(size));
            lists[client].push(sample);
            if size - 1 > least {
                givers.push((size - 1, Reverse(largest)));
            }
        }
    }
    (n_lacked > 0).then(|| {
        let (n_small, s) = (small.len(), if small.len() == 1 { "" } else { "s" });
        let moved = if n_lacked == 1 { "1 sample".to_owned() } else { format!("{n_lacked} samples") };
        format!("{n_small} client{s} with fewer than {least} samples got {moved} of the largest clients")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(value: f64) -> Share {
        Share::new(value).unwrap()
    }

    #[test]
    fn what_does_not_fit_is_cut_in_proportion() {
        assert_eq!(scale_down(&[3, 4], 7), Some(vec![3, 4]));
        assert_eq!(scale_down(&[100, 300], 200), Some(vec![50, 149]));
        // Every client keeps at least one sample.
        assert_eq!(scale_down(&[1000, 1, 1], 5), Some(vec![3, 1, 1]));
        assert_eq!(scale_down(&[1, 2, 1], 3), Some(vec![1, 1, 1]));
        assert_eq!(scale_down(&[2, 2], 1), None);
    }

    #[test]
    fn cuts_are_in_proportion_and_leave_nothing() {
        let list: Vec<u32> = (0..10).collect();
        let mut sizes = [0; 4];
        cut_by_shares(&list, &[0.3, 0.0, 0.6, 0.6], |client, part| sizes[client] = part.len());
        assert_eq!(sizes, [2, 0, 4, 4]);
        cut_by_shares(&list, &[0.0, 0.0], |_, _| panic!("nobody has a share"));
    }

    #[test]
    fn hold_outs_leave_at_least_one() {
        assert_eq!([500, 200, 1000, 1, 0].map(|size| share_of(share(0.1), size)), [50, 20, 100, 0, 0]);
        assert_eq!(share_of(share(0.99), 3), 2);
        let lists = vec![(0..10).collect(), vec![10]];
        let (train, held) = hold_out(lists.clone(), share(0.0), &mut Stream::of_run(1, "t"));
        assert_eq!((train, held), (lists.clone(), vec![vec![], vec![]]));
        let (train, held) = hold_out(lists, share(0.3), &mut Stream::of_run(1, "t"));
        assert_eq!((train[0].len(), held[0].len(), train[1].len(), held[1].len()), (7, 3, 1, 0));
        let mut all = [&train[0][..], &held[0]].concat();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn small_clients_are_topped_up_with_a_remark() {
        let mut lists = vec![vec![], (0..9).collect(), vec![9, 10, 11, 12], vec![13]];
        let remark = top_up(&mut lists, 2, &mut Stream::of_run(1, "t"));
        assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [2, 6, 4, 2]);
        assert_eq!(
            remark.as_deref(),
            Some("2 clients with fewer than 2 samples got 3 samples of the largest clients")
        );
        assert_eq!(top_up(&mut lists, 2, &mut Stream::of_run(1, "t")), None);
    }
}
