//! `ebbflow certs`: a private certificate authority, certificates of the server and its clients, and their
//! renewal.
//!
//! The authority's key is kept apart from the server's files: its holder can make certificates that the whole
//! fleet trusts. Only this file's entry reads the clock; the functions below take the time as an argument.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ebb_net::tokens::{random_bytes, write_private};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SerialNumber, SubjectPublicKeyInfo, date_time_ymd,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

use crate::CliError;
use crate::args::{Certs, CertsCommand, Renew};
use crate::output::{print_line, print_message};

/// How long an authority and its certificates last, in days.
const AUTHORITY_DAYS: u64 = 3650;
const SIGNED_DAYS: u64 = 365;
const DAY_S: u64 = 86_400;

/// How far the clocks of other machines may be behind, in seconds.
const CLOCK_SKEW_S: u64 = 3600;

/// The name of the authority's files, without extension.
const CA: &str = "ca";
const SERVER: &str = "server";

pub(crate) fn run(args: &Certs) -> Result<(), CliError> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    match &args.command {
        Some(CertsCommand::Renew(renew)) => {
            for line in renew_certificates(renew, now_s)? {
                print_message(&line);
            }
            print_message(
                "the keys are unchanged. A running server reloads its certificate; copy each client's certificate to that client",
            );
            Ok(())
        }
        None => {
            let folder = args.folder.as_deref().expect("required without a subcommand");
            let authority = authority_folder(folder, args.ca.as_deref());
            make_certificates(folder, &authority, &args.names, args.clients, now_s)?;
            print_next_steps(folder, &authority, args.clients)
        }
    }
}

/// Makes an authority, and the certificates of the server and its clients.
fn make_certificates(
    folder: &Path,
    authority: &Path,
    names: &[String],
    n_clients: u32,
    now_s: u64,
) -> Result<(), CliError> {
    for there in [folder, authority] {
        if there.join("ca.pem").exists() {
            return Err(CliError::Usage(format!(
                "{}: the folder already has certificates; renew them with: ebbflow certs renew {}, or give another folder",
                there.display(),
                folder.display()
            )));
        }
    }
    create(folder)?;
    create(authority)?;
    restrict_to_owner(authority)?;
    let key = KeyPair::generate().map_err(certificate_error)?;
    let mut params = CertificateParams::default();
    // A random suffix: two authorities with the same name would be mistaken for one another.
    let unique_suffix: [u8; 4] = random_bytes();
    let name = format!("Ebbflow authority {}", ebb_net::tokens::hex(&unique_suffix));
    params.distinguished_name.push(DnType::CommonName, name);
    // It signs end certificates, but no other authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now_s, now_s + AUTHORITY_DAYS * DAY_S);
    let certificate = params.self_signed(&key).map_err(certificate_error)?.pem();
    write_key(authority, CA, &key)?;
    write_certificate(authority, CA, &certificate)?;
    write_certificate(folder, CA, &certificate)?;
    let authority = Authority::open(authority, now_s)?;
    let make_signed = |name: &str, names: &[String]| {
        let key = KeyPair::generate().map_err(certificate_error)?;
        write_key(folder, name, &key)?;
        authority.sign(folder, name, names, &key, now_s)
    };
    make_signed(SERVER, names)?;
    (0..n_clients).try_for_each(|number| make_signed(&client_file_stem(number), &[client_file_stem(number)]))
}

/// Renews the certificates of an existing authority. They keep their keys, because clients are bound to
/// theirs. Returns one line a certificate.
fn renew_certificates(args: &Renew, now_s: u64) -> Result<Vec<String>, CliError> {
    let folder = &args.folder;
    let authority = Authority::open(&authority_folder(folder, args.ca.as_deref()), now_s)?;
    let mut made = Vec::new();
    for name in signed_names(folder)? {
        let existing = ExistingCertificate::read(&folder.join(format!("{name}.pem")))?;
        let names = if name == SERVER && !args.names.is_empty() { &args.names } else { &existing.names };
        authority.sign(folder, &name, names, &existing.key, now_s)?;
        made.push(format!("{name}.pem: until {}", authority.expiry_date(now_s)));
    }
    for name in (0..args.clients).map(client_file_stem) {
        if !folder.join(format!("{name}.pem")).exists() {
            let key = KeyPair::generate().map_err(certificate_error)?;
            write_key(folder, &name, &key)?;
            authority.sign(folder, &name, std::slice::from_ref(&name), &key, now_s)?;
            made.push(format!("{name}.pem: new, until {}", authority.expiry_date(now_s)));
        }
    }
    Ok(made)
}

