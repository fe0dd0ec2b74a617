//! Enrolment tokens and tickets, which only the server's key can have made.
//!
//! A token carries its terms and a code over them, so that it can be made whether the server runs or not. The
//! server only counts its uses. A ticket belongs to one client's job, so that no client can send an update
//! that it was not asked for.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use ebb_round::{ClientId, RoundNo};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::Digest;

const PREFIX: &str = "ebb-";
const MAC_BYTES: usize = 16;
const TERMS_BYTES: usize = 8 + 8 + 4 + 1;

/// Random bytes that no party can guess.
///
/// # Panics
/// When the system has no source of randomness.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("every system that runs a server has randomness");
    bytes
}

/// The name of the file of a server's key.
pub const KEY_FILE: &str = "server.key";
/// The name of the file of the key for tokens, once earlier tokens were voided.
const TOKEN_KEY_FILE: &str = "tokens.key";

/// The key of a server.
pub struct Key(hmac::Key);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The identity of the token.
    pub id: [u8; 8],
    /// When it expires, in seconds since 1970.
    pub expires_unix_s: u64,
    /// How many clients may enrol with it.
    pub max_uses: u32,
    /// Whether clients may choose their numbers.
    pub allows_chosen_number: bool,
}

/// The proof that a client was given one particular job.
pub type Ticket = [u8; MAC_BYTES];

