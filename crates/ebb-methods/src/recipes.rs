//! Published names as combinations of methods.

/// A published method: one choice for each role. A run's own settings take precedence over its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recipe {
    /// The name, as written after `recipe =`.
    pub name: &'static str,
    /// One line that completes the sentence "this recipe ...", or names the recipe that it varies.
    pub about: &'static str,
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
    /// The tables of the roles it chooses; roles it does not name keep their defaults.
    pub settings: &'static str,
    /// Whether it only concerns participation: under full participation it must give FedAvg's model.
    pub only_participation: bool,
}

/// The recipes that come with Ebbflow.
pub const STANDARD: &[Recipe] = &[
    Recipe {
        name: "full",
        about: "selects all clients and waits for all of them: the reference against which absences are measured",
        paper: "McMahan et al. 2017 (FedAvg), with full participation",
        assumes: "that every client returns its update in the end, within the run's patience",
        keeps: "nothing",
        costs: "one model down and one up for each client; waits for the slowest",
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
        about: "selects all clients; averages the updates that arrive by the deadline",
        paper: "\"Dropout\" in FL-FDMS (Wang and Xu 2023)",
        assumes: "nothing; clients that are absent more often count for less",
        keeps: "nothing",
        costs: "one model down for each client, one up for each update",
        defaults: "as fl-fdms, which is compared with it",
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
        about: "selects all clients; an absent one counts as an update of zero, so the weights are shares of the population",
        paper: "average over all participants, a baseline of FedAU (Wang and Ji 2024)",
        assumes: "nothing; clients that are often absent count for less, and steps are shorter",
        keeps: "nothing",
        costs: "one model down for each client, one up for each update",
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
        about: "selects all clients; an absent one counts as a model of zeros (a benchmark of FL-FDMS's authors)",
        paper: "a benchmark in the program of FL-FDMS's authors",
        assumes: "nothing; it shows the harm of a bad stand-in",
        keeps: "nothing",
        costs: "one model down for each client, one up for each update",
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
        about: "selects all clients; an absent one's last update is used again (\"Stale\" in the text of FL-FDMS)",
        paper: "\"Stale\" in the text of FL-FDMS (Wang and Xu 2023)",
        assumes: "that an old update is still informative",
        keeps: "at the server: its last update",
        costs: "one model down for each client, one up for each update; memory of clients x model",
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
        about: "selects all clients; an absent one's last model is used again (\"Stale\" in the plots of FL-FDMS)",
        paper: "\"Stale\" in the plots of FL-FDMS (Wang and Xu 2023)",
        assumes: "that an old model is still informative",
        keeps: "at the server: its last model",
        costs: "one model down for each client, one up for each update; memory of clients x model",
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
        about: "selects all clients; the most similar client's update substitutes an absent one's (Wang and Xu 2023)",
        paper: "Wang and Xu 2023, Friends to Help: Saving Federated Learning from Client Dropout; and Combating Client Dropout via Friend Model Substitution",
        assumes: "that every client has a friend with similar data that is available when it is not",
        keeps: "at the server: its similarity to each other client",
        costs: "one model down for each client, one up for each update; all updates of a round are held, and the inner product of each pair is taken",
        defaults: "20 or 40 clients, local learning rate 0.1, 1 to 5 epochs, batch 5 (MNIST), 20 or 200 (CIFAR-10), 500 rounds, server.learning_rate 1",
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
        about: "FL-FDMS that knows the true clusters: an oracle, for comparison",
        paper: "Wang and Xu 2023, with clusters known",
        assumes: "true clusters, which no server knows",
        keeps: "nothing",
        costs: "one model down for each client, one up for each update",
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
        about: "selects a uniform cohort; averages the updates that arrive by the deadline (McMahan et al. 2017)",
        paper: "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data",
        assumes: "nothing; clients that are absent more often count for less",
        keeps: "nothing",
        costs: "one model down for each selected client, one up for each update",
        defaults: "a tenth of the clients selected (C = 0.1), 1 to 20 epochs (E), batch 10 to all samples of a client (B)",
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
        about: "selects available clients more often, within a fairness quota; all others count as updates of zero (E3CS)",
        paper: "Huang et al. 2022, Stochastic Client Selection for Federated Learning with Volatile Clients",
        assumes: "that clients fail independently in each round, with unknown probabilities of their own",
        keeps: "at the server: one weight",
        costs: "O(cohort x log clients) to select; one model down for each selected client, one up for each update",
        defaults: "20 of 100 selected, eta (select.learning_rate) 0.5, quota 0, 0.5, 0.8 and \"inc\" (E3CS-0, E3CS-0.5, E3CS-0.8, E3CS-inc), local learning rate 0.01 with momentum 0.9, 1 to 4 epochs, batch 40",
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
        about: "FedAvg with a proximal term in the local objective (Li et al. 2020)",
        paper: "Li et al. 2020, Federated Optimization in Heterogeneous Networks",
        assumes: "nothing; clients that are absent more often count for less; partial work counts too",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "mu (local.proximal_mu) from 0.001 to 1",
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
        about: "FedAvg with control variates against client drift (Karimireddy et al. 2020)",
        paper: "Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        assumes: "stateful clients, selected uniformly; a fixed population: what a departed client added to the mean control variate stays there",
        keeps: "at the client: a control variate",
        costs: "twice the bytes of fedavg",
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
        about: "selects all clients; only whole updates count (scheme A of Ruan et al. 2021)",
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "nothing; only whole work counts",
        keeps: "nothing",
        costs: "one model down for each client, one up for each update",
        defaults: "local learning rate decaying as 1/t, batch 10 or 20, 200 rounds",
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
        about: "selects all clients; partial updates count as they are (scheme B of Ruan et al. 2021)",
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "that all clients do the same work on average; a client that does less counts for less",
        keeps: "nothing",
        costs: "one model down for each client, one up for each update",
        defaults: "local learning rate decaying as 1/t, batch 10 or 20, 200 rounds",
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
        about: "selects all clients; partial updates are scaled up to whole work (scheme C of Ruan et al. 2021)",
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "that a partial update points where the whole one would; updates after little work are lengthened most",
        keeps: "nothing",
        costs: "one model down for each client, one up for each update",
        defaults: "local learning rate decaying as 1/t, batch 10 or 20, 200 rounds",
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
        about: "scheme C; newcomers count for more at first, and the learning-rate schedule restarts on arrivals (Ruan et al. 2021)",
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "that newcomers arrive while the model is near its old optimum",
        keeps: "for newcomers, at the server: the round of their arrival",
        costs: "as scheme-c",
        defaults: "a boost from 3 to 1 of order 1/j^2; here: 1 + 2/j^2 in the j-th round",
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
        about: "scheme C; a departed client is excluded if enough rounds are left to make up for it (Ruan et al. 2021)",
        paper: "Ruan et al. 2021, Towards Flexible Device Participation in Federated Learning",
        assumes: "that departures are permanent, and the number of rounds is known",
        keeps: "at the server: its last losses",
        costs: "as scheme-c",
        defaults: "the paper gives only the order of the rule, without its constant; here: c = 1",
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
        about: "selects all clients; divides each update by its effective number of steps (Wang et al. 2020)",
        paper: "Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
        assumes: "clients selected in proportion to their shares",
        keeps: "nothing",
        costs: "one model down for each client, one up for each update",
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
        about: "selects all clients; averages every client's last update, however old (Gu et al. 2021)",
        paper: "Gu et al. 2021, Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
        assumes: "nothing about availability, except that no client is absent for too long",
        keeps: "at the server: its last update over its learning rate",
        costs: "one model down for each client, one up for each update; memory of clients x model",
        defaults: "learning rate 0.01 / (t + 1) (logistic regression) or 0.08 / (t + 1), 2 epochs, batch 100, weight_decay 0.001. No step until every client has returned an update; here: steps from the first round on unless aggregate.wait = true",
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
        about: "selects a cohort; corrects its mean by every client's last update (Jhunjhunwala et al. 2022)",
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
        about: "selects all clients; corrects each update by the client's last distance from the aggregate (Sun et al. 2024)",
        paper: "Sun, Mao and Zhang 2024, MimiC: Combating Client Dropouts in Federated Learning by Mimicking Central Updates",
        assumes: "nothing about availability; in the paper all clients return an update in the first round",
        keeps: "at the server: a correction of the model's size",
        costs: "one model down for each client, one up for each update; memory of clients x model",
        defaults: "30 clients, learning rate 0.01 decaying by 0.99 to 0.95 a round, 5 epochs, batch 64, 300 rounds. All clients return an update in the first round; here: any may be absent, and a client's first update is not corrected",
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
        about: "selects a cohort; corrects its sum by a fraction of every client's last update (Rodio and Neglia 2024)",
        paper: "Rodio and Neglia 2024, FedStale: leveraging stale client updates in federated learning",
        assumes: "participation probabilities that are known or estimated. The recipe's are inclusion probabilities given availability, and ignore absence: for those set aggregate.probabilities = \"given\", \"intervals\", \"counts\" or \"oracle\"",
        keeps: "at the server: its last update; two more numbers with probabilities = \"intervals\" or \"counts\"",
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
        about: "selects the clients whose last update is oldest; averages every client's last update (Yan et al. 2020)",
        paper: "Yan et al. 2020, Distributed Non-Convex Optimization with Sublinear Speedup under Intermittent Client Availability",
        assumes: "that no client is absent for too long",
        keeps: "at the server: its last update over its learning rate, and the round it arrived in",
        costs: "as fedavg; memory of clients x model",
        defaults: "1,000 clients, a tenth selected, 10 steps, learning rate 0.01",
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
        about: "clients train when they like; averages the steps of the updates that arrive (Yang et al. 2022)",
        paper: "Yang et al. 2022, Anarchic Federated Learning",
        assumes: "that all clients participate equally often on average, at any time and with any number of steps",
        keeps: "nothing",
        costs: "one model down for each client, one up for each update",
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
        about: "clients train when they like; averages every client's last steps (Yang et al. 2022)",
        paper: "Yang et al. 2022, Anarchic Federated Learning",
        assumes: "that no client is absent for too long",
        keeps: "at the server: its last mean step",
        costs: "one model down for each client, one up for each update; memory of clients x model",
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
        about: "selects a cohort; divides each update by its client's inclusion probability",
        paper: "Horvitz and Thompson 1952, as used for FedAvg with known probabilities",
        assumes: "known probabilities: the selector's, a list, or an oracle's. The recipe's are inclusion probabilities given availability, and ignore absence: for that set aggregate.probabilities = \"given\" or \"oracle\", or use fedau",
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
        about: "selects all clients; weights each update by the mean interval between its client's updates (Wang and Ji 2024)",
        paper: "Wang and Ji 2024, A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging",
        assumes: "that participation follows a stationary distribution",
        keeps: "at the server: two numbers",
        costs: "one model down for each client, one up for each update",
        defaults: "cut_off 50, 250 clients, 5 steps, batch 16, learning rate 0.1, server.learning_rate 1",
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
        about: "selects clients whose selection rate is low for their share; divides updates by that rate (Ribero et al. 2022)",
        paper: "Ribero, Vikalo and de Veciana 2022, Federated Learning Under Intermittent Client Availability and Time-Varying Communication Constraints",
        assumes: "that participation follows a stationary distribution",
        keeps: "at the server: its selection rate",
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
        about: "selects all clients; divides each update by the fraction of rounds its client took part in (Sun et al. 2025)",
        paper: "Sun et al. 2025, Debiasing Federated Learning with Correlated Client Participation",
        assumes: "that participation follows a stationary distribution",
        keeps: "at the server: two numbers",
        costs: "one model down for each client, one up for each update",
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
        about: "selects all clients; follows the sum of every client's last gradient (FOCUS, NeurIPS 2025)",
        paper: "FOCUS, NeurIPS 2025, with push-pull gradient tracking",
        assumes: "nothing about availability; a fixed population: what a departed client added to the sum stays there",
        keeps: "at the client: its last gradient",
        costs: "as dropout, with twice the bytes up",
        defaults: "32 clients, 3 steps, learning rate 0.002",
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
        about: "FedAvg that amplifies the model's movement over several rounds (Wang and Ji 2022)",
        paper: "Wang and Ji 2022, A Unified Analysis of Federated Learning with Arbitrary Client Participation",
        assumes: "that all clients participate equally often within a period. A period is amplified when it ends, even in a round without updates",
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
        about: "SCAFFOLD that renews its control variates once a period and amplifies the period's movement (Crawshaw and Liu 2024)",
        paper: "Crawshaw and Liu 2024, Federated Learning under Periodic Client Participation and Heterogeneous Data",
        assumes: "that all clients participate equally often within a period. A fixed population: what a departed client added to the mean control variate stays there. A period is amplified when it ends, even in a round without updates",
        keeps: "at the client: two control variates",
        costs: "twice the bytes of fedavg",
        defaults: "factor 1.5, learning rate divided by it",
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
        about: "clients continue from the model they last received; each update is scaled by the rounds missed (Xiang et al. 2024)",
        paper: "Xiang et al. 2024, Efficient Federated Learning against Heterogeneous and Non-stationary Client Unavailability",
        assumes: "nothing about availability, not even that it is stationary",
        keeps: "at the server: the model it last received",
        costs: "one model down for each client, one up for each update; one stored model for each distinct one",
        defaults: "100 clients, 10 steps, batch 128, learning rate 0.1 / sqrt(t/10 + 1), server.clip 0.5",
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
        about: "clients continue training while unavailable; averages the models that arrive (Xiang et al. 2023)",
        paper: "Xiang et al. 2023, Towards Bias Correction of FedAvg over Nonuniform and Time-Varying Communications",
        assumes: "clients that continue training while they are unavailable",
        keeps: "at the server: the model it last received",
        costs: "one model down for each client, one up for each update; every client trains in every round; one stored model for each distinct one",
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
        about: "steps whenever the buffer holds enough updates, however late they are (Nguyen et al. 2022)",
        paper: "Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation",
        assumes: "that late updates are kept (world.after_deadline = \"late\")",
        keeps: "nothing",
        costs: "one model down for each client that is not busy, one up for each update",
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
        assumes: "groups that are available in turn",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "not known here; 4 groups, as in the program of FAST's authors",
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
        about: "selects all available clients, and from time to time a uniform cohort that it waits for (FAST, IJCAI 2025)",
        paper: "FAST, Federated Average with Snapshot, IJCAI 2025",
        assumes: "that a uniform cohort can be completed by waiting for it",
        keeps: "nothing",
        costs: "as dropout; a snapshot waits for its slowest client, and for all of the run's patience if a selected one is down",
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
        assumes: "that a uniform cohort can be completed by waiting for it",
        keeps: "nothing",
        costs: "as dropout; a snapshot waits for its slowest client, and for all of the run's patience if a selected one is down",
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
        assumes: "that a uniform cohort can be completed by waiting for it. A fixed population: what a departed client added to the mean control variate stays there",
        keeps: "at the client: a control variate",
        costs: "twice the bytes of dropout; a snapshot waits for its slowest client, and for all of the run's patience if a selected one is down",
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
        assumes: "nothing; clients that are absent more often count for less",
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
        assumes: "nothing; clients that are absent more often count for less",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "tau from 1e-5 to 0.1, learning rates tuned",
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
        assumes: "nothing; clients that are absent more often count for less",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "beta1 0.9, beta2 0.99, tau 0.001, learning rates tuned",
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
        assumes: "nothing; clients that are absent more often count for less",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "beta1 0.9, beta2 0.99, tau 0.001, learning rates tuned",
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
        about: "probes a random fraction for speed; selects as many as can finish within the round (Nishio and Yonetani 2019)",
        paper: "Nishio and Yonetani 2019, Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge",
        assumes: "speeds that clients report truthfully",
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
        about: "always selects the clients most likely to be available: an oracle, FedCS as E3CS's authors define it",
        paper: "Huang et al. 2022 (E3CS), its omniscient baseline",
        assumes: "true success probabilities, which no server knows",
        keeps: "nothing",
        costs: "as fedavg",
        defaults: "20 of 100 selected",
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
        about: "selects the largest losses among candidates drawn by samples held (Cho et al. 2022)",
        paper: "Cho, Wang and Joshi 2022, Towards Understanding Biased Client Selection in Federated Learning (power of choice)",
        assumes: "nothing; clients that are absent more often count for less",
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
        about: "pow-d with losses estimated on one mini-batch (Cho et al. 2022)",
        paper: "Cho, Wang and Joshi 2022, Towards Understanding Biased Client Selection in Federated Learning (power of choice)",
        assumes: "nothing; clients that are absent more often count for less",
        keeps: "nothing",
        costs: "a probe of each candidate on a few samples, then as fedavg",
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
        about: "pow-d with the losses that candidates reported last (Cho et al. 2022)",
        paper: "Cho, Wang and Joshi 2022, Towards Understanding Biased Client Selection in Federated Learning (power of choice)",
        assumes: "nothing; clients that are absent more often count for less",
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
        about: "selects clients with high statistical utility, and explores unseen ones (Lai et al. 2021, without speeds)",
        paper: "Lai et al. 2021, Oort: Efficient Federated Learning via Guided Participant Selection",
        assumes: "that losses change slowly",
        keeps: "at the server: its utility and the round of its last selection",
        costs: "as fedavg",
        defaults: "explore 0.9 decaying by 0.95 to 0.98 a round to 0.2 or 0.3, cut-off 0.7 to 0.95, pacer every 20 rounds; here: no pacer, because it needs speeds",
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
        about: "selects available clients in turn, by number",
        paper: "folklore",
        assumes: "nothing; clients that are absent more often count for less",
        keeps: "at the server: nothing, except whose turn it is",
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
        about: "selects a random cohort; takes the coordinate-wise median of its updates (Yin et al. 2018)",
        paper: "Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        assumes: "that fewer than half of a round's updates are malicious, and that honest clients are similar. Where they differ, the median is biased towards the majority, and shares do not count",
        keeps: "nothing",
        costs: "as fedavg; all updates of a round are held, and every coordinate is sorted",
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
        about: "selects a random cohort; takes the coordinate-wise mean without the extremes (Yin et al. 2018)",
        paper: "Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        assumes: "that a round has fewer malicious updates than are trimmed at one end, and that honest clients are similar. Where they differ, the trimmed mean is biased towards the majority, and shares do not count",
        keeps: "nothing",
        costs: "as fedavg; all updates of a round are held, and every coordinate is sorted",
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
        about: "selects a random cohort; averages the updates closest to their neighbours (Blanchard et al. 2017)",
        paper: "Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
        assumes: "that at most f clients are malicious (the suspects), 2 f + 3 or more updates arrive, and honest clients are similar. The most dissimilar clients are left out round after round: the model is biased against them, and shares do not count",
        keeps: "nothing",
        costs: "as fedavg; all updates of a round are held, and all pairs are compared",
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
