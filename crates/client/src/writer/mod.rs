//! A file being written by the protocol of its folder (paper, section IV.B): the session that it goes to, and for complete
//! local and incremental writes the images in the spool that it goes through.
//!
//! Both are one mechanism: what is written goes to an image above the session, reads look into the image first, and to push
//! is to write the image into the session. A complete local write has one image, kept with a record until its version is
//! committed, and is pushed after the last close. An incremental write pushes each image once it has the size of a
//! segment, while the next one fills, and the rest when the file is closed. A sliding window needs no image. When the
//! spool takes no more, what is in it is pushed and the file goes on as a sliding window.

mod push;

pub use push::Unpushed;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use stdchk_model::exact::{part_mut, to_usize};
use stdchk_model::message::manager::{Attr, TimeNs, VersionInfo};
use stdchk_model::policy::Protocol;
use stdchk_model::{ErrorCode, Failure, Ino, Policy, SessionId};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::holes::{Sought, first};
use crate::pool::{Inner, Pool};
use crate::session::{NewFile, Session, check_end};
use crate::spool::{Image, NO_ROOM, Name, Shape, Spool, Told};

/// One file being written. All methods may be called concurrently.
pub struct Writer {
    pool: Arc<Inner>,
    /// Under which the spool knows this file: the session in which it was written first.
    id: SessionId,
    opened: Attr,
    /// The session of the version that it builds on; `None`: it was never committed.
    base: Option<SessionId>,
    policy: Policy,
    spool: Option<Arc<Spool>>,
    session: RwLock<Arc<Session>>,
    layers: RwLock<Layers>,
    /// Whether any bytes were written; set before the layers are looked at for where they go.
    begun: AtomicBool,
    /// Held while an image is pushed.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// What the record says; `None`: there is none.
    noted: Mutex<Option<Noted>>,
    /// Whether the session has begun to make a version, so that none of its name tells any more that an image is at the pool. Set while
    /// the layers are looked at.
    commits: AtomicBool,
    /// Whether the image was ever synced, and whether anything was written since. Who syncs for a record has the turn until the record is
    /// written.
    synced: AtomicBool,
    unsynced: AtomicBool,
    syncing: Mutex<()>,
    /// The manager keeps the version of which the image has parts.
    base_kept: AtomicBool,
    /// What made a push in the background fail: an incremental write can't be saved any more.
    failure: Mutex<Option<Failure>>,
    /// An image that is in the session, and what its record says, which must stay until that is committed.
    kept: Mutex<Option<(Arc<Image>, Noted)>>,
}

/// What the record in the spool says of a file.
#[derive(Clone, Copy)]
struct Noted {
    mtime: TimeNs,
    closed: bool,
}

/// What lies above the session.
#[derive(Default)]
struct Layers {
    /// The protocol that holds: a full spool makes it a sliding window.
    protocol: Protocol,
    /// Takes what is written.
    filling: Option<Arc<Image>>,
    /// On its way to the session.
    pushing: Option<Arc<Image>>,
    /// Whether the session has more than the image that is to be pushed: another one has to take it.
    begins_again: bool,
}

impl Layers {
    fn top(&self) -> Option<&Arc<Image>> {
        self.filling.as_ref().or(self.pushing.as_ref())
    }

    /// Whether writes have to wait until the push has ended: what is pushed would cover them.
    fn is_blocked(&self) -> bool {
        self.pushing.is_some() && self.protocol != Protocol::Iw
    }
}

/// What became of an attempt to write.
enum Attempt {
    Done,
    /// The image has the size of a segment.
    Full,
    /// There is no image to write to.
    Direct,
    /// A push is under way.
    Blocked,
    /// The spool takes no more.
    NoRoom,
}

impl Writer {
    pub(crate) async fn open(
        pool: &Arc<Inner>,
        ino: Ino,
        spool: Option<&Arc<Spool>>,
    ) -> Result<Arc<Self>, Failure> {
        Ok(Self::over(pool, Session::open(pool, ino).await?, spool))
    }

    /// Makes a file and opens it for writing, in one step.
    pub(crate) async fn create(
        pool: &Arc<Inner>,
        file: NewFile,
        spool: Option<&Arc<Spool>>,
    ) -> Result<Arc<Self>, Failure> {
        Ok(Self::over(pool, Session::create(pool, file).await?, spool))
    }

