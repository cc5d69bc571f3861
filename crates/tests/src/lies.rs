//! Lies in messages: each field of an encoded message absurd, stale, another's, repeated or huge, as far as somebody could send that.
//!
//! The messages are those of `docs/protocol-vectors.txt`, one of each kind at least, so a kind that is added is lied in as well.

const VECTORS: &str = include_str!("../../../docs/protocol-vectors.txt");
/// More entries than a list may have.
const TOO_MANY: usize = 65_537;

/// An encoded message.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// An unsigned number.
    Number(u64),
    /// -1 less this.
    Negative(u64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// Null and the like: the byte itself.
    Simple(u8),
}

fn head(bytes: &mut &[u8]) -> (u8, u64) {
    let first = bytes[0];
    *bytes = &bytes[1..];
    let (kind, short) = (first >> 5, first & 31);
    let length = match short {
        0..=23 => return (kind, u64::from(short)),
        24 => 1,
        25 => 2,
        26 => 4,
        _ => 8,
    };
    let (number, rest) = bytes.split_at(length);
    *bytes = rest;
    (kind, number.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

/// Decodes one item, and leaves what is behind it.
pub fn read(bytes: &mut &[u8]) -> Item {
    if bytes[0] >> 5 == 7 {
        let simple = bytes[0];
        *bytes = &bytes[1..];
        return Item::Simple(simple);
    }
    let (kind, number) = head(bytes);
    let mut take = || {
        let (taken, rest) = bytes.split_at(usize::try_from(number).unwrap());
        *bytes = rest;
        taken.to_vec()
    };
    match kind {
        0 => Item::Number(number),
        1 => Item::Negative(number),
        2 => Item::Bytes(take()),
        3 => Item::Text(String::from_utf8(take()).unwrap()),
        4 => Item::List((0..number).map(|_| read(bytes)).collect()),
        _ => panic!("no message has items of kind {kind}"),
    }
}

/// Encodes an item.
pub fn write(item: &Item, to: &mut Vec<u8>) {
    let mut head = |kind: u8, number: u64| {
        to.push(kind << 5 | 27);
        to.extend(number.to_be_bytes());
    };
    match item {
        Item::Number(number) => head(0, *number),
        Item::Negative(number) => head(1, *number),
        Item::Bytes(bytes) => {
            head(2, bytes.len() as u64);
            to.extend(bytes);
        }
        Item::Text(text) => {
            head(3, text.len() as u64);
            to.extend(text.as_bytes());
        }
        Item::List(items) => {
            head(4, items.len() as u64);
            items.iter().for_each(|item| write(item, to));
        }
        Item::Simple(simple) => to.push(*simple),
    }
}

/// What may stand in place of an item; `known`: byte strings of others, and one's own.
pub fn lies(item: &Item, known: &[Vec<u8>]) -> Vec<Item> {
    match item {
        Item::Number(_) | Item::Negative(_) => {
            let absurd = [255, 65_535, 1 << 31, u64::from(u32::MAX), 1 << 32, i64::MAX as u64, u64::MAX];
            let known = (0..=9).chain([63, 64, 1 << 16]);
            let mut all: Vec<Item> = absurd.into_iter().chain(known).map(Item::Number).collect();
            all.extend([0, i64::MAX as u64].map(Item::Negative));
            all
        }
        Item::Bytes(bytes) => {
            let absurd = [vec![0; bytes.len()], vec![255; bytes.len()], Vec::new(), vec![7; 5000]];
            absurd.into_iter().chain(known.iter().cloned()).map(Item::Bytes).collect()
        }
        Item::Text(_) => {
            let long = "a".repeat(5000);
            let all = ["", "/", "..", "a\0b", "app", "app/file", "own", "own/file", &long, "unix:/x", "rack"];
            all.map(|text| Item::Text(text.to_owned())).to_vec()
        }
        Item::List(items) => {
            let mut all = vec![Item::List(Vec::new()), Item::Simple(0xf6)];
            if let Some(first) = items.first() {
                all.extend([2, 3000, TOO_MANY].map(|count| Item::List(vec![first.clone(); count])));
            }
            all
        }
        Item::Simple(_) => [0xf4, 0xf5, 0xf6].map(Item::Simple).to_vec(),
    }
}

/// Every place in a message, as the way that leads there.
pub fn places(item: &Item) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    if let Item::List(items) = item {
        for (number, item) in items.iter().enumerate() {
            all.extend(places(item).into_iter().map(|rest| [vec![number], rest].concat()));
        }
    }
    all
}

/// The item at a place.
pub fn at<'a>(item: &'a mut Item, place: &[usize]) -> &'a mut Item {
    place.iter().fold(item, |item, number| match item {
        Item::List(items) => &mut items[*number],
        _ => panic!("a way leads through lists"),
    })
}

/// The messages of a section of the document.
pub fn vectors(section: &str) -> Vec<Item> {
    let begins = |part: &&str| part.lines().next() == Some(section);
    let part = VECTORS.split("\n## ").find(begins).unwrap();
    let is_hex = |line: &&str| line.len() > 1 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = |line: &str| -> Vec<u8> {
        let pairs = line.as_bytes().chunks(2);
        pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    };
    part.lines().filter(is_hex).map(|line| read(&mut &bytes(line)[..])).collect()
}
