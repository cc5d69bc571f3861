//! The aggregator: complete checkpoint sets of a folder become containers in a sink (mcrEngine, section IV).
//!
//! Relies on [`crate::pack()`], [`Container`] and the rules of sets in `stdchk-model`. The idea: N files of a timestep become
//! M containers, each of which gets its name only after every byte of it was decoded and compared with the raw files; the
//! set is aggregated once all M are there. Raw files go only then, and only once this very process has seen the sink give
//! back what they hold. So whatever is killed whenever, the raw set is there or the containers are, and the names in the
//! sink alone say which.

mod folder;
mod names;
mod scan;
mod sets;
mod sink;

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::Timestep;
use stdchk_model::exact::part;
use stdchk_model::message::manager::{CheckpointSet, SetState};
use stdchk_model::naming::Naming;
use stdchk_model::sets::checkpoint_sets;

use crate::error::{AggregateError, Result};
use crate::pack::{Packed, Packing, pack};
use crate::parallel::in_parallel;
use crate::source::Input;
use crate::unpack::{BaseSet, Container};
pub use folder::FolderSink;
use scan::RawFile;
use sets::{Aggregate, Earlier, Sets, is_withheld};
pub use sink::{Named, Sink};

/// What is coded against an earlier set has to be so much smaller than that one, for it is lost with that one, too.
const WORTH: f64 = 0.9;

/// What to aggregate, and how.
pub struct Aggregation<'a> {
    /// The folder in which the application writes.
    pub source: PathBuf,
    /// Which files are of which timestep and rank.
    pub naming: Naming,
    /// Number of ranks; 0: learned from earlier timesteps.
    pub ranks: u32,
    /// Containers for each set (the paper's M).
    pub containers: usize,
    /// Remove raw files once their set is aggregated.
    pub remove_raw: bool,
    /// A file is written to the end when it has not changed for so long.
    pub settle: Duration,
    /// Sets that may be coded against one earlier set, where that pays; 0: none.
    pub across_time: usize,
    /// How to pack.
    pub packing: Packing<'a>,
}

/// A set that was aggregated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatedSet {
    /// Its timestep.
    pub timestep: Timestep,
    /// Its containers, as users write their names.
    pub containers: Vec<String>,
    /// Its files.
    pub files: u64,
    /// Their bytes.
    pub raw_bytes: u64,
    /// Bytes of the containers.
    pub stored_bytes: u64,
    /// Containers that need one of an earlier set.
    pub with_base: u64,
    /// Chains that were tried on samples.
    pub tried: u64,
}

/// What one round of [`Aggregator::round`] did and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Sets that were aggregated, oldest first.
    pub aggregated: Vec<AggregatedSet>,
    /// Raw files that were removed.
    pub removed: u64,
    /// Timesteps whose containers don't hold what their raw files do, and why. Each is reported once, until the containers or
    /// files change.
    pub damaged: Vec<(Timestep, String)>,
    /// Containers that the sink withholds for now, each reported once, and why. Their sets are left alone.
    pub withheld: Vec<(String, String)>,
    /// Timesteps that are not aggregated yet, and why.
    pub waiting: Vec<(Timestep, String)>,
    /// Whether a timestep waits because of a raw file that can't be used, for another reason than at the last look.
    pub refused_anew: bool,
    /// Whether files were written so recently that another look is worth it.
    pub unsettled: bool,
}

impl Round {
    /// Whether the round has something to report that no earlier round has reported.
    #[must_use]
    pub fn is_news(&self) -> bool {
        let led = !self.aggregated.is_empty() || !self.damaged.is_empty() || !self.withheld.is_empty();
        led || self.refused_anew
    }
}

