//! Mistakes that are made on purpose, each of which some life must find.

use std::collections::BTreeSet;

use stdchk_model::message::manager::{Change, ManagerRequest};
use stdchk_model::{BlockId, OpId, Tier, Trust};
use stdchk_protect::{Held, distance, missing};

use super::content::{Number, id};
use super::files::name_of;
use super::model::Lies;
use super::world::World;

/// A mistake that is made on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    Nothing,

    // --- in a benefactor's store and service
    /// A benefactor gives receipts for what is not on its disk yet.
    ReceiptWithoutSync,
    /// A put that is to be durable is answered before it is.
    DurablePutWithoutSync,
    /// A put of a block that is here already is answered as durable, whether the block is or not.
    KnownPutIsBelieved,
    /// A benefactor gives receipts that no deletion voids, and doesn't keep the blocks from any.
    ReceiptThatProtectsNothing,
    /// A benefactor removes whatever an order names, put again or not.
    DeletionOfWhatWasPutAgain,
    /// The directory of a store isn't synced: a loss of power takes the newest segment.
    NamesNotSynced,
    /// One read that fails sets a good block aside for good.
    OneBadReadSetsAside,
    /// A benefactor takes more than it was donated.
    DonationIgnored,
    /// A benefactor doesn't remember the moments of the manager's history.
    MomentsAreForgotten,

    // --- in the link of a benefactor
    /// A benefactor carries out an order to delete after it has lost the connection and said other things since.
    LateDeletion,
    /// A benefactor calls puts durable in its heartbeat that are not.
    AnnouncedBeforeDurable,
    /// A benefactor sends the inventory that it took for the connection before.
    StaleInventory,
    /// A benefactor that connects again sends no inventory, though reports were lost with the connection.
    NoInventoryAfterReconnect,
    /// A benefactor never says that blocks are gone, and its count of blocks hides it.
    PhantomsAreKept,
    /// A copy is believed to be made when it was ordered.
    CopyIsBelieved,
    /// A benefactor lets go of what it has copied elsewhere.
    CopyMoves,
    /// A benefactor that is to be drained deletes what it has by itself.
    DrainsWithoutCopies,
    /// A benefactor that is to leave waits for nobody.
    LeavesAtOnce,
    /// A benefactor whose owner needs space deletes what it has by itself.
    GivesBackByItself,
    /// A benefactor doesn't say that its owner needs space.
    OwesNothing,
    /// A benefactor reports fragments under the numbers of others.
    FragmentsMixedUp,
    /// A benefactor gives receipts for blocks of chunks of which it has another block.
    ReceiptOfAnotherEncoding,
    /// A benefactor makes another fragment than the one that was ordered.
    AnotherFragmentIsMade,
    /// A benefactor in memory says that it keeps blocks on a disk.
    MemoryIsCalledDisk,

    // --- in the manager and its shell
    /// The manager answers a commit before it is in its store.
    AnswerBeforeStore,
    /// The store answers before a commit is durable: a crash takes the last ones.
    StoreLosesItsTail,
    /// A crash leaves half of what was to be committed at once.
    HalfABatch,
    /// The manager takes the word of a client that chunks are stored.
    ClaimIsBelieved,
    /// A collection asks no sessions.
    SweepIgnoresSessions,
    /// A collection removes what was committed since it looked which chunks are referred to.
    SweepOfWhatIsYounger,
    /// A collection looks into no containers.
    SweepIgnoresContainers,
    /// A collection asks no registered backups.
    SweepIgnoresBackups,
    /// Nobody compares the manager's store with what benefactors remember.
    SetBackUnnoticed,
    /// A benefactor is forgotten that alone holds chunks.
    ForgottenWithTheLastCopy,
    /// A commit counts chunks as durable of which one fragment too few is there.
    OneFragmentTooFew,
    /// Trimming counts fragments of several encodings together.
    EncodingsAddUp,
    /// Trimming takes each fragment for a copy.
    FragmentsCountAsCopies,

    /// Somebody drops versions that nobody asked to be dropped.
    OlderVersionsGo,
    /// Sets go by a lifetime before a younger one is complete.
    SetsGoTooSoon,
    /// Sets stay that a lifetime lets go.
    SetsStay,
    /// What a newer store names is collected while an older one is in its place.
    CollectsWhileSetBack,
    /// A collection doesn't ask what keepers have.
    SweepIgnoresKeepers,
    /// Trimming counts the fragments of an encoding that somebody made up.
    MadeUpFragmentsCount,
    /// A benefactor doesn't look at what others say that they have before its own blocks go.
    ClaimsAreBelieved,

    // --- while two managers believe that they lead
    /// The store takes what a manager writes that leads no more.
    FenceIsOpen,
    /// A manager that leads no more answers before its store has refused.
    DeposedAnswers,
    /// A benefactor obeys a manager of a lesser term than it knows.
    LesserTermObeyed,

    // --- of those who may not
    /// Nobody asks what a user may do.
    UsersMayAll,
    /// A session is anybody's who knows its number.
    SessionsAreForAll,
    /// A benefactor gives another one any block.
    PermitsAreNotAsked,
    /// Nobody looks whether the manager has told a benefactor the moment that it shows.
    MomentsAreBelieved,
    /// Nobody looks whether a manager has told a benefactor the term that it shows.
    TermsAreBelieved,

    // --- in clients
    /// A client leaves out a chunk when it tells which ones its version names.
    NameLeftOut,
    /// A client tells its application that a file is stored when it has asked for the commit.
    ToldBeforeCommitted,
    /// A change is repeated under another identity when its answer is lost.
    RepeatedUnderAnotherName,
    /// A client that packs a set lets go of its files when it has asked that they move into the container.
    MembersGoBeforeTheyMoved,
    /// A reader hands out bytes that don't match their name.
    DamagedBytesAreServed,
}

