//! Two mounts of one pool: what one has closed, the other opens.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use stdchk_tests::{Pool, wait_until, within};

/// Replacements in turn, of every kind; the full number for a stress is a thousand.
const CYCLES: usize = 120;

/// Works in a folder as it is told, line by line, in a process of its own: replaces `f` by some kind of replacement and
/// answers once it is closed, or opens `f` and answers with what is in it.
const WORKER: &str = r"
import ctypes, os, sys
def write(name, body): open(name, 'wb').write(body)
def gone(name):
    try: os.unlink(name)
    except FileNotFoundError: pass
for line in sys.stdin:
    kind, body = line.split()
    body = body.encode() * 1000
    if kind == 'inplace': write('f', body)
    elif kind == 'rename': write('t', body); os.rename('t', 'f')
    elif kind == 'backup': write('t', body); os.rename('f', 'backup'); os.rename('t', 'f')
    elif kind == 'anew': os.unlink('f'); write('f', body)
    elif kind == 'exchange':
        write('t', body)
        assert ctypes.CDLL(None).renameat2(-100, b't', -100, b'f', 2) == 0
    elif kind == 'link': write('t', body); gone('hard'); os.link('f', 'hard'); os.rename('t', 'f')
    elif kind == 'append': open('f', 'ab').write(body)
    elif kind == 'read':
        text = open('f', 'rb').read().decode()
        print(text[-8:], len(text), flush=True); continue
    print('done', flush=True)
";
const KINDS: [&str; 6] = ["inplace", "rename", "backup", "anew", "exchange", "link"];

/// A pool that is mounted twice.
struct Twice {
    pool: Pool,
    second: Child,
    point: PathBuf,
}

impl Twice {
    fn up() -> Self {
        let pool = Pool::mounted(2);
        let point = pool.path("second");
        fs::create_dir(&point).unwrap();
        let second = pool.command(&["mount", point.to_str().unwrap()]).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the second mount is there", || is_mounted(&point));
        Self { pool, second, point }
    }

    fn workers(&self) -> [Worker; 2] {
        [self.pool.mount_point(), self.point.clone()].map(|folder| Worker::start(&folder))
    }
}

impl Drop for Twice {
    fn drop(&mut self) {
        // The command ends by itself once nothing is mounted any more.
        rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH).unwrap();
        if std::thread::panicking() {
            // A second failure would end all tests.
            let _ = self.second.kill();
        }
        wait_until("the second mount's command ends", || self.second.try_wait().unwrap().is_some());
    }
}

fn is_mounted(point: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(point.to_str().unwrap())
}

struct Worker {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new("python3");
        let command =
            command.args(["-c", WORKER]).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn tell(&mut self, kind: &str, body: usize) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{kind} {body:08}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn replace(&mut self, kind: &str, body: usize) {
        self.tell(kind, body);
        assert_eq!(self.answer(), "done", "{kind} of {body}");
    }

