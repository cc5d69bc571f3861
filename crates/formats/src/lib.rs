//! File formats read as *extents*: which byte ranges of a checkpoint file hold which variable.
//!
//! Pure: a parser sees a [`Source`] and answers with data, and never writes, waits or looks at a clock. The one idea is
//! that a file is variables plus residue: whatever no parser understands is residue, so a file is put together again
//! byte for byte by construction, and a damaged, hostile or unknown file is simply all residue, with a reason.
//! Every parser reads through one bounded [`Reader`], which refuses ranges outside the file and stops a parser that
//! reads far more than an honest file would need; that is what rules out panics, hangs and reads outside the file.

mod cursor;
mod gromacs;
mod hdf5;
mod lammps;
mod netcdf;
mod numpy;
mod parsed;
mod pickle;
mod reader;
mod reason;
mod safetensors;
mod source;
mod tensor_file;
mod variable;
mod zarr;
mod zip;

pub use parsed::{Format, Parsed, parse};
pub use reader::Reader;
pub use reason::Reason;
pub use source::Source;
pub use variable::{ByteOrder, Chunks, DataType, Extent, Filter, Filtered, Kind, Storage, Variable};
pub use zarr::{DESCRIPTION_MAX, ZarrArray, ZarrCoder, zarr_folder};
