//! Clients that use a server itself, past the switch, although it sees its clients' own addresses
//! and this machine is their router.

use std::sync::{Arc, Mutex};

use fairlead_testkit::stream::Digest;

use crate::harness::{
    Connection, Family, Lab, Origin, Switch, in_a_lab, on_the_fast_path, prefix_in, show, web,
    web_service,
};

const BYTES: u64 = 4 << 20;

#[test]
fn connections_past_the_switch_go_on_in_mode_engine() {
    in_a_lab(|lab| goes_on(lab, "engine"));
}

#[test]
fn connections_past_the_switch_go_on_in_mode_tc() {
    on_the_fast_path(|lab| goes_on(lab, "tc"));
}

#[test]
fn connections_past_the_switch_go_on_in_mode_xdp_generic() {
    on_the_fast_path(|lab| goes_on(lab, "xdp-generic"));
}

/// Old ones and new ones, beside the switch's own, by whatever filter there is for all interfaces.
fn goes_on(lab: &Lab, mode: &str) {
    let _origins = Family::BOTH.map(|family| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        Origin::start(lab, family.server_at(1, 8080), web("origin", false, seen))
    });
    lab.client.route("10.2.0.0/24", "10.1.0.2").unwrap();
    lab.client.route("fd02::/64", "fd01::2").unwrap();
    let direct = |family: Family| Connection::to(lab, family.server_at(1, 8080));
    for filter in ["0", "2"] {
        let all = "net.ipv4.conf.all.rp_filter";
        lab.switch.sysctl(all, filter).unwrap();
        for device in [&lab.front.b, &lab.back.a] {
            let own = format!("net.ipv4.conf.{device}.rp_filter");
            lab.switch.sysctl(&own, filter).unwrap();
        }
        let mut old = Family::BOTH.map(direct);
        for one in &mut old {
            moves(one);
        }
        let services = web_service("transparent", "", "", |family| {
            vec![family.server_at(1, 8080)]
        });
        let switch = Switch::start_with(lab, &format!("{}{services}", prefix_in(mode, "")));
        for (family, old) in Family::BOTH.into_iter().zip(&mut old) {
            let mut by_the_switch = Connection::to(lab, family.virtual_at(80));
            moves(&mut by_the_switch);
            moves(old);
            moves(&mut direct(family));
            moves(&mut by_the_switch);
            // Nobody listens there, and the server says so itself.
            let nobody = Connection::open(lab, family.server_at(2, 8080));
            let refused = nobody.unwrap_err().kind();
            assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
        }
        let status = switch.status();
        assert_eq!(status["accepted"], 2, "{status}");
        assert!(switch.count("handed_back") > 100, "{status}");
        assert_eq!(switch.drops("no_connection"), 0, "{status}");
        assert_eq!(switch.drops("ttl_expired"), 0, "{status}");
        drop(switch);
        for one in &mut old {
            moves(one);
        }
    }
}

/// Bytes both ways, of which none is lost, with the client's own address.
fn moves(connection: &mut Connection) {
    let head = format!("PUT /up HTTP/1.1\r\nHost: a.example\r\nContent-Length: {BYTES}\r\n\r\n");
    connection.send(head).unwrap();
    connection.send_stream(3, 0, BYTES).unwrap();
    let response = connection.response(false).unwrap();
    assert_eq!(response.text(), show(&Digest::of_stream(3, BYTES)));
    let own = connection.local().to_string();
    assert_eq!(response.header("x-saw"), Some(&*own));
    let path = format!("/bytes/{BYTES}");
    let response = connection.ask("GET", "a.example", &path).unwrap();
    assert_eq!(response.digest, Digest::of_stream(BYTES, BYTES));
}
