//! `stdchk get`: one version of one file comes back, every chunk verified before a byte of it is written.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use stdchk_client::Pool;
use stdchk_model::message::manager::Attr;
use stdchk_model::{Failure, size};

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
    let attr = namespace::resolve_file(&pool, &target).await?;
    let quiet = context.settings.quiet;
    match arguments.output.as_deref() {
        Some(path) if path == Path::new("-") => {
            to_stream(&pool, &target, &attr, quiet, &mut io::stdout(), output::unwritten).await
        }
        Some(path) if is_special(path) => {
            let failed = |error: &io::Error| from_io(error, path.display());
            let mut device = File::options().write(true).open(path).about(path.display())?;
            to_stream(&pool, &target, &attr, quiet, &mut device, failed).await
        }
        path => to_file(&pool, &target, &attr, &destination(path, &target), quiet).await,
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
    pool: &Pool,
    target: &Target,
    attr: &Attr,
    quiet: bool,
    sink: &mut (dyn Write + Send),
    failed: impl Fn(&io::Error) -> CommandError,
) -> Outcome {
    let reader = pool.read(attr.ino, target.version).await.about(target.shown())?;
    let progress = Progress::start("get", reader.size(), quiet);
    copy_out(&reader, &target.shown(), sink, &failed, &progress).await?;
    sink.flush().map_err(|error| failed(&error))
}

async fn to_file(pool: &Pool, target: &Target, attr: &Attr, path: &Path, quiet: bool) -> Outcome {
    let started = Instant::now();
    let size = pool.read(attr.ino, target.version).await.about(target.shown())?.size();
    let progress = Progress::start("get", size, quiet);
    fetch(pool, &target.shown(), attr, target.version, path, &progress).await?;
    drop(progress);
    if !quiet {
        let rate = size::human(rate(size, started.elapsed()));
        let shown = output::shown(&path.display().to_string());
        output::note(format_args!("get: {shown}, {}, verified, {rate}/s", size::human(size)));
    }
    Ok(())
}

/// Fetches one version into a local file, which appears once it is whole.
pub async fn fetch(
    pool: &Pool,
    name: &str,
    attr: &Attr,
    version: Option<u64>,
    path: &Path,
    progress: &Progress,
) -> Outcome {
    let reader = pool.read(attr.ino, version).await.about(name)?;
    let mtime = modified(pool, attr, reader.version()).await.about(name)?;
    let mut file = NewFile::start(path)?;
    let failed = |error: &io::Error| from_io(error, path.display());
    copy_out(&reader, name, &mut file, failed, progress).await?;
    tokio::task::block_in_place(|| file.finish(attr.mode, mtime))
}

/// The modification time of a version; that of the file if it has none.
async fn modified(pool: &Pool, attr: &Attr, version: Option<u64>) -> Result<i64, Failure> {
    if version.is_none_or(|version| version == attr.version) {
        return Ok(attr.mtime);
    }
    let versions = pool.versions(attr.ino).await?;
    Ok(versions.iter().find(|info| Some(info.version) == version).map_or(attr.mtime, |info| info.mtime))
}
