//! What is known of the methods that no recipe is named after: the paper, what they assume, keep and cost.
//!
//! Of a method that a recipe is named after the recipe says it.

/// What is known of a method by itself.
#[derive(Clone, Copy, Debug)]
pub struct MethodCard {
    /// The table in which it is named.
    pub table: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Who published it, and where.
    pub paper: &'static str,
    /// What it assumes about who takes part.
    pub assumes: &'static str,
    /// What is kept for each client between rounds.
    pub keeps: &'static str,
    /// What it costs in a round.
    pub costs: &'static str,
    /// What the authors took, or that it is not known here.
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
        assumes: "nothing: whoever is enrolled counts, heard or not",
        keeps: "at the server: its share",
        costs: NOTHING,
        defaults: "by samples; equally in FL-FDMS",
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
        paper: "after Ruan et al. 2021, who say when the extra step helps; measuring it is of this program",
        assumes: "answers whose updates tell gradients: no Adam, no SCAFFOLD",
        keeps: "for newcomers, at the server: when they came, and whether it still helps",
        costs: "all updates of a round are held",
        defaults: "a boost from 3 to 1 by the order of 1/j^2",
    },
    MethodCard {
        table: "objective.departures",
        name: "drop",
        paper: FLEX,
        assumes: "nothing; whoever comes back counts again",
        keeps: NOTHING,
        costs: NOTHING,
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "objective.departures",
        name: "keep",
        paper: FLEX,
        assumes: "nothing; nobody answers for those who left, so that the model drifts away from them",
        keeps: "for leavers, at the server: their shares",
        costs: NOTHING,
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "objective.departures",
        name: "min-bound",
        paper: FLEX,
        assumes: "that those who leave do so for good, and the length of the run and the constants of the theory are known",
        keeps: NOTHING,
        costs: NOTHING,
        defaults: "not known here: the constants are those of a proof",
    },
    MethodCard {
        table: "objective.departures",
        name: "crossing",
        paper: FLEX,
        assumes: "that those who leave do so for good, and the length of the run and the constants of the theory are known",
        keeps: NOTHING,
        costs: NOTHING,
        defaults: "not known here: the constants are those of a proof",
    },
    MethodCard {
        table: "objective.departures",
        name: "estimate",
        paper: FLEX,
        assumes: "that those who leave do so for good, and the length of the run is known",
        keeps: "at the server: its last losses",
        costs: NOTHING,
        defaults: "only the order of the rule is printed, without its constant; here: c = 1",
    },
    MethodCard {
        table: "select",
        name: "everyone",
        paper: "folklore",
        assumes: "nothing; with wait = \"everyone\" that everybody comes in the end, within the run's patience",
        keeps: NOTHING,
        costs: "one model down for everybody, one up for each answer; with wait = \"everyone\" the time of the slowest",
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "select",
        name: "uniform",
        paper: FEDAVG,
        assumes: "nothing; with among = \"up\" the chances it tells are those of who is up, and know nothing of absence",
        keeps: NOTHING,
        costs: "one model down for each asked, one up for each answer",
        defaults: "a tenth of the clients (C = 0.1)",
    },
    MethodCard {
        table: "select",
        name: "oldest-first",
        paper: "Yan et al. 2020 (FedLaAvg), Distributed Non-Convex Optimization with Sublinear Speedup under Intermittent Client Availability",
        assumes: "that nobody is away for too long",
        keeps: "at the server: when it was last heard",
        costs: "one model down for each asked, one up for each answer; O(clients) to select",
        defaults: "a tenth of 1,000 clients",
    },
    MethodCard {
        table: "local",
        name: "sgd",
        paper: FEDAVG,
        assumes: NOTHING,
        keeps: "nothing: momentum and Adam's sums begin anew in every round",
        costs: "the steps asked for",
        defaults: "1 to 20 epochs (E), batch 10 to all that a client holds (B), no momentum",
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
        assumes: "that every client has a friend with alike data who is there when it is not",
        keeps: "at the server: how alike it is to each other client",
        costs: "all updates of a round are held, and inner products of all pairs that answered are taken",
        defaults: "cosine, one friend, who stands in for any number; races with beta 0.5, delta 0.01, p 0.01",
    },
    MethodCard {
        table: "substitute",
        name: "last-update",
        paper: "\"Stale\" in the text of FL-FDMS (Wang and Xu 2023)",
        assumes: "that an old update still says something",
        keeps: "at the server: its last update",
        costs: "memory of clients x model",
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "substitute",
        name: "last-model",
        paper: "\"Stale\" in the figures of FL-FDMS (Wang and Xu 2023)",
        assumes: "that an old model still says something",
        keeps: "at the server: its last model",
        costs: "memory of clients x model",
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "substitute",
        name: "late",
        paper: "as in Yang et al. 2022 (anarchic) and Nguyen et al. 2022 (FedBuff)",
        assumes: "answers that come late and are not thrown away: world.after_deadline = \"late\", or serve.after_deadline",
        keeps: NOTHING,
        costs: "nothing beyond the answers",
        defaults: UNKNOWN,
    },
    MethodCard {
        table: "aggregate",
        name: "mean",
        paper: FEDAVG,
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: NOTHING,
        costs: "one sum of the model's size",
        defaults: NONE_OF_ITS_OWN,
    },
    MethodCard {
        table: "aggregate",
        name: "share",
        paper: "as in E3CS (Huang et al. 2022); \"average over all participants\" in FedAU (Wang and Ji 2024)",
        assumes: "nothing; the rarely heard count for less, and steps are shorter",
        keeps: NOTHING,
        costs: "one sum of the model's size",
        defaults: "server.learning_rate 10 in FedAU's comparison",
    },
    MethodCard {
        table: "server",
        name: "plain",
        paper: FEDAVG,
        assumes: NOTHING,
        keeps: NOTHING,
        costs: NOTHING,
        defaults: "rate 1",
    },
    MethodCard {
        table: "server",
        name: "amplified",
        paper: "Wang and Ji 2022, A Unified Analysis of Federated Learning with Arbitrary Client Participation",
        assumes: "that within a period everybody comes as often; a period is lengthened when it ends, even in a round without answers",
        keeps: NOTHING,
        costs: "one model more at the server",
        defaults: "every 500, factor 10",
    },
    MethodCard {
        table: "clip",
        name: "clip",
        paper: "folklore",
        assumes: "that honest answers are of alike lengths: clients that are far from the others, because they were away for long or hold other data, \
                  are shortened more, so too low a bound is a bias against them, and slows learning",
        keeps: "nothing; with times the lengths of the last rounds, whosever they are",
        costs: "one norm for each vector of an answer",
        defaults: NONE_OF_ITS_OWN,
    },
];