    fn over(pool: &Arc<Inner>, session: Arc<Session>, spool: Option<&Arc<Spool>>) -> Arc<Self> {
        let wanted = pool.protocol.unwrap_or(session.policy().protocol);
        if wanted != Protocol::Sw && spool.is_none() {
            let ino = session.ino();
            tracing::debug!(%ino, "there is no spool: `protocol={wanted}` goes through memory");
        }
        let protocol = if spool.is_some() { wanted } else { Protocol::Sw };
        Arc::new(Self::new(pool, session, spool.cloned(), Layers { protocol, ..Layers::default() }))
    }

    fn new(pool: &Arc<Inner>, session: Arc<Session>, spool: Option<Arc<Spool>>, layers: Layers) -> Self {
        Self {
            pool: Arc::clone(pool),
            id: session.id(),
            opened: session.opened().clone(),
            base: session.base(),
            policy: session.policy().clone(),
            spool,
            session: RwLock::new(session),
            layers: RwLock::new(layers),
            begun: AtomicBool::new(false),
            turn: Arc::default(),
            noted: Mutex::default(),
            commits: AtomicBool::new(false),
            synced: AtomicBool::new(false),
            unsynced: AtomicBool::new(true),
            syncing: Mutex::default(),
            base_kept: AtomicBool::new(false),
            failure: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session.read())
    }

    /// The policy of the file's folder when it was opened.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The file.
    pub fn ino(&self) -> Ino {
        self.opened.ino
    }

    /// The file as it was when it was opened.
    pub fn opened(&self) -> &Attr {
        &self.opened
    }

    /// Size of the file as its writers see it, bytes.
    pub fn size(&self) -> u64 {
        let top = self.layers.read().top().map(|image| image.size());
        top.unwrap_or_else(|| self.session().size())
    }

    /// Whether anything was written that isn't in a version yet.
    pub fn is_dirty(&self) -> bool {
        self.layers.read().top().is_some() || self.session().is_dirty()
    }

    /// Whether the application was told that something is closed which isn't committed yet and may be lost.
    pub fn is_closing(&self) -> bool {
        self.session().is_closing()
    }

    /// Whether what was written is in the spool and waits to be pushed.
    pub fn is_spooled(&self) -> bool {
        let layers = self.layers.read();
        layers.protocol == Protocol::Clw && layers.top().is_some()
    }

    /// Lets the session make a version of what it has, if it has anything. False: what was written is in the spool.
    fn begin_version(&self) -> bool {
        let layers = self.layers.read();
        let is_spooled = layers.protocol == Protocol::Clw && layers.top().is_some();
        if !is_spooled && self.session().is_dirty() {
            self.commits.store(true, Ordering::Release);
        }
        !is_spooled
    }

    /// Chooses the protocol of this file, in place of its folder's and its mount's, before any bytes are written to it. False:
    /// bytes were written, by another protocol than this.
    ///
    /// # Errors
    /// `Unsupported`: it goes through a spool, and there is none; what kept an emptied file from going another way.
    pub async fn choose(self: &Arc<Self>, protocol: Protocol) -> Result<bool, Failure> {
        if self.layers.read().protocol == protocol {
            return Ok(true);
        }
        if protocol != Protocol::Sw && self.spool.is_none() {
            let what =
                format!("this mount has no spool, so that no file of it can go by `protocol={protocol}`");
            return Err(Failure::new(ErrorCode::Unsupported, what));
        }
        let session = self.session();
        // A record would name a session that has a version already.
        if session.version().await.is_some_and(|version| version.session == session.id()) {
            return Ok(false);
        }
        let is_late = || self.begun.load(Ordering::Acquire) || self.commits.load(Ordering::Acquire);
        if is_late() {
            return Ok(false);
        }
        // Of a file that was only emptied, or opened to be written over, the session may know; an image may not.
        self.fall_back().await?;
        let mut layers = self.layers.write();
        if is_late() {
            return Ok(false);
        }
        layers.protocol = protocol;
        Ok(true)
    }

