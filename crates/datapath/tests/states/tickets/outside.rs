//! The double of a fast path that begins connections, for clients of the rig.

use std::ops::Deref;

use fairlead_base::FlowKey;
use fairlead_tcp::Line;
use fairlead_testkit::{FastPathDouble, Newcomer, Segment, TakenTicket, segment, tcp};
use fairlead_wire::{SynOptions, TcpFlags, Timestamps};

use crate::rig::{Opened, Sent, linux};

/// Lanes that there are.
pub(crate) const LANES: usize = 2;

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Outside(FastPathDouble);

impl Default for Outside {
    fn default() -> Self {
        Self(FastPathDouble::beginning(LANES))
    }
}

impl Deref for Outside {
    type Target = FastPathDouble;

    fn deref(&self) -> &FastPathDouble {
        &self.0
    }
}

/// A connection that was begun, and its SYN.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) line: Line,
    pub(crate) syn: Sent,
}

impl Taken {
    fn of(opened: &Opened, taken: &TakenTicket) -> Self {
        Self {
            line: taken.line,
            syn: syn_of(opened, &taken.server, taken.syn_mss),
        }
    }
}

impl Outside {
    /// For the switch.
    pub(crate) fn fast_path(&self) -> Box<FastPathDouble> {
        Box::new(self.0.clone())
    }

    /// Has a client whose first bytes these are take the next ticket of a lane.
    pub(crate) fn begin(&self, lane: usize, opened: &Opened, bytes: &[u8]) -> Option<Taken> {
        let taken = self.0.begin(lane, &newcomer(opened), bytes)?;
        Some(Taken::of(opened, &taken))
    }

    /// Has a copy of a client's first bytes take a ticket before the next record is registered,
    /// and its server answer by then, if it was `joined`.
    pub(crate) fn begin_by_copy(&self, opened: &Opened, bytes: &'static [u8], joined: bool) {
        self.told(|told| told.copy = Some((newcomer(opened), bytes, joined)));
    }

    /// What came of the copy.
    pub(crate) fn copied(&self, opened: &Opened) -> Option<Taken> {
        let taken = self.told(|told| told.copied.take())?;
        Some(Taken::of(opened, &taken))
    }
}

fn newcomer(opened: &Opened) -> Newcomer {
    Newcomer {
        client: opened.client,
        isn: opened.isn,
        dseq: opened.dseq,
        stamps: opened.stamps,
        offered_scale: opened.offered.window_scale,
    }
}

/// The SYN into which a client's first bytes were made.
fn syn_of(opened: &Opened, server: &FlowKey, syn_mss: u16) -> Sent {
    let asked = SynOptions {
        mss: Some(syn_mss.min(1_460)),
        timestamps: opened
            .stamps
            .map(|(value, _)| Timestamps { value, echo: 0 }),
        ..linux(0)
    };
    let syn = segment(server.dst, server.src)
        .flags(TcpFlags::SYN)
        .seq(opened.isn)
        .syn_options(&asked);
    sent_as(&syn)
}

/// As if it had left the switch.
pub(crate) fn sent_as(segment: &Segment) -> Sent {
    let packet = segment.packet();
    Sent {
        header: tcp(&packet),
        packet,
        whose: None,
    }
}
