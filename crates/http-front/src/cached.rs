//! Requests of routes with a cache: what the cache says, and what becomes of it.
//!
//! A fetch is a request of the front's own: a connection without a socket, whose response goes
//! into the cache. Clients read their answers from there, the one that caused the fetch among them.
//! So a fetch goes on when its client leaves, and needs no code of its own for retries, framing
//! and time-outs.

use fairlead_base::{Endpoint, Instant};
use fairlead_http_cache::{Answer, Event, FetchId, Next, Piece, Read, ReaderId, Reason, WaiterId};
use fairlead_splice::config::{Config, Forwarded};
use fairlead_wire::http::{ChunkScanner, HeadScanner, RequestHead as Head, Scan};

use crate::caches::{Heads, Step, step};
use crate::client::{Client, Phase};
use crate::conns::{Conn, ConnId, Conns, Side};
use crate::event::RequestEnd;
use crate::exchange::Exchange;
use crate::fields::{Options, request_head};
use crate::framing::Framing;
use crate::front::{Action, Front};
use crate::response::{Question, ResponseHead, add_fields};
use crate::server::Reading;

/// What the cache does for a request.
#[derive(Debug, Default)]
pub(crate) enum Cached {
    /// Nothing: its route has none, or it was relayed.
    #[default]
    No,
    /// The request is not for a cache; it may change what is stored.
    Pass(usize, Reason),
    /// The response to a fetch is awaited.
    Fetch(ConnId),
    /// The response to somebody else's fetch is awaited.
    Wait(usize, WaiterId),
    /// The answer's body is read.
    Body {
        slot: usize,
        reader: ReaderId,
        /// It is sent in chunks.
        in_chunks: bool,
    },
    /// The answer's body is sent from the cache's file: see [`Front::file_part`].
    File { slot: usize, reader: ReaderId },
    /// The whole answer is on its way.
    Whole,
}

/// A request of the front's own, to fill the cache.
#[derive(Debug)]
pub(crate) struct Job {
    slot: usize,
    fetch: FetchId,
    /// The client that caused it, if it waits still.
    pub(crate) owner: Option<ConnId>,
    /// The request without conditions.
    pub(crate) plain: Vec<u8>,
    /// The response's body goes into the cache.
    fills: bool,
    /// Of a body in chunks: where its data is.
    chunks: Option<ChunkScanner>,
}

/// Bytes of a body that are made ready to be sent at once.
const BATCH_BYTES: usize = 64 << 10;

/// What a fetch's response is read by.
const OF_FETCH: Question = Question {
    is_head: false,
    minor: 1,
    upgrade: false,
    keep: true,
};

impl Front {
    /// Does for a request what its cache has said.
    pub(crate) fn follow_cache(&mut self, now: Instant, id: ConnId, slot: usize, step: Step) {
        match step {
            Step::Pass(reason) => {
                if let Some(exchange) = self.exchange(id) {
                    exchange.cached = Cached::Pass(slot, reason);
                }
                self.choose_server(now, id);
            }
            Step::Wait(waiter) => {
                if let Some(exchange) = self.exchange(id) {
                    exchange.cached = Cached::Wait(slot, waiter);
                    self.caches.route_cache(slot).waiters.insert(waiter, id);
                }
            }
            Step::Fetch(heads) => self.fetch(now, id, slot, heads, true),
            Step::Answer(answer, head, revalidate) => {
                if let Some(heads) = revalidate {
                    self.fetch(now, id, slot, heads, false);
                }
                self.give(now, id, slot, answer, head);
            }
        }
    }

    /// Begins a request of our own, for a client or in the background.
    fn fetch(&mut self, now: Instant, id: ConnId, slot: usize, heads: Heads, for_client: bool) {
        let Some(of) = self.conns.get(id).and_then(Conn::client) else {
            return;
        };
        let Some(exchange) = of.exchange.as_ref() else {
            return;
        };
        let mut own = Exchange::of_fetch(exchange, heads.head, OF_FETCH, now);
        own.hash = exchange.hash;
        let mut client = Client::new(of.client, of.listen, of.service);
        client.phase = Phase::Exchange;
        client.exchange = Some(own);
        client.job = Some(Job {
            slot,
            fetch: heads.fetch,
            owner: for_client.then_some(id),
            plain: heads.plain,
            fills: false,
            chunks: None,
        });
        let job = self.conns.add(Conn::new(Side::Client(Box::new(client))));
        self.caches.route_cache(slot).jobs.insert(heads.fetch, job);
        if for_client && let Some(exchange) = self.exchange(id) {
            exchange.cached = Cached::Fetch(job);
        }
        self.touch(now, job);
        self.choose_server(now, job);
    }

