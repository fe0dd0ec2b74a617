//! Published names as combinations of methods.

/// A published method: one choice for each role, as settings that a run's own are laid over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recipe {
    /// The name, as written after `recipe =`.
    pub name: &'static str,
    /// One line that completes the sentence "this one ...".
    pub about: &'static str,
    /// Who published it, and where.
    pub paper: &'static str,
    /// What it assumes about who takes part.
    pub assumes: &'static str,
    /// What is kept for each client between rounds.
    pub keeps: &'static str,
    /// What a round costs.
    pub costs: &'static str,
    /// What the authors took, or that it is not known here.
    pub defaults: &'static str,
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
        paper: "McMahan et al. 2017 (FedAvg), with everybody",
        assumes: "that everybody comes in the end, within the run's patience",
        keeps: "nothing",
        costs: "one model down and one up for everybody; waits for the slowest",
        defaults: "nothing of its own; see fedavg",
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
        paper: "\"Dropout\" in FL-FDMS (Wang and Xu 2023)",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "nothing",
        costs: "one model down for everybody, one up for each answer",
        defaults: "as fl-fdms, which is measured against it",
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
        paper: "average over all participants, a baseline of FedAU (Wang and Ji 2024)",
        assumes: "nothing; the rarely heard count for less, and steps are shorter",
        keeps: "nothing",
        costs: "one model down for everybody, one up for each answer",
        defaults: "server.learning_rate 10 in FedAU's comparison",
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
        paper: "a benchmark in the program of FL-FDMS's authors",
        assumes: "nothing; it shows what harm a bad stand-in does",
        keeps: "nothing",
        costs: "one model down for everybody, one up for each answer",
        defaults: "as fl-fdms",
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
        paper: "\"Stale\" in the text of FL-FDMS (Wang and Xu 2023)",
        assumes: "that an old update still says something",
        keeps: "at the server: its last update",
        costs: "one model down for everybody, one up for each answer; memory of clients x model",
        defaults: "as fl-fdms",
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
        paper: "\"Stale\" in the figures of FL-FDMS (Wang and Xu 2023)",
        assumes: "that an old model still says something",
        keeps: "at the server: its last model",
        costs: "one model down for everybody, one up for each answer; memory of clients x model",
        defaults: "as fl-fdms",
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
        paper: "Wang and Xu 2023, Friends to Help: Saving Federated Learning from Client Dropout; and Combating Client Dropout via Friend Model Substitution",
        assumes: "that every client has a friend with alike data who is there when it is not",
        keeps: "at the server: how alike it is to each other client",
        costs: "one model down for everybody, one up for each answer; all updates of a round are held, and inner products of all pairs that answered are taken",
        defaults: "20 or 40 clients, local rate 0.1, 1 to 5 epochs, batch 5 (MNIST), 20 or 200 (CIFAR-10), 500 rounds, server.learning_rate 1",
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
        paper: "Wang and Xu 2023, with clusters known",
        assumes: "true clusters, which no server knows",
        keeps: "nothing",
        costs: "one model down for everybody, one up for each answer",
        defaults: "nothing of its own; see fl-fdms",
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
        paper: "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "nothing",
        costs: "one model down for each asked, one up for each answer",
        defaults: "a tenth of the clients asked (C = 0.1), 1 to 20 epochs (E), batch 10 to all that a client holds (B)",
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
        paper: "Huang et al. 2022, Stochastic Client Selection for Federated Learning with Volatile Clients",
        assumes: "that clients fail with chances of their own, unknown and drawn anew each round",
        keeps: "at the server: one weight",
        costs: "O(asked x log clients) to select; one model down for each asked, one up for each answer",
        defaults: "20 of 100 asked, eta (here rate) 0.5, quota 0, 0.5, 0.8 and \"inc\" (E3CS-0, E3CS-0.5, E3CS-0.8, E3CS-inc), local rate 0.01 with momentum 0.9, 1 to 4 epochs, batch 40",
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
        paper: "Li et al. 2020, Federated Optimization in Heterogeneous Networks",
        assumes: "nothing; whoever is silent more often counts for less; partial work is welcome",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "mu from 0.001 to 1",
        settings: r#"
            [select]
            kind = "uniform"
            [local]
            kind = "fedprox"
            proximal_mu = 0.01
            [aggregate]
            kind = "mean"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "scaffold",
        about: "FedAvg whose clients correct their drift by control variates (Karimireddy et al. 2020)",
        paper: "Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        assumes: "clients that keep their state, drawn uniformly; a fixed population: what a leaver added to the mean of the variates stays there",
        keeps: "at the client: a control variate",
        costs: "twice fedavg's bytes",
        defaults: "option II, server.learning_rate 1",
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
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "nothing; only whole work counts",
        keeps: "nothing",
        costs: "one model down for everybody, one up for each answer",
        defaults: "local rate falling as 1/t, batch 10 or 20, 200 rounds",
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
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "that all do as much work on average; who does less counts for less",
        keeps: "nothing",
        costs: "one model down for everybody, one up for each answer",
        defaults: "local rate falling as 1/t, batch 10 or 20, 200 rounds",
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
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "that a little work leads where more would; steps of who did little are lengthened",
        keeps: "nothing",
        costs: "one model down for everybody, one up for each answer",
        defaults: "local rate falling as 1/t, batch 10 or 20, 200 rounds",
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
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "that newcomers arrive while the model is near its old optimum",
        keeps: "for newcomers, at the server: when they came",
        costs: "as scheme-c",
        defaults: "a boost from 3 to 1 by the order of 1/j^2; here: 1 + 2/j^2 in the j-th round",
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
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "that those who leave do so for good, and the length of the run is known",
        keeps: "at the server: its last losses",
        costs: "as scheme-c",
        defaults: "only the order of the rule is printed, without its constant; here: c = 1",
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
        paper: "Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
        assumes: "clients drawn in proportion to what they count",
        keeps: "nothing",
        costs: "one model down for everybody, one up for each answer",
        defaults: "momentum 0 or 0.9, mu 0 or above",
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
        paper: "Gu et al. 2021, Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
        assumes: "nothing about who is there; that nobody is away for too long",
        keeps: "at the server: its last update over its rate",
        costs: "one model down for everybody, one up for each answer; memory of clients x model",
        defaults: "rate 0.01 / (t + 1) for logistic regression or 0.08 / (t + 1), 2 epochs, batch 100, weight_decay 0.001; no step until all were heard; here: steps from the first round on unless aggregate.wait = true",
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
        paper: "Jhunjhunwala et al. 2022, FedVARP: Tackling the Variance Due to Partial Client Participation in Federated Learning",
        assumes: "a cohort drawn uniformly",
        keeps: "at the server: its last update",
        costs: "as fedavg; memory of clients x model",
        defaults: "not known here",
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
        paper: "Sun, Mao and Zhang 2024, MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central Updates",
        assumes: "nothing about who is there; the paper has everybody answer in the first round",
        keeps: "at the server: a correction of the model's size",
        costs: "one model down for everybody, one up for each answer; memory of clients x model",
        defaults: "30 clients, rate 0.01 falling by 0.99 to 0.95 a round, 5 epochs, batch 64, 300 rounds; everybody answers in the first round; here: whoever does, and an answer of somebody who was never heard is not corrected",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "mimic"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedstale",
        about: "asks a cohort and corrects its sum by part of what everybody sent last (Rodio and Neglia 2024)",
        paper: "Rodio and Neglia 2024, FedStale: leveraging stale client updates in federated learning",
        assumes: "chances to take part that are known, or that intervals tell; those of the recipe are with what chance a client that is up is asked, and know nothing of absence: against that give aggregate.probabilities = \"given\", \"intervals\", \"counts\" or \"oracle\"",
        keeps: "at the server: its last update; with probabilities = \"intervals\" or \"counts\" two numbers more",
        costs: "as fedavg; memory of clients x model",
        defaults: "beta tuned from 0 to 1",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "fedstale"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedlaavg",
        about: "asks those that answered longest ago and counts everybody's last update (Yan et al. 2020)",
        paper: "Yan et al. 2020, Distributed Non-Convex Optimization with Sublinear Speedup under Intermittent Client Availability",
        assumes: "that nobody is away for too long",
        keeps: "at the server: its last update over its rate, when it was last heard",
        costs: "as fedavg; memory of clients x model",
        defaults: "1,000 clients, a tenth asked, 10 steps, rate 0.01",
        settings: r#"
            [select]
            kind = "oldest-first"
            [aggregate]
            kind = "mifa"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "afl-cd",
        about: "lets clients come when they like and averages the steps of those that did (Yang et al. 2022)",
        paper: "Yang et al. 2022, Anarchic Federated Learning",
        assumes: "that all come as often on average, whenever they like, with as many steps as they like",
        keeps: "nothing",
        costs: "one model down for everybody, one up for each answer",
        defaults: "not known here",
        settings: r#"
            [select]
            kind = "everyone"
            [substitute]
            kind = "late"
            [aggregate]
            kind = "afl-cd"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "afl-cs",
        about: "lets clients come when they like and averages everybody's last steps (Yang et al. 2022)",
        paper: "Yang et al. 2022, Anarchic Federated Learning",
        assumes: "that nobody is away for too long",
        keeps: "at the server: its last mean step",
        costs: "one model down for everybody, one up for each answer; memory of clients x model",
        defaults: "not known here",
        settings: r#"
            [select]
            kind = "everyone"
            [substitute]
            kind = "late"
            [aggregate]
            kind = "afl-cs"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "ipw",
        about: "asks a cohort and divides each answer by the chance with which it was asked",
        paper: "Horvitz and Thompson 1952, as used for FedAvg with known chances",
        assumes: "chances that are known: the selector's, a list, or an oracle's; those of the recipe are with what chance a client that is up is asked, and know nothing of absence: against that give aggregate.probabilities = \"given\" or \"oracle\", or take fedau",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "server.learning_rate 1",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "ipw"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedau",
        about: "asks everybody and counts each answer for the rounds between answers (Wang and Ji 2024)",
        paper: "Wang and Ji 2024, A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging",
        assumes: "that who is there follows a law that stays",
        keeps: "at the server: two numbers",
        costs: "one model down for everybody, one up for each answer",
        defaults: "cut_off 50, 250 clients, 5 steps, batch 16, rate 0.1, server.learning_rate 1",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "fedau"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "f3ast",
        about: "asks those that were asked least often for what they count, and divides by how often (Ribero et al. 2022)",
        paper: "Ribero, Vikalo and de Veciana 2022, Federated Learning Under Intermittent Client Availability and Time-Varying Communication Constraints",
        assumes: "that who is there follows a law that stays",
        keeps: "at the server: how often it is asked",
        costs: "as fedavg; O(clients) to select",
        defaults: "pace about 0.001",
        settings: r#"
            [select]
            kind = "f3ast"
            [aggregate]
            kind = "ipw"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "debias-count",
        about: "asks everybody and divides each answer by the share of rounds in which its client answered (Sun et al. 2025)",
        paper: "Sun et al. 2025, Debiasing Federated Learning with Correlated Client Participation",
        assumes: "that who is there follows a law that stays",
        keeps: "at the server: two numbers",
        costs: "one model down for everybody, one up for each answer",
        defaults: "not known here",
        settings: r#"
            [select]
            kind = "everyone"
            [aggregate]
            kind = "debias-count"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "focus",
        about: "asks everybody and follows the sum of everybody's last gradient (FOCUS, NeurIPS 2025)",
        paper: "FOCUS, NeurIPS 2025, with push-pull gradient tracking",
        assumes: "nothing about who is there; a fixed population: what a leaver added to the sum stays there",
        keeps: "at the client: its last gradient",
        costs: "as dropout, and twice its bytes up",
        defaults: "32 clients, 3 steps, rate 0.002",
        settings: r#"
            [select]
            kind = "everyone"
            [local]
            kind = "focus"
            [server]
            kind = "focus"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "amplified-fedavg",
        about: "FedAvg that lengthens what several rounds came to together (Wang and Ji 2022)",
        paper: "Wang and Ji 2022, A Unified Analysis of Federated Learning with Arbitrary Client Participation",
        assumes: "that within a period everybody comes as often; a period is lengthened when it ends, even in a round without answers",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "every 500, factor 10, 250 clients in 5 groups",
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
        name: "amplified-scaffold",
        about: "SCAFFOLD that renews its variates once a period and lengthens what it came to (Crawshaw and Liu 2024)",
        paper: "Crawshaw and Liu 2024, Federated Learning under Periodic Client Participation and Heterogeneous Data",
        assumes: "that within a period everybody comes as often, and a fixed population: what a leaver added to the mean of the variates stays there; a period is lengthened when it ends, even in a round without answers",
        keeps: "at the client: two control variates",
        costs: "twice fedavg's bytes",
        defaults: "factor 1.5, the rate divided by it",
        settings: r#"
            [select]
            kind = "uniform"
            [local]
            kind = "amplified-scaffold"
            [aggregate]
            kind = "mean"
            [server]
            kind = "amplified-scaffold"
            every = 20
            factor = 1.5
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fedawe",
        about: "lets clients go on from the model they were last given, counting for the rounds they missed (Xiang et al. 2024)",
        paper: "Xiang et al. 2024, Efficient Federated Learning against Heterogeneous and Non-stationary Client Unavailability",
        assumes: "nothing about who is there, not even a law that stays",
        keeps: "at the server: which model it was last given",
        costs: "one model down for everybody, one up for each answer; as many models as differ",
        defaults: "100 clients, 10 steps, batch 128, rate 0.1 / sqrt(t/10 + 1), clip 0.5",
        settings: r#"
            [select]
            kind = "everyone"
            [server]
            kind = "fedawe"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedpbc",
        about: "lets clients train on while they are away, and averages those that come (Xiang et al. 2023)",
        paper: "Xiang et al. 2023, Towards Bias Correction of FedAvg over Nonuniform and Time-Varying Communications",
        assumes: "clients that train on while they are away",
        keeps: "at the server: which model it was last given",
        costs: "one model down for everybody, one up for each answer; the work of all rounds, by everybody; as many models as differ",
        defaults: "not known here",
        settings: r#"
            [select]
            kind = "everyone"
            [server]
            kind = "fedpbc"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fedbuff",
        about: "moves whenever so many updates have come in, however late (Nguyen et al. 2022)",
        paper: "Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation",
        assumes: "answers that come late and are not thrown away (world.after_deadline late)",
        keeps: "nothing",
        costs: "one model down for everybody that is free, one up for each answer",
        defaults: "buffer 10",
        settings: r#"
            [select]
            kind = "everyone"
            [substitute]
            kind = "late"
            [aggregate]
            kind = "fedbuff"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "cyclic",
        about: "FedAvg with groups of clients that take turns (Cho et al. 2023)",
        paper: "Cho et al. 2023, On the Convergence of Federated Averaging with Cyclic Client Participation",
        assumes: "groups that are there in turn",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "not known here; here: 4 groups, as in the program of FAST's authors",
        settings: r#"
            [select]
            kind = "cyclic"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fast",
        about: "takes whoever turns up, and now and then a uniform cohort that it waits for (FAST, IJCAI 2025)",
        paper: "FAST, Federated Average with Snapshot, IJCAI 2025",
        assumes: "that a uniform cohort can be had now and then by waiting for it",
        keeps: "nothing",
        costs: "as dropout; a snapshot waits for its slowest, and as long as the run's patience if one of those asked is down",
        defaults: "10 of 100, adaptive 1 or 7, 10 steps, batch 128",
        settings: r#"
            [select]
            kind = "fast"
            around = { kind = "everyone" }
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "fast-prox",
        about: "FAST with FedProx at the clients",
        paper: "FAST, Federated Average with Snapshot, IJCAI 2025, with Li et al. 2020",
        assumes: "that a uniform cohort can be had now and then by waiting for it",
        keeps: "nothing",
        costs: "as dropout; a snapshot waits for its slowest, and as long as the run's patience if one of those asked is down",
        defaults: "10 of 100, adaptive 1 or 7, 10 steps, batch 128",
        settings: r#"
            [select]
            kind = "fast"
            around = { kind = "everyone" }
            [local]
            kind = "fedprox"
            proximal_mu = 0.01
            [aggregate]
            kind = "mean"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fast-scaffold",
        about: "FAST with SCAFFOLD",
        paper: "FAST, Federated Average with Snapshot, IJCAI 2025, with Karimireddy et al. 2020",
        assumes: "that a uniform cohort can be had now and then by waiting for it; a fixed population: what a leaver added to the mean of the variates stays there",
        keeps: "at the client: a control variate",
        costs: "twice dropout's bytes; a snapshot waits for its slowest, and as long as the run's patience if one of those asked is down",
        defaults: "10 of 100, adaptive 1 or 7, 10 steps, batch 128",
        settings: r#"
            [select]
            kind = "fast"
            around = { kind = "everyone" }
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
        name: "fedavgm",
        about: "FedAvg with momentum at the server (Hsu et al. 2019)",
        paper: "Hsu et al. 2019, Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "momentum 0.9",
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
        paper: "Reddi et al. 2021, Adaptive Federated Optimization",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "tau from 1e-5 to 0.1, rates tuned",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "mean"
            [server]
            kind = "fedadagrad"
            learning_rate = 0.01
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fedyogi",
        about: "FedAvg with Yogi at the server (Reddi et al. 2021)",
        paper: "Reddi et al. 2021, Adaptive Federated Optimization",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "beta1 0.9, beta2 0.99, tau 0.001, rates tuned",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "mean"
            [server]
            kind = "fedyogi"
            learning_rate = 0.01
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fedadam",
        about: "FedAvg with Adam at the server (Reddi et al. 2021)",
        paper: "Reddi et al. 2021, Adaptive Federated Optimization",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "beta1 0.9, beta2 0.99, tau 0.001, rates tuned",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "mean"
            [server]
            kind = "fedadam"
            learning_rate = 0.01
        "#,
        only_participation: false,
    },
    Recipe {
        name: "fedcs",
        about: "asks as many as fit into the round, of a random share that says how fast it is (Nishio and Yonetani 2019)",
        paper: "Nishio and Yonetani 2019, Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge",
        assumes: "speeds that clients tell the truth about",
        keeps: "nothing",
        costs: "a probe of each candidate, then as fedavg",
        defaults: "deadline of 3 minutes a round",
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
        paper: "Huang et al. 2022 (E3CS), its omniscient rival",
        assumes: "true chances to answer, which no server knows",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "20 of 100 asked",
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
        paper: "Cho, Wang and Joshi 2022, Towards Understanding Biased Client Selection in Federated Learning (power of choice)",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "nothing",
        costs: "a probe of each candidate, then as fedavg",
        defaults: "candidates 2 to 10 times the cohort",
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
        paper: "Cho, Wang and Joshi 2022, Towards Understanding Biased Client Selection in Federated Learning (power of choice)",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "nothing",
        costs: "a probe of few samples of each candidate, then as fedavg",
        defaults: "candidates 2 to 10 times the cohort",
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
        paper: "Cho, Wang and Joshi 2022, Towards Understanding Biased Client Selection in Federated Learning (power of choice)",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "at the server: its last loss",
        costs: "as fedavg",
        defaults: "candidates 2 to 10 times the cohort",
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
        paper: "Lai et al. 2021, Oort: Efficient Federated Learning via Guided Participant Selection",
        assumes: "that losses stay for a while",
        keeps: "at the server: its utility and when it was last asked",
        costs: "as fedavg",
        defaults: "explore 0.9 falling by 0.95 to 0.98 a round to 0.2 or 0.3, cut-off 0.7 to 0.95, pacer every 20 rounds; here: no pacer, for it goes by speeds",
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
        paper: "folklore",
        assumes: "nothing; whoever is silent more often counts for less",
        keeps: "at the server: nothing, but whose turn it is",
        costs: "as fedavg",
        defaults: "nothing of its own",
        settings: r#"
            [select]
            kind = "round-robin"
            [aggregate]
            kind = "mean"
        "#,
        only_participation: true,
    },
    Recipe {
        name: "median",
        about: "asks a random cohort and takes the median of the answers in every coordinate (Yin et al. 2018)",
        paper: "Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        assumes: "that fewer than half of the answers of a round lie, and that honest clients are alike; where they differ, the median is biased to what most have in common, and shares do not count",
        keeps: "nothing",
        costs: "as fedavg; all answers of a round are held, and every coordinate is put in order",
        defaults: "not known here",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "median"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "trimmed-mean",
        about: "asks a random cohort and takes the mean of the answers in every coordinate without the ends (Yin et al. 2018)",
        paper: "Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        assumes: "that fewer answers of a round lie than are trimmed at one end, and that honest clients are alike; where they differ, the mean of the middle is biased to what most have in common, and shares do not count",
        keeps: "nothing",
        costs: "as fedavg; all answers of a round are held, and every coordinate is put in order",
        defaults: "not known here",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "trimmed-mean"
        "#,
        only_participation: false,
    },
    Recipe {
        name: "krum",
        about: "asks a random cohort and takes the mean of the answers that lie closest to their neighbours (Blanchard et al. 2017)",
        paper: "Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
        assumes: "that at most the suspects lie, 2 f + 3 or more answers with f suspects, and that honest clients are alike; where they differ, whoever is unlike most is left out round after round, so that the model is biased against them, and shares do not count",
        keeps: "nothing",
        costs: "as fedavg; all answers of a round are held, and all pairs are compared",
        defaults: "not known here",
        settings: r#"
            [select]
            kind = "uniform"
            [aggregate]
            kind = "krum"
        "#,
        only_participation: false,
    },
];
