//! A benefactor says what no manager has told it: a moment of another history, the one of another benefactor, a term of nobody. It is served as
//! before, and nobody else is stopped (I4, I7).

use stdchk_model::Signed;
use stdchk_model::message::manager::{Era, ManagerReply, ManagerRequest, Moment, Term};

use super::manager::KEY;
use super::plant::Plant;
use super::world::World;

impl World {
    pub fn lie_at_registration(&mut self, node: usize) {
        let (Some(id), true) = (self.nodes[node].id, self.nodes[node].is_up()) else { return };
        if self.nodes[node].is_broken || self.nodes[node].has_left {
            return;
        }
        self.disconnect(node);
        let other = self.nodes[(node + 1) % self.nodes.len()].id.unwrap_or(id);
        let moment = Moment { start: self.next(), commit: 1 << 40 };
        let term = Term { era: Era::FIRST, number: 1 << 40, start: self.next() };
        let ManagerRequest::Register { mut registration, secret: Some(secret), .. } =
            self.nodes[node].registration()
        else {
            panic!("not a registration with a secret")
        };
        let (signed_moment, signed_term) = match (self.plant, self.below(3)) {
            // As if nobody looked who has signed it.
            (Plant::MomentsAreBelieved, _) => (KEY.sign(moment, id), Signed::not_yet(term)),
            (Plant::TermsAreBelieved, _) => (Signed::not_yet(moment), KEY.sign(term, id)),
            (_, 0) if other != id => (KEY.sign(moment, other), KEY.sign(term, other)),
            _ => (Signed::not_yet(moment), Signed::not_yet(term)),
        };
        (registration.remembered, registration.term) = (Some(signed_moment), Some(signed_term));
        self.note(format!("{id} lies when it registers"));
        let Ok(ManagerReply::Registered { term: answered, .. }) = self.ask(registration.introduced(&secret))
        else {
            panic!("a benefactor that lies is served no more")
        };
        assert!(answered.number < term.number, "a term of nobody counts");
        let Ok(ManagerReply::Status(status)) = self.ask(ManagerRequest::Status) else {
            panic!("not a status")
        };
        assert!(status.set_back.is_empty(), "a liar stops all writes");
    }
}
