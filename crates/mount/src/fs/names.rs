//! Operations on names: looking up, making, removing, linking and renaming.

use std::sync::Arc;

use stdchk_client::{NewFile, Writer, acting_for};
use stdchk_model::message::manager::{Attr, Change, Existing, FileKind};
use stdchk_model::{ErrorCode, Failure, Ino};

use super::nodes::NodeId;
use super::open_file::OpenFile;
use super::retry::Content;
use super::{FileSystem, OVERTAKEN_MAX, Shown, look_again};
use crate::caller::Caller;

/// Set-group-id bit: on a directory, new entries take its group, and new directories the bit too.
const SET_GROUP_ID: u32 = 0o2000;

/// What a new entry shall be.
#[derive(Clone)]
pub(crate) struct New {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Target of a symbolic link, else empty.
    pub target: String,
}

impl FileSystem {
    /// The entry `name` of a directory, for a task of the kernel.
    pub async fn lookup(&self, parent: NodeId, name: &str, caller: u32) -> Result<Shown, Failure> {
        match self.retries.expected(caller) {
            Some(writable) => self.look_up_to_open(parent, name, caller, writable).await,
            None => self.look_up(parent, name).await,
        }
    }

    pub(super) async fn look_up(&self, parent: NodeId, name: &str) -> Result<Shown, Failure> {
        for _ in 0..OVERTAKEN_MAX {
            let asked_at = self.nodes.lock().changes();
            let attr = self.pool.lookup(parent.ino(), name).await?;
            self.until_left(attr.ino).await;
            let target = match self.target_of(&attr).await {
                Err(failure) if failure.code == ErrorCode::NotFound => continue,
                target => target?,
            };
            if let Some(shown) = self.show_entry(attr, target, asked_at) {
                return Ok(shown);
            }
        }
        Err(too_fast(name))
    }

    /// Target of what a name was found to lead to, if that is a symbolic link. The kernel reads it in a second step, and the link
    /// may be replaced in between: who has found it follows it all the same.
    ///
    /// # Errors
    /// `NotFound`: the link was replaced or removed since.
    async fn target_of(&self, attr: &Attr) -> Result<Option<Arc<str>>, Failure> {
        if attr.kind != FileKind::Symlink {
            return Ok(None);
        }
        let known = {
            let nodes = self.nodes.lock();
            nodes.target(nodes.id_of(attr.ino))
        };
        match known {
            Some(known) => Ok(Some(known)),
            None => self.pool.read_link(attr.ino).await.map(|target| Some(target.into())),
        }
    }

    /// Shows an entry to the kernel, with its target if it is a link.
    fn show_entry(&self, attr: Attr, target: Option<Arc<str>>, asked_at: u64) -> Option<Shown> {
        let shown = self.show(attr, asked_at)?;
        if let Some(target) = target {
            self.nodes.lock().learned_target(shown.id, target);
        }
        Some(shown)
    }

    /// A file that was found where one was to be made that is empty. The kernel takes it for new, and keeps size and pages of
    /// an inode that it holds: so it is shown another one.
    ///
    /// # Errors
    /// `Stale` if it is being written here: the kernel looks the name up again, and truncates the inode that it holds.
    pub(super) async fn look_up_emptied(&self, parent: NodeId, name: &str) -> Result<Shown, Failure> {
        let found = self.look_up(parent, name).await?;
        if found.attr.kind != FileKind::File {
            return Ok(found);
        }
        let renewed = self.nodes.lock().renew(found.id);
        self.forget(found.id, 1);
        let Some(asked_at) = renewed else {
            let what = format!("`{name}` was made meanwhile and is being written: open it again");
            return Err(Failure::new(ErrorCode::Stale, what));
        };
        self.show_surely(found.attr, asked_at).await
    }

    async fn until_left(&self, ino: Ino) {
        let open = {
            let nodes = self.nodes.lock();
            nodes.open_file(nodes.id_of(ino))
        };
        if let Some(open) = open {
            open.until_left().await;
        }
    }

