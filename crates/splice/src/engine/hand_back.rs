//! Packets from servers that belong to no connection of the switch.
//!
//! Where servers see their clients' own addresses, a routing rule brings everything they send from
//! their port to the switch: also answers to clients that use the server directly, on new
//! connections and on those from before the start. These are handed back to the kernel, which
//! forwards them as it would without the switch (decision 0025). Each time counts as a hop, so no
//! packet goes in circles.

use fairlead_base::{Address, Packet};
use fairlead_wire::TcpPacket;

use super::Switch;
use crate::{Verdict, translate};

impl Switch {
    /// True for an address whose packets are for the switch alone: one that is listened on, or one
    /// that servers see as their client's.
    pub fn is_own_address(&self, address: &Address) -> bool {
        self.listen_addresses.contains(address) || self.nats.contains(address)
    }

    /// True for a packet from a server's address and port to an address that is not the switch's.
    pub(super) fn is_past_us(&self, header: &TcpPacket) -> bool {
        self.servers.contains(&header.key.src) && !self.is_own_address(&header.key.dst.addr)
    }

    /// Passes a packet on as it is.
    pub(super) fn hand_back(&mut self, packet: &mut Packet, header: &TcpPacket) -> Verdict {
        match translate::age(packet, header) {
            Ok(()) => {
                self.counts.handed_back += 1;
                Verdict::Transmit
            }
            Err(reason) => self.drop(reason),
        }
    }
}
