//! Collecting a client's first bytes until the head is whole, and deciding where it goes.
//!
//! The client's bytes are not acknowledged, so its own TCP keeps them safe until the server has
//! them. One case needs more: a client whose congestion window or Nagle's algorithm holds back the
//! rest of the head until something is acknowledged. When a head is still not whole
//! [`ACK_DELAY`] after bytes came, what is in order is acknowledged, and from then on the switch
//! holds it for the server (see `held.rs`).

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, Instant, Packet, SeqNumber};
use fairlead_tcp::{Line, State, Table};
use fairlead_wire::http::{self, RequestHead};
use fairlead_wire::tls::TlsError;
use fairlead_wire::{Asked, Fault, Scan, TcpFlags, TcpPacket};

use super::host::HostRoute;
use super::request::Request;
use super::setup::{Awaited, Decision, Scanner, SetupId};
use super::uncacheable::{Uncacheable, key};
use super::{Switch, held};
use crate::Verdict;
use crate::backends::{Backends, affinity};
use crate::config::{Config, PoolId, Protocol, Route, Service, Treatment, Unmatched};
use crate::routes::{self, Subject};

/// How long bytes that do not complete a head wait for company before they are acknowledged:
/// below every client's retransmission time-out (RFC 6298 has 1 s, Linux at least 200 ms).
pub(super) const ACK_DELAY: Duration = Duration::from_millis(40);

/// What reading the bytes so far has led to.
pub(super) enum Reading {
    Incomplete,
    Decided(u16, Decision),
    Host(HostRoute),
    Refused(Refusal),
}

/// Why a client is turned away, and in which words.
#[derive(Debug)]
pub(super) struct Refusal {
    /// What it is counted under.
    pub(super) reason: DropReason,
    /// The HTTP status, for an HTTP client.
    pub(super) status: u16,
    /// The alert, for a TLS client.
    pub(super) alert: u8,
    /// What was asked for, as far as it is known.
    pub(super) subject: Asked,
    /// A HEAD request: the answer has no body.
    pub(super) bodyless: bool,
    /// What was wrong with a head, and where.
    pub(super) fault: Option<Fault>,
}

impl Switch {
    /// Adds a client's segment to what is collected.
    pub(super) fn collect(
        &mut self,
        now: Instant,
        packet: &Packet,
        header: &TcpPacket,
        line: Line,
        index: SetupId,
    ) -> Verdict {
        let first = SeqNumber(self.table.record(line).client_isn) + 1;
        let limit = self.config.limits.buffered_bytes;
        let buffered = self.setups.buffered_bytes();
        let Some(setup) = self.setups.entry(index) else {
            return self.drop(DropReason::NoConnection);
        };
        let payload = header.payload(&packet.bytes);
        let ahead = header.seq.since(first);
        let skip = usize::try_from(-i64::from(ahead)).unwrap_or(0);
        let offset = u32::try_from(ahead).unwrap_or(0);
        let before = (setup.stream.in_order_len(), setup.is_whole());
        let mut news = payload.get(skip..).unwrap_or_default();
        if let Some(fin_at) = setup.fin_at {
            // Nothing comes behind a FIN.
            news = &news[..news.len().min(fin_at.saturating_sub(offset) as usize)];
        }
        if !news.is_empty() {
            let growth = setup.stream.growth_bytes(offset, news.len()) as u64;
            if buffered + growth > limit {
                return self.drop(DropReason::BufferFull);
            }
            if setup.stream.insert(offset, news).is_err() {
                return self.drop(DropReason::BeyondHead);
            }
        }
        if header.flags.contains(TcpFlags::FIN) && setup.fin_at.is_none() {
            let end = i64::from(ahead) + payload.len() as i64;
            let end = u32::try_from(end).ok();
            setup.fin_at = end.filter(|&end| end >= setup.stream.end());
        }
        let fresh = before != (setup.stream.in_order_len(), setup.is_whole());
        if setup.stream.end() > 0 {
            setup.silent_until = None;
        }
        let (acked, is_tcp) = (setup.acked, matches!(setup.scanner, Scanner::Tcp));
        self.setups.recount(index);
        if self.table.record(line).state != State::Established {
            return Verdict::Consumed;
        }
        if fresh || is_tcp {
            self.read_head(now, line, index);
        } else if acked > 0 {
            // Our acknowledgement may have been lost.
            self.acknowledge_head(line, index);
        }
        Verdict::Consumed
    }

    fn read_head(&mut self, now: Instant, line: Line, index: SetupId) {
        let reading = self.scan(line, index);
        self.act_on(now, line, index, reading);
    }

