//! One member that says anything: a benefactor and a client of its own, with every field of every message absurd, stale, another's or huge.
//! What others have stays, and what they do goes on (docs/design/0703).

use std::collections::BTreeSet;

use proptest::prelude::*;
use stdchk_manager::core::Asker;
use stdchk_model::message::benefactor::{BenefactorLoad, Command};
use stdchk_model::message::handshake::{MemberId, Role};
use stdchk_model::message::manager::{
    BenefactorState, Change, Era, FileKind, ManagerReply, ManagerRequest, Moment, Registration, StoredBlock,
    Term, VersionInfo,
};
use stdchk_model::{
    BenefactorId, BlockId, ErrorCode, Failure, Incarnation, Ino, MomentKey, Signed, User, cbor,
};
use stdchk_tests::lies::{Item, at, lies, places, vectors, write};

use crate::harness::{CLIENT, Pool, chunk, empty_load, make, session, stored};

const LIAR: MemberId = MemberId([66; 16]);
/// The benefactor that lies. The others are 0, 1 and 2.
const NUMBER: u32 = 3;
const HONEST: [u32; 3] = [0, 1, 2];

fn decoded(item: &Item) -> Option<ManagerRequest> {
    let mut bytes = Vec::new();
    write(item, &mut bytes);
    cbor::decode(&bytes).ok()
}

/// One message of each kind that a manager is asked.
fn requests() -> Vec<Item> {
    let all = vectors("ManagerRequest");
    assert!(all.len() > 50 && all.iter().all(|item| decoded(item).is_some()), "{} vectors", all.len());
    all
}

/// What may stand in place of a field.
fn lies_in(item: &Item) -> Vec<Item> {
    let chunks = (1..=4).map(|number| chunk(number).0.to_vec());
    let sessions = [1, 2].map(|number| session(number).0.to_vec());
    let known: Vec<Vec<u8>> = chunks.chain(sessions).chain([CLIENT.0.to_vec(), LIAR.0.to_vec()]).collect();
    lies(item, &known)
}

// --- a pool with a liar

/// What others have, and who lies.
struct World {
    pool: Pool,
    file: Ino,
    before: Vec<VersionInfo>,
    /// The number of the liar's last registration.
    registration: u64,
    /// Honest benefactors that were told to delete chunk 1.
    deleted: BTreeSet<u32>,
    written: u8,
}

fn benefactor() -> Asker {
    Asker { member: Some(LIAR), ..Asker::default() }
}

fn client() -> Asker {
    Asker {
        member: Some(LIAR),
        user: Some(User { uid: 4242, gid: 4242, others: Vec::new() }),
        ..Asker::default()
    }
}

impl World {
    /// Chunk 1 is that of a file of others, at benefactors 0 and 1. The liar has a folder and a file of its own, with session 2.
    fn new() -> Self {
        let mut pool = Pool::with_benefactors(4);
        let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
        let file = pool.make(folder, "file", FileKind::File);
        pool.write(1, file, &[1], &[0, 1]);
        let own = pool.make(Ino::ROOT, "own", FileKind::Directory);
        let its = Change::SetAttr {
            ino: own,
            mode: Some(0o777),
            uid: Some(4242),
            gid: Some(4242),
            atime: None,
            mtime: None,
        };
        pool.change(its).unwrap();
        pool.register_member(NUMBER, LIAR);
        pool.liars.insert(NUMBER);
        let before = pool.versions(file);
        let registration = pool.first_registration(NUMBER);
        let mut world = Self { pool, file, before, registration, deleted: BTreeSet::new(), written: 0 };
        let ManagerReply::Entry(mine) =
            world.pool.change_as(&client(), make(own, "file", FileKind::File)).unwrap()
        else {
            panic!("not a file")
        };
        let open = ManagerRequest::OpenSession {
            session: session(2),
            client: CLIENT,
            ino: mine.ino,
            durability: None,
        };
        world.pool.ask_as(&client(), open).unwrap();
        world
    }

    /// Sends a lie, as far as a server lets it through to the manager's core.
    fn lie(&mut self, request: ManagerRequest) {
        let request = match request {
            ManagerRequest::Register { registration, .. } => {
                registration.introduced(&self.pool.secrets[&NUMBER].clone())
            }
            other => other,
        };
        if request.benefactor().is_some_and(|id| id != BenefactorId(NUMBER)) {
            return;
        }
        let as_benefactor = request.may_be_asked_by(Role::Benefactor);
        if !as_benefactor && !request.may_be_asked_by(Role::Client) {
            return;
        }
        let answer = match request {
            ManagerRequest::Journal { id, registration, has, .. } => {
                self.pool.core.may_follow(id, registration, has.map(|has| has.moment)).map(drop)
            }
            request => {
                let asker = if as_benefactor { benefactor() } else { client() };
                self.answered(&asker, request)
            }
        };
        if let Err(failure) = answer {
            assert_ne!(failure.code, ErrorCode::Internal, "{failure}");
        }
    }

