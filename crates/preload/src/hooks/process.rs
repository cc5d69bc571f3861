//! Hooks on calls that make processes: children take part in the run.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{FILE, c_char, c_int, c_void, mode_t, pid_t};
use stdchk_filestate::program::cannot_follow;
use stdchk_filestate::unwatched::Start;
use stdchk_filestate::watch::State;
use stdchk_filestate::watch::names::Open;
use stdchk_filestate::watch::place::descriptor_path;

use super::descriptors::may_change;
use crate::active::{
    ROOT_VARIABLE, START_VARIABLE, borrow, bytes, decide, hold_signals_back, let_signals_in, refuse, watch,
};
use crate::descriptors::{Memory, memory};
use crate::real;

const PRELOAD_VARIABLE: &[u8] = b"LD_PRELOAD";

thread_local! {
    /// The locks held by the thread that forks, so that the child's copies of what they guard are whole, and the
    /// signals that it held back before: a handler must not find these locks taken by its own thread.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

type Held =
    (MutexGuard<'static, ()>, MutexGuard<'static, State>, MutexGuard<'static, Memory>, libc::sigset_t);

/// This process was forked since this library was loaded.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked and goes on as the same program.
pub fn has_forked() -> bool {
    HAS_FORKED.load(Ordering::Relaxed)
}

/// Makes every fork of this process, the C library's own included, leave both sides in order.
pub fn follow_forks() {
    // SAFETY: the three functions below live as long as this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_parent), Some(after_fork_child)) };
}

extern "C" fn before_fork() {
    if let Some(watch) = watch() {
        let signals = hold_signals_back();
        // A look holds the loader's lock, which nobody would let go in the child.
        let looking = crate::objects::looking();
        HELD.with(|held| *held.borrow_mut() = Some((looking, watch.state(), memory(), signals)));
    }
}

extern "C" fn after_fork_parent() {
    if let Some((looking, state, memory, signals)) = HELD.with(|held| held.borrow_mut().take()) {
        drop((looking, state, memory));
        let_signals_in(&signals);
    }
}

extern "C" fn after_fork_child() {
    HAS_FORKED.store(true, Ordering::Relaxed);
    after_fork_parent();
    if let Some(watch) = watch().filter(|watch| watch.follows_sets()) {
        decide(|| watch.forget_members());
    }
    if let Some(Err(error)) = watch().map(|watch| watch.control.take_slot()) {
        refuse(&error.to_string());
    }
}

/// `vfork`, as `fork`: a child that shares our memory would change what we know about *our* descriptors.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vfork() -> pid_t {
    // SAFETY: no argument.
    unsafe { real::fork() }
}

/// A program that is being started: what it reports in as, in the store until it does.
struct Starting(Option<String>);

impl Starting {
    /// Writes down that the program at `path` is started, or that it can't take part. It is started all the same.
    ///
    /// # Safety
    /// `path` is null or a terminated string.
    unsafe fn begin(path: *const c_char, how: Start) -> Self {
        // SAFETY: the caller's promise.
        let command = OsStr::from_bytes(unsafe { bytes(path) });
        let Some(watch) = watch().filter(|_| !command.is_empty()) else { return Self(None) };
        let hidden =
            || (!is_reachable()).then_some("its library can't be reached where it runs, as in a sandbox");
        match cannot_follow(command).or_else(hidden) {
            Some(why) => {
                watch.store.note_unwatched(&command.to_string_lossy(), why);
                Self(None)
            }
            None => Self(watch.store.starting(how, command.as_bytes())),
        }
    }

    fn name(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default().as_bytes()
    }

    /// It was not started.
    fn failed(&self) {
        if let (Some(watch), Some(name)) = (watch(), &self.0) {
            decide(|| watch.store.not_started(name));
        }
    }

    /// It was started as a process of its own.
    fn succeeded(&self, pid: pid_t) {
        if let (Some(watch), Some(name)) = (watch(), &self.0) {
            decide(|| watch.store.started_as(name, pid.cast_unsigned()));
        }
    }
}

/// An environment with the variables that make a program take part.
struct Environment {
    pointers: Vec<*const c_char>,
    strings: Vec<CString>,
}

impl Environment {
    /// `given`, completed from our own environment where a program has dropped what it needs to be followed.
    ///
    /// # Safety
    /// `given` is null or a null-terminated list of terminated strings.
    unsafe fn complete(given: *const *const c_char, starting: &Starting) -> Self {
        let mut pointers = Vec::new();
        let mut at = given;
        // SAFETY: the caller's promise; the walk ends at the closing null.
        unsafe {
            while !at.is_null() && !(*at).is_null() {
                pointers.push(*at);
                at = at.add(1);
            }
        }
        let mut strings = Vec::new();
        for (name, value) in needed(starting.name()) {
            let mut own = [name, b"=", &*value].concat();
            // SAFETY: the caller's promise for each string.
            let given =
                |entry: &*const c_char| unsafe { bytes(*entry) }.strip_prefix(name)?.strip_prefix(b"=");
            if let Some(others) = pointers.iter().find_map(given).filter(|_| name == PRELOAD_VARIABLE) {
                // The program's own list stays, behind this library.
                let theirs = others.split(|byte| matches!(byte, b':' | b' '));
                for other in theirs.filter(|other| !other.is_empty() && *other != &*value) {
                    own.extend([b":", other].concat());
                }
            }
            pointers.retain(|entry| given(entry).is_none());
            strings.extend(CString::new(own).ok());
        }
        pointers.extend(strings.iter().map(|string| string.as_ptr()));
        pointers.push(std::ptr::null());
        Self { pointers, strings }
    }
}

/// The variables and their values for this run.
fn needed(start: &[u8]) -> Vec<(&'static [u8], Cow<'_, [u8]>)> {
    let Some(watch) = watch() else { return Vec::new() };
    // By its name of now: it may have been renamed.
    let root = descriptor_path(watch.store.root());
    let root = root.unwrap_or_else(|_| watch.store.root_path().as_os_str().as_bytes().to_vec());
    vec![
        (ROOT_VARIABLE.to_bytes(), root.into()),
        (START_VARIABLE.to_bytes(), start.into()),
        (PRELOAD_VARIABLE, library().into()),
    ]
}

/// Whether this library is there where a program is started: a process may have got another root directory, or other mounts.
fn is_reachable() -> bool {
    rustix::fs::access(library(), rustix::fs::Access::READ_OK).is_ok()
}

/// The path of this library.
fn library() -> &'static [u8] {
    let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let address = follow_forks as fn() as *const c_void;
    // SAFETY: an address inside this library and a structure to fill.
    let found = unsafe { libc::dladdr(address, about.as_mut_ptr()) } != 0;
    // SAFETY: all zero is a valid value, and `dladdr` fills in terminated strings that stay as long as the library.
    if found { unsafe { bytes(about.assume_init().dli_fname) } } else { b"" }
}

