//! A client's first bytes: a switch that reads them, and a kernel with a ticket for what it chose.
//! The SYN that the one sends is the SYN that the other sends, and what the server's SYN-ACK makes
//! of it is the same.

use fairlead_base::{FlowKey, Packet, Rng, Seed};
use fairlead_bpf_loader::{Fate, FlowTable, Kernel, Mode};
use fairlead_splice::config::{Config, Source};
use fairlead_tcp::ticket::{PAYLOAD_BYTES_MAX, TICKETS_MAX};
use fairlead_tcp::{
    Begun, ConnectOffload, Endpoints, FlowOffload, Joined, Line, ListenOffer, Preconnect, Record,
    State, SynOffload, Taker, Ticket, Tracking,
};
use fairlead_testkit::{FastPathDouble, endpoint, segment, tcp};
use fairlead_wire::http::plain_hash;
use fairlead_wire::{SynOptions, TcpFlags, Timestamps};

use super::joining::{Client, NOW, answered, config, probed, put, syn_ack, the_record};
use super::ways::hurried;
use super::{frame_of, on_a_switch, run};

/// The secret behind the cookies of [`probed`].
fn secret() -> (u64, u64) {
    let seed = Seed::from(42);
    (seed.word("cookies", 0), seed.word("cookies", 1))
}

/// What switches of this configuration offer.
fn offer_of(config: &Config) -> ListenOffer {
    let mut switch = probed(config);
    let double = FastPathDouble::listening();
    switch.set_fast_path(NOW, Box::new(double.clone()));
    let offer = double.told(|told| told.offer).expect("published");
    ListenOffer {
        begin: true,
        host: false,
        ..offer
    }
}

/// A plain head of `bytes` altogether, if it can be as short as that, with what follows it.
fn some_payload(rng: &mut Rng) -> Vec<u8> {
    let lengths = [
        0,
        rng.below(64) as usize,
        500 + rng.below(30) as usize,
        1_010 + rng.below(30) as usize,
        1_300 + rng.below(200) as usize,
        PAYLOAD_BYTES_MAX - rng.below(5) as usize,
    ];
    let bytes = lengths[rng.below(6) as usize];
    let mut payload = b"GET /".to_vec();
    payload.extend(vec![b'a'; rng.below(9) as usize]);
    payload.extend(b" HTTP/1.1\r\nHost: ");
    payload.extend(vec![b'h'; rng.below(9) as usize]);
    let rest = bytes.saturating_sub(payload.len());
    if rng.chance(600_000) && rest > 10 {
        payload.extend(b"\r\nX: ");
        payload.extend((0..rest - 9).map(|_| b' ' + rng.below(95) as u8));
    }
    payload.extend(b"\r\n\r\n");
    // Perhaps a request that the client did not wait with.
    let rest = bytes.saturating_sub(payload.len());
    payload.extend((0..rest).map(|_| rng.next_u64() as u8));
    payload
}

/// A client of one round.
fn some_client(rng: &mut Rng, config: &Config) -> Client {
    let vip = config.services[0].listen[0];
    let from = if vip.addr.is_v4() {
        "10.1.0.9:40000"
    } else {
        "[fd01::9]:40000"
    };
    let sizes = [
        0, 100, 216, 535, 536, 1_219, 1_220, 1_340, 1_400, 1_440, 1_460, 8_960, 65_535,
    ];
    let mss = sizes[rng.below(13) as usize];
    let stamps = Timestamps {
        value: rng.next_u64() as u32,
        echo: 0,
    };
    let asked = SynOptions {
        mss: (mss != 0).then_some(mss),
        window_scale: rng.chance(800_000).then(|| rng.below(15) as u8),
        sack_permitted: rng.chance(500_000),
        timestamps: rng.chance(600_000).then_some(stamps),
    };
    Client {
        asked,
        request: some_payload(rng),
        first: segment(endpoint(from), vip).seq(rng.next_u64() as u32),
    }
}

/// A kernel that may begin what a switch has begun.
struct Twin {
    kernel: Kernel,
    table: FlowTable,
    interface: u32,
    /// The key of packets from the server.
    server: FlowKey,
    ticket: (u16, Line, u32),
}