    fn answered(&mut self, asker: &Asker, request: ManagerRequest) -> Result<(), Failure> {
        if let ManagerReply::Registered { id: BenefactorId(NUMBER), registration, .. } =
            self.pool.ask_as(asker, request)?
        {
            self.registration = registration;
        }
        Ok(())
    }

    /// The message as the liar would send it: in its own name, where a server looks at that.
    fn in_its_name(&self, item: &Item) -> Item {
        let mut item = item.clone();
        let Some(request) = decoded(&item) else { return item };
        if request.benefactor().is_some()
            && let Item::List(parts) = &mut item
            && let Some(Item::List(fields)) = parts.get_mut(1)
        {
            fields[0] = Item::Number(u64::from(NUMBER));
            fields[1] = Item::Number(self.registration);
        }
        item
    }

    /// Others show signs of life for a second.
    fn pass(&mut self) {
        self.pool.pass(1_000);
        self.pool.ask(ManagerRequest::KeepAlive(CLIENT)).unwrap();
        for number in HONEST {
            let commands = self.pool.beat(number, &[], &[]);
            let names = |command: &Command| matches!(command, Command::Delete { blocks, .. } if blocks.contains(&BlockId::plain(chunk(1))));
            if commands.iter().any(names) {
                self.deleted.insert(number);
            }
        }
    }

    /// What others have is there, and all that they do goes on.
    fn check(&mut self) {
        assert!(self.pool.status().set_back.is_empty(), "a liar is a witness");
        assert_eq!(self.pool.versions(self.file), self.before);
        assert_eq!(self.deleted, BTreeSet::new(), "a block goes by a liar's word");
        let at: BTreeSet<u32> = self.pool.locate(1).into_iter().collect();
        let left: BTreeSet<u32> =
            [0, 1].into_iter().filter(|number| !self.deleted.contains(number)).collect();
        assert!(at.is_superset(&left), "{at:?}");
    }

    /// Somebody writes a file with one copy, and another one is made.
    fn write(&mut self) {
        self.written += 1;
        let number = 100 + self.written;
        let folder = self.pool.attr("app").unwrap().ino;
        let file = self.pool.make(folder, &format!("{number}"), FileKind::File);
        self.pool.write(number, file, &[u32::from(number)], &[0]);
        let is_copy = |command: &Command| matches!(command, Command::Make(make) if make.chunk == chunk(u32::from(number)));
        for _ in 0..70 {
            self.pool.pass(1_000);
            self.pool.ask(ManagerRequest::KeepAlive(CLIENT)).unwrap();
            let commands = HONEST.map(|number| self.pool.beat(number, &[], &[]));
            if commands.iter().flatten().any(is_copy) {
                return;
            }
        }
        panic!("no copy of a new chunk is ordered: {:?}", self.pool.status());
    }
}

#[test]
fn no_lie_in_any_field_of_any_message_changes_what_others_have_or_stops_what_they_do() {
    let mut lies_told = 0;
    for request in requests() {
        let mut world = World::new();
        for place in places(&request) {
            for lie in lies_in(at(&mut request.clone(), &place)) {
                let mut told = world.in_its_name(&request);
                *at(&mut told, &place) = lie;
                let Some(told) = decoded(&told) else { continue };
                world.lie(told);
                lies_told += 1;
                world.check();
            }
            world.pass();
        }
        world.check();
        world.write();
    }
    assert!(lies_told > 4_000, "{lies_told} lies could be told");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_lies_that_follow_each_other_do_either(
        lies_told in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..4_u8), 1..60),
    ) {
        let (all, mut world) = (requests(), World::new());
        for (request, place, lie, passes) in lies_told {
            let mut told = world.in_its_name(request.get(&all));
            let ways = places(&told);
            let way: &Vec<usize> = place.get(&ways);
            let item = at(&mut told, way);
            let instead = lies_in(item);
            *item = lie.get(&instead).clone();
            if let Some(told) = decoded(&told) {
                world.lie(told);
            }
            (0..passes).for_each(|_| world.pass());
            world.check();
        }
        world.write();
    }
}

// --- what the table of lies found

