//! Connections whose requests are answered without a socket (docs/kernel-hits.md): what is known of
//! each, and what a client's segment means for it.
//!
//! `bpf/lib/hits.h` and `bpf/lib/answer.h` implement the same; tests compare the two packet by
//! packet. Time is nanoseconds of one clock, whose origin also is that of cookies.

use std::collections::BTreeMap;

use fairlead_base::{Endpoint, FlowKey, Instant, SeqNumber};
use fairlead_wire::build::TTL_DEFAULT;
use fairlead_wire::http::hit_head;
use fairlead_wire::{TcpFlags, TcpPacket, TcpRepr};

use crate::cookie::CookieKey;
use crate::ticket::PAYLOAD_BYTES_MAX;

#[cfg(test)]
mod tests;

/// The longest payload of a segment that is sent.
const SEGMENT: u16 = 1_460;
const STAMPS_BYTES: u16 = 12;
const HEADER_BYTES: u16 = 20;
/// The kernel makes no socket of a connection with a smaller MSS.
const MSS_MIN: [u16; 2] = [536, 1_220];
/// Bytes of the values of `Age` and `Connection`.
const FIELD: usize = 10;
/// Segments whose number is further off are of another connection.
const NEAR: i32 = 65_535;

const RTO_NS: u64 = 200_000_000;
/// So long what is missing is sent once more.
const PATIENCE_NS: u64 = 10_000_000_000;
/// A connection that its client has closed stays for segments that are late.
const REST_NS: u64 = 1_000_000_000;
/// One without a request is closed after this.
const IDLE_NS: u64 = 60_000_000_000;

/// A connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// Its client's last request.
    pub since_ns: u64,
    /// When its last answer was sent last.
    pub sent_ns: u64,
    /// The response that was its last answer; 0: none.
    pub object: u64,
    /// The client's initial number.
    pub client_isn: u32,
    /// The number of the last request.
    pub asked_at: u32,
    /// The number that the client sends next.
    pub rcv_nxt: u32,
    /// The number of the first byte of the last answer.
    pub answer_at: u32,
    /// The number that is sent next.
    pub snd_nxt: u32,
    /// What the client has acknowledged.
    pub acked: u32,
    /// In the last answer, seconds.
    pub age: u32,
    /// The client's last timestamp.
    pub stamp: u32,
    /// The client's MSS.
    pub mss: u16,
    /// The longest payload of a segment.
    pub segment: u16,
    /// It was given to the front, and no socket was seen yet.
    pub given: bool,
    /// The last answer ends with a FIN.
    pub closes: bool,
    /// A FIN was sent.
    pub fin_sent: bool,
    /// A FIN was received.
    pub fin_heard: bool,
    /// The window scales of the client and of this side, if both scale.
    pub scales: Option<(u8, u8)>,
    /// Selective acknowledgements were agreed.
    pub sack: bool,
    /// Timestamps are in use.
    pub timestamps: bool,
}

/// What is offered to clients of a listening endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitListen {
    /// Its number.
    pub index: u16,
    /// The MSS in SYN-ACKs.
    pub mss: u16,
    /// The window scale of SYN-ACKs.
    pub window_scale: Option<u8>,
    /// The parity of that scale, as cookies have it.
    pub scale_parity: bool,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitObject {
    /// Head and body.
    pub bytes: Vec<u8>,
    /// Where the value of `Age` is in it; that many bytes into the first segment at most.
    pub age_at: u16,
    /// The same for `Connection`.
    pub keep_at: u16,
    /// When it had the age 0. It may be before the clock's origin.
    pub born_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Offer {
    object: u64,
    fresh_until_ns: u64,
    epoch: u32,
}

/// What becomes of a client's segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HitVerdict {
    /// It is of another connection, or nothing for this cache.
    Pass,
    /// It ends here.
    Drop,
    /// It is answered with these packets.
    Send(Vec<Vec<u8>>),
    /// It is the first one of a socket of the front.
    Give,
}

