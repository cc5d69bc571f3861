//! What a pool owes: who was told what of which file, which versions there must be, which there can be, and who let go of what.
//!
//! The model knows what clients asked for and what they were told, and docs/SEMANTICS.md. It asks the pool nothing and uses nothing of it
//! but the numbers of files and sessions. What the pool shows is judged against it:
//!
//! | the pool shows | the model says |
//! |---|---|
//! | a version | some session asked for a commit of that content in this file, or in one whose versions it took over |
//! | a version in a container | somebody asked that this very version move into that container as that file |
//! | no version of a session | nobody was told that this session committed, or an owner had the version dropped |
//! | a newest version | no other one was committed later for sure |
//! | no file under a name | an owner removed or renamed it, or its set is older than a complete one and the folder keeps only the newest |
//!
//! Things that are asked for happen at some moment between the question and the answer. Without an answer they may have happened until
//! their client gave them up.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::{Ino, SessionId};

use super::content::{Number, map_number};

/// Names that there are: two timesteps with two ranks each.
pub const NAMES: usize = 4;
/// Names of a timestep.
const RANKS: usize = 2;

/// Place of something in the order of all that was asked and told.
type Moment = u64;

/// What a file was written as: its chunks in order, and whether their map lies in the pool.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Content {
    pub list: Vec<Number>,
    pub map_in_pool: bool,
}

impl Content {
    /// The chunks without which it can't be read.
    pub fn needs(&self) -> BTreeSet<Number> {
        self.list.iter().copied().chain(self.map_in_pool.then(|| map_number(&self.list))).collect()
    }
}

/// Where a version lies, as the pool shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lies {
    /// In chunks of its own.
    AsItIs(Content),
    /// As a file of a container.
    In { container: Content, file: u32 },
}

impl Lies {
    /// The chunks without which it can't be read.
    pub fn needs(&self) -> BTreeSet<Number> {
        let (Self::AsItIs(content) | Self::In { container: content, .. }) = self;
        content.needs()
    }
}

/// A version that the pool shows.
#[derive(Clone, PartialEq, Debug)]
pub struct Shown {
    pub number: u64,
    pub session: SessionId,
    pub lies: Lies,
}

/// A commit that a client asked for.
#[derive(Clone, Debug)]
struct Commit {
    content: Content,
    /// It is the last of its session.
    is_last: bool,
    asked: Moment,
    told: Option<Moment>,
    given_up: Option<Moment>,
}

impl Commit {
    /// The moment by which it has happened if it did; `None`: it may happen still.
    fn end(&self) -> Option<Moment> {
        self.told.or(self.given_up)
    }
}

/// What a session committed of a file, or may have: one version, of which each commit takes the place of the one before.
#[derive(Clone, Debug)]
struct Version {
    session: SessionId,
    client: usize,
    /// The last of which the client was told, and those that it asked for since.
    commits: Vec<Commit>,
    /// All that it ever asked for. A session that was silent for long leaves an interrupted version behind, and may commit another one.
    ever: BTreeSet<Content>,
    /// The client asked that the session end as it should.
    is_closed: bool,
    /// An owner had it dropped.
    is_dropped: bool,
}

impl Version {
    fn told(&self) -> Option<&Commit> {
        self.commits.iter().find(|commit| commit.told.is_some())
    }

    fn is_owed(&self) -> bool {
        self.told().is_some() && !self.is_dropped
    }

    fn may_be(&self, content: &Content) -> bool {
        self.commits.iter().any(|commit| commit.content == *content)
    }
}

/// A file.
#[derive(Clone, Default, Debug)]
struct File {
    versions: Vec<Version>,
    /// Those of files whose place this one took.
    older: Vec<Version>,
    /// When it got its name.
    named: Moment,
    /// When it took the place of another one and nobody had been told that it was written: then it has an empty version.
    empty_since: Option<Moment>,
}

impl File {
    fn all(&self) -> impl Iterator<Item = &Version> {
        self.older.iter().chain(&self.versions)
    }

    fn commits(&self) -> impl Iterator<Item = (&Version, &Commit)> {
        self.versions.iter().flat_map(|version| version.commits.iter().map(move |commit| (version, commit)))
    }

    fn is_acknowledged(&self) -> bool {
        self.versions.iter().any(|version| version.told().is_some())
    }

    /// Whether a commit may be the newest of this file: none is younger for sure.
    fn may_be_newest(&self, commit: &Commit) -> bool {
        let end = commit.end();
        !self.commits().any(|(_, other)| other.told.is_some() && end.is_some_and(|end| other.asked > end))
    }

