//! `stdchk du`: how much the kept versions hold, and how much of it is distinct.

use std::collections::HashMap;

use clap::Args;
use serde::Serialize;
use stdchk_client::Pool;
use stdchk_model::message::manager::{Attr, FileKind};
use stdchk_model::{ChunkId, ErrorCode, size};

use crate::context::Context;
use crate::exit::{About, Outcome};
use crate::namespace::{self, Found};
use crate::output::{self, Table};
use crate::paths::Target;

/// What `du` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
`logical` is what the readers of all kept versions see, `distinct` what is left of it when every chunk is counted
once; copies for redundancy are not counted. Lines share chunks: the total is less than their sum.

Example:
  stdchk du
  stdchk du climate --json")]
pub struct Arguments {
    /// A folder or file, APP[/NAME]; without it all applications
    #[arg(default_value = "", hide_default_value = true, value_name = "APP[/NAME]")]
    target: String,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Default, Serialize)]
struct Usage {
    path: String,
    files: u64,
    versions: u64,
    logical_bytes: u64,
    distinct_bytes: u64,
}

#[derive(Serialize)]
struct Report {
    entries: Vec<Usage>,
    total: Usage,
}

type Chunks = HashMap<ChunkId, u32>;

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let target = Target::parse_plain(&arguments.target)?;
    let pool = context.pool().await?;
    let (mut entries, mut total, mut all) = (Vec::new(), Usage::default(), Chunks::new());
    for place in places(&pool, &target).await? {
        let used = namespace::if_still_there(usage(&pool, &place.target).await)?;
        let Some((usage, chunks)) = used else { continue };
        total.files += usage.files;
        total.versions += usage.versions;
        total.logical_bytes += usage.logical_bytes;
        all.extend(chunks);
        entries.push(usage);
    }
    total.path = target.path();
    total.distinct_bytes = bytes(&all);
    match arguments.json {
        true => output::json(&Report { entries, total }),
        false => print(&entries, &total),
    }
}

/// What gets a line: the entries of a folder, or the file.
async fn places(pool: &Pool, target: &Target) -> Outcome<Vec<Found>> {
    let attr = namespace::resolve(pool, target).await?;
    if attr.kind != FileKind::Directory {
        return Ok(vec![Found { target: target.clone(), attr }]);
    }
    let entries = namespace::entries(pool, attr.ino).await.about(target.shown())?;
    let found = |name: &str, attr| Ok(Found { target: target.join(name).about(target.shown())?, attr });
    entries.into_iter().map(|entry| found(&entry.name, entry.attr)).collect()
}

async fn usage(pool: &Pool, target: &Target) -> Outcome<(Usage, Chunks)> {
    let mut usage = Usage { path: target.path(), ..Usage::default() };
    let mut chunks = Chunks::new();
    for file in namespace::files(pool, target).await? {
        let used =
            namespace::of_file(pool, &file.target, async |attr| file_usage(pool, &file.target, &attr).await);
        let Some((found, new)) = namespace::if_still_there(used.await)? else { continue };
        usage.files += found.files;
        usage.versions += found.versions;
        usage.logical_bytes += found.logical_bytes;
        chunks.extend(new);
    }
    usage.distinct_bytes = bytes(&chunks);
    Ok((usage, chunks))
}

async fn file_usage(pool: &Pool, target: &Target, attr: &Attr) -> Outcome<(Usage, Chunks)> {
    let (mut usage, mut chunks) = (Usage { files: 1, ..Usage::default() }, Chunks::new());
    for info in namespace::kept_versions(pool, attr.ino).await.about(target.shown())? {
        let (_, map, pieces) = match pool.chunk_map(attr.ino, Some(info.version)).await {
            Err(failure)
                if failure.code == ErrorCode::NotFound
                    && !namespace::has_version(pool, attr.ino, info.version)
                        .await
                        .about(target.shown())? =>
            {
                continue;
            }
            found => found.about(target.shown())?,
        };
        usage.versions += 1;
        usage.logical_bytes += info.size;
        chunks.extend(map.chunks().iter().chain(&pieces).map(|chunk| (chunk.id, chunk.length)));
    }
    Ok((usage, chunks))
}

fn bytes(chunks: &Chunks) -> u64 {
    chunks.values().map(|length| u64::from(*length)).sum()
}

fn print(entries: &[Usage], total: &Usage) -> Outcome {
    let mut table = Table::new(&[">logical", ">distinct", ">files", ">versions", "name"]);
    let mut row = |usage: &Usage, name: String| {
        let (logical, distinct) = (size::human(usage.logical_bytes), size::human(usage.distinct_bytes));
        table.row([logical, distinct, usage.files.to_string(), usage.versions.to_string(), name]);
    };
    entries.iter().for_each(|usage| row(usage, output::shown(&usage.path)));
    row(total, "total".to_owned());
    table.print()
}
