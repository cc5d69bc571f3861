//! `stdchk pack`: checkpoint files become one container, like variables of all files coded together (mcrEngine).
//!
//! Needs no pool. The container appears under its name once it is whole, on disk, and opens as a reader opens it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use stdchk_aggregate::limits::BUDGET_MIN;
use stdchk_aggregate::{
    AggregateError, Inputs, KeyRule, ListedFile, MergeScheme, Mode, Packed, Packing, PlanOptions, inputs_of,
    pack,
};
use stdchk_model::size;

use crate::container::{Location, failed, open, open_base};
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::output::{self, Table, shown};
use crate::progress::{Progress, rate};
use crate::signals::or_told;

/// Bytes written at once, and at most, to find out how fast the container's disk is.
const PROBE_BYTES: usize = 4 << 20;
const PROBE_BYTES_MAX: usize = 32 << 20;
/// Time that is enough to know.
const PROBE_TIME: Duration = Duration::from_millis(200);

/// What `pack` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A folder stands for all files below it. Variables of HDF5, netCDF, safetensors, PyTorch, npy and npz, LAMMPS and
GROMACS files are coded with like variables of the other files; of a file in another format, the whole file.

Example:
  stdchk pack dump.*.h5 -o dump.pack
  stdchk pack DD0012/ -o DD0012.pack --level fastest
  stdchk pack --list DD0012.pack")]
pub struct Arguments {
    /// Files and folders
    #[arg(required_unless_present = "list", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The container to write; one that is there is replaced
    #[arg(short, long, value_name = "CONTAINER", required_unless_present = "list")]
    output: Option<PathBuf>,
    /// Show the variables of a container instead: types, shapes, ratios
    #[arg(long, value_name = "CONTAINER", conflicts_with_all = ["files", "output"])]
    list: Option<PathBuf>,
    /// Time or space
    #[arg(long, value_enum, default_value = "default")]
    level: Level,
    /// Code variables against those of an earlier container, which is then needed to unpack
    #[arg(long, value_name = "CONTAINER")]
    base: Option<PathBuf>,
    /// How files are merged: aware, aware-block:SIZE, agnostic, agnostic-block:SIZE
    #[arg(long, value_name = "SCHEME", default_value = "aware", value_parser = merge_scheme)]
    merge: MergeScheme,
    /// Files that are merged with each other; all of them unless given
    #[arg(long, value_name = "FILES")]
    group: Option<usize>,
    /// Variables are alike when the groups of this regular expression match the same in GROUP/NAME
    #[arg(long, value_name = "REGEX")]
    pattern: Option<String>,
    #[command(flatten)]
    resources: Resources,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// What packing and unpacking may use of the machine.
#[derive(Args, Clone, Debug)]
pub struct Resources {
    /// Threads; one per core unless given
    #[arg(long, value_name = "NUMBER", default_value = "0", hide_default_value = true)]
    pub threads: usize,
    /// Memory for the bytes on their way, 16MiB at least
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = memory)]
    pub memory: u64,
}

/// What to win.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Hundreds of megabytes a second and core
    Fastest,
    /// In between
    Default,
    /// What makes the set safe soonest on the disk that the container is on, which is measured first
    Auto,
    /// The coders of the mcrEngine paper, for comparison
    Paper,
    /// The coders of the paper without their second pass
    PaperOnce,
}

/// A budget that is kept to.
fn memory(text: &str) -> Result<u64, String> {
    match size::parse(text) {
        Ok(bytes) if bytes < BUDGET_MIN => Err(format!("it takes {} at least", size::human(BUDGET_MIN))),
        other => other.map_err(|error| error.to_string()),
    }
}

fn merge_scheme(text: &str) -> Result<MergeScheme, String> {
    let block = |text| match size::parse(text) {
        Ok(0) | Err(_) => Err(format!("`{text}` is no length of blocks: write a size such as 64KiB")),
        Ok(bytes) => Ok(bytes),
    };
    match text.split_once(':').unwrap_or((text, "")) {
        ("aware", "") => Ok(MergeScheme::Aware),
        ("agnostic", "") => Ok(MergeScheme::Agnostic),
        ("aware-block", length) => block(length).map(MergeScheme::AwareBlock),
        ("agnostic-block", length) => block(length).map(MergeScheme::AgnosticBlock),
        _ => Err("write aware, aware-block:SIZE, agnostic or agnostic-block:SIZE".to_owned()),
    }
}

/// Runs the command.
pub async fn run(arguments: Arguments, context: &Context) -> Outcome {
    if let Some(container) = arguments.list.clone() {
        return or_told(move |_| list(&container, &arguments)).await;
    }
    let quiet = context.settings.quiet;
    or_told(move |told| to_container(&arguments, quiet, &told)).await
}

