//! What the kernel fast path does by itself, and what it leaves to the engine.

use std::collections::BTreeSet;
use std::time::Duration;

use fairlead_netns::Host;
use fairlead_netns::trial::skip;
use serde_json::Value;

use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, Switch, in_a_lab, kernel_mode, offloads,
    on_the_fast_path, web, web_service, xdp_is_asked_for,
};
use crate::vlan::show_tags;

/// A number of the kernel program's, or nothing where the engine works alone.
fn kernel(switch: &Switch, name: &str) -> Option<u64> {
    let status = switch.status();
    status.get("kernel")?.get(name).and_then(Value::as_u64)
}

/// One request on a connection of its own, which the server closes.
fn ask_and_close(lab: &Lab, family: Family) -> u64 {
    let mut connection = Connection::to(lab, family.virtual_at(80));
    let request = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    connection.send(request).unwrap();
    let response = connection.response(false).unwrap();
    assert_eq!(response.status, 200, "{response:?}");
    assert!(connection.rest().unwrap().is_empty(), "and then the end");
    let client = connection.local();
    drop(connection);
    u64::from(client.port())
}

/// Waits until all connections are over and nothing is counted any more.
fn settled(switch: &Switch) {
    switch.wait_for_count("live", 0);
    switch.wait_for_quiet();
}

#[test]
fn of_a_connection_per_request_the_engine_sees_the_head_alone() {
    const EACH: u64 = 40;
    on_the_fast_path(|lab| {
        let _servers = Family::BOTH
            .map(|family| Nginx::plain(lab, &format!("f{family:?}"), family.server_at(1, 8080)));
        for source in ["snat", "transparent"] {
            let services = web_service(source, "", "", |family| vec![family.server_at(1, 8080)]);
            let switch = Switch::start_in_kernel(lab, "", &services);
            // Neighbours are learnt by the first packets.
            for family in Family::BOTH {
                ask_and_close(lab, family);
            }
            settled(&switch);
            let before = kernel(&switch, "to_engine").expect("the kernel's counters");
            let engine = switch.count("engine_packets");
            let fins = kernel(&switch, "fins").unwrap();
            let joins = kernel(&switch, "joins").unwrap();
            let begun = kernel(&switch, "begun").unwrap();
            let finished = switch.status()["ended"]["finished"].as_u64().unwrap();
            let again = sent_again(lab);
            let mut clients = BTreeSet::new();
            for _ in 0..EACH {
                for family in Family::BOTH {
                    clients.insert((family == Family::V4, ask_and_close(lab, family)));
                }
            }
            settled(&switch);
            let status = switch.status();
            let count = 2 * EACH;
            // Where XDP has no room behind a SYN-ACK for the client's bytes, the engine answers it.
            let joined = kernel(&switch, "joins").unwrap() - joins;
            let way = status["fast_path"].as_str().unwrap();
            let (is_tc, is_generic) = (way.starts_with("tc"), way.starts_with("xdp-generic"));
            assert!(joined == count || !is_tc && joined < count, "{status}");
            // Nothing is left to generic XDP to join: servers' answers take the stack's way.
            assert!(joined == 0 || !is_generic, "{status}");
            let answers = if is_generic { 0 } else { count - joined };
            // Where requests come that quickly, the kernel begins some connections itself.
            let begun = kernel(&switch, "begun").unwrap() - begun;
            let left = kernel(&switch, "to_engine").unwrap() - before;
            // On a slow machine some packets come twice.
            let again = sent_again(lab) - again;
            let is_exact = |got, least| (least..=least + again).contains(&got);
            let told = || format!("heads: {left}, {again} sent again: {status}");
            assert!(is_exact(left, count - begun + answers), "{}", told());
            let seen = switch.count("engine_packets") - engine;
            let heads = 2 * count - begun - joined;
            assert!(is_exact(seen, heads), "{seen}, {}", told());
            assert_eq!(status["drops"]["transmit_failed"], 0, "{status}");
            assert!(
                kernel(&switch, "fins").unwrap() - fins >= 2 * count,
                "{status}"
            );
            let ended = status["ended"]["finished"].as_u64().unwrap() - finished;
            assert_eq!(ended, count, "{status}");
            // A client that draws the same port once more begins anew on what is at rest.
            let rests = clients.len() as u64;
            assert!(status["time_wait"].as_u64().unwrap() >= rests, "{status}");
        }
    });
}

/// Packets and bytes that the switch's interfaces have received and sent, with link headers.
fn carried(lab: &Lab) -> [(u64, u64); 2] {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
    let text = lab.switch.enter(read).expect("the namespace");
    let mut carried = [(0, 0); 2];
    for line in text.expect("counters").lines() {
        let Some((name, counts)) = line.split_once(':') else {
            continue;
        };
        if ![&lab.front.b, &lab.back.a].contains(&&name.trim().to_owned()) {
            continue;
        }
        let counts: Vec<u64> = counts
            .split_whitespace()
            .map(|count| count.parse().expect("a number"))
            .collect();
        for (sum, of) in carried.iter_mut().zip([&counts[..2], &counts[8..10]]) {
            sum.0 += of[1];
            sum.1 += of[0];
        }
    }
    carried
}

