//! What is known of a host's past: the states that it was in, and since when.
//!
//! Relies on one clock, that of whoever keeps the history (the manager): a host's own clock never enters. The one idea: a
//! history is a step function of time with a bounded number of steps; the oldest are forgotten. Time in which nobody was looking
//! is a state of its own, [`State::Unknown`], and enters no probability.
//!
//! | event | what becomes of the history |
//! |---|---|
//! | the state changes | one more step |
//! | the same state is seen again | only the time until which it is known moves |
//! | the clock has gone back | what lay after the new time is forgotten; the current state holds from the new time on |
//! | nobody was looking for a while | a step to `Unknown` at the last time that is known, another at the time of the next look |
//! | more than [`STEPS_MAX`] steps | in the older half, states in which the host was there become one, the longest; if that isn't enough, the oldest quarter is forgotten |
//! | bytes that are no history | an error; the host starts with an empty history |
//!
//! States are those of FALCON, figure 1.

use std::fmt;

use minicbor::{Decode, Encode};
use stdchk_model::cbor;
use stdchk_model::exact::{narrow, part};
use stdchk_model::message::benefactor::StorageState;

/// Steps that one host's history keeps, newest first in worth: 512 steps are 4 KiB in memory and some 2 KiB stored, and cover
/// half a year of a host that fails once a day.
pub const STEPS_MAX: usize = 512;

/// States of a storage host (FALCON, figure 1), and the state of which nothing is known. A compute host is up in all but
/// [`State::Unavailable`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// S0: I/O load below τ1, and fewer clients than MAX-CLIENTS.
    Running,
    /// S0': as many clients as MAX-CLIENTS. Passing, so that a history counts it as [`State::Running`].
    Full,
    /// S1: I/O load from τ1 to τ2.
    Loaded,
    /// S2: I/O load from τ2 on.
    Refusing,
    /// S3: not there.
    Unavailable,
    /// Nobody was looking.
    Unknown,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Full, Self::Loaded, Self::Refusing, Self::Unavailable, Self::Unknown];

    /// Its number in stored histories.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Running => 0,
            Self::Full => 1,
            Self::Loaded => 2,
            Self::Refusing => 3,
            Self::Unavailable => 4,
            Self::Unknown => 5,
        }
    }

    /// The state of a number, if there is one.
    #[must_use]
    pub fn of_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| u64::from(state.number()) == number)
    }

    /// Whether it takes new stores: S0 and S1 do, S0' and S2 refuse (FALCON, section 3.1).
    #[must_use]
    pub const fn accepts(self) -> bool {
        matches!(self, Self::Running | Self::Loaded)
    }

    /// Whether it serves reads: always, as long as it is there.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::Running | Self::Full | Self::Loaded | Self::Refusing)
    }
}

impl From<StorageState> for State {
    fn from(told: StorageState) -> Self {
        match told {
            StorageState::Running => Self::Running,
            StorageState::Full => Self::Full,
            StorageState::Loaded => Self::Loaded,
            StorageState::Refusing => Self::Refusing,
        }
    }
}

/// A state and when it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    at: u64,
    state: State,
}

/// A part of time in which a host was in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Beginning, seconds of the keeper's clock.
    pub from: u64,
    /// End, exclusive, seconds.
    pub to: u64,
    /// The state.
    pub state: State,
}

/// The history of one host. Times are seconds of the keeper's clock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// In order of time; successive steps have different states.
    steps: Vec<Step>,
    /// Until when the last state is known.
    until: u64,
}

/// Bytes that are no history.
#[derive(Debug)]
pub struct NotAHistory(String);

impl fmt::Display for NotAHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is no history of a host: {}", self.0)
    }
}

impl std::error::Error for NotAHistory {}

/// A history as it is stored: the steps as packed numbers of variable length, (seconds since the step before) * 8 + state.
#[derive(Encode, Decode)]
struct Stored {
    #[n(0)]
    first_at: u64,
    #[n(1)]
    until: u64,
    #[cbor(n(2), with = "minicbor::bytes")]
    steps: Vec<u8>,
}

