//! What happens to bytes between the application and the wire: cut into pieces, checked for zeros, compressed.
//!
//! Pure: no clock, no randomness, no files, no sockets. The one idea is that every function here depends on its
//! arguments alone, so that the same content is cut and coded the same way on every machine, however the stream was
//! split into writes. Pieces and chunks are named by [`stdchk_model::ChunkId::of`].

pub mod codec;
pub mod cut;
mod grid;
pub mod learn;
mod pace;
mod zero;

pub use codec::{BadStored, Codec, Compressor, Effort, decompress};
pub use cut::{CutLimits, Cutter, CutterSpec};
pub use grid::Seeker;
pub use pace::{Compression, Pace};
pub use zero::{HOLE_BYTES, is_zero, ranges_to_write};
