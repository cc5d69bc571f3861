//! Folders and files that are stdchk's own: what another user of the machine prepared in their place is not used.
//!
//! Whoever may write to a folder decides what its names mean: a name can be a link to any file of the user who opens it, or
//! a file that somebody else reads. So a folder is reached component by component, each relative to the one before, and looked
//! at after it is open: nobody changes it in between. A file is opened relative to its folder, and looked at in the same way.
//!
//! | what | is used if |
//! |---|---|
//! | a link before the last component | it belongs to the running user or to root: who runs the machine may move folders |
//! | a folder | it is no link, belongs to the running user or to root, and nobody else may write to it. One's own that is empty is closed to others instead |
//! | a folder that is only looked into | it is no link, and nobody but its owner may write to it |
//! | a file | it is no link and no device, belongs to the running user, to root or to the owner of its folder, and nobody else may write to it |
//!
//! Folders above may belong to anybody: whoever moves one can only put another folder of the running user in its place.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Permissions of a new folder.
const OWNER_ONLY: Mode = Mode::RWXU;
/// Permissions of a new file.
pub const OWNER_ONLY_FILE: u32 = 0o600;
/// Who else may write.
const OTHERS_WRITE: u32 = 0o022;
/// Names in it are only their owners' to change (sticky).
const STICKY: u32 = 0o1000;
/// The administrator of the system.
const ROOT: u32 = 0;
/// Links that one path leads through, at most: as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// Longest text that is read, bytes: records of a pool, certificates and lists of members are far shorter.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// The entries of the root of a new file system: a folder with nothing but that is empty.
pub const LOST_AND_FOUND: &str = "lost+found";

/// For what a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To read what is there.
    Read,
    /// To read and write what is there.
    Write,
    /// To read and write; made if it isn't there.
    Make,
    /// To read and write a file that isn't there.
    MakeNew,
    /// To write at its end; made if it isn't there.
    Append,
}

impl Access {
    fn flags(self) -> OFlags {
        match self {
            Self::Read => OFlags::RDONLY,
            Self::Write => OFlags::RDWR,
            Self::Make => OFlags::RDWR | OFlags::CREATE,
            Self::MakeNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            Self::Append => OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND,
        }
    }
}

/// A folder in which nobody else puts names.
#[derive(Debug)]
pub struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
    owner: u32,
}

