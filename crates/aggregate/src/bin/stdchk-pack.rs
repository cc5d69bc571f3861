//! Packing without a pool, from the command line: a thin front for the library until the `stdchk` command takes over.
//!
//! Relies on the crate's public functions. The idea: one verb per function, plain arguments, errors on stderr.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use stdchk_aggregate::{BaseSet, Container, KeyRule, Mode, Packing, PlanOptions, inputs_of, pack};

const USAGE: &str = "usage:
  stdchk-pack pack OUT [--mode fastest|default|smallest|paper] [--base CONTAINER]
      [--pattern REGEX] [--threads N] FILE...
  stdchk-pack unpack CONTAINER DIR [--base CONTAINER] [--threads N]
  stdchk-pack list CONTAINER
  stdchk-pack extract CONTAINER FILE [VARIABLE] OUT";

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stdchk-pack: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Flags of all verbs.
struct Flags {
    mode: Option<String>,
    base: Option<PathBuf>,
    pattern: Option<String>,
    threads: usize,
}

fn run() -> Outcome {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let flags = Flags {
        mode: flag(&mut words, "--mode"),
        base: flag(&mut words, "--base").map(PathBuf::from),
        pattern: flag(&mut words, "--pattern"),
        threads: flag(&mut words, "--threads").map_or(Ok(0), |threads| threads.parse())?,
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let base = flags.base.as_deref();
    match words.as_slice() {
        ["pack", output, files @ ..] if !files.is_empty() => run_pack(Path::new(output), files, &flags),
        ["unpack", container, folder] => run_unpack(Path::new(container), Path::new(folder), &flags),
        ["list", container] => {
            list(&open(Path::new(container), base)?);
            Ok(())
        }
        ["extract", container, file, output] => {
            Ok(open(Path::new(container), base)?.extract_file(file, Path::new(output))?)
        }
        ["extract", container, file, variable, output] => {
            Ok(open(Path::new(container), base)?.extract_variable(file, variable, Path::new(output))?)
        }
        _ => Err(USAGE.into()),
    }
}

/// Takes `name VALUE` out of the words.
fn flag(words: &mut Vec<String>, name: &str) -> Option<String> {
    let position = words.iter().position(|word| word == name)?;
    words.remove(position);
    (position < words.len()).then(|| words.remove(position))
}

fn open(path: &Path, base: Option<&Path>) -> Result<Container, Box<dyn std::error::Error>> {
    let base = base.map(BaseSet::open).transpose()?.map(Arc::new);
    Ok(Container::open_with_base(path, base)?)
}

fn run_pack(output: &Path, files: &[&str], flags: &Flags) -> Outcome {
    let paths: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
    let mode = match flags.mode.as_deref() {
        None | Some("default") => Mode::Default,
        Some("fastest") => Mode::Fastest,
        Some("smallest") => Mode::Smallest,
        Some("paper") => Mode::Paper,
        Some(other) => return Err(format!("no mode '{other}'\n{USAGE}").into()),
    };
    let base = flags.base.as_deref().map(BaseSet::open).transpose()?;
    let keys = match flags.pattern.as_deref() {
        None if mode == Mode::Smallest => KeyRule::Type,
        None => KeyRule::default(),
        Some(expression) => KeyRule::pattern(expression)?,
    };
    let plan = PlanOptions { keys, ..PlanOptions::default() };
    let started = Instant::now();
    let packing = Packing { mode, plan, base: base.as_ref(), threads: flags.threads, ..Packing::default() };
    let packed = pack(&inputs_of(&paths)?, output, &packing)?;
    let (raw, stored) = (packed.raw_bytes as f64, packed.stored_bytes as f64);
    println!(
        "{} files, {} bytes in {} ({:.3} : 1), {} repeated, {:.0} MB/s",
        packed.files,
        packed.raw_bytes,
        packed.stored_bytes,
        raw / stored,
        packed.repeated_bytes,
        raw / 1e6 / started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn run_unpack(container: &Path, folder: &Path, flags: &Flags) -> Outcome {
    let started = Instant::now();
    let unpacked = open(container, flags.base.as_deref())?.unpack(folder, 0, flags.threads)?;
    let speed = unpacked.bytes as f64 / 1e6 / started.elapsed().as_secs_f64();
    println!("{} files, {} bytes, {speed:.0} MB/s", unpacked.files, unpacked.bytes);
    Ok(())
}

fn list(container: &Container) {
    for file in container.list() {
        let reason = file.reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        println!("{} {} bytes, {}{reason}", file.name, file.size, file.format);
        for variable in file.variables {
            let chain: Vec<String> = variable.chain.iter().map(|step| format!("{step:?}")).collect();
            println!(
                "  {} {} {:?} {} bytes, {:.2} : 1, {}",
                variable.path,
                variable.data_type,
                variable.shape,
                variable.bytes,
                variable.ratio,
                chain.join(" + ")
            );
        }
    }
}
