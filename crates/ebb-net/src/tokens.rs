//! Enrolment tokens and tickets: what only this server can have given out, told by its key.
//!
//! A token carries its own terms and a code over them, so that it can be made while the server runs or not; the
//! server only counts its uses. A ticket is the same for one client's job, so that nobody can answer what it was not
//! asked.

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

/// So many bytes that nobody can guess.
///
/// # Panics
/// When the system has no source of randomness.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("every system that runs a server has randomness");
    bytes
}

/// The file of a server's key.
pub const KEY_FILE: &str = "server.key";
/// The file of the key that its tokens are made by, once the first ones were made void.
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
    /// Tells tokens apart.
    pub id: [u8; 8],
    /// Until when, in seconds since 1970.
    pub expires_unix_s: u64,
    /// How many clients may enrol with it.
    pub max_uses: u32,
    /// Whether clients may choose their numbers.
    pub allows_chosen_number: bool,
}

/// The answer to one job, and to no other.
pub type Ticket = [u8; MAC_BYTES];

impl Key {
    /// The key in this file; a new one if there is none.
    pub fn open_or_create(file: &Path) -> io::Result<Key> {
        let bytes = match fs::read(file) {
            Ok(bytes) if bytes.len() == 32 => bytes,
            Ok(_) => {
                let message = "not the key of a server, which has 32 bytes; put back the one that was there, or remove it if that is lost: \
                               then tokens are to be made anew, and answers that are under way are refused";
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Two may do so at once, a server and whoever makes a token: the first one's key counts.
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

    /// The key that the tokens of the server in this folder are made by: its own, or the latest that made others void.
    pub fn open_token_key(folder: &Path) -> io::Result<Key> {
        let file = folder.join(TOKEN_KEY_FILE);
        if !file.try_exists()? {
            return Key::open_or_create(&folder.join(KEY_FILE));
        }
        // Without the file, tokens that were taken back would be good again.
        match fs::read(&file)? {
            bytes if bytes.len() == 32 => Ok(Key::new(&bytes)),
            _ => {
                let message = format!(
                    "{}: damaged; make another, by which tokens are to be made anew: ebbflow revoke {} --tokens",
                    file.display(),
                    folder.display()
                );
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
        }
    }

    /// Makes all tokens void that were made so far; who enrolled with them stays.
    pub fn void_tokens(folder: &Path) -> io::Result<()> {
        write_private(&folder.join(TOKEN_KEY_FILE), &random_bytes::<32>())
    }

    /// A key of these bytes.
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

    /// The ticket of a client's job in a round, which starts from this model. After a restore from a backup the same
    /// round has another model, and so another ticket.
    pub fn ticket(&self, client: ClientId, round: RoundNo, model: &Digest) -> Ticket {
        let mut bytes = client.number().to_le_bytes().to_vec();
        bytes.extend(round.to_le_bytes());
        bytes.extend(model.bytes());
        self.truncated_mac("ticket", &bytes)
    }

    /// The key of one incarnation of a server: what an earlier one gave out is void. The first, all zeros,
    /// has the key itself.
    #[must_use]
    pub fn of_incarnation(self, incarnation: &[u8; 16]) -> Key {
        match incarnation {
            first if *first == [0; 16] => self,
            other => Key(hmac::Key::new(hmac::HMAC_SHA256, &self.mac("incarnation", other))),
        }
    }

    /// A number that only the key tells.
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
    fn to_bytes(&self) -> [u8; TERMS_BYTES] {
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

/// Whether two secrets are the same, in a time that does not tell how far they agree.
pub(crate) fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other)) == 0
}

/// What is kept of a secret: enough to know it again, not to show it.
pub(crate) fn secret_digest(secret: &[u8]) -> [u8; 32] {
    *Digest::of(secret).bytes()
}

/// The key of tokens as a server has it: read again when one of its files changed.
pub(crate) struct TokenKey {
    folder: PathBuf,
    cached: Mutex<Option<(FileStamps, Arc<Key>)>>,
}

/// What tells each of the two files from the one that was there before: how long it is, and when it was
/// written.
type FileStamps = [Option<(u64, Option<SystemTime>)>; 2];

impl TokenKey {
    pub(crate) fn new(folder: PathBuf) -> TokenKey {
        TokenKey { folder, cached: Mutex::new(None) }
    }

    /// The key that tokens are made by now.
    pub(crate) fn key(&self) -> io::Result<Arc<Key>> {
        let stamp = |name| match fs::metadata(self.folder.join(name)) {
            Ok(found) => Ok(Some((found.len(), found.modified().ok()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        // Looked at before they are read: what changes in between is seen the next time.
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

/// Writes a file that only its owner can read; it is there as a whole or not at all. Where root writes it, it
/// belongs to whom its folder belongs to: the server that reads it need not be root.
pub fn write_private(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    // Left over, or put there by somebody: never written into, and a link is not followed.
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

/// Gives a file that root made to whom its folder belongs.
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

/// Makes the name of a file safe: without, it may be gone after a loss of power, though what is in the file is not.
pub(crate) fn sync_folder_of(file: &Path) -> io::Result<()> {
    // Elsewhere a folder cannot be opened as a file.
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
    fn tokens_can_be_made_void_and_new_ones_made() {
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
    fn a_server_sees_at_once_that_its_tokens_were_made_void() {
        let folder = tempfile::tempdir().unwrap();
        Key::open_token_key(folder.path()).unwrap();
        let held = TokenKey::new(folder.path().to_owned());
        let first = held.key().unwrap();
        let token = first.token(&terms());
        // It is not read again as long as nothing changed.
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
    fn what_is_private_follows_no_link_and_keeps_the_owner_of_its_folder() {
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
