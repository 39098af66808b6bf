//! Every packet at every host's door: what a TCP would find odd if it looked closely.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_base::{Endpoint, SeqNumber};

use super::ledger::{Ledger, Role};
use crate::mischief::Target;
use crate::net::{
    Segment,
    segment::{ACK, FIN, RST, SYN},
};

/// One connection as one host's door sees it. Positions are bytes from the first of a stream.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) isn_out: Option<SeqNumber>,
    pub(crate) isn_in: Option<SeqNumber>,
    /// One past the last sequence number sent, a FIN included.
    sent_end: u32,
    /// The highest acknowledgement sent.
    pub(crate) acked: u32,
    /// The highest acknowledgement that arrived.
    ack_in: u32,
    /// The highest acknowledgement that the switch has sent to this host.
    ack_emitted: u32,
    /// Of a client: what the switch had acknowledged by itself when a server took over. It does so
    /// when a head stays incomplete, for clients that wait for it.
    ack_floor: u32,
    mss_out: Option<u16>,
    pub(crate) scale_out: Option<u8>,
    pub(crate) scale_in: Option<u8>,
    sack_out: bool,
    sack_in: bool,
    timestamps_out: bool,
    timestamps_in: bool,
    ts_sent: BTreeSet<u32>,
    fin_in: Option<u32>,
    /// A reset arrived that was not damaged on the way.
    pub(crate) reset_in: bool,
    /// The switch has passed a reset on, perhaps a stranger's.
    resets_emitted: bool,
    /// The tuple had another connection before, of which packets may still be on their way.
    reused: bool,
    /// Payload that arrived before it was known whose it is.
    unproved: Vec<(u32, Vec<u8>)>,
    unproved_bytes: usize,
}

/// The doors of all hosts.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    /// A host has left out agreed timestamps itself, as smoltcp does in answers to segments
    /// without any: to strangers' ones.
    bare: bool,
    flows: BTreeMap<(Endpoint, Endpoint), Flow>,
}

/// Farther than any stream of these worlds is long.
const FAR: u32 = 1 << 22;
/// Payload kept of a connection until its parties are bound.
const UNPROVED_BYTES_MAX: usize = 256 * 1_024;
/// What a peer may send when no MSS was announced (RFC 9293, section 3.7.1), by family.
const DEFAULT_MSS_V4: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1_220;

impl Taps {
    /// A connection, by a host's own endpoint and the other one.
    pub(crate) fn flow(&self, local: Endpoint, remote: Endpoint) -> Option<&Flow> {
        self.flows.get(&(local, remote))
    }

    /// Connections with numbers on both sides, as they are seen by packets that leave their hosts.
    pub(crate) fn live(&self) -> Vec<Target> {
        let live = self.flows.iter().filter(|(_, flow)| !flow.reset_in);
        live.filter_map(|(&(src, dst), flow)| {
            let (seq, ack) = (flow.isn_out? + flow.sent_end, flow.isn_in? + flow.acked);
            Some(Target { src, dst, seq, ack })
        })
        .collect()
    }

