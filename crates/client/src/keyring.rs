//! The keys with which this client encrypts and decrypts: one file each, in a folder of its user.
//!
//! A key that is asked for is looked for in the folder again as long as it isn't there, so a mount that runs has the keys that are
//! imported meanwhile. A key that others of the machine could read is refused: it is none.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use stdchk_model::chunk_map::PieceName;
use stdchk_model::{ChunkId, ErrorCode, Failure, KeyId};
use stdchk_net::own::{Access, Folder};
use stdchk_protect::seal::{Key, Keys, SECRET_BYTES};

/// What a key's file begins with; behind it stands the secret in hexadecimal digits.
const MAGIC: &str = "stdchk-encryption-key-1:";
/// Longest file that can be a key, bytes.
const FILE_BYTES_MAX: u64 = 256;

/// The keys of a folder.
#[derive(Debug)]
pub struct KeyRing {
    folder: Option<PathBuf>,
    known: Mutex<HashMap<KeyId, Arc<Key>>>,
}

impl Keys for KeyRing {
    fn key(&self, id: KeyId) -> Option<Arc<Key>> {
        self.require(id).ok()
    }
}

impl KeyRing {
    /// The keys in `folder`, which need not be there; `None`: there are no keys.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, known: Mutex::default() }
    }

    /// The key of this identity.
    ///
    /// # Errors
    /// `NoKey`: it isn't there, or can't be used, with the next step.
    pub fn require(&self, id: KeyId) -> Result<Arc<Key>, Failure> {
        if let Some(key) = self.known.lock().get(&id) {
            return Ok(Arc::clone(key));
        }
        let Some(folder) = &self.folder else {
            return Err(lacking(id, "this client has no folder with encryption keys"));
        };
        let path = path_of(folder, id);
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(lacking(id, format_args!("it is not in {}", folder.display())));
            }
            Err(error) => return Err(unusable(&path, &error)),
        };
        let key = parse(&text).filter(|key| key.id() == id);
        let key = key.ok_or_else(|| unusable(&path, &"it doesn't hold the key that it is named after"))?;
        let key = Arc::new(key);
        self.known.lock().insert(id, Arc::clone(&key));
        Ok(key)
    }

    /// The key that made the name of a chunk, if it was used here before; `None`: as far as is known here, the chunk isn't encrypted.
    /// Whoever made the name, or read the chunk, has used it.
    pub(crate) fn of(&self, chunk: ChunkId) -> Option<Arc<Key>> {
        self.known.lock().get(&chunk.key_if_sealed()).cloned()
    }

    /// Whether these are the bytes of the chunk, whose name may be one of a key that was used here before.
    pub(crate) fn are_of(&self, chunk: ChunkId, bytes: &[u8]) -> bool {
        chunk == self.of(chunk).map_or_else(|| ChunkId::of(bytes), |key| key.name(bytes))
    }

    /// The name of a piece of such a chunk with these bytes.
    pub(crate) fn piece_of(&self, chunk: ChunkId, bytes: &[u8]) -> PieceName {
        self.of(chunk).map_or_else(|| PieceName::of(bytes), |key| key.piece_name(bytes))
    }

    fn folder(&self) -> Result<&Path, Failure> {
        let none = || Failure::new(ErrorCode::Invalid, "this client has no folder with encryption keys");
        self.folder.as_deref().ok_or_else(none)
    }

    /// Makes a key of random bytes; it is durable when this returns.
    ///
    /// # Errors
    /// The folder can't be written.
    pub fn create(&self) -> Result<KeyId, Failure> {
        let ([a, b], mut secret) = ([crate::random()?, crate::random()?], [0; SECRET_BYTES]);
        secret.iter_mut().zip(a.into_iter().chain(b)).for_each(|(to, from)| *to = from);
        self.keep(&Key::new(secret))
    }

    /// Takes in a key as [`KeyRing::export`] gives it. One that is there already stays.
    ///
    /// # Errors
    /// `Invalid`: the text is no key. Or the folder can't be written.
    pub fn import(&self, text: &str) -> Result<KeyId, Failure> {
        let key = parse(text).ok_or_else(|| {
            let next =
                "give what `stdchk key export` printed, one line that begins with `stdchk-encryption-key-1:`";
            Failure::new(ErrorCode::Invalid, "this is no encryption key").then(next)
        })?;
        self.keep(&key)
    }

    /// A key as text, for another client or to be kept elsewhere. Who has it reads all that is encrypted with it.
    ///
    /// # Errors
    /// As for [`KeyRing::require`].
    pub fn export(&self, id: KeyId) -> Result<String, Failure> {
        Ok(text_of(&*self.require(id)?))
    }

    /// The identities of all keys in the folder, in order.
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn list(&self) -> Result<Vec<KeyId>, Failure> {
        let folder = self.folder()?;
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| unusable(folder, &error))?,
        };
        let mut keys = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| unusable(folder, &error))?.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(".key"));
            keys.extend(id.and_then(|id| id.parse::<KeyId>().ok()));
        }
        keys.sort_unstable();
        Ok(keys)
    }

    fn keep(&self, key: &Key) -> Result<KeyId, Failure> {
        let folder = self.folder()?;
        let failed = |error: io::Error| unusable(folder, &error);
        let own = Folder::make(folder).map_err(failed)?;
        let (id, path) = (key.id(), path_of(folder, key.id()));
        if path.exists() {
            return self.require(id).map(|_| id);
        }
        // Whole under its name or not there: a key that is cut off would be lost when it is needed.
        let (name, new) = (format!("{id}.key"), format!("{id}.new{}", std::process::id()));
        let written = write(&own, &new, &text_of(key)).and_then(|()| own.rename(&new, &name));
        written.and_then(|()| own.sync()).map_err(failed)?;
        Ok(id)
    }
}

