//! Fairlead's datapath, a packet a call: connections are set up, used and closed as real ones are.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fairlead_base::{Address, Checksum, Endpoint, FlowKey, Instant, Packet, Rng, SeqNumber};
use fairlead_datapath::config::{Config, Limits, Pool, PoolId, Protocol, Route, Server, Service};
use fairlead_datapath::{Datapath, Verdict};
use fairlead_wire::{Classified, SynOptions, TcpFlags, TcpPacket, TcpRepr, Timestamps, classify};

use crate::fairlead_packet::{begin, end};
use crate::{Amount, kinds};

const REQUEST: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: lab.example\r\n\r\n";
const OPTIONS: SynOptions = SynOptions {
    mss: Some(1460),
    window_scale: Some(7),
    sack_permitted: true,
    timestamps: Some(Timestamps { value: 1, echo: 0 }),
};
/// Between two rounds. Closed connections leave the table meanwhile.
const ROUND: Duration = Duration::from_millis(10);
/// Connections that are being closed, besides those that stay.
const CLOSING_MAX: u32 = 65_536;

/// The Internet protocol of all packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    fn address(self, [a, b, c, d]: [u8; 4]) -> Address {
        match self {
            Self::V4 => Address::v4([a, b, c, d]),
            Self::V6 => Address::v6([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]),
        }
    }

    fn endpoint(self, address: [u8; 4], port: u16) -> Endpoint {
        let addr = self.address(address);
        Endpoint { addr, port }
    }

    fn listen(self) -> Endpoint {
        self.endpoint([10, 1, 0, 3], 80)
    }

    /// The client of connection number `at`.
    fn client(self, at: u32) -> Endpoint {
        let [_, b, c, d] = (at / 50_000 + 1).to_be_bytes();
        self.endpoint([192, b, c, d], (1_024 + at % 50_000) as u16)
    }

    /// One HTTP service, source addresses from a /24, four servers.
    fn config(self, connections: u32) -> Config {
        let server = |port| Server::new(self.endpoint([10, 2, 0, 1], port));
        let route = Route {
            retries: 0,
            ..Route::new("all", Vec::new(), PoolId(0))
        };
        let service = Service {
            routes: vec![route],
            ..Service::new("web", vec![self.listen()], Protocol::Http)
        };
        let pool = Pool {
            connect_timeout: Duration::from_secs(2),
            probe_interval: Duration::from_secs(3600),
            ..Pool::new("pages", (8081..8085).map(server).collect())
        };
        let snat = (1..=254).map(|last| self.address([100, 64, 0, last]));
        Config {
            snat: snat.collect(),
            limits: Limits {
                connections,
                ..Limits::default()
            },
            ..Config::new(vec![service], vec![pool])
        }
    }
}

/// A connection, and the numbers of its next packets.
#[derive(Clone, Copy, Debug)]
struct Flow {
    from_client: FlowKey,
    from_server: FlowKey,
    client_nxt: SeqNumber,
    /// The server's next number as the client sees it.
    seen_nxt: SeqNumber,
    /// The server's next number as the server counts.
    server_nxt: SeqNumber,
    /// What the client must echo, and what the server must.
    stamps: (u32, u32),
}

struct World {
    datapath: Datapath,
    now: Instant,
    rng: Rng,
    syn_options: Vec<u8>,
    packets: Vec<Packet>,
    verdicts: Vec<Verdict>,
    out: Packet,
    is_marked: bool,
}

fn header(packet: &Packet) -> Result<TcpPacket> {
    match classify(&packet.bytes) {
        Ok(Classified::Tcp(header)) => Ok(header),
        other => bail!("not a TCP packet: {other:?}"),
    }
}

fn stamp_of(packet: &Packet) -> Result<u32> {
    let header = header(packet)?;
    let stamps = fairlead_wire::options::timestamps(header.options(&packet.bytes));
    Ok(stamps.context("timestamps were offered")?.value)
}

