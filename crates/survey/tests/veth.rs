//! Interfaces of a world of our own. Where namespaces cannot be had the test says so and passes.

use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use fairlead_netns::World;
use fairlead_netns::trial::{Needs, in_namespaces, skip};
use fairlead_survey::{
    Neighbour, Offload, chain_at_egress, chains, is_seen_at_egress, link_elsewhere, links, mtu_to,
    offloads, program_name, route_to, tc_program_ids, xdp_features,
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
        assert!(!is_seen_at_egress(found.index).unwrap());
        assert!(!matches!(chain_at_egress(), Ok(Some(_))));

        let offloads = offloads(&name).unwrap();
        assert_eq!(offloads.driver, "veth");
        assert!(offloads.on.iter().any(|(one, _)| *one == Offload::Gro));
        if let Some(features) = xdp_features(found.index).unwrap() {
            assert!(features.basic() && features.redirect());
        }

        let way = route_to("10.9.1.1".parse().unwrap()).unwrap().unwrap();
        assert_eq!(way.gateway, Some("10.0.0.2".parse().unwrap()));
        assert_eq!((way.interface, way.is_local), (found.index, false));
        assert_eq!(route_to("192.0.2.1".parse().unwrap()).unwrap(), None);
        assert!(
            route_to("10.0.0.1".parse().unwrap())
                .unwrap()
                .unwrap()
                .is_local
        );
        // A new namespace has no filters; an old kernel reports an error.
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
    let way = left
        .enter(|| route_to("10.0.0.2".parse().unwrap()))
        .unwrap();
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

const FEW_RIGHTS: &str = "programs_are_seen_with_the_rights_that_a_service_has";

#[test]
fn programs_are_seen_with_the_rights_that_a_service_has() {
    in_namespaces(FEW_RIGHTS, Needs::default(), |_| {}, seen);
}

fn seen() {
    let mut world = World::new().unwrap();
    let (left, right) = (world.host("left").unwrap(), world.host("right").unwrap());
    let link = world.link((&left, &[]), (&right, &[])).unwrap();
    let looked_at = left.enter(|| {
        let links = links().unwrap();
        let index = links.iter().find(|one| one.name == link.a).unwrap().index;
        let attached = (attach(index, INGRESS), attach(index, EGRESS));
        let (Ok(ingress), Ok(_egress)) = attached else {
            return Err(format!("no program can be attached here: {attached:?}"));
        };
        // Rights are a thread's own.
        let look = move || {
            with_few_rights();
            let ids = tc_program_ids(index).unwrap();
            assert_eq!(ids.len(), 1);
            assert!(
                program_name(ids[0]).is_err(),
                "the name is readable without privileges"
            );
            assert!(is_seen_at_egress(index).unwrap());
        };
        std::thread::spawn(look).join().unwrap();
        drop(ingress);
        // The kernel may detach a program a moment after its link's descriptor was closed.
        let until = Instant::now() + Duration::from_secs(5);
        while !tc_program_ids(index).unwrap().is_empty() {
            assert!(Instant::now() < until, "the program is still attached");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    });
    if let Err(why) = looked_at.unwrap() {
        skip(FEW_RIGHTS, &why);
    }
}

const INGRESS: u32 = 46;
const EGRESS: u32 = 47;

/// The system call `bpf`, for a descriptor.
fn bpf(command: libc::c_long, attributes: &mut [u64; 16]) -> std::io::Result<OwnedFd> {
    let bytes = size_of_val(attributes);
    // SAFETY: attributes of that length, whose pointers lead to what lives through the call.
    let made = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), bytes) };
    if made < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

/// Attaches a program that does nothing by a link (TCX), which lives as long as the descriptor.
fn attach(interface: u32, place: u32) -> std::io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;

    const BPF_PROG_LOAD: libc::c_long = 5;
    const BPF_LINK_CREATE: libc::c_long = 28;
    /// `BPF_PROG_TYPE_SCHED_CLS`.
    const CLASSIFIER: u64 = 3;
    let pair = |first: u64, second: u64| first | second << 32;
    // r0 = 0; exit
    let steps: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let mut attributes = [0; 16];
    attributes[0] = pair(CLASSIFIER, steps.len() as u64);
    attributes[1] = steps.as_ptr() as u64;
    attributes[2] = c"GPL".as_ptr() as u64;
    let program = bpf(BPF_PROG_LOAD, &mut attributes)?;
    let mut attributes = [0; 16];
    attributes[0] = pair(program.as_raw_fd() as u64, u64::from(interface));
    attributes[1] = pair(u64::from(place), 0);
    bpf(BPF_LINK_CREATE, &mut attributes)
}

/// Leaves this thread what examples/fairlead.service gives: CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON
/// and CAP_BPF.
fn with_few_rights() {
    const RIGHTS: [u32; 4] = [12, 13, 38, 39];
    const VERSION_3: u32 = 0x2008_0522;
    let rights = RIGHTS.iter().fold(0, |all, one| all | 1u64 << one);
    let (low, high) = (rights as u32, (rights >> 32) as u32);
    let head = [VERSION_3, 0];
    // Effective, permitted and inheritable ones, twice 32 of each.
    let sets = [low, low, 0, high, high, 0];
    // SAFETY: a head and two sets of three words, as capset(2) reads them.
    let told = unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), sets.as_ptr()) };
    assert_eq!(told, 0, "{}", std::io::Error::last_os_error());
}
