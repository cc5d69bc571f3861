//! Which programs a preload library cannot watch, recognised before they start.
//!
//! A static program loads no library; a setuid one is loaded without it; one that talks to the kernel itself goes
//! around it. Each is refused with the reason: running it silently unprotected would be the worst of all.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use stdchk_model::exact::part;

use crate::error::{Error, Result};

/// How deep scripts may name scripts as their interpreters, as in the kernel.
const SCRIPTS_MAX: usize = 5;
/// The first bytes of a program, which hold its program headers.
const HEAD_BYTES: usize = 4096;
const STATIC: &str = "it is statically linked, and static programs load no preload library";
const NOT_64_BIT: &str = "it is not a 64-bit program";
const ON_MUSL: &str = "it uses musl; only programs on glibc can be watched";
const IN_GO: &str = "it is a Go program, and those call the kernel without the C library";
/// How much of a note or of a loader's name is looked at, bytes: both are far shorter, and a file may claim anything.
const SEGMENT_BYTES_MAX: usize = 64 << 10;
const ELF_MAGIC: &[u8] = b"\x7fELF";
const ELF_CLASS_64: u8 = 2;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const EXECUTABLE: u32 = 1;
/// The system calls that change files, by their x86-64 numbers, and `io_uring_setup`.
#[cfg(target_arch = "x86_64")]
const CHANGING_CALLS: [u32; 38] = [
    1, 2, 18, 20, 40, 76, 77, 82, 83, 84, 85, 86, 87, 88, 90, 91, 133, 257, 258, 259, 263, 264, 265, 266,
    268, 275, 280, 285, 296, 316, 326, 328, 425, 437, 132, 209, 235, 261,
];

/// Finds the file that running `command` would execute, and refuses it if it cannot be watched.
pub fn check(command: &OsStr) -> Result<PathBuf> {
    let path = find(command)?;
    let mut at = path.clone();
    for _ in 0..SCRIPTS_MAX {
        let bytes = std::fs::read(&at).map_err(|cause| unreadable(&at, &cause))?;
        match interpreter(&bytes) {
            Some(next) => at = next,
            None => return check_binary(&at, &bytes).map(|()| path),
        }
    }
    Err(refused(&path, "its interpreters are scripts without end"))
}

/// Why the program that `command` names, or the interpreter of a script, will not be followed, told from its headers alone:
/// asked at every start of a child. Says nothing of what cannot be looked at, and of programs that carry their own system
/// calls, which are looked at when they are loaded.
pub fn cannot_follow(command: &OsStr) -> Option<&'static str> {
    let mut path = find(command).ok()?;
    for _ in 0..SCRIPTS_MAX {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(&path, flags, Mode::empty()).ok()?;
        let mut head = [0; HEAD_BYTES];
        let length = rustix::io::pread(&file, &mut head, 0).ok()?;
        let head = part(&head, ..length);
        match interpreter(head) {
            Some(next) => path = next,
            // The loader itself has no loader, and loads the library before the program that it is told to.
            None if is_loader(&path) => return None,
            None => return cannot_follow_binary(&file, head),
        }
    }
    None
}

fn is_loader(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"))
}

fn cannot_follow_binary(file: &OwnedFd, head: &[u8]) -> Option<&'static str> {
    let stat = rustix::fs::fstat(file).ok()?;
    if !head.starts_with(ELF_MAGIC) {
        return None;
    }
    if head.get(4) != Some(&ELF_CLASS_64) {
        return Some(NOT_64_BIT);
    }
    let found = segments(head)?;
    let read = |segment: &Segment| {
        let mut bytes = vec![0; segment.size.min(SEGMENT_BYTES_MAX)];
        let length = rustix::io::pread(file, &mut bytes, u64::try_from(segment.offset).ok()?).ok()?;
        bytes.truncate(length);
        Some(bytes)
    };
    let privileged = || privilege(stat.st_mode, stat.st_uid, stat.st_gid).or_else(|| capabilities(file));
    linkage(&found, read).or_else(privileged)
}

/// Why a program with these program headers calls the kernel without a C library that can be watched.
fn linkage<B: AsRef<[u8]>>(
    segments: &[Segment],
    read: impl Fn(&Segment) -> Option<B>,
) -> Option<&'static str> {
    let Some(loader) = segments.iter().find(|segment| segment.kind == PT_INTERP) else {
        return Some(STATIC);
    };
    if read(loader).is_some_and(|name| name.as_ref().windows(7).any(|part| part == b"ld-musl")) {
        return Some(ON_MUSL);
    }
    let mut notes = segments.iter().filter(|segment| segment.kind == PT_NOTE).filter_map(read);
    notes.any(|note| is_go_note(note.as_ref())).then_some(IN_GO)
}

