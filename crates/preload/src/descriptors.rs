//! The descriptors and streams of this process at a checkpoint (Metamori's FIT, figure 4.2), and the way back to them.
//!
//! Taken from the kernel at the checkpoint itself: number, path, flags, offset, and which numbers share one open file.
//! Going back reopens what was closed, under the same number; a stream closed since then was only laid aside, so that
//! its pointer stays good.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{FILE, c_int};
use rustix::fs::{FileType, Mode, OFlags};
use stdchk_filestate::watch::Watch;
use stdchk_filestate::watch::place::descriptor_path;
use stdchk_model::exact::to_usize;

use crate::active::{borrow, decide, watch};
use crate::hooks::descriptors::open_descriptors;
use crate::real;

/// An open file of the process at a checkpoint, under all of its numbers.
#[derive(Debug, Clone)]
pub struct OpenFile {
    numbers: Vec<(c_int, bool)>,
    inode: u64,
    device: u64,
    path: Vec<u8>,
    flags: OFlags,
    offset: u64,
}

/// A stream at a checkpoint.
#[derive(Debug, Clone)]
pub struct Stream {
    stream: Pointer,
    number: c_int,
    position: i64,
    ended: bool,
    failed: bool,
    pushed_back: Vec<u8>,
}

/// What a process held at a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct Held {
    files: Vec<OpenFile>,
    streams: Vec<Stream>,
}

/// A stream's address. Streams belong to the C library, which locks them; the address itself may be held anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pointer(*mut FILE);

// SAFETY: only an address; every use goes through the C library's own locking.
unsafe impl Send for Pointer {}

/// What is known of a stream that the program has open, or has closed while a checkpoint still holds it.
#[derive(Debug, Default)]
struct Known {
    /// Characters pushed back, newest last, and the position before the first of them.
    pushed_back: Vec<u8>,
    pushed_at: i64,
    laid_aside: bool,
}

/// What this process knows about its streams.
#[derive(Debug, Default)]
pub struct Memory {
    streams: BTreeMap<Pointer, Known>,
    by_index: BTreeMap<u64, Held>,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory { streams: BTreeMap::new(), by_index: BTreeMap::new() });
/// Whether a character was ever pushed back: until then, seeks have nothing to drop.
static PUSHED_BACK: AtomicBool = AtomicBool::new(false);

/// The streams and what checkpoints hold, locked; also held across a fork, so that the child's copy is whole. Signals
/// must be held back meanwhile: a handler may fork.
pub fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_memory<T>(work: impl FnOnce(&mut Memory) -> T) -> T {
    decide(|| work(&mut memory()))
}

/// A stream came into being.
pub fn stream_opened(stream: *mut FILE) {
    if watch().is_some() && !stream.is_null() {
        with_memory(|memory| memory.streams.insert(Pointer(stream), Known::default()));
    }
}

/// Whether the stream's descriptor is no longer its own: then closing the stream must not close it.
pub fn is_laid_aside(stream: *mut FILE) -> bool {
    let asked =
        |memory: &mut Memory| memory.streams.get(&Pointer(stream)).is_some_and(|known| known.laid_aside);
    watch().is_some() && with_memory(asked)
}

/// A stream is being closed. When a checkpoint holds it, it is laid aside instead, with the answer of a real close.
fn lay_aside(stream: *mut FILE) -> Option<c_int> {
    let held = with_memory(|memory| {
        let held =
            memory.by_index.values().any(|held| held.streams.iter().any(|held| held.stream.0 == stream));
        match memory.streams.get_mut(&Pointer(stream)) {
            Some(known) if held => known.laid_aside = true,
            _ => drop(memory.streams.remove(&Pointer(stream))),
        }
        held
    });
    if !held {
        return None;
    }
    // SAFETY: a stream of the program, still open; its descriptor is closed through the hook.
    unsafe {
        let flushed = libc::fflush(stream);
        let cause = *libc::__errno_location();
        // What could not be written is lost, as in a real close: it must not go to whatever gets this number next.
        __fpurge(stream);
        let closed = crate::hooks::descriptors::close(libc::fileno(stream));
        if flushed != 0 {
            crate::active::set_errno(cause);
        }
        Some(if flushed == 0 && closed == 0 { 0 } else { libc::EOF })
    }
}

/// `fclose`: a stream that a checkpoint holds is only laid aside.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    let laid_aside = watch().and_then(|_| lay_aside(stream));
    // SAFETY: the argument as it came.
    laid_aside.unwrap_or_else(|| unsafe { real::fclose(stream) })
}

