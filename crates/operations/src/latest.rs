//! The newest checkpoint set that is complete and whose every chunk is there and intact (I5): as far as the manager knows, which is
//! answered at once, or as its holders find when they read it ([`Depth`]).
//!
//! Sets that are newer and incomplete or damaged are passed over, each with the reason. Content whose benefactors are away is
//! no damage: it comes back with them, so what can't be reached and what is lost have different codes, and an older set is
//! taken in place of one that is merely away only where the caller says so ([`WhenAway`]).

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use stdchk_client::{Depth, Pool as Client};
use stdchk_model::message::manager::{self, Attr, CheckpointSet, SetMember, SetState, TimeNs};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Redundancy, Timestep};
use stdchk_net::Retry;

use crate::check::{Checker, Health, is_about_content};
use crate::error::{About, Code, Error, Result};
use crate::list::Member;
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;
use crate::text::{in_time, in_time_if_known};
use crate::watch::{Event, Watch, Work};

/// Pauses while benefactors are waited for: the first and the longest.
const WAIT_PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// What to do when the newest complete set can't be reached, because benefactors are away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenAway {
    /// Say so.
    #[default]
    Fail,
    /// Wait for them so long at most.
    Wait(Duration),
    /// Take the newest set that can be reached.
    PassOver,
}

/// A set that can't be restarted from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassedOver {
    /// Its timestep.
    pub timestep: Timestep,
    /// Why it can't, for people.
    pub reason: String,
    /// Whether it can be restarted from once benefactors that are away are back.
    pub unavailable: bool,
    /// What of it has fewer copies than its folder asks for, as far as the manager knows.
    pub exposed: Option<Exposed>,
    /// Why it can't: [`Code::NotFound`] (it isn't complete), [`Code::Unreachable`] or [`Code::Damaged`].
    #[serde(skip)]
    pub code: Code,
    /// The benefactors that have what can't be reached, or may have it.
    #[serde(skip)]
    pub away: BTreeSet<BenefactorId>,
}

/// What of a set has fewer copies than its folder asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exposed {
    /// Chunks.
    pub chunks: u64,
    /// Their plain bytes.
    pub bytes: u64,
    /// Since when at the most; `None`: not known, or nothing lacks a copy.
    #[serde(serialize_with = "in_time_if_known")]
    pub since: Option<TimeNs>,
    /// Those chunks that can be read from memory alone.
    pub in_memory: u64,
}

impl From<manager::Exposed> for Exposed {
    fn from(exposed: manager::Exposed) -> Self {
        let manager::Exposed { chunks, bytes, since, in_memory } = exposed;
        Self { chunks, bytes, since, in_memory }
    }
}

/// A set that can be restarted from: complete, and every chunk of it is there and intact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LatestSet {
    /// The application's folder.
    pub app: String,
    /// The timestep.
    pub timestep: Timestep,
    /// Always complete.
    pub state: SetState,
    /// Whether every block of it was read and compared with its name just now; else that is what the manager knows.
    pub checked: bool,
    /// When the last of its files was committed.
    #[serde(serialize_with = "in_time")]
    pub committed_at: TimeNs,
    /// What of it was found to have fewer copies than its folder asks for.
    pub exposed: Exposed,
    /// Its files.
    pub members: Vec<Member>,
    /// The newer sets that can't be restarted from, newest first.
    pub passed_over: Vec<PassedOver>,
    /// Its distinct chunks.
    #[serde(skip)]
    pub chunks: u64,
    /// Copies of each chunk that its folder asks for.
    #[serde(skip)]
    pub redundancy: Redundancy,
}

impl LatestSet {
    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        self.members.iter().map(|member| member.bytes).sum()
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Latest {
    /// The newest set that can be restarted from.
    Set(LatestSet),
    /// There is none, or none that is not older than one which is away; these can't be restarted from, newest first.
    None(Vec<PassedOver>),
}

impl Latest {
    /// The sets that are newer than the one that was found, or all if none was.
    pub fn passed_over(&self) -> &[PassedOver] {
        match self {
            Self::Set(set) => &set.passed_over,
            Self::None(passed_over) => passed_over,
        }
    }

