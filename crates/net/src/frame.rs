//! Frames: what goes over a connection, in both directions.
//!
//! ```text
//! offset  bytes  field (little-endian)
//!      0      4  magic `SCK1`
//!      4      1  kind: 0 request, 1 reply, 2 failure, 3 alive
//!      5      3  zero
//!      8      8  id of the request
//!     16      4  length of the body
//!     20      4  length of the payload
//!     24      8  check: first 8 bytes of the BLAKE3-256 of the 24 bytes above and the body
//!     32         body (CBOR), then payload (raw bytes)
//! ```
//! The payload isn't covered by the check: it is a block, whose name the receiver verifies.

use std::future::Future;
use std::io;
use std::sync::Arc;

use bytes::Buf;
use stdchk_model::exact::{first, narrow, part_mut};
use stdchk_model::limits::{BLOCK_BYTES_MAX, BODY_BYTES_MAX, MANAGER_ADDRESS_BYTES_MAX, MANAGERS_MAX};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::buffer::{Buffer, BufferPool};
use crate::patience::{PATIENCE, Patient};

const MAGIC: [u8; 4] = *b"SCK1";
/// Length of a frame's head, bytes.
pub const HEAD_BYTES: usize = 32;
/// Longest body of a greeting, bytes: identities take less than a hundred. A stranger can make a server keep this much, and no buffer for a
/// payload.
pub const GREETING_BYTES_MAX: usize = 1024;
/// Longest body of its answer, bytes: a manager names where it leads, and where all of them serve, in as many addresses as a pool may have.
pub const GREETED_BYTES_MAX: usize = 16 << 10;
const _: () = assert!(2 * MANAGERS_MAX * (MANAGER_ADDRESS_BYTES_MAX + 8) < GREETED_BYTES_MAX);

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A question.
    Request,
    /// Its answer.
    Reply,
    /// A [`stdchk_model::Failure`] instead of an answer.
    Failure,
    /// No answer: the server is there, and has yet to answer something. Has neither a body nor a payload, and its id is 0.
    Alive,
}

/// The head of a frame and its body; the payload stands beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// What the frame is.
    pub kind: Kind,
    /// Which request it is or belongs to.
    pub id: u64,
}

/// Head and body of a frame as bytes, ready to send in front of `payload_length` bytes of payload.
pub fn encode(head: &Head, body: &[u8], payload_length: usize) -> io::Result<Vec<u8>> {
    if body.len() > BODY_BYTES_MAX || payload_length > BLOCK_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is larger than a frame may be"));
    }
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend(MAGIC);
    bytes.extend([head.kind as u8, 0, 0, 0]);
    bytes.extend(head.id.to_le_bytes());
    bytes.extend(narrow::<u32, _>(body.len()).to_le_bytes());
    bytes.extend(narrow::<u32, _>(payload_length).to_le_bytes());
    bytes.extend(check(&bytes, body));
    bytes.extend(body);
    Ok(bytes)
}

