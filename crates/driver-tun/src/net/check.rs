//! Obstacles to serving, found before anything is changed.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use super::kernel::{self, Interface, Route, name_of, with_kernel};
use super::leftover::rules_to;
use super::{IPV6_MTU_MIN, NetError, NetworkPlan, Prefix};

/// A reason not to start. The text says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The kernel does not forward packets of this family.
    ForwardingOff {
        /// The setting, as `sysctl` names it.
        sysctl: &'static str,
    },
    /// IPv6 is configured but disabled in this kernel.
    NoIpv6,
    /// IPv6 is configured, but the device's MTU is too small for it.
    MtuTooSmall {
        /// The configured MTU, bytes.
        mtu: u32,
    },
    /// An interface has the device's name.
    NameTaken(String),
    /// An address to be routed to the device belongs to an interface of this machine.
    LocalAddress {
        /// The address.
        address: IpAddr,
        /// The interface.
        interface: String,
        /// The prefix that needs it; a single address for a listening one.
        wanted: Prefix,
    },
    /// A route leads the same addresses elsewhere.
    RouteExists {
        /// The prefix to be routed to the device.
        wanted: Prefix,
        /// The route.
        route: String,
    },
    /// A route of another instance leads the same addresses to its device.
    Served {
        /// The prefix to be routed to the device.
        wanted: Prefix,
        /// The other's device.
        device: String,
        /// Its owner ([`NetworkPlan::owner`]).
        owner: Option<String>,
        /// True if a process has it open; otherwise it was left behind.
        in_use: bool,
    },
    /// Another running instance receives the answers of this server.
    ServerTaken(SocketAddr),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForwardingOff { sysctl } => write!(
                f,
                "the kernel does not forward packets: {sysctl} is 0; enable it with \
                 `sysctl -w {sysctl}=1` (and keep it in /etc/sysctl.d/)"
            ),
            Self::NoIpv6 => f.write_str(
                "the configuration has IPv6 addresses, but IPv6 is disabled in this kernel",
            ),
            Self::MtuTooSmall { mtu } => write!(
                f,
                "the configuration has IPv6 addresses, but `mtu` = {mtu}: IPv6 needs at least \
                 {IPV6_MTU_MIN}"
            ),
            Self::NameTaken(name) => write!(
                f,
                "the network interface {name} already exists: it belongs to another program or \
                 another instance; choose another `device` in [fastpath], or remove it with `ip \
                 link delete {name}`"
            ),
            Self::LocalAddress {
                address,
                interface,
                wanted,
            } if wanted.is_host() => write!(
                f,
                "{address} is assigned to {interface}: with mode = \"engine\" this machine would \
                 receive its packets itself, and the switch would not see them; use a kernel mode, \
                 remove it with `ip address delete {address} dev {interface}`, or choose an \
                 address that is not assigned to an interface"
            ),
            Self::LocalAddress {
                address,
                interface,
                wanted,
            } => write!(
                f,
                "{address} of {interface} is within {wanted}: this machine would receive its \
                 packets itself; choose a prefix without interface addresses"
            ),
            Self::RouteExists { wanted, route } => write!(
                f,
                "there is already a route for {wanted}: `{route}`; remove it with `ip route delete \
                 {route}`, or choose other addresses"
            ),
            Self::Served {
                wanted,
                device,
                owner,
                in_use,
            } => describe_served(f, wanted, device, owner.as_deref(), *in_use),
            Self::ServerTaken(server) => write!(
                f,
                "another instance serves {server} transparently and receives its answers; a \
                 server's port can belong to only one instance"
            ),
        }
    }
}

fn describe_served(
    f: &mut fmt::Formatter<'_>,
    wanted: &Prefix,
    device: &str,
    owner: Option<&str>,
    in_use: bool,
) -> fmt::Result {
    let owner = owner.unwrap_or("another instance");
    if in_use {
        write!(
            f,
            "packets for {wanted} go to {owner}, which is running, through {device}; choose other \
             addresses, or stop it first"
        )
    } else {
        write!(
            f,
            "packets for {wanted} go to {device}, which {owner} left behind; remove it with \
             `fairlead down` and its configuration, or choose other addresses"
        )
    }
}