    /// A client of a TLS service has said nothing until its time-out, so it waits for the server to
    /// speak: it takes the first route for what is not TLS. Without one, it is waited for on.
    pub(super) fn hear_silence(&mut self, now: Instant, line: Line, index: SetupId) {
        let (config, services) = (&self.config, &self.listen_services);
        let chooser = Chooser::of(
            config,
            &self.backends,
            services,
            &self.table,
            line,
            &self.uncacheable,
        );
        let reading = chooser.choose(&Subject::Other(&[]), Asked::default());
        if matches!(reading, Reading::Refused(_)) {
            self.schedule(index);
        } else {
            self.act_on(now, line, index, reading);
        }
    }

    fn act_on(&mut self, now: Instant, line: Line, index: SetupId, reading: Reading) {
        match reading {
            Reading::Incomplete => self.wait_for_more(now, line, index),
            Reading::Decided(route, decision) => self.decide(now, line, index, route, decision),
            Reading::Host(to) => self.lead_to_host(now, line, index, to),
            Reading::Refused(refusal) => self.refuse_head(now, line, index, refusal),
        }
    }

    /// Connects a client to a server of the pool that was decided on.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        line: Line,
        index: SetupId,
        route: u16,
        decision: Decision,
    ) {
        let client = self.table.record(line).client_addr;
        self.setups.set_awaited(index, &client, None);
        self.record(line).route = route;
        self.counts.cache_bypassed += u64::from(decision.uncached);
        self.note_decided(now, index, decision);
        self.note_decision(line, index);
        if self.setups.buffered_bytes() > self.config.limits.buffered_bytes {
            // A rewritten head and a preamble take room of their own.
            self.give_up(now, line, index, DropReason::BufferFull);
            return;
        }
        self.connect(now, line, index);
    }

    /// Where a connection goes is known, and its head awaited no more.
    pub(super) fn note_decided(&mut self, now: Instant, index: SetupId, decision: Decision) {
        if let Some(setup) = self.setups.entry(index) {
            setup.decided = Some(now);
            setup.decision = Some(decision);
            setup.ack_due = None;
            setup.deadline = None;
            self.setups.recount(index);
        }
    }

    fn wait_for_more(&mut self, now: Instant, line: Line, index: SetupId) {
        let client = self.table.record(line).client_addr;
        let limits = self.config.limits;
        let already = self
            .setups
            .entry(index)
            .is_some_and(|setup| setup.is_half_read());
        if !already {
            let refusal = if self.setups.half_read() >= limits.half_read {
                Some(DropReason::HalfReadFull)
            } else if self.setups.awaits_enough_of(&client, &limits) {
                Some(DropReason::HalfReadClientFull)
            } else {
                None
            };
            if let Some(reason) = refusal {
                self.reset_client(line, index, reason, Asked::default());
                return;
            }
            self.setups.set_awaited(index, &client, Some(Awaited::Head));
        }
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        if setup.stream.in_order_len() > setup.acked && setup.ack_due.is_none() {
            setup.ack_due = Some(now + ACK_DELAY);
        }
        self.schedule(index);
    }

    /// Reads what is in order; decides when that is a whole head.
    pub(super) fn scan(&mut self, line: Line, index: SetupId) -> Reading {
        let (config, services) = (&self.config, &self.listen_services);
        let chooser = Chooser::of(
            config,
            &self.backends,
            services,
            &self.table,
            line,
            &self.uncacheable,
        );
        let Some(setup) = self.setups.entry(index) else {
            return Reading::Incomplete;
        };
        let bytes = setup.stream.in_order();
        let (full, finished) = (setup.stream.is_full(), setup.is_whole());
        match &mut setup.scanner {
            Scanner::Http(scanner) => match scanner.scan(bytes) {
                Scan::Incomplete if full => {
                    let error = scanner.too_large();
                    refused(error.reason(), error.status(), 0, None)
                }
                Scan::Incomplete if finished => refused(DropReason::HeadAborted, 0, 0, None),
                Scan::Incomplete => Reading::Incomplete,
                Scan::Malformed(error) => {
                    let fault = scanner.fault(error, bytes);
                    refused(error.reason(), error.status(), 0, Some(fault))
                }
                Scan::Complete(head) => chooser.choose_by_request(&head, bytes),
            },
            Scanner::Tls(scanner) => match scanner.scan(bytes) {
                Scan::Incomplete if full => {
                    refused(DropReason::HeadTooLarge, 0, ALERT_DECODE_ERROR, None)
                }
                Scan::Incomplete if finished => refused(DropReason::HeadAborted, 0, 0, None),
                Scan::Incomplete => Reading::Incomplete,
                Scan::Malformed(error)
                    if error.is_other_protocol()
                        && !(full || finished)
                        && chooser.service.needs_more_to_tell(bytes) =>
                {
                    Reading::Incomplete
                }
                Scan::Malformed(error) => {
                    let fault = scanner.fault(bytes);
                    chooser
                        .choose_without_hello(error, bytes)
                        .unwrap_or_else(|| refused(error.reason(), 400, error.alert(), fault))
                }
                Scan::Complete(hello) => chooser.choose(&Subject::Tls(&hello), Asked::tls(&hello)),
            },
            Scanner::Tcp => chooser.choose(&Subject::Tcp, Asked::default()),
        }
    }

    /// Answers or resets a client whose head leads nowhere.
    pub(super) fn refuse_head(
        &mut self,
        now: Instant,
        line: Line,
        index: SetupId,
        refusal: Refusal,
    ) {
        let listen = self.table.record(line).listen;
        let service = self.service_of(listen);
        let protocol = service.protocol;
        let unmatched = refusal.reason == DropReason::NoRoute;
        if unmatched && service.unmatched == Unmatched::Reset {
            return self.reset_client(line, index, refusal.reason, refusal.subject);
        }
        let retry_after_s = (refusal.status == 503).then_some(RETRY_AFTER_S);
        let is_http = protocol == Protocol::Http || self.speaks_http_for_tls(index);
        let page = match refusal.status {
            _ if unmatched => service.unmatched_page.clone(),
            503 => service.unavailable_page.clone(),
            _ => None,
        };
        let (answer, page) = match (protocol, page) {
            // It has closed, so nobody reads an answer.
            _ if refusal.reason == DropReason::HeadAborted => (Vec::new(), None),
            (Protocol::Http, Some(page)) => {
                let (of, len) = (page.content_type, page.body.len());
                let head = http::response_head(refusal.status, retry_after_s, of, len);
                (head, Some(page).filter(|_| !refusal.bodyless))
            }
            _ if is_http => {
                let answer = http::response(refusal.status, retry_after_s, refusal.bodyless);
                (answer, None)
            }
            (Protocol::Http | Protocol::Tls, _) => {
                (fairlead_wire::tls::alert(refusal.alert).to_vec(), None)
            }
            (Protocol::Tcp, _) => {
                return self.reset_client(line, index, refusal.reason, refusal.subject);
            }
        };
        let status = (is_http && !answer.is_empty()).then_some(refusal.status);
        self.note_refusal_of(line, status, refusal);
        self.answer(now, line, index, answer, page);
    }

    /// The client of a TLS service has begun with a plain HTTP request, and can read no alert.
    fn speaks_http_for_tls(&self, index: SetupId) -> bool {
        let scanner = self.setups.peek(index).map(|setup| &setup.scanner);
        let Some(Scanner::Tls(scanner)) = scanner else {
            return false;
        };
        scanner.error() == Some(TlsError::PlainHttp)
    }
}