/// The timestamps option.
fn stamps(value: u32, echo: u32) -> [u8; 12] {
    let [a, b, c, d] = value.to_be_bytes();
    let [e, f, g, h] = echo.to_be_bytes();
    [1, 1, 8, 10, a, b, c, d, e, f, g, h]
}

/// What is particular to a segment.
struct Segment<'a> {
    key: FlowKey,
    seq: SeqNumber,
    ack: SeqNumber,
    flags: TcpFlags,
    options: &'a [u8],
    payload: &'a [u8],
}

impl World {
    /// A datapath whose servers have answered their probes.
    fn new(family: Family, connections: u32) -> Result<Self> {
        let now = Instant::from_millis(1_000);
        let mut syn_options = Vec::new();
        OPTIONS.emit(&mut syn_options);
        let mut world = Self {
            datapath: Datapath::new(family.config(connections), 7.into(), now)?,
            now,
            rng: Rng::new(11),
            syn_options,
            packets: vec![Packet::with_capacity()],
            verdicts: Vec::with_capacity(64),
            out: Packet::with_capacity(),
            is_marked: false,
        };
        world.datapath.handle_timeout(now);
        while world.datapath.poll_transmit(&mut world.out) {
            let probe = header(&world.out)?;
            let options = world.syn_options.clone();
            let answer = Segment {
                key: probe.key.reversed(),
                seq: SeqNumber(9),
                ack: probe.seq + 1,
                flags: TcpFlags::SYN | TcpFlags::ACK,
                options: &options,
                payload: &[],
            };
            world.handle(0, &answer)?;
        }
        while world.datapath.poll_event().is_some() {}
        Ok(world)
    }

    /// Has the datapath handle a segment; what it sends besides comes from [`World::transmitted`].
    fn handle(&mut self, kind: u8, segment: &Segment<'_>) -> Result<Verdict> {
        let packet = &mut self.packets[0];
        TcpRepr {
            key: segment.key,
            seq: segment.seq,
            ack: segment.ack,
            flags: segment.flags,
            window: 60_000,
            options: segment.options,
            payload: segment.payload,
            ttl: 64,
        }
        .emit(&mut packet.bytes);
        packet.checksum = Checksum::Verified;
        packet.gso = None;
        self.verdicts.clear();
        if self.is_marked {
            begin(kind);
            let (packets, verdicts) = (&mut self.packets, &mut self.verdicts);
            self.datapath.handle_batch(self.now, packets, verdicts);
            end(kind);
        } else {
            let (packets, verdicts) = (&mut self.packets, &mut self.verdicts);
            self.datapath.handle_batch(self.now, packets, verdicts);
        }
        self.verdicts
            .first()
            .copied()
            .context("a packet has a verdict")
    }

    /// The first packet that the datapath sends by itself.
    fn transmitted(&mut self) -> Result<TcpPacket> {
        ensure!(
            self.datapath.poll_transmit(&mut self.out),
            "nothing is sent"
        );
        header(&self.out)
    }

    fn drain(&mut self) {
        let mut rest = Packet::default();
        while self.datapath.poll_transmit(&mut rest) {}
        while self.datapath.poll_event().is_some() {}
    }