impl Folder {
    /// A folder of one's own that is there.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` with what is wrong with it and what to do; what else the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of_own(walk(path, Last::Itself)?, path)
    }

    /// A folder of one's own, which is made with those above it if it isn't there.
    ///
    /// # Errors
    /// Those of [`Folder::open`].
    pub fn make(path: &Path) -> io::Result<Self> {
        Self::of_own(make_all(path, Last::Itself)?, path)
    }

    /// A folder to look into, whosever it is. What is found there is its owner's word.
    ///
    /// # Errors
    /// Those of [`Folder::open`].
    pub fn look_into(path: &Path) -> io::Result<Self> {
        let descriptor = walk(path, Last::Itself)?;
        let about = rustix::fs::fstat(&descriptor)?;
        if about.st_mode & OTHERS_WRITE != 0 && about.st_mode & STICKY == 0 {
            return Err(writable());
        }
        Ok(Self { descriptor, path: path.to_owned(), owner: about.st_uid })
    }

    fn of_own(descriptor: OwnedFd, path: &Path) -> io::Result<Self> {
        let about = rustix::fs::fstat(&descriptor)?;
        if ![own_user(), ROOT].contains(&about.st_uid) {
            let what = format!("it belongs to user {}, who decides what is in it", about.st_uid);
            return Err(refused(&what, "work as that user, or name a folder of your own"));
        }
        let folder = Self { descriptor, path: path.to_owned(), owner: about.st_uid };
        if about.st_mode & OTHERS_WRITE != 0 {
            folder.close_to_others(&about)?;
        }
        Ok(folder)
    }

    /// Lets nobody else write to an empty folder of one's own, as a mask of 002 lets its group.
    fn close_to_others(&self, about: &Stat) -> io::Result<()> {
        if about.st_uid != own_user() || about.st_mode & STICKY != 0 || !self.is_empty()? {
            return Err(writable());
        }
        let mode = Mode::from_raw_mode(about.st_mode & 0o7777 & !OTHERS_WRITE);
        rustix::fs::fchmod(self.itself()?, mode)?;
        // Somebody may have been faster.
        if self.is_empty()? { Ok(()) } else { Err(writable()) }
    }

    fn is_empty(&self) -> io::Result<bool> {
        let mut entries = Dir::new(self.itself()?)?;
        let counts = |name: &[u8]| !matches!(name, b"." | b"..") && name != LOST_AND_FOUND.as_bytes();
        Ok(!entries.any(|entry| entry.map_or(true, |entry| counts(entry.file_name().to_bytes()))))
    }

    /// The folder, open for what a mere place isn't enough for.
    fn itself(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(
            &self.descriptor,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Opens a file of the folder; one that is made is its owner's alone.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`; `PermissionDenied` with what is wrong with it; what else the system says.
    pub fn file(&self, name: impl AsRef<OsStr>, access: Access) -> io::Result<File> {
        self.file_with(name.as_ref(), access, OWNER_ONLY_FILE)
    }

    fn file_with(&self, name: &OsStr, access: Access, mode: u32) -> io::Result<File> {
        // One that waits for a peer, as a pipe does, is refused and not waited for.
        let flags = access.flags() | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::openat(&self.descriptor, name, flags, Mode::from_raw_mode(mode));
        let file = match opened {
            Err(Errno::LOOP) => {
                return Err(refused(IS_LINK, "remove it if you don't know why it is there"));
            }
            opened => opened?,
        };
        let about = rustix::fs::fstat(&file)?;
        let next = "remove it if you don't know why it is there";
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(refused("it is no file", next));
        }
        if ![own_user(), ROOT, self.owner].contains(&about.st_uid) {
            return Err(refused(&format!("it belongs to user {}", about.st_uid), next));
        }
        if about.st_mode & OTHERS_WRITE != 0 {
            return Err(writable());
        }
        Ok(File::from(file))
    }

    /// Gives a file this text, open to others as far as `mode` and the process's mask say. Through a temporary name, `.new` added: a
    /// crash leaves what was there or all of it. Durable on return.
    ///
    /// # Errors
    /// The system refuses; what was there before is there.
    pub fn replace(&self, name: impl AsRef<OsStr>, text: &str, mode: u32) -> io::Result<()> {
        let mut new = name.as_ref().to_owned();
        new.push(".new");
        // What a crash left there may be open to others.
        drop(self.remove(&new));
        let mut file = self.file_with(&new, Access::MakeNew, mode)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        self.rename(&new, name)?;
        self.sync()
    }

    /// Renames a file within the folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.descriptor, from.as_ref(), &self.descriptor, to.as_ref())?)
    }

    /// Removes a name that isn't a folder's.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.descriptor, name.as_ref(), AtFlags::empty())?)
    }

    /// Makes its names durable.
    ///
    /// # Errors
    /// What the system says.
    pub fn sync(&self) -> io::Result<()> {
        File::from(self.itself()?).sync_all()
    }
}

/// Opens a file in a folder of one's own.
///
/// # Errors
/// Those of [`Folder::open`] and [`Folder::file`].
pub fn file(path: &Path, access: Access) -> io::Result<File> {
    let (folder, name) = parts(path)?;
    Folder::open(folder).map_err(|error| of_folder(folder, error))?.file(name, access)
}

/// The text of a file in a folder of whoever it is.
///
/// # Errors
/// Those of [`Folder::look_into`] and [`Folder::file`]; `InvalidData` for what is no text, or too long.
pub fn text(path: &Path) -> io::Result<String> {
    let (folder, name) = parts(path)?;
    let (opened, mut text) = (Folder::look_into(folder), String::new());
    let file = opened.map_err(|error| of_folder(folder, error))?.file(name, Access::Read)?;
    let read = file.take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
    if read as u64 == TEXT_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is longer than any such file"));
    }
    Ok(text)
}

