//! What the machine itself takes for each thing that must be done with every byte, and how near the mount comes to the sum.
//!
//! All parties share one machine here, so the processors are the bound, or the disk: what a mount that does nothing takes,
//! a copy into the window, two hashes (I3: the writer and the benefactor each look), the network and the disk. On the
//! way back there is one hash, the reader's.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;
use serde::Serialize;
use stdchk_model::ChunkId;

use crate::Error;
use crate::bench::{BENEFACTORS, BLOCK, Bench, WINDOW};
use crate::cpu;
use crate::null::NullMount;
use crate::row::{Row, section};
use crate::section::Section;
use crate::stock::Stock;
use crate::transfer::{self, Content};

/// Alignment in memory that direct I/O wants at most, bytes.
const ALIGNMENT: usize = 4096;
/// Memory that is worked through again and again, bytes: more than the caches of a processor.
const WORKED_THROUGH: u64 = 64 << 20;

const COPY: &str = "copy in memory";
const HASH: &str = "hash of chunks (BLAKE3)";
const SOCKET: &str = "a socket of the machine";
const DISK_WRITE: &str = "disk, direct writes and sync";
const DISK_READ: &str = "disk, direct reads";
const NULL_WRITE: &str = "do-nothing mount, write";
const NULL_PAST_CACHE: &str = "the same, past the page cache";
const NULL_READ: &str = "do-nothing mount, read, cold";
const OAB: &str = "mount, OAB";
const ASB: &str = "mount, ASB";
const COLD: &str = "mount, read, cold";

/// What must be done for a write and for a cold read, each with how often.
const OF_WRITE: &[(&str, f64)] =
    &[(NULL_PAST_CACHE, 1.0), (COPY, 1.0), (HASH, 2.0), (SOCKET, 1.0), (DISK_WRITE, 1.0)];
const OF_READ: &[(&str, f64)] = &[(NULL_READ, 1.0), (HASH, 1.0), (SOCKET, 1.0), (DISK_READ, 1.0)];
/// What the mount does, and what must be done for it.
const SUMS: [(&str, &[(&str, f64)]); 3] = [(OAB, OF_WRITE), (ASB, OF_WRITE), (COLD, OF_READ)];

/// Something that is done with every byte of a file, in seconds; the processes that do it beside this one.
struct Part<'a> {
    name: &'static str,
    pids: Vec<u32>,
    run: Box<dyn FnMut() -> Result<f64, Error> + 'a>,
}

/// Measures all of them in turn.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let bytes = bench.sizes.file_bytes;
    let null = NullMount::start(&bench.own, &bench.dir, "write-back")?;
    let direct = NullMount::start(&bench.own, &bench.dir, "direct")?;
    let pool = bench.up(BENEFACTORS, WINDOW)?;
    let stored = pool.folder("oab", &["redundancy=replicate:1", "close=stored"])?.join("run.N0.T0");
    let durable = pool.folder("asb", &["redundancy=replicate:1", "close=durable"])?.join("run.N0.T0");
    let files = tempfile::Builder::new().prefix("bounds-").tempdir_in(&bench.dir)?;
    let (disk, nothing) = (files.path().join("disk"), null.path().join("run.N0.T0"));
    let past_cache = direct.path().join("run.N0.T0");
    let here = |name, run| Part { name, pids: Vec::new(), run };
    let writes = |name, pids, path, salt| Part { name, pids, run: written(bench, path, salt) };
    let reads = |name, pids, path| Part { name, pids, run: Box::new(move || read_cold(path)) };
    let mut parts = [
        here(COPY, Box::new(|| copy(bytes))),
        here(HASH, Box::new(|| hash(bytes))),
        here(SOCKET, Box::new(|| socket(bytes))),
        here(DISK_WRITE, Box::new(|| write_direct(&disk, bytes))),
        here(DISK_READ, Box::new(|| read_direct(&disk, bytes))),
        writes(NULL_WRITE, vec![null.pid()], &nothing, 0),
        writes(NULL_PAST_CACHE, vec![direct.pid()], &past_cache, 0),
        reads(NULL_READ, vec![null.pid()], &nothing),
        writes(OAB, pool.pids(""), &stored, 1),
        writes(ASB, pool.pids(""), &durable, 2),
        reads(COLD, pool.pids(""), &durable),
    ];
    let mut rows: Vec<Row> =
        parts.iter().map(|part| Row::new(part.name, BENEFACTORS, WINDOW, BLOCK)).collect();
    for round in 0..=bench.sizes.rounds {
        for (part, row) in parts.iter_mut().zip(&mut rows) {
            rustix::fs::sync();
            let before = cpu::seconds_with(&part.pids);
            let seconds = (part.run)()?;
            if round > 0 {
                row.add(bytes, seconds, cpu::seconds_with(&part.pids) - before);
            }
        }
    }
    let sums = SUMS.map(|(name, parts)| Sum::of(name, parts, &rows));
    let mut section = section(&rows, Vec::new())?;
    section.table.push_str(&table(&sums));
    section.rows = serde_json::json!({ "rows": rows, "sums": sums });
    Ok(section)
}

/// How near something comes to the sum of what must be done for it.
#[derive(Serialize)]
struct Sum {
    name: &'static str,
    /// CPU seconds per 10^9 bytes of its parts, added up, and of itself.
    parts_cpu: f64,
    cpu: f64,
    /// Megabytes per second that the parts allow, and how much of it is reached.
    bound_rate: f64,
    reached: f64,
}