/// All forms of `exec` that name a file end here; `search` looks for it in the path.
///
/// # Safety
/// As for `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn stdchk_preload_execve(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    search: c_int,
) -> c_int {
    // SAFETY: the arguments as they came, the environment completed.
    unsafe {
        let is_there = search != 0 || libc::access(path, libc::X_OK) == 0;
        executing(path, envp, is_there, |envp| match search {
            0 => real::execve(path, argv, envp),
            _ => real::execvpe(path, argv, envp),
        })
    }
}

/// Goes on as the program at `path`, unless `real` fails.
///
/// # Safety
/// As for `execve`.
unsafe fn executing(
    path: *const c_char,
    envp: *const *const c_char,
    is_there: bool,
    real: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    if watch().is_none() || !is_there {
        return real(envp);
    }
    // SAFETY: the arguments as they came.
    let (starting, environment) = unsafe {
        decide(|| {
            let starting = Starting::begin(path, Start::Exec);
            let environment = Environment::complete(envp, &starting);
            (starting, environment)
        })
    };
    crate::api::leaving(true);
    let result = real(environment.pointers.as_ptr());
    starting.failed();
    result
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

macro_rules! exec_forms {
    ($($name:ident ($($argument:ident: $type:ty),*) => $environment:expr, $search:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, the program followed.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, argv: *const *const c_char $(, $argument: $type)*) -> c_int {
            // SAFETY: the arguments as they came.
            unsafe { stdchk_preload_execve(path, argv, $environment, $search) }
        }
    )*};
}

