//! Every limit of this crate, with its unit and reason.
//!
//! Relies on nothing. The idea: one table of numbers, so that what bounds memory and hostile input is seen at a glance.
//! What a reader refuses, a writer never makes.

/// Smallest budget that is accepted, in bytes: below it blocks become too small to compress.
pub const BUDGET_MIN: u64 = 16 << 20;
/// Budget when none is given, in bytes.
pub const BUDGET_DEFAULT: u64 = 256 << 20;
/// Buffers of a block's size that one block may need at once while it is coded or decoded: raw bytes, the bytes of its
/// base, two steps of its chain, what a compressor keeps, and the coded bytes that wait to be written.
pub const BUFFERS_PER_BLOCK: u64 = 7;
/// Blocks for which there is memory at least: one is coded while the next is read.
pub const BLOCKS_MIN: u64 = 2;
/// Least budget of each of several containers that are packed at one time, in bytes: enough for blocks of 4 MiB.
pub const BUDGET_SHARE: u64 = 64 << 20;
/// Smallest block, in bytes: below it headers and lost context cost more than 1 %.
pub const BLOCK_MIN: u64 = 128 << 10;
/// Largest block, in bytes: eight times what any mode makes.
pub const BLOCK_MAX: u64 = 64 << 20;
/// Steps of a chain: twice what any mode takes.
pub const STEPS_MAX: usize = 8;
/// Longest record of a section, in bytes.
pub const RECORD_MAX: u64 = 64 << 20;
/// Bytes of records in one index section, about: far below [`RECORD_MAX`], since one block's record may be long.
pub const INDEX_BYTES: usize = 16 << 20;
/// Ranges of files in one block, after which the next one begins: some mebibytes of its record.
pub const RANGES_PER_BLOCK: usize = 1 << 20;
/// Ranges of files in all blocks together: where each byte is stands in memory while a container is read, at about
/// 100 bytes a range.
pub const RANGES_MAX: usize = 16 << 20;
/// Shortest hole of a file that is passed over, in bytes: shorter ones are zeros among others, which take less in a block.
pub const HOLE_MIN: u64 = 64 << 10;
/// Holes of all files of a set: where they are stands in the container's first section. Of more, the last are data.
pub const HOLES_MAX: usize = 1 << 20;
/// Smallest variable that is grouped, in bytes (mcrEngine, section VII: 100); smaller ones stay in the residue.
pub const VARIABLE_MIN: u64 = 100;
/// Files of a set: every file has a name in the container's first section, which is held in memory.
pub const FILES_MAX: usize = 1 << 19;
/// Files that are open at once; with more, each is opened for every read or write, since systems allow about a thousand.
pub const OPEN_MAX: usize = 256;
/// Elements of an extracted variable, in bytes, for every byte of it that is stored: chunks that were never written read
/// as zeros, and a hostile shape may claim any number of them.
pub const EXTRACT_RATIO_MAX: u64 = 1 << 10;
/// Plain bytes of one compressed stream of a file that is undone, most: it is held as a whole, and who wants a byte of it makes all of it.
pub const STREAM_MAX: u64 = 64 << 20;
/// Shortest compressed stream that is undone, in bytes: less is kept of each. A chunk of a constant takes hardly more, and without it the
/// chunks around it are put together with nothing.
pub const STREAM_MIN: u64 = 24;
/// Plain bytes of chunks that are put together at once, about: who wants one of them puts all together.
pub const BOX_BYTES: u64 = 8 << 20;
/// Dimensions of an array that is put together from chunks, as many as a shape has.
pub const RANK_MAX: usize = 65;
/// Compressed streams of one file that are undone: about 200 bytes are kept of each.
pub const STREAMS_MAX: usize = 1 << 22;
/// Recipes of one file that make its compressed streams again, in bytes; a file with longer ones is packed as it is.
pub const RECIPES_MAX: u64 = 64 << 20;
/// Buffers of a stream's plain length that a thread holds while it undoes the stream or makes it again: stored, plain, made, and the
/// compressor's own.
pub const BUFFERS_PER_STREAM: u64 = 4;
