//! Operations on names: looking up, making, removing, linking and renaming.

use stdchk_model::message::manager::{Attr, Change, Existing, FileKind};
use stdchk_model::{ErrorCode, Failure};

use super::nodes::NodeId;
use super::{FileSystem, OVERTAKEN_MAX, Shown};

/// Set-group-id bit: on a directory, new entries take its group, and new directories the bit too.
const SET_GROUP_ID: u32 = 0o2000;

/// What a new entry shall be.
pub(crate) struct New {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Target of a symbolic link, else empty.
    pub target: String,
}

impl FileSystem {
    /// The entry `name` of a directory.
    pub async fn lookup(&self, parent: NodeId, name: &str) -> Result<Shown, Failure> {
        for _ in 0..OVERTAKEN_MAX {
            let asked_at = self.nodes.lock().changes();
            let attr = self.pool.lookup(parent.ino(), name).await?;
            if let Some(shown) = self.show(attr, asked_at) {
                return Ok(shown);
            }
        }
        Err(Failure::new(ErrorCode::Stale, format!("`{name}` changes faster than it can be looked up")))
    }

    /// Makes a new entry.
    pub async fn make(&self, parent: NodeId, name: &str, mut new: New) -> Result<Shown, Failure> {
        self.inherit_group(parent, &mut new).await?;
        let New { kind, mode, uid, gid, target } = new;
        let (parent, name) = (parent.ino(), name.to_owned());
        self.entry(Change::Make { parent, name, kind, mode, uid, gid, target }).await
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
        let ino = attr.ino;
        match self.show(attr, asked_at) {
            Some(shown) => Ok(shown),
            None => self.show_again(ino).await,
        }
    }

    async fn show_again(&self, ino: stdchk_model::Ino) -> Result<Shown, Failure> {
        for _ in 0..OVERTAKEN_MAX {
            let asked_at = self.nodes.lock().changes();
            let attr = self.pool.attr(ino).await?;
            if let Some(shown) = self.show(attr, asked_at) {
                return Ok(shown);
            }
        }
        Err(Failure::new(ErrorCode::Stale, format!("file {ino} changes faster than it can be looked at")))
    }

    pub(super) async fn changed(&self, change: Change) -> Result<Attr, Failure> {
        let attr = self.pool.change(change).await?;
        attr.ok_or_else(|| {
            Failure::new(ErrorCode::Malformed, "the manager answered a change without its entry")
        })
    }

    /// Another name for a file.
    pub async fn link(&self, id: NodeId, parent: NodeId, name: &str) -> Result<Shown, Failure> {
        self.entry(Change::Link { ino: id.ino(), parent: parent.ino(), name: name.to_owned() }).await
    }

    /// Removes a name of a file.
    pub async fn unlink(&self, parent: NodeId, name: &str) -> Result<(), Failure> {
        self.pin_open(parent, name).await?;
        self.pool.change(Change::Unlink { parent: parent.ino(), name: name.to_owned() }).await.map(|_| ())
    }

    /// A file that is being read keeps its chunks when its name goes.
    async fn pin_open(&self, parent: NodeId, name: &str) -> Result<(), Failure> {
        for file in self.open_under(parent, name).await? {
            file.pin(&self.pool).await?;
        }
        Ok(())
    }

    /// The open files that a name leads to; the manager isn't asked when nothing is open at all.
    async fn open_under(
        &self,
        parent: NodeId,
        name: &str,
    ) -> Result<Vec<std::sync::Arc<super::open_file::OpenFile>>, Failure> {
        if self.nodes.lock().all_open().is_empty() {
            return Ok(Vec::new());
        }
        let ino = self.pool.lookup(parent.ino(), name).await?.ino;
        let mut open = self.nodes.lock().all_open();
        open.retain(|file| file.id().ino() == ino);
        Ok(open)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, parent: NodeId, name: &str) -> Result<(), Failure> {
        self.pool.change(Change::Rmdir { parent: parent.ino(), name: name.to_owned() }).await.map(|_| ())
    }

    /// Renames; what was written under the old name is committed first.
    pub async fn rename(
        &self,
        (parent, name): (NodeId, &str),
        (new_parent, new_name): (NodeId, &str),
        existing: Existing,
    ) -> Result<(), Failure> {
        for file in self.open_under(parent, name).await? {
            file.settle(&self.pool).await?;
        }
        let ino = self.pool.lookup(parent.ino(), name).await?.ino;
        let (parent, new_parent) = (parent.ino(), new_parent.ino());
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.pool.change(Change::Rename { parent, name, new_parent, new_name, existing }).await?;
        // A file that takes the place of another takes over its versions: its own may have new numbers.
        let mut nodes = self.nodes.lock();
        let id = nodes.id_of(ino);
        nodes.saw(id, |seen| seen.version = None);
        Ok(())
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, id: NodeId) -> Result<String, Failure> {
        self.pool.read_link(id.ino()).await
    }
}
