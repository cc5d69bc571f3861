//! `stdchk key`: the keys with which this client encrypts what it stores, so that those who keep it can't read it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use stdchk_client::KeyRing;
use stdchk_model::KeyId;
use stdchk_operations::{About, PolicyChange, Target};

use crate::context::Context;
use crate::exit::{CommandError, Outcome};
use crate::output;

/// What `key` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys lie on this host alone, in the folder of `--encryption-keys`. The pool has none of them: WHO LOSES A KEY LOSES ALL FILES THAT ARE
ENCRYPTED WITH IT. Keep what `stdchk key export` prints in a safe place. Removing a file of that folder is how a key is forgotten.

Example:
  stdchk key create                                      prints the new key's id
  stdchk policy set climate encryption=0a1b2c3d4e5f60718293a4b5
  stdchk key export 0a1b2c3d4e5f60718293a4b5 > safe/climate.key
  stdchk key import safe/climate.key                     on another host
  stdchk key rotate climate                              a new key for what is written from now on")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Make a key and print its id
    #[command(after_help = "Example:\n  stdchk policy set climate encryption=$(stdchk key create)")]
    Create,
    /// List the ids of this host's keys
    #[command(after_help = "Example:\n  stdchk key list --json")]
    List {
        /// Report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a key, for another host and to be kept; who has it reads the files
    #[command(after_help = "Example:\n  stdchk key export 0a1b2c3d4e5f60718293a4b5 > safe/climate.key")]
    Export {
        /// The key's id
        key: KeyId,
    },
    /// Take in a key that `export` printed
    #[command(after_help = "Example:\n  stdchk key import safe/climate.key")]
    Import {
        /// The file with the key; `-` is standard input
        file: PathBuf,
    },
    /// Make a new key and let a folder be encrypted with it from now on; older files need the older keys
    #[command(after_help = "Example:\n  stdchk key rotate climate")]
    Rotate {
        /// The folder, APP[/FOLDER]
        app: String,
    },
}

/// A key as JSON has it.
#[derive(Serialize)]
struct Shown {
    id: KeyId,
}

/// Longest file that is looked at for a key, bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let folder = &context.settings.encryption_keys;
    let ring = KeyRing::new(Some(folder.clone()));
    match &arguments.action {
        Action::Create => create(&ring, folder, context).and_then(output::line),
        Action::List { json } => list(&ring, *json),
        Action::Export { key } => output::line(ring.export(*key).about("")?.trim_end()),
        Action::Import { file } => import(&ring, file).and_then(output::line),
        Action::Rotate { app } => rotate(&ring, folder, app, context).await,
    }
}

fn create(ring: &KeyRing, folder: &Path, context: &Context) -> Outcome<KeyId> {
    let key = ring.create().about("")?;
    if !context.settings.quiet {
        output::note(format_args!(
            "made key {key} in {}. Without it nobody reads what is encrypted with it: keep what `stdchk key export {key}` prints \
             in a safe place",
            folder.display()
        ));
    }
    Ok(key)
}

fn list(ring: &KeyRing, json: bool) -> Outcome {
    let keys = ring.list().about("")?;
    if json {
        let shown: Vec<Shown> = keys.into_iter().map(|id| Shown { id }).collect();
        return output::json(&shown);
    }
    keys.into_iter().try_for_each(output::line)
}

fn import(ring: &KeyRing, file: &Path) -> Outcome<KeyId> {
    let mut text = String::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().take(FILE_BYTES_MAX).read_to_string(&mut text),
        false => fs::File::open(file).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)),
    };
    read.about(file.display())?;
    Ok(ring.import(&text).about(file.display())?)
}

async fn rotate(ring: &KeyRing, folder: &Path, app: &str, context: &Context) -> Outcome {
    Target::parse_plain(app)?;
    let target = Target::parse_entry(app)?;
    let pool = context.pool().await?;
    let Some(old) = pool.policy(&target).await?.encryption else {
        let next = format!("`stdchk policy set {app} encryption=$(stdchk key create)` begins with that");
        return Err(CommandError::usage(target.shown(), "the folder isn't encrypted", next));
    };
    let new = create(ring, folder, context)?;
    let pairs = vec![("encryption".to_owned(), new.to_string())];
    pool.set_policy(&PolicyChange { folder: target, pairs }).await?;
    if !context.settings.quiet {
        output::note(format_args!(
            "files that were written before need key {old}: keep it as long as there are any"
        ));
    }
    output::line(new)
}
