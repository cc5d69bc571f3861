//! `stdchk files fetch`: a tree as it was at a checkpoint, made anew from its copy in the pool (`run --push`).
//!
//! It grows under a hidden name beside its place and appears there when it is whole and on disk, with a store whose first
//! checkpoint it is: `stdchk run --resume` goes on from there.

use std::fs::File;
use std::io::{self, BufReader, Cursor, PipeReader};
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use stdchk_client::{Pool, Reader};
use stdchk_filestate::store::{Options, Sets, Store};
use stdchk_model::size;

use crate::archive::{self, State};
use crate::command::run::sets;
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome, from_io};
use crate::output::{self, Table};
use crate::paths::Target;
use crate::progress::Progress;
use crate::settings::{PoolFlags, Settings};
use crate::signals::or_interrupted;
use crate::transfer::{copy_out, task_failed};
use crate::{command, namespace};

/// What `files fetch` takes.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The folder of the pool that `run --push` named
    app: String,
    /// The checkpoint [default: the newest in the pool; of a run with --with-sets that of the newest complete set]
    #[arg(long, value_name = "N")]
    index: Option<u64>,
    /// The timestep of a checkpoint set, whose file state is meant
    #[arg(long, value_name = "T", conflicts_with = "index", value_parser = crate::command::restore::timestep)]
    set: Option<u64>,
    /// Where to: a directory that is empty or does not exist
    #[arg(short, long, value_name = "DIR", required_unless_present = "list")]
    output: Option<PathBuf>,
    /// Where the pool is mounted here the folder that `run --with-sets` named [default: where it was]
    #[arg(long, value_name = "FOLDER")]
    with_sets: Option<PathBuf>,
    /// List the file states that the pool has
    #[arg(long, conflicts_with_all = ["index", "set", "output", "with_sets"])]
    list: bool,
}

/// A file state in the pool.
#[derive(Serialize)]
struct Copy {
    version: u64,
    index: u64,
    time: String,
    label: String,
    bytes: u64,
    stored_bytes: u64,
    #[serde(skip)]
    state: State,
    #[serde(skip)]
    reader: Arc<Reader>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, json: bool, flags: &PoolFlags) -> Outcome {
    let context = Context { settings: Settings::load(flags)? };
    // Asked of the pool before the fetching begins: this has a runtime of its own.
    let folder = arguments.with_sets.as_deref().map(|folder| sets::of_folder(folder, flags)).transpose()?;
    let runtime = command::runtime()?;
    runtime.block_on(or_interrupted("files fetch", async {
        let target = archive::target(&arguments.app)?;
        let pool = context.pool_to_move().await?;
        match &arguments.output {
            Some(to) if !arguments.list => {
                let copy = choose(arguments, &pool, &target, &context).await?;
                fetch(&copy, &target, to, folder, context.settings.quiet).await?;
                said(&copy, to, json)
            }
            _ => list(&copies(&pool, &target).await?, json),
        }
    }))
}

/// The file states in the pool, oldest first.
async fn copies(pool: &Pool, target: &Target) -> Outcome<Vec<Copy>> {
    let shown = target.shown();
    let attr = namespace::resolve_if_there(pool, target).await?.ok_or_else(|| none(target))?;
    let mut copies = Vec::new();
    for info in namespace::kept_versions(pool, attr.ino).await.about(&shown)? {
        let reader = pool.read(attr.ino, Some(info.version)).await.about(&shown)?;
        let state = State::read(Cursor::new(head(&reader).await.about(&shown)?))?;
        copies.push(Copy {
            version: info.version,
            index: state.index,
            time: output::time_exact(i64::try_from(state.time_ns).unwrap_or(i64::MAX)),
            label: state.label.clone(),
            bytes: info.size,
            stored_bytes: info.stored_bytes,
            state,
            reader,
        });
    }
    Ok(copies)
}

async fn head(reader: &Arc<Reader>) -> Result<Vec<u8>, stdchk_model::Failure> {
    let mut head = Vec::new();
    while head.len() < archive::HEAD_BYTES {
        let part = reader.read_at(head.len() as u64, archive::HEAD_BYTES - head.len()).await?;
        if part.is_empty() {
            break;
        }
        head.extend_from_slice(&part);
    }
    Ok(head)
}

fn none(target: &Target) -> CommandError {
    let next = "`stdchk run --push APP` makes copies of file states";
    CommandError::new(Exit::NotFound, target.shown(), "the pool has no file state there", next)
}

