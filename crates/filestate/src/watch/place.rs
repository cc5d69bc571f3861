//! What a name or a descriptor refers to, and whether it lies in the protected tree.
//!
//! The one idea: the kernel resolves names, not we. A directory is opened without access (`O_PATH`) and asked for its
//! canonical path, so symbolic links, `..` and the working directory need no code here.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use stdchk_model::exact::part;

use super::{Decision, Descriptor, Watch};
use crate::record::{Inode, RelativePath};
use crate::store::is_own;

/// How many symbolic links are followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// What the kernel puts behind a name that is gone.
const DELETED: &[u8] = b" (deleted)";

/// A name in the protected tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreePath {
    /// The path relative to the root.
    pub path: RelativePath,
}

/// The canonical path of an open file, as the kernel tells it.
pub fn descriptor_path(fd: BorrowedFd<'_>) -> Decision<Vec<u8>> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::readlink(link, Vec::new())?.into_bytes())
}

impl Watch {
    /// The root's path by now, ending with a slash: it or a directory above it may be renamed while the job runs.
    pub(super) fn prefix(&self) -> Vec<u8> {
        let mut prefix = descriptor_path(self.store.root()).unwrap_or_default();
        if prefix.last() != Some(&b'/') {
            prefix.push(b'/');
        }
        prefix
    }

    /// The path below the root, if `canonical` lies there and not in the store.
    pub(super) fn relative(&self, canonical: &[u8]) -> Option<RelativePath> {
        let rest = canonical.strip_prefix(self.prefix().as_slice())?;
        (!is_own(rest) && !rest.is_empty()).then(|| rest.to_vec())
    }

    /// Whether the canonical path lies in the protected tree.
    pub fn contains(&self, canonical: &[u8]) -> bool {
        self.relative_or_kept(canonical).is_some()
    }

    /// Whether this is the root, where the store stands.
    pub fn is_root(&self, directory: BorrowedFd<'_>) -> bool {
        rustix::fs::fstat(directory).is_ok_and(|stat| self.has_inode_of_root(&stat))
    }

    /// Whether `path` in `directory` names the root of the protected tree.
    pub fn is_root_at(&self, directory: BorrowedFd<'_>, path: &[u8]) -> bool {
        rustix::fs::statat(directory, path, AtFlags::empty()).is_ok_and(|stat| self.has_inode_of_root(&stat))
    }

    fn has_inode_of_root(&self, stat: &Stat) -> bool {
        let root = rustix::fs::fstat(self.store.root());
        root.is_ok_and(|root| (stat.st_ino, stat.st_dev) == (root.st_ino, root.st_dev))
    }

    /// The path of a file that was deleted into the store while open: its later changes are stated there.
    fn relative_or_kept(&self, canonical: &[u8]) -> Option<RelativePath> {
        let rest = canonical.strip_prefix(self.prefix().as_slice())?;
        (rest.starts_with(crate::store::KEPT.as_bytes()) || self.relative(canonical).is_some())
            .then(|| rest.to_vec())
    }

    /// The path of the open file `fd` if it is a protected regular file.
    pub(super) fn path_of(&self, fd: BorrowedFd<'_>, stat: &Stat) -> Decision<Option<RelativePath>> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        self.path_of_any(fd, stat)
    }

    /// The path of the open file `fd`, of whatever kind, if it is protected.
    pub(super) fn path_of_any(&self, fd: BorrowedFd<'_>, stat: &Stat) -> Decision<Option<RelativePath>> {
        if stat.st_dev != self.device {
            return Ok(None);
        }
        if self.has_inode_of_root(stat) {
            return Ok(Some(b".".to_vec()));
        }
        let path = self.relative_or_kept(&descriptor_path(fd)?);
        Ok(path.map(|path| match path.ends_with(DELETED) && stat.st_nlink > 0 {
            // Where no other name is found, the file is really called so.
            true => self.store.find((stat.st_ino, stat.st_dev)).unwrap_or(path),
            false => path,
        }))
    }

    /// The descriptor's entry, if it can change a protected file.
    pub(super) fn inspect(&self, fd: BorrowedFd<'_>) -> Decision<Option<Descriptor>> {
        let flags = rustix::fs::fcntl_getfl(fd)?;
        if flags.contains(OFlags::PATH) || flags & OFlags::ACCMODE == OFlags::RDONLY {
            return Ok(None);
        }
        let stat = rustix::fs::fstat(fd)?;
        let descriptor = Descriptor {
            inode: Inode(stat.st_ino),
            append: flags.contains(OFlags::APPEND),
            readable: flags & OFlags::ACCMODE == OFlags::RDWR,
        };
        Ok(self.path_of(fd, &stat)?.map(|_| descriptor))
    }

    /// Where the last part of `path` stands, its directory resolved, the last part not followed. `None` outside the
    /// tree, and wherever the real call will fail by itself.
    pub fn place(&self, directory: BorrowedFd<'_>, path: &[u8]) -> Option<TreePath> {
        let canonical = self.canonical_on(directory, path, |device| device == self.device)?;
        self.relative(&canonical).map(|path| TreePath { path })
    }

