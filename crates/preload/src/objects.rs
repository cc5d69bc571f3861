//! Loaded objects that call the kernel by themselves, around the C library and every hook.
//!
//! The program and each library are looked through once, when the program starts and when more are loaded. Where such code is
//! found, its calls are handed to the hooks ([`dispatch`]); where that can't be, it is written down.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use stdchk_filestate::program::calls_kernel;

use crate::active::{decide, watch};
use crate::dispatch;

/// Parts of the C library, whose calls are hooked, and what the kernel brings.
const OF_C_LIBRARY: [&[u8]; 7] =
    [b"libc.so", b"ld-linux", b"libpthread.so", b"librt.so", b"libdl.so", b"libm.so", b"linux-vdso"];
const C_LIBRARY: &[u8] = b"libc.so";
const WHY: &str = "calls the kernel itself, around the C library, so what it changes that way is not kept";

/// Objects looked at so far: new ones come behind them.
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);
/// Objects unloaded so far: then all are looked at again.
static UNLOADED: AtomicU64 = AtomicU64::new(0);

struct Look {
    number: usize,
    /// The code of the C library.
    allowed: Range<usize>,
    /// The code of this library, and of the other parts of the C library.
    trusted: Vec<Range<usize>>,
    /// Objects with system calls of their own.
    found: Vec<String>,
}

/// Looks at the objects that were loaded since the last look; `late`: some may have made calls by now.
pub fn look(late: bool) {
    let Some(watch) = watch() else { return };
    let mut look = Look { number: 0, allowed: 0..0, trusted: Vec::new(), found: Vec::new() };
    decide(|| {
        // SAFETY: the function below takes the structure that is passed on, which lives until the call returns.
        unsafe { libc::dl_iterate_phdr(Some(at_object), (&raw mut look).cast::<c_void>()) };
        LOOKED_AT.store(look.number, Ordering::Relaxed);
    });
    let Look { allowed, trusted, found, .. } = look;
    if found.is_empty() {
        return;
    }
    let can_be_seen = match late {
        true => dispatch::is_armed(),
        false => dispatch::arm(allowed, &trusted),
    };
    for name in found.iter().filter(|_| !can_be_seen) {
        decide(|| watch.store.note_unwatched(name, WHY));
    }
}

/// The program of this process, as the kernel calls it.
pub fn program() -> String {
    std::fs::read_link("/proc/self/exe").map_or("a program".into(), |path| path.display().to_string())
}

unsafe extern "C" fn at_object(about: *mut libc::dl_phdr_info, _size: usize, look: *mut c_void) -> c_int {
    // SAFETY: the C library passes a filled structure, and what `look` passed on.
    let (about, look) = unsafe { (&*about, &mut *look.cast::<Look>()) };
    if UNLOADED.swap(about.dlpi_subs, Ordering::Relaxed) != about.dlpi_subs {
        LOOKED_AT.store(0, Ordering::Relaxed);
    }
    look.number += 1;
    // SAFETY: an object stays loaded while the C library goes through them.
    unsafe { look_at(about, look) };
    0
}

/// # Safety
/// `about` is of a loaded object.
unsafe fn look_at(about: &libc::dl_phdr_info, look: &mut Look) {
    let name = match about.dlpi_name.is_null() {
        true => b"".as_slice(),
        // SAFETY: the loader's terminated name.
        false => unsafe { CStr::from_ptr(about.dlpi_name) }.to_bytes(),
    };
    let file_name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let is_of_c_library = OF_C_LIBRARY.iter().any(|known| file_name.starts_with(known));
    let is_new = look.number > LOOKED_AT.load(Ordering::Relaxed);
    // SAFETY: the object's program headers.
    let segments = unsafe { std::slice::from_raw_parts(about.dlpi_phdr, usize::from(about.dlpi_phnum)) };
    for code in segments.iter().filter_map(|segment| code_of(about.dlpi_addr, segment)) {
        if is_of_c_library || code.contains(&own_address()) {
            match file_name.starts_with(C_LIBRARY) {
                true => look.allowed = code,
                false => look.trusted.push(code),
            }
            continue;
        }
        // SAFETY: readable code of a loaded object.
        let bytes = || unsafe { std::slice::from_raw_parts(code.start as *const u8, code.end - code.start) };
        if is_new && calls_kernel(bytes()) {
            let shown = match name.is_empty() {
                true => program(),
                false => String::from_utf8_lossy(name).into_owned(),
            };
            look.found.push(shown);
        }
    }
}

/// Where a segment's code is loaded, if it is readable code.
fn code_of(base: u64, segment: &libc::Elf64_Phdr) -> Option<Range<usize>> {
    let wanted = libc::PF_R | libc::PF_X;
    if segment.p_type != libc::PT_LOAD || segment.p_flags & wanted != wanted {
        return None;
    }
    let start = usize::try_from(base.wrapping_add(segment.p_vaddr)).ok()?;
    Some(start..start.checked_add(usize::try_from(segment.p_memsz).ok()?)?)
}

/// An address in this library.
fn own_address() -> usize {
    let own: fn(bool) = look;
    (own as *const c_void).addr()
}

/// `dlopen` has loaded something: for `c/variadic.c`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn stdchk_preload_loaded() {
    look(false);
}

/// The real `dlopen`: for `c/variadic.c`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn stdchk_preload_real_dlopen() -> *mut c_void {
    crate::real::address_of_dlopen()
}
