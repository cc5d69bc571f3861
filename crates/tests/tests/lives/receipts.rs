//! A client of ill will presents receipts that it forged, or that a benefactor gave at some other time, perhaps for others' blocks. A
//! forged receipt is refused with all that came with it; whatever a genuine one lets pass must be there.

use stdchk_manager::core::Asker;
use stdchk_model::{BenefactorId, BlockId, Receipt, ReceiptKey};

use super::client::Step;
use super::content::id;
use super::world::World;

/// Receipts that are kept: enough that some are older than deletions, losses of power and starts of the manager.
const KEPT: usize = 12;

/// A receipt, and who is said to have given it.
type Presented = (BenefactorId, Receipt);

impl World {
    pub fn presents_receipts(&mut self) {
        match self.below(3) {
            0 => self.asks_for_receipt(),
            _ => self.commits_by_receipts(),
        }
    }

    /// It asks a benefactor for a receipt of all that is there, and keeps it.
    fn asks_for_receipt(&mut self) {
        let node = self.below(self.nodes.len());
        let Some(at) = self.nodes[node].id.filter(|_| self.nodes[node].is_up()) else { return };
        let blocks = self.nodes[node].blocks().into_iter().collect();
        let receipt = self.nodes[node].receipt(blocks, &self.runtime);
        self.note(format!("somebody keeps a receipt of {at} for {} blocks", receipt.blocks.len()));
        if self.receipts.len() == KEPT {
            self.receipts.remove(0);
        }
        self.receipts.push((at, receipt));
    }

    /// A client that has a session commits by receipts that aren't its own. It goes on as if the answer had been lost.
    fn commits_by_receipts(&mut self) {
        let number = self.below(self.clients.len());
        let client = &self.clients[number];
        let is_ready = matches!(client.step, Step::Ask | Step::Put | Step::Sync | Step::Commit);
        if !is_ready || client.sent.is_some() || self.receipts.is_empty() {
            return;
        }
        let (mut presented, mut is_forged) = (Vec::new(), false);
        for _ in 0..1 + self.below(2) {
            let at = self.below(self.receipts.len());
            let kept = self.receipts[at].clone();
            match self.forged(&kept) {
                Some(forged) => {
                    is_forged = true;
                    presented.push(forged);
                }
                None => presented.push(kept),
            }
        }
        let client = &self.clients[number];
        let (ino, content, whose) = (client.ino, client.content(), (client.session, number));
        let (request, is_last) = (client.commit(self.plant, presented), client.is_last());
        let asker = Asker { maker: client.maker(), ..Asker::default() };
        self.files.asked_for(ino, whose, content, is_last);
        let answer = self.core.handle_for(asker, request, self.now);
        self.commit_store();
        let code = answer.as_ref().err().map(|failure| failure.code);
        self.note(format!("client {number} commits by receipts of others, forged: {is_forged}: {code:?}"));
        assert!(answer.is_err() || !is_forged, "a forged receipt is believed");
        if answer.is_err() {
            self.files.given_up(ino, number);
        }
    }

    /// Makes another receipt of one, in half of the cases; `None`: it is presented as it is.
    fn forged(&mut self, (at, receipt): &Presented) -> Option<Presented> {
        let (at, mut forged) = (*at, receipt.clone());
        let claim = super::node::stored(BlockId::plain(id(self.any_chunk())));
        match self.below(6) {
            0 => {
                let other = self.below(self.nodes.len());
                let other = self.nodes[other].id.filter(|other| *other != at)?;
                return Some((other, forged));
            }
            1 => forged.blocks.push(claim),
            2 => {
                let key = ReceiptKey([66; 32]);
                forged = Receipt::new(&key, forged.incarnation, u64::MAX, vec![claim]);
            }
            _ => return None,
        }
        Some((at, forged))
    }
}
