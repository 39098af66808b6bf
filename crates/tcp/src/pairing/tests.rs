use fairlead_base::{Address, Rng};

use super::*;
use crate::record::Side;

fn at(last: u8, port: u16) -> Endpoint {
    Endpoint {
        addr: Address::v4([10, 0, 0, last]),
        port,
    }
}

fn leg(local: Endpoint, peer: Endpoint) -> Leg {
    Leg {
        local,
        peer,
        state: ESTABLISHED,
        rcv_nxt: 5_000,
        write_seq: 9_000,
        unread: 0,
        unacknowledged: 0,
        timestamps: Some(Stamps {
            own: 100,
            peer: 700,
        }),
        sack: true,
        scales: Some(Scales { peer: 7, own: 7 }),
        ecn: false,
        mss: 1_460,
        own_mss: 1_460,
        window: 64_000,
        window_max: 64_000,
        promised: 64_000,
    }
}

fn legs() -> (Leg, Leg) {
    let client = leg(at(1, 80), at(9, 40_000));
    let server = Leg {
        rcv_nxt: 0xffff_ff00,
        write_seq: 3,
        timestamps: Some(Stamps {
            own: 4_000_000_000,
            peer: 50,
        }),
        ..leg(at(1, 50_000), at(2, 8_080))
    };
    (client, server)
}

#[test]
fn streams_go_on_where_the_sockets_were() {
    let (client, server) = legs();
    let pairing = Pairing::of(&client, &server).unwrap();
    let record = pairing.record(4, 5, 6, 77);
    let second = pairing.second;
    // The client's next byte is the next that the proxy would have written to the server.
    let client_next = SeqAfter(record.client_nxt, second.seq);
    assert_eq!(client_next.sum(), server.write_seq);
    let server_next = SeqAfter(record.server_nxt, record.seq_delta);
    assert_eq!(server_next.sum(), client.write_seq);
    // And each clock goes on.
    let stamps = (client.timestamps.unwrap(), server.timestamps.unwrap());
    assert_eq!(stamps.0.peer.wrapping_add(second.ts), stamps.1.own);
    assert_eq!(stamps.1.peer.wrapping_add(record.ts_delta), stamps.0.own);
    assert_eq!((record.listen, record.server, record.nat_addr), (4, 5, 6));
    assert_eq!(record.nat_port, 50_000);
    assert_eq!((record.route, record.state), (PAIR_ROUTE, State::Spliced));
    assert_eq!((record.bytes_in(), record.bytes_out()), (0, 0));
    assert_eq!(record.flags, flag::TIMESTAMPS);
}

struct SeqAfter(u32, u32);

impl SeqAfter {
    fn sum(&self) -> u32 {
        self.0.wrapping_add(self.1)
    }
}

/// A change to the legs, and what it is refused as.
type Case = (fn(&mut Leg, &mut Leg), Result<(), Unlike>);

