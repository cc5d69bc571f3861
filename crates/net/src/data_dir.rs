//! A data directory: whose it is, and that only one process uses it.
//!
//! The file `STDCHK` marks a directory as the manager's or a benefactor's; it is written into an empty directory only,
//! so that a mistyped path never mixes a store with somebody's files. The file `LOCK` is held (`flock`) by the process
//! that uses the directory and names its process id. Both the manager and the benefactors rely on this module. Taking a
//! directory that was used before needs no space on its disk.
//!
//! ```text
//! stdchk benefactor 1                          role and layout of the directory
//! pool 00112233445566778899aabbccddeeff        once the pool is known
//! benefactor 3                                 once the manager gave a number
//! secret 6f1c..                                a benefactor's, 64 hexadecimal digits, made with the directory
//! ```

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::BenefactorSecret;
use stdchk_model::{BenefactorId, PoolId};

use crate::own::{Access, Folder, LOST_AND_FOUND, OWNER_ONLY_FILE};

/// Layout of data directories that this code writes and reads.
///
/// History: 1, the first.
pub const LAYOUT: u32 = 1;

const MARK: &str = "STDCHK";
const MARK_NEW: &str = "STDCHK.new";
const LOCK: &str = "LOCK";
/// Permissions of a new data directory.
const OWNER_ONLY: u32 = 0o700;
/// Largest mark that is read, bytes; a real one has three short lines.
const MARK_BYTES_MAX: u64 = 4096;

/// Why a directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The system refused something.
    #[error("can't {action} {path}: {cause}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Another process uses it.
    #[error("{path} is in use by process {pid}: stop that one first, or choose another directory")]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other process as written in the lock file, or `?`.
        pid: String,
    },
    /// There are files of somebody else.
    #[error(
        "{path} holds files that are not stdchk's, such as `{example}`: choose an empty or a new directory"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// One of the files.
        example: String,
    },
    /// The mark says something that this process can't work with.
    #[error("{path} can't be used as the data directory of a {role}: {cause}")]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// What the process is.
        role: &'static str,
        /// What stands against it, and what to do.
        cause: String,
    },
}

/// The pool that the directory at `path` is marked for as one of `role`. Takes and changes nothing.
///
/// # Errors
/// Its mark can't be read, or says something else.
pub fn pool_of(path: &Path, role: Role) -> Result<Option<PoolId>, DataDirError> {
    Ok(look_at_mark(path, role)?.and_then(|mark| mark.pool))
}

/// The number of the benefactor whose directory is at `path`, once it has one. Takes and changes nothing.
///
/// # Errors
/// Its mark can't be read, or says something else.
pub fn benefactor_of(path: &Path) -> Result<Option<BenefactorId>, DataDirError> {
    Ok(look_at_mark(path, Role::Benefactor)?.and_then(|mark| mark.benefactor))
}

/// The mark of a directory of whoever it is, if it has one.
fn look_at_mark(directory: &Path, role: Role) -> Result<Option<Mark>, DataDirError> {
    match Folder::look_into(directory) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(io_error("read", directory, cause)),
        Ok(folder) => read_mark(&folder, role),
    }
}

/// The mark of a directory, if it has one.
fn read_mark(directory: &Folder, role: Role) -> Result<Option<Mark>, DataDirError> {
    let mut text = String::new();
    let opened = directory.file(MARK, Access::Read);
    match opened.and_then(|file| file.take(MARK_BYTES_MAX).read_to_string(&mut text)) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(io_error("read", &directory.path().join(MARK), cause)),
        Ok(_) => parse(&text, role).map(Some).map_err(|cause| unusable(directory.path(), role, cause)),
    }
}

/// A data directory, held by this process until dropped.
#[derive(Debug)]
pub struct DataDir {
    folder: Folder,
    role: Role,
    mark: Mark,
    _lock: File,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Mark {
    pool: Option<PoolId>,
    benefactor: Option<BenefactorId>,
    /// Of a benefactor.
    secret: Option<BenefactorSecret>,
}

impl DataDir {
    /// Takes the directory at `path` for a process of `role`; makes it if it isn't there.
    ///
    /// # Errors
    /// Another process holds it, it holds foreign files, or it belongs to another role or a later layout.
    pub fn open(path: &Path, role: Role) -> Result<Self, DataDirError> {
        let folder = Folder::make(path).map_err(|cause| io_error("use", path, cause))?;
        // Looked at before the lock is made, so that nothing is left in somebody else's directory.
        if read_mark(&folder, role)?.is_none() {
            refuse_foreign(path, role)?;
        }
        let lock = lock(&folder)?;
        if let Some(mark) = read_mark(&folder, role)? {
            return Ok(Self { folder, role, mark, _lock: lock });
        }
        close_to_others(path);
        let secret = (role == Role::Benefactor).then(random_secret).transpose();
        let secret = secret.map_err(|cause| io_error("make a secret for", path, cause))?;
        let directory = Self { folder, role, mark: Mark { secret, ..Mark::default() }, _lock: lock };
        directory.write()?;
        Ok(directory)
    }