    /// A packet leaves a host.
    pub(crate) fn leaving(&mut self, bytes: &[u8]) -> Result<(), String> {
        let segment = match Segment::read(bytes) {
            Ok(segment) => segment,
            Err("not TCP") => return Ok(()),
            Err(problem) => return Err(format!("a host sent a broken packet: {problem}")),
        };
        let key = (segment.src, segment.dst);
        if segment.has(SYN) {
            let known = self.flows.get(&key).is_some_and(|flow| {
                flow.isn_out == Some(segment.seq) || (segment.has(ACK) && flow.isn_out.is_none())
            });
            if !known {
                let before = self.flows.remove(&key);
                let reused = before.is_some();
                // A server that fell back to listening answers the same SYN anew.
                let heard = before
                    .filter(|flow| segment.has(ACK) && flow.isn_in == Some(segment.ack - 1))
                    .unwrap_or_default();
                self.flows.insert(
                    key,
                    Flow {
                        reused,
                        isn_in: segment.has(ACK).then(|| segment.ack - 1),
                        scale_in: heard.scale_in,
                        sack_in: heard.sack_in,
                        timestamps_in: heard.timestamps_in,
                        ..Flow::default()
                    },
                );
            }
        }
        let Some(flow) = self.flows.get_mut(&key) else {
            return Ok(());
        };
        if segment.has(SYN) {
            flow.isn_out = Some(segment.seq);
            flow.mss_out = segment.mss;
            flow.scale_out = segment.scale;
            flow.sack_out = segment.sack_permitted;
            flow.timestamps_out = segment.timestamps.is_some();
        }
        match segment.timestamps {
            Some((value, _)) => {
                flow.ts_sent.insert(value);
            }
            None => self.bare |= flow.timestamps_in && flow.timestamps_out && !segment.has(RST),
        }
        if segment.has(RST) {
            return Ok(());
        }
        if let Some(isn) = flow.isn_out
            && !segment.has(SYN)
        {
            let end = (segment.seq + segment.span()).since(isn + 1);
            flow.sent_end = flow.sent_end.max(end.max(0) as u32);
        }
        if let Some(isn) = flow.isn_in
            && segment.has(ACK)
        {
            flow.acked = flow.acked.max(segment.ack.since(isn + 1).max(0) as u32);
        }
        Ok(())
    }

    /// A packet leaves the switch.
    pub(crate) fn emitted(&mut self, bytes: &[u8]) {
        let Ok(segment) = Segment::read(bytes) else {
            return;
        };
        let Some(flow) = self.flows.get_mut(&(segment.dst, segment.src)) else {
            return;
        };
        flow.resets_emitted |= segment.has(RST);
        if let Some(isn) = flow.isn_out
            && segment.has(ACK)
            && !segment.has(RST)
            && flow.sent(segment.ack - 1)
        {
            let ack = segment.ack.since(isn + 1).max(0) as u32;
            flow.ack_emitted = flow.ack_emitted.max(ack);
        }
    }

    /// A packet arrives at a host. Damaged ones are the host's to drop.
    pub(crate) fn arriving(&mut self, bytes: &[u8], ledger: &Ledger) -> Result<(), String> {
        let Ok(segment) = Segment::read(bytes) else {
            return Ok(());
        };
        let key = (segment.dst, segment.src);
        if segment.has(SYN) {
            return self.syn_arriving(key, &segment);
        }
        let Some(flow) = self.flows.get_mut(&key) else {
            return Ok(());
        };
        let (Some(isn_out), Some(isn_in)) = (flow.isn_out, flow.isn_in) else {
            flow.reset_in |= segment.has(RST);
            return Ok(());
        };
        if segment.has(RST) {
            flow.reset_in |= !flow.is_forged(&segment, isn_in);
            return Ok(());
        }
        if flow.resets_emitted && segment.asks_who_is_there(isn_out) {
            return Ok(());
        }
        if flow.reused || flow.is_forged(&segment, isn_in) {
            return Ok(());
        }
        // An old acknowledgement of bytes that the switch had put before the client's own may come
        // late; it lies below everything that the client has sent and says nothing.
        let slack = ledger
            .role(key.0, key.1)
            .and_then(|role| ledger.peer(role))
            .map(|peer| ledger.party(peer))
            .map_or(0, |peer| peer.prefix.saturating_sub(peer.replaced));
        flow.check_header(&segment, isn_out, slack, self.bare)
            .map_err(str::to_owned)
            .and_then(|()| flow.check_payload(&segment, bytes, isn_in, ledger))
            .and_then(|()| self.check_early_ack(key, ledger))
            .map_err(|what| format!("{what}: {}", segment.describe()))
    }

