//! Elements that occurred before become references: symmetric fields, halos and replicated parts repeat values far apart,
//! copied, mirrored or transposed.
//!
//! Relies on [`super::planes`] and [`super::general`]. The idea: what is new is coded in byte planes; what is a repeat is a run through the elements before it, at any stride: one for a copy, minus one for a
//! mirrored row, the length of a row for a transposed one. Doubles repeat up to their last byte, whose difference is kept:
//! symmetric values are summed in another order on each side, and rounded otherwise. One table lookup per element finds
//! runs, which no window limits: more than a dense compressor finds, at a fraction of its time.

use stdchk_model::exact::{narrow, part, part_mut, to_usize};

use super::step::{CodecError, Result, put_number, take_number};
use super::{general, planes, scratch};

/// Level at which all parts are coded.
const LEVEL: i32 = 1;
/// Entries of the table, as powers of two: the upper one keeps it within half of a second-level cache.
const TABLE_BITS: std::ops::RangeInclusive<u32> = 8..=18;
/// Shortest run: a reference takes about three bytes.
const RUN_MIN: usize = 2;

/// A run through earlier elements: the first one, and the distance from each to the next.
#[derive(Clone, Copy, Default)]
struct Course {
    at: usize,
    stride: isize,
}

impl Course {
    /// The place of an element of the run; far outside of every array when that leads below its beginning.
    fn place(self, step: usize) -> usize {
        self.at.wrapping_add_signed(self.stride.wrapping_mul(step.cast_signed()))
    }

    /// Whether each element of a run of this length, of which the first becomes element `made`, lies before the one that it
    /// becomes: places go in a straight line, so that the first and the last tell.
    fn lies_before(self, made: usize, length: usize) -> bool {
        let step = length.saturating_sub(1);
        let last = isize::try_from(step).ok().and_then(|step| self.stride.checked_mul(step));
        let last = last.and_then(|way| self.at.checked_add_signed(way));
        self.at < made && last.is_some_and(|last| last < made + step)
    }
}

/// What must be equal for elements to count as repeated: all but the last byte of doubles.
pub(crate) fn likeness_8(element: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*element) >> 8
}

/// What must be equal for elements of 4 bytes: everything.
pub(crate) fn likeness_4(element: &[u8; 4]) -> u64 {
    u64::from(u32::from_le_bytes(*element))
}

/// The new elements in planes, the runs, the last bytes of repeated doubles, and bytes behind the last whole element.
pub(crate) fn forward(bytes: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    match size {
        4 => sized(bytes, likeness_4, out),
        8 => sized(bytes, likeness_8, out),
        _ => Err(CodecError::Unsuitable { step: "distinct", detail: "elements are 4 or 8 bytes" }),
    }
}

/// What is known while elements are looked at, one after the other.
struct Finder<'a, const N: usize, Word: Fn(&[u8; N]) -> u64> {
    elements: &'a [[u8; N]],
    likeness: Word,
    /// For every hash one more than the place of the new element that had it last.
    table: Vec<u32>,
    shift: u32,
    runs: Vec<u8>,
    /// The last run, one step beyond its end.
    last: Course,
}

fn sized<const N: usize>(bytes: &[u8], likeness: impl Fn(&[u8; N]) -> u64, out: &mut Vec<u8>) -> Result<()> {
    let (elements, tail) = bytes.as_chunks::<N>();
    let bits = elements.len().max(1).ilog2().clamp(*TABLE_BITS.start(), *TABLE_BITS.end());
    let (table, shift) = (vec![0; 1 << bits], 64 - bits);
    let mut finder = Finder { elements, likeness, table, shift, runs: Vec::new(), last: Course::default() };
    let mut new = scratch::empty(bytes.len());
    let mut residues = Vec::new();
    let (mut place, mut plain) = (0, 0);
    while let Some(element) = elements.get(place) {
        let (course, length) = finder.run(place, element);
        if length < RUN_MIN {
            new.extend_from_slice(element);
            (place, plain) = (place + 1, plain + 1);
            continue;
        }
        finder.put(plain, course, length);
        if N == 8 {
            finder.residues(place, course, length, &mut residues);
        }
        (place, plain) = (place + length, 0);
    }
    put_number(&mut finder.runs, plain);
    put_number(&mut finder.runs, 0);
    let packed = planes::compress(&new, N, false, LEVEL, &[])?;
    planes::put_counted(out, new.len(), &packed);
    [new, packed].into_iter().for_each(scratch::give_back);
    for part in [&finder.runs, &residues] {
        general::with_zstd(part, LEVEL, |packed| planes::put_counted(out, part.len(), packed))?;
    }
    out.extend_from_slice(tail);
    Ok(())
}

