//! The directory of a local pool, and the record `pool.json` of what belongs to it.
//!
//! ```text
//! DATA/pool.json           what `up` was asked for; written anew in one step
//! DATA/keys/               the keys of this host in a pool of several machines
//! DATA/manager/            the manager's own data directory
//! DATA/benefactors/0…N-1/  one data directory per benefactor
//! DATA/spool/…             what each mount has not pushed yet, by its mount point
//! DATA/run/*.pid           the processes, one file each; lock
//! DATA/run/*.sock          where manager and benefactors serve
//! DATA/run/down            a `down` that waits for an `up` to end
//! DATA/run/*.waits         what a process has waited for long, while it does
//! DATA/log/*.log           what they say
//! ```

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use stdchk_net::Keys;
use stdchk_net::own::{self, Access, Folder, LOST_AND_FOUND};
use stdchk_net::transport::unix_address;
use stdchk_operations::local_pool::{self, LAYOUT, RECORD};

use super::ProcessRecord;
use crate::command::benefactor::serving::Serving;
use crate::command::benefactor::terms::Terms;
use crate::exit::{About, CommandError, Exit, Outcome};

/// What may be in the directory of a pool; anything else there is somebody else's.
const ENTRIES: [&str; 9] =
    ["pool.json", "pool.json.new", "keys", "manager", "manager.new", "benefactors", "run", "log", "spool"];

/// The directory of a local pool.
#[derive(Clone, Debug)]
pub struct Home {
    data: PathBuf,
}

/// One of the processes of a local pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The manager.
    Manager,
    /// The benefactor with this index.
    Benefactor(u16),
    /// The mount.
    Mount,
}

impl Role {
    /// The name of its log and its run file.
    pub fn name(self) -> String {
        match self {
            Self::Manager => "manager".to_owned(),
            Self::Benefactor(index) => format!("benefactor-{index}"),
            Self::Mount => "mount".to_owned(),
        }
    }
}

/// What a local pool consists of, or this host's part of a pool of several machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// [`LAYOUT`].
    pub layout: u32,
    /// Number of benefactors.
    pub benefactors: u16,
    /// What each benefactor may take, bytes.
    pub donate_bytes: u64,
    /// What every benefactor leaves free on its disk, bytes.
    pub floor_bytes: u64,
    /// Where the pool is mounted.
    pub mount: Option<PathBuf>,
    /// The mount waits for ever for a manager that is away.
    #[serde(default)]
    pub hard: bool,
    /// Where the manager serves on another machine, `host:port`; `None`: it is one of this host.
    #[serde(default)]
    pub manager: Option<String>,
    /// Where the manager of this host serves other machines, `host:port`.
    #[serde(default)]
    pub listen: Option<String>,
    /// Where its benefactors serve other machines.
    #[serde(default)]
    pub serving: Serving,
    /// Where in etcd the pool's state is, if a manager of this host shares it with others.
    #[serde(default)]
    pub store: Option<String>,
    /// On which terms its benefactors work.
    #[serde(default)]
    pub terms: Terms,
    /// Labels of its benefactors, `name=value`.
    #[serde(default)]
    pub labels: Vec<String>,
}

impl PoolRecord {
    /// A record of the present layout.
    pub fn new(benefactors: u16, donate_bytes: u64, floor_bytes: u64) -> Self {
        Self {
            layout: LAYOUT,
            benefactors,
            donate_bytes,
            floor_bytes,
            mount: None,
            hard: false,
            manager: None,
            listen: None,
            serving: Serving::default(),
            store: None,
            terms: Terms::default(),
            labels: Vec::new(),
        }
    }

    /// Where its benefactors and other machines reach the manager; `None`: all of the pool is on this machine.
    pub fn on_network(&self) -> Option<&String> {
        self.manager.as_ref().or(self.listen.as_ref())
    }

    /// Whether this host runs a manager of the pool.
    pub fn has_manager(&self) -> bool {
        self.manager.is_none() || self.store.is_some()
    }

    /// The roles of this pool, in the order in which they start.
    pub fn roles(&self) -> Vec<Role> {
        let benefactors = (0..self.benefactors).map(Role::Benefactor);
        let mount = self.mount.is_some().then_some(Role::Mount);
        let manager = self.has_manager().then_some(Role::Manager);
        manager.into_iter().chain(benefactors).chain(mount).collect()
    }
}