    fn syn_arriving(&mut self, key: (Endpoint, Endpoint), segment: &Segment) -> Result<(), String> {
        if !segment.has(ACK) {
            let flow = self.flows.get(&key);
            if flow.is_none_or(|flow| flow.isn_in != Some(segment.seq)) {
                let reused = flow.is_some();
                self.flows.insert(
                    key,
                    Flow {
                        reused,
                        ..Flow::default()
                    },
                );
            }
        }
        let Some(flow) = self.flows.get_mut(&key) else {
            return Ok(());
        };
        if segment.has(ACK) {
            let answers = flow.isn_out.is_some_and(|isn| segment.ack == isn + 1);
            if !answers || flow.isn_in.is_some() {
                return Ok(());
            }
            let unasked = (segment.scale.is_some() && flow.scale_out.is_none())
                || (segment.sack_permitted && !flow.sack_out)
                || (segment.timestamps.is_some() && !flow.timestamps_out);
            if unasked {
                return Err(format!("options nobody offered: {}", segment.describe()));
            }
            if let Some((_, echo)) = segment.timestamps
                && !flow.ts_sent.contains(&echo)
            {
                return Err(format!(
                    "an echo of no timestamp sent: {}",
                    segment.describe()
                ));
            }
        }
        flow.isn_in = Some(segment.seq);
        flow.scale_in = segment.scale;
        flow.sack_in = segment.sack_permitted;
        flow.timestamps_in = segment.timestamps.is_some();
        Ok(())
    }

    /// What the switch promises: once a server has the connection, nothing of the client's stream
    /// is acknowledged that the server has not acknowledged.
    fn check_early_ack(
        &mut self,
        key: (Endpoint, Endpoint),
        ledger: &Ledger,
    ) -> Result<(), String> {
        let Some(client @ Role::Client(_)) = ledger.role(key.0, key.1) else {
            return Ok(());
        };
        let Some(Role::Server(index)) = ledger.peer(client) else {
            return Ok(());
        };
        let server = &ledger.servers[index];
        let (Some(ours), Some(theirs)) = (
            self.flows.get(&key),
            self.flows.get(&(server.local, server.remote)),
        ) else {
            return Ok(());
        };
        if theirs.reused {
            return Ok(());
        }
        let allowed = match (theirs.acked as usize).checked_sub(server.prefix) {
            Some(beyond) => beyond + server.replaced,
            None => server.replaced,
        };
        let allowed = allowed.max(ours.ack_floor as usize);
        if ours.ack_in as usize > allowed {
            return Err(format!(
                "{} bytes of the client's are acknowledged to it, {allowed} by the server",
                ours.ack_in
            ));
        }
        Ok(())
    }

    /// The parties of a server's connection are known now: looks at what arrived before.
    pub(crate) fn bound(&mut self, server: Role, ledger: &Ledger) -> Result<(), String> {
        for role in [Some(server), ledger.peer(server)].into_iter().flatten() {
            let party = ledger.party(role);
            if let Some(flow) = self.flows.get_mut(&(party.local, party.remote)) {
                flow.ack_floor = flow.ack_emitted;
                for (at, payload) in core::mem::take(&mut flow.unproved) {
                    ledger.compare(role, at as usize, &payload)?;
                }
            }
        }
        Ok(())
    }
}

impl Flow {
    /// True for a number so far from all of this connection's that any TCP drops the segment: a
    /// stranger's, for no fault of the switch is that large by accident.
    fn is_forged(&self, segment: &Segment, isn_in: SeqNumber) -> bool {
        let at = segment.seq.since(isn_in + 1 + self.acked);
        at.unsigned_abs() > FAR
    }

    /// True for a number far from everything that was sent.
    pub(crate) fn is_far(&self, seq: SeqNumber) -> bool {
        self.isn_out
            .is_some_and(|isn| seq.since(isn + self.sent_end).unsigned_abs() > FAR)
    }

    /// True when a segment with this number was sent.
    pub(crate) fn sent(&self, seq: SeqNumber) -> bool {
        self.isn_out.is_some_and(|isn| {
            let at = seq.since(isn);
            at >= 0 && at as u32 <= self.sent_end
        })
    }

