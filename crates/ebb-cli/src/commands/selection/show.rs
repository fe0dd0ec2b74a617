//! The results of simulated selection, on the terminal and as JSON.

use ebb_record::{Selection, stats};
use serde_json::json;

use super::{PlayedCell, SchemeComparison, reported_rounds};
use crate::CliError;
use crate::output::{TextTable, bold, count, print_line};

impl SchemeComparison<'_> {
    /// Prints its tables.
    pub(super) fn print(&self) -> Result<(), CliError> {
        let all: Vec<_> = self.schemes.iter().flat_map(|(_, own)| own).collect();
        if !self.name.is_empty() {
            print_line(&bold(&self.name))?;
        }
        let (n_clients, n_rounds) = (all[0].n_clients as u64, u64::from(all[0].n_rounds));
        print_line(&format!(
            "{}, {}; success ratio after N rounds (@N), CEP, Jain's fairness index",
            count(n_clients, "client"),
            count(n_rounds, "round")
        ))?;
        let mut rounds: Vec<_> = all.iter().flat_map(|one| reported_rounds(one.n_rounds)).collect();
        rounds.retain(|round| all.iter().any(|one| *round <= one.n_rounds));
        rounds.sort_unstable();
        rounds.dedup();
        let headings = ["scheme", "seeds"].map(str::to_owned).into_iter();
        let headings = headings.chain(rounds.iter().map(|round| format!("@{round}")));
        let headings = headings.chain(["CEP ± sd", "Jain"].map(str::to_owned));
        let mut table = TextTable::new(1, headings);
        for (scheme, own) in &self.schemes {
            let mut cells = vec![(*scheme).to_owned(), own.len().to_string()];
            for round in &rounds {
                cells.push(mean_of(own, 3, |one| one.success_ratios.get(round).copied()));
            }
            let ceps: Vec<_> = own.iter().map(|one| one.selection.cep as f64).collect();
            let spread = stats::standard_deviation(&ceps).map_or(String::new(), |std| format!(" ± {std:.0}"));
            cells.push(format!("{}{spread}", mean_of(own, 0, |one| Some(one.selection.cep as f64))));
            cells.push(mean_of(own, 3, |one| one.selection.jain));
            table.row(cells);
        }
        table.print()?;
        print_line("")?;
        self.print_details()
    }

    /// Prints the selection counts, and what an oracle knows.
    fn print_details(&self) -> Result<(), CliError> {
        let has = |of: fn(&Selection) -> bool| {
            self.schemes.iter().flat_map(|(_, own)| own).any(|one| of(&one.selection))
        };
        let overflow = has(|selection| selection.overflow_rounds.is_some());
        let regret = has(|selection| selection.oracle_regret.is_some());
        let bounds = has(|selection| selection.regret_bound.is_some());
        print_line(&format!(
            "selections per client, {} {}",
            self.classes.about(),
            self.classes.names().join(", ")
        ))?;
        if overflow {
            print_line(
                "overflow: rounds in which any client is selected with certainty, and the most of a single client",
            )?;
        }
        if regret {
            print_line("regret: CEP of the best fixed allocation in hindsight, minus this CEP (oracle)")?;
        }
        if bounds {
            print_line("bound: regret bound of E3CS's theorem 1, at this learning rate and at the best one")?;
        }
        let mut headings = vec!["scheme".to_owned()];
        headings.extend(self.classes.names());
        headings.extend(["overflow", "most"].into_iter().filter(|_| overflow).map(str::to_owned));
        headings.extend(regret.then(|| "regret".to_owned()));
        headings.extend(["bound", "best bound"].into_iter().filter(|_| bounds).map(str::to_owned));
        let mut table = TextTable::new(1, headings);
        for (scheme, own) in &self.schemes {
            let mut cells = vec![(*scheme).to_owned()];
            let means: Vec<_> = own.iter().map(|one| self.classes.means(one)).collect();
            for class in 0..self.classes.names().len() {
                let of_class: Vec<_> = means.iter().map(|means| means[class]).collect();
                cells.push(stats::mean(&of_class).map_or("-".to_owned(), |mean| format!("{mean:.1}")));
            }
            if overflow {
                cells.push(mean_of(own, 1, |one| one.selection.overflow_rounds.map(|rounds| rounds as f64)));
                let most = own.iter().filter_map(|one| one.selection.overflow_most).max();
                cells.push(most.map_or("-".to_owned(), |most| most.to_string()));
            }
            if regret {
                cells.push(mean_of(own, 0, |one| one.selection.oracle_regret));
            }
            if bounds {
                cells.push(mean_of(own, 0, |one| one.selection.regret_bound));
                cells.push(mean_of(own, 0, |one| one.selection.regret_bound_least));
            }
            table.row(cells);
        }
        table.print()
    }

    /// Prints one object a cell.
    pub(super) fn print_json(&self) -> Result<(), CliError> {
        for one in self.schemes.iter().flat_map(|(_, own)| own) {
            let ratio =
                |round: &u32| json!({ "rounds": round, "success_ratio": one.success_ratios.get(round) });
            let marks = reported_rounds(one.n_rounds);
            let ratios: Vec<_> = marks.iter().filter(|round| **round <= one.n_rounds).map(ratio).collect();
            let classes = self.classes.split(one);
            let classes = self.classes.names().into_iter().zip(classes).map(|(name, class)| {
                json!({ "name": name, "clients": class.len(), "mean_selections": stats::mean(&class) })
            });
            let line = json!({
                "method": one.scheme, "values": one.values, "seed": one.seed, "rounds": one.n_rounds,
                "clients": one.n_clients, "selection": one.selection, "success_ratio_after": ratios,
                "oracle_classes": classes.collect::<Vec<_>>(), "probed": one.probed,
            });
            print_line(&line.to_string())?;
        }
        Ok(())
    }
}

/// The mean of a metric over seeds; "-" unless all have it.
fn mean_of(own: &[&PlayedCell], digits: usize, metric: impl Fn(&PlayedCell) -> Option<f64>) -> String {
    let values: Option<Vec<_>> =
        own.iter().map(|one| metric(one).filter(|metric| metric.is_finite())).collect();
    values.and_then(|values| stats::mean(&values)).map_or("-".to_owned(), |mean| format!("{mean:.digits$}"))
}
