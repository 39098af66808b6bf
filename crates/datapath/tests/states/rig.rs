//! A datapath with a scripted client and a scripted server.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, Instant, Packet};
use fairlead_datapath::config::{
    Balance, Config, Limits, Matcher, Pool, PoolId, Protocol, Route, Server, Service, Source,
    Timeouts, Treatment, Unmatched,
};
use fairlead_datapath::{Datapath, Event, Verdict};
use fairlead_testkit::{Segment, endpoint, segment, tcp};
use fairlead_wire::options::timestamps;
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, Timestamps};

pub(crate) const REQUEST: &[u8] = b"GET /a.jpg HTTP/1.1\r\nHost: example.com\r\n\r\n";

/// Options of a Linux client's SYN.
pub(crate) fn linux(ts: u32) -> SynOptions {
    SynOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: ts, echo: 0 }),
    }
}

/// A packet that left the switch.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) header: TcpPacket,
    pub(crate) packet: Packet,
}

impl Sent {
    fn new(packet: Packet) -> Self {
        // Checks the checksum too.
        Self {
            header: tcp(&packet),
            packet,
        }
    }

    pub(crate) fn payload(&self) -> &[u8] {
        self.header.payload(&self.packet.bytes)
    }

    pub(crate) fn options(&self) -> &[u8] {
        self.header.options(&self.packet.bytes)
    }

    pub(crate) fn timestamps(&self) -> Option<Timestamps> {
        timestamps(self.options())
    }

    pub(crate) fn syn_options(&self) -> SynOptions {
        SynOptions::parse(self.options()).unwrap()
    }
}

pub(crate) fn server(text: &str) -> Server {
    Server {
        endpoint: endpoint(text),
        weight: 1,
    }
}

pub(crate) fn route(matchers: Vec<Matcher>, pool: u16) -> Route {
    Route {
        name: format!("to-{pool}"),
        matchers,
        pool: PoolId(pool),
        treatment: Treatment::Splice,
        retries: 2,
    }
}

pub(crate) fn pool(name: &str, servers: &[&str]) -> Pool {
    Pool {
        name: name.into(),
        balance: Balance::RoundRobin,
        servers: servers.iter().map(|text| server(text)).collect(),
        proxy_protocol: None,
        connect_timeout: Duration::from_secs(2),
    }
}

/// One HTTP service on 10.1.0.3:80; `*.jpg` goes to 10.2.0.1:8081, all else to 10.2.0.2:8082.
pub(crate) fn http_config() -> Config {
    Config {
        services: vec![Service {
            name: "web".into(),
            listen: vec![endpoint("10.1.0.3:80")],
            protocol: Protocol::Http,
            source: Source::Snat,
            routes: vec![
                route(vec![Matcher::PathSuffix(vec![".jpg".into()])], 0),
                route(vec![], 1),
            ],
            unmatched: Unmatched::NotFound,
            timeouts: Timeouts::default(),
            head_bytes_max: 16 << 10,
        }],
        pools: vec![
            pool("images", &["10.2.0.1:8081"]),
            pool("pages", &["10.2.0.2:8082"]),
        ],
        snat: vec![endpoint("100.64.0.1:0").addr, endpoint("100.64.0.2:0").addr],
        limits: Limits {
            connections: 64,
            ..Limits::default()
        },
        probe_interval: Duration::from_secs(10),
        device_mss: 1460,
    }
}

/// The switch, its client and its servers.
pub(crate) struct Rig {
    pub(crate) datapath: Datapath,
    pub(crate) now: Instant,
    pub(crate) client: Endpoint,
    pub(crate) vip: Endpoint,
    pub(crate) last: Option<Verdict>,
}

impl Rig {
    /// A switch whose servers have not been heard of.
    pub(crate) fn new(config: Config) -> Self {
        let vip = config.services[0].listen[0];
        let client = if vip.addr.is_v4() {
            "192.0.2.7:40000"
        } else {
            "[2001:db8::7]:40000"
        };
        let now = Instant::from_millis(1_000);
        Self {
            datapath: Datapath::new(config, 42, now).unwrap(),
            now,
            client: endpoint(client),
            vip,
            last: None,
        }
    }

    /// A switch whose servers have all answered a probe with these options.
    pub(crate) fn probed(config: Config, options: &SynOptions) -> Self {
        let mut rig = Self::new(config);
        for probe in rig.wait(Duration::ZERO) {
            assert_eq!(probe.header.flags, TcpFlags::SYN);
            let key = probe.header.key;
            let answer = segment(key.dst, key.src)
                .flags(TcpFlags::SYN | TcpFlags::ACK)
                .seq(77_000)
                .ack(probe.header.seq.0.wrapping_add(1))
                .syn_options(options);
            let reset = rig.put(&answer);
            assert_eq!(reset.len(), 1);
            assert_eq!(reset[0].header.flags, TcpFlags::RST);
        }
        while rig.datapath.poll_event().is_some() {}
        rig
    }

    /// Lets the switch have a packet; what leaves it, the packet itself first if it is passed on.
    pub(crate) fn put(&mut self, segment: &Segment) -> Vec<Sent> {
        self.put_packet(segment.packet())
    }