fn unreadable(path: &Path, cause: &std::io::Error) -> Error {
    refused(path, &format!("it cannot be looked at ({cause})"))
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Refused(format!("{} cannot be protected: {why}; it was not started", path.display()))
}

/// Where the C library looks for programs in an environment without `PATH`.
const PATH_UNLESS_SET: &str = "/bin:/usr/bin";

fn find(command: &OsStr) -> Result<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Ok(command.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH_UNLESS_SET.into());
    let is_program =
        |file: &PathBuf| file.metadata().is_ok_and(|about| about.is_file() && about.mode() & 0o111 != 0);
    let found = std::env::split_paths(&path).map(|directory| directory.join(command)).find(is_program);
    found.ok_or_else(|| Error::Refused(format!("there is no program {} in PATH", command.display())))
}

/// The interpreter that a script names in its first line.
fn interpreter(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = PathBuf::from(OsStr::from_bytes(words.next()?));
    if first.file_name() == Some(OsStr::new("env")) {
        let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
        return find(OsStr::from_bytes(program)).ok();
    }
    Some(first)
}

fn check_binary(path: &Path, bytes: &[u8]) -> Result<()> {
    let about = path.metadata().map_err(|cause| unreadable(path, &cause))?;
    let privileged = || privilege(about.mode(), about.uid(), about.gid());
    let capable = || std::fs::File::open(path).ok().and_then(|file| capabilities(&file.into()));
    match reason_against(bytes).or_else(privileged).or_else(capable) {
        Some(why) => Err(refused(path, why)),
        None => Ok(()),
    }
}

/// Why the loader would ignore a preload library for this file.
fn privilege(bits: u32, owner: u32, group: u32) -> Option<&'static str> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let changes_user = bits & 0o4000 != 0 && owner != own.0;
    let changes_group = bits & 0o2000 != 0 && group != own.1;
    (changes_user || changes_group)
        .then_some("it is setuid or setgid, and such programs load no preload library")
}

/// The same for capabilities that the file gives to an ordinary user.
fn capabilities(file: &OwnedFd) -> Option<&'static str> {
    let mut value = [0; 64];
    let has_some = rustix::fs::fgetxattr(file, "security.capability", &mut value).is_ok();
    (has_some && !rustix::process::geteuid().is_root())
        .then_some("it has file capabilities, and such programs load no preload library")
}

/// Why this binary cannot be watched, from its bytes.
fn reason_against(bytes: &[u8]) -> Option<&'static str> {
    if !bytes.starts_with(ELF_MAGIC) {
        return Some("it is neither an ELF binary nor a script with an interpreter");
    }
    if bytes.get(4) != Some(&ELF_CLASS_64) {
        return Some(NOT_64_BIT);
    }
    let Some(segments) = segments(bytes) else { return Some("its program headers are damaged") };
    if let Some(why) = linkage(&segments, |segment| segment.bytes(bytes)) {
        return Some(why);
    }
    let code = segments.iter().filter(|segment| segment.kind == PT_LOAD && segment.flags & EXECUTABLE != 0);
    for segment in code {
        match segment.bytes(bytes) {
            None => return Some("its code lies behind the end of its file"),
            Some(code) if calls_kernel(code) => {
                return Some("it calls the kernel itself, around the C library");
            }
            Some(_) => {}
        }
    }
    None
}

struct Segment {
    kind: u32,
    flags: u32,
    offset: usize,
    size: usize,
}

impl Segment {
    /// What the file has of the segment; none where it begins behind the file's end.
    fn bytes<'file>(&self, file: &'file [u8]) -> Option<&'file [u8]> {
        let rest = file.get(self.offset..)?;
        Some(part(rest, ..self.size.min(rest.len())))
    }
}

fn segments(bytes: &[u8]) -> Option<Vec<Segment>> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let long = |at: usize| {
        usize::try_from(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?)).ok()
    };
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let (table, size, count) = (long(32)?, half(54)?, half(56)?);
    (0..count)
        .map(|number| {
            let at = table.checked_add(number.checked_mul(size)?)?;
            Some(Segment {
                kind: word(at)?,
                flags: word(at + 4)?,
                offset: long(at + 8)?,
                size: long(at + 32)?,
            })
        })
        .collect()
}

/// The note of Go's linker: name length 4, the name "Go".
fn is_go_note(note: &[u8]) -> bool {
    note.windows(16).any(|part| part.starts_with(&[4, 0, 0, 0]) && part.ends_with(b"Go\0\0"))
}

