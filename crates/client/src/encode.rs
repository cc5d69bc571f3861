//! From plain chunks to the blocks in which they are sent: compressed where that pays, coded where the folder asks for it, on
//! cores that are free.
//!
//! Compressing is bounded twice: no more chunks at once than there are cores, and no more compressed bytes in memory
//! than [`ENCODED_MAX`] chunks, beside the plain ones that the window counts. Whatever goes wrong, the plain bytes are
//! always good enough.
//!
//! What `auto` chooses depends on the speed of the sink, which only bytes that were sent can tell. So the first few chunks
//! of a process go out as they are, and the others wait for an answer: on a fast network for milliseconds, and on a
//! slow one a whole window would be on its way before the first answer came.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_model::{ChunkRef, Encoding, Failure, Maker, Redundancy};
use stdchk_net::waits::permits;
use stdchk_protect::Blocks;
use stdchk_protect::seal::Key;
use stdchk_reduce::{Codec, Compression, Compressor, Effort, Pace};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Compressed chunks that may wait for their benefactors at the same time.
const ENCODED_MAX: usize = 16;
/// Chunks of at most so many bytes are compressed where they are.
const INLINE_BYTES_MAX: usize = 8 << 10;
/// Chunks that are sent to find out how fast the sink is: while one is waited for, another is on its way.
const PROBES_MAX: usize = 2;

/// A chunk ready to be sent.
pub(crate) struct Encoded {
    pub(crate) blocks: Blocks,
    /// The room of compressed bytes and parity in memory, and the place of a chunk that finds out how fast the sink is.
    _held: [Option<OwnedSemaphorePermit>; 2],
}

impl Encoded {
    fn plain(chunk: ChunkRef, plain: Bytes) -> Self {
        Self { blocks: Blocks::plain(chunk, plain), _held: [None, None] }
    }
}

/// The compressors of a pool's client, and what it knows of the sink.
pub(crate) struct Encoder {
    /// As whom this client codes fragments.
    maker: Maker,
    pace: Mutex<Pace>,
    in_flight: AtomicUsize,
    cores: Arc<Semaphore>,
    room: Arc<Semaphore>,
    /// Closed once the speed of the sink is known.
    probes: Arc<Semaphore>,
    idle: Mutex<Vec<(Effort, Compressor)>>,
}

impl Encoder {
    pub(crate) fn new(maker: Maker) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            maker,
            pace: Mutex::new(Pace::new(cores)),
            in_flight: AtomicUsize::new(0),
            cores: Arc::new(Semaphore::new(cores)),
            room: Arc::new(Semaphore::new(ENCODED_MAX)),
            probes: Arc::new(Semaphore::new(PROBES_MAX)),
            idle: Mutex::default(),
        }
    }

    /// The blocks in which `plain` is stored under this compression and redundancy; sealed with the key that made the chunk's name, if
    /// one did.
    pub(crate) async fn encode(
        self: &Arc<Self>,
        how: Compression,
        chunk: ChunkRef,
        plain: Bytes,
        redundancy: Redundancy,
        key: Option<Arc<Key>>,
    ) -> Result<Encoded, Failure> {
        let probe = match how {
            Compression::Auto => Arc::clone(&self.probes).acquire_owned().await.ok(),
            Compression::Always(_) => None,
        };
        let is_sent_as_it_is = probe.is_some() || self.effort(how) == Effort::Store;
        if is_sent_as_it_is && key.is_none() && redundancy.code_of(plain.len()).is_copy() {
            return Ok(Encoded { _held: [None, probe], ..Encoded::plain(chunk, plain) });
        }
        let (room, core) = (permits(&self.room, 1).await, permits(&self.cores, 1).await);
        // More may be known of the sink since the chunk began to wait.
        let effort = if probe.is_some() { Effort::Store } else { self.effort(how) };
        let (encoder, is_small) = (Arc::clone(self), plain.len() <= INLINE_BYTES_MAX);
        let work = move || {
            let shrunk = if effort == Effort::Store { None } else { encoder.compress(effort, &plain) };
            let (codec, encoded) = shrunk.unwrap_or((Codec::Store, plain));
            let code = redundancy.code_of(encoded.len());
            let blocks = match key {
                None => Blocks::of(chunk, codec.number(), encoded, code, encoder.maker),
                Some(key) => Blocks::sealed(chunk, codec.number(), &encoded, (code, encoder.maker), &key),
            };
            drop(core);
            blocks
        };
        // A thread of its own takes longer to wake than few bytes take.
        let blocks = match is_small {
            true => work(),
            false => stdchk_net::elsewhere(work).await.map_err(|error| crate::internal(&error))?,
        };
        let room = (blocks.encoding != Encoding::plain(chunk)).then_some(room);
        Ok(Encoded { blocks, _held: [room, probe] })
    }

    fn effort(&self, how: Compression) -> Effort {
        match how {
            Compression::Always(effort) => effort,
            Compression::Auto => self.pace.lock().choose(),
        }
    }

    /// The compressed bytes and their codec; `None` where compressing gains little.
    fn compress(&self, effort: Effort, plain: &[u8]) -> Option<(Codec, Bytes)> {
        let mut compressor = self.take(effort)?;
        let started = Instant::now();
        let shrunk = match compressor.compress(plain) {
            (Codec::Store, _) | (_, Cow::Borrowed(_)) => None,
            (codec, Cow::Owned(bytes)) => {
                self.pace.lock().compressed(effort, plain.len(), started.elapsed());
                Some((codec, Bytes::from(bytes)))
            }
        };
        self.give_back(effort, compressor);
        shrunk
    }

    fn take(&self, effort: Effort) -> Option<Compressor> {
        let mut idle = self.idle.lock();
        if let Some(place) = idle.iter().position(|(of, _)| *of == effort) {
            return Some(idle.swap_remove(place).1);
        }
        // Tables of efforts that are not wanted any more go.
        idle.pop();
        drop(idle);
        let made = Compressor::new(effort);
        made.inspect_err(|error| tracing::warn!(%effort, %error, "chunks are stored as they are")).ok()
    }

    fn give_back(&self, effort: Effort, compressor: Compressor) {
        let mut idle = self.idle.lock();
        if idle.len() < self.cores.available_permits().max(1) {
            idle.push((effort, compressor));
        }
    }

    /// A put of so many bytes begins; tell the watch when it was answered.
    pub(crate) fn sending(&self, bytes: usize) -> Sending<'_> {
        let in_flight = self.in_flight.fetch_add(bytes, Ordering::Relaxed) + bytes;
        Sending { encoder: self, bytes, in_flight, begun: Instant::now() }
    }
}

