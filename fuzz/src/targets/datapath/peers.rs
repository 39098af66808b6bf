//! What the ends of connections know: the numbers that valid packets carry.

use fairlead_base::{Endpoint, SeqNumber};
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, Timestamps, options};

/// A client and its newest connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) endpoint: Endpoint,
    pub(super) listen: Endpoint,
    pub(super) isn: u32,
    /// Its next number.
    pub(super) nxt: u32,
    /// What it expects of the other side.
    pub(super) expects: u32,
    /// How far it is in what it says, and in which text.
    pub(super) said: usize,
    pub(super) text: usize,
    /// Whether it sends timestamps, its clock, and the other side's.
    pub(super) stamps: Option<Timestamps>,
}

impl Client {
    pub(super) fn new(endpoint: Endpoint, listen: Endpoint) -> Self {
        Self {
            endpoint,
            listen,
            isn: 0,
            nxt: 1,
            expects: 0,
            said: 0,
            text: 0,
            stamps: None,
        }
    }

    /// It is sent a packet.
    pub(super) fn hear(&mut self, header: &TcpPacket, bytes: &[u8]) {
        let end = header.seq + header.segment_len();
        if header.flags.contains(TcpFlags::SYN) || end.after(SeqNumber(self.expects)) {
            self.expects = end.0;
        }
        match options::timestamps(header.options(bytes)) {
            Some(theirs) => {
                let value = self.stamps.map_or(0, |ours| ours.value);
                self.stamps = Some(Timestamps {
                    value,
                    echo: theirs.value,
                });
            }
            None if header.flags.contains(TcpFlags::SYN) => self.stamps = None,
            None => {}
        }
    }
}

/// So much of a stream is remembered to tell whether it is sent in two versions.
const REMEMBERED_BYTES: usize = 8_192;

/// A server's side of a connection that the switch has opened.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    pub(super) server: Endpoint,
    pub(super) source: Endpoint,
    /// The switch's initial number.
    pub(super) their_isn: u32,
    pub(super) expects: u32,
    pub(super) isn: u32,
    pub(super) nxt: u32,
    pub(super) stamps: Option<Timestamps>,
    /// Bytes that the switch itself has sent, from the first of the stream on.
    sent: Vec<Option<u8>>,
}

impl Leg {
    pub(super) fn new(server: Endpoint, source: Endpoint) -> Self {
        Self {
            server,
            source,
            their_isn: 0,
            expects: 0,
            isn: 0,
            nxt: 0,
            stamps: None,
            sent: Vec::new(),
        }
    }

    /// The server is sent a packet; `by_engine` when the switch made it itself.
    pub(super) fn hear(&mut self, header: &TcpPacket, bytes: &[u8], by_engine: bool) {
        let end = header.seq + header.segment_len();
        if header.flags.contains(TcpFlags::SYN) {
            self.their_isn = header.seq.0;
            self.expects = end.0;
            self.sent.clear();
            self.stamps = SynOptions::parse(header.options(bytes))
                .ok()
                .and_then(|options| options.timestamps);
            return;
        }
        if end.after(SeqNumber(self.expects)) {
            self.expects = end.0;
        }
        if let Some(theirs) = options::timestamps(header.options(bytes)) {
            let value = self.stamps.map_or(0, |ours| ours.value);
            self.stamps = Some(Timestamps {
                value,
                echo: theirs.value,
            });
        }
        if by_engine {
            self.remember(header, header.payload(bytes));
        }
    }

    /// The switch must not send one byte in two versions.
    fn remember(&mut self, header: &TcpPacket, payload: &[u8]) {
        let first = header.seq.0.wrapping_sub(self.their_isn.wrapping_add(1));
        for (at, &byte) in (first as usize..REMEMBERED_BYTES).zip(payload) {
            if self.sent.len() <= at {
                self.sent.resize(at + 1, None);
            }
            let known = *self.sent[at].get_or_insert(byte);
            assert_eq!(
                known, byte,
                "the switch sent byte {at} of {} twice",
                header.key
            );
        }
    }
}
