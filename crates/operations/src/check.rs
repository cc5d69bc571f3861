//! Verifying content where it lies: every holder of a chunk reads it and compares it with its name. Or the manager says what it knows of
//! the holders.
//!
//! Versions share most of their chunks; a [`Checker`] asks about each chunk once, however many versions name it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use stdchk_client::{ChunkHealth, Depth, Pool as Client};
use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::manager::VersionInfo;
use stdchk_model::{BenefactorId, ChunkId, ChunkRef, ErrorCode, Failure, Ino, Maker, MapRoot, Redundancy};

use crate::watch::Stage;

/// Chunks that are verified in one request: about a gigabyte, so that progress shows.
const CHUNKS_PER_REQUEST: usize = 1024;
/// Chunks that the manager is asked about at once.
const CHUNKS_PER_QUESTION: usize = LIST_ENTRIES_MAX;

/// What is left of a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// It can be read: how many benefactors have to be lost before no disk has it, and whether a block of it was damaged.
    Intact { distance: u8, damaged: bool },
    /// Nobody has it intact, but these could not be asked, and have it or may have it.
    Unreachable(Vec<BenefactorId>),
    /// Nobody has it.
    Lost,
}

/// What is known of a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    state: State,
    /// Who made fragments of it that don't make it.
    makers: BTreeSet<Maker>,
}

/// What a verification of one or more versions found, each chunk counted once.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Health {
    /// Distinct chunks, those of the chunk map included.
    pub chunks: u64,
    /// Their plain bytes.
    pub bytes: u64,
    /// Chunks of which an intact copy was found.
    pub intact: u64,
    /// Chunks with fewer intact copies than were asked for.
    pub at_risk: u64,
    /// Their plain bytes.
    pub at_risk_bytes: u64,
    /// Those of them that can be read from memory alone: no disk has enough of them.
    pub in_memory: u64,
    /// Chunks of which a copy was damaged; counted in `intact` as well if another copy is not.
    pub damaged: u64,
    /// Chunks without a copy that could be read, while a holder could not be reached.
    pub unreachable: u64,
    /// Chunks without an intact copy anywhere.
    pub lost: u64,
    /// Chunks of which fragments are stored that don't make them, whether they can be read from others or not.
    pub broken: u64,
    /// Who made these fragments, as 16 hexadecimal digits, with the number of chunks.
    #[serde(serialize_with = "makers")]
    pub makers: BTreeMap<Maker, u64>,
    /// Benefactors that could not be reached and have chunks that nobody else has, or may have them.
    #[serde(serialize_with = "numbers")]
    pub away: BTreeSet<BenefactorId>,
}

impl Health {
    /// Whether everything can be read now.
    pub fn is_readable(&self) -> bool {
        self.lost == 0 && self.unreachable == 0
    }

    /// What was found, in one line. `redundancy`: what every chunk should have.
    pub fn summary(&self, redundancy: Redundancy) -> String {
        let mut text = format!("{} chunks, {} intact", self.chunks, self.intact);
        for (count, what) in [
            (self.at_risk, format!("with {}", redundancy.shortage())),
            (self.in_memory, "in memory alone".to_owned()),
            (self.damaged, "with a damaged copy".to_owned()),
            (self.unreachable, "out of reach".to_owned()),
            (self.lost, "lost".to_owned()),
            (self.broken, format!("with a broken encoding{}", self.made_by())),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text
    }

    /// Why something can't be read, for people; empty if everything can.
    pub fn reason(&self) -> String {
        match (self.lost, self.unreachable) {
            (0, 0) => String::new(),
            (0, unreachable) => {
                let names: Vec<String> = self.away.iter().map(ToString::to_string).collect();
                let who = match names.len() {
                    0 => String::new(),
                    1 => format!(": {} is away", names.join("")),
                    _ => format!(": {} are away", names.join(", ")),
                };
                format!("{unreachable} of {} chunks can't be reached now{who}", self.chunks)
            }
            (lost, _) => format!("{lost} of {} chunks have no intact copy{}", self.chunks, self.made_by()),
        }
    }

    /// Whose fragments don't make their chunks, for people; empty if all do.
    fn made_by(&self) -> String {
        let makers: Vec<String> = self.makers.keys().map(ToString::to_string).collect();
        if makers.is_empty() { String::new() } else { format!(" (fragments made by {})", makers.join(", ")) }
    }
}

/// Verifies versions, each chunk at most once.
pub(crate) struct Checker<'a> {
    pool: &'a Client,
    progress: &'a Stage,
    pub(crate) depth: Depth,
    known: HashMap<ChunkId, Known>,
}

