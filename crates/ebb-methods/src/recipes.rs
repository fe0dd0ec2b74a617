//! Published names as combinations of methods.

/// A published method: one choice for each role, as settings that a run's own are laid over.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// The name, as written after `recipe =`.
    pub name: &'static str,
    /// One line that completes the sentence "this one ...".
    pub about: &'static str,
    /// The tables of the roles it chooses; roles it does not name keep their defaults.
    pub settings: &'static str,
    /// Whether it only concerns participation: when everybody answers in full it must give FedAvg's model.
    pub only_participation: bool,
}

/// The recipes that come with Ebbflow.
pub const STANDARD: &[Recipe] = &[
    Recipe {
        name: "full",
        about: "waits for everybody in every round: what absences cost is measured against it",
        settings: r#"
            [select]
            kind = "everyone"
            wait = "everyone"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "dropout",
        about: "asks everybody and averages whoever answers by the deadline",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "zero-update",
        about: "asks everybody and counts the silent as an update of zero: the denominator stays the population",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "share"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "zero-model",
        about: "asks everybody and counts the silent as a model of zeros (a benchmark of FL-FDMS's authors)",
        settings: r#"
            [select]
            kind = "everyone"
            [substitute]
            kind = "zero-model"
            [aggregate]
            kind = "share"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "stale-update",
        about: "asks everybody and repeats the last update of the silent (\"Stale\" in the text of FL-FDMS)",
        settings: r#"
            [select]
            kind = "everyone"
            [substitute]
            kind = "last-update"
            [aggregate]
            kind = "share"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "stale-model",
        about: "asks everybody and repeats the last model of the silent (\"Stale\" in the figures of FL-FDMS)",
        settings: r#"
            [select]
            kind = "everyone"
            [substitute]
            kind = "last-model"
            [aggregate]
            kind = "share"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fl-fdms",
        about: "asks everybody and lets the most alike stand in for the silent (Wang and Xu 2023)",
        settings: r#"
            [select]
            kind = "everyone"
            [substitute]
            kind = "friend"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "friend-oracle",
        about: "FL-FDMS that knows the true clusters: an oracle, to compare with",
        settings: r#"
            [select]
            kind = "everyone"
            [substitute]
            kind = "friend-oracle"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedavg",
        about: "asks a uniform cohort and averages whoever answers (McMahan et al. 2017)",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "e3cs",
        about: "asks those more often that tend to be there, within a quota; the model stands in for all others (E3CS)",
        settings: r#"
            [select]
            kind = "e3cs"
            [aggregate]
            kind = "share"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedprox",
        about: "FedAvg whose clients are held near the model they started from (Li et al. 2020)",
        settings: r#"
            [select]
            kind = "uniform"
            [local]
            kind = "fedprox"
            mu = 0.01
            [aggregate]
            kind = "mean"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "scaffold",
        about: "FedAvg whose clients correct their drift by control variates (Karimireddy et al. 2020)",
        settings: r#"
            [select]
            kind = "uniform"
            [local]
            kind = "scaffold"
            [aggregate]
            kind = "mean"
            [server]
            kind = "scaffold"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "scheme-a",
        about: "asks everybody and counts only those that did all the work (scheme A of Ruan et al. 2021)",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "scheme-a"
            [server]
            clock = "shift"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "scheme-b",
        about: "asks everybody and counts whatever came back as it is (scheme B of Ruan et al. 2021)",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "scheme-b"
            [server]
            clock = "shift"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "scheme-c",
        about: "asks everybody and scales half-done work up to the whole (scheme C of Ruan et al. 2021)",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "scheme-c"
            [server]
            clock = "shift"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fast-reboot",
        about: "scheme C whose newcomers count for more at first, and the rate starts anew when they come (Ruan et al. 2021)",
        settings: r#"
            [objective.arrivals]
            kind = "fast-reboot"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "scheme-c"
            [server]
            clock = "shift"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "departures",
        about: "scheme C that goes on without a leaver if enough rounds are left to make up for it (Ruan et al. 2021)",
        settings: r#"
            [objective.departures]
            kind = "estimate"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "scheme-c"
            [server]
            clock = "shift"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fednova",
        about: "asks everybody and divides each update by how far its steps reach (Wang et al. 2020)",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "fednova"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "mifa",
        about: "asks everybody and counts everybody's last update, however old (Gu et al. 2021)",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "mifa"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedvarp",
        about: "asks a cohort and corrects its mean by what everybody sent last (Jhunjhunwala et al. 2022)",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "fedvarp"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "mimic",
        about: "asks everybody and corrects each answer by how far it was from the aggregate last time (Sun et al. 2024)",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "mimic"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedau",
        about: "asks everybody and counts each answer for the rounds between answers (Wang and Ji 2024)",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "fedau"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "amplified-fedavg",
        about: "FedAvg that lengthens what several rounds came to together (Wang and Ji 2022)",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "mean"
            [server]
            kind = "amplified"
            every = 500
            factor = 10.0
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fedavgm",
        about: "FedAvg with momentum at the server (Hsu et al. 2019)",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "mean"
            [server]
            kind = "fedavgm"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fedadagrad",
        about: "FedAvg with Adagrad at the server (Reddi et al. 2021)",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "mean"
            [server]
            kind = "fedadagrad"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fedyogi",
        about: "FedAvg with Yogi at the server (Reddi et al. 2021)",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "mean"
            [server]
            kind = "fedyogi"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fedadam",
        about: "FedAvg with Adam at the server (Reddi et al. 2021)",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "mean"
            [server]
            kind = "fedadam"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fedcs",
        about: "asks as many as fit into the round, of a random share that says how fast it is (Nishio and Yonetani 2019)",
        settings: r#"
            [select]
            kind = "fedcs"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedcs-oracle",
        about: "always asks those that are most likely to be there: an oracle, FedCS as E3CS's authors have it",
        settings: r#"
            [select]
            kind = "fedcs-oracle"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "pow-d",
        about: "asks the largest losses among candidates drawn by size (Cho et al. 2022)",
        settings: r#"
            [select]
            kind = "pow-d"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "cpow-d",
        about: "pow-d whose candidates take their loss over one mini-batch (Cho et al. 2022)",
        settings: r#"
            [select]
            kind = "cpow-d"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "rpow-d",
        about: "pow-d by the losses that candidates reported last (Cho et al. 2022)",
        settings: r#"
            [select]
            kind = "rpow-d"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "oort",
        about: "asks those with much to learn from, and some never heard (Lai et al. 2021, without speeds)",
        settings: r#"
            [select]
            kind = "oort"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "round-robin",
        about: "asks those that are up in turn, by id",
        settings: r#"
            [select]
            kind = "round-robin"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
];
