//! System calls that loaded code makes by itself, around the C library, are handed to the hooks: the kernel's *syscall user
//! dispatch* sends a `SIGSYS` for each call from outside of one range of code, which is the C library's.
//!
//! Only a process is armed in which such code was found, for each of its calls costs some tens of nanoseconds more then. The
//! kernel keeps it per thread and gives it to no child: new threads and forked children are armed anew, and threads that were
//! there before by a signal to each. A call that can't be made inside a handler, as one that makes a thread with its own stack,
//! lets its thread go on without dispatch, and is written down.

use std::ops::Range;

use libc::c_int;

/// Whether this process hands calls to the hooks.
#[inline]
pub fn is_armed() -> bool {
    kernel::is_armed()
}

/// Hands all calls from outside of `allowed` to the hooks from now on, but those of `trusted` code, which the kernel gets; false
/// where the kernel can't.
pub fn arm(allowed: Range<usize>, trusted: &[Range<usize>]) -> bool {
    kernel::arm(allowed, trusted)
}

/// Does `work`, whose own calls go to the kernel at once.
#[inline]
pub fn undispatched<T>(work: impl FnOnce() -> T) -> T {
    kernel::undispatched(work)
}

/// This thread is new, or in a forked child.
pub fn arm_thread() {
    kernel::arm_thread();
}

/// The signal that must reach each armed thread.
pub const SIGNAL: c_int = libc::SIGSYS;

#[cfg(not(target_arch = "x86_64"))]
mod kernel {
    use std::ops::Range;

    pub fn is_armed() -> bool {
        false
    }

    pub fn arm(_allowed: Range<usize>, _trusted: &[Range<usize>]) -> bool {
        false
    }

    pub fn undispatched<T>(work: impl FnOnce() -> T) -> T {
        work()
    }

    pub fn arm_thread() {}
}

#[cfg(target_arch = "x86_64")]
mod kernel {
    use std::cell::Cell;
    use std::ops::Range;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use libc::{c_int, c_long, c_void, siginfo_t, ucontext_t};
    use stdchk_model::exact::narrow;

    use super::SIGNAL;
    use crate::active::{set_errno, watch};
    use crate::hooks::roundabout::stdchk_preload_syscall;
    use crate::real;

    const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
    const PR_SYS_DISPATCH_ON: usize = 1;
    const ALLOW: u8 = 0;
    const BLOCK: u8 = 1;
    /// The `si_code` of a dispatched call.
    const SYS_USER_DISPATCH: c_int = 2;
    /// The length of the instruction `syscall`.
    const SYSCALL_BYTES: i64 = 2;
    /// Calls that depend on the stack on which they are made.
    const ON_THEIR_STACK: [c_long; 6] = [
        libc::SYS_rt_sigreturn,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_fork,
        libc::SYS_vfork,
        libc::SYS_sigaltstack,
    ];
    const GAVE_UP: &str =
        "it makes threads or processes by its own system calls, and one thread's calls are not seen since";

    static ARMED: AtomicBool = AtomicBool::new(false);
    static FROM: AtomicUsize = AtomicUsize::new(0);
    static LENGTH: AtomicUsize = AtomicUsize::new(0);
    /// Code of this library, and of parts of the C library outside of its range: from, to.
    static TRUSTED: [(AtomicUsize, AtomicUsize); TRUSTED_MAX] =
        [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; TRUSTED_MAX];
    const TRUSTED_MAX: usize = 16;

    thread_local! {
        /// Read by the kernel at each call from outside of the range.
        static SELECTOR: Cell<u8> = const { Cell::new(ALLOW) };
        /// Its value outside of decisions.
        static RESTS_AT: Cell<u8> = const { Cell::new(ALLOW) };
        static HAS_GIVEN_UP: Cell<bool> = const { Cell::new(false) };
    }

    pub fn is_armed() -> bool {
        ARMED.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn undispatched<T>(work: impl FnOnce() -> T) -> T {
        SELECTOR.set(ALLOW);
        let done = work();
        // Not what it was before: the thread may have been armed by a signal meanwhile.
        SELECTOR.set(RESTS_AT.get());
        done
    }

    pub fn arm(allowed: Range<usize>, trusted: &[Range<usize>]) -> bool {
        if is_armed() {
            return true;
        }
        if trusted.len() > TRUSTED_MAX || allowed.is_empty() {
            return false;
        }
        for ((from, to), code) in TRUSTED.iter().zip(trusted) {
            from.store(code.start, Ordering::Relaxed);
            to.store(code.end, Ordering::Relaxed);
        }
        FROM.store(allowed.start, Ordering::Relaxed);
        LENGTH.store(allowed.end - allowed.start, Ordering::Relaxed);
        // Found once, before it is needed in a handler.
        // SAFETY: no arguments.
        unsafe { real::syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) };
        if !install() || !dispatch_here() {
            return false;
        }
        ARMED.store(true, Ordering::SeqCst);
        arm_others();
        true
    }