impl<'a> Checker<'a> {
    /// A checker that has seen nothing yet.
    pub fn new(pool: &'a Client, progress: &'a Stage, depth: Depth) -> Self {
        Self { pool, progress, depth, known: HashMap::new() }
    }

    /// What can't be reached now is looked at again.
    pub fn forget_what_is_away(&mut self) {
        self.known.retain(|_, known| !matches!(known.state, State::Unreachable(_)));
    }

    /// Verifies one version, the newest if none is named. `copies`: how many every chunk should have. Where the chunk map
    /// can't be had, what is said is about the chunks that it lies in.
    ///
    /// # Errors
    /// `Damaged` if the chunk map is none; `NotFound` if the version is not there, or not any more; or the manager can't be
    /// asked.
    pub async fn version(
        &mut self,
        ino: Ino,
        version: Option<u64>,
        wanted: u8,
    ) -> Result<(Option<VersionInfo>, Health), Failure> {
        let (mut info, mut root) = self.pool.map_root(ino, version).await?;
        loop {
            let health = self.content(ino, info.as_ref(), root.as_ref(), wanted).await;
            if health.as_ref().is_ok_and(Health::is_readable) {
                return Ok((info, health?));
            }
            // What was removed, or moved into a container, while it was looked at may be collected by now.
            let now = self.pool.map_root(ino, version).await?;
            if now.1 == root {
                return Ok((info, health?));
            }
            (info, root) = now;
        }
    }

    async fn content(
        &mut self,
        ino: Ino,
        info: Option<&VersionInfo>,
        root: Option<&MapRoot>,
        wanted: u8,
    ) -> Result<Health, Failure> {
        let pieces = root.map_or(&[][..], MapRoot::pieces);
        // What has the map is read in any case.
        let of_map = self.chunks(pieces, wanted, Depth::Read).await?;
        if !of_map.is_readable() {
            return Ok(of_map);
        }
        let chunks: Vec<ChunkRef> = match (self.pool.map_at(root).await, info) {
            // Who has the key is not needed to find out what is there.
            (Err(failure), Some(info)) if failure.code == ErrorCode::NoKey => {
                self.pool.chunks_of(ino, info.version).await?
            }
            (map, _) => map?.chunks().iter().chain(pieces).copied().collect(),
        };
        self.chunks(&chunks, wanted, self.depth).await
    }

    async fn chunks(&mut self, chunks: &[ChunkRef], wanted: u8, depth: Depth) -> Result<Health, Failure> {
        let distinct: HashMap<ChunkId, ChunkRef> = chunks.iter().map(|chunk| (chunk.id, *chunk)).collect();
        let new: Vec<ChunkRef> =
            distinct.values().filter(|chunk| !self.known.contains_key(&chunk.id)).copied().collect();
        let at_once = match depth {
            Depth::Known => CHUNKS_PER_QUESTION,
            Depth::Read => CHUNKS_PER_REQUEST,
        };
        for part in new.chunks(at_once) {
            for health in self.pool.verify_chunks(part, depth).await? {
                self.progress.moved(u64::from(health.chunk.length));
                self.known.insert(health.chunk.id, known_of(&health));
            }
        }
        let mut sum = Health::default();
        for chunk in distinct.values() {
            let known = self.known.get(&chunk.id).ok_or_else(|| {
                Failure::new(ErrorCode::Internal, format!("nothing was said of chunk {}", chunk.id))
                    .then("report this as a defect")
            })?;
            count(&mut sum, *chunk, known, wanted);
        }
        Ok(sum)
    }
}

fn known_of(health: &ChunkHealth) -> Known {
    let makers = health.broken.iter().map(|encoding| encoding.maker).collect();
    let state = match (health.is_readable, health.unreachable) {
        (true, _) => State::Intact { distance: health.distance, damaged: health.damaged > 0 },
        (false, 0) => State::Lost,
        (false, _) => State::Unreachable(health.away.clone()),
    };
    Known { state, makers }
}

