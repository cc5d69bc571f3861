//! Lists the variables of files: `cargo run -p stdchk-formats --example variables -- FILE...`.
//!
//! Relies on the crate's public interface alone. The idea: the shortest way to see what a parser makes of a file.

use std::os::unix::fs::FileExt;
use std::{fs, io};

use stdchk_formats::{Source, parse};

struct OnDisk(fs::File, u64);

impl Source for OnDisk {
    fn size(&self) -> u64 {
        self.1
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

fn main() -> io::Result<()> {
    for path in std::env::args_os().skip(1) {
        let file = fs::File::open(&path)?;
        let size = file.metadata()?.len();
        let parsed = parse(&OnDisk(file, size));
        let residue: u64 = parsed.residue().iter().map(|extent| extent.length).sum();
        let reason = parsed.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        println!("{}: {}, {size} bytes, residue {residue}{reason}", path.display(), parsed.format);
        for variable in &parsed.variables {
            let (path, data_type) = (variable.path(), variable.data_type);
            println!("  {path} {data_type} {:?} {} bytes", variable.shape, variable.stored_bytes());
        }
    }
    Ok(())
}