impl Key {
    /// The key in this file. Creates one if there is none.
    pub fn open_or_create(file: &Path) -> io::Result<Key> {
        let bytes = match fs::read(file) {
            Ok(bytes) if bytes.len() == 32 => bytes,
            Ok(_) => {
                let message = "not the key of a server, which has 32 bytes; put back the former key. If it \
                               is lost, remove this file: tokens must then be made again, and updates in \
                               flight are refused";
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A server and `ebbflow token` may create it at once: the first key counts.
                let bytes = random_bytes::<32>();
                let own = file.with_extension(hex(&bytes[..4]));
                write_private(&own, &bytes)?;
                let linked = fs::hard_link(&own, file);
                fs::remove_file(&own)?;
                match linked {
                    Ok(()) => {
                        sync_folder_of(file)?;
                        bytes.to_vec()
                    }
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        return Key::open_or_create(file);
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        Ok(Key::new(&bytes))
    }

    /// The key by which the tokens of the server in this folder are made: its own, or the latest one that
    /// voided others.
    pub fn open_token_key(folder: &Path) -> io::Result<Key> {
        let file = folder.join(TOKEN_KEY_FILE);
        if !file.try_exists()? {
            return Key::open_or_create(&folder.join(KEY_FILE));
        }
        // Without the file, voided tokens would be valid again.
        match fs::read(&file)? {
            bytes if bytes.len() == 32 => Ok(Key::new(&bytes)),
            _ => {
                let message = format!(
                    "{}: damaged; make another key, and then new tokens: ebbflow revoke {} --tokens",
                    file.display(),
                    folder.display()
                );
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
        }
    }

    /// Voids all tokens made so far. Clients that enrolled with them stay.
    pub fn void_tokens(folder: &Path) -> io::Result<()> {
        write_private(&folder.join(TOKEN_KEY_FILE), &random_bytes::<32>())
    }

    /// The key of these bytes.
    pub fn new(bytes: &[u8]) -> Key {
        Key(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// A token with these terms.
    pub fn token(&self, terms: &Terms) -> String {
        let mut bytes = terms.to_bytes().to_vec();
        bytes.extend(self.truncated_mac("token", &bytes));
        PREFIX.to_owned() + &hex(&bytes)
    }

    /// The terms of a token, if this key made it.
    pub fn terms(&self, token: &str) -> Option<Terms> {
        let bytes = unhex(token.trim().strip_prefix(PREFIX)?)?;
        let (terms, code) = bytes.split_at_checked(TERMS_BYTES)?;
        constant_time_eq(&self.truncated_mac("token", terms), code).then(|| Terms::from_bytes(terms))
    }

    /// The ticket of a client's job in a round that starts from this model. After a restore from a backup the
    /// same round has another model, and so another ticket.
    pub fn ticket(&self, client: ClientId, round: RoundNo, model: &Digest) -> Ticket {
        let mut bytes = client.number().to_le_bytes().to_vec();
        bytes.extend(round.to_le_bytes());
        bytes.extend(model.bytes());
        self.truncated_mac("ticket", &bytes)
    }

    /// The key of one incarnation of a server, by which tickets of earlier incarnations are void. The first
    /// incarnation, all zeros, has the key itself.
    #[must_use]
    pub fn of_incarnation(self, incarnation: &[u8; 16]) -> Key {
        match incarnation {
            first if *first == [0; 16] => self,
            other => Key(hmac::Key::new(hmac::HMAC_SHA256, &self.mac("incarnation", other))),
        }
    }

    /// A number derived from the key.
    pub fn derived_number(&self, purpose: &str) -> u64 {
        let code = self.mac(purpose, &[]);
        u64::from_le_bytes(code[..8].try_into().expect("a code has 32 bytes"))
    }

    fn truncated_mac(&self, purpose: &str, bytes: &[u8]) -> [u8; MAC_BYTES] {
        self.mac(purpose, bytes)[..MAC_BYTES].try_into().expect("a code has more bytes")
    }

    fn mac(&self, purpose: &str, bytes: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(purpose.as_bytes());
        context.update(&[0]);
        context.update(bytes);
        context.sign().as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }
}

impl Terms {
    fn to_bytes(self) -> [u8; TERMS_BYTES] {
        let mut bytes = [0; TERMS_BYTES];
        bytes[..8].copy_from_slice(&self.id);
        bytes[8..16].copy_from_slice(&self.expires_unix_s.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.max_uses.to_le_bytes());
        bytes[20] = u8::from(self.allows_chosen_number);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Terms {
        Terms {
            id: bytes[..8].try_into().expect("eight"),
            expires_unix_s: u64::from_le_bytes(bytes[8..16].try_into().expect("eight")),
            max_uses: u32::from_le_bytes(bytes[16..20].try_into().expect("four")),
            allows_chosen_number: bytes[20] == 1,
        }
    }
}

/// Whether two secrets are equal, in a time that does not depend on how much of them agrees.
pub(crate) fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other)) == 0
}

/// The digest of a secret, by which the secret can be checked but not shown.
pub(crate) fn secret_digest(secret: &[u8]) -> [u8; 32] {
    *Digest::of(secret).bytes()
}

/// The key of tokens in a running server, read again when one of its files changes.
pub(crate) struct TokenKey {
    folder: PathBuf,
    cached: Mutex<Option<(FileStamps, Arc<Key>)>>,
}

/// What shows that one of the two files changed: its length, and when it was written.
type FileStamps = [Option<(u64, Option<SystemTime>)>; 2];

impl TokenKey {
    pub(crate) fn new(folder: PathBuf) -> TokenKey {
        TokenKey { folder, cached: Mutex::new(None) }
    }

    /// The current key of tokens.
    pub(crate) fn key(&self) -> io::Result<Arc<Key>> {
        let stamp = |name| match fs::metadata(self.folder.join(name)) {
            Ok(found) => Ok(Some((found.len(), found.modified().ok()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        // Read before the files, so that a change in between is noticed the next time.
        let stamps: FileStamps = [stamp(KEY_FILE)?, stamp(TOKEN_KEY_FILE)?];
        let mut held = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, key)) = held.as_ref().filter(|(seen, _)| *seen == stamps) {
            return Ok(Arc::clone(key));
        }
        let key = Arc::new(Key::open_token_key(&self.folder)?);
        *held = Some((stamps, Arc::clone(&key)));
        Ok(key)
    }
}

/// Writes a file that only its owner can read, completely or not at all. If root writes it, the folder's
/// owner gets it, because the server that reads it need not be root.
pub fn write_private(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    // A leftover or planted file is never written into, and a link is not followed.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut to = options.open(&new)?;
    give_to_owner_of_folder(&to, file)?;
    to.write_all(bytes)?;
    to.sync_all()?;
    fs::rename(new, file)?;
    sync_folder_of(file)
}

/// Gives a file that root made to the owner of its folder.
pub fn give_to_owner_of_folder(to: &fs::File, file: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        let (own, folder) = (to.metadata()?, fs::metadata(folder_of(file))?);
        if own.uid() == 0 && (own.uid(), own.gid()) != (folder.uid(), folder.gid()) {
            fchown(to, Some(folder.uid()), Some(folder.gid()))?;
        }
    }
    #[cfg(not(unix))]
    let _ = (to, file);
    Ok(())
}

fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Makes the name of a file durable. After a loss of power it may otherwise be gone, though its content is
/// not.
pub(crate) fn sync_folder_of(file: &Path) -> io::Result<()> {
    // On other systems a folder cannot be opened as a file.
    if cfg!(unix) { fs::File::open(folder_of(file))?.sync_all() } else { Ok(()) }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hexadecimal digits as bytes.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks() else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    pairs.iter().map(|&[high, low]| Some(16 * digit(high)? + digit(low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms { id: [7; 8], expires_unix_s: 1_000, max_uses: 3, allows_chosen_number: false }
    }

    #[test]
    fn a_token_yields_its_terms_to_the_key_that_made_it() {
        let key = Key::new(&[1; 32]);
        let token = key.token(&terms());
        assert_eq!(key.terms(&token), Some(terms()));
        assert_eq!(Key::new(&[2; 32]).terms(&token), None);
    }

    #[test]
    fn a_token_with_a_changed_digit_is_invalid() {
        let key = Key::new(&[1; 32]);
        let token = key.token(&terms());
        for at in PREFIX.len()..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            assert_eq!(key.terms(std::str::from_utf8(&changed).unwrap()), None, "digit {at}");
        }
        for wrong in ["", "ebb-", "ebb-zz", "ebb-é", "nothing"] {
            assert_eq!(key.terms(wrong), None, "{wrong}");
        }
        assert_eq!(key.terms(&token.replacen("07", "+7", 1)), None);
    }

    #[test]
    fn tickets_differ_by_client_round_model_and_incarnation() {
        let key = Key::new(&[1; 32]);
        let [one, other] = [b"one", b"two"].map(|model| Digest::of(model));
        let ticket = |client, round| key.ticket(ClientId::new(client), round, &one);
        assert_eq!(ticket(1, 2), ticket(1, 2));
        assert_ne!(ticket(1, 2), ticket(2, 1));
        assert_ne!(ticket(1, 2), ticket(1, 3));
        assert_ne!(ticket(1, 2), key.ticket(ClientId::new(1), 2, &other));
        let of = |number| Key::new(&[1; 32]).of_incarnation(&[number; 16]).ticket(ClientId::new(1), 2, &one);
        assert_eq!(of(0), ticket(1, 2));
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
        assert_ne!(of(3), of(0));
    }

    #[test]
    fn tokens_can_be_voided_and_new_ones_made() {
        let folder = tempfile::tempdir().unwrap();
        let key = || Key::open_token_key(folder.path()).unwrap();
        let first = key().token(&terms());
        assert_eq!(key().terms(&first), Some(terms()));
        Key::void_tokens(folder.path()).unwrap();
        let second = key().token(&terms());
        assert_eq!((key().terms(&first), key().terms(&second)), (None, Some(terms())));
        Key::void_tokens(folder.path()).unwrap();
        assert_eq!((key().terms(&first), key().terms(&second)), (None, None));
        let own = Key::open_or_create(&folder.path().join(KEY_FILE)).unwrap();
        assert_eq!(own.terms(&first), Some(terms()), "the key of tickets is the same as before");
    }

    #[test]
    fn a_server_notices_at_once_that_its_tokens_were_voided() {
        let folder = tempfile::tempdir().unwrap();
        Key::open_token_key(folder.path()).unwrap();
        let held = TokenKey::new(folder.path().to_owned());
        let first = held.key().unwrap();
        let token = first.token(&terms());
        // It is not read again while nothing changes.
        assert!(Arc::ptr_eq(&first, &held.key().unwrap()));
        for _ in 0..3 {
            let before = held.key().unwrap();
            Key::void_tokens(folder.path()).unwrap();
            let file = fs::File::options().append(true).open(folder.path().join(TOKEN_KEY_FILE)).unwrap();
            // Clocks of file systems may stand still for a while.
            let later = file.metadata().unwrap().modified().unwrap() + std::time::Duration::from_secs(1);
            file.set_modified(later).unwrap();
            assert!(!Arc::ptr_eq(&before, &held.key().unwrap()));
        }
        assert_eq!(held.key().unwrap().terms(&token), None);
    }

    #[cfg(unix)]
    #[test]
    fn private_files_follow_no_link_and_keep_the_owner_of_their_folder() {
        use std::os::unix::fs::{MetadataExt, chown, symlink};
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        fs::create_dir(&folder).unwrap();
        let (file, elsewhere) = (folder.join("a.key"), place.path().join("elsewhere"));
        fs::write(&elsewhere, "mine").unwrap();
        symlink(&elsewhere, folder.join("a.key.new")).unwrap();
        // Only root can give a folder away.
        let given = chown(&folder, Some(1234), Some(2345)).is_ok();
        write_private(&file, b"secret").unwrap();
        assert_eq!(fs::read(&elsewhere).unwrap(), b"mine");
        assert_eq!(fs::read(&file).unwrap(), b"secret");
        let (found, owner) = (fs::metadata(&file).unwrap(), fs::metadata(&folder).unwrap());
        assert_eq!((found.mode() & 0o777, found.uid(), found.gid()), (0o600, owner.uid(), owner.gid()));
        assert!(!given || found.uid() == 1234);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn a_key_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let token = Key::open_or_create(&file).unwrap().token(&terms());
        assert_eq!(Key::open_or_create(&file).unwrap().terms(&token), Some(terms()));
        fs::write(&file, "short").unwrap();
        assert!(Key::open_or_create(&file).is_err());
    }
}
