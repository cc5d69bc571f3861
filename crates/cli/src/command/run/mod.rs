//! `stdchk run`: a program under file-state checkpoints. The work is done by `stdchk_filestate::driver`; here are its
//! flags, its words and its exit code, which is the program's own.

mod push;
pub mod sets;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Component, Path, PathBuf, absolute};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use stdchk_filestate::driver::{self, Outcome as Ended, Run, Start};
use stdchk_filestate::store::{Mode, Options, Store};
use stdchk_filestate::trigger::{self, Event, Trigger};
use stdchk_model::duration;

use self::push::Push;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::output;
use crate::settings::PoolFlags;

/// The variable that tells a program the timestep that its files are back at.
const STEP_VARIABLE: &str = "STDCHK_STEP";

/// What `run` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Everything below the root is protected: what the program and its children change can be taken back to any checkpoint.
Checkpoints: at the start and after success; every TIME; on SIGUSR1 to stdchk; when a file that matches PATTERN is renamed
into place, or closed by its last writer; with each checkpoint set that is written to FOLDER of a mounted pool; and when the
program calls stdchk_checkpoint(). Other signals are passed on to the program.

In a PATTERN, * and ? stand for bytes of a name, ** also for those of folders, [a-z] for one of a set, and \\ takes the next
as it is. Both options can be given several times. A pattern that matched nothing is named at the end, with what was written.

With --push, the files as they were at the newest checkpoint are copied to the pool in the background, and `stdchk files
fetch APP -o DIR` makes them anew on another machine, where `stdchk run --resume` goes on.

With --with-sets, `--resume` goes back to the newest complete set, the one that `stdchk latest` names, and the program
finds its timestep in STDCHK_STEP; before the first set the variable is empty and the files are as at the start.

Modes: write-through  every checkpoint stays; files are as they are after a failure, until `--resume` goes back
       single         the last checkpoint stays; a program that fails or is killed is rolled back to it at once
       incremental    every checkpoint stays; a program that fails or is killed is rolled back to the last one at once

Exit code: the program's own; 128 and the signal's number when it was killed; 125 when it could not be started or
protected: static, setuid, 32-bit and Go programs can't be.

Example:
  stdchk run --every 10m -- ./simulation input.txt
  stdchk run --when-renamed restart.dat -- mpirun -np 4 ./simulation
  stdchk run --when-closed 'out/restart.*' -- ./simulation
  stdchk run --with-sets /mnt/pool/climate -- ./climate.sh
  stdchk run --every 10m --push climate -- ./simulation input.txt
  stdchk run --resume -- ./simulation --restart restart.dat")]
pub struct Arguments {
    /// The directory that is protected, with all below it
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
    /// Take a checkpoint every TIME: 30s, 10m, 2h
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    every: Option<Duration>,
    /// What stays, and what happens after a failure [default: write-through]
    #[arg(long, value_enum)]
    mode: Option<ModeName>,
    /// Take a checkpoint whenever a file whose path matches is renamed into place: restart.dat, 'out/ck*'
    #[arg(long, value_name = "PATTERN")]
    when_renamed: Vec<PathBuf>,
    /// Take a checkpoint whenever a writer has closed such a file, and no other has it open for writing
    #[arg(long, value_name = "PATTERN")]
    when_closed: Vec<PathBuf>,
    /// Take a checkpoint with every checkpoint set that is written to this folder of a mounted pool
    #[arg(long, value_name = "FOLDER")]
    with_sets: Option<PathBuf>,
    /// Keep the newest N checkpoints only
    #[arg(long, value_name = "N")]
    keep: Option<NonZeroUsize>,
    /// Make every change restorable after a power loss, not only after a kill; slower
    #[arg(long)]
    synced: bool,
    /// Go back to the last checkpoint, or to INDEX, and go on from there; `auto`: if the last run did not end by itself
    #[arg(long, value_name = "INDEX", num_args = 0..=1, require_equals = true, default_missing_value = "last")]
    resume: Option<Resume>,
    /// Copy the files as of each checkpoint to this folder of the pool, in the background
    #[arg(long, value_name = "APP")]
    push: Option<String>,
    /// Wait so long at the end for the last copy to reach the pool
    #[arg(long, value_name = "TIME", value_parser = parse_wait, default_value = "10m", requires = "push")]
    push_wait: Duration,
    /// Write how the run ended to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeName {
    WriteThrough,
    Single,
    Incremental,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    Last,
    Auto,
    Index(u64),
}

impl std::str::FromStr for Resume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "last" => Ok(Self::Last),
            "auto" => Ok(Self::Auto),
            digits => digits.parse().map(Self::Index).map_err(|_| "neither an index nor `auto`".to_owned()),
        }
    }
}

#[derive(Serialize)]
struct Report {
    exit_code: Option<i32>,
    signal: Option<i32>,
    rolled_back_to: Option<u64>,
    /// The newest checkpoint of which the pool has a copy.
    pushed: Option<u64>,
    notes: Vec<String>,
}

