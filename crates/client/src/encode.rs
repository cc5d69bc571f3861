//! From plain chunks to the form in which they are sent: compressed where that pays, on cores that are free.
//!
//! Compressing is bounded twice: no more chunks at once than there are cores, and no more compressed bytes in memory
//! than [`ENCODED_MAX`] chunks, beside the plain ones that the window counts. Whatever goes wrong, the plain bytes are
//! always good enough.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_model::message::benefactor::Form;
use stdchk_model::{ChunkId, ChunkRef};
use stdchk_reduce::{Codec, Compression, Compressor, Effort, Pace};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Compressed chunks that may wait for their benefactors at the same time.
const ENCODED_MAX: usize = 16;

/// A chunk ready to be sent.
pub(crate) struct Encoded {
    pub(crate) form: Form,
    pub(crate) bytes: Bytes,
    /// Held while the compressed copy is in memory.
    _room: Option<OwnedSemaphorePermit>,
}

impl Encoded {
    fn plain(chunk: ChunkRef, plain: Bytes) -> Self {
        Self { form: Form::plain(chunk.id, chunk.length), bytes: plain, _room: None }
    }
}

/// The compressors of a pool's client, and what it knows of the sink.
pub(crate) struct Encoder {
    pace: Mutex<Pace>,
    in_flight: AtomicUsize,
    cores: Arc<Semaphore>,
    room: Arc<Semaphore>,
    idle: Mutex<Vec<(Effort, Compressor)>>,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            pace: Mutex::new(Pace::new(cores)),
            in_flight: AtomicUsize::new(0),
            cores: Arc::new(Semaphore::new(cores)),
            room: Arc::new(Semaphore::new(ENCODED_MAX)),
            idle: Mutex::default(),
        }
    }

    /// The form in which `plain` is stored under this compression.
    pub(crate) async fn encode(self: &Arc<Self>, how: Compression, chunk: ChunkRef, plain: Bytes) -> Encoded {
        let effort = match how {
            Compression::Always(effort) => effort,
            Compression::Auto => self.pace.lock().choose(),
        };
        if effort == Effort::Store {
            return Encoded::plain(chunk, plain);
        }
        let Ok(room) = Arc::clone(&self.room).acquire_owned().await else {
            return Encoded::plain(chunk, plain);
        };
        let Ok(core) = Arc::clone(&self.cores).acquire_owned().await else {
            return Encoded::plain(chunk, plain);
        };
        let (encoder, bytes) = (Arc::clone(self), plain.clone());
        let shrunk = tokio::task::spawn_blocking(move || {
            let shrunk = encoder.compress(effort, &bytes);
            drop(core);
            shrunk
        });
        match shrunk.await {
            Ok(Some((form, bytes))) => {
                let form = Form { plain_length: chunk.length, ..form };
                Encoded { form, bytes, _room: Some(room) }
            }
            _ => Encoded::plain(chunk, plain),
        }
    }

    /// The compressed bytes and how they were made; `None` where compressing gains little.
    fn compress(&self, effort: Effort, plain: &[u8]) -> Option<(Form, Bytes)> {
        let mut compressor = self.take(effort)?;
        let started = Instant::now();
        let shrunk = match compressor.compress(plain) {
            (Codec::Store, _) | (_, Cow::Borrowed(_)) => None,
            (codec, Cow::Owned(bytes)) => {
                self.pace.lock().compressed(effort, plain.len(), started.elapsed());
                let stored_id = ChunkId::of(&bytes);
                let form = Form { codec: codec.number(), ..Form::plain(stored_id, 0) };
                Some((form, Bytes::from(bytes)))
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
        self.encoder.pace.lock().stored(self.in_flight, self.begun.elapsed());
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.encoder.in_flight.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
