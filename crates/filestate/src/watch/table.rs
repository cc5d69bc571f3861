//! One entry per descriptor: whether it is watched, whether its changes are already known to destroy nothing, and which
//! file it is open on. This, and the blocks of that file, is all that a call looks at before it goes to the kernel, so it
//! takes no lock and is right inside signal handlers.
//!
//! Entries live in pages that come into being with the first watched descriptor in them: a process with ten descriptors
//! pays for one page.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use stdchk_model::Timestep;
use stdchk_model::timestep::NAME_BYTES_MAX;

use crate::record::Inode;

/// Descriptors in one page.
const PAGE: usize = 1024;
/// Pages: together 2^20 descriptors, Linux's own default ceiling (`fs.nr_open`).
const PAGES: usize = 1024;

const WATCHED: u64 = 1;
const FREE_HERE: u64 = 2;
const FREE_ALL: u64 = 4;
/// Nobody has looked yet what it is open on.
const UNLOOKED: u64 = 8;
const GENERATION_SHIFT: u32 = 4;

/// Which changes through a descriptor destroy nothing until the next checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Free {
    /// Writes at the offset: the descriptor appends.
    Here,
    /// All of them: the file held nothing at the checkpoint.
    All,
}

/// What is known about one descriptor.
#[derive(Debug, Default)]
struct Entry {
    /// 0 when it is not watched.
    word: AtomicU64,
    /// The file, or 0.
    inode: AtomicU64,
    /// The name of the timestep of the checkpoint set that its file belongs to, with zeros behind it; all zero: none.
    member: [AtomicU64; NAME_BYTES_MAX / 8],
}

