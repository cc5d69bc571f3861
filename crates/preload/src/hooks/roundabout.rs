//! Hooks on calls that reach files in a roundabout way: asynchronous writes, descriptors that come over a socket or are
//! replaced inside the C library, sockets with a name, files without a name, and `syscall`.

use libc::{
    AT_FDCWD, FILE, aiocb, c_char, c_int, c_long, c_uint, c_void, mmsghdr, msghdr, sigevent, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};
use rustix::fs::ResolveFlags;
use stdchk_filestate::watch::data::Change;
use stdchk_model::exact::narrow;

use super::data::{changing_path, touching};
use super::descriptors::{adopt, may_change, opening, stdchk_preload_open};
use crate::active::{answer, borrow, bytes, change, decide, set_errno, unsigned, watch, watch_over};
use crate::real;

/// What an asynchronous write changes.
///
/// # Safety
/// `request` is a request of the program's.
unsafe fn written_by(request: *const aiocb) -> Change {
    // SAFETY: the caller's promise.
    let (offset, length) = unsafe { ((*request).aio_offset, (*request).aio_nbytes) };
    Change::At { offset: unsigned(offset), length: length as u64 }
}

/// Waits until a request is over: a checkpoint must not come between what was stated and the write.
///
/// # Safety
/// `request` is a request that was accepted.
unsafe fn finish(request: *const aiocb) {
    // SAFETY: the caller's promise. A signal may end the wait; then it is looked at again.
    unsafe {
        while libc::aio_error(request) == libc::EINPROGRESS {
            libc::aio_suspend(&raw const request, 1, std::ptr::null());
        }
    }
}

macro_rules! writing_later {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: done at once where the file is protected.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(request: *mut aiocb) -> c_int {
            // SAFETY: the program's request.
            let fd = unsafe { (*request).aio_fildes };
            if watch_over(fd).is_none() {
                // SAFETY: the argument as it came.
                return unsafe { real::$name(request) };
            }
            // SAFETY: the program's request; it is waited for once it was accepted.
            change(fd, unsafe { written_by(request) }, || unsafe {
                let result = real::$name(request);
                if result == 0 {
                    finish(request);
                }
                result
            })
        }
    )*};
}

writing_later! { aio_write aio_write64 }

/// The writes of a list that go to protected files.
///
/// # Safety
/// As for `lio_listio`.
unsafe fn watched_writes(list: *const *mut aiocb, count: c_int) -> Vec<*mut aiocb> {
    // A count that is none is refused by the real call.
    let Ok(count) = usize::try_from(count) else { return Vec::new() };
    if watch().is_none() || list.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller passes `count` requests, some of which may be null.
    let all = unsafe { std::slice::from_raw_parts(list, count) }.iter().copied();
    let is_watched = |request: &*mut aiocb| {
        // SAFETY: not null, so a request.
        unsafe {
            (**request).aio_lio_opcode == libc::LIO_WRITE && watch_over((**request).aio_fildes).is_some()
        }
    };
    all.filter(|request| !request.is_null()).filter(is_watched).collect()
}

macro_rules! writing_lists {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: its writes to protected files are done at once, one after the other.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            mode: c_int,
            list: *const *mut aiocb,
            count: c_int,
            event: *mut sigevent,
        ) -> c_int {
            // SAFETY: the arguments as they came.
            unsafe {
                let writes = decide(|| watched_writes(list, count));
                within(&writes, &mut || {
                    let result = real::$name(mode, list, count, event);
                    writes.iter().for_each(|request| finish(*request));
                    result
                })
            }
        }
    )*};
}

writing_lists! { lio_listio lio_listio64 }

/// Makes the real call inside the guards of all these writes.
///
/// # Safety
/// They are requests of the program's.
unsafe fn within(writes: &[*mut aiocb], real: &mut dyn FnMut() -> c_int) -> c_int {
    match writes.split_first() {
        None => real(),
        // SAFETY: the caller's promise.
        Some((first, rest)) => unsafe {
            change((**first).aio_fildes, written_by(*first), || within(rest, real))
        },
    }
}

/// Looks at the descriptors that came with a message.
///
/// # Safety
/// The kernel has filled in the message.
unsafe fn adopt_received(message: *const msghdr) {
    let Some(watch) = watch() else { return };
    // SAFETY: the caller's promise; the kernel's records are within the message's buffer.
    unsafe {
        let mut record = libc::CMSG_FIRSTHDR(message);
        while !record.is_null() {
            if (*record).cmsg_level == libc::SOL_SOCKET && (*record).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(record).cast::<c_int>();
                let bytes = (*record).cmsg_len.saturating_sub(data.addr() - record.addr());
                for place in 0..bytes / size_of::<c_int>() {
                    adopt(watch, data.add(place).read_unaligned());
                }
            }
            record = libc::CMSG_NXTHDR(message, record);
        }
    }
}

