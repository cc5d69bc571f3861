//! A life: what happens to a pool by chance, and what must hold when all has come to rest.

use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stdchk_client::Pool;
use stdchk_model::message::manager::{Change, FileKind};
use stdchk_model::policy::Protocol;
use stdchk_model::{Failure, Ino, Tier};

use super::model::Names;
use super::network::Place;
use super::plant::Plant;
use super::work::{Deed, Folder, NAMES, Worker, copies_in_memory};
use super::world::{Connected, World};

/// Parts of a life, each of which ends with a rest.
const PARTS: usize = 3;
/// Events of a part.
const EVENTS: usize = 90;
/// Events of which one is that a machine or two lose their memory, where there is some.
const EVENTS_FOR_A_MEMORY: usize = 150;
/// The same right after something was committed for which memory may be enough.
const COMMITS_FOR_A_MEMORY: usize = 15;
const FOLDERS: usize = 3;
/// How long the processes of a new pool take to find each other.
const BEGIN: Duration = Duration::from_secs(5);

/// A failure that ends a life.
pub struct Failed {
    pub cause: String,
    pub history: String,
}

/// What ends by itself after a while.
enum Trouble {
    ManagerGone,
    BenefactorGone(usize),
    ClientGone(usize),
    Stopped(Who),
    Slow(Place),
    Refusing(Place),
    Parted(Place, Place),
    /// Nothing goes from the one to the other.
    OneWay(Place, Place),
}

/// A process of the world.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Who {
    Manager,
    Benefactor(usize),
    Client(usize),
}

pub struct Life {
    pub world: World,
    pub names: Names,
    pub folders: Arc<Vec<Folder>>,
    troubles: Vec<(Duration, Trouble)>,
}

/// Lives the life of a seed; a hash of all that happened.
pub fn live(seed: u64, plant: Plant) -> Result<String, Failed> {
    let mut life = Life::new(seed, plant);
    let lived = life.begin().and_then(|()| (0..PARTS).try_for_each(|part| life.part(part)));
    match lived {
        Ok(()) => Ok(life.world.log.hash()),
        Err(cause) => Err(Failed { cause, history: life.world.log.history() }),
    }
}

impl Life {
    fn new(seed: u64, plant: Plant) -> Self {
        Self {
            world: World::new(seed, plant),
            names: Names::new(FOLDERS, NAMES),
            folders: Arc::default(),
            troubles: Vec::new(),
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        let world = &mut self.world;
        world.start_manager();
        (0..world.random.within(4..7)).for_each(|_| world.add_benefactor(Tier::Disk));
        if world.has_memory {
            (0..world.random.within(2..4)).for_each(|_| world.add_benefactor(Tier::Memory));
        }
        for number in 0..3 {
            let protocols = [None, Some(Protocol::Clw), Some(Protocol::Iw)];
            world.add_client(protocols[number]);
        }
        world.pass(BEGIN)?;
        let policies = policies(world);
        for (number, policy) in policies.iter().enumerate() {
            let memory = policy.iter().find_map(|(_, value)| copies_in_memory(value));
            memory.into_iter().for_each(|copies| self.names.memory_suffices(number, copies));
        }
        let folders = self.ask("make folders", move |pool| make_folders(pool, policies))?;
        self.folders = Arc::new(folders);
        Ok(())
    }

    fn part(&mut self, part: usize) -> Result<(), String> {
        for _ in 0..EVENTS {
            self.event();
            let time = match self.world.random.below(40) {
                0 => self.world.random.ms(5_000..40_000),
                1..20 => self.world.random.ms(1..40),
                _ => self.world.random.ms(20..1500),
            };
            self.pass(time)?;
        }
        self.rest()?;
        if part + 1 < PARTS && self.world.random.once_in(2) {
            let disks = self.world.with_disks();
            let first = self.world.random.below(disks);
            self.lose_disk(first);
            if self.world.plant == Plant::TwoDisksAreLost {
                self.lose_disk((first + 1) % disks);
            }
        }
        Ok(())
    }

    /// Lets time pass, and what is over end.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = self.world.log.now() + time;
        loop {
            let now = self.world.log.now();
            let mut over = Vec::new();
            for (until, trouble) in std::mem::take(&mut self.troubles) {
                if until <= now { over.push(trouble) } else { self.troubles.push((until, trouble)) }
            }
            over.into_iter().for_each(|trouble| self.end(trouble));
            let next = self.troubles.iter().map(|(until, _)| *until).fold(end, Duration::min);
            if now >= end {
                return Ok(());
            }
            self.world.pass(next - now)?;
        }
    }

