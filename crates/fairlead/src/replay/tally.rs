//! Counts what was replayed, and what was not and why.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use fairlead_base::{DropReason, FlowKey};
use fairlead_driver_pcap::NotIp;

use super::prepare::Unfit;

/// Why a captured packet was not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unplayed {
    /// It contains no IP packet.
    NotIp(NotIp),
    /// It contains an IP packet that is not a valid TCP packet.
    Unfit(Unfit),
    /// No service listens on its port.
    NoService,
    /// A service listens on its port, but not on an address of its family.
    NoFamily,
    /// Its connection began before the capture.
    Midstream,
    /// Its connection's SYN-ACK was not captured.
    NoSynAck,
    /// The switch did not answer its connection's SYN.
    SynIgnored,
    /// A repeated SYN-ACK that the client did not continue from.
    SpareSynAck,
    /// From a client that the switch has refused.
    AfterRefusal,
    /// From a server to which the switch did not connect.
    NotConnected,
    /// Too many concurrent connections.
    TooMany,
}

impl fmt::Display for Unplayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIp(what) => write!(f, "not IP: {what}"),
            Self::Unfit(Unfit::Broken(DropReason::NotTcp)) => f.write_str("neither TCP nor ICMP"),
            Self::Unfit(Unfit::Broken(reason)) => write!(f, "not a usable TCP packet: {reason}"),
            Self::Unfit(Unfit::Icmp) => f.write_str("ICMP"),
            Self::Unfit(Unfit::HeadersSnapped) => f.write_str("headers not captured completely"),
            Self::Unfit(Unfit::TooLong) => f.write_str("longer than 65,535 bytes"),
            Self::NoService => f.write_str("for a port that no service listens on"),
            Self::NoFamily => f.write_str("no service listens on an address of this family"),
            Self::Midstream => f.write_str("connection began before the capture"),
            Self::NoSynAck => f.write_str("SYN-ACK not captured"),
            Self::SynIgnored => f.write_str("the switch did not answer its SYN"),
            Self::SpareSynAck => f.write_str("SYN-ACK that the client did not continue from"),
            Self::AfterRefusal => f.write_str("after the switch refused the client"),
            Self::NotConnected => f.write_str("from a server that the switch did not connect to"),
            Self::TooMany => f.write_str("too many connections at once"),
        }
    }
}

impl Unplayed {
    /// A short name for programs.
    pub fn name(&self) -> String {
        match self {
            Self::NotIp(NotIp::Link(number)) => format!("link_type_{number}"),
            Self::NotIp(NotIp::Protocol(number)) => format!("protocol_{number:#06x}"),
            Self::NotIp(NotIp::Ieee8023) => "ieee_802_3".to_owned(),
            Self::NotIp(NotIp::Version(number)) => format!("ip_version_{number}"),
            Self::NotIp(NotIp::Short) => "short".to_owned(),
            Self::Unfit(Unfit::Broken(reason)) => reason.name().to_owned(),
            Self::Unfit(Unfit::Icmp) => "icmp".to_owned(),
            Self::Unfit(Unfit::HeadersSnapped) => "headers_snapped".to_owned(),
            Self::Unfit(Unfit::TooLong) => "too_long".to_owned(),
            Self::NoService => "no_service".to_owned(),
            Self::NoFamily => "no_family".to_owned(),
            Self::Midstream => "midstream".to_owned(),
            Self::NoSynAck => "no_syn_ack".to_owned(),
            Self::SynIgnored => "syn_ignored".to_owned(),
            Self::SpareSynAck => "spare_syn_ack".to_owned(),
            Self::AfterRefusal => "after_refusal".to_owned(),
            Self::NotConnected => "not_connected".to_owned(),
            Self::TooMany => "too_many".to_owned(),
        }
    }
}

/// Maximum flows and ports counted separately.
const DISTINCT_MAX: usize = 1 << 18;

/// Counts of a capture. Every packet is in either `played` or `unplayed`.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Packets read.
    pub packets: u64,
    /// Packets replayed.
    pub played: u64,
    /// Packets not replayed, by reason.
    pub unplayed: BTreeMap<Unplayed, u64>,
    /// Connections that began before the capture. A lower bound if there are very many.
    pub midstream: u64,
    /// SYNs for ports without a service, by port.
    pub strange_ports: BTreeMap<u16, u64>,
    /// Connections with a changed client port, because another live connection used the same port
    /// towards the same listening endpoint; in the capture they went to different servers.
    pub moved: u64,
    /// Packets not captured completely.
    pub snapped: u64,
    /// Packets with a corrected IP header.
    pub ip_repaired: u64,
    /// Packets with a corrected TCP checksum.
    pub tcp_repaired: u64,
    /// Packets replayed with a wrong TCP checksum.
    pub tcp_wrong: u64,
    /// Probes of the switch answered in the servers' place.
    pub probes: u64,
    /// Answers of the switch acknowledged in the clients' place.
    pub closed_for_clients: u64,
    /// Packets that the switch sent with a wrong checksum although its input was correct. 0 unless
    /// there is a bug.
    pub unsound: u64,
    flows: HashSet<FlowKey>,
}

impl Tally {
    /// Counts a packet that is not replayed.
    pub fn skip(&mut self, reason: Unplayed) {
        self.skip_many(reason, 1);
    }

    /// Counts several.
    pub fn skip_many(&mut self, reason: Unplayed, count: u64) {
        if count > 0 {
            *self.unplayed.entry(reason).or_insert(0) += count;
        }
    }

    /// Counts a packet of a connection that began before the capture.
    pub fn skip_midstream(&mut self, key: FlowKey) {
        self.skip(Unplayed::Midstream);
        if self.flows.len() < DISTINCT_MAX && self.flows.insert(key.min(key.reversed())) {
            self.midstream += 1;
        }
    }

    /// Counts a SYN for a port without a service.
    pub fn note_strange(&mut self, port: u16) {
        *self.strange_ports.entry(port).or_insert(0) += 1;
    }

    /// Packets not replayed, for any reason.
    pub fn unplayed_total(&self) -> u64 {
        self.unplayed.values().sum()
    }
}