    /// The last look at a name before the kernel opens what it leads to, come what may: the content is opened with it,
    /// so that no change that comes in between can make the open fail.
    async fn look_up_to_open(
        &self,
        parent: NodeId,
        name: &str,
        caller: u32,
        writable: bool,
    ) -> Result<Shown, Failure> {
        for _ in 0..OVERTAKEN_MAX {
            let asked_at = self.nodes.lock().changes();
            let attr = self.pool.lookup(parent.ino(), name).await?;
            let (attr, content) = match self.content(attr, writable).await {
                Err(failure) if failure.code == ErrorCode::NotFound => continue,
                opened => opened?,
            };
            let target = match self.target_of(&attr).await {
                Err(failure) if failure.code == ErrorCode::NotFound => continue,
                target => target?,
            };
            // Removed or replaced after the look at its name: then it has handed its versions on.
            if content.opened().is_some_and(|opened| opened.links == 0) {
                content.end().await;
                continue;
            }
            let is_file = attr.kind == FileKind::File;
            match self.show_entry(attr, target, asked_at) {
                Some(shown) if is_file => {
                    self.retries.prepare(caller, writable, shown.id, content).await;
                    return Ok(shown);
                }
                Some(shown) => return Ok(shown),
                None => content.end().await,
            }
        }
        Err(too_fast(name))
    }

    /// Opens the newest version of a file. One that is written here is open already.
    async fn content(&self, attr: Attr, writable: bool) -> Result<(Attr, Content), Failure> {
        let shared = {
            let nodes = self.nodes.lock();
            attr.kind != FileKind::File || nodes.is_written(nodes.id_of(attr.ino))
        };
        if shared {
            return Ok((attr, Content::Shared));
        }
        let content = match writable {
            true => Content::Writer(self.writer(attr.ino).await?),
            false => Content::Version(self.pool.read(attr.ino, None).await?),
        };
        // The name led here when it was looked up; if it has been changed since, the next open must notice.
        let named = attr.named;
        Ok((Attr { named, ..content.opened().cloned().unwrap_or(attr) }, content))
    }

    /// Makes a new entry.
    pub async fn make(&self, parent: NodeId, name: &str, mut new: New) -> Result<Shown, Failure> {
        self.inherit_group(parent, &mut new).await?;
        let New { kind, mode, uid, gid, target } = new;
        let change =
            Change::Make { parent: parent.ino(), name: name.to_owned(), kind, mode, uid, gid, target };
        let made = self.entry(change).await;
        self.nodes.lock().changed_otherwise();
        match made {
            Err(failure) => Err(self.in_directory(parent, failure).await),
            made => made,
        }
    }

    /// Makes a file and opens it for writing in one step. Unless it is `exclusive` it is durable with its first commit.
    pub(super) async fn make_to_write(
        &self,
        parent: NodeId,
        name: &str,
        mut new: New,
        exclusive: bool,
    ) -> Result<(Shown, Arc<Writer>), Failure> {
        self.inherit_group(parent, &mut new).await?;
        let New { mode, uid, gid, .. } = new;
        let file = NewFile { parent: parent.ino(), name: name.to_owned(), mode, uid, gid, exclusive };
        let asked_at = self.nodes.lock().changes();
        let writer = match self.pool.create(file, self.spool.as_ref()).await {
            Err(failure) => return Err(self.in_directory(parent, failure).await),
            writer => writer?,
        };
        // It was named when it was made.
        self.nodes.lock().made_in(parent, writer.opened().named);
        match self.show_surely(writer.opened().clone(), asked_at).await {
            Ok(shown) => Ok((shown, writer)),
            Err(failure) => {
                Content::Writer(writer).end().await;
                Err(failure)
            }
        }
    }

    async fn inherit_group(&self, parent: NodeId, new: &mut New) -> Result<(), Failure> {
        let known = self.nodes.lock().last_attr(parent).map(|attr| (attr.mode, attr.gid));
        let (mode, gid) = match known {
            Some(known) => known,
            None => self.attr(parent).await.map(|attr| (attr.mode, attr.gid))?,
        };
        if mode & SET_GROUP_ID != 0 {
            new.gid = gid;
            if new.kind == FileKind::Directory {
                new.mode |= SET_GROUP_ID;
            }
        }
        Ok(())
    }

    /// A change that leaves an entry to show.
    async fn entry(&self, change: Change) -> Result<Shown, Failure> {
        let asked_at = self.nodes.lock().changes();
        let attr = self.changed(change).await?;
        self.show_surely(attr, asked_at).await
    }

    /// Shows an entry that this mount has just made, asking for the inode again if its attributes are outdated.
    async fn show_surely(&self, mut attr: Attr, mut asked_at: u64) -> Result<Shown, Failure> {
        let (ino, named) = (attr.ino, attr.named);
        for _ in 0..OVERTAKEN_MAX {
            if let Some(shown) = self.show(attr, asked_at) {
                return Ok(shown);
            }
            asked_at = self.nodes.lock().changes();
            attr = Attr { named, ..self.pool.attr(ino).await? };
        }
        Err(Failure::new(ErrorCode::Stale, format!("file {ino} changes faster than it can be looked at")))
    }

