//! What a client does with the bytes of an image before it sends them and after it fetched them, phase by phase and without a network:
//! compressing, coding, decoding, decompressing, by as many threads as are asked for.
//!
//! This is the very code that the client runs, on chunks of its default size. Threads take parts of the image that follow each other, as
//! the paper's FALCON-P does; the client's own threads take chunk after chunk.

use std::time::Instant;

use bytes::Bytes;
use serde::Serialize;
use stdchk_model::limits::CHUNK_BYTES_DEFAULT;
use stdchk_model::{ChunkId, ChunkRef, Maker, Redundancy};
use stdchk_protect::{Assembly, Blocks, Gathered};
use stdchk_reduce::{Codec, Compressor, Effort, decompress};

use crate::Error;

/// How the image is stored, and what is missing when it comes back.
#[derive(Clone, Copy)]
pub struct Way {
    pub effort: Effort,
    pub redundancy: Redundancy,
    /// Data fragments of each chunk that are lost, so that parity has to stand in.
    pub lost: u8,
}

/// Seconds of each phase, until the last thread is done.
#[derive(Serialize)]
pub struct Phases {
    pub threads: usize,
    pub bytes: u64,
    pub encoded_bytes: u64,
    pub compress_seconds: f64,
    /// With the hashes by which benefactors know fragments; and these alone.
    pub code_seconds: f64,
    pub hash_seconds: f64,
    /// With the hashes that tell whether fragments and the chunk are what they should be.
    pub decode_seconds: f64,
    pub decompress_seconds: f64,
    /// What each thread compressed, and what it coded, bytes.
    pub plain_of_threads: Vec<u64>,
    pub encoded_of_threads: Vec<u64>,
}

/// A part of the image on its way through the phases.
#[derive(Default)]
struct Part {
    plain: Vec<(ChunkRef, Bytes)>,
    encoded: Vec<(Codec, Bytes)>,
    blocks: Vec<Blocks>,
}

/// Takes an image through all phases.
pub fn phases(image: &Bytes, threads: usize, way: Way) -> Result<Phases, Error> {
    let chunks = image.len().div_ceil(CHUNK_BYTES_DEFAULT);
    let mut parts: Vec<Part> = Vec::new();
    for thread in 0..threads {
        let of = |thread: usize| (chunks * thread / threads * CHUNK_BYTES_DEFAULT).min(image.len());
        let part = image.slice(of(thread)..of(thread + 1));
        let plain = part.chunks(CHUNK_BYTES_DEFAULT).map(|chunk| {
            let chunk = part.slice_ref(chunk);
            Ok((ChunkRef { id: ChunkId::of(&chunk), length: u32::try_from(chunk.len())? }, chunk))
        });
        parts.push(Part { plain: plain.collect::<Result<_, Error>>()?, ..Part::default() });
    }
    let compress_seconds = each(&mut parts, |part| {
        let mut compressor = Compressor::new(way.effort)?;
        for (_, plain) in &part.plain {
            let (codec, encoded) = compressor.compress(plain);
            part.encoded.push(match codec {
                Codec::Store => (codec, plain.clone()),
                _ => (codec, Bytes::from(encoded.into_owned())),
            });
        }
        Ok(())
    })?;
    let code_seconds = each(&mut parts, |part| {
        for ((chunk, _), (codec, encoded)) in part.plain.iter().zip(&part.encoded) {
            let code = way.redundancy.code_of(encoded.len());
            part.blocks.push(Blocks::of(*chunk, codec.number(), encoded.clone(), code, Maker::LOCAL));
        }
        Ok(())
    })?;
    let hash_seconds = each(&mut parts, |part| {
        for (_, stored) in part.blocks.iter().flat_map(Blocks::iter) {
            std::hint::black_box(ChunkId::of(stored));
        }
        Ok(())
    })?;
    let decompress_seconds = each(&mut parts, |part| {
        for ((chunk, _), (codec, encoded)) in part.plain.iter().zip(&part.encoded) {
            std::hint::black_box(decompress(*codec, encoded, chunk.length as usize)?);
        }
        Ok(())
    })?;
    let together = each(&mut parts, |part| restore(part, way.lost))?;
    let encoded = |part: &Part| part.encoded.iter().map(|(_, encoded)| encoded.len() as u64).sum::<u64>();
    let plain = |part: &Part| part.plain.iter().map(|(_, plain)| plain.len() as u64).sum::<u64>();
    Ok(Phases {
        threads,
        bytes: image.len() as u64,
        encoded_bytes: parts.iter().map(encoded).sum(),
        compress_seconds,
        code_seconds,
        hash_seconds,
        decode_seconds: (together - decompress_seconds).max(0.0),
        decompress_seconds,
        plain_of_threads: parts.iter().map(plain).collect(),
        encoded_of_threads: parts.iter().map(encoded).collect(),
    })
}

/// From fragments to the chunk, as a reader does it.
fn restore(part: &mut Part, lost: u8) -> Result<(), Error> {
    for ((chunk, _), blocks) in part.plain.iter().zip(&part.blocks) {
        let mut assembly = Assembly::new(*chunk);
        // A copy is all there is.
        let first = if blocks.encoding.code.is_copy() { 0 } else { lost };
        let mut whole = false;
        for (block, stored) in blocks.iter().skip(usize::from(first)) {
            let added = assembly.add(block, blocks.encoding.clone(), stored.clone());
            if let Gathered::Whole(bytes) = added.map_err(|bad| Error(bad.to_string()))? {
                std::hint::black_box(bytes);
                whole = true;
                break;
            }
        }
        if !whole {
            return Err(Error(format!("chunk {} did not come back", chunk.id)));
        }
    }
    Ok(())
}

/// Does something with each part on a thread of its own; the seconds until all are done.
fn each(parts: &mut [Part], work: impl Fn(&mut Part) -> Result<(), Error> + Sync) -> Result<f64, Error> {
    let (began, work) = (Instant::now(), &work);
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts.iter_mut().map(|part| scope.spawn(move || work(part))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| Error("a thread ended early".to_owned()))?)
    })?;
    Ok(began.elapsed().as_secs_f64())
}