impl Plant {
    /// All of them, and the life from which on each is looked for: the first that found it when the lives were made so.
    pub const ALL: [(Self, u64); 57] = [
        (Self::ReceiptWithoutSync, 0),
        (Self::DurablePutWithoutSync, 25),
        (Self::KnownPutIsBelieved, 1262),
        (Self::ReceiptThatProtectsNothing, 53),
        (Self::DeletionOfWhatWasPutAgain, 53),
        (Self::NamesNotSynced, 3),
        (Self::OneBadReadSetsAside, 13),
        (Self::DonationIgnored, 15),
        (Self::MomentsAreForgotten, 0),
        (Self::LateDeletion, 71),
        (Self::AnnouncedBeforeDurable, 44),
        (Self::StaleInventory, 5),
        (Self::NoInventoryAfterReconnect, 7),
        (Self::PhantomsAreKept, 3),
        (Self::CopyIsBelieved, 2),
        (Self::CopyMoves, 2),
        (Self::DrainsWithoutCopies, 24),
        (Self::LeavesAtOnce, 0),
        (Self::GivesBackByItself, 7),
        (Self::OwesNothing, 26),
        (Self::FragmentsMixedUp, 8),
        (Self::ReceiptOfAnotherEncoding, 446),
        (Self::AnotherFragmentIsMade, 35),
        (Self::MemoryIsCalledDisk, 6),
        (Self::AnswerBeforeStore, 37),
        (Self::StoreLosesItsTail, 0),
        (Self::HalfABatch, 7),
        (Self::ClaimIsBelieved, 0),
        (Self::SweepIgnoresSessions, 0),
        (Self::SweepOfWhatIsYounger, 0),
        (Self::SweepIgnoresContainers, 1110),
        (Self::SweepIgnoresBackups, 6),
        (Self::SetBackUnnoticed, 0),
        (Self::ForgottenWithTheLastCopy, 18),
        (Self::OneFragmentTooFew, 248),
        (Self::EncodingsAddUp, 50),
        (Self::FragmentsCountAsCopies, 14),
        (Self::OlderVersionsGo, 0),
        (Self::SetsGoTooSoon, 0),
        (Self::SetsStay, 57),
        (Self::CollectsWhileSetBack, 6),
        (Self::SweepIgnoresKeepers, 9),
        (Self::MadeUpFragmentsCount, 0),
        (Self::ClaimsAreBelieved, 197),
        (Self::FenceIsOpen, 12),
        (Self::DeposedAnswers, 12),
        (Self::LesserTermObeyed, 12),
        (Self::UsersMayAll, 2),
        (Self::SessionsAreForAll, 2),
        (Self::PermitsAreNotAsked, 7),
        (Self::MomentsAreBelieved, 2),
        (Self::TermsAreBelieved, 2),
        (Self::NameLeftOut, 0),
        (Self::ToldBeforeCommitted, 0),
        (Self::RepeatedUnderAnotherName, 1),
        (Self::MembersGoBeforeTheyMoved, 22),
        (Self::DamagedBytesAreServed, 4),
    ];
}