#[derive(Serialize)]
struct Report {
    container: String,
    level: Level,
    files: u64,
    bytes: u64,
    stored_bytes: u64,
    ratio: f64,
    /// Bytes that the set holds more than once, and the container once.
    repeated_bytes: u64,
    blocks: u64,
    /// Links and special files, which were not packed.
    left_out: Vec<String>,
    seconds: f64,
}

fn to_container(arguments: &Arguments, quiet: bool, told: &Arc<AtomicBool>) -> Outcome {
    let started = Instant::now();
    let output = arguments.output.clone().unwrap_or_default();
    if let Location::Object(place, _) = Location::of(&output)? {
        let cause = "`pack` writes a file";
        return Err(CommandError::usage(place, cause, "`stdchk aggregate -o` packs sets into object stores"));
    }
    refuse_no_file(&output)?;
    let inputs = inputs_of(&arguments.files).map_err(failed)?;
    refuse_self(&inputs, &output)?;
    let base = arguments.base.as_deref().map(open_base).transpose()?;
    let mode = mode_of(arguments.level, &output, arguments.resources.threads)?;
    let keys = arguments.pattern.as_deref().map(KeyRule::pattern).transpose().map_err(failed)?;
    let plan = PlanOptions {
        scheme: arguments.merge,
        keys: keys.unwrap_or_default(),
        group_size: arguments.group.unwrap_or(usize::MAX),
        ..PlanOptions::default()
    };
    let total =
        inputs.files.iter().filter_map(|input| Some(std::fs::metadata(&input.path).ok()?.len())).sum();
    let progress = Progress::start("pack", total, quiet);
    let watch = |bytes| {
        progress.add(bytes);
        !told.load(Ordering::Relaxed)
    };
    let Resources { threads, memory } = arguments.resources;
    let base = base.as_ref();
    let packing = Packing { mode, plan, budget: memory, threads, base, watch: &watch, ..Packing::default() };
    let packed = pack(&inputs.files, &output, &packing).map_err(failed)?;
    drop(progress);
    report(arguments, &output, &inputs, &packed, started, quiet)
}

/// What can't become a container is refused before the work, not after it.
fn refuse_no_file(output: &Path) -> Outcome {
    stdchk_operations::refuse_special(output)?;
    let cause = match output {
        path if path == Path::new("-") => "a container is opened again, which standard output can't be",
        path if path.is_dir() => "it is a folder",
        _ => return Ok(()),
    };
    Err(CommandError::usage(output.display(), cause, "name the container's file, such as FOLDER/NAME.pack"))
}

/// A container that is also an input would be packed into itself.
fn refuse_self(inputs: &Inputs, output: &Path) -> Outcome {
    let Ok(output) = output.canonicalize() else { return Ok(()) };
    let same = inputs.files.iter().any(|input| input.path.canonicalize().is_ok_and(|path| path == output));
    match same {
        true => Err(CommandError::usage(
            output.display(),
            "the container is one of the files to be packed",
            "write it to another place",
        )),
        false => Ok(()),
    }
}

/// The mode of a level, for a container at `output`.
pub fn mode_of(level: Level, output: &Path, threads: usize) -> Outcome<Mode> {
    Ok(match level {
        Level::Fastest => Mode::Fastest,
        Level::Default => Mode::Default,
        Level::Paper => Mode::Paper,
        Level::PaperOnce => Mode::PaperOnce,
        Level::Auto => Mode::Auto(sink_speed(output).about(output.display())? / cores(threads)),
    })
}

fn cores(threads: usize) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads };
    threads as f64
}

/// Bytes per second that reach the disk on which `output` will be.
fn sink_speed(output: &Path) -> std::io::Result<f64> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut probe = tempfile::tempfile_in(folder)?;
    let bytes = vec![0x5a; PROBE_BYTES];
    let started = Instant::now();
    let mut written = 0;
    while written < PROBE_BYTES_MAX && started.elapsed() < PROBE_TIME {
        probe.write_all(&bytes)?;
        probe.sync_data()?;
        written += bytes.len();
    }
    Ok(written as f64 / started.elapsed().as_secs_f64().max(1e-6))
}

