//! Clocks of ends whose connections were given back a moment ago. An end that was asked to show its
//! clock answers the next such question half a second later (Linux, `tcp_invalid_ratelimit`), and
//! until then a connection can be handed off again without one.

use std::collections::BTreeMap;

use fairlead_base::FlowKey;
use fairlead_os_tcp::State;

/// How long they are kept, ms.
const KEPT_MS: u64 = 1_000;
/// How many are, at most.
const MOST: usize = 4_096;

/// By key of the packets of an end: when it was noted, its last timestamp, and the number of the
/// next byte then.
#[derive(Debug, Default)]
pub(super) struct Clocks(BTreeMap<FlowKey, (u64, u32, u32)>);

impl Clocks {
    /// Notes the clocks of both ends of a pair, if they have any.
    pub(super) fn note(&mut self, keys: &[FlowKey; 2], sockets: [&State; 2], now_ms: u64) {
        if self.0.len() + keys.len() > MOST {
            self.0.retain(|_, (at, ..)| now_ms < *at + KEPT_MS);
        }
        for (key, socket) in keys.iter().zip(sockets) {
            if let Some(stamps) = socket.leg.timestamps
                && self.0.len() < MOST
            {
                self.0
                    .insert(*key, (now_ms, stamps.peer, socket.leg.rcv_nxt));
            }
        }
    }

    /// The end's last timestamp and the number that went with it, if they are not too old.
    pub(super) fn of(&self, key: &FlowKey, now_ms: u64) -> Option<(u32, u32)> {
        let &(at, stamp, seq) = self.0.get(key)?;
        (now_ms < at + KEPT_MS).then_some((stamp, seq))
    }
}

#[cfg(test)]
mod tests {
    use fairlead_os_tcp::{Identity, STATE_BYTES};

    use super::*;

    #[test]
    fn clocks_are_known_for_a_second() {
        let mut bytes = [0; STATE_BYTES];
        (bytes[12], bytes[50], bytes[51]) = (9, 1, 2); // the peer's value, timestamps, IPv4
        let identity = Identity {
            local: Default::default(),
            peer: Default::default(),
        };
        let with = State::from_bytes(&bytes, identity).unwrap();
        bytes[50] = 0;
        let without = State::from_bytes(&bytes, identity).unwrap();
        let key = |port: u16| {
            let mut key = FlowKey::default();
            key.src.port = port;
            key
        };
        let mut clocks = Clocks::default();
        clocks.note(&[key(1), key(2)], [&with, &without], 5_000);
        assert_eq!(clocks.of(&key(1), 5_999), Some((9, 0)));
        assert_eq!(clocks.of(&key(1), 6_000), None);
        assert_eq!(clocks.of(&key(2), 5_000), None);
        for port in 0..MOST as u16 + 9 {
            clocks.note(&[key(port), key(port)], [&with, &with], 6_500);
        }
        assert_eq!(clocks.0.len(), MOST, "the others find no room");
        clocks.note(&[key(1), key(2)], [&with, &with], 9_000);
        assert_eq!(clocks.0.len(), 2, "old ones make room");
    }
}
