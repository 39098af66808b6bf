//! Network interfaces and the XDP programs on them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::netlink::{ask, attribute, attributes, push, text, u16_at, u32_at};

const RTM_GETLINK: u16 = 18;
/// Octets of `struct ifinfomsg`.
const HEADER_BYTES: usize = 16;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_QDISC: u16 = 6;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_EGRESS_QOS: u16 = 3;
const IFLA_VLAN_PROTOCOL: u16 = 5;
/// Present if `IFLA_LINK` is an index in another namespace.
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP: u16 = 43;
/// In a request: the target namespace, by its id in ours.
const IFLA_TARGET_NETNSID: u16 = 46;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The longest packet, bytes.
    pub mtu: u32,
    /// Switched on.
    pub is_up: bool,
    /// The loopback.
    pub is_loopback: bool,
    /// Carries Ethernet frames.
    pub is_ethernet: bool,
    /// Its Ethernet address, if it has one.
    pub address: Option<[u8; 6]>,
    /// For virtual ones: `veth`, `bridge`, `vlan`, …
    pub kind: Option<String>,
    /// Index of the bridge or bond that it is a member of.
    pub controller: Option<u32>,
    /// Index of its parent (for a VLAN, …) or peer (for a veth).
    pub below: Option<u32>,
    /// The namespace that `below` is an index in, by its number in ours; `None`: ours.
    pub elsewhere: Option<u32>,
    /// The queueing discipline that it sends by: `noqueue`, `fq_codel`, `mq`, …
    pub qdisc: String,
    /// The tag of a VLAN interface, if its parent is in the same network namespace and it maps no
    /// priorities.
    pub vlan: Option<Vlan>,
    /// Receive queues that its driver set up.
    pub rx_queues: u32,
    /// Transmit queues.
    pub tx_queues: u32,
    /// XDP programs on it.
    pub xdp: Vec<XdpProgram>,
}

/// A tag of IEEE 802.1Q or 802.1ad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Its EtherType, 0x8100 or 0x88a8.
    pub protocol: u16,
    /// The VLAN's number, 0 to 4,095.
    pub id: u16,
}

/// An XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpProgram {
    /// The kernel's id of it.
    pub id: u32,
    /// Where it runs: `native`, `generic` or `hardware`.
    pub way: &'static str,
}

/// All interfaces, in the kernel's order.
///
/// # Errors
/// When the kernel does not list them.
pub fn links() -> io::Result<Vec<Link>> {
    let messages = ask(libc::NETLINK_ROUTE, RTM_GETLINK, true, &[0; HEADER_BYTES])?;
    let read = messages.iter().filter_map(|message| link(&message.body));
    Ok(read.collect())
}

/// The interface with this index in another network namespace, given by its id in ours, as in
/// [`Link::elsewhere`]. Its parent index is relative to that namespace.
///
/// # Errors
/// When the kernel does not say; [`io::ErrorKind::PermissionDenied`] without CAP_NET_ADMIN there.
pub fn link_elsewhere(namespace: u32, index: u32) -> io::Result<Link> {
    let mut question = vec![0; HEADER_BYTES];
    question[4..8].copy_from_slice(&index.to_ne_bytes());
    push(&mut question, IFLA_TARGET_NETNSID, &namespace.to_ne_bytes());
    let messages = ask(libc::NETLINK_ROUTE, RTM_GETLINK, false, &question)?;
    let found = messages.iter().find_map(|message| link(&message.body));
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Name and MTU of the interface of this index. Asked so that the kernel answers at once: netlink
/// waits for its lock over all of the machine's configuration, for seconds when that is busy.
///
/// # Errors
/// When the kernel does not say.
pub(crate) fn name_and_mtu(index: u32) -> io::Result<Option<(String, u32)>> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor, touches no memory of ours.
    let socket = unsafe { libc::socket(libc::AF_INET, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: a structure of numbers and arrays, for which zeros are values.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = index as libc::c_int;
    for question in [libc::SIOCGIFNAME, libc::SIOCGIFMTU] {
        // SAFETY: an open socket, and a request that lives through the call.
        if unsafe { libc::ioctl(socket.as_raw_fd(), question, &raw mut request) } < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENODEV) => Ok(None),
                _ => Err(error),
            };
        }
    }
    let name = request.ifr_name.map(|byte| byte as u8);
    // SAFETY: the answer to the last question is a number, and every number is one.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(Some((text(&name), mtu as u32)))
}

fn link(body: &[u8]) -> Option<Link> {
    let rest = body.get(HEADER_BYTES..)?;
    let flags = u32_at(body, 8) as i32;
    let mut link = Link {
        index: u32_at(body, 4),
        is_up: flags & libc::IFF_UP != 0,
        is_loopback: flags & libc::IFF_LOOPBACK != 0,
        is_ethernet: u16_at(body, 2) == libc::ARPHRD_ETHER,
        ..Link::default()
    };
    for (kind, value) in attributes(rest) {
        match kind {
            IFLA_ADDRESS => link.address = value.try_into().ok(),
            IFLA_IFNAME => link.name = text(value),
            IFLA_MTU => link.mtu = u32_at(value, 0),
            IFLA_LINK => link.below = Some(u32_at(value, 0)),
            IFLA_MASTER => link.controller = Some(u32_at(value, 0)),
            IFLA_LINK_NETNSID => link.elsewhere = Some(u32_at(value, 0)),
            IFLA_QDISC => link.qdisc = text(value),
            IFLA_LINKINFO => {
                link.kind = attribute(value, IFLA_INFO_KIND).map(text);
                link.vlan = match link.kind.as_deref() {
                    Some("vlan") => attribute(value, IFLA_INFO_DATA).and_then(vlan),
                    _ => None,
                };
            }
            IFLA_NUM_TX_QUEUES => link.tx_queues = u32_at(value, 0),
            IFLA_NUM_RX_QUEUES => link.rx_queues = u32_at(value, 0),
            IFLA_XDP => link.xdp = xdp(value),
            _ => {}
        }
    }
    if !link.is_ethernet {
        link.address = None;
    }
    if link.elsewhere.is_some() {
        link.vlan = None;
    }
    (!link.name.is_empty()).then_some(link)
}

