//! Tuples that come again, clients with two connections, records that are gone.

use fairlead_base::{Endpoint, Rng};
use fairlead_datapath::Side;
use fairlead_datapath::config::{Config, Source};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::TcpFlags;

use crate::rig::{
    Ends, Joined, REQUEST, Rig, http_config, payload, refusal, route, syn_ack, tcb_cache,
};

/// Two services; a client may have a connection to each from the same port.
fn two_services(source: Source) -> Config {
    let mut config = http_config();
    let mut other = config.services[0].clone();
    other.name = "other".into();
    other.listen = vec![endpoint("10.1.0.4:80")];
    config.services.push(other);
    for service in &mut config.services {
        service.source = source;
    }
    // One server for both where the source does not tell them apart would be one tuple.
    config.services[1].routes = vec![route(vec![], 1)];
    config
}

#[test]
fn one_client_on_two_services_reaches_both() {
    for source in [Source::Snat, Source::Transparent] {
        let ends = Ends::default();
        let rig = Rig::probed(two_services(source), &ends.server);
        let first = Joined::on(rig, &ends);
        let (server, vip) = (first.server, first.rig.vip);
        let of_first = first.by_client().timestamps(7_000, first.seen_ts).packet();
        let back_of_first = first.by_server().timestamps(8_000, 7_000).packet();
        let mut rig = first.rig;
        rig.vip = endpoint("10.1.0.4:80");
        let other_ends = Ends {
            client_isn: 5_000_000,
            server_isn: 6_000_000,
            ..Ends::default()
        };
        let mut second = Joined::on(rig, &other_ends);
        assert_ne!(second.server, server);
        let settings = tcb_cache("spec", 512, 2);
        let cached = second.rig.datapath.set_tcb_cache(Some(&settings), 42);
        cached.unwrap();
        for _ in 0..4 {
            let sent = second.rig.put_packet(of_first.clone());
            assert_eq!(sent[0].header.key.dst, server);
            let sent = second.rig.put_packet(back_of_first.clone());
            assert_eq!(sent[0].header.key.src, vip);
            let by_second = second.by_client().timestamps(7_000, second.seen_ts);
            let sent = second.rig.put_one(&by_second);
            assert_eq!(sent.header.key.dst, second.server);
            let by_server = second.by_server().timestamps(900_001, 7_000);
            let sent = second.rig.put_one(&by_server);
            assert_eq!(sent.header.key.src, second.rig.vip);
        }
        let cache = second.rig.datapath.tcb_cache_report().unwrap();
        assert!(cache.mismatches >= 7, "{source:?}: {cache:?}");
        assert_eq!(cache.strangers, 0);
    }
}

#[test]
fn a_record_that_is_gone_never_answers() {
    let mut joined = Joined::usual();
    let (of_client, of_server) = (joined.by_client(), joined.by_server());
    for segment in [&of_client, &of_server] {
        joined.rig.put_one(segment);
    }
    let reset = joined.by_client().flags(TcpFlags::RST);
    joined.rig.put_one(&reset);
    joined.rig.wait_ms(62_000);
    joined.rig.assert_empty();
    let before = joined.rig.datapath.snapshot();
    let mismatches = |rig: &Rig| rig.datapath.tcb_cache_report().unwrap().mismatches;
    let mismatches_before = mismatches(&joined.rig);
    for segment in [&of_client, &of_server] {
        // An answer at most, to whoever sent it.
        let reached = joined.rig.put(segment);
        let sender = tcp(&segment.packet()).key.src;
        assert!(reached.iter().all(|one| one.header.key.dst == sender));
    }
    let after = joined.rig.datapath.snapshot();
    assert_eq!(after.fast_packets, before.fast_packets);
    // The lines are still there; they are not believed.
    assert_eq!(mismatches(&joined.rig), mismatches_before + 2);

    // Another client takes the record's place in the table.
    let mut rig = joined.rig;
    let earlier = rig.client;
    rig.client = endpoint("192.0.2.8:41000");
    let mut other = Joined::on(rig, &Ends::default());
    let reached = other.rig.put(&of_client);
    assert!(reached.iter().all(|one| one.header.key.dst == earlier));
    let sent = other.rig.put_one(&other.by_client());
    assert_eq!(sent.header.key.dst, other.server);

    // The tuple comes again, with other numbers.
    let mut rig = other.rig;
    rig.client = earlier;
    let mut again = Joined::on(
        rig,
        &Ends {
            client_isn: 70_000_000,
            server_isn: 80_000_000,
            ..Ends::default()
        },
    );
    let sent = again.rig.put_one(&again.by_client().payload(b"mine"));
    assert_eq!(payload(&[sent]), b"mine");
    again.acknowledge(Side::Server);
}

