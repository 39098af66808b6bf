//! The subnets that interfaces of this machine are in.

use core::net::IpAddr;

use super::kernel::with_kernel;
use super::{NetError, Prefix};

/// An address of this machine, and the subnet that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// The address.
    pub address: IpAddr,
    /// The length of its prefix, bits.
    pub len: u8,
    /// Index of the interface.
    pub interface: u32,
}

impl Subnet {
    /// True for an address that is reached on the link, without a router.
    pub fn contains(&self, address: IpAddr) -> bool {
        let subnet = Prefix {
            address: self.address,
            len: self.len,
        };
        subnet.covers(&Prefix::host(address))
    }
}

/// All of them.
///
/// # Errors
/// When the kernel does not answer.
pub fn subnets() -> Result<Vec<Subnet>, NetError> {
    with_kernel(async |kernel| kernel.subnets().await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_contains_its_neighbours() {
        let subnet = Subnet {
            address: "10.1.0.1".parse().unwrap(),
            len: 24,
            interface: 2,
        };
        for (address, inside) in [("10.1.0.3", true), ("10.1.1.3", false), ("fd01::1", false)] {
            assert_eq!(
                subnet.contains(address.parse().unwrap()),
                inside,
                "{address}"
            );
        }
    }
}