fn count(sum: &mut Health, chunk: ChunkRef, Known { state, makers }: &Known, wanted: u8) {
    sum.chunks += 1;
    sum.bytes += u64::from(chunk.length);
    sum.broken += u64::from(!makers.is_empty());
    makers.iter().for_each(|maker| *sum.makers.entry(*maker).or_default() += 1);
    match state {
        State::Lost => sum.lost += 1,
        State::Unreachable(away) => {
            sum.unreachable += 1;
            sum.away.extend(away);
        }
        State::Intact { distance, damaged } => {
            let at_risk = *distance < wanted;
            sum.intact += 1;
            sum.damaged += u64::from(*damaged);
            sum.at_risk += u64::from(at_risk);
            sum.in_memory += u64::from(*distance == 0);
            sum.at_risk_bytes += if at_risk { u64::from(chunk.length) } else { 0 };
        }
    }
}

/// Benefactors as JSON has them.
fn numbers<S: serde::Serializer>(away: &BTreeSet<BenefactorId>, out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(away.iter().map(|id| id.0))
}

/// Makers as JSON has them.
pub(crate) fn makers<S: serde::Serializer>(makers: &BTreeMap<Maker, u64>, out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(makers.iter().map(|(maker, chunks)| (maker.to_string(), chunks)))
}

/// Whether a failure to read a chunk map says something about the content rather than about the pool.
pub fn is_about_content(failure: &Failure) -> bool {
    failure.code == ErrorCode::Damaged
}

#[cfg(test)]
mod tests {
    use stdchk_model::EncodingId;

    use super::*;

    fn health(distance: u8, damaged: u32, unreachable: u32) -> ChunkHealth {
        let chunk = ChunkRef { id: ChunkId([1; 32]), length: 10 };
        let (missing, is_readable, away, broken) = (0, distance > 0, Vec::new(), Vec::new());
        ChunkHealth { chunk, distance, is_readable, damaged, missing, unreachable, away, broken }
    }

    #[test]
    fn what_is_in_memory_alone_can_be_read_and_is_at_risk() {
        let in_memory = ChunkHealth { is_readable: true, ..health(0, 0, 1) };
        let mut sum = Health::default();
        count(&mut sum, in_memory.chunk, &known_of(&in_memory), 1);
        assert_eq!((sum.intact, sum.at_risk, sum.in_memory, sum.unreachable), (1, 1, 1, 0));
        assert!(sum.is_readable() && sum.summary(Redundancy::Replicate(1)).contains("1 in memory alone"));
    }

    #[test]
    fn fragments_that_do_not_make_a_chunk_are_told_with_their_maker_and_cost_only_what_they_stood_for() {
        let encoding = |byte| EncodingId { maker: Maker([byte; 8]), ..EncodingId::PLAIN };
        let readable = ChunkHealth { broken: vec![encoding(1)], ..health(2, 0, 0) };
        let lost = ChunkHealth { broken: vec![encoding(1), encoding(2)], ..health(0, 0, 0) };
        let mut sum = Health::default();
        for health in [&readable, &lost] {
            count(&mut sum, health.chunk, &known_of(health), 2);
        }
        assert_eq!((sum.intact, sum.lost, sum.broken), (1, 1, 2));
        assert_eq!(sum.makers, BTreeMap::from([(Maker([1; 8]), 2), (Maker([2; 8]), 1)]));
        let (reason, summary) = (sum.reason(), sum.summary(Redundancy::Replicate(2)));
        assert!(reason.ends_with("(fragments made by 0101010101010101, 0202020202020202)"), "{reason}");
        assert!(summary.contains("2 with a broken encoding"), "{summary}");
    }

    #[test]
    fn one_intact_copy_is_enough_to_read_and_too_few_are_at_risk() {
        let mut sum = Health::default();
        for (distance, damaged, unreachable) in [(2, 0, 0), (1, 1, 0), (0, 1, 1), (0, 1, 0), (0, 0, 0)] {
            let health = health(distance, damaged, unreachable);
            count(&mut sum, health.chunk, &known_of(&health), 2);
        }
        let (intact, at_risk, at_risk_bytes, damaged) = (2, 1, 10, 1);
        let (chunks, bytes, unreachable, lost, away) = (5, 50, 1, 2, BTreeSet::new());
        let in_memory = 0;
        let expected = Health {
            chunks,
            bytes,
            intact,
            at_risk,
            at_risk_bytes,
            in_memory,
            damaged,
            unreachable,
            lost,
            broken: 0,
            makers: BTreeMap::new(),
            away,
        };
        assert_eq!(sum, expected);
        assert_eq!(sum.reason(), "2 of 5 chunks have no intact copy");
    }
}
