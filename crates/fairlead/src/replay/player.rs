//! Replays a capture to the switch, packet by packet, in the capture's own time.
//!
//! A captured client talks to the switch as it talked to its server. The switch answers its SYN
//! with its own initial sequence number, so the client's acknowledgements are shifted by the
//! difference. When the switch connects to the server that it chose, the captured server's SYN-ACK
//! is the answer, followed by the captured server's other packets.

use std::collections::{HashMap, VecDeque};
use std::io;

use fairlead_base::{Checksum, DropReason, Endpoint, FlowKey, Instant, Packet};
use fairlead_datapath::{Config, ConfigError, Datapath, Snapshot, Verdict};
use fairlead_driver_pcap::{Captured, Passage, StampClock, ip_packet};
use fairlead_wire::{TcpFlags, TcpPacket};

use super::check::Comparison;
use super::connection::{Connection, Numbered, Side};
use super::edit::key;
use super::outlet::{Leg, Outlet};
use super::prepare::prepare;
use super::report::ConnectionReport;
use super::survey::Survey;
use super::tally::{Tally, Unplayed};
use super::target::{NoTarget, Targets};

/// Maximum concurrent connections.
pub const CONNECTIONS_MAX: usize = 262_144;

/// Time that the switch gets after the last packet, so that closing connections close.
const EPILOGUE: core::time::Duration = core::time::Duration::from_secs(5);

/// Maximum steps per gap between packets: timers fire late by less than a thousandth of the gap.
const STEPS_MAX: u32 = 4_096;

/// Seed of all random choices: the same capture always gives the same replay.
const SEED: u64 = 0x6661_6972_6c65_6164;

/// A packet to the switch.
#[derive(Debug)]
pub(super) struct Input {
    /// Its connection and the side that sent it; `None` for answers to probes.
    pub(super) from: Option<(u64, Side)>,
    /// The captured packet it was made from; `None` if the replay generated it.
    pub(super) source: Option<Numbered>,
    /// The packet as sent to the switch.
    pub(super) bytes: Vec<u8>,
}

/// Replays a capture.
#[derive(Debug)]
pub struct Player {
    pub(super) datapath: Datapath,
    pub(super) targets: Targets,
    pub(super) survey: Survey,
    pub(super) outlet: Outlet,
    pub(super) clock: StampClock,
    pub(super) now: Instant,
    pub(super) tally: Tally,
    pub(super) comparison: Comparison,
    pub(super) connections: HashMap<u64, Connection>,
    /// Indexed by captured client and server, by replayed client and listening endpoint, and by
    /// chosen server and source.
    pub(super) by_captured: HashMap<FlowKey, u64>,
    pub(super) by_client: HashMap<FlowKey, u64>,
    pub(super) by_server: HashMap<FlowKey, u64>,
    /// Connections with a chosen server but without a SYN to it yet.
    pub(super) deciding: VecDeque<(u64, Endpoint)>,
    pub(super) inputs: VecDeque<Input>,
    pub(super) leaving: VecDeque<(Instant, u64)>,
    pub(super) finished: Vec<ConnectionReport>,
    opened: u64,
}

impl Player {
    /// Creates a switch with this configuration.
    ///
    /// # Errors
    /// As [`Datapath::new`].
    pub fn new(
        config: Config,
        targets: Targets,
        survey: Survey,
        outlet: Outlet,
    ) -> Result<Self, ConfigError> {
        let now = Instant::ZERO;
        Ok(Self {
            datapath: Datapath::new(config, SEED.into(), now)?,
            targets,
            survey,
            outlet,
            clock: StampClock::default(),
            now,
            tally: Tally::default(),
            comparison: Comparison::default(),
            connections: HashMap::new(),
            by_captured: HashMap::new(),
            by_client: HashMap::new(),
            by_server: HashMap::new(),
            deciding: VecDeque::new(),
            inputs: VecDeque::new(),
            leaving: VecDeque::new(),
            finished: Vec::new(),
            opened: 0,
        })
    }

    /// Counts of the capture so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Results of the comparisons.
    pub fn comparison(&self) -> &Comparison {
        &self.comparison
    }

    /// The switch's own counters.
    pub fn snapshot(&self) -> Snapshot {
        self.datapath.snapshot()
    }

    /// The switch's configuration.
    pub fn config(&self) -> &Config {
        self.datapath.config()
    }

    /// The capture's clock.
    pub fn clock(&self) -> &StampClock {
        &self.clock
    }

    /// Connections replayed so far.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Packets written to the outlet.
    pub fn written(&self) -> u64 {
        self.outlet.packets()
    }

    /// Connections that have ended since the last call.
    pub fn take_finished(&mut self) -> Vec<ConnectionReport> {
        std::mem::take(&mut self.finished)
    }

