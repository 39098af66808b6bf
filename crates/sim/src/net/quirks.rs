//! Stacks that are older, stranger or stricter than smoltcp: a layer between a host and its link.
//!
//! Options are taken out of SYNs in both directions, so that the host behind really believes that
//! the other side does not know them. Sequence numbers are shifted so that streams wrap after a few
//! bytes. Timestamps are held to PAWS (RFC 7323, section 5), which smoltcp does not check, and echo
//! what that RFC says (its section 4.3), where smoltcp echoes whatever came last. A RST on a tuple
//! that is used again must have the number that is expected (RFC 5961, section 3.2): smoltcp takes
//! any within its window, those of the connection before among them.

use std::collections::BTreeMap;

use fairlead_base::{Endpoint, SeqNumber};
use smoltcp::wire::{TcpPacket, TcpSeqNumber};

use super::segment::{ACK, RST, SYN, Segment, seal};

/// How a host's stack differs from smoltcp's. All off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// No MSS option: both sides assume 536 (RFC 9293, section 3.7.1).
    pub no_mss: bool,
    /// No window scaling.
    pub no_scale: bool,
    /// No selective acknowledgements.
    pub no_sack: bool,
    /// Streams that this host sends start this many bytes before the wrap (up to 4095 more).
    pub isn_before_wrap: Option<u32>,
    /// Segments with timestamps from the past are dropped.
    pub paws: bool,
}

/// The quirks of one host, with what they must remember.
#[derive(Debug)]
pub(crate) struct QuirkState {
    quirks: Quirks,
    /// The host's own MTU: what it announces does not shrink with a path's (RFC 6691).
    mtu: usize,
    flows: BTreeMap<(Endpoint, Endpoint), Flow>,
}

#[derive(Debug, Default)]
struct Flow {
    /// The initial sequence number, as the stack behind knows it.
    isn: Option<u32>,
    /// Connections that this tuple had.
    uses: u32,
    /// Added to sequence numbers that leave.
    shift: u32,
    /// TS.Recent of RFC 7323.
    ts_recent: Option<u32>,
    /// The last acknowledgement that left.
    last_ack: Option<SeqNumber>,
    /// The number behind that, and behind what has come in order since.
    expected: Option<SeqNumber>,
}

impl QuirkState {
    pub(crate) fn new(quirks: Quirks, mtu: usize) -> Self {
        Self {
            quirks,
            mtu,
            flows: BTreeMap::new(),
        }
    }

    /// Changes a packet on its way out.
    pub(crate) fn leaving(&mut self, bytes: &mut [u8]) {
        let Ok(segment) = Segment::read(bytes) else {
            return;
        };
        let key = (segment.src, segment.dst);
        if segment.has(SYN) {
            let flow = self.flows.entry(key).or_default();
            if flow.isn != Some(segment.seq.0) {
                flow.begin(segment.seq.0, self.quirks.isn_before_wrap);
                if !segment.has(ACK) {
                    flow.ts_recent = None;
                }
            }
            let header = segment.tcp_at + 20;
            let mss = self.mtu.saturating_sub(header).min(usize::from(u16::MAX)) as u16;
            each_option(&mut bytes[header..segment.payload_at], |option| {
                if option[0] == 2 && option.len() == 4 {
                    option[2..].copy_from_slice(&mss.to_be_bytes());
                }
            });
            self.strip(bytes, &segment);
        }
        if let Some(flow) = self.flows.get_mut(&key) {
            if segment.has(ACK) {
                flow.last_ack = Some(segment.ack);
                if flow.expected.is_none_or(|known| segment.ack.after(known)) {
                    flow.expected = Some(segment.ack);
                }
                if let Some(recent) = flow.ts_recent {
                    set_echo(&mut bytes[segment.tcp_at + 20..segment.payload_at], recent);
                }
            }
            if flow.shift != 0 {
                let mut tcp = TcpPacket::new_unchecked(&mut bytes[segment.tcp_at..segment.end]);
                tcp.set_seq_number(TcpSeqNumber(segment.seq.0.wrapping_add(flow.shift) as i32));
            }
        }
        seal(bytes);
    }

