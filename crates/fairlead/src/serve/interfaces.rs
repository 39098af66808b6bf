//! Interfaces of the kernel fast path: which, and what speaks against XDP on them.

use std::collections::BTreeMap;

use fairlead_bpf_loader::{Mode as Way, Pins};
use fairlead_survey::{Link, Offload, links, offloads, program_name, way_to};

use crate::config::{Mode, Settings};

/// Drivers whose packets never were on a wire: super-packets, and checksums that are not complete.
const VIRTUAL: [&str; 6] = [
    "veth",
    "virtio_net",
    "tun",
    "bridge",
    "xen_netfront",
    "hv_netvsc",
];

/// The interfaces that the program is attached to: those that the configuration names, or those
/// on the ways to services' addresses and to servers.
///
/// # Errors
/// When there is none, or the kernel does not say.
pub(crate) fn interfaces(settings: &Settings) -> Result<Vec<String>, String> {
    let named = &settings.fastpath.interfaces;
    if !named.is_empty() {
        return Ok(named.clone());
    }
    let all = links().map_err(|error| format!("interfaces cannot be listed: {error}"))?;
    let derived = derive(settings, &all);
    if derived.is_empty() {
        return Err("no Ethernet interface is up".into());
    }
    Ok(derived.into_keys().collect())
}

/// Settles which interfaces are used where the configuration names none, and says what each is for:
/// before routes to our own device hide those to services' addresses.
pub(super) fn settle(settings: &mut Settings) {
    let needed = settings.fastpath.mode != Mode::Engine && settings.fastpath.interfaces.is_empty();
    if needed && let Ok(all) = links() {
        let derived = derive(settings, &all);
        for (name, why) in &derived {
            tracing::info!("interface {name}: {why}");
        }
        settings.fastpath.interfaces = derived.into_keys().collect();
    }
}

/// Names of interfaces, each with what lies behind it. Those that an earlier run has pinned count
/// where its routes are there still, or it runs.
fn derive(settings: &Settings, all: &[Link]) -> BTreeMap<String, String> {
    let earlier = Pins::seen_from_outside(&settings.instance.name);
    let earlier = earlier.map(|pins| pins.interfaces()).unwrap_or_default();
    let is_own = |link: &Link| link.name == settings.fastpath.device;
    let usable =
        |link: &&Link| link.is_up && link.is_ethernet && !link.is_loopback && !is_own(link);
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut unknown = None;
    let switch = &settings.switch;
    let servers = switch.pools.iter().flat_map(|pool| &pool.servers);
    let servers = servers.map(|server| server.endpoint.addr.to_ip());
    let services = switch.services.iter().flat_map(|service| &service.listen);
    let services = services.map(|listen| listen.addr.to_ip());
    for address in servers.chain(services) {
        let way = way_to(address).ok().flatten().filter(|way| !way.is_local);
        let through = way.and_then(|way| all.iter().find(|link| link.index == way.interface));
        match through.filter(usable) {
            Some(link) => {
                let towards = || format!("on the way to {address}");
                found.entry(link.name.clone()).or_insert_with(towards);
            }
            None if through.is_some_and(is_own) && !earlier.is_empty() => {
                for link in all.iter().filter(|link| earlier.contains(&link.index)) {
                    let why = || "used by an earlier run".to_owned();
                    found.entry(link.name.clone()).or_insert_with(why);
                }
            }
            None => unknown = unknown.or(Some(address)),
        }
    }
    // Who can tell where its packets come in?
    if let Some(address) = unknown {
        for link in all.iter().filter(usable) {
            let why = || format!("no route tells where packets for {address} come in");
            found.entry(link.name.clone()).or_insert_with(why);
        }
    }
    found
}

/// Why XDP would lose packets of this interface, as far as that is known.
pub(crate) fn super_packets(interface: &str) -> Option<String> {
    let found = offloads(interface).ok()?;
    carries_super_packets(&found.driver, found.is_on(Offload::Lro))
        .map(|why| format!("{interface} {why}"))
}

fn carries_super_packets(driver: &str, lro: bool) -> Option<String> {
    if VIRTUAL.contains(&driver) {
        return Some(format!("is of driver {driver} and carries super-packets"));
    }
    lro.then(|| "joins received segments (`ethtool -K … lro off`)".to_owned())
}

/// Why XDP in the driver would not know this interface's frames.
pub(crate) fn bundles(interface: &str) -> Option<String> {
    is_bond(&links().ok()?, interface).then(|| {
        format!(
            "{interface} is a bond, which has XDP programs run at its members, where frames are \
             not {interface}'s"
        )
    })
}

