//! The lists of all methods by role, and of all recipes. Open: `Registry::with` adds one from elsewhere.

use std::sync::Arc;

use ebb_round::{Aggregator, LocalRule, Objective, Roles, Selector, ServerRule, Substitution};
use ebb_settings::{BuildContext, Entry, Settings, SettingsError, Tree, nearest};

use crate::recipes::{self, Recipe};
use crate::{aggregate, local, objective, select, server, substitute};

/// All methods and recipes that a run can name.
#[derive(Clone)]
pub struct Registry {
    /// Whose loss is minimised.
    pub objectives: Vec<Entry<dyn Objective>>,
    /// Whom to ask.
    pub selectors: Vec<Entry<dyn Selector>>,
    /// What a client does.
    pub locals: Vec<Entry<dyn LocalRule>>,
    /// Who stands in for the silent.
    pub substitutions: Vec<Entry<dyn Substitution>>,
    /// With what weight each counts.
    pub aggregators: Vec<Entry<dyn Aggregator>>,
    /// How the model moves.
    pub servers: Vec<Entry<dyn ServerRule>>,
    /// Published combinations.
    pub recipes: Vec<Recipe>,
}

impl Registry {
    /// Everything that comes with Ebbflow.
    pub fn standard() -> Registry {
        Registry {
            objectives: vec![objective::enrolled::ENTRY],
            selectors: vec![
                select::everyone::ENTRY,
                select::uniform::ENTRY,
                select::e3cs::ENTRY,
                select::fedcs::ENTRY,
                select::fedcs_oracle::ENTRY,
                select::pow_d::ENTRY,
                select::cpow_d::ENTRY,
                select::rpow_d::ENTRY,
                select::oort::ENTRY,
                select::round_robin::ENTRY,
                select::oldest_first::ENTRY,
                select::f3ast::ENTRY,
                select::cyclic::ENTRY,
                select::fast::ENTRY,
            ],
            locals: vec![
                local::sgd::ENTRY,
                local::fedprox::ENTRY,
                local::scaffold::ENTRY,
                local::amplified_scaffold::ENTRY,
                local::focus::ENTRY,
            ],
            substitutions: vec![
                substitute::nobody::ENTRY,
                substitute::friend::ENTRY,
                substitute::friend_oracle::ENTRY,
                substitute::last::UPDATE,
                substitute::last::MODEL,
                substitute::late::ENTRY,
                substitute::zero_model::ENTRY,
            ],
            aggregators: vec![
                aggregate::mean::ENTRY,
                aggregate::share::ENTRY,
                aggregate::schemes::A,
                aggregate::schemes::B,
                aggregate::schemes::C,
                aggregate::fednova::ENTRY,
                aggregate::inverse_probability::IPW,
                aggregate::inverse_probability::FEDAU,
                aggregate::inverse_probability::DEBIAS_COUNT,
                aggregate::mifa::ENTRY,
                aggregate::fedvarp::ENTRY,
                aggregate::fedstale::ENTRY,
                aggregate::mimic::ENTRY,
                aggregate::afl::CD,
                aggregate::afl::CS,
                aggregate::fedbuff::ENTRY,
                aggregate::median::ENTRY,
                aggregate::trimmed_mean::ENTRY,
                aggregate::krum::ENTRY,
            ],
            servers: vec![
                server::plain::ENTRY,
                server::scaffold::ENTRY,
                server::fedavgm::ENTRY,
                server::adaptive::ADAGRAD,
                server::adaptive::YOGI,
                server::adaptive::ADAM,
                server::amplified::ENTRY,
                server::amplified_scaffold::ENTRY,
                server::focus::ENTRY,
                server::fedawe::ENTRY,
                server::fedpbc::ENTRY,
            ],
            recipes: recipes::STANDARD.to_vec(),
        }
    }

    /// Adds a method or a recipe that lives elsewhere.
    ///
    /// # Panics
    /// When its name is taken: two methods of one name would make a record ambiguous.
    #[must_use]
    pub fn with(mut self, addition: impl Into<Addition>) -> Registry {
        fn add<T>(list: &mut Vec<T>, item: T, name: impl Fn(&T) -> &'static str) {
            let new = name(&item);
            assert!(
                list.iter().all(|known| name(known) != new),
                "there is already a \"{new}\" in the registry"
            );
            list.push(item);
        }
        match addition.into() {
            Addition::Objective(entry) => add(&mut self.objectives, entry, |entry| entry.name),
            Addition::Selector(entry) => add(&mut self.selectors, entry, |entry| entry.name),
            Addition::Local(entry) => add(&mut self.locals, entry, |entry| entry.name),
            Addition::Substitution(entry) => add(&mut self.substitutions, entry, |entry| entry.name),
            Addition::Aggregator(entry) => add(&mut self.aggregators, entry, |entry| entry.name),
            Addition::Server(entry) => add(&mut self.servers, entry, |entry| entry.name),
            Addition::Recipe(recipe) => add(&mut self.recipes, recipe, |recipe| recipe.name),
        }
        self
    }

