//! Where new parts go: policies of folders over what was seen of hosts, and labels. The ranker works when the test says so.

use std::collections::BTreeSet;

use crate::harness::{CLIENT, Pool, session, stored};
use stdchk_model::labels::Labels;
use stdchk_model::message::benefactor::{Command, OwnerWish};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, Pace, Placement};
use stdchk_model::{BenefactorId, Ino, MachineId};

const SECOND: u64 = 1_000;
const MACHINE: MachineId = MachineId([7; 16]);

fn labels(texts: &[&str]) -> Labels {
    texts.iter().map(|text| stdchk_model::labels::parse(text).unwrap()).collect()
}

/// A folder with this policy, and a file in it.
fn file_under(pool: &mut Pool, policy: &[(&str, &str)]) -> (Ino, Ino) {
    let app = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = policy.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    pool.change(Change::SetPolicy { ino: app, pairs }).unwrap();
    let file = pool.make(app, "app.N0.T1", FileKind::File);
    (app, file)
}

/// The stripe of a new session on a file.
fn stripe(pool: &mut Pool, number: u8, ino: Ino, avoid: &[u32]) -> Vec<u32> {
    pool.open(number, ino);
    let avoid = avoid.iter().copied().map(BenefactorId).collect();
    match pool.ask(ManagerRequest::Reserve { session: session(number), bytes: 1 << 20, avoid }).unwrap() {
        ManagerReply::Stripe { benefactors, .. } => benefactors.iter().map(|info| info.id.0).collect(),
        other => panic!("{other:?}"),
    }
}

fn attend(pool: &mut Pool) {
    pool.ask(ManagerRequest::Attend { client: CLIENT, machine: MACHINE, sent: Vec::new() }).unwrap();
}

fn explain(pool: &mut Pool, ino: Ino) -> Placement {
    match pool.ask(ManagerRequest::Explain { ino, machine: MACHINE }).unwrap() {
        ManagerReply::Placement(placement) => placement,
        other => panic!("{other:?}"),
    }
}

/// Eight benefactors: 0 to 3 go away whenever the compute host does, 4 to 7 stay.
fn lived() -> Pool {
    let mut pool = Pool::with_benefactors(8);
    let (all, stay): (Vec<u32>, Vec<u32>) = ((0..8).collect(), (4..8).collect());
    // Nothing is noted of machines without benefactors before those had time to register.
    pool.pass_alive(30 * SECOND, &all);
    for _ in 0..5 {
        attend(&mut pool);
        pool.pass_alive(600 * SECOND, &all);
        for _ in 0..90 {
            pool.pass(SECOND);
            stay.iter().for_each(|number| drop(pool.beat(*number, &[], &[])));
        }
    }
    attend(&mut pool);
    pool.pass_alive(60 * SECOND, &all);
    pool
}

