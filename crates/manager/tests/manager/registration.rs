//! Who may register as which benefactor.

use crate::harness::Pool;
use stdchk_manager::core::Asker;
use stdchk_model::limits::{BENEFACTORS_OF_MEMBER_MAX, CAUSE_BYTES_MAX};
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{
    BenefactorSecret, BenefactorState, Era, ManagerReply, ManagerRequest, Term,
};
use stdchk_model::{BenefactorId, ErrorCode, Incarnation};

const OTHER: BenefactorSecret = BenefactorSecret([0xbb; 32]);

/// A registration as benefactor 0 in a life that nobody has had, without anything that a manager has signed for that number.
fn registration(pool: &Pool, life: u64) -> stdchk_model::message::manager::Registration {
    let own = pool.registration(Some(0), Incarnation(life), None);
    stdchk_model::message::manager::Registration { term: None, ..own }
}

fn refused(pool: &mut Pool, request: ManagerRequest) -> ErrorCode {
    pool.ask(request).unwrap_err().code
}

#[test]
fn nobody_registers_as_a_benefactor_whose_secret_he_does_not_know() {
    let mut pool = Pool::new();
    assert_eq!(pool.register(None), BenefactorId(0));
    let secret = pool.secrets[&0].clone();
    for _ in 0..2 {
        let stranger = registration(&pool, 90).proved(&OTHER);
        assert_eq!(refused(&mut pool, stranger), ErrorCode::Denied);
        let stranger = registration(&pool, 90).introduced(&OTHER);
        assert_eq!(refused(&mut pool, stranger), ErrorCode::Denied);
        // A proof that was heard holds for what was said with it alone.
        let ManagerRequest::Register { proof, .. } = registration(&pool, 91).proved(&secret) else {
            unreachable!()
        };
        let mut changed = registration(&pool, 91);
        changed.address = "127.0.0.1:2".to_owned();
        let changed = ManagerRequest::Register { registration: changed, secret: None, proof };
        assert_eq!(refused(&mut pool, changed), ErrorCode::Denied);
        // The one that is there goes on.
        pool.inventory(0, &[1]);
        pool.restart();
        assert_eq!(pool.register(Some(0)), BenefactorId(0));
    }
    let request = registration(&pool, 92).proved(&secret);
    assert!(matches!(pool.ask(request), Ok(ManagerReply::Registered { id: BenefactorId(0), .. })));
}

#[test]
fn a_manager_that_does_not_know_a_benefactor_is_told_its_secret_and_holds_it_to_that() {
    let mut pool = Pool::new();
    let unknown = registration(&pool, 90).proved(&OTHER);
    assert_eq!(refused(&mut pool, unknown), ErrorCode::NotFound);
    let request = registration(&pool, 90).introduced(&OTHER);
    assert!(matches!(pool.ask(request), Ok(ManagerReply::Registered { id: BenefactorId(0), .. })));
    let request = registration(&pool, 91).introduced(&BenefactorSecret([1; 32]));
    assert_eq!(refused(&mut pool, request), ErrorCode::Denied);
}

#[test]
fn whoever_did_not_hear_which_number_it_was_given_is_given_the_same() {
    let mut pool = Pool::new();
    for life in 0..2 {
        let request = pool.registration(None, Incarnation(life), None).introduced(&OTHER);
        let answer = pool.ask(request).unwrap();
        assert!(matches!(answer, ManagerReply::Registered { id: BenefactorId(0), .. }), "{answer:?}");
    }
}