/// A registration of benefactor 0 with something that it wants to be believed.
fn registration(pool: &Pool, told: impl FnOnce(&mut Registration)) -> ManagerRequest {
    let mut registration = pool.registration(Some(0), pool.last_life(), None);
    told(&mut registration);
    registration.introduced(&pool.secrets[&0])
}

#[test]
fn only_moments_that_the_manager_signed_for_a_benefactor_make_it_a_witness() {
    let moment = Moment { start: 99, commit: 1_000_000 };
    let (own, others) = (Pool::with_benefactors(2).signed(0, moment), Pool::new().signed(1, moment));
    let lies = [Signed::not_yet(moment), others, MomentKey([1; 32]).sign(moment, BenefactorId(0))];
    for lie in lies {
        let mut pool = Pool::with_benefactors(2);
        let request = registration(&pool, |registration| registration.remembered = Some(lie));
        pool.ask(request).unwrap();
        assert!(pool.status().set_back.is_empty());
        pool.register_remembering(Some(0), None);
        let registration_number = pool.registration_in(0, pool.last_life());
        pool.core.may_follow(BenefactorId(0), registration_number, Some(lie)).unwrap();
        assert!(pool.status().set_back.is_empty());
        pool.make(Ino::ROOT, "later", FileKind::Directory);
        let witness = registration(&pool, |registration| registration.remembered = Some(own));
        pool.ask(witness).unwrap();
        assert_eq!(pool.status().set_back, [BenefactorId(0)], "the one that is signed for it");
    }
}

#[test]
fn a_term_that_no_manager_signed_is_not_risen_above() {
    let mut pool = Pool::with_benefactors(1);
    let own = pool.terms[&0];
    for number in [own.number + 1, 1 << 32, u64::MAX] {
        let term = Signed::not_yet(Term { era: Era::FIRST, number, start: 1 });
        let request = registration(&pool, |registration| registration.term = Some(term));
        let ManagerReply::Registered { term, .. } = pool.ask(request).unwrap() else { panic!("no answer") };
        assert_eq!(term.what, own);
    }
}

#[test]
fn a_number_that_no_manager_gave_takes_none_from_those_that_come_later() {
    let mut pool = Pool::with_benefactors(1);
    let ahead = |pool: &Pool, number: u32, signed: bool| {
        let mut registration = pool.registration(Some(number), Incarnation(500), None);
        registration.term =
            signed.then(|| pool.signed(number, Term { era: Era::FIRST, number: 1, start: 1 }));
        registration.introduced(&stdchk_model::message::manager::BenefactorSecret([9; 32]))
    };
    for number in [1, 60_000] {
        let request = ahead(&pool, number, false);
        pool.ask(request).unwrap();
    }
    let request = ahead(&pool, 70_000, false);
    assert_eq!(pool.ask(request).unwrap_err().code, ErrorCode::Invalid);
    assert_eq!(pool.register_only(None), BenefactorId(2), "the first that nobody has");
    // One that a manager gave, by a store that was newer.
    let request = ahead(&pool, 80_000, true);
    pool.ask(request).unwrap();
    pool.restart();
    assert_eq!(pool.register_only(None), BenefactorId(80_001));
}

#[test]
fn a_host_whose_benefactors_begin_new_lives_again_and_again_stops_no_repair() {
    let mut world = World::new();
    let mut known = 0;
    for second in 0..600_u64 {
        // Just before it would be overdue, it tells that it has nothing, and begins another life.
        if second % 25 == 0 {
            let life = Incarnation(1_000 + second);
            let register = world.pool.registration(Some(NUMBER), life, None);
            world.lie(ManagerRequest::Register { registration: register, secret: None, proof: [0; 32] });
        }
        if second % 25 == 24 {
            let (id, registration) = (BenefactorId(NUMBER), world.registration);
            world.lie(ManagerRequest::BeginInventory { id, registration });
            world.lie(ManagerRequest::Inventory {
                id,
                registration,
                last: true,
                blocks: Vec::new(),
                put_sequence: 0,
            });
        }
        world.pass();
        known += u32::from(!world.pool.status().counting);
    }
    assert!(known > 500, "for {known} of 600 s it is known what others have");
}

