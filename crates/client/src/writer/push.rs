//! Pushing: images of the spool become part of the session, and the session a version.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use stdchk_model::exact::to_usize;
use stdchk_model::message::manager::{ManagerRequest, TimeNs, VersionInfo, VersionState};
use stdchk_model::policy::Protocol;
use stdchk_model::{ErrorCode, Failure, SessionId};

use super::{Image, Layers, Noted, Spool, Writer, blocking};
use crate::pool::Inner;
use crate::session::Session;
use crate::spool::{Found, Left, Record};

/// Bytes that are copied from an image to the session at once.
const COPY_BYTES: u64 = 1 << 20;

impl Writer {
    /// Makes everything written so far a version of the file, and durable. A complete local write whose writer is not
    /// finished goes on as a sliding window.
    ///
    /// # Errors
    /// What kept it from becoming one.
    pub async fn commit(self: &Arc<Self>, mtime: TimeNs) -> Result<Option<VersionInfo>, Failure> {
        while !self.begin_version() {
            self.fall_back().await?;
        }
        self.drain().await?;
        let version = self.session().commit(mtime).await?;
        self.let_go();
        Ok(version)
    }

    /// Pushes what a complete local write left in the spool, as a version of this state, and removes it there. May be called
    /// again if it fails.
    ///
    /// # Errors
    /// What kept it from becoming a version; `NotFound`: the file was removed.
    pub async fn push(
        self: &Arc<Self>,
        mtime: TimeNs,
        state: VersionState,
    ) -> Result<Option<VersionInfo>, Failure> {
        let _turn = self.turn.lock().await;
        let image = {
            let mut layers = self.layers.write();
            layers.pushing = layers.filling.take();
            layers.pushing.clone()
        };
        let Some(image) = image else { return Ok(self.version().await) };
        self.commits.store(true, Ordering::Release);
        let pushed = self.push_image(&image, mtime, state).await;
        {
            let mut layers = self.layers.write();
            layers.pushing = None;
            layers.filling = pushed.is_err().then(|| Arc::clone(&image));
        }
        pushed.inspect(|_| self.done(Some(&image)))
    }

    async fn push_image(
        self: &Arc<Self>,
        image: &Arc<Image>,
        mtime: TimeNs,
        state: VersionState,
    ) -> Result<Option<VersionInfo>, Failure> {
        let begins_again = self.layers.read().begins_again;
        if begins_again || self.session().is_failed() {
            // That one alone can make a file again that the manager has forgotten.
            self.session().settle_made().await?;
            let before = self.session().id();
            let versions = self.pool.versions(self.ino()).await?;
            if let Some(version) = versions.into_iter().find(|version| is_of(version, before)) {
                // It has what was promised, though nobody here was told.
                return Ok(Some(version));
            }
            self.begin_again(image).await?;
            self.layers.write().begins_again = false;
        }
        let session = self.session();
        self.copy(image, &session).await?;
        session.commit_as(mtime, state).await
    }

    /// A session that failed can't be saved by; another one takes its place, over the same version.
    async fn begin_again(&self, image: &Image) -> Result<(), Failure> {
        let session = Session::take_up(&self.pool, self.ino(), self.id, self.session().key()).await?;
        if let Err(failure) = self.prepare(&session, image).await {
            // Why it is of no use counts, not how it ends.
            let _ = session.close(false).await;
            return Err(failure);
        }
        let failed = std::mem::replace(&mut *self.session.write(), session);
        self.note_session(image)?;
        // It is over; that it could not be saved is known.
        let _ = failed.close(true).await;
        Ok(())
    }

    /// Makes the session ready to push an image that an earlier process left. A local disk that can't take note of it now is full or failing:
    /// that is no reason to hold others up.
    async fn ready(&self, image: &Image) -> Result<(), Failure> {
        self.prepare(&self.session(), image).await?;
        self.note_session(image).map_err(|failure| {
            Failure { code: ErrorCode::NoSpace, ..failure }
                .then("make room on the disk of the spool, and mount again")
        })
    }

    /// The record names the session that will commit, so that a crash behind the commit isn't taken for one before it.
    fn note_session(&self, image: &Image) -> Result<(), Failure> {
        let written = blocking(|| self.note(&image.shape(), |noted| noted));
        written.map_err(|error| self.unspooled("noting a session", &error))
    }

