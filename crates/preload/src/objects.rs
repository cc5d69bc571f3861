//! Loaded objects that call the kernel by themselves, around the C library and every hook.
//!
//! The program and each library are looked through once, when the program starts and when more are loaded.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stdchk_filestate::program::calls_kernel;
use stdchk_filestate::watch::Watch;

use crate::active::{decide, watch};

/// Parts of the C library, whose calls are hooked, and what the kernel brings.
const OF_C_LIBRARY: [&[u8]; 7] =
    [b"libc.so", b"ld-linux", b"libpthread.so", b"librt.so", b"libdl.so", b"libm.so", b"linux-vdso"];
const WHY: &str = "calls the kernel itself, around the C library, so what it changes that way is not kept";

/// Objects looked at so far: new ones come behind them.
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);
/// Objects unloaded so far: then all are looked at again.
static UNLOADED: AtomicU64 = AtomicU64::new(0);

/// Held while objects are looked at.
static LOOKING: Mutex<()> = Mutex::new(());

/// Waits until nobody looks at objects, and keeps others from it.
pub fn looking() -> MutexGuard<'static, ()> {
    LOOKING.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Look {
    watch: &'static Watch,
    number: usize,
}

/// Looks at the objects that were loaded since the last look, and writes down which of them are not watched.
pub fn look() {
    let Some(watch) = watch() else { return };
    decide(|| {
        let _looking = looking();
        let mut look = Look { watch, number: 0 };
        // SAFETY: the function below takes the structure that is passed on, which lives until the call returns.
        unsafe { libc::dl_iterate_phdr(Some(at_object), (&raw mut look).cast::<c_void>()) };
        LOOKED_AT.store(look.number, Ordering::Relaxed);
    });
}

unsafe extern "C" fn at_object(about: *mut libc::dl_phdr_info, _size: usize, look: *mut c_void) -> c_int {
    // SAFETY: the C library passes a filled structure, and what `look` passed on.
    let (about, look) = unsafe { (&*about, &mut *look.cast::<Look>()) };
    if UNLOADED.swap(about.dlpi_subs, Ordering::Relaxed) != about.dlpi_subs {
        LOOKED_AT.store(0, Ordering::Relaxed);
    }
    look.number += 1;
    if look.number > LOOKED_AT.load(Ordering::Relaxed) {
        // SAFETY: as above; an object stays loaded while the C library goes through them.
        unsafe { look_at(about, look.watch) };
    }
    0
}

/// # Safety
/// `about` is of a loaded object.
unsafe fn look_at(about: &libc::dl_phdr_info, watch: &Watch) {
    let name = match about.dlpi_name.is_null() {
        true => b"".as_slice(),
        // SAFETY: the loader's terminated name.
        false => unsafe { CStr::from_ptr(about.dlpi_name) }.to_bytes(),
    };
    let file_name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if OF_C_LIBRARY.iter().any(|known| file_name.starts_with(known)) {
        return;
    }
    // SAFETY: the object's program headers; readable code is mapped where they say.
    let mut segments =
        unsafe { std::slice::from_raw_parts(about.dlpi_phdr, usize::from(about.dlpi_phnum)) }.iter();
    let own = (look as fn()).cast_addr();
    let found = segments.any(|segment| {
        let wanted = libc::PF_R | libc::PF_X;
        if segment.p_type != libc::PT_LOAD || segment.p_flags & wanted != wanted {
            return false;
        }
        let from = about.dlpi_addr.wrapping_add(segment.p_vaddr);
        let Ok(length) = usize::try_from(segment.p_memsz) else { return false };
        let Ok(address) = usize::try_from(from) else { return false };
        if (address..address.saturating_add(length)).contains(&own) {
            return false;
        }
        // SAFETY: as above.
        calls_kernel(unsafe { std::slice::from_raw_parts(address as *const u8, length) })
    });
    if found {
        let shown = match name.is_empty() {
            true => std::fs::read_link("/proc/self/exe")
                .map_or("the program".into(), |path| path.display().to_string()),
            false => String::from_utf8_lossy(name).into_owned(),
        };
        watch.store.note_unwatched(&shown, WHY);
    }
}

trait Address {
    fn cast_addr(self) -> usize;
}

impl Address for fn() {
    fn cast_addr(self) -> usize {
        (self as *const c_void).addr()
    }
}

/// `dlopen` has loaded something: for `c/variadic.c`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn stdchk_preload_loaded() {
    look();
}

/// The real `dlopen`: for `c/variadic.c`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn stdchk_preload_real_dlopen() -> *mut c_void {
    crate::real::address_of_dlopen()
}
