//! One file, read or written piece by piece: what file objects of other languages stand on.

use std::sync::Arc;

use bytes::Bytes;
use stdchk_client::{Reader, Session};
use stdchk_model::message::manager::TimeNs;

use crate::error::{About, Error, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;
use crate::underway::{Opening, Underway};

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

    /// Fills `buffer` from `offset` on. The number of bytes: fewer only where the file ends.
    ///
    /// # Errors
    /// Those of [`OpenFile::read_at`]. The buffer's content is unspecified then.
    pub async fn read_into(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        for piece in buffer.chunks_mut(PIECE_BYTES) {
            let read = self.read_at(offset + filled as u64, piece.len()).await?;
            let (to, rest) = piece.split_at_mut(read.len());
            to.copy_from_slice(&read);
            filled += read.len();
            if !rest.is_empty() {
                break;
            }
        }
        Ok(filled)
    }
}

/// Bytes that are asked of the pool at once where a buffer takes more: several chunks, which are fetched together.
const PIECE_BYTES: usize = 4 << 20;

/// A version that is being written. Nobody sees it before it is committed; dropping it gives it up.
pub struct NewVersion {
    underway: Underway,
    session: Arc<Session>,
    shown: String,
}

impl NewVersion {
    /// Writes bytes at `offset`, which may lie behind the end: a hole is between. Waits while the window is full.
    ///
    /// # Errors
    /// [`Code::NoSpace`](crate::Code::NoSpace): the pool has no room. [`Code::Unreachable`](crate::Code::Unreachable): no
    /// benefactor takes them.
    pub async fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result {
        self.session.write_at(offset, bytes).await.about(&self.shown)
    }

    /// Appends bytes, as [`NewVersion::write_at`] its end.
    ///
    /// # Errors
    /// Those of that method.
    pub async fn write(&mut self, bytes: &[u8]) -> Result {
        self.write_at(self.length(), bytes).await
    }

    /// Sets its length: bytes behind are gone, bytes added read as zeros.
    ///
    /// # Errors
    /// [`Code::Invalid`](crate::Code::Invalid): longer than a file may be.
    pub async fn truncate(&mut self, length: u64) -> Result {
        self.session.truncate(length).await.about(&self.shown)
    }

    /// Its length, bytes.
    pub fn length(&self) -> u64 {
        self.session.size()
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
    /// [`Code::WrongKind`](crate::Code::WrongKind): the name is a folder's. [`Code::Exists`](crate::Code::Exists): it was to be a new
    /// file, and there is one.
    pub async fn create(&self, target: &Target, mode: u32, opening: Opening) -> Result<NewVersion> {
        let underway = Underway::begin(self, target, mode, opening).await?;
        let session = underway.session()?;
        Ok(NewVersion { underway, session, shown: target.shown() })
    }
}
