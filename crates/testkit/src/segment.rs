//! TCP packets with the usual values where a test does not care.

use fairlead_base::{Checksum, Endpoint, FlowKey, Gso, Packet, SeqNumber};
use fairlead_wire::build::TTL_DEFAULT;
use fairlead_wire::{Classified, SynOptions, TcpFlags, TcpPacket, TcpRepr, classify};

/// The endpoint written as `10.0.0.1:80` or `[2001:db8::1]:80`.
///
/// # Panics
/// When `text` is no address with a port.
pub fn endpoint(text: &str) -> Endpoint {
    match text.parse::<core::net::SocketAddr>() {
        Ok(socket) => socket.into(),
        Err(error) => panic!("{text:?}: {error}"),
    }
}

/// Begins a segment from `src` to `dst`: an ACK without options and payload, all numbers 0, window
/// 65 535, hop limit 64.
pub fn segment(src: Endpoint, dst: Endpoint) -> Segment {
    Segment {
        key: FlowKey { src, dst },
        seq: SeqNumber(0),
        ack: SeqNumber(0),
        flags: TcpFlags::ACK,
        window: u16::MAX,
        options: Vec::new(),
        payload: Vec::new(),
        ttl: TTL_DEFAULT,
    }
}

/// A TCP packet in the making; see [`segment`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Segment {
    key: FlowKey,
    seq: SeqNumber,
    ack: SeqNumber,
    flags: TcpFlags,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
    ttl: u8,
}

impl Segment {
    /// Sets the sequence number.
    pub fn seq(mut self, seq: u32) -> Self {
        self.seq = SeqNumber(seq);
        self
    }

    /// Sets the acknowledgement number. The flags stay as they are.
    pub fn ack(mut self, ack: u32) -> Self {
        self.ack = SeqNumber(ack);
        self
    }

    /// Sets the control bits, all of them.
    pub fn flags(mut self, flags: TcpFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the window as it is sent, not scaled.
    pub fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    /// Sets the time to live or hop limit.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the option list as raw bytes, a multiple of 4 up to 40.
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    /// Sets the option list of a SYN.
    pub fn syn_options(mut self, options: &SynOptions) -> Self {
        self.options.clear();
        options.emit(&mut self.options);
        self
    }

    /// Sets the option list to NOP, NOP, timestamps.
    pub fn timestamps(mut self, value: u32, echo: u32) -> Self {
        self.options = vec![1, 1, 8, 10];
        self.options.extend(value.to_be_bytes());
        self.options.extend(echo.to_be_bytes());
        self
    }

    /// Sets the option list to NOP, NOP, SACK with one block for each pair of edges, up to 4.
    pub fn sack(mut self, blocks: &[(u32, u32)]) -> Self {
        self.options = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
        for (left, right) in blocks {
            self.options.extend(left.to_be_bytes());
            self.options.extend(right.to_be_bytes());
        }
        self
    }

    /// Sets the payload.
    pub fn payload(mut self, payload: impl AsRef<[u8]>) -> Self {
        self.payload = payload.as_ref().to_vec();
        self
    }

    fn repr(&self) -> TcpRepr<'_> {
        TcpRepr {
            key: self.key,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            options: &self.options,
            payload: &self.payload,
            ttl: self.ttl,
        }
    }

    /// The packet, with complete checksums.
    ///
    /// # Panics
    /// When no such packet can exist: see [`TcpRepr::emit`].
    pub fn packet(&self) -> Packet {
        let mut packet = Packet::default();
        self.repr().emit(&mut packet.bytes);
        packet
    }

    /// The packet as a local sender hands it to a virtual device: TCP checksum left to the device.
    ///
    /// # Panics
    /// As [`Segment::packet`].
    pub fn partial(&self) -> Packet {
        let mut packet = Packet {
            checksum: Checksum::Partial,
            ..Packet::default()
        };
        self.repr().emit_partial(&mut packet.bytes);
        packet
    }

