//! A smaller MTU between switch and servers that see the clients' own addresses: who complains of a
//! packet that is too long does so to the client, which has sent none that is quoted there.
//!
//! No test here goes to a server under the switch's own address before: the client would learn the
//! MTU from that, and keep it.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_netns::{Host, Link, World};
use fairlead_testkit::stream::Digest;
use fairlead_wire::build;

use crate::harness::{
    Connection, Family, Lab, Origin, PATIENCE, Switch, binary, in_a_lab, offloads,
    on_the_fast_path, prefix_in, show, web, web_service,
};

/// What passes.
const MTU: u32 = 1_300;
const UP: u64 = 2 << 20;
/// Address of a server with connections that bypass the switch.
const ASIDE: u16 = 8_090;

#[test]
fn a_router_towards_transparent_servers_is_heard_in_mode_engine() {
    in_a_lab(|lab| hears_the_router(lab, "engine"));
}

#[test]
fn a_router_towards_transparent_servers_is_heard_in_mode_tc() {
    on_the_fast_path(|lab| hears_the_router(lab, "tc"));
}

#[test]
fn a_router_towards_transparent_servers_is_heard_in_mode_xdp() {
    on_the_fast_path(|lab| hears_the_router(lab, "xdp"));
}

#[test]
fn a_router_towards_transparent_servers_is_heard_in_mode_xdp_generic() {
    on_the_fast_path(|lab| hears_the_router(lab, "xdp-generic"));
}

/// Uploads get through, and so does what others send to the same server by the same ways: to them
/// the router's words come as they were.
fn hears_the_router(lab: &Lab, mode: &str) {
    let far = Far::new(lab);
    if mode.starts_with("xdp") {
        as_on_wires(lab, Some(&far));
    }
    let _origins = Family::BOTH.map(|family| origins(lab, far_server(family, 8080), false));
    let _switch = Switch::start_with(lab, &configuration(mode, far_server, ""));
    for family in Family::BOTH {
        let before = Connection::to(lab, family.virtual_at(80));
        let before = segment_bytes(&before);
        assert!(before > MTU, "the handshake knew of it: {before}");
        put(lab, family.virtual_at(80), family, 0);
        // What the client was told is good for whatever it sends there.
        let after = segment_bytes(&Connection::to(lab, family.virtual_at(80)));
        assert!(after < MTU, "{after} bytes a segment");
        put(lab, far_server(family, ASIDE), family, 0);
    }
}

#[test]
fn a_smaller_mtu_of_the_switch_towards_transparent_servers_is_kept_in_mode_engine() {
    in_a_lab(|lab| keeps_its_own_mtu(lab, "engine"));
}

#[test]
fn a_smaller_mtu_of_the_switch_towards_transparent_servers_is_kept_in_mode_tc() {
    on_the_fast_path(|lab| keeps_its_own_mtu(lab, "tc"));
}

#[test]
fn a_smaller_mtu_of_the_switch_towards_transparent_servers_is_kept_in_mode_xdp() {
    on_the_fast_path(|lab| keeps_its_own_mtu(lab, "xdp"));
}

#[test]
fn a_smaller_mtu_of_the_switch_towards_transparent_servers_is_kept_in_mode_xdp_generic() {
    on_the_fast_path(|lab| keeps_its_own_mtu(lab, "xdp-generic"));
}