impl Twin {
    /// Of a switch that has chosen `record`, with a ticket for that.
    fn new(rng: &mut Rng, on: (Mode, u32), config: &Config, told: (&Endpoints, &Record)) -> Self {
        let ((mode, interface), (endpoints, record)) = (on, told);
        let origin = fairlead_bpf_loader::monotonic_ns() - NOW.as_millis() * 1_000_000;
        let loaded = Kernel::load(mode, 64, endpoints, secret(), origin);
        let (mut kernel, mut table) = loaded.unwrap();
        super::tell_interfaces(&mut kernel);
        table.set_offer(config.services[0].listen[0], &offer_of(config));
        let mss = config.device_mss - if record.client_addr.is_v4() { 0 } else { 20 };
        let lane = rng.below(u32::from(table.lanes())) as u16;
        let (line, place) = (Line(rng.below(64)), rng.below(TICKETS_MAX));
        let chosen = Record {
            client_port: place as u16,
            listen: record.listen,
            route: record.route,
            server: record.server,
            nat_addr: record.nat_addr,
            nat_port: record.nat_port,
            state: State::SynSent,
            ..Record::default()
        };
        let server = chosen.server_key(endpoints);
        let ticket = Ticket {
            lane,
            line,
            place,
            record: &chosen,
            server: &server,
            syn_mss: mss,
            device_mss: mss,
        };
        assert!(table.issue(&ticket));
        let ticket = (lane, line, place);
        Self {
            kernel,
            table,
            interface,
            server,
            ticket,
        }
    }

    fn run(&self, packet: &Packet) -> (Fate, Vec<u8>) {
        let frame = frame_of(packet);
        let trial = self.kernel.try_frame(&frame, self.interface, 1).unwrap();
        if trial.fate == Fate::Pass {
            assert_eq!(trial.frame, frame, "left as it was");
        }
        (trial.fate, trial.frame[14..].to_vec())
    }

    /// The request becomes this SYN, and the engine learns who has sent it.
    fn begins(&mut self, request: &Packet, syn: &Packet) {
        let (lane, line, place) = self.ticket;
        assert_eq!(self.run(request), (Fate::Redirect, syn.bytes.clone()));
        let header = tcp(request);
        let stamps = header.options(&request.bytes);
        let stamps = (!stamps.is_empty()).then(|| {
            let word = |at: usize| u32::from_be_bytes(*stamps[at..].first_chunk().unwrap());
            Timestamps {
                value: word(4),
                echo: word(8),
            }
        });
        let begun = self.table.next_taken(lane).expect("it was begun");
        let begun_ms = begun.taker.as_ref().map(|taker| taker.begun_ms);
        let taker = Taker {
            client: header.key.src,
            client_isn: header.seq - 1,
            dseq: header.ack - 1,
            stamps,
            window: header.window,
            payload: header.payload(&request.bytes).to_vec(),
            begun_ms: begun_ms.expect("a taker"),
        };
        let loaded_ms = NOW.as_millis() as u32;
        let since = loaded_ms..loaded_ms + 60_000;
        assert!(since.contains(&taker.begun_ms), "{}", taker.begun_ms);
        let taker = Some(taker);
        assert_eq!(begun, Begun { line, place, taker });
        assert_eq!(self.table.next_taken(lane), None);
        assert_eq!(self.table.joined(line), None);
        // The same again finds the connection, which is the engine's to deal with.
        assert_eq!(self.run(request).0, Fate::Pass);
        let counted = self.kernel.counters().unwrap();
        let bytes = (request.bytes.len() as u64, syn.bytes.len() as u64);
        assert_eq!((counted.ended_bytes, counted.made_bytes), bytes);
        assert_eq!((counted.begun, counted.joins), (1, 0));
    }

    /// The server's answer is answered by `sent`, and joins what `record` says; or it is the
    /// engine's.
    fn joins(&mut self, answer: &Packet, sent: &[Packet], record: &Record) -> bool {
        let (lane, line, _) = self.ticket;
        assert_eq!(tcp(answer).key, self.server);
        let (fate, bytes) = self.run(answer);
        if fate == Fate::Pass {
            assert_eq!(self.table.joined(line), None);
            assert_eq!(self.table.disarm(line), None);
            return false;
        }
        assert_eq!(fate, Fate::Redirect);
        assert_eq!(sent.len(), 1, "one segment");
        assert_eq!(bytes, sent[0].bytes);
        let joined = Joined {
            server_isn: record.server_isn,
            seq_delta: record.seq_delta,
            ts_delta: record.ts_delta,
            client_shift: record.client_shift,
            server_shift: record.server_shift,
        };
        assert_eq!(self.table.joined(line), Some(joined));
        let seen = self.table.tracking(line);
        let expected = Tracking {
            last_active: seen.last_active,
            ..Tracking::of(record)
        };
        assert_eq!(seen, expected);
        assert_eq!(self.kernel.counters().unwrap().joins, 1);
        assert_eq!(self.table.next_taken(lane), None, "told once");
        true
    }
}

