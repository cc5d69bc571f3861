//! Hosts that have joined, and the tokens with which they did: one truth for all managers of the pool, since it is in their store.
//!
//! A token itself is written down nowhere. The keys of the hosts that joined with it are, until the token is over. A host that asks
//! again with the same key is answered again, and costs no second use; once as many hosts have joined as the token is for, all others are
//! refused, whichever manager leads.
//!
//! A store that is put back has forgotten uses. So no token counts that was made before, once a store is known to be put back. A manager
//! whose benefactors have yet to say whether they remember more than its store takes only tokens that were made since it started.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::message::handshake::{Grant, MemberId, TokenId};
use stdchk_model::message::manager::{ManagerReply, MemberInfo};
use stdchk_model::{ErrorCode, Failure, Maker, cbor};

use super::{Answer, Core, Now, unavailable};
use crate::record::{LAYOUT, MemberRecord, TokenRecord, TokensFromRecord, decode};
use crate::store::{Batch, StoreError, Table};

/// Key of the record that says from when on tokens count.
pub(crate) const TOKENS_FROM_KEY: &[u8] = b"from";
/// Nanoseconds of a second.
const SECOND: i64 = 1_000_000_000;

/// A host that shows a token and has proven it.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// The token.
    pub grant: Grant,
    /// As what it is known from now on: by its key.
    pub id: MemberId,
    /// What its host calls itself.
    pub host: String,
    /// Where it calls from, for the log.
    pub address: String,
}

/// Members of the pool, and tokens that were used.
#[derive(Debug, Default)]
pub struct Members {
    all: BTreeMap<MemberId, MemberRecord>,
    tokens: BTreeMap<TokenId, TokenRecord>,
    /// Tokens that were made before this second count no more.
    tokens_from: u64,
    /// Nor do those that end at this second or before, also if the calendar is set back.
    over: u64,
    /// The second in which this manager started.
    started: u64,
    /// What is to be stored with the next commit.
    changed: (BTreeSet<MemberId>, BTreeSet<TokenId>, bool),
}

impl Members {
    /// The manager starts.
    pub fn begin(&mut self, now: Now) {
        self.started = second(now.wall);
    }

    /// Takes in a stored member.
    pub fn load_member(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let id = <[u8; 16]>::try_from(key).map_err(|error| StoreError::new("reading a key", error))?;
        self.all.insert(MemberId(id), decode(bytes, "a member")?);
        Ok(())
    }

    /// Takes in what is stored of tokens.
    pub fn load_token(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        if key == TOKENS_FROM_KEY {
            let TokensFromRecord { from, over, .. } = decode(bytes, "the first token that counts")?;
            (self.tokens_from, self.over) = (from, over);
            return Ok(());
        }
        let id = <[u8; 8]>::try_from(key).map_err(|error| StoreError::new("reading a key", error))?;
        self.tokens.insert(TokenId(id), decode(bytes, "a token that was used")?);
        Ok(())
    }

    /// Adds what changed since the last call to `batch`.
    pub fn take_changes(&mut self, batch: &mut Batch) {
        let (members, tokens, from) = std::mem::take(&mut self.changed);
        for id in members {
            if let Some(record) = self.all.get(&id) {
                batch.put(Table::Member, &id.0, cbor::encode(record));
            }
        }
        for id in tokens {
            match self.tokens.get(&id) {
                Some(record) => batch.put(Table::Token, &id.0, cbor::encode(record)),
                None => batch.remove(Table::Token, &id.0),
            }
        }
        if from {
            batch.put(Table::Token, TOKENS_FROM_KEY, tokens_from(self.tokens_from, self.over));
        }
    }

    /// Uses of tokens may be forgotten: those that were made before this moment count no more.
    pub fn forget_tokens(&mut self, now: i64) {
        self.tokens_from = self.tokens_from.max(second(now));
        self.changed.2 = true;
    }

    /// The user for whom a maker's certificates are, if they are for one, and what the hosts call themselves that have them.
    pub fn of_maker(&self, maker: Maker) -> (Option<u32>, Vec<String>) {
        let uid = |member: &MemberRecord| member.user.as_ref().map(|user| user.uid);
        let own = || self.all.iter().filter(|(id, member)| Maker::of(**id, uid(member)) == maker);
        let hosts: BTreeSet<String> = own().map(|(_, member)| member.host.clone()).collect();
        (own().find_map(|(_, member)| uid(member)), hosts.into_iter().collect())
    }

    /// The name of a member's host, as the host says it; empty for a member that the store doesn't know.
    pub fn host(&self, id: &MemberId) -> String {
        self.all.get(id).map(|member| member.host.clone()).unwrap_or_default()
    }