#[test]
fn a_member_registers_as_many_benefactors_as_one_may_and_those_again_after_a_restart() {
    let mut pool = Pool::new();
    let of = |number: u8| Asker { member: Some(MemberId([number; 16])), ..Asker::default() };
    let secret = |number: usize| BenefactorSecret(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let register = |pool: &mut Pool, id: Option<u32>, number: usize, asker: &Asker| {
        let request = pool.registration(id, Incarnation(7), None).introduced(&secret(number));
        pool.ask_as(asker, request).map_err(|failure| failure.code)
    };
    for number in 0..BENEFACTORS_OF_MEMBER_MAX {
        register(&mut pool, None, number, &of(1)).unwrap();
    }
    let one_more = BENEFACTORS_OF_MEMBER_MAX;
    assert_eq!(register(&mut pool, None, one_more, &of(1)), Err(ErrorCode::Denied));
    register(&mut pool, None, one_more, &of(2)).unwrap();
    pool.restart();
    assert_eq!(register(&mut pool, None, one_more + 1, &of(1)), Err(ErrorCode::Denied), "it is written down");
    register(&mut pool, Some(3), 3, &of(1)).unwrap();
    // One of another member doesn't become the 65th; a host that has joined anew takes its own along.
    assert_eq!(register(&mut pool, Some(64), one_more, &of(1)), Err(ErrorCode::Denied));
    register(&mut pool, Some(3), 3, &of(2)).unwrap();
    register(&mut pool, None, one_more + 2, &of(1)).unwrap();
    // Those of the manager's machine are its own affair.
    for number in 0..=BENEFACTORS_OF_MEMBER_MAX {
        register(&mut pool, None, 1000 + number, &Asker::default()).unwrap();
    }
}

#[test]
fn memory_that_is_lost_is_none_of_those_that_a_member_may_have_and_goes_after_an_hour() {
    let mut pool = Pool::new();
    pool.in_memory.insert(0);
    let member = Asker { member: Some(MemberId([1; 16])), ..Asker::default() };
    // Each is that of a machine that was started again, and comes with a secret of its own.
    let register = |pool: &mut Pool, id: Option<u32>, number: u8| {
        let request = pool.registration(id, Incarnation(7), None);
        match pool.ask_as(&member, request.introduced(&BenefactorSecret([number; 32]))) {
            Ok(ManagerReply::Registered { id, .. }) => Ok(id.0),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => Err(failure.code),
        }
    };
    let numbers =
        |pool: &mut Pool| pool.status().benefactors.iter().map(|info| info.id.0).collect::<Vec<_>>();
    for number in 0..64 {
        assert_eq!(register(&mut pool, None, number), Ok(u32::from(number)));
    }
    assert_eq!(register(&mut pool, None, 64), Err(ErrorCode::Denied));
    pool.pass(31_000);
    assert_eq!(register(&mut pool, None, 64), Ok(64));
    assert_eq!(numbers(&mut pool).len(), 65, "they may come back");
    pool.pass(3_570_000);
    assert_eq!(numbers(&mut pool), [64]);
    pool.restart();
    assert_eq!(numbers(&mut pool), [64]);
    assert_eq!(register(&mut pool, Some(3), 3), Ok(3), "it comes back after all");
    assert_eq!(register(&mut pool, None, 70), Ok(65), "no number is given twice");
}

#[test]
fn numbers_do_not_end_with_the_number_of_benefactors_that_there_may_be() {
    let mut pool = Pool::new();
    let register = |pool: &mut Pool, id: u32| {
        let request = pool.registration(Some(id), Incarnation(7), None);
        pool.ask(request.introduced(&BenefactorSecret(*blake3::hash(&id.to_le_bytes()).as_bytes()))).map(drop)
    };
    // The store is an older copy: they have numbers that it doesn't know.
    for id in [60_000, 120_000, 180_000] {
        pool.terms.insert(id, Term { era: Era::FIRST, number: 1, start: 1 });
        register(&mut pool, id).unwrap();
    }
    assert_eq!(pool.register(None), BenefactorId(180_001));
    for id in [u32::MAX, 300_000] {
        assert_eq!(register(&mut pool, id).unwrap_err().code, ErrorCode::Invalid);
    }
}

/// A process that registers as benefactor 0 of a pool.
#[derive(Clone, Copy)]
struct Process {
    life: u64,
    address: &'static str,
    connection: u64,
}

impl Process {
    fn register(self, pool: &mut Pool) -> Result<u64, ErrorCode> {
        let secret = pool.secrets[&0].clone();
        let mut registration = registration(pool, self.life);
        self.address.clone_into(&mut registration.address);
        let asker = Asker { connection: self.connection, ..Asker::default() };
        match pool.ask_as(&asker, registration.proved(&secret)) {
            Ok(ManagerReply::Registered { registration, .. }) => Ok(registration),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => {
                let names_both =
                    failure.message.contains(self.address) && failure.message.contains("10.0.0.");
                assert!(failure.code != ErrorCode::Exists || names_both, "{failure}");
                Err(failure.code)
            }
        }
    }

    fn beat(pool: &mut Pool, registration: u64) {
        let orders = ManagerRequest::Orders { id: BenefactorId(0), registration };
        pool.ask(orders).unwrap();
    }
}

const FIRST: Process = Process { life: 1, address: "10.0.0.1:7", connection: 1 };
const COPY: Process = Process { life: 2, address: "10.0.0.2:7", connection: 2 };

/// A pool of one benefactor, which is the process [`FIRST`]; the number of its registration.
fn of_first() -> (Pool, u64) {
    let mut pool = Pool::new();
    pool.register(None);
    pool.pass(5_000);
    let registration = FIRST.register(&mut pool).unwrap();
    (pool, registration)
}

fn twin_of(pool: &mut Pool) -> Option<(String, u64)> {
    let twin = pool.status().benefactors[0].twin.clone();
    twin.map(|twin| (twin.address, twin.for_ms))
}

#[test]
fn of_two_copies_of_a_benefactor_the_second_is_refused_for_as_long_as_the_first_is_there() {
    let (mut pool, registration) = of_first();
    for second in 0..20 {
        assert_eq!(COPY.register(&mut pool), Err(ErrorCode::Exists));
        assert_eq!(twin_of(&mut pool).is_some(), second >= 5, "one that was started again gets in before");
        pool.pass(1_000);
        Process::beat(&mut pool, registration);
    }
    let info = pool.status().benefactors[0].clone();
    assert_eq!((info.address.as_str(), info.state), (FIRST.address, BenefactorState::Online));
    assert_eq!(twin_of(&mut pool), Some((COPY.address.to_owned(), 20_000)));
    // A copy of the running machine has the same life, and is refused, too.
    let alike = Process { life: FIRST.life, ..COPY };
    assert_eq!(alike.register(&mut pool), Err(ErrorCode::Exists));
    // The end of the connection isn't the end of its machine: the first one connects again, at once, in the same life or the next.
    pool.core.connection_ended(FIRST.connection);
    assert_eq!(COPY.register(&mut pool), Err(ErrorCode::Exists));
    let again = Process { life: 3, address: "10.0.0.1:9", connection: 3 };
    again.register(&mut pool).unwrap();
    let next = Process { life: 4, address: "10.0.0.1:10", connection: 4 };
    assert_eq!(next.register(&mut pool), Err(ErrorCode::Exists), "a copy on the same machine");
    // Once the first one is silent, the other one may have its disk; then the first one is the second.
    pool.pass(4_999);
    assert_eq!(COPY.register(&mut pool), Err(ErrorCode::Exists));
    pool.pass(1);
    COPY.register(&mut pool).unwrap();
    assert_eq!(twin_of(&mut pool), None);
    assert_eq!(again.register(&mut pool), Err(ErrorCode::Exists));
}

#[test]
fn a_benefactor_that_connects_anew_is_no_copy_of_itself_and_one_that_roams_gets_in_once_it_is_disconnected() {
    let (mut pool, _) = of_first();
    Process { connection: 5, ..FIRST }.register(&mut pool).unwrap();
    // That of the connection before says nothing of the present one.
    pool.core.connection_ended(FIRST.connection);
    let roams = Process { address: "10.0.0.3:7", connection: 6, ..FIRST };
    assert_eq!(roams.register(&mut pool), Err(ErrorCode::Exists));
    pool.core.connection_ended(5);
    roams.register(&mut pool).unwrap();
    assert_eq!(twin_of(&mut pool), None);
}

#[test]
fn a_manager_that_was_started_again_waits_for_the_one_that_it_knows_before_it_takes_a_copy() {
    for first_returns in [true, false] {
        let (mut pool, _) = of_first();
        pool.restart();
        assert_eq!(COPY.register(&mut pool), Err(ErrorCode::Exists));
        if first_returns {
            Process { life: 7, address: "10.0.0.1:11", connection: 7 }.register(&mut pool).unwrap();
        }
        pool.pass(4_999);
        assert_eq!(COPY.register(&mut pool), Err(ErrorCode::Exists));
        pool.pass(1);
        assert!(COPY.register(&mut pool).is_ok());
    }
}

#[test]
fn what_a_disk_refused_is_told_with_the_pools_state_and_since_when() {
    let mut pool = Pool::with_benefactors(1);
    let told = |pool: &mut Pool| pool.status().benefactors[0].disk.clone();
    assert_eq!(told(&mut pool), None);
    let long = format!("can't write /x: Read-only file system{}", "\u{e4}".repeat(CAUSE_BYTES_MAX));
    for _ in 0..2 {
        pool.beat_refused(0, &long);
        pool.pass(1_000);
    }
    let failure = told(&mut pool).unwrap();
    assert!(failure.for_ms == 2_000 && failure.cause.starts_with("can't write /x: Read-only"), "{failure:?}");
    assert!(failure.cause.len() <= CAUSE_BYTES_MAX);
    // Its next life looks at the disk anew.
    pool.register(Some(0));
    assert_eq!(told(&mut pool), None);
}

#[test]
fn a_host_that_was_shut_out_is_said_to_be() {
    let mut pool = Pool::with_benefactors(2);
    let member = MemberId([3; 16]);
    pool.register_member(1, member);
    pool.ask(ManagerRequest::Revoke { member }).unwrap();
    let said: Vec<bool> = pool.status().benefactors.iter().map(|info| info.is_shut_out).collect();
    assert_eq!(said, [false, true]);
}
