//! Giving newcomers to listening sockets of this machine (`Treatment::Host`, docs/handoff.md).
//!
//! Until its head is whole a connection exists as a cookie and as bytes that the client has yet to
//! see acknowledged. Both are all that a listener needs: it learns what the cookie promised, gets
//! the client's segments, and acknowledges them itself. From then on the connection is that of the
//! kernel, and nothing of it stays here. If a segment is lost on the way, the client sends it
//! again, and all of this happens once more.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, Instant, SeqNumber};
use fairlead_tcp::record::{Record, flag};
use fairlead_tcp::{Endpoints, HostHandoff, HostTerms, Line, Progress};
use fairlead_wire::{Asked, SynOptions, TcpFlags, TcpRepr, Timestamps};

use super::setup::{Decision, Setup, SetupId};
use super::{Switch, output, probe};
use crate::config::Listeners;
use crate::event::{Event, Offers};

/// Linux accepts no smaller segments from a handshake by cookies: `TCP_MIN_MSS` of its cookies' own
/// table, and what every IPv6 host can take.
const MSS_MIN: [u16; 2] = [536, 1_220];

/// Bytes of the options of each segment: two of padding and timestamps.
pub(super) const STAMPS_BYTES: u16 = 12;

/// The way to listening sockets, where there is one.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) handoff: Option<Box<dyn HostHandoff>>,
    /// What its TCP agrees to.
    offers: Option<Offers>,
}

/// A route that leads to a listener, and what becomes of a client that cannot have it.
#[derive(Debug)]
pub(super) struct HostRoute {
    pub(super) route: u16,
    pub(super) listeners: Listeners,
    pub(super) sleep: bool,
    pub(super) subject: Asked,
    pub(super) fallback: Option<Decision>,
}

impl Switch {
    /// Leads clients of routes to the host to listening sockets from now on, whose TCP
    /// agrees to these options.
    pub fn set_host(&mut self, now: Instant, handoff: Box<dyn HostHandoff>, offers: Offers) {
        self.host = Host {
            handoff: Some(handoff),
            offers: Some(offers),
        };
        self.refresh_offers(now);
    }

    /// What listening sockets agree to, if any can be reached.
    pub(super) fn host_offers(&self) -> Option<Offers> {
        self.host.offers
    }

    /// Gives a connection whose head is whole to a listener; otherwise it takes its route's pool,
    /// or is reset.
    pub(super) fn lead_to_host(&mut self, now: Instant, line: Line, index: SetupId, to: HostRoute) {
        if to.fallback.is_none() && to.sleep && self.is_held(line, index, &to) {
            return self.free(line);
        }
        let attended = to.fallback.is_none() || self.is_attended(line, &to);
        let reason = match attended {
            true => match self.give(line, index, &to) {
                Ok(listener) => return self.note_given(line, &to, listener),
                Err(reason) => reason,
            },
            false => {
                self.counts.host_unattended += 1;
                DropReason::HostUnavailable
            }
        };
        let Some(decision) = to.fallback else {
            return self.reset_client(line, index, reason, to.subject);
        };
        self.counts.host_fallbacks += 1;
        self.decide(now, line, index, to.route, decision);
    }

    /// Whether somebody listens for the connection, as far as that can be known.
    fn is_attended(&mut self, line: Line, to: &HostRoute) -> bool {
        let v4 = self.table.record(line).client_addr.is_v4();
        let listener = to.listeners.of_version(v4);
        let known = self.host.handoff.as_deref_mut().zip(listener);
        known.is_none_or(|(handoff, listener)| handoff.listens(listener))
    }

    /// True where nobody listens for a connection that may sleep: its request waits like those of
    /// sleepers. Its cookie admits it once more then.
    fn is_held(&mut self, line: Line, index: SetupId, to: &HostRoute) -> bool {
        let record = *self.table.record(line);
        let listener = to.listeners.of_version(record.client_addr.is_v4());
        let Some(listener) = listener.filter(|one| !self.listens_now(*one)) else {
            return false;
        };
        let Some(setup) = self.setups.peek(index).filter(|setup| setup.acked == 0) else {
            return false;
        };
        let (key, packet) = (
            record.client_key(self.table.endpoints()),
            whole_request(&record, setup, self.table.endpoints()),
        );
        // Where it is refused, the client sends it again.
        let wait = self.service_of(record.listen).timeouts.wake;
        self.hold(&key, wait, listener, &packet);
        true
    }

