//! `ebbflow recompute`: recomputes a server's run from the updates in its journal, and compares the models.

use ebb_methods::Registry;
use ebb_net::JournalReplay;
use ebb_record::RunFolder;

use crate::CliError;
use crate::args::Recompute;
use crate::assemble::{Assembled, read_settings};
use crate::commands::serve::rules;
use crate::drive::play_round;
use crate::evaluator::RunEvaluator;
use crate::guard_settings::Protection;
use crate::output::{count, print_line};
use crate::selection_key::{SelectionKey, SelectionSource};
use crate::serve_settings::EvaluatedBy;

pub(crate) fn run(registry: &Registry, args: &Recompute) -> Result<(), CliError> {
    let folder = &args.run;
    let wrong = |message: String| CliError::Usage(format!("{}: {message}", folder.display()));
    let record = RunFolder::open(folder)?;
    let (tree, base) = read_settings(folder, &[], args.data_folder.data.as_deref())?;
    if !tree.has("serve.keep_updates")
        || tree.table("serve", ebb_settings::BuildContext::default()).flag("keep_updates") != Some(true)
    {
        return Err(wrong("the server kept no updates; serve with serve.keep_updates = true".to_owned()));
    }
    let threads = std::num::NonZeroUsize::MIN;
    let (mut run, table) = Assembled::for_network(registry, tree, &base, threads, Protection::AsWritten)?;
    if run.run_table.draws_by == Some(SelectionSource::Key) {
        run.set_selection_key(SelectionKey::open(folder, false)?);
    }
    let (recalled, fleet) =
        JournalReplay::open(folder, rules(&run, &table)).map_err(|error| wrong(error.to_string()))?;
    let mut run = run.with_fleet(fleet);
    if table.evaluated_by == EvaluatedBy::Clients {
        run.evaluator = RunEvaluator::Clients(
            recalled.client_evaluator(run.evaluator.every(), run.run_table.rounds.get()),
        );
    }
    let (mut n_rounds, mut n_updates) = (0_u64, 0_u64);
    for row in record.iter_rows()? {
        let row = row?;
        let (again, _) = play_round(&mut run)?;
        let line = |row| serde_json::to_string(row).expect("lists, texts and numbers always make JSON");
        if line(&again) != line(&row) {
            return Err(wrong(format!(
                "round {} differs from the record when recomputed from its updates",
                row.round
            )));
        }
        n_rounds += 1;
        n_updates += (row.n_whole() + row.partial_steps.len() + row.late.len()) as u64;
    }
    let model = ebb_record::read_model(&folder.join("model.safetensors"), run.layout())?;
    let bits = |model: &[f32]| model.iter().map(|parameter| parameter.to_bits()).collect::<Vec<_>>();
    if bits(&model) != bits(&run.engine.model().model) {
        return Err(wrong("the final model differs from the one recomputed from the updates".to_owned()));
    }
    let (rounds, updates) = (count(n_rounds, "round"), count(n_updates, "answer"));
    print_line(&format!(
        "{rounds} recomputed from {updates}: every row and the final model are equal to the bit"
    ))
}
