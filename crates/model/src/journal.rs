//! The journal: the manager's store as benefactors keep it, so that a manager that lost its disk can be made anew.
//!
//! A journal is a base, which is all records of one moment in parts, and each commit since. What the pieces hold is sealed: benefactors
//! can neither read nor make one. A benefactor keeps the pieces in one file, each in a frame with a check, and replaces all of it when it
//! has the whole of a newer base. `docs/FORMAT.md` has the layout.
//!
//! | state | part 0 of a base | its next part | the last part | the next commit | anything else |
//! |---|---|---|---|---|---|
//! | empty | taking | an error | an error | an error | an error |
//! | taking | taking, anew | taking | whole | an error | an error |
//! | whole | an error: that is another file | an error | an error | whole | an error |

use std::io::{self, Read};

use minicbor::{Decode, Encode};

use crate::cbor;
use crate::id::BenefactorId;
use crate::message::manager::Moment;
use crate::signed::{MomentKey, Signed};

/// Bytes of a frame before the piece: its length and its check.
const HEAD_BYTES: usize = 12;
/// Longest piece that is taken for one, bytes.
const PIECE_BYTES_MAX: u32 = 64 << 20;

/// A piece of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Piece {
    /// A part of the base.
    #[n(0)]
    Base {
        /// The moment that it shows, signed for who keeps it.
        #[n(0)]
        moment: Signed<Moment>,
        /// Which key it is sealed with.
        #[n(1)]
        key: u64,
        /// Which part, from 0 on.
        #[n(2)]
        part: u32,
        /// Whether it is the last.
        #[n(3)]
        last: bool,
        /// The part, sealed.
        #[cbor(n(4), with = "minicbor::bytes")]
        sealed: Vec<u8>,
    },
    /// The commit that follows.
    #[n(1)]
    Commit {
        /// The moment after it, signed for who keeps it.
        #[n(0)]
        moment: Signed<Moment>,
        /// The start of the manager that made the commit before.
        #[n(1)]
        before: u64,
        /// Its changes, sealed.
        #[cbor(n(2), with = "minicbor::bytes")]
        sealed: Vec<u8>,
    },
}

impl Piece {
    /// What is sealed in it.
    pub fn sealed(&self) -> &[u8] {
        match self {
            Self::Base { sealed, .. } | Self::Commit { sealed, .. } => sealed,
        }
    }

    /// The same piece, signed for the benefactor that is to keep it.
    #[must_use]
    pub fn signed(mut self, key: &MomentKey, to: BenefactorId) -> Self {
        let (Self::Base { moment, .. } | Self::Commit { moment, .. }) = &mut self;
        *moment = key.sign(moment.what, to);
        self
    }
}

/// How far a journal goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Reach {
    /// The moment after its last commit, as the manager has signed it.
    #[n(0)]
    pub moment: Signed<Moment>,
    /// Which key it is sealed with.
    #[n(1)]
    pub key: u64,
}

/// Why a piece doesn't follow on what is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a piece of the journal doesn't follow on those before it")]
pub struct OutOfOrder;

/// Where a sequence of pieces stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Journal {
    /// There was none.
    #[default]
    Empty,
    /// Parts of a base were there; `next` comes next.
    Taking {
        /// Where the base will reach.
        reach: Reach,
        /// The part that comes next.
        next: u32,
    },
    /// A base was there, and commits.
    Whole {
        /// The moments that it went through, ends of the base and of the commits of each start, in order.
        moments: Vec<Moment>,
        /// How far it goes.
        reach: Reach,
    },
}

impl Journal {
    /// Goes on by a piece.
    ///
    /// # Errors
    /// It doesn't follow; nothing is changed.
    pub fn follow(&mut self, piece: &Piece) -> Result<(), OutOfOrder> {
        *self = match (&mut *self, piece) {
            (Self::Empty | Self::Taking { .. }, Piece::Base { moment, key, part: 0, last, .. }) => {
                Self::taken(Reach { moment: *moment, key: *key }, 0, *last)
            }
            (Self::Taking { reach, next }, Piece::Base { moment, key, part, last, .. })
                if *reach == (Reach { moment: *moment, key: *key }) && part == next =>
            {
                Self::taken(*reach, *part, *last)
            }
            (Self::Whole { moments, reach }, Piece::Commit { moment, before, .. })
                if reach.moment.start == *before
                    && Some(moment.commit) == reach.moment.commit.checked_add(1) =>
            {
                // The base's own moment stays: a journal vouches for nothing before it.
                let goes_on = moments.len() > 1 && moment.start == reach.moment.start;
                let mut moments = std::mem::take(moments);
                moments.truncate(moments.len() - usize::from(goes_on));
                moments.push(moment.what);
                Self::Whole { moments, reach: Reach { moment: *moment, ..*reach } }
            }
            _ => return Err(OutOfOrder),
        };
        Ok(())
    }

    fn taken(reach: Reach, part: u32, last: bool) -> Self {
        match last {
            true => Self::Whole { moments: vec![reach.moment.what], reach },
            false => Self::Taking { reach, next: part.saturating_add(1) },
        }
    }

    /// How far it goes, if it is whole.
    pub fn reach(&self) -> Option<Reach> {
        match self {
            Self::Whole { reach, .. } => Some(*reach),
            _ => None,
        }
    }