    /// Announces the connection to the listener, and sends what the client has sent so far.
    fn give(&mut self, line: Line, index: SetupId, to: &HostRoute) -> Result<Endpoint, DropReason> {
        let record = *self.table.record(line);
        let (v4, device_mss) = (record.client_addr.is_v4(), self.config.device_mss);
        let handoff = self.host.handoff.as_deref_mut();
        let handoff = handoff.ok_or(DropReason::HostUnavailable)?;
        let listener = to.listeners.of_version(v4);
        let listener = listener.ok_or(DropReason::HostUnavailable)?;
        let setup = self.setups.peek(index).ok_or(DropReason::NoConnection)?;
        if setup.acked > 0 {
            // The listener would wait for bytes that the client has dropped.
            return Err(DropReason::HostHeadAcknowledged);
        }
        let stamped = record.flags & flag::TIMESTAMPS != 0;
        let terms = HostTerms {
            listener,
            mss: setup.promise.mss,
            scales: setup.promise.window_scale.zip(setup.offered_scale),
            sack: setup.promise.sack,
            timestamps: stamped,
            first: record.client_isn.wrapping_add(1),
            again: to.fallback.is_some() || to.sleep,
        };
        if !agrees(self.host.offers, &terms, v4) {
            return Err(DropReason::HostMismatch);
        }
        let key = record.client_key(self.table.endpoints());
        let (services, timeouts) = (&self.listen_services, &self.config.services);
        let service = usize::from(services[usize::from(record.listen)]);
        let sleep = timeouts[service].timeouts.sleep;
        let progress = progress_of(&record, setup, sleep).filter(|_| to.sleep);
        if !handoff.give(&key, &terms, progress.as_ref()) {
            return Err(DropReason::HostUnavailable);
        }
        if let Some(progress) = progress {
            let packet = whole_request(&record, setup, self.table.endpoints());
            handoff.keep(&key, (terms.first, progress.client_nxt), &packet);
        }
        let segment = probe::mss_of_family(device_mss, v4) - STAMPS_BYTES;
        let mut options = Vec::new();
        if stamped {
            stamps_of(setup).emit(&mut options);
        }
        let (ack, window) = (setup.dseq + 1, setup.client_window);
        for (seq, flags, payload) in segments(&record, setup, segment.into()) {
            self.output
                .send(key, seq, ack, flags, window, &options, payload);
        }
        Ok(listener)
    }

    fn note_given(&mut self, line: Line, to: &HostRoute, listener: Endpoint) {
        let record = *self.table.record(line);
        let service = self.listen_services[usize::from(record.listen)];
        let decisions = &mut self.counts.services[usize::from(service)].decisions;
        decisions[usize::from(to.route)] += 1;
        self.counts.given += 1;
        self.emit_event(Event::Given {
            client: record.client(),
            listen: self.table.endpoints().listen(record.listen),
            service,
            route: to.route,
            listener,
            subject: to.subject.clone(),
        });
        self.free(line);
    }
}

/// Whether the kernel makes a connection of such a handshake: what it does not use itself, it does
/// not accept from a cookie.
fn agrees(offers: Option<Offers>, terms: &HostTerms, v4: bool) -> bool {
    offers.is_some_and(|offers| {
        terms.mss >= MSS_MIN[usize::from(!v4)]
            && (offers.timestamps || !terms.timestamps)
            && (offers.sack || !terms.sack)
            && (offers.window_scale.is_some() || terms.scales.is_none())
    })
}

fn stamps_of(setup: &Setup) -> SynOptions {
    SynOptions {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        timestamps: Some(Timestamps {
            value: setup.client_ts,
            echo: setup.our_ts,
        }),
    }
}

/// How far a connection is when it is given; `None` where its client has closed.
fn progress_of(record: &Record, setup: &Setup, sleep: Duration) -> Option<Progress> {
    let bytes = setup.stream.in_order();
    (!setup.is_whole()).then(|| Progress {
        client_nxt: record.client_isn.wrapping_add(1 + bytes.len() as u32),
        server_nxt: (setup.dseq + 1).0,
        method: beginning(bytes),
        sleep_max_s: u32::try_from(sleep.as_secs()).unwrap_or(u32::MAX),
    })
}

/// The first bytes, or zeros where there are fewer.
pub(super) fn beginning(bytes: &[u8]) -> [u8; 4] {
    bytes.first_chunk().copied().unwrap_or_default()
}

/// What the client has sent, as one packet.
fn whole_request(record: &Record, setup: &Setup, endpoints: &Endpoints) -> Vec<u8> {
    let mut options = Vec::new();
    if record.flags & flag::TIMESTAMPS != 0 {
        stamps_of(setup).emit(&mut options);
    }
    let bytes = setup.stream.in_order();
    let mut flags = TcpFlags::ACK | TcpFlags::PSH;
    if setup.is_whole() {
        flags |= TcpFlags::FIN;
    }
    let mut packet = Vec::new();
    TcpRepr {
        key: record.client_key(endpoints),
        seq: SeqNumber(record.client_isn) + 1,
        ack: setup.dseq + 1,
        flags,
        window: setup.client_window,
        options: &options,
        payload: bytes,
        ttl: output::TTL,
    }
    .emit(&mut packet);
    packet
}

/// What the client has sent, as segments of `most` bytes or fewer; one without any, if it has sent
/// nothing. With the last one its FIN, if that is here.
fn segments<'a>(
    record: &Record,
    setup: &'a Setup,
    most: usize,
) -> impl Iterator<Item = (SeqNumber, TcpFlags, &'a [u8])> {
    let bytes = setup.stream.in_order();
    let first = SeqNumber(record.client_isn) + 1;
    let count = bytes.len().div_ceil(most).max(1);
    let whole = setup.is_whole();
    (0..count).map(move |at| {
        let from = at * most;
        let payload = &bytes[from..bytes.len().min(from + most)];
        let is_last = at + 1 == count;
        let mut flags = TcpFlags::ACK;
        if !payload.is_empty() && is_last {
            flags |= TcpFlags::PSH;
        }
        if is_last && whole {
            flags |= TcpFlags::FIN;
        }
        (first + from as u32, flags, payload)
    })
}
