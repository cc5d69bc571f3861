//! What one member may make a server hold and do: every request goes through here, and nobody waits for what others ask.
//!
//! Connections, and the memory of requests and answers under way, are shared as [`stdchk_model::shares`] says. A connection beyond its
//! member's share is refused. A request beyond it waits before its body is read, so its sender comes to a halt: the bytes stay in
//! its sockets.
//!
//! A server of one thread, the manager, also shares its time, and the memory of answers that nobody takes: beyond its share of that a member is answered
//! nothing more. In a round each member may have its requests answered for a quantum of time; what it asks
//! beyond that waits for the next round, which begins once everything else that was ready has run and the sockets were looked at. So a
//! request waits for a quantum and one request of each other member at most, however many they have asked. A member whose request took long rests for some
//! times as long while others ask: so they have most of the time, also where each request is short and one of another member's is not.
//!
//! | state of a member | its request | its request has run | a new round begins |
//! |---|---|---|---|
//! | nothing waits, time is left | runs at once | stays, or its time is used up | all its time is left |
//! | its time is used up | waits | | the first one runs |
//! | it rests | waits | | the first one runs once it has rested |
//! | some wait | waits behind those | the next one runs, if time is left | the first one runs |
//! | it takes no answers | waits | | they wait on; the first one runs once it takes answers |

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::shares::{Payer, Shares};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::waits;

/// What a request takes beside its bytes: its task, its place among those that are answered, bytes.
const REQUEST_BYTES: u64 = 4 << 10;
/// What the bytes of a body are taken for: themselves and what they say, which takes more.
const BODY_FACTOR: u64 = 4;
/// The part of all memory that one request is taken for at most.
const LARGEST_PART: u64 = 4;
/// Time for which the requests of one member are answered in a round: dozens of small ones.
const QUANTUM: Duration = Duration::from_millis(1);

/// A request that takes so long is a long one.
const LONG: Duration = Duration::from_millis(50);
/// How many times as long a member rests after it, and at most: a benefactor has its heartbeats answered in time.
const REST_TIMES: u32 = 3;
const REST_MAX: Duration = Duration::from_secs(2);
/// Others ask if one did within this time.
const OTHERS_WITHIN: Duration = Duration::from_secs(1);

/// Which member; `None`: a process of the server's machine.
type Who = Option<MemberId>;

fn payer(member: Who) -> Payer {
    Payer { member, user: None }
}

/// What the connections of a server share.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    /// Whether time is shared, too.
    has_rounds: bool,
    /// Told when a round is to end.
    used: Notify,
}

#[derive(Debug)]
struct State {
    places: Shares,
    /// Bytes of requests under way.
    memory: Shares,
    /// Bytes of answers that wait to be taken.
    answers: Shares,
    /// Requests whose bodies are to be read, of each member in order.
    to_read: BTreeMap<Who, VecDeque<(u64, oneshot::Sender<Entered>)>>,
    /// Requests that are to be answered, of each member in order.
    to_run: BTreeMap<Who, VecDeque<oneshot::Sender<()>>>,
    /// Time that was used in this round.
    spent: HashMap<Who, Duration>,
    /// When each member asked last.
    asked: HashMap<Who, Instant>,
    /// Until when members rest.
    rests: HashMap<Who, Instant>,
}

/// A connection's place.
#[derive(Debug)]
pub(crate) struct Place {
    gate: Arc<Gate>,
    member: Who,
}

/// The memory that a request and its answer take.
#[derive(Debug)]
pub(crate) struct Entered {
    gate: Arc<Gate>,
    member: Who,
    bytes: u64,
    answer: u64,
}

/// A member's turn to have a request answered.
struct Turn<'a> {
    gate: &'a Gate,
    member: Who,
    began: Instant,
}

impl Gate {
    /// Shares so many connections, so many bytes of requests and as many of answers; time as well if the server has one thread.
    pub(crate) fn new(connections: usize, bytes: u64, has_rounds: bool) -> Arc<Self> {
        let state = State {
            places: Shares::new(connections as u64),
            memory: Shares::new(bytes),
            answers: Shares::new(bytes),
            to_read: BTreeMap::new(),
            to_run: BTreeMap::new(),
            spent: HashMap::new(),
            asked: HashMap::new(),
            rests: HashMap::new(),
        };
        Arc::new(Self { state: Mutex::new(state), has_rounds, used: Notify::new() })
    }

    /// A place for one more connection of a member; `None`: it has its share.
    pub(crate) fn connect(self: &Arc<Self>, member: Who) -> Option<Place> {
        let mut state = self.state.lock();
        // Where there is room for few, each finds room for one.
        let may = state.places.may_take(payer(member), 1)
            || state.places.held_by(payer(member)) == 0 && state.places.free() > 0;
        may.then(|| {
            state.places.take(payer(member), 1);
            Place { gate: Arc::clone(self), member }
        })
    }