/// The text of a file that the running user or root keeps, wherever links lead to it: people keep their configuration in places of their own.
///
/// # Errors
/// `NotFound`; `PermissionDenied` if it belongs to somebody else, or others may write to it; `InvalidData` for what is no text.
pub fn text_anywhere(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    let (about, mut text) = (rustix::fs::fstat(&file)?, String::new());
    if ![own_user(), ROOT].contains(&about.st_uid) {
        let what = format!("it belongs to user {}", about.st_uid);
        return Err(refused(&what, "name the file if you mean it, or work as that user"));
    }
    if about.st_mode & OTHERS_WRITE != 0 {
        return Err(writable());
    }
    File::from(file).take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Gives a file in a folder of one's own this text, as [`Folder::replace`] does.
///
/// # Errors
/// Those of [`Folder::open`] and [`Folder::replace`].
pub fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let (folder, name) = parts(path)?;
    Folder::open(folder).map_err(|error| of_folder(folder, error))?.replace(name, text, mode)
}

/// The folder and the name of a file.
fn parts(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let (folder, name) = path.parent().zip(path.file_name()).ok_or(ErrorKind::InvalidInput)?;
    Ok((if folder.as_os_str().is_empty() { Path::new(".") } else { folder }, name))
}

const IS_LINK: &str = "it is a link, which leads elsewhere";

/// The user for whom this process works.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Who asked for something says what it was.
fn refused(what: &str, next: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, format!("it is not used: {what}; {next}"))
}

/// The folder of a file isn't what was asked for: it is named.
fn of_folder(folder: &Path, error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            io::Error::new(error.kind(), format!("its folder {}: {error}", folder.display()))
        }
        _ => error,
    }
}

fn writable() -> io::Error {
    refused("other users may write to it", "`chmod go-w` it if all in it is yours, or use another one")
}

fn place(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// What the last component of a path may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The folder itself.
    Itself,
    /// A link that may be followed as those before it: the path goes on.
    Way,
}

/// The folder at a path.
fn walk(path: &Path, last: Last) -> io::Result<OwnedFd> {
    let steps = |path: &Path| -> Vec<OsString> {
        path.components().map(|step| step.as_os_str().to_owned()).collect()
    };
    let (mut at, mut left, mut links) = (place(CWD, ".")?, VecDeque::from(steps(path)), 0);
    while let Some(step) = left.pop_front() {
        // Relative to the folder before, unless it is the root.
        let next = place(&at, step.as_os_str())?;
        let about = rustix::fs::fstat(&next)?;
        match FileType::from_raw_mode(about.st_mode) {
            FileType::Directory => at = next,
            // What a link leads through stands before what is left of the path.
            FileType::Symlink if left.is_empty() && last == Last::Itself => {
                return Err(refused(IS_LINK, "name the folder to which it leads"));
            }
            FileType::Symlink if ![own_user(), ROOT].contains(&about.st_uid) => {
                let what =
                    format!("`{}` on the way there is a link of user {}", step.display(), about.st_uid);
                return Err(refused(&what, "name the folder by a way of your own"));
            }
            // The kernel alone knows where it leads: to another root, or to what has no name.
            FileType::Symlink if rustix::fs::fstatfs(&next)?.f_type == rustix::fs::PROC_SUPER_MAGIC => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                at = rustix::fs::openat(&at, step.as_os_str(), flags, Mode::empty())?;
            }
            FileType::Symlink => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                let target = rustix::fs::readlinkat(&next, "", Vec::new())?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                steps(&target).into_iter().rev().for_each(|step| left.push_front(step));
            }
            _ => return Err(ErrorKind::NotADirectory.into()),
        }
    }
    Ok(at)
}

