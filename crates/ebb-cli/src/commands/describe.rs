//! `ebbflow describe`: what a recipe or method does, and its settings.

use ebb_methods::registry::ROLES;
use ebb_methods::{Recipe, Registry};
use ebb_settings::{Tree, nearest};

use crate::CliError;
use crate::args::Describe;
use crate::commands::list::{everything, indent};
use crate::output::{bold, say};

pub(crate) fn run(registry: &Registry, args: &Describe) -> Result<(), CliError> {
    let all = everything(registry);
    let found: Vec<_> = all.iter().filter(|named| named.name == args.name).collect();
    if found.is_empty() {
        let hint = nearest(&args.name, all.iter().map(|named| named.name))
            .map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
        return Err(CliError::Usage(format!("there is no \"{}\"; {hint}See: ebbflow list", args.name)));
    }
    for (at, named) in found.iter().enumerate() {
        if at > 0 {
            say("")?;
        }
        say(&format!("{}  ({})", bold(named.name), named.list))?;
        say(&format!("{}\n", named.about))?;
        match named.table {
            None => {
                if let Some(recipe) = registry.recipes.iter().find(|recipe| recipe.name == named.name) {
                    tell(recipe)?;
                }
                say(&format!("recipe = \"{}\" stands for", named.name))?;
                say(&indent(&named.example, 4))?;
                let chosen = Tree::of_recipe(named.name, &named.example);
                let others = ROLES.iter().filter(|(role, _)| !chosen.has(role));
                let others: Vec<_> = others.map(|(role, kind)| format!("{role} {kind}")).collect();
                say(&format!("roles it does not name: {}", others.join(", ")))?;
                for method in registry.methods() {
                    let names = chosen.text(&format!("{}.kind", method.role)) == Some(method.name);
                    if names && !method.example.is_empty() {
                        say(&format!("\nsettings of {} {}:", method.role, method.name))?;
                        say(&indent(method.example, 4))?;
                    }
                }
            }
            Some(table) => {
                say(&format!("answers: {} In a configuration:", capital(named.question)))?;
                say(&indent(&named.example, 4))?;
                say(&format!("any key can be changed with --set {table}.KEY=VALUE"))?;
                let usual = ROLES.iter().find(|(role, _)| *role == table).map(|(_, kind)| *kind);
                let takes = |recipe: &&Recipe| {
                    let chosen = Tree::of_recipe(recipe.name, recipe.settings);
                    chosen.text(&format!("{table}.kind")).or(usual) == Some(named.name)
                };
                let takers: Vec<_> =
                    registry.recipes.iter().filter(takes).map(|recipe| recipe.name).collect();
                if !takers.is_empty() {
                    say(&format!("recipes that take it: {}", takers.join(", ")))?;
                }
            }
        }
    }
    Ok(())
}

/// What is known of a recipe beyond its settings.
fn tell(recipe: &Recipe) -> Result<(), CliError> {
    for (what, text) in [
        ("published:", recipe.paper),
        ("it assumes:", recipe.assumes),
        ("kept per client:", recipe.keeps),
        ("a round costs:", recipe.costs),
        ("the authors took:", recipe.defaults),
    ] {
        if !text.is_empty() {
            say(&format!("{what:18}{text}"))?;
        }
    }
    say("")
}

fn capital(text: &str) -> String {
    let mut text = text.trim_end_matches('?').to_owned();
    text.push('.');
    text
}
