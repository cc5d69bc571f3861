//! A benefactor of ill will: it says what isn't so, in any message to the manager, until all comes to rest. Then it says what is so.
//!
//! What lies on its disk is there, and it obeys orders: what it says is the lie. Nobody else may lose anything by it. What it alone was
//! believed to have when a version was committed is lost with its word ([`World::check`]): that is no more than its disk could lose.

use stdchk_model::message::benefactor::{Decoded, FailedCopy, OwnerWish};
use stdchk_model::message::manager::{Moment, StoredBlock};
use stdchk_model::{BlockId, EncodingId, Signed};

use super::adversaries::Adversary;
use super::content::{self, id};
use super::plant::Plant;
use super::world::World;

/// The place of the benefactor that lies, in lives that have one.
pub const LIAR: usize = 1;

/// What a benefactor says that isn't so.
#[derive(Clone, Default, Debug)]
pub struct Lies {
    /// The moment of the manager's history that it remembers.
    pub moment: Option<Moment>,
    /// How much greater the term is that it has heard of.
    pub term_beyond: u64,
    /// Blocks that it has, as it says.
    pub claims: Vec<StoredBlock>,
    /// How many bytes are free, and how many blocks it has.
    pub load: Option<(u64, u64)>,
    /// What others could not take from it.
    pub failures: Vec<FailedCopy>,
    /// What every encoding that it is to decode makes: the chunk, or something else.
    pub decodes: Option<bool>,
    /// It says that it stores what is put there, and doesn't.
    pub stores_nothing: bool,
    /// What it serves.
    pub serves: Option<Served>,
}

/// What a benefactor serves for a block, which isn't that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// Nothing.
    Nothing,
    /// Bytes of the right length.
    Noise,
    /// An empty block.
    Empty,
    /// The block's bytes, and another description of its encoding.
    AnotherEncoding,
}

impl Lies {
    /// Whether it says anything that isn't so.
    pub fn is_ill(&self) -> bool {
        self.moment.is_some() || self.term_beyond > 0 || self.load.is_some() || !self.claims.is_empty()
    }
}

impl World {
    /// The benefactor of ill will begins to say something that isn't so.
    pub fn lies_of(&mut self, what: Adversary) {
        let absurd = [0, 1, u64::from(u32::MAX), 1 << 40, u64::MAX];
        match what {
            Adversary::LiesOfHistory => {
                let start = if self.below(2) == 0 { self.next() } else { self.below(8) as u64 };
                let commit = [0, 1, 1 << 20, u64::MAX - 1, u64::MAX][self.below(5)];
                self.nodes[LIAR].lies_to_manager.moment = Some(Moment { start, commit });
            }
            Adversary::LiesOfTerms => {
                self.nodes[LIAR].lies_to_manager.term_beyond = absurd[self.below(absurd.len())];
            }
            Adversary::LiesOfJournal => return self.lies_of_journal(),
            Adversary::ClaimsBlocks => return self.claims_blocks(),
            Adversary::LiesOfLoad => {
                let load = (absurd[self.below(absurd.len())], absurd[self.below(absurd.len())]);
                self.nodes[LIAR].lies_to_manager.load = Some(load);
            }
            Adversary::LiesOfFailures => {
                let (chunk, to) = (id(self.any_chunk()), self.below(self.nodes.len()));
                let to = self.nodes[to].id.filter(|_| to != LIAR);
                self.nodes[LIAR].lies_to_manager.failures.push(FailedCopy { chunk, to });
            }
            Adversary::LiesOfDecodings => return self.lies_of_decodings(),
            Adversary::StoresNothing => self.nodes[LIAR].lies_to_manager.stores_nothing = true,
            Adversary::ServesWrongly => return self.serves_wrongly(),
            Adversary::MakesUpEncodings
            | Adversary::MakesUpParity
            | Adversary::MakesUpAsAnother
            | Adversary::PresentsReceipts
            | Adversary::Meddles => unreachable!("no benefactor does that"),
        }
        self.note(format!("{:?} begins: {what:?}", self.nodes[LIAR].id));
        self.disconnect(LIAR);
    }