/// RFC 8446, section 6: `decode_error`.
const ALERT_DECODE_ERROR: u8 = 50;
/// `internal_error`.
pub(super) const ALERT_INTERNAL_ERROR: u8 = 80;
/// `unrecognized_name` (RFC 6066, section 3).
const ALERT_UNRECOGNIZED_NAME: u8 = 112;

/// What clients are told to wait when no server can be reached, seconds.
pub(super) const RETRY_AFTER_S: u32 = 5;

fn refused(reason: DropReason, status: u16, alert: u8, fault: Option<Fault>) -> Reading {
    Reading::Refused(Refusal {
        reason,
        status,
        alert,
        subject: Asked::default(),
        bodyless: false,
        fault,
    })
}

/// What a decision is made from, besides the request.
struct Chooser<'a> {
    config: &'a Config,
    backends: &'a Backends,
    uncacheable: &'a Uncacheable,
    /// Index of the service.
    number: u16,
    service: &'a Service,
    listen: Endpoint,
    client: Endpoint,
}

impl<'a> Chooser<'a> {
    /// For the connection on this line; `services` are those of the listening endpoints.
    fn of(
        config: &'a Config,
        backends: &'a Backends,
        services: &[u16],
        table: &Table,
        line: Line,
        uncacheable: &'a Uncacheable,
    ) -> Self {
        let record = table.record(line);
        let number = services[usize::from(record.listen)];
        Self {
            config,
            backends,
            uncacheable,
            number,
            service: &config.services[usize::from(number)],
            listen: table.endpoints().listen(record.listen),
            client: record.client(),
        }
    }