    fn event(&mut self) {
        if self.world.has_memory {
            // Chance is put where something was promised.
            let is_promised = self.names.take_committed_in_memory();
            let events = if is_promised { COMMITS_FOR_A_MEMORY } else { EVENTS_FOR_A_MEMORY };
            if self.world.random.once_in(events) {
                let losses = self.world.random.within(1..3);
                return (0..losses).for_each(|_| self.lose_a_memory());
            }
        }
        match self.world.random.below(100) {
            0..4 => self.kill(Who::Manager),
            4..10 => self.kill_any_benefactor(),
            10..14 => self.kill_any_client(),
            14..20 => {
                if let Some(ends) = self.world.network.cut_one() {
                    self.world.log.say(format_args!("a connection of {ends:?} is cut"));
                }
            }
            20..23 => self.part_two(),
            23..25 => self.part_benefactors(),
            25..27 => self.isolate(),
            27..30 => self.hinder(),
            30..33 => self.stop(),
            // Several at once.
            _ => (0..self.world.random.within(1..4)).for_each(|_| self.begin_deed()),
        }
    }

    fn begin_deed(&mut self) {
        let random = &mut self.world.random;
        let name = |random: &mut super::random::Random| (random.below(FOLDERS), random.below(NAMES));
        let deed = match random.below(30) {
            0..13 => Deed::Write(name(random)),
            13..22 => Deed::Read(name(random)),
            22..25 => Deed::Rename(name(random), name(random)),
            25..27 => Deed::Remove(name(random)),
            27 => Deed::Policy(random.below(FOLDERS)),
            28 => Deed::Collect,
            _ => Deed::LookAround(random.below(FOLDERS)),
        };
        let client = random.below(self.world.clients.len());
        self.begin_at(client, deed);
    }

    /// Begins something at a client; whether it is connected.
    pub fn begin_at(&mut self, client: usize, deed: Deed) -> bool {
        let who = format!("client {client}");
        let (names, folders, log) = (self.names.clone(), Arc::clone(&self.folders), self.world.log.clone());
        let random = super::random::Random::new(self.world.random.next());
        let (plant, has_memory) = (self.world.plant, self.world.has_memory);
        self.world.begin(client, move |Connected { pool, spool }| {
            Worker { who, pool, spool, names, folders, has_memory, log, random, plant }.work(deed)
        })
    }

    fn kill_any_benefactor(&mut self) {
        let number = self.world.random.below(self.world.benefactors.len());
        self.kill(Who::Benefactor(number));
    }

    fn kill_any_client(&mut self) {
        let number = self.world.random.below(self.world.clients.len());
        self.kill(Who::Client(number));
    }

    fn kill(&mut self, who: Who) {
        if !self.world.process(who).is_running() {
            return;
        }
        self.say(format_args!("{who:?} is killed"));
        let time = match self.world.random.below(4) {
            0 => self.world.random.ms(4_000..45_000),
            _ => self.world.random.ms(10..4_000),
        };
        let trouble = match who {
            Who::Manager => {
                self.world.kill_manager();
                Trouble::ManagerGone
            }
            Who::Benefactor(number) => {
                self.world.kill_benefactor(number);
                Trouble::BenefactorGone(number)
            }
            Who::Client(number) => {
                self.world.kill_client(number);
                Trouble::ClientGone(number)
            }
        };
        self.lasts(time, trouble);
    }

    fn part_two(&mut self) {
        let (one, other) = (self.any(), self.any());
        if one != other {
            let time = self.world.random.ms(100..20_000);
            self.say(format_args!("{one:?} and {other:?} are parted for {time:?}"));
            let (one, other) = (self.world.process(one).place, self.world.process(other).place);
            self.world.network.part(one, other);
            self.lasts(time, Trouble::Parted(one, other));
        }
    }

