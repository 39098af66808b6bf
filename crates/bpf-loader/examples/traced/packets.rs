//! The packets: spliced ACKs, full segments, SYNs and FINs of both families.

use std::io;

use fairlead_base::{Address, FlowKey, Packet};
use fairlead_bpf_loader::{Exit, Fate, FlowTable, Kernel, Mode};
use fairlead_tcp::record::{TRANSPARENT, flag};
use fairlead_tcp::{Endpoints, FlowOffload, Line, ListenOffer, Record, State, SynOffload};
use fairlead_testkit::{endpoint, segment};
use fairlead_wire::TcpFlags;

use crate::fairlead_packet;
use crate::machine::{MAC, Outcome, interface_index, say_symbols};

const COOKIE: (u64, u64) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Payload of a full segment with timestamps.
const SEGMENT_BYTES: usize = 1_428;
const CONNECTIONS: u32 = 1_024;
const LINE: Line = Line(5);

pub(crate) fn run(rounds: u32) -> Outcome<()> {
    let counting = CountingLoop::load().map_err(|error| format!("the loop: {error}"))?;
    for _ in 0..rounds {
        counting
            .run()
            .map_err(|error| format!("the loop: {error}"))?;
    }
    let mut loaded = Vec::new();
    for (at, mode) in [Mode::Tc, Mode::XdpNative].into_iter().enumerate() {
        let mut switch = Switch::load(mode)?;
        for (family, v6) in [false, true].into_iter().enumerate() {
            switch.run(rounds, v6, (1 + 8 * at + 4 * family) as u8)?;
        }
        loaded.push(switch);
    }
    // While the programs are there.
    say_symbols()
}

struct Switch {
    kernel: Kernel,
    table: FlowTable,
    interface: u32,
}

fn endpoints() -> Endpoints {
    Endpoints {
        listens: vec![endpoint("10.1.0.3:80"), endpoint("[fd01::3]:80")],
        servers: vec![endpoint("10.2.0.1:8081"), endpoint("[fd02::1]:8081")],
        nats: vec![Address::v4([100, 64, 0, 1])],
    }
}

impl Switch {
    fn load(mode: Mode) -> Outcome<Self> {
        let loaded = Kernel::load(mode, CONNECTIONS, &endpoints(), COOKIE, 0);
        let (mut kernel, mut table) = loaded.map_err(|error| told(&error))?;
        let interfaces = [c"dummy0", c"dummy1"].map(interface_index);
        let exits = interfaces.map(|interface| Exit {
            interface,
            device: interface,
            tag: None,
            buffers: false,
        });
        kernel.set_exits(&exits).map_err(|error| told(&error))?;
        let addresses = interfaces.map(|interface| (interface, MAC));
        kernel
            .set_addresses(&addresses)
            .map_err(|error| told(&error))?;
        for (listen, at) in endpoints().listens.into_iter().zip(0..) {
            table.set_offer(listen, &offer(at));
        }
        Ok(Self {
            kernel,
            table,
            interface: interfaces[0],
        })
    }

    /// Each kind of packet of a family, from `first` on.
    fn run(&mut self, rounds: u32, v6: bool, first: u8) -> Outcome<()> {
        let (record, client, server) = record(v6);
        let sent = record.server_nxt.wrapping_add(record.seq_delta);
        let from_client = || {
            let built = segment(client.src, client.dst)
                .seq(record.client_nxt)
                .ack(sent);
            built.timestamps(2_000, 3_000)
        };
        let listen = endpoints().listens[usize::from(v6)];
        let from = fairlead_base::Endpoint {
            port: 41_000,
            ..client.src
        };
        let syn = segment(from, listen).seq(7_000).flags(TcpFlags::SYN);
        let syn = syn.options(&[
            2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7,
        ]);
        let full = from_client()
            .flags(TcpFlags::ACK)
            .payload(vec![0x5a; SEGMENT_BYTES]);
        let packets = [
            from_client().flags(TcpFlags::ACK).packet(),
            full.packet(),
            syn.packet(),
            from_client().flags(TcpFlags::FIN | TcpFlags::ACK).packet(),
        ];
        for (packet, kind) in packets.iter().zip(first..) {
            let frame = frame_of(packet);
            for _ in 0..rounds {
                if !self.table.offload(LINE, &record, &client, &server) {
                    return Err("a connection was not taken".to_owned());
                }
                fairlead_packet::begin(kind);
                let trial = self.kernel.try_frame(&frame, self.interface, 1);
                fairlead_packet::end(kind);
                let fate = trial.map_err(|error| told(&error))?.fate;
                if fate != Fate::Redirect {
                    let counted = self.kernel.counters().map_err(|error| told(&error))?;
                    return Err(format!("packet {kind}: {fate:?}, {:?}", counted.kernel));
                }
                self.table.remove(LINE, &client, &server);
                self.table.flush();
            }
        }
        Ok(())
    }
}