    /// Every method, role by role.
    pub fn methods(&self) -> Vec<Method> {
        fn of<R: ?Sized>(role: &'static str, entries: &[Entry<R>]) -> impl Iterator<Item = Method> {
            entries.iter().map(move |&Entry { name, about, example, .. }| Method {
                role,
                name,
                about,
                example,
            })
        }
        of("objective", &self.objectives)
            .chain(of("select", &self.selectors))
            .chain(of("local", &self.locals))
            .chain(of("substitute", &self.substitutions))
            .chain(of("aggregate", &self.aggregators))
            .chain(of("server", &self.servers))
            .collect()
    }

    /// The settings with those of the recipe they name laid under them.
    pub fn with_recipe(&self, tree: Tree) -> Result<Tree, SettingsError> {
        if !tree.has("recipe") {
            return Ok(tree);
        }
        let Some(name) = tree.text("recipe") else {
            return Err(tree.error("recipe", "expected a name in quotes"));
        };
        let names = || self.recipes.iter().map(|recipe| recipe.name);
        let Some(recipe) = self.recipes.iter().find(|recipe| recipe.name == name) else {
            let hint =
                nearest(name, names()).map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
            let known = names().collect::<Vec<_>>().join(", ");
            return Err(tree.error("recipe", format!("there is no such recipe; {hint}known: {known}")));
        };
        let mut below = Tree::from_recipe(recipe.name, recipe.settings);
        below.overlay(tree);
        Ok(below)
    }

    /// Builds the six roles; a role that the settings do not name gets its default.
    pub fn build(&self, tree: &Tree, facts: BuildContext) -> Result<Roles, SettingsError> {
        Ok(Roles {
            objective: self.role(&self.objectives, tree, ROLES[0], facts)?,
            selector: self.role(&self.selectors, tree, ROLES[1], facts)?,
            local: Arc::from(self.role(&self.locals, tree, ROLES[2], facts)?),
            substitution: self.role(&self.substitutions, tree, ROLES[3], facts)?,
            aggregator: self.role(&self.aggregators, tree, ROLES[4], facts)?,
            server: self.role(&self.servers, tree, ROLES[5], facts)?,
        })
    }

    fn role<R: ?Sized>(
        &self,
        entries: &[Entry<R>],
        tree: &Tree,
        (table, default): (&str, &str),
        facts: BuildContext,
    ) -> Result<Box<R>, SettingsError> {
        ebb_settings::build(entries, &tree.table(table, facts).with_catalogue(self), Some(default))
    }

    /// The selector that a method goes around, from the registry that it is built from itself.
    pub fn inner_selector(
        settings: &Settings<'_>,
        default: &str,
    ) -> Result<Box<dyn Selector>, SettingsError> {
        match settings.catalogue::<Registry>() {
            Some(registry) => ebb_settings::build(&registry.selectors, settings, Some(default)),
            None => ebb_settings::build(&Registry::standard().selectors, settings, Some(default)),
        }
    }
}

/// What is said of a method in a registry.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// The table in which it is named.
    pub role: &'static str,
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Its settings as they could stand in a file, without `kind`.
    pub example: &'static str,
}

/// The tables in which a run chooses its methods, and the kind that each has if nothing else is said.
pub const ROLES: [(&str, &str); 6] = [
    ("objective", "enrolled"),
    ("select", "uniform"),
    ("local", "sgd"),
    ("substitute", "nobody"),
    ("aggregate", "mean"),
    ("server", "plain"),
];

/// Something to add to a registry.
pub enum Addition {
    /// Whose loss is minimised.
    Objective(Entry<dyn Objective>),
    /// Whom to ask.
    Selector(Entry<dyn Selector>),
    /// What a client does.
    Local(Entry<dyn LocalRule>),
    /// Who stands in for the silent.
    Substitution(Entry<dyn Substitution>),
    /// With what weight each counts.
    Aggregator(Entry<dyn Aggregator>),
    /// How the model moves.
    Server(Entry<dyn ServerRule>),
    /// A published combination.
    Recipe(Recipe),
}

macro_rules! addition {
    ($($variant:ident: $type:ty),* $(,)?) => {
        $(impl From<$type> for Addition {
            fn from(value: $type) -> Addition {
                Addition::$variant(value)
            }
        })*
    };
}

