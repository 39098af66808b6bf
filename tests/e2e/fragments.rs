//! Clients whose packets arrive in fragments: no DF, and a link of 600 bytes on the way.

use std::io::Write;
use std::sync::{Arc, Mutex};

use fairlead_netns::{Host, Link, World};
use fairlead_testkit::stream::Digest;

use crate::harness::{
    Connection, Family, Lab, Origin, Switch, in_a_lab, on_the_fast_path, prefix_in, show, web,
    web_service,
};

const BYTES: u64 = 300_000;

#[test]
fn uploads_in_fragments_get_through_in_mode_engine() {
    in_a_lab(|lab| gets_through(lab, "engine"));
}

#[test]
fn uploads_in_fragments_get_through_in_mode_tc() {
    on_the_fast_path(|lab| gets_through(lab, "tc"));
}

#[test]
fn uploads_in_fragments_get_through_in_mode_xdp_generic() {
    on_the_fast_path(|lab| gets_through(lab, "xdp-generic"));
}

fn gets_through(lab: &Lab, mode: &str) {
    let far = Far::new(lab);
    let _origin = Origin::start(
        lab,
        Family::V4.server_at(1, 8080),
        web("origin", false, Arc::new(Mutex::new(Vec::new()))),
    );
    for source in ["snat", "transparent"] {
        let services = web_service(source, "", "", |family| match family {
            Family::V4 => vec![family.server_at(1, 8080)],
            Family::V6 => Vec::new(),
        });
        let switch = Switch::start_with(lab, &format!("{}{services}", prefix_in(mode, "")));
        let mut connection = Connection::open_from(&far.client, Family::V4.virtual_at(80)).unwrap();
        let head = format!("PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {BYTES}\r\n\r\n");
        connection.stream.write_all(head.as_bytes()).unwrap();
        connection.send_stream(3, 0, BYTES).unwrap();
        let response = connection.response(false).unwrap();
        assert_eq!(response.text(), show(&Digest::of_stream(3, BYTES)));
        let status = switch.status();
        assert!(switch.count("reassembled") > 100, "{status}");
        for reason in ["fragment", "fragment_limit", "fragment_overlap"] {
            assert_eq!(switch.drops(reason), 0, "{status}");
        }
    }
}

/// A client behind a router, whose way to the switch takes 600 bytes.
struct Far {
    client: Host,
    _router: Host,
    _links: [Link; 2],
}

impl Far {
    fn new(lab: &Lab) -> Self {
        let mut world = World::new().unwrap();
        let (router, client) = (world.host("router").unwrap(), world.host("far").unwrap());
        let here = world.link(
            (&lab.switch, &["10.4.0.254/24"]),
            (&router, &["10.4.0.1/24"]),
        );
        let there = world.link((&router, &["10.3.0.254/24"]), (&client, &["10.3.0.1/24"]));
        let (here, there) = (here.unwrap(), there.unwrap());
        router.sysctl("net.ipv4.ip_forward", "1").unwrap();
        // What it sends, others may cut: no DF.
        client.sysctl("net.ipv4.ip_no_pmtu_disc", "1").unwrap();
        // Without super-packets, which a router does not cut into fragments.
        for (host, device) in [(&client, &there.b), (&router, &there.a), (&router, &here.b)] {
            crate::harness::offloads(host, device, "off", "off").unwrap();
        }
        let small = format!(
            "route add 10.1.0.3/32 via 10.4.0.254 dev {} mtu lock 600\n",
            here.b
        );
        router.ip(&small).unwrap();
        router.route("0.0.0.0/0", "10.4.0.254").unwrap();
        client.route("0.0.0.0/0", "10.3.0.254").unwrap();
        lab.switch.route("10.3.0.0/24", "10.4.0.1").unwrap();
        Self {
            client,
            _router: router,
            _links: [here, there],
        }
    }
}