exec_forms! {
    execve(envp: *const *const c_char) => envp, 0;
    execvpe(envp: *const *const c_char) => envp, 1;
    execv() => environ, 0;
    execvp() => environ, 1;
}

/// `fexecve`, the program followed.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fexecve(
    fd: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // By this name it is found in a message, whatever its file is called by then.
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let path = CString::new(path.into_os_string().into_encoded_bytes()).unwrap_or_default();
    // SAFETY: the arguments as they came, the environment completed.
    unsafe { executing(path.as_ptr(), envp, true, |envp| real::fexecve(fd, argv, envp)) }
}

macro_rules! spawn_forms {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, the program followed.")]
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            pid: *mut pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: *const *const c_char,
            envp: *const *const c_char,
        ) -> c_int {
            // SAFETY: the arguments as they came, the environment completed.
            unsafe {
                let (starting, environment) = decide(|| {
                    let starting = Starting::begin(path, Start::Spawn);
                    let environment = Environment::complete(envp, &starting);
                    (starting, environment)
                });
                let mut child = 0;
                let result = real::$name(&raw mut child, path, actions, attributes, argv, environment.pointers.as_ptr());
                if result == 0 {
                    starting.succeeded(child);
                    if !pid.is_null() {
                        *pid = child;
                    }
                } else {
                    starting.failed();
                }
                result
            }
        }
    )*};
}

spawn_forms! { posix_spawn posix_spawnp }

/// Puts back what this process has removed from its own environment: `system` and `popen` start their shell inside the C
/// library, with that environment.
fn complete_own_environment() {
    if watch().is_none() {
        return;
    }
    // SAFETY: the list of the C library.
    let completed = decide(|| unsafe { Environment::complete(environ, &Starting(None)) });
    for string in &completed.strings {
        let mut parts = string.to_bytes().splitn(2, |byte| *byte == b'=').map(CString::new);
        let (Some(Ok(name)), Some(Ok(value))) = (parts.next(), parts.next()) else { continue };
        // SAFETY: terminated strings, of which the C library makes copies.
        unsafe {
            if bytes(libc::getenv(name.as_ptr())) != value.to_bytes() {
                libc::setenv(name.as_ptr(), value.as_ptr(), 1);
            }
        }
    }
}

/// `system`, the shell followed.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    complete_own_environment();
    // SAFETY: the argument as it came.
    unsafe { real::system(command) }
}

/// `popen`, the shell followed.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    complete_own_environment();
    // SAFETY: the arguments as they came.
    unsafe { real::popen(command, mode) }
}

/// `posix_spawn_file_actions_addopen`: the C library will open the file inside, unseen, so it is asked for here.
///
/// # Safety
/// As for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_addopen(
    actions: *mut c_void,
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    if let Some(watch) = watch().filter(|_| may_change(flags)) {
        let open_flags = rustix::fs::OFlags::from_bits_retain(flags.cast_unsigned());
        // SAFETY: the program's string; the working directory.
        let (directory, path) = unsafe { (borrow(libc::AT_FDCWD), bytes(path)) };
        if let Open::Fail(cause) = decide(|| watch.before_open(directory, path, open_flags)) {
            return cause.raw_os_error();
        }
    }
    // SAFETY: the arguments as they came.
    unsafe { real::posix_spawn_file_actions_addopen(actions, fd, path, flags, mode) }
}

/// Runs when the program ends by `exit`: its descriptors are left to the kernel.
extern "C" fn end() {
    crate::api::leaving(false);
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

macro_rules! ending_forms {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: its descriptors are left to the kernel.")]
        ///
        /// # Safety
        /// As for the C function.
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(code: c_int) -> ! {
            crate::api::leaving(false);
            // SAFETY: the argument as it came.
            unsafe { real::_exit(code) };
            unreachable!("the process has ended")
        }
    )*};
}

ending_forms! { _exit _Exit }
