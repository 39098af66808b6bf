//! Packets that the program could translate and yet leaves to the engine, as they are, because it
//! could not bring them on their way whole.

use fairlead_base::{Packet, Rng};
use fairlead_bpf_loader::{Exit, Fate, Kernel, Mode};
use fairlead_netns::Host;
use fairlead_tcp::{FlowOffload, Line, ListenOffer, Record, SynOffload};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::{TcpFlags, build};

use super::{OFFER, endpoints, frame_of, interface_index, kernel, on_a_switch, record, run};

/// A packet of 1,040 bytes from the client of a record, and a SYN of a newcomer.
pub(super) struct Packets {
    pub(super) data: Packet,
    pub(super) syn: Packet,
}

impl Packets {
    pub(super) fn each(&self) -> [&Packet; 2] {
        [&self.data, &self.syn]
    }
}

fn packets(record: &Record, v6: bool) -> Packets {
    let key = record.client_key(&endpoints());
    let data = segment(key.src, key.dst)
        .seq(record.client_nxt)
        .ack(record.server_nxt.wrapping_add(record.seq_delta))
        .flags(TcpFlags::ACK)
        .payload(vec![7; 1_000])
        .packet();
    let from = endpoint(if v6 {
        "[fd01::9]:41000"
    } else {
        "10.1.0.9:41000"
    });
    let syn = segment(from, key.dst).flags(TcpFlags::SYN).packet();
    Packets { data, syn }
}

/// Runs `test` for both families with a joined connection and the packets that belong to it.
pub(super) fn with_packets(mode: Mode, test: impl Fn(&Host, &mut Kernel, u32, &Packets) + Sync) {
    for v6 in [false, true] {
        on_a_switch(|host, interface| {
            let (mut kernel, mut table) = kernel(mode, 0);
            let (record, client, server) = record(&mut Rng::new(3), v6, true);
            assert!(table.offload(Line(0), &record, &client, &server));
            let listen = u16::from(v6);
            let offer = ListenOffer { listen, ..OFFER };
            table.set_offer(endpoints().listens[usize::from(v6)], &offer);
            test(host, &mut kernel, interface, &packets(&record, v6));
        });
    }
}

fn assert_sent(kernel: &mut Kernel, packet: &Packet, interface: u32) {
    let trial = kernel.try_frame(&frame_of(packet), interface, 1).unwrap();
    assert_eq!(trial.fate, Fate::Redirect, "{:?}", tcp(packet));
}

fn assert_left(kernel: &mut Kernel, packet: &Packet, interface: u32) {
    let frame = frame_of(packet);
    let before = kernel.counters().unwrap();
    let trial = kernel.try_frame(&frame, interface, 1).unwrap();
    assert_eq!(trial.fate, Fate::Pass, "{:?}", tcp(packet));
    assert_eq!(trial.frame, frame, "as it was");
    let after = kernel.counters().unwrap();
    assert_eq!(after.to_engine, before.to_engine + 1);
    assert_eq!(after.drops.total(), before.drops.total());
}