/// `ungetc`: what is pushed back is part of a checkpoint.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ungetc(character: c_int, stream: *mut FILE) -> c_int {
    let before = if watch().is_some() { position(stream) } else { -1 };
    // SAFETY: the arguments as they came.
    let result = unsafe { real::ungetc(character, stream) };
    if watch().is_some() && result != libc::EOF {
        PUSHED_BACK.store(true, Ordering::Relaxed);
        with_memory(|memory| {
            if let Some(known) = memory.streams.get_mut(&Pointer(stream)) {
                known.drop_consumed(before);
                known.pushed_back.extend(u8::try_from(result));
            }
        });
    }
    result
}

fn position(stream: *mut FILE) -> i64 {
    // SAFETY: a stream of the program.
    unsafe { libc::ftello(stream) }
}

impl Known {
    /// Forgets the pushed-back characters that have been read again, the stream being at `position`.
    fn drop_consumed(&mut self, position: i64) {
        // None is left once the stream stands behind where they were pushed back.
        let left = to_usize(self.pushed_at.saturating_sub(position).max(0).cast_unsigned());
        if position >= 0 && (left == 0 || left > self.pushed_back.len()) {
            self.pushed_back.clear();
            self.pushed_at = position;
        } else if position >= 0 {
            self.pushed_back.truncate(left);
        }
    }
}

macro_rules! seeking {
    ($($name:ident => $real:ident ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: drops what was pushed back.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(stream: *mut FILE $(, $argument: $type)*) -> $result {
            if PUSHED_BACK.load(Ordering::Relaxed) {
                with_memory(|memory| {
                    if let Some(known) = memory.streams.get_mut(&Pointer(stream)) {
                        known.pushed_back.clear();
                    }
                });
            }
            // SAFETY: the arguments as they came.
            unsafe { real::$real(stream $(, $argument)*) }
        }
    )*};
}

seeking! {
    fseek => fseek(offset: libc::c_long, whence: c_int) -> c_int;
    fseeko => fseeko(offset: libc::off_t, whence: c_int) -> c_int;
    fseeko64 => fseeko(offset: libc::off_t, whence: c_int) -> c_int;
    fsetpos => fsetpos(position: *const libc::fpos_t) -> c_int;
    fsetpos64 => fsetpos(position: *const libc::fpos_t) -> c_int;
    rewind => rewind() -> ();
}

/// Writes out what the program's streams hold back. A stream that another thread is using is left to that thread: it may
/// be waiting for input, for ever.
pub fn flush_streams() {
    know_standard_streams();
    let streams: Vec<Pointer> = with_memory(|memory| memory.streams.keys().copied().collect());
    for Pointer(stream) in streams.into_iter() {
        // SAFETY: a stream of the program, locked for the call.
        unsafe {
            if ftrylockfile(stream) == 0 {
                if __fpending(stream) > 0 {
                    libc::fflush(stream);
                }
                funlockfile(stream);
            }
        }
    }
}

fn know_standard_streams() {
    with_memory(|memory| {
        // SAFETY: the C library's own streams.
        for standard in unsafe { [stdin, stdout, stderr] } {
            memory.streams.entry(Pointer(standard)).or_default();
        }
    });
}

/// What the process holds now. The streams' buffers have been written out.
pub fn capture() -> Held {
    Held { files: capture_files(), streams: capture_streams() }
}

fn capture_files() -> Vec<OpenFile> {
    let mut files: Vec<OpenFile> = Vec::new();
    let mut by_state: BTreeMap<(u64, u64, u64), Vec<usize>> = BTreeMap::new();
    for fd in open_descriptors() {
        let Some(file) = look_at(fd) else { continue };
        let alike = by_state.entry((file.device, file.inode, file.offset)).or_default();
        let same = alike.iter().copied().find(|at| {
            files.get(*at).and_then(|other| other.numbers.first()).is_some_and(|(other, _)| share(fd, *other))
        });
        match same.and_then(|at| files.get_mut(at)) {
            Some(other) => other.numbers.extend(file.numbers),
            None => {
                alike.push(files.len());
                files.push(file);
            }
        }
    }
    files
}

