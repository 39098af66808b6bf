//! Handles packets and events from the switch.

use std::io;

use fairlead_base::{Endpoint, FlowKey, Packet};
use fairlead_datapath::Event;
use fairlead_datapath::config::Treatment;
use fairlead_driver_pcap::Passage;
use fairlead_wire::{Classified, SynOptions, TcpFlags, TcpPacket, TcpRepr, Timestamps, classify};

use super::check::{difference, is_sound};
use super::connection::{Decided, Ended, Leg as ServerLeg, Refused, Side, Told};
use super::outlet::Leg;
use super::player::{Input, Player};

/// Hop limit of packets that the replay generates.
const TTL: u8 = 64;

/// Maximum distance of the switch's SYN from the client's sequence number: bytes that it inserts
/// into a stream or removes.
const MOVED_MAX: u32 = 64 << 10;

impl Player {
    /// Takes all output of the switch since the last input.
    pub(super) fn take_outputs(&mut self) -> io::Result<()> {
        while let Some(event) = self.datapath.poll_event() {
            self.note_event(event);
        }
        let mut packet = Packet::default();
        while self.datapath.poll_transmit(&mut packet) {
            self.take_packet(&packet, None)?;
        }
        Ok(())
    }

    fn connection_of(&self, client: Endpoint, listen: Endpoint) -> Option<u64> {
        let key = FlowKey {
            src: client,
            dst: listen,
        };
        self.by_client.get(&key).copied()
    }

    fn note_event(&mut self, event: Event) {
        match event {
            Event::Decided {
                client,
                listen,
                route,
                pool,
                server,
                attempt,
                treatment,
                subject,
                ..
            } => {
                let Some(id) = self.connection_of(client, listen) else {
                    return;
                };
                let Some(connection) = self.connections.get_mut(&id) else {
                    return;
                };
                let proxy = self.datapath.config().pools[usize::from(pool.0)].proxy_protocol;
                connection.held |= treatment == Treatment::OneShot || proxy.is_some();
                connection.decided = Some(Decided {
                    route,
                    pool,
                    server,
                    attempt,
                    treatment,
                    subject: subject.as_str().to_owned(),
                });
                connection.past_legs.extend(connection.leg.take());
                self.deciding.push_back((id, server));
            }
            Event::Refused {
                client,
                listen,
                reason,
                status,
                subject,
                ..
            } => {
                if let Some(id) = self.connection_of(client, listen)
                    && let Some(connection) = self.connections.get_mut(&id)
                {
                    connection.refused = Some(Refused {
                        reason,
                        status,
                        subject: subject.as_str().to_owned(),
                    });
                }
            }
            Event::Closed {
                client,
                listen,
                end,
                source,
                bytes_in,
                bytes_out,
                ..
            } => {
                if let Some(id) = self.connection_of(client, listen)
                    && let Some(connection) = self.connections.get_mut(&id)
                    && connection.leg.is_some_and(|leg| leg.key.src == source)
                {
                    connection.ended = Some(Ended {
                        end,
                        bytes_in,
                        bytes_out,
                    });
                }
            }
            _ => {} // of no connection, or of one that a capture does not have
        }
    }