impl Sum {
    fn of(name: &'static str, parts: &[(&str, f64)], rows: &[Row]) -> Self {
        let row = |name: &str| rows.iter().find(|row| row.is(name));
        let cpu = |name: &str| row(name).map_or(f64::NAN, Row::cpu_per_gigabyte);
        let rate = |name: &str| row(name).map_or(f64::NAN, Row::rate);
        let parts_cpu: f64 = parts.iter().map(|(part, times)| cpu(part) * times).sum();
        let slowest = parts.iter().map(|(part, _)| rate(part)).fold(f64::MAX, f64::min);
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as f64;
        let bound_rate = (processors / parts_cpu * 1000.0).min(slowest);
        Self { name, parts_cpu, cpu: cpu(name), bound_rate, reached: rate(name) / bound_rate }
    }
}

fn table(sums: &[Sum]) -> String {
    let mut text = format!(
        "\n{:36} {:>10} {:>10} {:>10} {:>8}\n",
        "CPU s/GB:", "of parts", "of itself", "MB/s bound", "reached"
    );
    for Sum { name, parts_cpu, cpu, bound_rate, reached } in sums {
        let _ = writeln!(text, "{name:36} {parts_cpu:>10.2} {cpu:>10.2} {bound_rate:>10.0} {reached:>8.2}");
    }
    text.push_str(
        "\nParts: what must be done with each byte, added up: the do-nothing mount past the page cache, a copy into the window, two hashes,
a socket of the machine and the disk; on the way back the do-nothing mount, one hash, a socket and the disk. Bound: all processors do that and nothing else, or
the slowest part alone.\n",
    );
    text
}

/// Memory, and how often it must be worked through for so many bytes.
fn memory(bytes: u64, with: u8) -> Result<(Vec<u8>, u64), Error> {
    let length = bytes.clamp(BLOCK as u64, WORKED_THROUGH);
    Ok((vec![with; usize::try_from(length)?], bytes.div_ceil(length)))
}

fn copy(bytes: u64) -> Result<f64, Error> {
    let ((from, times), (mut to, _)) = (memory(bytes, 7)?, memory(bytes, 1)?);
    let started = Instant::now();
    for _ in 0..times {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    Ok(started.elapsed().as_secs_f64())
}

fn hash(bytes: u64) -> Result<f64, Error> {
    let (memory, times) = memory(bytes, 7)?;
    let started = Instant::now();
    for _ in 0..times {
        for chunk in memory.chunks(BLOCK) {
            std::hint::black_box(ChunkId::of(chunk));
        }
    }
    Ok(started.elapsed().as_secs_f64())
}

/// One connection, a chunk at a time.
fn socket(bytes: u64) -> Result<f64, Error> {
    let (mut to, mut from) = UnixStream::pair()?;
    let (sent, mut received) = (vec![7; BLOCK], vec![0; BLOCK]);
    let started = Instant::now();
    let sender = std::thread::spawn(move || (0..blocks(bytes)).try_for_each(|_| to.write_all(&sent)));
    (0..blocks(bytes)).try_for_each(|_| from.read_exact(&mut received))?;
    sender.join().map_err(|_| Error("the sender ended early".to_owned()))??;
    Ok(started.elapsed().as_secs_f64())
}

fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK as u64)
}

/// Writes a file past the page cache, one thread for each benefactor, and makes it durable.
fn write_direct(path: &Path, bytes: u64) -> Result<f64, Error> {
    let file = open_direct(OpenOptions::new().write(true).create(true).truncate(true), path)?;
    let started = Instant::now();
    at_a_time(bytes, |block, at| file.write_all_at(block, at))?;
    file.sync_data()?;
    Ok(started.elapsed().as_secs_f64())
}

/// Reads it back in the same way.
fn read_direct(path: &Path, bytes: u64) -> Result<f64, Error> {
    let file = open_direct(OpenOptions::new().read(true), path)?;
    let started = Instant::now();
    at_a_time(bytes, |block, at| file.read_exact_at(block, at))?;
    Ok(started.elapsed().as_secs_f64())
}

/// Where the file system takes no direct I/O the page cache is part of the cost, as it is for benefactors.
fn open_direct(options: &OpenOptions, path: &Path) -> Result<File, Error> {
    let file = options.open(path)?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    let _ = rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT);
    Ok(file)
}

/// Does something with each block of so many bytes, by as many threads as there are benefactors.
fn at_a_time(bytes: u64, work: impl Fn(&mut [u8], u64) -> std::io::Result<()> + Sync) -> Result<(), Error> {
    let turn = |first: usize| -> std::io::Result<()> {
        let mut memory = vec![7; BLOCK + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let block = memory.get_mut(start..start + BLOCK).unwrap_or_default();
        (first as u64..blocks(bytes)).step_by(BENEFACTORS).try_for_each(|at| work(block, at * BLOCK as u64))
    };
    let turn = &turn;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..BENEFACTORS).map(|first| scope.spawn(move || turn(first))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Error("a thread on the disk ended early".to_owned()))??;
            Ok(())
        })
    })
}

/// A writer of one file, with content that nobody had before.
fn written<'a>(bench: &'a Bench, path: &'a Path, salt: u64) -> Box<dyn FnMut() -> Result<f64, Error> + 'a> {
    let mut stock = Stock::new();
    Box::new(move || {
        // The version before would stay in the pool.
        if path.exists() {
            std::fs::remove_file(path)?;
        }
        stock.renew();
        transfer::write(path, Content { salt, ..bench.content() }, &mut stock, false)
    })
}

fn read_cold(path: &Path) -> Result<f64, Error> {
    transfer::drop_caches()?;
    Ok(transfer::read(path)?.0)
}
