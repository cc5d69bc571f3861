//! Mistakes that are made on purpose, each of which some life must find.

use std::collections::BTreeSet;

use stdchk_model::{BlockId, MapRoot, Tier, Trust};
use stdchk_protect::{Held, distance, missing};

use super::content::{Number, id, named_by};
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
    /// Until all benefactors have reported, the manager takes the word of a client.
    PendingCountsAsPresent,
    /// A collection asks no sessions.
    SweepIgnoresSessions,
    /// A collection removes what was committed since it looked which chunks are referred to.
    SweepOfWhatIsYounger,
    /// A collection looks into no containers.
    SweepIgnoresContainers,
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
    pub const ALL: [Self; 48] = [
        Self::ReceiptWithoutSync,
        Self::DurablePutWithoutSync,
        Self::KnownPutIsBelieved,
        Self::ReceiptThatProtectsNothing,
        Self::DeletionOfWhatWasPutAgain,
        Self::NamesNotSynced,
        Self::OneBadReadSetsAside,
        Self::DonationIgnored,
        Self::MomentsAreForgotten,
        Self::LateDeletion,
        Self::AnnouncedBeforeDurable,
        Self::StaleInventory,
        Self::NoInventoryAfterReconnect,
        Self::PhantomsAreKept,
        Self::CopyIsBelieved,
        Self::CopyMoves,
        Self::DrainsWithoutCopies,
        Self::LeavesAtOnce,
        Self::GivesBackByItself,
        Self::OwesNothing,
        Self::FragmentsMixedUp,
        Self::ReceiptOfAnotherEncoding,
        Self::AnotherFragmentIsMade,
        Self::MemoryIsCalledDisk,
        Self::AnswerBeforeStore,
        Self::StoreLosesItsTail,
        Self::HalfABatch,
        Self::ClaimIsBelieved,
        Self::PendingCountsAsPresent,
        Self::SweepIgnoresSessions,
        Self::SweepOfWhatIsYounger,
        Self::SweepIgnoresContainers,
        Self::SetBackUnnoticed,
        Self::ForgottenWithTheLastCopy,
        Self::OneFragmentTooFew,
        Self::EncodingsAddUp,
        Self::FragmentsCountAsCopies,
        Self::FenceIsOpen,
        Self::DeposedAnswers,
        Self::LesserTermObeyed,
        Self::UsersMayAll,
        Self::SessionsAreForAll,
        Self::PermitsAreNotAsked,
        Self::NameLeftOut,
        Self::ToldBeforeCommitted,
        Self::RepeatedUnderAnotherName,
        Self::MembersGoBeforeTheyMoved,
        Self::DamagedBytesAreServed,
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

    /// Removes the chunks that containers alone need.
    pub fn let_containers_go(&mut self) {
        let roots = self.roots().into_iter().map(|(_, root)| root);
        let (packed, own): (Vec<_>, Vec<_>) = roots.partition(MapRoot::is_in_container);
        self.let_go_of(&packed, &own);
    }

    /// Removes what `roots` need and `others` don't.
    pub fn let_go_of(&mut self, roots: &[MapRoot], others: &[MapRoot]) {
        let needed = |roots: &[MapRoot]| roots.iter().flat_map(named_by).collect::<BTreeSet<Number>>();
        let go: BTreeSet<Number> = needed(roots).difference(&needed(others)).copied().collect();
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