/// The connections, and what may be answered.
#[derive(Clone, Debug)]
pub struct Hits {
    cookies: CookieKey,
    room: usize,
    listens: BTreeMap<Endpoint, HitListen>,
    offers: BTreeMap<u64, Offer>,
    objects: BTreeMap<u64, HitObject>,
    connections: BTreeMap<FlowKey, Hit>,
    epoch: u32,
}

/// One segment, and when it came.
struct Heard<'a> {
    now_ns: u64,
    tcp: &'a TcpPacket,
    payload: &'a [u8],
    /// The client's timestamp.
    stamp: Option<u32>,
    header_bytes: u16,
    is_good: bool,
    /// The front would take the connection.
    is_taken: bool,
}

impl Heard<'_> {
    fn seq(&self) -> u32 {
        self.tcp.seq.0
    }

    fn ack(&self) -> u32 {
        self.tcp.ack.0
    }

    fn has(&self, flags: TcpFlags) -> bool {
        self.tcp.flags.intersects(flags)
    }
}

/// What a segment does to a connection: the connection is kept with `Some`.
type Step = (HitVerdict, Option<Hit>);

impl Hits {
    /// Without connections, and with room for `room`.
    pub fn new(cookies: CookieKey, room: usize) -> Self {
        Self {
            cookies,
            room,
            listens: BTreeMap::new(),
            offers: BTreeMap::new(),
            objects: BTreeMap::new(),
            connections: BTreeMap::new(),
            epoch: 1,
        }
    }

    /// Answers clients of a listening endpoint.
    pub fn listen(&mut self, at: Endpoint, listen: HitListen) {
        self.listens.insert(at, listen);
    }

    /// Makes a response known.
    pub fn add(&mut self, number: u64, object: HitObject) {
        self.objects.insert(number, object);
    }

    /// Forgets a response.
    pub fn remove(&mut self, number: u64) {
        self.objects.remove(&number);
    }

    /// Has requests with this hash answered.
    pub fn offer(&mut self, hash: u64, object: u64, fresh_until_ns: u64) {
        let epoch = self.epoch;
        let offer = Offer {
            object,
            fresh_until_ns,
            epoch,
        };
        self.offers.insert(hash, offer);
    }

