//! What clients do with the pool, each as a task of its client.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stdchk_client::time::now;
use stdchk_client::{NewFile, Pool, Session, Spool, Writer};
use stdchk_model::message::manager::{Change, Existing, VersionState};
use stdchk_model::{ErrorCode, Failure, Ino};
use tokio::time::sleep;

use super::content::{Edit, new_content};
use super::log::Log;
use super::model::{Content, Name, Names, Turn, shown};
use super::plant::Plant;
use super::random::Random;

/// Names in a folder.
pub const NAMES: usize = 4;
/// Time within which every call of a client ends, whatever happens to the pool meanwhile.
const LIMIT: Duration = Duration::from_secs(600);

/// A folder of the pool.
pub struct Folder {
    pub ino: Ino,
    /// Whether what is committed in it survives the loss of a disk.
    pub is_safe: AtomicBool,
}

impl Folder {
    fn is_safe(&self) -> bool {
        self.is_safe.load(Ordering::Relaxed)
    }
}

/// A client at work.
pub struct Worker {
    pub who: String,
    pub pool: Pool,
    pub spool: Option<Arc<Spool>>,
    pub names: Names,
    pub folders: Arc<Vec<Folder>>,
    /// Some benefactors keep blocks in memory.
    pub has_memory: bool,
    pub log: Log,
    pub random: Random,
    pub plant: Plant,
}

pub fn name_of((_, number): Name) -> String {
    format!("a.N{number}.T1")
}

/// Something that a client does.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    Write(Name),
    Read(Name),
    Rename(Name, Name),
    Remove(Name),
    Policy(usize),
    Collect,
    LookAround(usize),
}