    /// Waits until a member may have a request with so many bytes of body and payload under way.
    pub(crate) async fn enter(self: &Arc<Self>, member: Who, (body, payload): (usize, usize)) -> Entered {
        let told = {
            let mut state = self.state.lock();
            // The largest there can be must have room.
            let most = state.memory.all() / LARGEST_PART;
            let bytes = most.min(REQUEST_BYTES + body as u64 * BODY_FACTOR + payload as u64);
            if !state.to_read.contains_key(&member) && state.may_read(member, bytes) {
                return state.enter(self, member, bytes);
            }
            let (go, told) = oneshot::channel();
            state.to_read.entry(member).or_default().push_back((bytes, go));
            told
        };
        match waits::on(|| "room for one more request under way".to_owned(), told).await {
            Ok(entered) => entered,
            // Nobody lets go of what waits here but by letting it in.
            Err(_) => unreachable!("the gate is here, and what waits at it"),
        }
    }

    /// Does work for a member in its turn: as far as it goes without waiting, and then to its end.
    pub(crate) async fn in_turn<T>(&self, member: Who, work: impl Future<Output = T>) -> T {
        if !self.has_rounds {
            return work.await;
        }
        self.wait_for_turn(member).await;
        let mut work = pin!(work);
        let mut turn = Some(Turn { gate: self, member, began: Instant::now() });
        poll_fn(move |context| {
            let polled = work.as_mut().poll(context);
            drop(turn.take());
            polled
        })
        .await
    }

    async fn wait_for_turn(&self, member: Who) {
        let told = {
            let mut state = self.state.lock();
            state.asked.insert(member, Instant::now());
            if !state.to_run.contains_key(&member) && state.may_run(member) {
                return;
            }
            let (go, told) = oneshot::channel();
            state.to_run.entry(member).or_default().push_back(go);
            told
        };
        self.used.notify_one();
        // It is told, or the server ends.
        let _ = told.await;
    }

    /// Begins one round after the other.
    pub(crate) async fn run_rounds(&self) {
        loop {
            let rested = self.state.lock().rested();
            let rested = async {
                match rested {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.used.notified() => {}
                () = rested => {}
            }
            // Everything that is ready runs before, and sockets are looked at.
            tokio::task::yield_now().await;
            let mut state = self.state.lock();
            state.spent.clear();
            state.asked.retain(|_, last| last.elapsed() < OTHERS_WITHIN);
            state.rests.retain(|_, until| *until > Instant::now());
            let members: Vec<Who> = state.to_run.keys().copied().collect();
            let run = members.into_iter().filter(|member| state.let_run(*member)).count();
            // Who was let run may have gone; the others are told by that.
            if run > 0 && !state.to_run.is_empty() {
                self.used.notify_one();
            }
        }
    }
}

impl State {
    /// Who has nothing under way waits for others alone: one large request is no reason to wait for smaller ones without end.
    fn may_read(&self, member: Who, bytes: u64) -> bool {
        let who = payer(member);
        self.memory.may_take(who, bytes) || self.memory.held_by(who) == 0 && self.memory.free() >= bytes
    }

    fn enter(&mut self, gate: &Arc<Gate>, member: Who, bytes: u64) -> Entered {
        self.memory.take(payer(member), bytes);
        Entered { gate: Arc::clone(gate), member, bytes, answer: 0 }
    }

    fn may_run(&self, member: Who) -> bool {
        let has_time = self.spent.get(&member).is_none_or(|spent| *spent < QUANTUM);
        let rests = self.rests.get(&member).is_some_and(|until| *until > Instant::now());
        has_time && !rests && self.answers.may_take(payer(member), 0)
    }

    /// A request of a member took so long.
    fn took(&mut self, member: Who, time: Duration) {
        *self.spent.entry(member).or_default() += time;
        let asks =
            |(other, last): (&Who, &Instant)| *other != member && last.elapsed() < OTHERS_WITHIN + time;
        if time >= LONG && self.asked.iter().any(asks) {
            self.rests.insert(member, Instant::now() + (REST_TIMES * time).min(REST_MAX));
        }
    }

    /// When the first of the members whose requests wait has rested.
    fn rested(&self) -> Option<Instant> {
        self.to_run.keys().filter_map(|member| self.rests.get(member)).min().copied()
    }