/// An error with its causes.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        text = format!("{text}: {one}");
        cause = one.source();
    }
    text
}

fn offer(listen: u16) -> ListenOffer {
    ListenOffer {
        listen,
        mss: 1_460,
        window: 16_384,
        window_scale: Some(7),
        scale_parity: true,
        sack: true,
        timestamps: true,
        answer: true,
        await_client: true,
        begin: false,
        host: false,
    }
}

/// A connection in midstream, by addresses of the switch in IPv4 and transparently in IPv6, and its
/// keys.
fn record(v6: bool) -> (Record, FlowKey, FlowKey) {
    let client = endpoint(if v6 {
        "[fd01::9]:40000"
    } else {
        "10.1.0.9:40000"
    });
    let record = Record {
        client_addr: client.addr,
        client_port: client.port,
        listen: u16::from(v6),
        server: u16::from(v6),
        nat_addr: if v6 { TRANSPARENT } else { 0 },
        nat_port: 20_000,
        seq_delta: 0x1234_5678,
        ts_delta: 77,
        client_isn: 1_000,
        server_isn: 7,
        client_nxt: 5_000_000,
        server_nxt: 9_000,
        state: State::Spliced,
        flags: flag::TIMESTAMPS,
        client_shift: 0,
        server_shift: 0,
        ..Record::default()
    };
    let keys = (
        record.client_key(&endpoints()),
        record.server_key(&endpoints()),
    );
    (record, keys.0, keys.1)
}

fn frame_of(packet: &Packet) -> Vec<u8> {
    let kind: [u8; 2] = if packet.bytes[0] >> 4 == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    };
    [&MAC[..], &PEER_MAC, &kind, &packet.bytes].concat()
}

/// A program whose instructions after translation are known by hand: 4 before the loop by the
/// translator and 2 of the program, 4 in each of 50 rounds, and 2 to return.
struct CountingLoop {
    program: i32,
}

/// One BPF instruction: operation, registers, offset, value.
const fn instruction(operation: u8, registers: u8, offset: i16, value: i32) -> u64 {
    operation as u64
        | (registers as u64) << 8
        | (offset as u16 as u64) << 16
        | (value as u32 as u64) << 32
}

const LOOP: [u64; 6] = [
    instruction(0xb7, 0x00, 0, 0),   // r0 = 0
    instruction(0xb7, 0x01, 0, 0),   // r1 = 0
    instruction(0x0f, 0x10, 0, 0),   // r0 += r1
    instruction(0x07, 0x01, 0, 1),   // r1 += 1
    instruction(0xa5, 0x01, -3, 50), // if r1 < 50 goto r0 += r1
    instruction(0x95, 0x00, 0, 0),   // exit
];
const PROG_LOAD: i32 = 5;
const PROG_TEST_RUN: i32 = 10;
const SOCKET_FILTER: u32 = 1;
const LOOP_RETURNS: u32 = 49 * 50 / 2;

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct LoadAttribute {
    kind: u32,
    instructions: u32,
    text: u64,
    licence: u64,
    rest: [u64; 12],
}

/// That for `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Default)]
struct RunAttribute {
    program: u32,
    returned: u32,
    bytes_in: u32,
    bytes_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    rest: [u64; 6],
}

fn bpf<T>(command: i32, attribute: &mut T) -> io::Result<i32> {
    // SAFETY: a whole structure for this command, whose pointers are to memory that outlives the
    // call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attribute, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as i32)
}

impl CountingLoop {
    fn load() -> io::Result<Self> {
        let mut attribute = LoadAttribute {
            kind: SOCKET_FILTER,
            instructions: LOOP.len() as u32,
            text: LOOP.as_ptr() as u64,
            licence: c"GPL".as_ptr() as u64,
            ..LoadAttribute::default()
        };
        let program = bpf(PROG_LOAD, &mut attribute)?;
        Ok(Self { program })
    }

    fn run(&self) -> io::Result<()> {
        let frame = [0u8; 64];
        let mut attribute = RunAttribute {
            program: self.program as u32,
            bytes_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            repeat: 1,
            ..RunAttribute::default()
        };
        fairlead_packet::begin(0);
        let result = bpf(PROG_TEST_RUN, &mut attribute);
        fairlead_packet::end(0);
        result?;
        if attribute.returned != LOOP_RETURNS {
            return Err(io::Error::other(format!("returned {}", attribute.returned)));
        }
        Ok(())
    }
}
