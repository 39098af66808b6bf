//! A datapath with a scripted client and a scripted server.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, Instant, Packet, Seed, SeqNumber};
use fairlead_datapath::config::{
    Config, Limits, Matcher, Pool, PoolId, Protocol, Route, Server, Service,
};
use fairlead_datapath::tcb_cache::{Scheme, Settings};
use fairlead_datapath::{Datapath, End, Event, Side, State, Verdict, Whose};
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
    /// Of one that the switch made: whose it was when it was taken.
    pub(crate) whose: Option<Whose>,
}

impl Sent {
    fn new(packet: Packet) -> Self {
        // Checks the checksum too.
        Self {
            header: tcp(&packet),
            packet,
            whose: None,
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
    Server::new(endpoint(text))
}

pub(crate) fn route(matchers: Vec<Matcher>, pool: u16) -> Route {
    Route::new(format!("to-{pool}"), matchers, PoolId(pool))
}

pub(crate) fn pool(name: &str, servers: &[&str]) -> Pool {
    Pool {
        connect_timeout: Duration::from_secs(2),
        // Once, at the start: tests of probes say otherwise.
        probe_interval: Duration::from_secs(86_400),
        ..Pool::new(name, servers.iter().map(|text| server(text)).collect())
    }
}

/// Has all servers probed so often.
pub(crate) fn probe_every(config: &mut Config, interval: Duration) {
    for pool in &mut config.pools {
        pool.probe_interval = interval;
    }
}

/// One HTTP service on 10.1.0.3:80; `*.jpg` goes to 10.2.0.1:8081, all else to 10.2.0.2:8082.
pub(crate) fn http_config() -> Config {
    let service = Service {
        routes: vec![
            route(vec![Matcher::PathSuffix(vec![".jpg".into()])], 0),
            route(vec![], 1),
        ],
        ..Service::new("web", vec![endpoint("10.1.0.3:80")], Protocol::Http)
    };
    let pools = vec![
        pool("images", &["10.2.0.1:8081"]),
        pool("pages", &["10.2.0.2:8082"]),
    ];
    Config {
        snat: vec![endpoint("100.64.0.1:0").addr, endpoint("100.64.0.2:0").addr],
        limits: Limits {
            connections: 64,
            ..Limits::default()
        },
        ..Config::new(vec![service], pools)
    }
}

/// The same over IPv6.
pub(crate) fn v6_config() -> Config {
    let mut config = http_config();
    config.services[0].listen = vec![endpoint("[2001:db8:1::3]:80")];
    config.pools[0].servers = vec![server("[2001:db8:2::1]:8081")];
    config.pools[1].servers = vec![server("[2001:db8:2::2]:8082")];
    config.snat = vec![endpoint("[2001:db8:64::1]:0").addr];
    config
}

/// A configuration whose first service has this protocol, and one pool of these servers.
pub(crate) fn simple_config(protocol: Protocol, servers: &[&str]) -> Config {
    let mut config = http_config();
    config.services[0].protocol = protocol;
    config.services[0].routes = vec![route(vec![], 0)];
    config.pools = vec![pool("only", servers)];
    config
}

/// A TCB cache of so many bytes.
pub(crate) fn tcb_cache(scheme: &str, capacity_bytes: u64, ways: u32) -> Settings {
    let scheme = Scheme::parse(scheme).unwrap();
    let geometry = scheme.geometry(capacity_bytes, 64, ways).unwrap();
    Settings { scheme, geometry }
}

/// The switch, its client and its servers.
pub(crate) struct Rig {
    pub(crate) datapath: Datapath,
    pub(crate) now: Instant,
    pub(crate) client: Endpoint,
    pub(crate) vip: Endpoint,
    pub(crate) last: Option<Verdict>,
}

/// Debug builds check small tables after each call; here are the others.
impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.datapath.check_invariants();
        }
    }
}

