//! Every method of the registry passes the conformance check, and faulty methods fail it.

use ebbflow::conformance::check;
use ebbflow::{
    Aggregator, Census, Cohort, Contribution, Entry, Probes, Recipe, Registry, Retention, Round, Selector,
    stateless,
};

#[test]
fn every_method_keeps_its_promises() {
    let broken = check(&Registry::standard());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Fails unless the check finds a violation that contains these words.
fn found_out(registry: Registry, words: &str) {
    let broken = check(&registry);
    assert!(
        broken.iter().any(|problem| problem.contains(words)),
        "not found: {words}\n{}",
        broken.join("\n")
    );
}

/// A selector that selects one more client every round, and loses its count when the run resumes.
struct Forgetful {
    n_selected: usize,
}

impl Selector for Forgetful {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        self.n_selected += 1;
        Cohort::by_deadline(Census::draw(round.census.up(), self.n_selected, &mut round.rng("select")))
    }
}

stateless!(Forgetful);

#[test]
fn a_selector_that_forgets_is_found_out() {
    let entry: Entry<dyn Selector> = Entry {
        name: "forgetful",
        about: "",
        example: "",
        build: |_| Ok(Box::new(Forgetful { n_selected: 0 })),
    };
    found_out(
        Registry::standard().with(entry),
        "select forgetful, everybody answers in full, 5 clients: resumed after round",
    );
}

/// A mean that divides by the number of updates even if there are none, and halves every weight.
struct Careless;

impl Aggregator for Careless {
    fn retention(&self) -> Retention {
        Retention::KeepAll
    }
    fn weigh(&mut self, _round: &Round<'_>, _contribution: &Contribution) -> f64 {
        0.5
    }
    fn scale(&mut self, _round: &Round<'_>, _total: f64, contributions: &[Contribution]) -> f64 {
        1.0 / contributions.len() as f64
    }
}

stateless!(Careless);

const CARELESS: Entry<dyn Aggregator> =
    Entry { name: "careless", about: "", example: "", build: |_| Ok(Box::new(Careless)) };

#[test]
fn an_aggregator_that_divides_by_zero_updates_is_found_out() {
    found_out(
        Registry::standard().with(CARELESS),
        "aggregate careless, no client ever responds, 5 clients: the model is not finite",
    );
}

#[test]
fn a_recipe_that_is_not_fedavg_when_all_respond_is_found_out() {
    let recipe = Recipe {
        name: "careless",
        about: "",
        settings: "[select]\nkind = \"everyone\"\n[aggregate]\nkind = \"careless\"",
        only_participation: true,
        ..Recipe::default()
    };
    found_out(
        Registry::standard().with(CARELESS).with(recipe),
        "recipe careless: all 5 clients answer in full, yet",
    );
}

/// A selector that selects its first client twice.
struct Doubled;

impl Selector for Doubled {
    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let up = round.up();
        Cohort::by_deadline(up.iter().chain(up.first()).copied())
    }
}

stateless!(Doubled);

#[test]
#[should_panic(expected = "the selector returned client 0 twice")]
fn a_selector_that_picks_twice_is_stopped() {
    let entry: Entry<dyn Selector> =
        Entry { name: "doubled", about: "", example: "", build: |_| Ok(Box::new(Doubled)) };
    check(&Registry::standard().with(entry));
}

/// E3CS with every sampler, among all clients and among some.
#[test]
fn e3cs_works_with_every_sampler() {
    let combinations = [
        ("one after the other, among those up", "among = \"up\"\nquota = 0.0"),
        ("dep-round", "sampler = \"dep-round\"\nquota = 0.3"),
        ("dep-round, among those up", "sampler = \"dep-round\"\namong = \"up\"\nquota = \"inc\""),
        (
            "systematic",
            "sampler = \"systematic\"\nquota = { linear = [0.0, 1.0] }\nlearning_rate = \"optimal\"",
        ),
        ("poisson", "sampler = \"poisson\"\nquota = [[1, 0.0], [3, 0.9]]\nclip = 1.0"),
    ];
    let mut registry = Registry::standard();
    registry.recipes.clear();
    for (name, settings) in combinations {
        let settings = format!("[select]\nkind = \"e3cs\"\n{settings}\n[aggregate]\nkind = \"share\"").leak();
        registry = registry.with(Recipe {
            name,
            about: "",
            settings,
            only_participation: true,
            ..Recipe::default()
        });
    }
    let broken = check(&registry);
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Friends with every local rule, with a cohort, and with all optional settings.
#[test]
fn friends_go_with_other_methods() {
    let combinations = [
        (
            "friend and fedprox",
            "[local]\nkind = \"fedprox\"\nproximal_mu = 0.1\n[select]\nkind = \"everyone\"\n[substitute]\nkind = \"friend\"",
        ),
        (
            "friend and scaffold",
            "[local]\nkind = \"scaffold\"\n[server]\nkind = \"scaffold\"\n[select]\nkind = \"everyone\"\n[substitute]\nkind = \"friend\"",
        ),
        (
            "friend in a cohort",
            "[select]\nkind = \"uniform\"\ncohort = 3\namong = \"enrolled\"\n[substitute]\nkind = \"friend\"",
        ),
        (
            "friend for all that are not asked",
            "[select]\nkind = \"uniform\"\ncohort = 3\n[substitute]\nkind = \"friend\"\ncover = \"objective\"",
        ),
        (
            "friend in races",
            "[select]\nkind = \"everyone\"\n[substitute]\nkind = \"friend\"\nraces = { factor = 0.05, beta = 1.0 }",
        ),
        (
            "friend by sketches",
            "[select]\nkind = \"everyone\"\n[substitute]\nkind = \"friend\"\nsketch = { buckets = 2 }\nfriends = 2\nmax_stand_ins = 1\nhalf_life = 2.0",
        ),
        (
            "friend by distance, shares",
            "[select]\nkind = \"everyone\"\n[substitute]\nkind = \"friend\"\nsimilarity = \"distance\"\n[aggregate]\nkind = \"share\"",
        ),
    ];
    let mut registry = Registry::standard();
    registry.recipes.clear();
    for (name, settings) in combinations {
        let only_participation = !settings.contains("[local]");
        registry =
            registry.with(Recipe { name, about: "", settings, only_participation, ..Recipe::default() });
    }
    let broken = check(&registry);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