impl History {
    /// A host of which nothing is known.
    #[must_use]
    pub const fn new() -> Self {
        Self { steps: Vec::new(), until: 0 }
    }

    /// Takes note that the host is in `state` at `at`, seconds.
    pub fn record(&mut self, at: u64, state: State) {
        let state = if state == State::Full { State::Running } else { state };
        if at < self.until {
            self.go_back_to(at);
        }
        self.until = at;
        if self.steps.last().is_some_and(|last| last.state == state) {
            return;
        }
        // A state that held for no time at all leaves no trace.
        while self.steps.last().is_some_and(|last| last.at == at) {
            self.steps.pop();
        }
        if self.steps.last().is_none_or(|last| last.state != state) {
            self.steps.push(Step { at, state });
        }
        if self.steps.len() > STEPS_MAX {
            self.coarsen();
            // Some must be gained, or each further step would look at all of them.
            if self.steps.len() > STEPS_MAX - STEPS_MAX / 4 {
                self.steps.drain(..STEPS_MAX / 4);
            }
        }
    }

    /// Makes one step of those that follow each other in the older half and differ only in how loaded the host was. A disk whose load
    /// changes every minute must not push failures out.
    fn coarsen(&mut self) {
        let newer = self.steps.split_off(STEPS_MAX / 2);
        let end = newer.first().map_or(self.until, |step| step.at);
        let older = std::mem::take(&mut self.steps);
        let ends: Vec<u64> = older.iter().skip(1).map(|step| step.at).chain([end]).collect();
        let spans: Vec<(Step, u64)> =
            older.iter().zip(ends).map(|(step, end)| (*step, end - step.at)).collect();
        for together in spans.chunk_by(|one, other| one.0.state.serves() && other.0.state.serves()) {
            let Some((first, _)) = together.first() else { continue };
            let spent = |state: State| -> u64 {
                together.iter().filter(|(step, _)| step.state == state).map(|(_, seconds)| seconds).sum()
            };
            let longest = together.iter().map(|(step, _)| step.state).max_by_key(|state| spent(*state));
            let state = longest.unwrap_or(first.state);
            if self.steps.last().is_none_or(|last| last.state != state) {
                self.steps.push(Step { at: first.at, state });
            }
        }
        let known = self.steps.last().map(|last| last.state);
        // Successive steps have different states, also where the halves meet.
        let same = newer.first().is_some_and(|step| Some(step.state) == known);
        self.steps.extend(newer.into_iter().skip(usize::from(same)));
    }

    /// Takes note at `at` that the last state still holds. Without it, time after the last record isn't known.
    pub fn still(&mut self, at: u64) {
        if let Some(last) = self.steps.last().copied() {
            self.record(at, last.state);
        }
    }

    /// Takes note that nobody was looking since the last record: after a restart or a change of the leader.
    pub fn gap(&mut self) {
        if !self.steps.is_empty() {
            self.record(self.until, State::Unknown);
        }
    }

    /// The clock has gone back to `at`: what lay after it can't be told from what is to come, and is forgotten.
    fn go_back_to(&mut self, at: u64) {
        let current = self.steps.last().map(|last| last.state);
        self.steps.retain(|step| step.at < at);
        self.until = at;
        if let Some(state) = current
            && self.steps.last().is_none_or(|last| last.state != state)
        {
            self.steps.push(Step { at, state });
        }
    }

    /// The last state that is known.
    #[must_use]
    pub fn state(&self) -> State {
        self.steps.last().map_or(State::Unknown, |last| last.state)
    }

