//! Cutters: where one piece of a stream ends and the next begins.
//!
//! A cutter sees the bytes from the last cut on and says how long the next piece is. The answer is a function of
//! those bytes alone, never of how they were split into calls, nor of what came before the last cut; so a stream can
//! be cut again from any cut and gives the same pieces from there on (but for the first piece of a grid with a phase).
//! What equal pieces are worth is the caller's business: the pieces of a fine cutter are packed into larger chunks for
//! storing (design decision 6).

use std::fmt;
use std::num::NonZeroUsize;

mod cbch;
mod cdc;
mod fsch;
mod scan;
mod spec;
#[cfg(test)]
pub(crate) mod testing;

pub use cbch::CbchParameters;
pub use scan::Scanner;
pub use spec::{BadCutter, CutterSpec};

/// Smallest piece that may be asked for, bytes: below it, a piece's name and its place in the map outweigh its content.
pub const PIECE_BYTES_MIN: usize = 512;
/// Largest piece, bytes: a piece never spans chunks.
pub const PIECE_BYTES_MAX: usize = stdchk_model::limits::CHUNK_BYTES_MAX;

/// Lengths of the pieces that a cutter makes, bytes. The last piece of a stream may be shorter than `min`, and so may the
/// first one of a grid with a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutLimits {
    /// Shortest piece but for those.
    pub min: usize,
    /// Mean length on data without structure.
    pub average: usize,
    /// Longest piece. Once a caller holds this many bytes, the next cut is known.
    pub max: usize,
}

/// Divides one stream into pieces. Reusable after [`Cutter::restart`].
pub trait Cutter: Send + fmt::Debug {
    /// Length of the piece that starts at `data`, or `None` when more bytes are needed to tell.
    ///
    /// `data` holds the stream from the last cut on, as far as the caller has it; a later call shows the same bytes
    /// and more, and after `Some(length)` the next call starts `length` bytes later. With `end_of_stream` no more bytes
    /// follow, and the answer is `None` only when `data` is empty. Never `None` for `limits().max` bytes or more.
    fn next_cut(&mut self, data: &[u8], end_of_stream: bool) -> Option<NonZeroUsize>;

    /// The lengths that pieces can have.
    fn limits(&self) -> CutLimits;

    /// Forgets how far the current piece was searched; the next call shows other bytes (a seek, another file).
    fn restart(&mut self);
}

/// The pieces of `data`, a whole stream, in order.
pub fn pieces<'data>(cutter: &mut dyn Cutter, data: &'data [u8]) -> impl Iterator<Item = &'data [u8]> {
    cutter.restart();
    let mut rest = data;
    std::iter::from_fn(move || {
        let Some(length) = cutter.next_cut(rest, true) else {
            assert!(rest.is_empty(), "a stream that has ended is cut to its end");
            return None;
        };
        let (piece, after) = rest.split_at(length.get());
        rest = after;
        Some(piece)
    })
}

/// The whole of what is left, once the stream has ended.
fn last_piece(data: &[u8], end_of_stream: bool) -> Option<NonZeroUsize> {
    NonZeroUsize::new(data.len()).filter(|_| end_of_stream)
}

#[cfg(test)]
mod tests {
    use super::testing::{lengths, random};
    use super::*;

    /// A change of any constant would cut new versions unlike everything that is stored: similarity would be lost
    /// once, in silence.
    #[test]
    fn cuts_never_change() {
        let data = random(5, 300_000);
        for (spec, first, count) in GOLDEN {
            let lengths = lengths(&mut *spec.parse::<CutterSpec>().unwrap().cutter(), &data);
            assert_eq!((&lengths[..3], lengths.len()), (&first[..], count), "{spec}");
        }
    }

    const GOLDEN: [(&str, [usize; 3], usize); 4] = [
        ("fsch:1000", [1000, 1000, 1000], 300),
        ("cbch:m=20,k=10,p=1", [2544, 1064, 289], 289),
        ("cbch:m=20,k=8,p=20", [9100, 1040, 11420], 58),
        ("cdc:8KiB", [7533, 7689, 8555], 37),
    ];

    #[test]
    fn a_cutter_can_start_anew_in_the_middle_of_a_piece() {
        let data = random(6, 100_000);
        for spec in ["fsch:1000", "cbch:m=20,k=10,p=1", "cbch:m=20,k=10,p=20", "cdc:8KiB"] {
            let mut cutter = spec.parse::<CutterSpec>().unwrap().cutter();
            let whole = lengths(&mut *cutter, &data);
            assert_eq!(cutter.next_cut(&random(7, 900), false), None, "{spec}");
            assert_eq!(lengths(&mut *cutter, &data), whole, "{spec}");
        }
    }

    #[test]
    fn nothing_has_no_pieces() {
        for spec in ["fsch:1000", "cbch:m=20,k=10,p=1", "cdc:8KiB"] {
            let mut cutter = spec.parse::<CutterSpec>().unwrap().cutter();
            assert_eq!((cutter.next_cut(&[], true), cutter.next_cut(&[], false)), (None, None), "{spec}");
        }
    }
}