impl Worker {
    /// Does it, and says so.
    pub async fn work(mut self, deed: Deed) {
        let (who, log) = (self.who.clone(), self.log.clone());
        match tokio::time::timeout(LIMIT, self.deed(deed)).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => log.say(format_args!("{who}: {deed:?} failed: {failure}")),
            Err(_) => log.fail(format_args!("{who}: {deed:?} hangs")),
        }
    }

    fn say(&self, what: impl Display) {
        self.log.say(format_args!("{}: {what}", self.who));
    }

    async fn deed(&mut self, deed: Deed) -> Result<(), Failure> {
        match deed {
            Deed::Write(name) => self.write(name).await,
            Deed::Read(name) => self.read(name).await.map(drop),
            Deed::Rename(from, to) => self.rename(from, to).await,
            Deed::Remove(name) => self.remove(name).await,
            Deed::Policy(folder) => self.policy(folder).await,
            Deed::Collect => {
                let collected = self.pool.collect(false).await?;
                self.say(format_args!("collected {} chunks", collected.chunks));
                Ok(())
            }
            Deed::LookAround(folder) => self.look_around(folder).await,
        }
    }

    async fn think(&mut self) {
        let time = match self.random.below(8) {
            0 => self.random.ms(100..3000),
            1..4 => self.random.ms(1..100),
            _ => return,
        };
        sleep(time).await;
    }

    async fn write(&mut self, name: Name) -> Result<(), Failure> {
        let Some(turn) = self.names.turn(name) else { return Ok(()) };
        let folders = Arc::clone(&self.folders);
        let folder = &folders[name.0];
        match self.pool.lookup(folder.ino, &name_of(name)).await {
            Ok(attr) if self.random.once_in(4) => self.rewrite(attr.ino, &turn, folder).await,
            Ok(attr) if self.random.once_in(3) => self.replace(attr.ino, &turn, folder).await,
            Ok(attr) => self.update(attr.ino, &turn, folder).await,
            Err(failure) if failure.code == ErrorCode::NotFound => self.create(&turn, folder).await,
            Err(failure) => Err(failure),
        }
    }

    async fn create(&mut self, turn: &Turn, folder: &Folder) -> Result<(), Failure> {
        turn.may_be(&Some(Arc::default()));
        let (name, exclusive) = (name_of(turn.name), self.random.once_in(4));
        let file = NewFile { parent: folder.ino, name: name.clone(), mode: 0o644, uid: 0, gid: 0, exclusive };
        let writer = match self.pool.create(file, self.spool.as_ref()).await {
            Err(failure) if failure.code == ErrorCode::Exists && exclusive => {
                turn.came_to_nothing();
                return Err(failure);
            }
            // It made the file, and the answer was lost with the manager.
            Err(failure) if failure.code == ErrorCode::Exists => {
                let made = self.pool.lookup(folder.ino, &name).await?;
                self.pool.writer(made.ino, self.spool.as_ref()).await?
            }
            created => created?,
        };
        self.write_by(&writer, turn, folder).await
    }

    /// Writes a file anew by the protocol of the client.
    async fn rewrite(&mut self, ino: Ino, turn: &Turn, folder: &Folder) -> Result<(), Failure> {
        let writer = self.pool.writer(ino, self.spool.as_ref()).await?;
        match writer.truncate(0).await {
            Ok(()) => self.write_by(&writer, turn, folder).await,
            Err(failure) => writer.close(false).await.and(Err(failure)),
        }
    }

    async fn write_by(&mut self, writer: &Arc<Writer>, turn: &Turn, folder: &Folder) -> Result<(), Failure> {
        let was_safe = folder.is_safe();
        let content = new_content(&mut self.random);
        let written = self.write_all_of(writer, turn, Arc::clone(&content)).await;
        if written.is_ok() || self.plant == Plant::ToldBeforeStored {
            self.acknowledged(turn, Some(content), was_safe && folder.is_safe(), "made");
        }
        let closed = writer.close(false).await;
        written.and(closed)
    }

    async fn write_all_of(
        &mut self,
        writer: &Arc<Writer>,
        turn: &Turn,
        content: Arc<Vec<u8>>,
    ) -> Result<(), Failure> {
        for part in self.parts(&content) {
            writer.write_at(part.0 as u64, &part.1).await?;
            self.think().await;
        }
        let content = Some(content);
        turn.may_be(&content);
        if !writer.is_spooled() || self.random.once_in(4) {
            return writer.commit(now()).await.map(drop);
        }
        writer.flush(now(), true).await?;
        if writer.is_closed_in_spool() {
            self.say(format_args!("closed {:?} in its spool: {}", turn.name, shown(&content)));
            turn.will_be(&content);
        }
        self.think().await;
        self.push(writer).await
    }

    /// Brings to the pool what is closed in the spool, as a mount does in the background.
    async fn push(&mut self, writer: &Arc<Writer>) -> Result<(), Failure> {
        loop {
            match writer.push(now(), VersionState::Closed).await {
                Err(failure) if failure.code == ErrorCode::NotFound && self.pool.is_gone(&failure).await => {
                    writer.discard(&self.pool).await?;
                    return Err(failure);
                }
                Err(failure) => self.say(format_args!("can't push yet: {failure}")),
                Ok(_) => return Ok(()),
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    async fn replace(&mut self, ino: Ino, turn: &Turn, folder: &Folder) -> Result<(), Failure> {
        let session = self.pool.replace(ino).await?;
        let replaced = self.replace_in(&session, turn, folder).await;
        let closed = session.close(false).await;
        replaced.and(closed)
    }

    async fn replace_in(
        &mut self,
        session: &Arc<Session>,
        turn: &Turn,
        folder: &Folder,
    ) -> Result<(), Failure> {
        let was_safe = folder.is_safe();
        let content = new_content(&mut self.random);
        for part in self.parts(&content) {
            session.write_at(part.0 as u64, &part.1).await?;
            self.think().await;
        }
        let content = Some(content);
        turn.may_be(&content);
        session.commit_last(now()).await?;
        self.acknowledged(turn, content, was_safe && folder.is_safe(), "replaced");
        Ok(())
    }

    /// Changes parts of a file, in one version or several.
    async fn update(&mut self, ino: Ino, turn: &Turn, folder: &Folder) -> Result<(), Failure> {
        let session = self.pool.write(ino).await?;
        let updated = self.update_in(&session, turn, folder).await;
        let closed = session.close(false).await;
        updated.and(closed)
    }

    async fn update_in(
        &mut self,
        session: &Arc<Session>,
        turn: &Turn,
        folder: &Folder,
    ) -> Result<(), Failure> {
        let mut bytes = read_all(session).await?;
        let base = Some(Arc::new(bytes.clone()));
        if !turn.allowed().contains(&base) {
            let (name, allowed) = (turn.name, all_shown(&turn.allowed()));
            self.log.fail(format_args!(
                "{}: {name:?} is {} for a writer, not {allowed}",
                self.who,
                shown(&base)
            ));
        }
        for _ in 0..self.random.within(1..3) {
            let was_safe = folder.is_safe();
            for _ in 0..self.random.within(1..4) {
                let edit = Edit::of(bytes.len(), &mut self.random);
                match &edit {
                    Edit::Write(offset, new) => session.write_at(*offset as u64, new).await?,
                    Edit::Truncate(length) => session.truncate(*length as u64).await?,
                }
                edit.apply(&mut bytes);
                self.think().await;
            }
            if self.random.once_in(10) {
                self.say(format_args!("gives up a change of {:?}", turn.name));
                break;
            }
            let content = Some(Arc::new(bytes.clone()));
            turn.may_be(&content);
            session.commit(now()).await?;
            self.acknowledged(turn, content, was_safe && folder.is_safe(), "changed");
        }
        Ok(())
    }

    fn acknowledged(&self, turn: &Turn, content: Content, is_safe: bool, what: &str) {
        let safely = if is_safe { "safely " } else { "" };
        self.say(format_args!("{safely}{what} {:?}: {}", turn.name, shown(&content)));
        turn.is(vec![content], is_safe);
    }

    /// The bytes in the parts in which they are written.
    fn parts(&mut self, bytes: &Arc<Vec<u8>>) -> Vec<(usize, Vec<u8>)> {
        let size = match self.random.below(3) {
            0 => bytes.len().max(1),
            1 => self.random.within(1000..20_000),
            _ => 65_536,
        };
        let mut parts: Vec<_> =
            bytes.chunks(size).enumerate().map(|(number, part)| (number * size, part.to_vec())).collect();
        if self.random.once_in(4) {
            parts.reverse();
        }
        parts
    }

    /// Reads a file and compares; what it holds.
    pub async fn read(&mut self, name: Name) -> Result<Content, Failure> {
        let look = self.names.look(name);
        let folder = self.folders[name.0].ino;
        let attr = match self.pool.lookup(folder, &name_of(name)).await {
            Err(failure) if failure.code == ErrorCode::NotFound => {
                self.compare(name, look.may_have_been(&None), &None);
                return Ok(None);
            }
            found => found?,
        };
        let reader = self.pool.read(attr.ino, None).await?;
        let mut bytes = Vec::new();
        while bytes.len() < usize::try_from(reader.size()).unwrap() {
            let length = self.random.within(1..300_000);
            bytes.extend_from_slice(&reader.read_at(bytes.len() as u64, length).await?);
        }
        let content = Some(Arc::new(bytes));
        // The file may have had another name meanwhile, or none.
        let after = self.pool.lookup(folder, &name_of(name)).await?;
        if after.ino == attr.ino && reader.version().is_none_or(|version| version == after.version) {
            self.compare(name, look.may_have_been(&content), &content);
        }
        Ok(content)
    }

    fn compare(&self, name: Name, is_right: bool, content: &Content) {
        if !is_right {
            let allowed = all_shown(&self.names.allowed(name));
            self.log.fail(format_args!("{}: {name:?} is {}, not {allowed}", self.who, shown(content)));
        }
    }

    async fn rename(&mut self, from: Name, to: Name) -> Result<(), Failure> {
        let (Some(source), Some(target)) = (self.names.turn(from), self.names.turn(to)) else {
            return Ok(());
        };
        if source.allowed() == [None] {
            return Ok(());
        }
        let was_safe = self.folders[to.0].is_safe();
        target.may_take_over(&source);
        source.may_be(&None);
        let (parent, new_parent) = (self.folders[from.0].ino, self.folders[to.0].ino);
        let (name, new_name) = (name_of(from), name_of(to));
        let change = Change::Rename { parent, name, new_parent, new_name, existing: Existing::Replace };
        self.pool.change(change).await?;
        self.say(format_args!("renamed {from:?} to {to:?}"));
        target.took_over(&source, was_safe && self.folders[to.0].is_safe());
        Ok(())
    }

    async fn remove(&mut self, name: Name) -> Result<(), Failure> {
        let Some(turn) = self.names.turn(name) else { return Ok(()) };
        turn.may_be(&None);
        let change = Change::Unlink { parent: self.folders[name.0].ino, name: name_of(name) };
        self.pool.change(change).await?;
        self.say(format_args!("removed {name:?}"));
        turn.is(vec![None], true);
        Ok(())
    }

    async fn policy(&mut self, folder: usize) -> Result<(), Failure> {
        const POLICIES: [(&str, &str); 8] = [
            ("redundancy", "replicate:1"),
            ("redundancy", "replicate:2"),
            ("redundancy", "replicate:3"),
            ("redundancy", "erasure:2,1"),
            ("semantics", "optimistic"),
            ("semantics", "pessimistic"),
            ("semantics", "memory:1"),
            ("semantics", "memory:2"),
        ];
        let of_disks = POLICIES.iter().filter(|(_, value)| copies_in_memory(value).is_none()).count();
        let policies = &POLICIES[..if self.has_memory { POLICIES.len() } else { of_disks }];
        let (key, value) = *self.random.one_of(policies);
        let folders = Arc::clone(&self.folders);
        let folder_of = &folders[folder];
        // Whatever comes of it: what is written meanwhile may be written by the old policy or by the new one.
        folder_of.is_safe.store(false, Ordering::Relaxed);
        if value == "replicate:1" {
            self.names.endanger(folder);
        }
        if let Some(copies) = copies_in_memory(value) {
            self.names.memory_suffices(folder, copies);
        }
        self.set_policy(folder, &[(key, value)]).await
    }

    pub async fn set_policy(&self, folder: usize, pairs: &[(&str, &str)]) -> Result<(), Failure> {
        let ino = self.folders[folder].ino;
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.say(format_args!("sets the policy of folder {folder}: {pairs:?}"));
        self.pool.change(Change::SetPolicy { ino, pairs }).await.map(drop)
    }

    async fn look_around(&mut self, folder: usize) -> Result<(), Failure> {
        let folder = self.folders[folder].ino;
        self.pool.status().await?;
        for entry in self.pool.read_dir(folder, None, 100).await? {
            self.pool.versions(entry.attr.ino).await?;
        }
        self.pool.sets(folder).await.map(drop)
    }
}

/// How many copies in memory are enough by a value of `semantics`; `None`: only disks count.
pub fn copies_in_memory(semantics: &str) -> Option<u8> {
    semantics.strip_prefix("memory:").map(|copies| copies.parse().unwrap())
}

fn all_shown(contents: &[Content]) -> String {
    contents.iter().map(shown).collect::<Vec<_>>().join(" or ")
}

async fn read_all(session: &Arc<Session>) -> Result<Vec<u8>, Failure> {
    let size = usize::try_from(session.size()).unwrap();
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        bytes.extend_from_slice(&session.read_at(bytes.len() as u64, size - bytes.len()).await?);
    }
    Ok(bytes)
}