fn vlan(value: &[u8]) -> Option<Vlan> {
    if attribute(value, IFLA_VLAN_EGRESS_QOS).is_some() {
        return None;
    }
    let protocol = attribute(value, IFLA_VLAN_PROTOCOL)?;
    Some(Vlan {
        protocol: u16::from_be_bytes(protocol.first_chunk().copied()?),
        id: u16_at(attribute(value, IFLA_VLAN_ID)?, 0),
    })
}

fn xdp(value: &[u8]) -> Vec<XdpProgram> {
    let id = |kind| attribute(value, kind).map(|id| u32_at(id, 0));
    let each = [
        (IFLA_XDP_DRV_PROG_ID, "native"),
        (IFLA_XDP_SKB_PROG_ID, "generic"),
        (IFLA_XDP_HW_PROG_ID, "hardware"),
    ];
    let mut found: Vec<XdpProgram> = each
        .into_iter()
        .filter_map(|(kind, way)| id(kind).map(|id| XdpProgram { id, way }))
        .collect();
    // Older kernels report a single program only by mode and id.
    let way = match attribute(value, IFLA_XDP_ATTACHED).and_then(<[u8]>::first) {
        Some(1) => "native",
        Some(2) => "generic",
        Some(3) => "hardware",
        _ => return found,
    };
    if found.is_empty() {
        found.extend(id(IFLA_XDP_PROG_ID).map(|id| XdpProgram { id, way }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_a_loopback() {
        let links = links().unwrap();
        let loopback = links.iter().find(|link| link.is_loopback).unwrap();
        assert_eq!(loopback.name, "lo");
        assert!(!loopback.is_ethernet && loopback.mtu > 0 && loopback.index > 0);
    }

    #[test]
    fn a_single_query_agrees_with_the_list() {
        for link in links().unwrap() {
            assert_eq!(
                name_and_mtu(link.index).unwrap(),
                Some((link.name, link.mtu))
            );
        }
        assert_eq!(name_and_mtu(i32::MAX as u32).unwrap(), None);
    }

    #[test]
    fn a_message_is_read() {
        let mut body = vec![0; HEADER_BYTES];
        body[2..4].copy_from_slice(&1u16.to_ne_bytes());
        body[4..8].copy_from_slice(&7u32.to_ne_bytes());
        body[8..12].copy_from_slice(&1u32.to_ne_bytes());
        push(&mut body, IFLA_IFNAME, b"veth1\0");
        push(&mut body, IFLA_LINK, &6u32.to_ne_bytes());
        push(&mut body, IFLA_LINK_NETNSID, &3u32.to_ne_bytes());
        push(&mut body, IFLA_QDISC, b"noqueue\0");
        let mut kind = Vec::new();
        push(&mut kind, IFLA_INFO_KIND, b"veth");
        push(&mut body, IFLA_LINKINFO, &kind);
        let mut attached = Vec::new();
        push(&mut attached, IFLA_XDP_ATTACHED, &[2]);
        push(&mut attached, IFLA_XDP_PROG_ID, &41u32.to_ne_bytes());
        push(&mut body, IFLA_XDP, &attached);
        let read = link(&body).unwrap();
        assert_eq!((read.index, read.is_up, read.is_ethernet), (7, true, true));
        assert_eq!(read.kind.as_deref(), Some("veth"));
        assert_eq!((read.below, read.elsewhere), (Some(6), Some(3)));
        assert_eq!(read.qdisc, "noqueue");
        let program = XdpProgram {
            id: 41,
            way: "generic",
        };
        assert_eq!(read.xdp, [program]);
        assert_eq!((link(&[0; 4]), read.vlan), (None, None));
    }

    #[test]
    fn a_vlan_tag_is_reported_without_priority_maps() {
        let read = |more: &dyn Fn(&mut Vec<u8>), elsewhere: bool| {
            let mut body = vec![0; HEADER_BYTES];
            push(&mut body, IFLA_IFNAME, b"eth0.5\0");
            let (mut info, mut data) = (Vec::new(), Vec::new());
            push(&mut info, IFLA_INFO_KIND, b"vlan");
            push(&mut data, IFLA_VLAN_ID, &5u16.to_ne_bytes());
            push(&mut data, IFLA_VLAN_PROTOCOL, &[0x88, 0xa8]);
            more(&mut data);
            push(&mut info, IFLA_INFO_DATA, &data);
            push(&mut body, IFLA_LINKINFO, &info);
            if elsewhere {
                push(&mut body, IFLA_LINK_NETNSID, &[0; 4]);
            }
            link(&body).unwrap().vlan
        };
        let (protocol, id) = (0x88a8, 5);
        assert_eq!(read(&|_| {}, false), Some(Vlan { protocol, id }));
        assert_eq!(read(&|_| {}, true), None);
        let mapped = |data: &mut Vec<u8>| push(data, IFLA_VLAN_EGRESS_QOS, &[0; 4]);
        assert_eq!(read(&mapped, false), None);
    }
}
