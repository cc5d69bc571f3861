//! Where the parts of a checkpoint go, and why; and how often to take one.

use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::id::BenefactorId;
use crate::message::benefactor::StorageState;

/// How a folder's benefactors are chosen for one compute host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
pub struct Placement {
    /// The folder's policy, as `Policy::set` takes it.
    #[n(0)]
    pub policy: String,
    /// The way that is in use: another one while `learned` has to prove itself.
    #[n(1)]
    pub in_use: String,
    /// The ranking is made. Until it is, benefactors take turns.
    #[n(2)]
    pub ranked: bool,
    /// The benefactor that runs on the compute host, if one does.
    #[n(3)]
    #[serde(serialize_with = "number_if_any")]
    pub compute: Option<BenefactorId>,
    /// Mean time to failure of the compute host, seconds, of the failures that were seen; `None`: none was.
    #[n(4)]
    pub mean_time_to_failure_s: Option<u64>,
    /// Whether the model that learns has been the better judge so far.
    #[n(5)]
    pub proven: bool,
    /// What it has been examined by: parts of which it had to say whether they would be lost.
    #[n(6)]
    pub lessons: u64,
    /// How many of those were lost.
    #[n(7)]
    pub losses: u64,
    /// Probability that what lies on the first hosts can be read when the compute host fails, in millionths; `None`: nothing is learned
    /// yet.
    #[n(8)]
    pub recoverable_ppm: Option<u32>,
    /// Hosts of the stripe: the first so many of `hosts`. The others stand in for those that are full or busy.
    #[n(9)]
    pub width: u16,
    /// In the order of preference.
    #[n(10)]
    pub hosts: Vec<PlacedHost>,
}

/// A benefactor that may be chosen, and what speaks for and against it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
pub struct PlacedHost {
    /// Which.
    #[n(0)]
    #[serde(serialize_with = "number")]
    pub id: BenefactorId,
    /// For how long it has been there, seconds; `None`: it isn't.
    #[n(1)]
    pub up_s: Option<u64>,
    /// How often it failed within a week.
    #[n(2)]
    pub failures_week: u32,
    /// Share of the last week in which it was there, of the time that was seen, in millionths; `None`: none was.
    #[n(3)]
    pub up_week_ppm: Option<u32>,
    /// FALCON's CRLS over all that is known of both hosts, equation (1), from 0 to 2, in millionths; `None`: hosts aren't ranked.
    #[n(4)]
    pub score_ppm: Option<u32>,
    /// Probability that a part there is gone when the compute host fails, in millionths; `None`: nothing is learned yet.
    #[n(5)]
    pub lost_ppm: Option<u32>,
    /// Labels that it shares with the benefactor on the compute host, `name=value`.
    #[n(6)]
    pub shares: Vec<String>,
    /// What adds most to the logarithm of the odds of a loss, in thousandths, or takes from it; largest first.
    #[n(7)]
    pub reasons: Vec<(String, i64)>,
    /// How busy it is now.
    #[n(8)]
    #[cbor(default)]
    pub state: StorageState,
    /// Share of the time of the last week for which it was there and its owner's work kept the disk busy (S1 or S2), of that for which it was
    /// there, in millionths; `None`: it wasn't.
    #[n(9)]
    pub loaded_week_ppm: Option<u32>,
    /// What puts of clients on the compute host reach there, bytes per second; `None`: none were seen lately.
    #[n(10)]
    pub bandwidth: Option<u64>,
}

/// What a client has sent to one benefactor: with the time for which it had something under way to it, the bandwidth between the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Sent {
    /// Which.
    #[n(0)]
    pub to: BenefactorId,
    /// Bytes of blocks that arrived.
    #[n(1)]
    pub bytes: u64,
    /// Time for which at least one of them was under way, milliseconds.
    #[n(2)]
    pub ms: u32,
}

fn number_if_any<S: serde::Serializer>(id: &Option<BenefactorId>, out: S) -> Result<S::Ok, S::Error> {
    id.map(|id| id.0).serialize(out)
}

fn number<S: serde::Serializer>(id: &BenefactorId, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u32(id.0)
}

/// What is known for advice on how often a folder's job should take checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
pub struct Pace {
    /// Checkpoint sets of which it is known how long they took to write.
    #[n(0)]
    pub sets: u32,
    /// How long one took from its first open to its last commit, milliseconds, the middle one; `None`: no set is known.
    #[n(1)]
    pub cost_ms: Option<u64>,
    /// The time between two of them, milliseconds, the middle one; `None`: there are fewer than two.
    #[n(2)]
    pub interval_ms: Option<u64>,
    /// How often the compute host failed while it was seen.
    #[n(3)]
    pub failures: u32,
    /// For how long it was seen up, seconds.
    #[n(4)]
    pub up_s: u64,
}
