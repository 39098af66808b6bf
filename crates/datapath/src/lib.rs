//! Classify, look up, hand to an organ, emit: a packet's way through Fairlead.
//!
//! Absent by design: sockets, clocks, threads, files, random sources.
#![forbid(unsafe_code)]

use fairlead_base::{DropReason, Instant, Packet};
pub use fairlead_splice::config;
pub use fairlead_splice::config::Config;
pub use fairlead_splice::event::{End, Event, Offers, ServerState};
pub use fairlead_splice::snapshot::Snapshot;

/// What becomes of a packet that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it as it is now.
    Transmit,
    /// Forget it; counted under this reason.
    Drop(DropReason),
    /// The engine took what it needed; nothing to send.
    Consumed,
}

/// A configuration that no datapath can be built from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError(pub String);

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// The packet processor.
#[derive(Debug)]
pub struct Datapath {
    config: Config,
}

impl Datapath {
    /// A datapath for this configuration. `seed` feeds every secret and every choice by chance.
    pub fn new(config: Config, seed: u64, now: Instant) -> Result<Self, ConfigError> {
        let _ = (seed, now);
        Ok(Self { config })
    }

    /// Handles packets in place: `verdicts[i]` tells what to do with `packets[i]`.
    pub fn handle_batch(
        &mut self,
        now: Instant,
        packets: &mut [Packet],
        verdicts: &mut Vec<Verdict>,
    ) {
        verdicts.clear();
        for packet in packets {
            verdicts.push(self.handle_packet(now, packet));
        }
    }

    /// Handles one packet in place.
    pub fn handle_packet(&mut self, now: Instant, packet: &mut Packet) -> Verdict {
        let _ = (now, packet);
        Verdict::Drop(DropReason::NotOurs)
    }

    /// Does what has become due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// When [`Self::handle_timeout`] wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Takes the next packet that the engine made itself. Call until `false` after every input.
    pub fn poll_transmit(&mut self, out: &mut Packet) -> bool {
        out.clear();
        false
    }

    /// Takes the next event. Call until `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// Takes no new connections from now on.
    pub fn drain(&mut self, now: Instant) {
        let _ = now;
    }

    /// Sends RST to both ends of everything that lives.
    pub fn abort_all(&mut self, now: Instant) {
        let _ = now;
    }

    /// Connections that are being set up or spliced; TIME_WAIT does not count.
    pub fn live_connections(&self) -> u64 {
        0
    }

    /// All counters.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &Config {
        &self.config
    }
}