    /// Makes all offers void.
    pub fn purge(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// What is known of a client's connection.
    pub fn connection(&self, client: &FlowKey) -> Option<&Hit> {
        self.connections.get(client)
    }

    /// Changes what is known.
    pub fn set_connection(&mut self, client: FlowKey, hit: Hit) {
        self.connections.insert(client, hit);
    }

    /// A socket has a client's connection.
    pub fn taken(&mut self, client: &FlowKey) {
        self.connections.remove(client);
    }

    /// A client's segment that no socket has. `is_taken` is whether the front would take the
    /// connection.
    pub fn handle(
        &mut self,
        now_ns: u64,
        tcp: &TcpPacket,
        bytes: &[u8],
        is_taken: bool,
    ) -> HitVerdict {
        let Some(&listen) = self.listens.get(&tcp.key.dst) else {
            return HitVerdict::Pass;
        };
        let options = tcp.options(bytes);
        let stamp = match options.split_first_chunk() {
            Some(([1, 1, 8, 10], rest)) => rest.first_chunk().map(|one| u32::from_be_bytes(*one)),
            _ => None,
        };
        let heard = Heard {
            now_ns,
            tcp,
            payload: tcp.payload(bytes),
            stamp: stamp.filter(|_| options.len() >= usize::from(STAMPS_BYTES)),
            header_bytes: tcp.payload_at - tcp.tcp_at,
            is_good: tcp.checksum_valid(bytes),
            is_taken,
        };
        if let Some(&hit) = self.connections.get(&tcp.key)
            && let Some((verdict, after)) = self.segment(&heard, hit, listen)
        {
            self.keep(tcp.key, after);
            return verdict;
        }
        self.newcomer(&heard, listen)
    }

    fn keep(&mut self, client: FlowKey, hit: Option<Hit>) {
        if let Some(hit) = hit {
            self.connections.insert(client, hit);
        } else {
            self.connections.remove(&client);
        }
    }

    /// A segment of a client on record; `None` if it is of another connection.
    fn segment(&self, heard: &Heard<'_>, mut hit: Hit, listen: HitListen) -> Option<Step> {
        let behind = heard.seq().wrapping_sub(hit.rcv_nxt).cast_signed();
        if heard.has(TcpFlags::SYN) {
            return None;
        }
        if heard.has(TcpFlags::RST) {
            return Some((HitVerdict::Drop, (behind != 0).then_some(hit)));
        }
        let (ack, sent) = (heard.ack(), hit.snd_nxt.wrapping_sub(hit.answer_at));
        let is_acked = ack.wrapping_sub(hit.answer_at) <= sent;
        if !heard.has(TcpFlags::ACK) || !is_acked || !(-NEAR..=NEAR).contains(&behind) {
            return None;
        }
        if !heard.is_good {
            return Some((HitVerdict::Drop, Some(hit)));
        }
        if hit.timestamps && behind >= 0 {
            hit.stamp = heard.stamp.unwrap_or(hit.stamp);
        }
        if behind != 0 {
            return Some(self.repeated(heard, hit));
        }
        let before = hit.acked;
        if ack.wrapping_sub(before).cast_signed() > 0 {
            hit.acked = ack;
        }
        Some(match (hit.given, heard.payload.is_empty()) {
            (true, true) => (HitVerdict::Drop, Some(hit)),
            (true, false) => give(heard, hit),
            (false, true) => self.heard(heard, hit, before),
            (false, false) => self.next(heard, hit, listen),
        })
    }

    /// One that repeats old bytes or leaves a gap.
    fn repeated(&self, heard: &Heard<'_>, hit: Hit) -> Step {
        if hit.fin_heard && heard.has(TcpFlags::FIN) {
            let is_ended = hit.acked == hit.snd_nxt || hit.closes;
            return match is_ended {
                true => bare(heard, hit, hit.snd_nxt, TcpFlags::ACK),
                false => bare(heard, hit, hit.snd_nxt.wrapping_sub(1), FIN_ACK),
            };
        }
        let asks = !heard.payload.is_empty() && heard.seq() == hit.asked_at;
        if hit.object != 0 && asks && hit.acked != hit.snd_nxt {
            return self.again(heard, hit, hit.acked);
        }
        bare(heard, hit, hit.snd_nxt, TcpFlags::ACK)
    }

    /// One without data, where the record is.
    fn heard(&self, heard: &Heard<'_>, mut hit: Hit, before: u32) -> Step {
        let ack = heard.ack();
        if heard.has(TcpFlags::FIN) {
            if ack != hit.snd_nxt || hit.fin_heard {
                return self.missing(heard, hit);
            }
            hit.fin_heard = true;
            (hit.since_ns, hit.sent_ns) = (heard.now_ns, heard.now_ns);
            hit.rcv_nxt = hit.rcv_nxt.wrapping_add(1);
            hit.object = 0;
            hit.answer_at = hit.snd_nxt;
            if hit.fin_sent {
                return bare(heard, hit, hit.snd_nxt, TcpFlags::ACK);
            }
            hit.fin_sent = true;
            hit.snd_nxt = hit.snd_nxt.wrapping_add(1);
            return bare(heard, hit, hit.answer_at, FIN_ACK);
        }
        if ack == hit.snd_nxt {
            // A client that has closed first keeps the connection at rest by itself.
            let is_over = hit.fin_sent && hit.fin_heard && !hit.closes;
            return (HitVerdict::Drop, (!is_over).then_some(hit));
        }
        match ack == before {
            true => self.missing(heard, hit),
            false => (HitVerdict::Drop, Some(hit)),
        }
    }

    /// The next request.
    fn next(&self, heard: &Heard<'_>, mut hit: Hit, listen: HitListen) -> Step {
        if hit.fin_sent {
            let (verdict, _) = bare(heard, hit, heard.ack(), RST_ACK);
            return (verdict, None);
        }
        if heard.ack() != hit.snd_nxt {
            return self.missing(heard, hit);
        }
        hit.since_ns = heard.now_ns;
        if let Some((offer, closes)) = self.offered(heard, listen)
            && let Some(step) = self.answer(heard, hit, offer, closes)
        {
            return step;
        }
        hit.object = 0;
        give(heard, hit)
    }

    /// The first request of a client.
    fn newcomer(&mut self, heard: &Heard<'_>, listen: HitListen) -> HitVerdict {
        let key = heard.tcp.key;
        if heard.payload.is_empty() {
            return HitVerdict::Pass;
        }
        let kept = self.connections.get(&key);
        if kept.is_some_and(|one| one.client_isn.wrapping_add(1) == heard.seq()) {
            return HitVerdict::Drop;
        }
        let is_full = kept.is_none() && self.connections.len() >= self.room;
        let Some((offer, closes)) = self.offered(heard, listen) else {
            return HitVerdict::Pass;
        };
        let Some(hit) = self.begin(heard, listen).filter(|_| heard.is_good) else {
            return HitVerdict::Pass;
        };
        if is_full {
            return HitVerdict::Pass;
        }
        // An older connection of the same key is over.
        let Some((verdict, after)) = self.answer(heard, hit, offer, closes) else {
            self.connections.remove(&key);
            return HitVerdict::Pass;
        };
        self.keep(key, after);
        verdict
    }

    /// What a client's cookie says of its connection.
    fn begin(&self, heard: &Heard<'_>, listen: HitListen) -> Option<Hit> {
        let cookie = SeqNumber(heard.ack().wrapping_sub(1));
        let client_isn = heard.seq().wrapping_sub(1);
        let timestamps = heard.header_bytes == HEADER_BYTES + STAMPS_BYTES;
        if !timestamps && heard.header_bytes != HEADER_BYTES {
            return None;
        }
        let key = &heard.tcp.key;
        let now = Instant::from_nanos(heard.now_ns);
        let isn = SeqNumber(client_isn);
        let promise = self.cookies.check(key, isn, now, cookie)?;
        let ours = match promise.window_scale {
            Some(_) if promise.scale_parity != listen.scale_parity => return None,
            Some(scale) => Some((scale, listen.window_scale?)),
            None => None,
        };
        if promise.mss < MSS_MIN[usize::from(!heard.tcp.v4)] {
            return None;
        }
        let stamps = if timestamps { STAMPS_BYTES } else { 0 };
        let segment = promise.mss.min(listen.mss).min(SEGMENT) - stamps;
        Some(Hit {
            client_isn,
            since_ns: heard.now_ns,
            rcv_nxt: heard.seq(),
            answer_at: heard.ack(),
            snd_nxt: heard.ack(),
            acked: heard.ack(),
            stamp: if timestamps { heard.stamp? } else { 0 },
            mss: promise.mss,
            segment: segment & !3,
            scales: ours,
            sack: promise.sack,
            timestamps,
            ..Hit::default()
        })
    }

    /// The offer for a request, and whether it wants no other one answered.
    fn offered(&self, heard: &Heard<'_>, listen: HitListen) -> Option<(Offer, bool)> {
        let plain = [TcpFlags::ACK, TcpFlags::ACK | TcpFlags::PSH];
        let flags = TcpFlags(heard.tcp.flags.0 & 0x3f);
        if !plain.contains(&flags) || heard.payload.len() > PAYLOAD_BYTES_MAX {
            return None;
        }
        let head = hit_head(heard.payload, listen.index, self.cookies.words())?;
        let offer = self.offers.get(&head.hash)?;
        let is_valid = offer.epoch == self.epoch && offer.fresh_until_ns > heard.now_ns;
        is_valid.then_some((*offer, head.closes))
    }

    fn answer(&self, heard: &Heard<'_>, hit: Hit, offer: Offer, closes: bool) -> Option<Step> {
        let object = self.objects.get(&offer.object)?;
        let bytes = object.bytes.len() as u64;
        let scale = hit.scales.map_or(0, |(client, _)| client);
        let window = u64::from(heard.tcp.window) << scale;
        if bytes > 2 * u64::from(hit.segment) || bytes > window {
            return None;
        }
        let end = heard.ack().wrapping_add(bytes as u32);
        let mut hit = Hit {
            since_ns: heard.now_ns,
            object: offer.object,
            asked_at: heard.seq(),
            rcv_nxt: heard.seq().wrapping_add(heard.payload.len() as u32),
            answer_at: heard.ack(),
            snd_nxt: end.wrapping_add(closes.into()),
            acked: heard.ack(),
            age: (heard.now_ns.wrapping_sub(object.born_ns) / 1_000_000_000) as u32,
            given: false,
            closes,
            fin_sent: closes,
            fin_heard: false,
            ..hit
        };
        let sent = self.send(heard.now_ns, &heard.tcp.key, &mut hit, heard.ack())?;
        Some((HitVerdict::Send(sent), Some(hit)))
    }

    /// What a client that acknowledges this is missing.
    fn missing(&self, heard: &Heard<'_>, hit: Hit) -> Step {
        match hit.object {
            0 => (HitVerdict::Drop, Some(hit)),
            _ => self.again(heard, hit, heard.ack()),
        }
    }

    fn again(&self, heard: &Heard<'_>, mut hit: Hit, from: u32) -> Step {
        match self.send(heard.now_ns, &heard.tcp.key, &mut hit, from) {
            Some(sent) => (HitVerdict::Send(sent), Some(hit)),
            None => (bare(heard, hit, hit.acked, RST_ACK).0, None),
        }
    }

    /// The last answer once more, from the segment on that a client acknowledges up to; `None`: it
    /// is there no more.
    fn send(&self, now_ns: u64, key: &FlowKey, hit: &mut Hit, ack: u32) -> Option<Vec<Vec<u8>>> {
        let object = self.objects.get(&hit.object)?;
        let (segment, total) = (usize::from(hit.segment), object.bytes.len());
        if total > 2 * segment {
            return None;
        }
        hit.sent_ns = now_ns;
        let mut bytes = object.bytes.clone();
        let keep: &[u8; FIELD] = match hit.closes {
            true => b"close     ",
            false => b"keep-alive",
        };
        let age = format!("{:010}", hit.age);
        for (at, field) in [(object.age_at, age.as_bytes()), (object.keep_at, keep)] {
            let at = usize::from(at);
            bytes.get_mut(at..at + FIELD)?.copy_from_slice(field);
        }
        let is_behind = ack.wrapping_sub(hit.answer_at) >= u32::from(hit.segment);
        // Only the FIN behind a first segment that is full may be missing.
        let first = if is_behind && total > segment {
            segment
        } else {
            0
        };
        let mut sent = Vec::new();
        for from in (first..total).step_by(segment.max(1)) {
            let end = total.min(from + segment);
            let mut flags = TcpFlags::ACK;
            if end == total {
                flags |= TcpFlags::PSH;
                if hit.closes {
                    flags |= TcpFlags::FIN;
                }
            }
            let seq = hit.answer_at.wrapping_add(from as u32);
            sent.push(packet(now_ns, key, hit, seq, flags, &bytes[from..end]));
        }
        Some(sent)
    }

    /// Forgets connections that are over; what is sent to clients that are missing something, or
    /// that have asked for nothing in a long time. To be called every 100 ms or so.
    pub fn tend(&mut self, now_ns: u64) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let all: Vec<(FlowKey, Hit)> = self.connections.iter().map(|(k, h)| (*k, *h)).collect();
        for (key, mut hit) in all {
            let is_longer = |since: u64, most: u64| {
                now_ns.wrapping_sub(since).cast_signed() > most.cast_signed()
            };
            let is_acked = hit.acked == hit.snd_nxt;
            let is_late = (hit.object != 0 || hit.fin_sent)
                && !is_acked
                && is_longer(hit.sent_ns, RTO_NS)
                && !is_longer(hit.since_ns, PATIENCE_NS);
            let is_idle =
                !hit.fin_sent && !hit.given && is_acked && is_longer(hit.since_ns, IDLE_NS);
            let after = if is_late && hit.object == 0 {
                hit.sent_ns = now_ns;
                let seq = hit.snd_nxt.wrapping_sub(1);
                sent.push(packet(now_ns, &key, &hit, seq, FIN_ACK, &[]));
                Some(hit)
            } else if is_late {
                let acked = hit.acked;
                match self.send(now_ns, &key, &mut hit, acked) {
                    Some(more) => {
                        sent.extend(more);
                        Some(hit)
                    }
                    None => {
                        sent.push(packet(now_ns, &key, &hit, hit.acked, RST_ACK, &[]));
                        None
                    }
                }
            } else if is_idle {
                hit.object = 0;
                hit.answer_at = hit.snd_nxt;
                hit.snd_nxt = hit.snd_nxt.wrapping_add(1);
                (hit.since_ns, hit.sent_ns) = (now_ns, now_ns);
                (hit.fin_sent, hit.closes) = (true, true);
                sent.push(packet(now_ns, &key, &hit, hit.answer_at, FIN_ACK, &[]));
                Some(hit)
            } else {
                let is_over = hit.fin_heard && is_acked;
                let most = if is_over { REST_NS } else { IDLE_NS };
                (!is_longer(hit.since_ns, most)).then_some(hit)
            };
            self.keep(key, after);
        }
        sent
    }
}

