//! Ebbflow with a selector of our own, available in `ebbflow list`, `run`, `compare` and all other commands.

#![forbid(unsafe_code)]

mod rarest_first;

use std::process::ExitCode;

use ebbflow::Registry;

fn registry() -> Registry {
    Registry::standard().with(rarest_first::ENTRY)
}

fn main() -> ExitCode {
    ebbflow::cli::main(&registry())
}

#[cfg(test)]
mod tests {
    #[test]
    fn our_method_keeps_what_every_method_must() {
        let broken = ebbflow::conformance::check(&super::registry());
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }
}
