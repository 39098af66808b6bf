//! `wire::classify`: arbitrary IP packets.

use fairlead_base::{DropReason, FlowKey};
use fairlead_testkit::oracle;
use fairlead_wire::{
    Classified, IcmpKind, IcmpPacket, SynOptions, TcpPacket, TcpRepr, build, classify, options,
};

use super::{Target, repair};
use crate::novelty::{note, note_size};

pub(super) const TARGET: Target = Target {
    name: "packet",
    about: "an IP packet: offsets lie inside, padding changes nothing, the summary can be emitted",
    run,
    bytes_max: 1_600,
    tokens: &[
        &[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6],
        &[0x45, 0, 0, 56, 0, 0, 0x40, 0, 64, 1],
        &[0x60, 0, 0, 0, 0, 20, 6, 64],
        &[0x60, 0, 0, 0, 0, 48, 58, 64],
        // Extension headers: hop-by-hop, routing, fragment, destination options, authentication.
        &[0, 0, 1, 4, 0, 0, 0, 0],
        &[43, 0, 1, 4, 0, 0, 0, 0],
        &[44, 0, 0, 0, 0, 0, 0, 1],
        &[60, 0, 1, 4, 0, 0, 0, 0],
        &[51, 4, 0, 0, 0, 0, 0, 0],
        &[3, 4, 0, 0, 0, 0, 5, 0x78],
        &[2, 0, 0, 0, 0, 0, 5, 0x78],
        &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 9],
        &[2, 4, 5, 0xb4],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
    ],
};

/// The first byte says what is put right in the packet, which is the rest.
fn run(input: &[u8]) {
    let Some((&what, packet)) = input.split_first() else {
        return;
    };
    let mut bytes = packet.to_vec();
    repair::repair(&mut bytes, what);
    let verdict = classify(&bytes);
    match &verdict {
        Ok(Classified::Tcp(tcp)) => check_tcp(&bytes, tcp),
        Ok(Classified::Icmp(icmp)) => check_icmp(&bytes, icmp),
        Err(reason) => check_reason(&bytes, *reason),
    }
    let mut padded = bytes.clone();
    padded.extend_from_slice(&[0xa5; 7]);
    let cut_short = matches!(verdict, Err(DropReason::Truncated));
    assert!(
        cut_short || classify(&padded) == verdict,
        "padding of the link changed the verdict"
    );
}

fn check_reason(bytes: &[u8], reason: DropReason) {
    note("packet.reason", reason as u64);
    let possible = matches!(
        reason,
        DropReason::Truncated
            | DropReason::BadIpHeader
            | DropReason::BadIpChecksum
            | DropReason::Fragment
            | DropReason::BadExtensionHeader
            | DropReason::BadTcpHeader
            | DropReason::BadTcpFlags
            | DropReason::NotTcp
            | DropReason::NotOurs
            | DropReason::BadIcmp
            | DropReason::BadSource
    );
    assert!(possible, "{reason} of {} bytes", bytes.len());
}

fn check_tcp(bytes: &[u8], tcp: &TcpPacket) {
    let (at, payload_at, end) = (
        usize::from(tcp.tcp_at),
        usize::from(tcp.payload_at),
        usize::from(tcp.end),
    );
    assert!(at + 20 <= payload_at && payload_at <= at + 60 && payload_at <= end);
    assert!(end <= bytes.len());
    assert_eq!(tcp.options(bytes).len(), payload_at - at - 20);
    assert_eq!(tcp.payload(bytes).len(), tcp.payload_len());
    assert_eq!(tcp.v4, tcp.key.src.addr.is_v4());
    assert_eq!(tcp.v4, tcp.key.dst.addr.is_v4());
    assert!(tcp.segment_len() as usize >= tcp.payload_len());
    assert_eq!(classify(&bytes[..end]), Ok(Classified::Tcp(*tcp)));
    note("packet.flags", u64::from(tcp.flags.0));
    note("packet.tcp_at", u64::from(tcp.tcp_at));
    note_size("packet.options", tcp.options(bytes).len());

    let segment = &bytes[at..end];
    let pseudo = oracle::pseudo_header(&tcp.key.src.addr, &tcp.key.dst.addr, segment.len() as u32);
    let whole = [&pseudo.to_be_bytes(), segment].concat();
    let valid = oracle::ones_complement_sum(&whole) == 0xffff;
    assert_eq!(tcp.checksum_valid(bytes), valid, "checksum of {}", tcp.key);

    let _ = options::timestamps(tcp.options(bytes));
    note(
        "packet.syn_options",
        u64::from(SynOptions::parse(tcp.options(bytes)).is_ok()),
    );
    check_emit(bytes, tcp);
}

/// The summary, written as a packet and read again.
fn check_emit(bytes: &[u8], tcp: &TcpPacket) {
    let mut out = Vec::new();
    TcpRepr {
        key: tcp.key,
        seq: tcp.seq,
        ack: tcp.ack,
        flags: tcp.flags,
        window: tcp.window,
        options: tcp.options(bytes),
        payload: tcp.payload(bytes),
        ttl: tcp.ttl,
    }
    .emit(&mut out);
    let Ok(Classified::Tcp(again)) = classify(&out) else {
        panic!("what was emitted is not TCP: {:?}", classify(&out));
    };
    assert!(again.checksum_valid(&out));
    let moved = TcpPacket {
        tcp_at: again.tcp_at,
        payload_at: again.payload_at,
        end: again.end,
        ..*tcp
    };
    assert_eq!(again, moved);
    assert_eq!(again.options(&out), tcp.options(bytes));
    assert_eq!(again.payload(&out), tcp.payload(bytes));
}

fn check_icmp(bytes: &[u8], icmp: &IcmpPacket) {
    let (at, end) = (usize::from(icmp.icmp_at), usize::from(icmp.end));
    assert!(at + 8 <= end && end <= bytes.len());
    assert_eq!(icmp.v4, icmp.src.is_v4());
    assert_eq!(icmp.v4, icmp.dst.is_v4());
    let kind = match icmp.kind {
        IcmpKind::EchoRequest => 0,
        IcmpKind::PacketTooBig { .. } => 1,
        IcmpKind::Unreachable { .. } => 2,
        IcmpKind::TimeExceeded => 3,
        IcmpKind::ParameterProblem => 4,
        IcmpKind::Other => 5,
    };
    note("packet.icmp", kind * 2 + u64::from(icmp.quote.is_some()));
    if let Some(quote) = icmp.quote {
        let (ip_at, tcp_at) = (usize::from(quote.ip_at), usize::from(quote.tcp_at));
        assert_eq!(ip_at, at + 8);
        assert!(ip_at + 20 <= tcp_at && quote.tcp_len >= 8);
        assert!(tcp_at + usize::from(quote.tcp_len) <= end);
        let FlowKey { src, dst } = quote.key;
        assert!(src.addr.is_v4() == icmp.v4 && dst.addr.is_v4() == icmp.v4);
        note_size("packet.quote", usize::from(quote.tcp_len));
    }
    if icmp.kind == IcmpKind::EchoRequest {
        let mut answer = Vec::new();
        build::emit_icmp_echo_reply(bytes, icmp, &mut answer);
        let Ok(Classified::Icmp(reply)) = classify(&answer) else {
            // Only an address from which nothing may come cannot answer.
            assert_eq!(classify(&answer), Err(DropReason::BadSource));
            return;
        };
        assert_eq!((reply.src, reply.dst), (icmp.dst, icmp.src));
        let (sent, came) = (usize::from(reply.icmp_at), at);
        assert_eq!(answer[sent + 4..], bytes[came + 4..end]);
    }
}
