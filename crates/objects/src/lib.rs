//! Containers in an object store, of S3's protocol, Azure's or Google's: a sink of the aggregator, a source of readers.
//!
//! Relies on `stdchk-aggregate` for what a sink is, on `object_store` for the protocols. The idea: only the ten requests that
//! containers need, each of which may be repeated; an object is there whole or not at all, and what matters is read back.
//! `docs/design/0501-object-stores.md` says what is asked of the library, and what all of it is tested against.

mod error;
mod guard;
mod open;
mod place;
mod settings;
mod sink;
mod source;
mod stop;
mod store;
mod uploads;

pub use error::{ObjectError, Trouble};
pub use open::{open, open_base};
pub use place::{Place, Service};
pub use settings::Settings;
pub use sink::ObjectSink;
pub use source::ObjectSource;
pub use stop::end_requests;
