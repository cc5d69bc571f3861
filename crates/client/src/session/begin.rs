//! How a session begins: at the manager, and with what the file has; also with the making of the file.

use std::sync::Arc;

use stdchk_model::message::manager::{Change, ManagerReply, ManagerRequest};
use stdchk_model::{Durability, ErrorCode, Failure, Ino, KeyId, OpId, Policy, SessionId};

use super::Session;
use crate::map_view::MapView;
use crate::pool::Inner;

/// A file that is to be made.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Its directory.
    pub parent: Ino,
    /// Its name there.
    pub name: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Nobody else may ever be told that they made it: the answer waits until the file is durable.
    pub exclusive: bool,
}

/// How a file was made that may not be durable yet.
pub(super) struct Made(NewFile);

impl Made {
    fn request(&self, session: SessionId, pool: &Inner, again: Option<(Ino, Durability)>) -> ManagerRequest {
        let NewFile { parent, name, mode, uid, gid, exclusive } = self.0.clone();
        let (client, (again, durability)) = (pool.client, again.unzip());
        ManagerRequest::Create { session, client, parent, name, mode, uid, gid, exclusive, again, durability }
    }
}

impl Session {
    /// Makes a file and opens a session on it. It is durable with the first commit, or once somebody syncs or closes it.
    pub(crate) async fn create(pool: &Arc<Inner>, file: NewFile) -> Result<Arc<Self>, Failure> {
        let (session, made) = (SessionId(crate::random()?), Made(file));
        pool.attend().await?;
        let answer = pool.manager.ask(&made.request(session, pool, None)).await?;
        let opened = match Self::begin(pool, session, answer.clone(), false, None).await {
            Err(failure) if failure.code == ErrorCode::NoKey => {
                // It can't be written: no empty file stays behind.
                let NewFile { parent, name, .. } = made.0;
                if let ManagerReply::Session { attr, .. } = answer {
                    let change = Change::UnlinkUnwritten { parent, name, ino: attr.ino };
                    let id = OpId(crate::random()?);
                    pool.manager.ask(&ManagerRequest::Change { id, change }).await?;
                }
                return Err(failure);
            }
            opened => opened?,
        };
        if !made.0.exclusive {
            *opened.made.lock() = Some(made);
        }
        Ok(opened)
    }

    /// Opens the session again. A file that the manager has forgotten, since it was made and nothing more, is made again.
    pub(super) async fn open_again(&self) -> Result<(), Failure> {
        let (session, client, ino) = (self.id, self.pool.client, self.ino());
        let durability = self.policy.at_commit();
        let again =
            self.made.lock().as_ref().map(|made| made.request(session, &self.pool, Some((ino, durability))));
        let durability = Some(durability);
        let opened = match self.taken_up.get().copied() {
            Some(kept_for) => ManagerRequest::TakeUp { session, client, ino, kept_for, durability },
            None => ManagerRequest::OpenSession { session, client, ino, durability },
        };
        let opened = self.pool.manager.ask(&opened).await;
        let opened = match (opened, again) {
            (Err(failure), Some(again)) if failure.code == ErrorCode::NotFound => {
                self.pool.manager.ask(&again).await
            }
            (opened, _) => opened,
        };
        match opened? {
            // The manager would refuse the commit: nothing more is sent in the clear.
            ManagerReply::Session { policy: Policy { encryption: Some(key), .. }, .. }
                if self.key.is_none() =>
            {
                let what =
                    format!("file {ino} was opened before its folder was to be encrypted with key {key}");
                let failure =
                    Failure::new(ErrorCode::NoKey, what).then("open the file again and write it anew");
                self.fail(&failure);
                Err(failure)
            }
            _ => Ok(()),
        }
    }

    /// Sees to it that a file that was made by this session is durable, also if nothing was written to it.
    pub(crate) async fn settle_made(&self) -> Result<(), Failure> {
        if self.made.lock().is_none() {
            return Ok(());
        }
        self.ask(&ManagerRequest::Settle(self.id)).await?;
        *self.made.lock() = None;
        Ok(())
    }

    pub(crate) async fn open(pool: &Arc<Inner>, ino: Ino) -> Result<Arc<Self>, Failure> {
        let (session, client) = (SessionId(crate::random()?), pool.client);
        let request = ManagerRequest::OpenSession { session, client, ino, durability: None };
        Self::open_as(pool, session, request, false).await
    }

