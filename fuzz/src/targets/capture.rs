//! `driver-pcap`: arbitrary capture files, whole and in pieces.

use std::io::{self, Cursor, Read};

use fairlead_base::Instant;
use fairlead_driver_pcap::{
    CaptureReader, CaptureWriter, LinkType, Passage, RECORD_BYTES_MAX, StampClock, ip_packet,
};
use fairlead_wire::classify;

use super::Target;
use crate::corpus::fingerprint;
use crate::novelty::{note, note_size};

pub(super) const TARGET: Target = Target {
    name: "capture",
    about: "a capture file: the same packets however it is read, and once more after writing them",
    run,
    bytes_max: 4_096,
    tokens: &[
        &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0],
        &[0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0],
        &[0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4],
        // Section header, interface, simple, enhanced and obsolete packet blocks.
        &[
            0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
        ],
        &[1, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0],
        &[3, 0, 0, 0, 16, 0, 0, 0],
        &[6, 0, 0, 0, 32, 0, 0, 0],
        &[2, 0, 0, 0, 32, 0, 0, 0],
        // Options: resolution of stamps, their offset, the end.
        &[9, 0, 1, 0, 9, 0, 0, 0],
        &[9, 0, 1, 0, 0x8a, 0, 0, 0],
        &[9, 0, 1, 0, 0xff, 0, 0, 0],
        &[14, 0, 8, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        &[0, 0, 0, 0],
        // Packed files.
        &[0x1f, 0x8b, 8, 0],
        &[0x28, 0xb5, 0x2f, 0xfd],
        // Link headers.
        &[0x81, 0, 0, 1, 8, 0],
        &[8, 0, 0x45, 0],
        &[0x86, 0xdd, 0x60, 0],
    ],
};

/// Packets looked at: a packed file of a few bytes can hold millions of empty ones.
const PACKETS_MAX: usize = 2_000;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    stamp_ns: Option<u64>,
    link: LinkType,
    bytes: Vec<u8>,
    original_len: u32,
}

/// A source that gives few bytes at a time.
struct Drip {
    bytes: Cursor<Vec<u8>>,
    at_once: usize,
}

impl Read for Drip {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = out.len().min(self.at_once);
        self.bytes.read(&mut out[..count])
    }
}

fn run(file: &[u8]) {
    let whole = read(Cursor::new(file.to_vec()));
    let at_once = 1 + fingerprint(file) as usize % 7;
    let drip = Drip {
        bytes: Cursor::new(file.to_vec()),
        at_once,
    };
    let (packets, error) = whole;
    let in_pieces = read(drip);
    let damaged = |error: &Option<String>| {
        error
            .as_ref()
            .is_some_and(|text| text.contains("cannot be read on"))
    };
    if damaged(&error) || damaged(&in_pieces.1) {
        // How much a decoder gives before it finds the damage is its own affair.
        let (less, more) = (packets.len().min(in_pieces.0.len()), &in_pieces.0);
        assert_eq!(packets[..less], more[..less], "read by {at_once} bytes");
    } else {
        assert_eq!(
            in_pieces,
            (packets.clone(), error.clone()),
            "read by {at_once} bytes"
        );
    }
    note_size("capture.packets", packets.len());
    // Messages have numbers in them; their shape does not.
    let shape: String = error
        .iter()
        .flat_map(|text| text.chars())
        .filter(|letter| letter.is_ascii_alphabetic())
        .collect();
    note("capture.error", fingerprint(shape.as_bytes()) % 512);
    check_packets(&packets);
}

/// Everything up to the end, or to the first error and what it says.
fn read(source: impl Read + Send + 'static) -> (Vec<Packet>, Option<String>) {
    let mut packets = Vec::new();
    let mut reader = match CaptureReader::from_source("fuzz", source) {
        Ok(reader) => reader,
        Err(error) => return (packets, Some(error.to_string())),
    };
    note("capture.format", reader.format() as u64);
    while packets.len() < PACKETS_MAX {
        match reader.next_packet() {
            Ok(Some(packet)) => {
                assert_eq!(packet.number, packets.len() as u64 + 1);
                assert!(packet.bytes.len() <= RECORD_BYTES_MAX);
                packets.push(Packet {
                    stamp_ns: packet.stamp_ns,
                    link: packet.link,
                    bytes: packet.bytes.to_vec(),
                    original_len: packet.original_len,
                });
            }
            Ok(None) => break,
            Err(error) => {
                assert!(reader.is_over());
                let after = reader.next_packet();
                assert!(matches!(after, Ok(None)), "something follows an error");
                return (packets, Some(error.to_string()));
            }
        }
    }
    (packets, None)
}

fn check_packets(packets: &[Packet]) {
    let mut clock = StampClock::default();
    let mut before = Instant::ZERO;
    let mut writer = CaptureWriter::new(Vec::new(), "fuzz", &["in"]).expect("to memory");
    let mut written = Vec::new();
    for packet in packets {
        let now = clock.advance_if_known(packet.stamp_ns);
        assert!(now >= before, "time went back");
        before = now;
        note("capture.link", u64::from(packet.link.0));
        let Ok(ip) = ip_packet(packet.link, &packet.bytes) else {
            continue;
        };
        assert!(ip.bytes.len() <= packet.bytes.len());
        note(
            "capture.classified",
            classify(ip.bytes).map_or_else(|why| why as u64, |_| 99),
        );
        let stamp_ns = packet.stamp_ns.unwrap_or(0);
        writer
            .write(0, Passage::In, stamp_ns, ip.bytes, ip.missing, "a comment")
            .expect("to memory");
        written.push(Packet {
            stamp_ns: Some(stamp_ns),
            link: LinkType::RAW,
            bytes: ip.bytes.to_vec(),
            original_len: (ip.bytes.len() + ip.missing) as u32,
        });
    }
    let file = writer.into_inner().expect("to memory");
    assert_eq!(
        read(Cursor::new(file)),
        (written, None),
        "written and read again"
    );
}
