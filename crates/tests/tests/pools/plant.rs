//! Mistakes that are made on purpose, outside of the product, to see that lives find them.

/// One of them, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    Nothing,
    /// A benefactor that is killed has what it had when it started: it called blocks durable that weren't.
    DiskForgets,
    /// A manager that is killed has the store that it had when it started.
    StoreIsSetBack,
    /// What a client has closed in its spool goes with it.
    SpoolIsLost,
    /// A client says that it has stored what it could not store.
    ToldBeforeStored,
    /// Two benefactors lose their disks at once.
    TwoDisksAreLost,
    /// Benefactors that keep blocks in memory say that they have disks.
    MemoryIsCalledDisk,
    /// A benefactor and the manager don't hear each other any more, for ever.
    NeverJoined,
}

impl Plant {
    /// All of them, and the life from which on each is looked for: one that is known to find it.
    pub const ALL: [(Self, u64); 7] = [
        (Self::DiskForgets, 0),
        (Self::StoreIsSetBack, 0),
        (Self::SpoolIsLost, 10),
        (Self::ToldBeforeStored, 12),
        (Self::TwoDisksAreLost, 3),
        (Self::MemoryIsCalledDisk, 20),
        (Self::NeverJoined, 0),
    ];
}
