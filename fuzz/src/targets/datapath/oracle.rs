//! The promises.

use core::time::Duration;

use fairlead_base::{Checksum, DropReason, Instant, Packet};
use fairlead_datapath::{Event, Snapshot, Verdict};
use fairlead_wire::{Classified, TcpPacket, classify};

use super::settings::LIMITS;
use crate::targets::sums::is_right;

/// What became of a packet that came in.
pub(super) fn check_verdict(before: &Packet, after: &Packet, verdict: Verdict) {
    let parsed = classify(&before.bytes);
    if let Err(reason) = parsed {
        // Fragments are kept, dropped for a reason of their own, or complete a packet.
        assert!(reason == DropReason::Fragment || verdict == Verdict::Drop(reason));
        return;
    }
    if verdict != Verdict::Transmit {
        return;
    }
    let Ok(parsed) = parsed else { return };
    match (parsed, classify(&after.bytes)) {
        (Classified::Tcp(old), Ok(Classified::Tcp(new))) => check_passed(before, &old, after, &new),
        (Classified::Icmp(_), Ok(Classified::Icmp(_))) => {}
        // The answer to a packet that was sent to an address from which nothing may come.
        (_, Err(DropReason::BadSource)) => {}
        (old, new) => panic!("{old:?} became {new:?}"),
    }
}

fn check_passed(before: &Packet, old: &TcpPacket, after: &Packet, new: &TcpPacket) {
    assert_eq!(new.v4, old.v4);
    if new.key == old.key.reversed() {
        assert!(after.gso.is_none() && after.checksum == Checksum::Complete);
        assert!(is_right(after, new), "an answer with a wrong checksum");
        return;
    }
    assert_eq!(
        is_right(after, new),
        is_right(before, old),
        "the checksum's verdict changed on the way of {} to {}",
        old.key,
        new.key
    );
    assert_eq!(after.checksum, before.checksum);
    let (came, went) = (old.payload(&before.bytes), new.payload(&after.bytes));
    // What is held already is cut off in front, what lies behind the one request at the end: only
    // of clients' segments, whose numbers stay as they are.
    let skipped = if went.len() < came.len() {
        new.seq.since(old.seq) as usize
    } else {
        0
    };
    let kept = came.get(skipped..).unwrap_or_default();
    assert!(kept.starts_with(went), "other bytes than came");
    assert_eq!(new.ttl, old.ttl - 1);
}

/// A packet that the engine made.
pub(super) fn check_made(packet: &Packet) {
    assert!(packet.gso.is_none() && packet.checksum == Checksum::Complete);
    match classify(&packet.bytes) {
        Ok(Classified::Tcp(header)) => {
            assert!(
                is_right(packet, &header),
                "made with a wrong checksum: {}",
                header.key
            );
            assert!(header.key.src.port != 0 && header.ttl > 0);
        }
        other => panic!("the engine made {other:?}"),
    }
}

pub(super) fn check_event(event: &Event, now: Instant) {
    match event {
        Event::Decided { subject, .. }
        | Event::Given { subject, .. }
        | Event::Refused { subject, .. } => {
            let subject = subject.as_str();
            assert!(subject.len() <= 256, "a subject of {} bytes", subject.len());
        }
        Event::Closed {
            opened,
            duration,
            bytes_in,
            bytes_out,
            ..
        } => {
            // Scripts are short: nothing near that was ever sent.
            let plausible = |bytes: u64| bytes < 1 << 40;
            assert!(
                plausible(*bytes_in) && plausible(*bytes_out),
                "{bytes_in} bytes in, {bytes_out} bytes out: {event:?}"
            );
            let close = *opened + *duration;
            assert!(
                close <= now + Duration::from_millis(1),
                "closed before its end: {event:?}, {now:?}"
            );
        }
        Event::Server { .. } | Event::Availability { .. } | Event::LaterRequest { .. } => {}
    }
}

/// The numbers of one moment against the limits, each other, and the moment before.
pub(super) fn check_gauges(last: &Snapshot, now: &Snapshot, live_connections: u64) {
    let promises = limits_held(now)
        .into_iter()
        .chain(numbers_agree(now, live_connections))
        .chain(counters_rise(last, now));
    for (kept, what) in promises {
        assert!(kept, "{what}: {}", numbers(now));
    }
}

type Promise = (bool, &'static str);

fn limits_held(now: &Snapshot) -> [Promise; 4] {
    let limit = |max: u32| u64::from(max);
    [
        (now.records <= limit(LIMITS.connections), "too many records"),
        (now.setups <= limit(LIMITS.setups), "too many set-ups"),
        (
            now.half_read <= limit(LIMITS.half_read),
            "too many half-read heads",
        ),
        (
            now.buffered_bytes <= LIMITS.buffered_bytes,
            "too many bytes buffered",
        ),
    ]
}

fn numbers_agree(now: &Snapshot, live_connections: u64) -> [Promise; 10] {
    let ended: u64 = now.ended.iter().map(|(_, count)| count).sum();
    let handled = now.fast_packets + now.engine_packets;
    [
        (
            now.live + now.time_wait <= now.records,
            "more live and resting than records",
        ),
        (now.setups <= now.records, "set-ups without records"),
        (
            now.half_read <= now.setups,
            "half-read heads without set-ups",
        ),
        (
            now.setups > 0 || now.buffered_bytes == 0,
            "bytes buffered for nobody",
        ),
        (
            live_connections + now.time_wait == now.records,
            "two counts of connections",
        ),
        (handled <= now.rx_packets, "more packets handled than came"),
        (now.spliced <= now.accepted, "more spliced than accepted"),
        (now.live <= now.spliced, "more live than ever spliced"),
        (
            now.spliced == now.live + ended,
            "spliced, but neither live nor ended",
        ),
        (
            active(now) <= now.records,
            "more connections to servers than records",
        ),
    ]
}

fn counters_rise(last: &Snapshot, now: &Snapshot) -> [Promise; 3] {
    [
        (
            now.rx_packets >= last.rx_packets,
            "the packet counter went back",
        ),
        (
            now.tx_packets >= last.tx_packets,
            "the sent counter went back",
        ),
        (
            now.drops.total() >= last.drops.total(),
            "the drop counter went back",
        ),
    ]
}

fn active(now: &Snapshot) -> u64 {
    let servers = now.pools.iter().flat_map(|pool| &pool.servers);
    servers.map(|server| u64::from(server.active)).sum()
}

/// Nothing may be left.
pub(super) fn check_empty(now: &Snapshot) {
    let left = [
        now.records,
        now.setups,
        now.half_read,
        now.buffered_bytes,
        now.time_wait,
        now.live,
    ];
    assert!(
        left.iter().all(|&count| count == 0),
        "a leak: {}",
        numbers(now)
    );
    assert_eq!(
        active(now),
        0,
        "servers are still counted as used: {}",
        numbers(now)
    );
}

fn numbers(now: &Snapshot) -> String {
    format!(
        "records {} live {} time_wait {} setups {} half_read {} buffered {} accepted {} spliced {} \
         ended {:?}",
        now.records,
        now.live,
        now.time_wait,
        now.setups,
        now.half_read,
        now.buffered_bytes,
        now.accepted,
        now.spliced,
        now.ended
    )
}
