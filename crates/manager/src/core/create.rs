//! Files that are made and opened for writing in one step, and when answers may leave.
//!
//! Whoever makes a file writes to it next, and is promised nothing of it before it is synced or closed. So the answer to
//! [`ManagerRequest::Create`] doesn't wait for the disk: the file becomes durable with the commit of its content. Until then
//! a crash of the manager may forget it, as that of a machine forgets a new file of a local disk. Its writer lives on, and
//! makes it again under the same number, which nobody else can have been given: numbers are stored before they are used.

use stdchk_model::limits::SMALL_BYTES;
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, Need};
use stdchk_model::{Ino, OpId};

use super::{Answer, Core, Now, namespace};

/// A new file gets space with the answer if at least so many times as much is free.
const PLENTY: u64 = 1024;

/// When the answer to a request may leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// At once: it rests on what is durable, or on a file that was made and promised to nobody.
    AtOnce,
    /// With the next commit to the store. Nobody is in a hurry for it.
    WithTheNext,
    /// After a commit to the store, which is due now.
    Durable,
}

impl Core {
    /// When the answer to `request` may leave. Requests that aren't named here may change, or show, what must be durable.
    pub fn leaves(&self, request: &ManagerRequest) -> Leaves {
        use ManagerRequest as Q;
        match request {
            Q::Lookup { .. } | Q::GetAttr(_) | Q::Resolve { .. } | Q::ReadDir { .. } | Q::ReadLink(_) => {
                Leaves::AtOnce
            }
            Q::MayOpen { .. } | Q::MayChange(_) => Leaves::AtOnce,
            Q::Space
            | Q::MakeRoom
            | Q::Locate { .. }
            | Q::Benefactors
            | Q::GetPolicy(_)
            | Q::KeepAlive(_) => Leaves::AtOnce,
            // It is learned again with each connection.
            Q::Managers => Leaves::AtOnce,
            // Pasts of hosts are stored in their own time.
            Q::Attend { .. } | Q::Leave(_) | Q::Explain { .. } | Q::Own(_) => Leaves::AtOnce,
            Q::Reserve { .. } | Q::Known { .. } | Q::Receipts { .. } | Q::Vouch { .. } => Leaves::AtOnce,
            // What is told of is durable.
            Q::Journal { .. } => Leaves::AtOnce,
            // Only who made a file can make it again, so nobody else writes to it before it is durable.
            Q::OpenSession { ino, .. } if !self.namespace.changed.inodes.contains(ino) => Leaves::AtOnce,
            // Two clients that make the same file must not both be told that they did, whatever crashes in between.
            Q::Create { exclusive: false, .. } => Leaves::AtOnce,
            Q::CloseSession { session, interrupted: false } => match self.namespace.is_unfinished(*session) {
                true => Leaves::WithTheNext,
                false => Leaves::AtOnce,
            },
            _ => Leaves::Durable,
        }
    }

    /// Whether an answer that may leave at once has to wait all the same: numbers of inodes are durable before they are known.
    pub fn must_settle(&self) -> bool {
        self.namespace.changed.pool
    }

    /// Whether a file was made, or a session ended, that isn't durable yet.
    pub fn has_waiting_changes(&self) -> bool {
        !self.namespace.changed.inodes.is_empty() || !self.namespace.changed.versions.is_empty()
    }

    pub(super) fn create(&mut self, request: ManagerRequest, now: Now) -> Answer {
        let ManagerRequest::Create {
            session,
            client,
            parent,
            name,
            mode,
            uid,
            gid,
            exclusive,
            again,
            durability,
        } = request
        else {
            return Err(super::commit::invalid("not the making of a file"));
        };
        // A file is made once by a session, however often the answer is lost.
        let change = OpId(session.0);
        let known = match (self.sessions.get(session), self.operations.answer(&change)) {
            (Ok(session), _) => Some(session.ino),
            (Err(_), Some(ManagerReply::Entry(attr))) => Some(attr.ino),
            (Err(_), _) => None,
        };
        let ino = match (known, again) {
            (Some(ino), _) => ino,
            (None, Some(ino)) => {
                self.create_again(ino, (parent, &name), mode, (uid, gid))?;
                ino
            }
            (None, None) => {
                let (kind, target) = (FileKind::File, String::new());
                let made =
                    self.namespace.change(&Change::Make { parent, name, kind, mode, uid, gid, target })?;
                self.commits += 1;
                let ino = made
                    .as_ref()
                    .map(|attr| attr.ino)
                    .ok_or_else(|| super::commit::invalid("no file was made"))?;
                if exclusive {
                    self.operations.keep((change, self.asking), made, now.ms);
                }
                ino
            }
        };
        // The number may come from the asker.
        self.namespace.allow_user(Need::Update(ino))?;
        let mut opened = self.open_session(session, client, (ino, durability), None, now)?;
        // Most files that are made are small, and get their content soon: it needs no question. Those that are merely made, and stay
        // open, take no space from others: in a pool that is nearly full nothing is set aside.
        let small = SMALL_BYTES as u64;
        if self.free_beside(0, now) / PLENTY >= small
            && let ManagerReply::Session { benefactors, room_bytes, .. } = &mut opened
        {
            (*benefactors, *room_bytes) = self.room(session, small, now);
        }
        Ok(opened)
    }

    /// A file that this client was told of isn't here. In the first lease after the manager's start it can only be that the one
    /// before forgot it: whatever had sessions then is kept, also without a name. Later it may have been removed.
    fn create_again(
        &mut self,
        ino: Ino,
        at: (Ino, &str),
        mode: u32,
        owner: (u32, u32),
    ) -> Result<(), stdchk_model::Failure> {
        if self.namespace.inode(ino).is_ok() {
            return Ok(());
        }
        match self.settled {
            true => Err(namespace::absent(ino)),
            false => self.namespace.make_file_again(ino, at, mode, owner),
        }
    }
}