    fn check_header(
        &mut self,
        segment: &Segment,
        isn_out: SeqNumber,
        slack: usize,
        bare: bool,
    ) -> Result<(), &'static str> {
        if !segment.has(ACK) {
            return Err("no acknowledgement after the handshake");
        }
        let ack = segment.ack.since(isn_out + 1);
        if i64::from(ack) < -(slack as i64) || i64::from(ack) > i64::from(self.sent_end) {
            return Err("acknowledges what was never sent");
        }
        self.ack_in = self.ack_in.max(ack.max(0) as u32);
        match (
            segment.timestamps,
            self.timestamps_out && self.timestamps_in,
        ) {
            // A host that leaves them out of the segment by which the switch first hears of the
            // connection has given them up for it (RFC 7323, section 3.2), and sends them still.
            (Some(_), false) if !bare => return Err("timestamps that were not agreed"),
            (None, true) if !bare => return Err("agreed timestamps are missing"),
            (Some((_, echo)), true) if !self.ts_sent.contains(&echo) => {
                return Err("an echo of no timestamp sent");
            }
            _ => {}
        }
        for (left, right) in segment.sack.iter().flatten() {
            if !(self.sack_out && self.sack_in) {
                return Err("selective acknowledgements that were not agreed");
            }
            let left = SeqNumber(*left).since(isn_out + 1);
            let right = SeqNumber(*right).since(isn_out + 1);
            if left < 0 || right <= left || right as u32 > self.sent_end {
                return Err("a SACK block outside what was sent");
            }
        }
        Ok(())
    }

    fn check_payload(
        &mut self,
        segment: &Segment,
        bytes: &[u8],
        isn_in: SeqNumber,
        ledger: &Ledger,
    ) -> Result<(), String> {
        let payload = segment.payload(bytes);
        let at = segment.seq.since(isn_in + 1);
        let role = ledger.role(segment.dst, segment.src);
        // A keep-alive carries one byte that counts for nothing (RFC 9293, section 3.8.4).
        let keep_alive = payload == [0] && at < self.acked as i32;
        if !payload.is_empty() && !keep_alive {
            let default = if segment.dst.addr.is_v4() {
                DEFAULT_MSS_V4
            } else {
                DEFAULT_MSS_V6
            };
            if payload.len() > usize::from(self.mss_out.unwrap_or(default)) {
                return Err("longer than the MSS".to_owned());
            }
            match role {
                Some(role) if ledger.peer(role).is_some() => {
                    // A late retransmission of a head that the switch has rewritten differs from
                    // what it stands for, and is longer if the head became shorter; the server
                    // has it all and does not look.
                    let prefix = ledger.party(role).prefix;
                    let known = i64::from(self.acked).min(prefix as i64);
                    let skip = (known - i64::from(at)).clamp(0, payload.len() as i64);
                    let from = i64::from(at) + skip;
                    if from < 0 || (at < 0 && prefix == 0) {
                        return Err("stream bytes before the first".to_owned());
                    }
                    ledger.compare(role, from as usize, &payload[skip as usize..])?;
                }
                _ if at < 0 => return Err("stream bytes before the first".to_owned()),
                _ if self.unproved_bytes < UNPROVED_BYTES_MAX => {
                    self.unproved_bytes += payload.len();
                    self.unproved.push((at as u32, payload.to_vec()));
                }
                _ => {}
            }
        }
        if segment.has(FIN) {
            let end = (at + payload.len() as i32).max(0) as u32;
            if *self.fin_in.get_or_insert(end) != end {
                return Err("a second FIN elsewhere".to_owned());
            }
            if let Some(role) = role
                && let Some(peer) = ledger.peer(role)
            {
                let expected = ledger.expected_len(role, peer);
                if !ledger.party(peer).closed || end as usize != expected {
                    return Err(format!("a FIN at {end}, the other end sent {expected}"));
                }
            }
        }
        Ok(())
    }
}
