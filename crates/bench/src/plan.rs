//! What is measured, in which order.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stdchk_mount::{NullConfig, NullMode};

use crate::cpu;
use crate::data::Stock;
use crate::pool::LocalPool;
use crate::report::Row;
use crate::transfer::{self, Content};
use crate::{Error, Size};

/// Window of a pool where nothing else is said, bytes.
const WINDOW: u64 = 64 << 20;
/// Benefactors where nothing else is said; the paper's figures use four.
const BENEFACTORS: usize = 4;
/// Threads of the do-nothing mount, as many as the real one has.
const NULL_THREADS: usize = 4;
/// Application's writes where nothing else is said, bytes.
const BLOCK: usize = 1 << 20;

/// How much is written and how often.
pub struct Sizes {
    file_bytes: u64,
    rounds: usize,
    benefactors: &'static [usize],
    windows: &'static [u64],
    large_bytes: u64,
}

/// The sizes of each form of the benchmark.
pub fn sizes(size: Size) -> Sizes {
    match size {
        Size::Tiny => {
            Sizes { file_bytes: 8 << 20, rounds: 1, benefactors: &[2], windows: &[], large_bytes: 16 << 20 }
        }
        Size::Small => Sizes {
            file_bytes: 256 << 20,
            rounds: 3,
            benefactors: &[1, 2],
            windows: &[16 << 20],
            large_bytes: 1 << 30,
        },
        Size::Full => Sizes {
            file_bytes: 1 << 30,
            rounds: 5,
            benefactors: &[1, 2, 3, 5, 6, 7, 8],
            windows: &[16 << 20, 32 << 20, 128 << 20, 256 << 20],
            large_bytes: 4 << 30,
        },
    }
}

/// A run of the benchmark.
pub struct Bench {
    sizes: Sizes,
    dir: PathBuf,
    stdchk: PathBuf,
    own: PathBuf,
    only: String,
}

/// Serves a mount that throws bytes away until standard input ends.
pub fn serve_null(mount_point: &Path, mode: NullMode) -> Result<(), Error> {
    let config = NullConfig { mount_point: mount_point.to_owned(), mode, threads: NULL_THREADS };
    let mounted = stdchk_mount::mount_null(&config)?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(mounted.unmount()?)
}

/// The do-nothing mount, as a process of its own like the real one; it ends with its standard input.
struct NullMount {
    process: Child,
    mount_point: tempfile::TempDir,
}