    /// The moment after which it was neither written nor named, for sure; and the last from which on it was, for sure.
    fn last_change(&self) -> (Option<Moment>, Moment) {
        let ends: Option<Vec<Moment>> =
            self.all().flat_map(|version| &version.commits).map(Commit::end).collect();
        let latest = ends.map(|ends| ends.into_iter().max().unwrap_or(0).max(self.named));
        let owed = self.all().filter(|version| version.is_owed()).filter_map(Version::told);
        let sure = owed.map(|commit| commit.asked).max();
        (latest, sure.unwrap_or(0).max(self.named))
    }
}

/// A version that somebody wants to lie in a container.
#[derive(Clone, PartialEq, Debug)]
struct Move {
    session: SessionId,
    own: Content,
    container: Content,
    file: u32,
    is_told: bool,
}

/// All files.
#[derive(Clone, Default, Debug)]
pub struct Files {
    files: BTreeMap<Ino, File>,
    pub names: [Option<Ino>; NAMES],
    /// The folder keeps its newest complete set only.
    pub is_replaced: bool,
    moves: Vec<Move>,
    now: Moment,
}

impl Files {
    fn moment(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn get(&mut self, ino: Ino) -> &mut File {
        self.files.entry(ino).or_default()
    }

    pub fn has_name(&self, ino: Ino) -> bool {
        self.names.contains(&Some(ino))
    }

    /// Files that there may be, with a name or without.
    pub fn all(&self) -> Vec<Ino> {
        self.files.keys().copied().collect()
    }

    // --- what happens

    /// A file is there under a name, or has another one.
    pub fn named(&mut self, ino: Ino) {
        let moment = self.moment();
        self.get(ino).named = moment;
    }

    /// A file without a name is gone.
    pub fn gone(&mut self, ino: Ino) {
        assert!(!self.has_name(ino), "file {ino} has a name, and is gone");
        self.files.remove(&ino);
    }

    /// The file `moved` has got the name of `replaced`, and its versions as older ones.
    pub fn took_the_place_of(&mut self, moved: Ino, replaced: Ino) {
        let moment = self.moment();
        let old = self.files.remove(&replaced).unwrap_or_default();
        let file = self.get(moved);
        if !file.is_acknowledged() {
            file.empty_since = Some(moment);
        }
        file.empty_since = file.empty_since.or(old.empty_since);
        file.older.extend(old.older.into_iter().chain(old.versions));
    }

    /// The client asks for a commit.
    pub fn asked_for(
        &mut self,
        ino: Ino,
        (session, client): (SessionId, usize),
        content: Content,
        is_last: bool,
    ) {
        let asked = self.moment();
        let version = self.version(ino, session, client);
        version.ever.insert(content.clone());
        version.commits.push(Commit { content, is_last, asked, told: None, given_up: None });
    }

    fn version(&mut self, ino: Ino, session: SessionId, client: usize) -> &mut Version {
        let versions = &mut self.get(ino).versions;
        let at = versions.iter().position(|version| version.session == session).unwrap_or_else(|| {
            let (commits, ever) = (Vec::new(), BTreeSet::new());
            versions.push(Version { session, client, commits, ever, is_closed: false, is_dropped: false });
            versions.len() - 1
        });
        &mut versions[at]
    }

    /// The client is told that the file holds what it asked for last.
    pub fn told(&mut self, ino: Ino, (session, client): (SessionId, usize), content: &Content) {
        let moment = self.moment();
        let version = self.version(ino, session, client);
        version.ever.insert(content.clone());
        let last = version.commits.pop().filter(|commit| commit.content == *content);
        // What it asked for in the file whose place another one took, it is told of this one.
        let (asked, is_last) = last.map_or((moment, false), |commit| (commit.asked, commit.is_last));
        // A session that commits again, since an answer was lost or since more was written, keeps the number of its version.
        let asked = version.commits.iter().map(|commit| commit.asked).chain([asked]).min().unwrap();
        version.commits =
            vec![Commit { content: content.clone(), is_last, asked, told: Some(moment), given_up: None }];
    }

    /// The client doesn't ask for it any more. It may have been done all the same.
    pub fn given_up(&mut self, ino: Ino, client: usize) {
        let moment = self.moment();
        let own = self.get(ino).versions.iter_mut().filter(|version| version.client == client);
        own.flat_map(|version| &mut version.commits).for_each(|commit| {
            commit.given_up.get_or_insert(moment);
        });
    }

    /// The client asks that its session end as it should.
    pub fn closes(&mut self, ino: Ino, session: SessionId) {
        let versions = &mut self.get(ino).versions;
        versions.iter_mut().filter(|version| version.session == session).for_each(|version| {
            version.is_closed = true;
        });
    }

    /// A version that an owner may drop: a session committed it that has ended, and a newer one is there for sure.
    pub fn may_drop(&self, ino: Ino, shown: &[Shown]) -> Option<u64> {
        let file = self.files.get(&ino)?;
        let (newest, rest) = shown.split_last()?;
        let is_done = |version: &&Version| {
            version.is_owed() && version.is_closed && version.commits.len() == 1
                || file.older.iter().any(|older| older.session == version.session && version.is_owed())
        };
        let done: Vec<SessionId> = file.all().filter(is_done).map(|version| version.session).collect();
        let one = rest.iter().find(|one| one.session != newest.session && done.contains(&one.session))?;
        Some(one.number)
    }

    /// An owner had the version of this session dropped.
    pub fn dropped(&mut self, ino: Ino, session: SessionId) {
        let file = self.get(ino);
        let all = file.versions.iter_mut().chain(&mut file.older);
        all.filter(|version| version.session == session).for_each(|version| version.is_dropped = true);
    }

    /// Somebody asks that a version move into a container.
    pub fn asked_to_move(&mut self, session: SessionId, own: &Content, container: &Content, file: u32) {
        let one = Move { session, own: own.clone(), container: container.clone(), file, is_told: false };
        let is_known = |known: &Move| Move { is_told: false, ..known.clone() } == one;
        if !self.moves.iter().any(is_known) {
            self.moves.push(one);
        }
    }

    /// It is told that it did.
    pub fn told_to_have_moved(&mut self, session: SessionId, container: &Content, file: u32) {
        let is_it = |known: &&mut Move| {
            known.session == session && known.container == *container && known.file == file
        };
        self.moves.iter_mut().filter(is_it).for_each(|known| known.is_told = true);
    }

    /// All is as it was when `older` was taken; what is still on its way since may come again.
    pub fn set_back_to(&mut self, older: Self) {
        let newer = std::mem::replace(self, older);
        self.now = self.now.max(newer.now);
        for one in newer.moves {
            self.asked_to_move(one.session, &one.own, &one.container, one.file);
        }
    }

    // --- what the pool shows

    /// What a version held before it moved to where it lies.
    pub fn unpacked(&self, ino: Ino, lies: &Lies) -> Vec<Content> {
        let (container, file) = match lies {
            Lies::AsItIs(content) => return vec![content.clone()],
            Lies::In { container, file } => (container, *file),
        };
        let known = self.files.get(&ino);
        let all = known.into_iter().flat_map(File::all).map(|version| version.session);
        let empty = known.and_then(|known| known.empty_since).map(|_| SessionId::default());
        let sessions: BTreeSet<SessionId> = all.chain(empty).collect();
        let moves = self.moves.iter().filter(|one| sessions.contains(&one.session));
        let moves = moves.filter(|one| one.container == *container && one.file == file);
        moves.map(|one| one.own.clone()).collect()
    }

    /// What this version, which is shown, held before it moved to where it lies.
    fn own(&self, shown: &Shown) -> Vec<Content> {
        match &shown.lies {
            Lies::AsItIs(content) => vec![content.clone()],
            Lies::In { container, file } => {
                let moves = self.moves.iter().filter(|one| one.session == shown.session);
                let moves = moves.filter(|one| one.container == *container && one.file == *file);
                moves.map(|one| one.own.clone()).collect()
            }
        }
    }

    /// Judges all versions of a file that has a name, the oldest first.
    pub fn judge(&self, ino: Ino, shown: &[Shown]) -> Result<(), String> {
        let Some(file) = self.files.get(&ino) else { return Err(format!("nobody made file {ino}")) };
        for one in shown {
            self.judge_one(file, one)
                .map_err(|why| format!("version {} of {ino} {why}: {one:?}", one.number))?;
        }
        for version in file.all().filter(|version| version.is_owed()) {
            let newest = shown.iter().rev().find(|one| one.session == version.session);
            let owed = &version.told().unwrap().content;
            let Some(newest) = newest else {
                return Err(format!(
                    "client {} was told that {ino} is {owed:?}, and it is gone",
                    version.client
                ));
            };
            if !self.own(newest).iter().any(|own| version.may_be(own)) {
                let client = version.client;
                return Err(format!("client {client} was told that {ino} is {owed:?}, and it is {newest:?}"));
            }
        }
        Ok(())
    }

    fn judge_one(&self, file: &File, one: &Shown) -> Result<(), &'static str> {
        if one.session == SessionId::default() {
            let is_empty = self.own(one).iter().any(|own| own.list.is_empty());
            let may_be_empty = file.empty_since.is_some() && is_empty;
            return if may_be_empty { Ok(()) } else { Err("is of no session") };
        }
        let Some(version) = file.all().find(|version| version.session == one.session) else {
            return Err("is of a session that committed nothing here");
        };
        let own = self.own(one);
        if !own.iter().any(|own| version.ever.contains(own)) {
            return Err("is nothing that its session ever asked for");
        }
        let mut told = self.moves.iter().filter(|known| known.is_told && known.session == one.session);
        let is_there = |known: &Move| {
            let place = Lies::In { container: known.container.clone(), file: known.file };
            !own.contains(&known.own) || place == one.lies
        };
        if told.all(is_there) { Ok(()) } else { Err("isn't where somebody was told that it moved") }
    }