/// A put under way.
pub(crate) struct Sending<'encoder> {
    encoder: &'encoder Encoder,
    bytes: usize,
    in_flight: usize,
    begun: Instant,
}

impl Sending<'_> {
    /// The benefactor has the bytes.
    pub(crate) fn stored(&self) {
        // Others that began after it had their part of the sink, too.
        let in_flight = self.in_flight.max(self.encoder.in_flight.load(Ordering::Relaxed));
        self.encoder.pace.lock().stored(in_flight, self.begun.elapsed());
        self.encoder.probes.close();
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.encoder.in_flight.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const BYTES: usize = 1 << 20;

    fn is_ready<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    async fn encode(encoder: &Arc<Encoder>) -> Encoded {
        let plain = Bytes::from(vec![7; BYTES]);
        let chunk = ChunkRef { id: stdchk_model::ChunkId::of(&plain), length: u32::try_from(BYTES).unwrap() };
        encoder.encode(Compression::Auto, chunk, plain, Redundancy::Replicate(1), None).await.unwrap()
    }

    fn length(encoded: &Encoded) -> usize {
        encoded.blocks.stored_length()
    }

    #[tokio::test]
    async fn a_few_chunks_go_ahead_and_the_others_wait_until_the_sink_is_known() {
        let encoder = Arc::new(Encoder::new(Maker::LOCAL));
        let mut probes = Vec::new();
        for _ in 0..PROBES_MAX {
            probes.push(encode(&encoder).await);
        }
        assert!(probes.iter().all(|probe| length(probe) == BYTES));
        let mut next = pin!(encode(&encoder));
        assert!(is_ready(next.as_mut()).is_none());
        encoder.pace.lock().stored(BYTES, std::time::Duration::from_secs(1 << 20));
        encoder.probes.close();
        assert!(length(&next.await) < BYTES, "on a slow sink it is compressed");
    }

    #[tokio::test]
    async fn the_first_answer_lets_all_go_on() {
        let encoder = Arc::new(Encoder::new(Maker::LOCAL));
        encoder.sending(BYTES).stored();
        let mut encoded = Vec::new();
        for _ in 0..=PROBES_MAX {
            encoded.push(encode(&encoder).await);
        }
        assert!(encoded.iter().all(|encoded| encoded.blocks.encoding.plain_length as usize == BYTES));
    }

    #[tokio::test]
    async fn a_chunk_that_went_ahead_in_vain_lets_another_one_go() {
        let encoder = Arc::new(Encoder::new(Maker::LOCAL));
        let mut probes = Vec::new();
        for _ in 0..PROBES_MAX {
            probes.push(encode(&encoder).await);
        }
        let mut next = pin!(encode(&encoder));
        assert!(is_ready(next.as_mut()).is_none());
        probes.pop();
        assert_eq!(is_ready(next.as_mut()).map(|next| length(&next)), Some(BYTES));
    }
}
