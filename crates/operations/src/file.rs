//! One file, read or written piece by piece: what file objects of other languages stand on.

use std::sync::Arc;

use bytes::Bytes;
use stdchk_client::{Reader, Session};
use stdchk_model::message::manager::TimeNs;

use crate::error::{About, Error, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;
use crate::underway::Underway;

/// A version that is being read. It stays the same version whatever is written meanwhile.
#[derive(Clone)]
pub struct OpenFile {
    reader: Arc<Reader>,
    shown: String,
}

impl OpenFile {
    /// Its size, bytes.
    pub fn size(&self) -> u64 {
        self.reader.size()
    }

    /// The version; `None`: the file has none, and is empty.
    pub fn version(&self) -> Option<u64> {
        self.reader.version()
    }

    /// Up to `length` bytes from `offset` on, every one verified. Fewer only where the file ends.
    ///
    /// # Errors
    /// [`Code::Damaged`](crate::Code::Damaged), [`Code::Unreachable`](crate::Code::Unreachable): content can't be had.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes> {
        let first = self.reader.read_at(offset, length).await.about(&self.shown)?;
        if first.len() == length || first.is_empty() {
            return Ok(first);
        }
        let mut all = first.to_vec();
        while all.len() < length {
            let part = self.reader.read_at(offset + all.len() as u64, length - all.len()).await;
            match part.about(&self.shown)? {
                part if part.is_empty() => break,
                part => all.extend_from_slice(&part),
            }
        }
        Ok(all.into())
    }
}

/// A version that is being written. Nobody sees it before it is committed; dropping it gives it up.
pub struct NewVersion {
    underway: Underway,
    session: Arc<Session>,
    length: u64,
    shown: String,
}

impl NewVersion {
    /// Appends bytes. Waits while the window is full.
    ///
    /// # Errors
    /// [`Code::NoSpace`](crate::Code::NoSpace): the pool has no room. [`Code::Unreachable`](crate::Code::Unreachable): no
    /// benefactor takes them.
    pub async fn write(&mut self, bytes: &[u8]) -> Result {
        self.session.write_at(self.length, bytes).await.about(&self.shown)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Bytes that were written.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Makes all of it durable and the newest version of the file, which was changed at `mtime`. The number of the version.
    ///
    /// # Errors
    /// Content could not be stored: there is no new version.
    pub async fn commit(self, mtime: TimeNs) -> Result<u64> {
        let info = match self.session.commit_last(mtime).await.about(&self.shown) {
            Ok(info) => info,
            Err(error) => {
                self.underway.take_back().await;
                return Err(error);
            }
        };
        self.underway.commit().await.about(&self.shown)?;
        let none = || Error::defect(&self.shown, "a commit of a new version made none");
        info.map(|info| info.version).ok_or_else(none)
    }

    /// Gives it up, and waits until that is done.
    pub async fn discard(self) {
        self.underway.take_back().await;
    }
}

impl Pool {
    /// Opens a version for reading.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such file or version. [`Code::WrongKind`](crate::Code::WrongKind):
    /// it is no file.
    pub async fn open(&self, target: &Target) -> Result<OpenFile> {
        let reader = namespace::open(&self.client, target).await?;
        Ok(OpenFile { reader, shown: target.shown() })
    }

    /// Begins a new version of a file, which is made with these permission bits where it is missing.
    ///
    /// # Errors
    /// [`Code::WrongKind`](crate::Code::WrongKind): the name is a folder's.
    pub async fn create(&self, target: &Target, mode: u32) -> Result<NewVersion> {
        let underway = Underway::begin(self, target, mode).await?;
        let session = underway.session()?;
        Ok(NewVersion { underway, session, length: 0, shown: target.shown() })
    }
}
