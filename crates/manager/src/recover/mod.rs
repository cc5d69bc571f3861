//! A manager that lost its disk is made anew from the journals that benefactors keep.
//!
//! Each journal is read whole and opened with the pool's key, piece by piece; it counts up to the first piece that is damaged, missing or
//! not the manager's. [`agree`] decides which is taken, and up to where. The records of its base and its commits make a store, with the
//! number of its last commit: a start of the manager on it goes on from there, and benefactors that remember more say so ([`crate::core`]'s
//! history).

mod agree;

use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::path::Path;

use stdchk_model::BenefactorId;
use stdchk_model::journal::{self, Journal, Piece};
use stdchk_model::message::manager::Moment;
use stdchk_net::own::{self, Access};

pub use self::agree::{Agreed, Vouched, agree};
use crate::backup::NewStore;
use crate::journal::{KEEPERS, Sealer, may_be_kept};
use crate::record::{BenefactorRecord, decode};
use crate::store::{Batch, StoreError, Table};

/// Why a journal says nothing.
#[derive(Debug, thiserror::Error)]
pub enum Silent {
    /// It can't be read.
    #[error("its journal can't be read: {0}")]
    Unreadable(#[from] io::Error),
    /// There is none, or no whole base in it.
    #[error("it has no journal that is whole")]
    Nothing,
    /// It doesn't open.
    #[error("its journal doesn't open with this pool's key")]
    OtherKey,
}

/// What the journal in the file at `path` vouches for.
///
/// # Errors
/// It says nothing.
pub fn read(path: &Path, sealer: &Sealer, benefactor: BenefactorId) -> Result<Vouched, Silent> {
    let (mut opened, mut keepers, mut rest) = (Journal::default(), BTreeMap::new(), Vec::new());
    let mut other_key = false;
    each_piece(path, |piece| {
        let mut followed = opened.clone();
        if followed.follow(&piece).is_err() {
            return false;
        }
        let Some(bytes) = sealer.open(piece) else {
            other_key = opened == Journal::Empty;
            return false;
        };
        opened = followed;
        rest.extend(bytes);
        let (batch, left) = Batch::decode_front(&rest);
        note_keepers(&batch, &mut keepers);
        rest = left.to_vec();
        true
    })?;
    match opened.reach() {
        None if other_key => Err(Silent::OtherKey),
        None => Err(Silent::Nothing),
        Some(_) => {
            let named = || keepers.iter().take(KEEPERS);
            let address = |(id, address): (&BenefactorId, &Option<String>)| Some((*id, address.clone()?));
            let addresses = named().filter_map(address).collect();
            let keepers = named().map(|(id, _)| *id).collect();
            Ok(Vouched { benefactor, journal: opened, keepers, addresses })
        }
    }
}

/// Takes note of the keepers that a commit names, each with where it served if its record can be read.
fn note_keepers(batch: &Batch, keepers: &mut BTreeMap<BenefactorId, Option<String>>) {
    for (key, record) in batch.changes() {
        let Some((&table, number)) = key.split_first() else { continue };
        if let Ok(number) = <[u8; 4]>::try_from(number)
            && table == Table::Benefactor as u8
        {
            let id = BenefactorId(u32::from_be_bytes(number));
            // One whose record can't be read is waited for: fewer are believed without it.
            let read =
                record.as_deref().map(|record| decode::<BenefactorRecord>(record, "a benefactor").ok());
            match read {
                Some(Some(one)) if may_be_kept(one.tier) => drop(keepers.insert(id, Some(one.address))),
                Some(None) => drop(keepers.insert(id, None)),
                Some(Some(_)) | None => drop(keepers.remove(&id)),
            }
        }
    }
}

/// Makes a store in the manager's folder `directory`, which has none, of the journal at `path` up to the moment `end`.
///
/// # Errors
/// The disk refuses, or the journal isn't what [`read`] has read.
pub fn rebuild(path: &Path, sealer: &Sealer, directory: &Path, end: Moment) -> Result<(), StoreError> {
    let failed = |cause: &dyn std::fmt::Display| {
        StoreError::new(format!("making a store of the journal {}", path.display()), cause)
    };
    let mut store = NewStore::begin(directory)?;
    let (mut journal, mut taken) = (Journal::default(), Ok(()));
    each_piece(path, |piece| {
        let has_end = journal.reach().is_some_and(|reach| reach.moment.what == end);
        if has_end || journal.follow(&piece).is_err() {
            return false;
        }
        let Some(bytes) = sealer.open(piece) else { return false };
        taken = store.take(&bytes);
        taken.is_ok()
    })
    .map_err(|error| failed(&error))?;
    taken?;
    match journal.reach() {
        Some(reach) if reach.moment.what == end => {
            let era = getrandom::u64().map_err(|error| failed(&error))?;
            store.finish_in_new_era(end.commit, era)
        }
        _ => Err(failed(&"it changed while it was read")),
    }
}

/// Hands the pieces in a file to `visit`, in order, until it wants no more of them.
fn each_piece(path: &Path, mut visit: impl FnMut(Piece) -> bool) -> io::Result<()> {
    let mut reader = match own::file(path, Access::Read) {
        Ok(file) => BufReader::with_capacity(1 << 20, file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    while let Some((piece, _)) = journal::next(&mut reader)? {
        if !visit(piece) {
            break;
        }
    }
    Ok(())
}
