//! The files of the segments, by number: in one directory, open only while they are used.
//!
//! A store of a tebibyte has thousands of segments, and a process may have a few hundred descriptors. So files are opened when they
//! are needed, and a bounded number of them stays open for the next use. All names are looked up in the directory as it was when
//! the store was opened: if it is moved or replaced, no other file is taken for a segment.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::fs::AtFlags;

use super::disk::{self, UnitFile};
use super::work::OwnWork;

/// Most segments that are open at a time, beside those that wait for a sync ([`super::UNSYNCED_SEGMENTS_MAX`]): enough for all
/// that is read at once, and a quarter of the fewest descriptors that a benefactor gets along with, 256.
pub const OPEN_FILES_MAX: usize = 64;

/// The directory of a store, and the files that are open in it.
#[derive(Debug)]
pub struct Files {
    path: PathBuf,
    /// The directory as it was when the store was opened.
    directory: File,
    open: Mutex<Open>,
    /// Told when a file is no longer in use, or none was opened after all.
    released: Condvar,
    work: Arc<OwnWork>,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<u32, OpenFile>,
    /// Files that are being opened.
    opening: usize,
    /// Counts uses, so that the file goes whose last use is longest ago.
    uses: u64,
}

#[derive(Debug)]
struct OpenFile {
    file: Arc<UnitFile>,
    users: usize,
    used: u64,
}

/// A file in use: it stays open until this is dropped.
#[derive(Debug)]
pub struct InUse<'a> {
    files: &'a Files,
    number: u32,
    file: Arc<UnitFile>,
}

impl InUse<'_> {
    /// The file, to be kept open for longer.
    pub fn file(&self) -> &Arc<UnitFile> {
        &self.file
    }
}

impl Deref for InUse<'_> {
    type Target = UnitFile;

    fn deref(&self) -> &UnitFile {
        &self.file
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let mut open = self.files.open.lock();
        let known = open.files.get_mut(&self.number);
        // A removed segment's file has left the table.
        if let Some(entry) = known.filter(|entry| Arc::ptr_eq(&entry.file, &self.file)) {
            assert!(entry.users > 0, "segment {} is released by more than use it", self.number);
            entry.users -= 1;
        }
        self.files.released.notify_one();
    }
}

impl Open {
    fn take(&mut self, number: u32) -> Option<Arc<UnitFile>> {
        self.uses += 1;
        let uses = self.uses;
        let entry = self.files.get_mut(&number)?;
        entry.users += 1;
        entry.used = uses;
        Some(Arc::clone(&entry.file))
    }

    /// Makes room for one more file; false: all are in use. The caller closes what comes back, without the lock.
    fn make_room(&mut self) -> (bool, Option<OpenFile>) {
        if self.files.len() + self.opening < OPEN_FILES_MAX {
            return (true, None);
        }
        let idle = self.files.iter().filter(|(_, entry)| entry.users == 0);
        let oldest = idle.min_by_key(|(_, entry)| entry.used).map(|(number, _)| *number);
        let closed = oldest.and_then(|number| self.files.remove(&number));
        (closed.is_some(), closed)
    }
}

impl Files {
    /// The files in `path`, which is a directory. What is done with them is counted as `work`.
    pub fn open(path: &Path, work: &Arc<OwnWork>) -> io::Result<Self> {
        let directory = File::open(path)?;
        let (open, released, work) = (Mutex::default(), Condvar::new(), Arc::clone(work));
        Ok(Self { path: path.to_owned(), directory, open, released, work })
    }

    /// What is done with the files.
    pub fn work(&self) -> &Arc<OwnWork> {
        &self.work
    }

    /// Where the directory was when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a segment's file, for messages.
    pub fn path_of(&self, number: u32) -> PathBuf {
        self.path.join(file_name(number))
    }

    /// Makes the file of a segment; fails if it is there.
    pub fn create(&self, number: u32) -> io::Result<Arc<UnitFile>> {
        let file = Arc::new(UnitFile::create(&self.directory, &file_name(number), &self.work)?);
        let mut open = self.open.lock();
        let (has_room, closed) = open.make_room();
        if has_room {
            let entry = OpenFile { file: Arc::clone(&file), users: 0, used: open.uses };
            open.files.insert(number, entry);
        }
        drop(open);
        drop(closed);
        Ok(file)
    }

