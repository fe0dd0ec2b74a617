//! Columns that a grid asks for beside the usual ones: a figure of `rounds.csv`, after a round or over several.

use std::path::Path;

use crate::CliError;

/// One such column, written `FIGURE@ROUND` or `FIGURE@FIRST-LAST`, rounds counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Also {
    /// As it was written: the column's heading.
    pub(crate) text: String,
    figure: String,
    first: u64,
    last: u64,
}

impl Also {
    /// Reads what was written; `None` if it has another form.
    pub(crate) fn parse(text: &str) -> Option<Also> {
        let (figure, rounds) = text.split_once('@')?;
        let (first, last) = match rounds.split_once('-') {
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => {
                let round = rounds.parse().ok()?;
                (round, round)
            }
        };
        let holds = !figure.is_empty() && 1 <= first && first <= last;
        holds.then(|| Also { text: text.to_owned(), figure: figure.to_owned(), first, last })
    }
}

/// The mean of each figure over its rounds, those left out in which it was not taken.
pub(crate) fn look_up(also: &[Also], table: &Path) -> Result<Vec<Option<f64>>, CliError> {
    if also.is_empty() {
        return Ok(Vec::new());
    }
    let failed = |error: csv::Error| CliError::file("reading", table, std::io::Error::other(error));
    let mut reader = csv::Reader::from_path(table).map_err(failed)?;
    let headings = reader.headers().map_err(failed)?.clone();
    let columns: Vec<_> = also
        .iter()
        .map(|one| {
            headings.iter().position(|heading| heading == one.figure).ok_or_else(|| {
                let known = headings.iter().collect::<Vec<_>>().join(", ");
                CliError::Usage(format!(
                    "grid.also: \"{}\": {} has no such column; known: {known}",
                    one.text,
                    table.display()
                ))
            })
        })
        .collect::<Result<_, _>>()?;
    let mut sums = vec![(0.0, 0_u32); also.len()];
    for (round, record) in (1..).zip(reader.records()) {
        let record = record.map_err(failed)?;
        for ((one, &column), sum) in also.iter().zip(&columns).zip(&mut sums) {
            if let Some(value) = record.get(column).and_then(|cell| cell.parse::<f64>().ok())
                && (one.first..=one.last).contains(&round)
            {
                *sum = (sum.0 + value, sum.1 + 1);
            }
        }
    }
    Ok(sums.into_iter().map(|(sum, n)| (n > 0).then(|| sum / f64::from(n))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_a_figure_and_its_rounds() {
        let parsed = |text| Also::parse(text).map(|one| (one.figure, one.first, one.last));
        assert_eq!(parsed("accuracy@20"), Some(("accuracy".to_owned(), 20, 20)));
        assert_eq!(parsed("loss@97-100"), Some(("loss".to_owned(), 97, 100)));
        for wrong in ["accuracy", "accuracy@", "@3", "accuracy@0", "accuracy@9-3", "accuracy@last"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn means_are_over_the_rounds_in_which_the_figure_was_taken() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("rounds.csv");
        std::fs::write(&table, "round,accuracy\n0,0.1\n1,\n2,0.3\n3,0.7\n").unwrap();
        let also: Vec<_> = ["accuracy@1", "accuracy@2", "accuracy@2-4", "accuracy@9"]
            .map(|text| Also::parse(text).unwrap())
            .to_vec();
        assert_eq!(look_up(&also, &table).unwrap(), [Some(0.1), None, Some(0.5), None]);
        let error = look_up(&[Also::parse("accurcy@1").unwrap()], &table).unwrap_err().to_string();
        assert!(error.contains("\"accurcy@1\"") && error.contains("known: round, accuracy"), "{error}");
    }
}