fn report(
    arguments: &Arguments,
    output: &Path,
    inputs: &Inputs,
    packed: &Packed,
    started: Instant,
    quiet: bool,
) -> Outcome {
    let ratio = packed.raw_bytes as f64 / packed.stored_bytes.max(1) as f64;
    for path in &inputs.left_out {
        output::note(format_args!("stdchk: {}: no regular file; left out", shown(&path.to_string_lossy())));
    }
    if arguments.json {
        output::json(&Report {
            container: output.to_string_lossy().into_owned(),
            level: arguments.level,
            files: packed.files,
            bytes: packed.raw_bytes,
            stored_bytes: packed.stored_bytes,
            ratio,
            repeated_bytes: packed.repeated_bytes,
            blocks: packed.blocks,
            left_out: inputs.left_out.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
            seconds: started.elapsed().as_secs_f64(),
        })?;
    } else if !quiet {
        let files = output::count(packed.files, "file");
        let (raw, stored) = (size::human(packed.raw_bytes), size::human(packed.stored_bytes));
        let rate = size::human(rate(packed.raw_bytes, started.elapsed()));
        let output = shown(&output.to_string_lossy());
        output::note(format_args!("pack: {output}, {files}, {raw} in {stored} ({ratio:.2}:1), {rate}/s"));
    }
    if inputs.left_out.is_empty() { Ok(()) } else { Err(CommandError::reported(Exit::Partial)) }
}

#[derive(Serialize)]
struct Listed {
    name: String,
    bytes: u64,
    format: String,
    /// Why no variables were found.
    reason: Option<String>,
    /// Parts of it are lost, as far as listing looks.
    damaged: bool,
    variables: Vec<ListedVariable>,
}

#[derive(Serialize)]
struct ListedVariable {
    path: String,
    r#type: String,
    shape: Vec<u64>,
    bytes: u64,
    /// Of the block that holds its first byte.
    ratio: f64,
    coded_by: String,
}

impl From<ListedFile> for Listed {
    fn from(file: ListedFile) -> Self {
        let variables = file.variables.into_iter().map(|variable| ListedVariable {
            path: variable.path,
            r#type: variable.data_type,
            shape: variable.shape,
            bytes: variable.bytes,
            ratio: variable.ratio,
            coded_by: variable.chain.iter().map(|step| format!("{step:?}")).collect::<Vec<_>>().join(" "),
        });
        let (format, variables) = (file.format.to_string(), variables.collect());
        let ListedFile { name, size: bytes, reason, damaged, .. } = file;
        Self { name, bytes, format, reason, damaged, variables }
    }
}

fn list(container: &Path, arguments: &Arguments) -> Outcome {
    let container = open(container, arguments.base.as_deref())?;
    let files: Vec<Listed> = container.list().map_err(failed)?.into_iter().map(Listed::from).collect();
    let (damaged, intact): (Vec<&Listed>, Vec<&Listed>) = files.iter().partition(|file| file.damaged);
    let damaged = damaged.iter().map(|file| file.name.clone()).collect::<Vec<_>>();
    let bytes = intact.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
    let intact = intact.len() as u64;
    show(files, arguments.json)?;
    match damaged.is_empty() {
        true => Ok(()),
        false => Err(failed(AggregateError::Incomplete { damaged, blocked: Vec::new(), intact, bytes })),
    }
}

fn show(files: Vec<Listed>, as_json: bool) -> Outcome {
    if as_json {
        let named = |file: Listed| Listed { name: output::in_json(&file.name), ..file };
        return output::json(&files.into_iter().map(named).collect::<Vec<_>>());
    }
    let mut table = Table::new(&["file", "variable", "type", "shape", ">bytes", ">ratio", "coded by"]);
    for file in files {
        let name = shown(&file.name);
        let what = shown(&file.reason.unwrap_or(file.format));
        let what = if file.damaged { format!("damaged: {what}") } else { what };
        table.row([name.clone(), format!("({what})"), "".into(), "".into(), file.bytes.to_string()]);
        for variable in file.variables {
            let shape: Vec<String> = variable.shape.iter().map(u64::to_string).collect();
            table.row([
                name.clone(),
                shown(&variable.path),
                variable.r#type,
                shape.join("x"),
                variable.bytes.to_string(),
                format!("{:.2}", variable.ratio),
                variable.coded_by,
            ]);
        }
    }
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_can_not_be_kept_to_is_refused() {
        assert_eq!(memory("16MiB"), Ok(16 << 20));
        assert_eq!(memory("0"), memory("16777215"));
        assert!(memory("1MiB").is_err_and(|error| error.contains("16")));
        assert!(memory("x").is_err());
    }

    #[test]
    fn merge_schemes_are_those_of_the_paper() {
        assert_eq!(merge_scheme("aware"), Ok(MergeScheme::Aware));
        assert_eq!(merge_scheme("agnostic-block:64KiB"), Ok(MergeScheme::AgnosticBlock(64 << 10)));
        for bad in ["", "aware:1", "aware-block", "aware-block:0", "agnostic-block:x"] {
            assert!(merge_scheme(bad).is_err(), "{bad}");
        }
    }
}
