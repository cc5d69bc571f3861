//! What the namespace lets a user do: each request is looked at before it is answered, by what
//! [`ManagerRequest::needs`](stdchk_model::message::manager::ManagerRequest::needs) says of it.
//!
//! Inodes are numbers that anybody can guess, so whoever names one must be able to come to it: through all the folders above one of its
//! names. All that is looked at is in memory, and as much as a path is long (docs/design/0701).

use std::collections::HashMap;

use stdchk_model::message::manager::{Change, ManagerRequest, Need};
use stdchk_model::user::{Access, Ownership, User};
use stdchk_model::{ErrorCode, Failure, Ino, SessionId, name};

use super::Core;
use super::inode::Inode;
use super::namespace::Namespace;

/// In a folder with it, names go only by who owns the folder or what has the name.
const STICKY: u32 = 0o1000;
/// New entries of a folder with it belong to its group.
const SET_GROUP_ID: u32 = 0o2000;
/// Whoever writes a file takes these from it, also if it is somebody else's.
const SET_IDS: u32 = 0o6000;

impl Inode {
    fn ownership(&self) -> Ownership {
        Ownership { uid: self.uid, gid: self.gid, mode: self.mode }
    }
}

impl Core {
    /// Refuses a request that the present asker isn't let make, and says of what it makes to whom that belongs.
    pub(super) fn permit(&self, request: &mut ManagerRequest) -> Result<(), Failure> {
        if let Some(user) = &self.namespace.user {
            self.namespace.own_what_is_made(user, request);
        }
        request.needs(&mut |need| match need {
            Need::Session(session) => self.allow_session(session),
            need => self.namespace.allow_user(need),
        })
    }

    /// A session is for the member that opened it. After a start of the manager it may have to be opened again, and its last version is
    /// what it is known by.
    fn allow_session(&self, id: SessionId) -> Result<(), Failure> {
        if let Ok(session) = self.sessions.get(id) {
            return match session.payer.member == self.asking {
                true => Ok(()),
                false => {
                    let message = format!("permission denied: session {id} belongs to another host or user");
                    Err(Failure::new(ErrorCode::Denied, message).then("open one"))
                }
            };
        }
        match self.namespace.open_version(id) {
            Some((ino, _)) => self.namespace.allow_user(Need::Update(ino)),
            None => Ok(()),
        }
    }
}

impl Namespace {
    /// Refuses what the user of the present operation, if it has one, isn't let do.
    pub(super) fn allow_user(&self, need: Need<'_>) -> Result<(), Failure> {
        self.user.as_ref().map_or(Ok(()), |user| self.allow(user, need))
    }

    /// What a user makes is its own, whatever it says.
    fn own_what_is_made(&self, user: &User, request: &mut ManagerRequest) {
        let (parent, uid, gid) = match request {
            ManagerRequest::Create { parent, uid, gid, .. }
            | ManagerRequest::Change { change: Change::Make { parent, uid, gid, .. }, .. } => {
                (parent, uid, gid)
            }
            _ => return,
        };
        (*uid, *gid) = self.owner_of_new(user, *parent, *gid);
    }

    /// Refuses what the user isn't let do. What isn't there is let through: the answer says so.
    fn allow(&self, user: &User, need: Need<'_>) -> Result<(), Failure> {
        match need {
            Need::Reach(ino) => self.reach(user, ino),
            Need::Path(path) => self.reach_path(user, path),
            Need::Access(ino, access) => self.access(user, ino, access),
            Need::Name(parent, name) => self.change_name(user, parent, name),
            Need::Move(parent, name, new_parent) => match self.named(parent, name) {
                Some((ino, inode)) if parent != new_parent && inode.is_directory() => {
                    self.access(user, ino, Access::WRITE)
                }
                _ => Ok(()),
            },
            Need::Link(ino) | Need::Update(ino) => {
                self.reach(user, ino)?;
                let Some(inode) = self.inodes.get(&ino) else { return Ok(()) };
                match inode.uid == user.uid {
                    true => Ok(()),
                    false => self.access(user, ino, Access::UPDATE),
                }
            }
            Need::Own(ino) => {
                self.reach(user, ino)?;
                self.own(user, ino, "only its owner may")
            }
            Need::Attributes { ino, mode, uid, gid } => self.set_attributes(user, ino, (mode, uid, gid)),
            // What sessions need is not the namespace's to say.
            Need::Session(_) => Ok(()),
        }
    }

