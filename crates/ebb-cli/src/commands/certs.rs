//! `ebbflow certs`: a private certificate authority, for trying out TLS.

use std::path::Path;

use ebb_net::tokens::keep_private;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::CliError;
use crate::args::Certs;
use crate::output::say;

pub(crate) fn run(args: &Certs) -> Result<(), CliError> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder).map_err(|error| CliError::file("creating", folder, error))?;
    if folder.join("ca.pem").exists() {
        return Err(CliError::Usage(format!(
            "{}: certificates are there already; give another folder",
            folder.display()
        )));
    }
    let wrong = |error: rcgen::Error| CliError::Usage(format!("making certificates: {error}"));
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Ebbflow trial authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().map_err(wrong)?;
    let ca = params.self_signed(&key).map_err(wrong)?;
    write(folder, "ca", &ca.pem(), &key)?;
    let issuer = Issuer::new(params, key);
    let signed = |name: &str, names: &[String], usage| {
        let mut params = CertificateParams::new(names).map_err(wrong)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().map_err(wrong)?;
        let certificate = params.signed_by(&key, &issuer).map_err(wrong)?;
        write(folder, name, &certificate.pem(), &key)
    };
    signed("server", &args.names, ExtendedKeyUsagePurpose::ServerAuth)?;
    for number in 0..args.clients {
        let name = format!("client-{number}");
        signed(&name, std::slice::from_ref(&name), ExtendedKeyUsagePurpose::ClientAuth)?;
    }
    // Paths in a configuration are relative to its own folder, which need not be this one.
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
    let folder = whole.display();
    say(&format!("[serve.tls]\ncertificate = \"{folder}/server.pem\"\nkey = \"{folder}/server.key\""))?;
    if args.clients > 0 {
        say(&format!("clients = \"{folder}/ca.pem\""))?;
    }
    let own = if args.clients > 0 { " --cert client-N.pem --key client-N.key" } else { "" };
    say(&format!(
        "\n# clients, each with a copy of these files and no other: ebbflow join https://... --ca ca.pem{own}"
    ))
}

fn write(folder: &Path, name: &str, certificate: &str, key: &KeyPair) -> Result<(), CliError> {
    let file = folder.join(format!("{name}.pem"));
    std::fs::write(&file, certificate).map_err(|error| CliError::file("writing", &file, error))?;
    let file = folder.join(format!("{name}.key"));
    keep_private(&file, key.serialize_pem().as_bytes())
        .map_err(|error| CliError::file("writing", &file, error))
}
