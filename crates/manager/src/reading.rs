//! Reads chunk maps from benefactors for a marking, each piece verified against its name (I3).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::limits::{BLOCK_BYTES_MAX, MAP_BYTES_MAX};
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::manager::BenefactorInfo;
use stdchk_model::{BlockId, ChunkId, ChunkMap, ChunkRef, Encoding};
use stdchk_net::{Buffer, BufferPool, Bytes, Connection, Identity};
use stdchk_protect::{Assembly, BadFragments, Gathered};

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

    /// The plain bytes of a piece, from as many of its blocks as suffice.
    async fn piece(&mut self, piece: &ChunkRef, at: &[(BlockId, BenefactorInfo)]) -> Result<Bytes, String> {
        let mut last = format!("piece {} is at no benefactor that is there", piece.id);
        let mut served = Vec::new();
        for (block, benefactor) in at {
            let why = |cause: String| format!("piece {} at benefactor {}: {cause}", piece.id, benefactor.id);
            match self.block_at(*block, &benefactor.address).await {
                Ok((encoding, stored)) => served.push((*block, encoding, stored)),
                Err(cause) => {
                    last = why(cause);
                    continue;
                }
            }
            let (piece, blocks) = (*piece, served.clone());
            match elsewhere(move || Ok(assemble(piece, blocks))).await? {
                Ok(Some(plain)) => return Ok(plain),
                Ok(None) => last = format!("too few fragments of piece {} can be had", piece.id),
                Err(bad) => {
                    served.pop();
                    last = why(bad.to_string());
                    self.let_verify(*block, &benefactor.address).await;
                }
            }
        }
        Err(last)
    }

    async fn block_at(&mut self, block: BlockId, address: &str) -> Result<(Encoding, Bytes), String> {
        let connection = self.connection(address).await?;
        let answer = connection.call(&BenefactorRequest::Get { block }, Bytes::new(), PIECE_TIMEOUT).await;
        let (reply, stored): (BenefactorReply, Buffer) = answer.map_err(|error| error.to_string())?;
        match reply {
            BenefactorReply::Block { encoding } => Ok((encoding, stored.keep())),
            _ => Err("it answered with something else than a block".to_owned()),
        }
    }

    /// The benefactor looks at a block that it served damaged, and reports it by itself.
    async fn let_verify(&mut self, block: BlockId, address: &str) {
        let Ok(connection) = self.connection(address).await else { return };
        let request = BenefactorRequest::Verify { blocks: vec![block] };
        // Without that, its own search for damage finds it later.
        let _: Result<(BenefactorReply, Buffer), _> =
            connection.call(&request, Bytes::new(), PIECE_TIMEOUT).await;
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

/// The plain bytes of `piece`, if these blocks suffice; the last of them is the one that was not looked at before.
fn assemble(piece: ChunkRef, blocks: Vec<(BlockId, Encoding, Bytes)>) -> Result<Option<Bytes>, BadFragments> {
    let mut assembly = Assembly::new(piece);
    for (block, encoding, stored) in blocks {
        if let Gathered::Whole(plain) = assembly.add(block, encoding, stored)? {
            return Ok(Some(plain));
        }
    }
    Ok(None)
}
