//! Clients whose connections the switch splices to sockets of the front, because the kernel makes
//! no sockets of them. The switch says who they are by a PROXY header in front of their first byte.

use core::time::Duration;
use std::collections::btree_map::Entry;

use fairlead_base::{Address, Endpoint, Instant};
use fairlead_wire::{Scan, proxy_protocol};

use crate::client::{Client, Phase};
use crate::conns::{Conn, ConnId, Side};
use crate::front::Front;

/// How long the header may take. It is sent with the first bytes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Stands for a client that has not been announced yet.
const NOBODY: Endpoint = Endpoint {
    addr: Address([0; 16]),
    port: 0,
};

impl Front {
    /// The switch has connected, for a client that it is to announce. `None` where it is turned
    /// away: close its socket.
    pub fn connected_for(&mut self, now: Instant) -> Option<ConnId> {
        if self.is_full() || self.draining {
            self.counts.numbers.front_turned_away += 1;
            return None;
        }
        let mut client = Client::new(NOBODY, NOBODY, 0);
        client.phase = Phase::Announcement;
        client.is_announced = true;
        *self.of_client.entry(NOBODY.addr.subscriber()).or_default() += 1;
        self.counts.numbers.front_accepted += 1;
        self.counts.numbers.front_clients += 1;
        let mut conn = Conn::new(Side::Client(Box::new(client)));
        conn.deadline = Some(now + PATIENCE);
        Some(self.conns.add(conn))
    }

    /// Reads who the client is. One that may not connect is reset.
    pub(crate) fn read_announcement(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let header = match proxy_protocol::parse(conn.input.bytes()) {
            Scan::Incomplete => return,
            Scan::Malformed(_) => None,
            Scan::Complete(header) => header.endpoints.map(|ends| (header.len, ends)),
        };
        let known = header.and_then(|(len, (client, listen))| {
            let service = self.service_of(listen)?;
            (!self.has_enough(client)).then_some((len, client, listen, service))
        });
        let Some((len, of, listen, service)) = known else {
            self.counts.numbers.front_turned_away += 1;
            return self.reset(id);
        };
        self.leave_client(NOBODY);
        *self.of_client.entry(of.addr.subscriber()).or_default() += 1;
        let head = self.config.services[usize::from(service)].timeouts.head;
        if let Some(conn) = self.conns.get(id) {
            conn.skip(len, &mut self.stock);
            conn.deadline = Some(now + head);
            if let Some(client) = conn.client() {
                (client.client, client.listen, client.service) = (of, listen, service);
                client.phase = Phase::Head;
            }
        }
        self.read_request(now, id);
    }

    /// The service at a listening endpoint.
    pub(crate) fn service_of(&self, listen: Endpoint) -> Option<u16> {
        let service = self.listens.iter().find(|(one, _)| *one == listen);
        service.map(|(_, service)| *service)
    }

    /// No further client is taken.
    pub(crate) fn is_full(&self) -> bool {
        self.counts.numbers.front_clients >= self.limits.clients as u64
    }

    /// The client has as many connections as it may have.
    pub(crate) fn has_enough(&self, client: Endpoint) -> bool {
        let most = self.config.limits.front_per_client;
        let of = client.addr.subscriber();
        self.of_client.get(&of).is_some_and(|count| *count >= most)
    }

    /// One connection of a client is no more.
    pub(crate) fn leave_client(&mut self, client: Endpoint) {
        if let Entry::Occupied(mut of) = self.of_client.entry(client.addr.subscriber()) {
            *of.get_mut() -= 1;
            if *of.get() == 0 {
                of.remove();
            }
        }
    }
}