    /// Writes `data` at `offset`; waits while the window is full.
    ///
    /// # Errors
    /// `TooLong` beyond the largest file; whatever made writing fail before: then nothing more can be saved.
    pub async fn write_at(self: &Arc<Self>, offset: u64, data: &[u8]) -> Result<(), Failure> {
        check_end(offset, data.len())?;
        self.begun.store(true, Ordering::Release);
        loop {
            self.failure.lock().clone().map_or(Ok(()), Err)?;
            match self.attempt(|image| image.write(offset, data))? {
                Attempt::Done => return Ok(()),
                Attempt::Full => return self.turn_over().await,
                Attempt::Direct => return self.session().write_at(offset, data).await,
                Attempt::Blocked => self.wait_for_push().await?,
                Attempt::NoRoom => self.fall_back().await?,
            }
        }
    }

    /// Sets the size of the file. Bytes cut off are gone, bytes added read as zeros.
    ///
    /// # Errors
    /// As for writing.
    pub async fn truncate(self: &Arc<Self>, size: u64) -> Result<(), Failure> {
        loop {
            self.failure.lock().clone().map_or(Ok(()), Err)?;
            if self.layers.read().protocol == Protocol::Iw {
                self.drain().await?;
                return self.session().truncate(size).await;
            }
            match self.attempt(|image| image.truncate(size))? {
                Attempt::Done | Attempt::Full => return Ok(()),
                Attempt::Direct => return self.session().truncate(size).await,
                Attempt::Blocked => self.wait_for_push().await?,
                Attempt::NoRoom => self.fall_back().await?,
            }
        }
    }

    /// Changes the image that is filling, made first if there is none.
    fn attempt(&self, change: impl Fn(&Image) -> io::Result<()>) -> Result<Attempt, Failure> {
        {
            let layers = self.layers.read();
            if layers.is_blocked() {
                return Ok(Attempt::Blocked);
            }
            if layers.protocol == Protocol::Sw {
                return Ok(Attempt::Direct);
            }
            if let Some(image) = &layers.filling {
                return blocking(|| self.change(&layers, image, &change));
            }
        }
        match self.new_image() {
            Ok(()) => self.attempt(change),
            Err(error) => {
                tracing::warn!(ino = %self.ino(), %error, "no file can be made in the spool");
                Ok(Attempt::NoRoom)
            }
        }
    }

    fn change(
        &self,
        layers: &Layers,
        image: &Image,
        change: impl Fn(&Image) -> io::Result<()>,
    ) -> Result<Attempt, Failure> {
        // Who finds the record after a crash must know that more was written than the application has closed.
        if self.noted.lock().is_some_and(|noted| noted.closed) {
            let reopened =
                self.note(&image.shape(), |noted| noted.map(|noted| Noted { closed: false, ..noted }));
            match reopened {
                Err(error) if self.has_no_room(&error) => return Ok(Attempt::NoRoom),
                reopened => reopened.map_err(|error| self.unspooled("noting a change", &error))?,
            }
        }
        self.unsynced.store(true, Ordering::Release);
        let changed = change(image);
        // A sync that began before it has not seen it.
        self.unsynced.store(true, Ordering::Release);
        match changed {
            Ok(()) if layers.protocol == Protocol::Iw && image.bytes() >= self.policy.segment => {
                Ok(Attempt::Full)
            }
            Ok(()) => Ok(Attempt::Done),
            Err(error) if self.has_no_room(&error) => Ok(Attempt::NoRoom),
            Err(error) => Err(self.unspooled("writing", &error)),
        }
    }

    fn new_image(&self) -> io::Result<()> {
        let mut layers = self.layers.write();
        let Some(spool) = self.spool.as_ref().filter(|_| layers.filling.is_none() && !layers.is_blocked())
        else {
            return Ok(());
        };
        if layers.protocol == Protocol::Clw && self.commits.load(Ordering::Acquire) {
            // A record would name a session of which there is a version without what is written now.
            layers.protocol = Protocol::Sw;
            return Ok(());
        }
        let size = layers.top().map_or_else(|| self.session().size(), |image| image.size());
        let image = match layers.protocol {
            Protocol::Clw => spool.lasting(self.id, size, self.session().base_limit())?,
            Protocol::Iw | Protocol::Sw => spool.passing(size)?,
        };
        layers.filling = Some(Arc::new(image));
        Ok(())
    }

