//! Blocks that benefactors make anew in a life: copies of what lies there, and fragments from as many others as suffice.
//!
//! A model of `Copies` and `Remaker` of a benefactor, which are bound to sockets. What puts fragments together is the real
//! `protect::Remaking`.

use stdchk_model::message::benefactor::{Check, Decoded, FailedCopy, Make, SourceBlock};
use stdchk_model::{BenefactorId, BlockId, ChunkId, Encoding};
use stdchk_net::Bytes;
use stdchk_protect::{BadFragments, Remaking};

use super::content::{name, shown};
use super::node::Work;
use super::plant::Plant;
use super::world::World;

impl World {
    /// The benefactor is ordered to make blocks.
    pub fn order(&mut self, node: usize, make: Make) {
        let copy = make.from.first().filter(|source| source.encoding.code.is_copy());
        let works = &mut self.nodes[node].works;
        match copy.map(|source| block_of(make.chunk, source)) {
            Some(block) => works.extend(make.blocks.iter().map(|new| Work::Copy(block, new.to))),
            None => works.push_back(Work::Make(make)),
        }
    }

    /// The benefactor does the next thing that it was ordered to make.
    pub fn work(&mut self, node: usize) {
        if !self.nodes[node].is_up() {
            return;
        }
        match self.nodes[node].works.pop_front() {
            None => {}
            Some(Work::Make(make)) => self.remake(node, &make),
            Some(Work::Copy(block, to)) => match self.nodes[node].read(block, &self.runtime) {
                Some((encoding, stored)) => self.put_made(node, block, encoding, &stored, to),
                None => self.making_failed(node, block.chunk, None),
            },
            Some(Work::Put(block, encoding, stored, to)) => {
                self.put_made(node, block, encoding, &stored, to);
            }
        }
    }

    /// A block could not be put at a benefactor; `None`: nothing could be made.
    fn making_failed(&mut self, node: usize, chunk: ChunkId, to: Option<BenefactorId>) {
        let number = name(&BlockId::plain(chunk));
        self.note(format!("{:?} can't make a block of {number} for {to:?}", self.nodes[node].id));
        self.nodes[node].copies_failed.push(FailedCopy { chunk, to });
    }

    /// Makes blocks of others, to be put one after the other.
    fn remake(&mut self, node: usize, make: &Make) {
        let as_copies = make.blocks.iter().all(|new| new.index.is_none());
        let made = self.gather(node, make).map(|remaking| remaking.remake(as_copies));
        let is_right = match &made {
            // A copy shows nothing of those fragments that it was not made of.
            Some(Ok(_)) if !as_copies => Some(true),
            Some(Err(BadFragments::Encoding)) => Some(false),
            _ => None,
        };
        let encoding = make.from.first().map(|source| source.encoding);
        if let (Some(encoding), Some(is_right)) = (encoding, is_right) {
            self.nodes[node].decoded.push(Decoded { chunk: make.chunk, encoding, is_right });
        }
        let Some(Ok(made)) = made else { return self.making_failed(node, make.chunk, None) };
        for new in &make.blocks {
            let shift = u8::from(self.plant == Plant::AnotherFragmentIsMade);
            let index = (new.index.unwrap_or(0) + shift) % made.encoding.code.blocks();
            let block = made.encoding.block(make.chunk, index);
            self.note(format!("{:?} makes {} for {}", self.nodes[node].id, shown(&block), new.to));
            let stored = made.stored(index).unwrap().clone();
            self.nodes[node].works.push_back(Work::Put(block, made.encoding.clone(), stored, new.to));
        }
    }

    /// Finds out whether an encoding makes its chunk.
    pub fn check(&mut self, node: usize, check: &Check) {
        let Check { chunk, from } = check;
        let Some(encoding) = from.first().map(|source| source.encoding) else { return };
        let nothing = (Remaking::new(*chunk, encoding), encoding.code.data());
        let Some(remaking) = self.gather_from(nothing, *chunk, from) else {
            return self.making_failed(node, *chunk, None);
        };
        let is_right = remaking.remake(false).is_ok();
        self.note(format!("{:?} finds an encoding right: {is_right}", self.nodes[node].id));
        self.nodes[node].decoded.push(Decoded { chunk: *chunk, encoding, is_right });
    }

    /// Gathers as many blocks as suffice, its own first.
    fn gather(&mut self, node: usize, make: &Make) -> Option<Remaking> {
        let (own, others) = make.from.split_first()?;
        let mut remaking = Remaking::new(make.chunk, own.encoding);
        let (encoding, stored) = self.nodes[node].read(block_of(make.chunk, own), &self.runtime)?;
        let lacks = remaking.add(own.index, encoding, stored).ok()?;
        self.gather_from((remaking, lacks), make.chunk, others)
    }

    /// Gathers as many more as are needed.
    fn gather_from(
        &mut self,
        (mut remaking, mut lacks): (Remaking, u8),
        chunk: ChunkId,
        others: &[SourceBlock],
    ) -> Option<Remaking> {
        for source in others {
            if lacks == 0 {
                break;
            }
            let block = block_of(chunk, source);
            let is_it = |node: &&mut super::node::Node| node.address == source.address && node.is_up();
            let Some(other) = self.nodes.iter_mut().find(is_it) else { continue };
            let Some((encoding, stored)) = other.serve(block, &self.runtime) else { continue };
            match remaking.add(source.index, encoding, stored) {
                Ok(still) => lacks = still,
                Err(_) => {
                    let at = other.id.unwrap();
                    self.found_bad(block, at);
                }
            }
        }
        (lacks == 0).then_some(remaking)
    }

    /// Puts a block at another benefactor, and makes it durable there.
    fn put_made(
        &mut self,
        node: usize,
        block: BlockId,
        encoding: Encoding,
        stored: &Bytes,
        to: BenefactorId,
    ) {
        let target = self.nodes.iter().position(|node| node.id == Some(to) && node.is_up());
        if let (Plant::CopyIsBelieved, Some(target)) = (self.plant, target) {
            return self.believe(&[(block, target)]);
        }
        let put = target.map(|target| {
            self.nodes[target].put(block, encoding, stored, (false, true), &self.runtime).map(|_| target)
        });
        let target = match put {
            Some(Ok(target)) => target,
            Some(Err(failure)) => {
                self.note(format!("{to} refuses {}: {}", shown(&block), failure.message));
                return self.making_failed(node, block.chunk, Some(to));
            }
            None => return self.making_failed(node, block.chunk, Some(to)),
        };
        self.note(format!("{:?} puts {} at {to}", self.nodes[node].id, shown(&block)));
        let receipt = self.nodes[target].receipt(vec![block], &self.runtime);
        if receipt.blocks.is_empty() {
            self.making_failed(node, block.chunk, Some(to));
        }
        if self.plant == Plant::CopyMoves {
            let sequence = self.nodes[node].put_sequence();
            let own = self.nodes[node].blocks().into_iter().filter(|own| own.chunk == block.chunk);
            let own: Vec<BlockId> = own.collect();
            self.nodes[node].remove(&own, sequence);
        }
    }
}

fn block_of(chunk: ChunkId, source: &SourceBlock) -> BlockId {
    BlockId { chunk, encoding: source.encoding, index: source.index }
}