    /// The file of a segment, open. Waits while [`OPEN_FILES_MAX`] others are in use.
    pub fn get(&self, number: u32) -> io::Result<InUse<'_>> {
        let mut open = self.open.lock();
        loop {
            if let Some(file) = open.take(number) {
                return Ok(InUse { files: self, number, file });
            }
            let (has_room, closed) = open.make_room();
            if has_room {
                open.opening += 1;
                drop(open);
                drop(closed);
                return self.get_anew(number);
            }
            self.released.wait(&mut open);
        }
    }

    fn get_anew(&self, number: u32) -> io::Result<InUse<'_>> {
        let opened = UnitFile::open(&self.directory, &file_name(number), &self.work);
        let mut open = self.open.lock();
        open.opening -= 1;
        // Others may wait for the place, or for this file.
        self.released.notify_all();
        // Whoever was faster has put it into the table.
        if let Some(file) = open.take(number) {
            return Ok(InUse { files: self, number, file });
        }
        let file = Arc::new(opened?);
        if file.is_removed() {
            // It was removed since: in the table it would keep its space for ever.
            return Err(io::ErrorKind::NotFound.into());
        }
        let used = open.uses;
        open.files.insert(number, OpenFile { file: Arc::clone(&file), users: 1, used });
        Ok(InUse { files: self, number, file })
    }

    /// Takes a segment's name away; its space returns when the last reader is done.
    pub fn remove(&self, number: u32) -> io::Result<()> {
        rustix::fs::unlinkat(&self.directory, file_name(number), AtFlags::empty())?;
        let closed = self.open.lock().files.remove(&number);
        drop(closed);
        Ok(())
    }

    /// Whether the name of a segment's file is gone. What can't be looked at tells nothing.
    pub fn is_removed(&self, number: u32) -> bool {
        let named = rustix::fs::statat(&self.directory, file_name(number), AtFlags::empty());
        let file = self.open.lock().files.get(&number).map(|entry| Arc::clone(&entry.file));
        named.is_err_and(|error| error == rustix::io::Errno::NOENT)
            || file.is_some_and(|file| file.is_removed())
    }

    /// Whether the path no longer leads to the directory.
    pub fn is_elsewhere(&self) -> bool {
        disk::is_elsewhere(&self.path, &self.directory)
    }

    /// Makes the names in the directory durable.
    pub fn sync_names(&self) -> io::Result<()> {
        let _working = self.work.begin(0);
        self.directory.sync_all()
    }

    /// How many files are open.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.open.lock().files.len()
    }
}

/// Name of a segment's file.
pub fn file_name(number: u32) -> String {
    format!("{number:010}.segment")
}

/// Number of the segment in the file `name`, if it is one's name.
pub fn number_of(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".segment")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const COUNT: u32 = 128;

    fn files(place: &Path) -> Files {
        let files = Files::open(place, &Arc::default()).unwrap();
        (0..COUNT).for_each(|number| drop(files.create(number).unwrap()));
        files
    }

    #[test]
    fn names_and_numbers_belong_together() {
        assert_eq!(number_of(&file_name(12)), Some(12));
        assert_eq!((number_of("12.segment"), number_of("x")), (None, None));
    }

    #[test]
    fn the_file_whose_last_use_is_longest_ago_is_closed_for_another_one() {
        let place = tempfile::tempdir().unwrap();
        let files = files(place.path());
        let first = Arc::downgrade(files.get(0).unwrap().file());
        let second = Arc::downgrade(files.get(1).unwrap().file());
        for number in 2..COUNT {
            drop(files.get(number).unwrap());
            drop(files.get(0).unwrap());
            assert!(files.len() <= OPEN_FILES_MAX);
        }
        assert_eq!((first.strong_count(), second.strong_count()), (1, 0));
    }

    #[test]
    fn who_needs_one_more_file_than_may_be_open_waits_for_another_user() {
        let place = tempfile::tempdir().unwrap();
        let files = files(place.path());
        assert_eq!(u32::try_from(OPEN_FILES_MAX).unwrap(), COUNT / 2);
        let mut used: Vec<InUse<'_>> = (1..=COUNT / 2).map(|number| files.get(number).unwrap()).collect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| files.get(0).unwrap().length().unwrap());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            used.pop();
            assert_eq!(waiting.join().unwrap(), 0);
        });
        assert_eq!(files.len(), OPEN_FILES_MAX);
    }

    #[test]
    fn a_removed_file_is_gone_for_all_but_its_users() {
        let place = tempfile::tempdir().unwrap();
        let files = files(place.path());
        let used = files.get(3).unwrap();
        files.remove(3).unwrap();
        assert!(files.is_removed(3) && !files.is_removed(4));
        assert_eq!(used.length().unwrap(), 0);
        assert_eq!(files.get(3).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
