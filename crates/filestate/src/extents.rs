//! The interval map of one file: which byte ranges are already known (Metamori's AML tree, section 4.3.3, without the
//! buffers: the bytes themselves stay in files). Pure data.
//!
//! The one idea: ranges are kept disjoint and never touch, so inserting merges neighbours and a lookup is one step in
//! an ordered map. The paper's five overlap cases are then one loop.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of byte offsets, held as disjoint ranges that do not touch each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extents {
    /// Start offset to end offset (exclusive).
    ends: BTreeMap<u64, u64>,
}

impl Extents {
    /// The empty set, without allocating.
    pub const fn new() -> Self {
        Self { ends: BTreeMap::new() }
    }

    /// Adds `range`, merging it with every range that it overlaps or touches. An empty range adds nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&left, &right)) =
            self.ends.range(..=end).next_back().filter(|(_, right)| **right >= start)
        {
            self.ends.remove(&left);
            start = start.min(left);
            end = end.max(right);
        }
        self.ends.insert(start, end);
    }

    /// Removes `range`, splitting what it cuts through.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&left, &right)) =
            self.ends.range(..range.end).next_back().filter(|(_, r)| **r > range.start)
        {
            self.ends.remove(&left);
            if right > range.end {
                self.ends.insert(range.end, right);
            }
            if left < range.start {
                self.ends.insert(left, range.start);
                return;
            }
        }
    }

    /// The parts of `range` that are not in the set, in ascending order.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut from = range.start;
        let first = self.ends.range(..=range.start).next_back();
        let later =
            self.ends.range(range.start.saturating_add(1)..range.end.max(range.start.saturating_add(1)));
        for (&left, &right) in first.into_iter().chain(later) {
            if left > from {
                gaps.push(from..left.min(range.end));
            }
            from = from.max(right);
        }
        if from < range.end {
            gaps.push(from..range.end);
        }
        gaps
    }

    /// Whether every offset of `range` is in the set.
    pub fn covers(&self, range: Range<u64>) -> bool {
        let before = self.ends.range(..=range.start).next_back();
        range.is_empty() || before.is_some_and(|(_, end)| *end >= range.end)
    }

    /// The ranges, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ends.iter().map(|(start, end)| *start..*end)
    }

    /// The number of offsets in the set.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    //! The interval map against the plainest model there is: one boolean per offset.

    use super::*;
    use proptest::prelude::*;

    const OFFSETS: u64 = 64;

    fn place(at: u64) -> usize {
        usize::try_from(at).unwrap()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(Range<u64>),
        Remove(Range<u64>),
    }

    fn any_range() -> impl Strategy<Value = Range<u64>> {
        (0..OFFSETS, 0..OFFSETS).prop_map(|(a, b)| a.min(b)..a.max(b))
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![3 => any_range().prop_map(Step::Insert), 1 => any_range().prop_map(Step::Remove)]
    }

    fn offsets(extents: &Extents) -> Vec<bool> {
        (0..OFFSETS).map(|at| extents.covers(at..at + 1)).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_one_boolean_per_offset(steps in prop::collection::vec(any_step(), 0..40), asked in any_range()) {
            let mut model = vec![false; place(OFFSETS)];
            let mut extents = Extents::new();
            for step in steps {
                let (range, value) = match step {
                    Step::Insert(range) => { extents.insert(range.clone()); (range, true) }
                    Step::Remove(range) => { extents.remove(range.clone()); (range, false) }
                };
                for at in range { model[place(at)] = value; }
            }
            prop_assert_eq!(offsets(&extents), model.clone());
            prop_assert_eq!(extents.bytes(), model.iter().filter(|held| **held).count() as u64);
            let missing: Vec<u64> = extents.gaps(asked.clone()).into_iter().flatten().collect();
            let expected: Vec<u64> = asked.clone().filter(|at| !model[place(*at)]).collect();
            prop_assert_eq!(missing, expected);
            prop_assert_eq!(extents.covers(asked.clone()), asked.clone().all(|at| model[place(at)]));
        }

        #[test]
        fn neighbours_are_always_merged(steps in prop::collection::vec(any_step(), 0..40)) {
            let mut extents = Extents::new();
            for step in steps {
                match step { Step::Insert(range) => extents.insert(range), Step::Remove(range) => extents.remove(range) }
            }
            let ranges: Vec<_> = extents.iter().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
            prop_assert!(ranges.iter().all(|range| range.start < range.end));
        }
    }

    #[test]
    fn the_papers_example_of_three_intervals_reads_as_it_says() {
        // Section 4.3.3: 1-20, then 3-11, then 16-25 were written; 26-30 of a read of 1-30 come from the file itself.
        let mut extents = Extents::new();
        for range in [1..21, 3..12, 16..26] {
            extents.insert(range);
        }
        assert_eq!(extents.gaps(1..31), vec![26..31]);
    }
}
