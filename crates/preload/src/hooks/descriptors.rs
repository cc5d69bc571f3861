//! Hooks on calls that make, copy or close descriptors.

use std::os::fd::BorrowedFd;

use libc::{c_char, c_int, c_uint, c_void, mode_t};
use rustix::fs::{Mode, OFlags};
use stdchk_filestate::locks;
use stdchk_filestate::watch::Watch;
use stdchk_filestate::watch::names::Open;

use crate::active::{
    Answer, borrow, bytes, decide, note_closed, set_errno, watch, watch_following, watch_over,
};
use crate::real;

/// Looks at the descriptors that the program was started with.
pub fn adopt_inherited() {
    let Some(watch) = watch() else { return };
    for fd in open_descriptors() {
        adopt(watch, fd);
    }
}

/// The numbers of the open descriptors, the watch's own left out.
pub fn open_descriptors() -> Vec<c_int> {
    let own = watch().map(Watch::own_descriptors);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else { return Vec::new() };
    let mut found = Vec::new();
    let mut buffer = Vec::with_capacity(8192);
    let mut reader = rustix::fs::RawDir::new(&directory, buffer.spare_capacity_mut());
    while let Some(Ok(entry)) = reader.next() {
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse::<c_int>().ok());
        found.extend(number.filter(|fd| own.is_none_or(|own| !own.contains(fd))));
    }
    let listing = std::os::fd::AsRawFd::as_raw_fd(&directory);
    found.retain(|fd| *fd != listing);
    found
}

pub(super) fn adopt(watch: &Watch, fd: c_int) {
    // SAFETY: a number that was just opened; borrowed for the look at it.
    decide(|| watch.adopt(unsafe { borrow(fd) }, fd));
}

/// A descriptor that was opened on a file that was there: it is looked at when something is about to be changed.
#[inline]
fn look_later(watch: &Watch, fd: c_int) {
    if fd >= 0 && !watch.look_later(fd) {
        // SAFETY: a number that was just opened; borrowed for a look at it.
        decide(|| watch.look_later_or_now(unsafe { borrow(fd) }, fd));
    }
}

fn is_own(fd: c_int) -> bool {
    watch().is_some_and(|watch| watch.own_descriptors().contains(&fd))
}

fn flags_of(flags: c_int) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned())
}

/// Whether opening with these flags must ask first, and whether what it opens can change.
pub(super) fn may_change(flags: c_int) -> bool {
    flags & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) != libc::O_RDONLY
}

/// Asks, makes the real call, and looks at the descriptor that came of it. `fd_of` gives its number, -1 after a failure.
pub(super) fn opening<T: Answer>(
    watch: &'static Watch,
    directory: BorrowedFd<'_>,
    path: &[u8],
    flags: c_int,
    real: impl FnOnce() -> T,
    fd_of: impl FnOnce(T) -> c_int,
) -> T {
    let may_be_ours = flags & (libc::O_CREAT | libc::O_TRUNC) != 0;
    if !may_be_ours || watch.opens_outside(directory, path, flags_of(flags)) {
        let opened = real();
        look_later(watch, fd_of(opened));
        return opened;
    }
    match decide(|| watch.before_open(directory, path, flags_of(flags))) {
        Open::Fail(cause) => {
            set_errno(cause.raw_os_error());
            T::FAILED
        }
        Open::CallReal(opening) => {
            let opened = real();
            let fd = fd_of(opened);
            if fd >= 0 {
                // SAFETY: the number that the real call has just returned.
                decide(|| watch.opened(unsafe { borrow(fd) }, fd, opening));
            }
            opened
        }
    }
}

/// All forms of `open` and `openat` end here.
///
/// # Safety
/// As for `openat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn stdchk_preload_open(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the arguments as they came.
    let call = || unsafe { real::openat(directory, path, flags, mode) };
    let Some(watch) = watch().filter(|_| may_change(flags)) else { return call() };
    // SAFETY: the program's string and descriptor, borrowed for the decision.
    let (at, name) = unsafe { (borrow(directory), bytes(path)) };
    opening(watch, at, name, flags, call, |fd| fd)
}

macro_rules! opening_forms {
    ($($name:ident($($argument:ident: $type:ty),*) => $directory:expr, $path:ident, $flags:expr, $mode:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, as `open`.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the arguments as they came.
            unsafe { stdchk_preload_open($directory, $path, $flags, $mode) }
        }
    )*};
}

/// What `creat` stands for.
const CREAT: c_int = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;

