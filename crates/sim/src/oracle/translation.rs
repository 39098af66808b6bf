//! Every packet through the switch: what leaves is valid and leads where it may, and what went in
//! and came out as one packet was translated the same way all the time.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_base::{Address, Endpoint, FlowKey, SeqNumber};
use fairlead_splice::config::{Config, Source};

use super::taps::Taps;
use crate::mischief::is_stranger;
use crate::net::{
    Segment, TooBig,
    segment::{ACK, FIN, RST, SYN},
};

/// How one direction of a connection is translated.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The sender's initial sequence number: another one is another connection.
    isn: SeqNumber,
    /// Once one was seen that was certainly not put in the place of another.
    seq_delta: Option<u32>,
    /// Once one was seen that was certainly not withheld.
    ack_delta: Option<u32>,
    ts_delta: Option<u32>,
    out: (Endpoint, Endpoint),
}

/// Watches the switch's door.
#[derive(Debug)]
pub(crate) struct Translation {
    clients: BTreeSet<Address>,
    servers: BTreeSet<Address>,
    vips: BTreeSet<Endpoint>,
    snat: BTreeSet<Address>,
    /// Servers of pools that a transparent service uses.
    transparent: BTreeSet<Endpoint>,
    ways: BTreeMap<(Endpoint, Endpoint), Way>,
    /// Packets that were compared with what they were before.
    pub(crate) compared: u64,
}

impl Translation {
    pub(crate) fn new(
        config: &Config,
        clients: BTreeSet<Address>,
        servers: BTreeSet<Address>,
    ) -> Self {
        let transparent = config
            .services
            .iter()
            .filter(|service| service.source == Source::Transparent)
            .flat_map(|service| &service.routes)
            .filter_map(|route| route.pool)
            .flat_map(|pool| &config.pools[usize::from(pool.0)].servers)
            .map(|server| server.endpoint)
            .collect();
        Self {
            clients,
            servers,
            vips: config
                .services
                .iter()
                .flat_map(|one| one.listen.iter().copied())
                .collect(),
            snat: config.snat.iter().copied().collect(),
            transparent,
            ways: BTreeMap::new(),
            compared: 0,
        }
    }

    /// Looks at a packet that leaves the switch; says whose it is.
    pub(crate) fn check_leaving(&self, bytes: &[u8]) -> Result<(), String> {
        match fairlead_wire::classify(bytes) {
            Ok(fairlead_wire::Classified::Tcp(packet)) => {
                if !packet.checksum_valid(bytes) {
                    return Err("the switch sent a bad TCP checksum".to_owned());
                }
            }
            Ok(fairlead_wire::Classified::Icmp(_)) => return self.check_icmp(bytes),
            Err(reason) => return Err(format!("the switch sent what it would drop: {reason}")),
        }
        let segment =
            Segment::read(bytes).map_err(|problem| format!("the switch sent a bad {problem}"))?;
        self.check_ends(&segment)
            .map_err(|problem| format!("the switch sent {problem}: {}", segment.describe()))
    }

    fn check_icmp(&self, bytes: &[u8]) -> Result<(), String> {
        let Some(quoted) =
            TooBig::read(bytes).map_err(|problem| format!("the switch sent a bad {problem}"))?
        else {
            return Ok(());
        };
        // The quotation names the receiver as the sender, and someone it knows as the other end.
        let to_client = self.clients.contains(&quoted.src.addr) && self.vips.contains(&quoted.dst);
        let to_server = self.servers.contains(&quoted.src.addr)
            && (self.snat.contains(&quoted.dst.addr) || self.clients.contains(&quoted.dst.addr));
        if to_client || to_server {
            return Ok(());
        }
        Err(format!(
            "the switch quotes {} > {} to no one concerned",
            quoted.src, quoted.dst
        ))
    }

