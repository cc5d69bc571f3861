//! The troubles of single benefactors, in words: those that are away, refused, cut off from others, or have a bad disk.
//!
//! In a large pool many may be hit by one cause. People are told of a few of each kind and of how many there are, programs of all.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stdchk_model::message::benefactor::OwnerWish;
use stdchk_model::message::manager::{BenefactorInfo, BenefactorState, PoolStatus, TimeNs, Twin};

use crate::text::{self, time};

/// Time for which a benefactor has not reached another one before that is a reason to worry, milliseconds: one that is gone counts as on-line for half of it.
pub(super) const UNREACHED_SHOWN_MS: u64 = 10_000;
/// Most others that are named of those that one benefactor can't send to.
const UNREACHED_SHOWN: usize = 8;

/// A benefactor, for people: where it is.
fn who(info: &BenefactorInfo) -> String {
    match info.host.as_str() {
        "" => format!("b{} ({})", info.id.0, info.address),
        host => format!("b{} ({}, {})", info.id.0, text::shown(host), info.address),
    }
}

/// A time in the largest unit of which it has two or more.
pub(super) fn lasting(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Benefactors that are named in one reason, and reasons of one kind that people are told; more are counted.
pub(super) const NAMED_MAX: usize = 8;

/// The troubles of single benefactors; of each kind so many reasons at most, and how many more there are.
pub(super) fn reasons(status: &PoolStatus, most: usize) -> Vec<String> {
    let mut found = Vec::from_iter(away(status));
    for kind in [refused(status), cut_off(status), bad_disks(status)] {
        found.extend(few(kind, most));
    }
    found
}

fn few(mut all: Vec<String>, most: usize) -> Vec<String> {
    let more = all.len().saturating_sub(most);
    if more > 0 {
        all.truncate(most);
        all.push(format!("{more} more benefactors are like that: `stdchk status --json` names all of them"));
    }
    all
}

/// Which benefactors are away, and since when.
fn away(status: &PoolStatus) -> Option<String> {
    let is_away = |info: &&BenefactorInfo| info.state != BenefactorState::Online && !info.is_shut_out;
    let away: Vec<&BenefactorInfo> = status.benefactors.iter().filter(is_away).collect();
    let name = |info: &&BenefactorInfo| match info.state {
        BenefactorState::Expected => format!("{}, not heard of since the manager started", who(info)),
        _ => format!("{}, silent for {}", who(info), lasting(info.silent_ms)),
    };
    let mut named: Vec<String> = away.iter().take(NAMED_MAX).map(name).collect();
    if away.len() > NAMED_MAX {
        named.push(format!("and {} more", away.len() - NAMED_MAX));
    }
    (!away.is_empty()).then(|| {
        format!(
            "{} of {} benefactors are not on-line: {}. `stdchk up` on its machine starts one, `stdchk forget` gives up one whose disk is gone",
            away.len(),
            status.benefactors.len(),
            named.join("; ")
        )
    })
}

/// Which benefactors are refused, and why.
fn refused(status: &PoolStatus) -> Vec<String> {
    let mut found = Vec::new();
    for info in status.benefactors.iter().filter(|info| info.is_shut_out) {
        found.push(format!(
            "{} is shut out: the keys of its host were revoked, and nothing counts of what it has. `stdchk forget b{}` takes it out of this \
             list; if its owner is trusted again, let the host join anew",
            who(info),
            info.id.0
        ));
    }
    for info in &status.benefactors {
        let Some(Twin { address, pid, for_ms }) = &info.twin else { continue };
        found.push(format!(
            "b{} runs twice, from two copies of one folder: the process at {} serves, and another one at {address} (process {pid}) has been \
             refused for {}. Stop the one that is not meant with `stdchk down` on its machine; a machine that was cloned joins anew, with an \
             empty data folder",
            info.id.0,
            info.address,
            lasting(*for_ms)
        ));
    }
    found
}

/// Since when a benefactor can't send to the first one of those to which it can't.
pub(super) fn cannot_send_since(info: &BenefactorInfo) -> Option<TimeNs> {
    let since = || SystemTime::now().checked_sub(Duration::from_millis(info.unreached_ms));
    let since = (!info.unreached.is_empty()).then(since)??.duration_since(UNIX_EPOCH).ok()?;
    TimeNs::try_from(since.as_nanos()).ok()
}

/// Which benefactors have not been able to send to others for a while.
fn cut_off(status: &PoolStatus) -> Vec<String> {
    let lasts = |info: &&BenefactorInfo| {
        info.state == BenefactorState::Online && info.unreached_ms >= UNREACHED_SHOWN_MS
    };
    let told = |info: &BenefactorInfo| {
        let shown = info.unreached.iter().take(UNREACHED_SHOWN).map(|id| format!("b{}", id.0));
        let others = Vec::from_iter(shown).join(", ");
        let more = match info.unreached.len().saturating_sub(UNREACHED_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let since =
            cannot_send_since(info).map(|since| format!(", since {}", time(since))).unwrap_or_default();
        format!(
            "b{} can't send to {others}{more}{since}: look after the network and the firewalls between their machines; meanwhile others \
             make the copies",
            info.id.0
        )
    };
    status.benefactors.iter().filter(lasts).map(told).collect()
}

/// Which benefactors' disks are to be looked after.
fn bad_disks(status: &PoolStatus) -> Vec<String> {
    let mut found = Vec::new();
    let failed = status
        .benefactors
        .iter()
        .filter(|info| info.state == BenefactorState::Online && info.load.disk_failed);
    for info in failed {
        let since = info.disk.as_ref().map(|failure| format!(" for {}", lasting(failure.for_ms)));
        let cause = info
            .disk
            .as_ref()
            .map_or("it does not say why".to_owned(), |failure| text::shown(&failure.cause));
        let reason = format!(
            "the disk of {} has failed{}: {cause}. Nothing more is stored there, and what it has is served. Once the disk is mended, \
             `stdchk down` and `stdchk up` on that machine start the benefactor again",
            who(info),
            since.unwrap_or_default()
        );
        found.push(reason);
    }
    let damaged = status.benefactors.iter().filter(|info| info.load.wish == OwnerWish::Damaged);
    for info in damaged {
        let reason = format!(
            "blocks at {} were damaged again and again, so what it has moves to others and nothing new is stored there: look after its \
             disk or its memory, then `stdchk benefactor resume DIR` on its machine takes it back, or `stdchk benefactor leave DIR` has it \
             leave the pool",
            who(info)
        );
        found.push(reason);
    }
    found
}
