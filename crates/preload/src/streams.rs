//! The stream table: how the whole of stdio is watched through two function pointers.
//!
//! glibc reaches the kernel from a `FILE` through a table of functions, exported as `_IO_file_jumps` (and
//! `_IO_wfile_jumps` for wide streams) with a layout that has not changed since glibc 2.1. Redirecting its `write` and
//! `close` entries sees every byte that any stream writes: `putc_unlocked` inlined into the program, `printf`, wide
//! characters, the flush at exit. The alternatives see less: replacing the ninety entry points misses inlined macros
//! and the flush at exit; `fopencookie` knows no wide streams and no `fileno`. Whether it worked is tried at start-up.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use libc::{FILE, c_int, c_void, off_t, ssize_t};
use stdchk_filestate::watch::data::Change;

use crate::active::{change, note_closed};

const TABLES: [&CStr; 2] = [c"_IO_file_jumps", c"_IO_wfile_jumps"];
/// Positions in the table, in pointers (glibc's `struct _IO_jump_t`).
const WRITE: usize = 15;
const CLOSE: usize = 17;
/// The table's length in pointers, for the pages that it covers.
const ENTRIES: usize = 21;

type Write = unsafe extern "C-unwind" fn(*mut FILE, *const c_void, ssize_t) -> ssize_t;
type Close = unsafe extern "C-unwind" fn(*mut FILE) -> c_int;

static REAL_WRITE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static REAL_CLOSE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Calls that came through the table, for the trial at start-up.
static SEEN: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn write_of_stream(
    stream: *mut FILE,
    bytes: *const c_void,
    count: ssize_t,
) -> ssize_t {
    SEEN.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `redirect` put the C library's own function there before this one could be called.
    let real: Write = unsafe { std::mem::transmute(REAL_WRITE.load(Ordering::Relaxed)) };
    // SAFETY: the C library passes one of its streams.
    let fd = unsafe { libc::fileno(stream) };
    let length = crate::active::unsigned(count as off_t);
    // SAFETY: the arguments as they came.
    change(fd, Change::Here { length }, || unsafe { real(stream, bytes, count) })
}

unsafe extern "C-unwind" fn close_of_stream(stream: *mut FILE) -> c_int {
    // SAFETY: as in `write_of_stream`.
    let real: Close = unsafe { std::mem::transmute(REAL_CLOSE.load(Ordering::Relaxed)) };
    if crate::descriptors::is_laid_aside(stream) {
        return 0;
    }
    // SAFETY: as in `write_of_stream`.
    let fd = unsafe { libc::fileno(stream) };
    let closing = crate::api::closing(fd);
    note_closed(fd);
    // SAFETY: the arguments as they came.
    let result = unsafe { real(stream) };
    crate::api::closed(closing);
    result
}

/// Redirects the tables, and tries out whether a stream's bytes come by.
pub fn redirect() -> bool {
    TABLES.iter().all(|name| redirect_table(name)) && works()
}

fn redirect_table(name: &CStr) -> bool {
    // SAFETY: a terminated name and a documented handle.
    let table = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.cast::<*mut c_void>();
    if table.is_null() || !protect(table, libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    // SAFETY: the table has `ENTRIES` pointers, its pages were just made writable, and no stream is in use yet: the
    // program's own code has not begun.
    unsafe {
        REAL_WRITE.store(*table.add(WRITE), Ordering::Relaxed);
        REAL_CLOSE.store(*table.add(CLOSE), Ordering::Relaxed);
        *table.add(WRITE) = write_of_stream as Write as *mut c_void;
        *table.add(CLOSE) = close_of_stream as Close as *mut c_void;
    }
    protect(table, libc::PROT_READ)
}

fn protect(table: *mut *mut c_void, protection: c_int) -> bool {
    let page = rustix::param::page_size();
    let start = table.addr() / page * page;
    let end = table.addr() + ENTRIES * size_of::<*mut c_void>();
    // SAFETY: these pages hold the C library's tables, read-only data that the loader itself protects the same way.
    unsafe {
        libc::mprotect(table.with_addr(start).cast(), end.next_multiple_of(page) - start, protection) == 0
    }
}

fn works() -> bool {
    let before = SEEN.load(Ordering::Relaxed);
    // SAFETY: opens, writes to and closes a stream of its own.
    unsafe {
        let stream = libc::fopen(c"/dev/null".as_ptr(), c"w".as_ptr());
        if stream.is_null() {
            return false;
        }
        libc::fputc(0, stream);
        libc::fclose(stream);
    }
    SEEN.load(Ordering::Relaxed) > before
}