fn client_file_stem(number: u32) -> String {
    format!("client-{number}")
}

/// The certificates in a folder that the authority signed, without their extension.
fn signed_names(folder: &Path) -> Result<Vec<String>, CliError> {
    let entries = std::fs::read_dir(folder).map_err(|error| CliError::file("reading", folder, error))?;
    let mut names: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".pem")?.to_owned()))
        .filter(|name| name == SERVER || name.starts_with("client-"))
        .collect();
    // The server's comes first, so that an unreadable client key does not keep the server from its new one.
    names.sort_by_key(|name| (name != SERVER, name.clone()));
    if names.is_empty() {
        return Err(CliError::Usage(format!(
            "{}: no server.pem or client-N.pem to renew; give the folder that ebbflow certs made",
            folder.display()
        )));
    }
    Ok(names)
}

/// The authority that signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// In seconds since 1970.
    expires_s: u64,
}

impl Authority {
    /// Reads an authority and checks that it has not expired.
    fn open(folder: &Path, now_s: u64) -> Result<Authority, CliError> {
        let (file, key_file) = (folder.join("ca.pem"), folder.join("ca.key"));
        let read = |file: &Path| {
            std::fs::read_to_string(file).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => CliError::Usage(format!(
                    "{}: no such file; give the folder of the authority, with its key, by --ca DIR",
                    file.display()
                )),
                _ => CliError::file("reading", file, error),
            })
        };
        let (text, key) = (read(&file)?, read(&key_file)?);
        let unusable = |file: &Path, why: &str| CliError::Usage(format!("{}: {why}", file.display()));
        let key = KeyPair::from_pem(&key)
            .map_err(|_| unusable(&key_file, "not a private key; restore the authority's key"))?;
        let existing = ExistingCertificate::read(&file)?;
        if existing.key.subject_public_key_info() != key.subject_public_key_info() {
            return Err(unusable(
                &key_file,
                "not the key of ca.pem in this folder; restore the authority's key",
            ));
        }
        if existing.expires_s <= now_s {
            return Err(CliError::Usage(format!(
                "{}: the authority has expired, so no client trusts what it signs; make a new one with ebbflow \
                 certs in another folder, and give its ca.pem to every client",
                file.display()
            )));
        }
        let issuer = Issuer::from_ca_cert_pem(&text, key).map_err(certificate_error)?;
        Ok(Authority { issuer, expires_s: existing.expires_s })
    }

    /// The expiry of certificates signed now, in seconds since 1970; never later than the authority's own.
    fn expiry_s(&self, now_s: u64) -> u64 {
        (now_s + SIGNED_DAYS * DAY_S).min(self.expires_s)
    }

    fn expiry_date(&self, now_s: u64) -> String {
        let until = date_time_ymd(1970, 1, 1) + Duration::from_secs(self.expiry_s(now_s));
        format!("{}-{:02}-{:02}", until.year(), u8::from(until.month()), until.day())
    }

    /// Signs a certificate for these names with this key.
    fn sign(
        &self,
        folder: &Path,
        name: &str,
        names: &[String],
        key: &impl PublicKeyData,
        now_s: u64,
    ) -> Result<(), CliError> {
        let is_server = name == SERVER;
        let mut params = CertificateParams::new(names).map_err(certificate_error)?;
        params.distinguished_name.push(DnType::CommonName, format!("Ebbflow {name}"));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match is_server {
            true => ExtendedKeyUsagePurpose::ServerAuth,
            false => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now_s, self.expiry_s(now_s));
        let certificate = params.signed_by(key, &self.issuer).map_err(certificate_error)?;
        write_certificate(folder, name, &certificate.pem())
    }
}

/// The contents of an existing certificate that its renewal keeps.
struct ExistingCertificate {
    key: SubjectPublicKeyInfo,
    names: Vec<String>,
    expires_s: u64,
}

impl ExistingCertificate {
    fn read(file: &Path) -> Result<ExistingCertificate, CliError> {
        let bytes = std::fs::read(file).map_err(|error| CliError::file("reading", file, error))?;
        let unusable = |why: &str| CliError::Usage(format!("{}: {why}", file.display()));
        let pem = Pem::iter_from_buffer(&bytes).next().and_then(Result::ok);
        let pem = pem.ok_or_else(|| {
            unusable("not a certificate in PEM format; restore the certificate from a copy")
        })?;
        let certificate = pem.parse_x509().map_err(|error| {
            unusable(&format!("not a valid certificate ({error}); restore it from a copy"))
        })?;
        let key = SubjectPublicKeyInfo::from_der(certificate.public_key().raw).map_err(|error| {
            unusable(&format!("its key cannot be used ({error}); make another certificate"))
        })?;
        let until_s = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
        Ok(ExistingCertificate { key, names: names(&certificate), expires_s: until_s })
    }
}

