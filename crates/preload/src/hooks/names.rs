//! Hooks on calls that create, delete, rename or link names, and on those of stdio that open by name.

use std::ffi::CStr;

use libc::{
    AT_FDCWD, FILE, c_char, c_int, c_uint, c_void, dev_t, mode_t, size_t, timespec, timeval, utimbuf,
};
use rustix::fs::RenameFlags;
use stdchk_filestate::watch::data::Change;
use stdchk_filestate::watch::{Next, Watch};

use super::data::{changing_path, touching};
use super::descriptors::{adopt, may_change, opening};
use crate::active::{answer, borrow, bytes, decide, watch};
use crate::real;

/// A call on one name: asks `question`, then answers.
///
/// # Safety
/// `path` is null or a terminated string.
unsafe fn on_name(
    directory: c_int,
    path: *const c_char,
    question: impl FnOnce(&'static Watch, std::os::fd::BorrowedFd<'_>, &[u8]) -> Next<'static>,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let Some(watch) = watch() else { return real() };
    // SAFETY: the caller's promise; the descriptor is borrowed for the decision.
    let (directory, path) = unsafe { (borrow(directory), bytes(path)) };
    answer(decide(|| question(watch, directory, path)), real)
}

/// Defines hooks on one name.
macro_rules! on_names {
    ($($name:ident ($($argument:ident: $type:ty),*) => $directory:expr, $path:ident, $question:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, asking first.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the arguments as they came.
            unsafe { on_name($directory, $path, $question, || real::$name($($argument),*)) }
        }
    )*};
}

on_names! {
    unlink(path: *const c_char) => AT_FDCWD, path, Watch::before_unlink;
    rmdir(path: *const c_char) => AT_FDCWD, path, Watch::before_rmdir;
    unlinkat(directory: c_int, path: *const c_char, flags: c_int) => directory, path, |watch, at, path| {
        if flags & libc::AT_REMOVEDIR != 0 { watch.before_rmdir(at, path) } else { watch.before_unlink(at, path) }
    };
    linkat(old_directory: c_int, old: *const c_char, directory: c_int, path: *const c_char, flags: c_int)
        => directory, path, Watch::before_create;
    link(old: *const c_char, path: *const c_char) => AT_FDCWD, path, Watch::before_create;
    symlinkat(target: *const c_char, directory: c_int, path: *const c_char) => directory, path, Watch::before_create;
    mknodat(directory: c_int, path: *const c_char, mode: mode_t, device: dev_t) => directory, path, Watch::before_create;
    chmod(path: *const c_char, mode: mode_t)
        => AT_FDCWD, path, |watch, at, path| watch.before_mode(at, Some(path));
    fchmodat(directory: c_int, path: *const c_char, mode: mode_t, flags: c_int)
        => directory, path, |watch, at, path| watch.before_mode(at, Some(path));
    lchmod(path: *const c_char, mode: mode_t)
        => AT_FDCWD, path, |watch, at, path| watch.before_mode(at, Some(path));
}

/// `symlink`, as `symlinkat`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn symlink(target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { symlinkat(target, AT_FDCWD, path) }
}

/// `mknod`, as `mknodat`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { mknodat(AT_FDCWD, path, mode, device) }
}

/// `mkfifo`, as `mknodat`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { mknodat(AT_FDCWD, path, mode | libc::S_IFIFO, 0) }
}

/// `mkfifoat`, as `mknodat`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mkfifoat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { mknodat(directory, path, mode | libc::S_IFIFO, 0) }
}

/// `remove`: `unlink` or `rmdir`, as the C library does it.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn remove(path: *const c_char) -> c_int {
    if watch().is_none() {
        // SAFETY: the argument as it came.
        return unsafe { real::remove(path) };
    }
    // SAFETY: the argument as it came.
    let result = unsafe { unlink(path) };
    // SAFETY: this thread's errno.
    if result != 0 && unsafe { *libc::__errno_location() } == libc::EISDIR {
        // SAFETY: the argument as it came.
        return unsafe { rmdir(path) };
    }
    result
}

/// `mkdirat`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mkdirat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { on_name(directory, path, Watch::before_create, || real::mkdirat(directory, path, mode)) }
}

/// `mkdir`, as `mkdirat`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { mkdirat(AT_FDCWD, path, mode) }
}

/// `fchmod`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fchmod(fd: c_int, mode: mode_t) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe {
        on_name(fd, std::ptr::null(), |watch, at, _| watch.before_mode(at, None), || real::fchmod(fd, mode))
    }
}