    /// A benefactor that the manager and the clients reach doesn't hear another one any more, or all of them, or isn't heard, or both.
    fn part_benefactors(&mut self) {
        let all: Vec<Place> = self.world.benefactors.iter().map(|one| one.process.place).collect();
        let random = &mut self.world.random;
        let time = random.ms(1_000..60_000);
        let one = *random.one_of(&all);
        let mut others: Vec<Place> = all.into_iter().filter(|other| *other != one).collect();
        if random.once_in(2) {
            others = vec![*random.one_of(&others)];
        }
        let (hears, is_heard) = *random.one_of(&[(false, true), (true, false), (false, false)]);
        self.say(format_args!("the benefactor at {one} hears those at {others:?}: {hears}, and is heard: {is_heard}; for {time:?}"));
        for other in others {
            for (from, to, passes) in [(other, one, hears), (one, other, is_heard)] {
                if !passes {
                    self.world.network.part_way(from, to);
                    self.lasts(time, Trouble::OneWay(from, to));
                }
            }
        }
    }

    /// Somebody hears nobody any more.
    fn isolate(&mut self) {
        let who = self.any();
        let time = self.world.random.ms(500..50_000);
        self.say(format_args!("{who:?} is cut off for {time:?}"));
        let place = self.world.process(who).place;
        for other in self.world.places() {
            self.world.network.part(place, other);
            self.lasts(time, Trouble::Parted(place, other));
        }
    }

    fn hinder(&mut self) {
        let who = self.any();
        let (place, time) = (self.world.process(who).place, self.world.random.ms(500..20_000));
        let is_slow = self.world.random.once_in(2);
        self.say(format_args!(
            "{who:?} {} for {time:?}",
            if is_slow { "is slow" } else { "refuses connections" }
        ));
        match is_slow {
            true => self.world.network.set_slow(place, true),
            false => self.world.network.set_refusing(place, true),
        }
        self.lasts(time, if is_slow { Trouble::Slow(place) } else { Trouble::Refusing(place) });
    }

    fn stop(&mut self) {
        let who = self.any();
        if self.world.process(who).is_running() && !self.world.process(who).is_stopped() {
            let time = self.world.random.ms(200..40_000);
            self.say(format_args!("{who:?} stands still for {time:?}"));
            self.world.process(who).stop();
            self.lasts(time, Trouble::Stopped(who));
        }
    }

    fn lasts(&mut self, time: Duration, trouble: Trouble) {
        self.troubles.push((self.world.log.now() + time, trouble));
    }

    fn end(&mut self, trouble: Trouble) {
        let world = &mut self.world;
        match trouble {
            Trouble::ManagerGone => world.start_manager(),
            Trouble::BenefactorGone(number) => world.start_benefactor(number),
            Trouble::ClientGone(number) => world.start_client(number),
            Trouble::Stopped(who) => world.process(who).go_on(),
            Trouble::Slow(place) => world.network.set_slow(place, false),
            Trouble::Refusing(place) => world.network.set_refusing(place, false),
            Trouble::Parted(one, other) => world.network.join(one, other),
            Trouble::OneWay(from, to) => world.network.join_way(from, to),
        }
    }

    /// Ends everything that is in the way of anybody.
    pub fn end_all(&mut self) {
        let troubles = std::mem::take(&mut self.troubles);
        troubles.into_iter().for_each(|(_, trouble)| self.end(trouble));
        self.world.network.heal();
        if self.world.plant == Plant::NeverJoined {
            self.world.network.part(self.world.manager.place, self.world.benefactors[0].process.place);
        }
    }

    fn any(&mut self) -> Who {
        let world = &mut self.world;
        let (benefactors, clients) = (world.benefactors.len(), world.clients.len());
        match world.random.below(1 + benefactors + clients) {
            0 => Who::Manager,
            number if number <= benefactors => Who::Benefactor(number - 1),
            number => Who::Client(number - 1 - benefactors),
        }
    }

    pub fn say(&self, what: impl std::fmt::Display) {
        self.world.log.say(what);
    }

    fn lose_disk(&mut self, number: usize) {
        self.say(format_args!("benefactor {number} loses its disk"));
        self.names.lose_disk();
        self.world.benefactors[number].process.kill();
        self.world.renew_disk(number);
        let time = self.world.random.ms(10..60_000);
        self.lasts(time, Trouble::BenefactorGone(number));
    }

    /// A machine is started again, and its memory is empty.
    fn lose_a_memory(&mut self) {
        let disks = self.world.with_disks();
        let number = disks + self.world.random.below(self.world.benefactors.len() - disks);
        self.say(format_args!("benefactor {number} loses its memory"));
        self.names.lose_memory();
        if self.world.benefactors[number].process.is_running() {
            self.world.benefactors[number].process.kill();
            let time = self.world.random.ms(10..60_000);
            self.lasts(time, Trouble::BenefactorGone(number));
        }
        self.world.renew_disk(number);
    }

