//! Where a file has data and where holes, as `lseek()` asks (`SEEK_DATA`, `SEEK_HOLE`).
//!
//! What a file consists of knows its own data: the chunk map of a version, the cells of a session, the images of the spool.
//! Each says the first run of data that ends behind an offset; what none of them has is a hole. A run may be larger than
//! what was written, never smaller: a hole that counts as data costs time, data that counts as a hole is lost in a copy.

use std::ops::Range;

/// What is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sought {
    /// Bytes that may be other than zero.
    Data,
    /// A run of zeros that is stored nowhere; the end of the file is one.
    Hole,
}

impl Sought {
    /// The first place at or behind `offset` of a file of `size` bytes; `None` if `offset` is not in the file, or if no
    /// data follow. `data_at`: the first run of data that ends behind an offset.
    pub(crate) fn find(
        self,
        offset: u64,
        size: u64,
        data_at: impl Fn(u64) -> Option<Range<u64>>,
    ) -> Option<u64> {
        if offset >= size {
            return None;
        }
        let mut at = offset;
        while let Some(data) = data_at(at).filter(|data| data.start < size) {
            match self {
                Self::Data => return Some(data.start.max(offset)),
                Self::Hole if data.start > at => break,
                Self::Hole => at = data.end,
            }
        }
        (self == Self::Hole).then_some(at.min(size))
    }
}

/// The run of two that begins first.
pub(crate) fn first(one: Option<Range<u64>>, other: Option<Range<u64>>) -> Option<Range<u64>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if one.start <= other.start { one } else { other }),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 40;

    fn layers(at: u64) -> Option<Range<u64>> {
        let of = |runs: &[Range<u64>]| runs.iter().find(|run| run.end > at).cloned();
        first(of(&[5..10, 20..25]), of(&[8..15, 30..50]))
    }

    #[test]
    fn holes_and_data_are_what_the_layers_say_together() {
        let is_data = |at: u64| (5..15).contains(&at) || (20..25).contains(&at) || (30..SIZE).contains(&at);
        for offset in 0..SIZE + 5 {
            let data = (offset..SIZE).find(|at| is_data(*at));
            assert_eq!(Sought::Data.find(offset, SIZE, layers), data, "{offset}");
            let hole = (offset..=SIZE).find(|at| *at == SIZE || !is_data(*at)).filter(|_| offset < SIZE);
            assert_eq!(Sought::Hole.find(offset, SIZE, layers), hole, "{offset}");
        }
    }

    #[test]
    fn a_file_without_data_is_one_hole() {
        assert_eq!(Sought::Data.find(3, 9, |_| None), None);
        assert_eq!(Sought::Hole.find(3, 9, |_| None), Some(3));
    }
}
