//! mcrEngine's merge schemes over the passes of compression, the number of files merged and the length of interleaved
//! pieces (figures 6, 7 and 8), and what each set consists of (table III).
//!
//! All with the paper's coders, so that only the merging differs. The sets in their order are figure 9's series.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use stdchk_model::size;

use crate::Error;
use crate::bench::{Bench, Size};
use crate::measures::sets::{self, contents, gzipped, interleaved, name_of, pack};
use crate::section::Section;

/// Length of pieces where it is not what is looked at, bytes.
const PIECE: usize = 64 << 10;
/// Lengths of pieces, bytes.
const PIECES: [usize; 5] = [4 << 10, 16 << 10, PIECE, 256 << 10, 1 << 20];

/// Table III.
#[derive(Serialize)]
struct Characteristics {
    set: String,
    files: usize,
    bytes: u64,
    smallest_bytes: u64,
    largest_bytes: u64,
    variables: usize,
    fewest_variables: usize,
    most_variables: usize,
    /// Share of the variables, percent.
    doubles: f64,
    floats: f64,
    other: f64,
}

#[derive(Serialize)]
struct Merged {
    set: String,
    scheme: &'static str,
    /// Files merged with each other.
    group_size: usize,
    /// Of interleaved pieces; nothing where files or variables follow each other.
    piece_bytes: Option<usize>,
    ratio: f64,
}

/// Figure 6.
#[derive(Serialize)]
struct Passes {
    set: String,
    scheme: &'static str,
    /// Ratio after one pass of compression, and after two.
    single: f64,
    double: f64,
}

/// What `stdchk pack --list --json` says of a file.
#[derive(Deserialize)]
struct Listed {
    bytes: u64,
    variables: Vec<Variable>,
}

#[derive(Deserialize)]
struct Variable {
    r#type: String,
}

/// Measures every set.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let scratch = tempfile::Builder::new().prefix("merging-").tempdir_in(&bench.dir)?;
    let (mut sets, mut passes, mut merged) = (Vec::new(), Vec::new(), Vec::new());
    for set in sets::of(bench, scratch.path())? {
        sets.push(characteristics(bench, &set, scratch.path())?);
        passes.extend(over_passes(bench, &set, scratch.path())?);
        merged.extend(over_groups_and_pieces(bench, &set, scratch.path())?);
    }
    let table = table(&sets, &passes, &merged);
    let rows = serde_json::json!({ "sets": sets, "passes": passes, "merged": merged });
    Ok(Section { rows, table, targets: Vec::new() })
}

