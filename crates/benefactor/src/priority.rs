//! The least priority at the disk and a low one at the processor, for a process that works for others on its owner's machine.
#![expect(unsafe_code, reason = "no library that is kept sets the priority at the disk")]

use std::io;

use rustix::process::{getpriority_process, setpriority_process};

/// The priority at the processor: about a tenth of what a program of the owner gets beside it.
const NICE: i32 = 10;
/// `IOPRIO_WHO_PROCESS` of linux/ioprio.h: a thread, here the one that calls.
const WHO_PROCESS: libc::c_int = 1;
/// `IOPRIO_CLASS_IDLE` of linux/ioprio.h: only what nobody else wants of the disk.
const CLASS_IDLE: libc::c_int = 3;
/// `IOPRIO_CLASS_SHIFT` of linux/ioprio.h.
const CLASS_SHIFT: libc::c_int = 13;

/// Has this thread, and all that it starts from now on, give way to others: at the processor, and at disks whose scheduler knows
/// priorities. A lower priority that it has already stays.
///
/// # Errors
/// The system refuses.
pub fn give_way() -> io::Result<()> {
    if getpriority_process(None)? < NICE {
        setpriority_process(None, NICE)?;
    }
    // SAFETY: the call takes three numbers and touches no memory of this process.
    let answer = unsafe {
        libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0 as libc::c_int, CLASS_IDLE << CLASS_SHIFT)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_thread_that_gives_way_and_those_that_it_starts_are_idle() {
        let nice = || {
            let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields = stat.rsplit_once(") ").unwrap().1.to_owned();
            fields.split_whitespace().nth(16).unwrap().parse::<i32>().unwrap()
        };
        // SAFETY: the call takes two numbers and touches no memory of this process.
        let class = || unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) } >> CLASS_SHIFT;
        let of_child = std::thread::spawn(move || {
            give_way().unwrap();
            std::thread::spawn(move || (nice(), class())).join().unwrap()
        });
        let (nice, class) = of_child.join().unwrap();
        assert!(nice >= NICE && class == i64::from(CLASS_IDLE), "{nice} {class}");
    }
}
