//! Requests about open files: opening, reading, writing, flushing, closing.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use fuser::{
    Errno, FileHandle, FopenFlags, INodeNo, Notifier, OpenFlags, ReplyData, ReplyEmpty, ReplyLseek,
    ReplyOpen, ReplyWrite,
};
use stdchk_client::{Sought, Writer};
use stdchk_model::Failure;
use stdchk_model::exact::narrow;

use super::reply::{answer_empty, answer_write, or_refuse, refused, refused_content};
use super::{Adapter, writable};
use crate::caller::{Caller, LOOK_PAUSE, told_to_end};
use crate::descriptors::{Silence, holds};
use crate::errno::errno;
use crate::fs::{FileSystem, Handle, Mark, NodeId, Opened};
use crate::killed::{Closes, Dying, how_it_closes};
use crate::user::Origin;

/// The close of a file up to this size begins in the thread that received it: it only asks and sends.
const BEGUN_HERE_BYTES_MAX: u64 = 64 << 10;

impl Adapter {
    pub(super) fn open_file(&self, caller: Origin, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (writable, appends) = (writable(flags), flags.0 & libc::O_APPEND != 0);
        self.begin(self.carried(
            caller,
            reply,
            move |fs, caller| async move {
                if writable && appends {
                    fs.check_room().await?;
                }
                fs.open(NodeId(ino.0), writable, caller.task()).await
            },
            move |reply, opened| match opened {
                Ok(opened) => reply.opened(FileHandle(opened.number), open_flags(opened.past_cache)),
                Err(failure) => reply.error(refused("open", ino.0, &failure)),
            },
            |fs, opened: Result<Opened, Failure>| async move {
                if let Ok(opened) = opened {
                    fs.give_back(opened.number).await;
                }
            },
        ));
    }

