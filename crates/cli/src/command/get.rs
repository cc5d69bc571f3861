//! `stdchk get`: one version of one file comes back, every chunk verified before a byte of it is written.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use stdchk_model::size;
use stdchk_operations::{Code, Target, is_special};

use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::output;
use crate::progress::rate;

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
    let (pool, watch) = (context.pool_to_move().await?, context.watch());
    match arguments.output.as_deref() {
        Some(path) if path == Path::new("-") => {
            match pool.get_to(&target, &mut io::stdout(), "standard output", &watch).await {
                Err(error) if error.code == Code::BrokenPipe => Err(CommandError::reported(Exit::BrokenPipe)),
                written => Ok(written.map(drop)?),
            }
        }
        Some(path) if is_special(path) => {
            let shown = path.display().to_string();
            let mut device = File::options().write(true).open(path).about(&shown)?;
            Ok(pool.get_to(&target, &mut device, &shown, &watch).await.map(drop)?)
        }
        path => {
            let started = Instant::now();
            let here = || PathBuf::from(target.name().unwrap_or_default());
            let fetched = pool.get(&target, &path.map_or_else(here, Path::to_owned), &watch).await?;
            if !context.settings.quiet {
                let shown = output::shown(&fetched.path.display().to_string());
                let rate = size::human(rate(fetched.bytes, started.elapsed()));
                output::note(format_args!(
                    "get: {shown}, {}, verified, {rate}/s",
                    size::human(fetched.bytes)
                ));
            }
            Ok(())
        }
    }
}