/// True when the kernel joined it, too.
fn one_beginning(rng: &mut Rng, mode: Mode, interface: u32) -> bool {
    let v6 = rng.chance(400_000);
    let config = config(v6, Source::Snat);
    let mut alone = probed(&config);
    let endpoints = alone.table().endpoints().clone();
    let client = some_client(rng, &config);
    let request = client.shake_hands(&mut alone, rng.next_u64() as u16);
    let sent = put(&mut alone, &request);
    let [syn] = &sent[..] else {
        panic!("one SYN: {sent:?}");
    };
    let chosen = the_record(&alone, &client);
    let told = (&endpoints, &chosen);
    let mut twin = Twin::new(rng, (mode, interface), &config, told);
    assert_eq!(twin.run(&request).0, Fate::Pass, "not learnt yet");
    let head = plain_hash(&client.request, chosen.listen, secret());
    twin.table
        .learn_head(head.expect("a plain head"), twin.ticket.0);
    twin.begins(&request, syn);
    let options = SynOptions::parse(tcp(syn).options(&syn.bytes)).unwrap();
    let answer = syn_ack(syn, rng.next_u64() as u32, &answered(rng, &options));
    let sent = put(&mut alone, &answer);
    let joined = twin.joins(&answer, &sent, &the_record(&alone, &client));
    if joined {
        // Either key leads there now.
        let (from_client, from_server) = (tcp(&request), tcp(&answer));
        let record = the_record(&alone, &client);
        let stamped = |built: fairlead_testkit::Segment| match client.asked.timestamps {
            Some(_) => built.timestamps(1, 1).packet(),
            None => built.packet(),
        };
        let client = segment(from_client.key.src, from_client.key.dst);
        let client = client.seq(record.client_nxt).ack(from_client.ack.0);
        let server = segment(from_server.key.src, from_server.key.dst);
        let server = server.seq(record.server_nxt).ack(record.client_nxt);
        for packet in [client, server].map(|one| stamped(one.flags(TcpFlags::ACK))) {
            assert_eq!(twin.run(&packet).0, Fate::Redirect);
        }
    }
    joined
}

/// Each loads the program anew, which takes the time, above all on emulated machines.
fn beginnings_agree(mode: Mode) {
    let long = std::env::var_os("FAIRLEAD_LONG").is_some_and(|value| value != "0");
    let beginnings = if long { 240 } else { 24 };
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(71);
        let joined = (0..beginnings).filter(|_| one_beginning(&mut rng, mode, interface));
        let joined = joined.count();
        let most = beginnings * 5 / 16..beginnings * 15 / 16;
        assert!(most.contains(&joined), "{joined} of {beginnings}");
    });
}

#[test]
fn tc_begins_as_the_engine_does() {
    run(|| beginnings_agree(Mode::Tc));
}

#[test]
fn xdp_begins_as_the_engine_does() {
    run(|| beginnings_agree(Mode::XdpNative));
}

/// The SYN has no type of service, as the engine's has none, whatever the client's first bytes had:
/// routes by it are not asked for another one.
#[test]
fn a_beginning_goes_the_way_of_its_syn() {
    run(|| {
        on_a_switch(|host, interface| {
            host.ip("route add blackhole 10.2.0.1/32 tos 0x10\n")
                .unwrap();
            let mut rng = Rng::new(72);
            let config = config(false, Source::Snat);
            let mut alone = probed(&config);
            let endpoints = alone.table().endpoints().clone();
            let client = some_client(&mut rng, &config);
            let request = client.shake_hands(&mut alone, 1_000);
            let sent = put(&mut alone, &request);
            let chosen = the_record(&alone, &client);
            let on = (Mode::Tc, interface);
            let mut twin = Twin::new(&mut rng, on, &config, (&endpoints, &chosen));
            let head = plain_hash(&client.request, chosen.listen, secret());
            twin.table
                .learn_head(head.expect("a plain head"), twin.ticket.0);
            twin.begins(&hurried(&request), &sent[0]);
        });
    });
}
