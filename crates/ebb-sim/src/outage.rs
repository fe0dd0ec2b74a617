//! Clients that are away for some rounds, whatever their availability: a region without power, or faulty
//! firmware.

use ebb_round::{Bits, ClientId, RoundNo};
use ebb_settings::{Settings, SettingsError};
use serde::{Deserialize, Serialize};

/// Clients that are away from one round until another. They stay enrolled and keep their share of the
/// objective.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outage {
    from: RoundNo,
    until: RoundNo,
    clients: Vec<u32>,
}

/// Checks that every outage names existing clients and at least one round.
pub(crate) fn check(outages: &[Outage], settings: &Settings<'_>) -> Result<(), SettingsError> {
    let n_clients = settings.context().n_clients;
    for (at, outage) in outages.iter().enumerate() {
        let error =
            |key: &str, message: String| Err(settings.error(&format!("outages[{at}].{key}"), message));
        if outage.from >= outage.until {
            return error("until", format!("it is not after from = {}; give a later round", outage.from));
        }
        if let Some(client) = outage.clients.iter().find(|&&client| client as usize >= n_clients) {
            let last = n_clients.saturating_sub(1);
            return error("clients", format!("there is no client {client}; they are 0 to {last}"));
        }
    }
    Ok(())
}

/// Whether an outage holds the client in this round.
pub(crate) fn is_away(outages: &[Outage], number: RoundNo, client: ClientId) -> bool {
    let mut now = outages.iter().filter(|outage| (outage.from..outage.until).contains(&number));
    now.any(|outage| outage.clients.contains(&client.number()))
}

/// Clears the bits of clients that an outage holds in this round.
pub(crate) fn apply(outages: &[Outage], number: RoundNo, up: &mut Bits) {
    for outage in outages.iter().filter(|outage| (outage.from..outage.until).contains(&number)) {
        let n_known = up.len();
        let idxs = outage.clients.iter().map(|&client| client as usize);
        idxs.filter(|&idx| idx < n_known).for_each(|idx| up.set(idx, false));
    }
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;

    #[test]
    fn a_client_is_down_exactly_in_the_rounds_of_its_outage() {
        let outages = [
            Outage { from: 2, until: 4, clients: vec![0, 1] },
            Outage { from: 3, until: 5, clients: vec![1, 2] },
        ];
        let away = |number| {
            let mut up = Bits::new(4);
            up.fill_words(|_| u64::MAX);
            apply(&outages, number, &mut up);
            (0..4).filter(|&idx| !up.get(idx)).collect::<Vec<_>>()
        };
        let found: Vec<_> = (1..6).map(away).collect();
        assert_eq!(found, [vec![], vec![0, 1], vec![0, 1, 2], vec![1, 2], vec![]]);
    }

    #[test]
    fn wrong_outages_are_reported_with_the_remedy() {
        for (outage, expected) in [
            (
                Outage { from: 3, until: 3, clients: vec![0] },
                "outages[0].until: it is not after from = 3; give a later round",
            ),
            (
                Outage { from: 3, until: 4, clients: vec![9] },
                "outages[0].clients: there is no client 9; they are 0 to 4",
            ),
        ] {
            let tree = Tree::parse("[world]", "a.toml").unwrap();
            let context = BuildContext { seed: 1, n_clients: 5, n_rounds: 9 };
            let error = check(&[outage], &tree.table("world", context)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
