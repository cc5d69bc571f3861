//! From a snapshot into a stream.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use stdchk_filestate::record::Inode;
use stdchk_filestate::snapshot::{About, Kind, Opened, Snapshot};
use tar::{Builder, EntryType, Header};

use super::{STATE, State};

/// A link that is longer stands in an entry of its own before it.
const LINK_BYTES_MAX: usize = 100;

/// Writes all of `snapshot`, the tree at `root`, to `sink`. How many names could not be part of it: sockets and devices.
pub fn write(snapshot: &mut Snapshot, root: &Path, state: &State, sink: impl Write) -> io::Result<u64> {
    let mut stream = Stream { builder: Builder::new(sink), written: HashMap::new(), left_out: 0 };
    stream.state(state, root)?;
    let names: Vec<(Vec<u8>, Inode, About)> =
        snapshot.names().map(|(path, inode, about)| (path.to_vec(), inode, about.clone())).collect();
    for (path, inode, about) in names {
        stream.add(snapshot, path, inode, &about)?;
    }
    stream.builder.into_inner()?.flush()?;
    Ok(stream.left_out)
}

struct Stream<Sink: Write> {
    builder: Builder<Sink>,
    /// The first name of each file so far: its other names are links to that.
    written: HashMap<Inode, Vec<u8>>,
    left_out: u64,
}

impl<Sink: Write> Stream<Sink> {
    fn state(&mut self, state: &State, root: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(state)?;
        let mut header = header(EntryType::Regular, 0o600);
        header.set_size(text.len() as u64);
        self.builder.append_data(&mut header, STATE, &text[..])?;
        let bits = std::os::unix::fs::MetadataExt::mode(&root.metadata()?) & 0o7777;
        self.builder.append_data(&mut self::header(EntryType::Directory, bits), ".", io::empty())
    }

    fn add(&mut self, snapshot: &mut Snapshot, path: Vec<u8>, inode: Inode, about: &About) -> io::Result<()> {
        let name = Path::new(std::ffi::OsStr::from_bytes(&path));
        match &about.kind {
            Kind::Directory => self.plain(EntryType::Directory, name, about),
            Kind::Pipe => self.plain(EntryType::Fifo, name, about),
            Kind::Link(target) => self.link(EntryType::Symlink, name, target, about),
            Kind::Other => {
                self.left_out += 1;
                Ok(())
            }
            Kind::File => match self.written.get(&inode).cloned() {
                Some(first) => self.link(EntryType::Link, name, &first, about),
                None => {
                    self.file(snapshot, name, inode, about)?;
                    self.written.insert(inode, path);
                    Ok(())
                }
            },
        }
    }

    fn plain(&mut self, kind: EntryType, name: &Path, about: &About) -> io::Result<()> {
        self.builder.append_data(&mut header(kind, about.bits), name, io::empty())
    }

    fn link(&mut self, kind: EntryType, name: &Path, target: &[u8], about: &About) -> io::Result<()> {
        if target.len() > LINK_BYTES_MAX {
            let mut long = header(EntryType::GNULongLink, 0o644);
            long.set_size(target.len() as u64 + 1);
            self.builder.append_data(&mut long, "@LongLink", target.chain(&b"\0"[..]))?;
        }
        let mut header = header(kind, about.bits);
        header.set_link_name_literal(target.get(..LINK_BYTES_MAX).unwrap_or(target))?;
        self.builder.append_data(&mut header, name, io::empty())
    }

    fn file(&mut self, snapshot: &mut Snapshot, name: &Path, inode: Inode, about: &About) -> io::Result<()> {
        let file = snapshot.open(inode).map_err(io::Error::other)?;
        let modified = exact_time(about.modified_ns);
        self.builder.append_pax_extensions([("mtime", modified.as_bytes())])?;
        let mut header = header(EntryType::Regular, about.bits);
        header.set_size(about.size);
        // The extension before has the exact time; this field can't hold one before 1970.
        header.set_mtime(about.modified_ns.max(0).unsigned_abs() / 1_000_000_000);
        self.builder.append_data(&mut header, name, Contents { snapshot, file, at: 0, size: about.size })
    }
}

fn header(kind: EntryType, bits: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(bits);
    header.set_size(0);
    header.set_uid(u64::from(rustix::process::getuid().as_raw()));
    header.set_gid(u64::from(rustix::process::getgid().as_raw()));
    header
}

/// Seconds since the epoch with all nine places: as POSIX has times in archives.
fn exact_time(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    format!("{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// The contents of a file of a snapshot.
struct Contents<'snapshot> {
    snapshot: &'snapshot mut Snapshot,
    file: Opened,
    at: u64,
    size: u64,
}

impl Read for Contents<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.size - self.at).map_or(buffer.len(), |left| left.min(buffer.len()));
        let buffer = buffer.get_mut(..wanted).ok_or(io::ErrorKind::InvalidInput)?;
        self.snapshot.read_at(&self.file, self.at, buffer).map_err(io::Error::other)?;
        self.at += wanted as u64;
        Ok(wanted)
    }
}