    /// Judges the newest version of a file; `None`: it was never written.
    pub fn judge_newest(&self, ino: Ino, newest: Option<&Shown>) -> Result<(), String> {
        let Some(file) = self.files.get(&ino) else { return Err(format!("nobody made file {ino}")) };
        let Some(newest) = newest else {
            let is_new = !file.is_acknowledged();
            return if is_new { Ok(()) } else { Err(format!("{ino} was stored and holds nothing")) };
        };
        if newest.session == SessionId::default() {
            let may_be = file.empty_since.is_some() && !file.is_acknowledged();
            return if may_be { Ok(()) } else { Err(format!("{ino} was written, and is empty")) };
        }
        let own = self.own(newest);
        let possible: Vec<&Commit> = file
            .commits()
            .filter(|(version, commit)| version.session == newest.session && own.contains(&commit.content))
            .map(|(_, commit)| commit)
            .collect();
        match possible.iter().any(|commit| file.may_be_newest(commit)) {
            true => Ok(()),
            false => Err(format!("{ino} is {newest:?}, and can't be: {:?}", file.versions)),
        }
    }

    // --- lifetimes

    /// The files of a timestep, 0 or 1, by rank.
    fn set(&self, step: usize) -> impl Iterator<Item = Option<&File>> {
        let names = &self.names[step * RANKS..(step + 1) * RANKS];
        names.iter().map(|ino| ino.and_then(|ino| self.files.get(&ino)))
    }

