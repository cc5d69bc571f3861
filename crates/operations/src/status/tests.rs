//! The words of a pool's state: which finding is the worst, and what is told of each.

use stdchk_model::BenefactorId;
use stdchk_model::message::manager::DiskFailure;

use super::*;

fn pool(states: &[BenefactorState]) -> PoolStatus {
    let info = |(index, state): (usize, &BenefactorState)| BenefactorInfo {
        id: BenefactorId(u32::try_from(index).unwrap()),
        address: String::new(),
        state: *state,
        load: Default::default(),
        pid: 1,
        silent_ms: 0,
        labels: Vec::new(),
        tier: Tier::Disk,
        host: "lab-7".to_owned(),
        is_shut_out: false,
        disk: None,
        twin: None,
        unreached: Vec::new(),
        unreached_ms: 0,
        is_cut_off: false,
    };
    PoolStatus { benefactors: states.iter().enumerate().map(info).collect(), ..PoolStatus::default() }
}

fn health(status: &PoolStatus) -> (Condition, Vec<String>) {
    let status = Status::new(String::new(), status);
    (status.health, status.reasons)
}

#[test]
fn paused_benefactors_are_nothing_to_worry_about_until_all_are() {
    let mut status = pool(&[BenefactorState::Online, BenefactorState::Online]);
    status.space = Space { donated_bytes: 1000, free_bytes: 500, ..Space::default() };
    status.benefactors[0].load.wish = OwnerWish::Pause;
    assert_eq!(health(&status), (Condition::Healthy, vec![]));
    status.benefactors[1].load.wish = OwnerWish::Leave;
    status.space.free_bytes = 0;
    let (word, reasons) = health(&status);
    assert_eq!((word, reasons.len()), (Condition::Full, 1));
    assert!(reasons[0].contains("benefactor resume"), "{reasons:?}");
}

#[test]
fn what_a_drained_benefactor_cannot_let_go_of_is_told_with_the_reason() {
    let mut status = pool(&[BenefactorState::Online; 3]);
    status.space = Space { donated_bytes: 1000, free_bytes: 500, ..Space::default() };
    status.benefactors[0].load.wish = OwnerWish::Drain;
    status.benefactors[1].load.free_bytes = 500;
    status.chunks_moving = 7;
    assert_eq!(health(&status), (Condition::Healthy, vec![]));
    status.chunks_unmovable = 7;
    status.benefactors[2].load.owed_bytes = 300;
    let (word, reasons) = health(&status);
    assert_eq!((word, reasons.len()), (Condition::Degraded, 1));
    assert!(reasons[0].contains("1 others take") && reasons[0].ends_with("b2 owes its owner 300 B"));
    status.benefactors[2].load.owed_bytes = 0;
    let (_, reasons) = health(&status);
    assert!(reasons[0].starts_with("7 chunks") && reasons[0].contains("2 others take blocks, with 500 B"));
}

#[test]
fn the_worst_finding_names_the_health_and_all_are_told() {
    let mut status = pool(&[BenefactorState::Online, BenefactorState::Lost]);
    assert_eq!(health(&pool(&[BenefactorState::Online])), (Condition::Healthy, vec![]));
    assert_eq!(health(&status).0, Condition::Degraded);
    status.space = Space { donated_bytes: 1000, free_bytes: 10, ..Space::default() };
    assert_eq!(health(&status).0, Condition::Full);
    status.store_is_full = true;
    assert_eq!((health(&status).0, health(&status).1.len()), (Condition::Full, 3));
    status.chunks_lost = 1;
    let (word, reasons) = health(&status);
    assert_eq!((word, reasons.len()), (Condition::Damaged, 4));
    status.counting = true;
    let (word, reasons) = health(&status);
    assert_eq!((word, reasons.len()), (Condition::Starting, 5));
    assert_eq!(health(&pool(&[BenefactorState::Expected])).0, Condition::Unavailable);
}

