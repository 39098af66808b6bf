//! Interfaces of a world of our own. Where namespaces cannot be had the test says so and passes.

use fairlead_netns::World;
use fairlead_netns::trial::{Needs, in_namespaces};
use fairlead_survey::{Neighbour, Offload, chains, links, offloads, way_to, xdp_features};

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
    let name = link.a;
    left.enter(|| {
        let links = links().unwrap();
        let found = links.iter().find(|one| one.name == name).unwrap();
        assert_eq!(found.kind.as_deref(), Some("veth"));
        assert!(found.is_up && found.is_ethernet && found.xdp.is_empty());
        assert!(found.rx_queues >= 1 && found.mtu == 1_500);

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
