//! Plain file, plain file with fsync, FUSE to a local file, do-nothing mount (the paper's Table 1), OAB and ASB of the mount and of `put`; 1 MiB and 4 KiB writes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::Error;
use crate::bench::{BENEFACTORS, BLOCK, Bench, WINDOW};
use crate::cpu;
use crate::local_fuse::LocalFuse;
use crate::null::NullMount;
use crate::pool::LocalPool;
use crate::row::{Row, at_least, section};
use crate::section::Section;
use crate::stock::Stock;
use crate::transfer::{self, Content};

/// Writes of a page, bytes.
const SMALL_BLOCK: usize = 4096;
/// A file that fits the window with room to spare, bytes.
const WITHIN_WINDOW: u64 = WINDOW / 2;

/// What a complete local write costs its application, from open to close. No file behind FUSE is as fast as one in the page cache:
/// beyond what a mount costs that keeps nothing, it may cost the copy into the spool's own page cache; and it is to be no slower
/// than a plain file that is on the disk.
const CLW_OF_NULL: f64 = 0.7;
const CLW_OF_SYNCED: f64 = 1.0;

/// One kind of transfer that is repeated.
struct Case<'a> {
    name: &'static str,
    folder: PathBuf,
    pids: &'a [u32],
    content: Content,
    sync: bool,
    /// Whether each file has a name of its own kind, of which the mount knows nothing.
    unknown: bool,
    /// The pool that must have committed the file before the next one is written.
    pool: Option<&'a LocalPool>,
}

/// Measures all of them in turn.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let mut stock = Stock::new();
    let null = NullMount::start(&bench.own, &bench.dir, "write-back")?;
    let through = NullMount::start(&bench.own, &bench.dir, "write-through")?;
    let direct = NullMount::start(&bench.own, &bench.dir, "direct")?;
    let files = tempfile::Builder::new().prefix("local-").tempdir_in(&bench.dir)?;
    let local = LocalFuse::start(files.path(), &bench.dir)?;
    let pool = bench.up(BENEFACTORS, WINDOW)?;
    let stored = pool.folder("oab", &["redundancy=replicate:1", "close=stored"])?;
    let early = pool.folder("early", &["redundancy=replicate:1", "close=early"])?;
    let found = pool.folder("cdc", &["redundancy=replicate:1", "close=stored", "cutter=cdc:64KiB"])?;
    let spooled = pool.folder("clw", &["redundancy=replicate:1", "protocol=clw"])?;
    let durable = pool.folder("asb", &["redundancy=replicate:1", "close=durable"])?;
    let plain = tempfile::Builder::new().prefix("plain-").tempdir_in(&bench.dir)?;
    let (null_pids, pool_pids) = ([null.pid()], pool.pids(""));
    let (through_pids, direct_pids) = ([through.pid()], [direct.pid()]);
    let case = |name, folder: &Path, pids, block: usize, sync| Case {
        name,
        folder: folder.to_owned(),
        pids,
        content: Content { block, ..bench.content() },
        sync,
        unknown: false,
        pool: None,
    };
    let local_pids: Vec<u32> = local.iter().map(LocalFuse::pid).collect();
    let mut cases = vec![
        case("plain file", plain.path(), &[][..], BLOCK, false),
        case("plain file, fsync", plain.path(), &[][..], BLOCK, true),
        case("do-nothing mount", null.path(), &null_pids, BLOCK, false),
        case("do-nothing mount, write-through", through.path(), &through_pids, BLOCK, false),
        case("do-nothing mount, past the page cache", direct.path(), &direct_pids, BLOCK, false),
        Case { pool: Some(&pool), ..case("mount, OAB-early", &early, &pool_pids, BLOCK, false) },
        case("mount, OAB", &stored, &pool_pids, BLOCK, false),
        Case { unknown: true, ..case("mount, OAB, first of its name", &stored, &pool_pids, BLOCK, false) },
        case("mount, ASB", &durable, &pool_pids, BLOCK, false),
        Case { pool: Some(&pool), ..case("mount, CLW", &spooled, &pool_pids, BLOCK, false) },
        case("mount, OAB, cdc:64KiB", &found, &pool_pids, BLOCK, false),
        case("do-nothing mount, 4 KiB writes", null.path(), &null_pids, SMALL_BLOCK, false),
        case("mount, OAB, 4 KiB writes", &stored, &pool_pids, SMALL_BLOCK, false),
    ];
    let bytes = bench.sizes.file_bytes.min(WITHIN_WINDOW);
    let within = |name, folder: &Path, pids| {
        let case = case(name, folder, pids, BLOCK, false);
        Case { content: Content { bytes, ..case.content }, ..case }
    };
    cases.push(within("do-nothing mount, within the window", null.path(), &null_pids));
    let early = within("mount, OAB-early, within the window", &early, &pool_pids);
    cases.push(Case { pool: Some(&pool), ..early });
    cases.extend(
        local.iter().map(|local| case("FUSE to a local file", local.path(), &local_pids, BLOCK, false)),
    );
    let mut rows = rounds(bench, &cases, &mut stock)?;
    rows.extend(puts(bench, &pool, &mut stock)?);
    let rate = |name| rows.iter().find(|row| row.is(name)).map_or(f64::NAN, Row::rate);
    let targets = vec![
        at_least(
            "OAB-early / do-nothing mount, file within the window",
            rate("mount, OAB-early, within the window") / rate("do-nothing mount, within the window"),
            0.8,
        ),
        at_least("OAB / do-nothing mount", rate("mount, OAB") / rate("do-nothing mount"), 0.6),
        at_least("ASB / plain file with fsync", rate("mount, ASB") / rate("plain file, fsync"), 0.8),
        at_least(
            "CLW / plain file with fsync",
            rate("mount, CLW") / rate("plain file, fsync"),
            CLW_OF_SYNCED,
        ),
        at_least("CLW / do-nothing mount", rate("mount, CLW") / rate("do-nothing mount"), CLW_OF_NULL),
        at_least(
            "OAB with cdc:64KiB / with fsch:1MiB",
            rate("mount, OAB, cdc:64KiB") / rate("mount, OAB"),
            0.9,
        ),
        at_least("4 KiB writes / 1 MiB writes", rate("mount, OAB, 4 KiB writes") / rate("mount, OAB"), 0.5),
    ];
    section(&rows, targets)
}

