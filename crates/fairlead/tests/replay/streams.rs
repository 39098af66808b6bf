//! The packets that are written: four flows a connection, in which both sides' streams agree.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;

use fairlead_base::FlowKey;
use fairlead_driver_pcap::{CaptureReader, Format, LinkType};
use fairlead_wire::{Classified, TcpFlags, TcpPacket, classify};

use crate::support::{Manner, all_kept, play};

/// One direction of one leg.
#[derive(Debug, Default)]
struct Flow {
    isn: Option<u32>,
    bytes: BTreeMap<u32, u8>,
}

impl Flow {
    fn add(&mut self, header: &TcpPacket, bytes: &[u8]) {
        if header.flags.contains(TcpFlags::SYN) {
            self.isn.get_or_insert(header.seq.0);
        }
        let Some(isn) = self.isn else { return };
        let start = header.seq.0.wrapping_sub(isn).wrapping_sub(1);
        for (at, &byte) in header.payload(bytes).iter().enumerate() {
            // A byte before the first is one of a keep-alive probe.
            let place = start.wrapping_add(at as u32);
            if place < 1 << 31 {
                let known = self.bytes.entry(place).or_insert(byte);
                assert_eq!(*known, byte, "a byte changed when it was sent again");
            }
        }
    }
}

/// All packets of a written file, by flow. Snapped ones are left out.
fn flows(path: &Path, file: Vec<u8>) -> BTreeMap<FlowKey, Flow> {
    let mut reader = CaptureReader::from_source("written", Cursor::new(file)).unwrap();
    assert_eq!(reader.format(), Format::PcapNg);
    let mut flows: BTreeMap<FlowKey, Flow> = BTreeMap::new();
    let mut last = None;
    while let Some(packet) = reader.next_packet().unwrap() {
        assert_eq!(packet.link, LinkType::RAW);
        assert!(packet.stamp_ns >= last, "{}", path.display());
        last = packet.stamp_ns;
        if packet.original_len as usize > packet.bytes.len() {
            continue;
        }
        let Ok(Classified::Tcp(header)) = classify(packet.bytes) else {
            panic!(
                "{}: packet {} is not a TCP packet",
                path.display(),
                packet.number
            );
        };
        assert!(header.checksum_valid(packet.bytes), "{}", path.display());
        flows
            .entry(header.key)
            .or_default()
            .add(&header, packet.bytes);
    }
    flows
}

#[test]
fn both_sides_see_one_stream() {
    let mut compared = 0;
    for path in all_kept() {
        for manner in [Manner::Splice, Manner::Transparent, Manner::Blind] {
            let played = play(&path, manner, true);
            if played.summary.snapped > 0 || played.summary.tcp_wrong > 0 {
                continue;
            }
            let flows = flows(&path, played.written);
            for connection in &played.connections {
                let Some(decision) = &connection.decision else {
                    continue;
                };
                let parse = |text: &str| -> fairlead_base::Endpoint {
                    text.parse::<core::net::SocketAddr>().unwrap().into()
                };
                let Some(source) = &decision.source else {
                    continue;
                };
                let client_side = FlowKey {
                    src: parse(&connection.client),
                    dst: parse(&connection.listen),
                };
                let server_side = FlowKey {
                    src: parse(source),
                    dst: parse(&decision.server),
                };
                let (sent, passed) = (&flows[&client_side], &flows[&server_side]);
                assert_eq!(sent.bytes, passed.bytes, "{connection:?}");
                // Client numbers never change.
                assert_eq!(sent.isn, passed.isn);
                let (sent, passed) = (
                    &flows[&server_side.reversed()],
                    &flows[&client_side.reversed()],
                );
                assert_eq!(sent.bytes, passed.bytes, "{connection:?}");
                assert_eq!(sent.bytes.len() as u64, connection.bytes_out);
                compared += sent.bytes.len();
            }
        }
    }
    assert!(compared > 100_000, "{compared}");
}
