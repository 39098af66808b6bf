//! What a driver says of its own XDP support: the generic netlink family `netdev` (Linux 6.3).

use std::io;

use crate::netlink::{ask, attribute, push, u16_at, u64_at};

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
}

/// Asks the driver of the interface with this index. `None`: this kernel cannot be asked.
///
/// # Errors
/// When there is no such interface.
pub fn xdp_features(interface: u32) -> io::Result<Option<XdpFeatures>> {
    let mut question = vec![CTRL_CMD_GETFAMILY, 1, 0, 0];
    push(&mut question, CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let Ok(answers) = ask(libc::NETLINK_GENERIC, GENL_ID_CTRL, false, &question) else {
        return Ok(None);
    };
    let family = answers.first().and_then(|message| {
        let id = attribute(message.body.get(HEADER_BYTES..)?, CTRL_ATTR_FAMILY_ID)?;
        Some(u16_at(id, 0))
    });
    let Some(family) = family else {
        return Ok(None);
    };
    let mut question = vec![NETDEV_CMD_DEV_GET, 1, 0, 0];
    push(
        &mut question,
        NETDEV_A_DEV_IFINDEX,
        &interface.to_ne_bytes(),
    );
    let answers = ask(libc::NETLINK_GENERIC, family, false, &question)?;
    let bits = answers.first().and_then(|message| {
        let bits = attribute(message.body.get(HEADER_BYTES..)?, NETDEV_A_DEV_XDP_FEATURES)?;
        Some(u64_at(bits, 0))
    });
    Ok(bits.map(|bits| XdpFeatures { bits }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_has_no_features() {
        // An error where the kernel can be asked, nothing where it cannot.
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
}