    /// Handles a packet sent by the switch. `cause` is the input it results from.
    pub(super) fn take_packet(&mut self, packet: &Packet, cause: Option<&Input>) -> io::Result<()> {
        let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
            self.tally.unsound += 1;
            return Ok(());
        };
        if let Some(&id) = self.by_client.get(&header.key.reversed()) {
            return self.sent_to_client(id, packet, &header, cause);
        }
        if let Some(&id) = self.by_server.get(&header.key) {
            return self.sent_to_server(id, packet, &header, cause);
        }
        let first_syn = header.flags == TcpFlags::SYN && cause.is_none();
        if first_syn && let Some(id) = self.claim_syn(&header) {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.leg = Some(ServerLeg {
                    key: header.key,
                    isn: header.seq,
                });
            }
            self.by_server.insert(header.key, id);
            self.write_made(Leg::Server, packet)?;
            self.release_server(id);
            return Ok(());
        }
        if first_syn {
            self.answer_probe(&header, packet);
        }
        Ok(())
    }

    /// The connection of the switch's SYN to a server; `None` for a probe.
    fn claim_syn(&mut self, header: &TcpPacket) -> Option<u64> {
        let index = self.deciding.iter().position(|(id, server)| {
            let ahead = self
                .connections
                .get(id)
                .map(|connection| connection.client_isn.since(header.seq));
            *server == header.key.dst
                && ahead.is_some_and(|ahead| ahead.unsigned_abs() <= MOVED_MAX)
        })?;
        self.deciding.remove(index).map(|(id, _)| id)
    }

    /// The switch connects: the captured server's SYN-ACK answers, followed by its queued packets.
    fn release_server(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let answer = connection.answer().cloned();
        let waiting = connection.take_waiting();
        if let Some(answer) = answer {
            if connection.answered {
                // Replayed again for another server; already counted.
                self.tally.played -= 1;
            }
            connection.answered = true;
            self.feed_from_server(id, answer);
        }
        for packet in waiting {
            self.feed_from_server(id, packet);
        }
    }

    fn sent_to_client(
        &mut self,
        id: u64,
        packet: &Packet,
        header: &TcpPacket,
        cause: Option<&Input>,
    ) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let from_server = cause.is_some_and(|input| input.from == Some((id, Side::Server)));
        if from_server && let Some(input) = cause {
            return self.translated(id, packet, header, input, Side::Server);
        }
        let end = header.seq + header.segment_len();
        connection.shown_nxt = Some(connection.shown_nxt.map_or(end, |known| known.max(end)));
        if header.flags.contains(TcpFlags::SYN | TcpFlags::ACK) {
            connection
                .shown
                .get_or_insert(Told::of(header, &packet.bytes));
        } else if connection.leg.is_none() && header.flags == TcpFlags::ACK {
            // Bytes of the client that the switch must deliver from now on.
            connection.held = true;
        }
        let closes = connection.refused.is_some() && header.flags.contains(TcpFlags::FIN);
        self.write_made(Leg::Client, packet)?;
        if closes {
            self.close_for_client(id, header);
        }
        Ok(())
    }

    /// The captured client never saw the switch's answer, so the replay acknowledges it in its
    /// place.
    fn close_for_client(&mut self, id: u64, header: &TcpPacket) {
        let mut bytes = Vec::new();
        TcpRepr {
            key: header.key.reversed(),
            seq: header.ack,
            ack: header.seq + header.segment_len(),
            flags: TcpFlags::FIN | TcpFlags::ACK,
            window: u16::MAX,
            options: &[],
            payload: &[],
            ttl: TTL,
        }
        .emit(&mut bytes);
        self.tally.closed_for_clients += 1;
        self.inputs.push_back(Input {
            from: Some((id, Side::Client)),
            source: None,
            bytes,
        });
    }

    fn sent_to_server(
        &mut self,
        id: u64,
        packet: &Packet,
        header: &TcpPacket,
        cause: Option<&Input>,
    ) -> io::Result<()> {
        if let Some(input) = cause
            && input.from == Some((id, Side::Client))
        {
            return self.translated(id, packet, header, input, Side::Client);
        }
        self.write_made(Leg::Server, packet)?;
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        if header.payload_len() == 0 {
            return Ok(());
        }
        let end = header.seq + header.payload_len() as u32;
        connection.head_end = Some(connection.head_end.map_or(end, |known| known.max(end)));
        let rewritten = connection
            .decided
            .as_ref()
            .is_some_and(|decided| decided.treatment == Treatment::OneShot);
        let (client, number) = (connection.captured.src, connection.first_packet);
        let numbers = connection
            .told
            .is_some_and(|told| header.ack == told.isn + 1);
        let same = rewritten || connection.matches_early(header, &packet.bytes);
        self.comparison.heads += 1;
        if !same {
            let what = "the head sent by the switch differs from the client's".to_owned();
            self.comparison.report(number, client, what);
        }
        if !numbers && !connection.held {
            let what = "the head acknowledges data that the server has not sent".to_owned();
            self.comparison.report(number, client, what);
        }
        Ok(())
    }

    /// Handles a translated captured packet.
    fn translated(
        &mut self,
        id: u64,
        packet: &Packet,
        header: &TcpPacket,
        input: &Input,
        side: Side,
    ) -> io::Result<()> {
        let (Some(source), Some(connection)) = (&input.source, self.connections.get_mut(&id))
        else {
            return Ok(());
        };
        let captured = &source.packet;
        let past_head = connection.head_end.is_some_and(|end| {
            side == Side::Server
                && !captured.header.ack.before(end)
                && header.ack == captured.header.ack
        });
        if past_head {
            connection.held = false;
            connection.forget_early();
        }
        let expected = connection.expected(side).filter(|_| !connection.held);
        match expected {
            Some(expected) => {
                match side {
                    Side::Client => self.comparison.forward += 1,
                    Side::Server => self.comparison.reverse += 1,
                }
                if let Some(what) = difference(captured, &expected, &packet.bytes) {
                    let client = connection.captured.src;
                    self.comparison.report(source.number, client, what);
                }
            }
            None => self.comparison.not_comparable += 1,
        }
        let whole = captured.missing == 0;
        let right = whole && captured.header.checksum_valid(&captured.bytes);
        if right && !is_sound(&packet.bytes) {
            self.tally.unsound += 1;
        }
        let leg = match side {
            Side::Client => Leg::Server,
            Side::Server => Leg::Client,
        };
        let missing = captured.missing.min(packet.bytes.len());
        let stamp = self.clock.stamp_ns(self.now);
        let comment = || format!("packet {} of the capture, translated", source.number);
        self.outlet
            .write(leg, Passage::Out, stamp, &packet.bytes, missing, comment)
    }

    fn write_made(&mut self, leg: Leg, packet: &Packet) -> io::Result<()> {
        if !is_sound(&packet.bytes) {
            self.tally.unsound += 1;
        }
        let stamp = self.clock.stamp_ns(self.now);
        let comment = || "generated by the switch".to_owned();
        self.outlet
            .write(leg, Passage::Out, stamp, &packet.bytes, 0, comment)
    }

    /// Answers a probe of the switch as the capture's servers would have.
    fn answer_probe(&mut self, syn: &TcpPacket, packet: &Packet) {
        let offers = self.survey.offers_of(self.datapath.config(), syn.key.dst);
        let asked = SynOptions::parse(syn.options(&packet.bytes)).unwrap_or_default();
        let mut options = Vec::new();
        SynOptions {
            mss: Some(offers.mss),
            window_scale: offers.window_scale.filter(|_| asked.window_scale.is_some()),
            sack_permitted: offers.sack && asked.sack_permitted,
            timestamps: asked
                .timestamps
                .filter(|_| offers.timestamps)
                .map(|asked| Timestamps {
                    value: self.now.as_millis() as u32,
                    echo: asked.value,
                }),
        }
        .emit(&mut options);
        let mut bytes = Vec::new();
        TcpRepr {
            key: syn.key.reversed(),
            seq: syn.seq,
            ack: syn.seq + 1,
            flags: TcpFlags::SYN | TcpFlags::ACK,
            window: u16::MAX,
            options: &options,
            payload: &[],
            ttl: TTL,
        }
        .emit(&mut bytes);
        self.tally.probes += 1;
        self.inputs.push_back(Input {
            from: None,
            source: None,
            bytes,
        });
    }
}