/// The checksum field as a sender leaves it to its device: the pseudo-header's sum.
pub(super) fn with_open_checksum(packet: &Packet) -> Packet {
    let header = tcp(packet);
    let at = usize::from(header.tcp_at);
    let mut sum = 6 + (packet.bytes.len() - at) as u64;
    let addresses = if packet.bytes[0] >> 4 == 4 {
        &packet.bytes[12..20]
    } else {
        &packet.bytes[8..40]
    };
    for two in addresses.chunks(2) {
        sum += u64::from(u16::from_be_bytes([two[0], two[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let mut open = packet.clone();
    open.bytes[at + 16..at + 18].copy_from_slice(&(sum as u16).to_be_bytes());
    open
}

/// Cards give short frames with what fills them up to 60 bytes.
fn padding_is_not_counted(mode: Mode) {
    with_packets(mode, |_, kernel, interface, packets| {
        let before = kernel.counters().unwrap();
        let padded = [frame_of(&packets.data), vec![0; 6]].concat();
        let trial = kernel.try_frame(&padded, interface, 1).unwrap();
        assert_eq!(trial.fate, Fate::Redirect);
        let after = kernel.counters().unwrap();
        let bytes = packets.data.bytes.len() as u64;
        assert_eq!(after.fast_bytes - before.fast_bytes, bytes);
    });
}

#[test]
fn tc_does_not_count_padding() {
    run(|| padding_is_not_counted(Mode::Tc));
}

#[test]
fn xdp_does_not_count_padding() {
    run(|| padding_is_not_counted(Mode::XdpNative));
}

#[test]
fn xdp_leaves_checksums_that_a_device_has_yet_to_complete() {
    run(|| {
        with_packets(Mode::XdpNative, |_, kernel, interface, packets| {
            for packet in packets.each() {
                assert_left(kernel, &with_open_checksum(packet), interface);
                assert_sent(kernel, packet, interface);
            }
        });
    });
}

#[test]
fn xdp_sends_only_out_of_interfaces_that_take_it() {
    run(|| {
        with_packets(Mode::XdpNative, |_, kernel, client_side, packets| {
            let exit = |interface| Exit {
                interface,
                device: interface,
                tag: None,
                buffers: false,
            };
            let server_side = interface_index(c"s");
            kernel.set_exits(&[exit(server_side)]).unwrap();
            assert_sent(kernel, &packets.data, client_side);
            assert_left(kernel, &packets.syn, client_side);
            kernel.set_exits(&[exit(client_side)]).unwrap();
            assert_left(kernel, &packets.data, client_side);
            assert_sent(kernel, &packets.syn, client_side);
            kernel.set_exits(&[]).unwrap();
            for packet in packets.each() {
                assert_left(kernel, packet, client_side);
            }
        });
    });
}

const SERVERS: [&str; 2] = ["10.2.0.1/32", "fd02::1/128"];

/// Longer than the program remembers a way: two ticks of the kernel's clock.
fn wait_until_forgotten() {
    std::thread::sleep(std::time::Duration::from_millis(40));
}

fn longer(packet: &Packet, bytes: usize) -> Packet {
    let header = tcp(packet);
    segment(header.key.src, header.key.dst)
        .seq(header.seq.0)
        .ack(header.ack.0)
        .flags(TcpFlags::ACK)
        .payload(vec![7; bytes])
        .packet()
}

/// What does not fit through is the engine's, whose kernel tells the sender by ICMP.
fn long_packets_are_left(mode: Mode) {
    with_packets(mode, |host, kernel, interface, packets| {
        assert_sent(kernel, &packets.data, interface);
        for server in SERVERS {
            let route = format!("route add {server} dev s mtu lock 900\n");
            host.ip(&route).unwrap();
        }
        wait_until_forgotten();
        assert_left(kernel, &packets.data, interface);
        for server in SERVERS {
            host.ip(&format!("route change {server} dev s mtu lock 1200\n"))
                .unwrap();
        }
        assert_sent(kernel, &packets.data, interface);
        // Whether the way is remembered or not.
        assert_left(kernel, &longer(&packets.data, 1_300), interface);
        assert_sent(kernel, &packets.data, interface);
    });
}

/// The link address to which packets of 1,040 bytes are sent now.
fn sent_to(kernel: &mut Kernel, packet: &Packet, interface: u32) -> [u8; 6] {
    let trial = kernel.try_frame(&frame_of(packet), interface, 1).unwrap();
    assert_eq!(trial.fate, Fate::Redirect);
    trial.frame[..6].try_into().unwrap()
}

#[test]
fn a_way_is_remembered_for_a_moment_only() {
    run(|| {
        for mode in [Mode::Tc, Mode::XdpNative] {
            with_packets(mode, |host, kernel, interface, packets| {
                assert_eq!(sent_to(kernel, &packets.data, interface)[5], 0x11);
                for server in SERVERS {
                    let (server, _) = server.split_once('/').unwrap();
                    let neighbour =
                        format!("neigh replace {server} lladdr 02:00:00:00:00:12 dev s\n");
                    host.ip(&neighbour).unwrap();
                }
                wait_until_forgotten();
                assert_eq!(sent_to(kernel, &packets.data, interface)[5], 0x12);
            });
        }
    });
}

/// Gives an interface another MTU: sooner than a way is forgotten.
fn set_mtu(device: &std::ffi::CStr, mtu: i32) {
    // SAFETY: a structure of numbers and arrays, for which zeros are values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.to_bytes()) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_mtu = mtu;
    // SAFETY: system calls on numbers, and on a request that lives through them.
    let done = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let done = libc::ioctl(socket, libc::SIOCSIFMTU, &raw const request);
        libc::close(socket);
        done
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// What fitted through a moment ago is not asked about again. The moment is short: where something
/// came between, it is tried once more.
#[test]
fn a_way_is_remembered_for_that_moment() {
    run(|| {
        for mode in [Mode::Tc, Mode::XdpNative] {
            with_packets(mode, |_, kernel, interface, packets| {
                let long = longer(&packets.data, 1_300);
                let remembered = || {
                    set_mtu(c"s", 1_500);
                    wait_until_forgotten();
                    assert_sent(kernel, &long, interface);
                    set_mtu(c"s", 1_280);
                    let trial = kernel.try_frame(&frame_of(&long), interface, 1);
                    trial.unwrap().fate == Fate::Redirect
                };
                assert!(std::iter::repeat_with(remembered).take(50).any(|it| it));
                wait_until_forgotten();
                assert_left(kernel, &long, interface);
            });
        }
    });
}

/// The same IPv4 packet with a type of service.
pub(super) fn hurried(packet: &Packet) -> Packet {
    let mut hurried = packet.clone();
    hurried.bytes[1] = 0x10;
    // The sum of the header's words without the field itself.
    hurried.bytes[10..12].fill(0);
    let words = hurried.bytes[..20].chunks(2);
    let sum: u32 = words
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]))
        .sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    hurried.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    hurried
}

/// Rules and routes may go by the type of service: so does what is remembered.
#[test]
fn a_remembered_way_is_for_packets_of_its_kind() {
    run(|| {
        on_a_switch(|host, interface| {
            let (mut kernel, mut table) = kernel(Mode::Tc, 0);
            let (record, client, server) = record(&mut Rng::new(3), false, true);
            assert!(table.offload(Line(0), &record, &client, &server));
            let data = packets(&record, false).data;
            let hurried = hurried(&data);
            assert_sent(&mut kernel, &hurried, interface);
            host.ip("route add blackhole 10.2.0.1/32 tos 0x10\n")
                .unwrap();
            wait_until_forgotten();
            assert_sent(&mut kernel, &data, interface);
            assert_left(&mut kernel, &hurried, interface);
            assert_sent(&mut kernel, &data, interface);
        });
    });
}

#[test]
fn tc_leaves_packets_that_do_not_fit_through() {
    run(|| long_packets_are_left(Mode::Tc));
}

#[test]
fn xdp_leaves_packets_that_do_not_fit_through() {
    run(|| long_packets_are_left(Mode::XdpNative));
}

/// Frames that a promiscuous card or a bridge hands on; the stack drops them, and counts them.
fn frames_for_others_are_not_ours(mode: Mode) {
    with_packets(mode, |_, kernel, interface, packets| {
        for packet in packets.each() {
            assert_sent(kernel, packet, interface);
            for other in [
                [2, 0xaa, 0xbb, 0xcc, 0xdd, 0xee],
                [0xff; 6],
                [1, 0, 0x5e, 0, 0, 1],
            ] {
                let mut frame = frame_of(packet);
                frame[..6].copy_from_slice(&other);
                let before = kernel.counters().unwrap();
                let trial = kernel.try_frame(&frame, interface, 1).unwrap();
                assert_eq!((trial.fate, &trial.frame), (Fate::Pass, &frame));
                let after = kernel.counters().unwrap();
                assert_eq!(after.to_engine, before.to_engine);
            }
        }
    });
}

#[test]
fn tc_leaves_frames_for_others_alone() {
    run(|| frames_for_others_are_not_ours(Mode::Tc));
}

#[test]
fn xdp_leaves_frames_for_others_alone() {
    run(|| frames_for_others_are_not_ours(Mode::XdpNative));
}

/// Routers' errors about what was sent to the server of a connection, and about what was not.
#[test]
fn errors_about_our_packets_are_the_engines() {
    run(|| {
        for (mode, straight) in [(Mode::Tc, Fate::Redirect), (Mode::XdpNative, Fate::Pass)] {
            for v6 in [false, true] {
                on_a_switch(|_, interface| {
                    let (kernel, mut table) = kernel(mode, 0);
                    table.set_engine(interface).unwrap();
                    let (record, client, server) = record(&mut Rng::new(3), v6, false);
                    assert!(table.offload(Line(0), &record, &client, &server));
                    let fate = |from, to, reply: bool| {
                        let quoted = segment(from, to).payload([7; 64]).packet();
                        let (router, mut error) = (server.src.addr, Packet::default());
                        if reply {
                            let bytes = &mut error.bytes;
                            build::emit_icmp_echo_request(&router, &from.addr, 1, 1, b"?", bytes);
                        } else {
                            let bytes = &mut error.bytes;
                            build::emit_icmp_too_big(
                                &router,
                                &from.addr,
                                1_300,
                                &quoted.bytes,
                                bytes,
                            );
                        }
                        let before = kernel.counters().unwrap().to_engine;
                        let frame = frame_of(&error);
                        let trial = kernel.try_frame(&frame, interface, 1).unwrap();
                        assert_eq!(trial.frame, frame, "as it was");
                        (trial.fate, kernel.counters().unwrap().to_engine - before)
                    };
                    assert_eq!(fate(server.dst, server.src, false), (straight, 1));
                    assert_eq!(fate(client.dst, client.src, false), (straight, 1));
                    assert_eq!(fate(server.src, server.dst, false), (Fate::Pass, 0));
                    let mut other = server.src;
                    other.port += 1;
                    assert_eq!(fate(server.dst, other, false), (Fate::Pass, 0));
                    assert_eq!(fate(server.dst, server.src, true), (Fate::Pass, 0));
                });
            }
        }
    });
}