    /// Replays the next packet of the capture.
    ///
    /// # Errors
    /// The outlet cannot be written.
    pub fn play(&mut self, captured: &Captured<'_>) -> io::Result<()> {
        let at = self.clock.advance_if_known(captured.stamp_ns);
        self.pass_time(at)?;
        self.tally.packets += 1;
        let ip = match ip_packet(captured.link, captured.bytes) {
            Ok(ip) => ip,
            Err(reason) => {
                self.tally.skip(Unplayed::NotIp(reason));
                return Ok(());
            }
        };
        let packet = match prepare(&ip, &self.survey.senders) {
            Ok(packet) => packet,
            Err(reason) => {
                self.tally.skip(Unplayed::Unfit(reason));
                return Ok(());
            }
        };
        self.tally.snapped += u64::from(packet.missing > 0);
        self.tally.ip_repaired += u64::from(packet.repairs.ip);
        self.tally.tcp_repaired += u64::from(packet.repairs.tcp);
        self.place(Numbered {
            number: captured.number,
            packet,
        });
        self.settle()
    }

    /// Lets the switch finish, and reports all connections.
    ///
    /// # Errors
    /// The outlet cannot be written.
    pub fn finish(&mut self) -> io::Result<()> {
        self.pass_time(self.now + EPILOGUE)?;
        let mut left: Vec<u64> = self.connections.keys().copied().collect();
        left.sort_unstable();
        for id in left {
            self.retire(id);
        }
        self.outlet.finish()
    }

    /// Advances time to `until`, calling the switch at its timeouts.
    fn pass_time(&mut self, until: Instant) -> io::Result<()> {
        let step = until.since(self.now) / STEPS_MAX;
        for _ in 0..2 * STEPS_MAX {
            let Some(due) = self.datapath.poll_timeout().filter(|due| *due <= until) else {
                break;
            };
            self.now = due.max(self.now + step).min(until);
            self.datapath.handle_timeout(self.now);
            self.settle()?;
        }
        self.now = until;
        self.retire_quiet();
        Ok(())
    }

    /// Finds a packet's connection, or creates one.
    fn place(&mut self, packet: Numbered) {
        let header = packet.packet.header;
        let opening = header.flags.contains(TcpFlags::SYN) && !header.flags.contains(TcpFlags::ACK);
        if let Some(&id) = self.by_captured.get(&header.key) {
            let again = self
                .connections
                .get(&id)
                .is_some_and(|connection| connection.client_isn == header.seq);
            if opening && !again {
                self.retire(id);
                self.open(packet);
            } else {
                self.client_sent(id, packet);
            }
        } else if let Some(&id) = self.by_captured.get(&header.key.reversed()) {
            self.server_sent(id, packet);
        } else if opening {
            self.open(packet);
        } else {
            self.skip_stranger(&header);
        }
    }

    fn skip_stranger(&mut self, header: &TcpPacket) {
        let ends = [header.key.dst, header.key.src].map(|end| self.targets.of(end));
        if ends.iter().any(Result::is_ok) {
            self.tally.skip_midstream(header.key);
        } else if ends.contains(&Err(NoTarget::Family)) {
            self.tally.skip(Unplayed::NoFamily);
        } else {
            self.tally.skip(Unplayed::NoService);
        }
    }

    /// Creates a connection.
    fn open(&mut self, syn: Numbered) {
        let header = syn.packet.header;
        let target = match self.targets.of(header.key.dst) {
            Ok(target) => target,
            Err(NoTarget::Port) => {
                self.tally.note_strange(header.key.dst.port);
                self.tally.skip(Unplayed::NoService);
                return;
            }
            Err(NoTarget::Family) => {
                self.tally.skip(Unplayed::NoFamily);
                return;
            }
        };
        if self.connections.len() >= CONNECTIONS_MAX {
            self.retire_silent();
            if self.connections.len() >= CONNECTIONS_MAX {
                self.tally.skip(Unplayed::TooMany);
                return;
            }
        }
        let played = self.played_key(header.key.src, target.listen);
        self.opened += 1;
        let id = self.opened;
        self.by_captured.insert(header.key, id);
        self.by_client.insert(played, id);
        let connection = Connection::new(id, &syn, played, target, self.now);
        self.connections.insert(id, connection);
        self.client_sent(id, syn);
    }

