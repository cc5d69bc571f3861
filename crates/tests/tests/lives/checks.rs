//! What must hold in a life, whatever the parts do to see to it.

use std::collections::BTreeSet;

use stdchk_model::message::benefactor::BlockState;
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, VersionInfo};
use stdchk_model::{BenefactorId, ErrorCode, Ino, MapRoot};

use super::client::Step;
use super::content::{Number, block, content, id, list_of_root, name, named_by};
use super::files::{NAMES, name_of};
use super::plant::Plant;
use super::world::World;

impl World {
    /// The newest version of a file, or the one of a number; `None`: the file is gone.
    fn version(&mut self, ino: Ino, version: Option<u64>) -> Option<(Option<VersionInfo>, Option<MapRoot>)> {
        match self.ask(ManagerRequest::OpenVersion { ino, version }) {
            Ok(ManagerReply::Version { info, root, .. }) => Some((info, root)),
            Err(failure) if failure.code == ErrorCode::NotFound => None,
            other => panic!("an answer to a question for a version: {other:?}"),
        }
    }

    /// The roots of all versions that there are, by file.
    fn roots(&mut self) -> Vec<(Ino, MapRoot)> {
        let mut roots = Vec::new();
        let inos: Vec<Ino> = self.files.files.keys().copied().collect();
        for ino in inos {
            let versions = match self.ask(ManagerRequest::Versions(ino)) {
                Ok(ManagerReply::Versions(versions)) => versions,
                Err(failure) if failure.code == ErrorCode::NotFound && !self.files.has_name(ino) => {
                    self.files.files.remove(&ino);
                    continue;
                }
                other => panic!("an answer to a question for the versions of {ino}: {other:?}"),
            };
            for version in versions {
                if let Some((_, Some(root))) = self.version(ino, Some(version.version)) {
                    roots.push((ino, root));
                }
            }
        }
        roots
    }

    /// The chunks that versions name.
    pub fn named(&mut self) -> BTreeSet<Number> {
        self.roots().iter().flat_map(|(_, root)| named_by(root)).collect()
    }

    /// After every event: names lead where they should, files are what they can be, and all that versions name is durable
    /// somewhere.
    pub fn check(&mut self) {
        for place in 0..NAMES {
            self.check_name(place);
        }
        for number in self.named() {
            let durable = self.nodes.iter().any(|node| node.has_durable(block(number)));
            assert!(durable, "a version names chunk {number}, which is durable nowhere");
        }
        for node in &self.nodes {
            assert!(node.keeps_within_its_donation(), "{:?} takes more than it was given", node.id);
        }
    }

    fn check_name(&mut self, place: usize) {
        let request = ManagerRequest::Lookup { parent: self.folder, name: name_of(place) };
        let found = match self.ask(request) {
            Ok(ManagerReply::Entry(attr)) => Some(attr.ino),
            Err(failure) if failure.code == ErrorCode::NotFound => None,
            other => panic!("an answer to a question for a name: {other:?}"),
        };
        assert_eq!(found, self.files.names[place], "the file {}", name_of(place));
        let Some(ino) = found else { return };
        let Some((_, root)) = self.version(ino, None) else { panic!("{ino} has a name and is not there") };
        match root {
            Some(root) => {
                let list = list_of_root(&root).0;
                assert!(self.files.get(ino).may_be(&root), "{ino} is {list:?}, which it can't be");
            }
            None => assert!(!self.files.get(ino).is_acknowledged, "{ino} was stored and holds nothing"),
        }
    }

    // --- when all is quiet

    /// Everybody comes back and ends what was begun; then nothing may be missing, nothing left over, and all can be read.
    pub fn quiet(&mut self) {
        self.calm = true;
        self.note("all is quiet".to_owned());
        self.strays.clear();
        for client in &mut self.clients {
            client.is_silent = false;
        }
        for round in 0..400 {
            if round > 8 && self.clients.iter().all(|client| client.step == Step::Idle) {
                break;
            }
            self.quiet_round(round);
        }
        let busy: Vec<usize> =
            (0..self.clients.len()).filter(|client| self.clients[*client].step != Step::Idle).collect();
        assert!(busy.is_empty(), "clients {busy:?} never end");
        self.settle();
        self.read_all();
        self.calm = false;
    }

