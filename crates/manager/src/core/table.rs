//! A hash table that never stands still to grow.
//!
//! A usual table of millions of entries looks at all of them, in one go, each time that it has doubled. This one is many small tables, by
//! linear hashing (Litwin, VLDB 1980): whenever there is one entry for each more than a small table should have, one of them
//! is split in two. So an insertion costs as much as a small table has, however many there are. Half of an entry's hash stands beside it: to split a
//! table, or to tell entries apart, nothing has to be read that lies elsewhere, which with millions of entries would be in no cache.

use hashbrown::HashTable;
use stdchk_model::exact::{part, part_mut, to_usize};

/// Entries of a small table, on average at most: seven eighths of a power of two, to which hash tables grow.
const ENTRIES: usize = 3584;
/// Lower bits of a hash by which a small table itself finds its entries; the others say in which small table they are.
const BITS_WITHIN: u32 = 16;

/// The table. What an entry is, and its hash, is up to the caller.
#[derive(Debug)]
pub(super) struct GrowingTable<T> {
    parts: Vec<HashTable<(u32, T)>>,
    len: usize,
}

/// What is kept of a hash.
fn kept(hash: u64) -> u32 {
    stdchk_model::exact::narrow(hash >> 32)
}

/// The hash by which tables place what has kept this: its bits are spread over all of it.
fn spread(kept: u32) -> u64 {
    let product = u64::from(kept).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

impl<T> Default for GrowingTable<T> {
    fn default() -> Self {
        Self { parts: vec![HashTable::new()], len: 0 }
    }
}

impl<T> GrowingTable<T> {
    /// In which of `parts` small tables an entry is: by as many bits as number all of them, or one bit less where that one isn't there yet.
    fn part_of(hash: u64, parts: usize) -> usize {
        let numbered = parts.next_power_of_two();
        let place = to_usize(hash >> BITS_WITHIN) & (numbered - 1);
        if place < parts { place } else { place - numbered / 2 }
    }

    /// How many entries there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The entry with this hash for which `is_it` holds.
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        let (kept, hash) = (kept(hash), spread(kept(hash)));
        let table = part(&self.parts, Self::part_of(hash, self.parts.len()));
        table.find(hash, |(known, entry)| *known == kept && is_it(entry)).map(|(_, entry)| entry)
    }

    /// Inserts an entry that is not there yet.
    pub(super) fn insert_unique(&mut self, hash: u64, entry: T) {
        if self.len >= self.parts.len() * ENTRIES {
            self.split();
        }
        let (kept, hash) = (kept(hash), spread(kept(hash)));
        let place = Self::part_of(hash, self.parts.len());
        part_mut(&mut self.parts, place).insert_unique(hash, (kept, entry), |(kept, _)| spread(*kept));
        self.len += 1;
    }

    /// Splits the next small table, and adds one for what isn't in it any more.
    fn split(&mut self) {
        let added = self.parts.len();
        let place = Self::part_of((added as u64) << BITS_WITHIN, added);
        let both = std::mem::take(part_mut(&mut self.parts, place));
        self.parts.push(HashTable::new());
        for (kept, entry) in both {
            let hash = spread(kept);
            let place = Self::part_of(hash, added + 1);
            part_mut(&mut self.parts, place).insert_unique(hash, (kept, entry), |(kept, _)| spread(*kept));
        }
    }

    /// Takes out the entry with this hash for which `is_it` holds.
    pub(super) fn remove(&mut self, hash: u64, mut is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let (kept, hash) = (kept(hash), spread(kept(hash)));
        let place = Self::part_of(hash, self.parts.len());
        let is_it = |(known, entry): &(u32, T)| *known == kept && is_it(entry);
        let ((_, entry), _) = part_mut(&mut self.parts, place).find_entry(hash, is_it).ok()?.remove();
        self.len -= 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, RandomState};

    use super::*;

    #[test]
    fn entries_are_found_while_the_table_grows_and_not_once_they_are_taken_out() {
        let hasher = RandomState::new();
        let hash_of = |entry: &u64| hasher.hash_one(entry);
        let mut table = GrowingTable::default();
        let is_there = |table: &GrowingTable<u64>, entry: u64| {
            table.find(hash_of(&entry), |other| *other == entry).is_some()
        };
        for entry in 0..100_000 {
            assert!(!is_there(&table, entry), "{entry}");
            table.insert_unique(hash_of(&entry), entry);
            assert!(is_there(&table, entry) && is_there(&table, entry / 2), "{entry}");
            if entry % 3 == 2 {
                assert_eq!(table.remove(hash_of(&entry), |other| *other == entry), Some(entry));
                assert_eq!(table.remove(hash_of(&entry), |other| *other == entry), None);
                table.insert_unique(hash_of(&entry), entry);
            }
        }
        assert!((0..100_000).all(|entry| is_there(&table, entry)));
        let sizes: Vec<usize> = table.parts.iter().map(HashTable::len).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 100_000);
        let most = sizes.iter().max().copied();
        assert!(sizes.len() == 100_000_usize.div_ceil(ENTRIES) && most < Some(2 * ENTRIES), "{sizes:?}");
        (0..100_000)
            .for_each(|entry| assert!(table.remove(hash_of(&entry), |other| *other == entry).is_some()));
        assert_eq!(table.len, 0);
    }
}