    /// Brings a session to the version that the image was written over, should another one be the newest by now.
    async fn prepare(&self, session: &Arc<Session>, image: &Image) -> Result<(), Failure> {
        if self.base == session.base() {
            return Ok(());
        }
        session.truncate(0).await?;
        if image.hides_all_below() {
            return Ok(());
        }
        let Some(base) = self.base_version().await? else { return Ok(()) };
        if let (Some(key), None) = (base.key, session.key()) {
            let what =
                format!("file {} keeps parts of a version that is encrypted with key {key}", self.ino());
            return Err(
                Failure::new(ErrorCode::NoKey, what).then("set `encryption` of its folder to that key")
            );
        }
        let reader = self.pool.read_version(self.ino(), Some(base.version)).await?;
        let end = reader.size().min(image.limit());
        let mut at = 0;
        while at < end {
            let bytes = reader.read_at(at, to_usize((end - at).min(COPY_BYTES))).await?;
            session.write_at(at, &bytes).await?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Writes what an image holds into a session. What the local disk couldn't take reads as something else, and only a sync tells.
    async fn copy(&self, image: &Arc<Image>, session: &Arc<Session>) -> Result<(), Failure> {
        let syncing = self.pool.runtime.spawn(Arc::clone(image).sync_in_turn());
        let copied = self.copy_ranges(image, session).await;
        let synced = syncing.await.map_err(std::io::Error::other).flatten();
        synced.map_err(|error| self.unspooled("syncing", &error))?;
        copied
    }

    async fn copy_ranges(&self, image: &Image, session: &Arc<Session>) -> Result<(), Failure> {
        if image.limit() < session.size() {
            session.truncate(image.limit()).await?;
        }
        let mut bytes = BytesMut::new();
        for range in image.ranges() {
            let mut at = range.start;
            while at < range.end {
                // Up to the next multiple, so that cells are filled whole.
                let length = (COPY_BYTES - at % COPY_BYTES).min(range.end - at);
                bytes.resize(to_usize(length), 0);
                let read = blocking(|| image.read(at, &mut bytes));
                read.map_err(|error| self.unspooled("reading", &error))?;
                session.write_at(at, &bytes).await?;
                at += length;
            }
        }
        // A file that was emptied, or made and left empty, becomes a version like any other.
        if image.size() != session.size() || !session.is_dirty() {
            session.truncate(image.size()).await?;
        }
        Ok(())
    }

    /// Pushes the image that has the size of a segment in the background, once the one before it is pushed.
    pub(super) async fn turn_over(self: &Arc<Self>) -> Result<(), Failure> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        self.failure.lock().clone().map_or(Ok(()), Err)?;
        let image = {
            let mut layers = self.layers.write();
            let full = |image: &Arc<Image>| image.bytes() >= self.policy.segment;
            if !layers.filling.as_ref().is_some_and(full) {
                return Ok(()); // Another write has seen to it.
            }
            layers.pushing = layers.filling.take();
            layers.pushing.clone()
        };
        let Some(image) = image else { return Ok(()) };
        let writer = Arc::clone(self);
        self.pool.background(async move {
            let pushed = writer.copy(&image, &writer.session()).await;
            writer.pushed(pushed);
            drop(turn);
        });
        Ok(())
    }

    /// What an incremental write has pushed is read from the session from now on.
    fn pushed(&self, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) => self.layers.write().pushing = None,
            Err(failure) => {
                self.failure.lock().get_or_insert(failure);
            }
        }
    }

    /// Brings the images of an incremental write into the session, to the last.
    pub(super) async fn drain(self: &Arc<Self>) -> Result<(), Failure> {
        let protocol = self.layers.read().protocol;
        match protocol {
            Protocol::Clw => return Ok(()),
            Protocol::Sw => {}
            Protocol::Iw => {
                // In a task of its own: who waits may be told to end, and a push that is given up would be forgotten.
                let writer = Arc::clone(self);
                let drained = self.pool.runtime.spawn(async move { writer.drain_images().await });
                return drained
                    .await
                    .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
            }
        }
        self.wait_for_push().await
    }

    async fn drain_images(self: &Arc<Self>) -> Result<(), Failure> {
        let _turn = self.turn.lock().await;
        self.failure.lock().clone().map_or(Ok(()), Err)?;
        self.copy_next(|_| {}).await.map(drop)
    }

    /// Copies the image whose turn it is into the session, which has its bytes from then on. `change` is made in the same step that
    /// takes the image: no write comes between the two.
    async fn copy_next(&self, change: impl FnOnce(&mut Layers)) -> Result<Option<Arc<Image>>, Failure> {
        let image = {
            let mut layers = self.layers.write();
            change(&mut layers);
            if layers.pushing.is_none() {
                layers.pushing = layers.filling.take();
            }
            layers.pushing.clone()
        };
        if let Some(image) = &image {
            let copied = self.copy(image, &self.session()).await;
            self.pushed(copied.clone());
            copied?;
        }
        Ok(image)
    }

    /// Waits until no push holds up writes any more. One that was given up in the middle, with the write that began it, is
    /// brought to its end.
    pub(super) async fn wait_for_push(self: &Arc<Self>) -> Result<(), Failure> {
        let (blocked, protocol) = {
            let layers = self.layers.read();
            (layers.is_blocked(), layers.protocol)
        };
        match protocol {
            Protocol::Sw if blocked => self.fall_back().await,
            _ if blocked => {
                drop(self.turn.lock().await);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The spool takes no more: what is in it goes to the session, and so does everything from now on.
    pub(super) async fn fall_back(self: &Arc<Self>) -> Result<(), Failure> {
        let _turn = self.turn.lock().await;
        let image = self.copy_next(|layers| layers.protocol = Protocol::Sw).await?;
        let Some(image) = image else { return Ok(()) };
        match self.noted.lock().take() {
            // What the application was promised stays until it is a version.
            Some(noted) => *self.kept.lock() = Some((image, noted)),
            None => blocking(|| image.remove()),
        }
        Ok(())
    }

    /// Puts on record that a file which an earlier process left in the spool is lost.
    ///
    /// # Errors
    /// It isn't; `NotFound`: there is no such file any more.
    pub(crate) async fn give_up(pool: &Arc<Inner>, left: &Left) -> Result<(), Failure> {
        let record = left.found.record();
        let key = record.and_then(|record| record.key);
        let session = Session::take_up(pool, left.name.ino, left.name.id, key).await?;
        session.give_up(record.map_or(0, |record| record.size)).await
    }

    /// A file that an earlier process left in the spool, ready to be read and pushed. `None`: there is nothing to push.
    pub(crate) async fn take_up(
        pool: &Arc<Inner>,
        spool: &Arc<Spool>,
        left: &Left,
    ) -> Result<Option<Unpushed>, Failure> {
        let ino = left.name.ino;
        if let Found::Unreadable(failure) = &left.found {
            return Err(failure.clone());
        }
        let before = left.found.record().map_or(left.name.id, |record| record.session);
        // Its process is dead: the manager need not wait for its lease to end.
        let _ = pool.manager.ask(&ManagerRequest::CloseSession { session: before, interrupted: true }).await;
        if pool.versions(ino).await?.iter().any(|info| is_of(info, before)) {
            tracing::info!(%ino, "a file of the spool is at the pool already");
            return Ok(None);
        }
        let Found::Image(record, image) = &left.found else {
            Self::give_up(pool, left).await?;
            tracing::error!(%ino, "a closed file was in the spool, not synced, when the machine went down: it is lost");
            return Ok(None);
        };
        let session = Session::take_up(pool, ino, left.name.id, record.key).await?;
        let Record { mtime, closed, base, synced, .. } = *record;
        let layers =
            Layers { protocol: Protocol::Clw, filling: Some(Arc::clone(image)), ..Layers::default() };
        let mut writer = Self::new(pool, session, Some(Arc::clone(spool)), layers);
        (writer.id, writer.base) = (left.name.id, base);
        writer.synced.store(synced, Ordering::Release);
        // If it is kept, this is known by now.
        writer.base_kept.store(true, Ordering::Release);
        writer.unsynced.store(false, Ordering::Release);
        let noted = Noted { mtime, closed };
        *writer.noted.lock() = Some(noted);
        if let Err(failure) = writer.ready(image).await {
            // Why it can't be pushed counts, not how the session ends.
            let _ = writer.session().close(false).await;
            return Err(failure);
        }
        Ok(Some(Unpushed::new(Arc::new(writer), noted)))
    }
}

/// Whether a version has what this session was to commit. One that is on record as lost has nothing, and the spool may have all.
fn is_of(version: &VersionInfo, session: SessionId) -> bool {
    version.session == session && version.state != VersionState::Lost
}

/// A file of the spool that is to be pushed.
pub struct Unpushed {
    /// Reads it, and pushes it.
    pub writer: Arc<Writer>,
    /// Modification time that the application gave it.
    pub mtime: TimeNs,
    /// What its version shall be.
    pub state: VersionState,
}

impl Unpushed {
    pub(super) fn new(writer: Arc<Writer>, Noted { mtime, closed }: Noted) -> Self {
        let state = if closed { VersionState::Closed } else { VersionState::Interrupted };
        Self { writer, mtime, state }
    }
}