impl Rig {
    /// A switch whose servers have not been heard of.
    pub(crate) fn new(config: Config) -> Self {
        Self::seeded(config, 42.into())
    }

    /// The same from another seed.
    pub(crate) fn seeded(config: Config, seed: Seed) -> Self {
        let vip = config.services[0].listen[0];
        let client = if vip.addr.is_v4() {
            "192.0.2.7:40000"
        } else {
            "[2001:db8::7]:40000"
        };
        let now = Instant::from_millis(1_000);
        let mut datapath = Datapath::new(config, seed, now).unwrap();
        if let Some(scheme) = crate::TCB_CACHE {
            let cache = tcb_cache(scheme, 512, 2);
            datapath.set_tcb_cache(Some(&cache), 42).unwrap();
        }
        Self {
            datapath,
            now,
            client: endpoint(client),
            vip,
            last: None,
        }
    }

    /// A switch whose servers have all answered a probe with these options.
    pub(crate) fn probed(config: Config, options: &SynOptions) -> Self {
        Self::probed_each(config, |_| Some(*options))
    }

    /// A switch whose servers have answered a probe as `options` says, or not at all.
    pub(crate) fn probed_each(
        config: Config,
        options: impl Fn(Endpoint) -> Option<SynOptions>,
    ) -> Self {
        let mut rig = Self::new(config);
        for probe in rig.wait(Duration::ZERO) {
            assert_eq!(probe.header.flags, TcpFlags::SYN);
            if let Some(options) = options(probe.header.key.dst) {
                let reset = rig.put_one(&syn_ack(&probe, 77_000, &options));
                assert_eq!(reset.header.flags, TcpFlags::RST);
                assert_eq!(reset.header.seq, probe.header.seq + 1);
            }
        }
        rig.events();
        rig
    }

    /// Lets the switch have a packet; what leaves it, the packet itself first if it is passed on.
    pub(crate) fn put(&mut self, segment: &Segment) -> Vec<Sent> {
        self.put_packet(segment.packet())
    }

    pub(crate) fn put_packet(&mut self, packet: Packet) -> Vec<Sent> {
        let mut sent = Vec::new();
        if let Some(passed) = self.put_raw(packet) {
            sent.push(Sent::new(passed));
        }
        self.fetch(&mut sent);
        sent
    }

    /// As [`Self::put_packet`], for what need not be TCP; only the packet itself.
    pub(crate) fn put_raw(&mut self, mut packet: Packet) -> Option<Packet> {
        let verdict = self.datapath.handle_packet(self.now, &mut packet);
        self.last = Some(verdict);
        (verdict == Verdict::Transmit).then_some(packet)
    }

    /// The one packet that a segment leads to.
    #[track_caller]
    pub(crate) fn put_one(&mut self, segment: &Segment) -> Sent {
        let mut sent = self.put(segment);
        assert_eq!(sent.len(), 1, "{:?}: {sent:?}", self.last);
        sent.remove(0)
    }

    /// A segment that leads to nothing.
    #[track_caller]
    pub(crate) fn put_none(&mut self, segment: &Segment) {
        let sent = self.put(segment);
        assert!(sent.is_empty(), "{:?}: {sent:?}", self.last);
    }

