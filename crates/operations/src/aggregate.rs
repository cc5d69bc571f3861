//! Complete checkpoint sets of a folder of the pool move into containers of the same pool.
//!
//! Which sets are complete and which lie in containers already, the manager knows; nothing is kept here but what a later
//! look needn't try again at once. Stopped at any point, a set lies where it lay, or in its containers.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use stdchk_aggregate::{AggregateError, Mode, Packing};
use stdchk_client::{AggregationError, PackedSet};
use stdchk_model::message::manager::{CheckpointSet, SetState};
use stdchk_model::{ErrorCode, Failure, Ino, Timestep};

use crate::error::{Error, Result};
use crate::list::bytes_of;
use crate::pool::Pool;
use crate::target::Target;
use crate::watch::{Watch, Work};

/// Wait before a set that could not be aggregated is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// How sets are packed.
#[derive(Clone, Debug)]
pub struct Aggregate {
    /// The application's folder.
    pub app: Target,
    /// Containers for each set.
    pub containers: usize,
    /// Time or space.
    pub mode: Mode,
    /// Threads that code; 0: one for each core.
    pub threads: usize,
    /// Memory for the bytes on their way.
    pub memory_bytes: u64,
}

/// A set that was packed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Aggregated {
    /// Its timestep.
    pub timestep: Timestep,
    /// Its files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the chunks that the files lay in, each counted once.
    pub chunk_bytes: u64,
    /// Bytes of the containers.
    pub stored_bytes: u64,
    /// Bytes of the files for each byte of the containers.
    pub ratio: f64,
    /// 0: the containers would not have been smaller, and the files lie where they lay.
    pub container_count: u64,
}

/// A set that waits to be packed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Waiting {
    /// Its timestep.
    pub timestep: Timestep,
    /// What it waits for.
    pub reason: String,
}

/// What one look at the folder led to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AggregateRound {
    /// The sets that were packed.
    pub sets: Vec<Aggregated>,
    /// The sets that wait.
    pub waiting: Vec<Waiting>,
    /// The time that it took.
    pub seconds: f64,
    /// Whether a set failed, now or a short while ago.
    #[serde(skip)]
    pub has_failed: bool,
    /// Whether a set failed, and for another reason than the last time.
    #[serde(skip)]
    pub fails_anew: bool,
}

/// Packs the sets of one folder, round after round.
pub struct Aggregator {
    pool: Pool,
    aggregate: Aggregate,
    folder: Ino,
    later: Later,
}

/// Sets that needn't be looked at now, by timestep.
#[derive(Default)]
struct Later {
    /// Containers would not have been smaller than the chunks of these members.
    not_smaller: HashMap<Timestep, HashSet<(Ino, u64)>>,
    failed: HashMap<Timestep, (Instant, String)>,
}

impl Pool {
    /// Who packs the sets of a folder.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such folder. [`Code::WrongKind`](crate::Code::WrongKind): it is
    /// no folder.
    pub async fn aggregator(&self, aggregate: Aggregate) -> Result<Aggregator> {
        let folder = self.folder(&aggregate.app).await?.ino;
        Ok(Aggregator { pool: self.clone(), aggregate, folder, later: Later::default() })
    }
}