/// `recvmsg`: descriptors that come with the message are looked at.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the arguments as they came.
    unsafe {
        let received = real::recvmsg(socket, message, flags);
        if received >= 0 {
            adopt_received(message);
        }
        received
    }
}

/// `recvmmsg`, as `recvmsg`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the arguments as they came; the kernel has filled in as many messages as it says.
    unsafe {
        let received = real::recvmmsg(socket, messages, count, flags, timeout);
        // A negative number says that the call failed, and nothing was received.
        for place in 0..received.max(0).cast_unsigned() as usize {
            adopt_received(&raw const (*messages.add(place)).msg_hdr);
        }
        received
    }
}

/// The name that a socket will have among the files.
///
/// # Safety
/// `address` is null or `length` bytes long.
unsafe fn name_of_socket<'address>(address: *const sockaddr, length: socklen_t) -> Option<&'address [u8]> {
    let behind = (length as usize).checked_sub(std::mem::offset_of!(libc::sockaddr_un, sun_path))?;
    // SAFETY: the caller's promise; the family comes first.
    if address.is_null() || i32::from(unsafe { (*address).sa_family }) != libc::AF_UNIX {
        return None;
    }
    // SAFETY: within the address.
    let path = unsafe {
        let from = (&raw const (*address.cast::<libc::sockaddr_un>()).sun_path).cast::<u8>();
        std::slice::from_raw_parts(from, behind)
    };
    path.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())
}

/// `bind`: a socket with a name is a name made.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe {
        let call = || real::bind(socket, address, length);
        match (watch(), name_of_socket(address, length)) {
            (Some(watch), Some(name)) => answer(decide(|| watch.before_create(borrow(AT_FDCWD), name)), call),
            _ => call(),
        }
    }
}

macro_rules! replacing_standard_descriptors {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: it replaces descriptors 0 to 2 inside the C library.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the arguments as they came.
            let result = unsafe { real::$name($($argument),*) };
            if let Some(watch) = watch() {
                (0..=2).for_each(|fd| adopt(watch, fd));
            }
            result
        }
    )*};
}

replacing_standard_descriptors! {
    daemon(keeps_directory: c_int, keeps_descriptors: c_int);
    login_tty(terminal: c_int);
}

macro_rules! making_nameless {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: on the root's file system, so that checkpoints hold it.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name() -> *mut FILE {
            // SAFETY: no arguments.
            let elsewhere = || unsafe { real::$name() };
            let Some(watch) = watch() else { return elsewhere() };
            let root = std::os::fd::AsRawFd::as_raw_fd(&watch.store.root());
            let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_EXCL;
            // SAFETY: a directory of ours and a terminated name; the stream takes the descriptor over.
            unsafe {
                match stdchk_preload_open(root, c".".as_ptr(), flags, 0o600) {
                    -1 => elsewhere(),
                    fd => super::names::fdopen(fd, c"w+".as_ptr()),
                }
            }
        }
    )*};
}

making_nameless! { tmpfile tmpfile64 }

/// `futimes`, as `futimens`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn futimes(fd: c_int, times: *const timeval) -> c_int {
    // SAFETY: the arguments as they came.
    touching(fd, || unsafe { real::futimes(fd, times) })
}

/// `futimesat`, as `utimensat`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn futimesat(
    directory: c_int,
    path: *const c_char,
    times: *const timeval,
) -> c_int {
    // SAFETY: the arguments as they came.
    let call = || unsafe { real::futimesat(directory, path, times) };
    if path.is_null() {
        return touching(directory, call);
    }
    // SAFETY: the program's string.
    unsafe { changing_path(directory, path, Change::Touch, call) }
}

/// `lutimes`, as `utimensat`.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
    // SAFETY: the arguments as they came.
    unsafe { changing_path(AT_FDCWD, path, Change::Touch, || real::lutimes(path, times)) }
}

/// A register of a system call as the `int` that it carries.
#[expect(clippy::cast_possible_truncation, reason = "the kernel takes the lower half, too")]
fn int(register: usize) -> c_int {
    register as c_int
}

/// A register of a system call as the `unsigned int` that it carries.
fn unsigned_int(register: usize) -> c_uint {
    int(register).cast_unsigned()
}