fn check(head: &[u8], body: &[u8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(head).update(body);
    first(hasher.finalize().as_bytes())
}

/// Reads one frame; the payload goes into a buffer of `pool`. `None` at the end of the stream between two frames.
pub(crate) async fn read(
    stream: &mut Patient<impl AsyncRead + Unpin>,
    pool: &Arc<BufferPool>,
) -> io::Result<Option<(Head, Vec<u8>, Buffer)>> {
    let read = read_admitted(stream, pool, |_| std::future::ready(())).await?;
    Ok(read.map(|(head, body, payload, ())| (head, body, payload)))
}

/// Reads one frame as [`read`] does, once `admit` has let the lengths of its body and its payload in.
pub(crate) async fn read_admitted<A, F: Future<Output = A>>(
    stream: &mut Patient<impl AsyncRead + Unpin>,
    pool: &Arc<BufferPool>,
    admit: impl FnOnce((usize, usize)) -> F,
) -> io::Result<Option<(Head, Vec<u8>, Buffer, A)>> {
    let Some((parsed, raw)) = read_head(stream, BODY_BYTES_MAX, BLOCK_BYTES_MAX).await? else {
        return Ok(None);
    };
    let admitted = admit((parsed.body_length, parsed.payload_length)).await;
    // Waiting for room was not the peer's doing.
    stream.begin();
    let body = read_body(stream, &parsed, &raw).await?;
    let mut payload = pool.take(parsed.payload_length).await;
    // Waiting for memory was not the peer's doing.
    stream.begin();
    stream.read_exact(&mut payload).await?;
    stream.finish();
    Ok(Some((parsed.head, body, payload, admitted)))
}

/// Reads one frame from a stream that keeps nobody waiting, as a file or bytes in memory do.
///
/// # Errors
/// Those of the stream, and `InvalidData` for what is no frame.
pub async fn read_one(
    stream: impl AsyncRead + Unpin,
    pool: &Arc<BufferPool>,
) -> io::Result<Option<(Head, Vec<u8>, Buffer)>> {
    read(&mut Patient::new(stream, PATIENCE), pool).await
}

/// Reads a greeting or its answer: a frame with a body of at most so many bytes and no payload, from a peer that is not known yet.
pub(crate) async fn read_greeting(
    stream: &mut Patient<impl AsyncRead + Unpin>,
    body_bytes_max: usize,
) -> io::Result<Option<(Head, Vec<u8>)>> {
    let Some((parsed, raw)) = read_head(stream, body_bytes_max, 0).await? else { return Ok(None) };
    let body = read_body(stream, &parsed, &raw).await?;
    stream.finish();
    Ok(Some((parsed.head, body)))
}

/// Reads the head of a frame that is no longer than the limits.
async fn read_head(
    stream: &mut Patient<impl AsyncRead + Unpin>,
    body_bytes_max: usize,
    payload_bytes_max: usize,
) -> io::Result<Option<(Parsed, [u8; HEAD_BYTES])>> {
    let mut raw = [0; HEAD_BYTES];
    if !fill_or_end(stream, &mut raw).await? {
        return Ok(None);
    }
    let parsed = parse(&raw)?;
    if parsed.body_length > body_bytes_max || parsed.payload_length > payload_bytes_max {
        return Err(garbled("it is longer than a frame may be here"));
    }
    Ok(Some((parsed, raw)))
}

/// Reads the body behind a head, and verifies both.
async fn read_body(
    stream: &mut Patient<impl AsyncRead + Unpin>,
    parsed: &Parsed,
    raw: &[u8; HEAD_BYTES],
) -> io::Result<Vec<u8>> {
    let mut body = vec![0; parsed.body_length];
    stream.read_exact(&mut body).await?;
    let [checked @ .., _, _, _, _, _, _, _, _] = raw;
    if check(checked, &body) != parsed.check {
        return Err(garbled("its check doesn't match"));
    }
    Ok(body)
}

async fn fill_or_end(stream: &mut Patient<impl AsyncRead + Unpin>, raw: &mut [u8]) -> io::Result<bool> {
    let got = stream.read(raw).await?;
    if got == 0 {
        return Ok(false);
    }
    stream.begin();
    stream.read_exact(part_mut(raw, got..)).await?;
    Ok(true)
}

struct Parsed {
    head: Head,
    body_length: usize,
    payload_length: usize,
    check: [u8; 8],
}

fn parse(raw: &[u8; HEAD_BYTES]) -> io::Result<Parsed> {
    let mut rest = raw.as_slice();
    if rest.get_u32_le() != u32::from_le_bytes(MAGIC) {
        return Err(garbled("it doesn't start with `SCK1`: the peer is no stdchk or far newer"));
    }
    let kind = match rest.get_u32_le().to_le_bytes() {
        [0, ..] => Kind::Request,
        [1, ..] => Kind::Reply,
        [2, ..] => Kind::Failure,
        [3, ..] => Kind::Alive,
        _ => return Err(garbled("its kind is unknown")),
    };
    Ok(Parsed {
        head: Head { kind, id: rest.get_u64_le() },
        body_length: rest.get_u32_le() as usize,
        payload_length: rest.get_u32_le() as usize,
        check: rest.get_u64_le().to_le_bytes(),
    })
}

fn garbled(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a frame can't be read: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::PATIENCE;

    fn read_all(bytes: &[u8]) -> io::Result<Option<(Head, Vec<u8>, Buffer)>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read(&mut Patient::new(bytes, PATIENCE), &BufferPool::new(1 << 20)))
    }

    #[test]
    fn the_frame_in_the_document_is_what_is_sent() {
        let bytes = encode(&Head { kind: Kind::Request, id: 1 }, &[0x82, 0x05, 0x80], 0).unwrap();
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(include_str!("../../../docs/PROTOCOL.md").contains(&format!("`{digits}`")), "{digits}");
    }

    #[test]
    fn a_frame_survives_the_wire() {
        let head = Head { kind: Kind::Reply, id: 77 };
        let mut bytes = encode(&head, b"body", 3).unwrap();
        bytes.extend(b"xyz");
        let (read_head, body, payload) = read_all(&bytes).unwrap().unwrap();
        assert_eq!((read_head, body.as_slice(), &payload[..]), (head, &b"body"[..], &b"xyz"[..]));
        assert!(read_all(&[]).unwrap().is_none());
    }

    #[test]
    fn every_flipped_bit_of_head_and_body_is_noticed() {
        let bytes = encode(&Head { kind: Kind::Request, id: 1 }, b"some body", 0).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read_all(&bad).is_err(), "bit {bit}");
        }
        for cut in 1..bytes.len() {
            assert!(read_all(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}
