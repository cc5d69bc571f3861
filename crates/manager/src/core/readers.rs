//! Which versions clients go on reading: soft state that they keep alive, as their sessions.
//!
//! | event | the version of a session |
//! |---|---|
//! | a client opens it | is read by that client |
//! | the client tells what it reads, without it | is read no more, unless it was opened within [`OPENED_MS`]: the two may have overtaken each other |
//! | nothing is told of it for [`TOLD_MS`] | is read no more: it was closed before the client told anything |
//! | the client leaves, or is silent for a lease | is read no more |
//! | the manager starts anew | is read once the client tells |
//!
//! Each member has its share of what is remembered ([`stdchk_model::shares`]); what it opens beyond that isn't waited for.

use std::collections::HashMap;

use stdchk_model::message::handshake::MemberId;
use stdchk_model::shares::{Payer, Shares};
use stdchk_model::{ClientId, SessionId};

/// Time in which a message that says what is read may be older than an opening, milliseconds.
const OPENED_MS: u64 = 10_000;
/// Time after which whoever reads on has told so, milliseconds: some signs of life.
const TOLD_MS: u64 = 30_000;
/// Most versions that are known to be read, of all clients.
const READ_MAX: u64 = 1 << 20;

/// A client, and the member of the pool that speaks for it.
type Who = (Option<MemberId>, ClientId);

/// The clients that read.
#[derive(Debug)]
pub(super) struct Readers {
    clients: HashMap<Who, Reader>,
    /// How many clients read the version of each session.
    by_session: HashMap<SessionId, u32>,
    /// Versions that are read, and the clients.
    shares: Shares,
    tidied_ms: u64,
}

#[derive(Debug, Default)]
struct Reader {
    heard_ms: u64,
    /// When each was opened last, milliseconds of the manager's life; `None`: it was told since.
    sessions: HashMap<SessionId, Option<u64>>,
}

impl Default for Readers {
    fn default() -> Self {
        let (clients, by_session) = (HashMap::new(), HashMap::new());
        Self { clients, by_session, shares: Shares::new(READ_MAX), tidied_ms: 0 }
    }
}

fn payer((member, _): Who) -> Payer {
    Payer { member, user: None }
}

impl Readers {
    /// A client has opened the version that a session committed.
    pub fn opens(&mut self, who: Who, session: SessionId, now_ms: u64) {
        if self.hears(who, now_ms) {
            self.add(who, session, Some(now_ms));
        }
    }

    /// A client tells what it reads.
    pub fn reads(&mut self, who: Who, sessions: Vec<SessionId>, now_ms: u64) {
        if !self.hears(who, now_ms) {
            return;
        }
        self.forget(who, |opened_ms| opened_ms.is_none_or(|opened_ms| now_ms - opened_ms >= OPENED_MS));
        for session in sessions {
            self.add(who, session, None);
        }
    }

    /// Whether the client is known; then it was heard now.
    fn hears(&mut self, who: Who, now_ms: u64) -> bool {
        if !self.clients.contains_key(&who) {
            if !self.shares.may_take(payer(who), 1) {
                return false;
            }
            self.shares.take(payer(who), 1);
        }
        self.clients.entry(who).or_default().heard_ms = now_ms;
        true
    }

    fn add(&mut self, who: Who, session: SessionId, opened_ms: Option<u64>) {
        let may_take = self.shares.may_take(payer(who), 1);
        let Some(reader) = self.clients.get_mut(&who) else { return };
        match reader.sessions.get_mut(&session) {
            Some(known) => *known = opened_ms,
            None if may_take => {
                reader.sessions.insert(session, opened_ms);
                self.shares.take(payer(who), 1);
                *self.by_session.entry(session).or_default() += 1;
            }
            None => {}
        }
    }

    /// Forgets some of what a client reads.
    fn forget(&mut self, who: Who, is_over: impl Fn(&Option<u64>) -> bool) {
        let Some(reader) = self.clients.get_mut(&who) else { return };
        for (session, _) in reader.sessions.extract_if(|_, opened_ms| is_over(opened_ms)) {
            self.shares.give_back(payer(who), 1);
            if let Some(count) = self.by_session.get_mut(&session) {
                *count -= 1;
                if *count == 0 {
                    self.by_session.remove(&session);
                }
            }
        }
    }

    /// A client reads no more.
    pub fn leave(&mut self, who: Who) {
        self.forget(who, |_| true);
        if self.clients.remove(&who).is_some() {
            self.shares.give_back(payer(who), 1);
        }
    }

    /// Clients that were silent for so long read no more.
    pub fn tick(&mut self, now_ms: u64, lease_ms: u64) {
        if now_ms.saturating_sub(self.tidied_ms) < OPENED_MS.min(lease_ms) {
            return;
        }
        self.tidied_ms = now_ms;
        let all: Vec<(Who, u64)> = self.clients.iter().map(|(who, reader)| (*who, reader.heard_ms)).collect();
        for (who, heard_ms) in all {
            match now_ms.saturating_sub(heard_ms) < lease_ms {
                true => self.forget(who, |opened_ms| {
                    opened_ms.is_some_and(|opened_ms| now_ms - opened_ms >= TOLD_MS)
                }),
                false => self.leave(who),
            }
        }
    }

    /// Whether somebody reads the version that a session committed.
    pub fn is_read(&self, session: SessionId) -> bool {
        self.by_session.contains_key(&session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_closed_before_anything_was_told_and_what_members_make_up_is_forgotten() {
        let mut readers = Readers::default();
        let session = |number: u32| SessionId(u128::from(number).to_be_bytes());
        let who = |number: u8| (Some(MemberId([number; 16])), ClientId([number; 16]));
        readers.opens(who(1), session(1), 1_000);
        readers.reads(who(1), vec![session(2)], 8_000);
        readers.tick(20_000, 30_000);
        assert!(readers.is_read(session(1)) && readers.is_read(session(2)));
        readers.tick(33_000, 30_000);
        assert!(!readers.is_read(session(1)) && readers.is_read(session(2)));
        readers.leave(who(2));
        assert!(readers.is_read(session(2)), "another member says so");
        let made_up = |from: u32| (from..from + 65_536).map(session).collect::<Vec<_>>();
        for round in 0..20 {
            let name = (Some(MemberId([9; 16])), ClientId([round; 16]));
            readers.reads(name, made_up((u32::from(round) + 1) << 20), 34_000);
        }
        assert!(readers.by_session.len() as u64 <= READ_MAX / 2 + 1, "{}", readers.by_session.len());
        readers.opens(who(3), session(3), 34_000);
        assert!(readers.is_read(session(3)), "others find room");
        readers.tick(90_000, 30_000);
        assert!(readers.clients.is_empty() && readers.by_session.is_empty());
        assert_eq!(readers.shares.free(), READ_MAX);
    }
}
