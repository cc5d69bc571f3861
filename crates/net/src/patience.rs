//! A limit on how long a peer may leave a frame unfinished, on reading as on writing.
//!
//! A connection may be idle between frames for as long as it likes. Within a frame the peer must move some bytes in each
//! period: who sends half a frame, or never takes its answers, holds a buffer, a task and a place among the
//! connections, and is dropped. Measured only while the socket makes us wait: bytes that are there cost no timer and
//! no system call, and one timer serves a connection for all its frames.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Period in which a peer must move [`PROGRESS_BYTES_MIN`] of a frame that is under way; it is dropped after one to two
/// of them. Long enough for a machine that swaps, and longer than who puts or gets a block waits while nothing moves.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes of an unfinished frame that must move in each period: a trickle holds as much as silence does. A frame that
/// is shorter has two periods.
pub const PROGRESS_BYTES_MIN: u64 = 4096;

/// One half of a connection with a limit on stalls.
#[derive(Debug)]
pub(crate) struct Patient<S> {
    half: S,
    limit: Duration,
    /// When the present period ends; made when the peer first makes us wait.
    period: Option<Pin<Box<Sleep>>>,
    /// Bytes moved in the present period.
    moved: u64,
    /// Bytes moved in all.
    moved_in_all: Arc<AtomicU64>,
    /// Whether the frame began, or our own waiting ended, in the present period: then it doesn't count.
    excused: bool,
    under_way: bool,
}

impl<S> Patient<S> {
    pub(crate) fn new(half: S, limit: Duration) -> Self {
        let moved_in_all = Arc::default();
        Self { half, limit, period: None, moved: 0, moved_in_all, excused: false, under_way: false }
    }

    /// Bytes that moved, counted as they move.
    pub(crate) fn moved_in_all(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.moved_in_all)
    }

    /// What it watches.
    pub(crate) fn half_mut(&mut self) -> &mut S {
        &mut self.half
    }

    /// Watches it no longer.
    pub(crate) fn into_half(self) -> S {
        self.half
    }

    /// A frame begins, or goes on after this side was the one that waited.
    pub(crate) fn begin(&mut self) {
        (self.under_way, self.excused) = (true, true);
    }

    /// The frame is finished: from now on the peer may be silent.
    pub(crate) fn finish(&mut self) {
        self.under_way = false;
    }

    fn note(&mut self, bytes: usize) {
        self.moved += bytes as u64;
        self.moved_in_all.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The peer makes us wait: pending while it may.
    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if !self.under_way {
            return Poll::Pending;
        }
        let limit = self.limit;
        let period = self.period.get_or_insert_with(|| Box::pin(sleep(limit)));
        loop {
            ready!(period.as_mut().poll(context));
            if !self.excused && self.moved < PROGRESS_BYTES_MIN {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the peer stopped within a frame",
                )));
            }
            (self.moved, self.excused) = (0, false);
            period.as_mut().reset(Instant::now() + limit);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        match Pin::new(&mut this.half).poll_read(context, into) {
            Poll::Ready(done) => {
                this.note(into.filled().len() - before);
                Poll::Ready(done)
            }
            Poll::Pending => this.wait(context),
        }
    }
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.note(bytes);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.wait(context),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.half).poll_write(context, bytes);
        this.written(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.half).poll_write_vectored(context, parts);
        this.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.half.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match Pin::new(&mut this.half).poll_flush(context) {
            Poll::Pending => this.wait(context),
            flushed => flushed,
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().half).poll_shutdown(context)
    }
}
