//! Packets of pairs: records made of two connections that a proxy has handed off.
//!
//! On the server's leg their numbers are changed at the boundary ([`fairlead_tcp::second`]): before
//! anything else looks at a packet from the server, and after everything else for one to it.

use fairlead_base::{Instant, Packet};
use fairlead_splice::{PairKept, PairRefused, PairState, Verdict, translate};
use fairlead_tcp::{Found, Line, Pairing, Second, Side};
use fairlead_wire::{Classified, TcpPacket, classify, options};

use super::Datapath;

impl Datapath {
    /// Takes two connections over as one, on the line that is returned beside the pair's number.
    /// `notes` are kept for a later run, up to 220 bytes. Their packets must come here from now on.
    ///
    /// # Errors
    /// See [`PairRefused`].
    pub fn adopt_pair(
        &mut self,
        now: Instant,
        pairing: &Pairing,
        notes: &[u8],
    ) -> Result<(Line, u64), PairRefused> {
        self.switch.adopt_pair(now, pairing, notes)
    }

    /// What was written down of a pair when it was adopted.
    pub fn pair_notes(&self, line: Line) -> &[u8] {
        self.switch.pair_notes(line)
    }

    /// Gives a pair up; its packets must not come here any more.
    ///
    /// # Errors
    /// See [`PairKept`].
    pub fn release_pair(
        &mut self,
        now: Instant,
        line: Line,
        number: u64,
    ) -> Result<PairState, PairKept> {
        self.switch.release_pair(now, line, number)
    }

    /// Ends a pair by a RST to both ends. False if it is over already.
    pub fn end_pair(&mut self, now: Instant, line: Line, number: u64) -> bool {
        self.switch.end_pair(now, line, number)
    }

    /// Lines of the connection table that are free.
    pub fn free_lines(&self) -> u32 {
        let table = self.switch.table();
        table.capacity() - table.used()
    }

    /// The number of the latest pair; later ones have higher numbers.
    pub fn last_pair(&self) -> u64 {
        self.switch.last_pair()
    }

    /// All pairs, as they are now.
    pub fn pairs(&mut self, now: Instant) -> impl Iterator<Item = (Line, PairState)> + '_ {
        self.switch.catch_up_pairs(now);
        self.switch.pairs()
    }

    /// How many pairs there are.
    pub fn pair_count(&self) -> usize {
        self.switch.pairs().count()
    }

    /// Handles a packet of a pair.
    #[cold]
    pub(crate) fn handle_pair(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        found: Found,
        second: &Second,
    ) -> Verdict {
        self.switch.reclaim(now, found.line);
        let mut header = *header;
        if found.side == Side::Server {
            match translate::renumber(packet, &header, &second.of(Side::Server)) {
                Ok(renumbered) => header = renumbered,
                Err(reason) => return self.drop(reason),
            }
        }
        let stamps = options::timestamps(header.options(&packet.bytes));
        let (record, endpoints) = self.switch.table_mut().record_and_endpoints(found.line);
        let verdict = if translate::is_fast(record, found.side, &header) {
            let (side, now_ms) = (found.side, now.as_millis() as u32);
            let moved = translate::forward(record, endpoints, side, packet, &header, now_ms);
            match moved {
                Ok(()) => {
                    if self.switch.has_fast_path() {
                        self.switch.note_packet();
                    } else {
                        self.traffic.fast_packets += 1;
                        self.traffic.fast_bytes += packet.bytes.len() as u64;
                    }
                    self.switch.note_pair(found.line, side, &header, stamps);
                    self.switch.offload(found.line);
                    Verdict::Transmit
                }
                Err(reason) => self.drop(reason),
            }
        } else {
            let verdict = self.switch.handle_packet(now, packet, &header, Some(found));
            if verdict == Verdict::Transmit {
                // Its receiver has seen this clock, too.
                self.switch
                    .note_pair(found.line, found.side, &header, stamps);
            }
            verdict
        };
        if verdict == Verdict::Transmit {
            self.renumber_sent(packet);
        }
        verdict
    }

    /// Puts a packet that is about to be sent into the server's numbers, if it goes to a pair's
    /// server.
    #[cold]
    pub(crate) fn renumber_sent(&self, packet: &mut Packet) {
        let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
            return;
        };
        if let Some(second) = self.switch.second_for(&header.key) {
            let changed = translate::renumber(packet, &header, &second.of(Side::Client));
            debug_assert!(changed.is_ok(), "it was just classified");
        }
    }
}
