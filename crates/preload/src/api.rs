//! What a program may ask for itself: `stdchk_checkpoint`, `stdchk_restore`, `stdchk_active`.
//!
//! The small library `libstdchk` defines the same names and does nothing; preloaded, these come first.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use libc::c_int;
use stdchk_filestate::watch::Watch;
use stdchk_filestate::{Error, checkpoint, restore};

use crate::active::{is_nested, refuse, set_errno, watch};
use crate::descriptors;

/// 1 when the program runs under file-state checkpoints.
#[unsafe(no_mangle)]
pub extern "C" fn stdchk_active() -> c_int {
    c_int::from(watch().is_some())
}

/// Takes a checkpoint of the files now: its index, or -1 with `errno`. What streams hold in buffers is part of it.
#[unsafe(no_mangle)]
pub extern "C" fn stdchk_checkpoint() -> i64 {
    let Some(watch) = watch() else { return 0 };
    answer(take(watch, "program"))
}

/// Restores the files, descriptors and streams as they were at the checkpoint `index`: 0, or -1 with `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn stdchk_restore(index: i64) -> c_int {
    let Some(watch) = watch() else { return 0 };
    let Ok(index) = u64::try_from(index) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    if answer(go_back(watch, index).map(|()| 0)) < 0 { -1 } else { 0 }
}

fn answer(result: Result<u64, Error>) -> i64 {
    match result {
        Ok(index) => i64::try_from(index).unwrap_or(i64::MAX),
        Err(error) => {
            set_errno(error.errno().raw_os_error());
            -1
        }
    }
}

fn take(watch: &Watch, label: &str) -> Result<u64, Error> {
    if is_nested() {
        // From a signal handler that interrupted a write: the checkpoint would wait for that very write.
        return Err(Error::Refused("a checkpoint was asked for inside a file call".into()));
    }
    // SAFETY: null means all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    let held = descriptors::capture();
    let index = checkpoint::take(&watch.store, &watch.control, label)?;
    descriptors::remember(index, held);
    Ok(index)
}

fn go_back(watch: &Watch, index: u64) -> Result<(), Error> {
    let Some(held) = descriptors::recall(index) else {
        let why = format!("checkpoint {index} was not taken by this process: its descriptors are not known");
        return Err(Error::Refused(why));
    };
    // SAFETY: null means all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    let world = watch.control.freeze()?;
    restore::to_index(&watch.store, Some(index))?;
    watch.control.begin_interval(&world, index);
    let again = stdchk_filestate::mapped::save_again(&watch.store);
    drop(world);
    descriptors::forget_after(index);
    descriptors::bring_back(watch, &held);
    again
}

/// A file was renamed to `to`: when that is the trigger, the file state is taken at this moment.
pub fn renamed(watch: &Watch, to: (BorrowedFd<'_>, &[u8])) {
    let Some(trigger) = watch.store.options.trigger.as_deref() else { return };
    let place = watch.place(to.0, to.1);
    if place.is_none_or(|place| place.path != trigger.as_os_str().as_bytes()) {
        return;
    }
    if let Err(error) = take(watch, &format!("renamed to {}", trigger.display())) {
        // The job must not go on believing that its file state belongs to its checkpoint.
        refuse(&error.to_string());
    }
}