#[test]
fn one_that_says_that_chunks_are_huge_or_tiny_keeps_nobody_from_copying_them() {
    let block = |plain_length, stored_length| StoredBlock {
        block: BlockId::plain(chunk(1)),
        plain_length,
        stored_length,
    };
    for absurd in [block(0, 1), block(u32::MAX, 1), block(1, u32::MAX), block((4 << 20) + 1, 1)] {
        let mut world = World::new();
        let told = heartbeat(&world, vec![absurd], Vec::new());
        world.pool.ask_as(&benefactor(), told).unwrap();
        assert_eq!(world.pool.locate(1), [0, 1], "it is left out");
        let (_, receipt) = world.pool.receipt_of(NUMBER, vec![absurd]);
        let receipts = vec![(BenefactorId(NUMBER), receipt)];
        let told = ManagerRequest::Receipts { session: session(2), receipts };
        assert_eq!(world.pool.ask_as(&client(), told).unwrap_err().code, ErrorCode::Invalid);
    }
    // Benefactor 2 has room for what the chunk has, or not, as it is and not as the liar says.
    for (lie, free_bytes, is_copied) in [(4 << 20, 5 << 20, true), (1, 12_800, false), (1, 14 << 10, true)] {
        let mut world = World::new();
        let told = heartbeat(&world, vec![block(lie, 1)], Vec::new());
        world.pool.ask_as(&benefactor(), told).unwrap();
        // It has let go of it, and so has one of the others.
        let told = heartbeat(&world, Vec::new(), vec![BlockId::plain(chunk(1))]);
        world.pool.ask_as(&benefactor(), told).unwrap();
        world.pool.beat_with(2, BenefactorLoad { free_bytes, ..empty_load() });
        world.pool.beat(1, &[], &[1]);
        world.pool.beat_with_free(1, 0);
        world.pool.pass(1_000);
        let commands = world.pool.beat(0, &[], &[]);
        let is_order = |command: &Command| matches!(command, Command::Make(_));
        assert_eq!(commands.iter().any(is_order), is_copied, "{lie}: {commands:?}");
    }
}

/// A heartbeat of the liar.
fn heartbeat(world: &World, added: Vec<StoredBlock>, removed: Vec<BlockId>) -> ManagerRequest {
    ManagerRequest::Heartbeat {
        id: BenefactorId(NUMBER),
        registration: world.registration,
        load: BenefactorLoad { free_bytes: 0, ..empty_load() },
        durable_sequence: 0,
        added,
        removed,
        damaged: u32::MAX,
        copies_failed: Vec::new(),
        put_sequence: 0,
        decoded: Vec::new(),
        seen: Vec::new(),
        disk: None,
    }
}

#[test]
fn what_one_says_is_damaged_counts_as_far_as_it_says_what() {
    let mut world = World::new();
    let told = heartbeat(&world, vec![stored(9)], vec![BlockId::plain(chunk(1))]);
    world.pool.ask_as(&benefactor(), told).unwrap();
    assert_eq!(world.pool.status().damaged_found, 1);
    assert_eq!(world.pool.locate(1), [0, 1]);
    let online = world.pool.status().benefactors.iter().all(|one| one.state == BenefactorState::Online);
    assert!(online);
}

/// Benefactors that are told to delete chunk 1 while time passes, and 1 is the fullest of them.
fn told_to_delete(pool: &mut Pool, all: u32) -> BTreeSet<u32> {
    let mut deleted = BTreeSet::new();
    for second in 0..100 {
        pool.pass(1_000);
        pool.ask(ManagerRequest::KeepAlive(CLIENT)).unwrap();
        for number in 0..all {
            let commands = match number {
                1 => pool.beat_with_free(number, 1 << 20),
                _ => pool.beat(number, &[], &[]),
            };
            let is_it = |command: &Command| matches!(command, Command::Delete { blocks, .. } if blocks.contains(&BlockId::plain(chunk(1))));
            if commands.iter().any(is_it) {
                deleted.insert(number);
            }
        }
        // Before, somebody may come back with a session.
        if second > 70 {
            pool.collect().unwrap();
        }
    }
    deleted
}

/// A pool whose chunk 1 is at benefactors 0 and 1, and what more of its benefactors are of one member.
fn with_many_of_one_member(more: u32) -> Pool {
    let mut pool = Pool::with_benefactors(2 + more);
    let file = pool.make(Ino::ROOT, "file", FileKind::File);
    pool.write(1, file, &[1], &[0, 1]);
    for number in 2..2 + more {
        pool.register_member(number, LIAR);
    }
    pool
}

#[test]
fn the_claims_of_one_member_take_the_place_of_no_blocks_of_others() {
    for more in 2..5 {
        let mut pool = with_many_of_one_member(more);
        for number in 2..2 + more {
            pool.beat(number, &[1], &[]);
        }
        pool.liars.extend(2..2 + more);
        let deleted = told_to_delete(&mut pool, 2 + more);
        assert!(deleted.iter().all(|number| *number >= 2), "with {more} claims: {deleted:?}");
    }
    let mut pool = with_many_of_one_member(1);
    pool.beat(2, &[1], &[]);
    pool.liars.insert(2);
    let deleted = told_to_delete(&mut pool, 3);
    assert!(deleted.iter().all(|number| *number == 2), "with one claim: {deleted:?}");
}