impl World {
    /// A trimming that knows better than the manager.
    pub fn trim_too_much(&mut self) {
        let distance = usize::from(self.redundancy.distance());
        for blocks in self.holders().into_values() {
            let fragments: Vec<_> =
                blocks.iter().filter(|(block, _)| !block.encoding.code.is_copy()).copied().collect();
            let data = fragments.iter().map(|(block, _)| usize::from(block.encoding.code.data())).max();
            let needed = match self.plant {
                Plant::FragmentsCountAsCopies => distance,
                _ => distance + data.unwrap_or(0) - 1,
            };
            let spare = fragments.len().saturating_sub(needed);
            for (block, node) in fragments.into_iter().take(spare) {
                if self.nodes[node].is_up() {
                    let sequence = self.nodes[node].put_sequence();
                    self.nodes[node].remove(&[block], sequence);
                }
            }
        }
    }

    /// A trimming that asks nobody who made a fragment.
    pub fn trim_what_fragments_make(&mut self) {
        for blocks in self.holders().into_values() {
            let is_enough = |(block, _): &&(BlockId, usize)| {
                let own = blocks.iter().filter(|(other, _)| other.encoding == block.encoding);
                let own: BTreeSet<u8> = own.map(|(other, _)| other.index).collect();
                !block.encoding.code.is_copy() && own.len() >= usize::from(block.encoding.code.data())
            };
            if blocks.iter().any(|block| is_enough(&block)) {
                self.remove_copies(&blocks);
            }
        }
    }

    fn remove_copies(&mut self, blocks: &BTreeSet<(BlockId, usize)>) {
        for (block, node) in blocks.iter().filter(|(block, _)| block.encoding.code.is_copy()) {
            if self.nodes[*node].is_up() {
                let sequence = self.nodes[*node].put_sequence();
                self.nodes[*node].remove(&[*block], sequence);
            }
        }
    }

    /// Drops the oldest version of a file that has several.
    pub fn drop_the_oldest(&mut self) {
        for ino in self.files.names.into_iter().flatten() {
            let shown = self.versions_of(ino).unwrap_or_default();
            if let [oldest, _, ..] = &shown[..] {
                let change = Change::DropVersion { ino, version: oldest.number };
                self.operations += 1;
                let id = OpId(self.operations.to_be_bytes());
                let _nobody_asked = self.ask(ManagerRequest::Change { id, change });
            }
        }
    }

    /// Removes a file of the first timestep.
    pub fn let_a_set_go(&mut self) {
        let name = (0..2).find(|place| self.files.names[*place].is_some()).map(name_of);
        if let Some(name) = name.filter(|_| self.files.is_replaced) {
            self.operations += 1;
            let id = OpId(self.operations.to_be_bytes());
            let change = Change::Unlink { parent: self.folder, name };
            let _nobody_asked = self.ask(ManagerRequest::Change { id, change });
        }
    }

    /// Removes the chunks that containers alone need.
    pub fn let_containers_go(&mut self) {
        let all = self.all_versions().into_iter().map(|(_, one)| one.lies);
        let (packed, own): (Vec<_>, Vec<_>) = all.partition(|lies| matches!(lies, Lies::In { .. }));
        self.let_go_of(&packed, &own);
    }

    /// Removes what `versions` need and `others` don't.
    pub fn let_go_of(&mut self, versions: &[Lies], others: &[Lies]) {
        let needed = |all: &[Lies]| all.iter().flat_map(Lies::needs).collect::<BTreeSet<Number>>();
        let go: BTreeSet<Number> = needed(versions).difference(&needed(others)).copied().collect();
        let keep = self.holders().into_keys().filter(|number| !go.contains(number)).collect();
        self.delete_all_but(&keep);
    }

    /// The manager believes that one more fragment is there of each of these chunks, if one is missing.
    pub fn believe_one_more(&mut self, chunks: &[Number]) {
        for number in chunks {
            let places = self.located(*number).into_iter();
            let held = places.map(|(block, at)| Held {
                benefactor: at,
                encoding: block.encoding,
                index: block.index,
                tier: Tier::Disk,
                trust: Trust::Trusted,
            });
            let held: Vec<Held> = held.collect();
            let Some(first) = held.first().filter(|_| distance(held.iter().copied()) == 0) else { continue };
            let Some(index) = missing(&held, first.encoding, 1).first().copied() else { continue };
            let block = BlockId { chunk: id(*number), encoding: first.encoding, index };
            let claims: Vec<(BlockId, usize)> = (0..self.nodes.len()).map(|node| (block, node)).collect();
            self.believe(&claims);
        }
    }
}