/// The extended attribute whose value the kernel turns into permission bits: `cp -p` and `install -p` set modes this way.
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// Whether setting the attribute `name` changes permission bits.
///
/// # Safety
/// `name` is null or a terminated string.
unsafe fn sets_mode(name: *const c_char) -> bool {
    // SAFETY: the caller's promise, and not null.
    !name.is_null() && unsafe { CStr::from_ptr(name) } == ACCESS_LIST
}

/// Defines the hooks on calls that set an attribute of the file at a path.
macro_rules! set_attribute_of_path {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, asking first where it sets permissions.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            name: *const c_char,
            value: *const c_void,
            size: size_t,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the arguments as they came.
            unsafe {
                let call = || real::$name(path, name, value, size, flags);
                if !sets_mode(name) {
                    return call();
                }
                on_name(AT_FDCWD, path, |watch, at, path| watch.before_mode(at, Some(path)), call)
            }
        }
    )*};
}

set_attribute_of_path! { setxattr lsetxattr }

/// `fsetxattr`, asking first where it sets permissions.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fsetxattr(
    fd: c_int,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe {
        let call = || real::fsetxattr(fd, name, value, size, flags);
        if !sets_mode(name) {
            return call();
        }
        on_name(fd, std::ptr::null(), |watch, at, _| watch.before_mode(at, None), call)
    }
}

/// `renameat2`, asking first; a checkpoint is taken when the new name is one that triggers it.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn renameat2(
    old_directory: c_int,
    old: *const c_char,
    new_directory: c_int,
    new: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the arguments as they came.
    let call = || unsafe { real::renameat2(old_directory, old, new_directory, new, flags) };
    let Some(watch) = watch() else { return call() };
    // SAFETY: the program's strings and descriptors, borrowed for the decision.
    let (from, to) = unsafe { ((borrow(old_directory), bytes(old)), (borrow(new_directory), bytes(new))) };
    let flags = RenameFlags::from_bits_retain(flags);
    crate::api::renaming(watch, to);
    let result = answer(decide(|| watch.before_rename(from, to, flags)), call);
    if result == 0 {
        crate::api::renamed(watch, to);
    } else {
        watch.control.void_knowledge();
    }
    result
}

/// `renameat`, as `renameat2`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn renameat(
    old_at: c_int,
    old: *const c_char,
    new_at: c_int,
    new: *const c_char,
) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe {
        if watch().is_some() {
            renameat2(old_at, old, new_at, new, 0)
        } else {
            real::renameat(old_at, old, new_at, new)
        }
    }
}

/// `rename`, as `renameat2`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rename(old: *const c_char, new: *const c_char) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { renameat(AT_FDCWD, old, AT_FDCWD, new) }
}

/// `utimensat`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn utimensat(
    directory: c_int,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments as they came.
    let call = || unsafe { real::utimensat(directory, path, times, flags) };
    // SAFETY: the program's string, or none.
    if flags & libc::AT_EMPTY_PATH != 0 && directory != AT_FDCWD && unsafe { bytes(path) }.is_empty() {
        return touching(directory, call);
    }
    // SAFETY: the program's string.
    unsafe { changing_path(directory, path, Change::Touch, call) }
}

/// `utimes`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn utimes(path: *const c_char, times: *const timeval) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { changing_path(AT_FDCWD, path, Change::Touch, || real::utimes(path, times)) }
}

/// `utime`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { changing_path(AT_FDCWD, path, Change::Touch, || real::utime(path, times)) }
}

/// The flags with which `fopen` opens in this mode.
fn flags_of_mode(mode: &[u8]) -> c_int {
    let access = if mode.contains(&b'+') { libc::O_RDWR } else { libc::O_WRONLY };
    let exclusive = if mode.contains(&b'x') { libc::O_EXCL } else { 0 };
    match mode.first() {
        Some(b'w') => access | libc::O_CREAT | libc::O_TRUNC | exclusive,
        Some(b'a') => access | libc::O_CREAT | libc::O_APPEND | exclusive,
        Some(b'r') if mode.contains(&b'+') => libc::O_RDWR,
        _ => libc::O_RDONLY,
    }
}

/// The descriptor of a stream, -1 for none.
fn descriptor_of(stream: *mut FILE) -> c_int {
    // SAFETY: a stream that the C library has just returned.
    if stream.is_null() { -1 } else { unsafe { libc::fileno(stream) } }
}

/// `fopen`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the arguments as they came.
    let (call, flags) = (|| unsafe { real::fopen(path, mode) }, flags_of_mode(unsafe { bytes(mode) }));
    let stream = match watch().filter(|_| may_change(flags)) {
        None => call(),
        // SAFETY: the program's string; the working directory.
        Some(watch) => unsafe { opening(watch, borrow(AT_FDCWD), bytes(path), flags, call, descriptor_of) },
    };
    crate::descriptors::stream_opened(stream);
    stream
}

