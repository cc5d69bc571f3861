//! Blocks that benefactors make anew in a life: copies of what lies there, and fragments from as many others as suffice.
//!
//! A model of `Copies` and `Remaker` of a benefactor, which are bound to sockets. What puts fragments together is the real
//! `protect::Remaking`.

use std::collections::BTreeSet;

use stdchk_model::message::benefactor::{Check, Decoded, FailedCopy, Make, Seen, SourceBlock, proof};
use stdchk_model::{BenefactorId, BlockId, ChunkId, Encoding, EncodingId};
use stdchk_net::Bytes;
use stdchk_protect::{BadFragments, Blocks, Remaking, genuine};

use super::adversaries::Adversary;
use super::content::{name, shown};
use super::false_words::LIAR;
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

    /// The benefactor does all that it was ordered to make or to remove.
    pub fn work_all(&mut self, node: usize) {
        self.delete_all(node);
        while self.nodes[node].is_up() && !self.nodes[node].works.is_empty() {
            self.work(node);
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
            Some(Work::Check(check)) => match check.own {
                Some(own) => self.look(node, &check, own),
                None => self.check_encoding(node, &check),
            },
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
        let made = self.gather(node, make.chunk, &make.from, true).map(|remaking| remaking.remake(as_copies));
        if let (Some(made), Some(first)) = (&made, make.from.first())
            && (!as_copies || made.is_err())
        {
            self.note_decoded(node, make.chunk, first.encoding, made.as_ref().err());
        }
        let Some(made) = made.and_then(Result::ok) else { return self.making_failed(node, make.chunk, None) };
        for new in &make.blocks {
            let shift = u8::from(self.plant == Plant::AnotherFragmentIsMade);
            let index = (new.index.unwrap_or(0) + shift) % made.encoding.code.blocks();
            let block = made.encoding.block(make.chunk, index);
            self.note(format!("{:?} makes {} for {}", self.nodes[node].id, shown(&block), new.to));
            let stored = made.stored(index).unwrap().clone();
            self.nodes[node].works.push_back(Work::Put(block, made.encoding.clone(), stored, new.to));
        }
    }

    /// Decodes an encoding, and looks whether all of its blocks follow from the chunk.
    fn check_encoding(&mut self, node: usize, check: &Check) {
        let Some(first) = check.from.first() else { return };
        match self.gather(node, check.chunk, &check.from, false) {
            Some(remaking) => {
                let made = remaking.remake(false);
                self.note_decoded(node, check.chunk, first.encoding, made.as_ref().err());
            }
            None => self.making_failed(node, check.chunk, None),
        }
    }

    /// Looks whether others have what they say, before a block of its own may go.
    fn look(&mut self, node: usize, check: &Check, own: BlockId) {
        let Some((_, stored)) = self.nodes[node].read(own, &self.runtime) else {
            return self.making_failed(node, check.chunk, None);
        };
        let favoured = check.from.first().unwrap().encoding;
        let (mut made, mut is_broken, mut there) = (None, false, BTreeSet::new());
        if !favoured.code.is_copy() {
            let of_it = |index| BlockId { chunk: check.chunk, encoding: favoured, index };
            let here = self.nodes[node].blocks();
            let here = (0..favoured.code.blocks()).map(of_it).filter(|block| here.contains(block));
            there = here.clone().map(|block| block.index).collect();
            let mut own = Vec::new();
            for block in here {
                let Some((encoding, stored)) = self.nodes[node].read(block, &self.runtime) else {
                    return self.making_failed(node, check.chunk, None);
                };
                own.push((block.index, encoding, stored));
            }
            if let Some(remaking) = self.gather_with((check.chunk, favoured), &check.from, own) {
                let remade = remaking.remake(false);
                self.note_decoded(node, check.chunk, favoured, remade.as_ref().err());
                is_broken = remade.as_ref().err() == Some(&BadFragments::Encoding);
                made = remade.ok();
            }
        }
        let mut lacks = Vec::new();
        for (place, source) in (0u32..).zip(&check.from) {
            let block = block_of(check.chunk, source);
            let is_shown = !is_broken && self.is_shown(source, block, (own, &stored), made.as_ref());
            if self.plant != Plant::ClaimsAreBelieved && !is_shown {
                lacks.push(place);
            } else if is_shown {
                there.insert(block.index);
            }
        }
        let is_decoded = favoured.code.is_copy() || is_broken || made.is_some();
        if !is_decoded && there.len() >= usize::from(favoured.code.data()) {
            return self.making_failed(node, check.chunk, None);
        }
        self.note(format!(
            "{:?} looks before {} may go, and misses {lacks:?}",
            self.nodes[node].id,
            shown(&own)
        ));
        self.nodes[node].seen.push(Seen { own, lacks, number: check.number });
    }

    /// Whether a benefactor proves that it has a block, or sends it.
    fn is_shown(
        &mut self,
        source: &SourceBlock,
        block: BlockId,
        (own, stored): (BlockId, &Bytes),
        made: Option<&Blocks>,
    ) -> bool {
        let is_it = |node: &&mut super::node::Node| node.address == source.address && node.is_up();
        let Some(other) = self.nodes.iter_mut().find(is_it) else { return false };
        let expected = match made {
            Some(made) => made.stored(block.index),
            None => (own.encoding == block.encoding && own.encoding.code.is_copy()).then_some(stored),
        };
        match expected {
            Some(expected) => self.is_proved(source, block, expected),
            None => {
                let served = other.serve(block, &self.runtime);
                served.is_some_and(|(encoding, stored)| genuine(&block, &encoding, &stored).is_ok())
            }
        }
    }

    /// Whether a benefactor proves that it has a block with these bytes. A liar passes the question on to those that have it.
    fn is_proved(&mut self, source: &SourceBlock, block: BlockId, expected: &Bytes) -> bool {
        let (key, passes_on) = (ChunkId::of(expected).0, self.adversaries.contains(&Adversary::ClaimsBlocks));
        let is_liar = self.nodes[LIAR].address == source.address;
        let asked = |node: &&mut super::node::Node| {
            node.is_up() && (node.address == source.address || is_liar && passes_on)
        };
        let mut told =
            self.nodes.iter_mut().filter(asked).filter_map(|node| node.proof(block, key, &self.runtime));
        told.any(|told| told == proof(&key, source.at, expected))
    }

    /// Takes note of what enough blocks of an encoding make, to be told.
    fn note_decoded(
        &mut self,
        node: usize,
        chunk: ChunkId,
        encoding: EncodingId,
        bad: Option<&BadFragments>,
    ) {
        let is_right = bad.is_none();
        if encoding.code.is_copy() || bad.is_some_and(|bad| *bad != BadFragments::Encoding) {
            return;
        }
        let is_right = self.nodes[node].lies_to_manager.decodes.unwrap_or(is_right);
        let block = BlockId { chunk, encoding, index: 0 };
        self.note(format!("{:?} decodes {}: {is_right}", self.nodes[node].id, shown(&block)));
        self.nodes[node].decoded.push(Decoded { chunk, encoding, is_right });
    }

    /// Gathers as many blocks as suffice, of which the first is its own, if it has that.
    fn gather(
        &mut self,
        node: usize,
        chunk: ChunkId,
        from: &[SourceBlock],
        has_first: bool,
    ) -> Option<Remaking> {
        let first = from.first()?;
        let own = match has_first {
            true => {
                let (encoding, stored) = self.nodes[node].read(block_of(chunk, first), &self.runtime)?;
                vec![(first.index, encoding, stored)]
            }
            false => Vec::new(),
        };
        self.gather_with((chunk, first.encoding), from.get(usize::from(has_first)..)?, own)
    }

    /// Gathers as many blocks of an encoding as suffice beside own ones.
    fn gather_with(
        &mut self,
        (chunk, of): (ChunkId, EncodingId),
        from: &[SourceBlock],
        own: Vec<(u8, Encoding, Bytes)>,
    ) -> Option<Remaking> {
        let mut remaking = Remaking::new(chunk, of);
        let mut lacks = of.code.data();
        for (index, encoding, stored) in own {
            lacks = remaking.add(index, encoding, stored).ok()?;
        }
        for source in from {
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
            self.nodes[target]
                .put(None, (block, encoding), stored, (false, true), &self.runtime)
                .map(|_| target)
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