    pub(crate) fn fetch(&mut self, sent: &mut Vec<Sent>) {
        let mut packet = Packet::default();
        while self.datapath.poll_transmit(&mut packet) {
            let mut one = Sent::new(packet.clone());
            one.whose = self.datapath.whose(&one.header.key.reversed());
            sent.push(one);
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

    /// As [`Self::wait`], in milliseconds.
    pub(crate) fn wait_ms(&mut self, millis: u64) -> Vec<Sent> {
        self.wait(Duration::from_millis(millis))
    }

    /// Begins a segment from the client.
    pub(crate) fn by_client(&self) -> Segment {
        segment(self.client, self.vip)
    }

    /// A SYN of the client with this number; the switch's SYN-ACK.
    #[track_caller]
    pub(crate) fn syn(&mut self, isn: u32, options: &SynOptions) -> Sent {
        let syn = self
            .by_client()
            .flags(TcpFlags::SYN)
            .seq(isn)
            .syn_options(options);
        self.put_one(&syn)
    }

    /// A client's handshake up to our SYN-ACK.
    #[track_caller]
    pub(crate) fn open(&mut self, isn: u32, options: &SynOptions) -> Opened {
        let syn_ack = self.syn(isn, options);
        let offered = syn_ack.syn_options();
        Opened {
            client: self.client,
            vip: self.vip,
            isn,
            dseq: syn_ack.header.seq.0,
            stamps: offered
                .timestamps
                .map(|ours| (ours.echo.wrapping_add(10), ours.value)),
            offered,
        }
    }

    /// Handshake and request at once; the packets that the request leads to.
    #[track_caller]
    pub(crate) fn request(&mut self, isn: u32, bytes: &[u8]) -> (Opened, Vec<Sent>) {
        let opened = self.open(isn, &linux(5_000));
        let sent = self.put(&opened.data(0, bytes));
        (opened, sent)
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.datapath.poll_event()).collect()
    }

    /// How the connections that are over ended.
    pub(crate) fn ends(&mut self) -> Vec<End> {
        let events = self.events().into_iter();
        events
            .filter_map(|event| match event {
                Event::Closed { end, .. } => Some(end),
                _ => None,
            })
            .collect()
    }

    /// Why clients were turned away, and with which status.
    pub(crate) fn refusals(&mut self) -> Vec<(DropReason, Option<u16>)> {
        let events = self.events().into_iter();
        events
            .filter_map(|event| match event {
                Event::Refused { reason, status, .. } => Some((reason, status)),
                _ => None,
            })
            .collect()
    }

    #[track_caller]
    pub(crate) fn assert_dropped(&self, reason: DropReason) {
        assert_eq!(self.last, Some(Verdict::Drop(reason)));
    }

    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.datapath.snapshot().drops.of(reason)
    }

    /// Where the client's connection is.
    pub(crate) fn state(&self) -> Option<State> {
        self.datapath.connection_state(self.client, self.vip)
    }

    /// Nothing is kept of anything any more.
    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        let now = self.datapath.snapshot();
        let kept = [
            now.records,
            now.live,
            now.time_wait,
            now.setups,
            now.half_read,
            now.buffered_bytes,
        ];
        assert_eq!(
            kept, [0; 6],
            "records, live, time_wait, setups, half_read, buffered"
        );
        for server in now.pools.iter().flat_map(|pool| &pool.servers) {
            assert_eq!(server.active, 0, "connections to {}", server.endpoint);
        }
        let ended: u64 = now.ended.iter().map(|(_, count)| count).sum();
        assert_eq!(ended, now.spliced, "every splice has ended once");
    }
}

/// A client that has our SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) client: Endpoint,
    pub(crate) vip: Endpoint,
    pub(crate) isn: u32,
    pub(crate) dseq: u32,
    /// The client's timestamp value and what it echoes, if agreed.
    pub(crate) stamps: Option<(u32, u32)>,
    pub(crate) offered: SynOptions,
}

impl Opened {
    /// Begins a segment of the client at an offset into its stream.
    pub(crate) fn at(&self, offset: u32) -> Segment {
        let segment = segment(self.client, self.vip)
            .seq(self.isn.wrapping_add(1).wrapping_add(offset))
            .ack(self.dseq.wrapping_add(1));
        match self.stamps {
            Some((value, echo)) => segment.timestamps(value, echo),
            None => segment,
        }
    }

    /// Bytes at an offset into the client's stream.
    pub(crate) fn data(&self, offset: u32, bytes: &[u8]) -> Segment {
        self.at(offset)
            .flags(TcpFlags::ACK | TcpFlags::PSH)
            .payload(bytes)
    }
}

