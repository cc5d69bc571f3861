//! The links between benefactors and the manager in a life.

use std::collections::BTreeSet;

use stdchk_model::Tier;
use stdchk_model::message::benefactor::{Command, OwnerWish};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, Term};

use super::client::Client;
use super::content::{Number, all_shown, name};
use super::node::Work;
use super::plant::Plant;
use super::world::World;

impl World {
    pub fn connect(&mut self, node: usize) {
        let answer = self.ask(self.nodes[node].registration());
        if let Err(failure) = &answer
            && self.nodes[node].lies_to_manager.is_ill()
        {
            return self.note(format!("a benefactor that lies may not register: {}", failure.message));
        }
        let ManagerReply::Registered { id, moment, registration, term, .. } = answer.unwrap() else {
            panic!("not an answer to a registration")
        };
        let is_new_life = !std::mem::replace(&mut self.nodes[node].was_connected, true);
        self.nodes[node].is_registered(id);
        if self.nodes[node].tier == Tier::Memory {
            self.in_memory.insert(id);
        }
        self.nodes[node].registration = registration;
        self.nodes[node].led_by(term);
        self.nodes[node].told(moment, false);
        self.nodes[node].is_new_life = is_new_life;
        if is_new_life || self.plant != Plant::NoInventoryAfterReconnect {
            self.nodes[node].begin_inventory();
        }
        self.nodes[node].connected = true;
        self.note(format!("{id} registers"));
        self.hidden_moment_comes_to_light();
    }

    pub fn delete_all(&mut self, node: usize) {
        while self.nodes[node].is_up() && !self.nodes[node].deletions.is_empty() {
            self.delete(node);
        }
    }

    pub fn delete(&mut self, node: usize) {
        if !self.nodes[node].is_up() || self.nodes[node].deletions.is_empty() {
            return;
        }
        let (blocks, sequence) = self.nodes[node].deletions.remove(0);
        self.nodes[node].remove(&blocks, sequence);
        let (id, names) = (self.nodes[node].id, all_shown(&blocks));
        self.note(format!("{id:?} removes what of {names} was not put since {sequence:x}"));
    }

    /// The link of a benefactor does the next thing.
    pub fn link(&mut self, node: usize) {
        if self.nodes[node].is_broken || self.nodes[node].has_left {
            return;
        }
        if !self.nodes[node].is_up() {
            if self.calm || self.one_in(3) {
                self.lives += 1;
                self.nodes[node].start(self.lives);
                self.note(format!("{:?} starts", self.nodes[node].id));
            }
        } else if !self.nodes[node].connected {
            self.connect(node);
        } else if self.nodes[node].sent.is_empty() {
            let sync = self.calm || self.below(2) == 0;
            match self.nodes[node].heartbeat(sync) {
                Some(beat) => self.nodes[node].sent.push(beat),
                None => self.nodes[node].begin_inventory(),
            }
        } else {
            self.deliver(node);
        }
    }

    pub fn deliver_all(&mut self, node: usize) {
        while self.nodes[node].connected && !self.nodes[node].sent.is_empty() {
            self.deliver(node);
        }
    }

    fn deliver(&mut self, node: usize) {
        let request = self.nodes[node].sent.remove(0);
        let id = self.nodes[node].id;
        match &request {
            ManagerRequest::Heartbeat { added, removed, .. } if !(added.is_empty() && removed.is_empty()) => {
                let added = all_shown(added.iter().map(|stored| &stored.block));
                let removed = all_shown(removed);
                self.note(format!("{id:?} tells that it has {added} and has not {removed}"));
            }
            ManagerRequest::Inventory { blocks, last, .. } => {
                let blocks = all_shown(blocks.iter().map(|stored| &stored.block));
                self.note(format!("{id:?} lists {blocks}, last: {last}"));
            }
            _ => {}
        }
        let begins = matches!(request, ManagerRequest::BeginInventory { .. });
        let answer = self.ask(request);
        if self.one_in(20) {
            self.note(format!("{id:?} loses its connection, and an answer with it"));
            self.nodes[node].disconnect();
            return;
        }
        match answer {
            Ok(ManagerReply::Commands(commands)) => self.obey(node, commands),
            Ok(_) if begins => self.nodes[node].take_inventory(),
            Ok(_) => {}
            Err(failure) => {
                self.note(format!("{id:?} is refused {:?}", failure.code));
                self.nodes[node].disconnect();
            }
        }
    }

