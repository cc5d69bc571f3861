//! Members that were shut out: their keys are accepted no more, for ever, whichever manager leads and whatever its folder knows.

use std::collections::BTreeSet;

use stdchk_model::cbor;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::ManagerReply;

use super::{Answer, Core, Now};
use crate::record::{LAYOUT, ShutOutRecord, decode};
use crate::store::{Batch, StoreError, Table};

/// Who was shut out.
#[derive(Debug, Default)]
pub struct ShutOut {
    all: BTreeSet<MemberId>,
    /// Those who are to be stored with the next commit.
    new: BTreeSet<MemberId>,
}

impl ShutOut {
    /// Takes in a stored one.
    pub fn load(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let member = <[u8; 16]>::try_from(key).map_err(|error| StoreError::new("reading a key", error))?;
        let ShutOutRecord { .. } = decode(bytes, "a member that was shut out")?;
        self.all.insert(MemberId(member));
        Ok(())
    }

    /// Adds what changed since the last call to `batch`.
    pub fn take_changes(&mut self, batch: &mut Batch) {
        for member in std::mem::take(&mut self.new) {
            batch.put(Table::ShutOut, &member.0, cbor::encode(&ShutOutRecord { layout: LAYOUT }));
        }
    }

    /// Whether a member was.
    pub fn contains(&self, member: &MemberId) -> bool {
        self.all.contains(member)
    }

    /// Adds a member.
    pub fn insert(&mut self, member: MemberId) {
        if self.all.insert(member) {
            self.new.insert(member);
        }
    }
}

impl Core {
    /// Who was shut out, by this manager and those before it.
    pub fn shut_out(&self) -> Vec<MemberId> {
        self.shut_out.all.iter().copied().collect()
    }

    /// Takes in who was shut out as the authority's folder knows.
    pub fn hear_shut_out(&mut self, members: &[MemberId]) {
        members.iter().for_each(|member| self.shut_out.insert(*member));
    }

    /// From now on nothing counts of what the member's benefactors have: whoever is told after this that something is stored has it elsewhere.
    pub(super) fn revoke(&mut self, member: MemberId, now: Now) -> Answer {
        let host = self.members.host(&member);
        tracing::warn!(%member, host, "the keys of a member are revoked: its host is shut out");
        self.shut_out.insert(member);
        self.registry.shut_out(member);
        self.update_states(now);
        Ok(ManagerReply::Done)
    }
}
