//! Every kept version's chunks are read and compared where they lie, and fragments are decoded; redundancy that is found missing may be waited for.
//!
//! A benefactor sets a damaged block aside as soon as it is found, and the manager then has it copied anew from an
//! intact one; so repairing is waiting until that is done.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use stdchk_client::{Depth, Pool as Client};
use stdchk_model::message::manager::Attr;
use stdchk_model::{ErrorCode, KeyId, Maker, Redundancy};
use stdchk_net::Retry;

use crate::check::{Checker, Health, is_about_content, makers};
use crate::error::{About, Code, Error, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;
use crate::watch::{Event, Watch, Work};

/// Time without any progress after which a repair is given up: longer than a benefactor takes to count as lost.
const REPAIR_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which the state of repairs is asked for.
const REPAIR_POLL: Duration = Duration::from_millis(250);
/// Time that a finding takes to reach the manager: two heartbeats of a benefactor.
const REPORT_DELAY: Duration = Duration::from_millis(2 * stdchk_model::limits::HEARTBEAT_MS);

/// What is to be verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verify {
    /// A folder or a file; the root for everything.
    pub target: Target,
    /// Whether to wait until missing and damaged copies are made anew, and then to verify again.
    pub repair: bool,
}

/// A version of which something is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Bad {
    /// The file.
    pub path: String,
    /// The version.
    pub version: u64,
    /// What was found, for people.
    pub reason: String,
    /// [`Code::Damaged`]: it has content without an intact copy. [`Code::Unreachable`]: it has content that can't be reached
    /// now. [`Code::Partial`]: damaged copies or fragments that don't make their chunk, each with an intact copy beside it.
    #[serde(skip)]
    pub code: Code,
}

/// What a verification found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Verified {
    /// What was verified.
    pub path: String,
    /// Files.
    pub files: u64,
    /// Their versions that are kept.
    pub versions: u64,
    /// Chunks of which a copy was damaged. Chunks that versions share are counted with each of them, here and below.
    pub damaged_copies: u64,
    /// Chunks without an intact copy.
    pub lost_chunks: u64,
    /// Chunks of which fragments are stored that don't make them, though each is what it is named after.
    pub broken_chunks: u64,
    /// Who made these fragments, as 16 hexadecimal digits, with the number of chunks. `stdchk status` names their hosts and users.
    #[serde(serialize_with = "makers")]
    pub makers: BTreeMap<Maker, u64>,
    /// Chunks that can't be reached now.
    pub unreachable_chunks: u64,
    /// Chunks with fewer intact copies than their folder asks for.
    pub at_risk_chunks: u64,
    /// The versions of which something is damaged or out of reach.
    pub bad: Vec<Bad>,
    /// Keys that this client lacks, with how many versions are encrypted with each. They are verified all the same.
    pub lacking_keys: BTreeMap<KeyId, u64>,
}

impl Pool {
    /// Verifies all kept versions at and below a place. [`Verified::verdict`] says whether all is well.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such thing. [`Code::Unreachable`]: the manager doesn't answer.
    pub async fn verify(&self, verify: &Verify, watch: &Watch) -> Result<Verified> {
        let (pool, target) = (&self.client, &verify.target);
        let verified = verify_all(pool, target, watch).await?;
        if !verify.repair || verified.is_clean() {
            return Ok(verified);
        }
        repair(pool, watch).await?;
        verify_all(pool, target, watch).await
    }
}

async fn verify_all(pool: &Client, target: &Target, watch: &Watch) -> Result<Verified> {
    let files = namespace::files(pool, target).await?;
    let stage = watch.begin(Work::Verify, 0);
    let mut checker = Checker::new(pool, &stage, Depth::Read);
    let mut all = Verified { path: target.path(), ..Verified::default() };
    for file in &files {
        let verified = verify_file(pool, &mut checker, &file.target);
        if let Some(found) = namespace::if_still_there(verified.await)? {
            all.add(found);
        }
    }
    Ok(all)
}

/// What is found of one file.
async fn verify_file(pool: &Client, checker: &mut Checker<'_>, target: &Target) -> Result<Verified> {
    let mut file = namespace::FileLooks::new(pool, target);
    loop {
        let attr = file.look().await?;
        match verify_versions(pool, checker, target, &attr).await {
            Err(error) if file.is_replaced(&error).await? => {}
            outcome => return outcome,
        }
    }
}