    /// Sends a client an answer from the cache.
    fn give(&mut self, now: Instant, id: ConnId, slot: usize, answer: Answer, head: Vec<u8>) {
        let draining = self.draining;
        let Some(conn) = self.conns.get(id) else {
            return self.let_go(slot, answer);
        };
        let Conn { out, side, .. } = conn;
        let Side::Client(client) = side else { return };
        let Some(exchange) = client.exchange.as_mut() else {
            return self.let_go(slot, answer);
        };
        let in_chunks = answer.body.is_some_and(|body| body.length.is_none());
        let old = exchange.question.minor == 0;
        exchange.status = Some(answer.status);
        exchange.keeps = exchange.question.keep && !draining && !(in_chunks && old);
        out.extend_from_slice(&head);
        match (exchange.keeps, old) {
            (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
            (true, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            (true, false) => {}
        }
        if in_chunks && !old {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        out.extend_from_slice(b"\r\n");
        exchange.cached = match answer.body {
            None => Cached::Whole,
            Some(body) if self.caches.route_cache(slot).sends(body.length) => Cached::File {
                slot,
                reader: body.reader,
            },
            Some(body) => Cached::Body {
                slot,
                reader: body.reader,
                in_chunks: in_chunks && !old,
            },
        };
        self.counts.numbers.add_status(answer.status);
        self.touch(now, id);
        self.read_on(id);
        self.actions.push_back(Action::Send(id));
    }

    /// Nobody is there for an answer.
    fn let_go(&mut self, slot: usize, answer: Answer) {
        if let Some(body) = answer.body {
            self.caches.route_cache(slot).cache.end(body.reader);
        }
    }

    /// Adds the next bytes of a body to what goes out, up to [`BATCH_BYTES`], once all before them
    /// is sent. Blocks are small, and a system call for each would cost more than the copy.
    pub(crate) fn read_on(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let Conn {
            out, out_at, side, ..
        } = conn;
        let Side::Client(client) = side else { return };
        let Some(exchange) = client.exchange.as_mut() else {
            return;
        };
        let Cached::Body {
            slot,
            reader,
            in_chunks,
        } = exchange.cached
        else {
            return;
        };
        let of = self.caches.route_cache(slot);
        while *out_at == 0 && out.len() < BATCH_BYTES {
            match of.cache.read(reader) {
                Read::Bytes(bytes) => {
                    let len = bytes.len() as u64;
                    if in_chunks {
                        out.extend_from_slice(format!("{len:x}\r\n").as_bytes());
                    }
                    out.extend_from_slice(bytes);
                    if in_chunks {
                        out.extend_from_slice(b"\r\n");
                    }
                    of.cache.advance(reader, len);
                }
                Read::Wait => {
                    of.readers.insert(reader, id);
                    return;
                }
                Read::End => {
                    of.cache.end(reader);
                    if in_chunks {
                        out.extend_from_slice(b"0\r\n\r\n");
                    }
                    exchange.cached = Cached::Whole;
                    return;
                }
                // Shown by `finish_cached`.
                Read::Cut => return,
            }
        }
    }

    /// Ends a request whose answer from the cache was sent.
    pub(crate) fn finish_cached(&mut self, now: Instant, id: ConnId) {
        self.read_on(id);
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let flushed = conn.is_flushed();
        let Some(exchange) = conn.client().and_then(|one| one.exchange.as_mut()) else {
            return;
        };
        let keeps = exchange.keeps;
        match exchange.cached {
            Cached::Whole if flushed => {
                self.note_end(now, id, RequestEnd::Served);
                if keeps && !self.draining {
                    return self.await_request(now, id);
                }
                let unread = self.conns.peek(id).is_some_and(|one| one.input.len() > 0);
                if let Some(client) = self.conns.get(id).and_then(Conn::client) {
                    client.exchange = None;
                    client.phase = Phase::Ending;
                }
                self.end_client(now, id, unread);
            }
            Cached::Body { slot, reader, .. } if flushed => {
                if matches!(self.caches.route_cache(slot).cache.read(reader), Read::Cut) {
                    return self.end_exchange(now, id, RequestEnd::ServerLost, None);
                }
                self.actions.push_back(Action::Send(id));
            }
            Cached::File { slot, reader } if flushed => {
                let cache = &mut self.caches.route_cache(slot).cache;
                match cache.piece(reader) {
                    Piece::Cut => self.end_exchange(now, id, RequestEnd::ServerLost, None),
                    Piece::End => {
                        cache.end(reader);
                        exchange.cached = Cached::Whole;
                        self.finish_cached(now, id);
                    }
                    Piece::Extent(_) => self.actions.push_back(Action::Send(id)),
                    Piece::Wait => {
                        self.caches.route_cache(slot).readers.insert(reader, id);
                    }
                }
            }
            Cached::Whole | Cached::Body { .. } | Cached::File { .. } => {
                self.actions.push_back(Action::Send(id));
            }
            _ => {}
        }
    }

    /// A request that the cache has a part in is over before its answer was sent.
    pub(crate) fn leave_cache(&mut self, id: ConnId) {
        let Some(exchange) = self.exchange(id) else {
            return;
        };
        match core::mem::take(&mut exchange.cached) {
            Cached::Wait(slot, waiter) => {
                let slot = self.caches.route_cache(slot);
                slot.waiters.remove(&waiter);
                slot.cache.cancel(waiter);
            }
            Cached::Body { slot, reader, .. } | Cached::File { slot, reader } => {
                let slot = self.caches.route_cache(slot);
                slot.readers.remove(&reader);
                slot.cache.end(reader);
            }
            Cached::Fetch(job) => {
                if let Some(job) = self.job(job) {
                    job.owner = None;
                }
            }
            Cached::No | Cached::Pass(..) | Cached::Whole => {}
        }
    }

    fn job(&mut self, id: ConnId) -> Option<&mut Job> {
        self.conns.get(id)?.client()?.job.as_mut()
    }

    /// An interim response to a fetch is for the client that caused it.
    pub(crate) fn tell_owner(&mut self, id: ConnId, interim: &[u8]) {
        let Some(owner) = self.job(id).and_then(|job| job.owner) else {
            return;
        };
        let Some(conn) = self.conns.get(owner) else {
            return;
        };
        let exchange = conn.client().and_then(|one| one.exchange.as_ref());
        if exchange.is_some_and(|one| one.question.minor == 1) {
            conn.out.extend_from_slice(interim);
            self.actions.push_back(Action::Send(owner));
        }
    }

    /// A response's body goes into the cache.
    pub(crate) fn deliver(&mut self, now: Instant, id: ConnId, server: ConnId) {
        let at = self.caches.now(now);
        let Some(job) = self.job(id) else { return };
        let (slot, fetch, fills) = (job.slot, job.fetch, job.fills);
        let mut chunks = job.chunks;
        if !fills {
            return;
        }
        let whole = loop {
            let Some(conn) = self.conns.get(server) else {
                return;
            };
            let mut bytes = &conn.input.bytes()[..conn.pass];
            if bytes.is_empty() {
                break true;
            }
            if let Some(chunks) = &mut chunks {
                let overhead = chunks.skip_overhead(bytes);
                if overhead > 0 {
                    self.took(server, overhead);
                    continue;
                }
                let data = usize::try_from(chunks.data_left()).unwrap_or(usize::MAX);
                bytes = &bytes[..data.min(bytes.len())];
            }
            let offered = bytes.len();
            match self.caches.route_cache(slot).cache.body(fetch, bytes, at) {
                Ok(0) => break false,
                Ok(taken) => {
                    if let Some(chunks) = &mut chunks {
                        chunks.pass_chunk(taken as u64);
                    }
                    if let Some(exchange) = self.exchange(id) {
                        exchange.bytes_out += taken as u64;
                    }
                    self.took(server, taken);
                    self.touch(now, id);
                    if taken < offered {
                        break false;
                    }
                }
                Err(_) => return self.end_job(now, id, true),
            }
        };
        if let Some(job) = self.job(id) {
            job.chunks = chunks;
        }
        let complete = self.conns.get(server).and_then(Conn::server);
        if whole && complete.is_some_and(|one| one.reading == Reading::Complete) {
            // A body that is shorter than announced has no complete framing either.
            let whole = self
                .caches
                .route_cache(slot)
                .cache
                .finish(fetch, at)
                .is_ok();
            self.end_job(now, id, !whole);
        }
    }

    /// A fetch is over; its connection is for the next request, if it may be.
    fn end_job(&mut self, now: Instant, id: ConnId, failed: bool) {
        if let Some(job) = self.job(id) {
            let (slot, fetch) = (job.slot, job.fetch);
            self.caches.route_cache(slot).jobs.remove(&fetch);
        }
        if let Some(server) = self.part(id) {
            match failed {
                true => self.reset(server),
                false => self.rest_or_close(now, server),
            }
        }
        self.conns.remove(id);
    }

    /// A fetch has failed: its client may get a stale response, or else an error.
    pub(crate) fn fail_job(&mut self, now: Instant, id: ConnId, end: RequestEnd, status: u16) {
        let at = self.caches.now(now);
        let Some(job) = self.job(id) else { return };
        let (slot, fetch, owner) = (job.slot, job.fetch, job.owner);
        let mut head = Vec::new();
        let reason = Reason::FetchFailed;
        let answer = self
            .caches
            .route_cache(slot)
            .cache
            .abort(fetch, reason, at, &mut head);
        self.end_job(now, id, true);
        match (owner, answer) {
            (Some(owner), Some(answer)) => self.give(now, owner, slot, answer, head),
            (Some(owner), None) => {
                if let Some(exchange) = self.exchange(owner) {
                    exchange.cached = Cached::No;
                    self.end_exchange(now, owner, end, Some(status));
                }
            }
            (None, Some(answer)) => self.let_go(slot, answer),
            (None, None) => {}
        }
    }

    /// The head of a response to a fetch is here. True where the fetch goes on with its body.
    pub(crate) fn fetched(
        &mut self,
        now: Instant,
        id: ConnId,
        server: ConnId,
        parsed: &ResponseHead,
    ) {
        let at = self.caches.now(now);
        let Some(job) = self.job(id) else { return };
        let (slot, fetch, owner) = (job.slot, job.fetch, job.owner);
        let Some(conn) = self.conns.get(server) else {
            return;
        };
        let mut out = Vec::new();
        let cache = &mut self.caches.route_cache(slot).cache;
        let next = parsed.with(conn.input.bytes(), |response| {
            cache.response(fetch, response, at, &mut out)
        });
        match next {
            Next::Fill(answer) => {
                self.begin_body(server, parsed);
                if let Some(exchange) = self.exchange(id) {
                    exchange.status = Some(parsed.status);
                }
                if let Some(job) = self.job(id) {
                    job.fills = true;
                    job.owner = None;
                    let in_chunks = matches!(parsed.framing, Framing::Chunked(_));
                    job.chunks = in_chunks.then(ChunkScanner::default);
                }
                self.give_to(now, owner, slot, answer, out);
                self.read_response_body(now, server, id);
            }
            Next::Stored(answer) => {
                self.begin_body(server, parsed);
                self.end_job(now, id, false);
                self.give_to(now, owner, slot, answer, out);
            }
            Next::Relay(reason) => {
                self.note_relayed(id, reason);
                match owner {
                    Some(owner) => self.relay_to(now, id, server, owner, &out),
                    None => self.end_job(now, id, true),
                }
            }
            Next::Again => {
                self.begin_body(server, parsed);
                if let Some(server) = self.part(id) {
                    self.rest_or_close(now, server);
                }
                if let Some(client) = self.conns.get(id).and_then(Conn::client)
                    && let Some(job) = &mut client.job
                    && let Some(exchange) = &mut client.exchange
                {
                    exchange.head = core::mem::take(&mut job.plain);
                    exchange.status = None;
                }
                self.choose_server(now, id);
            }
        }
    }

    /// Says what whoever asks for the same has to expect: reasons that are those of the URL, and
    /// not of one request.
    fn note_relayed(&mut self, id: ConnId, reason: Reason) {
        let of_url = matches!(
            reason,
            Reason::NoStore
                | Reason::Private
                | Reason::SetCookie
                | Reason::Vary
                | Reason::NoFreshness
                | Reason::TooLarge
        );
        let client = self.conns.get(id).and_then(Conn::client);
        let Some(client) = client.filter(|_| of_url) else {
            return;
        };
        let service = client.service;
        if let Some(exchange) = &client.exchange {
            let (route, head) = (exchange.route, exchange.head.clone());
            self.note_uncached(service, route, &head);
        }
    }

    fn give_to(
        &mut self,
        now: Instant,
        owner: Option<ConnId>,
        slot: usize,
        answer: Option<Answer>,
        head: Vec<u8>,
    ) {
        match (owner, answer) {
            (Some(owner), Some(answer)) => self.give(now, owner, slot, answer, head),
            (None, Some(answer)) => self.let_go(slot, answer),
            (_, None) => {}
        }
    }

    /// A response that is not for the cache goes to the client that caused the fetch, as if it
    /// had been relayed from the beginning.
    fn relay_to(&mut self, now: Instant, id: ConnId, server: ConnId, owner: ConnId, added: &[u8]) {
        let busy = self.exchange(id).and_then(|one| one.server.take());
        if let Some(job) = self.job(id) {
            let (slot, fetch) = (job.slot, job.fetch);
            self.caches.route_cache(slot).jobs.remove(&fetch);
        }
        if let Some(conn) = self.conns.get(id) {
            conn.peer = None;
        }
        self.conns.remove(id);
        let Some((to, from)) = self.conns.pair(owner, server) else {
            if let Some(busy) = busy {
                self.backends.closed(busy);
            }
            if let Some(conn) = self.conns.get(server) {
                conn.peer = None;
            }
            return self.reset(server);
        };
        (to.peer, from.peer) = (Some(server), Some(owner));
        let mut out = Vec::new();
        let mut read = Ok(None);
        if let Some(exchange) = to.client().and_then(|one| one.exchange.as_mut()) {
            exchange.cached = Cached::No;
            exchange.server = busy;
            read = ResponseHead::read(from.input.bytes(), &exchange.question, &mut out);
            if let Ok(Some(head)) = &mut read {
                // The fetch was a GET, so a body follows that a HEAD does not have.
                head.keeps &= !exchange.question.is_head;
            }
        }
        match read {
            Ok(Some(head)) => {
                add_fields(&mut out, added);
                to.out.extend_from_slice(&out);
                self.pass_head(now, server, owner, &head);
            }
            _ => self.end_exchange(now, owner, RequestEnd::BadResponse, Some(502)),
        }
    }

    /// What the caches have to say.
    pub(crate) fn heed_caches(&mut self, now: Instant) {
        for slot in 0..self.caches.slots.len() {
            while let Some(event) = self.caches.route_cache(slot).cache.poll_event() {
                match event {
                    Event::Readable(reader) => {
                        if let Some(id) = self.caches.route_cache(slot).readers.remove(&reader) {
                            self.finish_cached(now, id);
                        }
                    }
                    Event::Resume(waiter) => self.resume(now, slot, waiter),
                    Event::Continue(fetch) => {
                        let job = self.caches.route_cache(slot).jobs.get(&fetch).copied();
                        let server = job.and_then(|id| self.conns.peek(id)?.peer);
                        if let (Some(job), Some(server)) = (job, server) {
                            self.deliver(now, job, server);
                        }
                    }
                    Event::Abandoned(fetch) => {
                        if let Some(&job) = self.caches.route_cache(slot).jobs.get(&fetch) {
                            let at = self.caches.now(now);
                            let reason = Reason::FetchFailed;
                            let cache = &mut self.caches.route_cache(slot).cache;
                            cache.abort(fetch, reason, at, &mut Vec::new());
                            self.end_job(now, job, true);
                        }
                    }
                }
            }
        }
    }

    fn resume(&mut self, now: Instant, slot: usize, waiter: WaiterId) {
        let Some(id) = self.caches.route_cache(slot).waiters.remove(&waiter) else {
            return;
        };
        if self.caches.is_off {
            return self.go_on_alone(now, id, None);
        }
        let at = self.caches.now(now);
        let mut out = Vec::new();
        let cache = &mut self.caches.route_cache(slot).cache;
        let decision = cache.resume(waiter, at, &mut out);
        let settings = cache.settings();
        let decided = |head: &Head<'_>, options: &Options<'_>, from, forwarded| {
            step(decision, out, head, options, from, forwarded, settings)
        };
        let Some(step) = rewrite_head(&self.config, &mut self.conns, id, decided) else {
            return;
        };
        if !matches!(step, Step::Wait(_))
            && let Some(exchange) = self.exchange(id)
        {
            exchange.raw = Vec::new();
        }
        self.follow_cache(now, id, slot, step);
    }
}

/// Writes the head of a request that has waited as a server gets it, and shows it as the client
/// sent it, with the client's address.
pub(crate) fn rewrite_head<T>(
    config: &Config,
    conns: &mut Conns,
    id: ConnId,
    show: impl FnOnce(&Head<'_>, &Options<'_>, Endpoint, Forwarded) -> T,
) -> Option<T> {
    let client = conns.get(id).and_then(Conn::client)?;
    let service = &config.services[usize::from(client.service)];
    let (forwarded, from) = (service.per_request.forwarded, client.client);
    let exchange = client.exchange.as_mut()?;
    exchange.cached = Cached::No;
    let raw = core::mem::take(&mut exchange.raw);
    let Scan::Complete(head) = HeadScanner::default().scan(&raw) else {
        return None;
    };
    let options = Options::of(head.headers());
    exchange.head = request_head(&head, &options, from, forwarded, None);
    let shown = show(&head, &options, from, forwarded);
    exchange.raw = raw;
    Some(shown)
}
