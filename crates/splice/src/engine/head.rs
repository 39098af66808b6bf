//! Collecting a client's first bytes until the head is whole, and deciding where it goes.
//!
//! The client's bytes are not acknowledged, so its own TCP keeps them safe until the server has
//! them. One case needs more: a client whose congestion window or Nagle's algorithm holds back the
//! rest of the head until something is acknowledged. When a head is still not whole
//! [`ACK_DELAY`] after bytes came, what is in order is acknowledged, and from then on the switch
//! holds it for the server (see `held.rs`).

use core::time::Duration;

use fairlead_base::{Address, DropReason, Endpoint, Instant, Packet};
use fairlead_tcp::{Line, State};
use fairlead_wire::http;
use fairlead_wire::{Scan, TcpFlags, TcpPacket};

use super::Switch;
use super::setup::{Decision, Scanner};
use crate::Verdict;
use crate::backends::{Backends, affinity};
use crate::config::{Balance, Config, Protocol, Service, Treatment, Unmatched};
use crate::routes::{self, Subject};

/// How long bytes that do not complete a head wait for company before they are acknowledged:
/// below every client's retransmission time-out (RFC 6298 has 1 s, Linux at least 200 ms).
pub(super) const ACK_DELAY: Duration = Duration::from_millis(40);

/// What reading the bytes so far has led to.
enum Reading {
    Incomplete,
    Decided(u16, Decision),
    Refused {
        reason: DropReason,
        status: u16,
        alert: u8,
        subject: String,
        bodyless: bool,
    },
}

impl Switch {
    /// Adds a client's segment to what is collected.
    pub(super) fn collect(
        &mut self,
        now: Instant,
        packet: &Packet,
        header: &TcpPacket,
        line: Line,
        index: u32,
    ) -> Verdict {
        let first = fairlead_base::SeqNumber(self.table.record(line).client_isn) + 1;
        let limits = self.config.limits;
        let buffered = self.setups.buffered_bytes();
        let Some(setup) = self.setups.entry(index) else {
            return self.drop(DropReason::NoConnection);
        };
        let payload = header.payload(&packet.bytes);
        let ahead = header.seq.since(first);
        let skip = usize::try_from(-i64::from(ahead)).unwrap_or(0);
        let offset = u32::try_from(ahead).unwrap_or(0);
        let before = setup.stream.in_order_len();
        if let Some(news) = payload.get(skip..).filter(|news| !news.is_empty()) {
            if buffered + news.len() as u64 > limits.buffered_bytes {
                return self.drop(DropReason::BufferFull);
            }
            if setup.stream.insert(offset, news).is_err() {
                return self.drop(DropReason::BeyondHead);
            }
        }
        if header.flags.contains(TcpFlags::FIN) {
            let end = i64::from(ahead) + payload.len() as i64;
            setup.fin_at = setup.fin_at.or_else(|| u32::try_from(end).ok());
        }
        let in_order = setup.stream.in_order_len();
        let (acked, fresh) = (setup.acked, in_order > before);
        self.setups.recount(index);
        if self.table.record(line).state != State::Established {
            return Verdict::Consumed;
        }
        let is_tcp = matches!(
            self.setups.entry(index).map(|setup| &setup.scanner),
            Some(Scanner::Tcp)
        );
        if !fresh && !is_tcp {
            if acked > 0 {
                // Our acknowledgement may have been lost.
                self.acknowledge_head(line, index);
            }
            return Verdict::Consumed;
        }
        self.read_head(now, line, index);
        Verdict::Consumed
    }

    fn read_head(&mut self, now: Instant, line: Line, index: u32) {
        match self.scan(line, index) {
            Reading::Incomplete => self.wait_for_more(now, line, index),
            Reading::Decided(route, decision) => {
                let client = self.table.record(line).client_addr;
                self.setups.end_half_read(index, &client);
                self.record(line).route = route;
                let Some(setup) = self.setups.entry(index) else {
                    return;
                };
                setup.decision = Some(decision);
                setup.ack_due = None;
                setup.deadline = None;
                self.connect(now, line, index);
            }
            Reading::Refused {
                reason,
                status,
                alert,
                subject,
                bodyless,
            } => {
                self.refuse_head(now, line, index, reason, status, alert, subject, bodyless);
            }
        }
    }

    fn wait_for_more(&mut self, now: Instant, line: Line, index: u32) {
        let client = self.table.record(line).client_addr;
        let listen = self.table.record(line).listen;
        let limits = self.config.limits;
        let already = self
            .setups
            .entry(index)
            .is_some_and(|setup| setup.counted_half_read);
        if !already {
            let refusal = if self.setups.half_read() >= limits.half_read {
                Some(DropReason::HalfReadFull)
            } else if self.setups.half_read_of(&client) >= limits.half_read_per_client {
                Some(DropReason::HalfReadClientFull)
            } else {
                None
            };
            if let Some(reason) = refusal {
                self.reset_client(line, index, reason);
                return;
            }
            self.setups.begin_half_read(index, &client);
        }
        let head_time = self.service_of(listen).timeouts.head;
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        if setup.deadline.is_none() {
            setup.deadline = Some(now + head_time);
        }
        if setup.stream.in_order_len() > setup.acked && setup.ack_due.is_none() {
            setup.ack_due = Some(now + ACK_DELAY);
        }
        self.schedule(index);
    }