    fn check_ends(&self, segment: &Segment) -> Result<(), &'static str> {
        if segment.hop_limit == 0 {
            return Err("a packet without hops left");
        }
        if self.servers.contains(&segment.dst.addr) {
            let ours = self.snat.contains(&segment.src.addr);
            let transparent = self.transparent.contains(&segment.dst);
            let client = transparent && self.clients.contains(&segment.src.addr);
            // Where there are no source addresses, servers are probed from the service's own: a
            // SYN and the RST that takes it back, nothing else.
            let probe = transparent
                && segment.payload_at == segment.end
                && segment.has(SYN | RST)
                && self.vips.iter().any(|vip| vip.addr == segment.src.addr);
            if ours || client || probe {
                return Ok(());
            }
            return Err("a packet to a server from a stranger's address");
        }
        if self.clients.contains(&segment.dst.addr) {
            if self.may_speak(&segment.src) {
                return Ok(());
            }
            return Err("a packet to a client from no service");
        }
        if is_stranger(&segment.dst.addr) && self.may_speak(&segment.src) {
            return Ok(());
        }
        Err("a packet to nobody")
    }

    /// True for who may send to clients: services, and servers whose packets are handed back.
    fn may_speak(&self, src: &Endpoint) -> bool {
        self.vips.contains(src) || self.transparent.contains(src)
    }

    /// True for a packet from a client to a server itself: the switch's machine forwards it.
    pub(crate) fn is_direct(&self, bytes: &[u8]) -> bool {
        Segment::read_unsummed(bytes).is_ok_and(|segment| {
            self.clients.contains(&segment.src.addr) && self.transparent.contains(&segment.dst)
        })
    }

    /// The key of a server's packet that left with the ends and numbers with which it came.
    pub(crate) fn handed_back(&self, before: &[u8], after: &[u8]) -> Option<FlowKey> {
        let (old, new) = (
            Segment::read_unsummed(before).ok()?,
            Segment::read_unsummed(after).ok()?,
        );
        let same = (old.src, old.dst, old.seq, old.ack) == (new.src, new.dst, new.seq, new.ack);
        let (src, dst) = (old.src, old.dst);
        (same && self.transparent.contains(&src)).then_some(FlowKey { src, dst })
    }

    /// Compares a packet that the switch passed on with what it was before.
    pub(crate) fn check_passed(
        &mut self,
        before: &[u8],
        after: &[u8],
        taps: &Taps,
    ) -> Result<(), String> {
        let (Ok(old), Ok(new)) = (
            Segment::read_unsummed(before),
            Segment::read_unsummed(after),
        ) else {
            return Ok(());
        };
        // The switch may answer in place (a SYN becomes its SYN-ACK): that is no translation.
        let turned = old.src.addr == new.dst.addr;
        if turned || old.has(SYN) || new.has(SYN) {
            return Ok(());
        }
        self.compared += 1;
        self.compare(&old, before, &new, after, taps)
            .map_err(|problem| {
                format!(
                    "translation: {problem}\n  in  {}\n  out {}",
                    old.describe(),
                    new.describe()
                )
            })
    }

    fn compare(
        &mut self,
        old: &Segment,
        before: &[u8],
        new: &Segment,
        after: &[u8],
        taps: &Taps,
    ) -> Result<(), String> {
        if old.flags != new.flags || old.urgent != new.urgent {
            return Err("other flags".to_owned());
        }
        // Of a retransmission that overlaps bytes which the switch sends itself, the rest is passed.
        let (whole, passed) = (old.payload(before), new.payload(after));
        let cut = whole.len().saturating_sub(passed.len());
        if whole.get(cut..) != Some(passed) || (cut > 0 && self.servers.contains(&old.src.addr)) {
            return Err("other payload".to_owned());
        }
        if new.hop_limit + 1 != old.hop_limit {
            return Err("not one hop less".to_owned());
        }
        let sender = taps.flow(old.src, old.dst);
        let Some((sender, isn)) = sender.and_then(|flow| Some((flow, flow.isn_out?))) else {
            return Err("of a connection that no host has".to_owned());
        };
        if !sender.sent(old.seq) {
            // Of an earlier connection between the same ends.
            return Ok(());
        }
        let ack_delta = new.ack.0.wrapping_sub(old.ack.0);
        // While the switch holds bytes for the server, a client's segment without any says where
        // the switch is, not where the client is.
        let bare = passed.is_empty() && !new.has(FIN);
        let replaced = bare && self.servers.contains(&new.dst.addr) && is_held(new.seq, new, taps);
        let seq_delta = new.seq.0.wrapping_sub(old.seq.0).wrapping_sub(cut as u32);
        let way = Way {
            isn,
            seq_delta: (!replaced).then_some(seq_delta),
            ack_delta: old.has(ACK).then_some(ack_delta),
            ts_delta: match (old.timestamps, new.timestamps) {
                (Some((old, _)), Some((new, _))) => Some(new.wrapping_sub(old)),
                _ => None,
            },
            out: (new.src, new.dst),
        };
        let exact = self.check_way(old, way, taps)?;
        for (block, translated) in old.sack.iter().zip(&new.sack) {
            let expected = block
                .map(|(left, right)| (left.wrapping_add(ack_delta), right.wrapping_add(ack_delta)));
            if *translated != expected && (exact || translated.is_some()) {
                return Err(format!("SACK block {translated:?} instead of {expected:?}"));
            }
        }
        if !new.has(RST) {
            check_window(old, new, taps)?;
        }
        Ok(())
    }

    /// Holds a packet's translation against the ones before it and against the other direction's,
    /// which moves the same amounts the other way round. False when the acknowledgement was
    /// or may have been withheld instead.
    fn check_way(&mut self, old: &Segment, way: Way, taps: &Taps) -> Result<bool, String> {
        let key = (old.src, old.dst);
        let other = self.ways.get(&(way.out.1, way.out.0)).filter(|other| {
            let isn = taps
                .flow(way.out.1, way.out.0)
                .and_then(|flow| flow.isn_out);
            other.out == (old.dst, old.src) && isn == Some(other.isn)
        });
        let known = self.ways.get(&key).filter(|known| known.isn == way.isn);
        let negated = |delta: u32| delta.wrapping_neg();
        let seq_expected = known
            .and_then(|known| known.seq_delta)
            .or_else(|| other.and_then(|other| other.ack_delta).map(negated));
        let ack_expected = other
            .and_then(|other| other.seq_delta)
            .map(negated)
            .or_else(|| known.and_then(|known| known.ack_delta));
        if let (Some(expected), Some(moved)) = (seq_expected, way.seq_delta)
            && expected != moved
        {
            return Err(format!(
                "sequence numbers moved by {moved}, {expected} before"
            ));
        }
        if let Some(known) = known
            && known.out != way.out
        {
            return Err(format!("led to {} before", known.out.1));
        }
        if let (Some(before), Some(now)) = (known.and_then(|known| known.ts_delta), way.ts_delta)
            && before != now
        {
            return Err(format!("timestamps moved by {now}, {before} before"));
        }
        let exact =
            way.ack_delta.is_none() || ack_expected.is_none_or(|e| Some(e) == way.ack_delta);
        if !exact && !self.may_withhold(old, taps) {
            return Err(format!(
                "acknowledgements moved by {:?}, {ack_expected:?} before",
                way.ack_delta
            ));
        }
        let certain = exact && !(ack_expected.is_none() && self.may_withhold(old, taps));
        let ack_delta = known
            .and_then(|known| known.ack_delta)
            .or_else(|| way.ack_delta.filter(|_| certain));
        let seq_delta = known.and_then(|known| known.seq_delta).or(way.seq_delta);
        let ts_delta = known.and_then(|known| known.ts_delta).or(way.ts_delta);
        self.ways.insert(
            key,
            Way {
                seq_delta,
                ack_delta,
                ts_delta,
                ..way
            },
        );
        Ok(certain)
    }

    /// While the switch holds the first bytes of a stream for the server (a head, a PROXY header),
    /// it keeps the server's acknowledgements of them from the client.
    fn may_withhold(&self, old: &Segment, taps: &Taps) -> bool {
        self.servers.contains(&old.src.addr) && is_held(old.ack, &old.turned(), taps)
    }
}

