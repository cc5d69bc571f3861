//! Files that go past the kernel's page cache because the ones of their name before were written in large pieces: which do,
//! and that programs see nothing of it but the speed (`docs/SEMANTICS.md`, "Past the page cache").

use std::process::{Command, Output};

use serde_json::Value;
use stdchk_tests::{Pool, Setup, random_bytes, wait_until, within};

const MIB: usize = 1 << 20;

/// Writes a new file from another one in pieces, with a pause before the last; prints when the last was written, what the file says
/// of its time once it is closed, and how many of its pages are in the page cache then.
const WRITER: &str = r#"
import ctypes, json, mmap, os, sys, time
source, path, piece = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = open(source, "rb").read()
file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
created = time.time_ns()
for start in range(0, len(data) - piece, piece):
    os.write(file, data[start : start + piece])
time.sleep(0.1)
last = time.time_ns()
os.write(file, data[len(data) - piece :])
size = os.fstat(file).st_size
os.close(file)
# A machine under load may take its time to tell that it was the last close.
while (mtime := os.stat(path).st_mtime_ns) < last - 50_000_000 and time.time_ns() < last + 5_000_000_000:
    time.sleep(0.1)
with open(path, "rb") as read:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    view = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, read.fileno(), ctypes.c_long(0))
    pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
    if libc.mincore(ctypes.c_void_p(view), ctypes.c_size_t(size), pages):
        raise OSError(ctypes.get_errno(), "mincore")
cached = sum(page & 1 for page in pages)
print(json.dumps({"created": created, "last": last, "mtime": mtime, "cached": cached, "size": size}))
"#;

/// Two descriptors of one file, of which one reads what the other has just written; and mappings of both kinds.
const READER_BESIDE: &str = r#"
import mmap, os, sys
path = sys.argv[1]
writer = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
reader = os.open(path, os.O_RDONLY)
step = 300_000
for number in range(24):
    piece = bytes([number + 1]) * step
    # What is behind the end first: none of it may be remembered.
    assert os.pread(reader, step, number * step) == b""
    assert os.pwrite(writer, piece, number * step) == step
    assert os.pread(reader, step, number * step) == piece, number
    assert os.fstat(reader).st_size == (number + 1) * step
shared = mmap.mmap(writer, 4096)
private = mmap.mmap(reader, 4096, access=mmap.ACCESS_COPY)
shared[:3] = b"abc"
assert os.pread(reader, 4, 0) == b"abc\x01"
os.pwrite(writer, b"xy", 1)
assert shared[:4] == b"axy\x01" and private[:4] == b"axy\x01"
shared.close()
private.close()
os.close(writer)
with open(path, "r+b") as again:
    assert again.read(4) == os.pread(reader, 4, 0) == b"axy\x01"
"#;

/// A file is read while it takes the place of another one, and while another one takes its place.
const RENAMED_BESIDE: &str = r#"
import os, sys
folder = sys.argv[1]
temporary, final = f"{folder}/x2", f"{folder}/x3"
def put(path, content):
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    os.write(file, content)
    return file
for flags in (os.O_RDONLY, os.O_RDWR):
    for late in (False, True):
        os.close(put(final, b"old"))
        writer = put(temporary, b"newer")
        if not late:
            os.close(writer)
        reader = os.open(temporary, os.O_RDONLY)
        os.rename(temporary, final)
        if late:
            os.close(writer)
        other = os.open(final, flags)
        assert os.read(other, 9) == b"newer"
        os.close(put(temporary, b"newest"))
        os.rename(temporary, final)
        with open(final, "rb") as newest:
            assert newest.read() == b"newest"
        assert os.read(reader, 9) == b"newer"
        os.fchmod(reader, 0o600)
        os.close(other)
        os.close(reader)
"#;

/// A descriptor stays open that was duplicated before the first was closed: prints how long others take to look at the file, s.
const STAYS_OPEN: &str = r#"
import os, sys, time
path = sys.argv[1]
file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
os.write(file, b"x" * (1 << 20))
other = os.dup(file)
os.close(file)
start = time.monotonic()
for _ in range(100):
    os.stat(path)
print(time.monotonic() - start)
"#;

