//! Containers in an object store that speaks the S3 protocol: a sink of the aggregator, a source of readers.
//!
//! Relies on `stdchk-aggregate` for what a sink is, on `ureq` for HTTP and TLS. The idea: of the protocol only the ten
//! requests that containers need, each of which may be repeated; an object is there whole or not at all, and what matters is
//! read back. `docs/design/0501-object-stores.md` says why it is written here, and what it is tested against.

mod answer;
mod error;
mod open;
mod place;
mod request;
mod settings;
mod sign;
mod sink;
mod source;
mod stop;
mod store;

pub use error::{ObjectError, Trouble};
pub use open::{open, open_base};
pub use place::Place;
pub use settings::Settings;
pub use sink::ObjectSink;
pub use source::ObjectSource;
pub use stop::end_requests;