impl Home {
    /// The local pool in `data`, whether it exists or not.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned() }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.data
    }

    /// Where the keys of this host are, in a pool of several machines.
    pub fn keys(&self) -> PathBuf {
        self.data.join(local_pool::KEYS)
    }

    /// The data directory of a role.
    pub fn directory(&self, role: Role) -> PathBuf {
        match role {
            Role::Benefactor(index) => self.data.join("benefactors").join(index.to_string()),
            other => self.data.join(other.name()),
        }
    }

    /// Where a mount at this place keeps what isn't at the pool yet, unless told otherwise.
    pub fn spool(&self, mount_point: &Path) -> PathBuf {
        let name = mount_point.to_string_lossy().replace('%', "%25").replace('/', "%2F");
        self.data.join("spool").join(name)
    }

    /// The spools that mounts have kept here, each with its mount point; none where they can't be listed.
    pub fn spools(&self) -> Vec<(PathBuf, PathBuf)> {
        let Ok(entries) = fs::read_dir(self.data.join("spool")) else { return Vec::new() };
        let mut spools: Vec<_> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().to_str()?.replace("%2F", "/").replace("%25", "%");
                Some((PathBuf::from(name), entry.path()))
            })
            .collect();
        spools.sort();
        spools
    }

    /// Where a role's process is recorded.
    pub fn run_file(&self, role: Role) -> PathBuf {
        self.data.join("run").join(format!("{}.pid", role.name()))
    }

    /// Where the processes and commands of this host reach the manager. A manager that shares the pool's state may stand by: then others lead.
    pub fn manager_address(&self, record: &PoolRecord) -> String {
        local_pool::address(&self.data, record.manager.as_deref(), record.store.is_some())
    }

    /// Where a role serves this machine: a socket.
    pub fn socket(&self, role: Role) -> String {
        unix_address(&self.run_file(role).with_extension("sock"))
    }

    /// Where the long waits of the role with this run file stand while it has some.
    pub fn waits_beside(run_file: &Path) -> PathBuf {
        run_file.with_extension("waits")
    }

    /// Where the role with this run file logs to; `None`: the file is in no folder of a pool.
    pub fn log_beside(run_file: &Path) -> Option<PathBuf> {
        let data = run_file.parent()?.parent()?;
        Some(data.join("log").join(run_file.file_stem()?).with_added_extension("log"))
    }

    /// Where a role logs to.
    pub fn log_file(&self, role: Role) -> PathBuf {
        self.data.join("log").join(format!("{}.log", role.name()))
    }

    /// Makes the directory and what is in it. `mount`: a mount point, which may lie in it.
    ///
    /// # Errors
    /// The directory holds files that are not a pool's.
    pub fn prepare(&self, mount: Option<&Path>) -> Outcome {
        self.refuse_no_folder()?;
        if self.data.to_str().is_none() {
            let next = "choose another directory with `--data DIR`";
            return Err(CommandError::usage(self.data.display(), "its name is not UTF-8", next));
        }
        Folder::make(&self.data).about(self.data.display())?;
        if !self.data.join(RECORD).exists() {
            self.refuse_foreign(mount)?;
        }
        for directory in ["run", "log", "benefactors"] {
            let path = self.data.join(directory);
            Folder::make(&path).about(path.display())?;
        }
        Ok(())
    }

    /// Refuses a `--data` that names something else than a folder.
    fn refuse_no_folder(&self) -> Outcome {
        match fs::metadata(&self.data) {
            Ok(about) if !about.is_dir() => Err(CommandError::usage(
                self.data.display(),
                "it is not a folder",
                "give a folder with `--data DIR`",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses keys without a record: a new pool would not be that of the keys.
    pub fn refuse_left_keys(&self) -> Outcome {
        match Keys::are_in(&self.keys()) {
            false => Ok(()),
            true => Err(CommandError::usage(
                self.keys().display(),
                "this host has begun to join a pool, and did not come to the end",
                "join it with a new token, or remove this folder",
            )),
        }
    }

    fn refuse_foreign(&self, mount: Option<&Path>) -> Outcome {
        for entry in fs::read_dir(&self.data).about(self.data.display())? {
            let entry = entry.about(self.data.display())?;
            let name = entry.file_name();
            let is_ours = |name| ENTRIES.contains(&name) || name == LOST_AND_FOUND;
            let ours = name.to_str().is_some_and(is_ours);
            let mount_there = mount.is_some_and(|mount| mount.starts_with(entry.path()));
            if !ours && !mount_there {
                return Err(CommandError::usage(
                    self.data.display(),
                    format_args!("it holds files that are not a pool's, such as `{}`", name.display()),
                    "choose an empty or a new directory with `--data DIR`",
                ));
            }
        }
        Ok(())
    }

    /// Has an `up` that is at work end, and let go of the lock, until the returned wish is dropped.
    pub fn wish_down(&self) -> Outcome<WishDown> {
        let path = self.data.join("run/down");
        match ProcessRecord::of_self()?.write(&path) {
            Ok(()) => Ok(WishDown(Some(path))),
            // On a disk that takes nothing no `up` gets far.
            Err(_) => Ok(WishDown(None)),
        }
    }

    /// Whether a `down` waits for the lock.
    pub fn is_wished_down(&self) -> Outcome<bool> {
        let process = ProcessRecord::read(&self.data.join("run/down"))?;
        Ok(process.is_some_and(|process| process.is_alive()))
    }

    /// Keeps other `up` and `down` of this pool out until the file is dropped; waits for one that is at work.
    pub fn lock(&self) -> Outcome<File> {
        let path = self.data.join("run/lock");
        let opened = match own::file(&path, Access::Append) {
            // A process on a disk that turned read-only can be stopped.
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => own::file(&path, Access::Read),
            opened => opened,
        };
        let file = opened.about(path.display())?;
        flock(&file, FlockOperation::LockExclusive).about(path.display())?;
        Ok(file)
    }

    /// The record of the pool; `None`: there is no pool here.
    pub fn record(&self) -> Outcome<Option<PoolRecord>> {
        self.refuse_no_folder()?;
        let path = self.data.join(RECORD);
        let text = match own::text(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.about(path.display())?,
        };
        let unusable = |cause: String| {
            CommandError::usage(
                path.display(),
                cause,
                "use the stdchk that wrote it, or another `--data DIR`",
            )
        };
        let record: PoolRecord = serde_json::from_str(&text)
            .map_err(|error| unusable(format!("it is not the record of a pool ({error})")))?;
        match record.layout {
            LAYOUT => Ok(Some(record)),
            other => Err(unusable(format!("it has layout {other}, this stdchk reads layout {LAYOUT}"))),
        }
    }

    /// The record of the pool, which must exist.
    pub fn record_required(&self) -> Outcome<PoolRecord> {
        self.record()?.ok_or_else(|| {
            CommandError::new(
                Exit::NotFound,
                self.data.display(),
                "there is no local pool here",
                "start one with `stdchk up`, or name one with `--data DIR` or `--manager HOST:PORT`",
            )
        })
    }

    /// Writes the record, in one step.
    pub fn write_record(&self, record: &PoolRecord) -> Outcome {
        let path = self.data.join(RECORD);
        let text =
            serde_json::to_string_pretty(record).map_err(std::io::Error::other).about(path.display())?;
        own::replace(&path, &(text + "\n"), 0o644).about(path.display())
    }
}

/// A `down` that waits for the lock: its process stands in a file, as those of roles do.
pub struct WishDown(Option<PathBuf>);

impl Drop for WishDown {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What is left names a process that has ended.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_a_later_layout_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path());
        assert_eq!(home.record().unwrap(), None);
        assert_eq!(home.record_required().unwrap_err().exit, Exit::NotFound);
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        for refused in [Home::new(&file).record().unwrap_err(), Home::new(&file).prepare(None).unwrap_err()] {
            assert!(refused.message.contains("not a folder") && refused.exit == Exit::Usage, "{refused:?}");
        }
        let mut record = PoolRecord::new(4, 1 << 30, 1 << 20);
        home.write_record(&record).unwrap();
        assert_eq!(home.record().unwrap().as_ref(), Some(&record));
        record.layout = LAYOUT + 1;
        home.write_record(&record).unwrap();
        assert_eq!(home.record().unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn a_directory_with_foreign_files_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("thesis.tex"), "text").unwrap();
        let error = Home::new(directory.path()).prepare(None).unwrap_err();
        assert_eq!(error.exit, Exit::Usage);
        assert!(error.message.contains("thesis.tex"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_system_of_its_own_is_an_empty_directory() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("lost+found")).unwrap();
        Home::new(directory.path()).prepare(None).unwrap();
        assert!(directory.path().join("lost+found").is_dir());
    }

    #[test]
    fn a_mount_point_may_lie_in_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path().join("mnt");
        fs::create_dir(&mount).unwrap();
        Home::new(directory.path()).prepare(Some(&mount)).unwrap();
    }

    #[test]
    fn a_spool_is_found_with_its_mount_point() {
        let data = tempfile::tempdir().unwrap();
        let home = Home::new(data.path());
        let points = ["/mnt/%2F and %25", "/mnt/pool"].map(PathBuf::from);
        points.iter().for_each(|point| fs::create_dir_all(home.spool(point)).unwrap());
        assert_eq!(home.spools(), points.map(|point| (point.clone(), home.spool(&point))));
    }
}