/// Finds everything that would keep packets away from the device. Changes nothing, and works
/// without privileges.
pub fn check(plan: &NetworkPlan) -> Result<Vec<Obstacle>, NetError> {
    with_kernel(async |kernel| {
        let mut obstacles = forwarding(plan);
        let interfaces = kernel.interfaces().await?;
        let device = interfaces.iter().find(|one| one.name == plan.device);
        let resumed = device.filter(|_| plan.resumed).map(|one| one.index);
        if device.is_some() && !plan.resumed {
            obstacles.push(Obstacle::NameTaken(plan.device.clone()));
        }
        let destinations = plan.destinations();
        let addresses = kernel.addresses().await?;
        let allowed = |wanted: &&Prefix| plan.may_be_local && plan.is_listening(wanted);
        for wanted in destinations.iter().filter(|wanted| !allowed(wanted)) {
            obstacles.extend(local_addresses(wanted, &addresses, &interfaces));
        }
        for v4 in [true, false] {
            let wanted = destinations
                .iter()
                .filter(|prefix| prefix.address.is_ipv4() == v4);
            if plan.has_family(v4) {
                let routes = kernel.routes(v4).await?;
                let others: Vec<Route> = routes
                    .into_iter()
                    .filter(|route| resumed.is_none() || route.interface != resumed)
                    .collect();
                obstacles.extend(wanted.flat_map(|one| conflicts(one, &others, &interfaces)));
            }
            let mut rules = kernel.our_rules(v4).await?;
            if let Some(device) = resumed {
                let own = rules_to(kernel, v4, device).await?;
                rules.retain(|rule| own.iter().all(|one| one.server != rule.server));
            }
            let taken = plan
                .answering()
                .into_iter()
                .filter(|server| rules.iter().any(|rule| rule.server == *server));
            obstacles.extend(taken.map(Obstacle::ServerTaken));
        }
        Ok(obstacles)
    })
}

fn forwarding(plan: &NetworkPlan) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    let is_off = |path| kernel::setting(path).is_ok_and(|value| value == "0");
    if plan.has_family(true) && is_off("ipv4/ip_forward") {
        obstacles.push(Obstacle::ForwardingOff {
            sysctl: "net.ipv4.ip_forward",
        });
    }
    if plan.has_family(false) {
        match kernel::setting("ipv6/conf/all/disable_ipv6") {
            Ok(disabled) if disabled == "0" => {
                if is_off("ipv6/conf/all/forwarding") {
                    obstacles.push(Obstacle::ForwardingOff {
                        sysctl: "net.ipv6.conf.all.forwarding",
                    });
                }
                if plan.mtu < IPV6_MTU_MIN {
                    obstacles.push(Obstacle::MtuTooSmall { mtu: plan.mtu });
                }
            }
            _ => obstacles.push(Obstacle::NoIpv6),
        }
    }
    obstacles
}

fn local_addresses(
    wanted: &Prefix,
    addresses: &[(IpAddr, u32)],
    interfaces: &[Interface],
) -> Vec<Obstacle> {
    let within = addresses
        .iter()
        .filter(|(address, _)| wanted.covers(&Prefix::host(*address)));
    within
        .map(|(address, index)| Obstacle::LocalAddress {
            address: *address,
            interface: name_of(*index, interfaces),
            wanted: *wanted,
        })
        .collect()
}

/// Routes of the main table for the same addresses or a part of them. Wider ones (a default
/// route) lose against ours and may stay.
fn conflicts(wanted: &Prefix, routes: &[Route], interfaces: &[Interface]) -> Vec<Obstacle> {
    let within = routes
        .iter()
        .filter(|route| route.is_in_main() && wanted.covers(&route.destination));
    within
        .map(|route| match route.device_of_ours(interfaces) {
            Some(device) => Obstacle::Served {
                wanted: *wanted,
                device: device.name.clone(),
                owner: device.alias.clone(),
                in_use: device.running,
            },
            None => Obstacle::RouteExists {
                wanted: *wanted,
                route: route.describe(interfaces),
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do() {
        let host = Prefix::host("10.1.0.3".parse().unwrap());
        let net = Prefix {
            address: "100.64.0.0".parse().unwrap(),
            len: 24,
        };
        let local = |wanted| Obstacle::LocalAddress {
            address: "10.1.0.3".parse().unwrap(),
            interface: "eth0".into(),
            wanted,
        };
        let served = |in_use| Obstacle::Served {
            wanted: host,
            device: "fairlead0".into(),
            owner: Some("fairlead:edge".into()),
            in_use,
        };
        for (obstacle, words) in [
            (
                Obstacle::ForwardingOff {
                    sysctl: "net.ipv4.ip_forward",
                },
                "`sysctl -w net.ipv4.ip_forward=1`",
            ),
            (local(host), "`ip address delete 10.1.0.3 dev eth0`"),
            (local(net), "choose a prefix"),
            (
                Obstacle::RouteExists {
                    wanted: net,
                    route: "100.64.0.0/24 dev eth1".into(),
                },
                "`ip route delete 100.64.0.0/24 dev eth1`",
            ),
            (
                Obstacle::NameTaken("fairlead0".into()),
                "choose another `device`",
            ),
            (served(true), "stop it first"),
            (served(false), "`fairlead down`"),
            (Obstacle::MtuTooSmall { mtu: 600 }, "at least 1280"),
        ] {
            assert!(obstacle.to_string().contains(words), "{obstacle}");
        }
    }
}
