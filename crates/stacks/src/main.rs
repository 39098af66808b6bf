//! Workloads that are traced by `fairlead lab protocol run --stack NAME`:
//! `fairlead-stacks NAME SIZE PACKETS CONNECTIONS`.
//!
//! Each does the same work in each run: there is no clock, no chance and no I/O in it. The work on
//! a packet is between marks, the making of packets is not. Addresses of code and data are fixed,
//! so that a trace is the same byte for byte: the program is linked statically (`make stacks`).

mod datapath;
#[path = "../../../tracer/fairlead_packet.rs"]
mod fairlead_packet;
mod smoltcp_hosts;

use anyhow::{Context, Result, bail};

// The numbers are in `kinds`.
fairlead_packet::names!(
    b"SYN\nhead\nserver's SYN-ACK\nfull segment\nspliced ACK\n\
      client's FIN\nserver's FIN\nlast ACK\nTCP send\nTCP receive\nUDP send\nUDP receive"
);

/// Kinds of packets, in the order of their names.
mod kinds {
    pub(super) const SYN: u8 = 0;
    pub(super) const HEAD: u8 = 1;
    pub(super) const SYN_ACK: u8 = 2;
    pub(super) const FULL_SEGMENT: u8 = 3;
    pub(super) const ACK: u8 = 4;
    pub(super) const CLIENT_FIN: u8 = 5;
    pub(super) const SERVER_FIN: u8 = 6;
    pub(super) const LAST_ACK: u8 = 7;
    pub(super) const TCP_SEND: u8 = 8;
    pub(super) const TCP_RECEIVE: u8 = 9;
    pub(super) const UDP_SEND: u8 = 10;
    pub(super) const UDP_RECEIVE: u8 = 11;
}

/// What is done, how often.
#[derive(Clone, Copy, Debug)]
struct Amount {
    /// Payload of a packet or message, bytes.
    size: usize,
    /// Packets or messages of each kind.
    packets: u32,
    /// Connections among which packets are drawn.
    connections: u32,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, size, packets, connections] = &words[..] else {
        bail!("usage: fairlead-stacks NAME SIZE PACKETS CONNECTIONS");
    };
    let amount = Amount {
        size: size.parse().context("SIZE")?,
        packets: packets.parse().context("PACKETS")?,
        connections: connections.parse().context("CONNECTIONS")?,
    };
    match name.as_str() {
        "datapath" => datapath::run(amount, datapath::Family::V4),
        "datapath-ipv6" => datapath::run(amount, datapath::Family::V6),
        "smoltcp-tcp" => smoltcp_hosts::tcp(amount, true),
        "smoltcp-tcp-no-checksums" => smoltcp_hosts::tcp(amount, false),
        "smoltcp-udp" => smoltcp_hosts::udp(amount, true),
        "smoltcp-udp-no-checksums" => smoltcp_hosts::udp(amount, false),
        _ => bail!("{name}: no such workload"),
    }
}
