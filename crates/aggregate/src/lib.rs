//! Data-aware aggregation and compression of checkpoint sets, after mcrEngine (SC'12), and the container it writes.
//!
//! Relies on `stdchk-formats` for what is in a file. The idea: files are cut into members (variables, or what is left of
//! a file), like members of all ranks are merged into blocks, every block is coded by the chain of steps that sampling
//! found best for it, and a container holds the blocks and what goes where. The core (keys, plans, codecs, container) is
//! pure; [`pack()`] and [`Container`] are the thin shell that touches files and threads.
//! `docs/FORMAT-container.md` describes the bytes, `docs/design/0200-aggregation.md` the decisions.

pub mod codec;
pub mod container;
pub mod limits;

mod aggregation;
mod at_work;
mod choose;
mod error;
mod holes;
mod key;
mod name;
mod new_file;
mod npy;
mod numbers_in;
mod pack;
mod parallel;
mod plan;
mod source;
mod unfold;
mod unpack;

pub use aggregation::{AggregatedSet, Aggregation, Aggregator, FolderSink, Named, Round, Sink};
pub use choose::Mode;
pub use container::FileEntry;
pub use error::AggregateError;
pub use holes::tells_holes;
pub use key::KeyRule;
pub use name::{name_of_text, shown_byte, text_of_name};
pub use pack::{Chains, Output, Packed, Packing, Spent, Watch, pack, pack_into};
pub use parallel::in_parallel;
pub use plan::{MergeScheme, PlanOptions};
pub use source::{Input, Inputs, SetFile, inputs_of};
#[doc(hidden)]
pub use unfold::try_chunk;
pub use unpack::{BaseSet, BlockCache, Container, ListedFile, ListedVariable, Unpacked, Unpacking};
