//! What FALCON's paper says of its images (Tables 1 and 3).

/// An image of a program's memory.
#[derive(Clone, Copy)]
pub struct Image {
    pub name: &'static str,
    /// Its size, 10^6 bytes.
    pub mb: u64,
    /// What it shrinks to, 10^6 bytes.
    pub compressed_mb: u64,
}

impl Image {
    /// The share of itself that it shrinks to.
    pub fn shrinks_to(&self) -> f64 {
        self.compressed_mb as f64 / self.mb as f64
    }
}

pub const MCF: Image = Image { name: "mcf", mb: 1677, compressed_mb: 241 };
pub const TIGR_I: Image = Image { name: "TIGR-I", mb: 946, compressed_mb: 201 };
pub const TIGR_II: Image = Image { name: "TIGR-II", mb: 500, compressed_mb: 153 };
const TIGR_III: Image = Image { name: "TIGR-III", mb: 170, compressed_mb: 129 };

/// All of Table 1.
pub const IMAGES: [Image; 4] = [MCF, TIGR_I, TIGR_II, TIGR_III];