    /// Lets the next request of a member be answered, if it may; whether it does.
    fn let_run(&mut self, member: Who) -> bool {
        while self.may_run(member) {
            let Some(waiting) = self.to_run.get_mut(&member) else { return false };
            let next = waiting.pop_front();
            if waiting.is_empty() {
                self.to_run.remove(&member);
            }
            // Who has gone meanwhile needs no turn.
            if next.is_some_and(|next| next.send(()).is_ok()) {
                return true;
            }
        }
        false
    }

    /// Lets requests in that had to wait for memory, of each member as many as may. Those whose senders have gone in this moment are returned:
    /// they give back what they have once nobody holds the state.
    fn let_in(&mut self, gate: &Arc<Gate>) -> Vec<Entered> {
        let (members, mut gone): (Vec<Who>, _) = (self.to_read.keys().copied().collect(), Vec::new());
        for member in members {
            while let Some((bytes, go)) = self.next_to_read(member) {
                if !go.is_closed() {
                    gone.extend(go.send(self.enter(gate, member, bytes)).err());
                }
            }
        }
        gone
    }

    /// The next request of a member that may be let in.
    fn next_to_read(&mut self, member: Who) -> Option<(u64, oneshot::Sender<Entered>)> {
        let (bytes, go) = self.to_read.get(&member)?.front()?;
        if !go.is_closed() && !self.may_read(member, *bytes) {
            return None;
        }
        let waiting = self.to_read.get_mut(&member)?;
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.to_read.remove(&member);
        }
        next
    }
}

impl Entered {
    /// The answer is there, and takes so many bytes until it is sent.
    pub(crate) fn answered(&mut self, bytes: usize) {
        self.answer += bytes as u64;
        self.gate.state.lock().answers.take(payer(self.member), bytes as u64);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let gone = {
            let mut state = self.gate.state.lock();
            state.memory.give_back(payer(self.member), self.bytes);
            state.answers.give_back(payer(self.member), self.answer);
            if state.to_run.contains_key(&self.member) {
                self.gate.used.notify_one();
            }
            state.let_in(&self.gate)
        };
        drop(gone);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.state.lock().places.give_back(payer(self.member), 1);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        state.took(self.member, self.began.elapsed());
        state.let_run(self.member);
        self.gate.used.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn member(number: u8) -> Who {
        Some(MemberId([number; 16]))
    }

    fn now<F: Future>(future: F) -> Option<F::Output> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Lets as many requests in as may be.
    fn fill(gate: &Arc<Gate>, member: Who, bytes: usize) -> Vec<Entered> {
        std::iter::from_fn(|| now(gate.enter(member, (bytes, 0)))).collect()
    }

    #[test]
    fn connections_of_one_member_leave_places_for_others() {
        let gate = Gate::new(100, MIB, false);
        let of = |who| std::iter::from_fn(|| gate.connect(who)).collect::<Vec<_>>();
        let (first, second) = (of(member(1)), of(None));
        assert_eq!((first.len(), second.len()), (50, 25));
        drop(first);
        assert!(gate.connect(None).is_some());
        let one = Gate::new(1, MIB, false);
        assert!(one.connect(None).is_some() && one.connect(member(1)).is_some(), "a place is given back");
    }

    #[test]
    fn bodies_of_one_member_leave_memory_for_others_and_what_waits_goes_on_in_order() {
        let gate = Gate::new(10, 64 * MIB, false);
        let mut first = fill(&gate, member(1), 1 << 20);
        assert_eq!(first.len(), 7, "32 MiB hold seven that are taken for 4 MiB each");
        let mut waiting = [gate.enter(member(1), (1 << 20, 0)), gate.enter(member(1), (1, 0))].map(Box::pin);
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.iter_mut().all(|one| one.as_mut().poll(&mut context).is_pending()));
        let second = fill(&gate, member(2), 1 << 20);
        assert!(second.len() >= 3, "{}", second.len());
        drop(second);
        drop(first.pop());
        assert!(waiting.iter_mut().all(|one| one.as_mut().poll(&mut context).is_ready()));
        drop(waiting);
        drop(first);
        assert_eq!(gate.state.lock().memory.free(), 64 * MIB);
    }

    #[test]
    fn who_gives_up_while_it_waits_or_when_it_is_let_in_leaves_nothing_behind() {
        let gate = Gate::new(10, 64 * MIB, false);
        let first = fill(&gate, member(1), 1 << 20);
        let mut waiting = [0; 3].map(|_| Box::pin(gate.enter(member(1), (1 << 20, 0))));
        let mut context = Context::from_waker(Waker::noop());
        waiting.iter_mut().for_each(|one| assert!(one.as_mut().poll(&mut context).is_pending()));
        let [gone, let_in, another] = waiting;
        drop(gone);
        drop(first);
        assert!(gate.state.lock().memory.free() < 64 * MIB, "two are let in, and don't know yet");
        drop((let_in, another));
        assert_eq!(fill(&gate, member(1), 1 << 20).len(), 7);
        assert_eq!(gate.state.lock().memory.free(), 64 * MIB);
        assert!(gate.state.lock().to_read.is_empty());
    }

