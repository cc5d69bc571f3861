//! Requests about open files: opening, reading, writing, flushing, closing.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use fuser::{
    Errno, FileHandle, FopenFlags, INodeNo, Notifier, ReplyData, ReplyEmpty, ReplyLseek, ReplyOpen,
    ReplyWrite,
};
use stdchk_client::Sought;
use stdchk_model::Failure;

use super::Adapter;
use super::reply::{answer_empty, answer_write, or_refuse, refused, refused_content};
use crate::descriptors::holds_another;
use crate::errno::errno;
use crate::fs::{FileSystem, Handle, NodeId};
use crate::killed::is_killed;

impl Adapter {
    pub(super) fn open_file(&self, caller: u32, ino: INodeNo, writable: bool, reply: ReplyOpen) {
        self.task(|fs| async move {
            match fs.open(NodeId(ino.0), writable, caller).await {
                Ok(number) => {
                    let past_cache = fs.handle(number).is_ok_and(|handle| handle.file.goes_past_cache());
                    reply.opened(FileHandle(number), open_flags(past_cache));
                }
                Err(failure) => reply.error(refused("open", ino.0, &failure)),
            }
        });
    }

    pub(super) fn read_file(&self, ino: INodeNo, fh: FileHandle, offset: u64, length: u32, reply: ReplyData) {
        self.task(|fs| async move {
            let read = match fs.handle(fh.0) {
                Ok(handle) => handle.read(offset, length as usize).await,
                Err(failure) => Err(failure),
            };
            match read {
                Ok(bytes) => reply.data(&bytes),
                Err(failure) => reply.error(refused_content("a read", ino.0, &failure)),
            }
        });
    }

    /// `timed`: the kernel has said or will say when it was written.
    pub(super) fn write_file(
        &self,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        timed: bool,
        reply: ReplyWrite,
    ) {
        let mut writing = pin!(write(&self.fs, fh.0, offset, data, timed));
        let at_once = {
            let _entered = self.runtime.enter();
            writing.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        if let Poll::Ready(written) = at_once {
            return answer_write(reply, ino, written);
        }
        if self.may_wait() {
            let written = self.runtime.block_on(writing);
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            return answer_write(reply, ino, written);
        }
        // Written from the beginning again: the same bytes to the same place.
        let data = data.to_vec();
        self.task(|fs| async move {
            answer_write(reply, ino, write(&fs, fh.0, offset, &data, timed).await);
        });
    }

    /// A descriptor of the file was closed by the task `caller`.
    pub(super) fn flush_file(&self, caller: u32, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        if !handle.writable {
            return reply.ok();
        }
        self.task(|fs| async move {
            let killed = is_killed(caller).await;
            let goes_on = !killed && handle.file.is_emptied() && holds_another(caller, ino.0).await;
            let flushed = fs.flush(&handle, killed, goes_on).await;
            if !killed {
                handle.file.learn(&fs, caller).await;
            }
            answer_empty(reply, "close", ino, flushed);
        });
    }

    /// The last descriptor of a handle is gone. That it goes is noted here and now: an open that comes after it must not
    /// take its writer for one that still writes.
    pub(super) fn release_file(&self, fh: FileHandle, reply: ReplyEmpty) {
        let handle = self.fs.leave(fh.0);
        self.task(|fs| async move {
            let left = match handle {
                Some(handle) => handle.release(&fs).await,
                None => None,
            };
            reply.ok();
            if let Some(file) = left {
                file.push(&fs).await;
            }
        });
    }

    /// `lseek()` for data or a hole.
    ///
    /// The kernel keeps what was written and the size of the file to itself until it must hand them over, so it is made
    /// to: dropping its pages of a file writes those back that aren't written yet. It waits for the answer with the file
    /// locked against other changes of its size.
    pub(super) fn seek(&self, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        let sought = match whence {
            libc::SEEK_DATA => Sought::Data,
            libc::SEEK_HOLE => Sought::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let kernel = Arc::clone(&self.kernel);
        self.task(|_| async move {
            if handle.file.writer().is_some()
                && let Err(error) = hand_over(kernel, ino).await
            {
                tracing::warn!(inode = ino.0, %error, "the kernel did not hand over what was written");
                return reply.error(Errno::EIO);
            }
            match u64::try_from(offset).ok().map(|offset| handle.seek(offset, sought)) {
                Some(Err(failure)) => reply.error(refused_content("a seek", ino.0, &failure)),
                Some(Ok(Some(found))) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
                Some(Ok(None)) | None => reply.error(Errno::ENXIO),
            }
        });
    }

    pub(super) fn allocate(
        &self,
        ino: INodeNo,
        fh: FileHandle,
        (offset, length): (u64, u64),
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match mode {
            0 => self.with_handle(fh, reply, "fallocate", ino, move |_, handle| async move {
                extend(&handle, offset.saturating_add(length)).await
            }),
            PUNCH => self.with_handle(fh, reply, "fallocate", ino, move |_, handle| async move {
                handle.file.zero(offset, length).await
            }),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    /// Does something with an open file whose only answer is whether it succeeded.
    pub(super) fn with_handle<F: Future<Output = Result<(), Failure>> + Send + 'static>(
        &self,
        fh: FileHandle,
        reply: ReplyEmpty,
        what: &'static str,
        ino: INodeNo,
        work: impl FnOnce(Arc<FileSystem>, Arc<Handle>) -> F,
    ) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        let work = work(Arc::clone(&self.fs), handle);
        self.task(|_| async move { answer_empty(reply, what, ino, work.await) });
    }
}

/// How the kernel is to treat a handle. What it has cached of the file stays: it is of what is opened.
pub(super) fn open_flags(past_cache: bool) -> FopenFlags {
    match past_cache {
        true => {
            FopenFlags::FOPEN_KEEP_CACHE
                | FopenFlags::FOPEN_DIRECT_IO
                | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        }
        false => FopenFlags::FOPEN_KEEP_CACHE,
    }
}

async fn write(
    fs: &FileSystem,
    handle: u64,
    offset: u64,
    data: &[u8],
    timed: bool,
) -> Result<usize, Failure> {
    let handle = fs.handle(handle)?;
    let session = handle.file.written()?;
    handle.file.wrote(timed);
    session.write_at(offset, data).await?;
    handle.file.took(data.len());
    Ok(data.len())
}

/// Makes the kernel hand over all that it has of a file.
pub(super) async fn hand_over(kernel: Arc<OnceLock<Notifier>>, ino: INodeNo) -> io::Result<()> {
    let whole_file = 0;
    let told = tokio::task::spawn_blocking(move || {
        kernel.get().map_or(Ok(()), |kernel| kernel.inval_inode(ino, 0, whole_file))
    });
    told.await.map_err(io::Error::other)?
}

async fn extend(handle: &Handle, end: u64) -> Result<(), Failure> {
    if end > handle.file.written()?.size() { handle.file.truncate(end).await } else { Ok(()) }
}
