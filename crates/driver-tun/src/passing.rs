//! ICMP errors that pass by this machine.
//!
//! With transparent servers, a router sends ICMP errors about a packet towards a server to the
//! client, past the device. Packet sockets give the switch copies of these messages without
//! affecting the originals: no route, rule or packet changes, and nothing is left when the process
//! ends. A socket filter passes only unfragmented ICMP errors about TCP that this machine received
//! from outside, whatever their destination; the kernel discards the rest before copying.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fairlead_base::Instant;
use fairlead_netio::{Batch, RxQueue};

use crate::sys;

/// Messages wait in so much of the kernel's memory: some hundreds. What comes when that is full is
/// not heard; the sender of the packet in question will send another.
const WAITING_BYTES: i32 = 256 << 10;

/// Protocols of IP (linux/in.h).
const ICMP: u32 = 1;
const ICMPV6: u32 = 58;
const TCP: u32 = 6;

/// Destination unreachable, time exceeded, parameter problem (RFC 792).
const ERRORS_V4: [u32; 3] = [3, 11, 12];
/// Destination unreachable, packet too big, time exceeded, parameter problem (RFC 4443).
const ERRORS_V6: [u32; 4] = [1, 2, 3, 4];

const ICMP_HEADER_BYTES: u32 = 8;
const IPV6_HEADER_BYTES: u32 = 40;
const IPV4_PROTOCOL_AT: u32 = 9;
const IPV4_FRAGMENT_AT: u32 = 6;
/// More fragments follow, or this is not the first.
const IPV4_FRAGMENT: u32 = 0x3fff;
const IPV6_NEXT_HEADER_AT: u32 = 6;

/// Packet sockets that receive copies of forwarded ICMP errors, one per requested address family.
#[derive(Debug, Default)]
pub struct PassingErrors {
    sockets: [Option<OwnedFd>; 2],
}

impl PassingErrors {
    /// Nobody's.
    pub fn none() -> Self {
        Self::default()
    }

    /// Opens sockets for the requested families. Packets sent by `device`, the switch's own, are
    /// excluded.
    ///
    /// # Errors
    /// What the kernel says: mostly that `CAP_NET_RAW` is missing.
    pub fn watch(device: &str, v4: bool, v6: bool) -> io::Result<Self> {
        let device = sys::interface_index(device)?;
        let open = |protocol: i32, steps: Vec<Step>| {
            let filter = assemble(&steps);
            sys::open_packet_socket(protocol as u16, &filter, WAITING_BYTES)
        };
        Self::opened(v4, v6, device, open)
    }

    /// The same where programs at tc assign sockets to packets. New kernels (seen on 6.18) give a
    /// packet to IP before they give it to packet sockets of its Ethernet type, so IP takes a copy,
    /// which has no socket. These sockets get packets before tc.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub fn watch_early(device: &str, v4: bool, v6: bool) -> io::Result<Self> {
        let device = sys::interface_index(device)?;
        let open = |protocol: i32, steps: Vec<Step>| {
            let is_protocol = [
                Step::Load(
                    libc::BPF_W,
                    (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32,
                ),
                is_one_of(&[protocol as u32]),
            ];
            let filter = assemble(&[&is_protocol[..], &steps].concat());
            sys::open_early_packet_socket(&filter, WAITING_BYTES)
        };
        Self::opened(v4, v6, device, open)
    }

    fn opened(
        v4: bool,
        v6: bool,
        device: u32,
        open: impl Fn(i32, Vec<Step>) -> io::Result<OwnedFd>,
    ) -> io::Result<Self> {
        let v4 = v4.then(|| open(libc::ETH_P_IP, errors_v4(device)));
        let v6 = v6.then(|| open(libc::ETH_P_IPV6, errors_v6(device)));
        Ok(Self {
            sockets: [v4.transpose()?, v6.transpose()?],
        })
    }

    /// What to wait for.
    pub(crate) fn files(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.sockets
            .each_ref()
            .map(|socket| socket.as_ref().map(AsFd::as_fd))
    }
}

impl RxQueue for PassingErrors {
    type Error = io::Error;

    fn receive(&mut self, _now: Instant, batch: &mut Batch) -> io::Result<usize> {
        let mut received = 0;
        for socket in self.sockets.iter().flatten() {
            while batch.push_with(|packet| sys::receive_packet(socket, &mut packet.bytes))? {
                received += 1;
            }
        }
        Ok(received)
    }
}