    fn choose_by_request(&self, head: &RequestHead<'_>, bytes: &[u8]) -> Reading {
        let mut reading = self.choose(&Subject::Http(head), head.subject());
        let bodyless = head.method == "HEAD";
        match &mut reading {
            Reading::Decided(_, decision) => {
                decision.bodyless = bodyless;
                if decision.treatment == Treatment::OneShot {
                    let rewritten = http::with_connection_close(head, bytes);
                    decision.rewrite = Some((rewritten, head.head_len as u32));
                    decision.request = Some(Request::behind(head));
                }
            }
            Reading::Refused(refusal) => refusal.bodyless = bodyless,
            Reading::Host(HostRoute { fallback, .. }) => {
                if let Some(decision) = fallback {
                    decision.bodyless = bodyless;
                }
            }
            Reading::Incomplete => {}
        }
        reading
    }

    /// A client of a TLS service that speaks something else takes the first route that asks for
    /// neither server name nor application protocol.
    fn choose_without_hello(&self, error: TlsError, bytes: &[u8]) -> Option<Reading> {
        let reading = error
            .is_other_protocol()
            .then(|| self.choose(&Subject::Other(bytes), Asked::default()))?;
        (!matches!(reading, Reading::Refused(_))).then_some(reading)
    }

    fn choose(&self, subject: &Subject<'_>, asked: Asked) -> Reading {
        let Some(index) = routes::choose(self.service, self.listen, self.client.addr, subject)
        else {
            let status = match self.service.unmatched {
                Unmatched::Misdirected => 421,
                Unmatched::NotFound | Unmatched::Alert | Unmatched::Reset => 404,
            };
            return Reading::Refused(Refusal {
                reason: DropReason::NoRoute,
                status,
                alert: ALERT_UNRECOGNIZED_NAME,
                subject: asked,
                bodyless: false,
                fault: None,
            });
        };
        let route = &self.service.routes[index];
        let takes = route.cache.as_ref().is_some_and(|rule| {
            let method = subject.http().map(|head| head.method);
            let purges = rule.purge_from.is_some() && method == Some("PURGE");
            rule.always || purges || matches!(method, Some("GET" | "HEAD"))
        });
        let is_plain = route
            .cache
            .as_ref()
            .is_some_and(|rule| takes && !rule.always)
            && route.treatment == Treatment::Splice;
        let uncached = is_plain && self.is_known_uncacheable(index, subject);
        let takes = takes && !uncached;
        let to_front = takes || route.treatment == Treatment::PerRequest;
        let pool = self.config.front.filter(|_| to_front).or(route.pool);
        let mut decision = pool.map(|pool| self.decision(route, pool, subject, asked.clone()));
        if let Some(decision) = &mut decision {
            decision.uncached = uncached;
        }
        match (route.treatment, decision) {
            (Treatment::Splice | Treatment::OneShot, Some(decision)) if !takes => {
                Reading::Decided(index as u16, decision)
            }
            (_, fallback) => Reading::Host(HostRoute {
                route: index as u16,
                listeners: route.listeners,
                sleep: route.sleep,
                subject: asked,
                fallback,
            }),
        }
    }

    /// The URL's response was not for the cache when it was asked for last.
    fn is_known_uncacheable(&self, route: usize, subject: &Subject<'_>) -> bool {
        let Some(head) = subject.http().filter(|head| head.method != "PURGE") else {
            return false;
        };
        let host = head.host.as_deref().unwrap_or_default();
        let key = key(self.backends, self.number, route as u16, host, head.target);
        self.uncacheable.has(key)
    }

    fn decision(
        &self,
        route: &Route,
        id: PoolId,
        subject: &Subject<'_>,
        subject_asked: Asked,
    ) -> Decision {
        let pool = &self.config.pools[usize::from(id.0)];
        let hash = pool.balance.hash_on().map_or(0, |on| {
            let key = affinity(on, subject, self.client.addr);
            self.backends.affinity_hash(key.as_bytes())
        });
        Decision {
            pool: id,
            treatment: match route.treatment {
                Treatment::OneShot => Treatment::OneShot,
                // A pool that stands in for a listener.
                Treatment::Splice | Treatment::Host | Treatment::PerRequest => Treatment::Splice,
            },
            retries: route.retries,
            hash,
            subject: subject_asked,
            preamble: held::proxy_header(pool.proxy_protocol, self.client, self.listen),
            rewrite: None,
            bodyless: false,
            request: None,
            uncached: false,
        }
    }
}