    fn install() -> bool {
        // SAFETY: all zero is an empty action; the handler has the form that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction =
                on_call as unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
            // A handler of the program's that interrupts this one may make calls of its own.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
            real::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) == 0
        }
    }

    /// Each other thread arms itself in the handler.
    fn arm_others() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return };
        for thread in threads.flatten() {
            let number = thread.file_name().to_str().and_then(|name| name.parse::<c_int>().ok());
            if let Some(number) = number.filter(|number| *number != own) {
                // SAFETY: a signal to a thread of this process; one that has ended gets none.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, SIGNAL) };
            }
        }
    }

    pub fn arm_thread() {
        if is_armed() && !HAS_GIVEN_UP.get() {
            dispatch_here();
        }
    }

    fn dispatch_here() -> bool {
        let (from, length) = (FROM.load(Ordering::Relaxed), LENGTH.load(Ordering::Relaxed));
        let selector = SELECTOR.with(Cell::as_ptr);
        // SAFETY: the selector lives as long as its thread; the set is ours.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, SIGNAL);
            real::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            if libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, from, length, selector) != 0 {
                return false;
            }
        }
        RESTS_AT.set(BLOCK);
        SELECTOR.set(BLOCK);
        true
    }

    unsafe extern "C" fn on_call(_signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel's own structures, and this thread's errno.
        unsafe {
            let errno = *libc::__errno_location();
            match (*info).si_code {
                SYS_USER_DISPATCH => dispatch(&mut *context.cast::<ucontext_t>()),
                libc::SI_TKILL => arm_thread(),
                _ => {}
            }
            set_errno(errno);
        }
    }

    /// Does the call that the interrupted code was about to make.
    ///
    /// # Safety
    /// As for that call.
    unsafe fn dispatch(context: &mut ucontext_t) {
        let registers = context.uc_mcontext.gregs;
        let value = |number: c_int| {
            usize::try_from(number).ok().and_then(|at| registers.get(at)).copied().unwrap_or(0)
        };
        let number = value(libc::REG_RAX);
        if ON_THEIR_STACK.contains(&number) {
            give_up();
            // Once more, without dispatch.
            set(context, libc::REG_RIP, value(libc::REG_RIP) - SYSCALL_BYTES);
            return;
        }
        let [a, b, c, d, e, f] =
            [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
                .map(|number| narrow::<usize, _>(value(number).cast_unsigned()));
        let at = narrow::<usize, _>(value(libc::REG_RIP).cast_unsigned());
        let is_trusted = TRUSTED
            .iter()
            .any(|(from, to)| (from.load(Ordering::Relaxed)..=to.load(Ordering::Relaxed)).contains(&at));
        // SAFETY: the caller's promise.
        let result = unsafe {
            match is_trusted {
                true => real::syscall(number, a, b, c, d, e, f),
                false => stdchk_preload_syscall(number, a, b, c, d, e, f),
            }
        };
        // SAFETY: this thread's errno.
        let result = if result == -1 { -c_long::from(unsafe { *libc::__errno_location() }) } else { result };
        if number == libc::SYS_rt_sigprocmask {
            // The end of the handler puts the mask back, so the new one has to be there.
            // SAFETY: the mask of the context, and this thread's own.
            unsafe {
                real::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut context.uc_sigmask);
                libc::sigdelset(&raw mut context.uc_sigmask, SIGNAL);
            }
        }
        set(context, libc::REG_RAX, result);
    }

    fn set(context: &mut ucontext_t, number: c_int, value: c_long) {
        let register = usize::try_from(number).ok().and_then(|at| context.uc_mcontext.gregs.get_mut(at));
        if let Some(register) = register {
            *register = value;
        }
    }

    fn give_up() {
        RESTS_AT.set(ALLOW);
        SELECTOR.set(ALLOW);
        if !HAS_GIVEN_UP.replace(true)
            && let Some(watch) = watch()
        {
            crate::active::decide(|| watch.store.note_unwatched(&crate::objects::program(), GAVE_UP));
        }
    }
}