    fn obey(&mut self, node: usize, commands: Vec<Command>) {
        let term = self.nodes[node].term();
        self.obey_term(node, term, commands);
    }

    /// A benefactor is given orders by a manager of this term.
    pub fn obey_term(&mut self, node: usize, term: Term, commands: Vec<Command>) {
        for command in commands {
            let obeys = self.nodes[node].obeys(term) || self.plant == Plant::LesserTermObeyed;
            assert!(
                !obeys || term >= self.nodes[node].term(),
                "a benefactor obeys a manager that leads no more"
            );
            if !obeys && !matches!(command, Command::SendInventory | Command::Revoke(_)) {
                continue;
            }
            match command {
                Command::Delete { blocks, put_sequence } => {
                    let names = all_shown(&blocks);
                    self.note(format!("{:?} is to delete {names}", self.nodes[node].id));
                    self.nodes[node].deletions.push((blocks, put_sequence));
                    match self.plant {
                        Plant::LateDeletion => self.nodes[node].disconnect(),
                        _ => self.delete(node),
                    }
                }
                Command::Make(make) => self.order(node, make),
                Command::Check(check) => self.nodes[node].works.push_back(Work::Check(check)),
                Command::SendInventory if self.plant == Plant::PhantomsAreKept => {}
                Command::SendInventory => self.nodes[node].begin_inventory(),
                // Copies go another way here, and pools are small.
                Command::Revoke(_) | Command::Permits(_) | Command::BeatEvery(_) | Command::Managers(_) => {}
                Command::Goes(left_to_do) => self.nodes[node].is_told(left_to_do),
                Command::Forgotten => self.left(node),
                Command::Remember(moment) => self.nodes[node].told(Some(moment), true),
            }
        }
    }

    /// The manager has forgotten a benefactor as its owner wished. If its owner still does, it ends, and its disk may be taken away.
    fn left(&mut self, node: usize) {
        let id = self.nodes[node].id;
        if self.nodes[node].wish != OwnerWish::Leave {
            return self.note(format!("{id:?} is forgotten, and its owner wishes otherwise by now"));
        }
        let without_disk = self.below(2) == 0;
        self.note(format!("{id:?} leaves, and its disk goes: {without_disk}"));
        self.nodes[node].leave(without_disk);
        self.gone.extend(id.filter(|_| without_disk));
        self.nodes[node].was_connected = false;
        for client in &mut self.clients {
            client.held.retain(|(_, at)| Some(*at) != id);
        }
    }

    /// An owner decides something, or a machine is said to go soon, or no longer.
    pub fn decide(&mut self, node: usize) {
        let wishes = [OwnerWish::Serve, OwnerWish::Pause, OwnerWish::Drain, OwnerWish::Leave];
        let Some(wish) = wishes.get(self.below(wishes.len() + 2)).copied() else {
            let goes = !self.nodes[node].goes;
            self.note(format!("the machine of {:?} is said to go: {goes}", self.nodes[node].id));
            return self.nodes[node].set_going(goes);
        };
        if self.nodes[node].has_left && wish != OwnerWish::Serve {
            return;
        }
        self.note(format!("the owner of {:?} wishes: {wish:?}", self.nodes[node].id));
        self.nodes[node].decide(wish);
        if self.plant == Plant::DrainsWithoutCopies && wish == OwnerWish::Drain && self.nodes[node].is_up() {
            let (gone, sequence) = (self.nodes[node].blocks(), self.nodes[node].put_sequence());
            self.nodes[node].remove(&gone.into_iter().collect::<Vec<_>>(), sequence);
        }
        if self.plant == Plant::LeavesAtOnce && wish == OwnerWish::Leave && self.nodes[node].is_up() {
            self.left(node);
        }
    }

