//! Whose the last packets of connections are whose record is gone, or has another server, by the
//! time they are taken: for onlookers.

use std::collections::BTreeMap;

use fairlead_base::{Endpoint, FlowKey};
use fairlead_tcp::{Found, Line, Side};

use super::Switch;

/// A connection as it was when the switch sent its last packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parted {
    /// Where its record was, and on which side the packet's key led there.
    pub found: Found,
    /// The client.
    pub client: Endpoint,
    /// Index of the listening endpoint.
    pub listen: u16,
}

/// Them by the key that an answer to the packet would have. Emptied with the packets.
#[derive(Debug, Default)]
pub(super) struct Parting(BTreeMap<FlowKey, Parted>);

impl Parting {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Switch {
    /// To be called when a packet is made that may be the last one of a leg.
    pub(super) fn part(&mut self, line: Line, side: Side) {
        let record = self.table.record(line);
        let endpoints = self.table.endpoints();
        let key = match side {
            Side::Client => record.client_key(endpoints),
            Side::Server => record.server_key(endpoints),
        };
        let parted = Parted {
            found: Found { line, side },
            client: record.client(),
            listen: record.listen,
        };
        self.parting.0.insert(key, parted);
    }

    /// The connection that had a packet with this key, where only packets that wait to be sent
    /// remember it.
    pub fn parted(&self, key: &FlowKey) -> Option<Parted> {
        self.parting.0.get(key).copied()
    }
}