    /// Whether the user of the present operation, if it has one, may do this with an inode.
    pub(super) fn lets(&self, ino: Ino, access: Access) -> bool {
        let Some(user) = &self.user else { return true };
        self.access(user, ino, access).is_ok()
    }

    fn access(&self, user: &User, ino: Ino, access: Access) -> Result<(), Failure> {
        self.reach(user, ino)?;
        match self.inodes.get(&ino) {
            Some(inode) if inode.is_directory() || !access.is_of_folders() => {
                self.let_in(user, ino, inode, access)
            }
            _ => Ok(()),
        }
    }

    fn let_in(&self, user: &User, ino: Ino, inode: &Inode, access: Access) -> Result<(), Failure> {
        match inode.ownership().lets(user, access) {
            true => Ok(()),
            false => Err(self.refused(user, ino, access)),
        }
    }

    /// Goes down to an inode by its first name, and if that is closed by another one.
    fn reach(&self, user: &User, ino: Ino) -> Result<(), Failure> {
        let Some(inode) = self.inodes.get(&ino) else { return Ok(()) };
        let first = self.go_through(user, inode.parent);
        if first.is_ok() {
            return first;
        }
        let mut seen = HashMap::new();
        match inode.other_parents().any(|parent| self.is_open(user, parent, &mut seen)) {
            true => Ok(()),
            false => first,
        }
    }

    /// Whether a user may go through a folder and all above it. `seen`: what was found for folders on the way; each is looked at once, however
    /// many names lead through it.
    fn is_open(&self, user: &User, mut folder: Ino, seen: &mut HashMap<Ino, bool>) -> bool {
        let mut way = Vec::new();
        let mut is_open = loop {
            if let Some(is_open) = seen.get(&folder) {
                break *is_open;
            }
            let Some(inode) = self.inodes.get(&folder) else { break true };
            way.push((folder, inode));
            if folder == Ino::ROOT {
                break true;
            }
            folder = inode.parent;
        };
        for (folder, inode) in way.into_iter().rev() {
            is_open = is_open && inode.ownership().lets(user, Access::SEARCH);
            seen.insert(folder, is_open);
        }
        is_open
    }

    /// Goes through a folder and all above it; of those that are closed the uppermost is told, which hides what is below. Of a file
    /// without a name the folder may be gone.
    fn go_through(&self, user: &User, mut folder: Ino) -> Result<(), Failure> {
        let mut closed = None;
        while let Some(inode) = self.inodes.get(&folder) {
            if !inode.ownership().lets(user, Access::SEARCH) {
                closed = Some(folder);
            }
            if folder == Ino::ROOT {
                break;
            }
            folder = inode.parent;
        }
        closed.map_or(Ok(()), |folder| Err(self.refused(user, folder, Access::SEARCH)))
    }

    fn reach_path(&self, user: &User, path: &str) -> Result<(), Failure> {
        let mut at = Ino::ROOT;
        for name in name::split(path)? {
            let Some(inode) = self.inodes.get(&at).filter(|inode| inode.is_directory()) else { break };
            self.let_in(user, at, inode, Access::SEARCH)?;
            let Some((next, _)) = self.named(at, name) else { break };
            at = next;
        }
        Ok(())
    }

    fn named(&self, parent: Ino, name: &str) -> Option<(Ino, &Inode)> {
        let ino = self.find(parent, name).ok().flatten()?;
        Some((ino, self.inodes.get(&ino)?))
    }

