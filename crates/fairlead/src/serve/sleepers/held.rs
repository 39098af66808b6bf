//! Requests that wait until somebody listens: a bounded number of packets, one of each client.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use fairlead_base::{Endpoint, FlowKey};
use fairlead_datapath::Held;

/// Packets that wait, at most.
const PACKETS_MAX: usize = 4_096;
/// Their bytes, at most.
const BYTES_MAX: usize = 8 << 20;

/// What waits, and what waits no longer and has yet to be handled.
#[derive(Debug, Default)]
pub(super) struct HeldRequests {
    waiting: BTreeMap<FlowKey, Waiting>,
    bytes: usize,
    ready: BTreeMap<FlowKey, Held>,
}

#[derive(Debug)]
struct Waiting {
    listener: Endpoint,
    until: Instant,
    packet: Vec<u8>,
}

impl HeldRequests {
    /// Holds a packet. One that its client repeats takes the place of the first, and waits no
    /// longer than that. False when it is full.
    pub(super) fn hold(
        &mut self,
        client: &FlowKey,
        listener: Endpoint,
        until: Instant,
        packet: &[u8],
    ) -> bool {
        let former = self.take(client);
        let count = self.waiting.len() + self.ready.len();
        if count >= PACKETS_MAX || self.bytes + packet.len() > BYTES_MAX {
            return false;
        }
        self.bytes += packet.len();
        let waiting = Waiting {
            listener,
            until: former.map_or(until, |one| one.until),
            packet: packet.to_vec(),
        };
        self.waiting.insert(*client, waiting);
        true
    }

    /// A packet that need not wait.
    pub(super) fn hand_on(&mut self, client: &FlowKey, packet: Vec<u8>) {
        self.forget(client);
        // As many as have sockets that end at one time.
        let is_late = false;
        self.ready.insert(*client, Held { packet, is_late });
    }

    /// Its client has sent it again, and was heard.
    pub(super) fn forget(&mut self, client: &FlowKey) {
        self.take(client);
        self.ready.remove(client);
    }

    /// Whether something waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether something waits no longer.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whose listeners are waited for.
    pub(super) fn listeners(&self) -> BTreeSet<Endpoint> {
        self.waiting.values().map(|one| one.listener).collect()
    }

    /// Ends the wait for these listeners, and of all whose time is over.
    pub(super) fn release(&mut self, now: Instant, listening: &BTreeSet<Endpoint>) {
        let over = |one: &Waiting| listening.contains(&one.listener) || one.until <= now;
        let all = self.waiting.iter().filter(|(_, one)| over(one));
        let all: Vec<FlowKey> = all.map(|(client, _)| *client).collect();
        for client in all {
            if let Some(one) = self.take(&client) {
                let held = Held {
                    packet: one.packet,
                    is_late: !listening.contains(&one.listener),
                };
                self.ready.insert(client, held);
            }
        }
    }

    /// The next packet that waits no longer.
    pub(super) fn next_ready(&mut self) -> Option<Held> {
        self.ready.pop_first().map(|(_, held)| held)
    }

    fn take(&mut self, client: &FlowKey) -> Option<Waiting> {
        let one = self.waiting.remove(client)?;
        self.bytes -= one.packet.len();
        Some(one)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairlead_testkit::endpoint;

    use super::*;

    fn client(number: u16) -> FlowKey {
        let mut src = endpoint("192.0.2.7:1");
        src.port = number;
        FlowKey {
            src,
            dst: endpoint("192.0.2.1:80"),
        }
    }

    #[test]
    fn each_waits_for_its_own_listener_and_for_its_time() {
        let (one, other) = (endpoint("127.0.0.1:1"), endpoint("127.0.0.1:2"));
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut held = HeldRequests::default();
        assert!(held.hold(&client(1), one, after(5), b"first"));
        assert!(held.hold(&client(2), other, after(5), b"second"));
        assert!(held.hold(&client(1), one, after(9), b"repeated"));
        assert_eq!(held.listeners(), BTreeSet::from([one, other]));
        held.release(start, &BTreeSet::new());
        assert!(held.next_ready().is_none());
        held.release(start, &BTreeSet::from([other]));
        let ready = held.next_ready().unwrap();
        assert_eq!((&ready.packet[..], ready.is_late), (&b"second"[..], false));
        // From its first time on.
        held.release(after(5), &BTreeSet::new());
        let late = held.next_ready().unwrap();
        assert_eq!((&late.packet[..], late.is_late), (&b"repeated"[..], true));
        assert!(!held.is_waiting() && !held.is_ready());
        assert_eq!(held.bytes, 0);
    }

    #[test]
    fn what_was_heard_meanwhile_is_not_handed_on() {
        let listener = endpoint("127.0.0.1:1");
        let mut held = HeldRequests::default();
        held.hold(&client(1), listener, Instant::now(), b"x");
        held.forget(&client(1));
        held.hand_on(&client(2), b"y".to_vec());
        held.forget(&client(2));
        assert!(!held.is_waiting() && held.next_ready().is_none());
    }

    #[test]
    fn a_full_one_refuses_by_number_and_by_bytes() {
        let listener = endpoint("127.0.0.1:1");
        let now = Instant::now();
        let mut held = HeldRequests::default();
        for number in 0..PACKETS_MAX as u16 {
            assert!(held.hold(&client(number), listener, now, b"x"));
        }
        assert!(!held.hold(&client(u16::MAX), listener, now, b"x"));
        assert!(
            held.hold(&client(0), listener, now, b"y"),
            "in its own place"
        );
        let mut held = HeldRequests::default();
        let long = vec![0; BYTES_MAX / 2];
        assert!(held.hold(&client(0), listener, now, &long));
        assert!(held.hold(&client(1), listener, now, &long));
        assert!(!held.hold(&client(2), listener, now, b"x"));
        held.forget(&client(1));
        assert!(held.hold(&client(2), listener, now, b"x"));
    }
}
