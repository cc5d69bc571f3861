//! Reads chunk maps from benefactors for a marking, each piece verified against its name (I3).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::limits::{BLOCK_BYTES_MAX, CHUNK_BYTES_MAX, MAP_BYTES_MAX};
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest, Form};
use stdchk_model::message::manager::BenefactorInfo;
use stdchk_model::{BlockId, ChunkId, ChunkMap, ChunkRef};
use stdchk_net::{Buffer, BufferPool, Bytes, Connection, Identity};
use stdchk_reduce::{Codec, decompress};

use crate::core::MapToRead;

/// Time that a benefactor has for one piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// Memory for pieces on their way, bytes: two are more than the one that is asked for at a time.
const BUFFER_BYTES: usize = 2 * BLOCK_BYTES_MAX;

/// Connections to benefactors, for as long as one marking takes.
pub struct MapReader {
    identity: Identity,
    buffers: Arc<BufferPool>,
    connections: HashMap<String, Connection>,
}

impl MapReader {
    /// A reader that introduces itself as `identity`.
    pub fn new(identity: Identity) -> Self {
        Self { identity, buffers: BufferPool::new(BUFFER_BYTES), connections: HashMap::new() }
    }

    /// The chunks that a map names; the error says why it can't be read.
    pub async fn chunks_of(&mut self, map: &MapToRead) -> Result<Vec<ChunkId>, String> {
        let mut encoded = Vec::new();
        for (piece, at) in &map.pieces {
            encoded.extend(self.piece(piece, at).await?);
            if encoded.len() as u64 > map.length.min(MAP_BYTES_MAX) {
                return Err("its pieces are longer than the map".to_owned());
            }
        }
        elsewhere(move || {
            let map = ChunkMap::decode(&encoded).map_err(|error| error.to_string())?;
            Ok(map.chunks().iter().map(|chunk| chunk.id).collect())
        })
        .await
    }

    async fn piece(&mut self, piece: &ChunkRef, at: &[BenefactorInfo]) -> Result<Vec<u8>, String> {
        let mut last = format!("piece {} is at no benefactor that is there", piece.id);
        for benefactor in at {
            match self.piece_at(piece, &benefactor.address).await {
                Ok(plain) => return Ok(plain),
                Err(cause) => last = format!("piece {} at benefactor {}: {cause}", piece.id, benefactor.id),
            }
        }
        Err(last)
    }

    async fn piece_at(&mut self, piece: &ChunkRef, address: &str) -> Result<Vec<u8>, String> {
        let request = BenefactorRequest::Get { block: BlockId::whole(piece.id) };
        let connection = self.connection(address).await?;
        let answer = connection.call(&request, Bytes::new(), PIECE_TIMEOUT).await;
        let (reply, stored): (BenefactorReply, Buffer) = answer.map_err(|error| error.to_string())?;
        match reply {
            BenefactorReply::Block { form } => match elsewhere({
                let piece = *piece;
                move || plain(&piece, &form, &stored)
            })
            .await
            {
                Ok(plain) => Ok(plain),
                Err(cause) => {
                    let request = BenefactorRequest::Verify { blocks: vec![BlockId::whole(piece.id)] };
                    // It looks at it and reports it by itself; without that, scrubbing finds it later.
                    let _: Result<(BenefactorReply, Buffer), _> =
                        connection.call(&request, Bytes::new(), PIECE_TIMEOUT).await;
                    Err(cause)
                }
            },
            _ => Err("it answered with something else than a block".to_owned()),
        }
    }

    async fn connection(&mut self, address: &str) -> Result<&Connection, String> {
        if self.connections.get(address).is_none_or(Connection::is_closed) {
            let opened = Connection::open(address, &self.identity, &self.buffers).await;
            self.connections.insert(address.to_owned(), opened.map_err(|error| error.to_string())?);
        }
        self.connections.get(address).ok_or_else(|| "no connection".to_owned())
    }
}

/// Does work that takes milliseconds beside the manager's one thread.
async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}

/// Undoes the form of stored bytes and verifies the result.
fn plain(piece: &ChunkRef, form: &Form, stored: &[u8]) -> Result<Vec<u8>, String> {
    if form.cipher.is_some() || form.erasure.is_some() {
        return Err("its form needs a later stdchk".to_owned());
    }
    let length = usize::try_from(piece.length).unwrap_or(usize::MAX).min(CHUNK_BYTES_MAX);
    let plain = match Codec::from_number(form.codec).map_err(|error| error.to_string())? {
        Codec::Store => stored.to_vec(),
        codec => decompress(codec, stored, length).map_err(|error| error.to_string())?.into_owned(),
    };
    match ChunkId::of(&plain) == piece.id {
        true => Ok(plain),
        false => Err("the bytes don't match their name".to_owned()),
    }
}