    /// The folder itself.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The pool that it belongs to, once that is known.
    pub fn pool(&self) -> Option<PoolId> {
        self.mark.pool
    }

    /// The number that the manager gave to the benefactor, once it has one.
    pub fn benefactor(&self) -> Option<BenefactorId> {
        self.mark.benefactor
    }

    /// What a benefactor proves with that it is the one of this directory.
    pub fn secret(&self) -> Option<&BenefactorSecret> {
        self.mark.secret.as_ref()
    }

    /// Writes down which pool the directory belongs to, and under which number; durable on return.
    ///
    /// # Errors
    /// It belongs to another pool already; then nothing is changed.
    pub fn claim(&mut self, pool: PoolId, benefactor: Option<BenefactorId>) -> Result<(), DataDirError> {
        if let Some(other) = self.mark.pool.filter(|other| *other != pool) {
            let cause = format!("it belongs to pool {other}, not to {pool}; use a directory of its own");
            return Err(unusable(self.path(), self.role, cause));
        }
        let mark = Mark { pool: Some(pool), benefactor, secret: self.mark.secret.clone() };
        if mark == self.mark {
            return Ok(());
        }
        self.mark = mark;
        self.write()
    }

    fn write(&self) -> Result<(), DataDirError> {
        let written = self.folder.replace(MARK, &print(&self.mark, self.role), OWNER_ONLY_FILE);
        written.map_err(|cause| io_error("write", &self.path().join(MARK), cause))
    }
}

/// Lets nobody but the owner in: what a pool keeps holds the content of its files, whatever their permissions. Of a
/// directory that is somebody else's only they can say so.
fn close_to_others(path: &Path) {
    if let Err(error) = fs::set_permissions(path, Permissions::from_mode(OWNER_ONLY)) {
        tracing::warn!(path = %path.display(), %error, "the data directory stays as open to other users as it is");
    }
}

fn refuse_foreign(path: &Path, role: Role) -> Result<(), DataDirError> {
    const OURS: [&str; 3] = [LOCK, MARK_NEW, LOST_AND_FOUND];
    // Copied there for a manager that is to stand by.
    const OF_MANAGERS: &str = "authority";
    let entries = fs::read_dir(path).map_err(|cause| io_error("list", path, cause))?;
    for entry in entries {
        let name = entry.map_err(|cause| io_error("list", path, cause))?.file_name();
        let name = name.to_string_lossy();
        if !OURS.contains(&&*name) && (role != Role::Manager || name != OF_MANAGERS) {
            let example = name.chars().take(80).collect();
            return Err(DataDirError::Foreign { path: path.to_owned(), example });
        }
    }
    Ok(())
}

/// Digits of a process id in the lock file, padded with blanks: each holder overwrites the one before in place.
const PID_WIDTH: usize = 10;

fn lock(directory: &Folder) -> Result<File, DataDirError> {
    let path = directory.path().join(LOCK);
    let opened = match directory.file(LOCK, Access::Make) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => directory.file(LOCK, Access::Read),
        opened => opened,
    };
    let mut file = opened.map_err(|cause| io_error("open", &path, cause))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = holder(&mut file);
            return Err(DataDirError::InUse { path: directory.path().to_owned(), pid });
        }
        Err(cause) => return Err(io_error("lock", &path, cause.into())),
    }
    if let Err(error) = write!(file, "{:<PID_WIDTH$}", std::process::id()) {
        tracing::warn!(path = %path.display(), %error, "the lock doesn't tell this process's number; it holds all the same");
    }
    Ok(file)
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(20).read_to_string(&mut text));
    match text.trim() {
        pid if read.is_ok() && !pid.is_empty() => pid.to_owned(),
        _ => "?".to_owned(),
    }
}

fn print(mark: &Mark, role: Role) -> String {
    let mut text = format!("stdchk {} {LAYOUT}\n", role.name());
    if let Some(pool) = mark.pool {
        text += &format!("pool {pool}\n");
    }
    if let Some(BenefactorId(number)) = mark.benefactor {
        text += &format!("benefactor {number}\n");
    }
    if let Some(BenefactorSecret(secret)) = &mark.secret {
        text += &format!("secret {}\n", blake3::Hash::from_bytes(*secret).to_hex());
    }
    text
}

fn random_secret() -> io::Result<BenefactorSecret> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(BenefactorSecret(secret))
}