    /// Changes a packet on its way in; false when the host would drop it. Packets that are damaged
    /// are left alone, so that the host finds the damage.
    pub(crate) fn arriving(&mut self, bytes: &mut [u8]) -> bool {
        let Ok(segment) = Segment::read(bytes) else {
            return true;
        };
        let key = (segment.dst, segment.src);
        if segment.has(SYN) {
            self.strip(bytes, &segment);
            if !segment.has(ACK) {
                self.flows.entry(key).or_default().ts_recent = None;
            }
        }
        let Some(flow) = self.flows.get_mut(&key) else {
            seal(bytes);
            return true;
        };
        if !flow.fresh(&segment) && self.quirks.paws || !flow.takes_reset(&segment) {
            return false;
        }
        flow.expect(&segment);
        if flow.shift != 0 && segment.has(ACK) {
            let mut tcp = TcpPacket::new_unchecked(&mut bytes[segment.tcp_at..segment.end]);
            tcp.set_ack_number(TcpSeqNumber(segment.ack.0.wrapping_sub(flow.shift) as i32));
            shift_sack(tcp.options_mut(), flow.shift);
        }
        seal(bytes);
        true
    }

    fn strip(&self, bytes: &mut [u8], segment: &Segment) {
        let unwanted = |kind| match kind {
            2 => self.quirks.no_mss,
            3 => self.quirks.no_scale,
            4 => self.quirks.no_sack,
            _ => false,
        };
        each_option(
            &mut bytes[segment.tcp_at + 20..segment.payload_at],
            |option| {
                if unwanted(option[0]) {
                    option.fill(1);
                }
            },
        );
    }
}

impl Flow {
    /// A new connection. A tuple that is used again gets another number than the last time
    /// (RFC 6528).
    fn begin(&mut self, isn: u32, before_wrap: Option<u32>) {
        self.isn = Some(isn);
        self.uses += 1;
        (self.last_ack, self.expected) = (None, None);
        self.shift = before_wrap.filter(|_| self.uses == 1).map_or(0, |before| {
            0u32.wrapping_sub(before + (isn & 0xfff)).wrapping_sub(isn)
        });
    }

    /// Follows what comes in order.
    fn expect(&mut self, segment: &Segment) {
        let end = segment.seq + segment.span();
        if let Some(expected) = &mut self.expected
            && !segment.seq.after(*expected)
            && end.after(*expected)
        {
            *expected = end;
        }
    }

    /// False for a RST of an earlier connection of this tuple.
    fn takes_reset(&self, segment: &Segment) -> bool {
        let exact = [self.expected, self.last_ack].contains(&Some(segment.seq));
        !segment.has(RST) || self.uses < 2 || self.expected.is_none() || exact
    }

    /// PAWS: false for a segment whose timestamp is before the last one that counted.
    fn fresh(&mut self, segment: &Segment) -> bool {
        let Some((value, _)) = segment.timestamps else {
            return true;
        };
        if segment.has(RST) {
            return true;
        }
        if segment.has(SYN) {
            // A second SYN-ACK is outside the window and changes nothing.
            self.ts_recent.get_or_insert(value);
            return true;
        }
        if self
            .ts_recent
            .is_some_and(|recent| (value.wrapping_sub(recent) as i32) < 0)
        {
            return false;
        }
        if self.last_ack.is_some_and(|ack| !segment.seq.after(ack)) {
            self.ts_recent = Some(value);
        }
        true
    }
}

fn set_echo(options: &mut [u8], echo: u32) {
    each_option(options, |option| {
        if option[0] == 8 && option.len() == 10 {
            option[6..].copy_from_slice(&echo.to_be_bytes());
        }
    });
}

fn shift_sack(options: &mut [u8], shift: u32) {
    each_option(options, |option| {
        if option[0] == 5 {
            for edge in option[2..].chunks_exact_mut(4) {
                let value = u32::from_be_bytes([edge[0], edge[1], edge[2], edge[3]]);
                edge.copy_from_slice(&value.wrapping_sub(shift).to_be_bytes());
            }
        }
    });
}

