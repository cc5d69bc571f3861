//! Start-up, and asking the watch around a real call.
//!
//! While a decision is made, signals are held back: a handler that writes to a protected file then finds no lock taken
//! by its own thread. While the real call runs they are not, so a handler interrupts it as always; its own calls are
//! *nested* and do not wait for a checkpoint that in turn waits for the interrupted call.

use std::ffi::{CStr, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use libc::{c_char, c_int, c_void, off_t, ssize_t};
use stdchk_filestate::control::Control;
use stdchk_filestate::store::Store;
use stdchk_filestate::watch::data::Change;
use stdchk_filestate::watch::{Next, Watch};

/// The variable that names the protected tree; absent, the library does nothing.
pub const ROOT_VARIABLE: &CStr = c"STDCHK_FILESTATE";
/// The variable that says what to report in as.
pub const START_VARIABLE: &CStr = c"STDCHK_FILESTATE_START";
/// Our own descriptors stand from here on: above what programs count on, below the usual limit of 1024.
const OWN_DESCRIPTORS_FROM: c_int = 960;

static WATCH: OnceLock<Watch> = OnceLock::new();

/// Runs when the program is loaded, before its `main`.
extern "C" fn start() {
    // SAFETY: a terminated name; nothing changes the environment this early.
    let root = unsafe { libc::getenv(ROOT_VARIABLE.as_ptr()) };
    if root.is_null() {
        return;
    }
    // SAFETY: the environment's strings are terminated.
    let root = OsStr::from_bytes(unsafe { CStr::from_ptr(root) }.to_bytes());
    dlmalloc_after_fork();
    // SAFETY: as above.
    let start = unsafe { bytes(libc::getenv(START_VARIABLE.as_ptr())) };
    let opened = open_watch(Path::new(root), start);
    match opened {
        Ok(watch) => drop(WATCH.set(watch)),
        Err(error) => refuse(&error.to_string()),
    }
    crate::hooks::process::follow_forks();
    crate::hooks::descriptors::adopt_inherited();
    if !crate::streams::redirect() {
        refuse("the streams of this C library cannot be watched; glibc from 2.28 on is needed");
    }
    crate::objects::look();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

fn dlmalloc_after_fork() {
    // SAFETY: called once, before any other thread exists.
    unsafe { dlmalloc::enable_alloc_after_fork() };
}

fn open_watch(root: &Path, start: &[u8]) -> stdchk_filestate::Result<Watch> {
    let mut store = Store::open(root)?;
    // From here on the program is watched, or ends.
    store.report_in(start);
    store.raise_descriptors(own_descriptors_from())?;
    let control = Control::open(&store)?;
    Watch::new(store, control)
}

/// Where our own descriptors begin under this process's limit.
fn own_descriptors_from() -> c_int {
    const ROOM: c_int = 16;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    match limit.map(c_int::try_from) {
        Some(Ok(limit)) => OWN_DESCRIPTORS_FROM.min(limit.saturating_sub(ROOM)).max(0),
        // No limit, or one beyond the numbers that descriptors can have.
        None | Some(Err(_)) => OWN_DESCRIPTORS_FROM,
    }
}

/// Says why the program cannot run protected, and ends it: it never runs silently unprotected.
pub fn refuse(why: &str) -> ! {
    let text = format!("stdchk: the program was not started under file-state checkpoints: {why}\n");
    // SAFETY: descriptor 2 is only borrowed for the write; if it is closed the write fails, which is all right.
    let _ = rustix::io::write(unsafe { BorrowedFd::borrow_raw(2) }, text.as_bytes());
    // SAFETY: ends the process without running any of its code.
    unsafe { libc::_exit(127) }
}

/// The watch, in a program that runs under one.
#[inline]
pub fn watch() -> Option<&'static Watch> {
    WATCH.get()
}

/// The watch, if changes through `fd` must ask it.
#[inline]
pub fn watch_over(fd: c_int) -> Option<&'static Watch> {
    let watch = WATCH.get().filter(|watch| watch.is_watched(fd))?;
    (!watch.is_unlooked(fd) || is_ours_at_a_look(watch, fd)).then_some(watch)
}

/// Looks at a descriptor before its first change. Most are open on files elsewhere: that costs one system call.
#[cold]
fn is_ours_at_a_look(watch: &'static Watch, fd: c_int) -> bool {
    // SAFETY: borrowed for the look; a number that the program closes meanwhile only fails it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    if watch.is_surely_outside(borrowed) {
        watch.leave_alone(fd);
        return false;
    }
    decide(|| watch.adopt(borrowed, fd));
    watch.is_watched(fd)
}