    pub(super) async fn changed(&self, change: Change) -> Result<Attr, Failure> {
        self.pool.change(change).await?.ok_or_else(without_entry)
    }

    /// Another name for a file.
    ///
    /// # Errors
    /// `Stale` if the name by which the kernel came to the file may lead to another one by now: it looks the name up again.
    pub async fn link(&self, id: NodeId, parent: NodeId, name: &str, task: u32) -> Result<Shown, Failure> {
        self.check_names(id, task).await?;
        let (ino, parent, name) = (id.ino(), parent.ino(), name.to_owned());
        let linked = self.changed(Change::Link { ino, parent, name }).await.map_err(look_again)?;
        let asked_at = {
            let mut nodes = self.nodes.lock();
            nodes.changed_otherwise();
            nodes.named_here(&linked);
            nodes.changes()
        };
        self.show_surely(linked, asked_at).await
    }

    /// Removes a name of a file.
    pub async fn unlink(&self, parent: NodeId, name: &str, caller: &Caller) -> Result<(), Failure> {
        self.pin_open(parent, name).await?;
        let change = Change::Unlink { parent: parent.ino(), name: name.to_owned() };
        let left = caller.step(self.changed(change)).await;
        self.nodes.lock().changed_otherwise();
        match left {
            Err(failure) => Err(self.in_directory(parent, failure).await),
            Ok(left) => {
                self.nodes.lock().named_here(&left);
                Ok(())
            }
        }
    }

    /// A file that is being read keeps its chunks when its name goes, or is given to another one. The file, unless nothing is open at
    /// all.
    async fn pin_open(&self, parent: NodeId, name: &str) -> Result<Option<Attr>, Failure> {
        let (found, open) = self.open_under(parent, name).await?.unzip();
        for file in open.into_iter().flatten() {
            // For who reads, not for who removes; a host that acts for one user may have a file open that this one may not write.
            match acting_for(None, file.pin(&self.pool)).await {
                Err(failure) if failure.code == ErrorCode::Denied => {
                    tracing::debug!(ino = %file.id().ino(), %failure, "an open file is removed without being kept");
                }
                pinned => pinned?,
            }
        }
        Ok(found)
    }

    /// What a name leads to, with its open files; the manager isn't asked when nothing is open at all.
    async fn open_under(
        &self,
        parent: NodeId,
        name: &str,
    ) -> Result<Option<(Attr, Vec<Arc<OpenFile>>)>, Failure> {
        if !self.nodes.lock().has_open() {
            return Ok(None);
        }
        let attr = self.pool.lookup(parent.ino(), name).await?;
        let open = self.nodes.lock().open_of(attr.ino);
        Ok(Some((attr, open)))
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, parent: NodeId, name: &str) -> Result<(), Failure> {
        let removed = self.pool.change(Change::Rmdir { parent: parent.ino(), name: name.to_owned() }).await;
        self.nodes.lock().changed_otherwise();
        match removed {
            Err(failure) => Err(self.in_directory(parent, failure).await),
            Ok(removed) => {
                self.nodes.lock().removed_here(&removed.ok_or_else(without_entry)?);
                Ok(())
            }
        }
    }

