//! The probabilities of E3CS computed directly, by sorting all clients in every round: the reference for the
//! tree.

/// The inclusion probabilities of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// By client.
    pub probabilities: Vec<f64>,
    /// Clients whose probability would exceed 1 and is capped at it, ascending.
    pub overflow: Vec<usize>,
}

/// Probabilities that sum to `count`, each from `quota` to 1: the rest above the quota is divided by weight,
/// given as logarithms.
///
/// # Panics
///
/// If there are fewer than `count` clients, or `quota` is more than `count` over their number.
pub fn allocate(count: usize, quota: f64, logs: &[f64]) -> Allocation {
    let n_clients = logs.len();
    assert!(count <= n_clients, "{count} of {n_clients} clients");
    let left = count as f64 - n_clients as f64 * quota;
    assert!(left > -1e-9, "a quota of {quota} for {n_clients} clients is more than {count}");
    if left <= 1e-12 * count as f64 {
        return Allocation { probabilities: vec![quota; n_clients], overflow: Vec::new() };
    }
    if count == n_clients {
        return Allocation { probabilities: vec![1.0; n_clients], overflow: (0..n_clients).collect() };
    }
    let mut order: Vec<usize> = (0..n_clients).collect();
    order.sort_by(|&one, &two| logs[two].total_cmp(&logs[one]).then(one.cmp(&two)));
    // For each client the weights of those that are not heavier, over its own.
    let mut sums = vec![1.0; n_clients];
    for at in (1..n_clients).rev() {
        sums[at - 1] += sums[at] * libm::exp(logs[order[at]] - logs[order[at - 1]]);
    }
    // With this number of the heaviest capped, the rest divides what they leave.
    for n_cut in 0..n_clients {
        let rest = &order[n_cut..];
        let (reference, sum) = (logs[rest[0]], sums[n_cut]);
        let shared = left - n_cut as f64 * (1.0 - quota);
        // The heaviest of the rest has weight 1.
        if quota + shared / sum <= 1.0 {
            let mut probabilities = vec![1.0; n_clients];
            for &idx in rest {
                probabilities[idx] = quota + shared.max(0.0) * libm::exp(logs[idx] - reference) / sum;
            }
            let mut overflow = order[..n_cut].to_vec();
            overflow.sort_unstable();
            return Allocation { probabilities, overflow };
        }
    }
    unreachable!("a single remaining client always gets the rest")
}