    /// A session in place of the one under which the spool knows the file, over what is kept for that. It encrypted with this key: what was
    /// written for that never comes to lie in the clear, wherever the file is now.
    pub(crate) async fn take_up(
        pool: &Arc<Inner>,
        ino: Ino,
        kept_for: SessionId,
        kept: Option<KeyId>,
    ) -> Result<Arc<Self>, Failure> {
        let (session, client) = (SessionId(crate::random()?), pool.client);
        let request = ManagerRequest::TakeUp { session, client, ino, kept_for, durability: None };
        pool.attend().await?;
        let opened = pool.manager.ask(&request).await?;
        let session = Self::begin(pool, session, opened, false, kept).await?;
        session.taken_up.get_or_init(|| kept_for);
        Ok(session)
    }

    /// Has the manager keep the version that this session builds on until what is written over it, which a spool holds so many bytes of,
    /// is committed: also if this process ends before.
    ///
    /// # Errors
    /// It can't be kept; `NoSpace`: too many are.
    pub(crate) async fn keep_base(&self, bytes: u64) -> Result<(), Failure> {
        let Some(base) = self.version().await else { return Ok(()) };
        let (session, host) = (self.id, stdchk_net::host());
        match self.ask(&ManagerRequest::KeepBase { session, base, host, bytes }).await? {
            ManagerReply::Done => Ok(()),
            _ => Err(crate::unexpected("KeepBase")),
        }
    }

    /// A session on a file of which nothing is kept. What it had is read as far as it can be, to be found again.
    pub(crate) async fn replace(pool: &Arc<Inner>, ino: Ino) -> Result<Arc<Self>, Failure> {
        let (session, client) = (SessionId(crate::random()?), pool.client);
        let request = ManagerRequest::OpenSession { session, client, ino, durability: None };
        let session = Self::open_as(pool, session, request, true).await?;
        session.truncate(0).await?;
        Ok(session)
    }

    /// A session on a new file without a name, under the policy of a folder.
    pub(crate) async fn open_container(pool: &Arc<Inner>, folder: Ino) -> Result<Arc<Self>, Failure> {
        let (session, client) = (SessionId(crate::random()?), pool.client);
        Self::open_as(pool, session, ManagerRequest::OpenContainer { session, client, folder }, false).await
    }

    async fn open_as(
        pool: &Arc<Inner>,
        id: SessionId,
        request: ManagerRequest,
        is_replaced: bool,
    ) -> Result<Arc<Self>, Failure> {
        pool.attend().await?;
        let opened = pool.manager.ask(&request).await?;
        Self::begin(pool, id, opened, is_replaced, None).await
    }

    /// The session that the manager has opened. One that should encrypt and lacks the key for it ends at once.
    async fn begin(
        pool: &Arc<Inner>,
        id: SessionId,
        opened: ManagerReply,
        is_replaced: bool,
        kept: Option<KeyId>,
    ) -> Result<Arc<Self>, Failure> {
        let ManagerReply::Session { policy, base, base_root, attr, benefactors, room_bytes } = opened else {
            return Err(crate::unexpected("OpenSession"));
        };
        // What a file keeps of an encrypted version never comes to lie in the clear, wherever the file is now.
        let of_base = base.as_ref().filter(|_| !is_replaced).and_then(|base| base.key);
        let key = match policy.encryption.or(of_base).or(kept) {
            None => None,
            Some(key) => match pool.encryption_keys.require(key) {
                Ok(key) => Some(key),
                Err(failure) => {
                    // Waited for: a file that was just made is removed only when no session has it open.
                    let ended = ManagerRequest::CloseSession { session: id, interrupted: false };
                    pool.manager.ask(&ended).await?;
                    return Err(failure);
                }
            },
        };
        let view = match (pool.load_view(base_root.as_ref()).await, &base) {
            // It may be written over all the same. Whoever needs something of it is told why that can't be had.
            (Err(failure), Some(base)) => {
                tracing::warn!(ino = %attr.ino, %failure, "the version that is written over can't be read");
                Ok(MapView::Unreadable { size: base.size, failure })
            }
            (view, _) => view,
        };
        let session = view.and_then(|view| {
            let base = base.filter(|base| base.size == view.size());
            Self::new(pool, id, attr, policy, view, (base, key), (benefactors, room_bytes)).map(Arc::new)
        });
        match &session {
            Ok(session) => drop(pool.sessions.lock().insert(id, Arc::downgrade(session))),
            Err(_) => end(pool, id),
        }
        session
    }
}

/// Ends a session that came to nothing: the manager would keep it for as long as this client lives.
fn end(pool: &Arc<Inner>, session: SessionId) {
    let manager = Arc::clone(&pool.manager);
    let ended = ManagerRequest::CloseSession { session, interrupted: false };
    pool.background(async move { drop(manager.ask(&ended).await) });
}
