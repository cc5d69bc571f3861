//! The ranges of a file that were written: in order, apart from each other, merged where they meet.

use std::collections::BTreeMap;
use std::ops::Range;

/// Written ranges, each by its start, with its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Bytes of `range` that aren't covered yet.
    pub(super) fn missing(&self, range: &Range<u64>) -> u64 {
        let covered: u64 = self.within(range.clone()).map(|part| part.end - part.start).sum();
        range.end - range.start - covered
    }

    /// Adds a range.
    pub(super) fn add(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Those that overlap it or touch it become one with it.
        while let Some((start, end)) =
            self.0.range(..=range.end).next_back().map(|(start, end)| (*start, *end))
        {
            if end < range.start {
                break;
            }
            self.0.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        self.0.insert(range.start, range.end);
    }

    /// Forgets all behind `size`.
    pub(super) fn cut(&mut self, size: u64) {
        drop(self.0.split_off(&size));
        if let Some(mut last) = self.0.last_entry() {
            let end = (*last.get()).min(size);
            last.insert(end);
        }
    }

    /// The parts of `range` that are covered, in order.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.0.range(..range.start).next_back();
        let inside = self.0.range(range.start..range.end.max(range.start));
        before.into_iter().chain(inside).filter_map(move |(start, end)| {
            let part = (*start).max(range.start)..(*end).min(range.end);
            (!part.is_empty()).then_some(part)
        })
    }

    /// All ranges, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// Bytes covered.
    pub(super) fn bytes(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut all = Self::default();
        ranges.into_iter().for_each(|range| all.add(range));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(at: u64) -> usize {
        usize::try_from(at).unwrap()
    }

    #[test]
    fn ranges_agree_with_a_table_of_bytes() {
        let (mut ranges, mut table) = (Ranges::default(), [false; 200]);
        let mut state = 7usize;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % limit
        };
        for _ in 0..3000 {
            let (start, length) = (below(190), below(20));
            let range = start as u64..(start + length).min(200) as u64;
            let missing = (range.start..range.end).filter(|at| !table[index(*at)]).count() as u64;
            assert_eq!(ranges.missing(&range), missing);
            if below(20) == 0 {
                ranges.cut(start as u64);
                table[start..].fill(false);
            } else {
                ranges.add(range.clone());
                table[index(range.start)..index(range.end)].fill(true);
            }
            let covered: Vec<u64> = ranges.iter().flatten().collect();
            let expected: Vec<u64> = (0..200).filter(|at| table[index(*at)]).collect();
            assert_eq!(covered, expected);
            let apart: Vec<Range<u64>> = ranges.iter().collect();
            assert!(apart.windows(2).all(|two| two[0].end < two[1].start), "{apart:?}");
            let asked = below(200) as u64..200;
            let within: Vec<u64> = ranges.within(asked.clone()).flatten().collect();
            assert_eq!(within, expected.into_iter().filter(|at| asked.contains(at)).collect::<Vec<_>>());
        }
    }
}