impl Entry {
    fn set_member(&self, step: Option<Timestep>) {
        let mut name = [0; NAME_BYTES_MAX];
        if let Some(step) = step {
            name.iter_mut().zip(step.name().bytes()).for_each(|(byte, of_name)| *byte = of_name);
        }
        for (word, bytes) in self.member.iter().zip(name.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// A program that closes a descriptor while another thread opens it may read half of a name, which is none, or another
    /// timestep: a state is taken that nobody asks for.
    fn member(&self) -> Option<Timestep> {
        if self.member.first()?.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut name = [0; NAME_BYTES_MAX];
        for (bytes, word) in name.as_chunks_mut().0.iter_mut().zip(&self.member) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        std::str::from_utf8(name.get(..length)?).ok()?.parse().ok()
    }
}

/// The entries.
#[derive(Debug)]
pub(super) struct Table {
    pages: Box<[OnceLock<Box<[Entry]>>]>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { pages: (0..PAGES).map(|_| OnceLock::new()).collect() }
    }

    #[inline]
    fn entry(&self, fd: RawFd) -> Option<&Entry> {
        let number = usize::try_from(fd).ok()?;
        self.pages.get(number / PAGE)?.get()?.get(number % PAGE)
    }

    #[inline]
    fn word(&self, fd: RawFd) -> Option<&AtomicU64> {
        self.entry(fd).map(|entry| &entry.word)
    }

    /// Whether `fd` is watched.
    #[inline]
    pub(super) fn is_watched(&self, fd: RawFd) -> bool {
        self.word(fd).is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    fn page(&self, fd: RawFd) -> Option<&[Entry]> {
        let page = usize::try_from(fd).ok().and_then(|number| self.pages.get(number / PAGE))?;
        Some(page.get_or_init(|| (0..PAGE).map(|_| Entry::default()).collect()))
    }

    /// Notes that `fd` is open on a file of the checkpoint set of this timestep, or that it is not.
    pub(super) fn set_member(&self, fd: RawFd, step: Option<Timestep>) {
        if step.is_some() {
            self.page(fd);
        }
        if let Some(entry) = self.entry(fd) {
            entry.set_member(step);
        }
    }

    /// The timestep of the set that the file of `fd` belongs to.
    #[inline]
    pub(super) fn member(&self, fd: RawFd) -> Option<Timestep> {
        self.entry(fd)?.member()
    }

    /// No descriptor in `first..=last` is open on a file of a set.
    pub(super) fn clear_members(&self, first: RawFd, last: RawFd) {
        for entry in self.entries_in(first, last) {
            entry.set_member(None);
        }
    }

    /// Watches `fd`, nothing known about it but its file; false beyond the last page.
    pub(super) fn watch(&self, fd: RawFd, inode: Inode) -> bool {
        self.page(fd);
        self.entry(fd).is_some_and(|entry| {
            entry.inode.store(inode.0, Ordering::Relaxed);
            entry.word.store(WATCHED, Ordering::Release);
            true
        })
    }

    /// The file that the watched `fd` is open on; 0 where its blocks say nothing about writes through it.
    #[inline]
    pub(super) fn inode(&self, fd: RawFd) -> Option<Inode> {
        let entry = self.entry(fd).filter(|entry| entry.word.load(Ordering::Acquire) != 0)?;
        Some(Inode(entry.inode.load(Ordering::Relaxed)))
    }

    /// Leaves `fd` to be looked at before its first change; false, and nothing done, where its page is not there yet.
    #[inline]
    pub(super) fn look_later(&self, fd: RawFd) -> bool {
        self.word(fd).is_some_and(|word| {
            word.store(UNLOOKED, Ordering::Relaxed);
            true
        })
    }

    /// Leaves `fd` to be looked at before its first change, on a page that is made if it is missing; false beyond the last page.
    pub(super) fn look_later_on_page(&self, fd: RawFd) -> bool {
        self.page(fd);
        self.look_later(fd)
    }

    /// Whether `fd` is still to be looked at.
    #[inline]
    pub(super) fn is_unlooked(&self, fd: RawFd) -> bool {
        self.word(fd).is_some_and(|word| word.load(Ordering::Relaxed) == UNLOOKED)
    }

    /// No descriptor in `first..=last` is still to be looked at.
    pub(super) fn clear_unlooked(&self, first: RawFd, last: RawFd) {
        for entry in self.entries_in(first, last) {
            let _ = entry.word.compare_exchange(UNLOOKED, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The entries of `first..=last`, as far as there are any.
    fn entries_in(&self, first: RawFd, last: RawFd) -> impl Iterator<Item = &Entry> {
        let pages = self.pages.iter().enumerate().filter_map(|(number, page)| Some((number, page.get()?)));
        let entries = pages.flat_map(|(number, entries)| (number * PAGE..).zip(entries.iter()));
        let is_in = move |fd: usize| RawFd::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd));
        entries.filter(move |(fd, _)| is_in(*fd)).map(|(_, entry)| entry)
    }

    /// Watches `fd` no longer.
    pub(super) fn unwatch(&self, fd: RawFd) {
        if let Some(word) = self.word(fd) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Notes what is free through the watched `fd` in this generation.
    pub(super) fn set_free(&self, fd: RawFd, generation: u64, free: Free) {
        let bits = match free {
            Free::Here => FREE_HERE,
            Free::All => FREE_HERE | FREE_ALL,
        };
        if let Some(word) = self.word(fd) {
            word.store(generation << GENERATION_SHIFT | bits | WATCHED, Ordering::Relaxed);
        }
    }

    /// Whether a change of this kind is known to destroy nothing in this generation.
    #[inline]
    pub(super) fn is_free(&self, fd: RawFd, generation: u64, asked: Free) -> bool {
        let Some(word) = self.word(fd).map(|word| word.load(Ordering::Relaxed)) else { return false };
        let bit = if asked == Free::All { FREE_ALL } else { FREE_HERE };
        word >> GENERATION_SHIFT == generation && word & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_ends_with_its_generation() {
        let table = Table::new();
        assert!(
            !table.is_watched(3) && table.watch(3, Inode(8)) && table.is_watched(3) && !table.is_watched(4)
        );
        table.set_free(3, 7, Free::Here);
        assert!(
            table.is_free(3, 7, Free::Here)
                && !table.is_free(3, 7, Free::All)
                && !table.is_free(3, 8, Free::Here)
        );
        table.set_free(3, 7, Free::All);
        assert!(table.is_free(3, 7, Free::Here) && table.is_free(3, 7, Free::All));
        assert_eq!(table.inode(3), Some(Inode(8)));
        table.unwatch(3);
        assert_eq!(table.inode(3), None);
        assert!(!table.is_watched(3) && !table.is_free(3, 7, Free::Here));
    }

    #[test]
    fn what_is_to_be_looked_at_is_watched_until_then_and_knows_nothing() {
        let table = Table::new();
        assert!(!table.look_later(3) && table.look_later_on_page(3) && table.look_later(4));
        assert!(table.is_watched(3) && table.is_unlooked(3) && !table.is_unlooked(5));
        assert!(!table.is_free(3, 0, Free::Here) && !table.is_free(3, 0, Free::All));
        table.watch(3, Inode(8));
        table.clear_unlooked(0, 10);
        assert!(table.is_watched(3) && !table.is_unlooked(3) && !table.is_watched(4));
    }

    #[test]
    fn members_of_sets_are_known_without_being_watched() {
        let table = Table::new();
        let name = |fd| table.member(fd).map(|step| step.to_string());
        let longest = "0.123456789012345678901234567890".to_owned();
        assert_eq!(longest.len(), NAME_BYTES_MAX);
        for (fd, step) in [(3, "0"), (4, "7"), (2000, longest.as_str())] {
            table.set_member(fd, step.parse().ok());
        }
        table.set_member(4, None);
        assert_eq!([3, 4, 5, 2000].map(name), [Some("0".to_owned()), None, None, Some(longest)]);
        assert!(!table.is_watched(3));
        table.clear_members(100, 3000);
        assert_eq!([3, 2000].map(name), [Some("0".to_owned()), None]);
    }

    #[test]
    fn numbers_beyond_the_last_page_are_refused() {
        let table = Table::new();
        let watch = |fd| table.watch(fd, Inode(1));
        assert!(!watch(-1) && !watch(1 << 20) && watch((1 << 20) - 1));
    }
}