impl Aggregator {
    /// Packs all sets that are complete and don't lie in containers, oldest first. Codes on its own threads and waits for the
    /// pool: not for a thread of a runtime. `is_over` is asked now and then.
    ///
    /// # Errors
    /// [`Code::Interrupted`](crate::Code::Interrupted): `is_over` said so. The sets can't be asked for. What becomes of single
    /// sets stands in the round.
    pub fn round(
        &mut self,
        watch: &Watch,
        is_over: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<AggregateRound> {
        let about = self.aggregate.app.shown();
        self.try_round(watch, is_over).map_err(|error| Error::of_aggregation(&error, about))
    }

    fn try_round(
        &mut self,
        watch: &Watch,
        is_over: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<AggregateRound, AggregationError> {
        let started = Instant::now();
        let (sets, waiting) = (Vec::new(), Vec::new());
        let mut round = AggregateRound { sets, waiting, seconds: 0.0, has_failed: false, fails_anew: false };
        let sets = self.pool.runtime().block_on(self.pool.client.sets(self.folder))?;
        for set in sets.iter().rev().filter(|set| !set.members.iter().all(|member| member.aggregated)) {
            if set.state != SetState::Complete {
                round.waiting.push(Waiting { timestep: set.timestep, reason: set.reason.clone() });
            } else if let Some(reason) = self.later.reason(set) {
                round.has_failed = true;
                round.waiting.push(Waiting { timestep: set.timestep, reason });
            } else if !self.later.is_not_smaller(set) {
                let packed = self.pack(set, watch, is_over);
                self.note(set, packed, &mut round)?;
            }
        }
        round.seconds = started.elapsed().as_secs_f64();
        Ok(round)
    }

    fn note(
        &mut self,
        set: &CheckpointSet,
        packed: Result<PackedSet, AggregationError>,
        round: &mut AggregateRound,
    ) -> Result<(), AggregationError> {
        let timestep = set.timestep;
        match packed {
            Ok(packed) => {
                if packed.containers == 0 {
                    self.later.not_smaller.insert(timestep, members(set));
                }
                round.sets.push(aggregated(timestep, &packed));
            }
            Err(AggregationError::Pool(failure)) if is_over_with(&failure) => {
                let reason = "it was changed or aggregated by others meanwhile".to_owned();
                round.waiting.push(Waiting { timestep, reason });
            }
            Err(error @ AggregationError::Packing(AggregateError::Stopped)) => return Err(error),
            Err(error) => {
                // Others may do better: a set may be damaged, or a member of it open for long.
                let reason = error.to_string();
                let before = self.later.failed.insert(timestep, (Instant::now(), reason.clone()));
                round.fails_anew |= before.is_none_or(|(_, before)| before != reason);
                round.has_failed = true;
                round.waiting.push(Waiting { timestep, reason });
            }
        }
        Ok(())
    }

    fn pack(
        &self,
        set: &CheckpointSet,
        watch: &Watch,
        is_over: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<PackedSet, AggregationError> {
        let stage = watch.begin(Work::Aggregate, bytes_of(set));
        let watch = |bytes| {
            stage.moved(bytes);
            !is_over()
        };
        let Aggregate { containers, mode, threads, memory_bytes, .. } = self.aggregate.clone();
        let packing = Packing { mode, budget: memory_bytes, threads, watch: &watch, ..Packing::default() };
        self.pool.client.aggregate_set(self.folder, set, containers, packing)
    }
}

/// Somebody else changed the set, or was faster.
fn is_over_with(failure: &Failure) -> bool {
    matches!(failure.code, ErrorCode::NotFound | ErrorCode::Exists)
}

fn members(set: &CheckpointSet) -> HashSet<(Ino, u64)> {
    set.members.iter().map(|member| (member.ino, member.version)).collect()
}

impl Later {
    fn is_not_smaller(&self, set: &CheckpointSet) -> bool {
        self.not_smaller.get(&set.timestep).is_some_and(|known| *known == members(set))
    }

    /// Why the set failed so short a time ago that it isn't tried again yet.
    fn reason(&self, set: &CheckpointSet) -> Option<String> {
        let (when, reason) = self.failed.get(&set.timestep)?;
        (when.elapsed() < RETRY_INTERVAL).then(|| reason.clone())
    }
}

fn aggregated(timestep: Timestep, packed: &PackedSet) -> Aggregated {
    Aggregated {
        timestep,
        files: packed.files,
        bytes: packed.raw_bytes,
        chunk_bytes: packed.chunk_bytes,
        stored_bytes: packed.stored_bytes,
        ratio: packed.raw_bytes as f64 / packed.stored_bytes.max(1) as f64,
        container_count: packed.containers,
    }
}