/// Whether the code loads the number of a file-changing call and enters the kernel: `mov eax, number`, other registers
/// loaded, `syscall`. The bytes of such a sequence hardly occur by chance; those of `syscall` alone do.
#[cfg(target_arch = "x86_64")]
pub fn calls_kernel(code: &[u8]) -> bool {
    /// More than six arguments take.
    const SEQUENCE_BYTES_MAX: usize = 64;
    /// Looked through at once for the call's two bytes, which the compiler makes a comparison of many bytes at a time.
    const BLOCK_BYTES: usize = 4096;
    (0..code.len()).step_by(BLOCK_BYTES).any(|start| {
        let block = part(code, start..(start + BLOCK_BYTES + 1).min(code.len()));
        let next = part(block, 1.min(block.len())..);
        let is_call = |(first, second): (&u8, &u8)| (*first == SYSCALL[0]) & (*second == SYSCALL[1]);
        if !block.iter().zip(next).fold(false, |found, two| found | is_call(two)) {
            return false;
        }
        let mut calls = block.iter().zip(next).enumerate().filter(|(_, two)| is_call(*two));
        calls.any(|(at, _)| {
            let end = start + at;
            let before = part(code, end.saturating_sub(SEQUENCE_BYTES_MAX)..end + SYSCALL.len());
            (0..before.len()).any(|at| loads_and_calls(part(before, at..)))
        })
    })
}

#[cfg(target_arch = "x86_64")]
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Whether the code begins with the load of the number of a file-changing call and comes, over loads of other registers alone, to
/// its end with the call.
#[cfg(target_arch = "x86_64")]
fn loads_and_calls(code: &[u8]) -> bool {
    let Some((number, rest)) = code.strip_prefix(&[0xb8]).and_then(|rest| rest.split_first_chunk()) else {
        return false;
    };
    let mut rest = rest;
    while rest != SYSCALL {
        let Some(length) = length_of_load(rest) else { return false };
        let Some(behind) = rest.get(length..) else { return false };
        rest = behind;
    }
    CHANGING_CALLS.contains(&u32::from_le_bytes(*number))
}

/// The length of an instruction that loads a register: `mov`, `lea`, `xor`, `movzx` and their kin.
#[cfg(target_arch = "x86_64")]
fn length_of_load(code: &[u8]) -> Option<usize> {
    let prefix = usize::from(matches!(code.first()?, 0x40..=0x4f));
    let is_wide = prefix == 1 && code.first()? & 8 != 0;
    let long_operand = |at: usize| Some(at + operand_bytes(code.get(at..)?)?);
    match code.get(prefix)? {
        // Loads of the accumulator itself are another number.
        0xb8 if prefix == 0 => None,
        0xb8..=0xbf => Some(prefix + if is_wide { 9 } else { 5 }),
        0x89 | 0x8b | 0x8d | 0x31 | 0x33 | 0x63 => long_operand(prefix + 1),
        0xc7 => Some(long_operand(prefix + 1)? + 4),
        0x0f if matches!(code.get(prefix + 1)?, 0xb6 | 0xb7 | 0xbe | 0xbf) => long_operand(prefix + 2),
        _ => None,
    }
}

/// The bytes that the operands of an instruction take, from its byte of modes on.
#[cfg(target_arch = "x86_64")]
fn operand_bytes(code: &[u8]) -> Option<usize> {
    let mode = code.first()?;
    let (kind, register) = (mode >> 6, mode & 7);
    if kind == 3 {
        return Some(1);
    }
    let has_scale = register == 4;
    let base = if has_scale { code.get(1)? & 7 } else { register };
    let displacement = match kind {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(1 + usize::from(has_scale) + displacement)
}

/// Other processors: recognised by their linkage alone.
#[cfg(not(target_arch = "x86_64"))]
pub fn calls_kernel(_code: &[u8]) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_binary_is_refused_and_never_panics() {
        for bytes in [&b""[..], b"\x7fELF", b"\x7fELF\x02", &[0x7f; 100], b"plain text"] {
            assert!(reason_against(bytes).is_some(), "{bytes:?}");
        }
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in (0..own.len().min(4096)).step_by(7) {
            let _ = reason_against(&own[..length]);
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        assert_eq!(interpreter(b"#!/bin/sh -e\necho"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"#! /usr/bin/env -S A=1 sh\n"), find(OsStr::new("sh")).ok());
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    #[test]
    fn the_shell_can_be_watched_and_a_program_with_its_own_system_calls_cannot() {
        check(OsStr::new("sh")).unwrap();
        // This test carries `rustix`, which calls the kernel without the C library.
        let refusal = check(std::env::current_exe().unwrap().as_os_str()).unwrap_err().to_string();
        assert!(refusal.contains("calls the kernel itself"), "{refusal}");
    }
}
