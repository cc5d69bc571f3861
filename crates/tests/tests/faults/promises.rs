//! What `docs/SEMANTICS.md` promises of a mount and only whole processes show: what closes make versions of, what is left
//! when a mount dies, and the errors of what isn't supported.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use stdchk_tests::{Pool, Setup, random_bytes, wait_until, within};

use crate::program::Writer;

const MIB: usize = 1 << 20;

/// Runs a Python program in a folder; it must succeed.
fn python(folder: &Path, script: &str) {
    let mut command = Command::new("python3");
    command.args(["-c", script]).current_dir(folder);
    let output = within("a Python program", move || command.output().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Starts one that writes and stays, and waits until it says that it is ready.
fn start_python(pool: &Pool, script: &str) -> Child {
    let said = pool.path("said");
    let mut command = Command::new("python3");
    command.args(["-c", script]).current_dir(pool.mount_point()).stdin(Stdio::piped());
    let child = command.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the program is ready", || fs::read_to_string(&said).unwrap() == "ready\n");
    child
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// Number, size and state of each version.
fn shown(versions: &[Value]) -> Vec<(u64, u64, &str)> {
    let number = |version: &Value, key: &str| version[key].as_u64().unwrap();
    versions
        .iter()
        .map(|version| {
            (number(version, "version"), number(version, "size"), version["state"].as_str().unwrap())
        })
        .collect()
}

fn wait_for_versions(pool: &Pool, name: &str, expected: &[(u64, u64, &str)]) {
    wait_until(&format!("{name} has the versions {expected:?}"), || shown(&pool.versions(name)) == expected);
}

#[test]
fn a_program_that_copies_its_descriptor_before_it_writes_makes_one_version() {
    let pool = Pool::mounted(1);
    fs::write(pool.at("x"), b"old").unwrap();
    wait_for_versions(&pool, "x", &[(1, 3, "closed")]);
    let mut dd = Writer::start(&pool.at("x"), &[]);
    dd.feed(&random_bytes(2 * MIB, 1));
    wait_until("dd has written", || fs::metadata(pool.at("x")).unwrap().len() >= MIB as u64);
    assert_eq!(shown(&pool.versions("x")), [(1, 3, "closed")]);
    assert_eq!(pool.get("x"), b"old");
    assert!(dd.finish().accepted);
    // An empty version in between would have taken number 2, to be replaced by this one.
    wait_for_versions(&pool, "x", &[(1, 3, "closed"), (2, 2 * MIB as u64, "closed")]);
    let redirected = "printf one > y; printf two > y; sh -c 'printf three; printf four' > y";
    assert!(
        Command::new("bash")
            .args(["-c", redirected])
            .current_dir(pool.mount_point())
            .status()
            .unwrap()
            .success()
    );
    wait_for_versions(&pool, "y", &[(1, 3, "closed"), (2, 3, "closed"), (3, 9, "closed")]);
}

#[test]
fn a_file_that_is_emptied_and_closed_is_an_empty_version_when_close_returns() {
    let pool = Pool::mounted(1);
    for (number, script) in
        [": > x", "truncate -s 0 x", "python3 -c \"open('x', 'w')\"", "cp /dev/null x"].iter().enumerate()
    {
        fs::write(pool.at("x"), b"content").unwrap();
        assert!(
            Command::new("bash")
                .args(["-c", script])
                .current_dir(pool.mount_point())
                .status()
                .unwrap()
                .success()
        );
        let versions = pool.versions("x");
        let last = shown(&versions).last().copied();
        assert_eq!(
            last.map(|(version, size, _)| (version, size)),
            Some((2 * number as u64 + 2, 0)),
            "{script}"
        );
        assert_eq!(pool.get("x"), b"", "{script}");
        assert_eq!(fs::metadata(pool.at("x")).unwrap().len(), 0);
    }
}

#[test]
fn a_new_file_is_an_empty_version_once_it_was_emptied_or_stored_and_none_when_it_was_only_made() {
    let pool = Pool::mounted(1);
    fs::create_dir(pool.at("app")).unwrap();
    pool.ok(&["policy", "set", "app", "ranks=4"]);
    let script = ": > app/a.N0.T1; truncate -s 0 app/a.N1.T1; python3 -c \"open('app/a.N2.T1', 'w')\"; touch app/only-made";
    let made = Command::new("bash").args(["-ec", script]).current_dir(pool.mount_point()).status().unwrap();
    assert!(made.success());
    pool.put(b"", "app/a.N3.T1");
    for rank in 0..4 {
        let name = format!("app/a.N{rank}.T1");
        wait_for_versions(&pool, &name, &[(1, 0, "closed")]);
    }
    assert_eq!(pool.json(&["latest", "app", "--json"])["members"].as_array().unwrap().len(), 4);
    assert_eq!((shown(&pool.versions("app/only-made")), pool.get("app/only-made")), (vec![], vec![]));
}

#[test]
fn an_emptied_file_whose_writer_goes_on_elsewhere_is_committed_with_its_last_descriptor() {
    let pool = Pool::mounted(1);
    fs::write(pool.at("x"), b"old").unwrap();
    let script = "import os,sys\nf=os.open('x',os.O_WRONLY|os.O_TRUNC)\ng=os.dup(f)\nos.close(f)\n\
        print('ready',flush=True)\nsys.stdin.read()\n";
    let child = start_python(&pool, script);
    assert_eq!(pool.get("x"), b"old");
    assert_eq!(fs::read(pool.at("x")).unwrap(), b"");
    end(child);
    wait_for_versions(&pool, "x", &[(1, 3, "closed"), (2, 0, "closed")]);
}

#[test]
fn the_lease_of_a_killed_mount_ends_its_files_as_interrupted_and_returns_their_space() {
    let pool = Setup::of(1).with("STDCHK_CLIENT_LEASE_MS", 3000).up();
    let script = "import os,sys\nf=open('x','wb',buffering=0)\nf.write(os.urandom(3000000))\nos.fsync(f)\n\
        f.write(b'lost'*1000000)\nprint('ready',flush=True)\nsys.stdin.read()\n";
    let child = start_python(&pool, script);
    assert_eq!(shown(&pool.versions("x")), [(1, 3_000_000, "open")]);
    pool.kill("mount");
    end(child);
    wait_for_versions(&pool, "x", &[(1, 3_000_000, "interrupted")]);
    wait_until("reserved space is back", || pool.shows(|status| status["space"]["reserved_bytes"] == 0));
    assert_eq!(pool.get("x").len(), 3_000_000);
}

#[test]
fn calls_wait_while_the_manager_is_away_and_nothing_is_lost() {
    let pool = Pool::mounted(2);
    let content = random_bytes(5 * MIB, 3);
    let mut dd = Writer::start(&pool.at("x"), &[]);
    dd.feed(&content[..2 * MIB]);
    pool.kill("manager");
    dd.feed(&content[2 * MIB..]);
    let point = pool.mount_point();
    let maker = std::thread::spawn(move || fs::create_dir(point.join("made")));

    pool.ok(&["up"]);
    assert!(within("closing the file", move || dd.finish()).accepted);
    within("making the directory", move || maker.join().unwrap()).unwrap();
    assert!(pool.get("x") == content);
    assert!(fs::metadata(pool.at("made")).unwrap().is_dir());
}

#[test]
fn a_mount_that_is_told_to_end_commits_what_programs_have_handed_over() {
    let pool = Pool::mounted(1);
    let script = "import os,sys\nf=open('x','wb',buffering=0)\nf.write(b'a'*3000000)\nos.fsync(f)\n\
        print('ready',flush=True)\nsys.stdin.read()\n";
    let child = start_python(&pool, script);
    pool.ok(&["down"]);
    end(child);
    pool.ok(&["up"]);
    assert_eq!(shown(&pool.versions("x")), [(1, 3_000_000, "interrupted")]);
    assert!(pool.get("x") == vec![b'a'; 3_000_000]);
}

#[test]
fn pages_written_through_a_mapping_are_committed_when_the_pool_is_unmounted() {
    let pool = Pool::mounted(1);
    fs::write(pool.at("x"), vec![b'a'; 100_000]).unwrap();
    let script = "import mmap,os\nf=open('x','r+b')\nm=mmap.mmap(f.fileno(),0)\nf.close()\n\
        m[50000:50005]=b'dirty'\nos._exit(0)\n";
    python(&pool.mount_point(), script);
    pool.ok(&["down"]);
    pool.ok(&["up"]);
    assert_eq!(&pool.get("x")[50_000..50_005], b"dirty");
}

#[test]
fn copies_within_the_mount_are_whole_and_what_is_not_supported_says_so() {
    let pool = Pool::mounted(1);
    python(&pool.mount_point(), OPERATIONS);
}

/// Each operation with the error that the documents promise.
const OPERATIONS: &str = r"
import ctypes, errno, fcntl, os, socket, stat
def refused(code, call, *arguments):
    try: call(*arguments)
    except OSError as error: assert error.errno == code, (call, arguments, error)
    else: raise AssertionError((call, arguments))
body = os.urandom(3000000)
open('a', 'wb').write(body)
a, b = os.open('a', os.O_RDONLY), os.open('b', os.O_RDWR | os.O_CREAT)
os.ftruncate(b, 1000)
done = 0
while done < 2000000: done += os.copy_file_range(a, b, 2000000 - done, 500 + done, 1000 + done)
assert os.pread(b, 3000000, 0) == bytes(1000) + body[500:2000500]
refused(errno.EOPNOTSUPP, fcntl.ioctl, b, 0x40049409, a)  # FICLONE
assert os.lseek(a, 10, os.SEEK_DATA) == 10 and os.lseek(a, 10, os.SEEK_HOLE) == 3000000
refused(errno.EOPNOTSUPP, os.setxattr, 'a', 'user.x', b'1')
refused(errno.EOPNOTSUPP, os.getxattr, 'a', 'user.x')
os.mkfifo('pipe'); assert stat.S_ISFIFO(os.stat('pipe').st_mode)
refused(errno.EPERM, os.mknod, 'device', stat.S_IFCHR | 0o600, os.makedev(1, 3))
socket.socket(socket.AF_UNIX).bind('socket'); assert stat.S_ISSOCK(os.stat('socket').st_mode)
libc = ctypes.CDLL(None, use_errno=True)
def fallocate(mode): 
    if libc.fallocate(b, mode, ctypes.c_long(0), ctypes.c_long(4096)): raise OSError(ctypes.get_errno(), 'fallocate')
for mode in (0x08, 0x10, 0x20): refused(errno.EOPNOTSUPP, fallocate, mode)  # collapse, zero, insert
fallocate(0); fallocate(0x03)
assert os.pread(b, 4096, 0) == bytes(4096)
os.mkdir('folder')
refused(errno.EPERM, os.link, 'folder', 'other')
os.symlink('t' * 4095, 'long'); assert os.readlink('long') == 't' * 4095
refused(errno.ENAMETOOLONG, os.symlink, 't' * 4096, 'longer')
def whiteout():
    if libc.renameat2(-100, b'a', -100, b'c', 4): raise OSError(ctypes.get_errno(), 'renameat2')
refused(errno.EINVAL, whiteout)
for name in (b'caf\xe9',):
    refused(errno.EILSEQ, os.mkdir, name); refused(errno.EILSEQ, os.symlink, 'a', name)
    refused(errno.ENOENT, os.stat, name); refused(errno.ENOENT, os.open, name, os.O_RDONLY)
os.chmod('a', 0o4711); assert stat.S_IMODE(os.stat('a').st_mode) == 0o4711
pid = os.fork()
fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 100) if pid else None
if not pid:
    os._exit(0)
os.waitpid(pid, 0)
pid = os.fork()
if not pid:
    fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 110)
    refused(errno.EAGAIN, fcntl.lockf, b, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 105)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
before = os.stat('a').st_atime_ns
open('a', 'rb').read(); assert os.stat('a').st_atime_ns == before
status = os.stat('a'); assert status.st_blksize == 1 << 20 and status.st_blocks == -(-3000000 // 512)
";
