//! `tcp::pairing`: the exported states of two arbitrary sockets.

use fairlead_base::{Address, Endpoint};
use fairlead_tcp::pairing::{Leg, Scales, Stamps};
use fairlead_tcp::{PAIR_ROUTE, Pairing, Side};

use super::Target;
use crate::novelty::note;

pub(super) const TARGET: Target = Target {
    name: "pairing",
    about: "the states of two sockets: one record or a reason; translation there and back",
    run,
    bytes_max: 2 * LEG_BYTES + 8,
    tokens: &[
        &[1, 0, 0, 0, 0x0f, 7, 7, 0],
        &[10, 0, 0, 1, 0, 80],
        &[0xff, 0xff, 0xff, 0xff],
        &[5, 0xb4, 5, 0xb4],
    ],
};

/// Bytes that [`leg`] reads.
const LEG_BYTES: usize = 56;

fn run(bytes: &[u8]) {
    let Some((client, rest)) = bytes.split_at_checked(LEG_BYTES) else {
        return;
    };
    let Some((server, rest)) = rest.split_at_checked(LEG_BYTES) else {
        return;
    };
    let (client, server) = (leg(client), leg(server));
    let pairing = match Pairing::of(&client, &server) {
        Ok(pairing) => pairing,
        Err(unlike) => return note("pairing.unlike", unlike as u64),
    };
    note("pairing.shift", pairing.second.client_shift as u64);
    for leg in [&client, &server] {
        assert_eq!((leg.state, leg.unread, leg.unacknowledged), (1, 0, 0));
        assert_ne!(leg.local, leg.peer);
    }
    let record = pairing.record(0, 0, 0, 0);
    assert_eq!(
        (record.route, record.bytes_in(), record.bytes_out()),
        (PAIR_ROUTE, 0, 0)
    );
    check_numbers(&client, &server, &pairing);
    let word = rest.first_chunk::<2>().copied().unwrap_or([0xff; 2]);
    check_windows(&client, &server, &pairing, u16::from_be_bytes(word));
}

/// Streams and clocks go on where the sockets were, and what is said of them comes back.
fn check_numbers(client: &Leg, server: &Leg, pairing: &Pairing) {
    let (there, back) = (
        pairing.second.of(Side::Client),
        pairing.second.of(Side::Server),
    );
    assert_eq!(client.rcv_nxt.wrapping_add(there.seq_add), server.write_seq);
    assert_eq!(server.write_seq.wrapping_add(back.ack_add), client.rcv_nxt);
    let server_next = server.rcv_nxt.wrapping_add(pairing.seq_delta);
    assert_eq!(server_next, client.write_seq);
    assert_eq!((there.ack_add, back.seq_add), (0, 0));
    if let (Some(a), Some(b)) = (client.timestamps, server.timestamps) {
        assert_eq!(a.peer.wrapping_add(there.ts_value_add), b.own);
        assert_eq!(b.own.wrapping_add(back.ts_echo_add), a.peer);
        assert_eq!(b.peer.wrapping_add(pairing.ts_delta), a.own);
    }
}

/// Nothing is promised beyond what was offered, and the widest window seen is no closed one.
fn check_windows(client: &Leg, server: &Leg, pairing: &Pairing, field: u16) {
    for (side, from, to) in [
        (Side::Client, client, server),
        (Side::Server, server, client),
    ] {
        let by = pairing.second.of(side);
        let sent = from.scales.map_or(0, |scales| scales.peer);
        let read = to.scales.map_or(0, |scales| scales.own);
        let promised = u64::from(by.window(field)) << read;
        assert!(promised <= u64::from(field) << sent);
        let widest = (from.window_max >> sent).min(0xffff) as u16;
        let is_fine = from.window_max >> sent <= 0xffff && widest > 0;
        assert!(
            !is_fine || read <= sent || by.window(widest) > 0,
            "{from:?}"
        );
    }
}

fn leg(bytes: &[u8]) -> Leg {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let long = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
    let flags = bytes[4];
    let end = |at: usize| {
        let four = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let mut wide = [0; 16];
        wide[12..].copy_from_slice(&four);
        let v6 = Address(wide);
        Endpoint {
            addr: if flags & 0x80 == 0 {
                Address::v4(four)
            } else {
                v6
            },
            port: word(at + 4),
        }
    };
    Leg {
        state: bytes[0],
        unread: u32::from(bytes[1]),
        unacknowledged: u32::from(bytes[2]),
        timestamps: (flags & 1 != 0).then(|| Stamps {
            own: long(20),
            peer: long(24),
        }),
        sack: flags & 2 != 0,
        scales: (flags & 4 != 0).then_some(Scales {
            peer: bytes[5],
            own: bytes[6],
        }),
        ecn: flags & 8 == 0,
        local: end(8),
        peer: end(14),
        rcv_nxt: long(28),
        write_seq: long(32),
        mss: word(36),
        own_mss: word(38),
        window: long(40),
        window_max: long(44),
        promised: long(48),
    }
}
