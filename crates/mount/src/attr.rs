//! Attributes and times in the kernel's form.

use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use stdchk_client::time::{now, system_time, time_ns};
use stdchk_model::Ino;
use stdchk_model::exact::narrow;
use stdchk_model::message::manager::{Attr, FileKind, TimeNs};

/// What `stat` reports as the best size for a read or write: the size of a chunk, bytes. Programs that size their
/// buffers by it (`cp`, `cat`, Python's files) then move whole chunks.
const BLOCK_BYTES: u32 = 1 << 20;
/// Unit of `st_blocks`, bytes (POSIX).
const STAT_BLOCK_BYTES: u64 = 512;

/// `attr` as the kernel wants it, under the inode number `id`.
pub(crate) fn file_attr(id: u64, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: attr.size,
        blocks: blocks(attr),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: narrow(attr.mode & 0o7777),
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Blocks that a file takes, its holes not counted; never none. Programs such as `tar` take a file without blocks for one
/// without data and never look into it; but what was written just now may still be with the kernel alone, which adds it to
/// the size that it shows and not to the blocks.
fn blocks(attr: &Attr) -> u64 {
    let blocks = attr.size.saturating_sub(attr.hole_bytes).div_ceil(STAT_BLOCK_BYTES);
    match attr.kind {
        FileKind::File => blocks.max(1),
        FileKind::Directory | FileKind::Symlink | FileKind::Pipe | FileKind::Socket => blocks,
    }
}

/// The attributes of `.` and `..` in a listing, of which only number and kind count.
pub(crate) fn dot_attr(id: u64) -> FileAttr {
    let (mode, uid, gid, links, size, version) = (0, 0, 0, 1, 0, 0);
    let (atime, mtime, ctime, named, hole_bytes) = (0, 0, 0, 0, 0);
    let (ino, kind) = (Ino(id), FileKind::Directory);
    file_attr(
        id,
        &Attr { ino, kind, mode, uid, gid, links, size, atime, mtime, ctime, version, named, hole_bytes },
    )
}

/// The kernel's word for what an inode is.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Pipe => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// A time as `utimensat` names it.
pub(crate) fn requested(time: TimeOrNow) -> TimeNs {
    match time {
        TimeOrNow::SpecificTime(time) => time_ns(time),
        TimeOrNow::Now => now(),
    }
}
