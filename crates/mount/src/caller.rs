//! Programs that wait for an answer of the mount, and when they are let go without one.
//!
//! A program inside a FUSE request can't be ended: the kernel keeps even SIGKILL from it until the request is answered.
//! So whoever waits is looked at now and then, and once a signal asks it to end, its request is answered by `EINTR`.
//! The kernel also sends interrupts, and they are of no use here: it sends one for the first signal of a request and none
//! for a later SIGKILL, none for a process that is exiting, and it doesn't say which signal came. Which one it is matters.
//! Programs don't expect that files interrupt them: a timer, a child that exited or a window that was resized must not
//! make a `write()` or `close()` fail that no local disk would. (docs/design/0004)
//!
//! A signal ends a wait if it is pending, isn't blocked, and
//!
//! | the program | the signal |
//! |---|---|
//! | leaves it to the system | ends it by default |
//! | has a handler | comes from somebody who waits at a keyboard: SIGINT, SIGQUIT |
//! | ignores it | never |
//!
//! SIGKILL always does. SIGTERM and SIGHUP with a handler don't: batch systems send them ahead of the end of a job, which then
//! writes its last checkpoint. `/proc/TASK/status` shows all of this (proc_pid_status(5)); what can't be seen, as from
//! another PID namespace, is never let go.
//!
//! What is let go must leave nothing behind that it did not ask for, and change nothing later: see [`Caller`].

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libc::{
    SIGCHLD, SIGCONT, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH,
};
use stdchk_model::{ErrorCode, Failure};

use crate::proc::text_of;

/// The task of a process that can't be seen, in another PID namespace.
pub(crate) const UNKNOWN: u32 = 0;
/// Pause between two looks at a task that waits: it is gone within a fraction of a second, and a thousand that wait cost
/// a tenth of a processor.
pub(crate) const LOOK_PAUSE: Duration = Duration::from_millis(150);

/// Signals by which somebody at a keyboard asks a program to end, which it wants to see before it does.
const ASKS: u64 = bit(SIGINT) | bit(SIGQUIT);
/// Signals that end nobody by default. (signal(7))
const HARMLESS: u64 = bit(SIGCHLD)
    | bit(SIGCONT)
    | bit(SIGURG)
    | bit(SIGWINCH)
    | bit(SIGSTOP)
    | bit(SIGTSTP)
    | bit(SIGTTIN)
    | bit(SIGTTOU);

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The program behind a request, for as long as the request is worked on.
///
/// | what it asked for | once it is let go |
/// |---|---|
/// | an answer without effect, a write | the work is dropped |
/// | something that it would hold from then on: an entry, a handle | the work goes on, and what it gives is given back |
/// | that something is saved | the work goes on |
/// | another change | the work goes on to the next [`Caller::step`], and fails there |
#[derive(Clone)]
pub(crate) struct Caller {
    task: u32,
    is_gone: Arc<AtomicBool>,
}

impl Caller {
    /// The task of the kernel that made a request.
    pub fn of(task: u32) -> Self {
        Self { task, is_gone: Arc::default() }
    }

    pub fn task(&self) -> u32 {
        self.task
    }

    /// Makes a change that must not come later than the answer: it is dropped once the caller was let go.
    ///
    /// # Errors
    /// Those of the change; or that the caller was let go, which nobody is told.
    pub async fn step<T>(&self, change: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let mut change = pin!(change);
        poll_fn(|context| match self.is_gone.load(Ordering::Relaxed) {
            true => Err(Failure::new(ErrorCode::Unavailable, "the program was told to end meanwhile")).into(),
            false => change.as_mut().poll(context),
        })
        .await
    }

    /// Does the work of a request to its end, and gives the outcome to `answer` if that comes before `leaves`. Otherwise
    /// `let_go` is called then, and the outcome is returned: nobody was told.
    ///
    /// All of it runs in one task: no change is under way while the caller is let go.
    pub async fn serve<T, R>(
        &self,
        reply: R,
        work: impl Future<Output = T>,
        leaves: impl Future<Output = ()>,
        answer: impl FnOnce(R, T),
        let_go: impl FnOnce(R),
    ) -> Option<T> {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            outcome = &mut work => {
                answer(reply, outcome);
                None
            }
            () = leaves => {
                self.is_gone.store(true, Ordering::Relaxed);
                let_go(reply);
                Some(work.await)
            }
        }
    }
}

/// The outcome of work for a task; nothing if the task is told to end before, and then the work is dropped.
pub(crate) async fn unless_told_to_end<T>(task: u32, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        outcome = work => Some(outcome),
        () = told_to_end(task) => None,
    }
}

/// Comes once a signal asks the task to end.
pub(crate) async fn told_to_end(task: u32) {
    until(move || status(task).is_some_and(|status| is_told_to_end(&status))).await;
}

/// Whether a task has been killed by a signal and only waits for what it is in.
pub(crate) fn has_kill_pending(task: u32) -> bool {
    let signals = status(task).and_then(|status| signals(&status, "SigPnd:"));
    signals.is_some_and(|pending| pending & bit(SIGKILL) != 0)
}

