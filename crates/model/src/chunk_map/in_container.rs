//! A version that lies in a container: its file was packed with the others of its checkpoint set (docs/FORMAT-container.md).
//!
//! Such a version has no extents of its own. Its map says where the container's chunk map is and which of the container's
//! files it is, so whoever collects keeps all chunks of the container, and whoever reads opens the container.
//!
//! Layout of the encoded form: the four bytes `SCMP`, then CBOR `[2, size, file, root]`; a reader that knows only layout 1
//! refuses it by number.

use minicbor::{Decode, Encode};

use super::{BadChunkMap, MAGIC, MapRoot, damaged, layout_of};
use crate::cbor;
use crate::limits::{FILE_BYTES_MAX, IN_CONTAINER_BYTES_MAX};

pub(super) const LAYOUT: u16 = 2;

/// Where a version lies that was packed with others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InContainer {
    /// Size of the file, bytes.
    pub size: u64,
    /// Its position among the files of the container.
    pub file: u32,
    /// Where the container's own chunk map is.
    pub container: MapRoot,
}

#[derive(Encode, Decode)]
struct Stored {
    #[n(0)]
    layout: u16,
    #[n(1)]
    size: u64,
    #[n(2)]
    file: u32,
    #[n(3)]
    container: MapRoot,
}

impl InContainer {
    /// It as bytes, at most [`IN_CONTAINER_BYTES_MAX`].
    ///
    /// # Errors
    /// A container so large that its root doesn't fit.
    pub fn encode(&self) -> Result<Vec<u8>, BadChunkMap> {
        let container = self.container.clone();
        let stored = Stored { layout: LAYOUT, size: self.size, file: self.file, container };
        let bytes = [&MAGIC[..], &cbor::encode(&stored)].concat();
        match bytes.len() <= IN_CONTAINER_BYTES_MAX {
            true => Ok(bytes),
            false => Err(BadChunkMap::Inconsistent("the container is too large to be referred to")),
        }
    }

    /// What `bytes` hold; `None` if they have another layout. Never panics, whatever they are.
    ///
    /// # Errors
    /// They are no map at all, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, BadChunkMap> {
        let (layout, body) = layout_of(bytes)?;
        if layout != LAYOUT {
            return Ok(None);
        }
        if bytes.len() > IN_CONTAINER_BYTES_MAX {
            return Err(BadChunkMap::Inconsistent("it is longer than any"));
        }
        let Stored { size, file, container, .. } = cbor::decode(body).map_err(damaged)?;
        if size > FILE_BYTES_MAX {
            return Err(BadChunkMap::Inconsistent("the file would be too large"));
        }
        if container.is_in_container() {
            return Err(BadChunkMap::Inconsistent("the container lies in a container"));
        }
        Ok(Some(Self { size, file, container }))
    }
}

impl MapRoot {
    /// Whether the version lies in a container.
    pub fn is_in_container(&self) -> bool {
        match self {
            Self::Inline { map } => layout_of(map).is_ok_and(|(layout, _)| layout == LAYOUT),
            Self::Pieces { .. } => false,
        }
    }

    /// Where the version lies, if that is in a container; `None` if it has a chunk map of its own.
    ///
    /// # Errors
    /// The map inside the root is none.
    pub fn in_container(&self) -> Result<Option<InContainer>, BadChunkMap> {
        match self {
            Self::Inline { map } => InContainer::decode(map),
            Self::Pieces { .. } => Ok(None),
        }
    }

    /// The root of the map that names the chunks: the container's for a version that lies in one, else this.
    ///
    /// # Errors
    /// The map inside the root is none.
    pub fn of_chunks(self) -> Result<Self, BadChunkMap> {
        Ok(match self.in_container()? {
            Some(place) => place.container,
            None => self,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkId, ChunkMap, ChunkRef};

    fn pieces(count: u8) -> MapRoot {
        let piece = |byte| ChunkRef { id: ChunkId([byte; 32]), length: 1 << 20 };
        MapRoot::Pieces { pieces: (0..count).map(piece).collect(), length: u64::from(count) << 20 }
    }

    fn place(container: MapRoot) -> InContainer {
        InContainer { size: 5_000_000_000, file: 7, container }
    }

    fn inline(map: Vec<u8>) -> MapRoot {
        MapRoot::Inline { map }
    }

    #[test]
    fn a_place_in_a_container_survives_its_encoding() {
        for container in [pieces(3), inline(ChunkMap::default().encode())] {
            let root = inline(place(container.clone()).encode().unwrap());
            assert_eq!(root.in_container(), Ok(Some(place(container.clone()))));
            assert_eq!(root.of_chunks(), Ok(container));
        }
        assert_eq!(pieces(1).of_chunks(), Ok(pieces(1)));
    }

    #[test]
    fn a_stdchk_that_knows_only_chunk_maps_refuses_it_by_number() {
        let encoded = place(pieces(1)).encode().unwrap();
        assert_eq!(ChunkMap::decode(&encoded), Err(BadChunkMap::Layout(2)));
        assert_eq!(InContainer::decode(&ChunkMap::default().encode()), Ok(None));
    }

    #[test]
    fn containers_in_containers_and_endless_roots_are_refused() {
        let inner = inline(place(pieces(1)).encode().unwrap());
        let nested = place(inner).encode().unwrap();
        assert!(InContainer::decode(&nested).is_err());
        assert!(place(pieces(200)).encode().is_err());
    }

    #[test]
    fn damaged_bytes_are_refused_or_still_a_place() {
        let good = place(pieces(2)).encode().unwrap();
        for position in 0..good.len() {
            for flip in [1u8, 0x20, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[position] ^= flip;
                if let Ok(Some(read)) = InContainer::decode(&bad) {
                    assert!(read.size <= FILE_BYTES_MAX);
                }
            }
            assert!(InContainer::decode(&good[..position]).is_err());
        }
    }
}
