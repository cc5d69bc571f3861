//! Hooks on calls that list directories: the store stands in the root, and is none of the program's files. Everything else
//! is listed by the kernel as it is.

use libc::{DIR, c_char, c_int, c_void, dirent};
use stdchk_filestate::store::DIRECTORY;
use stdchk_filestate::watch::Watch;

use crate::active::{borrow, bytes, watch};
use crate::real;

/// Whether the entry is the store, in a list of the directory `directory`.
///
/// # Safety
/// `entry` is an entry that the C library has given.
unsafe fn is_store(watch: &Watch, entry: *const dirent, directory: c_int) -> bool {
    // SAFETY: the caller's promise; the descriptor is borrowed for a look.
    unsafe { bytes((*entry).d_name.as_ptr()) == DIRECTORY.as_bytes() && watch.is_root(borrow(directory)) }
}

macro_rules! reading {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, the store left out.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(directory: *mut DIR) -> *mut dirent {
            // SAFETY: the argument as it came; an entry of the C library's.
            unsafe {
                let entry = real::$name(directory);
                match watch() {
                    Some(watch) if !entry.is_null() && is_store(watch, entry, libc::dirfd(directory)) => {
                        real::$name(directory)
                    }
                    _ => entry,
                }
            }
        }
    )*};
}

// On 64-bit systems both have the same entries.
reading! { readdir readdir64 }

macro_rules! reading_into {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, the store left out.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            directory: *mut DIR,
            buffer: *mut dirent,
            entry: *mut *mut dirent,
        ) -> c_int {
            // SAFETY: the arguments as they came; an entry of the C library's.
            unsafe {
                let result = real::$name(directory, buffer, entry);
                match watch() {
                    Some(watch)
                        if result == 0
                            && !(*entry).is_null()
                            && is_store(watch, *entry, libc::dirfd(directory)) =>
                    {
                        real::$name(directory, buffer, entry)
                    }
                    _ => result,
                }
            }
        }
    )*};
}

reading_into! { readdir_r readdir64_r }

/// Takes the store out of a list that the C library has made of the directory at `path`, and counts what is left.
///
/// # Safety
/// `list` points to `count` entries, if that is not negative; `path` is null or a terminated string.
unsafe fn without_store(at: c_int, path: *const c_char, list: *mut *mut *mut dirent, count: c_int) -> c_int {
    let (Some(watch), Ok(length)) = (watch(), usize::try_from(count)) else { return count };
    // SAFETY: the caller's promise.
    let entries = unsafe { std::slice::from_raw_parts_mut(*list, length) };
    // SAFETY: entries of the C library's, with terminated names.
    let is_named = |entry: &*mut dirent| unsafe { bytes((**entry).d_name.as_ptr()) } == DIRECTORY.as_bytes();
    let Some(place) = entries.iter().position(is_named) else { return count };
    // SAFETY: the caller's promise; the descriptor is borrowed for a look.
    if !unsafe { watch.is_root_at(borrow(at), bytes(path)) } {
        return count;
    }
    if let Some([store, rest @ ..]) = entries.get_mut(place..) {
        // SAFETY: the C library makes each entry with `malloc`, for the program to free.
        unsafe { libc::free(store.cast::<c_void>()) };
        let behind = rest.len();
        if let Some(tail) = entries.get_mut(place..) {
            tail.copy_within(1..=behind, 0);
        }
    }
    count - 1
}

macro_rules! scanning {
    ($($name:ident($($at:ident)?) => $directory:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, the store left out.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($at: c_int,)?
            path: *const c_char,
            list: *mut *mut *mut dirent,
            filter: *const c_void,
            compare: *const c_void,
        ) -> c_int {
            // SAFETY: the arguments as they came.
            unsafe {
                let count = real::$name($($at,)? path, list, filter, compare);
                without_store($directory, path, list, count)
            }
        }
    )*};
}

scanning! {
    scandir() => libc::AT_FDCWD;
    scandir64() => libc::AT_FDCWD;
    scandirat(at) => at;
    scandirat64(at) => at;
}
