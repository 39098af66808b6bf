//! What a driver says of its own XDP support: the generic netlink family `netdev` (Linux 6.3).

use std::collections::BTreeMap;
use std::io;

use crate::netlink::{ask, attribute, push, u16_at, u32_at, u64_at};

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// Octets of `struct genlmsghdr`.
const HEADER_BYTES: usize = 4;

/// What XDP programs can do in a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures {
    bits: u64,
}

impl XdpFeatures {
    /// Programs run, and pass, drop and send back.
    pub fn basic(self) -> bool {
        self.bits & 1 != 0
    }

    /// Programs send packets out of other interfaces.
    pub fn redirect(self) -> bool {
        self.bits & 2 != 0
    }

    /// Other interfaces' programs can send packets out of this one.
    pub fn redirect_target(self) -> bool {
        self.bits & 4 != 0
    }

    /// AF_XDP without copies.
    pub fn zero_copy(self) -> bool {
        self.bits & 8 != 0
    }

    /// Packets of several buffers.
    pub fn several_buffers(self) -> bool {
        self.bits & 32 != 0
    }

    /// Other interfaces' programs can send packets of several buffers out of this one.
    pub fn several_buffers_target(self) -> bool {
        self.bits & 64 != 0
    }
}

/// The XDP features of the interface with this index. `None` if this kernel does not report them.
///
/// # Errors
/// There is no such interface.
pub fn xdp_features(interface: u32) -> io::Result<Option<XdpFeatures>> {
    let Some(family) = family() else {
        return Ok(None);
    };
    let mut question = vec![NETDEV_CMD_DEV_GET, 1, 0, 0];
    push(
        &mut question,
        NETDEV_A_DEV_IFINDEX,
        &interface.to_ne_bytes(),
    );
    let answers = ask(libc::NETLINK_GENERIC, family, false, &question)?;
    let told = answers.first().and_then(|message| device(&message.body));
    Ok(told.map(|(_, features)| features))
}

/// The XDP features of all interfaces of this network namespace, by index. `None` if this kernel
/// does not report them.
///
/// # Errors
/// When the kernel does not list them.
pub fn all_xdp_features() -> io::Result<Option<BTreeMap<u32, XdpFeatures>>> {
    let Some(family) = family() else {
        return Ok(None);
    };
    let question = [NETDEV_CMD_DEV_GET, 1, 0, 0];
    let answers = ask(libc::NETLINK_GENERIC, family, true, &question)?;
    let told = answers.iter().filter_map(|message| device(&message.body));
    Ok(Some(told.collect()))
}

/// The number of the family.
fn family() -> Option<u16> {
    let mut question = vec![CTRL_CMD_GETFAMILY, 1, 0, 0];
    push(&mut question, CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let answers = ask(libc::NETLINK_GENERIC, GENL_ID_CTRL, false, &question).ok()?;
    let body = &answers.first()?.body;
    let id = attribute(body.get(HEADER_BYTES..)?, CTRL_ATTR_FAMILY_ID)?;
    Some(u16_at(id, 0))
}

/// Index and features in an answer.
fn device(body: &[u8]) -> Option<(u32, XdpFeatures)> {
    let attributes = body.get(HEADER_BYTES..)?;
    let index = u32_at(attribute(attributes, NETDEV_A_DEV_IFINDEX)?, 0);
    let bits = u64_at(attribute(attributes, NETDEV_A_DEV_XDP_FEATURES)?, 0);
    Some((index, XdpFeatures { bits }))
}

#[cfg(test)]
mod tests {
    use fairlead_netns::trial::skip;

    use super::*;

    #[test]
    fn a_missing_interface_has_no_features() {
        // An error if the kernel reports features, `None` otherwise.
        let asked = xdp_features(u32::MAX >> 1);
        assert!(asked.is_err() || asked.unwrap().is_none());
    }

    #[test]
    fn the_loopback_has_no_native_xdp() {
        let links = crate::links().unwrap();
        let loopback = links.iter().find(|link| link.is_loopback).unwrap();
        if let Some(features) = xdp_features(loopback.index).unwrap() {
            assert!(!features.basic() && !features.redirect());
        }
    }

    #[test]
    fn the_list_agrees_with_single_queries() {
        let Some(all) = all_xdp_features().unwrap() else {
            let name = "all_are_told_what_each_is_told";
            return skip(
                name,
                "kernels before 6.3 do not tell what drivers take from XDP",
            );
        };
        let links = crate::links().unwrap();
        let loopback = links.iter().find(|link| link.is_loopback).unwrap().index;
        let told = xdp_features(loopback).unwrap();
        assert_eq!(all.get(&loopback), told.as_ref());
        assert!(told.is_some());
    }
}