fn python(script: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.arg("-c").arg(script).args(arguments);
    let output = within("a Python program", move || command.output().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Writes a new file in pieces of this size; what the program says of it.
fn write(pool: &Pool, name: &str, content: &[u8], piece: usize) -> Value {
    let (source, path) = (pool.file("source", content), pool.at(name));
    let arguments = [source.as_str(), path.to_str().unwrap(), &piece.to_string()];
    let said: Value = serde_json::from_slice(&python(WRITER, &arguments).stdout).unwrap();
    assert_eq!(said["size"], content.len());
    assert!(pool.get(name) == content, "{name}");
    said
}

/// Has files of this name's series written in large pieces, so that the next new one goes past the page cache.
pub fn learn(pool: &Pool, name: &str) {
    let path = pool.at(name);
    let content = random_bytes(8 * MIB, 1);
    assert_ne!(write(pool, name, &content, MIB)["cached"], 0, "the first goes through the page cache");
    std::fs::remove_file(path).unwrap();
}

/// Whether the time is of the last write, but for the ticks of the kernel's clock; the pause before it is longer.
fn is_of_last_write(said: &Value) -> bool {
    const TICKS_NS: u64 = 50_000_000;
    said["mtime"].as_u64().unwrap() + TICKS_NS >= said["last"].as_u64().unwrap()
}

#[test]
fn a_series_that_is_written_in_large_pieces_goes_past_the_page_cache_with_true_times() {
    let pool = Setup::of(2).up();
    let content = random_bytes(8 * MIB, 2);
    learn(&pool, "ckpt.1");
    for name in ["ckpt.2", "ckpt.30"] {
        let said = write(&pool, name, &content, MIB);
        assert_eq!(said["cached"], 0, "{name}");
        assert!(is_of_last_write(&said), "{said}");
    }
    // Another name is another series, and one that turns out to be written in small pieces is no longer of this kind.
    assert_ne!(write(&pool, "other.1", &content, 4096)["cached"], 0);
    assert_ne!(write(&pool, "other.2", &content, 4096)["cached"], 0);
    assert_eq!(write(&pool, "ckpt.4", &content, 4096)["cached"], 0);
    let said = write(&pool, "ckpt.5", &content, MIB);
    assert_ne!(said["cached"], 0);
    assert!(is_of_last_write(&said), "{said}");
}

#[test]
fn descriptors_and_mappings_of_a_file_past_the_page_cache_see_what_is_written_at_once() {
    let pool = Setup::of(2).up();
    learn(&pool, "x1");
    python(READER_BESIDE, &[pool.at("x2").to_str().unwrap()]);
    assert_eq!(pool.get("x2")[..4], *b"axy\x01");
}

#[test]
fn a_complete_local_write_past_the_page_cache_is_read_at_once_and_has_its_time_when_it_is_pushed() {
    let pool = Setup::of(2).up();
    std::fs::create_dir(pool.at("app")).unwrap();
    learn(&pool, "app/x1");
    pool.policy("app", &["protocol=clw"]);
    let content = random_bytes(8 * MIB, 3);
    let (source, path) = (pool.file("source", &content), pool.at("app/x2"));
    let arguments = [source.as_str(), path.to_str().unwrap(), &MIB.to_string()];
    let said: Value = serde_json::from_slice(&python(WRITER, &arguments).stdout).unwrap();
    assert!(std::fs::read(&path).unwrap() == content);
    let last = said["last"].as_u64().unwrap();
    wait_until("it is pushed and has its time", || {
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
        since.as_nanos() >= u128::from(last)
    });
    assert!(pool.get("app/x2") == content);
}

#[test]
fn a_file_that_is_open_is_renamed_over_another_and_replaced_without_errors_for_any_reader() {
    let pool = Setup::of(1).up();
    let run = |folder| {
        std::fs::create_dir(pool.at(folder)).unwrap();
        python(RENAMED_BESIDE, &[pool.at(folder).to_str().unwrap()]);
    };
    run("through");
    learn(&pool, "x1");
    run("past");
}

#[test]
fn a_close_that_leaves_a_descriptor_open_holds_up_one_look_at_the_file_and_no_more() {
    let pool = Setup::of(1).up();
    learn(&pool, "x1");
    let said = python(STAYS_OPEN, &[pool.at("x2").to_str().unwrap()]);
    let seconds: f64 = String::from_utf8(said.stdout).unwrap().trim().parse().unwrap();
    // A hundred waits would take longer.
    assert!(seconds < 10.0, "{seconds} s");
}