#[test]
fn packets_and_bytes_are_those_of_the_interfaces() {
    const EACH: u64 = 100;
    // Of neighbours, probes and routers.
    const OTHERS: (u64, u64) = (60, 6_000);
    const LINK_BYTES: u64 = 14;
    on_the_fast_path(|lab| {
        let _servers = Family::BOTH
            .map(|family| Nginx::plain(lab, &format!("c{family:?}"), family.server_at(1, 8080)));
        let services = web_service("snat", "", "", |family| vec![family.server_at(1, 8080)]);
        // What goes straight to the other end is not counted as sent on this side.
        let lines = "veth_redirect = \"queue\"";
        let switch = Switch::start_in_kernel(lab, lines, &services);
        let counted = || {
            settled(&switch);
            let of = |what: &str| {
                let count = |unit: &str| switch.count(&format!("{what}_{unit}"));
                (count("packets"), count("bytes"))
            };
            [of("rx"), of("tx")]
        };
        let (before, carried_before) = (counted(), carried(lab));
        for _ in 0..EACH {
            for family in Family::BOTH {
                ask_and_close(lab, family);
            }
        }
        let (after, carried_after) = (counted(), carried(lab));
        for direction in 0..2 {
            let grown = |now: (u64, u64), then: (u64, u64)| (now.0 - then.0, now.1 - then.1);
            let ours = grown(after[direction], before[direction]);
            let theirs = grown(carried_after[direction], carried_before[direction]);
            // With XDP or joined segments at an end, a veth counts there, and link headers of what
            // XDP sent alone.
            let least = theirs.1 - LINK_BYTES * theirs.0;
            let most = if xdp_is_asked_for() { theirs.1 } else { least };
            let is_near = ours.0.abs_diff(theirs.0) < OTHERS.0
                && (least.saturating_sub(OTHERS.1)..most + OTHERS.1).contains(&ours.1);
            assert!(is_near, "{direction}: {ours:?}, on the wire {theirs:?}");
        }
    });
}

/// A file of `/proc/net`, as a host sees it.
fn counters(host: &Host, file: &str) -> String {
    let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    host.enter(read).expect("the namespace").expect("counters")
}

/// A number of `/proc/net/snmp`.
fn snmp(host: &Host, protocol: &str, name: &str) -> u64 {
    let text = counters(host, "snmp");
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut fields = names.split(' ').zip(values.split(' '));
    let (_, value) = fields.find(|one| one.0 == name).expect("the number's name");
    value.parse().expect("a number")
}

/// Segments that clients and servers have sent more than once.
fn sent_again(lab: &Lab) -> u64 {
    let of = |host| snmp(host, "Tcp: ", "RetransSegs");
    of(&lab.client) + of(&lab.servers)
}

/// Packets that the switch's stack has forwarded, of both families.
fn forwarded(lab: &Lab) -> u64 {
    let text = counters(&lab.switch, "snmp6");
    let of_v6 = text
        .lines()
        .find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"));
    let of_v6: u64 = of_v6.expect("of IPv6").trim().parse().expect("a number");
    snmp(&lab.switch, "Ip: ", "ForwDatagrams") + of_v6
}

#[test]
fn what_the_engine_sends_does_not_pass_the_stack() {
    const EACH: u64 = 20;
    on_the_fast_path(|lab| {
        let _servers = Family::BOTH
            .map(|family| Nginx::plain(lab, &format!("w{family:?}"), family.server_at(1, 8080)));
        let services = web_service("snat", "", "", |family| vec![family.server_at(1, 8080)]);
        let switch = Switch::start_in_kernel(lab, "", &services);
        for family in Family::BOTH {
            ask_and_close(lab, family);
        }
        settled(&switch);
        let fast_path = switch.status()["fast_path"].to_string();
        if fast_path.contains("through the stack") {
            switch.wait_for_log("Linux 6.6 is needed");
            let test = "fastpath::what_the_engine_sends_does_not_pass_the_stack";
            return skip(
                test,
                "the short cut from the engine's device needs Linux 6.6",
            );
        }
        let (before, heads) = (forwarded(lab), switch.count("engine_packets"));
        let begun = kernel(&switch, "begun").unwrap();
        for _ in 0..EACH {
            for family in Family::BOTH {
                ask_and_close(lab, family);
            }
        }
        settled(&switch);
        let heads = switch.count("engine_packets") - heads;
        // Where requests come that quickly, the kernel begins some connections itself.
        let begun = kernel(&switch, "begun").unwrap() - begun;
        assert!(heads > 0 && heads + begun >= 2 * EACH, "{heads}, {begun}");
        // Under XDP what comes for the engine goes there by the stack.
        let to_engine = if fast_path.contains("tc on") {
            0
        } else {
            heads
        };
        assert_eq!(forwarded(lab) - before, to_engine, "{fast_path}");
    });
}

