//! Runs the tests of the kernels under valgrind. No kernel may access memory beyond its buffers, or branch on
//! uninitialised memory.

use std::error::Error;
use std::process::{Command, Stdio};

use crate::cargo;

/// The widest zone that valgrind can keep around a block, so that a moderate overrun does not land in the
/// next block.
const RUNNER: &str =
    r#"target."cfg(unix)".runner = ["valgrind", "-q", "--error-exitcode=1", "--redzone-size=4096"]"#;

/// Arguments of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the smallest tests, in the build of `cargo test --workspace`; otherwise all tests, in the release
    /// build
    #[arg(long)]
    quick: bool,
}

/// The features of xtask's own build, so that nothing is compiled once more.
const TESTS: &[&str] = &["test", "--locked", "-p", "ebb-train", "-p", "xtask", "--lib", "--config", RUNNER];

/// Fifty steps of a large network and a hundred networks of random shapes take longest, and their shapes
/// occur among the named networks. The named networks take as long as all the rest, so they run in parallel
/// with them.
const FILTERS: [&[&str]; 2] = [
    &[
        "--test-threads=1",
        "kernels::",
        "net::reference_tests::",
        "--skip",
        "smooth_networks",
        "--skip",
        "random_shapes",
        "--skip",
        NAMED_NETWORKS_FILTER,
    ],
    &["--test-threads=1", NAMED_NETWORKS_FILTER],
];

const NAMED_NETWORKS_FILTER: &str = "every_named_network";

/// Tests that end within seconds: each kernel by itself, and networks of one layer.
const QUICK_FILTERS: [&[&str]; 1] = [&[
    "--test-threads=1",
    "kernels::",
    "net::reference_tests::layers_on_their_own",
    "net::reference_tests::squared_error",
    "net::reference_tests::steps_follow_the_gradients",
]];

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let found = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    found.map_err(|error| format!("valgrind cannot be started: {error}; install it"))?;
    let path = widest_emulated();
    println!("the tests of the kernels under valgrind, up to the {path} path");
    let (which, profile): (&[&[&str]], &[&str]) =
        if args.quick { (&QUICK_FILTERS, &["--"]) } else { (&FILTERS, &["--release", "--"]) };
    let built = cargo().args(TESTS).args(profile).arg("--list").stdout(Stdio::null()).status()?;
    if !built.success() {
        return Err(format!("the tests cannot be built or listed ({built}); see above").into());
    }
    let run = |which: &&[&str]| {
        let mut test = cargo();
        test.args(TESTS).args(profile).args(*which).env("EBBFLOW_KERNELS", path);
        test.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let running: Vec<_> = which.iter().map(run).collect::<Result<_, _>>()?;
    let mut failed = Vec::new();
    for test in running {
        let done = test.wait_with_output()?;
        let (out, words) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        println!("{words}{out}");
        // A filter that matches no test would succeed.
        let ran = out.lines().any(|line| line.starts_with("running ") && line != "running 0 tests");
        if !done.status.success() || !ran {
            failed.push(done.status.to_string());
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => {
            Err(format!("a test failed, none ran, or valgrind found an error ({})", failed.join(", ")).into())
        }
    }
}

/// Valgrind has no AVX-512. AVX2 is requested by name, so that a test fails if it is missing.
fn widest_emulated() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return "avx2";
    }
    "portable"
}
