//! Interfaces of a world of our own. Where namespaces cannot be had the test says so and passes.

use fairlead_netns::World;
use fairlead_netns::trial::{Needs, in_namespaces};
use fairlead_survey::{
    Neighbour, Offload, chain_at_egress, chains, is_seen_at_egress, link_elsewhere, links, mtu_to,
    offloads, way_to, xdp_features,
};

#[test]
fn a_veth_and_the_ways_through_it_are_described() {
    in_namespaces(
        "a_veth_and_the_ways_through_it_are_described",
        Needs::default(),
        |_| {},
        described,
    );
}

fn described() {
    let mut world = World::new().unwrap();
    let (left, right) = (world.host("left").unwrap(), world.host("right").unwrap());
    let link = world
        .link((&left, &["10.0.0.1/24"]), (&right, &["10.0.0.2/24"]))
        .unwrap();
    left.route("10.9.0.0/16", "10.0.0.2").unwrap();
    let (name, far) = (link.a, link.b);
    left.enter(|| {
        let links = links().unwrap();
        let found = links.iter().find(|one| one.name == name).unwrap();
        assert_eq!(found.kind.as_deref(), Some("veth"));
        assert!(found.is_up && found.is_ethernet && found.xdp.is_empty());
        assert!(found.rx_queues >= 1 && found.mtu == 1_500);
        // Its other end, in a namespace of its own, is asked from here.
        let other = link_elsewhere(found.elsewhere.unwrap(), found.below.unwrap()).unwrap();
        assert_eq!((&*other.name, other.below), (&*far, Some(found.index)));
        assert!(link_elsewhere(found.elsewhere.unwrap(), u32::MAX >> 1).is_err());
        assert_eq!(found.qdisc, "noqueue");
        assert!(!is_seen_at_egress(&name, found.index).unwrap());
        assert!(!matches!(chain_at_egress(), Ok(Some(_))));

        let offloads = offloads(&name).unwrap();
        assert_eq!(offloads.driver, "veth");
        assert!(offloads.on.iter().any(|(one, _)| *one == Offload::Gro));
        if let Some(features) = xdp_features(found.index).unwrap() {
            assert!(features.basic() && features.redirect());
        }

        let way = way_to("10.9.1.1".parse().unwrap()).unwrap().unwrap();
        assert_eq!(way.gateway, Some("10.0.0.2".parse().unwrap()));
        assert_eq!((way.interface, way.is_local), (found.index, false));
        assert_eq!(way_to("192.0.2.1".parse().unwrap()).unwrap(), None);
        assert!(
            way_to("10.0.0.1".parse().unwrap())
                .unwrap()
                .unwrap()
                .is_local
        );
        // Nothing filters in a namespace that is new; where the kernel cannot be asked it says so.
        if let Ok(chains) = chains() {
            assert!(chains.is_empty(), "{chains:?}");
        }
    })
    .unwrap();
    // The answer to a connection that nobody takes makes both neighbours known.
    let refused = left
        .enter(|| std::net::TcpStream::connect("10.0.0.2:9"))
        .unwrap();
    assert!(refused.is_err());
    let way = left.enter(|| way_to("10.0.0.2".parse().unwrap())).unwrap();
    assert_eq!(way.unwrap().unwrap().neighbour, Neighbour::Known);
}

#[test]
fn packets_may_be_as_long_as_the_route_says_or_else_the_interface() {
    in_namespaces(
        "packets_may_be_as_long_as_the_route_says_or_else_the_interface",
        Needs::default(),
        |_| {},
        measured,
    );
}

fn measured() {
    let mut world = World::new().unwrap();
    let (left, right) = (world.host("left").unwrap(), world.host("right").unwrap());
    let ends = (["10.0.0.1/24", "fd00::1/64"], ["10.0.0.2/24", "fd00::2/64"]);
    let link = world.link((&left, &ends.0), (&right, &ends.1)).unwrap();
    let device = &link.a;
    let longest = |address: &str| {
        let address = address.parse().unwrap();
        left.enter(|| mtu_to(address)).unwrap().unwrap()
    };
    for (near, far, net) in [
        ("10.0.0.2", "10.9.1.1", "10.9.0.0/16"),
        ("fd00::2", "fd09::1", "fd09::/64"),
    ] {
        assert_eq!((longest(near), longest(far)), (Some(1_500), None));
        let route = format!("route add {net} via {near} mtu 1400\n");
        left.ip(&route).unwrap();
        assert_eq!((longest(near), longest(far)), (Some(1_500), Some(1_400)));
        let route = format!("route change {net} via {near} mtu lock 1350\n");
        left.ip(&route).unwrap();
        assert_eq!(longest(far), Some(1_350));
        let route = format!("route change {net} via {near} mtu 9000\n");
        left.ip(&route).unwrap();
        assert_eq!(longest(far), Some(1_500));
        left.ip(&format!("route change {net} via {near}\n"))
            .unwrap();
        assert_eq!(longest(far), Some(1_500));
        left.ip(&format!("link set {device} mtu 1300\n")).unwrap();
        assert_eq!(longest(near), Some(1_300));
        left.ip(&format!("link set {device} mtu 1500\n")).unwrap();
    }
    // What IPv6 may send is a matter of its own.
    left.sysctl(&format!("net.ipv6.conf.{device}.mtu"), "1280")
        .unwrap();
    assert_eq!(
        (longest("fd00::2"), longest("10.0.0.2")),
        (Some(1_280), Some(1_500))
    );
}
