//! Whether encodings in fragments make their chunks: enough fragments are fetched, decoded and compared with the chunk's name.
//!
//! Benefactors compare each block with its own name, which says nothing of a fragment's encoding: somebody may have made it up. So
//! verification decodes as well ([`stdchk_model::Trust`]). No key is needed: of a sealed chunk it is told whether somebody made it who has the key
//! that is in its name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stdchk_model::exact::part_mut;
use stdchk_model::message::manager::Location;
use stdchk_model::{ChunkId, ChunkRef, EncodingId, Trust};
use stdchk_net::elsewhere;
use stdchk_protect::{BadFragments, Remaking};
use tokio::task::JoinSet;

use crate::benefactors::Benefactors;
use crate::pool::Inner;

/// Encodings that are decoded at one time: each takes three times the length of its chunk.
const AT_ONCE: usize = 8;

/// Fragments of one encoding of a chunk, as many at least as are enough.
struct Fragments {
    /// Which of the chunks that are verified.
    place: usize,
    chunk: ChunkId,
    encoding: EncodingId,
    at: Vec<Location>,
}

impl Inner {
    /// Decodes each encoding of which there are fragments enough among the `intact` blocks of each of `chunks`, and lets these blocks count as
    /// it turns out; the encodings that don't make their chunks, of each chunk.
    pub(crate) async fn decode(
        self: &Arc<Self>,
        chunks: &[ChunkRef],
        intact: &mut [Vec<Location>],
    ) -> Vec<Vec<EncodingId>> {
        let mut waiting = all_fragments(chunks, intact).into_iter();
        let (mut broken, mut under_way) = (vec![Vec::new(); chunks.len()], JoinSet::new());
        loop {
            while under_way.len() < AT_ONCE
                && let Some(fragments) = waiting.next()
            {
                let benefactors = Arc::clone(&self.benefactors);
                under_way.spawn(async move {
                    let is_right = fragments.decode(&benefactors).await;
                    (fragments, is_right)
                });
            }
            let Some(decoded) = under_way.join_next().await else { return broken };
            // What can't be fetched or told counts as before.
            let Ok((Fragments { place, chunk, encoding, .. }, Some(is_right))) = decoded else { continue };
            let trust = if is_right { Trust::Trusted } else { Trust::Broken };
            let own = part_mut(intact, place).iter_mut().filter(|location| location.encoding == encoding);
            own.for_each(|location| location.trust = trust);
            if !is_right {
                part_mut(&mut broken, place).push(encoding);
                self.fetcher.tell_broken(chunk, encoding);
            }
        }
    }
}

fn all_fragments(chunks: &[ChunkRef], intact: &[Vec<Location>]) -> Vec<Fragments> {
    let mut all = Vec::new();
    for (place, (chunk, intact)) in chunks.iter().zip(intact).enumerate() {
        let mut groups: BTreeMap<EncodingId, Vec<Location>> = BTreeMap::new();
        for location in intact.iter().filter(|location| !location.encoding.code.is_copy()) {
            groups.entry(location.encoding).or_default().push(*location);
        }
        for (encoding, mut at) in groups {
            // Data fragments need no computing.
            at.sort_by_key(|location| location.index);
            let different: BTreeSet<u8> = at.iter().map(|location| location.index).collect();
            if different.len() >= usize::from(encoding.code.data()) {
                all.push(Fragments { place, chunk: chunk.id, encoding, at });
            }
        }
    }
    all
}

impl Fragments {
    /// Whether they make the chunk; `None`: too few can be had, or that can't be told here.
    async fn decode(&self, benefactors: &Arc<Benefactors>) -> Option<bool> {
        let mut remaking = Remaking::new(self.chunk, self.encoding);
        let mut lacks = self.encoding.code.data();
        for location in &self.at {
            if lacks == 0 {
                break;
            }
            let fetched = benefactors.get(location.benefactor, location.block(self.chunk)).await;
            let Ok((encoding, stored)) = fetched else { continue };
            if let Ok(still) = remaking.add(location.index, encoding, stored.keep()) {
                lacks = still;
            }
        }
        if lacks > 0 {
            return None;
        }
        match elsewhere(move || remaking.remake(false)).await.ok()? {
            Ok(_) => Some(true),
            Err(BadFragments::Encoding) => Some(false),
            Err(_) => None,
        }
    }
}