addition! {
    Objective: Entry<dyn Objective>,
    Selector: Entry<dyn Selector>,
    Local: Entry<dyn LocalRule>,
    Substitution: Entry<dyn Substitution>,
    Aggregator: Entry<dyn Aggregator>,
    Server: Entry<dyn ServerRule>,
    Recipe: Recipe,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use ebb_round::{Contribution, Round};

    use super::*;
    use crate::method_cards::STANDARD;
    use crate::testing::{World, aggregator, client_update_of, contribution};

    fn build(text: &str) -> Result<(), String> {
        let registry = Registry::standard();
        let tree = Tree::parse(text, "a.toml").unwrap();
        let facts = BuildContext { seed: 1, n_clients: 30, n_rounds: 10 };
        let tree = registry.with_recipe(tree).map_err(|error| error.to_string())?;
        registry.build(&tree, facts).map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_recipe_builds_from_its_name_and_a_learning_rate() {
        for recipe in recipes::STANDARD {
            let all = Tree::from_recipe(recipe.name, recipe.settings).text("select.kind") == Some("everyone");
            let cohort = if all { "" } else { "[select]\ncohort = 3" };
            build(&format!("recipe = \"{}\"\n{cohort}\n[local]\nlearning_rate = 0.1\nsteps = 2", recipe.name))
                .unwrap();
        }
    }

    /// The kinds that a registry names, and those of the two tables within the objective.
    fn kinds() -> impl Iterator<Item = (String, &'static str, &'static str)> {
        let arrivals = objective::arrivals::ALL.iter().map(|entry| ("arrivals", entry.name, entry.example));
        let departures =
            objective::departures::ALL.iter().map(|entry| ("departures", entry.name, entry.example));
        let inner =
            arrivals.chain(departures).map(|(part, name, text)| (format!("objective.{part}"), name, text));
        let methods = Registry::standard().methods().into_iter();
        methods.map(|method| (method.role.to_owned(), method.name, method.example)).chain(inner)
    }

    #[test]
    fn what_every_recipe_and_method_assumes_keeps_and_costs_is_given_once() {
        for recipe in recipes::STANDARD {
            for text in [recipe.paper, recipe.assumes, recipe.keeps, recipe.costs, recipe.defaults] {
                assert!(!text.is_empty(), "{}", recipe.name);
            }
        }
        for (table, name, _) in kinds() {
            let recipe = recipes::STANDARD.iter().any(|recipe| recipe.name == name);
            let own: Vec<_> = STANDARD.iter().filter(|own| own.table == table && own.name == name).collect();
            assert!(own.len() + usize::from(recipe) == 1, "{table} {name}");
            for own in own {
                for text in [own.paper, own.assumes, own.keeps, own.costs, own.defaults] {
                    assert!(!text.is_empty(), "{table} {name}");
                }
            }
        }
    }

    /// What stands in an example as if it held anyway does hold.
    #[test]
    fn examples_show_defaults_or_say_that_a_key_is_required_or_optional() {
        for (table, name, example) in kinds().filter(|(.., example)| !example.contains("all required")) {
            let resolved = |lines: Vec<&str>| {
                let local = if table == "local" { "" } else { "[local]\nlearning_rate = 0.1\nsteps = 2\n" };
                let select = if table == "select" { "" } else { "[select]\nkind = \"everyone\"\n" };
                let text = format!("{local}{select}[{table}]\nkind = \"{name}\"\n{}", lines.join("\n"));
                let tree = Tree::parse(&text, "a.toml").unwrap();
                let facts = BuildContext { seed: 1, n_clients: 100, n_rounds: 10 };
                let built = Registry::standard().build(&tree, facts);
                built.unwrap_or_else(|error| panic!("{table} {name}: {error}"));
                tree.resolved()
            };
            let required = example.lines().filter(|line| line.contains("required")).collect();
            let shown = example.lines().filter(|line| !line.contains("optional")).collect();
            assert_eq!(resolved(required), resolved(shown), "{table} {name}");
        }
    }

    #[test]
    fn every_example_builds() {
        for Method { role, name, example, .. } in Registry::standard().methods() {
            let local = if role == "local" { "" } else { "[local]\nlearning_rate = 0.1\nsteps = 2\n" };
            let select = if role == "select" { "" } else { "[select]\nkind = \"everyone\"\n" };
            build(&format!("{local}{select}[{role}]\nkind = \"{name}\"\n{example}")).unwrap();
        }
    }

    #[test]
    fn twice_the_updates_are_twice_the_aggregate() {
        let mut world = World::of(4);
        world.oracle_probabilities = vec![0.5; 4];
        for entry in Registry::standard().aggregators {
            let play = |by: f32| {
                let mut one = aggregator(entry, &entry.example.replace("buffer = 10", "buffer = 2")).unwrap();
                let rounds: [&[(usize, f32)]; 3] =
                    [&[(0, 1.0), (2, -3.0)], &[(1, 4.0), (2, 1.0)], &[(0, 7.0), (3, 2.0)]];
                let mut found = Vec::new();
                for (number, updates) in (0..).zip(rounds) {
                    let updates: Vec<_> =
                        updates.iter().map(|&(client, value)| contribution(client, by * value)).collect();
                    found.push(one.aggregate(&world.round(number), &updates).vector[0]);
                }
                found
            };
            let (once, twice) = (play(1.0), play(2.0));
            let linear = once.iter().zip(&twice).all(|(once, twice)| (2.0 * once - twice).abs() < 1e-5);
            assert!(linear, "{}: {once:?}, {twice:?}", entry.name);
        }
    }

    /// Everybody's update points along an axis of its own, so that the aggregate shows whose work is in it. Some do half of it,
    /// which counts for half, and the rate falls, so that what is remembered may count for less.
    #[test]
    fn aggregates_say_by_how_much_the_work_of_each_client_is_in_them() {
        let mut world = World::with_samples(&[1, 2, 3, 4]);
        world.oracle_probabilities = vec![0.5; 4];
        world.set_model(&[0.0; 4]);
        const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();
        let steps = |client: usize| if client == 2 { NonZeroU32::new(2).unwrap() } else { FOUR };
        let mut without_coefficients = Vec::new();
        for entry in Registry::standard().aggregators {
            let mut one = aggregator(entry, entry.example).unwrap();
            for (number, clients) in (0..).zip([vec![0, 2], vec![1, 2], vec![], vec![0, 3], vec![2]]) {
                let learning_rate = 0.1 / (number + 1) as f32;
                let along = |client: &usize| {
                    let mut axis = [0.0; 4];
                    axis[*client] = 1.0;
                    let mut answer = client_update_of(*client, number, &axis);
                    let update = Arc::make_mut(&mut answer.update);
                    (update.steps, update.steps_requested, update.learning_rate) =
                        (steps(*client), FOUR, learning_rate);
                    Contribution::own(&answer)
                };
                let came: Vec<_> = clients.iter().map(along).collect();
                let found = one.aggregate(&Round { learning_rate, ..world.round(number) }, &came);
                let Some(given) = found.coefficients else {
                    without_coefficients.push(entry.name);
                    break;
                };
                let mut reported = [0.0; 4];
                given.iter().for_each(|(client, weight)| reported[client.idx()] += weight);
                let done = |at: usize| f64::from(steps(at).get()) / f64::from(FOUR.get());
                let same =
                    |(at, said): (usize, &f64)| (done(at) * f64::from(found.vector[at]) - said).abs() < 1e-6;
                let same = reported.iter().enumerate().all(same);
                assert!(same, "{}, round {number}: {:?}, not {reported:?}", entry.name, found.vector);
            }
        }
        assert_eq!(without_coefficients, ["mimic", "fedbuff", "median", "trimmed-mean"]);
    }

    #[test]
    fn wrong_names_and_numbers_are_answered_with_the_remedy() {
        for (text, expected) in [
            (
                "recipe = \"fedavgg\"",
                "a.toml:1:1: recipe = \"fedavgg\": there is no such recipe; did you mean \"fedavg\"? known: full, dropout, zero-update, zero-model, stale-update, stale-model, fl-fdms, friend-oracle, fedavg, e3cs, fedprox, scaffold, scheme-a, scheme-b, scheme-c, fast-reboot, departures, fednova, mifa, fedvarp, mimic, fedstale, fedlaavg, afl-cd, afl-cs, ipw, fedau, f3ast, debias-count, focus, amplified-fedavg, amplified-scaffold, fedawe, fedpbc, fedbuff, cyclic, fast, fast-prox, fast-scaffold, fedavgm, fedadagrad, fedyogi, fedadam, fedcs, fedcs-oracle, pow-d, cpow-d, rpow-d, oort, round-robin, median, trimmed-mean, krum",
            ),
            (
                "[select]\nkind = \"unifrom\"",
                "a.toml:2:1: select.kind = \"unifrom\": there is no such kind; did you mean \"uniform\"? known: everyone, uniform, e3cs, fedcs, fedcs-oracle, pow-d, cpow-d, rpow-d, oort, round-robin, oldest-first, f3ast, cyclic, fast",
            ),
            (
                "recipe = \"fedavg\"\n[select]\ncohort = 40",
                "a.toml:3:1: select.cohort = 40: larger than the fleet; give at most its 30 clients",
            ),
        ] {
            assert_eq!(build(text).unwrap_err(), expected);
        }
    }

    #[test]
    #[should_panic(expected = "already a \"uniform\"")]
    fn a_name_cannot_be_taken_twice() {
        let _ = Registry::standard().with(select::uniform::ENTRY);
    }
}