/// A step of a classic packet filter (linux/filter.h). Offsets count from the IP header.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Loads 1, 2 or 4 bytes, or metadata of the packet.
    Load(u32, u32),
    /// Loads the byte at this offset after the IPv4 header.
    LoadBehindV4(u32),
    /// Continues if the accumulator is one of at most four values.
    IsOneOf([u32; 4]),
    /// Continues if it is not this value.
    IsNot(u32),
    /// Takes it on when it has none of these bits.
    HasNone(u32),
}

/// One that came from outside, for this machine's link address.
fn from_outside(device: u32) -> [Step; 4] {
    let known = |what: i32| (libc::SKF_AD_OFF + what) as u32;
    [
        Step::Load(libc::BPF_W, known(libc::SKF_AD_PKTTYPE)),
        is_one_of(&[u32::from(libc::PACKET_HOST)]),
        Step::Load(libc::BPF_W, known(libc::SKF_AD_IFINDEX)),
        Step::IsNot(device),
    ]
}

fn errors_v4(device: u32) -> Vec<Step> {
    let message = [
        Step::Load(libc::BPF_B, IPV4_PROTOCOL_AT),
        is_one_of(&[ICMP]),
        Step::Load(libc::BPF_H, IPV4_FRAGMENT_AT),
        Step::HasNone(IPV4_FRAGMENT),
        Step::LoadBehindV4(0),
        is_one_of(&ERRORS_V4),
        Step::LoadBehindV4(ICMP_HEADER_BYTES + IPV4_PROTOCOL_AT),
        is_one_of(&[TCP]),
    ];
    [&from_outside(device)[..], &message[..]].concat()
}

fn errors_v6(device: u32) -> Vec<Step> {
    let quoted = IPV6_HEADER_BYTES + ICMP_HEADER_BYTES;
    let message = [
        Step::Load(libc::BPF_B, IPV6_NEXT_HEADER_AT),
        is_one_of(&[ICMPV6]),
        Step::Load(libc::BPF_B, IPV6_HEADER_BYTES),
        is_one_of(&ERRORS_V6),
        Step::Load(libc::BPF_B, quoted + IPV6_NEXT_HEADER_AT),
        is_one_of(&[TCP]),
    ];
    [&from_outside(device)[..], &message[..]].concat()
}

/// The last value stands for the places that are left.
fn is_one_of(values: &[u32]) -> Step {
    let last = values.len() - 1;
    Step::IsOneOf(std::array::from_fn(|at| values[at.min(last)]))
}

/// The kernel's form of it. All jumps lead forward, to the next step or to the end, where a packet
/// is discarded; behind the last step it is taken whole.
fn assemble(steps: &[Step]) -> Vec<libc::sock_filter> {
    const DISCARD: u8 = u8::MAX;
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut filter = Vec::new();
    for step in steps {
        match *step {
            Step::Load(size, at) => {
                filter.push(op(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, at));
            }
            Step::LoadBehindV4(at) => {
                filter.push(op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0));
                filter.push(op(libc::BPF_LD | libc::BPF_B | libc::BPF_IND, 0, 0, at));
            }
            Step::IsOneOf([first, second, third, last]) => {
                filter.push(op(equal, 3, 0, first));
                filter.push(op(equal, 2, 0, second));
                filter.push(op(equal, 1, 0, third));
                filter.push(op(equal, 0, DISCARD, last));
            }
            Step::IsNot(value) => filter.push(op(equal, DISCARD, 0, value)),
            Step::HasNone(bits) => {
                let has_any = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
                filter.push(op(has_any, DISCARD, 0, bits));
            }
        }
    }
    let end = filter.len() + 1;
    for (at, op) in filter.iter_mut().enumerate() {
        for jump in [&mut op.jt, &mut op.jf] {
            if *jump == DISCARD {
                *jump = (end - at - 1) as u8;
            }
        }
    }
    let bytes = fairlead_base::PACKET_BYTES_MAX as u32;
    filter.push(op(libc::BPF_RET | libc::BPF_K, 0, 0, bytes));
    filter.push(op(libc::BPF_RET | libc::BPF_K, 0, 0, 0));
    filter
}