    /// The packet as a super-packet, to be cut into segments of `segment_bytes` payload bytes.
    ///
    /// # Panics
    /// As [`Segment::packet`].
    pub fn super_packet(&self, segment_bytes: u16) -> Packet {
        Packet {
            gso: Some(Gso { segment_bytes }),
            ..self.partial()
        }
    }
}

/// The summary of a packet that is known to be valid TCP. A checksum that claims to be complete is
/// verified, and a partial one must be the pseudo-header's sum.
///
/// # Panics
/// When any of that does not hold.
#[track_caller]
pub fn tcp(packet: &Packet) -> TcpPacket {
    let tcp = match classify(&packet.bytes) {
        Ok(Classified::Tcp(tcp)) => tcp,
        other => panic!("not TCP: {other:?}"),
    };
    if packet.checksum == Checksum::Partial {
        let at = usize::from(tcp.tcp_at);
        let field = u16::from_be_bytes([packet.bytes[at + 16], packet.bytes[at + 17]]);
        let length = u32::from(tcp.end - tcp.tcp_at);
        let expected = crate::oracle::pseudo_header(&tcp.key.src.addr, &tcp.key.dst.addr, length);
        assert_eq!(field, expected, "partial checksum of {}", tcp.key);
    } else {
        assert!(
            tcp.checksum_valid(&packet.bytes),
            "TCP checksum of {}",
            tcp.key
        );
    }
    tcp
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_wire::{Timestamps, options};

    const FAMILIES: [[&str; 2]; 2] = [
        ["10.1.0.3:40000", "10.2.0.1:80"],
        ["[2001:db8::3]:40000", "[2001:db8:1::1]:443"],
    ];

    #[test]
    fn what_is_said_is_in_the_packet() {
        for [client, server] in FAMILIES {
            let (client, server) = (endpoint(client), endpoint(server));
            let packet = segment(client, server)
                .seq(7)
                .ack(9)
                .flags(TcpFlags::ACK | TcpFlags::PSH)
                .window(500)
                .ttl(3)
                .timestamps(1, 2)
                .payload(b"GET /")
                .packet();
            let parsed = tcp(&packet);
            assert_eq!(
                parsed.key,
                FlowKey {
                    src: client,
                    dst: server
                }
            );
            assert_eq!((parsed.seq, parsed.ack), (SeqNumber(7), SeqNumber(9)));
            assert_eq!(parsed.flags.to_string(), "PA");
            assert_eq!((parsed.window, parsed.ttl), (500, 3));
            assert_eq!(parsed.payload(&packet.bytes), b"GET /");
            let stamps = options::timestamps(parsed.options(&packet.bytes));
            assert_eq!(stamps, Some(Timestamps { value: 1, echo: 2 }));
        }
    }

    #[test]
    fn offloaded_packets_are_marked_and_checked() {
        for [client, server] in FAMILIES {
            let segment = segment(endpoint(client), endpoint(server)).payload([1; 3_000]);
            let packet = segment.super_packet(1_400);
            assert_eq!(packet.checksum, Checksum::Partial);
            assert_eq!(
                packet.gso,
                Some(Gso {
                    segment_bytes: 1_400
                })
            );
            assert_eq!(tcp(&packet).payload_len(), 3_000);
        }
    }

    #[test]
    #[should_panic(expected = "TCP checksum")]
    fn a_wrong_checksum_is_noticed() {
        let [client, server] = FAMILIES[0];
        let mut packet = segment(endpoint(client), endpoint(server)).packet();
        packet.bytes[24] ^= 1;
        tcp(&packet);
    }

    #[test]
    fn sack_blocks_lie_as_receivers_expect_them() {
        let [client, server] = FAMILIES[0];
        let packet = segment(endpoint(client), endpoint(server))
            .sack(&[(1, 2), (5, 9)])
            .packet();
        let parsed = tcp(&packet);
        let found: Vec<_> = options::walk(parsed.options(&packet.bytes)).collect();
        let edges = [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 9];
        assert_eq!(found, [(options::KIND_SACK, 2, &edges[..])]);
    }
}
