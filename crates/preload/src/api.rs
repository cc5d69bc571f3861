//! What a program may ask for itself: `stdchk_checkpoint`, `stdchk_restore`, `stdchk_active`.
//!
//! The small library `libstdchk` defines the same names and does nothing; preloaded, these come first.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use libc::c_int;
use stdchk_filestate::index::set_label;
use stdchk_filestate::watch::Watch;
use stdchk_filestate::{Error, checkpoint, control, driver, restore};
use stdchk_model::Timestep;

use crate::active::{decide, set_errno, watch};
use crate::descriptors;

/// 1 when the program runs under file-state checkpoints.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn stdchk_active() -> c_int {
    c_int::from(watch().is_some())
}

/// Takes a checkpoint of the files now: its index, or -1 with `errno`. What streams hold in buffers is part of it.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn stdchk_checkpoint() -> i64 {
    let Some(watch) = watch() else { return 0 };
    answer(take(watch, "program"))
}

/// Restores the files, descriptors and streams as they were at the checkpoint `index`: 0, or -1 with `errno`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn stdchk_restore(index: i64) -> c_int {
    let Some(watch) = watch() else { return 0 };
    let Ok(index) = u64::try_from(index) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    if answer(go_back(watch, index).map(|()| 0)) < 0 { -1 } else { 0 }
}

fn answer(result: Result<u64, Error>) -> i64 {
    match result {
        Ok(index) => match i64::try_from(index) {
            Ok(index) => index,
            Err(_) => {
                set_errno(libc::EOVERFLOW);
                -1
            }
        },
        Err(error) => {
            set_errno(error.errno().raw_os_error());
            -1
        }
    }
}

fn take(watch: &Watch, label: &str) -> Result<u64, Error> {
    refuse_inside_a_call("checkpoint")?;
    descriptors::flush_streams();
    decide(|| {
        let held = descriptors::capture();
        let index = checkpoint::take(&watch.store, &watch.control, label)?;
        descriptors::remember(watch, index, held);
        Ok(index)
    })
}

/// From a signal handler that interrupted a file call, the checkpoint would wait for that very call.
fn refuse_inside_a_call(what: &str) -> Result<(), Error> {
    let refused = || Error::Refused(format!("a {what} was asked for inside a file call"));
    if control::is_inside() { Err(refused()) } else { Ok(()) }
}

fn go_back(watch: &Watch, index: u64) -> Result<(), Error> {
    refuse_inside_a_call("restore")?;
    let Some(held) = descriptors::recall(index) else {
        let why = format!("checkpoint {index} was not taken by this process: its descriptors are not known");
        return Err(Error::Refused(why));
    };
    descriptors::flush_streams();
    decide(|| {
        restore::in_run(&watch.store, &watch.control, Some(index))?;
        descriptors::forget_after(index);
        descriptors::bring_back(watch, &held);
        Ok(())
    })
}

/// A file was renamed to `to`: when that is the trigger, the file state is taken at this moment.
pub fn renamed(watch: &Watch, to: (BorrowedFd<'_>, &[u8])) {
    let Some(trigger) = watch.store.options.trigger.as_deref() else { return };
    let place = decide(|| watch.place(to.0, to.1));
    if place.is_none_or(|place| place.path != trigger.as_os_str().as_bytes()) {
        return;
    }
    let label = format!("renamed to {}", trigger.display());
    if let Err(error) = take(watch, &label) {
        // The job goes on: the last checkpoint still has the file state together with the renamed file of its time.
        decide(|| watch.store.note(&driver::missed(&label, &error)));
    }
}

/// The descriptor is about to be closed, which commits its file to the pool: if that is one of a checkpoint set, the
/// file state is taken first.
pub fn closing(fd: c_int) {
    let Some(watch) = watch().filter(|watch| watch.follows_sets()) else { return };
    if let Some(step) = watch.closes_member(fd) {
        take_for_set(watch, step);
    }
}

/// A file is about to be renamed to `to`, as [`closing`].
pub fn renaming(watch: &Watch, to: (BorrowedFd<'_>, &[u8])) {
    if watch.follows_sets()
        && let Some(step) = decide(|| watch.names_member(to.0, to.1))
    {
        take_for_set(watch, step);
    }
}

/// The descriptors are not remembered: nobody goes back to a set from inside, and streams would be laid aside for it.
fn take_for_set(watch: &Watch, step: Timestep) {
    let taken = refuse_inside_a_call("checkpoint").and_then(|()| {
        descriptors::flush_streams();
        decide(|| checkpoint::take_for_set(&watch.store, &watch.control, step))
    });
    if let Err(error) = taken {
        // The set is committed all the same: going back to it is refused, going back to earlier ones is possible.
        decide(|| watch.store.note(&driver::missed(&set_label(step), &error)));
    }
}
