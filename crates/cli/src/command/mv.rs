//! `stdchk mv`: renames and moves, atomically and without touching content.

use clap::Args;
use stdchk_client::Pool;
use stdchk_model::Ino;
use stdchk_model::message::manager::{Change, Existing, FileKind};

use crate::context::Context;
use crate::exit::{About, CommandError, Outcome};
use crate::namespace;
use crate::paths::Target;

/// What `mv` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Moving a file onto another makes it that file's newest version; the versions there before stay.
A target that is a folder takes the source in under its own name.

Example:
  stdchk mv climate/restart.tmp climate/restart.120000
  stdchk mv climate/run7 archive/")]
pub struct Arguments {
    /// What to move, APP/NAME
    source: String,
    /// Its new name or folder, APP/[NAME]
    target: String,
    /// Fail if the new name exists
    #[arg(short = 'n', long)]
    no_replace: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let source = plain_entry(&arguments.source)?;
    let pool = context.pool().await?;
    let target = destination(&pool, &source, &arguments.target).await?;
    let (parent, name) = place(&pool, &source).await?;
    let (new_parent, new_name) = place(&pool, &target).await?;
    let existing = if arguments.no_replace { Existing::Refuse } else { Existing::Replace };
    let change = Change::Rename { parent, name, new_parent, new_name, existing };
    let about = format!("{} to {}", source.shown(), target.shown());
    pool.change(change).await.map(drop).about(about)
}

fn plain_entry(text: &str) -> Outcome<Target> {
    Target::parse_plain(text)?;
    Target::parse_entry(text)
}

async fn destination(pool: &Pool, source: &Target, text: &str) -> Outcome<Target> {
    let target = Target::parse_plain(text)?;
    let there = namespace::resolve_if_there(pool, &target).await?;
    let into = there.is_some_and(|attr| attr.kind == FileKind::Directory);
    match into || text.ends_with('/') {
        true => target.join(source.name().unwrap_or_default()).about(target.shown()),
        false => Ok(target),
    }
}

/// The folder that holds the name, and the name.
async fn place(pool: &Pool, target: &Target) -> Outcome<(Ino, String)> {
    let Some((name, parents)) = target.split_last() else {
        return Err(CommandError::usage("/", "the root can't be moved", "name something in it"));
    };
    let folder = Target { names: parents.to_vec(), version: None };
    Ok((namespace::resolve_folder(pool, &folder).await?.ino, name.to_owned()))
}
