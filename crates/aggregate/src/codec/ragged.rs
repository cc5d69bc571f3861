//! Records that begin with their own length: LAMMPS packs each atom so, as doubles, and bonded atoms have longer ones.
//!
//! Relies on [`super::scratch`]. The idea: sorted by position in the record, lengths stand with lengths and coordinates with
//! coordinates, as transposing does for records of one length. What doesn't parse to the end stays as it is.

use stdchk_model::exact::{part, part_mut};

use super::scratch;
use super::step::{CodecError, Result, put_number, take_number};

/// Longest believed record, in doubles: atoms have some tens, and a hostile block costs its words times this.
const RECORD_MAX: f64 = 512.0;

type Word = [u8; 8];

/// The number of records, then column by column: the lengths of all records, their second doubles, and so on. Zero
/// records stand for bytes that are left as they are.
pub(crate) fn forward(bytes: &[u8]) -> Vec<u8> {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut head = Vec::new();
    let Some(lengths) = lengths_of(words).filter(|_| tail.is_empty()) else {
        put_number(&mut head, 0);
        head.extend_from_slice(bytes);
        return head;
    };
    put_number(&mut head, lengths.len() as u64);
    let mut next = column_starts(lengths.iter().copied());
    let mut out = scratch::filled(head.len() + bytes.len());
    let (front, columns) = out.split_at_mut(head.len());
    front.copy_from_slice(&head);
    let (columns, mut rest) = (columns.as_chunks_mut::<8>().0, words);
    for length in lengths {
        let (record, after) = rest.split_at(length);
        for (word, next) in record.iter().zip(&mut next) {
            *part_mut(columns, *next) = *word;
            *next += 1;
        }
        rest = after;
    }
    out
}

/// Where each column begins.
fn column_starts(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    // How many records have exactly so many words.
    let mut ends = Vec::new();
    let mut records = 0_usize;
    for length in lengths {
        if ends.len() <= length {
            ends.resize(length + 1, 0_usize);
        }
        *part_mut(&mut ends, length) += 1;
        records += 1;
    }
    let mut start = 0;
    let columns = ends.iter().take(ends.len().saturating_sub(1)).map(|ended| {
        records -= ended;
        start += records;
        start - records
    });
    columns.collect()
}

/// Whether the bytes are such records, so that the step can win anything.
pub(crate) fn applies(bytes: &[u8]) -> bool {
    let (words, tail) = bytes.as_chunks::<8>();
    tail.is_empty() && lengths_of(words).is_some()
}

/// The lengths of the records, if they lead from the first word exactly to the end.
fn lengths_of(words: &[Word]) -> Option<Vec<usize>> {
    let mut lengths = Vec::new();
    let mut place = 0;
    while let Some(first) = words.get(place) {
        let length = length_of(*first)?;
        lengths.push(length);
        place += length;
    }
    (place == words.len() && !lengths.is_empty()).then_some(lengths)
}

fn length_of(word: Word) -> Option<usize> {
    let length = f64::from_le_bytes(word);
    if !(1.0..=RECORD_MAX).contains(&length) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most RECORD_MAX")]
    let whole = length as u16;
    (f64::from(whole) == length).then_some(usize::from(whole))
}

/// The inverse of [`forward`].
pub(crate) fn backward(body: &[u8], length: usize) -> Result<Vec<u8>> {
    let damaged = |detail| CodecError::damaged("ragged", detail);
    let mut rest = body;
    let count = take_number(&mut rest).and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or_else(|| damaged("no number of records"))?;
    if count == 0 {
        return Ok(rest.to_vec());
    }
    let words = rest.as_chunks::<8>().0;
    let heads = words.get(..count).ok_or_else(|| damaged("too few records"))?;
    let lengths = heads.iter().map(|head| length_of(*head)).collect::<Option<Vec<_>>>();
    let lengths = lengths.ok_or_else(|| damaged("a record without a length"))?;
    if lengths.iter().sum::<usize>() != words.len() || words.len() * 8 != length {
        return Err(damaged("lengths that don't add up"));
    }
    let mut next = column_starts(lengths.iter().copied());
    let mut out = scratch::filled(length);
    let mut room = out.as_chunks_mut::<8>().0;
    for length in lengths {
        let (record, after) = room.split_at_mut(length);
        for (word, next) in record.iter_mut().zip(&mut next) {
            *word = *part(words, *next);
            *next += 1;
        }
        room = after;
    }
    Ok(out)
}