/// The answer of a server to a SYN of ours.
pub(crate) fn syn_ack(syn: &Sent, isn: u32, options: &SynOptions) -> Segment {
    segment(syn.header.key.dst, syn.header.key.src)
        .flags(TcpFlags::SYN | TcpFlags::ACK)
        .seq(isn)
        .ack(syn.header.seq.0.wrapping_add(1))
        .syn_options(options)
}

/// A server's refusal of a SYN of ours.
pub(crate) fn refusal(syn: &Sent) -> Segment {
    segment(syn.header.key.dst, syn.header.key.src)
        .flags(TcpFlags::RST | TcpFlags::ACK)
        .ack(syn.header.seq.0.wrapping_add(1))
}

/// All payload, in the order in which it was sent.
pub(crate) fn payload(sent: &[Sent]) -> Vec<u8> {
    sent.iter()
        .flat_map(|sent| sent.payload().to_vec())
        .collect()
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
    #[track_caller]
    pub(crate) fn with(config: Config, ends: &Ends) -> Self {
        Self::on(Rig::probed(config, &ends.server), ends)
    }

    /// The usual service and ends.
    #[track_caller]
    pub(crate) fn usual() -> Self {
        Self::with(http_config(), &Ends::default())
    }

    /// As [`Self::with`], on a switch that has seen other things before.
    #[track_caller]
    pub(crate) fn on(mut rig: Rig, ends: &Ends) -> Self {
        let opened = rig.open(ends.client_isn, &ends.client);
        let syn = rig.put_one(&opened.data(0, REQUEST));
        assert_eq!(syn.header.flags, TcpFlags::SYN);
        let request = rig.put(&syn_ack(&syn, ends.server_isn, &ends.server));
        assert!(payload(&request).ends_with(&REQUEST[REQUEST.len() - 4..]));
        Self {
            source: syn.header.key.src,
            server: syn.header.key.dst,
            client_nxt: ends.client_isn.wrapping_add(1 + REQUEST.len() as u32),
            seen_nxt: opened.dseq.wrapping_add(1),
            server_nxt: ends.server_isn.wrapping_add(1),
            seen_ts: opened.stamps.map_or(0, |(_, echo)| echo),
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
        self.rig.by_client().seq(self.client_nxt).ack(self.seen_nxt)
    }

    /// Begins a segment from either.
    pub(crate) fn by(&self, side: Side) -> Segment {
        match side {
            Side::Client => self.by_client(),
            Side::Server => self.by_server(),
        }
    }

    /// A side has sent so much more (a FIN counts one).
    pub(crate) fn advance(&mut self, side: Side, count: u32) {
        match side {
            Side::Client => self.client_nxt = self.client_nxt.wrapping_add(count),
            Side::Server => {
                self.server_nxt = self.server_nxt.wrapping_add(count);
                self.seen_nxt = self.seen_nxt.wrapping_add(count);
            }
        }
    }

    /// A side closes; the other sees it at the right number.
    #[track_caller]
    pub(crate) fn close(&mut self, side: Side) {
        let fin = self.by(side).flags(TcpFlags::FIN | TcpFlags::ACK);
        let seen = match side {
            Side::Client => self.client_nxt,
            Side::Server => self.seen_nxt,
        };
        let sent = self.rig.put_one(&fin);
        assert_eq!(sent.header.flags, TcpFlags::FIN | TcpFlags::ACK);
        assert_eq!(sent.header.seq, SeqNumber(seen));
        self.advance(side, 1);
    }

    /// A side acknowledges all it has seen; the other sees that in its own numbers.
    #[track_caller]
    pub(crate) fn acknowledge(&mut self, side: Side) {
        let ack = self.by(side);
        let seen = match side {
            Side::Client => self.server_nxt,
            Side::Server => self.client_nxt,
        };
        let sent = self.rig.put_one(&ack);
        assert_eq!(sent.header.ack, SeqNumber(seen));
    }

    pub(crate) fn state(&self) -> State {
        self.rig.state().unwrap_or_default()
    }
}
