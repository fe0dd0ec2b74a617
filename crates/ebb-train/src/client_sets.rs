//! Sets of clients on whose pooled test data a model is evaluated.

use std::ops::RangeInclusive;

use ebb_round::{Bits, Census, ClientId, Shares};

/// The members of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientSet {
    /// Clients that count in the objective.
    Objective,
    /// Enrolled clients.
    Enrolled,
    /// Clients that were ever enrolled.
    Ever,
    /// The listed clients, enrolled or not.
    Listed(Vec<RangeInclusive<usize>>),
}

impl ClientSet {
    /// Parses a name, or a comma-separated list of client numbers and ranges.
    pub(crate) fn parse(text: &str, n_clients: usize) -> Result<ClientSet, String> {
        match text {
            "objective" => return Ok(ClientSet::Objective),
            "enrolled" => return Ok(ClientSet::Enrolled),
            "ever" => return Ok(ClientSet::Ever),
            _ => {}
        }
        let number = |text: &str| {
            let expected = "expected \"objective\", \"enrolled\", \"ever\", or clients such as \"0-8, 12\"";
            text.trim().parse::<usize>().map_err(|_| expected.to_owned())
        };
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(format!("{first}-{last} begins after its end"));
            }
            if last >= n_clients {
                return Err(format!(
                    "there is no client {last}; the last of {n_clients} is {}",
                    n_clients - 1
                ));
            }
            Ok(first..=last)
        };
        text.split(',').map(range).collect::<Result<_, _>>().map(ClientSet::Listed)
    }

    /// The members at this point of the run.
    pub(crate) fn members(&self, n_clients: usize, census: &Census, shares: &Shares) -> Bits {
        let mut members = Bits::new(n_clients);
        let is_in = |idx: usize| match self {
            ClientSet::Objective => shares.of(ClientId::new(idx)) > 0.0,
            ClientSet::Enrolled => idx < census.len() && census.enrolled().get(idx),
            ClientSet::Ever => census.joined(ClientId::new(idx)).is_some(),
            ClientSet::Listed(ranges) => ranges.iter().any(|range| range.contains(&idx)),
        };
        (0..n_clients).filter(|&idx| is_in(idx)).for_each(|idx| members.set(idx, true));
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_ranges_are_parsed() {
        let listed = |text| ClientSet::parse(text, 10);
        assert_eq!(listed("ever"), Ok(ClientSet::Ever));
        assert_eq!(listed("0-3, 7,9"), Ok(ClientSet::Listed(vec![0..=3, 7..=7, 9..=9])));
        assert_eq!(listed("4-3").unwrap_err(), "4-3 begins after its end");
        assert_eq!(listed("8-10").unwrap_err(), "there is no client 10; the last of 10 is 9");
        for broken in ["", "everybody", "1,,2", "-3"] {
            assert!(listed(broken).unwrap_err().starts_with("expected \"objective\""), "{broken}");
        }
    }

    #[test]
    fn members_follow_the_census_and_the_shares() {
        let mut census = Census::new();
        (0..4).for_each(|idx| census.enrol(ClientId::new(idx), 1, 0));
        census.leave(ClientId::new(0), 3);
        census.leave(ClientId::new(1), 3);
        let mut kept = census.enrolled().clone();
        kept.set(1, true);
        let shares = Shares::over(3, &kept, |_| 1.0);
        let who =
            |text| ClientSet::parse(text, 6).unwrap().members(6, &census, &shares).iter().collect::<Vec<_>>();
        assert_eq!(who("objective"), [1, 2, 3]);
        assert_eq!(who("enrolled"), [2, 3]);
        assert_eq!(who("ever"), [0, 1, 2, 3]);
        assert_eq!(who("3-5"), [3, 4, 5]);
    }
}