    pub(super) fn read_file(
        &self,
        caller: Origin,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u32,
        reply: ReplyData,
    ) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        let work = |_| async move { handle.read(offset, length as usize).await };
        self.ask(caller, reply, work, move |reply, read| match read {
            Ok(bytes) => reply.data(&bytes),
            Err(failure) => reply.error(refused_content("a read", ino.0, &failure)),
        });
    }

    /// `caller`: of a `write()`; `None`: the kernel writes back what it has, which nobody can be told of.
    ///
    /// The program that wrote what the kernel writes back may wait for it, in `fsync()`, in `close()` or on its way out,
    /// and the kernel ends no such wait. If it has been killed, the bytes are taken before there is room for them.
    pub(super) fn write_file(
        &self,
        caller: Option<u32>,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        reply: ReplyWrite,
    ) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        let place =
            Place { offset, after: handle.file.debts.mark(), timed: caller.is_none() && self.reports_arrive };
        let mut writing = pin!(write(&handle, &place, data));
        let at_once = {
            let _entered = self.runtime.enter();
            writing.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        if let Poll::Ready(written) = at_once {
            return answer_write(reply, ino, written);
        }
        let mut taken = None;
        if self.may_wait() {
            let left = self.runtime.block_on(left_before(writing, caller, &handle, &self.dying));
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            match (left, caller) {
                (Before::Done(written), _) => return answer_write(reply, ino, written),
                (Before::Left, Some(_)) => return reply.error(Errno::EINTR),
                (Before::Left, None) => taken = self.fs.owe(&handle, data.len()),
            }
        }
        // Written from the beginning again: the same bytes to the same place.
        let data = data.to_vec();
        let (handle, dying) = (Arc::clone(&handle), Arc::clone(&self.dying));
        self.task(|fs| async move {
            let mut writing = pin!(write(&handle, &place, &data));
            if taken.is_none() {
                let left = left_before(writing.as_mut(), caller, &handle, &dying).await;
                match (left, caller) {
                    (Before::Done(written), _) => return answer_write(reply, ino, written),
                    (Before::Left, Some(_)) => return reply.error(Errno::EINTR),
                    (Before::Left, None) => taken = fs.owe(&handle, data.len()),
                }
            }
            if taken.is_none() {
                return answer_write(reply, ino, writing.await);
            }
            answer_write(reply, ino, Ok(data.len()));
            if let Err(failure) = writing.await {
                refused_content("a write of a program that was killed", ino.0, &failure);
            }
            drop(taken);
        });
    }

    /// A descriptor of the file was closed by the task `caller`. What it wrote is saved, whether it waits for that or is
    /// told to end.
    pub(super) fn flush_file(&self, caller: u32, ino: INodeNo, fh: FileHandle, reply: ReplyEmpty) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        if !handle.writable {
            return reply.ok();
        }
        let (fs, dying, silence) = (Arc::clone(&self.fs), Arc::clone(&self.dying), Arc::clone(&self.silence));
        // What is small and waits for no disk of this machine is on its way before another thread is woken.
        let begins_here = |writer: Arc<Writer>| writer.size() <= BEGUN_HERE_BYTES_MAX && !writer.is_spooled();
        let begins_here = handle.file.writer().is_none_or(begins_here);
        let close = async move {
            let closes = how_it_closes(caller).await;
            let cut_off = closes != Closes::Properly;
            if cut_off {
                tracing::info!(
                    inode = ino.0,
                    task = caller,
                    ?closes,
                    "a program ends with a file open to write"
                );
            }
            let _closes = (!cut_off).then(|| handle.closes(caller));
            let covered = AtomicBool::new(false);
            let work = async {
                let goes_on = goes_on(&handle, caller, ino.0, cut_off).await;
                let flushed = fs.flush(&handle, cut_off, goes_on).await;
                if !cut_off && handle.is_opened_by(caller) {
                    handle.file.learn(&fs, caller).await;
                }
                flushed
            };
            let leaves = async {
                if closes == Closes::Killed {
                    return dying.has_waited(caller).await;
                }
                tokio::select! {
                    () = told_to_end(caller) => {}
                    () = is_not_waited_for(&handle, caller, ino.0, &silence) => covered.store(true, Ordering::Relaxed),
                }
            };
            let answer = |reply, flushed| answer_empty(reply, "close", ino, flushed);
            let let_go = |reply: ReplyEmpty| match covered.load(Ordering::Relaxed) {
                true => reply.ok(),
                false => reply.error(Errno::EINTR),
            };
            if let Some(Err(failure)) = Caller::of(caller).serve(reply, work, leaves, answer, let_go).await {
                refused_content("a close that its program did not wait for", ino.0, &failure);
            }
        };
        match begins_here {
            true => self.begin(close),
            false => self.task(|_| close),
        }
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
    pub(super) fn seek(
        &self,
        caller: Origin,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        let sought = match whence {
            libc::SEEK_DATA => Sought::Data,
            libc::SEEK_HOLE => Sought::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let kernel = Arc::clone(&self.kernel);
        let work = |_| async move {
            if handle.file.writer().is_some()
                && let Err(error) = hand_over(kernel, ino).await
            {
                tracing::warn!(inode = ino.0, %error, "the kernel did not hand over what was written");
                return Err(Errno::EIO);
            }
            match u64::try_from(offset) {
                Ok(offset) => {
                    let found = handle.seek(offset, sought).await;
                    found.map_err(|failure| refused_content("a seek", ino.0, &failure))
                }
                Err(_) => Ok(None),
            }
        };
        self.ask(caller, reply, work, |reply: ReplyLseek, found| match found {
            Ok(Some(found)) => reply.offset(narrow(found)),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(errno) => reply.error(errno),
        });
    }

    pub(super) fn allocate(
        &self,
        caller: Origin,
        ino: INodeNo,
        fh: FileHandle,
        (offset, length): (u64, u64),
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match mode {
            0 => self.with_handle(caller, fh, reply, "fallocate", ino, move |_, handle, caller| async move {
                caller.step(extend(&handle, offset.saturating_add(length))).await
            }),
            PUNCH => {
                self.with_handle(caller, fh, reply, "fallocate", ino, move |_, handle, caller| async move {
                    caller.step(handle.file.punch(offset, length)).await
                });
            }
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    /// Does something with an open file whose only answer is whether it succeeded.
    pub(super) fn with_handle<F: Future<Output = Result<(), Failure>> + Send + 'static>(
        &self,
        caller: Origin,
        fh: FileHandle,
        reply: ReplyEmpty,
        what: &'static str,
        ino: INodeNo,
        work: impl FnOnce(Arc<FileSystem>, Arc<Handle>, Caller) -> F,
    ) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        self.spawn(self.carried(
            caller,
            reply,
            |fs, caller| work(fs, handle, caller),
            move |reply, outcome| answer_empty(reply, what, ino, outcome),
            |_, _| async {},
        ));
    }
}