/// Watches a source folder and aggregates its sets into a sink. A sink has one aggregator at a time.
pub struct Aggregator<'a> {
    options: Aggregation<'a>,
    sets: Sets,
    /// Sets that aren't tried against an earlier one, since it didn't pay against the one just before.
    untried: usize,
    /// Timesteps whose containers don't hold their raw files, with the stamps of both.
    differing: HashMap<Timestep, Vec<String>>,
    /// Timesteps of which a raw file can't be used, and why.
    refused: HashMap<Timestep, String>,
    /// What ended a look that had led to something by then.
    failed: Option<AggregateError>,
}

impl<'a> Aggregator<'a> {
    /// Looks at the containers of a sink.
    ///
    /// # Errors
    /// When the sink can't be read.
    pub fn start(options: Aggregation<'a>, sink: Box<dyn Sink>) -> Result<Self> {
        let (differing, refused) = (HashMap::new(), HashMap::new());
        Ok(Self { options, sets: Sets::of(sink)?, untried: 0, differing, refused, failed: None })
    }

    /// Aggregates all sets that are complete and not aggregated yet.
    ///
    /// # Errors
    /// When the folders can't be read or written, or the watch ends it; after what came before that was told, so that it may
    /// be at the next look. A file that changes meanwhile, or can't be read or removed, is no error: its set waits.
    pub fn round(&mut self) -> Result<Round> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let raw = scan::files(&self.options.source, &self.options.naming, self.options.settle)?;
        let kept = self.sets.aggregates()?;
        let versions = scan::versions(&raw, self.sets.files());
        let source = self.options.source.to_string_lossy();
        let sets = checkpoint_sets(&source, &versions, &self.options.naming, self.options.ranks, None);
        let raw: HashMap<&str, &RawFile> = raw.iter().map(|file| (file.name.as_str(), file)).collect();
        let mut round = Round { unsettled: raw.values().any(|file| !file.settled), ..Round::default() };
        for set in sets.iter().rev() {
            let files: Vec<&RawFile> =
                set.members.iter().filter_map(|member| raw.get(member.name.as_str()).copied()).collect();
            if let Some(container) = self.sets.withheld_of(set.timestep) {
                round.waiting.push((set.timestep, format!("{container} can't be read for now")));
                continue;
            }
            let holds_all = |aggregate: &&Aggregate| files.iter().copied().all(aggregate.holder());
            let outcome = match kept.get(&set.timestep).filter(holds_all) {
                Some(aggregate) => self.finish(set, aggregate, &files, &mut round),
                None => self.aggregate(set, &files, &mut round),
            };
            if let Err(error) =
                outcome.or_else(|error| self.wait_after(error, set.timestep, &files, &mut round))
            {
                if !round.is_news() {
                    return Err(error);
                }
                (self.failed, round.unsettled) = (Some(error), true);
                break;
            }
        }
        round.withheld = self.sets.newly_withheld();
        Ok(round)
    }

    /// Lets a set wait, if an error is about it alone.
    fn wait_after(
        &mut self,
        error: AggregateError,
        timestep: Timestep,
        files: &[&RawFile],
        round: &mut Round,
    ) -> Result<()> {
        let reason = match &error {
            AggregateError::Changed { path } => format!("{} is still being written", path.display()),
            other => other.to_string(),
        };
        let refusal = refusal(&error, files);
        if matches!(error, AggregateError::Changed { .. }) || refusal == Some(ErrorKind::NotFound) {
            round.unsettled = true;
        } else if refusal.is_some() {
            // Others may do better, and may be all that is written from now on.
            let before = self.refused.insert(timestep, reason.clone());
            round.refused_anew |= before.is_none_or(|before| before != reason);
        } else if is_withheld(&error) {
            self.sets.note_withheld(&error);
        } else {
            return Err(error);
        }
        round.waiting.push((timestep, reason));
        Ok(())
    }

    /// Ends the work on a set that is aggregated: raw files go, or it is packed anew.
    fn finish(
        &mut self,
        set: &CheckpointSet,
        aggregate: &Aggregate,
        files: &[&RawFile],
        round: &mut Round,
    ) -> Result<()> {
        if !self.may_go(set.timestep, aggregate, files, round)? {
            return self.aggregate(set, files, round);
        }
        round.removed += self.remove_raw(files, aggregate)?;
        self.sets.forget_compared(aggregate);
        Ok(())
    }

    /// Whether the sink gives back what the raw files hold; if none are to go, that is taken for granted. What was found not
    /// to isn't compared again until one of them changes.
    fn may_go(
        &mut self,
        timestep: Timestep,
        aggregate: &Aggregate,
        files: &[&RawFile],
        round: &mut Round,
    ) -> Result<bool> {
        if !self.options.remove_raw || files.is_empty() {
            return Ok(true);
        }
        let stamps = self.sets.stamps(aggregate, files);
        if self.differing.get(&timestep) == Some(&stamps) {
            return Ok(false);
        }
        match self.sets.compare(aggregate, files, &self.options.packing) {
            Ok(()) => Ok(true),
            Err(error @ (AggregateError::Io { .. } | AggregateError::Stopped)) => Err(error),
            Err(error) => {
                round.damaged.push((timestep, error.to_string()));
                self.differing.insert(timestep, stamps);
                Ok(false)
            }
        }
    }

    fn aggregate(&mut self, set: &CheckpointSet, files: &[&RawFile], round: &mut Round) -> Result<()> {
        if files.is_empty() {
            // There are only containers, and not all of them.
            return Ok(());
        }
        if set.state != SetState::Complete {
            round.waiting.push((set.timestep, set.reason.clone()));
            return Ok(());
        }
        if files.len() < set.members.len() {
            let reason = match self.differing.contains_key(&set.timestep) {
                true => "its containers don't hold what the raw files hold, and not all of these are there",
                false => {
                    "some files are in containers only: others were written again, or a container is damaged"
                }
            };
            round.waiting.push((set.timestep, reason.to_owned()));
            return Ok(());
        }
        let (packed, names) = self.pack_all(set.timestep, files)?;
        round.aggregated.push(packed);
        self.differing.remove(&set.timestep);
        if let Some(aggregate) = self.sets.published(set.timestep, names)? {
            round.removed += self.remove_raw(files, &aggregate)?;
            if self.options.remove_raw {
                self.sets.forget_compared(&aggregate);
            }
        }
        Ok(())
    }

    /// The containers of a set, several at a time; the name that comes last makes the set aggregated. With their names.
    fn pack_all(&mut self, timestep: Timestep, files: &[&RawFile]) -> Result<(AggregatedSet, Vec<String>)> {
        self.sets.forget(timestep, || check_unchanged(files))?;
        let groups = files.len().clamp(1, self.options.containers.max(1));
        let parts: Vec<&[&RawFile]> = (0..groups)
            .map(|number| files.len() * number / groups..files.len() * (number + 1) / groups)
            .map(|range| part(files, range))
            .collect();
        let bases = self.bases(timestep, groups);
        let earlier = self.sets.earlier(timestep, groups);
        let at_once = self.options.packing.at_once(groups);
        let share = self.options.packing.share(groups);
        let containers = in_parallel(&parts, at_once, |number, part| {
            let draft = self.sets.draft(timestep, number + 1, groups);
            let chains = earlier.get(number).and_then(Option::as_ref).map(|earlier| &earlier.chains);
            let share = Packing { chains, ..share.clone() };
            let packed = pack_part(part, &draft, bases.get(number).and_then(Option::as_ref), &share)?;
            // A file that was begun anew after it was found to be settled may have been packed half written.
            check_unchanged(part)?;
            let name = self.sets.publish(&draft, timestep, (number + 1, groups), share.watch)?;
            Ok::<_, AggregateError>((name, packed))
        })?;
        let mut set = AggregatedSet {
            timestep,
            containers: Vec::new(),
            files: 0,
            raw_bytes: 0,
            stored_bytes: 0,
            with_base: 0,
            tried: 0,
        };
        let mut names = Vec::new();
        for (name, PackedPart { packed, with_base, missed }) in containers {
            set.containers.push(self.sets.sink().shown(&name));
            self.sets.note_compared([name.clone()]);
            names.push(name);
            set.files += packed.files;
            set.raw_bytes += packed.raw_bytes;
            set.stored_bytes += packed.stored_bytes;
            set.tried += packed.tried;
            set.with_base += u64::from(with_base);
            if missed {
                self.untried = self.options.across_time;
            }
        }
        self.sets.remove_unused_bases()?;
        self.sets.sink().settle()?;
        Ok((set, names))
    }

    fn bases(&mut self, timestep: Timestep, groups: usize) -> Vec<Option<Earlier>> {
        if self.untried > 0 {
            self.untried -= 1;
            return Vec::new();
        }
        self.sets.bases(timestep, groups, self.options.across_time)
    }

    /// Removes the raw files of a set whose aggregate is complete, if they are to be removed; those that changed since they were
    /// packed stay. Returns how many were removed.
    fn remove_raw(&self, files: &[&RawFile], aggregate: &Aggregate) -> Result<u64> {
        if !self.options.remove_raw {
            return Ok(0);
        }
        let (holds, mut removed) = (aggregate.holder(), 0);
        for file in files {
            let now = scan::look_at(&file.path, &file.name)?;
            if now.is_some_and(|now| holds(&now)) {
                fs::remove_file(&file.path).map_err(AggregateError::io("remove", &file.path))?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// What the system said of one of these files, if an error is about that: it may be gone, since programs remove their
/// checkpoints, too.
fn refusal(error: &AggregateError, files: &[&RawFile]) -> Option<ErrorKind> {
    let AggregateError::Io { path, source, .. } = error else { return None };
    files.iter().any(|file| file.path == *path).then(|| source.kind())
}

/// Fails when a file is gone or other than when it was looked at.
fn check_unchanged(files: &[&RawFile]) -> Result<()> {
    for file in files {
        let now = scan::look_at(&file.path, &file.name)?;
        if now.is_none_or(|now| (now.size, now.modified_ns) != (file.size, file.modified_ns)) {
            return Err(AggregateError::Changed { path: file.path.clone() });
        }
    }
    Ok(())
}

/// A container, packed and compared.
struct PackedPart {
    packed: Packed,
    with_base: bool,
    /// It was tried against the set just before, which didn't pay.
    missed: bool,
}

fn pack_part(
    part: &[&RawFile],
    draft: &Path,
    base: Option<&Earlier>,
    packing: &Packing<'_>,
) -> Result<PackedPart> {
    let inputs = part.iter().map(|file| Input { name: file.name.clone(), path: file.path.clone() });
    let inputs: Vec<Input> = inputs.collect();
    let mut missed = false;
    if let Some(base) = base {
        missed = match pack_against(&inputs, draft, &base.set, packing) {
            Ok(Some(packed)) => return Ok(PackedPart { packed, with_base: true, missed: false }),
            Ok(None) => !base.is_used,
            Err(error @ (AggregateError::Changed { .. } | AggregateError::Stopped)) => return Err(error),
            // If it is the fault of the base, the set does without.
            Err(_) => true,
        };
    }
    let packed = pack(&inputs, draft, packing)?;
    Container::open(draft)?.compare(&inputs, packing)?;
    Ok(PackedPart { packed, with_base: false, missed })
}

/// None: it isn't worth needing the other set.
fn pack_against(
    group: &[Input],
    draft: &Path,
    base: &Arc<BaseSet>,
    packing: &Packing<'_>,
) -> Result<Option<Packed>> {
    let packed = pack(group, draft, &Packing { base: Some(base), ..packing.clone() })?;
    let share = packed.stored_bytes as f64 / packed.raw_bytes.max(1) as f64;
    if share > base.stored_share() * WORTH {
        return Ok(None);
    }
    Container::open_with_base(draft, Some(Arc::clone(base)))?.compare(group, packing)?;
    Ok(Some(packed))
}
