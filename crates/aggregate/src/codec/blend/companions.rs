//! Which members of a block go together.
//!
//! Relies on shapes alone, which both sides know. The idea: a set holds the same sequence of shapes for each rank, each state
//! of an optimizer and each layer, so that members correspond whose neighbours have the same shapes, too.

use std::cmp::Reverse;
use std::collections::HashMap;

/// Members that stand beside one.
pub(super) const COMPANIONS: usize = 3;
/// Neighbours that are looked at, in each direction.
const REACH: usize = 64;
/// Earlier members of the same shape that are looked at: the closest ones.
const CANDIDATES: usize = 96;

/// For every member the earlier ones of the same shape that go with it, best first.
pub(super) fn companions(shapes: &[[usize; 3]]) -> Vec<[Option<usize>; COMPANIONS]> {
    let mut earlier: HashMap<[usize; 3], Vec<usize>> = HashMap::new();
    let mut all = Vec::with_capacity(shapes.len());
    for (member, shape) in shapes.iter().enumerate() {
        let alike = earlier.entry(*shape).or_default();
        let mut found = Vec::new();
        let mut certain = 0;
        for other in alike.iter().rev().take(CANDIDATES) {
            let likeness = likeness(shapes, member, *other);
            found.push((likeness, *other));
            certain += usize::from(likeness >= REACH);
            if certain == COMPANIONS {
                break;
            }
        }
        // The closest one wins among equals: the sort keeps their order.
        found.sort_by_key(|(likeness, _)| Reverse(*likeness));
        let mut best = [None; COMPANIONS];
        best.iter_mut().zip(found).for_each(|(place, (_, other))| *place = Some(other));
        all.push(best);
        alike.push(member);
    }
    all
}

/// How many neighbours in a row have the same shapes around both members.
fn likeness(shapes: &[[usize; 3]], one: usize, other: usize) -> usize {
    let (before, behind) = (shapes.get(..one), shapes.get(one..));
    let (other_before, other_behind) = (shapes.get(..other), shapes.get(other..));
    let (before, other_before) = (before.unwrap_or_default(), other_before.unwrap_or_default());
    let (behind, other_behind) = (behind.unwrap_or_default(), other_behind.unwrap_or_default());
    let backwards = before.iter().rev().zip(other_before.iter().rev()).take(REACH);
    let forwards = behind.iter().zip(other_behind).take(REACH);
    backwards.take_while(|(one, other)| one == other).count()
        + forwards.take_while(|(one, other)| one == other).count().min(REACH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_sequence_that_repeats_meet_those_at_the_same_place() {
        // Two layers of a matrix and a bias and a head, for weights and for two moments.
        let layer = [[1, 8, 8], [1, 1, 8]];
        let state = [layer.as_slice(), &layer, &[[1, 4, 8]]].concat();
        let found = companions(&state.repeat(3));
        let beside = |member: usize| found[member].map(|other| other.map(|other| member - other));
        assert_eq!(beside(2), [Some(2), None, None]);
        for moment in 5..10 {
            assert_eq!(beside(moment)[0], Some(5), "{moment}");
        }
        assert_eq!(beside(10), [Some(5), Some(10), Some(3)]);
    }

    #[test]
    fn among_equals_the_closest_go_together() {
        let found = companions(&[[1, 4, 4]; 5]);
        assert_eq!(found[4], [Some(3), Some(2), Some(1)]);
    }
}