/// The open regular file behind `fd`.
fn look_at(fd: c_int) -> Option<OpenFile> {
    // SAFETY: borrowed for the look; a number that is closed meanwhile fails it.
    let borrowed = unsafe { borrow(fd) };
    let stat = rustix::fs::fstat(borrowed).ok()?;
    let flags = rustix::fs::fcntl_getfl(borrowed).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || flags.contains(OFlags::PATH) {
        return None;
    }
    let closes = rustix::io::fcntl_getfd(borrowed).ok()?.contains(rustix::io::FdFlags::CLOEXEC);
    Some(OpenFile {
        numbers: vec![(fd, closes)],
        inode: stat.st_ino,
        device: stat.st_dev,
        path: descriptor_path(borrowed).ok()?,
        flags,
        offset: rustix::fs::tell(borrowed).ok()?,
    })
}

/// Whether two numbers are one open file. Where the kernel does not say, equal state is taken for it.
fn share(one: c_int, other: c_int) -> bool {
    const KCMP_FILE: c_int = 0;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: compares two numbers of this process.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, own, own, KCMP_FILE, one, other) };
    order <= 0
}

fn capture_streams() -> Vec<Stream> {
    let capture = |(stream, known): (&Pointer, &mut Known)| known.capture(stream.0);
    let in_use = |(_, known): &(&Pointer, &mut Known)| !known.laid_aside;
    with_memory(|memory| memory.streams.iter_mut().filter(in_use).filter_map(capture).collect())
}

unsafe extern "C" {
    fn __fpurge(stream: *mut FILE);
    fn __fpending(stream: *mut FILE) -> libc::size_t;
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    static stdin: *mut FILE;
    static stdout: *mut FILE;
    static stderr: *mut FILE;
}

impl Known {
    /// The stream as it stands; `None` when another thread is using it.
    fn capture(&mut self, stream: *mut FILE) -> Option<Stream> {
        // SAFETY: a stream of the program; unlocked below.
        if unsafe { ftrylockfile(stream) } != 0 {
            return None;
        }
        let position = position(stream);
        self.drop_consumed(position);
        let position = if self.pushed_back.is_empty() { position } else { self.pushed_at };
        // SAFETY: a stream of the program, locked above.
        let (number, ended, failed) =
            unsafe { (libc::fileno(stream), libc::feof(stream) != 0, libc::ferror(stream) != 0) };
        // SAFETY: as above.
        unsafe { funlockfile(stream) };
        let pushed_back = self.pushed_back.clone();
        Some(Stream { stream: Pointer(stream), number, position, ended, failed, pushed_back })
    }
}

/// Keeps what the process held at the checkpoint `index`, as long as that can be restored.
pub fn remember(watch: &Watch, index: u64, held: Held) {
    with_memory(|memory| {
        memory.by_index.insert(index, held);
        while memory.by_index.len() > watch.store.options.kept() {
            memory.by_index.pop_first();
        }
    });
    release_unheld();
}

/// What the process held at the checkpoint `index`, if it took that checkpoint.
pub fn recall(index: u64) -> Option<Held> {
    with_memory(|memory| memory.by_index.get(&index).cloned())
}

/// The checkpoints after `index` are no more.
pub fn forget_after(index: u64) {
    with_memory(|memory| memory.by_index.retain(|held, _| *held <= index));
}

/// Closes for good the streams that were laid aside for checkpoints that are no more.
fn release_unheld() {
    let closing: Vec<Pointer> = with_memory(|memory| {
        let held: BTreeSet<Pointer> =
            memory.by_index.values().flat_map(|held| &held.streams).map(|stream| stream.stream).collect();
        let unheld = |(stream, known): &(&Pointer, &Known)| known.laid_aside && !held.contains(stream);
        memory.streams.iter().filter(unheld).map(|(stream, _)| *stream).collect()
    });
    for stream in &closing {
        // SAFETY: laid aside and never handed out since; the close hook leaves its former descriptor alone.
        unsafe { real::fclose(stream.0) };
        with_memory(|memory| memory.streams.remove(stream));
    }
}

/// Makes descriptors and streams what they were.
pub fn bring_back(watch: &Watch, held: &Held) {
    close_newer(watch, held);
    let mut done: HashMap<u64, Vec<&OpenFile>> = HashMap::new();
    for file in &held.files {
        let same_inode = done.entry(file.inode).or_default();
        if !is_unchanged(file, same_inode) {
            reopen(file);
        }
        same_inode.push(file);
        settle(watch, file);
    }
    for stream in &held.streams {
        bring_stream_back(stream);
    }
    release_unheld();
}