fn characteristics(bench: &Bench, set: &Path, scratch: &Path) -> Result<Characteristics, Error> {
    pack(bench, set, scratch, &["--level", "fastest"])?;
    let listed = Command::new(&bench.stdchk)
        .args(["pack", "--json", "--list"])
        .arg(scratch.join("container"))
        .output()?;
    let files: Vec<Listed> = serde_json::from_slice(&listed.stdout)?;
    let sizes = || files.iter().map(|file| file.bytes);
    let counts = || files.iter().map(|file| file.variables.len());
    let variables = counts().sum::<usize>();
    let share = |kind: &str| {
        let all = files.iter().flat_map(|file| &file.variables);
        100.0 * all.filter(|variable| variable.r#type.starts_with(kind)).count() as f64
            / variables.max(1) as f64
    };
    let (doubles, floats) = (share("F64"), share("F32"));
    Ok(Characteristics {
        set: name_of(set),
        files: files.len(),
        bytes: sizes().sum(),
        smallest_bytes: sizes().min().unwrap_or(0),
        largest_bytes: sizes().max().unwrap_or(0),
        variables,
        fewest_variables: counts().min().unwrap_or(0),
        most_variables: counts().max().unwrap_or(0),
        doubles,
        floats,
        other: if variables == 0 { 0.0 } else { 100.0 - doubles - floats },
    })
}

/// The second pass is always gzip. Pieces in turn without types hardly differ from files in turn, so they are left out as
/// in the paper.
fn over_passes(bench: &Bench, set: &Path, scratch: &Path) -> Result<Vec<Passes>, Error> {
    let whole = contents(set)?.concat();
    let ratio = |stored: usize| whole.len() as f64 / stored.max(1) as f64;
    let once = gzipped(&whole)?;
    let (single, double) = (ratio(once.len()), ratio(gzipped(&once)?.len()));
    let mut passes = vec![Passes { set: name_of(set), scheme: "Agnostic", single, double }];
    for (scheme, merge) in [("Aware", "aware"), ("Aware-Block", "aware-block:64KiB")] {
        let stored = |level| pack(bench, set, scratch, &["--level", level, "--merge", merge]);
        let (single, double) = (ratio(stored("paper-once")?), ratio(stored("paper")?));
        passes.push(Passes { set: name_of(set), scheme, single, double });
    }
    Ok(passes)
}

fn over_groups_and_pieces(bench: &Bench, set: &Path, scratch: &Path) -> Result<Vec<Merged>, Error> {
    let files = contents(set)?;
    let raw = files.iter().map(Vec::len).sum::<usize>() as f64;
    let mut merged = Vec::new();
    let mut add = |scheme, group_size, piece_bytes, stored: usize| {
        let ratio = raw / stored.max(1) as f64;
        merged.push(Merged { set: name_of(set), scheme, group_size, piece_bytes, ratio });
    };
    let all = files.len().max(1);
    let few = bench.size == Size::Tiny;
    let group_sizes = (0..).map(|power| 1 << power).take_while(|size| *size < all && !few).chain([all]);
    for group_size in group_sizes {
        let pieces = PIECES.into_iter().filter(|piece| *piece == PIECE || (group_size == all && !few));
        for piece in pieces {
            let stored =
                of_groups(&files, group_size, |group| Ok(gzipped(&interleaved(group, piece))?.len()))?;
            add("Agnostic-Block", group_size, Some(piece), stored);
            let merge = format!("aware-block:{}", size::exact(piece as u64));
            let stored = pack(bench, set, scratch, &paper(&merge, &group_size.to_string()))?;
            add("Aware-Block", group_size, Some(piece), stored);
        }
        add(
            "Agnostic",
            group_size,
            None,
            of_groups(&files, group_size, |group| Ok(gzipped(&group.concat())?.len()))?,
        );
        let stored = pack(bench, set, scratch, &paper("aware", &group_size.to_string()))?;
        add("Aware", group_size, None, stored);
    }
    Ok(merged)
}

fn paper<'word>(merge: &'word str, group_size: &'word str) -> [&'word str; 6] {
    ["--level", "paper", "--merge", merge, "--group", group_size]
}

/// The bytes of all groups of files, each compressed by itself.
fn of_groups(
    files: &[Vec<u8>],
    group_size: usize,
    stored: impl Fn(&[Vec<u8>]) -> Result<usize, Error>,
) -> Result<usize, Error> {
    files.chunks(group_size).map(stored).sum()
}

fn table(sets: &[Characteristics], passes: &[Passes], merged: &[Merged]) -> String {
    let mut lines = vec![format!(
        "{:24} {:>6} {:>12} {:>23} {:>10} {:>13} {:>8} {:>8} {:>8}",
        "set",
        "files",
        "bytes",
        "smallest, largest",
        "variables",
        "fewest, most",
        "f64 %",
        "f32 %",
        "other %"
    )];
    lines.extend(sets.iter().map(|one| {
        let sizes = format!("{}, {}", one.smallest_bytes, one.largest_bytes);
        let counts = format!("{}, {}", one.fewest_variables, one.most_variables);
        format!(
            "{:24} {:>6} {:>12} {sizes:>23} {:>10} {counts:>13} {:>8.1} {:>8.1} {:>8.1}",
            one.set, one.files, one.bytes, one.variables, one.doubles, one.floats, one.other
        )
    }));
    lines.push(format!("\n{:24} {:16} {:>8} {:>8}   ratio after passes", "set", "scheme", "one", "two"));
    lines.extend(
        passes
            .iter()
            .map(|one| format!("{:24} {:16} {:>8.3} {:>8.3}", one.set, one.scheme, one.single, one.double)),
    );
    lines.push(format!("\n{:24} {:16} {:>8} {:>10} {:>8}", "set", "scheme", "group", "piece", "ratio"));
    lines.extend(merged.iter().map(|one| {
        let piece = one.piece_bytes.map_or_else(String::new, |bytes| size::exact(bytes as u64));
        format!("{:24} {:16} {:>8} {piece:>10} {:>8.3}", one.set, one.scheme, one.group_size, one.ratio)
    }));
    lines.join("\n") + "\n"
}
