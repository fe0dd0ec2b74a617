//! The files that are part of the program: published results, the grids that reproduce them, and our results.

macro_rules! files {
    ($($name:literal,)*) => {
        /// Every file, by its path below `experiments/`.
        pub const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../../experiments/", $name))),)*];
    };
}

files![
    "papers/e3cs.toml",
    "papers/fast.toml",
    "papers/fdms.toml",
    "papers/flex.toml",
    "papers/small/e3cs-iid.toml",
    "papers/small/e3cs-noniid.toml",
    "papers/small/e3cs-prox.toml",
    "papers/small/fast-patterns.toml",
    "papers/small/fast-snapshots.toml",
    "papers/small/fdms-alpha.toml",
    "papers/small/fdms-epochs.toml",
    "papers/small/fdms-forty.toml",
    "papers/small/fdms-general.toml",
    "papers/small/fdms-prox.toml",
    "papers/small/fdms-races.toml",
    "papers/small/flex-arrivals.toml",
    "papers/small/flex-departures-01.toml",
    "papers/small/flex-departures-05.toml",
    "papers/small/flex-departures-1.toml",
    "papers/small/flex-schemes-iid.toml",
    "papers/small/flex-schemes.toml",
    "papers/small/e3cs-iid.csv",
    "papers/small/e3cs-noniid.csv",
    "papers/small/e3cs-prox.csv",
    "papers/small/fast-patterns.csv",
    "papers/small/fast-snapshots.csv",
    "papers/small/fdms-alpha.csv",
    "papers/small/fdms-epochs.csv",
    "papers/small/fdms-forty.csv",
    "papers/small/fdms-general.csv",
    "papers/small/fdms-prox.csv",
    "papers/small/fdms-races.csv",
    "papers/small/flex-arrivals.csv",
    "papers/small/flex-departures-01.csv",
    "papers/small/flex-departures-05.csv",
    "papers/small/flex-departures-1.csv",
    "papers/small/flex-schemes-iid.csv",
    "papers/small/flex-schemes.csv",
    "papers/made/fdms-alpha-likeness.csv",
    "papers/made/fdms-cifar-likeness.csv",
    "papers/made/fdms-mnist-likeness.csv",
    "papers/made/flex-crossings-01-small.csv",
    "papers/made/flex-crossings-01.csv",
    "papers/made/flex-crossings-05-small.csv",
    "papers/made/flex-crossings-05.csv",
    "papers/made/flex-crossings-1-small.csv",
    "papers/made/flex-crossings-1.csv",
    "fdms/authors-split.toml",
    "fdms/cifar.toml",
    "fdms/fashion-full.toml",
    "fdms/fashion-often.toml",
    "fdms/fashion.toml",
    "fdms/lose-away.toml",
    "fdms/lose-dirichlet.toml",
    "fdms/lose-iid.toml",
    "fdms/lose-labels.toml",
    "fdms/mnist-full.toml",
    "fdms/mnist.toml",
    "fdms/races.toml",
    "fdms/zero.toml",
    "fdms/authors-split.csv",
    "fdms/cifar.csv",
    "fdms/fashion-full.csv",
    "fdms/fashion-often.csv",
    "fdms/fashion.csv",
    "fdms/likeness.csv",
    "fdms/lose-away.csv",
    "fdms/lose-dirichlet.csv",
    "fdms/lose-iid.csv",
    "fdms/lose-labels.csv",
    "fdms/mnist-full.csv",
    "fdms/mnist.csv",
    "fdms/races.csv",
    "fdms/zero.csv",
    "e3cs/cifar.toml",
    "e3cs/emnist-iid.toml",
    "e3cs/emnist.toml",
    "e3cs/fashion-iid.toml",
    "e3cs/fashion-long.toml",
    "e3cs/fashion-prox-iid.toml",
    "e3cs/fashion-prox.toml",
    "e3cs/fashion.toml",
    "e3cs/samplers.toml",
    "e3cs/selection.toml",
    "e3cs/cifar.csv",
    "e3cs/emnist-iid.csv",
    "e3cs/emnist.csv",
    "e3cs/fashion-iid.csv",
    "e3cs/fashion-prox-iid.csv",
    "e3cs/fashion-prox.csv",
    "e3cs/fashion.csv",
    "e3cs/samplers.csv",
    "e3cs/selection.csv",
    "flex/arrivals-mnist.toml",
    "flex/arrivals-synthetic.toml",
    "flex/churn.toml",
    "flex/departures-01.toml",
    "flex/departures-05.toml",
    "flex/departures-1.toml",
    "flex/schemes-emnist-full-iid.toml",
    "flex/schemes-emnist-full.toml",
    "flex/schemes-mnist-full-iid.toml",
    "flex/schemes-mnist-full.toml",
    "flex/schemes-mnist-iid.toml",
    "flex/schemes-mnist.toml",
    "flex/schemes-synthetic-iid.toml",
    "flex/schemes-synthetic-one-law.toml",
    "flex/schemes-synthetic.toml",
    "flex/arrivals-mnist.csv",
    "flex/arrivals-synthetic.csv",
    "flex/churn.csv",
    "flex/crossings.csv",
    "flex/departures-01.csv",
    "flex/departures-05.csv",
    "flex/departures-1.csv",
    "flex/schemes-mnist-iid.csv",
    "flex/schemes-mnist.csv",
    "flex/schemes-synthetic-iid.csv",
    "flex/schemes-synthetic-one-law.csv",
    "flex/schemes-synthetic.csv",
    "fast/bases-slow.toml",
    "fast/bases.toml",
    "fast/beta.toml",
    "fast/fashion.toml",
    "fast/gamma.toml",
    "fast/uniform.toml",
    "fast/weibull.toml",
    "fast/bases-slow.csv",
    "fast/bases.csv",
    "fast/beta.csv",
    "fast/fashion.csv",
    "fast/gamma.csv",
    "fast/uniform.csv",
    "fast/weibull.csv",
];