    fn quiet_round(&mut self, round: usize) {
        for node in 0..self.nodes.len() {
            self.link(node);
            self.delete(node);
            self.copy(node);
        }
        for client in 0..self.clients.len() {
            if self.clients[client].step != Step::Idle {
                self.client_step(client);
            }
        }
        if round.is_multiple_of(4) {
            self.pass(100);
            self.collect();
        }
        self.check();
    }

    /// Waits until all has its place, for three looks.
    pub fn settle(&mut self) {
        self.calm = true;
        let (mut tidy, mut last) = (0, Ok(()));
        // Numbers of blocks that differ are looked into after ten minutes.
        for _ in 0..160 {
            self.settle_a_little();
            last = self.is_tidy();
            tidy = if last.is_ok() { tidy + 1 } else { 0 };
            if tidy == 3 {
                break;
            }
        }
        self.check();
        last.unwrap_or_else(|why| panic!("{why}"));
    }

    pub fn settle_a_little(&mut self) {
        self.long_time();
        self.collect_all();
        for node in 0..self.nodes.len() {
            self.delete_all(node);
            while self.nodes[node].is_up() && !self.nodes[node].copies.is_empty() {
                self.copy(node);
            }
        }
    }

    /// Whether every chunk has the copies that are wanted, where the manager says, and nothing else is there.
    fn is_tidy(&mut self) -> Result<(), String> {
        let named = self.named();
        let stored: BTreeSet<Number> =
            self.nodes.iter().flat_map(|node| node.blocks()).map(|block| name(&block)).collect();
        for number in named.union(&stored).copied() {
            let holders = self.nodes.iter().filter(|node| node.blocks().contains(&block(number)));
            let at: BTreeSet<BenefactorId> = holders.filter_map(|node| node.id).collect();
            let copies = if named.contains(&number) { self.replicas } else { 0 };
            if at.len() != copies {
                return Err(format!("chunk {number} is at {at:?}, and {copies} copies are wanted"));
            }
            let told = self.located(number);
            let told: BTreeSet<BenefactorId> = told.into_iter().collect();
            if told != at {
                return Err(format!("chunk {number} is at {at:?}, the manager believes at {told:?}"));
            }
        }
        Ok(())
    }

    fn located(&mut self, number: Number) -> Vec<BenefactorId> {
        let Ok(ManagerReply::Locations(found)) =
            self.ask(ManagerRequest::Locate { chunks: vec![id(number)] })
        else {
            panic!("not an answer to a question for places")
        };
        found.iter().flat_map(|found| &found.at).map(|location| location.benefactor).collect()
    }

    /// Reads every version as a reader does, and compares it byte for byte.
    pub fn read_all(&mut self) {
        for (ino, root) in self.roots() {
            for number in named_by(&root) {
                let read = self.read_chunk(number);
                assert!(read.as_deref() == Some(content(number)), "chunk {number} of {ino} can't be read");
            }
        }
    }

    fn read_chunk(&mut self, number: Number) -> Option<Vec<u8>> {
        for at in self.located(number) {
            let Some(node) = self.nodes.iter_mut().find(|node| node.id == Some(at) && node.is_up()) else {
                continue;
            };
            let Some(bytes) = node.get(block(number), &self.runtime) else { continue };
            if bytes == content(number) || self.plant == Plant::DamagedBytesAreServed {
                return Some(bytes);
            }
            let state = node.verify(block(number), &self.runtime);
            assert_eq!(state, BlockState::Damaged, "what {at} serves as chunk {number} is another");
            self.note(format!("a reader finds chunk {number} damaged at {at}"));
        }
        None
    }

    /// Every benefactor looks at all that it has.
    pub fn scrub(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.is_up()) {
            for block in node.blocks() {
                node.verify(block, &self.runtime);
            }
        }
    }
}
