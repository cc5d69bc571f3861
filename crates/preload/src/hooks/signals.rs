//! Hooks on signals and threads: the signal of a dispatched call must reach each thread (see [`dispatch`](crate::dispatch)).

use libc::{c_int, c_void, pthread_attr_t, pthread_t, sigset_t};

use crate::active::watch;
use crate::dispatch::{self, SIGNAL};
use crate::real;

/// Defines hooks on calls that set the mask of signals.
macro_rules! masks {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, the signal of dispatched calls left out.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
            // SAFETY: the arguments as they came, the set copied.
            unsafe {
                if set.is_null() || how == libc::SIG_UNBLOCK || watch().is_none() {
                    return real::$name(how, set, old);
                }
                let mut copy = *set;
                libc::sigdelset(&raw mut copy, SIGNAL);
                real::$name(how, &raw const copy, old)
            }
        }
    )*};
}

masks! { sigprocmask pthread_sigmask }

/// `sigaction`: no handler holds the signal of dispatched calls back, and none takes its place.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the arguments as they came, the action copied; all zero is the default action.
    unsafe {
        if action.is_null() || watch().is_none() {
            return real::sigaction(signal, action, old);
        }
        if signal == SIGNAL && dispatch::is_armed() {
            if !old.is_null() {
                *old = std::mem::zeroed();
            }
            return 0;
        }
        let mut copy = *action;
        libc::sigdelset(&raw mut copy.sa_mask, SIGNAL);
        real::sigaction(signal, &raw const copy, old)
    }
}

type Routine = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// The routine of a new thread, and its argument.
struct Started(Routine, *mut c_void);

/// `pthread_create`: the new thread's calls are dispatched where the process's are.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the arguments as they came; the new thread takes over what it runs.
    unsafe {
        if !dispatch::is_armed() {
            return real::pthread_create(thread, attributes, routine, argument);
        }
        let started = Box::into_raw(Box::new(Started(routine, argument)));
        let result = real::pthread_create(thread, attributes, begin, started.cast());
        if result != 0 {
            drop(Box::from_raw(started));
        }
        result
    }
}

unsafe extern "C-unwind" fn begin(started: *mut c_void) -> *mut c_void {
    // SAFETY: what `pthread_create` passed on to this thread alone.
    let Started(routine, argument) = *unsafe { Box::from_raw(started.cast::<Started>()) };
    dispatch::arm_thread();
    // SAFETY: the program's routine and argument.
    unsafe { routine(argument) }
}