    /// When the newest closed version of a file may have been committed at the latest; `None`: it has none, for sure.
    fn closed_at_latest(&self, file: &File) -> Option<Moment> {
        let closed = file.all().filter(|version| !version.is_dropped).flat_map(|version| {
            version.commits.iter().filter(move |commit| commit.is_last || version.is_closed)
        });
        closed.map(|commit| commit.end().unwrap_or(self.now)).chain(file.empty_since).max()
    }

    /// When the newest closed version of a file was committed at the earliest, if it has one for sure.
    fn closed_at_earliest(&self, file: &File) -> Option<Moment> {
        let mut newest = file.commits().filter(|(_, commit)| file.may_be_newest(commit));
        let (version, commit) = newest.next()?;
        let is_alone = newest.next().is_none() && commit.told.is_some() && !version.is_dropped;
        (is_alone && commit.is_last).then_some(commit.asked)
    }

    /// Whether the files of the first timestep may go by the folder's lifetime: those of the second are complete and younger.
    pub fn may_expire(&self) -> bool {
        let newer: Option<Vec<Moment>> = self.set(1).map(|file| self.closed_at_latest(file?)).collect();
        let older = self.set(0).flatten().map(|file| file.last_change().1).max();
        let is_older = |newer: Vec<Moment>| newer.into_iter().min() > older;
        self.is_replaced && newer.is_some_and(is_older)
    }

    /// Whether files of the first timestep must be gone by the folder's lifetime, when nothing is on its way and nothing is lost.
    pub fn must_expire(&self) -> bool {
        let newer: Option<Vec<Moment>> = self.set(1).map(|file| self.closed_at_earliest(file?)).collect();
        let older: Option<Vec<Moment>> = self.set(0).flatten().map(|file| file.last_change().0).collect();
        let newer = newer.and_then(|newer| newer.into_iter().min());
        let older = older.and_then(|older| older.into_iter().max());
        self.is_replaced && older.is_some_and(|older| newer.is_some_and(|newer| older < newer))
    }

    // --- for those who look for something to spoil

    /// Maps of files that lie in the pool.
    pub fn maps(&self, place: usize) -> Vec<Number> {
        let file = self.names[place].and_then(|ino| self.files.get(&ino));
        let commits = file.into_iter().flat_map(File::commits).map(|(_, commit)| &commit.content);
        commits.filter(|content| content.map_in_pool).map(|content| map_number(&content.list)).collect()
    }
}