#[test]
fn a_ranking_prefers_who_stays_when_the_compute_host_fails_and_until_it_is_made_hosts_take_turns() {
    for placement in ["falcon", "falcon:7d", "learned"] {
        let mut pool = lived();
        let (_, file) = file_under(&mut pool, &[("placement", placement), ("stripe", "4")]);
        let first = stripe(&mut pool, 1, file, &[]);
        assert_eq!(first.len(), 4, "{placement}: nobody waits for a ranking");
        pool.rank();
        let ranked: BTreeSet<u32> = stripe(&mut pool, 2, file, &[]).into_iter().collect();
        assert_eq!(ranked, (4..8).collect(), "{placement}");
        // Who has just failed the client, or has no room, gives way to the next in the ranking.
        let others = stripe(&mut pool, 3, file, &[5]);
        assert_eq!(others.len(), 4, "{placement}");
        assert!(!others.contains(&5) && [4, 6, 7].iter().all(|one| others.contains(one)), "{others:?}");
        // A ranking that is ten seconds old is made anew, and one that nobody uses is not.
        pool.pass_alive(11 * SECOND, &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(pool.core.has_to_rank(), "{placement}");
        pool.rank();
        pool.pass_alive(700 * SECOND, &[0, 1, 2, 3, 4, 5, 6, 7]);
        pool.rank();
        pool.pass_alive(20 * SECOND, &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(!pool.core.has_to_rank(), "{placement}");
    }
}

#[test]
fn the_benefactor_beside_who_writes_gets_something_only_where_there_are_no_others() {
    for racks in [false, true] {
        let mut pool = Pool::new();
        pool.machines.insert(1, MACHINE);
        for number in 0..4 {
            if racks {
                pool.labels.insert(number, labels(&[&format!("rack={number}")]));
            }
            pool.register(None);
        }
        attend(&mut pool);
        let (_, file) = file_under(&mut pool, &[("placement", "falcon"), ("stripe", "3")]);
        for number in 1..8 {
            let before = stripe(&mut pool, number, file, &[]);
            assert!(before.len() == 3 && !before.contains(&1), "nothing is ranked yet: {before:?}");
        }
        let last = stripe(&mut pool, 8, file, &[0]);
        assert!(last.len() == 3 && last.contains(&1), "{last:?}");
        pool.rank();
        let ranked = stripe(&mut pool, 9, file, &[]);
        assert!(ranked.len() == 3 && !ranked.contains(&1), "{ranked:?}");
        let last = stripe(&mut pool, 10, file, &[0]);
        assert!(last.len() == 3 && last.contains(&1), "{last:?}");
    }
}

#[test]
fn with_near_copies_there_it_gets_nothing_under_any_placement_while_others_are_enough_for_a_chunk() {
    for placement in ["round-robin", "random", "dedicated", "falcon"] {
        for racks in [false, true] {
            let mut pool = Pool::new();
            pool.machines.insert(1, MACHINE);
            for number in 0..4 {
                let texts = [format!("rack={number}"), "dedicated=yes".to_owned()];
                let texts: Vec<&str> = texts.iter().skip(usize::from(!racks)).map(String::as_str).collect();
                pool.labels.insert(number, labels(&texts));
                pool.register(None);
            }
            attend(&mut pool);
            // The stripe could be wider than there are others.
            let policy = [("placement", placement), ("local", "prefer"), ("stripe", "8")];
            let (_, file) = file_under(&mut pool, &policy);
            for number in 1..8 {
                let mut others = stripe(&mut pool, number, file, &[]);
                others.sort_unstable();
                assert_eq!(others, [0, 2, 3], "{placement}, racks: {racks}");
            }
            let mut last = stripe(&mut pool, 8, file, &[0, 2]);
            last.sort_unstable();
            assert_eq!(last, [1, 3], "{placement}, racks: {racks}");
        }
    }
}

#[test]
fn a_ranker_that_failed_costs_the_rankings_and_the_next_one_is_told_everything() {
    let mut pool = lived();
    let (_, file) = file_under(&mut pool, &[("placement", "falcon"), ("stripe", "4")]);
    stripe(&mut pool, 1, file, &[]);
    pool.rank();
    pool.core.ranker_failed();
    assert!(!pool.core.has_to_rank());
    assert_eq!(stripe(&mut pool, 2, file, &[]).len(), 4);
    assert!(pool.core.has_to_rank());
    let told = pool.core.take_to_rank(pool.now);
    assert_eq!(told.hosts.len(), 9, "eight benefactors and a compute host");
}

#[test]
fn who_went_or_drains_since_the_ranking_was_made_is_passed_over() {
    let mut pool = lived();
    let (_, file) = file_under(&mut pool, &[("placement", "falcon"), ("stripe", "4")]);
    stripe(&mut pool, 1, file, &[]);
    pool.rank();
    pool.wishes.insert(6, OwnerWish::Drain);
    // 4 is silent for longer than its lease, 6 is to let go of what it has.
    pool.pass_alive(7 * SECOND, &[0, 1, 2, 3, 5, 6, 7]);
    let stripe: BTreeSet<u32> = stripe(&mut pool, 2, file, &[]).into_iter().collect();
    assert!(stripe.len() == 4 && stripe.contains(&5) && stripe.contains(&7), "{stripe:?}");
    assert!(!stripe.contains(&4) && !stripe.contains(&6), "{stripe:?}");
}

#[test]
fn a_choice_is_explained_in_figures_and_says_what_stands_in_for_a_model_that_has_not_proven_itself() {
    let mut pool = lived();
    let (app, file) = file_under(&mut pool, &[("placement", "learned"), ("stripe", "4")]);
    let before = explain(&mut pool, app);
    assert!(!before.ranked && before.in_use == "round-robin", "{before:?}");
    pool.rank();
    let after = explain(&mut pool, file);
    assert!(after.ranked && !after.proven, "{after:?}");
    assert_eq!((after.policy.as_str(), after.in_use.as_str()), ("learned", "falcon:7d"));
    assert_eq!((after.width, after.compute), (4, None));
    // Up for 600 seconds and for 30 more until its lease is over, and now for 60 without a failure.
    let failure = after.mean_time_to_failure_s.unwrap();
    assert!((600..=650).contains(&failure), "{failure}");
    let best: Vec<u32> = after.hosts.iter().take(4).map(|host| host.id.0).collect();
    assert!(best.iter().all(|id| *id >= 4), "{best:?}");
    let host = |id: u32| after.hosts.iter().find(|host| host.id.0 == id).unwrap();
    let (good, bad) = (host(4), host(0));
    assert_eq!((good.failures_week, good.up_week_ppm), (0, Some(1_000_000)));
    assert!(good.up_s.unwrap() >= 3_400 && good.score_ppm > bad.score_ppm);
    assert_eq!(bad.failures_week, 5);
    assert!(bad.up_s.unwrap() <= 60 && bad.up_week_ppm.unwrap() < 950_000);
    // Where hosts take turns, there is nothing to wait for.
    let pairs = vec![("placement".to_owned(), "round-robin".to_owned())];
    pool.change(Change::SetPolicy { ino: app, pairs }).unwrap();
    let turns = explain(&mut pool, app);
    assert!(turns.ranked && turns.hosts.len() == 4 && turns.hosts[0].score_ppm.is_none());
}

#[test]
fn what_was_learned_of_hosts_is_known_after_a_restart() {
    let mut pool = lived();
    let (_, file) = file_under(&mut pool, &[("placement", "falcon"), ("stripe", "4")]);
    pool.pass_alive(660 * SECOND, &[0, 1, 2, 3, 4, 5, 6, 7]);
    pool.restart();
    (0..8).for_each(|number| assert_eq!(pool.register(Some(number)), BenefactorId(number)));
    attend(&mut pool);
    stripe(&mut pool, 1, file, &[]);
    pool.rank();
    let ranked: BTreeSet<u32> = stripe(&mut pool, 2, file, &[]).into_iter().collect();
    assert_eq!(ranked, (4..8).collect());
}

#[test]
fn a_policy_that_is_no_way_to_choose_is_refused() {
    let mut pool = Pool::with_benefactors(1);
    let app = pool.make(Ino::ROOT, "app", FileKind::Directory);
    for wrong in ["best", "falcon:never"] {
        let pairs = vec![("placement".to_owned(), wrong.to_owned())];
        let refused = pool.change(Change::SetPolicy { ino: app, pairs }).unwrap_err();
        assert!(refused.message.contains("round-robin"), "{refused}");
    }
}

#[test]
fn dedicated_servers_and_random_hosts_are_chosen_where_the_policy_says_so() {
    let mut pool = Pool::new();
    [4, 6].into_iter().for_each(|number| drop(pool.labels.insert(number, labels(&["dedicated=yes"]))));
    (0..8).for_each(|number| assert_eq!(pool.register(None), BenefactorId(number)));
    let (app, file) = file_under(&mut pool, &[("placement", "dedicated"), ("stripe", "2")]);
    for number in 0..4 {
        let stripe: BTreeSet<u32> = stripe(&mut pool, number, file, &[]).into_iter().collect();
        assert_eq!(stripe, [4, 6].into_iter().collect());
    }
    assert!(stripe(&mut pool, 4, file, &[6]).contains(&4), "others stand in");
    let pairs = vec![("placement".to_owned(), "random".to_owned())];
    pool.change(Change::SetPolicy { ino: app, pairs }).unwrap();
    let all: BTreeSet<Vec<u32>> = (5..30).map(|number| stripe(&mut pool, number, file, &[])).collect();
    assert!(all.len() > 10 && all.iter().all(|stripe| stripe.len() == 2), "{all:?}");
}

/// Benefactors of which three stand in each of three racks.
fn in_racks() -> Pool {
    let mut pool = Pool::new();
    for number in 0..9 {
        pool.labels.insert(number, labels(&[&format!("rack={}", number / 3), "site=b"]));
        assert_eq!(pool.register(None), BenefactorId(number));
    }
    pool
}

#[test]
fn copies_of_a_chunk_go_to_different_racks_when_the_pool_has_them() {
    for placement in ["round-robin", "random", "falcon"] {
        let mut pool = in_racks();
        let policy = [("placement", placement), ("redundancy", "replicate:3"), ("stripe", "6")];
        let (_, file) = file_under(&mut pool, &policy);
        stripe(&mut pool, 0, file, &[]);
        pool.rank();
        for number in 1..10 {
            let stripe = stripe(&mut pool, number, file, &[]);
            assert_eq!(stripe.len(), 6);
            for place in 0..6 {
                let racks: BTreeSet<u32> = (0..3).map(|next| stripe[(place + next) % 6] / 3).collect();
                assert_eq!(racks.len(), 3, "{placement}: {stripe:?}");
            }
        }
    }
}

#[test]
fn missing_copies_are_made_in_other_racks_and_in_the_same_one_if_there_is_no_other() {
    let mut pool = in_racks();
    let (_, file) = file_under(&mut pool, &[("redundancy", "replicate:3")]);
    pool.write(1, file, &[1], &[0]);
    let order = pool.beat(0, &[1], &[]).into_iter().find_map(|command| match command {
        Command::Make(make) => Some(make.blocks),
        _ => None,
    });
    let racks: BTreeSet<u32> = order.unwrap().iter().map(|block| block.to.0 / 3).collect();
    assert_eq!(racks, [1, 2].into_iter().collect());
    // All others of the pool stand in one rack with the first copy.
    let mut pool = Pool::new();
    for number in 0..3 {
        pool.labels.insert(number, labels(&["rack=1"]));
        pool.register(None);
    }
    let (_, file) = file_under(&mut pool, &[("redundancy", "replicate:3")]);
    pool.write(1, file, &[1], &[0]);
    let commands = pool.beat(0, &[1], &[]);
    assert!(commands.iter().any(|command| matches!(command, Command::Make(make) if make.blocks.len() == 2)));
    assert_eq!(stored(1).plain_length, crate::harness::CHUNK_LENGTH);
}

#[test]
fn labels_are_kept_and_told_and_go_with_others_that_are_given() {
    let mut pool = in_racks();
    pool.restart();
    let told = |pool: &mut Pool, number: usize| pool.status().benefactors[number].labels.clone();
    assert_eq!(told(&mut pool, 4), labels(&["rack=1", "site=b"]));
    pool.labels.insert(4, labels(&["rack=7"]));
    pool.register(Some(4));
    assert_eq!(told(&mut pool, 4), labels(&["rack=7"]));
    pool.labels.insert(4, vec![("rack".to_owned(), "a b".to_owned())]);
    let wrong = pool.registration(Some(4), stdchk_model::Incarnation(9), None);
    let request = wrong.introduced(&pool.secrets[&4].clone());
    assert!(pool.ask(request).unwrap_err().message.contains("no label"));
}

fn pace(pool: &mut Pool, folder: Ino) -> Pace {
    match pool.ask(ManagerRequest::Pace { ino: folder, machine: MACHINE }).unwrap() {
        ManagerReply::Pace(pace) => pace,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_set_costs_the_time_from_its_first_open_to_its_last_commit_as_far_as_this_manager_has_seen_it() {
    let mut pool = Pool::with_benefactors(1);
    pool.pass_alive(30 * SECOND, &[0]);
    attend(&mut pool);
    let app = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = vec![("ranks".to_owned(), "2".to_owned())];
    pool.change(Change::SetPolicy { ino: app, pairs }).unwrap();
    assert_eq!(pace(&mut pool, app).cost_ms, None);
    let mut session = 0;
    // The second rank begins `later` seconds after the first, and both are committed when it has written for `writes` seconds.
    let mut set = |pool: &mut Pool, step: u64, later: u64, writes: u64| {
        let files = [0, 1].map(|rank| pool.make(app, &format!("app.N{rank}.T{step}"), FileKind::File));
        session += 2;
        pool.open(session, files[0]);
        pool.pass_alive(later * SECOND, &[0]);
        pool.open(session + 1, files[1]);
        pool.pass_alive(writes * SECOND, &[0]);
        for number in [session, session + 1] {
            pool.secure(number, &[u32::from(number)], &[0]);
            pool.commit(number, &[u32::from(number)]).unwrap();
            pool.close(number);
        }
        pool.pass_alive(100 * SECOND, &[0]);
    };
    set(&mut pool, 1, 10, 5);
    let first = pace(&mut pool, app);
    assert_eq!((first.sets, first.cost_ms, first.interval_ms), (1, Some(15_000), None));
    set(&mut pool, 2, 20, 5);
    set(&mut pool, 3, 30, 10);
    let all = pace(&mut pool, app);
    assert_eq!((all.sets, all.cost_ms, all.interval_ms), (3, Some(25_000), Some(125_000)));
    assert_eq!(all.failures, 0);
    assert!((375..=385).contains(&all.up_s), "{all:?}");
    // It is stored with the versions; what was being written when the manager ended is not known.
    pool.restart();
    assert_eq!(pace(&mut pool, app).cost_ms, Some(25_000));
}