    fn change_name(&self, user: &User, parent: Ino, name: &str) -> Result<(), Failure> {
        self.access(user, parent, Access::CHANGE)?;
        let (Some(folder), Some((ino, inode))) = (self.inodes.get(&parent), self.named(parent, name)) else {
            return Ok(());
        };
        match folder.mode & STICKY != 0 && folder.uid != user.uid {
            true if inode.uid != user.uid => {
                self.own(user, ino, "in a sticky folder only its owner may remove or rename it")
            }
            _ => Ok(()),
        }
    }

    fn set_attributes(
        &self,
        user: &User,
        ino: Ino,
        (mode, uid, gid): (Option<u32>, Option<u32>, Option<u32>),
    ) -> Result<(), Failure> {
        self.reach(user, ino)?;
        let Some(inode) = self.inodes.get(&ino) else { return Ok(()) };
        if uid.is_some_and(|uid| uid != inode.uid) {
            let what = "only who runs the pool may give it to another user";
            return Err(self.not_owner(user, ino, what));
        }
        if inode.uid != user.uid {
            let loses_set_ids =
                |mode: u32| mode & !SET_IDS == inode.mode & !SET_IDS && mode & !inode.mode == 0;
            if mode.is_some_and(|mode| !loses_set_ids(mode)) || gid.is_some_and(|gid| gid != inode.gid) {
                return self.own(user, ino, "only its owner may change its mode or group");
            }
            return self.let_in(user, ino, inode, Access::WRITE);
        }
        match gid {
            Some(gid) if gid != inode.gid && !user.is_in(gid) => {
                let what = format!("its owner is not in group {gid}");
                Err(self.not_owner(user, ino, &what))
            }
            _ => Ok(()),
        }
    }

    fn own(&self, user: &User, ino: Ino, what: &str) -> Result<(), Failure> {
        match self.inodes.get(&ino) {
            Some(inode) if inode.uid != user.uid => Err(self.not_owner(user, ino, what)),
            _ => Ok(()),
        }
    }

    fn refused(&self, user: &User, ino: Ino, access: Access) -> Failure {
        let message = format!("{}, and user {} may not {}", self.shown(ino), user.uid, access.name());
        Failure::new(ErrorCode::Denied, message).then("ask its owner, or whoever runs the pool")
    }

    fn not_owner(&self, user: &User, ino: Ino, what: &str) -> Failure {
        let message = format!("{}, not to user {}: {what}", self.shown(ino), user.uid);
        Failure::new(ErrorCode::NotOwner, message).then("ask its owner, or whoever runs the pool")
    }

    /// What is refused, and whose it is.
    fn shown(&self, ino: Ino) -> String {
        let Some(inode) = self.inodes.get(&ino) else { return format!("permission denied: inode {ino}") };
        let path = match ino {
            Ino::ROOT => "the root of the pool".to_owned(),
            _ => format!("`{}`", self.first_path(ino).escape_debug()),
        };
        let (uid, gid, mode) = (inode.uid, inode.gid, inode.mode);
        format!("permission denied: {path} belongs to user {uid} and group {gid} (mode {mode:04o})")
    }

    /// The path of the first name, without a look at what else is in the folders.
    fn first_path(&self, mut ino: Ino) -> String {
        let mut names = Vec::new();
        while let Some(inode) = self.inodes.get(&ino).filter(|_| ino != Ino::ROOT) {
            names.push(inode.name.as_str());
            ino = inode.parent;
        }
        names.reverse();
        names.join("/")
    }

    /// To whom that belongs which the user makes in a folder: itself; and to the group that it names if it is in that, or if the folder
    /// hands its group on.
    fn owner_of_new(&self, user: &User, parent: Ino, gid: u32) -> (u32, u32) {
        let is_handed_on = |folder: &Inode| folder.mode & SET_GROUP_ID != 0 && folder.gid == gid;
        match user.is_in(gid) || self.inodes.get(&parent).is_some_and(is_handed_on) {
            true => (user.uid, gid),
            false => (user.uid, user.gid),
        }
    }
}
