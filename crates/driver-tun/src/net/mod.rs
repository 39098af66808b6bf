//! The network settings that route packets to the device.
//!
//! These settings are created, all tagged with [`PROTOCOL`]; nothing else is touched:
//! - the device's own state: up, MTU, queue length, loose reverse-path filter, and for transparent
//!   servers a dummy address;
//! - in the main table, a route to the device for every address that is listened on and every
//!   prefix that servers see as their clients;
//! - for servers that see the client's own address, rules that bring their answers to the device,
//!   wherever they are bound: `from SERVER ipproto tcp sport PORT lookup TABLE`, with a table of
//!   our own that leads to the device; and rules by which packets from the device pass these
//!   (`bypass.rs`).
//!
//! The device and its routes disappear with the process, unless the device is persistent
//! ([`crate::TunDevice::set_persistent`]); then the next start of the same owner takes over device,
//! routes and rules. Rules survive a crash. A rule of ours with an empty table is such a leftover,
//! because a running instance fills its table before it adds a rule, and removes its rules first.

mod apply;
mod bypass;
mod check;
mod keep;
mod kernel;
mod leftover;
mod local;
mod queue;
mod subnets;

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bypass::Bypass;

pub use apply::{Network, apply};
pub use check::{Obstacle, check};
pub use keep::Keeper;
pub use leftover::{Owned, owned_by, owned_by_any, remove_device, remove_leftovers};
pub use queue::queue_dropped;
pub use subnets::{Subnet, subnets};

/// Tags routes and rules of this program (`ip rule show protocol 246`). No routing daemon known to
/// iproute2 uses it.
pub const PROTOCOL: u8 = 246;

/// Priority of the rules for servers' answers: before the main table (32766), after local (0).
pub const RULE_PRIORITY: u32 = 7_600;

/// Priority of the rules by which packets from the device skip those for servers' answers.
pub const BYPASS_PRIORITY: u32 = RULE_PRIORITY - 1;

/// Priority of the empty rule that these rules jump to.
pub const BYPASS_TARGET: u32 = RULE_PRIORITY + 1;

/// The dummy address of RFC 7600, section 4.8. Where an interface has no address at all, Linux
/// drops packets that a loose reverse-path filter would let pass: those with a source that is
/// reached by another interface, as clients and servers are. Several interfaces may have it.
pub const DUMMY_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// The same for IPv6, where it is needed as an address of this process alone: one of those that no
/// router forwards (RFC 6666).
const OWN_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 8);

/// An address of the device at which sockets of this process can take connections of the switch,
/// where the plan has it among its own.
pub fn own_address(v4: bool) -> IpAddr {
    match v4 {
        true => DUMMY_ADDRESS.into(),
        false => OWN_ADDRESS_V6.into(),
    }
}

/// Range of routing tables for instances; each takes the first free one.
pub const TABLES: core::ops::Range<u32> = 7_600..7_664;

/// Length of the device's queue: room for a burst of several thousand clients.
const QUEUE_PACKETS: u32 = 8_192;

/// The smallest MTU with which the kernel runs IPv6 (RFC 8200, section 5).
const IPV6_MTU_MIN: u32 = 1_280;

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// Its first address.
    pub address: IpAddr,
    /// Its length, bits.
    pub len: u8,
}

impl Prefix {
    /// The prefix that holds one address.
    pub fn host(address: IpAddr) -> Self {
        Self {
            address,
            len: if address.is_ipv4() { 32 } else { 128 },
        }
    }

    /// True for a prefix of one address.
    pub fn is_host(&self) -> bool {
        *self == Self::host(self.address)
    }

    /// True when `other` is within this prefix (or equal to it).
    pub fn covers(&self, other: &Self) -> bool {
        let (ours, theirs, family_bits) = match (self.address, other.address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (u128::from(u32::from(a)), u128::from(u32::from(b)), 32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a), u128::from(b), 128),
            _ => return false,
        };
        let host_bits = u32::from(u8::saturating_sub(family_bits, self.len));
        let differ = (ours ^ theirs).checked_shr(host_bits).unwrap_or(0);
        self.len <= other.len && differ == 0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// The network settings to create.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// The device's name.
    pub device: String,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Addresses that clients connect to.
    pub listen: Vec<IpAddr>,
    /// Of these, those that are made addresses of this machine ([`Network::hold`]).
    pub local: Vec<IpAddr>,
    /// Addresses of the device itself ([`own_address`]).
    pub own: Vec<IpAddr>,
    /// Prefixes that servers see as their clients.
    pub sources: Vec<Prefix>,
    /// Servers that see the clients' own addresses.
    pub transparent: Vec<SocketAddr>,
    /// All other servers. Their answers must not go to another instance's device.
    pub servers: Vec<SocketAddr>,
    /// Owner of the device, stored as its alias for [`owned_by`].
    pub owner: String,
    /// True if addresses that clients connect to may be this machine's own: the kernel fast path
    /// sees their packets first.
    pub may_be_local: bool,
    /// True if an earlier run of this owner left the device; settings that are still needed are
    /// kept.
    pub resumed: bool,
}

