//! Shares of what a server has but once, such as memory for sessions: nobody takes what others may need.
//!
//! Nobody holds more than what is then still free. So one member alone may hold half of all, each of n members that want more
//! and more holds one part in n + 1 in the end, as much is left free, and who comes new always finds some. Fixed shares would be small for
//! everybody in a pool that may have tens of thousands of members, and nearly all of them would lie idle.
//!
//! A host that is trusted asks for many users. Its users share what the host may still take by the same rule; for itself the host may take
//! all of it. That a host makes up users gains it nothing: together they hold no more than it may. The processes of the manager's own machine
//! are all of one user, or of root, and count as one member.

use std::collections::HashMap;

use crate::message::handshake::MemberId;

/// Who holds something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payer {
    /// Which member of the pool; `None`: the manager's own machine.
    pub member: Option<MemberId>,
    /// The user for whom it was asked, if that was said.
    pub user: Option<u32>,
}

/// What is shared, and who holds how much of it.
#[derive(Debug)]
pub struct Shares {
    all: u64,
    used: u64,
    members: HashMap<Option<MemberId>, Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: u64,
    users: HashMap<u32, u64>,
}

impl Shares {
    /// So much, of which nobody holds anything.
    #[must_use]
    pub fn new(all: u64) -> Self {
        Self { all, used: 0, members: HashMap::new() }
    }

    /// Changes how much there is. Who holds more than its share keeps it.
    pub fn resize(&mut self, all: u64) {
        self.all = all;
    }

    /// What is free.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.all.saturating_sub(self.used)
    }

    /// How much there is.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.all
    }

    /// What one holds.
    #[must_use]
    pub fn held_by(&self, payer: Payer) -> u64 {
        self.members.get(&payer.member).map_or(0, |held| match payer.user {
            Some(user) => held.users.get(&user).copied().unwrap_or(0),
            None => held.all,
        })
    }

    /// Whether one may take so much more.
    #[must_use]
    pub fn may_take(&self, payer: Payer, more: u64) -> bool {
        let free = self.free().saturating_sub(more);
        let member = self.members.get(&payer.member).map_or(0, |held| held.all).saturating_add(more);
        let user = self.held_by(payer).saturating_add(more);
        member <= free && (payer.user.is_none() || user <= (free - member) / 2)
    }

    /// Notes that one holds so much more, whether it may or not: what it holds already changes its form.
    pub fn take(&mut self, payer: Payer, more: u64) {
        if more == 0 {
            return;
        }
        self.used += more;
        let held = self.members.entry(payer.member).or_default();
        held.all += more;
        if let Some(user) = payer.user {
            *held.users.entry(user).or_default() += more;
        }
    }

    /// Takes back what one held.
    ///
    /// # Panics
    /// It holds less: whoever counts has miscounted.
    pub fn give_back(&mut self, payer: Payer, less: u64) {
        if less == 0 {
            return;
        }
        let taken = self.members.get_mut(&payer.member).and_then(|held| {
            held.all = held.all.checked_sub(less)?;
            if let Some(user) = payer.user {
                let of_user = held.users.get_mut(&user)?;
                *of_user = of_user.checked_sub(less)?;
                if *of_user == 0 {
                    held.users.remove(&user);
                }
            }
            Some(held.all)
        });
        assert!(taken.is_some(), "{payer:?} gives back {less}, which it doesn't hold");
        if taken == Some(0) {
            self.members.remove(&payer.member);
        }
        self.used -= less;
        debug_assert_eq!(self.used, self.members.values().map(|held| held.all).sum::<u64>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 1200;

    fn member(number: u8) -> Payer {
        Payer { member: Some(MemberId([number; 16])), user: None }
    }

    /// Takes as much as it may.
    fn fill(shares: &mut Shares, payer: Payer) -> u64 {
        while shares.may_take(payer, 1) {
            shares.take(payer, 1);
        }
        shares.held_by(payer)
    }

    #[test]
    fn one_alone_may_have_half_and_who_comes_new_always_finds_some() {
        let mut shares = Shares::new(ALL);
        assert_eq!(fill(&mut shares, member(1)), ALL / 2);
        assert_eq!(fill(&mut shares, member(2)), ALL / 4);
        assert_eq!(fill(&mut shares, member(3)), ALL / 8);
        assert!(!shares.may_take(member(1), 1) && shares.may_take(member(4), ALL / 16));
        shares.give_back(member(2), ALL / 4);
        assert_eq!((shares.held_by(member(2)), fill(&mut shares, member(3))), (0, (ALL - ALL / 2) / 2));
        shares.resize(10 * ALL);
        assert!(shares.may_take(member(1), ALL));
    }

    #[test]
    fn users_of_a_host_share_what_it_may_take_and_cost_others_nothing() {
        let mut shares = Shares::new(ALL);
        let user = |user| Payer { user: Some(user), ..member(1) };
        assert_eq!(fill(&mut shares, user(7)), ALL / 4);
        assert!(fill(&mut shares, user(8)) >= ALL / 12, "another user of the host finds some");
        for made_up in 0..10_000 {
            fill(&mut shares, user(made_up));
        }
        assert!(shares.held_by(member(1)) <= ALL / 2, "{}", shares.held_by(member(1)));
        assert!(fill(&mut shares, member(2)) >= ALL / 4);
        let held: Vec<(u32, u64)> =
            shares.members[&member(1).member].users.iter().map(|(user, held)| (*user, *held)).collect();
        held.into_iter().for_each(|(of, held)| shares.give_back(user(of), held));
        assert_eq!((shares.members.len(), shares.held_by(member(1))), (1, 0));
    }
}