    /// The client's own endpoint towards `listen`, or one with another port if a live connection
    /// uses it.
    fn played_key(&mut self, client: Endpoint, listen: Endpoint) -> FlowKey {
        let wanted = key(client, listen);
        let lives = |wanted: &FlowKey| {
            let id = self.by_client.get(wanted)?;
            self.connections
                .get(id)
                .filter(|connection| !connection.is_over())
        };
        if lives(&wanted).is_none() {
            return wanted;
        }
        let ports = (1..=u16::MAX).map(|more| client.port.wrapping_add(more));
        let mut free = ports.filter(|port| *port >= 1_024).map(|port| {
            let addr = client.addr;
            key(Endpoint { addr, port }, listen)
        });
        let moved = free.find(|other| !self.by_client.contains_key(other));
        self.tally.moved += 1;
        moved.unwrap_or(wanted)
    }

    fn client_sent(&mut self, id: u64, packet: Numbered) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let header = packet.packet.header;
        let bytes = &packet.packet.bytes;
        connection.note(Side::Client, &header, self.now);
        if connection.is_over() {
            self.leave(id);
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.refused.is_some() {
            self.tally.skip(Unplayed::AfterRefusal);
            return;
        }
        let has_ack = header.flags.contains(TcpFlags::ACK);
        if has_ack && !connection.settle_answer(&header, bytes) {
            self.tally.skip(Unplayed::NoSynAck);
            return;
        }
        if connection.leg.is_none() {
            connection.keep_early(&header, bytes);
        }
        let Some(edit) = connection.edit_in(&header, bytes) else {
            self.tally.skip(Unplayed::SynIgnored);
            return;
        };
        let mut bytes = bytes.clone();
        edit.apply(&mut bytes, &header);
        self.inputs.push_back(Input {
            from: Some((id, Side::Client)),
            source: Some(packet),
            bytes,
        });
    }

    fn server_sent(&mut self, id: u64, packet: Numbered) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let header = packet.packet.header;
        connection.note(Side::Server, &header, self.now);
        let answer = header.flags.contains(TcpFlags::SYN | TcpFlags::ACK);
        let over = connection.is_over();
        if connection.refused.is_some() {
            self.tally.skip(Unplayed::NotConnected);
        } else if connection.leg.is_some() {
            self.feed_from_server(id, packet);
        } else if answer {
            if connection.keep_answer(packet).is_some() {
                self.tally.skip(Unplayed::SpareSynAck);
            }
        } else if connection.wait(packet).is_some() {
            self.tally.skip(Unplayed::NotConnected);
        }
        if over {
            self.leave(id);
        }
    }

    pub(super) fn feed_from_server(&mut self, id: u64, packet: Numbered) {
        let header = &packet.packet.header;
        let edit = self
            .connections
            .get(&id)
            .and_then(|connection| connection.edit_out(header));
        let Some(edit) = edit else {
            self.tally.skip(Unplayed::NotConnected);
            return;
        };
        let mut bytes = packet.packet.bytes.clone();
        edit.apply(&mut bytes, header);
        self.inputs.push_back(Input {
            from: Some((id, Side::Server)),
            source: Some(packet),
            bytes,
        });
    }

    /// Sends all queued packets to the switch, and takes all its output.
    fn settle(&mut self) -> io::Result<()> {
        loop {
            self.take_outputs()?;
            let Some(input) = self.inputs.pop_front() else {
                return Ok(());
            };
            self.feed(input)?;
        }
    }

    fn feed(&mut self, input: Input) -> io::Result<()> {
        let missing = input
            .source
            .as_ref()
            .map_or(0, |source| source.packet.missing);
        if let Some(source) = &input.source {
            self.tally.played += 1;
            if missing == 0 && !source.packet.header.checksum_valid(&source.packet.bytes) {
                self.tally.tcp_wrong += 1;
            }
        }
        if let Some((_, side)) = input.from {
            let leg = match side {
                Side::Client => Leg::Client,
                Side::Server => Leg::Server,
            };
            let stamp = self.clock.stamp_ns(self.now);
            let number = input.source.as_ref().map(|source| source.number);
            let comment = || match number {
                Some(number) => format!("packet {number} of the capture, re-addressed"),
                None => "generated by the replay: the client closes".to_owned(),
            };
            self.outlet
                .write(leg, Passage::In, stamp, &input.bytes, missing, comment)?;
        }
        let mut packet = Packet::from_bytes(&input.bytes);
        if missing > 0 {
            // It cannot be verified, so it is taken as correct.
            packet.checksum = Checksum::Verified;
        }
        match self.datapath.handle_packet(self.now, &mut packet) {
            Verdict::Transmit => self.take_packet(&packet, Some(&input)),
            Verdict::Drop(reason) => {
                self.note_drop(&input, reason);
                Ok(())
            }
            Verdict::Consumed => Ok(()),
        }
    }

    fn note_drop(&mut self, input: &Input, reason: DropReason) {
        let Some((id, _)) = input.from else { return };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.last_drop = Some(reason);
            connection.behind_request |= reason == DropReason::BehindRequest;
        }
    }
}
