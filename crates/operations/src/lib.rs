//! What a user does with a pool, as a library: the command line and other front ends stand on it.
//!
//! [`Pool`] is a connection. Each operation takes plain
//! data and returns plain data, which serialises to the JSON that the command prints. What happens meanwhile is told to a
//! [`Watch`]. An [`Error`] has a code for programs, and object, cause and next step for people.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use stdchk_operations::{Code, Depth, Options, Pool, Restore, Target, Watch, WhenAway};
//!
//! # async fn example() -> Result<(), stdchk_operations::Error> {
//! let pool = Pool::connect(Options::new("unix:/srv/stdchk/socket")).await?;
//! let climate = Target::parse("climate")?;
//! match pool.latest(&climate, WhenAway::Fail, Depth::Known, &Watch::default()).await?.required(&climate) {
//!     Ok(set) => println!("restart from timestep {}", set.timestep),
//!     Err(error) if error.code == Code::NotFound => println!("start from the beginning"),
//!     Err(error) => return Err(error),
//! }
//! let when_away = WhenAway::Wait(Duration::from_secs(600));
//! let restore = Restore { app: climate, timestep: None, when_away, output: "restart".into() };
//! let restored = pool.restore(&restore, &Watch::default()).await?;
//! println!("{}", serde_json::to_string_pretty(&restored).unwrap());
//! # Ok(())
//! # }
//! ```
//!
//! # Ending early
//!
//! Dropping the future of an operation ends it: what it had not finished did not happen. What has to be taken back in the
//! pool, such as the entry of a file that got no content, is taken back in the background; [`Pool::close`] waits for that.
//!
//! # Threads
//!
//! Files are read and written on the threads of the runtime, so it must have several: [`Pool::connect`] refuses a runtime of one.

mod aggregate;
mod archive;
mod backup;
mod check;
mod collect;
mod diff;
mod error;
mod file;
mod file_states;
mod get;
mod latest;
mod lifetimes;
mod list;
pub mod local_pool;
mod members;
mod namespace;
mod ownership;
mod placement;
mod policy;
mod pool;
mod put;
mod remove;
mod rename;
mod restore;
mod settings;
mod stat;
mod status;
mod target;
pub mod text;
mod transfer;
mod underway;
mod usage;
mod verify;
mod watch;

pub use aggregate::{Aggregate, AggregateRound, Aggregated, Aggregator, Waiting};
pub use backup::Backup;
pub use check::Health;
pub use collect::Collected;
pub use diff::{Difference, Range};
pub use error::{About, Code, Error, Result, Tally, code_of};
pub use file::{NewVersion, OpenFile};
pub use file_states::{FileState, PushedState};
pub use get::Fetched;
pub use latest::{Exposed, Latest, LatestSet, PassedOver, WhenAway};
pub use lifetimes::Fates;
pub use list::{Entries, Entry, FileVersions, Member, Set, Sets, Version, WhyNoSets};
pub use members::JoinedHost;
pub use placement::Advice;
pub use policy::{PolicyChange, PolicyChanged, check_pair};
pub use pool::{Options, Pool};
pub use put::{Put, Source, Stored, StoredFile};
pub use remove::Remove;
pub use rename::Rename;
pub use restore::{Restore, Restored, RestoredFile};
pub use settings::{Settings, Sources, check_address, check_managers, size_of};
pub use stat::Stat;
pub use status::{
    BenefactorStatus, Condition, ExposedSet, Exposures, HeldBack, Keeper, KeptBase, ManagerState,
    ManagerStatus, Recovery, RefusedTwin, RegisteredBackup, Savings, Status,
};
pub use stdchk_client::Depth;
pub use stdchk_client::time::now;
pub use stdchk_model::layout::Proposal;
pub use target::Target;
pub use transfer::{is_special, refuse_special};
pub use underway::Opening;
pub use usage::{Usage, UsageEntry};
pub use verify::{Bad, Verified, Verify};
pub use watch::{Event, Watch, Work};