/// The interface's, a route's, and one that is set while the switch runs; with heads longer than a
/// segment, which the switch itself sends where a PROXY header comes before them.
fn keeps_its_own_mtu(lab: &Lab, mode: &str) {
    let (device, near) = (&lab.back.a, |family: Family, port| {
        family.server_at(1, port)
    });
    if mode.starts_with("xdp") {
        as_on_wires(lab, None);
    }
    for preamble in [false, true] {
        let extra = if preamble {
            "proxy_protocol = \"v2\""
        } else {
            ""
        };
        let _origins = Family::BOTH.map(|family| origins(lab, near(family, 8080), preamble));
        let configuration = configuration(mode, near, extra);
        // Without super-packets, a link takes in none that is longer than what it sends.
        if !mode.starts_with("xdp") {
            let set = |mtu| lab.switch.ip(&format!("link set {device} mtu {mtu}\n"));
            set(MTU).unwrap();
            let _switch = Switch::start_with(lab, &configuration);
            goes_up_at_once(lab);
            set(1_500).unwrap();
        }
        let routes = |verb: &str, mtu: &str| {
            let hosts = ["10.2.0.1/32", "fd02::1/128"];
            let line = |host| format!("route {verb} {host} dev {device}{mtu}\n");
            lab.switch.ip(&hosts.map(line).concat()).unwrap();
        };
        routes("add", &format!(" mtu lock {MTU}"));
        let switch = Switch::start_with(lab, &configuration);
        goes_up_at_once(lab);
        drop(switch);
        routes("del", "");
        let _switch = Switch::start_with(lab, &configuration);
        for family in Family::BOTH {
            let free = segment_bytes(&Connection::to(lab, family.virtual_at(80)));
            assert!(free > MTU, "{free} bytes a segment");
        }
        routes("add", &format!(" mtu lock {MTU}"));
        for family in Family::BOTH {
            let until = Instant::now() + PATIENCE;
            while segment_bytes(&Connection::to(lab, family.virtual_at(80))) > MTU {
                assert!(Instant::now() < until, "nobody asked for the MTU again");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        goes_up_at_once(lab);
        routes("del", "");
    }
}

/// The handshake says how long segments may be, and bodies go up.
fn goes_up_at_once(lab: &Lab) {
    for family in Family::BOTH {
        let connection = Connection::to(lab, family.virtual_at(80));
        let headers = if family == Family::V4 { 40 } else { 60 };
        assert!(
            segment_bytes(&connection) <= MTU - headers,
            "{connection:?}"
        );
        put(lab, family.virtual_at(80), family, 0);
        put(lab, family.virtual_at(80), family, 6_000);
    }
}

#[test]
fn a_router_towards_clients_is_heard_by_transparent_servers_in_mode_engine() {
    in_a_lab(|lab| servers_hear_the_router(lab, "engine"));
}

#[test]
fn a_router_towards_clients_is_heard_by_transparent_servers_in_mode_tc() {
    on_the_fast_path(|lab| servers_hear_the_router(lab, "tc"));
}

#[test]
fn a_router_towards_clients_is_heard_by_transparent_servers_in_mode_xdp_generic() {
    on_the_fast_path(|lab| servers_hear_the_router(lab, "xdp-generic"));
}

/// Downloads get through, by whatever reverse-path filter there is for all interfaces: servers hear
/// of the smaller MTU, from a router and from the switch's machine. Each time by another address of
/// the client: what a server has heard of one it keeps.
fn servers_hear_the_router(lab: &Lab, mode: &str) {
    let mut world = World::new().unwrap();
    let router = world.host("router").unwrap();
    let here = (&lab.switch, &["10.4.0.254/24", "fd04::fe/64"][..]);
    let here = world.link(here, (&router, &["10.4.0.1/24", "fd04::1/64"]));
    let there = (&router, &["10.3.0.254/24", "fd03::fe/64"][..]);
    let there = world.link(there, (&lab.client, &["10.3.0.10/24", "fd03::10/64"]));
    let (here, there) = (here.unwrap(), there.unwrap());
    router.sysctl("net.ipv4.ip_forward", "1").unwrap();
    router.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    for (host, to, via) in [
        (&lab.switch, "10.3.0.0/24", "10.4.0.1"),
        (&lab.switch, "fd03::/64", "fd04::1"),
        (&router, "0.0.0.0/0", "10.4.0.254"),
        (&router, "::/0", "fd04::fe"),
    ] {
        host.route(to, via).unwrap();
    }
    let near = |family: Family, port| family.server_at(1, port);
    let _origins = Family::BOTH.map(|family| origins(lab, near(family, 8080), false));
    for (number, (filter, of_router)) in [("0", true), ("2", true), ("0", false), ("2", false)]
        .into_iter()
        .enumerate()
    {
        let all = "net.ipv4.conf.all.rp_filter";
        lab.switch.sysctl(all, filter).unwrap();
        let clients = [
            format!("10.3.0.{}", 20 + number),
            format!("fd03::{}", 20 + number),
        ];
        let narrow = |verb: &str, host: &Host, device: &str, mtu: &str| {
            let [v4, v6] = &clients;
            let vias = match of_router {
                true => [String::new(), String::new()],
                false => [" via 10.4.0.1".to_owned(), " via fd04::1".to_owned()],
            };
            let to = format!("dev {device}{mtu}");
            let lines = format!(
                "route {verb} {v4}/32{} {to}\nroute {verb} {v6}/128{} {to}\n",
                vias[0], vias[1]
            );
            host.ip(&lines).unwrap();
        };
        let own = &there.b;
        lab.client
            .ip(&format!(
                "addr add {}/24 dev {own}\naddr add {}/64 dev {own} nodad\n\
                 route replace 10.1.0.3/32 via 10.3.0.254 src {}\n\
                 route replace fd01:3::3/128 via fd03::fe src {}\n",
                clients[0], clients[1], clients[0], clients[1]
            ))
            .unwrap();
        let (host, device) = match of_router {
            true => (&router, &there.a),
            false => (&lab.switch, &here.a),
        };
        narrow("add", host, device, &format!(" mtu lock {MTU}"));
        let switch = Switch::start_with(lab, &configuration(mode, near, ""));
        for family in Family::BOTH {
            let mut connection = Connection::to(lab, family.virtual_at(80));
            assert!(clients.contains(&connection.local().ip().to_string()));
            let response = connection.ask("GET", "a.example", &format!("/bytes/{UP}"));
            assert_eq!(response.unwrap().digest, Digest::of_stream(UP, UP));
        }
        drop(switch);
        narrow("del", host, device, "");
    }
}

/// Whoever forges a router's word about an answer to a ping, which the kernel believes without
/// having been asked, makes no client's segments shorter.
#[test]
fn what_a_stranger_claims_of_the_way_is_not_what_the_switch_keeps_to() {
    in_a_lab(|lab| {
        let near = |family: Family, port| family.server_at(1, port);
        let (server, own) = ("10.2.0.1", "10.2.0.254");
        let [from, to] = [server, own].map(|text| text.parse::<IpAddr>().unwrap());
        let (from, to) = (from.into(), to.into());
        let (mut answer, mut forged) = (Vec::new(), Vec::new());
        build::emit_icmp_echo_request(&to, &from, 1, 1, b"", &mut answer);
        answer[20] = 0; // echo reply
        build::emit_icmp_too_big(&from, &to, 700, &answer, &mut forged);
        let socket = lab.servers.enter(|| {
            let raw = socket2::Protocol::from(255); // the header is ours
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(raw))
        });
        let to: SocketAddr = format!("{own}:0").parse().unwrap();
        socket
            .unwrap()
            .unwrap()
            .send_to(&forged, &to.into())
            .unwrap();
        let believed = || {
            let output = lab
                .switch
                .command("ip")
                .args(["route", "get", server])
                .output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        let until = Instant::now() + PATIENCE;
        while !believed().contains("mtu 700") {
            assert!(Instant::now() < until, "the kernel says: {}", believed());
            std::thread::sleep(Duration::from_millis(5));
        }
        let _origins = Family::BOTH.map(|family| origins(lab, near(family, 8080), false));
        let _switch = Switch::start_with(lab, &configuration("engine", near, ""));
        let bytes = segment_bytes(&Connection::to(lab, Family::V4.virtual_at(80)));
        assert!(bytes > MTU, "{bytes} bytes a segment");
    });
}

#[test]
fn without_the_right_to_hear_routers_it_says_so_and_serves() {
    in_a_lab(|lab| {
        let near = |family: Family, port| family.server_at(1, port);
        let _origins = Family::BOTH.map(|family| origins(lab, near(family, 8080), false));
        let configuration = configuration("engine", near, "");
        let without = |command: &mut Command| {
            command.arg("--bounding-set=-net_raw").arg(binary());
        };
        let mut command = lab.switch.command("setpriv");
        without(&mut command);
        let switch = Switch::run(lab, &configuration, command, &[]).ready();
        switch.wait_for_log("needs the capability CAP_NET_RAW");
        put(lab, Family::V4.virtual_at(80), Family::V4, 0);
        drop(switch);
        let path = lab.file("doctor.toml", configuration);
        let told = |command: &mut Command| {
            let output = command.args(["doctor", "--config"]).arg(&path).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        let mut command = lab.switch.command("setpriv");
        without(&mut command);
        let said = told(&mut command);
        assert!(said.contains("no CAP_NET_RAW"), "{said}");
        let said = told(&mut lab.switch.command(&binary().to_string_lossy()));
        assert!(said.contains("CAP_NET_RAW: can read ICMP errors"), "{said}");
    });
}

/// Sends a body up, after a head that is so much longer, on a new connection whose peer sees the
/// client's own address.
fn put(lab: &Lab, target: SocketAddr, family: Family, more: usize) {
    let mut connection = Connection::to(lab, target);
    let cookie = "c".repeat(more);
    let head = format!(
        "PUT /up HTTP/1.1\r\nHost: a.example\r\nCookie: {cookie}\r\nContent-Length: {UP}\r\n\r\n"
    );
    connection.send(head).unwrap();
    connection.send_stream(3, 0, UP).unwrap();
    let response = connection.response(false).unwrap();
    assert_eq!(response.text(), show(&Digest::of_stream(3, UP)));
    let own = connection.local().to_string();
    assert_eq!(
        response.header("x-saw"),
        Some(&*own),
        "a client's own address"
    );
    assert_eq!(connection.local().ip(), family.client());
}

/// The most that the client sends in a segment, options apart.
fn segment_bytes(connection: &Connection) -> u32 {
    let socket = socket2::SockRef::from(&connection.stream);
    socket.tcp_mss().expect("the option TCP_MAXSEG")
}

/// A server's origin at `address`, and one aside.
fn origins(lab: &Lab, address: SocketAddr, preamble: bool) -> [Origin; 2] {
    let nobody = || Arc::new(Mutex::new(Vec::new()));
    let aside = SocketAddr::new(address.ip(), ASIDE);
    [(address, preamble), (aside, false)]
        .map(|(address, preamble)| Origin::start(lab, address, web("origin", preamble, nobody())))
}

fn configuration(mode: &str, server: impl Fn(Family, u16) -> SocketAddr, pool: &str) -> String {
    let services = web_service("transparent", "", pool, |family| vec![server(family, 8080)]);
    format!("{}{services}", prefix_in(mode, ""))
}

/// The servers' host by way of a router, whose way on takes less than what comes to it.
pub(crate) struct Far {
    router: Host,
    /// Between switch (a) and router (b).
    here: Link,
    /// Between router (a) and servers (b).
    there: Link,
}

pub(crate) fn far_server(family: Family, port: u16) -> SocketAddr {
    match family {
        Family::V4 => ([10, 3, 0, 1], port).into(),
        Family::V6 => ([0xfd03, 0, 0, 0, 0, 0, 0, 1], port).into(),
    }
}

impl Far {
    pub(crate) fn new(lab: &Lab) -> Self {
        let mut world = World::new().unwrap();
        let router = world.host("router").unwrap();
        let here = (&lab.switch, &["10.4.0.254/24", "fd04::fe/64"][..]);
        let here = world.link(here, (&router, &["10.4.0.1/24", "fd04::1/64"]));
        let there = (&router, &["10.3.0.254/24", "fd03::fe/64"][..]);
        let there = world.link(there, (&lab.servers, &["10.3.0.1/24", "fd03::1/64"]));
        let (here, there) = (here.unwrap(), there.unwrap());
        router.sysctl("net.ipv4.ip_forward", "1").unwrap();
        router.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
        for (host, to, via) in [
            (&lab.switch, "10.3.0.0/24", "10.4.0.1"),
            (&lab.switch, "fd03::/64", "fd04::1"),
            (&router, "0.0.0.0/0", "10.4.0.254"),
            (&router, "::/0", "fd04::fe"),
        ] {
            host.route(to, via).unwrap();
        }
        lab.client.route("10.3.0.0/24", "10.1.0.2").unwrap();
        lab.client.route("fd03::/64", "fd01::2").unwrap();
        let small = ["10.3.0.1/32", "fd03::1/128"]
            .map(|host| format!("route add {host} dev {} mtu {MTU}\n", there.a));
        router.ip(&small.concat()).unwrap();
        let back = "route replace 0.0.0.0/0 via 10.3.0.254\nroute replace ::/0 via fd03::fe\n";
        lab.servers.ip(back).unwrap();
        Self {
            router,
            here,
            there,
        }
    }
}

/// As the links of [`Lab`] are when the tests are to run on XDP.
pub(crate) fn as_on_wires(lab: &Lab, far: Option<&Far>) {
    let mut ends = vec![
        ((&lab.client, &lab.front.a), (&lab.switch, &lab.front.b)),
        ((&lab.servers, &lab.back.b), (&lab.switch, &lab.back.a)),
    ];
    if let Some(far) = far {
        ends.push(((&far.router, &far.here.b), (&lab.switch, &far.here.a)));
        ends.push(((&lab.servers, &far.there.b), (&far.router, &far.there.a)));
    }
    for (off, near) in ends {
        offloads(off.0, off.1, "off", "on").unwrap();
        offloads(near.0, near.1, "off", "off").unwrap();
    }
}