/// The names and addresses that a certificate is for.
fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(std::net::Ipv4Addr::new(a, b, c, d).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| std::net::Ipv6Addr::from(bytes).to_string()),
        },
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}

/// Sets the period of validity, and a serial number that the authority uses once.
fn set_validity(params: &mut CertificateParams, now_s: u64, until_s: u64) {
    let at = |unix_s| date_time_ymd(1970, 1, 1) + Duration::from_secs(unix_s);
    params.not_before = at(now_s.saturating_sub(CLOCK_SKEW_S));
    params.not_after = at(until_s);
    let mut number: [u8; 16] = random_bytes();
    // Positive and of full length, as certificates require.
    number[0] = number[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&number));
}

fn certificate_error(error: rcgen::Error) -> CliError {
    CliError::Usage(format!("making certificates: {error}"))
}

/// The folder of the authority; by default next to the server's folder, so that a copy of that does not
/// contain the authority.
fn authority_folder(folder: &Path, ca: Option<&Path>) -> PathBuf {
    if let Some(ca) = ca {
        return ca.to_owned();
    }
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let mut name = whole.file_name().unwrap_or_default().to_owned();
    name.push("-authority");
    whole.with_file_name(name)
}

fn create(folder: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(folder).map_err(|error| CliError::file("creating", folder, error))
}

/// Makes a folder accessible to its owner only.
fn restrict_to_owner(folder: &Path) -> Result<(), CliError> {
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(folder, mode).map_err(|error| CliError::file("closing", folder, error))?;
    }
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// Replaces a certificate at once, because a server reads it as soon as it changes.
fn write_certificate(folder: &Path, name: &str, certificate: &str) -> Result<(), CliError> {
    let (file, new) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.new")));
    std::fs::write(&new, certificate)
        .and_then(|()| std::fs::rename(&new, &file))
        .map_err(|error| CliError::file("writing", &file, error))
}

fn write_key(folder: &Path, name: &str, key: &KeyPair) -> Result<(), CliError> {
    let file = folder.join(format!("{name}.key"));
    write_private(&file, key.serialize_pem().as_bytes())
        .map_err(|error| CliError::file("writing", &file, error))
}