/// What a sender's device would complete is completed by the switch's, which knows the sum's start
/// from the packet alone; the receiver looks at it. Super-packets and single segments, both ways.
#[test]
fn checksums_that_are_completed_behind_the_switch_are_right() {
    let name = "fastpath::checksums_that_are_completed_behind_the_switch_are_right";
    on_the_fast_path(|lab| {
        if kernel_mode() != "tc" {
            return skip(name, "XDP leaves such packets to the engine");
        }
        let _servers = Family::BOTH.map(|family| {
            let serve = web("up", false, std::sync::Arc::default());
            Origin::start(lab, family.server_at(1, 8080), serve)
        });
        let services = web_service("snat", "", "", |family| vec![family.server_at(1, 8080)]);
        for device in [&lab.front.b, &lab.back.a] {
            offloads(&lab.switch, device, "off", "off").unwrap();
        }
        let switch = Switch::start_in_kernel(lab, "veth_redirect = \"queue\"", &services);
        for tso in ["on", "off"] {
            for (host, device) in [(&lab.client, &lab.front.a), (&lab.servers, &lab.back.b)] {
                offloads(host, device, "on", "off").unwrap();
                let mut command = host.command("ethtool");
                let command = command.args(["-K", device, "tso", tso, "gso", tso]);
                assert!(command.status().unwrap().success());
            }
            for family in Family::BOTH {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                let response = connection.ask("GET", "a.example", "/bytes/300000").unwrap();
                assert_eq!(response.body.len(), 300_000);
                let len = 300_000;
                let head = "PUT /up HTTP/1.1\r\nHost: a.example\r\n";
                let head = format!("{head}Content-Length: {len}\r\n\r\n");
                connection.send(head).unwrap();
                connection.send_stream(9, 0, len).unwrap();
                assert_eq!(connection.response(false).unwrap().status, 200);
            }
        }
        for host in [&lab.client, &lab.servers] {
            let mut command = host.command("cat");
            let told = command.arg("/proc/net/snmp").output().unwrap().stdout;
            let told = String::from_utf8(told).unwrap();
            let mut rows = told.lines().filter(|line| line.starts_with("Tcp:"));
            let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
            let mut both = names.split(' ').zip(values.split(' '));
            let wrong = both.find(|(name, _)| *name == "InCsumErrors").unwrap().1;
            assert_eq!(wrong, "0", "{told}");
        }
        assert!(switch.count("fast_packets") > 100, "{}", switch.status());
    });
}

/// A neighbour whose link address is old is still sent to, and asked whether it has that address:
/// or one that has changed it without a word would never be heard of again.
#[test]
fn a_neighbour_that_was_not_heard_of_for_long_is_asked() {
    let name = "fastpath::a_neighbour_that_was_not_heard_of_for_long_is_asked";
    on_the_fast_path(|lab| {
        if kernel_mode() != "tc" {
            return skip(name, "XDP has no way to have a neighbour asked");
        }
        let _servers = Family::BOTH
            .map(|family| Nginx::plain(lab, &format!("n{family:?}"), family.server_at(1, 8080)));
        let services = web_service("snat", "", "", |family| vec![family.server_at(1, 8080)]);
        let switch = Switch::start_in_kernel(lab, "veth_redirect = \"queue\"", &services);
        let (front, back) = (&*lab.front.b, &*lab.back.a);
        for family in Family::BOTH {
            let mut connection = Connection::to(lab, family.virtual_at(80));
            let mut ask = || {
                let response = connection.ask("GET", "a.example", "/").unwrap();
                assert_eq!(response.status, 200, "{response:?}");
            };
            ask();
            ask();
            let server = family.server_at(1, 80).ip();
            for (neighbour, device) in [(family.client(), front), (server, back)] {
                let one = format!("{neighbour} dev {device}");
                lab.switch
                    .ip(&format!("neigh change {one} nud stale\n"))
                    .unwrap();
                let before = kernel(&switch, "fast_packets").unwrap();
                ask();
                assert!(kernel(&switch, "fast_packets").unwrap() >= before + 2);
                let mut show = lab.switch.command("ip");
                let shown = show.args(["neigh", "show"]).args(one.split(' ')).output();
                let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
                assert!(
                    !shown.contains("STALE") && shown.contains("lladdr"),
                    "{shown}"
                );
            }
        }
    });
}

