//! Listening addresses that are made addresses of this machine, because some of their connections
//! become its sockets: a local route to the device for each. It goes with the device, as the other
//! routes do. Packets for the switch do not take it: the kernel program hands them over before.

use core::net::IpAddr;
use std::collections::BTreeSet;

use super::kernel::with_kernel;
use super::{DUMMY_ADDRESS, NetError, Network, Prefix};

/// The routing table of this machine's own addresses.
pub(super) const LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;

impl Network {
    /// Makes these addresses of the machine, and no others. Those that an interface has stay as
    /// they are.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn hold(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), NetError> {
        let device = self.plan.device.clone();
        let held = with_kernel(async |kernel| {
            let interfaces = kernel.interfaces().await?;
            let index = interfaces.iter().find(|one| one.name == device);
            let index = index
                .map(|one| one.index)
                .ok_or_else(|| NetError::Refused(device.clone(), "no such device".to_owned()))?;
            let of_interfaces = kernel.addresses().await?;
            let is_held = |address: &&IpAddr| of_interfaces.iter().all(|(one, _)| one != *address);
            let own = &self.plan.own;
            let wanted: Vec<IpAddr> = addresses.iter().filter(is_held).copied().collect();
            for v4 in [true, false] {
                // A kernel without one family has no routes of it.
                let routes = kernel.routes(v4).await.unwrap_or_default();
                let ours = routes.iter().filter(|route| {
                    route.is_ours && route.table == LOCAL && route.interface == Some(index)
                });
                let outdated =
                    |address: &IpAddr| !wanted.contains(address) && !own.contains(address);
                for route in ours.filter(|one| outdated(&one.destination.address)) {
                    kernel.remove_route(route).await?;
                }
            }
            if wanted.iter().any(IpAddr::is_ipv4) {
                // The engine gives clients' segments to the stack by the device.
                kernel.add_address(index, DUMMY_ADDRESS).await?;
            }
            for address in &wanted {
                kernel.add_local(Prefix::host(*address), index).await?;
            }
            Ok(wanted)
        })?;
        self.plan.local = held;
        Ok(())
    }
}