async fn verify_versions(
    pool: &Client,
    checker: &mut Checker<'_>,
    target: &Target,
    attr: &Attr,
) -> Result<Verified> {
    let shown = target.shown();
    let mut found = Verified { files: 1, ..Verified::default() };
    let redundancy = pool.policy(attr.ino).await.about(&shown)?.redundancy;
    for info in namespace::kept_versions(pool, attr.ino).await.about(&shown)? {
        found.versions += 1;
        if let Some(key) = info.key
            && pool.encryption_keys().require(key).is_err()
        {
            *found.lacking_keys.entry(key).or_default() += 1;
        }
        match checker.version(attr.ino, Some(info.version), redundancy.distance()).await {
            Ok((_, health)) => found.add_version(target, info.version, &health, redundancy),
            Err(failure) if is_about_content(&failure) => {
                found.lost_chunks += 1;
                let (path, version, reason) = (target.path(), info.version, failure.message);
                found.bad.push(Bad { path, version, reason, code: Code::Damaged });
            }
            // It was removed, or its writer committed again: what is left of the file counts.
            Err(failure)
                if failure.code == ErrorCode::NotFound
                    && !namespace::has_version(pool, attr.ino, info.version).await.about(&shown)? =>
            {
                found.versions -= 1;
            }
            Err(failure) => return Err(failure).about(shown),
        }
    }
    Ok(found)
}

/// Waits until the manager has nothing left to copy, or copies nothing any more.
async fn repair(pool: &Client, watch: &Watch) -> Result {
    tokio::time::sleep(REPORT_DELAY).await;
    let (mut seen, mut retry) = (None, Retry::every(REPAIR_POLL, REPAIR_PATIENCE));
    loop {
        let status = pool.status().await.about("repair")?;
        // A manager that has just started finds nothing at risk before the benefactors have told what they have.
        if !status.counting && status.chunks_at_risk == 0 && status.repairs_pending == 0 {
            return Ok(());
        }
        let now = Some((status.chunks_at_risk, status.repairs_done));
        if now != seen {
            seen = now;
            retry.progressed();
        }
        if !retry.pause().await {
            watch.tell(&Event::Stalled { chunks_at_risk: status.chunks_at_risk });
            return Ok(());
        }
    }
}

impl Verified {
    /// Adds what was found of one file.
    fn add(&mut self, found: Self) {
        self.files += found.files;
        self.versions += found.versions;
        self.damaged_copies += found.damaged_copies;
        self.lost_chunks += found.lost_chunks;
        self.broken_chunks += found.broken_chunks;
        found.makers.into_iter().for_each(|(maker, chunks)| *self.makers.entry(maker).or_default() += chunks);
        self.unreachable_chunks += found.unreachable_chunks;
        self.at_risk_chunks += found.at_risk_chunks;
        self.bad.extend(found.bad);
        found.lacking_keys.into_iter().for_each(|(key, versions)| {
            *self.lacking_keys.entry(key).or_default() += versions;
        });
    }

    /// Adds what was found of one version.
    fn add_version(&mut self, target: &Target, version: u64, health: &Health, redundancy: Redundancy) {
        self.damaged_copies += health.damaged;
        self.lost_chunks += health.lost;
        self.broken_chunks += health.broken;
        health.makers.iter().for_each(|(maker, chunks)| *self.makers.entry(*maker).or_default() += chunks);
        self.unreachable_chunks += health.unreachable;
        self.at_risk_chunks += health.at_risk;
        if !health.is_readable() || health.damaged > 0 || health.broken > 0 {
            let code = match (health.lost, health.unreachable) {
                (0, 0) => Code::Partial,
                (0, _) => Code::Unreachable,
                _ => Code::Damaged,
            };
            let reason = health.summary(redundancy);
            self.bad.push(Bad { path: target.path(), version, reason, code });
        }
    }

    /// Whether every chunk has all its copies, and every copy is intact.
    pub fn is_clean(&self) -> bool {
        self.bad.is_empty() && self.at_risk_chunks == 0
    }

    /// Success if every copy that was found is intact and everything can be read.
    ///
    /// # Errors
    /// The worst that was found: [`Code::Damaged`], [`Code::Unreachable`] or [`Code::Partial`], as [`Bad::code`] has them.
    pub fn verdict(&self, target: &Target) -> Result {
        let findings = [
            (
                Code::Damaged,
                "have content without an intact copy",
                "`stdchk latest` names a set that is intact",
            ),
            (
                Code::Unreachable,
                "have content that can't be reached now",
                "`stdchk status` shows who is missing",
            ),
            (
                Code::Partial,
                "had damaged copies or broken encodings, each with an intact copy beside it",
                "what is damaged is made anew; `--repair` waits for it",
            ),
        ];
        for (code, what, next) in findings {
            let count = self.bad.iter().filter(|bad| bad.code == code).count();
            if count > 0 {
                let cause = format!("{count} of {} versions {what}", self.versions);
                return Err(Error::new(code, target.shown(), cause, next));
            }
        }
        Ok(())
    }
}