/// Runs all cases in turn, after one round that only warms up.
fn rounds(bench: &Bench, cases: &[Case<'_>], stock: &mut Stock) -> Result<Vec<Row>, Error> {
    let mut rows: Vec<Row> =
        cases.iter().map(|case| Row::new(case.name, BENEFACTORS, WINDOW, case.content.block)).collect();
    for round in 0..=bench.sizes.rounds {
        for (case, row) in cases.iter().zip(&mut rows) {
            stock.renew();
            let (seconds, cpu) = once(case, round, stock)?;
            if round > 0 {
                row.add(case.content.bytes, seconds, cpu);
            }
        }
    }
    Ok(rows)
}

fn once(case: &Case<'_>, round: usize, stock: &mut Stock) -> Result<(f64, f64), Error> {
    // A mount learns from the files of a name how the next ones are written.
    let run = match case.content.block < BLOCK {
        true => "small".to_owned(),
        false if case.unknown => "new".repeat(round + 1),
        false => "run".to_owned(),
    };
    let name = format!("{run}.N{round}.T{}", case.content.salt);
    let path = case.folder.join(&name);
    rustix::fs::sync();
    let before = cpu::seconds_with(case.pids);
    let seconds = transfer::write(&path, case.content, stock, case.sync)?;
    let asking = match (case.pool, case.folder.file_name()) {
        (Some(pool), Some(folder)) => {
            pool.wait_committed(&format!("{}/{name}", folder.to_string_lossy()), case.content.bytes)?
        }
        _ => 0.0,
    };
    let cpu = cpu::seconds_with(case.pids) - before - asking;
    std::fs::remove_file(&path)?;
    Ok((seconds, cpu))
}

/// Writes each content with `stdchk put`, from a file in the page cache.
fn puts(bench: &Bench, pool: &LocalPool, stock: &mut Stock) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (name, close) in [("put, OAB", "close=stored"), ("put, ASB", "close=durable")] {
        let folder = close.replace('=', "-");
        pool.folder(&folder, &["redundancy=replicate:1", close])?;
        let mut row = Row::new(name, BENEFACTORS, WINDOW, BLOCK);
        for round in 0..=bench.sizes.rounds {
            stock.renew();
            let source = tempfile::NamedTempFile::new_in(&bench.dir)?;
            transfer::write(source.path(), bench.content(), stock, true)?;
            transfer::read(source.path())?;
            let from = source.path().to_string_lossy().into_owned();
            let before = cpu::seconds_with(&pool.pids(""));
            let started = Instant::now();
            pool.run(&["put", &from, &format!("{folder}/put.N0.T{round}")])?;
            let seconds = started.elapsed().as_secs_f64();
            if round > 0 {
                row.add(bench.sizes.file_bytes, seconds, cpu::seconds_with(&pool.pids("")) - before);
            }
        }
        rows.push(row);
    }
    Ok(rows)
}
