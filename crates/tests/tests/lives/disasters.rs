//! What happens to a pool that is at rest, and what it must come through.

use stdchk_model::message::manager::ManagerRequest;

use super::content::{name, shown, stored};
use super::plant::Plant;
use super::world::World;

impl World {
    /// All comes to rest, something happens, and all must come to rest again with nothing lost.
    pub fn disaster(&mut self) {
        self.quiet();
        self.calm = true;
        let (node, distance) = (self.below(self.nodes.len()), self.redundancy.distance());
        let kind = self.below(7);
        match kind {
            0 | 1 if distance >= 2 => self.flip_a_bit(node),
            2 if distance >= 2 => self.old_disk(node),
            3 => self.lose_benefactor(node),
            4 => self.set_manager_back(),
            5 => self.all_power_fails(),
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

    /// A bit of a stored block is another.
    fn flip_a_bit(&mut self, node: usize) {
        let named = self.named();
        let here = self.nodes[node].blocks().into_iter().filter(|block| named.contains(&name(block)));
        let here: Vec<_> = here.collect();
        if here.is_empty() {
            return;
        }
        let block = here[self.below(here.len())];
        let is_there = self.nodes[node].disk.flip(stored(&block));
        assert!(is_there, "{} is not on the disk that has it", shown(&block));
        self.note(format!("a bit of {} flips at {:?}", shown(&block), self.nodes[node].id));
        if self.below(2) == 0 {
            self.read_all();
        }
        if self.plant != Plant::DamagedBytesAreServed {
            self.scrub();
        }
    }

    /// A benefactor comes back with what it held once.
    fn old_disk(&mut self, node: usize) {
        self.stop(node, false);
        self.note(format!("{:?} comes back with an old disk", self.nodes[node].id));
        self.nodes[node].set_back();
    }

    /// A benefactor doesn't come back. It is forgotten if the manager allows that, and then its disk is gone for good.
    fn lose_benefactor(&mut self, node: usize) {
        self.stop(node, false);
        self.nodes[node].is_broken = true;
        for _ in 0..3 {
            self.settle_a_little();
        }
        let Some(id) = self.nodes[node].id else { return };
        let force = self.plant == Plant::ForgottenWithTheLastCopy;
        let forgotten = self.ask(ManagerRequest::Forget { id, force });
        self.note(format!("{id} is broken, and to be forgotten: {}", forgotten.is_ok()));
        assert!(self.redundancy.distance() == 1 || forgotten.is_ok(), "{id} can't be forgotten: {forgotten:?}");
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