    /// Where a new file at `path` will stand: what [`Watch::place`] says. `ENOENT` in a directory that the program removed: the
    /// store keeps it, and what is made in it would be kept, too.
    pub fn place_of_new(&self, directory: BorrowedFd<'_>, path: &[u8]) -> Decision<Option<TreePath>> {
        let canonical = self.canonical_on(directory, path, |device| device == self.device);
        let Some(canonical) = canonical else { return Ok(None) };
        let prefix = self.prefix();
        let below = canonical.strip_prefix(prefix.as_slice());
        if below.is_some_and(|below| below.starts_with(crate::store::KEPT.as_bytes())) {
            return Err(Errno::NOENT);
        }
        Ok(self.relative(&canonical).map(|path| TreePath { path }))
    }

    /// The canonical path of `path`, wherever that is, its directory resolved, the last part not followed.
    pub(super) fn canonical(&self, directory: BorrowedFd<'_>, path: &[u8]) -> Option<Vec<u8>> {
        self.canonical_on(directory, path, |_| true)
    }

    /// The canonical path of `path` (see [`Watch::canonical`]), if `is_wanted` says yes to its directory's device.
    pub(super) fn canonical_on(
        &self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        is_wanted: impl FnOnce(u64) -> bool,
    ) -> Option<Vec<u8>> {
        let (parent, name) = split(trim_slashes(path));
        if name.is_empty() || name == b"." || name == b".." {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::openat(directory, parent, flags, Mode::empty()).ok()?;
        if !is_wanted(rustix::fs::fstat(&parent).ok()?.st_dev) {
            return None;
        }
        let mut canonical = descriptor_path(parent.as_fd()).ok()?;
        if canonical.last() != Some(&b'/') {
            canonical.push(b'/');
        }
        canonical.extend_from_slice(name);
        Some(canonical)
    }

    /// Where creating `path` would put the new file: as [`Watch::place`], the last part followed while it is a
    /// symbolic link.
    pub fn place_to_create(&self, directory: BorrowedFd<'_>, path: &[u8]) -> Decision<Option<TreePath>> {
        let mut path = path.to_vec();
        for _ in 0..LINKS_MAX {
            match rustix::fs::readlinkat(directory, path.as_slice(), Vec::new()) {
                Ok(target) => path = beside(&path, target.as_bytes()),
                Err(_) => return self.place_of_new(directory, &path),
            }
        }
        Ok(None)
    }

    /// The canonical path under which `openat2` would find or create `path` when it is to resolve it in this way. The
    /// directory is resolved by the kernel; the last part is followed while it is a symbolic link, if `follow` says so.
    pub fn resolved(
        &self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        how: ResolveFlags,
        follow: bool,
    ) -> Decision<Vec<u8>> {
        // Whether the kernel has it in memory is no question here.
        let how = how.difference(ResolveFlags::CACHED);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut path = path.to_vec();
        for _ in 0..LINKS_MAX {
            let (parent, name) = split(&path);
            let parent = rustix::fs::openat2(directory, parent, flags, Mode::empty(), how)?;
            match rustix::fs::readlinkat(&parent, trim_slashes(name), Vec::new()) {
                Ok(target) if follow => path = beside(&path, target.as_bytes()),
                _ => return Ok([&descriptor_path(parent.as_fd())?, b"/".as_slice(), name].concat()),
            }
        }
        Err(Errno::LOOP)
    }

    /// What stands at `place`; `None` when nothing does.
    pub(super) fn stat_at(&self, place: &TreePath) -> Decision<Option<Stat>> {
        match rustix::fs::statat(self.store.root(), place.path.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

pub(super) fn trim_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    part(path, ..end)
}

/// The directory of `path`, and the last part with the slashes behind it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = trim_slashes(path).iter().rposition(|byte| *byte == b'/');
    let Some(end) = end else { return (b".", path) };
    let (parent, name) = path.split_at(end);
    (if parent.is_empty() { b"/" } else { parent }, part(name, 1..))
}

/// The target of a symbolic link that stands at `path`.
fn beside(path: &[u8], target: &[u8]) -> Vec<u8> {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) if !target.starts_with(b"/") => [part(path, ..=slash), target].concat(),
        _ => target.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;
    use crate::store::{Options, Store};
    use rustix::fs::CWD;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    fn watch() -> (tempfile::TempDir, Watch) {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(root.path(), &Options::default()).unwrap();
        let control = Control::open(&store).unwrap();
        let watch = Watch::new(store, control).unwrap();
        (root, watch)
    }

    #[test]
    fn names_are_resolved_by_the_kernel() {
        let (root, watch) = watch();
        let outside = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("sub")).unwrap();
        symlink(root.path().join("sub"), outside.path().join("in")).unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        let at =
            |path: std::path::PathBuf| watch.place(CWD, path.as_os_str().as_bytes()).map(|place| place.path);
        assert_eq!(at(root.path().join("sub/../sub/x")), Some(b"sub/x".to_vec()));
        assert_eq!(at(outside.path().join("in/x")), Some(b"sub/x".to_vec()));
        assert_eq!(at(root.path().join("out/x")), None);
        assert_eq!(at(root.path().join(".stdchk-files/log")), None);
        assert_eq!(at(root.path().join(".stdchk-filesystem")), Some(b".stdchk-filesystem".to_vec()));
        assert_eq!(at(root.path().to_owned()), None);
    }

    #[test]
    fn creating_through_a_dangling_link_creates_its_target() {
        let (root, watch) = watch();
        let outside = tempfile::tempdir().unwrap();
        symlink(root.path().join("new"), outside.path().join("link")).unwrap();
        let link = outside.path().join("link");
        let place = watch.place_to_create(CWD, link.as_os_str().as_bytes()).unwrap();
        assert_eq!(place.map(|place| place.path), Some(b"new".to_vec()));
    }
}
