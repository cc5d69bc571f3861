//! What happens to a pool that is at rest, and what it must come through.

use stdchk_model::BlockId;
use stdchk_model::message::manager::ManagerRequest;

use super::content::{name, shown, stored};
use super::plant::Plant;
use super::world::World;

impl World {
    /// All comes to rest, something happens, and all must come to rest again with nothing lost.
    pub fn disaster(&mut self) {
        self.quiet();
        self.calm = true;
        let distance = usize::from(self.distance());
        // So many benefactors can be lost.
        let losses = 1 + self.below(distance.max(2) - 1);
        let nodes = self.some_nodes(losses);
        self.expect_losses(losses);
        let kind = self.below(if self.is_coded() { 8 } else { 7 });
        match kind {
            0 | 1 if distance >= 2 => self.flip_bits(&nodes),
            2 if distance >= 2 => self.old_disk(nodes[0]),
            3 => self.lose_benefactors(&nodes),
            4 => self.set_manager_back(),
            5 => self.all_power_fails(),
            7 if distance >= 2 => self.lie(&nodes),
            _ => self.clock_jumps(),
        }
        self.settle();
        self.read_all();
        self.calm = false;
        for node in 0..self.nodes.len() {
            if self.below(2) == 0 {
                self.nodes[node].disk.remember();
            }
        }
    }

    /// So many different benefactors with disks.
    fn some_nodes(&mut self, count: usize) -> Vec<usize> {
        let disks = self.disks();
        let first = self.below(disks);
        (0..count).map(|step| (first + step) % disks).collect()
    }

    /// A block at a benefactor of a chunk that some version names.
    fn needed_block(&mut self, node: usize) -> Option<BlockId> {
        let named = self.named();
        let here = self.nodes[node].blocks().into_iter().filter(|block| named.contains(&name(block)));
        let here: Vec<_> = here.collect();
        (!here.is_empty()).then(|| here[self.below(here.len())])
    }

    /// A bit of a stored block is another, at each of these benefactors.
    fn flip_bits(&mut self, nodes: &[usize]) {
        for node in nodes {
            let Some(block) = self.needed_block(*node) else { continue };
            let is_there = self.nodes[*node].disk.flip(stored(&block));
            assert!(is_there, "{} is not on the disk that has it", shown(&block));
            self.note(format!("a bit of {} flips at {:?}", shown(&block), self.nodes[*node].id));
        }
        if self.below(2) == 0 {
            self.read_all();
        }
        if self.plant != Plant::DamagedBytesAreServed {
            self.scrub();
        }
    }

    /// A benefactor serves the bytes of other fragments under the names of its own; others may be lost beside.
    fn lie(&mut self, nodes: &[usize]) {
        let (liar, others) = (nodes[0], &nodes[1..]);
        self.begin_to_lie(liar);
        self.read_all();
        if !others.is_empty() {
            self.lose_benefactors(others);
            self.read_all();
        }
        self.stop(liar, false);
    }

    /// From now on, until it stops, a benefactor serves the bytes of another fragment for each that it has.
    pub fn begin_to_lie(&mut self, node: usize) {
        for block in self.nodes[node].blocks() {
            let index = (block.index + 1) % block.encoding.code.blocks();
            if index != block.index {
                self.nodes[node].lies.insert(block, BlockId { index, ..block });
            }
        }
        self.note(format!("{:?} lies about its fragments", self.nodes[node].id));
    }

    /// A benefactor comes back with what it held once.
    fn old_disk(&mut self, node: usize) {
        self.stop(node, false);
        self.note(format!("{:?} comes back with an old disk", self.nodes[node].id));
        self.nodes[node].set_back();
    }

    /// Benefactors don't come back. They are forgotten if the manager allows that, and then their disks are gone for good.
    fn lose_benefactors(&mut self, nodes: &[usize]) {
        for node in nodes {
            self.stop(*node, false);
            self.nodes[*node].is_broken = true;
        }
        for _ in 0..3 {
            self.settle_a_little();
        }
        for node in nodes {
            self.forget(*node);
        }
    }

    fn forget(&mut self, node: usize) {
        let Some(id) = self.nodes[node].id else { return };
        let force = self.plant == Plant::ForgottenWithTheLastCopy;
        self.keepers_follow();
        let forgotten = self.ask(ManagerRequest::Forget { id, force });
        self.note(format!("{id} is broken, and to be forgotten: {}", forgotten.is_ok()));
        // What a registered backup alone lists may lie there alone, and then somebody has to give it up first.
        let may_hold = self.registered.is_some();
        let is_spared = self.distance() == 1 || !self.lost.is_empty() || may_hold || forgotten.is_ok();
        assert!(is_spared, "{id} can't be forgotten: {forgotten:?}");
        if forgotten.is_ok() {
            self.nodes[node].replace_disk();
            self.check();
        }
        self.nodes[node].is_broken = false;
    }

    fn all_power_fails(&mut self) {
        self.note("power fails everywhere".to_owned());
        for node in 0..self.nodes.len() {
            self.stop(node, true);
        }
        self.restart_manager();
    }

    fn clock_jumps(&mut self) {
        const YEAR_NS: i64 = 365 * 24 * 3600 * 1_000_000_000;
        let forward = self.below(2) == 0;
        self.note(format!("the clock jumps by a year, forward: {forward}"));
        self.now.wall += if forward { YEAR_NS } else { -YEAR_NS };
    }
}
