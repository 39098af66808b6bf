//! Interfaces of VLANs, on both sides of the switch.

use fairlead_netns::trial::skip;
use fairlead_netns::{Host, Signal};

use crate::harness::{
    Connection, Family, Lab, Origin, Switch, kernel_mode, on_the_fast_path, prefix_in, web,
    web_service,
};

/// Puts what is on a host's end of a link on a VLAN's interface there. False: this kernel has none.
fn tag(host: &Host, device: &str, name: &str, number: u16, addresses: &[&str]) -> bool {
    host.vlan(device, name, number, addresses).unwrap()
}

/// A lab whose links carry tagged frames only, if there can be one.
fn is_tagged(lab: &Lab) -> bool {
    let client = ["10.1.0.10/24", "fd01::10/64"];
    let front = ["10.1.0.2/24", "fd01::2/64"];
    let back = ["10.2.0.254/24", "fd02::fe/64"];
    let servers = ["10.2.0.1/24", "fd02::1/64"];
    if kernel_mode() == "xdp" {
        show_tags(lab);
    }
    if !tag(&lab.client, &lab.front.a, "tagged", 5, &client) {
        return false;
    }
    assert!(tag(&lab.switch, &lab.front.b, "front5", 5, &front));
    assert!(tag(&lab.switch, &lab.back.a, "back7", 7, &back));
    assert!(tag(&lab.servers, &lab.back.b, "tagged", 7, &servers));
    let through_front =
        "route replace 10.1.0.3/32 via 10.1.0.2\nroute replace fd01:3::/64 via fd01::2\n";
    lab.client.ip(through_front).unwrap();
    // As on a network that a virtual address is in.
    lab.switch.ip("route add fd01:3::/64 dev front5\n").unwrap();
    let through_back = "route replace 0.0.0.0/0 via 10.2.0.254\nroute replace ::/0 via fd02::fe\n";
    lab.servers.ip(through_back).unwrap();
    true
}

/// Programs in a driver see tags that are in the frame; a veth's are beside it where both ends
/// permit.
pub(crate) fn show_tags(lab: &Lab) {
    for (host, device) in [
        (&lab.client, &lab.front.a),
        (&lab.switch, &lab.front.b),
        (&lab.switch, &lab.back.a),
        (&lab.servers, &lab.back.b),
    ] {
        let mut command = host.command("ethtool");
        command.args(["-K", device, "rxvlan", "off", "txvlan", "off"]);
        // A card may know none of both.
        command.output().expect("running ethtool");
    }
}

#[test]
fn tagged_frames_are_forwarded_by_the_kernel_between_vlans() {
    let name = "vlan::tagged_frames_are_forwarded_by_the_kernel_between_vlans";
    on_the_fast_path(|lab| {
        if !is_tagged(lab) {
            return skip(name, "this kernel has no interfaces of VLANs");
        }
        let servers = [Family::V4, Family::V6].map(|family| {
            let serve = web("pages", false, std::sync::Arc::default());
            Origin::start(lab, family.server_at(1, 8080), serve)
        });
        let services = web_service("transparent", "", "", |family| {
            vec![family.server_at(1, 8080)]
        });
        let mode = kernel_mode();
        let config = format!("{}{services}", prefix_in(&mode, ""));
        let (front, back) = match mode.as_str() {
            "xdp" => (
                format!("front5 (at {})", lab.front.b),
                format!("back7 (at {})", lab.back.a),
            ),
            _ => ("front5".to_owned(), "back7".to_owned()),
        };
        let mut connections = Vec::new();
        // The second run finds routes to its own device in the place of those to clients.
        for run in 0..2 {
            let mut switch = Switch::start_with(lab, &config);
            let state = switch.status()["fast_path"].as_str().unwrap().to_owned();
            let wanted = format!("{mode} on {back}, {front}");
            assert!(state.starts_with(&wanted), "{state} in run {run}");
            for family in [Family::V4, Family::V6] {
                connections.push(Connection::to(lab, family.virtual_at(80)));
            }
            for connection in &mut connections {
                let before = switch.count("fast_packets");
                for path in ["/", "/bytes/1000000"] {
                    let response = connection.ask("GET", "a.example", path).unwrap();
                    assert_eq!((response.status, response.server()), (200, "pages"));
                }
                assert!(switch.count("fast_packets") > before + 20);
            }
            switch.signal(Signal::Kill);
            assert_eq!(switch.wait_for_end(), None, "by a signal");
        }
        drop(servers);
    });
}