    /// Reads what is in order; decides when that is a whole head.
    fn scan(&mut self, line: Line, index: u32) -> Reading {
        let record = self.table.record(line);
        let service = usize::from(self.listen_services[usize::from(record.listen)]);
        let chooser = Chooser {
            config: &self.config,
            backends: &self.backends,
            service: &self.config.services[service],
            listen: self.table.endpoints().listen(record.listen),
            client: record.client_addr,
        };
        let Some(setup) = self.setups.entry(index) else {
            return Reading::Incomplete;
        };
        let bytes = setup.stream.in_order();
        let finished = setup.fin_at == Some(bytes.len() as u32);
        let full = setup.stream.is_full();
        match &mut setup.scanner {
            Scanner::Http(scanner) => match scanner.scan(bytes) {
                Scan::Incomplete if full => refused(DropReason::HeadTooLarge, 431, 0),
                Scan::Incomplete if finished => refused(DropReason::HttpMalformed, 400, 0),
                Scan::Incomplete => Reading::Incomplete,
                Scan::Malformed(error) => refused(error.reason(), error.status(), 0),
                Scan::Complete(head) => {
                    let mut reading = chooser.choose(&Subject::Http(&head), head.subject());
                    match &mut reading {
                        Reading::Decided(_, decision) => {
                            decision.bodyless = head.method == "HEAD";
                            if decision.treatment == Treatment::OneShot {
                                let rewritten = http::with_connection_close(&head, bytes);
                                decision.rewrite = Some((rewritten, head.head_len as u32));
                            }
                        }
                        Reading::Refused { bodyless, .. } => *bodyless = head.method == "HEAD",
                        Reading::Incomplete => {}
                    }
                    reading
                }
            },
            Scanner::Tls(scanner) => match scanner.scan(bytes) {
                Scan::Incomplete if full => {
                    refused(DropReason::HeadTooLarge, 0, ALERT_DECODE_ERROR)
                }
                Scan::Incomplete if finished => {
                    refused(DropReason::TlsMalformed, 0, ALERT_DECODE_ERROR)
                }
                Scan::Incomplete => Reading::Incomplete,
                Scan::Malformed(error) => refused(error.reason(), 0, error.alert()),
                Scan::Complete(hello) => {
                    let name = hello.sni.clone().unwrap_or_default();
                    chooser.choose(&Subject::Tls(&hello), name)
                }
            },
            Scanner::Tcp => chooser.choose(&Subject::Tcp, String::new()),
        }
    }

    /// Answers or resets a client whose head leads nowhere.
    #[expect(clippy::too_many_arguments, reason = "what an answer is made of")]
    pub(super) fn refuse_head(
        &mut self,
        now: Instant,
        line: Line,
        index: u32,
        reason: DropReason,
        status: u16,
        alert: u8,
        subject: String,
        bodyless: bool,
    ) {
        let listen = self.table.record(line).listen;
        let protocol = self.service_of(listen).protocol;
        let retry_after_s = (status == 503).then_some(RETRY_AFTER_S);
        let answer = match protocol {
            Protocol::Http => http::response(status, retry_after_s, bodyless),
            Protocol::Tls => fairlead_wire::tls::alert(alert).to_vec(),
            Protocol::Tcp => {
                self.note_refusal(line, reason, None, subject);
                self.send_reset_to_client(line, index);
                self.forget_setup(line, index);
                self.table.remove(line);
                return;
            }
        };
        let status = (protocol == Protocol::Http).then_some(status);
        self.note_refusal(line, reason, status, subject);
        self.answer(now, line, index, answer);
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

fn refused(reason: DropReason, status: u16, alert: u8) -> Reading {
    Reading::Refused {
        reason,
        status,
        alert,
        subject: String::new(),
        bodyless: false,
    }
}

/// What a decision is made from, besides the request.
struct Chooser<'a> {
    config: &'a Config,
    backends: &'a Backends,
    service: &'a Service,
    listen: Endpoint,
    client: Address,
}

impl Chooser<'_> {
    fn choose(&self, subject: &Subject<'_>, text: String) -> Reading {
        let Some(index) = routes::choose(self.service, self.listen, subject) else {
            let status = match self.service.unmatched {
                Unmatched::NotFound => 404,
                Unmatched::Misdirected => 421,
            };
            return Reading::Refused {
                reason: DropReason::NoRoute,
                status,
                alert: ALERT_UNRECOGNIZED_NAME,
                subject: text,
                bodyless: false,
            };
        };
        let route = &self.service.routes[index];
        let hash = match &self.config.pools[usize::from(route.pool.0)].balance {
            Balance::Maglev(on) => self
                .backends
                .affinity_hash(affinity(on, subject, self.client).as_bytes()),
            _ => 0,
        };
        let decision = Decision {
            pool: route.pool,
            treatment: route.treatment,
            retries: route.retries,
            hash,
            subject: text,
            rewrite: None,
            bodyless: false,
        };
        Reading::Decided(index as u16, decision)
    }
}