/// `fopen64`, as `fopen`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the same function on 64-bit systems.
    unsafe { fopen(path, mode) }
}

/// `freopen`, asking first.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the arguments as they came.
    let (call, flags) =
        (|| unsafe { real::freopen(path, mode, stream) }, flags_of_mode(unsafe { bytes(mode) }));
    let Some(watch) = watch() else { return call() };
    // What the stream was open on goes away inside the C library, unseen; what it is open on afterwards is looked at.
    let before = descriptor_of(stream);
    let closing = crate::api::closing(before);
    let reopened = if path.is_null() || !may_change(flags) {
        call()
    } else {
        // SAFETY: the program's string; the working directory.
        unsafe { opening(watch, borrow(AT_FDCWD), bytes(path), flags, call, descriptor_of) }
    };
    let after = descriptor_of(reopened);
    for fd in [before, after].into_iter().filter(|fd| *fd >= 0) {
        adopt(watch, fd);
    }
    crate::api::closed(closing);
    reopened
}

/// `freopen64`, as `freopen`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the same function on 64-bit systems.
    unsafe { freopen(path, mode, stream) }
}

/// `fdopen`: the stream is remembered for checkpoints.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the arguments as they came.
    let stream = unsafe { real::fdopen(fd, mode) };
    crate::descriptors::stream_opened(stream);
    stream
}

/// The temporary names: the C library makes them up inside, so they are made here, through the hooks above.
mod temporary {
    use super::*;
    use stdchk_model::exact::part;

    use crate::active::set_errno;

    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    /// As many as the C library tries.
    const ATTEMPTS: u32 = 62 * 62 * 62;

    /// Fills the six X before the suffix and tries, until the name is new.
    ///
    /// # Safety
    /// `template` is a terminated, writable string.
    unsafe fn fill(template: *mut c_char, suffix: c_int, attempt: impl Fn() -> c_int) -> c_int {
        // SAFETY: the caller's promise.
        let length = unsafe { bytes(template) }.len();
        let end = usize::try_from(suffix).ok().and_then(|suffix| length.checked_sub(suffix));
        let Some(start) = end.and_then(|end| end.checked_sub(6)) else {
            set_errno(libc::EINVAL);
            return -1;
        };
        // SAFETY: `start + 6` lies within the string.
        let blank = unsafe { std::slice::from_raw_parts_mut(template.add(start).cast::<u8>(), 6) };
        if blank != b"XXXXXX" {
            set_errno(libc::EINVAL);
            return -1;
        }
        for _ in 0..ATTEMPTS {
            randomize(blank);
            let result = attempt();
            // SAFETY: this thread's errno.
            if result >= 0 || unsafe { *libc::__errno_location() } != libc::EEXIST {
                return result;
            }
        }
        -1
    }

    fn randomize(blank: &mut [u8]) {
        let mut random = [0u8; 6];
        // SAFETY: six bytes to fill; short or failed reads only make the name less random.
        unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
        for (place, byte) in blank.iter_mut().zip(random) {
            *place = *part(LETTERS, usize::from(byte) % LETTERS.len());
        }
    }

    macro_rules! files {
        ($($name:ident($($argument:ident: c_int),*) => $suffix:expr, $flags:expr;)*) => {$(
            #[doc = concat!("`", stringify!($name), "`, through `open`.")]
            ///
            /// # Safety
            /// As for the C function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(template: *mut c_char $(, $argument: c_int)*) -> c_int {
                let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | ($flags & !libc::O_ACCMODE);
                // SAFETY: the arguments as they came.
                unsafe {
                    fill(template, $suffix, || {
                        super::super::descriptors::stdchk_preload_open(AT_FDCWD, template, flags, 0o600)
                    })
                }
            }
        )*};
    }

    files! {
        mkstemp() => 0, 0;
        mkstemp64() => 0, 0;
        mkostemp(flags: c_int) => 0, flags;
        mkostemp64(flags: c_int) => 0, flags;
        mkstemps(suffix: c_int) => suffix, 0;
        mkstemps64(suffix: c_int) => suffix, 0;
        mkostemps(suffix: c_int, flags: c_int) => suffix, flags;
        mkostemps64(suffix: c_int, flags: c_int) => suffix, flags;
    }

    /// `mkdtemp`, through `mkdir`.
    ///
    /// # Safety
    /// As for the C function.
    #[unsafe(no_mangle)]
    pub unsafe extern "C-unwind" fn mkdtemp(template: *mut c_char) -> *mut c_char {
        // SAFETY: the argument as it came.
        let made = unsafe { fill(template, 0, || mkdir(template, 0o700)) };
        if made == 0 { template } else { std::ptr::null_mut() }
    }
}
