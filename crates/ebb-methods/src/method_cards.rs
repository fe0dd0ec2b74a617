//! Method cards: paper, assumptions, state, costs and defaults of the methods that no recipe is named after.
//!
//! A recipe with the name of a method is that method's card.

/// The card of a single method.
#[derive(Clone, Copy, Debug)]
pub struct MethodCard {
    /// The settings table in which it is chosen.
    pub table: &'static str,
    /// Its name, as written after `kind =`.
    pub name: &'static str,
    /// Authors, year and title of the paper.
    pub paper: &'static str,
    /// What it assumes about participation.
    pub assumes: &'static str,
    /// The state that is kept for each client between rounds, and where.
    pub keeps: &'static str,
    /// Communication, memory and time of a round.
    pub costs: &'static str,
    /// The authors' hyperparameters, or that they are not known here.
    pub defaults: &'static str,
}

const FLEX: &str = "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning";
const FRIENDS: &str = "Wang and Xu 2023, Friends to Help: Saving Federated Learning from Client Dropout; and Combating Client Dropout via Friend Model Substitution";
const FEDAVG: &str =
    "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data";
const NONE_OF_ITS_OWN: &str = "nothing of its own";
const UNKNOWN: &str = "not known here";
const NOTHING: &str = "nothing";

/// The methods that come with Ebbflow and that no recipe is named after, and `[clip]`.
pub const STANDARD: &[MethodCard] = &[
    MethodCard {
        table: "objective",
        name: "enrolled",
        paper: FEDAVG,
        assumes: "nothing: every enrolled client counts, whether or not it has ever returned an update",
        keeps: "at the server: its share",
        costs: NOTHING,
        defaults: "shares by samples; equal shares in FL-FDMS",
    },
    MethodCard {
        table: "objective.arrivals",
        name: "vanilla",
        paper: FLEX,
        assumes: NOTHING,
        keeps: NOTHING,
        costs: NOTHING,
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "objective.arrivals",
        name: "auto",
        paper: "after Ruan et al. 2021, who prove when the extra step helps; estimating it is this program's addition",
        assumes: "updates from which gradients can be estimated: no Adam, no SCAFFOLD",
        keeps: "for newcomers, at the server: the round of their arrival, and whether the boost still helps",
        costs: "all updates of a round are held",
        defaults: "a boost from 3 to 1 of order 1/j^2",
    },
    MethodCard {
        table: "objective.departures",
        name: "drop",
        paper: FLEX,
        assumes: "nothing; a client that returns counts again",
        keeps: NOTHING,
        costs: NOTHING,
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "objective.departures",
        name: "keep",
        paper: FLEX,
        assumes: "nothing; no updates represent departed clients, so the model drifts away from their data",
        keeps: "for leavers, at the server: their shares",
        costs: NOTHING,
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "objective.departures",
        name: "min-bound",
        paper: FLEX,
        assumes: "that departures are permanent, and the number of rounds and the constants of the theory are known",
        keeps: NOTHING,
        costs: NOTHING,
        defaults: "not known here: the constants are those of a proof",
    },
    MethodCard {
        table: "objective.departures",
        name: "crossing",
        paper: FLEX,
        assumes: "that departures are permanent, and the number of rounds and the constants of the theory are known",
        keeps: NOTHING,
        costs: NOTHING,
        defaults: "not known here: the constants are those of a proof",
    },
    MethodCard {
        table: "objective.departures",
        name: "estimate",
        paper: FLEX,
        assumes: "that departures are permanent, and the number of rounds is known",
        keeps: "at the server: its last losses",
        costs: NOTHING,
        defaults: "the paper gives only the order of the rule, without its constant; here: c = 1",
    },
    MethodCard {
        table: "select",
        name: "everyone",
        paper: "folklore",
        assumes: "nothing; with wait = \"everyone\" that every client returns its update within the run's patience",
        keeps: NOTHING,
        costs: "one model down for each client, one up for each update; with wait = \"everyone\" the time of the slowest",
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "select",
        name: "uniform",
        paper: FEDAVG,
        assumes: "nothing; with among = \"up\" its inclusion probabilities are given availability, and ignore absence",
        keeps: NOTHING,
        costs: "one model down for each selected client, one up for each update",
        defaults: "a tenth of the clients (C = 0.1)",
    },
    MethodCard {
        table: "select",
        name: "oldest-first",
        paper: "Yan et al. 2020 (FedLaAvg), Distributed Non-Convex Optimization with Sublinear Speedup under Intermittent Client Availability",
        assumes: "that no client is absent for too long",
        keeps: "at the server: the round of its last update",
        costs: "one model down for each selected client, one up for each update; O(clients) to select",
        defaults: "a tenth of 1,000 clients",
    },
    MethodCard {
        table: "local",
        name: "sgd",
        paper: FEDAVG,
        assumes: NOTHING,
        keeps: "nothing: momentum and Adam's moments restart in every round",
        costs: "the requested steps",
        defaults: "1 to 20 epochs (E), batch 10 to all samples of a client (B), no momentum",
    },
    MethodCard {
        table: "substitute",
        name: "nobody",
        paper: "folklore",
        assumes: NOTHING,
        keeps: NOTHING,
        costs: NOTHING,
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "substitute",
        name: "friend",
        paper: FRIENDS,
        assumes: "that every client has a friend with similar data that is available when it is not",
        keeps: "at the server: its similarity to each other client",
        costs: "all updates of a round are held, and the inner product of each pair is taken",
        defaults: "cosine, one friend, which stands in for any number of clients; races with beta 0.5, delta 0.01, p 0.01",
    },
    MethodCard {
        table: "substitute",
        name: "last-update",
        paper: "\"Stale\" in the text of FL-FDMS (Wang and Xu 2023)",
        assumes: "that an old update is still informative",
        keeps: "at the server: its last update",
        costs: "memory of clients x model",
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "substitute",
        name: "last-model",
        paper: "\"Stale\" in the plots of FL-FDMS (Wang and Xu 2023)",
        assumes: "that an old model is still informative",
        keeps: "at the server: its last model",
        costs: "memory of clients x model",
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "substitute",
        name: "late",
        paper: "as in Yang et al. 2022 (anarchic) and Nguyen et al. 2022 (FedBuff)",
        assumes: "that late updates are kept: world.after_deadline = \"late\", or serve.after_deadline",
        keeps: NOTHING,
        costs: "nothing in addition to the updates",
        defaults: UNKNOWN,
    },
    MethodCard {
        table: "aggregate",
        name: "mean",
        paper: FEDAVG,
        assumes: "nothing; clients that are absent more often count for less",
        keeps: NOTHING,
        costs: "one vector of the model's size",
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "aggregate",
        name: "share",
        paper: "as in E3CS (Huang et al. 2022); \"average over all participants\" in FedAU (Wang and Ji 2024)",
        assumes: "nothing; clients that are often absent count for less, and steps are shorter",
        keeps: NOTHING,
        costs: "one vector of the model's size",
        defaults: "server.learning_rate 10 in FedAU's comparison",
    },
    MethodCard {
        table: "server",
        name: "plain",
        paper: FEDAVG,
        assumes: NOTHING,
        keeps: NOTHING,
        costs: NOTHING,
        defaults: "learning_rate 1",
    },
    MethodCard {
        table: "server",
        name: "amplified",
        paper: "Wang and Ji 2022, A Unified Analysis of Federated Learning with Arbitrary Client Participation",
        assumes: "that all clients participate equally often within a period. A period is amplified when it ends, even in a round without updates",
        keeps: NOTHING,
        costs: "one additional model at the server",
        defaults: "every 500, factor 10",
    },
    MethodCard {
        table: "clip",
        name: "clip",
        paper: "folklore",
        assumes: "that honest updates have similar norms. Clients with long absences or unusual data have longer updates and are shortened more. \
                  A bound that is too low is biased against them, and slows learning",
        keeps: "nothing; with times the norms of the last rounds, of all clients together",
        costs: "one norm for each vector of an update",
        defaults: NONE_OF_ITS_OWN,
    },
];