/// `fd` is being closed by the program.
#[inline]
pub fn note_closed(fd: c_int) {
    match WATCH.get().filter(|watch| watch.is_watched(fd)) {
        Some(watch) if watch.is_unlooked(fd) => watch.leave_alone(fd),
        Some(watch) => decide(|| watch.closed(fd)),
        None => {}
    }
}

/// The watch, if copies of `fd` must be followed.
#[inline]
pub fn watch_following(fd: c_int) -> Option<&'static Watch> {
    WATCH.get().filter(|watch| watch.is_watched(fd) || watch.follows_sets())
}

/// The values that C functions fail and succeed with.
pub trait Answer: Copy {
    /// Failed; `errno` says why.
    const FAILED: Self;
    /// Done, without a count.
    const DONE: Self;
}

impl Answer for c_int {
    const FAILED: Self = -1;
    const DONE: Self = 0;
}

impl Answer for ssize_t {
    const FAILED: Self = -1;
    const DONE: Self = 0;
}

impl<T> Answer for *mut T {
    const FAILED: Self = std::ptr::null_mut();
    const DONE: Self = std::ptr::null_mut();
}

/// Sets `errno`.
pub fn set_errno(value: c_int) {
    // SAFETY: the C library's own location for this thread.
    unsafe { *libc::__errno_location() = value };
}

/// Holds all signals back; the ones that were held back before.
pub fn hold_signals_back() -> libc::sigset_t {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours; `sigfillset` initialises the first before it is read, the second call the other.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Ends [`hold_signals_back`].
pub fn let_signals_in(before: &libc::sigset_t) {
    // SAFETY: a set that `hold_signals_back` has filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

/// Makes a decision: signals are held back meanwhile, and `errno` stays.
pub fn decide<T>(decision: impl FnOnce() -> T) -> T {
    let before = hold_signals_back();
    let decided = decision();
    let_signals_in(&before);
    decided
}

/// Carries out what was decided: the real call under its guard, success, or an error.
pub fn answer<T: Answer>(next: Next<'_>, real: impl FnOnce() -> T) -> T {
    match next {
        Next::CallReal(inside) => {
            let result = real();
            drop(inside);
            result
        }
        Next::Done => T::DONE,
        Next::Fail(cause) => {
            set_errno(cause.raw_os_error());
            T::FAILED
        }
    }
}

/// A call that changes the file behind `fd`: asks first where that is needed.
#[inline]
pub fn change<T: Answer>(fd: c_int, change: Change, real: impl FnOnce() -> T) -> T {
    match watch_over(fd) {
        None => real(),
        Some(watch) => change_watched(watch, fd, change, real),
    }
}

fn change_watched<T: Answer>(
    watch: &'static Watch,
    fd: c_int,
    change: Change,
    real: impl FnOnce() -> T,
) -> T {
    // SAFETY: borrowed for the decision; a number that the program closes meanwhile only fails the look at it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let inside = watch.control.enter();
    if inside.is_ok() && watch.is_free(borrowed, change) {
        return answer(Next::CallReal(inside.ok()), real);
    }
    drop(inside);
    let next = decide(|| watch.before(borrowed, change));
    answer(next, real)
}

/// A descriptor number as the decisions take it; `AT_FDCWD` passes.
///
/// # Safety
/// The number must stay what it is for the length of the borrow.
pub unsafe fn borrow<'fd>(fd: c_int) -> BorrowedFd<'fd> {
    // SAFETY: the caller's promise; -1 alone is not allowed, and stands for no descriptor here.
    unsafe { BorrowedFd::borrow_raw(if fd == -1 { libc::c_int::MAX } else { fd }) }
}

/// The bytes of a C string; nothing for a null pointer, which the real call will refuse.
///
/// # Safety
/// The pointer is null or a terminated string that stays for the length of the borrow.
pub unsafe fn bytes<'text>(text: *const c_char) -> &'text [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// A length or offset as the decisions take it: negative ones are refused by the real call, whatever is decided.
pub fn unsigned(value: off_t) -> u64 {
    value.max(0).cast_unsigned()
}

/// The bytes that a vector of buffers holds.
///
/// # Safety
/// As for `writev`.
pub unsafe fn total(parts: *const libc::iovec, count: c_int) -> u64 {
    let Ok(count) = usize::try_from(count) else { return 0 };
    if parts.is_null() {
        return 0;
    }
    // SAFETY: the caller passes `count` buffers.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    parts.iter().map(|part| part.iov_len as u64).sum()
}

/// An untyped pointer, for hooks that pass one on.
pub type Untyped = *mut c_void;
