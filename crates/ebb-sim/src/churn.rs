//! Random arrivals and departures: a Poisson number of arrivals per round, and geometric lifetimes.

use ebb_round::{Bits, Census, ClientId, RoundNo, Stream};
use ebb_settings::{NonNegative, Positive, Probability, Settings, SettingsError};
use ebb_train::Task;
use serde::{Deserialize, Serialize};

/// Arrivals and departures that depend only on the seed, the round and who is enrolled.
#[derive(Clone, Debug)]
pub(crate) struct Churn {
    seed: u64,
    table: Table,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// The share of the clients that is enrolled from the start, those with the lowest ids.
    #[serde(default = "half")]
    from_start: Probability,
    /// The mean number of arrivals per round.
    arrivals: NonNegative,
    /// The mean number of rounds that a client stays enrolled. Without it, clients stay for good.
    lifetime: Option<Positive>,
}

fn half() -> Probability {
    Probability::new(0.5).expect("a half is a probability")
}

/// The largest mean for which the number of arrivals is drawn exactly.
const MAX_ARRIVALS: f64 = 1e6;

impl Churn {
    /// Reads the table, if it is given.
    pub(crate) fn build(settings: &Settings<'_>) -> Result<Option<Churn>, SettingsError> {
        if !settings.is_written() {
            return Ok(None);
        }
        let table: Table = settings.parse()?;
        if table.lifetime.is_some_and(|lifetime| lifetime.get() < 1.0) {
            return Err(settings.error("lifetime", "it is shorter than a round; give at least 1"));
        }
        if table.arrivals.get() > MAX_ARRIVALS {
            return Err(settings.error("arrivals", format!("it is too large; give at most {MAX_ARRIVALS}")));
        }
        Ok(Some(Churn { seed: settings.context().seed, table }))
    }

    /// Whether a client is enrolled from the start.
    fn is_in_at_start(&self, client: ClientId, n_clients: usize) -> bool {
        (client.idx() as f64) < (self.table.from_start.get() * n_clients as f64).round()
    }

    /// Applies departures, then arrivals, so that no client leaves in the round in which it arrived.
    pub(crate) fn apply(&self, number: RoundNo, task: &dyn Task, census: &mut Census) {
        if number == 0 {
            let all = (0..task.n_clients()).map(ClientId::new);
            for client in all.filter(|client| self.is_in_at_start(*client, task.n_clients())) {
                census.enrol(client, task.samples(client), 0);
            }
            return;
        }
        if let Some(lifetime) = self.table.lifetime {
            let mut stream = Stream::of_round(self.seed, "departures", number);
            let leaving = bernoulli_idxs(census.n_enrolled(), 1.0 / lifetime.get(), &mut stream);
            for idx in census.enrolled().at_ranks(&leaving) {
                census.leave(ClientId::new(idx), number);
            }
        }
        let mut stream = Stream::of_round(self.seed, "arrivals", number);
        let n_newcomers = poisson(self.table.arrivals.get(), &mut stream);
        let mut out = Bits::new(task.n_clients());
        let enrolled = census.enrolled();
        (0..task.n_clients()).for_each(|idx| out.set(idx, !(idx < enrolled.len() && enrolled.get(idx))));
        for client in Census::draw(&out, n_newcomers.min(out.count()), &mut stream) {
            census.enrol(client, task.samples(client), number);
        }
    }
}

/// Selects each number below `count` with this probability, ascending, by drawing the gaps between them.
fn bernoulli_idxs(count: usize, probability: f64, stream: &mut Stream) -> Vec<usize> {
    if probability >= 1.0 {
        return (0..count).collect();
    }
    let per_gap = libm::log1p(-probability);
    let (mut chosen, mut at) = (Vec::new(), 0.0);
    loop {
        at += (libm::log(1.0 - stream.uniform()) / per_gap).floor();
        if at >= count as f64 {
            return chosen;
        }
        chosen.push(at as usize);
        at += 1.0;
    }
}

/// Draws a Poisson number by the times between events.
fn poisson(mean: f64, stream: &mut Stream) -> usize {
    let (mut count, mut time) = (0, 0.0);
    loop {
        time -= libm::log(1.0 - stream.uniform());
        if time > mean {
            return count;
        }
        count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_numbers_have_equal_mean_and_variance() {
        let mut stream = Stream::of_run(1, "t");
        for mean in [0.3, 4.0, 60.0] {
            let counts: Vec<f64> = (0..20_000).map(|_| poisson(mean, &mut stream) as f64).collect();
            let average = counts.iter().sum::<f64>() / 20_000.0;
            let variance = counts.iter().map(|one| (one - average).powi(2)).sum::<f64>() / 20_000.0;
            // Both are within four standard errors. The variance of the sample variance is about 2 mean^2 +
            // mean.
            assert!((average - mean).abs() < 4.0 * (mean / 20_000.0).sqrt(), "{average} for {mean}");
            let error = ((2.0 * mean * mean + mean) / 20_000.0).sqrt();
            assert!((variance - mean).abs() < 4.0 * error, "{variance} for {mean}");
        }
        assert_eq!(poisson(0.0, &mut stream), 0);
    }

    #[test]
    fn each_number_is_drawn_with_the_same_probability() {
        let mut stream = Stream::of_run(2, "t");
        let mut counts = [0_u32; 10];
        for _ in 0..20_000 {
            let chosen = bernoulli_idxs(10, 0.3, &mut stream);
            assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]));
            chosen.into_iter().for_each(|at| counts[at] += 1);
        }
        // 6000 are expected, with standard deviation 65.
        assert!(counts.iter().all(|&count| count.abs_diff(6000) < 4 * 65), "{counts:?}");
        assert_eq!(bernoulli_idxs(3, 1.0, &mut stream), [0, 1, 2]);
        assert!(bernoulli_idxs(0, 0.5, &mut stream).is_empty());
    }
}
