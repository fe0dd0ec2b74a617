//! Runs all checks that a commit must pass, up to the first failure.

use std::error::Error;

use crate::cargo;

struct Step {
    arguments: &'static [&'static str],
    variable: Option<(&'static str, &'static str)>,
}

const STEPS: [Step; 4] = [
    Step { arguments: &["fmt", "--all", "--check"], variable: None },
    Step {
        arguments: &["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"],
        variable: None,
    },
    Step { arguments: &["test", "--workspace"], variable: None },
    Step {
        arguments: &["doc", "--locked", "--workspace", "--no-deps"],
        variable: Some(("RUSTDOCFLAGS", "-Dwarnings")),
    },
];

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    for step in &STEPS {
        let name = step.name();
        println!("=== {name}");
        let status = cargo().args(step.arguments).envs(step.variable).status();
        let status = status.map_err(|error| format!("starting {name}: {error}"))?;
        if !status.success() {
            return Err(format!("{name} failed ({status}); later steps did not run").into());
        }
    }
    println!("=== all {} steps passed", STEPS.len());
    Ok(())
}

impl Step {
    /// The step as a command line.
    fn name(&self) -> String {
        let variable = self.variable.map(|(name, value)| format!("{name}={value} ")).unwrap_or_default();
        format!("{variable}cargo {}", self.arguments.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_named_as_it_could_be_typed() {
        assert_eq!(STEPS[0].name(), "cargo fmt --all --check");
        assert_eq!(STEPS[3].name(), "RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps");
    }
}
