//! What the kernel tells of a task in `/proc`, at the price of three system calls: small files are many.

use std::fs::File;
use std::io::Read;

/// More than these texts take, but for the `status` of a user in hundreds of groups.
const TEXT_BYTES: usize = 4096;

/// The text `name` of a task, as `status`; nothing if the task is gone or can't be seen.
pub(crate) fn text_of(task: u32, name: &str) -> Option<String> {
    let mut file = File::open(format!("/proc/{task}/{name}")).ok()?;
    let mut text = vec![0; TEXT_BYTES];
    // The kernel makes the whole text at the first read, and gives as much of it as fits.
    let length = file.read(&mut text).ok()?;
    text.truncate(length);
    if length == TEXT_BYTES {
        file.read_to_end(&mut text).ok()?;
    }
    // The name of a command, which comes first, may hold any bytes.
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_read_gives_all_lines() {
        let own = std::process::id();
        for (name, last) in [("status", "nonvoluntary_ctxt_switches:"), ("io", "cancelled_write_bytes:")] {
            let text = text_of(own, name).unwrap();
            assert!(text.lines().last().unwrap().starts_with(last), "{text}");
        }
        assert_eq!(text_of(u32::MAX, "status"), None);
    }
}
