//! `stdchk-files`: the commands of this crate without a pool. `stdchk run` and `stdchk files` call the same functions.
//!
//!     stdchk-files run [--root DIR] [--every SECONDS] [--mode MODE] [--resume[=INDEX]] [--when-renamed FILE] [--synced] -- COMMAND...
//!     stdchk-files log|diff|restore|discard [--root DIR] [INDEX [INDEX]]

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use stdchk_filestate::driver::{self, Run, Start};
use stdchk_filestate::store::{Mode, Options, Store};
use stdchk_filestate::{Error, Result, history};

/// Wrong use, as for all our commands.
const EXIT_USAGE: u8 = 2;
/// The command itself failed; the program's own codes pass through.
const EXIT_FAILED: u8 = 125;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match execute(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("stdchk-files: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn execute(arguments: &[OsString]) -> Result<ExitCode> {
    let Some((command, rest)) = arguments.split_first() else { return Ok(usage()) };
    match (command.to_str(), parse(rest)) {
        (Some("run"), Some(given)) if !given.run.command.is_empty() => run(&given.run),
        (Some("log"), Some(given)) => log(&given),
        (Some("diff"), Some(given)) => diff(&given),
        (Some("restore"), Some(given)) => {
            let done = driver::restore_files(&given.run.root, given.indices.first().copied())?;
            println!("restored index {}: {} records, {} bytes", done.index, done.records, done.bytes);
            Ok(ExitCode::SUCCESS)
        }
        (Some("discard"), Some(given)) => driver::discard(&given.run.root).map(|()| ExitCode::SUCCESS),
        _ => Ok(usage()),
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: stdchk-files run [OPTIONS] -- COMMAND... | log | diff [FROM [TO]] | restore [INDEX] | discard"
    );
    ExitCode::from(EXIT_USAGE)
}

struct Given {
    run: Run,
    indices: Vec<u64>,
}

fn parse(arguments: &[OsString]) -> Option<Given> {
    let run = Run {
        root: ".".into(),
        options: Options::default(),
        start: Start::Fresh,
        every: None,
        command: Vec::new(),
    };
    let mut given = Given { run, indices: Vec::new() };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let run = &mut given.run;
        match argument.to_str()? {
            "--root" => run.root = PathBuf::from(rest.next()?),
            "--every" => {
                run.every = Some(Duration::try_from_secs_f64(rest.next()?.to_str()?.parse().ok()?).ok()?)
            }
            "--mode" => run.options.mode = Mode::parse(rest.next()?.to_str()?)?,
            "--when-renamed" => run.options.trigger = Some(PathBuf::from(rest.next()?)),
            "--synced" => run.options.synced = true,
            "--resume" => run.start = Start::Resume(None),
            "--" => run.command = rest.by_ref().cloned().collect(),
            other => match other.strip_prefix("--resume=") {
                Some(index) => run.start = Start::Resume(Some(index.parse().ok()?)),
                None => given.indices.push(other.parse().ok()?),
            },
        }
    }
    Some(given)
}

fn run(run: &Run) -> Result<ExitCode> {
    let outcome = run.execute()?;
    for error in &outcome.missed {
        eprintln!("stdchk-files: a checkpoint was missed: {error}");
    }
    if let Some(done) = &outcome.rolled_back {
        eprintln!("stdchk-files: the program was killed; its files are back at index {}", done.index);
    }
    let code = outcome.status.code().or_else(|| outcome.status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(EXIT_FAILED)))
}

fn log(given: &Given) -> Result<ExitCode> {
    let store = Store::open(&given.run.root)?;
    for entry in store.entries()? {
        println!("{}\t{}\t{}", entry.index, entry.time_ns / 1_000_000_000, entry.label);
    }
    Ok(ExitCode::SUCCESS)
}

fn diff(given: &Given) -> Result<ExitCode> {
    let store = Store::open(&given.run.root)?;
    let from = match given.indices.first() {
        Some(index) => *index,
        None => store.entry(None)?.index,
    };
    for (path, change) in history::changes(&store, from, given.indices.get(1).copied())? {
        let words = [
            (change.created, "created"),
            (change.removed, "removed"),
            (change.moved_to.is_some(), "moved"),
            (change.written, "written"),
            (change.mode, "mode"),
        ];
        let what: Vec<&str> = words.iter().filter(|(holds, _)| *holds).map(|(_, word)| *word).collect();
        println!("{}\t{}\t{} bytes kept", what.join(","), String::from_utf8_lossy(&path), change.kept_bytes);
    }
    Ok::<_, Error>(ExitCode::SUCCESS)
}
