//! Which end of a connection is the client.
//!
//! A SYN or a SYN-ACK shows it. Connections that were open before the capture are decided when more
//! is known, after up to [`PENDING_MAX`] packets: an endpoint to which a SYN was sent is a server
//! in other connections, too. Otherwise the end with more connections is the server, since a client
//! takes a port of its own for each. Otherwise the one with the lower port, and the connection
//! counts as guessed.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use fairlead_base::{Endpoint, FlowKey};
use fairlead_wire::{TcpFlags, TcpPacket};

/// Packets that wait for the decision; 24 bytes each.
const PENDING_MAX: usize = 1 << 22;

/// Connections, and known servers. Above it all are forgotten; connections that go on are decided
/// again.
const FLOWS_MAX: usize = 1 << 20;

/// A packet whose direction is still to be decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// The packet's number in the capture, from 1.
    pub(super) number: u64,
    /// Its time.
    pub(super) time_us: i64,
    flow: u32,
    /// Sent by the end that sent the connection's first packet.
    forward: bool,
    /// Its hint for a cache.
    pub(super) hint: u8,
}

/// A packet whose direction is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decided {
    /// The client of its connection.
    pub(super) client: Endpoint,
    /// True if the client sent it.
    pub(super) from_client: bool,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// As its first packet had it.
    key: FlowKey,
    /// Whether the source of `key` is the client, once that is known.
    forward: Option<bool>,
}

/// The connections of a capture.
#[derive(Debug, Default)]
pub(super) struct Roles {
    flows: Vec<Flow>,
    by_key: BTreeMap<FlowKey, u32>,
    servers: BTreeSet<Endpoint>,
    pending: Vec<Pending>,
    guessed: u64,
}

impl Roles {
    /// Connections whose client was guessed by port numbers.
    pub(super) fn guessed(&self) -> u64 {
        self.guessed
    }

    /// Packets that wait for a decision.
    pub(super) fn waiting(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Takes a packet. True when [`Roles::decide`] is due.
    pub(super) fn push(&mut self, number: u64, time_us: i64, packet: &TcpPacket, hint: u8) -> bool {
        let (flow, forward) = self.flow(packet.key);
        let flow = match packet.flags.contains(TcpFlags::SYN) {
            true => self.opened(flow, forward, packet),
            false => flow,
        };
        self.pending.push(Pending {
            number,
            time_us,
            flow,
            forward: self.flows[flow as usize].key == packet.key,
            hint,
        });
        self.pending.len() >= PENDING_MAX || self.flows.len() >= FLOWS_MAX
    }

    /// The connection of a packet, new or known, and whether the packet goes the way of its first.
    fn flow(&mut self, key: FlowKey) -> (u32, bool) {
        if let Some(flow) = self.by_key.get(&key) {
            return (*flow, true);
        }
        if let Some(flow) = self.by_key.get(&key.reversed()) {
            return (*flow, false);
        }
        (self.add(key, None), true)
    }

    fn add(&mut self, key: FlowKey, forward: Option<bool>) -> u32 {
        let number = self.flows.len() as u32;
        self.flows.push(Flow { key, forward });
        self.by_key.remove(&key.reversed());
        self.by_key.insert(key, number);
        number
    }

    /// A SYN or SYN-ACK says who the client is. If the ends were the other way round until now, it
    /// is another connection.
    fn opened(&mut self, flow: u32, forward: bool, packet: &TcpPacket) -> u32 {
        let from_client = !packet.flags.contains(TcpFlags::ACK);
        let server = match from_client {
            true => packet.key.dst,
            false => packet.key.src,
        };
        if self.servers.len() < FLOWS_MAX {
            self.servers.insert(server);
        }
        let known = &mut self.flows[flow as usize].forward;
        let is = forward == from_client;
        if known.is_none_or(|known| known == is) {
            *known = Some(is);
            return flow;
        }
        self.add(packet.key, Some(from_client))
    }

    /// Decides about all connections and gives the waiting packets in their order to `each`.
    pub(super) fn decide<E>(
        &mut self,
        mut each: impl FnMut(Pending, Decided) -> Result<(), E>,
    ) -> Result<(), E> {
        self.decide_flows();
        for pending in self.pending.drain(..) {
            let Flow { key, forward } = self.flows[pending.flow as usize];
            let is_forward = forward == Some(true);
            let client = if is_forward { key.src } else { key.dst };
            let from_client = pending.forward == is_forward;
            let decided = Decided {
                client,
                from_client,
            };
            each(pending, decided)?;
        }
        if self.flows.len() >= FLOWS_MAX {
            self.flows.clear();
            self.by_key.clear();
        }
        if self.servers.len() >= FLOWS_MAX {
            self.servers.clear();
        }
        Ok(())
    }

    fn decide_flows(&mut self) {
        if self.flows.iter().all(|flow| flow.forward.is_some()) {
            return;
        }
        let mut connections: BTreeMap<Endpoint, u32> = BTreeMap::new();
        for flow in &self.flows {
            for end in [flow.key.src, flow.key.dst] {
                *connections.entry(end).or_insert(0) += 1;
            }
        }
        let Self {
            flows,
            servers,
            guessed,
            ..
        } = self;
        for flow in flows.iter_mut().filter(|flow| flow.forward.is_none()) {
            let FlowKey { src, dst } = flow.key;
            let known = servers.contains(&dst).cmp(&servers.contains(&src));
            let busier = connections.get(&dst).cmp(&connections.get(&src));
            let forward = match known.then(busier) {
                Ordering::Greater => true,
                Ordering::Less => false,
                Ordering::Equal => {
                    *guessed += 1;
                    src.port > dst.port || src.port == dst.port && src.addr <= dst.addr
                }
            };
            flow.forward = Some(forward);
        }
    }
}
