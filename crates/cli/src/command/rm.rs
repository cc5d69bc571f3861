//! `stdchk rm`: removes files, single versions and, only with `-r`, folders.
//!
//! Space comes back with the next collection; chunks that other versions use stay.

use clap::Args;
use stdchk_client::Pool;
use stdchk_model::Ino;
use stdchk_model::message::manager::{Change, FileKind};

use crate::context::Context;
use crate::exit::{About, CommandError, Outcome, Parts};
use crate::paths::Target;
use crate::{namespace, output};

/// What `rm` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Content that other versions use stays; the space of the rest comes back with the next collection (`stdchk gc` is one).

Example:
  stdchk rm climate/restart.120000
  stdchk rm climate/restart.130000@2
  stdchk rm -r climate/run7")]
pub struct Arguments {
    /// Files, versions or folders, APP/NAME[@VERSION]
    #[arg(required = true, value_name = "APP/NAME[@VERSION]")]
    targets: Vec<String>,
    /// Remove folders with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let pool = context.pool().await?;
    let mut parts = Parts::default();
    for text in &arguments.targets {
        parts.add(remove(&pool, text, arguments).await)?;
    }
    parts.outcome()
}

async fn remove(pool: &Pool, text: &str, arguments: &Arguments) -> Outcome {
    let target = Target::parse_entry(text)?;
    let attr = namespace::resolve(pool, &target).await?;
    if let Some(version) = target.version {
        namespace::resolve_file(pool, &target).await?;
        return apply(pool, &target, Change::DropVersion { ino: attr.ino, version }, arguments.dry_run).await;
    }
    if attr.kind == FileKind::Directory && !arguments.recursive {
        return Err(CommandError::usage(
            target.shown(),
            "it is a folder",
            "add -r to remove it with all in it",
        ));
    }
    // What is in a folder goes before the folder.
    for found in namespace::tree(pool, &target).await?.iter().rev() {
        let change = removal(pool, &found.target, found.attr.kind).await?;
        apply(pool, &found.target, change, arguments.dry_run).await?;
    }
    Ok(())
}

async fn removal(pool: &Pool, target: &Target, kind: FileKind) -> Outcome<Change> {
    let Some((name, parents)) = target.split_last() else {
        return Err(CommandError::usage("/", "the root can't be removed", "name a folder in it"));
    };
    let parent = match parents {
        [] => Ino::ROOT,
        parents => pool.resolve(&parents.join("/")).await.about(target.shown())?.ino,
    };
    let name = name.to_owned();
    Ok(match kind {
        FileKind::Directory => Change::Rmdir { parent, name },
        _ => Change::Unlink { parent, name },
    })
}

async fn apply(pool: &Pool, target: &Target, change: Change, dry_run: bool) -> Outcome {
    match dry_run {
        true => output::line(format_args!("would remove {}", target.shown())),
        false => pool.change(change).await.map(drop).about(target.shown()),
    }
}
