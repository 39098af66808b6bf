//! Idle connections of the admin pages: their time limit, and which one is closed if there are too
//! many.

use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use crate::capture::Long;

/// How long a write may make no progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection idle for less than this is not replaced.
const WAIT_MIN: Duration = Duration::from_millis(500);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shared state of a connection.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Since when it neither sends nor receives.
    waits_since: Mutex<Option<Instant>>,
    /// True for the one capture, which may stall because it drops packets instead.
    long: Long,
    give_way: Notify,
}

impl Peer {
    /// Resolves when another connection needs this one's slot.
    pub(super) async fn gives_way(&self) {
        self.give_way.notified().await;
    }

    fn is_long(&self) -> bool {
        self.long.0.load(Ordering::Relaxed)
    }

    fn note(&self, is_waiting: bool) {
        let mut since = locked(&self.waits_since);
        match is_waiting {
            true => *since = since.or_else(|| Some(Instant::now())),
            false => *since = None,
        }
    }
}

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<Vec<Weak<Peer>>>);

impl Peers {
    pub(super) fn enter(&self, long: Long) -> Arc<Peer> {
        let peer = Arc::new(Peer {
            long,
            ..Peer::default()
        });
        let mut peers = locked(&self.0);
        peers.retain(|one| one.strong_count() > 0);
        peers.push(Arc::downgrade(&peer));
        peer
    }

    /// Closes the connection that has been idle longest, if one has been idle long enough.
    pub(super) fn make_room(&self) {
        let mut peers = locked(&self.0);
        let waiting = peers.iter().enumerate().filter_map(|(index, one)| {
            let peer = one.upgrade().filter(|peer| !peer.is_long())?;
            let since = *locked(&peer.waits_since);
            Some((since?, index, peer))
        });
        let first = waiting.min_by_key(|(since, ..)| *since);
        if let Some((since, index, peer)) = first
            && since.elapsed() >= WAIT_MIN
        {
            peers.swap_remove(index);
            peer.give_way.notify_one();
        }
    }
}

/// A connection that fails if a write makes no progress for too long.
#[derive(Debug)]
pub(super) struct Paced {
    stream: TcpStream,
    peer: Arc<Peer>,
    /// Set while a write is pending.
    limit: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    pub(super) fn new(stream: TcpStream, peer: Arc<Peer>) -> Self {
        Self {
            stream,
            peer,
            limit: None,
        }
    }

    fn paced<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.peer.note(written.is_pending());
        if written.is_ready() {
            self.limit = None;
            return written;
        }
        if self.peer.is_long() {
            return Poll::Pending;
        }
        let fresh = || Box::pin(tokio::time::sleep(WRITE_TIMEOUT));
        let limit = self.limit.get_or_insert_with(fresh);
        limit
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        // While a write is pending, only the write counts.
        if self.limit.is_none() {
            self.peer.note(read.is_pending());
        }
        read
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.paced(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.paced(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
