//! Where packets for an address would go, how long they may be, and is the next machine known.

use std::io;
use std::net::IpAddr;

use crate::links::name_and_mtu;
use crate::netlink::{ask, attribute, attributes, push, u16_at, u32_at};

const RTM_GETROUTE: u16 = 26;
const RTM_GETNEIGH: u16 = 30;
/// Octets of `struct rtmsg` and of `struct ndmsg`.
const HEADER_BYTES: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_METRICS: u16 = 8;
const RTAX_MTU: u16 = 2;
const RTN_LOCAL: u8 = 2;
/// Ask for the route as it stands in the table.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const NDA_DST: u16 = 1;

/// The answers to the question where a packet would go that mean nowhere.
const NOWHERE: [i32; 4] = [
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::EINVAL,
    libc::EACCES,
];

/// How packets for an address leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Index of the interface.
    pub interface: u32,
    /// The address is this machine's own.
    pub is_local: bool,
    /// The router, unless the address is on the link itself.
    pub gateway: Option<IpAddr>,
    /// What is known of the router, or of the address where there is none.
    pub neighbour: Neighbour,
}

/// What is known of a neighbour's link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Nobody has asked for it lately.
    NotAsked,
    /// Known.
    Known,
    /// It is being asked for and has not answered.
    Asking,
    /// It did not answer.
    Silent,
}

/// Where the kernel would send a packet for `address`; `None`: nowhere.
///
/// # Errors
/// When the kernel does not say.
pub fn way_to(address: IpAddr) -> io::Result<Option<Way>> {
    let Some(mut way) = asked(address, 0)?.as_deref().and_then(way) else {
        return Ok(None);
    };
    if !way.is_local {
        way.neighbour = neighbour(way.interface, way.gateway.unwrap_or(address))?;
    }
    Ok(Some(way))
}

/// The longest packet for `address` that this machine sends or forwards, bytes: the interface's
/// MTU, or what the route says where that is less. What was learnt of the way beyond does not
/// count: anybody can claim to be a router there. `None` where there is no way, or nobody knows.
///
/// # Errors
/// When the kernel does not say.
pub fn mtu_to(address: IpAddr) -> io::Result<Option<u32>> {
    let interface = match asked(address, 0)?.as_deref().and_then(way) {
        Some(way) => name_and_mtu(way.interface)?,
        None => None,
    };
    let Some((name, mtu)) = interface else {
        return Ok(None);
    };
    let route = asked(address, RTM_F_FIB_MATCH)?;
    let route = route.as_deref().and_then(mtu_of_route);
    // IPv6 has one of its own, which routers on the link and the operator may lower.
    let own = format!("/proc/sys/net/ipv6/conf/{name}/mtu");
    let own = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(_) => std::fs::read_to_string(own).ok(),
    };
    let own = own.and_then(|text| text.trim().parse().ok());
    Ok([Some(mtu), route, own].into_iter().flatten().min())
}

/// The kernel's answer to the question where a packet would go.
fn asked(address: IpAddr, flags: u32) -> io::Result<Option<Vec<u8>>> {
    let (family, octets) = parts(address);
    let mut question = vec![0; HEADER_BYTES];
    question[0] = family;
    question[1] = (octets.len() * 8) as u8;
    question[8..12].copy_from_slice(&flags.to_ne_bytes());
    push(&mut question, RTA_DST, &octets);
    let answers = match ask(libc::NETLINK_ROUTE, RTM_GETROUTE, false, &question) {
        Ok(answers) => answers,
        Err(error)
            if error
                .raw_os_error()
                .is_some_and(|one| NOWHERE.contains(&one)) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    Ok(answers.into_iter().next().map(|message| message.body))
}

/// What a route says.
fn mtu_of_route(body: &[u8]) -> Option<u32> {
    let metrics = attribute(body.get(HEADER_BYTES..)?, RTA_METRICS)?;
    let mtu = attribute(metrics, RTAX_MTU)?;
    Some(u32_at(mtu, 0)).filter(|mtu| *mtu > 0)
}

fn way(body: &[u8]) -> Option<Way> {
    let rest = body.get(HEADER_BYTES..)?;
    let mut way = Way {
        interface: 0,
        is_local: body[7] == RTN_LOCAL,
        gateway: None,
        neighbour: Neighbour::NotAsked,
    };
    for (kind, value) in attributes(rest) {
        match kind {
            RTA_OIF => way.interface = u32_at(value, 0),
            RTA_GATEWAY => way.gateway = address(value),
            _ => {}
        }
    }
    Some(way)
}

fn neighbour(interface: u32, wanted: IpAddr) -> io::Result<Neighbour> {
    let (family, _) = parts(wanted);
    let mut question = vec![0; HEADER_BYTES];
    question[0] = family;
    let answers = ask(libc::NETLINK_ROUTE, RTM_GETNEIGH, true, &question)?;
    let states = answers.iter().filter_map(|message| {
        let body = &message.body;
        let rest = body.get(HEADER_BYTES..)?;
        let about = attributes(rest).find(|(kind, _)| *kind == NDA_DST)?.1;
        let same = u32_at(body, 4) == interface && address(about) == Some(wanted);
        same.then(|| u16_at(body, 8))
    });
    Ok(states.map(state).next().unwrap_or(Neighbour::NotAsked))
}

fn state(bits: u16) -> Neighbour {
    // NUD_INCOMPLETE, NUD_FAILED, NUD_NONE of linux/neighbour.h; all others have an address.
    match bits {
        0 => Neighbour::NotAsked,
        0x01 => Neighbour::Asking,
        0x20 => Neighbour::Silent,
        _ => Neighbour::Known,
    }
}

fn parts(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(four) => (libc::AF_INET as u8, four.octets().to_vec()),
        IpAddr::V6(six) => (libc::AF_INET6 as u8, six.octets().to_vec()),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(octets) {
        return Some(four.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_our_own() {
        let way = way_to("127.0.0.1".parse().unwrap()).unwrap().unwrap();
        assert!(way.is_local, "{way:?}");
    }

    #[test]
    fn states_of_neighbours() {
        for (bits, expected) in [
            (0, Neighbour::NotAsked),
            (1, Neighbour::Asking),
            (2, Neighbour::Known),
            (4, Neighbour::Known),
            (0x20, Neighbour::Silent),
            (0x40, Neighbour::Known),
            (0x80, Neighbour::Known),
        ] {
            assert_eq!(state(bits), expected, "{bits:#x}");
        }
    }

    #[test]
    fn addresses_of_other_lengths_are_none() {
        assert_eq!(address(&[10, 0, 0, 1]), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(address(&[1, 2, 3]), None);
    }
}
