//! A file that is being stored, and what is taken back if it comes to nothing.
//!
//! The entry of a new file and the session that writes it exist in the pool before there is a version. Both belong to an
//! [`Underway`]. Whoever drops one that has not come to its end leaves the taking back to the background.

use std::sync::Arc;

use stdchk_client::{Pool as Client, Session};
use stdchk_model::message::manager::{Attr, Change, FileKind};
use stdchk_model::{ErrorCode, Failure, Ino};

use crate::error::{About, Error, Result};
use crate::namespace::{self, LOOKS_MAX};
use crate::pool::Pool;
use crate::target::Target;

/// What a new version of a file begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Opening {
    /// Nothing: it replaces all that the file has.
    #[default]
    Replace,
    /// What the file has: its writer adds to it, or changes parts.
    Append,
    /// Nothing, and there must be no such file.
    New,
}

/// A file that is being stored.
pub(crate) struct Underway {
    pool: Pool,
    /// The new file that has no version yet: its folder, name and inode.
    entry: Option<(Ino, String, Ino)>,
    /// It holds reservations.
    session: Option<Arc<Session>>,
}

impl Underway {
    /// Opens `target`, made with these permission bits where it is missing, for a new version. Goes to its end also if the caller
    /// goes away, and is taken back then.
    pub(crate) async fn begin(pool: &Pool, target: &Target, mode: u32, opening: Opening) -> Result<Self> {
        let begun =
            Self { pool: pool.clone(), entry: None, session: None }.open(target.clone(), mode, opening);
        pool.to_its_end(begun).await
    }

    async fn open(mut self, target: Target, mode: u32, opening: Opening) -> Result<Self> {
        match self.try_open(&target, mode, opening).await {
            Ok(session) => {
                self.session = Some(session);
                Ok(self)
            }
            Err(error) => {
                self.take_back().await;
                Err(error)
            }
        }
    }

    async fn try_open(&mut self, target: &Target, mode: u32, opening: Opening) -> Result<Arc<Session>> {
        let (client, shown) = (self.pool.client.clone(), target.shown());
        let Some((name, parents)) = target.split_last() else {
            return Err(Error::invalid("/", "the root can't be a file", "write APP/NAME"));
        };
        let parent = namespace::make_folders(&client, parents).await?;
        let mut looks = 1;
        loop {
            let attr = self.entry(&client, parent, name, mode, opening).await.about(&shown)?;
            if attr.kind != FileKind::File {
                let next = "choose another name, or `APP/FOLDER/`";
                return Err(Error::wrong_kind(shown, "it is not a file", next));
            }
            let session = match opening {
                Opening::Append => client.write(attr.ino).await,
                Opening::Replace | Opening::New => client.replace(attr.ino).await,
            };
            match session {
                // Somebody removed it, or gave its name to another one: what has the name now is replaced.
                Err(failure) if failure.code == ErrorCode::NotFound && looks < LOOKS_MAX => looks += 1,
                session => return session.about(&shown),
            }
        }
    }

    /// The file's entry, made if it is missing.
    async fn entry(
        &mut self,
        pool: &Client,
        parent: Ino,
        name: &str,
        mode: u32,
        opening: Opening,
    ) -> Result<Attr, Failure> {
        let must_be_new = opening == Opening::New;
        if !must_be_new {
            match namespace::entry(pool, parent, name).await {
                Err(failure) if failure.code == ErrorCode::NotFound => {}
                found => return found,
            }
        }
        match namespace::make(pool, parent, name, FileKind::File, mode).await {
            Err(failure) if failure.code == ErrorCode::Exists && !must_be_new => {
                namespace::entry(pool, parent, name).await
            }
            Ok(attr) => {
                self.entry = Some((parent, name.to_owned(), attr.ino));
                Ok(attr)
            }
            failed => failed,
        }
    }

    /// The session that writes it.
    ///
    /// # Errors
    /// None once it was begun.
    pub(crate) fn session(&self) -> Result<Arc<Session>> {
        self.session.clone().ok_or_else(|| Error::defect("a file being stored", "it has no session"))
    }

    /// Ends it after its version was committed: the entry stays.
    pub(crate) async fn commit(mut self) -> Result<(), Failure> {
        self.entry = None;
        match self.session.take() {
            Some(session) => session.close(false).await,
            None => Ok(()),
        }
    }

    /// Gives back what the session reserved, and removes the file that got no version.
    pub(crate) async fn take_back(mut self) {
        take_back(self.pool.client.clone(), self.session.take(), self.entry.take()).await;
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        if self.session.is_some() || self.entry.is_some() {
            let work = take_back(self.pool.client.clone(), self.session.take(), self.entry.take());
            self.pool.in_background(work);
        }
    }
}

async fn take_back(pool: Client, session: Option<Arc<Session>>, entry: Option<(Ino, String, Ino)>) {
    if let Some(session) = session {
        // What it reserved comes back at once; else it would when the lease of this client ends.
        drop(session.close(false).await);
    }
    if let Some((parent, name, ino)) = entry {
        // If the manager is away it stays as an empty entry.
        drop(pool.change(Change::UnlinkUnwritten { parent, name, ino }).await);
    }
}
