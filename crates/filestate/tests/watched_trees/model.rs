//! What a tree holds, read from the disk and read from a snapshot: the plainest model there is.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stdchk_filestate::record::Inode;
use stdchk_filestate::snapshot::{Kind, Snapshot};
use stdchk_filestate::store::DIRECTORY;

/// What a tree holds: kind, permissions, modification time and contents by path; equal inodes share a number.
pub type Tree = BTreeMap<PathBuf, (u32, i64, String, usize)>;

pub fn tree(root: &Path) -> Tree {
    let (mut tree, mut seen, mut to_visit) = (Tree::new(), Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = to_visit.pop() {
        let mut entries: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries.into_iter().filter(|path| !path.ends_with(DIRECTORY)) {
            let about = path.symlink_metadata().unwrap();
            let is_file = about.is_file();
            let contents = if about.is_symlink() {
                std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
            } else if is_file {
                std::fs::read(&path).unwrap()
            } else {
                to_visit.push(path.clone());
                Vec::new()
            };
            let number = seen.iter().position(|inode| *inode == about.ino()).unwrap_or(seen.len());
            seen.push(about.ino());
            let modified = if is_file { about.mtime() * 1_000_000_000 + about.mtime_nsec() } else { 0 };
            let shown = format!("{} bytes, {}", contents.len(), &blake3::hash(&contents).to_hex()[..8]);
            tree.insert(
                path.strip_prefix(root).unwrap().into(),
                (about.permissions().mode(), modified, shown, number),
            );
        }
    }
    tree
}

/// Files by path, with the first name of the same file instead of a number.
pub type Files = BTreeMap<PathBuf, (u32, i64, String, PathBuf)>;

/// The files of a tree.
pub fn files_of(tree: &Tree) -> Files {
    let first = |number: usize| tree.iter().find(|(_, what)| what.3 == number).unwrap().0.clone();
    let files = tree.iter().map(|(path, (bits, modified, shown, number))| {
        (path.clone(), (bits & 0o7777, *modified, shown.clone(), first(*number)))
    });
    files.collect()
}

/// The files of a snapshot, each read in pieces that begin and end within blocks.
pub fn read_all(snapshot: &mut Snapshot) -> stdchk_filestate::Result<Files> {
    let mut first: BTreeMap<Inode, PathBuf> = BTreeMap::new();
    let names: Vec<_> =
        snapshot.names().map(|(path, inode, about)| (path.to_vec(), inode, about.clone())).collect();
    let mut files = Files::new();
    for (path, inode, about) in names {
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&path));
        let contents = match &about.kind {
            Kind::Link(target) => target.clone(),
            Kind::File => {
                let opened = snapshot.open(inode)?;
                let mut bytes = vec![0xff; usize::try_from(about.size).unwrap()];
                let mut at = 0;
                for piece in bytes.chunks_mut(1500) {
                    snapshot.read_at(&opened, at, piece)?;
                    at += piece.len() as u64;
                }
                bytes
            }
            _ => Vec::new(),
        };
        let shown = format!("{} bytes, {}", contents.len(), &blake3::hash(&contents).to_hex()[..8]);
        let modified = if about.kind == Kind::File { about.modified_ns } else { 0 };
        let same = first.entry(inode).or_insert_with(|| path.clone()).clone();
        files.insert(path, (about.bits, modified, shown, same));
    }
    Ok(files)
}
