//! Mapped files, of which a checkpoint keeps what changed since the last one.
//!
//! No call announces a write to a shared mapping, so the whole of it must be known at the start of every interval. A mapping
//! is looked at in pieces, each known by its digest and by the kept file that holds it. A piece whose digest is the same is
//! stated to lie where it lay; only the others are copied, to a kept file of this interval. A kept file that is stated again gets a second name in this interval, so that it stays when its first interval is forgotten.
//!
//! Which piece lies where is a file of the store, written while the world is held still, and dropped by a restore.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use stdchk_model::exact::{part, to_usize};

use crate::clones;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::index::{read_whole, remove_file};
use crate::mapped::{next_data, write_all_at};
use crate::record::{Inode, Record, RelativePath};
use crate::store::{DIRECTORY, KEPT, Store, names_in};

/// A change of a few bytes costs the copy of one piece; a mebibyte has 16 digests.
const PIECE_BYTES: u64 = 64 * 1024;
const PREFIX: &str = "pieces.";

/// A piece, by where it begins in its file.
type Pieces = BTreeMap<u64, Piece>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    end: u64,
    digest: blake3::Hash,
    kept: RelativePath,
}

/// Saves `range` of the file at the start of `interval`. The descriptor is the caller's own: it is moved.
pub(crate) fn save(
    store: &Store,
    control: &Control,
    interval: u64,
    file: BorrowedFd<'_>,
    inode: Inode,
    range: Range<u64>,
) -> std::result::Result<(), Errno> {
    let pieces = read(store, inode)?;
    let (own, names, run) = (None, HashMap::new(), None);
    let mut saving = Saving { store, control, interval, inode, pieces, own, names, run };
    let mut at = range.start;
    while at < range.end {
        let data = next_data(file, at, range.end);
        if data.start > at {
            saving.state_run()?;
            store.log.append(&Record::Hole { inode, offset: at, length: data.start - at })?;
        }
        at = data.start;
        while at < data.end {
            let end = (at / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES).min(data.end);
            saving.save_piece(file, at..end)?;
            at = end;
        }
    }
    saving.state_run()?;
    write(store, inode, &saving.pieces)
}

struct Saving<'store> {
    store: &'store Store,
    control: &'store Control,
    interval: u64,
    inode: Inode,
    pieces: Pieces,
    /// The kept file of this interval.
    own: Option<(OwnedFd, RelativePath)>,
    /// Names in this interval of kept files of earlier ones.
    names: HashMap<RelativePath, RelativePath>,
    /// Neighbouring pieces in one kept file, not stated yet.
    run: Option<(Range<u64>, RelativePath)>,
}

impl Saving<'_> {
    fn save_piece(&mut self, file: BorrowedFd<'_>, range: Range<u64>) -> std::result::Result<(), Errno> {
        let mut bytes = vec![0; to_usize(range.end - range.start)];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let at = range.start + filled as u64;
            match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *rest, at))? {
                0 => break,
                got => filled += got,
            }
        }
        let bytes = part(&bytes, ..filled);
        let (digest, end) = (blake3::hash(bytes), range.start + filled as u64);
        let known = self.pieces.get(&range.start).filter(|piece| piece.end == end && piece.digest == digest);
        let kept = match known.map(|piece| piece.kept.clone()).and_then(|kept| self.name_again(kept)) {
            Some(kept) => kept,
            None => self.copy(bytes, range.start)?,
        };
        self.pieces.insert(range.start, Piece { end, digest, kept: kept.clone() });
        match &mut self.run {
            Some((run, of)) if *of == kept && run.end == range.start => run.end = end,
            _ => {
                self.state_run()?;
                self.run = Some((range.start..end, kept));
            }
        }
        Ok(())
    }

    /// A name of this interval for the kept file; `None` if it is gone.
    fn name_again(&mut self, kept: RelativePath) -> Option<RelativePath> {
        if let Some(name) = self.names.get(&kept) {
            return Some(name.clone());
        }
        let name = self.new_name();
        let root = self.store.root();
        rustix::fs::linkat(root, kept.as_slice(), root, name.as_slice(), AtFlags::empty()).ok()?;
        self.names.insert(kept, name.clone());
        // It may be asked for by this name, too, where mappings of one file overlap.
        self.names.insert(name.clone(), name.clone());
        Some(name)
    }

    fn new_name(&self) -> RelativePath {
        Store::kept_name(self.interval, self.control.number_kept())
    }

    fn copy(&mut self, bytes: &[u8], at: u64) -> std::result::Result<RelativePath, Errno> {
        if self.own.is_none() {
            let name = self.new_name();
            self.names.insert(name.clone(), name.clone());
            self.own = Some((clones::open_to_share(self.store, &name)?, name));
        }
        let Some((file, name)) = &self.own else { return Err(Errno::NOENT) };
        write_all_at(file.as_fd(), bytes, at)?;
        Ok(name.clone())
    }

    fn state_run(&mut self) -> std::result::Result<(), Errno> {
        let Some((range, kept)) = self.run.take() else { return Ok(()) };
        let (inode, offset, length) = (self.inode, range.start, range.end - range.start);
        self.store.log.append(&Record::Cloned { inode, offset, length, kept })
    }
}

fn name(inode: Inode) -> String {
    format!("{PREFIX}{}", inode.0)
}

/// The pieces known of a file; what can't be understood is not known.
fn read(store: &Store, inode: Inode) -> std::result::Result<Pieces, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let text = match rustix::fs::openat(store.directory(), name(inode), flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Pieces::new()),
        other => read_whole(&other?)?,
    };
    Ok(String::from_utf8_lossy(&text).lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<(u64, Piece)> {
    let mut fields = line.split(' ');
    let mut number = || fields.next()?.parse().ok();
    let (start, end) = (number()?, number()?);
    let digest = blake3::Hash::from_hex(fields.next()?).ok()?;
    let kept = format!("{KEPT}/{}", fields.next()?).into_bytes();
    fields.next().is_some_and(|end| end == "end").then_some((start, Piece { end, digest, kept }))
}

fn write(store: &Store, inode: Inode, pieces: &Pieces) -> std::result::Result<(), Errno> {
    let line = |(start, piece): (&u64, &Piece)| {
        let kept = String::from_utf8_lossy(&piece.kept);
        let kept = kept.rsplit('/').next().unwrap_or_default();
        format!("{start} {} {} {kept} end\n", piece.end, piece.digest.to_hex())
    };
    let text: String = pieces.iter().map(line).collect();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(store.directory(), name(inode), flags, Mode::from_raw_mode(0o600))?;
    write_all_at(file.as_fd(), text.as_bytes(), 0)
}

/// Forgets all pieces: the kept files that they name may be gone.
pub(crate) fn forget(store: &Store) -> Result<()> {
    let names = names_in(store.root(), DIRECTORY.as_bytes()).map_err(Error::system("list", store.path()))?;
    for name in names.iter().filter(|name| name.starts_with(PREFIX.as_bytes())) {
        remove_file(store.directory(), &store.path(), &String::from_utf8_lossy(name))?;
    }
    Ok(())
}
