//! A manager that stood still while another one took over, and goes on: it believes that it leads, and nothing that it does counts (I12).
//!
//! Its orders may have been on their way when it stood still, and come to benefactors later. Its store is the one of the manager that leads
//! now, and refuses what it writes, since that one has written; then it knows, and answers nobody. That store's fence is a model here; the
//! real one is in etcd's transactions. Terms are what benefactors and managers make of them.

use stdchk_manager::core::{Core, Now};
use stdchk_manager::store::Store as _;
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, Term};

use super::plant::Plant;
use super::world::World;

pub struct Stale {
    core: Core,
    /// Its clock.
    now: Now,
    /// Orders on their way, by the place of a benefactor and its life: a connection doesn't outlive it.
    orders: Vec<(usize, u64, Term, Vec<Command>)>,
}

impl World {
    /// The manager stands still, and another one takes over.
    pub fn another_manager_follows(&mut self) {
        self.note("the manager stands still, and another one follows".to_owned());
        let mut orders = Vec::new();
        for node in 0..self.nodes.len() {
            let is_linked = self.nodes[node].is_up() && self.nodes[node].connected;
            if !is_linked || !self.nodes[node].sent.is_empty() {
                continue;
            }
            let Some(beat) = self.nodes[node].heartbeat(true) else { continue };
            // What the answer says is durable by the time that it leaves.
            if let Ok(ManagerReply::Commands(commands)) = self.ask(beat) {
                orders.push((node, self.nodes[node].life(), self.nodes[node].term(), commands));
            }
        }
        let now = self.now;
        let core = self.begin_manager();
        self.stale = Some(Stale { core, now, orders });
    }

    /// Orders of the manager that leads no more come to a benefactor.
    pub fn late_orders_come(&mut self) {
        let Some(stale) = self.stale.as_mut().filter(|stale| !stale.orders.is_empty()) else { return };
        let (node, life, term, commands) = stale.orders.remove(0);
        if self.nodes[node].is_up() && self.nodes[node].life() == life {
            self.note(format!("late orders come to {:?}: {commands:?}", self.nodes[node].id));
            self.obey_term(node, term, commands);
        }
    }

    /// A client asks the manager that leads no more. It gets no answer, and asks again.
    pub fn deliver_to_stale(&mut self, number: usize, request: ManagerRequest) {
        let Some(stale) = &mut self.stale else { return };
        let answer = stale.core.handle(request, stale.now);
        let batch = stale.core.take_changes();
        self.note(format!(
            "client {number} asks the manager that leads no more, it would write: {}",
            !batch.is_empty()
        ));
        if batch.is_empty() {
            return;
        }
        // Its store is at another commit than it believes.
        match self.plant {
            Plant::FenceIsOpen => self.disk.commit(&batch).unwrap(),
            Plant::DeposedAnswers => {}
            _ => return self.stale = None,
        }
        if let Ok(reply) = answer {
            self.clients[number].sent = None;
            self.answered(number, reply);
        }
    }
}