impl NullMount {
    fn start(own: &Path, below: &Path, mode: &str) -> Result<Self, Error> {
        let mount_point = tempfile::Builder::new().prefix("null-").tempdir_in(below)?;
        let arguments = ["null", "--mode", mode];
        let process =
            Command::new(own).args(arguments).arg(mount_point.path()).stdin(Stdio::piped()).spawn()?;
        let null = Self { process, mount_point };
        let give_up = Instant::now() + Duration::from_secs(10);
        let outside = rustix::fs::stat(below)?.st_dev;
        while rustix::fs::stat(null.mount_point.path())?.st_dev == outside {
            if Instant::now() > give_up {
                return Err(Error("the do-nothing mount did not appear within 10 s".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(null)
    }

    fn path(&self) -> &Path {
        self.mount_point.path()
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let ended = self.process.wait();
        if !ended.is_ok_and(|status| status.success()) {
            eprintln!("stdchk-bench: the do-nothing mount did not end well");
        }
    }
}

/// A group of rows that is measured together.
type Measure = fn(&Bench, &mut Stock) -> Result<Vec<Row>, Error>;

/// One kind of transfer that is repeated.
struct Case<'a> {
    name: String,
    folder: PathBuf,
    pids: &'a [u32],
    content: Content,
    sync: bool,
}

impl Bench {
    /// A run with these sizes; `only`: measures whose name holds this text.
    pub fn new(sizes: Sizes, dir: PathBuf, stdchk: PathBuf, own: PathBuf, only: String) -> Self {
        Self { sizes, dir, stdchk, own, only }
    }

    /// Measures everything.
    pub fn run(&self) -> Result<Vec<Row>, Error> {
        let mut stock = Stock::new();
        let mut rows = Vec::new();
        let measures: [(&str, Measure); 5] = [
            ("writes", Self::writes),
            ("repeats", Self::repeats),
            ("stripe", Self::stripe),
            ("window", Self::window),
            ("memory", Self::memory),
        ];
        for (name, measure) in measures {
            if name.contains(&self.only) {
                eprintln!("stdchk-bench: {name}");
                rows.extend(measure(self, &mut stock)?);
            }
        }
        Ok(rows)
    }

    fn content(&self) -> Content {
        Content { bytes: self.sizes.file_bytes, block: BLOCK, salt: 0, repeated: None }
    }

    fn up(&self, benefactors: usize, window: u64) -> Result<LocalPool, Error> {
        LocalPool::up(&self.stdchk, &self.dir, benefactors, window)
    }

    /// Plain file, plain file with fsync, do-nothing mount, OAB and ASB of the mount and of `put`; 1 MiB and 4 KiB writes.
    fn writes(&self, stock: &mut Stock) -> Result<Vec<Row>, Error> {
        let null = NullMount::start(&self.own, &self.dir, "write-back")?;
        let through = NullMount::start(&self.own, &self.dir, "write-through")?;
        let pool = self.up(BENEFACTORS, WINDOW)?;
        let stored = pool.folder("oab", &["replicas=1", "close=stored"])?;
        let durable = pool.folder("asb", &["replicas=1", "close=durable"])?;
        let plain = tempfile::Builder::new().prefix("plain-").tempdir_in(&self.dir)?;
        let (null_pids, through_pids, pool_pids) =
            ([null.process.id()], [through.process.id()], pool.pids(""));
        let case = |name: &str, folder: &Path, pids, block: usize, sync| Case {
            name: name.to_owned(),
            folder: folder.to_owned(),
            pids,
            content: Content { block, ..self.content() },
            sync,
        };
        let small = 4096;
        let cases = [
            case("plain file", plain.path(), &[][..], BLOCK, false),
            case("plain file, fsync", plain.path(), &[][..], BLOCK, true),
            case("do-nothing mount", null.path(), &null_pids, BLOCK, false),
            case("do-nothing mount, write-through", through.path(), &through_pids, BLOCK, false),
            case("mount, OAB", &stored, &pool_pids, BLOCK, false),
            case("mount, ASB", &durable, &pool_pids, BLOCK, false),
            case("do-nothing mount, 4 KiB writes", null.path(), &null_pids, small, false),
            case("mount, OAB, 4 KiB writes", &stored, &pool_pids, small, false),
        ];
        let mut rows = self.rounds(&cases, stock)?;
        rows.extend(self.puts(&pool, stock)?);
        Ok(rows)
    }

    /// Runs all cases in turn, after one round that only warms up.
    fn rounds(&self, cases: &[Case<'_>], stock: &mut Stock) -> Result<Vec<Row>, Error> {
        let mut rows: Vec<Row> =
            cases.iter().map(|case| Row::new(&case.name, BENEFACTORS, WINDOW, case.content.block)).collect();
        for round in 0..=self.sizes.rounds {
            for (case, row) in cases.iter().zip(&mut rows) {
                stock.renew();
                let (seconds, cpu) = self.once(case, round, stock)?;
                if round > 0 {
                    row.add(case.content.bytes, seconds, cpu);
                }
            }
        }
        Ok(rows)
    }

    fn once(&self, case: &Case<'_>, round: usize, stock: &mut Stock) -> Result<(f64, f64), Error> {
        let path = case.folder.join(format!("run.N{round}.T{}", case.content.salt));
        rustix::fs::sync();
        let before = cpu_seconds(case.pids);
        let seconds = transfer::write(&path, case.content, stock, case.sync)?;
        let cpu = cpu_seconds(case.pids) - before;
        std::fs::remove_file(&path)?;
        Ok((seconds, cpu))
    }

    /// The same through the command line, from a file in the page cache.
    fn puts(&self, pool: &LocalPool, stock: &mut Stock) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for (name, close) in [("put, OAB", "close=stored"), ("put, ASB", "close=durable")] {
            let folder = close.replace('=', "-");
            pool.folder(&folder, &["replicas=1", close])?;
            let mut row = Row::new(name, BENEFACTORS, WINDOW, BLOCK);
            for round in 0..=self.sizes.rounds {
                stock.renew();
                let source = tempfile::NamedTempFile::new_in(&self.dir)?;
                transfer::write(source.path(), self.content(), stock, true)?;
                transfer::read(source.path())?;
                let from = source.path().to_string_lossy().into_owned();
                let before = cpu_seconds(&pool.pids(""));
                let started = Instant::now();
                pool.run(&["put", &from, &format!("{folder}/put.N0.T{round}")])?;
                let seconds = started.elapsed().as_secs_f64();
                if round > 0 {
                    row.add(self.sizes.file_bytes, seconds, cpu_seconds(&pool.pids("")) - before);
                }
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// Unique data, the same data again, half-repeated data, and reading it back cold.
    fn repeats(&self, stock: &mut Stock) -> Result<Vec<Row>, Error> {
        let pool = self.up(BENEFACTORS, WINDOW)?;
        let folder = pool.folder("oab", &["replicas=1", "close=stored"])?;
        let names = ["first write", "same again", "half repeated", "read, cold"];
        let mut rows = names.map(|name| Row::new(&format!("mount, {name}"), BENEFACTORS, WINDOW, BLOCK));
        for round in 0..=self.sizes.rounds {
            stock.renew();
            let first = self.content();
            let contents = [first, first, Content { salt: 1, repeated: Some(0), ..first }];
            let [row_first, row_again, row_half, row_read] = &mut rows;
            for (place, (row, content)) in
                [row_first, row_again, row_half].into_iter().zip(contents).enumerate()
            {
                let path = folder.join(format!("run.N{place}.T{round}"));
                let stored = pool.stored_bytes()?;
                let before = cpu_seconds(&pool.pids(""));
                let seconds = transfer::write(&path, content, stock, false)?;
                let cpu = cpu_seconds(&pool.pids("")) - before;
                if round > 0 {
                    row.add(content.bytes, seconds, cpu);
                    row.stored(pool.stored_bytes()?.saturating_sub(stored));
                }
            }
            self.read_cold(&pool, &folder.join(format!("run.N0.T{round}")), (round > 0).then_some(row_read))?;
        }
        Ok(rows.into())
    }

    fn read_cold(&self, pool: &LocalPool, path: &Path, row: Option<&mut Row>) -> Result<(), Error> {
        transfer::drop_caches()?;
        let before = cpu_seconds(&pool.pids(""));
        let (seconds, bytes) = transfer::read(path)?;
        if bytes != self.sizes.file_bytes {
            return Err(Error(format!("{}: {bytes} bytes came back", path.display())));
        }
        if let Some(row) = row {
            row.add(bytes, seconds, cpu_seconds(&pool.pids("")) - before);
        }
        Ok(())
    }

    /// OAB and ASB over the number of benefactors (the paper's Figures 2 and 3).
    fn stripe(&self, stock: &mut Stock) -> Result<Vec<Row>, Error> {
        let counts = self.sizes.benefactors;
        counts
            .iter()
            .map(|count| self.oab_and_asb(*count, WINDOW, stock))
            .collect::<Result<Vec<_>, _>>()
            .map(flat)
    }

    /// OAB and ASB over the size of the window (the paper's Figures 4 and 5).
    fn window(&self, stock: &mut Stock) -> Result<Vec<Row>, Error> {
        let windows = self.sizes.windows;
        windows
            .iter()
            .map(|window| self.oab_and_asb(BENEFACTORS, *window, stock))
            .collect::<Result<Vec<_>, _>>()
            .map(flat)
    }

    fn oab_and_asb(&self, benefactors: usize, window: u64, stock: &mut Stock) -> Result<Vec<Row>, Error> {
        let pool = self.up(benefactors, window)?;
        let mut rows = Vec::new();
        for (name, close) in [("mount, OAB", "close=stored"), ("mount, ASB", "close=durable")] {
            let folder = pool.folder(&close.replace('=', "-"), &["replicas=1", close])?;
            let mut row = Row::new(name, benefactors, window, BLOCK);
            for round in 0..=self.sizes.rounds {
                stock.renew();
                let before = cpu_seconds(&pool.pids(""));
                let path = folder.join(format!("run.N0.T{round}"));
                let seconds = transfer::write(&path, self.content(), stock, false)?;
                if round > 0 {
                    row.add(self.sizes.file_bytes, seconds, cpu_seconds(&pool.pids("")) - before);
                }
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// Peak memory of the mount for a large file.
    fn memory(&self, stock: &mut Stock) -> Result<Vec<Row>, Error> {
        let pool = self.up(BENEFACTORS, WINDOW)?;
        let folder = pool.folder("large", &["replicas=1"])?;
        stock.renew();
        let content = Content { bytes: self.sizes.large_bytes, ..self.content() };
        let before = cpu_seconds(&pool.pids(""));
        let seconds = transfer::write(&folder.join("run.N0.T0"), content, stock, false)?;
        let mut row = Row::new("mount, one large file", BENEFACTORS, WINDOW, BLOCK);
        row.add(content.bytes, seconds, cpu_seconds(&pool.pids("")) - before);
        let peak = pool.pids("mount").first().and_then(|pid| cpu::peak_memory(*pid));
        row.memory(peak.ok_or_else(|| Error("the mount's process was not found".to_owned()))?);
        Ok(vec![row])
    }
}

/// CPU seconds of this process and of these.
fn cpu_seconds(pids: &[u32]) -> f64 {
    cpu::own_seconds() + cpu::seconds_of(pids)
}

fn flat(rows: Vec<Vec<Row>>) -> Vec<Row> {
    rows.into_iter().flatten().collect()
}
