//! Generates `crates/ebb-net/src/wire.rs` from `proto/ebbflow.proto`, with compilers written in Rust only:
//! `cargo run --manifest-path scripts/proto/Cargo.toml`. A test of `ebb-net` fails if this was forgotten.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn Error>> {
    let net = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/ebb-net");
    let files = protox::compile([net.join("proto/ebbflow.proto")], [net.join("proto")])?;
    let made = tempfile::tempdir()?;
    tonic_prost_build::configure()
        .bytes(".")
        .emit_rerun_if_changed(false)
        .out_dir(made.path())
        .compile_fds(files)?;
    let code = std::fs::read_to_string(made.path().join("ebbflow.v1.rs"))?;
    let proto = std::fs::read(net.join("proto/ebbflow.proto"))?;
    let digest: String = Sha256::digest(&proto).iter().map(|byte| format!("{byte:02x}")).collect();
    let file = net.join("src/wire.rs");
    std::fs::write(&file, format!("//! What travels, from a proto file whose SHA-256 is {digest}.\n\n{code}"))?;
    Command::new("rustfmt").arg("--edition=2024").arg(&file).status()?;
    Ok(())
}