/// `syscall`, which is variadic in C: calls that change files take the way of their hooks. Rings of `io_uring` are not
/// there, as on older kernels: what is written through them goes by every hook.
///
/// # Safety
/// As for the C function; arguments that were not given are not looked at.
pub unsafe extern "C-unwind" fn stdchk_preload_syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if watch().is_none() {
        // SAFETY: the arguments as they came.
        return unsafe { real::syscall(number, a, b, c, d, e, f) };
    }
    // SAFETY: the arguments of the call of this number.
    unsafe {
        let hooked = on_descriptors(number, [a, b, c, d, e, f]);
        let hooked = hooked.or_else(|| on_data(number, [a, b, c, d, e, f]));
        let hooked = hooked.or_else(|| on_names(number, [a, b, c, d, e]));
        hooked.unwrap_or_else(|| real::syscall(number, a, b, c, d, e, f))
    }
}

/// # Safety
/// As for the call of this number.
unsafe fn on_descriptors(number: c_long, [a, b, c, d, ..]: [usize; 6]) -> Option<c_long> {
    use super::descriptors as hooks;
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            libc::SYS_openat => stdchk_preload_open(int(a), b as *const c_char, int(c), unsigned_int(d)),
            libc::SYS_openat2 => return Some(open_how(int(a), b as *const c_char, c as *const u64, d)),
            libc::SYS_close => hooks::close(int(a)),
            libc::SYS_close_range => hooks::close_range(unsigned_int(a), unsigned_int(b), int(c)),
            libc::SYS_dup => hooks::dup(int(a)),
            libc::SYS_dup3 => hooks::dup3(int(a), int(b), int(c)),
            libc::SYS_fcntl => hooks::stdchk_preload_fcntl(int(a), int(b), c as *mut c_void),
            libc::SYS_execve => super::process::stdchk_preload_execve(
                a as *const c_char,
                b as *const *const c_char,
                c as *const *const c_char,
                0,
            ),
            libc::SYS_io_uring_setup | libc::SYS_io_setup => {
                set_errno(libc::ENOSYS);
                -1
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => stdchk_preload_open(AT_FDCWD, a as *const c_char, int(b), unsigned_int(c)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat => hooks::creat(a as *const c_char, unsigned_int(b)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => hooks::dup2(int(a), int(b)),
            _ => return None,
        }
    };
    Some(c_long::from(result))
}

/// The number of `fchmodat2` on every architecture; not every C library's headers have it.
const SYS_FCHMODAT2: c_long = 452;
/// What creates, and does not follow a link.
const EXCLUSIVE: c_int = libc::O_CREAT | libc::O_EXCL;

/// `openat2`, for which the C library has no function. The structure of `size` bytes holds the flags, the mode, and how names
/// are to be resolved.
///
/// # Safety
/// As for the system call.
unsafe fn open_how(directory: c_int, path: *const c_char, how: *const u64, size: usize) -> c_long {
    // SAFETY: the arguments as they came.
    let call = || unsafe {
        let directory = directory.cast_unsigned() as usize;
        let opened = real::syscall(libc::SYS_openat2, directory, path.addr(), how.addr(), size, 0, 0);
        narrow::<ssize_t, _>(opened)
    };
    let word = |place: usize| match how.is_null() || size / size_of::<u64>() <= place {
        true => 0,
        // SAFETY: the caller's promise. Unknown flags are refused by the kernel.
        false => unsafe { how.add(place).read_unaligned() },
    };
    // No flag of the kernel's lies beyond the width of an integer: it refuses these.
    let Ok(flags) = c_int::try_from(word(0)) else { return call() as c_long };
    let resolve = word(2);
    let Some(watch) = watch().filter(|_| may_change(flags)) else { return call() as c_long };
    let fd_of = |fd: ssize_t| narrow::<c_int, _>(fd);
    // SAFETY: the program's string and descriptor, borrowed for the decision.
    let (at, name) = unsafe { (borrow(directory), bytes(path)) };
    if resolve == 0 || flags & (libc::O_CREAT | libc::O_TRUNC) == 0 {
        return opening(watch, at, name, flags, call, fd_of) as c_long;
    }
    let resolve = ResolveFlags::from_bits_retain(resolve);
    let follow = flags & libc::O_NOFOLLOW == 0 && flags & EXCLUSIVE != EXCLUSIVE;
    match decide(|| watch.resolved(at, name, resolve, follow)) {
        // SAFETY: the working directory stands for itself.
        Ok(name) => opening(watch, unsafe { borrow(AT_FDCWD) }, &name, flags, call, fd_of) as c_long,
        Err(cause) => {
            set_errno(cause.raw_os_error());
            -1
        }
    }
}

/// `lockf` and its other name take record locks inside the C library.
macro_rules! locking {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, remembered.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, length: i64) -> c_int {
            stdchk_filestate::locks::take();
            // SAFETY: the arguments as they came.
            unsafe { real::$name(fd, command, length) }
        }
    )*};
}