#[test]
fn copies_that_are_being_made_are_no_reason_to_worry_and_those_that_cannot_be_made_are() {
    let mut status = pool(&[BenefactorState::Online; 2]);
    (status.chunks_at_risk, status.exposed_chunks, status.repairs_pending) = (7, 7, 7);
    assert_eq!(health(&status), (Condition::Healthy, vec![]));
    status.chunks_stuck = 7;
    assert_eq!(health(&status).0, Condition::Degraded);
}

#[test]
fn a_disk_that_fails_is_told_with_its_benefactor() {
    let mut status = pool(&[BenefactorState::Online; 2]);
    status.benefactors[1].load.disk_failed = true;
    let (word, reasons) = health(&status);
    assert_eq!((word, reasons.len()), (Condition::Degraded, 1));
    assert!(reasons[0].contains("disk of b1 "), "{reasons:?}");
    // A manager that isn't there is told of as away.
    status.benefactors[1].state = BenefactorState::Lost;
    assert_eq!(health(&status).1.len(), 1);
}

#[test]
fn each_reason_about_a_benefactor_says_where_it_is_since_when_and_why() {
    let mut status = pool(&[BenefactorState::Online; 5]);
    let [away, failed, out, twin, unheard] = &mut status.benefactors[..] else { unreachable!() };
    (away.state, away.silent_ms, away.address) = (BenefactorState::Lost, 190_000, "10.0.0.1:7".to_owned());
    failed.load.disk_failed = true;
    failed.disk = Some(DiskFailure { for_ms: 61_000, cause: "Read-only\n file system".to_owned() });
    (out.is_shut_out, out.state, out.host) = (true, BenefactorState::Lost, String::new());
    twin.twin = Some(Twin { address: "10.0.0.9:8".to_owned(), pid: 12, for_ms: 7_200_000 });
    unheard.state = BenefactorState::Expected;
    let (word, reasons) = health(&status);
    assert_eq!((word, reasons.len()), (Condition::Degraded, 4), "{reasons:?}");
    let all = reasons.join("\n");
    for said in [
        "2 of 5 benefactors are not on-line: b0 (lab-7, 10.0.0.1:7), silent for 3 min; b4 (lab-7, ), not heard of since",
        "the disk of b1 (lab-7, ) has failed for 61 s: Read-only\\n file system.",
        "b2 () is shut out",
        "another one at 10.0.0.9:8 (process 12) has been refused for 2 h",
    ] {
        assert!(all.contains(said), "{said}: {all}");
    }
}

#[test]
fn of_many_benefactors_in_the_same_trouble_people_are_told_a_few_and_programs_all() {
    let mut status = pool(&[BenefactorState::Online; 300]);
    for info in &mut status.benefactors[..200] {
        (info.unreached, info.unreached_ms) = (vec![BenefactorId(299)], 60_000);
    }
    status.benefactors[299].load.disk_failed = true;
    let mut status = Status::new(String::new(), &status);
    status.add_reason("the mount does not answer".to_owned());
    assert_eq!((status.reasons.len(), status.few_reasons.len()), (202, NAMED_MAX + 3));
    assert!(status.few_reasons[NAMED_MAX].starts_with("192 more benefactors"), "{:?}", status.few_reasons);
    assert!(status.few_reasons[NAMED_MAX + 1].starts_with("the disk of b299"));
    assert!(status.few_reasons[NAMED_MAX + 2].starts_with("the mount"));
}

#[test]
fn what_can_come_back_is_not_damaged() {
    let mut status = pool(&[BenefactorState::Online, BenefactorState::Lost]);
    (status.chunks_away, status.chunks_stuck) = (3, 3);
    assert_eq!(health(&status).0, Condition::Unavailable);
    status.chunks_lost = 1;
    assert_eq!(health(&status).0, Condition::Damaged);
}

#[test]
fn a_store_that_is_an_older_copy_is_said_before_all_else() {
    let mut status = pool(&[BenefactorState::Online, BenefactorState::Lost]);
    (status.chunks_lost, status.set_back) = (1, vec![BenefactorId(0)]);
    assert_eq!(health(&status).0, Condition::SetBack);
}