/// The engine learns of ends from the records alone: how, when, and how much was carried.
#[test]
fn ends_in_the_kernel_are_told_as_they_were() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let services = web_service("snat", "", "", |family| match family {
            Family::V4 => vec![Family::V4.server_at(1, 8080)],
            Family::V6 => Vec::new(),
        });
        let switch = Switch::start(lab, &services);
        let request = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for how in ["finished", "reset_by_client"] {
            let begun = std::time::Instant::now();
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            connection.send(request).unwrap();
            let response = connection.response(false).unwrap();
            assert_eq!(response.status, 200);
            let client = connection.local();
            std::thread::sleep(Duration::from_millis(1_500));
            if how == "finished" {
                drop(connection);
            } else {
                connection.abort();
            }
            let ended_ms = begun.elapsed().as_millis() as u64;
            let closed = switch.record(client, "closed");
            assert_eq!(closed.text("end"), how, "{closed:?}");
            assert_eq!(
                closed.number("bytes_in"),
                request.len() as u64,
                "{closed:?}"
            );
            let body = response.body.len() as u64;
            assert!(closed.number("bytes_out") > body, "{closed:?}");
            let waited_ms = begun.elapsed().as_millis() as u64;
            let lived_ms = closed.number("duration_ms");
            assert!((1_400..=waited_ms + 500).contains(&lived_ms), "{closed:?}");
            // Ends seen by the kernel are reported a moment later, with the kernel's time.
            if how == "reset_by_client" {
                assert!(lived_ms < ended_ms + 1_300, "{ended_ms}: {closed:?}");
            }
        }
    });
}

/// Whether this kernel has VLAN interfaces.
fn has_vlans(lab: &Lab) -> bool {
    let below = &lab.front.a;
    let made = lab.client.ip(&format!(
        "link add link {below} name probe type vlan id 9\n"
    ));
    made.is_ok() && lab.client.ip("link del probe\n").is_ok()
}

/// Puts the client and the servers behind VLANs: one tag, or two.
fn tag(lab: &Lab, tags: usize) {
    let ends = [
        (&lab.client, &lab.front.a, "10"),
        (&lab.switch, &lab.front.b, "1"),
        (&lab.switch, &lab.back.a, "254"),
        (&lab.servers, &lab.back.b, "1"),
    ];
    for (at, (host, device, number)) in ends.into_iter().enumerate() {
        let (side, mut below) = (7 + at / 2, device.clone());
        for depth in 1..=tags {
            let name = format!("tag{side}-{depth}");
            host.ip(&format!(
                "link add link {below} name {name} type vlan id {}\nlink set {name} up\n",
                100 * depth + side
            ))
            .unwrap();
            below = name;
        }
        host.ip(&format!(
            "addr add 10.{side}.0.{number}/24 dev {below}\n\
             addr add fd{side:02}::{number}/64 dev {below} nodad\n"
        ))
        .unwrap();
    }
    let routes = [
        (
            &lab.client,
            "10.1.0.3/32 via 10.7.0.1\nroute replace fd01:3::/64 via fd07::1",
        ),
        (
            &lab.switch,
            "10.2.0.1/32 via 10.8.0.1\nroute replace fd02::1/128 via fd08::1",
        ),
        (
            &lab.servers,
            "default via 10.8.0.254\nroute replace default via fd08::254",
        ),
    ];
    for (host, route) in routes {
        host.ip(&format!("route replace {route}\n")).unwrap();
    }
}

#[test]
fn connections_over_tagged_links_are_spliced_with_the_right_tags() {
    let name = "fastpath::connections_over_tagged_links_are_spliced_with_the_right_tags";
    for tags in [1, 2] {
        in_a_lab(|lab| {
            if !has_vlans(lab) {
                return skip(name, "this kernel has no interfaces of VLANs (8021q)");
            }
            if kernel_mode() == "xdp" {
                if tags == 2 {
                    return skip(name, "XDP in a driver serves no VLAN on a VLAN");
                }
                show_tags(lab);
            }
            tag(lab, tags);
            let _origins = Family::BOTH.map(|family| {
                let server = family.server_at(1, 8080);
                Origin::start(lab, server, web("origin", false, Default::default()))
            });
            let services = web_service("snat", "", "", |family| vec![family.server_at(1, 8080)]);
            let switch = Switch::start(lab, &services);
            for family in Family::BOTH {
                for _ in 0..3 {
                    let mut connection = Connection::to(lab, family.virtual_at(80));
                    let response = connection.ask("GET", "a.example", "/bytes/500000").unwrap();
                    assert_eq!((response.status, response.body.len()), (200, 500_000));
                }
            }
            if kernel(&switch, "fast_packets").is_some() {
                settled(&switch);
                let by_kernel = kernel(&switch, "fast_packets").unwrap();
                assert!(by_kernel > 100, "{}", switch.status());
            }
        });
    }
}