locking! { lockf lockf64 }

/// # Safety
/// As for the call of this number.
unsafe fn on_data(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    use super::data as hooks;
    // SAFETY: the caller's promise. The kernel takes the offsets of `pwritev` in two halves, of which the first is all here.
    unsafe {
        Some(match number {
            libc::SYS_write => hooks::write(int(a), b as *const c_void, c) as c_long,
            libc::SYS_pwrite64 => {
                hooks::pwrite(int(a), b as *const c_void, c, d.cast_signed() as i64) as c_long
            }
            libc::SYS_writev => hooks::writev(int(a), b as *const libc::iovec, int(c)) as c_long,
            libc::SYS_pwritev => {
                hooks::pwritev(int(a), b as *const libc::iovec, int(c), d.cast_signed() as i64) as c_long
            }
            libc::SYS_pwritev2 => {
                hooks::pwritev2(int(a), b as *const libc::iovec, int(c), d.cast_signed() as i64, int(f))
                    as c_long
            }
            libc::SYS_sendfile => hooks::sendfile(int(a), int(b), c as *mut i64, d) as c_long,
            libc::SYS_copy_file_range => {
                hooks::copy_file_range(int(a), b as *mut i64, int(c), d as *mut i64, e, unsigned_int(f))
                    as c_long
            }
            libc::SYS_splice => {
                hooks::splice(int(a), b as *mut i64, int(c), d as *mut i64, e, unsigned_int(f)) as c_long
            }
            libc::SYS_ftruncate => c_long::from(hooks::ftruncate(int(a), b.cast_signed() as i64)),
            libc::SYS_truncate => c_long::from(hooks::truncate(a as *const c_char, b.cast_signed() as i64)),
            libc::SYS_fallocate => {
                c_long::from(hooks::fallocate(int(a), int(b), c.cast_signed() as i64, d.cast_signed() as i64))
            }
            _ => return None,
        })
    }
}

/// # Safety
/// As for the call of this number.
unsafe fn on_names(number: c_long, [a, b, c, d, e]: [usize; 5]) -> Option<c_long> {
    use super::names as hooks;
    let path = |register: usize| register as *const c_char;
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            libc::SYS_unlinkat => hooks::unlinkat(int(a), path(b), int(c)),
            libc::SYS_renameat2 => hooks::renameat2(int(a), path(b), int(c), path(d), unsigned_int(e)),
            libc::SYS_linkat => hooks::linkat(int(a), path(b), int(c), path(d), int(e)),
            libc::SYS_symlinkat => hooks::symlinkat(path(a), int(b), path(c)),
            libc::SYS_mkdirat => hooks::mkdirat(int(a), path(b), unsigned_int(c)),
            libc::SYS_mknodat => hooks::mknodat(int(a), path(b), unsigned_int(c), d as libc::dev_t),
            libc::SYS_fchmod => hooks::fchmod(int(a), unsigned_int(b)),
            libc::SYS_fchmodat => hooks::fchmodat(int(a), path(b), unsigned_int(c), 0),
            SYS_FCHMODAT2 => hooks::fchmodat(int(a), path(b), unsigned_int(c), int(d)),
            libc::SYS_setxattr => hooks::setxattr(path(a), path(b), c as *const c_void, d, int(e)),
            libc::SYS_lsetxattr => hooks::lsetxattr(path(a), path(b), c as *const c_void, d, int(e)),
            libc::SYS_fsetxattr => hooks::fsetxattr(int(a), path(b), c as *const c_void, d, int(e)),
            libc::SYS_utimensat if path(b).is_null() && int(d) == 0 => {
                super::data::futimens(int(a), c as *const timespec)
            }
            libc::SYS_utimensat => hooks::utimensat(int(a), path(b), c as *const timespec, int(d)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod => hooks::chmod(path(a), unsigned_int(b)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mknod => hooks::mknod(path(a), unsigned_int(b), c as libc::dev_t),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink => hooks::unlink(path(a)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rmdir => hooks::rmdir(path(a)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => hooks::rename(path(a), path(b)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_renameat => hooks::renameat(int(a), path(b), int(c), path(d)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_link => hooks::link(path(a), path(b)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_symlink => hooks::symlink(path(a), path(b)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir => hooks::mkdir(path(a), unsigned_int(b)),
            _ => return None,
        }
    };
    Some(c_long::from(result))
}