async fn until(holds: impl Fn() -> bool) {
    loop {
        tokio::time::sleep(LOOK_PAUSE).await;
        if holds() {
            return;
        }
    }
}

/// Reading it never waits for the task.
fn status(task: u32) -> Option<String> {
    if task == UNKNOWN {
        return None;
    }
    text_of(task, "status")
}

fn is_told_to_end(status: &str) -> bool {
    let of = |name| signals(status, name);
    let (Some(own), Some(shared), Some(blocked), Some(ignored), Some(caught)) =
        (of("SigPnd:"), of("ShdPnd:"), of("SigBlk:"), of("SigIgn:"), of("SigCgt:"))
    else {
        return false;
    };
    let pending = (own | shared) & !blocked & !ignored;
    // Of a signal that ends the process by default, the kernel makes a SIGKILL for each of its threads at once.
    (own | shared) & bit(SIGKILL) != 0 || pending & caught & ASKS != 0 || pending & !caught & !HARMLESS != 0
}

fn signals(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use libc::{SIGALRM, SIGTERM, SIGUSR1};

    use super::*;

    fn status_of(own: u64, shared: u64, blocked: u64, ignored: u64, caught: u64) -> String {
        format!(
            "Name:\tSigPnd: 1\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n\
             SigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn every_signal_ends_a_wait_or_does_not_by_what_the_program_does_about_it() {
        for signal in 1..=64 {
            let bit = bit(signal);
            let by_default = HARMLESS & bit == 0;
            let asks = [SIGINT, SIGQUIT].contains(&signal);
            let kills = signal == SIGKILL;
            for (own, shared) in [(bit, 0), (0, bit)] {
                assert_eq!(is_told_to_end(&status_of(own, shared, 0, 0, 0)), by_default, "{signal}");
                assert_eq!(is_told_to_end(&status_of(own, shared, 0, 0, bit)), asks || kills, "{signal}");
                assert_eq!(is_told_to_end(&status_of(own, shared, 0, bit, 0)), kills, "{signal}");
                assert_eq!(is_told_to_end(&status_of(own, shared, bit, 0, 0)), kills, "{signal}");
            }
        }
        assert!(!is_told_to_end(&status_of(0, 0, 0, 0, u64::MAX)));
        assert!(!is_told_to_end("State:\tZ (zombie)\n"));
    }

    #[test]
    fn timers_children_and_notices_of_the_end_of_a_job_interrupt_nobody_who_has_a_handler_for_them() {
        for signal in [SIGALRM, SIGCHLD, SIGUSR1, SIGWINCH, SIGTERM] {
            assert!(!is_told_to_end(&status_of(0, bit(signal), 0, 0, bit(signal))), "{signal}");
        }
    }

    /// A process whose only thread is stopped, so that its signals stay pending.
    fn stopped(script: &str) -> Child {
        // Whoever runs the tests may ignore SIGINT.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", "bash"]);
        let mut child =
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line)
            .unwrap();
        send(&child, SIGSTOP);
        let give_up = Instant::now() + Duration::from_secs(10);
        while !status(child.id()).unwrap().contains("State:\tT") {
            assert!(Instant::now() < give_up);
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    fn send(child: &Child, signal: i32) {
        let (signal, pid) = (format!("-{signal}"), child.id().to_string());
        assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
    }

    #[tokio::test]
    async fn a_real_process_is_told_to_end_by_a_signal_that_ends_it_and_not_by_one_that_does_not() {
        let mut child = stopped("trap '' USR1; trap : ALRM TERM INT; echo ready; read line");
        let told = |status: Option<String>| is_told_to_end(&status.unwrap());
        for harmless in [SIGUSR1, SIGALRM, SIGCHLD, SIGTERM] {
            send(&child, harmless);
            assert!(!told(status(child.id())), "{harmless}");
        }
        send(&child, SIGINT);
        assert!(told(status(child.id())));
        told_to_end(child.id()).await;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!has_kill_pending(child.id()), "it is gone");
    }

    #[tokio::test]
    async fn work_that_is_done_is_answered_and_work_for_who_left_is_not() {
        let caller = Caller::of(UNKNOWN);
        let never = std::future::pending();
        let done = caller.serve(
            "reply",
            async { 7 },
            never,
            |reply, seven| {
                assert_eq!((reply, seven), ("reply", 7));
            },
            |_| unreachable!("nobody left"),
        );
        assert_eq!(done.await, None);
        let late =
            caller.serve((), tokio::task::yield_now(), async {}, |(), ()| unreachable!("left"), |()| ());
        assert_eq!(late.await, Some(()));
    }

    #[tokio::test]
    async fn no_change_is_made_after_its_caller_was_let_go() {
        let caller = Caller::of(UNKNOWN);
        let made = AtomicBool::new(false);
        let work = caller.step(async {
            tokio::task::yield_now().await;
            made.store(true, Ordering::Relaxed);
            Ok(())
        });
        let outcome = caller.serve((), work, async {}, |(), _| unreachable!("left"), |()| ()).await;
        assert!(outcome.unwrap().is_err() && !made.load(Ordering::Relaxed));
        assert!(caller.step(async { Ok(()) }).await.is_err(), "nor any later one");
    }
}
