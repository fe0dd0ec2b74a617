//! Log-normal upload speeds: one factor per client, and one per client and round.

use ebb_round::{ClientId, RoundNo, Stream};
use ebb_settings::{Entry, NonNegative, Positive};
use serde::{Deserialize, Serialize};

use super::{Link, transfer_s};
use crate::world::MAX_TIME_S;

/// The entry of this kind in the registry.
pub const ENTRY: Entry<dyn Link> = Entry {
    name: "log-normal",
    about: "each client uploads at its own speed, drawn from a log-normal distribution",
    example: "mbit_s = 10.0              # the median speed
spread = 1.0               # standard deviation of its logarithm, from client to client
jitter = 0.3               # ... and from round to round, of one client",
    build: |settings| {
        let table = settings.parse::<Table>()?;
        for (key, std) in [("spread", table.spread), ("jitter", table.jitter)] {
            if std.get() > MAX_LOG_STD {
                return Err(settings.error(key, format!("it is too large; give at most {MAX_LOG_STD}")));
            }
        }
        if transfer_s(1, 1e6 * table.mbit_s.get()) > MAX_TIME_S {
            let message = format!("a byte takes more than {MAX_TIME_S} seconds; give a higher speed");
            return Err(settings.error("mbit_s", format!("at {:e} Mbit/s {message}", table.mbit_s.get())));
        }
        Ok(Box::new(LogNormal { seed: settings.context().seed, table }))
    },
};

/// The largest standard deviation of log speed. One client in a thousand is then e^31 times as slow as the
/// median.
const MAX_LOG_STD: f64 = 10.0;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    mbit_s: Positive,
    #[serde(default = "one")]
    spread: NonNegative,
    #[serde(default = "nothing")]
    jitter: NonNegative,
}

fn one() -> NonNegative {
    NonNegative::new(1.0).expect("1 is not negative")
}
fn nothing() -> NonNegative {
    NonNegative::new(0.0).expect("0 is not negative")
}

#[derive(Debug)]
struct LogNormal {
    seed: u64,
    table: Table,
}

impl Link for LogNormal {
    fn upload_s(&self, number: RoundNo, client: ClientId, n_bytes: u64) -> f64 {
        let client_normal = Stream::of_client(self.seed, "link", client).normal();
        let round_normal = Stream::of_client_round(self.seed, "link", number, client).normal();
        let logarithm = self.table.spread.get() * client_normal + self.table.jitter.get() * round_normal;
        transfer_s(n_bytes, 1e6 * self.table.mbit_s.get() * libm::exp(logarithm))
    }
}