/// Closes the protected files that were opened since.
fn close_newer(watch: &Watch, held: &Held) {
    let known: HashSet<c_int> =
        held.files.iter().flat_map(|file| &file.numbers).map(|(number, _)| *number).collect();
    for fd in open_descriptors().into_iter().filter(|fd| !known.contains(fd)) {
        if look_at(fd).is_some_and(|file| watch.contains(&file.path)) {
            // SAFETY: a number of this process that came into use after the checkpoint.
            unsafe { crate::hooks::descriptors::close(fd) };
        }
    }
}

/// Whether all numbers still are the one open file that they were, shared with none of `done`, the files of the same
/// inode before it.
fn is_unchanged(file: &OpenFile, done: &[&OpenFile]) -> bool {
    let Some((first, _)) = file.numbers.first() else { return true };
    let same = |now: OpenFile| {
        now.inode == file.inode && now.device == file.device && access(now.flags) == access(file.flags)
    };
    let whole = file.numbers.iter().all(|(fd, _)| look_at(*fd).is_some_and(same) && share(*first, *fd));
    whole && !done.iter().flat_map(|other| &other.numbers).any(|(other, _)| share(*first, *other))
}

fn access(flags: OFlags) -> OFlags {
    flags & OFlags::ACCMODE
}

/// Opens the file again under its numbers.
fn reopen(file: &OpenFile) {
    let Some(opened) = open_again(file) else { return };
    let keeps = file.numbers.iter().any(|(fd, _)| *fd == opened.as_raw_fd());
    for (fd, closes) in &file.numbers {
        if *fd != opened.as_raw_fd() {
            let flags = if *closes { libc::O_CLOEXEC } else { 0 };
            stdchk_filestate::locks::lose(*fd..=*fd);
            // SAFETY: two numbers; what the second one was has been given up by going back.
            unsafe { real::dup3(opened.as_raw_fd(), *fd, flags) };
        }
    }
    if keeps {
        std::mem::forget(opened);
    }
}

fn open_again(file: &OpenFile) -> Option<OwnedFd> {
    let flags = file.flags - (OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC);
    let fits = |opened: &OwnedFd| {
        rustix::fs::fstat(opened).is_ok_and(|stat| stat.st_ino == file.inode && stat.st_dev == file.device)
    };
    let by_path = rustix::fs::open(file.path.as_slice(), flags, Mode::empty()).ok().filter(fits);
    by_path.or_else(|| {
        // Nameless by now: through any number that still is this file.
        let still = open_descriptors().into_iter().find(|fd| {
            look_at(*fd).is_some_and(|now| now.inode == file.inode && now.device == file.device)
        })?;
        rustix::fs::open(format!("/proc/self/fd/{still}"), flags, Mode::empty()).ok().filter(fits)
    })
}

/// Sets offset and flags, and watches the numbers again.
fn settle(watch: &Watch, file: &OpenFile) {
    for (fd, closes) in &file.numbers {
        // SAFETY: borrowed for the calls below.
        let borrowed = unsafe { borrow(*fd) };
        let _ = rustix::fs::seek(borrowed, rustix::fs::SeekFrom::Start(file.offset));
        let _ = rustix::fs::fcntl_setfl(borrowed, file.flags);
        let close_flag = if *closes { rustix::io::FdFlags::CLOEXEC } else { rustix::io::FdFlags::empty() };
        let _ = rustix::io::fcntl_setfd(borrowed, close_flag);
        watch.adopt(borrowed, *fd);
    }
}

fn bring_stream_back(held: &Stream) {
    /// glibc's flags in the first word of a stream; that word has been there since glibc 2.0.
    const ENDED: c_int = 0x10;
    const FAILED: c_int = 0x20;
    let stream = held.stream.0;
    with_memory(|memory| {
        if let Some(known) = memory.streams.get_mut(&held.stream) {
            (known.laid_aside, known.pushed_at) = (false, held.position);
            known.pushed_back.clone_from(&held.pushed_back);
        }
    });
    // SAFETY: the stream is open, or was laid aside and is open again under its number.
    unsafe {
        libc::clearerr(stream);
        // What it had read ahead may have been undone.
        libc::fflush(stream);
        if held.position >= 0 {
            real::fseeko(stream, held.position, libc::SEEK_SET);
        }
        for character in &held.pushed_back {
            real::ungetc(c_int::from(*character), stream);
        }
        let flags = stream.cast::<c_int>();
        *flags |= if held.ended { ENDED } else { 0 } | if held.failed { FAILED } else { 0 };
    }
    debug_assert!(held.number >= 0 || held.position < 0);
}