/// A file's text, by its path below `experiments/`.
pub fn file(path: &str) -> Option<&'static str> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text)
}

/// The papers, in the order in which they are listed.
pub const PAPERS: [&str; 4] = ["fdms", "e3cs", "flex", "fast"];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::paper::{Paper, Scale};
    use crate::study::Study;

    fn paper(name: &str) -> Paper {
        Paper::parse(name, file(&format!("papers/{name}.toml")).unwrap()).unwrap()
    }

    #[test]
    fn every_file_of_the_studies_is_there() {
        let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        for folder in ["papers", "papers/small", "papers/made", "fdms", "e3cs", "flex", "fast"] {
            for entry in std::fs::read_dir(experiments.join(folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if name.ends_with(".toml") || name.ends_with(".csv") {
                    assert!(
                        file(&format!("{folder}/{name}")).is_some(),
                        "{folder}/{name} is not in the list"
                    );
                }
            }
        }
    }

    #[test]
    fn papers_fit_together_and_name_grids_that_are_there() {
        for name in PAPERS {
            for source in paper(name).sources {
                if let Some(grid) = source.file {
                    assert!(file(&grid).is_some(), "{name}: {grid}");
                }
            }
        }
    }

    /// A claim that names a missing column or method would stay "not run" for ever.
    #[test]
    fn every_claim_finds_its_results() {
        for name in PAPERS {
            let paper = paper(name);
            for (item, scale) in
                paper.items.iter().flat_map(|item| [(item, Scale::Small), (item, Scale::Paper)])
            {
                for test in item.claims.iter().filter_map(|claim| claim.at(scale)) {
                    for term in test.plus.iter().chain(&test.minus) {
                        let source = paper.source(term.source.as_ref().unwrap_or(&test.source)).unwrap();
                        let csv = source.results_file(name);
                        // This grid has not run yet.
                        let Some(text) = file(&csv) else { continue };
                        let column = term.column.as_ref().or(test.column.as_ref()).unwrap();
                        let heading = text.lines().next().unwrap_or_default();
                        assert!(
                            heading.split(',').any(|own| own == column),
                            "{name}/{}: {csv} has no {column}",
                            item.id()
                        );
                        let at = term.at.as_ref().unwrap_or(&test.at);
                        let at: Vec<_> =
                            at.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                        let seeds = Study::parse(text).unwrap().seeds_where(&term.method, &at);
                        assert!(
                            !seeds.is_empty(),
                            "{name}/{}: {csv} has no {} at {at:?}",
                            item.id(),
                            term.method
                        );
                    }
                }
            }
        }
    }
}