    /// Asks the pool something through the first client, and waits for the answer.
    pub fn ask<T, F>(&mut self, what: &str, question: impl FnOnce(Pool) -> F) -> Result<T, String>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.ask_at(0, what, question)
    }

    pub fn ask_at<T, F>(
        &mut self,
        client: usize,
        what: &str,
        question: impl FnOnce(Pool) -> F,
    ) -> Result<T, String>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let answer = Arc::new(Mutex::new(None));
        let to = Arc::clone(&answer);
        let is_asked = self.world.begin(client, |connected| {
            let asked = question(connected.pool);
            async move {
                let answered = asked.await;
                *to.lock().unwrap() = Some(answered);
            }
        });
        if !is_asked {
            return Err(format!("no client is connected that could {what}"));
        }
        for _ in 0..2000 {
            self.world.pass(Duration::from_millis(100))?;
            if let Some(answer) = answer.lock().unwrap().take() {
                return answer.map_err(|failure| format!("{what}: {failure}"));
            }
        }
        Err(format!("{what}: no answer"))
    }
}

impl World {
    fn process(&mut self, who: Who) -> &mut super::world::Process {
        match who {
            Who::Manager => &mut self.manager,
            Who::Benefactor(number) => &mut self.benefactors[number].process,
            Who::Client(number) => &mut self.clients[number].process,
        }
    }

    fn places(&self) -> Vec<Place> {
        let benefactors = self.benefactors.iter().map(|one| one.process.place);
        let clients = self.clients.iter().map(|client| client.process.place);
        std::iter::once(self.manager.place).chain(benefactors).chain(clients).collect()
    }
}

/// What is set for each folder: the first one survives the loss of a disk. Memory, where there is some, is enough for the second one.
fn policies(world: &mut World) -> Vec<Vec<(&'static str, &'static str)>> {
    const REDUNDANCIES: [&str; 4] = ["replicate:1", "replicate:2", "replicate:3", "erasure:2,1"];
    const CUTTERS: [&str; 4] = ["fsch:64KiB", "fsch:4KiB", "cdc:16KiB", "auto"];
    const CODECS: [&str; 3] = ["store", "lz4", "zstd:1"];
    let folder = |number: usize| {
        let (redundancies, random) = (&REDUNDANCIES[usize::from(number == 0)..], &mut world.random);
        let is_pessimistic = number == 0 || random.once_in(2);
        vec![
            ("redundancy", *random.one_of(redundancies)),
            ("semantics", if is_pessimistic { "pessimistic" } else { "optimistic" }),
            ("cutter", *random.one_of(&CUTTERS)),
            ("codec", *random.one_of(&CODECS)),
            ("exposure", if random.once_in(2) { "none" } else { "previous" }),
        ]
    };
    let mut folders: Vec<_> = (0..FOLDERS).map(folder).collect();
    for (number, folder) in folders.iter_mut().enumerate().skip(1) {
        if world.has_memory && (number == 1 || world.random.once_in(2)) {
            folder.retain(|(key, _)| *key != "semantics");
            folder.push(("semantics", *world.random.one_of(&["memory:1", "memory:2"])));
        }
    }
    folders
}

async fn make_folders(
    pool: Pool,
    policies: Vec<Vec<(&'static str, &'static str)>>,
) -> Result<Vec<Folder>, Failure> {
    let mut folders = Vec::new();
    for (number, policy) in policies.into_iter().enumerate() {
        let (name, target) = (format!("folder{number}"), String::new());
        let (parent, kind) = (Ino::ROOT, FileKind::Directory);
        let change = Change::Make { parent, name, kind, mode: 0o755, uid: 0, gid: 0, target };
        let made = pool.change(change).await?.unwrap();
        let pairs = policy.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        pool.change(Change::SetPolicy { ino: made.ino, pairs }).await?;
        let is_safe = policy.contains(&("semantics", "pessimistic"))
            && !policy.contains(&("redundancy", "replicate:1"));
        folders.push(Folder { ino: made.ino, is_safe: AtomicBool::new(is_safe) });
    }
    Ok(folders)
}