#[test]
fn something_wrong_beside_the_pool_degrades_it_and_makes_nothing_better() {
    let mut status = Status::new(String::new(), &pool(&[BenefactorState::Online]));
    status.add_reason("the mount does not answer".to_owned());
    assert_eq!((status.health, status.reasons.len()), (Condition::Degraded, 1));
    let mut down = Status::down(String::new(), vec!["it is off".to_owned()]);
    down.add_reason("the mount does not answer".to_owned());
    assert_eq!((down.health, down.reasons.len()), (Condition::Down, 2));
}

#[test]
fn who_made_broken_encodings_is_named() {
    let mut status = pool(&[BenefactorState::Online]);
    let broken = |maker, uid, hosts: &[&str]| BrokenEncodings {
        maker: Maker([maker; 8]),
        count: 2,
        uid,
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
    };
    status.broken = vec![
        broken(0, None, &[]),
        broken(1, Some(1000), &["lab-7", "lab-8"]),
        broken(2, None, &["lab-9"]),
        broken(3, None, &[]),
    ];
    let (word, reasons) = health(&status);
    assert_eq!((word, reasons.len()), (Condition::Degraded, 1));
    let named =
        "a process of the pool's own user; user 1000 at lab-7, lab-8; lab-9; maker 0303030303030303, whose";
    assert!(reasons[0].starts_with("8 chunks") && reasons[0].contains(named), "{reasons:?}");
}

#[test]
fn words_are_those_of_the_json() {
    use Condition::{Damaged, Degraded, Down, Full, Healthy, SetBack, Starting, Unavailable};
    for condition in [Down, SetBack, Starting, Damaged, Unavailable, Full, Degraded, Healthy] {
        assert_eq!(serde_json::to_value(condition).unwrap(), condition.word());
    }
}

#[test]
fn what_two_thirds_of_the_keepers_have_can_be_recovered() {
    let recovery = |lacks: &[Option<u64>]| {
        let keeper = |(id, lacks): (u32, &Option<u64>)| KeeperInfo { id: BenefactorId(id), lacks: *lacks };
        let keepers: Vec<_> = (0..).zip(lacks).map(keeper).collect();
        Recovery::new(&keepers).lacks_commits
    };
    assert_eq!(recovery(&[]), None);
    assert_eq!(recovery(&[Some(7)]), Some(7));
    assert_eq!(recovery(&[Some(7), Some(0)]), Some(7));
    assert_eq!(recovery(&[Some(7), Some(0), None]), Some(7));
    assert_eq!(recovery(&[Some(7), None, None]), None);
    assert_eq!(recovery(&[Some(9), Some(1), Some(1), None]), Some(9));
    assert_eq!(recovery(&[Some(9), Some(1), Some(1), Some(0)]), Some(1));
}

#[test]
fn a_benefactor_that_has_not_reached_others_for_a_while_is_a_reason_to_look_after_the_network() {
    let mut status = pool(&[BenefactorState::Online; 3]);
    status.space = Space { donated_bytes: 1000, free_bytes: 500, ..Space::default() };
    let one = &mut status.benefactors[0];
    (one.unreached, one.unreached_ms) =
        (vec![BenefactorId(1), BenefactorId(2)], benefactors::UNREACHED_SHOWN_MS - 1);
    assert_eq!(health(&status).0, Condition::Healthy, "one that was just switched off isn't reached either");
    status.benefactors[0].unreached_ms = benefactors::UNREACHED_SHOWN_MS;
    let (condition, reasons) = health(&status);
    assert_eq!(condition, Condition::Degraded);
    assert!(reasons[0].starts_with("b0 can't send to b1, b2, since 20"), "{reasons:?}");
    status.benefactors[0].unreached = (1..100).map(BenefactorId).collect();
    assert!(health(&status).1[0].contains("b8 and 91 more, since"), "{:?}", health(&status).1);
    status.benefactors[0].state = BenefactorState::Offline;
    assert!(!health(&status).1.iter().any(|reason| reason.contains("can't send")), "it is missing anyway");
}