    /// Its steps: since when, seconds, it is in which state; in order of time.
    pub fn steps(&self) -> impl Iterator<Item = (u64, State)> + '_ {
        self.steps.iter().map(|step| (step.at, step.state))
    }

    /// Until when it is known, seconds.
    #[must_use]
    pub const fn until(&self) -> u64 {
        self.until
    }

    /// Steps that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The states from `from` to `to` (exclusive), seconds; time before the first step and after the last record is left out.
    pub fn spans(&self, from: u64, to: u64) -> impl Iterator<Item = Span> + '_ {
        let first = self.steps.partition_point(|step| step.at <= from).saturating_sub(1);
        let to = to.min(self.until);
        let ends = part(&self.steps, first..).iter().skip(1).map(|step| step.at).chain([self.until]);
        part(&self.steps, first..)
            .iter()
            .zip(ends)
            .map(move |(step, end)| Span { from: step.at.max(from), to: end.min(to), state: step.state })
            .take_while(move |span| span.from < to)
            .filter(|span| span.from < span.to)
    }

    /// Mean time from coming up to failing, seconds, over the failures that are known; none without a failure.
    #[must_use]
    pub fn mean_time_to_failure(&self) -> Option<f64> {
        let (mut up, mut failures, mut was_up) = (0, 0_u32, false);
        for span in self.spans(0, u64::MAX) {
            if span.state.serves() {
                up += span.to - span.from;
            } else if span.state == State::Unavailable && was_up {
                failures += 1;
            }
            was_up = span.state.serves();
        }
        // The last step may be so young that no time has passed in it.
        if was_up && self.state() == State::Unavailable {
            failures += 1;
        }
        (failures > 0).then(|| up as f64 / f64::from(failures))
    }

    /// As it is stored.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let first_at = self.steps.first().map_or(self.until, |step| step.at);
        let mut steps = Vec::with_capacity(self.steps.len() * 3);
        let mut last = first_at;
        for step in &self.steps {
            assert!(step.at >= last, "steps are in order of time");
            put_number(&mut steps, (u128::from(step.at - last) << 3) | u128::from(step.state.number()));
            last = step.at;
        }
        cbor::encode(&Stored { first_at, until: self.until, steps })
    }

    /// Reads what [`History::encode`] made.
    ///
    /// # Errors
    /// The bytes are cut, of another kind, out of order, or have more than [`STEPS_MAX`] steps.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotAHistory> {
        let refuse = |why: &str| NotAHistory(why.to_owned());
        let stored: Stored = cbor::decode(bytes).map_err(|error| NotAHistory(error.to_string()))?;
        let (mut steps, mut at, mut rest): (Vec<Step>, _, _) =
            (Vec::new(), stored.first_at, stored.steps.as_slice());
        while !rest.is_empty() {
            let (number, after) = take_number(rest).ok_or_else(|| refuse("a number is cut or too long"))?;
            rest = after;
            let elapsed = u64::try_from(number >> 3).map_err(|_| refuse("a time is too large"))?;
            at = at.checked_add(elapsed).ok_or_else(|| refuse("a time is too large"))?;
            let low = u64::try_from(number & 7).map_err(|_| refuse("a state is too large"))?;
            let state = State::of_number(low).ok_or_else(|| refuse("there is no such state"))?;
            let ordered = steps.last().is_none_or(|last| last.at < at && last.state != state);
            if !ordered || state == State::Full || steps.len() >= STEPS_MAX {
                return Err(refuse("its steps are out of order or too many"));
            }
            steps.push(Step { at, state });
        }
        if steps.last().is_some_and(|last| last.at > stored.until)
            || steps.first().is_some_and(|first| first.at != stored.first_at)
        {
            return Err(refuse("it ends before its last step, or doesn't begin with its first"));
        }
        Ok(Self { steps, until: stored.until })
    }
}

fn put_number(bytes: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        bytes.push(narrow::<u8, _>(number & 0x7f) | 0x80);
        number >>= 7;
    }
    bytes.push(narrow(number));
}

