//! A run without data: a real engine, fleet and selector, with clients that train nothing.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ebb_methods::Registry;
use ebb_record::{Row, SelectionTally};
use ebb_round::{Engine, RunContext};
use ebb_settings::{BuildContext, Tree};
use ebb_sim::{SimFleet, World};
use ebb_train::backend::Threads;
use ebb_train::{NoEvaluation, StubTask, Task};
use serde::{Deserialize, Serialize};

use crate::CliError;
use crate::assemble::{RunTable, check_oracle_probabilities, check_rounds, known_tables, scheduled_rounds};

/// The local settings of clients that train nothing.
const STUB_SETTINGS: &str = "[local]\nkind = \"sgd\"\nlearning_rate = 1.0\nsteps = 1";

/// A run that selects clients and trains none.
pub(crate) struct SelectionOnlyRun {
    engine: Engine,
    fleet: SimFleet,
    task: Arc<StubTask>,
    /// The number of rounds.
    pub(crate) n_rounds: u32,
    /// The number of clients.
    pub(crate) n_clients: usize,
    /// The true probability of each client to respond when selected; empty where nobody knows it.
    pub(crate) oracle_probabilities: Vec<f64>,
    uses_losses: bool,
}

impl SelectionOnlyRun {
    /// Builds the run from `[run]`, `[world]`, `[select]` and `data.clients`; other tables are ignored.
    pub(crate) fn new(registry: &Registry, tree: &Tree) -> Result<SelectionOnlyRun, CliError> {
        #[derive(Serialize, Deserialize)]
        struct Data {
            clients: Option<NonZeroU32>,
        }
        let known = known_tables();
        tree.check_known_keys(&known)?;
        let mut tree = registry.with_recipe(tree.clone())?;
        let mut context = BuildContext::default();
        let data: Data = tree.table("data", context).parse_without(&[])?;
        let Some(n_clients) = data.clients else {
            let message = "missing; selection is simulated without data, so give the number of clients";
            return Err(tree.error("data.clients", message).into());
        };
        known
            .iter()
            .filter(|table| !["run", "world", "select"].contains(table))
            .for_each(|table| tree.remove(table));
        let run: RunTable = tree.table("run", context).parse()?;
        context.seed = u64::from(run.seed);
        context.n_rounds = run.rounds.get();
        context.n_clients = n_clients.get() as usize;
        let task = Arc::new(StubTask::new(context.n_clients));
        let world_context = BuildContext { n_rounds: scheduled_rounds(&tree, run.rounds.get()), ..context };
        let world = World::build(&tree.table("world", world_context), task.as_ref())?;
        check_rounds(&tree, &world, context.n_rounds)?;
        let mut complete = Tree::from_recipe("selection", STUB_SETTINGS);
        complete.overlay(tree);
        let mut roles = registry.build(&complete, context)?;
        let oracle_probabilities = world.oracle_probabilities(context.n_clients);
        check_oracle_probabilities(&complete, &roles, &oracle_probabilities)?;
        roles.server.start_from(task.initial());
        let local = Arc::clone(&roles.local);
        let uses_losses = roles.selector.needs_losses();
        let run_context = RunContext {
            seed: context.seed,
            deadline_s: world.deadline_s(),
            threads: 1,
            trained_ranges: task.layout().trained_ranges(),
            oracle_clusters: Vec::new(),
            oracle_probabilities: oracle_probabilities.clone(),
            measures_oracle_error: false,
            norm_bound: Default::default(),
            guard: None,
            reported_quantile: None,
        };
        let backend = Box::new(Threads::new(NonZeroUsize::MIN));
        let fleet = SimFleet::new(world, task.clone(), local, backend, context.seed);
        Ok(SelectionOnlyRun {
            engine: Engine::new(roles, run_context),
            fleet,
            task,
            n_rounds: context.n_rounds,
            n_clients: context.n_clients,
            oracle_probabilities,
            uses_losses,
        })
    }

    /// Remarks on the world.
    pub(crate) fn remarks(&self) -> &[String] {
        self.fleet.world().remarks()
    }

    /// Plays all rounds and shows the tally after each; `None` if it was stopped.
    pub(crate) fn play(
        &mut self,
        stop: &AtomicBool,
        mut after: impl FnMut(u32, &SelectionTally),
    ) -> Result<Option<SelectionTally>, CliError> {
        let mut tally = SelectionTally::default();
        while self.engine.next() < self.n_rounds {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let outcome = self.engine.round(&mut self.fleet, &mut NoEvaluation)?;
            tally.add(&Row::new(self.engine.census(), &outcome, None));
            after(self.engine.next(), &tally);
        }
        Ok(Some(tally))
    }

    /// Whether the selector used what clients report, in probes or with their updates.
    pub(crate) fn used_reports(&self) -> bool {
        self.uses_losses || self.task.were_losses_requested()
    }
}
