//! Hooks on calls that change the contents of open files.

use libc::{c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t, timespec};
use stdchk_filestate::watch::data::Change;

use crate::active::{answer, borrow, bytes, change, decide, total, unsigned, watch, watch_over};
use crate::real;

/// Defines hooks of the one shape that most of them have: `fd` first, then what changes, then the real call.
macro_rules! changing {
    ($($name:ident($fd:ident $(, $argument:ident: $type:ty)*) -> $result:ty => $real:ident, $change:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, asking first.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($fd: c_int $(, $argument: $type)*) -> $result {
            // SAFETY: the arguments as they came.
            change($fd, $change, || unsafe { real::$real($fd $(, $argument)*) })
        }
    )*};
}

changing! {
    write(fd, buffer: *const c_void, count: size_t) -> ssize_t
        => write, Change::Here { length: count as u64 };
    pwrite(fd, buffer: *const c_void, count: size_t, offset: off_t) -> ssize_t
        => pwrite, Change::At { offset: unsigned(offset), length: count as u64 };
    pwrite64(fd, buffer: *const c_void, count: size_t, offset: off_t) -> ssize_t
        => pwrite, Change::At { offset: unsigned(offset), length: count as u64 };
    writev(fd, parts: *const iovec, count: c_int) -> ssize_t
        => writev, Change::Here { length: length_of(parts, count) };
    pwritev(fd, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t
        => pwritev, Change::At { offset: unsigned(offset), length: length_of(parts, count) };
    pwritev64(fd, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t
        => pwritev, Change::At { offset: unsigned(offset), length: length_of(parts, count) };
    pwritev2(fd, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        => pwritev2, positional_or_here(offset, length_of(parts, count));
    pwritev64v2(fd, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        => pwritev2, positional_or_here(offset, length_of(parts, count));
    ftruncate(fd, size: off_t) -> c_int
        => ftruncate, Change::Resize { size: unsigned(size) };
    ftruncate64(fd, size: off_t) -> c_int
        => ftruncate, Change::Resize { size: unsigned(size) };
    fallocate(fd, mode: c_int, offset: off_t, length: off_t) -> c_int
        => fallocate, allocation(mode, offset, length);
    fallocate64(fd, mode: c_int, offset: off_t, length: off_t) -> c_int
        => fallocate, allocation(mode, offset, length);
    posix_fallocate(fd, offset: off_t, length: off_t) -> c_int
        => posix_fallocate, allocation(0, offset, length);
    posix_fallocate64(fd, offset: off_t, length: off_t) -> c_int
        => posix_fallocate, allocation(0, offset, length);
}

/// `futimens`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    // SAFETY: the arguments as they came.
    touching(fd, || unsafe { real::futimens(fd, times) })
}

/// A call that sets the times of the file behind a descriptor. That need not be one to write with, and only those are known.
pub(super) fn touching(fd: c_int, real: impl FnOnce() -> c_int) -> c_int {
    match (watch_over(fd), watch()) {
        (None, Some(watch)) => {
            // SAFETY: borrowed for the decision; a number that the program closes meanwhile only fails the look at it.
            let fd = unsafe { borrow(fd) };
            answer(decide(|| watch.before_path(fd, Change::Touch)), real)
        }
        _ => change(fd, Change::Touch, real),
    }
}

/// The bytes that the vector of a `writev` call holds.
fn length_of(parts: *const iovec, count: c_int) -> u64 {
    // SAFETY: called with the arguments of `writev` and its kin, whose callers pass `count` buffers.
    unsafe { total(parts, count) }
}

/// `pwritev2` with offset -1 writes at the file offset.
fn positional_or_here(offset: off_t, length: u64) -> Change {
    if offset == -1 { Change::Here { length } } else { Change::At { offset: unsigned(offset), length } }
}

/// What `fallocate` in this mode destroys.
fn allocation(mode: c_int, offset: off_t, length: off_t) -> Change {
    let moving = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
    let clearing = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
    if mode & moving != 0 {
        Change::From { offset: unsigned(offset) }
    } else if mode & clearing != 0 {
        Change::At { offset: unsigned(offset), length: unsigned(length) }
    } else {
        Change::Allocate { offset: unsigned(offset), length: unsigned(length) }
    }
}

/// The change of a call that writes `count` bytes to an explicit offset or, without one, at the file offset.
///
/// # Safety
/// The pointer is null or readable.
unsafe fn at_or_here(offset: *const off_t, count: size_t) -> Change {
    let length = count as u64;
    if offset.is_null() {
        return Change::Here { length };
    }
    // SAFETY: the caller's promise.
    Change::At { offset: unsigned(unsafe { *offset }), length }
}

/// `sendfile`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the arguments as they came.
    change(out, Change::Here { length: count as u64 }, || unsafe { real::sendfile(out, from, offset, count) })
}

/// `sendfile64`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the same function on 64-bit systems.
    unsafe { sendfile(out, from, offset, count) }
}

/// `copy_file_range`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the arguments as they came.
    unsafe {
        let what = at_or_here(to_offset, count);
        change(to, what, || real::copy_file_range(from, from_offset, to, to_offset, count, flags))
    }
}

/// Waits until a pipe has something to give: a checkpoint waits for calls in flight, and must not wait for that.
fn wait_for_input(from: c_int, flags: c_uint) {
    if flags & libc::SPLICE_F_NONBLOCK == 0 {
        let mut pipe = libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, ours. Whatever comes of it, the real call goes on from there.
        unsafe { libc::poll(&raw mut pipe, 1, -1) };
    }
}

/// `splice`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    if watch_over(to).is_some() {
        wait_for_input(from, flags);
    }
    // SAFETY: the arguments as they came.
    unsafe {
        let what = at_or_here(to_offset, count);
        change(to, what, || real::splice(from, from_offset, to, to_offset, count, flags))
    }
}

/// `mmap`: a shared writable mapping of a protected file is saved first, and again in every later interval.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the arguments as they came.
    let call = || unsafe { real::mmap(address, length, protection, flags, fd, offset) };
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    // A mapping may be made writable later (`mprotect`) if its descriptor is: so only that counts.
    let Some(watch) = watch_over(fd).filter(|_| shared && flags & libc::MAP_ANONYMOUS == 0) else {
        return call();
    };
    let from = unsigned(offset);
    let range = from..from.saturating_add(length as u64);
    // SAFETY: borrowed for the decision only.
    let next = decide(|| watch.before_mapping(unsafe { borrow(fd) }, range));
    let mapped = answer(next, call);
    if mapped.is_null() { libc::MAP_FAILED } else { mapped }
}

/// `mmap64`, as `mmap`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap64(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the same function on 64-bit systems.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// `truncate`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn truncate(path: *const libc::c_char, size: off_t) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe {
        changing_path(libc::AT_FDCWD, path, Change::Resize { size: unsigned(size) }, || {
            real::truncate(path, size)
        })
    }
}

/// `truncate64`, as `truncate`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn truncate64(path: *const libc::c_char, size: off_t) -> c_int {
    // SAFETY: the same function on 64-bit systems.
    unsafe { truncate(path, size) }
}

/// A call that changes a file by its name.
///
/// # Safety
/// `path` is null or a terminated string.
pub(super) unsafe fn changing_path(
    directory: c_int,
    path: *const libc::c_char,
    what: Change,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let Some(watch) = watch() else { return real() };
    // SAFETY: the caller's promise; the descriptor is borrowed for the decision.
    let (directory, path) = unsafe { (borrow(directory), bytes(path)) };
    answer(decide(|| watch.before_path_change(directory, path, what)), real)
}