    /// The files of an owner grow, or go.
    pub fn owner_writes(&mut self, node: usize) {
        let room = [None, Some(0), Some(4 << 12), Some(9 << 12)][self.below(4)];
        self.note(format!("the files of the owner of {:?} leave {room:?} bytes", self.nodes[node].id));
        self.nodes[node].leave_room(room);
    }

    /// All owners let their benefactors serve, and their files leave room, but for one perhaps whose benefactor the others can do without:
    /// that one is to have nothing, or has little room.
    pub fn settle_owners(&mut self) {
        let disks = self.nodes.iter().filter(|node| node.tier == Tier::Disk);
        let others = disks.skip(1).filter(|node| !node.is_small()).count();
        // Clients go on by the policy of when they began.
        let began = self.clients.iter().map(Client::hosts).max();
        let hosts = began.into_iter().chain([self.redundancy.hosts()]).max().unwrap();
        let can_do_without = !self.is_narrow && others >= usize::from(hosts);
        let goes = can_do_without && self.below(3) == 0;
        let one = self.below(self.nodes.len());
        for node in 0..self.nodes.len() {
            self.nodes[node].set_going(false);
            let (wish, room) =
                match [(OwnerWish::Drain, None), (OwnerWish::Leave, None), (OwnerWish::Serve, Some(3 << 12))]
                    [self.below(3)]
                {
                    _ if node != one || !goes => (OwnerWish::Serve, None),
                    wished => wished,
                };
            self.nodes[node].leave_room(room);
            if room.is_some() {
                self.note(format!(
                    "the files of the owner of {:?} leave {room:?} bytes for long",
                    self.nodes[node].id
                ));
            }
            let changes = match self.nodes[node].has_left {
                true => wish == OwnerWish::Serve,
                false => self.nodes[node].wish != wish,
            };
            if !changes {
                continue;
            }
            self.note(format!("the owner of {:?} wishes for long: {wish:?}", self.nodes[node].id));
            self.nodes[node].decide(wish);
        }
    }

    /// The connection breaks; what was on its way may still be read.
    pub fn disconnect(&mut self, node: usize) {
        if self.nodes[node].connected {
            self.note(format!("{:?} loses its connection", self.nodes[node].id));
            let sent = std::mem::take(&mut self.nodes[node].sent);
            if self.below(2) == 0 {
                self.strays.extend(sent);
            }
            self.nodes[node].disconnect();
        }
    }

    /// What was in memory is gone with its machine, which comes back as another benefactor.
    fn memory_goes(&mut self, node: usize) {
        let gone: BTreeSet<Number> = self.nodes[node].blocks().iter().map(name).collect();
        for number in gone {
            *self.lost_in_memory.entry(number).or_default() += 1;
        }
        self.nodes[node].stop(None);
        self.nodes[node].replace_disk();
    }

    pub fn stray(&mut self) {
        if !self.strays.is_empty() {
            let request = self.strays.remove(0);
            self.note("a message of a broken connection is read".to_owned());
            let _nobody_reads_it = self.ask(request);
        }
    }

    /// A benefactor stops, perhaps for want of power.
    pub fn stop(&mut self, node: usize, power: bool) {
        if self.nodes[node].is_up() {
            let id = self.nodes[node].id;
            self.note(format!("{id:?} stops, for want of power: {power}"));
            let seed = self.next();
            let is_lost = power && self.nodes[node].tier == Tier::Memory;
            if is_lost {
                self.memory_goes(node);
            } else {
                self.nodes[node].stop(power.then_some(seed));
            }
            self.nodes[node].was_connected = false;
            for client in &mut self.clients {
                client.held.retain(|(_, at)| Some(*at) != id);
            }
        }
    }
}