/// Runs the command; the program's exit code.
pub fn run(arguments: Arguments, pool: &PoolFlags) -> Outcome<ExitCode> {
    let report = arguments.report.clone();
    if let Some(path) = &report {
        begin_report(path)?;
    }
    let mut push = arguments.push(pool)?;
    let run = arguments.into_run(pool)?;
    let ended = match &mut push {
        Some(push) => run.execute_with(push),
        None => run.execute(),
    };
    let ended = ended.map_err(not_run)?;
    say(&ended);
    if let Some(path) = report {
        let written = write_report(&path, &ended, push.as_ref().and_then(Push::pushed));
        // The exit code is the program's own.
        written.unwrap_or_else(|error| error.say());
    }
    Ok(exit_code(ended.status))
}

impl Arguments {
    fn push(&self, pool: &PoolFlags) -> Outcome<Option<Push>> {
        self.push.as_deref().map(|app| Push::new(app, pool, self.push_wait)).transpose()
    }

    fn into_run(self, pool: &PoolFlags) -> Outcome<Run> {
        let root = self.root.canonicalize().about(self.root.display())?;
        self.refuse_what_a_resumed_run_keeps()?;
        let (start, environment) = self.start(&root, pool)?;
        let mode = self.mode()?;
        // A run that goes on keeps the folder that it was begun with.
        let folder = self.with_sets.as_deref().filter(|_| !matches!(start, Start::Resume(_)));
        let sets = folder.map(|folder| sets::of_folder(folder, pool)).transpose()?;
        let triggers = self.triggers(&root)?;
        let options = Options { mode, synced: self.synced, triggers, sets, keep: self.keep, clones: None };
        Ok(Run { root, options, start, every: self.every, command: self.command, environment, tell })
    }

    fn refuse_what_a_resumed_run_keeps(&self) -> Outcome {
        let options = [
            ("--mode", self.mode.is_some()),
            ("--when-renamed", !self.when_renamed.is_empty()),
            ("--when-closed", !self.when_closed.is_empty()),
            ("--with-sets", self.with_sets.is_some()),
            ("--keep", self.keep.is_some()),
            ("--synced", self.synced),
        ];
        let given: Vec<&str> = options.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        if !given.is_empty() && matches!(self.resume, Some(Resume::Last | Resume::Index(_))) {
            let cause = "a resumed run keeps the mode and the options that it was begun with";
            let next = format!("leave {} out, or use `--resume=auto`", given.join(", "));
            return Err(CommandError::usage("--resume", cause, next));
        }
        Ok(())
    }

    fn triggers(&self, root: &Path) -> Outcome<Vec<Trigger>> {
        let renamed = self.when_renamed.iter().map(|pattern| (Event::Renamed, pattern));
        let closed = self.when_closed.iter().map(|pattern| (Event::Closed, pattern));
        let trigger = |(event, pattern): (Event, &PathBuf)| {
            Ok(Trigger { event, pattern: pattern_below(root, pattern)? })
        };
        renamed.chain(closed).map(trigger).collect()
    }

    /// Sets are complete later than their file state is taken: one state is too few.
    fn mode(&self) -> Outcome<Mode> {
        let mode = match self.mode {
            None | Some(ModeName::WriteThrough) => Mode::WriteThrough,
            Some(ModeName::Single) => Mode::Single,
            Some(ModeName::Incremental) => Mode::Incremental,
        };
        let keeps_one = mode == Mode::Single || self.keep.is_some_and(|keep| keep.get() == 1);
        if keeps_one && self.with_sets.is_some() {
            let cause = "the state of the last complete set would give way to that of the next one";
            return Err(CommandError::usage("--with-sets", cause, "keep more than one checkpoint"));
        }
        Ok(mode)
    }

    /// Where the run begins, and what it tells the program about that.
    fn start(&self, root: &Path, pool: &PoolFlags) -> Outcome<(Start, Vec<(OsString, OsString)>)> {
        let unfinished = || unfinished(root).map_err(not_run);
        let store = match self.resume {
            Some(Resume::Last) => driver::open_store(root).map(Some).map_err(not_run)?,
            Some(Resume::Auto) => unfinished()?,
            Some(Resume::Index(_)) | None => None,
        };
        let sets = store.as_ref().and_then(|store| Some((store, store.options.sets.as_ref()?)));
        if let Some((store, sets)) = sets {
            let about_pool = |error| CommandError { exit: Exit::NotRun, ..error };
            let point = sets::newest(store, sets, pool).map_err(about_pool)?;
            let step = point.step.map(|step| step.to_string()).unwrap_or_default();
            return Ok((Start::Resume(Some(point.index)), vec![(STEP_VARIABLE.into(), step.into())]));
        }
        let start = match self.resume {
            Some(Resume::Last) => Start::Resume(None),
            Some(Resume::Index(index)) => Start::Resume(Some(index)),
            Some(Resume::Auto) => Start::IfUnfinished,
            None => Start::Fresh,
        };
        Ok((start, Vec::new()))
    }
}

