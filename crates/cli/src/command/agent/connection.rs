//! One connection to an agent: lines of requests, lines of answers, and descriptors beside them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::protocol::{Answer, LINE_BYTES_MAX, Request};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// A connection.
pub struct Connection {
    stream: UnixStream,
    /// Read, and no whole line yet.
    read: Vec<u8>,
    /// Up to here there is no end of a line.
    looked: usize,
}

impl Connection {
    /// A connection over this stream.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, read: Vec::new(), looked: 0 }
    }

    /// The next request; `None`: the other side has ended. Nothing is lost if the caller goes away while it waits.
    pub async fn next(&mut self) -> io::Result<Option<Result<Request, serde_json::Error>>> {
        loop {
            let (_, unseen) = self.read.split_at(self.looked);
            if let Some(end) = unseen.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=self.looked + end).collect();
                self.looked = 0;
                return Ok(Some(serde_json::from_slice(&line)));
            }
            self.looked = self.read.len();
            if self.read.len() > LINE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a request is too long"));
            }
            self.stream.readable().await?;
            let mut piece = [0; READ_BYTES];
            match self.stream.try_read(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(count) => self.read.extend_from_slice(piece.split_at(count).0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends an answer, with a descriptor beside it.
    pub async fn send(&self, answer: &Answer, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        let mut rest = line.as_slice();
        let mut beside = descriptor;
        while !rest.is_empty() {
            let sent = self.stream.async_io(Interest::WRITABLE, || send(&self.stream, rest, beside)).await?;
            // It travels with the first byte.
            beside = None;
            rest = rest.split_at(sent).1;
        }
        Ok(())
    }
}

fn send(stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        assert!(
            beside.push(SendAncillaryMessage::ScmRights(descriptors)),
            "there is space for one descriptor"
        );
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg(stream.as_fd(), &[io::IoSlice::new(bytes)], &mut beside, flags)?)
}