    /// The last eight bytes and the length of what an open finds.
    fn read(&mut self) -> String {
        self.tell("read", 0);
        self.answer()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

#[test]
fn what_one_mount_has_closed_is_what_the_other_opens_however_it_was_replaced() {
    let mounts = Twice::up();
    let [mut one, mut other] = mounts.workers();
    within("replacing in turn", move || {
        one.replace("inplace", 0);
        for cycle in 0..CYCLES {
            // Whole rounds by one of them, then rounds in which they take turns.
            let (writer, reader) = match (cycle / KINDS.len()).is_multiple_of(2) || cycle.is_multiple_of(2) {
                true => (&mut one, &mut other),
                false => (&mut other, &mut one),
            };
            let kind = KINDS[(cycle + cycle / KINDS.len()) % KINDS.len()];
            writer.replace(kind, cycle);
            assert_eq!(reader.read(), format!("{cycle:08} 8000"), "after `{kind}`, cycle {cycle}");
        }
    });
}

#[test]
fn two_mounts_that_append_in_turn_lose_nothing() {
    let mounts = Twice::up();
    let mut workers = mounts.workers();
    within("appending in turn", move || {
        workers[0].replace("inplace", 0);
        for cycle in 1..CYCLES / 2 {
            workers[cycle % 2].replace("append", cycle);
            assert_eq!(workers[(cycle + 1) % 2].read(), format!("{cycle:08} {}", 8000 * (cycle + 1)));
        }
    });
}

#[test]
fn a_file_that_is_replaced_all_the_time_can_always_be_opened_and_is_whole() {
    let mounts = Twice::up();
    let [mut one, mut other] = mounts.workers();
    within("replacing and opening at the same time", move || {
        one.replace("inplace", 0);
        let closed = Arc::new(AtomicUsize::new(0));
        let last_closed = Arc::clone(&closed);
        let writer = std::thread::spawn(move || {
            for cycle in 1..CYCLES {
                one.replace(["inplace", "rename", "link"][cycle % 3], cycle);
                last_closed.store(cycle, Ordering::Release);
            }
        });
        while !writer.is_finished() {
            let at_least = closed.load(Ordering::Acquire);
            let found = other.read();
            let (body, length) = found.split_once(' ').expect("an open failed");
            assert_eq!(length, "8000", "an open found a part");
            assert!(body.parse::<usize>().unwrap() >= at_least, "{body} after {at_least} was closed");
        }
        writer.join().unwrap();
        assert_eq!(other.read(), format!("{:08} 8000", CYCLES - 1));
    });
}

/// Empties or makes one name, writes to it, renames it to the other and reads what has that name then; another process does
/// the same the other way round. What is read is one writer's bytes and as many as that wrote, or it was made just now.
const SWAPS: &str = r"
import os, random, sys
(writes, reads), chance, whole = sys.argv[1:3], random.Random(sys.argv[1]), 0
for cycle in range(int(sys.argv[3])):
    size = chance.randrange(32, 200_000)
    body = (f'{writes}{cycle:08}{size:08}' * (size // 17 + 1)).encode()[:size]
    try:
        with open(writes, 'wb') as file: file.write(body)
        os.rename(writes, reads)
        with open(reads, 'rb') as file: found, size = file.read(), os.fstat(file.fileno()).st_size
    except FileNotFoundError: continue
    if not found: continue
    begins = found[:17]
    assert int(begins[9:]) == len(found) == size, (cycle, begins, len(found), size)
    assert (begins * (size // 17 + 1))[:size] == found, (cycle, begins, size)
    whole += 1
assert whole > 0
";

#[test]
fn names_that_two_mounts_make_anew_and_swap_never_show_the_size_of_another_file() {
    let mounts = Twice::up();
    let folders = [mounts.pool.mount_point(), mounts.point.clone()];
    within("swapping names", move || {
        let swaps = |(folder, (writes, reads)): (&PathBuf, (&str, &str))| {
            let mut command = Command::new("python3");
            let command = command.args(["-c", SWAPS, writes, reads, &CYCLES.to_string()]).current_dir(folder);
            command.spawn().unwrap()
        };
        let running: Vec<_> = folders.iter().zip([("p", "q"), ("q", "p")]).map(swaps).collect();
        for mut child in running {
            assert!(child.wait().unwrap().success());
        }
    });
}

/// Writes one file in place, or reads it, for some seconds. No content has a byte of zero, and every `open()` succeeds.
const IN_PLACE: &str = r"
import os, random, sys, time
chance, end, done = random.Random(sys.argv[1]), time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end:
    if sys.argv[1].startswith('write'):
        size = chance.choice([16, 100, 4096, 5000, 65536, 100_000])
        with open('f', 'wb', buffering=0) as file: file.write(bytes([chance.randrange(1, 256)]) * size)
    else:
        with open('f', 'rb', buffering=0) as file: found = file.read(1 << 20)
        assert b'\0' not in found, (len(found), found.index(0), found.count(0))
    done += 1
assert done > 0
";

#[test]
fn a_file_that_two_mounts_write_in_place_never_shows_zeros_that_nobody_wrote() {
    let mounts = Twice::up();
    let folders = [mounts.pool.mount_point(), mounts.point.clone()];
    fs::write(folders[0].join("f"), "begun").unwrap();
    within("writing in place", move || {
        let mut running = Vec::new();
        for (number, folder) in folders.iter().enumerate() {
            for what in ["write", "read"] {
                let mut command = Command::new("python3");
                let told = [IN_PLACE, &format!("{what}{number}"), "8"];
                running.push(command.arg("-c").args(told).current_dir(folder).spawn().unwrap());
            }
        }
        for mut child in running {
            assert!(child.wait().unwrap().success());
        }
    });
}

#[test]
fn commands_find_what_a_name_leads_to_while_other_files_take_its_place() {
    let pool = Pool::mounted(2);
    let content = |cycle: usize| format!("{cycle:08}").repeat(500).into_bytes();
    let (folder, done) = (pool.at("app"), Arc::new(AtomicBool::new(false)));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("x"), content(0)).unwrap();
    let ends = Arc::clone(&done);
    let writer = std::thread::spawn(move || {
        for cycle in (0..).take_while(|_| !ends.load(Ordering::Relaxed)) {
            fs::write(folder.join("t"), content(cycle)).unwrap();
            fs::rename(folder.join("t"), folder.join("x")).unwrap();
        }
    });
    for cycle in 0..CYCLES / 2 {
        let found = pool.get("app/x");
        assert!(found.len() == 4000 && found[..8].repeat(500) == found, "{} bytes", found.len());
        // Those that look at every version.
        if cycle < 10 {
            for asks in
                [&["stat", "app/x"][..], &["verify", "app"], &["du", "app"], &["ls", "--versions", "app"]]
            {
                pool.ok(asks);
            }
        }
    }
    done.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}