    pub(crate) fn put_packet(&mut self, mut packet: Packet) -> Vec<Sent> {
        let verdict = self.datapath.handle_packet(self.now, &mut packet);
        self.last = Some(verdict);
        let mut sent = Vec::new();
        if verdict == Verdict::Transmit {
            sent.push(Sent::new(packet));
        }
        self.fetch(&mut sent);
        sent
    }

    fn fetch(&mut self, sent: &mut Vec<Sent>) {
        let mut packet = Packet::default();
        while self.datapath.poll_transmit(&mut packet) {
            sent.push(Sent::new(packet.clone()));
        }
    }

    /// Lets time pass, stopping wherever the switch wants to be called; what it sends meanwhile.
    pub(crate) fn wait(&mut self, time: Duration) -> Vec<Sent> {
        let until = self.now + time;
        let mut sent = Vec::new();
        while let Some(due) = self.datapath.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.datapath.handle_timeout(self.now);
            self.fetch(&mut sent);
        }
        self.now = until;
        sent
    }

    /// Begins a segment from the client.
    pub(crate) fn by_client(&self) -> Segment {
        segment(self.client, self.vip)
    }

    /// A SYN of the client with this number; the switch's SYN-ACK.
    pub(crate) fn syn(&mut self, isn: u32, options: &SynOptions) -> Sent {
        let syn = self
            .by_client()
            .flags(TcpFlags::SYN)
            .seq(isn)
            .syn_options(options);
        let mut sent = self.put(&syn);
        assert_eq!(sent.len(), 1, "a SYN has one answer");
        sent.remove(0)
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.datapath.poll_event()).collect()
    }

    #[track_caller]
    pub(crate) fn assert_dropped(&self, reason: DropReason) {
        assert_eq!(self.last, Some(Verdict::Drop(reason)));
    }

    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.datapath.snapshot().drops.of(reason)
    }
}

/// A connection that has been spliced, and the numbers of its ends.
pub(crate) struct Joined {
    pub(crate) rig: Rig,
    /// Where the server's packets go.
    pub(crate) source: Endpoint,
    pub(crate) server: Endpoint,
    /// Next number of the client, the same on both sides.
    pub(crate) client_nxt: u32,
    /// Next number of the server as the client sees it, and as the server counts.
    pub(crate) seen_nxt: u32,
    pub(crate) server_nxt: u32,
    /// Clocks of the server's timestamps: as the client sees them, and as the server counts.
    pub(crate) seen_ts: u32,
    pub(crate) server_ts: u32,
}

/// Client options, server options, numbers: everything that makes two ends differ.
pub(crate) struct Ends {
    pub(crate) client: SynOptions,
    pub(crate) server: SynOptions,
    pub(crate) client_isn: u32,
    pub(crate) server_isn: u32,
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            client: linux(5_000),
            server: linux(900_000),
            client_isn: 1_000,
            server_isn: 0xffff_ff00,
        }
    }
}

impl Joined {
    /// Takes a client through handshake, request and splice.
    pub(crate) fn with(config: Config, ends: &Ends) -> Self {
        let mut rig = Rig::probed(config, &ends.server);
        let syn_ack = rig.syn(ends.client_isn, &ends.client);
        let dseq = syn_ack.header.seq.0;
        let offered = syn_ack.syn_options();
        let stamps = offered.timestamps;
        let mut data = rig
            .by_client()
            .flags(TcpFlags::ACK | TcpFlags::PSH)
            .seq(ends.client_isn.wrapping_add(1))
            .ack(dseq.wrapping_add(1))
            .payload(REQUEST);
        if let Some(ours) = stamps {
            data = data.timestamps(5_010, ours.value);
        }
        let to_server = rig.put(&data);
        assert_eq!(to_server.len(), 1, "the request leads to a SYN to a server");
        let syn = &to_server[0];
        assert_eq!(syn.header.flags, TcpFlags::SYN);
        let (source, server) = (syn.header.key.src, syn.header.key.dst);
        let answer = segment(server, source)
            .flags(TcpFlags::SYN | TcpFlags::ACK)
            .seq(ends.server_isn)
            .ack(syn.header.seq.0.wrapping_add(1))
            .syn_options(&ends.server);
        let request = rig.put(&answer);
        let payload: Vec<u8> = request
            .iter()
            .flat_map(|sent| sent.payload().to_vec())
            .collect();
        assert!(payload.ends_with(&REQUEST[REQUEST.len() - 4..]));
        Self {
            source,
            server,
            client_nxt: ends.client_isn.wrapping_add(1 + REQUEST.len() as u32),
            seen_nxt: dseq.wrapping_add(1),
            server_nxt: ends.server_isn.wrapping_add(1),
            seen_ts: stamps.map_or(0, |stamps| stamps.value),
            server_ts: ends.server.timestamps.map_or(0, |stamps| stamps.value),
            rig,
        }
    }

    /// Begins a segment from the server.
    pub(crate) fn by_server(&self) -> Segment {
        segment(self.server, self.source)
            .seq(self.server_nxt)
            .ack(self.client_nxt)
    }

    /// Begins a segment from the client.
    pub(crate) fn by_client(&self) -> Segment {
        self.rig
            .by_client()
            .seq(self.client_nxt)
            .ack(self.seen_nxt)
    }
}
