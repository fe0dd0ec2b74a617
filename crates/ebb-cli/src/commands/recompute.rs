//! `ebbflow recompute`: a server's run once more, from the updates that its journal kept.

use ebb_methods::Registry;
use ebb_net::Recalled;
use ebb_record::RunFolder;

use crate::CliError;
use crate::args::Recompute;
use crate::assemble::{Assembled, read_settings};
use crate::commands::serve::rules;
use crate::draws::{DrawKey, DrawsBy};
use crate::drive::play;
use crate::guarding::Protection;
use crate::judge::Judge;
use crate::output::{count, say};
use crate::serving::JudgedBy;

pub(crate) fn run(registry: &Registry, args: &Recompute) -> Result<(), CliError> {
    let folder = &args.run;
    let wrong = |message: String| CliError::Usage(format!("{}: {message}", folder.display()));
    let record = RunFolder::open(folder)?;
    let (tree, base) = read_settings(folder, &[], args.place.data.as_deref())?;
    if !tree.has("serve.keep_updates")
        || tree.table("serve", ebb_settings::BuildContext::default()).flag("keep_updates") != Some(true)
    {
        return Err(wrong("its updates were not kept; that takes serve.keep_updates = true".to_owned()));
    }
    let threads = std::num::NonZeroUsize::MIN;
    let (mut run, table) = Assembled::for_network(registry, tree, &base, threads, Protection::AsWritten)?;
    if run.run.draws_by == Some(DrawsBy::Key) {
        run.draw_by(DrawKey::open(folder, false)?);
    }
    let (recalled, fleet) =
        Recalled::open(folder, rules(&run, &table)).map_err(|error| wrong(error.to_string()))?;
    let mut run = run.with_fleet(fleet);
    if table.judged_by == JudgedBy::Clients {
        run.evaluator = Judge::Clients(recalled.judge(run.evaluator.every(), run.run.rounds.get()));
    }
    let (mut n_rounds, mut n_answers) = (0_u64, 0_u64);
    for row in record.iter_rows()? {
        let row = row?;
        let (again, _) = play(&mut run)?;
        let line = |row| serde_json::to_string(row).expect("lists, texts and numbers always make JSON");
        if line(&again) != line(&row) {
            return Err(wrong(format!("round {} is recorded otherwise than its updates make it", row.round)));
        }
        n_rounds += 1;
        n_answers += (row.n_whole() + row.partial_steps.len() + row.late.len()) as u64;
    }
    let model = ebb_record::read_model(&folder.join("model.safetensors"), run.layout())?;
    let bits = |model: &[f32]| model.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
    if bits(&model) != bits(&run.engine.model().model) {
        return Err(wrong("the final model is not the one that its updates make".to_owned()));
    }
    let (rounds, answers) = (count(n_rounds, "round"), count(n_answers, "answer"));
    say(&format!(
        "{rounds} recomputed from {answers}: every row and the final model are the same, to the bit"
    ))
}
