//! Clients that were refused a moment ago. Of a service that needs no head the last ACK of the
//! handshake is refused, and the first data is under way by then: it is no other client's.

use fairlead_base::{FlowKey, SeqNumber};

/// As many can have their data under way; beyond it the older one is counted twice.
const REFUSED_MAX: usize = 1_024;

/// Refused clients, each with what it acknowledged of our SYN-ACK: no two handshakes share both.
#[derive(Debug)]
pub(super) struct Refused {
    places: Box<[Option<(FlowKey, SeqNumber)>; REFUSED_MAX]>,
}

impl Default for Refused {
    fn default() -> Self {
        Self {
            places: Box::new([None; REFUSED_MAX]),
        }
    }
}

impl Refused {
    /// Where it stands: acknowledgements of cookies spread by themselves.
    fn index(ack: SeqNumber) -> usize {
        ack.0 as usize % REFUSED_MAX
    }

    pub(super) fn note(&mut self, client: FlowKey, ack: SeqNumber) {
        self.places[Self::index(ack)] = Some((client, ack));
    }

    pub(super) fn contains(&self, client: FlowKey, ack: SeqNumber) -> bool {
        self.places[Self::index(ack)] == Some((client, ack))
    }
}
