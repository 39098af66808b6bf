//! Packets of servers that belong to no connection of the switch (decision 0025).

use fairlead_base::{DropReason, Endpoint, FlowKey};
use fairlead_datapath::config::{Config, Source};
use fairlead_datapath::{Side, State};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::TcpFlags;

use crate::rig::{Ends, Joined, Rig, http_config, linux, v6_config};

fn transparent() -> [Config; 2] {
    [http_config(), v6_config()].map(|mut config| {
        config.services[0].source = Source::Transparent;
        config
    })
}

/// The first server, and somebody who uses it without the switch.
fn ends(config: &Config) -> (Endpoint, Endpoint) {
    let server = config.pools[0].servers[0].endpoint;
    let client = match server.addr.is_v4() {
        true => "192.0.2.9:41000",
        false => "[2001:db8::9]:41000",
    };
    (server, endpoint(client))
}

#[test]
fn no_record_what_a_server_says_to_others_goes_on_as_it_was() {
    for config in transparent() {
        let (server, client) = ends(&config);
        let mut rig = Rig::probed(config, &linux(1));
        let syn_ack = TcpFlags::SYN | TcpFlags::ACK;
        let from_server = segment(server, client).seq(7).ack(9);
        for said in [
            from_server.clone().flags(syn_ack).syn_options(&linux(3)),
            from_server.clone().payload(b"data from before the start"),
            from_server.clone().flags(TcpFlags::RST),
            from_server.clone().flags(TcpFlags::FIN | TcpFlags::ACK),
        ] {
            let sent = rig.put_one(&said);
            assert_eq!(sent.packet.bytes, said.ttl(63).packet().bytes);
        }
        let now = rig.datapath.snapshot();
        assert_eq!((now.handed_back, now.records, now.drops.total()), (4, 0, 0));
    }
}

#[test]
fn no_record_a_super_packet_of_a_server_stays_one() {
    let [config, _] = transparent();
    let (server, client) = ends(&config);
    let mut rig = Rig::probed(config, &linux(1));
    let said = segment(server, client).payload([5; 4_000]);
    let said = said.super_packet(1_000);
    let passed = rig.put_raw(said.clone()).expect("it is passed on");
    assert_eq!((passed.gso, passed.checksum), (said.gso, said.checksum));
    assert_eq!(passed.bytes[20..], said.bytes[20..]);
}

/// However often it should come round.
#[test]
fn no_record_a_packet_of_a_server_ends_with_its_hops() {
    for config in transparent() {
        let (server, client) = ends(&config);
        let mut rig = Rig::probed(config, &linux(1));
        let mut packet = segment(server, client).ttl(5).packet();
        for _ in 0..4 {
            packet = rig.put_raw(packet).expect("it is passed on");
        }
        assert_eq!(tcp(&packet).ttl, 1);
        assert!(rig.put_raw(packet).is_none());
        rig.assert_dropped(DropReason::TtlExpired);
        assert_eq!(rig.datapath.snapshot().handed_back, 4);
    }
}

/// Damage is not passed on, and nobody but servers is.
#[test]
fn no_record_what_is_not_from_a_servers_port_or_is_for_us_is_not_passed_on() {
    let [config, _] = transparent();
    let (server, client) = ends(&config);
    let mut rig = Rig::probed(config, &linux(1));
    let mut damaged = segment(server, client).payload(b"data").packet();
    *damaged.bytes.last_mut().unwrap() ^= 1;
    assert!(rig.put_raw(damaged).is_none());
    rig.assert_dropped(DropReason::BadTcpChecksum);
    let other_port = endpoint("10.2.0.1:8082");
    rig.put_none(&segment(other_port, client));
    rig.assert_dropped(DropReason::NotOurs);
    rig.put_none(&segment(client, server));
    rig.assert_dropped(DropReason::NotOurs);
    // A source address of the switch, and one that it listens on: no record means no connection.
    for own in ["100.64.0.1:5000", "10.1.0.3:5000"] {
        let reset = rig.put_one(&segment(server, endpoint(own)).ack(77));
        assert_eq!(reset.header.flags, TcpFlags::RST);
        assert_eq!(reset.header.key.dst, server);
    }
    assert_eq!(rig.datapath.snapshot().handed_back, 0);
}

/// Beside others the switch's own connection goes on, and what is late for it is not handed back
/// while it rests.
#[test]
fn time_wait_a_late_packet_of_the_server_is_not_handed_back_but_later_it_is() {
    let [config, _] = transparent();
    let (_, other) = ends(&config);
    let mut joined = Joined::with(config, &Ends::default());
    let (server, client) = (joined.server, joined.rig.client);
    assert_eq!(joined.source, client, "the server sees the client itself");
    let aside = segment(server, other).payload(b"others'");
    assert_eq!(joined.rig.put_one(&aside).header.key.dst, other);
    let late_key = FlowKey {
        src: server,
        dst: client,
    };
    let late = || segment(server, client).seq(1).ack(1).payload(b"late");
    for side in [Side::Client, Side::Server] {
        joined.close(side);
        joined.acknowledge(side.other());
    }
    assert_eq!(joined.state(), State::TimeWait);
    let before = joined.rig.datapath.snapshot().handed_back;
    for sent in joined.rig.put(&late()) {
        assert_ne!(sent.header.key, late_key, "it is of a record");
    }
    assert_eq!(joined.rig.datapath.snapshot().handed_back, before);
    joined.rig.wait_ms(300_000);
    joined.rig.put_one(&late());
    assert_eq!(joined.rig.datapath.snapshot().handed_back, before + 1);
}