    /// It says that it has the journal up to a moment that never was.
    fn lies_of_journal(&mut self) {
        let (start, commit) = (self.next(), self.next());
        let Some(id) = self.nodes[LIAR].id.filter(|_| self.nodes[LIAR].connected) else { return };
        let registration = self.nodes[LIAR].registration;
        let has = Some(Signed::not_yet(Moment { start, commit }));
        let follows = self.core.may_follow(id, registration, has);
        self.note(format!("{id} has a journal that never was: {follows:?}"));
        self.commit_store();
    }

    /// It says what an encoding makes that it wasn't asked about, and will say so of each that it is asked about.
    fn lies_of_decodings(&mut self) {
        let is_right = self.below(2) == 0;
        self.nodes[LIAR].lies_to_manager.decodes = Some(is_right);
        let all: Vec<BlockId> = self.holders().into_values().flatten().map(|(block, _)| block).collect();
        if all.is_empty() {
            return;
        }
        let BlockId { chunk, encoding, .. } = all[self.below(all.len())];
        self.nodes[LIAR].decoded.push(Decoded { chunk, encoding, is_right });
        self.note(format!("{:?} says of all encodings that they are right: {is_right}", self.nodes[LIAR].id));
    }

    /// It serves what isn't the block that was asked for, and somebody reads a chunk: what is read is right, or nothing.
    fn serves_wrongly(&mut self) {
        let kinds = [Served::Nothing, Served::Noise, Served::Empty, Served::AnotherEncoding];
        let served = kinds[self.below(kinds.len())];
        self.nodes[LIAR].lies_to_manager.serves = Some(served);
        let number = self.any_chunk();
        let read = self.read_chunk(number);
        self.note(format!(
            "{:?} serves {served:?}, {number} is read: {}",
            self.nodes[LIAR].id,
            read.is_some()
        ));
        assert!(
            read.is_none_or(|read| *read == *content::content(number)),
            "a reader of {number} is deceived"
        );
    }

    /// It says that it has a block of a chunk that somebody may need: as the chunk is stored elsewhere, or as it is, of a length that
    /// may be absurd.
    fn claims_blocks(&mut self) {
        let number = self.any_chunk();
        let elsewhere = self.holders().remove(&number).unwrap_or_default();
        let others: Vec<usize> =
            elsewhere.iter().map(|(_, node)| *node).filter(|node| *node != LIAR).collect();
        let mut all: Vec<BlockId> = elsewhere.into_iter().map(|(block, _)| block).collect();
        all.push(BlockId { chunk: id(number), encoding: EncodingId::PLAIN, index: 0 });
        let block = all[self.below(all.len())];
        let mut claim = super::node::stored(block);
        if self.below(4) == 0 {
            claim.plain_length = [0, 1, u32::MAX][self.below(3)];
        }
        if self.below(4) == 0 {
            claim.stored_length = [0, 1, u32::MAX][self.below(3)];
        }
        self.note(format!("{:?} claims {}: {claim:?}", self.nodes[LIAR].id, content::shown(&block)));
        self.claims_begin();
        self.nodes[LIAR].lies_to_manager.claims.push(claim);
        self.claimed.insert(number);
        let is_trimmed = self.below(4) == 0;
        if self.plant == Plant::ClaimsAreBelieved {
            // A claimed block comes late and goes first, unless the others are to go.
            others.iter().for_each(|node| self.nodes[*node].decide(OwnerWish::Drain));
        }
        if is_trimmed || self.plant == Plant::ClaimsAreBelieved {
            // What there seems to be too much of is trimmed meanwhile.
            for _ in 0..6 {
                self.long_time();
                self.collect_all();
                (0..self.nodes.len()).for_each(|node| self.work_all(node));
            }
        }
    }

    /// Whether the moment that it remembers is not known.
    pub fn hides_moment(&self) -> bool {
        self.nodes[LIAR].lies_to_manager.is_ill()
    }

    /// All comes to rest, and the benefactor says what is so.
    pub fn lies_end(&mut self) {
        let takes_part = self.adversaries.iter().any(|one| one.is_benefactor());
        if takes_part {
            self.nodes[LIAR].lies_to_manager = Lies::default();
            self.disconnect(LIAR);
        }
    }
}