    /// The set.
    ///
    /// # Errors
    /// There is none: [`Code::NotFound`] if none is complete, [`Code::Unreachable`] if one can be restarted from once
    /// benefactors are back, [`Code::Damaged`] if all that are complete are damaged.
    pub fn required(self, app: &Target) -> Result<LatestSet> {
        match self {
            Self::Set(set) => Ok(set),
            Self::None(passed_over) => Err(none(app, &passed_over)),
        }
    }
}

/// Why no set can be restarted from.
fn none(app: &Target, passed_over: &[PassedOver]) -> Error {
    let shown = app.shown();
    let first = |code| passed_over.iter().find(|set| set.code == code);
    // What can come back is no damage.
    if let Some(newest) = first(Code::Unreachable) {
        let (timestep, reason) = (newest.timestep, &newest.reason);
        let cause = format!("the newest complete set, timestep {timestep}, is away: {reason}");
        let next = format!(
            "`stdchk latest {shown} --wait` waits for its benefactors, which `stdchk status` shows; with --or-older, \
             `latest` and `restore` take an older set that can be reached"
        );
        return Error::new(Code::Unreachable, shown, cause, next);
    }
    if first(Code::Damaged).is_some() {
        let next = "`stdchk verify` shows the damage; `stdchk get` fetches the files that are left";
        return Error::new(Code::Damaged, shown, "no complete set is intact", next);
    }
    if passed_over.is_empty() {
        let next = format!("`stdchk ls {shown} --sets` says what is missing");
        return Error::new(Code::NotFound, shown, "it holds no checkpoint sets", next);
    }
    let next = format!(
        "`stdchk ls {shown} --sets` shows what is missing, `stdchk policy get {shown}` which names and how many \
         ranks are expected"
    );
    Error::new(Code::NotFound, shown, "there is no complete checkpoint set", next)
}

/// The set as the manager lists it, with what a look at its chunks found.
pub(crate) struct Found {
    pub(crate) set: Option<(CheckpointSet, Health)>,
    redundancy: Redundancy,
    depth: Depth,
    passed_over: Vec<PassedOver>,
}

impl Found {
    /// The newest set that is away, if there is none that can be restarted from.
    fn away(&self) -> Option<&PassedOver> {
        let away = self.passed_over.iter().find(|set| set.unavailable);
        away.filter(|_| self.set.is_none())
    }

    pub(crate) fn into_latest(self, app: &Target) -> Latest {
        let Self { set, redundancy, depth, passed_over } = self;
        let Some((set, health)) = set else { return Latest::None(passed_over) };
        let since = set.exposed.and_then(|exposed| exposed.since).filter(|_| health.at_risk > 0);
        Latest::Set(LatestSet {
            app: app.path(),
            timestep: set.timestep,
            state: set.state,
            checked: depth == Depth::Read,
            committed_at: set.committed_at,
            exposed: Exposed {
                chunks: health.at_risk,
                bytes: health.at_risk_bytes,
                since,
                in_memory: health.in_memory,
            },
            members: set.members.iter().map(Member::from).collect(),
            passed_over,
            chunks: health.chunks,
            redundancy,
        })
    }

    /// The set.
    pub(crate) fn required(self, app: &Target) -> Result<CheckpointSet> {
        match self.set {
            Some((set, _)) => Ok(set),
            None => Err(none(app, &self.passed_over)),
        }
    }
}

impl Pool {
    /// The newest set of a folder that is complete and intact. What is passed over, or waited for, is told to `watch`, too.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such folder. [`Code::WrongKind`]: it is no folder. [`Code::Unreachable`]: the manager
    /// doesn't answer. That there is no such set is no error of this, but of [`Latest::required`].
    pub async fn latest(
        &self,
        app: &Target,
        when_away: WhenAway,
        depth: Depth,
        watch: &Watch,
    ) -> Result<Latest> {
        Ok(newest(&self.client, app, when_away, depth, watch).await?.into_latest(app))
    }
}

/// Looks at the sets of a folder, newest first, until one is complete and intact.
pub(crate) async fn newest(
    pool: &Client,
    app: &Target,
    when_away: WhenAway,
    depth: Depth,
    watch: &Watch,
) -> Result<Found> {
    let shown = app.shown();
    let attr = namespace::resolve_folder(pool, app).await?;
    let redundancy = pool.policy(attr.ino).await.about(&shown)?.redundancy;
    let stage = watch.begin(Work::Verify, 0);
    let mut look = Look {
        pool,
        attr,
        redundancy,
        checker: Checker::new(pool, &stage, depth),
        passes: WhenAway::PassOver == when_away,
    };
    let mut retry = match when_away {
        WhenAway::Wait(limit) => Some(Retry::new(limit, WAIT_PAUSES)),
        WhenAway::Fail | WhenAway::PassOver => None,
    };
    let mut told = None;
    let found = loop {
        let mut found = look.newest().await.about(&shown)?;
        tell_since(pool, &mut found.passed_over).await.about(&shown)?;
        let Some(away) = found.away() else { break found };
        let Some(retry) = &mut retry else { break found };
        if told.as_ref() != Some(&away.away) {
            watch.tell(&Event::Waiting { app: &shown, set: away });
            told = Some(away.away.clone());
        }
        if !retry.pause().await {
            break found;
        }
        look.checker.forget_what_is_away();
    };
    drop(stage);
    for set in &found.passed_over {
        watch.tell(&Event::PassedOver { app: &shown, set });
    }
    Ok(found)
}

/// A search for the newest set of a folder.
struct Look<'a> {
    pool: &'a Client,
    attr: Attr,
    redundancy: Redundancy,
    checker: Checker<'a>,
    /// Whether sets that are away are passed over.
    passes: bool,
}