/// Where bytes go.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    /// What was taken before there was room for it goes first.
    after: Mark,
    /// The kernel has said or will say when they were written.
    timed: bool,
}

/// What came first.
enum Before<T> {
    Done(T),
    Left,
}

/// Waits for a write until who waits for it should go: its caller, if it has one, or else a program that writes the file.
async fn left_before<T>(
    writing: impl Future<Output = T>,
    caller: Option<u32>,
    handle: &Handle,
    dying: &Dying,
) -> Before<T> {
    let leaves = async {
        match caller {
            Some(caller) => told_to_end(caller).await,
            None => handle.file.writer_killed(dying).await,
        }
    };
    tokio::select! {
        biased;
        outcome = writing => Before::Done(outcome),
        () = leaves => Before::Left,
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

async fn write(handle: &Handle, place: &Place, data: &[u8]) -> Result<usize, Failure> {
    handle.file.written()?;
    handle.file.wrote(place.timed);
    handle.file.debts.paid_before(place.after).await;
    let session = handle.file.written()?;
    session.write_at(place.offset, data).await?;
    handle.file.took(data.len());
    Ok(data.len())
}

/// Makes the kernel hand over all that it has of a file.
pub(super) async fn hand_over(kernel: Arc<OnceLock<Notifier>>, ino: INodeNo) -> io::Result<()> {
    tokio::task::spawn_blocking(move || drop_pages(&kernel, ino)).await.map_err(io::Error::other)?
}

/// Makes the kernel drop its pages of a file; it writes those back first that have been written to.
pub(super) fn drop_pages(kernel: &OnceLock<Notifier>, ino: INodeNo) -> io::Result<()> {
    let whole_file = 0;
    kernel.get().map_or(Ok(()), |kernel| kernel.inval_inode(ino, 0, whole_file))
}

async fn extend(handle: &Handle, end: u64) -> Result<(), Failure> {
    if end > handle.file.written()?.size() { handle.file.truncate(end).await } else { Ok(()) }
}

/// Whether a program that has the file open to write goes on with it behind this close, where that makes a difference; one that was cut
/// off goes on with nothing itself.
async fn goes_on(handle: &Handle, caller: u32, number: u64, cut_off: bool) -> bool {
    let is_spooled = handle.file.writer().is_some_and(|writer| writer.is_spooled());
    let makes_a_difference = is_spooled || handle.file.is_emptied();
    makes_a_difference
        && (!cut_off && holds(caller, number).await || handle.is_inherited(caller, number).await)
}

/// Comes once the pool has been silent for a while, if the close that `caller` waits for is one of an inherited descriptor. The
/// kernel takes a descriptor from its program a moment before it tells of the close, so this is looked at again.
async fn is_not_waited_for(handle: &Handle, caller: u32, number: u64, silence: &Silence) {
    let patience = silence.patience();
    tokio::time::sleep(patience).await;
    while !handle.is_inherited(caller, number).await {
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    // Who didn't wait knows nothing new.
    if !patience.is_zero() {
        silence.note();
    }
}
