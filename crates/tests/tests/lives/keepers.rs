//! Keepers of the manager's journal, and the loss of the manager's disk: what they have takes the place of its store. They lag, so commits
//! are lost that were acknowledged since; all that they know of must be there.
//!
//! What keepers have is a copy of the store here. How they get it and agree is tested elsewhere; here it matters what may be collected meanwhile.

use stdchk_model::message::manager::{ManagerReply, ManagerRequest};

use super::manager::Backup;
use super::node::Node;
use super::plant::Plant;
use super::world::World;

impl World {
    /// The keepers follow, or the manager loses its disk, in lives with keepers.
    pub fn keepers_event(&mut self) {
        match self.below(4) {
            0 => self.manager_loses_its_disk(),
            1 => self.keepers_lag(),
            _ => self.keepers_follow(),
        }
    }

    /// A file goes that keepers know of, and all is collected before they hear of it; then the manager loses its disk.
    fn keepers_lag(&mut self) {
        if !self.has_keepers {
            return;
        }
        self.keepers_follow();
        self.unlink();
        for _ in 0..3 {
            self.long_time();
            self.collect_all();
        }
        self.manager_loses_its_disk();
    }

    /// Keepers have all that is committed by now, durably.
    pub fn keepers_follow(&mut self) {
        if self.has_keepers {
            let copy = self.copy_of_store();
            self.note(format!("keepers have commit {}", copy.sequence));
            self.kept = Some(copy);
            self.tell_of_keepers();
        }
    }

    /// A benefactor of ill will hid the moment that it remembers when the store was given up that it is of, or one had left the pool then. Now
    /// it tells it, and that store is given up once more.
    pub fn hidden_moment_comes_to_light(&mut self) {
        if !self.hides_moment {
            return;
        }
        let Ok(ManagerReply::Status(status)) = self.ask(ManagerRequest::Status) else {
            panic!("not a status")
        };
        if !status.set_back.is_empty() {
            self.note("a moment that was hidden comes to light".to_owned());
            self.hides_moment = false;
            assert_eq!(self.ask(ManagerRequest::AcceptOlderStore), Ok(ManagerReply::Done));
            self.keepers_follow();
        }
    }

    /// The manager hears what keepers have.
    pub fn tell_of_keepers(&mut self) {
        let kept = self.kept.as_ref().map(|kept| kept.sequence);
        self.core.keepers_have(kept.filter(|_| self.plant != Plant::SweepIgnoresKeepers));
    }

    /// What keepers have takes the place of the manager's store. Once all benefactors have told what they remember, what was committed since
    /// is given up.
    fn manager_loses_its_disk(&mut self) {
        if !self.nodes.iter().all(Node::is_up) {
            return;
        }
        let Some(Backup { store, sequence, files, redundancy, .. }) = self.kept.take() else { return };
        self.note(format!("the manager's disk is lost, and keepers bring commit {sequence} back"));
        self.stale = None;
        self.disk = store;
        self.files.set_back_to(files);
        self.redundancy = redundancy;
        self.nearer_may_do(self.distance());
        self.backup = None;
        self.earlier = None;
        let _ended = self.begin_manager();
        self.keepers_follow();
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_up() {
                self.connect(node);
            }
        }
        for _ in 0..8 {
            self.long_time();
        }
        self.hides_moment = self.hides_moment();
        assert_eq!(self.ask(ManagerRequest::AcceptOlderStore), Ok(ManagerReply::Done));
        self.keepers_follow();
        self.check();
    }
}