impl<const N: usize, Word: Fn(&[u8; N]) -> u64> Finder<'_, N, Word> {
    /// The run that begins at `place`, and its length; an element that begins none is remembered as new.
    fn run(&mut self, place: usize, element: &[u8; N]) -> (Course, usize) {
        let slot = self.slot(element);
        let Some(at) = self.known(slot, element) else {
            *part_mut(&mut self.table, slot) = narrow(place + 1);
            return (Course::default(), 0);
        };
        let as_before = Course { at, stride: self.last.stride };
        let length = self.length(as_before, place);
        if length >= RUN_MIN {
            return (as_before, length);
        }
        let next = self.elements.get(place + 1);
        let next = next.and_then(|next| self.known(self.slot(next), next));
        let Some(next) = next else { return (as_before, 0) };
        let course = Course { at, stride: next.wrapping_sub(at).cast_signed() };
        (course, self.length(course, place))
    }

    fn slot(&self, element: &[u8; N]) -> usize {
        let mixed = (self.likeness)(element).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        to_usize(mixed >> self.shift)
    }

    /// Where the same element was met first, as far as the table remembers.
    fn known(&self, slot: usize, element: &[u8; N]) -> Option<usize> {
        let entry = self.table.get(slot).copied()?.checked_sub(1)?;
        let at = usize::try_from(entry).ok()?;
        ((self.likeness)(self.elements.get(at)?) == (self.likeness)(element)).then_some(at)
    }

    /// How far the first bytes of repeated elements are from those of the ones that they repeat.
    fn residues(&self, place: usize, course: Course, length: usize, residues: &mut Vec<u8>) {
        let first = |element: &[u8; N]| *part(element, 0);
        let run = part(self.elements, place..place + length).iter().map(first);
        if course.stride == 1 {
            let seen = part(self.elements, course.at..).iter().map(first);
            residues.extend(run.zip(seen).map(|(byte, seen)| byte.wrapping_sub(seen)));
        } else {
            let seen = |step| first(part(self.elements, course.place(step)));
            residues.extend(run.enumerate().map(|(step, byte)| byte.wrapping_sub(seen(step))));
        }
    }

    fn length(&self, course: Course, place: usize) -> usize {
        let rest = part(self.elements, place..);
        if course.stride == 1 {
            let seen = part(self.elements, course.at..);
            let same =
                |(element, seen): &(&[u8; N], &[u8; N])| (self.likeness)(element) == (self.likeness)(seen);
            return rest.iter().zip(seen).take_while(same).count();
        }
        let same = |(step, element): &(usize, &[u8; N])| {
            let seen = course.place(*step);
            let like = self.elements.get(seen).map(&self.likeness) == Some((self.likeness)(element));
            seen < place + step && like
        };
        rest.iter().enumerate().take_while(same).count()
    }

    /// Writes a run down, behind `plain` new elements.
    fn put(&mut self, plain: u64, course: Course, length: usize) {
        let folded = |signed: isize| ((signed << 1) ^ (signed >> (isize::BITS - 1))).cast_unsigned() as u64;
        put_number(&mut self.runs, plain);
        put_number(&mut self.runs, length as u64);
        put_number(&mut self.runs, folded(course.at.wrapping_sub(self.last.at).cast_signed()));
        put_number(&mut self.runs, folded(course.stride.wrapping_sub(self.last.stride)));
        self.last = Course { at: course.place(length), ..course };
    }
}

/// The inverse of [`forward`].
pub(crate) fn backward(body: &[u8], size: usize, length: usize) -> Result<Vec<u8>> {
    match size {
        4 => unsized_::<4>(body, length),
        8 => unsized_::<8>(body, length),
        _ => Err(damaged("elements of another size")),
    }
}

