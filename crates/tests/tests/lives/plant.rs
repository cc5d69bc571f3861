//! Mistakes that are made on purpose, each of which some life must find.

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
    /// Nobody compares the manager's store with what benefactors remember.
    SetBackUnnoticed,
    /// A benefactor is forgotten that alone holds chunks.
    ForgottenWithTheLastCopy,

    // --- in clients
    /// A client leaves out a chunk when it tells which ones its version names.
    NameLeftOut,
    /// A client tells its application that a file is stored when it has asked for the commit.
    ToldBeforeCommitted,
    /// A change is repeated under another identity when its answer is lost.
    RepeatedUnderAnotherName,
    /// A reader hands out bytes that don't match their name.
    DamagedBytesAreServed,
}

impl Plant {
    pub const ALL: [Self; 29] = [
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
        Self::AnswerBeforeStore,
        Self::StoreLosesItsTail,
        Self::HalfABatch,
        Self::ClaimIsBelieved,
        Self::PendingCountsAsPresent,
        Self::SweepIgnoresSessions,
        Self::SweepOfWhatIsYounger,
        Self::SetBackUnnoticed,
        Self::ForgottenWithTheLastCopy,
        Self::NameLeftOut,
        Self::ToldBeforeCommitted,
        Self::RepeatedUnderAnotherName,
        Self::DamagedBytesAreServed,
    ];
}
