//! The functions that the hooks stand before: the next definition after ours, found once each.
//!
//! `RTLD_NEXT` rather than a system call of our own: other preloaded libraries (DMTCP's, a profiler's) stay in the
//! chain, and the C library's cancellation points stay cancellation points.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    DIR, FILE, aiocb, c_char, c_int, c_long, c_uint, c_void, dev_t, dirent, iovec, mmsghdr, mode_t, msghdr,
    off_t, sigevent, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, utimbuf,
};

/// Finds `name` behind this library. There is nothing sensible to do without it: the program ends.
fn find(found: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = found.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a terminated name and a documented handle.
    let symbol = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if symbol.is_null() {
        crate::active::refuse(&format!("this C library has no {}", name.to_string_lossy()));
    }
    found.store(symbol, Ordering::Relaxed);
    symbol
}

/// The address of the real `dlopen`, which must be called by a jump.
pub fn address_of_dlopen() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    find(&FOUND, c"dlopen")
}

/// Declares functions that call the next definition of their name.
macro_rules! real {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        #[doc = concat!("The real `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the C function.
        pub unsafe fn $name($($argument: $type),*) -> $result {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let found = find(&FOUND, NAME);
            // SAFETY: the C library defines this name with this signature.
            let function: unsafe extern "C-unwind" fn($($type),*) -> $result = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller keeps the C function's contract.
            unsafe { function($($argument),*) }
        }
    )*};
}

real! {
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    pwrite(fd: c_int, buffer: *const c_void, count: size_t, offset: off_t) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    pwritev(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    copy_file_range(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, count: size_t, flags: c_uint) -> ssize_t;
    splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, count: size_t, flags: c_uint) -> ssize_t;
    ftruncate(fd: c_int, size: off_t) -> c_int;
    truncate(path: *const c_char, size: off_t) -> c_int;
    fallocate(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int;
    posix_fallocate(fd: c_int, offset: off_t, length: off_t) -> c_int;
    mmap(address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    unlink(path: *const c_char) -> c_int;
    unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int;
    rmdir(path: *const c_char) -> c_int;
    remove(path: *const c_char) -> c_int;
    renameat(old_directory: c_int, old: *const c_char, new_directory: c_int, new: *const c_char) -> c_int;
    renameat2(old_directory: c_int, old: *const c_char, new_directory: c_int, new: *const c_char, flags: c_uint) -> c_int;
    linkat(old_directory: c_int, old: *const c_char, new_directory: c_int, new: *const c_char, flags: c_int) -> c_int;
    link(old: *const c_char, new: *const c_char) -> c_int;
    symlinkat(target: *const c_char, directory: c_int, path: *const c_char) -> c_int;
    mkdirat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int;
    mknodat(directory: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int;
    chmod(path: *const c_char, mode: mode_t) -> c_int;
    fchmod(fd: c_int, mode: mode_t) -> c_int;
    fchmodat(directory: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int;
    lchmod(path: *const c_char, mode: mode_t) -> c_int;
    setxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int;
    lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int;
    fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int;
    utimensat(directory: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int;
    futimens(fd: c_int, times: *const timespec) -> c_int;
    utimes(path: *const c_char, times: *const timeval) -> c_int;
    utime(path: *const c_char, times: *const utimbuf) -> c_int;
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fclose(stream: *mut FILE) -> c_int;
    fork() -> libc::pid_t;
    _exit(code: c_int) -> ();
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    posix_spawnp(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    posix_spawn_file_actions_addopen(actions: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    ungetc(character: c_int, stream: *mut FILE) -> c_int;
    fseek(stream: *mut FILE, offset: libc::c_long, whence: c_int) -> c_int;
    fseeko(stream: *mut FILE, offset: off_t, whence: c_int) -> c_int;
    fsetpos(stream: *mut FILE, position: *const libc::fpos_t) -> c_int;
    rewind(stream: *mut FILE) -> ();
    tmpfile() -> *mut FILE;
    tmpfile64() -> *mut FILE;
    readdir(directory: *mut DIR) -> *mut dirent;
    readdir64(directory: *mut DIR) -> *mut dirent;
    readdir_r(directory: *mut DIR, buffer: *mut dirent, entry: *mut *mut dirent) -> c_int;
    readdir64_r(directory: *mut DIR, buffer: *mut dirent, entry: *mut *mut dirent) -> c_int;
    scandir(path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, compare: *const c_void) -> c_int;
    scandir64(path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, compare: *const c_void) -> c_int;
    scandirat(directory: c_int, path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, compare: *const c_void) -> c_int;
    scandirat64(directory: c_int, path: *const c_char, list: *mut *mut *mut dirent, filter: *const c_void, compare: *const c_void) -> c_int;
    aio_write(request: *mut aiocb) -> c_int;
    aio_write64(request: *mut aiocb) -> c_int;
    lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    bind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    daemon(keeps_directory: c_int, keeps_descriptors: c_int) -> c_int;
    login_tty(terminal: c_int) -> c_int;
    lockf(fd: c_int, command: c_int, length: off_t) -> c_int;
    lockf64(fd: c_int, command: c_int, length: off_t) -> c_int;
    futimes(fd: c_int, times: *const timeval) -> c_int;
    futimesat(directory: c_int, path: *const c_char, times: *const timeval) -> c_int;
    lutimes(path: *const c_char, times: *const timeval) -> c_int;
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
}
