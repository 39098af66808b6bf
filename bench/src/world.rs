//! A datapath with many spliced connections, made the way real ones are: packet by packet.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_base::{Address, Checksum, Endpoint, FlowKey, Instant, Packet, Rng, SeqNumber};
use fairlead_datapath::config::{Config, Limits, Pool, PoolId, Protocol, Route, Server, Service};
use fairlead_datapath::{Datapath, Verdict};
use fairlead_wire::{Classified, SynOptions, TcpFlags, TcpPacket, TcpRepr, Timestamps, classify};

const REQUEST: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: bench.example\r\n\r\n";

fn v4(a: u8, b: u8, c: u8, d: u8) -> Address {
    Address::v4([a, b, c, d])
}

/// The listening endpoint.
pub(crate) fn listen() -> Endpoint {
    Endpoint {
        addr: v4(10, 1, 0, 3),
        port: 80,
    }
}

/// One HTTP service, source addresses from a /24, four servers.
pub(crate) fn config(connections: u32) -> Config {
    let server = |port| {
        Server::new(Endpoint {
            addr: v4(10, 2, 0, 1),
            port,
        })
    };
    let route = Route {
        retries: 0,
        ..Route::new("all", Vec::new(), PoolId(0))
    };
    let service = Service {
        routes: vec![route],
        ..Service::new("web", vec![listen()], Protocol::Http)
    };
    let pool = Pool {
        connect_timeout: Duration::from_secs(2),
        probe_interval: Duration::from_secs(3600),
        ..Pool::new("pages", (8081..8085).map(server).collect())
    };
    Config {
        snat: (1..=254).map(|last| v4(100, 64, 0, last)).collect(),
        limits: Limits {
            connections,
            ..Limits::default()
        },
        ..Config::new(vec![service], vec![pool])
    }
}

/// The client of connection number `at`.
pub(crate) fn client(at: u32) -> Endpoint {
    let [_, b, c, d] = (at / 50_000 + 1).to_be_bytes();
    Endpoint {
        addr: v4(192, b, c, d),
        port: (1_024 + at % 50_000) as u16,
    }
}

/// Where a connection's packets come from, and the numbers they carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// Packets from the client.
    pub(crate) from_client: FlowKey,
    /// Packets from the server.
    pub(crate) from_server: FlowKey,
    /// The client's next number.
    pub(crate) client_nxt: SeqNumber,
    /// The server's next number as the client sees it.
    pub(crate) seen_nxt: SeqNumber,
    /// The server's next number as the server counts.
    pub(crate) server_nxt: SeqNumber,
}

/// A datapath and its connections.
pub(crate) struct World {
    /// The datapath.
    pub(crate) datapath: Datapath,
    /// Its connections.
    pub(crate) flows: Vec<Flow>,
    /// Now.
    pub(crate) now: Instant,
}

fn header(packet: &Packet) -> Result<TcpPacket> {
    match classify(&packet.bytes) {
        Ok(Classified::Tcp(header)) => Ok(header),
        other => anyhow::bail!("not a TCP packet: {other:?}"),
    }
}

const OPTIONS: SynOptions = SynOptions {
    mss: Some(1460),
    window_scale: Some(7),
    sack_permitted: true,
    timestamps: Some(Timestamps { value: 1, echo: 0 }),
};

/// A segment for the datapath.
pub(crate) fn segment(
    packet: &mut Packet,
    key: FlowKey,
    seq: SeqNumber,
    ack: SeqNumber,
    flags: TcpFlags,
    options: &[u8],
    payload: &[u8],
) {
    TcpRepr {
        key,
        seq,
        ack,
        flags,
        window: 60_000,
        options,
        payload,
        ttl: 64,
    }
    .emit(&mut packet.bytes);
    packet.checksum = Checksum::Verified;
    packet.gso = None;
}

fn stamps(value: u32, echo: u32) -> [u8; 12] {
    let mut options = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    options[4..8].copy_from_slice(&value.to_be_bytes());
    options[8..12].copy_from_slice(&echo.to_be_bytes());
    options
}

impl World {
    /// A datapath whose servers have answered their probes.
    pub(crate) fn new(connections: u32) -> Result<Self> {
        let now = Instant::from_millis(1_000);
        let datapath = Datapath::new(config(connections), 7.into(), now)?;
        let mut world = Self {
            datapath,
            flows: Vec::new(),
            now,
        };
        world.datapath.handle_timeout(now);
        let (mut probe, mut answer) = (Packet::default(), Packet::default());
        let mut options = Vec::new();
        OPTIONS.emit(&mut options);
        while world.datapath.poll_transmit(&mut probe) {
            let probe = header(&probe)?;
            let flags = TcpFlags::SYN | TcpFlags::ACK;
            let seq = SeqNumber(9);
            segment(
                &mut answer,
                probe.key.reversed(),
                seq,
                probe.seq + 1,
                flags,
                &options,
                &[],
            );
            world.datapath.handle_packet(now, &mut answer);
        }
        while world.datapath.poll_event().is_some() {}
        Ok(world)
    }

    /// Splices `count` connections; `progress` is called now and then with the current number.
    pub(crate) fn splice(&mut self, count: u32, mut progress: impl FnMut(u32)) -> Result<()> {
        let mut rng = Rng::new(11);
        let mut syn_options = Vec::new();
        OPTIONS.emit(&mut syn_options);
        let (mut packet, mut out) = (Packet::with_capacity(), Packet::with_capacity());
        self.flows.reserve_exact(count as usize);
        for at in 0..count {
            let key = FlowKey {
                src: client(at),
                dst: listen(),
            };
            let isn = SeqNumber(rng.next_u64() as u32);
            let none = SeqNumber(0);
            segment(
                &mut packet,
                key,
                isn,
                none,
                TcpFlags::SYN,
                &syn_options,
                &[],
            );
            ensure!(self.datapath.handle_packet(self.now, &mut packet) == Verdict::Transmit);
            let syn_ack = header(&packet)?;
            let ours = fairlead_wire::options::timestamps(syn_ack.options(&packet.bytes))
                .context("timestamps were offered")?;
            let (seq, ack) = (isn + 1, syn_ack.seq + 1);
            let flags = TcpFlags::ACK | TcpFlags::PSH;
            segment(
                &mut packet,
                key,
                seq,
                ack,
                flags,
                &stamps(2, ours.value),
                REQUEST,
            );
            ensure!(self.datapath.handle_packet(self.now, &mut packet) == Verdict::Consumed);
            ensure!(
                self.datapath.poll_transmit(&mut out),
                "a SYN goes to a server"
            );
            let syn = header(&out)?;
            let server_isn = SeqNumber(rng.next_u64() as u32);
            let from_server = syn.key.reversed();
            let flags = TcpFlags::SYN | TcpFlags::ACK;
            let seq = server_isn;
            segment(
                &mut packet,
                from_server,
                seq,
                syn.seq + 1,
                flags,
                &syn_options,
                &[],
            );
            ensure!(self.datapath.handle_packet(self.now, &mut packet) == Verdict::Consumed);
            while self.datapath.poll_transmit(&mut out) {}
            while self.datapath.poll_event().is_some() {}
            self.flows.push(Flow {
                from_client: key,
                from_server,
                client_nxt: isn + 1 + REQUEST.len() as u32,
                seen_nxt: syn_ack.seq + 1,
                server_nxt: server_isn + 1,
            });
            if at % 65_536 == 0 {
                progress(at);
            }
        }
        let live = self.datapath.snapshot().live;
        ensure!(
            live == u64::from(count),
            "{live} of {count} connections are spliced"
        );
        Ok(())
    }
}