const CASES: &[Case] = &[
    (|_, _| {}, Ok(())),
    (|c, _| c.state = 8, Err(Unlike::State)),
    (|_, s| s.state = 0, Err(Unlike::State)),
    (|c, _| c.unread = 1, Err(Unlike::QueueNotEmpty)),
    (|_, s| s.unacknowledged = 1, Err(Unlike::QueueNotEmpty)),
    (
        |_, s| {
            s.local.addr = Address([1; 16]);
            s.peer.addr = Address([2; 16]);
        },
        Err(Unlike::Family),
    ),
    (|c, s| *s = *c, Err(Unlike::SameSocket)),
    (
        |c, s| (s.local, s.peer) = (c.peer, c.local),
        Err(Unlike::SameSocket),
    ),
    (|c, _| c.timestamps = None, Err(Unlike::Timestamps)),
    (|_, s| s.timestamps = None, Err(Unlike::Timestamps)),
    (|c, s| (c.timestamps, s.timestamps) = (None, None), Ok(())),
    (|c, _| c.sack = false, Err(Unlike::Sack)),
    (|c, s| (c.sack, s.sack) = (false, false), Ok(())),
    (|_, s| s.ecn = true, Err(Unlike::Ecn)),
    (|c, s| (c.ecn, s.ecn) = (true, true), Ok(())),
    // The client may send 1,460 bytes, and the server takes 1,400.
    (|_, s| s.mss = 1_400, Err(Unlike::Mss)),
    (|c, _| c.mss = 1_400, Err(Unlike::Mss)),
    // The other way it is only less than what could be.
    (|_, s| s.own_mss = 1_400, Ok(())),
    // A window of 64,000 has 3 units of 2^14, and 7 of 2^13.
    (
        |c, _| c.scales = Some(Scales { peer: 7, own: 14 }),
        Err(Unlike::Scale),
    ),
    (|c, _| c.scales = Some(Scales { peer: 7, own: 13 }), Ok(())),
    // Sent in units that large there is nothing to round.
    (
        |c, s| {
            s.scales = Some(Scales { peer: 14, own: 7 });
            c.scales = Some(Scales { peer: 7, own: 14 });
        },
        Ok(()),
    ),
    (|c, _| c.scales = None, Ok(())),
    (
        |c, _| c.scales = Some(Scales { peer: 15, own: 0 }),
        Err(Unlike::Inconsistent),
    ),
    (|c, _| c.peer.port = 0, Err(Unlike::Inconsistent)),
    (
        |c, _| c.peer.addr = Address([0; 16]),
        Err(Unlike::Inconsistent),
    ),
    (
        |c, _| c.peer.addr = Address([1; 16]),
        Err(Unlike::Inconsistent),
    ),
    (|c, _| c.local = c.peer, Err(Unlike::Inconsistent)),
    (|c, _| c.mss = 0, Err(Unlike::Inconsistent)),
    (|_, s| s.own_mss = 0, Err(Unlike::Inconsistent)),
    (|_, s| s.window = 64_001, Err(Unlike::Inconsistent)),
    (|_, s| s.promised = u32::MAX, Err(Unlike::Inconsistent)),
];

#[test]
fn every_refusal_has_its_cases() {
    for (at, (change, expected)) in CASES.iter().enumerate() {
        let (mut client, mut server) = legs();
        change(&mut client, &mut server);
        let outcome = Pairing::of(&client, &server).map(|_| ());
        assert_eq!(outcome, *expected, "case {at}");
    }
    for unlike in Unlike::ALL {
        assert!(CASES.iter().any(|case| case.1 == Err(unlike)), "{unlike:?}");
    }
}

#[test]
fn what_the_proxy_promised_beyond_the_ends_is_counted() {
    let (mut client, mut server) = legs();
    (client.promised, server.window) = (64_000, 60_000);
    (server.promised, client.window) = (10, 0);
    assert_eq!(Pairing::of(&client, &server).unwrap().narrowed, [4_000, 10]);
}

/// Whatever scales both legs have: an end sees at most the window that the other one offered.
#[test]
fn no_window_is_shown_wider_than_it_is() {
    let mut rng = Rng::new(8);
    let mut paired = 0;
    for _ in 0..20_000 {
        let (mut client, mut server) = legs();
        let scales = |rng: &mut Rng| {
            let [peer, own] = [0; 2].map(|_| rng.below(15) as u8);
            (rng.below(8) != 0).then_some(Scales { peer, own })
        };
        (client.scales, server.scales) = (scales(&mut rng), scales(&mut rng));
        client.window_max = rng.below(1 << 20) | 0xffff;
        let Ok(pairing) = Pairing::of(&client, &server) else {
            continue;
        };
        paired += 1;
        for (side, from, to) in [
            (Side::Client, client.scales, server.scales),
            (Side::Server, server.scales, client.scales),
        ] {
            let window = rng.next_u64() as u16;
            let offered = u64::from(window) << from.map_or(0, |one| one.peer);
            let shown = pairing.second.of(side).window(window);
            let promised = u64::from(shown) << to.map_or(0, |one| one.own);
            assert!(promised <= offered, "{pairing:?}");
        }
    }
    assert!(paired > 5_000, "{paired}");
}