fn take_number(bytes: &[u8]) -> Option<(u128, &[u8])> {
    /// Bytes of 67 bits, 7 in each.
    const BYTES_MAX: usize = 10;
    let mut number = 0_u128;
    for (place, byte) in bytes.iter().enumerate().take(BYTES_MAX) {
        number |= u128::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            // The shortest form only, so that what is understood is the same when it is written again.
            return (place == 0 || *byte != 0).then(|| (number, part(bytes, place + 1..)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(steps: &[(u64, State)], until: u64) -> History {
        let mut history = History::new();
        for (at, state) in steps {
            history.record(*at, *state);
        }
        history.still(until);
        history
    }

    fn seconds(history: &History, from: u64, to: u64, state: State) -> u64 {
        history.spans(from, to).filter(|span| span.state == state).map(|span| span.to - span.from).sum()
    }

    #[test]
    fn every_state_decides_what_it_accepts_and_serves() {
        let said = State::ALL.map(|state| (state.accepts(), state.serves()));
        assert_eq!(
            said,
            [(true, true), (false, true), (true, true), (false, true), (false, false), (false, false)]
        );
    }

    #[test]
    fn spans_are_cut_to_what_is_asked_and_known() {
        let history = of(&[(10, State::Running), (20, State::Unavailable), (25, State::Loaded)], 40);
        assert_eq!(seconds(&history, 0, 100, State::Running), 10);
        assert_eq!(seconds(&history, 15, 22, State::Running), 5);
        assert_eq!(seconds(&history, 15, 22, State::Unavailable), 2);
        assert_eq!(seconds(&history, 0, 100, State::Loaded), 15);
        assert_eq!(history.spans(50, 60).count() + history.spans(0, 5).count(), 0);
        assert_eq!(history.mean_time_to_failure(), Some(25.0));
    }

    #[test]
    fn a_clock_that_goes_back_and_time_that_nobody_saw_never_count_twice() {
        let mut history = of(&[(100, State::Running), (1_000_000, State::Unavailable)], 1_000_001);
        history.record(200, State::Running);
        history.still(300);
        assert_eq!(seconds(&history, 0, u64::MAX, State::Unavailable), 0);
        assert_eq!(seconds(&history, 0, u64::MAX, State::Running), 200);
        history.gap();
        history.record(400, State::Running);
        history.still(450);
        assert_eq!(seconds(&history, 0, u64::MAX, State::Unknown), 100);
        assert_eq!(seconds(&history, 0, u64::MAX, State::Running), 250);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_is_kept() {
        let mut history = History::new();
        for at in 0..10_000 {
            history.record(at, if at % 2 == 0 { State::Running } else { State::Unavailable });
        }
        assert!(history.len() <= STEPS_MAX && history.len() >= STEPS_MAX / 2);
        assert_eq!((history.state(), history.until()), (State::Unavailable, 9_999));
        assert!(history.encode().len() <= STEPS_MAX * 2);
    }

    #[test]
    fn loads_that_change_all_the_time_push_no_failure_out() {
        let mut history = of(&[(0, State::Running), (10, State::Unavailable), (20, State::Running)], 30);
        for minute in 1..2_000 {
            history.record(minute * 60, if minute % 2 == 0 { State::Loaded } else { State::Running });
        }
        assert!(history.len() <= STEPS_MAX);
        assert_eq!(history.mean_time_to_failure(), Some(10.0 + 1_999.0 * 60.0 - 20.0));
        assert_eq!(seconds(&history, 0, u64::MAX, State::Unavailable), 10);
        // The newest are as they were.
        let newest = seconds(&history, 1_900 * 60, 2_000 * 60, State::Loaded);
        assert_eq!(newest, 50 * 60);
        assert_eq!(History::decode(&history.encode()).unwrap(), history);
    }

    #[test]
    fn what_is_stored_is_read_again_and_nothing_else_is() {
        let history =
            of(&[(7, State::Refusing), (9, State::Unknown), (u64::MAX - 1, State::Running)], u64::MAX);
        let bytes = history.encode();
        assert_eq!(History::decode(&bytes).unwrap(), history);
        assert_eq!(History::decode(&History::new().encode()).unwrap(), History::new());
        for length in 0..bytes.len() {
            assert!(History::decode(&bytes[..length]).is_err(), "cut to {length}");
        }
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[place] ^= 1 << bit;
                if let Ok(read) = History::decode(&changed) {
                    assert_eq!(History::decode(&read.encode()).unwrap(), read);
                }
            }
        }
    }
}
