//! A reader of the test's own: from the bytes of blocks to the chunk, by docs/FORMAT.md alone. Nothing of the product's coder,
//! codecs' wrapper or assembly is used, so that a mistake there is no mistake here.

use std::sync::OnceLock;

/// How the blocks of an encoding were made, as a record on a disk says it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Form {
    pub codec: u8,
    pub cipher: Option<u8>,
    pub plain_length: u32,
    pub encoded_length: u32,
    /// Data fragments; 1: copies.
    pub data: u8,
    /// Parity fragments.
    pub parity: u8,
}

/// The plain bytes that these blocks make, each with its number; `None`: they make nothing that has this name. Bytes that the blocks'
/// own hashes deny are not the caller's to bring.
pub fn chunk_of(name: &[u8; 32], form: &Form, blocks: &[(u8, &[u8])]) -> Option<Vec<u8>> {
    let encoded = match form.data {
        1 => blocks.first()?.1.to_vec(),
        _ => data_of(form, blocks)?,
    };
    let encoded = encoded.get(..form.encoded_length as usize)?;
    let length = form.plain_length as usize;
    let plain = match (form.cipher, form.codec) {
        (None, 0) => encoded.to_vec(),
        (None, 1) => lz4_flex::block::decompress(encoded, length).ok()?,
        (None, 2) => zstd::bulk::decompress(encoded, length).ok()?,
        _ => return None,
    };
    (plain.len() == length && blake3::hash(&plain).as_bytes() == name).then_some(plain)
}

/// Whether some of these blocks make the chunk: as many as suffice, any of them.
pub fn any(name: &[u8; 32], form: &Form, blocks: &[(u8, &[u8])]) -> bool {
    let count = usize::from(form.data);
    let sets = (0u32..1 << blocks.len()).filter(|set| set.count_ones() as usize == count);
    sets.into_iter().any(|set| {
        let some = blocks.iter().enumerate().filter(|(at, _)| set & 1 << at != 0);
        chunk_of(name, form, &some.map(|(_, block)| *block).collect::<Vec<_>>()).is_some()
    })
}

/// The data fragments, one behind the other, of any that suffice.
fn data_of(form: &Form, blocks: &[(u8, &[u8])]) -> Option<Vec<u8>> {
    let count = usize::from(form.data);
    let given = blocks.get(..count)?;
    let length = given[0].1.len();
    let mut rows: Vec<Vec<u8>> = given.iter().map(|(index, _)| row(*index, form.data)).collect();
    let mut bytes: Vec<Vec<u8>> = given.iter().map(|(_, stored)| stored.to_vec()).collect();
    if bytes.iter().any(|stored| stored.len() != length) {
        return None;
    }
    // Gauss and Jordan: the rows become those of the data fragments.
    for column in 0..count {
        let pivot = (column..count).find(|row| rows[*row][column] != 0)?;
        rows.swap(column, pivot);
        bytes.swap(column, pivot);
        let scale = inverse(rows[column][column]);
        multiply(&mut rows[column], scale);
        multiply(&mut bytes[column], scale);
        for other in (0..count).filter(|other| *other != column) {
            let factor = rows[other][column];
            if factor != 0 {
                let (row, stored) = (rows[column].clone(), bytes[column].clone());
                add(&mut rows[other], &row, factor);
                add(&mut bytes[other], &stored, factor);
            }
        }
    }
    Some(bytes.concat())
}

/// What a fragment is the sum of: one data fragment, or all, each divided by i XOR j.
fn row(index: u8, data: u8) -> Vec<u8> {
    match index < data {
        true => (0..data).map(|column| u8::from(column == index)).collect(),
        false => (0..data).map(|column| inverse(index ^ column)).collect(),
    }
}

/// Logarithms and powers in GF(2^8) with the polynomial 0x11d.
fn tables() -> &'static ([u8; 256], [u8; 512]) {
    static TABLES: OnceLock<([u8; 256], [u8; 512])> = OnceLock::new();
    TABLES.get_or_init(|| {
        let (mut logarithms, mut powers, mut value) = ([0; 256], [0; 512], 1u16);
        for exponent in 0..255u8 {
            let byte = u8::try_from(value).unwrap();
            logarithms[usize::from(byte)] = exponent;
            powers[usize::from(exponent)] = byte;
            powers[usize::from(exponent) + 255] = byte;
            value <<= 1;
            if value > 0xff {
                value ^= 0x11d;
            }
        }
        (logarithms, powers)
    })
}

fn product(one: u8, other: u8) -> u8 {
    let (logarithms, powers) = tables();
    if one == 0 || other == 0 {
        return 0;
    }
    powers[usize::from(logarithms[usize::from(one)]) + usize::from(logarithms[usize::from(other)])]
}

fn inverse(of: u8) -> u8 {
    assert_ne!(of, 0, "zero has no inverse");
    let (logarithms, powers) = tables();
    powers[255 - usize::from(logarithms[usize::from(of)])]
}

/// All products with one factor.
fn products(factor: u8) -> [u8; 256] {
    let mut table = [0; 256];
    for (byte, place) in (0..=u8::MAX).zip(&mut table) {
        *place = product(byte, factor);
    }
    table
}

fn multiply(bytes: &mut [u8], factor: u8) {
    let table = products(factor);
    bytes.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
}

/// Adds `factor` times `of`.
fn add(bytes: &mut [u8], of: &[u8], factor: u8) {
    let table = products(factor);
    bytes.iter_mut().zip(of).for_each(|(byte, of)| *byte ^= table[usize::from(*of)]);
}