    /// Whether it went through this moment.
    pub fn has(&self, moment: Moment) -> bool {
        let Self::Whole { moments, .. } = self else { return false };
        let Some((base, later)) = moments.split_first() else { return false };
        let mut from = base.commit;
        *base == moment
            || later.iter().any(|end| {
                let within = end.start == moment.start && from < moment.commit && moment.commit <= end.commit;
                from = end.commit;
                within
            })
    }
}

/// A piece as a file has it.
pub fn frame(piece: &Piece) -> Vec<u8> {
    let body = cbor::encode(piece);
    let Ok(length) = u32::try_from(body.len()) else { unreachable!("pieces are no longer than messages") };
    [&length.to_le_bytes()[..], &check(&body), &body].concat()
}

/// The next piece and the length of its frame; `None`: there is none that is whole.
///
/// # Errors
/// Those of the reader.
pub fn next(reader: &mut impl Read) -> io::Result<Option<(Piece, u64)>> {
    let mut head = [0; HEAD_BYTES];
    if !fill(reader, &mut head)? {
        return Ok(None);
    }
    let Some(length) = length(&head) else { return Ok(None) };
    let mut body = vec![0; length];
    if !fill(reader, &mut body)? {
        return Ok(None);
    }
    Ok(open(&head, &body).map(|piece| (piece, (HEAD_BYTES + length) as u64)))
}

/// Whether there were enough bytes.
fn fill(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Length of the piece behind a frame's head; `None`: it is no head.
fn length(head: &[u8; HEAD_BYTES]) -> Option<usize> {
    let length = u32::from_le_bytes(*head.first_chunk()?);
    usize::try_from(length).ok().filter(|_| length <= PIECE_BYTES_MAX)
}

/// The piece behind a frame's head; `None`: it is damaged.
fn open(head: &[u8; HEAD_BYTES], body: &[u8]) -> Option<Piece> {
    if head.last_chunk() != Some(&check(body)) {
        return None;
    }
    cbor::decode(body).ok()
}

fn check(body: &[u8]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(body).as_bytes();
    [a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: u64, commit: u64) -> Moment {
        Moment { start, commit }
    }

    fn base(moment: Moment, part: u32, last: bool) -> Piece {
        Piece::Base { moment: Signed::not_yet(moment), key: 9, part, last, sealed: vec![1] }
    }

    fn commit(moment: Moment, before: u64) -> Piece {
        Piece::Commit { moment: Signed::not_yet(moment), before, sealed: vec![2] }
    }

    fn of(pieces: &[Piece]) -> Result<Journal, OutOfOrder> {
        let mut journal = Journal::default();
        pieces.iter().try_for_each(|piece| journal.follow(piece)).map(|()| journal)
    }

    #[test]
    fn a_journal_is_a_base_and_the_commits_that_follow_without_a_gap() {
        let begun = [base(at(1, 10), 0, false), base(at(1, 10), 1, true)];
        let whole =
            [&begun[..], &[commit(at(1, 11), 1), commit(at(1, 12), 1), commit(at(2, 13), 1)]].concat();
        let journal = of(&whole).unwrap();
        assert_eq!(journal.reach(), Some(Reach { moment: Signed::not_yet(at(2, 13)), key: 9 }));
        let has = [at(1, 10), at(1, 11), at(1, 12), at(2, 13)];
        assert!(has.iter().all(|moment| journal.has(*moment)));
        let lacks = [at(1, 9), at(1, 13), at(2, 12), at(2, 10), at(2, 14), at(3, 11)];
        assert!(!lacks.iter().any(|moment| journal.has(*moment)));
        assert_eq!(of(&begun[..1]).unwrap().reach(), None);
    }

    #[test]
    fn what_does_not_follow_is_refused() {
        let whole = base(at(1, 10), 0, true);
        for pieces in [
            vec![base(at(1, 10), 1, true)],
            vec![base(at(1, 10), 0, false), base(at(1, 11), 1, true)],
            vec![base(at(1, 10), 0, false), base(at(1, 10), 2, true)],
            vec![base(at(1, 10), 0, false), commit(at(1, 11), 1)],
            vec![whole.clone(), whole.clone()],
            vec![whole.clone(), commit(at(1, 12), 1)],
            vec![whole.clone(), commit(at(2, 11), 3)],
            vec![whole, commit(at(1, 10), 1)],
        ] {
            assert_eq!(of(&pieces), Err(OutOfOrder), "{pieces:?}");
        }
        let anew = [base(at(1, 10), 0, false), base(at(1, 12), 0, true)];
        assert_eq!(of(&anew).unwrap().reach().unwrap().moment.what, at(1, 12));
    }

    #[test]
    fn a_frame_opens_whole_and_no_flipped_bit_goes_unnoticed() {
        let piece = commit(at(1, 11), 1);
        let framed = frame(&piece);
        let (head, body) = framed.split_first_chunk().unwrap();
        assert_eq!((length(head), open(head, body)), (Some(body.len()), Some(piece)));
        for bit in 32..framed.len() * 8 {
            let mut bad = framed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let (head, body) = bad.split_first_chunk().unwrap();
            assert_eq!(open(head, body), None, "bit {bit}");
        }
    }
}