/// The folder at a path; it and those above are made if they aren't there.
fn make_all(path: &Path, last: Last) -> io::Result<OwnedFd> {
    match walk(path, last) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        walked => return walked,
    }
    let Some(Component::Normal(name)) = path.components().next_back() else {
        return Err(ErrorKind::NotFound.into());
    };
    let (above, _) = parts(path)?;
    let above = make_all(above, Last::Way)?;
    match rustix::fs::mkdirat(&above, name, OWNER_ONLY) {
        // Somebody was faster; whose it is, is looked at.
        Ok(()) | Err(Errno::EXIST) => walk(path, last),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn open_to_all(path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }

    #[track_caller]
    fn is_refused<T: std::fmt::Debug>(result: io::Result<T>, what: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }

    #[test]
    fn what_is_made_is_closed_to_others() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
        let folder = Folder::make(&path).unwrap();
        assert_eq!([mode_of(&path), mode_of(&place.path().join("a"))], [0o700, 0o700]);
        folder.file("f", Access::MakeNew).unwrap();
        assert_eq!(mode_of(&path.join("f")), 0o600);
        folder.replace("g", "text", 0o600).unwrap();
        assert_eq!((mode_of(&path.join("g")), text(&path.join("g")).unwrap()), (0o600, "text".to_owned()));
    }

    #[test]
    fn no_link_is_followed_at_the_end_of_a_path() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        fs::create_dir(&real).unwrap();
        fs::write(real.join("precious"), "precious").unwrap();
        symlink(&real, &link).unwrap();
        is_refused(Folder::open(&link), "link");
        is_refused(Folder::make(&link), "link");
        is_refused(Folder::look_into(&link), "link");
        for access in [Access::Read, Access::Write, Access::Make, Access::Append] {
            for target in ["precious", "absent"] {
                symlink(target, real.join("LOCK")).unwrap();
                is_refused(file(&real.join("LOCK"), access), "link");
                fs::remove_file(real.join("LOCK")).unwrap();
            }
        }
        assert_eq!(fs::read_to_string(real.join("precious")).unwrap(), "precious");
        assert!(!real.join("absent").exists());
        // A link of one's own on the way is a folder that was moved.
        fs::create_dir(real.join("below")).unwrap();
        Folder::open(&link.join("below")).unwrap();
        Folder::make(&link.join("new/er")).unwrap();
        assert!(real.join("new/er").is_dir());
    }

    #[test]
    fn a_configuration_is_read_through_links_and_not_if_others_may_write_to_it() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        fs::write(&real, "text").unwrap();
        symlink(&real, &link).unwrap();
        assert_eq!(text_anywhere(&link).unwrap(), "text");
        open_to_all(&real);
        is_refused(text_anywhere(&link), "other users may write");
        assert_eq!(text_anywhere(&place.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_path_that_leads_in_a_circle_ends() {
        let place = tempfile::tempdir().unwrap();
        symlink("b", place.path().join("a")).unwrap();
        symlink("a", place.path().join("b")).unwrap();
        assert!(Folder::open(&place.path().join("a/c")).is_err());
    }

    #[test]
    fn a_folder_to_which_others_may_write_is_closed_if_it_is_empty_and_else_not_used() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("open");
        fs::create_dir(&path).unwrap();
        open_to_all(&path);
        Folder::open(&path).unwrap();
        assert_eq!(mode_of(&path), 0o755);
        fs::write(path.join("from before"), "").unwrap();
        open_to_all(&path);
        is_refused(Folder::open(&path), "other users may write");
        is_refused(Folder::look_into(&path), "other users may write");
        is_refused(file(&path.join("from before"), Access::Read), "other users may write");
        assert_eq!(mode_of(&path), 0o777);
    }

    #[test]
    fn files_that_others_may_write_and_what_is_no_file_are_not_used() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        fs::write(&path, "").unwrap();
        open_to_all(&path);
        is_refused(file(&path, Access::Read), "other users may write");
        rustix::fs::mknodat(CWD, place.path().join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        is_refused(file(&place.path().join("pipe"), Access::Read), "no file");
        assert_eq!(file(&place.path().join("none"), Access::Read).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(file(&path.join("h"), Access::Read).unwrap_err().kind(), ErrorKind::NotADirectory);
    }
}