fn write(folder: &Folder, name: &str, text: &str) -> io::Result<()> {
    let mut file = folder.file(name, Access::Make)?;
    file.set_len(0)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn path_of(folder: &Path, id: KeyId) -> PathBuf {
    folder.join(format!("{id}.key"))
}

fn text_of(key: &Key) -> String {
    let digits: String = key.secret().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{MAGIC}{digits}\n")
}

fn parse(text: &str) -> Option<Key> {
    let digits = text.trim().strip_prefix(MAGIC)?;
    // A secret has the length and the digits of a chunk's name.
    let ChunkId(secret) = digits.parse().ok()?;
    Some(Key::new(secret))
}

/// The text of a key's file, which nobody else may be able to read.
fn read(path: &Path) -> io::Result<String> {
    let folder = Folder::look_into(path.parent().unwrap_or(Path::new(".")))?;
    let file = folder.file(path.file_name().unwrap_or_default(), Access::Read)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 != 0 {
        let what = format!("other users may read it: `chmod 600 {}` if nobody has", path.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, what));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn lacking(id: KeyId, why: impl std::fmt::Display) -> Failure {
    let next =
        format!("take the key in from who has it: `stdchk key export {id}` there, `stdchk key import` here");
    Failure::new(ErrorCode::NoKey, format!("this needs the encryption key {id}, and {why}")).then(next)
}

fn unusable(path: &Path, cause: &dyn std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::NoKey, format!("the encryption key {} can't be used: {cause}", path.display()))
        .then("mend that, or import the key anew")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn ring() -> (tempfile::TempDir, KeyRing) {
        let folder = tempfile::tempdir().unwrap();
        let ring = KeyRing::new(Some(folder.path().join("encryption")));
        (folder, ring)
    }

    fn file_of(folder: &tempfile::TempDir, id: KeyId) -> PathBuf {
        path_of(&folder.path().join("encryption"), id)
    }

    #[test]
    fn a_key_is_found_by_whoever_looks_into_the_folder_and_is_readable_for_its_user_alone() {
        let (folder, ring) = ring();
        assert_eq!(ring.list().unwrap(), []);
        let id = ring.create().unwrap();
        let other = KeyRing::new(Some(folder.path().join("encryption")));
        assert_eq!(other.require(id).unwrap().secret(), ring.require(id).unwrap().secret());
        assert_eq!(other.list().unwrap(), [id]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&file_of(&folder, id)), 0o600);
        assert_eq!(mode(&folder.path().join("encryption")), 0o700);
        assert_ne!(ring.create().unwrap(), id, "each key is another one");
    }

    #[test]
    fn a_key_travels_as_text_and_is_used_without_a_new_start() {
        let ((_one, from), (_other, to)) = (ring(), ring());
        let id = from.create().unwrap();
        let failure = to.require(id).unwrap_err();
        assert_eq!(failure.code, ErrorCode::NoKey);
        assert!(failure.to_string().contains(&format!("stdchk key export {id}")), "{failure}");
        assert_eq!(to.import(&from.export(id).unwrap()), Ok(id));
        assert_eq!(to.import(&from.export(id).unwrap()), Ok(id), "once more");
        assert_eq!(to.require(id).unwrap().id(), id);
        for bad in ["", "stdchk-encryption-key-1:12", "7f", &"a".repeat(64)] {
            assert_eq!(to.import(bad).unwrap_err().code, ErrorCode::Invalid, "{bad}");
        }
    }

    #[test]
    fn a_key_that_others_may_read_or_that_is_another_is_refused() {
        let (folder, made) = ring();
        let (id, other) = (made.create().unwrap(), made.create().unwrap());
        let fresh = || KeyRing::new(Some(folder.path().join("encryption")));
        fs::set_permissions(file_of(&folder, id), std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(fresh().require(id).unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(file_of(&folder, id), std::fs::Permissions::from_mode(0o600)).unwrap();
        fresh().require(id).unwrap();
        fs::copy(file_of(&folder, other), file_of(&folder, id)).unwrap();
        assert_eq!(fresh().require(id).unwrap_err().code, ErrorCode::NoKey);
    }
}