/// Calls back with each option, its kind first; stops at the end or at nonsense.
fn each_option(options: &mut [u8], mut on_option: impl FnMut(&mut [u8])) {
    let mut at = 0;
    while at < options.len() {
        let len = match options[at] {
            0 => return,
            1 => 1,
            _ => options.get(at + 1).map_or(0, |&len| usize::from(len)),
        };
        if len == 0 || (len == 1 && options[at] != 1) || at + len > options.len() {
            return;
        }
        on_option(&mut options[at..at + len]);
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::segment::tests::packet;

    #[test]
    fn a_shifted_stream_comes_back_unshifted() {
        let quirks = Quirks {
            isn_before_wrap: Some(10),
            ..Quirks::default()
        };
        let mut state = QuirkState::new(quirks, 1_500);
        let mut syn = packet(false, 5_000, SYN, b"");
        state.leaving(&mut syn);
        let sent = Segment::read(&syn).unwrap();
        assert!(sent.seq.0 > u32::MAX - 5_000);
        // The answer acknowledges the shifted number.
        let mut answer = packet(false, 9, SYN | ACK, b"");
        let mut view = smoltcp::wire::Ipv4Packet::new_unchecked(&mut answer);
        let (src, dst) = (view.src_addr(), view.dst_addr());
        view.set_src_addr(dst);
        view.set_dst_addr(src);
        let mut tcp = TcpPacket::new_unchecked(&mut answer[20..]);
        tcp.set_src_port(80);
        tcp.set_dst_port(1_000);
        tcp.set_ack_number(TcpSeqNumber((sent.seq + 1).0 as i32));
        seal(&mut answer);
        assert!(state.arriving(&mut answer));
        assert_eq!(Segment::read(&answer).unwrap().ack, SeqNumber(5_001));
    }

    #[test]
    fn a_reset_on_a_tuple_that_is_used_again_must_be_exact() {
        let segment = |seq, flags, payload: &[u8]| {
            Segment::read(&packet(false, seq, flags, payload)).unwrap()
        };
        let mut flow = Flow::default();
        flow.begin(1, None);
        flow.expected = Some(SeqNumber(100));
        let near = segment(101, RST, b"");
        assert!(flow.takes_reset(&near), "the first use");
        flow.begin(2, None);
        assert!(flow.takes_reset(&near), "nothing is expected yet");
        flow.expected = Some(SeqNumber(100));
        flow.expect(&segment(101, ACK, b"ahead"));
        for (seq, taken) in [(99, false), (100, true), (101, false), (106, false)] {
            assert_eq!(flow.takes_reset(&segment(seq, RST, b"")), taken, "{seq}");
        }
        flow.expect(&segment(98, ACK, b"next"));
        assert!(flow.takes_reset(&segment(102, RST, b"")));
        assert!(flow.takes_reset(&segment(7, ACK, b"")), "no reset");
    }

    #[test]
    fn unwanted_options_become_no_operations() {
        let mut options = [2, 4, 5, 0xb4, 4, 2, 3, 3, 7, 1];
        let state = QuirkState::new(
            Quirks {
                no_mss: true,
                no_scale: true,
                ..Quirks::default()
            },
            1_500,
        );
        let mut bytes = packet(false, 1, SYN, b"");
        bytes.splice(40..40, options.iter().copied().chain([1, 1]));
        bytes[3] = 52;
        bytes[32] = 0x80;
        seal(&mut bytes);
        let segment = Segment::read(&bytes).unwrap();
        assert_eq!((segment.mss, segment.scale), (Some(1_460), Some(7)));
        state.strip(&mut bytes, &segment);
        seal(&mut bytes);
        let segment = Segment::read(&bytes).unwrap();
        assert_eq!(
            (segment.mss, segment.scale, segment.sack_permitted),
            (None, None, true)
        );
        // Nonsense does not loop.
        each_option(&mut options[1..3], |_| {});
        each_option(&mut [8, 0], |_| panic!("not an option"));
    }
}
