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
];