    /// Sets up connection number `at` until it is spliced.
    fn splice(&mut self, family: Family, at: u32) -> Result<Flow> {
        let (client, listen) = (family.client(at), family.listen());
        let key = FlowKey {
            src: client,
            dst: listen,
        };
        let isn = SeqNumber(self.rng.next_u64() as u32);
        let options = self.syn_options.clone();
        let syn = Segment {
            key,
            seq: isn,
            ack: SeqNumber(0),
            flags: TcpFlags::SYN,
            options: &options,
            payload: &[],
        };
        ensure!(
            self.handle(kinds::SYN, &syn)? == Verdict::Transmit,
            "no SYN-ACK"
        );
        let syn_ack = header(&self.packets[0])?;
        let ours = stamp_of(&self.packets[0])?;
        let head = Segment {
            key,
            seq: isn + 1,
            ack: syn_ack.seq + 1,
            flags: TcpFlags::ACK | TcpFlags::PSH,
            options: &stamps(2, ours),
            payload: REQUEST,
        };
        ensure!(
            self.handle(kinds::HEAD, &head)? == Verdict::Consumed,
            "the head is sent on"
        );
        let syn = self.transmitted()?;
        let to_server = stamp_of(&self.out)?;
        let server_isn = SeqNumber(self.rng.next_u64() as u32);
        let answer = Segment {
            key: syn.key.reversed(),
            seq: server_isn,
            ack: syn.seq + 1,
            flags: TcpFlags::SYN | TcpFlags::ACK,
            options: &options,
            payload: &[],
        };
        ensure!(
            self.handle(kinds::SYN_ACK, &answer)? == Verdict::Consumed,
            "no SYN-ACK is due"
        );
        self.drain();
        Ok(Flow {
            from_client: key,
            from_server: syn.key.reversed(),
            client_nxt: isn + 1 + REQUEST.len() as u32,
            seen_nxt: syn_ack.seq + 1,
            server_nxt: server_isn + 1,
            stamps: (ours, to_server),
        })
    }

    fn send_from_client(&mut self, kind: u8, flow: &Flow, flags: TcpFlags) -> Result<()> {
        let segment = Segment {
            key: flow.from_client,
            seq: flow.client_nxt,
            ack: flow.seen_nxt,
            flags,
            options: &stamps(3, flow.stamps.0),
            payload: &[],
        };
        let verdict = self.handle(kind, &segment)?;
        ensure!(
            verdict == Verdict::Transmit,
            "{flags:?} of a client: {verdict:?}"
        );
        Ok(())
    }

    fn send_from_server(
        &mut self,
        kind: u8,
        flow: &Flow,
        flags: TcpFlags,
        payload: &[u8],
    ) -> Result<()> {
        let segment = Segment {
            key: flow.from_server,
            seq: flow.server_nxt,
            ack: flow.client_nxt,
            flags,
            options: &stamps(3, flow.stamps.1),
            payload,
        };
        let verdict = self.handle(kind, &segment)?;
        ensure!(
            verdict == Verdict::Transmit,
            "{flags:?} of a server: {verdict:?}"
        );
        Ok(())
    }

    /// Both sides close a connection, the client first.
    fn close(&mut self, flow: &mut Flow) -> Result<()> {
        let fin = TcpFlags::FIN | TcpFlags::ACK;
        self.send_from_client(kinds::CLIENT_FIN, flow, fin)?;
        flow.client_nxt += 1;
        self.send_from_server(kinds::SERVER_FIN, flow, fin, &[])?;
        flow.server_nxt += 1;
        flow.seen_nxt += 1;
        self.send_from_client(kinds::LAST_ACK, flow, TcpFlags::ACK)?;
        self.drain();
        Ok(())
    }
}

/// Splices `connections` connections. Then, in each round, one of them receives a full segment and
/// acknowledges it, and one more is set up and closed.
pub(crate) fn run(amount: Amount, family: Family) -> Result<()> {
    let Amount {
        size,
        packets,
        connections,
    } = amount;
    let mut world = World::new(family, connections + packets.min(CLOSING_MAX))?;
    let mut flows = Vec::with_capacity(connections as usize);
    for at in 0..connections {
        flows.push(world.splice(family, at)?);
    }
    let payload = vec![0x5a; size];
    world.is_marked = true;
    for round in 0..packets {
        let mut new = world.splice(family, connections + round)?;
        let at = world.rng.below(connections) as usize;
        let mut flow = flows[at];
        let flags = TcpFlags::ACK | TcpFlags::PSH;
        world.send_from_server(kinds::FULL_SEGMENT, &flow, flags, &payload)?;
        flow.server_nxt += size as u32;
        flow.seen_nxt += size as u32;
        world.send_from_client(kinds::ACK, &flow, TcpFlags::ACK)?;
        flows[at] = flow;
        world.close(&mut new)?;
        world.now = world.now + ROUND;
        world.datapath.handle_timeout(world.now);
        world.drain();
    }
    Ok(())
}
