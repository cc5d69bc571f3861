//! Sets of checkpoint files for the measures that pack: where they come from, and the ways to make them smaller that more
//! than one measure compares. A set is a folder of files.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;
use crate::bench::Bench;

/// The sets that were given, or a small one made up below `scratch`.
pub fn of(bench: &Bench, scratch: &Path) -> Result<Vec<PathBuf>, Error> {
    match &bench.sets {
        Some(folder) => folders(folder),
        None => Ok(vec![small_set(&scratch.join("small"))?]),
    }
}

fn folders(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut folders: Vec<PathBuf> =
        entries.iter().map(fs::DirEntry::path).filter(|path| path.is_dir()).collect();
    folders.sort();
    Ok(folders)
}

/// Four ranks of a smooth field, as `.npy`.
fn small_set(folder: &Path) -> Result<PathBuf, Error> {
    fs::create_dir_all(folder)?;
    for rank in 0..4_u32 {
        let literal = "{'descr': '<f8', 'fortran_order': False, 'shape': (256, 128), }";
        let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        bytes.extend(format!("{literal:<117}\n").into_bytes());
        let value =
            |n: u32| (f64::from(n % 128) / 40.0).sin() * (f64::from(n / 128 + rank * 256) / 60.0).cos();
        bytes.extend((0..256 * 128).flat_map(|n| value(n).to_le_bytes()));
        fs::write(folder.join(format!("field.{rank}.npy")), bytes)?;
    }
    Ok(folder.to_owned())
}

/// The names of a set's files.
pub fn files_of(set: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(set)?.collect::<std::io::Result<Vec<_>>>()?;
    let files = entries.iter().filter(|entry| entry.path().is_file());
    let mut names: Vec<PathBuf> = files.map(|entry| entry.file_name().into()).collect();
    names.sort();
    Ok(names)
}

/// The bytes of its files.
pub fn contents(set: &Path) -> Result<Vec<Vec<u8>>, Error> {
    files_of(set)?.iter().map(|name| Ok(fs::read(set.join(name))?)).collect()
}

/// Pieces of all files in turn.
pub fn interleaved(files: &[Vec<u8>], length: usize) -> Vec<u8> {
    let longest = files.iter().map(Vec::len).max().unwrap_or(0);
    let piece = |file: &Vec<u8>, start: usize| {
        file.get(start.min(file.len())..(start + length).min(file.len())).unwrap_or_default().to_vec()
    };
    (0..longest)
        .step_by(length)
        .flat_map(|start| files.iter().flat_map(move |file| piece(file, start)))
        .collect()
}

/// What a set is called in tables.
pub fn name_of(set: &Path) -> String {
    set.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What `gzip -6` makes of the bytes, the paper's general compressor.
pub fn gzipped(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// Packs a set with these options of `stdchk pack` into `scratch/container`; its bytes.
pub fn pack(bench: &Bench, set: &Path, scratch: &Path, options: &[&str]) -> Result<usize, Error> {
    let container = scratch.join("container");
    let mut command = Command::new(&bench.stdchk);
    succeed(command.arg("pack").arg(set).arg("-o").arg(&container).args(options))?;
    Ok(usize::try_from(fs::metadata(&container)?.len()).unwrap_or(usize::MAX))
}

/// Runs a program in silence.
pub fn succeed(command: &mut Command) -> Result<(), Error> {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(Error(format!("{command:?} ended with {status}"))) }
}