    /// Writes the record, with what it says now made into what it shall say. What was synced stays so, and with it the record.
    fn note(&self, shape: &Shape, state: impl FnOnce(Option<Noted>) -> Option<Noted>) -> io::Result<()> {
        let Some(spool) = &self.spool else { return Ok(()) };
        let (ino, session, base) = (self.ino(), self.session().id(), self.base);
        let synced = self.synced.load(Ordering::Acquire);
        let mut noted = self.noted.lock();
        let Some(state) = state(*noted) else { return Ok(()) };
        let Noted { mtime, closed } = state;
        let key = self.session().key();
        spool.note(self.id, &Told { ino, session, base, mtime, closed, synced, key }, shape)?;
        *noted = Some(state);
        Ok(())
    }

    /// Whether the local disk has no room, so that the file goes another way.
    fn has_no_room(&self, error: &io::Error) -> bool {
        let has_none = NO_ROOM.contains(&error.kind());
        if has_none {
            tracing::warn!(ino = %self.ino(), %error, "the spool takes no more: the file goes on through memory");
        }
        has_none
    }

    /// Under which the spool knows the file.
    fn name(&self) -> Name {
        Name { id: self.id, ino: self.ino() }
    }

    fn unspooled(&self, what: &str, error: &io::Error) -> Failure {
        let what = format!("{what} in the spool, for file {}: {error}", self.ino());
        Failure::new(ErrorCode::Unavailable, what)
    }

    /// The images, the newest first, and the session that lies below them. `None`: below them lies the version that was written over.
    /// A session that could not save them may have what was never promised, and lacks what it has sent to who is gone.
    fn images(&self) -> (Vec<Arc<Image>>, Option<Arc<Session>>) {
        let (layers, session) = (self.layers.read(), self.session());
        let images: Vec<_> = layers.filling.iter().chain(&layers.pushing).cloned().collect();
        let is_of_no_use = layers.begins_again || session.is_failed();
        let is_passed_over = layers.protocol == Protocol::Clw && !images.is_empty() && is_of_no_use;
        (images, (!is_passed_over).then_some(session))
    }

    /// Reads from the version that was written over.
    async fn read_base(&self, offset: u64, length: usize) -> Result<Bytes, Failure> {
        let Some(base) = self.base_version().await? else { return Ok(Bytes::new()) };
        let reader = self.pool.read_version(self.ino(), Some(base.version)).await?;
        reader.read_at(offset, length).await
    }

    /// The version that was written over; `None`: there was none.
    async fn base_version(&self) -> Result<Option<VersionInfo>, Failure> {
        let Some(base) = self.base else { return Ok(None) };
        let versions = self.pool.versions(self.ino()).await?;
        let base = versions.into_iter().find(|info| info.session == base);
        base.map(Some).ok_or_else(|| {
            let what = "was written over a version that is gone: what it kept of it is lost";
            Failure::new(ErrorCode::NotFound, format!("file {} {what}", self.ino()))
        })
    }