/// The message of the driver says object, cause and next step itself.
fn not_run(error: stdchk_filestate::Error) -> CommandError {
    CommandError::plain(Exit::NotRun, error)
}

/// The store of a run that did not end by itself.
fn unfinished(root: &Path) -> Result<Option<Store>, stdchk_filestate::Error> {
    if !Store::exists(root) {
        return Ok(None);
    }
    Store::open(root).map(|store| Some(store).filter(|store| !store.has_ended()))
}

/// The pattern relative to `root`. The folders in front of its first name with a pattern must be there.
fn pattern_below(root: &Path, pattern: &Path) -> Outcome<Vec<u8>> {
    let shown = pattern.display();
    let whole = absolute(pattern).about(&shown)?;
    let is_pattern = |part: &Component<'_>| trigger::is_pattern(part.as_os_str().as_bytes());
    let plain: PathBuf = whole.components().take_while(|part| !is_pattern(part)).collect();
    let patterns: PathBuf = whole.components().skip_while(|part| !is_pattern(part)).collect();
    if !patterns.as_os_str().is_empty() {
        let folder = below(root, &plain, plain.canonicalize().about(plain.display())?)?;
        let parts =
            [trigger::escaped(folder.as_os_str().as_bytes()), patterns.into_os_string().into_encoded_bytes()];
        let parts: Vec<Vec<u8>> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        return Ok(parts.join(&b'/'));
    }
    let (Some(directory), Some(Component::Normal(name))) = (plain.parent(), plain.components().next_back())
    else {
        return Err(CommandError::usage(
            shown,
            "it names no file",
            "name the file that is renamed or closed",
        ));
    };
    let file = below(root, pattern, directory.canonicalize().about(directory.display())?.join(name))?;
    Ok(trigger::escaped(file.as_os_str().as_bytes()))
}

/// The path of `whole` relative to `root`.
fn below(root: &Path, given: &Path, whole: PathBuf) -> Outcome<PathBuf> {
    let relative = whole.strip_prefix(root).map(Path::to_owned);
    relative.map_err(|_| {
        let cause = format!("it is not below {}", root.display());
        CommandError::usage(given.display(), cause, "name files in the protected tree, or another --root")
    })
}

fn tell(line: &str) {
    output::note(format_args!("stdchk: {}", output::shown(line)));
}

fn say(ended: &Ended) {
    ended.notes.iter().for_each(|note| tell(note));
    if let Some(done) = &ended.rolled_back {
        output::note(format_args!(
            "stdchk: the program failed; its files are back at checkpoint {}",
            done.index
        ));
    } else if !ended.status.success() {
        output::note("stdchk: the program failed; `stdchk run --resume` goes on from the last checkpoint");
    }
}

/// Finds out whether the report can be written before the program runs, perhaps for days.
fn begin_report(path: &Path) -> Outcome {
    let opened = std::fs::File::options().append(true).create(true).open(path);
    let about_report = |error| CommandError { exit: Exit::NotRun, ..error };
    opened.about(path.display()).map(drop).map_err(about_report)
}

fn write_report(path: &Path, ended: &Ended, pushed: Option<u64>) -> Outcome {
    let report = Report {
        exit_code: ended.status.code(),
        signal: ended.status.signal(),
        rolled_back_to: ended.rolled_back.as_ref().map(|done| done.index),
        pushed,
        notes: ended.notes.clone(),
    };
    let text = serde_json::to_vec_pretty(&report)
        .map_err(|error| CommandError::new(Exit::Other, "report", error, "report this as a defect"))?;
    std::fs::write(path, text).about(path.display())
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(Exit::NotRun as u8))
}

/// A time with its unit: `500ms`, `30s`, `10min`, `2h`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let time = parse_wait(text)?;
    if time.is_zero() { Err("no time at all".to_owned()) } else { Ok(time) }
}

/// A time with its unit, or no time at all: `0s`.
fn parse_wait(text: &str) -> Result<Duration, String> {
    let ms = duration::parse(text).ok_or("a number and a unit is needed: ms, s, min, h or d")?;
    Ok(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "10", "m", "-1s", "0s", "1w", "1e9h", "1..2s"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pattern_is_relative_to_the_root_and_must_be_below_it() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("run/a*")).unwrap();
        std::os::unix::fs::symlink(root.join("run/a*"), root.join("run/link")).unwrap();
        let pattern = |path: &str| {
            pattern_below(&root, &root.join(path)).map(|found| String::from_utf8(found).unwrap())
        };
        assert_eq!(pattern("run/../run/restart").unwrap(), "run/restart");
        assert_eq!(pattern("run/restart.*").unwrap(), "run/restart.*");
        assert_eq!(pattern("run/link/*/x?").unwrap(), "run/a\\*/*/x?");
        assert_eq!(pattern("**/ck").unwrap(), "**/ck");
        assert!(pattern("absent/restart").unwrap_err().exit == Exit::NotFound);
        let outside = |path: &str| pattern_below(&root.join("run"), &root.join(path)).unwrap_err().exit;
        assert!(outside("restart") == Exit::Usage && outside("re*") == Exit::Usage);
    }
}