/// The one that is meant.
async fn choose(arguments: &Arguments, pool: &Pool, target: &Target, context: &Context) -> Outcome<Copy> {
    let copies = copies(pool, target).await?;
    let newest = copies.last().ok_or_else(|| none(target))?;
    let sets = newest.state.options().and_then(|options| options.sets);
    let set = match (arguments.index, arguments.set, sets) {
        (None, None, Some(sets)) => Some(sets::newest_step(context, &sets).await?.ok_or_else(|| {
            let next = "`--index N` fetches a file state that belongs to none";
            CommandError::new(Exit::NotFound, &sets.app, "no checkpoint set is complete", next)
        })?),
        (_, set, _) => set,
    };
    let (index, label) = (arguments.index, set.map(stdchk_filestate::index::set_label));
    let is_meant = |copy: &Copy| {
        index.is_none_or(|index| copy.index == index)
            && label.as_ref().is_none_or(|label| copy.label == *label)
    };
    copies.into_iter().rfind(is_meant).ok_or_else(|| {
        let meant = index.map(|index| format!("checkpoint {index}")).or(label).unwrap_or_default();
        let next = format!("`stdchk files fetch {} --list` shows those that the pool has", arguments.app);
        CommandError::new(Exit::NotFound, meant, "its file state is not in the pool", next)
    })
}

async fn fetch(copy: &Copy, target: &Target, to: &Path, sets: Option<Sets>, quiet: bool) -> Outcome {
    let shown = to.display();
    let to = absolute(to).about(&shown)?;
    refuse_what_is_there(&to)?;
    let mut options = copy.state.options().ok_or_else(|| {
        let next = "it was written by a later version of stdchk";
        CommandError::new(Exit::Integrity, target.shown(), "the options of its run can't be read", next)
    })?;
    options.sets = sets.or(options.sets);
    let parent = to.parent().unwrap_or(Path::new("/"));
    let part = tempfile::Builder::new().prefix(".").suffix(".stdchk-part").tempdir_in(parent);
    let part = part.about(parent.display())?;
    let progress = Progress::start("fetch", copy.reader.size(), quiet);
    unpack(copy, target, part.path(), &progress).await?;
    store(part.path(), &options, &copy.state)?;
    let synced = File::open(part.path()).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
    synced.about(&shown)?;
    std::fs::rename(part.path(), &to).about(&shown)?;
    File::open(parent).and_then(|parent| parent.sync_all()).about(&shown)
}

fn refuse_what_is_there(to: &Path) -> Outcome {
    match std::fs::read_dir(to).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(false) => Err(CommandError::usage(to.display(), "it is not empty", "name a new directory")),
        Err(error) => Err(from_io(&error, to.display())),
    }
}

async fn unpack(copy: &Copy, target: &Target, to: &Path, progress: &Progress) -> Outcome {
    let shown = target.shown();
    let (source, mut sink): (PipeReader, _) = io::pipe().about("a pipe")?;
    let directory = to.to_owned();
    let extracting =
        tokio::task::spawn_blocking(move || archive::extract(BufReader::new(source), &directory));
    let failed = |error: &io::Error| from_io(error, to.display());
    let copied = copy_out(&copy.reader, &shown, &mut sink, failed, progress).await;
    drop(sink);
    let extracted = extracting.await.map_err(|error| task_failed(&error))?;
    match copied {
        // The stream broke off because its reader gave up: that one knows why.
        Err(_) if extracted.is_err() && is_about_the_files(&extracted) => extracted.about(to.display()),
        Err(error) => Err(error),
        Ok(()) => extracted.about(to.display()),
    }
}

/// Whether the files could not be made, rather than the stream not be read.
fn is_about_the_files(extracted: &io::Result<()>) -> bool {
    extracted.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::UnexpectedEof)
}

/// The store of the tree: what is there is its first checkpoint.
fn store(root: &Path, options: &Options, state: &State) -> Outcome {
    let store = Store::create_at(root, options, state.index, state.time_ns, state.label.clone());
    let store = store.map_err(super::failed)?;
    if state.ended { store.mark_ended().map_err(super::failed) } else { Ok(()) }
}

fn said(copy: &Copy, to: &Path, json: bool) -> Outcome {
    if json {
        return output::json(copy);
    }
    output::line(format_args!(
        "{}: as at checkpoint {}, {}, taken for {}; `stdchk run --resume` goes on from there",
        to.display(),
        copy.index,
        output::time(i64::try_from(copy.state.time_ns).unwrap_or(i64::MAX)),
        output::shown(&copy.label)
    ))
}

fn list(copies: &[Copy], json: bool) -> Outcome {
    if json {
        return output::json(&copies);
    }
    let mut table = Table::new(&[">index", "time", ">size", ">new", "taken for"]);
    for copy in copies {
        let time = output::time(i64::try_from(copy.state.time_ns).unwrap_or(i64::MAX));
        let (size, new) = (size::human(copy.bytes), size::human(copy.stored_bytes));
        table.row([copy.index.to_string(), time, size, new, output::shown(&copy.label)]);
    }
    table.print()
}