/// While another server is sought, the record names one that it is not indexed under.
#[test]
fn a_server_that_was_given_up_does_not_answer_through_the_cache() {
    let late = |cached: bool| {
        let mut config = two_services(Source::Transparent);
        config.services[0].routes[0].retries = 0;
        let mut rig = Rig::probed(config, &Ends::default().server);
        if !cached {
            rig.datapath.set_tcb_cache(None, 0).unwrap();
        }
        let (_, sent) = rig.request(1_000, REQUEST);
        rig.put(&refusal(&sent[0]));
        let late = rig.put(&syn_ack(&sent[0], 1, &Ends::default().server));
        let bytes: Vec<_> = late.into_iter().map(|one| one.packet.bytes).collect();
        (bytes, rig.last, rig.state())
    };
    assert_eq!(late(true), late(false));
}

/// Few clients, two services, every packet of every connection at any time: with and without the
/// cache the same packets leave.
#[test]
fn reuse_at_random_is_the_same_with_and_without() {
    for seed in 0..12 {
        let sent = |scheme: Option<&str>| {
            let ends = Ends::default();
            let mut rig = Rig::probed(two_services(Source::Snat), &ends.server);
            let settings = scheme.map(|scheme| tcb_cache(scheme, 512, 2));
            let set = rig.datapath.set_tcb_cache(settings.as_ref(), seed);
            set.unwrap();
            script(rig, seed)
        };
        let plain = sent(None);
        assert!(plain.len() > 200, "{}", plain.len());
        for scheme in ["spec", "2-universal", "mod,bits=1"] {
            assert!(plain == sent(Some(scheme)), "seed {seed}, {scheme}");
        }
    }
}

fn script(mut rig: Rig, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::new();
    let mut known: Vec<(Endpoint, Endpoint)> = Vec::new();
    for _ in 0..400 {
        rig.client = endpoint("192.0.2.7:40000");
        rig.client.port += rng.below(3) as u16;
        rig.vip = endpoint(["10.1.0.3:80", "10.1.0.4:80"][rng.below(2) as usize]);
        let fresh = rig.state().is_none();
        let mut sent = Vec::new();
        if fresh {
            let isn = rng.next_u64() as u32;
            let (_, request) = rig.request(isn, REQUEST);
            for syn in request
                .iter()
                .filter(|one| one.header.flags == TcpFlags::SYN)
            {
                known.push((syn.header.key.dst, syn.header.key.src));
                let answer = syn_ack(syn, isn ^ 0x5555, &Ends::default().server);
                sent.extend(rig.put(&answer));
            }
            sent.extend(request);
        }
        // From either end, with numbers that are the connection's or an earlier one's.
        let flags = [TcpFlags::ACK, TcpFlags::FIN | TcpFlags::ACK, TcpFlags::RST];
        let flags = flags[(rng.below(8) as usize).min(3) % 3];
        for (server, source) in known.iter().rev().take(3).copied().collect::<Vec<_>>() {
            sent.extend(rig.put(&segment(server, source).flags(flags).seq(rng.below(9))));
        }
        sent.extend(rig.put(&rig.by_client().flags(flags).seq(rng.next_u64() as u32)));
        if rng.below(12) == 0 {
            rig.datapath.abort_all(rig.now);
            rig.fetch(&mut sent);
            sent.extend(rig.wait_ms(61_000));
        }
        sent.extend(rig.wait_ms(u64::from(rng.below(400))));
        out.extend(sent.into_iter().map(|one| one.packet.bytes));
    }
    out
}