fn is_bond(links: &[Link], interface: &str) -> bool {
    let mut links = links.iter();
    links.any(|link| link.name == interface && link.kind.as_deref() == Some("bond"))
}

/// Why XDP would take tagged frames of this interface for others, as far as that is known.
pub(crate) fn hidden_tags(interface: &str) -> Option<String> {
    let links = links().ok()?;
    let vlan = vlan_on(&links, interface)?;
    let hidden = offloads(interface).ok()?.is_on(Offload::RxVlan);
    hidden.then(|| {
        format!(
            "{interface} hides from XDP the tags of frames for {vlan} \
             (`ethtool -K {interface} rxvlan off`)"
        )
    })
}

/// A VLAN's interface that stands on this one.
fn vlan_on<'a>(links: &'a [Link], interface: &str) -> Option<&'a str> {
    let below = links.iter().find(|link| link.name == interface)?.index;
    let is_vlan = |link: &&Link| link.kind.as_deref() == Some("vlan") && link.below == Some(below);
    links.iter().find(is_vlan).map(|link| link.name.as_str())
}

/// Whose XDP program stands where ours would: said, and never replaced.
pub(crate) fn other_program(interface: &str, way: Way, pins: Option<&Pins>) -> Option<String> {
    if way == Way::Tc {
        return None;
    }
    let link = links()
        .ok()?
        .into_iter()
        .find(|one| one.name == interface)?;
    let ours = |id: u32| pins.is_some_and(|pins| pins.has_program(link.index, id));
    let other = link.xdp.iter().find(|program| !ours(program.id))?;
    let name = program_name(other.id).unwrap_or_default();
    let by = match fairlead_survey::loaded_by(other.id) {
        Some(user) => format!(", loaded by user {user}"),
        None => String::new(),
    };
    Some(format!(
        "{interface} has another XDP program (number {}, \"{name}\"{by}), which is not replaced; \
         `ip link set dev {interface} xdp off` removes it",
        other.id
    ))
}

#[cfg(test)]
mod tests {
    use super::super::vlans::carriers;
    use super::*;

    #[test]
    fn xdp_is_for_packets_that_were_on_a_wire() {
        assert!(carries_super_packets("veth", false).is_some());
        assert!(carries_super_packets("virtio_net", false).is_some());
        assert_eq!(carries_super_packets("ixgbe", false), None);
        let joined = carries_super_packets("ixgbe", true).unwrap();
        assert!(joined.contains("lro off"));
    }

    #[test]
    fn a_bond_and_a_vlan_on_it_are_not_for_xdp_in_the_driver() {
        let link = |index, name: &str, kind: Option<&str>, below: Option<u32>| Link {
            index,
            name: name.into(),
            kind: kind.map(Into::into),
            below,
            vlan: below.map(|_| fairlead_survey::Vlan {
                protocol: 0x8100,
                id: 7,
            }),
            ..Link::default()
        };
        let links = [
            link(2, "eth0", None, None),
            link(3, "bond0", Some("bond"), None),
            link(4, "bond0.7", Some("vlan"), Some(3)),
            link(5, "eth0.7", Some("vlan"), Some(2)),
        ];
        let bundled = |way, name: &str| {
            let at = carriers(&links, way, &[name.to_owned()]);
            is_bond(&links, &at[0])
        };
        for name in ["bond0", "bond0.7"] {
            assert!(bundled(Way::XdpNative, name), "{name}");
        }
        for name in ["eth0", "eth0.7", "gone"] {
            assert!(!bundled(Way::XdpNative, name), "{name}");
        }
    }

    #[test]
    fn vlans_are_found_on_the_interface_that_they_stand_on() {
        let link = |index, name: &str, kind: &str, below| Link {
            index,
            name: name.into(),
            kind: Some(kind.into()),
            below,
            ..Link::default()
        };
        let links = [
            link(2, "eth0", "", None),
            link(3, "eth1", "", None),
            // The other end of a veth can have any number, in another namespace.
            link(4, "veth0", "veth", Some(3)),
            link(5, "eth0.7", "vlan", Some(2)),
        ];
        assert_eq!(vlan_on(&links, "eth0"), Some("eth0.7"));
        assert_eq!(vlan_on(&links, "eth1"), None);
        assert_eq!(vlan_on(&links, "eth0.7"), None);
        assert_eq!(vlan_on(&links, "eth9"), None);
    }
}