/// The mark in `text`, or what stands against using it for `role`.
fn parse(text: &str, role: Role) -> Result<Mark, String> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or("").split(' ').collect();
    let (owner, layout) = match head.as_slice() {
        ["stdchk", owner, layout] => (*owner, layout.parse::<u32>().map_err(|_| damaged())?),
        _ => return Err(damaged()),
    };
    if owner != role.name() {
        let owner: String = owner.chars().take(20).collect();
        return Err(format!("it belongs to a {owner}; use a directory of its own"));
    }
    if layout > LAYOUT {
        return Err(format!(
            "its layout {layout} is that of a later stdchk; use that one, or a new directory"
        ));
    }
    let mut mark = Mark::default();
    for line in lines {
        match line.split_once(' ') {
            Some(("pool", id)) => mark.pool = Some(id.parse().map_err(|_| damaged())?),
            Some(("benefactor", number)) => {
                mark.benefactor = Some(BenefactorId(number.parse().map_err(|_| damaged())?));
            }
            Some(("secret", hex)) => {
                let secret = blake3::Hash::from_hex(hex).map_err(|_| damaged())?;
                mark.secret = Some(BenefactorSecret(*secret.as_bytes()));
            }
            _ => return Err(damaged()),
        }
    }
    if mark.secret.is_some() != (role == Role::Benefactor) {
        return Err(damaged());
    }
    Ok(mark)
}

fn unusable(directory: &Path, role: Role, cause: String) -> DataDirError {
    DataDirError::Unusable { path: directory.to_owned(), role: role.name(), cause }
}

fn damaged() -> String {
    format!("its file `{MARK}` can't be understood; restore that file, or use a new directory")
}

fn io_error(action: &'static str, path: &Path, cause: io::Error) -> DataDirError {
    DataDirError::Io { action, path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId([7; 16]);

    #[test]
    fn a_directory_keeps_whose_it_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new/one");
        let mut directory = DataDir::open(&path, Role::Benefactor).unwrap();
        assert_eq!((directory.pool(), directory.benefactor()), (None, None));
        directory.claim(POOL, Some(BenefactorId(3))).unwrap();
        let secret = directory.secret().cloned();
        drop(directory);
        let mode = fs::metadata(path.join(MARK)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut directory = DataDir::open(&path, Role::Benefactor).unwrap();
        assert_eq!((directory.pool(), directory.benefactor()), (Some(POOL), Some(BenefactorId(3))));
        assert!(secret.is_some() && directory.secret() == secret.as_ref());
        assert_eq!(pool_of(directory.path(), Role::Benefactor).unwrap(), Some(POOL));
        assert!(pool_of(directory.path(), Role::Manager).is_err());
        assert_eq!(pool_of(place.path(), Role::Manager).unwrap(), None);
        let refused = directory.claim(PoolId([8; 16]), None).unwrap_err();
        assert!(refused.to_string().contains("belongs to pool 0707"), "{refused}");
        assert_eq!(directory.pool(), Some(POOL));
        drop(directory);
        let refused = DataDir::open(&path, Role::Manager).unwrap_err();
        assert!(refused.to_string().contains("belongs to a benefactor"), "{refused}");
    }

    #[test]
    fn a_new_directory_is_closed_to_other_users_and_an_owner_may_open_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        drop(DataDir::open(&path, Role::Manager).unwrap());
        assert_eq!(mode(), 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        drop(DataDir::open(&path, Role::Manager).unwrap());
        assert_eq!(mode(), 0o750);
    }

    #[test]
    fn a_second_process_is_told_who_holds_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let held = DataDir::open(place.path(), Role::Manager).unwrap();
        let refused = DataDir::open(place.path(), Role::Manager).unwrap_err();
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
        drop(held);
        DataDir::open(place.path(), Role::Manager).unwrap();
    }

    #[test]
    fn foreign_files_are_refused_and_left_as_they_are() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("thesis.tex"), "x").unwrap();
        let refused = DataDir::open(place.path(), Role::Benefactor).unwrap_err();
        assert!(refused.to_string().contains("thesis.tex"), "{refused}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_authority_is_copied_into_the_folder_of_a_manager_that_is_to_stand_by_and_of_no_other() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("authority")).unwrap();
        assert!(DataDir::open(place.path(), Role::Benefactor).is_err());
        DataDir::open(place.path(), Role::Manager).unwrap();
    }

    #[test]
    fn later_layouts_and_garbled_marks_are_refused() {
        for mark in ["stdchk benefactor 2\n", "stdchk benefactor x\n", "", "stdchk benefactor 1\nwhat\n"] {
            let place = tempfile::tempdir().unwrap();
            fs::write(place.path().join(MARK), mark).unwrap();
            let refused = DataDir::open(place.path(), Role::Benefactor).unwrap_err();
            assert!(matches!(refused, DataDirError::Unusable { .. }), "{refused}");
        }
    }

    #[test]
    fn a_start_that_was_cut_short_can_be_repeated() {
        let place = tempfile::tempdir().unwrap();
        for left in [LOCK, MARK_NEW] {
            fs::write(place.path().join(left), "").unwrap();
        }
        DataDir::open(place.path(), Role::Benefactor).unwrap();
        let mark = fs::read_to_string(place.path().join(MARK)).unwrap();
        assert!(mark.starts_with("stdchk benefactor 1\nsecret "), "{mark}");
    }
}
