//! How the connections of a front go to other processes: clients that wait for a request to another
//! front, at once or behind their response, and what caches hold to whoever opens their files next.

use fairlead_base::Instant;
use fairlead_http_cache::Read;

use crate::cached::{Cached, rewrite_head};
use crate::caches::Caches;
use crate::client::Phase;
use crate::conns::{Conn, ConnId, Side};
use crate::event::RequestEnd;
use crate::front::{Action, Front};

/// Bytes of stored bodies that are copied, because clients are being sent them, at most.
const COPIED_BYTES_MAX: usize = 256 << 20;

impl Front {
    /// Gives away clients as soon as they wait for their next request and nothing of it has come.
    /// No further request has to do with a cache.
    pub fn release(&mut self, now: Instant) {
        self.releases = true;
        self.let_tunnels_leave(false);
        self.caches.is_off = true;
        self.release_idle(now);
        self.check_invariants();
    }

    /// Clients are being given away.
    pub fn is_releasing(&self) -> bool {
        self.releases
    }

    pub(crate) fn release_idle(&mut self, now: Instant) {
        for id in self.clients_that(|_| true) {
            self.release_if_idle(now, id);
        }
    }

    /// Gives a client away that waits for its next request.
    pub(crate) fn release_if_idle(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.peek(id) else {
            return;
        };
        let Side::Client(client) = &conn.side else {
            return;
        };
        let (waits, is_announced) = (client.phase == Phase::Head, client.is_announced);
        if waits && conn.input.len() == 0 && !conn.eof && conn.is_flushed() {
            // Nobody would say once more who an announced client is.
            match is_announced {
                true => self.end_client(now, id, true),
                false => self.forget(id, Action::Release(id)),
            }
        }
    }

    /// A cache has a part in some request.
    pub fn uses_caches(&self) -> bool {
        let uses =
            |cached: &Cached| !matches!(cached, Cached::No | Cached::Pass(..) | Cached::Whole);
        let mut clients = self.conns.all().filter_map(|(_, conn)| match &conn.side {
            Side::Client(client) => Some(client),
            Side::Server(_) => None,
        });
        clients.any(|one| {
            let exchange = one.exchange.as_ref();
            one.job.is_some() || exchange.is_some_and(|exchange| uses(&exchange.cached))
        })
    }

    /// Ends whatever caches have to do with requests, behind [`Front::release`], and the caches.
    /// Their files can be opened by another process then. What is left of stored bodies is copied;
    /// requests that wait for a fetch go to a server; bodies that are being fetched are cut off.
    pub fn part_from_caches(&mut self, now: Instant) {
        for id in self.clients_that(|_| true) {
            if self.is_job(id) {
                self.cut_fetch(now, id);
            }
        }
        // Those that have waited for these fetches go on alone.
        self.heed_caches(now);
        for id in self.clients_that(|cached| matches!(cached, Cached::Wait(..))) {
            self.go_on_alone(now, id, None);
        }
        let mut copied = 0;
        let bodies = |cached: &Cached| matches!(cached, Cached::Body { .. } | Cached::File { .. });
        for id in self.clients_that(bodies) {
            match self.copy_rest(id, COPIED_BYTES_MAX - copied) {
                Some(bytes) => copied += bytes,
                None => self.end_exchange(now, id, RequestEnd::Aborted, None),
            }
        }
        for id in self.clients_that(|cached| matches!(cached, Cached::Pass(..))) {
            if let Some(exchange) = self.exchange(id) {
                exchange.cached = Cached::No;
            }
        }
        self.caches = Caches::default();
        self.caches.is_off = true;
        self.settle(now);
    }

    /// Clients whose request a cache has this part in, and those without a request.
    fn clients_that(&self, wanted: impl Fn(&Cached) -> bool) -> Vec<ConnId> {
        let all = self.conns.all().filter(|(_, conn)| match &conn.side {
            Side::Client(client) => {
                let exchange = client.exchange.as_ref();
                wanted(exchange.map_or(&Cached::No, |one| &one.cached))
            }
            Side::Server(_) => false,
        });
        all.map(|(id, _)| id).collect()
    }

    /// Ends a fetch. The client that caused it goes on alone if it has been sent nothing.
    fn cut_fetch(&mut self, now: Instant, id: ConnId) {
        let job = self.conns.get(id).and_then(Conn::client);
        let Some(job) = job.and_then(|one| one.job.as_mut()) else {
            return;
        };
        let (owner, plain) = (job.owner.take(), core::mem::take(&mut job.plain));
        self.end_exchange(now, id, RequestEnd::Aborted, None);
        if let Some(owner) = owner {
            self.go_on_alone(now, owner, Some(plain));
        }
    }

    /// Sends a request to a server, without the cache. `plain` is its head as a fetch has it.
    pub(crate) fn go_on_alone(&mut self, now: Instant, id: ConnId, plain: Option<Vec<u8>>) {
        self.leave_cache(id);
        let Some(exchange) = self.exchange(id) else {
            return;
        };
        exchange.cached = Cached::No;
        match plain {
            // A fetch is a GET.
            Some(_) if exchange.question.is_head => {
                return self.end_exchange(now, id, RequestEnd::Aborted, Some(503));
            }
            Some(plain) => exchange.head = plain,
            None => {
                rewrite_head(&self.config, &mut self.conns, id, |_, _, _, _| ());
            }
        }
        self.choose_server(now, id);
    }

    /// Makes the rest of a stored body ready to be sent, and returns its bytes. `None` if it is not
    /// all here, or longer than `most`.
    fn copy_rest(&mut self, id: ConnId, most: usize) -> Option<usize> {
        let Conn { out, side, .. } = self.conns.get(id)?;
        let Side::Client(client) = side else {
            return None;
        };
        let exchange = client.exchange.as_mut()?;
        let (slot, reader, in_chunks) = match exchange.cached {
            Cached::File { slot, reader } => (slot, reader, false),
            Cached::Body {
                slot,
                reader,
                in_chunks,
            } => (slot, reader, in_chunks),
            _ => return None,
        };
        let (of, before) = (self.caches.route_cache(slot), out.len());
        loop {
            match of.cache.read(reader) {
                Read::Bytes(bytes) => {
                    let len = bytes.len();
                    if out.len() - before + len > most {
                        return None;
                    }
                    if in_chunks {
                        out.extend_from_slice(format!("{len:x}\r\n").as_bytes());
                    }
                    out.extend_from_slice(bytes);
                    if in_chunks {
                        out.extend_from_slice(b"\r\n");
                    }
                    of.cache.advance(reader, len as u64);
                }
                Read::End => break,
                Read::Wait | Read::Cut => return None,
            }
        }
        of.cache.end(reader);
        if in_chunks {
            out.extend_from_slice(b"0\r\n\r\n");
        }
        exchange.cached = Cached::Whole;
        let copied = out.len() - before;
        self.actions.push_back(Action::Send(id));
        Some(copied)
    }
}