#[test]
fn what_members_bring_beyond_what_was_wanted_goes_before_what_was_there() {
    let mut pool = Pool::with_benefactors(5);
    let file = pool.make(Ino::ROOT, "file", FileKind::File);
    let owner = |number: u8| MemberId([number; 16]);
    // Each benefactor is a member of its own; the last three fetch what the first two have, and prove it.
    for number in 0..5 {
        pool.register_member(number, owner(u8::try_from(number).unwrap()));
    }
    pool.write(1, file, &[1], &[0, 1]);
    for number in 2..5 {
        pool.beat(number, &[1], &[]);
    }
    let deleted = told_to_delete(&mut pool, 5);
    assert_eq!(deleted, BTreeSet::from([2, 3, 4]));
}

#[test]
fn a_claim_that_is_taken_back_and_made_again_is_doubted_at_once() {
    let mut pool = Pool::with_benefactors(3);
    pool.register_member(2, LIAR);
    pool.liars.insert(2);
    // Before anybody wants it: so it isn't the first to go.
    pool.beat(2, &[1], &[]);
    let file = pool.make(Ino::ROOT, "file", FileKind::File);
    pool.write(1, file, &[1], &[0, 1]);
    assert_eq!(told_to_delete(&mut pool, 3), BTreeSet::from([2]));
    let asked = |pool: &Pool, at: u32| pool.looks.get(&(BenefactorId(at), BlockId::plain(chunk(1)))).copied();
    let before = [0, 1].map(|at| asked(&pool, at));
    assert!(before.iter().any(Option::is_some), "a holder has missed it: {before:?}");
    let of_liar = asked(&pool, 2);
    pool.beat(2, &[], &[1]);
    pool.beat(2, &[1], &[]);
    assert_eq!(told_to_delete(&mut pool, 3), BTreeSet::from([2]));
    assert!(asked(&pool, 2) > of_liar, "it has seen the others anew");
    assert_eq!([0, 1].map(|at| asked(&pool, at)), before, "nobody has to miss it twice more");
}

#[test]
fn copies_of_one_member_go_before_the_one_of_another() {
    let mut pool = with_many_of_one_member(2);
    // The others have only one, in whatever order the benefactors are full.
    pool.beat(0, &[], &[1]);
    for number in [2, 3] {
        pool.beat(number, &[1], &[]);
    }
    let deleted = told_to_delete(&mut pool, 4);
    assert!(deleted.len() == 1 && deleted.is_subset(&BTreeSet::from([2, 3])), "{deleted:?}");
}

#[test]
fn two_copies_of_one_member_stay_before_what_others_bring_later() {
    let mut pool = Pool::with_benefactors(4);
    for (number, owner) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
        pool.register_member(number, MemberId([owner; 16]));
    }
    let file = pool.make(Ino::ROOT, "file", FileKind::File);
    pool.write(1, file, &[1], &[0, 1]);
    for number in [2, 3] {
        pool.beat(number, &[1], &[]);
    }
    let deleted = told_to_delete(&mut pool, 4);
    assert!(deleted.is_subset(&BTreeSet::from([2, 3])) || deleted.len() == 2, "{deleted:?}");
    assert!(pool.locate(1).iter().any(|at| *at < 2), "one of the first stays");
}

#[test]
fn a_benefactor_that_starts_again_keeps_its_place_before_what_came_meanwhile() {
    for wanted in [1, 2] {
        let mut pool = Pool::with_benefactors(4);
        let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
        let pairs = vec![("redundancy".to_owned(), format!("replicate:{wanted}"))];
        pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
        let file = pool.make(folder, "file", FileKind::File);
        let first: Vec<u32> = (0..wanted).collect();
        pool.write(1, file, &[1], &first);
        for number in 0..wanted {
            // What it has is not known for a moment; then another one says that it has it, too.
            pool.register_as(Some(number), Incarnation(77), None);
            while pool.core.work(pool.now) {}
            pool.beat(2 + number, &[1], &[]);
            pool.inventory_as(number, Incarnation(77), &[1]).unwrap();
            while pool.core.work(pool.now) {}
            pool.goes_on_as(number, Incarnation(77));
        }
        let deleted = told_to_delete(&mut pool, 4);
        assert!(deleted.iter().all(|number| *number >= 2), "{wanted} wanted: {deleted:?}");
    }
}
