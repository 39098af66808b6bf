//! Selects the interfaces of the kernel fast path, and checks what rules out XDP on them.

use std::collections::BTreeMap;

use fairlead_bpf_loader::{Mode as AttachMode, Pins};
use fairlead_survey::{Link, Offload, links, offloads, program_name, route_to};

use crate::config::{Mode, Settings};

/// Drivers of virtual interfaces: they deliver super-packets and incomplete checksums.
const VIRTUAL: [&str; 6] = [
    "veth",
    "virtio_net",
    "tun",
    "bridge",
    "xen_netfront",
    "hv_netvsc",
];

/// The interfaces that the program is attached to: the configured ones, or those with routes to the
/// services' addresses and to servers.
///
/// # Errors
/// There is no such interface, or the kernel cannot be queried.
pub(crate) fn interfaces(settings: &Settings) -> Result<Vec<String>, String> {
    let named = &settings.fastpath.interfaces;
    if !named.is_empty() {
        return Ok(named.clone());
    }
    let all = links().map_err(|error| format!("cannot list interfaces: {error}"))?;
    let derived = derive(settings, &all);
    if derived.is_empty() {
        return Err("no Ethernet interface is up".into());
    }
    Ok(derived.into_keys().collect())
}

/// Selects interfaces if none are configured, and logs the reason for each. Must run before routes
/// to our own device hide those to the services' addresses.
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

/// Interface names with the reason for each. Interfaces that an earlier run pinned count while its
/// routes still exist or it is running.
fn derive(settings: &Settings, all: &[Link]) -> BTreeMap<String, String> {
    let earlier = Pins::seen_from_outside(&settings.instance.name);
    let earlier = earlier.map(|pins| pins.interfaces()).unwrap_or_default();
    let is_own = |link: &Link| link.name == settings.network.device;
    let usable =
        |link: &&Link| link.is_up && link.is_ethernet && !link.is_loopback && !is_own(link);
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut unknown = None;
    let switch = &settings.switch;
    let servers = switch.pools.iter().flat_map(|pool| &pool.servers);
    let servers = servers.map(|server| server.endpoint.addr.to_ip());
    let services = switch.services.iter().flat_map(|service| &service.listen);
    let services = services.map(|listen| listen.addr.to_ip());
    let watched = switch.watched.iter().map(|one| one.addr.to_ip());
    for address in servers.chain(services).chain(watched) {
        let route = route_to(address)
            .ok()
            .flatten()
            .filter(|route| !route.is_local);
        let through = route.and_then(|route| all.iter().find(|link| link.index == route.interface));
        match through.filter(usable) {
            Some(link) => {
                let towards = || format!("on the route to {address}");
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
    // Without a route, packets for the address may arrive on any interface.
    if let Some(address) = unknown {
        for link in all.iter().filter(usable) {
            let why = || format!("no route to {address}, so its packets may arrive here");
            found.entry(link.name.clone()).or_insert_with(why);
        }
    }
    found
}

/// Why XDP would lose packets on this interface, if known.
pub(crate) fn super_packets(interface: &str) -> Option<String> {
    let found = offloads(interface).ok()?;
    carries_super_packets(&found.driver, found.is_on(Offload::Lro))
        .map(|why| format!("{interface} {why}"))
}

fn carries_super_packets(driver: &str, lro: bool) -> Option<String> {
    if VIRTUAL.contains(&driver) {
        return Some(format!("has driver {driver} and carries super-packets"));
    }
    lro.then(|| "merges received segments (`ethtool -K … lro off`)".to_owned())
}

/// Why native XDP cannot serve this interface.
pub(crate) fn bundles(interface: &str) -> Option<String> {
    is_bond(&links().ok()?, interface).then(|| {
        format!(
            "{interface} is a bond: native XDP programs run on its members, where packets do not \
             belong to {interface}"
        )
    })
}

fn is_bond(links: &[Link], interface: &str) -> bool {
    let mut links = links.iter();
    links.any(|link| link.name == interface && link.kind.as_deref() == Some("bond"))
}

/// Why XDP would mistake VLAN packets of this interface for untagged ones, if known.
pub(crate) fn hidden_tags(interface: &str) -> Option<String> {
    let links = links().ok()?;
    let vlan = vlan_on(&links, interface)?;
    let hidden = offloads(interface).ok()?.is_on(Offload::RxVlan);
    hidden.then(|| {
        format!(
            "{interface} strips the VLAN tags of packets for {vlan} before XDP (`ethtool -K \
             {interface} rxvlan off`)"
        )
    })
}

/// A VLAN interface with this one as parent.
fn vlan_on<'a>(links: &'a [Link], interface: &str) -> Option<&'a str> {
    let below = links.iter().find(|link| link.name == interface)?.index;
    let is_vlan = |link: &&Link| link.kind.as_deref() == Some("vlan") && link.below == Some(below);
    links.iter().find(is_vlan).map(|link| link.name.as_str())
}

/// Describes another program in the place of our XDP program. It is never replaced.
pub(crate) fn other_program(
    interface: &str,
    attach_mode: AttachMode,
    pins: Option<&Pins>,
) -> Option<String> {
    if attach_mode == AttachMode::Tc {
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
        "{interface} has another XDP program (id {}, \"{name}\"{by}), which is not replaced; `ip \
         link set dev {interface} xdp off` removes it",
        other.id
    ))
}

#[cfg(test)]
mod tests {
    use super::super::vlans::carriers;
    use super::*;

    #[test]
    fn super_packets_rule_out_xdp() {
        assert!(carries_super_packets("veth", false).is_some());
        assert!(carries_super_packets("virtio_net", false).is_some());
        assert_eq!(carries_super_packets("ixgbe", false), None);
        let joined = carries_super_packets("ixgbe", true).unwrap();
        assert!(joined.contains("lro off"));
    }

    #[test]
    fn native_xdp_serves_neither_bonds_nor_vlans_on_them() {
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
        let bundled = |attach_mode, name: &str| {
            let at = carriers(&links, attach_mode, &[name.to_owned()]);
            is_bond(&links, &at[0])
        };
        for name in ["bond0", "bond0.7"] {
            assert!(bundled(AttachMode::XdpNative, name), "{name}");
        }
        for name in ["eth0", "eth0.7", "gone"] {
            assert!(!bundled(AttachMode::XdpNative, name), "{name}");
        }
    }

    #[test]
    fn vlans_are_found_by_their_parent() {
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
            // The peer of a veth can have any index, in another namespace.
            link(4, "veth0", "veth", Some(3)),
            link(5, "eth0.7", "vlan", Some(2)),
        ];
        assert_eq!(vlan_on(&links, "eth0"), Some("eth0.7"));
        assert_eq!(vlan_on(&links, "eth1"), None);
        assert_eq!(vlan_on(&links, "eth0.7"), None);
        assert_eq!(vlan_on(&links, "eth9"), None);
    }
}