    /// Tokens that are over open nothing, whether or not they were used.
    fn drop_old(&mut self, now: u64) {
        let old = |(_, token): &(&TokenId, &TokenRecord)| token.end <= now;
        let old: Vec<(TokenId, u64)> =
            self.tokens.iter().filter(old).map(|(id, token)| (*id, token.end)).collect();
        for (id, end) in old {
            self.tokens.remove(&id);
            self.over = self.over.max(end);
            self.changed.1.insert(id);
            self.changed.2 = true;
        }
    }
}

/// The record that says from when on tokens count.
pub(crate) fn tokens_from(from: u64, over: u64) -> Vec<u8> {
    cbor::encode(&TokensFromRecord { layout: LAYOUT, from, over })
}

/// The second of a time; 0 for one before 1970.
pub(crate) fn second(time: i64) -> u64 {
    u64::try_from(time / SECOND).unwrap_or(0)
}

fn refuse(message: &str) -> Failure {
    Failure::new(ErrorCode::Denied, message)
        .then("ask for a new one: `stdchk pool token`, at the manager's machine")
}

fn used_up(uses: u32) -> String {
    match uses {
        1 => "the token was used before: it is good for one host".to_owned(),
        uses => format!("the token is used up: it is good for {uses} hosts, and as many have joined with it"),
    }
}

impl Core {
    /// Makes a host a member, if its token is good and not used up. It counts once that is durable.
    pub fn admit(&mut self, new: NewMember, now: Now) -> Answer {
        let NewMember { id, host, address, .. } = new.clone();
        let admitted = self.admit_quietly(new, now);
        match &admitted {
            Ok(_) => tracing::info!(%id, host, address, "a host has joined"),
            Err(failure) => tracing::warn!(%id, host, address, %failure, "a host is not let join"),
        }
        admitted
    }

    fn admit_quietly(&mut self, new: NewMember, now: Now) -> Answer {
        self.set_clock(now);
        self.history.check()?;
        let NewMember { grant, id, host, .. } = new;
        // Where the calendar was set back, what was over stays so.
        let time = second(self.namespace.position.max(now.wall)).max(self.members.over);
        if grant.end <= time {
            let ago = time.saturating_sub(grant.end).div_ceil(60);
            return Err(refuse(&format!("the token is too old: it expired {ago} min ago")));
        }
        if self.shut_out.contains(&id) {
            return Err(Failure::new(ErrorCode::Denied, "these keys were revoked")
                .then("join with new ones: remove the folder of the old ones first"));
        }
        if let Some(used) = self.members.tokens.get(&grant.token) {
            if used.used_by.contains(&id) {
                return Ok(ManagerReply::Done);
            }
            if used.used_by.len() as u64 >= u64::from(grant.uses) {
                return Err(refuse(&used_up(grant.uses)));
            }
        }
        if grant.made < self.members.tokens_from {
            return Err(refuse("the token was made before the manager's store was put back"));
        }
        if grant.made < self.members.started && self.registry.is_pending() {
            let what = "benefactors have yet to say whether this manager's store is as it was when the token was made";
            return Err(unavailable(what).then("try again in half a minute, or ask for a new token"));
        }
        self.members.drop_old(time);
        let Grant { token, roles, end, user, uses, .. } = grant;
        let joined = self.namespace.clock;
        self.members.all.insert(id, MemberRecord { layout: LAYOUT, host, roles, joined, user });
        let unused = TokenRecord { layout: LAYOUT, used_by: BTreeSet::new(), end };
        let record = self.members.tokens.entry(token).or_insert(unused);
        record.used_by.insert(id);
        assert!(record.used_by.len() as u64 <= u64::from(uses), "a token is used no more often than it says");
        self.members.changed.0.insert(id);
        self.members.changed.1.insert(token);
        Ok(ManagerReply::Done)
    }

    /// Who has joined, in the order in which they did. Which benefactors they are, the shell knows.
    pub(super) fn list_members(&self) -> Vec<MemberInfo> {
        let info = |(id, record): (&MemberId, &MemberRecord)| {
            let MemberRecord { host, roles, joined, user, .. } = record.clone();
            let (benefactors, revoked) = (Vec::new(), self.shut_out.contains(id));
            MemberInfo { id: *id, host, roles, joined, benefactors, revoked, user }
        };
        let mut members: Vec<MemberInfo> = self.members.all.iter().map(info).collect();
        members.sort_by_key(|member| (member.joined, member.id));
        members
    }
}