impl Look<'_> {
    async fn newest(&mut self) -> Result<Found, Failure> {
        let mut looks = 1;
        loop {
            let sets = self.pool.sets(self.attr.ino).await?;
            match self.newest_of(sets).await {
                // A member was replaced or removed after the sets were listed.
                Err(failure) if failure.code == ErrorCode::NotFound && looks < namespace::LOOKS_MAX => {
                    looks += 1
                }
                found => return found,
            }
        }
    }

    async fn newest_of(&mut self, sets: Vec<CheckpointSet>) -> Result<Found, Failure> {
        let (redundancy, depth) = (self.redundancy, self.checker.depth);
        let mut passed_over: Vec<PassedOver> = Vec::new();
        for set in sets {
            match verified(&mut self.checker, &set, redundancy).await? {
                Verdict::Intact(health) => {
                    return Ok(Found { set: Some((set, health)), redundancy, depth, passed_over });
                }
                Verdict::PassedOver(reason) => {
                    let ends = reason.unavailable && !self.passes;
                    passed_over.push(reason);
                    if ends {
                        break;
                    }
                }
            }
        }
        Ok(Found { set: None, redundancy, depth, passed_over })
    }
}

/// What a look at all chunks of a set says.
enum Verdict {
    /// It can be restarted from; how its chunks were found.
    Intact(Health),
    /// It can't.
    PassedOver(PassedOver),
}

/// Looks at all chunks of a set.
async fn verified(
    checker: &mut Checker<'_>,
    set: &CheckpointSet,
    redundancy: Redundancy,
) -> Result<Verdict, Failure> {
    let refuse = |code, reason, away| {
        let exposed = set.exposed.map(Exposed::from);
        let (timestep, unavailable) = (set.timestep, code == Code::Unreachable);
        Verdict::PassedOver(PassedOver { timestep, reason, unavailable, exposed, code, away })
    };
    if set.state != SetState::Complete {
        return Ok(refuse(Code::NotFound, set.reason.clone(), BTreeSet::new()));
    }
    let mut all = Health::default();
    for member in &set.members {
        match checker.version(member.ino, Some(member.version), redundancy.distance()).await {
            Ok((_, health)) if health.is_readable() => {
                all.chunks += health.chunks;
                all.at_risk += health.at_risk;
                all.at_risk_bytes += health.at_risk_bytes;
                all.in_memory += health.in_memory;
            }
            Ok((_, health)) => {
                return Ok(refuse(code_of(&health), damage(member, &health.reason()), health.away));
            }
            Err(failure) if is_about_content(&failure) => {
                return Ok(refuse(Code::Damaged, damage(member, &failure.message), BTreeSet::new()));
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(Verdict::Intact(all))
}

/// Adds to the reasons since when the benefactors have been away.
async fn tell_since(pool: &Client, passed_over: &mut [PassedOver]) -> Result<(), Failure> {
    if passed_over.iter().all(|set| set.away.is_empty()) {
        return Ok(());
    }
    let infos = pool.benefactors().await?;
    for set in passed_over {
        let away = infos.iter().filter(|info| set.away.contains(&info.id));
        let since: Vec<String> =
            away.map(|info| format!("{} for {} s", info.id, info.silent_ms / 1000)).collect();
        if !since.is_empty() {
            set.reason.push_str(&format!(" (not heard of: {})", since.join(", ")));
        }
    }
    Ok(())
}

fn code_of(health: &Health) -> Code {
    if health.lost > 0 { Code::Damaged } else { Code::Unreachable }
}

fn damage(member: &SetMember, reason: &str) -> String {
    format!("{}@{}: {reason}", member.name, member.version)
}