    #[test]
    fn a_large_request_of_who_has_none_waits_for_no_smaller_ones() {
        let gate = Gate::new(10, 64 * MIB, false);
        let _first = fill(&gate, member(1), 64);
        let _second = fill(&gate, member(2), 64);
        assert!(now(gate.enter(None, (3 << 20, 0))).is_some());
    }

    /// What is done, in its order, when each of these asks so often and each request takes so long.
    async fn order(asks: &[(Who, usize)], each: Duration) -> Vec<Who> {
        let gate = Gate::new(10, MIB, true);
        let (done, rounds) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&gate));
        let rounds = tokio::spawn(async move { rounds.run_rounds().await });
        let mut tasks = Vec::new();
        for (who, count) in asks {
            for _ in 0..*count {
                let (gate, done, who) = (Arc::clone(&gate), Arc::clone(&done), *who);
                tasks.push(tokio::spawn(async move {
                    gate.in_turn(who, async {
                        let began = std::time::Instant::now();
                        while began.elapsed() < each {}
                        done.lock().push(who);
                    })
                    .await;
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        rounds.abort();
        Arc::into_inner(done).unwrap().into_inner()
    }

    #[tokio::test]
    async fn a_request_waits_for_one_of_each_other_member_however_many_these_have_asked() {
        let order = order(&[(member(1), 200), (member(2), 200), (None, 2)], 2 * QUANTUM).await;
        let own: Vec<usize> = (0..order.len()).filter(|at| order[*at].is_none()).collect();
        assert_eq!(order.len(), 402);
        assert!(own[1] < 8, "{own:?}");
    }

    #[tokio::test]
    async fn small_requests_of_one_member_are_answered_together() {
        let order = order(&[(member(1), 1000)], Duration::ZERO).await;
        assert_eq!(order.len(), 1000);
    }

    /// A member that asks for much, one request after the other, and another one that asks for little as often: how long what the latter asks for takes.
    async fn beside_long_requests(long: Duration) -> Duration {
        let gate = Gate::new(10, MIB, true);
        let rounds = Arc::clone(&gate);
        let rounds = tokio::spawn(async move { rounds.run_rounds().await });
        let busy = {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                loop {
                    gate.in_turn(member(1), async { std::thread::sleep(long) }).await;
                    tokio::task::yield_now().await;
                }
            })
        };
        let began = Instant::now();
        for _ in 0..20 {
            gate.in_turn(member(2), async {}).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        busy.abort();
        rounds.abort();
        began.elapsed()
    }

    #[tokio::test]
    async fn who_asks_for_much_leaves_most_of_the_time_to_others() {
        let took = beside_long_requests(4 * LONG).await;
        assert!(took < 20 * 4 * LONG / 3, "{took:?}");
    }

    #[tokio::test]
    async fn who_asks_alone_rests_never_and_who_rested_goes_on() {
        let gate = Gate::new(10, MIB, true);
        let rounds = Arc::clone(&gate);
        let rounds = tokio::spawn(async move { rounds.run_rounds().await });
        let long = async || gate.in_turn(member(1), async { std::thread::sleep(LONG) }).await;
        let began = Instant::now();
        long().await;
        long().await;
        assert!(began.elapsed() < 2 * LONG + REST_TIMES * LONG, "nobody else asks");
        gate.in_turn(member(2), async {}).await;
        long().await;
        let began = Instant::now();
        tokio::time::timeout(REST_MAX, long()).await.unwrap();
        assert!(began.elapsed() >= REST_TIMES * LONG, "{:?}", began.elapsed());
        rounds.abort();
    }

    #[tokio::test]
    async fn who_takes_no_answers_gets_no_more_of_them_and_others_do() {
        let gate = Gate::new(10, MIB, true);
        let mut entered = gate.enter(member(1), (1, 0)).await;
        entered.answered(1 << 20);
        assert!(now(gate.in_turn(member(1), async {})).is_none());
        assert!(now(gate.in_turn(member(2), async {})).is_some());
        let (rounds, asked) = (Arc::clone(&gate), Arc::clone(&gate));
        let rounds = tokio::spawn(async move { rounds.run_rounds().await });
        let asked = tokio::spawn(async move { asked.in_turn(member(1), async {}).await });
        tokio::task::yield_now().await;
        drop(entered);
        asked.await.unwrap();
        rounds.abort();
    }
}
