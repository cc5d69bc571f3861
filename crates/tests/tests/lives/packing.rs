//! Sets of a life that move into containers: a client packs the files of a complete set, and all of them move in one step.
//!
//! What a container holds is any list of chunks here: what matters is which chunks a version needs once it lies in one.

use stdchk_model::message::manager::{
    BenefactorInfo, BenefactorState, CheckpointSet, ManagerReply, ManagerRequest, PackedMembers, SetState,
};
use stdchk_model::{Ino, MapRoot, SessionId, Tier, Timestep};

use super::checks::true_distance;
use super::content::{LENGTH_MAX, Number, lies};
use super::model::{Content, Lies};
use super::plant::Plant;
use super::world::World;

/// What a client packs.
#[derive(Clone, Debug)]
pub struct Packing {
    timestep: Timestep,
    members: Vec<Member>,
    /// The container was committed.
    pub is_committed: bool,
}

/// A version that is packed.
#[derive(Clone, Debug)]
struct Member {
    ino: Ino,
    version: u64,
    /// Which session committed it.
    session: SessionId,
    own: Content,
}

impl Packing {
    /// The step that moves the members into the container that `session` committed.
    pub fn step(&self, session: SessionId, folder: Ino) -> ManagerRequest {
        let members = self.members.iter().map(|member| (member.ino, member.version)).collect();
        let packed = PackedMembers { session, members };
        ManagerRequest::Aggregate { folder, timestep: self.timestep, containers: vec![packed] }
    }
}

impl World {
    /// A client begins to pack a set, if there is a complete one that doesn't lie in containers.
    pub fn begin_packing(&mut self, number: usize) -> bool {
        let Ok(ManagerReply::Sets(sets)) = self.ask(ManagerRequest::Sets(self.folder)) else {
            panic!("not an answer to a question for sets")
        };
        let is_whole = |set: &&CheckpointSet| {
            set.state == SetState::Complete && set.members.iter().all(|member| !member.aggregated)
        };
        let Some(set) = sets.iter().find(is_whole) else { return false };
        let mut members = Vec::new();
        for member in &set.members {
            let request =
                ManagerRequest::OpenVersion { ino: member.ino, version: Some(member.version), client: None };
            let Ok(ManagerReply::Version { info: Some(info), root: Some(root), .. }) = self.ask(request)
            else {
                panic!("a member of a complete set is not there")
            };
            let Lies::AsItIs(own) = lies(&root) else { panic!("{info:?} lies in a container") };
            members.push(Member { ino: member.ino, version: member.version, session: info.session, own });
        }
        let count = 1 + self.below(LENGTH_MAX);
        let list = (0..count).map(|_| self.any_chunk()).collect();
        self.note(format!("client {number} begins to pack timestep {} into {list:?}", set.timestep));
        let packing = Packing { timestep: set.timestep, members, is_committed: false };
        self.begin_client(number, Ino(0), list, Some(packing));
        true
    }

    /// The client asks for the step that moves the members of its set.
    pub fn asks_to_move(&mut self, packing: &Packing, container: &Content) {
        for (file, member) in (0..).zip(&packing.members) {
            self.files.asked_to_move(member.session, &member.own, container, file);
        }
        if self.plant == Plant::MembersGoBeforeTheyMoved {
            let own: Vec<Lies> =
                packing.members.iter().map(|member| Lies::AsItIs(member.own.clone())).collect();
            let all = self.all_versions().into_iter().map(|(_, one)| one.lies);
            let container = Lies::AsItIs(container.clone());
            let others: Vec<Lies> = all.filter(|lies| !own.contains(lies)).chain([container]).collect();
            self.let_go_of(&own, &others);
        }
    }

    /// Whether the members of a client's set lie in a container.
    pub fn has_moved(&mut self, number: usize) -> bool {
        let members =
            self.clients[number].packing.as_ref().map_or(Vec::new(), |packing| packing.members.clone());
        let roots =
            members.into_iter().filter_map(|member| self.version(member.ino, Some(member.version))?.1);
        roots.collect::<Vec<_>>().iter().any(MapRoot::is_in_container)
    }

    /// Members move at this moment: their container must be as far from loss as those that are on-line allow.
    pub fn check_container(&mut self, number: usize) {
        let Ok(ManagerReply::Benefactors(all)) = self.core.handle(ManagerRequest::Benefactors, self.now)
        else {
            panic!("not an answer to a question for benefactors")
        };
        let is_online =
            |one: &&BenefactorInfo| one.state == BenefactorState::Online && one.tier == Tier::Disk;
        let online = all.iter().filter(is_online).count();
        let (wanted, mut holders) = (self.redundancy.distance_with(online), self.holders());
        // A benefactor of ill will may say that it has what it hasn't.
        for chunk in &self.clients[number].content().needs() - &self.claimed {
            let mut at = holders.remove(&chunk).unwrap_or_default();
            at.retain(|(_, node)| self.nodes[*node].tier == Tier::Disk);
            let reached = true_distance(&at, self.nodes.len());
            assert!(
                reached >= u32::from(wanted),
                "chunk {chunk} of a container is lost with {reached} benefactors when members move into it: {}",
                self.shown_at(&at)
            );
        }
    }

    /// The client is told that the members of its set lie in its container.
    pub fn members_moved(&mut self, number: usize, packing: &Packing, container: &Content) {
        self.note(format!("client {number} is told that timestep {} moved", packing.timestep));
        for (file, member) in (0..).zip(&packing.members) {
            self.files.told_to_have_moved(member.session, container, file);
        }
    }

    /// The list of a file on which a client builds, and whether it finds the chunks of that in the pool.
    pub fn base_list(&self, ino: Ino, base: &MapRoot) -> (Vec<Number>, bool) {
        let own = self.files.unpacked(ino, &lies(base));
        (own.last().unwrap().list.clone(), !base.is_in_container())
    }
}
