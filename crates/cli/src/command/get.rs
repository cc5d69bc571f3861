//! `stdchk get`: one version of one file comes back, every chunk verified before a byte of it is written.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use stdchk_client::Reader;
use stdchk_model::size;

use crate::context::Context;
use crate::exit::{About, CommandError, Outcome, from_io};
use crate::paths::Target;
use crate::progress::{Progress, rate};
use crate::transfer::{NewFile, copy_out, is_special};
use crate::{namespace, output};

/// What `get` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Without -o the file is written under its own name into the current folder. It appears once it is whole, verified
and on disk; a file that has the name is replaced.

Example:
  stdchk get climate/restart.120000
  stdchk get climate/restart.120000@3 -o old.restart
  stdchk get climate/state.tar -o - | tar x")]
pub struct Arguments {
    /// The file, APP/NAME[@VERSION]
    target: String,
    /// Where to: a file, an existing folder, a device, or `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let target = Target::parse_entry(&arguments.target)?;
    let pool = context.pool_to_move().await?;
    let reader = namespace::open(&pool, &target).await?;
    let quiet = context.settings.quiet;
    match arguments.output.as_deref() {
        Some(path) if path == Path::new("-") => {
            to_stream(&reader, &target, quiet, &mut io::stdout(), output::unwritten).await
        }
        Some(path) if is_special(path) => {
            let failed = |error: &io::Error| from_io(error, path.display());
            let mut device = File::options().write(true).open(path).about(path.display())?;
            to_stream(&reader, &target, quiet, &mut device, failed).await
        }
        path => to_file(&reader, &target, &destination(path, &target), quiet).await,
    }
}

/// Where the file goes: as told, into a folder under its own name, or here.
fn destination(path: Option<&Path>, target: &Target) -> PathBuf {
    let name = target.name().unwrap_or_default();
    match path {
        None => PathBuf::from(name),
        Some(path) if path.is_dir() => path.join(name),
        Some(path) => path.to_owned(),
    }
}

async fn to_stream(
    reader: &Arc<Reader>,
    target: &Target,
    quiet: bool,
    sink: &mut (dyn Write + Send),
    failed: impl Fn(&io::Error) -> CommandError,
) -> Outcome {
    let progress = Progress::start("get", reader.size(), quiet);
    copy_out(reader, &target.shown(), sink, &failed, &progress).await?;
    sink.flush().map_err(|error| failed(&error))
}

async fn to_file(reader: &Arc<Reader>, target: &Target, path: &Path, quiet: bool) -> Outcome {
    let (started, size) = (Instant::now(), reader.size());
    let progress = Progress::start("get", size, quiet);
    fetch(reader, &target.shown(), path, &progress).await?;
    drop(progress);
    if !quiet {
        let rate = size::human(rate(size, started.elapsed()));
        let shown = output::shown(&path.display().to_string());
        output::note(format_args!("get: {shown}, {}, verified, {rate}/s", size::human(size)));
    }
    Ok(())
}

/// Fetches a version into a local file, which appears once it is whole, with the mode of the file and the time of the version.
pub async fn fetch(reader: &Arc<Reader>, name: &str, path: &Path, progress: &Progress) -> Outcome {
    let mut file = NewFile::start(path)?;
    let failed = |error: &io::Error| from_io(error, path.display());
    copy_out(reader, name, &mut file, failed, progress).await?;
    tokio::task::block_in_place(|| file.finish(reader.opened().mode, reader.mtime()))
}