    /// Renames; what was written under the old name is committed first, unless it waits in the spool.
    pub async fn rename(
        &self,
        (parent, name): (NodeId, &str),
        (new_parent, new_name): (NodeId, &str),
        existing: Existing,
        caller: &Caller,
    ) -> Result<(), Failure> {
        let mut open = self.open_under(parent, name).await?.map_or_else(Vec::new, |(_, open)| open);
        open.sort_by_key(|file| file.id());
        if !open.is_empty() || self.unreported_losses() > 0 {
            // What is committed for a rename, and who learns of a loss by it, is for who may rename.
            let (parent, name) = (parent.ino(), name.to_owned());
            let (new_parent, new_name) = (new_parent.ino(), new_name.to_owned());
            let rename = Change::Rename { parent, name, new_parent, new_name, existing };
            self.pool.may_change(rename).await?;
        }
        let mut spooled = false;
        for file in &open {
            spooled |= acting_for(None, file.settle(&self.pool)).await?;
        }
        let existing = match existing {
            Existing::Replace if spooled => {
                self.push_replaced(new_parent, new_name).await?;
                Existing::ReplaceOnCommit
            }
            existing => existing,
        };
        let replaced = match existing {
            Existing::Replace | Existing::ReplaceOnCommit => {
                self.pin_open(new_parent, new_name).await.or_else(or_none)?
            }
            Existing::Exchange | Existing::Refuse => None,
        };
        // From here on nobody opens or leaves the file by the number that its version had.
        let mut turns = Vec::with_capacity(open.len());
        for file in &open {
            turns.push((file, file.turn.lock().await));
        }
        let (parent, new_folder) = (parent.ino(), new_parent.ino());
        let before = self.pool.lookup(parent, name).await?;
        self.report_lost(before.ino)?;
        self.check_left_alone(before.ino)?;
        let other = match existing {
            Existing::Exchange => Some(self.pool.lookup(new_folder, new_name).await?),
            Existing::Replace | Existing::ReplaceOnCommit | Existing::Refuse => None,
        };
        let covered = match before.kind {
            FileKind::Directory if other.is_none() => {
                self.pool.lookup(new_folder, new_name).await.map(Some).or_else(or_none)?
            }
            _ => None,
        };
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let rename = Change::Rename { parent, name, new_parent: new_folder, new_name, existing };
        let changed = caller.step(self.pool.change_held(rename)).await;
        self.nodes.lock().changed_otherwise();
        let (after, hold) = match changed {
            Err(failure) => return Err(self.in_directory(new_parent, failure).await),
            changed => changed?,
        };
        let after = after.ok_or_else(without_entry)?;
        self.renamed(&before, &after, other, replaced);
        if let Some(covered) = covered.filter(|covered| covered.ino != after.ino) {
            self.nodes.lock().removed_here(&covered);
        }
        for (file, turn) in &mut turns {
            file.renumbered(turn, before.version, after.version);
        }
        drop(turns);
        if let Some(hold) = hold {
            self.pool.await_copies(after.ino, hold).await;
        }
        Ok(())
    }

    /// What a file that is about to be replaced has in the spool is to be an earlier version of the one that takes its
    /// place. If it can't be pushed now it is given up, like that of a file that is removed.
    async fn push_replaced(&self, parent: NodeId, name: &str) -> Result<(), Failure> {
        let replaced = match self.open_under(parent, name).await {
            Err(failure) if failure.code == ErrorCode::NotFound => Vec::new(),
            open => open?.map_or_else(Vec::new, |(_, open)| open),
        };
        for file in replaced {
            if let Err(failure) = file.wait_for_push().await {
                tracing::warn!(ino = %file.id().ino(), %failure, "a file is replaced that could not be pushed");
            }
        }
        Ok(())
    }

    /// What a rename changes in what the kernel holds. A file that takes the place of another takes over its versions:
    /// its own have new numbers, and its content is the same.
    fn renamed(&self, before: &Attr, after: &Attr, exchanged: Option<Attr>, replaced: Option<Attr>) {
        let mut nodes = self.nodes.lock();
        nodes.named_here(after);
        let id = nodes.id_of(after.ino);
        nodes.saw(id, |seen| {
            if seen.fits(before) {
                seen.version = after.version;
            }
        });
        // Both got their names in the same step, or one lost a name and may have others.
        exchanged.inspect(|other| nodes.named_here(&Attr { named: after.named, ..other.clone() }));
        let is_known = |replaced: &Attr| nodes.is_named(nodes.id_of(replaced.ino), replaced);
        if let Some(replaced) = replaced.filter(is_known) {
            nodes.named_here(&Attr { named: after.named, ..replaced });
        }
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, id: NodeId) -> Result<Arc<str>, Failure> {
        let known = self.nodes.lock().target(id);
        if let Some(known) = known {
            return Ok(known);
        }
        let target: Arc<str> = self.pool.read_link(id.ino()).await.map_err(look_again)?.into();
        self.nodes.lock().learned_target(id, Arc::clone(&target));
        Ok(target)
    }
}

fn without_entry() -> Failure {
    Failure::new(ErrorCode::Malformed, "the manager answered a change without its entry")
}

fn or_none<T>(failure: Failure) -> Result<Option<T>, Failure> {
    if failure.code == ErrorCode::NotFound { Ok(None) } else { Err(failure) }
}

fn too_fast(name: &str) -> Failure {
    Failure::new(ErrorCode::Stale, format!("`{name}` changes faster than it can be looked up"))
}