    /// Reads up to `length` bytes at `offset`, as they were written; short at the end of the file.
    ///
    /// # Errors
    /// The bytes can't be had from the pool, or the spool can't be read.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, Failure> {
        let (images, session) = self.images();
        let Some(top) = images.first() else { return self.session().read_at(offset, length).await };
        if images.iter().any(|image| image.is_lost()) {
            let what = format!("the local disk did not take what was written to file {}", self.ino());
            return Err(Failure::new(ErrorCode::Damaged, what));
        }
        let end = offset.saturating_add(length as u64).min(top.size());
        if offset >= end {
            return Ok(Bytes::new());
        }
        let mut all = BytesMut::zeroed(to_usize(end - offset));
        let limit = images.iter().fold(end, |limit, image| limit.min(image.limit()));
        let mut place = |at: u64, bytes: &[u8]| {
            let from = to_usize(at - offset);
            part_mut(&mut all, from..from + bytes.len()).copy_from_slice(bytes);
        };
        let hidden = images.iter().any(|image| image.held(offset..end).first() == Some(&(offset..end)));
        if offset < limit && !hidden {
            let length = to_usize(limit - offset);
            let below = match session {
                Some(session) => session.read_at(offset, length).await?,
                None => self.read_base(offset, length).await?,
            };
            place(offset, &below);
        }
        for image in images.iter().rev() {
            for part in image.held(offset..end) {
                let mut bytes = vec![0; to_usize(part.end - part.start)];
                let read = blocking(|| image.read(part.start, &mut bytes));
                read.map_err(|error| self.unspooled("reading", &error))?;
                place(part.start, &bytes);
            }
        }
        Ok(all.freeze())
    }

    /// The first place at or behind `offset` that is sought, in what was written so far: see [`Sought`].
    pub fn seek(&self, offset: u64, sought: Sought) -> Option<u64> {
        let (images, session) = self.images();
        let limit = images.iter().fold(u64::MAX, |limit, image| limit.min(image.limit()));
        let size = images.first().map_or_else(|| self.session().size(), |top| top.size());
        sought.find(offset, size, |at| {
            // Only reading it would tell where the version that was written over has holes.
            let below = session.as_ref().map_or(Some(at..u64::MAX), |session| session.data_at(at));
            let below = below.filter(|data| data.start < limit && limit > at);
            let below = below.map(|data| data.start..data.end.min(limit));
            images.iter().map(|image| image.data_at(at)).fold(below, first)
        })
    }

    /// Whether what was written was closed and waits in the spool to be pushed, whatever happens to this process.
    pub fn is_closed_in_spool(&self) -> bool {
        self.is_spooled() && self.noted.lock().is_some_and(|noted| noted.closed)
    }

    /// `close()`: what it waits for is up to the protocol and, but for complete local writes, to the folder's `close`.
    /// `closed`: what was written counts as closed, since no writer goes on and none was ended by a signal.
    ///
    /// # Errors
    /// What was written can't be kept.
    pub async fn flush(self: &Arc<Self>, mtime: TimeNs, closed: bool) -> Result<(), Failure> {
        self.failure.lock().clone().map_or(Ok(()), Err)?;
        while !self.begin_version() {
            if !self.keep_base().await? {
                self.fall_back().await?;
                continue;
            }
            match self.try_note_state(mtime, closed) {
                Err(error) if self.has_no_room(&error) => self.fall_back().await?,
                noted => return noted.map_err(|error| self.unspooled("noting a close", &error)),
            }
        }
        self.drain().await?;
        let session = self.session();
        session.flush(mtime).await?;
        if !session.is_dirty() {
            self.let_go();
        }
        Ok(())
    }

    /// Sees to it that the version of which the image has parts stays until it is pushed, whatever becomes of this mount, of the manager, and
    /// of the version. False: no more are kept, so that the file goes another way.
    async fn keep_base(&self) -> Result<bool, Failure> {
        let top = self.layers.read().top().cloned();
        let is_needed = self.base.is_some() && !self.base_kept.load(Ordering::Acquire);
        let Some(image) = top.filter(|image| is_needed && !image.hides_all_below()) else { return Ok(true) };
        match self.session().keep_base(image.bytes()).await {
            Err(failure) if failure.code == ErrorCode::NoSpace => {
                tracing::warn!(ino = %self.ino(), %failure, "a file goes through memory and not through the spool");
                Ok(false)
            }
            kept => {
                kept?;
                self.base_kept.store(true, Ordering::Release);
                Ok(true)
            }
        }
    }

    /// Says in the record how far the file got.
    pub fn note_state(&self, mtime: TimeNs, closed: bool) -> Result<(), Failure> {
        let noted = self.try_note_state(mtime, closed);
        noted.map_err(|error| self.unspooled("noting a close", &error))
    }

    fn try_note_state(&self, mtime: TimeNs, closed: bool) -> io::Result<()> {
        let image = self.layers.read().top().cloned();
        let Some(image) = image else { return Ok(()) };
        let noted = blocking(|| {
            let (_turn, shape) = (self.syncing.lock(), image.shape());
            // Of what was synced once, the machine may not lose what came later and was closed.
            if self.synced.load(Ordering::Acquire) && self.unsynced.swap(false, Ordering::AcqRel) {
                image.sync()?;
            }
            self.note(&shape, |_| Some(Noted { mtime, closed }))
        });
        noted.inspect_err(|_| self.unsynced.store(true, Ordering::Release))
    }

    /// `fsync()`: what was written is durable on the local disk, in complete local writes, or at the pool, in a version.
    ///
    /// # Errors
    /// It isn't.
    pub async fn sync(self: &Arc<Self>, mtime: TimeNs) -> Result<(), Failure> {
        if !self.is_spooled() || !self.keep_base().await? {
            return self.commit(mtime).await.map(drop);
        }
        let image = self.layers.read().top().cloned();
        let Some(image) = image else { return Ok(()) };
        let synced = blocking(|| {
            // What is written while it runs is not in it.
            let (_turn, shape) = (self.syncing.lock(), image.shape());
            self.unsynced.store(false, Ordering::Release);
            image.sync()?;
            self.synced.store(true, Ordering::Release);
            // Somebody may have written or closed meanwhile.
            let closed = |noted: Option<Noted>| noted.is_some_and(|noted| noted.closed);
            self.note(&shape, |noted| Some(Noted { mtime, closed: closed(noted) }))
        });
        let synced = synced.inspect_err(|_| self.unsynced.store(true, Ordering::Release));
        match synced {
            Err(error) if self.has_no_room(&error) => self.commit(mtime).await.map(drop),
            synced => synced.map_err(|error| self.unspooled("syncing", &error)),
        }
    }

    /// The newest version that came of this writer, or on which it builds.
    pub async fn version(&self) -> Option<VersionInfo> {
        self.session().version().await
    }

    /// Ends the writer; what is neither committed nor in the spool is given up. `interrupted`: see [`Session::close`].
    ///
    /// # Errors
    /// Something was not saved, or the manager can't be told.
    pub async fn close(&self, interrupted: bool) -> Result<(), Failure> {
        self.session().close(interrupted).await
    }

    /// The session couldn't save what the application was promised, and the spool still has it: from now on that waits there to be
    /// pushed. `None`: the spool has nothing that was promised.
    pub fn take_back(self: &Arc<Self>) -> Option<Unpushed> {
        let mut layers = self.layers.write();
        let is_stuck = layers.protocol == Protocol::Sw;
        let stuck = layers.pushing.take_if(|_| is_stuck);
        let promised = self.kept.lock().take();
        let noted = || self.noted.lock().take();
        let promised = promised.or_else(|| stuck.clone().and_then(|image| Some((image, noted()?))));
        let Some((image, noted)) = promised else {
            stuck.iter().for_each(|image| blocking(|| image.remove()));
            return None;
        };
        (*self.noted.lock(), *self.failure.lock()) = (Some(noted), None);
        *layers = Layers { protocol: Protocol::Clw, filling: Some(image), pushing: None, begins_again: true };
        Some(Unpushed::new(Arc::clone(self), noted))
    }

    /// Whether the local disk lost what waits to be pushed.
    pub fn is_lost(&self) -> bool {
        self.layers.read().top().is_some_and(|image| image.is_lost())
    }

    /// Gives up what is in the spool: it can't be pushed any more. Unless the file was removed, it is on record as lost.
    ///
    /// # Errors
    /// It can't be put on record now, and stays in the spool.
    pub async fn discard(&self, pool: &Pool) -> Result<(), Failure> {
        if let Err(failure) = self.session().give_up(self.size()).await
            && !pool.is_gone(&failure).await
        {
            return Err(failure);
        }
        let image = self.layers.write().filling.take();
        self.done(image.as_deref());
        Ok(())
    }

    /// Nothing of the file need be in the spool any more.
    fn done(&self, image: Option<&Image>) {
        if let Some(spool) = &self.spool {
            blocking(|| spool.done(self.name(), image, self.synced.load(Ordering::Acquire)));
        }
    }

    /// Closes a writer that has saved everything, in the background: nobody waits for its end.
    pub fn close_later(self: &Arc<Self>) {
        let writer = Arc::clone(self);
        self.pool.background(async move {
            if let Err(failure) = writer.close(false).await {
                tracing::warn!(ino = %writer.ino(), %failure, "a session did not end well");
            }
        });
    }

    /// What the session has committed needs no image any more.
    fn let_go(&self) {
        let kept = self.kept.lock().take();
        if let Some((image, _)) = kept {
            self.done(Some(&image));
        }
    }
}

/// Waits for the local disk. Other tasks of this thread go on meanwhile where there are threads for them.
fn blocking<R>(work: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