const FIN_ACK: TcpFlags = TcpFlags(TcpFlags::FIN.0 | TcpFlags::ACK.0);
const RST_ACK: TcpFlags = TcpFlags(TcpFlags::RST.0 | TcpFlags::ACK.0);

/// Makes a segment the first one that the front hears of its connection.
fn give(heard: &Heard<'_>, mut hit: Hit) -> Step {
    if !heard.is_taken || hit.timestamps && heard.stamp.is_none() {
        return (HitVerdict::Drop, Some(hit));
    }
    hit.given = true;
    (HitVerdict::Give, Some(hit))
}

/// Answers with a segment without data.
fn bare(heard: &Heard<'_>, hit: Hit, seq: u32, flags: TcpFlags) -> Step {
    let answer = packet(heard.now_ns, &heard.tcp.key, &hit, seq, flags, &[]);
    (HitVerdict::Send(vec![answer]), Some(hit))
}

/// A segment to a client.
fn packet(
    now_ns: u64,
    client: &FlowKey,
    hit: &Hit,
    seq: u32,
    flags: TcpFlags,
    payload: &[u8],
) -> Vec<u8> {
    let mut options = Vec::new();
    if hit.timestamps {
        options.extend([1, 1, 8, 10]);
        options.extend(((now_ns / 1_000_000) as u32).to_be_bytes());
        options.extend(hit.stamp.to_be_bytes());
    }
    let mut bytes = Vec::new();
    let window = match hit.scales.map_or(0, |(_, ours)| ours) {
        scale @ ..=9 => u16::MAX >> scale,
        _ => 64,
    };
    TcpRepr {
        key: FlowKey {
            src: client.dst,
            dst: client.src,
        },
        seq: SeqNumber(seq),
        ack: SeqNumber(hit.rcv_nxt),
        flags,
        window,
        options: &options,
        payload,
        ttl: TTL_DEFAULT,
    }
    .emit(&mut bytes);
    bytes
}