fn print_next_steps(folder: &Path, authority: &Path, n_clients: u32) -> Result<(), CliError> {
    print_message(&format!(
        "the authority's key is {}; only ebbflow certs renew needs it, so keep it where nobody else has access",
        authority.join("ca.key").display()
    ));
    // Paths in a configuration are relative to its own folder, so these are absolute.
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let folder = whole.display();
    print_line(&format!(
        "[serve.tls]\ncertificate = \"{folder}/server.pem\"\nkey = \"{folder}/server.key\""
    ))?;
    if n_clients > 0 {
        print_line(&format!("clients = \"{folder}/ca.pem\""))?;
    }
    let client_flags = if n_clients > 0 { " --cert client-N.pem --key client-N.key" } else { "" };
    print_line(&format!(
        "\n# each client needs a copy of these files and no others: ebbflow join https://... --ca ca.pem{client_flags}\n\
         # certificates last one year, the authority ten; renew with: ebbflow certs renew {folder}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-19, in seconds since 1970.
    const NOW_S: u64 = 1_795_046_400;

    fn made(folder: &Path) -> (PathBuf, PathBuf) {
        let (certs, authority) = (folder.join("certs"), folder.join("certs-authority"));
        assert_eq!(authority_folder(&certs, None), authority);
        let names = ["localhost", "10.0.0.1", "::1"].map(str::to_owned);
        make_certificates(&certs, &authority, &names, 2, NOW_S).unwrap();
        (certs, authority)
    }

    fn renew(certs: &Path, clients: u32, now_s: u64) -> Result<Vec<String>, String> {
        let args = Renew { folder: certs.to_owned(), ca: None, names: Vec::new(), clients };
        renew_certificates(&args, now_s).map_err(|error| error.to_string())
    }

    /// The validity of a certificate: its start in seconds from now, its end in days from now, and its basic
    /// constraints.
    fn validity_of(file: &Path) -> (i64, i64, Option<(bool, Option<u32>)>) {
        let bytes = std::fs::read(file).unwrap();
        let pem = Pem::iter_from_buffer(&bytes).next().unwrap().unwrap();
        let certificate = pem.parse_x509().unwrap();
        let validity = certificate.validity();
        let basic =
            certificate.basic_constraints().unwrap().map(|one| (one.value.ca, one.value.path_len_constraint));
        let from_now = |time: i64| time - NOW_S as i64;
        (
            from_now(validity.not_before.timestamp()),
            from_now(validity.not_after.timestamp()) / DAY_S as i64,
            basic,
        )
    }

    #[test]
    fn an_authority_lasts_ten_years_and_signs_for_one_and_no_other_authority() {
        let folder = tempfile::tempdir().unwrap();
        let (certs, authority) = made(folder.path());
        let early = -(CLOCK_SKEW_S as i64);
        assert_eq!(validity_of(&certs.join("ca.pem")), (early, 3650, Some((true, Some(0)))));
        for name in ["server.pem", "client-0.pem", "client-1.pem"] {
            assert_eq!(validity_of(&certs.join(name)), (early, 365, Some((false, None))), "{name}");
        }
        let server = ExistingCertificate::read(&certs.join("server.pem")).unwrap();
        assert_eq!(server.names, ["localhost", "10.0.0.1", "::1"]);
        assert!(!certs.join("ca.key").exists(), "the authority's key lies apart");
        assert!(authority.join("ca.key").exists());
        let again = make_certificates(&certs, &authority, &[], 0, NOW_S).unwrap_err().to_string();
        assert!(again.contains("ebbflow certs renew"), "{again}");
    }

    #[cfg(unix)]
    #[test]
    fn keys_are_their_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (certs, authority) = made(folder.path());
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(authority.clone()), 0o700);
        assert_eq!(mode(authority.join("ca.key")), 0o600);
        assert_eq!(mode(certs.join("server.key")), 0o600);
        assert_eq!(mode(certs.join("client-0.key")), 0o600);
    }

    #[test]
    fn renewed_certificates_have_the_keys_and_names_of_those_before() {
        let folder = tempfile::tempdir().unwrap();
        let (certs, _) = made(folder.path());
        let files = ["server.pem", "client-0.pem", "client-1.pem"].map(|name| certs.join(name));
        let read = || files.clone().map(|file| ExistingCertificate::read(&file).unwrap());
        let (before, texts) = (read(), files.clone().map(|file| std::fs::read(file).unwrap()));
        // A client's key may exist only on its device.
        std::fs::remove_file(certs.join("client-1.key")).unwrap();
        let later_s = NOW_S + 300 * DAY_S;
        assert_eq!(renew(&certs, 0, later_s).unwrap().len(), 3);
        for ((before, after), (file, text)) in before.iter().zip(read()).zip(files.iter().zip(texts)) {
            assert_eq!(before.key, after.key);
            assert_eq!(before.names, after.names);
            assert_eq!(after.expires_s, later_s + SIGNED_DAYS * DAY_S);
            assert_ne!(std::fs::read(file).unwrap(), text);
        }
        // Missing certificates are made.
        let made = renew(&certs, 3, later_s).unwrap();
        assert!(made.last().unwrap().starts_with("client-2.pem: new, until 2028-09-14"), "{made:?}");
        assert!(certs.join("client-2.key").exists());
    }

    #[test]
    fn nothing_lasts_longer_than_its_authority_and_one_that_expired_signs_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (certs, authority) = made(folder.path());
        let end_s = NOW_S + AUTHORITY_DAYS * DAY_S;
        renew(&certs, 0, end_s - 10 * DAY_S).unwrap();
        assert_eq!(ExistingCertificate::read(&certs.join("server.pem")).unwrap().expires_s, end_s);
        let expired = renew(&certs, 0, end_s).unwrap_err();
        assert!(
            expired.contains("the authority has expired") && expired.contains("every client"),
            "{expired}"
        );
        std::fs::write(authority.join("ca.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let other = renew(&certs, 0, NOW_S).unwrap_err();
        assert!(other.contains("not the key of ca.pem"), "{other}");
        std::fs::remove_file(authority.join("ca.key")).unwrap();
        let gone = renew(&certs, 0, NOW_S).unwrap_err();
        assert!(gone.contains("--ca DIR"), "{gone}");
    }
}
