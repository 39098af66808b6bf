//! What it costs the kernel program to begin a connection by a ticket, and to join it: each client
//! comes once, with caches as a system call leaves them.

use anyhow::{Context, Result, ensure};
use fairlead_base::{Address, Endpoint, FlowKey, SeqNumber};
use fairlead_bpf_loader::{Fate, FlowTable, Kernel, Mode};
use fairlead_tcp::{
    ConnectOffload, Endpoints, FlowOffload, Line, ListenOffer, Preconnect, Record, State,
    SynOffload, Ticket,
};
use fairlead_wire::http::plain_hash;
use fairlead_wire::{TcpFlags, TcpRepr};

use crate::table::median;

/// Clients a round.
const CLIENTS: u16 = 500;
const ISN: u32 = 7_000_000;
const MSS: [u8; 4] = [2, 4, 5, 180];
const HEAD: &[u8] = b"GET /1KiB HTTP/1.1\r\nHost: 10.1.0.3\r\nUser-Agent: bench\r\n\r\n";
const SECRET: (u64, u64) = (1, 2);

const VIP: Endpoint = endpoint([10, 1, 0, 3], 80);
const SERVER: Endpoint = endpoint([10, 2, 0, 1], 8081);
const SOURCE: [u8; 4] = [10, 2, 0, 200];

const fn endpoint(addr: [u8; 4], port: u16) -> Endpoint {
    let addr = Address::v4(addr);
    Endpoint { addr, port }
}

struct Segment<'a> {
    key: FlowKey,
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    options: &'a [u8],
    payload: &'a [u8],
}

fn frame(segment: &Segment<'_>) -> Vec<u8> {
    let mut packet = Vec::new();
    TcpRepr {
        key: segment.key,
        seq: SeqNumber(segment.seq),
        ack: SeqNumber(segment.ack),
        flags: segment.flags,
        window: 64_240,
        options: segment.options,
        payload: segment.payload,
        ttl: 64,
    }
    .emit(&mut packet);
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &packet].concat()
}

/// The sequence number of an IPv4 frame.
fn seq_of(frame: &[u8]) -> Result<u32> {
    let field = frame.get(38..42).context("a TCP segment")?;
    Ok(u32::from_be_bytes([field[0], field[1], field[2], field[3]]))
}

/// A kernel program with tickets to give, by the interfaces of clients and servers.
struct Bed {
    kernel: Kernel,
    table: FlowTable,
    interfaces: (u32, u32),
}

impl Bed {
    fn new(offer: &ListenOffer, interfaces: (u32, u32)) -> Result<Self> {
        let endpoints = Endpoints {
            listens: vec![VIP],
            servers: vec![SERVER],
            nats: vec![Address::v4(SOURCE)],
        };
        let lines = u32::from(CLIENTS);
        let (kernel, mut table) = Kernel::load(Mode::Tc, lines, &endpoints, SECRET, 0)?;
        let begin = true;
        table.set_offer(VIP, &ListenOffer { begin, ..*offer });
        table.learn_head(plain_hash(HEAD, 0, SECRET).context("a plain head")?, 0);
        Ok(Self {
            kernel,
            table,
            interfaces,
        })
    }

    /// Lets the kernel begin one connection, from this port.
    fn issue(&mut self, number: u16, port: u16) -> Result<FlowKey> {
        let record = Record {
            client_port: number,
            nat_port: port,
            state: State::SynSent,
            ..Record::default()
        };
        let server = FlowKey {
            src: SERVER,
            dst: endpoint(SOURCE, port),
        };
        let issued = self.table.issue(&Ticket {
            lane: 0,
            line: Line(u32::from(number)),
            place: u32::from(number),
            record: &record,
            server: &server,
            syn_mss: 1_460,
            device_mss: 1_460,
        });
        ensure!(issued, "the kernel took no ticket");
        Ok(server)
    }

    /// Runs the program on a packet: what it makes of it, and nanoseconds.
    fn run(&mut self, what: &str, interface: u32, segment: &Segment<'_>) -> Result<(Vec<u8>, f64)> {
        let trial = self.kernel.try_frame(&frame(segment), interface, 1)?;
        ensure!(trial.fate == Fate::Redirect, "{what}: {:?}", trial.fate);
        Ok((trial.frame, trial.each.as_nanos() as f64))
    }

    /// One client from its SYN until it is joined: nanoseconds of its first segment, and of the
    /// server's answer.
    fn one(&mut self, number: u16) -> Result<(f64, f64)> {
        let port = 20_000 + number;
        let server = self.issue(number, port)?;
        let client = FlowKey {
            src: endpoint([10, 64, 0, 1], port),
            dst: VIP,
        };
        let (front, back) = self.interfaces;
        let mut segment = Segment {
            key: client,
            seq: ISN,
            ack: 0,
            flags: TcpFlags::SYN,
            options: &MSS,
            payload: &[],
        };
        let (answer, _) = self.run("SYN", front, &segment)?;
        segment.seq = ISN + 1;
        segment.ack = seq_of(&answer)?.wrapping_add(1);
        segment.flags = TcpFlags::PSH | TcpFlags::ACK;
        (segment.options, segment.payload) = (&[], HEAD);
        let (syn, begun) = self.run("first segment", front, &segment)?;
        segment.key = server;
        segment.ack = seq_of(&syn)?.wrapping_add(1);
        segment.flags = TcpFlags::SYN | TcpFlags::ACK;
        (segment.options, segment.payload) = (&MSS, &[]);
        let (_, joined) = self.run("server's answer", back, &segment)?;
        let taken = self
            .table
            .next_taken(0)
            .context("a ticket that was taken")?;
        ensure!(self.table.joined(taken.line).is_some(), "it is not joined");
        self.table.remove(taken.line, &client, &server);
        Ok((begun, joined))
    }
}

/// The two steps, median nanoseconds over all clients of all rounds.
pub(crate) fn steps(
    offer: &ListenOffer,
    interfaces: (u32, u32),
    rounds: usize,
) -> Result<[(&'static str, f64); 2]> {
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut bed = Bed::new(offer, interfaces)?;
        for number in 0..CLIENTS {
            let (begun, joined) = bed.one(number)?;
            times.0.push(begun);
            times.1.push(joined);
        }
    }
    Ok([
        ("head to SYN, by a ticket (once a call)", median(times.0)),
        ("server's SYN-ACK joined (once a call)", median(times.1)),
    ])
}
