//! A file state as one stream: what `run --push` writes into the pool, and `files fetch` reads from it.
//!
//! The one idea: it is a tar archive, so that any `tar` can take a tree out of the pool without stdchk. Its first file,
//! [`STATE`], says which checkpoint of which run it is; its place is where the store of a run lies, and a new run replaces
//! it. Names, links and times are kept to the byte and the nanosecond: long names by GNU's extension, which holds any
//! bytes, times by that of POSIX.

mod extract;
mod write;

use std::io::Read;

use serde::{Deserialize, Serialize};
use stdchk_filestate::driver;
use stdchk_filestate::index::Entry;
use stdchk_filestate::store::Options;

use crate::error::{Code, Error, Result};
use crate::target::Target;

pub use extract::extract;
pub use write::write;

/// The file that says what it is.
const STATE: &str = ".stdchk-files/state";
/// The version of what it says.
const FORMAT: u32 = 1;
/// The longest such file that is read: patterns of names are its largest part.
const STATE_BYTES_MAX: u64 = 64 * 1024;
/// How much of a stream is needed to read it.
pub const HEAD_BYTES: usize = 72 * 1024;
/// Where the file states of an application lie in its folder.
pub const FOLDER: &str = ".files";
/// The file whose versions they are.
const NAME: &str = "tree.tar";

/// The file of the pool in which the file states of an application are kept.
pub fn target(app: &Target) -> Result<Target> {
    if app.names.is_empty() {
        let next = "write the name of the application's folder";
        return Err(Error::invalid("/", "file states live in an application's folder", next));
    }
    let names = app.names.iter().cloned().chain([FOLDER, NAME].map(str::to_owned));
    Ok(Target { names: names.collect(), version: None })
}

/// Which checkpoint of which run a stream is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    format: u32,
    /// The checkpoint index.
    pub index: u64,
    /// When it was taken, in nanoseconds since the epoch.
    pub time_ns: u64,
    /// What it was taken for.
    pub label: String,
    /// Whether the run had ended by itself.
    pub ended: bool,
    options: String,
}

impl State {
    /// The checkpoint `entry` of a run with these options.
    pub fn new(entry: &Entry, options: &Options) -> Self {
        Self {
            format: FORMAT,
            index: entry.index,
            time_ns: entry.time_ns,
            label: entry.label.clone(),
            ended: entry.label == driver::END,
            options: options.to_lines(),
        }
    }

    /// The options of the run.
    pub fn options(&self) -> Option<Options> {
        Options::from_lines(&self.options)
    }

    /// Reads it from the beginning of a stream.
    pub fn read(stream: impl Read) -> Result<Self> {
        let mut archive = tar::Archive::new(stream);
        let state = archive.entries().ok().and_then(|mut entries| state_of(entries.next()?.ok()?));
        state.filter(|state: &Self| state.format == FORMAT).ok_or_else(|| {
            let next = "it was written by something else, or by a later version of stdchk";
            Error::new(Code::Damaged, NAME, "it does not begin with a file state", next)
        })
    }
}

fn state_of(entry: tar::Entry<'_, impl Read>) -> Option<State> {
    if *entry.path_bytes() != *STATE.as_bytes() {
        return None;
    }
    let mut text = Vec::new();
    entry.take(STATE_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    //! What goes in comes out, whatever the names; what is not ours is refused.

    use std::collections::BTreeMap;
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use stdchk_filestate::checkpoint;
    use stdchk_filestate::control::Control;
    use stdchk_filestate::snapshot::Snapshot;
    use stdchk_filestate::store::Store;

    use super::*;

    type Tree = BTreeMap<PathBuf, (u32, i64, u64, Vec<u8>)>;

    fn tree(root: &Path) -> Tree {
        let (mut tree, mut to_visit) = (Tree::new(), vec![root.to_owned()]);
        while let Some(directory) = to_visit.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let about = path.symlink_metadata().unwrap();
                let mut modified = about.mtime() * 1_000_000_000 + about.mtime_nsec();
                let content = if path.ends_with(".stdchk-files") {
                    continue;
                } else if about.is_dir() {
                    to_visit.push(path.clone());
                    Vec::new()
                } else if about.is_symlink() {
                    std::fs::read_link(&path).unwrap().into_os_string().into_vec()
                } else if about.is_file() {
                    std::fs::read(&path).unwrap()
                } else {
                    Vec::new()
                };
                if !about.is_file() {
                    modified = 0;
                }
                let links = if about.is_file() { about.nlink() } else { 0 };
                tree.insert(
                    path.strip_prefix(root).unwrap().into(),
                    (about.mode(), modified, links, content),
                );
            }
        }
        tree
    }

    fn archived(root: &Path) -> Vec<u8> {
        let store = Arc::new(Store::create(root, &Options::default()).unwrap());
        let control = Arc::new(Control::open(&store).unwrap());
        checkpoint::take(&store, &control, "set 7").unwrap();
        let mut snapshot = Snapshot::of_newest(&store, &control).unwrap();
        let state = State::new(snapshot.entry(), &store.options);
        let mut stream = Vec::new();
        let left_out = write(&mut snapshot, root, &state, &mut stream).unwrap();
        assert_eq!(left_out, 1, "the socket");
        stream
    }

    #[test]
    fn a_tree_comes_back_with_odd_names_links_holes_and_permissions() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = from.path();
        let odd = root.join(std::ffi::OsString::from_vec(b"odd \n\xff name".to_vec()));
        let deep = root.join("long".repeat(30)).join("deeper".repeat(30));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("x".repeat(200)), b"deep").unwrap();
        std::fs::write(&odd, b"odd").unwrap();
        std::fs::hard_link(&odd, root.join("same")).unwrap();
        symlink("../up//and/./down/", root.join("link")).unwrap();
        symlink("t".repeat(500), root.join("long link")).unwrap();
        let sparse = std::fs::File::create(root.join("sparse")).unwrap();
        sparse.set_len(64 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"middle", 30 << 20).unwrap();
        std::fs::create_dir(root.join("closed")).unwrap();
        std::fs::write(root.join("closed/in it"), b"").unwrap();
        std::fs::set_permissions(root.join("closed/in it"), PermissionsExt::from_mode(0o400)).unwrap();
        std::fs::set_permissions(root.join("closed"), PermissionsExt::from_mode(0o500)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let stream = archived(root);
        std::fs::remove_file(root.join("socket")).unwrap();

        assert_eq!(State::read(&stream[..]).unwrap().label, "set 7");
        extract(&stream[..], to.path()).unwrap();
        assert_eq!(tree(to.path()), tree(root));
        assert!(to.path().join("sparse").metadata().unwrap().blocks() < 1024, "holes came back as zeros");
    }

    #[test]
    fn a_stream_that_is_cut_off_or_leads_out_of_the_tree_is_refused() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join("file"), vec![7; 5000]).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(from.path().join("socket")).unwrap();
        let stream = archived(from.path());
        for length in [stream.len() - 4096, stream.len() / 2, 100] {
            assert!(extract(&stream[..length], to.path()).is_err(), "cut to {length}");
        }
        let outside = tempfile::tempdir().unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "out", outside.path()).unwrap();
        header = tar::Header::new_gnu();
        header.set_size(1);
        builder.append_data(&mut header, "out/file", &b"x"[..]).unwrap();
        assert!(extract(&builder.into_inner().unwrap()[..], to.path()).is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