fn damaged(detail: &'static str) -> CodecError {
    CodecError::damaged("distinct", detail)
}

fn unsized_<const N: usize>(body: &[u8], length: usize) -> Result<Vec<u8>> {
    let mut rest = body;
    // A run of two elements takes four numbers of at most ten bytes.
    let limit = length.saturating_mul(20).saturating_add(64);
    let counted = |rest: &mut _| planes::take_counted(rest, limit).ok_or_else(|| damaged("it is cut"));
    let (new_length, packed) = counted(&mut rest)?;
    if new_length > length {
        return Err(damaged("more new elements than all"));
    }
    let new = planes::decompress(packed, N, false, new_length)?;
    let (runs_length, packed) = counted(&mut rest)?;
    let runs = general::unzstd(packed, runs_length)?;
    let (residues_length, packed) = counted(&mut rest)?;
    let residues = general::unzstd(packed, residues_length)?;
    let mut out = scratch::filled(length);
    let (elements, tail) = out.as_chunks_mut::<N>();
    let replayed = replay(new.as_chunks::<N>().0, &runs, &residues, elements)?;
    if replayed != elements.len() || rest.len() != tail.len() {
        return Err(damaged("elements that don't add up"));
    }
    tail.copy_from_slice(rest);
    [new, runs, residues].into_iter().for_each(scratch::give_back);
    Ok(out)
}

/// New elements and runs in turn, until both are used up; how many elements that made.
fn replay<const N: usize>(
    new: &[[u8; N]],
    mut runs: &[u8],
    mut residues: &[u8],
    out: &mut [[u8; N]],
) -> Result<usize> {
    let outside = || damaged("a run outside of what came before");
    let (mut used, mut made, mut last) = (0_usize, 0_usize, Course::default());
    let number = |runs: &mut &[u8]| {
        let value = take_number(runs).ok_or_else(|| damaged("the runs end early"))?;
        usize::try_from(value).map_err(|_| damaged("a number beyond all bounds"))
    };
    let signed = |folded: usize| (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed();
    loop {
        let plain = number(&mut runs)?;
        let fresh = new.get(used..).and_then(|new| new.get(..plain)).ok_or_else(outside)?;
        let room = out.get_mut(made..).and_then(|out| out.get_mut(..plain)).ok_or_else(outside)?;
        room.copy_from_slice(fresh);
        (used, made) = (used + plain, made + plain);
        let length = number(&mut runs)?;
        if length == 0 {
            let all_used = used == new.len() && residues.is_empty();
            return if all_used { Ok(made) } else { Err(damaged("elements are left over")) };
        }
        let at = last.at.wrapping_add_signed(signed(number(&mut runs)?));
        let course = Course { at, stride: last.stride.wrapping_add(signed(number(&mut runs)?)) };
        if length > out.len() - made || !course.lies_before(made, length) {
            return Err(outside());
        }
        // Only doubles have residues.
        let added = residues.split_at_checked(if N == 8 { length } else { 0 });
        let (added, later) = added.ok_or_else(|| damaged("residues are missing"))?;
        repeat(out, made, course, length, added);
        (residues, made) = (later, made + length);
        last = Course { at: course.place(length), ..course };
    }
}

/// Makes the next elements of `out` those of a run, with what is added to the first byte of each.
fn repeat<const N: usize>(out: &mut [[u8; N]], made: usize, course: Course, length: usize, added: &[u8]) {
    assert!(course.lies_before(made, length), "a run repeats elements before it");
    let (before, room) = out.split_at_mut(made);
    let whole = before.get(course.at..).and_then(|seen| seen.get(..length)).filter(|_| course.stride == 1);
    if let Some((seen, targets)) = whole.zip(room.get_mut(..length)) {
        targets.copy_from_slice(seen);
        for (byte, residue) in targets.iter_mut().filter_map(|target| target.first_mut()).zip(added) {
            *byte = byte.wrapping_add(*residue);
        }
        return;
    }
    for step in 0..length {
        let mut element = *part(out, course.place(step));
        if let (Some(byte), Some(residue)) = (element.first_mut(), added.get(step)) {
            *byte = byte.wrapping_add(*residue);
        }
        *part_mut(out, made + step) = element;
    }
}
