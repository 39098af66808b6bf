//! Route lookups: where packets to an address go, their maximum length, and the next hop's
//! neighbour state.

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
/// Requests the route as stored in the table.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const NDA_DST: u16 = 1;

/// Errors of a route lookup that mean "no route".
const NOWHERE: [i32; 4] = [
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::EINVAL,
    libc::EACCES,
];

/// Route of packets to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface.
    pub interface: u32,
    /// True if the address belongs to this machine.
    pub is_local: bool,
    /// The next hop, unless the address is on-link.
    pub gateway: Option<IpAddr>,
    /// Neighbour state of the next hop, or of the address itself if on-link.
    pub neighbour: Neighbour,
}

/// State of a neighbour's link-layer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Not resolved recently.
    NotAsked,
    /// Known.
    Known,
    /// Being resolved.
    Asking,
    /// Resolution failed.
    Silent,
}

/// The kernel's route for a packet to `address`; `None` if there is no route.
///
/// # Errors
/// The kernel cannot be queried.
pub fn route_to(address: IpAddr) -> io::Result<Option<Route>> {
    let Some(mut route) = asked(address, 0)?.as_deref().and_then(route) else {
        return Ok(None);
    };
    if !route.is_local {
        route.neighbour = neighbour(route.interface, route.gateway.unwrap_or(address))?;
    }
    Ok(Some(route))
}

/// The longest packet that this machine sends or forwards to `address`, bytes: the smaller of the
/// MTUs of interface and route. A learned path MTU does not count, because ICMP errors can be
/// forged. `None` if there is no route or the MTU is unknown.
///
/// # Errors
/// The kernel cannot be queried.
pub fn mtu_to(address: IpAddr) -> io::Result<Option<u32>> {
    let interface = match asked(address, 0)?.as_deref().and_then(route) {
        Some(route) => name_and_mtu(route.interface)?,
        None => None,
    };
    let Some((name, mtu)) = interface else {
        return Ok(None);
    };
    let route = asked(address, RTM_F_FIB_MATCH)?;
    let route = route.as_deref().and_then(mtu_of_route);
    // IPv6 has a separate interface MTU, which router advertisements and the operator can lower.
    let own = format!("/proc/sys/net/ipv6/conf/{name}/mtu");
    let own = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(_) => std::fs::read_to_string(own).ok(),
    };
    let own = own.and_then(|text| text.trim().parse().ok());
    Ok([Some(mtu), route, own].into_iter().flatten().min())
}

/// The kernel's answer to a route lookup.
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

/// MTU of a route.
fn mtu_of_route(body: &[u8]) -> Option<u32> {
    let metrics = attribute(body.get(HEADER_BYTES..)?, RTA_METRICS)?;
    let mtu = attribute(metrics, RTAX_MTU)?;
    Some(u32_at(mtu, 0)).filter(|mtu| *mtu > 0)
}

fn route(body: &[u8]) -> Option<Route> {
    let rest = body.get(HEADER_BYTES..)?;
    let mut route = Route {
        interface: 0,
        is_local: body[7] == RTN_LOCAL,
        gateway: None,
        neighbour: Neighbour::NotAsked,
    };
    for (kind, value) in attributes(rest) {
        match kind {
            RTA_OIF => route.interface = u32_at(value, 0),
            RTA_GATEWAY => route.gateway = address(value),
            _ => {}
        }
    }
    Some(route)
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
    fn the_loopback_address_is_local() {
        let route = route_to("127.0.0.1".parse().unwrap()).unwrap().unwrap();
        assert!(route.is_local, "{route:?}");
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
    fn addresses_of_other_lengths_are_rejected() {
        assert_eq!(address(&[10, 0, 0, 1]), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(address(&[1, 2, 3]), None);
    }
}
