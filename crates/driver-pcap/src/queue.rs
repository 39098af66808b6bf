//! Capture files as queues with the traits of [`fairlead_netio`].

use std::collections::BTreeMap;
use std::io::{self, Write};

use fairlead_base::{Checksum, Instant, PACKET_BYTES_MAX, Packet};
use fairlead_netio::{Batch, Direction, RxQueue, Sink, TxQueue};

use crate::clock::StampClock;
use crate::error::CaptureError;
use crate::link::{NotIp, ip_packet};
use crate::reader::CaptureReader;
use crate::writer::{CaptureWriter, Passage};

/// What a [`CaptureQueue`] did not pass on, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Packets passed on.
    pub passed: u64,
    /// Packets other than IP, by kind.
    pub not_ip: BTreeMap<NotIp, u64>,
    /// Incompletely captured IP packets. They are dropped, because they cannot be verified or
    /// completed.
    pub snapped: u64,
    /// IP packets longer than any driver carries.
    pub too_long: u64,
}

/// Receives the IP packets of a capture. Each batch holds packets of one stamp, and says which.
#[derive(Debug)]
pub struct CaptureQueue {
    reader: CaptureReader,
    clock: StampClock,
    /// Read, but of a later stamp than the batch it was read for.
    ahead: Option<(Instant, Packet)>,
    counts: QueueCounts,
}

impl CaptureQueue {
    /// Packets from this file.
    pub fn new(reader: CaptureReader) -> Self {
        Self {
            reader,
            clock: StampClock::default(),
            ahead: None,
            counts: QueueCounts::default(),
        }
    }

    /// True when everything was received.
    pub fn is_over(&self) -> bool {
        self.ahead.is_none() && self.reader.is_over()
    }

    /// Counts of packets.
    pub fn counts(&self) -> &QueueCounts {
        &self.counts
    }

    /// Reads up to the next IP packet; `None` at the end of the file.
    fn read(&mut self) -> Result<Option<(Instant, Packet)>, CaptureError> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        while let Some(captured) = self.reader.next_packet()? {
            let at = self.clock.advance_if_known(captured.stamp_ns);
            match ip_packet(captured.link, captured.bytes) {
                Ok(ip) if ip.missing > 0 => self.counts.snapped += 1,
                Ok(ip) if ip.bytes.len() > PACKET_BYTES_MAX => self.counts.too_long += 1,
                Ok(ip) => {
                    self.counts.passed += 1;
                    return Ok(Some((at, Packet::from_bytes(ip.bytes))));
                }
                Err(reason) => *self.counts.not_ip.entry(reason).or_insert(0) += 1,
            }
        }
        Ok(None)
    }
}

impl RxQueue for CaptureQueue {
    type Error = CaptureError;

    /// The time is the capture's own, see [`Batch::arrived`]; `now` is ignored.
    fn receive(&mut self, _now: Instant, batch: &mut Batch) -> Result<usize, CaptureError> {
        let mut received = 0;
        while !batch.is_full() {
            let Some((at, packet)) = self.read()? else {
                break;
            };
            if batch.arrived().is_some_and(|arrived| arrived != at) {
                self.ahead = Some((at, packet));
                break;
            }
            batch.set_arrived(at);
            batch.push_copy(&packet);
            received += 1;
        }
        Ok(received)
    }
}

/// Writes packets to one interface of a capture file, as a transmit queue or as an onlooker.
#[derive(Debug)]
pub struct CaptureSink<W: Write> {
    writer: CaptureWriter<W>,
    interface: u32,
    origin_ns: u64,
    lost: u64,
}

impl<W: Write> CaptureSink<W> {
    /// Writes to `interface`; [`Instant::ZERO`] is `origin_ns` nanoseconds after 1970.
    pub fn new(writer: CaptureWriter<W>, interface: u32, origin_ns: u64) -> Self {
        Self {
            writer,
            interface,
            origin_ns,
            lost: 0,
        }
    }

    /// Packets that could not be written while looking on.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The file.
    pub fn into_writer(self) -> CaptureWriter<W> {
        self.writer
    }

    fn write(&mut self, at: Instant, passage: Passage, packet: &Packet) -> io::Result<()> {
        let stamp_ns = self.origin_ns.saturating_add(at.as_nanos());
        let comment = match (packet.checksum, packet.gso) {
            (Checksum::Partial, Some(_)) => "to be cut into segments by the device",
            (Checksum::Partial, None) => "checksum to be completed by the device",
            _ => "",
        };
        let bytes = &packet.bytes;
        self.writer
            .write(self.interface, passage, stamp_ns, bytes, 0, comment)
    }
}

impl<W: Write> TxQueue for CaptureSink<W> {
    type Error = io::Error;

    fn transmit(&mut self, now: Instant, packet: &Packet) -> io::Result<()> {
        self.write(now, Passage::Out, packet)
    }

    fn flush(&mut self, _now: Instant) -> io::Result<()> {
        self.writer.flush()
    }
}

impl<W: Write> Sink for CaptureSink<W> {
    fn record(&mut self, at: Instant, direction: Direction, packet: &Packet) {
        let passage = match direction {
            Direction::Rx => Passage::In,
            Direction::Tx => Passage::Out,
        };
        if self.write(at, passage, packet).is_err() {
            self.lost += 1;
        }
    }
}
