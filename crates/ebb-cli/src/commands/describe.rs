//! `ebbflow describe`: what a recipe or method does, and its settings.

use ebb_methods::registry::ROLES;
use ebb_methods::{Recipe, Registry, method_cards};
use ebb_settings::{Tree, nearest};

use crate::CliError;
use crate::args::Describe;
use crate::commands::list::{ListEntry, all_entries, indent};
use crate::output::{bold, print_line};

pub(crate) fn run(registry: &Registry, args: &Describe) -> Result<(), CliError> {
    let all = all_entries(registry);
    let found: Vec<_> = all.iter().filter(|named| named.name == args.name).collect();
    if found.is_empty() {
        return Err(CliError::Usage(format!(
            "nothing is named \"{}\"; {}",
            args.name,
            suggest_other_names(registry, &all, &args.name)
        )));
    }
    let recipe = registry.recipes.iter().find(|recipe| recipe.name == args.name);
    for (at, named) in found.iter().enumerate() {
        if at > 0 {
            print_line("")?;
        }
        print_line(&format!("{}  ({})", bold(named.name), named.list))?;
        print_line(&format!("{}\n", named.about))?;
        match named.table {
            None => {
                if let Some(recipe) = recipe {
                    let Recipe { paper, assumes, keeps, costs, defaults, .. } = *recipe;
                    print_method_card([paper, assumes, keeps, costs, defaults])?;
                }
                print_line(&format!("recipe = \"{}\" stands for", named.name))?;
                print_line(&indent(&named.example, 4))?;
                let chosen = Tree::from_recipe(named.name, &named.example);
                let others = ROLES.iter().filter(|(role, _)| !chosen.has(role));
                let others: Vec<_> = others.map(|(role, kind)| format!("{role} {kind}")).collect();
                print_line(&format!("roles with their defaults: {}", others.join(", ")))?;
                for method in &all {
                    let Some(table) = method.table else { continue };
                    let settings: Vec<_> = method.example.lines().skip(2).collect();
                    if chosen.text(&format!("{table}.kind")) == Some(method.name) && !settings.is_empty() {
                        print_line(&format!("\nsettings of {table} {}:", method.name))?;
                        print_line(&indent(&settings.join("\n"), 4))?;
                    }
                }
            }
            Some(table) => {
                let card = |own: &&method_cards::MethodCard| own.table == table && own.name == named.name;
                if let Some(card) = method_cards::STANDARD.iter().find(card) {
                    print_method_card([card.paper, card.assumes, card.keeps, card.costs, card.defaults])?;
                }
                print_line(&format!("answers: {} In a configuration:", as_sentence(named.question)))?;
                print_line(&indent(&named.example, 4))?;
                print_line(&format!("change any key with --set {table}.KEY=VALUE"))?;
                let usual = ROLES.iter().find(|(role, _)| *role == table).map(|(_, kind)| *kind);
                let takes = |recipe: &&Recipe| {
                    let chosen = Tree::from_recipe(recipe.name, recipe.settings);
                    chosen.text(&format!("{table}.kind")).or(usual) == Some(named.name)
                };
                let takers: Vec<_> =
                    registry.recipes.iter().filter(takes).map(|recipe| recipe.name).collect();
                if !takers.is_empty() {
                    print_line(&format!("recipes that take it: {}", takers.join(", ")))?;
                }
            }
        }
    }
    Ok(())
}

/// Prints the method card: what is known of a recipe or a method beyond its settings.
fn print_method_card(texts: [&str; 5]) -> Result<(), CliError> {
    let words = ["published:", "it assumes:", "kept per client:", "a round costs:", "the authors used:"];
    for (what, text) in words.into_iter().zip(texts) {
        let text = if text.is_empty() { "not recorded here" } else { text };
        print_line(&format!("{what:18}{text}"))?;
    }
    print_line("")
}

/// Suggestions for an unknown name: a list, entries that mention it, or names of similar spelling.
fn suggest_other_names(registry: &Registry, all: &[ListEntry], name: &str) -> String {
    if let Some(named) = all.iter().find(|named| named.list == name) {
        return format!("this is the name of a list. See: ebbflow list {}", named.list);
    }
    let is_word = |text: &str| {
        text.split(|letter: char| !letter.is_alphanumeric() && !"-._".contains(letter))
            .any(|word| word.trim_matches('.').eq_ignore_ascii_case(name))
    };
    let mentions =
        |named: &&ListEntry| named.table.is_some() && (is_word(named.about) || is_word(&named.example));
    let recipes = registry.recipes.iter().filter(|recipe| is_word(recipe.defaults)).map(|recipe| recipe.name);
    let mut mentioned: Vec<_> = all.iter().filter(mentions).map(|named| named.name).chain(recipes).collect();
    mentioned.dedup();
    if !mentioned.is_empty() && !name.is_empty() {
        mentioned.truncate(6);
        return format!(
            "settings of other entries mention it. See: ebbflow describe {}",
            mentioned.join(", ")
        );
    }
    let hint = nearest(name, all.iter().map(|named| named.name))
        .map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
    format!("{hint}See: ebbflow list")
}

fn as_sentence(text: &str) -> String {
    let mut text = text.trim_end_matches('?').to_owned();
    text.push('.');
    text
}
