//! What a program may ask for itself: `stdchk_checkpoint`, `stdchk_restore`, `stdchk_active`.
//!
//! The small library `libstdchk` defines the same names and does nothing; preloaded, these come first.

use std::os::fd::BorrowedFd;

use libc::c_int;
use stdchk_filestate::index::set_label;
use stdchk_filestate::trigger::{Event, Trigger};
use stdchk_filestate::watch::Watch;
use stdchk_filestate::watch::triggers::Closing;
use stdchk_filestate::{Error, checkpoint, control, driver, restore};
use stdchk_model::Timestep;

use crate::active::{borrow, decide, set_errno, watch};
use crate::descriptors;
use crate::hooks::process;

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

/// A file was renamed to `to`: when that is a trigger, the file state is taken at this moment.
pub fn renamed(watch: &Watch, to: (BorrowedFd<'_>, &[u8])) {
    let Some((trigger, path)) = decide(|| watch.renames_trigger(to.0, to.1)) else { return };
    let label = Trigger::label(Event::Renamed, &path);
    match take(watch, &label) {
        Ok(_) => decide(|| watch.store.mark_fired(trigger)),
        // The job goes on: the last checkpoint still has the file state together with the renamed file of its time.
        Err(error) => decide(|| watch.store.note(&driver::missed(&label, &error))),
    }
}

/// The descriptor is about to be closed, which commits its file to the pool: if that is one of a checkpoint set, the
/// file state is taken first. A file that a trigger waits for goes to [`closed`] after the close.
pub fn closing(fd: c_int) -> Option<Closing> {
    let watch = watch()?;
    if watch.follows_sets()
        && let Some(step) = watch.closes_member(fd)
    {
        take_for_set(watch, step);
    }
    if !watch.waits_for_closing() {
        return None;
    }
    // SAFETY: borrowed for the look at it.
    decide(|| watch.closes_trigger(unsafe { borrow(fd) }, fd))
}

/// As [`closing`], of all descriptors in `first..=last`; `at_exec`: of those that an `exec` closes.
pub fn closing_range(first: c_int, last: c_int, at_exec: bool) -> Vec<Closing> {
    let Some(watch) = watch().filter(|watch| watch.waits_for_closing()) else { return Vec::new() };
    decide(|| {
        let mut closing = Vec::new();
        for fd in watch.watched_in(first, last) {
            // SAFETY: borrowed for the look at it.
            let borrowed = unsafe { borrow(fd) };
            let flags = rustix::io::fcntl_getfd(borrowed);
            if !at_exec || flags.is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC)) {
                closing.extend(watch.closes_trigger(borrowed, fd));
            }
        }
        closing
    })
}

/// Takes a checkpoint if the file is closed everywhere by now.
pub fn closed(closing: impl IntoIterator<Item = Closing>) {
    closing.into_iter().for_each(|closing| closed_but_here(&closing, false));
}

/// The process ends, or goes on as another program: takes checkpoints for the files which that closes.
pub fn leaving(at_exec: bool) {
    crate::objects::look();
    let closing = closing_range(0, c_int::MAX, at_exec);
    closing.iter().for_each(|closing| closed_but_here(closing, true));
}

/// `but_here`: this process is about to close it.
fn closed_but_here(closing: &Closing, but_here: bool) {
    let Some(watch) = watch() else { return };
    if !decide(|| watch.is_closed(closing, but_here)) {
        return;
    }
    // A process that ends at once discards what it holds back, and a forked one leaves that to its parent.
    let flushed = refuse_inside_a_call("checkpoint").map(|()| {
        if !but_here && !process::has_forked() {
            descriptors::flush_streams();
        }
    });
    let label = Trigger::label(Event::Closed, &closing.path);
    let taken = flushed.and_then(|()| decide(|| checkpoint::take(&watch.store, &watch.control, &label)));
    match taken {
        Ok(_) => decide(|| watch.store.mark_fired(closing.trigger)),
        Err(error) => decide(|| watch.store.note(&driver::missed(&label, &error))),
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