opening_forms! {
    creat(path: *const c_char, mode: mode_t) => libc::AT_FDCWD, path, CREAT, mode;
    creat64(path: *const c_char, mode: mode_t) => libc::AT_FDCWD, path, CREAT, mode;
    __open_2(path: *const c_char, flags: c_int) => libc::AT_FDCWD, path, flags, 0;
    __open64_2(path: *const c_char, flags: c_int) => libc::AT_FDCWD, path, flags, 0;
    __openat_2(directory: c_int, path: *const c_char, flags: c_int) => directory, path, flags, 0;
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int) => directory, path, flags, 0;
}

/// `fcntl`: copies of descriptors and changed flags are followed.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn stdchk_preload_fcntl(
    fd: c_int,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    if matches!(command, libc::F_SETLK | libc::F_SETLKW) {
        locks::take();
    }
    // SAFETY: the arguments as they came.
    let result = unsafe { real::fcntl(fd, command, argument) };
    let Some(watch) = watch_following(fd).filter(|_| result >= 0) else { return result };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => decide(|| watch.duplicated(fd, result)),
        libc::F_SETFL => {
            let append = argument.addr() & libc::O_APPEND.cast_unsigned() as usize != 0;
            // What shares its flags may have been looked at before it was.
            if watch_over(fd).is_some() {
                decide(|| watch.flags_changed(fd, append));
            }
        }
        _ => {}
    }
    result
}

/// `close`; the watch's own descriptors are none of the program's.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_own(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    let closing = crate::api::closing(fd);
    note_closed(fd);
    locks::lose(fd..=fd);
    // SAFETY: the argument as it came.
    let result = unsafe { real::close(fd) };
    crate::api::closed(closing);
    result
}

/// `close_range`, in the pieces between the watch's own descriptors.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let Some(watch) = watch() else {
        // SAFETY: the arguments as they came.
        return unsafe { real::close_range(first, last, flags) };
    };
    let mut closing = Vec::new();
    if first <= last && flags.cast_unsigned() & libc::CLOSE_RANGE_CLOEXEC == 0 {
        closing = crate::api::closing_range(signed(first), signed(last), false);
        decide(|| watch.closed_range(signed(first), signed(last)));
        locks::lose(signed(first)..=signed(last));
    }
    for (from, to) in pieces(first, last, watch.own_descriptors()).into_iter().flatten() {
        // SAFETY: numbers within those that the program named.
        let result = unsafe { real::close_range(from, to, flags) };
        if result != 0 {
            return result;
        }
    }
    crate::api::closed(closing);
    0
}

/// A descriptor's number as most calls take it; the highest one for `~0U`, which callers of `close_range` mean it by.
fn signed(fd: c_uint) -> c_int {
    c_int::try_from(fd).unwrap_or(c_int::MAX)
}

/// `first..=last` without `own`; a range that is no range is passed on for the kernel to refuse.
fn pieces(first: c_uint, last: c_uint, mut own: [c_int; 3]) -> [Option<(c_uint, c_uint)>; 4] {
    own.sort_unstable();
    let mut pieces = [None; 4];
    let mut from = Some(first);
    let within = own.into_iter().map(c_int::cast_unsigned).filter(|fd| (first..=last).contains(fd));
    for (piece, fd) in pieces.iter_mut().zip(within) {
        *piece = from.filter(|from| *from < fd).map(|from| (from, fd - 1));
        from = fd.checked_add(1);
    }
    let [.., end] = &mut pieces;
    *end = from.filter(|from| *from <= last || first > last).map(|from| (from, last));
    pieces
}

/// `closefrom`, through `close_range`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: a range of descriptors to close.
    unsafe { close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0) };
}

/// `dup`, followed.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the argument as it came.
    let copy = unsafe { real::dup(fd) };
    if let Some(watch) = watch_following(fd).filter(|_| copy >= 0) {
        decide(|| watch.duplicated(fd, copy));
    }
    copy
}

/// `dup2`, followed.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the arguments as they came.
    onto(old, new, || unsafe { real::dup2(old, new) })
}

/// `dup3`, followed.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the arguments as they came.
    onto(old, new, || unsafe { real::dup3(old, new, flags) })
}

fn onto(old: c_int, new: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if is_own(new) {
        set_errno(libc::EBADF);
        return -1;
    }
    let mut closing = None;
    if old != new {
        closing = crate::api::closing(new);
        locks::lose(new..=new);
    }
    let copy = real();
    if let Some(watch) = watch().filter(|_| copy >= 0 && old != new) {
        decide(|| watch.duplicated(old, copy));
    }
    if copy >= 0 {
        crate::api::closed(closing);
    }
    copy
}