impl NetworkPlan {
    /// All prefixes to route to the device, without duplicates.
    fn destinations(&self) -> Vec<Prefix> {
        let listen = self.listen.iter().map(|address| Prefix::host(*address));
        let mut all: Vec<Prefix> = listen.chain(self.sources.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// True for the prefix of an address that clients connect to.
    fn is_listening(&self, prefix: &Prefix) -> bool {
        prefix.is_host() && self.listen.contains(&prefix.address)
    }

    /// The servers with answers that need a rule, without duplicates.
    fn returns(&self) -> Vec<SocketAddr> {
        let mut all = self.transparent.clone();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The rules that let packets from the device pass those for answers: of each IP version that
    /// has any.
    fn bypasses(&self) -> Vec<Bypass> {
        let has = |v4: &bool| self.transparent.iter().any(|one| one.is_ipv4() == *v4);
        let versions = [true, false].into_iter().filter(has);
        versions.map(|v4| self.own_bypass(v4)).collect()
    }

    fn own_bypass(&self, v4: bool) -> Bypass {
        Bypass {
            device: self.device.clone(),
            v4,
        }
    }

    /// The servers with answers that must reach this device only, without duplicates.
    fn answering(&self) -> Vec<SocketAddr> {
        let mut all = self.transparent.clone();
        all.extend(&self.servers);
        all.sort_unstable();
        all.dedup();
        all
    }

    fn has_family(&self, v4: bool) -> bool {
        let servers = self.transparent.iter().map(SocketAddr::ip);
        let sources = self.sources.iter().map(|prefix| prefix.address);
        let all = self.listen.iter().copied().chain(servers).chain(sources);
        all.into_iter().any(|address| address.is_ipv4() == v4)
    }
}

/// The kernel refused a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum NetError {
    /// No permission.
    NotPermitted(String),
    /// It refused or did not answer: the step, and the error.
    Refused(String, String),
    /// A packet would not reach the device, although all settings exist.
    Diverted {
        /// Destination of the packet.
        destination: String,
        /// Where it would go.
        goes_to: String,
    },
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted(step) => write!(
                f,
                "{step} is not permitted: serving needs the capability CAP_NET_ADMIN in the \
                 network namespace it runs in"
            ),
            Self::Refused(step, said) => write!(f, "{step}: {said}"),
            Self::Diverted {
                destination,
                goes_to,
            } => write!(
                f,
                "packets for {destination} would go to {goes_to} instead of the device, because of \
                 a policy rule with higher priority; `ip rule show` lists the rules"
            ),
        }
    }
}

impl core::error::Error for NetError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, len) = text.split_once('/').unwrap();
        Prefix {
            address: address.parse().unwrap(),
            len: len.parse().unwrap(),
        }
    }

    #[test]
    fn prefixes_cover_what_is_inside_them() {
        for (outer, inner, covered) in [
            ("100.64.0.0/24", "100.64.0.128/25", true),
            ("100.64.0.0/24", "100.64.0.0/24", true),
            ("100.64.0.0/24", "100.64.0.0/23", false),
            ("100.64.0.0/24", "100.64.1.1/32", false),
            ("0.0.0.0/0", "1.2.3.4/32", true),
            ("::/0", "1.2.3.4/32", false),
            ("::/0", "2001:db8::/32", true),
            ("2001:db8::/64", "2001:db8::7/128", true),
            ("2001:db8::/64", "2001:db8:0:1::7/128", false),
        ] {
            assert_eq!(
                prefix(outer).covers(&prefix(inner)),
                covered,
                "{outer} {inner}"
            );
        }
    }

    #[test]
    fn each_destination_and_return_is_named_once() {
        let plan = NetworkPlan {
            device: "x".into(),
            mtu: 1_500,
            listen: ["10.0.0.1", "10.0.0.1", "fd00::1"]
                .map(|a| a.parse().unwrap())
                .to_vec(),
            local: Vec::new(),
            own: Vec::new(),
            sources: vec![prefix("10.0.0.1/32"), prefix("100.64.0.0/24")],
            transparent: ["10.2.0.1:80", "10.2.0.1:80", "10.2.0.1:81"]
                .map(|s| s.parse().unwrap())
                .to_vec(),
            servers: vec!["10.2.0.1:81".parse().unwrap()],
            owner: "x".into(),
            may_be_local: false,
            resumed: false,
        };
        let names: Vec<String> = plan.destinations().iter().map(Prefix::to_string).collect();
        assert_eq!(names, ["10.0.0.1/32", "100.64.0.0/24", "fd00::1/128"]);
        assert_eq!(plan.returns().len(), 2);
        assert_eq!(plan.answering().len(), 2);
        assert!(plan.has_family(true) && plan.has_family(false));
    }
}