/// True when a number of the stream to a server may lie in what the switch sends by itself.
/// `segment` goes to the server.
fn is_held(seq: SeqNumber, segment: &Segment, taps: &Taps) -> bool {
    taps.flow(segment.dst, segment.src)
        .and_then(|flow| flow.isn_in)
        .is_some_and(|isn| (0..=HELD_BYTES_MAX).contains(&seq.since(isn)))
}

/// The longest head and the longest PROXY header.
const HELD_BYTES_MAX: i32 = 32 * 1_024 + 256;

/// The window in bytes that the receiver gets must be the sender's, as exactly as the receiver's
/// scale can say it.
fn check_window(old: &Segment, new: &Segment, taps: &Taps) -> Result<(), String> {
    let (Some(sender), Some(receiver)) = (taps.flow(old.src, old.dst), taps.flow(new.dst, new.src))
    else {
        return Ok(());
    };
    if !receiver.sent(new.ack - 1) {
        // For an earlier connection between the same ends.
        return Ok(());
    }
    let agreed = |ours: Option<u8>, theirs: Option<u8>| match (ours, theirs) {
        (Some(ours), Some(_)) => u32::from(ours.min(14)),
        _ => 0,
    };
    let told = u64::from(old.window) << agreed(sender.scale_out, sender.scale_in);
    let scale = agreed(receiver.scale_in, receiver.scale_out);
    let heard = u64::from(new.window) << scale;
    let unit = 1u64 << scale;
    let least = (told / unit * unit).min(u64::from(u16::MAX) << scale);
    let most = if told == 0 { 0 } else { told.max(unit) };
    if heard < least || heard > most {
        return Err(format!("a window of {told} bytes became one of {heard}"));
    }
    Ok(())
}
