//! Comparison of methods: means over seeds, and differences between runs that share a seed.

use std::collections::BTreeMap;

use ebb_record::stats::{self, Estimate};

use crate::load::{Evaluation, Run};

/// The runs of one method in one world, ascending by seed.
#[derive(Clone, Debug)]
pub struct Method<'r> {
    /// The method's name.
    pub name: &'r str,
    /// The runs, ascending by seed.
    pub runs: Vec<&'r Run>,
}

/// The metric by which methods are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedMetric {
    /// The final accuracy, in percent.
    Accuracy,
    /// The final loss.
    Loss,
}

/// Groups of comparable methods, in order of appearance: the name of the group, and its methods.
pub fn worlds(runs: &[Run]) -> Vec<(&str, Vec<Method<'_>>)> {
    let mut worlds: Vec<(&str, Vec<Method<'_>>)> = Vec::new();
    for run in runs {
        let at = worlds.iter().position(|(name, _)| *name == run.source.world).unwrap_or_else(|| {
            worlds.push((&run.source.world, Vec::new()));
            worlds.len() - 1
        });
        let methods = &mut worlds[at].1;
        match methods.iter_mut().find(|method| method.name == run.source.method) {
            Some(method) => method.runs.push(run),
            None => methods.push(Method { name: &run.source.method, runs: vec![run] }),
        }
    }
    for method in worlds.iter_mut().flat_map(|(_, methods)| methods) {
        method.runs.sort_by_key(|run| run.header.seed);
    }
    worlds
}

impl ComparedMetric {
    /// Accuracy, if any run has one; else loss.
    pub fn of(methods: &[Method<'_>]) -> ComparedMetric {
        let any = methods.iter().flat_map(|method| &method.runs).any(|run| run.final_accuracy().is_some());
        if any { ComparedMetric::Accuracy } else { ComparedMetric::Loss }
    }

    /// The metric of a run.
    pub fn value(self, run: &Run) -> Option<f64> {
        match self {
            ComparedMetric::Accuracy => Some(100.0 * run.final_accuracy()?),
            ComparedMetric::Loss => run.final_loss(),
        }
    }

    /// The name of the metric, with its unit.
    pub fn name(self) -> &'static str {
        match self {
            ComparedMetric::Accuracy => "accuracy %",
            ComparedMetric::Loss => "loss",
        }
    }

    /// A difference with its sign set so that more is better.
    pub fn as_gain(self, difference: Estimate) -> Estimate {
        match self {
            ComparedMetric::Accuracy => difference,
            ComparedMetric::Loss => Estimate { mean: -difference.mean, ..difference },
        }
    }
}

impl Method<'_> {
    /// A metric by seed, without the runs that lack it.
    pub fn values_by_seed(&self, of: impl Fn(&Run) -> Option<f64>) -> BTreeMap<u64, f64> {
        self.runs.iter().filter_map(|run| Some((run.header.seed, of(run)?))).collect()
    }

    /// The mean of a metric over runs, with its interval.
    pub fn estimate(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<Estimate> {
        stats::estimate(&self.values_by_seed(of).into_values().collect::<Vec<_>>())
    }

    /// The mean difference of a metric to `other`, over the common seeds.
    pub fn difference(&self, other: &Method<'_>, of: impl Fn(&Run) -> Option<f64>) -> Option<Estimate> {
        stats::difference_by_key(&self.values_by_seed(&of), &other.values_by_seed(&of))
    }

    /// For each round in which every run was evaluated: the mean over runs, and its 95 % interval.
    pub fn curve(
        &self,
        metric: impl Fn(&Evaluation) -> Option<f64>,
        position: impl Fn(&Evaluation) -> f64,
    ) -> Curve {
        // Runs of one method are evaluated in the same rounds. Times and bytes differ a little, and are
        // averaged too.
        let mut by_round: BTreeMap<u32, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
        for one in self.runs.iter().flat_map(|run| &run.evaluations) {
            if let Some(value) = metric(one).filter(|value| value.is_finite()) {
                let (positions, values) = by_round.entry(one.round).or_default();
                positions.push(position(one));
                values.push(value);
            }
        }
        let all = by_round.values().map(|(_, values)| values.len()).max().unwrap_or(0);
        let mut curve = Curve::default();
        for (positions, values) in by_round.values().filter(|(_, values)| values.len() == all) {
            let (Some(x), Some(found)) = (stats::mean(positions), stats::estimate(values)) else { continue };
            curve.points.push((x, found.mean));
            curve.band.extend(found.interval());
        }
        curve
    }
}

/// A mean curve, with a band where there are several runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Coordinates of the means, ascending in x.
    pub points: Vec<(f64, f64)>,
    /// For each point, the ends of the interval; empty for a single run.
    pub band: Vec<(f64, f64)>,
}

impl Curve {
    /// At most this many points, evenly chosen, with the first and the last.
    pub fn thinned(&self, most: usize) -> Curve {
        let n_points = self.points.len();
        if n_points <= most {
            return self.clone();
        }
        let index = |at: usize| at * (n_points - 1) / (most - 1);
        let band = if self.band.is_empty() { 0 } else { most };
        Curve {
            points: (0..most).map(|at| self.points[index(at)]).collect(),
            band: (0..band).map(|at| self.band[index(at)]).collect(),
        }
    }
}

/// Where the interval of a difference lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Above zero.
    Above,
    /// Below zero.
    Below,
    /// Around zero.
    Tied,
    /// There are too few runs for an interval.
    Unknown,
}

/// The least number of pairs for an interval.
const LEAST_PAIRS: usize = 3;

/// Where the 95 % interval of a difference lies.
pub fn sign(difference: Option<Estimate>) -> Sign {
    match difference.filter(|one| one.n_values >= LEAST_PAIRS).and_then(|difference| difference.interval()) {
        None => Sign::Unknown,
        Some((low, _)) if low > 0.0 => Sign::Above,
        Some((_, high)) if high < 0.0 => Sign::Below,
        Some(_) => Sign::Tied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_curve_keeps_its_ends_and_its_bands() {
        let points: Vec<_> = (0..1000).map(|at| (f64::from(at), f64::from(2 * at))).collect();
        let band: Vec<_> = points.iter().map(|(_, y)| (y - 1.0, y + 1.0)).collect();
        let thin = Curve { points, band }.thinned(7);
        assert_eq!((thin.points.len(), thin.points[0], thin.points[6]), (7, (0.0, 0.0), (999.0, 1998.0)));
        assert!(thin.points.iter().zip(&thin.band).all(|((_, y), band)| *band == (y - 1.0, y + 1.0)));
        assert!(thin.points.is_sorted());
    }

    #[test]
    fn an_interval_that_touches_zero_is_tied() {
        let of = |mean, half| Some(Estimate { n_values: 3, mean, std: Some(1.0), half_width: half });
        assert_eq!(sign(of(2.0, Some(1.9))), Sign::Above);
        assert_eq!(sign(of(-2.0, Some(1.9))), Sign::Below);
        assert_eq!(sign(of(2.0, Some(2.0))), Sign::Tied);
        assert_eq!((sign(of(2.0, None)), sign(None)), (Sign::Unknown, Sign::Unknown));
    }
}
